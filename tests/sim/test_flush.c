/* FLUSH and ATOMIC WRITE (IBTA annex A19): what goes over the wire, how often they are carried out, who may
 * ask for them. */
#include <string.h>

#include "sim.h"

#define GRANTED	 (0xfu | VB_ACCESS_FLUSH_GLOBAL)
#define CFG(...) SIM_CFG(.access = GRANTED, __VA_ARGS__)
#define OK	 IBV_WC_SUCCESS

enum { WORD = IBV_WR_ATOMIC_WRITE, FLUSH = VB_WR_FLUSH, AT = 1024, REGION = 64 };

static const uint64_t value = 0x0123456789abcdef;

static uint64_t *there(struct sim *s, uint32_t at)
{
	return (uint64_t *)(void *)(s->mem[1] + at);
}

/* A pair, and a region of a few bytes at AT of node 1 that permits all. */
static struct sim *desk(const struct sim_cfg *cfg, uint32_t *rkey)
{
	struct sim *s = sim_desk(cfg);

	*rkey = sim_rkey(sim_reg(s, 1, s->mem[1] + AT, REGION, GRANTED));
	return s;
}

static uint64_t post(struct sim *s, uint32_t op, uint32_t rkey, uint32_t at, uint64_t operand, uint64_t how)
{
	struct ibv_send_wr wr = {
	    .wr_id = ++s->next_wr, .opcode = (enum ibv_wr_opcode)op, .send_flags = IBV_SEND_SIGNALED};

	wr.wr.atomic.remote_addr = (uintptr_t)s->mem[1] + at;
	wr.wr.atomic.rkey = rkey;
	wr.wr.atomic.compare_add = operand;
	wr.wr.atomic.swap = how;
	assert_int_equal(sim_send(s, 0, &wr), 0);
	return wr.wr_id;
}

static uint64_t post_word(struct sim *s, uint32_t rkey, uint32_t at)
{
	return post(s, WORD, rkey, at, value, 0);
}

static uint64_t post_flush(struct sim *s, uint32_t rkey, uint32_t at, uint64_t range, uint32_t level)
{
	return post(s, FLUSH, rkey, at, range, VB_FLUSH_GLOBAL | (uint64_t)level << 8);
}

/* One packet there and one back, which is the answer to a READ of nothing. */
static void one_packet_each_way(void **state)
{
	static const uint8_t opcodes[] = {VB_RC_ATOMIC_WRITE, VB_RC_FLUSH};

	(void)state;
	for (unsigned i = 0; i < 2; i++) {
		uint32_t rkey;
		struct sim *s = desk(CFG(), &rkey);
		uint64_t id =
		    i ? post_flush(s, rkey, AT + 8, 16, VB_FLUSH_RANGE) : post_word(s, rkey, AT + 8);
		const struct sim_seen *asked, *answer;
		struct ibv_wc wc;

		sim_settle(s);
		wc = sim_expect(s, 0, true, id, OK);
		assert_int_equal(wc.opcode, i ? VB_WC_FLUSH : IBV_WC_ATOMIC_WRITE);
		assert_int_equal(s->packets, 2);
		asked = sim_find(s, 0, opcodes[i], 0);
		answer = sim_find(s, 1, VB_RC_READ_RESP_ONLY, 0);
		assert_true(asked && answer);
		assert_int_equal(asked->p.payload_len, i ? 0 : 8);
		assert_int_equal(asked->p.dma_len, i ? 16 : 8);
		assert_int_equal(asked->p.flush_type, i ? VB_FLUSH_GLOBAL : 0);
		assert_int_equal(asked->p.flush_level, VB_FLUSH_RANGE);
		assert_true(asked->p.ack_req);
		assert_int_equal(answer->p.payload_len, 0);
		assert_int_equal(answer->p.psn, asked->p.psn);
		assert_int_equal(answer->p.syndrome, VB_AETH_ACK);
		assert_int_equal(answer->p.msn, 1);
		assert_true(*there(s, AT + 8) == (i ? 0 : value));
		assert_int_equal(*there(s, AT), 0);
		assert_int_equal(*there(s, AT + 16), 0);
		sim_free(s);
	}
}

/* What was carried out is not carried out again: its answer alone is (rules 17, 26). */
static void a_lost_answer_is_sent_again(void **state)
{
	(void)state;
	for (unsigned i = 0; i < 2; i++) {
		uint32_t rkey;
		struct sim *s = desk(CFG(), &rkey);
		uint64_t id;

		sim_drop(s, 1, VB_RC_READ_RESP_ONLY, 0);
		id = i ? post_flush(s, rkey, AT, 8, VB_FLUSH_RANGE) : post_word(s, rkey, AT);
		while (!sim_find(s, 1, VB_RC_READ_RESP_ONLY, 0))
			assert_true(sim_step(s));
		*there(s, AT) = 77; /* written here since */
		sim_settle(s);
		sim_expect(s, 0, true, id, OK);
		assert_int_equal(sim_count(s, 1, VB_RC_READ_RESP_ONLY), 2);
		assert_int_equal(*there(s, AT), 77);
		sim_free(s);
	}
}

/* A later ACK says nothing of them (rule 4). */
static void a_lost_answer_is_an_implied_nak(void **state)
{
	uint32_t rkey;
	struct sim *s = desk(CFG(), &rkey);
	uint64_t first, second;

	(void)state;
	sim_take(s, 1, 0, 64);
	sim_drop(s, 1, VB_RC_READ_RESP_ONLY, 0);
	first = post_word(s, rkey, AT);
	second = sim_op(s, 0, IBV_WR_SEND, 0, 8, 0);
	sim_settle(s);
	sim_expect(s, 0, true, first, OK);
	sim_expect(s, 0, true, second, OK);
	assert_int_equal(sim_count(s, 0, VB_RC_ATOMIC_WRITE), 2);
	sim_free(s);
}

static void order_is_that_of_posting(void **state)
{
	uint32_t rkey;
	struct sim *s = desk(CFG(.late = 300, .loss = 100, .retry_cnt = 7, .seed = 5), &rkey);
	uint64_t ids[4];

	(void)state;
	*there(s, AT) = 1;
	ids[0] = sim_op(s, 0, IBV_WR_ATOMIC_FETCH_AND_ADD, 0, 8, AT);
	ids[1] = post_word(s, rkey, AT);
	ids[2] = post_flush(s, rkey, AT, 8, VB_FLUSH_RANGE);
	ids[3] = sim_op(s, 0, IBV_WR_RDMA_READ, 8, 8, AT);
	sim_settle(s);
	for (unsigned i = 0; i < 4; i++)
		sim_expect(s, 0, true, ids[i], OK);
	assert_int_equal(*(uint64_t *)(void *)s->mem[0], 1);
	assert_true(*(uint64_t *)(void *)(s->mem[0] + 8) == value);
	sim_free(s);
}

/* The nth packet of this kind that node 0 sent left when the first answer had come. */
static void comes_after(struct sim *s, uint8_t opcode, unsigned nth)
{
	const struct sim_seen *answer = sim_find(s, 1, VB_RC_READ_RESP_ONLY, 0),
			      *next = sim_find(s, 0, opcode, nth);

	assert_true(answer && next);
	assert_true(next->when > answer->when);
}

/* They count as READs and atomics do, at both ends (rule 14). */
static void they_count_as_reads(void **state)
{
	(void)state;
	for (unsigned i = 0; i < 2; i++) {
		uint32_t rkey;
		struct sim *s = desk(CFG(.rd_atomic = 1), &rkey);
		uint64_t ids[2];

		for (unsigned k = 0; k < 2; k++)
			ids[k] = i ? post_flush(s, rkey, AT, 8, 0) : post_word(s, rkey, AT);
		sim_settle(s);
		for (unsigned k = 0; k < 2; k++)
			sim_expect(s, 0, true, ids[k], OK);
		comes_after(s, i ? VB_RC_FLUSH : VB_RC_ATOMIC_WRITE, 1);
		sim_free(s);

		s = desk(CFG(.rd_atomic = 0), &rkey);
		ids[0] = i ? post_flush(s, rkey, AT, 8, 0) : post_word(s, rkey, AT);
		sim_settle(s);
		sim_expect(s, 0, true, ids[0], IBV_WC_LOC_QP_OP_ERR);
		sim_free(s);

		s = desk(CFG(.dest_rd_atomic = 0), &rkey);
		ids[0] = i ? post_flush(s, rkey, AT, 8, 0) : post_word(s, rkey, AT);
		sim_settle(s);
		sim_expect(s, 0, true, ids[0], IBV_WC_REM_INV_REQ_ERR);
		assert_int_equal(*there(s, AT), 0);
		sim_free(s);
	}
}

/* A fenced request waits for them (rule 9). */
static void a_fence_waits(void **state)
{
	uint32_t rkey;
	struct sim *s = desk(CFG(), &rkey);
	struct ibv_sge e;
	struct ibv_send_wr wr;

	(void)state;
	post_flush(s, rkey, AT, 8, VB_FLUSH_RANGE);
	wr = sim_wr(s, 0, IBV_WR_RDMA_WRITE, 0, 8, 0, &e);
	wr.send_flags |= IBV_SEND_FENCE;
	assert_int_equal(sim_send(s, 0, &wr), 0);
	sim_settle(s);
	comes_after(s, VB_RC_WRITE_ONLY, 0);
	sim_free(s);
}

static void refused(const struct sim_cfg *cfg, uint32_t access, uint32_t op, uint32_t at, uint64_t operand,
		    uint64_t how, enum ibv_wc_status status)
{
	struct sim *s = sim_desk(cfg);
	uint32_t rkey = sim_rkey(sim_reg(s, 1, s->mem[1] + AT, REGION, access));
	uint64_t id = post(s, op, rkey, at, operand, how);

	sim_settle(s);
	sim_expect(s, 0, true, id, status);
	for (uint32_t i = AT - 64; i < AT + 128; i += 8)
		assert_int_equal(*there(s, i), 0);
	if (status != OK)
		assert_int_equal(sim_event(s, 1), status == IBV_WC_REM_ACCESS_ERR ? IBV_EVENT_QP_ACCESS_ERR
										  : IBV_EVENT_QP_REQ_ERR);
	sim_free(s);
}

static void an_atomic_write_is_aligned_and_permitted(void **state)
{
	const uint32_t lacks = GRANTED & ~(uint32_t)IBV_ACCESS_REMOTE_WRITE;

	(void)state;
	for (uint32_t off = 1; off < 8; off++)
		refused(CFG(), GRANTED, WORD, AT + off, value, 0, IBV_WC_REM_INV_REQ_ERR);
	refused(CFG(), lacks, WORD, AT, value, 0, IBV_WC_REM_ACCESS_ERR);
	refused(CFG(.access = lacks), GRANTED, WORD, AT, value, 0, IBV_WC_REM_INV_REQ_ERR);
	refused(CFG(), GRANTED, WORD, AT - 8, value, 0, IBV_WC_REM_ACCESS_ERR);
	refused(CFG(), GRANTED, WORD, AT + REGION, value, 0, IBV_WC_REM_ACCESS_ERR);
}

/* The key's addresses may be aligned otherwise than memory: both have to be. */
static void an_atomic_write_is_aligned_for_the_cpu_too(void **state)
{
	(void)state;
	for (uint32_t off = 0; off <= 4; off += 4) {
		struct sim *s = sim_desk(CFG());
		uint32_t rkey = sim_rkey(
		    vb_key_publish(&s->n[1].keys, &(struct vb_key_spec){.pd = s->n[1].pd.id,
									.access = GRANTED,
									.iova = (uintptr_t)s->mem[1] + AT,
									.addr = (uintptr_t)s->mem[1] + AT + 4,
									.length = REGION}));
		uint64_t id = post_word(s, rkey, AT + off);

		sim_settle(s);
		sim_expect(s, 0, true, id, IBV_WC_REM_INV_REQ_ERR);
		for (uint32_t i = 0; i < 24; i += 8)
			assert_int_equal(*there(s, AT + i), 0);
		sim_free(s);
	}
}

static void a_flush_is_permitted_by_queue_pair_and_region(void **state)
{
	const uint64_t range = VB_FLUSH_GLOBAL | VB_FLUSH_RANGE << 8,
		       whole = VB_FLUSH_GLOBAL | VB_FLUSH_MR << 8;

	(void)state;
	refused(CFG(), GRANTED, FLUSH, AT, REGION, range, OK);
	refused(CFG(), VB_ACCESS_FLUSH_GLOBAL, FLUSH, AT, REGION, range, OK);
	refused(CFG(.access = 0xf), GRANTED, FLUSH, AT, REGION, range, IBV_WC_REM_INV_REQ_ERR);
	refused(CFG(), 0xf, FLUSH, AT, REGION, range, IBV_WC_REM_ACCESS_ERR);
	refused(CFG(), 0xf, FLUSH, AT, 0, range, IBV_WC_REM_ACCESS_ERR); /* also where it names no byte */
	refused(CFG(), GRANTED, FLUSH, AT, REGION + 1, range, IBV_WC_REM_ACCESS_ERR);
	refused(CFG(), GRANTED, FLUSH, AT - 8, 8, range, IBV_WC_REM_ACCESS_ERR);
	/* all of the region, wherever the address is */
	refused(CFG(), GRANTED, FLUSH, AT - 8, REGION + 1, whole, OK);
	refused(CFG(), 0xf, FLUSH, AT, 8, whole, IBV_WC_REM_ACCESS_ERR);
}

/* A queue pair may grant it, and no region does. */
static void a_persistent_flush_is_refused(void **state)
{
	static const uint64_t hows[] = {
	    VB_FLUSH_PERSISTENT | VB_FLUSH_RANGE << 8, VB_FLUSH_PERSISTENT | VB_FLUSH_MR << 8,
	    VB_FLUSH_PERSISTENT | VB_FLUSH_GLOBAL, VB_FLUSH_PERSISTENT | VB_FLUSH_GLOBAL | VB_FLUSH_MR << 8};

	(void)state;
	for (unsigned i = 0; i < sizeof hows / sizeof *hows; i++) {
		refused(CFG(), GRANTED, FLUSH, AT, 8, hows[i], IBV_WC_REM_INV_REQ_ERR);
		refused(CFG(.access = GRANTED | VB_ACCESS_FLUSH_PERSISTENT), GRANTED, FLUSH, AT, 8, hows[i],
			IBV_WC_REM_ACCESS_ERR);
	}
}

/* A far end of another make might ask for this. */
static void an_atomic_write_has_eight_bytes(void **state)
{
	static const struct {
		uint32_t dma_len, payload;
	} rows[] = {{8, 4}, {4, 4}, {16, 16}, {8, 16}, {8, 0}, {0, 0}};
	uint8_t payload[16];

	(void)state;
	memset(payload, 0xee, sizeof payload);
	for (unsigned i = 0; i < sizeof rows / sizeof *rows; i++) {
		uint32_t rkey;
		struct sim *s = desk(CFG(), &rkey);
		struct vb_pkt p = {.opcode = VB_RC_ATOMIC_WRITE,
				   .psn = s->cfg.psn[0],
				   .va = (uintptr_t)s->mem[1] + AT,
				   .rkey = rkey,
				   .dma_len = rows[i].dma_len};

		sim_inject(s, 1, &p, payload, rows[i].payload);
		assert_int_equal(s->n[1].qp.state, IBV_QPS_ERR);
		assert_int_equal(sim_event(s, 1), IBV_EVENT_QP_REQ_ERR);
		assert_int_equal(*there(s, AT), 0);
		sim_free(s);
	}
}

/* An answer with data is none to these. */
static void an_answer_brings_nothing(void **state)
{
	uint8_t payload[8] = {1};
	uint32_t rkey;
	struct sim *s = desk(CFG(), &rkey);
	struct vb_pkt p = {.opcode = VB_RC_READ_RESP_ONLY, .psn = s->cfg.psn[0], .syndrome = VB_AETH_ACK};
	uint64_t id;

	(void)state;
	sim_drop(s, 1, SIM_ANY, SIM_ALWAYS);
	id = post_word(s, rkey, AT);
	sim_run_for(s, 1);
	sim_inject(s, 0, &p, payload, 8);
	sim_expect(s, 0, true, id, IBV_WC_BAD_RESP_ERR);
	sim_free(s);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
	    cmocka_unit_test(one_packet_each_way),
	    cmocka_unit_test(a_lost_answer_is_sent_again),
	    cmocka_unit_test(a_lost_answer_is_an_implied_nak),
	    cmocka_unit_test(order_is_that_of_posting),
	    cmocka_unit_test(they_count_as_reads),
	    cmocka_unit_test(a_fence_waits),
	    cmocka_unit_test(an_atomic_write_is_aligned_and_permitted),
	    cmocka_unit_test(an_atomic_write_is_aligned_for_the_cpu_too),
	    cmocka_unit_test(a_flush_is_permitted_by_queue_pair_and_region),
	    cmocka_unit_test(a_persistent_flush_is_refused),
	    cmocka_unit_test(an_atomic_write_has_eight_bytes),
	    cmocka_unit_test(an_answer_brings_nothing),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
