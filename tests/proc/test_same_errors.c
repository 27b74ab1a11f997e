/* Whatever is wrong with a request: with direct placement and without, at either end, the same request ends
 * with the same status and the same reason, what was posted before it is complete, what is behind it is
 * flushed, and both ends see the same events. */
#include "pair.h"

/* So far from a key that no table reaches from the one to the other. */
#define NO_KEY 0x20000000u

enum { SIZE = 1 << 18, DEPTH = 32, BEFORE = 3, AFTER = 2, MAX_SEEN = 24, BIG = 100000 };

/* What is wrong. */
enum wrong {
	NOTHING,
	TO_RTR,	       /* the target is in RTR only: its first packet is an event */
	BOUNDS,	       /* the range leaves the region, by one byte */
	BELOW,	       /* it begins before it */
	KEY_LOCAL,     /* an L_Key for an R_Key */
	KEY_VARIANT,   /* a stale key */
	KEY_NONE,      /* one that nobody has */
	KEY_GONE,      /* the region was deregistered */
	OTHER_PD,      /* the region is of another PD */
	REGION_ACCESS, /* the region does not permit it */
	QP_ACCESS,     /* the target's QP does not */
	DEPTH_0,       /* max_rd_atomic 0 */
	DEST_DEPTH_0,  /* max_dest_rd_atomic 0 at the target */
	LOCAL_KEY,     /* the initiator's own region: a wrong key, bounds, an access that is missing */
	LOCAL_BOUNDS,
	LOCAL_ACCESS,
	LOCAL_SECOND, /* the second piece's key is wrong */
	NO_RECEIVE,   /* WRITE with immediate, rnr_retry 1 */
	MISALIGNED,   /* atomic */
	OTHER_MTU,    /* the target's path MTU is another */
	TARGET_ERR,   /* the target's QP is in the error state */
	TARGET_GONE,  /* it is destroyed */
	OTHER_TYPE,   /* it is of another type */
	SELF_ERR,     /* the initiator's QP goes to the error state */
};

static const struct row {
	const char *name;
	enum wrong wrong;
	enum ibv_wr_opcode op;
	uint32_t len;
	enum ibv_wc_status status;
} rows[] = {
    {"WRITE", NOTHING, IBV_WR_RDMA_WRITE, 64, IBV_WC_SUCCESS},
    {"WRITE of nothing", NOTHING, IBV_WR_RDMA_WRITE, 0, IBV_WC_SUCCESS},
    {"READ", NOTHING, IBV_WR_RDMA_READ, BIG, IBV_WC_SUCCESS},
    {"WRITE with immediate", NOTHING, IBV_WR_RDMA_WRITE_WITH_IMM, BIG, IBV_WC_SUCCESS},
    {"fetch and add", NOTHING, IBV_WR_ATOMIC_FETCH_AND_ADD, 8, IBV_WC_SUCCESS},
    {"WRITE to RTR", TO_RTR, IBV_WR_RDMA_WRITE, 64, IBV_WC_SUCCESS},
    {"WRITE of nothing to RTR", TO_RTR, IBV_WR_RDMA_WRITE, 0, IBV_WC_SUCCESS},
    {"READ from RTR", TO_RTR, IBV_WR_RDMA_READ, 64, IBV_WC_SUCCESS},
    {"WRITE, bounds", BOUNDS, IBV_WR_RDMA_WRITE, 64, IBV_WC_REM_ACCESS_ERR},
    {"WRITE, long, bounds", BOUNDS, IBV_WR_RDMA_WRITE, BIG, IBV_WC_REM_ACCESS_ERR},
    {"READ, bounds", BOUNDS, IBV_WR_RDMA_READ, BIG, IBV_WC_REM_ACCESS_ERR},
    {"WRITE with immediate, bounds", BOUNDS, IBV_WR_RDMA_WRITE_WITH_IMM, 64, IBV_WC_REM_ACCESS_ERR},
    {"WRITE below", BELOW, IBV_WR_RDMA_WRITE, 64, IBV_WC_REM_ACCESS_ERR},
    {"WRITE of nothing, bounds", BOUNDS, IBV_WR_RDMA_WRITE, 0, IBV_WC_SUCCESS},
    {"WRITE, L_Key", KEY_LOCAL, IBV_WR_RDMA_WRITE, 64, IBV_WC_REM_ACCESS_ERR},
    {"WRITE, variant", KEY_VARIANT, IBV_WR_RDMA_WRITE, 64, IBV_WC_REM_ACCESS_ERR},
    {"READ, no key", KEY_NONE, IBV_WR_RDMA_READ, 64, IBV_WC_REM_ACCESS_ERR},
    {"WRITE of nothing, no key", KEY_NONE, IBV_WR_RDMA_WRITE, 0, IBV_WC_SUCCESS},
    {"READ of nothing, no key", KEY_NONE, IBV_WR_RDMA_READ, 0, IBV_WC_SUCCESS},
    {"WRITE, deregistered", KEY_GONE, IBV_WR_RDMA_WRITE, 64, IBV_WC_REM_ACCESS_ERR},
    {"READ, deregistered", KEY_GONE, IBV_WR_RDMA_READ, BIG, IBV_WC_REM_ACCESS_ERR},
    {"WRITE, PD", OTHER_PD, IBV_WR_RDMA_WRITE, 64, IBV_WC_REM_ACCESS_ERR},
    {"READ, PD", OTHER_PD, IBV_WR_RDMA_READ, 64, IBV_WC_REM_ACCESS_ERR},
    {"WRITE, region", REGION_ACCESS, IBV_WR_RDMA_WRITE, 64, IBV_WC_REM_ACCESS_ERR},
    {"READ, region", REGION_ACCESS, IBV_WR_RDMA_READ, 64, IBV_WC_REM_ACCESS_ERR},
    {"atomic, region", REGION_ACCESS, IBV_WR_ATOMIC_FETCH_AND_ADD, 8, IBV_WC_REM_ACCESS_ERR},
    {"WRITE, QP", QP_ACCESS, IBV_WR_RDMA_WRITE, 64, IBV_WC_REM_INV_REQ_ERR},
    {"WRITE of nothing, QP", QP_ACCESS, IBV_WR_RDMA_WRITE, 0, IBV_WC_REM_INV_REQ_ERR},
    {"WRITE with immediate, QP", QP_ACCESS, IBV_WR_RDMA_WRITE_WITH_IMM, 64, IBV_WC_REM_INV_REQ_ERR},
    {"READ, QP", QP_ACCESS, IBV_WR_RDMA_READ, 64, IBV_WC_REM_INV_REQ_ERR},
    {"READ, depth", DEPTH_0, IBV_WR_RDMA_READ, 64, IBV_WC_LOC_QP_OP_ERR},
    {"READ of nothing, depth", DEPTH_0, IBV_WR_RDMA_READ, 0, IBV_WC_LOC_QP_OP_ERR},
    {"atomic, depth", DEPTH_0, IBV_WR_ATOMIC_FETCH_AND_ADD, 8, IBV_WC_LOC_QP_OP_ERR},
    {"READ, depth there", DEST_DEPTH_0, IBV_WR_RDMA_READ, 64, IBV_WC_REM_INV_REQ_ERR},
    {"WRITE, local key", LOCAL_KEY, IBV_WR_RDMA_WRITE, 64, IBV_WC_LOC_PROT_ERR},
    {"READ, local key", LOCAL_KEY, IBV_WR_RDMA_READ, 64, IBV_WC_LOC_PROT_ERR},
    {"WRITE, local bounds", LOCAL_BOUNDS, IBV_WR_RDMA_WRITE, BIG, IBV_WC_LOC_PROT_ERR},
    {"READ, local bounds", LOCAL_BOUNDS, IBV_WR_RDMA_READ, BIG, IBV_WC_LOC_PROT_ERR},
    {"READ, local access", LOCAL_ACCESS, IBV_WR_RDMA_READ, 64, IBV_WC_LOC_PROT_ERR},
    {"atomic, local access", LOCAL_ACCESS, IBV_WR_ATOMIC_FETCH_AND_ADD, 8, IBV_WC_LOC_PROT_ERR},
    {"WRITE, second piece", LOCAL_SECOND, IBV_WR_RDMA_WRITE, BIG, IBV_WC_LOC_PROT_ERR},
    {"READ, second piece", LOCAL_SECOND, IBV_WR_RDMA_READ, BIG, IBV_WC_LOC_PROT_ERR},
    {"WRITE with immediate, no receive", NO_RECEIVE, IBV_WR_RDMA_WRITE_WITH_IMM, BIG,
     IBV_WC_RNR_RETRY_EXC_ERR},
    {"atomic, misaligned", MISALIGNED, IBV_WR_ATOMIC_FETCH_AND_ADD, 8, IBV_WC_REM_INV_REQ_ERR},
    {"WRITE, MTU", OTHER_MTU, IBV_WR_RDMA_WRITE, BIG, IBV_WC_REM_INV_REQ_ERR},
    {"WRITE of one packet, MTU", OTHER_MTU, IBV_WR_RDMA_WRITE, 1024, IBV_WC_SUCCESS},
    {"WRITE with immediate, MTU", OTHER_MTU, IBV_WR_RDMA_WRITE_WITH_IMM, 1025, IBV_WC_REM_INV_REQ_ERR},
    {"READ, MTU", OTHER_MTU, IBV_WR_RDMA_READ, 1025, IBV_WC_BAD_RESP_ERR},
    {"READ of one packet, MTU", OTHER_MTU, IBV_WR_RDMA_READ, 1024, IBV_WC_SUCCESS},
    {"WRITE to ERR", TARGET_ERR, IBV_WR_RDMA_WRITE, 64, IBV_WC_RETRY_EXC_ERR},
    {"WRITE of nothing to ERR", TARGET_ERR, IBV_WR_RDMA_WRITE, 0, IBV_WC_RETRY_EXC_ERR},
    {"READ from ERR", TARGET_ERR, IBV_WR_RDMA_READ, BIG, IBV_WC_RETRY_EXC_ERR},
    {"WRITE to nobody", TARGET_GONE, IBV_WR_RDMA_WRITE, BIG, IBV_WC_RETRY_EXC_ERR},
    {"WRITE to UC", OTHER_TYPE, IBV_WR_RDMA_WRITE, 64, IBV_WC_RETRY_EXC_ERR},
    {"WRITE of nothing to UC", OTHER_TYPE, IBV_WR_RDMA_WRITE, 0, IBV_WC_RETRY_EXC_ERR},
    {"WRITE with immediate to UC", OTHER_TYPE, IBV_WR_RDMA_WRITE_WITH_IMM, BIG, IBV_WC_RETRY_EXC_ERR},
    {"WRITE in ERR", SELF_ERR, IBV_WR_RDMA_WRITE, 64, IBV_WC_WR_FLUSH_ERR},
};
enum { ROWS = sizeof rows / sizeof rows[0] };

/* What one end saw in one row. */
struct seen {
	struct {
		uint64_t wr_id;
		uint32_t status, vendor_err, opcode, byte_len;
	} wc[MAX_SEEN];
	uint32_t nwc;
	uint32_t event[MAX_SEEN], nevents;
};

struct board {
	struct kit_card card[2];
	_Atomic int step[2]; /* of each end; counts on */
	struct seen seen[2][ROWS];
};

static struct board *board;
static int me, at_step;

/* Both ends are here. */
static void meet(void)
{
	at_step++;
	atomic_store(&board->step[me], at_step);
	kit_until(&board->step[!me], at_step);
}

static void saw(struct seen *s, const struct ibv_wc *wc)
{
	CHECK(s->nwc < MAX_SEEN);
	s->wc[s->nwc].wr_id = wc->wr_id;
	s->wc[s->nwc].status = wc->status;
	if (wc->status)
		s->wc[s->nwc].vendor_err = wc->vendor_err;
	else
		s->wc[s->nwc].opcode = wc->opcode;
	if (!wc->status && (wc->opcode & IBV_WC_RECV || wc->opcode == IBV_WC_RDMA_READ))
		s->wc[s->nwc].byte_len = wc->byte_len;
	s->nwc++;
}

static void saw_rest(struct seen *s, struct kit_end *e, struct ibv_context *ctx)
{
	struct ibv_async_event ev;
	struct ibv_wc wc;

	while (e->qp && ibv_poll_cq(e->cq, 1, &wc) > 0)
		saw(s, &wc);
	while (!ibv_get_async_event(ctx, &ev)) { /* does not block */
		CHECK(s->nevents < MAX_SEEN);
		s->event[s->nevents++] = ev.event_type;
		ibv_ack_async_event(&ev);
	}
}

static int post(struct kit_end *e, const struct row *r, enum wrong wrong, uint64_t wr_id,
		const struct kit_card *peer, struct ibv_mr *weak)
{
	uint32_t lkey = e->mr->lkey, one = r->len, n = 1;
	uint64_t addr = (uintptr_t)e->buf, raddr = peer->addr, rkey = peer->rkey;
	struct ibv_sge sge[2];
	struct ibv_send_wr wr = {.wr_id = wr_id,
				 .sg_list = sge,
				 .opcode = r->op,
				 .send_flags = IBV_SEND_SIGNALED},
			   *bad;

	if (wrong == BOUNDS)
		raddr += SIZE + 1 - r->len;
	if (wrong == BELOW)
		raddr -= 1;
	if (wrong == MISALIGNED)
		raddr += 4;
	if (wrong == KEY_LOCAL)
		rkey ^= board->card[1].psn; /* what R_Key and L_Key differ in */
	if (wrong == KEY_VARIANT)
		rkey ^= 0x55;
	if (wrong == KEY_NONE)
		rkey ^= NO_KEY;
	if (wrong == LOCAL_KEY)
		lkey ^= NO_KEY;
	if (wrong == LOCAL_ACCESS)
		lkey = weak->lkey;
	if (wrong == LOCAL_BOUNDS)
		addr += SIZE + 1 - r->len;
	if (r->op != IBV_WR_ATOMIC_FETCH_AND_ADD && r->len > 1) {
		one = r->len - r->len / 3;
		n = 2;
	}
	sge[0] = (struct ibv_sge){addr, one, lkey};
	sge[1] = (struct ibv_sge){addr + one, r->len - one, wrong == LOCAL_SECOND ? lkey ^ NO_KEY : lkey};
	wr.num_sge = (int)n;
	if (r->op == IBV_WR_ATOMIC_FETCH_AND_ADD) {
		wr.wr.atomic.remote_addr = raddr;
		wr.wr.atomic.rkey = (uint32_t)rkey;
	} else {
		wr.wr.rdma.remote_addr = raddr;
		wr.wr.rdma.rkey = (uint32_t)rkey;
	}
	return ibv_post_send(e->qp, &wr, &bad);
}

/* Whether a SEND goes ahead. */
static bool says_hello(const struct row *r)
{
	return r->wrong != TO_RTR && r->wrong != OTHER_TYPE;
}

static void open_end(struct kit_end *e, struct ibv_pd *pd, const struct row *r)
{
	struct ibv_qp_attr a = {.qp_access_flags = KIT_ALL & ~IBV_ACCESS_REMOTE_WRITE};

	kit_end_open_as(e, pd, DEPTH, SIZE, me && r->wrong == OTHER_TYPE ? IBV_QPT_UC : IBV_QPT_RC);
	if (me && r->wrong == QP_ACCESS) {
		if (r->op == IBV_WR_RDMA_READ)
			a.qp_access_flags = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE;
		CHECK(!ibv_modify_qp(e->qp, &a, IBV_QP_ACCESS_FLAGS));
	}
}

static void connect_end(struct kit_end *e, const struct row *r)
{
	const struct kit_card *peer = &board->card[!me];
	bool acks = e->qp->qp_type == IBV_QPT_RC;
	struct ibv_qp_attr a = {.qp_state = IBV_QPS_RTR,
				.path_mtu = me && r->wrong == OTHER_MTU ? IBV_MTU_4096 : IBV_MTU_1024,
				.dest_qp_num = peer->qpn,
				.rq_psn = peer->psn & 0xffffff,
				.max_dest_rd_atomic = r->wrong == DEST_DEPTH_0 ? 0 : 4,
				.min_rnr_timer = 1,
				.ah_attr = {.is_global = 1, .port_num = 1, .grh = {.dgid = peer->gid}}};

	CHECK(!ibv_modify_qp(e->qp, &a,
			     IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN |
				 (acks ? IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER : 0)));
	if (me && r->wrong == TO_RTR)
		return;
	a = (struct ibv_qp_attr){.qp_state = IBV_QPS_RTS,
				 .sq_psn = e->card.psn & 0xffffff,
				 .timeout = 13, /* 34 ms; a busy machine may take some */
				 .retry_cnt = r->wrong >= TARGET_ERR && r->wrong <= OTHER_TYPE ? 2 : 7,
				 .rnr_retry = r->wrong == NO_RECEIVE ? 1 : 7,
				 .max_rd_atomic = r->wrong == DEPTH_0 ? 0 : 4};
	CHECK(!ibv_modify_qp(
	    e->qp, &a,
	    IBV_QP_STATE | IBV_QP_SQ_PSN |
		(acks ? IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY | IBV_QP_MAX_QP_RD_ATOMIC : 0)));
}

static void to_state(struct kit_end *e, enum ibv_qp_state state)
{
	struct ibv_qp_attr a = {.qp_state = state};

	CHECK(!ibv_modify_qp(e->qp, &a, IBV_QP_STATE));
}

static void initiator(const struct row *r, struct seen *s, struct ibv_context *ctx, struct ibv_pd *pd)
{
	static const struct row plain = {.op = IBV_WR_RDMA_WRITE, .len = 64};
	struct kit_card *peer = &board->card[1];
	struct ibv_mr *weak;
	struct kit_end e;
	struct ibv_wc wc;
	uint64_t last = 0;

	open_end(&e, pd, r);
	weak = ibv_reg_mr(pd, e.buf, SIZE, 0);
	CHECK(weak);
	board->card[0] = e.card;
	meet();
	connect_end(&e, r);
	meet();
	if (says_hello(r)) { /* both ends know one another */
		CHECK(!kit_post(&e, IBV_WR_SEND, 0, 0, 0, NULL, 0));
		wc = kit_wait(&e, 20);
		CHECK(wc.status == IBV_WC_SUCCESS);
	}
	meet(); /* the target spoils things */
	meet();
	if (r->wrong == SELF_ERR)
		to_state(&e, IBV_QPS_ERR);
	for (int i = 0; i < BEFORE; i++, last++)
		if (r->wrong != QP_ACCESS && r->wrong < TARGET_ERR && r->wrong != KEY_GONE &&
		    r->wrong != OTHER_PD && r->wrong != REGION_ACCESS)
			CHECK(!post(&e, &plain, NOTHING, last, peer, weak));
	CHECK(!post(&e, r, r->wrong, last++, peer, weak));
	for (int i = 0; i < AFTER; i++, last++)
		CHECK(!post(&e, r, NOTHING, last, peer, weak));
	do {
		wc = kit_wait(&e, 20);
		saw(s, &wc);
	} while (wc.wr_id != last - 1);
	CHECK(r->status == IBV_WC_SUCCESS || s->nwc >= AFTER + 1);
	meet();
	saw_rest(s, &e, ctx);
	CHECK(!ibv_dereg_mr(weak));
	kit_end_close(&e);
	saw_rest(s, &(struct kit_end){0}, ctx);
}

static void target(const struct row *r, struct seen *s, struct ibv_context *ctx, struct ibv_pd *pd)
{
	struct ibv_pd *other = ibv_alloc_pd(ctx);
	struct ibv_mr *mr = NULL;
	struct kit_end e;
	struct ibv_wc wc;

	CHECK(other);
	open_end(&e, pd, r);
	if (r->wrong == OTHER_PD)
		mr = ibv_reg_mr(other, e.buf, SIZE, KIT_ALL);
	if (r->wrong == REGION_ACCESS)
		mr = ibv_reg_mr(pd, e.buf, SIZE,
				r->op == IBV_WR_RDMA_WRITE  ? IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_READ
				: r->op == IBV_WR_RDMA_READ ? IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE
							    : KIT_ALL & ~IBV_ACCESS_REMOTE_ATOMIC);
	if (r->wrong == KEY_GONE)
		mr = ibv_reg_mr(pd, e.buf, SIZE, KIT_ALL);
	board->card[1] = e.card;
	if (mr)
		board->card[1].rkey = mr->rkey;
	CHECK(!kit_recv(&e, 500, 0, 0));
	if (r->op == IBV_WR_RDMA_WRITE_WITH_IMM && r->wrong != NO_RECEIVE)
		for (uint64_t i = 0; i < 1 + AFTER; i++)
			CHECK(!kit_recv(&e, 501 + i, 0, 0));
	meet();
	connect_end(&e, r);
	meet();
	if (says_hello(r))
		CHECK(kit_wait(&e, 20).status == IBV_WC_SUCCESS);
	meet();
	if (r->wrong == KEY_GONE) {
		CHECK(!ibv_dereg_mr(mr));
		mr = NULL;
	}
	board->card[1].psn = e.mr->lkey ^ e.mr->rkey;
	if (r->wrong == TARGET_ERR)
		to_state(&e, IBV_QPS_ERR);
	if (r->wrong == TARGET_GONE)
		CHECK(!ibv_destroy_qp(e.qp));
	meet();
	for (int n = 0; n < 1000 && atomic_load(&board->step[0]) <= at_step; n++) { /* answers, if need be */
		if (ibv_poll_cq(e.cq, 1, &wc) > 0)
			saw(s, &wc);
		else
			kit_nap(1);
	}
	meet();
	saw_rest(s, &e, ctx);
	if (r->wrong == TARGET_GONE) {
		CHECK(!ibv_dereg_mr(e.mr) && !ibv_destroy_cq(e.cq));
		free(e.buf);
	} else {
		kit_end_close(&e);
	}
	CHECK(!mr || !ibv_dereg_mr(mr));
	CHECK(!ibv_dealloc_pd(other));
	saw_rest(s, &(struct kit_end){0}, ctx);
}

static void end_of(int which, bool on)
{
	struct ibv_context *ctx;
	struct ibv_pd *pd;

	me = which;
	alarm(120);
	setenv("VERBENA_DIRECT", on ? "on" : "off", 1);
	ctx = kit_open();
	pd = ibv_alloc_pd(ctx);
	CHECK(pd && !fcntl(ctx->async_fd, F_SETFL, O_NONBLOCK));
	for (int i = 0; i < ROWS; i++) {
		meet();
		if (getenv("VERBENA_TEST_TALK"))
			fprintf(stderr, "[%d] %s\n", me, rows[i].name);
		(me ? target : initiator)(&rows[i], &board->seen[me][i], ctx, pd);
	}
	CHECK(!ibv_dealloc_pd(pd) && !ibv_close_device(ctx));
	exit(0);
}

static struct board *all_rows(bool here, bool there)
{
	pid_t pid[2];

	board = kit_shared(sizeof *board);
	for (int i = 0; i < 2; i++) {
		pid[i] = kit_fork();
		if (!pid[i])
			end_of(i, i ? there : here);
	}
	for (int i = 0; i < 2; i++)
		CHECK(kit_reap(pid[i]) == 0, "direct %d and %d: end %d failed", here, there, i);
	return board;
}

static void show(const struct seen *s)
{
	for (uint32_t i = 0; i < s->nwc; i++)
		fprintf(stderr, "  wr_id %" PRIu64 ": status %u vendor_err %u opcode %u, %u bytes\n",
			s->wc[i].wr_id, s->wc[i].status, s->wc[i].vendor_err, s->wc[i].opcode,
			s->wc[i].byte_len);
	for (uint32_t i = 0; i < s->nevents; i++)
		fprintf(stderr, "  event %u\n", s->event[i]);
}

static void compare(const struct board *a, const struct board *b, const char *how)
{
	for (int i = 0; i < ROWS; i++)
		for (int end = 0; end < 2; end++) {
			if (!memcmp(&a->seen[end][i], &b->seen[end][i], sizeof a->seen[0][0]))
				continue;
			fprintf(stderr, "by the ring:\n");
			show(&a->seen[end][i]);
			fprintf(stderr, "%s:\n", how);
			show(&b->seen[end][i]);
			CHECK(0, "%s: what %s saw differs", rows[i].name,
			      end ? "the target" : "the initiator");
		}
}

/* What the table promises, of the ring's run; the others are compared with it. */
static void check(const struct board *b)
{
	for (int i = 0; i < ROWS; i++) {
		const struct seen *s = &b->seen[0][i];
		bool found = false;

		for (uint32_t k = 0; k < s->nwc; k++) {
			if (s->wc[k].wr_id < BEFORE)
				CHECK(!s->wc[k].status, "%s", rows[i].name);
			else if (s->wc[k].wr_id == BEFORE)
				found = s->wc[k].status == rows[i].status;
			else
				CHECK(s->wc[k].status ==
					  (rows[i].status ? IBV_WC_WR_FLUSH_ERR : IBV_WC_SUCCESS),
				      "%s", rows[i].name);
		}
		if (!found)
			show(s);
		CHECK(found, "%s", rows[i].name);
	}
}

int main(void)
{
	struct board *ring = all_rows(false, false);

	check(ring);
	compare(ring, all_rows(true, true), "direct");
	compare(ring, all_rows(true, false), "direct only at the initiator");
	compare(ring, all_rows(false, true), "direct only at the target");
	printf("%d cases, four times the same\n", ROWS);
	return 0;
}
