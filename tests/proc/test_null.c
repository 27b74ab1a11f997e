/* A null region reads as zeros and loses what is written to it, in every local role, alone and beside
 * ordinary memory; no peer can use it.  Between two processes, by direct placement (which leaves such
 * requests to the ring) and without.
 */
#include "pair.h"

enum { ALL_ONES = 0xff };

/* --- the target's */

static struct ibv_mr *nothing;
static uint8_t *sink;
static struct ibv_mr *sink_mr;

static void make_nothing(struct kit_pair *d)
{
	nothing = ibv_alloc_null_mr(d->pd);
	sink = calloc(1, KIT_DUO_SIZE);
	CHECK(nothing && sink);
	sink_mr = ibv_reg_mr(d->pd, sink, KIT_DUO_SIZE, KIT_ALL);
	CHECK(sink_mr);
	d->board->out[0] = nothing->lkey;
	d->board->out[1] = sink_mr->rkey;
	d->board->out[2] = (int64_t)(uintptr_t)sink;
}

static void drop_nothing(struct kit_pair *d)
{
	(void)d;
	CHECK(!ibv_dereg_mr(nothing) && !ibv_dereg_mr(sink_mr));
	free(sink);
}

static void fill_sink(struct kit_pair *d)
{
	memset(sink, (int)d->board->in[0], KIT_DUO_SIZE);
}

/* in: from, to, value; out: whether all of it is that */
static void look_at_sink(struct kit_pair *d)
{
	const int64_t *in = d->board->in;

	d->board->out[0] = 1;
	for (int64_t i = in[0]; i < in[1]; i++)
		d->board->out[0] &= sink[i] == (uint8_t)in[2];
}

/* in: bytes into the sink's beginning, then into nothing, then into the sink at 4096 */
static void post_recv(struct kit_pair *d)
{
	struct ibv_sge list[3] = {{(uintptr_t)sink, (uint32_t)d->board->in[0], sink_mr->lkey},
				  {0x1234, (uint32_t)d->board->in[1], nothing->lkey},
				  {(uintptr_t)sink + 4096, (uint32_t)d->board->in[2], sink_mr->lkey}};
	struct ibv_sge two[2];
	struct ibv_recv_wr wr = {.wr_id = 7, .sg_list = two}, *bad;

	for (int i = 0; i < 3; i++) /* queues of two */
		if (list[i].length)
			two[wr.num_sge++] = list[i];
	CHECK(!ibv_post_recv(d->end[0].qp, &wr, &bad));
}

static void wait_recv(struct kit_pair *d)
{
	struct ibv_wc wc = kit_wait(&d->end[0], 20);

	CHECK_EQ(wc.status, IBV_WC_SUCCESS);
	d->board->out[0] = wc.byte_len;
}

/* --- the initiator's */

static bool sink_is(struct kit_pair *d, int64_t from, int64_t to, uint8_t value)
{
	d->board->in[0] = from;
	d->board->in[1] = to;
	d->board->in[2] = value;
	kit_duo_there(d, look_at_sink);
	return d->board->out[0];
}

static void reset_sink(struct kit_pair *d, uint8_t value)
{
	d->board->in[0] = value;
	kit_duo_there(d, fill_sink);
}

static bool all(const uint8_t *p, size_t n, uint8_t value)
{
	for (size_t i = 0; i < n; i++)
		if (p[i] != value)
			return false;
	return true;
}

static struct ibv_mr *own;
static uint64_t raddr;
static uint32_t rkey, far_null;

static void begin(struct kit_pair *d)
{
	own = ibv_alloc_null_mr(d->pd);
	CHECK(own);
	kit_duo_there(d, make_nothing);
	far_null = (uint32_t)d->board->out[0];
	rkey = (uint32_t)d->board->out[1];
	raddr = (uint64_t)d->board->out[2];
}

static void end(struct kit_pair *d)
{
	kit_duo_there(d, drop_nothing);
	CHECK(!ibv_dereg_mr(own));
}

/* SEND and WRITE take zeros from it, at any address and any length. */
static void it_reads_as_zeros(struct kit_pair *d)
{
	static const uint32_t lens[] = {1, 7, 64, 4000, 40000};
	static const uint64_t addrs[] = {0, 12345, 1ull << 63, UINT64_MAX - 50000};

	begin(d);
	for (int i = 0; i < 5; i++)
		for (int k = 0; k < 4; k++) {
			reset_sink(d, ALL_ONES);
			CHECK(kit_duo_try(d, IBV_WR_RDMA_WRITE, addrs[k], lens[i], own->lkey, raddr, rkey) ==
			      IBV_WC_SUCCESS);
			CHECK(sink_is(d, 0, lens[i], 0) && sink_is(d, lens[i], KIT_DUO_SIZE, ALL_ONES));
			reset_sink(d, ALL_ONES);
			d->board->in[0] = 50000, d->board->in[1] = d->board->in[2] = 0;
			kit_duo_there(d, post_recv);
			CHECK(kit_duo_try(d, IBV_WR_SEND, addrs[k], lens[i], own->lkey, 0, 0) ==
			      IBV_WC_SUCCESS);
			kit_duo_there(d, wait_recv);
			CHECK(d->board->out[0] == lens[i]);
			CHECK(sink_is(d, 0, lens[i], 0) && sink_is(d, lens[i], KIT_DUO_SIZE, ALL_ONES));
		}
	end(d);
}

/* READs and atomics leave nothing in it; an atomic is carried out all the same. */
static void it_loses_what_is_written(struct kit_pair *d)
{
	begin(d);
	reset_sink(d, 0);
	CHECK(kit_duo_try(d, IBV_WR_RDMA_READ, 0, 1, own->lkey, raddr, rkey) == IBV_WC_SUCCESS);
	CHECK(kit_duo_try(d, IBV_WR_RDMA_READ, 77, 60000, own->lkey, raddr, rkey) == IBV_WC_SUCCESS);
	CHECK(kit_duo_try(d, IBV_WR_ATOMIC_FETCH_AND_ADD, 0, 8, own->lkey, raddr, rkey) == IBV_WC_SUCCESS);
	CHECK(kit_duo_try(d, IBV_WR_ATOMIC_CMP_AND_SWP, 3, 8, own->lkey, raddr, rkey) == IBV_WC_SUCCESS);
	CHECK(sink_is(d, 0, 1, 2) && sink_is(d, 1, 8, 0)); /* 0 + 1, then 1 is swapped for 2 */
	/* and what is read from it afterwards is still zero */
	reset_sink(d, ALL_ONES);
	CHECK(kit_duo_try(d, IBV_WR_RDMA_READ, 0, 64, own->lkey, raddr, rkey) == IBV_WC_SUCCESS);
	CHECK(kit_duo_try(d, IBV_WR_RDMA_WRITE, 0, 64, own->lkey, raddr, rkey) == IBV_WC_SUCCESS);
	CHECK(sink_is(d, 0, 64, 0) && sink_is(d, 64, KIT_DUO_SIZE, ALL_ONES));
	end(d);
}

/* A message that is wanted in part: the rest goes nowhere. */
static void a_receive_into_it(struct kit_pair *d)
{
	begin(d);
	memset(d->end[0].buf, 0x55, 9000);
	for (int i = 0; i < 3; i++) {
		int64_t before = i == 0 ? 0 : 1000, between = 3000, behind = i == 2 ? 0 : i == 1 ? 0 : 500;

		reset_sink(d, ALL_ONES);
		d->board->in[0] = before, d->board->in[1] = between, d->board->in[2] = behind;
		kit_duo_there(d, post_recv);
		CHECK(kit_duo_do(d, IBV_WR_SEND, (uint32_t)(before + between + behind), 0, 0) ==
		      IBV_WC_SUCCESS);
		kit_duo_there(d, wait_recv);
		CHECK(d->board->out[0] == before + between + behind);
		CHECK(sink_is(d, 0, before, 0x55) && sink_is(d, before, 4096, ALL_ONES));
		CHECK(sink_is(d, 4096, 4096 + behind, 0x55) &&
		      sink_is(d, 4096 + behind, KIT_DUO_SIZE, ALL_ONES));
	}
	end(d);
}

/* Beside ordinary memory in one list. */
static void beside_ordinary_memory(struct kit_pair *d)
{
	uint8_t *buf = d->end[0].buf;
	struct ibv_sge first[2] = {{(uintptr_t)buf, 100, d->end[0].mr->lkey}, {0, 29, own ? own->lkey : 0}};
	struct ibv_sge last[2];

	begin(d);
	first[1].lkey = own->lkey;
	last[0] = first[1];
	last[1] = first[0];
	for (int i = 0; i < 2; i++) {
		int64_t data = i ? 29 : 0;

		memset(buf, 0x66, 200);
		reset_sink(d, ALL_ONES);
		CHECK(kit_duo_list(d, IBV_WR_RDMA_WRITE, i ? last : first, 2, raddr, rkey) == IBV_WC_SUCCESS);
		CHECK(sink_is(d, data, data + 100, 0x66) && sink_is(d, i ? 0 : 100, i ? 29 : 129, 0));
		CHECK(sink_is(d, 129, 1000, ALL_ONES));
		reset_sink(d, 0x21);
		CHECK(kit_duo_list(d, IBV_WR_RDMA_READ, i ? last : first, 2, raddr, rkey) == IBV_WC_SUCCESS);
		CHECK(all(buf, 100, 0x21) && all(buf + 100, 100, 0x66));
	}
	end(d);
}

/* Its L_Key is no R_Key, nor is anything near it; another domain's queues cannot use it. */
static void no_peer_reaches_it(struct kit_pair *d)
{
	struct ibv_pd *other = ibv_alloc_pd(d->ctx);
	struct ibv_mr *foreign;

	begin(d);
	CHECK(other);
	foreign = ibv_alloc_null_mr(other);
	CHECK(foreign);
	for (int i = 0; i < 2; i++) {
		uint32_t key = i ? far_null : far_null | (rkey ^ (rkey & ~0x40000000u));

		CHECK(kit_duo_do(d, IBV_WR_RDMA_WRITE, 8, 0, key) == IBV_WC_REM_ACCESS_ERR);
		CHECK(kit_duo_do(d, IBV_WR_RDMA_READ, 8, 0, key) == IBV_WC_REM_ACCESS_ERR);
		CHECK(kit_duo_do(d, IBV_WR_ATOMIC_FETCH_AND_ADD, 8, 0, key) == IBV_WC_REM_ACCESS_ERR);
	}
	CHECK(kit_duo_try(d, IBV_WR_RDMA_WRITE, 0, 8, foreign->lkey, raddr, rkey) == IBV_WC_LOC_PROT_ERR);
	CHECK(kit_duo_try(d, IBV_WR_RDMA_READ, 0, 8, foreign->lkey, raddr, rkey) == IBV_WC_LOC_PROT_ERR);
	CHECK(!ibv_dereg_mr(foreign) && !ibv_dealloc_pd(other));
	end(d);
	/* deregistered, its key is nobody's */
	CHECK(kit_duo_try(d, IBV_WR_RDMA_WRITE, 0, 8, far_null, raddr, rkey) == IBV_WC_LOC_PROT_ERR);
}

/* Windows are for regions that peers could reach. */
static void no_window_can_be_bound(struct kit_pair *d)
{
	struct ibv_mw *mw[2] = {ibv_alloc_mw(d->pd, IBV_MW_TYPE_1), ibv_alloc_mw(d->pd, IBV_MW_TYPE_2)};
	struct ibv_mw_bind_info info = {.addr = 0, .length = 64, .mw_access_flags = IBV_ACCESS_REMOTE_READ};
	struct ibv_mw_bind bind;
	struct ibv_send_wr wr, *bad;
	int err;

	begin(d);
	CHECK(mw[0] && mw[1]);
	info.mr = own;
	bind = (struct ibv_mw_bind){.wr_id = 9, .send_flags = IBV_SEND_SIGNALED, .bind_info = info};
	wr = (struct ibv_send_wr){
	    .wr_id = 9,
	    .opcode = IBV_WR_BIND_MW,
	    .send_flags = IBV_SEND_SIGNALED,
	    .bind_mw = {.mw = mw[1], .rkey = ibv_inc_rkey(mw[1]->rkey), .bind_info = info}};
	for (int i = 0; i < 2; i++) {
		err = i ? ibv_post_send(d->end[0].qp, &wr, &bad) : ibv_bind_mw(d->end[0].qp, mw[0], &bind);
		if (!err) {
			CHECK_EQ(kit_wait(&d->end[0], 20).status, IBV_WC_MW_BIND_ERR);
			kit_duo_fresh(d);
		}
	}
	CHECK(!ibv_dealloc_mw(mw[0]) && !ibv_dealloc_mw(mw[1]));
	end(d);
}

int main(void)
{
	KIT_DUO_BOTH(it_reads_as_zeros);
	KIT_DUO_BOTH(it_loses_what_is_written);
	KIT_DUO_BOTH(a_receive_into_it);
	KIT_DUO_BOTH(beside_ordinary_memory);
	KIT_DUO_BOTH(no_peer_reaches_it);
	KIT_DUO_BOTH(no_window_can_be_bound);
	return 0;
}
