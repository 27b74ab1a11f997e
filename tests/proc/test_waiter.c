/* What a program that sleeps in ibv_get_cq_event leaves to the engine: room in a full ring, an RNR wait. With
 * the Local ACK Timeout at "for ever", so that nothing but the engine can put right what was forgotten. */
#include "kit.h"

enum { WARM_UP = 50, ROUNDS = 5, BIG = 8 << 20, SMALL = 64 };

struct board {
	struct kit_card cards[2];
	_Atomic int opened, connected, round;
};

static struct board *board;

static void millisleep(int ms)
{
	struct timespec t = {0, ms * 1000000};

	nanosleep(&t, NULL);
}

static struct ibv_wc sleep_for_wc(struct kit_end *e, struct ibv_comp_channel *ch)
{
	struct ibv_cq *cq;
	struct ibv_wc wc;
	void *context;
	int n;

	for (;;) {
		CHECK(!ibv_req_notify_cq(e->cq, 0));
		n = ibv_poll_cq(e->cq, 1, &wc);
		CHECK(n >= 0);
		if (n)
			return wc;
		CHECK(!ibv_get_cq_event(ch, &cq, &context));
		ibv_ack_cq_events(cq, 1);
	}
}

static void end_open(struct kit_end *e, struct ibv_pd *pd, struct ibv_comp_channel *ch, int me)
{
	kit_end_open_on(e, pd, ch, 2 * WARM_UP, BIG);
	board->cards[me] = e->card;
	atomic_fetch_add(&board->opened, 1);
	kit_until(&board->opened, 2);
	kit_connect_with(e, &board->cards[!me], 0, 7);
	atomic_fetch_add(&board->connected, 1);
	kit_until(&board->connected, 2);
}

/* Sleeps for SENDs, is read from meanwhile; then sends before there is a receive. */
static void waiter(struct kit_end *e, struct ibv_comp_channel *ch)
{
	memset(e->buf, 7, BIG);
	for (int i = 0; i < WARM_UP + 2; i++)
		CHECK(!kit_recv(e, 0, 0, SMALL));
	atomic_store(&board->round, 1);
	for (int i = 0; i < WARM_UP + 2; i++)
		CHECK(sleep_for_wc(e, ch).status == IBV_WC_SUCCESS);
	for (int i = 0; i < ROUNDS; i++) {
		atomic_store(&board->round, 2 + i);
		CHECK(!kit_post(e, IBV_WR_SEND, 1, 0, SMALL, NULL, 0));
		CHECK(sleep_for_wc(e, ch).status == IBV_WC_SUCCESS);
	}
}

static void other(struct kit_end *e)
{
	kit_until(&board->round, 1);
	for (int i = 0; i < WARM_UP;
	     i++) { /* until the engine over there leaves the doorbells to the waiter */
		CHECK(!kit_post(e, IBV_WR_SEND, 1, 0, SMALL, NULL, 0));
		CHECK(kit_wait(e, 10).status == IBV_WC_SUCCESS);
	}
	millisleep(20);
	for (int i = 0; i < 2; i++) {
		e->buf[BIG - 1] = 0;
		CHECK(!kit_post(e, IBV_WR_RDMA_READ, 2, 0, BIG, &board->cards[0], 0));
		CHECK(kit_wait(e, 10).status == IBV_WC_SUCCESS);
		CHECK(e->buf[BIG - 1] == 7);
		CHECK(!kit_post(e, IBV_WR_SEND, 1, 0, SMALL, NULL, 0));
		CHECK(kit_wait(e, 10).status == IBV_WC_SUCCESS);
	}
	for (int i = 0; i < ROUNDS; i++) {
		kit_until(&board->round, 2 + i);
		millisleep(10);
		CHECK(!kit_recv(e, 3, 0, SMALL));
		CHECK(kit_wait(e, 10).status == IBV_WC_SUCCESS);
	}
	/* The last ACK is owed by a program that does not poll any more: it comes all the same. */
	atomic_store(&board->round, 2 + ROUNDS);
	kit_until(&board->round, 3 + ROUNDS);
}

static void child(int me)
{
	struct ibv_context *ctx = kit_open();
	struct ibv_pd *pd = ibv_alloc_pd(ctx);
	struct ibv_comp_channel *ch = ibv_create_comp_channel(ctx);
	struct kit_end e = {0};

	CHECK(pd && ch);
	alarm(30);
	end_open(&e, pd, me ? NULL : ch, me);
	if (me) {
		other(&e);
	} else {
		waiter(&e, ch);
		kit_until(&board->round, 2 + ROUNDS);
		atomic_store(&board->round, 3 + ROUNDS);
	}
	kit_end_close(&e);
	CHECK(!ibv_destroy_comp_channel(ch));
	CHECK(!ibv_dealloc_pd(pd));
	CHECK(!ibv_close_device(ctx));
	_exit(0);
}

int main(void)
{
	pid_t pids[2];
	int failed = 0;

	board = kit_shared(sizeof(*board));
	for (int me = 0; me < 2; me++) {
		pids[me] = kit_fork();
		if (!pids[me])
			child(me);
	}
	for (int me = 0; me < 2; me++)
		failed |= kit_reap(pids[me]);
	return failed != 0;
}
