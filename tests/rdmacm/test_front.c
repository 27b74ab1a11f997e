/* librdmacm alone, on connections and verbs that are not there (fake.h): what programs see of ids, events,
 * queue pairs, SRQs, groups and names, and in which order things are done below. */
#include <arpa/inet.h>
#include <dirent.h>
#include <dlfcn.h>
#include <errno.h>
#include <netdb.h>
#include <pthread.h>
#include <sched.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/wait.h>
#include <unistd.h>
#include <cmocka.h>

#include <infiniband/ib.h>
#include <rdma/rdma_verbs.h>
#include <rdma/rsocket.h>

#include "fake.h"
#include "rdmacm/rdmacm.h"

int rdma_resolve_addrinfo(struct rdma_cm_id *id, const char *node, const char *service,
			  const struct rdma_addrinfo *hints);
int rdma_query_addrinfo(struct rdma_cm_id *id, struct rdma_addrinfo **info);
int rdma_write_cm_event(struct rdma_cm_id *id, enum rdma_cm_event_type event, int status, uint64_t arg);
int repoll_create(int flags);
int repoll_ctl(int repfd, int op, int fd, struct epoll_event *event);
int repoll_wait(int repfd, struct epoll_event *events, int maxevents, int timeout);

#define FAILS(call, err)                      \
	do {                                  \
		errno = 0;                    \
		assert_int_equal(call, -1);   \
		assert_int_equal(errno, err); \
	} while (0)
/* A call that succeeds leaves errno as it was, whatever went on below. */
#define WORKS(call)                              \
	do {                                     \
		errno = ENOTTY;                  \
		assert_int_equal(call, 0);       \
		assert_int_equal(errno, ENOTTY); \
	} while (0)
#define DID(what) assert_string_equal(fake.did, what)

static struct sockaddr_in address(const char *text, uint16_t port)
{
	struct sockaddr_in in = {.sin_family = AF_INET, .sin_port = htons(port)};

	assert_int_equal(inet_pton(AF_INET, text, &in.sin_addr), 1);
	return in;
}

static void forget(void)
{
	fake.did[0] = '\0';
}

static struct rdma_event_channel *channel;
static struct rdma_cm_id *id;

/* An id on a channel, bound to the device. */
static void bound(enum rdma_port_space ps)
{
	struct sockaddr_in in = address("192.0.2.1", 7471);

	fake_reset();
	channel = rdma_create_event_channel();
	assert_non_null(channel);
	WORKS(rdma_create_id(channel, &id, &in, ps));
	WORKS(rdma_bind_addr(id, (struct sockaddr *)&in));
	forget();
}

static void unbound(void)
{
	WORKS(rdma_destroy_id(id));
	rdma_destroy_event_channel(channel);
	assert_int_equal(fake.ids, 0);
	assert_int_equal(fake.channels, 0);
	assert_int_equal(fake.events, 0);
	assert_int_equal(fake.qps + fake.srqs + fake.cqs + fake.comp_channels, 0);
}

static struct rdma_cm_event *next(void)
{
	struct rdma_cm_event *e;

	WORKS(rdma_get_cm_event(channel, &e));
	return e;
}

static void no_more(void)
{
	struct rdma_cm_event *e;

	FAILS(rdma_get_cm_event(channel, &e), EAGAIN);
}

static struct ibv_qp_init_attr qp_attr(enum ibv_qp_type type)
{
	return (struct ibv_qp_init_attr){
	    .qp_type = type,
	    .cap = {.max_send_wr = 5, .max_recv_wr = 7, .max_send_sge = 1, .max_recv_sge = 1}};
}

static void make_qp(struct rdma_cm_id *of, enum ibv_qp_type type)
{
	struct ibv_qp_init_attr attr = qp_attr(type);

	WORKS(rdma_create_qp(of, NULL, &attr));
}

/* ---- ids ---- */

static void one_device_for_all(void **state)
{
	struct ibv_context **all;
	struct rdma_cm_id *second;
	struct sockaddr_in in = address("0.0.0.0", 0);
	int n = 0;

	(void)state;
	bound(RDMA_PS_TCP);
	assert_ptr_equal(id->verbs, fake.last_opened ? fake.last_opened : id->verbs);
	assert_non_null(id->pd);
	assert_ptr_equal(id->pd->context, id->verbs);
	assert_int_equal(id->port_num, 1);
	assert_int_equal(id->qp_type, IBV_QPT_RC);
	assert_int_equal(ntohs(rdma_get_src_port(id)), 7471);
	WORKS(rdma_create_id(channel, &second, NULL, RDMA_PS_UDP));
	assert_int_equal(second->qp_type, IBV_QPT_UD);
	WORKS(rdma_bind_addr(second, (struct sockaddr *)&in));
	assert_null(second->verbs); /* a wildcard is on no device */
	assert_null(second->pd);
	assert_int_equal(ntohs(rdma_get_src_port(second)), 40000);
	in = address("192.0.2.1", 1);
	WORKS(rdma_bind_addr(second, (struct sockaddr *)&in));
	assert_ptr_equal(second->verbs, id->verbs);
	assert_ptr_equal(second->pd, id->pd);
	all = rdma_get_devices(&n);
	assert_int_equal(n, 1);
	assert_ptr_equal(all[0], id->verbs);
	assert_null(all[1]);
	rdma_free_devices(all);
	assert_int_equal(fake.contexts, 1);
	assert_int_equal(fake.pds, 1);
	WORKS(rdma_destroy_id(second));
	unbound();
}

static void bad_addresses(void **state)
{
	struct sockaddr_in bad = {.sin_family = AF_UNIX}, dst = address("192.0.2.9", 9);

	(void)state;
	bound(RDMA_PS_TCP);
	FAILS(rdma_bind_addr(id, NULL), EINVAL);
	FAILS(rdma_bind_addr(id, (struct sockaddr *)&bad), EINVAL);
	FAILS(rdma_resolve_addr(id, (struct sockaddr *)&bad, (struct sockaddr *)&dst, 1), EINVAL);
	FAILS(rdma_resolve_addr(id, NULL, (struct sockaddr *)&bad, 1), EINVAL);
	fake.fail = "resolve_addr";
	fake.err = ENETUNREACH;
	FAILS(rdma_resolve_addr(id, NULL, (struct sockaddr *)&dst, 1), ENETUNREACH);
	assert_int_equal(rdma_get_dst_port(id), htons(7471)); /* as it was */
	unbound();
}

static void backlog(void **state)
{
	(void)state;
	bound(RDMA_PS_TCP);
	WORKS(rdma_listen(id, 0));
	assert_int_equal(fake.backlog, 1024);
	WORKS(rdma_listen(id, 3));
	assert_int_equal(fake.backlog, 3);
	WORKS(rdma_listen(id, 5000));
	assert_int_equal(fake.backlog, 1024);
	unbound();
}

static void routes(void **state)
{
	struct rdma_cm_event *e;
	struct sockaddr_in dst = address("192.0.2.9", 7471);

	(void)state;
	bound(RDMA_PS_TCP);
	WORKS(rdma_resolve_addr(id, NULL, (struct sockaddr *)&dst, 1));
	assert_int_equal(rdma_get_dst_port(id), htons(7471));
	e = next();
	assert_int_equal(e->event, RDMA_CM_EVENT_ADDR_RESOLVED);
	assert_ptr_equal(e->id, id);
	assert_int_equal(id->route.num_paths, 0);
	WORKS(rdma_ack_cm_event(e));
	for (int i = 0; i < 2; i++) { /* nothing is lost by a second time */
		WORKS(rdma_resolve_route(id, 1));
		e = next();
		assert_int_equal(e->event, RDMA_CM_EVENT_ROUTE_RESOLVED);
		assert_int_equal(id->route.num_paths, 1);
		assert_int_equal(id->route.path_rec->mtu, IBV_MTU_4096);
		WORKS(rdma_ack_cm_event(e));
	}
	FAILS(rdma_ack_cm_event(NULL), EINVAL);
	FAILS(rdma_get_cm_event(channel, NULL), EINVAL);
	unbound();
}

static void names(void **state)
{
	(void)state;
	assert_string_equal(rdma_event_str(RDMA_CM_EVENT_ADDR_RESOLVED), "RDMA_CM_EVENT_ADDR_RESOLVED");
	assert_string_equal(rdma_event_str(RDMA_CM_EVENT_TIMEWAIT_EXIT), "RDMA_CM_EVENT_TIMEWAIT_EXIT");
	assert_string_equal(rdma_event_str((enum rdma_cm_event_type)16), "RDMA_CM_EVENT_ADDRINFO_RESOLVED");
	assert_string_equal(rdma_event_str((enum rdma_cm_event_type)17), "RDMA_CM_EVENT_ADDRINFO_ERROR");
	assert_string_equal(rdma_event_str((enum rdma_cm_event_type)18), "RDMA_CM_EVENT_USER");
	assert_string_equal(rdma_event_str((enum rdma_cm_event_type)19), "RDMA_CM_EVENT_INTERNAL");
	assert_string_equal(rdma_event_str((enum rdma_cm_event_type)20), "UNKNOWN EVENT");
	assert_string_equal(rdma_event_str((enum rdma_cm_event_type) - 1), "UNKNOWN EVENT");
}

/* rping does so: the queue pair has been destroyed by ibv_destroy_qp(), so id->qp leads nowhere. */
static void destroyed_behind_its_back(void **state)
{
	(void)state;
	bound(RDMA_PS_TCP);
	make_qp(id, IBV_QPT_RC);
	ibv_destroy_qp(id->qp);
	ibv_destroy_cq(id->send_cq);
	ibv_destroy_cq(id->recv_cq);
	ibv_destroy_comp_channel(id->send_cq_channel);
	ibv_destroy_comp_channel(id->recv_cq_channel);
	id->qp = (struct ibv_qp *)8; /* whoever looks there finds nothing */
	fake.said[0] = 0;
	WORKS(rdma_destroy_id(id));
	assert_string_equal(fake.said, "");
	rdma_destroy_event_channel(channel);
}

/* ---- synchronous ids ---- */

static struct rdma_addrinfo *info(const char *node, int flags, int qp_type, int ps)
{
	struct rdma_addrinfo hints = {.ai_flags = flags | RAI_NUMERICHOST,
				      .ai_qp_type = qp_type,
				      .ai_port_space = ps},
			     *res = NULL;

	WORKS(rdma_getaddrinfo(node, "7471", &hints, &res));
	return res;
}

static struct rdma_cm_id *endpoint(struct ibv_qp_init_attr *attr, const char *connect)
{
	struct rdma_addrinfo *ai = info("192.0.2.9", 0, IBV_QPT_RC, RDMA_PS_TCP);
	struct rdma_cm_id *ep;

	fake_reset();
	if (connect) {
		ai->ai_connect = strdup(connect);
		ai->ai_connect_len = strlen(connect);
	}
	WORKS(rdma_create_ep(&ep, ai, NULL, attr));
	rdma_freeaddrinfo(ai);
	return ep;
}

static void endpoint_connects(void **state)
{
	struct ibv_qp_init_attr attr = qp_attr(IBV_QPT_UD); /* which is set right */
	struct rdma_cm_id *ep = endpoint(&attr, "head");
	struct rdma_conn_param param = {.private_data = "tail",
					.private_data_len = 4,
					.responder_resources = 1,
					.initiator_depth = RDMA_MAX_INIT_DEPTH,
					.retry_count = 2,
					.rnr_retry_count = 3,
					.qp_num = 99};
	struct vb_cm_news *n;

	(void)state;
	assert_int_equal(attr.qp_type, IBV_QPT_RC);
	assert_int_equal(attr.cap.max_inline_data, 512); /* written back */
	DID("channel new resolve_addr route resolve_route route create_cq create_cq create_qp attr "
	    "INIT ");
	assert_int_equal(ep->event->event, RDMA_CM_EVENT_ROUTE_RESOLVED); /* kept until the next call */
	n = fake_news(fake_cm(ep), RDMA_CM_EVENT_CONNECT_RESPONSE, 0);
	memcpy(n->data, "hello", 6);
	n->conn.private_data = n->data;
	n->conn.private_data_len = 196;
	forget();
	WORKS(rdma_connect(ep, &param));
	DID("connect attr INIT attr RTR attr RTS establish ");
	assert_int_equal(ep->event->event, RDMA_CM_EVENT_ESTABLISHED);
	assert_string_equal(ep->event->param.conn.private_data, "hello");
	assert_int_equal(ep->event->param.conn.private_data_len, 196);
	assert_int_equal(fake.param.private_len, 8); /* ai_connect comes first */
	assert_memory_equal(fake.data, "headtail", 8);
	assert_int_equal(fake.param.responder_resources, 1);
	assert_int_equal(fake.param.initiator_depth, 128); /* the device's */
	assert_int_equal(fake.param.retry_count, 2);
	assert_int_equal(fake.param.rnr_retry_count, 3);
	assert_int_equal(fake.param.qp_num, 0x777);			 /* the id's, not the program's */
	assert_int_equal(fake.attr[IBV_QPS_RTR].max_dest_rd_atomic, 11); /* the handshake's */
	assert_int_equal(fake.attr[IBV_QPS_RTS].max_rd_atomic, 12);
	forget();
	WORKS(rdma_disconnect(ep));
	DID("ERR disconnect ");
	assert_int_equal(ep->event->event, RDMA_CM_EVENT_DISCONNECTED);
	fake.over = true;
	WORKS(rdma_disconnect(ep)); /* nothing is waited for */
	assert_int_equal(ep->event->event, RDMA_CM_EVENT_DISCONNECTED);
	rdma_destroy_ep(ep);
	assert_int_equal(fake.events + fake.ids + fake.channels + fake.qps + fake.cqs + fake.comp_channels,
			 0);
}

static void connecting_in_vain(void **state)
{
	static const struct {
		enum rdma_cm_event_type event;
		int status, err;
	} rows[] = {
	    {RDMA_CM_EVENT_REJECTED, 8, ECONNREFUSED},		{RDMA_CM_EVENT_REJECTED, -EIO, ECONNREFUSED},
	    {RDMA_CM_EVENT_UNREACHABLE, -ETIMEDOUT, ETIMEDOUT}, {RDMA_CM_EVENT_UNREACHABLE, 2, ECONNREFUSED},
	    {RDMA_CM_EVENT_CONNECT_ERROR, -ENOMEM, ENOMEM},
	};

	(void)state;
	for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
		struct ibv_qp_init_attr attr = qp_attr(IBV_QPT_RC);
		struct rdma_cm_id *ep = endpoint(&attr, NULL);

		fake_news(fake_cm(ep), rows[i].event, rows[i].status);
		forget();
		FAILS(rdma_connect(ep, NULL), rows[i].err);
		DID(rows[i].event == RDMA_CM_EVENT_REJECTED ? "connect ERR " : "connect ");
		assert_int_equal(ep->event->status, rows[i].status);
		assert_int_equal(fake.param.retry_count, 7); /* rdma_connect(id, NULL) */
		assert_int_equal(fake.param.rnr_retry_count, 7);
		assert_int_equal(fake.param.responder_resources, 128);
		rdma_destroy_ep(ep);
		assert_int_equal(fake.events + fake.ids + fake.channels + fake.qps, 0);
	}
}

static void endpoint_fails(void **state)
{
	static const char *const steps[] = {"channel",	 "new",	      "resolve_addr", "resolve_route",
					    "create_cq", "create_qp", "INIT"};
	struct rdma_addrinfo *ai = info("192.0.2.9", 0, IBV_QPT_RC, RDMA_PS_TCP);

	(void)state;
	for (size_t i = 0; i < sizeof steps / sizeof steps[0]; i++) {
		struct ibv_qp_init_attr attr = qp_attr(IBV_QPT_RC);
		struct rdma_cm_id *ep;

		fake_reset();
		fake.fail = steps[i];
		fake.err = ENOSPC;
		FAILS(rdma_create_ep(&ep, ai, NULL, &attr), ENOSPC);
		assert_null(attr.send_cq);
		assert_null(attr.recv_cq);
		assert_int_equal(
		    fake.events + fake.ids + fake.channels + fake.qps + fake.cqs + fake.comp_channels, 0);
	}
	rdma_freeaddrinfo(ai);
}

static void too_much_private_data(void **state)
{
	struct ibv_qp_init_attr attr = qp_attr(IBV_QPT_RC);
	struct rdma_cm_id *ep = endpoint(&attr, "head");
	struct rdma_conn_param param = {.private_data = fake.data, .private_data_len = 252};

	(void)state;
	FAILS(rdma_connect(ep, &param), EINVAL);
	param.private_data_len = 251;
	fake_news(fake_cm(ep), RDMA_CM_EVENT_CONNECT_RESPONSE, 0);
	WORKS(rdma_connect(ep, &param));
	assert_int_equal(fake.param.private_len, 255);
	rdma_destroy_ep(ep);
}

static void migration(void **state)
{
	struct ibv_qp_init_attr attr = qp_attr(IBV_QPT_RC);
	struct rdma_cm_id *ep = endpoint(&attr, NULL);

	(void)state;
	assert_int_equal(fake.channels, 1);
	FAILS(rdma_migrate_id(ep, NULL), EINVAL);
	channel = rdma_create_event_channel();
	WORKS(rdma_migrate_id(ep, channel)); /* what id->event showed is acknowledged */
	assert_null(ep->event);
	assert_ptr_equal(ep->channel, channel);
	assert_int_equal(fake.channels, 1); /* its own is gone */
	WORKS(rdma_connect(ep, NULL));	    /* and nothing waits */
	no_more();
	fake.fail = "migrate";
	fake.err = EIO;
	FAILS(rdma_migrate_id(ep, NULL), EIO);
	assert_ptr_equal(ep->channel, channel);
	fake.fail = NULL;
	WORKS(rdma_migrate_id(ep, NULL));
	assert_ptr_not_equal(ep->channel, channel);
	assert_int_equal(fake.channels, 2);
	rdma_destroy_event_channel(channel);
	rdma_destroy_ep(ep);
	assert_int_equal(fake.channels, 0);
}

/* ---- the active end ---- */

static void without_a_queue_pair(void **state)
{
	struct rdma_conn_param param = {.qp_num = 0x55, .srq = 1};
	struct ibv_ece ece = {.vendor_id = 7, .options = 1}, none = {0};
	struct rdma_cm_event *e;

	(void)state;
	bound(RDMA_PS_TCP);
	FAILS(rdma_connect(id, NULL), EINVAL);
	FAILS(rdma_set_local_ece(id, &none), EINVAL);
	WORKS(rdma_set_local_ece(id, &ece));
	WORKS(rdma_connect(id, &param));
	assert_int_equal(fake.param.qp_num, 0x55);
	assert_int_equal(fake.param.srq, 1);
	assert_int_equal(fake.param.ece.vendor_id, 7);
	fake_news(fake_cm(id), RDMA_CM_EVENT_CONNECT_RESPONSE, 0)->ece =
	    (struct ibv_ece){.vendor_id = 9, .options = 3};
	forget();
	e = next();
	assert_int_equal(e->event, RDMA_CM_EVENT_CONNECT_RESPONSE);
	DID("");
	WORKS(rdma_ack_cm_event(e));
	WORKS(rdma_get_remote_ece(id, &ece));
	assert_int_equal(ece.vendor_id, 9);
	assert_int_equal(ece.options, 3);
	WORKS(rdma_establish(id));
	DID("establish ");
	make_qp(id, IBV_QPT_RC);
	FAILS(rdma_establish(id), EINVAL);
	FAILS(rdma_get_remote_ece(id, &ece), EINVAL);
	FAILS(rdma_set_local_ece(id, &ece), EINVAL);
	rdma_destroy_qp(id);
	unbound();
}

static void too_deep(void **state)
{
	struct rdma_conn_param param = {.responder_resources = 129};

	(void)state;
	bound(RDMA_PS_TCP);
	make_qp(id, IBV_QPT_RC);
	FAILS(rdma_connect(id, &param), EINVAL);
	FAILS(rdma_accept(id, &param), EINVAL);
	param = (struct rdma_conn_param){.initiator_depth = 129};
	FAILS(rdma_connect(id, &param), EINVAL);
	param.initiator_depth = 128;
	WORKS(rdma_connect(id, &param));
	rdma_destroy_qp(id);
	unbound();
}

static void answer_in_vain(void **state)
{
	static const char *const steps[] = {"INIT", "RTR", "RTS", "establish"};
	struct rdma_cm_event *e;

	(void)state;
	for (size_t i = 0; i < sizeof steps / sizeof steps[0]; i++) {
		bound(RDMA_PS_TCP);
		make_qp(id, IBV_QPT_RC);
		WORKS(rdma_connect(id, NULL));
		fake_news(fake_cm(id), RDMA_CM_EVENT_CONNECT_RESPONSE, 0);
		fake_news(fake_cm(id), RDMA_CM_EVENT_REJECTED, 28);
		fake_news(fake_cm(id), RDMA_CM_EVENT_DISCONNECTED, 0);
		fake.fail = steps[i];
		fake.err = ENOBUFS;
		e = next();
		assert_int_equal(e->event, RDMA_CM_EVENT_CONNECT_ERROR);
		assert_int_equal(e->status, -ENOBUFS);
		assert_int_equal(id->qp->state, IBV_QPS_ERR);
		assert_int_equal(fake.reason, 28); /* the far end hears of it */
		WORKS(rdma_ack_cm_event(e));
		no_more(); /* what follows from it is no news */
		rdma_destroy_qp(id);
		unbound();
	}
}

/* Of another thread: it destroys the queue pair of `id`. */
static struct {
	pthread_t thread;
	_Atomic int tid;
	_Atomic bool done;
} destroyer;

static void *destroys_qp(void *unused)
{
	(void)unused;
	atomic_store(&destroyer.tid, gettid());
	rdma_destroy_qp(id);
	atomic_store(&destroyer.done, true);
	return NULL;
}

static bool sleeps(int tid)
{
	char path[64], state = 0;
	FILE *f;

	snprintf(path, sizeof path, "/proc/self/task/%d/stat", tid);
	f = fopen(path, "re");
	if (!f)
		return false;
	if (fscanf(f, "%*d (%*[^)]) %c", &state) != 1)
		state = 0;
	fclose(f);
	return state == 'S';
}

/* The queue pair is still there however long this takes. */
static void it_waits(void)
{
	destroyer.tid = 0;
	destroyer.done = false;
	assert_int_equal(pthread_create(&destroyer.thread, NULL, destroys_qp, NULL), 0);
	while (!atomic_load(&destroyer.done) && !(destroyer.tid && sleeps(destroyer.tid)))
		sched_yield();
	assert_int_equal(fake.qps, 1);
}

/* Who takes an event may be working with the queue pair when another thread destroys it. */
static void destroyed_while_in_use(void **state)
{
	static const struct {
		enum rdma_cm_event_type event;
		enum ibv_qp_state state;
	} cases[] = {{RDMA_CM_EVENT_CONNECT_RESPONSE, IBV_QPS_INIT},
		     {RDMA_CM_EVENT_CONNECT_RESPONSE, IBV_QPS_RTR},
		     {RDMA_CM_EVENT_CONNECT_RESPONSE, IBV_QPS_RTS},
		     {RDMA_CM_EVENT_REJECTED, IBV_QPS_ERR},
		     {RDMA_CM_EVENT_DISCONNECTED, IBV_QPS_ERR}};

	(void)state;
	for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
		struct rdma_cm_event *e;

		bound(RDMA_PS_TCP);
		make_qp(id, IBV_QPT_RC);
		WORKS(rdma_connect(id, NULL));
		fake.modified = cases[i].state;
		fake.modifying = it_waits;
		if (cases[i].event == RDMA_CM_EVENT_DISCONNECTED) { /* the call does it */
			fake.over = true;
			WORKS(rdma_disconnect(id));
			fake.over = false;
		} else {
			fake_news(fake_cm(id), cases[i].event,
				  cases[i].event == RDMA_CM_EVENT_REJECTED ? 28 : 0);
			e = next();
			WORKS(rdma_ack_cm_event(e));
		}
		assert_null(fake.modifying);
		assert_int_equal(pthread_join(destroyer.thread, NULL), 0);
		assert_true(destroyer.done && !fake.qps && !id->qp);
		unbound();
	}
}

static void lookup_of_datagrams(void **state)
{
	struct rdma_cm_event *e;
	struct vb_cm_news *n;

	(void)state;
	bound(RDMA_PS_UDP);
	make_qp(id, IBV_QPT_UD);
	DID("create_cq create_cq create_qp attr INIT RTR RTS ");
	assert_int_equal(fake.attr[IBV_QPS_INIT].qkey, RDMA_UDP_QKEY);
	WORKS(rdma_connect(id, NULL));
	n = fake_news(fake_cm(id), RDMA_CM_EVENT_ESTABLISHED, 0);
	n->ud_param = (struct rdma_ud_param){
	    .qp_num = 0x42, .qkey = 5, .private_data = n->data, .private_data_len = 136};
	memcpy(n->data, "udp", 4);
	forget();
	e = next();
	DID("");
	assert_int_equal(e->param.ud.qp_num, 0x42);
	assert_int_equal(e->param.ud.qkey, 5);
	assert_string_equal(e->param.ud.private_data, "udp");
	WORKS(rdma_ack_cm_event(e));
	rdma_destroy_qp(id);
	unbound();
}

/* ---- the passive end ---- */

static void accepting(void **state)
{
	struct rdma_cm_event *e;
	struct rdma_cm_id *q;

	(void)state;
	bound(RDMA_PS_TCP);
	WORKS(rdma_listen(id, 0));
	fake_request(fake_cm(id), "request");
	e = next();
	q = e->id;
	assert_int_equal(e->event, RDMA_CM_EVENT_CONNECT_REQUEST);
	assert_ptr_equal(e->listen_id, id);
	assert_ptr_equal(q->context, id->context);
	assert_ptr_equal(q->channel, channel);
	assert_int_equal(q->ps, RDMA_PS_TCP);
	assert_ptr_equal(q->verbs, id->verbs);
	assert_ptr_equal(q->pd, id->pd);
	assert_int_equal(q->route.num_paths, 1);
	assert_string_equal(e->param.conn.private_data, "request");
	assert_int_equal(e->param.conn.qp_num, 0x1234);
	make_qp(q, IBV_QPT_RC);
	forget();
	WORKS(rdma_accept(q, NULL));
	DID("may_accept attr INIT attr RTR attr RTS accept "); /* it is ready before the answer goes */
	assert_int_equal(fake.param.responder_resources,
			 3); /* what was asked for, as far as the device has it */
	assert_int_equal(fake.param.initiator_depth, 128);
	assert_int_equal(fake.attr[IBV_QPS_RTR].max_dest_rd_atomic, 3);
	assert_int_equal(fake.attr[IBV_QPS_RTS].max_rd_atomic, 128);
	WORKS(rdma_ack_cm_event(e));
	fake_news(fake_cm(q), RDMA_CM_EVENT_ESTABLISHED, 0);
	e = next();
	assert_ptr_equal(e->id, q);
	assert_null(e->listen_id);
	WORKS(rdma_ack_cm_event(e));
	rdma_destroy_qp(q);
	WORKS(rdma_destroy_id(q));
	unbound();
}

static void not_accepted(void **state)
{
	struct rdma_conn_param param = {.responder_resources = 2, .initiator_depth = 1};
	struct rdma_cm_event *e;
	struct rdma_cm_id *q;

	(void)state;
	bound(RDMA_PS_TCP);
	fake_request(fake_cm(id), "");
	e = next();
	q = e->id;
	make_qp(q, IBV_QPT_RC);
	forget();
	fake.fail = "may_accept";
	fake.err = EINVAL;
	FAILS(rdma_accept(q, &param), EINVAL);
	DID("may_accept "); /* the queue pair is as it was, for another try */
	forget();
	fake.fail = "accept";
	FAILS(rdma_accept(q, &param), EINVAL);
	DID("may_accept attr INIT attr RTR attr RTS accept ERR ");
	assert_int_equal(fake.attr[IBV_QPS_RTR].max_dest_rd_atomic, 2);
	assert_int_equal(fake.attr[IBV_QPS_RTS].max_rd_atomic, 1);
	WORKS(rdma_ack_cm_event(e));
	rdma_destroy_qp(q);
	WORKS(rdma_destroy_id(q));
	unbound();
}

/* ---- another thread takes an event of the id, and destroys it, before the call returns ---- */

static struct rdma_cm_id *theirs;

static void they_hear_of_the_end(void)
{
	struct rdma_cm_event *e;

	fake_news(fake_cm(theirs), RDMA_CM_EVENT_DISCONNECTED, 0);
	e = next();
	assert_ptr_equal(e->id, theirs);
	WORKS(rdma_ack_cm_event(e));
	rdma_destroy_qp(theirs);
	WORKS(rdma_destroy_id(theirs));
}

static void accepted_and_destroyed(void **state)
{
	struct rdma_cm_event *e;

	(void)state;
	bound(RDMA_PS_TCP);
	fake_request(fake_cm(id), "");
	e = next();
	theirs = e->id;
	WORKS(rdma_ack_cm_event(e));
	make_qp(theirs, IBV_QPT_RC);
	forget();
	fake.meanwhile = they_hear_of_the_end;
	WORKS(rdma_accept(theirs, NULL));
	DID("may_accept attr INIT attr RTR attr RTS accept destroy_qp end ");
	unbound();
}

static void they_hear_of_the_end_there(void)
{
	assert_ptr_equal(theirs->channel, channel);
	they_hear_of_the_end();
}

static void moved_and_destroyed(void **state)
{
	struct ibv_qp_init_attr attr = qp_attr(IBV_QPT_RC);
	struct rdma_event_channel *old;

	(void)state;
	theirs = endpoint(&attr, NULL); /* with a channel of its own */
	channel = rdma_create_event_channel();
	fake.meanwhile = they_hear_of_the_end_there;
	WORKS(rdma_migrate_id(theirs, channel));
	assert_int_equal(fake.channels, 1);
	rdma_destroy_event_channel(channel);
	bound(RDMA_PS_TCP);
	theirs = id;
	make_qp(theirs, IBV_QPT_RC);
	old = channel;
	channel = rdma_create_event_channel();
	fake.meanwhile = they_hear_of_the_end_there;
	WORKS(rdma_migrate_id(theirs, channel));
	rdma_destroy_event_channel(old);
	rdma_destroy_event_channel(channel);
	assert_int_equal(fake.ids + fake.channels + fake.events + fake.qps + fake.cqs, 0);
}

/* Another thread is about to make the listener synchronous, or to move it. */
static void taken_before_it_moves(void **state)
{
	struct rdma_event_channel other;
	struct rdma_cm_event *e;

	(void)state;
	for (int sync = 0; sync < 2; sync++) {
		bound(RDMA_PS_TCP);
		WORKS(rdma_listen(id, 0));
		fake_request(fake_cm(id), "");
		id->channel = &other;
		vb_rdma_id(id)->sync = sync;
		e = next();
		assert_ptr_equal(e->id->channel, channel);
		assert_false(vb_rdma_id(e->id)->sync);
		vb_rdma_id(id)->sync = false;
		theirs = e->id;
		WORKS(rdma_ack_cm_event(e));
		WORKS(rdma_destroy_id(theirs));
		unbound();
	}
}

static void they_hear_of_a_request(void)
{
	struct rdma_cm_event *e;
	struct rdma_cm_id *q;

	fake_request(fake_cm(theirs), "");
	e = next();
	q = e->id;
	WORKS(rdma_ack_cm_event(e));
	WORKS(rdma_destroy_id(q));
	WORKS(rdma_destroy_id(theirs));
	rdma_destroy_event_channel(channel);
}

static void heard_and_destroyed(void **state)
{
	(void)state;
	bound(RDMA_PS_TCP);
	theirs = id;
	fake.meanwhile = they_hear_of_a_request;
	WORKS(rdma_listen(id, 0));
	DID("listen route end end "); /* the route is the request's */
	/* one that is not bound, too, which shows its port before it listens */
	fake_reset();
	channel = rdma_create_event_channel();
	WORKS(rdma_create_id(channel, &theirs, NULL, RDMA_PS_TCP));
	forget();
	fake.meanwhile = they_hear_of_a_request;
	WORKS(rdma_listen(theirs, 0));
	DID("route bind route listen route end end ");
	assert_int_equal(fake.ids + fake.channels + fake.events, 0);
}

static void listening_at_any_address(void **state)
{
	(void)state;
	fake_reset();
	channel = rdma_create_event_channel();
	WORKS(rdma_create_id(channel, &id, NULL, RDMA_PS_TCP));
	fake.fail = "bind";
	fake.err = EADDRNOTAVAIL;
	FAILS(rdma_listen(id, 0), EADDRNOTAVAIL);
	fake.fail = NULL;
	WORKS(rdma_listen(id, 0));
	assert_int_equal(rdma_get_src_port(id), htons(40000));
	unbound();
}

static void refusing(void **state)
{
	struct rdma_cm_event *e;
	struct rdma_cm_id *q;

	(void)state;
	bound(RDMA_PS_TCP);
	fake_request(fake_cm(id), "");
	e = next();
	q = e->id;
	WORKS(rdma_ack_cm_event(e));
	WORKS(rdma_reject(q, "no", 2));
	assert_int_equal(fake.reason, 28);
	assert_memory_equal(fake.data, "no", 2);
	WORKS(rdma_reject_ece(q, NULL, 7)); /* without data the length means nothing */
	assert_int_equal(fake.reason, 35);
	WORKS(rdma_destroy_id(q));
	unbound();
}

static void request_is_dropped(void **state)
{
	(void)state;
	bound(RDMA_PS_TCP);
	fake_request(fake_cm(id), "");
	fake.fail = "route";
	fake.err = ENOMEM;
	no_more();
	assert_int_equal(fake.ids, 1); /* the connection has ended */
	assert_non_null(strstr(fake.said, "request"));
	fake.fail = NULL;
	unbound();
}

static void ece_of_one_vendor(void **state)
{
	struct rdma_cm_event *e;
	struct rdma_cm_id *q;

	(void)state;
	for (unsigned theirs = 5; theirs < 7; theirs++) {
		bound(RDMA_PS_TCP);
		fake.ece = (struct ibv_ece){.vendor_id = 5, .options = 0xff};
		fake_request(fake_cm(id), "")->ece = (struct ibv_ece){.vendor_id = theirs, .options = 0xf3};
		e = next();
		q = e->id;
		forget();
		make_qp(q, IBV_QPT_RC);
		DID(theirs == 5 ? "create_cq create_cq create_qp set_ece attr INIT "
				: "create_cq create_cq create_qp attr INIT ");
		WORKS(rdma_accept(q, NULL));
		assert_int_equal(fake.param.ece.vendor_id, theirs);
		assert_int_equal(fake.param.ece.options, theirs == 5 ? 3 : 0);
		WORKS(rdma_ack_cm_event(e));
		rdma_destroy_qp(q);
		WORKS(rdma_destroy_id(q));
		unbound();
	}
}

static struct rdma_cm_id *listener(struct ibv_qp_init_attr *attr)
{
	struct rdma_addrinfo *ai = info(NULL, RAI_PASSIVE, IBV_QPT_RC, RDMA_PS_TCP);
	struct rdma_cm_id *ep;

	fake_reset();
	WORKS(rdma_create_ep(&ep, ai, NULL, attr));
	rdma_freeaddrinfo(ai);
	WORKS(rdma_listen(ep, 0));
	return ep;
}

static void requests_are_fetched(void **state)
{
	struct ibv_qp_init_attr attr = qp_attr(IBV_QPT_RC);
	struct rdma_cm_id *ep = listener(&attr), *q = NULL;

	(void)state;
	assert_null(ep->qp);
	assert_null(ep->verbs);
	fake_request(fake_cm(ep), "ask");
	WORKS(rdma_get_request(ep, &q));
	assert_non_null(q->qp);
	assert_int_equal(fake.qp_attr.cap.max_recv_wr, 7);
	assert_ptr_equal(q->pd, q->qp->pd);
	assert_ptr_not_equal(q->channel, ep->channel);
	assert_string_equal(q->event->param.conn.private_data, "ask");
	fake_news(fake_cm(q), RDMA_CM_EVENT_ESTABLISHED, 0);
	FAILS(rdma_accept(q, &q->event->param.conn), EINVAL); /* initiator_depth 200 is beyond the device */
	assert_string_equal(q->event->param.conn.private_data, "ask");
	q->event->param.conn.initiator_depth = 4;
	WORKS(rdma_accept(q, &q->event->param.conn));
	assert_int_equal(fake.param.initiator_depth, 4);
	assert_int_equal(q->event->event, RDMA_CM_EVENT_ESTABLISHED);
	rdma_destroy_ep(q);
	rdma_destroy_ep(ep);
	assert_int_equal(fake.events + fake.ids + fake.channels + fake.qps + fake.cqs, 0);
}

static void requests_fail(void **state)
{
	struct ibv_qp_init_attr attr = qp_attr(IBV_QPT_RC);
	struct rdma_cm_id *ep = listener(&attr), *q = NULL;

	(void)state;
	fake_request(fake_cm(ep), "ask");
	fake.fail = "create_qp";
	fake.err = ENOMEM;
	FAILS(rdma_get_request(ep, &q), ENOMEM);
	assert_int_equal(fake.ids, 1); /* whoever asked is refused */
	assert_int_equal(fake.events, 0);
	fake.fail = NULL;
	fake_news(fake_cm(ep), RDMA_CM_EVENT_DEVICE_REMOVAL, 0);
	FAILS(rdma_get_request(ep, &q), EINVAL);
	assert_int_equal(ep->event->event, RDMA_CM_EVENT_DEVICE_REMOVAL);
	rdma_destroy_ep(ep);
	bound(RDMA_PS_TCP);
	FAILS(rdma_get_request(id, &q), EINVAL); /* not synchronous */
	unbound();
}

static void datagrams_are_accepted(void **state)
{
	struct rdma_addrinfo *ai = info(NULL, RAI_PASSIVE, IBV_QPT_UD, RDMA_PS_UDP);
	struct ibv_qp_init_attr attr = qp_attr(IBV_QPT_UD);
	struct rdma_cm_id *ep, *q = NULL;

	(void)state;
	fake_reset();
	WORKS(rdma_create_ep(&ep, ai, NULL, &attr));
	rdma_freeaddrinfo(ai);
	fake_request(fake_cm(ep), "ask");
	WORKS(rdma_get_request(ep, &q));
	assert_string_equal(q->event->param.ud.private_data, "ask");
	forget();
	WORKS(rdma_accept(q, NULL)); /* no event follows, so nothing is waited for */
	DID("accept ");
	assert_null(q->event);
	WORKS(rdma_disconnect(q)); /* there is no connection to hear of */
	assert_null(q->event);
	rdma_destroy_ep(q);
	rdma_destroy_ep(ep);
	assert_int_equal(fake.events + fake.ids + fake.channels + fake.qps + fake.cqs, 0);
}

/* ---- queue pairs, SRQs ---- */

static void queue_pairs(void **state)
{
	struct ibv_qp_init_attr attr = qp_attr(IBV_QPT_RC);
	struct ibv_cq *mine;

	(void)state;
	bound(RDMA_PS_TCP);
	FAILS(rdma_create_qp(id, fake_other_pd(), &attr), EINVAL);
	WORKS(rdma_create_qp(id, NULL, &attr));
	assert_ptr_equal(id->qp->pd, id->pd);
	assert_int_equal(fake.cq_size[0], 7);
	assert_int_equal(fake.cq_size[1], 5);
	assert_ptr_equal(id->send_cq->cq_context, id); /* rdma_get_send_comp() asserts it */
	assert_ptr_equal(id->recv_cq->cq_context, id);
	assert_ptr_equal(id->send_cq->channel, id->send_cq_channel);
	assert_ptr_equal(attr.send_cq, id->send_cq);
	FAILS(rdma_create_qp(id, NULL, &attr), EINVAL); /* a second one */
	rdma_destroy_qp(id);
	assert_null(id->qp);
	assert_null(id->send_cq);
	assert_null(id->recv_cq_channel);
	assert_int_equal(fake.cqs + fake.comp_channels, 0);

	mine = ibv_create_cq(id->verbs, 3, NULL, NULL, 0);
	attr = qp_attr(IBV_QPT_RC);
	attr.recv_cq = mine;
	WORKS(rdma_create_qp(id, NULL, &attr));
	assert_null(id->recv_cq); /* the program's is its own */
	assert_ptr_equal(id->qp->recv_cq, mine);
	assert_non_null(id->send_cq);
	rdma_destroy_qp(id);
	assert_int_equal(fake.cqs, 1);
	ibv_destroy_cq(mine);
	fake.cqs = 0;
	unbound();
}

/* What a program has put into both pairs of fields goes once. */
static void one_queue_in_both_fields(void **state)
{
	struct ibv_qp_init_attr attr = qp_attr(IBV_QPT_RC);
	struct ibv_cq *mine;

	(void)state;
	bound(RDMA_PS_TCP);
	id->send_cq_channel = id->recv_cq_channel = ibv_create_comp_channel(id->verbs);
	id->send_cq = id->recv_cq = ibv_create_cq(id->verbs, 9, id, id->send_cq_channel, 0);
	attr.send_cq = attr.recv_cq = id->send_cq;
	WORKS(rdma_create_qp(id, NULL, &attr));
	assert_int_equal(fake.cqs, 1);
	rdma_destroy_qp(id);
	assert_int_equal(fake.cqs, 0);
	assert_int_equal(fake.comp_channels, 0);
	assert_null(id->send_cq);
	assert_null(id->recv_cq);
	assert_null(id->send_cq_channel);
	assert_null(id->recv_cq_channel);

	id->send_cq_channel = id->recv_cq_channel = ibv_create_comp_channel(id->verbs);
	mine = ibv_create_cq(id->verbs, 9, id, NULL, 0); /* which stands in no field */
	attr.send_cq = attr.recv_cq = mine;
	WORKS(rdma_create_qp(id, NULL, &attr));
	rdma_destroy_qp(id);
	assert_int_equal(fake.cqs, 1);
	assert_int_equal(fake.comp_channels, 0);
	assert_null(id->send_cq_channel);
	assert_null(id->recv_cq_channel);
	ibv_destroy_cq(mine);
	unbound();
}

static void queue_pair_fails(void **state)
{
	static const char *const steps[] = {"create_cq", "create_qp", "attr", "INIT"};
	struct ibv_qp_init_attr attr;

	(void)state;
	bound(RDMA_PS_TCP);
	for (size_t i = 0; i < sizeof steps / sizeof steps[0]; i++) {
		attr = qp_attr(IBV_QPT_RC);
		fake.fail = steps[i];
		fake.err = ENOMEM;
		fake.skip = i == 0;
		FAILS(rdma_create_qp(id, NULL, &attr), ENOMEM);
		assert_null(id->qp);
		assert_null(id->send_cq);
		assert_null(id->recv_cq);
		assert_null(attr.send_cq); /* a second attempt must not find queues that are gone */
		assert_null(attr.recv_cq);
		assert_int_equal(fake.cqs + fake.comp_channels + fake.qps, 0);
	}
	unbound();
}

static void unbound_id(void **state)
{
	struct ibv_srq_init_attr srq = {.attr = {.max_wr = 1}};
	struct ibv_qp_init_attr attr = qp_attr(IBV_QPT_RC);
	struct rdma_conn_param param = {0};

	(void)state;
	fake_reset();
	channel = rdma_create_event_channel();
	WORKS(rdma_create_id(channel, &id, NULL, RDMA_PS_TCP));
	FAILS(rdma_create_qp(id, NULL, &attr), EINVAL);
	FAILS(rdma_create_srq(id, NULL, &srq), EINVAL);
	FAILS(rdma_connect(id, &param), EINVAL);
	FAILS(rdma_accept(id, &param), EINVAL);
	FAILS(rdma_disconnect(id), EINVAL);
	unbound();
}

static void shared_receives(void **state)
{
	struct ibv_srq_init_attr attr = {.attr = {.max_wr = 9, .max_sge = 1}};
	struct ibv_srq_init_attr_ex ex = {.attr = {.max_wr = 9}};
	struct ibv_srq *srq;

	(void)state;
	bound(RDMA_PS_TCP);
	FAILS(rdma_create_srq_ex(id, &ex), EINVAL); /* no type */
	FAILS(rdma_create_srq(id, fake_other_pd(), &attr), EINVAL);
	fake.fail = "create_srq";
	fake.err = ENOMEM;
	FAILS(rdma_create_srq(id, NULL, &attr), ENOMEM);
	assert_int_equal(attr.attr.max_wr, 109); /* written back then, too */
	assert_null(id->srq);
	fake.fail = NULL;
	attr.attr.max_wr = 9;
	WORKS(rdma_create_srq(id, NULL, &attr));
	assert_int_equal(attr.attr.max_wr, 109);
	assert_ptr_equal(id->srq->pd, id->pd);
	assert_int_equal(fake.srq_attr.srq_type, IBV_SRQT_BASIC);
	assert_null(id->recv_cq);
	srq = id->srq;
	FAILS(rdma_create_srq(id, NULL, &attr), EINVAL); /* only one */
	assert_ptr_equal(id->srq, srq);
	make_qp(id, IBV_QPT_RC);
	assert_ptr_equal(id->qp->srq, srq); /* inherited */
	WORKS(rdma_connect(id, NULL));
	assert_int_equal(fake.param.srq, 1);
	rdma_destroy_srq(id); /* below it ends with the last queue pair that uses it */
	assert_null(id->srq);
	assert_int_equal(fake.srqs, 0);
	rdma_destroy_qp(id);
	unbound();
}

static struct rdma_cm_id *xrc_target(void)
{
	struct rdma_addrinfo *ai = info("192.0.2.1", RAI_PASSIVE, IBV_QPT_XRC_RECV, RDMA_PS_IB);
	struct rdma_cm_id *ep;

	fake_reset();
	WORKS(rdma_create_ep(&ep, ai, NULL, NULL));
	rdma_freeaddrinfo(ai);
	return ep;
}

static void xrc_srq(void **state)
{
	struct ibv_srq_init_attr attr = {.attr = {.max_wr = 9, .max_sge = 1}};
	struct rdma_cm_id *ep = xrc_target();

	(void)state;
	fake.fail = "create_srq";
	fake.err = ENOMEM;
	FAILS(rdma_create_srq(ep, NULL, &attr), ENOMEM);
	assert_null(ep->recv_cq);
	assert_int_equal(fake.cqs + fake.comp_channels, 0);
	fake.fail = NULL;
	attr.attr.max_wr = 9;
	WORKS(rdma_create_srq(ep, NULL, &attr));
	assert_int_equal(fake.srq_attr.srq_type, IBV_SRQT_XRC);
	assert_int_equal(fake.cq_size[0], 9);
	assert_ptr_equal(fake.srq_attr.cq, ep->recv_cq);
	assert_ptr_equal(ep->recv_cq->cq_context, ep);
	assert_non_null(ep->recv_cq_channel);
	assert_int_equal(fake.xrcds, 1);
	rdma_destroy_srq(ep);
	assert_null(ep->recv_cq);
	assert_int_equal(fake.cqs + fake.comp_channels + fake.srqs, 0);
	rdma_destroy_ep(ep);
}

/* As rdma_xserver does it: the queue pair comes first, with receive requests that it never has. */
static void xrc_srq_after_qp(void **state)
{
	struct ibv_srq_init_attr attr = {.attr = {.max_wr = 9, .max_sge = 1}};
	struct rdma_cm_id *ep = xrc_target();
	struct ibv_cq *of_qp;

	(void)state;
	make_qp(ep, IBV_QPT_XRC_RECV);
	of_qp = ep->recv_cq;
	assert_int_equal(fake.cqs, 2);
	assert_int_equal(fake.xrcds, 1); /* the same domain for both */
	assert_non_null(ep->pd);	 /* for regions, though the target itself has none */
	WORKS(rdma_create_srq(ep, NULL, &attr));
	assert_ptr_not_equal(ep->recv_cq, of_qp);
	assert_int_equal(fake.cq_size[2], 9);
	rdma_destroy_qp(ep);
	assert_non_null(ep->recv_cq); /* which the SRQ needs */
	rdma_destroy_srq(ep);
	assert_int_equal(fake.cqs + fake.comp_channels + fake.srqs + fake.qps, 0);
	rdma_destroy_ep(ep);
}

/* ---- groups ---- */

static void groups(void **state)
{
	struct sockaddr_in group = address("239.1.2.3", 0), other = address("239.1.2.4", 0);
	struct rdma_cm_join_mc_attr_ex ex = {.comp_mask = 3,
					     .join_flags = RDMA_MC_JOIN_FLAG_SENDONLY_FULLMEMBER,
					     .addr = (struct sockaddr *)&other};
	struct rdma_cm_event *e;

	(void)state;
	bound(RDMA_PS_UDP);
	make_qp(id, IBV_QPT_UD);
	forget();
	WORKS(rdma_join_multicast(id, (struct sockaddr *)&group, &group));
	DID("join ");
	e = next(); /* whoever takes the event attaches */
	DID("join attach ");
	assert_int_equal(e->event, RDMA_CM_EVENT_MULTICAST_JOIN);
	assert_ptr_equal(e->param.ud.private_data, &group);
	assert_int_equal(e->param.ud.qp_num, 0xffffff);
	WORKS(rdma_ack_cm_event(e));
	WORKS(rdma_join_multicast_ex(id, &ex, &other));
	assert_int_equal(fake.flags, RDMA_MC_JOIN_FLAG_SENDONLY_FULLMEMBER);
	forget();
	e = next();
	DID(""); /* which only sends */
	assert_ptr_equal(e->param.ud.private_data, &other);
	WORKS(rdma_ack_cm_event(e));
	forget();
	WORKS(rdma_leave_multicast(id, (struct sockaddr *)&other));
	DID("leave ");
	forget();
	WORKS(rdma_leave_multicast(id, (struct sockaddr *)&group));
	DID("detach leave ");
	FAILS(rdma_leave_multicast(id, (struct sockaddr *)&group), EADDRNOTAVAIL);
	rdma_destroy_qp(id);
	unbound();
}

/* The program attaches the queue pair, as rdma_cm had none when the event was taken.  Leaving detaches it but
 * for a group that the id only sends to. */
static void groups_joined_first(void **state)
{
	struct sockaddr_in group = address("239.1.2.3", 0), other = address("239.1.2.4", 0),
			   late = address("239.1.2.5", 0);
	struct rdma_cm_join_mc_attr_ex ex = {.comp_mask = 3,
					     .join_flags = RDMA_MC_JOIN_FLAG_SENDONLY_FULLMEMBER,
					     .addr = (struct sockaddr *)&other};

	(void)state;
	bound(RDMA_PS_UDP);
	WORKS(rdma_join_multicast(id, (struct sockaddr *)&group, NULL));
	WORKS(rdma_join_multicast_ex(id, &ex, NULL));
	for (int i = 0; i < 2; i++)
		WORKS(rdma_ack_cm_event(next()));
	DID("join join ");
	WORKS(rdma_join_multicast(id, (struct sockaddr *)&late, NULL));
	make_qp(id, IBV_QPT_UD);
	forget();
	WORKS(rdma_leave_multicast(id, (struct sockaddr *)&late));
	DID("leave "); /* what its event would have said nobody knows */
	WORKS(rdma_leave_multicast(id, (struct sockaddr *)&other));
	DID("leave leave ");
	forget();
	WORKS(rdma_leave_multicast(id, (struct sockaddr *)&group));
	DID("detach leave ");
	rdma_destroy_qp(id);
	unbound();
}

static void groups_in_vain(void **state)
{
	struct sockaddr_in group = address("239.1.2.3", 0);
	struct rdma_cm_join_mc_attr_ex ex = {.comp_mask = 4, .addr = (struct sockaddr *)&group};
	struct rdma_cm_event *e;

	(void)state;
	bound(RDMA_PS_UDP);
	FAILS(rdma_join_multicast_ex(id, &ex, NULL), EOPNOTSUPP);
	ex.comp_mask = 1;
	FAILS(rdma_join_multicast_ex(id, &ex, NULL), EINVAL);
	ex.comp_mask = 3;
	ex.join_flags = RDMA_MC_JOIN_FLAG_RESERVED;
	FAILS(rdma_join_multicast_ex(id, &ex, NULL), EINVAL);
	FAILS(rdma_join_multicast(id, NULL, NULL), EINVAL);
	fake.fail = "join";
	fake.err = ENOMEM;
	FAILS(rdma_join_multicast(id, (struct sockaddr *)&group, NULL), ENOMEM);
	FAILS(rdma_leave_multicast(id, (struct sockaddr *)&group), EADDRNOTAVAIL);
	make_qp(id, IBV_QPT_UD);
	fake.fail = "attach";
	WORKS(rdma_join_multicast(id, (struct sockaddr *)&group, &group));
	e = next();
	assert_int_equal(e->event, RDMA_CM_EVENT_MULTICAST_ERROR);
	assert_int_equal(e->status, -ENOMEM);
	assert_ptr_equal(e->param.ud.private_data, &group);
	WORKS(rdma_ack_cm_event(e));
	forget();
	WORKS(rdma_leave_multicast(id, (struct sockaddr *)&group));
	DID("leave "); /* it never was attached */
	fake.fail = NULL;
	/* left before the event is taken: the event is not for the program any more */
	WORKS(rdma_join_multicast(id, (struct sockaddr *)&group, &group));
	WORKS(rdma_leave_multicast(id, (struct sockaddr *)&group));
	no_more();
	/* joined, and never left: the queue pair is detached before it goes, and nothing stays */
	WORKS(rdma_join_multicast(id, (struct sockaddr *)&group, &group));
	WORKS(rdma_ack_cm_event(next()));
	forget();
	rdma_destroy_qp(id);
	DID("detach destroy_qp ");
	unbound();
}

/* ---- names ---- */

static void addresses_of_names(void **state)
{
	struct rdma_addrinfo hints = {0}, *ai = NULL;
	struct sockaddr_in src = address("192.0.2.77", 5);

	(void)state;
	fake_reset();
	FAILS(rdma_getaddrinfo(NULL, NULL, NULL, &ai), EINVAL);
	WORKS(rdma_getaddrinfo("192.0.2.9", "7471", NULL, &ai));
	assert_int_equal(ai->ai_flags, 0);
	assert_int_equal(ai->ai_qp_type, IBV_QPT_RC);
	assert_int_equal(ai->ai_port_space, RDMA_PS_TCP);
	assert_int_equal(ai->ai_family, AF_INET);
	assert_int_equal(ai->ai_src_len, 0);
	assert_int_equal(((struct sockaddr_in *)ai->ai_dst_addr)->sin_port, htons(7471));
	assert_null(ai->ai_next);
	rdma_freeaddrinfo(ai);
	hints = (struct rdma_addrinfo){
	    .ai_port_space = RDMA_PS_UDP, .ai_src_addr = (struct sockaddr *)&src, .ai_src_len = sizeof src};
	WORKS(rdma_getaddrinfo("192.0.2.9", "7471", &hints, &ai));
	assert_int_equal(ai->ai_qp_type, IBV_QPT_UD);
	assert_int_equal(ai->ai_port_space, RDMA_PS_UDP);
	assert_memory_equal(ai->ai_src_addr, &src, sizeof src);
	rdma_freeaddrinfo(ai);
	hints = (struct rdma_addrinfo){
	    .ai_flags = RAI_PASSIVE, .ai_port_space = RDMA_PS_IB, .ai_qp_type = IBV_QPT_XRC_RECV};
	WORKS(rdma_getaddrinfo(NULL, "7471", &hints, &ai));
	assert_int_equal(ai->ai_flags, RAI_PASSIVE);
	assert_int_equal(ai->ai_qp_type, IBV_QPT_XRC_RECV);
	assert_int_equal(ai->ai_port_space, RDMA_PS_IB);
	assert_int_equal(ai->ai_dst_len, 0);
	assert_int_equal(((struct sockaddr_in *)ai->ai_src_addr)->sin_port, htons(7471));
	rdma_freeaddrinfo(ai);
	hints = (struct rdma_addrinfo){.ai_flags = RAI_NUMERICHOST};
	assert_int_equal(rdma_getaddrinfo("no.number", "7471", &hints, &ai), EAI_NONAME);
	hints = (struct rdma_addrinfo){.ai_qp_type = IBV_QPT_UD, .ai_port_space = RDMA_PS_TCP};
	assert_int_not_equal(rdma_getaddrinfo("192.0.2.9", "7471", &hints, &ai), 0);
}

/* The C library's, which this program is asked for first. */
static const struct addrinfo *hints_asked;

int getaddrinfo(const char *node, const char *service, const struct addrinfo *hints, struct addrinfo **res)
{
	int (*next)(const char *node, const char *service, const struct addrinfo *hints,
		    struct addrinfo **res) = dlsym(RTLD_NEXT, "getaddrinfo");

	hints_asked = hints;
	return next(node, service, hints, res);
}

/* To no hints it answers with families only of which this host has addresses, to empty ones with all. */
static void no_hints_are_the_c_librarys(void **state)
{
	struct rdma_addrinfo hints = {0}, *ai = NULL;

	(void)state;
	WORKS(rdma_getaddrinfo("localhost", "7471", NULL, &ai));
	assert_null(hints_asked);
	rdma_freeaddrinfo(ai);
	WORKS(rdma_getaddrinfo("localhost", "7471", &hints, &ai));
	assert_non_null(hints_asked);
	rdma_freeaddrinfo(ai);
}

static void addresses_of_gids(void **state)
{
	struct rdma_addrinfo hints = {.ai_flags = RAI_FAMILY | RAI_NUMERICHOST,
				      .ai_family = AF_IB,
				      .ai_port_space = RDMA_PS_TCP},
			     *ai = NULL;
	struct sockaddr_ib *ib;

	(void)state;
	WORKS(rdma_getaddrinfo("fe80::2:c903:1:2", "7471", &hints, &ai));
	ib = (struct sockaddr_ib *)ai->ai_dst_addr;
	assert_int_equal(ai->ai_family, AF_IB);
	assert_int_equal(ai->ai_dst_len, sizeof *ib);
	assert_int_equal(ib->sib_family, AF_IB);
	assert_true(ib->sib_sid == htobe64(0x0000000001060000 + 7471));
	assert_true(ib->sib_sid_mask == ~0ull);
	assert_int_equal(((uint8_t *)&ib->sib_addr)[0], 0xfe);
	assert_int_equal(((uint8_t *)&ib->sib_addr)[15], 2);
	rdma_freeaddrinfo(ai);
}

static void hints_alone(void **state)
{
	struct sockaddr_in src = address("192.0.2.1", 1), dst = address("192.0.2.2", 2);
	struct rdma_addrinfo hints = {.ai_family = AF_INET,
				      .ai_qp_type = IBV_QPT_UD,
				      .ai_port_space = RDMA_PS_UDP,
				      .ai_src_addr = (struct sockaddr *)&src,
				      .ai_src_len = sizeof src,
				      .ai_dst_addr = (struct sockaddr *)&dst,
				      .ai_dst_len = sizeof dst},
			     *ai = NULL;

	(void)state;
	WORKS(rdma_getaddrinfo(NULL, NULL, &hints, &ai));
	assert_memory_equal(ai->ai_src_addr, &src, sizeof src);
	assert_memory_equal(ai->ai_dst_addr, &dst, sizeof dst);
	assert_int_equal(ai->ai_qp_type, IBV_QPT_UD);
	rdma_freeaddrinfo(ai);
}

static int threads(void)
{
	DIR *d = opendir("/proc/self/task");
	int n = 0;

	assert_non_null(d);
	for (struct dirent *e; (e = readdir(d));)
		n += e->d_name[0] != '.';
	closedir(d);
	return n;
}

/* Until the thread has its answer. */
static int answer(struct rdma_addrinfo **ai)
{
	for (int i = 0; i < 5000; i++) {
		if (!rdma_query_addrinfo(id, ai))
			return 0;
		if (!strstr(fake.said, "still running"))
			return -1;
		usleep(1000);
	}
	return -1;
}

static void names_in_the_background(void **state)
{
	struct rdma_addrinfo hints = {.ai_flags = RAI_NUMERICHOST}, *ai = NULL;
	struct rdma_cm_event *e;

	(void)state;
	bound(RDMA_PS_TCP);
	FAILS(rdma_query_addrinfo(id, &ai), ENODATA);
	hints.ai_flags = 16; /* RAI_SA */
	FAILS(rdma_resolve_addrinfo(id, NULL, "1", &hints), EOPNOTSUPP);
	hints.ai_flags = 16 | 32; /* and RAI_DNS */
	FAILS(rdma_resolve_addrinfo(id, NULL, "1", &hints), EINVAL);
	hints.ai_flags = 32 | RAI_NUMERICHOST; /* which says what is done anyway */
	WORKS(rdma_resolve_addrinfo(id, "192.0.2.9", "7471", &hints));
	assert_int_equal(answer(&ai), 0);
	assert_int_equal(((struct sockaddr_in *)ai->ai_dst_addr)->sin_port, htons(7471));
	rdma_freeaddrinfo(ai);
	e = next();
	assert_int_equal(e->event, 16);
	assert_int_equal(e->status, 0);
	WORKS(rdma_ack_cm_event(e));
	WORKS(rdma_resolve_addrinfo(id, "no.number", "7471", &hints));
	assert_int_equal(answer(&ai), -1);
	e = next();
	assert_int_equal(e->event, 17);
	assert_true(e->status < 0);
	WORKS(rdma_ack_cm_event(e));
	/* nobody waits for the answer */
	WORKS(rdma_resolve_addrinfo(id, "192.0.2.9", "7471", &hints));
	fake_cm(id)->channel->count = 0;
	unbound();
	for (int i = 0; threads() > 1 && i < 5000; i++)
		usleep(1000);
	assert_int_equal(threads(), 1);
}

static void written_events(void **state)
{
	struct rdma_cm_event *e;
	uint64_t arg = 0;

	(void)state;
	bound(RDMA_PS_TCP);
	FAILS(rdma_write_cm_event(id, RDMA_CM_EVENT_ESTABLISHED, 0, 0), EINVAL);
	FAILS(rdma_write_cm_event(id, (enum rdma_cm_event_type)19, 0, 0), EINVAL);
	WORKS(rdma_write_cm_event(id, (enum rdma_cm_event_type)18, 0x11223344, 0x55667788aabbccddull));
	e = next();
	memcpy(&arg, &e->param, sizeof arg);
	assert_int_equal(e->event, 18);
	assert_int_equal(e->status, 0x11223344);
	assert_true(arg == 0x55667788aabbccddull);
	WORKS(rdma_ack_cm_event(e));
	unbound();
}

static void sockets_are_absent(void **state)
{
	(void)state;
	FAILS(rsocket(AF_INET, SOCK_STREAM, 0), EOPNOTSUPP);
	FAILS((int)rsend(3, "x", 1, 0), EOPNOTSUPP);
	FAILS((int)riowrite(3, "x", 1, 0, 0), EOPNOTSUPP);
	FAILS(rfcntl(3, 1), EOPNOTSUPP);
	FAILS(repoll_ctl(3, EPOLL_CTL_ADD, 4, NULL), EOPNOTSUPP);
	FAILS(repoll_wait(3, NULL, 1, 0), EOPNOTSUPP);
	FAILS(repoll_create(0), EOPNOTSUPP);
	assert_string_equal(fake.said, "repoll_create: rsockets are not supported");
}

/* A child opens its own devices. */
static void child_begins_anew(void **state)
{
	struct sockaddr_in in = address("192.0.2.1", 7471);
	struct rdma_cm_id *mine;
	int status = 0;
	pid_t pid;

	(void)state;
	bound(RDMA_PS_TCP);
	pid = fork();
	if (!pid) {
		bool ok = !rdma_create_id(channel, &mine, NULL, RDMA_PS_TCP) &&
			  !rdma_bind_addr(mine, (struct sockaddr *)&in) && mine->verbs != id->verbs &&
			  mine->pd->context == mine->verbs && !rdma_destroy_id(mine) && !rdma_destroy_id(id);

		_exit(ok ? 0 : 1);
	}
	assert_int_equal(waitpid(pid, &status, 0), pid);
	assert_int_equal(status, 0);
	unbound();
}

int main(void)
{
	const struct CMUnitTest tests[] = {
	    cmocka_unit_test(one_device_for_all),
	    cmocka_unit_test(bad_addresses),
	    cmocka_unit_test(backlog),
	    cmocka_unit_test(routes),
	    cmocka_unit_test(names),
	    cmocka_unit_test(destroyed_behind_its_back),
	    cmocka_unit_test(endpoint_connects),
	    cmocka_unit_test(connecting_in_vain),
	    cmocka_unit_test(endpoint_fails),
	    cmocka_unit_test(too_much_private_data),
	    cmocka_unit_test(migration),
	    cmocka_unit_test(without_a_queue_pair),
	    cmocka_unit_test(too_deep),
	    cmocka_unit_test(answer_in_vain),
	    cmocka_unit_test(destroyed_while_in_use),
	    cmocka_unit_test(lookup_of_datagrams),
	    cmocka_unit_test(accepting),
	    cmocka_unit_test(not_accepted),
	    cmocka_unit_test(accepted_and_destroyed),
	    cmocka_unit_test(moved_and_destroyed),
	    cmocka_unit_test(taken_before_it_moves),
	    cmocka_unit_test(heard_and_destroyed),
	    cmocka_unit_test(listening_at_any_address),
	    cmocka_unit_test(refusing),
	    cmocka_unit_test(request_is_dropped),
	    cmocka_unit_test(ece_of_one_vendor),
	    cmocka_unit_test(requests_are_fetched),
	    cmocka_unit_test(requests_fail),
	    cmocka_unit_test(datagrams_are_accepted),
	    cmocka_unit_test(queue_pairs),
	    cmocka_unit_test(one_queue_in_both_fields),
	    cmocka_unit_test(queue_pair_fails),
	    cmocka_unit_test(unbound_id),
	    cmocka_unit_test(shared_receives),
	    cmocka_unit_test(xrc_srq),
	    cmocka_unit_test(xrc_srq_after_qp),
	    cmocka_unit_test(groups),
	    cmocka_unit_test(groups_joined_first),
	    cmocka_unit_test(groups_in_vain),
	    cmocka_unit_test(addresses_of_names),
	    cmocka_unit_test(no_hints_are_the_c_librarys),
	    cmocka_unit_test(addresses_of_gids),
	    cmocka_unit_test(hints_alone),
	    cmocka_unit_test(names_in_the_background),
	    cmocka_unit_test(written_events),
	    cmocka_unit_test(sockets_are_absent),
	    cmocka_unit_test(child_begins_anew),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
