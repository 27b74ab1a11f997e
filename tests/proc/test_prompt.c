/* Small WRITEs between two processes: over the ring to one that polls all the time, as their PSNs show, and
 * directly to one that looks at its memory and at nothing else. */
#include "pair.h"

enum { DEPTH = 64, SIZE = 1 << 16, FROM = 4096, FLAG = 512 };

static uint32_t psn(struct kit_end *e)
{
	struct ibv_qp_init_attr init;
	struct ibv_qp_attr a;

	CHECK(!ibv_query_qp(e->qp, &a, IBV_QP_SQ_PSN, &init));
	return a.sq_psn;
}

/* Where the far end's WRITEs arrive; where this end's go. */
struct place {
	uint8_t *near;
	struct kit_card far;
	struct ibv_mr *mr; /* of its own */
};

static struct place private_place(struct kit_pair *p)
{
	return (struct place){.near = p->end[0].buf, .far = p->board->card[1 - p->me][0]};
}

/* Memory that the far end maps when it has used it for a while. */
static struct place shareable_place(struct kit_pair *p)
{
	struct place at = {.far = p->board->card[1 - p->me][0]};
	_Atomic int64_t *number = p->board->number;
	int fd;

	at.near = kit_mapped(SIZE, &fd);
	at.mr = ibv_reg_mr(p->pd, at.near, SIZE, KIT_ALL);
	CHECK(at.mr);
	number[2 + 2 * p->me] = (int64_t)(uintptr_t)at.near;
	number[3 + 2 * p->me] = at.mr->rkey;
	atomic_fetch_add(&p->board->step, 1);
	kit_until(&p->board->step, 2);
	at.far.addr = (uint64_t)number[4 - 2 * p->me];
	at.far.rkey = (uint32_t)number[5 - 2 * p->me];
	return at;
}

static struct place at;

static _Atomic uint64_t *flag(void)
{
	return (_Atomic uint64_t *)(void *)(at.near + FLAG);
}

/* A completion, if there is one. */
static int poll_once(struct kit_end *e)
{
	struct ibv_wc wc;
	int n = ibv_poll_cq(e->cq, 1, &wc);

	CHECK(n >= 0);
	CHECK(!n || (wc.status == IBV_WC_SUCCESS && wc.opcode == IBV_WC_RDMA_WRITE), "%s",
	      ibv_wc_status_str(wc.status));
	return n;
}

static void write_flag(struct kit_pair *p, uint64_t value)
{
	struct kit_end *e = &p->end[0];

	*(uint64_t *)(void *)(e->buf + FROM) = value;
	CHECK(!kit_post(e, IBV_WR_RDMA_WRITE, value, FROM, 8, &at.far, FLAG));
}

/* Takes its own completion and waits for the answer; a ping-pong as programs write it, whose sides poll all
 * the while. */
static void await_polling(struct kit_pair *p, uint64_t value, int owed)
{
	double end = kit_now() + 60;

	for (unsigned i = 1; owed || atomic_load(flag()) < value; i++) {
		owed -= poll_once(&p->end[0]);
		CHECK(i % 4096 || kit_now() < end, "%" PRIu64, value);
	}
	CHECK(atomic_load(flag()) == value);
}

/* The byte in memory first, without any call, and then its own completion. */
static void await_looking(struct kit_pair *p, uint64_t value, int owed)
{
	double end = kit_now() + 60;

	for (unsigned i = 1; atomic_load(flag()) < value; i++) {
		if (i % 4096 == 0) {
			CHECK(kit_now() < end, "%" PRIu64, value);
			sched_yield();
		}
	}
	CHECK(atomic_load(flag()) == value);
	while (owed)
		owed -= poll_once(&p->end[0]);
}

typedef void await_fn(struct kit_pair *p, uint64_t value, int owed);

/* One round trip, as either end has it. */
static void trip(struct kit_pair *p, await_fn *await, uint64_t value)
{
	if (p->me)
		await(p, value, value > 1);
	write_flag(p, value);
	if (!p->me)
		await(p, value, 1);
}

/* Round trips until what `number` says, which the initiator decides. */
static void follow(struct kit_pair *p, await_fn *await, uint64_t *value)
{
	do
		trip(p, await, ++*value);
	while ((uint64_t)atomic_load(&p->board->number[0]) != *value);
}

static void last_but(struct kit_pair *p, await_fn *await, uint64_t *value)
{
	atomic_store(&p->board->number[0], (int64_t)*value + 1);
	trip(p, await, ++*value);
}

static uint32_t packets_since(struct kit_pair *p, uint32_t began)
{
	return (psn(&p->end[0]) - began) & 0xffffff;
}

enum { TRIPS = 20000, LOOKED = 2000, LATE = 50 };

/* Both poll until a thousand have taken packets.  Then both look at their memory only: one message lies, or a
 * few at most, and the rest are placed directly again. */
static void goes_over_and_back(struct kit_pair *p)
{
	double end = kit_now() + 60;
	uint64_t value = 0;
	uint32_t began;

	kit_pair_open(p, DEPTH, SIZE);
	at = private_place(p);
	began = psn(&p->end[0]);
	trip(p, await_polling, ++value);
	CHECK(packets_since(p, began) == 0, "the first one took a packet");
	while (packets_since(p, began) < 1000) {
		trip(p, await_polling, ++value);
		CHECK(value % 1024 || kit_now() < end, "%" PRIu64 " WRITEs", value);
	}
	last_but(p, await_polling, &value);
	began = psn(&p->end[0]);
	for (int i = 0; i < LOOKED; i++)
		trip(p, await_looking, ++value);
	CHECK(packets_since(p, began) <= LATE, "%u packets", packets_since(p, began));
	kit_pair_close(p);
}

static void follows(struct kit_pair *p)
{
	uint64_t value = 0;

	kit_pair_open(p, DEPTH, SIZE);
	at = private_place(p);
	follow(p, await_polling, &value);
	for (int i = 0; i < LOOKED; i++)
		trip(p, await_looking, ++value);
	await_looking(p, value, 1);
	kit_pair_close(p);
}

static void both_look(struct kit_pair *p)
{
	uint32_t began;

	kit_pair_open(p, DEPTH, SIZE);
	at = private_place(p);
	began = psn(&p->end[0]);
	for (uint64_t value = 1; value <= TRIPS; value++)
		trip(p, await_looking, value);
	if (p->me)
		await_looking(p, TRIPS, 1);
	CHECK(packets_since(p, began) == 0, "%u packets", packets_since(p, began));
	kit_pair_close(p);
}

/* What is mapped is stored to, which no ring is faster than: before the far end is seen to poll, and after.
 * The peer has to have answered first. */
static void stores(struct kit_pair *p, uint64_t *value, unsigned trips)
{
	uint32_t began = psn(&p->end[0]);

	for (unsigned i = 0; i < trips; i++)
		trip(p, await_polling, ++*value);
	CHECK(packets_since(p, began) == 0, "%u packets", packets_since(p, began));
}

static void both_poll_shareable(struct kit_pair *p)
{
	double end = kit_now() + 60;
	struct place shareable;
	uint64_t value = 0;
	uint32_t began;

	kit_pair_open(p, DEPTH, SIZE);
	shareable = at = shareable_place(p);
	stores(p, &value, TRIPS);
	at = private_place(p);
	began = psn(&p->end[0]);
	while (!p->me && packets_since(p, began) < 1000) {
		trip(p, await_polling, ++value);
		CHECK(value % 1024 || kit_now() < end, "%" PRIu64 " WRITEs", value);
	}
	if (p->me)
		follow(p, await_polling, &value);
	else
		last_but(p, await_polling, &value);
	at = shareable;
	stores(p, &value, LOOKED);
	if (p->me)
		await_polling(p, value, 1);
	CHECK(!ibv_dereg_mr(at.mr));
	kit_pair_close(p);
}

/* The flag behind a message that is stored to mapped memory: the next message would have to wait for the
 * flag's packet. */
static void among_large_ones(struct kit_pair *p)
{
	struct kit_end *e = &p->end[0];
	struct place large;
	uint32_t began;

	kit_pair_open(p, DEPTH, SIZE);
	large = shareable_place(p);
	at = private_place(p);
	began = psn(e);
	for (uint64_t value = 1; value <= TRIPS; value++) {
		if (p->me)
			await_polling(p, value, value > 1 ? 2 : 0);
		CHECK(!kit_post(e, IBV_WR_RDMA_WRITE, value, FROM, 4096, &large.far, 0));
		write_flag(p, value);
		if (!p->me)
			await_polling(p, value, 2);
	}
	if (p->me)
		await_polling(p, TRIPS, 2);
	CHECK(packets_since(p, began) == 0, "%u packets", packets_since(p, began));
	CHECK(!ibv_dereg_mr(large.mr));
	kit_pair_close(p);
}

int main(void)
{
	static const bool both[] = {true, true};

	if (!kit_pair_run("both poll, then both look", both, goes_over_and_back, follows))
		return KIT_SKIP;
	kit_pair_run("both look at their memory", both, both_look, both_look);
	kit_pair_run("shareable memory", both, both_poll_shareable, both_poll_shareable);
	kit_pair_run("among large ones", both, among_large_ones, among_large_ones);
	return 0;
}
