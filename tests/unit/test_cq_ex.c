/* Extended completion queues, their times, moderation of events: the queue itself, where nothing makes
 * progress. */
#include <time.h>

#include "base/clock.h"
#include "obj_fixture.h"

enum { DEPTH = 16 };

#define BOTH_TIMES (IBV_WC_EX_WITH_COMPLETION_TIMESTAMP | IBV_WC_EX_WITH_COMPLETION_TIMESTAMP_WALLCLOCK)

struct bench {
	struct fixture f;
	struct ibv_comp_channel *ch;
	struct ibv_cq_ex *cq;
	struct vb_qp *qp, *other;
};

static struct vb_qp *new_qp(void)
{
	struct vb_qp *qp = aligned_alloc(VB_LINE, sizeof(*qp));

	assert_non_null(qp);
	memset(qp, 0, sizeof(*qp));
	return qp;
}

static struct ibv_cq_ex *new_cq(struct bench *b, uint64_t wc_flags, uint32_t flags)
{
	struct ibv_cq_init_attr_ex a = {.cqe = DEPTH,
					.cq_context = &b->f,
					.channel = b->ch,
					.wc_flags = wc_flags,
					.comp_mask = IBV_CQ_INIT_ATTR_MASK_FLAGS,
					.flags = flags};
	struct ibv_cq_ex *cq = vb_create_cq_ex(b->f.ibctx, &a);

	assert_non_null(cq);
	return cq;
}

static struct ibv_cq *plain(struct ibv_cq_ex *cq)
{
	return (struct ibv_cq *)cq;
}

static int setup(void **state)
{
	struct bench *b = calloc(1, sizeof(*b));

	fixture_open(&b->f);
	b->ch = ibv_create_comp_channel(b->f.ibctx);
	assert_non_null(b->ch);
	b->cq = new_cq(b, IBV_WC_STANDARD_FLAGS, 0);
	b->qp = new_qp();
	b->other = new_qp();
	*state = b;
	return 0;
}

static int teardown(void **state)
{
	struct bench *b = *state;

	assert_int_equal(ibv_destroy_cq(plain(b->cq)), 0);
	assert_int_equal(ibv_destroy_comp_channel(b->ch), 0);
	fixture_close(&b->f);
	free(b->qp);
	free(b->other);
	free(b);
	return 0;
}

static bool push_status(struct ibv_cq_ex *cq, struct vb_qp *qp, uint32_t id, enum ibv_wc_status status,
			bool solicited)
{
	struct vb_cqe e = {.wc = {.wr_id = id, .status = status}, .qp = qp, .is_send = true, .sq_free = id};

	return vb_cq_push(vb_cq(plain(cq)), &e, solicited);
}

static void push(struct ibv_cq_ex *cq, struct vb_qp *qp, uint32_t id)
{
	assert_true(push_status(cq, qp, id, IBV_WC_SUCCESS, false));
}

static int start(struct ibv_cq_ex *cq)
{
	struct ibv_poll_cq_attr attr = {0};

	return ibv_start_poll(cq, &attr);
}

static void poll_one(struct ibv_cq_ex *cq, uint64_t id)
{
	assert_int_equal(start(cq), 0);
	assert_int_equal(cq->wr_id, id);
	assert_int_equal(cq->status, IBV_WC_SUCCESS);
	ibv_end_poll(cq);
}

static bool event_waits(struct bench *b)
{
	return readable(b->ch->fd);
}

static void take_event(struct bench *b, struct ibv_cq_ex *of)
{
	struct ibv_cq *cq;
	void *context;

	assert_true(event_waits(b));
	assert_int_equal(ibv_get_cq_event(b->ch, &cq, &context), 0);
	assert_ptr_equal(cq, plain(of));
	assert_ptr_equal(context, &b->f);
	ibv_ack_cq_events(cq, 1);
}

/* ---- creation ---- */

static void refused(struct bench *b, struct ibv_cq_init_attr_ex a, int err)
{
	errno = 0;
	assert_null(vb_create_cq_ex(b->f.ibctx, &a));
	assert_int_equal(errno, err);
}

static void creation_checks_its_attributes(void **state)
{
	static const uint64_t not_here[] = {IBV_WC_EX_WITH_CVLAN, IBV_WC_EX_WITH_FLOW_TAG,
					    IBV_WC_EX_WITH_TM_INFO, 1 << 12, 1ull << 63};
	const uint32_t flags = IBV_CQ_INIT_ATTR_MASK_FLAGS, pd = IBV_CQ_INIT_ATTR_MASK_PD;
	struct bench *b = *state;
	struct ibv_cq_init_attr_ex good = {.cqe = 1}, a;
	struct fixture elsewhere;
	struct vb_parent parent = {.pd = &b->f.pd};
	struct vb_pd domain = {.parent = &parent};
	struct ibv_cq_ex *cq;

#define REFUSED(err, ...)           \
	do {                        \
		a = good;           \
		__VA_ARGS__;        \
		refused(b, a, err); \
	} while (0)
	for (unsigned i = 0; i < sizeof(not_here) / sizeof(*not_here); i++)
		REFUSED(EOPNOTSUPP, a.wc_flags = not_here[i] | IBV_WC_EX_WITH_IMM);
	REFUSED(EINVAL, a.cqe = 0);
	REFUSED(EINVAL, a.cqe = VB_MAX_CQE + 1);
	REFUSED(EINVAL, a.cqe = UINT32_MAX);
	REFUSED(EINVAL, a.comp_vector = 2);
	REFUSED(EINVAL, a.comp_vector = UINT32_MAX);
	REFUSED(EINVAL, a.comp_mask = 4);
	REFUSED(EINVAL, a.comp_mask = flags; a.flags = 4);
	REFUSED(EINVAL, a.comp_mask = pd);
	REFUSED(EINVAL, a.comp_mask = pd; a.parent_domain = &b->f.pd.ibv);
	fixture_open(&elsewhere);
	domain.ibv.context = elsewhere.ibctx;
	REFUSED(EINVAL, a.comp_mask = pd; a.parent_domain = &domain.ibv);
	fixture_close(&elsewhere);
#undef REFUSED
	for (int bit = 0; bit <= 11;
	     bit++) { /* each alone; and without their bit flags and domain are not looked at */
		if (1 << bit & (IBV_WC_EX_WITH_CVLAN | IBV_WC_EX_WITH_FLOW_TAG | IBV_WC_EX_WITH_TM_INFO))
			continue;
		a = good;
		a.wc_flags = 1ull << bit;
		a.flags = UINT32_MAX;
		a.parent_domain = &b->f.pd.ibv;
		cq = vb_create_cq_ex(b->f.ibctx, &a);
		assert_non_null(cq);
		assert_int_equal(ibv_destroy_cq(plain(cq)), 0);
	}
}

static void every_function_is_there(void **state)
{
	struct bench *b = *state;
	char *const *at = (char *const *)(const void *)&b->cq->start_poll;
	struct ibv_wc_tm_info info = {1, 1};

	for (; at < (char *const *)(const void *)(b->cq + 1); at++)
		assert_non_null(*at);
	assert_int_equal(ibv_wc_read_cvlan(b->cq), 0); /* nobody can ask for these */
	assert_int_equal(ibv_wc_read_flow_tag(b->cq), 0);
	ibv_wc_read_tm_info(b->cq, &info);
	assert_true(!info.tag && !info.priv);
}

/* ---- polling ---- */

static void each_field_is_read(void **state)
{
	struct bench *b = *state;
	struct vb_cqe e = {.wc = {.wr_id = 1ull << 40,
				  .status = IBV_WC_GENERAL_ERR,
				  .opcode = IBV_WC_RECV_RDMA_WITH_IMM,
				  .vendor_err = 2,
				  .byte_len = 3,
				  .imm_data = 4,
				  .qp_num = 5,
				  .src_qp = 6,
				  .wc_flags = IBV_WC_WITH_IMM | IBV_WC_GRH,
				  .slid = 8,
				  .sl = 9,
				  .dlid_path_bits = 10},
			   .qp = b->qp};

	assert_true(vb_cq_push(vb_cq(plain(b->cq)), &e, false));
	assert_int_equal(start(b->cq), 0);
	assert_int_equal(b->cq->wr_id, 1ull << 40);
	assert_int_equal(b->cq->status, IBV_WC_GENERAL_ERR);
	assert_int_equal(ibv_wc_read_opcode(b->cq), IBV_WC_RECV_RDMA_WITH_IMM);
	assert_int_equal(ibv_wc_read_vendor_err(b->cq), 2);
	assert_int_equal(ibv_wc_read_byte_len(b->cq), 3);
	assert_int_equal(ibv_wc_read_imm_data(b->cq), 4);
	assert_int_equal(ibv_wc_read_invalidated_rkey(b->cq), 4);
	assert_int_equal(ibv_wc_read_qp_num(b->cq), 5);
	assert_int_equal(ibv_wc_read_src_qp(b->cq), 6);
	assert_int_equal(ibv_wc_read_wc_flags(b->cq), IBV_WC_WITH_IMM | IBV_WC_GRH);
	assert_int_equal(ibv_wc_read_slid(b->cq), 8);
	assert_int_equal(ibv_wc_read_sl(b->cq), 9);
	assert_int_equal(ibv_wc_read_dlid_path_bits(b->cq), 10);
	assert_int_equal(ibv_wc_read_completion_ts(b->cq), 0); /* not asked for */
	assert_int_equal(ibv_wc_read_completion_wallclock_ns(b->cq), 0);
	ibv_end_poll(b->cq);
}

/* ENOENT: after a start that says so there is nothing to end, after a next there is. */
static void a_batch_begins_and_ends(void **state)
{
	struct bench *b = *state;
	struct ibv_poll_cq_attr attr = {.comp_mask = 1};
	struct ibv_wc wc;

	errno = 77;
	assert_int_equal(start(b->cq), ENOENT);
	assert_int_equal(start(b->cq), ENOENT);
	for (uint32_t i = 1; i <= 3; i++)
		push(b->cq, b->qp, i);
	assert_int_equal(start(b->cq), 0);
	for (uint32_t i = 1; i <= 3; i++) {
		assert_int_equal(b->cq->wr_id, i);
		assert_int_equal(b->qp->post.free, i); /* its slot is free as soon as it is seen */
		assert_int_equal(ibv_next_poll(b->cq), i < 3 ? 0 : ENOENT);
	}
	push(b->cq, b->qp, 4); /* one that comes now belongs to the same batch */
	assert_int_equal(ibv_next_poll(b->cq), 0);
	assert_int_equal(b->cq->wr_id, 4);
	assert_int_equal(ibv_next_poll(b->cq), ENOENT);
	ibv_end_poll(b->cq);
	assert_int_equal(errno, 77);
	push(b->cq, b->qp, 5);
	assert_int_equal(ibv_start_poll(b->cq, &attr), EINVAL);
	assert_int_equal(errno, EINVAL);
	poll_one(b->cq, 5);
	push(b->cq, b->qp, 6); /* the plain call polls the same queue */
	assert_int_equal(vb_poll_cq(plain(b->cq), 1, &wc), 1);
	assert_int_equal(wc.wr_id, 6);
	assert_int_equal(ibv_start_poll(b->cq, &attr), EINVAL); /* also of an empty queue */
}

/* What is in hand has left the queue: the queue changes as it likes. */
static void in_between_all_else_goes_on(void **state)
{
	struct bench *b = *state;
	struct ibv_wc wc;

	for (uint32_t i = 1; i <= DEPTH; i++)
		push(b->cq, i % 2 ? b->qp : b->other, i);
	assert_int_equal(start(b->cq), 0);
	push(b->cq, b->other, DEPTH + 2);	  /* its place is free */
	vb_cq_forget(vb_cq(plain(b->cq)), b->qp); /* the queue pair of the one in hand is destroyed */
	assert_int_equal(b->cq->wr_id, 1);
	assert_int_equal(ibv_resize_cq(plain(b->cq), 1000), 0);
	assert_int_equal(vb_poll_cq(plain(b->cq), 1, &wc), 1);
	assert_int_equal(wc.wr_id, 2);
	assert_int_equal(vb_req_notify_cq(plain(b->cq), 0), 0);
	push(b->cq, b->other, DEPTH + 4);
	take_event(b, b->cq);
	assert_int_equal(ibv_wc_read_opcode(b->cq), IBV_WC_SEND);
	assert_int_equal(b->cq->wr_id, 1);
	for (uint32_t i = 4; i <= DEPTH + 4; i += 2) {
		assert_int_equal(ibv_next_poll(b->cq), 0);
		assert_int_equal(b->cq->wr_id, i);
	}
	assert_int_equal(ibv_next_poll(b->cq), ENOENT);
	ibv_end_poll(b->cq);
}

struct rival {
	struct bench *b;
	_Atomic bool ended;
};

static void *poll_as_well(void *arg)
{
	struct rival *r = arg;

	assert_int_equal(start(r->b->cq), 0);
	assert_true(r->ended);
	assert_int_equal(r->b->cq->wr_id, 2);
	ibv_end_poll(r->b->cq);
	return NULL;
}

/* Another thread may be too early: there is no event to wait for where it is not. */
static void watch_for_absence(void)
{
	const struct timespec some = {0, 20000000};

	nanosleep(&some, NULL);
}

static void one_consumer_at_a_time(void **state)
{
	struct bench *b = *state;
	struct rival r = {.b = b};
	pthread_t t;

	push(b->cq, b->qp, 1);
	push(b->cq, b->qp, 2);
	assert_int_equal(start(b->cq), 0);
	assert_int_equal(pthread_create(&t, NULL, poll_as_well, &r), 0);
	watch_for_absence();
	assert_int_equal(b->cq->wr_id, 1);
	r.ended = true;
	ibv_end_poll(b->cq);
	pthread_join(t, NULL);
}

struct turn {
	struct ibv_cq_ex *cq;
	_Atomic bool begun;
};

static void *begin_turn(void *arg)
{
	struct turn *t = arg;

	assert_int_equal(start(t->cq), 0);
	atomic_store(&t->begun, true);
	return NULL;
}

/* Somebody is at the queue itself: whoever comes for a completion waits, and gets it. */
static void the_queue_is_waited_for(void **state)
{
	struct bench *b = *state;
	struct turn turn = {.cq = b->cq};
	pthread_t t;

	push(b->cq, b->qp, 1);
	vb_lock_take(&vb_cq(plain(b->cq))->lock);
	assert_int_equal(pthread_create(&t, NULL, begin_turn, &turn), 0);
	watch_for_absence();
	assert_false(atomic_load(&turn.begun));
	vb_lock_give(&vb_cq(plain(b->cq))->lock);
	pthread_join(t, NULL);
	assert_int_equal(b->cq->wr_id, 1);
	ibv_end_poll(b->cq);
}

/* A second turn of the same thread would wait for the first one for ever, whether or not anything is there.
 */
static void a_turn_is_begun_once(void **state)
{
	struct bench *b = *state;
	struct ibv_cq_ex *cqs[] = {b->cq, new_cq(b, 0, IBV_CREATE_CQ_ATTR_SINGLE_THREADED)};

	for (int i = 0; i < 2; i++) {
		struct ibv_cq_ex *cq = cqs[i];

		push(cq, b->qp, 1);
		assert_int_equal(start(cq), 0);
		assert_int_equal(start(cq), EINVAL);
		assert_int_equal(errno, EINVAL);
		push(cq, b->qp, 2);
		assert_int_equal(start(cq), EINVAL);
		assert_int_equal(cq->wr_id, 1); /* it is the first one's as before */
		assert_int_equal(ibv_next_poll(cq), 0);
		assert_int_equal(cq->wr_id, 2);
		ibv_end_poll(cq);
		assert_int_equal(start(cq), ENOENT);
	}
	assert_int_equal(ibv_destroy_cq(plain(cqs[1])), 0);
}

/* Not begun yet, begun in vain, and ended. */
static void nothing_without_a_turn(void **state)
{
	struct bench *b = *state;
	struct vb_cqe e = {.wc = {.wr_id = 1, .byte_len = 100, .qp_num = 5, .sl = 9}, .qp = b->qp};

	for (int i = 0; i < 3; i++) {
		if (i == 1)
			assert_int_equal(start(b->cq), ENOENT);
		assert_true(vb_cq_push(vb_cq(plain(b->cq)), &e, false));
		errno = 0;
		assert_int_equal(ibv_next_poll(b->cq), EINVAL);
		assert_int_equal(errno, EINVAL);
		errno = 77;
		ibv_end_poll(b->cq);
		assert_int_equal(ibv_wc_read_byte_len(b->cq), 0);
		assert_int_equal(ibv_wc_read_qp_num(b->cq), 0);
		assert_int_equal(ibv_wc_read_sl(b->cq), 0);
		assert_int_equal(errno, 77);
		assert_int_equal(start(b->cq), 0); /* the completion is still there */
		assert_int_equal(ibv_wc_read_byte_len(b->cq), 100);
		ibv_end_poll(b->cq);
	}
}

static void a_queue_in_a_turn_stays(void **state)
{
	struct bench *b = *state;
	struct ibv_cq_ex *cq = new_cq(b, 0, 0);

	push(cq, b->qp, 1);
	assert_int_equal(start(cq), 0);
	assert_int_equal(ibv_destroy_cq(plain(cq)), EBUSY);
	assert_int_equal(cq->wr_id, 1);
	ibv_end_poll(cq);
	assert_int_equal(ibv_destroy_cq(plain(cq)), 0);
}

/* Who promises to be alone waits for nobody. */
static void single_threaded_has_no_lock(void **state)
{
	struct bench *b = *state;
	struct vb_td td = {0};
	struct vb_parent parent = {.pd = &b->f.pd, .td = &td};
	struct vb_pd domain = {.parent = &parent, .ibv.context = b->f.ibctx};
	struct ibv_cq_init_attr_ex a = {
	    .cqe = 4, .comp_mask = IBV_CQ_INIT_ATTR_MASK_PD, .parent_domain = &domain.ibv};
	struct ibv_cq_ex *cqs[] = {new_cq(b, 0, IBV_CREATE_CQ_ATTR_SINGLE_THREADED),
				   vb_create_cq_ex(b->f.ibctx, &a)};

	for (int i = 0; i < 2; i++) {
		assert_non_null(cqs[i]);
		assert_true(vb_cq(plain(cqs[i]))->turn.alone);
		push(cqs[i], b->qp, 1);
		poll_one(cqs[i], 1);
		assert_int_equal(start(cqs[i]), ENOENT);
		assert_int_equal(domain.refs, 1);
	}
	for (int i = 0; i < 2; i++)
		assert_int_equal(ibv_destroy_cq(plain(cqs[i])), 0);
	assert_int_equal(domain.refs, 0);
}

enum { LOAD = 20000 };

struct load {
	struct bench *b;
	_Atomic uint32_t polled;
};

static void *push_load(void *arg)
{
	struct load *l = arg;

	for (uint32_t i = 0; i < LOAD; i++) {
		while (i - l->polled >= DEPTH)
			sched_yield();
		push(l->b->cq, l->b->qp, i);
	}
	return NULL;
}

static void rule_31_nothing_is_lost_under_load(void **state)
{
	struct load l = {.b = *state};
	struct ibv_cq_ex *cq = l.b->cq;
	pthread_t t;

	assert_int_equal(pthread_create(&t, NULL, push_load, &l), 0);
	while (l.polled < LOAD) {
		if (start(cq)) {
			sched_yield();
			continue;
		}
		do {
			assert_int_equal(cq->wr_id, l.polled);
			l.polled++;
		} while (l.polled % 64 && !ibv_next_poll(cq));
		ibv_end_poll(cq);
	}
	pthread_join(t, NULL);
}

/* ---- overrun ---- */

static void rule_31_overrun(void **state)
{
	struct bench *b = *state;

	for (uint32_t i = 0; i < DEPTH; i++)
		push(b->cq, b->qp, i);
	assert_false(push_status(b->cq, b->qp, 99, IBV_WC_SUCCESS, false));
	expect_async(&b->f, IBV_EVENT_CQ_ERR, b->cq);
	assert_int_equal(start(b->cq), 0); /* what was there can still be polled */
	for (uint32_t i = 0; i < DEPTH; i++) {
		assert_int_equal(b->cq->wr_id, i);
		assert_int_equal(ibv_next_poll(b->cq), i + 1 < DEPTH ? 0 : EIO);
	}
	ibv_end_poll(b->cq);
	errno = 0;
	assert_int_equal(start(b->cq), EIO);
	assert_int_equal(start(b->cq), EIO); /* there was nothing to end */
	assert_int_equal(errno, EIO);
}

static void ignored_overrun_loses_the_oldest(void **state)
{
	struct bench *b = *state;
	struct ibv_cq_ex *cq = new_cq(b, BOTH_TIMES, IBV_CREATE_CQ_ATTR_IGNORE_OVERRUN);
	struct vb_srq srq = {0};
	struct vb_cqe e = {.qp = b->other, .srq = &srq};

	atomic_store(&srq.rq.polled, srq.rq.head - 1);
	assert_true(vb_cq_push(vb_cq(plain(cq)), &e, false));
	for (uint32_t i = 1; i <= 3 * DEPTH; i++)
		push(cq, b->qp, i);
	assert_false(readable(b->f.ibctx->async_fd));
	assert_int_equal(vb_rq_held(&srq.rq), 0); /* the requests of those that are lost are over, too */
	assert_int_equal(b->qp->post.free, 2 * DEPTH);
	assert_int_equal(start(cq), 0);
	for (uint32_t i = 2 * DEPTH + 1; i <= 3 * DEPTH; i++) {
		assert_int_equal(cq->wr_id, i);
		assert_int_not_equal(ibv_wc_read_completion_ts(cq), 0);
		assert_int_equal(ibv_next_poll(cq), i < 3 * DEPTH ? 0 : ENOENT);
	}
	ibv_end_poll(cq);
	assert_int_equal(ibv_destroy_cq(plain(cq)), 0);
}

/* ---- times ---- */

static uint64_t wall(void)
{
	struct timespec t;

	clock_gettime(CLOCK_REALTIME, &t);
	return (uint64_t)t.tv_sec * VB_SEC + (uint64_t)t.tv_nsec;
}

static uint64_t times[DEPTH + 1]; /* before each push of stamped_queue(), and behind the last */

/* Half of them are the other queue pair's. */
static struct ibv_cq_ex *stamped_queue(struct bench *b, uint64_t which)
{
	struct ibv_cq_ex *cq = new_cq(b, which, 0);

	for (uint32_t i = 0; i < DEPTH; i++) {
		times[i] = vb_now();
		push(cq, i % 2 ? b->other : b->qp, i);
	}
	times[DEPTH] = vb_now();
	return cq;
}

static void expect_stamped(struct ibv_cq_ex *cq, uint32_t from, uint32_t step)
{
	assert_int_equal(start(cq), 0);
	for (uint32_t i = from; i < DEPTH; i += step) {
		assert_int_equal(cq->wr_id, i);
		assert_in_range(ibv_wc_read_completion_ts(cq), times[i], times[i + 1]);
		assert_int_equal(ibv_next_poll(cq), i + step < DEPTH ? 0 : ENOENT);
	}
	ibv_end_poll(cq);
	assert_int_equal(ibv_destroy_cq(plain(cq)), 0);
}

/* When it came to be, not when it was polled; and the time stays with its completion. */
static void a_completion_keeps_its_time(void **state)
{
	struct bench *b = *state;
	uint64_t only = IBV_WC_EX_WITH_COMPLETION_TIMESTAMP;
	struct ibv_cq_ex *cq = stamped_queue(b, only);

	expect_stamped(cq, 0, 1);
	cq = stamped_queue(b, only);
	assert_int_equal(ibv_resize_cq(plain(cq), 300), 0);
	assert_int_equal(ibv_resize_cq(plain(cq), DEPTH), 0);
	expect_stamped(cq, 0, 1);
	cq = stamped_queue(b, BOTH_TIMES);
	vb_cq_forget(vb_cq(plain(cq)), b->qp);
	expect_stamped(cq, 1, 2);
}

static void each_clock_for_who_asks(void **state)
{
	struct bench *b = *state;
	struct ibv_cq_ex *clock = new_cq(b, IBV_WC_EX_WITH_COMPLETION_TIMESTAMP, 0);
	struct ibv_cq_ex *walls = new_cq(b, IBV_WC_EX_WITH_COMPLETION_TIMESTAMP_WALLCLOCK, 0);
	uint64_t before = vb_now(), wall_before = wall();

	push(clock, b->qp, 1);
	push(walls, b->qp, 2);
	assert_int_equal(start(clock), 0);
	assert_int_equal(start(walls), 0);
	assert_in_range(ibv_wc_read_completion_ts(clock), before, vb_now());
	assert_int_equal(ibv_wc_read_completion_wallclock_ns(clock), 0);
	assert_in_range(ibv_wc_read_completion_wallclock_ns(walls), wall_before, wall());
	assert_int_equal(ibv_wc_read_completion_ts(walls), 0);
	ibv_end_poll(clock);
	ibv_end_poll(walls);
	assert_int_equal(ibv_destroy_cq(plain(clock)), 0);
	assert_int_equal(ibv_destroy_cq(plain(walls)), 0);
}

static void the_largest_is_backed_as_it_is_used(void **state)
{
	struct bench *b = *state;
	struct ibv_cq_init_attr_ex a = {.cqe = VB_MAX_CQE, .wc_flags = BOTH_TIMES};
	struct ibv_cq_ex *cq[32];

	for (int i = 0; i < 32; i++) { /* twelve gigabytes, if they were backed */
		cq[i] = vb_create_cq_ex(b->f.ibctx, &a);
		assert_non_null(cq[i]);
		push(cq[i], b->qp, 1);
	}
	for (int i = 0; i < 32; i++)
		assert_int_equal(ibv_destroy_cq(plain(cq[i])), 0);
}

/* ---- moderation ---- */

static struct {
	int n;
	uint64_t until;
} told;

static void note_held(struct vb_cq *cq, uint64_t until)
{
	(void)cq;
	told.n++;
	told.until = until;
}

static const struct vb_cq_ops noting = {.held = note_held};

static int moderate(struct ibv_cq_ex *cq, uint16_t count, uint16_t period)
{
	struct ibv_modify_cq_attr a = {.attr_mask = IBV_CQ_ATTR_MODERATE, .moderate = {count, period}};

	return vb_modify_cq(plain(cq), &a);
}

static void moderation_checks_its_attributes(void **state)
{
	struct bench *b = *state;
	struct ibv_modify_cq_attr a = {.attr_mask = 0};

	assert_int_equal(vb_modify_cq(plain(b->cq), &a), EINVAL);
	a.attr_mask = IBV_CQ_ATTR_MODERATE | 2;
	assert_int_equal(vb_modify_cq(plain(b->cq), &a), EOPNOTSUPP);
	assert_int_equal(moderate(b->cq, 1, VB_MAX_CQ_PERIOD + 1), EINVAL);
	assert_int_equal(moderate(b->cq, UINT16_MAX, VB_MAX_CQ_PERIOD), 0);
	assert_int_equal(moderate(b->cq, 0, 0), 0);
}

static void so_many_completions_are_one_event(void **state)
{
	struct bench *b = *state;
	uint64_t before;

	vb_cq(plain(b->cq))->ops = &noting;
	told.n = 0;
	assert_int_equal(moderate(b->cq, 4, 4000), 0);
	push(b->cq, b->qp, 1); /* not armed: it does not count */
	for (int round = 0; round < 2; round++) {
		vb_req_notify_cq(plain(b->cq), 0);
		before = vb_now();
		for (uint32_t i = 0; i < 3; i++) {
			push(b->cq, b->qp, i);
			assert_false(event_waits(b));
		}
		assert_int_equal(told.n, round + 1); /* the time begins with the first, once */
		assert_in_range(told.until, before + 4 * VB_MSEC, vb_now() + 4 * VB_MSEC);
		vb_req_notify_cq(plain(b->cq), 0); /* arming again takes nothing away */
		push(b->cq, b->qp, 3);
		take_event(b, b->cq);
		assert_int_equal(vb_cq_release(vb_cq(plain(b->cq)), VB_NEVER - 1), VB_NEVER);
		push(b->cq, b->qp, 4);
		assert_false(event_waits(b));
	}
}

static void the_event_comes_when_the_period_is_over(void **state)
{
	struct bench *b = *state;
	struct vb_cq *cq = vb_cq(plain(b->cq));

	cq->ops = &noting;
	assert_int_equal(moderate(b->cq, 100, 50), 0);
	for (int what = 0; what < 3; what++) { /* any completion, a solicited one, an error */
		vb_req_notify_cq(plain(b->cq), what > 0);
		assert_true(
		    push_status(b->cq, b->qp, 1, what == 2 ? IBV_WC_GENERAL_ERR : IBV_WC_SUCCESS, what == 1));
		assert_false(event_waits(b));
		assert_int_equal(vb_cq_release(cq, told.until - 1), told.until);
		assert_false(event_waits(b));
		assert_int_equal(vb_cq_release(cq, told.until), VB_NEVER);
		take_event(b, b->cq);
		assert_int_equal(vb_cq_release(cq, told.until), VB_NEVER); /* once */
		assert_false(event_waits(b));
	}
	vb_req_notify_cq(plain(b->cq), 1); /* what does not satisfy the arming does not count */
	told.n = 0;
	push(b->cq, b->qp, 2);
	assert_int_equal(told.n, 0);
}

static void other_values_hold_nothing_back(void **state)
{
	static const uint16_t none[][2] = {{0, 0}, {0, 50}, {50, 0}, {1, 50}};
	struct bench *b = *state;

	for (int i = 0; i < 4; i++) {
		assert_int_equal(moderate(b->cq, 3, 50), 0);
		vb_req_notify_cq(plain(b->cq), 0);
		push(b->cq, b->qp, 1);
		assert_false(event_waits(b));
		assert_int_equal(moderate(b->cq, none[i][0], none[i][1]), 0);
		take_event(b, b->cq); /* what was held back is told */
		vb_req_notify_cq(plain(b->cq), 0);
		push(b->cq, b->qp, 2);
		take_event(b, b->cq);
	}
	assert_int_equal(moderate(b->cq, 3, 50), 0); /* and destruction takes it back */
	vb_req_notify_cq(plain(b->cq), 0);
	push(b->cq, b->qp, 1);
}

#define with_cq(t) cmocka_unit_test_setup_teardown(t, setup, teardown)

int main(void)
{
	const struct CMUnitTest tests[] = {
	    with_cq(creation_checks_its_attributes),
	    with_cq(every_function_is_there),
	    with_cq(each_field_is_read),
	    with_cq(a_batch_begins_and_ends),
	    with_cq(in_between_all_else_goes_on),
	    with_cq(one_consumer_at_a_time),
	    with_cq(a_turn_is_begun_once),
	    with_cq(nothing_without_a_turn),
	    with_cq(a_queue_in_a_turn_stays),
	    with_cq(the_queue_is_waited_for),
	    with_cq(single_threaded_has_no_lock),
	    with_cq(rule_31_nothing_is_lost_under_load),
	    with_cq(rule_31_overrun),
	    with_cq(ignored_overrun_loses_the_oldest),
	    with_cq(a_completion_keeps_its_time),
	    with_cq(each_clock_for_who_asks),
	    with_cq(the_largest_is_backed_as_it_is_used),
	    with_cq(moderation_checks_its_attributes),
	    with_cq(so_many_completions_are_one_event),
	    with_cq(the_event_comes_when_the_period_is_over),
	    with_cq(other_values_hold_nothing_back),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
