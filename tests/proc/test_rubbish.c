/* A peer that writes rubbish into its own segment: rings, counters, keys, what it shows of its QPs,
 * announcements, the head.  The victim ends that link or goes on: it does not crash, hang or read where it
 * must not (the sanitizers look), and its requests have ended when the peer is gone at the latest.  It then
 * talks to an honest one.
 *
 *     proc-rubbish [ROUNDS [SEED]]      default 13; 300 in make soak */
#include <errno.h>
#include <poll.h>
#include <pthread.h>

#include "kit.h"
#include "scribble.h"

enum { SIZE = 128 << 10, DEPTH = 16, ROUND_MS = 120, PARTS = SCRIBBLE_PARTS, FORGE = PARTS };

struct board {
	_Atomic int step;
	struct kit_card a, b;
};

static struct board *board;
static uint64_t rng;

static void *scribble(void *arg)
{
	uint8_t *seg = scribble_segment();
	int only = *(int *)arg;

	for (;;) {
		if (only == FORGE || (only < 0 && kit_below(&rng, 2))) {
			scribble_packet(seg, &rng, NULL);
			continue;
		}
		scribble_word(seg, &rng, only >= 0 ? only : (int)kit_below(&rng, PARTS),
			      board->b.qpn & 0xfff);
		if (!kit_below(&rng, 64))
			sched_yield();
	}
	return NULL;
}

static const enum ibv_wr_opcode ops[] = {IBV_WR_SEND,
					 IBV_WR_RDMA_WRITE,
					 IBV_WR_RDMA_READ,
					 IBV_WR_ATOMIC_FETCH_AND_ADD,
					 IBV_WR_ATOMIC_CMP_AND_SWP,
					 IBV_WR_RDMA_WRITE_WITH_IMM};

static int post(struct kit_end *e, const struct kit_card *peer)
{
	enum ibv_wr_opcode op = ops[kit_below(&rng, 6)];
	bool atomic = op == IBV_WR_ATOMIC_FETCH_AND_ADD || op == IBV_WR_ATOMIC_CMP_AND_SWP;
	uint32_t len =
	    atomic ? 8
		   : (uint32_t)(kit_below(&rng, 2) ? 1 + kit_below(&rng, 64) : 1 + kit_below(&rng, SIZE / 2));

	return kit_post(e, op, 1, SIZE / 2, len, peer, 0);
}

/* Talks without minding what comes of it. */
static void babble(struct kit_end *e, const struct kit_card *peer, bool wild, int part)
{
	struct ibv_wc wc;
	pthread_t t;

	for (int i = 0; i < DEPTH; i++)
		CHECK(!kit_recv(e, 2, 0, SIZE / 2));
	if (wild)
		CHECK(freopen("/dev/null", "w", stderr) && !pthread_create(&t, NULL, scribble, &part));
	for (;;) {
		while (ibv_poll_cq(e->cq, 1, &wc) == 1)
			if (wc.opcode & IBV_WC_RECV && wc.status == IBV_WC_SUCCESS)
				kit_recv(e, 2, 0, SIZE / 2);
		post(e, peer);
	}
}

static pid_t peer(bool wild, int part)
{
	pid_t pid = kit_fork();
	struct kit_end e;

	if (pid)
		return pid;
	rng ^= (uint64_t)getpid() << 32;
	kit_end_open(&e, ibv_alloc_pd(kit_open()), 2 * DEPTH, SIZE);
	board->b = e.card;
	atomic_store(&board->step, 1);
	kit_until(&board->step, 2);
	kit_connect(&e, &board->a);
	atomic_store(&board->step, 3);
	babble(&e, &board->a, wild, part);
	return 0;
}

struct victim {
	struct kit_end e;
	int sent, ended;
	bool broken;
};

static void turn(struct victim *v, const struct kit_card *to)
{
	struct ibv_wc wc[4];
	int n = ibv_poll_cq(v->e.cq, 4, wc);

	CHECK(n >= 0);
	for (int i = 0; i < n; i++) {
		if (wc[i].wr_id == 1)
			v->ended++;
		if (wc[i].status != IBV_WC_SUCCESS)
			v->broken = true;
		else if (wc[i].wr_id == 2)
			kit_recv(&v->e, 2, 0, SIZE / 2);
	}
	if (to && !v->broken && v->sent - v->ended < DEPTH)
		v->sent += !post(&v->e, to);
}

/* part < 0: all of them in turn. */
static void round_with(struct ibv_context *ctx, struct ibv_pd *pd, bool wild, int part)
{
	struct victim v = {0};
	struct ibv_async_event ev;
	double end, limit;
	int status;
	pid_t pid;

	atomic_store(&board->step, 0);
	pid = peer(wild, part);
	kit_end_open(&v.e, pd, 2 * DEPTH, SIZE);
	for (int i = 0; i < DEPTH; i++)
		CHECK(!kit_recv(&v.e, 2, 0, SIZE / 2));
	kit_until(&board->step, 1);
	board->a = v.e.card;
	atomic_store(&board->step, 2);
	kit_until(&board->step, 3);
	kit_to_rtr(&v.e, &board->b);
	/* one that spoils its own tables may have crashed by now: the queue pair is in the error state then
	 */
	v.broken = kit_try_rts(&v.e, 14, 7) != 0;
	CHECK(!v.broken || (wild && v.e.qp->state == IBV_QPS_ERR));
	end = kit_now() + ROUND_MS / 1000.;
	limit = kit_now() + 10; /* an honest one may be slow */
	while (kit_now() < end || (!wild && !v.broken && v.ended <= 5 && kit_now() < limit))
		turn(&v, &board->b);
	/* one that spoils its own tables may well crash */
	CHECK(wild || waitpid(pid, &status, WNOHANG) == 0, "the honest peer ended: 0x%x", status);
	CHECK(wild || (!v.broken && v.ended > 5), "an honest peer: %d of %d requests", v.ended, v.sent);
	kill(pid, SIGKILL);
	kit_reap(pid);
	for (end = kit_now() + 15; v.ended < v.sent;) {
		turn(&v, NULL);
		CHECK(kit_now() < end, "%d of %d requests end, part %d", v.ended, v.sent, part);
	}
	while (poll((struct pollfd[]){{.fd = ctx->async_fd, .events = POLLIN}}, 1, 0) == 1) {
		CHECK(!ibv_get_async_event(ctx, &ev));
		ibv_ack_async_event(&ev);
	}
	kit_end_close(&v.e);
}

int main(int argc, char **argv)
{
	int rounds = argc > 1 ? atoi(argv[1]) : getenv("VERBENA_SOAK") ? 300 : 13;
	struct ibv_context *ctx;
	struct ibv_pd *pd;

	rng = argc > 2 ? strtoull(argv[2], NULL, 0) : (uint64_t)getpid() << 20 ^ (uint64_t)time(NULL);
	printf("rubbish: seed %" PRIu64 "\n", rng);
	fflush(stdout);
	rng |= 1;
	board = kit_shared(sizeof *board);
	alarm(rounds * 20 + 60);
	kit_log_begin("warn");
	/* forked peers before this process has a device, and after: both are what programs do */
	ctx = kit_open();
	pd = ibv_alloc_pd(ctx);
	CHECK(pd);
	for (int r = 0; r < rounds; r++) {
		round_with(ctx, pd, true, r % (FORGE + 2) - 1);
		if (r % 4 == 3)
			round_with(ctx, pd, false, -1);
	}
	CHECK(!ibv_dealloc_pd(pd) && !ibv_close_device(ctx));
	/* what was forged did come to its victim */
	CHECK(rounds <= FORGE + 1 || kit_log_says("bytes is discarded: "), "%s", kit_log_text());
	printf("%d rounds\n", rounds);
	return 0;
}
