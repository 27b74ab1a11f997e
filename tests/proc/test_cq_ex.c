/* Extended completion queues at work: between processes, with their times, with events that are held back,
 * and with what goes on while a completion is being read. */
#include <errno.h>
#include <poll.h>
#include <pthread.h>

#include "kit.h"

enum { DEPTH = 16, SIZE = 4096, ROUNDS = 200 };

#define BOTH_TIMES (IBV_WC_EX_WITH_COMPLETION_TIMESTAMP | IBV_WC_EX_WITH_COMPLETION_TIMESTAMP_WALLCLOCK)

/* An end that has an extended CQ. */
struct end {
	struct kit_end e;
	struct ibv_cq_ex *cq;
};

static struct ibv_cq *plain(struct ibv_cq_ex *cq)
{
	return (struct ibv_cq *)cq;
}

static struct ibv_cq_ex *new_cq(struct ibv_context *ctx, uint32_t cqe, struct ibv_comp_channel *channel,
				uint64_t more)
{
	struct ibv_cq_init_attr_ex a = {
	    .cqe = cqe, .channel = channel, .cq_context = ctx, .wc_flags = IBV_WC_STANDARD_FLAGS | more};
	struct ibv_cq_ex *cq = ibv_create_cq_ex(ctx, &a);

	CHECK(cq && cq->context == ctx && cq->channel == channel && cq->cq_context == ctx &&
	      cq->cqe >= (int)cqe);
	return cq;
}

static void end_open(struct end *x, struct ibv_pd *pd, struct ibv_comp_channel *channel, uint64_t more)
{
	x->cq = new_cq(pd->context, 2 * DEPTH, channel, more);
	kit_end_open_with(&x->e, pd, plain(x->cq), DEPTH, SIZE);
}

static int start(struct ibv_cq_ex *cq)
{
	struct ibv_poll_cq_attr attr = {0};

	return ibv_start_poll(cq, &attr);
}

/* Begins a batch, whose first completion is there; nothing else is called meanwhile. */
static void await(struct ibv_cq_ex *cq)
{
	double end = kit_now() + 30;
	int err;

	while ((err = start(cq)) == ENOENT)
		CHECK(kit_now() < end);
	CHECK(!err && cq->status == IBV_WC_SUCCESS, "%d, status %d", err, err ? 0 : (int)cq->status);
}

static uint64_t clock_of(struct ibv_context *ctx)
{
	struct ibv_values_ex v = {.comp_mask = IBV_VALUES_MASK_RAW_CLOCK};

	CHECK(!ibv_query_rt_values_ex(ctx, &v) && v.comp_mask == IBV_VALUES_MASK_RAW_CLOCK);
	return (uint64_t)v.raw_clock.tv_sec * 1000000000 + (uint64_t)v.raw_clock.tv_nsec;
}

static uint64_t time_of(clockid_t id)
{
	struct timespec t;

	clock_gettime(id, &t);
	return (uint64_t)t.tv_sec * 1000000000 + (uint64_t)t.tv_nsec;
}

/* ---- two processes ---- */

struct talk {
	struct kit_card card[2];
	_Atomic int opened, over, order; /* orders: how many SENDs the other process is to have made */
};

static void connect_to_other(struct end *x, struct talk *t, int me)
{
	t->card[me] = x->e.card;
	atomic_fetch_add(&t->opened, 1);
	kit_until(&t->opened, 2);
	kit_connect(&x->e, &t->card[!me]);
	atomic_fetch_add(&t->opened, 1);
	kit_until(&t->opened, 4);
}

static void leave_with_other(struct end *x, struct talk *t)
{
	struct ibv_pd *pd = x->e.qp->pd;
	struct ibv_context *ctx = pd->context;

	atomic_fetch_add(&t->over, 1);
	kit_until(&t->over, 2);
	kit_end_close(&x->e);
	CHECK(!ibv_dealloc_pd(pd) && !ibv_close_device(ctx));
}

/* What a message carries: when its sender had not yet posted it. */
struct stamp {
	uint64_t clock, wall;
};

static void send_stamp(struct end *x, uint32_t imm)
{
	struct stamp now = {clock_of(x->cq->context), time_of(CLOCK_REALTIME)};
	struct ibv_sge sge = {(uintptr_t)x->e.buf, sizeof(now), x->e.mr->lkey};
	struct ibv_send_wr wr = {.wr_id = imm,
				 .sg_list = &sge,
				 .num_sge = 1,
				 .opcode = IBV_WR_SEND_WITH_IMM,
				 .send_flags = IBV_SEND_SIGNALED,
				 .imm_data = imm},
			   *bad;

	memcpy(x->e.buf, &now, sizeof(now));
	CHECK(!ibv_post_send(x->e.qp, &wr, &bad));
}

static bool within(uint64_t at, uint64_t from, uint64_t to)
{
	return at >= from && at <= to;
}

/* Both completions of a round, in whatever order they come. */
static void expect_round(struct end *x, const struct talk *t, int me, uint32_t imm,
			 const struct stamp *posted)
{
	bool sent = false, received = false;
	int err = ENOENT;

	while (!sent || !received) {
		if (err)
			await(x->cq);
		const struct stamp *from = posted;
		struct ibv_cq_ex *cq = x->cq;

		CHECK(ibv_wc_read_qp_num(cq) == x->e.qp->qp_num);
		if (ibv_wc_read_opcode(cq) == IBV_WC_SEND) {
			CHECK(!sent && cq->wr_id == imm);
			sent = true;
		} else {
			CHECK(!received && ibv_wc_read_opcode(cq) == IBV_WC_RECV && cq->wr_id == imm + 1);
			CHECK(ibv_wc_read_byte_len(cq) == sizeof(*from) && ibv_wc_read_imm_data(cq) == imm);
			CHECK(ibv_wc_read_wc_flags(cq) == IBV_WC_WITH_IMM);
			CHECK(ibv_wc_read_src_qp(cq) == t->card[!me].qpn);
			from = (const struct stamp *)(const void *)(x->e.buf + 64);
			received = true;
		}
		CHECK(within(ibv_wc_read_completion_ts(cq), from->clock, clock_of(cq->context)));
		CHECK(within(ibv_wc_read_completion_wallclock_ns(cq), from->wall, time_of(CLOCK_REALTIME)));
		err = ibv_next_poll(cq);
		CHECK(!err || err == ENOENT);
		if (err)
			ibv_end_poll(cq);
	}
	if (!err) {
		CHECK(!"a completion that nobody waits for");
		ibv_end_poll(x->cq);
	}
}

/* Times are of one clock in all processes: no message arrives before it was sent. */
static void talk(struct talk *t, int me, uint64_t times)
{
	struct ibv_pd *pd = ibv_alloc_pd(kit_open());
	struct end x;

	CHECK(pd);
	end_open(&x, pd, NULL, times);
	CHECK(start(x.cq) == ENOENT);
	CHECK(!kit_recv(&x.e, 1, 64, 64));
	connect_to_other(&x, t, me);
	for (uint32_t i = 0; i < ROUNDS; i++) {
		struct stamp posted = {clock_of(pd->context), time_of(CLOCK_REALTIME)};

		CHECK(within(posted.clock, 1, time_of(CLOCK_MONOTONIC)));
		send_stamp(&x, i);
		expect_round(&x, t, me, i, &posted);
		if (i + 1 < ROUNDS)
			CHECK(!kit_recv(&x.e, i + 2, 64, 64));
		atomic_fetch_add(&t->order, 1); /* in step, so that a receive is there */
		kit_until(&t->order, 2 * ((int)i + 1));
	}
	leave_with_other(&x, t);
}

static void between_processes(void)
{
	struct talk *t = kit_shared(sizeof(*t));
	pid_t pid = kit_fork();

	if (!pid) {
		talk(t, 1, BOTH_TIMES);
		_exit(0);
	}
	talk(t, 0, BOTH_TIMES);
	CHECK(!kit_reap(pid));
}

/* The other process SENDs when it is told to. */
static void sender(struct talk *t)
{
	struct ibv_pd *pd = ibv_alloc_pd(kit_open());
	struct end x;

	end_open(&x, pd, NULL, 0);
	connect_to_other(&x, t, 1);
	for (int n = 0; !t->over;) {
		if (n == t->order) {
			sched_yield();
			continue;
		}
		send_stamp(&x, (uint32_t)n++);
		await(x.cq);
		ibv_end_poll(x.cq);
	}
	leave_with_other(&x, t);
	_exit(0);
}

/* ---- events ---- */

static void moderate(struct ibv_cq_ex *cq, uint16_t count, uint16_t period)
{
	struct ibv_modify_cq_attr a = {.attr_mask = IBV_CQ_ATTR_MODERATE, .moderate = {count, period}};

	CHECK(!ibv_modify_cq(plain(cq), &a));
}

static void take_event(struct ibv_comp_channel *ch, struct ibv_cq_ex *from)
{
	struct ibv_cq *cq;
	void *context;

	CHECK(!ibv_get_cq_event(ch, &cq, &context));
	CHECK(cq == plain(from) && context == from->context);
	ibv_ack_cq_events(cq, 1);
}

/* Arms, has `sends` SENDs made, waits for the event in the given way, and polls them all.  The event came
 * once there were `count` completions, or when `period` us were over since the first that it tells of; and it
 * came though nobody polled. */
static void expect_event(struct end *x, struct talk *t, int sends, int count, uint64_t period, bool blocking)
{
	struct pollfd p = {.fd = x->cq->channel->fd, .events = POLLIN};
	uint64_t told, first = 0;
	int n = 0, before = 0, err;

	for (int i = 0; i < sends; i++)
		CHECK(!kit_recv(&x->e, 0, 64, 64));
	CHECK(!ibv_req_notify_cq(plain(x->cq), 0));
	atomic_fetch_add(&t->order, sends);
	if (!blocking)
		CHECK(poll(&p, 1, 30000) == 1);
	take_event(x->cq->channel, x->cq);
	told = time_of(CLOCK_MONOTONIC);
	while (n < sends) {
		await(x->cq);
		do {
			uint64_t ts = ibv_wc_read_completion_ts(x->cq);

			first = first ? first : ts;
			before += ts <= told;
			n++;
			err = ibv_next_poll(x->cq);
		} while (!err);
		ibv_end_poll(x->cq);
	}
	CHECK(n == sends && (before >= count || told - first >= period * 1000),
	      "%d completions, %" PRIu64 " ns", before, told - first);
}

static void events(void)
{
	struct talk *t = kit_shared(sizeof(*t));
	struct ibv_comp_channel *ch;
	struct ibv_pd *pd;
	struct end x;
	pid_t pid = kit_fork();

	if (!pid)
		sender(t);
	pd = ibv_alloc_pd(kit_open());
	CHECK(pd);
	ch = ibv_create_comp_channel(pd->context);
	CHECK(ch);
	end_open(&x, pd, ch, IBV_WC_EX_WITH_COMPLETION_TIMESTAMP);
	connect_to_other(&x, t, 0);
	for (int i = 0; i < 20; i++) {
		bool blocking = i % 2;

		moderate(x.cq, 0, 0);
		expect_event(&x, t, 1, 1, 0, blocking);
		moderate(x.cq, 4, 4095);
		expect_event(&x, t, 4, 4, 4095, blocking);
		moderate(x.cq, 100, i % 4 ? 300 : 4000); /* that many never come: the engine's timer */
		expect_event(&x, t, 3, 100, i % 4 ? 300 : 4000, blocking);
	}
	moderate(x.cq, 100, 4000);
	CHECK(!kit_recv(&x.e, 0, 64, 64) && !ibv_req_notify_cq(plain(x.cq), 0));
	atomic_fetch_add(&t->order, 1);
	await(x.cq); /* polled already: the event comes all the same, and goes with the CQ where nobody takes
			it */
	ibv_end_poll(x.cq);
	leave_with_other(&x, t);
	CHECK(!ibv_destroy_comp_channel(ch));
	CHECK(!kit_reap(pid));
}

/* ---- while a completion is in hand ---- */

static void connect_pair(struct end *a, struct end *b)
{
	kit_connect(&a->e, &b->e.card);
	kit_connect(&b->e, &a->e.card);
}

struct pusher {
	struct end *from; /* SENDs to a queue pair whose completions go to the CQ that is held */
};

static void *push(void *arg)
{
	struct pusher *p = arg;

	for (int i = 0; i < DEPTH / 2; i++) {
		CHECK(!kit_post(&p->from->e, IBV_WR_SEND, 9, 0, 8, NULL, 0));
		await(p->from->cq);
		ibv_end_poll(p->from->cq);
	}
	return NULL;
}

/* The CQ of b and c: one completion of b is in hand while b is destroyed, c posts and receives, and another
 * thread makes progress. */
static void in_between(void)
{
	struct ibv_context *ctx = kit_open();
	struct ibv_pd *pd = ibv_alloc_pd(ctx);
	struct ibv_cq_ex *cq = new_cq(ctx, 4 * DEPTH, NULL, 0);
	struct end a, to_c, b = {.cq = cq}, c = {.cq = cq};
	struct pusher p = {.from = &to_c};
	uint32_t b_number;
	struct ibv_wc wc;
	pthread_t t;
	int n = 0, err;

	end_open(&a, pd, NULL, 0);
	end_open(&to_c, pd, NULL, 0);
	kit_end_open_with(&b.e, pd, plain(cq), DEPTH, SIZE);
	kit_end_open_with(&c.e, pd, plain(cq), DEPTH, SIZE);
	connect_pair(&a, &b);
	connect_pair(&to_c, &c);
	b_number = b.e.qp->qp_num;
	for (int i = 0; i < 4; i++)
		CHECK(!kit_recv(&b.e, 1, 0, 64));
	for (int i = 0; i < DEPTH / 2; i++)
		CHECK(!kit_recv(&c.e, 2, 0, 64));
	for (int i = 0; i < 4; i++) {
		CHECK(!kit_post(&a.e, IBV_WR_SEND, 0, 0, 8, NULL, 0));
		await(a.cq);
		ibv_end_poll(a.cq);
	}
	await(cq);
	CHECK(cq->wr_id == 1 && ibv_wc_read_qp_num(cq) == b_number);
	kit_end_close_but_cq(&b.e);
	CHECK(!pthread_create(&t, NULL, push, &p));
	for (int i = 0; i < DEPTH / 2; i++)
		CHECK(!kit_post(&c.e, IBV_WR_RDMA_WRITE, 2, 0, 8, &to_c.e.card, 64));
	pthread_join(t, NULL);
	CHECK(cq->wr_id == 1 && ibv_wc_read_qp_num(cq) == b_number); /* as it was */
	while (!(err = ibv_next_poll(cq))) {
		CHECK(cq->wr_id == 2 && ibv_wc_read_qp_num(cq) == c.e.qp->qp_num); /* b left nothing behind */
		n++;
	}
	CHECK(err == ENOENT);
	ibv_end_poll(cq);
	for (double end = kit_now() + 30; n < DEPTH; n += err) { /* the plain call finds the rest */
		err = ibv_poll_cq(plain(cq), 1, &wc);
		CHECK(err >= 0 && kit_now() < end && (!err || wc.wr_id == 2));
	}
	CHECK(start(cq) == ENOENT);
	kit_end_close(&a.e);
	kit_end_close(&to_c.e);
	kit_end_close(&c.e);
	CHECK(!ibv_dealloc_pd(pd) && !ibv_close_device(ctx));
}

/* ---- overrun ---- */

static enum ibv_qp_state state_of(struct kit_end *e)
{
	struct ibv_qp_init_attr init;
	struct ibv_qp_attr a;

	CHECK(!ibv_query_qp(e->qp, &a, IBV_QP_STATE, &init));
	return a.qp_state;
}

static void await_events(struct ibv_context *ctx, struct ibv_cq_ex *cq, struct kit_end *of, int n)
{
	bool told[8] = {false}, cq_told = false;
	struct ibv_async_event ev;

	for (int left = n + 1; left;) {
		CHECK(!ibv_get_async_event(ctx, &ev));
		if (ev.event_type == IBV_EVENT_CQ_ERR) {
			CHECK(ev.element.cq == plain(cq) && !cq_told);
			cq_told = true;
			left--;
		} else if (ev.event_type == IBV_EVENT_QP_FATAL) {
			int i = 0;

			while (i < n && ev.element.qp != of[i].qp)
				i++;
			CHECK(i < n && !told[i], "the event of another");
			told[i] = true;
			left--;
		}
		ibv_ack_async_event(&ev);
	}
}

/* Rule 31: the CQ has room for two, and three queue pairs complete to it, of which one sends and the others
 * do nothing.  All of them end, and no other. */
static void rule_31_overrun(void)
{
	enum { VICTIMS = 3 };
	struct ibv_context *ctx;
	struct ibv_pd *pd;
	struct ibv_cq_ex *cq;
	struct kit_end v[VICTIMS];
	struct end far[VICTIMS], a, b;

	CHECK(!setenv("VERBENA_LOG_FORMAT", "json", 1)); /* so the reason's name is there, and its facts */
	kit_log_begin("warn");
	ctx = kit_open();
	pd = ibv_alloc_pd(ctx);
	cq = new_cq(ctx, 2, NULL, 0);
	end_open(&a, pd, NULL, 0);
	end_open(&b, pd, NULL, 0);
	connect_pair(&a, &b);
	for (int i = 0; i < VICTIMS; i++) {
		end_open(&far[i], pd, NULL, 0);
		kit_end_open_with(&v[i], pd, plain(cq), DEPTH, SIZE);
		kit_connect(&far[i].e, &v[i].card);
		kit_connect(&v[i], &far[i].e.card);
	}
	CHECK(!kit_recv(&v[1], 0, 0, 64));
	for (int i = 0; i < 3; i++)
		CHECK(!kit_post(&v[0], IBV_WR_RDMA_WRITE, (uint64_t)i, 0, 8, &far[0].e.card, 0));
	await_events(ctx, cq, v, VICTIMS);
	for (int i = 0; i < VICTIMS; i++)
		CHECK(state_of(&v[i]) == IBV_QPS_ERR);
	KIT_LOG_SAYS("QP 0x%06x: a completion is lost", v[0].qp->qp_num);
	KIT_LOG_SAYS(
	    "the CQ and all its queue pairs enter the error state: a completion queue of 2 entries overran");
	KIT_LOG_SAYS("it was not polled in time; poll more often or create a larger one\"");
	KIT_LOG_SAYS("\"reason\":\"cq-overrun\"");
	KIT_LOG_SAYS("\"qpn\":\"0x%06x\"", v[0].qp->qp_num);
	KIT_LOG_SAYS("\"most\":2");
	CHECK(!start(cq) && cq->wr_id == 0 && !ibv_next_poll(cq) && cq->wr_id == 1);
	CHECK(ibv_next_poll(cq) == EIO);
	ibv_end_poll(cq);
	CHECK(start(cq) == EIO && errno == EIO);
	CHECK(state_of(&a.e) == IBV_QPS_RTS && state_of(&b.e) == IBV_QPS_RTS);
	CHECK(!kit_post(&a.e, IBV_WR_RDMA_WRITE, 7, 0, 8, &b.e.card, 0));
	await(a.cq);
	ibv_end_poll(a.cq);
	for (int i = 0; i < VICTIMS; i++) {
		kit_end_close_but_cq(&v[i]);
		kit_end_close(&far[i].e);
	}
	kit_end_close(&a.e);
	kit_end_close(&b.e);
	CHECK(!ibv_destroy_cq(plain(cq)) && !ibv_dealloc_pd(pd) && !ibv_close_device(ctx));
	CHECK(kit_log_count("\n") == 1, "not one line:\n%s", kit_log_text());
}

/* What comes too late is kept, what was there first is lost, and nobody is told. */
static void overrun_is_ignored(void)
{
	struct ibv_context *ctx = kit_open();
	struct ibv_pd *pd = ibv_alloc_pd(ctx);
	struct ibv_cq_init_attr_ex attr = {
	    .cqe = 4, .comp_mask = IBV_CQ_INIT_ATTR_MASK_FLAGS, .flags = IBV_CREATE_CQ_ATTR_IGNORE_OVERRUN};
	struct ibv_cq_ex *cq = ibv_create_cq_ex(ctx, &attr);
	struct pollfd p = {.fd = ctx->async_fd, .events = POLLIN};
	struct kit_end e;
	struct end far;

	CHECK(cq);
	end_open(&far, pd, NULL, 0);
	kit_end_open_with(&e, pd, plain(cq), DEPTH, SIZE);
	kit_connect(&e, &far.e.card);
	kit_connect(&far.e, &e.card);
	for (int i = 0; i < 10; i++) /* placed directly, each when it is posted; or over the ring */
		CHECK(!kit_post(&e, IBV_WR_RDMA_WRITE, (uint64_t)i, 0, 8, &far.e.card, 0));
	CHECK(!kit_recv(&far.e, 1, 64, 64));
	CHECK(!kit_post(&e, IBV_WR_SEND, 10, 0, 8, NULL, 0));
	await(far.cq); /* all before it are complete when its ACK is in */
	ibv_end_poll(far.cq);
	while (state_of(&e) == IBV_QPS_RTS) {
		await(cq);
		uint64_t first = cq->wr_id, last = first;

		while (!ibv_next_poll(cq))
			CHECK(cq->wr_id == ++last);
		ibv_end_poll(cq);
		CHECK(last - first < 4);
		if (last == 10)
			break;
	}
	CHECK(state_of(&e) == IBV_QPS_RTS && poll(&p, 1, 0) == 0);
	for (int i = 0; i < 3 * DEPTH; i++) { /* the room of those that were lost is free */
		CHECK(!kit_post(&e, IBV_WR_RDMA_WRITE, 11, 0, 8, &far.e.card, 0));
		await(cq);
		ibv_end_poll(cq);
	}
	kit_end_close(&e);
	kit_end_close(&far.e);
	CHECK(!ibv_dealloc_pd(pd) && !ibv_close_device(ctx));
}

/* ---- domains, forks ---- */

static struct {
	int allocs, live;
} book;

static void *book_alloc(struct ibv_pd *pd, void *context, size_t size, size_t alignment, uint64_t type)
{
	void *p = aligned_alloc(alignment, size);

	(void)pd;
	(void)type;
	CHECK(p && context == &book);
	book.allocs++;
	book.live++;
	return memset(p, 0, size);
}

static void book_free(struct ibv_pd *pd, void *context, void *ptr, uint64_t type)
{
	(void)pd;
	(void)context;
	(void)type;
	book.live--;
	free(ptr);
}

static void a_parent_domain_gives_the_memory(void)
{
	struct ibv_context *ctx = kit_open();
	struct ibv_pd *pd = ibv_alloc_pd(ctx);
	struct ibv_parent_domain_init_attr pa = {.pd = pd,
						 .comp_mask = IBV_PARENT_DOMAIN_INIT_ATTR_ALLOCATORS |
							      IBV_PARENT_DOMAIN_INIT_ATTR_PD_CONTEXT,
						 .alloc = book_alloc,
						 .free = book_free,
						 .pd_context = &book};
	struct ibv_pd *parent = ibv_alloc_parent_domain(ctx, &pa);
	struct ibv_cq_init_attr_ex a = {.cqe = 16,
					.comp_mask = IBV_CQ_INIT_ATTR_MASK_PD,
					.parent_domain = parent,
					.wc_flags = BOTH_TIMES};
	struct ibv_cq_ex *cq;

	CHECK(parent);
	cq = ibv_create_cq_ex(ctx, &a);
	CHECK(cq && book.live == 1 && ibv_dealloc_pd(parent) == EBUSY);
	CHECK(!ibv_resize_cq(plain(cq), 4000) && book.allocs == 2 && book.live == 1);
	CHECK(ibv_resize_cq(plain(cq), 0) == EINVAL && book.live == 1);
	CHECK(!ibv_destroy_cq(plain(cq)) && !book.live && !ibv_dealloc_pd(parent));
	a.parent_domain = pd;
	CHECK(!ibv_create_cq_ex(ctx, &a) && errno == EINVAL);
	CHECK(!ibv_dealloc_pd(pd) && !ibv_close_device(ctx));
}

static void a_forked_child_has_dead_queues(void)
{
	struct ibv_context *ctx = kit_open();
	struct ibv_cq_ex *cq = new_cq(ctx, 4, NULL, BOTH_TIMES);
	struct ibv_modify_cq_attr m = {.attr_mask = IBV_CQ_ATTR_MODERATE, .moderate = {4, 4}};
	struct ibv_cq_init_attr_ex a = {.cqe = 4};
	struct ibv_values_ex v = {.comp_mask = IBV_VALUES_MASK_RAW_CLOCK};
	pid_t pid = kit_fork();

	if (!pid) {
		for (int i = 0; i < 2; i++)
			CHECK(start(cq) == EIO && errno == EIO);
		CHECK(!ibv_create_cq_ex(ctx, &a) && errno == EIO);
		CHECK(ibv_modify_cq(plain(cq), &m) == EIO);
		CHECK(ibv_query_rt_values_ex(ctx, &v) == EIO);
		CHECK(!ibv_destroy_cq(plain(cq)));
		_exit(0);
	}
	CHECK(!kit_reap(pid));
	CHECK(start(cq) == ENOENT && !ibv_modify_cq(plain(cq), &m));
	CHECK(!ibv_destroy_cq(plain(cq)) && !ibv_close_device(ctx));
}

static void the_device_says_so(void)
{
	struct ibv_context *ctx = kit_open();
	struct ibv_values_ex v = {.comp_mask = 0};
	struct ibv_device_attr_ex a;
	uint64_t before = time_of(CLOCK_MONOTONIC), now = clock_of(ctx);

	CHECK(!ibv_query_device_ex(ctx, NULL, &a));
	CHECK(a.completion_timestamp_mask == UINT64_MAX && a.hca_core_clock == 1000000);
	CHECK(a.cq_mod_caps.max_cq_count == 65535 && a.cq_mod_caps.max_cq_period == 4095);
	CHECK(within(now, before, time_of(CLOCK_MONOTONIC)));
	CHECK(!ibv_query_rt_values_ex(ctx, &v) && !v.comp_mask);
	v.comp_mask = IBV_VALUES_MASK_RESERVED;
	CHECK(ibv_query_rt_values_ex(ctx, &v) == EINVAL);
	CHECK(!ibv_close_device(ctx));
}

int main(int argc, char **argv)
{
	static const struct kit_case cases[] = {
	    {"between_processes", between_processes, .clean = true},
	    {"events", events, .clean = true},
	    {"in_between", in_between, .clean = true},
	    {"rule_31_overrun", rule_31_overrun, .clean = true},
	    {"overrun_is_ignored", overrun_is_ignored, .clean = true},
	    {"a_parent_domain_gives_the_memory", a_parent_domain_gives_the_memory, .clean = true},
	    {"a_forked_child_has_dead_queues", a_forked_child_has_dead_queues, .clean = true},
	    {"the_device_says_so", the_device_says_so, .clean = true},
	};

	KIT_CASES(cases, 60);
	return 0;
}
