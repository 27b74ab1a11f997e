/* What a requester makes of answers: those that no responder would give change nothing or end the request,
 * and retries, timers and PSNs have their limits. */
#include <string.h>

#include "sim.h"

#define CFG   SIM_CFG
#define QUIET SIM_QUIET
#define OK    IBV_WC_SUCCESS

/* A request of node 0 whose packets are all lost, so that what is injected is all that comes back. */
static struct sim *unanswered(enum ibv_wr_opcode op, uint32_t len)
{
	struct sim *s = sim_desk(CFG(.timeout = 0, .local = true));

	sim_drop(s, 0, SIM_ANY, SIM_ALWAYS);
	memset(s->mem[0], 0x77, 4096);
	sim_op(s, 0, op, 64, len, 0);
	sim_settle(s);
	sim_expect_none(s, 0);
	return s;
}

static void not_written(const struct sim *s)
{
	for (int i = 0; i < 4096; i++)
		assert_int_equal(s->mem[0][i], 0x77);
}

/* Acknowledged is only what was sent: not what comes behind it, nor what came before. */
static void ghost_acks(void **state)
{
	static const uint32_t psns[] = {101, 105, 99, 0x800063, 0xffffff};

	(void)state;
	for (unsigned i = 0; i < sizeof psns / sizeof *psns; i++) {
		struct sim *s = unanswered(IBV_WR_SEND, 8);
		struct vb_pkt p = {.opcode = VB_RC_ACK, .psn = psns[i], .syndrome = VB_AETH_ACK};

		sim_inject(s, 0, &p, NULL, 0);
		sim_expect_none(s, 0);
		p.syndrome = VB_AETH_NAK_REMOTE_ACCESS;
		sim_inject(s, 0, &p, NULL, 0);
		sim_expect_none(s, 0);
		p.psn = 100;
		p.syndrome = VB_AETH_ACK;
		sim_inject(s, 0, &p, NULL, 0);
		sim_expect(s, 0, true, 1, OK);
		sim_free(s);
	}
}

/* The far end's facts count only where they fit the NAK that they came with. */
static void facts_that_do_not_fit(void **state)
{
	static const uint32_t reasons[] = {VB_R_RECV_LOCAL, VB_OK, VB_REASONS, UINT32_MAX};

	(void)state;
	for (unsigned i = 0; i < sizeof reasons / sizeof *reasons; i++) {
		struct sim *s = unanswered(IBV_WR_RDMA_WRITE, 8);
		struct vb_facts f = {.reason = reasons[i]};
		struct vb_pkt p = {.opcode = VB_RC_ACK, .psn = 100, .syndrome = VB_AETH_NAK_REMOTE_ACCESS};

		sim_inject(s, 0, &p, &f, sizeof f);
		sim_expect(s, 0, true, 1, IBV_WC_REM_ACCESS_ERR);
		assert_int_equal(s->n[0].qp.why.reason, VB_R_NAK_REMOTE_ACCESS);
		sim_free(s);
	}
}

/* An answer of another length than what is left, or of another kind: nothing of it is written. */
static void answers_that_do_not_fit(void **state)
{
	static const struct {
		enum ibv_wr_opcode op;
		uint32_t asked;
		uint8_t opcode;
		uint32_t len;
	} rows[] = {
	    {IBV_WR_RDMA_READ, 8, VB_RC_READ_RESP_ONLY, 4},
	    {IBV_WR_RDMA_READ, 8, VB_RC_READ_RESP_ONLY, 12},
	    {IBV_WR_RDMA_READ, 8, VB_RC_READ_RESP_FIRST, 1024},
	    {IBV_WR_RDMA_READ, 2048, VB_RC_READ_RESP_FIRST, 1020},
	    {IBV_WR_RDMA_READ, 8, VB_RC_ATOMIC_ACK, 0},
	    {IBV_WR_ATOMIC_FETCH_AND_ADD, 8, VB_RC_READ_RESP_ONLY, 8},
	    {IBV_WR_SEND, 8, VB_RC_ATOMIC_ACK, 0},
	    {IBV_WR_RDMA_WRITE, 8, VB_RC_READ_RESP_ONLY, 8},
	};

	(void)state;
	for (unsigned i = 0; i < sizeof rows / sizeof *rows; i++) {
		struct sim *s = unanswered(rows[i].op, rows[i].asked);
		struct vb_pkt p = {.opcode = rows[i].opcode, .psn = 100, .syndrome = VB_AETH_ACK};
		uint8_t bytes[1024] = {0};

		sim_inject(s, 0, &p, bytes, rows[i].len);
		assert_int_equal(s->n[0].qp.why.reason, VB_R_RESPONSE_BAD);
		sim_expect(s, 0, true, 1, (enum ibv_wc_status)vb_reasons[VB_R_RESPONSE_BAD].local_wc);
		not_written(s);
		sim_free(s);
	}
}

/* retry_cnt 0: also what a NAK tells at once is not sent again. */
static void no_retries(void **state)
{
	struct sim *s = sim_desk(CFG(.retry_cnt = 0));

	(void)state;
	sim_take(s, 1, 0, 8);
	sim_take(s, 1, 0, 8);
	sim_drop(s, 0, VB_RC_SEND_ONLY, 0);
	sim_op(s, 0, IBV_WR_SEND, 0, 8, 0);
	sim_op(s, 0, IBV_WR_SEND, 0, 8, 0);
	sim_settle(s);
	assert_int_equal(sim_count(s, 0, VB_RC_SEND_ONLY), 2);
	sim_expect(s, 0, true, 3, IBV_WC_RETRY_EXC_ERR);
	sim_free(s);
}

/* The codes of both timers at their ends: 0 of the one is for ever, 0 of the other the longest. */
static void timer_codes(void **state)
{
	struct sim *s = unanswered(IBV_WR_SEND, 8);

	(void)state;
	assert_int_equal(vb_rc_ack_timeout(0), VB_NEVER);
	assert_int_equal(vb_rc_ack_timeout(1), 8192);
	assert_int_equal(vb_rc_ack_timeout(31), 4096ull << 31);
	assert_int_equal(sim_count(s, 0, VB_RC_SEND_ONLY), 1); /* for ever: never again */
	sim_free(s);
	assert_int_equal(vb_rc_rnr_delay(0), 655360 * VB_USEC);
	assert_int_equal(vb_rc_rnr_delay(1), 10 * VB_USEC);
	assert_int_equal(vb_rc_rnr_delay(31), 491520 * VB_USEC);
}

/* rule 12: half of the PSNs may be outstanding.  A READ of 2^31 bytes in packets of 256 takes as many. */
static void the_psn_window(void **state)
{
	struct sim *s = sim_desk(CFG(.mtu = 256, .timeout = 0));
	struct vb_key_spec nothing = {
	    .kind = VB_KEY_NULL, .pd = s->n[0].pd.id, .access = IBV_ACCESS_LOCAL_WRITE, .length = UINT64_MAX};
	struct ibv_sge e;
	struct ibv_send_wr wr = sim_wr(s, 0, IBV_WR_RDMA_READ, 0, 8, 0, &e);

	(void)state;
	sim_drop(s, 0, SIM_ANY, SIM_ALWAYS);
	e = (struct ibv_sge){0, VB_MAX_MSG, vb_key_publish(&s->n[0].keys, &nothing)};
	assert_int_equal(sim_send(s, 0, &wr), 0);
	sim_settle(s);
	assert_int_equal(sim_count(s, 0, VB_RC_READ_REQUEST), 1);
	wr.wr_id++;
	assert_int_equal(sim_send(s, 0, &wr), 0);
	sim_op(s, 0, IBV_WR_SEND, 0, 8, 0);
	sim_settle(s);
	assert_int_equal(s->packets, 1);
	sim_free(s);
}

/* Of requests that are posted together as many go as the window has room for. */
static void the_psn_window_ends_a_list(void **state)
{
	enum { LIST = 6, ROOM = 3, WINDOW = 0x7fffff }; /* half of all PSNs */
	struct sim *s = sim_desk(CFG(.mtu = 256, .timeout = 0));
	struct vb_key_spec nothing = {
	    .kind = VB_KEY_NULL, .pd = s->n[0].pd.id, .access = IBV_ACCESS_LOCAL_WRITE, .length = UINT64_MAX};
	struct ibv_sge e[LIST];
	struct ibv_send_wr wr[LIST] = {sim_wr(s, 0, IBV_WR_RDMA_READ, 0, 8, 0, &e[0])};

	(void)state;
	sim_drop(s, 0, SIM_ANY, SIM_ALWAYS);
	e[0] = (struct ibv_sge){0, (WINDOW - ROOM) * 256u, vb_key_publish(&s->n[0].keys, &nothing)};
	assert_int_equal(sim_send(s, 0, wr), 0);
	sim_settle(s);
	for (unsigned i = 0; i < LIST; i++) {
		wr[i] = sim_wr(s, 0, IBV_WR_SEND, 0, 8, 0, &e[i]);
		wr[i].next = i < LIST - 1 ? &wr[i + 1] : NULL;
	}
	assert_int_equal(sim_send(s, 0, wr), 0);
	sim_settle(s);
	assert_int_equal(sim_count(s, 0, VB_SEND_ONLY), ROOM);
	sim_free(s);
}

static void post_now(struct sim *s)
{
	sim_op(s, 0, IBV_WR_SEND, 0, 8, 0);
	sim_run_for(s, 1);
}

/* On a network posts wait for one another while many are in flight, and leave with the ACK at the latest. */
static void many_leave_together(void **state)
{
	enum { AT_ONCE = 8, MORE = 3 }; /* fewer than a quarter of these are none */
	struct sim *s = sim_desk(CFG(.timeout = 14, .rate = 1000000000, .delay = 10000, .queue = 100));
	struct vb_qp *qp = &s->n[0].qp;

	(void)state;
	qp->congestion.together = 64000;
	for (unsigned i = 0; i < AT_ONCE + MORE; i++)
		sim_take(s, 1, 64, 8);
	for (unsigned i = 0; i < AT_ONCE; i++)
		post_now(s);
	assert_int_equal(qp->req.next, AT_ONCE);
	post_now(s);
	assert_int_equal(qp->req.next, AT_ONCE); /* it waits */
	post_now(s);
	assert_int_equal(qp->req.next, AT_ONCE + 2);
	post_now(s);
	assert_int_equal(qp->req.next, AT_ONCE + 2);
	sim_settle(s);
	assert_int_equal(qp->req.next, AT_ONCE + MORE);
	sim_free(s);
}

/* What has left together is waited for like what left by itself, and goes again. */
static void a_list_that_is_lost_goes_again(void **state)
{
	enum { LIST = 3 };
	struct sim *s = sim_desk(CFG(.timeout = 10));
	struct vb_qp *qp = &s->n[0].qp;
	uint64_t r = sim_take(s, 1, 64, 8), id = sim_op(s, 0, IBV_WR_SEND, 0, 8, 0);
	struct ibv_send_wr wr[LIST];
	struct ibv_sge e[LIST];

	(void)state;
	sim_settle(s);
	sim_expect(s, 0, true, id, OK);
	sim_expect(s, 1, false, r, OK);
	assert_true(qp->req.deadline == VB_NEVER); /* nothing is waited for */
	for (unsigned i = 0; i < LIST; i++) {
		sim_take(s, 1, 64, 8);
		wr[i] = sim_wr(s, 0, IBV_WR_SEND, 0, 8, 0, &e[i]);
		if (i)
			wr[i - 1].next = &wr[i];
	}
	for (unsigned i = 0; i < LIST; i++)
		sim_drop(s, 0, VB_SEND_ONLY, i + 1);
	assert_int_equal(sim_send(s, 0, wr), 0);
	sim_run_for(s, 1);
	assert_int_equal(s->lists, qp->path.out->brief ? 1 : 0);
	assert_int_equal(qp->req.mark, qp->path.out->ops->mark(qp->path.out));
	sim_settle(s);
	for (unsigned i = 0; i < LIST; i++)
		sim_expect(s, 0, true, wr[i].wr_id, OK);
	assert_int_equal(sim_count(s, 0, VB_SEND_ONLY), 1 + 2 * LIST);
	sim_free(s);
}

/* What has come and is not acknowledged yet is so before the QP stops answering. */
static void the_last_word(void **state)
{
	unsigned owed = 0;

	(void)state;
	for (uint64_t seed = 1; seed <= 20; seed++) {
		struct sim *s = sim_desk(CFG(.seed = seed, .lazy_acks = true, .retry_cnt = 1));
		uint64_t r = sim_take(s, 1, 0, 8), id = sim_op(s, 0, IBV_WR_SEND, 0, 8, 0);

		while (s->n[1].qp.resp.msn == 0)
			assert_true(sim_step(s));
		owed += s->n[1].qp.resp.ack_owed;
		sim_modify(s, 1, IBV_QPS_ERR);
		sim_settle(s);
		sim_expect(s, 1, false, r, OK);
		sim_expect(s, 0, true, id, OK);
		sim_free(s);
	}
	assert_true(owed > 0); /* else nothing was tried */
}

int main(void)
{
	const struct CMUnitTest tests[] = {
	    cmocka_unit_test(ghost_acks),
	    cmocka_unit_test(facts_that_do_not_fit),
	    cmocka_unit_test(answers_that_do_not_fit),
	    cmocka_unit_test(no_retries),
	    cmocka_unit_test(timer_codes),
	    cmocka_unit_test(the_psn_window),
	    cmocka_unit_test(the_psn_window_ends_a_list),
	    cmocka_unit_test(many_leave_together),
	    cmocka_unit_test(a_list_that_is_lost_goes_again),
	    cmocka_unit_test(the_last_word),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
