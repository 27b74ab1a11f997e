/* Calls of librdmacm between two processes as the manual pages have them: synchronous ids and their errno,
 * events in order with status and private data, backlog, ports, depths, what establishes a connection, and
 * who hears of what. */
#include <sched.h>

#include "cm.h"

static struct board {
	_Atomic int listening, step;
	uint16_t port;
} * board;

static struct rdma_event_channel *ch;

static pid_t other(void (*f)(void))
{
	pid_t pid;

	board = kit_shared(sizeof *board);
	pid = kit_fork();
	if (!pid) {
		f();
		exit(0);
	}
	return pid;
}

static void wait_for_listener(void)
{
	kit_until(&board->listening, 1);
	ch = kit_cm_channel();
}

static struct rdma_cm_id *listen_as(enum rdma_port_space ps)
{
	struct rdma_cm_id *id;

	ch = kit_cm_channel();
	id = kit_cm_listen_at(ch, ps, &board->port, 0);
	atomic_store(&board->listening, 1);
	return id;
}

static void step(int n)
{
	atomic_store(&board->step, n);
}

static void await(int n)
{
	kit_until(&board->step, n);
}

/* Zeros follow what was sent, to the end of the field. */
static void check_data(const struct kit_cm_event *e, const char *want, size_t room)
{
	static const uint8_t zeros[256];
	size_t n = strlen(want);

	CHECK(e->len == room, "%zu, not %zu", e->len, room);
	CHECK(!memcmp(e->data, want, n) && !memcmp(e->data + n, zeros, room - n));
}

/* ---- synchronous ids ---- */

static struct rdma_addrinfo *find(uint16_t port, bool passive, enum rdma_port_space ps)
{
	struct rdma_addrinfo hints = {.ai_port_space = (int)ps, .ai_flags = passive ? RAI_PASSIVE : 0}, *res;
	char text[8];

	snprintf(text, sizeof text, "%u", port);
	CHECK(!rdma_getaddrinfo("127.0.0.1", text, &hints, &res));
	return res;
}

static struct ibv_qp_init_attr small(void)
{
	return (struct ibv_qp_init_attr){
	    .cap = {.max_send_wr = 4, .max_recv_wr = 4, .max_send_sge = 1, .max_recv_sge = 1},
	    .sq_sig_all = 1};
}

static struct rdma_cm_id *endpoint(uint16_t port, bool passive)
{
	struct rdma_addrinfo *res = find(port, passive, RDMA_PS_TCP);
	struct ibv_qp_init_attr attr = small();
	struct rdma_cm_id *id;

	KIT_CM(rdma_create_ep(&id, res, NULL, &attr));
	rdma_freeaddrinfo(res);
	return id;
}

static void serve_synchronously(void)
{
	static char buf[64];
	struct rdma_cm_id *listener = endpoint(0, true), *id;
	struct ibv_wc wc;
	struct ibv_mr *mr;

	KIT_CM(rdma_listen(listener, 0));
	board->port = ntohs(rdma_get_src_port(listener));
	atomic_store(&board->listening, 1);
	KIT_CM(rdma_get_request(listener, &id));
	CHECK(id->qp && id->event && id->event->event == RDMA_CM_EVENT_CONNECT_REQUEST && id->channel);
	mr = rdma_reg_msgs(id, buf, sizeof buf);
	CHECK(mr);
	KIT_CM(rdma_post_recv(id, NULL, buf, sizeof buf, mr));
	KIT_CM(rdma_accept(id, NULL));
	CHECK(id->event && id->event->event == RDMA_CM_EVENT_ESTABLISHED);
	CHECK(rdma_get_recv_comp(id, &wc) == 1);
	CHECK_EQ(wc.status, IBV_WC_SUCCESS);
	CHECK(!strcmp(buf, "hello"));
	KIT_CM(rdma_post_send(id, NULL, buf, sizeof buf, mr, 0));
	CHECK(rdma_get_send_comp(id, &wc) == 1);
	CHECK_EQ(wc.status, IBV_WC_SUCCESS);
	await(1);
	KIT_CM(rdma_disconnect(id));
	KIT_CM(rdma_dereg_mr(mr));
	rdma_destroy_ep(id);

	/* the second one is refused */
	KIT_CM(rdma_get_request(listener, &id));
	KIT_CM(rdma_disconnect(id)); /* it is no connection yet */
	KIT_CM(rdma_reject(id, "no", 2));
	rdma_destroy_ep(id);
	rdma_destroy_ep(listener);
	step(2);
}

static void both_ends_wait(void)
{
	pid_t pid = other(serve_synchronously);
	static char buf[64] = "hello";
	struct rdma_cm_id *id;
	struct ibv_wc wc;
	struct ibv_mr *mr;

	kit_until(&board->listening, 1);
	id = endpoint(board->port, false);
	CHECK(id->qp && id->verbs && id->pd && id->route.num_paths == 1);
	mr = rdma_reg_msgs(id, buf, sizeof buf);
	CHECK(mr);
	KIT_CM(rdma_post_recv(id, NULL, buf, sizeof buf, mr));
	KIT_CM(rdma_connect(id, NULL));
	CHECK(id->event && id->event->event == RDMA_CM_EVENT_ESTABLISHED && id->event->id == id);
	KIT_CM(rdma_post_send(id, NULL, buf, sizeof buf, mr, 0));
	CHECK(rdma_get_send_comp(id, &wc) == 1);
	CHECK_EQ(wc.status, IBV_WC_SUCCESS);
	CHECK(rdma_get_recv_comp(id, &wc) == 1);
	CHECK_EQ(wc.status, IBV_WC_SUCCESS);
	step(1);
	KIT_CM(rdma_disconnect(id));
	KIT_CM(rdma_dereg_mr(mr));
	rdma_destroy_ep(id);

	id = endpoint(board->port, false);
	KIT_CM_FAILS(rdma_connect(id, NULL), ECONNREFUSED);
	CHECK(id->event && id->event->event == RDMA_CM_EVENT_REJECTED);
	CHECK_EQ(id->event->status, 28);
	CHECK(!memcmp(id->event->param.conn.private_data, "no", 3) &&
	      id->event->param.conn.private_data_len == 148);
	KIT_CM(rdma_disconnect(id)); /* as on a way out that all take; nothing is waited for */
	rdma_destroy_ep(id);
	await(2);

	id = endpoint(board->port, false); /* nobody listens any more */
	KIT_CM_FAILS(rdma_connect(id, NULL), ECONNREFUSED);
	CHECK(id->event && id->event->event == RDMA_CM_EVENT_REJECTED && id->event->status == 8, "%d, %d",
	      id->event->event, id->event->status);
	rdma_destroy_ep(id);
	CHECK_EQ(kit_reap(pid), 0);
}

static void errno_says_why(void)
{
	struct sockaddr_in far = {
	    .sin_family = AF_INET, .sin_port = htons(7), .sin_addr.s_addr = htonl(0xc0000263)};
	struct rdma_addrinfo *res;
	struct rdma_cm_id *a, *b;
	uint16_t port;
	double t;

	board = kit_shared(sizeof *board);
	a = endpoint(0, true);
	port = ntohs(rdma_get_src_port(a));
	res = find(port, true, RDMA_PS_TCP);
	KIT_CM_FAILS(rdma_create_ep(&b, res, NULL, NULL), EADDRINUSE);
	KIT_CM(rdma_create_id(NULL, &b, NULL, RDMA_PS_TCP));
	KIT_CM_FAILS(rdma_bind_addr(b, kit_cm_local(port)), EADDRINUSE);
	KIT_CM_FAILS(rdma_connect(b, NULL), EINVAL);
	KIT_CM_FAILS(rdma_resolve_route(b, 1000), EINVAL);
	KIT_CM_FAILS(rdma_accept(b, NULL), EINVAL);
	KIT_CM_FAILS(rdma_disconnect(b), EINVAL);
	KIT_CM_FAILS(rdma_establish(b), EINVAL);
	KIT_CM_FAILS(rdma_reject(b, NULL, 0), EINVAL);
	KIT_CM_FAILS(rdma_notify(b, IBV_EVENT_COMM_EST), EINVAL);
	t = kit_now();
	if (rdma_resolve_addr(b, NULL, (struct sockaddr *)&far, 100)) /* no such host in this network */
		CHECK(errno == EHOSTUNREACH || errno == ENETUNREACH || errno == ETIMEDOUT ||
			  errno == EADDRNOTAVAIL || errno == ENODEV,
		      "%s", strerror(errno));
	CHECK(kit_now() - t < 5);
	KIT_CM(rdma_listen(a, 0));
	KIT_CM_FAILS(rdma_listen(a, 0), EINVAL);
	KIT_CM_FAILS(rdma_resolve_addr(a, NULL, kit_cm_local(1), 1000), EINVAL);
	KIT_CM(rdma_destroy_id(b));
	rdma_freeaddrinfo(res);
	rdma_destroy_ep(a);
}

/* ---- events and private data ---- */

static void serve_with_data(void)
{
	static const char longer[197] = "welcome";
	struct rdma_cm_id *listener = listen_as(RDMA_PS_TCP);
	struct rdma_conn_param p = {.responder_resources = 2, .initiator_depth = 3, .rnr_retry_count = 5};
	struct kit_cm_event e = kit_cm_expect(ch, RDMA_CM_EVENT_CONNECT_REQUEST, 0);

	CHECK(e.listener == listener && e.id != listener && e.id->channel == ch && e.id->verbs);
	check_data(&e, "may I", 56);
	CHECK(e.conn.responder_resources == 9 && e.conn.initiator_depth == 8, "%u %u",
	      e.conn.responder_resources, e.conn.initiator_depth);
	CHECK(e.conn.retry_count == 6 && e.conn.rnr_retry_count == 4 && e.conn.qp_num);
	kit_cm_qp(e.id);
	p.private_data = longer;
	p.private_data_len = 197;
	KIT_CM_FAILS(rdma_accept(e.id, &p), EINVAL);
	p.private_data_len = 196; /* it may be tried again */
	KIT_CM(rdma_accept(e.id, &p));
	CHECK(kit_cm_expect(ch, RDMA_CM_EVENT_ESTABLISHED, 0).id == e.id);
	CHECK(kit_cm_expect(ch, RDMA_CM_EVENT_DISCONNECTED, 0).id == e.id);
	KIT_CM(rdma_disconnect(e.id));
	CHECK(kit_cm_expect(ch, RDMA_CM_EVENT_TIMEWAIT_EXIT, 0).id == e.id);
	kit_cm_end(e.id);

	e = kit_cm_expect(ch, RDMA_CM_EVENT_CONNECT_REQUEST, 0);
	KIT_CM(rdma_reject(e.id, "never", 5));
	KIT_CM(rdma_destroy_id(e.id));

	/* the far end rejects what was accepted */
	e = kit_cm_expect(ch, RDMA_CM_EVENT_CONNECT_REQUEST, 0);
	kit_cm_qp(e.id);
	kit_cm_accept(e.id);
	e = kit_cm_expect(ch, RDMA_CM_EVENT_REJECTED, 28);
	check_data(&e, "too late", 148);
	kit_cm_end(e.id);
	KIT_CM(rdma_destroy_id(listener));
	rdma_destroy_event_channel(ch);
}

static void in_order_with_data(void)
{
	static const char words[57] = "may I";
	struct rdma_conn_param p = {.private_data = words,
				    .private_data_len = 5,
				    .responder_resources = 8,
				    .initiator_depth = 9,
				    .retry_count = 6,
				    .rnr_retry_count = 4};
	pid_t pid = other(serve_with_data);
	struct ibv_qp_init_attr init;
	struct ibv_qp_attr attr;
	struct kit_cm_event e;
	struct rdma_cm_id *id;

	wait_for_listener();
	id = kit_cm_ready(ch, RDMA_PS_TCP, board->port);
	p.private_data_len = 57;
	KIT_CM_FAILS(rdma_connect(id, &p), EINVAL);
	p.private_data_len = 5;
	KIT_CM(rdma_connect(id, &p));
	e = kit_cm_expect(ch, RDMA_CM_EVENT_ESTABLISHED, 0);
	check_data(&e, "welcome", 196);
	/* the far end's point of view is turned round */
	CHECK(e.conn.responder_resources == 3 && e.conn.initiator_depth == 2, "%u %u",
	      e.conn.responder_resources, e.conn.initiator_depth);
	CHECK(!ibv_query_qp(id->qp, &attr, IBV_QP_STATE | IBV_QP_MAX_QP_RD_ATOMIC | IBV_QP_MAX_DEST_RD_ATOMIC,
			    &init));
	CHECK(attr.qp_state == IBV_QPS_RTS && attr.max_rd_atomic == 2 && attr.max_dest_rd_atomic == 3,
	      "%d %d %d", attr.qp_state, attr.max_rd_atomic, attr.max_dest_rd_atomic);
	KIT_CM(rdma_disconnect(id));
	kit_cm_expect(ch, RDMA_CM_EVENT_DISCONNECTED, 0);
	kit_cm_expect(ch, RDMA_CM_EVENT_TIMEWAIT_EXIT, 0);
	kit_cm_end(id);

	id = kit_cm_ready(ch, RDMA_PS_TCP, board->port);
	kit_cm_connect(id);
	e = kit_cm_expect(ch, RDMA_CM_EVENT_REJECTED, 28);
	check_data(&e, "never", 148);
	CHECK(!ibv_query_qp(id->qp, &attr, IBV_QP_STATE, &init) && attr.qp_state == IBV_QPS_ERR);
	KIT_CM_FAILS(rdma_connect(id, NULL), EINVAL);
	kit_cm_end(id);

	id = kit_cm_bare(ch, RDMA_PS_TCP, board->port);
	KIT_CM(rdma_connect(id, &(struct rdma_conn_param){.qp_num = 0x4711}));
	kit_cm_expect(ch, RDMA_CM_EVENT_CONNECT_RESPONSE, 0);
	KIT_CM(rdma_reject(id, "too late", 8));
	KIT_CM(rdma_destroy_id(id));
	rdma_destroy_event_channel(ch);
	CHECK_EQ(kit_reap(pid), 0);
}

/* ---- backlog ---- */

enum { BACKLOG = 2 };

static void has_little_room(void)
{
	struct rdma_cm_id *ids[BACKLOG + 1], *listener;
	int taken = 0, established = 0;

	ch = kit_cm_channel();
	listener = kit_cm_listen_at(ch, RDMA_PS_TCP, &board->port, BACKLOG);
	atomic_store(&board->listening, 1);
	await(1);
	while (established <= BACKLOG) {
		struct kit_cm_event e = kit_cm_next(ch);

		if (e.type != RDMA_CM_EVENT_CONNECT_REQUEST) {
			CHECK(e.type == RDMA_CM_EVENT_ESTABLISHED, "%s", rdma_event_str(e.type));
			established++;
			continue;
		}
		kit_cm_qp(e.id);
		kit_cm_accept(e.id);
		ids[taken++] = e.id;
	}
	await(2);
	for (int i = 0; i <= BACKLOG; i++)
		kit_cm_end(ids[i]);
	KIT_CM(rdma_destroy_id(listener));
	rdma_destroy_event_channel(ch);
}

/* Nothing is said of it; the request comes again after 6.44 s. */
static void a_full_backlog_keeps_silent(void)
{
	pid_t pid = other(has_little_room);
	struct rdma_cm_id *ids[BACKLOG + 1];

	wait_for_listener();
	for (int i = 0; i <= BACKLOG; i++) {
		ids[i] = kit_cm_ready(ch, RDMA_PS_TCP, board->port);
		kit_cm_connect(ids[i]);
	}
	CHECK(!kit_cm_comes(ch, 0.3));
	step(1);
	for (int i = 0; i <= BACKLOG; i++)
		kit_cm_expect(ch, RDMA_CM_EVENT_ESTABLISHED, 0);
	step(2);
	for (int i = 0; i <= BACKLOG; i++)
		kit_cm_expect(ch, RDMA_CM_EVENT_DISCONNECTED, 0);
	for (int i = 0; i <= BACKLOG; i++)
		kit_cm_end(ids[i]);
	rdma_destroy_event_channel(ch);
	CHECK_EQ(kit_reap(pid), 0);
}

/* ---- ports ---- */

static void option(struct rdma_cm_id *id, int name)
{
	int on = 1;

	KIT_CM(rdma_set_option(id, RDMA_OPTION_ID, name, &on, sizeof on));
}

static void ports_are_shared_as_told(void)
{
	struct sockaddr_in6 any6 = {.sin6_family = AF_INET6};
	struct sockaddr_in any4 = {.sin_family = AF_INET};
	struct rdma_cm_id *a, *b;

	ch = kit_cm_channel();
	a = kit_cm_id(ch, RDMA_PS_TCP);
	b = kit_cm_id(ch, RDMA_PS_TCP);
	option(a, RDMA_OPTION_ID_REUSEADDR);
	option(b, RDMA_OPTION_ID_REUSEADDR);
	KIT_CM(rdma_bind_addr(a, kit_cm_local(0)));
	KIT_CM(rdma_bind_addr(b, kit_cm_local(ntohs(rdma_get_src_port(a)))));
	KIT_CM_FAILS(rdma_listen(a, 0), EADDRINUSE); /* as long as there is another one */
	KIT_CM(rdma_destroy_id(b));
	KIT_CM(rdma_listen(a, 0));
	KIT_CM(rdma_destroy_id(a));

	a = kit_cm_id(ch, RDMA_PS_TCP);
	b = kit_cm_id(ch, RDMA_PS_TCP);
	KIT_CM(rdma_bind_addr(a, (struct sockaddr *)&any6)); /* it takes IPv4, too */
	CHECK(!a->verbs && !a->pd && !a->port_num);
	any4.sin_port = rdma_get_src_port(a);
	KIT_CM_FAILS(rdma_bind_addr(b, (struct sockaddr *)&any4), EADDRINUSE);
	KIT_CM(rdma_destroy_id(a));
	a = kit_cm_id(ch, RDMA_PS_TCP);
	option(a, RDMA_OPTION_ID_AFONLY);
	any6.sin6_port = any4.sin_port;
	KIT_CM(rdma_bind_addr(a, (struct sockaddr *)&any6));
	KIT_CM(rdma_bind_addr(b, (struct sockaddr *)&any4));
	KIT_CM(rdma_listen(a, 0));
	KIT_CM(rdma_listen(b, 0));
	KIT_CM(rdma_destroy_id(a));
	KIT_CM(rdma_destroy_id(b));
	rdma_destroy_event_channel(ch);
}

static void serve_everywhere(void)
{
	struct sockaddr_in6 any6 = {.sin6_family = AF_INET6};
	struct rdma_cm_id *listener, *id;

	ch = kit_cm_channel();
	listener = kit_cm_id(ch, RDMA_PS_TCP);
	KIT_CM(rdma_bind_addr(listener, (struct sockaddr *)&any6));
	KIT_CM(rdma_listen(listener, 0));
	CHECK(!listener->verbs);
	board->port = ntohs(rdma_get_src_port(listener));
	atomic_store(&board->listening, 1);
	for (int i = 0; i < 2; i++) {
		int family = i ? AF_INET : AF_INET6;

		id = kit_cm_take(ch);
		CHECK(rdma_get_local_addr(id)->sa_family == family &&
			  rdma_get_peer_addr(id)->sa_family == family,
		      "%d", rdma_get_local_addr(id)->sa_family);
		CHECK(id->verbs && id->port_num == 1);
		kit_cm_expect(ch, RDMA_CM_EVENT_ESTABLISHED, 0);
		kit_cm_expect(ch, RDMA_CM_EVENT_DISCONNECTED, 0);
		kit_cm_end(id);
	}
	KIT_CM(rdma_destroy_id(listener));
	rdma_destroy_event_channel(ch);
}

static void every_address_takes_both_families(void)
{
	pid_t pid = other(serve_everywhere);

	wait_for_listener();
	for (int i = 0; i < 2; i++) {
		struct rdma_cm_id *id = kit_cm_id(ch, RDMA_PS_TCP);

		KIT_CM(
		    rdma_resolve_addr(id, NULL, kit_cm_address(i ? AF_INET : AF_INET6, board->port), 2000));
		kit_cm_expect(ch, RDMA_CM_EVENT_ADDR_RESOLVED, 0);
		KIT_CM(rdma_resolve_route(id, 2000));
		kit_cm_expect(ch, RDMA_CM_EVENT_ROUTE_RESOLVED, 0);
		kit_cm_qp(id);
		kit_cm_connect(id);
		kit_cm_expect(ch, RDMA_CM_EVENT_ESTABLISHED, 0);
		KIT_CM(rdma_disconnect(id));
		kit_cm_expect(ch, RDMA_CM_EVENT_DISCONNECTED, 0);
		kit_cm_end(id);
	}
	rdma_destroy_event_channel(ch);
	CHECK_EQ(kit_reap(pid), 0);
}

/* ---- what establishes the passive end ---- */

/* A queue pair that the program brings through its states itself, up to that one. */
static struct ibv_qp *own_qp(struct rdma_cm_id *id, struct ibv_cq *cq)
{
	struct ibv_qp_init_attr init = small();
	struct ibv_qp *qp;

	init.qp_type = IBV_QPT_RC;
	init.send_cq = init.recv_cq = cq;
	qp = ibv_create_qp(id->pd, &init);
	CHECK(qp);
	return qp;
}

static void bring_to(struct rdma_cm_id *id, struct ibv_qp *qp, enum ibv_qp_state state)
{
	struct ibv_qp_attr attr = {.qp_state = state};
	int mask;

	KIT_CM(rdma_init_qp_attr(id, &attr, &mask));
	CHECK(!ibv_modify_qp(qp, &attr, mask));
}

/* The far end has the answer and does not say so: its QP is in RTS, and it sends. */
static void sends_before_it_is_ready(void)
{
	struct ibv_send_wr wr = {.opcode = IBV_WR_SEND, .send_flags = IBV_SEND_SIGNALED}, *bad;
	struct rdma_cm_id *id;
	struct ibv_cq *cq;
	struct ibv_qp *qp;

	wait_for_listener();
	id = kit_cm_bare(ch, RDMA_PS_TCP, board->port);
	cq = ibv_create_cq(id->verbs, 8, NULL, NULL, 0);
	qp = own_qp(id, cq);
	KIT_CM(rdma_connect(id, &(struct rdma_conn_param){.qp_num = qp->qp_num, .retry_count = 7}));
	kit_cm_expect(ch, RDMA_CM_EVENT_CONNECT_RESPONSE, 0);
	for (int s = IBV_QPS_INIT; s <= IBV_QPS_RTS; s++)
		bring_to(id, qp, (enum ibv_qp_state)s);
	CHECK(!ibv_post_send(qp, &wr, &bad));
	await(1);
	KIT_CM(rdma_establish(id));
	step(2);
	kit_cm_expect(ch, RDMA_CM_EVENT_DISCONNECTED, 0);
	CHECK(!ibv_destroy_qp(qp) && !ibv_destroy_cq(cq));
	KIT_CM(rdma_destroy_id(id));
	rdma_destroy_event_channel(ch);
}

/* On a queue pair in RTR, as with adapters (IBV_EVENT_COMM_EST). */
static void data_establishes(void)
{
	pid_t pid = other(sends_before_it_is_ready);
	struct rdma_cm_id *listener = listen_as(RDMA_PS_TCP), *id;
	struct ibv_recv_wr wr = {.num_sge = 0}, *bad;
	struct ibv_async_event async;
	struct ibv_cq *cq;
	struct ibv_qp *qp;

	id = kit_cm_expect(ch, RDMA_CM_EVENT_CONNECT_REQUEST, 0).id;
	cq = ibv_create_cq(id->verbs, 8, NULL, NULL, 0);
	qp = own_qp(id, cq);
	bring_to(id, qp, IBV_QPS_INIT);
	CHECK(!ibv_post_recv(qp, &wr, &bad));
	bring_to(id, qp, IBV_QPS_RTR);
	KIT_CM(rdma_accept(id, &(struct rdma_conn_param){.qp_num = qp->qp_num}));
	CHECK(kit_cm_expect(ch, RDMA_CM_EVENT_ESTABLISHED, 0).id == id); /* no RTU is said before step 1 */
	KIT_CM_FAILS(rdma_notify(id, IBV_EVENT_COMM_EST), EISCONN);
	CHECK(!ibv_get_async_event(id->verbs, &async) && async.event_type == IBV_EVENT_COMM_EST);
	ibv_ack_async_event(&async);
	step(1);
	await(2);
	CHECK(!kit_cm_comes(ch, 0.1)); /* the RTU is no news */
	KIT_CM(rdma_destroy_id(id));
	CHECK(!ibv_destroy_qp(qp) && !ibv_destroy_cq(cq));
	KIT_CM(rdma_destroy_id(listener));
	rdma_destroy_event_channel(ch);
	CHECK_EQ(kit_reap(pid), 0);
}

static void says_nothing(void)
{
	struct rdma_cm_id *id;

	wait_for_listener();
	id = kit_cm_bare(ch, RDMA_PS_TCP, board->port);
	KIT_CM(rdma_connect(id, &(struct rdma_conn_param){.qp_num = 0x4711}));
	kit_cm_expect(ch, RDMA_CM_EVENT_CONNECT_RESPONSE, 0);
	step(1);
	await(2);
	KIT_CM(rdma_destroy_id(id));
	rdma_destroy_event_channel(ch);
}

static void the_program_may_tell(void)
{
	pid_t pid = other(says_nothing);
	struct rdma_cm_id *listener = listen_as(RDMA_PS_TCP), *id = kit_cm_take(ch);

	await(1);
	CHECK(!kit_cm_comes(ch, 0.1));
	KIT_CM_FAILS(rdma_notify(id, IBV_EVENT_PATH_MIG), EINVAL);
	KIT_CM(rdma_notify(id, IBV_EVENT_COMM_EST));
	kit_cm_expect(ch, RDMA_CM_EVENT_ESTABLISHED, 0);
	KIT_CM_FAILS(rdma_notify(id, IBV_EVENT_COMM_EST), EISCONN);
	step(2);
	/* the far end's id goes, which has not said that it is ready */
	kit_cm_expect(ch, RDMA_CM_EVENT_DISCONNECTED, 0);
	kit_cm_end(id);
	KIT_CM(rdma_destroy_id(listener));
	rdma_destroy_event_channel(ch);
	CHECK_EQ(kit_reap(pid), 0);
}

/* ---- datagrams ---- */

static void looks_up(void)
{
	struct rdma_conn_param p = {.private_data = "who", .private_data_len = 3};
	struct kit_cm_event e;
	struct rdma_cm_id *id;

	wait_for_listener();
	id = kit_cm_ready(ch, RDMA_PS_UDP, board->port);
	KIT_CM(rdma_connect(id, &p));
	e = kit_cm_expect(ch, RDMA_CM_EVENT_ESTABLISHED, 0);
	check_data(&e, "me", 136);
	CHECK(e.ud.qp_num && e.ud.qkey == RDMA_UDP_QKEY && e.ud.ah_attr.is_global);
	kit_cm_end(id);
	id = kit_cm_ready(ch, RDMA_PS_UDP, board->port);
	KIT_CM(rdma_connect(id, &p));
	e = kit_cm_expect(ch, RDMA_CM_EVENT_UNREACHABLE, 2);
	check_data(&e, "not", 136);
	kit_cm_end(id);
	step(1);
	rdma_destroy_event_channel(ch);
}

static void a_lookup_has_one_answer(void)
{
	pid_t pid = other(looks_up);
	struct rdma_cm_id *listener = listen_as(RDMA_PS_UDP), *id;
	struct rdma_conn_param p = {.private_data = "me", .private_data_len = 2};
	struct kit_cm_event e = kit_cm_expect(ch, RDMA_CM_EVENT_CONNECT_REQUEST, 0);

	id = e.id;
	check_data(&e, "who", 180);
	kit_cm_qp(id);
	p.qp_num = id->qp->qp_num;
	KIT_CM(rdma_accept(id, &p));
	e = kit_cm_expect(ch, RDMA_CM_EVENT_CONNECT_REQUEST,
			  0); /* nothing of the first one comes before it */
	KIT_CM(rdma_reject(e.id, "not", 3));
	await(1);
	CHECK(!kit_cm_comes(ch, 0.1));
	KIT_CM(rdma_destroy_id(e.id));
	kit_cm_end(id);
	KIT_CM(rdma_destroy_id(listener));
	rdma_destroy_event_channel(ch);
	CHECK_EQ(kit_reap(pid), 0);
}

static void nobody_is_there(void)
{
	struct rdma_cm_id *id;
	double t = kit_now();

	ch = kit_cm_channel();
	id = kit_cm_ready(ch, RDMA_PS_TCP, 9);
	kit_cm_connect(id);
	kit_cm_expect(ch, RDMA_CM_EVENT_REJECTED, 8);
	kit_cm_end(id);
	id = kit_cm_ready(ch, RDMA_PS_UDP, 9);
	kit_cm_connect(id);
	kit_cm_expect(ch, RDMA_CM_EVENT_UNREACHABLE, 1);
	kit_cm_end(id);
	CHECK(kit_now() - t < 5);
	rdma_destroy_event_channel(ch);
}

/* ---- somebody else's listener ---- */

static void another_users(void)
{
	struct rdma_cm_id *id;
	double t;
	pid_t pid;

	kit_log_begin("warn");
	board = kit_shared(sizeof *board);
	pid = kit_fork_as(KIT_FOREIGN);
	if (!pid) {
		/* As the least of users: such a thread cannot go back to an ordinary policy, nor its engine.
		 */
		CHECK(!sched_setscheduler(0, SCHED_IDLE, &(struct sched_param){0}));
		listen_as(RDMA_PS_TCP);
		await(1);
		_exit(0);
	}
	wait_for_listener();
	t = kit_now(); /* that one's own beginning may take long, where others want the CPUs */
	id = kit_cm_ready(ch, RDMA_PS_TCP, board->port);
	kit_cm_connect(id);
	kit_cm_expect(ch, RDMA_CM_EVENT_REJECTED, 28);
	CHECK(kit_now() - t < 5, "%.1f s", kit_now() - t);
	KIT_LOG_SAYS("only processes of the same user");
	kit_cm_end(id);
	KIT_CM_FAILS(rdma_bind_addr(kit_cm_id(ch, RDMA_PS_TCP), kit_cm_local(board->port)), EADDRINUSE);
	step(1);
	CHECK_EQ(kit_reap(pid), 0);
}

/* What is refused within a call of rdma_cm is said in its name, also where a call of libibverbs refuses. */
static void named_by_the_call(void)
{
	struct rdma_event_channel *ch = rdma_create_event_channel();
	struct rdma_cm_id *id = kit_cm_id(ch, RDMA_PS_TCP);
	struct ibv_srq_init_attr sa = {.attr = {.max_wr = 4, .max_sge = 1}};
	struct ibv_qp_init_attr a = {.qp_type = IBV_QPT_RC, .cap = {4, 4, 1, 1, 1u << 30}};

	kit_log_begin("warn");
	CHECK(!rdma_bind_addr(id, kit_cm_local(0)));
	KIT_CM_FAILS(rdma_create_qp(id, NULL, &a), EINVAL);
	KIT_LOG_SAYS("rdma_create_qp: max_inline_data");
	a.cap = (struct ibv_qp_cap){1u << 30, 4, 1, 1, 0};
	KIT_CM_FAILS(rdma_create_qp(id, NULL, &a), EINVAL);
	KIT_LOG_SAYS("rdma_create_qp: ibv_create_cq: cqe");
	a = (struct ibv_qp_init_attr){.qp_type = IBV_QPT_XRC_SEND, .cap = {4, 0, 1, 0, 0}};
	CHECK(!rdma_create_srq(id, NULL, &sa));
	KIT_CM_FAILS(rdma_create_qp(id, NULL, &a), EINVAL);
	KIT_LOG_SAYS("rdma_create_qp: srq must be NULL: a QP of type IBV_QPT_XRC_SEND receives nothing");
	rdma_destroy_srq(id);
	sa.attr.max_wr = 1u << 30;
	KIT_CM_FAILS(rdma_create_srq(id, NULL, &sa), EINVAL);
	KIT_LOG_SAYS("rdma_create_srq: max_wr");
	a.srq = NULL;
	CHECK(!rdma_create_qp(id, NULL, &a));
	rdma_destroy_qp(id);
	kit_cm_end(id);
}

int main(int argc, char **argv)
{
	static const struct kit_case cases[] = {
	    {"both ends wait", both_ends_wait, false, true},
	    {"errno says why", errno_says_why, false, true},
	    {"in order, with data", in_order_with_data, false, true},
	    {"nobody is there", nobody_is_there, false, true},
	    {"a full backlog keeps silent", a_full_backlog_keeps_silent, false, true},
	    {"ports are shared as told", ports_are_shared_as_told, false, true},
	    {"every address takes both families", every_address_takes_both_families, false, true},
	    {"data establishes", data_establishes, false, true},
	    {"the program may tell", the_program_may_tell, false, true},
	    {"a lookup has one answer", a_lookup_has_one_answer, false, true},
	    {"another user's", another_users, true, false},
	    {"named by the call", named_by_the_call, false, false},
	};

	KIT_CASES(cases, 60);
	return 0;
}
