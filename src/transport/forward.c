/* A target's messages for SRQs of other processes.
 *
 * Packets go on to a deputy of the target, which is a responder like any other, in the process whose SRQ they
 * name.  What the target acknowledges is what the deputy has: resp.epsn moves when its answers come, so
 * everything that looks at epsn, the far end's look at what is shown among it, means what was taken there.
 *
 * Requests take effect in their order, so one process is busy at a time: what names another waits for the
 * answers.  Nothing is kept here meanwhile.  What cannot go on now is held back, and asked for again when it
 * can, by a NAK that costs the far end no retry: only a receive request that is missing is "receiver not
 * ready", since programs give up after few of those. */
#include "transport/forward.h"

#include <string.h>

#include "obj/comp_cntr.h"
#include "obj/srqs.h"
#include "transport/rc_priv.h"

static void hold_back(struct vb_qp *qp)
{
	qp->forwards->again = true;
	qp->resp.nak_sent = true; /* of what follows nothing is said either */
	vb_forward_show(qp);
}

/* In place of an ACK, and until the expected packet comes nothing else. */
static void refuse(struct vb_resp *s, uint8_t syndrome)
{
	s->nak_sent = true;
	s->nak_owed = syndrome;
	s->nak_psn = s->epsn;
}

void vb_forward_resume(struct vb_qp *qp)
{
	struct vb_forwards *w = qp->forwards;

	vb_lock_assert_held(&qp->lock);
	if (!w->again || w->busy || w->wanted || (w->full && !w->full->ops->room(w->full)))
		return;
	w->again = false;
	w->full = NULL;
	vb_forward_show(qp);
	/* between hosts the far end knows only of losses */
	refuse(&qp->resp, qp->path.out && !qp->path.out->local ? VB_AETH_NAK_PSN : VB_AETH_NAK_AGAIN);
}

bool vb_forward_waits(const struct vb_qp *qp)
{
	const struct vb_forwards *w = qp->forwards;

	vb_lock_assert_held(&qp->lock);
	return w && w->again && !w->busy && (w->full || (w->wanted && !w->asked && !w->contacting));
}

/* The one by which a READ went on; one that leads to a later process of its number is another. */
static struct vb_forward *find_asked(const struct vb_forwards *w, uint32_t ticket)
{
	vb_list_each (n, &w->all) {
		struct vb_forward *f = vb_list_entry(n, struct vb_forward, node);

		if (f->ticket == ticket)
			return f;
	}
	return NULL;
}

static struct vb_forward *find(const struct vb_forwards *w, uint32_t number)
{
	vb_list_each (n, &w->all) {
		struct vb_forward *f = vb_list_entry(n, struct vb_forward, node);

		if (f->number == number)
			return f;
	}
	return NULL;
}

static bool send(struct vb_forward *f, const struct vb_pkt *p, uint32_t psn)
{
	struct vb_pkt to = *p;
	struct vb_outbuf b;

	if (!f->out->ops->reserve(f->out, &b, vb_opcodes[p->opcode].hdr_len, p->payload_len + p->pad,
				  VB_OUT_REQUEST))
		return false;
	to.qpn = f->deputy;
	to.psn = psn;
	to.ack_req = true;
	b.path_mtu = p->path_mtu;
	vb_pkt_encode(b.hdr, &to);
	if (p->payload_len)
		memcpy(b.payload, p->payload, p->payload_len);
	memset(b.payload + p->payload_len, 0, p->pad);
	f->out->ops->commit(f->out, &b);
	vb_out_push(f->out);
	return true;
}

/* Whether the message that p belongs to, or begins, is one for this process: its SRQ is, or it is nobody's
 * and so refused here. */
static bool is_for_here(const struct vb_qp *qp, const struct vb_pkt *p)
{
	const struct vb_forwards *w = qp->forwards;

	if (w->within)
		return false;
	return qp->resp.in_message || qp->resp.have_wqe || (qp->srq && qp->srq->number == p->srqn) ||
	       !w->ops || qp->xrcd->id.dev == VB_XRCD_PRIVATE || /* no other process has it open */
	       w->ops->own(qp, p->srqn) || p->srqn >> VB_QPN_INDEX_BITS == w->nowhere;
}

/* The one that leads to where p is to go; NULL: it is looked for. */
static struct vb_forward *way_of(struct vb_qp *qp, const struct vb_pkt *p)
{
	struct vb_forwards *w = qp->forwards;
	uint32_t number = p->srqn >> VB_QPN_INDEX_BITS;
	struct vb_forward *f = w->within ? w->within : find(w, number);

	if (f || w->busy) /* what is before it may yet fail */
		return f;
	w->wanted = number;
	w->ops->seek(qp);
	return NULL;
}

/* The packet that was expected has gone on: nothing is to be sent again. */
static void expected_went(struct vb_qp *qp)
{
	struct vb_forwards *w = qp->forwards;

	vb_responder_met(qp);
	w->again = false;
	w->full = NULL;
	qp->resp.nak_sent = false;
	qp->resp.nak_owed = 0;
	vb_forward_show(qp);
}

/* p has gone on. */
static void note(struct vb_forwards *w, const struct vb_pkt *p)
{
	struct vb_forward_count *c = &w->count;

	if (!w->within)
		*c = (struct vb_forward_count){0};
	c->bytes += p->payload_len;
	c->writes = p->op->bits & VB_OP_WRITE;
	c->receives |= p->op->bits & (VB_OP_SEND | VB_OP_TAKES_WQE);
	c->outstanding = p->op->bits & VB_OP_LAST;
}

/* p is the packet that is expected.  false: it cannot go on now. */
static bool go_on(struct vb_qp *qp, const struct vb_pkt *p)
{
	struct vb_forwards *w = qp->forwards;
	struct vb_forward *f = way_of(qp, p);

	if (!f || (w->busy && (w->busy != f || (qp->counters && w->count.outstanding))))
		return false;
	if (!send(f, p, f->psn)) {
		w->full = f->out;
		return false;
	}
	note(w, p);
	f->psn = vb_psn_add(f->psn, 1);
	w->next = vb_psn_add(p->psn, 1);
	w->busy = f;
	w->within = p->op->bits & VB_OP_LAST ? NULL : f;
	expected_went(qp);
	return true;
}

/* The access that the queue pair must permit for a request. */
static uint32_t rights(const struct vb_pkt *p)
{
	uint32_t bits = p->op->bits;

	return bits & (VB_OP_WRITE | VB_OP_WORD) ? IBV_ACCESS_REMOTE_WRITE
	       : bits & VB_OP_READ		 ? IBV_ACCESS_REMOTE_READ
	       : bits & VB_OP_ATOMIC		 ? IBV_ACCESS_REMOTE_ATOMIC
	       : bits & VB_OP_HELD
		   ? (p->flush_type & VB_FLUSH_GLOBAL ? VB_ACCESS_FLUSH_GLOBAL : 0) |
			 (p->flush_type & VB_FLUSH_PERSISTENT ? VB_ACCESS_FLUSH_PERSISTENT : 0)
		   : 0;
}

static bool has_room(const struct vb_resp *s)
{
	return s->res_head - s->res_next < s->res_size;
}

/* What is refused before it goes anywhere. */
static bool is_refused(const struct vb_qp *qp, const struct vb_pkt *p)
{
	return p->loan || rights(p) & ~(uint32_t)qp->access ||
	       (p->op->bits & VB_OP_HELD && (!has_room(&qp->resp) || p->dma_len > VB_MAX_MSG));
}

static void stop(struct vb_qp *qp, const struct vb_pkt *p)
{
	struct vb_facts f = {0};

	if (p->loan) { /* who lends lends to this process alone */
		refuse(&qp->resp, VB_AETH_NAK_LOAN);
	} else if (rights(p) & ~(uint32_t)qp->access) {
		f.access.want = rights(p);
		f.access.have = qp->access;
		vb_responder_fault(qp, &f, VB_R_QP_ACCESS, false); /* rule 22 */
	} else if (!has_room(&qp->resp)) {
		f.limit.most = qp->resp.res_size;
		vb_responder_fault(qp, &f, VB_R_TOO_MANY_READS, false);
	} else {
		f.length.bytes = p->dma_len;
		f.length.fit = VB_MAX_MSG;
		vb_responder_fault(qp, &f, VB_R_BAD_LENGTH, false);
	}
}

/* One packet to a deputy that has nothing else to do.  next: the PSN that the target takes behind it. */
static bool ask(struct vb_qp *qp, struct vb_forward *f, const struct vb_pkt *p, uint32_t psn, uint32_t next)
{
	struct vb_forwards *w = qp->forwards;

	if (!send(f, p, psn)) {
		w->full = f->out;
		return false;
	}
	w->next = next;
	w->busy = f;
	w->fetch.under_way = true;
	w->fetch.come = false;
	return true;
}

/* p is a request that is held, the one that is expected, and nothing is outstanding.  false: not now. */
static bool go_alone(struct vb_qp *qp, const struct vb_pkt *p)
{
	struct vb_forwards *w = qp->forwards;
	struct vb_forward *f = way_of(qp, p);
	bool read = VB_OPERATION(p->opcode) == VB_READ_REQUEST;
	uint32_t npsn;

	if (!f)
		return false;
	npsn = read ? psn_count(p->dma_len, path_mtu(qp)) : 1;
	w->fetch = (struct vb_fetch){.psn = p->psn,
				     .npsn = npsn,
				     .far_psn = f->psn,
				     .va = p->va,
				     .rkey = p->rkey,
				     .length = p->dma_len,
				     .opcode = p->opcode,
				     .srqn = p->srqn,
				     .first = true};
	if (!ask(qp, f, p, f->psn, vb_psn_add(p->psn, npsn)))
		return false;
	f->psn = vb_psn_add(f->psn, read ? psn_count(p->dma_len, f->out->mtu) : 1);
	expected_went(qp);
	return true;
}

/* The rest of a READ, of which the deputy answers with one packet: it has been asked for all of it before. */
static struct vb_pkt rest_of(const struct vb_fetch *x, const struct vb_forward *f)
{
	uint32_t off = x->at * f->out->mtu;

	return (struct vb_pkt){.op = &vb_opcodes[x->opcode],
			       .opcode = x->opcode,
			       .pkey = VB_PKEY_DEFAULT,
			       .srqn = x->srqn,
			       .va = x->va + off,
			       .rkey = x->rkey,
			       .dma_len = x->length - off};
}

/* Somebody asks again for what is under way: so does the target, for its request or the answer may be lost.
 */
static void ask_again(const struct vb_forwards *w, const struct vb_pkt *p)
{
	const struct vb_fetch *x = &w->fetch;
	struct vb_pkt rest;

	if (w->busy->out->tells)
		return;
	if (x->first && p->psn == x->psn) {
		send(w->busy, p, x->far_psn);
	} else if (!x->first) {
		rest = rest_of(x, w->busy);
		send(w->busy, &rest, vb_psn_add(x->far_psn, x->at));
	}
}

int vb_forward_fetch(struct vb_qp *qp, const struct vb_resource *res, uint32_t k, const uint8_t **bytes)
{
	struct vb_forwards *w = qp->forwards;
	struct vb_forward *f = find_asked(w, res->forward);
	uint32_t off = k * path_mtu(qp);
	struct vb_pkt p;

	if (!f)
		return -1;
	if (w->fetch.come && w->fetch.psn == res->psn && w->fetch.at == off / f->out->mtu) {
		*bytes = f->piece + off % f->out->mtu;
		return 1;
	}
	if (w->busy)
		return 0;
	w->fetch = (struct vb_fetch){.psn = res->psn,
				     .npsn = res->npsn,
				     .far_psn = res->forward_psn,
				     .va = res->va,
				     .rkey = res->rkey,
				     .length = res->length,
				     .opcode = res->opcode,
				     .srqn = res->srqn,
				     .at = off / f->out->mtu,
				     .until = k};
	p = rest_of(&w->fetch, f);
	ask(qp, f, &p, vb_psn_add(w->fetch.far_psn, w->fetch.at), qp->resp.epsn);
	return 0;
}

bool vb_forward_request(struct vb_qp *qp, const struct vb_pkt *p)
{
	struct vb_forwards *w = qp->forwards;
	int32_t d = vb_psn_diff(p->psn, w->busy ? w->next : qp->resp.epsn);

	vb_lock_assert_held(&qp->lock);
	if (d < 0 && w->fetch.under_way)
		ask_again(w, p);
	if (d > 0 || vb_psn_diff(p->psn, qp->resp.epsn) < 0)
		return false; /* something is lost before it, or it was answered before */
	if (d < 0) {	      /* it is with the deputy, or was lost on its way there */
		if (!w->busy->out->tells && !w->fetch.under_way)
			send(w->busy, p, vb_psn_add(w->busy->psn, (uint32_t)d & VB_PSN_MASK));
		return true;
	}
	if (is_for_here(qp, p)) {
		if (!w->busy) {
			w->again = false;
			w->nowhere = 0;
			vb_forward_show(qp);
			return false;
		}
		hold_back(qp);
		return true;
	}
	if (w->busy && (is_refused(qp, p) || p->op->bits & VB_OP_HELD || w->fetch.under_way))
		hold_back(qp); /* what is before it may yet fail */
	else if (is_refused(qp, p))
		stop(qp, p);
	else if (!(p->op->bits & VB_OP_HELD ? go_alone(qp, p) : go_on(qp, p)))
		hold_back(qp);
	return true;
}

/* Packets that the deputy has not taken are retransmitted by the peer, or lost. */
static void step_back(struct vb_forwards *w, struct vb_forward *f)
{
	f->psn = f->una;
	w->busy = NULL;
	w->within = NULL;
	w->again = false;
	w->full = NULL;
	w->count.outstanding = false;
}

static void nak(struct vb_qp *qp, const struct vb_pkt *p)
{
	struct vb_facts f;

	if (VB_AETH_KIND(p->syndrome) == VB_AETH_RNR) {
		refuse(&qp->resp, rnr_syndrome(qp, p->syndrome & VB_AETH_USED_UP));
	} else if (p->syndrome == VB_AETH_NAK_PSN) {
		refuse(&qp->resp, VB_AETH_NAK_PSN);
	} else {
		vb_nak_facts(&f, p);
		if (qp->counters && (f.reason == VB_R_RECV_TOO_SMALL || f.reason == VB_R_RECV_LOCAL))
			vb_comp_received(qp, 0, true); /* with which a receive request ended there */
		vb_rc_fail_recv(qp, &f, false);
	}
}

/* What the target owes from now on for a request that the deputy has carried out. */
static void owe_answer(struct vb_qp *qp, const struct vb_forward *f, const struct vb_pkt *p)
{
	const struct vb_fetch *x = &qp->forwards->fetch;
	struct vb_resp *s = &qp->resp;

	s->msn = vb_psn_add(s->msn, 1);
	s->res[s->res_head++ % s->res_size] = (struct vb_resource){.psn = s->epsn,
								   .npsn = x->npsn,
								   .msn = s->msn,
								   .opcode = x->opcode,
								   .va = x->va,
								   .rkey = x->rkey,
								   .length = x->length,
								   .orig = p->orig,
								   .forward = f->ticket,
								   .forward_psn = x->far_psn,
								   .srqn = x->srqn};
	s->epsn = vb_psn_add(s->epsn, x->npsn);
	s->last_op = x->opcode;
	s->ack_owed = false; /* the answer acknowledges everything before it */
}

/* Whether the deputy says this of what is fetched, and not of something before it, once more. */
static bool is_of_fetch(const struct vb_fetch *x, const struct vb_forward *f, const struct vb_pkt *p)
{
	uint32_t psn = vb_psn_add(x->far_psn, x->at);
	uint32_t kind = VB_OPERATION(p->opcode);

	if (VB_AETH_KIND(p->syndrome) == 0)
		return p->psn == psn && (vb_opcodes[x->opcode].bits & VB_OP_ATOMIC
					     ? kind == VB_ATOMIC_ACK
					     : kind == VB_READ_RESP_FIRST || kind == VB_READ_RESP_ONLY);
	/* of a READ that was carried out only what fails it counts, and a deputy that has failed */
	return x->first ? p->psn == f->una
			: VB_AETH_KIND(p->syndrome) == 0x60 && p->syndrome != VB_AETH_NAK_PSN &&
			      (p->psn == psn || p->psn == f->una);
}

/* The deputy answers what is fetched. */
static void fetched(struct vb_qp *qp, struct vb_forward *f, const struct vb_pkt *p)
{
	struct vb_forwards *w = qp->forwards;
	struct vb_fetch *x = &w->fetch;
	struct vb_resp *s = &qp->resp;
	bool positive = VB_AETH_KIND(p->syndrome) == 0, first = x->first;

	if (!is_of_fetch(x, f, p))
		return;
	if (positive && (p->payload_len > f->room || (first && !has_room(s))))
		return; /* no deputy does, nor does a program take resources away that are in use */
	x->under_way = x->first = false;
	w->busy = NULL;
	if (!positive) {
		f->psn = f->una; /* first: it comes again */
		nak(qp, p);
		if (first || qp->state != IBV_QPS_ERR)
			return;
		s->nak_psn = vb_psn_add(x->psn, x->until); /* rule 8: the answer breaks off here */
		s->res_next = s->res_head;
		s->replaying = false;
		return;
	}
	if (first) {
		f->msn = p->msn;
		f->una = f->psn;
		owe_answer(qp, f, p);
	}
	x->come = true;
	memcpy(f->piece, p->payload, p->payload_len);
}

void vb_forward_answer(struct vb_qp *qp, const struct vb_pkt *p)
{
	struct vb_forward *f = qp->forwards->busy;
	bool positive = VB_AETH_KIND(p->syndrome) == 0;
	uint32_t upto = vb_psn_add(p->psn, positive);

	vb_lock_assert_held(&qp->lock);
	if (!f || !p->source || !vb_source_is(p->source, &f->source) || !(p->op->bits & VB_OP_AETH))
		return;
	if (qp->forwards->fetch.under_way) {
		fetched(qp, f, p);
		if (qp->state == IBV_QPS_ERR)
			return;
		vb_forward_resume(qp);
		vb_forward_show(qp);
		return;
	}
	if (vb_psn_diff(upto, f->una) < 0 || vb_psn_diff(upto, f->psn) > 0)
		return; /* of an earlier time */
	qp->resp.msn = vb_psn_add(qp->resp.msn, (p->msn - f->msn) & VB_PSN_MASK);
	f->msn = p->msn;
	vb_forward_arrived(qp, f, upto);
	if (!positive) {
		step_back(qp->forwards, f);
		nak(qp, p);
	}
	if (qp->state == IBV_QPS_ERR)
		return;
	vb_forward_resume(qp);
	vb_forward_show(qp);
}
