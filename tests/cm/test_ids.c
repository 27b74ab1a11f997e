/* Identifiers of rdma_cm over the whole protocol, in virtual time: what a program on either side sees of a
 * connection, from the resolved address to TIMEWAIT_EXIT, and of all the ways in which it is refused. */
#include "cm_two.h"

#include <errno.h>
#include <string.h>

#include "base/clock.h"
#include "cm/id.h"

/* ---- a connection ---- */

static void from_beginning_to_end(void **state)
{
	struct two t = {0};

	(void)state;
	two_connect(&t, "10.0.0.2", "10.0.0.2");
	assert_int_equal(below.said[VB_CM_REQ], 1);
	assert_int_equal(below.said[VB_CM_MRA], 0);
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
	two_end(&t);
}

static void what_the_server_hears(void **state)
{
	struct two t = {0};
	struct vb_cm_news n;

	(void)state;
	two_listen(&t, RDMA_PS_TCP, IBV_QPT_RC, "0.0.0.0", 0);
	t.client = two_resolve(t.here, RDMA_PS_TCP, IBV_QPT_RC, "10.0.0.2");
	assert_int_equal(vb_cm_id_connect(t.client, &two_asking), 0);
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
	two_end(&t);
}

static void what_the_client_hears(void **state)
{
	struct two t = {0};
	struct vb_cm_news n;

	(void)state;
	two_ask(&t, "10.0.0.2", "10.0.0.2");
	assert_int_equal(vb_cm_id_accept(t.server, &two_granting, TWO_USER), 0);
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
	two_end(&t);
}

/* Each end's numbers are those of the other. */
static void attributes_of_both_ends(void **state)
{
	struct ibv_qp_attr c, s;
	struct two t = {0};

	(void)state;
	two_connect(&t, "10.0.0.2", "10.0.0.2");
	c = two_attr(t.client, IBV_QPS_RTR);
	s = two_attr(t.server, IBV_QPS_RTR);
	assert_int_equal(c.dest_qp_num, 0x202);
	assert_int_equal(s.dest_qp_num, 0x101);
	assert_int_equal(c.rq_psn, two_attr(t.server, IBV_QPS_RTS).sq_psn);
	assert_int_equal(s.rq_psn, two_attr(t.client, IBV_QPS_RTS).sq_psn);
	assert_int_not_equal(c.rq_psn, s.rq_psn);
	assert_int_equal(c.max_dest_rd_atomic, 2);
	assert_int_equal(s.max_dest_rd_atomic, 4);
	assert_int_equal(c.path_mtu, IBV_MTU_4096);
	assert_int_equal(s.path_mtu, IBV_MTU_4096);
	assert_int_equal(c.ah_attr.grh.dgid.raw[15], 2);
	assert_int_equal(s.ah_attr.grh.dgid.raw[15], 1);
	assert_int_equal(c.ah_attr.is_global, 1);
	c = two_attr(t.client, IBV_QPS_RTS);
	s = two_attr(t.server, IBV_QPS_RTS);
	assert_int_equal(c.max_rd_atomic, 4);
	assert_int_equal(s.max_rd_atomic, 2);
	assert_int_equal(c.retry_cnt, 6);
	assert_int_equal(s.retry_cnt, 6);
	assert_int_equal(c.rnr_retry, 7); /* each retries as often as the other end asked */
	assert_int_equal(s.rnr_retry, 2);
	assert_int_equal(c.timeout, 19);
	assert_true(two_attr(t.client, IBV_QPS_INIT).qp_access_flags & IBV_ACCESS_REMOTE_READ);
	two_end(&t);
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
	t.client = two_resolve(t.here, RDMA_PS_TCP, IBV_QPT_RC, "10.0.0.2");
	assert_int_equal(vb_cm_id_qp_attr(t.client, &a, &mask), EINVAL);
	a = two_attr(t.client, IBV_QPS_INIT);
	assert_int_equal(a.qp_access_flags, 0);
	assert_int_equal(a.port_num, 1);
	two_end(&t);
}

static void the_messages(void **state)
{
	struct two t = {0};

	(void)state;
	two_connect(&t, "10.0.0.2", "10.0.0.2");
	assert_int_equal(below.last_req.req.service_id, 0x01060000 + TWO_PORT);
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
	two_end(&t);
}

/* Options of vendors go with REQ and REP as they are (ECE). */
static void options_of_vendors(void **state)
{
	struct vb_cm_param p = two_asking, q = two_granting;
	struct two t = {0};

	(void)state;
	p.ece = (struct ibv_ece){.vendor_id = 0x15b3, .options = 0x12345678};
	q.ece = (struct ibv_ece){.vendor_id = 0x15b3, .options = 0x02040608};
	two_listen(&t, RDMA_PS_TCP, IBV_QPT_RC, "10.0.0.2", 0);
	t.client = two_resolve(t.here, RDMA_PS_TCP, IBV_QPT_RC, "10.0.0.2");
	assert_int_equal(vb_cm_id_connect(t.client, &p), 0);
	below_settle();
	{
		struct vb_cm_news n = below_next(t.there, RDMA_CM_EVENT_CONNECT_REQUEST);

		t.server = n.fresh;
		assert_int_equal(n.ece.vendor_id, 0x15b3);
		assert_int_equal(n.ece.options, 0x12345678);
	}
	assert_int_equal(vb_cm_id_accept(t.server, &q, TWO_USER), 0);
	assert_int_equal(below_next(t.here, RDMA_CM_EVENT_CONNECT_RESPONSE).ece.options, 0x02040608);
	two_end(&t);
}

/* ---- refusals ---- */

static void nobody_listens(void **state)
{
	struct two t = {0};
	struct vb_cm_news n;

	(void)state;
	t.here = below_channel(NULL);
	t.there = below_channel(NULL);
	t.client = two_resolve(t.here, RDMA_PS_TCP, IBV_QPT_RC, "10.0.0.2");
	assert_int_equal(vb_cm_id_connect(t.client, &two_asking), 0);
	n = below_next(t.here, RDMA_CM_EVENT_REJECTED);
	assert_int_equal(n.status, VB_CM_REJ_INVALID_SERVICE_ID);
	assert_int_equal(n.conn.private_data_len, 148);
	/* another port space is another service */
	assert_int_equal(vb_cm_id_connect(t.client, &two_asking), EINVAL);
	two_end(&t);
}

static void rejected_with_reasons(void **state)
{
	struct two t = {0};
	struct vb_cm_news n;

	(void)state;
	two_ask(&t, "10.0.0.2", "10.0.0.2");
	assert_int_equal(vb_cm_id_reject(t.server, "no", 3, 8), EINVAL);
	assert_int_equal(vb_cm_id_reject(t.server, "no", 3, 0), 0);
	n = below_next(t.here, RDMA_CM_EVENT_REJECTED);
	assert_int_equal(n.status, VB_CM_REJ_CONSUMER);
	assert_int_equal(n.conn.private_data_len, 148);
	assert_memory_equal(n.data, "no", 3);
	assert_int_equal(vb_cm_id_accept(t.server, &two_granting, TWO_USER), EINVAL);
	below_none(t.there);
	two_end(&t);
}

/* The client's turn, after the answer. */
static void the_client_rejects(void **state)
{
	struct two t = {0};

	(void)state;
	two_ask(&t, "10.0.0.2", "10.0.0.2");
	two_answer(&t);
	assert_int_equal(vb_cm_id_reject(t.client, NULL, 0, 0), 0);
	assert_int_equal(below_next(t.there, RDMA_CM_EVENT_REJECTED).status, VB_CM_REJ_CONSUMER);
	two_end(&t);
}

static void another_transport(void **state)
{
	struct two t = {0};

	(void)state;
	two_listen(&t, RDMA_PS_IB, IBV_QPT_RC, "10.0.0.2", 0);
	t.client = two_resolve(t.here, RDMA_PS_IB, IBV_QPT_UC, "10.0.0.2");
	assert_int_equal(vb_cm_id_connect(t.client, &two_asking), 0);
	assert_int_equal(below_next(t.here, RDMA_CM_EVENT_REJECTED).status, VB_CM_REJ_INVALID_SERVICE_TYPE);
	below_none(t.there);
	two_end(&t);
}

/* After 15 repetitions, in bounded time. */
static void nobody_answers(void **state)
{
	struct two t = {0};

	(void)state;
	t.here = below_channel(NULL);
	t.there = below_channel(NULL);
	t.client = two_resolve(t.here, RDMA_PS_TCP, IBV_QPT_RC, "10.0.0.2");
	below.filter = two_silence;
	assert_int_equal(vb_cm_id_connect(t.client, &two_asking), 0);
	below_wait(200 * VB_SEC);
	assert_int_equal(below_next(t.here, RDMA_CM_EVENT_UNREACHABLE).status, -ETIMEDOUT);
	assert_int_equal(below.said[VB_CM_REQ], 16);
	below_none(t.here);
	two_end(&t);
}

static bool no_rtu(const struct vb_cm_msg *m)
{
	return m->kind != VB_CM_RTU && m->kind != VB_CM_DREQ;
}

static void no_rtu_comes(void **state)
{
	struct two t = {0};

	(void)state;
	two_listen(&t, RDMA_PS_TCP, IBV_QPT_RC, "10.0.0.2", 0);
	t.client = two_resolve(t.here, RDMA_PS_TCP, IBV_QPT_RC, "10.0.0.2");
	below.filter = no_rtu;
	assert_int_equal(vb_cm_id_connect(t.client, &two_asking), 0);
	below_settle();
	two_request(&t);
	two_answer(&t);
	assert_int_equal(vb_cm_id_establish(t.client), 0);
	below_none(t.there);
	/* the first data says so too, once */
	vb_cm_ids_data(below_device(1), 0x202);
	below_next(t.there, RDMA_CM_EVENT_ESTABLISHED);
	vb_cm_ids_data(below_device(1), 0x202);
	assert_int_equal(vb_cm_id_notify(t.server, IBV_EVENT_COMM_EST), EISCONN);
	assert_int_equal(vb_cm_id_notify(t.server, IBV_EVENT_QP_FATAL), EINVAL);
	below_none(t.there);
	two_end(&t);
}

static void notified_of_data(void **state)
{
	struct two t = {0};

	(void)state;
	two_listen(&t, RDMA_PS_TCP, IBV_QPT_RC, "10.0.0.2", 0);
	t.client = two_resolve(t.here, RDMA_PS_TCP, IBV_QPT_RC, "10.0.0.2");
	below.filter = no_rtu;
	assert_int_equal(vb_cm_id_connect(t.client, &two_asking), 0);
	below_settle();
	two_request(&t);
	assert_int_equal(vb_cm_id_notify(t.server, IBV_EVENT_COMM_EST), EINVAL);
	assert_int_equal(vb_cm_id_accept(t.server, &two_granting, TWO_USER), 0);
	assert_int_equal(vb_cm_id_notify(t.server, IBV_EVENT_COMM_EST), 0);
	below_next(t.there, RDMA_CM_EVENT_ESTABLISHED);
	two_end(&t);
}

/* ---- backlog ---- */

static void a_full_backlog_drops(void **state)
{
	struct vb_cm_id *second, *late;
	struct two t = {0};

	(void)state;
	two_listen(&t, RDMA_PS_TCP, IBV_QPT_RC, "10.0.0.2", 1);
	t.client = two_resolve(t.here, RDMA_PS_TCP, IBV_QPT_RC, "10.0.0.2");
	second = two_resolve(t.here, RDMA_PS_TCP, IBV_QPT_RC, "10.0.0.2");
	assert_int_equal(vb_cm_id_connect(t.client, &two_asking), 0);
	below_settle();
	assert_int_equal(vb_cm_id_connect(second, &(struct vb_cm_param){.qp_num = 0x103}), 0);
	below_none(t.here); /* in silence */
	two_request(&t);
	below_none(t.there);
	below_wait(10 * VB_SEC); /* it asks again, and there is room now */
	late = below_next(t.there, RDMA_CM_EVENT_CONNECT_REQUEST).fresh;
	assert_int_equal(vb_cm_id_reject(late, NULL, 0, 0), 0);
	assert_ptr_equal(below_next(t.here, RDMA_CM_EVENT_REJECTED).id, second);
	vb_cm_id_end(second);
	vb_cm_id_end(late);
	two_end(&t);
}

/* ---- private data ---- */

static void too_long(void **state)
{
	struct vb_cm_param p = two_asking, q = two_granting;
	struct two t = {0};
	uint8_t bytes[255] = {0};

	(void)state;
	two_listen(&t, RDMA_PS_TCP, IBV_QPT_RC, "10.0.0.2", 0);
	t.client = two_resolve(t.here, RDMA_PS_TCP, IBV_QPT_RC, "10.0.0.2");
	p.private_data = q.private_data = bytes;
	p.private_len = 57;
	assert_int_equal(vb_cm_id_connect(t.client, &p), EINVAL);
	p.private_len = 56; /* it may be tried again */
	assert_int_equal(vb_cm_id_connect(t.client, &p), 0);
	below_settle();
	two_request(&t);
	assert_int_equal(vb_cm_id_reject(t.server, bytes, 149, 0), EINVAL);
	q.private_len = 197;
	assert_int_equal(vb_cm_id_may_accept(t.server, &q), EINVAL);
	assert_int_equal(vb_cm_id_accept(t.server, &q, TWO_USER), EINVAL);
	q.private_len = 196;
	assert_int_equal(vb_cm_id_may_accept(t.server, &q), 0);
	q.responder_resources = BELOW_MAX_RD_ATOMIC + 1;
	assert_int_equal(vb_cm_id_may_accept(t.server, &q), EINVAL);
	q.responder_resources = 0;
	assert_int_equal(vb_cm_id_accept(t.server, &q, TWO_USER), 0);
	below_next(t.here, RDMA_CM_EVENT_CONNECT_RESPONSE);
	two_end(&t);
}

int main(void)
{
#define CASE(f) cmocka_unit_test_setup_teardown(f, two_open, two_close)
	const struct CMUnitTest tests[] = {
	    CASE(from_beginning_to_end),
	    CASE(what_the_server_hears),
	    CASE(what_the_client_hears),
	    CASE(attributes_of_both_ends),
	    CASE(attributes_before_the_connection),
	    CASE(the_messages),
	    CASE(options_of_vendors),
	    CASE(nobody_listens),
	    CASE(rejected_with_reasons),
	    CASE(the_client_rejects),
	    CASE(another_transport),
	    CASE(nobody_answers),
	    CASE(no_rtu_comes),
	    CASE(notified_of_data),
	    CASE(a_full_backlog_drops),
	    CASE(too_long),
	};

	return cmocka_run_group_tests_name("cm_ids", tests, NULL, NULL);
}
