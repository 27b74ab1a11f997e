/* The rows of operations of queue pair types: they are whole, and whatever a device does with a queue pair,
 * it does through the row that the queue pair has. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "kit.h"
#include "iba/names.h"
#include "iba/wr.h"
#include "transport/transport.h"

enum { SIZE = 4096, DEPTH = 16 };

static void every_row_is_whole(void **state)
{
	unsigned rows = 0;

	(void)state;
	for (uint32_t type = 0; type < VB_TRANSPORTS; type++) {
		const struct vb_transport *t = vb_transport_of(type);
		void (*ops[offsetof(struct vb_transport, acked) / sizeof(void (*)(void))])(void);

		if (!t)
			continue;
		rows++;
		assert_non_null(vb_name_qp_type(type));
		memcpy(ops, t, sizeof ops);
		for (size_t i = 0; i < sizeof ops / sizeof ops[0]; i++)
			assert_true(ops[i] != NULL);
	}
	assert_int_not_equal(rows, 0);
	assert_null(vb_transport_of(VB_TRANSPORTS));
	assert_null(vb_transport_of(IBV_QPT_DRIVER));
	assert_null(vb_transport_of(UINT32_MAX));
}

/* No request is said to be possible on queue pairs that are not made. */
static void requests_are_of_types_that_there_are(void **state)
{
	(void)state;
	for (uint32_t i = 0; i < VB_WR_ROWS; i++)
		for (uint32_t type = 0; type < 16; type++)
			if (vb_wrs[i].types & VB_WR_ON(type))
				assert_non_null(vb_transport_of(type));
}

/* ---- a row that counts, and then does what the one does that it stands for ---- */

static const struct vb_transport *real;

enum op { BRIEF, INPUT, ACK, RECEIVED, OUTPUT, OWES, TIMER, PATH, LAST_WORD, ENTER, ERROR, FLUSH, OPS };
static _Atomic uint32_t calls[OPS], unlocked;

static void note(enum op op, const struct vb_qp *qp)
{
	atomic_fetch_add(&calls[op], 1);
	if (!vb_lock_is_mine(&qp->lock)) /* in builds without VB_DEBUG: somebody's */
		atomic_fetch_add(&unlocked, 1);
}

/* One packet of three is left to the general way: of two, it could be an ACK that has gone alone each time.
 */
static bool spy_brief(struct vb_qp *qp, struct vb_arrival *in)
{
	note(BRIEF, qp);
	return atomic_load(&calls[BRIEF]) % 3 && real->brief(qp, in);
}

static void spy_input(struct vb_qp *qp, const struct vb_pkt *p)
{
	note(INPUT, qp);
	real->input(qp, p);
}

static void spy_ack(struct vb_qp *qp, uint32_t psn)
{
	note(ACK, qp);
	real->ack(qp, psn);
}

static void spy_received(struct vb_qp *qp, uint32_t psn)
{
	note(RECEIVED, qp);
	real->received(qp, psn);
}

static bool spy_output(struct vb_path *p, uint32_t place)
{
	note(OUTPUT, p->qp);
	return real->output(p, place);
}

static enum vb_owes spy_owes(const struct vb_qp *qp)
{
	note(OWES, qp);
	return real->owes(qp);
}

static uint64_t spy_timer(struct vb_qp *qp, uint64_t now)
{
	note(TIMER, qp);
	return real->timer(qp, now);
}

static void spy_path(struct vb_path *p, struct vb_out *out)
{
	note(PATH, p->qp);
	real->path(p, out);
}

static void spy_last_word(struct vb_qp *qp)
{
	note(LAST_WORD, qp);
	real->last_word(qp);
}

static void spy_enter(struct vb_qp *qp, enum ibv_qp_state from)
{
	note(ENTER, qp);
	real->enter(qp, from);
}

static void spy_error(struct vb_qp *qp, const struct vb_facts *f)
{
	note(ERROR, qp);
	real->error(qp, f);
}

static void spy_flush(struct vb_qp *qp)
{
	note(FLUSH, qp);
	real->flush(qp);
}

static const struct vb_transport spy = {spy_brief, spy_input, spy_ack,	spy_received,  spy_output,
					spy_owes,  spy_timer, spy_path, spy_last_word, spy_enter,
					spy_error, spy_flush, true,	false,	       false};

static uint32_t count(enum op op)
{
	return atomic_exchange(&calls[op], 0);
}

/* The endpoint's row is exchanged before anything can have happened to it. */
static void watch(struct kit_end *e)
{
	struct vb_qp *qp = vb_qp(e->qp);

	vb_lock_take(&qp->lock);
	real = qp->transport;
	qp->transport = &spy;
	vb_lock_give(&qp->lock);
}

static void expect(struct kit_end *e, uint64_t wr_id, enum ibv_wc_status status)
{
	struct ibv_wc wc = kit_wait(e, 10);

	assert_int_equal(wc.wr_id, wr_id);
	assert_int_equal(wc.status, status);
}

/* a sends, b answers; the answer carries the ACK along, unless that has gone alone before. */
static void talk(struct kit_end *a, struct kit_end *b)
{
	assert_int_equal(kit_recv(a, 1, 0, 64), 0);
	assert_int_equal(kit_recv(b, 2, 0, 64), 0);
	assert_int_equal(kit_post(a, IBV_WR_SEND, 3, 64, 8, NULL, 0), 0);
	expect(b, 2, IBV_WC_SUCCESS);
	assert_int_equal(kit_post(b, IBV_WR_SEND, 4, 64, 8, NULL, 0), 0);
	expect(a, 3, IBV_WC_SUCCESS);
	expect(a, 1, IBV_WC_SUCCESS);
	expect(b, 4, IBV_WC_SUCCESS);
}

static void all_goes_through_the_row(void **state)
{
	struct ibv_context *ctx = kit_open();
	struct ibv_pd *pd = ibv_alloc_pd(ctx);
	struct kit_end a, b;

	(void)state;
	kit_end_open(&a, pd, DEPTH, SIZE);
	kit_end_open(&b, pd, DEPTH, SIZE);
	watch(&a);
	kit_connect(&a, &b.card);
	assert_int_equal(count(ENTER), 2); /* to RTR, to RTS */
	kit_connect(&b, &a.card);

	for (double end = kit_now() + 10;
	     !atomic_load(&calls[ACK]);) { /* only pollers keep an ACK for company */
		assert_true(kit_now() < end);
		talk(&a, &b);
	}
	assert_int_not_equal(count(PATH), 0);
	assert_int_not_equal(count(OUTPUT), 0);
	assert_int_not_equal(count(BRIEF), 0);
	assert_int_not_equal(count(INPUT), 0);
	assert_int_not_equal(count(OWES), 0);

	/* nobody is ready for it: a's timer runs */
	assert_int_equal(kit_post(&a, IBV_WR_SEND, 5, 64, 8, NULL, 0), 0);
	for (double end = kit_now() + 10; !atomic_load(&calls[TIMER]) || !atomic_load(&calls[RECEIVED]);) {
		struct ibv_wc wc;

		assert_true(kit_now() < end);
		assert_int_equal(ibv_poll_cq(a.cq, 1, &wc), 0);
		assert_int_equal(ibv_poll_cq(b.cq, 1, &wc), 0);
	}
	assert_int_not_equal(count(RECEIVED), 0);
	assert_int_equal(count(ERROR), 0);
	assert_int_equal(count(FLUSH), 0);
	assert_int_equal(count(LAST_WORD), 0);
	assert_int_equal(ibv_modify_qp(a.qp, &(struct ibv_qp_attr){.qp_state = IBV_QPS_ERR}, IBV_QP_STATE),
			 0);
	assert_int_equal(count(ERROR), 1);
	assert_int_equal(count(LAST_WORD), 1);
	assert_int_equal(count(FLUSH), 0); /* error() has done that */
	expect(&a, 5, IBV_WC_WR_FLUSH_ERR);
	assert_int_equal(kit_recv(&a, 6, 0, 64), 0);
	assert_int_equal(count(FLUSH), 1);
	expect(&a, 6, IBV_WC_WR_FLUSH_ERR);
	assert_int_equal(kit_post(&a, IBV_WR_SEND, 7, 64, 8, NULL, 0), 0);
	expect(&a, 7, IBV_WC_WR_FLUSH_ERR);
	assert_int_equal(count(FLUSH), 0); /* output() has done that */
	assert_int_equal(atomic_load(&unlocked), 0);

	kit_end_close(&a);
	kit_end_close(&b);
	assert_int_equal(ibv_dealloc_pd(pd) | ibv_close_device(ctx), 0);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
	    cmocka_unit_test(every_row_is_whole),
	    cmocka_unit_test(requests_are_of_types_that_there_are),
	    cmocka_unit_test(all_goes_through_the_row),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
