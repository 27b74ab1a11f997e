#include "pair.h"

void (*kit_pair_before)(void);

void kit_pair_greet(struct kit_pair *p)
{
	for (int i = 0; i < KIT_ENDS; i++) {
		struct kit_end *e = &p->end[i];

		if (!e->qp) /* of a duo */
			continue;
		CHECK(!kit_post(e, IBV_WR_SEND, 1, 0, 0, NULL, 0));
		for (int n = 0; n < 2; n++) { /* its completion and the other's message, in any order */
			struct ibv_wc wc = kit_wait(e, 20);

			CHECK(wc.status == IBV_WC_SUCCESS, "%s", ibv_wc_status_str(wc.status));
		}
	}
}

/* One end, its card on the board, and the receive for the other's greeting. */
static void open_end(struct kit_pair *p, int i, int depth, size_t size)
{
	kit_end_open_on(&p->end[i], p->pd, p->chan, depth, size);
	p->board->card[p->me][i] = p->end[i].card;
	CHECK(!kit_recv(&p->end[i], 1000, 0, 0));
}

static void open_device(struct kit_pair *p)
{
	p->ctx = kit_open();
	p->pd = ibv_alloc_pd(p->ctx);
	p->chan = ibv_create_comp_channel(p->ctx);
	CHECK(p->pd && p->chan);
}

static void close_device(struct kit_pair *p)
{
	CHECK(!ibv_destroy_comp_channel(p->chan) && !ibv_dealloc_pd(p->pd) && !ibv_close_device(p->ctx));
}

void kit_pair_open(struct kit_pair *p, int depth, size_t size)
{
	struct kit_board *b = p->board;

	open_device(p);
	for (int i = 0; i < KIT_ENDS; i++)
		open_end(p, i, depth, size);
	atomic_fetch_add(&b->opened, 1);
	kit_until(&b->opened, 2);
	for (int i = 0; i < KIT_ENDS; i++)
		kit_connect(&p->end[i], &b->card[!p->me][i]);
	atomic_fetch_add(&b->connected, 1);
	kit_until(&b->connected, 2);
	kit_pair_greet(p);
}

void kit_pair_close(struct kit_pair *p)
{
	atomic_fetch_add(&p->board->over, 1);
	kit_until(&p->board->over, 2);
	for (int i = 0; i < KIT_ENDS; i++)
		kit_end_close(&p->end[i]);
	close_device(p);
}

/* The initiator's process: it makes the target's, and both play their roles. */
static void play(struct kit_pair *p, const bool on[2], void (*initiator)(struct kit_pair *),
		 void (*target)(struct kit_pair *))
{
	int status;

	alarm(240);
	if (kit_pair_before)
		kit_pair_before();
	p->target = kit_fork();
	p->me = !p->target;
	setenv("VERBENA_DIRECT", on[p->me] ? "on" : "off", 1);
	(p->me ? target : initiator)(p);
	if (p->me)
		exit(0);
	status = kit_reap(p->target);
	CHECK(!status, "the target ended with 0x%x", status);
	exit(0);
}

/* false: skipped. */
static bool run(struct kit_pair *p, const char *name, const bool on[2], void (*initiator)(struct kit_pair *),
		void (*target)(struct kit_pair *))
{
	pid_t pid;
	int status;

	p->board = kit_shared(sizeof *p->board);
	pid = kit_fork();
	if (!pid)
		play(p, on, initiator, target);
	status = kit_reap(pid);
	munmap(p->board, sizeof *p->board);
	if (WIFEXITED(status) && WEXITSTATUS(status) == KIT_SKIP)
		return false;
	CHECK(!status, "%s, direct %s and %s: 0x%x", name, on[0] ? "on" : "off", on[1] ? "on" : "off",
	      status);
	return true;
}

bool kit_pair_run(const char *name, const bool on[2], void (*initiator)(struct kit_pair *),
		  void (*target)(struct kit_pair *))
{
	struct kit_pair p = {0};

	if (!run(&p, name, on, initiator, target))
		return false;
	printf("%s: ok\n", name);
	return true;
}

/* ---- a duo ---- */

static void open_duo_end(struct kit_pair *d)
{
	open_end(d, 0, KIT_DUO_DEPTH, KIT_DUO_SIZE);
}

static void connect_duo_end(struct kit_pair *d)
{
	kit_connect(&d->end[0], &d->board->card[!d->me][0]);
}

static void close_duo_end(struct kit_pair *d)
{
	kit_end_close(&d->end[0]);
}

/* What ends the target: it is told so by being asked to call this. */
static void leave(struct kit_pair *d)
{
	close_duo_end(d);
}

void kit_duo_begin(struct kit_pair *d, void (*fn)(struct kit_pair *))
{
	d->board->fn = fn;
	atomic_fetch_add(&d->board->asked, 1);
}

void kit_duo_await(struct kit_pair *d)
{
	kit_until(&d->board->done, atomic_load(&d->board->asked));
}

void kit_duo_there(struct kit_pair *d, void (*fn)(struct kit_pair *))
{
	kit_duo_begin(d, fn);
	kit_duo_await(d);
}

void kit_duo_fresh(struct kit_pair *d)
{
	if (d->end[0].qp) {
		close_duo_end(d);
		kit_duo_there(d, close_duo_end);
	}
	open_duo_end(d);
	kit_duo_there(d, open_duo_end);
	connect_duo_end(d);
	kit_duo_there(d, connect_duo_end);
	kit_duo_begin(d, kit_pair_greet);
	kit_pair_greet(d);
	kit_duo_await(d);
}

enum ibv_wc_status kit_duo_list(struct kit_pair *d, enum ibv_wr_opcode op, struct ibv_sge *sge, int n,
				uint64_t raddr, uint32_t rkey)
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
	CHECK(!ibv_post_send(d->end[0].qp, &wr, &bad));
	wc = kit_wait(&d->end[0], 20);
	CHECK(wc.wr_id == 5);
	if (wc.status != IBV_WC_SUCCESS)
		kit_duo_fresh(d);
	return wc.status;
}

enum ibv_wc_status kit_duo_try(struct kit_pair *d, enum ibv_wr_opcode op, uint64_t addr, uint32_t len,
			       uint32_t lkey, uint64_t raddr, uint32_t rkey)
{
	struct ibv_sge sge = {addr, len, lkey};

	return kit_duo_list(d, op, &sge, 1, raddr, rkey);
}

enum ibv_wc_status kit_duo_do(struct kit_pair *d, enum ibv_wr_opcode op, uint32_t len, uint64_t raddr,
			      uint32_t rkey)
{
	return kit_duo_try(d, op, (uintptr_t)d->end[0].buf, len, d->end[0].mr->lkey, raddr, rkey);
}

static void duo_initiator(struct kit_pair *d)
{
	open_device(d);
	kit_duo_fresh(d);
	d->test(d);
	close_duo_end(d);
	kit_duo_there(d, leave);
	close_device(d);
}

static void duo_target(struct kit_pair *d)
{
	void (*fn)(struct kit_pair *) = NULL;

	open_device(d);
	for (int n = 1; fn != leave; n++) {
		kit_until(&d->board->asked, n);
		fn = d->board->fn;
		fn(d);
		atomic_store(&d->board->done, n);
	}
	close_device(d);
}

void kit_duo_run(const char *name, bool direct, void (*test)(struct kit_pair *))
{
	struct kit_pair d = {.test = test};
	double began = kit_now();

	CHECK(run(&d, name, (bool[]){direct, direct}, duo_initiator, duo_target), "%s", name);
	printf("%s, direct %s: ok, %.1f s\n", name, direct ? "on" : "off", kit_now() - began);
	fflush(stdout);
}
