/* Addresses of this host, for struct vb_cm_below: where an id's local address is, and where a path ends, by
 * the table of devices that all processes of the host make alike (host/devices.h).
 *
 * Address vectors, path records and management datagrams have GIDs of ports' tables only.  An address that
 * stands in none, 127.0.0.1 or ::1 or a second one of an interface, is a name for the device that it belongs
 * to, and the GID is that device's; the header of the private data keeps what was asked for.  An address of
 * another host is its GID there. */
#include <errno.h>
#include <string.h>

#include "cm/below.h"
#include "host/devices.h"
#include "host/netif.h"
#include "host/route.h"

static bool is_v4(const uint8_t gid[16])
{
	static const uint8_t mapped[12] = {[10] = 0xff, [11] = 0xff};

	return !memcmp(gid, mapped, sizeof(mapped));
}

/* Both ends of a path are of one family on RoCE: its packets have one IP header. */
static uint8_t entry_of(const struct vb_gids *t, const uint8_t address[16])
{
	int index = vb_gids_index(t, address);

	if (index >= 0)
		return (uint8_t)index;
	for (uint32_t i = 0; i < t->n; i++)
		if (is_v4(t->gid[i]) == is_v4(address))
			return (uint8_t)i;
	return 0;
}

static void describe(uint32_t device, const uint8_t address[16], struct vb_cm_local *out)
{
	struct vb_port p;

	vb_devices_port(device, &p);
	out->device = device;
	out->gid_index = entry_of(&p.gids, address);
	memcpy(out->gid, p.gids.gid[out->gid_index], sizeof(out->gid));
	out->lid = vb_devices_infiniband() ? vb_devices_lid(device) : 0;
}

int vb_cm_host_local(const uint8_t address[16], struct vb_cm_local *out)
{
	int device = vb_gid_is_zero(address) || vb_gid_is_group(address) ? -1 : vb_devices_of(address);

	if (device < 0)
		return EADDRNOTAVAIL;
	describe((uint32_t)device, address, out);
	return 0;
}

/* Groups are reached from any device; the first one's address of the group's family is the source. */
static void from_first(const uint8_t group[16], uint8_t from[16])
{
	static const uint8_t loopback[16] = {[15] = 1};
	struct vb_port p;

	vb_devices_port(0, &p);
	if (is_v4(group)) {
		memcpy(from, p.address, 16);
		return;
	}
	for (uint32_t i = 0; i < p.gids.n; i++) {
		if (is_v4(p.gids.gid[i]))
			continue;
		memcpy(from, p.gids.gid[i], 16);
		return;
	}
	memcpy(from, loopback, 16);
}

/* The device whose interface that is; -1: none is open to other hosts there. */
static int device_at(uint32_t ifindex, struct vb_port *p)
{
	for (uint32_t i = 0; i < vb_devices_count(); i++) {
		vb_devices_port(i, p);
		if (p->wire && p->ifindex == ifindex)
			return (int)i;
	}
	return -1;
}

/* The interface that packets leave by: that of the source which was chosen, 0: whichever the kernel takes. */
static int interface_of(const uint8_t *source, uint32_t *ifindex)
{
	int device = source ? vb_devices_of(source) : -1;
	struct vb_port p;

	*ifindex = 0;
	if (!source)
		return 0;
	if (device < 0 || vb_gid_is_loopback(source))
		return ENETUNREACH;
	vb_devices_port((uint32_t)device, &p);
	*ifindex = p.ifindex;
	return p.wire ? 0 : EHOSTUNREACH;
}

/* Another host is reached by the device whose interface leads there. */
static int far_host(const uint8_t address[16], const uint8_t *source, uint8_t from[16],
		    struct vb_cm_local *out)
{
	struct vb_route_to r;
	uint32_t ifindex, mtu;
	struct vb_port p;
	int device, err;

	if (vb_devices_infiniband())
		return EHOSTUNREACH;
	err = interface_of(source, &ifindex);
	if (!err)
		err = vb_route_find(&r, address, ifindex);
	if (err)
		return err == EACCES || err == ENETUNREACH ? err : EHOSTUNREACH;
	device = device_at(r.ifindex, &p);
	if (device < 0)
		return EHOSTUNREACH;
	memcpy(from, r.source, 16);
	if (vb_gids_index(&p.gids, from) < 0)
		memcpy(from, p.gids.gid[entry_of(&p.gids, address)], 16);
	if (is_v4(from) != is_v4(address))
		return ENETUNREACH; /* the interface has no address of that family */
	mtu = r.mtu && r.mtu < p.mtu ? r.mtu : p.mtu;
	*out = (struct vb_cm_local){
	    .device = (uint32_t)device, .leaves = true, .mtu = (uint8_t)vb_netif_path_mtu(mtu)};
	memcpy(out->gid, address, 16);
	return 0;
}

/* Who is on this host is reached from the very address, as the kernel routes it. */
int vb_cm_host_far(const uint8_t address[16], const uint8_t *source, uint8_t from[16],
		   struct vb_cm_local *out)
{
	int err;

	*out = (struct vb_cm_local){0};
	if (vb_gid_is_group(address)) {
		memcpy(out->gid, address, 16);
		from_first(address, from);
		return 0;
	}
	err = vb_cm_host_local(address, out);
	if (err) {
		vb_devices_read();
		err = vb_cm_host_local(address, out);
	}
	if (err)
		return far_host(address, source, from, out);
	memcpy(from, address, 16);
	return 0;
}
