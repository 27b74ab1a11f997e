/* Identifiers of rdma_cm over the whole protocol, in virtual time: what a program on either side sees of a
 * connection, from the resolved address to TIMEWAIT_EXIT, and of all the ways in which it fails. */
#include "cm_below.h"

#include <errno.h>
#include <poll.h>
#include <string.h>

#include "base/clock.h"
#include "cm/id.h"

enum { PORT = 7471 };

/* Both ends. */
struct two {
	struct vb_cm_channel *there, *here; /* the listener's, the client's */
	struct vb_cm_id *listener, *client, *server;
};

static struct vb_cm_id *new_id(struct vb_cm_channel *c, enum rdma_port_space ps, enum ibv_qp_type type)
{
	struct vb_cm_id *id;

	assert_int_equal(vb_cm_id_new(&id, c, (void *)0x77, ps, type), 0);
	return id;
}

static void listen_at(struct two *t, enum rdma_port_space ps, enum ibv_qp_type type, const char *at,
		      int backlog)
{
	t->there = below_channel(NULL);
	t->here = below_channel(NULL);
	t->listener = new_id(t->there, ps, type);
	assert_int_equal(vb_cm_id_bind(t->listener, below_addr(at, PORT)), 0);
	assert_int_equal(vb_cm_id_listen(t->listener, backlog), 0);
}

static struct vb_cm_id *resolve(struct vb_cm_channel *c, enum rdma_port_space ps, enum ibv_qp_type type,
				const char *to)
{
	struct vb_cm_id *id = new_id(c, ps, type);

	assert_int_equal(vb_cm_id_resolve_addr(id, NULL, below_addr(to, PORT), 2000), 0);
	assert_int_equal(below_next(c, RDMA_CM_EVENT_ADDR_RESOLVED).status, 0);
	assert_int_equal(vb_cm_id_resolve_route(id, 2000), 0);
	assert_int_equal(below_next(c, RDMA_CM_EVENT_ROUTE_RESOLVED).status, 0);
	return id;
}

static const struct vb_cm_param asking = {.private_data = "hello",
					  .private_len = 6,
					  .responder_resources = 3,
					  .initiator_depth = 5,
					  .retry_count = 6,
					  .rnr_retry_count = 2,
					  .qp_num = 0x101};
static const struct vb_cm_param granting = {.private_data = "welcome",
					    .private_len = 8,
					    .responder_resources = 4,
					    .initiator_depth = 2,
					    .rnr_retry_count = 7,
					    .qp_num = 0x202};

static void request(struct two *t)
{
	struct vb_cm_news n;

	n = below_next(t->there, RDMA_CM_EVENT_CONNECT_REQUEST);
	assert_ptr_equal(n.id, t->listener);
	assert_ptr_equal(n.user, (void *)0x77);
	assert_int_equal(n.status, 0);
	t->server = n.fresh;
	vb_cm_id_user(t->server, (void *)0x88);
}

static void connect_both(struct two *t, const char *at, const char *to)
{
	listen_at(t, RDMA_PS_TCP, IBV_QPT_RC, at, 0);
	t->client = resolve(t->here, RDMA_PS_TCP, IBV_QPT_RC, to);
	assert_int_equal(vb_cm_id_connect(t->client, &asking), 0);
	below_settle();
	request(t);
	assert_int_equal(vb_cm_id_accept(t->server, &granting), 0);
	below_next(t->here, RDMA_CM_EVENT_CONNECT_RESPONSE);
	assert_int_equal(vb_cm_id_establish(t->client), 0);
	assert_ptr_equal(below_next(t->there, RDMA_CM_EVENT_ESTABLISHED).user, (void *)0x88);
	below_none(t->here);
	below_none(t->there);
}

static void end_both(struct two *t)
{
	if (t->client)
		vb_cm_id_end(t->client);
	if (t->server)
		vb_cm_id_end(t->server);
	if (t->listener)
		vb_cm_id_end(t->listener);
	vb_cm_channel_close(t->here);
	vb_cm_channel_close(t->there);
}

static int open_world(void **state)
{
	(void)state;
	below_open();
	return 0;
}

static int close_world(void **state)
{
	(void)state;
	below_close();
	return 0;
}

/* ---- a connection ---- */

static void from_beginning_to_end(void **state)
{
	struct two t = {0};

	(void)state;
	connect_both(&t, "10.0.0.2", "10.0.0.2");
	assert_int_equal(below.said[VB_CM_REQ], 1);
	assert_int_equal(below.said[VB_CM_MRA], 1);
	assert_int_equal(below.said[VB_CM_RTU], 1);
	assert_int_equal(vb_cm_id_disconnect(t.client), 0);
	assert_int_equal(below_next(t.there, RDMA_CM_EVENT_DISCONNECTED).status, 0);
	below_none(t.here); /* until the server agrees */
	assert_int_equal(vb_cm_id_disconnect(t.server), 0);
	assert_int_equal(below_next(t.here, RDMA_CM_EVENT_DISCONNECTED).status, 0);
	/* once, and calling again does nothing */
	assert_int_equal(vb_cm_id_disconnect(t.client), 0);
	assert_int_equal(vb_cm_id_disconnect(t.server), 0);
	below_none(t.here);
	below_none(t.there);
	below_wait(60 * VB_SEC);
	below_next(t.here, RDMA_CM_EVENT_TIMEWAIT_EXIT);
	below_next(t.there, RDMA_CM_EVENT_TIMEWAIT_EXIT);
	below_none(t.here);
	end_both(&t);
}

static void what_the_server_hears(void **state)
{
	struct two t = {0};
	struct vb_cm_news n;

	(void)state;
	listen_at(&t, RDMA_PS_TCP, IBV_QPT_RC, "0.0.0.0", 0);
	t.client = resolve(t.here, RDMA_PS_TCP, IBV_QPT_RC, "10.0.0.2");
	assert_int_equal(vb_cm_id_connect(t.client, &asking), 0);
	below_settle();
	assert_int_equal(vb_cm_channel_get(t.there, &n), 0);
	vb_cm_news_ack(n.id, n.event);
	t.server = n.fresh;
	assert_false(n.ud);
	assert_int_equal(n.conn.responder_resources, 5);
	assert_int_equal(n.conn.initiator_depth, 3);
	assert_int_equal(n.conn.retry_count, 6);
	assert_int_equal(n.conn.rnr_retry_count, 2);
	assert_int_equal(n.conn.qp_num, 0x101);
	assert_int_equal(n.conn.private_data_len, 56);
	assert_ptr_equal(n.conn.private_data, n.data);
	assert_memory_equal(n.data, "hello", 6);
	for (int i = 6; i < 56; i++)
		assert_int_equal(n.data[i], 0);
	assert_int_equal(vb_cm_id_device(t.listener, NULL), -1); /* a wildcard listener has no device */
	assert_int_equal(vb_cm_id_device(t.server, NULL), 1);
	end_both(&t);
}

static void what_the_client_hears(void **state)
{
	struct two t = {0};
	struct vb_cm_news n;

	(void)state;
	listen_at(&t, RDMA_PS_TCP, IBV_QPT_RC, "10.0.0.2", 0);
	t.client = resolve(t.here, RDMA_PS_TCP, IBV_QPT_RC, "10.0.0.2");
	assert_int_equal(vb_cm_id_connect(t.client, &asking), 0);
	below_settle();
	request(&t);
	assert_int_equal(vb_cm_id_accept(t.server, &granting), 0);
	below_settle();
	assert_int_equal(vb_cm_channel_get(t.here, &n), 0);
	vb_cm_news_ack(n.id, n.event);
	assert_int_equal(n.event, RDMA_CM_EVENT_CONNECT_RESPONSE);
	assert_int_equal(n.conn.responder_resources, 2);
	assert_int_equal(n.conn.initiator_depth, 4);
	assert_int_equal(n.conn.rnr_retry_count, 7);
	assert_int_equal(n.conn.qp_num, 0x202);
	assert_int_equal(n.conn.private_data_len, 196);
	assert_memory_equal(n.data, "welcome", 8);
	end_both(&t);
}

static struct ibv_qp_attr attr_of(struct vb_cm_id *id, enum ibv_qp_state s)
{
	struct ibv_qp_attr a = {.qp_state = s};
	int mask;

	assert_int_equal(vb_cm_id_qp_attr(id, &a, &mask), 0);
	return a;
}

/* Each end's numbers are those of the other. */
static void attributes_of_both_ends(void **state)
{
	struct ibv_qp_attr c, s;
	struct two t = {0};

	(void)state;
	connect_both(&t, "10.0.0.2", "10.0.0.2");
	c = attr_of(t.client, IBV_QPS_RTR);
	s = attr_of(t.server, IBV_QPS_RTR);
	assert_int_equal(c.dest_qp_num, 0x202);
	assert_int_equal(s.dest_qp_num, 0x101);
	assert_int_equal(c.rq_psn, attr_of(t.server, IBV_QPS_RTS).sq_psn);
	assert_int_equal(s.rq_psn, attr_of(t.client, IBV_QPS_RTS).sq_psn);
	assert_int_not_equal(c.rq_psn, s.rq_psn);
	assert_int_equal(c.max_dest_rd_atomic, 2);
	assert_int_equal(s.max_dest_rd_atomic, 4);
	assert_int_equal(c.path_mtu, IBV_MTU_4096);
	assert_int_equal(s.path_mtu, IBV_MTU_4096);
	assert_int_equal(c.ah_attr.grh.dgid.raw[15], 2);
	assert_int_equal(s.ah_attr.grh.dgid.raw[15], 1);
	assert_int_equal(c.ah_attr.is_global, 1);
	c = attr_of(t.client, IBV_QPS_RTS);
	s = attr_of(t.server, IBV_QPS_RTS);
	assert_int_equal(c.max_rd_atomic, 4);
	assert_int_equal(s.max_rd_atomic, 2);
	assert_int_equal(c.retry_cnt, 6);
	assert_int_equal(s.retry_cnt, 6);
	assert_int_equal(c.rnr_retry, 7); /* each retries as often as the other end asked */
	assert_int_equal(s.rnr_retry, 2);
	assert_int_equal(c.timeout, 19);
	assert_true(attr_of(t.client, IBV_QPS_INIT).qp_access_flags & IBV_ACCESS_REMOTE_READ);
	end_both(&t);
}

/* For a program that makes its own queue pair before it connects. */
static void attributes_before_the_connection(void **state)
{
	struct two t = {0};
	struct ibv_qp_attr a = {.qp_state = IBV_QPS_RTR};
	int mask;

	(void)state;
	t.here = below_channel(NULL);
	t.there = below_channel(NULL);
	t.client = resolve(t.here, RDMA_PS_TCP, IBV_QPT_RC, "10.0.0.2");
	assert_int_equal(vb_cm_id_qp_attr(t.client, &a, &mask), EINVAL);
	a = attr_of(t.client, IBV_QPS_INIT);
	assert_int_equal(a.qp_access_flags, 0);
	assert_int_equal(a.port_num, 1);
	end_both(&t);
}

static void the_messages(void **state)
{
	struct two t = {0};

	(void)state;
	connect_both(&t, "10.0.0.2", "10.0.0.2");
	assert_int_equal(below.last_req.req.service_id, 0x01060000 + PORT);
	assert_int_equal(below.last_req.req.remote_response_timeout, 20);
	assert_int_equal(below.last_req.req.local_response_timeout, 20);
	assert_int_equal(below.last_req.req.max_cm_retries, 15);
	assert_int_equal(below.last_req.req.primary.local_ack_timeout, 19);
	assert_int_equal(below.last_req.req.primary.hop_limit, 64);
	assert_int_equal(below.last_req.req.pkey, 0xffff);
	assert_int_equal(below.last_req.req.path_mtu, IBV_MTU_4096);
	assert_int_equal(below.last_req.req.responder_resources, 3);
	assert_int_equal(below.last_req.req.initiator_depth, 5);
	assert_int_equal(below.last_rep.rep.responder_resources, 4);
	assert_int_equal(below.last_rep.rep.initiator_depth, 2);
	assert_int_equal(below.last_rep.rep.target_ack_delay, 16);
	end_both(&t);
}

/* ---- refusals ---- */

static void nobody_listens(void **state)
{
	struct two t = {0};
	struct vb_cm_news n;

	(void)state;
	t.here = below_channel(NULL);
	t.there = below_channel(NULL);
	t.client = resolve(t.here, RDMA_PS_TCP, IBV_QPT_RC, "10.0.0.2");
	assert_int_equal(vb_cm_id_connect(t.client, &asking), 0);
	n = below_next(t.here, RDMA_CM_EVENT_REJECTED);
	assert_int_equal(n.status, VB_CM_REJ_INVALID_SERVICE_ID);
	assert_int_equal(n.conn.private_data_len, 148);
	/* another port space is another service */
	assert_int_equal(vb_cm_id_connect(t.client, &asking), EINVAL);
	end_both(&t);
}

static void rejected_with_reasons(void **state)
{
	struct two t = {0};
	struct vb_cm_news n;

	(void)state;
	listen_at(&t, RDMA_PS_TCP, IBV_QPT_RC, "10.0.0.2", 0);
	t.client = resolve(t.here, RDMA_PS_TCP, IBV_QPT_RC, "10.0.0.2");
	assert_int_equal(vb_cm_id_connect(t.client, &asking), 0);
	below_settle();
	request(&t);
	assert_int_equal(vb_cm_id_reject(t.server, "no", 3, 8), EINVAL);
	assert_int_equal(vb_cm_id_reject(t.server, "no", 3, 0), 0);
	n = below_next(t.here, RDMA_CM_EVENT_REJECTED);
	assert_int_equal(n.status, VB_CM_REJ_CONSUMER);
	assert_int_equal(n.conn.private_data_len, 148);
	assert_memory_equal(n.data, "no", 3);
	assert_int_equal(vb_cm_id_accept(t.server, &granting), EINVAL);
	below_none(t.there);
	end_both(&t);
}

/* The client's turn, after the answer. */
static void the_client_rejects(void **state)
{
	struct two t = {0};

	(void)state;
	listen_at(&t, RDMA_PS_TCP, IBV_QPT_RC, "10.0.0.2", 0);
	t.client = resolve(t.here, RDMA_PS_TCP, IBV_QPT_RC, "10.0.0.2");
	assert_int_equal(vb_cm_id_connect(t.client, &asking), 0);
	below_settle();
	request(&t);
	assert_int_equal(vb_cm_id_accept(t.server, &granting), 0);
	below_next(t.here, RDMA_CM_EVENT_CONNECT_RESPONSE);
	assert_int_equal(vb_cm_id_reject(t.client, NULL, 0, 0), 0);
	assert_int_equal(below_next(t.there, RDMA_CM_EVENT_REJECTED).status, VB_CM_REJ_CONSUMER);
	end_both(&t);
}

static void another_transport(void **state)
{
	struct two t = {0};

	(void)state;
	listen_at(&t, RDMA_PS_IB, IBV_QPT_RC, "10.0.0.2", 0);
	t.client = resolve(t.here, RDMA_PS_IB, IBV_QPT_UC, "10.0.0.2");
	assert_int_equal(vb_cm_id_connect(t.client, &asking), 0);
	assert_int_equal(below_next(t.here, RDMA_CM_EVENT_REJECTED).status, VB_CM_REJ_INVALID_SERVICE_TYPE);
	below_none(t.there);
	end_both(&t);
}

static bool nothing_arrives(const struct vb_cm_msg *m)
{
	(void)m;
	return false;
}

/* After 15 repetitions, in bounded time. */
static void nobody_answers(void **state)
{
	struct two t = {0};

	(void)state;
	t.here = below_channel(NULL);
	t.there = below_channel(NULL);
	t.client = resolve(t.here, RDMA_PS_TCP, IBV_QPT_RC, "10.0.0.2");
	below.filter = nothing_arrives;
	assert_int_equal(vb_cm_id_connect(t.client, &asking), 0);
	below_wait(200 * VB_SEC);
	assert_int_equal(below_next(t.here, RDMA_CM_EVENT_UNREACHABLE).status, -ETIMEDOUT);
	assert_int_equal(below.said[VB_CM_REQ], 16);
	below_none(t.here);
	end_both(&t);
}

static bool no_rtu(const struct vb_cm_msg *m)
{
	return m->kind != VB_CM_RTU && m->kind != VB_CM_DREQ;
}

static void no_rtu_comes(void **state)
{
	struct two t = {0};

	(void)state;
	listen_at(&t, RDMA_PS_TCP, IBV_QPT_RC, "10.0.0.2", 0);
	t.client = resolve(t.here, RDMA_PS_TCP, IBV_QPT_RC, "10.0.0.2");
	below.filter = no_rtu;
	assert_int_equal(vb_cm_id_connect(t.client, &asking), 0);
	below_settle();
	request(&t);
	assert_int_equal(vb_cm_id_accept(t.server, &granting), 0);
	below_next(t.here, RDMA_CM_EVENT_CONNECT_RESPONSE);
	assert_int_equal(vb_cm_id_establish(t.client), 0);
	below_none(t.there);
	/* the first data says so too, once */
	vb_cm_ids_data(below_device(1), 0x202);
	below_next(t.there, RDMA_CM_EVENT_ESTABLISHED);
	vb_cm_ids_data(below_device(1), 0x202);
	assert_int_equal(vb_cm_id_notify(t.server, IBV_EVENT_COMM_EST), EISCONN);
	assert_int_equal(vb_cm_id_notify(t.server, IBV_EVENT_QP_FATAL), EINVAL);
	below_none(t.there);
	end_both(&t);
}

static void notified_of_data(void **state)
{
	struct two t = {0};

	(void)state;
	listen_at(&t, RDMA_PS_TCP, IBV_QPT_RC, "10.0.0.2", 0);
	t.client = resolve(t.here, RDMA_PS_TCP, IBV_QPT_RC, "10.0.0.2");
	below.filter = no_rtu;
	assert_int_equal(vb_cm_id_connect(t.client, &asking), 0);
	below_settle();
	request(&t);
	assert_int_equal(vb_cm_id_notify(t.server, IBV_EVENT_COMM_EST), EINVAL);
	assert_int_equal(vb_cm_id_accept(t.server, &granting), 0);
	assert_int_equal(vb_cm_id_notify(t.server, IBV_EVENT_COMM_EST), 0);
	below_next(t.there, RDMA_CM_EVENT_ESTABLISHED);
	end_both(&t);
}

/* ---- backlog ---- */

static void a_full_backlog_drops(void **state)
{
	struct vb_cm_id *second, *late;
	struct two t = {0};

	(void)state;
	listen_at(&t, RDMA_PS_TCP, IBV_QPT_RC, "10.0.0.2", 1);
	t.client = resolve(t.here, RDMA_PS_TCP, IBV_QPT_RC, "10.0.0.2");
	second = resolve(t.here, RDMA_PS_TCP, IBV_QPT_RC, "10.0.0.2");
	assert_int_equal(vb_cm_id_connect(t.client, &asking), 0);
	below_settle();
	assert_int_equal(vb_cm_id_connect(second, &(struct vb_cm_param){.qp_num = 0x103}), 0);
	below_none(t.here); /* in silence */
	request(&t);
	below_none(t.there);
	below_wait(10 * VB_SEC); /* it asks again, and there is room now */
	late = below_next(t.there, RDMA_CM_EVENT_CONNECT_REQUEST).fresh;
	assert_int_equal(vb_cm_id_reject(late, NULL, 0, 0), 0);
	assert_ptr_equal(below_next(t.here, RDMA_CM_EVENT_REJECTED).id, second);
	vb_cm_id_end(second);
	vb_cm_id_end(late);
	end_both(&t);
}

/* ---- private data ---- */

static void too_long(void **state)
{
	struct vb_cm_param p = asking, q = granting;
	struct two t = {0};
	uint8_t bytes[255] = {0};

	(void)state;
	listen_at(&t, RDMA_PS_TCP, IBV_QPT_RC, "10.0.0.2", 0);
	t.client = resolve(t.here, RDMA_PS_TCP, IBV_QPT_RC, "10.0.0.2");
	p.private_data = q.private_data = bytes;
	p.private_len = 57;
	assert_int_equal(vb_cm_id_connect(t.client, &p), EINVAL);
	p.private_len = 56; /* it may be tried again */
	assert_int_equal(vb_cm_id_connect(t.client, &p), 0);
	below_settle();
	request(&t);
	assert_int_equal(vb_cm_id_reject(t.server, bytes, 149, 0), EINVAL);
	q.private_len = 197;
	assert_int_equal(vb_cm_id_accept(t.server, &q), EINVAL);
	q.private_len = 196;
	assert_int_equal(vb_cm_id_accept(t.server, &q), 0);
	below_next(t.here, RDMA_CM_EVENT_CONNECT_RESPONSE);
	end_both(&t);
}

/* ---- ends that nobody asked for ---- */

static void the_server_ends(void **state)
{
	struct two t = {0};

	(void)state;
	connect_both(&t, "10.0.0.2", "10.0.0.2");
	vb_cm_id_end(t.server);
	t.server = NULL;
	assert_int_equal(below_next(t.here, RDMA_CM_EVENT_DISCONNECTED).status, 0);
	end_both(&t);
}

static void the_client_goes_before_the_answer(void **state)
{
	struct two t = {0};

	(void)state;
	listen_at(&t, RDMA_PS_TCP, IBV_QPT_RC, "10.0.0.2", 0);
	t.client = resolve(t.here, RDMA_PS_TCP, IBV_QPT_RC, "10.0.0.2");
	assert_int_equal(vb_cm_id_connect(t.client, &asking), 0);
	below_settle();
	t.server = below_next(t.there, RDMA_CM_EVENT_CONNECT_REQUEST).fresh;
	vb_cm_id_end(t.client);
	t.client = NULL;
	/* it has no user yet, so nothing is heard of it, and what comes too late fails */
	below_none(t.there);
	assert_int_equal(vb_cm_id_accept(t.server, &granting), EINVAL);
	end_both(&t);
}

static void a_listener_ends_with_its_requests(void **state)
{
	struct two t = {0};

	(void)state;
	listen_at(&t, RDMA_PS_TCP, IBV_QPT_RC, "10.0.0.2", 0);
	t.client = resolve(t.here, RDMA_PS_TCP, IBV_QPT_RC, "10.0.0.2");
	assert_int_equal(vb_cm_id_connect(t.client, &asking), 0);
	below_settle();
	vb_cm_id_end(t.listener);
	t.listener = NULL;
	below_none(t.there);
	assert_int_equal(below_next(t.here, RDMA_CM_EVENT_REJECTED).status, VB_CM_REJ_CONSUMER);
	end_both(&t);
}

static void a_process_dies(void **state)
{
	struct two t = {0};

	(void)state;
	connect_both(&t, "10.0.0.2", "10.0.0.2");
	vb_cm_ids_peer_gone(below_device(0), 7);
	below_none(t.here);
	vb_cm_ids_peer_gone(below_device(0), below_device(1)->number);
	assert_int_equal(below_next(t.here, RDMA_CM_EVENT_DISCONNECTED).status, 0);
	end_both(&t);
}

static void a_process_dies_before_it_answers(void **state)
{
	struct two t = {0};

	(void)state;
	listen_at(&t, RDMA_PS_TCP, IBV_QPT_RC, "10.0.0.2", 0);
	t.client = resolve(t.here, RDMA_PS_TCP, IBV_QPT_RC, "10.0.0.2");
	assert_int_equal(vb_cm_id_connect(t.client, &asking), 0);
	below_settle(); /* the MRA has said who has it */
	vb_cm_ids_peer_gone(below_device(0), below_device(1)->number);
	assert_int_equal(below_next(t.here, RDMA_CM_EVENT_REJECTED).status, VB_CM_REJ_CONSUMER);
	end_both(&t);
}

static void the_device_is_lost(void **state)
{
	struct two t = {0};

	(void)state;
	connect_both(&t, "10.0.0.2", "10.0.0.2");
	below.filter = nothing_arrives;
	vb_cm_ids_device_lost(below_device(0));
	below_next(t.here, RDMA_CM_EVENT_DEVICE_REMOVAL);
	assert_int_equal(vb_cm_id_disconnect(t.client), ENODEV);
	below_none(t.there);
	end_both(&t);
}

/* ---- addresses ---- */

static void loopback_keeps_its_name(void **state)
{
	struct ibv_sa_path_rec path;
	struct rdma_addr a;
	struct two t = {0};
	int n;

	(void)state;
	connect_both(&t, "127.0.0.1", "127.0.0.1");
	assert_int_equal(vb_cm_id_route(t.client, &a, &path, &n), 0);
	assert_int_equal(n, 1);
	assert_memory_equal(&a.dst_sin, below_addr("127.0.0.1", PORT), sizeof(struct sockaddr_in));
	assert_int_equal(path.dgid.raw[12], 10); /* a GID of the table */
	assert_int_equal(path.sgid.raw[12], 10);
	assert_int_equal(path.hop_limit, 64);
	assert_int_equal(vb_cm_id_route(t.server, &a, &path, &n), 0);
	assert_int_equal(n, 1);
	assert_memory_equal(&a.src_sin, below_addr("127.0.0.1", PORT), sizeof(struct sockaddr_in));
	assert_int_equal(attr_of(t.server, IBV_QPS_RTR).ah_attr.grh.dgid.raw[12], 10);
	end_both(&t);
}

static void any_address_of_ipv6_takes_ipv4(void **state)
{
	struct rdma_addr a;
	struct two t = {0};
	int n;

	(void)state;
	connect_both(&t, "::", "10.0.0.2");
	assert_int_equal(vb_cm_id_route(t.server, &a, NULL, &n), 0);
	assert_int_equal(a.src_addr.sa_family, AF_INET);
	end_both(&t);
}

static void unless_it_is_of_ipv6_only(void **state)
{
	struct two t = {0};
	int one = 1;

	(void)state;
	t.there = below_channel(NULL);
	t.here = below_channel(NULL);
	t.listener = new_id(t.there, RDMA_PS_TCP, IBV_QPT_RC);
	assert_int_equal(vb_cm_id_option(t.listener, 0, RDMA_OPTION_ID_AFONLY, &one, sizeof one), 0);
	assert_int_equal(vb_cm_id_bind(t.listener, below_addr("::", PORT)), 0);
	assert_int_equal(vb_cm_id_listen(t.listener, 0), 0);
	t.client = resolve(t.here, RDMA_PS_TCP, IBV_QPT_RC, "10.0.0.2");
	assert_int_equal(vb_cm_id_connect(t.client, &asking), 0);
	below_next(t.here, RDMA_CM_EVENT_REJECTED);
	vb_cm_id_end(t.client);
	t.client = resolve(t.here, RDMA_PS_TCP, IBV_QPT_RC, "fd00::2");
	assert_int_equal(vb_cm_id_connect(t.client, &asking), 0);
	below_settle();
	request(&t);
	end_both(&t);
}

static void the_narrower_listener_comes_first(void **state)
{
	struct vb_cm_id *wide;
	struct two t = {0};
	int one = 1;

	(void)state;
	t.there = below_channel(NULL);
	t.here = below_channel(NULL);
	wide = new_id(t.there, RDMA_PS_UDP, IBV_QPT_UD); /* another port space does not collide */
	assert_int_equal(vb_cm_id_bind(wide, below_addr("0.0.0.0", PORT)), 0);
	assert_int_equal(vb_cm_id_listen(wide, 0), 0);
	t.listener = new_id(t.there, RDMA_PS_TCP, IBV_QPT_RC);
	assert_int_equal(vb_cm_id_bind(t.listener, below_addr("10.0.0.1", PORT)), 0);
	assert_int_equal(vb_cm_id_listen(t.listener, 0), 0);
	assert_int_equal(vb_cm_id_option(t.listener, 0, RDMA_OPTION_ID_AFONLY, &one, sizeof one), EINVAL);
	/* nobody listens at the other address */
	t.client = resolve(t.here, RDMA_PS_TCP, IBV_QPT_RC, "10.0.0.2");
	assert_int_equal(vb_cm_id_connect(t.client, &asking), 0);
	below_next(t.here, RDMA_CM_EVENT_REJECTED);
	vb_cm_id_end(wide);
	end_both(&t);
}

/* ---- datagrams ---- */

static void a_service_is_looked_up(void **state)
{
	struct vb_cm_param p = {.private_data = "who", .private_len = 4, .qp_num = 0x301},
			   q = {.private_data = "me", .private_len = 3, .qp_num = 0x302, .qkey = 0x55};
	struct two t = {0};
	struct vb_cm_news n;

	(void)state;
	listen_at(&t, RDMA_PS_UDP, IBV_QPT_UD, "10.0.0.2", 0);
	t.client = resolve(t.here, RDMA_PS_UDP, IBV_QPT_UD, "10.0.0.2");
	assert_int_equal(attr_of(t.client, IBV_QPS_INIT).qkey, RDMA_UDP_QKEY);
	assert_int_equal(vb_cm_id_connect(t.client, &p), 0);
	n = below_next(t.there, RDMA_CM_EVENT_CONNECT_REQUEST);
	assert_true(n.ud);
	assert_int_equal(n.ud_param.private_data_len, 180);
	assert_memory_equal(n.data, "who", 4);
	t.server = n.fresh;
	vb_cm_id_user(t.server, (void *)0x88);
	assert_int_equal(vb_cm_id_accept(t.server, &q), 0);
	n = below_next(t.here, RDMA_CM_EVENT_ESTABLISHED);
	assert_true(n.ud);
	assert_int_equal(n.ud_param.qp_num, 0x302);
	assert_int_equal(n.ud_param.qkey, 0x55);
	assert_int_equal(n.ud_param.private_data_len, 136);
	assert_memory_equal(n.data, "me", 3);
	assert_int_equal(n.ud_param.ah_attr.grh.dgid.raw[15], 2);
	assert_int_equal(n.ud_param.ah_attr.is_global, 1);
	below_none(t.there); /* the passive end hears nothing more */
	assert_int_equal(vb_cm_id_disconnect(t.client), 0);
	below_none(t.there);
	end_both(&t);
}

static void a_service_that_is_not_there(void **state)
{
	struct vb_cm_param p = {.qp_num = 0x301};
	struct two t = {0};

	(void)state;
	listen_at(&t, RDMA_PS_UDP, IBV_QPT_UD, "10.0.0.2", 0);
	t.client = resolve(t.here, RDMA_PS_UDP, IBV_QPT_UD, "10.0.0.1");
	assert_int_equal(vb_cm_id_connect(t.client, &p), 0);
	assert_int_equal(below_next(t.here, RDMA_CM_EVENT_UNREACHABLE).status, VB_CM_SIDR_UNSUPPORTED);
	vb_cm_id_end(t.client);
	t.client = resolve(t.here, RDMA_PS_UDP, IBV_QPT_UD, "10.0.0.2");
	assert_int_equal(vb_cm_id_connect(t.client, &p), 0);
	below_settle();
	request(&t);
	assert_int_equal(vb_cm_id_reject(t.server, "no", 3, 0), 0);
	assert_int_equal(below_next(t.here, RDMA_CM_EVENT_UNREACHABLE).status, VB_CM_SIDR_REJECT);
	end_both(&t);
}

/* ---- XRC ---- */

static void initiator_and_target(void **state)
{
	struct two t = {0};
	struct ibv_qp_attr a;

	(void)state;
	listen_at(&t, RDMA_PS_IB, IBV_QPT_XRC_RECV, "10.0.0.2", 0);
	t.client = resolve(t.here, RDMA_PS_IB, IBV_QPT_XRC_SEND, "10.0.0.2");
	assert_int_equal(vb_cm_id_connect(t.client, &asking), 0);
	assert_int_equal(below.last_req.req.service_id, 0x013f0000 + PORT);
	below_settle();
	request(&t);
	assert_int_equal(vb_cm_id_accept(t.server, &granting), 0);
	assert_int_equal(below_next(t.here, RDMA_CM_EVENT_CONNECT_RESPONSE).conn.qp_num, 0x202);
	assert_int_equal(vb_cm_id_establish(t.client), 0);
	below_next(t.there, RDMA_CM_EVENT_ESTABLISHED);
	a = attr_of(t.client, IBV_QPS_RTR);
	assert_int_equal(a.dest_qp_num, 0x202);
	a = attr_of(t.client, IBV_QPS_RTS);
	assert_int_equal(a.rnr_retry, 7);
	assert_int_equal(a.retry_cnt, 6);
	assert_int_equal(attr_of(t.server, IBV_QPS_RTR).max_dest_rd_atomic, 4);
	end_both(&t);
}

int main(void)
{
#define CASE(f) cmocka_unit_test_setup_teardown(f, open_world, close_world)
	const struct CMUnitTest tests[] = {
	    CASE(from_beginning_to_end),
	    CASE(what_the_server_hears),
	    CASE(what_the_client_hears),
	    CASE(attributes_of_both_ends),
	    CASE(attributes_before_the_connection),
	    CASE(the_messages),
	    CASE(nobody_listens),
	    CASE(rejected_with_reasons),
	    CASE(the_client_rejects),
	    CASE(another_transport),
	    CASE(nobody_answers),
	    CASE(no_rtu_comes),
	    CASE(notified_of_data),
	    CASE(a_full_backlog_drops),
	    CASE(too_long),
	    CASE(the_server_ends),
	    CASE(the_client_goes_before_the_answer),
	    CASE(a_listener_ends_with_its_requests),
	    CASE(a_process_dies),
	    CASE(a_process_dies_before_it_answers),
	    CASE(the_device_is_lost),
	    CASE(loopback_keeps_its_name),
	    CASE(any_address_of_ipv6_takes_ipv4),
	    CASE(unless_it_is_of_ipv6_only),
	    CASE(the_narrower_listener_comes_first),
	    CASE(a_service_is_looked_up),
	    CASE(a_service_that_is_not_there),
	    CASE(initiator_and_target),
	};

	return cmocka_run_group_tests_name("cm_ids", tests, NULL, NULL);
}
