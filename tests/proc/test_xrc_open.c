/* Targets of XRC that another process has made: what whoever opens one can do, hears, and is told when the
 * target, its process or another that has it open goes. */
#include <errno.h>
#include <fcntl.h>
#include <poll.h>

#include "xrc.h"

enum want { NOTHING, HEAR, DESTROY, CLOSE, COUNT, READ, STAY, GO };
enum { RECV, WRITTEN, READ_OUT, COUNTERS };

/* A process that makes a target and then does what it is told, one thing after the other. */
struct owner {
	_Atomic int opened, wants, done;
	enum want want;
	uint32_t tgt, ini, srqn;
	int event;
	uint64_t count[COUNTERS], failed; /* bytes; receive requests */
};

static void destroy(struct xrc_side *s)
{
	CHECK(!ibv_destroy_qp(s->tgt) && !ibv_destroy_srq(s->srq));
	CHECK(!ibv_close_xrcd(s->xrcd)); /* which the target does not keep busy any more */
}

static void close_rest(struct xrc_side *s)
{
	CHECK(!ibv_destroy_qp(s->ini) && !ibv_destroy_cq(s->cq) && !ibv_destroy_cq(s->rcq));
	CHECK(!ibv_dereg_mr(s->mr) && !ibv_dealloc_pd(s->pd) && !ibv_close_device(s->ctx));
}

/* Another part of the maker's program has it open, too. */
static struct ibv_context *part;
static struct ibv_xrcd *part_xrcd;
static struct ibv_qp *part_h;

static void stay(struct xrc_side *s, int fd)
{
	struct ibv_context *passes = kit_open();
	struct ibv_xrcd *x = xrc_open_domain(passes, fd, 0);

	part = kit_open();
	part_xrcd = xrc_open_domain(part, fd, 0);
	part_h = xrc_open_target(part, part_xrcd, s->tgt->qp_num);
	CHECK(part_h && x && !ibv_close_xrcd(x) && !ibv_close_device(passes));
	destroy(s);
	close_rest(s);
}

static void go(void)
{
	CHECK(!ibv_destroy_qp(part_h) && !ibv_close_xrcd(part_xrcd) && !ibv_close_device(part));
}

static struct ibv_comp_cntr *counter[COUNTERS];

static void count(const struct xrc_side *s)
{
	static const uint32_t ops[COUNTERS] = {IBV_QP_ATTACH_COMP_CNTR_OP_RECV,
					       IBV_QP_ATTACH_COMP_CNTR_OP_REMOTE_RDMA_WRITE,
					       IBV_QP_ATTACH_COMP_CNTR_OP_REMOTE_RDMA_READ};
	struct ibv_comp_cntr_init_attr ia = {.type = IBV_COMP_CNTR_TYPE_BYTES};

	for (int i = 0; i < COUNTERS; i++) {
		struct ibv_qp_attach_comp_cntr_attr aa = {.op_mask = ops[i]};

		counter[i] = ibv_create_comp_cntr(s->ctx, &ia);
		CHECK(counter[i] && !ibv_qp_attach_comp_cntr(s->tgt, counter[i], &aa));
	}
}

static void read_counters(struct owner *o)
{
	for (int i = 0; i < COUNTERS; i++)
		CHECK(!ibv_read_comp_cntr(counter[i], &o->count[i]));
	CHECK(!ibv_read_err_comp_cntr(counter[RECV], &o->failed));
}

static void own(struct owner *o, int fd)
{
	struct xrc_side s;

	xrc_open_side(&s, fd);
	o->tgt = s.tgt->qp_num;
	o->ini = s.ini->qp_num;
	o->srqn = s.srqn;
	atomic_store(&o->opened, 1);
	for (int n = 1;; n++) {
		while (atomic_load(&o->wants) < n) /* it polls nothing */
			kit_nap(1);
		if (o->want == HEAR)
			o->event = (int)xrc_event_of(s.ctx, s.tgt);
		else if (o->want == DESTROY)
			destroy(&s);
		else if (o->want == CLOSE)
			close_rest(&s);
		else if (o->want == COUNT)
			count(&s);
		else if (o->want == READ)
			read_counters(o);
		else if (o->want == STAY)
			stay(&s, fd);
		else if (o->want == GO)
			go();
		atomic_store(&o->done, n);
	}
}

static void have(struct owner *o, enum want want)
{
	int n = atomic_load(&o->wants) + 1;

	o->want = want;
	atomic_store(&o->wants, n);
	kit_until(&o->done, n);
}

struct cast {
	struct owner *o;
	pid_t owner;
	int fd;
	struct xrc_side s; /* here; its own target is another one */
	struct ibv_qp *h;
};

static void begin(struct cast *c)
{
	c->fd = xrc_domain_file();
	c->o = kit_shared(sizeof *c->o);
	c->owner = kit_fork();
	if (!c->owner)
		own(c->o, c->fd);
	kit_until(&c->o->opened, 1);
	xrc_open_side(&c->s, c->fd);
	c->h = xrc_open_target(c->s.ctx, c->s.xrcd, c->o->tgt);
	CHECK(c->h, "%s", strerror(errno));
}

static void kill_it(pid_t pid)
{
	int status;

	CHECK(!kill(pid, SIGKILL) && waitpid(pid, &status, 0) == pid);
}

static void finish(struct cast *c)
{
	CHECK(!c->h || !ibv_destroy_qp(c->h));
	xrc_close_side(&c->s);
	kill_it(c->owner);
}

static void connect_to(struct cast *c, struct ibv_qp *h)
{
	xrc_reset(c->s.ini);
	xrc_reset(h);
	xrc_to_rts(h, &c->s.gid, c->s.ini->qp_num);
	xrc_to_rts(c->s.ini, &c->s.gid, h->qp_num);
}

/* A message by the target for this process's SRQ. */
static void one_message(struct cast *c)
{
	struct ibv_wc wc;

	xrc_give(c->s.srq, c->s.mr, 7, XRC_SIZE / 2, 64);
	xrc_post(&c->s, IBV_WR_SEND, c->s.srqn, 0, 8, 0, 0);
	CHECK(xrc_ends(&c->s) == IBV_WC_SUCCESS);
	wc = xrc_wait_on(c->s.rcq);
	CHECK(wc.status == IBV_WC_SUCCESS && wc.wr_id == 7 && wc.qp_num == c->o->tgt);
}

static enum ibv_qp_state state_of(struct ibv_qp *h)
{
	struct ibv_qp_init_attr init;
	struct ibv_qp_attr a;

	CHECK(!ibv_query_qp(h, &a, IBV_QP_STATE, &init), "%s", strerror(errno));
	CHECK(a.cur_qp_state == a.qp_state && init.qp_type == IBV_QPT_XRC_RECV &&
	      init.qp_context == h->qp_context && !init.send_cq);
	CHECK(h->state == a.qp_state); /* whoever has changed it */
	return a.qp_state;
}

static int to_state(struct ibv_qp *h, enum ibv_qp_state state)
{
	struct ibv_qp_attr a = {.qp_state = state};

	return ibv_modify_qp(h, &a, IBV_QP_STATE);
}

static void no_event(struct ibv_context *ctx)
{
	struct pollfd p = {.fd = ctx->async_fd, .events = POLLIN};

	CHECK(!poll(&p, 1, 0), "an event");
}

/* Whoever has it open moves it through its states; what is wrong is told as its own process would be. */
static void another_drives_it(void)
{
	struct ibv_qp_attr a = {.qp_state = IBV_QPS_INIT, .port_num = 9, .qp_access_flags = KIT_ALL}, is;
	const int init = IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS;
	struct ibv_qp_init_attr ia;
	struct cast c;

	begin(&c);
	CHECK(state_of(c.h) == IBV_QPS_RESET && c.h->state == IBV_QPS_RESET);
	CHECK(to_state(c.h, IBV_QPS_RTS) == EINVAL);
	KIT_LOG_SAYS("QP 0x%06x: RESET to RTS is not a valid transition", c.o->tgt);
	CHECK(ibv_modify_qp(c.h, &a, init) == EINVAL && state_of(c.h) == IBV_QPS_RESET);
	connect_to(&c, c.h);
	CHECK(c.h->state == IBV_QPS_RTS && state_of(c.h) == IBV_QPS_RTS);
	CHECK(!ibv_query_qp(c.h, &is, IBV_QP_STATE, &ia));
	CHECK(is.dest_qp_num == c.s.ini->qp_num && is.path_mtu == IBV_MTU_1024 && is.port_num == 1 &&
	      is.qp_access_flags == KIT_ALL && is.min_rnr_timer == 1 && is.max_dest_rd_atomic == 8);
	CHECK(is.ah_attr.is_global && !memcmp(&is.ah_attr.grh.dgid, &c.s.gid, 16) && !is.rq_psn);
	one_message(&c);
	xrc_post(&c.s, IBV_WR_RDMA_READ, c.s.srqn, 0, 4096, (uintptr_t)c.s.buf + 4096, c.s.mr->rkey);
	CHECK(xrc_ends(&c.s) == IBV_WC_SUCCESS);
	CHECK(!ibv_query_qp(c.h, &is, IBV_QP_STATE, &ia) && is.rq_psn == 1 + 1); /* the live one */
	CHECK(!to_state(c.h, IBV_QPS_ERR) && c.h->state == IBV_QPS_ERR && state_of(c.h) == IBV_QPS_ERR);
	CHECK(!to_state(c.h, IBV_QPS_RESET) && state_of(c.h) == IBV_QPS_RESET);
	connect_to(&c, c.h);
	one_message(&c);
	no_event(c.s.ctx);
	finish(&c);
}

/* Nobody's number, an initiator's, a target's of another domain. */
static void what_is_not_there(void)
{
	struct ibv_xrcd *other, *alone;
	struct cast c;

	begin(&c);
	other = xrc_open_domain(c.s.ctx, xrc_domain_file(), O_CREAT);
	alone = xrc_open_domain(c.s.ctx, -1, O_CREAT);
	CHECK(other && alone);
	CHECK(!xrc_open_target(c.s.ctx, c.s.xrcd, c.o->ini) && errno == EINVAL);
	CHECK(!xrc_open_target(c.s.ctx, c.s.xrcd, c.o->tgt ^ 0x800) && errno == EINVAL);
	CHECK(!xrc_open_target(c.s.ctx, other, c.o->tgt) && errno == EINVAL);
	CHECK(!xrc_open_target(c.s.ctx, alone, c.o->tgt) && errno == EINVAL);
	KIT_LOG_SAYS("the XRC domain has no target QP 0x%06x", c.o->tgt);
	CHECK(!xrc_open_target(c.s.ctx, c.s.xrcd, c.o->tgt ^ 0x7ff000) && errno == EINVAL);
	CHECK(!xrc_open_target(c.s.ctx, c.s.xrcd, 0) && errno == EINVAL);
	CHECK(!xrc_open_target(c.s.ctx, c.s.xrcd, 0x1000000 | c.o->tgt) && errno == EINVAL);
	CHECK(!ibv_close_xrcd(other) && !ibv_close_xrcd(alone) && ibv_close_xrcd(c.s.xrcd) == EBUSY);
	finish(&c);
}

enum { MANY = 100 }; /* whose events its socket has no room for */

/* Has it open many times, and is stopped when the events come: each is told all of them, once. */
static void hear_late(struct cast *c, _Atomic int *opened)
{
	struct ibv_context *ctx = kit_open();
	struct ibv_xrcd *x = xrc_open_domain(ctx, c->fd, 0);
	struct ibv_qp *h[MANY];
	int established[MANY] = {0}, refused[MANY] = {0};

	for (intptr_t i = 0; i < MANY; i++) {
		h[i] = xrc_open_target(ctx, x, c->o->tgt);
		CHECK(h[i], "%s", strerror(errno));
		h[i]->qp_context = (void *)i;
	}
	atomic_store(opened, 1);
	for (int n = 0; n < 2 * MANY; n++) {
		struct ibv_async_event e;

		CHECK(!ibv_get_async_event(ctx, &e));
		intptr_t i = (intptr_t)e.element.qp->qp_context;

		CHECK(e.element.qp == h[i]);
		if (e.event_type == IBV_EVENT_COMM_EST)
			CHECK(!established[i]++ && !refused[i]); /* in their order */
		else
			CHECK(e.event_type == IBV_EVENT_QP_ACCESS_ERR && !refused[i]++);
		ibv_ack_async_event(&e);
	}
	no_event(ctx);
	for (int i = 0; i < MANY; i++)
		CHECK(state_of(h[i]) == IBV_QPS_ERR && !ibv_destroy_qp(h[i]));
	CHECK(!ibv_close_xrcd(x) && !ibv_close_device(ctx));
	exit(0);
}

/* Each that has it open hears, by what it has, and its maker; also one that was stopped meanwhile. */
static void events(void)
{
	struct {
		_Atomic int opened;
	} *t = kit_shared(sizeof *t);
	struct ibv_context *ctx;
	struct ibv_xrcd *x;
	struct ibv_qp *h2;
	struct cast c;
	pid_t third;

	begin(&c);
	third = kit_fork();
	if (!third)
		hear_late(&c, &t->opened);
	kit_until(&t->opened, 1);
	kit_stop(third);
	ctx = kit_open();
	x = xrc_open_domain(ctx, c.fd, 0);
	h2 = xrc_open_target(ctx, x, c.o->tgt);
	CHECK(h2);
	xrc_to_rtr(c.h, &c.s.gid, c.s.ini->qp_num);
	xrc_to_rts(c.s.ini, &c.s.gid, c.o->tgt);
	one_message(&c);
	xrc_post(&c.s, IBV_WR_SEND, c.o->srqn + 1, 0, 8, 0, 0);
	CHECK(xrc_ends(&c.s) == IBV_WC_REM_INV_RD_REQ_ERR);
	have(c.o, HEAR);
	CHECK(c.o->event == IBV_EVENT_COMM_EST);
	have(c.o, HEAR);
	CHECK(c.o->event == IBV_EVENT_QP_ACCESS_ERR);
	CHECK(xrc_event_of(c.s.ctx, c.h) == IBV_EVENT_COMM_EST);
	CHECK(xrc_event_of(c.s.ctx, c.h) == IBV_EVENT_QP_ACCESS_ERR);
	CHECK(xrc_event_of(ctx, h2) == IBV_EVENT_COMM_EST);
	CHECK(xrc_event_of(ctx, h2) == IBV_EVENT_QP_ACCESS_ERR);
	kit_cont(third);
	CHECK(!kit_reap(third));
	CHECK(!ibv_destroy_qp(h2) && !ibv_close_xrcd(x) && !ibv_close_device(ctx));
	finish(&c);
}

/* The maker lets it go: it lives on, serves, and hears on until its process closes its device. */
static void the_maker_lets_go(void)
{
	struct cast c;

	begin(&c);
	have(c.o, DESTROY);
	connect_to(&c, c.h);
	one_message(&c);
	xrc_post(&c.s, IBV_WR_SEND, c.s.srqn + 1, 0, 8, 0, 0);
	CHECK(xrc_ends(&c.s) == IBV_WC_REM_INV_RD_REQ_ERR);
	CHECK(xrc_event_of(c.s.ctx, c.h) == IBV_EVENT_QP_ACCESS_ERR);
	connect_to(&c, c.h);
	one_message(&c);
	have(c.o, CLOSE);
	KIT_LOG_SAYS("QP 0x%06x, an XRC target of another process, no longer exists: process %d, which "
		     "created it, closed its device or ended",
		     c.o->tgt, c.owner);
	CHECK(xrc_event_of(c.s.ctx, c.h) == IBV_EVENT_QP_FATAL);
	CHECK(to_state(c.h, IBV_QPS_RESET) == EIO);
	CHECK(!xrc_open_target(c.s.ctx, c.s.xrcd, c.o->tgt) && errno == EINVAL);
	no_event(c.s.ctx);
	finish(&c);
}

/* A context that is closed leaves it behind for another part of its program. */
static void a_part_lets_go(void)
{
	struct cast c;

	begin(&c);
	have(c.o, STAY);
	connect_to(&c, c.h);
	one_message(&c);
	have(c.o, GO);
	CHECK(xrc_event_of(c.s.ctx, c.h) == IBV_EVENT_QP_FATAL);
	CHECK(to_state(c.h, IBV_QPS_RESET) == EIO);
	finish(&c);
}

/* Waits until there is no such target any more. */
static void until_gone(struct cast *c)
{
	double end = kit_now() + 20;
	struct ibv_qp *h;

	while ((h = xrc_open_target(c->s.ctx, c->s.xrcd, c->o->tgt))) {
		CHECK(!ibv_destroy_qp(h) && kit_now() < end, "it is still there");
		kit_nap(1);
	}
	CHECK(errno == EINVAL, "%s", strerror(errno));
}

/* It ends with the last that has it open, whoever that is, in whatever order. */
static void the_last_lets_go(void)
{
	struct ibv_qp *second;
	struct cast c;

	begin(&c);
	second = xrc_open_target(c.s.ctx, c.s.xrcd, c.o->tgt);
	CHECK(second && !ibv_destroy_qp(c.h)); /* with its maker it lives on */
	have(c.o, DESTROY);
	c.h = xrc_open_target(c.s.ctx, c.s.xrcd, c.o->tgt);
	CHECK(c.h && !ibv_destroy_qp(second)); /* it now leans on another one's domain */
	connect_to(&c, c.h);
	one_message(&c);
	CHECK(!ibv_destroy_qp(c.h));
	CHECK(!xrc_open_target(c.s.ctx, c.s.xrcd, c.o->tgt) && errno == EINVAL); /* heard in order */
	c.h = NULL;
	no_event(c.s.ctx);
	have(c.o, CLOSE); /* where nothing is left */
	finish(&c);
}

/* Who has it open dies, the last in the end: in whatever state the target is. */
static void who_has_it_open_dies(void)
{
	struct {
		_Atomic int opened;
	} *t = kit_shared(sizeof *t);
	struct cast c;
	pid_t third;

	begin(&c);
	for (int state = 0; state < 4; state++) {
		third = kit_fork();
		if (!third) {
			struct ibv_context *ctx = kit_open();
			struct ibv_qp *h = xrc_open_target(ctx, xrc_open_domain(ctx, c.fd, 0), c.o->tgt);

			CHECK(h);
			xrc_reset(h);
			if (state)
				xrc_to_rts(h, &c.s.gid, c.s.ini->qp_num);
			if (state == 2)
				CHECK(!to_state(h, IBV_QPS_ERR));
			atomic_fetch_add(&t->opened, 1);
			for (;;)
				pause();
		}
		kit_until(&t->opened, state + 1);
		if (state == 3) {
			have(c.o, DESTROY);
			CHECK(!ibv_destroy_qp(c.h));
			c.h = NULL;
			xrc_reset(c.s.ini);
			xrc_to_rts(c.s.ini, &c.s.gid, c.o->tgt);
			one_message(&c); /* it has it alone */
		}
		kill_it(third);
		if (c.h)
			CHECK(state_of(c.h) == (state == 2 ? IBV_QPS_ERR
						: state	   ? IBV_QPS_RTS
							   : IBV_QPS_RESET));
	}
	until_gone(&c);
	have(c.o, CLOSE);
	finish(&c);
}

/* Its process dies, in every state: one event, and then errors, but destroying goes. */
static void its_process_dies(void)
{
	static const enum ibv_qp_state states[] = {IBV_QPS_RESET, IBV_QPS_INIT, IBV_QPS_RTR, IBV_QPS_RTS,
						   IBV_QPS_ERR};
	struct ibv_qp_attr a, init = {.qp_state = IBV_QPS_INIT, .port_num = 1};
	struct ibv_qp_init_attr ia;
	struct cast c;

	for (unsigned i = 0; i < sizeof states / sizeof *states; i++) {
		struct ibv_qp *second;

		begin(&c);
		second = xrc_open_target(c.s.ctx, c.s.xrcd, c.o->tgt);
		if (states[i] == IBV_QPS_INIT)
			CHECK(!ibv_modify_qp(c.h, &init,
					     IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT |
						 IBV_QP_ACCESS_FLAGS));
		if (states[i] == IBV_QPS_RTR)
			xrc_to_rtr(c.h, &c.s.gid, c.s.ini->qp_num);
		if (states[i] == IBV_QPS_RTS)
			connect_to(&c, c.h);
		if (states[i] == IBV_QPS_RTS)
			one_message(&c);
		if (states[i] == IBV_QPS_ERR)
			CHECK(!to_state(c.h, IBV_QPS_ERR));
		CHECK(state_of(c.h) == states[i]);
		kill_it(c.owner);
		KIT_LOG_SAYS("QP 0x%06x, an XRC target of another process, no longer exists: the "
			     "peer process %d ended",
			     c.o->tgt, c.owner);
		if (states[i] == IBV_QPS_RTS) /* the initiator was connected to it */
			CHECK(xrc_event_of(c.s.ctx, c.s.ini) == IBV_EVENT_QP_FATAL);
		CHECK(xrc_event_of(c.s.ctx, c.h) == IBV_EVENT_QP_FATAL);
		CHECK(xrc_event_of(c.s.ctx, second) == IBV_EVENT_QP_FATAL);
		no_event(c.s.ctx);
		CHECK(c.h->state == IBV_QPS_ERR);
		CHECK(ibv_query_qp(c.h, &a, IBV_QP_STATE, &ia) == EIO);
		CHECK(to_state(c.h, IBV_QPS_RESET) == EIO && to_state(c.h, IBV_QPS_ERR) == EIO);
		CHECK(!xrc_open_target(c.s.ctx, c.s.xrcd, c.o->tgt) && errno == EINVAL);
		CHECK(ibv_close_xrcd(c.s.xrcd) == EBUSY);
		CHECK(!ibv_destroy_qp(c.h) && !ibv_destroy_qp(second));
		xrc_close_side(&c.s);
	}
}

/* Its process is stopped: two seconds, and what was given up with is taken back when it goes on. */
static void its_process_is_stopped(void)
{
	struct {
		_Atomic int opened;
	} *t = kit_shared(sizeof *t);
	struct ibv_context *ctx;
	struct cast c;
	double began;
	pid_t third;

	begin(&c);
	third = kit_fork();
	if (!third) {
		struct ibv_xrcd *x;

		ctx = kit_open();
		x = xrc_open_domain(ctx, c.fd, 0);
		CHECK(!ibv_destroy_qp(xrc_open_target(ctx, x, c.o->tgt))); /* so that there is contact */
		atomic_store(&t->opened, 1);
		kit_until(&t->opened, 2);
		CHECK(!xrc_open_target(ctx, x, c.o->tgt) && errno == ETIMEDOUT, "%s", strerror(errno));
		atomic_store(&t->opened, 3);
		for (;;)
			pause();
	}
	kit_until(&t->opened, 1);
	kit_stop(c.owner);
	began = kit_now();
	atomic_store(&t->opened, 2);
	CHECK(to_state(c.h, IBV_QPS_ERR) == ETIMEDOUT);
	CHECK(kit_now() - began < 4, "%f", kit_now() - began);
	KIT_LOG_SAYS("process %d, which owns the target QP 0x%06x, does not answer (is it stopped?)", c.owner,
		     c.o->tgt);
	kit_until(&t->opened, 3);
	KIT_LOG_SAYS("the process of QP 0x%06x does not answer (is it stopped?)", c.o->tgt);
	kit_cont(c.owner);
	CHECK(state_of(c.h) == IBV_QPS_RESET);
	have(c.o, DESTROY);
	CHECK(!ibv_destroy_qp(c.h)); /* the last: the one that timed out has nothing open */
	c.h = NULL;
	until_gone(&c);
	kill_it(third);
	finish(&c);
}

static void another_users(void)
{
	struct owner *o = kit_shared(sizeof *o);
	int fd = xrc_domain_file();
	struct xrc_side s;
	pid_t owner = kit_fork_as(KIT_FOREIGN);

	if (!owner)
		own(o, fd);
	kit_until(&o->opened, 1);
	xrc_open_side(&s, fd);
	CHECK(!xrc_open_target(s.ctx, s.xrcd, o->tgt) && errno == EINVAL, "%s", strerror(errno));
	kill_it(owner);
	xrc_close_side(&s);
}

/* What a forked child inherits is dead, and its parent has it on. */
static void fork_with_it(void)
{
	struct ibv_qp_init_attr ia;
	struct ibv_qp_attr a;
	struct cast c;
	pid_t child;

	begin(&c);
	child = kit_fork();
	if (!child) {
		CHECK(ibv_query_qp(c.h, &a, IBV_QP_STATE, &ia) == EIO);
		CHECK(to_state(c.h, IBV_QPS_ERR) == EIO);
		CHECK(!ibv_destroy_qp(c.h));
		_exit(0);
	}
	CHECK(!kit_reap(child));
	have(c.o, DESTROY);
	connect_to(&c, c.h);
	one_message(&c);
	finish(&c);
}

/* Whoever closes its device with it open has it open no more. */
static void the_device_is_closed(void)
{
	struct ibv_context *ctx;
	struct ibv_qp *h;
	struct cast c;

	begin(&c);
	ctx = kit_open();
	h = xrc_open_target(ctx, xrc_open_domain(ctx, c.fd, 0), c.o->tgt);
	CHECK(h && !ibv_close_device(ctx));
	have(c.o, DESTROY);
	CHECK(!ibv_destroy_qp(c.h));
	c.h = NULL;
	until_gone(&c);
	CHECK(to_state(h, IBV_QPS_ERR) == EIO && !ibv_destroy_qp(h));
	finish(&c);
}

/* What an SRQ of another process receives the target's completion counters count. */
static void it_counts(void)
{
	struct ibv_comp_cntr_init_attr ia = {.type = IBV_COMP_CNTR_TYPE_BYTES};
	struct ibv_qp_attach_comp_cntr_attr aa = {.op_mask = IBV_QP_ATTACH_COMP_CNTR_OP_RECV};
	static const uint32_t len[] = {8, 200000, 0};
	struct ibv_comp_cntr *here;
	struct cast c;
	uint64_t to;

	begin(&c);
	to = (uintptr_t)c.s.buf + XRC_SIZE / 2;
	have(c.o, COUNT);
	connect_to(&c, c.h);
	for (uint64_t i = 0; i < 6; i++)
		xrc_give(c.s.srq, c.s.mr, i, XRC_SIZE / 2, XRC_SIZE / 2);
	for (int i = 0; i < 3; i++) {
		xrc_post(&c.s, IBV_WR_SEND, c.s.srqn, 0, len[i], 0, 0);
		xrc_post(&c.s, IBV_WR_RDMA_WRITE, c.s.srqn, 0, len[i], to, c.s.mr->rkey);
		xrc_post(&c.s, IBV_WR_RDMA_WRITE_WITH_IMM, c.s.srqn, 0, len[i], to, c.s.mr->rkey);
		xrc_post(&c.s, IBV_WR_RDMA_READ, c.s.srqn, 0, len[i], to, c.s.mr->rkey);
	}
	for (int i = 0; i < 12; i++)
		CHECK(xrc_ends(&c.s) == IBV_WC_SUCCESS, "%d", i);
	xrc_give(c.s.srq, c.s.mr, 6, XRC_SIZE / 2, 8);
	xrc_post(&c.s, IBV_WR_SEND, c.s.srqn, 0, 9, 0, 0);
	CHECK(xrc_ends(&c.s) == IBV_WC_REM_INV_REQ_ERR);
	have(c.o, READ);
	CHECK(c.o->count[RECV] == 2 * 200008 && c.o->count[WRITTEN] == 2 * 200008 &&
		  c.o->count[READ_OUT] == 200008 && c.o->failed == 1,
	      "%" PRIu64 " %" PRIu64 " %" PRIu64 " %" PRIu64, c.o->count[RECV], c.o->count[WRITTEN],
	      c.o->count[READ_OUT], c.o->failed);
	here = ibv_create_comp_cntr(c.s.ctx, &ia);
	CHECK(here && ibv_qp_attach_comp_cntr(c.h, here, &aa) == EOPNOTSUPP);
	CHECK(!ibv_destroy_comp_cntr(here));
	finish(&c);
}

static const struct kit_case cases[] = {
    {.name = "another drives it", .run = another_drives_it, .clean = true},
    {.name = "what is not there", .run = what_is_not_there, .clean = true},
    {.name = "events", .run = events, .clean = true},
    {.name = "the maker lets go", .run = the_maker_lets_go, .clean = true},
    {.name = "a part lets go", .run = a_part_lets_go, .clean = true},
    {.name = "the last lets go", .run = the_last_lets_go, .clean = true},
    {.name = "who has it open dies", .run = who_has_it_open_dies, .clean = true},
    {.name = "its process dies", .run = its_process_dies, .clean = true},
    {.name = "its process is stopped", .run = its_process_is_stopped, .clean = true},
    {.name = "another user's", .run = another_users, .foreign = true},
    {.name = "fork with it", .run = fork_with_it, .clean = true},
    {.name = "the device is closed", .run = the_device_is_closed},
    {.name = "it counts", .run = it_counts, .clean = true},
};

int main(int argc, char **argv)
{
	kit_log_begin("warn");
	KIT_CASES(cases, 120);
	printf("ok\n");
	return 0;
}
