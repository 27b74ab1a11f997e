/* Memory windows in a protection domain that two processes hold.  The one that did not make it has memory,
 * windows (their keys are tagged) and a queue pair; a window of type 1 also serves the other one's queue
 * pairs, whose process reaches the memory by itself; one of type 2 does not. */
#include <errno.h>

#include "kit.h"

enum { AREA = 64 << 10, AT = 4096, LEN = 5000, KEY = 4711, RW = IBV_ACCESS_REMOTE_WRITE };

struct board {
	_Atomic int step;
	struct ibv_shpd shpd;
	struct kit_card card[2]; /* of the QPs between the two: the maker's, the owner's */
	uint32_t key[2];	 /* by type; old ones after step 4 */
	uint64_t addr;
};

static struct board *board;

static void ended(struct kit_end *e, enum ibv_wc_status status, const char *what)
{
	struct ibv_wc wc = kit_wait(e, 20);

	CHECK(wc.status == status, "%s: %s", what, ibv_wc_status_str(wc.status));
}

static void bind(struct kit_end *e, struct ibv_mw *mw, struct ibv_mr *mr, uint64_t addr, uint32_t len)
{
	struct ibv_mw_bind_info info = {.mr = mr, .addr = addr, .length = len, .mw_access_flags = RW};
	struct ibv_mw_bind b = {.send_flags = IBV_SEND_SIGNALED, .bind_info = info};
	struct ibv_send_wr wr = {.opcode = IBV_WR_BIND_MW,
				 .send_flags = IBV_SEND_SIGNALED,
				 .bind_mw = {.mw = mw, .rkey = mw->rkey, .bind_info = info}},
			   *bad;

	if (mw->type == IBV_MW_TYPE_1)
		CHECK(!ibv_bind_mw(e->qp, mw, &b));
	else
		CHECK(!ibv_post_send(e->qp, &wr, &bad));
	ended(e, IBV_WC_SUCCESS, "bind");
}

/* Holds an instance of a domain that is not its own. */
static void owner(void)
{
	struct ibv_context *ctx = kit_open();
	struct ibv_send_wr inv = {.opcode = IBV_WR_LOCAL_INV, .send_flags = IBV_SEND_SIGNALED}, *bad;
	uint8_t *area = calloc(1, AREA);
	struct ibv_mw *mw[2];
	struct ibv_mr *mr;
	struct kit_end e;
	struct ibv_pd *pd;

	kit_until(&board->step, 1);
	pd = ibv_share_pd(ctx, &board->shpd, KEY);
	CHECK(pd && area);
	kit_end_open(&e, pd, 16, AREA);
	board->card[1] = e.card;
	mr = ibv_reg_mr(pd, area, AREA, IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_MW_BIND);
	CHECK(mr);
	atomic_store(&board->step, 2);
	kit_connect(&e, &board->card[0]);
	for (int t = 0; t < 2; t++) {
		mw[t] = ibv_alloc_mw(pd, t ? IBV_MW_TYPE_2 : IBV_MW_TYPE_1);
		CHECK(mw[t], "%s", strerror(errno));
		bind(&e, mw[t], mr, (uintptr_t)area + AT, LEN);
		board->key[t] = mw[t]->rkey;
	}
	board->addr = (uintptr_t)area + AT;
	CHECK(ibv_dereg_mr(mr) == EBUSY);
	atomic_store(&board->step, 3);
	kit_until(&board->step, 4);
	CHECK(area[AT] == 0xc3 && area[AT + LEN - 1] == 0xc3 && !area[AT + LEN] && !area[AT - 1]);
	bind(&e, mw[0], NULL, 0, 0);
	inv.invalidate_rkey = mw[1]->rkey;
	CHECK(!ibv_post_send(e.qp, &inv, &bad));
	ended(&e, IBV_WC_SUCCESS, "local invalidate");
	memset(area, 0, AREA);
	CHECK(!ibv_dereg_mr(mr));
	atomic_store(&board->step, 5);
	kit_until(&board->step, 6);
	for (int i = 0; i < AREA; i++)
		CHECK(!area[i]);
	for (int t = 0; t < 2; t++)
		CHECK(!ibv_dealloc_mw(mw[t]));
	kit_end_close(&e);
	CHECK(!ibv_dealloc_pd(pd) && !ibv_close_device(ctx));
	free(area);
	exit(0);
}

/* A WRITE from one end; a failure takes both QPs with it. */
static void write_to(struct kit_end *e, uint32_t key, enum ibv_wc_status status, const char *what)
{
	struct kit_card to = {.rkey = key, .addr = board->addr};

	memset(e->buf, 0xc3, AREA);
	CHECK(!kit_post(e, IBV_WR_RDMA_WRITE, 1, 0, LEN, &to, 0));
	ended(e, status, what);
}

/* Two ends in one process: one of another domain sends to one of this. */
static void through(struct ibv_pd *pd, struct ibv_pd *plain, uint32_t key, enum ibv_wc_status status,
		    const char *what)
{
	struct kit_end from, to;

	kit_end_open(&from, plain, 16, AREA);
	kit_end_open(&to, pd, 16, AREA);
	kit_connect(&from, &to.card);
	kit_connect(&to, &from.card);
	write_to(&from, key, status, what);
	kit_end_close(&from);
	kit_end_close(&to);
}

static void maker(void)
{
	struct ibv_context *ctx = kit_open();
	struct ibv_pd *pd = ibv_alloc_pd(ctx), *plain = ibv_alloc_pd(ctx);
	struct kit_end e;

	CHECK(pd && plain && ibv_alloc_shpd(pd, KEY, &board->shpd));
	kit_end_open(&e, plain, 16, AREA);
	board->card[0] = e.card;
	atomic_store(&board->step, 1);
	kit_until(&board->step, 2);
	kit_connect(&e, &board->card[1]);
	kit_until(&board->step, 3);
	for (int t = 0; t < 2; t++)
		write_to(&e, board->key[t], IBV_WC_SUCCESS, "through the owner's queue pair");
	through(pd, plain, board->key[0], IBV_WC_SUCCESS, "type 1 through another instance's");
	through(pd, plain, board->key[1], IBV_WC_REM_ACCESS_ERR, "type 2 through another instance's");
	atomic_store(&board->step, 4);
	kit_until(&board->step, 5);
	write_to(&e, board->key[0], IBV_WC_REM_ACCESS_ERR, "after it was unbound");
	through(pd, plain, board->key[0], IBV_WC_REM_ACCESS_ERR,
		"after it was unbound, through another instance's");
	atomic_store(&board->step, 6);
	kit_end_close(&e);
	CHECK(!ibv_dealloc_pd(plain) && !ibv_dealloc_pd(pd) && !ibv_close_device(ctx));
	exit(0);
}

int main(void)
{
	for (int on = 0; on < 2; on++) {
		pid_t pid[2];

		board = kit_shared(sizeof *board);
		setenv("VERBENA_DIRECT", on ? "on" : "off", 1);
		for (int i = 0; i < 2; i++) {
			pid[i] = kit_fork();
			if (!pid[i]) {
				alarm(120);
				(i ? owner : maker)();
			}
		}
		for (int i = 0; i < 2; i++)
			CHECK(kit_reap(pid[i]) == 0, "direct %d, process %d", on, i);
		printf("direct %s: ok\n", on ? "on" : "off");
	}
	return 0;
}
