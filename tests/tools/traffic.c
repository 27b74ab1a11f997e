/* A program with known traffic, for the commands that count: two queue pairs of RC that are connected to each
 * other. It says their numbers on a line, then waits until its input ends. traffic       3 SENDs of 100 bytes
 * and one of 5,000; 2 WRITEs of 64, a READ of 4,096; a SEND of 10 that first finds no receive request traffic
 * ends  the same, and then one more pair is made, sends 3 times 100 bytes and is destroyed traffic fails the
 * same, and then a WRITE without the right to, so that both end in the error state; traffic busy: the same,
 * and then SENDs until its input ends */
#include <infiniband/verbs.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define CHECK(c)                                                   \
	do {                                                       \
		if (!(c)) {                                        \
			fprintf(stderr, "%d: %s\n", __LINE__, #c); \
			exit(1);                                   \
		}                                                  \
	} while (0)

enum { SIZE = 1 << 16, HALF = SIZE / 2 };

static struct ibv_context *ctx;
static struct ibv_pd *pd;
static struct ibv_cq *cq;
static struct ibv_mr *mr, *sealed;
static uint8_t memory[SIZE] __attribute__((aligned(4096)));

static struct ibv_qp *make(void)
{
	struct ibv_qp_init_attr init = {
	    .send_cq = cq,
	    .recv_cq = cq,
	    .qp_type = IBV_QPT_RC,
	    .cap = {.max_send_wr = 16, .max_recv_wr = 16, .max_send_sge = 1, .max_recv_sge = 1}};
	struct ibv_qp *qp = ibv_create_qp(pd, &init);

	CHECK(qp);
	return qp;
}

static void lead(struct ibv_qp *qp, uint32_t to)
{
	struct ibv_qp_attr a = {.qp_state = IBV_QPS_INIT,
				.port_num = 1,
				.qp_access_flags = IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ};

	CHECK(!ibv_modify_qp(qp, &a, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS));
	a = (struct ibv_qp_attr){.qp_state = IBV_QPS_RTR,
				 .path_mtu = IBV_MTU_1024,
				 .dest_qp_num = to,
				 .rq_psn = 1000,
				 .max_dest_rd_atomic = 1,
				 .min_rnr_timer = 1,
				 .ah_attr = {.is_global = 1, .port_num = 1, .grh.hop_limit = 1}};
	CHECK(!ibv_query_gid(ctx, 1, 0, &a.ah_attr.grh.dgid));
	CHECK(!ibv_modify_qp(qp, &a,
			     IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN |
				 IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER));
	a = (struct ibv_qp_attr){.qp_state = IBV_QPS_RTS,
				 .sq_psn = 1000,
				 .timeout = 14,
				 .retry_cnt = 7,
				 .rnr_retry = 7,
				 .max_rd_atomic = 1};
	CHECK(!ibv_modify_qp(qp, &a,
			     IBV_QP_STATE | IBV_QP_SQ_PSN | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT |
				 IBV_QP_RNR_RETRY | IBV_QP_MAX_QP_RD_ATOMIC));
}

static void receive(struct ibv_qp *qp)
{
	struct ibv_sge s = {(uintptr_t)memory + HALF, HALF, mr->lkey};
	struct ibv_recv_wr wr = {.sg_list = &s, .num_sge = 1}, *bad;

	CHECK(!ibv_post_recv(qp, &wr, &bad));
}

static void request(struct ibv_qp *qp, enum ibv_wr_opcode opcode, uint32_t len, uint32_t rkey)
{
	struct ibv_sge s = {(uintptr_t)memory, len, mr->lkey};
	struct ibv_send_wr wr = {.sg_list = &s,
				 .num_sge = 1,
				 .opcode = opcode,
				 .send_flags = IBV_SEND_SIGNALED,
				 .wr.rdma = {(uintptr_t)memory + HALF, rkey}},
			   *bad;

	CHECK(!ibv_post_send(qp, &wr, &bad));
}

static void complete(int n, enum ibv_wc_status status)
{
	struct ibv_wc wc;
	int got;

	while (n) {
		got = ibv_poll_cq(cq, 1, &wc);
		CHECK(got >= 0);
		CHECK(!got || wc.status == status);
		n -= got;
	}
}

static void three(struct ibv_qp *a, struct ibv_qp *b)
{
	for (int i = 0; i < 3; i++) {
		receive(b);
		request(a, IBV_WR_SEND, 100, 0);
		complete(2, IBV_WC_SUCCESS);
	}
}

static void pair(struct ibv_qp **a, struct ibv_qp **b)
{
	*a = make();
	*b = make();
	lead(*a, (*b)->qp_num);
	lead(*b, (*a)->qp_num);
}

/* The first attempts find nothing: each look at the CQ makes a little progress. */
static void meet_none(struct ibv_qp *a, struct ibv_qp *b)
{
	struct ibv_wc wc;

	request(a, IBV_WR_SEND, 10, 0);
	for (int i = 0; i < 1000; i++)
		CHECK(!ibv_poll_cq(cq, 1, &wc));
	receive(b);
	complete(2, IBV_WC_SUCCESS);
}

int main(int argc, char **argv)
{
	struct ibv_device **list = ibv_get_device_list(NULL);
	struct pollfd in = {.fd = 0, .events = POLLIN};
	struct ibv_qp *a, *b, *c, *d;

	ctx = list && *list ? ibv_open_device(*list) : NULL;
	pd = ctx ? ibv_alloc_pd(ctx) : NULL;
	cq = ctx ? ibv_create_cq(ctx, 64, NULL, NULL, 0) : NULL;
	CHECK(pd && cq);
	mr = ibv_reg_mr(pd, memory, SIZE,
			IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ);
	sealed = ibv_reg_mr(pd, memory + HALF, 4096, IBV_ACCESS_LOCAL_WRITE);
	CHECK(mr && sealed);
	pair(&a, &b);
	three(a, b);
	receive(b);
	request(a, IBV_WR_SEND, 5000, 0);
	complete(2, IBV_WC_SUCCESS);
	request(a, IBV_WR_RDMA_WRITE, 64, mr->rkey);
	request(a, IBV_WR_RDMA_WRITE, 64, mr->rkey);
	request(a, IBV_WR_RDMA_READ, 4096, mr->rkey);
	complete(3, IBV_WC_SUCCESS);
	meet_none(a, b);
	if (argc > 1 && !strcmp(argv[1], "ends")) {
		pair(&c, &d);
		three(c, d);
		CHECK(!ibv_destroy_qp(c) && !ibv_destroy_qp(d));
	} else if (argc > 1 && !strcmp(argv[1], "fails")) {
		request(a, IBV_WR_RDMA_WRITE, 64, sealed->rkey);
		complete(1, IBV_WC_REM_ACCESS_ERR);
	}
	printf("0x%06x 0x%06x\n", a->qp_num, b->qp_num);
	fflush(stdout);
	while (argc > 1 && !strcmp(argv[1], "busy") && !poll(&in, 1, 0))
		three(a, b);
	while (getchar() != EOF)
		;
	return 0;
}
