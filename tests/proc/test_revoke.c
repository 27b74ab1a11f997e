/* After ibv_dereg_mr(), ibv_modify_qp() to ERR or RESET, and ibv_destroy_qp() have returned, no byte is
 * touched: neither a target's, by WRITEs, nor an initiator's own, by READs that are under way.
 *
 * The one that takes back fills the memory with a pattern at once, waits a little, and looks whether the
 * pattern is still there.  The other one goes on with what its peer gives it next.
 *
 *     proc-revoke [SECONDS]      for each of the twenty cases; in make soak 600 seconds together */

#include "pair.h"

enum { AREA = 1 << 20, DEPTH = 16, PATTERN = 0x5a };

enum way { DEREG, ERR, RESET, DESTROY, WAYS };
static const char *const ways[] = {"dereg", "ERR", "RESET", "destroy"};

struct board {
	struct kit_card card[2];
	/* Rounds; -1 ends the test. */
	_Atomic int ready[2];  /* each end has begun it */
	_Atomic int connected; /* the owner's QP is */
	_Atomic int64_t hits, rounds;
};

static struct board *board;
static double seconds = 0.35;
static bool shared; /* the owner's memory is one that the peer maps after some use */
static uint64_t rng;
static int shared_fd;

static uint32_t some_length(void)
{
	return 1 + kit_below(&rng, 1u << kit_below(&rng, 21));
}

static void intact(const uint8_t *p, const char *what)
{
	for (size_t i = 0; i < AREA; i++)
		CHECK(p[i] == PATTERN, "byte %zu of %s was touched afterwards", i, what);
}

/* At once, and beginning anywhere: where a copy that goes on would be. */
static void take(uint8_t *p)
{
	size_t k = kit_below(&rng, AREA);

	memset(p + k, PATTERN, AREA - k);
	memset(p, PATTERN, k);
}

static void qp_to(struct ibv_qp *qp, enum ibv_qp_state state)
{
	struct ibv_qp_attr a = {.qp_state = state};

	CHECK(!ibv_modify_qp(qp, &a, IBV_QP_STATE));
}

static void drain(struct kit_end *e)
{
	struct ibv_wc wc;

	while (ibv_poll_cq(e->cq, 1, &wc) > 0)
		if (wc.status == IBV_WC_SUCCESS)
			atomic_fetch_add_explicit(&board->hits, 1, memory_order_relaxed);
}

/* An end whose memory is a memfd. */
static void share(struct kit_end *e, struct ibv_pd *pd)
{
	int fd = memfd_create("revoke", MFD_CLOEXEC);

	CHECK(fd >= 0 && !ftruncate(fd, AREA));
	CHECK(!ibv_dereg_mr(e->mr));
	free(e->buf);
	e->buf = mmap(NULL, AREA, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	CHECK(e->buf != MAP_FAILED);
	e->mr = ibv_reg_mr(pd, e->buf, AREA, KIT_ALL);
	CHECK(e->mr);
	e->card.rkey = e->mr->rkey;
	e->card.addr = (uintptr_t)e->buf;
	shared_fd = fd;
}

/* The one whose memory it is; `reads`: it READs into it itself. */
static void owner(struct ibv_pd *pd, enum way way, bool reads)
{
	double end = kit_now() + seconds;
	int round = 0;

	while (kit_now() < end || round < 3) {
		double late = kit_now() + 20;
		struct kit_end e;

		kit_end_open(&e, pd, DEPTH, AREA);
		if (shared)
			share(&e, pd);
		board->card[0] = e.card;
		atomic_store(&board->ready[0], ++round);
		kit_reach(&board->ready[1], round);
		kit_connect(&e, &board->card[1]);
		atomic_store(&board->connected, round);
		if (reads) { /* all sizes, as long as something is to be read */
			int n = 1 + (int)kit_below(&rng, DEPTH);

			for (int i = 0; i < n; i++) {
				uint32_t len = kit_below(&rng, 3) ? AREA : some_length();

				CHECK(
				    !kit_post(&e, IBV_WR_RDMA_READ, 1, AREA - len, len, &board->card[1], 0));
				if (!kit_below(&rng, 3))
					drain(&e);
			}
			kit_some_time(&rng, kit_below(&rng, 2) ? 20000 : 1000000);
		} else {
			while (!__atomic_load_n(&e.buf[AREA - 1], __ATOMIC_RELAXED)) {
				CHECK(kit_now() < late, "round %d: no WRITE comes", round);
				drain(&e); /* until the peer is at it */
			}
			kit_some_time(&rng, 200000);
			if (shared) /* until it is mapped over there, mostly */
				kit_nap(1 + (int)kit_below(&rng, 10));
		}
		switch (way) {
		case DEREG:
			CHECK(!ibv_dereg_mr(e.mr));
			break;
		case ERR:
			qp_to(e.qp, IBV_QPS_ERR);
			break;
		case RESET:
			qp_to(e.qp, IBV_QPS_RESET);
			break;
		default:
			CHECK(!ibv_destroy_qp(e.qp));
		}
		take(e.buf);
		kit_some_time(&rng, kit_below(&rng, 4) ? 20000 : 400000);
		intact(e.buf, ways[way]);
		drain(&e);
		if (!kit_below(&rng, 4))
			kit_nap(2);
		intact(e.buf, ways[way]);
		if (way != DESTROY)
			CHECK(!ibv_destroy_qp(e.qp));
		intact(e.buf, "a QP that is gone");
		if (way != DEREG)
			CHECK(!ibv_dereg_mr(e.mr));
		CHECK(!ibv_destroy_cq(e.cq));
		if (shared) {
			munmap(e.buf, AREA);
			close(shared_fd);
		} else {
			free(e.buf);
		}
		atomic_fetch_add(&board->rounds, 1);
	}
	atomic_store(&board->ready[0], -1);
}

/* WRITEs to what it is given until that fails, or is read. */
static void other(struct ibv_pd *pd, bool reads)
{
	for (int round = 1;; round++) {
		struct kit_end e;
		struct ibv_wc wc;
		int posted = 0;

		kit_reach(&board->ready[0], round);
		if (atomic_load(&board->ready[0]) < 0)
			return;
		kit_end_open(&e, pd, DEPTH, AREA);
		memset(e.buf, 0xff, AREA);
		board->card[1] = e.card;
		kit_connect(&e, &board->card[0]);
		atomic_store(&board->ready[1], round);
		kit_reach(&board->connected, round);
		while (reads && atomic_load(&board->ready[0]) == round)
			if (ibv_poll_cq(e.cq, 1, &wc) == 0)
				sched_yield();
		for (bool failed = reads; !failed && atomic_load(&board->ready[0]) == round;) {
			for (; posted < DEPTH; posted++) {
				uint32_t len = kit_below(&rng, 4) ? some_length() : AREA;

				CHECK(!kit_post(&e, IBV_WR_RDMA_WRITE, 1, AREA - len, len, &board->card[0],
						AREA - len));
			}
			while (ibv_poll_cq(e.cq, 1, &wc) > 0) {
				posted--;
				failed |= wc.status != IBV_WC_SUCCESS;
				if (wc.status == IBV_WC_SUCCESS)
					atomic_fetch_add_explicit(&board->hits, 1, memory_order_relaxed);
			}
		}
		kit_end_close(&e);
	}
}

static void end_of(int me, enum way way, bool reads, bool on)
{
	struct ibv_context *ctx;
	struct ibv_pd *pd;

	setenv("VERBENA_DIRECT", on ? "on" : "off", 1);
	rng = (uint64_t)getpid() << 20 ^ (uint64_t)clock();
	ctx = kit_open();
	pd = ibv_alloc_pd(ctx);
	CHECK(pd);
	if (me)
		other(pd, reads);
	else
		owner(pd, way, reads);
	CHECK(!ibv_dealloc_pd(pd) && !ibv_close_device(ctx));
	exit(0);
}

static void run(enum way way, bool reads, bool on)
{
	pid_t pid[2];

	atomic_store(&board->ready[0], 0);
	atomic_store(&board->ready[1], 0);
	atomic_store(&board->connected, 0);
	atomic_store(&board->hits, 0);
	atomic_store(&board->rounds, 0);
	for (int me = 0; me < 2; me++) {
		pid[me] = kit_fork();
		if (!pid[me])
			end_of(me, way, reads, on);
	}
	for (int me = 0; me < 2; me++)
		CHECK(kit_reap(pid[me]) == 0, "%s, %s, direct %s: end %d", ways[way],
		      reads ? "READs" : "WRITEs", on ? "on" : "off", me);
	printf("%s under %s, direct %s%s: %" PRId64 " rounds, %" PRId64 " requests\n", ways[way],
	       reads ? "READs" : "WRITEs", on ? "on" : "off", shared ? ", shared" : "",
	       atomic_load(&board->rounds), atomic_load(&board->hits));
	fflush(stdout);
	/* READs by the ring may all be too late */
	CHECK(atomic_load(&board->hits) > 0 || (reads && !on), "nothing was ever placed");
}

int main(int argc, char **argv)
{
	if (argc > 1 || getenv("VERBENA_SOAK"))
		seconds = argc > 1 ? atof(argv[1]) : 600.0 / (5 * WAYS);
	board = kit_shared(sizeof *board);
	for (int way = 0; way < WAYS; way++)
		for (int k = 0; k < 4; k++)
			run((enum way)way, k & 1, k < 2);
	shared = true;
	for (int way = 0; way < WAYS; way++)
		run((enum way)way, false, true);
	return 0;
}
