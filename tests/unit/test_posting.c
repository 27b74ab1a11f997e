/* Posting has a lock of its own: requests are filled while others are at work on the queue pair, nobody who
 * posts waits for them, and none of what was posted is left lying. */
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <time.h>

#include <cmocka.h>

#include "device.h"
#include "kit.h"
#include "hca/hca.h"
#include "hca/send.h"
#include "obj/builder.h"
#include "transport/transport.h"

enum { SIZE = 4096, DEPTH = 64, ROUNDS = 1000 };

struct desk {
	struct kit_end a, b;
	pthread_t thread;
	_Atomic bool stop;
	uint32_t sends, receives; /* that the thread has posted */
};

static void desk_open(struct desk *d)
{
	kit_end_open(&d->a, pd, DEPTH, SIZE);
	kit_end_open(&d->b, pd, DEPTH, SIZE);
	kit_connect(&d->a, &d->b.card);
	kit_connect(&d->b, &d->a.card);
}

static void desk_close(struct desk *d)
{
	kit_end_close(&d->a);
	kit_end_close(&d->b);
}

/* The thread has ended: what it does takes no time, unless it waits for a lock that is held. */
static void join(struct desk *d)
{
	struct timespec end;

	clock_gettime(CLOCK_REALTIME, &end);
	end.tv_sec += 20;
	assert_int_equal(pthread_timedjoin_np(d->thread, NULL, &end), 0);
}

/* Everything but sending, on the queue pair whose send queue another thread is filling. */
static void *use_the_rest(void *arg)
{
	struct ibv_qp_init_attr init;
	struct ibv_qp_attr attr;
	struct desk *d = arg;
	struct ibv_wc wc;

	CHECK(!kit_recv(&d->a, 2, 0, 64));
	CHECK(!kit_post(&d->b, IBV_WR_SEND, 3, 64, 64, NULL, 0));
	wc = kit_wait(&d->b, 10);
	CHECK(wc.wr_id == 3 && wc.status == IBV_WC_SUCCESS);
	for (unsigned seen = 0; seen != 3;) { /* the SEND from before, and the message */
		wc = kit_wait(&d->a, 10);
		CHECK(wc.status == IBV_WC_SUCCESS && (wc.wr_id == 1 || wc.wr_id == 2));
		seen |= (unsigned)wc.wr_id;
	}
	CHECK(!ibv_query_qp(d->a.qp, &attr, IBV_QP_STATE, &init));
	return NULL;
}

static void others_work_while_a_builder_is_open(void **state)
{
	struct ibv_sge sge;
	struct ibv_send_wr wr = {.opcode = IBV_WR_SEND, .sg_list = &sge, .num_sge = 1};
	struct vb_builder b;
	struct ibv_wc wc;
	struct desk d;

	(void)state;
	desk_open(&d);
	sge = (struct ibv_sge){(uintptr_t)d.a.buf, 8, d.a.mr->lkey};
	for (int i = 0; i < 2; i++)
		assert_int_equal(kit_recv(&d.b, 5, 0, 64), 0);
	assert_int_equal(kit_post(&d.a, IBV_WR_SEND, 1, 0, 8, NULL, 0), 0);
	wc = kit_wait(&d.b, 10);
	assert_int_equal(wc.wr_id, 5);

	assert_true(vb_builder_begin(&b, vb_qp(d.a.qp)));
	assert_true(vb_builder_room(&b));
	assert_int_equal(vb_builder_start(&b, IBV_WR_SEND, IBV_SEND_SIGNALED, 4), VB_BUILD_FINE);
	assert_int_equal(pthread_create(&d.thread, NULL, use_the_rest, &d), 0);
	join(&d);
	assert_int_equal(vb_builder_fill(&b, &wr), VB_BUILD_FINE);
	vb_builder_next(&b);
	assert_int_equal(ibv_poll_cq(d.b.cq, 1, &wc), 0);
	vb_builder_publish(&b);
	vb_hca_posted(vb_qp(d.a.qp));
	vb_builder_end(&b);
	wc = kit_wait(&d.b, 10);
	assert_int_equal(wc.wr_id, 5);
	assert_int_equal(kit_wait(&d.a, 10).wr_id, 4);
	desk_close(&d);
}

/* Whoever is at work on the queue pair sends what is posted meanwhile. */
static void a_post_waits_for_nobody(void **state)
{
	struct vb_qp *qp;
	struct desk d;

	(void)state;
	desk_open(&d);
	qp = vb_qp(d.a.qp);
	assert_int_equal(kit_recv(&d.b, 5, 0, 64), 0);
	vb_lock_take(&qp->lock);
	assert_int_equal(kit_recv(&d.a, 6, 0, 64), 0);
	assert_int_equal(kit_post(&d.a, IBV_WR_SEND, 1, 0, 8, NULL, 0), 0);
	assert_true(vb_sq_unseen(qp));
	vb_hca_give(qp);
	assert_false(vb_sq_unseen(qp));
	assert_int_equal(kit_wait(&d.b, 10).wr_id, 5);
	assert_int_equal(kit_wait(&d.a, 10).wr_id, 1);
	desk_close(&d);
}

/* A holder that finds the lock taken again leaves what was posted to whoever has it.  Who then cannot send in
 * one go sees to it before it waits for a builder. */
static void what_is_left_to_a_poster_does_not_wait_for_a_builder(void **state)
{
	struct ibv_send_wr *bad;
	struct ibv_sge sge;
	struct ibv_send_wr wr = {.wr_id = 2, .opcode = IBV_WR_SEND, .sg_list = &sge, .num_sge = 1};
	enum vb_once once;
	struct vb_qp *qp;
	struct desk d;

	(void)state;
	desk_open(&d);
	qp = vb_qp(d.a.qp);
	sge = (struct ibv_sge){(uintptr_t)d.a.buf, 8, d.a.mr->lkey};
	for (int i = 0; i < 2; i++)
		assert_int_equal(kit_recv(&d.b, 5, 0, 64), 0);
	vb_lock_take(&vb_qp_hca(qp)->timer_lock); /* so that the engine does not look either */
	vb_lock_take(&qp->lock);
	assert_int_equal(kit_post(&d.a, IBV_WR_SEND, 1, 0, 8, NULL, 0), 0);
	vb_lock_pass(&qp->lock); /* and when it looks, the lock is taken again */
	once = vb_requester_post(qp, &wr);
	vb_lock_give(&vb_qp_hca(qp)->timer_lock);
	assert_int_equal(once, VB_ONCE_LEFT);
	assert_int_equal(ibv_post_send(d.a.qp, &wr, &bad), 0);
	assert_false(vb_sq_unseen(qp));
	assert_int_equal(kit_wait(&d.b, 10).wr_id, 5);
	assert_int_equal(kit_wait(&d.b, 10).wr_id, 5);
	assert_int_equal(kit_wait(&d.a, 10).wr_id, 1);
	desk_close(&d);
}

/* rule 30, also if the state changed after the poster had looked at it */
static void what_meets_the_error_state_is_flushed(void **state)
{
	const struct vb_facts f = {.reason = VB_R_FLUSHED};
	struct vb_qp *qp;
	struct desk d;
	uint32_t flushed, una;

	(void)state;
	desk_open(&d);
	qp = vb_qp(d.a.qp);
	una = qp->req.una;
	vb_lock_take(&qp->lock);
	assert_int_equal(kit_post(&d.a, IBV_WR_SEND, 1, 0, 8, NULL, 0), 0);
	qp->transport->error(qp, &f);
	flushed = qp->req.una - una;
	assert_int_equal(kit_post(&d.a, IBV_WR_SEND, 2, 0, 8, NULL, 0), 0);
	vb_hca_give(qp);
	assert_int_equal(flushed, 1); /* what was posted before is part of the error's own flush */
	for (uint64_t i = 1; i <= 2; i++) {
		struct ibv_wc wc;

		assert_int_equal(ibv_poll_cq(d.a.cq, 1, &wc), 1);
		assert_int_equal(wc.wr_id, i);
		assert_int_equal(wc.status, IBV_WC_WR_FLUSH_ERR);
	}
	assert_int_equal(kit_recv(&d.a, 3, 0, 64), 0);
	assert_int_equal(kit_wait(&d.a, 10).wr_id, 3);
	desk_close(&d);
}

static void *post_both(void *arg)
{
	struct desk *d = arg;

	for (int i = 0; i < DEPTH && !atomic_load(&d->stop); i++) {
		CHECK(!kit_recv(&d->a, 1, 0, 64));
		d->receives++;
		CHECK(!kit_post(&d->a, IBV_WR_SEND, 2, 0, 8, NULL, 0));
		d->sends++;
	}
	return NULL;
}

static void receive_all(struct desk *d)
{
	struct ibv_wc wc;

	while (ibv_poll_cq(d->b.cq, 1, &wc))
		assert_int_equal(wc.status, IBV_WC_SUCCESS);
}

/* One thread posts, another polls, and in every second round makes an end of it. */
static void nothing_is_left_lying(void **state)
{
	struct desk d;

	(void)state;
	for (int round = 0; round < ROUNDS; round++) {
		bool breaks = round & 1;
		uint32_t sent = 0, received = 0, polls = 0, at = (uint32_t)round * 37 % 800;
		double end = kit_now() + 20;
		struct ibv_wc wc;

		d.sends = d.receives = 0;
		atomic_init(&d.stop, false);
		desk_open(&d);
		for (int i = 0; i < DEPTH; i++)
			assert_int_equal(kit_recv(&d.b, 5, 0, 64), 0);
		assert_int_equal(pthread_create(&d.thread, NULL, post_both, &d), 0);
		for (; breaks ? polls < at : sent < DEPTH; polls++) {
			assert_true(kit_now() < end);
			receive_all(&d);
			if (ibv_poll_cq(d.a.cq, 1, &wc))
				sent += wc.wr_id == 2;
		}
		if (breaks)
			assert_int_equal(ibv_modify_qp(d.a.qp, &(struct ibv_qp_attr){.qp_state = IBV_QPS_ERR},
						       IBV_QP_STATE),
					 0);
		join(&d);
		while (breaks && (sent < d.sends || received < d.receives)) {
			assert_true(kit_now() < end);
			if (ibv_poll_cq(d.a.cq, 1, &wc)) {
				sent += wc.wr_id == 2;
				received += wc.wr_id == 1;
			}
		}
		assert_int_equal(sent, d.sends);
		desk_close(&d);
	}
}

/* A thread domain's one thread needs no lock to post; whoever is at work on the queue pair is no such thread.
 */
static void thread_domains_post_without_the_lock(void **state)
{
	struct ibv_td_init_attr ta = {0};
	struct ibv_parent_domain_init_attr pa = {.pd = pd};
	struct ibv_pd *plain = ibv_alloc_parent_domain(ctx, &pa), *own;
	struct ibv_td *td = ibv_alloc_td(ctx, &ta);
	struct kit_end b;
	struct desk d;

	(void)state;
	pa.td = td;
	own = ibv_alloc_parent_domain(ctx, &pa);
	assert_true(plain && td && own);
	kit_end_open(&d.a, own, DEPTH, SIZE);
	kit_end_open(&b, plain, DEPTH, SIZE);
	kit_connect(&d.a, &b.card);
	kit_connect(&b, &d.a.card);
	assert_true(vb_qp(d.a.qp)->post.alone);
	assert_false(vb_qp(b.qp)->post.alone);
	vb_lock_take(&vb_qp(d.a.qp)->post.sends); /* which is not looked at */
	assert_int_equal(kit_recv(&b, 5, 0, 64), 0);
	assert_int_equal(kit_post(&d.a, IBV_WR_SEND, 1, 0, 8, NULL, 0), 0);
	assert_int_equal(kit_wait(&b, 10).wr_id, 5);
	assert_int_equal(kit_wait(&d.a, 10).wr_id, 1);
	vb_lock_give(&vb_qp(d.a.qp)->post.sends);
	kit_end_close(&d.a);
	kit_end_close(&b);
	assert_int_equal(ibv_dealloc_pd(own), 0);
	assert_int_equal(ibv_dealloc_pd(plain), 0);
	assert_int_equal(ibv_dealloc_td(td), 0);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
	    cmocka_unit_test(others_work_while_a_builder_is_open),
	    cmocka_unit_test(a_post_waits_for_nobody),
	    cmocka_unit_test(what_is_left_to_a_poster_does_not_wait_for_a_builder),
	    cmocka_unit_test(what_meets_the_error_state_is_flushed),
	    cmocka_unit_test(nothing_is_left_lying),
	    cmocka_unit_test(thread_domains_post_without_the_lock),
	};

	return cmocka_run_group_tests(tests, kit_device_open, kit_device_close);
}
