/* A program with a bug, which verbena run --check finds: the buffer of a message is used again too early.
 *
 *     cc 11-check.c -o 11-check -libverbs
 *     verbena run --check ./11-check
 *
 * Two queue pairs of one process are connected, and one sends three messages to the other.  On one host they
 * mostly arrive as they were written.  On an adapter one of them may arrive as the next one. */
#include <errno.h>
#include <infiniband/verbs.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { PORT = 1, SIZE = 64, MESSAGES = 3 };

enum {
	TO_INIT = IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS,
	TO_RTR = IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN |
		 IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER,
	TO_RTS = IBV_QP_STATE | IBV_QP_SQ_PSN | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY |
		 IBV_QP_MAX_QP_RD_ATOMIC
};

static void die_if(int failed, const char *what)
{
	if (failed) {
		fprintf(stderr, "%s: %s\n", what, strerror(errno));
		exit(1);
	}
}

/* 01-rc-send.c explains each attribute. */
static void connect_to(struct ibv_qp *qp, uint32_t peer, union ibv_gid gid, uint16_t lid)
{
	struct ibv_qp_attr a = {.qp_state = IBV_QPS_INIT, .port_num = PORT};
	die_if(errno = ibv_modify_qp(qp, &a, TO_INIT), "INIT");

	a = (struct ibv_qp_attr){.qp_state = IBV_QPS_RTR, .path_mtu = IBV_MTU_1024, .dest_qp_num = peer};
	a.min_rnr_timer = 12;
	a.ah_attr = (struct ibv_ah_attr){.is_global = 1, .port_num = PORT, .dlid = lid};
	a.ah_attr.grh.dgid = gid;
	a.ah_attr.grh.hop_limit = 64;
	die_if(errno = ibv_modify_qp(qp, &a, TO_RTR), "RTR");

	a = (struct ibv_qp_attr){.qp_state = IBV_QPS_RTS, .timeout = 14, .retry_cnt = 7, .rnr_retry = 6};
	die_if(errno = ibv_modify_qp(qp, &a, TO_RTS), "RTS");
}

static void await(struct ibv_cq *cq)
{
	struct ibv_wc wc;
	int n;
	do {
		n = ibv_poll_cq(cq, 1, &wc);
	} while (!n);
	errno = EIO;
	die_if(n < 0 || wc.status != IBV_WC_SUCCESS, "a completion");
}

static char out[SIZE], in[MESSAGES][SIZE]; /* the messages to send, one after the other, and those received */

static void receive(struct ibv_qp *qp, struct ibv_mr *mr, int i)
{
	struct ibv_sge sge = {(uintptr_t)in[i], SIZE, mr->lkey};
	struct ibv_recv_wr wr = {.wr_id = (uint64_t)i, .sg_list = &sge, .num_sge = 1}, *bad;
	die_if(errno = ibv_post_recv(qp, &wr, &bad), "ibv_post_recv");
}

static void send_one(struct ibv_qp *qp, struct ibv_mr *mr, int i)
{
	struct ibv_sge sge = {(uintptr_t)out, SIZE, mr->lkey};
	struct ibv_send_wr wr = {.wr_id = (uint64_t)i, .sg_list = &sge, .num_sge = 1, .opcode = IBV_WR_SEND},
			   *bad;
	wr.send_flags = IBV_SEND_SIGNALED;

	/* The bug: the completion of the message before was not polled, so the adapter still has the buffer.
	 * await(qp->send_cq) after each post mends it, and so does a buffer for each message.
	 * The log then says: "the program changed byte 8 (0x30 to 0x32) of a buffer while the request was
	 * outstanding: the IBV_WR_SEND of wr_id 0 (0x0) on QP 0x185000, posted at ..." */
	snprintf(out, sizeof(out), "message %d", i);

	die_if(errno = ibv_post_send(qp, &wr, &bad), "ibv_post_send");
}

int main(void)
{
	struct ibv_device **list = ibv_get_device_list(NULL);
	die_if(!list || !list[0], "no device");
	struct ibv_context *ctx = ibv_open_device(list[0]);
	die_if(!ctx, "ibv_open_device");
	ibv_free_device_list(list);
	struct ibv_port_attr port;
	union ibv_gid gid;
	die_if(ibv_query_port(ctx, PORT, &port) || ibv_query_gid(ctx, PORT, 0, &gid), "the port");

	struct ibv_pd *pd = ibv_alloc_pd(ctx);
	die_if(!pd, "ibv_alloc_pd");
	struct ibv_mr *mr_out = ibv_reg_mr(pd, out, sizeof(out), 0);
	struct ibv_mr *mr_in = ibv_reg_mr(pd, in, sizeof(in), IBV_ACCESS_LOCAL_WRITE);
	die_if(!mr_out || !mr_in, "ibv_reg_mr");

	struct ibv_cq *cq[2];
	struct ibv_qp *qp[2];
	for (int i = 0; i < 2; i++) {
		struct ibv_qp_init_attr init = {.qp_type = IBV_QPT_RC, .cap = {MESSAGES, MESSAGES, 1, 1, 0}};
		init.send_cq = init.recv_cq = cq[i] = ibv_create_cq(ctx, 2 * MESSAGES, NULL, NULL, 0);
		die_if(!cq[i], "ibv_create_cq");
		qp[i] = ibv_create_qp(pd, &init);
		die_if(!qp[i], "ibv_create_qp");
	}
	for (int i = 0; i < 2; i++)
		connect_to(qp[i], qp[!i]->qp_num, gid, port.lid);

	for (int i = 0; i < MESSAGES; i++)
		receive(qp[1], mr_in, i);
	for (int i = 0; i < MESSAGES; i++)
		send_one(qp[0], mr_out, i);
	for (int i = 0; i < MESSAGES; i++)
		await(cq[0]);
	for (int i = 0; i < MESSAGES; i++)
		await(cq[1]);
	printf("received \"%s\", \"%s\", \"%s\"\n", in[0], in[1], in[2]);

	for (int i = 0; i < 2; i++)
		die_if((errno = ibv_destroy_qp(qp[i])) || (errno = ibv_destroy_cq(cq[i])), "destroying");
	die_if((errno = ibv_dereg_mr(mr_out)) || (errno = ibv_dereg_mr(mr_in)), "ibv_dereg_mr");
	die_if((errno = ibv_dealloc_pd(pd)) || (errno = ibv_close_device(ctx)), "closing");
	return 0;
}
