/* Lending, on wires with direct placement.
 *
 * A large SEND does not carry its bytes.  Each of its packets says where up to VB_LOAN_MOST of them stand in
 * the sender's process (iba/loan.h), and the receiver collects them from there by one copy, announced like an
 * initiator's READ.  Such a packet takes as many PSNs as the packets would that it stands for, and order,
 * RNR, ACKs and repetitions are theirs; the request completes with the ACK, so its memory is not used again
 * before.
 *
 * Whatever goes wrong with collecting is not an error yet.  The responder asks for the bytes themselves from
 * that PSN on (VB_AETH_NAK_LOAN), and what the ring finds out is what both ends complete with.  What could
 * not be collected once mostly cannot a second time either, be it for the kernel's refusal or for a receive
 * list that is no plain memory: the rest of the connection lends nothing.
 *
 * When the sender's QP fails, its program is told so, and may change the memory while it is being read.  So
 * leave is taken back before the program hears of it, and whoever collects looks at the leave again after the
 * copy, before the message counts.
 *
 * From where on: a system call and the pages that it has to find cost about 0.9 us, two copies through the
 * ring about 0.7 us for each 16 KiB, half of it on a CPU of the sender's.  A message of one packet gains
 * nothing; from two packets on it is level, and from there the ring's second copy is what counts. */
#include "base/fault.h"
#include "iba/loan.h"
#include "iba/shown.h"
#include "mem/peer_mem.h"
#include "transport/lend.h"

_Static_assert(VB_LOAN_MOST <= VB_MEM_CHUNK, "one announcement covers a packet");
_Static_assert(VB_MAX_INLINE < VB_LEND_FROM, "what is lent stands in the program's memory");

/* ---- the requester ---- */

/* Pieces shorter than this cost more to find in the other process than to copy. */
enum { PIECE_MIN = 2 << 10 };

static uint32_t leave_of(const struct vb_qp *qp)
{
	return qp->shown ? atomic_load_explicit(&qp->shown->may, memory_order_relaxed) >> VB_SHOWN_LEAVE : 0;
}

bool vb_lend_may(struct vb_qp *qp, const struct vb_swqe *w)
{
	vb_lock_assert_held(&qp->lock);
	if (!vb_wr_is(w->opcode, VB_WR_LENT) || qp->req.sends_all || !qp->path.mem || !leave_of(qp) ||
	    w->length / w->num_sge < PIECE_MIN)
		return false;
	for (uint32_t i = 0; i < w->num_sge; i++) {
		const struct ibv_sge *s = &w->sge[i];
		const struct vb_mem_want want = {
		    .key = s->lkey, .pd = qp->pd_id, .addr = s->addr, .len = s->length};

		/* a key of this process's table, of memory */
		if (s->length && (!vb_key_is_plain(qp->keys, &want) || !vb_mem_find(qp->keys, &want)))
			return false;
	}
	return true;
}

static uint32_t bytes_at(const struct vb_qp *qp, const struct vb_swqe *w, uint32_t k)
{
	uint32_t left = w->length - k * qp->path.out->mtu;

	return left < VB_LOAN_MOST ? left : VB_LOAN_MOST;
}

uint32_t vb_lend_span(const struct vb_qp *qp, const struct vb_swqe *w, uint32_t k)
{
	return psn_count(bytes_at(qp, w, k), qp->path.out->mtu);
}

bool vb_lend_send(struct vb_qp *qp, struct vb_swqe *w, uint32_t k)
{
	const struct vb_wr_packets *set = &vb_wrs[w->opcode].packets;
	uint32_t off = k * qp->path.out->mtu, len = bytes_at(qp, w, k);
	bool first = !k, last = off + len == w->length;
	struct vb_pkt p = {
	    .opcode =
		qp->family | (first ? (last ? set->only : set->first) : (last ? set->last : set->middle)),
	    .pkey = VB_PKEY_DEFAULT,
	    .ack_req = true, /* a chunk as long as those that ask for one when they are sent */
	    .solicited = last && (w->flags & IBV_SEND_SOLICITED),
	    .qpn = qp->dest_qpn,
	    .psn = vb_psn_add(w->psn, k),
	    .imm = w->imm, /* one with the key to invalidate */
	    .inv_rkey = w->inv_rkey,
	    .srqn = w->remote.srqn,
	};
	struct vb_outbuf b;
	struct vb_loan l;

	vb_lock_assert_held(&qp->lock);
	vb_loan_cut(&l, w->sge, w->num_sge, off, len);
	l.leave = leave_of(qp);
	for (uint32_t i = 0; i < l.num; i++)
		l.piece[i].lkey ^= qp->keys->local_bit;
	if (!qp->path.out->ops->reserve(qp->path.out, &b, vb_opcodes[p.opcode].hdr_len, vb_loan_size(&l),
					VB_OUT_REQUEST))
		return false;
	vb_loan_encode(b.payload, &l);
	vb_pkt_encode(b.hdr, &p);
	b.lent = true;
	b.path_mtu = qp->path_mtu;
	carry_ack(qp, &b);
	qp->path.out->ops->commit(qp->path.out, &b);
	return true;
}

bool vb_lend_refused(struct vb_qp *qp)
{
	struct vb_req *q = &qp->req;
	bool lent = q->una != q->seen && vb_sq_at(q, q->una)->place == VB_PLACE_LENT;

	vb_lock_assert_held(&qp->lock);
	q->sends_all = true;
	for (uint32_t i = q->una; i != q->seen && vb_sq_at(q, i)->state == VB_WQE_STARTED; i++)
		if (vb_sq_at(q, i)->place == VB_PLACE_LENT)
			vb_sq_at(q, i)->place = VB_PLACE_RING;
	return lent;
}

/* ---- the responder ---- */

/* What one system call moves: pieces of the receive list, and pieces of the loan.  The last up to 8 aligned
 * bytes of the range here come to `end` first, so that they become visible last, as one store. */
struct move {
	struct iovec here[VB_MAX_SGE + 1], there[VB_MAX_SGE];
	unsigned nhere, nthere;
	uint8_t *end_at;
	uint32_t end_len;
	uint8_t end[8];
};

static uint64_t receives_in(const struct vb_qp *qp)
{
	return qp->srq ? qp->srq->pd->id : qp->pd_id; /* rule 21 */
}

/* The bytes [off, off + n) of the receive list, under an announcement of all keys. */
static bool add_here(struct vb_qp *qp, struct move *m, uint64_t off, uint32_t n)
{
	const struct vb_rwqe *r = qp->resp.cur;
	struct iovec *last;

	for (uint32_t i = 0; i < r->num_sge && n; i++) {
		const struct ibv_sge *s = &r->sge[i];
		uint32_t k;
		uint8_t *at;

		if (off >= s->length) {
			off -= s->length;
			continue;
		}
		k = s->length - (uint32_t)off < n ? s->length - (uint32_t)off : n;
		at = vb_mem_find(qp->keys, &(struct vb_mem_want){.key = s->lkey,
								 .access = IBV_ACCESS_LOCAL_WRITE,
								 .pd = receives_in(qp),
								 .addr = s->addr + off,
								 .len = k});
		if (!at)
			return false;
		m->here[m->nhere++] = (struct iovec){at, k};
		off = 0;
		n -= k;
	}
	last = &m->here[m->nhere - 1];
	m->end_at = (uint8_t *)last->iov_base + last->iov_len;
	m->end_len = (uint32_t)(((uintptr_t)m->end_at - 1) & 7) + 1;
	if (m->end_len > last->iov_len)
		m->end_len = (uint32_t)last->iov_len;
	m->end_at -= m->end_len;
	last->iov_len -= m->end_len;
	m->here[m->nhere++] = (struct iovec){m->end, m->end_len};
	return true;
}

static struct vb_peer_mem_loan wanted(const struct vb_qp *qp, const struct vb_loan *l, uint32_t i)
{
	return (struct vb_peer_mem_loan){.qp = qp->path.peer_qp,
					 .peer_qpn = qp->dest_qpn,
					 .qpn = qp->qpn,
					 .path_mtu = qp->path_mtu,
					 .leave = l->leave,
					 .lkey = l->piece[i].lkey,
					 .addr = l->piece[i].addr,
					 .len = l->piece[i].length};
}

/* Piece i, which is at `at` in the peer's process, and those behind it with the same key, to `off` of the
 * receive list.  Returns how many those are, 0: they cannot be reached. */
static uint32_t call(struct vb_qp *qp, const struct vb_loan *l, uint32_t i, uint64_t at, uint64_t off)
{
	struct vb_mem_use local;
	struct move m = {.nhere = 0};
	uint32_t n = 0, bytes = 0, k = i;
	bool ok = false;

	do {
		m.there[m.nthere++] = (struct iovec){(void *)(uintptr_t)at, l->piece[k].length};
		bytes += l->piece[k++].length;
		if (k < l->num && l->piece[k].lkey == l->piece[i].lkey) {
			struct vb_peer_mem_loan next = wanted(qp, l, k);

			if (!vb_peer_mem_lent(qp->path.mem, &next, &at))
				return 0;
		}
	} while (k < l->num && l->piece[k].lkey == l->piece[i].lkey);
	n = k - i;
	if (!vb_mem_begin_any(qp->keys, &local))
		return 0;
	ok = add_here(qp, &m, off, bytes) &&
	     vb_peer_mem_move(qp->path.mem, false, m.here, m.nhere, m.there, m.nthere) == bytes &&
	     vb_copy_to_app(m.end_at, m.end, m.end_len);
	vb_mem_end(&local);
	return ok ? n : 0;
}

/* As call(), by one announcement. */
static uint32_t collect(struct vb_qp *qp, const struct vb_loan *l, uint32_t i, uint64_t off)
{
	const struct vb_rwqe *r = qp->resp.cur;
	struct vb_peer_mem_loan want = wanted(qp, l, i);
	struct vb_peer_mem_use u;
	struct vb_facts f;
	uint32_t n = 0;

	switch (vb_peer_mem_borrow(qp->path.mem, qp->keys, &u, &want)) {
	case VB_MEANS_MAPPED:
		n = vb_sg_copy(qp, receives_in(qp), r->sge, r->num_sge, off, u.ptr, l->piece[i].length,
			       VB_SG_FETCH, &f) == VB_OK;
		break;
	case VB_MEANS_VM:
		n = call(qp, l, i, u.at, off);
		break;
	case VB_MEANS_QP:
	case VB_MEANS_NONE:
		return 0;
	}
	VB_FAULT_POINT("collected, still announced");
	if (!vb_peer_mem_stands(qp->path.mem, &want))
		n = 0;
	vb_peer_mem_end(&u);
	return n;
}

bool vb_lend_collect(struct vb_qp *qp, const struct vb_pkt *p)
{
	uint64_t off = qp->resp.got;
	uint32_t n;

	vb_lock_assert_held(&qp->lock);
	if (!qp->path.mem)
		return false;
	for (uint32_t i = 0; i < p->loan->num; i += n) {
		n = collect(qp, p->loan, i, off);
		if (!n)
			return false;
		for (uint32_t k = i; k < i + n; k++)
			off += p->loan->piece[k].length;
	}
	return true;
}
