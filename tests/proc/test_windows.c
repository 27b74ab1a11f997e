/* Memory windows between two processes, by the ring and placed directly: what works and what is refused
 * (rules 46 to 49) is the same on both ways.  Then windows that are taken back in mid-traffic, see race.h.
 *
 *     proc-windows [SECONDS]      for each of the sixteen cases of taking back */
#include "pair.h"
#include "race.h"

enum { AREA = 1 << 16, AT = 4096, LEN = 8192, SHARED_USES = 24 };

/* What the owner does before its peer uses the window's key, and how the peer uses it. */
enum how {
	PLAIN,	     /* in the window's range */
	OTHER_QP,    /* through another QP of the same domain */
	ZERO_BASED,  /* type 2: from 0 */
	PAST,	     /* by one byte behind */
	BEFORE,	     /* by one byte before */
	READ_ONLY,   /* the window is bound for reading */
	WRITE_ONLY,  /* for writing */
	REBOUND,     /* type 1: the old key after it was bound again */
	REBOUND_NEW, /* the new one */
	UNBOUND,     /* type 1: length 0; type 2: local invalidate */
	SENT_INV,    /* type 2: the peer invalidated it itself */
	BOUND_AGAIN, /* type 2: invalidated, and bound under another key */
	DEALLOCATED,
	QP_REMADE, /* type 2: its QP is gone, another may have its number */
	VARIANT,   /* a key that differs in the low byte */
	NEVER_BOUND,
};

#define ACCESS IBV_WC_REM_ACCESS_ERR

static const struct row {
	enum how how;
	int type;
	enum ibv_wr_opcode op;
	enum ibv_wc_status status;
} rows[] = {
    {PLAIN, 1, IBV_WR_RDMA_WRITE, 0},
    {PLAIN, 1, IBV_WR_RDMA_READ, 0},
    {PLAIN, 1, IBV_WR_ATOMIC_FETCH_AND_ADD, 0},
    {PLAIN, 1, IBV_WR_RDMA_WRITE_WITH_IMM, 0},
    {PLAIN, 2, IBV_WR_RDMA_WRITE, 0},
    {PLAIN, 2, IBV_WR_RDMA_READ, 0},
    {PLAIN, 2, IBV_WR_ATOMIC_FETCH_AND_ADD, 0},
    {PLAIN, 2, IBV_WR_RDMA_WRITE_WITH_IMM, 0},
    {OTHER_QP, 1, IBV_WR_RDMA_WRITE, 0},
    {OTHER_QP, 2, IBV_WR_RDMA_WRITE, ACCESS},
    {OTHER_QP, 2, IBV_WR_RDMA_READ, ACCESS},
    {ZERO_BASED, 2, IBV_WR_RDMA_WRITE, 0},
    {ZERO_BASED, 2, IBV_WR_RDMA_READ, 0},
    {ZERO_BASED, 2, IBV_WR_ATOMIC_FETCH_AND_ADD, 0},
    {PAST, 1, IBV_WR_RDMA_WRITE, ACCESS},
    {PAST, 2, IBV_WR_RDMA_READ, ACCESS},
    {BEFORE, 1, IBV_WR_RDMA_READ, ACCESS},
    {BEFORE, 2, IBV_WR_RDMA_WRITE, ACCESS},
    {READ_ONLY, 1, IBV_WR_RDMA_WRITE, ACCESS},
    {READ_ONLY, 2, IBV_WR_RDMA_READ, 0},
    {READ_ONLY, 2, IBV_WR_ATOMIC_FETCH_AND_ADD, ACCESS},
    {WRITE_ONLY, 1, IBV_WR_RDMA_READ, ACCESS},
    {WRITE_ONLY, 2, IBV_WR_RDMA_WRITE, 0},
    {WRITE_ONLY, 2, IBV_WR_ATOMIC_FETCH_AND_ADD, ACCESS},
    {REBOUND, 1, IBV_WR_RDMA_WRITE, ACCESS},
    {REBOUND_NEW, 1, IBV_WR_RDMA_WRITE, 0},
    {UNBOUND, 1, IBV_WR_RDMA_WRITE, ACCESS},
    {UNBOUND, 2, IBV_WR_RDMA_READ, ACCESS},
    {SENT_INV, 2, IBV_WR_RDMA_WRITE, ACCESS},
    {BOUND_AGAIN, 2, IBV_WR_RDMA_WRITE, 0},
    {DEALLOCATED, 1, IBV_WR_RDMA_READ, ACCESS},
    {DEALLOCATED, 2, IBV_WR_RDMA_WRITE, ACCESS},
    {QP_REMADE, 2, IBV_WR_RDMA_WRITE, ACCESS},
    {VARIANT, 1, IBV_WR_RDMA_WRITE, ACCESS},
    {VARIANT, 2, IBV_WR_RDMA_WRITE, ACCESS},
    {NEVER_BOUND, 1, IBV_WR_RDMA_WRITE, ACCESS},
    {NEVER_BOUND, 2, IBV_WR_RDMA_READ, ACCESS},
};
enum { ROWS = sizeof rows / sizeof rows[0] };

struct board {
	struct kit_card card[2][2]; /* [owner, peer][QP] */
	uint64_t addr;		    /* for the peer's request */
	uint32_t key;
	_Atomic int step[2];
	uint32_t reason[2][ROWS]; /* what the peer's completion says; [direct] */
	struct kit_race_board race;
};

static struct board *board;
static int me, at_step;
static bool direct;

/* Both ends are here. */
static void meet(void)
{
	at_step++;
	atomic_store(&board->step[me], at_step);
	kit_until(&board->step[!me], at_step);
}

static struct ibv_wc ended(struct kit_end *e, enum ibv_wc_status status, const char *what)
{
	struct ibv_wc wc = kit_wait(e, 30);

	CHECK(wc.status == status, "%s: %s, not %s", what, ibv_wc_status_str(wc.status),
	      ibv_wc_status_str(status));
	return wc;
}

struct owner {
	struct kit_end e[2];
	struct ibv_mr *mr;
	struct ibv_mw *mw;
	uint8_t *area;
	int type;
};

/* Binds the window on the first QP; returns its R_Key.  len 0: unbinds (type 1). */
static uint32_t bind(struct owner *o, uint32_t at, uint32_t len, unsigned access)
{
	struct ibv_mw_bind_info info = {
	    .mr = o->mr, .addr = (uintptr_t)o->area + at, .length = len, .mw_access_flags = access};
	struct ibv_mw_bind b = {.send_flags = IBV_SEND_SIGNALED, .bind_info = info};
	struct ibv_send_wr wr = {
	    .opcode = IBV_WR_BIND_MW,
	    .send_flags = IBV_SEND_SIGNALED,
	    .bind_mw = {.mw = o->mw, .rkey = ibv_inc_rkey(o->mw->rkey), .bind_info = info}};
	struct ibv_send_wr *bad;

	if (o->type == 1) {
		CHECK(!ibv_bind_mw(o->e[0].qp, o->mw, &b));
	} else {
		CHECK(!ibv_post_send(o->e[0].qp, &wr, &bad));
		o->mw->rkey = wr.bind_mw.rkey;
	}
	CHECK(ended(&o->e[0], IBV_WC_SUCCESS, "bind").opcode == IBV_WC_BIND_MW);
	return o->mw->rkey;
}

static void invalidate(struct kit_end *e, enum ibv_wr_opcode op, uint32_t key)
{
	struct ibv_send_wr wr = {.opcode = op, .send_flags = IBV_SEND_SIGNALED, .invalidate_rkey = key};
	struct ibv_send_wr *bad;

	CHECK(!ibv_post_send(e->qp, &wr, &bad));
	ended(e, IBV_WC_SUCCESS, "invalidate");
}

static void owner_open(struct owner *o, struct ibv_pd *pd, const struct row *r, uint8_t *area)
{
	*o = (struct owner){.type = r->type, .area = area};
	for (int i = 0; i < 2; i++) {
		kit_end_open(&o->e[i], pd, 16, 4096);
		board->card[0][i] = o->e[i].card;
		CHECK(!kit_recv(&o->e[i], 1000, 0, 0));
	}
	for (int i = 0; i < AREA; i++)
		area[i] = (uint8_t)(i * 7 + 1);
	o->mr = ibv_reg_mr(pd, area, AREA, IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_MW_BIND);
	o->mw = ibv_alloc_mw(pd, r->type == 1 ? IBV_MW_TYPE_1 : IBV_MW_TYPE_2);
	CHECK(o->mr && o->mw);
}

/* The window goes, or changes, before it is used. */
static void disturb(struct owner *o, struct ibv_pd *pd, enum how how)
{
	uint32_t old = board->key;
	struct kit_end fresh;

	switch (how) {
	case REBOUND:
	case REBOUND_NEW:
		board->key = bind(o, AT, LEN, KIT_RACE_RW | IBV_ACCESS_REMOTE_ATOMIC);
		CHECK(board->key != old);
		if (how == REBOUND)
			board->key = old;
		break;
	case UNBOUND:
		if (o->type == 1)
			bind(o, 0, 0, 0);
		else
			invalidate(&o->e[0], IBV_WR_LOCAL_INV, old);
		break;
	case BOUND_AGAIN:
		invalidate(&o->e[0], IBV_WR_LOCAL_INV, old);
		board->key = bind(o, AT, LEN, KIT_RACE_RW);
		CHECK(board->key != old);
		break;
	case DEALLOCATED:
		CHECK(!ibv_dealloc_mw(o->mw));
		o->mw = NULL;
		break;
	case QP_REMADE: /* the second QP is what is used then */
		CHECK(!ibv_destroy_qp(o->e[0].qp));
		fresh = o->e[0];
		kit_end_open(&o->e[0], pd, 16, 4096);
		CHECK(!ibv_dereg_mr(fresh.mr) && !ibv_destroy_cq(fresh.cq));
		free(fresh.buf);
		break;
	case VARIANT:
		board->key ^= 0x80;
		break;
	default:
		break;
	}
}

static void owner_row(struct ibv_pd *pd, const struct row *r, uint8_t *area)
{
	unsigned access = r->how == READ_ONLY	 ? IBV_ACCESS_REMOTE_READ
			  : r->how == WRITE_ONLY ? IBV_ACCESS_REMOTE_WRITE
						 : (unsigned)(KIT_RACE_RW | IBV_ACCESS_REMOTE_ATOMIC);
	struct owner o;
	struct ibv_wc wc;

	owner_open(&o, pd, r, area);
	meet();
	for (int i = 0; i < 2; i++)
		kit_connect(&o.e[i], &board->card[1][i]);
	meet();
	for (int i = 0; i < 2; i++)
		ended(&o.e[i], IBV_WC_SUCCESS, "greeting");
	board->addr = r->how == ZERO_BASED ? 0 : (uintptr_t)area + AT;
	board->key = o.mw->rkey;
	if (r->how != NEVER_BOUND)
		board->key =
		    bind(&o, AT, LEN, access | (r->how == ZERO_BASED ? (unsigned)IBV_ACCESS_ZERO_BASED : 0));
	if (r->how != NEVER_BOUND)
		CHECK(ibv_dereg_mr(o.mr) == EBUSY); /* rule 49 */
	for (int i = 0; i < 2; i++)
		CHECK(!kit_recv(&o.e[i], 1001, 0, 64));
	meet(); /* the peer has used it, so that its way there is known and mapped */
	meet();
	if (r->how == SENT_INV) {
		wc = ended(&o.e[0], IBV_WC_SUCCESS, "SEND with invalidate");
		CHECK(wc.wc_flags == IBV_WC_WITH_INV && wc.invalidated_rkey == board->key &&
		      wc.byte_len == 16);
	}
	disturb(&o, pd, r->how);
	for (int i = 0; i < AREA; i++)
		area[i] = (uint8_t)(i * 7 + 1);
	meet();
	meet(); /* it was used */
	for (int i = 0; i < AREA; i++) {
		bool in = !r->status && r->op != IBV_WR_RDMA_READ && i >= AT &&
			  i < AT + (r->op == IBV_WR_ATOMIC_FETCH_AND_ADD ? 1 : LEN);

		CHECK(area[i] ==
			  (in && r->op != IBV_WR_ATOMIC_FETCH_AND_ADD ? 0xc3 : (uint8_t)(i * 7 + 1 + in)),
		      "byte %d", i);
	}
	if (r->op == IBV_WR_RDMA_WRITE_WITH_IMM)
		CHECK(ended(&o.e[0], IBV_WC_SUCCESS, "immediate").byte_len == LEN);
	if (o.mw)
		CHECK(!ibv_dealloc_mw(o.mw));
	CHECK(!ibv_dereg_mr(o.mr));
	for (int i = 0; i < 2; i++)
		kit_end_close(&o.e[i]);
}

static void peer_row(struct ibv_pd *pd, const struct row *r, int n)
{
	uint32_t len = r->op == IBV_WR_ATOMIC_FETCH_AND_ADD ? 8 : LEN;
	struct kit_end e[2], *used = &e[r->how == OTHER_QP || r->how == QP_REMADE];
	struct kit_card to;
	struct ibv_wc wc;

	for (int i = 0; i < 2; i++) {
		kit_end_open(&e[i], pd, 16, AREA);
		board->card[1][i] = e[i].card;
	}
	meet();
	for (int i = 0; i < 2; i++)
		kit_connect(&e[i], &board->card[0][i]);
	meet();
	for (int i = 0; i < 2; i++) {
		CHECK(!kit_post(&e[i], IBV_WR_SEND, 1, 0, 0, NULL, 0));
		ended(&e[i], IBV_WC_SUCCESS, "greeting");
	}
	meet();
	to = (struct kit_card){.rkey = board->key, .addr = board->addr};
	for (int i = 0; i < SHARED_USES && (r->how == PLAIN || r->how >= REBOUND) && r->how < VARIANT; i++) {
		CHECK(!kit_post(&e[0], IBV_WR_RDMA_WRITE, 1, 0, 64, &to, 0));
		ended(&e[0], IBV_WC_SUCCESS, "use before");
	}
	if (r->how == SENT_INV) {
		struct ibv_sge sge = {(uintptr_t)e[0].buf, 16, e[0].mr->lkey};
		struct ibv_send_wr wr = {.opcode = IBV_WR_SEND_WITH_INV,
					 .sg_list = &sge,
					 .num_sge = 1,
					 .send_flags = IBV_SEND_SIGNALED,
					 .invalidate_rkey = board->key},
				   *bad;

		CHECK(!ibv_post_send(e[0].qp, &wr, &bad));
		ended(&e[0], IBV_WC_SUCCESS, "SEND with invalidate");
	}
	meet();
	meet();
	memset(e[0].buf, 0xc3, AREA);
	memset(e[1].buf, 0xc3, AREA);
	to = (struct kit_card){.rkey = board->key, .addr = board->addr};
	if (r->how == PAST)
		to.addr++;
	if (r->how == BEFORE)
		to.addr--;
	CHECK(!kit_post(used, r->op, 5, 0, len, &to, 0));
	wc = ended(used, r->status, "use");
	board->reason[direct][n] = wc.status ? wc.vendor_err : 0;
	for (uint32_t i = 0; i < len && r->op == IBV_WR_RDMA_READ && !r->status; i++)
		CHECK(used->buf[i] == (uint8_t)((AT + i) * 7 + 1), "byte %u", i);
	meet();
	for (int i = 0; i < 2; i++)
		kit_end_close(&e[i]);
}

static void end_of(int which, bool on, bool shared, enum kit_race_way way, double seconds)
{
	struct kit_race race = {.board = &board->race, .way = way, .seconds = seconds};
	struct ibv_context *ctx;
	struct ibv_pd *pd;
	uint8_t *area;
	int fd;

	me = which;
	direct = on;
	alarm(way < KIT_RACE_WAYS ? 60 + (unsigned)seconds * 2 : 120);
	setenv("VERBENA_DIRECT", on ? "on" : "off", 1);
	ctx = kit_open();
	pd = ibv_alloc_pd(ctx);
	area = shared ? kit_mapped(AREA, &fd) : malloc(AREA);
	CHECK(pd && area);
	race.pd = pd;
	race.rng = (uint64_t)getpid() << 20 ^ (uint64_t)clock();
	if (way < KIT_RACE_WAYS) {
		(me ? kit_race_other : kit_race_owner)(&race);
	} else {
		for (int i = 0; i < ROWS; i++) {
			if (getenv("VERBENA_TEST_TALK"))
				fprintf(stderr, "[%d] row %d: %d type %d opcode %d\n", me, i, rows[i].how,
					rows[i].type, rows[i].op);
			if (me)
				peer_row(pd, &rows[i], i);
			else
				owner_row(pd, &rows[i], area);
		}
	}
	CHECK(!ibv_dealloc_pd(pd) && !ibv_close_device(ctx));
	exit(0);
}

/* way KIT_RACE_WAYS: the rows. */
static void run(bool on, bool shared, enum kit_race_way way, double seconds)
{
	pid_t pid[2];

	memset((void *)board->step, 0, sizeof board->step);
	memset((void *)&board->race, 0, sizeof board->race);
	for (int i = 0; i < 2; i++) {
		pid[i] = kit_fork();
		if (!pid[i])
			end_of(i, on, shared, way, seconds);
	}
	for (int i = 0; i < 2; i++)
		CHECK(kit_reap(pid[i]) == 0, "direct %d, %s: end %d", on,
		      way < KIT_RACE_WAYS ? kit_race_ways[way] : "rows", i);
	if (way == KIT_RACE_WAYS)
		printf("%d rows, direct %s%s: ok\n", ROWS, on ? "on" : "off", shared ? ", shared" : "");
	else
		printf("%s, direct %s: %" PRId64 " rounds, %" PRId64 " WRITEs\n", kit_race_ways[way],
		       on ? "on" : "off", atomic_load(&board->race.rounds), atomic_load(&board->race.hits));
	fflush(stdout);
	CHECK(way == KIT_RACE_WAYS || atomic_load(&board->race.hits) > 0, "nothing was ever placed");
}

/* ---- placed directly: the owner is stopped, and the WRITE is done all the same ---- */

static void stopped_target(struct kit_pair *p)
{
	struct owner o = {.type = 2};

	kit_pair_open(p, 16, AREA);
	o.e[0] = p->end[0];
	o.area = p->end[0].buf;
	o.mr = ibv_reg_mr(p->pd, o.area, AREA, IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_MW_BIND);
	o.mw = ibv_alloc_mw(p->pd, IBV_MW_TYPE_2);
	CHECK(o.mr && o.mw);
	atomic_store(&p->board->number[0], bind(&o, AT, LEN, KIT_RACE_RW));
	atomic_store(&p->board->step, 1);
	kit_until(&p->board->step, 2);
	CHECK(o.area[AT] == 0xc3 && o.area[AT + LEN - 1] == 0xc3 && !o.area[AT + LEN] && !o.area[AT - 1]);
	CHECK(!ibv_dealloc_mw(o.mw) && !ibv_dereg_mr(o.mr));
	kit_pair_close(p);
}

static void stopped_initiator(struct kit_pair *p)
{
	struct kit_end *e = &p->end[0];
	struct kit_card to;
	struct ibv_wc wc;
	double end;
	int n = 0;

	kit_pair_open(p, 16, AREA);
	to = p->board->card[1][0];
	kit_until(&p->board->step, 1);
	memset(e->buf, 0xc3, AREA);
	kit_stop(p->target);
	CHECK(!kit_post(e, IBV_WR_RDMA_WRITE, 1, 0, 8, &to, 0)); /* to a region */
	for (end = kit_now() + 5; !n && kit_now() < end;)
		n = ibv_poll_cq(e->cq, 1, &wc);
	if (!n) {
		printf("SKIP: nothing is placed directly here\n");
		fflush(stdout);
		kit_cont(p->target);
		_exit(KIT_SKIP);
	}
	CHECK(wc.status == IBV_WC_SUCCESS);
	to.rkey = (uint32_t)atomic_load(&p->board->number[0]);
	CHECK(!kit_post(e, IBV_WR_RDMA_WRITE, 1, 0, LEN, &to, AT));
	ended(e, IBV_WC_SUCCESS, "WRITE to a stopped process");
	CHECK(!kit_post(e, IBV_WR_RDMA_READ, 1, LEN, LEN, &to, AT));
	ended(e, IBV_WC_SUCCESS, "READ from a stopped process");
	kit_cont(p->target);
	atomic_store(&p->board->step, 2);
	kit_pair_close(p);
}

int main(int argc, char **argv)
{
	double seconds = argc > 1 ? atof(argv[1]) : getenv("VERBENA_SOAK") ? 20 : 0.3;

	board = kit_shared(sizeof *board);
	for (int k = 0; k < 4; k++)
		run(k & 1, k & 2, KIT_RACE_WAYS, 0);
	for (int i = 0; i < ROWS; i++)
		CHECK(board->reason[0][i] == board->reason[1][i], "row %d: reasons %u and %u", i,
		      board->reason[0][i], board->reason[1][i]);
	kit_pair_run("a stopped owner", (bool[2]){true, true}, stopped_initiator, stopped_target);
	for (int way = 0; way < KIT_RACE_WAYS; way++)
		for (int on = 0; on < 2; on++)
			run(on, false, (enum kit_race_way)way, seconds);
	return 0;
}
