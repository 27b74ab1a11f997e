/* Datagrams to multicast groups: one copy for each process of this host that has members, and one for all
 * other hosts. */
#include "obj/dests.h"
#include "transport/transport.h"
#include "transport/ud_priv.h"

/* A packet to a group, put together once. */
struct to_group {
	struct vb_brief b; /* its payload is there only where all of it is brief */
	const uint8_t *payload;
	uint32_t payload_len;
};

static bool send_copy(struct vb_out *out, const struct to_group *g)
{
	struct vb_outbuf b;

	if (g->b.hdr_len + g->payload_len <= out->brief)
		return out->ops->send(out, &g->b, VB_OUT_REQUEST);
	if (!out->ops->reserve(out, &b, g->b.hdr_len, g->payload_len, VB_OUT_REQUEST))
		return false;
	memcpy(b.hdr, g->b.bytes, g->b.hdr_len);
	memcpy(b.payload, g->payload, g->payload_len);
	b.ack = g->b.ack;
	b.sl = vb_route_sl(g->b.route);
	b.hops = g->b.hops;
	out->ops->commit(out, &b);
	vb_out_push(out);
	return true;
}

/* The copy for all members on other hosts, whose address says the group's GID. */
static __attribute__((noinline)) bool send_to_net(struct vb_out *out, const struct to_group *g)
{
	uint32_t hdr_len = g->b.hdr_len - VB_MGID_LEN;
	struct vb_outbuf b;

	if (out->ops->aim)
		out->ops->aim(out, g->b.route, VB_QPN_GROUP);
	if (!out->ops->reserve(out, &b, hdr_len, g->payload_len, VB_OUT_REQUEST))
		return false;
	memcpy(b.hdr, g->b.bytes, hdr_len);
	memcpy(b.payload, g->payload, g->payload_len);
	out->ops->commit(out, &b);
	vb_out_push(out);
	return true;
}

static bool send_one_copy(struct vb_qp *qp, const struct to_group *g, const uint64_t mgid[2], uint32_t i)
{
	struct vb_out *out = qp->dests->group->way(qp, mgid, i);

	if (vb_likely(i != VB_TARGET_NET))
		return send_copy(out, g);
	return !out || send_to_net(out, g);
}

/* Sends to each of `to` who has room, and takes those off.  Whoever is stuck and has none loses it.  Returns
 * one who is left, VB_TARGETS: none. */
static uint32_t send_copies(struct vb_qp *qp, const struct to_group *g, const uint64_t mgid[2],
			    struct vb_targets *to)
{
	const struct vb_facts f = {
	    .reason = VB_R_DROP_FULL, .qpn = qp->qpn, .retry = {.peer_qpn = VB_QPN_GROUP}};
	struct vb_targets *stuck = &qp->dests->stuck;
	uint32_t left = VB_TARGETS;

	for (uint32_t k = 0; k < to->words; k++) {
		for (uint64_t bits = to->peers[k]; bits; bits &= bits - 1) {
			uint32_t i = k * 64 + (uint32_t)__builtin_ctzll(bits);
			uint64_t bit = bits & -bits;

			if (vb_likely(send_one_copy(qp, g, mgid, i))) {
				stuck->peers[k] &= ~bit;
			} else if (stuck->peers[k] & bit) {
				vb_drop(qp, &f);
			} else {
				left = i;
				continue;
			}
			to->peers[k] &= ~bit;
		}
	}
	return left;
}

/* The packet's headers, with the group's GID behind them, and the bytes of w; `room` is for those of a packet
 * that is not brief.  false: w is refused. */
static bool put_together(struct vb_qp *qp, struct vb_swqe *w, struct to_group *g, uint8_t *room)
{
	struct vb_pkt p = {.opcode = (uint8_t)(VB_FAMILY_UD | vb_wrs[w->opcode].packets.only),
			   .solicited = w->flags & IBV_SEND_SOLICITED,
			   .pad = -w->length & 3,
			   .pkey = VB_PKEY_DEFAULT,
			   .qpn = VB_QPN_GROUP,
			   .psn = qp->req.psn,
			   .qkey = w->to.qkey,
			   .src_qpn = qp->qpn,
			   .imm = w->imm};
	uint32_t hdr_len = vb_opcodes[p.opcode].hdr_len;
	uint8_t *to;

	memset(&g->b, 0, sizeof(g->b));
	g->b.route = w->to.route;
	vb_pkt_encode(g->b.bytes, &p);
	memcpy(g->b.bytes + hdr_len, w->to.mgid, VB_MGID_LEN);
	g->b.hdr_len = (uint8_t)(hdr_len + VB_MGID_LEN);
	g->payload_len = w->length + p.pad;
	if (g->b.hdr_len + g->payload_len > VB_OUT_BRIEF) {
		to = room;
	} else {
		to = g->b.bytes + g->b.hdr_len;
		g->b.payload_len = (uint8_t)g->payload_len;
	}
	g->payload = to;
	memset(to + w->length, 0, p.pad);
	return vb_ud_gather(qp, w, to);
}

/* Those of `to` who are in `among`, too. */
static void keep_common(struct vb_targets *to, const struct vb_targets *among)
{
	if (to->words > among->words)
		to->words = among->words;
	for (uint32_t k = 0; k < to->words; k++)
		to->peers[k] &= among->peers[k];
}

/* What a network takes of a datagram to a group; UINT32_MAX: none gets one. */
static uint32_t net_takes(struct vb_qp *qp, const uint64_t mgid[2], const struct vb_targets *to)
{
	const struct vb_out *out;

	if (to->words < VB_TARGET_WORDS || !(to->peers[VB_TARGET_NET / 64] >> VB_TARGET_NET % 64 & 1))
		return UINT32_MAX;
	out = qp->dests->group->way(qp, mgid, VB_TARGET_NET);
	return out ? out->mtu : UINT32_MAX;
}

/* One packet for each process with members, and one for other hosts.  Who has no room keeps the request, and
 * those behind it that go to groups, for a second at most; of who has left meanwhile nothing is kept. */
enum vb_ud_sent vb_ud_send_to_group(struct vb_qp *qp, struct vb_swqe *w, struct vb_dest *d)
{
	struct vb_dests *all = qp->dests;
	uint8_t room[VB_PORT_MTU];
	struct vb_targets to;
	struct to_group g;
	uint32_t blocked, most;

	if (vb_unlikely(d->stuck)) { /* give_up() */
		for (uint32_t k = 0; k < all->left.words; k++)
			all->stuck.peers[k] |= all->left.peers[k];
		d->stuck = false;
	}
	if (!put_together(qp, w, &g, room)) {
		all->left.words = 0;
		return VB_UD_FAILED;
	}
	all->group->members(qp, w->to.mgid, &to);
	if (vb_unlikely(all->left.words))
		keep_common(&to, &all->left);
	most = net_takes(qp, w->to.mgid, &to);
	if (vb_unlikely(w->length > most)) {
		vb_ud_refuse_length(qp, w, most);
		all->left.words = 0;
		return VB_UD_FAILED;
	}
	blocked = send_copies(qp, &g, w->to.mgid, &to);
	all->left.words = 0;
	if (vb_likely(blocked == VB_TARGETS)) {
		w->state = VB_WQE_STARTED;
		vb_traffic_send(qp->traffic, w->length);
		qp->req.psn = vb_psn_add(qp->req.psn, 1);
		return VB_UD_SENT;
	}
	all->left = to;
	all->group->blocked(d, w->to.mgid, blocked);
	return VB_UD_BLOCKED;
}
