/* Randomised operations in both directions over a bad wire, byte for byte and completion for completion
 * against simple models: what was posted happens once, in order; datagrams arrive as they were sent, or are
 * counted.
 *
 * The first argument or VB_SEEDS: how many seeds (50; 1000 with VERBENA_SOAK); the second argument: the first
 * of them. */
#include <stdio.h>
#include <string.h>

#include "datagrams.h"
#include "model.h"
#include "seeds.h"

static uint64_t carried; /* ACKs that travelled along with requests */
static uint64_t lent;	 /* packets with a loan */
static unsigned refused; /* queue pairs whose far end could not collect something */

static unsigned datagram_seeds;

/* One seed of five each: of XRC an initiator asks, and its target answers; of UC and UD only some wires
 * double packets and let them overtake one another, and some lose none. */
static struct sim_cfg with_type(struct sim_cfg c)
{
	c.xrc = c.seed % 5 == 3;
	if (c.seed % 5 != 1 && c.seed % 5 != 4)
		return c;
	c.family = c.seed % 5 == 1 ? VB_FAMILY_UC : VB_FAMILY_UD;
	if (c.seed / 5 % 4)
		c.dup = c.late = 0;
	if (c.seed / 5 % 4 == 1)
		c.loss = 0;
	return c;
}

/* Two that send one another datagrams, which have no connection: datagrams.h says what may become of them. */
static void run_datagrams(struct sim_cfg *cfg)
{
	struct datagrams d;
	unsigned idle = 0;
	struct sim *s;
	char buf[128];

	cfg->placing = false;
	if (cfg->mtu < 4096)
		cfg->mtu = 4096;
	s = sim_new(cfg);
	datagrams_init(&d, s, cfg);
	datagrams_add(&d, s, 0, OPS);
	datagrams_add(&d, s, 1, OPS);
	while (!datagrams_finished(&d)) {
		bool acted = datagrams_act(&d);

		for (unsigned k = sim_below(s, 20); k && sim_step(s); k--)
			acted = true;
		if (sim_below(s, 3))
			datagrams_poll(&d);
		idle = acted ? 0 : idle + 1;
		if (idle > 1000 || s->now > 1000 * VB_SEC) {
			datagrams_say(&d, buf, sizeof buf);
			fail_msg("stuck: %s", buf);
		}
	}
	sim_settle(s);
	datagrams_check_end(&d);
	datagrams_fini(&d);
	sim_free(s);
	datagram_seeds++;
}

static void run_seed(uint64_t seed)
{
	struct sim_cfg cfg = with_type(model_cfg(seed));
	struct sim *s;
	struct model m;
	unsigned idle = 0;
	char buf[128];

	if (cfg.family == VB_FAMILY_UD) {
		run_datagrams(&cfg);
		return;
	}
	s = sim_new(&cfg);
	model_init(&m, s, OPS);
	while (!model_finished(&m)) {
		bool acted = model_act(&m);

		if (cfg.placing && sim_below(s, 100) == 0)
			model_deny(&m, sim_below(s, 2));
		for (unsigned k = sim_below(s, 60); k; k--)
			if (!sim_step(s))
				break;
			else
				acted = true;
		if (sim_below(s, 3))
			model_poll(&m);
		idle = acted ? 0 : idle + 1;
		if (idle > 1000 || s->now > 1000 * VB_SEC) {
			model_say(&m, buf, sizeof buf);
			fail_msg("stuck: %s", buf);
		}
	}
	sim_settle(s);
	carried += s->carried;
	lent += s->lent;
	refused += s->n[0].qp.req.sends_all + s->n[1].qp.req.sends_all;
	model_poll(&m);
	model_check_end(&m);
	model_fini(&m);
	sim_free(s);
}

static void mixed_operations(void **state)
{
	(void)state;
	for_each_seed() run_seed(seeds.current);
	assert_true(seeds.count < 10 || (carried && lent && refused && datagram_seeds));
}

/* Same seed, same packets: what a failing seed needs. */
static void seeds_repeat(void **state)
{
	struct sim_cfg cfg = model_cfg(3);
	uint64_t packets[2], now[2];
	uint8_t buf[4096] = {0};

	(void)state;
	cfg.loss = cfg.late = cfg.dup = 100;
	for (int k = 0; k < 2; k++) {
		struct sim *s = sim_new(&cfg);
		struct ibv_sge e = {(uintptr_t)buf, sizeof buf, sim_reg(s, 0, buf, sizeof buf, 0)};
		struct ibv_send_wr wr = {.sg_list = &e, .num_sge = 1, .opcode = IBV_WR_RDMA_WRITE};

		wr.wr.rdma.remote_addr = (uintptr_t)buf;
		wr.wr.rdma.rkey = sim_rkey(sim_reg(s, 1, buf, sizeof buf, 3));
		for (int i = 0; i < 3; i++)
			assert_int_equal(sim_send(s, 0, &wr), 0);
		sim_settle(s);
		packets[k] = s->packets;
		now[k] = s->now;
		sim_free(s);
	}
	assert_int_equal(packets[0], packets[1]);
	assert_int_equal(now[0], now[1]);
}

int main(int argc, char **argv)
{
	const struct CMUnitTest tests[] = {
	    cmocka_unit_test(seeds_repeat),
	    cmocka_unit_test_teardown(mixed_operations, seeds_tell),
	};

	seeds_choose(argc, argv, 50);
	return cmocka_run_group_tests(tests, NULL, NULL);
}
