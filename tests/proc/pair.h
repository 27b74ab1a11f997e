/* Two processes with RC ends between them, a target that can be stopped and an initiator that is its parent:
 * what the tests of direct placement share. */
#ifndef VB_TESTS_PAIR_H
#define VB_TESTS_PAIR_H

#include <errno.h>
#include <fcntl.h>
#include <poll.h>

#include "kit.h"

enum { PAIR_ENDS = 2, PAIR_SKIP = 77 };

/* Shared by both; `step` is the test's own. */
struct pair_board {
	struct kit_card card[2][PAIR_ENDS]; /* [0]: initiator, [1]: target */
	_Atomic int opened, connected, step, over;
	_Atomic int64_t number[8]; /* whatever one end tells the other */
};

struct pair {
	struct pair_board *board;
	int me; /* 0: initiator, 1: target */
	pid_t target;
	struct ibv_context *ctx;
	struct ibv_pd *pd;
	struct ibv_comp_channel *chan;
	struct kit_end end[PAIR_ENDS];
};

KIT_UNUSED static void pair_nap(int ms)
{
	struct timespec t = {ms / 1000, ms % 1000 * 1000000l};

	nanosleep(&t, NULL);
}

/* A SEND each way on every end: from then on both know that the other is there, and permit what they permit.
 */
KIT_UNUSED static void pair_greet(struct pair *p)
{
	for (int i = 0; i < PAIR_ENDS; i++) {
		struct kit_end *e = &p->end[i];

		CHECK(!kit_post(e, IBV_WR_SEND, 1, 0, 0, NULL, 0));
		for (int n = 0; n < 2; n++) { /* its completion and the other's message, in any order */
			struct ibv_wc wc = kit_wait(e, 20);

			CHECK(wc.status == IBV_WC_SUCCESS, "%s", ibv_wc_status_str(wc.status));
		}
	}
}

/* A device of its own, PAIR_ENDS ends with `size` bytes each, connected. */
KIT_UNUSED static void pair_open(struct pair *p, int depth, size_t size)
{
	struct pair_board *b = p->board;

	p->ctx = kit_open();
	p->pd = ibv_alloc_pd(p->ctx);
	p->chan = ibv_create_comp_channel(p->ctx);
	CHECK(p->pd && p->chan);
	for (int i = 0; i < PAIR_ENDS; i++) {
		kit_end_open_on(&p->end[i], p->pd, p->chan, depth, size);
		b->card[p->me][i] = p->end[i].card;
		CHECK(!kit_recv(&p->end[i], 1000, 0, 0));
	}
	atomic_fetch_add(&b->opened, 1);
	kit_until(&b->opened, 2);
	for (int i = 0; i < PAIR_ENDS; i++)
		kit_connect(&p->end[i], &b->card[!p->me][i]);
	atomic_fetch_add(&b->connected, 1);
	kit_until(&b->connected, 2);
	pair_greet(p);
}

KIT_UNUSED static void pair_close(struct pair *p)
{
	atomic_fetch_add(&p->board->over, 1);
	kit_until(&p->board->over, 2);
	for (int i = 0; i < PAIR_ENDS; i++)
		kit_end_close(&p->end[i]);
	CHECK(!ibv_destroy_comp_channel(p->chan) && !ibv_dealloc_pd(p->pd) && !ibv_close_device(p->ctx));
}

/* The target with all its threads. */
KIT_UNUSED static void pair_stop(struct pair *p)
{
	int status;

	CHECK(!kill(p->target, SIGSTOP));
	CHECK(waitpid(p->target, &status, WUNTRACED) == p->target && WIFSTOPPED(status), "0x%x", status);
}

KIT_UNUSED static void pair_cont(struct pair *p)
{
	int status;

	CHECK(!kill(p->target, SIGCONT));
	CHECK(waitpid(p->target, &status, WCONTINUED) == p->target && WIFCONTINUED(status), "0x%x", status);
}

/* What the initiator's process does before it makes the target's; NULL: nothing. */
KIT_UNUSED static void (*pair_before)(void);

/* Runs initiator and target, each in a process of its own; `on` says who has direct placement.  false: this
 * machine cannot, one of them has exited with PAIR_SKIP and said why. */
KIT_UNUSED static bool pair_run(const char *name, const bool on[2], void (*initiator)(struct pair *),
				void (*target)(struct pair *))
{
	struct pair p = {.board = kit_shared(sizeof *p.board)};
	pid_t pid = kit_fork();
	int status;

	if (!pid) {
		alarm(240);
		if (pair_before)
			pair_before();
		p.target = kit_fork();
		p.me = !p.target;
		setenv("VERBENA_DIRECT", on[p.me] ? "on" : "off", 1);
		(p.me ? target : initiator)(&p);
		if (p.me)
			exit(0);
		status = kit_reap(p.target);
		CHECK(!status, "the target ended with 0x%x", status);
		exit(0);
	}
	status = kit_reap(pid);
	munmap(p.board, sizeof *p.board);
	if (WIFEXITED(status) && WEXITSTATUS(status) == PAIR_SKIP)
		return false;
	CHECK(!status, "%s: 0x%x", name, status);
	printf("%s: ok\n", name);
	return true;
}

#endif
