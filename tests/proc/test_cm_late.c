/* Who comes too late, or too early: a request that is there before its listener waits for it a while
 * (docs/cm.md, "Timeouts"), and whoever is at an event channel that another thread destroys hears nothing any
 * more. */
#include <errno.h>
#include <netinet/in.h>
#include <poll.h>
#include <pthread.h>

#include "ep.h"

enum { GRACE_MS = 100, SOON_MS = 60, LATE_MS = 200, ATTEMPTS = 200 };

static struct rdma_event_channel *channel;

static struct sockaddr *local(uint16_t port)
{
	static _Thread_local struct sockaddr_in a;

	a = (struct sockaddr_in){
	    .sin_family = AF_INET, .sin_port = htobe16(port), .sin_addr.s_addr = htobe32(INADDR_LOOPBACK)};
	return (struct sockaddr *)&a;
}

static struct rdma_cm_id *id_in(struct rdma_event_channel *c, enum rdma_port_space ps)
{
	struct rdma_cm_id *id;

	CHECK(!rdma_create_id(c, &id, NULL, ps), "%m");
	return id;
}

static struct rdma_cm_id *id_of(struct rdma_event_channel *c)
{
	return id_in(c, RDMA_PS_TCP);
}

/* Its event, which is acknowledged. */
static enum rdma_cm_event_type next(struct rdma_event_channel *c, int *status, struct rdma_cm_id **id)
{
	struct rdma_cm_event *e;
	enum rdma_cm_event_type type;

	CHECK(!rdma_get_cm_event(c, &e), "%m");
	type = e->event;
	*status = e->status;
	*id = e->id;
	CHECK(!rdma_ack_cm_event(e));
	return type;
}

static void expect(enum rdma_cm_event_type type)
{
	struct rdma_cm_id *id;
	int status;

	CHECK(next(channel, &status, &id) == type && !status, "not %s, or status %d", rdma_event_str(type),
	      status);
}

/* With nobody at that port yet. */
static struct rdma_cm_id *ask(enum rdma_port_space ps, uint16_t port, const char *saying)
{
	struct rdma_conn_param param = {.retry_count = 1,
					.qp_num = 0x123,
					.private_data = saying,
					.private_data_len = (uint8_t)strlen(saying)};
	struct rdma_cm_id *id = id_in(channel, ps);

	CHECK(!rdma_resolve_addr(id, NULL, local(port), 1000), "%m");
	expect(RDMA_CM_EVENT_ADDR_RESOLVED);
	CHECK(!rdma_resolve_route(id, 1000), "%m");
	expect(RDMA_CM_EVENT_ROUTE_RESOLVED);
	CHECK(!rdma_connect(id, &param), "%m");
	return id;
}

static struct rdma_cm_id *connect_to(uint16_t port)
{
	return ask(RDMA_PS_TCP, port, "");
}

/* One that nobody has. */
static uint16_t free_port(void)
{
	struct rdma_cm_id *id = id_of(channel);
	uint16_t port;

	CHECK(!rdma_bind_addr(id, local(0)), "%m");
	port = be16toh(rdma_get_src_port(id));
	CHECK(!rdma_destroy_id(id));
	return port;
}

static void begin(void)
{
	channel = rdma_create_event_channel();
	CHECK(channel, "%m");
}

/* Of a process that listens when it is told to, and rejects what comes. */
static _Atomic int *told, *listens;

static void listen_when_told(uint16_t port)
{
	struct rdma_cm_id *id, *request;
	int status;

	begin();
	id = id_of(channel);
	CHECK(!rdma_bind_addr(id, local(port)), "%m");
	kit_reach(told, 1);
	CHECK(!rdma_listen(id, 4), "%m");
	atomic_store(listens, 1);
	CHECK(next(channel, &status, &request) == RDMA_CM_EVENT_CONNECT_REQUEST);
	CHECK(!rdma_reject(request, NULL, 0), "%m");
	CHECK(!rdma_destroy_id(request) && !rdma_destroy_id(id));
}

/* The server's machine may be busy: only where it was in time the request must have waited for it. */
static bool in_time(void)
{
	uint16_t port = free_port();
	pid_t pid;
	struct rdma_cm_id *id, *same;
	double asked, took;
	int status;

	atomic_store(told, 0);
	atomic_store(listens, 0);
	pid = kit_fork();
	if (!pid) {
		listen_when_told(port);
		_exit(0); /* what a child inherits is its parent's, and no leak */
	}
	asked = kit_now();
	id = connect_to(port);
	atomic_store(told, 1);
	kit_reach(listens, 1);
	took = kit_now() - asked;
	CHECK(next(channel, &status, &same) == RDMA_CM_EVENT_REJECTED && same == id);
	CHECK(!rdma_destroy_id(id));
	if (took * 1000 < SOON_MS)
		CHECK(status == 28, "status %d, though it listened after %.0f ms", status, took * 1000);
	if (status != 28) {
		kill(pid, SIGKILL);
		kit_reap(pid);
		return false;
	}
	CHECK(!kit_reap(pid));
	return took * 1000 < SOON_MS;
}

static void a_request_waits_for_its_listener(void)
{
	told = kit_shared(sizeof *told);
	listens = kit_shared(sizeof *listens);
	begin();
	for (int i = 0; i < ATTEMPTS; i++)
		if (in_time())
			return;
	CHECK(false, "this machine is too busy");
}

/* The same within one process. */
static void a_listener_of_its_own(void)
{
	struct rdma_cm_id *id, *listener, *same;
	double asked, took;
	uint16_t port;
	int status;

	begin();
	for (int i = 0; i < ATTEMPTS; i++) {
		port = free_port();
		asked = kit_now();
		id = connect_to(port);
		listener = id_of(channel);
		CHECK(!rdma_bind_addr(listener, local(port)) && !rdma_listen(listener, 4), "%m");
		took = kit_now() - asked;
		if (next(channel, &status, &same) == RDMA_CM_EVENT_CONNECT_REQUEST)
			return;
		CHECK(took * 1000 >= SOON_MS, "refused, though it listened after %.0f ms", took * 1000);
		CHECK(!rdma_destroy_id(id) && !rdma_destroy_id(listener));
	}
	CHECK(false, "this machine is too busy");
}

/* One that is called off before its listener comes is not heard of: the next one is, which waited behind it.
 */
static void called_off(enum rdma_port_space ps)
{
	struct rdma_cm_id *id, *listener;
	struct rdma_cm_event *e;
	bool came = false;
	uint16_t port;
	double asked;

	for (int i = 0; i < ATTEMPTS && !came; i++) {
		port = free_port();
		asked = kit_now();
		CHECK(!rdma_destroy_id(ask(ps, port, "gone")), "%m");
		id = ask(ps, port, "here");
		listener = id_in(channel, ps);
		CHECK(!rdma_bind_addr(listener, local(port)), "%m");
		CHECK(!rdma_listen(listener, 4), "%m");
		asked = kit_now() - asked;
		CHECK(!rdma_get_cm_event(channel, &e), "%m");
		came = e->event == RDMA_CM_EVENT_CONNECT_REQUEST;
		if (came) {
			const struct rdma_conn_param *p = &e->param.conn;

			/* both kinds of parameters begin with the data */
			CHECK(p->private_data_len >= 4 && !memcmp(p->private_data, "here", 4));
			CHECK(!rdma_destroy_id(e->id), "%m");
		} else {
			CHECK(asked * 1000 >= SOON_MS, "refused, though it listened after %.0f ms",
			      asked * 1000);
		}
		CHECK(!rdma_ack_cm_event(e), "%m");
		CHECK(!rdma_destroy_id(id), "%m");
		CHECK(!rdma_destroy_id(listener), "%m");
	}
	CHECK(came, "this machine is too busy");
}

static void a_request_that_was_called_off(void)
{
	begin();
	called_off(RDMA_PS_TCP);
	called_off(RDMA_PS_UDP);
	rdma_destroy_event_channel(channel);
}

static void nobody_comes(void)
{
	double asked;
	struct rdma_cm_id *id, *same;
	int status;

	begin();
	asked = kit_now();
	id = connect_to(free_port());
	CHECK(next(channel, &status, &same) == RDMA_CM_EVENT_REJECTED && status == 8, "status %d", status);
	CHECK(kit_now() - asked >= GRACE_MS / 1000.0);
	CHECK(!rdma_destroy_id(id));
	rdma_destroy_event_channel(channel);
}

static _Atomic int returned;

static void *wait_at(void *c)
{
	struct rdma_cm_event *e;

	(void)rdma_get_cm_event(c, &e);
	returned = 1;
	return NULL;
}

enum { REQUESTS = 20 };

/* The far end: its messages wake whoever waits. */
static void connect_when_told(uint16_t port)
{
	struct rdma_cm_id *id, *same;
	int status;

	kit_reach(told, 1);
	begin();
	for (int i = 0; i < REQUESTS; i++) {
		id = connect_to(port);
		CHECK(next(channel, &status, &same) == RDMA_CM_EVENT_REJECTED && status == 28);
		CHECK(!rdma_destroy_id(id));
	}
}

static uint16_t listen_on(struct rdma_event_channel *c, struct rdma_cm_id **id, uint16_t port)
{
	*id = id_of(c);
	CHECK(!rdma_bind_addr(*id, local(port)) && !rdma_listen(*id, 4), "%m");
	return be16toh(rdma_get_src_port(*id));
}

/* A thread waits, as on a kernel's, for good; a channel that is made meanwhile is another one, though memory
 * and descriptor may be the same; and whoever comes later is told, but late. */
static void a_channel_that_is_destroyed(void)
{
	struct rdma_event_channel *gone, *other;
	struct rdma_cm_id *listener, *request;
	struct rdma_cm_event *e;
	pthread_t thread;
	uint16_t port;
	double came;
	int status;
	pid_t pid;

	told = kit_shared(sizeof *told);
	begin();
	port = free_port();
	pid = kit_fork();
	if (!pid) {
		connect_when_told(port);
		_exit(0);
	}
	gone = rdma_create_event_channel();
	CHECK(gone && !pthread_create(&thread, NULL, wait_at, gone));
	kit_until_blocked();
	rdma_destroy_event_channel(gone);
	other = rdma_create_event_channel();
	CHECK(other);
	listen_on(other, &listener, port);
	atomic_store(told, 1);
	for (int i = 0; i < REQUESTS; i++) {
		kit_nap(5); /* so that the other thread is the only one that could be woken */
		CHECK(next(other, &status, &request) == RDMA_CM_EVENT_CONNECT_REQUEST);
		CHECK(!rdma_reject(request, NULL, 0) && !rdma_destroy_id(request), "%m");
	}
	CHECK(!returned && !kit_reap(pid));
	CHECK(!rdma_destroy_id(listener));
	rdma_destroy_event_channel(other);
	came = kit_now();
	errno = 0;
	CHECK(rdma_get_cm_event(other, &e) == -1 && errno == EBADF, "%m");
	CHECK(kit_now() - came >= LATE_MS / 1000.0);
}

int main(int argc, char **argv)
{
#define CASE(function)                             \
	{                                          \
		.name = #function, .run = function \
	}
	static const struct kit_case cases[] = {
	    CASE(a_request_waits_for_its_listener), CASE(a_listener_of_its_own),
	    CASE(a_request_that_was_called_off), CASE(nobody_comes), CASE(a_channel_that_is_destroyed)};

	KIT_CASES(cases, 60);
	return 0;
}
