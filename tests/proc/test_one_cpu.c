/* Two processes that poll and have one CPU between them hand it over when they wait: neither polls on for
 * what the other cannot send meanwhile. */
#include <errno.h>
#include <sched.h>

#include "kit.h"

enum { BATCH = 50, BATCHES = 400, ENOUGH = 128 };

struct board {
	_Atomic int here, done;
	struct kit_card card[2];
};
static struct board *board;

static void stay_together(void)
{
	cpu_set_t set, one;

	CHECK(!sched_getaffinity(0, sizeof set, &set));
	CPU_ZERO(&one);
	for (int i = CPU_SETSIZE - 1; i >= 0 && !CPU_COUNT(&one); i--)
		if (CPU_ISSET(i, &set))
			CPU_SET(i, &one);
	CHECK(!sched_setaffinity(0, sizeof one, &one), "%s", strerror(errno));
}

/* A message there and one back; the polls that this side made in vain. */
static uint64_t exchange(struct kit_end *e, bool first)
{
	uint64_t vain = 0;

	if (first)
		CHECK(!kit_post(e, IBV_WR_SEND, 0, 0, 8, NULL, 0));
	for (int got = 0; got < 2;) { /* the receive, and the SEND of this side */
		struct ibv_wc wc;
		int n = ibv_poll_cq(e->cq, 1, &wc);

		CHECK(n >= 0 && (!n || wc.status == IBV_WC_SUCCESS));
		vain += !n;
		got += n;
		if (n && wc.opcode == IBV_WC_RECV) {
			CHECK(!kit_recv(e, 1, 64, 8));
			if (!first)
				CHECK(!kit_post(e, IBV_WR_SEND, 0, 0, 8, NULL, 0));
		}
	}
	return vain;
}

static void play(int me)
{
	uint64_t least = UINT64_MAX;
	struct kit_end e;

	kit_end_open(&e, ibv_alloc_pd(kit_open()), 4, 4096);
	board->card[me] = e.card;
	CHECK(!kit_recv(&e, 1, 64, 8));
	atomic_fetch_add(&board->here, 1);
	kit_until(&board->here, 2);
	kit_connect(&e, &board->card[!me]);
	atomic_fetch_add(&board->here, 1);
	kit_until(&board->here, 4);
	/* Whatever else the machine does, some batch is between the two alone.  Both play all of them that
	 * one begins. */
	for (int n = 0; n < BATCHES && !atomic_load(&board->done); n++) {
		uint64_t vain = 0;

		for (int i = 0; i < BATCH; i++)
			vain += exchange(&e, !me);
		if (vain < least)
			least = vain;
		if (!me && least / BATCH < ENOUGH)
			atomic_store(&board->done, 1);
		atomic_fetch_add(&board->here, 1);
		kit_until(&board->here, 4 + 2 * (n + 1));
	}
	if (!me) {
		printf("polls in vain for a message, in the best of the batches: %" PRIu64 "\n",
		       least / BATCH);
		CHECK(least / BATCH < ENOUGH);
	}
	exit(0);
}

int main(void)
{
	pid_t pid[2];

	board = kit_shared(sizeof *board);
	stay_together();
	for (int i = 0; i < 2; i++) {
		pid[i] = kit_fork();
		if (!pid[i])
			play(i);
	}
	for (int i = 0; i < 2; i++)
		CHECK(!kit_reap(pid[i]));
	return 0;
}
