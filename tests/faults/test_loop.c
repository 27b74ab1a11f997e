/* Every allocation and every descriptor fails once, at either end of a conversation in turn.
 *
 * Two ends talk: SEND, WRITE, READ, atomics, immediate, events, a second QP, regions that come and go,
 * domains that both hold.  In each run the N-th call of one end fails (base/fault.h).  That end either gets
 * through all the same, or is told: by errno of a call, or by a completion.  The other end too.  Nobody hangs
 * or crashes, and once each has destroyed what it made, it has the descriptors and mappings that it had
 * before.  Then the end dies at its N-th fault point instead: the other one sees that, in time.
 *
 *     faults-loop [FIRST [LAST [SIDE]]]     default: all N that there are, both sides */
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <sys/socket.h>

#include "xrc.h"

enum { QPS = 2, LEN = 40000, BOUND = 20, ROUNDS = 3, STEPS = ROUNDS + 4 };

/* How an end ends. */
enum { WELL = 0, BAD = 1, BY_CALL = 3, BY_COMPLETION = 4, LEFT_ALONE = 5 };

struct board {
	_Atomic int step[2], gone[2];
	struct kit_card cards[2][QPS];
	struct ibv_shpd shpd[2];
	uint32_t pd[2], mr[2], dm[2]; /* handles */
	uint32_t target[2];
};

static struct board *board;
static int me;
static int sock[2]; /* each end sends the other its cmd_fd */
static int domain;  /* a file, of XRC */

struct end {
	struct ibv_device **list;
	struct ibv_context *ctx;
	struct ibv_pd *pd;
	struct ibv_comp_channel *ch;
	struct ibv_cq *cq;
	struct ibv_qp *qp[QPS];
	struct ibv_mr *mr[QPS], *nothing, *demand;
	uint8_t *buf[QPS]; /* of the second one peers can open the file */
	int received, sent, flushed;
	/* of kinds of memory that are made once */
	struct ibv_mr *relaxed, *dm_mr;
	struct ibv_dm *dm;
	struct ibv_buf *given;
	struct ibv_dmah *dmah;
	struct ibv_pd *shared, *joined; /* a domain that the other end joins, and the other end's */
	struct ibv_mr *in_joined;
	struct ibv_context *there; /* the other end's device, and what is imported of it */
	struct ibv_pd *their_pd;
	struct ibv_mr *their_mr;
	struct ibv_dm *their_dm;
	struct ibv_xrcd *xrcd;
	struct ibv_qp *target, *their_target;
	/* a window, and the region that it is bound to */
	struct ibv_mw *mw;
	struct ibv_mr *wide;
};

/* A call that failed must say why. */
#define MUST(c)                                                      \
	do {                                                         \
		errno = 0;                                           \
		if (!(c)) {                                          \
			CHECK(errno, "%s failed without errno", #c); \
			return BY_CALL;                              \
		}                                                    \
	} while (0)
/* The same for calls that return it. */
#define MUST_BE_0(c)                                                                  \
	do {                                                                          \
		int err_ = (c);                                                       \
		if (err_) {                                                           \
			CHECK(err_ > 0 && strerrorname_np(err_), "%s: %d", #c, err_); \
			return BY_CALL;                                               \
		}                                                                     \
	} while (0)
#define STEP(f)                    \
	do {                       \
		int r_ = (f);      \
		if (r_)            \
			return r_; \
	} while (0)

static int segments(void)
{
	FILE *f = fopen("/proc/self/maps", "r");
	char line[512];
	int n = 0;

	CHECK(f);
	while (fgets(line, sizeof line, f))
		n += strstr(line, "/memfd:verbena") != NULL;
	fclose(f);
	return n;
}

/* Both ends have come as far as this, or the other one is not coming. */
static int meet(int step)
{
	struct timespec nap = {0, 200000};

	atomic_store(&board->step[me], step);
	while (atomic_load(&board->step[!me]) < step) {
		if (atomic_load(&board->gone[!me]))
			return LEFT_ALONE;
		nanosleep(&nap, NULL);
	}
	return WELL;
}

static int set_up(struct end *e)
{
	struct ibv_qp_init_attr qa = {.qp_type = IBV_QPT_RC, .cap = {16, 16, 1, 1, 64}};
	struct ibv_qp_attr a = {.qp_state = IBV_QPS_INIT, .port_num = 1, .qp_access_flags = KIT_ALL};

	MUST(e->list = ibv_get_device_list(NULL));
	CHECK(e->list[0]);
	MUST(e->ctx = ibv_open_device(e->list[0]));
	MUST(e->pd = ibv_alloc_pd(e->ctx));
	MUST(e->ch = ibv_create_comp_channel(e->ctx));
	MUST(e->cq = ibv_create_cq(e->ctx, 64, NULL, e->ch, 0));
	for (int i = 0; i < QPS; i++)
		MUST(e->mr[i] = ibv_reg_mr(e->pd, e->buf[i], LEN, KIT_ALL));
	MUST(e->nothing = ibv_alloc_null_mr(e->pd));
	MUST(e->demand = ibv_reg_mr(e->pd, NULL, SIZE_MAX, KIT_ALL | IBV_ACCESS_ON_DEMAND));
	qa.send_cq = qa.recv_cq = e->cq;
	for (int i = 0; i < QPS; i++) {
		struct kit_card *c = &board->cards[me][i];

		MUST(e->qp[i] = ibv_create_qp(e->pd, &qa));
		MUST_BE_0(ibv_modify_qp(
		    e->qp[i], &a, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS));
		MUST_BE_0(ibv_query_gid(e->ctx, 1, 0, &c->gid) ? errno : 0);
		c->qpn = e->qp[i]->qp_num;
		c->psn = 100;
		c->rkey = e->mr[i]->rkey;
		c->addr = (uintptr_t)e->buf[i];
	}
	return meet(1);
}

static int post_receive(struct end *e, int i)
{
	struct ibv_sge sge = {(uintptr_t)e->buf[i], 64, e->mr[i]->lkey};
	struct ibv_recv_wr wr = {.sg_list = &sge, .num_sge = 1}, *bad;

	return ibv_post_recv(e->qp[i], &wr, &bad);
}

static int connect_qps(struct end *e)
{
	for (int i = 0; i < QPS; i++) {
		const struct kit_card *c = &board->cards[!me][i];
		struct ibv_qp_attr a = {.qp_state = IBV_QPS_RTR,
					.path_mtu = IBV_MTU_1024,
					.dest_qp_num = c->qpn,
					.rq_psn = 100,
					.max_dest_rd_atomic = 4,
					.min_rnr_timer = 1,
					.ah_attr = {.is_global = 1, .port_num = 1, .grh = {.dgid = c->gid}}};

		for (int k = 0; k < 2 * ROUNDS; k++)
			MUST_BE_0(post_receive(e, i));
		MUST_BE_0(ibv_modify_qp(e->qp[i], &a,
					IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN |
					    IBV_QP_RQ_PSN | IBV_QP_MAX_DEST_RD_ATOMIC |
					    IBV_QP_MIN_RNR_TIMER));
		a = (struct ibv_qp_attr){.qp_state = IBV_QPS_RTS,
					 .sq_psn = 100,
					 .timeout = 12,
					 .retry_cnt = 4,
					 .rnr_retry = 7,
					 .max_rd_atomic = 4};
		MUST_BE_0(ibv_modify_qp(e->qp[i], &a,
					IBV_QP_STATE | IBV_QP_SQ_PSN | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT |
					    IBV_QP_RNR_RETRY | IBV_QP_MAX_QP_RD_ATOMIC));
	}
	return meet(2);
}

static int post(struct end *e, int i, enum ibv_wr_opcode op, uint32_t len)
{
	const struct kit_card *c = &board->cards[!me][i];
	struct ibv_sge sge = {(uintptr_t)e->buf[i] + 64, len, e->mr[i]->lkey};
	struct ibv_send_wr wr = {
	    .sg_list = &sge, .num_sge = 1, .opcode = op, .send_flags = IBV_SEND_SIGNALED};
	struct ibv_send_wr *bad;

	if (op == IBV_WR_ATOMIC_FETCH_AND_ADD || op == IBV_WR_ATOMIC_CMP_AND_SWP) {
		wr.wr.atomic.remote_addr = c->addr + 64;
		wr.wr.atomic.rkey = c->rkey;
	} else {
		wr.wr.rdma.remote_addr = c->addr + 64;
		wr.wr.rdma.rkey = c->rkey;
	}
	return ibv_post_send(e->qp[i], &wr, &bad);
}

/* Takes completions until that many requests and receives have succeeded.  Sleeps for events meanwhile. */
static int collect(struct end *e, int sent, int received)
{
	struct ibv_cq *cq;
	struct ibv_wc wc;
	void *arg;
	int n;

	while (e->sent < sent || e->received < received) {
		MUST_BE_0(ibv_req_notify_cq(e->cq, 0));
		while ((n = ibv_poll_cq(e->cq, 1, &wc)) == 1) {
			if (wc.status != IBV_WC_SUCCESS)
				return BY_COMPLETION;
			*(wc.opcode & IBV_WC_RECV ? &e->received : &e->sent) += 1;
		}
		CHECK(n == 0);
		if (e->sent >= sent && e->received >= received)
			break;
		/* not for ever: an end with nothing to send cannot know that the other one does not come */
		if (poll((struct pollfd[]){{.fd = e->ch->fd, .events = POLLIN}}, 1, 100) == 1) {
			MUST_BE_0(ibv_get_cq_event(e->ch, &cq, &arg) ? errno : 0);
			ibv_ack_cq_events(cq, 1);
		} else if (atomic_load(&board->gone[!me]) && e->sent >= sent) {
			return LEFT_ALONE;
		}
	}
	return WELL;
}

static int other_memory(struct end *e)
{
	struct ibv_alloc_dm_attr da = {.length = 100};
	struct ibv_dmah_init_attr ha = {0};
	uint32_t word = 7;

	MUST(e->relaxed = ibv_reg_mr_relaxed(e->pd, e->buf[0], 8192, KIT_ALL));
	MUST(e->dm = ibv_alloc_dm(e->ctx, &da));
	MUST(e->dm_mr = ibv_reg_dm_mr(e->pd, e->dm, 0, 100, KIT_ALL | IBV_ACCESS_ZERO_BASED));
	MUST_BE_0(ibv_memcpy_to_dm(e->dm, 96, &word, 4));
	MUST(ibv_alloc_buf(e->pd, 5000, &e->given));
	MUST(e->dmah = ibv_alloc_dmah(e->ctx, &ha));
	MUST(e->wide = ibv_reg_mr(e->pd, e->buf[0], LEN, IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_MW_BIND));
	MUST(e->mw = ibv_alloc_mw(e->pd, IBV_MW_TYPE_1));
	return WELL;
}

static int swap_descriptors(const struct end *e, int *fd)
{
	kit_fd_send(sock[me], e->ctx->cmd_fd);
	while (poll((struct pollfd[]){{.fd = sock[me], .events = POLLIN}}, 1, 50) != 1)
		if (atomic_load(&board->gone[!me]))
			return LEFT_ALONE;
	*fd = kit_fd_receive(sock[me]);
	return *fd < 0 ? LEFT_ALONE : WELL;
}

static int make_target(struct end *e)
{
	struct ibv_xrcd_init_attr xa = {
	    .comp_mask = IBV_XRCD_INIT_ATTR_FD | IBV_XRCD_INIT_ATTR_OFLAGS, .fd = domain, .oflags = O_CREAT};
	struct ibv_qp_init_attr_ex qa = {.qp_type = IBV_QPT_XRC_RECV, .comp_mask = IBV_QP_INIT_ATTR_XRCD};

	MUST(e->xrcd = ibv_open_xrcd(e->ctx, &xa));
	qa.xrcd = e->xrcd;
	MUST(e->target = ibv_create_qp_ex(e->ctx, &qa));
	board->target[me] = e->target->qp_num;
	return WELL;
}

static int open_theirs(struct end *e)
{
	struct ibv_qp_open_attr oa = {.comp_mask = IBV_QP_OPEN_ATTR_NUM | IBV_QP_OPEN_ATTR_XRCD |
						   IBV_QP_OPEN_ATTR_TYPE,
				      .qp_num = board->target[!me],
				      .xrcd = e->xrcd,
				      .qp_type = IBV_QPT_XRC_RECV};
	struct ibv_qp_attr a = {.qp_state = IBV_QPS_ERR};

	MUST(e->their_target = ibv_open_qp(e->ctx, &oa));
	MUST_BE_0(ibv_modify_qp(e->their_target, &a, IBV_QP_STATE));
	return WELL;
}

/* Each end joins the other's domain, imports the other's objects and opens the other's target. */
static int other_end(struct end *e)
{
	int fd;

	MUST(e->shared = ibv_alloc_pd(e->ctx));
	MUST(ibv_alloc_shpd(e->shared, 9, &board->shpd[me]));
	board->pd[me] = e->pd->handle;
	board->mr[me] = e->mr[0]->handle;
	board->dm[me] = e->dm->handle;
	STEP(make_target(e));
	STEP(meet(STEPS));
	STEP(swap_descriptors(e, &fd));
	e->there = ibv_import_device(fd);
	if (!e->there) { /* it stays the caller's */
		close(fd);
		return BY_CALL;
	}
	MUST(e->joined = ibv_share_pd(e->ctx, &board->shpd[!me], 9));
	MUST(e->in_joined = ibv_reg_mr(e->joined, e->buf[0], 4096, KIT_ALL));
	MUST(e->their_pd = ibv_import_pd(e->there, board->pd[!me]));
	MUST(e->their_mr = ibv_import_mr(e->their_pd, board->mr[!me]));
	MUST(e->their_dm = ibv_import_dm(e->there, board->dm[!me]));
	STEP(open_theirs(e));
	return meet(STEPS + 1); /* nobody leaves while the other one is at it */
}

/* One more request: behind those that were posted. */
static int bind_window(struct end *e, int i)
{
	struct ibv_mw_bind b = {.send_flags = IBV_SEND_SIGNALED,
				.bind_info = {.mr = e->wide,
					      .addr = (uintptr_t)e->buf[0],
					      .length = LEN,
					      .mw_access_flags = IBV_ACCESS_REMOTE_READ}};

	return ibv_bind_mw(e->qp[i], e->mw, &b);
}

static int talk(struct end *e)
{
	static const enum ibv_wr_opcode ops[] = {IBV_WR_SEND,
						 IBV_WR_RDMA_WRITE,
						 IBV_WR_RDMA_READ,
						 IBV_WR_ATOMIC_FETCH_AND_ADD,
						 IBV_WR_ATOMIC_CMP_AND_SWP,
						 IBV_WR_RDMA_WRITE_WITH_IMM};
	enum { OPS = sizeof ops / sizeof *ops };
	int sent = 0;

	for (int r = 0; r < ROUNDS; r++) {
		struct ibv_mr *extra;
		struct ibv_ah *ah;
		struct ibv_ah_attr aa = {
		    .is_global = 1, .port_num = 1, .grh = {.dgid = board->cards[!me][0].gid}};

		for (int i = 0; i < QPS; i++) {
			for (int k = 0; k < OPS; k++)
				MUST_BE_0(post(e, i, ops[k],
					       ops[k] == IBV_WR_SEND ? 64
					       : k == 3 || k == 4    ? 8
					       : r % 2		     ? LEN - 64
								     : 16));
			sent += OPS;
		}
		/* under the peer's requests */
		MUST(!ibv_rereg_mr(e->mr[r % QPS], IBV_REREG_MR_CHANGE_ACCESS, NULL, NULL, 0, KIT_ALL));
		MUST(extra = ibv_reg_mr(e->pd, e->buf[r % QPS], 8192, KIT_ALL));
		MUST_BE_0(ibv_dereg_mr(extra));
		if (!r)
			STEP(other_memory(e));
		MUST_BE_0(bind_window(e, r % QPS));
		sent++;
		MUST(ah = ibv_create_ah(e->pd, &aa));
		MUST_BE_0(ibv_destroy_ah(ah));
		STEP(collect(e, sent, 2 * QPS * (r + 1)));
		STEP(meet(3 + r));
	}
	MUST_BE_0(ibv_resize_cq(e->cq, 100));
	STEP(meet(3 + ROUNDS));
	return other_end(e);
}

static void tear_down(struct end *e)
{
	if (e->their_dm)
		ibv_unimport_dm(e->their_dm);
	if (e->their_mr)
		ibv_unimport_mr(e->their_mr);
	if (e->their_pd)
		ibv_unimport_pd(e->their_pd);
	CHECK(!e->there || !ibv_close_device(e->there));
	CHECK(!e->in_joined || !ibv_dereg_mr(e->in_joined));
	CHECK(!e->joined || !ibv_dealloc_pd(e->joined));
	CHECK(!e->shared || !ibv_dealloc_pd(e->shared));
	CHECK(!e->nothing || !ibv_dereg_mr(e->nothing));
	CHECK(!e->demand || !ibv_dereg_mr(e->demand));
	CHECK(!e->target || !ibv_destroy_qp(e->target));
	CHECK(!e->their_target || !ibv_destroy_qp(e->their_target));
	CHECK(!e->xrcd || !ibv_close_xrcd(e->xrcd));
	for (int i = 0; i < QPS; i++)
		CHECK(!e->qp[i] || !ibv_destroy_qp(e->qp[i]));
	for (int i = 0; i < QPS; i++)
		CHECK(!e->mr[i] || !ibv_dereg_mr(e->mr[i]));
	CHECK(!e->mw || !ibv_dealloc_mw(e->mw));
	CHECK(!e->wide || !ibv_dereg_mr(e->wide));
	CHECK(!e->relaxed || (!ibv_dereg_mr_relaxed(e->relaxed) && !ibv_flush_relaxed_mr(e->pd)));
	CHECK(!e->dm_mr || !ibv_dereg_mr(e->dm_mr));
	CHECK(!e->dm || !ibv_free_dm(e->dm));
	ibv_free_buf(e->given);
	CHECK(!e->dmah || !ibv_dealloc_dmah(e->dmah));
	CHECK(!e->cq || !ibv_destroy_cq(e->cq));
	CHECK(!e->ch || !ibv_destroy_comp_channel(e->ch));
	CHECK(!e->pd || !ibv_dealloc_pd(e->pd));
	CHECK(!e->ctx || !ibv_close_device(e->ctx));
	if (e->list)
		ibv_free_device_list(e->list);
}

static int converse(struct end *e)
{
	STEP(set_up(e));
	STEP(connect_qps(e));
	return talk(e);
}

static void run_end(void)
{
	struct end e = {.buf = {calloc(1, LEN)}};
	int fd, fds, how;

	alarm(BOUND);
	e.buf[1] = kit_mapped(LEN, &fd);
	CHECK(e.buf[0]);
	fds = kit_descriptors();
	how = converse(&e);
	if (how)
		atomic_store(&board->gone[me], 1);
	tear_down(&e);
	atomic_store(&board->gone[me], 1);
	CHECK(kit_descriptors() == fds, "%d descriptors before, %d now", fds, kit_descriptors());
	CHECK(segments() == 0, "segments stay mapped");
	free(e.buf[0]);
	exit(how); /* a leak checker looks now */
}

/* One conversation.  How each end ended, and whether the fault was met. */
static bool run(int side, const char *fault, int how[2], unsigned *points, unsigned *calls)
{
	char said[4096];
	ssize_t n, len = 0;
	pid_t pids[2];
	int p[2];

	memset(board, 0, sizeof *board);
	CHECK(!pipe2(p, O_CLOEXEC));
	CHECK(!socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, sock));
	for (me = 0; me < 2; me++) {
		pids[me] = kit_fork();
		if (pids[me])
			continue;
		close(p[0]);
		if (me == side) {
			dup2(p[1], 2);
			setenv("VERBENA_FAULT", fault, 1);
		}
		close(p[1]);
		run_end();
	}
	close(p[1]);
	close(sock[0]);
	close(sock[1]);
	while ((n = read(p[0], said + len, sizeof said - 1 - (size_t)len)) > 0)
		len += n;
	said[len] = 0;
	close(p[0]);
	for (int k = 0; k < 2; k++) {
		int i = k ? !side : side, status = kit_reap(pids[i]);

		atomic_store(&board->gone[i], 1);
		how[i] = WIFEXITED(status) ? WEXITSTATUS(status) : -WTERMSIG(status);
		if (i == side && how[i] == -SIGKILL && !strncmp(fault, "kill:", 5)) /* as it should */
			continue;
		if (how[i] != WELL && (how[i] < BY_CALL || how[i] > LEFT_ALONE)) {
			fprintf(stderr, "%s at side %d: end %d ended with %d%s\n%s", fault, side, i, how[i],
				how[i] == -SIGALRM ? " (it hung)" : "", said);
			return false;
		}
	}
	if (strstr(said, "fault points, "))
		sscanf(strstr(said, "verbena: "), "verbena: %u fault points, %u", points, calls);
	if (getenv("VB_TEST_VERBOSE"))
		fprintf(stderr, "%s side %d: %d %d  %s", fault, side, how[0], how[1], *said ? said : "\n");
	return true;
}

/* The end at this side dies at each of its points: a spread of them, all in soak.  Returns how many went
 * wrong. */
static unsigned deaths(int side, unsigned points)
{
	unsigned step = getenv("VERBENA_SOAK") ? 1 : points / 60 + 1, bad = 0, runs = 0, unused;
	char fault[32];
	int how[2];

	for (unsigned n = 1 + (unsigned)getpid() % step; n <= points; n += step, runs++) {
		snprintf(fault, sizeof fault, "kill:%u", n);
		bad += !run(side, fault, how, &unused, &unused);
	}
	printf("side %d: %u deaths at %u points\n", side, runs, points);
	return bad;
}

int main(int argc, char **argv)
{
	unsigned first = argc > 1 ? (unsigned)atoi(argv[1]) : 1, last, counts[6] = {0}, runs = 0, bad = 0;
	char fault[32];
	int how[2];

	board = kit_shared(sizeof *board);
	domain = xrc_domain_file();
	for (int side = 0; side < 2; side++) {
		unsigned calls = 0, points = 0;

		if (argc > 3 && side != atoi(argv[3]))
			continue;
		CHECK(run(side, "count", how, &points, &calls) && how[0] == WELL && how[1] == WELL);
		CHECK(calls > 20, "%u calls", calls);
		last = argc > 2 ? (unsigned)atoi(argv[2]) : calls + 5; /* threads: not always the same */
		for (unsigned n = first; n <= last; n++) {
			for (int on = 0; on < 2; on++) {
				snprintf(fault, sizeof fault, "fail:%u%s", n, on ? "+" : "");
				bad += !run(side, fault, how, &points, &calls);
				runs++;
				if (how[side] >= 0 && how[side] < 6)
					counts[how[side]]++;
			}
		}
		printf("side %d: %u calls\n", side, calls);
		if (argc < 2)
			bad += deaths(side, points);
	}
	printf("%u runs: the end whose call failed got through %u times, was told by a call %u times, by a "
	       "completion "
	       "%u times, by the other end's absence %u times\n",
	       runs, counts[WELL], counts[BY_CALL], counts[BY_COMPLETION], counts[LEFT_ALONE]);
	CHECK(!bad, "%u runs went wrong", bad);
	return 0;
}
