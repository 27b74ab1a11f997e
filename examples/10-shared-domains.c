/* A shared protection domain: one process owns the memory, another one the queue pair.
 *
 *     cc 10-shared-domains.c -o 10-shared-domains $(pkg-config --cflags --libs verbena)
 *     verbena run ./10-shared-domains
 *
 * The store (the parent) allocates a protection domain, shares it, and registers a table in it.  The front
 * (the child) joins the domain and creates a queue pair there.  Keys of the store's region then work on the
 * front's queue pair: the front sends the store's bytes by the L_Key, and a client reads and writes them by
 * the R_Key, though the region is in neither of these processes.  (Here the store plays the client too, with
 * a queue pair in a domain of its own.)
 *
 * Written to ibv_alloc_shpd(3) as Solaris had it: struct ibv_shpd is a plain value, and processes hand it,
 * the keys and the addresses to one another as they like, here over a socket. */
#include <infiniband/verbs.h>

#include <errno.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

enum { SHARE_KEY = 20120229, ROWS = 512, ROW = 64 };

struct place { /* what the other end must know to connect */
	union ibv_gid gid;
	uint32_t qpn, psn;
};

struct offer { /* what the front must know of the store */
	struct ibv_shpd shpd;
	uint64_t addr;
	uint32_t lkey, rkey;
};

struct side {
	const char *name;
	int sock;
	struct ibv_context *ctx;
	struct ibv_pd *pd; /* of the queue pair */
	struct ibv_cq *cq;
	struct ibv_qp *qp;
};

static void fail(const struct side *s, const char *what)
{
	fprintf(stderr, "%s: %s: %s\n", s->name, what, strerror(errno));
	exit(1);
}

/* For calls that return what is to be errno. */
static void check(const struct side *s, const char *what, int err)
{
	errno = err;
	if (err)
		fail(s, what);
}

static void say(const struct side *s, const void *what, size_t len)
{
	if (write(s->sock, what, len) != (ssize_t)len)
		fail(s, "write");
}

static void hear(const struct side *s, void *what, size_t len)
{
	if (recv(s->sock, what, len, MSG_WAITALL) != (ssize_t)len)
		fail(s, "the other process is gone");
}

static void open_device(struct side *s)
{
	struct ibv_device **list = ibv_get_device_list(NULL);

	if (!list || !list[0])
		fail(s, "no device");
	s->ctx = ibv_open_device(list[0]);
	if (!s->ctx)
		fail(s, "ibv_open_device");
	ibv_free_device_list(list);
}

static void connect_qp(struct side *s)
{
	struct ibv_qp_init_attr qa = {.qp_type = IBV_QPT_RC, .cap = {4, 4, 1, 1, 0}};
	struct ibv_qp_attr a = {.qp_state = IBV_QPS_INIT,
				.port_num = 1,
				.qp_access_flags = IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_WRITE};
	struct place here = {0}, there;

	s->cq = ibv_create_cq(s->ctx, 16, NULL, NULL, 0);
	if (!s->cq)
		fail(s, "ibv_create_cq");
	qa.send_cq = qa.recv_cq = s->cq;
	s->qp = ibv_create_qp(s->pd, &qa);
	if (!s->qp)
		fail(s, "ibv_create_qp");
	check(s, "INIT",
	      ibv_modify_qp(s->qp, &a, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS));
	check(s, "ibv_query_gid", ibv_query_gid(s->ctx, 1, 0, &here.gid) ? errno : 0);
	here.qpn = s->qp->qp_num;
	here.psn = 1000;
	say(s, &here, sizeof here);
	hear(s, &there, sizeof there);
	a = (struct ibv_qp_attr){
	    .qp_state = IBV_QPS_RTR,
	    .path_mtu = IBV_MTU_1024,
	    .dest_qp_num = there.qpn,
	    .rq_psn = there.psn,
	    .max_dest_rd_atomic = 4,
	    .min_rnr_timer = 12,
	    .ah_attr = {.is_global = 1, .port_num = 1, .grh = {.dgid = there.gid, .hop_limit = 64}}};
	check(s, "RTR",
	      ibv_modify_qp(s->qp, &a,
			    IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN |
				IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER));
	a = (struct ibv_qp_attr){.qp_state = IBV_QPS_RTS,
				 .sq_psn = here.psn,
				 .timeout = 14,
				 .retry_cnt = 7,
				 .rnr_retry = 7,
				 .max_rd_atomic = 4};
	check(s, "RTS",
	      ibv_modify_qp(s->qp, &a,
			    IBV_QP_STATE | IBV_QP_SQ_PSN | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT |
				IBV_QP_RNR_RETRY | IBV_QP_MAX_QP_RD_ATOMIC));
}

static void wait_one(const struct side *s, const char *what)
{
	struct ibv_wc wc;
	int n;

	while (!(n = ibv_poll_cq(s->cq, 1, &wc)))
		sched_yield(); /* the peer may need this core */
	if (n < 0 || wc.status != IBV_WC_SUCCESS) {
		fprintf(stderr, "%s: %s: %s\n", s->name, what,
			n < 0 ? "ibv_poll_cq" : ibv_wc_status_str(wc.status));
		exit(1);
	}
}

static void post(const struct side *s, enum ibv_wr_opcode op, struct ibv_sge sge, uint64_t raddr,
		 uint32_t rkey)
{
	struct ibv_send_wr *bad,
	    wr = {.sg_list = &sge, .num_sge = 1, .opcode = op, .send_flags = IBV_SEND_SIGNALED};

	wr.wr.rdma.remote_addr = raddr;
	wr.wr.rdma.rkey = rkey;
	check(s, "ibv_post_send", ibv_post_send(s->qp, &wr, &bad));
	wait_one(s, op == IBV_WR_SEND ? "SEND" : op == IBV_WR_RDMA_READ ? "READ" : "WRITE");
}

static void close_qp(struct side *s)
{
	check(s, "ibv_destroy_qp", ibv_destroy_qp(s->qp));
	check(s, "ibv_destroy_cq", ibv_destroy_cq(s->cq));
	check(s, "ibv_dealloc_pd", ibv_dealloc_pd(s->pd));
}

/* The child. */
static int front(int sock)
{
	struct side s = {.name = "front", .sock = sock};
	struct offer o;
	char go;

	open_device(&s);
	hear(&s, &o, sizeof o);
	s.pd = ibv_share_pd(s.ctx, &o.shpd, SHARE_KEY);
	if (!s.pd)
		fail(&s, "ibv_share_pd");
	connect_qp(&s);
	hear(&s, &go, 1);
	/* the first row of a table that this process never maps */
	post(&s, IBV_WR_SEND, (struct ibv_sge){o.addr, ROW, o.lkey}, 0, 0);
	hear(&s, &go, 1); /* the client works with its keys by itself */
	close_qp(&s);
	return ibv_close_device(s.ctx);
}

/* The parent: the store, and the client. */
static int store(int sock, pid_t child)
{
	static char table[ROWS][ROW], mine[2][ROW];
	struct side s = {.name = "store", .sock = sock};
	struct ibv_recv_wr *bad, wr = {.num_sge = 1};
	struct ibv_mr *mr, *my;
	struct ibv_sge sge;
	struct ibv_pd *pd;
	struct offer o;
	int status;

	for (int i = 0; i < ROWS; i++)
		snprintf(table[i], ROW, "row %d", i);
	open_device(&s);
	pd = ibv_alloc_pd(s.ctx);
	if (!pd || !ibv_alloc_shpd(pd, SHARE_KEY, &o.shpd))
		fail(&s, "ibv_alloc_shpd");
	mr = ibv_reg_mr(pd, table, sizeof table,
			IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_WRITE);
	if (!mr)
		fail(&s, "ibv_reg_mr");
	o.addr = (uintptr_t)table;
	o.lkey = mr->lkey;
	o.rkey = mr->rkey;
	say(&s, &o, sizeof o);

	s.pd = ibv_alloc_pd(s.ctx);
	my = s.pd ? ibv_reg_mr(s.pd, mine, sizeof mine, IBV_ACCESS_LOCAL_WRITE) : NULL;
	if (!my)
		fail(&s, "the client's region");
	connect_qp(&s);
	sge = (struct ibv_sge){(uintptr_t)mine[0], ROW, my->lkey};
	wr.sg_list = &sge;
	check(&s, "ibv_post_recv", ibv_post_recv(s.qp, &wr, &bad));
	say(&s, "g", 1);
	wait_one(&s, "RECV");
	printf("the front sent     \"%s\"\n", mine[0]);
	post(&s, IBV_WR_RDMA_READ, sge, o.addr + 300 * ROW, o.rkey);
	printf("the client read    \"%s\"\n", mine[0]);
	status = strcmp(mine[0], "row 300");
	snprintf(mine[1], ROW, "written through the front");
	sge.addr = (uintptr_t)mine[1];
	post(&s, IBV_WR_RDMA_WRITE, sge, o.addr + 301 * ROW, o.rkey);
	printf("the store now has  \"%s\"\n", table[301]);
	status |= strcmp(table[301], mine[1]);
	say(&s, "g", 1);

	check(&s, "ibv_dereg_mr", ibv_dereg_mr(my));
	close_qp(&s);
	check(&s, "ibv_dereg_mr", ibv_dereg_mr(mr));
	check(&s, "ibv_dealloc_pd", ibv_dealloc_pd(pd)); /* the front may still have its instance */
	check(&s, "ibv_close_device", ibv_close_device(s.ctx));
	if (status)
		fprintf(stderr, "store: that is not what was expected\n");
	if (waitpid(child, &sock, 0) != child || sock)
		status = 1;
	return status ? 1 : 0;
}

int main(void)
{
	int sock[2];
	pid_t child;

	if (socketpair(AF_UNIX, SOCK_STREAM, 0, sock)) {
		perror("socketpair");
		return 1;
	}
	child = fork();
	if (child < 0) {
		perror("fork");
		return 1;
	}
	close(sock[child ? 1 : 0]);
	return child ? store(sock[0], child) : front(sock[1]);
}
