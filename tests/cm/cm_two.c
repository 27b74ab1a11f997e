#include "cm_two.h"

struct vb_cm_id *two_id(struct vb_cm_channel *c, enum rdma_port_space ps, enum ibv_qp_type type)
{
	struct vb_cm_id *id;

	assert_int_equal(vb_cm_id_new(&id, c, (void *)0x77, ps, type), 0);
	return id;
}

void two_listen(struct two *t, enum rdma_port_space ps, enum ibv_qp_type type, const char *at, int backlog)
{
	t->there = below_channel(NULL);
	t->here = below_channel(NULL);
	t->listener = two_id(t->there, ps, type);
	assert_int_equal(vb_cm_id_bind(t->listener, below_addr(at, TWO_PORT)), 0);
	assert_int_equal(vb_cm_id_listen(t->listener, backlog), 0);
}

struct vb_cm_id *two_resolve(struct vb_cm_channel *c, enum rdma_port_space ps, enum ibv_qp_type type,
			     const char *to)
{
	struct vb_cm_id *id = two_id(c, ps, type);

	assert_int_equal(vb_cm_id_resolve_addr(id, NULL, below_addr(to, TWO_PORT), 2000), 0);
	assert_int_equal(below_next(c, RDMA_CM_EVENT_ADDR_RESOLVED).status, 0);
	assert_int_equal(vb_cm_id_resolve_route(id, 2000), 0);
	assert_int_equal(below_next(c, RDMA_CM_EVENT_ROUTE_RESOLVED).status, 0);
	return id;
}

const struct vb_cm_param two_asking = {.private_data = "hello",
				       .private_len = 6,
				       .responder_resources = 3,
				       .initiator_depth = 5,
				       .retry_count = 6,
				       .rnr_retry_count = 2,
				       .qp_num = 0x101};
const struct vb_cm_param two_granting = {.private_data = "welcome",
					 .private_len = 8,
					 .responder_resources = 4,
					 .initiator_depth = 2,
					 .rnr_retry_count = 7,
					 .qp_num = 0x202};

void two_request(struct two *t)
{
	struct vb_cm_news n;

	n = below_next(t->there, RDMA_CM_EVENT_CONNECT_REQUEST);
	assert_ptr_equal(n.id, t->listener);
	assert_ptr_equal(n.user, (void *)0x77);
	assert_int_equal(n.status, 0);
	t->server = n.fresh;
}

void two_ask(struct two *t, const char *at, const char *to)
{
	two_listen(t, RDMA_PS_TCP, IBV_QPT_RC, at, 0);
	t->client = two_resolve(t->here, RDMA_PS_TCP, IBV_QPT_RC, to);
	assert_int_equal(vb_cm_id_connect(t->client, &two_asking), 0);
	below_settle();
	two_request(t);
}

void two_answer(struct two *t)
{
	assert_int_equal(vb_cm_id_accept(t->server, &two_granting, TWO_USER), 0);
	below_next(t->here, RDMA_CM_EVENT_CONNECT_RESPONSE);
}

void two_connect(struct two *t, const char *at, const char *to)
{
	two_ask(t, at, to);
	two_answer(t);
	assert_int_equal(vb_cm_id_establish(t->client), 0);
	assert_ptr_equal(below_next(t->there, RDMA_CM_EVENT_ESTABLISHED).user, TWO_USER);
	below_none(t->here);
	below_none(t->there);
}

void two_end(struct two *t)
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

struct ibv_qp_attr two_attr(struct vb_cm_id *id, enum ibv_qp_state s)
{
	struct ibv_qp_attr a = {.qp_state = s};
	int mask;

	assert_int_equal(vb_cm_id_qp_attr(id, &a, &mask), 0);
	return a;
}

bool two_silence(const struct vb_cm_msg *m)
{
	(void)m;
	return false;
}

int two_open(void **state)
{
	(void)state;
	below_open();
	return 0;
}

int two_close(void **state)
{
	(void)state;
	below_close();
	return 0;
}
