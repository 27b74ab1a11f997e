/* Memory windows as objects and arguments, rules 37, 44, 48 and 49, on a real device.  What the protocol
 * makes of them: sim/test_windows.c, proc/test_windows.c. */
#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "device.h"
#include "kit.h"
#include "mem/keys.h"
#include "obj/context.h"
#include "hca/hca.h"
#include "verbs/verbs.h"

enum { SIZE = 1 << 16, DEPTH = 8, RW = KIT_ALL & ~IBV_ACCESS_LOCAL_WRITE };

/* Two connected QPs; b has a region that takes windows. */
struct desk {
	struct kit_end a, b;
	struct ibv_mr *mr;
	struct ibv_mw *mw;
};

static void desk_open(struct desk *d, enum ibv_mw_type type)
{
	kit_end_open(&d->a, pd, DEPTH, SIZE);
	kit_end_open(&d->b, pd, DEPTH, SIZE);
	kit_connect(&d->a, &d->b.card);
	kit_connect(&d->b, &d->a.card);
	d->mr = ibv_reg_mr(pd, d->b.buf, SIZE, IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_MW_BIND);
	d->mw = ibv_alloc_mw(pd, type);
	assert_true(d->mr && d->mw);
}

static void desk_close(struct desk *d)
{
	if (d->mw)
		assert_int_equal(ibv_dealloc_mw(d->mw), 0);
	if (d->mr)
		assert_int_equal(ibv_dereg_mr(d->mr), 0);
	kit_end_close(&d->a);
	if (d->b.qp)
		kit_end_close(&d->b);
}

static struct ibv_mw_bind bind_of(const struct desk *d, uint32_t at, uint32_t len, unsigned access)
{
	return (struct ibv_mw_bind){
	    .wr_id = 77,
	    .send_flags = IBV_SEND_SIGNALED,
	    .bind_info = {
		.mr = d->mr, .addr = (uintptr_t)d->b.buf + at, .length = len, .mw_access_flags = access}};
}

static struct ibv_send_wr wr_of(const struct desk *d, uint32_t rkey, unsigned access)
{
	return (struct ibv_send_wr){
	    .wr_id = 78,
	    .opcode = IBV_WR_BIND_MW,
	    .send_flags = IBV_SEND_SIGNALED,
	    .bind_mw = {.mw = d->mw, .rkey = rkey, .bind_info = bind_of(d, 0, SIZE, access).bind_info}};
}

static void done(struct kit_end *e, uint64_t wr_id, enum ibv_wc_opcode op)
{
	struct ibv_wc wc = kit_wait(e, 10);

	assert_int_equal(wc.status, IBV_WC_SUCCESS);
	assert_int_equal(wc.wr_id, wr_id);
	assert_int_equal(wc.opcode, op);
	assert_int_equal(wc.qp_num, e->qp->qp_num);
}

static void bind_2(struct desk *d, uint32_t rkey)
{
	struct ibv_send_wr wr = wr_of(d, rkey, RW), *bad;

	assert_int_equal(ibv_post_send(d->b.qp, &wr, &bad), 0);
	done(&d->b, 78, IBV_WC_BIND_MW);
}

static enum ibv_wc_status written(struct desk *d, uint32_t rkey)
{
	struct kit_card to = d->b.card;

	to.rkey = rkey;
	assert_int_equal(kit_post(&d->a, IBV_WR_RDMA_WRITE, 5, 0, 8, &to, 0), 0);
	return kit_wait(&d->a, 10).status;
}

static void what_a_window_is(void **state)
{
	(void)state;
	for (int type = IBV_MW_TYPE_1; type <= IBV_MW_TYPE_2; type++) {
		struct ibv_mw *mw = ibv_alloc_mw(pd, (enum ibv_mw_type)type);

		assert_non_null(mw);
		assert_ptr_equal(mw->context, ctx);
		assert_ptr_equal(mw->pd, pd);
		assert_int_equal(mw->type, type);
		assert_int_not_equal(mw->rkey, 0);
		assert_int_equal(ibv_dealloc_mw(mw), 0);
	}
	for (int type = 0; type < 5; type += type ? 1 : 3) {
		errno = 0;
		assert_null(ibv_alloc_mw(pd, (enum ibv_mw_type)type));
		assert_int_equal(errno, EINVAL);
	}
}

static void rule_37_ends(void **state)
{
	struct ibv_pd *own = ibv_alloc_pd(ctx);
	struct ibv_mw *mw = ibv_alloc_mw(own, IBV_MW_TYPE_2);

	(void)state;
	assert_non_null(mw);
	assert_int_equal(ibv_dealloc_pd(own), EBUSY);
	mw->handle ^= 0x1000;
	assert_int_equal(ibv_dealloc_mw(mw), ENOENT);
	mw->handle ^= 0x1000;
	assert_int_equal(ibv_dealloc_mw(mw), 0);
	assert_int_equal(ibv_dealloc_pd(own), 0);
}

/* rule 44: keys of windows and of regions are of one space */
static void rule_44_one_key_space(void **state)
{
	enum { N = 2000 };
	static struct ibv_mr *mr[N];
	static struct ibv_mw *mw[N];
	static uint8_t seen[1 << VB_KEY_BITS];
	static char page[64];

	(void)state;
	for (int i = 0; i < N; i++) {
		mr[i] = ibv_reg_mr(pd, page, sizeof page, KIT_ALL);
		mw[i] = ibv_alloc_mw(pd, i & 1 ? IBV_MW_TYPE_1 : IBV_MW_TYPE_2);
		assert_true(mr[i] && mw[i]);
		assert_int_equal(seen[VB_KEY_PLACE(mr[i]->rkey)]++, 0);
		assert_int_equal(seen[VB_KEY_PLACE(mw[i]->rkey)]++, 0);
	}
	for (int i = 0; i < N; i++)
		assert_int_equal(ibv_dereg_mr(mr[i]) | ibv_dealloc_mw(mw[i]), 0);
}

/* rule 48, and what else is refused at the call: nothing is posted, the window's key stays */
static void rule_48_refused_at_the_call(void **state)
{
	int (*bind)(struct ibv_qp *, struct ibv_mw *, struct ibv_mw_bind *) = ctx->ops.bind_mw;
	struct ibv_send_wr wr, *bad;
	struct ibv_mw_bind b;
	struct ibv_wc wc;
	struct desk d;
	uint32_t key;

	(void)state;
	desk_open(&d, IBV_MW_TYPE_2);
	b = bind_of(&d, 0, 64, RW);
	assert_int_equal(ibv_bind_mw(d.b.qp, d.mw, &b), EINVAL);
	assert_int_equal(bind(d.b.qp, d.mw, &b), EINVAL);
	for (int i = 0; i < 4; i++) {
		wr = wr_of(&d, d.mw->rkey, RW);
		if (i == 0)
			wr.bind_mw.mw = NULL;
		if (i == 1)
			wr.bind_mw.bind_info.mr = NULL;
		if (i == 2)
			wr.bind_mw.bind_info.mw_access_flags |= 1u << 9;
		if (i == 3)
			wr.send_flags |= IBV_SEND_INLINE;
		bad = NULL;
		assert_int_equal(ibv_post_send(d.b.qp, &wr, &bad), EINVAL);
		assert_ptr_equal(bad, &wr);
	}
	desk_close(&d);

	desk_open(&d, IBV_MW_TYPE_1);
	key = d.mw->rkey;
	wr = wr_of(&d, key, RW);
	assert_int_equal(ibv_post_send(d.b.qp, &wr, &bad), EINVAL);
	b = bind_of(&d, 0, 64, RW | IBV_ACCESS_ZERO_BASED);
	assert_int_equal(ibv_bind_mw(d.b.qp, d.mw, &b), EINVAL);
	b = bind_of(&d, 0, 64, 1u << 9);
	assert_int_equal(ibv_bind_mw(d.b.qp, d.mw, &b), EINVAL);
	b = bind_of(&d, 0, 64, RW);
	b.send_flags |= IBV_SEND_INLINE;
	assert_int_equal(ibv_bind_mw(d.b.qp, d.mw, &b), EINVAL);
	b = bind_of(&d, 0, 64, RW);
	b.bind_info.mr = NULL;
	assert_int_equal(bind(d.b.qp, d.mw, &b), EINVAL);
	assert_int_equal(d.mw->rkey, key);
	assert_int_equal(ibv_poll_cq(d.b.cq, 1, &wc), 0);
	desk_close(&d);
}

static void rule_11_states_and_room(void **state)
{
	struct ibv_mw_bind b;
	struct kit_end fresh;
	struct desk d;
	uint32_t key;
	int n;

	(void)state;
	desk_open(&d, IBV_MW_TYPE_1);
	kit_end_open(&fresh, pd, DEPTH, SIZE); /* INIT */
	b = bind_of(&d, 0, 64, RW);
	assert_int_equal(ibv_bind_mw(fresh.qp, d.mw, &b), EINVAL);
	kit_end_close(&fresh);
	for (n = 0; n < DEPTH; n++)
		assert_int_equal(ibv_bind_mw(d.b.qp, d.mw, &b), 0);
	key = d.mw->rkey;
	assert_int_equal(ibv_bind_mw(d.b.qp, d.mw, &b), ENOMEM); /* none of them is polled yet */
	assert_int_equal(d.mw->rkey, key);
	while (n--)
		done(&d.b, 77, IBV_WC_BIND_MW);
	assert_int_equal(written(&d, key), IBV_WC_SUCCESS);
	desk_close(&d);
}

/* The new key is there when ibv_bind_mw returns; signalled or not (rule 39). */
static void rule_48_type_1_key(void **state)
{
	struct ibv_mw_bind b;
	struct ibv_wc wc;
	struct desk d;
	uint32_t key;

	(void)state;
	desk_open(&d, IBV_MW_TYPE_1);
	for (int i = 0; i < 300; i++) {
		key = d.mw->rkey;
		b = bind_of(&d, 0, i % 3 ? 64 : 0, RW | IBV_ACCESS_LOCAL_WRITE);
		if (i & 1)
			b.send_flags = IBV_SEND_FENCE;
		assert_int_equal(ibv_bind_mw(d.b.qp, d.mw, &b), 0);
		assert_int_equal(d.mw->rkey, ibv_inc_rkey(key));
		if (i & 1)
			assert_int_equal(ibv_poll_cq(d.b.cq, 1, &wc), 0);
		else
			done(&d.b, 77, IBV_WC_BIND_MW);
	}
	assert_int_equal(written(&d, d.mw->rkey), IBV_WC_SUCCESS);
	assert_int_equal(written(&d, key), IBV_WC_REM_ACCESS_ERR);
	desk_close(&d);
}

/* A READ that is posted before may be using the window that a SEND invalidates: it is fenced by itself. */
static void send_with_invalidate_is_fenced(void **state)
{
	struct ibv_send_wr wr = {.wr_id = 9, .opcode = IBV_WR_SEND_WITH_INV}, *bad;
	struct ibv_qp_attr attr = {.qp_state = IBV_QPS_SQD};
	struct vb_qp *qp;
	struct desk d;

	(void)state;
	desk_open(&d, IBV_MW_TYPE_2);
	qp = vb_qp(d.a.qp);
	assert_int_equal(ibv_modify_qp(d.a.qp, &attr, IBV_QP_STATE), 0); /* so that it stays there */
	wr.invalidate_rkey = d.mw->rkey;
	assert_int_equal(ibv_post_send(d.a.qp, &wr, &bad), 0);
	assert_true(vb_sq_at(&qp->req, qp->post.head - 1)->flags & IBV_SEND_FENCE);
	wr.opcode = IBV_WR_SEND;
	assert_int_equal(ibv_post_send(d.a.qp, &wr, &bad), 0);
	assert_false(vb_sq_at(&qp->req, qp->post.head - 1)->flags & IBV_SEND_FENCE);
	desk_close(&d);
}

/* A window of either type ties its region: it is neither deregistered nor changed by ibv_rereg_mr. */
static void rule_49_region_stays(void **state)
{
	struct ibv_send_wr inv = {.wr_id = 9, .opcode = IBV_WR_LOCAL_INV, .send_flags = IBV_SEND_SIGNALED};
	struct ibv_send_wr *bad;
	struct ibv_mw_bind b;
	struct desk d;

	(void)state;
	desk_open(&d, IBV_MW_TYPE_2);
	bind_2(&d, d.mw->rkey);
	assert_int_equal(ibv_dereg_mr(d.mr), EBUSY);
	assert_int_equal(
	    ibv_rereg_mr(d.mr, IBV_REREG_MR_CHANGE_ACCESS, NULL, NULL, 0, IBV_ACCESS_LOCAL_WRITE),
	    IBV_REREG_MR_ERR_INPUT);
	assert_int_equal(errno, EBUSY);
	assert_int_equal(written(&d, d.mw->rkey), IBV_WC_SUCCESS); /* nothing has happened to it */
	inv.invalidate_rkey = d.mw->rkey;
	assert_int_equal(ibv_post_send(d.b.qp, &inv, &bad), 0);
	done(&d.b, 9, IBV_WC_LOCAL_INV);
	assert_int_equal(ibv_dereg_mr(d.mr), 0);
	d.mr = NULL;
	desk_close(&d);

	desk_open(&d, IBV_MW_TYPE_1);
	b = bind_of(&d, 0, 64, RW);
	assert_int_equal(ibv_bind_mw(d.b.qp, d.mw, &b), 0);
	done(&d.b, 77, IBV_WC_BIND_MW);
	assert_int_equal(ibv_dereg_mr(d.mr), EBUSY);
	assert_int_equal(ibv_dealloc_mw(d.mw), 0); /* unbinds it */
	d.mw = NULL;
	assert_int_equal(ibv_dereg_mr(d.mr), 0);
	d.mr = NULL;
	desk_close(&d);
}

/* A window that is deallocated is dead; so is one of a QP that is destroyed, and it can be bound anew. */
static void rule_48_ends_of_a_binding(void **state)
{
	struct ibv_qp_attr err = {.qp_state = IBV_QPS_ERR};
	struct ibv_send_wr wr, *bad;
	struct desk d;
	uint32_t key;

	(void)state;
	desk_open(&d, IBV_MW_TYPE_2);
	bind_2(&d, 0x55);
	key = (d.mw->rkey & ~0xffu) | 0x55;
	assert_int_equal(written(&d, key), IBV_WC_SUCCESS);
	assert_int_equal(ibv_dealloc_mw(d.mw), 0);
	d.mw = NULL;
	assert_int_equal(written(&d, key), IBV_WC_REM_ACCESS_ERR);
	desk_close(&d);

	desk_open(&d, IBV_MW_TYPE_2);
	bind_2(&d, 0x55);
	assert_int_equal(ibv_destroy_qp(d.b.qp), 0); /* IBTA o10-2.2.5: it may be */
	assert_int_equal(ibv_dereg_mr(d.mr), 0);
	d.mr = ibv_reg_mr(pd, d.b.buf, SIZE, IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_MW_BIND);
	assert_non_null(d.mr);
	wr = wr_of(&d, 0x55, RW);
	assert_int_equal(ibv_post_send(d.a.qp, &wr, &bad), 0);
	done(&d.a, 78, IBV_WC_BIND_MW);
	assert_int_equal(ibv_dealloc_mw(d.mw), 0);
	d.mw = NULL;
	assert_int_equal(ibv_dereg_mr(d.b.mr) | ibv_dereg_mr(d.mr) | ibv_destroy_cq(d.b.cq), 0);
	free(d.b.buf);
	d.mr = NULL;
	d.b.qp = NULL;
	desk_close(&d);

	desk_open(&d, IBV_MW_TYPE_2);
	assert_int_equal(ibv_modify_qp(d.b.qp, &err, IBV_QP_STATE), 0);
	wr = wr_of(&d, 0x55, RW);
	assert_int_equal(ibv_post_send(d.b.qp, &wr, &bad), 0);
	assert_int_equal(kit_wait(&d.b, 10).status, IBV_WC_WR_FLUSH_ERR); /* rule 30 */
	assert_int_equal(ibv_dereg_mr(d.mr), 0);
	d.mr = NULL;
	desk_close(&d);
}

/* A request to unbind has to wait for somebody in the middle of a copy, and its QP is reset meanwhile.  Once
 * that copy has ended the region is free for whatever its program does next. */
static void unbound_by_who_comes_next(void **state)
{
	struct vb_keys *keys = &vb_hca(vb_context(ctx)->adapter)->keys;
	struct ibv_qp_attr reset = {.qp_state = IBV_QPS_RESET};
	const int access = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_MW_BIND;
	struct vb_key_slot *slot = &keys->slots.at[50]; /* as some thread has it */

	(void)state;
	keys->marks->slots = 51;
	for (int relaxed = 0; relaxed < 2; relaxed++) {
		struct ibv_send_wr wr, *bad;
		struct desk d;

		desk_open(&d, IBV_MW_TYPE_2);
		if (relaxed) {
			assert_int_equal(ibv_dereg_mr(d.mr), 0);
			d.mr = ibv_reg_mr_relaxed(pd, d.b.buf, SIZE, access);
			assert_non_null(d.mr);
		}
		bind_2(&d, 0x55);
		slot->index = vb_keys_index(keys, d.mw->rkey);
		wr = (struct ibv_send_wr){.opcode = IBV_WR_LOCAL_INV,
					  .invalidate_rkey = (d.mw->rkey & ~0xffu) | 0x55};
		assert_int_equal(ibv_post_send(d.b.qp, &wr, &bad), 0);
		assert_int_equal(ibv_modify_qp(d.b.qp, &reset, IBV_QP_STATE), 0);
		for (int free = 0; free < 2; free++) {
			if (relaxed)
				assert_int_equal(ibv_dereg_mr_relaxed(d.mr), free ? 0 : EBUSY);
			else
				assert_int_equal(
				    ibv_rereg_mr(d.mr, IBV_REREG_MR_CHANGE_ACCESS, NULL, NULL, 0, access),
				    free ? 0 : IBV_REREG_MR_ERR_INPUT);
			slot->index = 0;
		}
		if (relaxed)
			d.mr = NULL;
		desk_close(&d);
	}
}

/* Nobody is there, and nobody is needed. */
static void bound_without_a_peer(void **state)
{
	struct kit_card nobody;
	struct ibv_mw_bind b;
	struct desk d = {0};

	(void)state;
	kit_end_open(&d.b, pd, DEPTH, SIZE);
	nobody = d.b.card;
	nobody.qpn ^= 0x3ff000;
	kit_connect(&d.b, &nobody);
	d.mr = ibv_reg_mr(pd, d.b.buf, SIZE, IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_MW_BIND);
	d.mw = ibv_alloc_mw(pd, IBV_MW_TYPE_1);
	assert_true(d.mr && d.mw);
	for (uint32_t len = 0; len < 3; len++) {
		b = bind_of(&d, 0, len, RW);
		assert_int_equal(ibv_bind_mw(d.b.qp, d.mw, &b), 0);
		done(&d.b, 77, IBV_WC_BIND_MW);
	}
	assert_int_equal(ibv_dealloc_mw(d.mw) | ibv_dereg_mr(d.mr), 0);
	kit_end_close(&d.b);
}

static void in_a_forked_child(void **state)
{
	struct ibv_mw_bind b;
	struct desk d;
	pid_t pid;

	(void)state;
	desk_open(&d, IBV_MW_TYPE_1);
	b = bind_of(&d, 0, 64, RW);
	pid = kit_fork();
	if (!pid)
		_exit(ibv_alloc_mw(pd, IBV_MW_TYPE_1) || errno != EIO ||
		      ibv_bind_mw(d.b.qp, d.mw, &b) != EIO || ibv_dealloc_mw(d.mw));
	assert_int_equal(kit_reap(pid), 0);
	desk_close(&d);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
	    cmocka_unit_test(what_a_window_is),
	    cmocka_unit_test(rule_37_ends),
	    cmocka_unit_test(rule_44_one_key_space),
	    cmocka_unit_test(rule_48_refused_at_the_call),
	    cmocka_unit_test(rule_11_states_and_room),
	    cmocka_unit_test(rule_48_type_1_key),
	    cmocka_unit_test(send_with_invalidate_is_fenced),
	    cmocka_unit_test(rule_49_region_stays),
	    cmocka_unit_test(rule_48_ends_of_a_binding),
	    cmocka_unit_test(unbound_by_who_comes_next),
	    cmocka_unit_test(bound_without_a_peer),
	    cmocka_unit_test(in_a_forked_child),
	};

	return cmocka_run_group_tests(tests, kit_device_open, kit_device_close);
}
