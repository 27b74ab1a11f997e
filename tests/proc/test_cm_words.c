/* Sentences about queue pairs that rdma_cm connects name its calls and parameters, and not ibv_modify_qp;
 * those about others name that. */
#include "cm.h"

enum { SIZE = 4096 };

static struct rdma_event_channel *here, *there;
static struct rdma_cm_id *listener, *client, *server;
static struct ibv_mr *mr;
static uint8_t buf[SIZE];

static void listen_there(void)
{
	uint16_t port = 0;

	here = kit_cm_channel();
	there = kit_cm_channel();
	listener = kit_cm_listen(there, &port);
	client = kit_cm_ready(here, RDMA_PS_TCP, port);
}

static void connect_with(struct rdma_conn_param asks, struct rdma_conn_param grants)
{
	listen_there();
	KIT_CM(rdma_connect(client, &asks));
	server = kit_cm_expect(there, RDMA_CM_EVENT_CONNECT_REQUEST, 0).id;
	kit_cm_qp(server);
	KIT_CM(rdma_accept(server, &grants));
	kit_cm_expect(here, RDMA_CM_EVENT_ESTABLISHED, 0);
	kit_cm_expect(there, RDMA_CM_EVENT_ESTABLISHED, 0);
	mr = ibv_reg_mr(client->pd, buf, SIZE,
			IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ);
	CHECK(mr);
	kit_log_skip();
}

static struct rdma_conn_param param(uint8_t responder, uint8_t initiator)
{
	return (struct rdma_conn_param){.responder_resources = responder,
					.initiator_depth = initiator,
					.retry_count = 1,
					.rnr_retry_count = 0};
}

static int post(struct rdma_cm_id *id, enum ibv_wr_opcode op)
{
	struct ibv_sge sge = {(uintptr_t)buf, 8, mr->lkey};
	struct ibv_send_wr *bad, wr = {.wr_id = 1,
				       .opcode = op,
				       .sg_list = &sge,
				       .num_sge = 1,
				       .send_flags = IBV_SEND_SIGNALED,
				       .wr.rdma = {(uintptr_t)buf, mr->rkey}};

	return ibv_post_send(id->qp, &wr, &bad);
}

/* The status of a request of that id. */
static enum ibv_wc_status ends(struct rdma_cm_id *id, enum ibv_wr_opcode op)
{
	double until = kit_now() + KIT_CM_PATIENCE;
	struct ibv_wc wc;

	CHECK_EQ(post(id, op), 0);
	do {
		while (!ibv_poll_cq(kit_cm_cq, 1, &wc))
			CHECK(kit_now() < until);
	} while (wc.wr_id != 1);
	return wc.status;
}

static void depth_of_0(void)
{
	connect_with(param(1, 0), param(1, 1));
	CHECK_EQ(ends(client, IBV_WR_RDMA_READ), IBV_WC_LOC_QP_OP_ERR);
	KIT_LOG_SAYS("set rdma_conn_param.initiator_depth of this end and responder_resources of the peer in "
		     "rdma_connect and rdma_accept");
	KIT_LOG_SAYS_NOT("ibv_modify_qp");
}

/* The server has no resources for READs, and its client was told otherwise by itself. */
static void resources_of_0(void)
{
	struct ibv_qp_attr deeper = {.qp_state = IBV_QPS_RTS, .max_rd_atomic = 1};

	connect_with(param(0, 1), param(0, 0));
	CHECK_EQ(ibv_modify_qp(client->qp, &(struct ibv_qp_attr){.qp_state = IBV_QPS_SQD}, IBV_QP_STATE), 0);
	CHECK_EQ(ibv_modify_qp(client->qp, &(struct ibv_qp_attr){.qp_state = IBV_QPS_SQD, .max_rd_atomic = 1},
			       IBV_QP_STATE | IBV_QP_MAX_QP_RD_ATOMIC),
		 0);
	CHECK_EQ(ibv_modify_qp(client->qp, &deeper, IBV_QP_STATE), 0);
	CHECK_EQ(ends(client, IBV_WR_RDMA_READ), IBV_WC_REM_INV_REQ_ERR);
	/* both ends say so: the one that found it, and the one that was told */
	KIT_LOG_SAYS(
	    "QP 0x%06x: a request of the peer was refused: more READs and atomics are outstanding than "
	    "the responder's limit of 0: the requester's rdma_conn_param.initiator_depth must not exceed "
	    "the responder's rdma_conn_param.responder_resources",
	    server->qp->qp_num);
	KIT_LOG_SAYS("rdma_conn_param.responder_resources (reported by the peer)");
	KIT_LOG_SAYS_NOT("rd_atomic");
}

static void nothing_is_received(void)
{
	connect_with(param(1, 1), param(1, 1));
	CHECK_EQ(ends(client, IBV_WR_SEND), IBV_WC_RNR_RETRY_EXC_ERR);
	KIT_LOG_SAYS("had no receive request for this message, and rdma_conn_param.rnr_retry_count (of the "
		     "receiver) = 0 permits no retry");
}

static void nobody_answers(void)
{
	connect_with(param(1, 1), param(1, 1));
	rdma_destroy_qp(server);
	kit_log_skip();
	CHECK_EQ(ends(client, IBV_WR_RDMA_WRITE), IBV_WC_RETRY_EXC_ERR);
	KIT_LOG_SAYS("within rdma_conn_param.retry_count (of rdma_connect) = 1 retry");
	KIT_LOG_SAYS_NOT("retry_cnt");
}

/* The program moves its queue pair itself, by the attributes that rdma_cm gives. */
static void a_queue_pair_of_ones_own(void)
{
	struct rdma_conn_param p = param(1, 0);
	struct ibv_qp_attr attr = {.qp_state = IBV_QPS_RTR};
	struct ibv_qp *qp;
	int mask;

	listen_there();
	mr = ibv_reg_mr(client->pd, buf, SIZE, IBV_ACCESS_LOCAL_WRITE);
	CHECK(mr);
	qp = client->qp;
	client->qp = NULL;
	p.qp_num = qp->qp_num;
	KIT_CM(rdma_connect(client, &p));
	server = kit_cm_take(there);
	kit_cm_expect(here, RDMA_CM_EVENT_CONNECT_RESPONSE, 0);
	KIT_CM(rdma_init_qp_attr(client, &attr, &mask));
	CHECK_EQ(ibv_modify_qp(qp, &attr, mask), 0);
	attr.qp_state = IBV_QPS_RTS;
	KIT_CM(rdma_init_qp_attr(client, &attr, &mask));
	CHECK_EQ(ibv_modify_qp(qp, &attr, mask), 0);
	KIT_CM(rdma_establish(client));
	kit_cm_expect(there, RDMA_CM_EVENT_ESTABLISHED, 0);
	client->qp = qp;
	kit_log_skip();
	CHECK_EQ(ends(client, IBV_WR_RDMA_READ), IBV_WC_LOC_QP_OP_ERR);
	KIT_LOG_SAYS("set rdma_conn_param.initiator_depth of this end");
}

/* One that is connected by hand afterwards is no longer rdma_cm's. */
static void connected_by_hand(void)
{
	struct kit_end e = {0};
	struct ibv_qp_attr a = {.qp_state = IBV_QPS_RESET};
	union ibv_gid gid;

	listen_there();
	mr = ibv_reg_mr(client->pd, buf, SIZE, IBV_ACCESS_LOCAL_WRITE);
	CHECK(mr && !ibv_query_gid(client->verbs, 1, 0, &gid));
	CHECK_EQ(ibv_modify_qp(client->qp, &a, IBV_QP_STATE), 0);
	a = (struct ibv_qp_attr){.qp_state = IBV_QPS_INIT, .port_num = 1};
	CHECK_EQ(ibv_modify_qp(client->qp, &a,
			       IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS),
		 0);
	e.qp = client->qp;
	e.card = (struct kit_card){.gid = gid, .qpn = client->qp->qp_num};
	kit_connect(&e, &e.card);
	CHECK_EQ(ibv_modify_qp(e.qp, &(struct ibv_qp_attr){.qp_state = IBV_QPS_SQD}, IBV_QP_STATE), 0);
	CHECK_EQ(ibv_modify_qp(e.qp, &(struct ibv_qp_attr){.max_rd_atomic = 0}, IBV_QP_MAX_QP_RD_ATOMIC), 0);
	CHECK_EQ(ibv_modify_qp(e.qp, &(struct ibv_qp_attr){.qp_state = IBV_QPS_RTS}, IBV_QP_STATE), 0);
	kit_log_skip();
	CHECK_EQ(ends(client, IBV_WR_RDMA_READ), IBV_WC_LOC_QP_OP_ERR);
	KIT_LOG_SAYS("max_rd_atomic of the queue pair is 0, so it permits no READ or atomic; set it with "
		     "ibv_modify_qp");
}

static void before_it_is_connected(void)
{
	struct ibv_qp_attr rts = {.qp_state = IBV_QPS_RTS};

	listen_there();
	mr = ibv_reg_mr(client->pd, buf, SIZE, IBV_ACCESS_LOCAL_WRITE);
	CHECK(mr);
	kit_log_skip();
	CHECK_EQ(post(client, IBV_WR_SEND), EINVAL);
	KIT_LOG_SAYS("QP 0x%06x is in INIT: its id is not connected yet; call rdma_connect() or "
		     "rdma_accept(), and wait "
		     "for RDMA_CM_EVENT_ESTABLISHED",
		     client->qp->qp_num);
	CHECK_EQ(ibv_modify_qp(client->qp, &rts, IBV_QP_STATE), EINVAL);
	KIT_LOG_SAYS("INIT to RTS is not a valid transition; modify it to RTR first (rdma_connect() and "
		     "rdma_accept() move");
}

/* Its queue pair is made too late to take part in the connection. */
static void created_too_late(void)
{
	struct rdma_conn_param p = param(1, 1);

	listen_there();
	mr = ibv_reg_mr(client->pd, buf, SIZE, IBV_ACCESS_LOCAL_WRITE);
	CHECK(mr);
	rdma_destroy_qp(client);
	KIT_CM(rdma_connect(client, &p));
	kit_cm_qp(client);
	kit_log_skip();
	CHECK_EQ(post(client, IBV_WR_SEND), EINVAL);
	KIT_LOG_SAYS("QP 0x%06x is in INIT: it was created after rdma_connect() or rdma_accept(), so the "
		     "connection of its id has no queue pair; call rdma_create_qp() first",
		     client->qp->qp_num);
}

/* A call to the wrong id, or too early. */
static void the_wrong_id(void)
{
	struct rdma_conn_param p = param(1, 1);
	struct rdma_event_channel *c = kit_cm_channel();
	struct rdma_cm_id *id = kit_cm_id(c, RDMA_PS_TCP), *all = kit_cm_id(c, RDMA_PS_TCP);
	struct sockaddr_in any = {.sin_family = AF_INET};

	KIT_CM(rdma_bind_addr(all, (struct sockaddr *)&any));
	KIT_CM(rdma_listen(all, 1));
	kit_log_skip();
	KIT_CM_FAILS(rdma_accept(all, &p), EINVAL);
	KIT_LOG_SAYS(
	    "rdma_accept: the id's state \"listening\" does not allow this call: this id is the listener; "
	    "pass event->id of RDMA_CM_EVENT_CONNECT_REQUEST");
	KIT_CM_FAILS(rdma_connect(id, &p), EINVAL);
	KIT_LOG_SAYS("rdma_connect: the id is not bound to a device; first call rdma_resolve_addr()");
	KIT_CM_FAILS(rdma_disconnect(id), EINVAL);
	KIT_LOG_SAYS("rdma_disconnect: the id was never connected; call rdma_destroy_id() instead");
}

static const struct kit_case cases[] = {
    {.name = "initiator_depth 0", .run = depth_of_0},
    {.name = "responder_resources 0", .run = resources_of_0},
    {.name = "nothing is received", .run = nothing_is_received},
    {.name = "nobody answers", .run = nobody_answers},
    {.name = "a queue pair of one's own", .run = a_queue_pair_of_ones_own},
    {.name = "connected by hand", .run = connected_by_hand},
    {.name = "before it is connected", .run = before_it_is_connected},
    {.name = "created too late", .run = created_too_late},
    {.name = "the wrong id", .run = the_wrong_id},
};

int main(int argc, char **argv)
{
	kit_log_begin("warn");
	KIT_CASES(cases, 60);
	printf("ok\n");
	return 0;
}
