/* A shared protection domain: one process owns the memory, another one the queue pair.
 *
 *     cc 10-shared-domains.c -o 10-shared-domains $(pkg-config --cflags --libs verbena)
 *     verbena run ./10-shared-domains
 *
 * The store (the parent) shares its domain, and registers a table in it.  The front (the child) joins the
 * domain and creates a queue pair there.  Keys of the store's region work on that queue pair, although the
 * front never maps the table: the front sends a row by the L_Key, and a client reads and writes rows by the
 * R_Key.  The store plays the client too, with a queue pair in a domain of its own.  The calls are
 * ibv_alloc_shpd(3), as Solaris had them. */
#include <errno.h>
#include <infiniband/verbs.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

enum { PORT = 1, ROWS = 512, ROW = 64 }; /* the adapter's port, and the table's size */

/* The attributes that the queue pair needs for each state. */
enum {
	TO_INIT = IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS,
	TO_RTR = IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN |
		 IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER,
	TO_RTS = IBV_QP_STATE | IBV_QP_SQ_PSN | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY |
		 IBV_QP_MAX_QP_RD_ATOMIC
};

struct end { /* what the peer must know */
	union ibv_gid gid;
	uint32_t qpn;
};

struct offer { /* what the front must know of the store */
	struct ibv_shpd shpd;
	uint64_t share_key; /* whoever joins must know it */
	uint64_t addr;
	uint32_t lkey;
};

static void die_if(int failed, const char *what)
{
	if (failed) {
		fprintf(stderr, "%s: %s\n", what, strerror(errno));
		exit(1);
	}
}

static void exchange(int sock, const void *mine, void *theirs, size_t size)
{
	die_if(send(sock, mine, size, MSG_NOSIGNAL) != (ssize_t)size, "send to the peer");
	die_if(recv(sock, theirs, size, MSG_WAITALL) != (ssize_t)size, "the peer is gone");
}

/* Creates a queue pair in this domain, and connects it; 01-rc-send.c explains each attribute. */
static struct ibv_qp *connected(struct ibv_pd *pd, int sock)
{
	struct ibv_qp_init_attr init = {.qp_type = IBV_QPT_RC, .cap = {1, 1, 1, 1, 0}};
	struct ibv_qp_attr a = {.qp_state = IBV_QPS_INIT, .port_num = PORT};
	static struct end here, there; /* zeroed, since all of it is sent */

	init.send_cq = init.recv_cq = ibv_create_cq(pd->context, 2, NULL, NULL, 0);
	struct ibv_qp *qp = init.send_cq ? ibv_create_qp(pd, &init) : NULL;
	die_if(!qp || ibv_query_gid(pd->context, PORT, 0, &here.gid), "ibv_create_qp, ibv_query_gid");
	a.qp_access_flags = IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_WRITE;
	die_if(errno = ibv_modify_qp(qp, &a, TO_INIT), "INIT");
	here.qpn = qp->qp_num;
	exchange(sock, &here, &there, sizeof(here));
	a = (struct ibv_qp_attr){.qp_state = IBV_QPS_RTR, .path_mtu = IBV_MTU_1024, .min_rnr_timer = 12};
	a.dest_qp_num = a.rq_psn = there.qpn;
	a.ah_attr = (struct ibv_ah_attr){.is_global = 1, .port_num = PORT, .grh.dgid = there.gid};
	a.ah_attr.grh.hop_limit = 64;
	a.max_dest_rd_atomic = 1;
	die_if(errno = ibv_modify_qp(qp, &a, TO_RTR), "RTR");
	a = (struct ibv_qp_attr){.qp_state = IBV_QPS_RTS, .sq_psn = here.qpn, .max_rd_atomic = 1};
	a.timeout = 14, a.retry_cnt = 7, a.rnr_retry = 7;
	die_if(errno = ibv_modify_qp(qp, &a, TO_RTS), "RTS");
	return qp;
}

static void wait_one(struct ibv_qp *qp)
{
	struct ibv_wc wc;
	int n;
	while (!(n = ibv_poll_cq(qp->send_cq, 1, &wc)))
		sched_yield(); /* the peer may need this core */
	die_if(n < 0, "ibv_poll_cq");
	errno = EIO;
	die_if(wc.status != IBV_WC_SUCCESS, ibv_wc_status_str(wc.status));
}

static void request(struct ibv_qp *qp, enum ibv_wr_opcode op, struct ibv_sge sge, uint64_t addr,
		    uint32_t rkey)
{
	struct ibv_send_wr *bad, wr = {.sg_list = &sge, .num_sge = 1, .opcode = op};
	wr.send_flags = IBV_SEND_SIGNALED;
	wr.wr.rdma.remote_addr = addr, wr.wr.rdma.rkey = rkey;
	die_if(errno = ibv_post_send(qp, &wr, &bad), "ibv_post_send");
	wait_one(qp);
}

static void close_qp(struct ibv_qp *qp, struct ibv_pd *pd)
{
	struct ibv_cq *cq = qp->send_cq;
	die_if((errno = ibv_destroy_qp(qp)) || (errno = ibv_destroy_cq(cq)), "destroy");
	die_if(errno = ibv_dealloc_pd(pd), "ibv_dealloc_pd");
}

/* The child. */
static void front(struct ibv_context *ctx, int sock)
{
	struct offer none = {0}, o;
	exchange(sock, &none, &o, sizeof(o));
	struct ibv_pd *pd = ibv_share_pd(ctx, &o.shpd, o.share_key); /* an instance of the store's domain */
	die_if(!pd, "ibv_share_pd");
	struct ibv_qp *qp = connected(pd, sock);
	exchange(sock, "r", &(char){0}, 1); /* the client has posted a receive */

	/* The first row of the table: its address is only a number here, like its key. */
	request(qp, IBV_WR_SEND, (struct ibv_sge){o.addr, ROW, o.lkey}, 0, 0);

	exchange(sock, "d", &(char){0}, 1); /* no code of the front runs while the client reads and writes */
	close_qp(qp, pd);
}

/* The parent: the store, and the client. */
static void store(struct ibv_context *ctx, int sock)
{
	static char table[ROWS][ROW], mine[ROW];
	struct ibv_pd *pd = ibv_alloc_pd(ctx), *own = ibv_alloc_pd(ctx);
	static struct offer none, o; /* zeroed, since all of it is sent */
	int access = IBV_ACCESS_LOCAL_WRITE;
	die_if(!pd || !own, "ibv_alloc_pd");
	for (int i = 0; i < ROWS; i++)
		snprintf(table[i], ROW, "row %d", i);
	o.addr = (uintptr_t)table;

	/* From now on other processes may join, by the domain's handle and the share key.  Both are plain
	 * numbers.  Without it: "no process of this user holds shared domain 0x00000000" */
	o.share_key = 20120229;
	die_if(!ibv_alloc_shpd(pd, o.share_key, &o.shpd), "ibv_alloc_shpd");

	/* What peers of the front may do.  Without it: "R_Key 0x4dbf3e0b does not permit REMOTE_READ" */
	access |= IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_WRITE;

	struct ibv_mr *mr = ibv_reg_mr(pd, table, sizeof(table), access);
	struct ibv_mr *my = ibv_reg_mr(own, mine, sizeof(mine), IBV_ACCESS_LOCAL_WRITE);
	die_if(!mr || !my, "ibv_reg_mr");

	/* The front names the table by it.  Without it: "unknown L_Key 0x00000000" */
	o.lkey = mr->lkey;

	exchange(sock, &o, &none, sizeof(o));
	struct ibv_qp *qp = connected(own, sock);
	struct ibv_sge sge = {(uintptr_t)mine, ROW, my->lkey};
	struct ibv_recv_wr *bad, receive = {.sg_list = &sge, .num_sge = 1};
	die_if(errno = ibv_post_recv(qp, &receive, &bad), "ibv_post_recv");
	exchange(sock, "r", &(char){0}, 1);
	wait_one(qp);
	printf("the front sent     \"%s\"\n", mine);
	request(qp, IBV_WR_RDMA_READ, sge, (uintptr_t)table[300], mr->rkey);
	printf("the client read    \"%s\"\n", mine);
	strcpy(mine, "written through the front");
	request(qp, IBV_WR_RDMA_WRITE, sge, (uintptr_t)table[301], mr->rkey);
	printf("the store now has  \"%s\"\n", table[301]);
	exchange(sock, "d", &(char){0}, 1);
	die_if(errno = ibv_dereg_mr(my), "ibv_dereg_mr");
	close_qp(qp, own);

	/* A region keeps its instance.  Without it: "the protection domain still has 1 memory region" */
	die_if(errno = ibv_dereg_mr(mr), "ibv_dereg_mr");

	die_if(errno = ibv_dealloc_pd(pd), "ibv_dealloc_pd"); /* the front may still have its instance */
}

int main(void)
{
	int sock[2], status = 0;

	/* The fork comes before the device is opened: each process opens its own. */
	pid_t child = socketpair(AF_UNIX, SOCK_STREAM, 0, sock) ? -1 : fork();
	die_if(child < 0, "socketpair, fork");
	close(sock[child ? 1 : 0]);

	struct ibv_device **list = ibv_get_device_list(NULL);
	struct ibv_context *ctx = list && list[0] ? ibv_open_device(list[0]) : NULL;
	die_if(!ctx, "no device");
	ibv_free_device_list(list);
	if (child)
		store(ctx, sock[0]);
	else
		front(ctx, sock[1]);
	die_if(errno = ibv_close_device(ctx), "ibv_close_device");
	if (child)
		die_if(waitpid(child, &status, 0) < 0, "waitpid");
	return status != 0;
}
