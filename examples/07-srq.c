/* A shared receive queue (SRQ): the receives of many connections in one place.
 *
 *     cc 07-srq.c -o 07-srq -libverbs
 *     ./07-srq
 *
 * The child sends over three connections in turn.  The parent takes all messages with four receives. */
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

enum { PORT = 1, SIZE = 64, QPS = 3, EACH = 4, RECEIVES = 4 };

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
	uint32_t qpn[QPS];
	uint16_t lid, none; /* all bytes are sent, so there is no padding */
};

static char buf[RECEIVES][SIZE];

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
static void connect_to(struct ibv_qp *qp, const struct end *there, uint32_t qpn, uint8_t gid_index)
{
	struct ibv_qp_attr a = {.qp_state = IBV_QPS_RTR, .path_mtu = IBV_MTU_1024, .min_rnr_timer = 12};

	a.dest_qp_num = qpn;
	a.rq_psn = qpn;
	a.ah_attr = (struct ibv_ah_attr){.is_global = 1, .port_num = PORT, .dlid = there->lid};
	a.ah_attr.grh.dgid = there->gid;
	a.ah_attr.grh.sgid_index = gid_index;
	a.ah_attr.grh.hop_limit = 64;
	die_if(errno = ibv_modify_qp(qp, &a, TO_RTR), "RTR");
	a = (struct ibv_qp_attr){.qp_state = IBV_QPS_RTS, .sq_psn = qp->qp_num};
	a.timeout = 14, a.retry_cnt = 7, a.rnr_retry = 6;
	die_if(errno = ibv_modify_qp(qp, &a, TO_RTS), "RTS");
}

/* A receive of the SRQ takes a message of any of the connections. */
static void post(struct ibv_srq *srq, struct ibv_mr *mr, unsigned i)
{
	struct ibv_sge sge = {(uintptr_t)buf[i], SIZE, mr->lkey};
	struct ibv_recv_wr *bad, wr = {.wr_id = i, .sg_list = &sge, .num_sge = 1};
	die_if(errno = ibv_post_srq_recv(srq, &wr, &bad), "ibv_post_srq_recv");
}

static void wait_one(struct ibv_cq *cq, struct ibv_wc *wc)
{
	int n;
	while (!(n = ibv_poll_cq(cq, 1, wc)))
		sched_yield(); /* the peer may need this core */
	die_if(n < 0, "ibv_poll_cq");
	errno = EIO;
	die_if(wc->status != IBV_WC_SUCCESS, ibv_wc_status_str(wc->status));
}

static void receive_all(struct ibv_cq *cq, struct ibv_srq *srq, struct ibv_mr *mr)
{
	struct ibv_wc wc;
	for (unsigned n = 0; n < QPS * EACH; n++) {
		wait_one(cq, &wc); /* its qp_num says which connection the message came over */
		printf("received \"%s\" on queue pair 0x%x\n", buf[wc.wr_id], wc.qp_num);

		/* The buffer is free again.  Without it: "queue pair 0xbba001 was not ready: no receive
		 * request was posted there within rnr_retry = 6 retries" */
		post(srq, mr, (unsigned)wc.wr_id);
	}
}

/* The connections take turns. */
static void send_all(struct ibv_qp **qp, struct ibv_mr *mr)
{
	struct ibv_wc wc;
	for (unsigned i = 0; i < QPS * EACH; i++) {
		struct ibv_sge sge = {(uintptr_t)buf[0], SIZE, mr->lkey};
		struct ibv_send_wr *bad, wr = {.sg_list = &sge, .num_sge = 1, .opcode = IBV_WR_SEND};

		snprintf(buf[0], SIZE, "message %u", i + 1);
		wr.send_flags = IBV_SEND_SIGNALED;
		die_if(errno = ibv_post_send(qp[i % QPS], &wr, &bad), "ibv_post_send");
		wait_one(qp[0]->send_cq, &wc);
	}
}

int main(void)
{
	struct ibv_qp_init_attr init = {.qp_type = IBV_QPT_RC, .cap = {1, 0, 1, 0, 0}};
	struct ibv_srq_init_attr shared = {.attr = {.max_wr = RECEIVES, .max_sge = 1}};
	struct ibv_qp_attr a = {.qp_state = IBV_QPS_INIT, .port_num = PORT};
	struct ibv_port_attr port;
	struct ibv_qp *qp[QPS];
	int sock[2], status = 0;
	/* The fork comes before the device is opened: each process opens its own. */
	pid_t child = socketpair(AF_UNIX, SOCK_STREAM, 0, sock) ? -1 : fork();
	die_if(child < 0, "socketpair, fork");
	int sends = !child, s = sock[sends];
	close(sock[!sends]);

	struct ibv_context *ctx = open_device(&port);
	struct ibv_gid_entry gid = choose_gid(ctx);
	struct ibv_pd *pd = ibv_alloc_pd(ctx);
	struct ibv_cq *cq = ibv_create_cq(ctx, QPS * EACH, NULL, NULL, 0);
	struct ibv_mr *mr = pd ? ibv_reg_mr(pd, buf, sizeof(buf), IBV_ACCESS_LOCAL_WRITE) : NULL;
	struct ibv_srq *srq = pd ? ibv_create_srq(pd, &shared) : NULL;
	die_if(!cq || !mr || !srq, "ibv_create_cq, ibv_reg_mr, ibv_create_srq");
	init.send_cq = init.recv_cq = cq;
	init.srq = srq; /* the queue pairs have no receive queue of their own */
	struct end here = {.gid = gid.gid, .lid = port.lid}, there;
	for (int i = 0; i < QPS; i++) {
		qp[i] = ibv_create_qp(pd, &init);
		die_if(!qp[i], "ibv_create_qp");
		die_if(errno = ibv_modify_qp(qp[i], &a, TO_INIT), "INIT");
		here.qpn[i] = qp[i]->qp_num;
	}
	for (unsigned i = 0; !sends && i < RECEIVES; i++)
		post(srq, mr, i);
	exchange(s, &here, &there, sizeof(here));
	for (int i = 0; i < QPS; i++)
		connect_to(qp[i], &there, there.qpn[i], (uint8_t)gid.gid_index);
	exchange(s, "r", &(char){0}, 1); /* now both can receive */
	if (sends)
		send_all(qp, mr);
	else
		receive_all(cq, srq, mr);
	exchange(s, "d", &(char){0}, 1);

	/* Queue pairs use the SRQ, so they go first.  Without it: "3 QPs use the SRQ; destroy them first" */
	for (int i = 0; i < QPS; i++)
		die_if(errno = ibv_destroy_qp(qp[i]), "ibv_destroy_qp");

	die_if(errno = ibv_destroy_srq(srq), "ibv_destroy_srq");
	die_if(errno = ibv_dereg_mr(mr), "ibv_dereg_mr");
	die_if(errno = ibv_destroy_cq(cq), "ibv_destroy_cq");
	die_if(errno = ibv_dealloc_pd(pd), "ibv_dealloc_pd");
	die_if(errno = ibv_close_device(ctx), "ibv_close_device");
	if (!sends)
		die_if(waitpid(child, &status, 0) < 0, "waitpid");
	return status != 0;
}
