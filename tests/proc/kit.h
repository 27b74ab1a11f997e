/* What the process tests share: a device, an RC endpoint, how two of them are connected, and forked children
 * that end with their parent. */
#ifndef VB_TESTS_KIT_H
#define VB_TESTS_KIT_H

#include <infiniband/verbs.h>
#include <inttypes.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define CHECK(c, ...)                                                                               \
	do {                                                                                        \
		if (!(c)) {                                                                         \
			fprintf(stderr, "[%d] %s:%d: %s: ", (int)getpid(), __FILE__, __LINE__, #c); \
			fprintf(stderr, " " __VA_ARGS__);                                           \
			fprintf(stderr, "\n");                                                      \
			_exit(1);                                                                   \
		}                                                                                   \
	} while (0)

#define KIT_UNUSED __attribute__((unused))

enum {
	KIT_ALL = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ |
		  IBV_ACCESS_REMOTE_ATOMIC
};

/* What a peer must know to connect and to reach memory. */
struct kit_card {
	union ibv_gid gid;
	uint32_t qpn, psn, rkey;
	uint64_t addr;
};

struct kit_end {
	struct ibv_cq *cq;
	struct ibv_qp *qp;
	struct ibv_mr *mr;
	uint8_t *buf;
	struct kit_card card;
};

KIT_UNUSED static double kit_now(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

KIT_UNUSED static struct ibv_context *kit_open(void)
{
	struct ibv_device **list = ibv_get_device_list(NULL);
	struct ibv_context *ctx;

	CHECK(list && list[0]);
	ctx = ibv_open_device(list[0]);
	CHECK(ctx);
	ibv_free_device_list(list);
	return ctx;
}

/* An RC QP in INIT with its own CQ and `size` registered bytes. */
KIT_UNUSED static void kit_end_open_on(struct kit_end *e, struct ibv_pd *pd, struct ibv_comp_channel *channel,
				       int depth, size_t size)
{
	struct ibv_qp_init_attr qa = {.qp_type = IBV_QPT_RC,
				      .cap = {.max_send_wr = (uint32_t)depth,
					      .max_recv_wr = (uint32_t)depth,
					      .max_send_sge = 2,
					      .max_recv_sge = 2,
					      .max_inline_data = 64}};
	struct ibv_qp_attr a = {.qp_state = IBV_QPS_INIT, .port_num = 1, .qp_access_flags = KIT_ALL};

	CHECK(!ibv_query_gid(pd->context, 1, 0, &e->card.gid));
	e->cq = ibv_create_cq(pd->context, 2 * depth, NULL, channel, 0);
	CHECK(e->cq);
	qa.send_cq = qa.recv_cq = e->cq;
	e->qp = ibv_create_qp(pd, &qa);
	CHECK(e->qp);
	CHECK(
	    !ibv_modify_qp(e->qp, &a, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS));
	e->buf = calloc(1, size);
	CHECK(e->buf);
	e->mr = ibv_reg_mr(pd, e->buf, size, KIT_ALL);
	CHECK(e->mr);
	e->card.qpn = e->qp->qp_num;
	e->card.psn = e->qp->qp_num * 77 & 0xffffff;
	e->card.rkey = e->mr->rkey;
	e->card.addr = (uintptr_t)e->buf;
}

KIT_UNUSED static void kit_end_open(struct kit_end *e, struct ibv_pd *pd, int depth, size_t size)
{
	kit_end_open_on(e, pd, NULL, depth, size);
}

KIT_UNUSED static void kit_to_rtr(struct kit_end *e, const struct kit_card *peer)
{
	struct ibv_qp_attr a = {.qp_state = IBV_QPS_RTR,
				.path_mtu = IBV_MTU_1024,
				.dest_qp_num = peer->qpn,
				.rq_psn = peer->psn,
				.max_dest_rd_atomic = 4,
				.min_rnr_timer = 1,
				.ah_attr = {.is_global = 1, .port_num = 1, .grh = {.dgid = peer->gid}}};

	CHECK(!ibv_modify_qp(e->qp, &a,
			     IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN |
				 IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER));
}

/* timeout: Local ACK Timeout code; retries: retry_cnt. */
KIT_UNUSED static void kit_to_rts(struct kit_end *e, int timeout, int retries)
{
	struct ibv_qp_attr a = {.qp_state = IBV_QPS_RTS,
				.sq_psn = e->card.psn,
				.timeout = (uint8_t)timeout,
				.retry_cnt = (uint8_t)retries,
				.rnr_retry = 7,
				.max_rd_atomic = 4};
	CHECK(!ibv_modify_qp(e->qp, &a,
			     IBV_QP_STATE | IBV_QP_SQ_PSN | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT |
				 IBV_QP_RNR_RETRY | IBV_QP_MAX_QP_RD_ATOMIC));
}

KIT_UNUSED static void kit_connect_with(struct kit_end *e, const struct kit_card *peer, int timeout,
					int retries)
{
	kit_to_rtr(e, peer);
	kit_to_rts(e, timeout, retries);
}

KIT_UNUSED static void kit_connect(struct kit_end *e, const struct kit_card *peer)
{
	kit_connect_with(e, peer, 14, 7);
}

KIT_UNUSED static void kit_end_close(struct kit_end *e)
{
	CHECK(!ibv_destroy_qp(e->qp));
	CHECK(!ibv_dereg_mr(e->mr));
	CHECK(!ibv_destroy_cq(e->cq));
	free(e->buf);
}

KIT_UNUSED static int kit_recv(struct kit_end *e, uint64_t wr_id, size_t at, uint32_t len)
{
	struct ibv_sge sge = {(uintptr_t)e->buf + at, len, e->mr->lkey};
	struct ibv_recv_wr wr = {.wr_id = wr_id, .sg_list = &sge, .num_sge = 1}, *bad;

	return ibv_post_recv(e->qp, &wr, &bad);
}

/* Any operation: SEND ignores `remote`. */
KIT_UNUSED static int kit_post(struct kit_end *e, enum ibv_wr_opcode op, uint64_t wr_id, size_t at,
			       uint32_t len, const struct kit_card *peer, size_t remote)
{
	struct ibv_sge sge = {(uintptr_t)e->buf + at, len, e->mr->lkey};
	struct ibv_send_wr wr = {
	    .wr_id = wr_id, .sg_list = &sge, .num_sge = 1, .opcode = op, .send_flags = IBV_SEND_SIGNALED};
	struct ibv_send_wr *bad;

	if (op == IBV_WR_ATOMIC_FETCH_AND_ADD || op == IBV_WR_ATOMIC_CMP_AND_SWP) {
		wr.wr.atomic.remote_addr = peer->addr + remote;
		wr.wr.atomic.rkey = peer->rkey;
		wr.wr.atomic.compare_add = 1;
	} else if (peer) {
		wr.wr.rdma.remote_addr = peer->addr + remote;
		wr.wr.rdma.rkey = peer->rkey;
	}
	return ibv_post_send(e->qp, &wr, &bad);
}

/* The next completion, at most `seconds` away. */
KIT_UNUSED static struct ibv_wc kit_wait(struct kit_end *e, double seconds)
{
	double end = kit_now() + seconds;
	struct ibv_wc wc;
	int n;

	while (!(n = ibv_poll_cq(e->cq, 1, &wc)))
		CHECK(kit_now() < end, "no completion within %g s", seconds);
	CHECK(n == 1);
	return wc;
}

/* Memory that peers can open: zeros over a file whose descriptor stays open, in *fd. */
KIT_UNUSED static void *kit_mapped(size_t size, int *fd)
{
	void *p;

	*fd = memfd_create("test", MFD_CLOEXEC);
	CHECK(*fd >= 0 && !ftruncate(*fd, (off_t)size));
	p = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_SHARED, *fd, 0);
	CHECK(p != MAP_FAILED);
	return p;
}

KIT_UNUSED static void *kit_shared(size_t size)
{
	void *p = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);

	CHECK(p != MAP_FAILED);
	return p;
}

/* 0 in the child. */
KIT_UNUSED static pid_t kit_fork(void)
{
	pid_t pid;

	fflush(stdout);
	pid = fork();
	CHECK(pid >= 0);
	if (!pid)
		prctl(PR_SET_PDEATHSIG, SIGKILL);
	return pid;
}

/* Waits until *v reaches n, without sleeping long. */
KIT_UNUSED static void kit_until(_Atomic int *v, int n)
{
	struct timespec ms = {0, 1000000};

	for (int i = 0; atomic_load(v) < n; i++) {
		CHECK(i < 60000, "waited for %d of %d", atomic_load(v), n);
		nanosleep(&ms, NULL);
	}
}

/* Whether the abstract name of the adapter behind a QPN is still bound. */
KIT_UNUSED static bool kit_bound(uint32_t qpn)
{
	FILE *f = fopen("/proc/net/unix", "r");
	char line[512], name[64];
	bool found = false;

	CHECK(f);
	snprintf(name, sizeof name, "@verbena/1/%u\n", qpn >> 12);
	while (fgets(line, sizeof line, f))
		found |= strstr(line, name) != NULL;
	fclose(f);
	return found;
}

KIT_UNUSED static int kit_reap(pid_t pid)
{
	int status;

	CHECK(waitpid(pid, &status, 0) == pid);
	return status;
}

#endif
