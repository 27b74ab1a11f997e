/* XRC: domains and who has them open, initiators and targets, and what a message may reach by the SRQ that it
 * names. */
#include <errno.h>
#include <fcntl.h>
#include <poll.h>

#include "xrc.h"

/* Every operation, by each of two SRQs, small and of many packets. */
static void all_operations(void)
{
	struct xrc_side s;
	uint32_t second;
	struct ibv_cq *cq2;
	struct ibv_srq *srq2;
	uint64_t *word;

	xrc_open_side(&s, xrc_domain_file());
	cq2 = ibv_create_cq(s.ctx, XRC_DEPTH, NULL, NULL, 0);
	srq2 = xrc_make_srq(s.pd, s.xrcd, cq2, &second);
	xrc_connect_self(&s);
	for (uint32_t len = 8; len <= 300000; len = len * 37 + 1) {
		for (uint32_t i = 0; i < len; i++)
			s.buf[i] = (uint8_t)(i * 7 + len);
		memset(s.buf + XRC_SIZE / 2, 0, XRC_SIZE / 2);
		xrc_give(s.srq, s.mr, 1, XRC_SIZE / 2, XRC_SIZE / 4);
		xrc_give(srq2, s.mr, 2, XRC_SIZE / 4 * 3, XRC_SIZE / 4);
		xrc_post(&s, IBV_WR_SEND, second, 0, len, 0, 0);
		xrc_post(&s, IBV_WR_SEND_WITH_IMM, s.srqn, 0, len, 0, 0);
		xrc_received(&s, cq2, 2, IBV_WC_RECV, len);
		xrc_received(&s, s.rcq, 1, IBV_WC_RECV, len);
		CHECK(xrc_ends(&s) == IBV_WC_SUCCESS && xrc_ends(&s) == IBV_WC_SUCCESS);
		CHECK(!memcmp(s.buf, s.buf + XRC_SIZE / 2, len) &&
		      !memcmp(s.buf, s.buf + XRC_SIZE / 4 * 3, len));
		memset(s.buf + XRC_SIZE / 2, 0, XRC_SIZE / 2);
		xrc_give(srq2, s.mr, 3, 0, 0);
		xrc_post(&s, IBV_WR_RDMA_WRITE, s.srqn, 0, len, (uintptr_t)s.buf + XRC_SIZE / 2, s.mr->rkey);
		xrc_post(&s, IBV_WR_RDMA_WRITE_WITH_IMM, second, 0, len, (uintptr_t)s.buf + XRC_SIZE / 4 * 3,
			 s.mr->rkey);
		xrc_received(&s, cq2, 3, IBV_WC_RECV_RDMA_WITH_IMM, len);
		CHECK(xrc_ends(&s) == IBV_WC_SUCCESS && xrc_ends(&s) == IBV_WC_SUCCESS);
		CHECK(!memcmp(s.buf, s.buf + XRC_SIZE / 2, len) &&
		      !memcmp(s.buf, s.buf + XRC_SIZE / 4 * 3, len));
		memset(s.buf, 0, len);
		xrc_post(&s, IBV_WR_RDMA_READ, s.srqn, 0, len, (uintptr_t)s.buf + XRC_SIZE / 2, s.mr->rkey);
		CHECK(xrc_ends(&s) == IBV_WC_SUCCESS && !memcmp(s.buf, s.buf + XRC_SIZE / 2, len));
	}
	word = (uint64_t *)(void *)(s.buf + XRC_SIZE / 2);
	*word = 5;
	xrc_post(&s, IBV_WR_ATOMIC_CMP_AND_SWP, s.srqn, 0, 8, (uintptr_t)word, s.mr->rkey);
	CHECK(xrc_ends(&s) == IBV_WC_SUCCESS && *word == 9 && *(uint64_t *)(void *)s.buf == 5);
	xrc_post(&s, IBV_WR_ATOMIC_FETCH_AND_ADD, second, 0, 8, (uintptr_t)word, s.mr->rkey);
	CHECK(xrc_ends(&s) == IBV_WC_SUCCESS && *word == 14 && *(uint64_t *)(void *)s.buf == 9);
	CHECK(!ibv_destroy_srq(srq2) && !ibv_destroy_cq(cq2));
	xrc_close_side(&s);
}

/* What a target's peer may reach is what the SRQ's protection domain has, whichever domain the initiator's
 * is. */
static void keys_are_of_the_srqs_domain(void)
{
	struct xrc_side s;
	struct ibv_pd *pd2;
	struct ibv_mr *mr2;
	struct ibv_srq *srq2;
	struct ibv_cq *cq2;
	uint32_t second;

	xrc_open_side(&s, -1);
	pd2 = ibv_alloc_pd(s.ctx);
	mr2 = ibv_reg_mr(pd2, s.buf, XRC_SIZE, KIT_ALL);
	cq2 = ibv_create_cq(s.ctx, XRC_DEPTH, NULL, NULL, 0);
	srq2 = xrc_make_srq(pd2, s.xrcd, cq2, &second);
	static const enum ibv_wr_opcode ops[] = {IBV_WR_RDMA_WRITE, IBV_WR_RDMA_READ,
						 IBV_WR_ATOMIC_FETCH_AND_ADD};

	for (unsigned i = 0; i < sizeof ops / sizeof *ops; i++) {
		xrc_connect_self(&s);
		xrc_post(&s, ops[i], second, 0, 8, (uintptr_t)s.buf + 4096, mr2->rkey);
		CHECK(xrc_ends(&s) == IBV_WC_SUCCESS);
		xrc_post(&s, ops[i], s.srqn, 0, 8, (uintptr_t)s.buf + 4096, s.mr->rkey);
		CHECK(xrc_ends(&s) == IBV_WC_SUCCESS);
		xrc_post(&s, ops[i], second, 0, 8, (uintptr_t)s.buf + 4096, s.mr->rkey);
		CHECK(xrc_ends(&s) == IBV_WC_REM_ACCESS_ERR);
		CHECK(xrc_event_of(s.ctx, s.tgt) == IBV_EVENT_QP_ACCESS_ERR);
	}
	/* A READ keeps its domain, though a message for the other comes before it is answered. */
	xrc_connect_self(&s);
	for (int i = 0; i < 100; i++) {
		xrc_post(&s, IBV_WR_RDMA_READ, second, 0, 8, (uintptr_t)s.buf + 4096, mr2->rkey);
		xrc_post(&s, IBV_WR_RDMA_WRITE, s.srqn, 0, 8, (uintptr_t)s.buf + 4096, s.mr->rkey);
		CHECK(xrc_ends(&s) == IBV_WC_SUCCESS && xrc_ends(&s) == IBV_WC_SUCCESS, "%d", i);
	}
	CHECK(!ibv_destroy_srq(srq2) && !ibv_destroy_cq(cq2) && !ibv_dereg_mr(mr2) && !ibv_dealloc_pd(pd2));
	xrc_close_side(&s);
}

/* Regions and windows that a message of XRC may reach (rules 44, 45, 48): a window's key while it is bound,
 * and a region's of the SRQ's domain only as long as it is there, and of that domain. */
static void rule_48_keys_come_and_go(void)
{
	struct ibv_mw_bind b = {.send_flags = IBV_SEND_SIGNALED};
	struct ibv_pd *elsewhere;
	struct ibv_mr *mr;
	struct ibv_mw *mw;
	struct xrc_side s;
	uint32_t key;

	xrc_open_side(&s, -1);
	elsewhere = ibv_alloc_pd(s.ctx);
	mr = ibv_reg_mr(s.pd, s.buf, XRC_SIZE, KIT_ALL | IBV_ACCESS_MW_BIND);
	mw = ibv_alloc_mw(s.pd, IBV_MW_TYPE_1);
	CHECK(elsewhere && mr && mw);
	for (int i = 0; i < 3; i++) {
		xrc_connect_self(&s);
		if (!i) { /* a window, bound by another queue pair of the domain */
			b.bind_info = (struct ibv_mw_bind_info){.mr = mr,
								.addr = (uintptr_t)s.buf + 4096,
								.length = 64,
								.mw_access_flags = IBV_ACCESS_REMOTE_WRITE};
			CHECK(!ibv_bind_mw(s.ini, mw, &b) && xrc_ends(&s) == IBV_WC_SUCCESS);
		}
		key = i ? mr->rkey : mw->rkey;
		s.buf[4096] = 0;
		s.buf[0] = 7;
		xrc_post(&s, IBV_WR_RDMA_WRITE, s.srqn, 0, 8, (uintptr_t)s.buf + 4096, key);
		CHECK(xrc_ends(&s) == IBV_WC_SUCCESS && s.buf[4096] == 7, "%d", i);
		if (!i) { /* unbound */
			b.bind_info.length = 0;
			CHECK(!ibv_bind_mw(s.ini, mw, &b) && xrc_ends(&s) == IBV_WC_SUCCESS);
			CHECK(!ibv_dealloc_mw(mw));
		} else if (i == 1) {
			CHECK(!ibv_rereg_mr(mr, IBV_REREG_MR_CHANGE_PD, elsewhere, NULL, 0, 0));
			key = mr->rkey;
		} else {
			CHECK(!ibv_dereg_mr(mr));
		}
		s.buf[0] = 8;
		xrc_post(&s, IBV_WR_RDMA_WRITE, s.srqn, 0, 8, (uintptr_t)s.buf + 4096, key);
		CHECK(xrc_ends(&s) == IBV_WC_REM_ACCESS_ERR && s.buf[4096] == 7, "%d", i);
		CHECK(xrc_event_of(s.ctx, s.tgt) == IBV_EVENT_QP_ACCESS_ERR);
		if (i == 1)
			CHECK(!ibv_rereg_mr(mr, IBV_REREG_MR_CHANGE_PD, s.pd, NULL, 0, 0));
	}
	CHECK(!ibv_dealloc_pd(elsewhere));
	xrc_close_side(&s);
}

/* A number that is nobody's, a basic SRQ's, another domain's: the same NAK, and the same event (annex A14).
 */
static void srqs_that_are_not_the_domains(void)
{
	struct ibv_srq_init_attr basic = {.attr = {.max_wr = 1, .max_sge = 1}};
	struct ibv_xrcd *other;
	struct ibv_srq *srq[2];
	struct xrc_side s;
	uint32_t number[3] = {0};

	xrc_open_side(&s, xrc_domain_file());
	other = xrc_open_domain(s.ctx, -1, O_CREAT);
	CHECK(other);
	srq[0] = ibv_create_srq(s.pd, &basic);
	CHECK(srq[0] && !ibv_get_srq_num(srq[0], &number[0]));
	srq[1] = xrc_make_srq(s.pd, other, s.rcq, &number[1]);
	number[2] = s.srqn ^ 0x800;
	for (int i = 0; i < 3; i++) {
		xrc_connect_self(&s);
		kit_log_skip();
		xrc_post(&s, IBV_WR_SEND, number[i], 0, 8, 0, 0);
		CHECK(xrc_ends(&s) == IBV_WC_REM_INV_RD_REQ_ERR, "%d", i);
		CHECK(xrc_event_of(s.ctx, s.tgt) == IBV_EVENT_QP_ACCESS_ERR);
		KIT_LOG_SAYS(
		    "target queue pair 0x%06x received a message for SRQ 0x%06x, %s", s.tgt->qp_num,
		    number[i],
		    i == 1 ? "which exists but belongs to another XRC domain; open the domain of the same "
			     "file (ibv_open_xrcd) for both"
			   : "but its XRC domain has no SRQ with that number");
	}
	CHECK(!ibv_destroy_srq(srq[0]) && !ibv_destroy_srq(srq[1]) && !ibv_close_xrcd(other));
	xrc_close_side(&s);
}

static void no_receive_is_posted(void)
{
	struct xrc_side s;

	xrc_open_side(&s, xrc_domain_file());
	xrc_connect_self(&s);
	xrc_post(&s, IBV_WR_SEND, s.srqn, 0, 8, 0, 0);
	CHECK(xrc_ends(&s) == IBV_WC_RNR_RETRY_EXC_ERR);
	xrc_close_side(&s);
}

/* An SRQ may go while a message for it is on its way, and takes its completions along. */
static void an_srq_goes(void)
{
	struct xrc_side s;
	struct ibv_wc wc;

	xrc_open_side(&s, xrc_domain_file());
	xrc_connect_self(&s);
	xrc_give(s.srq, s.mr, 1, 0, 8);
	xrc_post(&s, IBV_WR_SEND, s.srqn, 0, 8, 0, 0);
	CHECK(xrc_ends(&s) == IBV_WC_SUCCESS);
	CHECK(!ibv_destroy_srq(s.srq));
	CHECK(!ibv_poll_cq(s.rcq, 1, &wc));
	xrc_post(&s, IBV_WR_SEND, s.srqn, 0, 8, 0, 0);
	CHECK(xrc_ends(&s) == IBV_WC_REM_INV_RD_REQ_ERR);
	s.srq = xrc_make_srq(s.pd, s.xrcd, s.rcq, &s.srqn);
	xrc_connect_self(&s);
	xrc_give(s.srq, s.mr, 2, 0, 8);
	xrc_post(&s, IBV_WR_SEND, s.srqn, 0, 8, 0, 0);
	CHECK(xrc_ends(&s) == IBV_WC_SUCCESS);
	xrc_reset(s.tgt); /* which the completion outlives: it is the SRQ's */
	xrc_received(&s, s.rcq, 2, IBV_WC_RECV, 8);
	xrc_close_side(&s);
}

/* What a target has not got is refused at the call. */
static void what_is_refused(void)
{
	struct ibv_qp_init_attr_ex qa = {.qp_type = IBV_QPT_XRC_RECV, .comp_mask = IBV_QP_INIT_ATTR_PD};
	struct ibv_srq_init_attr_ex sa = {.attr = {.max_wr = 1, .max_sge = 1},
					  .comp_mask = IBV_SRQ_INIT_ATTR_TYPE | IBV_SRQ_INIT_ATTR_PD |
						       IBV_SRQ_INIT_ATTR_CQ,
					  .srq_type = IBV_SRQT_XRC};
	struct ibv_xrcd_init_attr xa = {.comp_mask = IBV_XRCD_INIT_ATTR_FD, .fd = -1};
	struct ibv_sge sge = {0};
	struct ibv_send_wr send = {.opcode = IBV_WR_SEND, .sg_list = &sge}, *bad_send;
	struct ibv_recv_wr recv = {.sg_list = &sge}, *bad_recv;
	struct ibv_qp *given;
	struct xrc_side s;

	xrc_open_side(&s, xrc_domain_file());
	qa.pd = s.pd;
	CHECK(!ibv_create_qp_ex(s.ctx, &qa));
	CHECK_EQ(errno, EINVAL);
	qa.comp_mask = IBV_QP_INIT_ATTR_XRCD;
	CHECK(!ibv_create_qp_ex(s.ctx, &qa));
	CHECK_EQ(errno, EINVAL);
	/* what it has no use for is not looked at */
	qa.comp_mask |= IBV_QP_INIT_ATTR_PD | IBV_QP_INIT_ATTR_SEND_OPS_FLAGS;
	qa.xrcd = s.xrcd;
	given = ibv_create_qp_ex(s.ctx, &qa);
	CHECK(given && !ibv_destroy_qp(given));
	qa.send_ops_flags = IBV_QP_EX_WITH_SEND;
	CHECK(!ibv_create_qp_ex(s.ctx, &qa));
	CHECK_EQ(errno, EOPNOTSUPP);
	sa.pd = s.pd;
	sa.cq = s.rcq;
	CHECK(!ibv_create_srq_ex(s.ctx, &sa));
	CHECK_EQ(errno, EINVAL);
	sa.comp_mask = IBV_SRQ_INIT_ATTR_TYPE | IBV_SRQ_INIT_ATTR_PD | IBV_SRQ_INIT_ATTR_XRCD;
	sa.xrcd = s.xrcd;
	CHECK(!ibv_create_srq_ex(s.ctx, &sa));
	CHECK_EQ(errno, EINVAL);
	CHECK(!ibv_open_xrcd(s.ctx, &xa));
	CHECK_EQ(errno, EINVAL);
	xa.comp_mask = 7;
	CHECK(!ibv_open_xrcd(s.ctx, &xa));
	CHECK_EQ(errno, EOPNOTSUPP);
	xrc_connect_self(&s);
	CHECK(ibv_post_send(s.tgt, &send, &bad_send) == EINVAL && bad_send == &send);
	CHECK(ibv_post_recv(s.tgt, &recv, &bad_recv) == EINVAL && bad_recv == &recv);
	CHECK(ibv_post_recv(s.ini, &recv, &bad_recv) == EINVAL);
	CHECK(ibv_close_xrcd(s.xrcd) == EBUSY);
	CHECK(ibv_destroy_cq(s.rcq) == EBUSY && ibv_dealloc_pd(s.pd) == EBUSY);
	xrc_close_side(&s);
}

/* Whoever has a target open may do what its maker may, hears its events, and keeps it. */
static void a_target_is_opened(void)
{
	int fd = xrc_domain_file();
	struct ibv_context *ctx;
	struct ibv_xrcd *x, *other;
	struct ibv_qp *h[2];
	struct ibv_send_wr send = {.opcode = IBV_WR_SEND}, *bad_send;
	struct ibv_recv_wr recv = {0}, *bad_recv;
	struct ibv_qp_init_attr init;
	struct ibv_qp_attr a;
	struct xrc_side s;
	uint32_t number;

	xrc_open_side(&s, fd);
	number = s.tgt->qp_num;
	ctx = kit_open();
	x = xrc_open_domain(ctx, fd, 0);
	other = xrc_open_domain(ctx, -1, O_CREAT);
	CHECK(x && other && !xrc_open_target(ctx, other, number));
	CHECK_EQ(errno, EINVAL);
	CHECK(!xrc_open_target(ctx, x, s.ini->qp_num));
	CHECK_EQ(errno, EINVAL);
	CHECK(!xrc_open_target(ctx, x, number ^ 0x800000));
	CHECK_EQ(errno, EINVAL);
	h[0] = xrc_open_target(ctx, x, number);
	h[1] = xrc_open_target(ctx, x, number);
	CHECK(h[0] && h[1] && ibv_close_xrcd(x) == EBUSY);
	CHECK(ibv_post_send(h[0], &send, &bad_send) == EINVAL &&
	      ibv_post_recv(h[0], &recv, &bad_recv) == EINVAL);
	xrc_reset(s.ini);
	xrc_to_rts(h[0], &s.gid, s.ini->qp_num);
	xrc_to_rts(s.ini, &s.gid, number);
	CHECK(h[0]->state == IBV_QPS_RTS);
	CHECK(h[1]->state == IBV_QPS_RESET); /* as it was when it was asked last */
	CHECK(!ibv_query_qp(h[1], &a, IBV_QP_STATE, &init) && a.qp_state == IBV_QPS_RTS &&
	      a.dest_qp_num == s.ini->qp_num && init.qp_context == h[1]->qp_context &&
	      h[1]->state == IBV_QPS_RTS);
	xrc_post(&s, IBV_WR_SEND, s.srqn + 1, 0, 8, 0, 0);
	CHECK(xrc_ends(&s) == IBV_WC_REM_INV_RD_REQ_ERR);
	CHECK(xrc_event_of(s.ctx, s.tgt) == IBV_EVENT_QP_ACCESS_ERR);
	for (int i = 0; i < 2; i++) { /* the latest first */
		struct ibv_async_event e;

		CHECK(!ibv_get_async_event(ctx, &e) && e.event_type == IBV_EVENT_QP_ACCESS_ERR &&
		      e.element.qp == h[!i]);
		ibv_ack_async_event(&e);
	}
	CHECK(!ibv_destroy_qp(h[0]) && !ibv_destroy_qp(s.tgt));
	xrc_reset(h[1]);
	xrc_reset(s.ini);
	xrc_to_rts(h[1], &s.gid, s.ini->qp_num);
	xrc_to_rts(s.ini, &s.gid, number);
	s.tgt = h[1];
	xrc_give(s.srq, s.mr, 7, 0, 8);
	xrc_post(&s, IBV_WR_SEND, s.srqn, 0, 8, 0, 0);
	xrc_received(&s, s.rcq, 7, IBV_WC_RECV, 8);
	CHECK(xrc_ends(&s) == IBV_WC_SUCCESS && ibv_close_xrcd(x) == EBUSY);
	CHECK(!ibv_destroy_srq(s.srq) && !ibv_close_xrcd(s.xrcd)); /* which the target uses no more */
	CHECK(!ibv_destroy_qp(h[1]) && !xrc_open_target(ctx, x, number));
	CHECK_EQ(errno, EINVAL);
	CHECK(!ibv_close_xrcd(x) && !ibv_close_xrcd(other) && !ibv_close_device(ctx));
	s.xrcd = xrc_open_domain(s.ctx, fd, O_CREAT);
	s.srq = xrc_make_srq(s.pd, s.xrcd, s.rcq, &s.srqn);
	s.tgt = xrc_make_target(s.ctx, s.xrcd);
	xrc_close_side(&s);
}

/* Its maker's device is closed, and the target left to who has it open: it serves until that one lets go. */
static void a_closed_device_leaves_a_target(void)
{
	struct ibv_context *maker, *part;
	struct ibv_xrcd *x;
	struct ibv_qp *tgt, *h;
	struct xrc_side s;
	int fd = xrc_domain_file();

	xrc_open_side(&s, fd);
	maker = kit_open();
	tgt = xrc_make_target(maker, xrc_open_domain(maker, fd, 0));
	part = kit_open();
	x = xrc_open_domain(part, fd, 0);
	h = xrc_open_target(part, x, tgt->qp_num);
	CHECK(h);
	xrc_timeout = 8;
	xrc_to_rts(h, &s.gid, s.ini->qp_num);
	xrc_to_rts(s.ini, &s.gid, tgt->qp_num);
	xrc_timeout = 14;
	CHECK(!ibv_close_device(maker));
	xrc_give(s.srq, s.mr, 1, XRC_SIZE / 2, 64);
	xrc_give(s.srq, s.mr, 2, XRC_SIZE / 2, 64);
	xrc_post(&s, IBV_WR_SEND, s.srqn, 0, 8, 0, 0);
	CHECK(xrc_ends(&s) == IBV_WC_SUCCESS);
	CHECK(!ibv_destroy_qp(h) && !ibv_close_xrcd(x) && !ibv_close_device(part));
	xrc_post(&s, IBV_WR_SEND, s.srqn, 0, 8, 0, 0);
	CHECK(xrc_ends(&s) == IBV_WC_RETRY_EXC_ERR);
	xrc_close_side(&s);
}

/* A domain is a file's, and exists as long as somebody has it open. */
static void domains(void)
{
	struct {
		_Atomic int step;
	} *board = kit_shared(sizeof *board);
	int fd = xrc_domain_file(), again = dup(fd), status;
	struct ibv_context *ctx;
	struct ibv_xrcd *x, *y;
	pid_t child = kit_fork();

	if (!child) {
		ctx = kit_open();
		CHECK(!xrc_open_domain(ctx, fd, 0));
		CHECK_EQ(errno, EAGAIN);
		x = xrc_open_domain(ctx, fd, O_CREAT | O_EXCL);
		CHECK(x, "%s", strerror(errno));
		atomic_store(&board->step, 1);
		for (;;)
			pause();
	}
	kit_until(&board->step, 1);
	ctx = kit_open();
	CHECK(!xrc_open_domain(ctx, fd, O_CREAT | O_EXCL));
	CHECK_EQ(errno, EINVAL);
	x = xrc_open_domain(ctx, again, 0);
	CHECK(x, "%s", strerror(errno));
	CHECK(!ibv_close_xrcd(x));
	CHECK(!kill(child, SIGKILL) && waitpid(child, &status, 0) == child);
	CHECK(!xrc_open_domain(ctx, fd, 0));
	CHECK_EQ(errno, EAGAIN);
	x = xrc_open_domain(ctx, fd, O_CREAT | O_EXCL);
	CHECK(x && !xrc_open_domain(ctx, again, O_CREAT | O_EXCL));
	CHECK_EQ(errno, EINVAL);
	y = xrc_open_domain(ctx, again, 0);
	CHECK(y && !ibv_close_xrcd(x) && !ibv_close_xrcd(y));
	CHECK(!xrc_open_domain(ctx, fd, 0));
	CHECK_EQ(errno, EAGAIN);
	CHECK(!xrc_open_domain(ctx, 1000, O_CREAT));
	CHECK_EQ(errno, EBADF);
	x = xrc_open_domain(ctx, -1, O_CREAT);
	y = xrc_open_domain(ctx, -1, O_CREAT | O_EXCL);
	CHECK(x && y && !ibv_close_xrcd(x) && !ibv_close_xrcd(y) && !ibv_close_device(ctx));
}

/* Both ways between two processes, each with an initiator and a target; large SENDs are lent. */
struct card {
	union ibv_gid gid;
	uint32_t ini, tgt, srqn, rkey;
	uint64_t addr;
};
struct talk {
	struct card card[2];
	_Atomic int opened, connected, done;
};

static void talk(struct talk *t, int me, int fd)
{
	const struct card *peer = &t->card[!me];
	struct xrc_side s;

	xrc_open_side(&s, fd);
	t->card[me] =
	    (struct card){s.gid, s.ini->qp_num, s.tgt->qp_num, s.srqn, s.mr->rkey, (uintptr_t)s.buf};
	atomic_fetch_add(&t->opened, 1);
	kit_until(&t->opened, 2);
	xrc_to_rts(s.tgt, &peer->gid, peer->ini);
	xrc_to_rts(s.ini, &peer->gid, peer->tgt);
	for (int i = 0; i < XRC_DEPTH; i++)
		xrc_give(s.srq, s.mr, (uint64_t)i, XRC_SIZE / 2, XRC_SIZE / 2);
	atomic_fetch_add(&t->connected, 1);
	kit_until(&t->connected, 2);
	memset(s.buf, 'a' + me, XRC_SIZE / 4);
	for (int i = 0; i < XRC_DEPTH; i++) {
		uint32_t len = i % 2 ? XRC_SIZE / 4 : 64;

		xrc_post(&s, IBV_WR_SEND, peer->srqn, 0, len, 0, 0);
		xrc_received(&s, s.rcq, (uint64_t)i, IBV_WC_RECV, len);
		CHECK(xrc_ends(&s) == IBV_WC_SUCCESS);
		CHECK(s.buf[XRC_SIZE / 2] == 'a' + !me && s.buf[XRC_SIZE / 2 + len - 1] == 'a' + !me);
		xrc_post(&s, IBV_WR_RDMA_WRITE, peer->srqn, 0, len, peer->addr + XRC_SIZE / 4, peer->rkey);
		CHECK(xrc_ends(&s) == IBV_WC_SUCCESS);
	}
	xrc_post(&s, IBV_WR_RDMA_READ, peer->srqn, XRC_SIZE / 2, 64, peer->addr + XRC_SIZE / 4, peer->rkey);
	CHECK(xrc_ends(&s) == IBV_WC_SUCCESS && s.buf[XRC_SIZE / 2] == 'a' + me);
	atomic_fetch_add(&t->done, 1);
	kit_until(&t->done, 2);
	xrc_close_side(&s);
}

/* The ACK of a message comes from another queue pair than the answer to it, and yet first: a program that
 * waits for both learns that its message has arrived before it gets the answer. */
enum { ROUNDS = 5000 };

static void chat_ends(struct ibv_cq *cq, enum ibv_wc_opcode op, int me, int round)
{
	struct ibv_wc wc = xrc_wait_on(cq);

	CHECK(wc.status == IBV_WC_SUCCESS && wc.opcode == op, "process %d, round %d: %s, opcode %d", me,
	      round, ibv_wc_status_str(wc.status), wc.opcode);
}

static void chat(struct talk *t, int me, int fd)
{
	const struct card *peer = &t->card[!me];
	struct xrc_side s;
	struct ibv_srq *srq;
	uint32_t number;

	xrc_open_side(&s, fd);
	srq = xrc_make_srq(s.pd, s.xrcd, s.cq, &number); /* what goes and what comes end in one queue */
	t->card[me] = (struct card){.gid = s.gid, .ini = s.ini->qp_num, .tgt = s.tgt->qp_num, .srqn = number};
	atomic_fetch_add(&t->opened, 1);
	kit_until(&t->opened, 2);
	xrc_to_rts(s.tgt, &peer->gid, peer->ini);
	xrc_to_rts(s.ini, &peer->gid, peer->tgt);
	xrc_give(srq, s.mr, 0, XRC_SIZE / 2, 64);
	atomic_fetch_add(&t->connected, 1);
	kit_until(&t->connected, 2);
	for (int i = 0; i < ROUNDS; i++) {
		if (!me)
			xrc_post(&s, IBV_WR_SEND, peer->srqn, 0, 8, 0, 0);
		if (!me || i) /* its last answer's ACK comes before the next message */
			chat_ends(s.cq, IBV_WC_SEND, me, i);
		chat_ends(s.cq, IBV_WC_RECV, me, i);
		xrc_give(srq, s.mr, 0, XRC_SIZE / 2, 64);
		if (me)
			xrc_post(&s, IBV_WR_SEND, peer->srqn, 0, 8, 0, 0);
	}
	if (me)
		chat_ends(s.cq, IBV_WC_SEND, me, ROUNDS);
	atomic_fetch_add(&t->done, 1);
	kit_until(&t->done, 2);
	CHECK(!ibv_destroy_srq(srq));
	xrc_close_side(&s);
}

static void two(void (*side)(struct talk *, int, int))
{
	struct talk *t = kit_shared(sizeof *t);
	int fd = xrc_domain_file();
	pid_t child = kit_fork();

	side(t, !child, fd);
	if (!child)
		exit(0);
	CHECK_EQ(kit_reap(child), 0);
}

static void two_processes(void)
{
	two(talk);
}

static void an_answer_comes_behind_the_ack(void)
{
	two(chat);
}

/* Many initiators, each of a process of its own, and two SRQs of the one that they all send to. */
enum { SENDERS = 16, EACH = 50 };

struct crowd {
	struct card target;
	uint32_t second;
	uint32_t tgt[SENDERS], ini[SENDERS];
	_Atomic int opened, ready, done;
};

static void sender(struct crowd *c, int i)
{
	struct xrc_side s;

	xrc_rnr_retry = 7; /* more may come at once than there are receive requests */
	xrc_open_side(&s, -1);
	c->ini[i] = s.ini->qp_num;
	atomic_fetch_add(&c->opened, 1);
	kit_until(&c->ready, 1);
	xrc_to_rts(s.ini, &c->target.gid, c->tgt[i]);
	for (uint32_t k = 0; k < EACH; k++) {
		*(uint32_t *)(void *)s.buf = (uint32_t)i << 16 | k;
		xrc_post(&s, IBV_WR_SEND, k % 2 ? c->second : c->target.srqn, 0, 4 + k, 0, 0);
		CHECK(xrc_ends(&s) == IBV_WC_SUCCESS);
	}
	atomic_fetch_add(&c->done, 1);
	kit_until(&c->done, SENDERS + 1);
	/* the target's process was killed */
	xrc_post(&s, IBV_WR_SEND, c->target.srqn, 0, 8, 0, 0);
	CHECK(xrc_ends(&s) != IBV_WC_SUCCESS);
	xrc_close_side(&s);
	exit(0);
}

/* Each sender's messages for one SRQ come in their order, whoever else sends there. */
static void everybodys(struct crowd *c)
{
	uint32_t next[SENDERS][2], room = XRC_SIZE / 2 / (2 * XRC_DEPTH);
	struct ibv_qp *tgt[SENDERS];
	struct ibv_srq *srq[2];
	struct xrc_side s;

	xrc_open_side(&s, -1);
	srq[0] = s.srq;
	srq[1] = xrc_make_srq(s.pd, s.xrcd, s.rcq, &c->second);
	c->target = (struct card){.gid = s.gid, .srqn = s.srqn};
	for (int i = 0; i < SENDERS; i++) {
		next[i][0] = 0;
		next[i][1] = 1;
		tgt[i] = xrc_make_target(s.ctx, s.xrcd);
		c->tgt[i] = tgt[i]->qp_num;
		xrc_to_rts(tgt[i], &s.gid, c->ini[i]);
	}
	for (uint32_t k = 0; k < 2 * XRC_DEPTH; k++)
		xrc_give(srq[k % 2], s.mr, k, k * room, room);
	atomic_store(&c->ready, 1);
	for (uint32_t n = 0; n < SENDERS * EACH; n++) {
		struct ibv_wc wc = xrc_wait_on(s.rcq);
		uint32_t says = *(uint32_t *)(void *)(s.buf + wc.wr_id * room), i = says >> 16;

		CHECK_EQ(wc.status, IBV_WC_SUCCESS);
		CHECK(i < SENDERS && wc.qp_num == tgt[i]->qp_num);
		CHECK((says & 0xffff) == next[i][wc.wr_id % 2] && wc.byte_len == 4 + (says & 0xffff), "%x",
		      says);
		next[i][wc.wr_id % 2] += 2;
		xrc_give(srq[wc.wr_id % 2], s.mr, wc.wr_id, wc.wr_id * room, room);
	}
	kit_until(&c->done, SENDERS);
	raise(SIGKILL);
}

static void many_senders(void)
{
	struct crowd *c = kit_shared(sizeof *c);
	pid_t target, sends[SENDERS];
	int status;

	for (int i = 0; i < SENDERS; i++) {
		sends[i] = kit_fork();
		if (!sends[i])
			sender(c, i);
	}
	kit_until(&c->opened, SENDERS);
	target = kit_fork();
	if (!target)
		everybodys(c);
	CHECK(waitpid(target, &status, 0) == target && WIFSIGNALED(status));
	atomic_fetch_add(&c->done, 1); /* not before, or what is sent next may arrive still */
	for (int i = 0; i < SENDERS; i++)
		CHECK_EQ(kit_reap(sends[i]), 0);
}

static const struct kit_case cases[] = {
    {.name = "all operations", .run = all_operations, .clean = true},
    {.name = "keys are of the SRQ's domain", .run = keys_are_of_the_srqs_domain, .clean = true},
    {.name = "keys come and go", .run = rule_48_keys_come_and_go, .clean = true},
    {.name = "SRQs that are not the domain's", .run = srqs_that_are_not_the_domains, .clean = true},
    {.name = "no receive is posted", .run = no_receive_is_posted, .clean = true},
    {.name = "an SRQ goes", .run = an_srq_goes, .clean = true},
    {.name = "what is refused", .run = what_is_refused, .clean = true},
    {.name = "a target is opened", .run = a_target_is_opened, .clean = true},
    {.name = "a closed device leaves a target", .run = a_closed_device_leaves_a_target},
    {.name = "domains", .run = domains, .clean = true},
    {.name = "two processes", .run = two_processes, .clean = true},
    {.name = "an answer comes behind the ACK", .run = an_answer_comes_behind_the_ack, .clean = true},
    {.name = "many senders", .run = many_senders, .clean = true},
};

int main(int argc, char **argv)
{
	kit_log_begin("warn");
	KIT_CASES(cases, 120);
	printf("ok\n");
	return 0;
}
