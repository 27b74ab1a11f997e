/* One process writes, reads and counts in another one's memory (RDMA WRITE, RDMA READ, FETCH AND ADD).
 *
 *     cc 02-rc-write-read-atomic.c -o 02-rc-write-read-atomic -libverbs
 *     ./02-rc-write-read-atomic
 *
 * The owner offers its memory, and then sleeps: no code of it runs for any of the three requests. */
#include <errno.h>
#include <infiniband/verbs.h>
#include <netinet/in.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

enum { PORT = 1, TEXT = 64 }; /* the adapter's port, and the bytes of a text */

/* The attributes that the queue pair needs for each state. */
enum {
	TO_INIT = IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS,
	TO_RTR = IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN |
		 IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER,
	TO_RTS = IBV_QP_STATE | IBV_QP_SQ_PSN | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY |
		 IBV_QP_MAX_QP_RD_ATOMIC
};

struct memory {		  /* the owner's */
	uint64_t counter; /* an atomic needs an address that is a multiple of 8 */
	char text[TEXT];
};

struct end { /* what the peer must know */
	union ibv_gid gid;
	uint64_t addr; /* of the memory, and the key to it */
	uint32_t rkey, qpn;
	uint16_t lid, none[3]; /* all bytes are sent, so there is no padding */
};

static void die_if(int failed, const char *what)
{
	if (failed) {
		fprintf(stderr, "%s: %s\n", what, errno ? strerror(errno) : "connection closed");
		exit(1);
	}
}

static void exchange(int sock, const void *mine, void *theirs, size_t size)
{
	die_if(send(sock, mine, size, MSG_NOSIGNAL) != (ssize_t)size, "send to the peer");
	die_if(recv(sock, theirs, size, MSG_WAITALL) != (ssize_t)size, "the peer is gone");
}

/* The first device whose port is active. */
static struct ibv_context *open_device(struct ibv_port_attr *port)
{
	struct ibv_device **list = ibv_get_device_list(NULL);
	struct ibv_context *ctx = NULL;
	for (int i = 0; !ctx && list && list[i]; i++) {
		ctx = ibv_open_device(list[i]);
		if (ctx && (ibv_query_port(ctx, PORT, port) || port->state != IBV_PORT_ACTIVE)) {
			ibv_close_device(ctx);
			ctx = NULL;
		}
	}
	die_if(!ctx, "no device with an active port");
	ibv_free_device_list(list); /* an open device does not need the list */
	return ctx;
}

/* The first GID by RoCE v2 that stands for an IPv4 address, else the first of all. */
static struct ibv_gid_entry choose_gid(struct ibv_context *ctx)
{
	struct ibv_gid_entry gid[64];
	ssize_t n = ibv_query_gid_table(ctx, gid, 64, 0);
	die_if(n <= 0, "ibv_query_gid_table");
	for (ssize_t i = 0; i < n; i++)
		if (gid[i].gid_type == IBV_GID_TYPE_ROCE_V2 && gid[i].port_num == PORT &&
		    IN6_IS_ADDR_V4MAPPED((struct in6_addr *)gid[i].gid.raw))
			return gid[i];
	return gid[0];
}

/* RTR (ready to receive), then RTS (ready to send); 01-rc-send.c explains each attribute. */
static void connect_to(struct ibv_qp *qp, const struct end *here, const struct end *there, uint8_t gid_index)
{
	struct ibv_qp_attr a = {.qp_state = IBV_QPS_RTR, .path_mtu = IBV_MTU_1024, .min_rnr_timer = 12};

	a.dest_qp_num = there->qpn;
	a.rq_psn = there->qpn;
	a.ah_attr = (struct ibv_ah_attr){.is_global = 1, .port_num = PORT, .dlid = there->lid};
	a.ah_attr.grh.dgid = there->gid;
	a.ah_attr.grh.sgid_index = gid_index;
	a.ah_attr.grh.hop_limit = 64;

	/* How many READs and atomics this end answers at a time.  Without it: "more READs and atomics are
	 * outstanding than the responder's limit of 0" */
	a.max_dest_rd_atomic = 1;

	die_if(errno = ibv_modify_qp(qp, &a, TO_RTR), "RTR");
	a = (struct ibv_qp_attr){.qp_state = IBV_QPS_RTS, .sq_psn = here->qpn};
	a.timeout = 14, a.retry_cnt = 7, a.rnr_retry = 6;

	/* And how many it makes.  Without it: "max_rd_atomic of the queue pair is 0, so it permits no READ or
	 * atomic" */
	a.max_rd_atomic = 1;

	die_if(errno = ibv_modify_qp(qp, &a, TO_RTS), "RTS");
}

/* Posts a request and waits for its completion. */
static void request(struct ibv_qp *qp, enum ibv_wr_opcode op, struct ibv_sge sge, uint64_t addr,
		    uint32_t rkey)
{
	struct ibv_send_wr *bad, wr = {.sg_list = &sge, .num_sge = 1, .opcode = op};
	struct ibv_wc wc;
	int n;
	wr.send_flags = IBV_SEND_SIGNALED;
	wr.wr.rdma.remote_addr = addr, wr.wr.rdma.rkey = rkey;
	if (op == IBV_WR_ATOMIC_FETCH_AND_ADD) /* its fields are others */
		wr.wr.atomic.remote_addr = addr, wr.wr.atomic.rkey = rkey, wr.wr.atomic.compare_add = 5;
	die_if(errno = ibv_post_send(qp, &wr, &bad), "ibv_post_send");
	while (!(n = ibv_poll_cq(qp->send_cq, 1, &wc)))
		sched_yield(); /* the peer may need this core */
	die_if(n < 0, "ibv_poll_cq");
	errno = EIO;
	die_if(wc.status != IBV_WC_SUCCESS, ibv_wc_status_str(wc.status));
}

static void visit(struct ibv_qp *qp, struct ibv_mr *mr, const struct end *owner)
{
	struct memory *m = mr->addr;
	struct ibv_sge text = {(uintptr_t)m->text, TEXT, mr->lkey},
		       old = {(uintptr_t)&m->counter, 8, mr->lkey};
	uint64_t far_text = owner->addr + offsetof(struct memory, text);
	request(qp, IBV_WR_RDMA_READ, text, far_text, owner->rkey);
	printf("visitor read \"%s\"\n", m->text);
	strcpy(m->text, "written by the visitor");
	request(qp, IBV_WR_RDMA_WRITE, text, far_text, owner->rkey);
	request(qp, IBV_WR_ATOMIC_FETCH_AND_ADD, old, owner->addr, owner->rkey);
	printf("visitor added 5 to %lu\n", (unsigned long)m->counter);
}

int main(void)
{
	struct memory m = {.counter = 37, .text = "the owner's text"};
	struct ibv_qp_init_attr init = {.qp_type = IBV_QPT_RC, .cap = {1, 1, 1, 1, 0}};
	struct ibv_qp_attr a = {.qp_state = IBV_QPS_INIT, .port_num = PORT};
	struct ibv_port_attr port;
	int sock[2], status = 0, access = IBV_ACCESS_LOCAL_WRITE;

	/* The fork comes before the device is opened: each process opens its own. */
	pid_t child = socketpair(AF_UNIX, SOCK_STREAM, 0, sock) ? -1 : fork();
	die_if(child < 0, "socketpair, fork");
	int visitor = !child, s = sock[visitor];
	close(sock[!visitor]);

	struct ibv_context *ctx = open_device(&port);
	struct ibv_gid_entry gid = choose_gid(ctx);
	struct ibv_pd *pd = ibv_alloc_pd(ctx);
	struct ibv_cq *cq = ibv_create_cq(ctx, 1, NULL, NULL, 0);
	die_if(!pd || !cq, "ibv_alloc_pd, ibv_create_cq");

	/* What peers may do with this memory.  Without it: "R_Key 0x55191648 does not permit REMOTE_READ" */
	access |= IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_ATOMIC;

	struct ibv_mr *mr = ibv_reg_mr(pd, &m, sizeof(m), access);
	die_if(!mr, "ibv_reg_mr");
	init.send_cq = init.recv_cq = cq;
	struct ibv_qp *qp = ibv_create_qp(pd, &init);
	die_if(!qp, "ibv_create_qp");

	/* And what this peer may do.  Without it: "queue pair 0x185000 does not permit REMOTE_READ" */
	a.qp_access_flags = IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_ATOMIC;

	die_if(errno = ibv_modify_qp(qp, &a, TO_INIT), "INIT");
	struct end here = {.gid = gid.gid, .addr = (uintptr_t)&m, .qpn = qp->qp_num, .lid = port.lid}, there;

	/* The peer names the region by its R_Key.  Without it: "unknown R_Key 0x00000000" */
	here.rkey = mr->rkey;

	exchange(s, &here, &there, sizeof(here));
	connect_to(qp, &here, &there, (uint8_t)gid.gid_index);
	exchange(s, "r", &(char){0}, 1); /* now both can receive */
	if (visitor)
		visit(qp, mr, &there);
	exchange(s, "d", &(char){0}, 1); /* the owner waits here until the visitor is done */
	if (!visitor)
		printf("owner has \"%s\" and %lu\n", m.text, (unsigned long)m.counter);

	die_if(errno = ibv_destroy_qp(qp), "ibv_destroy_qp");
	die_if(errno = ibv_dereg_mr(mr), "ibv_dereg_mr");
	die_if(errno = ibv_destroy_cq(cq), "ibv_destroy_cq");
	die_if(errno = ibv_dealloc_pd(pd), "ibv_dealloc_pd");
	die_if(errno = ibv_close_device(ctx), "ibv_close_device");
	if (!visitor)
		die_if(waitpid(child, &status, 0) < 0, "waitpid");
	return status != 0;
}
