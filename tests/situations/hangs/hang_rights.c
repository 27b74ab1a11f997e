/* Programs that wait rightly: nothing is said of them without being asked. */
#include <poll.h>

#include "cm.h"
#include "hang.h"

static struct ibv_comp_channel *channel;

static void on_channel(void)
{
	two();
	open_device();
	channel = ibv_create_comp_channel(ctx);
	kit_end_open_on(&e, pd, channel, 8, 8192);
	for (int i = 0; i < 4; i++)
		CHECK(!kit_recv(&e, 1, 0, 64));
	CHECK(!ibv_req_notify_cq(e.cq, 0));
	meet();
	kit_connect(&e, &far);
	barrier();
}

static void get_event(void)
{
	struct ibv_cq *cq;
	void *context;

	hangs();
	ibv_get_cq_event(channel, &cq, &context);
}

static void idle_server(void)
{
	on_channel();
	get_event();
}

static void idle_server_polls(void)
{
	connected(8);
	CHECK(!kit_recv(&e, 1, 0, 64));
	poll_for_ever(e.cq);
}

static void idle_server_sleeps_in_poll(void)
{
	struct pollfd p = {.events = POLLIN};

	on_channel();
	p.fd = channel->fd;
	hangs();
	poll(&p, 1, -1);
}

/* It has sent its question, and the answer takes its time. */
static void long_computation(void)
{
	struct ibv_cq *cq;
	void *context;

	on_channel();
	if (is_peer)
		for (volatile int i = 0;; i++)
			;
	CHECK(!kit_post(&e, IBV_WR_SEND, 1, 0, 8, &far, 0));
	CHECK(!ibv_get_cq_event(channel, &cq, &context));
	done(e.cq);
	CHECK(!ibv_req_notify_cq(e.cq, 0));
	get_event();
}

/* This process computes, with receives posted and messages in them. */
static void computes_here(void)
{
	connected(8);
	CHECK(!kit_recv(&e, 1, 0, 64));
	barrier();
	if (is_peer) {
		CHECK(!kit_post(&e, IBV_WR_SEND, 1, 0, 8, &far, 0));
		stay();
	}
	until_there(e.cq);
	hangs();
	for (volatile int i = 0;; i++)
		;
}

/* The receiver is behind, and goes on each time before long. */
static void slow_peer(void)
{
	connected(8);
	if (is_peer)
		for (;;) {
			CHECK(!kit_recv(&e, 1, 0, 64));
			done(e.cq);
			kit_nap(30);
		}
	hangs();
	for (;;) {
		CHECK(!kit_post(&e, IBV_WR_SEND, 1, 0, 8, &far, 0));
		done(e.cq);
	}
}

static void busy(void)
{
	connected(8);
	if (is_peer)
		stay();
	hangs();
	for (;;) {
		CHECK(!kit_post(&e, IBV_WR_RDMA_WRITE, 1, 0, 8, &far, 0));
		done(e.cq);
	}
}

static void async_events(void)
{
	struct ibv_async_event ev;

	open_end(8);
	hangs();
	ibv_get_async_event(ctx, &ev);
}

static void listens(void)
{
	struct rdma_event_channel *c = kit_cm_channel();
	struct rdma_cm_event *ev;
	uint16_t port = 0;

	kit_cm_listen(c, &port);
	hangs();
	rdma_get_cm_event(c, &ev);
}

static void idle_connection(void)
{
	struct rdma_event_channel *here = kit_cm_channel(), *there = kit_cm_channel();
	struct rdma_cm_event *ev;
	struct rdma_cm_id *client;
	uint16_t port = 0;

	kit_cm_listen(there, &port);
	client = kit_cm_ready(here, RDMA_PS_TCP, port);
	kit_cm_connect(client);
	kit_cm_take(there);
	kit_cm_expect(here, RDMA_CM_EVENT_ESTABLISHED, 0);
	kit_cm_expect(there, RDMA_CM_EVENT_ESTABLISHED, 0);
	hangs();
	rdma_get_cm_event(here, &ev);
}

/* The event of a completion is acknowledged by another thread, a little later. */
static void *acknowledge(void *unused)
{
	(void)unused;
	kit_nap(50);
	ibv_ack_cq_events(e.cq, 1);
	return NULL;
}

static void acknowledged_late(void)
{
	struct ibv_cq *cq;
	struct kit_end b;
	void *context;

	open_device();
	channel = ibv_create_comp_channel(ctx);
	kit_end_open_on(&e, pd, channel, 8, 8192);
	kit_end_open(&b, pd, 8, 8192);
	kit_connect(&e, &b.card);
	kit_connect(&b, &e.card);
	CHECK(!ibv_req_notify_cq(e.cq, 0));
	CHECK(!kit_post(&e, IBV_WR_RDMA_WRITE, 1, 0, 8, &b.card, 0));
	CHECK(!ibv_get_cq_event(channel, &cq, &context));
	CHECK(!ibv_destroy_qp(e.qp));
	start(acknowledge, NULL);
	CHECK(!ibv_destroy_cq(e.cq));
	stay();
}

/* A synchronous server, to which nobody connects. */
static void sync_listener(void)
{
	struct rdma_cm_id *id, *request;

	KIT_CM(rdma_create_id(NULL, &id, NULL, RDMA_PS_TCP));
	KIT_CM(rdma_bind_addr(id, kit_cm_local(0)));
	KIT_CM(rdma_listen(id, 4));
	hangs();
	rdma_get_request(id, &request);
}

static void *take_all(void *unused)
{
	struct ibv_wc wc;

	(void)unused;
	for (;;)
		if (ibv_poll_cq(e.cq, 1, &wc) == 1)
			CHECK(!kit_recv(&e, 1, 0, 64));
	return NULL;
}

/* One thread sleeps until the CQ is to be armed, another one takes what comes. */
static void two_threads(void)
{
	on_channel();
	if (is_peer)
		for (;;) {
			CHECK(!kit_post(&e, IBV_WR_SEND, 1, 0, 8, &far, 0));
			done(e.cq);
			kit_nap(20);
		}
	start(take_all, NULL);
	for (;;) {
		struct ibv_cq *cq;
		void *context;

		hangs();
		CHECK(!ibv_get_cq_event(channel, &cq, &context));
		ibv_ack_cq_events(cq, 1);
		CHECK(!ibv_req_notify_cq(cq, 0));
	}
}

/* Its events are held back, and it polls at each. */
static void moderated(void)
{
	struct ibv_modify_cq_attr a = {.attr_mask = IBV_CQ_ATTR_MODERATE,
				       .moderate = {.cq_count = 4, .cq_period = 4000}};

	on_channel();
	if (is_peer)
		for (;;) {
			CHECK(!kit_post(&e, IBV_WR_SEND, 1, 0, 8, &far, 0));
			done(e.cq);
			kit_nap(20);
		}
	CHECK(!ibv_modify_cq(e.cq, &a));
	hangs();
	for (;;) {
		struct ibv_cq *cq;
		struct ibv_wc wc;
		void *context;

		CHECK(!ibv_get_cq_event(channel, &cq, &context));
		ibv_ack_cq_events(cq, 1);
		CHECK(!ibv_req_notify_cq(cq, 0));
		while (ibv_poll_cq(cq, 1, &wc) == 1)
			CHECK(!kit_recv(&e, 1, 0, 64));
	}
}

static void idle_datagrams(void)
{
	open_device();
	kit_end_open_as(&e, pd, 8, 8192, IBV_QPT_UD);
	CHECK(!kit_recv(&e, 1, 0, 64));
	poll_for_ever(e.cq);
}

/* The receiver posts in batches, and is behind now and then. */
static void batches(void)
{
	connected(16);
	if (is_peer)
		for (;;) {
			for (int i = 0; i < 8; i++)
				CHECK(!kit_recv(&e, 1, 0, 64));
			for (int i = 0; i < 8; i++)
				done(e.cq);
			kit_nap(40);
		}
	hangs();
	for (;;) {
		for (int i = 0; i < 12; i++)
			CHECK(!kit_post(&e, IBV_WR_SEND, 1, 0, 8, &far, 0));
		for (int i = 0; i < 12; i++)
			done(e.cq);
	}
}

const struct hang rights[] = {
    {"idle-server", NULL, idle_server, NULL},
    {"idle-server-polls", NULL, idle_server_polls, NULL},
    {"idle-server-in-poll", NULL, idle_server_sleeps_in_poll, NULL},
    {"long-computation", NULL, long_computation, NULL},
    {"computes-here", NULL, computes_here, NULL},
    {"slow-peer", NULL, slow_peer, NULL},
    {"busy", NULL, busy, NULL},
    {"async-events", NULL, async_events, NULL},
    {"cm-listener", NULL, listens, NULL},
    {"cm-idle-connection", NULL, idle_connection, NULL},
    {"cm-sync-listener", NULL, sync_listener, NULL},
    {"two-threads", NULL, two_threads, NULL},
    {"moderated-cq", NULL, moderated, NULL},
    {"idle-datagrams", NULL, idle_datagrams, NULL},
    {"batches", NULL, batches, NULL},
    {"acknowledged-late", NULL, acknowledged_late, NULL},
    {0},
};
