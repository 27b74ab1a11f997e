/* What checkers cost: a SEND between two queue pairs of this process, with many receives posted.
 *
 *	checked qp|srq RECEIVES [SIZE [one]]
 *
 * One thread does everything, and it measures the CPU time of the process.  The program prints three figures
 * in ns.  The first is the post of a receive.  The second is a message with all those receives posted: a post
 * of each kind, the transfer and both polls.  The third is the poll of one of RECEIVES / 2 completions that
 * wait.  With `one`, all receives have the same buffer.  Otherwise each receive has its own. */
#include <infiniband/verbs.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>

enum { MESSAGES = 2000, LIST = 16 };

static struct ibv_pd *pd;
static struct ibv_cq *scq, *rcq;
static struct ibv_qp *qp[2];
static struct ibv_srq *srq;
static struct ibv_mr *mr;
static char *buffer;
static uint32_t size, stride;

#define CHECK(x)                                                            \
	do {                                                                \
		if (!(x)) {                                                 \
			fprintf(stderr, "line %d: %s: %m\n", __LINE__, #x); \
			exit(3);                                            \
		}                                                           \
	} while (0)

static double now(void)
{
	struct timespec t;

	clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
	return (double)t.tv_sec * 1e9 + (double)t.tv_nsec;
}

static void connect_to(struct ibv_qp *q, uint32_t peer, const union ibv_gid *gid)
{
	struct ibv_qp_attr x = {.qp_state = IBV_QPS_INIT, .port_num = 1};

	CHECK(!ibv_modify_qp(q, &x, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS));
	x = (struct ibv_qp_attr){
	    .qp_state = IBV_QPS_RTR,
	    .path_mtu = IBV_MTU_4096,
	    .dest_qp_num = peer,
	    .max_dest_rd_atomic = 1,
	    .min_rnr_timer = 1,
	    .ah_attr = {.is_global = 1, .port_num = 1, .grh = {.dgid = *gid, .hop_limit = 1}}};
	CHECK(!ibv_modify_qp(q, &x,
			     IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN |
				 IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER));
	x = (struct ibv_qp_attr){
	    .qp_state = IBV_QPS_RTS, .timeout = 14, .retry_cnt = 7, .rnr_retry = 7, .max_rd_atomic = 1};
	CHECK(!ibv_modify_qp(q, &x,
			     IBV_QP_STATE | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY |
				 IBV_QP_SQ_PSN | IBV_QP_MAX_QP_RD_ATOMIC));
}

static void open_all(bool shared, unsigned receives)
{
	struct ibv_srq_init_attr s = {.attr = {.max_wr = receives, .max_sge = 1}};
	struct ibv_device **list = ibv_get_device_list(NULL);
	struct ibv_context *context;
	union ibv_gid gid;

	CHECK(list && list[0]);
	CHECK(context = ibv_open_device(list[0]));
	ibv_free_device_list(list);
	CHECK(pd = ibv_alloc_pd(context));
	CHECK(scq = ibv_create_cq(context, (int)receives, NULL, NULL, 0));
	CHECK(rcq = ibv_create_cq(context, (int)receives, NULL, NULL, 0));
	CHECK(!shared || (srq = ibv_create_srq(pd, &s)));
	CHECK(!ibv_query_gid(context, 1, 0, &gid));
	for (int i = 0; i < 2; i++) {
		struct ibv_qp_init_attr x = {.send_cq = scq,
					     .recv_cq = rcq,
					     .srq = srq,
					     .qp_type = IBV_QPT_RC,
					     .cap = {LIST, i && !shared ? receives : 1, 1, 1, 0}};

		CHECK(qp[i] = ibv_create_qp(pd, &x));
	}
	connect_to(qp[0], qp[1]->qp_num, &gid);
	connect_to(qp[1], qp[0]->qp_num, &gid);
}

static void receive(uint64_t id)
{
	struct ibv_sge s = {(uintptr_t)buffer + (id + 1) * stride, size, mr->lkey};
	struct ibv_recv_wr w = {.wr_id = id, .sg_list = &s, .num_sge = 1}, *bad;

	if (!stride)
		s.addr += size;
	CHECK(!(srq ? ibv_post_srq_recv(srq, &w, &bad) : ibv_post_recv(qp[1], &w, &bad)));
}

static void send_one(void)
{
	struct ibv_sge s = {(uintptr_t)buffer, size, mr->lkey};
	struct ibv_send_wr w = {.sg_list = &s,
				.num_sge = 1,
				.opcode = IBV_WR_SEND,
				.send_flags = IBV_SEND_SIGNALED},
			   *bad;

	CHECK(!ibv_post_send(qp[0], &w, &bad));
}

static uint64_t wait_for(struct ibv_cq *cq)
{
	struct ibv_wc wc;
	int n;

	do
		CHECK((n = ibv_poll_cq(cq, 1, &wc)) >= 0);
	while (!n);
	CHECK(wc.status == IBV_WC_SUCCESS);
	return wc.wr_id;
}

/* The sends are polled at once, and the completions of their receives wait in the CQ. */
static double backlog(unsigned n)
{
	double t;

	for (unsigned i = 0; i < n; i++) {
		send_one();
		(void)wait_for(scq);
	}
	t = now();
	for (unsigned i = 0; i < n; i++)
		(void)wait_for(rcq);
	return (now() - t) / n;
}

int main(int argc, char **argv)
{
	unsigned receives = argc > 2 ? (unsigned)atoi(argv[2]) : 0;
	double t, post, message;
	size_t all;

	CHECK(receives > 1);
	size = argc > 3 ? (uint32_t)atoi(argv[3]) : 64;
	stride = argc > 4 ? 0 : size;
	all = (receives + 1) * (size_t)size;
	buffer = mmap(NULL, all, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	CHECK(buffer != MAP_FAILED);
	memset(buffer, 1, all);
	open_all(!strcmp(argv[1], "srq"), receives);
	CHECK(mr = ibv_reg_mr(pd, buffer, all, IBV_ACCESS_LOCAL_WRITE));
	t = now();
	for (unsigned i = 0; i < receives; i++)
		receive(i);
	post = (now() - t) / receives;
	t = now();
	for (unsigned i = 0; i < MESSAGES; i++) {
		send_one();
		(void)wait_for(scq);
		receive(wait_for(rcq));
	}
	message = (now() - t) / MESSAGES;
	printf("%8.0f %8.0f %8.0f\n", post, message, backlog(receives / 2));
	fflush(stdout);
	_Exit(0);
}
