/* What is legal, and mostly a mistake: it has the result that it has with an adapter, and the log says it
 * once, at the level info. */
#include <errno.h>

#include "ep.h"

/* It is said, and the call that is made again says nothing. */
#define SAID_ONCE(call, ...)                                \
	do {                                                \
		char what_[512];                            \
		snprintf(what_, sizeof what_, __VA_ARGS__); \
		kit_log_skip();                             \
		CHECK_EQ(call, 0);                          \
		kit_log_await(what_);                       \
		kit_log_skip();                             \
		CHECK_EQ(call, 0);                          \
		KIT_LOG_SAYS_NOT(what_);                    \
	} while (0)

static void a_limit_above_what_is_posted(struct ibv_context *ctx, struct ibv_pd *pd)
{
	struct ibv_srq_init_attr init = {.attr = {.max_wr = 16, .max_sge = 1}};
	struct ibv_srq_attr attr = {.srq_limit = 2};
	struct ibv_srq *srq = ibv_create_srq(pd, &init);
	struct ibv_recv_wr wr = {0}, *bad;

	(void)ctx;
	CHECK(srq);
	for (int i = 0; i < 2; i++)
		CHECK_EQ(ibv_post_srq_recv(srq, &wr, &bad), 0);
	kit_log_skip();
	CHECK_EQ(ibv_modify_srq(srq, &attr, IBV_SRQ_LIMIT), 0);
	KIT_LOG_SAYS_NOT("srq_limit");
	attr.srq_limit = 3;
	SAID_ONCE(ibv_modify_srq(srq, &attr, IBV_SRQ_LIMIT),
		  "ibv_modify_srq: srq_limit 3 exceeds the number of posted receive requests, 2");
	CHECK_EQ(ibv_query_srq(srq, &attr), 0);
	CHECK_EQ(attr.srq_limit, 3);
	CHECK_EQ(ibv_destroy_srq(srq), 0);
}

static void a_cq_without_a_channel(struct ibv_context *ctx, struct ibv_pd *pd)
{
	struct ibv_cq *cq = ibv_create_cq(ctx, 4, NULL, NULL, 0);

	(void)pd;
	CHECK(cq);
	SAID_ONCE(ibv_req_notify_cq(cq, 0),
		  "ibv_req_notify_cq: the CQ has no completion channel, so it raises no event");
	CHECK_EQ(ibv_destroy_cq(cq), 0);
}

/* Each end of a post is a success of the call, and a flushed request. */
static void a_queue_pair_in_error(struct ibv_context *ctx, struct ibv_pd *pd)
{
	struct ibv_qp_attr err = {.qp_state = IBV_QPS_ERR};
	struct kit_end e;

	(void)ctx;
	for (int receives = 0; receives < 2; receives++) {
		kit_end_open(&e, pd, 4, 64);
		CHECK_EQ(ibv_modify_qp(e.qp, &err, IBV_QP_STATE), 0);
		SAID_ONCE(receives ? kit_recv(&e, 1, 0, 8) : kit_post(&e, IBV_WR_SEND, 1, 0, 8, NULL, 0),
			  "%s: QP 0x%06x is in ERR, since rdma_disconnect or ibv_modify_qp moved it there",
			  receives ? "ibv_post_recv" : "ibv_post_send", e.qp->qp_num);
		for (int i = 0; i < 2; i++)
			CHECK_EQ(kit_wait(&e, 20).status, IBV_WC_WR_FLUSH_ERR);
		kit_end_close(&e);
	}
}

/* What has failed was said before. */
static void a_queue_pair_that_has_failed(struct ibv_context *ctx, struct ibv_pd *pd)
{
	struct kit_card wrong;
	struct kit_end e, far;

	(void)ctx;
	kit_end_open(&e, pd, 4, 64);
	kit_end_open(&far, pd, 4, 64);
	kit_connect(&e, &far.card);
	kit_connect(&far, &e.card);
	wrong = far.card;
	wrong.rkey ^= 0x10;
	CHECK_EQ(kit_post(&e, IBV_WR_RDMA_WRITE, 1, 0, 8, &wrong, 0), 0);
	CHECK_EQ(kit_wait(&e, 20).status, IBV_WC_REM_ACCESS_ERR);
	kit_log_skip();
	CHECK_EQ(kit_post(&e, IBV_WR_SEND, 2, 0, 8, NULL, 0), 0);
	CHECK_EQ(kit_wait(&e, 20).status, IBV_WC_WR_FLUSH_ERR);
	KIT_LOG_SAYS_NOT("is in ERR");
	kit_end_close(&far);
	kit_end_close(&e);
}

static void verbs(void)
{
	static void (*const parts[])(struct ibv_context *,
				     struct ibv_pd *) = {a_limit_above_what_is_posted, a_cq_without_a_channel,
							 a_queue_pair_in_error, a_queue_pair_that_has_failed};
	struct ibv_context *ctx = kit_open();
	struct ibv_pd *pd = ibv_alloc_pd(ctx);

	CHECK(pd);
	for (size_t i = 0; i < sizeof parts / sizeof *parts; i++)
		parts[i](ctx, pd);
	CHECK_EQ(ibv_dealloc_pd(pd), 0);
	CHECK_EQ(ibv_close_device(ctx), 0);
}

static void leave(struct kit_pair *d)
{
	CHECK_EQ(rdma_disconnect(kit_ep(d)->id), 0);
	rdma_destroy_ep(kit_ep(d)->id);
	kit_ep(d)->id = NULL;
}

static void connections(struct kit_pair *d)
{
	struct rdma_conn_param param = {.retry_count = 9, .rnr_retry_count = 8};
	struct rdma_cm_id *id;
	char buf[8];

	kit_ep(d)->param = &param;
	kit_ep_connect(d);
	id = kit_ep(d)->id;
	KIT_LOG_SAYS("rdma_connect: rdma_conn_param.retry_count is 9: 7 is used");
	KIT_LOG_SAYS("rdma_connect: rdma_conn_param.rnr_retry_count is 8: 7 is used");
	kit_duo_begin(d, leave);
	CHECK_EQ(rdma_disconnect(id), 0); /* which waits for the far end's */
	kit_duo_await(d);
	SAID_ONCE(rdma_post_send(id, NULL, buf, sizeof buf, NULL, IBV_SEND_INLINE),
		  "ibv_post_send: QP 0x%06x is in ERR, since rdma_disconnect", id->qp->qp_num);
	rdma_destroy_ep(id);
	kit_ep(d)->id = NULL;
}

int main(void)
{
	pid_t pid;

	kit_log_begin("info");
	pid = kit_fork(); /* the connections' processes begin without a device of this one's */
	if (!pid) {
		verbs();
		exit(0);
	}
	CHECK_EQ(kit_reap(pid), 0);
	kit_ep_run_apart("connections", IBV_QPT_RC, connections);
	puts("said once each");
	return 0;
}
