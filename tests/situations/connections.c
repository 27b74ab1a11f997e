/* N3: connections by rdma_cm that do not come about.  The calls are those behind librdmacm's (cm/api.h),
 * which say the same: this program has the library linked in. */
#include <arpa/inet.h>
#include <pthread.h>

#include "cm/api.h"
#include "situation.h"

/* Each call of librdmacm ends so; here it is called below that. */
#define TOLD(...) (vb_cm_log_tell(), SAID(__VA_ARGS__))

static struct vb_cm_channel *channel;

static struct sockaddr *at(uint16_t port)
{
	static struct sockaddr_in a;

	a = (struct sockaddr_in){.sin_family = AF_INET, .sin_port = htons(port)};
	a.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
	return (struct sockaddr *)&a;
}

static struct vb_cm_id *new_id(void)
{
	static char user;
	struct vb_cm_id *id;
	int fd;

	if (!channel)
		CHECK(!vb_cm_channel_open(&channel, &fd));
	CHECK(!vb_cm_id_new(&id, channel, &user, RDMA_PS_TCP, IBV_QPT_RC));
	return id;
}

static struct vb_cm_news next(enum rdma_cm_event_type event)
{
	struct vb_cm_news n;

	CHECK(!vb_cm_channel_get(channel, &n));
	CHECK(n.event == event, "event %d", n.event);
	vb_cm_news_ack(n.id, n.event);
	return n;
}

/* A port that no other process takes meanwhile. */
static uint16_t bound(struct vb_cm_id *id)
{
	struct rdma_addr addr;
	int n;

	CHECK(!vb_cm_id_bind(id, at(0)) && !vb_cm_id_route(id, &addr, NULL, &n));
	return ntohs(addr.src_sin.sin_port);
}

static struct vb_cm_id *resolved(uint16_t port)
{
	struct vb_cm_id *id = new_id();

	CHECK(!vb_cm_id_resolve_addr(id, NULL, at(port), 1000));
	next(RDMA_CM_EVENT_ADDR_RESOLVED);
	CHECK(!vb_cm_id_resolve_route(id, 1000));
	next(RDMA_CM_EVENT_ROUTE_RESOLVED);
	return id;
}

/* The client is started before its server: REJECTED, and a number. */
static void nobody_listens(void)
{
	uint16_t port = bound(new_id());
	const struct vb_cm_param p = {.qp_num = 1};

	CHECK(!vb_cm_id_connect(resolved(port), &p));
	CHECK(next(RDMA_CM_EVENT_REJECTED).status == 8);
	TOLD("rdma_connect to 127.0.0.1 port %u: REJECTED, status 8: invalid service ID: no listener on this "
	     "address and port",
	     port);
}

/* A listener of that port space at a port, 0: at any, which is returned. */
static uint16_t listener(enum rdma_port_space ps, uint16_t port)
{
	static char user;
	struct rdma_addr addr;
	struct vb_cm_id *id = new_id(); /* the channel is there */
	int n;

	CHECK(!vb_cm_id_new(&id, channel, &user, ps, ps == RDMA_PS_TCP ? IBV_QPT_RC : IBV_QPT_UD));
	CHECK(!vb_cm_id_bind(id, at(port)) && !vb_cm_id_route(id, &addr, NULL, &n));
	CHECK(!vb_cm_id_listen(id, 1));
	return ntohs(addr.src_sin.sin_port);
}

/* Client and server do not agree about what kind of port it is. */
static void another_space(void)
{
	const struct vb_cm_param p = {.qp_num = 1};
	uint16_t port = listener(RDMA_PS_UDP, 0);

	CHECK(!vb_cm_id_connect(resolved(port), &p));
	CHECK(next(RDMA_CM_EVENT_REJECTED).status == 8);
	TOLD("rdma_connect to 127.0.0.1 port %u: REJECTED, status 8: invalid service ID: no listener on this "
	     "address and port; port %u has a listener in port space RDMA_PS_UDP, and this id uses "
	     "RDMA_PS_TCP; pass the same port space to rdma_create_id() at both ends",
	     port, port);
}

/* One of them has forgotten htons(). */
static void swapped(void)
{
	const struct vb_cm_param p = {.qp_num = 1};
	uint16_t port;

	do
		port = htons(listener(RDMA_PS_TCP, 0));
	while (port == htons(port));
	CHECK(!vb_cm_id_connect(resolved(port), &p));
	CHECK(next(RDMA_CM_EVENT_REJECTED).status == 8);
	TOLD("rdma_connect to 127.0.0.1 port %u: REJECTED, status 8: invalid service ID: no listener on this "
	     "address and port; port %u has a listener, and %u is %u with its two bytes swapped: one end "
	     "does not call htons() for its port",
	     port, htons(port), htons(port), port);
}

/* The connection stands, and nothing that is sent arrives. */
static void no_queue_pair_there(void)
{
	const struct vb_cm_param p = {.qp_num = 1}, none = {0};
	uint16_t port = listener(RDMA_PS_TCP, 0);
	struct vb_cm_id *request;
	static char user;

	CHECK(!vb_cm_id_connect(resolved(port), &p));
	request = next(RDMA_CM_EVENT_CONNECT_REQUEST).fresh;
	CHECK(!vb_cm_id_accept(request, &none, &user));
	next(RDMA_CM_EVENT_CONNECT_RESPONSE);
	TOLD("this process accepted without a queue pair, so messages of the peer are lost: call "
	     "rdma_create_qp() before rdma_accept(), or set rdma_conn_param.qp_num");
	TOLD("rdma_connect to 127.0.0.1 port %u: the peer accepted without a queue pair, so it receives no "
	     "messages: it must call rdma_create_qp() before rdma_accept(), or set "
	     "rdma_conn_param.qp_num",
	     port);
}

/* The server cannot be started again: who has its port? */
static void port_in_use(void)
{
	uint16_t port;
	int fds[2];
	pid_t pid;

	CHECK(!pipe2(fds, O_CLOEXEC));
	pid = kit_fork();
	if (!pid) {
		port = bound(new_id());
		CHECK(write(fds[1], &port, sizeof port) == sizeof port);
		pause();
	}
	CHECK(!close(fds[1]));
	CHECK(read(fds[0], &port, sizeof port) == sizeof port);
	CHECK(vb_cm_id_bind(new_id(), at(port)) == EADDRINUSE);
	TOLD("rdma_bind_addr: port %u is taken at this address by process %d (EADDRINUSE)", port, (int)pid);
	CHECK(!kill(pid, SIGKILL));
}

/* rdma_connect fails with EINVAL: the program says more than there is room for. */
static void too_much_to_say(void)
{
	static const char data[57];
	struct vb_cm_param p = {.qp_num = 1, .private_data = data, .private_len = sizeof data};

	CHECK(vb_cm_id_connect(resolved(7471), &p) == EINVAL);
	TOLD("rdma_connect: 57 bytes of private data exceed the limit of a REQ message, 56 bytes (EINVAL)");
}

/* The same, since a step was left out. */
static void step_left_out(void)
{
	const struct vb_cm_param p = {.qp_num = 1};
	struct vb_cm_id *id = new_id();

	bound(id);
	CHECK(vb_cm_id_connect(id, &p) == EINVAL);
	TOLD(
	    "rdma_connect: the id's state \"bound\" does not allow this call: call rdma_resolve_addr(), then "
	    "rdma_resolve_route()");
}

/* rdma_accept fails: it was given the listener, and not the id of the request. */
static void listener_accepted(void)
{
	const struct vb_cm_param p = {.qp_num = 1};
	struct vb_cm_id *id = new_id();

	bound(id);
	CHECK_EQ(vb_cm_id_listen(id, 1), 0);
	CHECK_EQ(vb_cm_id_accept(id, &p, id), EINVAL);
	TOLD("rdma_accept: the id's state \"listening\" does not allow this call: this id is the listener; "
	     "pass event->id of RDMA_CM_EVENT_CONNECT_REQUEST");
}

/* A server is bound to an address that another machine, or container, has. */
static void source_of_another_machine(void)
{
	struct sockaddr_in s = {.sin_family = AF_INET, .sin_port = htons(7471)};

	CHECK_EQ(inet_pton(AF_INET, "198.51.100.7", &s.sin_addr), 1);
	CHECK_EQ(vb_cm_id_bind(new_id(), (struct sockaddr *)&s), EADDRNOTAVAIL);
	TOLD("rdma_bind_addr: the source address 198.51.100.7 port 7471 is not an address of this network "
	     "namespace; bind to one of its addresses. A container has its own network namespace unless it "
	     "shares one (docker and podman: --network host or --network container:NAME)");
}

/* The destination is another machine's. */
static void another_machine(void)
{
	struct sockaddr_in a = {.sin_family = AF_INET, .sin_port = htons(7471)};

	CHECK(inet_pton(AF_INET, "198.51.100.7", &a.sin_addr) == 1);
	CHECK(!vb_cm_id_resolve_addr(new_id(), NULL, (struct sockaddr *)&a, 1000));
	CHECK(next(RDMA_CM_EVENT_ADDR_ERROR).status == -EHOSTUNREACH);
	TOLD("rdma_resolve_addr of 198.51.100.7 port 7471: ADDR_ERROR, EHOSTUNREACH: it is not an address of "
	     "this network namespace");
}

static void *end(void *id)
{
	vb_cm_id_end(id);
	return NULL;
}

/* rdma_destroy_id hangs. */
static void not_acknowledged(void)
{
	struct vb_cm_id *id = new_id();
	struct vb_cm_news n;
	pthread_t t;

	CHECK(!vb_cm_id_resolve_addr(id, NULL, at(7471), 1000) && !vb_cm_channel_get(channel, &n));
	CHECK(!pthread_create(&t, NULL, end, id));
	TOLD("rdma_destroy_id() or rdma_migrate_id() is waiting for rdma_ack_cm_event(): the program has not "
	     "acknowledged these events of the id: ADDR_RESOLVED");
	vb_cm_news_ack(n.id, n.event);
	CHECK(!pthread_join(t, NULL));
}

const struct situation connections[] = {
    {"N3-nobody", nobody_listens, NULL},
    {"N3-space", another_space, NULL},
    {"N3-swapped", swapped, NULL},
    {"N3-accept", no_queue_pair_there, NULL},
    {"N3-port", port_in_use, NULL},
    {"N3-private", too_much_to_say, NULL},
    {"N3-listener", listener_accepted, NULL},
    {"N3-bind", source_of_another_machine, NULL},
    {"N3-step", step_left_out, NULL},
    {"N3-elsewhere", another_machine, NULL},
    {"N3-destroy", not_acknowledged, NULL},
    {0},
};
