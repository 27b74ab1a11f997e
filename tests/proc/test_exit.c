/* exit() in a signal handler, in the middle of a post or a poll, as programs do on Ctrl-C: the process ends,
 * and soon. */
#include <sys/time.h>

#include "kit.h"

enum { RUNS = 60, LEN = 32768 };

static void leave(int sig)
{
	(void)sig;
	exit(0);
}

static void victim(int run)
{
	struct itimerval when = {.it_value = {.tv_usec = 2000 + run * 997 % 5000}};
	struct ibv_pd *pd = ibv_alloc_pd(kit_open());
	struct kit_end a, b;
	struct ibv_wc wc[8];

	CHECK(pd);
	kit_end_open(&a, pd, 64, LEN);
	kit_end_open(&b, pd, 64, LEN);
	kit_connect(&a, &b.card);
	kit_connect(&b, &a.card);
	CHECK(signal(SIGALRM, leave) != SIG_ERR);
	CHECK(!setitimer(ITIMER_REAL, &when, NULL));
	for (;;) { /* full queues are no matter */
		kit_post(&a, IBV_WR_RDMA_WRITE, 1, 0, LEN, &b.card, 0);
		kit_post(&a, IBV_WR_RDMA_READ, 1, 0, LEN, &b.card, 0);
		CHECK(ibv_poll_cq(a.cq, 8, wc) >= 0);
		CHECK(ibv_poll_cq(b.cq, 8, wc) >= 0);
	}
}

int main(void)
{
	struct timespec ms = {0, 1000000};
	int status;

	for (int run = 0; run < RUNS; run++) {
		double end = kit_now() + 20;
		pid_t pid = kit_fork();

		if (!pid)
			victim(run);
		while (!waitpid(pid, &status, WNOHANG)) {
			CHECK(kit_now() < end, "run %d does not end", run);
			nanosleep(&ms, NULL);
		}
		CHECK(status == 0, "run %d: 0x%x", run, status);
	}
	return 0;
}
