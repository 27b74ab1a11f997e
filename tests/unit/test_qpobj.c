/* The queues of a QP as an object: sizes, reset, responder resources. */
#include "obj_fixture.h"

struct bench {
	struct fixture f;
	struct ibv_cq *cq;
	struct vb_qp *qp;
};

static int setup(void **state)
{
	struct bench *b = calloc(1, sizeof(*b));

	fixture_open(&b->f);
	b->cq = ibv_create_cq(b->f.ibctx, 16, NULL, NULL, 0);
	assert_non_null(b->cq);
	b->qp = aligned_alloc(VB_LINE, sizeof(*b->qp));
	assert_non_null(b->qp);
	memset(b->qp, 0, sizeof(*b->qp));
	b->qp->ctx = &b->f.ctx;
	b->qp->pd = &b->f.pd;
	b->qp->scq = b->qp->rcq = vb_cq(b->cq);
	pthread_mutex_init(&b->qp->ibv.mutex, NULL);
	pthread_cond_init(&b->qp->ibv.cond, NULL);
	b->qp->ibv.context = b->f.ibctx;
	*state = b;
	return 0;
}

static int teardown(void **state)
{
	struct bench *b = *state;

	assert_int_equal(ibv_destroy_cq(b->cq), 0);
	fixture_close(&b->f);
	free(b->qp);
	free(b);
	return 0;
}

static void init(struct bench *b, uint32_t wr, uint32_t sge, uint32_t inline_data)
{
	struct ibv_qp_cap cap = {wr, wr, sge, sge, inline_data};

	assert_int_equal(vb_qp_init(b->qp, &cap), 0);
	assert_int_equal(b->qp->state, IBV_QPS_RESET);
	assert_int_equal(cap.max_send_wr, wr);
	assert_int_equal(cap.max_send_sge, sge);
	assert_true(cap.max_inline_data >= inline_data && cap.max_inline_data <= VB_MAX_INLINE);
	assert_int_equal(b->qp->req.max_inline, cap.max_inline_data);
}

/* Every WQE holds what was granted, without touching its neighbours. */
static void wqes_have_room_for_what_was_granted(void **state)
{
	static const struct {
		uint32_t wr, sge, inline_data;
	} sizes[] = {{1, 1, 0}, {3, 1, 1}, {5, 0, 0}, {16, 32, 17}, {100, 2, 512}, {8, 4, 511}};
	struct bench *b = *state;

	for (unsigned k = 0; k < sizeof(sizes) / sizeof(sizes[0]); k++) {
		struct vb_req *r = &b->qp->req;
		uint32_t n = sizes[k].wr;

		init(b, n, sizes[k].sge, sizes[k].inline_data);
		assert_true(r->mask + 1 >= n);
		assert_int_equal((r->mask + 1) & r->mask, 0);
		assert_int_equal((uintptr_t)r->ring % VB_LINE, 0);
		assert_int_equal(r->stride % VB_LINE, 0);
		for (uint32_t i = 0; i < n; i++) {
			struct vb_swqe *w = vb_sq_at(r, i);

			*w = (struct vb_swqe){.wr_id = i, .num_sge = r->max_sge};
			memset(w->inline_data, (int)i, r->max_inline);
			for (uint32_t j = 0; j < r->max_sge; j++)
				w->sge[j] = (struct ibv_sge){i, j, i};
		}
		for (uint32_t i = 0; i < n; i++) {
			struct vb_swqe *w = vb_sq_at(r, i);

			assert_int_equal(w->wr_id, i);
			for (uint32_t j = 0; j < r->max_sge; j++)
				assert_true(w->sge[j].addr == i && w->sge[j].length == j);
		}
		vb_qp_fini(b->qp);
	}
}

static void reset(struct vb_qp *qp)
{
	vb_lock_take(&qp->lock);
	vb_qp_reset(qp);
	vb_lock_give(&qp->lock);
}

static int resources(struct vb_qp *qp, uint32_t n)
{
	int err;

	vb_lock_take(&qp->lock);
	err = vb_qp_resources(qp, n);
	vb_lock_give(&qp->lock);
	return err;
}

static void rule_14_queues_of_no_requests_work(void **state)
{
	struct bench *b = *state;
	struct ibv_recv_wr wr = {0}, *bad = NULL;

	init(b, 0, 0, 0);
	assert_false(vb_rq_post(&b->qp->resp.rq, &wr, &bad));
	assert_ptr_equal(bad, &wr);
	reset(b->qp);
	vb_qp_fini(b->qp);
}

static void the_largest_queues_are_backed_as_they_are_used(void **state)
{
	struct bench *b = *state;
	struct ibv_recv_wr wr = {.wr_id = 5}, *bad = NULL;

	for (int i = 0; i < 3; i++) {
		init(b, VB_MAX_QP_WR, VB_MAX_SGE, VB_MAX_INLINE);
		vb_sq_at(&b->qp->req, VB_MAX_QP_WR - 1)->wr_id = 1;
		assert_true(vb_rq_post(&b->qp->resp.rq, &wr, &bad));
		vb_qp_fini(b->qp);
	}
}

static void a_qp_with_an_srq_has_no_receive_queue(void **state)
{
	struct bench *b = *state;
	struct ibv_srq_init_attr si = {.attr = {.max_wr = 4, .max_sge = VB_MAX_SGE}};
	struct ibv_srq *srq = ibv_create_srq(&b->f.pd.ibv, &si);
	struct ibv_recv_wr wr = {.wr_id = 5}, *bad = NULL;
	struct ibv_qp_cap cap = {1, 1, 1, 1, 0};

	b->qp->srq = vb_srq(srq);
	assert_int_equal(vb_qp_init(b->qp, &cap), 0);
	assert_int_equal(cap.max_recv_wr, 0);
	/* a message is under way when the QP is reset, and again when it is destroyed: no slot is lost */
	for (int i = 0; i < 2; i++) {
		assert_int_equal(vb_post_srq_recv(srq, &wr, &bad), 0);
		assert_true(vb_srq_take(b->qp->srq, b->qp->resp.copy, 0, NULL));
		b->qp->resp.have_wqe = true;
		assert_int_equal(vb_rq_held(&b->qp->srq->rq), 1);
		if (i == 0)
			reset(b->qp);
		else
			vb_qp_fini(b->qp);
		assert_int_equal(vb_rq_held(&b->qp->srq->rq), 0);
	}
	assert_int_equal(ibv_destroy_srq(srq), 0);
}

static void reset_forgets_requests_and_completions(void **state)
{
	struct bench *b = *state;
	struct vb_cqe e = {.qp = b->qp, .is_send = true, .sq_free = 2};
	struct ibv_recv_wr wr = {.wr_id = 5}, *bad = NULL;
	struct ibv_wc wc;

	init(b, 4, 1, 0);
	b->qp->post.head = 3;
	b->qp->req.psn = 77;
	b->qp->resp.epsn = 88;
	b->qp->state = IBV_QPS_ERR;
	for (int i = 0; i < 4; i++)
		assert_true(vb_rq_post(&b->qp->resp.rq, &wr, &bad));
	assert_true(vb_cq_push(b->qp->scq, &e, false));
	reset(b->qp);
	assert_int_equal(vb_poll_cq(b->cq, 1, &wc), 0);
	assert_int_equal(b->qp->state, IBV_QPS_RESET);
	assert_int_equal(b->qp->post.head, 0);
	assert_int_equal(b->qp->post.free, 0);
	assert_int_equal(b->qp->req.psn, 0);
	assert_int_equal(b->qp->resp.epsn, 0);
	assert_int_equal(b->qp->req.max_wr, 4);
	for (int i = 0; i < 4; i++) /* all its room is there again */
		assert_true(vb_rq_post(&b->qp->resp.rq, &wr, &bad));
	vb_qp_fini(b->qp);
}

static void accept_resource(struct vb_resp *s, uint32_t psn)
{
	s->res[s->res_head++ % s->res_size].psn = psn;
}

static void rule_38_responder_resources_keep_what_is_unanswered(void **state)
{
	struct bench *b = *state;
	struct vb_resp *s = &b->qp->resp;

	init(b, 1, 1, 0);
	assert_int_equal(resources(b->qp, 0), 0);
	assert_int_equal(s->res_size, 0);
	assert_int_equal(resources(b->qp, 4), 0);
	assert_int_equal(s->res_size, 4);
	for (uint32_t psn = 0; psn < 7; psn++)
		accept_resource(s, psn);
	s->res_next = 4; /* 4, 5 and 6 are unanswered */
	assert_int_equal(resources(b->qp, 128), 0);
	assert_int_equal(s->res_size, 128);
	for (uint32_t i = 3; i < 7; i++)
		assert_int_equal(s->res[i % s->res_size].psn, i);
	assert_int_equal(resources(b->qp, 2), 0);
	assert_int_equal(s->res_size, 128); /* does not fit: stays */
	s->res_next = 5;
	assert_int_equal(resources(b->qp, 2), 0);
	assert_int_equal(s->res_size, 2);
	assert_int_equal(s->res[5 % 2].psn, 5);
	assert_int_equal(s->res[6 % 2].psn, 6);
	s->res_next = 7;
	assert_int_equal(resources(b->qp, 0), 0);
	assert_int_equal(s->res_size, 0);
	assert_int_equal(resources(b->qp, VB_MAX_RD_ATOMIC), 0);
	vb_qp_fini(b->qp);
}

struct settling {
	struct vb_qp *qp;
	_Atomic bool acked;
};

static void *settle(void *arg)
{
	struct settling *s = arg;

	vb_qp_await_events(s->qp);
	assert_true(s->acked);
	return NULL;
}

static void rule_36_destruction_waits_for_the_qps_events(void **state)
{
	struct bench *b = *state;
	struct settling s = {.qp = b->qp};
	struct ibv_async_event ev;
	pthread_t t;

	init(b, 1, 1, 0);
	vb_async_post(&b->f.ctx, &b->qp->ev_comm_est);
	vb_async_post(&b->f.ctx, &b->qp->ev_fatal);
	assert_int_equal(ibv_get_async_event(b->f.ibctx, &ev), 0);
	assert_int_equal(ev.event_type, IBV_EVENT_COMM_EST);
	assert_ptr_equal(ev.element.qp, &b->qp->ibv);
	assert_int_equal(pthread_create(&t, NULL, settle, &s), 0);
	s.acked = true;
	ibv_ack_async_event(&ev);
	pthread_join(t, NULL);
	assert_false(readable(b->f.ibctx->async_fd)); /* the other one was taken back */
	vb_qp_fini(b->qp);
}

#define with_qp(t) cmocka_unit_test_setup_teardown(t, setup, teardown)

int main(void)
{
	const struct CMUnitTest tests[] = {
	    with_qp(wqes_have_room_for_what_was_granted),
	    with_qp(rule_14_queues_of_no_requests_work),
	    with_qp(the_largest_queues_are_backed_as_they_are_used),
	    with_qp(a_qp_with_an_srq_has_no_receive_queue),
	    with_qp(reset_forgets_requests_and_completions),
	    with_qp(rule_38_responder_resources_keep_what_is_unanswered),
	    with_qp(rule_36_destruction_waits_for_the_qps_events),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
