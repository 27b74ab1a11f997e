/* What vb_transport.brief takes in at first sight, and what it leaves to the general way: whatever is wrong
 * with a packet or rare about it, and whatever is rare about the queue pair.  Left means whole: nothing has
 * changed. That the two ways do the same is tests/sim/test_brief.c's. */
#include <string.h>

#include "sim.h"

enum { LEN = 8 };

struct wrong {
	size_t at; /* of struct vb_brief */
	uint8_t flip;
};
#define WRONG(field, byte, flip)                                \
	{                                                       \
		offsetof(struct vb_brief, field) + (byte), flip \
	}

static bool takes(struct sim *s, struct vb_brief *b)
{
	struct vb_qp *qp = &s->n[0].qp;
	struct vb_arrival in = {.b = *b};
	bool taken;

	vb_lock_take(&qp->lock);
	taken = qp->transport->brief(qp, &in);
	*b = in.b;
	vb_lock_give(&qp->lock);
	return taken;
}

static void left(struct sim *s, const struct vb_brief *b, const char *what, unsigned i)
{
	static struct vb_qp was;
	struct vb_brief copy = *b;

	memcpy(&was, &s->n[0].qp, sizeof was);
	if (takes(s, &copy))
		fail_msg("%s %u was taken", what, i);
	assert_memory_equal(&was, &s->n[0].qp, sizeof was);
	assert_memory_equal(&copy, b, sizeof copy);
}

static struct vb_brief packet(struct sim *s, uint8_t opcode, uint32_t psn, uint32_t len)
{
	struct vb_qp *qp = &s->n[0].qp;
	struct vb_pkt p = {
	    .opcode = opcode, .pkey = VB_PKEY_DEFAULT, .qpn = qp->qpn, .psn = psn, .syndrome = VB_AETH_ACK};
	struct vb_brief b = {.hdr_len = vb_opcodes[opcode].hdr_len, .payload_len = (uint16_t)len};

	vb_pkt_encode(b.bytes, &p);
	memset(b.bytes + b.hdr_len, 0x5a, len);
	return b;
}

static struct vb_brief a_send(struct sim *s)
{
	struct vb_brief b = packet(s, VB_RC_SEND_ONLY, s->n[0].qp.resp.epsn, LEN);

	b.flags = (uint8_t)(s->n[0].qp.path_mtu * VB_BRIEF_MTU);
	return b;
}

static void leave(struct sim *s, const struct vb_brief *right, const struct wrong *w, size_t n)
{
	for (unsigned i = 0; i < n; i++) {
		struct vb_brief b = *right;

		((uint8_t *)&b)[w[i].at] ^= w[i].flip;
		left(s, &b, "packet", i);
	}
}

static void sends(void **state)
{
	static const struct wrong wrongs[] = {
	    WRONG(hdr_len, 0, 4),
	    WRONG(hdr_len, 0, VB_BTH_LEN),
	    WRONG(flags, 0, VB_BRIEF_MTU), /* of another path MTU */
	    WRONG(flags, 0, VB_BRIEF_PLACED),
	    WRONG(flags, 0, VB_BRIEF_LENT),
	    WRONG(payload_len, 0, LEN),
	    WRONG(bytes, 0, VB_FAMILY_UC),
	    WRONG(bytes, 0, VB_SEND_ONLY ^ VB_SEND_ONLY_IMM),
	    WRONG(bytes, 1, 0x01), /* version */
	    WRONG(bytes, 3, 0x01), /* P_Key */
	    WRONG(bytes, 11, 1),   /* PSN */
	    WRONG(bytes, 9, 0x80),
	};
	struct sim *s = sim_desk(SIM_QUIET);
	struct vb_brief b, pad;
	struct ibv_wc wc;

	(void)state;
	sim_take(s, 0, 0, 64);
	b = a_send(s);
	leave(s, &b, wrongs, sizeof wrongs / sizeof *wrongs);
	pad = b;
	pad.bytes[1] |= 0x30;
	pad.payload_len = 3; /* nothing but padding */
	left(s, &pad, "packet", 100);
	pad.payload_len = 2;
	left(s, &pad, "packet", 101);
	pad.payload_len = LEN;
	assert_true(takes(s, &pad));
	assert_true(sim_poll(s, 0, false, &wc));
	assert_int_equal(wc.byte_len, LEN - 3);
	sim_free(s);
}

static void acks(void **state)
{
	static const struct wrong wrongs[] = {
	    WRONG(hdr_len, 0, 4),	   WRONG(flags, 0, VB_BRIEF_LENT),
	    WRONG(payload_len, 0, 4),	   WRONG(ack, 3, 0x80),
	    WRONG(bytes, 0, VB_FAMILY_UC), WRONG(bytes, 0, VB_ACK ^ VB_ATOMIC_ACK),
	    WRONG(bytes, 1, 0x01),	   WRONG(bytes, 1, 0x10), /* padding */
	    WRONG(bytes, 2, 0x40),				  /* P_Key */
	    WRONG(bytes, 12, VB_AETH_RNR), WRONG(bytes, 12, VB_AETH_NAK_PSN & ~0x1f),
	};
	struct sim *s = sim_desk(SIM_QUIET);
	struct vb_brief b;
	struct ibv_wc wc;

	(void)state;
	sim_take(s, 1, 0, 64);
	sim_op(s, 0, IBV_WR_SEND, 0, LEN, 0);
	vb_lock_take(&s->n[0].qp.lock);
	s->n[0].qp.transport->output(&s->n[0].qp.path, 0);
	vb_lock_give(&s->n[0].qp.lock);
	b = packet(s, VB_RC_ACK, s->n[0].qp.req.psn_una, 0);
	leave(s, &b, wrongs, sizeof wrongs / sizeof *wrongs);
	assert_true(takes(s, &b));
	assert_true(sim_poll(s, 0, true, &wc));
	sim_free(s);
}

/* What may be rare about a queue pair to which a plain SEND comes, that receives into `w`. */
static bool make_rare(struct vb_qp *qp, struct vb_rwqe *w, unsigned what)
{
	switch (what) {
	case 0:
		qp->resp.in_message = true;
		return true;
	case 1:
		qp->resp.have_wqe = true;
		return true;
	case 2:
		atomic_store(&qp->resp.rq.head, qp->resp.rq.tail); /* there is no request */
		return true;
	case 3:
		w->num_sge = 0;
		return true;
	case 4:
		w->sge[0].length = LEN - 1;
		return true;
	case 5:
		w->sge[0].lkey ^= 1;
		return true;
	case 6:
	case 7:
	case 8:
	case 9:
		vb_qp_set_state(
		    qp, (enum ibv_qp_state[]){IBV_QPS_INIT, IBV_QPS_RTR, IBV_QPS_SQD, IBV_QPS_ERR}[what - 6]);
		return true;
	}
	return false;
}

static void queue_pairs(void **state)
{
	struct sim *s = sim_desk(SIM_QUIET);
	struct vb_qp *qp = &s->n[0].qp;
	static struct vb_qp was;
	struct vb_rwqe *w;
	uint8_t line[64];
	struct vb_brief b;

	(void)state;
	sim_take(s, 0, 0, 64);
	w = vb_rq_at(&qp->resp.rq, qp->resp.rq.tail);
	b = a_send(s);
	memcpy(&was, qp, sizeof was);
	memcpy(line, w, sizeof line);
	for (unsigned i = 0; make_rare(qp, w, i); i++) {
		left(s, &b, "rarity", i);
		memcpy(qp, &was, sizeof was);
		memcpy(w, line, sizeof line);
	}
	assert_true(takes(s, &b));
	sim_free(s);
}

/* The ACK that comes along completes a request, and the completion queue overflows: in the error state
 * nothing is executed. */
static void an_ack_along_may_end_it(void **state)
{
	struct sim *s = sim_desk(SIM_QUIET);
	struct vb_qp *qp = &s->n[0].qp;
	struct vb_brief b;

	(void)state;
	sim_take(s, 0, 0, 64);
	memset(s->mem[0], 0, 64);
	sim_take(s, 1, 0, 64);
	sim_op(s, 0, IBV_WR_SEND, 64, LEN, 0);
	vb_lock_take(&qp->lock);
	qp->transport->output(&qp->path, 0);
	vb_lock_give(&qp->lock);
	atomic_store(&s->n[0].scq.overrun, true);
	b = a_send(s);
	b.ack = VB_OUT_ACK | qp->req.psn_una;
	assert_false(takes(s, &b));
	assert_int_equal(b.ack, 0);
	assert_int_equal(qp->state, IBV_QPS_ERR);
	assert_int_equal(s->mem[0][0], 0);
	sim_free(s);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
	    cmocka_unit_test(sends),
	    cmocka_unit_test(acks),
	    cmocka_unit_test(queue_pairs),
	    cmocka_unit_test(an_ack_along_may_end_it),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
