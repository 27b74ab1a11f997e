/* A process that closes all its descriptors, as daemons do, while a thread of it is in the middle of a WRITE:
 * its link is gone at once, and still nothing is written to a region that is not registered any more.
 *
 *     proc-fades [TIMES] */
#include <signal.h>
#include <sys/syscall.h>

#include "kit.h"

enum { LEN = 4 << 20, BEFORE = 0x11, WRITTEN = 0x22, AFTER = 0x33, WAITED = 9 };

static struct board {
	struct kit_card card[2];
	_Atomic int opened, connected, held, closed, go_on, over;
} * board;

static struct kit_end end;

/* Holds the thread wherever it is. */
static void hold(int sig)
{
	(void)sig;
	atomic_store(&board->held, 1);
	kit_until(&board->go_on, 1);
}

static void *write_on(void *rounds)
{
	struct ibv_wc wc;

	while (!atomic_load(&board->closed)) {
		if (kit_post(&end, IBV_WR_RDMA_WRITE, 1, 0, LEN, &board->card[1], 0))
			continue;
		while (!atomic_load(&board->closed) && !ibv_poll_cq(end.cq, 1, &wc))
			;
		atomic_fetch_add((_Atomic int *)rounds, 1);
	}
	return NULL;
}

static void connect_ends(int me)
{
	board->card[me] = end.card;
	atomic_fetch_add(&board->opened, 1);
	kit_until(&board->opened, 2);
	kit_connect(&end, &board->card[!me]);
	atomic_fetch_add(&board->connected, 1);
	kit_until(&board->connected, 2);
}

static void writer(int at)
{
	struct ibv_pd *pd = ibv_alloc_pd(kit_open());
	_Atomic int rounds = 0;
	pthread_t t;

	signal(SIGUSR1, hold);
	CHECK(pd);
	kit_end_open(&end, pd, 8, LEN);
	memset(end.buf, WRITTEN, LEN);
	connect_ends(0);
	CHECK(!pthread_create(&t, NULL, write_on, &rounds));
	kit_until(&rounds, 20 + at); /* its memory is mapped here by then */
	CHECK(!pthread_kill(t, SIGUSR1));
	kit_until(&board->held, 1);
	CHECK(!syscall(SYS_close_range, 3, ~0u, 0));
	atomic_store(&board->closed, 1);
	CHECK(!pthread_join(t, NULL));
	atomic_store(&board->over, 1);
	_exit(0);
}

struct taking_back {
	struct ibv_mr *mr;
	_Atomic int done;
};

static void *take_back(void *arg)
{
	struct taking_back *b = arg;

	CHECK(!ibv_dereg_mr(b->mr));
	atomic_store(&b->done, 1);
	return NULL;
}

/* Returns whether the writer was in the middle of it. */
static bool once(int at)
{
	int fd = memfd_create("target", MFD_CLOEXEC), status;
	uint8_t *p = mmap(NULL, LEN, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	struct ibv_async_event ev = {0};
	struct taking_back b = {0};
	struct ibv_context *ctx;
	struct ibv_pd *pd;
	pthread_t t;
	pid_t pid;
	bool waited;

	memset(board, 0, sizeof(*board));
	pid = kit_fork();
	if (!pid)
		writer(at);
	CHECK(!ftruncate(fd, LEN) && p != MAP_FAILED);
	memset(p, BEFORE, LEN);
	ctx = kit_open();
	pd = ibv_alloc_pd(ctx);
	CHECK(pd);
	kit_end_open(&end, pd, 8, 64);
	b.mr = ibv_reg_mr(pd, p, LEN, KIT_ALL);
	CHECK(b.mr);
	end.card.addr = (uintptr_t)p;
	end.card.rkey = b.mr->rkey;
	connect_ends(1);
	kit_until(&board->closed, 1);
	while (ev.event_type != IBV_EVENT_QP_FATAL) { /* the end of the link is known */
		CHECK(!ibv_get_async_event(ctx, &ev));
		ibv_ack_async_event(&ev);
	}
	CHECK(!pthread_create(&t, NULL, take_back, &b));
	for (double until = kit_now() + 0.2; !atomic_load(&b.done) && kit_now() < until;)
		kit_nap(1);
	waited = !atomic_load(&b.done);
	if (!waited)
		memset(p, AFTER, LEN);
	atomic_store(&board->go_on, 1);
	CHECK(!pthread_join(t, NULL));
	if (waited)
		memset(p, AFTER, LEN);
	kit_until(&board->over, 1);
	for (size_t i = 0; i < LEN; i++)
		CHECK(p[i] == AFTER, "byte %zu was written after the region was taken back", i);
	CHECK(!(status = kit_reap(pid)), "0x%x", status);
	kit_end_close(&end);
	CHECK(!ibv_dealloc_pd(pd) && !ibv_close_device(ctx));
	CHECK(!munmap(p, LEN) && !close(fd));
	return waited;
}

int main(int argc, char **argv)
{
	int times = argc > 1 ? atoi(argv[1]) : 8, waited = 0, status;

	board = kit_shared(sizeof(*board));
	for (int i = 0; i < times; i++) {
		pid_t pid = kit_fork(); /* a device that is open in a parent is none of its child's */

		if (!pid) {
			alarm(60);
			_exit(once(i) ? WAITED : 0);
		}
		status = kit_reap(pid);
		CHECK(!status || (WIFEXITED(status) && WEXITSTATUS(status) == WAITED), "0x%x", status);
		waited += status != 0;
	}
	if (!waited) { /* what was written directly, if anything, was never caught in the middle */
		puts("SKIP: no process was in the middle of a WRITE when it closed its descriptors");
		return KIT_SKIP;
	}
	printf("%d of %d were in the middle of a WRITE\n", waited, times);
	return 0;
}
