/* The requester's rules, 1 to 14: what it sends, when, again, and how its requests end; over each transport
 * to which they apply. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "sim.h"

#define CFG   SIM_CFG
#define QUIET SIM_QUIET
#define OK    IBV_WC_SUCCESS

static void rule_01_rnr_retries_count_down(void **state)
{
	struct sim *s = sim_desk(CFG(.rnr_retry = 2));
	uint64_t a = sim_op(s, 0, IBV_WR_SEND, 0, 8, 0), b = sim_op(s, 0, IBV_WR_SEND, 0, 8, 0);

	(void)state;
	sim_settle(s);
	sim_expect(s, 0, true, a, IBV_WC_RNR_RETRY_EXC_ERR);
	sim_expect(s, 0, true, b, IBV_WC_WR_FLUSH_ERR);
	assert_int_equal(s->n[0].qp.state, IBV_QPS_ERR);
	assert_int_equal(s->n[1].qp.state, IBV_QPS_RTS); /* the responder has done nothing wrong */
	/* the first and two more */
	assert_int_equal(sim_count(s, 1, VB_RC_ACK), 3);
	sim_free(s);
}

static void rule_01_rnr_retry_0_fails_at_once(void **state)
{
	struct sim *s = sim_desk(CFG(.rnr_retry = 0));
	uint64_t a = sim_op(s, 0, IBV_WR_SEND, 0, 8, 0);

	(void)state;
	sim_settle(s);
	sim_expect(s, 0, true, a, IBV_WC_RNR_RETRY_EXC_ERR);
	assert_int_equal(sim_count(s, 0, VB_RC_SEND_ONLY), 1);
	sim_free(s);
}

static void rule_01_rnr_retry_7_is_for_ever(void **state)
{
	struct sim *s = sim_desk(CFG(.rnr_retry = 7, .min_rnr = 10));
	uint64_t a = sim_op(s, 0, IBV_WR_SEND, 0, 8, 0), r;

	(void)state;
	sim_run_for(s, 100 * VB_MSEC);
	sim_expect_none(s, 0);
	assert_true(sim_count(s, 0, VB_RC_SEND_ONLY) > 100);
	r = sim_take(s, 1, 64, 8);
	sim_settle(s);
	sim_expect(s, 0, true, a, OK);
	sim_expect(s, 1, false, r, OK);
	sim_free(s);
}

/* The count is of one request: progress fills it up again. */
static void rule_01_rnr_count_starts_again(void **state)
{
	struct sim *s = sim_desk(CFG(.rnr_retry = 2, .min_rnr = 14 /* 1 ms */));

	(void)state;
	for (int i = 0; i < 5; i++) {
		uint64_t a = sim_op(s, 0, IBV_WR_SEND, 0, 8, 0), r;

		sim_run_for(s, 3 * VB_MSEC / 2); /* one retry used up */
		r = sim_take(s, 1, 64, 8);
		sim_settle(s);
		sim_expect(s, 0, true, a, OK);
		sim_expect(s, 1, false, r, OK);
	}
	sim_free(s);
}

/* A receiver on this host has used up what it posted: until its program has had time to fetch and to post
 * again the message is asked for, and no retry counts; for each message anew. */
static void rule_01_used_up_is_only_slow(void **state)
{
	static const enum ibv_wr_opcode ops[] = {IBV_WR_SEND, IBV_WR_RDMA_WRITE_WITH_IMM};

	(void)state;
	for (unsigned i = 0; i < 16; i++) {
		uint32_t len = i & 2 ? 3000 : 8; /* three packets, one */
		bool fetches = i & 4;		 /* before it posts again: none of its completions is left */
		struct sim *s =
		    sim_desk(CFG(.local = true, .srq = i & 8, .rnr_retry = 0, .min_rnr = 20 /* 10 ms */));
		uint64_t r = sim_take(s, 1, 8192, 4096), a = sim_op(s, 0, ops[i & 1], 0, len, 4096);

		for (unsigned k = 0; k < 4; k++) {
			uint64_t next = sim_op(s, 0, ops[i & 1], 0, len, 4096), again;

			sim_run_for(s, 9 * VB_MSEC);
			sim_expect(s, 0, true, a, OK);
			sim_expect_none(s, 0);
			if (fetches)
				sim_expect(s, 1, false, r, OK);
			sim_run_for(s, 9 * VB_MSEC);
			assert_int_equal(s->n[0].qp.state, IBV_QPS_RTS);
			again = sim_take(s, 1, 8192, 4096);
			sim_run_for(s, 3 * VB_MSEC / 2); /* it is asked more often than the RNR timer says */
			if (!fetches)
				sim_expect(s, 1, false, r, OK);
			a = next;
			r = again;
		}
		sim_settle(s);
		sim_expect(s, 0, true, a, OK);
		sim_expect(s, 1, false, r, OK);
		sim_free(s);
	}
}

/* For 20 ms, and no longer; then retries count as of any that is not ready.  Asked is a few times. */
static void rule_01_used_up_for_20_ms(void **state)
{
	const uint64_t slow = 20 * VB_MSEC, wait = vb_rc_rnr_delay(20);

	(void)state;
	for (uint8_t retries = 0; retries < 3; retries++) {
		for (unsigned min_rnr = 1; min_rnr <= 20; min_rnr += 19) {
			struct sim *s =
			    sim_desk(CFG(.local = true, .rnr_retry = retries, .min_rnr = (uint8_t)min_rnr));
			uint64_t began, ends = slow + (min_rnr == 20 ? retries * wait : 0);
			uint64_t r = sim_take(s, 1, 64, 8), a = sim_op(s, 0, IBV_WR_SEND, 0, 8, 0), b;

			sim_settle(s);
			sim_expect(s, 0, true, a, OK);
			sim_expect(s, 1, false, r, OK);
			began = s->now;
			b = sim_op(s, 0, IBV_WR_SEND, 0, 8, 0);
			sim_run_for(s, slow - 1);
			sim_expect_none(s, 0);
			sim_settle(s);
			sim_expect(s, 0, true, b, IBV_WC_RNR_RETRY_EXC_ERR);
			assert_in_range(s->now - began, ends, ends + VB_MSEC);
			if (min_rnr == 20) /* no more often than every millisecond, after the first few */
				assert_in_range(sim_count(s, 0, VB_RC_SEND_ONLY), 20, 30 + retries);
			else /* as often as the receiver wants it */
				assert_true(sim_count(s, 0, VB_RC_SEND_ONLY) > 1000);
			sim_free(s);
		}
	}
}

/* A receiver that has posted nothing is not ready, and one on a network may be asked no more than it said. */
static void rule_01_used_up_is_not_for_all(void **state)
{
	(void)state;
	for (unsigned local = 0; local < 2; local++) {
		struct sim *s = sim_desk(CFG(.local = local, .rnr_retry = 0));
		uint64_t began = s->now, a, b;

		if (!local) {
			sim_take(s, 1, 64, 8);
			a = sim_op(s, 0, IBV_WR_SEND, 0, 8, 0);
			sim_settle(s);
			sim_expect(s, 0, true, a, OK);
		}
		b = sim_op(s, 0, IBV_WR_SEND, 0, 8, 0);
		sim_settle(s);
		sim_expect(s, 0, true, b, IBV_WC_RNR_RETRY_EXC_ERR);
		assert_true(s->now - began < VB_MSEC);
		assert_int_equal(sim_find(s, 1, VB_RC_ACK, sim_count(s, 1, VB_RC_ACK) - 1)->p.syndrome,
				 VB_AETH_RNR | s->cfg.min_rnr);
		sim_free(s);
	}
}

/* What a stranger says of itself counts for nothing. */
static void rule_01_used_up_is_said_by_peers_only(void **state)
{
	struct sim *s = sim_desk(CFG(.rnr_retry = 0));
	struct vb_pkt p = {.opcode = VB_RC_ACK, .syndrome = VB_AETH_RNR | VB_AETH_USED_UP | 1};
	uint64_t a;

	(void)state;
	sim_drop(s, 0, VB_RC_SEND_ONLY, 0);
	a = sim_op(s, 0, IBV_WR_SEND, 0, 8, 0);
	sim_run_for(s, 500);
	p.psn = s->n[0].qp.req.psn_una;
	sim_inject(s, 0, &p, NULL, 0);
	sim_expect(s, 0, true, a, IBV_WC_RNR_RETRY_EXC_ERR);
	sim_free(s);
}

/* Within a host an atomic is not ready while another process's memory is on its way: no receive is missing.
 */
static void rule_01_rnr_of_an_atomic_is_not_counted(void **state)
{
	(void)state;
	for (int local = 0; local < 2; local++) {
		struct sim *s = sim_desk(CFG(.rnr_retry = 0, .local = local));
		struct vb_pkt p = {.opcode = VB_RC_ACK, .syndrome = VB_AETH_RNR | 1};
		uint64_t a;

		sim_drop(s, 0, VB_RC_FETCH_ADD, 0);
		a = sim_op(s, 0, IBV_WR_ATOMIC_FETCH_AND_ADD, 0, 8, 64);
		sim_run_for(s, 500);
		assert_int_equal(sim_count(s, 0, VB_RC_FETCH_ADD), 1);
		p.psn = s->n[0].qp.req.psn_una;
		sim_inject(s, 0, &p, NULL, 0);
		assert_int_equal(s->n[0].qp.req.waiting_rnr, local);
		sim_settle(s);
		sim_expect(s, 0, true, a, local ? OK : IBV_WC_RNR_RETRY_EXC_ERR);
		sim_free(s);
	}
}

static void rule_02_rnr_wait_is_waited_out(void **state)
{
	/* an ACK timeout of 16 us, an RNR wait of 10.24 ms */
	struct sim *s = sim_desk(CFG(.timeout = 2, .min_rnr = 20));
	uint64_t began = s->now, wait = vb_rc_rnr_delay(20);
	const struct sim_seen *again;

	(void)state;
	assert_int_equal(wait, 10240 * VB_USEC);
	sim_op(s, 0, IBV_WR_SEND, 0, 8, 0);
	for (int i = 0; i < 9; i++) { /* new posts and due ACK timers do not restart the queue */
		sim_run_for(s, VB_MSEC);
		sim_op(s, 0, IBV_WR_RDMA_WRITE, 0, 8, 0);
		assert_int_equal(s->seen, 2);
	}
	sim_take(s, 1, 64, 8);
	sim_settle(s);
	again = sim_find(s, 0, VB_RC_SEND_ONLY, 1);
	assert_non_null(again);
	assert_true(again->when >= began + wait && again->when < began + wait + VB_MSEC);
	for (uint64_t i = 1; i <= 10; i++)
		sim_expect(s, 0, true, i, OK);
	sim_free(s);
}

/* What the receiver was not ready for is asked again by the oldest request alone: what stands behind it would
 * be sent in vain each time.  Once that is taken all goes on as before. */
static void rule_02_the_oldest_asks_again(void **state)
{
	enum { MANY = 5, WAITS = 4 };
	struct sim *s = sim_desk(CFG(.min_rnr = 14 /* 1 ms */));
	struct vb_qp *qp = &s->n[0].qp;
	uint64_t first[MANY];
	unsigned sent;

	(void)state;
	for (int i = 0; i < MANY; i++)
		first[i] = sim_op(s, 0, IBV_WR_SEND, 0, 8, 0);
	sim_run_for(s, WAITS * vb_rc_rnr_delay(14) + VB_MSEC / 2);
	assert_int_equal(sim_count(s, 0, VB_RC_SEND_ONLY), MANY + WAITS);
	while (sim_count(s, 0, VB_RC_SEND_ONLY) == MANY + WAITS)
		sim_run_for(s, 50);
	vb_lock_take(&qp->lock);
	assert_int_equal(qp->transport->owes(qp), VB_OWES_NOTHING); /* until it is answered */
	vb_lock_give(&qp->lock);
	for (int i = 0; i < MANY; i++)
		sim_take(s, 1, 64, 8);
	sim_settle(s);
	assert_int_equal(sim_count(s, 0, VB_RC_SEND_ONLY), MANY + WAITS + MANY);
	for (int i = 0; i < MANY; i++) {
		sim_expect(s, 0, true, first[i], OK);
		sim_take(s, 1, 64, 8);
	}
	sent = sim_count(s, 0, VB_RC_SEND_ONLY);
	sim_drop(s, 1, SIM_ANY, SIM_ALWAYS);
	for (int i = 0; i < MANY; i++)
		sim_op(s, 0, IBV_WR_SEND, 0, 8, 0);
	sim_run_for(s, 1); /* no answer is here, and none was waited for */
	assert_int_equal(sim_count(s, 0, VB_RC_SEND_ONLY), sent + MANY);
	sim_free(s);
}

/* However often it has asked. */
static void rule_02_it_asks_alone_for_ever(void **state)
{
	enum { MANY = 5, OFTEN = 600 };
	struct sim *s = sim_desk(CFG(.min_rnr = 1 /* 10 us */));

	(void)state;
	for (int i = 0; i < MANY; i++)
		sim_op(s, 0, IBV_WR_SEND, 0, 8, 0);
	while (sim_count(s, 0, VB_RC_SEND_ONLY) < OFTEN)
		sim_run_for(s, VB_USEC);
	assert_in_range(sim_count(s, 1, VB_RC_ACK), OFTEN - MANY, OFTEN - MANY + 1); /* each was answered */
	sim_free(s);
}

static void rule_02_rnr_wait_survives_other_packets(void **state)
{
	struct sim *s = sim_desk(CFG(.timeout = 2, .min_rnr = 20));
	struct vb_pkt ack = {.opcode = VB_RC_ACK, .psn = 99, .syndrome = VB_AETH_ACK};

	(void)state;
	sim_op(s, 0, IBV_WR_SEND, 0, 8, 0);
	sim_run_for(s, VB_MSEC);
	sim_inject(s, 0, &ack, NULL, 0); /* an old ACK */
	if (sim_as != SIM_AS_XRC) {
		sim_op(s, 1, IBV_WR_RDMA_WRITE, 0, 8, 0); /* and requests of the other direction */
		sim_run_for(s, VB_MSEC);
		sim_expect(s, 1, true, 2, OK);
	}
	assert_int_equal(sim_count(s, 0, VB_RC_SEND_ONLY), 1);
	sim_free(s);
}

static void rule_03_first_retry_at_once_later_by_timeout(void **state)
{
	struct sim *s = sim_desk(CFG(.mtu = 256, .timeout = 10)); /* 4.2 ms */
	uint64_t a, began = s->now;

	(void)state;
	sim_fill(s, 4096);
	sim_drop(s, 0, VB_RC_WRITE_MIDDLE, 1); /* the third packet, */
	sim_drop(s, 0, VB_RC_WRITE_MIDDLE, 4); /* and so when it is sent again */
	a = sim_op(s, 0, IBV_WR_RDMA_WRITE, 0, 1536, 8192);
	sim_run_for(s, VB_MSEC); /* 6 packets; NAK; 4 again (2 MIDDLE...) */
	/* gone back once, on the NAK; the second loss waits for the timer */
	assert_int_equal(sim_count(s, 1, VB_RC_ACK), 1);
	assert_int_equal(sim_find(s, 1, VB_RC_ACK, 0)->p.syndrome, VB_AETH_NAK_PSN);
	assert_int_equal(sim_count(s, 0, VB_RC_WRITE_LAST), 2);
	sim_expect_none(s, 0);
	sim_settle(s);
	sim_expect(s, 0, true, a, OK);
	assert_int_equal(sim_count(s, 0, VB_RC_WRITE_LAST), 3);
	assert_true(s->now - began >= vb_rc_ack_timeout(10));
	assert_memory_equal(s->mem[1] + 8192, s->mem[0], 1536);
	sim_free(s);
}

/* A NAK acknowledges what is before it. */
static void rule_03_acks_count_while_a_retry_is_scheduled(void **state)
{
	struct sim *s = sim_desk(QUIET);
	uint64_t ids[4];

	(void)state;
	sim_drop(s, 0, VB_RC_WRITE_ONLY, 2);
	sim_drop(s, 1, VB_RC_ACK, 0);
	for (int i = 0; i < 4; i++)
		ids[i] = sim_op(s, 0, IBV_WR_RDMA_WRITE, 0, 8, 8);
	sim_settle(s);
	for (int i = 0; i < 4; i++)
		sim_expect(s, 0, true, ids[i], OK);
	sim_free(s);
}

/* Where what was lost has come, by whatever way it is taken in, the next loss is told of as well. */
static void rule_03_each_loss_is_nakked(void **state)
{
	struct sim *s = sim_desk(QUIET);
	uint32_t naks = 0;

	(void)state;
	for (uint32_t i = 0; i < 2; i++) {
		sim_drop(s, 0, VB_RC_SEND_ONLY, 6 * i); /* the first of three, which are all sent again */
		for (uint32_t k = 0; k < 3; k++) {
			sim_take(s, 1, 4096, 64);
			sim_op(s, 0, IBV_WR_SEND, 0, 8, 0);
		}
		sim_settle(s);
	}
	assert_int_equal(sim_count(s, 0, VB_RC_SEND_ONLY), 12);
	for (uint32_t i = 0; i < sim_count(s, 1, VB_RC_ACK); i++)
		naks += sim_find(s, 1, VB_RC_ACK, i)->p.syndrome == VB_AETH_NAK_PSN;
	assert_int_equal(naks, 2);
	sim_free(s);
}

/* rule 4: an ACK of a later PSN does not answer a READ; it says that its answer was lost */
static void rule_04_implied_nak_for_a_read(void **state)
{
	struct sim *s = sim_desk(CFG(.timeout = 20 /* 4 s */));
	uint64_t r, w, began = s->now;

	(void)state;
	sim_fill(s, 4096);
	sim_drop(s, 1, VB_RC_READ_RESP_ONLY, 0);
	r = sim_op(s, 0, IBV_WR_RDMA_READ, 8192, 512, 0);
	w = sim_op(s, 0, IBV_WR_RDMA_WRITE, 0, 8, 16384);
	sim_settle(s);
	sim_expect(s, 0, true, r, OK);
	sim_expect(s, 0, true, w, OK);
	assert_memory_equal(s->mem[0] + 8192, s->mem[1], 512);
	assert_int_equal(sim_count(s, 0, VB_RC_READ_REQUEST), 2);
	assert_true(s->now - began < VB_SEC); /* not by timeout */
	sim_free(s);
}

static void rule_04_implied_nak_for_an_atomic(void **state)
{
	struct sim *s = sim_desk(CFG(.timeout = 20));
	uint64_t f, w, began = s->now;

	(void)state;
	sim_drop(s, 1, VB_RC_ATOMIC_ACK, 0);
	f = sim_op(s, 0, IBV_WR_ATOMIC_FETCH_AND_ADD, 0, 8, 0);
	w = sim_op(s, 0, IBV_WR_RDMA_WRITE, 0, 8, 64);
	sim_settle(s);
	sim_expect(s, 0, true, f, OK);
	sim_expect(s, 0, true, w, OK);
	assert_int_equal(*(uint64_t *)(void *)s->mem[1], 1); /* rule 17: once */
	assert_true(s->now - began < VB_SEC);
	sim_free(s);
}

/* Loses one packet of a READ's answer, each in turn, and looks at what is asked for again. */
static void rule_05_partial_read_resumes(void **state)
{
	enum { MTU = 256, LEN = 5 * MTU + 100 };

	(void)state;
	for (unsigned lost = 0; lost < 6; lost++) {
		struct sim *s = sim_desk(CFG(.mtu = MTU));
		const struct sim_seen *again;
		uint64_t r;

		sim_fill(s, 8192);
		if (lost == 0)
			sim_drop(s, 1, VB_RC_READ_RESP_FIRST, 0);
		else if (lost == 5)
			sim_drop(s, 1, VB_RC_READ_RESP_LAST, 0);
		else
			sim_drop(s, 1, VB_RC_READ_RESP_MIDDLE, lost - 1);
		r = sim_op(s, 0, IBV_WR_RDMA_READ, 8192, LEN, 16);
		sim_settle(s);
		assert_int_equal(sim_expect(s, 0, true, r, OK).byte_len, LEN);
		assert_memory_equal(s->mem[0] + 8192, s->mem[1] + 16, LEN);
		again = sim_find(s, 0, VB_RC_READ_REQUEST, 1);
		assert_non_null(again);
		assert_int_equal(again->p.psn, 100 + lost);
		assert_int_equal(again->p.va, (uintptr_t)s->mem[1] + 16 + lost * MTU);
		assert_int_equal(again->p.dma_len, LEN - lost * MTU);
		assert_int_equal(sim_count(s, 0, VB_RC_READ_REQUEST), 2);
		/* what came already is not sent again */
		assert_int_equal(
		    sim_count(s, 1, VB_RC_READ_RESP_ONLY) + sim_count(s, 1, VB_RC_READ_RESP_LAST), 2);
		sim_free(s);
	}
}

static void rule_06_write_resends_without_reth(void **state)
{
	enum { MTU = 256, LEN = 6 * MTU };
	struct sim *s = sim_desk(CFG(.mtu = MTU));
	const struct sim_seen *first;
	uint64_t a;

	(void)state;
	sim_fill(s, 8192);
	sim_drop(s, 0, VB_RC_WRITE_MIDDLE, 2);
	a = sim_op(s, 0, IBV_WR_RDMA_WRITE, 0, LEN, 8192);
	sim_settle(s);
	sim_expect(s, 0, true, a, OK);
	assert_memory_equal(s->mem[1] + 8192, s->mem[0], LEN);
	assert_int_equal(s->mem[1][8192 + LEN], 0);
	assert_int_equal(sim_count(s, 0, VB_RC_WRITE_FIRST), 1);
	first = sim_find(s, 0, VB_RC_WRITE_FIRST, 0);
	assert_int_equal(first->p.va, (uintptr_t)s->mem[1] + 8192);
	assert_int_equal(first->p.dma_len, LEN);
	sim_free(s);
}

/* All packets and then the ACK are lost: the whole request again, the same RETH. */
static void rule_06_write_from_the_start_keeps_its_address(void **state)
{
	enum { MTU = 256, LEN = 3 * MTU };
	struct sim *s = sim_desk(CFG(.mtu = MTU));
	uint64_t a;

	(void)state;
	sim_fill(s, 8192);
	sim_drop(s, 0, VB_RC_WRITE_FIRST, 0);
	sim_drop(s, 0, VB_RC_WRITE_MIDDLE, 0);
	sim_drop(s, 0, VB_RC_WRITE_LAST, 0);
	a = sim_op(s, 0, IBV_WR_RDMA_WRITE, 0, LEN, 8192);
	sim_settle(s);
	sim_expect(s, 0, true, a, OK);
	assert_memory_equal(s->mem[1] + 8192, s->mem[0], LEN);
	assert_int_equal(sim_count(s, 0, VB_RC_WRITE_FIRST), 2);
	for (unsigned i = 0; i < 2; i++) {
		assert_int_equal(sim_find(s, 0, VB_RC_WRITE_FIRST, i)->p.va, (uintptr_t)s->mem[1] + 8192);
		assert_int_equal(sim_find(s, 0, VB_RC_WRITE_FIRST, i)->p.dma_len, LEN);
	}
	sim_free(s);
}

/* The gather list's position is right again after a step back, wherever it happens, and when the wire is
 * full. */
static void rule_07_gather_position_is_restored(void **state)
{
	enum { MTU = 256, LEN = 100 + 700 + 1 + 479 };

	(void)state;
	for (unsigned lost = 0; lost < 5; lost++) {
		struct sim *s = sim_desk(CFG(.mtu = MTU, .room = 4));
		struct ibv_sge e[4];
		uint8_t want[LEN];
		struct ibv_send_wr wr = sim_wr(s, 0, IBV_WR_SEND, 0, 0, 0, e);
		uint64_t r;

		sim_fill(s, 8192);
		e[0] = (struct ibv_sge){(uintptr_t)s->mem[0] + 5, 100, s->lkey[0]};
		e[1] = (struct ibv_sge){(uintptr_t)s->mem[0] + 1000, 700, s->lkey[0]};
		e[2] = (struct ibv_sge){(uintptr_t)s->mem[0] + 3, 1, s->lkey[0]};
		e[3] = (struct ibv_sge){(uintptr_t)s->mem[0] + 3000, 479, s->lkey[0]};
		wr.num_sge = 4;
		memcpy(want, s->mem[0] + 5, 100);
		memcpy(want + 100, s->mem[0] + 1000, 700);
		want[800] = s->mem[0][3];
		memcpy(want + 801, s->mem[0] + 3000, 479);
		r = sim_take(s, 1, 16384, LEN);
		if (lost == 0)
			sim_drop(s, 0, VB_RC_SEND_FIRST, 0);
		else if (lost == 4)
			sim_drop(s, 0, VB_RC_SEND_LAST, 0);
		else
			sim_drop(s, 0, VB_RC_SEND_MIDDLE, lost - 1);
		assert_int_equal(sim_send(s, 0, &wr), 0);
		sim_settle(s);
		sim_expect(s, 0, true, wr.wr_id, OK);
		assert_int_equal(sim_expect(s, 1, false, r, OK).byte_len, LEN);
		assert_memory_equal(s->mem[1] + 16384, want, LEN);
		sim_free(s);
	}
}

/* The region goes away in the middle of a READ's answer. */
static enum sim_verdict lose_third_answer(struct sim *s, unsigned from, const struct vb_pkt *p)
{
	(void)p;
	if (from == 1 && ++s->counter == 3)
		return SIM_DROP;
	return SIM_PASS;
}

static void rule_08_nak_within_a_read_answer(void **state)
{
	enum { MTU = 256, LEN = 6 * MTU };
	struct sim *s = sim_desk(CFG(.mtu = MTU, .timeout = 6));
	struct ibv_sge e;
	struct ibv_send_wr wr;
	uint64_t packets;
	uint32_t k;

	(void)state;
	sim_fill(s, 8192);
	s->filter = lose_third_answer;
	k = sim_reg(s, 1, s->mem[1], LEN, IBV_ACCESS_REMOTE_READ);
	wr = sim_wr(s, 0, IBV_WR_RDMA_READ, 8192, LEN, 0, &e);
	wr.wr.rdma.rkey = sim_rkey(k);
	assert_int_equal(sim_send(s, 0, &wr), 0);
	while (s->counter < 3)
		assert_true(sim_step(s)); /* two answers are under way, the third is lost */
	vb_key_retract(&s->n[1].keys, k);
	vb_key_give(&s->n[1].keys, k);
	sim_settle(s); /* the rest is asked for again and refused */
	sim_expect(s, 0, true, wr.wr_id, IBV_WC_REM_ACCESS_ERR);
	sim_expect_none(s, 0);
	assert_int_equal(s->n[0].qp.state, IBV_QPS_ERR);
	assert_int_equal(s->n[1].qp.state, IBV_QPS_ERR);
	packets = s->packets;
	sim_run_for(s, VB_SEC); /* and it stops */
	assert_int_equal(s->packets, packets);
	assert_memory_equal(s->mem[0] + 8192, s->mem[1], 2 * MTU);
	sim_free(s);
}

static void rule_09_fence_waits_for_fetches_only(void **state)
{
	struct sim *s = sim_desk(QUIET);
	struct ibv_sge e;
	struct ibv_send_wr wr;
	uint64_t answered, sent;

	(void)state;
	/* an atomic, then a fenced WRITE: waits for the answer */
	sim_op(s, 0, IBV_WR_ATOMIC_FETCH_AND_ADD, 0, 8, 0);
	sim_op(s, 0, IBV_WR_RDMA_READ, 64, 8, 0);
	wr = sim_wr(s, 0, IBV_WR_RDMA_WRITE, 128, 8, 128, &e);
	wr.send_flags |= IBV_SEND_FENCE;
	assert_int_equal(sim_send(s, 0, &wr), 0);
	sim_op(s, 0, IBV_WR_RDMA_WRITE, 136, 8, 136);
	sim_settle(s);
	for (uint64_t i = 1; i <= 4; i++)
		sim_expect(s, 0, true, i, OK);
	answered = sim_find(s, 1, VB_RC_READ_RESP_ONLY, 0)->when + 1000; /* the wire's delay */
	sent = sim_find(s, 0, VB_RC_WRITE_ONLY, 0)->when;
	assert_int_equal(sent, answered);
	/* a WRITE, then a fenced one, which is brief or is not: does not wait for the ACK */
	for (uint32_t i = 0; i < 2; i++) {
		sim_op(s, 0, IBV_WR_RDMA_WRITE, 0, 8, 0);
		wr = sim_wr(s, 0, IBV_WR_RDMA_WRITE, 128, i ? 256 : 8, 128, &e);
		wr.send_flags |= IBV_SEND_FENCE;
		assert_int_equal(sim_send(s, 0, &wr), 0);
		sim_settle(s);
		assert_int_equal(sim_find(s, 0, VB_RC_WRITE_ONLY, 2 * i + 2)->when,
				 sim_find(s, 0, VB_RC_WRITE_ONLY, 2 * i + 3)->when);
	}
	/* a READ, then an unfenced WRITE: does not wait either */
	sim_op(s, 0, IBV_WR_RDMA_READ, 64, 8, 0);
	sim_op(s, 0, IBV_WR_RDMA_WRITE, 128, 8, 128);
	sim_settle(s);
	assert_int_equal(sim_find(s, 0, VB_RC_READ_REQUEST, 1)->when,
			 sim_find(s, 0, VB_RC_WRITE_ONLY, 6)->when);
	sim_free(s);
}

static void rule_10_every_request_ends(void **state)
{
	enum ibv_wr_opcode op = sim_as == SIM_AS_UD ? IBV_WR_SEND : IBV_WR_RDMA_WRITE;
	struct sim *s = sim_desk(QUIET);
	struct ibv_sge e;
	struct ibv_send_wr wr;

	(void)state;
	sim_op(s, 0, op, 0, 8, 0);
	for (int i = 0; i < 2; i++) { /* two wrong ones */
		wr = sim_wr(s, 0, op, 0, 8, 0, &e);
		e.lkey ^= 1;
		wr.send_flags = 0;
		assert_int_equal(sim_send(s, 0, &wr), 0);
	}
	sim_op(s, 0, sim_acked() ? IBV_WR_RDMA_READ : IBV_WR_SEND, 0, 8, 0);
	sim_settle(s);
	sim_expect(s, 0, true, 1, OK); /* what went before is not harmed */
	sim_expect(s, 0, true, 2, IBV_WC_LOC_PROT_ERR);
	sim_expect(s, 0, true, 3, IBV_WC_WR_FLUSH_ERR);
	sim_expect(s, 0, true, 4, IBV_WC_WR_FLUSH_ERR);
	assert_int_equal(s->n[0].qp.state, sim_acked() ? IBV_QPS_ERR : IBV_QPS_SQE);
	for (uint64_t i = 5; i < 200; i++) { /* in that state already, more than the queue holds */
		sim_op(s, 0, IBV_WR_SEND, 0, 8, 0);
		sim_expect(s, 0, true, i, IBV_WC_WR_FLUSH_ERR);
	}
	sim_expect_none(s, 0);
	sim_free(s);
}

static void rule_12_psn_wraps(void **state)
{
	static const uint32_t starts[] = {0xfffffd, 0x7ffffd, 0xffffff, 0};

	(void)state;
	for (unsigned k = 0; k < 4; k++) {
		struct sim *s = sim_desk(CFG(.mtu = 256, .psn = {starts[k], starts[3 - k]}));

		sim_fill(s, 8192);
		sim_drop(s, 0, VB_RC_WRITE_MIDDLE, 1);
		sim_drop(s, 1, VB_RC_READ_RESP_MIDDLE, 0);
		sim_drop(s, 1, VB_RC_ATOMIC_ACK, 0);
		sim_op(s, 0, IBV_WR_RDMA_WRITE, 0, 1200, 8192);
		sim_op(s, 0, IBV_WR_RDMA_READ, 16384, 1200, 0);
		sim_op(s, 0, IBV_WR_ATOMIC_FETCH_AND_ADD, 20480, 8, 20480);
		sim_op(s, 0, IBV_WR_ATOMIC_FETCH_AND_ADD, 20488, 8, 20480);
		sim_settle(s);
		for (uint64_t i = 1; i <= 4; i++)
			sim_expect(s, 0, true, i, OK);
		assert_memory_equal(s->mem[1] + 8192, s->mem[0], 1200);
		assert_memory_equal(s->mem[0] + 16384, s->mem[1], 1200);
		assert_int_equal(*(uint64_t *)(void *)(s->mem[1] + 20480), 2);
		assert_int_equal(*(uint64_t *)(void *)(s->mem[0] + 20488), 1);
		assert_int_equal(s->n[0].qp.req.psn, (starts[k] + 5 + 5 + 2) & VB_PSN_MASK);
		sim_free(s);
	}
}

static void rule_12_msn_counts_finished_requests(void **state)
{
	struct sim *s = sim_desk(CFG(.mtu = 256));
	uint32_t last = 0;

	(void)state;
	sim_take(s, 1, 0, 2048);
	sim_op(s, 0, IBV_WR_SEND, 0, 2000, 0);
	sim_op(s, 0, IBV_WR_RDMA_WRITE, 0, 2000, 0);
	sim_op(s, 0, IBV_WR_RDMA_READ, 0, 600, 0);
	sim_op(s, 0, IBV_WR_ATOMIC_FETCH_AND_ADD, 0, 8, 0);
	sim_settle(s);
	assert_int_equal(s->n[1].qp.resp.msn, 4);
	for (uint32_t i = 0; i < s->seen; i++) {
		if (s->trace[i].from != 1 || !(s->trace[i].p.op->bits & VB_OP_AETH))
			continue;
		assert_true(s->trace[i].p.msn >= last && s->trace[i].p.msn <= 4);
		last = s->trace[i].p.msn;
	}
	assert_int_equal(sim_find(s, 1, VB_RC_READ_RESP_FIRST, 0)->p.msn, 3);
	assert_int_equal(sim_find(s, 1, VB_RC_ATOMIC_ACK, 0)->p.msn, 4);
	sim_free(s);
}

/* retry_cnt counts from the last progress: a path that loses most packets but not all gets there, one that
 * lets nothing new through does not, whatever old ACKs come. */
static enum sim_verdict two_of_three(struct sim *s, unsigned from, const struct vb_pkt *p)
{
	(void)p;
	return from == 0 && s->counter++ % 3 != 2 ? SIM_DROP : SIM_PASS;
}

static void rule_12_retries_reset_on_progress(void **state)
{
	struct sim *s = sim_desk(CFG(.retry_cnt = 2, .timeout = 6));

	(void)state;
	s->filter = two_of_three;
	for (uint64_t i = 1; i <= 20; i++) {
		sim_op(s, 0, IBV_WR_RDMA_WRITE, 0, 8, 8);
		sim_settle(s);
		sim_expect(s, 0, true, i, OK);
	}
	sim_free(s);
}

/* Where others fill the wire for long, what is to be sent again waits, and its retries do not run out. */
static void rule_12_what_is_not_sent_costs_no_retry(void **state)
{
	struct sim *s = sim_desk(CFG(.retry_cnt = 1, .timeout = 8)); /* 1 ms */
	uint64_t w;

	(void)state;
	sim_drop(s, 0, VB_RC_WRITE_ONLY, 0);
	w = sim_op(s, 0, IBV_WR_RDMA_WRITE, 0, 8, 8);
	s->n[0].wire.held = s->cfg.room;
	sim_run_for(s, 50 * VB_MSEC);
	sim_expect_none(s, 0);
	s->n[0].wire.held = 0;
	sim_settle(s);
	sim_expect(s, 0, true, w, OK);
	sim_free(s);
}

static void rule_12_old_acks_are_no_progress(void **state)
{
	struct sim *s = sim_desk(CFG(.retry_cnt = 3, .timeout = 8)); /* 1 ms */
	struct vb_pkt old = {.opcode = VB_RC_ACK, .psn = 100, .syndrome = VB_AETH_ACK, .msn = 1};

	(void)state;
	sim_op(s, 0, IBV_WR_RDMA_WRITE, 0, 8, 8);
	sim_settle(s);
	sim_expect(s, 0, true, 1, OK);
	sim_drop(s, 0, SIM_ANY, SIM_ALWAYS);
	sim_op(s, 0, IBV_WR_RDMA_WRITE, 0, 8, 8);
	for (int i = 0; i < 100 && s->n[0].qp.state == IBV_QPS_RTS; i++) {
		sim_run_for(s, VB_MSEC / 4);
		if (s->n[0].qp.state == IBV_QPS_RTS)
			sim_inject(s, 0, &old, NULL, 0);
	}
	sim_expect(s, 0, true, 2, IBV_WC_RETRY_EXC_ERR);
	assert_int_equal(sim_count(s, 0, VB_RC_WRITE_ONLY), 1 + 4);
	sim_free(s);
}

static void rule_13_local_key_faults(void **state)
{
	static const enum ibv_wr_opcode ops[] = {IBV_WR_SEND, IBV_WR_RDMA_WRITE, IBV_WR_RDMA_READ,
						 IBV_WR_ATOMIC_FETCH_AND_ADD};
	unsigned all = sim_acked() ? 4 : sim_as == SIM_AS_UC ? 2 : 1;

	(void)state;
	/* stale key, R_Key as L_Key, range past the end, another PD, and for sinks no LOCAL_WRITE; as the
	 * only SGE and as the second */
	for (unsigned op = 0; op < all; op++) {
		for (unsigned kind = 0; kind < 5; kind++) {
			for (unsigned second = 0; second < 2; second++) {
				struct sim *s = sim_desk(QUIET);
				struct ibv_sge e[2];
				struct ibv_send_wr wr = sim_wr(s, 0, ops[op], 0, 8, 0, e);
				bool fetch = op >= 2;
				uint32_t foreign =
				    vb_key_publish(&s->n[0].keys, &(struct vb_key_spec){.pd = 99,
											.access = 1,
											.iova = e[0].addr,
											.addr = e[0].addr,
											.length = 64});
				uint32_t ro = sim_reg(s, 0, s->mem[0], 64, 0);

				if (second) {
					e[1] = e[0];
					e[0].length = ops[op] == IBV_WR_ATOMIC_FETCH_AND_ADD ? 0 : 8;
					wr.num_sge = 2;
				}
				switch (kind) {
				case 0:
					e[second].lkey ^= 1;
					break;
				case 1:
					e[second].lkey |= VB_KEY_REMOTE;
					break;
				case 2:
					e[second].addr += SIM_MEM - 7;
					break;
				case 3:
					e[second].lkey = foreign; /* rule 21 */
					break;
				default:
					e[second].lkey = ro;
				}
				sim_take(s, 1, 0, 64);
				assert_int_equal(sim_send(s, 0, &wr), 0);
				sim_settle(s);
				sim_expect(s, 0, true, wr.wr_id,
					   kind == 4 && !fetch ? OK : IBV_WC_LOC_PROT_ERR);
				if (kind != 4 || fetch) { /* nothing left this side */
					assert_int_equal(s->packets, 0);
					assert_int_equal(s->n[1].qp.state, IBV_QPS_RTS);
				}
				sim_free(s);
			}
		}
	}
}

static void set_way(struct sim *s, struct vb_out *out)
{
	struct vb_qp *qp = &s->n[0].qp;

	vb_lock_take(&qp->lock);
	qp->transport->path(&qp->path, out);
	vb_lock_give(&qp->lock);
}

/* Nobody is there yet.  An adapter sends all the same, and so finds what is wrong at this end first. */
static void rule_13_without_a_way_out(void **state)
{
	static const enum ibv_wr_opcode ops[] = {IBV_WR_SEND, IBV_WR_RDMA_WRITE, IBV_WR_RDMA_READ,
						 IBV_WR_ATOMIC_FETCH_AND_ADD};

	(void)state;
	for (unsigned op = 0; op < 4; op++) {
		for (unsigned fence = 0; fence < 2; fence++) {
			struct sim *s = sim_desk(QUIET);
			struct ibv_sge e;
			struct ibv_send_wr wr = sim_wr(s, 0, ops[op], 0, 8, 0, &e);

			set_way(s, NULL);
			e.lkey = 0;
			wr.send_flags |= fence ? IBV_SEND_FENCE : 0;
			assert_int_equal(sim_send(s, 0, &wr), 0);
			sim_run_for(s, 1);
			sim_expect(s, 0, true, wr.wr_id, IBV_WC_LOC_PROT_ERR);
			assert_int_equal(s->n[0].qp.state, IBV_QPS_ERR);
			sim_free(s);
		}
	}
}

/* The requests before it end first: with success where the way out comes. */
static void rule_13_without_a_way_out_in_order(void **state)
{
	(void)state;
	for (unsigned late = 0; late < 2; late++) {
		struct sim *s = sim_desk(QUIET);
		struct vb_out *out = s->n[0].qp.path.out;
		struct ibv_sge e;
		struct ibv_send_wr wr;
		uint64_t good;

		set_way(s, NULL);
		good = sim_op(s, 0, IBV_WR_RDMA_WRITE, 0, 8, 0);
		wr = sim_wr(s, 0, IBV_WR_RDMA_WRITE, 0, 8, 0, &e);
		e.lkey = 0;
		assert_int_equal(sim_send(s, 0, &wr), 0);
		sim_run_for(s, VB_MSEC / 2);
		sim_expect_none(s, 0);
		if (late)
			set_way(s, out);
		sim_settle(s);
		sim_expect(s, 0, true, good, late ? OK : IBV_WC_RETRY_EXC_ERR);
		sim_expect(s, 0, true, wr.wr_id, late ? IBV_WC_LOC_PROT_ERR : IBV_WC_WR_FLUSH_ERR);
		sim_free(s);
	}
}

/* In SQD nothing is begun, so nothing is looked at. */
static void rule_13_without_a_way_out_in_sqd(void **state)
{
	struct sim *s = sim_desk(QUIET);
	struct ibv_sge e;
	struct ibv_send_wr wr = sim_wr(s, 0, IBV_WR_SEND, 0, 8, 0, &e);

	(void)state;
	e.lkey = 0;
	set_way(s, NULL);
	sim_modify(s, 0, IBV_QPS_SQD);
	assert_int_equal(sim_send(s, 0, &wr), 0);
	sim_run_for(s, VB_MSEC);
	sim_expect_none(s, 0);
	sim_modify(s, 0, IBV_QPS_RTS);
	sim_run_for(s, 1);
	sim_expect(s, 0, true, wr.wr_id, IBV_WC_LOC_PROT_ERR);
	sim_free(s);
}

/* The sink's region goes away between request and answer. */
static enum sim_verdict retract_sink(struct sim *s, unsigned from, const struct vb_pkt *p)
{
	(void)p;
	if (from == 1) {
		vb_key_retract(&s->n[0].keys, s->counter);
		vb_key_give(&s->n[0].keys, s->counter);
	}
	return SIM_PASS;
}

static void rule_13_sink_checked_when_the_answer_comes(void **state)
{
	static const enum ibv_wr_opcode ops[] = {IBV_WR_RDMA_READ, IBV_WR_ATOMIC_CMP_AND_SWP};

	(void)state;
	for (unsigned i = 0; i < 2; i++) {
		struct sim *s = sim_desk(QUIET);
		struct ibv_sge e;
		struct ibv_send_wr wr = sim_wr(s, 0, ops[i], 0, 8, 8, &e);

		memset(s->mem[1], 0x77, 64);
		e.lkey = sim_reg(s, 0, s->mem[0], 64, IBV_ACCESS_LOCAL_WRITE);
		s->counter = e.lkey;
		s->filter = retract_sink;
		assert_int_equal(sim_send(s, 0, &wr), 0);
		sim_settle(s);
		sim_expect(s, 0, true, wr.wr_id, IBV_WC_LOC_PROT_ERR);
		for (int k = 0; k < 64; k++)
			assert_int_equal(s->mem[0][k], 0);
		sim_free(s);
	}
}

/* As an adapter does, and the profile `strict`: the sink is not looked at before. */
static void rule_13_sink_checked_late(void **state)
{
	static const enum ibv_wr_opcode ops[] = {IBV_WR_RDMA_READ, IBV_WR_ATOMIC_FETCH_AND_ADD};

	(void)state;
	for (unsigned i = 0; i < 2; i++) {
		for (unsigned both = 0; both < 2; both++) {
			struct sim *s = sim_desk(QUIET);
			struct ibv_sge e;
			struct ibv_send_wr wr = sim_wr(s, 0, ops[i], 0, 8, 8, &e);

			s->n[0].qp.req.late_sinks = true;
			memset(s->mem[1], 0x77, 64);
			e.lkey ^= 1;
			if (ops[i] == IBV_WR_ATOMIC_FETCH_AND_ADD) {
				wr.wr.atomic.compare_add = 1;
				wr.wr.atomic.rkey ^= both;
			} else {
				wr.wr.rdma.rkey ^= both;
			}
			assert_int_equal(sim_send(s, 0, &wr), 0);
			sim_settle(s);
			sim_expect(s, 0, true, wr.wr_id, both ? IBV_WC_REM_ACCESS_ERR : IBV_WC_LOC_PROT_ERR);
			/* an atomic was carried out before anybody looked */
			assert_int_equal(s->mem[1][8], 0x77 + (i == 1 && !both));
			for (int k = 0; k < 64; k++)
				assert_int_equal(s->mem[0][k], 0);
			sim_free(s);
		}
	}
}

static unsigned most_outstanding(const struct sim *s)
{
	unsigned now = 0, most = 0;

	for (uint32_t i = 0; i < s->seen; i++) {
		const struct sim_seen *t = &s->trace[i];

		if (t->from == 0 && (t->p.op->bits & (VB_OP_READ | VB_OP_ATOMIC)))
			now++;
		if (t->from == 1 && (t->p.op->bits & (VB_OP_READ | VB_OP_ATOMIC)) &&
		    (t->p.op->bits & VB_OP_LAST))
			now--;
		most = now > most ? now : most;
	}
	return most;
}

static void rule_14_initiator_depth(void **state)
{
	(void)state;
	for (uint8_t depth = 1; depth <= 16; depth *= 2) {
		struct sim *s = sim_desk(CFG(.rd_atomic = depth, .dest_rd_atomic = depth, .mtu = 256));

		for (uint64_t i = 0; i < 40; i++)
			sim_op(s, 0, i & 1 ? IBV_WR_RDMA_READ : IBV_WR_ATOMIC_FETCH_AND_ADD, 8192,
			       i & 1 ? 600 : 8, 0);
		sim_settle(s);
		for (uint64_t i = 1; i <= 40; i++)
			sim_expect(s, 0, true, i, OK);
		assert_int_equal(most_outstanding(s), depth);
		sim_free(s);
	}
}

static void rule_14_depth_0_fails_reads_only(void **state)
{
	static const enum ibv_wr_opcode ops[] = {IBV_WR_RDMA_READ, IBV_WR_ATOMIC_CMP_AND_SWP,
						 IBV_WR_ATOMIC_FETCH_AND_ADD};

	(void)state;
	for (unsigned i = 0; i < 3; i++) {
		struct sim *s = sim_desk(CFG(.rd_atomic = 0, .dest_rd_atomic = 0));

		sim_op(s, 0, IBV_WR_RDMA_WRITE, 0, 8, 0);
		sim_op(s, 0, ops[i], 0, 8, 0);
		sim_settle(s);
		sim_expect(s, 0, true, 1, OK);
		sim_expect(s, 0, true, 2, IBV_WC_LOC_QP_OP_ERR);
		sim_free(s);
	}
}

/* A requester with a greater depth than the responder has resources is told so. */
static void rule_14_too_many_reads_are_refused(void **state)
{
	struct sim *s = sim_desk(CFG(.rd_atomic = 8, .dest_rd_atomic = 0));

	(void)state;
	sim_op(s, 0, IBV_WR_RDMA_READ, 0, 8, 0);
	sim_settle(s);
	sim_expect(s, 0, true, 1, IBV_WC_REM_INV_REQ_ERR);
	assert_int_equal(sim_event(s, 1), IBV_EVENT_QP_REQ_ERR);
	sim_free(s);
}

static void rule_14_zero_sized_queues_work(void **state)
{
	struct sim *s = sim_desk(CFG(.recv_wr = 0));
	struct ibv_sge e = {0};

	(void)state;
	sim_op(s, 0, sim_as == SIM_AS_UD ? IBV_WR_SEND : IBV_WR_RDMA_WRITE, 0, 8, 0);
	sim_settle(s);
	sim_expect(s, 0, true, 1, OK);
	assert_int_equal(sim_recv(s, 1, 1, &e, 1), ENOMEM); /* rule 11 */
	sim_free(s);
	s = sim_desk(CFG(.send_wr = 0));
	struct ibv_send_wr wr = sim_wr(s, 0, IBV_WR_SEND, 0, 8, 0, &e);
	assert_int_equal(sim_send(s, 0, &wr), ENOMEM);
	sim_free(s);
}

int main(void)
{
	const struct CMUnitTest all[] = {
	    cmocka_unit_test(rule_10_every_request_ends),
	    cmocka_unit_test(rule_13_local_key_faults),
	    cmocka_unit_test(rule_14_zero_sized_queues_work),
	};
	const struct CMUnitTest acked[] = {
	    cmocka_unit_test(rule_01_rnr_retries_count_down),
	    cmocka_unit_test(rule_01_rnr_retry_0_fails_at_once),
	    cmocka_unit_test(rule_01_rnr_retry_7_is_for_ever),
	    cmocka_unit_test(rule_01_rnr_count_starts_again),
	    cmocka_unit_test(rule_01_rnr_of_an_atomic_is_not_counted),
	    cmocka_unit_test(rule_01_used_up_is_only_slow),
	    cmocka_unit_test(rule_01_used_up_for_20_ms),
	    cmocka_unit_test(rule_01_used_up_is_not_for_all),
	    cmocka_unit_test(rule_01_used_up_is_said_by_peers_only),
	    cmocka_unit_test(rule_02_rnr_wait_is_waited_out),
	    cmocka_unit_test(rule_02_the_oldest_asks_again),
	    cmocka_unit_test(rule_02_it_asks_alone_for_ever),
	    cmocka_unit_test(rule_02_rnr_wait_survives_other_packets),
	    cmocka_unit_test(rule_03_first_retry_at_once_later_by_timeout),
	    cmocka_unit_test(rule_03_acks_count_while_a_retry_is_scheduled),
	    cmocka_unit_test(rule_03_each_loss_is_nakked),
	    cmocka_unit_test(rule_04_implied_nak_for_a_read),
	    cmocka_unit_test(rule_04_implied_nak_for_an_atomic),
	    cmocka_unit_test(rule_05_partial_read_resumes),
	    cmocka_unit_test(rule_06_write_resends_without_reth),
	    cmocka_unit_test(rule_06_write_from_the_start_keeps_its_address),
	    cmocka_unit_test(rule_07_gather_position_is_restored),
	    cmocka_unit_test(rule_08_nak_within_a_read_answer),
	    cmocka_unit_test(rule_09_fence_waits_for_fetches_only),
	    cmocka_unit_test(rule_12_psn_wraps),
	    cmocka_unit_test(rule_12_msn_counts_finished_requests),
	    cmocka_unit_test(rule_12_retries_reset_on_progress),
	    cmocka_unit_test(rule_12_what_is_not_sent_costs_no_retry),
	    cmocka_unit_test(rule_12_old_acks_are_no_progress),
	    cmocka_unit_test(rule_13_without_a_way_out),
	    cmocka_unit_test(rule_13_without_a_way_out_in_order),
	    cmocka_unit_test(rule_13_without_a_way_out_in_sqd),
	    cmocka_unit_test(rule_13_sink_checked_when_the_answer_comes),
	    cmocka_unit_test(rule_13_sink_checked_late),
	    cmocka_unit_test(rule_14_initiator_depth),
	    cmocka_unit_test(rule_14_depth_0_fails_reads_only),
	    cmocka_unit_test(rule_14_too_many_reads_are_refused),
	};

	return SIM_RUN(all, SIM_OVER_ALL) + SIM_RUN(acked, SIM_OVER_ACKED);
}
