/* RC verbs within one process, over the link to oneself: every operation once, the rules of posting, and
 * numbers near the limits. */
#include <errno.h>
#include <poll.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "bytes.h"
#include "iba/limits.h"
#include "device.h"
#include "kit.h"

#define SIZE (1u << 20)
#define HALF (SIZE / 2)

static void pair(struct kit_end *a, struct kit_end *b, int depth)
{
	kit_end_open(a, pd, depth, SIZE);
	kit_end_open(b, pd, depth, SIZE);
	kit_connect(a, &b->card);
	kit_connect(b, &a->card);
}

static void unpair(struct kit_end *a, struct kit_end *b)
{
	kit_end_close(a);
	kit_end_close(b);
}

static struct ibv_wc good(struct kit_end *e, enum ibv_wc_opcode op, uint64_t wr_id)
{
	struct ibv_wc wc = kit_wait(e, 10);

	assert_int_equal(wc.status, IBV_WC_SUCCESS);
	assert_int_equal(wc.opcode, op);
	assert_int_equal(wc.wr_id, wr_id);
	assert_int_equal(wc.qp_num, e->qp->qp_num);
	return wc;
}

/* Nothing comes although there was time for it: a later operation on the same QP has completed. */
static void empty(struct kit_end *e)
{
	struct ibv_wc wc;

	assert_int_equal(ibv_poll_cq(e->cq, 1, &wc), 0);
}

static void every_operation(void **state)
{
	const uint32_t lengths[] = {0, 1, 8, 57, 1024, 1025, 70000, HALF};
	struct kit_end a, b;
	struct ibv_wc wc;
	uint64_t word = 41;

	(void)state;
	pair(&a, &b, 16);
	for (unsigned i = 0; i < sizeof(lengths) / sizeof(lengths[0]); i++) {
		uint32_t n = lengths[i];

		kit_fill(a.buf, n, i);
		memset(b.buf, 0xee, SIZE);
		assert_int_equal(kit_recv(&b, 1, 0, n), 0);
		assert_int_equal(kit_post(&a, IBV_WR_SEND, 2, 0, n, NULL, 0), 0);
		wc = good(&b, IBV_WC_RECV, 1);
		assert_int_equal(wc.byte_len, n);
		good(&a, IBV_WC_SEND, 2);
		assert_memory_equal(a.buf, b.buf, n);
		assert_int_equal(b.buf[n], 0xee);
		assert_int_equal(kit_post(&a, IBV_WR_RDMA_WRITE, 3, 0, n, &b.card, HALF), 0);
		good(&a, IBV_WC_RDMA_WRITE, 3);
		assert_memory_equal(a.buf, b.buf + HALF, n);
		assert_int_equal(kit_post(&a, IBV_WR_RDMA_READ, 4, HALF, n, &b.card, HALF), 0);
		good(&a, IBV_WC_RDMA_READ, 4);
		assert_memory_equal(a.buf, a.buf + HALF, n);
	}
	memcpy(b.buf, &word, 8);
	assert_int_equal(kit_post(&a, IBV_WR_ATOMIC_FETCH_AND_ADD, 5, 8, 8, &b.card, 0), 0);
	good(&a, IBV_WC_FETCH_ADD, 5);
	memcpy(&word, a.buf + 8, 8);
	assert_int_equal(word, 41);
	memcpy(&word, b.buf, 8);
	assert_int_equal(word, 42);
	unpair(&a, &b);
}

static int post_one(struct kit_end *e, struct ibv_send_wr *wr)
{
	struct ibv_send_wr *bad = NULL;
	int err = ibv_post_send(e->qp, wr, &bad);

	if (err)
		assert_ptr_equal(bad, wr);
	return err;
}

static void rule_25_immediate_and_swap(void **state)
{
	struct kit_end a, b;
	struct ibv_sge sge;
	struct ibv_send_wr wr = {.wr_id = 7,
				 .sg_list = &sge,
				 .num_sge = 1,
				 .send_flags = IBV_SEND_SIGNALED,
				 .imm_data = 0x01020304};
	struct ibv_wc wc;
	uint64_t v = 5;

	(void)state;
	pair(&a, &b, 4);
	sge = (struct ibv_sge){a.card.addr, 100, a.mr->lkey};
	assert_int_equal(kit_recv(&b, 1, 0, 100), 0);
	wr.opcode = IBV_WR_SEND_WITH_IMM;
	assert_int_equal(post_one(&a, &wr), 0);
	wc = good(&b, IBV_WC_RECV, 1);
	assert_true(wc.wc_flags & IBV_WC_WITH_IMM);
	assert_int_equal(wc.imm_data, 0x01020304);
	good(&a, IBV_WC_SEND, 7);
	assert_int_equal(kit_recv(&b, 2, 0, 0), 0);
	wr.opcode = IBV_WR_RDMA_WRITE_WITH_IMM;
	wr.wr.rdma.remote_addr = b.card.addr;
	wr.wr.rdma.rkey = b.card.rkey;
	assert_int_equal(post_one(&a, &wr), 0);
	wc = good(&b, IBV_WC_RECV_RDMA_WITH_IMM, 2);
	assert_int_equal(wc.byte_len, 100);
	good(&a, IBV_WC_RDMA_WRITE, 7);
	memcpy(b.buf, &v, 8);
	sge.length = 8;
	wr.opcode = IBV_WR_ATOMIC_CMP_AND_SWP;
	wr.wr.atomic.remote_addr = b.card.addr;
	wr.wr.atomic.rkey = b.card.rkey;
	wr.wr.atomic.compare_add = 5;
	wr.wr.atomic.swap = 77;
	assert_int_equal(post_one(&a, &wr), 0);
	good(&a, IBV_WC_COMP_SWAP, 7);
	memcpy(&v, b.buf, 8);
	assert_int_equal(v, 77);
	memcpy(&v, a.buf, 8);
	assert_int_equal(v, 5);
	unpair(&a, &b);
}

static void rule_11_bad_requests(void **state)
{
	const unsigned unknown[] = {IBV_WR_TSO, IBV_WR_DRIVER1, 14, 16, 255, 1u << 31};
	struct kit_end a, b;
	struct ibv_sge sge[3];
	struct ibv_send_wr wr = {.sg_list = sge, .num_sge = 1, .opcode = IBV_WR_SEND};

	(void)state;
	pair(&a, &b, 4);
	for (int i = 0; i < 3; i++)
		sge[i] = (struct ibv_sge){a.card.addr, 8, a.mr->lkey};
	for (unsigned i = 0; i < sizeof(unknown) / sizeof(unknown[0]); i++) {
		wr.opcode = (enum ibv_wr_opcode)unknown[i];
		assert_int_equal(post_one(&a, &wr), EINVAL);
	}
	wr.opcode = IBV_WR_BIND_MW; /* of no window */
	assert_int_equal(post_one(&a, &wr), EINVAL);
	wr.opcode = IBV_WR_SEND;
	wr.num_sge = 3; /* made for 2 */
	assert_int_equal(post_one(&a, &wr), EINVAL);
	wr.num_sge = -1;
	assert_int_equal(post_one(&a, &wr), EINVAL);
	wr.num_sge = INT32_MAX; /* nobody looks at a list that is too long */
	wr.sg_list = NULL;
	assert_int_equal(post_one(&a, &wr), EINVAL);
	wr.sg_list = sge;
	wr.num_sge = 2;
	sge[0].length = 1u << 31; /* the longest message, and a byte too many */
	sge[1].length = 1;
	assert_int_equal(post_one(&a, &wr), EINVAL);
	/* none of these took a slot */
	for (int i = 0; i < 4; i++)
		assert_int_equal(kit_recv(&b, (uint64_t)i, 0, 8), 0);
	for (int i = 0; i < 4; i++)
		assert_int_equal(kit_post(&a, IBV_WR_SEND, (uint64_t)i, 0, 8, NULL, 0), 0);
	for (int i = 0; i < 4; i++)
		good(&a, IBV_WC_SEND, (uint64_t)i);
	unpair(&a, &b);
}

/* The list stops at the first bad request; those before it are carried out. */
static void rule_11_list_stops_at_the_bad_one(void **state)
{
	struct kit_end a, b;
	struct ibv_sge sge;
	struct ibv_send_wr wr[3] = {{.wr_id = 0}}, *bad = NULL;
	struct ibv_recv_wr rwr[3] = {{.wr_id = 0}}, *rbad = NULL;

	(void)state;
	pair(&a, &b, 4);
	sge = (struct ibv_sge){a.card.addr, 8, a.mr->lkey};
	for (int i = 0; i < 3; i++) {
		wr[i] = (struct ibv_send_wr){.wr_id = (uint64_t)i,
					     .sg_list = &sge,
					     .num_sge = 1,
					     .opcode = i == 1 ? IBV_WR_TSO : IBV_WR_SEND,
					     .send_flags = IBV_SEND_SIGNALED,
					     .next = i < 2 ? &wr[i + 1] : NULL};
		rwr[i] = (struct ibv_recv_wr){.wr_id = 10 + (uint64_t)i,
					      .sg_list = &sge,
					      .num_sge = i == 1 ? 3 : 1,
					      .next = i < 2 ? &rwr[i + 1] : NULL};
	}
	assert_int_equal(ibv_post_recv(b.qp, rwr, &rbad), EINVAL);
	assert_ptr_equal(rbad, &rwr[1]);
	assert_int_equal(ibv_post_send(a.qp, wr, &bad), EINVAL);
	assert_ptr_equal(bad, &wr[1]);
	/* What stands behind the bad request was not posted: later requests are the next ones. */
	assert_int_equal(kit_recv(&b, 20, 0, 8), 0);
	assert_int_equal(kit_post(&a, IBV_WR_SEND, 5, 0, 8, NULL, 0), 0);
	good(&b, IBV_WC_RECV, 10);
	good(&b, IBV_WC_RECV, 20);
	good(&a, IBV_WC_SEND, 0);
	good(&a, IBV_WC_SEND, 5);
	empty(&a);
	unpair(&a, &b);
}

/* The queue is full until a completion that frees slots is polled, however long ago it was carried out. */
static void rule_11_overflow_is_enomem(void **state)
{
	struct kit_end a, b;

	(void)state;
	pair(&a, &b, 4);
	for (int i = 0; i < 4; i++)
		assert_int_equal(kit_post(&a, IBV_WR_RDMA_WRITE, (uint64_t)i, 0, 8, &b.card, 0), 0);
	assert_int_equal(kit_post(&a, IBV_WR_RDMA_WRITE, 4, 0, 8, &b.card, 0), ENOMEM);
	good(&a, IBV_WC_RDMA_WRITE, 0);
	assert_int_equal(kit_post(&a, IBV_WR_RDMA_WRITE, 4, 0, 8, &b.card, 0), 0);
	assert_int_equal(kit_post(&a, IBV_WR_RDMA_WRITE, 5, 0, 8, &b.card, 0), ENOMEM);
	for (int i = 0; i < 4; i++)
		assert_int_equal(kit_recv(&b, 9, 0, 8), 0);
	assert_int_equal(kit_recv(&b, 9, 0, 8), ENOMEM);
	unpair(&a, &b);
}

/* The list is posted as far as there is room, and the first request without room is the bad one. */
static void rule_11_list_longer_than_the_queue(void **state)
{
	struct ibv_recv_wr rwr[6], *rbad = NULL;
	struct ibv_send_wr wr[6], *bad = NULL;
	struct kit_end a, b;

	(void)state;
	pair(&a, &b, 4);
	for (int i = 0; i < 6; i++) {
		rwr[i] = (struct ibv_recv_wr){.wr_id = 10 + (uint64_t)i, .next = i < 5 ? &rwr[i + 1] : NULL};
		wr[i] = (struct ibv_send_wr){.wr_id = 20 + (uint64_t)i,
					     .opcode = IBV_WR_SEND,
					     .send_flags = IBV_SEND_SIGNALED,
					     .next = i < 5 ? &wr[i + 1] : NULL};
	}
	assert_int_equal(ibv_post_recv(b.qp, rwr, &rbad), ENOMEM);
	assert_ptr_equal(rbad, &rwr[4]);
	assert_int_equal(ibv_post_send(a.qp, wr, &bad), ENOMEM);
	assert_ptr_equal(bad, &wr[4]);
	for (uint64_t i = 0; i < 4; i++) {
		good(&b, IBV_WC_RECV, 10 + i);
		good(&a, IBV_WC_SEND, 20 + i);
	}
	assert_int_equal(ibv_post_recv(b.qp, rbad, &rbad), 0); /* the rest of it, as the page says */
	assert_int_equal(ibv_post_send(a.qp, bad, &bad), 0);
	for (uint64_t i = 4; i < 6; i++) {
		good(&b, IBV_WC_RECV, 10 + i);
		good(&a, IBV_WC_SEND, 20 + i);
	}
	unpair(&a, &b);
}

static void rule_39_unsignaled(void **state)
{
	struct kit_end a, b;
	struct ibv_sge sge;
	struct ibv_send_wr wr = {.sg_list = &sge, .num_sge = 1, .opcode = IBV_WR_RDMA_WRITE};
	struct ibv_wc wc;

	(void)state;
	pair(&a, &b, 4);
	sge = (struct ibv_sge){a.card.addr, 8, a.mr->lkey};
	wr.wr.rdma.remote_addr = b.card.addr;
	wr.wr.rdma.rkey = b.card.rkey;
	for (int round = 0; round < 3; round++) {
		for (int i = 0; i < 3; i++)
			assert_int_equal(post_one(&a, &wr), 0);
		assert_int_equal(kit_post(&a, IBV_WR_RDMA_WRITE, 8, 0, 8, &b.card, 0), 0);
		assert_int_equal(post_one(&a, &wr), ENOMEM);
		good(&a, IBV_WC_RDMA_WRITE, 8); /* gives the unsignaled ones' slots back too */
		empty(&a);
	}
	wr.wr_id = 99;
	wr.wr.rdma.rkey ^= 1; /* an error is always told */
	assert_int_equal(post_one(&a, &wr), 0);
	wc = kit_wait(&a, 10);
	assert_int_equal(wc.status, IBV_WC_REM_ACCESS_ERR);
	assert_int_equal(wc.wr_id, 99);
	unpair(&a, &b);
}

static void rule_39_sq_sig_all(void **state)
{
	struct kit_end a, b;
	struct ibv_sge sge;
	struct ibv_send_wr wr = {.wr_id = 3, .sg_list = &sge, .num_sge = 1, .opcode = IBV_WR_RDMA_WRITE};
	struct ibv_qp_init_attr qa = {
	    .qp_type = IBV_QPT_RC, .sq_sig_all = 1, .cap = {.max_send_wr = 4, .max_send_sge = 1}};
	struct ibv_qp_attr init = {.qp_state = IBV_QPS_INIT, .port_num = 1, .qp_access_flags = KIT_ALL};

	(void)state;
	kit_end_open(&a, pd, 4, SIZE);
	kit_end_open(&b, pd, 4, SIZE);
	assert_int_equal(ibv_destroy_qp(a.qp), 0);
	qa.send_cq = qa.recv_cq = a.cq;
	a.qp = ibv_create_qp(pd, &qa); /* without a receive queue, too */
	assert_non_null(a.qp);
	assert_int_equal(
	    ibv_modify_qp(a.qp, &init, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS),
	    0);
	a.card.qpn = a.qp->qp_num;
	kit_connect(&a, &b.card);
	kit_connect(&b, &a.card);
	assert_int_equal(kit_recv(&a, 1, 0, 8), EINVAL); /* no SGE fits */
	sge = (struct ibv_sge){a.card.addr, 8, a.mr->lkey};
	wr.wr.rdma.remote_addr = b.card.addr;
	wr.wr.rdma.rkey = b.card.rkey;
	assert_int_equal(post_one(&a, &wr), 0);
	good(&a, IBV_WC_RDMA_WRITE, 3);
	unpair(&a, &b);
}

static void rule_40_inline(void **state)
{
	struct kit_end a, b;
	uint8_t data[128];
	struct ibv_sge sge[2] = {{(uintptr_t)data, 40, 0xdead}, {(uintptr_t)data + 64, 24, 0xbeef}};
	struct ibv_send_wr wr = {.wr_id = 1,
				 .sg_list = sge,
				 .num_sge = 2,
				 .opcode = IBV_WR_SEND,
				 .send_flags = IBV_SEND_INLINE | IBV_SEND_SIGNALED};

	(void)state;
	pair(&a, &b, 4);
	kit_fill(data, sizeof(data), 9);
	assert_int_equal(kit_recv(&b, 2, 0, 64), 0);
	assert_int_equal(post_one(&a, &wr), 0); /* keys are not looked at */
	memset(data, 0, sizeof(data));		/* and the data was taken at the post */
	good(&b, IBV_WC_RECV, 2);
	kit_fill(data, sizeof(data), 9);
	assert_memory_equal(b.buf, data, 40);
	assert_memory_equal(b.buf + 40, data + 64, 24);
	sge[0].length = 41; /* 65 bytes, made for 64 */
	assert_int_equal(post_one(&a, &wr), EINVAL);
	sge[0].length = 8;
	wr.num_sge = 1;
	wr.opcode = IBV_WR_RDMA_READ;
	assert_int_equal(post_one(&a, &wr), EINVAL);
	wr.opcode = IBV_WR_ATOMIC_FETCH_AND_ADD;
	assert_int_equal(post_one(&a, &wr), EINVAL);
	unpair(&a, &b);
}

/* A queue for lists without pieces takes no piece, inline or not, whichever way a post goes. */
static void rule_11_a_queue_for_no_piece(void **state)
{
	struct ibv_qp_init_attr qa = {.qp_type = IBV_QPT_RC,
				      .cap = {.max_send_wr = 4, .max_inline_data = 64}};
	struct ibv_qp_attr init = {.qp_state = IBV_QPS_INIT, .port_num = 1, .qp_access_flags = KIT_ALL};
	struct ibv_send_wr wr = {
	    .wr_id = 1, .opcode = IBV_WR_SEND, .send_flags = IBV_SEND_INLINE | IBV_SEND_SIGNALED};
	struct kit_end a, b;
	struct ibv_sge sge;

	(void)state;
	kit_end_open(&a, pd, 4, SIZE);
	kit_end_open(&b, pd, 4, SIZE);
	assert_int_equal(ibv_destroy_qp(a.qp), 0);
	qa.send_cq = qa.recv_cq = a.cq;
	a.qp = ibv_create_qp(pd, &qa);
	assert_non_null(a.qp);
	assert_int_equal(qa.cap.max_send_sge, 0);
	assert_int_equal(
	    ibv_modify_qp(a.qp, &init, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS),
	    0);
	a.card.qpn = a.qp->qp_num;
	kit_connect(&a, &b.card);
	kit_connect(&b, &a.card);
	assert_int_equal(kit_recv(&b, 2, 0, 8), 0);
	assert_int_equal(post_one(&a, &wr), 0); /* with it there is a way, and a timer */
	good(&b, IBV_WC_RECV, 2);
	good(&a, IBV_WC_SEND, 1);
	sge = (struct ibv_sge){a.card.addr, 8, a.mr->lkey};
	wr.sg_list = &sge;
	wr.num_sge = 1;
	assert_int_equal(post_one(&a, &wr), EINVAL);
	wr.send_flags = IBV_SEND_SIGNALED;
	assert_int_equal(post_one(&a, &wr), EINVAL);
	unpair(&a, &b);
}

static void rule_30_states_of_posting(void **state)
{
	struct ibv_qp_init_attr qa = {
	    .qp_type = IBV_QPT_RC,
	    .cap = {.max_send_wr = 4, .max_recv_wr = 4, .max_send_sge = 1, .max_recv_sge = 1}};
	struct ibv_qp_attr attr = {.qp_state = IBV_QPS_ERR};
	struct kit_end a, b, fresh;
	struct ibv_wc wc;

	(void)state;
	pair(&a, &b, 4);
	fresh = a;
	qa.send_cq = qa.recv_cq = a.cq;
	fresh.qp = ibv_create_qp(pd, &qa);
	assert_int_equal(kit_post(&fresh, IBV_WR_SEND, 1, 0, 8, NULL, 0), EINVAL); /* RESET */
	assert_int_equal(kit_recv(&fresh, 1, 0, 8), EINVAL);
	assert_int_equal(ibv_destroy_qp(fresh.qp), 0);
	assert_int_equal(kit_recv(&a, 1, 0, 8), 0);
	assert_int_equal(kit_recv(&a, 2, 0, 8), 0);
	assert_int_equal(ibv_modify_qp(a.qp, &attr, IBV_QP_STATE), 0);
	assert_int_equal(kit_recv(&a, 3, 0, 8), 0);
	assert_int_equal(kit_post(&a, IBV_WR_RDMA_WRITE, 4, 0, 8, &b.card, 0), 0);
	for (uint64_t i = 1; i <= 4; i++) {
		wc = kit_wait(&a, 10);
		assert_int_equal(wc.status, IBV_WC_WR_FLUSH_ERR);
		assert_int_equal(wc.wr_id, i);
		assert_int_equal(wc.qp_num, a.qp->qp_num);
	}
	unpair(&a, &b);
	kit_end_open(&a, pd, 4, SIZE); /* INIT takes receives and no sends */
	assert_int_equal(kit_recv(&a, 1, 0, 8), 0);
	assert_int_equal(kit_post(&a, IBV_WR_SEND, 1, 0, 8, NULL, 0), EINVAL);
	kit_end_close(&a);
}

/* In SQD requests wait, and go on in RTS. */
static void requests_wait_in_sqd(void **state)
{
	struct ibv_qp_attr attr = {.qp_state = IBV_QPS_SQD};
	struct kit_end a, b;

	(void)state;
	pair(&a, &b, 4);
	assert_int_equal(ibv_modify_qp(a.qp, &attr, IBV_QP_STATE), 0);
	kit_fill(a.buf, 8, 1);
	assert_int_equal(kit_post(&a, IBV_WR_RDMA_WRITE, 1, 0, 8, &b.card, 0), 0);
	/* the other direction still works, and shows that there was time */
	assert_int_equal(kit_post(&b, IBV_WR_RDMA_WRITE, 2, 64, 8, &a.card, 64), 0);
	good(&b, IBV_WC_RDMA_WRITE, 2);
	empty(&a);
	assert_int_equal(b.buf[7], 0);
	attr.qp_state = IBV_QPS_RTS;
	assert_int_equal(ibv_modify_qp(a.qp, &attr, IBV_QP_STATE), 0);
	good(&a, IBV_WC_RDMA_WRITE, 1);
	assert_memory_equal(a.buf, b.buf, 8);
	unpair(&a, &b);
}

static void to_state(struct ibv_qp *qp, enum ibv_qp_state to)
{
	struct ibv_qp_attr attr = {.qp_state = to, .port_num = 1};
	int init = to == IBV_QPS_INIT ? IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS : 0;

	assert_int_equal(ibv_modify_qp(qp, &attr, IBV_QP_STATE | init), 0);
}

/* In RESET every receive is refused, so the refusal counts in the states in which others are taken. */
static void rule_34_srq_takes_the_receives(void **state)
{
	static const enum ibv_qp_state states[] = {IBV_QPS_RESET, IBV_QPS_INIT, IBV_QPS_RTS, IBV_QPS_SQD,
						   IBV_QPS_ERR};
	struct ibv_srq_init_attr sa = {.attr = {.max_wr = 4, .max_sge = 1}};
	struct ibv_srq *srq = ibv_create_srq(pd, &sa);
	struct ibv_cq *cq = ibv_create_cq(ctx, 4, NULL, NULL, 0);
	struct ibv_qp_init_attr qa = {.qp_type = IBV_QPT_RC,
				      .srq = srq,
				      .send_cq = cq,
				      .recv_cq = cq,
				      .cap = {.max_recv_wr = 1u << 30, .max_recv_sge = 1u << 30}};
	struct ibv_recv_wr wr = {.wr_id = 1}, *bad;
	struct kit_end a, e = {.cq = cq};

	(void)state;
	kit_end_open(&a, pd, 4, 4096);
	e.qp = ibv_create_qp(pd, &qa); /* what it says of a receive queue does not count */
	assert_non_null(e.qp);
	e.card = (struct kit_card){.gid = a.card.gid, .qpn = e.qp->qp_num, .psn = 5};
	for (unsigned i = 0; i < sizeof states / sizeof states[0]; i++) {
		if (states[i] == IBV_QPS_RTS) {
			kit_connect(&a, &e.card);
			kit_connect(&e, &a.card);
		} else {
			to_state(e.qp, states[i]);
		}
		bad = NULL;
		assert_int_equal(ibv_post_recv(e.qp, &wr, &bad), EINVAL);
		assert_ptr_equal(bad, &wr);
		if (states[i] != IBV_QPS_RTS)
			continue;
		/* the SRQ is where they go, and of those that were refused none is there */
		wr.wr_id = 2;
		assert_int_equal(ibv_post_srq_recv(srq, &wr, &bad), 0);
		assert_int_equal(kit_post(&a, IBV_WR_SEND, 3, 0, 0, NULL, 0), 0);
		good(&e, IBV_WC_RECV, 2);
		good(&a, IBV_WC_SEND, 3);
	}
	empty(&e);
	assert_int_equal(ibv_destroy_qp(e.qp), 0);
	assert_int_equal(ibv_destroy_srq(srq), 0);
	assert_int_equal(ibv_destroy_cq(cq), 0);
	kit_end_close(&a);
}

/* rule 13: a list is checked whole before its first byte moves, and where an atomic's result goes before it
 * is carried out. */
static void rule_13_nothing_moves_before_all_is_checked(void **state)
{
	static const enum ibv_wr_opcode ops[] = {IBV_WR_RDMA_WRITE, IBV_WR_RDMA_READ,
						 IBV_WR_ATOMIC_FETCH_AND_ADD, IBV_WR_ATOMIC_CMP_AND_SWP};

	(void)state;
	for (unsigned i = 0; i < sizeof ops / sizeof ops[0]; i++) {
		struct kit_end a, b;
		struct ibv_sge sge[2];
		struct ibv_send_wr wr = {
		    .wr_id = 1, .sg_list = sge, .num_sge = i < 2 ? 2 : 1, .opcode = ops[i]};

		pair(&a, &b, 4);
		sge[0] = (struct ibv_sge){a.card.addr, 8, a.mr->lkey ^ (i < 2 ? 0 : 1)};
		sge[1] = (struct ibv_sge){a.card.addr + 8, 8, a.mr->lkey ^ 1};
		memset(i == 1 ? b.buf : a.buf, 0x44, 16);
		if (i < 2) {
			wr.wr.rdma.remote_addr = b.card.addr;
			wr.wr.rdma.rkey = b.card.rkey;
		} else {
			wr.wr.atomic.remote_addr = b.card.addr;
			wr.wr.atomic.rkey = b.card.rkey;
			wr.wr.atomic.compare_add = i == 2;
			wr.wr.atomic.swap = 5;
		}
		assert_int_equal(post_one(&a, &wr), 0);
		assert_int_equal(kit_wait(&a, 10).status, IBV_WC_LOC_PROT_ERR);
		for (int k = 0; k < 16; k++)
			assert_int_equal(i == 1 ? a.buf[k] : b.buf[k], 0);
		unpair(&a, &b);
	}
}

/* The address of a connection is returned as it was given, but for the hop limit, which Linux takes from the
 * route. */
static void the_address_is_returned(void **state)
{
	struct ibv_qp_attr got,
	    to_rtr = {.qp_state = IBV_QPS_RTR,
		      .path_mtu = IBV_MTU_1024,
		      .min_rnr_timer = 1,
		      .ah_attr = {.is_global = 1,
				  .port_num = 1,
				  .sl = 5,
				  .static_rate = IBV_RATE_10_GBPS,
				  .src_path_bits = 1,
				  .grh = {.flow_label = 0xfedcb, .hop_limit = 3, .traffic_class = 0xa5}}};
	struct ibv_qp_init_attr is;
	struct kit_end a;

	(void)state;
	kit_end_open(&a, pd, 4, 4096);
	to_rtr.dest_qp_num = a.card.qpn;
	to_rtr.ah_attr.grh.dgid = a.card.gid;
	assert_int_equal(ibv_modify_qp(a.qp, &to_rtr,
				       IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN |
					   IBV_QP_RQ_PSN | IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER),
			 0);
	assert_int_equal(ibv_query_qp(a.qp, &got, IBV_QP_AV, &is), 0);
	assert_int_equal(got.ah_attr.grh.hop_limit, 64);
	to_rtr.ah_attr.grh.hop_limit = 64;
	assert_memory_equal(&got.ah_attr, &to_rtr.ah_attr, sizeof(got.ah_attr));
	kit_end_close(&a);
}

/* What comes first in RTR is an event, also where the data needs no packet. */
static void the_first_request_in_rtr_is_told(void **state)
{
	struct ibv_qp_attr to_rtr = {.qp_state = IBV_QPS_RTR,
				     .path_mtu = IBV_MTU_1024,
				     .max_dest_rd_atomic = 4,
				     .min_rnr_timer = 1,
				     .ah_attr = {.is_global = 1, .port_num = 1}};
	struct pollfd f = {.fd = ctx->async_fd, .events = POLLIN};
	struct ibv_async_event ev;
	struct kit_end a, b;

	(void)state;
	kit_end_open(&a, pd, 4, 4096);
	kit_end_open(&b, pd, 4, 4096);
	to_rtr.dest_qp_num = a.card.qpn;
	to_rtr.rq_psn = a.card.psn;
	to_rtr.ah_attr.grh.dgid = a.card.gid;
	assert_int_equal(ibv_modify_qp(b.qp, &to_rtr,
				       IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN |
					   IBV_QP_RQ_PSN | IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER),
			 0);
	assert_int_equal(kit_post(&b, IBV_WR_SEND, 2, 0, 8, NULL, 0), EINVAL); /* not in RTS yet */
	kit_connect(&a, &b.card);
	assert_int_equal(kit_post(&a, IBV_WR_RDMA_WRITE, 1, 0, 8, &b.card, 0), 0);
	good(&a, IBV_WC_RDMA_WRITE, 1);
	assert_int_equal(poll(&f, 1, 10000), 1);
	assert_int_equal(ibv_get_async_event(ctx, &ev), 0);
	assert_int_equal(ev.event_type, IBV_EVENT_COMM_EST);
	assert_ptr_equal(ev.element.qp, b.qp);
	ibv_ack_async_event(&ev);
	unpair(&a, &b);
}

/* A QP that goes through RESET starts a new life: nothing of the old one is polled. */
static void a_reset_qp_connects_again(void **state)
{
	struct ibv_qp_attr attr = {.qp_state = IBV_QPS_RESET};
	struct ibv_qp_attr init = {.qp_state = IBV_QPS_INIT, .port_num = 1, .qp_access_flags = KIT_ALL};
	struct kit_end a, b;

	(void)state;
	pair(&a, &b, 4);
	for (int life = 0; life < 3; life++) {
		assert_int_equal(kit_recv(&b, 1, 0, 8), 0);
		assert_int_equal(kit_recv(&b, 2, 0, 8), 0);
		assert_int_equal(kit_post(&a, IBV_WR_SEND, 3, 0, 8, NULL, 0), 0);
		good(&b, IBV_WC_RECV, 1);
		/* its completion is not polled */
		for (int i = 0; i < 2; i++) {
			struct ibv_qp *qp = i ? b.qp : a.qp;

			assert_int_equal(ibv_modify_qp(qp, &attr, IBV_QP_STATE), 0);
			assert_int_equal(ibv_modify_qp(qp, &init,
						       IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT |
							   IBV_QP_ACCESS_FLAGS),
					 0);
		}
		empty(&a);
		empty(&b);
		kit_connect(&a, &b.card);
		kit_connect(&b, &a.card);
	}
	unpair(&a, &b);
}

static void the_largest_qp(void **state)
{
	struct ibv_cq *cq = ibv_create_cq(ctx, 1 << 16, NULL, NULL, 0);
	struct ibv_qp_init_attr qa = {.qp_type = IBV_QPT_RC,
				      .send_cq = cq,
				      .recv_cq = cq,
				      .cap = {.max_send_wr = VB_MAX_QP_WR,
					      .max_recv_wr = VB_MAX_QP_WR,
					      .max_send_sge = VB_MAX_SGE,
					      .max_recv_sge = VB_MAX_SGE,
					      .max_inline_data = VB_MAX_INLINE}};
	struct kit_end e = {.cq = cq};
	struct ibv_sge sge[VB_MAX_SGE];
	struct ibv_send_wr wr = {.sg_list = sge, .num_sge = VB_MAX_SGE, .opcode = IBV_WR_RDMA_WRITE};
	struct ibv_recv_wr rwr = {.num_sge = 0}, *rbad;
	struct ibv_qp_attr init = {.qp_state = IBV_QPS_INIT, .port_num = 1, .qp_access_flags = KIT_ALL};

	(void)state;
	e.qp = ibv_create_qp(pd, &qa);
	assert_non_null(e.qp);
	e.buf = calloc(1, SIZE);
	e.mr = ibv_reg_mr(pd, e.buf, SIZE, KIT_ALL);
	e.card = (struct kit_card){.qpn = e.qp->qp_num, .rkey = e.mr->rkey, .addr = (uintptr_t)e.buf};
	assert_int_equal(ibv_query_gid(ctx, 1, 0, &e.card.gid), 0);
	assert_int_equal(
	    ibv_modify_qp(e.qp, &init, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS),
	    0);
	kit_connect(&e, &e.card); /* with itself */
	for (int i = 0; i < VB_MAX_QP_WR; i++)
		assert_int_equal(ibv_post_recv(e.qp, &rwr, &rbad), 0);
	assert_int_equal(ibv_post_recv(e.qp, &rwr, &rbad), ENOMEM);
	for (uint32_t i = 0; i < VB_MAX_SGE; i++) {
		sge[i] = (struct ibv_sge){e.card.addr + i * 100, 16, e.mr->lkey};
		kit_fill(e.buf + i * 100, 16, i);
	}
	wr.wr.rdma.remote_addr = e.card.addr + HALF;
	wr.wr.rdma.rkey = e.card.rkey;
	for (int i = 0; i < VB_MAX_QP_WR; i++) {
		wr.wr_id = (uint64_t)i;
		wr.send_flags = i == VB_MAX_QP_WR - 1 ? IBV_SEND_SIGNALED | IBV_SEND_INLINE : 0;
		assert_int_equal(post_one(&e, &wr), 0); /* the last: 512 bytes inline, from 32 places */
	}
	assert_int_equal(post_one(&e, &wr), ENOMEM);
	good(&e, IBV_WC_RDMA_WRITE, VB_MAX_QP_WR - 1);
	for (uint32_t i = 0; i < VB_MAX_SGE; i++)
		assert_memory_equal(e.buf + HALF + i * 16, e.buf + i * 100, 16);
	assert_int_equal(post_one(&e, &wr), 0);
	kit_end_close(&e);
}

/* More QPs than one adapter number has indices. */
static void five_thousand_qps(void **state)
{
	enum { N = 5000 };
	struct ibv_cq *cq = ibv_create_cq(ctx, 16, NULL, NULL, 0);
	struct ibv_qp_init_attr qa = {
	    .qp_type = IBV_QPT_RC,
	    .send_cq = cq,
	    .recv_cq = cq,
	    .cap = {.max_send_wr = 2, .max_recv_wr = 2, .max_send_sge = 1, .max_recv_sge = 1}};
	struct ibv_qp **qps = calloc(N, sizeof(struct ibv_qp *));
	struct kit_end first, last;
	uint8_t *seen = calloc(1 << 24, 1);

	(void)state;
	for (int i = 0; i < N; i++) {
		qps[i] = ibv_create_qp(pd, &qa);
		assert_non_null(qps[i]);
		assert_int_equal(seen[qps[i]->qp_num]++, 0);
	}
	assert_int_not_equal(qps[0]->qp_num >> 12, qps[N - 1]->qp_num >> 12);
	pair(&first, &last, 4); /* these have the second number and work */
	assert_int_equal(kit_recv(&last, 1, 0, 8), 0);
	assert_int_equal(kit_post(&first, IBV_WR_SEND, 2, 0, 8, NULL, 0), 0);
	good(&last, IBV_WC_RECV, 1);
	good(&first, IBV_WC_SEND, 2);
	unpair(&first, &last);
	for (int i = 0; i < N; i++)
		assert_int_equal(ibv_destroy_qp(qps[i]), 0);
	assert_int_equal(ibv_destroy_cq(cq), 0);
	free(seen);
	free(qps);
}

static void rule_44_a_hundred_thousand_regions(void **state)
{
	enum { N = 100000 };
	struct ibv_mr **mr = calloc(N, sizeof(struct ibv_mr *));
	struct kit_end a, b;
	uint32_t stale;

	(void)state;
	pair(&a, &b, 4);
	for (int i = 0; i < N; i++) {
		mr[i] = ibv_reg_mr(pd, b.buf + i % 1000, 8, KIT_ALL);
		assert_non_null(mr[i]);
		assert_int_not_equal(mr[i]->lkey, mr[i]->rkey);
	}
	/* the last one reaches what it says */
	kit_fill(a.buf, 8, 3);
	b.card.rkey = mr[N - 1]->rkey;
	b.card.addr = (uintptr_t)mr[N - 1]->addr;
	assert_int_equal(kit_post(&a, IBV_WR_RDMA_WRITE, 1, 0, 8, &b.card, 0), 0);
	good(&a, IBV_WC_RDMA_WRITE, 1);
	assert_memory_equal(a.buf, mr[N - 1]->addr, 8);
	stale = mr[N - 1]->rkey;
	for (int i = 0; i < N; i++)
		assert_int_equal(ibv_dereg_mr(mr[i]), 0);
	b.card.rkey = stale;
	assert_int_equal(kit_post(&a, IBV_WR_RDMA_WRITE, 2, 0, 8, &b.card, 0), 0);
	assert_int_equal(kit_wait(&a, 10).status, IBV_WC_REM_ACCESS_ERR);
	free(mr);
	unpair(&a, &b);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
	    cmocka_unit_test(every_operation),
	    cmocka_unit_test(rule_25_immediate_and_swap),
	    cmocka_unit_test(rule_11_bad_requests),
	    cmocka_unit_test(rule_11_list_stops_at_the_bad_one),
	    cmocka_unit_test(rule_11_overflow_is_enomem),
	    cmocka_unit_test(rule_11_list_longer_than_the_queue),
	    cmocka_unit_test(rule_39_unsignaled),
	    cmocka_unit_test(rule_39_sq_sig_all),
	    cmocka_unit_test(rule_40_inline),
	    cmocka_unit_test(rule_11_a_queue_for_no_piece),
	    cmocka_unit_test(rule_30_states_of_posting),
	    cmocka_unit_test(requests_wait_in_sqd),
	    cmocka_unit_test(rule_34_srq_takes_the_receives),
	    cmocka_unit_test(rule_13_nothing_moves_before_all_is_checked),
	    cmocka_unit_test(the_address_is_returned),
	    cmocka_unit_test(the_first_request_in_rtr_is_told),
	    cmocka_unit_test(a_reset_qp_connects_again),
	    cmocka_unit_test(the_largest_qp),
	    cmocka_unit_test(five_thousand_qps),
	    cmocka_unit_test(rule_44_a_hundred_thousand_regions),
	};

	return cmocka_run_group_tests(tests, kit_device_open, kit_device_close);
}
