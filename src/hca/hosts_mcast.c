/* Multicast groups at the device's interface. */
#include <errno.h>
#include <string.h>

#include "base/log.h"
#include "base/text.h"
#include "hca/hosts.h"
#include "hca/port.h"

enum { SCOPE_INTERFACE = 1 }; /* of IPv6 groups (RFC 4291, 2.7): packets do not leave the host */

int vb_hosts_join(struct vb_hca *h, const uint8_t mgid[16], const char *call)
{
	struct vb_hosts *t = h->hosts;
	char buf[300] = "";
	struct vb_text why = {buf, sizeof(buf)};
	int err = t ? t->wire->join(t->net, mgid, &why) : 0;

	return err ? vb_refuse(err == ENOBUFS ? ENOMEM : err, call, "%s", buf) : 0;
}

void vb_hosts_leave(struct vb_hca *h, const uint8_t mgid[16])
{
	if (h->hosts)
		h->hosts->wire->leave(h->hosts->net, mgid);
}

/* What leaves by lo comes back to this host, whose processes have it already; of IPv6 the kernel has no route
 * for it there. */
bool vb_hosts_carry(const struct vb_hca *h, const uint8_t mgid[16])
{
	const struct vb_hosts *t = h->hosts;

	return t && (!t->by_lo || (t->only && vb_gid_is_ipv4(vb_gid_of(mgid))));
}

/* A clause without the end of its sentence; false: nothing keeps them. */
static bool add_obstacle(struct vb_text *t, struct vb_gid to, struct vb_gid from, uint8_t index)
{
	const char *family = vb_gid_is_ipv4(to) ? "IPv4" : "IPv6";
	uint8_t bytes[16];

	memcpy(bytes, &to, sizeof(bytes));
	if (vb_gid_is_ipv4(to) != vb_gid_is_ipv4(from))
		vb_text_add(t, "its address is of %s, and GID index %u is not; use an index of %s", family,
			    index, family);
	else if (!vb_gid_is_ipv4(to) && (bytes[1] & 0xf) <= SCOPE_INTERFACE)
		vb_text_add(
		    t,
		    "the scope of ff%02x::/16 is the interface; use a group of ff02::/16 (this link) or "
		    "of ff0e::/16",
		    bytes[1]);
	else
		return false;
	return true;
}

void vb_hosts_say_group(struct vb_hca *h, const struct ibv_ah_attr *av)
{
	const struct vb_gids *own = vb_port_gids(h);
	char group[64] = "", why[160] = "";
	struct vb_text t = {why, sizeof(why)}, g = {group, sizeof(group)};

	if (!vb_hosts_carry(h, av->grh.dgid.raw) ||
	    !add_obstacle(&t, vb_gid_of(av->grh.dgid.raw),
			  vb_gid_of(own->gid[av->grh.sgid_index % VB_GID_TABLE]), av->grh.sgid_index) ||
	    atomic_exchange(&h->hosts->said_group, true))
		return;
	vb_gid_add(&g, av->grh.dgid.raw);
	vb_log(VB_LOG_WARN, "ibv_create_ah: datagrams to the group %s do not leave this host: %s", group,
	       why);
}
