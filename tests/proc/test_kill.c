/* A peer that is killed: outstanding requests end in error at once, an event says so, nothing hangs and
 * nothing is left behind.  A peer that leaves in order says goodbye: then there is silence, and retries run
 * out. */
#include <poll.h>

#include "kit.h"

struct board {
	_Atomic int step;
	struct kit_card a, b;
};

static struct board *board;

static void victim(bool goodbye)
{
	struct ibv_context *ctx = kit_open();
	struct ibv_pd *pd = ibv_alloc_pd(ctx);
	struct kit_end e;

	kit_end_open(&e, pd, 16, 4096);
	CHECK(!kit_recv(&e, 1, 0, 64));
	board->b = e.card;
	atomic_store(&board->step, 1);
	kit_until(&board->step, 2);
	kit_connect(&e, &board->a);
	atomic_store(&board->step, 3);
	CHECK(kit_wait(&e, 10).status == IBV_WC_SUCCESS); /* in contact */
	atomic_store(&board->step, 4);
	if (goodbye) {
		kit_until(&board->step, 5);
		exit(0);
	}
	for (;;)
		pause();
}

static void round_of(bool goodbye)
{
	struct ibv_async_event ev;
	struct ibv_context *ctx;
	struct ibv_pd *pd;
	struct kit_end e;
	struct ibv_wc wc;
	double t;
	pid_t pid;

	atomic_store(&board->step, 0);
	pid = kit_fork();
	if (!pid)
		victim(goodbye);
	ctx = kit_open();
	pd = ibv_alloc_pd(ctx);
	kit_end_open(&e, pd, 16, 4096);
	kit_until(&board->step, 1);
	board->a = e.card;
	atomic_store(&board->step, 2);
	kit_until(&board->step, 3);
	kit_connect_with(&e, &board->b, 12, 2); /* 16.8 ms, twice again */
	CHECK(!kit_post(&e, IBV_WR_SEND, 7, 0, 64, NULL, 0));
	CHECK(kit_wait(&e, 10).status == IBV_WC_SUCCESS);
	kit_until(&board->step, 4);
	/* nobody takes these SENDs: RNR NAKs for ever, until the end of the peer */
	for (uint64_t i = 0; i < 4; i++)
		CHECK(!kit_post(&e, IBV_WR_SEND, 100 + i, 0, 64, NULL, 0));
	CHECK(!kit_recv(&e, 200, 0, 64));
	t = kit_now();
	if (goodbye)
		atomic_store(&board->step, 5);
	else
		CHECK(!kill(pid, SIGKILL));
	wc = kit_wait(&e, 10);
	CHECK(wc.wr_id == 100 && wc.status == IBV_WC_RETRY_EXC_ERR, "%s", ibv_wc_status_str(wc.status));
	for (uint64_t i = 1; i < 4; i++) {
		wc = kit_wait(&e, 1);
		CHECK(wc.wr_id == 100 + i && wc.status == IBV_WC_WR_FLUSH_ERR);
	}
	wc = kit_wait(&e, 1);
	CHECK(wc.wr_id == 200 && wc.status == IBV_WC_WR_FLUSH_ERR); /* rule 30 */
	CHECK(kit_now() - t < 5);
	if (!goodbye) {
		CHECK(!ibv_get_async_event(ctx, &ev));
		CHECK(ev.event_type == IBV_EVENT_QP_FATAL && ev.element.qp == e.qp);
		ibv_ack_async_event(&ev);
	}
	CHECK(poll((struct pollfd[]){{.fd = ctx->async_fd, .events = POLLIN}}, 1, 0) == 0,
	      "an event too many");
	kit_end_close(&e);
	CHECK(!ibv_dealloc_pd(pd));
	CHECK(!ibv_close_device(ctx));
	kit_reap(pid);
	CHECK(!kit_bound(board->a.qpn) && !kit_bound(board->b.qpn), "a name is still bound");
}

int main(int argc, char **argv)
{
	int rounds = argc > 1 ? atoi(argv[1]) : getenv("VERBENA_SOAK") ? 50 : 5, fds, files;

	board = kit_shared(sizeof *board);
	fds = kit_descriptors();
	files = kit_files("/dev/shm"); /* what somebody else left there is his */
	for (int i = 0; i < rounds; i++) {
		round_of(false);
		round_of(true);
	}
	CHECK(kit_descriptors() == fds, "descriptors: %d before, %d now", fds, kit_descriptors());
	CHECK(kit_files("/dev/shm") <= files, "files were left behind");
	printf("%d rounds, nothing left behind\n", rounds);
	return 0;
}
