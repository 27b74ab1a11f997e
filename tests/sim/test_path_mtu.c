/* rule 28: path MTUs that differ.  On a wire whose packets are larger than both, every request ends as on one
 * whose packets are the path's own, where the lengths of packets tell. */
#include <string.h>

#include "sim.h"

static const uint32_t mtus[][2] = {{1024, 4096}, {4096, 1024}, {256, 512}, {4096, 2048}, {1024, 1024}};

/* How it ended: for who asked, and for both ends. */
struct end {
	enum ibv_wc_status status, received;
	enum ibv_qp_state state[2];
	int event[2];
	uint8_t syndrome;
	bool arrived;
};

static struct sim *large(const uint32_t *mtu)
{
	return sim_desk(SIM_CFG(.mtu = 16384, .path_mtu = {mtu[0], mtu[1]}));
}

/* Each end cuts by its own, and no packet tells of that. */
static struct sim *own(const uint32_t *mtu)
{
	struct sim *s = sim_desk(SIM_CFG(.mtu = mtu[0]));

	for (int i = 0; i < 2; i++) {
		s->n[i].wire.out.mtu = mtu[i];
		s->n[i].qp.path_mtu = 0;
	}
	return s;
}

static struct end outcome(struct sim *s, enum ibv_wr_opcode op, uint32_t len)
{
	struct ibv_wc wc;
	struct end e;

	memset(&e, 0, sizeof e); /* it is compared whole */
	e.received = IBV_WC_GENERAL_ERR;
	sim_fill(s, SIM_MEM);
	if (op == IBV_WR_SEND || op == IBV_WR_RDMA_WRITE_WITH_IMM)
		sim_take(s, 1, 0, SIM_MEM);
	sim_op(s, 0, op, 0, len, 0);
	sim_settle(s);
	assert_true(sim_poll(s, 0, true, &wc));
	e.status = wc.status;
	if (sim_poll(s, 1, false, &wc))
		e.received = wc.status;
	for (int i = 0; i < 2; i++) {
		e.state[i] = s->n[i].qp.state;
		e.event[i] = sim_event(s, (unsigned)i);
	}
	for (uint32_t i = 0; i < s->seen; i++)
		if (s->trace[i].from && (s->trace[i].p.op->bits & VB_OP_AETH))
			e.syndrome = s->trace[i].p.syndrome;
	e.arrived = len && !memcmp(s->mem[0], s->mem[1], len);
	sim_free(s);
	return e;
}

static void rule_28_as_on_a_wire_of_that_mtu(void **state)
{
	static const enum ibv_wr_opcode ops[] = {IBV_WR_SEND, IBV_WR_RDMA_WRITE, IBV_WR_RDMA_WRITE_WITH_IMM,
						 IBV_WR_RDMA_READ};

	(void)state;
	for (size_t m = 0; m < sizeof mtus / sizeof mtus[0]; m++) {
		uint32_t a = mtus[m][0], b = mtus[m][1], small = a < b ? a : b, great = a < b ? b : a;
		uint32_t lens[] = {0,	  1,	     small - 1, small,	   small + 1, great - 1,
				   great, great + 1, 2 * great, 3 * great, 16384,     40000};

		for (size_t i = 0; i < sizeof lens / sizeof lens[0]; i++)
			for (size_t k = 0; k < sizeof ops / sizeof ops[0]; k++) {
				struct end x = outcome(large(mtus[m]), ops[k], lens[i]);
				struct end y = outcome(own(mtus[m]), ops[k], lens[i]);

				if (memcmp(&x, &y, sizeof x))
					fail_msg("opcode %d, MTUs %u and %u, %u bytes: status %d, not %d",
						 ops[k], a, b, lens[i], x.status, y.status);
				assert_int_equal(x.status == IBV_WC_SUCCESS, a == b || lens[i] <= small);
			}
	}
}

static void rule_28_atomics_fit_always(void **state)
{
	(void)state;
	for (size_t m = 0; m < sizeof mtus / sizeof mtus[0]; m++)
		assert_int_equal(outcome(large(mtus[m]), IBV_WR_ATOMIC_FETCH_AND_ADD, 8).status,
				 IBV_WC_SUCCESS);
}

/* The sentence has both, at both ends. */
static void rule_28_both_are_named(void **state)
{
	static const enum ibv_wr_opcode ops[] = {IBV_WR_SEND, IBV_WR_RDMA_WRITE, IBV_WR_RDMA_READ};
	static const char *const both =
	    "path_mtu is 512 bytes at the requester and 2048 bytes at the responder";
	char buf[512];

	(void)state;
	for (size_t k = 0; k < sizeof ops / sizeof ops[0]; k++) {
		struct sim *s = sim_desk(SIM_CFG(.local = true, .mtu = 16384, .path_mtu = {512, 2048}));
		bool read = ops[k] == IBV_WR_RDMA_READ;

		sim_take(s, 1, 0, SIM_MEM);
		sim_op(s, 0, ops[k], 0, 600, 0);
		sim_settle(s);
		for (int i = 0; i < (read ? 1 : 2); i++) {
			vb_reason_say(buf, sizeof buf, &s->n[i].qp.why);
			assert_non_null(strstr(buf, both));
			assert_non_null(strstr(buf, "600 bytes"));
		}
		sim_free(s);
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
	    cmocka_unit_test(rule_28_as_on_a_wire_of_that_mtu),
	    cmocka_unit_test(rule_28_atomics_fit_always),
	    cmocka_unit_test(rule_28_both_are_named),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
