/* Memory windows, rules 44 and 46 to 48, in virtual time: node 1 has the memory and the windows, node 0 uses
 * them.
 *
 * The first argument or VB_SEEDS: how many seeds of the run over a bad wire (40; 1000 with VERBENA_SOAK);
 * the second argument: the first of them. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "seeds.h"
#include "sim.h"

#define CFG SIM_CFG
#define OK  IBV_WC_SUCCESS

enum {
	RW = IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_ATOMIC,
	OWNER = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_MW_BIND, /* of the region: nothing remote by itself */
	SPAN = 64 << 10,
};

struct desk {
	struct sim *s;
	struct ibv_mr mr; /* node 1's region that takes windows: all its memory */
	struct vb_mw *mw; /* node 1's */
};

static void make_window(struct desk *d, struct vb_mw *mw, enum ibv_mw_type type)
{
	*mw = (struct vb_mw){.pd = &d->s->n[1].pd, .ibv = {.type = type}};
	assert_true(vb_mw_enter(&d->s->n[1].mws, mw));
}

static struct desk desk(const struct sim_cfg *cfg, enum ibv_mw_type type)
{
	struct desk d = {.s = sim_desk(cfg)};

	d.mr.lkey = sim_reg(d.s, 1, d.s->mem[1], SIM_MEM, OWNER);
	d.mw = malloc(sizeof *d.mw);
	assert_non_null(d.mw);
	make_window(&d, d.mw, type);
	return d;
}

static void leave(struct desk *d)
{
	vb_mw_leave(&d->s->n[1].mws, d->mw);
	free(d->mw);
	assert_int_equal(vb_key_tied(&d->s->n[1].keys, d->mr.lkey), 0);
	assert_int_equal(d->s->n[1].mws.count, 0);
	sim_free(d->s);
}

/* The R_Key of the window with this variant. */
static uint32_t rkey(const struct vb_mw *mw, uint32_t variant)
{
	return VB_KEY_REMOTE | mw->index << 8 | variant;
}

static uint64_t bind_to(struct desk *d, struct vb_mw *mw, uint32_t key, uint64_t addr, uint64_t len,
			unsigned access)
{
	struct ibv_send_wr wr = {
	    .wr_id = ++d->s->next_wr,
	    .opcode = IBV_WR_BIND_MW,
	    .send_flags = IBV_SEND_SIGNALED,
	    .bind_mw = {.mw = &mw->ibv,
			.rkey = key,
			.bind_info = {.mr = &d->mr, .addr = addr, .length = len, .mw_access_flags = access}}};

	assert_int_equal(sim_send(d->s, 1, &wr), 0);
	return wr.wr_id;
}

/* [at, at + len) of node 1's memory, done. */
static void bind(struct desk *d, uint32_t key, uint32_t at, uint32_t len, unsigned access)
{
	uint64_t id = bind_to(d, d->mw, key, (uintptr_t)d->s->mem[1] + at, len, access);
	struct ibv_wc wc;

	sim_settle(d->s);
	wc = sim_expect(d->s, 1, true, id, OK);
	assert_int_equal(wc.opcode, IBV_WC_BIND_MW);
}

static uint64_t invalidate(struct sim *s, unsigned n, enum ibv_wr_opcode op, uint32_t key)
{
	struct ibv_send_wr wr = {
	    .wr_id = ++s->next_wr, .opcode = op, .send_flags = IBV_SEND_SIGNALED, .invalidate_rkey = key};

	assert_int_equal(sim_send(s, n, &wr), 0);
	return wr.wr_id;
}

/* Node 0 uses a key of node 1. */
static uint64_t use(struct sim *s, enum ibv_wr_opcode op, uint32_t at, uint32_t len, uint32_t key,
		    uint64_t raddr)
{
	struct ibv_sge sge;
	struct ibv_send_wr wr = sim_wr(s, 0, op, at, len, 0, &sge);

	if (op == IBV_WR_ATOMIC_FETCH_AND_ADD) {
		wr.wr.atomic.remote_addr = raddr;
		wr.wr.atomic.rkey = key;
	} else {
		wr.wr.rdma.remote_addr = raddr;
		wr.wr.rdma.rkey = key;
	}
	assert_int_equal(sim_send(s, 0, &wr), 0);
	return wr.wr_id;
}

static void used(struct sim *s, enum ibv_wr_opcode op, uint32_t key, uint32_t to, uint32_t len,
		 enum ibv_wc_status status)
{
	uint64_t id = use(s, op, 0, len, key, (uintptr_t)s->mem[1] + to);

	sim_settle(s);
	sim_expect(s, 0, true, id, status);
}

static enum vb_reason why(const struct sim *s, unsigned n)
{
	return (enum vb_reason)s->n[n].qp.why.reason;
}

/* rules 46 to 48 of a transport that refuses nothing: what the window does not let through is dropped, and
 * counted as what it is; binding and taking back are this end's own, and fail as ever. */
static void rule_48_over_uc(void **state)
{
	struct desk d = desk(SIM_CFG(.family = VB_FAMILY_UC), IBV_MW_TYPE_2);
	struct vb_drops *drops = &d.s->n[1].drops;
	struct sim *s = d.s;
	uint64_t id;

	(void)state;
	sim_fill(s, 64);
	id = bind_to(&d, d.mw, rkey(d.mw, 1), (uintptr_t)s->mem[1] + 4096, 0, IBV_ACCESS_REMOTE_WRITE);
	sim_settle(s);
	sim_expect(s, 1, true, id, IBV_WC_MW_BIND_ERR);
	sim_modify(s, 1, IBV_QPS_RTS); /* from SQE */
	bind(&d, rkey(d.mw, 1), 4096, 64, IBV_ACCESS_REMOTE_WRITE);
	used(s, IBV_WR_RDMA_WRITE, rkey(d.mw, 1), 4096, 64, OK);
	assert_memory_equal(s->mem[1] + 4096, s->mem[0], 64);
	used(s, IBV_WR_RDMA_WRITE, rkey(d.mw, 1), 4097, 64, OK);
	assert_int_equal(drops->count[VB_R_KEY_BOUNDS], 1);
	assert_int_equal(s->mem[1][4096 + 64], 0);
	id = invalidate(s, 1, IBV_WR_LOCAL_INV, rkey(d.mw, 1));
	sim_settle(s);
	sim_expect(s, 1, true, id, OK);
	used(s, IBV_WR_RDMA_WRITE, rkey(d.mw, 1), 4096, 8, OK);
	assert_int_equal(drops->count[VB_R_KEY_STALE] + drops->count[VB_R_KEY_UNKNOWN], 1);
	assert_int_equal(s->n[1].qp.state, IBV_QPS_RTS);
	assert_int_equal(sim_event(s, 1), -1);
	leave(&d);
}

/* rule 47: what the region must have, by the flags of the request */
static void rule_47_access(void **state)
{
	static const struct {
		unsigned region, window;
		enum ibv_wc_status status;
	} rows[] = {
	    {OWNER | RW, RW, OK},
	    {IBV_ACCESS_MW_BIND, 0, OK},
	    {IBV_ACCESS_LOCAL_WRITE | RW, 0, IBV_WC_MW_BIND_ERR},
	    {IBV_ACCESS_MW_BIND, IBV_ACCESS_REMOTE_READ, OK},
	    {OWNER, IBV_ACCESS_REMOTE_WRITE, OK},
	    {IBV_ACCESS_MW_BIND, IBV_ACCESS_REMOTE_WRITE, IBV_WC_MW_BIND_ERR},
	    {OWNER, IBV_ACCESS_REMOTE_ATOMIC, OK},
	    {IBV_ACCESS_MW_BIND, IBV_ACCESS_REMOTE_ATOMIC, IBV_WC_MW_BIND_ERR},
	    {IBV_ACCESS_MW_BIND | IBV_ACCESS_REMOTE_READ, RW, IBV_WC_MW_BIND_ERR},
	};

	(void)state;
	for (unsigned i = 0; i < 2 * sizeof rows / sizeof *rows; i++) {
		struct desk d = desk(CFG(.local = i & 1), i & 1 ? IBV_MW_TYPE_2 : IBV_MW_TYPE_1);
		uint64_t id;

		d.mr.lkey = sim_reg(d.s, 1, d.s->mem[1], SIM_MEM, rows[i / 2].region);
		id = bind_to(&d, d.mw, 7, (uintptr_t)d.s->mem[1], 64, rows[i / 2].window);
		sim_settle(d.s);
		sim_expect(d.s, 1, true, id, rows[i / 2].status);
		assert_int_equal(d.s->n[1].qp.state, rows[i / 2].status ? IBV_QPS_ERR : IBV_QPS_RTS);
		if (rows[i / 2].status)
			assert_int_equal(why(d.s, 1), VB_R_BIND_ACCESS);
		leave(&d);
	}
}

/* ... and the window permits what it was bound for, nothing else, whatever the region permits */
static void rule_47_window_access(void **state)
{
	static const struct {
		enum ibv_wr_opcode op;
		unsigned access;
	} rows[] = {{IBV_WR_RDMA_WRITE, IBV_ACCESS_REMOTE_WRITE},
		    {IBV_WR_RDMA_READ, IBV_ACCESS_REMOTE_READ},
		    {IBV_WR_ATOMIC_FETCH_AND_ADD, IBV_ACCESS_REMOTE_ATOMIC}};

	(void)state;
	for (unsigned i = 0; i < 6; i++) {
		struct desk d = desk(CFG(.local = true), i & 1 ? IBV_MW_TYPE_2 : IBV_MW_TYPE_1);
		uint32_t key = rkey(d.mw, 9);

		bind(&d, key, 64, 64, rows[i / 2].access);
		used(d.s, rows[i / 2].op, key, 64, 8, OK);
		assert_int_equal(vb_key_tied(&d.s->n[1].keys, d.mr.lkey), 1);
		leave(&d);
		d = desk(CFG(.local = true), i & 1 ? IBV_MW_TYPE_2 : IBV_MW_TYPE_1);
		key = rkey(d.mw, 9);
		bind(&d, key, 64, 64, RW & ~rows[i / 2].access);
		used(d.s, rows[i / 2].op, key, 64, 8, IBV_WC_REM_ACCESS_ERR);
		assert_int_equal(why(d.s, 0), VB_R_KEY_ACCESS);
		leave(&d);
	}
}

/* rules 19, 47: the window lies in its region, and accesses in the window */
static void rule_47_range(void **state)
{
	static const struct {
		int64_t at;
		uint64_t len;
		enum ibv_wc_status status;
	} rows[] = {
	    {0, SIM_MEM, OK},
	    {SIM_MEM - 1, 1, OK},
	    {-1, 1, IBV_WC_MW_BIND_ERR},
	    {-1, SIM_MEM, IBV_WC_MW_BIND_ERR},
	    {0, SIM_MEM + 1, IBV_WC_MW_BIND_ERR},
	    {1, SIM_MEM, IBV_WC_MW_BIND_ERR},
	    {SIM_MEM, 1, IBV_WC_MW_BIND_ERR},
	    {8, UINT64_MAX, IBV_WC_MW_BIND_ERR},
	    {8, UINT64_MAX - 7, IBV_WC_MW_BIND_ERR},
	    {INT64_MIN, 1ull << 63, IBV_WC_MW_BIND_ERR},
	};

	(void)state;
	for (unsigned i = 0; i < 2 * sizeof rows / sizeof *rows; i++) {
		struct desk d = desk(CFG(.local = true), i & 1 ? IBV_MW_TYPE_2 : IBV_MW_TYPE_1);
		uint64_t id = bind_to(&d, d.mw, 1, (uintptr_t)d.s->mem[1] + (uint64_t)rows[i / 2].at,
				      rows[i / 2].len, RW);

		sim_settle(d.s);
		sim_expect(d.s, 1, true, id, rows[i / 2].status);
		if (rows[i / 2].status)
			assert_int_equal(why(d.s, 1), VB_R_BIND_RANGE);
		leave(&d);
	}
	for (unsigned i = 0; i < 4; i++) { /* by one byte, at either end */
		struct desk d = desk(CFG(.local = true), IBV_MW_TYPE_2);

		bind(&d, 3, 128, 64, RW);
		used(d.s, i & 1 ? IBV_WR_RDMA_READ : IBV_WR_RDMA_WRITE, rkey(d.mw, 3), 128, 64, OK);
		used(d.s, i & 1 ? IBV_WR_RDMA_READ : IBV_WR_RDMA_WRITE, rkey(d.mw, 3), i & 2 ? 127 : 129, 64,
		     IBV_WC_REM_ACCESS_ERR);
		assert_int_equal(why(d.s, 0), VB_R_KEY_BOUNDS);
		leave(&d);
	}
}

/* rule 47: QP, window and region are of one protection domain */
static void rule_47_protection_domains(void **state)
{
	struct vb_pd other = {.id = 99};

	(void)state;
	for (unsigned i = 0; i < 4; i++) {
		struct desk d = desk(CFG(.local = true), i & 1 ? IBV_MW_TYPE_2 : IBV_MW_TYPE_1);
		uint64_t id;

		if (i & 2)
			d.mw->pd = &other;
		else
			d.mr.lkey = vb_key_publish(&d.s->n[1].keys,
						   &(struct vb_key_spec){.pd = other.id,
									 .access = OWNER,
									 .iova = (uintptr_t)d.s->mem[1],
									 .addr = (uintptr_t)d.s->mem[1],
									 .length = SIM_MEM});
		id = bind_to(&d, d.mw, 1, (uintptr_t)d.s->mem[1], 64, RW);
		sim_settle(d.s);
		sim_expect(d.s, 1, true, id, IBV_WC_MW_BIND_ERR);
		assert_int_equal(why(d.s, 1), VB_R_BIND_PD);
		leave(&d);
	}
}

/* rules 44, 47: any variant; a stale one is refused */
static void rule_47_any_key(void **state)
{
	struct desk d = desk(CFG(.local = true), IBV_MW_TYPE_2);

	(void)state;
	for (uint32_t k = 0; k < 256; k++) {
		uint32_t key = rkey(d.mw, k);
		uint64_t id;

		bind(&d, k & 1 ? key : 0x123400 | k, 0, 64,
		     RW); /* what stands above the low byte is nothing */
		used(d.s, IBV_WR_RDMA_WRITE, key, 0, 8, OK);
		id = invalidate(d.s, 1, IBV_WR_LOCAL_INV, key);
		sim_settle(d.s);
		assert_int_equal(sim_expect(d.s, 1, true, id, OK).opcode, IBV_WC_LOCAL_INV);
	}
	bind(&d, 5, 0, 64, RW);
	used(d.s, IBV_WR_RDMA_WRITE, rkey(d.mw, 6), 0, 8, IBV_WC_REM_ACCESS_ERR);
	assert_int_equal(why(d.s, 0), VB_R_KEY_STALE);
	leave(&d);
}

/* rule 47: the region and the window are looked up when the bind's turn has come, not before */
static void rule_47_gone_meanwhile(void **state)
{
	(void)state;
	for (unsigned i = 0; i < 4; i++) {
		struct desk d = desk(CFG(.local = true), i & 1 ? IBV_MW_TYPE_2 : IBV_MW_TYPE_1);
		struct vb_keys *keys = &d.s->n[1].keys;
		uint64_t read = sim_op(d.s, 1, IBV_WR_RDMA_READ, 0, 4096, 0);
		uint64_t id = bind_to(&d, d.mw, 1, (uintptr_t)d.s->mem[1], 64, RW);

		sim_expect_none(d.s, 1);
		if (i & 2) {
			vb_mw_leave(&d.s->n[1].mws, d.mw);
			make_window(&d, d.mw, IBV_MW_TYPE_2); /* perhaps at the same index */
		} else {
			uint32_t old = d.mr.lkey;

			assert_true(vb_key_close(keys, old));
			vb_key_retract(keys, old);
			vb_key_give(keys, old);
		}
		sim_settle(d.s);
		sim_expect(d.s, 1, true, read, OK);
		sim_expect(d.s, 1, true, id, IBV_WC_MW_BIND_ERR);
		assert_int_equal(why(d.s, 1), i & 2 ? VB_R_BIND_GONE : VB_R_BIND_REGION);
		vb_mw_leave(&d.s->n[1].mws, d.mw);
		free(d.mw);
		sim_free(d.s);
	}
}

/* rule 48: type 1 is bound again and again, each time under another key; length 0 unbinds */
static void rule_48_type_1(void **state)
{
	struct desk d = desk(CFG(.local = true), IBV_MW_TYPE_1);
	uint64_t id;

	(void)state;
	sim_fill(d.s, SIM_MEM);
	bind(&d, 1, 0, 64, RW);
	used(d.s, IBV_WR_RDMA_WRITE, rkey(d.mw, 1), 0, 64, OK);
	bind(&d, 2, 64, 64, IBV_ACCESS_REMOTE_WRITE);
	assert_int_equal(vb_key_tied(&d.s->n[1].keys, d.mr.lkey), 1);
	used(d.s, IBV_WR_RDMA_WRITE, rkey(d.mw, 2), 64, 64, OK);
	assert_memory_equal(d.s->mem[1] + 64, d.s->mem[0], 64);
	/* a bind that cannot be leaves the window as it is */
	id = bind_to(&d, d.mw, 3, (uintptr_t)d.s->mem[1] + SIM_MEM, 64, RW);
	sim_settle(d.s);
	sim_expect(d.s, 1, true, id, IBV_WC_MW_BIND_ERR);
	assert_int_equal(vb_key_tied(&d.s->n[1].keys, d.mr.lkey), 1);
	assert_int_equal(d.mw->state, VB_MW_BOUND);
	leave(&d);

	d = desk(CFG(.local = true), IBV_MW_TYPE_1);
	bind(&d, 1, 0, 64, RW);
	bind(&d, 2, 0, 0, 0);
	assert_int_equal(vb_key_tied(&d.s->n[1].keys, d.mr.lkey), 0);
	bind(&d, 3, 0, 0, RW); /* not bound: nothing to do */
	used(d.s, IBV_WR_RDMA_WRITE, rkey(d.mw, 1), 0, 64, IBV_WC_REM_ACCESS_ERR);
	assert_int_equal(why(d.s, 0), VB_R_KEY_STALE);
	leave(&d);
}

/* rule 48: type 2 has no length 0, is invalidated before it is bound again, and serves its QP alone */
static void rule_48_type_2(void **state)
{
	struct desk d = desk(CFG(.local = true), IBV_MW_TYPE_2);
	uint64_t id = bind_to(&d, d.mw, 1, (uintptr_t)d.s->mem[1], 0, RW);
	struct vb_facts f = {0};
	struct vb_mw_ask a;

	(void)state;
	sim_settle(d.s);
	sim_expect(d.s, 1, true, id, IBV_WC_MW_BIND_ERR);
	assert_int_equal(why(d.s, 1), VB_R_BIND_ZERO);
	leave(&d);

	for (unsigned same = 0; same < 2; same++) {
		d = desk(CFG(.local = true), IBV_MW_TYPE_2);
		bind(&d, 1, 0, 64, RW);
		id = bind_to(&d, d.mw, same ? 1 : 2, (uintptr_t)d.s->mem[1], 64, RW);
		sim_settle(d.s);
		sim_expect(d.s, 1, true, id, IBV_WC_MW_BIND_ERR);
		assert_int_equal(why(d.s, 1), VB_R_BIND_BOUND);
		assert_int_equal(d.mw->state, VB_MW_BOUND);
		leave(&d);
	}

	d = desk(CFG(.local = true), IBV_MW_TYPE_2);
	a = (struct vb_mw_ask){.id = d.mw->id,
			       .rkey = rkey(d.mw, 4),
			       .region = d.mr.lkey,
			       .access = RW,
			       .addr = (uintptr_t)d.s->mem[1],
			       .length = 64,
			       .pd = d.s->n[1].pd.id,
			       .qpn = SIM_QPN1 + 1};
	assert_int_equal(vb_mw_bind(&d.s->n[1].mws, &a, &f), VB_MW_DONE);
	used(d.s, IBV_WR_RDMA_WRITE, a.rkey, 0, 8, IBV_WC_REM_ACCESS_ERR);
	assert_int_equal(why(d.s, 0), VB_R_KEY_QP);
	/* that QP is destroyed: the key is dead for the next one of its number */
	vb_mw_qp_gone(&d.s->n[1].mws, SIM_QPN1 + 1);
	assert_int_equal(d.mw->state, VB_MW_FREE);
	assert_int_equal(vb_key_tied(&d.s->n[1].keys, d.mr.lkey), 0);
	leave(&d);
}

/* rule 48: zero-based windows are addressed from 0 */
static void rule_48_zero_based(void **state)
{
	struct desk d = desk(CFG(.local = true), IBV_MW_TYPE_2);
	uint64_t id;

	(void)state;
	sim_fill(d.s, SIM_MEM);
	bind(&d, 1, 1000, 64, RW | IBV_ACCESS_ZERO_BASED);
	id = use(d.s, IBV_WR_RDMA_WRITE, 0, 64, rkey(d.mw, 1), 0);
	sim_settle(d.s);
	sim_expect(d.s, 0, true, id, OK);
	assert_memory_equal(d.s->mem[1] + 1000, d.s->mem[0], 64);
	id = use(d.s, IBV_WR_RDMA_READ, 4096, 1, rkey(d.mw, 1), 64);
	sim_settle(d.s);
	sim_expect(d.s, 0, true, id, IBV_WC_REM_ACCESS_ERR);
	assert_int_equal(why(d.s, 0), VB_R_KEY_BOUNDS);
	leave(&d);
}

/* rule 46: what cannot be invalidated, by this end and by the peer */
static void rule_46_what_is_no_window(void **state)
{
	enum { REGION, LKEY, NOTHING, TYPE_1, UNBOUND, VARIANT, TWICE, OTHER_QP, WRONGS };
	static const enum vb_reason reasons[] = {
	    [REGION] = VB_R_KEY_NOT_WINDOW, [LKEY] = VB_R_KEY_NOT_WINDOW, [NOTHING] = VB_R_KEY_NOT_WINDOW,
	    [TYPE_1] = VB_R_INV_TYPE,	    [UNBOUND] = VB_R_INV_KEY,	  [VARIANT] = VB_R_INV_KEY,
	    [TWICE] = VB_R_INV_KEY,	    [OTHER_QP] = VB_R_INV_QP,
	};

	(void)state;
	for (unsigned i = 0; i < 2 * WRONGS; i++) {
		unsigned wrong = i / 2, peer = i & 1;
		struct desk d = desk(CFG(.local = true), wrong == TYPE_1 ? IBV_MW_TYPE_1 : IBV_MW_TYPE_2);
		uint32_t key = rkey(d.mw, 1);
		uint64_t id, recv = 0;
		char sentence[512];

		if (wrong != UNBOUND)
			bind(&d, 1, 0, 64, RW);
		if (wrong == REGION)
			key = sim_rkey(d.s->lkey[1]);
		if (wrong == LKEY)
			key = d.s->lkey[1];
		if (wrong == NOTHING)
			key = VB_KEY_REMOTE | 63 << 8;
		if (wrong == VARIANT)
			key ^= 0x40;
		if (wrong == OTHER_QP)
			d.mw->qpn++;
		if (wrong == TWICE) {
			id = invalidate(d.s, 1, IBV_WR_LOCAL_INV, key);
			sim_settle(d.s);
			sim_expect(d.s, 1, true, id, OK);
		}
		if (peer) {
			recv = sim_take(d.s, 1, 0, 64);
			id = invalidate(d.s, 0, IBV_WR_SEND_WITH_INV, key);
			sim_settle(d.s);
			sim_expect(d.s, 0, true, id, IBV_WC_REM_ACCESS_ERR);
			sim_expect(d.s, 1, false, recv, IBV_WC_WR_FLUSH_ERR);
			assert_int_equal(sim_event(d.s, 1), IBV_EVENT_QP_ACCESS_ERR);
			assert_int_equal(why(d.s, 0), reasons[wrong]);
		} else {
			id = invalidate(d.s, 1, IBV_WR_LOCAL_INV, key);
			sim_settle(d.s);
			sim_expect(d.s, 1, true, id, IBV_WC_MW_BIND_ERR);
		}
		assert_int_equal(why(d.s, 1), reasons[wrong]);
		vb_reason_say(sentence, sizeof sentence, &d.s->n[1].qp.why);
		assert_non_null(strstr(sentence, "cannot be invalidated"));
		if (wrong != UNBOUND && wrong != TWICE)
			assert_int_equal(d.mw->state, VB_MW_BOUND);
		leave(&d);
	}
}

/* rule 46: SEND with invalidate; once, however often its packets come */
static void rule_46_send_with_invalidate(void **state)
{
	static const struct {
		unsigned from, opcode, nth;
	} losses[] = {{0, 0xfff, 0},
		      {0, VB_RC_SEND_ONLY_INV, 0},
		      {1, VB_RC_ACK, 0},
		      {0, VB_RC_SEND_LAST_INV, 0},
		      {0, VB_RC_SEND_FIRST, 0}};

	(void)state;
	for (unsigned i = 0; i < 2 * sizeof losses / sizeof *losses; i++) {
		struct desk d = desk(CFG(.mtu = 256), IBV_MW_TYPE_2);
		uint32_t len = i & 1 ? 1000 : 16, key = rkey(d.mw, 1);
		struct ibv_send_wr wr;
		struct ibv_sge sge;
		struct ibv_wc wc;
		uint64_t recv = sim_take(d.s, 1, 4096, 4096), id;

		sim_fill(d.s, SIM_MEM);
		bind(&d, 1, 0, 64, RW);
		sim_drop(d.s, losses[i / 2].from, losses[i / 2].opcode, losses[i / 2].nth);
		wr = sim_wr(d.s, 0, IBV_WR_SEND_WITH_INV, 0, len, 0, &sge);
		wr.invalidate_rkey = key;
		assert_int_equal(sim_send(d.s, 0, &wr), 0);
		while (!sim_poll(d.s, 1, false, &wc)) /* up to the moment that the far end knows */
			assert_true(sim_step(d.s));
		assert_int_equal(wc.wr_id, recv);
		assert_int_equal(wc.status, OK);
		assert_int_equal(wc.byte_len, len);
		assert_int_equal(wc.wc_flags, IBV_WC_WITH_INV);
		assert_int_equal(wc.invalidated_rkey, key);
		assert_int_equal(d.mw->state, VB_MW_FREE);
		assert_memory_equal(d.s->mem[1] + 4096, d.s->mem[0], len);
		/* bound again under the same key: what is repeated of the SEND is none of its business */
		id = bind_to(&d, d.mw, 1, (uintptr_t)d.s->mem[1], 64, RW);
		sim_settle(d.s);
		sim_expect(d.s, 1, true, id, OK);
		sim_expect(d.s, 0, true, wr.wr_id, OK);
		assert_int_equal(d.mw->state, VB_MW_BOUND);
		used(d.s, IBV_WR_RDMA_WRITE, key, 0, 8, OK);
		leave(&d);
	}
}

/* rule 46: not before there is a receive request, nor before the last packet */
static void rule_46_in_its_turn(void **state)
{
	struct desk d = desk(CFG(.mtu = 256), IBV_MW_TYPE_2);
	struct vb_pkt p = {.opcode = VB_RC_SEND_FIRST, .psn = 100};
	uint32_t key = rkey(d.mw, 1);
	uint8_t payload[256] = {0};
	uint64_t id, recv;

	(void)state;
	bind(&d, 1, 0, 64, RW);
	id = invalidate(d.s, 0, IBV_WR_SEND_WITH_INV, key);
	sim_run_for(d.s, 100 * VB_USEC); /* RNR */
	assert_int_equal(d.mw->state, VB_MW_BOUND);
	recv = sim_take(d.s, 1, 0, 0);
	sim_settle(d.s);
	sim_expect(d.s, 0, true, id, OK);
	sim_expect(d.s, 1, false, recv, OK);
	assert_int_equal(d.mw->state, VB_MW_FREE);
	leave(&d);

	d = desk(CFG(.mtu = 256), IBV_MW_TYPE_2);
	bind(&d, 1, 0, 64, RW);
	sim_take(d.s, 1, 0, 4096);
	sim_inject(d.s, 1, &p, payload, 256);
	assert_int_equal(d.mw->state, VB_MW_BOUND);
	p = (struct vb_pkt){.opcode = VB_RC_SEND_LAST_INV, .psn = 101, .inv_rkey = key};
	sim_inject(d.s, 1, &p, payload, 8);
	assert_int_equal(d.mw->state, VB_MW_FREE);
	leave(&d);
}

/* rules 5, 46: a READ through the window is over before a SEND takes the window away, even if it has to be
 * asked for again */
static void rule_46_after_reads(void **state)
{
	(void)state;
	for (unsigned nth = 0; nth < 6; nth++) {
		struct desk d = desk(CFG(.mtu = 256), IBV_MW_TYPE_2);
		uint32_t key = rkey(d.mw, 1);
		uint64_t recv = sim_take(d.s, 1, 0, 0), read, id;

		sim_fill(d.s, SIM_MEM);
		bind(&d, 1, 0, 2048, RW);
		sim_drop(d.s, 1, nth ? VB_RC_READ_RESP_MIDDLE : VB_RC_READ_RESP_FIRST, nth ? nth - 1 : 0);
		read = use(d.s, IBV_WR_RDMA_READ, 4096, 2048, key, (uintptr_t)d.s->mem[1]);
		id = invalidate(d.s, 0, IBV_WR_SEND_WITH_INV, key);
		sim_settle(d.s);
		sim_expect(d.s, 0, true, read, OK);
		sim_expect(d.s, 0, true, id, OK);
		sim_expect(d.s, 1, false, recv, OK);
		assert_memory_equal(d.s->mem[0] + 4096, d.s->mem[1], 2048);
		leave(&d);
	}
}

/* rule 46: a READ that comes a second time after that, held up on its way, is refused and does no harm */
static void rule_46_late_duplicate(void **state)
{
	struct desk d = desk(CFG(.local = true), IBV_MW_TYPE_2);
	uint32_t key = rkey(d.mw, 1);
	uint64_t recv = sim_take(d.s, 1, 0, 0), id;
	struct vb_pkt p = {.opcode = VB_RC_READ_REQUEST,
			   .psn = 100,
			   .ack_req = true,
			   .rkey = key,
			   .va = (uintptr_t)d.s->mem[1],
			   .dma_len = 64};

	(void)state;
	bind(&d, 1, 0, 64, RW);
	used(d.s, IBV_WR_RDMA_READ, key, 0, 64, OK);
	id = invalidate(d.s, 0, IBV_WR_SEND_WITH_INV, key);
	sim_settle(d.s);
	sim_expect(d.s, 0, true, id, OK);
	sim_expect(d.s, 1, false, recv, OK);
	sim_inject(d.s, 1, &p, NULL, 0);
	sim_settle(d.s);
	assert_int_equal(sim_find(d.s, 1, VB_RC_ACK, 1)->p.syndrome, VB_AETH_NAK_REMOTE_ACCESS);
	assert_int_equal(d.s->n[1].qp.state, IBV_QPS_RTS);
	assert_int_equal(sim_event(d.s, 1), -1);
	used(d.s, IBV_WR_RDMA_WRITE, sim_rkey(d.s->lkey[1]), 0, 8, OK); /* both go on */
	leave(&d);
}

/* rule 9: an invalidation waits for everything before it, and what is behind it for it */
static void rule_9_in_order(void **state)
{
	struct desk d = desk(CFG(.local = true), IBV_MW_TYPE_2);
	uint64_t w, inv, bound, recv, send;
	struct ibv_wc wc;

	(void)state;
	bind(&d, 1, 0, 64, RW);
	recv = sim_take(d.s, 0, 0, 0);
	sim_drop(d.s, 0, VB_RC_ACK, 0);
	w = sim_op(d.s, 1, IBV_WR_RDMA_WRITE, 0, 8, 0);
	inv = invalidate(d.s, 1, IBV_WR_LOCAL_INV, rkey(d.mw, 1));
	bound = bind_to(&d, d.mw, 2, (uintptr_t)d.s->mem[1], 64, RW);
	send = sim_op(d.s, 1, IBV_WR_SEND, 0, 0, 0);
	while (!sim_poll(d.s, 1, true, &wc)) {
		assert_int_equal(d.mw->key, d.mw->index << 8 | 1);
		assert_int_equal(d.mw->state, VB_MW_BOUND);
		assert_true(sim_step(d.s));
	}
	assert_int_equal(wc.wr_id, w);
	sim_settle(d.s);
	sim_expect(d.s, 1, true, inv, OK);
	sim_expect(d.s, 1, true, bound, OK);
	sim_expect(d.s, 1, true, send, OK);
	sim_expect(d.s, 0, false, recv, OK);
	used(d.s, IBV_WR_RDMA_WRITE, rkey(d.mw, 2), 0, 8, OK);
	leave(&d);
}

/* rule 46: the key is dead at once; the request completes when nobody is in the middle of a copy, also if its
 * QP has failed meanwhile.  If it is reset, the window is free as soon as somebody asks. */
static void rule_46_waits_for_users(void **state)
{
	enum { LOCAL_INV, REBIND, UNBIND, FAILED, FAILED_REBIND, RESET, WAYS };

	(void)state;
	for (unsigned way = 0; way < WAYS; way++) {
		bool rebind = way == REBIND || way == FAILED_REBIND, type_1 = rebind || way == UNBIND;
		struct desk d = desk(CFG(.local = true), type_1 ? IBV_MW_TYPE_1 : IBV_MW_TYPE_2);
		struct vb_keys *keys = &d.s->n[1].keys;
		struct vb_mem_want w = {.key = rkey(d.mw, 1),
					.remote = true,
					.access = IBV_ACCESS_REMOTE_WRITE,
					.qpn = SIM_QPN1,
					.pd = d.s->n[1].pd.id,
					.addr = (uintptr_t)d.s->mem[1],
					.len = 8};
		struct vb_mem_use u;
		uint64_t id, behind;

		bind(&d, 1, 0, 64, RW);
		assert_int_equal(vb_mem_begin(keys, &u, &w, NULL), VB_OK);
		if (type_1)
			id = bind_to(&d, d.mw, 2, (uintptr_t)d.s->mem[1], rebind ? 64 : 0, RW);
		else
			id = invalidate(d.s, 1, IBV_WR_LOCAL_INV, w.key);
		behind = invalidate(d.s, 1, IBV_WR_LOCAL_INV, w.key);
		sim_run_for(d.s, 10 * VB_MSEC);
		sim_expect_none(d.s, 1);
		assert_int_equal(vb_mem_check(keys, &w, NULL), VB_R_KEY_STALE);
		assert_false(vb_key_close(keys, d.mr.lkey)); /* rule 49 */
		if (way == FAILED || way == FAILED_REBIND) {
			sim_modify(d.s, 1, IBV_QPS_ERR);
			invalidate(d.s, 1, IBV_WR_LOCAL_INV, w.key);
			sim_run_for(d.s, 10 * VB_MSEC);
			sim_expect_none(d.s, 1);
		}
		if (way == RESET) {
			sim_modify(d.s, 1, IBV_QPS_RESET);
			vb_mem_end(&u);
			vb_mw_let_go(&d.s->n[1].mws, d.mr.lkey);
		} else {
			vb_mem_end(&u);
			sim_settle(d.s);
			sim_expect(d.s, 1, true, id, OK);
			sim_expect(d.s, 1, true, behind,
				   way >= FAILED ? IBV_WC_WR_FLUSH_ERR : IBV_WC_MW_BIND_ERR);
		}
		assert_int_equal(vb_key_tied(keys, d.mr.lkey), rebind);
		leave(&d);
	}
}

/* rules 11, 30: in the queue like any other: flushed in order, not begun in SQD */
static void rule_30_flush(void **state)
{
	struct desk d = desk(CFG(.local = true), IBV_MW_TYPE_2);
	uint64_t a, b;

	(void)state;
	sim_modify(d.s, 1, IBV_QPS_SQD);
	a = bind_to(&d, d.mw, 1, (uintptr_t)d.s->mem[1], 64, RW);
	b = invalidate(d.s, 1, IBV_WR_LOCAL_INV, rkey(d.mw, 1));
	sim_settle(d.s);
	sim_expect_none(d.s, 1);
	assert_int_equal(d.mw->state, VB_MW_FREE);
	sim_modify(d.s, 1, IBV_QPS_ERR);
	sim_expect(d.s, 1, true, a, IBV_WC_WR_FLUSH_ERR);
	sim_expect(d.s, 1, true, b, IBV_WC_WR_FLUSH_ERR);
	a = bind_to(&d, d.mw, 1, (uintptr_t)d.s->mem[1], 64, RW);
	sim_expect(d.s, 1, true, a, IBV_WC_WR_FLUSH_ERR);
	assert_int_equal(d.mw->state, VB_MW_FREE);
	leave(&d);
}

/* As a post does, whether or not anything is owed. */
static void output(struct sim *s)
{
	vb_lock_take(&s->n[1].qp.lock);
	s->n[1].qp.transport->output(&s->n[1].qp.path, 0);
	vb_lock_give(&s->n[1].qp.lock);
}

/* In SQD nothing that was posted is begun, and it goes on in RTS. */
static void waiting_in_sqd(void **state)
{
	struct desk d = desk(CFG(.local = true), IBV_MW_TYPE_2);
	uint64_t bound, gone;

	(void)state;
	sim_modify(d.s, 1, IBV_QPS_SQD);
	bound = bind_to(&d, d.mw, rkey(d.mw, 1), (uintptr_t)d.s->mem[1], 64, RW);
	output(d.s);
	sim_settle(d.s);
	sim_expect_none(d.s, 1);
	assert_int_equal(vb_key_tied(&d.s->n[1].keys, d.mr.lkey), 0);
	sim_modify(d.s, 1, IBV_QPS_RTS);
	sim_settle(d.s);
	sim_expect(d.s, 1, true, bound, OK);
	sim_modify(d.s, 1, IBV_QPS_SQD);
	gone = invalidate(d.s, 1, IBV_WR_LOCAL_INV, rkey(d.mw, 1));
	output(d.s);
	sim_settle(d.s);
	sim_expect_none(d.s, 1);
	used(d.s, IBV_WR_RDMA_WRITE, rkey(d.mw, 1), 0, 8, OK); /* still bound */
	sim_modify(d.s, 1, IBV_QPS_RTS);
	sim_settle(d.s);
	sim_expect(d.s, 1, true, gone, OK);
	assert_int_equal(vb_key_tied(&d.s->n[1].keys, d.mr.lkey), 0);
	leave(&d);
}

/* No peer is needed to bind a window: without a way out it is carried out all the same. */
static void without_contact(void **state)
{
	struct desk d = desk(CFG(.local = true), IBV_MW_TYPE_1);

	(void)state;
	vb_lock_take(&d.s->n[1].qp.lock);
	d.s->n[1].qp.transport->path(&d.s->n[1].qp.path, NULL);
	vb_lock_give(&d.s->n[1].qp.lock);
	bind(&d, 1, 0, 64, RW);
	bind(&d, 2, 0, 0, 0);
	assert_int_equal(d.s->n[1].qp.state, IBV_QPS_RTS);
	leave(&d);
}

/* Bound, written and read through, and taken back, again and again, over a bad wire: everything happens once.
 */
static void round_trips(struct desk *d, unsigned round)
{
	struct sim *s = d->s;
	uint32_t at = sim_below(s, SPAN), len = 1 + sim_below(s, 8000), key = rkey(d->mw, round & 0xff);
	uint32_t read = 64 << 10, source = 1024 + sim_below(s, 4096);
	bool peer = sim_below(s, 2);
	uint8_t before = s->mem[1][at + len];
	uint64_t recv = sim_take(s, 1, SIM_MEM - 4096, 4096), id[3];

	memset(s->mem[0] + source, (int)(1 + round % 255), len);
	bind(d, key, at, len, RW);
	id[0] = use(s, IBV_WR_RDMA_WRITE, source, len, key, (uintptr_t)s->mem[1] + at);
	id[1] = use(s, IBV_WR_RDMA_READ, read, len, key, (uintptr_t)s->mem[1] + at);
	id[2] = peer ? invalidate(s, 0, IBV_WR_SEND_WITH_INV, key) : sim_op(s, 0, IBV_WR_SEND, 0, 16, 0);
	sim_settle(s);
	for (int i = 0; i < 3; i++)
		sim_expect(s, 0, true, id[i], OK);
	assert_int_equal(sim_expect(s, 1, false, recv, OK).wc_flags, peer ? IBV_WC_WITH_INV : 0);
	assert_memory_equal(s->mem[1] + at, s->mem[0] + source, len);
	assert_memory_equal(s->mem[0] + read, s->mem[0] + source, len);
	assert_int_equal(s->mem[1][at + len], before);
	if (!peer) {
		id[0] = invalidate(s, 1, IBV_WR_LOCAL_INV, key);
		sim_settle(s);
		sim_expect(s, 1, true, id[0], OK);
	}
	assert_int_equal(vb_key_tied(&s->n[1].keys, d->mr.lkey), 0);
}

static void over_a_bad_wire(void **state)
{
	(void)state;
	for_each_seed()
	{
		uint64_t seed = seeds.current;
		struct desk d =
		    desk(CFG(.seed = seed, .mtu = 1024u << seed % 3, .loss = 60, .dup = 60, .late = 60,
			     .retry_cnt = 7, .lazy_acks = seed & 1, .local = seed & 2),
			 IBV_MW_TYPE_2);

		d.s->filter = NULL;
		for (unsigned round = 0; round < 12; round++)
			round_trips(&d, round * 37 + seed);
		leave(&d);
	}
}

int main(int argc, char **argv)
{
	const struct CMUnitTest tests[] = {
	    cmocka_unit_test(rule_48_over_uc),
	    cmocka_unit_test(rule_47_access),
	    cmocka_unit_test(rule_47_window_access),
	    cmocka_unit_test(rule_47_range),
	    cmocka_unit_test(rule_47_protection_domains),
	    cmocka_unit_test(rule_47_any_key),
	    cmocka_unit_test(rule_47_gone_meanwhile),
	    cmocka_unit_test(rule_48_type_1),
	    cmocka_unit_test(rule_48_type_2),
	    cmocka_unit_test(rule_48_zero_based),
	    cmocka_unit_test(rule_46_what_is_no_window),
	    cmocka_unit_test(rule_46_send_with_invalidate),
	    cmocka_unit_test(rule_46_in_its_turn),
	    cmocka_unit_test(rule_46_after_reads),
	    cmocka_unit_test(rule_46_late_duplicate),
	    cmocka_unit_test(rule_46_waits_for_users),
	    cmocka_unit_test(rule_9_in_order),
	    cmocka_unit_test(rule_30_flush),
	    cmocka_unit_test(waiting_in_sqd),
	    cmocka_unit_test(without_contact),
	    cmocka_unit_test_teardown(over_a_bad_wire, seeds_tell),
	};

	seeds_choose(argc, argv, 40);
	return cmocka_run_group_tests(tests, NULL, NULL);
}
