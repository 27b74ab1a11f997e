/* A program with regions and with failures behind it, for `verbena explain` and `verbena mr` to look at.  It
 * says what it has on one line, then waits until its input ends.   trouble
 * [more|once|again|both|second|drops|denied] once: with a single failure; again: the same three times; both:
 * with a region of a second device, too; second: and then the first is closed; drops: three messages over UC
 * came where no receive request was; denied: a WRITE to a region without that right has failed */
#include <dlfcn.h>
#include <infiniband/verbs.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#define CHECK(c)                                                   \
	do {                                                       \
		if (!(c)) {                                        \
			fprintf(stderr, "%d: %s\n", __LINE__, #c); \
			exit(1);                                   \
		}                                                  \
	} while (0)

/* Regions of other kinds, in the same domain. */
static void more(struct ibv_context *ctx, struct ibv_pd *pd, void *p)
{
	struct ibv_mr *(*reg_relaxed)(struct ibv_pd *, void *, size_t, int) =
	    (struct ibv_mr * (*)(struct ibv_pd *, void *, size_t, int))
		dlsym(RTLD_DEFAULT, "ibv_reg_mr_relaxed");
	struct ibv_alloc_dm_attr attr = {.length = 4096};
	struct ibv_dm *dm = ibv_alloc_dm(ctx, &attr);

	CHECK(reg_relaxed && reg_relaxed(pd, p, 4096, IBV_ACCESS_LOCAL_WRITE));
	CHECK(ibv_reg_mr(pd, NULL, SIZE_MAX, IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_ON_DEMAND));
	CHECK(dm && ibv_reg_dm_mr(pd, dm, 0, 4096, IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_ZERO_BASED));
	CHECK(ibv_alloc_null_mr(pd));
}

static void second_device(struct ibv_device *dev, void *p)
{
	struct ibv_context *ctx = ibv_open_device(dev);
	struct ibv_pd *pd = ctx ? ibv_alloc_pd(ctx) : NULL;

	CHECK(pd && ibv_reg_mr(pd, p, 64, IBV_ACCESS_LOCAL_WRITE));
}

static struct ibv_qp *connected(struct ibv_pd *pd, struct ibv_cq *cq, enum ibv_qp_type type)
{
	struct ibv_qp_init_attr init = {.send_cq = cq,
					.recv_cq = cq,
					.qp_type = type,
					.sq_sig_all = 1,
					.cap = {.max_send_wr = 4, .max_send_sge = 1}};
	struct ibv_qp *qp = ibv_create_qp(pd, &init);
	struct ibv_qp_attr a = {
	    .qp_state = IBV_QPS_INIT, .port_num = 1, .qp_access_flags = IBV_ACCESS_REMOTE_WRITE};

	CHECK(qp &&
	      !ibv_modify_qp(qp, &a, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS));
	return qp;
}

static void connect_to(struct ibv_qp *qp, uint32_t qpn)
{
	struct ibv_qp_attr a = {.qp_state = IBV_QPS_RTR,
				.path_mtu = IBV_MTU_1024,
				.dest_qp_num = qpn,
				.max_dest_rd_atomic = 1,
				.max_rd_atomic = 1,
				.ah_attr = {.is_global = 1, .port_num = 1}};
	int rtr = IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN;
	int rts = IBV_QP_STATE | IBV_QP_SQ_PSN;

	if (qp->qp_type == IBV_QPT_RC) {
		rtr |= IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER;
		rts |= IBV_QP_MAX_QP_RD_ATOMIC | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY;
	}
	CHECK(!ibv_query_gid(qp->context, 1, 0, &a.ah_attr.grh.dgid));
	CHECK(!ibv_modify_qp(qp, &a, rtr));
	a.qp_state = IBV_QPS_RTS;
	CHECK(!ibv_modify_qp(qp, &a, rts));
}

static void drops(struct ibv_context *ctx, struct ibv_pd *pd)
{
	struct ibv_cq *cq = ibv_create_cq(ctx, 8, NULL, NULL, 0);
	struct ibv_qp *from = connected(pd, cq, IBV_QPT_UC), *to = connected(pd, cq, IBV_QPT_UC);
	struct ibv_qp *gone = connected(pd, cq, IBV_QPT_UC);
	struct ibv_send_wr wr = {.opcode = IBV_WR_SEND}, *bad;
	struct ibv_wc wc;
	int n;

	CHECK(!ibv_destroy_qp(gone)); /* `verbena list` counts two */
	connect_to(from, to->qp_num);
	connect_to(to, from->qp_num);
	for (int i = 0; i < 3; i++)
		CHECK(!ibv_post_send(from, &wr, &bad));
	for (int i = 0; i < 3; i += n) {
		n = ibv_poll_cq(cq, 1, &wc);
		CHECK(n >= 0 && (!n || wc.status == IBV_WC_SUCCESS));
	}
}

/* A request that its region's access forbids. */
static void denied(struct ibv_context *ctx, struct ibv_pd *pd, struct ibv_mr *mr)
{
	struct ibv_cq *cq = ibv_create_cq(ctx, 8, NULL, NULL, 0);
	struct ibv_qp *from = connected(pd, cq, IBV_QPT_RC), *to = connected(pd, cq, IBV_QPT_RC);
	struct ibv_sge sge = {(uintptr_t)mr->addr, 8, mr->lkey};
	struct ibv_send_wr wr = {.opcode = IBV_WR_RDMA_WRITE,
				 .sg_list = &sge,
				 .num_sge = 1,
				 .wr.rdma = {(uintptr_t)mr->addr, mr->rkey}},
			   *bad;
	struct ibv_wc wc;
	int n;

	connect_to(from, to->qp_num);
	connect_to(to, from->qp_num);
	CHECK(!ibv_post_send(from, &wr, &bad));
	do
		n = ibv_poll_cq(cq, 1, &wc);
	while (!n);
	CHECK(n == 1 && wc.status == IBV_WC_REM_ACCESS_ERR);
}

int main(int argc, char **argv)
{
	struct ibv_device **list = ibv_get_device_list(NULL);
	struct ibv_context *ctx = list && list[0] ? ibv_open_device(list[0]) : NULL;
	struct ibv_pd *pd = ctx ? ibv_alloc_pd(ctx) : NULL;
	uint8_t *p = mmap(NULL, 16 * 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	struct ibv_mr *a, *b;
	char c, has[200];

	CHECK(pd && p != MAP_FAILED);
	CHECK(!mprotect(p + 4 * 4096, 4 * 4096, PROT_READ));
	for (int i = argc > 1 && !strcmp(argv[1], "once") ? 2 : 0; i < 3; i++)
		CHECK(!ibv_reg_mr(pd, p, 8 * 4096, IBV_ACCESS_LOCAL_WRITE));
	if (argc == 1 || !strcmp(argv[1], "more"))
		CHECK(!ibv_reg_mr(pd, p, 64, 1u << 30));
	b = ibv_reg_mr(pd, p + 4 * 4096, 4096, IBV_ACCESS_REMOTE_READ);
	a = ibv_reg_mr_iova(pd, p, 4096, 0x10000, IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE);
	CHECK(a && b);
	if (argc > 1 && !strcmp(argv[1], "more"))
		more(ctx, pd, p);
	if (argc > 1 && !strcmp(argv[1], "drops"))
		drops(ctx, pd);
	if (argc > 1 && !strcmp(argv[1], "denied"))
		denied(ctx, pd, b);
	snprintf(has, sizeof(has), "%p %p 0x%08x 0x%08x 0x%08x 0x%08x %u", (void *)p, (void *)(p + 4 * 4096),
		 a->lkey, a->rkey, b->lkey, b->rkey, pd->handle);
	if (argc > 1 && (!strcmp(argv[1], "both") || !strcmp(argv[1], "second")))
		second_device(list[1], p);
	if (argc > 1 && !strcmp(argv[1], "second"))
		CHECK(!ibv_dereg_mr(a) && !ibv_dereg_mr(b) && !ibv_dealloc_pd(pd) && !ibv_close_device(ctx));
	printf("%s\n", has);
	fflush(stdout);
	while (read(0, &c, 1) > 0)
		;
	if (argc > 1)
		return 0;
	CHECK(!ibv_dereg_mr(a) && !ibv_dereg_mr(b) && !ibv_dealloc_pd(pd) && !ibv_close_device(ctx));
	ibv_free_device_list(list);
	return 0;
}
