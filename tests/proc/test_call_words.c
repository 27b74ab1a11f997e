/* Sentences of refused calls and failed requests name what is meant: enumerators by their names, one thing as
 * one thing, and no number that no program has ever seen. */
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdarg.h>

#include "kit.h"

static struct ibv_context *ctx;
static struct ibv_pd *pd;
static struct kit_end a, b;

#define SAID(...) said(__LINE__, __VA_ARGS__)

static __attribute__((format(printf, 2, 3))) void said(int line, const char *fmt, ...)
{
	char what[256];
	const char *text = kit_log_take();
	va_list ap;

	va_start(ap, fmt);
	vsnprintf(what, sizeof what, fmt, ap);
	va_end(ap);
	CHECK(strstr(text, what), "line %d: no '%s' in:\n%s", line, what, text);
}

static void queue_pairs(void)
{
	struct ibv_cq *cq = ibv_create_cq(ctx, 1, NULL, NULL, 0);
	struct ibv_qp_init_attr qa = {.send_cq = cq, .recv_cq = cq};
	struct ibv_qp_init_attr_ex qx = {.qp_type = IBV_QPT_RC, .send_cq = cq, .recv_cq = cq, .pd = pd};
	struct ibv_qp_attr at = {.qp_state = IBV_QPS_RTR,
				 .path_mtu = (enum ibv_mtu)1024,
				 .ah_attr = {.is_global = 1, .port_num = 1}};
	uint32_t far;

	CHECK(cq);
	kit_log_skip();
	qa.qp_type = IBV_QPT_RAW_PACKET;
	CHECK(!ibv_create_qp(pd, &qa));
	CHECK_EQ(errno, EOPNOTSUPP);
	SAID("QPs of type IBV_QPT_RAW_PACKET are not supported; use one of IBV_QPT_RC, IBV_QPT_UC, "
	     "IBV_QPT_UD, "
	     "IBV_QPT_XRC_SEND, IBV_QPT_XRC_RECV");
	qa.qp_type = (enum ibv_qp_type)77;
	CHECK(!ibv_create_qp(pd, &qa));
	CHECK_EQ(errno, EINVAL);
	SAID("qp_type 77 is unknown");
	qx.comp_mask = IBV_QP_INIT_ATTR_PD | IBV_QP_INIT_ATTR_RX_HASH | IBV_QP_INIT_ATTR_IND_TABLE;
	CHECK(!ibv_create_qp_ex(ctx, &qx));
	CHECK_EQ(errno, EOPNOTSUPP);
	SAID("comp_mask: IBV_QP_INIT_ATTR_IND_TABLE | IBV_QP_INIT_ATTR_RX_HASH is not supported");
	qx.comp_mask = IBV_QP_INIT_ATTR_PD | IBV_QP_INIT_ATTR_CREATE_FLAGS;
	qx.create_flags = IBV_QP_CREATE_SCATTER_FCS | 1u << 30;
	CHECK(!ibv_create_qp_ex(ctx, &qx));
	CHECK_EQ(errno, EOPNOTSUPP);
	SAID("create_flags: IBV_QP_CREATE_SCATTER_FCS | 0x40000000 is not supported");
	CHECK(!ibv_destroy_cq(cq));
	kit_end_open(&a, pd, 4, 64);
	CHECK(ibv_modify_qp(a.qp, &(struct ibv_qp_attr){.qp_state = (enum ibv_qp_state)9}, IBV_QP_STATE) ==
	      EINVAL);
	SAID("qp_state 9 is unknown");
	at.ah_attr.grh.dgid = a.card.gid;
	CHECK(ibv_modify_qp(a.qp, &at,
			    IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN |
				IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER) == EINVAL);
	SAID("path_mtu 1024 is not an enum ibv_mtu; use IBV_MTU_256 (1) to IBV_MTU_4096 (5)");
	kit_end_open(&b, pd, 4, 64);
	far = b.qp->qp_num & 0xff ? b.qp->qp_num : a.qp->qp_num; /* swapped, it has more than 24 bits */
	at.dest_qp_num = htonl(far);
	at.path_mtu = IBV_MTU_1024;
	CHECK(ibv_modify_qp(a.qp, &at,
			    IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN |
				IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER) == EINVAL);
	SAID("dest_qp_num 0x%08x exceeds the limit of 0xffffff; byte-swapped it is 0x%06x, a queue pair of "
	     "this process. Set it in host byte order",
	     at.dest_qp_num, far);
	kit_end_close(&a);
	kit_end_close(&b);
}

/* A state that permits no request, and a step left out: what comes first. */
static void states(void)
{
	struct ibv_qp_attr rts = {.qp_state = IBV_QPS_RTS}, init = {.qp_state = IBV_QPS_INIT, .port_num = 1},
			   rtr = {.qp_state = IBV_QPS_RTR}, sqd = {.qp_state = IBV_QPS_SQD};

	kit_end_open(&a, pd, 4, 64);
	kit_log_skip();
	CHECK_EQ(ibv_modify_qp(a.qp, &rts, IBV_QP_STATE), EINVAL);
	SAID("QP 0x%06x: INIT to RTS is not a valid transition; modify it to RTR first (EINVAL)",
	     a.qp->qp_num);
	CHECK_EQ(kit_post(&a, IBV_WR_SEND, 1, 0, 8, NULL, 0), EINVAL);
	SAID("QP 0x%06x is in INIT: sends require RTS; modify it to RTR and RTS first (ibv_modify_qp)",
	     a.qp->qp_num);
	kit_to_rtr(&a, &a.card);
	kit_log_skip();
	CHECK_EQ(kit_post(&a, IBV_WR_SEND, 1, 0, 8, NULL, 0), EINVAL);
	SAID("QP 0x%06x is in RTR: sends require RTS; modify it first (ibv_modify_qp)", a.qp->qp_num);
	CHECK_EQ(ibv_modify_qp(a.qp, &sqd, IBV_QP_STATE), EINVAL);
	SAID("RTR to SQD is not a valid transition; modify it to RTS first");
	CHECK_EQ(ibv_modify_qp(a.qp, &init, IBV_QP_STATE), EINVAL);
	SAID("RTR to INIT is not a valid transition; modify it to RESET first");
	kit_to_rts(&a, 10, 1);
	CHECK_EQ(ibv_modify_qp(a.qp, &(struct ibv_qp_attr){.qp_state = IBV_QPS_SQE}, IBV_QP_STATE), EINVAL);
	SAID("RTS to SQE is not a valid transition; only a failed send request leads there (EINVAL)");
	CHECK_EQ(ibv_modify_qp(a.qp, &(struct ibv_qp_attr){.qp_state = IBV_QPS_ERR}, IBV_QP_STATE), 0);
	CHECK_EQ(ibv_modify_qp(a.qp, &rtr, IBV_QP_STATE), EINVAL);
	SAID("ERR to RTR is not a valid transition; modify it to RESET first, the only way from here");
	CHECK_EQ(ibv_modify_qp(a.qp, &(struct ibv_qp_attr){.qp_state = IBV_QPS_RESET}, IBV_QP_STATE), 0);
	CHECK_EQ(ibv_modify_qp(a.qp, &rtr, IBV_QP_STATE), EINVAL);
	SAID("RESET to RTR is not a valid transition; modify it to INIT first");
	CHECK_EQ(kit_recv(&a, 1, 0, 8), EINVAL);
	SAID("QP 0x%06x is in RESET: receives require INIT and sends require RTS; modify it first "
	     "(ibv_modify_qp)",
	     a.qp->qp_num);
	kit_end_close(&a);
}

static void shared_queues(void)
{
	struct ibv_srq_init_attr_ex sx = {.attr = {.max_wr = 1, .max_sge = 1},
					  .comp_mask = IBV_SRQ_INIT_ATTR_TYPE,
					  .srq_type = IBV_SRQT_TM};
	struct ibv_srq_init_attr si = {.attr = {.max_wr = 1, .max_sge = 1}};
	struct ibv_comp_channel *channel = ibv_create_comp_channel(ctx);
	struct ibv_cq *cq = ibv_create_cq(ctx, 4, NULL, channel, 0);
	struct ibv_srq *srq = ibv_create_srq(pd, &si);
	struct ibv_qp_init_attr qa = {.qp_type = IBV_QPT_RC, .send_cq = cq, .recv_cq = cq, .srq = srq};
	struct ibv_qp *qp;

	CHECK(channel && cq && srq);
	kit_log_skip();
	CHECK(!ibv_create_srq_ex(ctx, &sx));
	SAID("SRQs of type IBV_SRQT_TM are not supported: the device has no tag matching");
	sx.srq_type = IBV_SRQT_BASIC;
	sx.comp_mask = IBV_SRQ_INIT_ATTR_TYPE | IBV_SRQ_INIT_ATTR_TM | IBV_SRQ_INIT_ATTR_PD;
	CHECK(!ibv_create_srq_ex(ctx, &sx));
	SAID("comp_mask: IBV_SRQ_INIT_ATTR_TM is not supported");
	qp = ibv_create_qp(pd, &qa);
	CHECK(qp);
	CHECK(ibv_destroy_srq(srq) == EBUSY);
	SAID("1 QP uses the SRQ");
	CHECK(ibv_destroy_comp_channel(channel) == EBUSY);
	SAID("1 CQ uses the completion channel");
	CHECK(ibv_dealloc_pd(pd) == EBUSY);
	SAID("ibv_dealloc_pd: the protection domain still has 1 queue pair, 1 shared receive queue (for "
	     "example "
	     "QP 0x%06x): destroy them first",
	     qp->qp_num);
	CHECK(!ibv_destroy_qp(qp) && !ibv_destroy_srq(srq) && !ibv_destroy_cq(cq) &&
	      !ibv_destroy_comp_channel(channel));
}

/* The domain that an object requires: it was not given, or it is another context's. */
static void domains_of_objects(void)
{
	struct ibv_context *other = kit_open();
	struct ibv_pd *others = ibv_alloc_pd(other);
	struct ibv_cq *cq = ibv_create_cq(ctx, 1, NULL, NULL, 0);
	struct ibv_srq_init_attr_ex sx = {.attr = {.max_wr = 1, .max_sge = 1},
					  .comp_mask = IBV_SRQ_INIT_ATTR_TYPE,
					  .srq_type = IBV_SRQT_XRC};
	struct ibv_qp_init_attr_ex qx = {.qp_type = IBV_QPT_RC, .send_cq = cq, .recv_cq = cq, .pd = pd};
	struct ibv_srq_init_attr si = {.attr = {.max_wr = 1, .max_sge = 1}};
	struct ibv_xrcd_init_attr xa = {
	    .comp_mask = IBV_XRCD_INIT_ATTR_FD | IBV_XRCD_INIT_ATTR_OFLAGS, .fd = -1, .oflags = O_CREAT};
	struct ibv_xrcd *xrcd = ibv_open_xrcd(ctx, &xa), *far = ibv_open_xrcd(other, &xa);
	struct ibv_srq *srq = ibv_create_srq(pd, &si);

	CHECK(others && cq && xrcd && far && srq);
	kit_log_skip();
	CHECK(!ibv_create_qp_ex(ctx, &qx) && errno == EINVAL);
	SAID("the QP requires a protection domain; set pd, and IBV_QP_INIT_ATTR_PD in comp_mask");
	qx.comp_mask = IBV_QP_INIT_ATTR_PD | IBV_QP_INIT_ATTR_CREATE_FLAGS; /* else it is ibv_create_qp() */
	qx.pd = others;
	CHECK(!ibv_create_qp_ex(ctx, &qx) && errno == EINVAL);
	SAID("ibv_create_qp_ex: the protection domain belongs to another context");
	CHECK(!ibv_create_srq_ex(ctx, &sx) && errno == EINVAL);
	SAID("the SRQ requires a protection domain; set pd, and IBV_SRQ_INIT_ATTR_PD in comp_mask");
	sx.comp_mask |= IBV_SRQ_INIT_ATTR_PD;
	sx.pd = others;
	CHECK(!ibv_create_srq_ex(ctx, &sx) && errno == EINVAL);
	SAID("ibv_create_srq_ex: the protection domain belongs to another context");
	qx = (struct ibv_qp_init_attr_ex){
	    .qp_type = IBV_QPT_XRC_RECV, .xrcd = xrcd, .srq = srq, .comp_mask = IBV_QP_INIT_ATTR_XRCD};
	CHECK(!ibv_create_qp_ex(ctx, &qx) && errno == EINVAL);
	SAID("a QP of type IBV_QPT_XRC_RECV has no SRQ of its own, since each message names one; leave srq "
	     "NULL");
	qx.xrcd = far;
	CHECK(!ibv_create_qp_ex(ctx, &qx) && errno == EINVAL);
	SAID("the XRC domain belongs to another context");
	qx.comp_mask = 0;
	CHECK(!ibv_create_qp_ex(ctx, &qx) && errno == EINVAL);
	SAID("requires an XRC domain; set xrcd, and IBV_QP_INIT_ATTR_XRCD in comp_mask");
	CHECK(!ibv_destroy_srq(srq) && !ibv_destroy_cq(cq) && !ibv_close_xrcd(xrcd) && !ibv_close_xrcd(far));
	CHECK(!ibv_dealloc_pd(others) && !ibv_close_device(other));
}

/* A datagram's completion, with the header of one that came to another host. */
static void address_of_another(void)
{
	struct ibv_wc wc = {.wc_flags = IBV_WC_GRH};
	struct ibv_grh grh = {.version_tclass_flow = htonl(6u << 28), .next_hdr = 17};

	CHECK_EQ(inet_pton(AF_INET6, "2001:db8::7", grh.dgid.raw), 1);
	kit_log_skip();
	CHECK(!ibv_create_ah_from_wc(pd, &wc, &grh, 1) && errno == EINVAL);
	SAID("the destination address of the packet, 2001:db8::7, is not in the GID table of port 1");
}

/* Several of one kind: one is named. */
static void busy_with_two(void)
{
	struct ibv_pd *busy = ibv_alloc_pd(ctx);
	static uint8_t m[8192];
	struct ibv_mr *one = ibv_reg_mr(busy, m, 64, 0), *two = ibv_reg_mr(busy, m + 4096, 64, 0);

	CHECK(one && two);
	kit_log_skip();
	CHECK_EQ(ibv_dealloc_pd(busy), EBUSY);
	SAID("still has 2 memory regions, for example [0x%" PRIxPTR
	     ", +64) with L_Key 0x%08x: deregister them "
	     "first",
	     (uintptr_t)m, one->lkey);
	CHECK(!ibv_dereg_mr(one) && !ibv_dereg_mr(two) && !ibv_dealloc_pd(busy));
}

/* A queue pair that is connected to itself, since the peer's number was not copied. */
static void own_number(void)
{
	struct kit_card to;

	kit_end_open(&a, pd, 4, 64);
	kit_connect(&a, &a.card);
	to = a.card;
	to.rkey ^= 0x10000;
	kit_log_skip();
	CHECK_EQ(kit_post(&a, IBV_WR_RDMA_WRITE, 1, 0, 8, &to, 0), 0);
	CHECK_EQ(kit_wait(&a, 20).status, IBV_WC_WR_FLUSH_ERR); /* it failed as the responder */
	KIT_LOG_SAYS(
	    "; dest_qp_num is this queue pair's own number, so the request came back to its own process");
	kit_end_close(&a);
}

/* What is closed with something left goes on until the process ends, so that this may be destroyed later. */
static void closing(void)
{
	struct ibv_comp_cntr_init_attr ia = {.type = IBV_COMP_CNTR_TYPE_WRS};
	struct ibv_context *closed = kit_open();
	struct ibv_comp_cntr *counter = ibv_create_comp_cntr(closed, &ia);

	CHECK(counter);
	kit_log_skip();
	CHECK(!ibv_close_device(closed));
	SAID("the program did not destroy 1 completion counter.");
	CHECK(!ibv_destroy_comp_cntr(counter));
}

/* Whatever a domain and its context both count is said once. */
static void closing_with_a_queue_pair(void)
{
	struct ibv_context *closed = kit_open();
	struct ibv_pd *left = ibv_alloc_pd(closed);
	struct kit_end e;

	CHECK(left);
	kit_end_open(&e, left, 4, 64);
	kit_log_skip();
	CHECK(!ibv_close_device(closed));
	SAID("the program did not destroy 1 queue pair, 1 protection domain, 1 CQ; in its protection "
	     "domains: 1 memory region ");
	kit_end_close(&e);
	CHECK(!ibv_dealloc_pd(left));
}

/* What is never right between ibv_start_poll() and ibv_end_poll(), and outside. */
static void turns(void)
{
	struct ibv_cq_init_attr_ex a = {.cqe = 4};
	struct ibv_cq_ex *cq = ibv_create_cq_ex(ctx, &a);
	struct ibv_qp_attr err = {.qp_state = IBV_QPS_ERR};
	struct ibv_poll_cq_attr none = {0};
	struct kit_end e;

	CHECK(cq);
	kit_end_open_with(&e, pd, ibv_cq_ex_to_cq(cq), 2, 64);
	CHECK_EQ(ibv_modify_qp(e.qp, &err, IBV_QP_STATE), 0);
	kit_log_skip();
	CHECK_EQ(ibv_next_poll(cq), EINVAL);
	SAID("ibv_next_poll: no poll of this CQ is in progress: no ibv_start_poll() has returned 0 since the "
	     "last ibv_end_poll()");
	ibv_end_poll(cq);
	SAID("ibv_end_poll: no poll of this CQ is in progress");
	CHECK_EQ(ibv_wc_read_qp_num(cq), 0);
	SAID("ibv_wc_read_qp_num: no poll of this CQ is in progress");
	CHECK_EQ(kit_recv(&e, 1, 0, 0), 0); /* which is flushed */
	CHECK_EQ(ibv_start_poll(cq, &none), 0);
	kit_log_skip();
	CHECK_EQ(ibv_start_poll(cq, &none), EINVAL);
	SAID("ibv_start_poll: a poll of this CQ is in progress");
	CHECK_EQ(ibv_destroy_cq(ibv_cq_ex_to_cq(cq)), EBUSY);
	SAID("ibv_destroy_cq: a thread has called ibv_start_poll() on the CQ");
	ibv_end_poll(cq);
	kit_end_close(&e);
}

static void regions(void)
{
	static uint8_t buf[4096];
	struct ibv_mr *mr = ibv_reg_mr(pd, buf, sizeof buf, IBV_ACCESS_LOCAL_WRITE);

	CHECK(mr);
	kit_log_skip();
	CHECK(!ibv_reg_mr(pd, buf, sizeof buf, IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_WRITE));
	SAID("access IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ lacks IBV_ACCESS_LOCAL_WRITE: remote "
	     "write and atomic require it");
	CHECK(ibv_rereg_mr(mr, 16 | IBV_REREG_MR_CHANGE_PD, pd, NULL, 0, 0));
	SAID("flags IBV_REREG_MR_CHANGE_PD | 0x10 is not valid; use one or more of "
	     "IBV_REREG_MR_CHANGE_TRANSLATION | ");
	CHECK(!ibv_dereg_mr(mr));
}

static int post(enum ibv_wr_opcode op, unsigned flags, uint32_t len)
{
	struct ibv_sge sge = {(uintptr_t)a.buf, len, a.mr->lkey};
	struct ibv_send_wr wr = {.wr_id = 1,
				 .opcode = op,
				 .send_flags = flags,
				 .sg_list = &sge,
				 .num_sge = 1},
			   *bad;

	wr.wr.atomic.remote_addr = b.card.addr;
	wr.wr.atomic.rkey = b.card.rkey;
	return ibv_post_send(a.qp, &wr, &bad);
}

static void requests(void)
{
	kit_end_open(&a, pd, 4, 64);
	kit_end_open(&b, pd, 4, 64);
	kit_connect(&a, &b.card);
	kit_connect(&b, &a.card);
	kit_log_skip();
	CHECK(post(IBV_WR_TSO, 0, 8) == EINVAL);
	SAID("IBV_WR_TSO is not supported on a QP of type IBV_QPT_RC");
	CHECK(post((enum ibv_wr_opcode)200, 0, 8) == EINVAL);
	SAID("opcode 200 is unknown");
	CHECK(post(IBV_WR_SEND, IBV_SEND_IP_CSUM, 8) == EINVAL);
	SAID("send_flags: IBV_SEND_IP_CSUM is not supported on a QP of type IBV_QPT_RC");
	CHECK(post(IBV_WR_RDMA_READ, IBV_SEND_INLINE, 8) == EINVAL);
	SAID("IBV_SEND_INLINE is not supported with IBV_WR_RDMA_READ, which sends no data");
	CHECK(!post(IBV_WR_ATOMIC_FETCH_AND_ADD, 0, 4));
	CHECK_EQ(kit_wait(&a, 10).status, IBV_WC_LOC_LEN_ERR);
	SAID("ended with IBV_WC_LOC_LEN_ERR: an atomic returns 8 bytes, but its scatter/gather list has 4 "
	     "bytes; "
	     "give the list 8");
	kit_end_close(&a);
	kit_end_close(&b);
}

/* The same mistakes in requests that are built call by call are said at the call that makes them. */
static void built_requests(void)
{
	struct ibv_qp_ex *x = kit_end_open_ex(&a, pd, 4, 64, IBV_QP_EX_WITH_SEND | IBV_QP_EX_WITH_FLUSH);
	struct ibv_sge list[3] = {{0}};

	kit_log_skip();
	ibv_wr_start(x);
	ibv_wr_send(x);
	CHECK(ibv_wr_complete(x) == EINVAL);
	SAID("ibv_wr_start: QP 0x%06x is in INIT", a.qp->qp_num);
	kit_connect(&a, &a.card);
	kit_log_skip();
	ibv_wr_start(x);
	ibv_wr_rdma_read(x, 1, 1);
	CHECK(ibv_wr_complete(x) == EINVAL);
	SAID("ibv_wr_rdma_read: QP 0x%06x was created without IBV_QP_EX_WITH_RDMA_READ in send_ops_flags",
	     a.qp->qp_num);
	ibv_wr_start(x);
	ibv_wr_send(x);
	ibv_wr_set_inline_data(x, a.buf, 65);
	ibv_wr_set_sge_list(x, 3, list); /* of the first mistake alone */
	CHECK(ibv_wr_complete(x) == EINVAL);
	SAID("ibv_wr_set_inline_data: 65 bytes of inline data exceed the limit of QP 0x%06x, 64 bytes",
	     a.qp->qp_num);
	ibv_wr_start(x);
	ibv_wr_send(x);
	ibv_wr_set_sge_list(x, 3, list);
	CHECK(ibv_wr_complete(x) == EINVAL);
	SAID("ibv_wr_set_sge_list: num_sge 3 exceeds the limit of QP 0x%06x, 2 (max_send_sge)", a.qp->qp_num);
	ibv_wr_start(x);
	ibv_wr_flush(x, 1, 1, 1, 4, IBV_FLUSH_MR);
	CHECK(ibv_wr_complete(x) == EINVAL);
	SAID("ibv_wr_flush: type 0x4 or level 1 is not valid; use IBV_FLUSH_GLOBAL and IBV_FLUSH_PERSISTENT");
	ibv_wr_start(x);
	ibv_wr_send(x);
	ibv_wr_set_ud_addr(x, NULL, 1, 1);
	CHECK(ibv_wr_complete(x) == EINVAL);
	SAID("ibv_wr_set_ud_addr: QP 0x%06x is of type IBV_QPT_RC: its requests have no address",
	     a.qp->qp_num);
	CHECK(ibv_wr_complete(x) == EINVAL);
	SAID("ibv_wr_complete: this thread has not called ibv_wr_start()");
	/* in one thread: nothing waits for itself */
	ibv_wr_start(x);
	ibv_wr_send(x);
	CHECK_EQ(post(IBV_WR_SEND, 0, 8), EINVAL);
	SAID("ibv_post_send: QP 0x%06x: this thread has called ibv_wr_start()", a.qp->qp_num);
	CHECK_EQ(ibv_modify_qp(a.qp, &(struct ibv_qp_attr){.qp_state = IBV_QPS_RESET}, IBV_QP_STATE), EINVAL);
	SAID("ibv_modify_qp: QP 0x%06x: this thread has called ibv_wr_start()", a.qp->qp_num);
	CHECK_EQ(ibv_modify_qp(a.qp, &(struct ibv_qp_attr){.min_rnr_timer = 3}, IBV_QP_MIN_RNR_TIMER), 0);
	ibv_wr_start(x);
	CHECK_EQ(ibv_wr_complete(x), EINVAL);
	SAID("ibv_wr_start: QP 0x%06x: this thread has called ibv_wr_start()", a.qp->qp_num);
	ibv_wr_start(x);
	ibv_wr_abort(x);
	CHECK(post(IBV_WR_FLUSH, 0, 8) == EINVAL);
	SAID("IBV_WR_FLUSH does not fit into struct ibv_send_wr; use ibv_wr_flush()");
	CHECK(!ibv_reg_mr(pd, a.buf, 64, IBV_ACCESS_FLUSH_PERSISTENT));
	SAID("IBV_ACCESS_FLUSH_PERSISTENT is not supported: the device has no persistent memory");
	kit_end_close(&a);
}

/* A post to a queue pair that has been destroyed says so. */
static void posts_to_what_is_destroyed(void)
{
	struct ibv_send_wr wr = {.opcode = IBV_WR_SEND}, *bad;
	struct ibv_recv_wr rr = {0}, *bad_rr;
	struct ibv_cq *cq = ibv_create_cq(ctx, 4, NULL, NULL, 0);
	struct ibv_qp_init_attr qa = {.qp_type = IBV_QPT_RC, .send_cq = cq, .recv_cq = cq};
	struct ibv_qp *qp = ibv_create_qp(pd, &qa);

	CHECK(cq && qp);
	kit_log_skip();
	CHECK_EQ(ibv_post_send(qp, &wr, &bad), EINVAL);
	SAID("RESET");
	CHECK_EQ(ibv_destroy_qp(qp), 0);
#ifndef __SANITIZE_ADDRESS__ /* which reports the post itself */
	CHECK_EQ(ibv_post_send(qp, &wr, &bad), EINVAL);
	SAID("ibv_post_send: there is no queue pair at %p: it was destroyed before", (void *)qp);
	CHECK_EQ(ibv_post_recv(qp, &rr, &bad_rr), EINVAL);
	SAID("ibv_post_recv: there is no queue pair at %p: it was destroyed before", (void *)qp);
#else
	(void)rr, (void)bad_rr;
#endif
	CHECK_EQ(ibv_destroy_cq(cq), 0);
}

static void *no_queue(struct ibv_pd *of, void *context, size_t size, size_t align, uint64_t type)
{
	(void)of, (void)context, (void)size, (void)align, (void)type;
	return NULL;
}

static void no_way_back(struct ibv_pd *of, void *context, void *at, uint64_t type)
{
	(void)of, (void)context, (void)at, (void)type;
}

/* Where one call carries out others, the sentence has the name of the one that the program called.  (With
 * fewer bits of comp_mask the header itself calls ibv_create_qp() and ibv_create_srq().) */
static void names(void)
{
	struct ibv_parent_domain_init_attr pa = {.pd = pd,
						 .comp_mask = IBV_PARENT_DOMAIN_INIT_ATTR_ALLOCATORS,
						 .alloc = no_queue,
						 .free = no_way_back};
	struct ibv_pd *parent = ibv_alloc_parent_domain(ctx, &pa);
	struct ibv_cq *cq = ibv_create_cq(ctx, 4, NULL, NULL, 0);
	struct ibv_qp_init_attr_ex qx = {.qp_type = IBV_QPT_RC,
					 .send_cq = cq,
					 .recv_cq = cq,
					 .pd = pd,
					 .cap.max_send_wr = 1u << 30,
					 .comp_mask = IBV_QP_INIT_ATTR_PD | IBV_QP_INIT_ATTR_CREATE_FLAGS};
	struct ibv_srq_init_attr_ex sx = {.attr = {.max_wr = 16, .max_sge = 1},
					  .comp_mask = IBV_SRQ_INIT_ATTR_PD | IBV_SRQ_INIT_ATTR_CQ,
					  .pd = parent};
	struct ibv_cq_init_attr_ex cx = {
	    .cqe = 16, .comp_mask = IBV_CQ_INIT_ATTR_MASK_PD, .parent_domain = parent};
	static uint8_t buf[64];
	struct ibv_wc wc = {0};

	CHECK(parent && cq);
	kit_log_skip();
	CHECK(!ibv_create_qp_ex(ctx, &qx));
	CHECK_EQ(errno, EINVAL);
	SAID("ibv_create_qp_ex: max_send_wr");
	qx.qp_type = (enum ibv_qp_type)77;
	CHECK(!ibv_create_qp_ex(ctx, &qx));
	SAID("ibv_create_qp_ex: qp_type 77 is unknown");
	qx.qp_type = IBV_QPT_RC;
	qx.cap = (struct ibv_qp_cap){16, 16, 1, 1, 0};
	qx.pd = parent;
	CHECK(!ibv_create_qp_ex(ctx, &qx));
	SAID("ibv_create_qp_ex: the parent domain's alloc callback returned NULL");
	CHECK(!ibv_create_srq_ex(ctx, &sx));
	SAID("ibv_create_srq_ex: the parent domain's alloc callback returned NULL");
	CHECK(!ibv_create_cq_ex(ctx, &cx));
	SAID("ibv_create_cq_ex: the parent domain's alloc callback returned NULL");
	cx.comp_mask |= 1u << 30;
	CHECK(!ibv_create_cq_ex(ctx, &cx));
	SAID("ibv_create_cq_ex: comp_mask 0x%x has unknown bits 0x40000000 (EINVAL)", cx.comp_mask);
	CHECK(!ibv_create_ah_from_wc(pd, &wc, NULL, 9));
	SAID("ibv_create_ah_from_wc: port 9");
	CHECK(!ibv_create_ah_from_wc(pd, &wc, NULL, 1));
	SAID("ibv_create_ah_from_wc: is_global is 0, but RoCE requires a GRH");
	CHECK(!ibv_reg_mr_iova(pd, buf, 0, 4096, 0));
	SAID("ibv_reg_mr_iova: length is 0");
	CHECK(!ibv_reg_mr(pd, buf, 0, 0));
	SAID("ibv_reg_mr: length is 0");
	CHECK(!ibv_create_cq(ctx, 0, NULL, NULL, 0)); /* and the next call is said in its own name */
	SAID("ibv_create_cq: cqe 0");
	CHECK(!ibv_destroy_cq(cq) && !ibv_dealloc_pd(parent));
}

int main(void)
{

	kit_log_begin("info");
	ctx = kit_open();
	pd = ibv_alloc_pd(ctx);
	CHECK(pd);
	queue_pairs();
	names();
	posts_to_what_is_destroyed();
	states();
	shared_queues();
	domains_of_objects();
	address_of_another();
	busy_with_two();
	own_number();
	regions();
	requests();
	built_requests();
	turns();
	closing();
	closing_with_a_queue_pair();
	CHECK(!ibv_dealloc_pd(pd) && !ibv_close_device(ctx));
	puts("every sentence names what it means");
	return 0;
}
