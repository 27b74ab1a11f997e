/* Management datagrams go to the process that they are meant for: not to others that this one has contact
 * with, and not to who has come to have a number of one that is gone.  What is lost is said by its name, and
 * as no message of a program's. */
#include "cm.h"
#include "obj/context.h"
#include "hca/hca.h"
#include "iba/shown_id.h"

enum { ROUNDS = 100 };

static struct board {
	_Atomic int met, over;
	_Atomic int clean;
	uint16_t ports[2];
	struct kit_card plain; /* of the process without rdma_cm */
} * board;

static void say_clean(void)
{
	KIT_LOG_SAYS_NOT("0x000001");
	KIT_LOG_SAYS_NOT("management datagram");
	atomic_fetch_add(&board->clean, 1);
}

/* Has a queue pair for datagrams, and no rdma_cm. */
static void plain(void)
{
	struct ibv_context *ctx;
	struct kit_end e;
	struct ibv_wc wc;

	kit_log_begin("debug");
	ctx = kit_open();
	kit_end_open_as(&e, ibv_alloc_pd(ctx), 4, 4096, IBV_QPT_UD);
	CHECK(!kit_recv(&e, 1, 0, 128));
	board->plain = e.card;
	atomic_fetch_add(&board->met, 1);
	wc = kit_wait(&e, 30); /* contact is there */
	CHECK_EQ(wc.status, IBV_WC_SUCCESS);
	kit_until(&board->over, 1);
	for (int i = 0; i < 100; i++) /* what there is is taken in */
		CHECK(!ibv_poll_cq(e.cq, 1, &wc));
	say_clean();
}

static uint64_t unknown(struct rdma_cm_id *id)
{
	struct vb_shown_ids s = vb_adapter_ids(vb_context(id->verbs)->adapter);

	return atomic_load(&s.marks->counts[VB_SHOWN_UNKNOWN]);
}

/* Rejects one, so that there is contact, and then only listens. */
static void listener(void)
{
	struct rdma_event_channel *c;
	struct rdma_cm_id *id, *request;

	kit_log_begin("debug");
	c = kit_cm_channel();
	id = kit_cm_listen(c, &board->ports[0]);
	atomic_fetch_add(&board->met, 1);
	request = kit_cm_expect(c, RDMA_CM_EVENT_CONNECT_REQUEST, 0).id;
	KIT_CM(rdma_reject(request, NULL, 0));
	kit_cm_expect(c, RDMA_CM_EVENT_CONNECT_REQUEST, 0); /* what came before this was taken in */
	CHECK(!unknown(id), "%llu messages for comm IDs that it never had", (unsigned long long)unknown(id));
	KIT_CM(rdma_destroy_id(request));
	say_clean();
}

/* Hears of requests, and of their ends; answers none. */
static void server(void)
{
	struct rdma_event_channel *c = kit_cm_channel();

	kit_cm_listen(c, &board->ports[1]);
	atomic_fetch_add(&board->met, 1);
	for (int i = 0; i < ROUNDS; i++) {
		struct rdma_cm_id *id = kit_cm_expect(c, RDMA_CM_EVENT_CONNECT_REQUEST, 0).id;

		KIT_CM(rdma_destroy_id(id));
	}
	kit_until(&board->over, 1);
	atomic_fetch_add(&board->clean, 1);
}

static pid_t begin(void (*run)(void), int met)
{
	pid_t pid = kit_fork();

	if (pid) {
		kit_until(&board->met, met);
		return pid;
	}
	run();
	_exit(0);
}

static void a_request_is_called_off(void)
{
	pid_t pids[3] = {begin(plain, 1), begin(listener, 2), begin(server, 3)};
	struct rdma_event_channel *c = kit_cm_channel();
	struct rdma_cm_id *id = kit_cm_ready(c, RDMA_PS_TCP, board->ports[0]);
	struct kit_end e;

	kit_cm_connect(id);
	kit_cm_expect(c, RDMA_CM_EVENT_REJECTED, 28);
	kit_end_open_as(&e, id->pd, 4, 4096, IBV_QPT_UD);
	CHECK(!kit_datagram(&e, kit_ah(id->pd, &board->plain), board->plain.qpn, 1, 0, 8));
	CHECK_EQ(kit_wait(&e, 20).status, IBV_WC_SUCCESS);
	for (int i = 0; i < ROUNDS; i++) {
		struct rdma_cm_id *off = kit_cm_ready(c, RDMA_PS_TCP, board->ports[1]);

		kit_cm_connect(off);
		kit_cm_end(off); /* says REJ (4), to whom it asked and to nobody else */
	}
	kit_cm_connect(kit_cm_ready(c, RDMA_PS_TCP, board->ports[0]));
	atomic_store(&board->over, 1);
	for (int i = 0; i < 3; i++)
		CHECK_EQ(kit_reap(pids[i]), 0);
	CHECK_EQ(atomic_load(&board->clean), 3);
}

/* A server whose client has died ends the connection, as it should: nothing of that is a user's concern. */
static void the_far_end_has_died(void)
{
	struct rdma_event_channel *c;
	struct rdma_cm_id *id;
	uint16_t port = 0;
	pid_t pid;

	kit_log_begin("info");
	c = kit_cm_channel();
	kit_cm_listen(c, &port);
	pid = kit_fork();
	if (!pid) {
		struct rdma_event_channel *there = kit_cm_channel();

		kit_cm_connect(kit_cm_ready(there, RDMA_PS_TCP, port));
		kit_cm_expect(there, RDMA_CM_EVENT_ESTABLISHED, 0);
		_exit(0);
	}
	id = kit_cm_take(c);
	kit_cm_expect(c, RDMA_CM_EVENT_ESTABLISHED, 0);
	CHECK_EQ(kit_reap(pid), 0);
	kit_cm_expect(c, RDMA_CM_EVENT_DISCONNECTED, 0);
	KIT_CM(rdma_disconnect(id));
	KIT_LOG_SAYS("rdma_cm: a DREP to process %d was discarded: that process ended", (int)pid);
	KIT_LOG_SAYS_NOT("0x000001");
	KIT_LOG_SAYS_NOT("messages are discarded");
	kit_cm_end(id);
}

int main(int argc, char **argv)
{
	static const struct kit_case cases[] = {
	    {.name = "a request is called off", .run = a_request_is_called_off},
	    {.name = "the far end has died", .run = the_far_end_has_died}};

	kit_alone();
	board = kit_shared(sizeof *board);
	KIT_CASES(cases, 60);
	return 0;
}
