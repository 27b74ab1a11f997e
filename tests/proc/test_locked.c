/* Programs that lock their memory (mlockall), as those do that must not wait for a page: what an adapter maps
 * for all that it might ever show, and for each peer as much, is neither locked nor made present. */
#include <errno.h>
#include <pthread.h>
#include <sys/resource.h>

#include "kit.h"

enum { PEERS = 3, MOST = 96 << 10 /* KiB */, LIMIT = 8 << 20, STACK = 1 << 20, ENOUGH = 32 << 20 };

static struct board {
	struct kit_card mine, theirs;
	_Atomic int step;
} * board;

/* KiB that /proc/self/status has in that line. */
static long status_of(const char *what)
{
	FILE *f = fopen("/proc/self/status", "re");
	char line[200];
	long kib = -1;

	CHECK(f);
	while (kib < 0 && fgets(line, sizeof line, f))
		if (!strncmp(line, what, strlen(what)))
			kib = strtol(line + strlen(what), NULL, 10);
	fclose(f);
	CHECK(kib >= 0, "%s", what);
	return kib;
}

/* Answers one SEND, and waits to be killed. */
static void peer(void)
{
	struct kit_end e;

	kit_end_open(&e, ibv_alloc_pd(kit_open()), 4, 4096);
	board->theirs = e.card;
	CHECK(!kit_recv(&e, 1, 0, 64));
	atomic_store(&board->step, 1);
	kit_until(&board->step, 2);
	kit_connect(&e, &board->mine);
	atomic_store(&board->step, 3);
	kit_expect(&e, IBV_WC_RECV);
	CHECK(!kit_post(&e, IBV_WR_SEND, 2, 64, 64, NULL, 0));
	for (;;)
		pause();
}

static void small(const char *when, const long before[2])
{
	long rss = status_of("VmRSS:") - before[0], lck = status_of("VmLck:") - before[1];

	CHECK(rss < MOST && lck < MOST, "%s: %ld KiB more present, %ld KiB more locked", when, rss, lck);
}

/* Makes contact with a process, which dies. */
static void meet(struct ibv_pd *pd, const long before[2])
{
	struct kit_end e;
	struct ibv_wc wc;
	pid_t pid;

	atomic_store(&board->step, 0);
	pid = kit_fork();
	if (!pid)
		peer();
	kit_end_open(&e, pd, 4, 4096);
	board->mine = e.card;
	kit_until(&board->step, 1);
	atomic_store(&board->step, 2);
	kit_until(&board->step, 3);
	kit_connect(&e, &board->theirs);
	CHECK(!kit_recv(&e, 1, 0, 64) && !kit_post(&e, IBV_WR_SEND, 2, 64, 64, NULL, 0));
	kit_expect(&e, IBV_WC_SEND);
	kit_expect(&e, IBV_WC_RECV);
	small("with a peer", before);
	CHECK(!kit_recv(&e, 3, 0, 64));
	kill(pid, SIGKILL);
	wc = kit_wait(&e, 20);
	CHECK(wc.wr_id == 3 && wc.status == IBV_WC_WR_FLUSH_ERR, "%s", ibv_wc_status_str(wc.status));
	kit_reap(pid);
	kit_end_close(&e);
	small("without it", before);
}

static void use(int flags)
{
	struct ibv_context *ctx;
	struct ibv_pd *pd;
	long before[2];

	if (mlockall(flags)) {
		printf("SKIP: this user may not lock memory: %s\n", strerror(errno));
		exit(KIT_SKIP);
	}
	before[0] = status_of("VmRSS:");
	before[1] = status_of("VmLck:");
	ctx = kit_open();
	pd = ibv_alloc_pd(ctx);
	small("with a device", before);
	for (int i = 0; i < PEERS; i++)
		meet(pd, before);
	CHECK(!ibv_dealloc_pd(pd) && !ibv_close_device(ctx));
	exit(0);
}

/* One who may lock little, and so has small stacks for threads. */
static void with_a_limit(void)
{
	struct rlimit r = {LIMIT, LIMIT};
	pthread_attr_t attr;
	pid_t pid;

	if (!kit_can_be(KIT_FOREIGN) || setrlimit(RLIMIT_MEMLOCK, &r)) {
		printf("SKIP with a limit: this user cannot become another, who has one: %s\n",
		       strerror(errno));
		exit(KIT_SKIP);
	}
	CHECK(!pthread_attr_init(&attr) && !pthread_attr_setstacksize(&attr, STACK) &&
	      !pthread_setattr_default_np(&attr));
	pid = kit_fork_as(KIT_FOREIGN);
	if (!pid)
		use(MCL_FUTURE);
	exit(WEXITSTATUS(kit_reap(pid)));
}

static bool run(const char *name, void (*f)(void))
{
	pid_t pid = kit_fork();
	int status;

	if (!pid) {
		alarm(60);
		f();
	}
	status = kit_reap(pid);
	CHECK(WIFEXITED(status) && (!status || WEXITSTATUS(status) == KIT_SKIP), "%s", name);
	return !status;
}

static void without_a_limit(void)
{
	void *p = mmap(NULL, ENOUGH, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS | MAP_LOCKED, -1, 0);

	if (p == MAP_FAILED) { /* the engine's stack alone is 8 MiB */
		printf("SKIP without a limit: this user has one: %s\n", strerror(errno));
		exit(KIT_SKIP);
	}
	munmap(p, ENOUGH);
	use(MCL_CURRENT | MCL_FUTURE);
}

int main(void)
{
	bool any;

	board = kit_shared(sizeof *board);
	any = run("without a limit", without_a_limit);
	any |= run("with a limit", with_a_limit);
	return any ? 0 : KIT_SKIP;
}
