/* Under `verbena run --pcap`: two processes, or one alone, that say what they do, for a test that looks for
 * it in the capture (tests/strangers/capture.py).  talk rc | loop | kill | ud | group | exec; one line of
 * output for each request, and for each end: words and numbers, as "name=value". */
#include <errno.h>

#include "bytes.h"
#include "kit.h"

enum { SIZE = 1 << 17, DEPTH = 64, TIMES = 20, WORD = 64, THERE = 4096, SINK = SIZE - 4096 };

static struct board {
	struct kit_card card[2];
	_Atomic int ready, step;
} * board;

static struct ibv_pd *pd;
static struct kit_end end;
static struct ibv_qp_ex *x;

static void say_end(const char *who, const struct kit_card *c)
{
	printf("end who=%s qpn=%u psn=%u rkey=%u va=%" PRIu64 " gid=x", who, c->qpn, c->psn, c->rkey,
	       c->addr);
	for (unsigned i = 0; i < sizeof c->gid.raw; i++)
		printf("%02x", c->gid.raw[i]);
	printf("\n");
}

static void say(const char *op, size_t len, uint64_t va, uint32_t rkey)
{
	printf("request op=%s len=%zu va=%" PRIu64 " rkey=%u\n", op, len, va, rkey);
	fflush(stdout);
}

/* A region and a queue pair that let others FLUSH, too. */
static void permit_flush(void)
{
	const int access = KIT_ALL | IBV_ACCESS_FLUSH_GLOBAL;
	struct ibv_qp_attr a = {.qp_state = IBV_QPS_INIT, .port_num = 1, .qp_access_flags = (unsigned)access};

	CHECK(!ibv_dereg_mr(end.mr));
	end.mr = ibv_reg_mr(pd, end.buf, SIZE, access);
	CHECK(end.mr);
	end.card.rkey = end.mr->rkey;
	CHECK(
	    !ibv_modify_qp(end.qp, &a, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS));
}

/* The last device of the list, so that two have an address each. */
static struct ibv_context *open_last(void)
{
	struct ibv_device **list;
	struct ibv_context *ctx;
	int n;

	list = ibv_get_device_list(&n);
	CHECK(list && n);
	ctx = ibv_open_device(list[n - 1]);
	CHECK(ctx);
	ibv_free_device_list(list);
	return ctx;
}

static void open_end(int me)
{
	const uint64_t ops = IBV_QP_EX_WITH_SEND | IBV_QP_EX_WITH_SEND_WITH_IMM | IBV_QP_EX_WITH_RDMA_WRITE |
			     IBV_QP_EX_WITH_RDMA_WRITE_WITH_IMM | IBV_QP_EX_WITH_RDMA_READ |
			     IBV_QP_EX_WITH_ATOMIC_CMP_AND_SWP | IBV_QP_EX_WITH_ATOMIC_FETCH_AND_ADD |
			     IBV_QP_EX_WITH_ATOMIC_WRITE | IBV_QP_EX_WITH_FLUSH;

	pd = ibv_alloc_pd(me ? open_last() : kit_open());
	CHECK(pd);
	x = kit_end_open_ex(&end, pd, DEPTH, SIZE, ops);
	permit_flush();
	kit_fill(end.buf, SIZE, 0);
	board->card[me] = end.card;
}

static void meet(int me)
{
	atomic_fetch_add(&board->ready, 1);
	kit_until(&board->ready, 2);
	kit_connect(&end, &board->card[!me]);
	atomic_fetch_add(&board->ready, 1);
	kit_until(&board->ready, 4);
}

static void finish(enum ibv_wc_opcode opcode, size_t at, uint32_t len)
{
	ibv_wr_set_sge(x, end.mr->lkey, end.card.addr + at, len);
	CHECK(!ibv_wr_complete(x));
	kit_expect(&end, opcode);
}

static void begin(const char *op, size_t len, uint64_t va, uint32_t rkey)
{
	say(op, len, va, rkey);
	ibv_wr_start(x);
	x->wr_flags = IBV_SEND_SIGNALED;
}

/* One of each, to memory of the other end from THERE on. */
static void requests(const struct kit_card *to)
{
	const uint8_t eight[8] = {1, 2, 3, 4, 5, 6, 7, 8};
	const uint64_t there = to->addr + THERE, word = to->addr + WORD;

	begin("SEND", 10, 0, 0);
	ibv_wr_send(x);
	finish(IBV_WC_SEND, 0, 10);
	begin("SEND_IMM", 5000, 0, 0);
	ibv_wr_send_imm(x, htobe32(0x1234567));
	finish(IBV_WC_SEND, 1, 5000);
	begin("WRITE", 3000, there, to->rkey);
	ibv_wr_rdma_write(x, to->rkey, there);
	finish(IBV_WC_RDMA_WRITE, 2, 3000);
	begin("WRITE_IMM", 2048, there, to->rkey);
	ibv_wr_rdma_write_imm(x, to->rkey, there, htobe32(0x89abcdef));
	finish(IBV_WC_RDMA_WRITE, 3, 2048);
	begin("READ", 2049, there, to->rkey);
	ibv_wr_rdma_read(x, to->rkey, there);
	finish(IBV_WC_RDMA_READ, SINK, 2049);
	begin("WRITE", 100000, there, to->rkey);
	ibv_wr_rdma_write(x, to->rkey, there);
	finish(IBV_WC_RDMA_WRITE, 4, 100000);
	begin("WRITE", 0, there, to->rkey);
	ibv_wr_rdma_write(x, to->rkey, there);
	finish(IBV_WC_RDMA_WRITE, 4, 0);
	begin("FETCH_ADD", 8, word, to->rkey);
	ibv_wr_atomic_fetch_add(x, to->rkey, word, 0x1111111111111111);
	finish(IBV_WC_FETCH_ADD, SINK, 8);
	printf("before value=%" PRIu64 "\n", *(uint64_t *)(void *)(end.buf + SINK));
	begin("CMP_SWAP", 8, word, to->rkey);
	ibv_wr_atomic_cmp_swp(x, to->rkey, word, 0x2222222222222222, 0x3333333333333333);
	finish(IBV_WC_COMP_SWAP, SINK, 8);
	printf("before value=%" PRIu64 "\n", *(uint64_t *)(void *)(end.buf + SINK));
	begin("ATOMIC_WRITE", 8, word, to->rkey);
	ibv_wr_atomic_write(x, to->rkey, word, eight);
	CHECK(!ibv_wr_complete(x));
	kit_expect(&end, IBV_WC_ATOMIC_WRITE);
	begin("WRITE_IMM", 90000, there, to->rkey);
	ibv_wr_rdma_write_imm(x, to->rkey, there, htobe32(0x89abcdef));
	finish(IBV_WC_RDMA_WRITE, 6, 90000);
	begin("FLUSH", 777, there, to->rkey);
	ibv_wr_flush(x, to->rkey, there, 777, IBV_FLUSH_GLOBAL, IBV_FLUSH_RANGE);
	CHECK(!ibv_wr_complete(x));
	kit_expect(&end, IBV_WC_FLUSH);
	begin("SEND", 40000, 0, 0); /* lent */
	ibv_wr_send(x);
	finish(IBV_WC_SEND, 5, 40000);
}

/* One that is refused, and said to be. */
static void refused(const struct kit_card *to)
{
	begin("REFUSED", 100, to->addr, to->rkey + 0x100);
	ibv_wr_rdma_write(x, to->rkey + 0x100, to->addr);
	ibv_wr_set_sge(x, end.mr->lkey, end.card.addr, 100);
	CHECK(!ibv_wr_complete(x));
	CHECK(kit_wait(&end, 20).status == IBV_WC_REM_ACCESS_ERR);
}

static void initiator(void)
{
	open_end(0);
	atomic_store(&board->step, 1); /* the file is this one's */
	meet(0);
	say_end("A", &board->card[0]);
	say_end("B", &board->card[1]);
	atomic_store(&board->step, 2);
	requests(&board->card[1]);
	CHECK(!kit_recv(&end, 1, SINK, 1000));
	atomic_store(&board->step, 3);
	kit_expect(&end, IBV_WC_RECV);
	refused(&board->card[1]);
	atomic_store(&board->step, 4);
}

static void target(void)
{
	kit_until(&board->step, 1);
	open_end(1);
	for (int i = 0; i < 5; i++)
		CHECK(!kit_recv(&end, (uint64_t)i, SIZE / 2, SIZE / 2));
	meet(1);
	for (int i = 0; i < 5; i++)
		kit_wait(&end, 30);
	kit_until(&board->step, 3);
	CHECK(!kit_post(&end, IBV_WR_SEND, 1, 0, 300, NULL, 0));
	kit_expect(&end, IBV_WC_SEND);
	kit_until(&board->step, 4);
}

/* ---- one process, two ends ---- */

static struct kit_end other;

static void loop(const char *self)
{
	board->card[0] = board->card[1] = (struct kit_card){0};
	open_end(0);
	kit_end_open(&other, pd, DEPTH, SIZE);
	kit_connect(&end, &other.card);
	kit_connect(&other, &end.card);
	say_end("A", &end.card);
	say_end("B", &other.card);
	for (int i = 0; i < TIMES; i++) {
		CHECK(!kit_recv(&other, 1, 0, SIZE));
		CHECK(!kit_post(&end, IBV_WR_SEND, 1, 0, 2000, NULL, 0));
		kit_wait(&other, 20);
		kit_expect(&end, IBV_WC_SEND);
		CHECK(!kit_post(&end, IBV_WR_RDMA_WRITE, 1, 0, 1500, &other.card, 0));
		kit_expect(&end, IBV_WC_RDMA_WRITE);
	}
	fflush(stdout);
	if (self)
		execl(self, self, "loop", (char *)NULL);
}

/* Dies when its last call has returned. */
static void dies(void)
{
	loop(NULL);
	kill(getpid(), SIGKILL);
}

/* ---- datagrams ---- */

static const union ibv_gid group = {
    .raw = {[10] = 0xff, [11] = 0xff, [12] = 239, [13] = 1, [14] = 2, [15] = 3}};

static void datagrams(int me, bool to_group)
{
	struct kit_card to;
	struct ibv_ah *ah;

	if (me)
		kit_until(&board->step, 1);
	pd = ibv_alloc_pd(kit_open());
	CHECK(pd);
	kit_end_open_as(&end, pd, DEPTH, SIZE, IBV_QPT_UD);
	kit_fill(end.buf, SIZE, 0);
	board->card[me] = end.card;
	for (int i = 0; i < 3; i++)
		CHECK(!kit_recv(&end, 1, SIZE / 2, SIZE / 2));
	if (to_group) /* both, so that each packet goes to two processes */
		CHECK(!ibv_attach_mcast(end.qp, &group, 0));
	atomic_fetch_add(&board->step, 1);
	atomic_fetch_add(&board->ready, 1);
	kit_until(&board->ready, 2);
	if (me) {
		for (int i = 0; i < 3; i++)
			CHECK(kit_wait(&end, 20).status == IBV_WC_SUCCESS);
		return;
	}
	say_end("A", &board->card[0]);
	say_end("B", &board->card[1]);
	to = board->card[1];
	if (to_group)
		to.gid = group;
	ah = kit_ah(pd, &to);
	for (uint32_t i = 0; i < 3; i++) {
		CHECK(!kit_datagram(&end, ah, to_group ? 0xffffff : to.qpn, 1, 0, 100 + 1000 * i));
		for (int n = 0; n < 1 + to_group; n++)
			CHECK(kit_wait(&end, 20).status == IBV_WC_SUCCESS);
	}
}

int main(int argc, char **argv)
{
	const char *what = argc > 1 ? argv[1] : "rc";
	bool both = !strcmp(what, "rc"), ud = !strcmp(what, "ud"), to_group = !strcmp(what, "group");
	pid_t pid = 0;

	board = kit_shared(sizeof *board);
	if (!strcmp(what, "loop") || !strcmp(what, "exec")) {
		loop(*what == 'e' ? "/proc/self/exe" : NULL);
		return 0;
	}
	if (!strcmp(what, "kill"))
		dies();
	if (!both && !ud && !to_group)
		return 2;
	pid = kit_fork();
	if (!pid) {
		if (both)
			target();
		else
			datagrams(1, to_group);
		_exit(0);
	}
	printf("child pid=%d\n", (int)pid);
	fflush(stdout);
	if (both)
		initiator();
	else
		datagrams(0, to_group);
	fflush(stdout);
	return kit_reap(pid) ? 1 : 0;
}
