/* Queues of events behind descriptors, and asynchronous events. */
#include <signal.h>
#include <sys/time.h>

#include "obj_fixture.h"

/* Two objects that can raise events; an event element needs a context of its own. */
struct pair {
	struct fixture f;
	struct ibv_srq *a, *b;
};

static struct ibv_srq *new_srq(struct fixture *f)
{
	struct ibv_srq_init_attr init = {.attr = {.max_wr = 4, .max_sge = 1}};
	struct ibv_srq *s = ibv_create_srq(&f->pd.ibv, &init);

	assert_non_null(s);
	return s;
}

static int setup(void **state)
{
	struct pair *p = calloc(1, sizeof(*p));

	fixture_open(&p->f);
	p->a = new_srq(&p->f);
	p->b = new_srq(&p->f);
	*state = p;
	return 0;
}

static int teardown(void **state)
{
	struct pair *p = *state;

	if (p->a)
		assert_int_equal(ibv_destroy_srq(p->a), 0);
	if (p->b)
		assert_int_equal(ibv_destroy_srq(p->b), 0);
	fixture_close(&p->f);
	free(p);
	return 0;
}

static void raise_limit(struct pair *p, struct ibv_srq *s)
{
	vb_async_post(&p->f.ctx, &vb_srq(s)->ev_limit);
}

static void events_come_in_the_order_of_their_posting(void **state)
{
	struct pair *p = *state;

	raise_limit(p, p->b);
	raise_limit(p, p->a);
	vb_async_post(&p->f.ctx, &vb_srq(p->b)->ev_err);
	expect_async(&p->f, IBV_EVENT_SRQ_LIMIT_REACHED, p->b);
	expect_async(&p->f, IBV_EVENT_SRQ_LIMIT_REACHED, p->a);
	expect_async(&p->f, IBV_EVENT_SRQ_ERR, p->b);
	assert_false(readable(p->f.ibctx->async_fd));
}

static void an_event_that_waits_is_not_doubled(void **state)
{
	struct pair *p = *state;

	raise_limit(p, p->a);
	raise_limit(p, p->a);
	expect_async(&p->f, IBV_EVENT_SRQ_LIMIT_REACHED, p->a);
	assert_false(readable(p->f.ibctx->async_fd));
	raise_limit(p, p->a); /* fetched: a new event */
	expect_async(&p->f, IBV_EVENT_SRQ_LIMIT_REACHED, p->a);
}

/* A port that goes down and returns before anybody has fetched it: both are told, and the last one holds. */
static void an_opposite_that_waits_is_taken_back(void **state)
{
	struct pair *p = *state;
	struct vb_async_node *down = &p->f.ctx.ev_port[VB_PORT_ERR], *up = &p->f.ctx.ev_port[VB_PORT_ACTIVE];

	vb_async_init(down, IBV_EVENT_PORT_ERR, NULL);
	vb_async_init(up, IBV_EVENT_PORT_ACTIVE, NULL);
	vb_async_turn(&p->f.ctx, down, up);
	vb_async_turn(&p->f.ctx, up, down);
	expect_async(&p->f, IBV_EVENT_PORT_ERR, NULL);
	vb_async_turn(&p->f.ctx, down, up); /* the first was fetched: a new event behind the other */
	expect_async(&p->f, IBV_EVENT_PORT_ACTIVE, NULL);
	vb_async_turn(&p->f.ctx, up, down);
	vb_async_turn(&p->f.ctx, down, up); /* it waits, with its opposite behind it */
	expect_async(&p->f, IBV_EVENT_PORT_ERR, NULL);
	assert_false(readable(p->f.ibctx->async_fd));
	vb_async_turn(&p->f.ctx, up, up);
	vb_async_turn(&p->f.ctx, up, up); /* one without an opposite */
	expect_async(&p->f, IBV_EVENT_PORT_ACTIVE, NULL);
	assert_false(readable(p->f.ibctx->async_fd));
}

static void a_nonblocking_descriptor_gives_eagain(void **state)
{
	struct pair *p = *state;
	struct ibv_async_event ev;

	set_nonblocking(p->f.ibctx->async_fd);
	errno = 0;
	assert_int_equal(ibv_get_async_event(p->f.ibctx, &ev), -1);
	assert_int_equal(errno, EAGAIN);
	raise_limit(p, p->a);
	expect_async(&p->f, IBV_EVENT_SRQ_LIMIT_REACHED, p->a);
	assert_int_equal(ibv_get_async_event(p->f.ibctx, &ev), -1);
	assert_int_equal(errno, EAGAIN);
}

static void on_alarm(int sig)
{
	(void)sig;
}

static void a_signal_ends_the_wait(void **state)
{
	struct pair *p = *state;
	struct sigaction act = {.sa_handler = on_alarm}, old;
	struct itimerval often = {{0, 5000}, {0, 5000}}, never = {{0, 0}, {0, 0}};
	struct ibv_async_event ev;

	sigaction(SIGALRM, &act, &old);
	setitimer(ITIMER_REAL, &often, NULL);
	assert_int_equal(ibv_get_async_event(p->f.ibctx, &ev), -1);
	assert_int_equal(errno, EINTR);
	setitimer(ITIMER_REAL, &never, NULL);
	sigaction(SIGALRM, &old, NULL);
}

static void rule_33_every_event_is_an_edge(void **state)
{
	struct pair *p = *state;
	int ep = edge_triggered(p->f.ibctx->async_fd);

	assert_int_equal(edges(ep), 0);
	raise_limit(p, p->a);
	assert_int_equal(edges(ep), 1);
	assert_int_equal(edges(ep), 0); /* nothing was read: still one edge only */
	raise_limit(p, p->b);
	assert_int_equal(edges(ep), 1);
	expect_async(&p->f, IBV_EVENT_SRQ_LIMIT_REACHED, p->a);
	expect_async(&p->f, IBV_EVENT_SRQ_LIMIT_REACHED, p->b);
	close(ep);
}

static void destruction_takes_an_event_back(void **state)
{
	struct pair *p = *state;

	raise_limit(p, p->a);
	raise_limit(p, p->b);
	assert_int_equal(ibv_destroy_srq(p->a), 0);
	p->a = NULL;
	expect_async(&p->f, IBV_EVENT_SRQ_LIMIT_REACHED, p->b);
	assert_false(readable(p->f.ibctx->async_fd));
}

/* A reader has taken the token, but not yet the event, when the event is taken back. */
static void a_token_in_hand_of_an_event_taken_back_counts_for_nothing(void **state)
{
	struct pair *p = *state;
	struct vb_evq *q = &p->f.ctx.async;

	raise_limit(p, p->a);
	assert_int_equal(vb_evq_try(q), 0);
	assert_int_equal(ibv_destroy_srq(p->a), 0);
	p->a = NULL;
	raise_limit(p, p->b);
	vb_lock_take(&q->lock);
	assert_true(vb_evq_spent(q)); /* what that reader sees */
	vb_lock_give(&q->lock);
	expect_async(&p->f, IBV_EVENT_SRQ_LIMIT_REACHED, p->b);
	assert_false(readable(q->fd));
}

/* A reader makes progress itself, and finds what it waits for: one token stays in its hand, further ones, and
 * those of other queues, are written. */
static void a_token_of_ones_own_is_not_written(void **state)
{
	struct pair *p = *state;
	struct vb_evq *q = &p->f.ctx.async, other;
	const bool *come = vb_evq_expect(q);

	assert_int_equal(vb_evq_init(&other), 0);
	vb_evq_add(&other);
	assert_true(readable(other.fd));
	assert_false(*come);
	raise_limit(p, p->a);
	assert_true(*come);
	assert_false(readable(q->fd));
	raise_limit(p, p->b);
	assert_true(readable(q->fd));
	assert_true(vb_evq_expected());
	/* the first is taken back meanwhile: the token in the descriptor goes with it */
	assert_int_equal(ibv_destroy_srq(p->a), 0);
	p->a = NULL;
	assert_false(readable(q->fd));
	vb_lock_take(&q->lock);
	assert_false(vb_evq_spent(q)); /* the one in hand stands for the second now */
	assert_ptr_equal(vb_list_entry(vb_list_pop(&q->nodes), struct vb_async_node, link)->ev.element.srq,
			 p->b);
	vb_lock_give(&q->lock);
	raise_limit(p, p->b); /* nobody expects anything any more */
	assert_true(readable(q->fd));
	expect_async(&p->f, IBV_EVENT_SRQ_LIMIT_REACHED, p->b);
	assert_ptr_equal(vb_evq_expect(q), come);
	assert_false(vb_evq_expected());
	vb_evq_fini(&other);
}

static void *fetch_blocking(void *arg)
{
	struct pair *p = arg;
	struct ibv_async_event ev;

	assert_int_equal(ibv_get_async_event(p->f.ibctx, &ev), 0);
	ibv_ack_async_event(&ev);
	return NULL;
}

static void a_blocked_reader_is_woken(void **state)
{
	struct pair *p = *state;
	pthread_t t;

	assert_int_equal(pthread_create(&t, NULL, fetch_blocking, p), 0);
	raise_limit(p, p->a);
	pthread_join(t, NULL);
	assert_int_equal(p->a->events_completed, 1);
}

struct destruction {
	struct ibv_srq *srq;
	_Atomic bool acked;
};

static void *destroy(void *arg)
{
	struct destruction *d = arg;

	assert_int_equal(ibv_destroy_srq(d->srq), 0);
	assert_true(d->acked);
	return NULL;
}

static void rule_36_destroy_waits_for_the_acknowledgement(void **state)
{
	struct pair *p = *state;
	struct destruction d = {.srq = p->a};
	struct ibv_async_event ev;
	pthread_t t;

	raise_limit(p, p->a);
	assert_int_equal(ibv_get_async_event(p->f.ibctx, &ev), 0);
	assert_int_equal(pthread_create(&t, NULL, destroy, &d), 0);
	raise_limit(p, p->b); /* others go on meanwhile */
	expect_async(&p->f, IBV_EVENT_SRQ_LIMIT_REACHED, p->b);
	d.acked = true;
	ibv_ack_async_event(&ev);
	pthread_join(t, NULL);
	p->a = NULL;
}

/* Several readers, several sources: every event is delivered once and none is left. */
enum { ROUNDS = 2000 };

static void *post_many(void *arg)
{
	struct pair *p = arg;

	for (int i = 0; i < ROUNDS; i++)
		raise_limit(p, i & 1 ? p->a : p->b);
	return NULL;
}

static void posting_and_fetching_from_many_threads(void **state)
{
	struct pair *p = *state;
	pthread_t t[2];
	struct ibv_async_event ev;
	unsigned fetched = 0;

	set_nonblocking(p->f.ibctx->async_fd);
	for (int i = 0; i < 2; i++)
		assert_int_equal(pthread_create(&t[i], NULL, post_many, p), 0);
	while (fetched < 100)
		if (ibv_get_async_event(p->f.ibctx, &ev) == 0) {
			ibv_ack_async_event(&ev);
			fetched++;
		} else {
			assert_int_equal(errno, EAGAIN);
			raise_limit(p, p->a); /* the posters may be through */
		}
	for (int i = 0; i < 2; i++)
		pthread_join(t[i], NULL);
	while (ibv_get_async_event(p->f.ibctx, &ev) == 0) {
		ibv_ack_async_event(&ev);
		fetched++;
	}
	assert_int_equal(errno, EAGAIN);
	assert_int_equal(p->a->events_completed + p->b->events_completed, fetched);
	assert_false(readable(p->f.ibctx->async_fd));
}

static void every_event_has_a_name(void **state)
{
	const int last = IBV_EVENT_WQ_FATAL + 1; /* newer headers' IBV_EVENT_DEVICE_SPEED_CHANGE */

	(void)state;
	for (int t = IBV_EVENT_CQ_ERR; t <= last; t++) {
		assert_non_null(ibv_event_type_str((enum ibv_event_type)t));
		assert_string_not_equal(ibv_event_type_str((enum ibv_event_type)t), "unknown");
	}
	assert_string_equal(ibv_event_type_str((enum ibv_event_type)(last + 1)), "unknown");
	assert_string_equal(ibv_event_type_str((enum ibv_event_type) - 1), "unknown");
}

#define with_pair(t) cmocka_unit_test_setup_teardown(t, setup, teardown)

int main(void)
{
	const struct CMUnitTest tests[] = {
	    with_pair(events_come_in_the_order_of_their_posting),
	    with_pair(an_event_that_waits_is_not_doubled),
	    with_pair(an_opposite_that_waits_is_taken_back),
	    with_pair(a_nonblocking_descriptor_gives_eagain),
	    with_pair(a_signal_ends_the_wait),
	    with_pair(rule_33_every_event_is_an_edge),
	    with_pair(destruction_takes_an_event_back),
	    with_pair(a_token_in_hand_of_an_event_taken_back_counts_for_nothing),
	    with_pair(a_token_of_ones_own_is_not_written),
	    with_pair(a_blocked_reader_is_woken),
	    with_pair(rule_36_destroy_waits_for_the_acknowledgement),
	    with_pair(posting_and_fetching_from_many_threads),
	    cmocka_unit_test(every_event_has_a_name),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
