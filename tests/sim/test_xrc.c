/* A target of XRC, packet by packet: when its SRQ is looked for, and what goes on without one (annex A14). */
#include <stdlib.h>
#include <string.h>

#include "obj/forward.h"
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
	static const struct vb_source other = {.origin = {VB_SOURCE_PEER, 5}};
	struct sim *s = desk();
	struct vb_qp *qp = &s->n[1].qp;
	const struct vb_source initiator = {.origin = qp->path.source};
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
	p.source = &initiator;
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
	const struct vb_source initiator = {.origin = qp->path.source};
	struct vb_pkt p = {.op = &vb_opcodes[VB_FAMILY_XRC | VB_SEND_ONLY],
			   .opcode = VB_FAMILY_XRC | VB_SEND_ONLY,
			   .psn = qp->resp.epsn,
			   .srqn = SIM_SRQN,
			   .ack_req = true,
			   .source = &initiator};

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

/* ---- an SRQ of another process: the test is the deputy there ---- */

enum { FAR_SRQN = 0x33001, FAR_PSN = 500 };

static const struct vb_source far_source = {.origin = {VB_SOURCE_PEER, 0x33}};

static bool far_is_not_own(const struct vb_qp *qp, uint32_t srqn)
{
	(void)qp;
	return srqn != FAR_SRQN;
}

static void far_ends(struct vb_qp *qp)
{
	(void)qp;
}

static unsigned far_sought;

static void far_seeks(struct vb_qp *qp)
{
	(void)qp;
	far_sought++;
}

static const struct vb_forward_ops far_ops = {.own = far_is_not_own, .seek = far_seeks, .end = far_ends};

struct far {
	struct sim *s;
	struct sim_wire wire; /* from the target to the deputy */
	struct vb_forward *f;
};

static void far_begin(struct far *d)
{
	struct vb_qp *qp;

	d->s = desk();
	qp = &d->s->n[1].qp;
	sim_wire_init(&d->wire, d->s, 1);
	d->f = calloc(1, sizeof *d->f + MTU);
	assert_non_null(d->f);
	*d->f = (struct vb_forward){.number = FAR_SRQN >> VB_QPN_INDEX_BITS,
				    .deputy = d->s->n[0].qp.qpn, /* as all that node 1 sends */
				    .ticket = 1,
				    .out = &d->wire.out,
				    .room = MTU,
				    .source = far_source.origin,
				    .psn = FAR_PSN,
				    .una = FAR_PSN};
	qp->forwards->ops = &far_ops;
	vb_lock_take(&qp->lock);
	vb_forward_add(qp, d->f);
	vb_lock_give(&qp->lock);
}

static void far_end(struct far *d)
{
	sim_settle(d->s);
	sim_free(d->s);
	sim_wire_free(&d->wire);
	free(d->f);
}

/* The deputy is asked for this, and for nothing else. */
static struct vb_pkt far_hears(struct far *d, uint8_t operation, uint32_t psn)
{
	struct sim_flying *came;
	struct vb_pkt p;

	assert_int_equal(d->wire.n, 1);
	came = sim_wire_take(&d->wire);
	assert_null(vb_pkt_decode(&p, came->bytes, came->hdr_len, came->payload_len, true));
	assert_int_equal(p.opcode, VB_FAMILY_XRC | operation);
	assert_int_equal(p.psn, psn);
	free(came);
	return p;
}

/* The initiator asks for this. */
static uint64_t far_post(struct far *d, enum ibv_wr_opcode op, uint32_t len)
{
	struct ibv_sge sge;
	struct ibv_send_wr wr = sim_wr(d->s, 0, op, 0, len, 0, &sge);

	wr.qp_type.xrc.remote_srqn = FAR_SRQN;
	assert_int_equal(sim_send(d->s, 0, &wr), 0);
	sim_run_for(d->s, 10000);
	return wr.wr_id;
}

/* And the deputy is asked in turn. */
static uint64_t far_op(struct far *d, enum ibv_wr_opcode op, uint32_t len, uint8_t operation, uint32_t psn)
{
	uint64_t wr_id = far_post(d, op, len);

	far_hears(d, operation, psn);
	return wr_id;
}

/* The deputy answers; to a READ with len bytes. */
static void far_says(struct far *d, uint8_t operation, uint32_t psn, uint32_t msn, uint64_t orig,
		     uint32_t len)
{
	uint8_t bytes[MTU];
	struct vb_qp *qp = &d->s->n[1].qp;
	const struct vb_pkt p = {.op = &vb_opcodes[VB_FAMILY_XRC | operation],
				 .opcode = VB_FAMILY_XRC | operation,
				 .psn = psn,
				 .syndrome = VB_AETH_ACK,
				 .msn = msn,
				 .orig = orig,
				 .payload = bytes,
				 .payload_len = len,
				 .source = &far_source};

	memset(bytes, (int)psn, sizeof bytes);
	vb_lock_take(&qp->lock);
	qp->transport->input(qp, &p);
	vb_lock_give(&qp->lock);
	sim_run_for(d->s, 10000);
}

/* A deputy's ACK for a message comes once more when an atomic is with it, or one for all that came: that is
 * no result. */
static void an_ack_said_again_is_no_answer(void **state)
{
	enum { ORIG = 77 };
	struct far d;
	uint64_t wr;

	(void)state;
	far_begin(&d);
	wr = far_op(&d, IBV_WR_SEND, 8, VB_SEND_ONLY, FAR_PSN);
	sim_expect_none(d.s, 0);
	far_says(&d, VB_ACK, FAR_PSN, 1, 0, 0);
	sim_expect(d.s, 0, true, wr, IBV_WC_SUCCESS);
	wr = far_op(&d, IBV_WR_ATOMIC_FETCH_AND_ADD, 8, VB_FETCH_ADD, FAR_PSN + 1);
	far_says(&d, VB_ACK, FAR_PSN, 1, 0, 0);
	far_says(&d, VB_ACK, FAR_PSN + 1, 2, 0, 0);
	sim_expect_none(d.s, 0);
	far_says(&d, VB_ATOMIC_ACK, FAR_PSN + 1, 2, ORIG, 0);
	sim_expect(d.s, 0, true, wr, IBV_WC_SUCCESS);
	assert_int_equal(*(uint64_t *)(void *)d.s->mem[0], ORIG);
	far_end(&d);
}

/* Of a READ's answer each packet is asked for alone; what is lost of that, the request and an answer in the
 * middle, is asked for again when the initiator does so. */
static void what_is_lost_of_a_fetch_comes_again(void **state)
{
	enum { LEN = 2 * MTU + 8 };
	struct far d;
	struct vb_pkt p;
	uint64_t wr;

	(void)state;
	far_begin(&d);
	wr = far_op(&d, IBV_WR_RDMA_READ, LEN, VB_READ_REQUEST, FAR_PSN);
	while (!d.wire.n)
		assert_true(sim_step(d.s));
	p = far_hears(&d, VB_READ_REQUEST, FAR_PSN);
	assert_int_equal(p.dma_len, LEN);
	far_says(&d, VB_READ_RESP_FIRST, FAR_PSN, 1, 0, MTU);
	for (unsigned lost = 0; lost < 2; lost++) {
		while (!d.wire.n)
			assert_true(sim_step(d.s));
		p = far_hears(&d, VB_READ_REQUEST, FAR_PSN + 1);
		assert_int_equal(p.dma_len, LEN - MTU);
	}
	far_says(&d, VB_READ_RESP_FIRST, FAR_PSN + 1, 1, 0, MTU);
	far_hears(&d, VB_READ_REQUEST, FAR_PSN + 2);
	far_says(&d, VB_READ_RESP_ONLY, FAR_PSN + 2, 1, 0, 8);
	sim_expect(d.s, 0, true, wr, IBV_WC_SUCCESS);
	for (uint32_t i = 0; i < LEN; i++)
		assert_int_equal(d.s->mem[0][i], (uint8_t)(FAR_PSN + i / MTU));
	/* what follows has the numbers behind the READ's */
	wr = far_op(&d, IBV_WR_SEND, 8, VB_SEND_ONLY, FAR_PSN + 3);
	far_says(&d, VB_ACK, FAR_PSN + 3, 2, 0, 0);
	sim_expect(d.s, 0, true, wr, IBV_WC_SUCCESS);
	far_end(&d);
}

/* What comes behind an atomic waits until the deputy has answered that. */
static void nothing_follows_a_fetch(void **state)
{
	struct far d;
	uint64_t wr, next;

	(void)state;
	far_begin(&d);
	wr = far_op(&d, IBV_WR_ATOMIC_FETCH_AND_ADD, 8, VB_FETCH_ADD, FAR_PSN);
	next = far_post(&d, IBV_WR_SEND, 8);
	assert_int_equal(d.wire.n, 0);
	far_says(&d, VB_ATOMIC_ACK, FAR_PSN, 1, 0, 0);
	sim_expect(d.s, 0, true, wr, IBV_WC_SUCCESS);
	far_hears(&d, VB_SEND_ONLY, FAR_PSN + 1);
	far_says(&d, VB_ACK, FAR_PSN + 1, 2, 0, 0);
	sim_expect(d.s, 0, true, next, IBV_WC_SUCCESS);
	far_end(&d);
}

/* What a process had not answered when it died is asked for again, and the initiator's timer need not run out
 * for that. */
static void what_a_dead_process_had_is_looked_for_anew(void **state)
{
	struct vb_qp *qp;
	struct far d;

	(void)state;
	far_begin(&d);
	qp = &d.s->n[1].qp;
	far_op(&d, IBV_WR_SEND, 8, VB_SEND_ONLY, FAR_PSN);
	far_sought = 0;
	vb_lock_take(&qp->lock);
	vb_forward_forget(qp, d.f, 0);
	qp->transport->output(&qp->path, 0);
	vb_lock_give(&qp->lock);
	sim_run_for(d.s, 10000);
	assert_true(far_sought > 0);
	far_end(&d);
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
	    cmocka_unit_test(an_ack_said_again_is_no_answer),
	    cmocka_unit_test(what_is_lost_of_a_fetch_comes_again),
	    cmocka_unit_test(nothing_follows_a_fetch),
	    cmocka_unit_test(what_a_dead_process_had_is_looked_for_anew),
	};

	return cmocka_run_group_tests_name("xrc", tests, NULL, NULL);
}
