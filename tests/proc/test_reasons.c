/* Each error completion and each refused call is explained in one sentence with the true numbers, once per
 * cause, and nothing is written where nobody asked.
 *
 * Both ends are in this process, so one log holds what the responder found and what the requester is told. */
#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>

#include "kit.h"

static struct ibv_context *ctx;
static struct ibv_pd *pd;
static struct kit_end a, b; /* a asks, b answers */

/* The log has grown by lines that together say all this. */
static void said(const char *what, ...)
{
	const char *text = kit_log_take();
	char want[256];
	const char *fmt;
	va_list ap;

	va_start(ap, what);
	while ((fmt = va_arg(ap, const char *))) {
		unsigned long long v = va_arg(ap, unsigned long long);

		snprintf(want, sizeof want, fmt, v);
		CHECK(strstr(text, want), "%s: no '%s' in:\n%s", what, want, text);
	}
	va_end(ap);
}

#define N(v) (unsigned long long)(v)

static int lines(const char *text, const char *what)
{
	int n = 0;

	for (const char *p = text; (p = strstr(p, what)); p++)
		n++;
	return n;
}

static void pair_open(void)
{
	kit_end_open(&a, pd, 8, 4096);
	kit_end_open(&b, pd, 8, 4096);
	kit_connect_with(&a, &b.card, 10, 1);
	kit_connect_with(&b, &a.card, 10, 1);
	kit_log_skip();
}

static void pair_close(void)
{
	struct ibv_async_event ev;

	while (!ibv_get_async_event(ctx, &ev)) /* the descriptor does not block, see main */
		ibv_ack_async_event(&ev);
	kit_end_close(&a);
	kit_end_close(&b);
}

static void expect(enum ibv_wc_status status, uint64_t wr_id)
{
	struct ibv_wc wc;

	do { /* completions of b's receives are b's */
		wc = kit_wait(&a, 10);
	} while (wc.wr_id != wr_id);
	CHECK(wc.status == status, "%s", ibv_wc_status_str(wc.status));
}

static int write_to(struct kit_card to, uint32_t len)
{
	return kit_post(&a, IBV_WR_RDMA_WRITE, 1, 0, len, &to, 0);
}

static void remote_keys(void)
{
	struct kit_card to;
	struct ibv_pd *other = ibv_alloc_pd(ctx);
	struct ibv_mr *mr;

	pair_open();
	CHECK(!kit_post(&a, IBV_WR_RDMA_WRITE, 1, 0, 64, &b.card, 4096 - 48));
	expect(IBV_WC_REM_ACCESS_ERR, 1);
	said("bounds", "QP 0x%06llx", N(b.qp->qp_num), "QP 0x%06llx", N(a.qp->qp_num),
	     "by %llu bytes at the end", N(16), "+%llu)", N(4096), "reported by the peer%.0llu", N(0), NULL);
	pair_close();

	pair_open();
	to = b.card;
	to.rkey = b.mr->lkey;
	CHECK(!write_to(to, 8));
	expect(IBV_WC_REM_ACCESS_ERR, 1);
	said("lkey as rkey", "L_Key 0x%08llx was used where an R_Key is required", N(b.mr->lkey),
	     "R_Key is 0x%08llx", N(b.mr->rkey), NULL);
	pair_close();

	pair_open();
	mr = ibv_reg_mr(pd, b.buf, 4096, IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_READ);
	to = b.card;
	to.rkey = mr->rkey;
	CHECK(!write_to(to, 8));
	expect(IBV_WC_REM_ACCESS_ERR, 1);
	said("access", "R_Key 0x%08llx does not permit REMOTE_WRITE", N(mr->rkey),
	     "has LOCAL_WRITE|REMOTE_READ; register it with IBV_ACCESS_REMOTE_WRITE%.0llu", N(0), NULL);
	pair_close();
	CHECK(!ibv_dereg_mr(mr));

	pair_open();
	to.rkey = mr ? to.rkey : 0; /* that region is gone now */
	CHECK(!write_to(to, 8));
	expect(IBV_WC_REM_ACCESS_ERR, 1);
	said("stale", "0x%08llx is stale", N(to.rkey), NULL);
	pair_close();

	pair_open();
	mr = ibv_reg_mr(other, b.buf, 4096, KIT_ALL);
	to = b.card;
	to.rkey = mr->rkey;
	CHECK(!write_to(to, 8));
	expect(IBV_WC_REM_ACCESS_ERR, 1);
	said("PD", "R_Key 0x%08llx belongs to a different protection domain than the queue pair", N(mr->rkey),
	     NULL);
	pair_close();
	CHECK(!ibv_dereg_mr(mr) && !ibv_dealloc_pd(other));
}

static void local_keys(void)
{
	struct ibv_sge sge;
	struct ibv_send_wr wr = {.wr_id = 1, .sg_list = &sge, .num_sge = 1, .opcode = IBV_WR_SEND}, *bad;

	pair_open();
	sge = (struct ibv_sge){(uintptr_t)a.buf, 5000, a.mr->lkey};
	CHECK(!ibv_post_send(a.qp, &wr, &bad));
	expect(IBV_WC_LOC_PROT_ERR, 1);
	said("local bounds", "SEND wr_id 0x%llx", N(1), "by %llu bytes at the end", N(904), NULL);
	pair_close();

	pair_open();
	sge = (struct ibv_sge){(uintptr_t)a.buf, 8, a.mr->rkey};
	CHECK(!ibv_post_send(a.qp, &wr, &bad));
	expect(IBV_WC_LOC_PROT_ERR, 1);
	said("rkey as lkey", "R_Key 0x%08llx was used where an L_Key is required", N(a.mr->rkey), NULL);
	pair_close();
}

static void requests(void)
{
	struct ibv_qp_attr attr = {.qp_access_flags = IBV_ACCESS_REMOTE_READ};

	pair_open();
	CHECK(!ibv_modify_qp(b.qp, &attr, IBV_QP_ACCESS_FLAGS));
	CHECK(!write_to(b.card, 8));
	expect(IBV_WC_REM_INV_REQ_ERR, 1);
	said("QP access", "queue pair 0x%06llx does not permit REMOTE_WRITE", N(b.qp->qp_num), NULL);
	pair_close();

	pair_open();
	CHECK(!kit_recv(&b, 9, 0, 100));
	CHECK(!kit_post(&a, IBV_WR_SEND, 1, 0, 300, NULL, 0));
	expect(IBV_WC_REM_INV_REQ_ERR, 1);
	CHECK(kit_wait(&b, 5).status == IBV_WC_LOC_LEN_ERR); /* rule 23 */
	said("too small", "message of at least %llu bytes", N(300), "receive buffer of %llu bytes", N(100),
	     NULL);
	pair_close();

	pair_open();
	CHECK(!kit_post(&a, IBV_WR_ATOMIC_FETCH_AND_ADD, 1, 0, 8, &b.card, 12));
	expect(IBV_WC_REM_INV_REQ_ERR, 1);
	said("alignment", "address 0x%llx", N(b.card.addr + 12), NULL);
	pair_close();
}

static void reach(void)
{
	struct ibv_qp_attr attr = {.qp_state = IBV_QPS_ERR};

	pair_open();
	CHECK(!ibv_modify_qp(b.qp, &attr, IBV_QP_STATE)); /* takes nothing any more */
	CHECK(!write_to(b.card, 8));
	expect(IBV_WC_RETRY_EXC_ERR, 1);
	said("retry", "no acknowledgement from queue pair 0x%06llx", N(b.qp->qp_num), "retry_cnt = %llu",
	     N(1), "in state ERR%.0llu", N(0), NULL);
	pair_close();
}

/* A SEND of `a` to a peer that its path describes wrongly, until it gives up. */
static void lost(uint32_t qpn, uint32_t psn)
{
	struct kit_card wrong;

	kit_end_open(&a, pd, 8, 4096);
	kit_end_open(&b, pd, 8, 4096);
	wrong = b.card;
	if (qpn)
		wrong.qpn = qpn;
	kit_connect_with(&a, &wrong, 8, 1);
	wrong = a.card;
	wrong.psn = psn;
	kit_connect_with(&b, &wrong, 8, 1);
	kit_log_skip();
	CHECK(!kit_post(&a, IBV_WR_SEND, 1, 0, 8, NULL, 0));
	expect(IBV_WC_RETRY_EXC_ERR, 1);
}

static void wrong_peers(void)
{
	struct kit_end other;
	uint32_t free_number = 1, gone;

	kit_end_open(&other, pd, 8, 64);
	gone = other.qp->qp_num;
	kit_end_close(&other);
	while (kit_bound(free_number << 12))
		free_number++;
	lost(free_number << 12 | 7, a.card.psn);
	said("nobody", "from queue pair 0x%06llx", N(free_number << 12 | 7),
	     "no process in this network namespace%.0llu", N(0), NULL);
	pair_close();
	lost(gone, 0);
	said("no QP", "from queue pair 0x%06llx", N(gone), "its process has no such queue pair%.0llu", N(0),
	     NULL);
	pair_close();
	lost(0, 0x123456);
	said("PSN", "expects PSN 0x%06llx", N(0x123456), "sends PSN 0x%06llx", N(a.card.psn), NULL);
	pair_close();
}

static void one_line_for_a_flush(void)
{
	struct kit_card to;
	const char *text;

	pair_open();
	to = b.card;
	to.rkey ^= 0x5500;
	for (uint64_t i = 0; i < 6; i++)
		CHECK(!kit_post(&a, IBV_WR_RDMA_WRITE, i, 0, 8, &to, 0));
	expect(IBV_WC_REM_ACCESS_ERR, 0);
	for (uint64_t i = 1; i < 6; i++)
		CHECK(kit_wait(&a, 5).status == IBV_WC_WR_FLUSH_ERR);
	text = kit_log_take();
	CHECK(lines(text, "\n") <= 3, "%s", text); /* one at each end, one for what was flushed */
	pair_close();
}

static void refusals(void)
{
	struct ibv_qp_init_attr qa = {.qp_type = IBV_QPT_RC, .cap = {.max_send_wr = 20000}};
	struct ibv_send_wr wr = {.opcode = IBV_WR_SEND, .send_flags = IBV_SEND_INLINE, .num_sge = 1}, *bad;
	struct ibv_sge sge;

	pair_open();
	CHECK(!ibv_reg_mr(pd, a.buf, 64, IBV_ACCESS_REMOTE_WRITE) && errno == EINVAL);
	said("flags", "ibv_reg_mr%.0llu", N(0), "lacks IBV_ACCESS_LOCAL_WRITE%.0llu", N(0), NULL);
	qa.send_cq = qa.recv_cq = a.cq;
	CHECK(!ibv_create_qp(pd, &qa) && errno == EINVAL);
	said("limit", "max_send_wr %llu", N(20000), "limit of %llu", N(16384), NULL);
	CHECK(ibv_destroy_cq(a.cq) == EBUSY);
	said("busy", "ibv_destroy_cq%.0llu", N(0), "%llu work queues", N(2), NULL);
	sge = (struct ibv_sge){(uintptr_t)a.buf, 4000, a.mr->lkey};
	wr.sg_list = &sge;
	CHECK(ibv_post_send(a.qp, &wr, &bad) == EINVAL && bad == &wr);
	said("inline", "%llu bytes of inline data", N(4000), NULL);
	CHECK(ibv_dealloc_pd(pd) == EBUSY);
	said("children", "ibv_dealloc_pd%.0llu", N(0), NULL);
	pair_close();
}

int main(void)
{

	kit_log_begin("info");
	ctx = kit_open();
	pd = ibv_alloc_pd(ctx);
	CHECK(pd);
	CHECK(!fcntl(ctx->async_fd, F_SETFL, O_NONBLOCK));
	remote_keys();
	local_keys();
	requests();
	reach();
	wrong_peers();
	one_line_for_a_flush();
	refusals();
	CHECK(!ibv_dealloc_pd(pd) && !ibv_close_device(ctx));
	puts("every sentence was there");
	return 0;
}
