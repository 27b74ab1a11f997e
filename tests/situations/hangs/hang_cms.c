/* Identifiers of rdma_cm that wait. */
#include "cm.h"
#include "hang.h"

static struct rdma_event_channel *here, *there;
static struct rdma_cm_id *listener, *client, *server;
static uint16_t port;

static void *get_event(void *channel)
{
	struct rdma_cm_event *ev;

	hangs();
	rdma_get_cm_event(channel, &ev);
	CHECK(0, "there was an event");
	return NULL;
}

static void sleep_on(struct rdma_event_channel *c)
{
	get_event(c);
}

static void listens(enum rdma_port_space ps)
{
	here = kit_cm_channel();
	there = kit_cm_channel();
	port = 0;
	listener = kit_cm_listen_at(there, ps, &port, 4);
}

static void *answer(void *unused)
{
	(void)unused;
	server = kit_cm_take(there);
	kit_cm_expect(there, RDMA_CM_EVENT_ESTABLISHED, 0);
	return NULL;
}

static void connected_ids(void)
{
	pthread_t t;

	listens(RDMA_PS_TCP);
	client = kit_cm_ready(here, RDMA_PS_TCP, port);
	CHECK(!pthread_create(&t, NULL, answer, NULL));
	kit_cm_connect(client);
	kit_cm_expect(here, RDMA_CM_EVENT_ESTABLISHED, 0);
	CHECK(!pthread_join(t, NULL));
}

/* The server has the event, and does nothing with it. */
static void not_accepted(void)
{
	listens(RDMA_PS_TCP);
	client = kit_cm_ready(here, RDMA_PS_TCP, port);
	kit_cm_connect(client);
	kit_cm_expect(there, RDMA_CM_EVENT_CONNECT_REQUEST, 0);
	KNOWS("its connection request (REQ) was sent 1 of at most");
	KNOWS("and no REP has come: PID %d (situations-hang) has got the event, and has not called "
	      "rdma_accept() or "
	      "rdma_reject()",
	      (int)getpid());
	KNOWS("to do: in PID %d (situations-hang): get the event with rdma_get_cm_event()", (int)getpid());
	KNOWS("a client waits for rdma_accept() or rdma_reject()");
	sleep_on(here);
}

/* The server's program looks at no event at all. */
static void not_got(void)
{
	listens(RDMA_PS_TCP);
	client = kit_cm_ready(here, RDMA_PS_TCP, port);
	kit_cm_connect(client);
	CHECK(kit_cm_comes(there, 20));
	KNOWS("and no REP has come: PID %d (situations-hang) has not got its event with rdma_get_cm_event()",
	      (int)getpid());
	sleep_on(here);
}

/* The server has a process of its own, which is stopped. */
static void server_stopped(void)
{
	two();
	if (is_peer)
		listens(RDMA_PS_TCP);
	exchange(&port, is_peer ? &(uint16_t){0} : &port, sizeof port);
	if (is_peer) {
		kit_cm_expect(there, RDMA_CM_EVENT_CONNECT_REQUEST, 0);
		barrier();
		stay();
	}
	here = kit_cm_channel();
	client = kit_cm_ready(here, RDMA_PS_TCP, port);
	kit_cm_connect(client);
	barrier();
	kit_stop(peer_pid);
	KNOWS("its connection request (REQ) was sent ");
	KNOWS("and no REP has come: PID %d (situations-hang) is stopped, by a signal or a debugger",
	      (int)peer_pid);
	KNOWS("to do: let PID %d (situations-hang) run again: kill -CONT %d", (int)peer_pid, (int)peer_pid);
	sleep_on(here);
}

/* The same as the server sees it. */
static void must_accept(void)
{
	listens(RDMA_PS_TCP);
	client = kit_cm_ready(here, RDMA_PS_TCP, port);
	kit_cm_connect(client);
	kit_cm_expect(there, RDMA_CM_EVENT_CONNECT_REQUEST, 0);
	KNOWS("a client waits for rdma_accept() or rdma_reject()");
	sleep_on(there);
}

static void resolved(void)
{
	listens(RDMA_PS_TCP);
	client = kit_cm_bare(here, RDMA_PS_TCP, port);
	KNOWS("rdma_cm_id 0x");
	KNOWS("its route is resolved: the program has to call rdma_connect()");
	sleep_on(here);
}

/* The program waits on one channel, and the events are in the other. */
static void events_unread(void)
{
	listens(RDMA_PS_TCP);
	client = kit_cm_ready(here, RDMA_PS_TCP, port);
	kit_cm_connect(client);
	CHECK(kit_cm_comes(there, 20));
	KNOWS("1 event of the id lies in its event channel, and the program has not got it: CONNECT_REQUEST");
	KNOWS("call rdma_get_cm_event() on the channel of the id");
	sleep_on(here);
}

static void unacknowledged(void)
{
	struct rdma_cm_event *ev;

	listens(RDMA_PS_TCP);
	client = kit_cm_id(here, RDMA_PS_TCP);
	KIT_CM(rdma_resolve_addr(client, NULL, kit_cm_local(port), 2000));
	KIT_CM(rdma_get_cm_event(here, &ev));
	KNOWS("these events of the id are not acknowledged: ADDR_RESOLVED");
	KNOWS("call rdma_ack_cm_event()");
	hangs();
	rdma_destroy_id(client);
}

/* Each end waits for the other to disconnect. */
static void nobody_disconnects(void)
{
	connected_ids();
	KNOWS("it is connected, and no event comes as long as neither end calls rdma_disconnect()");
	sleep_on(here);
}

/* The other end has disconnected, and this one does not see it. */
static void must_disconnect(void)
{
	connected_ids();
	while (!server)
		kit_nap(1);
	KIT_CM(rdma_disconnect(client));
	KNOWS("1 event of the id lies in its event channel, and the program has not got it: DISCONNECTED");
	sleep_on(kit_cm_channel());
}

static void no_qp(void)
{
	struct rdma_conn_param p = {.responder_resources = 1, .initiator_depth = 1};

	listens(RDMA_PS_TCP);
	client = kit_cm_ready(here, RDMA_PS_TCP, port);
	kit_cm_connect(client);
	server = kit_cm_expect(there, RDMA_CM_EVENT_CONNECT_REQUEST, 0).id;
	KIT_CM(rdma_accept(server, &p));
	kit_cm_expect(here, RDMA_CM_EVENT_ESTABLISHED, 0);
	kit_cm_expect(there, RDMA_CM_EVENT_ESTABLISHED, 0);
	KNOWS("it is connected, and has no queue pair");
	KNOWS("create a queue pair with rdma_create_qp() before rdma_accept()");
	sleep_on(there);
}

static void other_space(void)
{
	listens(RDMA_PS_UDP);
	client = kit_cm_ready(here, RDMA_PS_TCP, port);
	kit_cm_connect(client);
	kit_cm_expect(here, RDMA_CM_EVENT_REJECTED, 8);
	KNOWS("asks for port %u in port space RDMA_PS_TCP, and this listener is in port space RDMA_PS_UDP",
	      port);
	KNOWS("pass the same port space to rdma_create_id() at both ends");
	sleep_on(there);
}

static void no_request(void)
{
	listens(RDMA_PS_TCP);
	KNOWS("no request has come: 0 of at most 4 pending. This is normal for an idle server");
	sleep_on(there);
}

/* ---- synchronous ids, whose calls block ---- */

/* A synchronous id whose route is resolved, with a queue pair. */
static struct rdma_cm_id *sync_client(void)
{
	struct rdma_cm_id *id;

	KIT_CM(rdma_create_id(NULL, &id, NULL, RDMA_PS_TCP));
	KIT_CM(rdma_resolve_addr(id, NULL, kit_cm_local(port), 2000));
	KIT_CM(rdma_resolve_route(id, 2000));
	kit_cm_qp(id);
	return id;
}

/* The other process listens, asynchronously; the client is synchronous. */
static void sync_ends(void)
{
	uint16_t unused;

	two();
	if (is_peer)
		listens(RDMA_PS_TCP);
	exchange(&port, is_peer ? &unused : &port, sizeof port);
	if (!is_peer)
		client = sync_client();
}

static void sync_connect(void)
{
	struct rdma_conn_param p = {.responder_resources = 1, .initiator_depth = 1};

	sync_ends();
	if (is_peer)
		stay();
	KNOWS("its connection request (REQ) was sent ");
	KNOWS("and no REP has come: PID %d (situations-hang) has not got its event", (int)peer_pid);
	KNOWS("to do: in PID %d (situations-hang): get the event with rdma_get_cm_event()", (int)peer_pid);
	hangs();
	rdma_connect(client, &p);
}

/* The client of a synchronous server stops when it has sent its request. */
static void sync_accept(void)
{
	struct rdma_conn_param p = {.responder_resources = 1, .initiator_depth = 1};
	uint16_t unused = 0;

	two();
	if (is_peer) {
		exchange(&unused, &port, sizeof port);
		client = kit_cm_ready(kit_cm_channel(), RDMA_PS_TCP, port);
		kit_cm_connect(client);
		barrier();
		stay();
	}
	KIT_CM(rdma_create_id(NULL, &listener, NULL, RDMA_PS_TCP));
	KIT_CM(rdma_bind_addr(listener, kit_cm_local(0)));
	KIT_CM(rdma_listen(listener, 4));
	port = ntohs(rdma_get_src_port(listener));
	exchange(&port, &unused, sizeof port);
	KIT_CM(rdma_get_request(listener, &server));
	kit_cm_qp(server);
	barrier();
	kit_stop(peer_pid);
	KNOWS("its acceptance (REP) was sent ");
	KNOWS("let PID %d (situations-hang) run again: kill -CONT %d", (int)peer_pid, (int)peer_pid);
	hangs();
	rdma_accept(server, &p);
}

static void sync_disconnect(void)
{
	struct rdma_conn_param p = {.responder_resources = 1, .initiator_depth = 1};

	sync_ends();
	if (is_peer) {
		kit_cm_take(there);
		kit_cm_expect(there, RDMA_CM_EVENT_ESTABLISHED, 0);
		barrier();
		stay();
	}
	KIT_CM(rdma_connect(client, &p));
	barrier();
	kit_stop(peer_pid);
	KNOWS("its disconnect request (DREQ) was sent ");
	KNOWS("let PID %d (situations-hang) run again", (int)peer_pid);
	hangs();
	rdma_disconnect(client);
}

const struct hang cms[] = {
    {"cm-not-accepted", "cm-answer", not_accepted, NULL},
    {"cm-not-got", "cm-answer", not_got, NULL},
    {"cm-server-stopped", "cm-answer", server_stopped, NULL},
    {"cm-sync-connect", "cm-answer", sync_connect, "rdma_connect() has waited for "},
    {"cm-sync-accept", "cm-answer", sync_accept, "rdma_accept() has waited for "},
    {"cm-sync-disconnect", "cm-answer", sync_disconnect, "rdma_disconnect() has waited for "},
    {"cm-must-accept", "cm-step", must_accept, NULL},
    {"cm-resolved", "cm-step", resolved, NULL},
    {"cm-events-unread", "cm-events-unread", events_unread, NULL},
    {"cm-disconnect-unread", "cm-events-unread", must_disconnect, NULL},
    {"cm-unacknowledged", "cm-events-unacknowledged", unacknowledged, "is waiting for rdma_ack_cm_event()"},
    {"cm-nobody-disconnects", "cm-connected", nobody_disconnects, NULL},
    {"cm-no-qp", "cm-no-qp", no_qp, NULL},
    {"cm-other-space", "cm-other-space", other_space, NULL},
    {"cm-no-request", "cm-listens", no_request, NULL},
    {0},
};
