/* Multicast groups: which group an address means, and the events of joining it.
 *
 * There is no SA to ask and none that keeps members: a group is there for whoever sends to it or attaches to
 * it (hca/mcast.h).  So a join is done at once, and only names the group; the queue pair is attached by the
 * program, or on its behalf when the event is fetched. */
#include <arpa/inet.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "base/log.h"
#include "cm/id.h"
#include "obj/refuse.h"

enum {
	HOPS = 64,
	FIRST_MLID = 0xc000,
	MLIDS = 0x3ffe, /* the last of 0xc000 to 0xffff means all, and the one before is not given out */
	GROUP_PREFIX = 0xff,
};

/* On RoCE the address is the GID.  On InfiniBand addresses of IP become the GIDs that IPoIB gives them (RFC
 * 4391, section 4), with the signature of rdma_cm instead of IPoIB's own for its port spaces. */
static void mgid_of(uint8_t mgid[16], const struct vb_cm_id *id, const struct sockaddr *a)
{
	uint16_t signature = a->sa_family == AF_INET ? 0x401b : 0x601b;
	uint8_t gid[16];

	vb_cm_sock_gid(a, gid);
	memcpy(mgid, gid, 16);
	if (!vb_cm_below()->infiniband() || a->sa_family == AF_IB)
		return;
	if (a->sa_family == AF_INET6 && gid[0] == GROUP_PREFIX && gid[2] == 0xa0 && gid[3] == 0x1b)
		return; /* a GID that an SA has chosen */
	memset(mgid, 0, 16);
	mgid[0] = GROUP_PREFIX;
	mgid[1] = 0x12; /* transient, of this link */
	mgid[2] = (uint8_t)(signature >> 8);
	mgid[3] = (uint8_t)signature;
	if (id->ps == RDMA_PS_UDP)
		mgid[3] = 0x01;
	mgid[4] = 0xff; /* the P_Key */
	mgid[5] = 0xff;
	if (a->sa_family == AF_INET) {
		memcpy(mgid + 12, gid + 12, 4);
		mgid[12] &= 0x0f; /* 28 bits tell groups apart */
	} else {
		memcpy(mgid + 6, gid + 6, 10);
	}
}

static bool is_group(const struct sockaddr *a)
{
	uint8_t gid[16];

	vb_cm_sock_gid(a, gid);
	return gid[0] == GROUP_PREFIX || (a->sa_family == AF_INET && gid[12] >> 4 == 0xe);
}

/* All who join have to come to the same LID without a word to one another. */
static uint16_t mlid_of(const uint8_t mgid[16])
{
	uint32_t h = 2166136261u; /* FNV-1a */

	for (int i = 0; i < 16; i++)
		h = (h ^ mgid[i]) * 16777619u;
	return (uint16_t)(FIRST_MLID + h % MLIDS);
}

static void describe(struct vb_cm_news *n, const struct vb_cm_id *id, const struct sockaddr *a)
{
	struct ibv_ah_attr *ah = &n->ud_param.ah_attr;

	*ah = (struct ibv_ah_attr){.is_global = 1, .port_num = 1, .static_rate = id->device->rate};
	mgid_of(ah->grh.dgid.raw, id, a);
	ah->grh.sgid_index = id->sgid_index;
	ah->grh.hop_limit = HOPS;
	ah->grh.traffic_class = id->tos_set ? id->tos : 0;
	if (vb_cm_below()->infiniband())
		ah->dlid = mlid_of(ah->grh.dgid.raw);
	n->ud = true;
	n->ud_param.qp_num = VB_CM_GROUP_QPN;
	n->ud_param.qkey = id->qkey;
}

static struct vb_cm_join *find(struct vb_cm_id *id, const struct sockaddr *a)
{
	struct vb_cm_join *last = NULL;
	uint8_t want[16], gid[16];

	vb_cm_sock_gid(a, want);
	vb_list_each (n, &id->joins) {
		struct vb_cm_join *j = vb_list_entry(n, struct vb_cm_join, node);

		vb_cm_sock_gid((struct sockaddr *)&j->addr, gid);
		if (j->addr.ss_family == a->sa_family && !memcmp(want, gid, sizeof(gid)))
			last = j;
	}
	return last;
}

static int check(const struct vb_cm_id *id, const struct sockaddr *a)
{
	static const char call[] = "rdma_join_multicast";

	if (!vb_cm_sock_size(a))
		return vb_refuse(EINVAL, call, VB_CM_BAD_FAMILY, a->sa_family);
	if (a->sa_family == AF_IB && !vb_cm_below()->infiniband())
		return vb_refuse(ENODEV, call, VB_CM_NO_INFINIBAND);
	if (id->type != IBV_QPT_UD)
		return vb_refuse(EINVAL, call,
				 "only ids for datagrams can join a group; create the id with RDMA_PS_UDP or "
				 "RDMA_PS_IPOIB");
	if (!id->device)
		return vb_refuse(
		    EINVAL, call,
		    "the id is not bound to a device; first call rdma_bind_addr() with an address "
		    "of this host, or "
		    "rdma_resolve_addr() with the group's address");
	if (!is_group(a))
		return vb_refuse(EINVAL, call, "the address is not a multicast address");
	return 0;
}

static int begin(struct vb_cm_id *id, const struct sockaddr *a, void *join)
{
	struct vb_cm_join *j = calloc(1, sizeof(*j)); /* vb_cm_id_leave(), vb_cm_id_free() */
	struct vb_cm_item *it;

	if (!j)
		return ENOMEM;
	it = vb_cm_item_new(id, RDMA_CM_EVENT_MULTICAST_JOIN, 0);
	if (!it) {
		free(j);
		return ENOMEM;
	}
	memcpy(&j->addr, a, vb_cm_sock_size(a));
	vb_list_append(&id->joins, &j->node);
	it->join = j;
	it->news.join = join;
	describe(&it->news, id, a);
	vb_cm_item_post(it);
	return 0;
}

enum { MASK_ADDRESS = 1, MASK_FLAGS = 2, FLAGS_KNOWN = 2 };

int vb_cm_id_join(struct vb_cm_id *id, const struct sockaddr *addr, uint64_t comp_mask, uint32_t flags,
		  void *join)
{
	static const char call[] = "rdma_join_multicast_ex";
	int err;

	if (comp_mask & ~(uint64_t)(MASK_ADDRESS | MASK_FLAGS))
		return vb_refuse_bits(EINVAL, call, "comp_mask", comp_mask, MASK_ADDRESS | MASK_FLAGS);
	/* A full member or one that only sends: who sends joins nothing here, and may attach all the same. */
	if (comp_mask & MASK_FLAGS && flags >= FLAGS_KNOWN)
		return vb_refuse(EINVAL, call, "join_flags %u is invalid", flags);
	err = vb_cm_id_enter(id, VB_ID_CALL_JOIN);
	if (err)
		return err;
	err = check(id, addr);
	if (!err)
		err = begin(id, addr, join);
	vb_cm_ids_leave();
	return err;
}

int vb_cm_id_leave(struct vb_cm_id *id, const struct sockaddr *addr, uint32_t *delivered)
{
	static const char call[] = "rdma_leave_multicast";
	struct vb_list none;
	struct vb_cm_join *j;
	int err;

	*delivered = 0;
	if (!vb_cm_sock_size(addr))
		return vb_refuse(EINVAL, call, VB_CM_BAD_FAMILY, addr->sa_family);
	vb_list_init(&none);
	err = vb_cm_id_hold(id, call);
	if (err)
		return err;
	j = find(id, addr);
	if (j) {
		vb_list_unlink(&j->node);
		vb_cm_items_drop(id, j, &none);
		*delivered = j->delivered;
		free(j);
	}
	vb_cm_ids_leave();
	return j ? 0 : vb_refuse(EADDRNOTAVAIL, call, VB_CM_NOT_JOINED);
}
