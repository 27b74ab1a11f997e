/* After ibv_dereg_mr() has returned no byte is touched, nor by the other processes that hold the protection
 * domain; and its owner's death in mid-traffic ends requests, not processes.
 *
 * A user's QP in the shared domain carries WRITEs to the owner's memory, by its R_Key, and READs into it, by
 * its L_Key, as fast as it can.  The owner deregisters, fills the memory with a pattern at once, waits a
 * little and looks.
 *
 *     proc-shared_revoke [SECONDS]      for each of the eight cases */
#include <errno.h>
#include <fcntl.h>
#include <sched.h>

#include "kit.h"

enum { AREA = 1 << 19, DEPTH = 8, PATTERN = 0x5a };

struct board {
	_Atomic int shared, begun, used, done, over;
	_Atomic int64_t hits, rounds;
	struct ibv_shpd shpd;
	uint32_t lkey, rkey;
	uint64_t addr;
};

static struct board *board;
static double seconds = 0.3;
static uint64_t rng = 1;

struct plan {
	const char *name;
	bool reads;    /* into the owner's memory, else WRITEs to it */
	bool openable; /* a memfd, else private memory */
	bool home;     /* the owner made the domain */
};

static struct ibv_pd *instance(struct ibv_context *ctx, bool home)
{
	struct ibv_pd *pd;

	if (home) {
		pd = ibv_alloc_pd(ctx);
		CHECK(pd && ibv_alloc_shpd(pd, 1, &board->shpd));
		atomic_store(&board->shared, 1);
	} else {
		kit_until(&board->shared, 1);
		pd = ibv_share_pd(ctx, &board->shpd, 1);
		CHECK(pd, "%s", strerror(errno));
	}
	return pd;
}

static void wait_for(_Atomic int *v, int n)
{
	double end = kit_now() + 30;

	while (atomic_load(v) < n) {
		CHECK(kit_now() < end, "waited for round %d", n);
		sched_yield();
	}
}

static void take(uint8_t *p)
{
	size_t k = kit_below(&rng, AREA);

	memset(p + k, PATTERN, AREA - k);
	memset(p, PATTERN, k);
}

static void be_owner(const struct plan *p, double length, bool dies)
{
	struct ibv_context *ctx = kit_open();
	struct ibv_pd *pd = instance(ctx, p->home);
	double end = kit_now() + length;
	int fd = -1;
	uint8_t *area = p->openable
			    ? kit_mapped(AREA, &fd)
			    : mmap(NULL, AREA, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

	CHECK(area != MAP_FAILED);
	for (int round = 1; kit_now() < end || round < 4; round++) {
		struct ibv_mr *mr = ibv_reg_mr(pd, area, AREA, p->reads ? IBV_ACCESS_LOCAL_WRITE : KIT_ALL);
		double late = kit_now() + 20;

		CHECK(mr);
		memset(area, 0, AREA);
		board->lkey = mr->lkey;
		board->rkey = mr->rkey;
		board->addr = (uintptr_t)area;
		atomic_store(&board->begun, round);
		/* into the middle of it */
		while (!__atomic_load_n(&area[AREA - 1], __ATOMIC_RELAXED))
			CHECK(kit_now() < late, "round %d: nothing comes", round);
		for (uint32_t n = kit_below(&rng, kit_below(&rng, 2) ? 2000 : 200000); n; n--)
			__asm__ volatile("" ::: "memory");
		if (dies && round == 3)
			kill(getpid(), SIGKILL);
		CHECK(!ibv_dereg_mr(mr));
		take(area);
		for (uint32_t n = kit_below(&rng, 100000); n; n--)
			__asm__ volatile("" ::: "memory");
		sched_yield();
		for (size_t i = 0; i < AREA; i++)
			CHECK(area[i] == PATTERN, "round %d: byte %zu was touched afterwards", round, i);
		wait_for(&board->done, round);
		atomic_fetch_add(&board->rounds, 1);
	}
	atomic_store(&board->over, 1);
	CHECK(!ibv_dealloc_pd(pd) && !ibv_close_device(ctx));
}

/* Both ends are here: `in` is in the shared domain, `out` in one of its own. */
static void user_round(struct ibv_pd *pd, struct ibv_pd *own, const struct plan *p, bool dies)
{
	struct kit_end in, out, *at = p->reads ? &in : &out;
	struct ibv_sge sge = {.length = AREA};
	struct ibv_send_wr wr = {.sg_list = &sge,
				 .num_sge = 1,
				 .send_flags = IBV_SEND_SIGNALED,
				 .opcode = p->reads ? IBV_WR_RDMA_READ : IBV_WR_RDMA_WRITE},
			   *bad;
	struct ibv_wc wc = {.status = IBV_WC_SUCCESS};
	double late = kit_now() + 20;

	kit_end_open(&in, pd, DEPTH, AREA);
	kit_end_open(&out, own, DEPTH, AREA);
	kit_connect(&in, &out.card);
	kit_connect(&out, &in.card);
	memset(out.buf, 1, AREA);
	sge.addr = p->reads ? board->addr : (uintptr_t)out.buf;
	sge.lkey = p->reads ? board->lkey : out.mr->lkey;
	wr.wr.rdma.remote_addr = p->reads ? out.card.addr : board->addr;
	wr.wr.rdma.rkey = p->reads ? out.card.rkey : board->rkey;
	for (int n = 0; n < 4; n++)
		CHECK(!ibv_post_send(at->qp, &wr, &bad));
	for (;;) {
		int n = ibv_poll_cq(at->cq, 1, &wc);

		CHECK(n >= 0 && kit_now() < late, "no end");
		if (!n)
			continue;
		if (wc.status != IBV_WC_SUCCESS)
			break;
		atomic_fetch_add(&board->hits, 1);
		sge.length = kit_below(&rng, 2) ? AREA : 1 + kit_below(&rng, AREA);
		CHECK(!ibv_post_send(at->qp, &wr, &bad));
	}
	CHECK(wc.status == (p->reads ? IBV_WC_LOC_PROT_ERR : IBV_WC_REM_ACCESS_ERR), "%s%s",
	      ibv_wc_status_str(wc.status), dies ? ", its owner may have died" : "");
	kit_end_close(&in);
	kit_end_close(&out);
}

static void be_user(const struct plan *p, bool dies, pid_t owner)
{
	struct ibv_context *ctx = kit_open();
	struct ibv_pd *pd = instance(ctx, !p->home), *own = ibv_alloc_pd(ctx);
	int rounds = 0, status;

	while (!atomic_load(&board->over)) {
		double late = kit_now() + 30;

		while (atomic_load(&board->begun) <= rounds && !atomic_load(&board->over))
			CHECK(kit_now() < late);
		if (atomic_load(&board->over))
			break;
		rounds++;
		user_round(pd, own, p, dies);
		atomic_store(&board->done, rounds);
		if (dies && rounds == 3)
			break;
	}
	CHECK(waitpid(owner, &status, 0) == owner);
	CHECK(dies ? WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL : !status, "0x%x", status);
	/* the domain lives on */
	CHECK(!ibv_dealloc_pd(own));
	own = ibv_share_pd(ctx, &board->shpd, 1);
	CHECK(own && !ibv_dealloc_pd(own) && !ibv_dealloc_pd(pd) && !ibv_close_device(ctx));
}

/* Whether the log tells whose memory it was. */
static void told(const char *log, pid_t owner)
{
	char line[1024], what[64];
	FILE *f = fopen(log, "r");
	bool found = false;

	CHECK(f);
	snprintf(what, sizeof what, "memory of process %d, which has ended", (int)owner);
	while (fgets(line, sizeof line, f))
		found |= strstr(line, what) != NULL;
	fclose(f);
	CHECK(found, "nothing of \"%s\" in the log", what);
}

static void run(const struct plan *p, bool dies)
{
	char log[] = "/tmp/verbena-test-XXXXXX";
	int fd = mkstemp(log), status;
	pid_t user, owner;

	CHECK(fd >= 0);
	memset(board, 0, sizeof *board);
	user = kit_fork();
	if (!user) {
		alarm(100 + (unsigned)seconds);
		owner = kit_fork();
		if (!owner) {
			alarm(100 + (unsigned)seconds);
			be_owner(p, seconds, dies);
			exit(0);
		}
		setenv("VERBENA_LOG", log, 1);
		be_user(p, dies, owner);
		if (dies && !p->openable) /* what is mapped stays until the death is heard of */
			told(log, owner);
		exit(0);
	}
	status = kit_reap(user);
	unlink(log);
	close(fd);
	CHECK(!status, "%s%s: 0x%x", p->name, dies ? ", death" : "", status);
	printf("%s%s: %" PRId64 " rounds, %" PRId64 " requests\n", p->name, dies ? ", death" : "",
	       atomic_load(&board->rounds), atomic_load(&board->hits));
}

int main(int argc, char **argv)
{
	static const struct plan plans[] = {
	    {"WRITE, private, home", false, false, true}, {"WRITE, private, member", false, false, false},
	    {"WRITE, memfd, home", false, true, true},	  {"WRITE, memfd, member", false, true, false},
	    {"READ, private, home", true, false, true},	  {"READ, private, member", true, false, false},
	    {"READ, memfd, home", true, true, true},	  {"READ, memfd, member", true, true, false},
	};

	if (argc > 1)
		seconds = atof(argv[1]);
	else if (getenv("VERBENA_SOAK"))
		seconds = 75;
	board = kit_shared(sizeof *board);
	for (size_t i = 0; i < sizeof plans / sizeof *plans; i++) {
		run(&plans[i], false);
		run(&plans[i], true);
	}
	return 0;
}
