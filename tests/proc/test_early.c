/* Requests that are posted before there is contact: they complete, and their queue pairs stay in RTS.
 *
 * The ACK timer runs for such a request, since packets to nobody are lost packets.  When contact comes, some
 * are placed directly and never have a packet: then nothing is outstanding, and nothing may run out.
 *
 *     proc-early [ROUNDS]     default 20, in make soak 200; every second one beside processes that compute,
 *                             in two of four both ends post */
#include "kit.h"

enum { ENDS = 32, SIZE = 4096, BUSY = 4 };

struct board {
	struct kit_card card[2][ENDS];
	_Atomic int opened, ready, complete, watched;
};

static struct board *board;

/* Two QPs in three have a short timer, and one the usual one with few retries: what would run out does so
 * while the test looks. */
static int timeout_of(int i)
{
	return i % 3 ? 8 : 14;
}

static int retries_of(int i)
{
	return i % 3 ? 7 : 1;
}

static enum ibv_wr_opcode opcode_of(int i)
{
	static const enum ibv_wr_opcode ops[] = {IBV_WR_RDMA_WRITE, IBV_WR_RDMA_READ, IBV_WR_SEND,
						 IBV_WR_ATOMIC_FETCH_AND_ADD};

	return ops[i % 4];
}

/* `due` completions, all of success. */
static void finish(struct kit_end *e, int me, int i, int due)
{
	while (due--) {
		struct ibv_wc wc = kit_wait(e, 60);

		CHECK(wc.status == IBV_WC_SUCCESS, "side %d, QP %d, %s: %s", me, i,
		      wc.wr_id == 10 ? "request" : "receive", ibv_wc_status_str(wc.status));
	}
}

/* Nothing happens for as long as all retries of the slowest would take, and more. */
static void watch(struct kit_end *e, int me)
{
	double until = kit_now() + 3 * 4.096e-6 * (1 << 14);
	struct ibv_qp_init_attr init;
	struct ibv_qp_attr a;
	struct ibv_wc wc;

	while (kit_now() < until)
		for (int i = 0; i < ENDS; i++)
			CHECK(!ibv_poll_cq(e[i].cq, 1, &wc), "side %d, QP %d: %s", me, i,
			      ibv_wc_status_str(wc.status));
	for (int i = 0; i < ENDS; i++) {
		CHECK(!ibv_query_qp(e[i].qp, &a, IBV_QP_STATE, &init));
		CHECK(a.qp_state == IBV_QPS_RTS, "side %d, QP %d (timeout %d) is in state %d", me, i,
		      timeout_of(i), a.qp_state);
	}
}

static void meet(_Atomic int *v)
{
	atomic_fetch_add(v, 1);
	kit_until(v, 2);
}

static void side(int me, bool both)
{
	struct ibv_context *ctx = kit_open();
	struct ibv_pd *pd = ibv_alloc_pd(ctx);
	bool posts = !me || both, hears = me || both;
	struct kit_end e[ENDS];

	alarm(200);
	CHECK(pd);
	for (int i = 0; i < ENDS; i++) {
		kit_end_open(&e[i], pd, 8, SIZE);
		CHECK(!kit_recv(&e[i], 1, 0, 64) && !kit_recv(&e[i], 2, 0, 64)); /* one of them stays */
		board->card[me][i] = e[i].card;
	}
	meet(&board->opened);
	for (int i = 0; i < ENDS; i++)
		kit_to_rtr(&e[i], &board->card[!me][i]);
	meet(&board->ready);
	for (int i = 0; i < ENDS; i++) { /* from the first of these on contact is made */
		kit_to_rts(&e[i], timeout_of(i), retries_of(i));
		CHECK(!posts || !kit_post(&e[i], opcode_of(i), 10, 64, 8, &board->card[!me][i], 128));
	}
	for (int i = 0; i < ENDS; i++)
		finish(&e[i], me, i, posts + (hears && opcode_of(i) == IBV_WR_SEND));
	meet(&board->complete);
	watch(e, me);
	meet(&board->watched);
	for (int i = 0; i < ENDS; i++)
		kit_end_close(&e[i]);
	CHECK(!ibv_dealloc_pd(pd) && !ibv_close_device(ctx));
	exit(0);
}

static void round_of(int n)
{
	bool busy = n % 4, both = n % 4 == 3;
	pid_t others[BUSY], pid[2];

	*board = (struct board){0};
	for (int i = 0; i < BUSY && busy; i++) {
		others[i] = kit_fork();
		if (!others[i])
			for (volatile unsigned long k = 0;;)
				k++;
	}
	for (int me = 0; me < 2; me++) {
		pid[me] = kit_fork();
		if (!pid[me])
			side(me, both);
	}
	for (int me = 0; me < 2; me++)
		CHECK(!kit_reap(pid[me]), "round %d, side %d", n, me);
	for (int i = 0; i < BUSY && busy; i++) {
		kill(others[i], SIGKILL);
		kit_reap(others[i]);
	}
}

int main(int argc, char **argv)
{
	int rounds = argc > 1 ? atoi(argv[1]) : getenv("VERBENA_SOAK") ? 200 : 20;

	board = kit_shared(sizeof *board);
	for (int n = 0; n < rounds; n++)
		round_of(n);
	printf("%d rounds of %d queue pairs\n", rounds, ENDS);
	return 0;
}
