/* wrongs NAME... wrong|right [wait] */
#include "wrongs.h"

bool wrong;
struct ibv_context *ctx;
struct ibv_pd *pd;
struct end a, b;
struct ibv_comp_channel *events;
static bool waits; /* the process can be looked at until its input ends */
static union ibv_gid gid;

enum {
	ALL = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ |
	      IBV_ACCESS_REMOTE_ATOMIC | IBV_ACCESS_MW_BIND
};

void open_device(void)
{
	struct ibv_device **list = ibv_get_device_list(NULL);

	DIE_IF(!list || !list[0]);
	ctx = ibv_open_device(list[0]);
	DIE_IF(!ctx);
	ibv_free_device_list(list);
	pd = ibv_alloc_pd(ctx);
	DIE_IF(!pd || ibv_query_gid(ctx, 1, 0, &gid));
}

void to_init(struct ibv_qp *qp, enum ibv_qp_type type)
{
	struct ibv_qp_attr attr = {.qp_state = IBV_QPS_INIT,
				   .port_num = 1,
				   .qkey = 7,
				   .qp_access_flags = IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ |
						      IBV_ACCESS_REMOTE_ATOMIC};

	DIE_IF(ibv_modify_qp(qp, &attr,
			     IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT |
				 (type == IBV_QPT_UD ? IBV_QP_QKEY : IBV_QP_ACCESS_FLAGS)));
}

void open_qp(struct end *e, enum ibv_qp_type type)
{
	struct ibv_qp_init_attr attr = {.send_cq = e->scq,
					.recv_cq = e->rcq,
					.srq = e->srq,
					.cap = {.max_send_wr = 16,
						.max_recv_wr = 16,
						.max_send_sge = 1,
						.max_recv_sge = 1,
						.max_inline_data = 64},
					.qp_type = type};

	e->qp = ibv_create_qp(pd, &attr);
	DIE_IF(!e->qp);
	to_init(e->qp, type);
}

void open_end(struct end *e, enum ibv_qp_type type, bool srq)
{
	struct ibv_srq_init_attr srq_attr = {.attr = {.max_wr = 16, .max_sge = 1}};

	e->scq = ibv_create_cq(ctx, 64, NULL, NULL, 0);
	e->rcq = ibv_create_cq(ctx, 64, NULL, events, 0);
	e->srq = srq ? ibv_create_srq(pd, &srq_attr) : NULL;
	e->buf = mmap(NULL, PAGES * SIZE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	DIE_IF(!e->scq || !e->rcq || (srq && !e->srq) || e->buf == MAP_FAILED);
	e->mr = ibv_reg_mr(pd, e->buf, PAGES * SIZE, ALL);
	DIE_IF(!e->mr);
	open_qp(e, type);
}

static void to_rts(struct ibv_qp *qp, uint32_t peer)
{
	struct ibv_qp_attr rtr = {
	    .qp_state = IBV_QPS_RTR,
	    .path_mtu = IBV_MTU_1024,
	    .dest_qp_num = peer,
	    .max_dest_rd_atomic = 1,
	    .min_rnr_timer = 1,
	    .ah_attr = {.is_global = 1, .port_num = 1, .grh = {.dgid = gid, .hop_limit = 1}}};
	struct ibv_qp_attr rts = {
	    .qp_state = IBV_QPS_RTS, .timeout = 14, .retry_cnt = 7, .rnr_retry = 7, .max_rd_atomic = 1};
	int more = qp->qp_type == IBV_QPT_UD ? 0
					     : IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN |
						   IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER;

	DIE_IF(ibv_modify_qp(qp, &rtr, IBV_QP_STATE | more));
	more = qp->qp_type == IBV_QPT_UD
		   ? 0
		   : IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY | IBV_QP_MAX_QP_RD_ATOMIC;
	DIE_IF(ibv_modify_qp(qp, &rts, IBV_QP_STATE | IBV_QP_SQ_PSN | more));
}

void connect_ends(struct end *x, struct end *y)
{
	to_rts(x->qp, y->qp->qp_num);
	to_rts(y->qp, x->qp->qp_num);
}

void pair(void)
{
	open_device();
	open_end(&a, IBV_QPT_RC, false);
	open_end(&b, IBV_QPT_RC, false);
	connect_ends(&a, &b);
}

void ud_pair(struct ibv_send_wr *wr, struct ibv_sge *sge)
{
	struct ibv_ah_attr to = {.is_global = 1, .port_num = 1, .grh = {.hop_limit = 1}};
	struct ibv_ah *ah;

	open_device();
	open_end(&a, IBV_QPT_UD, false);
	open_end(&b, IBV_QPT_UD, false);
	connect_ends(&a, &b);
	DIE_IF(ibv_query_gid(ctx, 1, 0, &to.grh.dgid));
	ah = ibv_create_ah(pd, &to);
	DIE_IF(!ah || receive(&b, 1, at(&b, 0, SIZE)));
	*sge = at(&a, 0, 100);
	*wr = (struct ibv_send_wr){.wr_id = 5,
				   .sg_list = sge,
				   .num_sge = 1,
				   .opcode = IBV_WR_SEND,
				   .send_flags = IBV_SEND_SIGNALED,
				   .wr = {.ud = {.ah = ah, .remote_qpn = b.qp->qp_num, .remote_qkey = 7}}};
}

void close_end(struct end *e)
{
	if (!e->qp)
		return;
	DIE_IF(ibv_destroy_qp(e->qp));
	if (e->srq)
		DIE_IF(ibv_destroy_srq(e->srq));
	DIE_IF(ibv_destroy_cq(e->scq) || ibv_destroy_cq(e->rcq));
	if (e->mr)
		DIE_IF(ibv_dereg_mr(e->mr));
}

void close_all(void)
{
	if (waits) {
		puts("done");
		fflush(stdout);
		(void)getchar();
	}
	close_end(&a);
	close_end(&b);
	DIE_IF(ibv_dealloc_pd(pd) || ibv_close_device(ctx));
}

struct ibv_sge at(const struct end *e, size_t offset, uint32_t len)
{
	return (struct ibv_sge){.addr = (uintptr_t)e->buf + offset, .length = len, .lkey = e->mr->lkey};
}

int post(struct end *e, enum ibv_wr_opcode op, uint64_t wr_id, struct ibv_sge sge, unsigned flags,
	 uint64_t to)
{
	struct ibv_send_wr wr = {
	    .wr_id = wr_id, .sg_list = &sge, .num_sge = 1, .opcode = op, .send_flags = flags};
	struct ibv_send_wr *bad;
	struct end *peer = e == &a ? &b : &a;

	if (op == IBV_WR_ATOMIC_FETCH_AND_ADD) {
		wr.wr.atomic.remote_addr = to;
		wr.wr.atomic.rkey = peer->mr->rkey;
		wr.wr.atomic.compare_add = 1;
	} else if (op != IBV_WR_SEND) {
		wr.wr.rdma.remote_addr = to;
		wr.wr.rdma.rkey = peer->mr->rkey;
	}
	return ibv_post_send(e->qp, &wr, &bad);
}

int receive(struct end *e, uint64_t wr_id, struct ibv_sge sge)
{
	struct ibv_recv_wr wr = {.wr_id = wr_id, .sg_list = &sge, .num_sge = 1}, *bad;

	return e->srq ? ibv_post_srq_recv(e->srq, &wr, &bad) : ibv_post_recv(e->qp, &wr, &bad);
}

struct ibv_wc next(struct ibv_cq *cq)
{
	struct ibv_wc wc;
	int n;

	do {
		n = ibv_poll_cq(cq, 1, &wc);
		DIE_IF(n < 0);
	} while (!n);
	return wc;
}

void done(struct ibv_cq *cq, uint64_t wr_id)
{
	struct ibv_wc wc = next(cq);

	if (wc.status || wc.wr_id != wr_id) {
		fprintf(stderr, "wr_id %llu: %s\n", (unsigned long long)wc.wr_id,
			ibv_wc_status_str(wc.status));
		exit(1);
	}
}

static bool run(const char *name)
{
	const struct program *const lists[] = {sends, others, cms, callers, legal};

	for (size_t i = 0; i < sizeof lists / sizeof *lists; i++)
		for (const struct program *p = lists[i]; p->name; p++)
			if (!strcmp(p->name, name)) {
				events = NULL;
				a = b = (struct end){0};
				alarm(60);
				p->run();
				return true;
			}
	return false;
}

int main(int argc, char **argv)
{
	waits = argc > 2 && !strcmp(argv[argc - 1], "wait");
	argc -= waits;
	DIE_IF(argc < 3);
	wrong = !strcmp(argv[argc - 1], "wrong");
	for (int i = 1; i < argc - 1; i++)
		if (!run(argv[i])) {
			fprintf(stderr, "there is no program %s\n", argv[i]);
			return 2;
		}
	return 0;
}
