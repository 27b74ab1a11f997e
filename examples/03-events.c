/* A receiver that sleeps until a completion comes: a completion channel, and epoll.
 *
 *     cc 03-events.c -o 03-events -libverbs
 *     ./03-events
 *
 * The sender is the same: both wait for their completions, and for the end of their peer, in one event loop.
 */
#include <errno.h>
#include <fcntl.h>
#include <infiniband/verbs.h>
#include <netinet/in.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

enum { PORT = 1, SIZE = 64, DEPTH = 4, MESSAGES = 10 };

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
	uint32_t lid;
};

static char buf[DEPTH][SIZE]; /* of the messages that are on their way */
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
	die_if(errno = ibv_modify_qp(qp, &a, TO_RTR), "RTR");
	a = (struct ibv_qp_attr){.qp_state = IBV_QPS_RTS, .sq_psn = here->qpn};
	a.timeout = 14, a.retry_cnt = 7, a.rnr_retry = 6;
	die_if(errno = ibv_modify_qp(qp, &a, TO_RTS), "RTS");
}

/* Posts buffer i: to send message number n, or to receive into (n < 0). */
static void post(struct ibv_qp *qp, struct ibv_mr *mr, unsigned i, int n)
{
	struct ibv_sge sge = {(uintptr_t)buf[i], SIZE, mr->lkey};
	struct ibv_send_wr *bad, wr = {.wr_id = i, .sg_list = &sge, .num_sge = 1, .opcode = IBV_WR_SEND};
	struct ibv_recv_wr *bad_receive, receive = {.wr_id = i, .sg_list = &sge, .num_sge = 1};
	if (n < 0) {
		die_if(errno = ibv_post_recv(qp, &receive, &bad_receive), "ibv_post_recv");
		return;
	}
	snprintf(buf[i], SIZE, "message %d", n);
	wr.send_flags = IBV_SEND_SIGNALED; /* a completion is what makes an event */
	die_if(errno = ibv_post_send(qp, &wr, &bad), "ibv_post_send");
}

/* An event came: takes all completions, and returns how many there were until now. */
static int take(struct ibv_comp_channel *channel, struct ibv_qp *qp, struct ibv_mr *mr, int done, int sends)
{
	struct ibv_cq *cq;
	struct ibv_wc wc;
	void *context;
	int n;
	if (ibv_get_cq_event(channel, &cq, &context))
		return done; /* nothing to read after all: the descriptor does not block */

	/* ibv_destroy_cq() waits until each event was acknowledged. */
	ibv_ack_cq_events(cq, 1);

	/* Arm first, then poll until it is empty: a completion after the poll makes an event. */
	die_if(errno = ibv_req_notify_cq(cq, 0), "ibv_req_notify_cq");
	while ((n = ibv_poll_cq(cq, 1, &wc)) > 0) {
		errno = EIO;
		die_if(wc.status != IBV_WC_SUCCESS, ibv_wc_status_str(wc.status));
		if (!sends)
			printf("received \"%s\"\n", buf[wc.wr_id]);
		if (++done + DEPTH <= MESSAGES) /* its buffer is free again */
			post(qp, mr, (unsigned)wc.wr_id, sends ? done + DEPTH : -1);
	}
	die_if(n < 0, "ibv_poll_cq");
	return done;
}

int main(void)
{
	struct ibv_qp_init_attr init = {.qp_type = IBV_QPT_RC, .cap = {DEPTH, DEPTH, 1, 1, 0}};
	struct ibv_qp_attr a = {.qp_state = IBV_QPS_INIT, .port_num = PORT};
	struct epoll_event event = {.events = EPOLLIN};
	struct ibv_port_attr port;
	int sock[2], status = 0, done = 0;
	/* The fork comes before the device is opened: each process opens its own. */
	pid_t child = socketpair(AF_UNIX, SOCK_STREAM, 0, sock) ? -1 : fork();
	die_if(child < 0, "socketpair, fork");
	int sends = !child, s = sock[sends];
	close(sock[!sends]);

	struct ibv_context *ctx = open_device(&port);
	struct ibv_gid_entry gid = choose_gid(ctx);
	struct ibv_pd *pd = ibv_alloc_pd(ctx);
	struct ibv_comp_channel *channel = ibv_create_comp_channel(ctx);
	die_if(!pd || !channel || fcntl(channel->fd, F_SETFL, O_NONBLOCK), "ibv_create_comp_channel");
	struct ibv_cq *cq = ibv_create_cq(ctx, DEPTH, NULL, channel, 0);
	struct ibv_mr *mr = ibv_reg_mr(pd, buf, sizeof(buf), IBV_ACCESS_LOCAL_WRITE);
	die_if(!cq || !mr, "ibv_create_cq, ibv_reg_mr");
	init.send_cq = init.recv_cq = cq;
	struct ibv_qp *qp = ibv_create_qp(pd, &init);
	die_if(!qp, "ibv_create_qp");
	die_if(errno = ibv_modify_qp(qp, &a, TO_INIT), "INIT");
	die_if(errno = ibv_req_notify_cq(cq, 0),
	       "ibv_req_notify_cq"); /* the next completion makes an event */
	for (unsigned i = 0; i < DEPTH && !sends; i++)
		post(qp, mr, i, -1);
	struct end here = {gid.gid, qp->qp_num, port.lid}, there;
	exchange(s, &here, &there, sizeof(here));
	connect_to(qp, &here, &there, (uint8_t)gid.gid_index);
	exchange(s, "r", &(char){0}, 1); /* now both can receive */
	for (unsigned i = 0; i < DEPTH && sends; i++)
		post(qp, mr, i, (int)i + 1);

	int loop = epoll_create1(EPOLL_CLOEXEC);
	event.data.fd = channel->fd;
	die_if(loop < 0 || epoll_ctl(loop, EPOLL_CTL_ADD, channel->fd, &event), "epoll");
	event = (struct epoll_event){.events = EPOLLRDHUP, .data.fd = s};
	die_if(epoll_ctl(loop, EPOLL_CTL_ADD, s, &event), "epoll");
	while (done < MESSAGES) {
		die_if(epoll_wait(loop, &event, 1, -1) < 0, "epoll_wait");
		die_if(event.data.fd == s, "the peer is gone");
		done = take(channel, qp, mr, done, sends);
	}
	exchange(s, "d", &(char){0}, 1);
	die_if(errno = ibv_destroy_qp(qp), "ibv_destroy_qp");
	die_if(errno = ibv_dereg_mr(mr), "ibv_dereg_mr");
	die_if(errno = ibv_destroy_cq(cq), "ibv_destroy_cq");
	die_if(errno = ibv_destroy_comp_channel(channel), "ibv_destroy_comp_channel");
	die_if(errno = ibv_dealloc_pd(pd), "ibv_dealloc_pd");
	die_if(errno = ibv_close_device(ctx), "ibv_close_device");
	if (!sends)
		die_if(waitpid(child, &status, 0) < 0, "waitpid");
	return status != 0;
}
