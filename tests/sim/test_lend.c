/* Large SENDs are lent: their receiver collects the bytes from the sender's memory, and whatever keeps it
 * from that, the wire carries them. */
#include <stdlib.h>
#include <string.h>

#include "sim.h"
#include "transport/lend.h"

enum { MTU = 1024, BIG = 3 * VB_LOAN_MOST, LEND = VB_LEND_FROM, PSN = 100, SINK = LEND * 3 };

/* No retry is left: what the far end refuses to collect costs none. */
#define DESK(...) sim_desk(SIM_CFG(.placing = true, .mtu = MTU, .retry_cnt = 0, __VA_ARGS__))

/* More memory at either side than the desk has. */
struct more {
	uint8_t *at[2];
	uint32_t lkey[2];
};

static struct more more(struct sim *s)
{
	struct more m;

	for (unsigned i = 0; i < 2; i++) {
		m.at[i] = sim_zeroed(BIG + 64);
		m.lkey[i] = sim_reg(s, i, m.at[i], BIG + 64, i ? IBV_ACCESS_LOCAL_WRITE : 0);
	}
	for (uint32_t k = 0; k < BIG + 64; k++)
		m.at[0][k] = (uint8_t)(k * 31 + k / 251);
	return m;
}

static void no_more(struct more *m)
{
	free(m->at[0]);
	free(m->at[1]);
}

static uint64_t send_list(struct sim *s, struct ibv_sge *e, int n)
{
	struct ibv_send_wr wr = {.wr_id = ++s->next_wr,
				 .sg_list = e,
				 .num_sge = n,
				 .opcode = IBV_WR_SEND,
				 .send_flags = IBV_SEND_SIGNALED};

	assert_int_equal(sim_send(s, 0, &wr), 0);
	return wr.wr_id;
}

/* Of the further memory, from an odd address to another one. */
static uint64_t send_big(struct sim *s, const struct more *m, uint32_t len)
{
	return send_list(s, &(struct ibv_sge){(uintptr_t)m->at[0] + 3, len, m->lkey[0]}, 1);
}

static uint64_t take_big(struct sim *s, const struct more *m, uint32_t len)
{
	struct ibv_sge e = {(uintptr_t)m->at[1] + 1, len, m->lkey[1]};

	assert_int_equal(sim_recv(s, 1, ++s->next_wr, &e, 1), 0);
	return s->next_wr;
}

static void both_end_well(struct sim *s, uint64_t sent, uint64_t taken, uint32_t len)
{
	sim_settle(s);
	assert_int_equal(sim_expect(s, 1, false, taken, IBV_WC_SUCCESS).byte_len, len);
	sim_expect(s, 0, true, sent, IBV_WC_SUCCESS);
	sim_expect_none(s, 0);
	sim_expect_none(s, 1);
}

/* One packet without the bytes, and as many PSNs as if it had them. */
static void a_large_send_is_one_packet(void **state)
{
	static const uint32_t lengths[] = {LEND - 1, LEND, LEND + 1, 2 * LEND + 5};

	(void)state;
	for (unsigned i = 0; i < 4; i++) {
		struct sim *s = DESK();
		uint32_t len = lengths[i], psns = (len + MTU - 1) / MTU;
		uint64_t r = sim_take(s, 1, SINK, len), m;

		sim_fill(s, SIM_MEM);
		m = sim_op(s, 0, IBV_WR_SEND_WITH_IMM, 5, len, 0);
		both_end_well(s, m, r, len);
		assert_memory_equal(s->mem[1] + SINK, s->mem[0] + 5, len);
		assert_int_not_equal(s->mem[1][SINK - 1], 0);
		assert_int_equal(s->lent, i ? 1 : 0);
		assert_int_equal(sim_count(s, 0, VB_RC_SEND_ONLY_IMM), i ? 1 : 0);
		r = sim_take(s, 1, 0, 8);
		m = sim_op(s, 0, IBV_WR_SEND, 0, 8, 0);
		both_end_well(s, m, r, 8);
		assert_int_equal(sim_find(s, 0, VB_RC_SEND_ONLY, 0)->p.psn, PSN + psns);
		sim_free(s);
	}
}

/* A packet lends no more than is copied under one announcement. */
static void a_huge_one_is_several(void **state)
{
	struct sim *s = DESK();
	struct more m = more(s);
	uint32_t len = 2 * VB_LOAN_MOST + 77;
	uint64_t r = take_big(s, &m, len), w = send_big(s, &m, len);

	(void)state;
	both_end_well(s, w, r, len);
	assert_memory_equal(m.at[1] + 1, m.at[0] + 3, len);
	assert_int_equal(m.at[1][0], 0);
	assert_int_equal(m.at[1][1 + len], 0);
	assert_int_equal(s->lent, 3);
	assert_int_equal(sim_find(s, 0, VB_RC_SEND_MIDDLE, 0)->p.psn, PSN + VB_LOAN_MOST / MTU);
	assert_int_equal(sim_find(s, 0, VB_RC_SEND_LAST, 0)->p.psn, PSN + 2 * VB_LOAN_MOST / MTU);
	assert_int_equal(sim_count(s, 1, VB_RC_ACK), 3);
	no_more(&m);
	sim_free(s);
}

/* Pieces of two regions here and there, of which one is cut where a packet ends. */
static void lists_at_both_ends(void **state)
{
	struct sim *s = DESK();
	struct more m = more(s);
	uint32_t a = VB_LOAN_MOST - 4000, b = 9001, c = 20000, len = a + b + c, cut = 100001;
	struct ibv_sge from[3] = {{(uintptr_t)m.at[0] + 7, a, m.lkey[0]},
				  {(uintptr_t)s->mem[0] + 1, b, s->lkey[0]},
				  {(uintptr_t)m.at[0] + VB_LOAN_MOST + 9, c, m.lkey[0]}};
	struct ibv_sge to[3] = {{(uintptr_t)s->mem[1] + 3, cut, s->lkey[1]},
				{(uintptr_t)s->mem[1], 0, s->lkey[1]},
				{(uintptr_t)m.at[1] + 5, len, m.lkey[1]}};
	uint8_t *want = malloc(len);
	uint64_t w;

	(void)state;
	sim_fill(s, SIM_MEM);
	memcpy(want, m.at[0] + 7, a);
	memcpy(want + a, s->mem[0] + 1, b);
	memcpy(want + a + b, m.at[0] + VB_LOAN_MOST + 9, c);
	assert_int_equal(sim_recv(s, 1, 7000, to, 3), 0);
	w = send_list(s, from, 3);
	both_end_well(s, w, 7000, len);
	assert_int_equal(s->lent, 2);
	assert_memory_equal(s->mem[1] + 3, want, cut);
	assert_memory_equal(m.at[1] + 5, want + cut, len - cut);
	assert_int_equal(m.at[1][5 + len - cut], 0);
	free(want);
	no_more(&m);
	sim_free(s);
}

/* Receives come late, and from an SRQ, whose buffers are of another domain than the QP (rule 21). */
static void not_ready_at_first(void **state)
{
	(void)state;
	for (unsigned srq = 0; srq < 2; srq++) {
		struct sim *s = DESK(.srq = srq);
		uint64_t w = sim_op(s, 0, IBV_WR_SEND, 5, LEND, 0), r;

		if (srq)
			s->n[1].qp.pd_id = 99;
		sim_fill(s, SIM_MEM);
		sim_run_for(s, VB_MSEC);
		sim_expect_none(s, 1);
		r = sim_take(s, 1, SINK, LEND);
		both_end_well(s, w, r, LEND);
		assert_memory_equal(s->mem[1] + SINK, s->mem[0] + 5, LEND);
		assert_true(s->lent > 1);
		assert_int_equal(sim_count(s, 0, VB_RC_SEND_FIRST), 0);
		sim_free(s);
	}
}

static enum sim_verdict twice(struct sim *s, unsigned from, const struct vb_pkt *p)
{
	(void)s;
	return !from && (p->op->bits & VB_OP_SEND) ? SIM_DUP : SIM_PASS;
}

/* Once it is acknowledged the program may change it: a copy of the packet that comes later counts for
 * nothing (rule 26). */
static void it_is_collected_once(void **state)
{
	struct sim *s = DESK();
	uint64_t r = sim_take(s, 1, SINK, LEND), late = sim_take(s, 1, SINK + LEND, LEND), w;

	(void)state;
	s->filter = twice;
	sim_fill(s, SIM_MEM);
	w = sim_op(s, 0, IBV_WR_SEND, 5, LEND, 0);
	while (!sim_poll(s, 0, true, &(struct ibv_wc){0}))
		assert_true(sim_step(s));
	memset(s->mem[0], 0x99, SIM_MEM);
	sim_settle(s);
	sim_expect(s, 1, false, r, IBV_WC_SUCCESS);
	sim_expect_none(s, 1);
	assert_int_not_equal(s->mem[1][SINK], 0x99);
	sim_modify(s, 1, IBV_QPS_ERR);
	sim_expect(s, 1, false, late, IBV_WC_WR_FLUSH_ERR);
	(void)w;
	sim_free(s);
}

/* The far end cannot collect, from the beginning or from the second packet on. */
static struct {
	unsigned nth, sends;
} denial;

static enum sim_verdict denying(struct sim *s, unsigned from, const struct vb_pkt *p)
{
	if (!from && (p->op->bits & VB_OP_SEND) && denial.sends++ == denial.nth)
		s->n[1].qp.path.mem = NULL;
	return SIM_PASS;
}

static void what_is_refused_is_sent(void **state)
{
	(void)state;
	for (denial.nth = 0; denial.nth < 3; denial.nth++) {
		struct sim *s = DESK();
		struct more m = more(s);
		uint32_t len = 2 * VB_LOAN_MOST + 77;
		uint64_t r[2], w[2], lent;

		denial.sends = 0;
		s->filter = denying;
		for (unsigned i = 0; i < 2; i++) {
			r[i] = take_big(s, &m, len);
			w[i] = send_big(s, &m, len);
		}
		sim_settle(s);
		for (unsigned i = 0; i < 2; i++) {
			assert_int_equal(sim_expect(s, 1, false, r[i], IBV_WC_SUCCESS).byte_len, len);
			sim_expect(s, 0, true, w[i], IBV_WC_SUCCESS);
		}
		assert_memory_equal(m.at[1] + 1, m.at[0] + 3, len);
		assert_int_equal(m.at[1][1 + len], 0);
		/* both were lent, and the refusal of one counts for both */
		lent = s->lent;
		assert_int_equal(lent, 6);
		r[0] = take_big(s, &m, LEND);
		w[0] = send_big(s, &m, LEND);
		both_end_well(s, w[0], r[0], LEND);
		assert_int_equal(s->lent, lent); /* nor is it tried again */
		no_more(&m);
		sim_free(s);
	}
}

/* A receive list that is no plain memory, and memory that is sent to where it overlaps itself. */
static void what_only_the_wire_can(void **state)
{
	struct sim *s = DESK();
	struct ibv_sge null = {0, LEND, 0};
	uint64_t w;

	(void)state;
	null.lkey = vb_key_publish(&s->n[1].keys, &(struct vb_key_spec){.pd = s->n[1].pd.id,
									.access = IBV_ACCESS_LOCAL_WRITE,
									.kind = VB_KEY_NULL,
									.length = SIM_MEM});
	assert_int_equal(sim_recv(s, 1, 7000, &null, 1), 0);
	w = sim_op(s, 0, IBV_WR_SEND, 5, LEND, 0);
	both_end_well(s, w, 7000, LEND);
	assert_int_equal(s->lent, 1);
	assert_int_equal(sim_count(s, 0, VB_RC_SEND_FIRST), 1);
	sim_free(s);
}

/* What its own end knows not to be collectable is never lent. */
static void what_is_not_lent(void **state)
{
	(void)state;
	for (unsigned i = 0; i < 3; i++) {
		struct sim *s = sim_desk(SIM_CFG(.placing = i != 1, .mtu = MTU, .sge = 32));
		struct ibv_sge e[32];
		uint64_t r = sim_take(s, 1, SINK, LEND);
		int n = 1;

		e[0] = (struct ibv_sge){(uintptr_t)s->mem[0], LEND, s->lkey[0]};
		if (!i) { /* a null region */
			e[0] = (struct ibv_sge){0, LEND, 0};
			e[0].lkey = vb_key_publish(&s->n[0].keys, &(struct vb_key_spec){.pd = s->n[0].pd.id,
											.kind = VB_KEY_NULL,
											.length = SIM_MEM});
		} else if (i == 2) { /* crumbs */
			for (n = 0; n < 32; n++)
				e[n] = (struct ibv_sge){(uintptr_t)s->mem[0] + (uint32_t)n * LEND / 32,
							LEND / 32, s->lkey[0]};
		}
		both_end_well(s, send_list(s, e, n), r, LEND);
		assert_int_equal(s->lent, 0);
		sim_free(s);
	}
}

/* Errors are those of the wire: its own end's before anything is sent, the receiver's for what it has room
 * for. */
static void errors_are_the_same(void **state)
{
	struct sim *s = DESK();
	uint64_t r = sim_take(s, 1, SINK, LEND), w;
	struct ibv_sge e = {(uintptr_t)s->mem[0], LEND, s->lkey[0] ^ 1};

	(void)state;
	w = send_list(s, &e, 1);
	sim_settle(s);
	sim_expect(s, 0, true, w, IBV_WC_LOC_PROT_ERR);
	assert_int_equal(s->packets, 0);
	sim_expect_none(s, 1);
	(void)r;
	sim_free(s);
	s = DESK();
	r = sim_take(s, 1, SINK, LEND - 1);
	w = sim_op(s, 0, IBV_WR_SEND, 0, LEND, 0);
	sim_settle(s);
	sim_expect(s, 1, false, r, IBV_WC_LOC_LEN_ERR);
	sim_expect(s, 0, true, w, IBV_WC_REM_INV_REQ_ERR);
	sim_free(s);
	s = DESK();
	e = (struct ibv_sge){(uintptr_t)s->mem[1] + SINK, LEND, s->lkey[1] ^ 1};
	assert_int_equal(sim_recv(s, 1, 7000, &e, 1), 0);
	w = sim_op(s, 0, IBV_WR_SEND, 0, LEND, 0);
	sim_settle(s);
	sim_expect(s, 1, false, 7000, IBV_WC_LOC_PROT_ERR);
	sim_expect(s, 0, true, w, IBV_WC_REM_OP_ERR);
	sim_free(s);
}

/* The region goes while the packet is under way. */
static void a_key_is_taken_back(void **state)
{
	struct sim *s = DESK();
	struct more m = more(s);
	uint64_t r = take_big(s, &m, LEND), w = send_big(s, &m, LEND);

	(void)state;
	sim_run_for(s, 500);
	assert_int_equal(s->lent, 1);
	vb_key_retract(&s->n[0].keys, m.lkey[0]);
	vb_key_give(&s->n[0].keys, m.lkey[0]);
	memset(m.at[0], 0x99, BIG);
	sim_settle(s);
	sim_expect(s, 0, true, w, IBV_WC_LOC_PROT_ERR);
	sim_expect_none(s, 1);
	for (uint32_t i = 0; i < LEND; i++)
		assert_int_equal(m.at[1][1 + i], 0);
	sim_modify(s, 1, IBV_QPS_ERR);
	sim_expect(s, 1, false, r, IBV_WC_WR_FLUSH_ERR);
	no_more(&m);
	sim_free(s);
}

/* Its sender's QP has failed, or been reset and connected anew with the same PSNs, while the packet was under
 * way: what the program has made of the memory since is nobody's message. */
static void leave_is_taken_back(void **state)
{
	(void)state;
	for (unsigned anew = 0; anew < 2; anew++) {
		struct sim *s = DESK();
		uint64_t r = sim_take(s, 1, SINK, LEND), w = sim_op(s, 0, IBV_WR_SEND, 0, LEND, 0);

		sim_run_for(s, 500);
		assert_int_equal(s->lent, 1);
		sim_modify(s, 0, IBV_QPS_ERR);
		sim_expect(s, 0, true, w, IBV_WC_WR_FLUSH_ERR);
		memset(s->mem[0], 0x99, SIM_MEM);
		if (anew) {
			sim_modify(s, 0, IBV_QPS_RESET);
			sim_connect(s, 0);
		}
		sim_settle(s);
		sim_expect_none(s, 1);
		for (uint32_t i = 0; i < LEND; i++)
			assert_int_equal(s->mem[1][SINK + i], 0);
		if (anew) {
			w = sim_op(s, 0, IBV_WR_SEND, 0, LEND, 0);
			both_end_well(s, w, r, LEND);
			assert_memory_equal(s->mem[1] + SINK, s->mem[0], LEND);
		}
		sim_free(s);
	}
}

static void inject(struct sim *s, enum vb_operation op, const struct vb_loan *l, uint32_t psn)
{
	struct vb_pkt p = {.opcode = VB_FAMILY_RC | op, .psn = psn, .ack_req = true, .loan = l};
	uint8_t payload[sizeof *l];

	vb_loan_encode(payload, l);
	sim_inject(s, 1, &p, payload, vb_loan_size(l));
}

/* A sender that says what it likes: it reaches nothing but by keys of its own table, and what it lends has to
 * fit its place in the message. */
static void rubbish(void **state)
{
	(void)state;
	for (unsigned i = 0; i < 6; i++) {
		struct sim *s = DESK();
		struct vb_loan l = {.leave = s->n[0].shown.leaves, .num = 1};
		enum vb_operation op = VB_SEND_ONLY;
		uint64_t r = sim_take(s, 1, SINK, LEND);

		memset(s->mem[0], 0x99, SIM_MEM);
		l.piece[0] = (struct ibv_sge){(uintptr_t)s->mem[0], LEND, s->lkey[0]};
		switch (i) {
		case 0: /* as its R_Key */
			l.piece[0].lkey |= VB_KEY_REMOTE;
			break;
		case 1: /* the receiver's own */
			l.piece[0] = (struct ibv_sge){(uintptr_t)s->mem[1], LEND, s->lkey[1] ^ 3};
			break;
		case 2: /* more than the region */
			l.piece[0].addr += SIM_MEM - LEND + 1;
			break;
		case 3: /* under no leave */
			l.leave = 0;
			break;
		case 4: /* under another */
			l.leave++;
			break;
		case 5: /* no whole number of packets, and others follow */
			op = VB_SEND_FIRST;
			l.piece[0].length -= 1;
			break;
		}
		inject(s, op, &l, PSN);
		for (uint32_t k = 0; k < LEND; k++)
			assert_int_equal(s->mem[1][SINK + k], 0);
		if (i == 5) {
			assert_int_equal(s->n[1].qp.state, IBV_QPS_ERR);
			assert_int_equal(s->n[1].qp.why.reason, VB_R_BAD_LENGTH);
			sim_expect(s, 1, false, r, IBV_WC_WR_FLUSH_ERR);
		} else {
			sim_expect_none(s, 1);
			assert_int_equal(s->trace[s->seen - 1].p.syndrome, VB_AETH_NAK_LOAN);
			assert_int_equal(s->trace[s->seen - 1].p.psn, PSN);
		}
		sim_free(s);
	}
}

/* The far end asks for the bytes of what was not lent: that is an answer like any loss. */
static void refusals_of_nothing_count_as_losses(void **state)
{
	struct sim *s = sim_desk(SIM_CFG(.placing = true, .mtu = MTU, .retry_cnt = 2));
	struct vb_pkt p = {.opcode = VB_RC_ACK, .syndrome = VB_AETH_NAK_LOAN, .psn = PSN};
	uint64_t w = sim_op(s, 0, IBV_WR_SEND, 0, 8, 0);

	(void)state;
	sim_drop(s, 0, VB_RC_SEND_ONLY, SIM_ALWAYS);
	sim_run_for(s, 500);
	sim_inject(s, 0, &p, NULL, 0);
	assert_int_equal(sim_count(s, 0, VB_RC_SEND_ONLY), 2);
	sim_inject(s, 0, &p, NULL, 0); /* rule 3 */
	assert_int_equal(sim_count(s, 0, VB_RC_SEND_ONLY), 2);
	sim_settle(s);
	sim_expect(s, 0, true, w, IBV_WC_RETRY_EXC_ERR);
	sim_free(s);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
	    cmocka_unit_test(a_large_send_is_one_packet),
	    cmocka_unit_test(a_huge_one_is_several),
	    cmocka_unit_test(lists_at_both_ends),
	    cmocka_unit_test(not_ready_at_first),
	    cmocka_unit_test(it_is_collected_once),
	    cmocka_unit_test(what_is_refused_is_sent),
	    cmocka_unit_test(what_only_the_wire_can),
	    cmocka_unit_test(what_is_not_lent),
	    cmocka_unit_test(errors_are_the_same),
	    cmocka_unit_test(a_key_is_taken_back),
	    cmocka_unit_test(leave_is_taken_back),
	    cmocka_unit_test(rubbish),
	    cmocka_unit_test(refusals_of_nothing_count_as_losses),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
