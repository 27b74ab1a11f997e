/* Calls that do not return. */
#include <poll.h>
#include <pthread.h>

#include "hang.h"

static struct ibv_comp_channel *channel;

/* This process has both ends. */
static void loopback(void)
{
	struct kit_end b;

	open_device();
	channel = ibv_create_comp_channel(ctx);
	kit_end_open_on(&e, pd, channel, 8, 8192);
	kit_end_open(&b, pd, 8, 8192);
	kit_connect(&e, &b.card);
	kit_connect(&b, &e.card);
	far = b.card;
}

static void event(void)
{
	struct ibv_cq *cq;
	void *context;

	CHECK(!ibv_req_notify_cq(e.cq, 0));
	CHECK(!kit_post(&e, IBV_WR_RDMA_WRITE, 1, 0, 8, &far, 0));
	CHECK(!ibv_get_cq_event(channel, &cq, &context));
	done(e.cq);
}

static void destroy_cq(void)
{
	loopback();
	for (int i = 0; i < 3; i++)
		event();
	ibv_ack_cq_events(e.cq, 1);
	CHECK(!ibv_destroy_qp(e.qp));
	KNOWS("ibv_destroy_cq(): thread %d waits in it", gettid());
	KNOWS("2 completion events of CQ %p are not acknowledged: 3 delivered, 1 acknowledged", (void *)e.cq);
	KNOWS("to do: in PID %d (situations-hang): call ibv_ack_cq_events()", (int)getpid());
	KNOWS("docs/waits.md explains the words in brackets");
	hangs();
	ibv_destroy_cq(e.cq);
}

/* An event of the queue pair that the program has got. */
static void destroy_qp(void)
{
	struct ibv_async_event ev;
	struct kit_card wrong;

	loopback();
	wrong = far;
	wrong.rkey ^= 0x100;
	/* the refused request is an event of the other end; so that is this one's to destroy */
	CHECK(!kit_post(&e, IBV_WR_RDMA_WRITE, 1, 0, 8, &wrong, 0));
	CHECK(!ibv_get_async_event(ctx, &ev));
	KNOWS("ibv_destroy_qp(): thread %d waits in it", gettid());
	KNOWS("1 asynchronous event of the queue pair is not acknowledged");
	KNOWS("call ibv_ack_async_event()");
	hangs();
	ibv_destroy_qp(ev.element.qp);
}

static void destroy_srq(void)
{
	struct ibv_async_event ev;
	struct kit_end b;
	struct ibv_srq *srq = open_srq_end(&b, 2);

	CHECK(!kit_post(&e, IBV_WR_SEND, 1, 0, 8, &b.card, 0));
	done(e.cq);
	CHECK(!ibv_get_async_event(ctx, &ev) && ev.event_type == IBV_EVENT_SRQ_LIMIT_REACHED);
	CHECK(!ibv_destroy_qp(b.qp));
	KNOWS("ibv_destroy_srq(): thread %d waits in it", gettid());
	KNOWS("1 asynchronous event of the SRQ is not acknowledged");
	hangs();
	ibv_destroy_srq(srq);
}

static struct ibv_cq_ex *cq_ex;
static atomic_bool begun;

static void *start_poll(void *unused)
{
	struct ibv_poll_cq_attr a = {0};
	double end = kit_now() + 20;

	(void)unused;
	while (ibv_start_poll(cq_ex, &a))
		CHECK(kit_now() < end, "no completion");
	atomic_store(&begun, true);
	for (;;)
		pause();
	return NULL;
}

/* A thread left out ibv_end_poll(). */
static void poll_in_progress(void)
{
	struct ibv_cq_init_attr_ex ca = {.cqe = 8};
	struct ibv_poll_cq_attr a = {0};
	struct kit_end b;

	open_device();
	cq_ex = ibv_create_cq_ex(ctx, &ca);
	CHECK(cq_ex);
	kit_end_open_with(&e, pd, ibv_cq_ex_to_cq(cq_ex), 4, 64);
	kit_end_open(&b, pd, 8, 8192);
	kit_connect(&e, &b.card);
	kit_connect(&b, &e.card);
	CHECK(!kit_post(&e, IBV_WR_RDMA_WRITE, 1, 0, 8, &b.card, 0));
	start(start_poll, NULL);
	while (!atomic_load(&begun))
		kit_nap(1);
	KNOWS("ibv_start_poll(): thread %d waits in it", gettid());
	KNOWS("for CQ %p", (void *)cq_ex);
	KNOWS("has called ibv_start_poll() on CQ %p and has not called ibv_end_poll()", (void *)cq_ex);
	KNOWS("another thread (pthread_self() 0x");
	hangs();
	ibv_start_poll(cq_ex, &a);
}

static struct ibv_qp_ex *qp_ex;

static void *start_wr(void *unused)
{
	(void)unused;
	ibv_wr_start(qp_ex);
	atomic_store(&begun, true);
	for (;;)
		pause();
	return NULL;
}

static void post_in_progress(void)
{
	struct kit_end b;

	open_device();
	qp_ex = kit_end_open_ex(&e, pd, 8, 8192, IBV_QP_EX_WITH_SEND | IBV_QP_EX_WITH_RDMA_WRITE);
	kit_end_open(&b, pd, 8, 8192);
	kit_connect(&e, &b.card);
	kit_connect(&b, &e.card);
	start(start_wr, NULL);
	while (!atomic_load(&begun))
		kit_nap(1);
	KNOWS("a post or ibv_modify_qp(): thread %d waits in it", gettid());
	KNOWS("another thread has called ibv_wr_start() on QP 0x%06x and has not called ibv_wr_complete()",
	      e.card.qpn);
	hangs();
	kit_post(&e, IBV_WR_SEND, 1, 0, 8, &b.card, 0);
}

/* The thread polls for a request that it has built and not posted. */
static void not_completed(void)
{
	struct kit_end b;

	open_device();
	qp_ex = kit_end_open_ex(&e, pd, 8, 8192, IBV_QP_EX_WITH_SEND);
	kit_end_open(&b, pd, 8, 8192);
	kit_connect(&e, &b.card);
	kit_connect(&b, &e.card);
	ibv_wr_start(qp_ex);
	qp_ex->wr_id = 1;
	qp_ex->wr_flags = IBV_SEND_SIGNALED;
	ibv_wr_send(qp_ex);
	ibv_wr_set_sge(qp_ex, e.mr->lkey, (uintptr_t)e.buf, 8);
	KNOWS("QP 0x%06x (RC, RTS)", e.card.qpn);
	KNOWS("a thread has called ibv_wr_start(), and neither ibv_wr_complete() nor ibv_wr_abort()");
	poll_for_ever(e.cq);
}

static void async_event(void)
{
	struct ibv_async_event ev;

	open_end(8);
	KNOWS("ibv_get_async_event(): thread %d waits in it", gettid());
	KNOWS("no asynchronous event has come, which is normal");
	KNOWS("opened the device; what waits is normal for an idle program");
	hangs();
	ibv_get_async_event(ctx, &ev);
}

static void *write_from(void *unused)
{
	(void)unused;
	kit_post(&e, IBV_WR_RDMA_WRITE, 1, 4000, 4096, &far, 0);
	return NULL;
}

/* The peer stands still in the middle of a WRITE that it carries out itself. */
static void region_used(void)
{
	struct pollfd fd = {.events = POLLIN};

	two();
	open_end(8);
	if (is_peer) {
		CHECK(!ibv_dereg_mr(e.mr));
		e.buf = mmap(NULL, 16384, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
		e.mr = ibv_reg_mr(pd, e.buf, 16384, IBV_ACCESS_LOCAL_WRITE);
		CHECK(e.buf != MAP_FAILED && e.mr);
	}
	meet();
	kit_connect(&e, &far);
	barrier();
	if (is_peer) {
		CHECK(!kit_post(&e, IBV_WR_RDMA_WRITE, 1, 0, 8, &far, 0)); /* so that there is contact */
		done(e.cq);
		fd.fd = kit_missing(e.buf + 4096, 4096);
		start(write_from, NULL);
		CHECK(poll(&fd, 1, 20000) == 1, "it was not held");
		barrier();
		stay();
	}
	barrier();
	KNOWS("ibv_dereg_mr(): thread %d waits in it", gettid());
	KNOWS("process %d is copying to or from the region", (int)peer_pid);
	hangs();
	ibv_dereg_mr(e.mr);
}

const struct hang calls[] = {
    {"destroy-cq", "cq-events-unacknowledged", destroy_cq,
     "2 completion events of the CQ are not acknowledged"},
    {"destroy-qp", "async-events-unacknowledged", destroy_qp,
     "1 asynchronous event of the queue pair is not acknowledged"},
    {"destroy-srq", "async-events-unacknowledged", destroy_srq,
     "1 asynchronous event of the SRQ is not acknowledged"},
    {"region-used", "region-used", region_used, "which is using it and makes no progress"},
    {"poll-in-progress", "poll-in-progress", poll_in_progress,
     "another thread has called ibv_start_poll() on this CQ and has not called ibv_end_poll()"},
    {"post-in-progress", "post-in-progress", post_in_progress, "a post or ibv_modify_qp() has waited for"},
    {"not-completed", "not-completed", not_completed, NULL},
    {"async-event", "async-event", async_event, NULL},
    {0},
};
