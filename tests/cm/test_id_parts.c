/* The pure parts of rdma_cm's identifiers: the table of states, depths, timeouts, private data, service IDs,
 * and the attributes of queue pairs. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>

#include <arpa/inet.h>
#include <errno.h>
#include <infiniband/ib.h>
#include <string.h>

#include "cm/id.h"

/* ---- states ---- */

/* What programs rely on: each call in its one or two states, and EINVAL anywhere else. */
static void calls_in_the_wrong_state(void **state)
{
	static const struct {
		enum vb_cm_id_call call;
		enum vb_cm_id_state good[3];
		int n;
	} rows[] = {
	    {VB_ID_CALL_BIND, {VB_ID_IDLE}, 1},
	    {VB_ID_CALL_RESOLVE_ADDR, {VB_ID_IDLE, VB_ID_BOUND}, 2},
	    {VB_ID_CALL_RESOLVE_ROUTE, {VB_ID_ADDR_RESOLVED}, 1},
	    {VB_ID_CALL_SET_PATH, {VB_ID_ADDR_RESOLVED}, 1},
	    {VB_ID_CALL_LISTEN, {VB_ID_IDLE, VB_ID_BOUND}, 2},
	    {VB_ID_CALL_CONNECT, {VB_ID_ROUTE_RESOLVED}, 1},
	    {VB_ID_CALL_ESTABLISH, {VB_ID_ANSWERED}, 1},
	    {VB_ID_CALL_ACCEPT, {VB_ID_REQUESTED}, 1},
	    {VB_ID_CALL_REJECT, {VB_ID_REQUESTED, VB_ID_ANSWERED, VB_ID_ACCEPTED}, 3},
	    {VB_ID_CALL_NOTIFY, {VB_ID_ACCEPTED, VB_ID_CONNECTED}, 2},
	    {VB_ID_CALL_JOIN, {VB_ID_BOUND, VB_ID_ADDR_RESOLVED}, 2},
	};

	(void)state;
	for (size_t r = 0; r < sizeof rows / sizeof *rows; r++) {
		for (int s = 0; s < VB_ID_REMOVED; s++) {
			bool good = false;

			for (int i = 0; i < rows[r].n; i++)
				good |= (int)rows[r].good[i] == s;
			assert_int_equal(vb_cm_state_permits((enum vb_cm_id_state)s, rows[r].call),
					 good ? 0 : EINVAL);
		}
	}
	for (int c = 0; c < VB_ID_CALLS; c++)
		assert_int_equal(vb_cm_state_permits(VB_ID_REMOVED, (enum vb_cm_id_call)c), ENODEV);
	for (int s = 0; s < VB_ID_STATES; s++)
		assert_true(strlen(vb_cm_id_state_name((enum vb_cm_id_state)s)) > 2);
	/* where a connection was never tried */
	for (int s = VB_ID_IDLE; s <= VB_ID_LISTENING; s++)
		assert_int_equal(vb_cm_state_permits((enum vb_cm_id_state)s, VB_ID_CALL_DISCONNECT), EINVAL);
	for (int s = VB_ID_CONNECTING; s <= VB_ID_FAILED; s++)
		assert_int_equal(vb_cm_state_permits((enum vb_cm_id_state)s, VB_ID_CALL_DISCONNECT), 0);
}

/* A refusal says what is to be called first, or instead. */
static void every_refusal_has_a_way_on(void **state)
{
	static const struct {
		enum vb_cm_id_state s;
		enum vb_cm_id_call call;
		const char *says;
	} rows[] = {
	    {VB_ID_LISTENING, VB_ID_CALL_ACCEPT, "event->id of RDMA_CM_EVENT_CONNECT_REQUEST"},
	    {VB_ID_LISTENING, VB_ID_CALL_REJECT, "event->id of RDMA_CM_EVENT_CONNECT_REQUEST"},
	    {VB_ID_IDLE, VB_ID_CALL_CONNECT, "rdma_resolve_addr(), then rdma_resolve_route()"},
	    {VB_ID_ADDR_RESOLVED, VB_ID_CALL_CONNECT,
	     "rdma_resolve_route() and wait for RDMA_CM_EVENT_ROUTE_"},
	    {VB_ID_REQUESTED, VB_ID_CALL_CONNECT, "rdma_accept"},
	    {VB_ID_BOUND, VB_ID_CALL_RESOLVE_ROUTE,
	     "rdma_resolve_addr() and wait for RDMA_CM_EVENT_ADDR_RESOLVED"},
	    {VB_ID_BOUND, VB_ID_CALL_ACCEPT, "rdma_listen"},
	    {VB_ID_CONNECTED, VB_ID_CALL_REJECT, "rdma_disconnect"},
	    {VB_ID_DISCONNECTED, VB_ID_CALL_CONNECT, "destroy it and create another"},
	    {VB_ID_CONNECTING, VB_ID_CALL_ESTABLISH, "RDMA_CM_EVENT_CONNECT_RESPONSE"},
	    {VB_ID_IDLE, VB_ID_CALL_JOIN, "rdma_bind_addr"},
	};

	(void)state;
	for (int c = 0; c < VB_ID_CALLS; c++)
		for (int s = 0; s < VB_ID_STATES; s++)
			if (vb_cm_state_permits((enum vb_cm_id_state)s, (enum vb_cm_id_call)c) &&
			    !vb_cm_id_instead((enum vb_cm_id_state)s, (enum vb_cm_id_call)c))
				fail_msg("%s in the state %s: and then?",
					 vb_cm_id_call_name((enum vb_cm_id_call)c),
					 vb_cm_id_state_name((enum vb_cm_id_state)s));
	for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
		const char *text = vb_cm_id_instead(rows[i].s, rows[i].call);

		if (!strstr(text, rows[i].says))
			fail_msg("'%s' is not in '%s'", rows[i].says, text);
	}
}

/* ---- depths ---- */

static struct vb_cm_param depths(uint8_t responder, uint8_t initiator)
{
	return (struct vb_cm_param){.responder_resources = responder, .initiator_depth = initiator};
}

static void depths_of_a_req(void **state)
{
	struct vb_cm_param p = depths(3, 0);
	struct vb_cm_depths d;

	(void)state;
	assert_int_equal(vb_cm_depths_ask(&p, 16, &d), 0);
	assert_int_equal(d.responder_resources, 3);
	assert_int_equal(d.initiator_depth, 0);
	p = depths(0xff, 0xff);
	assert_int_equal(vb_cm_depths_ask(&p, 16, &d), 0);
	assert_int_equal(d.responder_resources, 16);
	assert_int_equal(d.initiator_depth, 16);
	p = depths(16, 17);
	assert_int_equal(vb_cm_depths_ask(&p, 16, &d), EINVAL);
	p = depths(17, 16);
	assert_int_equal(vb_cm_depths_ask(&p, 16, &d), EINVAL);
}

static void depths_of_a_rep(void **state)
{
	const struct vb_cm_depths asked = {.responder_resources = 4, .initiator_depth = 9};
	struct vb_cm_param p = depths(0xff, 0xff);
	struct vb_cm_depths d;

	(void)state;
	/* as many as there are: what the far end offers, and what it wants to use */
	assert_int_equal(vb_cm_depths_grant(&p, 16, &asked, &d), 0);
	assert_int_equal(d.initiator_depth, 4);
	assert_int_equal(d.responder_resources, 9);
	assert_int_equal(vb_cm_depths_grant(&p, 6, &asked, &d), 0);
	assert_int_equal(d.responder_resources, 6);
	/* nobody may have more outstanding than the other offers; offering more is allowed */
	p = depths(12, 12);
	assert_int_equal(vb_cm_depths_grant(&p, 16, &asked, &d), 0);
	assert_int_equal(d.initiator_depth, 4);
	assert_int_equal(d.responder_resources, 12);
	p = depths(1, 1);
	assert_int_equal(vb_cm_depths_grant(&p, 16, &asked, &d), 0);
	assert_int_equal(d.initiator_depth, 1);
	assert_int_equal(d.responder_resources, 1);
	p = depths(17, 1);
	assert_int_equal(vb_cm_depths_grant(&p, 16, &asked, &d), EINVAL);
}

static void depths_that_are_left(void **state)
{
	const struct vb_cm_depths asked = {.responder_resources = 4, .initiator_depth = 9};
	const struct vb_cm_rep less = {.responder_resources = 5, .initiator_depth = 2},
			       more = {.responder_resources = 99, .initiator_depth = 99};
	struct vb_cm_depths d;

	(void)state;
	vb_cm_depths_settle(&asked, &less, &d);
	assert_int_equal(d.initiator_depth, 5);
	assert_int_equal(d.responder_resources, 2);
	vb_cm_depths_settle(&asked, &more, &d);
	assert_int_equal(d.initiator_depth, 9);
	assert_int_equal(d.responder_resources, 4);
}

/* 12.7.34, as codes: 2 * 2^life + 2^delay, rounded up to a power of two where the smaller counts. */
static void ack_timeouts(void **state)
{
	(void)state;
	assert_int_equal(vb_cm_ack_timeout(16, 18), 19);
	assert_int_equal(vb_cm_ack_timeout(0, 18), 19);
	assert_int_equal(vb_cm_ack_timeout(18, 18), 20);
	assert_int_equal(vb_cm_ack_timeout(19, 18), 20);
	assert_int_equal(vb_cm_ack_timeout(20, 18), 21);
	assert_int_equal(vb_cm_ack_timeout(21, 18), 21);
	assert_int_equal(vb_cm_ack_timeout(31, 31), 31);
}

/* ---- services ---- */

static void port_spaces_and_types(void **state)
{
	enum ibv_qp_type t = IBV_QPT_UD;

	(void)state;
	assert_true(vb_cm_type_fits(RDMA_PS_TCP, &t));
	assert_int_equal(t, IBV_QPT_RC);
	assert_true(vb_cm_type_fits(RDMA_PS_UDP, &t));
	assert_int_equal(t, IBV_QPT_UD);
	t = IBV_QPT_RC;
	assert_true(vb_cm_type_fits(RDMA_PS_IPOIB, &t));
	assert_int_equal(t, IBV_QPT_UD);
	t = IBV_QPT_XRC_RECV;
	assert_true(vb_cm_type_fits(RDMA_PS_IB, &t));
	assert_int_equal(t, IBV_QPT_XRC_RECV);
	t = IBV_QPT_RAW_PACKET;
	assert_false(vb_cm_type_fits(RDMA_PS_IB, &t));
	assert_false(vb_cm_type_fits((enum rdma_port_space)0x107, &t));
}

static void transport_services(void **state)
{
	struct vb_cm_req req = {0};

	(void)state;
	vb_cm_req_set_type(&req, IBV_QPT_XRC_SEND);
	assert_int_equal(req.service_type, 3);
	assert_int_equal(req.extended_type, 1);
	assert_int_equal(vb_cm_type_of_req(&req), IBV_QPT_XRC_RECV);
	req.extended_type = 2;
	assert_int_equal(vb_cm_type_of_req(&req), -1);
	vb_cm_req_set_type(&req, IBV_QPT_UC);
	assert_int_equal(req.service_type, 1);
	assert_int_equal(vb_cm_type_of_req(&req), IBV_QPT_UC);
	vb_cm_req_set_type(&req, IBV_QPT_RC);
	assert_int_equal(vb_cm_type_of_req(&req), IBV_QPT_RC);
	req.service_type = 2; /* reliable datagrams */
	assert_int_equal(vb_cm_type_of_req(&req), -1);
}

/* ---- private data ---- */

static void room_for_private_data(void **state)
{
	static const struct {
		uint16_t kind;
		bool ip;
		size_t most;
	} rows[] = {
	    {VB_CM_REQ, true, 56},	  {VB_CM_REQ, false, 92},      {VB_CM_REP, false, 196},
	    {VB_CM_REJ, false, 148},	  {VB_CM_SIDR_REQ, true, 180}, {VB_CM_SIDR_REQ, false, 216},
	    {VB_CM_SIDR_REP, false, 136},
	};
	const struct vb_cm_ip ip = {.version = 4, .port = 0x1234};
	uint8_t data[256], buf[VB_CM_PRIVATE_MAX];
	struct vb_cm_private p;

	(void)state;
	memset(data, 0x5a, sizeof data);
	for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
		const struct vb_cm_ip *head = rows[i].ip ? &ip : NULL;
		size_t skip = rows[i].ip ? 36 : 0;

		assert_int_equal(vb_cm_wrap(rows[i].kind, head, data, rows[i].most + 1, buf, &p), EINVAL);
		assert_int_equal(vb_cm_wrap(rows[i].kind, head, data, rows[i].most, buf, &p), 0);
		assert_int_equal(p.len, rows[i].most + skip);
		assert_memory_equal(p.at + skip, data, rows[i].most);
		assert_int_equal(vb_cm_wrap(rows[i].kind, head, NULL, 9, buf, &p), 0);
		assert_int_equal(p.len, skip);
	}
}

static void private_data_of_events(void **state)
{
	struct vb_cm_msg m = {.kind = VB_CM_REQ};
	struct vb_cm_news n = {0};
	uint8_t bytes[92];
	struct vb_cm_private p;

	(void)state;
	for (unsigned i = 0; i < sizeof bytes; i++)
		bytes[i] = (uint8_t)i;
	m.private_data = (struct vb_cm_private){bytes, sizeof bytes};
	p = vb_cm_unwrap(&m, true);
	assert_int_equal(p.len, 56);
	assert_int_equal(p.at[0], 36);
	p = vb_cm_unwrap(&m, false);
	assert_int_equal(p.len, 92);
	vb_cm_news_data(&n, p);
	assert_int_equal(n.conn.private_data_len, 92);
	assert_memory_equal(n.data, bytes, 92);
	n = (struct vb_cm_news){.ud = true};
	vb_cm_news_data(&n, p);
	assert_int_equal(n.ud_param.private_data_len, 92);
}

/* rdma_get_cm_event(3): what the far end initiates is what is asked of the recipient as its resources. */
static void parameters_change_sides(void **state)
{
	const struct vb_cm_req req = {.responder_resources = 3,
				      .initiator_depth = 5,
				      .retry_count = 6,
				      .rnr_retry_count = 2,
				      .srq = 1,
				      .qpn = 0x123456,
				      .flow_control = 1};
	const struct vb_cm_rep rep = {
	    .responder_resources = 3, .initiator_depth = 5, .rnr_retry_count = 4, .qpn = 7, .eecn = 8};
	struct rdma_conn_param c;

	(void)state;
	vb_cm_news_of_req(&c, &req);
	assert_int_equal(c.responder_resources, 5);
	assert_int_equal(c.initiator_depth, 3);
	assert_int_equal(c.retry_count, 6);
	assert_int_equal(c.rnr_retry_count, 2);
	assert_int_equal(c.srq, 1);
	assert_int_equal(c.flow_control, 1);
	assert_int_equal(c.qp_num, 0x123456);
	vb_cm_news_of_rep(&c, &rep, IBV_QPT_RC);
	assert_int_equal(c.responder_resources, 5);
	assert_int_equal(c.initiator_depth, 3);
	assert_int_equal(c.rnr_retry_count, 4);
	assert_int_equal(c.qp_num, 7);
	vb_cm_news_of_rep(&c, &rep, IBV_QPT_XRC_SEND);
	assert_int_equal(c.qp_num, 8);
}

/* ---- addresses ---- */

static struct sockaddr_storage v4(const char *a, uint16_t port)
{
	struct sockaddr_storage s = {.ss_family = AF_INET};

	inet_pton(AF_INET, a, &((struct sockaddr_in *)&s)->sin_addr);
	vb_cm_sock_set_port(&s, port);
	return s;
}

static struct sockaddr_storage v6(const char *a, uint16_t port)
{
	struct sockaddr_storage s = {.ss_family = AF_INET6};

	inet_pton(AF_INET6, a, &((struct sockaddr_in6 *)&s)->sin6_addr);
	vb_cm_sock_set_port(&s, port);
	return s;
}

#define SA(s) ((struct sockaddr *)&(s))

static void addresses_and_headers(void **state)
{
	static const uint8_t gid4[16] = {[10] = 0xff, [11] = 0xff, 192, 0, 2, 7},
			     ip4[16] = {[12] = 192, 0, 2, 7};
	struct sockaddr_storage a = v4("192.0.2.7", 7471), b = v4("192.0.2.9", 40000), x, y;
	struct vb_cm_ip ip;
	uint8_t gid[16];

	(void)state;
	vb_cm_sock_gid(SA(a), gid);
	assert_memory_equal(gid, gid4, 16);
	assert_int_equal(vb_cm_sock_port(SA(a)), 7471);
	vb_cm_sock_ip(&ip, SA(b), SA(a));
	assert_int_equal(ip.version, 4);
	assert_int_equal(ip.port, 40000); /* the sender's; the other is in the service ID */
	assert_memory_equal(ip.dst, ip4, 16);
	assert_int_equal(vb_cm_sock_service(SA(a), RDMA_PS_TCP), 0x0000000001060000ull + 7471);
	assert_int_equal(vb_cm_sock_service(SA(a), RDMA_PS_UDP), 0x0000000001110000ull + 7471);
	/* at the other end, the other way round */
	vb_cm_sock_of_ip(&ip, 7471, &x, &y);
	assert_memory_equal(&x, &a, sizeof(struct sockaddr_in));
	assert_memory_equal(&y, &b, sizeof(struct sockaddr_in));
	a = v6("fd00::7", 7471);
	b = v6("::1", 40000);
	vb_cm_sock_ip(&ip, SA(b), SA(a));
	assert_int_equal(ip.version, 6);
	vb_cm_sock_of_ip(&ip, 7471, &x, &y);
	assert_memory_equal(&x, &a, sizeof(struct sockaddr_in6));
	assert_memory_equal(&y, &b, sizeof(struct sockaddr_in6));
	a = v6("fe80::1", 0);
	assert_true(vb_cm_sock_linklocal(SA(a)));
	assert_false(vb_cm_sock_linklocal(SA(b)));
}

static void whom_a_listener_takes(void **state)
{
	const struct sockaddr_storage any6 = v6("::", 1), any4 = v4("0.0.0.0", 1), one4 = v4("10.0.0.1", 1),
				      one6 = v6("fd00::1", 1), to4 = v4("10.0.0.1", 1),
				      other4 = v4("10.0.0.2", 1), to6 = v6("fd00::1", 1);
	struct vb_cm_ip at4, at4b, at6;

	(void)state;
	vb_cm_sock_ip(&at4, SA(any4), SA(to4));
	vb_cm_sock_ip(&at4b, SA(any4), SA(other4));
	vb_cm_sock_ip(&at6, SA(any6), SA(to6));
	assert_true(vb_cm_sock_takes(SA(any6), false, &at4));
	assert_true(vb_cm_sock_takes(SA(any6), false, &at6));
	assert_false(vb_cm_sock_takes(SA(any6), true, &at4));
	assert_true(vb_cm_sock_takes(SA(any6), true, &at6));
	assert_true(vb_cm_sock_takes(SA(any4), true, &at4));
	assert_false(vb_cm_sock_takes(SA(any4), false, &at6));
	assert_true(vb_cm_sock_takes(SA(one4), true, &at4));
	assert_false(vb_cm_sock_takes(SA(one4), true, &at4b));
	assert_true(vb_cm_sock_takes(SA(one6), false, &at6));
	assert_false(vb_cm_sock_takes(SA(one6), false, &at4));
}

static void service_ids_of_af_ib(void **state)
{
	struct sockaddr_ib ib = {.sib_family = AF_IB, .sib_sid_mask = htobe64(~0ull)};

	(void)state;
	ib.sib_sid = htobe64(RDMA_IB_IP_PS_TCP | 5);
	assert_int_equal(vb_cm_sock_space(SA(ib), RDMA_PS_IB), RDMA_PS_TCP);
	assert_int_equal(vb_cm_sock_space(SA(ib), RDMA_PS_TCP), RDMA_PS_TCP);
	assert_int_equal(vb_cm_sock_space(SA(ib), RDMA_PS_UDP), 0);
	assert_int_equal(vb_cm_sock_port(SA(ib)), 5);
	ib.sib_sid = htobe64(RDMA_IB_PS_IB | 9);
	assert_int_equal(vb_cm_sock_space(SA(ib), RDMA_PS_IB), RDMA_PS_IB);
	assert_int_equal(vb_cm_sock_service(SA(ib), RDMA_PS_IB), 0x013f0009);
	ib.sib_sid = htobe64(0x1234567800000000ull);
	assert_int_equal(vb_cm_sock_space(SA(ib), RDMA_PS_IB), 0);
}

/* ---- attributes ---- */

static const struct vb_cm_deal deal = {
    .known = true,
    .local_psn = 0x111111,
    .remote_psn = 0x222222,
    .remote_qpn = 0x333333,
    .responder_resources = 4,
    .initiator_depth = 6,
    .retry_count = 5,
    .rnr_retry_count = 3,
    .path_mtu = IBV_MTU_4096,
    .timeout = 19,
    .ah = {.is_global = 1, .port_num = 1},
};

static int attr_of(enum ibv_qp_type type, enum ibv_qp_state s, struct ibv_qp_attr *a)
{
	int mask = 0;

	*a = (struct ibv_qp_attr){.qp_state = s};
	assert_int_equal(vb_cm_attr(type, &deal, true, 0x01234567, a, &mask), 0);
	assert_true(mask & IBV_QP_STATE);
	return mask;
}

/* Each mask is what the transition takes, by the table that ibv_modify_qp() goes by. */
static void masks(void **state)
{
	const int init = IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT,
		  to = IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN,
		  target = IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER,
		  requester = IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY | IBV_QP_MAX_QP_RD_ATOMIC | IBV_QP_TIMEOUT,
		  rts = IBV_QP_STATE | IBV_QP_SQ_PSN;
	struct ibv_qp_attr a;

	(void)state;
	assert_int_equal(attr_of(IBV_QPT_RC, IBV_QPS_INIT, &a), init | IBV_QP_ACCESS_FLAGS);
	assert_int_equal(attr_of(IBV_QPT_RC, IBV_QPS_RTR, &a), to | target);
	assert_int_equal(attr_of(IBV_QPT_RC, IBV_QPS_RTS, &a), rts | requester);
	assert_int_equal(attr_of(IBV_QPT_UC, IBV_QPS_INIT, &a), init | IBV_QP_ACCESS_FLAGS);
	assert_int_equal(attr_of(IBV_QPT_UC, IBV_QPS_RTR, &a), to);
	assert_int_equal(attr_of(IBV_QPT_UC, IBV_QPS_RTS, &a), rts);
	assert_int_equal(attr_of(IBV_QPT_UD, IBV_QPS_INIT, &a), init | IBV_QP_QKEY);
	assert_int_equal(a.qkey, 0x01234567);
	assert_int_equal(attr_of(IBV_QPT_UD, IBV_QPS_RTR, &a), IBV_QP_STATE);
	assert_int_equal(attr_of(IBV_QPT_UD, IBV_QPS_RTS, &a), rts);
	assert_int_equal(attr_of(IBV_QPT_XRC_SEND, IBV_QPS_RTR, &a), to);
	assert_int_equal(attr_of(IBV_QPT_XRC_SEND, IBV_QPS_RTS, &a), rts | requester);
	assert_int_equal(attr_of(IBV_QPT_XRC_RECV, IBV_QPS_RTR, &a), to | target);
	assert_int_equal(attr_of(IBV_QPT_XRC_RECV, IBV_QPS_RTS, &a), rts | IBV_QP_TIMEOUT);
}

static void values(void **state)
{
	struct ibv_qp_attr a;

	(void)state;
	attr_of(IBV_QPT_RC, IBV_QPS_RTR, &a);
	assert_int_equal(a.rq_psn, 0x111111);
	assert_int_equal(a.dest_qp_num, 0x333333);
	assert_int_equal(a.max_dest_rd_atomic, 4);
	assert_int_equal(a.path_mtu, IBV_MTU_4096);
	assert_int_equal(a.ah_attr.is_global, 1);
	assert_int_equal(a.min_rnr_timer, 0);
	attr_of(IBV_QPT_RC, IBV_QPS_RTS, &a);
	assert_int_equal(a.sq_psn, 0x222222);
	assert_int_equal(a.max_rd_atomic, 6);
	assert_int_equal(a.retry_cnt, 5);
	assert_int_equal(a.rnr_retry, 3);
	assert_int_equal(a.timeout, 19);
}

static void access_flags(void **state)
{
	struct vb_cm_deal d = deal;
	struct ibv_qp_attr a;
	int mask;

	(void)state;
	attr_of(IBV_QPT_RC, IBV_QPS_INIT, &a);
	assert_int_equal(a.qp_access_flags,
			 IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_ATOMIC);
	d.responder_resources = 0;
	a = (struct ibv_qp_attr){.qp_state = IBV_QPS_INIT};
	assert_int_equal(vb_cm_attr(IBV_QPT_RC, &d, true, 0, &a, &mask), 0);
	assert_int_equal(a.qp_access_flags, IBV_ACCESS_REMOTE_WRITE);
	assert_int_equal(vb_cm_attr(IBV_QPT_RC, &d, false, 0, &a, &mask), 0);
	assert_int_equal(a.qp_access_flags, 0);
}

static void attributes_before_their_time(void **state)
{
	struct vb_cm_deal d = {0};
	struct ibv_qp_attr a = {.qp_state = IBV_QPS_RTR};
	int mask;

	(void)state;
	assert_int_equal(vb_cm_attr(IBV_QPT_RC, &d, false, 0, &a, &mask), EINVAL);
	assert_int_equal(vb_cm_attr(IBV_QPT_UD, &d, false, 0, &a, &mask), 0);
	a.qp_state = IBV_QPS_INIT;
	assert_int_equal(vb_cm_attr(IBV_QPT_RC, &d, false, 0, &a, &mask), 0);
	a.qp_state = IBV_QPS_ERR;
	assert_int_equal(vb_cm_attr(IBV_QPT_RC, &deal, true, 0, &a, &mask), EINVAL);
}

/* RoCE's REQ has no LIDs and is of no subnet; InfiniBand's has both. */
static void paths(void **state)
{
	struct ibv_sa_path_rec p = {.dlid = htons(5),
				    .slid = htons(4),
				    .hop_limit = 64,
				    .flow_label = htonl(0x12345),
				    .traffic_class = 7,
				    .sl = 2,
				    .rate = IBV_RATE_100_GBPS};
	struct ibv_ah_attr there, back;
	struct vb_cm_path req;

	(void)state;
	p.sgid.raw[15] = 1;
	p.dgid.raw[15] = 2;
	vb_cm_req_path(&req, &p, 19);
	assert_int_equal(req.local_lid, 0xffff);
	assert_int_equal(req.remote_lid, 0xffff);
	assert_int_equal(req.subnet_local, 0);
	assert_int_equal(req.local_ack_timeout, 19);
	assert_int_equal(req.flow_label, 0x12345);
	vb_cm_ah_of_path(&there, &p, 3, false);
	assert_int_equal(there.is_global, 1);
	assert_int_equal(there.dlid, 0);
	assert_int_equal(there.grh.dgid.raw[15], 2);
	assert_int_equal(there.grh.sgid_index, 3);
	assert_int_equal(there.grh.traffic_class, 7);
	assert_int_equal(there.grh.hop_limit, 64);
	vb_cm_ah_of_req(&back, &req, 1, false);
	assert_int_equal(back.grh.dgid.raw[15], 1);
	assert_int_equal(back.grh.sgid_index, 1);
	assert_int_equal(back.grh.flow_label, 0x12345);
	assert_int_equal(back.sl, 2);
	p.hop_limit = 0;
	vb_cm_req_path(&req, &p, 19);
	assert_int_equal(req.local_lid, 4);
	assert_int_equal(req.remote_lid, 5);
	assert_int_equal(req.subnet_local, 1);
	vb_cm_ah_of_path(&there, &p, 0, true);
	assert_int_equal(there.is_global, 0);
	assert_int_equal(there.dlid, 5);
	vb_cm_ah_of_req(&back, &req, 0, true);
	assert_int_equal(back.is_global, 0);
	assert_int_equal(back.dlid, 4);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
	    cmocka_unit_test(calls_in_the_wrong_state),
	    cmocka_unit_test(every_refusal_has_a_way_on),
	    cmocka_unit_test(depths_of_a_req),
	    cmocka_unit_test(depths_of_a_rep),
	    cmocka_unit_test(depths_that_are_left),
	    cmocka_unit_test(ack_timeouts),
	    cmocka_unit_test(port_spaces_and_types),
	    cmocka_unit_test(transport_services),
	    cmocka_unit_test(room_for_private_data),
	    cmocka_unit_test(private_data_of_events),
	    cmocka_unit_test(parameters_change_sides),
	    cmocka_unit_test(addresses_and_headers),
	    cmocka_unit_test(whom_a_listener_takes),
	    cmocka_unit_test(service_ids_of_af_ib),
	    cmocka_unit_test(masks),
	    cmocka_unit_test(values),
	    cmocka_unit_test(access_flags),
	    cmocka_unit_test(attributes_before_their_time),
	    cmocka_unit_test(paths),
	};

	return cmocka_run_group_tests_name("cm_id", tests, NULL, NULL);
}
