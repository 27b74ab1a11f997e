/* A datagram (UD) and its answer: no connection, but an address handle and a Q_Key for each message.
 *
 *     cc 04-ud.c -o 04-ud -libverbs
 *     ./04-ud
 *
 * Datagrams may be lost without notice, so a real program repeats its question after a time. */
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

enum { PORT = 1, SIZE = 64, GRH = 40, QKEY = 0x11111111 };

struct end { /* what the sender must know */
	union ibv_gid gid;
	uint32_t qpn;
	uint32_t lid;
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

static void modify(struct ibv_qp *qp, enum ibv_qp_state state)
{
	struct ibv_qp_attr a = {.qp_state = state, .port_num = PORT};
	int mask = IBV_QP_STATE;

	if (state == IBV_QPS_INIT)
		mask |= IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_QKEY;
	if (state == IBV_QPS_RTS)
		mask |= IBV_QP_SQ_PSN;

	/* The receiver discards datagrams with another Q_Key.  Without it: "a datagram has Q_Key 0x11111111,
	 * but queue pair 0xb25000 has Q_Key 0x00000000" */
	a.qkey = QKEY;

	die_if(errno = ibv_modify_qp(qp, &a, mask), "ibv_modify_qp");
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

/* Sends to a queue pair of the port that the address handle names. */
static void send_text(struct ibv_qp *qp, struct ibv_ah *ah, uint32_t qpn, struct ibv_sge sge,
		      const char *text)
{
	struct ibv_send_wr *bad, wr = {.sg_list = &sge, .num_sge = 1, .opcode = IBV_WR_SEND};
	struct ibv_wc wc;

	snprintf((char *)(uintptr_t)sge.addr, sge.length, "%s", text);
	wr.send_flags = IBV_SEND_SIGNALED;
	wr.wr.ud.ah = ah;
	wr.wr.ud.remote_qkey = QKEY;

	/* A port has many queue pairs.  Without it: "remote_qpn is 0, so it was never set; set it to the
	 * qp_num of the peer's queue pair" */
	wr.wr.ud.remote_qpn = qpn;

	die_if(errno = ibv_post_send(qp, &wr, &bad), "ibv_post_send");
	wait_one(qp->send_cq, &wc); /* it was sent; UD does not tell whether it arrived */
}

int main(void)
{
	struct ibv_qp_init_attr init = {.qp_type = IBV_QPT_UD, .cap = {1, 1, 1, 1, 0}};
	char buf[2][GRH + SIZE] = {""}; /* one to send from, one to receive into */
	struct ibv_sge out = {(uintptr_t)buf[0], SIZE, 0}, in = {(uintptr_t)buf[1], SIZE, 0};
	struct ibv_recv_wr *bad, receive = {.sg_list = &in, .num_sge = 1};
	struct ibv_ah_attr to = {.port_num = PORT};
	struct ibv_port_attr port;
	struct ibv_ah *ah;
	struct ibv_wc wc;
	int sock[2], status = 0;
	/* The fork comes before the device is opened: each process opens its own. */
	pid_t child = socketpair(AF_UNIX, SOCK_STREAM, 0, sock) ? -1 : fork();
	die_if(child < 0, "socketpair, fork");
	int asks = !child, s = sock[asks];
	close(sock[!asks]);

	struct ibv_context *ctx = open_device(&port);
	struct ibv_gid_entry gid = choose_gid(ctx);
	struct ibv_pd *pd = ibv_alloc_pd(ctx);
	struct ibv_cq *send_cq = ibv_create_cq(ctx, 1, NULL, NULL, 0),
		      *cq = ibv_create_cq(ctx, 1, NULL, NULL, 0);
	die_if(!pd || !send_cq || !cq, "ibv_alloc_pd, ibv_create_cq");
	struct ibv_mr *mr = ibv_reg_mr(pd, buf, sizeof(buf), IBV_ACCESS_LOCAL_WRITE);
	die_if(!mr, "ibv_reg_mr");
	out.lkey = in.lkey = mr->lkey;
	init.send_cq = send_cq, init.recv_cq = cq;
	struct ibv_qp *qp = ibv_create_qp(pd, &init);
	die_if(!qp, "ibv_create_qp");
	modify(qp, IBV_QPS_INIT);

	/* 40 bytes before each message hold its GRH, the header with its GIDs.  Without it: "a datagram of
	 * 104 bytes (40 bytes of GRH included) does not fit the receive request of 64 bytes" */
	in.length += GRH;

	/* A datagram without a receive is lost.  Without it: "a message arrived at queue pair 0xd9d000, but
	 * no receive request was posted" */
	die_if(errno = ibv_post_recv(qp, &receive, &bad), "ibv_post_recv");

	modify(qp, IBV_QPS_RTR);
	modify(qp, IBV_QPS_RTS);
	struct end here = {gid.gid, qp->qp_num, port.lid}, there;
	exchange(s, &here, &there, sizeof(here));

	if (asks) {
		to.dlid = there.lid;

		/* Ethernet needs the GIDs.  Without it: "is_global is 0, but RoCE requires a GRH" */
		to.is_global = 1;
		to.grh.dgid = there.gid;
		to.grh.sgid_index = (uint8_t)gid.gid_index;
		to.grh.hop_limit = 64;

		ah = ibv_create_ah(pd, &to);
		die_if(!ah, "ibv_create_ah");
		send_text(qp, ah, there.qpn, out, "who is there?");
	}
	wait_one(cq, &wc);
	printf("%s received \"%s\"\n", asks ? "asker" : "answerer", buf[1] + GRH);
	if (!asks) {
		/* The completion and the GRH name the sender. */
		ah = ibv_create_ah_from_wc(pd, &wc, (struct ibv_grh *)buf[1], PORT);
		die_if(!ah, "ibv_create_ah_from_wc");
		send_text(qp, ah, wc.src_qp, out, "it is me");
	}
	exchange(s, "d", &(char){0}, 1);

	die_if(errno = ibv_destroy_ah(ah), "ibv_destroy_ah");
	die_if(errno = ibv_destroy_qp(qp), "ibv_destroy_qp");
	die_if(errno = ibv_dereg_mr(mr), "ibv_dereg_mr");
	die_if((errno = ibv_destroy_cq(send_cq)) || (errno = ibv_destroy_cq(cq)), "ibv_destroy_cq");
	die_if(errno = ibv_dealloc_pd(pd), "ibv_dealloc_pd");
	die_if(errno = ibv_close_device(ctx), "ibv_close_device");
	if (!asks)
		die_if(waitpid(child, &status, 0) < 0, "waitpid");
	return status != 0;
}
