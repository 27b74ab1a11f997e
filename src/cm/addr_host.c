/* Addresses of this host, for struct vb_cm_below: where an id's local address is, and where a path ends, by
 * the table of devices that all processes of the host make alike (host/devices.h).
 *
 * Address vectors, path records and management datagrams have GIDs of ports' tables only.  An address that
 * stands in none, 127.0.0.1 or ::1 or a second one of an interface, is a name for the device that it belongs
 * to, and the GID is that device's; the header of the private data keeps what was asked for. */
#include <errno.h>
#include <string.h>

#include "cm/below.h"
#include "host/devices.h"
#include "host/netif.h"

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

/* Who is on this host is reached from the very address, as the kernel routes it. */
int vb_cm_host_far(const uint8_t address[16], uint8_t from[16], struct vb_cm_local *out)
{
	int err;

	if (vb_gid_is_group(address)) {
		*out = (struct vb_cm_local){0};
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
		return EHOSTUNREACH;
	memcpy(from, address, 16);
	return 0;
}
