/* When a small WRITE goes over the ring instead of being placed directly: while the peer is prompt
 * (mem/prompt.h), and not a message longer than one that lay there has shown.  And that the two ways keep to
 * one order.
 *
 * The first argument or VB_SEEDS: how many seeds (10; 1000 with VERBENA_SOAK); the second argument: the first
 * of them. */
#include <string.h>

#include "hosts.h"
#include "seeds.h"

enum {
	FLAG = 64, /* where small WRITEs go */
	BUSY = 40, /* polls of a peer that polls all the time, in the time of a WRITE */
	PROOF = 4 * 64,
	BELL = 100000, /* ns for which a packet lies at a prompt peer */
	PATIENCE = 20000,
};

/* Two processes, whose memory is private to them; the WRITEs go from the first to the second. */
struct two {
	struct hosts *h;
	struct vb_adapter *a[2];
	struct sim *s;
	uint32_t writes;
};

static void poll_in_vain(struct two *t, unsigned i, unsigned n)
{
	struct ibv_wc wc;

	while (n--)
		assert_false(sim_poll(t->s, i, false, &wc));
}

static struct two two(uint64_t seed)
{
	const struct sim_cfg *c = SIM_CFG(.seed = seed, .placing = true, .lossless = true, .carried = true,
					  .timeout = 14, .retry_cnt = 0);
	struct two t = {.h = hosts_new(&(struct hosts_cfg){.wire = *c, .apart = true, .calm = true})};
	uint64_t r, m;

	t.a[0] = hosts_start(t.h);
	t.a[1] = hosts_start(t.h);
	t.s = sim_new_on(c, &hosts_ground, t.a[0], t.a[1]);
	sim_desk_init(t.s);
	r = sim_take(t.s, 1, 8192, 8);
	m = sim_op(t.s, 0, IBV_WR_SEND, 0, 8, 0); /* from the first packet on it permits more (rule 37) */
	hosts_settle(t.h);
	sim_expect(t.s, 1, false, r, IBV_WC_SUCCESS);
	sim_expect(t.s, 0, true, m, IBV_WC_SUCCESS);
	poll_in_vain(&t, 0, BUSY);
	poll_in_vain(&t, 1, BUSY);
	return t;
}

static void over(struct two *t)
{
	hosts_settle(t->h);
	sim_free(t->s);
	hosts_free(t->h);
}

/* One request, and what happens until it is complete while the second process polls `polls` times for each
 * microsecond or two.  Returns whether it took packets. */
static bool carried(struct two *t, enum ibv_wr_opcode op, uint32_t len, unsigned polls)
{
	uint64_t before = hosts_packets(t->h), began = hosts_now(t->h), id;
	struct ibv_wc wc;

	t->s->mem[0][0] = (uint8_t)++t->writes;
	id = sim_op(t->s, 0, op, 0, len, FLAG);
	poll_in_vain(t, 1, polls);
	while (!sim_poll(t->s, 0, true, &wc)) {
		hosts_run_for(t->h, VB_USEC);
		poll_in_vain(t, 1, polls);
		assert_in_range(hosts_now(t->h) - began, 0, VB_SEC);
	}
	assert_int_equal(wc.wr_id, id);
	assert_int_equal(wc.status, IBV_WC_SUCCESS);
	hosts_run_for(t->h, VB_USEC);
	poll_in_vain(t, 0, 1); /* as who waits for an answer */
	return hosts_packets(t->h) != before;
}

static bool written(struct two *t, unsigned polls)
{
	bool packets = carried(t, IBV_WR_RDMA_WRITE, 8, polls);

	assert_int_equal(t->s->mem[1][FLAG], (uint8_t)t->writes);
	return packets;
}

/* How many WRITEs were placed directly until one went over the ring. */
static unsigned placed_before(struct two *t, unsigned most)
{
	unsigned n = 0;

	while (!written(t, BUSY))
		assert_in_range(++n, 1, most);
	return n;
}

/* The peer's program makes no call any more: one WRITE lies until the bell.  Returns for how long. */
static uint64_t lies(struct two *t)
{
	uint64_t began = hosts_now(t->h), id;
	struct ibv_wc wc;

	t->s->mem[0][0] = (uint8_t)++t->writes;
	id = sim_op(t->s, 0, IBV_WR_RDMA_WRITE, 0, 8, FLAG);
	hosts_run_for(t->h, PATIENCE);
	assert_int_not_equal(t->s->mem[1][FLAG], (uint8_t)t->writes); /* it went over the ring */
	while (!sim_poll(t->s, 0, true, &wc)) {
		for (int i = 0; i < 256; i++)
			if (sim_poll(t->s, 0, false, &wc))
				fail();
		hosts_run_for(t->h, 2 * VB_USEC);
		assert_in_range(hosts_now(t->h) - began, 0, VB_SEC);
	}
	assert_int_equal(wc.wr_id, id);
	assert_int_equal(t->s->mem[1][FLAG], (uint8_t)t->writes);
	return hosts_now(t->h) - began;
}

static void who_polls_gets_them_by_ring(void **state)
{
	struct two t = two(1);

	(void)state;
	assert_in_range(placed_before(&t, 1000), PROOF, PROOF + 2 * 64);
	for (unsigned i = 0; i < 5000; i++)
		assert_true(written(&t, BUSY));
	over(&t);
}

/* It polls often enough to be called polling, and now and then between two WRITEs; the rest of its time it
 * looks at its memory, say. */
static void who_polls_now_and_then_does_not(void **state)
{
	struct two t = two(1);

	(void)state;
	for (unsigned i = 0; i < 5000; i++)
		assert_false(written(&t, i % 2 ? 1 : 5));
	over(&t);
}

/* It has polled long in one go, which says nothing of its other WRITEs. */
static void who_polled_once_does_not(void **state)
{
	struct two t = two(1);

	(void)state;
	for (unsigned i = 0; i < 5000; i++)
		assert_false(written(&t, i % 512 ? 1 : 1000));
	over(&t);
}

static void a_sleeper_gets_them_directly(void **state)
{
	struct two t = two(1);

	(void)state;
	placed_before(&t, 1000);
	hosts_sleep(t.a[1]);
	for (unsigned i = 0; i < 100; i++)
		assert_false(written(&t, 0));
	poll_in_vain(&t, 1, BUSY);
	assert_in_range(placed_before(&t, 1000), PROOF, PROOF + 2 * 64);
	over(&t);
}

/* Whoever sleeps himself would have to be woken for each packet, to look after it and to take its ACK. */
static void nor_does_a_sender_that_sleeps(void **state)
{
	struct two t = two(1);
	uint64_t before;

	(void)state;
	placed_before(&t, 1000);
	hosts_sleep(t.a[0]);
	before = hosts_packets(t.h);
	sim_op(t.s, 0, IBV_WR_RDMA_WRITE, 0, 8, FLAG);
	assert_int_equal(hosts_packets(t.h), before);
	hosts_settle(t.h);
	over(&t);
}

/* Who polled all the time and then waits without a call has its packet taken soon, once.  From then on the
 * proof is the longer the sooner that happens again. */
static void what_lies_is_a_lesson(void **state)
{
	struct two t = two(1);
	unsigned proof = PROOF;

	(void)state;
	placed_before(&t, 1000);
	for (unsigned i = 0; i < 4; i++) {
		assert_in_range(lies(&t), BELL, 3 * BELL);
		for (unsigned k = 0; k < 15; k++)
			assert_false(written(&t, 0));
		proof *= 4;
		assert_in_range(placed_before(&t, 2 * proof), proof, proof + proof / 2);
	}
	for (unsigned i = 0; i < 2000; i++) /* that makes up for it */
		assert_true(written(&t, BUSY));
	assert_in_range(lies(&t), BELL, 3 * BELL);
	assert_in_range(placed_before(&t, 10000), 4 * PROOF, 6 * PROOF);
	over(&t);
}

/* They do not wait for one another, as what is to be placed waits for the packets before it. */
static void a_row_of_them_goes_at_once(void **state)
{
	struct two t = two(1);
	uint64_t before, id[32];

	(void)state;
	placed_before(&t, 1000);
	before = hosts_packets(t.h);
	for (unsigned i = 0; i < 32; i++)
		id[i] = sim_op(t.s, 0, IBV_WR_RDMA_WRITE, 0, 8, FLAG + 8 * i);
	assert_int_equal(hosts_packets(t.h) - before, 32);
	hosts_run_for(t.h, VB_USEC);
	poll_in_vain(&t, 1, BUSY);
	hosts_run_for(t.h, VB_USEC);
	for (unsigned i = 0; i < 32; i++)
		sim_expect(t.s, 0, true, id[i], IBV_WC_SUCCESS);
	over(&t);
}

/* Of such a region nobody asks what memory it is. */
static void so_do_those_to_a_region_on_demand(void **state)
{
	struct two t = two(1);
	struct sim_node *far = &t.s->n[1];
	uint64_t before, at = (uintptr_t)t.s->mem[1] + FLAG;
	struct vb_key_spec spec = {.kind = VB_KEY_ON_DEMAND,
				   .pd = far->pd.id,
				   .access = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE,
				   .iova = at,
				   .addr = at,
				   .length = 8};
	struct ibv_send_wr wr;
	struct ibv_sge sge;

	(void)state;
	placed_before(&t, 1000);
	before = hosts_packets(t.h);
	wr = sim_wr(t.s, 0, IBV_WR_RDMA_WRITE, 0, 8, FLAG, &sge);
	wr.wr.rdma.rkey = sim_rkey(vb_key_publish(far->qp.keys, &spec));
	assert_int_equal(sim_send(t.s, 0, &wr), 0);
	assert_int_equal(hosts_packets(t.h) - before, 1);
	hosts_run_for(t.h, VB_USEC);
	poll_in_vain(&t, 1, BUSY);
	hosts_run_for(t.h, VB_USEC);
	sim_expect(t.s, 0, true, wr.wr_id, IBV_WC_SUCCESS);
	over(&t);
}

/* The flag behind a message: what is large would have to wait for it, or to follow it through the ring. */
static void among_large_ones_it_does_not(void **state)
{
	static const enum ibv_wr_opcode others[] = {IBV_WR_RDMA_WRITE, IBV_WR_RDMA_READ};

	(void)state;
	for (unsigned k = 0; k < 2; k++) {
		struct two t = two(1);

		for (unsigned i = 0; i < 2000; i++) {
			assert_false(carried(&t, others[k], 4096, BUSY));
			assert_false(written(&t, BUSY));
		}
		over(&t);
	}
}

/* Where the peer is prompt the packet, which has to go in any case, brings a small one's bytes along; else
 * they are there at once. */
static void an_immediate_takes_a_small_one_along(void **state)
{
	static const uint32_t lengths[] = {8, 256, 257};

	(void)state;
	for (unsigned i = 0; i < 6; i++) {
		struct two t = two(1);
		bool prompt = i >= 3;
		uint64_t r, w;

		if (prompt) {
			placed_before(&t, 1000);
			carried(&t, IBV_WR_RDMA_WRITE, 4096, BUSY); /* others are directly placed again */
		}
		r = sim_take(t.s, 1, 8192, 8);
		memset(t.s->mem[0], 0x77, 512);
		t.s->mem[1][FLAG] = 0;
		w = sim_op(t.s, 0, IBV_WR_RDMA_WRITE_WITH_IMM, 0, lengths[i % 3], FLAG);
		assert_int_equal(t.s->mem[1][FLAG] == 0x77, !prompt || lengths[i % 3] > 256);
		hosts_run_for(t.h, 2 * VB_USEC);
		sim_expect(t.s, 1, false, r, IBV_WC_SUCCESS);
		assert_memory_equal(t.s->mem[1] + FLAG, t.s->mem[0], lengths[i % 3]);
		hosts_settle(t.h);
		sim_expect(t.s, 0, true, w, IBV_WC_SUCCESS);
		over(&t);
	}
}

/* Requests of all lengths while the peer polls for a while and then does not: WRITEs of rising numbers to one
 * place, and READs of it, which find at least what was written before them. */
struct order {
	struct two t;
	struct sim dice;
	uint32_t posted, done; /* requests */
	uint32_t value[64],
	    last; /* of each request under way: what it writes, or is to read; the last written */
	bool reads[64];
	bool busy;
};

enum { SLOT = 1024, WINDOW = 32, ROUNDS = 60, ROUND = 400 };

static uint32_t *slot(struct order *o, uint32_t i)
{
	return (uint32_t *)(void *)(o->t.s->mem[0] + 4096 + i % 64 * SLOT);
}

static void post(struct order *o, unsigned large)
{
	uint32_t i = o->posted++, len = 4;

	o->reads[i % 64] = large && sim_below(&o->dice, 4) == 0;
	if (o->reads[i % 64]) {
		*slot(o, i) = 0;
	} else {
		*slot(o, i) = ++o->last;
		if (large && sim_below(&o->dice, 2))
			len = 4 + 4 * sim_below(&o->dice, 200);
	}
	o->value[i % 64] = o->last;
	sim_op(o->t.s, 0, o->reads[i % 64] ? IBV_WR_RDMA_READ : IBV_WR_RDMA_WRITE, 4096 + i % 64 * SLOT, len,
	       FLAG);
}

static void complete(struct order *o)
{
	uint32_t far = *(volatile uint32_t *)(void *)(o->t.s->mem[1] + FLAG);
	struct ibv_wc wc;

	while (sim_poll(o->t.s, 0, true, &wc)) {
		uint32_t i = o->done++ % 64;

		assert_int_equal(wc.status, IBV_WC_SUCCESS);
		assert_int_equal(wc.opcode, o->reads[i] ? IBV_WC_RDMA_READ : IBV_WC_RDMA_WRITE);
		if (o->reads[i])
			assert_in_range(*slot(o, i), o->value[i], o->last);
		far = *(volatile uint32_t *)(void *)(o->t.s->mem[1] + FLAG);
		assert_in_range(far, o->value[i], o->last);
	}
}

static void a_round(struct order *o)
{
	unsigned large = sim_below(&o->dice, 3) == 0, polls = sim_below(&o->dice, 3) ? BUSY : 0, ring = 0;
	uint32_t far, seen = 0;

	for (unsigned i = 0; i < ROUND; i++) {
		uint64_t before = hosts_packets(o->t.h);

		while (o->posted - o->done < WINDOW && sim_below(&o->dice, 4))
			post(o, large);
		if (sim_below(&o->dice, 8) == 0)
			polls = polls && sim_below(&o->dice, 4) ? BUSY : 0;
		else if (sim_below(&o->dice, 4) == 0)
			polls = BUSY;
		poll_in_vain(&o->t, 1, polls);
		complete(o);
		hosts_run_for(o->t.h, sim_below(&o->dice, 3) * VB_USEC);
		far = *(volatile uint32_t *)(void *)(o->t.s->mem[1] + FLAG);
		assert_true(far >= seen); /* it never goes back */
		seen = far;
		ring += hosts_packets(o->t.h) != before;
	}
	o->busy |= ring > ROUND / 2;
}

static void nothing_overtakes(void **state)
{
	unsigned busy = 0;

	(void)state;
	for_each_seed()
	{
		struct order o = {.t = two(seeds.current), .dice.rng = seeds.current * 77 + 1};

		for (unsigned i = 0; i < ROUNDS; i++)
			a_round(&o);
		while (o.done != o.posted) {
			complete(&o);
			assert_true(hosts_step(o.t.h) || o.done == o.posted);
		}
		assert_int_equal(*(uint32_t *)(void *)(o.t.s->mem[1] + FLAG), o.last);
		busy += o.busy;
		over(&o.t);
	}
	assert_true(busy); /* both ways were taken */
}

int main(int argc, char **argv)
{
	const struct CMUnitTest tests[] = {
	    cmocka_unit_test(who_polls_gets_them_by_ring),
	    cmocka_unit_test(who_polls_now_and_then_does_not),
	    cmocka_unit_test(who_polled_once_does_not),
	    cmocka_unit_test(a_sleeper_gets_them_directly),
	    cmocka_unit_test(nor_does_a_sender_that_sleeps),
	    cmocka_unit_test(what_lies_is_a_lesson),
	    cmocka_unit_test(a_row_of_them_goes_at_once),
	    cmocka_unit_test(so_do_those_to_a_region_on_demand),
	    cmocka_unit_test(among_large_ones_it_does_not),
	    cmocka_unit_test(an_immediate_takes_a_small_one_along),
	    cmocka_unit_test_teardown(nothing_overtakes, seeds_tell),
	};

	seeds_choose(argc, argv, 10);
	return cmocka_run_group_tests(tests, NULL, NULL);
}
