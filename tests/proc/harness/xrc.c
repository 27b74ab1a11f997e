#include "xrc.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>

int xrc_domain_file(void)
{
	char name[] = "/tmp/verbena-xrc-XXXXXX";
	int fd = mkstemp(name);

	CHECK(fd >= 0 && !unlink(name));
	return fd;
}

struct ibv_xrcd *xrc_open_domain(struct ibv_context *ctx, int fd, int oflags)
{
	struct ibv_xrcd_init_attr a = {
	    .comp_mask = IBV_XRCD_INIT_ATTR_FD | IBV_XRCD_INIT_ATTR_OFLAGS, .fd = fd, .oflags = oflags};

	errno = 0;
	return ibv_open_xrcd(ctx, &a);
}

struct ibv_srq *xrc_make_srq(struct ibv_pd *pd, struct ibv_xrcd *x, struct ibv_cq *cq, uint32_t *number)
{
	struct ibv_srq_init_attr_ex a = {.attr = {.max_wr = XRC_DEPTH, .max_sge = 2},
					 .comp_mask = IBV_SRQ_INIT_ATTR_TYPE | IBV_SRQ_INIT_ATTR_PD |
						      IBV_SRQ_INIT_ATTR_XRCD | IBV_SRQ_INIT_ATTR_CQ,
					 .srq_type = IBV_SRQT_XRC,
					 .pd = pd,
					 .xrcd = x,
					 .cq = cq};
	struct ibv_srq *srq = ibv_create_srq_ex(pd->context, &a);

	CHECK(srq, "%s", strerror(errno));
	CHECK(!ibv_get_srq_num(srq, number) && *number);
	return srq;
}

struct ibv_qp *xrc_make_target(struct ibv_context *ctx, struct ibv_xrcd *x)
{
	struct ibv_qp_init_attr_ex a = {
	    .qp_type = IBV_QPT_XRC_RECV, .comp_mask = IBV_QP_INIT_ATTR_XRCD, .xrcd = x};
	struct ibv_qp *qp = ibv_create_qp_ex(ctx, &a);

	CHECK(qp && !qp->pd && !qp->send_cq && !qp->recv_cq && !qp->srq, "%s", strerror(errno));
	return qp;
}

struct ibv_qp *xrc_make_initiator(struct ibv_pd *pd, struct ibv_cq *cq)
{
	struct ibv_qp_init_attr_ex a = {
	    .qp_type = IBV_QPT_XRC_SEND,
	    .comp_mask = IBV_QP_INIT_ATTR_PD,
	    .pd = pd,
	    .send_cq = cq,
	    .cap = {.max_send_wr = XRC_DEPTH, .max_send_sge = 2, .max_inline_data = 64}};
	struct ibv_qp *qp = ibv_create_qp_ex(pd->context, &a);

	CHECK(qp && !qp->recv_cq, "%s", strerror(errno));
	return qp;
}

void xrc_open_side(struct xrc_side *s, int fd)
{
	s->ctx = kit_open();
	s->pd = ibv_alloc_pd(s->ctx);
	s->cq = ibv_create_cq(s->ctx, 2 * XRC_DEPTH, NULL, NULL, 0);
	s->rcq = ibv_create_cq(s->ctx, 2 * XRC_DEPTH, NULL, NULL, 0);
	s->xrcd = xrc_open_domain(s->ctx, fd, O_CREAT);
	CHECK(s->pd && s->cq && s->rcq && s->xrcd, "%s", strerror(errno));
	s->srq = xrc_make_srq(s->pd, s->xrcd, s->rcq, &s->srqn);
	s->tgt = xrc_make_target(s->ctx, s->xrcd);
	s->ini = xrc_make_initiator(s->pd, s->cq);
	s->buf = calloc(1, XRC_SIZE);
	s->mr = ibv_reg_mr(s->pd, s->buf, XRC_SIZE, KIT_ALL);
	CHECK(s->mr && !ibv_query_gid(s->ctx, 1, 0, &s->gid));
}

void xrc_close_side(struct xrc_side *s)
{
	CHECK(!ibv_destroy_qp(s->ini) && !ibv_destroy_qp(s->tgt));
	CHECK(!ibv_destroy_srq(s->srq) && !ibv_close_xrcd(s->xrcd));
	CHECK(!ibv_destroy_cq(s->cq) && !ibv_destroy_cq(s->rcq));
	CHECK(!ibv_dereg_mr(s->mr) && !ibv_dealloc_pd(s->pd) && !ibv_close_device(s->ctx));
	free(s->buf);
}

void xrc_reset(struct ibv_qp *qp)
{
	struct ibv_qp_attr a = {.qp_state = IBV_QPS_RESET};

	CHECK(!ibv_modify_qp(qp, &a, IBV_QP_STATE));
}

/* As programs do it that know RC: what one of the two types has no use for is given all the same, and
 * ignored. rnr_retry 1: a receive request that is missing is soon told. */
uint8_t xrc_rnr_retry = 1, xrc_timeout = 14;

void xrc_to_rtr(struct ibv_qp *qp, const union ibv_gid *gid, uint32_t dest)
{
	const int init = IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS;
	const int rtr = IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN |
			IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER;
	struct ibv_qp_attr a = {.qp_state = IBV_QPS_INIT,
				.port_num = 1,
				.qp_access_flags = KIT_ALL,
				.path_mtu = IBV_MTU_1024,
				.dest_qp_num = dest,
				.ah_attr = {.port_num = 1, .is_global = 1, .grh = {.dgid = *gid}},
				.max_dest_rd_atomic = 8,
				.min_rnr_timer = 1};

	CHECK(!ibv_modify_qp(qp, &a, init), "%s", strerror(errno));
	a.qp_state = IBV_QPS_RTR;
	CHECK(!ibv_modify_qp(qp, &a, rtr), "%s", strerror(errno));
}

void xrc_to_rts(struct ibv_qp *qp, const union ibv_gid *gid, uint32_t dest)
{
	const int rts = IBV_QP_STATE | IBV_QP_TIMEOUT | IBV_QP_SQ_PSN | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY |
			IBV_QP_MAX_QP_RD_ATOMIC;
	struct ibv_qp_attr a = {.qp_state = IBV_QPS_RTS,
				.max_rd_atomic = 8,
				.timeout = xrc_timeout,
				.retry_cnt = 7,
				.rnr_retry = xrc_rnr_retry};

	xrc_to_rtr(qp, gid, dest);
	CHECK(!ibv_modify_qp(qp, &a, rts), "%s", strerror(errno));
}

/* A queue pair may be connected to one of its own process. */
void xrc_connect_self(struct xrc_side *s)
{
	xrc_reset(s->ini);
	xrc_reset(s->tgt);
	xrc_to_rts(s->tgt, &s->gid, s->ini->qp_num);
	xrc_to_rts(s->ini, &s->gid, s->tgt->qp_num);
}

void xrc_give(struct ibv_srq *srq, const struct ibv_mr *mr, uint64_t wr_id, size_t at, uint32_t len)
{
	struct ibv_sge sge = {(uintptr_t)mr->addr + at, len, mr->lkey};
	struct ibv_recv_wr wr = {.wr_id = wr_id, .sg_list = &sge, .num_sge = 1}, *bad;

	CHECK(!ibv_post_srq_recv(srq, &wr, &bad));
}

void xrc_post(const struct xrc_side *s, enum ibv_wr_opcode op, uint32_t srqn, size_t at, uint32_t len,
	      uint64_t raddr, uint32_t rkey)
{
	struct ibv_sge sge = {(uintptr_t)s->buf + at, len, s->mr->lkey};
	struct ibv_send_wr wr = {.wr_id = op,
				 .opcode = op,
				 .send_flags = IBV_SEND_SIGNALED,
				 .sg_list = &sge,
				 .num_sge = 1,
				 .imm_data = 0x01020304,
				 .qp_type.xrc.remote_srqn = srqn},
			   *bad;

	if (op >= IBV_WR_ATOMIC_CMP_AND_SWP && op <= IBV_WR_ATOMIC_FETCH_AND_ADD) {
		wr.wr.atomic.remote_addr = raddr;
		wr.wr.atomic.rkey = rkey;
		wr.wr.atomic.compare_add = 5;
		wr.wr.atomic.swap = 9;
	} else {
		wr.wr.rdma.remote_addr = raddr;
		wr.wr.rdma.rkey = rkey;
	}
	CHECK(!ibv_post_send(s->ini, &wr, &bad), "%s", strerror(errno));
}

/* The next completion; who receives polls meanwhile. */
struct ibv_wc xrc_wait_on(struct ibv_cq *cq)
{
	double end = kit_now() + 60;
	struct ibv_wc wc;
	int n;

	while (!(n = ibv_poll_cq(cq, 1, &wc)))
		CHECK(kit_now() < end, "no completion");
	CHECK(n == 1);
	return wc;
}

enum ibv_wc_status xrc_ends(const struct xrc_side *s)
{
	return xrc_wait_on(s->cq).status;
}

void xrc_received(const struct xrc_side *s, struct ibv_cq *cq, uint64_t wr_id, enum ibv_wc_opcode op,
		  uint32_t len)
{
	struct ibv_wc wc = xrc_wait_on(cq);

	CHECK(wc.status == IBV_WC_SUCCESS && wc.wr_id == wr_id && wc.opcode == op && wc.byte_len == len,
	      "%s, wr_id %lu, opcode %d, %u bytes", ibv_wc_status_str(wc.status), (unsigned long)wc.wr_id,
	      wc.opcode, wc.byte_len);
	CHECK(wc.qp_num == s->tgt->qp_num, "0x%06x", wc.qp_num);
}

enum ibv_event_type xrc_event_of(struct ibv_context *ctx, void *element)
{
	struct pollfd f = {.fd = ctx->async_fd, .events = POLLIN};
	struct ibv_async_event e;

	CHECK(poll(&f, 1, 20000) == 1, "no event");
	CHECK(!ibv_get_async_event(ctx, &e));
	CHECK(e.element.qp == element);
	ibv_ack_async_event(&e);
	return e.event_type;
}

struct ibv_qp *xrc_open_target(struct ibv_context *ctx, struct ibv_xrcd *x, uint32_t number)
{
	struct ibv_qp_open_attr a = {.comp_mask = IBV_QP_OPEN_ATTR_NUM | IBV_QP_OPEN_ATTR_XRCD |
						  IBV_QP_OPEN_ATTR_TYPE | IBV_QP_OPEN_ATTR_CONTEXT,
				     .qp_num = number,
				     .xrcd = x,
				     .qp_context = x,
				     .qp_type = IBV_QPT_XRC_RECV};
	struct ibv_qp *qp;

	errno = 0;
	qp = ibv_open_qp(ctx, &a);
	CHECK(!qp || (qp->qp_num == number && qp->qp_context == x && qp->qp_type == IBV_QPT_XRC_RECV &&
		      qp->context == ctx));
	return qp;
}
