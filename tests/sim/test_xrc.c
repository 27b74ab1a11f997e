/* A target of XRC, packet by packet: when its SRQ is looked for, and what goes on without one (annex A14). */
#include "sim.h"

enum { MTU = 256 };

static struct sim *desk(void)
{
	return sim_desk(SIM_CFG(.mtu = MTU, .local = true, .xrc = true, .retry_cnt = 7));
}

/* The SRQ is destroyed, as hca/ does it. */
static void srq_goes(struct sim *s)
{
	struct sim_node *n = &s->n[1];

	vb_srqs_drop(&n->srqs, &n->srq);
	vb_lock_take(&n->qp.lock);
	vb_qp_forget_srq(&n->qp, &n->srq);
	vb_lock_give(&n->qp.lock);
}

static void every_packet_names_the_srq(void **state)
{
	struct sim *s = desk();
	uint64_t wr;

	(void)state;
	sim_take(s, 1, 4096, 1024);
	wr = sim_op(s, 0, IBV_WR_SEND, 0, 1000, 0);
	sim_settle(s);
	sim_expect(s, 0, true, wr, IBV_WC_SUCCESS);
	assert_true(s->seen >= 4);
	for (uint32_t i = 0; i < s->seen; i++)
		if (s->trace[i].from == 0)
			assert_int_equal(s->trace[i].p.srqn, SIM_SRQN);
	sim_free(s);
}

/* The ACK is lost and the SRQ gone: what has arrived is acknowledged again, and no error. */
static void what_has_come_before_needs_no_srq(void **state)
{
	struct sim *s = desk();
	uint64_t wr;

	(void)state;
	sim_take(s, 1, 4096, 64);
	sim_drop(s, 1, SIM_ANY, 0);
	wr = sim_op(s, 0, IBV_WR_SEND, 0, 8, 0);
	sim_run_for(s, 10000);
	srq_goes(s);
	sim_settle(s);
	sim_expect(s, 0, true, wr, IBV_WC_SUCCESS);
	assert_int_equal(s->n[1].qp.state, IBV_QPS_RTS);
	sim_free(s);
}

/* In the middle of a message: its next packet is refused, and its receive request's slot is free. */
static void an_srq_goes_in_the_middle(void **state)
{
	struct sim *s = desk();
	uint64_t wr;

	(void)state;
	sim_take(s, 1, 4096, 1024);
	sim_drop(s, 0, VB_FAMILY_XRC | VB_SEND_LAST, 0);
	wr = sim_op(s, 0, IBV_WR_SEND, 0, 1000, 0);
	sim_run_for(s, 10000);
	assert_true(s->n[1].qp.resp.in_message && s->n[1].qp.resp.have_wqe);
	srq_goes(s);
	assert_int_equal(vb_rq_held(&s->n[1].srq.rq), 0);
	sim_settle(s);
	sim_expect(s, 0, true, wr, IBV_WC_REM_INV_RD_REQ_ERR);
	assert_int_equal(s->n[1].qp.state, IBV_QPS_ERR);
	sim_free(s);
}

/* A completion is the SRQ's and outlives the target; what is made in its place, and perhaps completes to the
 * same queue, has nothing to do with it. */
static void rule_36_completions_are_the_srqs(void **state)
{
	struct sim *s = desk();
	uint64_t r = sim_take(s, 1, 4096, 1024);

	(void)state;
	sim_op(s, 0, IBV_WR_SEND, 0, 8, 0);
	sim_settle(s);
	vb_cq_forget(&s->n[1].rcq, &s->n[1].qp); /* as of a queue pair that is reset or destroyed */
	sim_expect(s, 1, false, r, IBV_WC_SUCCESS);
	sim_free(s);
}

/* An initiator answers no requests, and a target takes no answers. */
static void each_end_has_one_half(void **state)
{
	struct sim *s = desk();
	struct vb_pkt ask = {.opcode = VB_FAMILY_XRC | VB_SEND_ONLY,
			     .psn = s->n[0].qp.resp.epsn,
			     .srqn = SIM_SRQN,
			     .ack_req = true};
	struct vb_pkt answer = {.opcode = VB_FAMILY_XRC | VB_ACK, .syndrome = VB_AETH_ACK};

	(void)state;
	sim_inject(s, 0, &ask, NULL, 0);
	sim_inject(s, 1, &answer, NULL, 0);
	sim_settle(s);
	assert_int_equal(s->seen, 0);
	assert_int_equal(s->n[0].qp.state, IBV_QPS_RTS);
	assert_int_equal(s->n[1].qp.state, IBV_QPS_RTS);
	sim_free(s);
}

/* Another process may answer, as one that has a deputy does; what it asks for is not carried out. */
static void only_the_initiator_asks(void **state)
{
	static const struct vb_source other = {.high = VB_SOURCE_PEER, .low = 5};
	struct sim *s = desk();
	struct vb_qp *qp = &s->n[1].qp;
	uint32_t before = qp->resp.epsn;
	struct vb_pkt p = {.op = &vb_opcodes[VB_FAMILY_XRC | VB_SEND_ONLY],
			   .opcode = VB_FAMILY_XRC | VB_SEND_ONLY,
			   .psn = before,
			   .srqn = SIM_SRQN,
			   .source = &other};

	(void)state;
	sim_take(s, 1, 4096, 64);
	vb_lock_take(&qp->lock);
	qp->transport->input(qp, &p);
	assert_int_equal(qp->resp.epsn, before);
	p.source = &qp->path.source;
	qp->transport->input(qp, &p);
	assert_int_equal(qp->resp.epsn, before + 1);
	vb_lock_give(&qp->lock);
	sim_free(s);
}

/* The answer to a message comes from another queue pair than the ACK.  Who waits for events of both must find
 * the ACK first, so it has left when the message's completion is there. */
static void the_ack_goes_before_the_completion(void **state)
{
	struct sim *s = desk();
	struct vb_qp *qp = &s->n[1].qp;
	struct vb_pkt p = {.op = &vb_opcodes[VB_FAMILY_XRC | VB_SEND_ONLY],
			   .opcode = VB_FAMILY_XRC | VB_SEND_ONLY,
			   .psn = qp->resp.epsn,
			   .srqn = SIM_SRQN,
			   .ack_req = true,
			   .source = &qp->path.source};

	(void)state;
	sim_take(s, 1, 4096, 64);
	vb_lock_take(&qp->lock);
	qp->transport->input(qp, &p);
	assert_int_equal(s->seen, 1);
	assert_int_equal(s->trace[0].p.opcode, VB_FAMILY_XRC | VB_ACK);
	assert_int_equal(s->trace[0].p.psn, p.psn);
	assert_false(qp->resp.ack_owed);
	vb_lock_give(&qp->lock);
	sim_free(s);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
	    cmocka_unit_test(every_packet_names_the_srq),
	    cmocka_unit_test(what_has_come_before_needs_no_srq),
	    cmocka_unit_test(an_srq_goes_in_the_middle),
	    cmocka_unit_test(each_end_has_one_half),
	    cmocka_unit_test(only_the_initiator_asks),
	    cmocka_unit_test(the_ack_goes_before_the_completion),
	    cmocka_unit_test(rule_36_completions_are_the_srqs),
	};

	return cmocka_run_group_tests_name("xrc", tests, NULL, NULL);
}
