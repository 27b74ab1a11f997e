/* The short cut for brief packets (vb_requester_brief()) and the general way are one protocol: what a pair
 * sends with the one is, packet for packet and instant for instant, what it sends with the other, over a bad
 * wire, whatever stands in the way of a request that could take the short cut.
 *
 * The first argument or VB_SEEDS: how many seeds (300; 1000 with VERBENA_SOAK); the second argument: the
 * first of them. */
#include <stdlib.h>
#include <string.h>

#include "seeds.h"
#include "sim.h"

enum {
	ACTIONS = 60,
	USED = 8192, /* bytes of the memories that requests touch */
	WCS = 4 * ACTIONS,
};

struct history {
	struct sim *s;
	struct ibv_wc wcs[WCS];
	unsigned n;
};

static struct sim_cfg cfg_of(uint64_t seed, uint32_t brief)
{
	struct sim dice = {.rng = seed * 131 + 9};
	struct sim_cfg c = {SIM_DEFAULTS};

	c.seed = seed;
	c.brief = brief;
	c.recv_wr = c.cqe = 256;
	c.mtu = 256;
	c.local = sim_below(&dice, 2);
	c.srq = sim_below(&dice, 4) == 0;
	c.sig_all = sim_below(&dice, 2);
	c.carried = sim_below(&dice, 2);
	c.lazy_acks = sim_below(&dice, 2);
	c.lossless = sim_below(&dice, 3) == 0;
	c.room = 4 + sim_below(&dice, 20);
	c.timeout = (uint8_t)(4 + sim_below(&dice, 3));
	c.rnr_retry = 7;
	c.retry_cnt = 7;
	c.psn[0] = 0xfffff0;
	if (!c.lossless)
		c.loss = c.dup = c.late = sim_below(&dice, 120);
	return c;
}

static struct ibv_send_wr request(struct sim *s, struct sim *dice, unsigned n, struct ibv_sge *sge)
{
	static const enum ibv_wr_opcode ops[] = {IBV_WR_SEND,	    IBV_WR_SEND, IBV_WR_SEND_WITH_IMM,
						 IBV_WR_RDMA_WRITE, IBV_WR_SEND, IBV_WR_RDMA_READ};
	enum ibv_wr_opcode op = ops[sim_below(dice, 6)];
	uint32_t len = sim_below(dice, 64), at = 64 * sim_below(dice, USED / 128);
	struct ibv_send_wr wr = sim_wr(s, n, op, at, len, USED / 2 + at, sge);

	wr.send_flags = sim_below(dice, 16) & (IBV_SEND_FENCE | IBV_SEND_SIGNALED | IBV_SEND_SOLICITED);
	if (op != IBV_WR_RDMA_READ && sim_below(dice, 2))
		wr.send_flags |= IBV_SEND_INLINE;
	else if (!sim_below(dice, 60))
		sge->lkey ^= 1; /* the general way refuses it, for both */
	return wr;
}

static void poll_all(struct history *h)
{
	for (unsigned k = 0; k < 4; k++)
		while (h->n < WCS && sim_poll(h->s, k / 2, k & 1, &h->wcs[h->n]))
			h->n++;
}

static void act(struct history *h, struct sim *dice)
{
	unsigned n = sim_below(dice, 2), what = sim_below(dice, 20);
	struct ibv_sge sge;
	struct ibv_send_wr wr;

	if (what < 9) {
		wr = request(h->s, dice, n, &sge);
		sim_send(h->s, n, &wr);
	} else if (what < 14) {
		sim_take(h->s, n, USED + 64 * sim_below(dice, 64), 64);
	} else if (what < 19) {
		sim_run_for(h->s, sim_below(dice, 3) ? sim_below(dice, 3000) : sim_below(dice, 500000));
		poll_all(h);
	} else if (h->s->n[n].qp.state == IBV_QPS_RTS || h->s->n[n].qp.state == IBV_QPS_SQD) {
		sim_modify(h->s, n, h->s->n[n].qp.state == IBV_QPS_RTS ? IBV_QPS_SQD : IBV_QPS_RTS);
	}
}

static void play(struct history *h, uint64_t seed, uint32_t brief)
{
	struct sim_cfg cfg = cfg_of(seed, brief);
	struct sim dice = {.rng = seed};

	h->s = sim_desk(&cfg);
	h->n = 0;
	sim_fill(h->s, USED);
	for (unsigned i = 0; i < ACTIONS; i++)
		act(h, &dice);
	for (unsigned n = 0; n < 2; n++) {
		if (h->s->n[n].qp.state == IBV_QPS_SQD)
			sim_modify(h->s, n, IBV_QPS_RTS);
		for (unsigned i = 0; i < ACTIONS && h->s->n[n].qp.state == IBV_QPS_RTS; i++)
			sim_take(h->s, n, USED, 64);
	}
	sim_run_for(h->s, VB_SEC / 20);
	poll_all(h);
}

static void same_packets(const struct sim *a, const struct sim *b)
{
	assert_int_equal(a->seen, b->seen);
	for (uint32_t i = 0; i < a->seen; i++) {
		const struct sim_seen *x = &a->trace[i], *y = &b->trace[i];

		assert_int_equal(x->when, y->when);
		assert_int_equal(x->from, y->from);
		assert_int_equal(x->dropped, y->dropped);
		assert_int_equal(x->p.opcode, y->p.opcode);
		assert_int_equal(x->p.psn, y->p.psn);
		assert_int_equal(x->p.qpn, y->p.qpn);
		assert_int_equal(x->p.ack_req, y->p.ack_req);
		assert_int_equal(x->p.solicited, y->p.solicited);
		assert_int_equal(x->p.pad, y->p.pad);
		assert_int_equal(x->p.payload_len, y->p.payload_len);
		assert_int_equal(x->p.imm, y->p.imm);
		assert_int_equal(x->p.syndrome, y->p.syndrome);
	}
	assert_int_equal(a->packets, b->packets);
	assert_int_equal(a->carried, b->carried);
	assert_int_equal(a->now, b->now);
}

static void same_end(const struct history *a, const struct history *b)
{
	assert_int_equal(a->n, b->n);
	for (unsigned i = 0; i < a->n; i++) {
		const struct ibv_wc *x = &a->wcs[i], *y = &b->wcs[i];

		assert_int_equal(x->wr_id, y->wr_id);
		assert_int_equal(x->status, y->status);
		assert_int_equal(x->opcode, y->opcode);
		assert_int_equal(x->byte_len, y->byte_len);
		assert_int_equal(x->wc_flags, y->wc_flags);
	}
	for (unsigned n = 0; n < 2; n++)
		assert_memory_equal(a->s->mem[n], b->s->mem[n], 2 * USED);
}

static void both_ways_send_the_same(void **state)
{
	struct history *h = sim_zeroed(2 * sizeof(*h));

	(void)state;
	for_each_seed()
	{
		play(&h[0], seeds.current, 0);
		play(&h[1], seeds.current, VB_OUT_BRIEF);
		same_packets(h[0].s, h[1].s);
		same_end(&h[0], &h[1]);
		sim_free(h[0].s);
		sim_free(h[1].s);
	}
	free(h);
}

int main(int argc, char **argv)
{
	const struct CMUnitTest tests[] = {
	    cmocka_unit_test_teardown(both_ways_send_the_same, seeds_tell),
	};

	seeds_choose(argc, argv, 300);
	return cmocka_run_group_tests(tests, NULL, NULL);
}
