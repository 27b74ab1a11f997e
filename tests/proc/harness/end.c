#include "host/segment.h"
#include "iba/reason.h"
#include "kit.h"

struct ibv_context *kit_open(void)
{
	struct ibv_device **list = ibv_get_device_list(NULL);
	struct ibv_context *ctx;

	CHECK(list && list[0]);
	ctx = ibv_open_device(list[0]);
	CHECK(ctx);
	ibv_free_device_list(list);
	return ctx;
}

/* ops: NULL: no extended one. */
static void to_ud_rts(struct ibv_qp *qp)
{
	struct ibv_qp_attr a = {.qp_state = IBV_QPS_INIT, .port_num = 1, .qkey = KIT_QKEY};

	CHECK(!ibv_modify_qp(qp, &a, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_QKEY));
	a.qp_state = IBV_QPS_RTR;
	CHECK(!ibv_modify_qp(qp, &a, IBV_QP_STATE));
	a.qp_state = IBV_QPS_RTS;
	CHECK(!ibv_modify_qp(qp, &a, IBV_QP_STATE | IBV_QP_SQ_PSN));
}

static void open_end(struct kit_end *e, struct ibv_pd *pd, struct ibv_cq *cq, int depth, size_t size,
		     enum ibv_qp_type type, const uint64_t *ops)
{
	struct ibv_qp_init_attr_ex qa = {.qp_type = type,
					 .pd = pd,
					 .comp_mask = IBV_QP_INIT_ATTR_PD |
						      (ops ? IBV_QP_INIT_ATTR_SEND_OPS_FLAGS : 0),
					 .send_ops_flags = ops ? *ops : 0,
					 .cap = {.max_send_wr = (uint32_t)depth,
						 .max_recv_wr = (uint32_t)depth,
						 .max_send_sge = 2,
						 .max_recv_sge = 2,
						 .max_inline_data = 64}};
	struct ibv_qp_attr a = {.qp_state = IBV_QPS_INIT, .port_num = 1, .qp_access_flags = KIT_ALL};
	struct ibv_port_attr port;

	memset(&e->card, 0, sizeof e->card); /* it is sent as it is, with its padding */
	CHECK(!ibv_query_gid(pd->context, 1, 0, &e->card.gid) && !ibv_query_port(pd->context, 1, &port));
	e->card.lid = port.lid;
	e->cq = cq;
	CHECK(cq);
	qa.send_cq = qa.recv_cq = e->cq;
	e->qp = ibv_create_qp_ex(pd->context, &qa);
	CHECK(e->qp);
	if (type == IBV_QPT_UD)
		to_ud_rts(e->qp);
	else
		CHECK(!ibv_modify_qp(e->qp, &a,
				     IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS));
	e->buf = calloc(1, size);
	CHECK(e->buf);
	e->mr = ibv_reg_mr(pd, e->buf, size, KIT_ALL);
	CHECK(e->mr);
	e->card.qpn = e->qp->qp_num;
	e->card.psn = e->qp->qp_num * 77 & 0xffffff;
	e->card.rkey = e->mr->rkey;
	e->card.addr = (uintptr_t)e->buf;
}

void kit_end_open_with(struct kit_end *e, struct ibv_pd *pd, struct ibv_cq *cq, int depth, size_t size)
{
	open_end(e, pd, cq, depth, size, IBV_QPT_RC, NULL);
}

static struct ibv_cq *new_cq(struct ibv_pd *pd, struct ibv_comp_channel *channel, int depth)
{
	return ibv_create_cq(pd->context, 2 * depth, NULL, channel, 0);
}

void kit_end_open_on(struct kit_end *e, struct ibv_pd *pd, struct ibv_comp_channel *channel, int depth,
		     size_t size)
{
	kit_end_open_with(e, pd, new_cq(pd, channel, depth), depth, size);
}

void kit_end_open_as(struct kit_end *e, struct ibv_pd *pd, int depth, size_t size, enum ibv_qp_type type)
{
	open_end(e, pd, new_cq(pd, NULL, depth), depth, size, type, NULL);
}

struct ibv_qp_ex *kit_end_open_ex_as(struct kit_end *e, struct ibv_pd *pd, int depth, size_t size,
				     enum ibv_qp_type type, uint64_t ops)
{
	struct ibv_qp_ex *ex;

	open_end(e, pd, new_cq(pd, NULL, depth), depth, size, type, &ops);
	ex = ibv_qp_to_qp_ex(e->qp);
	CHECK(ex);
	return ex;
}

struct ibv_qp_ex *kit_end_open_ex(struct kit_end *e, struct ibv_pd *pd, int depth, size_t size, uint64_t ops)
{
	return kit_end_open_ex_as(e, pd, depth, size, IBV_QPT_RC, ops);
}

void kit_end_open(struct kit_end *e, struct ibv_pd *pd, int depth, size_t size)
{
	kit_end_open_on(e, pd, NULL, depth, size);
}

struct ibv_ah *kit_ah(struct ibv_pd *pd, const struct kit_card *to)
{
	struct ibv_ah_attr a = {.dlid = to->lid, .is_global = 1, .port_num = 1};
	struct ibv_ah *ah;

	a.grh.dgid = to->gid;
	a.grh.hop_limit = 1;
	a.grh.traffic_class = to->tclass;
	ah = ibv_create_ah(pd, &a);
	CHECK(ah);
	return ah;
}

int kit_datagram(struct kit_end *e, struct ibv_ah *ah, uint32_t qpn, uint64_t wr_id, size_t at, uint32_t len)
{
	struct ibv_sge sge = {.addr = (uintptr_t)e->buf + at, .length = len, .lkey = e->mr->lkey};
	struct ibv_send_wr wr = {.wr_id = wr_id,
				 .sg_list = &sge,
				 .num_sge = 1,
				 .opcode = IBV_WR_SEND,
				 .send_flags = IBV_SEND_SIGNALED,
				 .wr.ud = {.ah = ah, .remote_qpn = qpn, .remote_qkey = KIT_QKEY}},
			   *bad;

	return ibv_post_send(e->qp, &wr, &bad);
}

void kit_end_close_but_cq(struct kit_end *e)
{
	CHECK(!ibv_destroy_qp(e->qp));
	CHECK(!ibv_dereg_mr(e->mr));
	free(e->buf);
}

void kit_end_close(struct kit_end *e)
{
	kit_end_close_but_cq(e);
	CHECK(!ibv_destroy_cq(e->cq));
}

/* What reliable connections have besides. */
static int only_reliable(const struct kit_end *e, int mask)
{
	return e->qp->qp_type == IBV_QPT_UC ? 0 : mask;
}

void kit_to_rtr(struct kit_end *e, const struct kit_card *peer)
{
	kit_to_rtr_with(e, peer, IBV_MTU_1024);
}

void kit_to_rtr_with(struct kit_end *e, const struct kit_card *peer, enum ibv_mtu path_mtu)
{
	struct ibv_qp_attr a = {.qp_state = IBV_QPS_RTR,
				.path_mtu = path_mtu,
				.dest_qp_num = peer->qpn,
				.rq_psn = peer->psn,
				.max_dest_rd_atomic = 4,
				.min_rnr_timer = 1,
				.ah_attr = {.is_global = !peer->lid, /* a LID is enough */
					    .dlid = peer->lid,
					    .port_num = 1,
					    .grh = {.dgid = peer->gid, .traffic_class = peer->tclass}}};

	CHECK(!ibv_modify_qp(e->qp, &a,
			     IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN |
				 only_reliable(e, IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER)));
}

int kit_try_rts(struct kit_end *e, int timeout, int retries)
{
	struct ibv_qp_attr a = {.qp_state = IBV_QPS_RTS,
				.sq_psn = e->card.psn,
				.timeout = (uint8_t)timeout,
				.retry_cnt = (uint8_t)retries,
				.rnr_retry = 7,
				.max_rd_atomic = 4};

	return ibv_modify_qp(e->qp, &a,
			     IBV_QP_STATE | IBV_QP_SQ_PSN |
				 only_reliable(e, IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY |
						      IBV_QP_MAX_QP_RD_ATOMIC));
}

void kit_to_rts(struct kit_end *e, int timeout, int retries)
{
	CHECK(!kit_try_rts(e, timeout, retries));
}

void kit_connect_with(struct kit_end *e, const struct kit_card *peer, int timeout, int retries)
{
	kit_to_rtr(e, peer);
	kit_to_rts(e, timeout, retries);
}

void kit_connect(struct kit_end *e, const struct kit_card *peer)
{
	kit_connect_with(e, peer, 14, 7);
}

int kit_recv(struct kit_end *e, uint64_t wr_id, size_t at, uint32_t len)
{
	struct ibv_sge sge = {(uintptr_t)e->buf + at, len, e->mr->lkey};
	struct ibv_recv_wr wr = {.wr_id = wr_id, .sg_list = &sge, .num_sge = 1}, *bad;

	return ibv_post_recv(e->qp, &wr, &bad);
}

int kit_post(struct kit_end *e, enum ibv_wr_opcode op, uint64_t wr_id, size_t at, uint32_t len,
	     const struct kit_card *peer, size_t remote)
{
	struct ibv_sge sge = {(uintptr_t)e->buf + at, len, e->mr->lkey};
	struct ibv_send_wr wr = {
	    .wr_id = wr_id, .sg_list = &sge, .num_sge = 1, .opcode = op, .send_flags = IBV_SEND_SIGNALED};
	struct ibv_send_wr *bad;

	if (op == IBV_WR_ATOMIC_FETCH_AND_ADD || op == IBV_WR_ATOMIC_CMP_AND_SWP) {
		wr.wr.atomic.remote_addr = peer->addr + remote;
		wr.wr.atomic.rkey = peer->rkey;
		wr.wr.atomic.compare_add = 1;
	} else if (peer) {
		wr.wr.rdma.remote_addr = peer->addr + remote;
		wr.wr.rdma.rkey = peer->rkey;
	}
	return ibv_post_send(e->qp, &wr, &bad);
}

/* What the device has dropped in silence so far may be why nothing came. */
static void say_drops(const struct ibv_context *ctx)
{
	for (uint32_t r = 0; r < VB_REASONS; r++) {
		uint64_t n = kit_drops(ctx, r);

		if (n)
			fprintf(stderr, "[%d] dropped for reason %u of enum vb_reason: %" PRIu64 "\n",
				(int)gettid(), r, n);
	}
}

struct ibv_wc kit_wait_at(struct kit_end *e, double seconds, const char *file, int line)
{
	double end = kit_now() + seconds;
	struct ibv_wc wc;
	int n;

	while (!(n = ibv_poll_cq(e->cq, 1, &wc))) {
		if (kit_now() < end)
			continue;
		fprintf(stderr, "[%d] %s:%d: no completion within %g s; the queue pair's state is %d\n",
			(int)gettid(), file, line, seconds, e->qp ? (int)e->qp->state : -1);
		say_drops(e->cq->context);
		_exit(1);
	}
	CHECK(n == 1, "for %s:%d", file, line);
	return wc;
}

struct ibv_wc kit_expect_at(struct kit_end *e, enum ibv_wc_opcode opcode, const char *file, int line)
{
	struct ibv_wc wc = kit_wait_at(e, 20, file, line);

	CHECK(wc.status == IBV_WC_SUCCESS && wc.opcode == opcode, "%s, opcode %d, for %s:%d",
	      ibv_wc_status_str(wc.status), (int)wc.opcode, file, line);
	return wc;
}

uint64_t kit_drops(const struct ibv_context *ctx, uint32_t reason)
{
	const uint8_t *seg = mmap(NULL, VB_SEG_CONSUMED, PROT_READ, MAP_SHARED, ctx->cmd_fd, 0);
	uint64_t n;

	CHECK(seg != MAP_FAILED);
	n = ((const struct vb_drops *)(const void *)(seg + VB_SEG_DROPS))->count[reason];
	CHECK(!munmap((void *)(uintptr_t)seg, VB_SEG_CONSUMED));
	return n;
}

enum ibv_wc_status kit_ask(uint32_t number, int timeout, int retries)
{
	struct ibv_pd *pd = ibv_alloc_pd(kit_open());
	struct kit_card card;
	struct kit_end e;
	struct ibv_wc wc;

	CHECK(pd);
	kit_end_open(&e, pd, 4, 4096);
	card = e.card;
	card.qpn = number << 12 | 5;
	kit_connect_with(&e, &card, timeout, retries);
	CHECK(!kit_post(&e, IBV_WR_SEND, 1, 0, 64, NULL, 0));
	wc = kit_wait(&e, 60);
	kit_end_close(&e);
	return wc.status;
}

bool kit_bound(uint32_t qpn)
{
	FILE *f = fopen("/proc/net/unix", "r");
	char line[512], name[64];
	bool found = false;

	CHECK(f);
	snprintf(name, sizeof name, "@verbena/1/%u\n", qpn >> 12);
	while (fgets(line, sizeof line, f))
		found |= strstr(line, name) != NULL;
	fclose(f);
	return found;
}
