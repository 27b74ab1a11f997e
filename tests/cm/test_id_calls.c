/* Calls on identifiers of rdma_cm that need no far end: channels and their descriptors, binding and
 * resolving, what is refused, options, groups, acknowledgements, fork(). */
#include "cm_below.h"

#include <arpa/inet.h>
#include <endian.h>
#include <errno.h>
#include <infiniband/ib.h>
#include <poll.h>
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/clock.h"
#include "cm/id.h"

enum { PORT = 7471 };

static struct vb_cm_channel *channel;
static int fd;

static int open_world(void **state)
{
	(void)state;
	below_open();
	channel = below_channel(&fd);
	return 0;
}

static int close_world(void **state)
{
	(void)state;
	vb_cm_channel_close(channel);
	below_close();
	return 0;
}

static struct vb_cm_id *new_id(enum rdma_port_space ps, enum ibv_qp_type type)
{
	struct vb_cm_id *id;

	assert_int_equal(vb_cm_id_new(&id, channel, (void *)0x77, ps, type), 0);
	return id;
}

static struct vb_cm_id *tcp(void)
{
	return new_id(RDMA_PS_TCP, IBV_QPT_RC);
}

static int resolve(struct vb_cm_id *id, const char *to)
{
	return vb_cm_id_resolve_addr(id, NULL, below_addr(to, PORT), 2000);
}

static bool readable(void)
{
	struct pollfd p = {.fd = fd, .events = POLLIN};

	return poll(&p, 1, 0) == 1;
}

/* ---- channels ---- */

static void a_descriptor_that_polls(void **state)
{
	struct vb_cm_id *id = tcp();

	(void)state;
	assert_false(readable());
	assert_int_equal(resolve(id, "10.0.0.2"), 0);
	assert_true(readable());
	below_next(channel, RDMA_CM_EVENT_ADDR_RESOLVED);
	assert_false(readable());
	below_none(channel);
	vb_cm_id_end(id);
}

/* Rule 33: whoever waits for edges gets one for each event. */
static void an_edge_for_each_event(void **state)
{
	struct epoll_event e = {.events = EPOLLIN | EPOLLET}, got;
	struct vb_cm_id *id = tcp(), *other = tcp();
	int ep = epoll_create1(0);

	(void)state;
	assert_int_equal(epoll_ctl(ep, EPOLL_CTL_ADD, fd, &e), 0);
	assert_int_equal(epoll_wait(ep, &got, 1, 0), 0);
	for (int i = 0; i < 2; i++) {
		assert_int_equal(resolve(i ? other : id, "10.0.0.2"), 0);
		assert_int_equal(epoll_wait(ep, &got, 1, 0), 1);
		assert_int_equal(epoll_wait(ep, &got, 1, 0), 0);
	}
	below_next(channel, RDMA_CM_EVENT_ADDR_RESOLVED);
	below_next(channel, RDMA_CM_EVENT_ADDR_RESOLVED);
	close(ep);
	vb_cm_id_end(id);
	vb_cm_id_end(other);
}

static void events_go_with_their_id(void **state)
{
	struct vb_cm_id *id = tcp(), *other = tcp();

	(void)state;
	assert_int_equal(resolve(id, "10.0.0.2"), 0);
	assert_int_equal(resolve(other, "10.0.0.1"), 0);
	assert_int_equal(vb_cm_id_resolve_route(id, 0), 0);
	vb_cm_id_end(id);
	assert_ptr_equal(below_next(channel, RDMA_CM_EVENT_ADDR_RESOLVED).id, other);
	assert_false(readable());
	vb_cm_id_end(other);
}

static void events_migrate(void **state)
{
	struct vb_cm_id *id = tcp(), *other = tcp();
	struct vb_cm_channel *to;
	int there;

	(void)state;
	to = below_channel(&there);
	assert_int_equal(resolve(id, "10.0.0.2"), 0);
	assert_int_equal(resolve(other, "10.0.0.2"), 0);
	assert_int_equal(vb_cm_id_resolve_route(id, 0), 0);
	assert_int_equal(vb_cm_id_migrate(id, to), 0);
	assert_ptr_equal(below_next(to, RDMA_CM_EVENT_ADDR_RESOLVED).id, id);
	assert_ptr_equal(below_next(to, RDMA_CM_EVENT_ROUTE_RESOLVED).id, id);
	below_none(to);
	assert_ptr_equal(below_next(channel, RDMA_CM_EVENT_ADDR_RESOLVED).id, other);
	below_none(channel);
	assert_false(readable());
	assert_int_equal(vb_cm_id_write(id, RDMA_CM_EVENT_ADDR_CHANGE, -3, 0x1234567890), 0);
	assert_int_equal(below_next(to, RDMA_CM_EVENT_ADDR_CHANGE).arg, 0x1234567890);
	vb_cm_id_end(id);
	vb_cm_id_end(other);
	vb_cm_channel_close(to);
}

static _Atomic bool ended;

static void *end_it(void *id)
{
	vb_cm_id_end(id);
	atomic_store(&ended, true);
	return NULL;
}

static void the_end_waits_for_acknowledgements(void **state)
{
	struct vb_cm_id *id = tcp();
	struct vb_cm_news n;
	pthread_t t;

	(void)state;
	assert_int_equal(resolve(id, "10.0.0.2"), 0);
	assert_int_equal(vb_cm_channel_get(channel, &n), 0);
	atomic_store(&ended, false);
	assert_int_equal(pthread_create(&t, NULL, end_it, id), 0);
	usleep(50000);
	assert_false(atomic_load(&ended));
	vb_cm_news_ack(n.id, n.event);
	assert_int_equal(pthread_join(t, NULL), 0);
	assert_true(atomic_load(&ended));
}

/* One thread moves an id, and another, which takes its event there, ends it; both wait for acknowledgements.
 */
struct moved {
	struct vb_cm_id *id;
	struct vb_cm_channel *to;
	struct vb_cm_id *again; /* what has the memory next */
};

static void *move_it(void *arg)
{
	struct moved *m = arg;

	(void)vb_cm_id_migrate(m->id, m->to);
	return NULL;
}

static void take_it(struct moved *m)
{
	struct vb_cm_news n;

	while (vb_cm_channel_get(m->to, &n))
		sched_yield();
	assert_int_equal(n.event, RDMA_CM_EVENT_ADDR_CHANGE);
}

static void *take_and_end_it(void *arg)
{
	struct moved *m = arg;

	take_it(m);
	vb_cm_id_end(m->id);
	m->again = malloc(sizeof(*m->again));
	*(volatile uint32_t *)&m->again->acked = 0; /* who still looks at the id waits for ever */
	return NULL;
}

static bool is_being_ended(struct vb_cm_id *id)
{
	bool yes;

	vb_cm_ids_enter();
	yes = id->ends;
	vb_cm_ids_leave();
	return yes;
}

/* Whoever has its event leaves nothing with it that would outlive the end. */
static void what_ends_takes_nothing(void **state)
{
	struct vb_cm_id *id = tcp();
	struct vb_cm_channel *other;
	struct vb_cm_news n;
	uint8_t tos = 1;
	pthread_t t;
	int there;

	(void)state;
	other = below_channel(&there);
	assert_int_equal(resolve(id, "10.0.0.2"), 0);
	assert_int_equal(vb_cm_channel_get(channel, &n), 0);
	assert_int_equal(pthread_create(&t, NULL, end_it, id), 0);
	while (!is_being_ended(id))
		sched_yield();
	assert_int_equal(vb_cm_id_write(id, RDMA_CM_EVENT_ADDR_CHANGE, 0, 0), EINVAL);
	assert_int_equal(vb_cm_id_option(id, 0, RDMA_OPTION_ID_TOS, &tos, sizeof tos), EINVAL);
	assert_int_equal(vb_cm_id_migrate(id, other), EINVAL);
	assert_int_equal(vb_cm_id_resolve_route(id, 0), EINVAL);
	vb_cm_news_ack(n.id, n.event);
	assert_int_equal(pthread_join(t, NULL), 0);
	below_none(channel);
	below_none(other);
	vb_cm_channel_close(other);
}

static void it_ends_while_it_moves(void **state)
{
	struct moved m;
	int there;

	(void)state;
	m.to = below_channel(&there);
	for (int i = 0; i < 1000; i++) {
		struct timespec until;
		struct vb_cm_news n;
		pthread_t mover, ender;

		m.id = tcp();
		assert_int_equal(resolve(m.id, "10.0.0.2"), 0);
		assert_int_equal(vb_cm_channel_get(channel, &n), 0);
		assert_int_equal(vb_cm_id_write(m.id, RDMA_CM_EVENT_ADDR_CHANGE, 0, 0), 0);
		assert_int_equal(pthread_create(&ender, NULL, take_and_end_it, &m), 0);
		assert_int_equal(pthread_create(&mover, NULL, move_it, &m), 0);
		while (!is_being_ended(m.id))
			sched_yield();
		vb_cm_news_ack(m.id, RDMA_CM_EVENT_ADDR_RESOLVED);
		vb_cm_news_ack(m.id, RDMA_CM_EVENT_ADDR_CHANGE);
		assert_int_equal(pthread_join(ender, NULL), 0);
		clock_gettime(CLOCK_REALTIME, &until);
		until.tv_sec += 10;
		assert_int_equal(pthread_timedjoin_np(mover, NULL, &until), 0);
		free(m.again);
	}
	vb_cm_channel_close(m.to);
}

/* It waits for an acknowledgement, and whoever ends the id does not wait for it then. */
static void a_mover_is_cancelled(void **state)
{
	struct moved m = {.id = tcp()};
	struct vb_cm_news n;
	pthread_t mover;
	void *how;
	int there;

	(void)state;
	m.to = below_channel(&there);
	assert_int_equal(resolve(m.id, "10.0.0.2"), 0);
	assert_int_equal(vb_cm_channel_get(channel, &n), 0);
	assert_int_equal(vb_cm_id_write(m.id, RDMA_CM_EVENT_ADDR_CHANGE, 0, 0), 0);
	assert_int_equal(pthread_create(&mover, NULL, move_it, &m), 0);
	take_it(&m);
	assert_int_equal(pthread_cancel(mover), 0);
	assert_int_equal(pthread_join(mover, &how), 0);
	assert_ptr_equal(how, PTHREAD_CANCELED);
	vb_cm_news_ack(m.id, RDMA_CM_EVENT_ADDR_RESOLVED);
	vb_cm_news_ack(m.id, RDMA_CM_EVENT_ADDR_CHANGE);
	vb_cm_id_end(m.id);
	vb_cm_channel_close(m.to);
}

static void *get_one(void *c)
{
	static struct vb_cm_news n;

	return vb_cm_channel_get(c, &n) ? NULL : &n;
}

static void a_channel_that_blocks(void **state)
{
	struct vb_cm_id *id = tcp();
	struct vb_cm_channel *c;
	struct vb_cm_news *n;
	pthread_t t;
	void *got;
	int there;

	(void)state;
	assert_int_equal(vb_cm_channel_open(&c, &there), 0);
	assert_int_equal(vb_cm_id_migrate(id, c), 0);
	assert_int_equal(pthread_create(&t, NULL, get_one, c), 0);
	while (!atomic_load(&below.waits))
		usleep(1000);
	assert_int_equal(resolve(id, "10.0.0.2"), 0); /* no lock is held there */
	assert_int_equal(pthread_join(t, &got), 0);
	n = got;
	assert_non_null(n);
	assert_int_equal(n->event, RDMA_CM_EVENT_ADDR_RESOLVED);
	vb_cm_news_ack(n->id, n->event);
	vb_cm_id_end(id);
	vb_cm_channel_close(c);
}

/* ---- fork ---- */

static int in_child(struct vb_cm_id *id)
{
	struct vb_cm_channel *c;
	struct vb_cm_id *own;
	struct vb_cm_news n;
	uint32_t k;
	int one = 1;

	if (vb_cm_channel_get(channel, &n) != EIO || vb_cm_id_bind(id, below_addr("10.0.0.1", PORT)) != EIO ||
	    resolve(id, "10.0.0.2") != EIO || vb_cm_id_listen(id, 0) != EIO ||
	    vb_cm_id_disconnect(id) != EIO ||
	    vb_cm_id_option(id, 0, RDMA_OPTION_ID_REUSEADDR, &one, sizeof one) != EIO ||
	    vb_cm_id_migrate(id, channel) != EIO || vb_cm_id_write(id, 0, 0, 0) != EIO ||
	    vb_cm_id_leave(id, below_addr("239.0.0.1", 0), &k) != EIO || vb_cm_id_device(id, NULL) != -1 ||
	    vb_cm_id_new(&own, channel, NULL, RDMA_PS_TCP, IBV_QPT_RC) != EIO)
		return 1;
	vb_cm_id_end(id);
	vb_cm_channel_close(channel);
	/* and it begins anew */
	below_open();
	c = below_channel(NULL);
	if (vb_cm_id_new(&own, c, NULL, RDMA_PS_TCP, IBV_QPT_RC) || resolve(own, "10.0.0.2") ||
	    vb_cm_channel_get(c, &n) || n.event != RDMA_CM_EVENT_ADDR_RESOLVED)
		return 2;
	vb_cm_news_ack(n.id, n.event);
	vb_cm_id_end(own);
	return 0;
}

static void a_forked_child(void **state)
{
	struct vb_cm_id *id = tcp();
	int status;
	pid_t pid;

	(void)state;
	assert_int_equal(resolve(id, "10.0.0.2"), 0);
	pid = fork();
	if (!pid)
		_exit(in_child(id));
	assert_int_equal(waitpid(pid, &status, 0), pid);
	assert_int_equal(status, 0);
	below_next(channel, RDMA_CM_EVENT_ADDR_RESOLVED); /* the child has taken nothing */
	vb_cm_id_end(id);
}

/* ---- calls that come too early or too late ---- */

static void refused_in_each_state(void **state)
{
	const struct vb_cm_param p = {.qp_num = 1};
	struct vb_cm_id *id = tcp();

	(void)state;
	assert_int_equal(vb_cm_id_resolve_route(id, 0), EINVAL);
	assert_int_equal(vb_cm_id_connect(id, &p), EINVAL);
	assert_int_equal(vb_cm_id_accept(id, &p, NULL), EINVAL);
	assert_int_equal(vb_cm_id_establish(id), EINVAL);
	assert_int_equal(vb_cm_id_reject(id, NULL, 0, 0), EINVAL);
	assert_int_equal(vb_cm_id_disconnect(id), EINVAL);
	assert_int_equal(vb_cm_id_notify(id, IBV_EVENT_COMM_EST), EINVAL);
	assert_int_equal(vb_cm_id_bind(id, below_addr("10.0.0.1", PORT)), 0);
	assert_int_equal(vb_cm_id_bind(id, below_addr("10.0.0.1", PORT)), EINVAL);
	assert_int_equal(vb_cm_id_listen(id, 0), 0);
	assert_int_equal(vb_cm_id_listen(id, 0), EINVAL);
	assert_int_equal(resolve(id, "10.0.0.2"), EINVAL);
	assert_int_equal(vb_cm_id_connect(id, &p), EINVAL);
	vb_cm_id_end(id);
	id = tcp();
	assert_int_equal(resolve(id, "10.0.0.2"), 0);
	assert_int_equal(resolve(id, "10.0.0.2"), EINVAL);
	assert_int_equal(vb_cm_id_connect(id, &p), EINVAL);
	assert_int_equal(vb_cm_id_listen(id, 0), EINVAL);
	vb_cm_id_end(id);
	assert_int_equal(vb_cm_id_new(&id, channel, NULL, (enum rdma_port_space)7, IBV_QPT_RC), EINVAL);
}

/* ---- binding ---- */

static uint16_t port_of(struct vb_cm_id *id)
{
	struct rdma_addr a;
	int n;

	assert_int_equal(vb_cm_id_route(id, &a, NULL, &n), 0);
	assert_int_equal(n, 0);
	return vb_cm_sock_port(&a.src_addr);
}

static void binding(void **state)
{
	struct vb_cm_id *id = tcp(), *other = tcp();
	uint8_t port = 9;

	(void)state;
	assert_int_equal(vb_cm_id_device(id, &port), -1);
	assert_int_equal(vb_cm_id_bind(id, below_addr("192.0.2.1", PORT)), EADDRNOTAVAIL);
	assert_int_equal(below.refreshed, 1); /* the kernel was asked */
	assert_int_equal(vb_cm_id_device(id, &port), -1);
	assert_int_equal(vb_cm_id_bind(id, below_addr("10.0.0.2", 0)), 0);
	assert_int_equal(vb_cm_id_device(id, &port), 1);
	assert_int_equal(port, 1);
	assert_int_not_equal(port_of(id), 0);
	assert_int_equal(vb_cm_id_bind(other, below_addr("10.0.0.2", port_of(id))), EADDRINUSE);
	assert_int_equal(vb_cm_id_device(other, &port), -1);
	assert_int_equal(vb_cm_id_bind(other, below_addr("fe80::1", PORT)), EINVAL); /* of which link? */
	assert_int_equal(vb_cm_id_bind(other, below_addr("::", PORT)), 0);
	assert_int_equal(vb_cm_id_device(other, &port), -1);
	assert_int_equal(port_of(other), PORT);
	vb_cm_id_end(id);
	vb_cm_id_end(other);
	assert_int_equal(below.ports, 0);
}

static void wildcards_of_both_families(void **state)
{
	struct vb_cm_id *id = tcp(), *other = tcp();

	(void)state;
	assert_int_equal(vb_cm_id_bind(id, below_addr("::", PORT)), 0);
	assert_int_equal(vb_cm_id_bind(other, below_addr("10.0.0.1", PORT)), EADDRINUSE);
	vb_cm_id_end(id);
	assert_int_equal(vb_cm_id_bind(other, below_addr("10.0.0.1", PORT)), 0);
	vb_cm_id_end(other);
}

static void addresses_that_are_reused(void **state)
{
	struct vb_cm_id *id = tcp(), *other = tcp();
	int one = 1;

	(void)state;
	assert_int_equal(vb_cm_id_option(id, 0, RDMA_OPTION_ID_REUSEADDR, &one, sizeof one), 0);
	assert_int_equal(vb_cm_id_option(other, 0, RDMA_OPTION_ID_REUSEADDR, &one, sizeof one), 0);
	assert_int_equal(vb_cm_id_bind(id, below_addr("10.0.0.1", PORT)), 0);
	assert_int_equal(vb_cm_id_bind(other, below_addr("10.0.0.1", PORT)), 0);
	assert_int_equal(vb_cm_id_listen(id, 0), EADDRINUSE);
	vb_cm_id_end(other);
	assert_int_equal(vb_cm_id_listen(id, 0), 0); /* it is where it was */
	vb_cm_id_end(id);
}

/* rdma_listen() of an id that is bound to nothing takes any port. */
static void listening_without_binding(void **state)
{
	struct vb_cm_id *id = tcp();

	(void)state;
	assert_int_equal(vb_cm_id_listen(id, 5), 0);
	assert_int_not_equal(port_of(id), 0);
	vb_cm_id_end(id);
}

/* ---- resolving ---- */

static void addresses_that_lead_nowhere(void **state)
{
	struct vb_cm_id *id = tcp();

	(void)state;
	assert_int_equal(resolve(id, "192.0.2.1"), 0);
	assert_int_equal(below_next(channel, RDMA_CM_EVENT_ADDR_ERROR).status, -EHOSTUNREACH);
	assert_int_equal(vb_cm_id_resolve_route(id, 0), EINVAL);
	assert_int_equal(resolve(id, "10.0.0.2"), 0); /* it may be tried again */
	assert_int_equal(below_next(channel, RDMA_CM_EVENT_ADDR_RESOLVED).status, 0);
	vb_cm_id_end(id);
}

static void sources(void **state)
{
	struct vb_cm_id *id = tcp();
	struct rdma_addr a;
	int n;

	(void)state;
	assert_int_equal(vb_cm_id_resolve_addr(id, below_addr("fd00::1", 0), below_addr("10.0.0.2", 1), 0),
			 EINVAL);
	assert_int_equal(vb_cm_id_resolve_addr(id, below_addr("192.0.2.1", 0), below_addr("10.0.0.2", 1), 0),
			 EADDRNOTAVAIL);
	assert_int_equal(vb_cm_id_resolve_addr(id, below_addr("10.0.0.2", 0), below_addr("10.0.0.1", 1), 0),
			 0);
	below_next(channel, RDMA_CM_EVENT_ADDR_RESOLVED);
	assert_int_equal(vb_cm_id_device(id, NULL), 1);
	assert_int_equal(vb_cm_id_route(id, &a, NULL, &n), 0);
	assert_int_equal(n, 0);
	assert_int_equal(a.addr.ibaddr.sgid.raw[15], 2);
	assert_int_equal(a.addr.ibaddr.dgid.raw[15], 1);
	assert_int_equal(a.addr.ibaddr.pkey, htons(0xffff));
	vb_cm_id_end(id);
	/* without one it is chosen, and told of */
	id = tcp();
	assert_int_equal(resolve(id, "10.0.0.2"), 0);
	below_next(channel, RDMA_CM_EVENT_ADDR_RESOLVED);
	assert_int_equal(vb_cm_id_route(id, &a, NULL, &n), 0);
	assert_int_equal(ntohl(a.src_sin.sin_addr.s_addr), 0x0a000001);
	assert_int_not_equal(a.src_sin.sin_port, 0);
	vb_cm_id_end(id);
}

static struct sockaddr *of_link(const char *address, uint32_t link)
{
	struct sockaddr *a = below_addr(address, PORT);

	((struct sockaddr_in6 *)a)->sin6_scope_id = link;
	return a;
}

static struct sockaddr_in6 source_of(struct vb_cm_id *id)
{
	struct rdma_addr a;
	int n;

	below_next(channel, RDMA_CM_EVENT_ADDR_RESOLVED);
	assert_int_equal(vb_cm_id_route(id, &a, NULL, &n), 0);
	assert_int_equal(a.src_sin6.sin6_family, AF_INET6);
	return a.src_sin6;
}

/* A link-local source that is chosen is of the destination's link.  Others have none, and the program's own
 * stays as it is. */
static void sources_of_a_link(void **state)
{
	struct vb_cm_id *id = tcp();
	struct sockaddr_in6 src;

	(void)state;
	below.linklocal = true;
	assert_int_equal(vb_cm_id_resolve_addr(id, NULL, of_link("fe80::2", 7), 0), 0);
	src = source_of(id);
	assert_int_equal(src.sin6_addr.s6_addr[0], 0xfe);
	assert_int_equal(src.sin6_addr.s6_addr[15], 1);
	assert_int_equal(src.sin6_scope_id, 7);
	assert_int_not_equal(src.sin6_port, 0);
	vb_cm_id_end(id);
	id = tcp();
	assert_int_equal(vb_cm_id_resolve_addr(id, of_link("fe80::1", 5), of_link("fe80::2", 7), 0), 0);
	assert_int_equal(source_of(id).sin6_scope_id, 5);
	vb_cm_id_end(id);
	below.linklocal = false;
	id = tcp();
	assert_int_equal(vb_cm_id_resolve_addr(id, NULL, of_link("fd00::2", 7), 0), 0);
	assert_int_equal(source_of(id).sin6_scope_id, 0);
	vb_cm_id_end(id);
}

/* A wildcard as a destination is this host. */
static void to_any_address(void **state)
{
	struct vb_cm_id *id = tcp();
	struct rdma_addr a;
	int n;

	(void)state;
	assert_int_equal(resolve(id, "0.0.0.0"), 0);
	below_next(channel, RDMA_CM_EVENT_ADDR_RESOLVED);
	assert_int_equal(vb_cm_id_route(id, &a, NULL, &n), 0);
	assert_int_equal(ntohl(a.dst_sin.sin_addr.s_addr), INADDR_LOOPBACK);
	vb_cm_id_end(id);
}

/* ---- options ---- */

static void resolve_both(struct vb_cm_id *id, struct ibv_sa_path_rec *path)
{
	struct rdma_addr a;
	int n;

	assert_int_equal(resolve(id, "10.0.0.2"), 0);
	below_next(channel, RDMA_CM_EVENT_ADDR_RESOLVED);
	assert_int_equal(vb_cm_id_resolve_route(id, 0), 0);
	below_next(channel, RDMA_CM_EVENT_ROUTE_RESOLVED);
	assert_int_equal(vb_cm_id_route(id, &a, path, &n), 0);
	assert_int_equal(n, 1);
}

static void options(void **state)
{
	uint8_t tos = 0x2e, timeout = 14, long_timeout = 32;
	struct vb_cm_id *id = tcp();
	struct ibv_sa_path_rec path;

	(void)state;
	assert_int_equal(vb_cm_id_option(id, 0, RDMA_OPTION_ID_TOS, &tos, sizeof tos), 0);
	assert_int_equal(vb_cm_id_option(id, 0, RDMA_OPTION_ID_TOS, &tos, 4), EINVAL);
	assert_int_equal(vb_cm_id_option(id, 0, RDMA_OPTION_ID_ACK_TIMEOUT, &long_timeout, 1), EINVAL);
	assert_int_equal(vb_cm_id_option(id, 0, RDMA_OPTION_ID_ACK_TIMEOUT, &timeout, 1), 0);
	assert_int_equal(vb_cm_id_option(id, 0, 99, &tos, 1), ENOSYS);
	assert_int_equal(vb_cm_id_option(id, 2, 0, &tos, 1), ENOSYS);
	resolve_both(id, &path);
	assert_int_equal(path.traffic_class, 0x2e);
	assert_int_equal(path.packet_life_time, 13); /* half of it */
	assert_int_equal(vb_cm_id_connect(id, &(struct vb_cm_param){.qp_num = 1}), 0);
	assert_int_equal(below.last_req.req.primary.local_ack_timeout, 14);
	assert_int_equal(below.last_req.req.primary.traffic_class, 0x2e);
	vb_cm_id_end(id);
}

static void a_path_of_ones_own(void **state)
{
	struct ibv_path_data d = {.flags =
				      IBV_PATH_FLAG_GMP | IBV_PATH_FLAG_PRIMARY | IBV_PATH_FLAG_BIDIRECTIONAL,
				  .path = {.flowlabel_hoplimit = htonl(0x12345 << 8 | 7),
					   .tclass = 3,
					   .pkey = htons(0xffff),
					   .qosclass_sl = htons(5),
					   .mtu = 2 << 6 | IBV_MTU_1024,
					   .rate = 2 << 6 | IBV_RATE_40_GBPS,
					   .packetlifetime = 2 << 6 | 17}};
	struct vb_cm_id *id = tcp();
	struct ibv_sa_path_rec path;
	struct rdma_addr a;
	int n;

	(void)state;
	assert_int_equal(vb_cm_id_option(id, 1, RDMA_OPTION_IB_PATH, &d, sizeof d), EINVAL);
	assert_int_equal(resolve(id, "10.0.0.2"), 0);
	below_next(channel, RDMA_CM_EVENT_ADDR_RESOLVED);
	assert_int_equal(vb_cm_id_option(id, 1, RDMA_OPTION_IB_PATH, &d, sizeof d - 1), EINVAL);
	d.flags = 0;
	assert_int_equal(vb_cm_id_option(id, 1, RDMA_OPTION_IB_PATH, &d, sizeof d), EINVAL);
	d.flags = IBV_PATH_FLAG_GMP | IBV_PATH_FLAG_PRIMARY | IBV_PATH_FLAG_BIDIRECTIONAL;
	assert_int_equal(vb_cm_id_option(id, 1, RDMA_OPTION_IB_PATH, &d, sizeof d), 0);
	below_next(channel, RDMA_CM_EVENT_ROUTE_RESOLVED);
	assert_int_equal(vb_cm_id_route(id, &a, &path, &n), 0);
	assert_int_equal(n, 1);
	assert_int_equal(ntohl(path.flow_label), 0x12345);
	assert_int_equal(path.hop_limit, 7);
	assert_int_equal(path.sl, 5);
	assert_int_equal(path.mtu, IBV_MTU_1024);
	assert_int_equal(path.mtu_selector, 2);
	assert_int_equal(path.rate, IBV_RATE_40_GBPS);
	assert_int_equal(path.packet_life_time, 17);
	vb_cm_id_end(id);
}

/* ---- InfiniBand ---- */

static struct sockaddr_ib ib_addr(uint8_t device)
{
	struct sockaddr_ib a = {.sib_family = AF_IB,
				.sib_sid = htobe64(RDMA_IB_IP_PS_TCP | PORT),
				.sib_sid_mask = htobe64(~0ull)};

	a.sib_addr.sib_raw[0] = 0xfe;
	a.sib_addr.sib_raw[1] = 0x80;
	a.sib_addr.sib_raw[15] = device;
	return a;
}

static void af_ib_needs_infiniband(void **state)
{
	struct sockaddr_ib a = ib_addr(1);
	struct vb_cm_id *id = new_id(RDMA_PS_IB, IBV_QPT_RC);

	(void)state;
	assert_int_equal(vb_cm_id_bind(id, (struct sockaddr *)&a), ENODEV);
	assert_int_equal(vb_cm_id_resolve_addr(id, NULL, (struct sockaddr *)&a, 0), ENODEV);
	vb_cm_id_end(id);
}

/* Addresses are GIDs, and private data has no header: 92 bytes are the program's. */
static void a_connection_of_af_ib(void **state)
{
	uint8_t bytes[93] = {[0] = 1, [91] = 9};
	struct vb_cm_param p = {.private_data = bytes, .private_len = 93, .qp_num = 1};
	struct sockaddr_ib to = ib_addr(2);
	struct vb_cm_id *l = new_id(RDMA_PS_IB, IBV_QPT_RC), *id = new_id(RDMA_PS_IB, IBV_QPT_RC);
	struct vb_cm_news n;

	(void)state;
	below.infiniband = true;
	assert_int_equal(vb_cm_id_bind(l, (struct sockaddr *)&to), 0);
	assert_int_equal(vb_cm_id_listen(l, 0), 0);
	assert_int_equal(vb_cm_id_resolve_addr(id, NULL, (struct sockaddr *)&to, 0), 0);
	below_next(channel, RDMA_CM_EVENT_ADDR_RESOLVED);
	assert_int_equal(vb_cm_id_resolve_route(id, 0), 0);
	below_next(channel, RDMA_CM_EVENT_ROUTE_RESOLVED);
	assert_int_equal(vb_cm_id_connect(id, &p), EINVAL);
	p.private_len = 92;
	assert_int_equal(vb_cm_id_connect(id, &p), 0);
	assert_int_equal(below.last_req.req.service_id, RDMA_IB_IP_PS_TCP | PORT);
	assert_int_equal(below.last_req.req.primary.remote_lid, 17);
	assert_int_equal(below.last_req.req.primary.subnet_local, 1);
	n = below_next(channel, RDMA_CM_EVENT_CONNECT_REQUEST);
	assert_int_equal(n.conn.private_data_len, 92);
	assert_memory_equal(n.data, bytes, 92);
	vb_cm_id_end(n.fresh);
	vb_cm_id_end(id);
	vb_cm_id_end(l);
}

/* ---- groups ---- */

static void joining(void **state)
{
	struct vb_cm_id *id = new_id(RDMA_PS_UDP, IBV_QPT_UD);
	uint32_t delivered = 9;
	struct vb_cm_news n;

	(void)state;
	assert_int_equal(vb_cm_id_join(id, below_addr("239.1.2.3", 0), 1, 0, (void *)5), EINVAL);
	assert_int_equal(vb_cm_id_bind(id, below_addr("10.0.0.2", 0)), 0);
	assert_int_equal(vb_cm_id_join(id, below_addr("10.1.2.3", 0), 1, 0, NULL), EINVAL);
	assert_int_equal(vb_cm_id_join(id, below_addr("239.1.2.3", 0), 4, 0, NULL), EINVAL);
	assert_int_equal(vb_cm_id_join(id, below_addr("239.1.2.3", 0), 3, 2, NULL), EINVAL);
	assert_int_equal(vb_cm_id_join(id, below_addr("239.1.2.3", 0), 3, 1, (void *)5), 0);
	n = below_next(channel, RDMA_CM_EVENT_MULTICAST_JOIN);
	assert_true(n.ud);
	assert_ptr_equal(n.join, (void *)5);
	assert_ptr_equal(n.user, (void *)0x77);
	assert_int_equal(n.status, 0);
	assert_int_equal(n.ud_param.qp_num, 0xffffff);
	assert_int_equal(n.ud_param.qkey, RDMA_UDP_QKEY);
	assert_memory_equal(n.ud_param.ah_attr.grh.dgid.raw,
			    ((const uint8_t[16]){[10] = 0xff, [11] = 0xff, 239, 1, 2, 3}), 16);
	assert_int_equal(n.ud_param.ah_attr.is_global, 1);
	assert_int_equal(vb_cm_id_leave(id, below_addr("239.1.2.4", 0), &delivered), EADDRNOTAVAIL);
	assert_int_equal(vb_cm_id_leave(id, below_addr("239.1.2.3", 0), &delivered), 0);
	assert_int_equal(delivered, 1);
	assert_int_equal(vb_cm_id_leave(id, below_addr("239.1.2.3", 0), &delivered), EADDRNOTAVAIL);
	/* undelivered events go with the join */
	assert_int_equal(vb_cm_id_join(id, below_addr("ff0e::7", 0), 1, 0, (void *)6), 0);
	assert_int_equal(vb_cm_id_join(id, below_addr("ff0e::8", 0), 1, 0, (void *)7), 0);
	assert_int_equal(vb_cm_id_leave(id, below_addr("ff0e::7", 0), &delivered), 0);
	assert_int_equal(delivered, 0);
	n = below_next(channel, RDMA_CM_EVENT_MULTICAST_JOIN);
	assert_ptr_equal(n.join, (void *)7);
	assert_int_equal(n.ud_param.ah_attr.grh.dgid.raw[15], 8);
	below_none(channel);
	vb_cm_id_end(id);
	id = tcp();
	assert_int_equal(vb_cm_id_bind(id, below_addr("10.0.0.2", 0)), 0);
	assert_int_equal(vb_cm_id_join(id, below_addr("239.1.2.3", 0), 1, 0, NULL), EINVAL);
	vb_cm_id_end(id);
}

/* A group may be resolved, without a source too; and then it is joined. */
static void resolving_a_group(void **state)
{
	struct vb_cm_id *id = new_id(RDMA_PS_IPOIB, IBV_QPT_UD);

	(void)state;
	assert_int_equal(resolve(id, "239.1.2.3"), 0);
	below_next(channel, RDMA_CM_EVENT_ADDR_RESOLVED);
	assert_int_equal(vb_cm_id_join(id, below_addr("239.1.2.3", 0), 1, 0, NULL), 0);
	assert_int_equal(below_next(channel, RDMA_CM_EVENT_MULTICAST_JOIN).ud_param.qkey, 0x0b1b);
	vb_cm_id_end(id);
}

/* RFC 4391: an IPv4 group's GID on InfiniBand; and a LID that all members find. */
static void groups_of_infiniband(void **state)
{
	struct vb_cm_id *id = new_id(RDMA_PS_IPOIB, IBV_QPT_UD), *other = new_id(RDMA_PS_IPOIB, IBV_QPT_UD);
	struct vb_cm_news n;

	(void)state;
	below.infiniband = true;
	assert_int_equal(vb_cm_id_bind(id, below_addr("10.0.0.2", 0)), 0);
	assert_int_equal(vb_cm_id_bind(other, below_addr("10.0.0.1", 0)), 0);
	assert_int_equal(vb_cm_id_join(id, below_addr("239.1.2.3", 0), 1, 0, NULL), 0);
	n = below_next(channel, RDMA_CM_EVENT_MULTICAST_JOIN);
	assert_memory_equal(n.ud_param.ah_attr.grh.dgid.raw,
			    ((const uint8_t[16]){0xff, 0x12, 0x40, 0x1b, 0xff, 0xff, [12] = 0x0f, 1, 2, 3}),
			    16);
	assert_true(n.ud_param.ah_attr.dlid >= 0xc000 && n.ud_param.ah_attr.dlid < 0xffff);
	assert_int_equal(vb_cm_id_join(other, below_addr("239.1.2.3", 0), 1, 0, NULL), 0);
	assert_int_equal(below_next(channel, RDMA_CM_EVENT_MULTICAST_JOIN).ud_param.ah_attr.dlid,
			 n.ud_param.ah_attr.dlid);
	vb_cm_id_end(id);
	vb_cm_id_end(other);
}

int main(void)
{
#define CASE(f) cmocka_unit_test_setup_teardown(f, open_world, close_world)
	const struct CMUnitTest tests[] = {
	    CASE(a_descriptor_that_polls),
	    CASE(an_edge_for_each_event),
	    CASE(events_go_with_their_id),
	    CASE(events_migrate),
	    CASE(the_end_waits_for_acknowledgements),
	    CASE(what_ends_takes_nothing),
	    CASE(it_ends_while_it_moves),
	    CASE(a_mover_is_cancelled),
	    CASE(a_channel_that_blocks),
	    CASE(a_forked_child),
	    CASE(refused_in_each_state),
	    CASE(binding),
	    CASE(wildcards_of_both_families),
	    CASE(addresses_that_are_reused),
	    CASE(listening_without_binding),
	    CASE(addresses_that_lead_nowhere),
	    CASE(sources),
	    CASE(sources_of_a_link),
	    CASE(to_any_address),
	    CASE(options),
	    CASE(a_path_of_ones_own),
	    CASE(af_ib_needs_infiniband),
	    CASE(a_connection_of_af_ib),
	    CASE(joining),
	    CASE(resolving_a_group),
	    CASE(groups_of_infiniband),
	};

	return cmocka_run_group_tests_name("cm_id_calls", tests, NULL, NULL);
}
