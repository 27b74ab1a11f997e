/* Shared receive queues. */
#include "obj_fixture.h"

static int setup(void **state)
{
	struct fixture *f = calloc(1, sizeof(*f));

	fixture_open(f);
	*state = f;
	return 0;
}

static int teardown(void **state)
{
	fixture_close(*state);
	free(*state);
	return 0;
}

static struct ibv_srq *new_srq(struct fixture *f, uint32_t max_wr, uint32_t max_sge)
{
	struct ibv_srq_init_attr init = {.attr = {.max_wr = max_wr, .max_sge = max_sge}};
	struct ibv_srq *s = ibv_create_srq(&f->pd.ibv, &init);

	assert_non_null(s);
	assert_true(init.attr.max_wr >= max_wr);
	assert_true(init.attr.max_sge >= max_sge);
	return s;
}

static int post(struct ibv_srq *s, uint64_t first, int n, int num_sge, int *posted)
{
	struct ibv_sge sge[3] = {{0x1000, 64, 1}, {0x2000, 128, 2}, {0x3000, 256, 3}};
	struct ibv_recv_wr *wr = calloc((size_t)n, sizeof(*wr)), *bad = NULL;
	int err;

	for (int i = 0; i < n; i++) {
		wr[i] =
		    (struct ibv_recv_wr){.wr_id = first + (uint64_t)i, .sg_list = sge, .num_sge = num_sge};
		wr[i].next = i + 1 < n ? &wr[i + 1] : NULL;
	}
	err = vb_post_srq_recv(s, wr, &bad);
	*posted = err ? (int)(bad - wr) : n;
	free(wr);
	return err;
}

static void post_all(struct ibv_srq *s, uint64_t first, int n)
{
	int posted;

	assert_int_equal(post(s, first, n, 1, &posted), 0);
}

/* Consumes one request that has room for so many bytes; returns its wr_id, or -1 if there was none. */
static int64_t take_for(struct ibv_srq *s, uint32_t need, uint32_t *has)
{
	uint8_t room[sizeof(struct vb_rwqe) + VB_MAX_SGE * sizeof(struct ibv_sge)]
	    __attribute__((aligned(8)));
	struct vb_rwqe *w = (struct vb_rwqe *)room;

	return vb_srq_take(vb_srq(s), w, need, has) ? (int64_t)w->wr_id : -1;
}

static int64_t take(struct ibv_srq *s)
{
	return take_for(s, 0, NULL);
}

/* Consumed, completed and polled. */
static int64_t finish(struct ibv_srq *s)
{
	int64_t id = take(s);

	if (id >= 0)
		atomic_fetch_add(&vb_srq(s)->rq.polled, 1);
	return id;
}

static void requests_are_consumed_in_order_with_their_sges(void **state)
{
	struct ibv_srq *s = new_srq(*state, 4, 3);
	struct vb_rwqe *w = calloc(1, sizeof(*w) + 3 * sizeof(struct ibv_sge));
	int posted;

	for (int round = 0; round < 5; round++) { /* around the ring */
		assert_int_equal(post(s, 100, 3, 3, &posted), 0);
		for (uint64_t i = 0; i < 3; i++) {
			assert_true(vb_srq_take(vb_srq(s), w, 0, NULL));
			atomic_fetch_add(&vb_srq(s)->rq.polled, 1);
			assert_int_equal(w->wr_id, 100 + i);
			assert_int_equal(w->num_sge, 3);
			assert_int_equal(w->sge[2].addr, 0x3000);
			assert_int_equal(w->sge[2].length, 256);
			assert_int_equal(w->sge[2].lkey, 3);
		}
		assert_false(vb_srq_take(vb_srq(s), w, 0, NULL));
	}
	free(w);
	assert_int_equal(ibv_destroy_srq(s), 0);
}

static void rule_11_a_full_srq_gives_enomem_and_the_bad_request(void **state)
{
	struct ibv_srq *s = new_srq(*state, 5, 1);
	int posted;

	assert_int_equal(post(s, 0, 8, 1, &posted), ENOMEM);
	assert_int_equal(posted, 5);
	assert_int_equal(post(s, 0, 1, 1, &posted), ENOMEM);
	/* a consumed request takes room until its completion is polled */
	assert_int_equal(take(s), 0);
	assert_int_equal(post(s, 0, 1, 1, &posted), ENOMEM);
	atomic_fetch_add(&vb_srq(s)->rq.polled, 1);
	assert_int_equal(post(s, 5, 1, 1, &posted), 0);
	for (int i = 1; i <= 5; i++)
		assert_int_equal(finish(s), i);
	assert_int_equal(ibv_destroy_srq(s), 0);
}

static void too_many_sges_are_refused(void **state)
{
	struct ibv_srq *s = new_srq(*state, 4, 2);
	struct ibv_sge sge = {0};
	struct ibv_recv_wr wr[3] = {{.wr_id = 1, .next = &wr[1]},
				    {.wr_id = 2, .num_sge = 3, .sg_list = &sge, .next = &wr[2]},
				    {.wr_id = 3}};
	struct ibv_recv_wr *bad = NULL;

	assert_int_equal(vb_post_srq_recv(s, wr, &bad), EINVAL);
	assert_ptr_equal(bad, &wr[1]);
	wr[1].num_sge = -1;
	assert_int_equal(vb_post_srq_recv(s, &wr[1], &bad), EINVAL);
	assert_int_equal(finish(s), 1);
	assert_int_equal(finish(s), -1); /* nor was what stands behind the bad one posted */
	assert_int_equal(ibv_destroy_srq(s), 0);
}

static void rule_14_a_queue_of_no_requests_works(void **state)
{
	struct ibv_srq *s = new_srq(*state, 0, 0);
	int posted;

	assert_int_equal(post(s, 0, 1, 0, &posted), ENOMEM);
	assert_int_equal(take(s), -1);
	assert_int_equal(ibv_destroy_srq(s), 0);
}

static void rule_34_the_limit_event_comes_once(void **state)
{
	struct fixture *f = *state;
	struct ibv_srq *s = new_srq(f, 8, 1);
	struct ibv_srq_attr attr = {.srq_limit = 3};

	post_all(s, 0, 8);
	assert_int_equal(ibv_modify_srq(s, &attr, IBV_SRQ_LIMIT), 0);
	for (int left = 7; left >= 3; left--) {
		finish(s);
		assert_false(readable(f->ibctx->async_fd)); /* not below the limit */
	}
	finish(s);
	expect_async(f, IBV_EVENT_SRQ_LIMIT_REACHED, s);
	assert_int_equal(ibv_query_srq(s, &attr), 0);
	assert_int_equal(attr.srq_limit, 0); /* disarmed */
	finish(s);
	assert_false(readable(f->ibctx->async_fd));
	/* armed again while below: the next one consumed tells */
	attr.srq_limit = 8;
	assert_int_equal(ibv_modify_srq(s, &attr, IBV_SRQ_LIMIT), 0);
	assert_int_equal(ibv_query_srq(s, &attr), 0);
	assert_int_equal(attr.srq_limit, 8);
	finish(s);
	expect_async(f, IBV_EVENT_SRQ_LIMIT_REACHED, s);
	assert_int_equal(ibv_destroy_srq(s), 0);
}

/* What has less room than somebody needs is not consumed, and nothing is fired. */
static void what_is_too_small_stays(void **state)
{
	struct fixture *f = *state;
	struct ibv_srq *s = new_srq(f, 4, 3);
	struct ibv_srq_attr attr = {.srq_limit = 2};
	struct ibv_sge large[3] = {{0, 1u << 31, 1}, {0, 1u << 31, 1}, {0, 64, 1}};
	struct ibv_recv_wr wr = {.wr_id = 3, .sg_list = large, .num_sge = 3}, *bad;
	uint32_t has = 7;
	int posted;

	assert_int_equal(take_for(s, 1, &has), -1);
	assert_int_equal(has, 7); /* there is none */
	assert_int_equal(post(s, 1, 1, 1, &posted), 0);
	assert_int_equal(post(s, 2, 1, 3, &posted), 0);
	assert_int_equal(ibv_modify_srq(s, &attr, IBV_SRQ_LIMIT), 0);
	for (int i = 0; i < 3; i++) {
		assert_int_equal(take_for(s, 65, &has), -1);
		assert_int_equal(has, 64);
		assert_int_equal(vb_rq_held(&vb_srq(s)->rq), 2);
		assert_false(readable(f->ibctx->async_fd));
	}
	assert_int_equal(take_for(s, 64, &has), 1);
	expect_async(f, IBV_EVENT_SRQ_LIMIT_REACHED, s);
	assert_int_equal(take_for(s, 449, &has), -1);
	assert_int_equal(has, 448); /* of all pieces */
	assert_int_equal(take_for(s, 448, &has), 2);
	assert_int_equal(vb_post_srq_recv(s, &wr, &bad), 0);
	assert_int_equal(take_for(s, UINT32_MAX, &has), 3); /* more than messages have */
	assert_int_equal(ibv_destroy_srq(s), 0);
}

static void modify_refuses_what_mlx5_refuses(void **state)
{
	struct ibv_srq *s = new_srq(*state, 8, 1);
	struct ibv_srq_attr attr = {.max_wr = 16, .srq_limit = 9};

	assert_int_equal(ibv_modify_srq(s, &attr, IBV_SRQ_MAX_WR), EINVAL);
	assert_int_equal(ibv_modify_srq(s, &attr, IBV_SRQ_LIMIT), EINVAL);
	assert_int_equal(ibv_modify_srq(s, &attr, 1 << 7), EINVAL);
	attr.srq_limit = 4;
	assert_int_equal(ibv_modify_srq(s, &attr, IBV_SRQ_MAX_WR | IBV_SRQ_LIMIT), EINVAL);
	assert_int_equal(ibv_query_srq(s, &attr), 0);
	assert_int_equal(attr.max_wr, 8);
	assert_int_equal(attr.max_sge, 1);
	assert_int_equal(attr.srq_limit, 0); /* nothing of a refused call was done */
	assert_int_equal(ibv_destroy_srq(s), 0);
}

static void expect_no_srq(struct fixture *f, uint32_t max_wr, uint32_t max_sge)
{
	struct ibv_srq_init_attr init = {.attr = {.max_wr = max_wr, .max_sge = max_sge}};

	errno = 0;
	assert_null(ibv_create_srq(&f->pd.ibv, &init));
	assert_int_equal(errno, EINVAL);
}

static void the_advertised_maxima_work_and_more_is_refused(void **state)
{
	struct ibv_srq *s = new_srq(*state, VB_MAX_SRQ_WR, VB_MAX_SGE);

	post_all(s, 0, VB_MAX_SRQ_WR);
	for (int i = 0; i < VB_MAX_SRQ_WR; i++)
		assert_int_equal(finish(s), i);
	assert_int_equal(ibv_destroy_srq(s), 0);
	expect_no_srq(*state, VB_MAX_SRQ_WR + 1, 1);
	expect_no_srq(*state, UINT32_MAX, 1);
	expect_no_srq(*state, 1, VB_MAX_SGE + 1);
}

static void rule_37_an_srq_with_qps_is_busy(void **state)
{
	struct ibv_srq *s = new_srq(*state, 1, 1);

	atomic_fetch_add(&vb_srq(s)->refs, 1);
	assert_int_equal(ibv_destroy_srq(s), EBUSY);
	post_all(s, 7, 1); /* and still works */
	assert_int_equal(finish(s), 7);
	atomic_fetch_sub(&vb_srq(s)->refs, 1);
	assert_int_equal(ibv_destroy_srq(s), 0);
}

static void what_the_extended_call_refuses(void **state)
{
	struct fixture *f = *state;
	struct ibv_srq_init_attr_ex ex = {.attr = {.max_wr = 4, .max_sge = 1},
					  .comp_mask = IBV_SRQ_INIT_ATTR_TYPE | IBV_SRQ_INIT_ATTR_PD,
					  .srq_type = IBV_SRQT_BASIC,
					  .pd = &f->pd.ibv};
	struct ibv_srq *s = vb_create_srq_ex(f->ibctx, &ex);
	uint32_t number;

	assert_non_null(s);
	assert_int_equal(vb_get_srq_num(s, &number), 0);
	assert_int_equal(number, vb_srq(s)->number);
	assert_int_equal(ibv_destroy_srq(s), 0);
	ex.srq_type = IBV_SRQT_TM;
	assert_null(vb_create_srq_ex(f->ibctx, &ex));
	assert_int_equal(errno, EOPNOTSUPP);
	ex.srq_type = IBV_SRQT_XRC; /* and neither domain nor CQ */
	assert_null(vb_create_srq_ex(f->ibctx, &ex));
	assert_int_equal(errno, EINVAL);
	ex.srq_type = (enum ibv_srq_type)9;
	assert_null(vb_create_srq_ex(f->ibctx, &ex));
	assert_int_equal(errno, EOPNOTSUPP);
	ex.srq_type = IBV_SRQT_BASIC;
	ex.comp_mask |= IBV_SRQ_INIT_ATTR_XRCD | IBV_SRQ_INIT_ATTR_CQ; /* no use for this type */
	s = vb_create_srq_ex(f->ibctx, &ex);
	assert_non_null(s);
	assert_int_equal(ibv_destroy_srq(s), 0);
	ex.comp_mask |= IBV_SRQ_INIT_ATTR_TM;
	assert_null(vb_create_srq_ex(f->ibctx, &ex));
	assert_int_equal(errno, EOPNOTSUPP);
	ex.comp_mask = IBV_SRQ_INIT_ATTR_TYPE;
	assert_null(vb_create_srq_ex(f->ibctx, &ex));
	assert_int_equal(errno, EINVAL);
}

/* The domain must be of the device that the call names. */
static void a_domain_of_another_device_is_refused(void **state)
{
	struct fixture *f = *state;
	struct ibv_context another = {.num_comp_vectors = 1};
	struct ibv_srq_init_attr_ex ex = {
	    .attr = {.max_wr = 4, .max_sge = 1}, .comp_mask = IBV_SRQ_INIT_ATTR_PD, .pd = &f->pd.ibv};
	struct ibv_srq *s;

	errno = 0;
	assert_null(vb_create_srq_ex(&another, &ex));
	assert_int_equal(errno, EINVAL);
	s = vb_create_srq_ex(f->ibctx, &ex);
	assert_non_null(s);
	assert_ptr_equal(s->pd, &f->pd.ibv);
	assert_int_equal(ibv_destroy_srq(s), 0);
}

/* One thread posts, two consume: nothing is lost, nothing comes twice. */
enum { MANY = 20000 };

struct consumer {
	struct ibv_srq *srq;
	_Atomic int *left;
	uint64_t sum;
};

static void *consume(void *arg)
{
	struct consumer *c = arg;

	while (*c->left > 0) {
		int64_t id = finish(c->srq);

		if (id < 0) {
			sched_yield();
			continue;
		}
		c->sum += (uint64_t)id;
		(*c->left)--;
	}
	return NULL;
}

static void posting_and_consuming_from_many_threads(void **state)
{
	struct ibv_srq *s = new_srq(*state, 64, 1);
	_Atomic int left = MANY;
	struct consumer c[2] = {{s, &left, 0}, {s, &left, 0}};
	pthread_t t[2];
	int posted;

	for (int i = 0; i < 2; i++)
		assert_int_equal(pthread_create(&t[i], NULL, consume, &c[i]), 0);
	for (int i = 0; i < MANY; i++)
		while (post(s, (uint64_t)i, 1, 1, &posted))
			sched_yield();
	for (int i = 0; i < 2; i++)
		pthread_join(t[i], NULL);
	assert_int_equal(c[0].sum + c[1].sum, (uint64_t)MANY * (MANY - 1) / 2);
	assert_int_equal(ibv_destroy_srq(s), 0);
}

#define with_fixture(t) cmocka_unit_test_setup_teardown(t, setup, teardown)

int main(void)
{
	const struct CMUnitTest tests[] = {
	    with_fixture(requests_are_consumed_in_order_with_their_sges),
	    with_fixture(rule_11_a_full_srq_gives_enomem_and_the_bad_request),
	    with_fixture(too_many_sges_are_refused),
	    with_fixture(rule_14_a_queue_of_no_requests_works),
	    with_fixture(rule_34_the_limit_event_comes_once),
	    with_fixture(what_is_too_small_stays),
	    with_fixture(modify_refuses_what_mlx5_refuses),
	    with_fixture(the_advertised_maxima_work_and_more_is_refused),
	    with_fixture(rule_37_an_srq_with_qps_is_busy),
	    with_fixture(what_the_extended_call_refuses),
	    with_fixture(a_domain_of_another_device_is_refused),
	    with_fixture(posting_and_consuming_from_many_threads),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
