/* Completion queues and channels. */
#include <sys/mman.h>

#include "bytes.h"
#include "obj_fixture.h"

struct bench {
	struct fixture f;
	struct ibv_comp_channel *ch;
	struct ibv_cq *cq;
	struct vb_qp *qp, *other;
};

static struct vb_qp *new_qp(void)
{
	struct vb_qp *qp = aligned_alloc(VB_LINE, sizeof(*qp));

	assert_non_null(qp);
	memset(qp, 0, sizeof(*qp));
	return qp;
}

static int setup(void **state)
{
	struct bench *b = calloc(1, sizeof(*b));

	fixture_open(&b->f);
	b->ch = ibv_create_comp_channel(b->f.ibctx);
	assert_non_null(b->ch);
	b->cq = ibv_create_cq(b->f.ibctx, 16, &b->f, b->ch, 0);
	assert_non_null(b->cq);
	assert_true(b->cq->cqe >= 16);
	b->qp = new_qp();
	b->other = new_qp();
	*state = b;
	return 0;
}

static int teardown(void **state)
{
	struct bench *b = *state;

	if (b->cq)
		assert_int_equal(ibv_destroy_cq(b->cq), 0);
	if (b->ch)
		assert_int_equal(ibv_destroy_comp_channel(b->ch), 0);
	fixture_close(&b->f);
	free(b->qp);
	free(b->other);
	free(b);
	return 0;
}

static bool push_sent(struct ibv_cq *cq, struct vb_qp *qp, uint32_t sq_free, enum ibv_wc_status status)
{
	struct vb_cqe e = {.wc = {.wr_id = sq_free, .status = status, .qp_num = 77},
			   .qp = qp,
			   .is_send = true,
			   .sq_free = sq_free};

	return vb_cq_push(vb_cq(cq), &e, false);
}

static bool push_received(struct ibv_cq *cq, struct vb_qp *qp, struct vb_srq *srq, uint64_t id,
			  bool solicited)
{
	struct vb_cqe e = {.wc = {.wr_id = id, .opcode = IBV_WC_RECV}, .qp = qp, .srq = srq};

	return vb_cq_push(vb_cq(cq), &e, solicited);
}

static void push_ok(struct bench *b, uint32_t id)
{
	assert_true(push_sent(b->cq, b->qp, id, IBV_WC_SUCCESS));
}

static void poll_one(struct bench *b, uint64_t id)
{
	struct ibv_wc wc;

	assert_int_equal(vb_poll_cq(b->cq, 1, &wc), 1);
	assert_int_equal(wc.wr_id, id);
}

static bool event_waits(struct bench *b)
{
	return readable(b->ch->fd);
}

static void expect_event(struct bench *b)
{
	struct ibv_cq *cq;
	void *context;

	assert_true(event_waits(b));
	assert_int_equal(ibv_get_cq_event(b->ch, &cq, &context), 0);
	assert_ptr_equal(cq, b->cq);
	assert_ptr_equal(context, &b->f);
	ibv_ack_cq_events(cq, 1);
}

static void slots_are_free_when_their_completion_is_polled(void **state)
{
	struct bench *b = *state;
	struct vb_srq srq = {0};
	struct ibv_wc wc[8];

	atomic_store(&b->qp->resp.rq.polled, b->qp->resp.rq.head - 2);
	atomic_store(&b->other->resp.rq.polled, b->other->resp.rq.head - 1);
	atomic_store(&srq.rq.polled, srq.rq.head - 3);
	assert_true(push_received(b->cq, b->qp, NULL, 1, false));
	assert_true(push_received(b->cq, b->qp, NULL, 2, false));
	assert_true(push_received(b->cq, b->other, NULL, 3, false));
	assert_true(push_received(b->cq, b->qp, &srq, 4, false));
	push_ok(b, 5);
	assert_true(push_received(b->cq, b->other, &srq, 6, false));
	push_ok(b, 9); /* 6 to 8 were unsignalled (rule 39) */
	assert_int_equal(b->qp->post.free, 0);
	assert_int_equal(vb_rq_held(&b->qp->resp.rq), 2);

	assert_int_equal(vb_poll_cq(b->cq, 5, wc), 5);
	assert_int_equal(vb_rq_held(&b->qp->resp.rq), 0);
	assert_int_equal(vb_rq_held(&b->other->resp.rq), 0);
	assert_int_equal(vb_rq_held(&srq.rq), 2);
	assert_int_equal(b->qp->post.free, 5);
	assert_int_equal(vb_poll_cq(b->cq, 8, wc), 2);
	assert_int_equal(vb_rq_held(&srq.rq), 1);
	assert_int_equal(b->qp->post.free, 9);
	assert_int_equal(vb_poll_cq(b->cq, 8, wc), 0);
	assert_int_equal(vb_poll_cq(b->cq, 0, NULL), 0);
}

static void rule_30_an_error_completion_names_request_and_qp(void **state)
{
	struct bench *b = *state;
	struct ibv_wc wc;

	assert_true(push_sent(b->cq, b->qp, 3, IBV_WC_WR_FLUSH_ERR));
	assert_int_equal(vb_poll_cq(b->cq, 1, &wc), 1);
	assert_int_equal(wc.wr_id, 3);
	assert_int_equal(wc.qp_num, 77);
	assert_int_equal(wc.status, IBV_WC_WR_FLUSH_ERR);
}

static void rule_31_overrun(void **state)
{
	struct bench *b = *state;
	struct vb_srq srq = {0};
	struct ibv_wc wc[32];
	int n = b->cq->cqe;

	for (int i = 0; i < n; i++)
		push_ok(b, (uint32_t)i);
	assert_false(readable(b->f.ibctx->async_fd));
	assert_false(push_sent(b->cq, b->qp, 99, IBV_WC_SUCCESS));
	assert_false(push_sent(b->cq, b->qp, 100, IBV_WC_SUCCESS));
	expect_async(&b->f, IBV_EVENT_CQ_ERR, b->cq); /* once */
	assert_false(readable(b->f.ibctx->async_fd));
	/* what was there can still be polled */
	assert_int_equal(vb_poll_cq(b->cq, 32, wc), n);
	for (int i = 0; i < n; i++)
		assert_int_equal(wc[i].wr_id, i);
	errno = 0;
	assert_int_equal(vb_poll_cq(b->cq, 1, wc), -1);
	assert_int_equal(errno, EIO);
	assert_false(push_sent(b->cq, b->qp, 101, IBV_WC_SUCCESS));
	atomic_store(&srq.rq.polled, srq.rq.head - 1); /* an SRQ serves others too and loses no room */
	assert_false(push_received(b->cq, b->qp, &srq, 102, false));
	assert_int_equal(vb_rq_held(&srq.rq), 0);
	assert_false(readable(b->f.ibctx->async_fd));
}

static void rule_31_resize_keeps_what_is_there(void **state)
{
	struct bench *b = *state;

	for (uint32_t i = 0; i < 10; i++) { /* so that the ring's ends do not coincide */
		push_ok(b, i);
		poll_one(b, i);
	}
	for (uint32_t i = 10; i < 20; i++)
		push_ok(b, i);
	assert_int_equal(ibv_resize_cq(b->cq, 9), EINVAL);
	assert_int_equal(b->cq->cqe, 16);
	assert_int_equal(ibv_resize_cq(b->cq, 10), 0);
	assert_true(b->cq->cqe >= 10);
	assert_int_equal(ibv_resize_cq(b->cq, 100), 0);
	for (uint32_t i = 20; i < 110; i++)
		push_ok(b, i);
	for (uint32_t i = 10; i < 110; i++)
		poll_one(b, i);
	assert_int_equal(ibv_resize_cq(b->cq, 0), EINVAL);
	assert_int_equal(ibv_resize_cq(b->cq, -4), EINVAL);
	assert_int_equal(ibv_resize_cq(b->cq, VB_MAX_CQE + 1), EINVAL);
	assert_int_equal(ibv_resize_cq(b->cq, VB_MAX_CQE), 0);
	assert_int_equal(ibv_resize_cq(b->cq, 1), 0);
}

enum { LOAD = 50000 };

struct load {
	struct bench *b;
	_Atomic bool done;
	_Atomic uint32_t polled;
};

static void *push_load(void *arg)
{
	struct load *l = arg;

	for (uint32_t i = 0; i < LOAD; i++) {
		while (i - l->polled >= 16) /* as a send queue of 16 would do */
			sched_yield();
		push_ok(l->b, i);
	}
	return NULL;
}

static void *resize_load(void *arg)
{
	struct load *l = arg;
	static const int sizes[] = {16, 1000, 17, 300, 64, 4096};

	for (unsigned n = 0; !l->done; n++) {
		assert_int_equal(ibv_resize_cq(l->b->cq, sizes[n % 6]), 0);
		sched_yield();
	}
	return NULL;
}

static void rule_31_resize_under_load(void **state)
{
	struct load l = {.b = *state};
	pthread_t t[2];
	struct ibv_wc wc[4];

	assert_int_equal(pthread_create(&t[0], NULL, push_load, &l), 0);
	assert_int_equal(pthread_create(&t[1], NULL, resize_load, &l), 0);
	while (l.polled < LOAD) {
		int n = vb_poll_cq(l.b->cq, 4, wc);

		assert_true(n >= 0);
		for (int i = 0; i < n; i++)
			assert_int_equal(wc[i].wr_id, l.polled + (uint32_t)i);
		l.polled += (uint32_t)n;
		if (!n)
			sched_yield();
	}
	l.done = true;
	for (int i = 0; i < 2; i++)
		pthread_join(t[i], NULL);
}

/* The usual loop: arm, poll until empty, wait.  A notification that gets lost hangs it. */
static void rule_31_no_notification_is_lost(void **state)
{
	struct load l = {.b = *state};
	struct ibv_cq *cq;
	void *context;
	pthread_t t;
	struct ibv_wc wc[4];
	int n;

	assert_int_equal(pthread_create(&t, NULL, push_load, &l), 0);
	for (;;) {
		assert_int_equal(vb_req_notify_cq(l.b->cq, 0), 0);
		while ((n = vb_poll_cq(l.b->cq, 4, wc)) > 0)
			l.polled += (uint32_t)n;
		assert_int_equal(n, 0);
		if (l.polled == LOAD)
			break;
		assert_int_equal(ibv_get_cq_event(l.b->ch, &cq, &context), 0);
		ibv_ack_cq_events(cq, 1);
	}
	pthread_join(t, NULL);
}

static void rule_32_one_event_for_one_arming(void **state)
{
	struct bench *b = *state;

	push_ok(b, 1);
	assert_false(event_waits(b)); /* not armed */
	vb_req_notify_cq(b->cq, 0);
	assert_false(event_waits(b)); /* what was there before does not count */
	push_ok(b, 2);
	push_ok(b, 3);
	expect_event(b);
	assert_false(event_waits(b));
	push_ok(b, 4);
	assert_false(event_waits(b));
	vb_req_notify_cq(b->cq, 0);
	vb_req_notify_cq(b->cq, 0); /* armed twice is armed once */
	push_ok(b, 5);
	push_ok(b, 6);
	expect_event(b);
	assert_false(event_waits(b));
}

static void rule_32_solicited_only(void **state)
{
	struct bench *b = *state;

	atomic_store(&b->qp->resp.rq.polled, b->qp->resp.rq.head - 9);
	vb_req_notify_cq(b->cq, 1);
	assert_true(push_received(b->cq, b->qp, NULL, 1, false));
	push_ok(b, 2);
	assert_false(event_waits(b));
	assert_true(push_received(b->cq, b->qp, NULL, 3, true));
	expect_event(b);
	assert_true(push_received(b->cq, b->qp, NULL, 4, true));
	assert_false(event_waits(b));
	/* an error counts as solicited */
	vb_req_notify_cq(b->cq, 1);
	assert_true(push_sent(b->cq, b->qp, 5, IBV_WC_RETRY_EXC_ERR));
	expect_event(b);
}

static void rule_32_a_request_for_the_next_one_wins(void **state)
{
	struct bench *b = *state;

	vb_req_notify_cq(b->cq, 1);
	vb_req_notify_cq(b->cq, 0); /* upgrade */
	push_ok(b, 1);
	expect_event(b);
	vb_req_notify_cq(b->cq, 0);
	vb_req_notify_cq(b->cq, 1); /* is no downgrade */
	push_ok(b, 2);
	expect_event(b);
	vb_req_notify_cq(b->cq, 1); /* fired: the old request is used up */
	push_ok(b, 3);
	assert_false(event_waits(b));
}

static void rule_33_every_event_is_an_edge(void **state)
{
	struct bench *b = *state;
	int ep = edge_triggered(b->ch->fd);

	assert_int_equal(edges(ep), 0);
	for (uint32_t i = 0; i < 3; i++) { /* nobody reads in between */
		vb_req_notify_cq(b->cq, 0);
		push_ok(b, i);
		assert_int_equal(edges(ep), 1);
		assert_int_equal(edges(ep), 0);
	}
	for (int i = 0; i < 3; i++)
		expect_event(b);
	assert_false(event_waits(b));
	close(ep);
}

static void a_nonblocking_channel_gives_eagain(void **state)
{
	struct bench *b = *state;
	struct ibv_cq *cq;
	void *context;

	set_nonblocking(b->ch->fd);
	errno = 0;
	assert_int_equal(ibv_get_cq_event(b->ch, &cq, &context), -1);
	assert_int_equal(errno, EAGAIN);
	vb_req_notify_cq(b->cq, 0);
	push_ok(b, 1);
	expect_event(b);
	assert_int_equal(ibv_get_cq_event(b->ch, &cq, &context), -1);
	assert_int_equal(errno, EAGAIN);
}

static void events_of_several_cqs_on_one_channel(void **state)
{
	struct bench *b = *state;
	struct ibv_cq *second = ibv_create_cq(b->f.ibctx, 4, NULL, b->ch, 1), *got;
	void *context;

	assert_non_null(second);
	vb_req_notify_cq(second, 0);
	vb_req_notify_cq(b->cq, 0);
	assert_true(push_sent(second, b->qp, 1, IBV_WC_SUCCESS));
	push_ok(b, 2);
	assert_int_equal(ibv_get_cq_event(b->ch, &got, &context), 0);
	assert_ptr_equal(got, second);
	assert_null(context);
	ibv_ack_cq_events(got, 1);
	expect_event(b);
	assert_int_equal(ibv_destroy_cq(second), 0);
}

static void without_a_channel_arming_does_nothing(void **state)
{
	struct bench *b = *state;
	struct ibv_cq *cq = ibv_create_cq(b->f.ibctx, 4, NULL, NULL, 0);

	assert_int_equal(vb_req_notify_cq(cq, 0), 0);
	assert_true(push_sent(cq, b->qp, 1, IBV_WC_SUCCESS));
	assert_false(event_waits(b));
	assert_int_equal(ibv_destroy_cq(cq), 0);
}

struct destruction {
	struct ibv_cq *cq;
	_Atomic bool acked;
};

static void *destroy(void *arg)
{
	struct destruction *d = arg;

	assert_int_equal(ibv_destroy_cq(d->cq), 0);
	assert_true(d->acked);
	return NULL;
}

static void rule_36_destroy_waits_for_completion_events(void **state)
{
	struct bench *b = *state;
	struct destruction d = {.cq = b->cq};
	struct ibv_cq *cq;
	void *context;
	pthread_t t;

	for (uint32_t i = 0; i < 3; i++) {
		vb_req_notify_cq(b->cq, 0);
		push_ok(b, i);
	}
	for (int i = 0; i < 2; i++)
		assert_int_equal(ibv_get_cq_event(b->ch, &cq, &context), 0);
	ibv_ack_cq_events(cq, 1);
	assert_int_equal(pthread_create(&t, NULL, destroy, &d), 0);
	d.acked = true;
	ibv_ack_cq_events(cq, 1);
	pthread_join(t, NULL);
	b->cq = NULL;
	assert_false(event_waits(b)); /* the third was taken back */
}

static void rule_36_destroy_waits_for_the_overrun_event(void **state)
{
	struct bench *b = *state;
	struct destruction d = {.cq = b->cq};
	struct ibv_async_event ev;
	pthread_t t;

	for (uint32_t i = 0; i < 17; i++)
		push_sent(b->cq, b->qp, i, IBV_WC_SUCCESS);
	assert_int_equal(ibv_get_async_event(b->f.ibctx, &ev), 0);
	assert_int_equal(pthread_create(&t, NULL, destroy, &d), 0);
	d.acked = true;
	ibv_ack_async_event(&ev);
	pthread_join(t, NULL);
	b->cq = NULL;
}

static void rule_36_a_destroyed_qp_leaves_no_completions(void **state)
{
	struct bench *b = *state;
	struct vb_srq srq = {0};
	int n = b->cq->cqe;

	atomic_store(&srq.rq.polled, srq.rq.head - 2);
	atomic_store(&b->qp->resp.rq.polled, b->qp->resp.rq.head - 1);
	assert_true(push_sent(b->cq, b->other, 1, IBV_WC_SUCCESS));
	assert_true(push_received(b->cq, b->qp, &srq, 90, false));
	push_ok(b, 91);
	assert_true(push_sent(b->cq, b->other, 2, IBV_WC_SUCCESS));
	assert_true(push_received(b->cq, b->other, &srq, 3, false));
	assert_true(push_received(b->cq, b->qp, NULL, 92, false));
	vb_cq_forget(vb_cq(b->cq), b->qp);
	assert_int_equal(vb_rq_held(&srq.rq), 1); /* the SRQ outlives the QP */
	for (int i = 3; i < n; i++)		  /* and they take no room */
		assert_true(push_sent(b->cq, b->other, (uint32_t)i + 1, IBV_WC_SUCCESS));
	assert_false(push_sent(b->cq, b->other, 99, IBV_WC_SUCCESS));
	for (int i = 1; i <= n; i++)
		poll_one(b, (uint64_t)i);
	assert_int_equal(vb_rq_held(&srq.rq), 0);
}

static void rule_37_what_is_used_is_busy(void **state)
{
	struct bench *b = *state;

	assert_int_equal(ibv_destroy_comp_channel(b->ch), EBUSY);
	atomic_fetch_add(&vb_cq(b->cq)->refs, 2);
	assert_int_equal(ibv_destroy_cq(b->cq), EBUSY);
	vb_req_notify_cq(b->cq, 0); /* both still work */
	push_ok(b, 1);
	expect_event(b);
	atomic_fetch_sub(&vb_cq(b->cq)->refs, 2);
}

static void expect_no_cq(struct bench *b, int cqe, struct ibv_comp_channel *ch, int vector)
{
	errno = 0;
	assert_null(ibv_create_cq(b->f.ibctx, cqe, NULL, ch, vector));
	assert_int_equal(errno, EINVAL);
}

static void creation_checks_its_arguments(void **state)
{
	struct bench *b = *state;
	struct fixture elsewhere;
	struct ibv_comp_channel *foreign;

	expect_no_cq(b, 0, NULL, 0);
	expect_no_cq(b, -1, NULL, 0);
	expect_no_cq(b, VB_MAX_CQE + 1, NULL, 0);
	expect_no_cq(b, 1, NULL, 2);
	expect_no_cq(b, 1, NULL, -1);
	fixture_open(&elsewhere);
	foreign = ibv_create_comp_channel(elsewhere.ibctx);
	expect_no_cq(b, 1, foreign, 0);
	assert_int_equal(ibv_destroy_comp_channel(foreign), 0);
	fixture_close(&elsewhere);
}

/* ---- memory, which a CQ takes as it is filled ---- */

enum { LARGE = VB_MAX_CQE };

/* The largest CQ there is, whose entries have their times too. */
static struct ibv_cq *largest(struct bench *b, uint64_t times)
{
	struct ibv_cq_init_attr_ex a = {.cqe = LARGE, .wc_flags = IBV_WC_STANDARD_FLAGS | times};
	struct ibv_cq_ex *cq = vb_create_cq_ex(b->f.ibctx, &a);

	assert_non_null(cq);
	return (struct ibv_cq *)cq;
}

/* Of these bytes. */
static size_t resident(void *at, size_t bytes)
{
	size_t pages = (bytes + PAGE - 1) / PAGE, n = 0;
	unsigned char *there = malloc(pages);

	assert_non_null(there);
	assert_int_equal(mincore(at, bytes, there), 0);
	for (size_t i = 0; i < pages; i++)
		n += there[i] & 1;
	free(there);
	return n;
}

static size_t backed(struct ibv_cq *ibcq)
{
	struct vb_cq *cq = vb_cq(ibcq);
	size_t entries = (size_t)cq->mask + 1, n = resident(cq->ring, entries * sizeof(*cq->ring));

	return cq->stamps ? n + resident(cq->stamps, entries * sizeof(*cq->stamps)) : n;
}

/* How many pages so many entries take, and two that they begin and end in the midst of. */
static size_t pages_of(struct ibv_cq *ibcq, size_t entries)
{
	struct vb_cq *cq = vb_cq(ibcq);
	size_t n = entries * sizeof(*cq->ring) / PAGE + 2;

	return cq->stamps ? n + entries * sizeof(*cq->stamps) / PAGE + 2 : n;
}

static void poll_some(struct ibv_cq *cq, unsigned n)
{
	struct ibv_wc wc;

	while (n--)
		assert_int_equal(vb_poll_cq(cq, 1, &wc), 1);
}

/* The same a turn each. */
static void turn_to_some(struct ibv_cq *cq, unsigned n)
{
	struct ibv_cq_ex *ex = (struct ibv_cq_ex *)cq;
	struct ibv_poll_cq_attr attr = {0};

	while (n--) {
		assert_int_equal(ibv_start_poll(ex, &attr), 0);
		ibv_end_poll(ex);
	}
}

static void push_some(struct bench *b, struct ibv_cq *cq, unsigned n)
{
	while (n--)
		assert_true(push_sent(cq, b->qp, 1, IBV_WC_SUCCESS));
}

/* Any number of them may pass, as long as they are polled. */
static void many_pass(struct bench *b, struct ibv_cq *cq, void poll(struct ibv_cq *cq, unsigned n))
{
	for (unsigned i = 0; i < 200000; i++) {
		push_some(b, cq, 3);
		poll(cq, 3);
	}
	assert_in_range(backed(cq), 1, pages_of(cq, 100));
}

static void memory_comes_with_completions(struct bench *b, uint64_t times)
{
	enum { FILLED = 5000 };
	struct ibv_cq *cq = largest(b, times);

	assert_int_equal(backed(cq), 0);
	many_pass(b, cq, poll_some);
	many_pass(b, cq, turn_to_some);
	push_some(b, cq, FILLED);
	assert_in_range(backed(cq), FILLED * sizeof(struct vb_cqe) / PAGE, pages_of(cq, FILLED + 100));
	poll_some(cq, FILLED);
	push_some(b, cq, FILLED); /* the same memory */
	assert_in_range(backed(cq), 1, pages_of(cq, FILLED + 100));

	/* Another size takes what is there along, and no more. */
	assert_int_equal(ibv_resize_cq(cq, 2 * FILLED), 0);
	assert_in_range(backed(cq), 1, pages_of(cq, FILLED));
	poll_some(cq, FILLED - 10);
	assert_int_equal(ibv_resize_cq(cq, LARGE), 0);
	assert_in_range(backed(cq), 1, pages_of(cq, 10));
	poll_some(cq, 10);
	assert_int_equal(vb_poll_cq(cq, 1, (struct ibv_wc[1]){0}), 0);
	assert_int_equal(ibv_destroy_cq(cq), 0);
}

static void the_largest_cq_is_backed_as_it_fills(void **state)
{
	memory_comes_with_completions(*state, 0);
}

static void so_are_the_times_of_its_completions(void **state)
{
	memory_comes_with_completions(*state, IBV_WC_EX_WITH_COMPLETION_TIMESTAMP |
						  IBV_WC_EX_WITH_COMPLETION_TIMESTAMP_WALLCLOCK);
}

/* 300 gigabytes, if they were backed. */
static void a_thousand_of_the_largest_cqs(void **state)
{
	struct bench *b = *state;
	struct ibv_cq *cq[1000];

	for (int i = 0; i < 1000; i++) {
		cq[i] = ibv_create_cq(b->f.ibctx, LARGE, NULL, NULL, 1);
		assert_non_null(cq[i]);
		push_some(b, cq[i], 1);
	}
	for (int i = 0; i < 1000; i++) {
		assert_int_equal(backed(cq[i]), 1);
		assert_int_equal(ibv_destroy_cq(cq[i]), 0);
	}
}

/* ---- the log ---- */

static unsigned told;

static void hear(const char *sentence)
{
	(void)sentence;
}

static void tell(void)
{
	told++;
	atomic_fetch_and(&vb_log_waits, (uint8_t)~VB_LOG_OTHER);
}

/* What waits to be written where this thread holds no lock. */
static void leave_lines(void)
{
	told = 0;
	atomic_fetch_or(&vb_log_waits, VB_LOG_OTHER);
}

static void each_poll_tells_what_is_left(void **state)
{
	struct bench *b = *state;
	struct ibv_cq *cq = largest(b, 0);

	vb_log_also(hear, tell);
	for (int found = 0; found < 2; found++) {
		push_some(b, cq, found);
		leave_lines();
		assert_int_equal(vb_poll_cq(cq, 1, (struct ibv_wc[1]){0}), found);
		assert_int_equal(told, 1);
		push_some(b, cq, found);
		leave_lines();
		assert_int_equal(ibv_start_poll((struct ibv_cq_ex *)cq, &(struct ibv_poll_cq_attr){0}),
				 found ? 0 : ENOENT);
		assert_int_equal(told, 1);
	}
	ibv_end_poll((struct ibv_cq_ex *)cq);
	vb_log_also(NULL, NULL);
	assert_int_equal(ibv_destroy_cq(cq), 0);
}

#define with_cq(t) cmocka_unit_test_setup_teardown(t, setup, teardown)

int main(void)
{
	const struct CMUnitTest tests[] = {
	    with_cq(slots_are_free_when_their_completion_is_polled),
	    with_cq(each_poll_tells_what_is_left),
	    with_cq(rule_30_an_error_completion_names_request_and_qp),
	    with_cq(rule_31_overrun),
	    with_cq(rule_31_resize_keeps_what_is_there),
	    with_cq(rule_31_resize_under_load),
	    with_cq(rule_31_no_notification_is_lost),
	    with_cq(rule_32_one_event_for_one_arming),
	    with_cq(rule_32_solicited_only),
	    with_cq(rule_32_a_request_for_the_next_one_wins),
	    with_cq(rule_33_every_event_is_an_edge),
	    with_cq(a_nonblocking_channel_gives_eagain),
	    with_cq(events_of_several_cqs_on_one_channel),
	    with_cq(without_a_channel_arming_does_nothing),
	    with_cq(rule_36_destroy_waits_for_completion_events),
	    with_cq(rule_36_destroy_waits_for_the_overrun_event),
	    with_cq(rule_36_a_destroyed_qp_leaves_no_completions),
	    with_cq(rule_37_what_is_used_is_busy),
	    with_cq(creation_checks_its_arguments),
	    with_cq(the_largest_cq_is_backed_as_it_fills),
	    with_cq(so_are_the_times_of_its_completions),
	    with_cq(a_thousand_of_the_largest_cqs),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
