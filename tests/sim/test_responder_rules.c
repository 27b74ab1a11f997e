/* The responder's rules, 15 to 28: what it executes, how often, and what it answers; over each connected
 * transport to which they apply. What UC drops instead: test_uc.c. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "sim.h"

#define CFG   SIM_CFG
#define QUIET SIM_QUIET
#define OK    IBV_WC_SUCCESS

static uint64_t *word(struct sim *s, unsigned n, uint32_t at)
{
	return (uint64_t *)(void *)(s->mem[n] + at);
}

/* The only NAK that node 1 has sent. */
static const struct sim_seen *the_nak(const struct sim *s)
{
	const struct sim_seen *found = NULL;

	for (uint32_t i = 0; i < s->seen; i++) {
		const struct sim_seen *t = &s->trace[i];

		if (t->from != 1 || !(t->p.op->bits & VB_OP_AETH) || !VB_AETH_KIND(t->p.syndrome))
			continue;
		assert_null(found);
		found = t;
	}
	return found;
}

/* rules 15, 16: every fault has its NAK, also where no receive WQE is there to take an error */
static void rule_15_every_fault_is_nakked(void **state)
{
	static const struct {
		uint8_t opcode;
		uint8_t before; /* a packet that comes first, 0xff: none */
		uint32_t dma_len, payload;
		bool bad_key;
		uint32_t shift; /* of the address */
		uint8_t nak;
		int event;
	} faults[] = {
	    /* opcodes out of order */
	    {VB_RC_SEND_MIDDLE, 0xff, 0, 256, 0, 0, 0x61, IBV_EVENT_QP_REQ_ERR},
	    {VB_RC_SEND_LAST, 0xff, 0, 8, 0, 0, 0x61, IBV_EVENT_QP_REQ_ERR},
	    {VB_RC_SEND_LAST_IMM, 0xff, 0, 8, 0, 0, 0x61, IBV_EVENT_QP_REQ_ERR},
	    {VB_RC_WRITE_MIDDLE, 0xff, 0, 256, 0, 0, 0x61, IBV_EVENT_QP_REQ_ERR},
	    {VB_RC_WRITE_LAST, 0xff, 0, 8, 0, 0, 0x61, IBV_EVENT_QP_REQ_ERR},
	    {VB_RC_WRITE_LAST_IMM, 0xff, 0, 8, 0, 0, 0x61, IBV_EVENT_QP_REQ_ERR},
	    {VB_RC_SEND_MIDDLE, VB_RC_WRITE_FIRST, 0, 256, 0, 0, 0x61, IBV_EVENT_QP_REQ_ERR},
	    {VB_RC_SEND_ONLY, VB_RC_WRITE_FIRST, 0, 8, 0, 0, 0x61, IBV_EVENT_QP_REQ_ERR},
	    {VB_RC_WRITE_FIRST, VB_RC_WRITE_FIRST, 512, 256, 0, 0, 0x61, IBV_EVENT_QP_REQ_ERR},
	    {VB_RC_READ_REQUEST, VB_RC_WRITE_FIRST, 8, 0, 0, 0, 0x61, IBV_EVENT_QP_REQ_ERR},
	    {VB_RC_FETCH_ADD, VB_RC_WRITE_FIRST, 0, 0, 0, 0, 0x61, IBV_EVENT_QP_REQ_ERR},
	    /* lengths */
	    {VB_RC_WRITE_FIRST, 0xff, 512, 255, 0, 0, 0x61, IBV_EVENT_QP_REQ_ERR},
	    {VB_RC_WRITE_FIRST, 0xff, 256, 256, 0, 0, 0x61, IBV_EVENT_QP_REQ_ERR},
	    {VB_RC_WRITE_ONLY, 0xff, 8, 9, 0, 0, 0x61, IBV_EVENT_QP_REQ_ERR},
	    {VB_RC_WRITE_ONLY, 0xff, 8, 7, 0, 0, 0x61, IBV_EVENT_QP_REQ_ERR},
	    {VB_RC_WRITE_ONLY, 0xff, 300, 300, 0, 0, 0x61, IBV_EVENT_QP_REQ_ERR},
	    {VB_RC_WRITE_MIDDLE, VB_RC_WRITE_FIRST, 0, 200, 0, 0, 0x61, IBV_EVENT_QP_REQ_ERR},
	    {VB_RC_WRITE_LAST, VB_RC_WRITE_FIRST, 0, 255, 0, 0, 0x61, IBV_EVENT_QP_REQ_ERR},
	    {VB_RC_WRITE_ONLY, 0xff, 0x80000001u, 8, 0, 0, 0x61, IBV_EVENT_QP_REQ_ERR},
	    {VB_RC_READ_REQUEST, 0xff, 0x80000001u, 0, 0, 0, 0x61, IBV_EVENT_QP_REQ_ERR},
	    /* rule 18 */
	    {VB_RC_FETCH_ADD, 0xff, 0, 0, 0, 4, 0x61, IBV_EVENT_QP_REQ_ERR},
	    {VB_RC_CMP_SWAP, 0xff, 0, 0, 0, 1, 0x61, IBV_EVENT_QP_REQ_ERR},
	    /* keys and ranges (rules 19, 20) */
	    {VB_RC_WRITE_ONLY, 0xff, 8, 8, 1, 0, 0x62, IBV_EVENT_QP_ACCESS_ERR},
	    {VB_RC_WRITE_ONLY_IMM, 0xff, 8, 8, 1, 0, 0x62, IBV_EVENT_QP_ACCESS_ERR},
	    {VB_RC_WRITE_FIRST, 0xff, 512, 256, 1, 0, 0x62, IBV_EVENT_QP_ACCESS_ERR},
	    {VB_RC_READ_REQUEST, 0xff, 8, 0, 1, 0, 0x62, IBV_EVENT_QP_ACCESS_ERR},
	    {VB_RC_CMP_SWAP, 0xff, 0, 0, 1, 0, 0x62, IBV_EVENT_QP_ACCESS_ERR},
	    {VB_RC_FETCH_ADD, 0xff, 0, 0, 1, 0, 0x62, IBV_EVENT_QP_ACCESS_ERR},
	    {VB_RC_WRITE_FIRST, 0xff, 512, 256, 0, SIM_MEM - 511, 0x62, IBV_EVENT_QP_ACCESS_ERR},
	    {VB_RC_READ_REQUEST, 0xff, 16, 0, 0, SIM_MEM - 8, 0x62, IBV_EVENT_QP_ACCESS_ERR},
	    {VB_RC_FETCH_ADD, 0xff, 0, 0, 0, SIM_MEM, 0x62, IBV_EVENT_QP_ACCESS_ERR},
	};
	uint8_t payload[512] = {0xab};

	(void)state;
	for (unsigned i = 0; i < sizeof faults / sizeof *faults; i++) {
		struct sim *s = sim_desk(CFG(.mtu = 256, .local = i & 1));
		struct vb_pkt p = {.opcode = faults[i].opcode,
				   .psn = 100,
				   .ack_req = true,
				   .va = (uintptr_t)s->mem[1] + faults[i].shift,
				   .dma_len = faults[i].dma_len,
				   .rkey = sim_rkey(s->lkey[1]) ^ faults[i].bad_key};
		const struct sim_seen *nak;

		if (faults[i].before != 0xff) {
			struct vb_pkt first = {.opcode = faults[i].before,
					       .psn = 100,
					       .va = (uintptr_t)s->mem[1],
					       .dma_len = 512,
					       .rkey = sim_rkey(s->lkey[1])};

			sim_inject(s, 1, &first, payload, 256);
			p.psn++;
		}
		sim_inject(s, 1, &p, payload, faults[i].payload);
		nak = the_nak(s);
		assert_non_null(nak);
		assert_int_equal(nak->p.syndrome, faults[i].nak);
		assert_int_equal(nak->p.psn, p.psn);
		assert_int_equal(VB_OPERATION(nak->p.opcode), VB_ACK); /* rule 16 */
		assert_int_equal(s->n[1].qp.state, IBV_QPS_ERR);
		assert_int_equal(sim_event(s, 1), faults[i].event);
		assert_int_equal(sim_event(s, 1), -1);
		sim_free(s);
	}
}

static void rule_16_nak_of_an_atomic(void **state)
{
	struct sim *s = sim_desk(QUIET);

	(void)state;
	sim_op(s, 0, IBV_WR_ATOMIC_FETCH_AND_ADD, 0, 8, 4);
	sim_settle(s);
	assert_int_equal(sim_find(s, 1, VB_RC_ACK, 0)->p.syndrome, VB_AETH_NAK_INVALID_REQUEST);
	assert_int_equal(sim_count(s, 1, VB_RC_ATOMIC_ACK), 0);
	sim_expect(s, 0, true, 1, IBV_WC_REM_INV_REQ_ERR);
	sim_free(s);
}

static void rule_17_duplicate_atomic_replays_its_result(void **state)
{
	struct sim *s = sim_desk(CFG(.dest_rd_atomic = 4));
	struct vb_pkt p = {.opcode = VB_RC_FETCH_ADD, .ack_req = true, .swap_add = 1};
	uint64_t before;

	(void)state;
	*word(s, 1, 0) = 50;
	for (int i = 0; i < 6; i++)
		sim_op(s, 0, IBV_WR_ATOMIC_FETCH_AND_ADD, 64, 8, 0);
	sim_settle(s);
	assert_int_equal(*word(s, 1, 0), 56);
	*word(s, 1, 0) = 1000; /* what stands there now is not the answer */
	p.rkey = sim_rkey(s->lkey[1]);
	p.va = (uintptr_t)s->mem[1];
	for (uint32_t i = 2; i < 6; i++) { /* the last four are remembered */
		p.psn = 100 + i;
		before = sim_count(s, 1, VB_RC_ATOMIC_ACK);
		sim_inject(s, 1, &p, NULL, 0);
		assert_int_equal(sim_count(s, 1, VB_RC_ATOMIC_ACK), before + 1);
		assert_int_equal(sim_find(s, 1, VB_RC_ATOMIC_ACK, (unsigned)before)->p.orig, 50 + i);
		assert_int_equal(sim_find(s, 1, VB_RC_ATOMIC_ACK, (unsigned)before)->p.psn, 100 + i);
	}
	before = s->packets;
	p.psn = 100; /* out of memory: no wrong answer */
	sim_inject(s, 1, &p, NULL, 0);
	assert_int_equal(*word(s, 1, 0), 1000);
	assert_int_equal(s->n[1].qp.state, IBV_QPS_RTS);
	sim_free(s);
}

static void rule_17_lost_atomic_answers(void **state)
{
	struct sim *s = sim_desk(QUIET);

	(void)state;
	for (unsigned k = 0; k < 3; k++)
		sim_drop(s, 1, VB_RC_ATOMIC_ACK, k);
	for (int i = 0; i < 4; i++)
		sim_op(s, 0, IBV_WR_ATOMIC_FETCH_AND_ADD, 64 + 8 * (uint32_t)i, 8, 0);
	sim_op(s, 0, IBV_WR_ATOMIC_CMP_AND_SWP, 96, 8, 8);
	sim_settle(s);
	for (uint64_t i = 0; i < 5; i++)
		sim_expect(s, 0, true, i + 1, OK);
	for (uint64_t i = 0; i < 4; i++)
		assert_int_equal(*word(s, 0, 64 + 8 * (uint32_t)i), i);
	assert_int_equal(*word(s, 1, 0), 4);
	assert_int_equal(*word(s, 1, 8), 1);
	assert_int_equal(*word(s, 0, 96), 0);
	sim_free(s);
}

static void rule_17_duplicate_read_is_executed_again(void **state)
{
	struct sim *s = sim_desk(CFG(.mtu = 256));
	struct vb_pkt p = {.opcode = VB_RC_READ_REQUEST, .ack_req = true, .psn = 100};
	uint64_t before;

	(void)state;
	sim_op(s, 0, IBV_WR_RDMA_READ, 8192, 1000, 0);
	sim_settle(s);
	sim_expect(s, 0, true, 1, OK);
	p.rkey = sim_rkey(s->lkey[1]);
	p.va = (uintptr_t)s->mem[1];
	p.dma_len = 1000;
	before = s->seen;
	sim_inject(s, 1, &p, NULL, 0); /* all of it */
	assert_int_equal(s->seen, before + 4);
	assert_int_equal(VB_OPERATION(s->trace[before].p.opcode), VB_READ_RESP_FIRST);
	assert_int_equal(VB_OPERATION(s->trace[before + 3].p.opcode), VB_READ_RESP_LAST);
	p.psn = 102; /* from its third packet on */
	p.va += 512;
	p.dma_len -= 512;
	before = s->seen;
	sim_inject(s, 1, &p, NULL, 0);
	assert_int_equal(s->seen, before + 2);
	assert_int_equal(VB_OPERATION(s->trace[before].p.opcode), VB_READ_RESP_FIRST);
	assert_int_equal(s->trace[before].p.psn, 102);
	assert_int_equal(s->trace[before + 1].p.payload_len, 1000 - 768);
	p.psn = 103;
	p.va += 256;
	p.dma_len -= 256;
	before = s->seen;
	sim_inject(s, 1, &p, NULL, 0);
	assert_int_equal(s->seen, before + 1);
	assert_int_equal(VB_OPERATION(s->trace[before].p.opcode), VB_READ_RESP_ONLY);
	/* something else under its PSN is not a duplicate of it */
	p.va += 8;
	before = s->seen;
	sim_inject(s, 1, &p, NULL, 0);
	assert_int_equal(s->seen, before);
	assert_int_equal(s->n[1].qp.state, IBV_QPS_RTS);
	assert_int_equal(s->n[1].qp.resp.msn, 1);
	sim_settle(s);
	sim_expect_none(s, 0);
	sim_free(s);
}

static void rule_17_duplicate_send_and_write_are_acked(void **state)
{
	struct sim *s = sim_desk(QUIET);
	struct vb_pkt p = {.psn = 100, .ack_req = true, .opcode = VB_RC_WRITE_ONLY};
	uint8_t other[8] = "OTHER!!";
	uint64_t r1, r2, acks;

	(void)state;
	sim_fill(s, 64);
	r1 = sim_take(s, 1, 1024, 8);
	r2 = sim_take(s, 1, 2048, 8);
	sim_op(s, 0, IBV_WR_RDMA_WRITE, 0, 8, 512);
	sim_op(s, 0, IBV_WR_SEND, 0, 8, 0);
	sim_settle(s);
	sim_expect(s, 1, false, r1, OK);
	acks = sim_count(s, 1, VB_RC_ACK);
	p.va = (uintptr_t)s->mem[1] + 512;
	p.rkey = sim_rkey(s->lkey[1]);
	p.dma_len = 8;
	sim_inject(s, 1, &p, other, 8);
	p.opcode = VB_RC_SEND_ONLY;
	p.psn = 101;
	sim_inject(s, 1, &p, other, 8);
	assert_int_equal(sim_count(s, 1, VB_RC_ACK), acks + 2);
	assert_memory_equal(s->mem[1] + 512, s->mem[0], 8);
	assert_memory_equal(s->mem[1] + 1024, s->mem[0], 8);
	sim_expect_none(s, 1); /* rule 26 */
	sim_op(s, 0, IBV_WR_SEND, 0, 8, 0);
	sim_settle(s);
	sim_expect(s, 1, false, r2, OK);
	sim_free(s);
}

static void rule_18_zero_length_names_no_memory(void **state)
{
	static const enum ibv_wr_opcode ops[] = {IBV_WR_RDMA_WRITE, IBV_WR_RDMA_READ,
						 IBV_WR_RDMA_WRITE_WITH_IMM, IBV_WR_SEND};

	(void)state;
	for (unsigned i = 0; i < 4; i++) {
		if (ops[i] == IBV_WR_RDMA_READ && !sim_acked())
			continue;
		for (unsigned lost = 0; lost < 2; lost++) {
			struct sim *s = sim_desk(QUIET);
			struct ibv_sge e;
			struct ibv_send_wr wr = sim_wr(s, 0, ops[i], 0, 0, 0, &e);
			uint64_t r = sim_take(s, 1, 0, 8);

			if (lost) /* also on replay */
				sim_drop(s, 1, ops[i] == IBV_WR_RDMA_READ ? VB_RC_READ_RESP_ONLY : VB_RC_ACK,
					 0);
			wr.wr.rdma.rkey = 0xdeadbeef;
			wr.wr.rdma.remote_addr = UINT64_MAX;
			e.lkey = 0x77777777;
			wr.num_sge = (int)lost;
			assert_int_equal(sim_send(s, 0, &wr), 0);
			sim_settle(s);
			sim_expect(s, 0, true, wr.wr_id, OK);
			if (i >= 2)
				assert_int_equal(sim_expect(s, 1, false, r, OK).byte_len, 0);
			sim_expect_none(s, 1);
			sim_free(s);
		}
	}
}

static void rule_18_atomics_are_8_bytes(void **state)
{
	struct sim *s;

	(void)state;
	for (uint32_t off = 1; off < 8; off++) {
		s = sim_desk(QUIET);
		sim_op(s, 0, IBV_WR_ATOMIC_CMP_AND_SWP, 0, 8, 64 + off);
		sim_settle(s);
		sim_expect(s, 0, true, 1, IBV_WC_REM_INV_REQ_ERR);
		for (int i = 0; i < 128; i++)
			assert_int_equal(s->mem[1][i], 0);
		sim_free(s);
	}
	for (uint32_t len = 0; len < 17; len++) {
		if (len == 8)
			continue;
		s = sim_desk(QUIET);
		sim_op(s, 0, IBV_WR_ATOMIC_FETCH_AND_ADD, 0, len, 64);
		sim_settle(s);
		sim_expect(s, 0, true, 1, IBV_WC_LOC_LEN_ERR);
		assert_int_equal(s->packets, 0);
		sim_free(s);
	}
}

/* Keys that address another range than the CPU does: both must be aligned. */
static void rule_18_aligned_for_the_cpu_too(void **state)
{
	static const struct {
		uint64_t iova;
		uint32_t at;
	} rows[] = {{0x1000, 4}, {0x1004, 0}};

	(void)state;
	for (unsigned i = 0; i < sizeof rows / sizeof *rows; i++) {
		struct sim *s = sim_desk(QUIET);
		struct ibv_sge e;
		struct ibv_send_wr wr = sim_wr(s, 0, IBV_WR_ATOMIC_FETCH_AND_ADD, 0, 8, 0, &e);

		wr.wr.atomic.rkey = sim_rkey(vb_key_publish(
		    &s->n[1].keys,
		    &(struct vb_key_spec){.pd = s->n[1].pd.id,
					  .access = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_ATOMIC,
					  .iova = rows[i].iova,
					  .addr = (uintptr_t)s->mem[1] + rows[i].at,
					  .length = 64}));
		wr.wr.atomic.remote_addr = rows[i].iova + 8;
		assert_int_equal(sim_send(s, 0, &wr), 0);
		sim_settle(s);
		sim_expect(s, 0, true, wr.wr_id, IBV_WC_REM_INV_REQ_ERR);
		for (int k = 0; k < 32; k++)
			assert_int_equal(s->mem[1][k], 0);
		sim_free(s);
	}
}

static void rule_19_ranges_that_overflow(void **state)
{
	static const struct {
		enum ibv_wr_opcode op;
		uint64_t va;
		uint32_t len;
	} rows[] = {
	    {IBV_WR_RDMA_WRITE, UINT64_MAX - 3, 8},  {IBV_WR_RDMA_READ, UINT64_MAX - 3, 8},
	    {IBV_WR_RDMA_WRITE, UINT64_MAX, 1},	     {IBV_WR_RDMA_READ, UINT64_MAX - 1, 4096},
	    {IBV_WR_ATOMIC_FETCH_AND_ADD, -8ull, 8}, {IBV_WR_RDMA_WRITE_WITH_IMM, UINT64_MAX - 3, 8},
	};

	(void)state;
	for (unsigned i = 0; i < sizeof rows / sizeof *rows; i++) {
		struct sim *s = sim_desk(QUIET);
		struct ibv_sge e;
		struct ibv_send_wr wr = sim_wr(s, 0, rows[i].op, 0, rows[i].len, 0, &e);

		if (rows[i].op == IBV_WR_ATOMIC_FETCH_AND_ADD)
			wr.wr.atomic.remote_addr = rows[i].va;
		else
			wr.wr.rdma.remote_addr = rows[i].va;
		assert_int_equal(sim_send(s, 0, &wr), 0);
		sim_settle(s);
		sim_expect(s, 0, true, wr.wr_id, IBV_WC_REM_ACCESS_ERR);
		sim_free(s);
	}
}

static void rule_20_rkey_violation(void **state)
{
	static const enum ibv_wr_opcode ops[] = {IBV_WR_RDMA_WRITE, IBV_WR_RDMA_WRITE_WITH_IMM,
						 IBV_WR_RDMA_READ, IBV_WR_ATOMIC_CMP_AND_SWP};
	static const uint32_t lacks[] = {IBV_ACCESS_REMOTE_WRITE, IBV_ACCESS_REMOTE_WRITE,
					 IBV_ACCESS_REMOTE_READ, IBV_ACCESS_REMOTE_ATOMIC};

	(void)state;
	for (unsigned i = 0; i < 4; i++) {
		/* stale, an L_Key, a region without this access, another PD (rule 21) */
		for (unsigned kind = 0; kind < 4; kind++) {
			static const uint32_t reasons[] = {VB_R_KEY_STALE, VB_R_KEY_IS_LOCAL, VB_R_KEY_ACCESS,
							   VB_R_KEY_PD};
			bool local = (i + kind) & 1, imm = ops[i] == IBV_WR_RDMA_WRITE_WITH_IMM;
			struct sim *s = sim_desk(CFG(.local = local));
			struct ibv_sge e;
			struct ibv_send_wr wr = sim_wr(s, 0, ops[i], 0, 8, 0, &e);
			uint32_t lesser = sim_reg(s, 1, s->mem[1], 64, 0xf & ~lacks[i]);
			uint32_t foreign = vb_key_publish(
			    &s->n[1].keys, &(struct vb_key_spec){.pd = 99,
								 .access = 0xf,
								 .iova = wr.wr.rdma.remote_addr,
								 .addr = wr.wr.rdma.remote_addr,
								 .length = 64});
			uint32_t keys[] = {sim_rkey(sim_stale(s, 1)), s->lkey[1], sim_rkey(lesser),
					   sim_rkey(foreign)};
			uint64_t r = sim_take(s, 1, 1024, 64);

			if (ops[i] == IBV_WR_ATOMIC_CMP_AND_SWP)
				wr.wr.atomic.rkey = keys[kind];
			else
				wr.wr.rdma.rkey = keys[kind];
			assert_int_equal(sim_send(s, 0, &wr), 0);
			sim_settle(s);
			sim_expect(s, 0, true, wr.wr_id, IBV_WC_REM_ACCESS_ERR);
			assert_int_equal(s->n[0].qp.state, IBV_QPS_ERR);
			assert_int_equal(s->n[1].qp.state, IBV_QPS_ERR);
			/* the receive request of an immediate says it, else an event */
			assert_int_equal(sim_event(s, 1), imm ? -1 : IBV_EVENT_QP_ACCESS_ERR);
			assert_int_equal(sim_event(s, 0), -1); /* here the completion says it */
			if (imm)
				sim_expect(s, 1, false, r, IBV_WC_LOC_ACCESS_ERR);
			else
				sim_flushed(s, 1, r);
			/* on the same host the requester knows why */
			assert_int_equal(s->n[0].qp.why.reason,
					 local ? reasons[kind] : VB_R_NAK_REMOTE_ACCESS);
			assert_int_equal(s->n[1].qp.why.reason, reasons[kind]);
			for (int k = 0; k < 64; k++)
				assert_int_equal(s->mem[1][k], 0);
			sim_free(s);
		}
	}
}

/* The last packet is lost, and what is left of the message comes when the key has gone. */
static enum sim_verdict key_goes_before_the_last(struct sim *s, unsigned from, const struct vb_pkt *p)
{
	if (from || VB_OPERATION(p->opcode) != VB_WRITE_LAST_IMM)
		return SIM_PASS;
	if (!s->counter++)
		return SIM_DROP;
	vb_key_retract(&s->n[1].keys, s->lkey[1]);
	return SIM_PASS;
}

/* Which packet the fault is found at decides who tells of it: only one with an immediate takes a receive
 * request. */
static void rule_20_with_immediate(void **state)
{
	(void)state;
	for (unsigned srq = 0; srq < 2; srq++) {
		struct sim *s = sim_desk(CFG(.srq = srq));
		struct ibv_sge e;
		struct ibv_send_wr wr = sim_wr(s, 0, IBV_WR_RDMA_WRITE_WITH_IMM, 0, 5000, 0, &e);
		uint64_t r[2] = {sim_take(s, 1, 65536, 4), sim_take(s, 1, 65536, 4)};

		/* the last packet: its region has gone meanwhile */
		s->filter = key_goes_before_the_last;
		assert_int_equal(sim_send(s, 0, &wr), 0);
		sim_settle(s);
		sim_expect(s, 0, true, wr.wr_id, IBV_WC_REM_ACCESS_ERR);
		sim_expect(s, 1, false, r[0], IBV_WC_LOC_ACCESS_ERR);
		sim_flushed(s, 1, r[1]);
		sim_expect_none(s, 1);
		assert_int_equal(sim_event(s, 1),
				 srq && sim_as != SIM_AS_XRC ? IBV_EVENT_QP_LAST_WQE_REACHED : -1);
		sim_free(s);
		/* the first of several, which does not know of the immediate yet */
		s = sim_desk(CFG(.srq = srq));
		wr = sim_wr(s, 0, IBV_WR_RDMA_WRITE_WITH_IMM, 0, 5000, 0, &e);
		wr.wr.rdma.rkey ^= 1;
		r[0] = sim_take(s, 1, 65536, 4);
		assert_int_equal(sim_send(s, 0, &wr), 0);
		sim_settle(s);
		sim_expect(s, 0, true, wr.wr_id, IBV_WC_REM_ACCESS_ERR);
		sim_flushed(s, 1, r[0]);
		sim_expect_none(s, 1);
		assert_int_equal(sim_event(s, 1), IBV_EVENT_QP_ACCESS_ERR);
		sim_free(s);
	}
}

static void rule_21_srq_buffers_belong_to_its_pd(void **state)
{
	struct sim *s = sim_desk(CFG(.srq = true));
	uint64_t r;

	(void)state;
	s->n[1].qp.pd_id = 99; /* the QP's PD may be another */
	r = sim_take(s, 1, 0, 8);
	sim_op(s, 0, IBV_WR_SEND, 0, 8, 0);
	sim_settle(s);
	sim_expect(s, 1, false, r, OK);
	sim_free(s);
	/* without SRQ it may not; the far end learns of an operation error.  A target of XRC has no domain
	 * but the SRQ's. */
	s = sim_desk(CFG(.local = true));
	s->n[1].qp.pd_id = 99;
	if (sim_as == SIM_AS_XRC)
		s->n[1].pd.id = 99;
	r = sim_take(s, 1, 0, 8);
	sim_op(s, 0, IBV_WR_SEND, 0, 8, 0);
	sim_settle(s);
	sim_expect(s, 1, false, r, IBV_WC_LOC_PROT_ERR);
	sim_expect(s, 0, true, 2, IBV_WC_REM_OP_ERR);
	sim_free(s);
}

static void rule_22_the_qp_must_permit_it_too(void **state)
{
	static const struct {
		enum ibv_wr_opcode op;
		uint32_t bit;
	} rows[] = {
	    {IBV_WR_RDMA_WRITE, IBV_ACCESS_REMOTE_WRITE},
	    {IBV_WR_RDMA_WRITE_WITH_IMM, IBV_ACCESS_REMOTE_WRITE},
	    {IBV_WR_RDMA_READ, IBV_ACCESS_REMOTE_READ},
	    {IBV_WR_ATOMIC_CMP_AND_SWP, IBV_ACCESS_REMOTE_ATOMIC},
	    {IBV_WR_ATOMIC_FETCH_AND_ADD, IBV_ACCESS_REMOTE_ATOMIC},
	};

	(void)state;
	for (unsigned i = 0; i < sizeof rows / sizeof *rows; i++) {
		struct sim *s = sim_desk(CFG(.access = 0xf & ~rows[i].bit));

		sim_take(s, 1, 64, 8);
		sim_op(s, 0, rows[i].op, 0, 8, 0);
		sim_settle(s);
		sim_expect(s, 0, true, 2, IBV_WC_REM_INV_REQ_ERR);
		assert_int_equal(sim_event(s, 1), IBV_EVENT_QP_REQ_ERR);
		sim_free(s);
		s = sim_desk(CFG(.access = rows[i].bit)); /* that bit is enough */
		sim_take(s, 1, 64, 8);
		sim_op(s, 0, rows[i].op, 0, 8, 0);
		sim_settle(s);
		sim_expect(s, 0, true, 2, OK);
		sim_free(s);
	}
}

static void rule_23_message_longer_than_the_buffer(void **state)
{
	static const uint32_t lengths[][2] = {{9, 8},	    {1, 0},	  {3000, 2999},
					      {3000, 1024}, {3000, 1500}, {1025, 1024}};

	(void)state;
	for (unsigned i = 0; i < 12; i++) {
		struct sim *s = sim_desk(CFG(.srq = i >= 6));
		uint32_t len = lengths[i % 6][0], room = lengths[i % 6][1];
		uint64_t r, r2;

		sim_fill(s, 4096);
		r = sim_take(s, 1, 8192, room);
		r2 = sim_take(s, 1, 16384, 64);
		sim_op(s, 0, IBV_WR_SEND, 0, len, 0);
		sim_settle(s);
		sim_expect(s, 1, false, r, IBV_WC_LOC_LEN_ERR);
		sim_expect(s, 0, true, 3, IBV_WC_REM_INV_REQ_ERR);
		for (int k = 0; k < 64; k++) /* nothing behind the buffer */
			assert_int_equal(s->mem[1][8192 + room + (uint32_t)k], 0);
		sim_flushed(s, 1, r2);
		sim_expect_none(s, 1);
		sim_free(s);
	}
}

static void remote_operation_error(void **state)
{
	struct sim *s = sim_desk(QUIET);
	struct ibv_sge e[2];
	uint64_t a;

	(void)state;
	e[0] = (struct ibv_sge){(uintptr_t)s->mem[1], 8, s->lkey[1]};
	e[1] = (struct ibv_sge){(uintptr_t)s->mem[1] + 64, 8, s->lkey[1] ^ 1};
	assert_int_equal(sim_recv(s, 1, 77, e, 2), 0);
	assert_int_equal(sim_recv(s, 1, 78, e, 2), 0);
	sim_fill(s, 64);
	/* the bad SGE is not reached by a short message */
	a = sim_op(s, 0, IBV_WR_SEND, 0, 8, 0);
	sim_settle(s);
	sim_expect(s, 0, true, a, OK);
	sim_expect(s, 1, false, 77, OK);
	a = sim_op(s, 0, IBV_WR_SEND, 0, 9, 0);
	sim_settle(s);
	sim_expect(s, 0, true, a, IBV_WC_REM_OP_ERR);
	sim_expect(s, 1, false, 78, IBV_WC_LOC_PROT_ERR);
	assert_int_equal(s->n[1].qp.state, IBV_QPS_ERR);
	sim_free(s);
}

static void rule_25_write_with_immediate(void **state)
{
	static const uint32_t lengths[] = {0, 1, 1024, 1025, 5000};

	(void)state;
	for (unsigned i = 0; i < 5; i++) {
		struct sim *s = sim_desk(QUIET);
		uint64_t r = sim_take(s, 1, 65536, 4), r2 = sim_take(s, 1, 65536, 4);
		struct ibv_wc wc;

		sim_fill(s, 8192);
		sim_op(s, 0, IBV_WR_RDMA_WRITE_WITH_IMM, 0, lengths[i], 16384);
		sim_settle(s);
		assert_int_equal(sim_expect(s, 0, true, 3, OK).opcode, IBV_WC_RDMA_WRITE);
		wc = sim_expect(s, 1, false, r, OK);
		assert_int_equal(wc.opcode, IBV_WC_RECV_RDMA_WITH_IMM);
		assert_int_equal(wc.byte_len, lengths[i]);
		assert_int_equal(wc.wc_flags, IBV_WC_WITH_IMM);
		assert_int_equal(wc.imm_data, 0x01020304); /* as given: network order, untouched */
		assert_memory_equal(s->mem[1] + 16384, s->mem[0], lengths[i]);
		assert_int_equal(s->mem[1][16384 + lengths[i]], 0);
		sim_expect_none(s, 1); /* one WQE, no more */
		sim_op(s, 0, IBV_WR_SEND_WITH_IMM, 0, 4, 0);
		sim_settle(s);
		wc = sim_expect(s, 1, false, r2, OK);
		assert_int_equal(wc.opcode, IBV_WC_RECV);
		assert_int_equal(wc.wc_flags, IBV_WC_WITH_IMM);
		sim_free(s);
	}
}

static enum sim_verdict everything_twice(struct sim *s, unsigned from, const struct vb_pkt *p)
{
	(void)s;
	(void)from;
	(void)p;
	return SIM_DUP;
}

static void rule_26_duplicates_complete_once(void **state)
{
	struct sim *s = sim_desk(CFG(.mtu = 256, .timeout = 12));
	uint64_t r[20];

	(void)state;
	s->filter = everything_twice;
	sim_fill(s, 4096);
	for (uint32_t i = 0; i < 20; i++)
		r[i] = sim_take(s, 1, 8192 + i * 1024, 1024);
	for (uint32_t i = 0; i < 20; i++)
		sim_op(s, 0, i & 1 ? IBV_WR_SEND : IBV_WR_RDMA_WRITE_WITH_IMM, i, i * 50, 65536);
	sim_settle(s);
	for (uint32_t i = 0; i < 20; i++) {
		sim_expect(s, 0, true, 21 + i, OK);
		assert_int_equal(sim_expect(s, 1, false, r[i], OK).byte_len, i * 50);
		if (i & 1)
			assert_memory_equal(s->mem[1] + 8192 + i * 1024, s->mem[0] + i, i * 50);
	}
	sim_expect_none(s, 0);
	sim_expect_none(s, 1);
	sim_free(s);
}

/* rule 14 from the other side: what is asked for beyond the responder resources is refused before it is
 * executed, since its answer could not be kept.  No answer finds room here. */
static void rule_17_no_more_than_can_be_remembered(void **state)
{
	static const uint8_t ops[] = {VB_RC_FETCH_ADD, VB_RC_READ_REQUEST};

	(void)state;
	for (unsigned i = 0; i < 2; i++) {
		struct sim *s = sim_desk(CFG(.room = 0, .dest_rd_atomic = 2));
		struct vb_pkt p = {.psn = 100,
				   .ack_req = true,
				   .opcode = ops[i],
				   .va = (uintptr_t)s->mem[1],
				   .rkey = sim_rkey(s->lkey[1]),
				   .dma_len = 8,
				   .swap_add = 1};

		for (; p.psn < 102; p.psn++) {
			sim_inject(s, 1, &p, NULL, 0);
			assert_int_equal(s->n[1].qp.state, IBV_QPS_RTS);
		}
		sim_inject(s, 1, &p, NULL, 0);
		assert_int_equal(s->n[1].qp.state, IBV_QPS_ERR);
		assert_int_equal(s->n[1].qp.why.reason, VB_R_TOO_MANY_READS);
		assert_int_equal(*word(s, 1, 0), i ? 0 : 2);
		sim_free(s);
	}
}

/* A packet says that its data was placed: only that of a WRITE with immediate in one packet is, and the key
 * is checked as if the data came now. */
static void what_was_placed_is_checked(void **state)
{
	static const uint8_t ops[] = {VB_RC_WRITE_ONLY_IMM, VB_RC_WRITE_ONLY, VB_RC_WRITE_LAST_IMM,
				      VB_RC_WRITE_FIRST};

	(void)state;
	for (unsigned i = 0; i <= sizeof ops; i++) {
		bool wrong_key = i == sizeof ops;
		struct sim *s = sim_desk(QUIET);
		struct vb_pkt p = {.psn = 100,
				   .opcode = VB_RC_WRITE_FIRST,
				   .va = (uintptr_t)s->mem[1],
				   .rkey = sim_rkey(s->lkey[1]) ^ wrong_key,
				   .dma_len = 1024 + 8};
		uint8_t bytes[1024] = {0};
		uint64_t r = sim_take(s, 1, 0, 0);

		if (!wrong_key && ops[i] == VB_RC_WRITE_LAST_IMM) {
			sim_inject(s, 1, &p, bytes, sizeof bytes);
			p.psn++;
		}
		p.opcode = wrong_key ? VB_RC_WRITE_ONLY_IMM : ops[i];
		p.placed = true;
		sim_inject(s, 1, &p, bytes, p.opcode == VB_RC_WRITE_FIRST ? sizeof bytes : 0);
		if (!i) {
			assert_int_equal(sim_expect(s, 1, false, r, OK).byte_len, 1024 + 8);
		} else {
			assert_int_equal(s->n[1].qp.state, IBV_QPS_ERR);
			if (wrong_key)
				sim_expect(s, 1, false, r, IBV_WC_LOC_ACCESS_ERR);
			else if (sim_as != SIM_AS_XRC)
				sim_expect(s, 1, false, r, IBV_WC_WR_FLUSH_ERR);
			sim_expect_none(s, 1);
		}
		sim_free(s);
	}
}

static void rule_26_nothing_is_executed_in_err(void **state)
{
	struct sim *s = sim_desk(QUIET);
	struct vb_pkt p = {.psn = 100, .ack_req = true, .opcode = VB_RC_WRITE_ONLY, .dma_len = 8};
	uint8_t bytes[8] = "too late";
	uint64_t r = sim_take(s, 1, 0, 8);

	(void)state;
	p.va = (uintptr_t)s->mem[1];
	p.rkey = sim_rkey(s->lkey[1]);
	sim_modify(s, 1, IBV_QPS_ERR);
	sim_inject(s, 1, &p, bytes, 8);
	p.opcode = VB_RC_SEND_ONLY;
	sim_inject(s, 1, &p, bytes, 8);
	p.opcode = VB_RC_FETCH_ADD;
	sim_inject(s, 1, &p, NULL, 0);
	assert_int_equal(s->packets, 0);
	assert_int_equal(*word(s, 1, 0), 0);
	sim_flushed(s, 1, r);
	sim_expect_none(s, 1);
	sim_free(s);
}

/* What was posted is the library's: changing the list afterwards changes nothing. */
static void rule_27_receive_requests_are_copied(void **state)
{
	struct sim *s = sim_desk(QUIET);
	struct ibv_sge e = {(uintptr_t)s->mem[1], 8, s->lkey[1]};

	(void)state;
	memcpy(s->mem[0], "message", 8);
	assert_int_equal(sim_recv(s, 1, 5, &e, 1), 0);
	e.addr += 64;
	e.lkey = 0;
	e.length = 1 << 30;
	sim_op(s, 0, IBV_WR_SEND, 0, 8, 0);
	sim_settle(s);
	sim_expect(s, 1, false, 5, OK);
	assert_string_equal((char *)s->mem[1], "message");
	sim_free(s);
}

static void rule_28_padding_and_solicited_per_packet(void **state)
{
	(void)state;
	for (uint32_t len = 0; len < 12; len++) {
		struct sim *s = sim_desk(CFG(.mtu = 256));
		struct ibv_sge e;
		struct ibv_send_wr wr = sim_wr(s, 0, IBV_WR_SEND, 0, 512 + len, 0, &e);

		sim_fill(s, 1024);
		sim_take(s, 1, 8192, 1024);
		wr.send_flags |= IBV_SEND_SOLICITED;
		assert_int_equal(sim_send(s, 0, &wr), 0);
		if (sim_acked())
			sim_op(s, 0, IBV_WR_RDMA_READ, 4096, 512 + len, 0);
		sim_settle(s);
		sim_expect(s, 0, true, wr.wr_id, OK);
		for (uint32_t i = 0; i < s->seen; i++) {
			const struct vb_pkt *p = &s->trace[i].p;

			assert_int_equal((p->payload_len + p->pad) % 4, 0);
			assert_int_equal(p->pad, -p->payload_len & 3);
			assert_int_equal(p->solicited,
					 s->trace[i].from == 0 && (p->op->bits & VB_OP_TAKES_WQE) != 0);
			assert_int_equal(p->pkey, 0xffff);
		}
		assert_memory_equal(s->mem[1] + 8192, s->mem[0], 512 + len);
		if (sim_acked())
			assert_memory_equal(s->mem[0] + 4096, s->mem[1], 512 + len);
		sim_free(s);
	}
}

/* rule 46: a region made by ibv_reg_mr is nothing that a peer may invalidate; windows: test_windows.c */
static void send_with_invalidate_is_refused(void **state)
{
	struct sim *s = sim_desk(QUIET);
	struct ibv_sge e;
	struct ibv_send_wr wr = sim_wr(s, 0, IBV_WR_SEND_WITH_INV, 0, 8, 0, &e);
	uint64_t r = sim_take(s, 1, 0, 8);

	(void)state;
	wr.invalidate_rkey = sim_rkey(s->lkey[1]);
	assert_int_equal(sim_send(s, 0, &wr), 0);
	sim_settle(s);
	sim_expect(s, 0, true, wr.wr_id, IBV_WC_REM_ACCESS_ERR);
	sim_expect(s, 1, false, r, IBV_WC_WR_FLUSH_ERR);
	assert_int_equal(vb_mem_check(&s->n[1].keys,
				      &(struct vb_mem_want){.key = s->lkey[1],
							    .remote = false,
							    .pd = s->n[1].pd.id,
							    .addr = (uintptr_t)s->mem[1],
							    .len = 8,
							    .access = 0},
				      NULL),
			 VB_OK); /* the region is as it was */
	sim_free(s);
}

int main(void)
{
	const struct CMUnitTest connected[] = {
	    cmocka_unit_test(rule_18_zero_length_names_no_memory),
	    cmocka_unit_test(rule_25_write_with_immediate),
	    cmocka_unit_test(rule_27_receive_requests_are_copied),
	    cmocka_unit_test(rule_28_padding_and_solicited_per_packet),
	};
	const struct CMUnitTest acked[] = {
	    cmocka_unit_test(rule_15_every_fault_is_nakked),
	    cmocka_unit_test(rule_16_nak_of_an_atomic),
	    cmocka_unit_test(rule_17_duplicate_atomic_replays_its_result),
	    cmocka_unit_test(rule_17_lost_atomic_answers),
	    cmocka_unit_test(rule_17_duplicate_read_is_executed_again),
	    cmocka_unit_test(rule_17_duplicate_send_and_write_are_acked),
	    cmocka_unit_test(rule_18_atomics_are_8_bytes),
	    cmocka_unit_test(rule_18_aligned_for_the_cpu_too),
	    cmocka_unit_test(rule_19_ranges_that_overflow),
	    cmocka_unit_test(rule_20_rkey_violation),
	    cmocka_unit_test(rule_20_with_immediate),
	    cmocka_unit_test(rule_21_srq_buffers_belong_to_its_pd),
	    cmocka_unit_test(rule_22_the_qp_must_permit_it_too),
	    cmocka_unit_test(rule_23_message_longer_than_the_buffer),
	    cmocka_unit_test(remote_operation_error),
	    cmocka_unit_test(rule_17_no_more_than_can_be_remembered),
	    cmocka_unit_test(what_was_placed_is_checked),
	    cmocka_unit_test(rule_26_duplicates_complete_once),
	    cmocka_unit_test(rule_26_nothing_is_executed_in_err),
	    cmocka_unit_test(send_with_invalidate_is_refused),
	};

	return SIM_RUN(connected, SIM_OVER_ACKED | 1 << SIM_AS_UC) + SIM_RUN(acked, SIM_OVER_ACKED);
}
