/* The responder: executes requests in PSN order, once each, and owes answers.  Taking a request in sends
 * nothing (but for receive_done()): an ACK or NAK owed is one cumulative state, READ and atomic answers wait
 * in responder resources (answers.c). */
#include <string.h>

#include "iba/shown.h"
#include "mem/check_buffers.h"
#include "transport/lend.h"
#include "transport/take.h"

void vb_responder_fault(struct vb_qp *qp, struct vb_facts *f, enum vb_reason r, bool take_wqe)
{
	f->reason = r;
	f->qpn = qp->qpn;
	if (r == VB_R_KEY_UNKNOWN && f->mem.flags & VB_KEYF_PEERS && f->mem.process == qp->path.pid)
		f->mem.flags |= VB_KEYF_ASKER;
	if (qp->dest_qpn == qp->qpn && vb_reasons[r].facts == VB_FACTS_mem && r != VB_R_RECV_LOCAL)
		f->mem.flags |= VB_KEYF_SELF;
	if (!qp->acked && r != VB_R_RECV_LOCAL) /* what is wrong at this end is an error for both kinds */
		vb_uc_drop(qp, f, r);
	else
		vb_rc_fail_recv(qp, f, take_wqe);
}

static void bad_length(struct vb_qp *qp, uint64_t bytes, uint64_t due)
{
	struct vb_facts f = {.length = {.bytes = bytes, .fit = due}};

	vb_responder_fault(qp, &f, VB_R_BAD_LENGTH, false);
}

static void bad_sequence(struct vb_qp *qp, const struct vb_pkt *p)
{
	struct vb_facts f = {.packet = {.opcode = p->opcode, .before = qp->resp.last_op}};

	vb_responder_fault(qp, &f, VB_R_BAD_SEQUENCE, false);
}

static void not_permitted(struct vb_qp *qp, uint32_t want)
{
	struct vb_facts f = {.access = {.want = want, .have = qp->access}};

	vb_responder_fault(qp, &f, VB_R_QP_ACCESS, false); /* rule 22 */
}

/* An atomic, or ATOMIC WRITE.  `memory`: where its address lies in this process. */
static void not_aligned(struct vb_qp *qp, const struct vb_pkt *p, uint64_t memory)
{
	struct vb_facts f = {.key = p->rkey, .addr = p->va, .len = 8, .atomic = {.memory = memory}};

	vb_responder_fault(qp, &f, VB_R_ATOMIC_ALIGN, false); /* rule 18 */
}

/* Whether one more READ or atomic can be held; else it is a fault. */
static bool has_room(struct vb_qp *qp)
{
	const struct vb_resp *s = &qp->resp;
	struct vb_facts f;

	if (vb_likely(s->res_head - s->res_next < s->res_size))
		return true;
	f = (struct vb_facts){.limit = {.most = s->res_size}};
	vb_responder_fault(qp, &f, VB_R_TOO_MANY_READS, false);
	return false;
}

/* Out of sequence: said once, then silence until the expected packet comes (IBTA 9.7.5.1.3). */
static void nak_once(struct vb_resp *s, uint8_t syndrome)
{
	if (s->nak_sent)
		return;
	s->nak_sent = true;
	s->nak_owed = syndrome;
	s->nak_psn = s->epsn;
}

/* A message is taken in whole, not by the short way. */
static void count_message(const struct vb_qp *qp, uint32_t bytes)
{
	vb_traffic_receive(qp->traffic, bytes);
	if (bytes > SHORTEST_MTU)
		count(qp, VB_TRAFFIC_PACKETS_IN, further_packets(qp, bytes));
}

/* A packet with the expected PSN has come. */
static inline void expected(struct vb_resp *s)
{
	s->nak_sent = false;
	s->nak_owed = 0; /* what was lost has come before the NAK went out */
}

/* bits: those of the opcode. */
static inline void accept(struct vb_resp *s, uint8_t opcode, uint32_t bits, uint32_t npsn, bool ack_req)
{
	bool last = bits & VB_OP_LAST;

	s->epsn = vb_psn_add(s->epsn, npsn);
	s->last_op = opcode;
	s->in_message = !last;
	if (last)
		s->msn = vb_psn_add(s->msn, 1); /* rule 12: counts finished requests */
	s->ack_owed |= ack_req;
}

/* Finds a receive WQE as vb_take_wqe() does; where there is none an RNR NAK is owed, or the message dropped.
 * Whether all completions of those that there were have been fetched is not asked: who has just fetched the
 * last of them posts again next, and may have lost its CPU in between. */
static bool take_wqe(struct vb_qp *qp)
{
	const struct vb_rq *rq = qp->srq ? &qp->srq->rq : &qp->resp.rq;
	struct vb_facts f;

	if (vb_likely(vb_take_wqe(qp, 0)))
		return true;
	if (!qp->acked) {
		f = (struct vb_facts){.none = {0}};
		vb_uc_drop(qp, &f, VB_R_DROP_NO_RECV);
		return false;
	}
	nak_once(&qp->resp, rnr_syndrome(qp, atomic_load_explicit(&rq->head, memory_order_relaxed)));
	return false;
}

static void receive_done(struct vb_qp *qp, const struct vb_pkt *p, enum ibv_wc_opcode opcode,
			 uint32_t byte_len)
{
	struct ibv_wc *handed = vb_cq_handed(qp->rcq), *to;
	struct vb_cqe e;

	to = handed ? handed : &e.wc;
	vb_take_put(to, qp, qp->resp.cur, opcode, byte_len);
	if (p->op->bits & VB_OP_IMM) {
		to->wc_flags = IBV_WC_WITH_IMM;
		to->imm_data = p->imm;
	}
	if (p->op->bits & VB_OP_IETH) {
		to->wc_flags = IBV_WC_WITH_INV;
		to->invalidated_rkey = p->inv_rkey;
	}
	/* The peer must find the ACK before the program's answer.  RC's vb_rc_output() sees to that. */
	if (vb_unlikely(qp->transport->answers_apart) && qp->resp.ack_owed && qp->path.out)
		vb_responder_ack(qp);
	vb_take_done(qp, handed ? NULL : &e, p->solicited);
}

static __attribute__((cold, noinline)) void too_small(struct vb_qp *qp, uint64_t bytes)
{
	struct vb_facts f = {.length = {.bytes = bytes, .fit = qp->resp.room}};

	count(qp, VB_TRAFFIC_LENGTH_REFUSED, 1);
	vb_responder_fault(qp, &f, VB_R_RECV_TOO_SMALL, true); /* rule 23 */
}

/* false: the window cannot be invalidated (rule 46). */
static __attribute__((noinline)) bool invalidate(struct vb_qp *qp, const struct vb_pkt *p)
{
	struct vb_facts f = {0};

	if (vb_window_invalidated(qp, p->inv_rkey, &f)) {
		if (vb_unlikely(vb_check_on))
			vb_check_key_ended(p->inv_rkey, VB_CHECK_INVALIDATED);
		return true;
	}
	vb_responder_fault(qp, &f, f.reason, false);
	return false;
}

/* The bytes of a SEND's packet go to the receive WQE.  false: the packet does not count.  One piece, from its
 * beginning, is the common case; whatever is wrong with that is found out by the general copy. */
static inline bool send_bytes(struct vb_qp *qp, const struct vb_pkt *p)
{
	struct vb_resp *s = &qp->resp;
	/* an SRQ's buffers belong to the SRQ's protection domain (rule 21) */
	uint64_t pd = qp->srq ? qp->srq->pd->id : qp->pd_id;
	struct vb_facts f; /* set where a check fails */
	enum vb_reason r;

	if (vb_unlikely(p->loan != NULL)) {
		if (vb_lend_collect(qp, p))
			return true;
		nak_once(s, VB_AETH_NAK_LOAN);
		return false;
	}
	if (vb_unlikely(!p->payload_len) ||
	    (vb_likely(!s->got && s->cur->num_sge == 1) &&
	     vb_likely(vb_sg_scatter(qp, pd, s->cur->sge, p->payload, p->payload_len))))
		return true;
	r = vb_sg_copy(qp, pd, s->cur->sge, s->cur->num_sge, s->got, (uint8_t *)(uintptr_t)p->payload,
		       p->payload_len, VB_SG_SCATTER, &f);
	if (vb_likely(r == VB_OK))
		return true;
	f.check = r; /* its sentence is told */
	vb_responder_fault(qp, &f, VB_R_RECV_LOCAL, true);
	return false;
}

/* SEND: where the packet belongs in its message was checked. */
static void send_in(struct vb_qp *qp, const struct vb_pkt *p)
{
	struct vb_resp *s = &qp->resp;
	bool first = p->op->bits & VB_OP_FIRST, last = p->op->bits & VB_OP_LAST;

	if (first) {
		if (!take_wqe(qp))
			return;
		s->got = 0;
	}
	if (vb_unlikely((uint64_t)s->got + p->payload_len > s->room)) {
		too_small(qp, (uint64_t)s->got + p->payload_len);
		return;
	}
	if (vb_unlikely(!send_bytes(qp, p)))
		return;
	if (vb_unlikely(p->op->bits & VB_OP_IETH) && !invalidate(qp, p))
		return;
	s->got += p->payload_len;
	accept(s, p->opcode, p->op->bits,
	       vb_unlikely(p->loan != NULL) ? psn_count(p->payload_len, path_mtu(qp)) : 1, p->ack_req);
	if (!last)
		return;
	count_message(qp, s->got);
	receive_done(qp, p, IBV_WC_RECV, s->got);
}

/* The range of a WRITE may not be written.  If the packet brings an immediate, the error is that of the
 * receive request which would have told of it (rule 20); where none is posted it is an event's. */
static void write_refused(struct vb_qp *qp, const struct vb_pkt *p, struct vb_facts *f, enum vb_reason r)
{
	/* In packets of the path MTU the immediate would have come later. */
	bool split = p->path_mtu && p->dma_len > 128u << p->path_mtu;

	vb_responder_fault(qp, f, r, (p->op->bits & VB_OP_TAKES_WQE) && !split && vb_take_wqe(qp, 0));
}

static bool write_begin(struct vb_qp *qp, const struct vb_pkt *p)
{
	struct vb_resp *s = &qp->resp;
	struct vb_facts f = {0};
	enum vb_reason r;

	if (vb_unlikely(!(qp->access & IBV_ACCESS_REMOTE_WRITE))) { /* rule 22 */
		not_permitted(qp, IBV_ACCESS_REMOTE_WRITE);
		return false;
	}
	if (p->dma_len) { /* rule 18: length 0 names no memory */
		struct vb_mem_want w = remote_want(qp, p->rkey, IBV_ACCESS_REMOTE_WRITE, p->va, p->dma_len);

		r = vb_mem_check(qp->keys, &w, &f);
		if (vb_unlikely(r != VB_OK)) {
			write_refused(qp, p, &f, r);
			return false;
		}
	}
	s->va = p->va;
	s->rkey = p->rkey;
	s->left = p->dma_len;
	s->got = 0;
	return true;
}

static void write_in(struct vb_qp *qp, const struct vb_pkt *p)
{
	struct vb_resp *s = &qp->resp;
	bool last = p->op->bits & VB_OP_LAST;
	struct vb_facts f = {0};
	struct vb_mem_use u;
	enum vb_reason r;
	bool ok;

	if ((p->op->bits & VB_OP_FIRST) && (p->dma_len > VB_MAX_MSG || !write_begin(qp, p))) {
		if (p->dma_len > VB_MAX_MSG && qp->state != IBV_QPS_ERR)
			bad_length(qp, p->dma_len, VB_MAX_MSG);
		return;
	}
	if (vb_unlikely(p->placed)) { /* by the initiator; checked again here, as if it came now */
		if (VB_OPERATION(p->opcode) != VB_WRITE_ONLY_IMM || p->payload_len) {
			bad_length(qp, p->payload_len, 0);
			return;
		}
		s->got = s->left;
		s->left = 0;
	}
	if (vb_unlikely(last ? p->payload_len != s->left : p->payload_len >= s->left)) {
		bad_length(qp, p->payload_len, s->left);
		return;
	}
	if ((p->op->bits & VB_OP_TAKES_WQE) && !take_wqe(qp)) /* rule 25, also for length 0 */
		return;
	if (p->payload_len) {
		struct vb_mem_want w =
		    remote_want(qp, s->rkey, IBV_ACCESS_REMOTE_WRITE, s->va, p->payload_len);

		r = vb_mem_begin(qp->keys, &u, &w, &f);
		if (vb_unlikely(r != VB_OK)) {
			write_refused(qp, p, &f, r);
			return;
		}
		ok = vb_mem_put(&u, p->payload, p->payload_len);
		vb_mem_end(&u);
		if (vb_unlikely(!ok)) {
			r = vb_mem_why(&u, s->rkey, s->va, p->payload_len, &f);
			f.addr = s->va - s->got; /* the request's, not this packet's */
			f.len = (uint64_t)s->got + s->left;
			write_refused(qp, p, &f, r);
			return;
		}
	}
	s->va += p->payload_len;
	s->left -= p->payload_len;
	s->got += p->payload_len;
	accept(s, p->opcode, p->op->bits, 1, p->ack_req);
	if (last) {
		count_message(qp, p->placed ? 0 : s->got);
		count(qp, VB_TRAFFIC_WRITES_IN, 1);
	}
	if (vb_unlikely(qp->counters != NULL) && p->op->bits & VB_OP_LAST)
		vb_comp_remote(qp, VB_COMP_REMOTE_WRITE, s->got);
	if (p->op->bits & VB_OP_TAKES_WQE)
		receive_done(qp, p, IBV_WC_RECV_RDMA_WITH_IMM, s->got);
}

/* Room for one more READ or atomic.  Its slot may hold one that is answered and kept for duplicates. */
static struct vb_resource *resource(struct vb_qp *qp, const struct vb_pkt *p, uint32_t npsn)
{
	struct vb_resp *s = &qp->resp;
	struct vb_resource *res;

	if (!has_room(qp))
		return NULL;
	res = &s->res[s->res_head % s->res_size];
	s->msn = vb_psn_add(s->msn, 1);
	*res = (struct vb_resource){.psn = s->epsn,
				    .npsn = npsn,
				    .msn = s->msn,
				    .opcode = p->opcode,
				    .va = p->va,
				    .rkey = p->rkey,
				    .length = p->dma_len,
				    .pd = qp->pd_id};
	s->res_head++;
	count_message(qp, 0);
	if (p->op->bits & VB_OP_READ) {
		count(qp, VB_TRAFFIC_READS_IN, 1);
		count(qp, VB_TRAFFIC_PACKETS_OUT, further_packets(qp, p->dma_len));
		qp->traffic->sent_bytes += p->dma_len;
	} else if (p->op->bits & VB_OP_ATOMIC) {
		count(qp, VB_TRAFFIC_ATOMICS_IN, 1);
	}
	s->epsn = vb_psn_add(s->epsn, npsn);
	s->last_op = p->opcode;
	s->ack_owed = false; /* the answer acknowledges everything before it */
	return res;
}

static bool may_fetch(struct vb_qp *qp, const struct vb_pkt *p, uint32_t want, uint64_t len)
{
	struct vb_mem_want w = remote_want(qp, p->rkey, want, p->va, len);
	struct vb_facts f;
	enum vb_reason r;

	if (!(qp->access & want)) { /* rule 22 */
		not_permitted(qp, want);
		return false;
	}
	if (!len) /* rule 18 */
		return true;
	r = vb_mem_check(qp->keys, &w, &f);
	if (r == VB_OK)
		return true;
	vb_responder_fault(qp, &f, r, false);
	return false;
}

static void read_in(struct vb_qp *qp, const struct vb_pkt *p)
{
	if (p->dma_len > VB_MAX_MSG)
		bad_length(qp, p->dma_len, VB_MAX_MSG);
	else if (may_fetch(qp, p, IBV_ACCESS_REMOTE_READ, p->dma_len))
		resource(qp, p, psn_count(p->dma_len, path_mtu(qp)));
}

/* What could not be done in one step; returns false. */
static bool atomic_refused(struct vb_qp *qp, struct vb_facts *f, enum vb_reason r)
{
	if (r == VB_MEM_LATER) /* whose memory it is has been asked */
		nak_once(&qp->resp, rnr_syndrome(qp, false));
	else
		vb_responder_fault(qp, f, r, false);
	return false;
}

static bool atomic_do(struct vb_qp *qp, const struct vb_pkt *p, uint64_t *orig)
{
	struct vb_mem_want w = remote_want(qp, p->rkey, IBV_ACCESS_REMOTE_ATOMIC, p->va, 8);
	struct vb_facts f = {0};
	struct vb_mem_use u;
	enum vb_reason r;
	bool ok;

	r = vb_mem_begin(qp->keys, &u, &w, &f);
	if (r == VB_OK && ((uintptr_t)u.ptr & 7)) { /* CPU atomics: the address itself must be aligned too */
		vb_mem_end(&u);
		not_aligned(qp, p, (uintptr_t)u.ptr);
		return false;
	}
	if (r == VB_OK) {
		ok = VB_OPERATION(p->opcode) == VB_CMP_SWAP
			 ? vb_mem_cmp_swap(&u, p->compare, p->swap_add, orig)
			 : vb_mem_fetch_add(&u, p->swap_add, orig);
		vb_mem_end(&u);
		if (!ok)
			r = vb_mem_why(&u, p->rkey, p->va, 8, &f);
	}
	return r == VB_OK || atomic_refused(qp, &f, r);
}

static void atomic_in(struct vb_qp *qp, const struct vb_pkt *p)
{
	struct vb_resource *res;
	uint64_t orig;

	if (p->va & 7) { /* rule 18 */
		not_aligned(qp, p, p->va);
		return;
	}
	if (!may_fetch(qp, p, IBV_ACCESS_REMOTE_ATOMIC, 8))
		return;
	if (!has_room(qp)) /* before it is executed: it must be remembered */
		return;
	if (!atomic_do(qp, p, &orig))
		return;
	res = resource(qp, p, 1);
	res->orig = orig; /* rule 17: what a duplicate is answered with */
}

/* 8 bytes are stored as one (annex A19), with release: what came before is seen by whoever sees them. */
static bool word_do(struct vb_qp *qp, const struct vb_pkt *p)
{
	struct vb_mem_want w = remote_want(qp, p->rkey, IBV_ACCESS_REMOTE_WRITE, p->va, 8);
	struct vb_facts f = {0};
	struct vb_mem_use u;
	enum vb_reason r;
	bool ok;

	w.word = true;
	r = vb_mem_begin(qp->keys, &u, &w, &f);
	if (r == VB_OK && ((uintptr_t)u.ptr & 7)) { /* as of an atomic */
		vb_mem_end(&u);
		not_aligned(qp, p, (uintptr_t)u.ptr);
		return false;
	}
	if (r == VB_OK) {
		ok = vb_mem_put(&u, p->payload, 8);
		vb_mem_end(&u);
		if (!ok)
			r = vb_mem_why(&u, p->rkey, p->va, 8, &f);
	}
	return r == VB_OK || atomic_refused(qp, &f, r);
}

static void word_in(struct vb_qp *qp, const struct vb_pkt *p)
{
	if (p->dma_len != 8 || p->payload_len != 8) {
		bad_length(qp, p->payload_len, 8);
		return;
	}
	if (p->va & 7) {
		not_aligned(qp, p, p->va);
		return;
	}
	if (may_fetch(qp, p, IBV_ACCESS_REMOTE_WRITE, 8) && has_room(qp) && word_do(qp, p))
		resource(qp, p, 1);
}

/* Everything before has been carried out, in memory that all CPUs see alike: what remains is to say so.  The
 * rights are asked for even where no byte is named (annex A19). */
static void flush_in(struct vb_qp *qp, const struct vb_pkt *p)
{
	uint32_t want = (p->flush_type & VB_FLUSH_GLOBAL ? VB_ACCESS_FLUSH_GLOBAL : 0) |
			(p->flush_type & VB_FLUSH_PERSISTENT ? VB_ACCESS_FLUSH_PERSISTENT : 0);
	struct vb_mem_want w = remote_want(qp, p->rkey, want, p->va, p->dma_len);
	struct vb_facts f;
	enum vb_reason r;

	if (want & ~(uint32_t)qp->access) { /* rule 22 */
		not_permitted(qp, want);
		return;
	}
	w.whole = p->flush_level == VB_FLUSH_MR;
	r = vb_mem_check(qp->keys, &w, &f);
	if (r != VB_OK) {
		vb_responder_fault(qp, &f, r, false);
		return;
	}
	if (!has_room(qp))
		return;
	resource(qp, p, 1);
}

/* The request repeats nothing that is known: it is dropped, as on a wire.  Here the requester can see that,
 * and need not take its silence for slowness. */
static void stray(struct vb_qp *qp, const struct vb_pkt *p)
{
	if (qp->shown)
		atomic_store_explicit(&qp->shown->stray, VB_SHOWN_RECEIVED | p->psn, memory_order_release);
}

/* The request was seen before.  SEND and WRITE are only acknowledged, a READ is executed again, an atomic's
 * saved result is sent again (rules 17, 26), and so is the answer to FLUSH and ATOMIC WRITE. */
static void duplicate(struct vb_qp *qp, const struct vb_pkt *p)
{
	struct vb_resp *s = &qp->resp;
	uint32_t n = s->res_head < s->res_size ? s->res_head : s->res_size, at;
	struct vb_resource *res;

	count(qp, VB_TRAFFIC_DUPLICATES, 1);
	if (!(p->op->bits & VB_OP_HELD)) {
		s->ack_owed = true;
		return;
	}
	for (uint32_t i = s->res_head - n; i != s->res_head; i++) {
		res = &s->res[i % s->res_size];
		at = (p->psn - res->psn) & VB_PSN_MASK;
		if (at >= res->npsn || res->opcode != p->opcode)
			continue;
		if ((int32_t)(i - s->res_next) > 0)
			return; /* not answered at all yet: it will be */
		if (p->op->bits & VB_OP_READ) {
			uint64_t off = (uint64_t)at * path_mtu(qp);

			/* rule 5: the rest of the same READ, nothing else */
			if (off > res->length || p->dma_len != res->length - off || p->va != res->va + off)
				break;
		}
		res->start = res->sent = at;
		if (i != s->res_next) {
			res->replay = true;
			s->replaying = true;
		}
		return;
	}
	stray(qp, p);
}

/* What came in a packet larger than a path's would have come in several of the sender's path MTU: too long
 * for this end or, where others follow, too short (IBTA 9.7.4.1.6). */
static bool fits_both(struct vb_qp *qp, const struct vb_pkt *p)
{
	uint32_t len =
	    p->op->bits & VB_OP_WRITE ? p->dma_len : p->payload_len; /* that of a SEND is not told */
	struct vb_facts f;

	if (!(p->op->bits & (VB_OP_SEND | VB_OP_WRITE)) || len <= smaller_mtu(qp, p))
		return true;
	f = mtu_facts(qp, p, len);
	vb_responder_fault(qp, &f, VB_R_PATH_MTU, false);
	return false;
}

/* Whether the packet may follow the one before it (IBTA 9.7.4.1.2), and is as long as its place demands. */
static bool in_order(struct vb_qp *qp, const struct vb_pkt *p)
{
	struct vb_resp *s = &qp->resp;
	uint32_t bits = p->op->bits, kind = VB_OP_SEND | VB_OP_WRITE, mtu = path_mtu(qp);
	bool wrong;

	if (s->in_message ? (bits & VB_OP_FIRST) || (bits & kind) != (vb_opcodes[s->last_op].bits & kind)
			  : !(bits & VB_OP_FIRST)) {
		bad_sequence(qp, p);
		return false;
	}
	if (vb_unlikely(p->loan != NULL)) /* it stands for as many packets as its bytes would fill */
		wrong = !(bits & VB_OP_LAST) && p->payload_len % mtu;
	else
		wrong = (bits & VB_OP_LAST) ? p->payload_len > mtu : p->payload_len != mtu;
	if (vb_unlikely(wrong)) {
		bad_length(qp, p->payload_len, mtu);
		return false;
	}
	return vb_likely(!mtus_differ(qp, p)) || fits_both(qp, p);
}

/* Whether b, a SEND of one packet, is the one expected, and there is a receive request: if it has room in its
 * first piece, vb_responder_input() would find nothing to object to, nothing else to see to, and come to the
 * copy. */
static inline bool is_plain(const struct vb_qp *qp, const struct vb_brief *b)
{
	const struct vb_resp *s = &qp->resp;
	uint32_t pad = VB_PKT_PAD(vb_pkt_get_word(b->bytes, 0));

	return b->hdr_len == VB_BTH_LEN && b->payload_len > pad && /* and shorter than any path's */
	       b->flags == qp->path.plain && (vb_pkt_get_word(b->bytes, 2) & VB_PSN_MASK) == s->epsn &&
	       !s->in_message && !s->have_wqe && !vb_rq_empty(&s->rq);
}

bool vb_responder_brief(struct vb_qp *qp, struct vb_brief *b)
{
	struct vb_resp *s = &qp->resp;
	const struct vb_rwqe *w;
	uint32_t first = vb_pkt_get_word(b->bytes, 0), len = b->payload_len - VB_PKT_PAD(first);
	struct ibv_wc *to;
	struct vb_cqe e;

	vb_lock_assert_held(&qp->lock);
	if (vb_unlikely(!is_plain(qp, b)))
		return false;
	w = vb_rq_at(&s->rq, s->rq.tail); /* a QP with an SRQ has no ring, and is not plain */
	if (vb_unlikely(!w->num_sge || len > w->sge[0].length))
		return false;
	if (b->ack & VB_OUT_ACK) {
		vb_completer_ack(qp, b->ack & VB_PSN_MASK);
		b->ack = 0;
		if (vb_unlikely(qp->state != IBV_QPS_RTS))
			return false;
	}
	if (vb_unlikely(!vb_sg_scatter(qp, qp->pd_id, w->sge, b->bytes + VB_BTH_LEN, len)))
		return false;
	s->rq.tail++;
	expected(s);
	vb_traffic_receive(qp->traffic, len);
	accept(s, qp->family | VB_SEND_ONLY, VB_OP_LAST, 1, vb_pkt_get_word(b->bytes, 2) >> 31);
	to = vb_cq_handed(qp->rcq);
	if (vb_likely(to != NULL)) {
		vb_take_put(to, qp, w, IBV_WC_RECV, len);
		vb_rq_give(&s->rq);
		return true;
	}
	e = (struct vb_cqe){.qp = qp};
	vb_take_put(&e.wc, qp, w, IBV_WC_RECV, len);
	vb_rc_push(qp, qp->rcq, &e, first >> 23 & 1);
	return true;
}

void vb_responder_next(struct vb_qp *qp, const struct vb_pkt *p)
{
	expected(&qp->resp);
	if (!in_order(qp, p))
		return;
	if (p->op->bits & VB_OP_SEND)
		send_in(qp, p);
	else if (p->op->bits & VB_OP_WRITE)
		write_in(qp, p);
	else if (p->op->bits & VB_OP_READ)
		read_in(qp, p);
	else if (p->op->bits & VB_OP_ATOMIC)
		atomic_in(qp, p);
	else if (p->op->bits & VB_OP_WORD)
		word_in(qp, p);
	else
		flush_in(qp, p);
}

void vb_responder_input(struct vb_qp *qp, const struct vb_pkt *p)
{
	struct vb_resp *s = &qp->resp;
	int32_t d;

	vb_lock_assert_held(&qp->lock);
	if (qp->state < IBV_QPS_RTR || qp->state > IBV_QPS_SQE) {
		vb_not_taken(qp, p); /* rule 26: nothing is executed in ERR */
		return;
	}
	vb_responder_met(qp);
	if (vb_unlikely(p->marked))
		vb_flight_marked(qp, p);
	if (vb_unlikely(!qp->acked)) {
		vb_uc_take(qp, p);
		return;
	}
	d = vb_psn_diff(p->psn, s->epsn);
	if (vb_unlikely(d > 0)) {
		count(qp, VB_TRAFFIC_SEQ_OUT, 1);
		if (qp->path.lossy)
			vb_flight_astray(qp, p->psn);
		nak_once(s, VB_AETH_NAK_PSN);
		return;
	}
	if (vb_unlikely(d < 0)) {
		duplicate(qp, p);
		return;
	}
	vb_responder_next(qp, p);
}
