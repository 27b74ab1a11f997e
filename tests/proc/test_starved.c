/* Threads that do not get a CPU are slow and no more than that: a peer whose engine waits for one is not
 * given up, and a program that polls under a real-time policy does not keep its own engine from making
 * contact.
 *
 *     proc-starved [CASE]     default: all */
#include <dirent.h>
#include <errno.h>
#include <sched.h>
#include <sys/resource.h>

#include "contact.h"

enum { SPINNERS = 40 };
#define LONGER_THAN_GRACE 6.5 /* seconds; contact may take five where nothing is wrong */

struct board {
	_Atomic int step, spinning;
	struct kit_card mine, theirs;
};
static struct board *board;

static int last_cpu(void)
{
	cpu_set_t set;
	int last = -1;

	CHECK(!sched_getaffinity(0, sizeof set, &set));
	for (int i = 0; i < CPU_SETSIZE; i++)
		if (CPU_ISSET(i, &set))
			last = i;
	return last;
}

static void stay_on(int cpu)
{
	cpu_set_t set;

	CPU_ZERO(&set);
	CPU_SET(cpu, &set);
	CHECK(!sched_setaffinity(0, sizeof set, &set), "%s", strerror(errno));
}

/* All threads of this process. */
static void run_last(void)
{
	struct sched_param p = {0};
	DIR *d = opendir("/proc/self/task");

	CHECK(d);
	for (struct dirent *t; (t = readdir(d));)
		if (atoi(t->d_name))
			CHECK(!sched_setscheduler(atoi(t->d_name), SCHED_IDLE, &p), "%s", strerror(errno));
	closedir(d);
}

/* A peer whose threads are the last that its CPU runs, and then all the others come.  Its QP stays in INIT:
 * connecting it would make contact. */
static void peer(int cpu)
{
	struct kit_end e;

	stay_on(cpu);
	kit_end_open(&e, ibv_alloc_pd(kit_open()), 4, 4096);
	run_last();
	board->theirs = e.card;
	atomic_store(&board->step, 1);
	for (;;)
		pause();
}

static void spin(int cpu, pid_t pids[SPINNERS])
{
	for (int i = 0; i < SPINNERS; i++) {
		pids[i] = kit_fork();
		if (pids[i])
			continue;
		stay_on(cpu);
		CHECK(!setpriority(PRIO_PROCESS, 0, -20));
		atomic_fetch_add(&board->spinning, 1);
		for (;;)
			;
	}
	kit_until(&board->spinning, SPINNERS);
}

/* What the request ends with is what the peer is once it gets to answer, and not that it does not. */
static void a_starved_peer(void)
{
	pid_t pid, spinners[SPINNERS];
	int cpu = last_cpu(), n = 0;
	struct ibv_wc wc;
	struct kit_end e;
	double begun;

	if (!cpu) {
		printf("SKIP: one CPU only\n");
		return;
	}
	atomic_store(&board->step, 0);
	pid = kit_fork();
	if (!pid)
		peer(cpu);
	kit_until(&board->step, 1);
	stay_on(cpu - 1);
	kit_log_begin("info");
	kit_end_open(&e, ibv_alloc_pd(kit_open()), 4, 4096);
	spin(cpu, spinners);
	begun = kit_now();
	kit_connect_with(&e, &board->theirs, 8, 1);
	CHECK(!kit_post(&e, IBV_WR_SEND, 1, 0, 64, NULL, 0));
	while (!n && kit_now() - begun < LONGER_THAN_GRACE)
		n = ibv_poll_cq(e.cq, 1, &wc);
	printf("%s after %.1f s\n", n ? "an answer" : "nothing yet", kit_now() - begun);
	for (int i = 0; i < SPINNERS; i++) {
		kill(spinners[i], SIGKILL);
		kit_reap(spinners[i]);
	}
	if (!n)
		wc = kit_wait(&e, 30);
	CHECK(wc.status == IBV_WC_RETRY_EXC_ERR, "%s", ibv_wc_status_str(wc.status));
	KIT_LOG_SAYS("it is in state INIT, which receives no packets");
	KIT_LOG_SAYS_NOT("does not answer");
	kill(pid, SIGKILL);
	kit_reap(pid);
}

static bool real_time(bool on)
{
	struct sched_param p = {.sched_priority = on ? 1 : 0};

	return !sched_setscheduler(0, on ? SCHED_FIFO : SCHED_OTHER, &p);
}

/* Both ends of a connection poll under SCHED_FIFO, on one CPU each with their engines. */
static void poll_hard(int cpu, struct kit_card *mine, struct kit_card *theirs, int me)
{
	struct kit_end e;
	double begun, took;

	stay_on(cpu);
	kit_end_open(&e, ibv_alloc_pd(kit_open()), 4, 4096);
	*mine = e.card;
	atomic_fetch_add(&board->step, 1);
	kit_until(&board->step, 2);
	CHECK(!kit_recv(&e, 1, 0, 64));
	CHECK(real_time(true), "%s", strerror(errno));
	begun = kit_now();
	kit_connect_with(&e, theirs, 18, 7); /* a second each time, 8 times */
	CHECK(!kit_post(&e, IBV_WR_SEND, 2, 64, 64, NULL, 0));
	for (int i = 0; i < 2; i++) {
		struct ibv_wc wc = kit_wait(&e, 20);

		CHECK(wc.status == IBV_WC_SUCCESS, "%s", ibv_wc_status_str(wc.status));
	}
	took = kit_now() - begun;
	real_time(false);
	printf("end %d: %.3f s\n", me, took);
	CHECK(took < 0.6, "contact took %g s", took);
	exit(0);
}

static void a_real_time_poller(void)
{
	pid_t pid[2];
	int cpu = last_cpu();

	atomic_store(&board->step, 0);
	for (int i = 0; i < 2; i++) {
		pid[i] = kit_fork();
		if (!pid[i])
			poll_hard(cpu ? cpu - i : cpu, i ? &board->theirs : &board->mine,
				  i ? &board->mine : &board->theirs, i);
	}
	for (int i = 0; i < 2; i++)
		CHECK(kit_reap(pid[i]) == 0);
}

static const struct kit_case cases[] = {
    {.name = "a starved peer", .run = a_starved_peer},
    {.name = "a real-time poller", .run = a_real_time_poller},
};

int main(int argc, char **argv)
{
	board = kit_shared(sizeof *board);
	if (setpriority(PRIO_PROCESS, 0, -1) || setpriority(PRIO_PROCESS, 0, 0) || !real_time(true) ||
	    !real_time(false)) {
		printf("SKIP: this user may not raise priorities: %s\n", strerror(errno));
		return KIT_SKIP;
	}
	KIT_CASES(cases, 100);
	return 0;
}
