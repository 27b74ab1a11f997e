/* Windows that are taken back in mid-traffic, by two threads of one process with an adapter each: what runs
 * under TSan, see race.h.  And a storm: threads that bind, unbind and deregister the same few windows and
 * regions through QPs of their own, with traffic through all of them.
 *
 *     proc-windows_inproc [SECONDS]      for each case */
#include <pthread.h>

#include "adapter.h"
#include "race.h"

static struct kit_race_board board;

struct side {
	struct kit_race race;
	bool owner;
};

static void *side(void *arg)
{
	struct side *s = arg;

	(s->owner ? kit_race_owner : kit_race_other)(&s->race);
	return NULL;
}

static void run(enum kit_race_way way, double seconds, struct ibv_pd *pd[2])
{
	struct side sides[2];
	pthread_t t[2];

	memset(&board, 0, sizeof board);
	for (int i = 0; i < 2; i++) {
		sides[i] = (struct side){.owner = !i,
					 .race = {.board = &board,
						  .pd = pd[i],
						  .way = way,
						  .seconds = seconds,
						  .rng = (uint64_t)getpid() << 20 ^ (uint64_t)i}};
		CHECK(!pthread_create(&t[i], NULL, side, &sides[i]));
	}
	for (int i = 0; i < 2; i++)
		CHECK(!pthread_join(t[i], NULL));
	printf("%s: %" PRId64 " rounds, %" PRId64 " WRITEs\n", kit_race_ways[way], atomic_load(&board.rounds),
	       atomic_load(&board.hits));
	fflush(stdout);
	CHECK(atomic_load(&board.hits) > 0);
}

/* ---- the storm ---- */

enum { THREADS = 3, WINDOWS = 4, REGIONS = 3, ROOM = 1 << 14 };

static struct {
	struct ibv_pd *pd;
	struct ibv_mw *mw[WINDOWS];
	pthread_rwlock_t mw_lock; /* writing: a window is replaced */
	struct ibv_mr *_Atomic mr[REGIONS];
	uint8_t *room; /* ROOM bytes for each region, as much between them */
	_Atomic bool over;
	_Atomic int64_t binds, refused, writes;
} storm;

struct storm_end {
	struct kit_end e;
	uint64_t rng;
	uint32_t id;
};

static uint32_t pick(struct storm_end *s, uint32_t n)
{
	return kit_below(&s->rng, n);
}

/* Connected to itself. */
static void storm_open(struct storm_end *s)
{
	kit_end_open(&s->e, storm.pd, KIT_RACE_DEPTH, 4096);
	kit_connect(&s->e, &s->e.card);
}

/* Until all of n requests have ended; an error takes a new QP. */
static void storm_wait(struct storm_end *s, int n, _Atomic int64_t *good)
{
	bool failed = false;

	while (n--) {
		struct ibv_wc wc = kit_wait(&s->e, 60);

		if (wc.status == IBV_WC_SUCCESS)
			atomic_fetch_add(good, 1);
		else
			CHECK(failed || wc.status == IBV_WC_MW_BIND_ERR ||
				  wc.status == IBV_WC_REM_ACCESS_ERR || wc.status == IBV_WC_WR_FLUSH_ERR,
			      "%s", ibv_wc_status_str(wc.status));
		failed |= wc.status != IBV_WC_SUCCESS;
	}
	if (failed) {
		atomic_fetch_add(&storm.refused, 1);
		kit_end_close(&s->e);
		storm_open(s);
	}
}

static void storm_bind(struct storm_end *s)
{
	struct ibv_mr *mr = storm.mr[pick(s, REGIONS)];
	uint32_t at = pick(s, ROOM), which = pick(s, WINDOWS);
	struct ibv_mw_bind b = {.send_flags = IBV_SEND_SIGNALED,
				.bind_info = {.mr = pick(s, 4) ? mr : NULL, .mw_access_flags = KIT_RACE_RW}};

	if (b.bind_info.mr && pick(s, 8)) {
		b.bind_info.addr = (uintptr_t)mr->addr + at;
		b.bind_info.length = ROOM - at;
	}
	/* The application's own part of the window, rkey, is for one thread at a time. */
	pthread_rwlock_wrlock(&storm.mw_lock);
	CHECK(!ibv_bind_mw(s->e.qp, storm.mw[which], &b));
	pthread_rwlock_unlock(&storm.mw_lock);
	storm_wait(s, 1, &storm.binds);
}

static void storm_replace(struct storm_end *s)
{
	uint32_t which = pick(s, WINDOWS);

	pthread_rwlock_wrlock(&storm.mw_lock);
	CHECK(!ibv_dealloc_mw(storm.mw[which]));
	storm.mw[which] = ibv_alloc_mw(storm.pd, IBV_MW_TYPE_1);
	CHECK(storm.mw[which]);
	pthread_rwlock_unlock(&storm.mw_lock);
}

/* Each thread to bytes of its own: windows begin anywhere in a region, and end with it. */
static void storm_write(struct storm_end *s)
{
	struct kit_card to = s->e.card;
	uint32_t which = pick(s, WINDOWS), region = pick(s, REGIONS), n = 0;

	pthread_rwlock_rdlock(&storm.mw_lock);
	to.rkey = storm.mw[which]->rkey;
	pthread_rwlock_unlock(&storm.mw_lock);
	to.addr = (uintptr_t)storm.room + (2 * region + 1) * (uint64_t)ROOM;
	for (; n < 4; n++)
		CHECK(!kit_post(&s->e, IBV_WR_RDMA_WRITE, 1, 0, 512, &to, ROOM - 512 * s->id));
	storm_wait(s, (int)n, &storm.writes);
}

static void *storm_thread(void *arg)
{
	struct storm_end s = {.rng = (uint64_t)(uintptr_t)arg * 77, .id = (uint32_t)(uintptr_t)arg};

	storm_open(&s);
	memset(s.e.buf, 0xff, 4096);
	while (!atomic_load(&storm.over)) {
		if (!pick(&s, 16))
			storm_replace(&s);
		else if (pick(&s, 2))
			storm_bind(&s);
		else
			storm_write(&s);
	}
	kit_end_close(&s.e);
	return NULL;
}

static struct ibv_mr *storm_region(int i)
{
	struct ibv_mr *mr = ibv_reg_mr(storm.pd, storm.room + (2 * i + 1) * (size_t)ROOM, ROOM,
				       IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_MW_BIND);

	CHECK(mr);
	return mr;
}

/* The regions stay while the threads may name them; what goes and comes is bindings.  At the end nothing
 * holds anything. */
static void blow(double seconds, struct ibv_pd *pd)
{
	pthread_t t[THREADS];

	storm.pd = pd;
	storm.room = calloc(2 * REGIONS + 1, ROOM);
	CHECK(storm.room && !pthread_rwlock_init(&storm.mw_lock, NULL));
	for (int i = 0; i < REGIONS; i++)
		storm.mr[i] = storm_region(i);
	for (int i = 0; i < WINDOWS; i++) {
		storm.mw[i] = ibv_alloc_mw(pd, IBV_MW_TYPE_1);
		CHECK(storm.mw[i]);
	}
	for (uintptr_t i = 0; i < THREADS; i++)
		CHECK(!pthread_create(&t[i], NULL, storm_thread, (void *)(i + 1)));
	for (double end = kit_now() + seconds; kit_now() < end;) {
		struct timespec ms = {0, 1000000};

		nanosleep(&ms, NULL);
	}
	atomic_store(&storm.over, true);
	for (int i = 0; i < THREADS; i++)
		CHECK(!pthread_join(t[i], NULL));
	for (int i = 0; i < WINDOWS; i++)
		CHECK(!ibv_dealloc_mw(storm.mw[i]));
	for (int i = 0; i < REGIONS; i++)
		CHECK(!ibv_dereg_mr(storm.mr[i]));
	for (int i = 0; i <= 2 * REGIONS; i += 2)
		for (int k = 0; k < ROOM; k++)
			CHECK(!storm.room[i * ROOM + k], "outside of region %d", i);
	printf("storm: %" PRId64 " binds, %" PRId64 " WRITEs, %" PRId64 " refused\n",
	       atomic_load(&storm.binds), atomic_load(&storm.writes), atomic_load(&storm.refused));
	CHECK(atomic_load(&storm.binds) > 0 && atomic_load(&storm.writes) > 0);
	free(storm.room);
}

int main(int argc, char **argv)
{
	double seconds = argc > 1 ? atof(argv[1]) : getenv("VERBENA_SOAK") ? 60 : 0.5;
	struct ibv_context *ctx[2];
	struct ibv_pd *pd[2];

	for (int i = 0; i < 2; i++) {
		ctx[i] = kit_adapter_open();
		pd[i] = ibv_alloc_pd(ctx[i]);
		CHECK(pd[i]);
	}
	for (int way = 0; way < KIT_RACE_WAYS; way++)
		run((enum kit_race_way)way, seconds, pd);
	blow(seconds, pd[0]);
	for (int i = 0; i < 2; i++) {
		CHECK(!ibv_dealloc_pd(pd[i]));
		kit_adapter_close(ctx[i]);
	}
	return 0;
}
