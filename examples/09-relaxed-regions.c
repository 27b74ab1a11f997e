/* A relaxed region for each message: two processes, one sends, the other receives.
 *
 *     cc 09-relaxed-regions.c -o 09-relaxed-regions $(pkg-config --cflags --libs verbena)
 *     verbena run ./09-relaxed-regions [MESSAGES [BYTES]]
 *
 * Registering a buffer anew for each message is what relaxed regions are for: they come from a pool, so that
 * making and ending one costs little.  The price is that a region which was deregistered may be reached for
 * some time more.  ibv_flush_relaxed_mr() ends that: here before the buffers go back to the system.
 *
 * Written to ibv_reg_mr_relaxed(3) as Solaris had it: what it calls transient (EAGAIN) is tried again, and
 * buffers are whole pages, since access reaches to page boundaries. */
#include <infiniband/verbs.h>

#include <errno.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

enum { DEPTH = 8 }; /* messages on their way at a time */

struct place { /* what the other side must know to connect */
	union ibv_gid gid;
	uint32_t qpn, psn;
};

struct side {
	const char *name;
	int sock;
	size_t page, bytes;
	struct ibv_context *ctx;
	struct ibv_pd *pd;
	struct ibv_cq *cq;
	struct ibv_qp *qp;
	struct ibv_mr *mr[DEPTH]; /* of the message in each buffer */
	unsigned char *buf[DEPTH];
	unsigned long retries;
};

static void fail(const struct side *s, const char *what, int err)
{
	fprintf(stderr, "%s: %s: %s\n", s->name, what, strerror(err));
	exit(1);
}

/* Each message has a region of its own.  An empty pool fills up again as regions are flushed. */
static struct ibv_mr *region(struct side *s, void *addr, int access)
{
	struct ibv_mr *mr;

	while (!(mr = ibv_reg_mr_relaxed(s->pd, addr, s->bytes, access))) {
		if (errno != EAGAIN)
			fail(s, "ibv_reg_mr_relaxed", errno);
		s->retries++;
		usleep(1);
	}
	return mr;
}

static void unregion(struct side *s, unsigned slot)
{
	int err = ibv_dereg_mr_relaxed(s->mr[slot]);

	if (err)
		fail(s, "ibv_dereg_mr_relaxed", err);
}

static void open_side(struct side *s)
{
	struct ibv_device **list = ibv_get_device_list(NULL);
	struct ibv_qp_init_attr init = {.qp_type = IBV_QPT_RC, .sq_sig_all = 1};
	size_t whole = (s->bytes + s->page - 1) / s->page * s->page;

	if (!list || !list[0])
		fail(s, "no RDMA device", ENODEV);
	s->ctx = ibv_open_device(list[0]);
	ibv_free_device_list(list);
	s->pd = s->ctx ? ibv_alloc_pd(s->ctx) : NULL;
	s->cq = s->ctx ? ibv_create_cq(s->ctx, 2 * DEPTH, NULL, NULL, 0) : NULL;
	if (!s->pd || !s->cq)
		fail(s, "opening the device", errno);
	init.send_cq = init.recv_cq = s->cq;
	init.cap.max_send_wr = init.cap.max_recv_wr = DEPTH;
	init.cap.max_send_sge = init.cap.max_recv_sge = 1;
	s->qp = ibv_create_qp(s->pd, &init);
	if (!s->qp)
		fail(s, "ibv_create_qp", errno);
	for (int i = 0; i < DEPTH; i++) {
		s->buf[i] = mmap(NULL, whole, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
		if (s->buf[i] == MAP_FAILED)
			fail(s, "mmap", errno);
	}
}

static void to_init(struct side *s)
{
	struct ibv_qp_attr a = {.qp_state = IBV_QPS_INIT, .port_num = 1};
	int err =
	    ibv_modify_qp(s->qp, &a, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS);

	if (err)
		fail(s, "ibv_modify_qp to INIT", err);
}

static void connect_side(struct side *s)
{
	struct place here = {.qpn = s->qp->qp_num, .psn = s->qp->qp_num & 0xffff}, there;
	struct ibv_qp_attr a = {.qp_state = IBV_QPS_RTR, .path_mtu = IBV_MTU_1024, .min_rnr_timer = 1};
	int err;

	if (ibv_query_gid(s->ctx, 1, 0, &here.gid))
		fail(s, "ibv_query_gid", errno);
	if (write(s->sock, &here, sizeof(here)) != sizeof(here) ||
	    recv(s->sock, &there, sizeof(there), MSG_WAITALL) != sizeof(there))
		fail(s, "the other side", errno);
	a.dest_qp_num = there.qpn;
	a.rq_psn = there.psn;
	a.ah_attr.is_global = 1;
	a.ah_attr.grh.dgid = there.gid;
	a.ah_attr.port_num = 1;
	err = ibv_modify_qp(s->qp, &a,
			    IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN |
				IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER);
	if (err)
		fail(s, "ibv_modify_qp to RTR", err);
	a = (struct ibv_qp_attr){
	    .qp_state = IBV_QPS_RTS, .sq_psn = here.psn, .timeout = 14, .retry_cnt = 7, .rnr_retry = 7};
	err = ibv_modify_qp(s->qp, &a,
			    IBV_QP_STATE | IBV_QP_SQ_PSN | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT |
				IBV_QP_RNR_RETRY | IBV_QP_MAX_QP_RD_ATOMIC);
	if (err)
		fail(s, "ibv_modify_qp to RTS", err);
}

static unsigned completed(struct side *s)
{
	struct ibv_wc wc;
	int n;

	while (!(n = ibv_poll_cq(s->cq, 1, &wc)))
		sched_yield(); /* the other side may need this core */
	if (n < 0 || wc.status != IBV_WC_SUCCESS) {
		fprintf(stderr, "%s: %s\n", s->name, n < 0 ? "ibv_poll_cq" : ibv_wc_status_str(wc.status));
		exit(1);
	}
	return (unsigned)wc.wr_id;
}

static unsigned char byte(unsigned long message, size_t at)
{
	return (unsigned char)(message * 31 + at);
}

static void send_one(struct side *s, unsigned slot, unsigned long message)
{
	struct ibv_sge sge = {.length = (uint32_t)s->bytes};
	struct ibv_send_wr wr = {.wr_id = slot, .sg_list = &sge, .num_sge = 1, .opcode = IBV_WR_SEND}, *bad;
	int err;

	for (size_t i = 0; i < s->bytes; i++)
		s->buf[slot][i] = byte(message, i);
	s->mr[slot] = region(s, s->buf[slot], 0); /* local read is always permitted */
	sge.addr = (uintptr_t)s->buf[slot];
	sge.lkey = s->mr[slot]->lkey;
	err = ibv_post_send(s->qp, &wr, &bad);
	if (err)
		fail(s, "ibv_post_send", err);
}

static void receive_one(struct side *s, unsigned slot)
{
	struct ibv_sge sge = {.length = (uint32_t)s->bytes};
	struct ibv_recv_wr wr = {.wr_id = slot, .sg_list = &sge, .num_sge = 1}, *bad;
	int err;

	s->mr[slot] = region(s, s->buf[slot], IBV_ACCESS_LOCAL_WRITE);
	sge.addr = (uintptr_t)s->buf[slot];
	sge.lkey = s->mr[slot]->lkey;
	err = ibv_post_recv(s->qp, &wr, &bad);
	if (err)
		fail(s, "ibv_post_recv", err);
}

static void send_all(struct side *s, unsigned long messages)
{
	unsigned long sent = 0;

	for (; sent < DEPTH && sent < messages; sent++)
		send_one(s, (unsigned)sent, sent);
	for (unsigned long done = 0; done < messages; done++) {
		unsigned slot = completed(s);

		unregion(s, slot);
		if (sent < messages)
			send_one(s, slot, sent++);
	}
}

static void receive_all(struct side *s, unsigned long messages)
{
	for (unsigned long done = 0; done < messages; done++) {
		unsigned slot = completed(s);

		unregion(s, slot);
		for (size_t i = 0; i < s->bytes; i++)
			if (s->buf[slot][i] != byte(done, i)) {
				fprintf(stderr, "%s: byte %zu of message %lu is wrong\n", s->name, i, done);
				exit(1);
			}
		if (done + DEPTH < messages)
			receive_one(s, slot);
	}
}

/* After the flush nobody reaches the buffers any more: only now do they go back. */
static void close_side(struct side *s)
{
	size_t whole = (s->bytes + s->page - 1) / s->page * s->page;
	int err = ibv_flush_relaxed_mr(s->pd);

	if (err)
		fail(s, "ibv_flush_relaxed_mr", err);
	for (int i = 0; i < DEPTH; i++)
		munmap(s->buf[i], whole);
	if (ibv_destroy_qp(s->qp) || ibv_destroy_cq(s->cq) || ibv_dealloc_pd(s->pd) ||
	    ibv_close_device(s->ctx))
		fail(s, "closing", errno);
}

static void run(struct side *s, unsigned long messages, int sends)
{
	char ready = 'r';

	open_side(s);
	to_init(s);
	for (unsigned i = 0; !sends && i < DEPTH && i < messages; i++)
		receive_one(s, i);
	connect_side(s);
	if (write(s->sock, &ready, 1) != 1 || read(s->sock, &ready, 1) != 1)
		fail(s, "the other side", errno);
	if (sends)
		send_all(s, messages);
	else
		receive_all(s, messages);
	printf("%s: %lu messages of %zu bytes, each with a region of its own; %lu times the pool was empty\n",
	       s->name, messages, s->bytes, s->retries);
	close_side(s);
}

int main(int argc, char **argv)
{
	unsigned long messages = argc > 1 ? strtoul(argv[1], NULL, 0) : 20000;
	struct side s = {.bytes = argc > 2 ? strtoul(argv[2], NULL, 0) : 4096,
			 .page = (size_t)sysconf(_SC_PAGESIZE)};
	int sock[2], status;
	pid_t pid;

	if (!messages || !s.bytes || s.bytes > 1 << 20) {
		fprintf(stderr, "usage: 09-relaxed-regions [MESSAGES [BYTES]], at most 1 MiB each\n");
		return 2;
	}
	if (socketpair(AF_UNIX, SOCK_STREAM, 0, sock))
		fail(&s, "socketpair", errno);
	pid = fork(); /* before the device is opened: each process opens its own */
	if (pid < 0)
		fail(&s, "fork", errno);
	s.name = pid ? "sender" : "receiver";
	s.sock = sock[!pid];
	close(sock[!!pid]);
	run(&s, messages, pid > 0);
	fflush(stdout);
	if (!pid)
		return 0;
	if (waitpid(pid, &status, 0) != pid || !WIFEXITED(status))
		return 1;
	return WEXITSTATUS(status);
}
