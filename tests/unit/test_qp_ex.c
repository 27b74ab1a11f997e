/* Queue pairs whose requests are built call by call (ibv_wr_*): each call does what the work request of its
 * name does, and what is wrong is told at the end, with nothing posted. */
#include <errno.h>
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <time.h>

#include <cmocka.h>

#include "device.h"
#include "kit.h"
#include "refused.h"
#include "obj/qp.h"

enum { SIZE = 4096, DEPTH = 16, INLINE = 64, WHERE = 1024 };

#define ALL_OPS                                                                                        \
	(IBV_QP_EX_WITH_RDMA_WRITE | IBV_QP_EX_WITH_RDMA_WRITE_WITH_IMM | IBV_QP_EX_WITH_SEND |        \
	 IBV_QP_EX_WITH_SEND_WITH_IMM | IBV_QP_EX_WITH_RDMA_READ | IBV_QP_EX_WITH_ATOMIC_CMP_AND_SWP | \
	 IBV_QP_EX_WITH_ATOMIC_FETCH_AND_ADD | IBV_QP_EX_WITH_LOCAL_INV | IBV_QP_EX_WITH_BIND_MW |     \
	 IBV_QP_EX_WITH_SEND_WITH_INV | IBV_QP_EX_WITH_FLUSH | IBV_QP_EX_WITH_ATOMIC_WRITE)

struct desk {
	struct kit_end a, b;
	struct ibv_qp_ex *x; /* a's */
};

static void desk_open(struct desk *d, uint64_t ops)
{
	d->x = kit_end_open_ex(&d->a, pd, DEPTH, SIZE, ops);
	kit_end_open(&d->b, pd, DEPTH, SIZE);
	kit_connect(&d->a, &d->b.card);
	kit_connect(&d->b, &d->a.card);
}

static void desk_close(struct desk *d)
{
	kit_end_close(&d->a);
	kit_end_close(&d->b);
}

static void begin(struct desk *d, uint64_t wr_id)
{
	d->x->wr_id = wr_id;
	d->x->wr_flags = IBV_SEND_SIGNALED;
}

static void piece(struct desk *d, size_t at, uint32_t len)
{
	ibv_wr_set_sge(d->x, d->a.mr->lkey, (uintptr_t)d->a.buf + at, len);
}

static void ends(struct desk *d, uint64_t wr_id, enum ibv_wc_opcode opcode)
{
	struct ibv_wc wc = kit_wait(&d->a, 10);

	assert_int_equal(wc.status, IBV_WC_SUCCESS);
	assert_int_equal(wc.wr_id, wr_id);
	assert_int_equal(wc.opcode, opcode);
}

static struct ibv_wc comes(struct desk *d)
{
	struct ibv_wc wc = kit_wait(&d->b, 10);

	assert_int_equal(wc.status, IBV_WC_SUCCESS);
	return wc;
}

static void nothing_is_there(struct desk *d)
{
	struct ibv_wc wc;

	for (int i = 0; i < 100; i++) {
		assert_int_equal(ibv_poll_cq(d->a.cq, 1, &wc), 0);
		assert_int_equal(ibv_poll_cq(d->b.cq, 1, &wc), 0);
	}
}

static void messages_arrive(void **state)
{
	struct ibv_sge two[2];
	struct desk d;
	struct ibv_wc wc;

	(void)state;
	desk_open(&d, ALL_OPS);
	for (int i = 0; i < 4; i++)
		assert_int_equal(kit_recv(&d.b, 100, WHERE, 256), 0);
	memcpy(d.a.buf, "one piece, two pieces", 21);
	two[0] = (struct ibv_sge){(uintptr_t)d.a.buf, 9, d.a.mr->lkey};
	two[1] = (struct ibv_sge){(uintptr_t)d.a.buf + 9, 12, d.a.mr->lkey};
	ibv_wr_start(d.x);
	begin(&d, 1);
	ibv_wr_send(d.x);
	piece(&d, 0, 9);
	begin(&d, 2);
	ibv_wr_send_imm(d.x, htobe32(77));
	ibv_wr_set_sge_list(d.x, 2, two);
	assert_int_equal(ibv_wr_complete(d.x), 0);
	wc = comes(&d);
	assert_int_equal(wc.byte_len, 9);
	assert_int_equal(wc.opcode, IBV_WC_RECV);
	wc = comes(&d);
	assert_int_equal(wc.byte_len, 21);
	assert_int_equal(wc.wc_flags, IBV_WC_WITH_IMM);
	assert_int_equal(be32toh(wc.imm_data), 77);
	assert_memory_equal(d.b.buf + WHERE, "one piece, two pieces", 21);
	ends(&d, 1, IBV_WC_SEND);
	ends(&d, 2, IBV_WC_SEND);
	/* no setter of data: there is none, whatever the queue's slots have seen */
	for (int i = 0; i < 2 * DEPTH; i++) {
		assert_int_equal(kit_recv(&d.b, 200, WHERE, 256), 0);
		ibv_wr_start(d.x);
		begin(&d, 5);
		ibv_wr_send(d.x);
		piece(&d, 0, 9);
		assert_int_equal(ibv_wr_complete(d.x), 0);
		comes(&d);
		ends(&d, 5, IBV_WC_SEND);
	}
	ibv_wr_start(d.x);
	begin(&d, 3);
	ibv_wr_send(d.x);
	begin(&d, 4);
	ibv_wr_send_imm(d.x, 5);
	piece(&d, 0, 0);
	assert_int_equal(ibv_wr_complete(d.x), 0);
	assert_int_equal(comes(&d).byte_len, 0);
	assert_int_equal(comes(&d).byte_len, 0);
	ends(&d, 3, IBV_WC_SEND);
	ends(&d, 4, IBV_WC_SEND);
	desk_close(&d);
}

static void remote_memory_is_reached(void **state)
{
	uint64_t far = 0, *here, *there;
	struct desk d;

	(void)state;
	desk_open(&d, ALL_OPS);
	here = (uint64_t *)d.a.buf;
	there = (uint64_t *)(d.b.buf + WHERE);
	far = d.b.card.addr + WHERE;
	here[0] = 1000;
	assert_int_equal(kit_recv(&d.b, 100, 0, 8), 0);
	ibv_wr_start(d.x);
	begin(&d, 1);
	ibv_wr_rdma_write(d.x, d.b.card.rkey, far);
	piece(&d, 0, 8);
	begin(&d, 2);
	ibv_wr_atomic_fetch_add(d.x, d.b.card.rkey, far, 5);
	piece(&d, 8, 8);
	begin(&d, 3);
	ibv_wr_atomic_cmp_swp(d.x, d.b.card.rkey, far, 1005, 7);
	piece(&d, 16, 8);
	begin(&d, 4);
	ibv_wr_rdma_read(d.x, d.b.card.rkey, far);
	piece(&d, 24, 8);
	begin(&d, 5);
	ibv_wr_rdma_write_imm(d.x, d.b.card.rkey, far + 8, htobe32(9));
	piece(&d, 0, 8);
	assert_int_equal(ibv_wr_complete(d.x), 0);
	ends(&d, 1, IBV_WC_RDMA_WRITE);
	ends(&d, 2, IBV_WC_FETCH_ADD);
	ends(&d, 3, IBV_WC_COMP_SWAP);
	ends(&d, 4, IBV_WC_RDMA_READ);
	assert_int_equal(comes(&d).opcode, IBV_WC_RECV_RDMA_WITH_IMM);
	ends(&d, 5, IBV_WC_RDMA_WRITE);
	assert_int_equal(here[1], 1000);
	assert_int_equal(here[2], 1005);
	assert_int_equal(here[3], 7);
	assert_int_equal(there[0], 7);
	assert_int_equal(there[1], 1000);
	desk_close(&d);
}

static void windows_are_bound_and_invalidated(void **state)
{
	struct ibv_mw_bind_info info;
	struct ibv_mr *mr;
	struct ibv_mw *mw;
	struct ibv_wc wc;
	struct desk d;
	uint32_t rkey;

	(void)state;
	desk_open(&d, ALL_OPS);
	mr = ibv_reg_mr(pd, d.a.buf, SIZE, KIT_ALL | IBV_ACCESS_MW_BIND);
	mw = ibv_alloc_mw(pd, IBV_MW_TYPE_2);
	assert_true(mr && mw);
	info = (struct ibv_mw_bind_info){mr, (uintptr_t)d.a.buf, 64, IBV_ACCESS_REMOTE_WRITE};
	rkey = ibv_inc_rkey(mw->rkey);
	ibv_wr_start(d.x);
	begin(&d, 1);
	ibv_wr_bind_mw(d.x, mw, rkey, &info);
	piece(&d, 0, 8); /* no data belongs to it */
	assert_int_equal(ibv_wr_complete(d.x), 0);
	ends(&d, 1, IBV_WC_BIND_MW);
	d.a.card.rkey = rkey;
	assert_int_equal(kit_post(&d.b, IBV_WR_RDMA_WRITE, 2, 0, 8, &d.a.card, 0), 0);
	assert_int_equal(kit_wait(&d.b, 10).status, IBV_WC_SUCCESS);
	ibv_wr_start(d.x);
	begin(&d, 3);
	ibv_wr_local_inv(d.x, rkey);
	assert_int_equal(ibv_wr_complete(d.x), 0);
	ends(&d, 3, IBV_WC_LOCAL_INV);
	/* the far end's window is taken back by a message */
	assert_int_equal(kit_recv(&d.b, 100, 0, 64), 0);
	ibv_wr_start(d.x);
	begin(&d, 4);
	ibv_wr_send_inv(d.x, 0x12345678);
	assert_int_equal(ibv_wr_complete(d.x), 0);
	wc = kit_wait(&d.a, 10);
	assert_int_equal(wc.wr_id, 4);
	assert_int_equal(wc.status, IBV_WC_REM_ACCESS_ERR); /* which it has not got */
	assert_int_equal(ibv_dealloc_mw(mw), 0);
	assert_int_equal(ibv_dereg_mr(mr), 0);
	desk_close(&d);
}

static void inline_data_is_copied_at_once(void **state)
{
	struct ibv_data_buf bufs[3];
	char text[] = "copied";
	struct desk d;

	(void)state;
	desk_open(&d, ALL_OPS);
	for (int i = 0; i < 3; i++)
		assert_int_equal(kit_recv(&d.b, 100, WHERE + 64 * (size_t)i, 64), 0);
	ibv_wr_start(d.x);
	begin(&d, 1);
	ibv_wr_send(d.x);
	ibv_wr_set_inline_data(d.x, text, 6);
	memset(text, 'x', 6);
	begin(&d, 2);
	ibv_wr_send(d.x);
	bufs[0] = (struct ibv_data_buf){"in ", 3};
	bufs[1] = (struct ibv_data_buf){NULL, 0};
	bufs[2] = (struct ibv_data_buf){text, 6};
	ibv_wr_set_inline_data_list(d.x, 3, bufs);
	memset(text, 'y', 6);
	/* what is said last counts */
	begin(&d, 3);
	ibv_wr_send(d.x);
	ibv_wr_set_inline_data(d.x, text, 6);
	memcpy(d.a.buf, "from memory", 11);
	piece(&d, 0, 11);
	memcpy(d.a.buf, "From", 4);
	assert_int_equal(ibv_wr_complete(d.x), 0);
	assert_int_equal(comes(&d).byte_len, 6);
	assert_int_equal(comes(&d).byte_len, 9);
	assert_int_equal(comes(&d).byte_len, 11);
	assert_memory_equal(d.b.buf + WHERE, "copied", 6);
	assert_memory_equal(d.b.buf + WHERE + 64, "in xxxxxx", 9);
	assert_memory_equal(d.b.buf + WHERE + 128, "From memory", 11);
	for (uint64_t i = 1; i <= 3; i++)
		ends(&d, i, IBV_WC_SEND);
	desk_close(&d);
}

/* Each makes a mistake in an open builder, and posts the same by ibv_post_send, whose errno it returns. */
static int post(struct desk *d, struct ibv_send_wr wr)
{
	struct ibv_send_wr *bad;

	return ibv_post_send(d->a.qp, &wr, &bad);
}

static void too_much_inline(struct desk *d)
{
	static char bytes[INLINE + 1];

	ibv_wr_send(d->x);
	ibv_wr_set_inline_data(d->x, bytes, sizeof(bytes));
}

static int post_too_much_inline(struct desk *d)
{
	struct ibv_sge s = {(uintptr_t)d->a.buf, INLINE + 1, 0};

	return post(d,
		    (struct ibv_send_wr){
			.opcode = IBV_WR_SEND, .sg_list = &s, .num_sge = 1, .send_flags = IBV_SEND_INLINE});
}

static void too_much_inline_in_a_list(struct desk *d)
{
	static char bytes[INLINE];
	struct ibv_data_buf bufs[] = {{bytes, 40}, {bytes, SIZE_MAX - 20}, {bytes, 0}};

	ibv_wr_send(d->x);
	ibv_wr_set_inline_data_list(d->x, 3, bufs);
}

static void too_many_pieces(struct desk *d)
{
	struct ibv_sge s[3] = {{0}};

	ibv_wr_send(d->x);
	ibv_wr_set_sge_list(d->x, 3, s);
}

static int post_too_many_pieces(struct desk *d)
{
	struct ibv_sge s[3] = {{0}};

	return post(d, (struct ibv_send_wr){.opcode = IBV_WR_SEND, .sg_list = s, .num_sge = 3});
}

static void too_long(struct desk *d)
{
	ibv_wr_rdma_write(d->x, d->b.card.rkey, d->b.card.addr);
	ibv_wr_set_sge(d->x, d->a.mr->lkey, 0, UINT32_MAX);
}

static int post_too_long(struct desk *d)
{
	struct ibv_sge s = {0, UINT32_MAX, d->a.mr->lkey};

	return post(d, (struct ibv_send_wr){.opcode = IBV_WR_RDMA_WRITE, .sg_list = &s, .num_sge = 1});
}

static void too_long_a_list(struct desk *d)
{
	struct ibv_sge s[2] = {{0, UINT32_MAX, 0}, {0, 2, 0}};

	ibv_wr_rdma_read(d->x, d->b.card.rkey, d->b.card.addr);
	ibv_wr_set_sge_list(d->x, 2, s);
}

static void inline_where_nothing_is_sent(struct desk *d)
{
	ibv_wr_rdma_read(d->x, d->b.card.rkey, d->b.card.addr);
	ibv_wr_set_inline_data(d->x, d->a.buf, 8);
}

static int post_inline_where_nothing_is_sent(struct desk *d)
{
	struct ibv_sge s = {(uintptr_t)d->a.buf, 8, d->a.mr->lkey};

	return post(
	    d, (struct ibv_send_wr){
		   .opcode = IBV_WR_RDMA_READ, .sg_list = &s, .num_sge = 1, .send_flags = IBV_SEND_INLINE});
}

static void flags_of_others(struct desk *d)
{
	d->x->wr_flags = IBV_SEND_IP_CSUM;
	ibv_wr_send(d->x);
}

static int post_flags_of_others(struct desk *d)
{
	return post(d, (struct ibv_send_wr){.opcode = IBV_WR_SEND, .send_flags = IBV_SEND_IP_CSUM});
}

static void no_window(struct desk *d)
{
	struct ibv_mw_bind_info info = {0};

	ibv_wr_bind_mw(d->x, NULL, 1, &info);
}

static int post_no_window(struct desk *d)
{
	return post(d, (struct ibv_send_wr){.opcode = IBV_WR_BIND_MW});
}

static void segments(struct desk *d)
{
	ibv_wr_send_tso(d->x, d->a.buf, 8, 8);
}

static int post_segments(struct desk *d)
{
	return post(d, (struct ibv_send_wr){.opcode = IBV_WR_TSO});
}

static void an_address(struct desk *d)
{
	ibv_wr_send(d->x);
	ibv_wr_set_ud_addr(d->x, NULL, 1, 1);
}

static void a_shared_queue(struct desk *d)
{
	ibv_wr_send(d->x);
	ibv_wr_set_xrc_srqn(d->x, 1);
}

static void a_flush_of_nothing(struct desk *d)
{
	ibv_wr_flush(d->x, d->b.card.rkey, d->b.card.addr, 8, 0, IBV_FLUSH_RANGE);
}

static void a_flush_of_no_level(struct desk *d)
{
	ibv_wr_flush(d->x, d->b.card.rkey, d->b.card.addr, 8, IBV_FLUSH_GLOBAL, 2);
}

static void a_flush_too_far(struct desk *d)
{
	ibv_wr_flush(d->x, d->b.card.rkey, d->b.card.addr, (size_t)UINT32_MAX + 1, IBV_FLUSH_GLOBAL, 0);
}

static void more_than_fit(struct desk *d)
{
	for (int i = 0; i <= DEPTH; i++) {
		ibv_wr_send(d->x);
		piece(d, 0, 8);
	}
}

static const struct {
	void (*make)(struct desk *d);
	int (*same)(struct desk *d); /* NULL: a work request cannot make this mistake */
	int err;
} mistakes[] = {
    {too_much_inline, post_too_much_inline, EINVAL},
    {too_much_inline_in_a_list, post_too_much_inline, EINVAL},
    {too_many_pieces, post_too_many_pieces, EINVAL},
    {too_long, post_too_long, EINVAL},
    {too_long_a_list, NULL, EINVAL},
    {inline_where_nothing_is_sent, post_inline_where_nothing_is_sent, EINVAL},
    {flags_of_others, post_flags_of_others, EINVAL},
    {no_window, post_no_window, EINVAL},
    {segments, post_segments, EINVAL},
    {an_address, NULL, EINVAL},
    {a_shared_queue, NULL, EINVAL},
    {a_flush_of_nothing, NULL, EINVAL},
    {a_flush_of_no_level, NULL, EINVAL},
    {a_flush_too_far, NULL, EINVAL},
    {more_than_fit, NULL, ENOMEM},
};

static void a_mistake_is_told_at_the_end(void **state)
{
	struct desk d;

	(void)state;
	desk_open(&d, ALL_OPS);
	for (size_t k = 0; k < 2 * sizeof(mistakes) / sizeof(mistakes[0]); k++) {
		size_t i = k / 2;

		if (mistakes[i].same)
			assert_int_equal(mistakes[i].same(&d), mistakes[i].err);
		errno = ENOENT;
		ibv_wr_start(d.x);
		begin(&d, 1);
		ibv_wr_send(d.x); /* this one is good */
		piece(&d, 0, 8);
		mistakes[i].make(&d);
		assert_int_equal(errno, ENOENT);
		begin(&d, 2);
		ibv_wr_send(d.x); /* so is this, but it comes too late */
		piece(&d, 0, 8);
		if (k & 1)
			too_much_inline(&d); /* and this is another mistake */
		assert_int_equal(ibv_wr_complete(d.x), mistakes[i].err);
		assert_int_equal(errno, mistakes[i].err);
		nothing_is_there(&d);
		assert_int_equal(kit_recv(&d.b, 100, 0, 64), 0);
		errno = ENOENT;
		ibv_wr_start(d.x);
		begin(&d, 3);
		ibv_wr_send(d.x);
		piece(&d, 0, 8);
		assert_int_equal(ibv_wr_complete(d.x), 0);
		assert_int_equal(errno, ENOENT);
		comes(&d);
		ends(&d, 3, IBV_WC_SEND);
	}
	desk_close(&d);
}

/* While requests are built, by the very thread that builds them; these are flushed. */
static void *to_error(void *qp)
{
	assert_int_equal(ibv_modify_qp(qp, &(struct ibv_qp_attr){.qp_state = IBV_QPS_ERR}, IBV_QP_STATE), 0);
	return NULL;
}

/* Another thread's, that is: the builder's own waits for nothing (proc.call_words). */
static void the_error_state_is_not_waited_for(void **state)
{
	pthread_t other;
	struct ibv_wc wc;
	struct desk d;

	(void)state;
	desk_open(&d, ALL_OPS);
	ibv_wr_start(d.x);
	begin(&d, 1);
	ibv_wr_send(d.x);
	piece(&d, 0, 8);
	assert_int_equal(pthread_create(&other, NULL, to_error, d.a.qp), 0);
	assert_int_equal(pthread_join(other, NULL), 0);
	assert_int_equal(ibv_wr_complete(d.x), 0);
	wc = kit_wait(&d.a, 10);
	assert_int_equal(wc.wr_id, 1);
	assert_int_equal(wc.status, IBV_WC_WR_FLUSH_ERR);
	desk_close(&d);
}

/* Every operation, of which none was asked for. */
static void what_was_not_asked_for_fails(void **state)
{
	struct ibv_mw_bind_info info = {0};
	uint64_t word = 1;
	struct desk d;

	(void)state;
	for (int i = 0; i < 13; i++) {
		desk_open(&d, 0);
		ibv_wr_start(d.x);
		switch (i) {
		case 0:
			ibv_wr_send(d.x);
			break;
		case 1:
			ibv_wr_send_imm(d.x, 1);
			break;
		case 2:
			ibv_wr_send_inv(d.x, 1);
			break;
		case 3:
			ibv_wr_send_tso(d.x, &word, 8, 8);
			break;
		case 4:
			ibv_wr_rdma_write(d.x, 1, 1);
			break;
		case 5:
			ibv_wr_rdma_write_imm(d.x, 1, 1, 1);
			break;
		case 6:
			ibv_wr_rdma_read(d.x, 1, 1);
			break;
		case 7:
			ibv_wr_atomic_cmp_swp(d.x, 1, 8, 1, 1);
			break;
		case 8:
			ibv_wr_atomic_fetch_add(d.x, 1, 8, 1);
			break;
		case 9:
			ibv_wr_bind_mw(d.x, NULL, 1, &info);
			break;
		case 10:
			ibv_wr_local_inv(d.x, 1);
			break;
		case 11:
			ibv_wr_atomic_write(d.x, 1, 8, &word);
			break;
		case 12:
			ibv_wr_flush(d.x, 1, 8, 8, IBV_FLUSH_GLOBAL, 0);
			break;
		}
		piece(&d, 0, 8);
		assert_int_equal(ibv_wr_complete(d.x), EINVAL);
		/* an empty one is none that fails */
		ibv_wr_start(d.x);
		assert_int_equal(ibv_wr_complete(d.x), 0);
		nothing_is_there(&d);
		/* and the other way is open */
		assert_int_equal(kit_recv(&d.b, 100, 0, 64), 0);
		assert_int_equal(kit_post(&d.a, IBV_WR_SEND, 2, 0, 8, NULL, 0), 0);
		comes(&d);
		ends(&d, 2, IBV_WC_SEND);
		desk_close(&d);
	}
}

static void queue_writes(struct desk *d, int n, uint64_t wr_id)
{
	for (int i = 0; i < n; i++) {
		begin(d, wr_id);
		ibv_wr_rdma_write(d->x, d->b.card.rkey, d->b.card.addr);
		piece(d, 0, 8);
	}
}

static void abort_leaves_the_queue_as_before(void **state)
{
	struct desk d;

	(void)state;
	desk_open(&d, ALL_OPS);
	for (int i = 0; i < 3; i++) {
		ibv_wr_start(d.x);
		queue_writes(&d, DEPTH, 1);
		if (i == 1) /* after a mistake, too */
			too_much_inline(&d);
		ibv_wr_abort(d.x);
		nothing_is_there(&d);
	}
	ibv_wr_start(d.x);
	queue_writes(&d, DEPTH, 2);
	assert_int_equal(ibv_wr_complete(d.x), 0);
	for (int i = 0; i < DEPTH; i++)
		ends(&d, 2, IBV_WC_RDMA_WRITE);
	nothing_is_there(&d);
	desk_close(&d);
}

/* A call where none belongs does nothing, and so does an end without a beginning. */
static void nothing_without_a_beginning(void **state)
{
	struct desk d;

	(void)state;
	desk_open(&d, ALL_OPS);
	for (int i = 0; i < 2; i++) {
		ibv_wr_send(d.x);
		piece(&d, 0, 8);
		ibv_wr_set_inline_data(d.x, d.a.buf, 8);
		ibv_wr_abort(d.x);
		assert_int_equal(ibv_wr_complete(d.x), EINVAL);
		ibv_wr_start(d.x);
		piece(&d, 0, 8); /* of no request */
		ibv_wr_set_inline_data(d.x, d.a.buf, 8);
		assert_int_equal(ibv_wr_complete(d.x), 0);
		nothing_is_there(&d);
	}
	assert_int_equal(kit_post(&d.a, IBV_WR_RDMA_WRITE, 7, 0, 8, &d.b.card, 0), 0);
	ends(&d, 7, IBV_WC_RDMA_WRITE);
	desk_close(&d);
}

static void states_are_judged(void **state)
{
	struct kit_end a;
	struct ibv_qp_ex *x = kit_end_open_ex(&a, pd, DEPTH, SIZE, ALL_OPS);
	struct ibv_wc wc;

	(void)state;
	for (int i = 0; i < 3; i++) { /* INIT, RTR, RTS */
		ibv_wr_start(x);
		x->wr_id = 9;
		ibv_wr_send(x);
		if (i == 2) {
			ibv_wr_abort(x);
			break;
		}
		assert_int_equal(ibv_wr_complete(x), EINVAL);
		if (i)
			kit_to_rts(&a, 14, 7);
		else
			kit_to_rtr(&a, &a.card);
	}
	assert_int_equal(ibv_modify_qp(a.qp, &(struct ibv_qp_attr){.qp_state = IBV_QPS_ERR}, IBV_QP_STATE),
			 0);
	ibv_wr_start(x);
	ibv_wr_send(x);
	assert_int_equal(ibv_wr_complete(x), 0); /* rule 30 */
	wc = kit_wait(&a, 10);
	assert_int_equal(wc.status, IBV_WC_WR_FLUSH_ERR);
	assert_int_equal(wc.wr_id, 9);
	kit_end_close(&a);
}

/* rule 39; and the data's place is what its setter says, whatever the flags say */
static void flags_count(void **state)
{
	struct desk d;

	(void)state;
	desk_open(&d, ALL_OPS);
	for (int i = 0; i < 3; i++)
		assert_int_equal(kit_recv(&d.b, 100, WHERE, 64), 0);
	ibv_wr_start(d.x);
	d.x->wr_id = 1;
	d.x->wr_flags = 0;
	ibv_wr_send(d.x);
	piece(&d, 0, 8);
	d.x->wr_id = 2;
	d.x->wr_flags = IBV_SEND_SIGNALED | IBV_SEND_INLINE | IBV_SEND_SOLICITED | IBV_SEND_FENCE;
	ibv_wr_send(d.x);
	piece(&d, 0, 8);
	memcpy(d.a.buf, "late", 4);
	assert_int_equal(ibv_wr_complete(d.x), 0);
	comes(&d);
	comes(&d);
	assert_memory_equal(d.b.buf + WHERE, "late", 4);
	ends(&d, 2, IBV_WC_SEND);
	ibv_wr_start(d.x);
	ibv_wr_rdma_read(d.x, d.b.card.rkey, d.b.card.addr); /* with the flags of the SEND */
	piece(&d, 64, 8);
	assert_int_equal(ibv_wr_complete(d.x), 0);
	ends(&d, 2, IBV_WC_RDMA_READ);
	vb_qp(d.a.qp)->sq_sig_all = true;
	ibv_wr_start(d.x);
	d.x->wr_id = 3;
	d.x->wr_flags = 0;
	ibv_wr_send(d.x);
	assert_int_equal(ibv_wr_complete(d.x), 0);
	comes(&d);
	ends(&d, 3, IBV_WC_SEND);
	desk_close(&d);
}

static void *use_the_rest(void *arg)
{
	struct desk *d = arg;
	struct ibv_wc wc;

	CHECK(!kit_recv(&d->a, 2, 0, 64));
	CHECK(!kit_post(&d->b, IBV_WR_SEND, 3, 64, 64, NULL, 0));
	wc = kit_wait(&d->b, 10);
	CHECK(wc.wr_id == 3 && wc.status == IBV_WC_SUCCESS);
	wc = kit_wait(&d->a, 10);
	CHECK(wc.wr_id == 2 && wc.status == IBV_WC_SUCCESS);
	return NULL;
}

static void another_thread_polls_meanwhile(void **state)
{
	struct timespec end;
	pthread_t thread;
	struct desk d;

	(void)state;
	desk_open(&d, ALL_OPS);
	ibv_wr_start(d.x);
	queue_writes(&d, 1, 1);
	assert_int_equal(pthread_create(&thread, NULL, use_the_rest, &d), 0);
	clock_gettime(CLOCK_REALTIME, &end);
	end.tv_sec += 20;
	assert_int_equal(pthread_timedjoin_np(thread, NULL, &end), 0);
	queue_writes(&d, 1, 2);
	assert_int_equal(ibv_wr_complete(d.x), 0);
	ends(&d, 1, IBV_WC_RDMA_WRITE);
	ends(&d, 2, IBV_WC_RDMA_WRITE);
	desk_close(&d);
}

static void a_forked_child_has_none(void **state)
{
	struct desk d;
	pid_t pid;

	(void)state;
	desk_open(&d, ALL_OPS);
	ibv_wr_start(d.x); /* the lock is held for ever in the child */
	pid = kit_fork();
	if (!pid) {
		queue_writes(&d, 1, 1);
		CHECK(ibv_wr_complete(d.x) == EIO);
		ibv_wr_start(d.x);
		queue_writes(&d, 1, 1);
		CHECK(ibv_wr_complete(d.x) == EIO);
		ibv_wr_start(d.x);
		ibv_wr_abort(d.x);
		_exit(0);
	}
	queue_writes(&d, 1, 1);
	assert_int_equal(ibv_wr_complete(d.x), 0);
	ends(&d, 1, IBV_WC_RDMA_WRITE);
	assert_int_equal(kit_reap(pid), 0);
	desk_close(&d);
}

static void what_creation_refuses(void **state)
{
	struct ibv_cq *cq = ibv_create_cq(ctx, 4, NULL, NULL, 0);
	struct ibv_qp_init_attr_ex a = {.qp_type = IBV_QPT_RC,
					.pd = pd,
					.send_cq = cq,
					.recv_cq = cq,
					.comp_mask = IBV_QP_INIT_ATTR_PD | IBV_QP_INIT_ATTR_SEND_OPS_FLAGS};
	struct ibv_qp_init_attr basic = {.qp_type = IBV_QPT_RC, .send_cq = cq, .recv_cq = cq};
	struct ibv_qp *qp;

	(void)state;
	assert_non_null(cq);
	a.send_ops_flags = IBV_QP_EX_WITH_SEND | IBV_QP_EX_WITH_TSO;
	REFUSED(ibv_create_qp_ex(ctx, &a), EOPNOTSUPP);
	a.send_ops_flags = UINT64_C(1) << 40;
	REFUSED(ibv_create_qp_ex(ctx, &a), EOPNOTSUPP);
	a.send_ops_flags = IBV_QP_EX_WITH_SEND | IBV_QP_EX_WITH_RDMA_READ;
	a.qp_type = IBV_QPT_UC; /* what its type has not got */
	REFUSED(ibv_create_qp_ex(ctx, &a), EOPNOTSUPP);
	a.send_ops_flags = IBV_QP_EX_WITH_RDMA_WRITE;
	a.qp_type = IBV_QPT_UD;
	REFUSED(ibv_create_qp_ex(ctx, &a), EOPNOTSUPP);
	a.qp_type = IBV_QPT_RC;
	a.send_ops_flags = 0;
	for (uint32_t bit = IBV_QP_INIT_ATTR_MAX_TSO_HEADER; bit <= IBV_QP_INIT_ATTR_RX_HASH; bit *= 2) {
		a.comp_mask = IBV_QP_INIT_ATTR_PD | bit;
		REFUSED(ibv_create_qp_ex(ctx, &a), EOPNOTSUPP);
	}
	a.comp_mask = IBV_QP_INIT_ATTR_PD | IBV_QP_INIT_ATTR_CREATE_FLAGS;
	a.create_flags = IBV_QP_CREATE_SCATTER_FCS;
	REFUSED(ibv_create_qp_ex(ctx, &a), EOPNOTSUPP);
	a.create_flags = IBV_QP_CREATE_CVLAN_STRIPPING;
	REFUSED(ibv_create_qp_ex(ctx, &a), EOPNOTSUPP);
	a.create_flags = IBV_QP_CREATE_SOURCE_QPN;
	REFUSED(ibv_create_qp_ex(ctx, &a), EOPNOTSUPP);
	a.create_flags = IBV_QP_CREATE_BLOCK_SELF_MCAST_LB; /* of a datagram's */
	REFUSED(ibv_create_qp_ex(ctx, &a), EINVAL);
	a.comp_mask = IBV_QP_INIT_ATTR_SEND_OPS_FLAGS;
	REFUSED(ibv_create_qp_ex(ctx, &a), EINVAL);
	qp = ibv_create_qp(pd, &basic);
	assert_non_null(qp);
	REFUSED(ibv_qp_to_qp_ex(qp), EOPNOTSUPP);
	assert_int_equal(ibv_destroy_qp(qp), 0);
	assert_int_equal(ibv_destroy_cq(cq), 0);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
	    cmocka_unit_test(messages_arrive),
	    cmocka_unit_test(remote_memory_is_reached),
	    cmocka_unit_test(windows_are_bound_and_invalidated),
	    cmocka_unit_test(inline_data_is_copied_at_once),
	    cmocka_unit_test(a_mistake_is_told_at_the_end),
	    cmocka_unit_test(what_was_not_asked_for_fails),
	    cmocka_unit_test(abort_leaves_the_queue_as_before),
	    cmocka_unit_test(nothing_without_a_beginning),
	    cmocka_unit_test(states_are_judged),
	    cmocka_unit_test(flags_count),
	    cmocka_unit_test(another_thread_polls_meanwhile),
	    cmocka_unit_test(the_error_state_is_not_waited_for),
	    cmocka_unit_test(a_forked_child_has_none),
	    cmocka_unit_test(what_creation_refuses),
	};

	return cmocka_run_group_tests(tests, kit_device_open, kit_device_close);
}
