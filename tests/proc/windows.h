/* Windows that are taken back in mid-traffic: what the tests with two processes and with two threads share.
 *
 * The owner binds a window, its peer WRITEs through it without end, and the owner takes it back in one of
 * many ways.  As soon as that has returned or completed, the owner fills the memory with a pattern,
 * deregisters the region, and looks whether the pattern stays.  The peer must see its WRITEs refused, and
 * nothing worse. */
#ifndef VB_TESTS_WINDOWS_H
#define VB_TESTS_WINDOWS_H

#include <errno.h>
#include <sched.h>

#include "kit.h"

enum {
	RACE_AREA = 1 << 19,
	RACE_DEPTH = 16,
	RACE_PATTERN = 0x5a,
	RACE_RW = IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ,
};

enum race_way {
	RACE_LOCAL_INV, /* type 2 */
	RACE_SEND_INV,	/* likewise; the peer sends it in the middle of its own WRITEs */
	RACE_DEREG,	/* likewise; the region is deregistered by whoever is first that may */
	RACE_DEALLOC,
	RACE_DESTROY,
	RACE_UNBIND, /* type 1 */
	RACE_REBIND,
	RACE_DEALLOC_1,
	RACE_WAYS
};
static const char *const race_ways[] = {"local invalidate", "SEND with invalidate", "deregistration",
					"deallocation",	    "QP destruction",	    "unbinding",
					"rebinding",	    "deallocation, type 1"};

struct race_board {
	struct kit_card card[2];
	_Atomic int ready[2]; /* rounds that each end has begun; one that ends the test is -1 */
	_Atomic int bound;    /* likewise: the owner's window is */
	_Atomic int refused;  /* likewise: the peer has seen it */
	_Atomic uint32_t key;
	_Atomic int64_t hits, rounds;
};

struct race {
	struct race_board *board;
	struct ibv_pd *pd;
	enum race_way way;
	double seconds;
	uint64_t rng;
};

static uint32_t race_below(struct race *r, uint32_t n)
{
	r->rng = r->rng * 6364136223846793005ull + 1442695040888963407ull;
	return (uint32_t)(r->rng >> 33) % n;
}

static void race_some_time(struct race *r, uint32_t max)
{
	uint32_t n = race_below(r, max);

	if (!race_below(r, 8))
		sched_yield();
	for (uint32_t i = 0; i < n; i++)
		__asm__ volatile("" ::: "memory");
}

static void race_wait(_Atomic int *v, int n)
{
	double end = kit_now() + 60;

	while (atomic_load(v) < n && atomic_load(v) >= 0) {
		CHECK(kit_now() < end, "waited for round %d", n);
		sched_yield();
	}
}

/* What another process or the library's copies write is read so: not what TSan is to judge. */
static uint8_t race_byte(const uint8_t *p)
{
	return __atomic_load_n(p, __ATOMIC_RELAXED);
}

static void race_intact(struct race *r, const uint8_t *p)
{
	for (size_t i = 0; i < RACE_AREA; i++)
		CHECK(race_byte(p + i) == RACE_PATTERN, "byte %zu was touched after %s", i,
		      race_ways[r->way]);
}

static bool race_type_1(const struct race *r)
{
	return r->way >= RACE_UNBIND;
}

static void race_bind(struct race *r, struct kit_end *e, struct ibv_mw *mw, struct ibv_mr *mr, void *at,
		      uint32_t len)
{
	struct ibv_mw_bind_info info = {
	    .mr = mr, .addr = (uintptr_t)at, .length = len, .mw_access_flags = RACE_RW};
	struct ibv_mw_bind b = {.wr_id = 1, .send_flags = IBV_SEND_SIGNALED, .bind_info = info};
	struct ibv_send_wr wr = {.wr_id = 1,
				 .opcode = IBV_WR_BIND_MW,
				 .send_flags = IBV_SEND_SIGNALED,
				 .bind_mw = {.mw = mw, .rkey = ibv_inc_rkey(mw->rkey), .bind_info = info}},
			   *bad;
	struct ibv_wc wc;

	if (race_type_1(r)) {
		CHECK(!ibv_bind_mw(e->qp, mw, &b));
		wr.bind_mw.rkey = mw->rkey;
	} else {
		CHECK(!ibv_post_send(e->qp, &wr, &bad));
	}
	wc = kit_wait(e, 30);
	CHECK(wc.status == IBV_WC_SUCCESS && wc.opcode == IBV_WC_BIND_MW, "%s", ibv_wc_status_str(wc.status));
	if (len)
		atomic_store(&r->board->key, wr.bind_mw.rkey);
}

static void race_invalidate(struct race *r, struct kit_end *e)
{
	struct ibv_send_wr wr = {.wr_id = 1,
				 .opcode = IBV_WR_LOCAL_INV,
				 .send_flags = IBV_SEND_SIGNALED,
				 .invalidate_rkey = atomic_load(&r->board->key)},
			   *bad;

	CHECK(!ibv_post_send(e->qp, &wr, &bad));
}

static void race_done(struct kit_end *e, enum ibv_wc_opcode op)
{
	struct ibv_wc wc = kit_wait(e, 30);

	CHECK(wc.status == IBV_WC_SUCCESS && wc.opcode == op, "%s, opcode %d", ibv_wc_status_str(wc.status),
	      wc.opcode);
	CHECK(op != IBV_WC_RECV || wc.wc_flags & IBV_WC_WITH_INV);
}

/* Returns whether the region is gone too. */
static bool race_take_back(struct race *r, struct kit_end *e, struct ibv_mw *mw, struct ibv_mr *mr)
{
	int err;

	switch (r->way) {
	case RACE_LOCAL_INV:
		race_invalidate(r, e);
		race_done(e, IBV_WC_LOCAL_INV);
		break;
	case RACE_SEND_INV:
		race_done(e, IBV_WC_RECV);
		break;
	case RACE_DEREG:
		race_invalidate(r, e);
		while ((err = ibv_dereg_mr(mr)))
			CHECK(err == EBUSY, "%s", strerror(err));
		return true;
	case RACE_DESTROY:
		CHECK(!ibv_destroy_qp(e->qp));
		break;
	case RACE_UNBIND:
		race_bind(r, e, mw, NULL, NULL, 0);
		break;
	case RACE_REBIND: /* to somewhere else */
		race_bind(r, e, mw, e->mr, e->buf, 64);
		break;
	default:
		CHECK(!ibv_dealloc_mw(mw));
	}
	return false;
}

static void race_round(struct race *r, struct kit_end *e, uint8_t *area)
{
	struct ibv_mr *mr = ibv_reg_mr(r->pd, area, RACE_AREA, IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_MW_BIND);
	struct ibv_mw *mw = ibv_alloc_mw(r->pd, race_type_1(r) ? IBV_MW_TYPE_1 : IBV_MW_TYPE_2);
	double late = kit_now() + 60;
	size_t k = race_below(r, RACE_AREA);
	bool gone;

	CHECK(mr && mw);
	race_bind(r, e, mw, mr, area, RACE_AREA);
	CHECK(ibv_dereg_mr(mr) == EBUSY); /* rule 49 */
	atomic_store(&r->board->bound, atomic_load(&r->board->ready[0]));
	while (!race_byte(area + RACE_AREA - 1)) { /* until the peer is at it */
		struct ibv_wc wc;

		CHECK(kit_now() < late, "no WRITE comes");
		if (r->way != RACE_SEND_INV)
			CHECK(!ibv_poll_cq(e->cq, 1, &wc));
	}
	race_some_time(r, 200000);
	gone = race_take_back(r, e, mw, mr);
	memset(area + k, RACE_PATTERN, RACE_AREA - k); /* at once, where a copy that goes on would be */
	memset(area, RACE_PATTERN, k);
	race_some_time(r, race_below(r, 4) ? 20000 : 400000);
	race_intact(r, area);
	if (!gone)
		CHECK(!ibv_dereg_mr(mr));
	race_intact(r, area);
	if (r->way != RACE_DEALLOC && r->way != RACE_DEALLOC_1)
		CHECK(!ibv_dealloc_mw(mw));
}

/* The one whose memory it is. */
static void race_owner(struct race *r)
{
	double end = kit_now() + r->seconds;

	for (int round = 1; kit_now() < end || round <= 3; round++) {
		uint8_t *area = calloc(1, RACE_AREA);
		struct kit_end e;

		CHECK(area);
		kit_end_open(&e, r->pd, RACE_DEPTH, 4096);
		if (r->way == RACE_SEND_INV)
			CHECK(!kit_recv(&e, 2, 0, 64));
		e.mr = (ibv_dereg_mr(e.mr),
			ibv_reg_mr(r->pd, e.buf, 4096, IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_MW_BIND));
		CHECK(e.mr);
		e.card.addr = (uintptr_t)area;
		r->board->card[0] = e.card;
		atomic_store(&r->board->ready[0], round);
		race_wait(&r->board->ready[1], round);
		kit_connect(&e, &r->board->card[1]);
		race_round(r, &e, area);
		race_wait(&r->board->refused, round);
		if (r->way != RACE_DESTROY)
			CHECK(!ibv_destroy_qp(e.qp));
		CHECK(!ibv_dereg_mr(e.mr) && !ibv_destroy_cq(e.cq));
		free(e.buf);
		free(area);
		atomic_fetch_add(&r->board->rounds, 1);
	}
	atomic_store(&r->board->ready[0], -1);
}

static int race_post(struct race *r, struct kit_end *e, bool invalidate)
{
	struct kit_card to = r->board->card[0];
	struct ibv_send_wr wr = {.wr_id = 2,
				 .opcode = IBV_WR_SEND_WITH_INV,
				 .send_flags = IBV_SEND_SIGNALED,
				 .invalidate_rkey = atomic_load(&r->board->key)},
			   *bad;
	uint32_t len = race_below(r, 4) ? 1 + race_below(r, 1u << race_below(r, 20)) : RACE_AREA;

	if (invalidate)
		return ibv_post_send(e->qp, &wr, &bad);
	to.rkey = wr.invalidate_rkey;
	return kit_post(e, IBV_WR_RDMA_WRITE, 1, RACE_AREA - len, len, &to, RACE_AREA - len);
}

/* WRITEs until that is refused. */
static void race_writes(struct race *r, struct kit_end *e)
{
	bool failed = false, sent = r->way != RACE_SEND_INV;
	int posted = 0, hits = 0;
	struct ibv_wc wc;

	while (!failed) {
		while (posted < RACE_DEPTH) {
			bool invalidate = !sent && hits > 8 && !race_below(r, 8);

			CHECK(!race_post(r, e, invalidate));
			sent |= invalidate;
			posted++;
		}
		while (ibv_poll_cq(e->cq, 1, &wc) > 0) {
			posted--;
			hits += wc.status == IBV_WC_SUCCESS;
			/* A QP that is gone answers nothing. */
			if (wc.status && !failed)
				CHECK(wc.status == IBV_WC_REM_ACCESS_ERR ||
					  (r->way == RACE_DESTROY && wc.status == IBV_WC_RETRY_EXC_ERR),
				      "%s", ibv_wc_status_str(wc.status));
			failed |= wc.status != IBV_WC_SUCCESS;
		}
	}
	atomic_fetch_add(&r->board->hits, hits);
}

static void race_other(struct race *r)
{
	for (int round = 1;; round++) {
		struct kit_end e;

		race_wait(&r->board->ready[0], round);
		if (atomic_load(&r->board->ready[0]) < 0)
			return;
		kit_end_open(&e, r->pd, RACE_DEPTH, RACE_AREA);
		memset(e.buf, 0xff, RACE_AREA);
		r->board->card[1] = e.card;
		/* a QP that is destroyed leaves requests without an answer: they end soon */
		kit_connect_with(&e, &r->board->card[0], r->way == RACE_DESTROY ? 8 : 16,
				 r->way == RACE_DESTROY ? 3 : 7);
		atomic_store(&r->board->ready[1], round);
		race_wait(&r->board->bound, round);
		race_writes(r, &e);
		atomic_store(&r->board->refused, round);
		kit_end_close(&e);
	}
}

#endif
