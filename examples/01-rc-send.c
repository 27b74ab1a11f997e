/* A message over a reliable connection (RC), and its answer.
 *
 *     cc 01-rc-send.c -o 01-rc-send -libverbs
 *     ./01-rc-send            the server
 *     ./01-rc-send HOST       the client, on this host or another
 *
 * Two queue pairs connect when each knows the other's number and GID.  The programs send these over TCP. */
#include <errno.h>
#include <infiniband/verbs.h>
#include <netdb.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { PORT = 1, SIZE = 64 }; /* the adapter's port, and the size of a message */

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
	uint32_t lid; /* InfiniBand addresses a port by its LID too; on Ethernet it is 0 */
};

static void die_if(int failed, const char *what)
{
	if (failed) {
		fprintf(stderr, "%s: %s\n", what, errno ? strerror(errno) : "connection closed");
		exit(1);
	}
}

/* A TCP connection: the server waits for one, the client makes it. */
static int meet(const char *host)
{
	struct addrinfo hints = {.ai_flags = AI_PASSIVE, .ai_family = AF_INET, .ai_socktype = SOCK_STREAM},
			*to;
	int yes = 1, s, peer;
	die_if(getaddrinfo(host, "18600", &hints, &to), "getaddrinfo");
	s = socket(to->ai_family, to->ai_socktype, 0);
	die_if(s < 0 || setsockopt(s, SOL_SOCKET, SO_REUSEADDR, &yes, sizeof(yes)), "socket");
	die_if(host ? connect(s, to->ai_addr, to->ai_addrlen) : bind(s, to->ai_addr, to->ai_addrlen), "TCP");
	freeaddrinfo(to);
	if (host)
		return s;
	die_if(listen(s, 1), "listen");
	peer = accept(s, NULL, NULL);
	die_if(peer < 0, "accept");
	close(s);
	return peer;
}

static void exchange(int tcp, const void *mine, void *theirs, size_t size)
{
	die_if(send(tcp, mine, size, MSG_NOSIGNAL) != (ssize_t)size, "send to the peer");
	die_if(recv(tcp, theirs, size, MSG_WAITALL) != (ssize_t)size, "the peer is gone");
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

/* The queue pair goes from RTR (ready to receive) to RTS (ready to send). */
static void connect_to(struct ibv_qp *qp, const struct end *here, const struct end *there, uint8_t gid_index)
{
	struct ibv_qp_attr a = {.qp_state = IBV_QPS_RTR, .path_mtu = IBV_MTU_1024, .min_rnr_timer = 12};

	/* The first packet has a number that both know: here each end begins with its queue pair's number. */
	a.dest_qp_num = there->qpn;
	a.rq_psn = there->qpn;
	a.ah_attr = (struct ibv_ah_attr){.port_num = PORT, .dlid = there->lid};

	/* On Ethernet GIDs are the addresses.  Without it: "is_global is 0, but RoCE requires a GRH" */
	a.ah_attr.is_global = 1;
	a.ah_attr.grh.dgid = there->gid;
	a.ah_attr.grh.sgid_index = gid_index;
	a.ah_attr.grh.hop_limit = 64;

	die_if(errno = ibv_modify_qp(qp, &a, TO_RTR), "RTR");

	/* A packet without acknowledgement is sent again after 4.096 us * 2^timeout, retry_cnt times.  A peer
	 * without a receive is asked again rnr_retry times.  Without it: "QP 0x2ca000 is in RTR: sends
	 * require RTS" */
	a = (struct ibv_qp_attr){.qp_state = IBV_QPS_RTS, .sq_psn = here->qpn};
	a.timeout = 14, a.retry_cnt = 7, a.rnr_retry = 6;
	die_if(errno = ibv_modify_qp(qp, &a, TO_RTS), "RTS");
}

static void wait_one(struct ibv_cq *cq)
{
	struct ibv_wc wc;
	int n;
	while (!(n = ibv_poll_cq(cq, 1, &wc)))
		sched_yield(); /* the peer may need this core; 03-events.c shows how to sleep instead */
	die_if(n < 0, "ibv_poll_cq");
	errno = EIO;
	die_if(wc.status != IBV_WC_SUCCESS, ibv_wc_status_str(wc.status));
}

static void send_text(struct ibv_qp *qp, struct ibv_sge sge, const char *text)
{
	struct ibv_send_wr *bad, wr = {.sg_list = &sge, .num_sge = 1, .opcode = IBV_WR_SEND};
	wr.send_flags = IBV_SEND_SIGNALED; /* it makes a completion */
	snprintf((char *)(uintptr_t)sge.addr, sge.length, "%s", text);
	die_if(errno = ibv_post_send(qp, &wr, &bad), "ibv_post_send");
	wait_one(qp->send_cq); /* the peer has the message, and the buffer may be used again */
}

int main(int argc, char **argv)
{
	const char *host = argc > 1 ? argv[1] : NULL;
	char buf[2][SIZE] = {""}; /* one to send from, one to receive into */
	struct ibv_qp_init_attr init = {.qp_type = IBV_QPT_RC, .cap = {1, 1, 1, 1, 0}};
	struct ibv_qp_attr a = {.qp_state = IBV_QPS_INIT, .port_num = PORT};
	struct ibv_sge out = {(uintptr_t)buf[0], SIZE, 0}, in = {(uintptr_t)buf[1], SIZE, 0};
	struct ibv_recv_wr *bad, receive = {.sg_list = &in, .num_sge = 1};
	int tcp = meet(host);
	struct ibv_port_attr port;
	struct ibv_context *ctx = open_device(&port);
	struct ibv_pd *pd = ibv_alloc_pd(ctx); /* only objects of one domain work together */
	struct ibv_cq *cq = ibv_create_cq(ctx, 2, NULL, NULL, 0);
	die_if(!pd || !cq, "ibv_alloc_pd, ibv_create_cq");
	struct ibv_mr *mr = ibv_reg_mr(pd, buf, sizeof(buf), IBV_ACCESS_LOCAL_WRITE);
	die_if(!mr, "ibv_reg_mr");

	/* The key lets a request use the memory.  Without it: "unknown L_Key 0x00000000" */
	out.lkey = in.lkey = mr->lkey;

	init.send_cq = init.recv_cq = cq;
	struct ibv_qp *qp = ibv_create_qp(pd, &init);
	die_if(!qp, "ibv_create_qp");

	/* INIT binds it to a port.  Without it: "QP 0x3b2000 is in RESET: receives require INIT" */
	die_if(errno = ibv_modify_qp(qp, &a, TO_INIT), "INIT");

	/* Each message needs a receive.  It is posted before the peer can send.  Without it: "queue pair
	 * 0x4fd000 was not ready: no receive request was posted there within rnr_retry = 6 retries" */
	die_if(errno = ibv_post_recv(qp, &receive, &bad), "ibv_post_recv");

	struct ibv_gid_entry gid = choose_gid(ctx);
	struct end here = {gid.gid, qp->qp_num, port.lid}, there;
	exchange(tcp, &here, &there, sizeof(here));
	connect_to(qp, &here, &there, (uint8_t)gid.gid_index);
	exchange(tcp, "r", &(char){0}, 1); /* now both can receive */

	if (host)
		send_text(qp, out, "hello");
	wait_one(cq);
	printf("%s received \"%s\"\n", host ? "client" : "server", buf[1]);
	if (!host)
		send_text(qp, out, "hello, too");
	exchange(tcp, "d", &(char){0}, 1); /* neither needs the other's queue pair any more */

	/* Objects go in the opposite order, since each one uses those before it. */
	die_if(errno = ibv_destroy_qp(qp), "ibv_destroy_qp");

	/* A region keeps its domain.  Without it: "the protection domain still has 1 memory region" */
	die_if(errno = ibv_dereg_mr(mr), "ibv_dereg_mr");

	die_if(errno = ibv_destroy_cq(cq), "ibv_destroy_cq");
	die_if(errno = ibv_dealloc_pd(pd), "ibv_dealloc_pd");
	die_if(errno = ibv_close_device(ctx), "ibv_close_device");
	close(tcp);
	return 0;
}
