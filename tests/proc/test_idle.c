/* A server with an open device and connected QPs that has nothing to do: no context switch in any of its
 * threads, whether it waits in ibv_get_cq_event or in a read of something else.  And the latter answers all
 * the same, promptly: SENDs, READs, atomics.  And what peers place directly wakes nobody.
 *
 *     proc-idle [SECONDS]     how long it must be quiet; default 2, 10 in make soak */
#include <errno.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/uio.h>

#include "kit.h"

enum { CLIENTS = 3, DEPTH = 64, SIZE = 64 << 10, WARM_UP = 300, ASKS = 200 };

enum how { IN_EVENT, IN_READ, POLLED_THEN_READ };

struct board {
	_Atomic int ready, connected, warm, stop;
	struct kit_card server[CLIENTS], clients[CLIENTS];
	char unused[SIZE];
};

static struct board *board;
static double quiet_for;

/* All context switches so far of a process's threads; `but`: without that thread. */
static unsigned long switches(pid_t pid, pid_t but)
{
	struct kit_switches s = kit_switches(pid, but);

	return s.slept + s.forced;
}

static void nap(double seconds)
{
	struct timespec t = {(time_t)seconds, (long)((seconds - (double)(time_t)seconds) * 1e9)};

	nanosleep(&t, NULL);
}

/* The server and this process's engine come to rest, and then there is nothing at all. */
static void both_stay_quiet(pid_t pid)
{
	unsigned long theirs = switches(pid, 0), ours = switches(getpid(), getpid()), t, o;
	double until = kit_now() + 10;

	for (;;) {
		nap(1.2);
		t = switches(pid, 0);
		o = switches(getpid(), getpid());
		if (t == theirs && o == ours)
			break;
		CHECK(kit_now() < until,
		      "no rest: %lu context switches of the server, %lu of the engine here", t - theirs,
		      o - ours);
		theirs = t;
		ours = o;
	}
	nap(quiet_for);
	t = switches(pid, 0) - theirs;
	o = switches(getpid(), getpid()) - ours;
	CHECK(!t && !o, "%lu context switches of the server, %lu of the engine here, in %g s", t, o,
	      quiet_for);
}

static void take_one(struct kit_end *e, const struct ibv_wc *wc)
{
	CHECK(wc->status == IBV_WC_SUCCESS, "%s", ibv_wc_status_str(wc->status));
	if (wc->opcode & IBV_WC_RECV)
		CHECK(!kit_recv(e, 1, 0, 64));
}

static void server(enum how how, int fd)
{
	struct ibv_context *ctx = kit_open();
	struct ibv_pd *pd = ibv_alloc_pd(ctx);
	struct ibv_comp_channel *ch = ibv_create_comp_channel(ctx);
	struct kit_end e[CLIENTS];
	int got = 0;
	char c;

	CHECK(pd && ch);
	for (int i = 0; i < CLIENTS; i++) {
		kit_end_open_on(&e[i], pd, ch, 2 * ASKS + DEPTH, SIZE);
		for (int k = 0; k < 2 * ASKS + DEPTH; k++)
			CHECK(!kit_recv(&e[i], 1, 0, 64));
		board->server[i] = e[i].card;
	}
	atomic_store(&board->ready, 1);
	kit_until(&board->connected, CLIENTS);
	for (int i = 0; i < CLIENTS; i++)
		kit_connect(&e[i], &board->clients[i]);
	atomic_fetch_add(&board->connected, 1);
	while (got < CLIENTS * WARM_UP) {
		for (int i = 0; i < CLIENTS; i++) {
			struct ibv_wc wc;

			if (how != POLLED_THEN_READ) {
				struct ibv_cq *cq;
				void *arg;

				CHECK(!ibv_req_notify_cq(e[i].cq, 0));
				if (poll((struct pollfd[]){{.fd = ch->fd, .events = POLLIN}}, 1, 0) == 1) {
					CHECK(!ibv_get_cq_event(ch, &cq, &arg));
					ibv_ack_cq_events(cq, 1);
				}
			}
			while (ibv_poll_cq(e[i].cq, 1, &wc) == 1) {
				take_one(&e[i], &wc);
				got += !!(wc.opcode & IBV_WC_RECV);
			}
		}
	}
	atomic_store(&board->warm, 1);
	if (how == IN_EVENT) {
		struct ibv_cq *cq;
		void *arg;

		for (int i = 0; i < CLIENTS; i++)
			CHECK(!ibv_req_notify_cq(e[i].cq, 0));
		/* the last of these is for the end */
		while (!atomic_load(&board->stop)) {
			CHECK(!ibv_get_cq_event(ch, &cq, &arg));
			ibv_ack_cq_events(cq, 1);
			CHECK(!ibv_req_notify_cq(cq, 0));
		}
	} else {
		CHECK(read(fd, &c, 1) == 1);
	}
	exit(0);
}

/* Whether processes may reach into one another here. */
static bool may_reach(pid_t pid)
{
	uint64_t v;
	struct iovec here = {&v, 8}, there = {board->unused, 8};
	const char *direct = getenv("VERBENA_DIRECT");

	return !(direct && !strcmp(direct, "off")) && process_vm_readv(pid, &here, 1, &there, 1, 0) == 8;
}

static void ask(struct kit_end *e, enum ibv_wr_opcode op, uint32_t len, int i)
{
	double t = kit_now();
	struct ibv_wc wc;

	CHECK(!kit_post(e, op, 7, 0, len, &board->server[i], 8192));
	wc = kit_wait(e, 20);
	CHECK(wc.status == IBV_WC_SUCCESS, "%s", ibv_wc_status_str(wc.status));
	/* a second is no measure of speed: whoever waits for a timer or for the program takes longer */
	CHECK(kit_now() - t < 5, "operation %d took %g s", op, kit_now() - t);
}

/* With a target that sits in a read: everything is answered. */
static void target_answers(struct kit_end *e)
{
	static const enum ibv_wr_opcode ops[] = {IBV_WR_SEND,
						 IBV_WR_RDMA_READ,
						 IBV_WR_ATOMIC_FETCH_AND_ADD,
						 IBV_WR_RDMA_WRITE_WITH_IMM,
						 IBV_WR_RDMA_WRITE,
						 IBV_WR_ATOMIC_CMP_AND_SWP};
	double t = kit_now();

	for (int k = 0; k < ASKS; k++) {
		enum ibv_wr_opcode op = ops[k % 6];

		ask(&e[k % CLIENTS], op,
		    k % 6 == 2 || k % 6 == 5 ? 8
		    : k % 6 == 1	     ? SIZE / 2
					     : 64,
		    k % CLIENTS);
		if (k % 50 == 49)
			nap(0.02); /* it falls asleep */
	}
	CHECK(kit_now() - t < 20, "%d requests took %g s", ASKS, kit_now() - t);
}

/* Placed by us: the target does not even wake. */
static void target_sleeps(struct kit_end *e, pid_t pid)
{
	unsigned long before, now;

	if (!may_reach(pid)) {
		printf("SKIP direct placement wakes nobody: processes may not reach into one another here\n");
		return;
	}
	/* A region that is used again and again is asked about once, which wakes its owner. */
	for (int k = 0; k < 32 * CLIENTS; k++)
		ask(&e[k % CLIENTS], IBV_WR_RDMA_READ, 8, k % CLIENTS);
	do {
		before = switches(pid, 0);
		nap(0.1);
	} while (switches(pid, 0) != before);
	for (int k = 0; k < 2000; k++)
		ask(&e[k % CLIENTS], k % 2 ? IBV_WR_RDMA_WRITE : IBV_WR_RDMA_READ, 1 + (uint32_t)k,
		    k % CLIENTS);
	now = switches(pid, 0);
	CHECK(now == before, "%lu context switches over 2000 WRITEs and READs", now - before);
}

static void round_of(enum how how)
{
	struct ibv_context *ctx;
	struct kit_end e[CLIENTS];
	struct ibv_pd *pd;
	int fds[2];
	pid_t pid;

	memset(board, 0, sizeof *board);
	CHECK(!socketpair(AF_UNIX, SOCK_STREAM, 0, fds));
	pid = kit_fork();
	if (!pid)
		server(how, fds[1]);
	ctx = kit_open();
	pd = ibv_alloc_pd(ctx);
	kit_until(&board->ready, 1);
	for (int i = 0; i < CLIENTS; i++) {
		kit_end_open(&e[i], pd, DEPTH, SIZE);
		board->clients[i] = e[i].card;
		atomic_fetch_add(&board->connected, 1);
	}
	kit_until(&board->connected, CLIENTS + 1);
	for (int i = 0; i < CLIENTS; i++)
		kit_connect(&e[i], &board->server[i]);
	for (int k = 0; k < WARM_UP; k++)
		for (int i = 0; i < CLIENTS; i++)
			ask(&e[i], IBV_WR_SEND, 64, i);
	kit_until(&board->warm, 1);
	both_stay_quiet(pid);
	if (how != IN_EVENT) {
		target_sleeps(e, pid);
		target_answers(e);
		if (how == IN_READ)
			both_stay_quiet(pid);
	}
	atomic_store(&board->stop, 1);
	ask(&e[0], IBV_WR_SEND, 64, 0);
	CHECK(write(fds[0], "x", 1) == 1);
	CHECK(kit_reap(pid) == 0);
	close(fds[0]);
	close(fds[1]);
	for (int i = 0; i < CLIENTS; i++)
		kit_end_close(&e[i]);
	CHECK(!ibv_dealloc_pd(pd) && !ibv_close_device(ctx));
}

int main(int argc, char **argv)
{
	quiet_for = argc > 1 ? atof(argv[1]) : getenv("VERBENA_SOAK") ? 10 : 2;
	board = kit_shared(sizeof *board);
	/* In a network that others use they may make contact, as who attaches to a group does with everybody.
	 */
	kit_alone();
	for (int how = IN_EVENT; how <= POLLED_THEN_READ; how++)
		round_of((enum how)how);
	return 0;
}
