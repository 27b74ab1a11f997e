/* Unreliable connections (IBTA 9.8): a request is complete when it has left, nothing is answered, and what
 * the responder cannot take it drops, whole messages at a time.
 *
 * The first argument or VB_SEEDS: how many seeds (50; 1000 with VERBENA_SOAK); the second argument: the first
 * of them. */
#include <string.h>

#include "seeds.h"
#include "sim.h"

#define CFG(...) SIM_CFG(.family = VB_FAMILY_UC, __VA_ARGS__)
#define OK	 IBV_WC_SUCCESS

enum { MTU = 256 };
#define UC(operation) (VB_FAMILY_UC | VB_##operation)

/* The far end has said nothing, and has seen nothing wrong. */
static void expect_silence(struct sim *s)
{
	for (uint32_t i = 0; i < s->seen; i++)
		assert_int_equal(s->trace[i].from, 0);
	assert_int_equal(s->n[1].qp.state, IBV_QPS_RTS);
	assert_int_equal(sim_event(s, 1), -1);
}

static void a_request_is_complete_when_it_has_left(void **state)
{
	struct sim *s = sim_desk(CFG(.mtu = MTU));
	uint64_t r = sim_take(s, 1, 0, 4096), a;
	struct ibv_wc wc;

	(void)state;
	sim_fill(s, 4096);
	a = sim_op(s, 0, IBV_WR_SEND, 0, 1000, 0);
	sim_run_for(s, 1);
	assert_int_equal(s->n[0].wire.delivered, 0);
	sim_expect(s, 0, true, a, OK);
	sim_settle(s);
	wc = sim_expect(s, 1, false, r, OK);
	assert_int_equal(wc.byte_len, 1000);
	assert_memory_equal(s->mem[0], s->mem[1], 1000);
	assert_int_equal(s->seen, 4);
	for (uint32_t i = 0; i < s->seen; i++)
		assert_false(s->trace[i].p.ack_req);
	expect_silence(s);
	sim_free(s);
}

/* Requests that are posted together complete one after the other as they leave, and nothing is left of them
 * once that has failed. */
static void a_list_ends_where_completions_overrun(void **state)
{
	enum { LIST = 7 };
	struct sim *s = sim_desk(CFG(.mtu = MTU, .cqe = 2));
	const struct vb_req *q = &s->n[0].qp.req;
	struct ibv_send_wr wr[LIST];
	struct ibv_sge sge[LIST];

	(void)state;
	for (unsigned i = 0; i < LIST; i++) {
		wr[i] = sim_wr(s, 0, IBV_WR_SEND, 0, 8, 0, &sge[i]);
		wr[i].next = i < LIST - 1 ? &wr[i + 1] : NULL;
	}
	assert_int_equal(sim_send(s, 0, wr), 0);
	sim_settle(s);
	assert_int_equal(s->n[0].qp.state, IBV_QPS_ERR);
	assert_int_equal(s->n[0].qp.why.reason, VB_R_CQ_OVERRUN);
	assert_int_equal(q->seen, LIST);
	assert_int_equal(q->una, LIST);
	sim_free(s);
}

static enum sim_verdict lost(struct sim *s, unsigned from, const struct vb_pkt *p)
{
	(void)s, (void)from, (void)p;
	return SIM_DROP;
}

/* A message of more packets than may be outstanding where they are acknowledged (rule 12).  Its memory is a
 * null region. */
static void nothing_outstanding_holds_it_up(void **state)
{
	struct sim *s = sim_desk(CFG(.mtu = MTU));
	struct vb_key_spec nothing = {
	    .kind = VB_KEY_NULL, .pd = s->n[0].pd.id, .access = IBV_ACCESS_LOCAL_WRITE, .length = UINT64_MAX};
	struct ibv_sge e;
	struct ibv_send_wr wr = sim_wr(s, 0, IBV_WR_SEND, 0, 8, 0, &e);

	(void)state;
#if defined(__SANITIZE_THREAD__) /* 2^23 packets in one thread take long there, and there is nothing to see \
				  */
	sim_free(s);
	skip();
#endif
	s->filter = lost;
	e = (struct ibv_sge){0, VB_MAX_MSG, vb_key_publish(&s->n[0].keys, &nothing)};
	assert_int_equal(sim_send(s, 0, &wr), 0);
	sim_settle(s);
	assert_int_equal(s->packets, VB_MAX_MSG / MTU);
	sim_expect(s, 0, true, wr.wr_id, OK);
	sim_free(s);
}

static void writes_arrive(void **state)
{
	struct sim *s = sim_desk(CFG(.mtu = MTU));
	uint64_t r = sim_take(s, 1, 0, 8);
	struct ibv_wc wc;

	(void)state;
	sim_fill(s, 4096);
	sim_op(s, 0, IBV_WR_RDMA_WRITE, 0, 700, 8192);
	sim_op(s, 0, IBV_WR_RDMA_WRITE_WITH_IMM, 1024, 300, 16384);
	sim_settle(s);
	assert_memory_equal(s->mem[0], s->mem[1] + 8192, 700);
	assert_memory_equal(s->mem[0] + 1024, s->mem[1] + 16384, 300);
	wc = sim_expect(s, 1, false, r, OK);
	assert_int_equal(wc.opcode, IBV_WC_RECV_RDMA_WITH_IMM);
	assert_int_equal(wc.byte_len, 300);
	expect_silence(s);
	sim_free(s);
}

/* The receive request of the message that broke off is the next one's. */
static void rule_26_a_lost_packet_drops_its_message(void **state)
{
	static const uint8_t lost[] = {VB_SEND_FIRST, VB_SEND_MIDDLE, VB_SEND_LAST};

	(void)state;
	for (unsigned i = 0; i < sizeof lost; i++) {
		struct sim *s = sim_desk(CFG(.mtu = MTU));
		uint64_t wr = sim_take(s, 1, 0, 4096);
		struct ibv_wc wc;

		sim_drop(s, 0, VB_FAMILY_UC | lost[i], 0);
		sim_fill(s, 8192);
		sim_op(s, 0, IBV_WR_SEND, 0, 3 * MTU, 0);
		sim_op(s, 0, IBV_WR_SEND, 4096, 500, 0);
		sim_settle(s);
		wc = sim_expect(s, 1, false, wr, OK);
		assert_int_equal(wc.byte_len, 500);
		assert_memory_equal(s->mem[0] + 4096, s->mem[1], 500);
		sim_expect_none(s, 1);
		expect_silence(s);
		assert_true(s->n[1].qp.said >> VB_R_DROP_SEQUENCE & 1);
		for (unsigned r = 0; r < VB_REASONS; r++) /* once, as what it is */
			assert_int_equal(s->n[1].drops.count[r], r == VB_R_DROP_SEQUENCE);
		sim_free(s);
	}
}

/* A packet of an earlier message comes late, in the middle of another, which is dropped and counted once. */
static void rule_26_a_stray_packet_drops_the_message_in_hand(void **state)
{
	static const struct {
		uint8_t opcode;
		int8_t psn;
	} come[] = {{UC(SEND_FIRST), 0}, {UC(SEND_MIDDLE), -3}, {UC(SEND_MIDDLE), 1}, {UC(SEND_LAST), 2}};
	struct sim *s = sim_desk(CFG(.mtu = MTU));

	(void)state;
	sim_take(s, 1, 0, 4096);
	for (unsigned i = 0; i < sizeof come / sizeof come[0]; i++) {
		struct vb_pkt p = {.opcode = come[i].opcode, .psn = s->cfg.psn[0] + (uint32_t)come[i].psn};

		sim_inject(s, 1, &p, s->mem[0], MTU);
	}
	sim_expect_none(s, 1);
	for (unsigned r = 0; r < VB_REASONS; r++)
		assert_int_equal(s->n[1].drops.count[r], r == VB_R_DROP_SEQUENCE);
	sim_op(s, 0, IBV_WR_SEND, 0, 8, 0);
	sim_settle(s);
	assert_true(s->n[1].rcq.head != s->n[1].rcq.tail);
	sim_free(s);
}

static void rule_23_what_cannot_be_taken_is_dropped(void **state)
{
	struct sim *s = sim_desk(CFG(.mtu = MTU));
	struct ibv_send_wr wr;
	struct ibv_sge sge;
	uint64_t r;

	(void)state;
	sim_fill(s, 8192);
	sim_op(s, 0, IBV_WR_SEND, 0, 100, 0); /* no receive request */
	sim_settle(s);
	assert_true(s->n[1].qp.said >> VB_R_DROP_NO_RECV & 1);
	r = sim_take(s, 1, 0, 100);
	sim_op(s, 0, IBV_WR_SEND, 0, 101, 0); /* longer than it, in one packet and in several */
	sim_op(s, 0, IBV_WR_SEND, 0, 3 * MTU, 0);
	wr = sim_wr(s, 0, IBV_WR_RDMA_WRITE, 0, 2 * MTU, 32768, &sge);
	wr.wr.rdma.rkey ^= 1; /* no such key */
	assert_int_equal(sim_send(s, 0, &wr), 0);
	sim_settle(s);
	assert_true(s->n[1].qp.said >> VB_R_RECV_TOO_SMALL & 1);
	sim_expect_none(s, 1);
	sim_op(s, 0, IBV_WR_SEND, 4096, 100, 0);
	sim_settle(s);
	sim_expect(s, 1, false, r, OK);
	assert_memory_equal(s->mem[0] + 4096, s->mem[1], 100);
	expect_silence(s);
	sim_free(s);
}

static void rule_22_the_qp_must_permit_it_too(void **state)
{
	struct sim *s = sim_desk(CFG(.mtu = MTU, .access = IBV_ACCESS_LOCAL_WRITE));
	uint8_t before[64];

	(void)state;
	sim_fill(s, 4096);
	memcpy(before, s->mem[1] + 1024, sizeof before);
	sim_op(s, 0, IBV_WR_RDMA_WRITE, 0, sizeof before, 1024);
	sim_settle(s);
	assert_memory_equal(before, s->mem[1] + 1024, sizeof before);
	assert_true(s->n[1].qp.said >> VB_R_QP_ACCESS & 1);
	expect_silence(s);
	sim_free(s);
}

/* The send queue stops; what comes in is taken; and the program may go on. */
static void rule_30_an_error_at_this_end_stops_the_send_queue(void **state)
{
	struct sim *s = sim_desk(CFG(.mtu = MTU, .sge = 2));
	uint64_t r[2] = {sim_take(s, 1, 0, 4096), sim_take(s, 1, 0, 4096)}, in = sim_take(s, 0, 8192, 64), a,
		 b, c;
	struct ibv_sge sge[2];
	struct ibv_send_wr wr;

	(void)state;
	sim_fill(s, 4096);
	wr = sim_wr(s, 0, IBV_WR_SEND, 0, 2 * MTU, 0, sge);
	sge[1] = sge[0];
	sge[1].lkey = sim_stale(s, 0);
	wr.num_sge = 2;
	a = wr.wr_id;
	assert_int_equal(sim_send(s, 0, &wr), 0);
	b = sim_op(s, 0, IBV_WR_SEND, 0, 8, 0);
	sim_settle(s);
	sim_expect(s, 0, true, a, IBV_WC_LOC_PROT_ERR);
	sim_expect(s, 0, true, b, IBV_WC_WR_FLUSH_ERR);
	assert_int_equal(s->n[0].qp.state, IBV_QPS_SQE);
	c = sim_op(s, 0, IBV_WR_SEND, 0, 8, 0);
	sim_settle(s);
	sim_expect(s, 0, true, c, IBV_WC_WR_FLUSH_ERR);
	b = sim_op(s, 1, IBV_WR_SEND, 0, 32, 0);
	sim_settle(s);
	sim_expect(s, 1, true, b, OK);
	sim_expect(s, 0, false, in, OK);
	sim_modify(s, 0, IBV_QPS_RTS);
	a = sim_op(s, 0, IBV_WR_SEND, 0, 8, 0);
	sim_settle(s);
	sim_expect(s, 0, true, a, OK);
	sim_expect(s, 1, false, r[0], OK);
	sim_expect_none(s, 1);
	(void)r[1];
	sim_free(s);
}

static void a_receive_buffer_that_is_none_is_an_error(void **state)
{
	struct sim *s = sim_desk(CFG(.mtu = MTU));
	struct ibv_sge sge = {(uintptr_t)s->mem[1], 64, sim_stale(s, 1)};

	(void)state;
	assert_int_equal(sim_recv(s, 1, 77, &sge, 1), 0);
	sim_op(s, 0, IBV_WR_SEND, 0, 8, 0);
	sim_settle(s);
	sim_expect(s, 1, false, 77, IBV_WC_LOC_PROT_ERR);
	assert_int_equal(s->n[1].qp.state, IBV_QPS_ERR);
	assert_int_equal(s->n[0].qp.state, IBV_QPS_RTS); /* which hears nothing of it */
	for (uint32_t i = 0; i < s->seen; i++)
		assert_int_equal(s->trace[i].from, 0);
	sim_free(s);
}

/* One message was dropped, as what it is, and the queue pair takes the next one. */
static void dropped_as(struct sim *s, enum vb_reason reason, uint64_t receive)
{
	uint64_t psn = s->n[1].qp.resp.epsn;

	expect_silence(s);
	for (unsigned r = 0; r < VB_REASONS; r++)
		assert_int_equal(s->n[1].drops.count[r], r == reason);
	sim_expect_none(s, 1);
	s->n[0].qp.req.psn = (uint32_t)psn;
	sim_op(s, 0, IBV_WR_SEND, 0, 8, 0);
	sim_settle(s);
	sim_expect(s, 1, false, receive, OK);
}

/* What RC would refuse (sim/test_responder_rules.c: the same faults). */
static void rule_15_every_fault_is_dropped_and_counted(void **state)
{
	static const struct {
		uint8_t opcode, before; /* a packet that comes first, 0xff: none */
		uint32_t dma_len, payload;
		bool bad_key;
		uint32_t shift;
		uint8_t reason;
	} faults[] = {
	    {VB_SEND_MIDDLE, 0xff, 0, MTU, 0, 0, VB_R_BAD_SEQUENCE},
	    {VB_SEND_LAST, 0xff, 0, 8, 0, 0, VB_R_BAD_SEQUENCE},
	    {VB_WRITE_MIDDLE, 0xff, 0, MTU, 0, 0, VB_R_BAD_SEQUENCE},
	    {VB_WRITE_LAST_IMM, 0xff, 0, 8, 0, 0, VB_R_BAD_SEQUENCE},
	    {VB_SEND_MIDDLE, VB_WRITE_FIRST, 0, MTU, 0, 0, VB_R_BAD_SEQUENCE},
	    {VB_WRITE_FIRST, 0xff, 512, 255, 0, 0, VB_R_BAD_LENGTH},
	    {VB_WRITE_FIRST, 0xff, MTU, MTU, 0, 0, VB_R_BAD_LENGTH},
	    {VB_WRITE_ONLY, 0xff, 8, 9, 0, 0, VB_R_BAD_LENGTH},
	    {VB_WRITE_ONLY, 0xff, 300, 300, 0, 0, VB_R_BAD_LENGTH},
	    {VB_WRITE_LAST, VB_WRITE_FIRST, 0, 255, 0, 0, VB_R_BAD_LENGTH},
	    {VB_WRITE_ONLY, 0xff, 0x80000001u, 8, 0, 0, VB_R_BAD_LENGTH},
	    {VB_WRITE_ONLY, 0xff, 8, 8, 1, 0, VB_R_KEY_IS_LOCAL},
	    {VB_WRITE_ONLY_IMM, 0xff, 8, 8, 1, 0, VB_R_KEY_IS_LOCAL},
	    {VB_WRITE_FIRST, 0xff, 512, MTU, 1, 0, VB_R_KEY_IS_LOCAL},
	    {VB_WRITE_FIRST, 0xff, 512, MTU, 0, SIM_MEM - 511, VB_R_KEY_BOUNDS},
	};
	uint8_t payload[512] = {0xab};

	(void)state;
	for (unsigned i = 0; i < sizeof faults / sizeof *faults; i++) {
		struct sim *s = sim_desk(CFG(.mtu = MTU));
		uint64_t r = sim_take(s, 1, 65536, 64);
		struct vb_pkt p = {.opcode = (uint8_t)(VB_FAMILY_UC | faults[i].before),
				   .psn = 100,
				   .va = (uintptr_t)s->mem[1],
				   .dma_len = 512,
				   .rkey = sim_rkey(s->lkey[1])};

		if (faults[i].before != 0xff) {
			sim_inject(s, 1, &p, payload, MTU);
			p.psn++;
		}
		p.opcode = (uint8_t)(VB_FAMILY_UC | faults[i].opcode);
		p.va += faults[i].shift;
		p.dma_len = faults[i].dma_len;
		if (faults[i].bad_key)
			p.rkey = s->lkey[1];
		sim_inject(s, 1, &p, payload, faults[i].payload);
		dropped_as(s, (enum vb_reason)faults[i].reason, r);
		sim_free(s);
	}
}

/* rules 19, 20, 21: what may not be written is not; a receive request is for the next message. */
static void rule_20_rkey_violation(void **state)
{
	static const enum vb_reason reasons[] = {VB_R_KEY_STALE, VB_R_KEY_IS_LOCAL, VB_R_KEY_ACCESS,
						 VB_R_KEY_PD, VB_R_KEY_BOUNDS};

	(void)state;
	for (unsigned i = 0; i < 10; i++) {
		struct sim *s = sim_desk(CFG(.mtu = MTU));
		uint64_t r = sim_take(s, 1, 65536, 64);
		struct ibv_sge e;
		struct ibv_send_wr wr =
		    sim_wr(s, 0, i < 5 ? IBV_WR_RDMA_WRITE : IBV_WR_RDMA_WRITE_WITH_IMM, 0, 8, 0, &e);
		struct vb_key_spec foreign = {.pd = 99,
					      .access = 0xf,
					      .iova = (uintptr_t)s->mem[1],
					      .addr = (uintptr_t)s->mem[1],
					      .length = 64};
		uint32_t keys[] = {sim_rkey(sim_stale(s, 1)), s->lkey[1],
				   sim_rkey(sim_reg(s, 1, s->mem[1], 64, IBV_ACCESS_LOCAL_WRITE)),
				   sim_rkey(vb_key_publish(&s->n[1].keys, &foreign)), sim_rkey(s->lkey[1])};

		wr.wr.rdma.rkey = keys[i % 5];
		if (reasons[i % 5] == VB_R_KEY_BOUNDS) /* rule 19 */
			wr.wr.rdma.remote_addr = UINT64_MAX - 3;
		assert_int_equal(sim_send(s, 0, &wr), 0);
		sim_settle(s);
		sim_expect(s, 0, true, wr.wr_id, OK);
		for (unsigned k = 0; k < 64; k++)
			assert_int_equal(s->mem[1][k], 0);
		dropped_as(s, reasons[i % 5], r);
		sim_free(s);
	}
}

/* Nothing is sent again on such a connection; what comes late, of a message before, completes nothing. */
static void rule_26_the_rest_of_what_was_taken_is_no_message(void **state)
{
	static const uint8_t ops[] = {UC(SEND_ONLY), UC(SEND_ONLY_IMM), UC(WRITE_ONLY_IMM)};

	(void)state;
	for (unsigned i = 0; i < sizeof ops; i++) {
		struct sim *s = sim_desk(CFG(.mtu = MTU));
		uint64_t r[2] = {sim_take(s, 1, 0, 64), sim_take(s, 1, 0, 64)};
		struct vb_pkt p = {.psn = 100,
				   .opcode = ops[i],
				   .va = (uintptr_t)s->mem[1],
				   .rkey = sim_rkey(s->lkey[1]),
				   .dma_len = 8};

		sim_inject(s, 1, &p, s->mem[0], 8);
		sim_expect(s, 1, false, r[0], OK);
		p.opcode = UC(SEND_LAST);
		p.psn = 99;
		sim_inject(s, 1, &p, s->mem[0], 8);
		sim_expect_none(s, 1);
		expect_silence(s);
		sim_free(s);
	}
}

/* A packet in hand when the queue pair enters the error state is not taken; it counts. */
static void rule_26_nothing_is_executed_in_err(void **state)
{
	struct sim *s = sim_desk(CFG(.mtu = MTU));
	uint64_t r = sim_take(s, 1, 0, 4096);

	(void)state;
	memset(s->mem[0], 0x77, 4096);
	sim_op(s, 0, IBV_WR_SEND, 0, 2 * MTU, 0);
	sim_op(s, 0, IBV_WR_RDMA_WRITE, 0, 2 * MTU, 8192);
	sim_run_for(s, 1);
	sim_modify(s, 1, IBV_QPS_ERR);
	sim_settle(s);
	sim_expect(s, 1, false, r, IBV_WC_WR_FLUSH_ERR);
	sim_expect_none(s, 1);
	assert_int_equal(s->mem[1][0], 0);
	assert_int_equal(s->mem[1][8192], 0);
	assert_int_equal(s->n[1].drops.count[VB_R_DROP_NO_QP], 2); /* messages, of two packets each */
	sim_free(s);
}

/* What an SRQ gave for a message that broke off is held, and consumed before the event (rule 35). */
static void rule_35_last_wqe_reached(void **state)
{
	struct sim *s = sim_desk(CFG(.mtu = MTU, .srq = true));
	uint64_t r = sim_take(s, 1, 0, 4096);

	(void)state;
	sim_take(s, 1, 0, 4096);
	sim_drop(s, 0, UC(SEND_LAST), 0);
	sim_op(s, 0, IBV_WR_SEND, 0, 3 * MTU, 0);
	sim_settle(s);
	sim_modify(s, 1, IBV_QPS_ERR);
	sim_expect(s, 1, false, r, IBV_WC_WR_FLUSH_ERR);
	sim_expect_none(s, 1);
	assert_int_equal(sim_event(s, 1), IBV_EVENT_QP_LAST_WQE_REACHED);
	assert_int_equal(sim_event(s, 1), -1);
	assert_false(vb_rq_empty(&s->n[1].srq.rq));
	sim_free(s);
}

/* What had begun when the queue was to drain ends, what had not waits. */
static void rule_38_sqd_drains_and_resumes(void **state)
{
	struct sim *s = sim_desk(CFG(.mtu = MTU, .room = 4));
	uint64_t r[2] = {sim_take(s, 1, 0, 4096), sim_take(s, 1, 0, 4096)}, a[2];

	(void)state;
	s->n[0].qp.attr.en_sqd_async_notify = 1;
	s->n[0].wire.held = 2; /* one packet of three goes */
	a[0] = sim_op(s, 0, IBV_WR_SEND, 0, 3 * MTU, 0);
	sim_run_for(s, 1);
	sim_modify(s, 0, IBV_QPS_SQD);
	a[1] = sim_op(s, 0, IBV_WR_SEND, 0, 8, 0);
	assert_int_equal(sim_event(s, 0), -1);
	s->n[0].wire.held = 0;
	sim_settle(s);
	sim_expect(s, 0, true, a[0], OK);
	sim_expect(s, 1, false, r[0], OK);
	assert_int_equal(sim_event(s, 0), IBV_EVENT_SQ_DRAINED);
	sim_expect_none(s, 0);
	sim_modify(s, 0, IBV_QPS_RTS);
	sim_settle(s);
	sim_expect(s, 0, true, a[1], OK);
	sim_expect(s, 1, false, r[1], OK);
	sim_free(s);
}

/* Every message that arrives arrives whole: its bytes are all of one request. */
static void run_seed(uint64_t seed)
{
	struct sim *s = sim_desk(CFG(.seed = seed, .mtu = MTU, .loss = 60, .dup = 20, .late = 30, .cqe = 512,
				     .send_wr = 128, .recv_wr = 128));
	unsigned arrived = 0, sent = 0;
	struct ibv_wc wc;

	for (unsigned i = 0; i < 64; i++)
		sim_take(s, 1, i * 1024, 1024);
	for (unsigned i = 0; i < 60; i++) {
		uint32_t len = 1 + sim_below(s, 1000);

		memset(s->mem[0] + i * 1024, (int)(i + 1), len);
		sim_op(s, 0, IBV_WR_SEND, i * 1024, len, 0);
		sent++;
		sim_run_for(s, sim_below(s, 20) * VB_USEC);
	}
	sim_settle(s);
	while (sim_poll(s, 0, true, &wc))
		assert_int_equal(wc.status, OK);
	while (sim_poll(s, 1, false, &wc)) {
		const uint8_t *at = s->mem[1] + arrived * 1024; /* receives complete in order */
		unsigned which = at[0];
		const uint8_t *from = s->mem[0] + (which - 1) * 1024;

		assert_int_equal(wc.status, OK);
		assert_in_range(which, 1, 60);
		assert_memory_equal(at, from, wc.byte_len);
		assert_true(wc.byte_len == 1024 || from[wc.byte_len] != which);
		arrived++;
	}
	assert_true(arrived > 0);
	assert_int_equal(s->n[0].qp.state, IBV_QPS_RTS);
	assert_int_equal(s->n[1].qp.state, IBV_QPS_RTS);
	sim_free(s);
}

static void messages_arrive_whole_or_not_at_all(void **state)
{
	(void)state;
	for_each_seed() run_seed(seeds.current);
}

int main(int argc, char **argv)
{
	const struct CMUnitTest tests[] = {
	    cmocka_unit_test(a_request_is_complete_when_it_has_left),
	    cmocka_unit_test(a_list_ends_where_completions_overrun),
	    cmocka_unit_test(nothing_outstanding_holds_it_up),
	    cmocka_unit_test(writes_arrive),
	    cmocka_unit_test(rule_26_a_lost_packet_drops_its_message),
	    cmocka_unit_test(rule_26_a_stray_packet_drops_the_message_in_hand),
	    cmocka_unit_test(rule_23_what_cannot_be_taken_is_dropped),
	    cmocka_unit_test(rule_22_the_qp_must_permit_it_too),
	    cmocka_unit_test(rule_30_an_error_at_this_end_stops_the_send_queue),
	    cmocka_unit_test(a_receive_buffer_that_is_none_is_an_error),
	    cmocka_unit_test(rule_15_every_fault_is_dropped_and_counted),
	    cmocka_unit_test(rule_20_rkey_violation),
	    cmocka_unit_test(rule_26_the_rest_of_what_was_taken_is_no_message),
	    cmocka_unit_test(rule_26_nothing_is_executed_in_err),
	    cmocka_unit_test(rule_35_last_wqe_reached),
	    cmocka_unit_test(rule_38_sqd_drains_and_resumes),
	    cmocka_unit_test_teardown(messages_arrive_whole_or_not_at_all, seeds_tell),
	};

	seeds_choose(argc, argv, 50);
	return cmocka_run_group_tests(tests, NULL, NULL);
}
