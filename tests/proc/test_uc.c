/* Unreliable connections between processes: what is sent arrives; what cannot arrive is lost without a word,
 * whether nobody is there, or the far end has no receive request, or has been killed. */
#include "hca/hca.h"
#include "iba/reason.h"
#include "obj/context.h"
#include "kit.h"

enum { DEPTH = 32, SIZE = 1 << 20, MANY = 20 };

static struct board {
	struct kit_card card[2];
	_Atomic int step; /* the child is done with it */
	_Atomic int go;
} * board;

static void open_end(struct kit_end *e, struct ibv_pd *pd)
{
	kit_end_open_as(e, pd, DEPTH, SIZE, IBV_QPT_UC);
}

static void expect(struct kit_end *e, enum ibv_wc_opcode opcode, uint32_t len)
{
	struct ibv_wc wc = kit_wait(e, 20);

	CHECK_EQ(wc.status, IBV_WC_SUCCESS);
	CHECK(wc.opcode == opcode);
	if (opcode & IBV_WC_RECV)
		CHECK(wc.byte_len == len);
}

static void child(void)
{
	struct ibv_pd *pd = ibv_alloc_pd(kit_open());
	struct kit_end e;

	CHECK(pd);
	open_end(&e, pd);
	board->card[1] = e.card;
	for (int i = 0; i < MANY; i++)
		CHECK(!kit_recv(&e, 7, 0, SIZE / 2));
	atomic_store(&board->step, 1);
	kit_until(&board->go, 1);
	kit_connect(&e, &board->card[0]);
	atomic_store(&board->step, 2);
	for (int i = 0; i < MANY; i++) {
		expect(&e, IBV_WC_RECV, (uint32_t)(1 + i * 20000));
		for (int k = 0; k < 1 + i * 20000; k++)
			CHECK((uint8_t)e.buf[k] == (uint8_t)(i + 1), "message %d, byte %d", i, k);
		atomic_store(&board->step, 3 + i);
	}
	kit_until(&board->go, 3);
	pause(); /* to be killed */
}

static void sends_arrive(struct kit_end *e)
{
	for (int i = 0; i < MANY; i++) {
		memset(e->buf, i + 1, (size_t)(1 + i * 20000));
		CHECK(!kit_post(e, IBV_WR_SEND, 1, 0, (uint32_t)(1 + i * 20000), NULL, 0));
		expect(e, IBV_WC_SEND, 0);
		kit_until(&board->step, 3 + i);
	}
}

static void writes_arrive(struct kit_end *e)
{
	/* The far end is in the same host's memory, and shows nobody that they came but by its bytes. */
	CHECK(!kit_post(e, IBV_WR_RDMA_WRITE, 1, 0, 4096, &board->card[1], SIZE / 2));
	expect(e, IBV_WC_RDMA_WRITE, 0);
	/* no receive request is left there */
	CHECK(!kit_post(e, IBV_WR_SEND, 1, 0, 8, NULL, 0));
	expect(e, IBV_WC_SEND, 0);
}

static void nobody_is_there(struct ibv_pd *pd)
{
	struct kit_card to;
	struct kit_end e;

	open_end(&e, pd);
	to = e.card;
	to.qpn ^= 0xabc000;
	kit_connect(&e, &to);
	for (int i = 0; i < 3; i++) {
		CHECK(!kit_post(&e, IBV_WR_SEND, 1, 0, 100, NULL, 0));
		expect(&e, IBV_WC_SEND, 0);
	}
	CHECK(e.qp->state == IBV_QPS_RTS);
	kit_end_close(&e);
}

static void dropped(struct ibv_context *ctx, uint64_t n)
{
	for (double end = kit_now() + 20; kit_drops(ctx, VB_R_DROP_NO_QP) < n; kit_nap_us(200))
		CHECK(kit_now() < end, "%" PRIu64 " of %" PRIu64, kit_drops(ctx, VB_R_DROP_NO_QP), n);
	CHECK(kit_drops(ctx, VB_R_DROP_NO_QP) == n);
}

/* Whole messages are counted that come to a queue pair which takes none any more, and to none. */
static void who_has_gone(struct ibv_context *ctx, struct ibv_pd *pd)
{
	uint64_t before = kit_drops(ctx, VB_R_DROP_NO_QP);
	struct kit_end from, to;

	open_end(&from, pd);
	open_end(&to, pd);
	kit_connect(&from, &to.card);
	kit_connect(&to, &from.card);
	CHECK(!kit_recv(&to, 1, 0, SIZE / 2));
	CHECK(!kit_post(&from, IBV_WR_SEND, 1, 0, 8, NULL, 0));
	expect(&from, IBV_WC_SEND, 0);
	expect(&to, IBV_WC_RECV, 8);
	CHECK(!ibv_modify_qp(to.qp, &(struct ibv_qp_attr){.qp_state = IBV_QPS_ERR}, IBV_QP_STATE));
	CHECK(!kit_post(&from, IBV_WR_SEND, 1, 0, 100000, NULL, 0));
	expect(&from, IBV_WC_SEND, 0);
	dropped(ctx, before + 1);
	KIT_LOG_SAYS("queue pair 0x%06x is in state ERR", to.card.qpn);
	kit_end_close(&to);
	CHECK(!kit_post(&from, IBV_WR_SEND, 1, 0, 100000, NULL, 0));
	CHECK(!kit_post(&from, IBV_WR_SEND, 1, 0, 8, NULL, 0));
	expect(&from, IBV_WC_SEND, 0);
	expect(&from, IBV_WC_SEND, 0);
	dropped(ctx, before + 3);
	KIT_LOG_SAYS(
	    "queue pair 0x%06x does not exist: it was destroyed, or remote_qpn or dest_qp_num is wrong at "
	    "the sender",
	    to.card.qpn);
	CHECK(from.qp->state == IBV_QPS_RTS);
	kit_end_close(&from);
}

/* It never answers the hello: what is sent is lost, after a while, a datagram too. */
static void stopped_before_contact(struct ibv_pd *pd)
{
	struct kit_end e, ud;
	struct ibv_ah *ah;
	pid_t pid;

	memset(board, 0, sizeof *board);
	pid = kit_fork();
	if (!pid) {
		child();
		exit(1);
	}
	open_end(&e, pd);
	kit_end_open_as(&ud, pd, DEPTH, SIZE, IBV_QPT_UD);
	kit_until(&board->step, 1);
	kit_stop(pid);
	kit_connect(&e, &board->card[1]);
	ah = kit_ah(pd, &board->card[1]);
	CHECK(!kit_post(&e, IBV_WR_SEND, 1, 0, 100, NULL, 0));
	CHECK(!kit_datagram(&ud, ah, board->card[1].qpn, 2, 0, 8));
	expect(&e, IBV_WC_SEND, 0);
	kit_expect(&ud, IBV_WC_SEND);
	KIT_LOG_SAYS("QP 0x%06x: messages are discarded: queue pair 0x%06x cannot be reached: process %d is "
		     "stopped",
		     e.card.qpn, board->card[1].qpn, pid);
	KIT_LOG_SAYS("QP 0x%06x: messages are discarded: queue pair 0x%06x cannot be reached: process %d is "
		     "stopped",
		     ud.card.qpn, board->card[1].qpn, pid);
	CHECK(!ibv_destroy_ah(ah));
	kit_end_close(&ud);
	CHECK(e.qp->state == IBV_QPS_RTS);
	CHECK(!kill(pid, SIGKILL));
	kit_reap(pid);
	kit_end_close(&e);
}

/* A SEND from and to memory that nobody has touched yet, and a WRITE there. */
static void on_demand(struct ibv_pd *pd)
{
	struct ibv_recv_wr recv, *bad;
	struct ibv_send_wr send, *worse;
	struct kit_end from, to;
	struct ibv_sge here, there;
	struct ibv_mr *mr;
	uint8_t *area;

	area = mmap(NULL, 2 * SIZE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	mr = ibv_reg_mr(pd, area, 2 * SIZE,
			IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_ON_DEMAND);
	CHECK(area != MAP_FAILED && mr);
	open_end(&from, pd);
	open_end(&to, pd);
	kit_connect(&from, &to.card);
	kit_connect(&to, &from.card);
	here = (struct ibv_sge){(uintptr_t)area, SIZE / 2, mr->lkey};
	there = (struct ibv_sge){(uintptr_t)area + SIZE, SIZE / 2, mr->lkey};
	recv = (struct ibv_recv_wr){.sg_list = &there, .num_sge = 1};
	CHECK(!ibv_post_recv(to.qp, &recv, &bad));
	send = (struct ibv_send_wr){
	    .sg_list = &here, .num_sge = 1, .opcode = IBV_WR_SEND, .send_flags = IBV_SEND_SIGNALED};
	CHECK(!ibv_post_send(from.qp, &send, &worse));
	expect(&from, IBV_WC_SEND, 0);
	expect(&to, IBV_WC_RECV, SIZE / 2);
	CHECK(!madvise(area + SIZE, SIZE, MADV_DONTNEED));
	area[0] = 5;
	send.opcode = IBV_WR_RDMA_WRITE;
	send.wr.rdma.remote_addr = (uintptr_t)area + SIZE;
	send.wr.rdma.rkey = mr->rkey;
	CHECK(!ibv_post_send(from.qp, &send, &worse));
	expect(&from, IBV_WC_RDMA_WRITE, 0);
	for (double start = kit_now(); atomic_load((_Atomic uint8_t *)&area[SIZE]) != 5;)
		CHECK(ibv_poll_cq(to.cq, 1, &(struct ibv_wc){0}) == 0 && kit_now() - start < 20);
	kit_end_close(&from);
	kit_end_close(&to);
	CHECK(!ibv_dereg_mr(mr) && !munmap(area, 2 * SIZE));
}

int main(void)
{
	struct ibv_context *ctx;
	struct ibv_pd *pd;
	struct kit_end e;
	pid_t pid;
	int status;

	board = kit_shared(sizeof *board);
	pid = kit_fork();
	if (!pid) {
		child();
		return 1;
	}
	kit_log_begin("warn");
	ctx = kit_open();
	pd = ibv_alloc_pd(ctx);
	CHECK(pd);
	open_end(&e, pd);
	board->card[0] = e.card;
	kit_until(&board->step, 1);
	kit_connect(&e, &board->card[1]);
	atomic_store(&board->go, 1);
	kit_until(&board->step, 2);
	sends_arrive(&e);
	writes_arrive(&e);
	atomic_store(&board->go, 3);
	CHECK(!kill(pid, SIGKILL) && waitpid(pid, &status, 0) == pid);
	for (int i = 0; i < 2 * DEPTH; i++) {
		CHECK(!kit_post(&e, IBV_WR_SEND, 1, 0, 40000, NULL, 0));
		expect(&e, IBV_WC_SEND, 0);
	}
	CHECK(e.qp->state == IBV_QPS_RTS);
	nobody_is_there(pd);
	stopped_before_contact(pd);
	who_has_gone(ctx, pd);
	on_demand(pd);
	kit_end_close(&e);
	CHECK(!ibv_dealloc_pd(pd) && !ibv_close_device(ctx));
	return 0;
}
