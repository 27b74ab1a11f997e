/* The short cuts for brief packets (vb_requester_post(), send_brief() and vb_requester_list() of
 * transport/post.c and requester.c, vb_transport.brief) and the
 * general ways are one protocol: what a pair sends, completes and keeps with the ones is, packet for packet
 * and instant for instant, what it does with the others, over a bad wire, whatever stands in the way of a
 * request or a packet that could take a short cut.
 *
 * The first argument or VB_SEEDS: how many seeds (300; 1000 with VERBENA_SOAK); the second argument: the
 * first of them. */
#include <stdlib.h>
#include <string.h>

#include "seeds.h"
#include "sim.h"

enum {
	ACTIONS = 60,
	LIST = 20,   /* requests that are posted together, at most */
	USED = 8192, /* bytes of the memories that requests touch */
	WCS = 4 * ACTIONS * LIST,
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
	c.recv_wr = 256;
	c.cqe = sim_below(&dice, 16) ? 256 : 8; /* full soon */
	c.mtu = 256;
	c.local = sim_below(&dice, 2);
	c.srq = sim_below(&dice, 4) == 0;
	c.sig_all = sim_below(&dice, 2);
	c.carried = sim_below(&dice, 2);
	c.lazy_acks = sim_below(&dice, 2);
	c.lossless = sim_below(&dice, 3) == 0;
	c.at_once = sim_below(&dice, 4);
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
	enum ibv_wr_opcode op = ops[sim_below(dice, sim_acked() ? 6 : 5)];
	uint32_t len = sim_below(dice, 8) ? sim_below(dice, 64) : sim_below(dice, 2) * 300,
		 at = 64 * sim_below(dice, USED / 128);
	struct ibv_send_wr wr = sim_wr(s, n, op, at, len, USED / 2 + at, sge);

	wr.send_flags = sim_below(dice, 16) & (IBV_SEND_FENCE | IBV_SEND_SIGNALED | IBV_SEND_SOLICITED);
	if (op != IBV_WR_RDMA_READ && len < 64 && sim_below(dice, 2))
		wr.send_flags |= IBV_SEND_INLINE;
	else if (!sim_below(dice, 200))
		sge->lkey ^= 1; /* the general way refuses it, for both */
	return wr;
}

/* One by one mostly, else as a list. */
static void post(struct sim *s, struct sim *dice, unsigned n)
{
	unsigned num = sim_below(dice, s->cfg.at_once ? 16 : 4) ? 1 : 1 + sim_below(dice, LIST);
	struct ibv_send_wr wr[LIST];
	struct ibv_sge sge[LIST];

	for (unsigned i = 0; i < num; i++) {
		wr[i] = request(s, dice, n, &sge[i]);
		if (i)
			wr[i - 1].next = &wr[i];
	}
	sim_send(s, n, wr);
}

static void poll_all(struct history *h)
{
	for (unsigned k = 0; k < 4; k++)
		while (h->n < WCS && sim_poll(h->s, k / 2, k & 1, &h->wcs[h->n]))
			h->n++;
}

/* Mostly one piece in which everything has room; some are of two pieces or none, too small, or of a key that
 * does not permit it. */
static void take(struct sim *s, struct sim *dice, unsigned n)
{
	uint32_t at = USED + 64 * sim_below(dice, 64), few = sim_below(dice, 32);
	struct ibv_sge sge[2] = {{(uintptr_t)s->mem[n] + at, 320, s->lkey[n]},
				 {(uintptr_t)s->mem[n] + at + 32, 288, s->lkey[n]}};
	unsigned what = sim_below(dice, 1000), pieces = 1;

	if (what < 100) {
		pieces = 2;
		sge[0].length = few;
	} else if (what == 100) {
		pieces = 0;
	} else if (what < 103) {
		sge[0].length = few;
	} else if (what < 105) {
		sge[0].lkey ^= 1;
	}
	sim_recv(s, n, ++s->next_wr, sge, (int)pieces);
}

static void act(struct history *h, struct sim *dice)
{
	unsigned n = sim_below(dice, 2), what = sim_below(dice, 20);

	if (what < 9) {
		post(h->s, dice, n);
	} else if (what < 14) {
		for (unsigned i = sim_below(dice, LIST); i; i--)
			take(h->s, dice, n);
	} else if (what < 19) {
		sim_run_for(h->s, sim_below(dice, 3) ? sim_below(dice, 3000) : sim_below(dice, 500000));
		poll_all(h);
	} else if (h->s->n[n].qp.state == IBV_QPS_SQD) {
		sim_modify(h->s, n, IBV_QPS_RTS);
	} else if (h->s->n[n].qp.state == IBV_QPS_RTS && !sim_below(dice, 3)) {
		sim_modify(h->s, n, IBV_QPS_SQD);
	}
}

static void play(struct history *h, uint64_t seed, uint32_t brief)
{
	struct sim dice = {.rng = seed};
	struct sim_cfg cfg;

	sim_as = seed % 4 ? SIM_AS_RC : SIM_AS_UC;
	cfg = cfg_of(seed, brief);
	h->s = sim_desk(&cfg);
	h->n = 0;
	sim_fill(h->s, USED);
	for (unsigned i = 0; i < 8; i++)
		take(h->s, &dice, i & 1);
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

static void same_state(const struct vb_qp *a, const struct vb_qp *b)
{
	const struct vb_resp *x = &a->resp, *y = &b->resp;

	assert_int_equal(a->state, b->state);
	assert_int_equal(a->why.reason, b->why.reason);
	assert_int_equal(a->req.una, b->req.una);
	assert_int_equal(a->req.next, b->req.next);
	assert_int_equal(a->req.seen, b->req.seen);
	assert_int_equal(a->req.psn_una, b->req.psn_una);
	assert_int_equal(a->req.ringed, b->req.ringed);
	assert_int_equal(a->req.blocked, b->req.blocked);
	assert_int_equal(x->epsn, y->epsn);
	assert_int_equal(x->msn, y->msn);
	assert_int_equal(x->last_op, y->last_op);
	assert_int_equal(x->nak_sent, y->nak_sent);
	assert_int_equal(x->nak_owed, y->nak_owed);
	assert_int_equal(x->ack_owed, y->ack_owed);
	assert_int_equal(x->in_message, y->in_message);
	assert_int_equal(x->have_wqe, y->have_wqe);
	assert_int_equal(x->rq.tail, y->rq.tail);
	assert_int_equal(atomic_load(&x->rq.polled), atomic_load(&y->rq.polled));
}

static void same_end(const struct history *a, const struct history *b)
{
	assert_int_equal(a->n, b->n);
	for (unsigned i = 0; i < a->n; i++) {
		const struct ibv_wc *x = &a->wcs[i], *y = &b->wcs[i];

		assert_int_equal(x->wr_id, y->wr_id);
		assert_int_equal(x->status, y->status);
		assert_int_equal(x->opcode, y->opcode);
		assert_int_equal(x->vendor_err, y->vendor_err);
		assert_int_equal(x->byte_len, y->byte_len);
		assert_int_equal(x->imm_data, y->imm_data);
		assert_int_equal(x->qp_num, y->qp_num);
		assert_int_equal(x->src_qp, y->src_qp);
		assert_int_equal(x->wc_flags, y->wc_flags);
	}
	for (unsigned n = 0; n < 2; n++) {
		assert_memory_equal(a->s->mem[n], b->s->mem[n], 2 * USED);
		same_state(&a->s->n[n].qp, &b->s->n[n].qp);
	}
}

static void both_ways_send_the_same(void **state)
{
	struct history *h = sim_zeroed(2 * sizeof(*h));
	uint64_t packets = 0, briefs = 0, lists = 0, once = 0;

	(void)state;
	for_each_seed()
	{
		play(&h[0], seeds.current, 0);
		play(&h[1], seeds.current, VB_OUT_BRIEF);
		same_packets(h[0].s, h[1].s);
		same_end(&h[0], &h[1]);
		assert_int_equal(h[0].s->briefs, 0);
		assert_int_equal(h[0].s->lists, 0);
		assert_int_equal(h[0].s->once, 0);
		packets += h[1].s->packets;
		briefs += h[1].s->briefs;
		lists += h[1].s->lists;
		once += h[1].s->once;
		sim_free(h[0].s);
		sim_free(h[1].s);
	}
	free(h);
	print_message(
	    "%lu of %lu packets were taken in by the short cut, %lu lists and %lu single requests left "
	    "by theirs\n",
	    (unsigned long)briefs, (unsigned long)packets, (unsigned long)lists, (unsigned long)once);
	assert_true(briefs > packets / 5);
	assert_true(lists > seeds.count);
	assert_true(once > seeds.count / 4);
}

int main(int argc, char **argv)
{
	const struct CMUnitTest tests[] = {
	    cmocka_unit_test_teardown(both_ways_send_the_same, seeds_tell),
	};

	seeds_choose(argc, argv, 300);
	return cmocka_run_group_tests(tests, NULL, NULL);
}
