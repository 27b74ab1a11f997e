#include "race.h"

#include <errno.h>

const char *const kit_race_ways[] = {"local invalidate", "SEND with invalidate", "deregistration",
				     "deallocation",	 "QP destruction",	 "unbinding",
				     "rebinding",	 "deallocation, type 1"};

/* What another process or the library's copies write is read so: not what TSan is to judge. */
static uint8_t byte(const uint8_t *p)
{
	return __atomic_load_n(p, __ATOMIC_RELAXED);
}

static void intact(struct kit_race *r, const uint8_t *p)
{
	for (size_t i = 0; i < KIT_RACE_AREA; i++)
		CHECK(byte(p + i) == KIT_RACE_PATTERN, "byte %zu was touched after %s", i,
		      kit_race_ways[r->way]);
}

static bool type_1(const struct kit_race *r)
{
	return r->way >= KIT_RACE_UNBIND;
}

static void bind_window(struct kit_race *r, struct kit_end *e, struct ibv_mw *mw, struct ibv_mr *mr, void *at,
			uint32_t len)
{
	struct ibv_mw_bind_info info = {
	    .mr = mr, .addr = (uintptr_t)at, .length = len, .mw_access_flags = KIT_RACE_RW};
	struct ibv_mw_bind b = {.wr_id = 1, .send_flags = IBV_SEND_SIGNALED, .bind_info = info};
	struct ibv_send_wr wr = {.wr_id = 1,
				 .opcode = IBV_WR_BIND_MW,
				 .send_flags = IBV_SEND_SIGNALED,
				 .bind_mw = {.mw = mw, .rkey = ibv_inc_rkey(mw->rkey), .bind_info = info}},
			   *bad;
	struct ibv_wc wc;

	if (type_1(r)) {
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

static void invalidate(struct kit_race *r, struct kit_end *e)
{
	struct ibv_send_wr wr = {.wr_id = 1,
				 .opcode = IBV_WR_LOCAL_INV,
				 .send_flags = IBV_SEND_SIGNALED,
				 .invalidate_rkey = atomic_load(&r->board->key)},
			   *bad;

	CHECK(!ibv_post_send(e->qp, &wr, &bad));
}

static void completes(struct kit_end *e, enum ibv_wc_opcode op)
{
	struct ibv_wc wc = kit_wait(e, 30);

	CHECK(wc.status == IBV_WC_SUCCESS && wc.opcode == op, "%s, opcode %d", ibv_wc_status_str(wc.status),
	      wc.opcode);
	CHECK(op != IBV_WC_RECV || wc.wc_flags & IBV_WC_WITH_INV);
}

/* Returns whether the region is gone too. */
static bool take_back(struct kit_race *r, struct kit_end *e, struct ibv_mw *mw, struct ibv_mr *mr)
{
	int err;

	switch (r->way) {
	case KIT_RACE_LOCAL_INV:
		invalidate(r, e);
		completes(e, IBV_WC_LOCAL_INV);
		break;
	case KIT_RACE_SEND_INV:
		completes(e, IBV_WC_RECV);
		break;
	case KIT_RACE_DEREG:
		invalidate(r, e);
		while ((err = ibv_dereg_mr(mr)))
			CHECK(err == EBUSY, "%s", strerror(err));
		return true;
	case KIT_RACE_DESTROY:
		CHECK(!ibv_destroy_qp(e->qp));
		break;
	case KIT_RACE_UNBIND:
		bind_window(r, e, mw, NULL, NULL, 0);
		break;
	case KIT_RACE_REBIND: /* to somewhere else */
		bind_window(r, e, mw, e->mr, e->buf, 64);
		break;
	default:
		CHECK(!ibv_dealloc_mw(mw));
	}
	return false;
}

static void one_round(struct kit_race *r, struct kit_end *e, uint8_t *area)
{
	struct ibv_mr *mr =
	    ibv_reg_mr(r->pd, area, KIT_RACE_AREA, IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_MW_BIND);
	struct ibv_mw *mw = ibv_alloc_mw(r->pd, type_1(r) ? IBV_MW_TYPE_1 : IBV_MW_TYPE_2);
	double late = kit_now() + 60;
	size_t k = kit_below(&r->rng, KIT_RACE_AREA);
	bool gone;

	CHECK(mr && mw);
	bind_window(r, e, mw, mr, area, KIT_RACE_AREA);
	CHECK(ibv_dereg_mr(mr) == EBUSY); /* rule 49 */
	atomic_store(&r->board->bound, atomic_load(&r->board->ready[0]));
	while (!byte(area + KIT_RACE_AREA - 1)) { /* until the peer is at it */
		struct ibv_wc wc;

		CHECK(kit_now() < late, "no WRITE comes");
		if (r->way != KIT_RACE_SEND_INV)
			CHECK(!ibv_poll_cq(e->cq, 1, &wc));
	}
	kit_some_time(&r->rng, 200000);
	gone = take_back(r, e, mw, mr);
	memset(area + k, KIT_RACE_PATTERN,
	       KIT_RACE_AREA - k); /* at once, where a copy that goes on would be */
	memset(area, KIT_RACE_PATTERN, k);
	kit_some_time(&r->rng, kit_below(&r->rng, 4) ? 20000 : 400000);
	intact(r, area);
	if (!gone)
		CHECK(!ibv_dereg_mr(mr));
	intact(r, area);
	if (r->way != KIT_RACE_DEALLOC && r->way != KIT_RACE_DEALLOC_1)
		CHECK(!ibv_dealloc_mw(mw));
}

void kit_race_owner(struct kit_race *r)
{
	double end = kit_now() + r->seconds;

	for (int round = 1; kit_now() < end || round <= 3; round++) {
		uint8_t *area = calloc(1, KIT_RACE_AREA);
		struct kit_end e;

		CHECK(area);
		kit_end_open(&e, r->pd, KIT_RACE_DEPTH, 4096);
		if (r->way == KIT_RACE_SEND_INV)
			CHECK(!kit_recv(&e, 2, 0, 64));
		e.mr = (ibv_dereg_mr(e.mr),
			ibv_reg_mr(r->pd, e.buf, 4096, IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_MW_BIND));
		CHECK(e.mr);
		e.card.addr = (uintptr_t)area;
		r->board->card[0] = e.card;
		atomic_store(&r->board->ready[0], round);
		kit_reach(&r->board->ready[1], round);
		kit_connect(&e, &r->board->card[1]);
		one_round(r, &e, area);
		kit_reach(&r->board->refused, round);
		if (r->way != KIT_RACE_DESTROY)
			CHECK(!ibv_destroy_qp(e.qp));
		CHECK(!ibv_dereg_mr(e.mr) && !ibv_destroy_cq(e.cq));
		free(e.buf);
		free(area);
		atomic_fetch_add(&r->board->rounds, 1);
	}
	atomic_store(&r->board->ready[0], -1);
}

static int post_one(struct kit_race *r, struct kit_end *e, bool invalidate)
{
	struct kit_card to = r->board->card[0];
	struct ibv_send_wr wr = {.wr_id = 2,
				 .opcode = IBV_WR_SEND_WITH_INV,
				 .send_flags = IBV_SEND_SIGNALED,
				 .invalidate_rkey = atomic_load(&r->board->key)},
			   *bad;
	uint32_t len =
	    kit_below(&r->rng, 4) ? 1 + kit_below(&r->rng, 1u << kit_below(&r->rng, 20)) : KIT_RACE_AREA;

	if (invalidate)
		return ibv_post_send(e->qp, &wr, &bad);
	to.rkey = wr.invalidate_rkey;
	return kit_post(e, IBV_WR_RDMA_WRITE, 1, KIT_RACE_AREA - len, len, &to, KIT_RACE_AREA - len);
}

/* WRITEs until that is refused. */
static void write_until_refused(struct kit_race *r, struct kit_end *e)
{
	bool failed = false, sent = r->way != KIT_RACE_SEND_INV;
	int posted = 0, hits = 0;
	struct ibv_wc wc;

	while (!failed) {
		while (posted < KIT_RACE_DEPTH) {
			bool invalidate = !sent && hits > 8 && !kit_below(&r->rng, 8);

			CHECK(!post_one(r, e, invalidate));
			sent |= invalidate;
			posted++;
		}
		while (ibv_poll_cq(e->cq, 1, &wc) > 0) {
			posted--;
			hits += wc.status == IBV_WC_SUCCESS;
			/* A QP that is gone answers nothing. */
			if (wc.status && !failed)
				CHECK(wc.status == IBV_WC_REM_ACCESS_ERR ||
					  (r->way == KIT_RACE_DESTROY && wc.status == IBV_WC_RETRY_EXC_ERR),
				      "%s", ibv_wc_status_str(wc.status));
			failed |= wc.status != IBV_WC_SUCCESS;
		}
	}
	atomic_fetch_add(&r->board->hits, hits);
}

void kit_race_other(struct kit_race *r)
{
	for (int round = 1;; round++) {
		struct kit_end e;

		kit_reach(&r->board->ready[0], round);
		if (atomic_load(&r->board->ready[0]) < 0)
			return;
		kit_end_open(&e, r->pd, KIT_RACE_DEPTH, KIT_RACE_AREA);
		memset(e.buf, 0xff, KIT_RACE_AREA);
		r->board->card[1] = e.card;
		/* a QP that is destroyed leaves requests without an answer: they end soon */
		kit_connect_with(&e, &r->board->card[0], r->way == KIT_RACE_DESTROY ? 8 : 16,
				 r->way == KIT_RACE_DESTROY ? 3 : 7);
		atomic_store(&r->board->ready[1], round);
		kit_reach(&r->board->bound, round);
		write_until_refused(r, &e);
		atomic_store(&r->board->refused, round);
		kit_end_close(&e);
	}
}
