/* Completion counters between two processes: requests and bytes of each kind, at both ends, whether they are
 * signalled or not, placed directly or not; what fails, and what is flushed; and a program that waits for
 * nothing but a count. */
#include "pair.h"

enum { OPS = 6, SIZE = 4096, LONG = 100000, ALONE = 20, ALL = ALONE * SIZE };
enum {
	SEND = IBV_QP_ATTACH_COMP_CNTR_OP_SEND,
	RECV = IBV_QP_ATTACH_COMP_CNTR_OP_RECV,
	READ = IBV_QP_ATTACH_COMP_CNTR_OP_RDMA_READ,
	REMOTE_READ = IBV_QP_ATTACH_COMP_CNTR_OP_REMOTE_RDMA_READ,
	WRITE = IBV_QP_ATTACH_COMP_CNTR_OP_RDMA_WRITE,
	REMOTE_WRITE = IBV_QP_ATTACH_COMP_CNTR_OP_REMOTE_RDMA_WRITE
};

static struct board {
	struct kit_card card[2];
	_Atomic int opened, posted, connected, over;
} * board;

struct end {
	struct kit_end e;
	struct ibv_comp_cntr *of[OPS];
};

static void open_end(struct end *x, struct ibv_pd *pd, enum ibv_comp_cntr_type type, enum ibv_qp_type qp_type)
{
	struct ibv_comp_cntr_init_attr ia = {.type = type};

	kit_end_open_as(&x->e, pd, 32, 2 * LONG, qp_type);
	for (int i = 0; i < OPS; i++) {
		struct ibv_qp_attach_comp_cntr_attr aa = {.op_mask = 1u << i};

		x->of[i] = ibv_create_comp_cntr(pd->context, &ia);
		CHECK(x->of[i] && !ibv_qp_attach_comp_cntr(x->e.qp, x->of[i], &aa));
	}
}

static void close_end(struct end *x)
{
	kit_end_close(&x->e);
	for (int i = 0; i < OPS; i++)
		CHECK(!ibv_destroy_comp_cntr(x->of[i]));
}

static uint64_t done(const struct end *x, unsigned op)
{
	uint64_t value;

	CHECK(!ibv_read_comp_cntr(x->of[__builtin_ctz(op)], &value));
	return value;
}

static uint64_t failed(const struct end *x, unsigned op)
{
	uint64_t value;

	CHECK(!ibv_read_err_comp_cntr(x->of[__builtin_ctz(op)], &value));
	return value;
}

/* Nothing but the count tells. */
static void await(const struct end *x, unsigned op, uint64_t n)
{
	for (double start = kit_now(); done(x, op) != n;)
		CHECK(kit_now() - start < 20, "operation 0x%x: %" PRIu64 ", not %" PRIu64, op, done(x, op),
		      n);
}

static void post(struct end *x, enum ibv_wr_opcode op, uint32_t len, bool signalled)
{
	struct ibv_sge sge = {(uintptr_t)x->e.buf, len, x->e.mr->lkey};
	struct ibv_send_wr wr = {.sg_list = &sge,
				 .num_sge = 1,
				 .opcode = op,
				 .send_flags = signalled ? IBV_SEND_SIGNALED : 0,
				 .wr.rdma = {board->card[1].addr + LONG, board->card[1].rkey}},
			   *bad;

	CHECK(!ibv_post_send(x->e.qp, &wr, &bad));
}

static void connect_end(struct end *x, int me)
{
	board->card[me] = x->e.card;
	atomic_fetch_add(&board->opened, 1);
	kit_until(&board->opened, 2);
	kit_connect(&x->e, &board->card[!me]);
	atomic_fetch_add(&board->connected, 1);
	kit_until(&board->connected, 2);
}

static uint64_t units(enum ibv_comp_cntr_type type, uint64_t requests, uint64_t bytes)
{
	return type == IBV_COMP_CNTR_TYPE_BYTES ? bytes : requests;
}

static void target(enum ibv_comp_cntr_type type, enum ibv_qp_type qp_type)
{
	struct ibv_pd *pd = ibv_alloc_pd(kit_open());
	bool reads = qp_type == IBV_QPT_RC;
	struct end x;

	CHECK(pd);
	open_end(&x, pd, type, qp_type);
	for (int i = 0; i < 6; i++)
		CHECK(!kit_recv(&x.e, 1, 0, LONG));
	connect_end(&x, 1);
	await(&x, RECV, units(type, 4, SIZE + 8 + LONG + 1000));
	await(&x, REMOTE_WRITE, units(type, ALONE + 3, ALL + SIZE + LONG + 1000));
	await(&x, REMOTE_READ, reads ? units(type, ALONE + 2, ALL + 100 + LONG) : 0);
	CHECK(!done(&x, SEND) && !done(&x, READ) && !done(&x, WRITE) && !failed(&x, RECV));
	atomic_store(&board->over, 1);
	kit_until(&board->over, 2);
	CHECK(!ibv_modify_qp(x.e.qp, &(struct ibv_qp_attr){.qp_state = IBV_QPS_ERR}, IBV_QP_STATE));
	CHECK(failed(&x, RECV) == 2);
	close_end(&x);
}

/* Each alone, so that it might be placed directly, of which the target would not know. */
static void one_by_one(struct end *x, enum ibv_comp_cntr_type type, bool reads)
{
	for (unsigned i = 1; i <= ALONE; i++) {
		if (reads) {
			post(x, IBV_WR_RDMA_READ, SIZE, false);
			await(x, READ, units(type, i, i * SIZE));
		}
		post(x, IBV_WR_RDMA_WRITE, SIZE, true);
		await(x, WRITE, units(type, i, i * SIZE));
		kit_wait(&x->e, 20); /* which gives the slots back */
	}
}

static void initiator(enum ibv_comp_cntr_type type, enum ibv_qp_type qp_type)
{
	struct ibv_pd *pd = ibv_alloc_pd(kit_open());
	bool reads = qp_type == IBV_QPT_RC;
	struct end x;

	CHECK(pd);
	open_end(&x, pd, type, qp_type);
	connect_end(&x, 0);
	one_by_one(&x, type, reads);
	post(&x, IBV_WR_SEND, SIZE, false);
	post(&x, IBV_WR_SEND, 8, true);
	post(&x, IBV_WR_SEND, LONG, false);
	post(&x, IBV_WR_RDMA_WRITE, SIZE, false);
	post(&x, IBV_WR_RDMA_WRITE, LONG, true);
	post(&x, IBV_WR_RDMA_WRITE_WITH_IMM, 1000, false);
	if (reads) {
		post(&x, IBV_WR_RDMA_READ, 100, false);
		post(&x, IBV_WR_RDMA_READ, LONG, true);
		await(&x, READ, units(type, ALONE + 2, ALL + 100 + LONG));
	}
	await(&x, SEND, units(type, 3, SIZE + 8 + LONG));
	await(&x, WRITE, units(type, ALONE + 3, ALL + SIZE + LONG + 1000));
	CHECK(!done(&x, RECV) && !done(&x, REMOTE_READ) && !done(&x, REMOTE_WRITE));
	kit_until(&board->over, 1);
	CHECK(!ibv_modify_qp(x.e.qp, &(struct ibv_qp_attr){.qp_state = IBV_QPS_ERR}, IBV_QP_STATE));
	post(&x, IBV_WR_SEND, 8, false);
	post(&x, IBV_WR_RDMA_WRITE, 8, true);
	CHECK(failed(&x, SEND) == 1 && failed(&x, WRITE) == 1 && !failed(&x, READ));
	atomic_store(&board->over, 2);
	close_end(&x);
}

static void run(enum ibv_comp_cntr_type type, enum ibv_qp_type qp_type)
{
	pid_t pid;

	memset(board, 0, sizeof *board);
	pid = kit_fork();
	if (!pid) {
		target(type, qp_type);
		exit(0);
	}
	initiator(type, qp_type);
	CHECK(!kit_reap(pid));
}

static void requests(void)
{
	run(IBV_COMP_CNTR_TYPE_WRS, IBV_QPT_RC);
}

static void bytes(void)
{
	run(IBV_COMP_CNTR_TYPE_BYTES, IBV_QPT_RC);
}

static void unreliable(void)
{
	run(IBV_COMP_CNTR_TYPE_WRS, IBV_QPT_UC);
}

/* Without the operations of the far end WRITEs and READs are placed directly, and counted all the same. */
static void placed(void)
{
	struct ibv_comp_cntr_init_attr ia = {.type = IBV_COMP_CNTR_TYPE_BYTES};
	struct ibv_qp_attach_comp_cntr_attr aa = {.op_mask = WRITE | READ};
	struct ibv_pd *pd = ibv_alloc_pd(kit_open());
	struct kit_end a, b;
	struct ibv_comp_cntr *c = ibv_create_comp_cntr(pd->context, &ia);
	uint64_t value;

	kit_end_open(&a, pd, 32, SIZE);
	kit_end_open(&b, pd, 32, SIZE);
	CHECK(c && !ibv_qp_attach_comp_cntr(a.qp, c, &aa));
	kit_connect(&a, &b.card);
	kit_connect(&b, &a.card);
	for (int i = 1; i <= 100; i++) {
		CHECK(!kit_post(&a, i & 1 ? IBV_WR_RDMA_WRITE : IBV_WR_RDMA_READ, 1, 0, SIZE, &b.card, 0));
		CHECK(kit_wait(&a, 20).status == IBV_WC_SUCCESS);
		CHECK(!ibv_read_comp_cntr(c, &value) && value == (uint64_t)i * SIZE);
	}
	CHECK(ibv_qp_attach_comp_cntr(a.qp, c, &aa) == EINVAL); /* in RTS */
	kit_end_close(&a);
	kit_end_close(&b);
	CHECK(!ibv_destroy_comp_cntr(c));
}

/* Datagrams to oneself: what is received counts with the 40 bytes in front of it. */
static void datagrams(void)
{
	struct ibv_qp_attr a = {.qp_state = IBV_QPS_INIT, .port_num = 1, .qkey = KIT_QKEY};
	struct ibv_comp_cntr_init_attr ia = {.type = IBV_COMP_CNTR_TYPE_BYTES};
	struct ibv_qp_attach_comp_cntr_attr sends = {.op_mask = SEND}, receives = {.op_mask = RECV};
	struct ibv_pd *pd = ibv_alloc_pd(kit_open());
	struct ibv_comp_cntr *s = ibv_create_comp_cntr(pd->context, &ia),
			     *r = ibv_create_comp_cntr(pd->context, &ia);
	struct kit_end e;
	struct ibv_ah *ah;
	uint64_t sent, got;

	kit_end_open_as(&e, pd, 4, 256, IBV_QPT_UD);
	ah = kit_ah(pd, &e.card);
	CHECK(!ibv_modify_qp(e.qp, &(struct ibv_qp_attr){.qp_state = IBV_QPS_RESET}, IBV_QP_STATE));
	CHECK(!ibv_qp_attach_comp_cntr(e.qp, s, &sends) && !ibv_qp_attach_comp_cntr(e.qp, r, &receives));
	CHECK(!ibv_modify_qp(e.qp, &a, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_QKEY));
	a.qp_state = IBV_QPS_RTR;
	CHECK(!ibv_modify_qp(e.qp, &a, IBV_QP_STATE));
	a.qp_state = IBV_QPS_RTS;
	CHECK(!ibv_modify_qp(e.qp, &a, IBV_QP_STATE | IBV_QP_SQ_PSN));
	for (int i = 0; i < 3; i++) {
		CHECK(!kit_recv(&e, 1, 100, 140) && !kit_datagram(&e, ah, e.card.qpn, 2, 0, 100));
		kit_expect(&e, IBV_WC_SEND);
		kit_expect(&e, IBV_WC_RECV);
	}
	CHECK(!ibv_read_comp_cntr(s, &sent) && sent == 300 && !ibv_read_comp_cntr(r, &got) && got == 420);
	CHECK(!ibv_destroy_ah(ah));
	kit_end_close(&e);
	CHECK(!ibv_destroy_comp_cntr(s) && !ibv_destroy_comp_cntr(r));
}

/* A child's counters are dead. */
static void forked(void)
{
	struct ibv_comp_cntr_init_attr ia = {0};
	struct ibv_context *ctx = kit_open();
	struct ibv_comp_cntr *c = ibv_create_comp_cntr(ctx, &ia);
	uint64_t value;
	pid_t pid;

	CHECK(c);
	pid = kit_fork();
	if (!pid) {
		CHECK(ibv_read_comp_cntr(c, &value) == EIO && ibv_inc_comp_cntr(c, 1) == EIO);
		CHECK(!ibv_create_comp_cntr(ctx, &ia) && errno == EIO);
		CHECK(!ibv_destroy_comp_cntr(c));
		exit(0);
	}
	CHECK(!kit_reap(pid));
	CHECK(!ibv_destroy_comp_cntr(c) && !ibv_close_device(ctx));
}

int main(int argc, char **argv)
{
	static const struct kit_case cases[] = {
	    {.name = "requests", .run = requests},     {.name = "bytes", .run = bytes},
	    {.name = "unreliable", .run = unreliable}, {.name = "placed", .run = placed},
	    {.name = "datagrams", .run = datagrams},   {.name = "forked", .run = forked, .clean = true},
	};

	board = kit_shared(sizeof *board);
	KIT_CASES(cases, 60);
	return 0;
}
