/* Two processes, one of which does what the other says: the test is written down from above to below in the
 * initiator, and what the target has to do are functions that it is told to call.  A QP that failed is
 * replaced at both ends. */
#ifndef VB_TESTS_DUO_H
#define VB_TESTS_DUO_H

#include <errno.h>

#include "kit.h"

enum { DUO_SIZE = 1 << 16, DUO_DEPTH = 32 };

struct duo;

struct duo_board {
	struct kit_card card[2]; /* [0]: initiator, [1]: target */
	void (*fn)(struct duo *d);
	_Atomic int asked, done;
	/* Whatever a function is given, and what it answers. */
	int64_t in[8], out[8];
};

struct duo {
	struct duo_board *board;
	int me; /* 0: initiator, 1: target */
	pid_t target;
	struct ibv_context *ctx;
	struct ibv_pd *pd;
	struct kit_end end; /* with DUO_SIZE registered bytes; the target's cards's rkey and addr are these */
	void *own;	    /* the test's */
};

/* Has the target call fn, and waits for it. */
KIT_UNUSED static void duo_there(struct duo *d, void (*fn)(struct duo *))
{
	int n = atomic_load(&d->board->asked) + 1;

	d->board->fn = fn;
	atomic_store(&d->board->asked, n);
	kit_until(&d->board->done, n);
}

static void duo_open_end(struct duo *d)
{
	kit_end_open(&d->end, d->pd, DUO_DEPTH, DUO_SIZE);
	d->board->card[d->me] = d->end.card;
	CHECK(!kit_recv(&d->end, 1000, 0, 0));
}

static void duo_connect_end(struct duo *d)
{
	kit_connect(&d->end, &d->board->card[!d->me]);
}

static void duo_close_end(struct duo *d)
{
	kit_end_close(&d->end);
}

static void duo_greet(struct duo *d)
{
	CHECK(!kit_post(&d->end, IBV_WR_SEND, 1, 0, 0, NULL, 0));
	for (int n = 0; n < 2; n++) {
		struct ibv_wc wc = kit_wait(&d->end, 20);

		CHECK(wc.status == IBV_WC_SUCCESS, "%s", ibv_wc_status_str(wc.status));
	}
}

static void duo_there_begin(struct duo *d, void (*fn)(struct duo *))
{
	d->board->fn = fn;
	atomic_fetch_add(&d->board->asked, 1);
}

/* Both ends anew, connected, and permitting what they permit. */
KIT_UNUSED static void duo_fresh(struct duo *d)
{
	if (d->end.qp) {
		duo_close_end(d);
		duo_there(d, duo_close_end);
	}
	duo_open_end(d);
	duo_there(d, duo_open_end);
	duo_connect_end(d);
	duo_there(d, duo_connect_end);
	duo_there_begin(d, duo_greet);
	duo_greet(d);
	kit_until(&d->board->done, atomic_load(&d->board->asked));
}

/* One request with these elements; how it ends.  In error, the ends are made anew. */
KIT_UNUSED static enum ibv_wc_status duo_list(struct duo *d, enum ibv_wr_opcode op, struct ibv_sge *sge,
					      int n, uint64_t raddr, uint32_t rkey)
{
	struct ibv_send_wr wr = {.wr_id = 5,
				 .sg_list = sge,
				 .num_sge = n,
				 .opcode = op,
				 .send_flags = IBV_SEND_SIGNALED},
			   *bad;
	struct ibv_wc wc;

	if (op == IBV_WR_ATOMIC_FETCH_AND_ADD || op == IBV_WR_ATOMIC_CMP_AND_SWP) {
		wr.wr.atomic.remote_addr = raddr;
		wr.wr.atomic.rkey = rkey;
		wr.wr.atomic.compare_add = 1;
		wr.wr.atomic.swap = 2;
	} else {
		wr.wr.rdma.remote_addr = raddr;
		wr.wr.rdma.rkey = rkey;
	}
	CHECK(!ibv_post_send(d->end.qp, &wr, &bad));
	wc = kit_wait(&d->end, 20);
	CHECK(wc.wr_id == 5);
	if (wc.status != IBV_WC_SUCCESS)
		duo_fresh(d);
	return wc.status;
}

KIT_UNUSED static enum ibv_wc_status duo_try(struct duo *d, enum ibv_wr_opcode op, uint64_t addr,
					     uint32_t len, uint32_t lkey, uint64_t raddr, uint32_t rkey)
{
	struct ibv_sge sge = {addr, len, lkey};

	return duo_list(d, op, &sge, 1, raddr, rkey);
}

/* The same with the initiator's own buffer, from its first byte on. */
KIT_UNUSED static enum ibv_wc_status duo_do(struct duo *d, enum ibv_wr_opcode op, uint32_t len,
					    uint64_t raddr, uint32_t rkey)
{
	return duo_try(d, op, (uintptr_t)d->end.buf, len, d->end.mr->lkey, raddr, rkey);
}

static void duo_stop(struct duo *d)
{
	duo_close_end(d);
}

static void duo_target(struct duo *d)
{
	for (int n = 1;; n++) {
		void (*fn)(struct duo *);

		kit_until(&d->board->asked, n);
		fn = d->board->fn;
		fn(d);
		atomic_store(&d->board->done, n);
		if (fn == duo_stop)
			return;
	}
}

static void duo_process(struct duo *d, bool direct, void (*test)(struct duo *))
{
	alarm(240);
	setenv("VERBENA_DIRECT", direct ? "on" : "off", 1);
	d->ctx = kit_open();
	d->pd = ibv_alloc_pd(d->ctx);
	CHECK(d->pd);
	if (d->me) {
		duo_target(d);
	} else {
		duo_fresh(d);
		test(d);
		duo_close_end(d);
		duo_there(d, duo_stop);
	}
	CHECK(!ibv_dealloc_pd(d->pd) && !ibv_close_device(d->ctx));
	exit(0);
}

/* Runs a test between two new processes. */
KIT_UNUSED static void duo_run(const char *name, bool direct, void (*test)(struct duo *))
{
	struct duo d = {.board = kit_shared(sizeof *d.board)};
	pid_t pid[2];
	double began = kit_now();

	pid[1] = kit_fork();
	if (!pid[1]) {
		d.me = 1;
		duo_process(&d, direct, test);
	}
	pid[0] = kit_fork();
	if (!pid[0]) {
		d.target = pid[1];
		duo_process(&d, direct, test);
	}
	CHECK(!kit_reap(pid[0]), "%s, direct %s", name, direct ? "on" : "off");
	CHECK(!kit_reap(pid[1]), "%s, direct %s: the target", name, direct ? "on" : "off");
	munmap(d.board, sizeof *d.board);
	printf("%s, direct %s: ok, %.1f s\n", name, direct ? "on" : "off", kit_now() - began);
	fflush(stdout);
}

#define DUO_BOTH(test)                       \
	do {                                 \
		duo_run(#test, true, test);  \
		duo_run(#test, false, test); \
	} while (0)

#endif
