/* Unreliable datagrams (UD): each request names its destination, and is one packet.  It is complete when that
 * has left, or was dropped because nobody is there; a request whose destination has no room now, or no
 * contact yet, waits there (obj/dests.h), and the others go on, but for those behind one that has failed.
 * Completions come in the order of posting all the same. */
#include "base/few.h"
#include "iba/grh.h"
#include "iba/mad.h"
#include "obj/dests.h"
#include "transport/congestion.h"
#include "transport/pace.h"
#include "transport/take.h"
#include "transport/ud_priv.h"

/* How long a request waits for room where the far end takes nothing, and for contact.  The first to wait so
 * long is dropped, and those behind it at once until there is room: a process that is stopped holds nobody up
 * for longer. */
#define ROOM_WITHIN    (1 * VB_SEC)
#define CONTACT_WITHIN (5 * VB_SEC)

enum { TOGETHER = 96 };		  /* bytes of a datagram that are copied at once with its GRH */
#define TELL_EVERY (50 * VB_USEC) /* CNPs of a queue pair, at most */

/* When more may leave to d, whose path may lose packets; 0: now. */
static uint64_t due_at(const struct vb_dest *d)
{
	return d->pace.left > 0 ? 0 : vb_pace_at(&d->pace);
}

static __attribute__((noinline)) bool is_due(const struct vb_dest *d)
{
	struct vb_out *out = d->path.out;

	return d->pace.left > 0 || vb_pace_at(&d->pace) <= out->ops->now(out);
}

/* Nothing behind a request that cannot be carried out begins before it has failed in its turn.  So what fails
 * after another one stands before it, and its reason is the queue pair's: the other one is flushed. */
__attribute__((cold, noinline)) void vb_ud_refuse(struct vb_qp *qp, struct vb_swqe *w, enum vb_reason r,
						  struct vb_facts *f)
{
	f->reason = r;
	f->qpn = qp->qpn;
	qp->why = *f;
	w->state = VB_WQE_FAILED;
	w->reason = (uint8_t)r;
}

/* The packet is lost: its request is complete like one that was sent, or has failed. */
static __attribute__((cold, noinline)) void drop(struct vb_qp *qp, struct vb_swqe *w, const struct vb_dest *d,
						 enum vb_reason r)
{
	struct vb_facts f = {.reason = r,
			     .qpn = qp->qpn,
			     .retry = {.peer_qpn = w->to.qpn, .silence = d->silence}},
			wrong = {0};
	struct vb_reach_facts *silence = &f.retry.silence;

	/* What is wrong with its memory is an error all the same. */
	for (uint32_t i = 0; !(w->flags & IBV_SEND_INLINE) && i < w->num_sge; i++) {
		enum vb_reason m = w->sge[i].length ? vb_sg_check(qp, &w->sge[i], 0, &wrong) : VB_OK;

		if (m != VB_OK) {
			vb_ud_refuse(qp, w, m, &wrong);
			return;
		}
	}
	if (!w->to.qpn)
		*silence = (struct vb_reach_facts){VB_REACH_UNSET, .number = {.datagram = 1}};
	else if (w->to.number == VB_DEST_NOWHERE && w->to.away == VB_TO_GROUP)
		*silence = (struct vb_reach_facts){VB_REACH_GROUP, .number = {.datagram = 1}};
	else if (w->to.qpn == VB_QPN_GROUP && w->to.number != VB_DEST_GROUP)
		*silence = (struct vb_reach_facts){.reach = VB_REACH_NO_GROUP};
	else if (w->to.qpn == VB_GSI_QPN && qp->qpn != VB_GSI_QPN)
		*silence = (struct vb_reach_facts){.reach = VB_REACH_QP1};
	else if (silence->reach == VB_REACH_ADDRESS)
		silence->away = qp->dests->away;
	else if (silence->reach == VB_REACH_LID)
		silence->lid.lid = w->to.away;
	w->state = VB_WQE_STARTED;
	vb_drop(qp, &f);
}

/* There is no packet of that length. */
__attribute__((cold, noinline)) void vb_ud_refuse_length(struct vb_qp *qp, struct vb_swqe *w, uint32_t fit)
{
	struct vb_facts f = {.length = {.bytes = w->length, .fit = fit}};

	vb_ud_refuse(qp, w, VB_R_DATAGRAM_TOO_LONG, &f);
}

static __attribute__((noinline)) enum vb_ud_sent send_apart(struct vb_qp *qp, struct vb_swqe *w,
							    struct vb_out *out, const struct vb_pkt *p)
{
	struct vb_outbuf b;

	if (vb_unlikely(w->length > out->mtu)) {
		vb_ud_refuse_length(qp, w, out->mtu);
		return VB_UD_FAILED;
	}
	if (vb_unlikely(out->ops->aim != NULL))
		out->ops->aim(out, w->to.route, w->to.qpn);
	if (!out->ops->reserve(out, &b, vb_opcodes[p->opcode].hdr_len, w->length + p->pad, VB_OUT_REQUEST))
		return VB_UD_BLOCKED;
	if (vb_unlikely(!vb_ud_gather(qp, w, b.payload))) {
		out->ops->cancel(out, &b);
		return VB_UD_FAILED;
	}
	memset(b.payload + w->length, 0, p->pad);
	vb_pkt_encode(b.hdr, p);
	b.ack = w->to.route.word;
	b.sl = vb_route_sl(w->to.route);
	b.hops = w->to.route.hops;
	out->ops->commit(out, &b);
	vb_out_push(out);
	return VB_UD_SENT;
}

static inline __attribute__((always_inline)) enum vb_ud_sent send_packet(struct vb_qp *qp, struct vb_swqe *w,
									 struct vb_out *out)
{
	struct vb_brief b;
	struct vb_pkt p;

	p.opcode = (uint8_t)(VB_FAMILY_UD | vb_wrs[w->opcode].packets.only);
	p.solicited = w->flags & IBV_SEND_SOLICITED;
	p.ack_req = false;
	p.pad = -w->length & 3;
	p.pkey = VB_PKEY_DEFAULT;
	p.qpn = w->to.qpn;
	p.psn = qp->req.psn;
	p.qkey = w->to.qkey;
	p.src_qpn = qp->qpn;
	p.imm = w->imm;
	b.route = w->to.route;
	b.hdr_len = vb_opcodes[p.opcode].hdr_len;
	if (vb_unlikely(b.hdr_len + w->length + p.pad > out->brief))
		return send_apart(qp, w, out, &p);
	b.payload_len = (uint8_t)(w->length + p.pad);
	memset(b.bytes, 0, sizeof(b.bytes)); /* what is not used of it goes along */
	if (vb_likely(w->opcode == IBV_WR_SEND))
		vb_pkt_put_datagram(b.bytes, &p);
	else
		vb_pkt_encode(b.bytes, &p);
	if (vb_unlikely(!vb_ud_gather(qp, w, b.bytes + b.hdr_len)))
		return VB_UD_FAILED;
	return vb_likely(out->ops->send(out, &b, VB_OUT_REQUEST)) ? VB_UD_SENT : VB_UD_BLOCKED;
}

/* Apart, so that peers on this host take no look more. */
static __attribute__((noinline)) enum vb_ud_sent send_paced(struct vb_qp *qp, struct vb_swqe *w,
							    struct vb_dest *d)
{
	struct vb_out *out = d->path.out;
	enum vb_ud_sent how = send_packet(qp, w, out);

	if (how == VB_UD_SENT)
		vb_pace_sent(&d->pace, w->length + VB_CONGESTION_OVERHEAD,
			     d->pace.left > 0 ? 0 : out->ops->now(out));
	return how;
}

static inline __attribute__((always_inline)) enum vb_ud_sent send_to(struct vb_qp *qp, struct vb_swqe *w,
								     struct vb_dest *d)
{
	enum vb_ud_sent how;

	if (vb_unlikely(w->to.number == VB_DEST_GROUP))
		return vb_ud_send_to_group(qp, w, d);
	if (vb_unlikely(d->path.lossy) && !is_due(d))
		return VB_UD_BLOCKED;
	how = vb_unlikely(d->path.lossy) ? send_paced(qp, w, d) : send_packet(qp, w, d->path.out);
	if (vb_likely(how == VB_UD_SENT)) {
		w->state = VB_WQE_STARTED;
		vb_traffic_send(qp->traffic, w->length);
		qp->req.psn = vb_psn_add(qp->req.psn, 1);
		if (vb_unlikely(d->stuck))
			d->stuck = false;
	} else if (how == VB_UD_BLOCKED && d->stuck) {
		drop(qp, w, d, VB_R_DROP_FULL);
		how = w->state == VB_WQE_FAILED ? VB_UD_FAILED : VB_UD_SENT;
	}
	return how;
}

static __attribute__((cold, noinline)) void refuse_whole(struct vb_qp *qp, struct vb_swqe *w)
{
	if (w->state == VB_WQE_FAILED) /* its turn has not come yet */
		return;
	if (w->state != VB_WQE_REFUSED)
		vb_ud_refuse_length(qp, w, VB_PORT_MTU);
	else
		vb_requester_refused(qp, w);
}

/* The request at q->next is sent, or waits at its destination.  false: it cannot be carried out. */
static inline __attribute__((always_inline)) bool begin(struct vb_qp *qp, struct vb_swqe *w)
{
	struct vb_dest *d;

	if (vb_unlikely(w->length > VB_PORT_MTU || w->state != VB_WQE_POSTED)) {
		refuse_whole(qp, w);
		return false;
	}
	d = &qp->dests->at[w->to.number];
	if (vb_unlikely(!d->path.out || d->waits)) {
		d = vb_dest_at(qp, w->to.number); /* it may have been named never before */
		if (w->to.number != VB_DEST_GROUP || d->waits) {
			vb_dest_wait(d, qp->req.next);
			return true;
		}
	}
	switch (send_to(qp, w, d)) {
	case VB_UD_SENT:
		return true;
	case VB_UD_BLOCKED:
		vb_dest_wait(d, qp->req.next);
		return true;
	case VB_UD_FAILED:
		break;
	}
	return false;
}

/* Whether the request is behind one that has failed. */
static inline bool is_behind(const struct vb_dests *all, uint32_t index)
{
	return vb_unlikely(all->failed) && (int32_t)(index - all->failed_at) > 0;
}

/* What waits at d is sent, as far as there is room, or dropped if nobody is there.  What is behind a request
 * that has failed neither leaves nor waits any more: it is flushed when that one has failed in its turn. */
static __attribute__((noinline)) void go_on(struct vb_qp *qp, struct vb_dest *d)
{
	struct vb_dests *all = qp->dests;

	while (d->waits && (d->path.out || d->path.nobody)) {
		struct vb_swqe *w = vb_sq_at(&qp->req, d->first);

		if (is_behind(all, d->first)) {
			vb_dest_stop(d);
			return;
		}
		if (!d->path.out)
			drop(qp, w, d, VB_R_DROP_NOBODY);
		else if (send_to(qp, w, d) == VB_UD_BLOCKED)
			return;
		if (vb_unlikely(w->state == VB_WQE_FAILED)) {
			all->failed = true;
			all->failed_at = d->first;
			vb_dest_stop(d);
			return;
		}
		d->until = 0;
		if (d->first == d->last)
			vb_dest_stop(d);
		else
			d->first = w->next;
	}
}

/* Nothing waits any more, since what is posted is flushed. */
static void stop(struct vb_qp *qp)
{
	vb_dests_stop(qp->dests);
	qp->req.deadline = VB_NEVER;
}

/* Completes what has left, in order, up to what waits. */
static inline void complete(struct vb_qp *qp)
{
	struct vb_req *q = &qp->req;

	while (q->una != q->seen) {
		struct vb_swqe *w = vb_sq_at(q, q->una);

		if (vb_unlikely(w->state != VB_WQE_STARTED)) {
			if (w->state != VB_WQE_FAILED)
				break;
			stop(qp);
			vb_requester_turn(qp);
			return;
		}
		q->una++;
		vb_rc_complete_send(qp, w, IBV_WC_SUCCESS);
	}
	if (vb_unlikely(qp->state == IBV_QPS_SQD) && vb_list_empty(&qp->dests->waiting))
		vb_requester_turn(qp); /* drained, once all before is complete */
}

/* For the timer of those that wait. */
static inline bool keep_time(struct vb_qp *qp)
{
	bool waits = !vb_list_empty(&qp->dests->waiting);

	if (vb_unlikely((qp->req.deadline != VB_NEVER) != waits))
		qp->req.deadline = waits ? 0 : VB_NEVER;
	return waits;
}

static inline bool is_sending(const struct vb_qp *qp)
{
	return qp->state == IBV_QPS_RTS || qp->state == IBV_QPS_SQD;
}

static bool output(struct vb_path *p, uint32_t place)
{
	struct vb_qp *qp = p->qp;
	struct vb_req *q = &qp->req;
	bool waits;

	(void)place;
	vb_lock_assert_held(&qp->lock);
	vb_sq_notice(qp);
	if (vb_unlikely(!is_sending(qp))) {
		stop(qp);
		if (qp->state >= IBV_QPS_SQE) /* whoever posted it may rely on this */
			vb_rc_flush(qp);
		return false;
	}
	if (vb_unlikely(p != &qp->path))
		go_on(qp, vb_dest_of(p));
	while (q->next != q->seen && qp->state == IBV_QPS_RTS && vb_likely(!qp->dests->failed) &&
	       begin(qp, vb_sq_at(q, q->next)))
		q->next++;
	complete(qp);
	waits = keep_time(qp);
	return vb_likely(p == &qp->path) ? waits : (vb_dest_of(p))->waits;
}

/* What is waited for has not come in time. */
static void give_up(struct vb_qp *qp, struct vb_dest *d)
{
	if (d->path.out)
		d->stuck = true;
	else
		d->path.nobody = true;
	go_on(qp, d);
}

static uint64_t timer(struct vb_qp *qp, uint64_t now)
{
	uint64_t next = VB_NEVER;

	vb_lock_assert_held(&qp->lock);
	if (!is_sending(qp)) {
		stop(qp);
		return VB_NEVER;
	}
	vb_list_each_safe (n, tmp, &qp->dests->waiting) {
		struct vb_dest *d = vb_list_entry(n, struct vb_dest, waiting);
		uint64_t due = d->path.lossy ? due_at(d) : 0;

		if (due > now) {
			d->until = 0; /* it has room as far as is known */
			next = due < next ? due : next;
			continue;
		}
		if (!d->until)
			d->until = now + (d->path.out ? ROOM_WITHIN : CONTACT_WITHIN);
		else if (now >= d->until)
			give_up(qp, d);
		if (d->waits && d->until < next)
			next = d->until;
	}
	complete(qp);
	keep_time(qp);
	return next;
}

static void path(struct vb_path *p, struct vb_out *out)
{
	struct vb_dest *d;

	vb_lock_assert_held(&p->qp->lock);
	if (p == &p->qp->path) /* which leads nowhere */
		return;
	d = vb_dest_of(p);
	p->lossy = out && out->lossy;
	if (p->lossy && !p->out)
		vb_pace_begin(&d->pace, out->ops->now(out));
	p->out = out;
	d->until = 0;
	d->stuck = false;
}

/* Receiving. */

/* The GID by which this end was reached, which processes of this host do not tell. */
static inline struct vb_gid own_gid(const struct vb_dests *d, const struct vb_pkt *p, struct vb_gid sgid)
{
	return vb_likely(p->peer) ? vb_gid_like(d->gids, sgid) : vb_source_dgid(p->source, d->gids, sgid);
}

/* Returns what a completion says for a service level: on Ethernet the kind of the header. */
static inline __attribute__((always_inline)) uint8_t put_grh(uint8_t to[VB_GRH_LEN], const struct vb_dests *d,
							     const struct vb_pkt *p)
{
	struct vb_gid sgid = vb_gid_read(p->source->gids[VB_GRH_SGID(p->route.word)]);
	const struct vb_grh g = {.sgid = sgid,
				 .dgid = vb_likely(!p->mgid) ? own_gid(d, p, sgid) : vb_gid_of(p->mgid),
				 .route = p->route,
				 .length = p->op->hdr_len + p->payload_len + p->pad,
				 .infiniband = d->infiniband};

	vb_grh_put(to, &g);
	return d->infiniband ? vb_route_sl(p->route) : vb_grh_is_ipv4(&g) ? 2 : 1;
}

/* Takes what it tells of the packet, and not its address: where it is taken in, it stands in registers. */
static __attribute__((cold, noinline)) void cannot_take(struct vb_qp *qp, uint32_t qkey, uint32_t payload_len,
							bool own, enum vb_reason r)
{
	struct vb_facts f = {.reason = r, .qpn = qp->qpn};
	uint64_t said = qp->said;

	if (own) /* a member that only sends hears itself: nobody misses that, so it is only counted */
		qp->said |= 1ull << r;
	if (r == VB_R_DROP_QKEY)
		f.qkey = (struct vb_qkey_facts){.have = qp->qkey, .came = qkey};
	else if (r == VB_R_DROP_TOO_SMALL)
		f.length = (struct vb_length_facts){.bytes = (uint64_t)VB_GRH_LEN + payload_len,
						    .fit = qp->resp.room};
	else
		count(qp, VB_TRAFFIC_RNR_OUT, 1);
	vb_drop(qp, &f);
	if (own)
		qp->said = said;
}

/* GRH, if there is one, and payload go to the receive request in use.  *sl: put_grh()'s. */
static inline __attribute__((always_inline)) bool scatter(struct vb_qp *qp, const struct vb_pkt *p,
							  uint8_t *sl)
{
	struct vb_resp *s = &qp->resp;
	/* an SRQ's buffers belong to the SRQ's protection domain (rule 21) */
	uint64_t pd = qp->srq ? qp->srq->pd->id : qp->pd_id;
	bool global = p->route.word & VB_GRH_GLOBAL;
	uint8_t buf[TOGETHER];
	enum vb_reason r = VB_OK;
	struct vb_facts f;

	if (vb_likely(global))
		*sl = put_grh(buf, qp->dests, p);
	else
		*sl = vb_route_sl(p->route);
	if (vb_likely(global && s->cur->num_sge == 1 && p->payload_len <= TOGETHER - VB_GRH_LEN)) {
		vb_copy_few(buf + VB_GRH_LEN, p->payload, p->payload_len);
		if (vb_likely(vb_sg_scatter(qp, pd, s->cur->sge, buf, VB_GRH_LEN + p->payload_len)))
			return true;
	}
	if (global)
		r = vb_sg_copy(qp, pd, s->cur->sge, s->cur->num_sge, 0, buf, VB_GRH_LEN, VB_SG_SCATTER, &f);
	if (vb_likely(r == VB_OK))
		r = vb_sg_copy(qp, pd, s->cur->sge, s->cur->num_sge, VB_GRH_LEN,
			       (uint8_t *)(uintptr_t)p->payload, p->payload_len, VB_SG_SCATTER, &f);
	if (vb_likely(r == VB_OK))
		return true;
	f.check = r; /* its sentence is told */
	f.reason = VB_R_RECV_LOCAL;
	f.qpn = qp->qpn;
	vb_rc_fail_recv(qp, &f, true);
	return false;
}

/* One datagram.  Whatever is wrong with it, it is dropped, and the queue pair goes on (rule 23). */
static inline __attribute__((always_inline)) void take(struct vb_qp *qp, const struct vb_pkt *p)
{
	const uint32_t need = VB_GRH_LEN + p->payload_len;
	struct vb_resp *s = &qp->resp;
	struct ibv_wc *handed, *to;
	struct vb_cqe e;
	uint8_t sl;

	if (vb_unlikely(p->qkey != qp->qkey)) {
		cannot_take(qp, p->qkey, p->payload_len, false, VB_R_DROP_QKEY);
		return;
	}
	if (vb_unlikely(!vb_take_wqe(qp, need) || need > s->room)) {
		cannot_take(qp, p->qkey, p->payload_len, p->mgid && p->src_qpn == qp->qpn,
			    need > s->room ? VB_R_DROP_TOO_SMALL : VB_R_DROP_NO_RECV);
		return;
	}
	if (vb_unlikely(!scatter(qp, p, &sl)))
		return;
	handed = vb_cq_handed(qp->rcq);
	to = vb_likely(handed != NULL) ? handed : &e.wc;
	vb_take_put(to, qp, s->cur, IBV_WC_RECV, need);
	to->src_qp = p->src_qpn;
	to->sl = sl;
	to->slid = qp->dests->infiniband ? p->source->lid : 0;
	to->wc_flags = p->route.word & VB_GRH_GLOBAL ? IBV_WC_GRH : 0;
	if (vb_unlikely(p->op->bits & VB_OP_IMM)) {
		to->wc_flags |= IBV_WC_WITH_IMM;
		to->imm_data = p->imm;
	}
	vb_traffic_receive(qp->traffic, p->payload_len);
	vb_take_done(qp, handed ? NULL : &e, p->solicited);
}

static inline bool is_receiving(const struct vb_qp *qp)
{
	return qp->state >= IBV_QPS_RTR && qp->state <= IBV_QPS_SQE;
}

static bool brief(struct vb_qp *qp, struct vb_arrival *in)
{
	struct vb_brief *b = &in->b;
	uint32_t first = vb_pkt_get_word(b->bytes, 0);
	struct vb_pkt p;

	vb_lock_assert_held(&qp->lock);
	p.op = &vb_opcodes[VB_FAMILY_UD | VB_SEND_ONLY];
	p.peer = true; /* distrust() */
	p.pad = (uint8_t)VB_PKT_PAD(first);
	if (vb_unlikely(!is_receiving(qp) ||
			(first & VB_PKT_KIND) != VB_PKT_OF(VB_FAMILY_UD | VB_SEND_ONLY) ||
			b->flags & VB_BRIEF_KINDS || b->hdr_len != p.op->hdr_len || b->payload_len < p.pad))
		return false;
	p.solicited = first >> 23 & 1;
	p.qkey = vb_pkt_get_word(b->bytes, 3);
	p.src_qpn = vb_pkt_get_word(b->bytes, 4) & VB_QPN_MASK;
	p.payload_len = b->payload_len - p.pad;
	p.payload = b->bytes + b->hdr_len;
	p.source = in->source;
	p.route = b->route;
	p.mgid = NULL;
	p.imm = 0; /* it has none */
	take(qp, &p);
	return true;
}

/* Of a CNP: which of the destinations it tells of. */
static void slow_down(struct vb_qp *qp, const struct vb_pkt *p)
{
	count(qp, VB_TRAFFIC_CNPS_IN, 1);
	vb_list_each (n, &qp->dests->used) {
		struct vb_dest *d = vb_list_entry(n, struct vb_dest, used);

		if (!d->path.lossy || !vb_source_is(p->source, &d->path.source))
			continue;
		vb_pace_marked(&d->pace, d->path.out->ops->now(d->path.out));
		break;
	}
}

/* On its way to this end p met a long queue: its sender is sent a CNP.  Not the one of a group's: all members
 * would answer, and it has no rate. */
static void tell(struct vb_qp *qp, const struct vb_pkt *p)
{
	const struct vb_back_ops *back = qp->dests->back;
	const struct vb_pkt cnp = {
	    .opcode = VB_FAMILY_CNP | VB_NOTIFY, .pkey = VB_PKEY_DEFAULT, .qpn = p->src_qpn};
	struct vb_brief b = {.hdr_len = vb_opcodes[cnp.opcode].hdr_len};
	uint64_t *told = &qp->congestion.told_at, now;

	count(qp, VB_TRAFFIC_MARKED_IN, 1);
	if (!back || p->mgid)
		return;
	now = back->now(qp);
	if (*told && now - *told < TELL_EVERY)
		return;
	vb_pkt_encode(b.bytes, &cnp);
	if (!back->send(qp, p, &b))
		return;
	*told = now;
	count(qp, VB_TRAFFIC_CNPS_OUT, 1);
}

static void input(struct vb_qp *qp, const struct vb_pkt *p)
{
	vb_lock_assert_held(&qp->lock);
	if (vb_unlikely(p->opcode == (VB_FAMILY_CNP | VB_NOTIFY))) {
		slow_down(qp, p);
		return;
	}
	if (vb_unlikely(p->marked) && is_receiving(qp))
		tell(qp, p);
	/* Nothing is lent to this type, so whoever sends such a packet is no queue pair of ours. */
	if (vb_unlikely(VB_FAMILY(p->opcode) != VB_FAMILY_UD || !is_receiving(qp) || p->loan))
		vb_not_heard(qp, p, false);
	else if (vb_unlikely(p->payload_len > VB_PORT_MTU)) /* no port sends that */
		cannot_take(qp, p->qkey, p->payload_len, false, VB_R_DROP_TOO_SMALL);
	else
		take(qp, p);
}

/* The functions below concern acknowledgements, or the one peer of a connection. */

static void no_psn(struct vb_qp *qp, uint32_t psn)
{
	(void)qp, (void)psn;
}

static void no_word(struct vb_qp *qp)
{
	(void)qp;
}

static enum vb_owes owes(const struct vb_qp *qp)
{
	(void)qp;
	return VB_OWES_NOTHING;
}

static void enter(struct vb_qp *qp, enum ibv_qp_state from)
{
	vb_lock_assert_held(&qp->lock);
	if (qp->state == IBV_QPS_SQD && from != IBV_QPS_SQD) {
		qp->req.drained_posted = false;
		complete(qp);
	}
}

static void error(struct vb_qp *qp, const struct vb_facts *f)
{
	if (f->reason == VB_R_PEER_DIED || f->reason == VB_R_PEER_CLOSED)
		return;
	vb_rc_error(qp, f);
	stop(qp);
}

const struct vb_transport vb_ud_transport = {
    .brief = brief,
    .input = input,
    .ack = no_psn,
    .received = no_psn,
    .output = output,
    .owes = owes,
    .timer = timer,
    .path = path,
    .last_word = no_word,
    .enter = enter,
    .error = error,
    .flush = vb_rc_flush,
    .multicast = true,
};
