/* Many processes join a protection domain at once: afterwards each reaches the memory of each.  One that is
 * stopped while another joins is no obstacle, and is found when it goes on.
 *
 *     proc-shared_many [PROCESSES] */
#include <errno.h>

#include "bytes.h"
#include "kit.h"

enum { MOST = 64, LEN = 64 };

struct board {
	_Atomic int shared, joined, published, done, late, over;
	struct ibv_shpd shpd;
	struct {
		uint32_t lkey;
		uint64_t addr;
	} of[MOST];
};

static struct board *board;
static int processes = 10;

/* A pair of connected QPs in this process, one of them in the domain. */
struct loop {
	struct ibv_pd *own;
	struct kit_end in, out;
};

static void loop_open(struct loop *l, struct ibv_context *ctx, struct ibv_pd *pd)
{
	l->own = ibv_alloc_pd(ctx);
	CHECK(l->own);
	kit_end_open(&l->in, pd, MOST, LEN);
	kit_end_open(&l->out, l->own, MOST, LEN);
	kit_connect(&l->in, &l->out.card);
	kit_connect(&l->out, &l->in.card);
}

static void loop_close(struct loop *l)
{
	kit_end_close(&l->in);
	kit_end_close(&l->out);
	CHECK(!ibv_dealloc_pd(l->own));
}

/* SENDs from another process's memory; the status. */
static enum ibv_wc_status fetch(struct loop *l, int who)
{
	struct ibv_sge sge = {board->of[who].addr, LEN, board->of[who].lkey};
	struct ibv_send_wr *bad,
	    wr = {.sg_list = &sge, .num_sge = 1, .opcode = IBV_WR_SEND, .send_flags = IBV_SEND_SIGNALED};
	struct ibv_wc wc;

	CHECK(!kit_recv(&l->out, 1, 0, LEN));
	CHECK(!ibv_post_send(l->in.qp, &wr, &bad));
	wc = kit_wait(&l->in, 20);
	if (wc.status == IBV_WC_SUCCESS) {
		uint8_t expected[LEN];

		CHECK_EQ(kit_wait(&l->out, 20).status, IBV_WC_SUCCESS);
		kit_fill(expected, LEN, (unsigned)who * 37);
		CHECK(!memcmp(l->out.buf, expected, LEN), "the bytes of %d", who);
	}
	return wc.status;
}

static void publish(struct ibv_pd *pd, int me, uint8_t *mine, struct ibv_mr **mr)
{
	kit_fill(mine, LEN, (unsigned)me * 37);
	*mr = ibv_reg_mr(pd, mine, LEN, 0); /* local access is what holders have */
	CHECK(*mr);
	board->of[me].lkey = (*mr)->lkey;
	board->of[me].addr = (uintptr_t)mine;
	atomic_fetch_add(&board->published, 1);
}

static void be(int me)
{
	struct ibv_context *ctx = kit_open();
	uint8_t mine[LEN];
	struct ibv_pd *pd;
	struct ibv_mr *mr;
	struct loop l;

	if (!me) {
		pd = ibv_alloc_pd(ctx);
		CHECK(pd && ibv_alloc_shpd(pd, 5, &board->shpd));
		atomic_store(&board->shared, 1);
	} else {
		kit_until(&board->shared, 1);
		pd = ibv_share_pd(ctx, &board->shpd, 5);
		CHECK(pd, "%d: %s", me, strerror(errno));
	}
	publish(pd, me, mine, &mr);
	kit_until(&board->published, processes);
	loop_open(&l, ctx, pd);
	for (int i = 0; i < processes; i++) {
		enum ibv_wc_status st = fetch(&l, (me + i) % processes);

		CHECK(st == IBV_WC_SUCCESS, "%d from %d: %s", me, (me + i) % processes,
		      ibv_wc_status_str(st));
	}
	loop_close(&l);
	atomic_fetch_add(&board->done, 1);
	kit_until(&board->over, 1);
	CHECK(!ibv_dereg_mr(mr) && !ibv_dealloc_pd(pd) && !ibv_close_device(ctx));
}

/* One more, while number 1 is stopped. */
static void be_late(pid_t stopped)
{
	struct ibv_context *ctx;
	struct ibv_pd *pd;
	double begun, end;
	struct loop l;
	int status;

	CHECK(!kill(stopped, SIGSTOP) && waitpid(stopped, &status, WUNTRACED) == stopped);
	ctx = kit_open();
	begun = kit_now();
	pd = ibv_share_pd(ctx, &board->shpd, 5);
	CHECK(pd, "%s", strerror(errno));
	CHECK(kit_now() - begun < 10);
	loop_open(&l, ctx, pd);
	CHECK(fetch(&l, 0) == IBV_WC_SUCCESS && fetch(&l, 2) == IBV_WC_SUCCESS);
	CHECK(fetch(&l, 1) == IBV_WC_LOC_PROT_ERR, "without contact");
	loop_close(&l);
	CHECK(!kill(stopped, SIGCONT));
	end = kit_now() + 20;
	for (;;) {
		enum ibv_wc_status st;

		loop_open(&l, ctx, pd);
		st = fetch(&l, 1);
		loop_close(&l);
		if (st == IBV_WC_SUCCESS)
			break;
		CHECK(kit_now() < end);
	}
	CHECK(!ibv_dealloc_pd(pd) && !ibv_close_device(ctx));
}

int main(int argc, char **argv)
{
	pid_t pids[MOST];

	if (argc > 1)
		processes = atoi(argv[1]);
	CHECK(processes > 2 && processes <= MOST);
	board = kit_shared(sizeof *board);
	for (int i = 0; i < processes; i++) {
		pids[i] = kit_fork();
		if (!pids[i]) {
			alarm(100);
			be(i);
			exit(0);
		}
	}
	kit_until(&board->done, processes);
	printf("%d processes: each has reached the memory of each\n", processes);
	alarm(100);
	be_late(pids[1]);
	printf("one more, while one was stopped: ok\n");
	atomic_store(&board->over, 1);
	for (int i = 0; i < processes; i++)
		CHECK_EQ(kit_reap(pids[i]), 0);
	return 0;
}
