#include "hca/capture.h"

#include <stdlib.h>
#include <string.h>

#include "base/log.h"
#include "hca/capture_file.h"
#include "hca/far.h"
#include "hca/hca.h"
#include "hca/port.h"
#include "iba/frame.h"
#include "iba/grh.h"
#include "iba/loan.h"
#include "iba/psns.h"
#include "iba/wr.h"
#include "obj/dests.h"
#include "transport/transport.h"

/* The comments of captured packets that were never sent as such. */
static const char direct[] = "placed directly: the sender copied the data, and no packet was sent",
		  with_imm[] = "the data was placed directly, and a packet carried only the immediate data",
		  lent[] = "read directly: the receiver copied these bytes from the sender's memory",
		  carried[] = "no packet of its own: the next packet carried it",
		  seen[] = "no packet: the sender read in the receiver's memory what has arrived",
		  again[] =
		      "between processes it requests retransmission from this PSN on, and costs no retry";

enum { AT_ONCE = 1024 }; /* packets that one of a wire's, or 256 KiB that are placed, comes to at most */

enum side { MINE, THEIRS }; /* whose requests a stream is of: this end's, or the far end's */

/* A way out in front of another. */
struct way {
	struct vb_out out; /* first */
	struct vb_out *below;
	struct vb_qp *qp;
	const struct vb_far *far;
	bool own;     /* the far end is of this process, and keeps the rest */
	bool grouped; /* a datagram to a group was kept, with this PSN: */
	uint32_t group_psn;
	uint32_t placing;	       /* the first PSN of the request that is being placed */
	uint32_t hdr_len, payload_len; /* of the packet that room is reserved for */
	struct vb_psns psns[];	       /* by enum side; of a connected path */
};

/* The location of a payload's bytes. */
struct bytes {
	const struct vb_swqe *list; /* a request's list, from `off` on; NULL: where the packet says */
	uint64_t off;
	bool none; /* they are not to be had */
};

static uint32_t path_mtu(const struct vb_qp *qp)
{
	return qp->path_mtu ? 128u << qp->path_mtu : VB_FRAME_PAYLOAD;
}

static uint32_t packets(uint32_t bytes, uint32_t mtu)
{
	return bytes ? (bytes - 1) / mtu + 1 : 1;
}

/* The first GID of a port's table that is of that family. */
static struct vb_gid gid_like(const uint8_t (*gids)[16], struct vb_gid like)
{
	for (unsigned i = 0; i < VB_GID_TABLE; i++) {
		struct vb_gid g = vb_gid_read(gids[i]);

		if (vb_gid_is_ipv4(g) == vb_gid_is_ipv4(like) && (g.high | g.low))
			return g;
	}
	return vb_gid_read(gids[0]);
}

/* Both ends of a connection, as the queue pair's address vector has them. */
static struct vb_frame_ends ends_of(const struct way *w, bool out)
{
	const struct ibv_ah_attr *av = &w->qp->attr.ah_attr;
	const struct vb_gids *own = vb_port_gids(vb_qp_hca(w->qp));
	/* a capture shows a GRH in any case */
	struct vb_frame_ends e = {.route = vb_route(VB_GRH_WORD(0, av->grh.traffic_class, av->grh.flow_label),
						    av->is_global ? av->grh.hop_limit : VB_GRH_HOPS, av->sl)};
	struct vb_gid here, there;

	here = vb_gid_of(own->gid[av->is_global ? av->grh.sgid_index % VB_GID_TABLE : 0]);
	there = av->is_global ? vb_gid_of(av->grh.dgid.raw) : gid_like(w->far->kind->gids(w->far), here);
	e.sgid = out ? here : there;
	e.dgid = out ? there : here;
	e.src_qpn = out ? w->qp->qpn : w->qp->dest_qpn;
	return e;
}

/* One frame, `have` bytes of whose payload are there. */
static void keep(const struct vb_frame_ends *e, const struct vb_pkt *p, uint32_t have, const char *comment)
{
	uint8_t frame[VB_FRAME_MAX];
	size_t len, kept = vb_frame_cut(frame, e, p, vb_capture_snap(), &len), head;

	head = len - VB_ICRC_LEN - p->payload_len - (-p->payload_len & 3);
	if (have < p->payload_len && kept > head + have)
		kept = head + have;
	vb_capture_keep(frame, kept, len, comment);
}

/* The packets [from, to) of those that p, whose PSN is made, comes to. */
static void keep_parts(const struct way *w, bool out, const struct vb_pkt *p, uint32_t from, uint32_t to,
		       const struct bytes *b, const char *comment)
{
	const struct vb_frame_ends e = ends_of(w, out);
	uint32_t mtu = path_mtu(w->qp);
	uint8_t room[VB_FRAME_PAYLOAD];

	for (uint32_t i = from; i < to; i++) {
		struct vb_pkt part;
		uint32_t have;

		vb_frame_part(&part, p, mtu, i);
		have = b->none ? 0 : part.payload_len;
		if (have > vb_capture_snap())
			have = (uint32_t)vb_capture_snap();
		if (b->list) {
			part.payload = room;
			if (!vb_request_bytes(w->qp, b->list, b->off + (uint64_t)i * mtu, room, have))
				have = 0;
		}
		if (!have)
			part.payload = NULL;
		keep(&e, &part, have, comment);
	}
}

static void keep_all(const struct way *w, bool out, const struct vb_pkt *p, const struct bytes *b,
		     const char *comment)
{
	uint32_t n = vb_frame_parts(p, path_mtu(w->qp));

	/* Of a message of two gigabytes that was placed directly, only the headers are known. */
	if (n > AT_ONCE) {
		keep_parts(w, out, p, 0, AT_ONCE - 1, b, comment);
		keep_parts(w, out, p, n - 1, n, b, comment);
	} else {
		keep_parts(w, out, p, 0, n, b, comment);
	}
}

/* A request, of this end or the far end. */
static void keep_request(struct way *w, bool out, const struct vb_pkt *p)
{
	uint32_t wire = w->below->mtu, mtu = path_mtu(w->qp), n = 1;
	const struct vb_req *r = &w->qp->req;
	struct bytes b = {.none = !out && (p->loan || p->placed)};
	struct vb_pkt q = *p;

	if (p->placed)
		q.payload_len = p->dma_len;
	else if (p->loan)
		n = packets(p->payload_len, wire);
	else if (p->op->bits & VB_OP_READ)
		n = packets(p->dma_len, wire);
	if (out && (p->loan || p->placed)) {
		b.list = vb_sq_at(r, r->next);
		b.off = (uint64_t)((p->psn - b.list->psn) & VB_PSN_MASK) * wire;
	}
	q.psn = vb_psns_take(&w->psns[out ? MINE : THEIRS], p->psn, n, vb_frame_psns(&q, mtu),
			     wire > mtu ? wire / mtu : 1, p->op->bits & (VB_OP_LAST | VB_OP_HELD));
	if (out && p->placed) /* those before it were kept as they were placed */
		keep_parts(w, out, &q, vb_frame_parts(&q, mtu) - 1, vb_frame_parts(&q, mtu), &b, with_imm);
	else
		keep_all(w, out, &q, &b, p->placed ? with_imm : p->loan ? lent : NULL);
}

/* An answer, to this end or the far end. */
static void keep_answer(const struct way *w, bool out, const struct vb_pkt *p, const char *comment)
{
	struct vb_psn_made m = vb_psns_find(&w->psns[out ? THEIRS : MINE], p->psn);
	uint32_t kind = VB_AETH_KIND(p->syndrome);
	const struct bytes b = {0};
	struct vb_pkt q = *p;

	q.psn = !kind && VB_OPERATION(p->opcode) == VB_ACK ? m.last : m.first;
	q.msn = kind ? m.before : p->op->bits & VB_OP_READ ? m.whole : m.msn;
	if (p->syndrome == VB_AETH_NAK_AGAIN || p->syndrome == VB_AETH_NAK_LOAN) {
		q.syndrome = VB_AETH_NAK_PSN; /* which a network would have */
		comment = again;
	}
	if (kind == VB_AETH_RNR && p->syndrome & VB_AETH_USED_UP) {
		q.syndrome &= ~VB_AETH_USED_UP;
		comment = again;
	}
	if (!(p->op->bits & VB_OP_PAYLOAD))
		q.payload_len = 0;
	keep_all(w, out, &q, &b, comment);
}

static void keep_packet(struct way *w, bool out, const struct vb_pkt *p)
{
	bool answers = p->op->bits & VB_OP_RESPONSE;

	if (w->own && answers == out) /* a stream of the far end, which keeps it */
		return;
	if (answers)
		keep_answer(w, out, p, NULL);
	else
		keep_request(w, out, p);
}

/* An ACK that was not sent as a packet. */
static void keep_ack(const struct way *w, bool out, uint32_t psn, const char *comment)
{
	uint8_t opcode = (uint8_t)(w->qp->family | VB_ACK);
	const struct vb_pkt p = {.op = &vb_opcodes[opcode],
				 .opcode = opcode,
				 .pkey = VB_PKEY_DEFAULT,
				 .qpn = out ? w->qp->dest_qpn : w->qp->qpn,
				 .psn = psn & VB_PSN_MASK,
				 .syndrome = VB_AETH_ACK};

	if (!w->own || !out)
		keep_answer(w, out, &p, comment);
}

static void keep_datagram(const struct vb_frame_ends *e, struct vb_pkt *p)
{
	uint32_t have = p->payload_len;

	if (have <= VB_FRAME_PAYLOAD) /* no port sends more */
		keep(e, p, have, NULL);
}

/* A capture shows a GRH in any case. */
static struct vb_route shown_route(const struct vb_pkt *p)
{
	struct vb_route r = p->route;

	if (!(r.word & VB_GRH_GLOBAL))
		r.hops = VB_GRH_HOPS;
	return r;
}

static void datagram_out(struct way *w, struct vb_pkt *p)
{
	struct vb_adapter *a = vb_qp_adapter(w->qp);
	struct vb_frame_ends e = {.route = shown_route(p), .src_qpn = p->src_qpn};

	if (p->mgid && w->grouped && w->group_psn == p->psn)
		return;
	w->grouped = p->mgid;
	w->group_psn = p->psn;
	e.sgid = vb_gid_read(vb_adapter_gids(a)[VB_GRH_SGID(p->route.word)]);
	e.dgid = p->mgid ? vb_gid_of(p->mgid) : gid_like(w->far->kind->gids(w->far), e.sgid);
	keep_datagram(&e, p);
}

void vb_capture_datagram(struct vb_adapter *a, const struct vb_pkt *p)
{
	struct vb_frame_ends e = {.route = shown_route(p), .src_qpn = p->src_qpn};
	struct vb_pkt q = *p;

	e.sgid = vb_gid_read(p->source->gids[VB_GRH_SGID(p->route.word)]);
	e.dgid = p->mgid ? vb_gid_of(p->mgid) : gid_like(vb_adapter_gids(a), e.sgid);
	keep_datagram(&e, &q);
}

void vb_capture_packet(const struct vb_roce_packet *p)
{
	uint8_t frame[VB_FRAME_MAX];
	size_t len, kept;

	if (!vb_capture_is_on())
		return;
	kept = vb_frame_packet(frame, p, vb_capture_snap(), &len);
	vb_capture_keep(frame, kept, len, NULL);
}

/* ---- the way out ---- */

static struct way *way(struct vb_out *o)
{
	return (struct way *)o;
}

/* A packet that leaves: its location, and what goes with it. */
struct leaving {
	const uint8_t *hdr, *payload;
	uint32_t hdr_len, payload_len;
	struct vb_route route; /* of a datagram; the word of others is vb_outbuf.ack */
	bool placed, lent;
};

static void keep_leaving(struct way *w, const struct leaving *l)
{
	struct vb_loan loan;
	struct vb_pkt p;

	vb_lock_assert_held(&w->qp->lock);
	if (vb_pkt_decode(&p, l->hdr, l->hdr_len, l->payload_len, true))
		return;
	p.payload = l->payload;
	p.placed = l->placed;
	if (l->lent && vb_loan_decode(&loan, &p))
		return;
	if (VB_FAMILY(p.opcode) == VB_FAMILY_UD) {
		p.route = l->route;
		datagram_out(w, &p);
		return;
	}
	if (l->route.word & VB_OUT_ACK)
		keep_ack(w, true, l->route.word, carried);
	keep_packet(w, true, &p);
}

static bool reserve(struct vb_out *o, struct vb_outbuf *b, uint32_t hdr_len, uint32_t payload_len,
		    enum vb_out_class cls)
{
	way(o)->hdr_len = hdr_len;
	way(o)->payload_len = payload_len;
	return way(o)->below->ops->reserve(way(o)->below, b, hdr_len, payload_len, cls);
}

static void commit(struct vb_out *o, struct vb_outbuf *b)
{
	struct way *w = way(o);

	keep_leaving(w, &(struct leaving){.hdr = b->hdr,
					  .payload = b->payload,
					  .hdr_len = w->hdr_len,
					  .payload_len = w->payload_len,
					  .route = vb_route(b->ack, b->hops, b->sl),
					  .placed = b->placed,
					  .lent = b->lent});
	w->below->ops->commit(w->below, b);
}

static void cancel(struct vb_out *o, struct vb_outbuf *b)
{
	way(o)->below->ops->cancel(way(o)->below, b);
}

static uint64_t send(struct vb_out *o, const struct vb_brief *p, enum vb_out_class cls)
{
	struct way *w = way(o);
	uint64_t mark = w->below->ops->send(w->below, p, cls);

	if (mark)
		keep_leaving(w, &(struct leaving){.hdr = p->bytes,
						  .payload = p->bytes + p->hdr_len,
						  .hdr_len = p->hdr_len,
						  .payload_len = p->payload_len,
						  .route = p->route,
						  .placed = p->flags & VB_BRIEF_PLACED});
	return mark;
}

static uint64_t mark(struct vb_out *o)
{
	return way(o)->below->ops->mark(way(o)->below);
}

static bool taken(struct vb_out *o, uint64_t m)
{
	return way(o)->below->ops->taken(way(o)->below, m);
}

static bool room(struct vb_out *o)
{
	return way(o)->below->ops->room(way(o)->below);
}

static uint64_t now(struct vb_out *o)
{
	return way(o)->below->ops->now(way(o)->below);
}

static void push(struct vb_out *o)
{
	vb_out_push(way(o)->below);
}

static void end(struct vb_out *o)
{
	vb_out_end(way(o)->below);
	free(way(o));
}

static const struct vb_out_ops ops = {.reserve = reserve,
				      .commit = commit,
				      .cancel = cancel,
				      .send = send,
				      .send_list = vb_out_send_singly,
				      .mark = mark,
				      .taken = taken,
				      .room = room,
				      .push = push,
				      .end = end,
				      .now = now};

/* A request that is placed directly, as the packets that it replaces. */

static struct vb_pkt as_packet(const struct vb_qp *qp, const struct vb_swqe *w, uint8_t operation,
			       uint32_t psn)
{
	uint8_t opcode = (uint8_t)(qp->family | operation);
	struct vb_pkt p = {.op = &vb_opcodes[opcode],
			   .opcode = opcode,
			   .pkey = VB_PKEY_DEFAULT,
			   .ack_req = qp->acked,
			   .qpn = qp->dest_qpn,
			   .psn = psn,
			   .rkey = w->remote.rkey,
			   .va = w->remote.addr,
			   .dma_len = w->length,
			   .srqn = w->remote.srqn,
			   .compare = w->remote.compare_add};

	p.swap_add = vb_wr_is(w->opcode, VB_WR_COMPARE) ? w->remote.swap : w->remote.compare_add;
	return p;
}

/* The answer that the peer would send. */
static struct vb_pkt as_answer(const struct way *w, uint8_t operation, uint32_t psn)
{
	uint8_t opcode = (uint8_t)(w->qp->family | operation);

	return (struct vb_pkt){.op = &vb_opcodes[opcode],
			       .opcode = opcode,
			       .pkey = VB_PKEY_DEFAULT,
			       .qpn = w->qp->qpn,
			       .psn = psn,
			       .syndrome = VB_AETH_ACK,
			       .msn = vb_psn_add(w->psns[MINE].msn, 1)};
}

/* Bytes of a WRITE or READ are in place, w->placed of which were before. */
static void keep_placed(struct way *w, const struct vb_swqe *r, uint32_t n)
{
	uint32_t mtu = path_mtu(w->qp), all = packets(r->length, mtu), end = r->placed + n;
	uint32_t from = r->placed / mtu, to = end == r->length ? all : end / mtu;
	bool imm = vb_wr_is(r->opcode, VB_WR_IMM); /* the last packet is still to come */
	const struct bytes b = {.list = r};
	struct vb_pkt p, a;

	if (imm && to == all)
		to--;
	p = as_packet(w->qp, r, vb_wrs[r->opcode].packets.only, w->placing);
	if (vb_wr_is(r->opcode, VB_WR_FETCH)) {
		a = as_answer(w, VB_READ_RESP_ONLY, w->placing);
		a.payload_len = r->length;
		if (!r->placed)
			keep_all(w, true, &p, &(struct bytes){0}, direct);
		keep_parts(w, false, &a, from, to, &b, direct);
		return;
	}
	p.payload_len = r->length;
	p.solicited = r->flags & IBV_SEND_SOLICITED;
	keep_parts(w, true, &p, from, to, &b, direct);
	if (end == r->length && w->qp->acked && !imm) {
		a = as_answer(w, VB_ACK, vb_psn_add(w->placing, all - 1));
		keep_all(w, false, &a, &(struct bytes){0}, direct);
	}
}

static void keep_atomic(struct way *w, const struct vb_swqe *r, uint64_t orig)
{
	struct vb_pkt p = as_packet(w->qp, r, vb_wrs[r->opcode].packets.only, w->placing);
	struct vb_pkt a = as_answer(w, VB_ATOMIC_ACK, w->placing);

	a.orig = orig;
	keep_all(w, true, &p, &(struct bytes){0}, direct);
	keep_all(w, false, &a, &(struct bytes){0}, direct);
}

static void past(struct vb_out *o, const struct vb_swqe *r, uint32_t n, uint64_t orig)
{
	struct way *w = way(o);
	bool atomic = vb_wr_is(r->opcode, VB_WR_ATOMIC);

	vb_lock_assert_held(&w->qp->lock);
	/* A request that goes on through the ring after all has the same PSNs there: they are taken at the
	 * end, and those of a WRITE with immediate with its packet. */
	if (!r->placed)
		w->placing = vb_psns_take(&w->psns[MINE], w->qp->req.psn, 0, 0, 0, false);
	if (atomic)
		keep_atomic(w, r, orig);
	else
		keep_placed(w, r, n);
	if (atomic || (r->placed + n == r->length && !vb_wr_is(r->opcode, VB_WR_IMM)))
		vb_psns_take(&w->psns[MINE], w->qp->req.psn, 0, packets(r->length, path_mtu(w->qp)), 0, true);
}

/* ---- for those that have paths, and take packets in ---- */

enum vb_kept vb_capture_from(const struct vb_far *far)
{
	if (!vb_capture_is_on() || !far || far->kind->keeps)
		return VB_KEPT_NOT;
	return far->kind->own(far) ? VB_KEPT_OWN : VB_KEPT;
}

struct vb_out *vb_capture_way(struct vb_qp *qp, const struct vb_far *far, struct vb_out *out, bool connected)
{
	struct way *w;

	vb_lock_assert_held(&qp->lock);
	if (!vb_capture_is_on() || far->kind->keeps)
		return out;
	w = calloc(1, sizeof(*w) + (connected ? 2 * sizeof(w->psns[0]) : 0)); /* end() */
	if (!w) {
		vb_log(VB_LOG_WARN, "the packets of QP 0x%06x are not captured: no memory", qp->qpn);
		return out;
	}
	w->out = *out;
	w->out.ops = &ops;
	w->out.past = connected ? past : NULL;
	w->below = out;
	w->qp = qp;
	w->far = far;
	w->own = vb_capture_from(far) == VB_KEPT_OWN;
	return &w->out;
}

struct vb_out *vb_capture_group(struct vb_qp *qp, const struct vb_far *far, struct vb_out *out)
{
	struct vb_dests *d = qp->dests;

	if (!vb_capture_is_on())
		return out;
	if (!d->kept)
		d->kept = vb_capture_way(qp, far, out, false);
	if (d->kept->ops != &ops) { /* there was no memory */
		d->kept = NULL;
		return out;
	}
	way(d->kept)->below = out;
	return d->kept;
}

/* The far end's way, of a connected queue pair; NULL: nothing is kept of it. */
static struct way *way_of(const struct vb_qp *qp)
{
	struct vb_out *out = qp->path.out;

	return out && out->ops == &ops ? way(out) : NULL;
}

void vb_capture_in(struct vb_qp *qp, const struct vb_pkt *p, uint32_t ack)
{
	struct way *w = way_of(qp);

	vb_lock_assert_held(&qp->lock);
	/* Packets from a deputy are no packets of a network. */
	if (!w || !vb_source_is(p->source, &qp->path.source))
		return;
	if (ack & VB_OUT_ACK)
		keep_ack(w, false, ack, carried);
	keep_packet(w, false, p);
}

/* How far what was received before this PSN is an ACK: a READ or atomic has an answer of its own. */
static uint32_t acked_before(const struct vb_req *q, uint32_t psn)
{
	for (uint32_t i = q->una; i != q->seen; i++) {
		const struct vb_swqe *r = vb_sq_at(q, i);

		if (r->state != VB_WQE_STARTED || vb_psn_diff(psn, r->psn) <= 0)
			return psn;
		if (vb_wr_is(r->opcode, VB_WR_FETCH))
			return r->psn;
	}
	return psn;
}

void vb_capture_shown(struct vb_qp *qp, uint32_t psn)
{
	const struct vb_req *q = &qp->req;
	struct way *w = way_of(qp);

	vb_lock_assert_held(&qp->lock);
	if (vb_likely(!w) || vb_psn_diff(psn, q->psn_max) > 0)
		return;
	psn = acked_before(q, psn);
	if (vb_psn_diff(psn, q->psn_una) <= 0)
		return;
	keep_ack(w, false, vb_psn_add(psn, VB_PSN_MASK), seen);
}
