/* Opcodes are family and operation: a queue pair speaks the family of its type, and hears no other. */
#include <string.h>

#include "sim.h"

#define OK IBV_WC_SUCCESS

enum { MTU = 256, PSN = 100 };

/* A packet that node 1 would execute, or node 0 take for an answer, if the family were its own. */
static struct vb_pkt some(const struct sim *s, unsigned opcode)
{
	bool atomic = vb_opcodes[opcode].bits & VB_OP_ATOMIC;

	return (struct vb_pkt){.opcode = (uint8_t)opcode,
			       .ack_req = true,
			       .psn = PSN,
			       .va = (uintptr_t)s->mem[1] + (atomic ? 0 : 64),
			       .rkey = sim_rkey(s->lkey[1]),
			       .dma_len = 8,
			       .swap_add = 1,
			       .syndrome = VB_AETH_ACK,
			       .msn = 1};
}

static void another_family_is_dropped(struct sim *s, unsigned opcode)
{
	uint32_t bits = vb_opcodes[opcode].bits;
	uint8_t payload[MTU];
	struct vb_pkt p = some(s, opcode);
	bool untold = VB_FAMILY(opcode) == VB_FAMILY_UC || VB_FAMILY(opcode) == VB_FAMILY_UD;
	uint32_t sent = s->seen;
	unsigned to = bits & VB_OP_RESPONSE ? 0 : 1;
	uint64_t counted = s->n[to].drops.count[VB_R_DROP_NO_QP];

	memset(payload, 0xee, sizeof payload);
	sim_inject(s, to, &p, payload, !(bits & VB_OP_PAYLOAD) ? 0 : bits & VB_OP_LAST ? 8 : MTU);
	assert_int_equal(s->seen, sent); /* no ACK, no NAK, no answer */
	assert_int_equal(s->n[1].qp.resp.epsn, PSN);
	assert_int_equal(s->n[0].qp.req.psn_una, PSN);
	assert_int_equal(s->n[to].qp.state, IBV_QPS_RTS);
	assert_int_equal(sim_event(s, to), -1);
	sim_expect_none(s, to);
	/* A message of which nobody else tells counts as dropped. */
	assert_int_equal(s->n[to].drops.count[VB_R_DROP_NO_QP], counted + (untold && bits & VB_OP_LAST));
}

/* Each is dropped while a request is on its way and a receive is posted; then all goes on. */
static void packets_of_another_family_are_dropped(void **state)
{
	static const uint8_t families[] = {VB_FAMILY_RC, VB_FAMILY_XRC};

	(void)state;
	for (unsigned i = 0; i < 2; i++) {
		struct sim *s = sim_desk(SIM_CFG(.mtu = MTU, .family = families[i], .psn = {PSN, 7000}));
		uint64_t sent, taken = sim_take(s, 1, 512, 64);
		unsigned dropped = 0;

		sim_drop(s, 0, families[i] | VB_SEND_ONLY, 0);
		sent = sim_op(s, 0, IBV_WR_SEND, 0, 8, 0);
		sim_run_for(s, 1);
		assert_int_equal(s->seen, 1);
		for (unsigned opcode = 0; opcode < 256; opcode++)
			if (vb_opcodes[opcode].name && VB_FAMILY(opcode) != families[i]) {
				another_family_is_dropped(s, opcode);
				dropped++;
			}
		assert_true(dropped >= 12 + 2 + 23);
		assert_int_equal(s->mem[1][64], 0);
		assert_int_equal(s->mem[1][0], 0);
		assert_int_equal(s->mem[1][512], 0);
		sim_settle(s);
		sim_expect(s, 0, true, sent, OK);
		sim_expect(s, 1, false, taken, OK);
		sim_free(s);
	}
}

/* The engines take the family from the queue pair, and the operations are the same: all of RC's go through
 * over a wire that loses, as XRC's. */
static void what_is_sent_is_of_the_qps_family(void **state)
{
	static const enum ibv_wr_opcode ops[] = {IBV_WR_SEND,
						 IBV_WR_SEND_WITH_IMM,
						 IBV_WR_RDMA_WRITE,
						 IBV_WR_RDMA_WRITE_WITH_IMM,
						 IBV_WR_RDMA_READ,
						 IBV_WR_ATOMIC_CMP_AND_SWP,
						 IBV_WR_ATOMIC_FETCH_AND_ADD};
	static const uint8_t families[] = {VB_FAMILY_RC, VB_FAMILY_XRC};
	enum { N = sizeof ops / sizeof *ops };

	(void)state;
	for (unsigned i = 0; i < 2; i++) {
		struct sim *s =
		    sim_desk(SIM_CFG(.mtu = MTU, .family = families[i], .loss = 100, .retry_cnt = 7));
		uint64_t wr[N];

		for (unsigned k = 0; k < 3; k++)
			sim_take(s, 1, 8192 + k * 2048, 1024);
		for (unsigned k = 0; k < N; k++)
			wr[k] = sim_op(s, 0, ops[k], 0, ops[k] >= IBV_WR_ATOMIC_CMP_AND_SWP ? 8 : 600, 0);
		sim_settle(s);
		for (unsigned k = 0; k < N; k++)
			sim_expect(s, 0, true, wr[k], OK);
		assert_true(s->seen > 2 * N);
		for (uint32_t k = 0; k < s->seen; k++)
			assert_int_equal(VB_FAMILY(s->trace[k].p.opcode), families[i]);
		for (unsigned op = VB_SEND_FIRST; op <= VB_FETCH_ADD; op++)
			if (op != VB_SEND_ONLY && op != VB_SEND_ONLY_IMM && op != VB_WRITE_ONLY &&
			    op != VB_WRITE_ONLY_IMM && op != VB_READ_RESP_ONLY)
				assert_true(sim_count(s, op >= VB_READ_RESP_FIRST && op <= VB_ATOMIC_ACK,
						      (uint8_t)(families[i] | op)) > 0);
		sim_free(s);
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
	    cmocka_unit_test(packets_of_another_family_are_dropped),
	    cmocka_unit_test(what_is_sent_is_of_the_qps_family),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
