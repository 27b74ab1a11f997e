/* Setting up and taking down one side of the bench; see vbench.h. */
#include <signal.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/socket.h>

#include "vbench.h"

#define WARM_ITERS 2000u
#define GRH	   40u /* bytes in front of a datagram */
#define QKEY	   0x1111u

struct hello { /* what a side tells the other: same program, same machine, so as it stands */
	uint32_t qpn, rkey;
	uint64_t addr;
	union ibv_gid gid;
};

static void swap(struct side *s, const struct hello *mine, struct hello *theirs)
{
	if (send(s->sock, mine, sizeof(*mine), 0) != sizeof(*mine) ||
	    recv(s->sock, theirs, sizeof(*theirs), MSG_WAITALL) != sizeof(*theirs))
		die("the other side is gone");
}

void side_meet(struct side *s)
{
	char c = 0;

	if (send(s->sock, &c, 1, 0) != 1 || recv(s->sock, &c, 1, 0) != 1)
		die("the other side is gone");
}

enum ibv_qp_type side_type(const struct side *s)
{
	return s->type ? s->type : IBV_QPT_RC;
}

static void to_init(struct side *s)
{
	struct ibv_qp_attr a = {.qp_state = IBV_QPS_INIT, .port_num = 1, .qkey = QKEY};
	bool ud = side_type(s) == IBV_QPT_UD;

	a.qp_access_flags = IBV_ACCESS_REMOTE_WRITE;
	if (side_type(s) == IBV_QPT_RC)
		a.qp_access_flags |= IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_ATOMIC;
	errno = ibv_modify_qp(s->qp, &a,
			      IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT |
				  (ud ? IBV_QP_QKEY : IBV_QP_ACCESS_FLAGS));
	if (errno)
		die("INIT");
}

static struct ibv_ah_attr way_to(const struct hello *theirs)
{
	return (struct ibv_ah_attr){
	    .port_num = 1, .is_global = 1, .grh = {.dgid = theirs->gid, .hop_limit = 64}};
}

static void to_rtr(struct side *s, const struct hello *theirs)
{
	static const int masks[] = {
	    [IBV_QPT_RC] = IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN |
			   IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER,
	    [IBV_QPT_UC] = IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN,
	    [IBV_QPT_UD] = 0,
	};
	struct ibv_qp_attr a = {.qp_state = IBV_QPS_RTR,
				.path_mtu = s->mtu ? s->mtu : IBV_MTU_4096,
				.dest_qp_num = theirs->qpn,
				.max_dest_rd_atomic = 16,
				.min_rnr_timer = 1,
				.ah_attr = way_to(theirs)};

	errno = ibv_modify_qp(s->qp, &a, IBV_QP_STATE | masks[side_type(s)]);
	if (errno)
		die("RTR");
}

static void to_rts(struct side *s)
{
	struct ibv_qp_attr a = {.qp_state = IBV_QPS_RTS, .retry_cnt = 7, .rnr_retry = 7, .max_rd_atomic = 16};
	bool rc = side_type(s) == IBV_QPT_RC;

	a.timeout = s->untimed ? 0 : 14;
	errno = ibv_modify_qp(
	    s->qp, &a,
	    IBV_QP_STATE | IBV_QP_SQ_PSN |
		(rc ? IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY | IBV_QP_MAX_QP_RD_ATOMIC : 0));
	if (errno)
		die("RTS");
}

static struct hello know_peer(struct side *s)
{
	struct hello mine = {0}, theirs;
	struct ibv_ah_attr way;

	mine.qpn = s->qp->qp_num;
	mine.rkey = s->mr->rkey;
	mine.addr = (uintptr_t)s->buf;
	if (ibv_query_gid(s->ctx, 1, 0, &mine.gid))
		die("ibv_query_gid");
	swap(s, &mine, &theirs);
	s->far_addr = theirs.addr;
	s->far_rkey = theirs.rkey;
	s->far_qpn = theirs.qpn;
	way = way_to(&theirs);
	s->ah = side_type(s) == IBV_QPT_UD ? ibv_create_ah(s->pd, &way) : NULL;
	if (side_type(s) == IBV_QPT_UD && !s->ah)
		die("AH");
	return theirs;
}

static void connect_qp(struct side *s)
{
	struct hello theirs;

	to_init(s);
	theirs = know_peer(s);
	to_rtr(s, &theirs);
	to_rts(s);
	side_meet(s);
}

static void make_qp(struct side *s)
{
	struct ibv_qp_init_attr_ex init = {.qp_type = side_type(s)};

	init.pd = s->pd;
	init.comp_mask = IBV_QP_INIT_ATTR_PD | IBV_QP_INIT_ATTR_SEND_OPS_FLAGS;
	init.send_ops_flags = IBV_QP_EX_WITH_SEND;
	init.send_cq = s->scq;
	init.recv_cq = s->rcq;
	init.cap.max_send_wr = init.cap.max_recv_wr = DEPTH;
	init.cap.max_send_sge = init.cap.max_recv_sge = 1;
	init.cap.max_inline_data = 64;
	s->qp = ibv_create_qp_ex(s->ctx, &init);
	if (!s->qp) { /* an older library's, which is compared with this one */
		init.comp_mask = IBV_QP_INIT_ATTR_PD;
		s->qp = ibv_create_qp_ex(s->ctx, &init);
	}
	if (!s->qp)
		die("QP");
	connect_qp(s);
}

static struct ibv_cq *make_cq(const struct side *s, struct ibv_comp_channel *channel)
{
	struct ibv_cq_init_attr_ex attr = {
	    .cqe = DEPTH, .channel = channel, .wc_flags = IBV_WC_STANDARD_FLAGS};

	return s->extended ? ibv_cq_ex_to_cq(ibv_create_cq_ex(s->ctx, &attr))
			   : ibv_create_cq(s->ctx, DEPTH, NULL, channel, 0);
}

void side_open(struct side *s)
{
	int access = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_WRITE |
		     IBV_ACCESS_REMOTE_ATOMIC;
	struct ibv_device **list = ibv_get_device_list(NULL);

	if (!list || !list[0])
		die("no RDMA device");
	s->ctx = ibv_open_device(list[0]);
	if (!s->ctx)
		die("ibv_open_device");
	ibv_free_device_list(list);
	s->pd = ibv_alloc_pd(s->ctx);
	s->channel = ibv_create_comp_channel(s->ctx);
	if (!s->pd || !s->channel)
		die("PD and channel");
	s->scq = make_cq(s, NULL);
	s->rcq = make_cq(s, s->channel);
	if (!s->scq || !s->rcq)
		die("CQs");
	s->bytes = s->small ? 4096 : BUFFER;
	s->buf = memory(s->bytes, s->shared, &s->fd);
	s->mr = ibv_reg_mr(s->pd, s->buf, s->bytes, access);
	if (!s->mr)
		die("MR");
	make_qp(s);
}

void side_join(struct side *s, const struct side *to)
{
	int sock = s->sock;
	bool untimed = s->untimed, extended = s->extended;
	enum ibv_qp_type type = s->type;

	*s = *to;
	s->type = type;
	s->extended = extended;
	s->sock = sock;
	s->untimed = untimed;
	s->joined = true;
	s->scq = make_cq(s, s->channel);
	s->rcq = make_cq(s, s->channel);
	if (!s->scq || !s->rcq)
		die("CQs");
	make_qp(s);
}

void side_share(struct side *s, const struct side *with)
{
	int sock = s->sock;

	*s = *with;
	s->sock = sock;
	s->shared_qp = true;
	know_peer(s);
	side_meet(s);
}

void side_close(struct side *s)
{
	side_meet(s); /* neither leaves while the other still wants an answer */
	if (s->ah && ibv_destroy_ah(s->ah))
		die("closing an AH");
	if (s->shared_qp)
		return;
	if (ibv_destroy_qp(s->qp) || ibv_destroy_cq(s->scq) || ibv_destroy_cq(s->rcq))
		die("closing a QP");
	if (s->joined)
		return;
	if (ibv_dereg_mr(s->mr) || ibv_destroy_comp_channel(s->channel) || ibv_dealloc_pd(s->pd) ||
	    ibv_close_device(s->ctx))
		die("closing");
	munmap(s->buf, s->bytes);
	if (s->fd >= 0)
		close(s->fd);
}

void side_receive(struct side *s, unsigned n, uint32_t size)
{
	uint32_t header = s->ah ? GRH : 0;
	struct ibv_sge sge = {(uintptr_t)s->buf, header + size, s->mr->lkey};
	struct ibv_recv_wr wr[LIST], *bad;

	while (n) {
		unsigned k = n < LIST ? n : LIST;

		for (unsigned i = 0; i < k; i++)
			wr[i] = (struct ibv_recv_wr){
			    .next = i + 1 < k ? &wr[i + 1] : NULL, .sg_list = &sge, .num_sge = 1};
		errno = ibv_post_recv(s->qp, wr, &bad);
		if (errno)
			die("ibv_post_recv");
		n -= k;
	}
}

void side_address(const struct side *s, struct ibv_send_wr *wr)
{
	wr->wr.ud.ah = s->ah;
	wr->wr.ud.remote_qpn = s->far_qpn;
	wr->wr.ud.remote_qkey = QKEY;
}

void side_post(struct side *s, enum ibv_wr_opcode op, uint32_t size, unsigned flags)
{
	struct ibv_sge sge = {(uintptr_t)s->buf, size, s->mr->lkey};
	struct ibv_send_wr *bad, wr;

	/* Field by field: clearing the whole would be a good part of what is measured. */
	wr.wr_id = 0;
	wr.next = NULL;
	wr.sg_list = &sge;
	wr.num_sge = 1;
	wr.opcode = op;
	wr.send_flags = flags;
	if (op == IBV_WR_ATOMIC_CMP_AND_SWP || op == IBV_WR_ATOMIC_FETCH_AND_ADD) {
		wr.wr.atomic.remote_addr = s->far_addr;
		wr.wr.atomic.rkey = s->far_rkey;
		wr.wr.atomic.compare_add = 1;
		wr.wr.atomic.swap = 2;
	} else if (s->ah) {
		side_address(s, &wr);
	} else {
		wr.wr.rdma.remote_addr = s->far_addr;
		wr.wr.rdma.rkey = s->far_rkey;
	}
	errno = ibv_post_send(s->qp, &wr, &bad);
	if (errno)
		die("ibv_post_send");
}

unsigned side_poll(struct ibv_cq *cq, unsigned max)
{
	struct ibv_wc wc[LIST];
	int n = ibv_poll_cq(cq, (int)(max < LIST ? max : LIST), wc);

	if (n < 0)
		die("ibv_poll_cq");
	for (int i = 0; i < n; i++) {
		if (wc[i].status) {
			fprintf(stderr, "completion: %s\n", ibv_wc_status_str(wc[i].status));
			exit(1);
		}
	}
	return (unsigned)n;
}

void side_wait(struct ibv_cq *cq, unsigned n)
{
	while (n)
		n -= side_poll(cq, n);
}

void side_warm(struct side *s)
{
	side_exchange(s, WARM_ITERS);
}

void side_exchange(struct side *s, unsigned n)
{
	if (!s->client)
		side_receive(s, 1, 8);
	side_meet(s);
	for (unsigned i = 0; i < n; i++) {
		if (s->client)
			side_receive(s, 1, 8);
		else
			side_wait(s->rcq, 1);
		if (!s->client && i + 1 < n)
			side_receive(s, 1, 8);
		side_post(s, IBV_WR_SEND, 8, IBV_SEND_SIGNALED);
		if (s->client)
			side_wait(s->rcq, 1);
		side_wait(s->scq, 1);
	}
}

void side_allow_descriptors(void)
{
	struct rlimit r;

	if (getrlimit(RLIMIT_NOFILE, &r))
		return;
	r.rlim_cur = r.rlim_max;
	setrlimit(RLIMIT_NOFILE, &r);
}

void side_fork(struct side *sides, unsigned n, void (*peer)(int sock))
{
	for (unsigned i = 0; i < n; i++) {
		int sock[2];

		if (socketpair(AF_UNIX, SOCK_STREAM, 0, sock))
			die("socketpair");
		sides[i] = (struct side){.client = true, .sock = sock[0]};
		switch (fork()) {
		case -1:
			die("fork");
			break;
		case 0:
			prctl(PR_SET_PDEATHSIG, SIGKILL);
			for (unsigned k = 0; k <= i; k++)
				close(sides[k].sock);
			peer(sock[1]);
			_exit(0);
		}
		close(sock[1]);
	}
}
