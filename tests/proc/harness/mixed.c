#include "mixed.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/ipc.h>
#include <sys/shm.h>

enum {
	QPS = KIT_MIXED_QPS, /* per direction */
	SLICE = 96 << 10,    /* bytes of target memory per QP */
	DEPTH = 64,	     /* send queue */
	RDEPTH = 48,
	MSG = 80 << 10, /* longest SEND */
	SGES = 4,
	READS = 8,
	DATAGRAM = 4096, /* longest message of UD, */
	GRH = 40,	 /* which stands behind this */
	QKEY = 0x1234,
};

/* The queue pairs: two of their own, the second one with a window, one that receives from an SRQ, one of XRC,
 * and the unreliable types. */
enum { WINDOWED = 1, SHARED, CROSS, LOOSE, DATAGRAMS };
enum {
	WINDOWS = IBV_QP_EX_WITH_BIND_MW | IBV_QP_EX_WITH_SEND_WITH_INV,
	SENDS = IBV_QP_EX_WITH_SEND | IBV_QP_EX_WITH_SEND_WITH_IMM,
	WRITES = IBV_QP_EX_WITH_RDMA_WRITE | IBV_QP_EX_WITH_RDMA_WRITE_WITH_IMM,
	FETCHES = IBV_QP_EX_WITH_RDMA_READ | IBV_QP_EX_WITH_ATOMIC_CMP_AND_SWP |
		  IBV_QP_EX_WITH_ATOMIC_FETCH_AND_ADD,
	TO_RTR = IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN,
	TO_RTR_ACKED = TO_RTR | IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER,
	TO_RTS = IBV_QP_STATE | IBV_QP_SQ_PSN,
	TO_RTS_ACKED =
	    TO_RTS | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY | IBV_QP_MAX_QP_RD_ATOMIC,
};
static const struct row {
	enum ibv_qp_type type;
	uint64_t ops;
	int rtr, rts; /* attributes */
} rows[QPS] = {
    {IBV_QPT_RC, SENDS | WRITES | FETCHES, TO_RTR_ACKED, TO_RTS_ACKED},
    [WINDOWED] = {IBV_QPT_RC, SENDS | WRITES | FETCHES | WINDOWS, TO_RTR_ACKED, TO_RTS_ACKED},
    [SHARED] = {IBV_QPT_RC, SENDS | WRITES | FETCHES, TO_RTR_ACKED, TO_RTS_ACKED},
    [CROSS] = {IBV_QPT_XRC_SEND, SENDS | WRITES | FETCHES, TO_RTR_ACKED, TO_RTS_ACKED},
    [LOOSE] = {IBV_QPT_UC, SENDS | WRITES, TO_RTR, TO_RTS},
    [DATAGRAMS] = {IBV_QPT_UD, SENDS, IBV_QP_STATE, TO_RTS},
};

static bool may_lose(int q)
{
	return !(rows[q].ops & FETCHES);
}

static bool has_srq(int q)
{
	return q == SHARED || q == CROSS;
}

static _Thread_local const struct kit_mixed *mixed;
static _Thread_local int me;
static _Thread_local uint8_t gid_index;
static _Thread_local int qps; /* the first of the rows, those that are tried */

static void pattern(uint8_t *p, uint32_t n, uint64_t from)
{
	for (uint32_t i = 0; i < n; i += 8) {
		uint64_t v = kit_random(&from);

		memcpy(p + i, &v, n - i < 8 ? n - i : 8);
	}
}

static uint64_t sum(const uint8_t *p, uint32_t n)
{
	uint64_t h = 1469598103934665603ull;

	for (uint32_t i = 0; i < n; i++)
		h = (h ^ p[i]) * 1099511628211ull;
	return h;
}

enum kind { SEND, WRITE, READ, ATOMIC, BIND };

struct op { /* one posted request, until its completion or a later one's */
	uint64_t wr_id;
	enum kind kind;
	enum ibv_wr_opcode opcode;
	uint32_t length, at;
	uint64_t orig;	 /* expected atomic result */
	uint8_t *expect; /* READ */
	bool signaled;
};

struct flow {
	struct ibv_qp *qp;
	struct ibv_mr *slice, *buf;
	struct ibv_mr *source; /* KIT_READ_ONLY: buf's memory, mapped again, for reading only; else NULL */
	uint8_t *shadow;
	uint64_t seq, rng;
	struct op ops[DEPTH];
	uint32_t head, tail;   /* ops posted, ops known complete */
	uint32_t unsignaled;   /* since the last signalled one */
	struct ibv_qp *target; /* of XRC: what receives */
	struct ibv_ah *ah;     /* of UD */
	bool wrote;	       /* a WRITE was posted since the last message */
	bool fetched;	       /* a READ or atomic may be outstanding: what changes the slice must fence */
	uint32_t gone;	       /* the peer's window has this key no more */
	/* target side */
	uint64_t expected; /* messages so far, lost ones among them */
	uint64_t taken;	   /* receives */
	struct ibv_mw *mw;
	uint32_t key;	/* of mw, once it is bound */
	bool bind_soon; /* it is not bound */
};

static _Thread_local struct flow flows[QPS];
static _Thread_local unsigned files; /* in /dev/shm */
static _Thread_local struct ibv_context *ctx;
static _Thread_local struct ibv_pd *pd;
static _Thread_local struct ibv_cq *scq, *rcq;
static _Thread_local struct ibv_comp_channel *chan;
static _Thread_local struct ibv_srq *srq, *xsrq;
static _Thread_local struct ibv_xrcd *xrcd;
static _Thread_local struct ibv_mr *rmr;
static _Thread_local uint8_t *rbuf;
static _Thread_local uint64_t rrng;
static _Thread_local uint64_t events, lost;

static uint64_t message_seed(int from, int q, uint64_t seq)
{
	uint64_t s = mixed->seed + (uint64_t)from * 1000003 + (uint64_t)q * 7919 + seq * 104729;

	return kit_random(&s);
}

/* What SEND number seq is: both ends work it out alike. */
static void message(int from, int q, uint64_t seq, uint32_t *length, uint32_t *imm, int *kind)
{
	uint64_t s = message_seed(from, q, seq);
	uint32_t shape = kit_below(&s, 10);

	*length = shape < 2   ? 0
		  : shape < 6 ? kit_below(&s, 64)
		  : shape < 9 ? kit_below(&s, 5000)
			      : kit_below(&s, MSG + 1);
	*kind = (int)kit_below(&s, mixed->memory == KIT_READ_ONLY ? 2 : 3); /* 0 SEND, 1 SEND with immediate,
								2 WRITE with immediate */
	*imm = (uint32_t)kit_random(&s);
	if (rows[q].type == IBV_QPT_UD)
		*kind &= 1;
	if (!*kind && flows[q].mw)
		*kind = 3; /* a SEND that invalidates the window if there is one */
	if (*kind == 2 && *length > SLICE / (may_lose(q) ? 4 : 2))
		*length = SLICE / (may_lose(q) ? 4 : 2);
	if (rows[q].type == IBV_QPT_UD && *length > DATAGRAM)
		*length = DATAGRAM;
}

static void post_receive(int q)
{
	/* a slot of rbuf per receive WQE; wr_id names the slot */
	static _Thread_local uint64_t slot[QPS];
	uint64_t k = slot[q]++ % RDEPTH;
	uint8_t *at = rbuf + ((uint64_t)q * RDEPTH + k) * MSG;
	struct ibv_sge sge[SGES];
	uint32_t n = 1 + kit_below(&rrng, SGES), left = MSG;
	struct ibv_recv_wr wr = {.wr_id = (uint64_t)q << 32 | k, .sg_list = sge, .num_sge = (int)n}, *bad;

	for (uint32_t i = 0; i < n; i++) {
		uint32_t len = i == n - 1 ? left : kit_below(&rrng, left / 2);

		sge[i] = (struct ibv_sge){(uintptr_t)at, len, rmr->lkey};
		at += len;
		left -= len;
	}
	if (has_srq(q))
		CHECK(ibv_post_srq_recv(q == CROSS ? xsrq : srq, &wr, &bad) == 0);
	else
		CHECK(ibv_post_recv(flows[q].qp, &wr, &bad) == 0);
}

static uint32_t split(uint64_t *rng, struct ibv_sge *sge, uint8_t *at, uint32_t length, uint32_t lkey)
{
	uint32_t n = 1 + kit_below(rng, SGES);

	for (uint32_t i = 0; i < n; i++) {
		uint32_t len = i == n - 1 ? length : kit_below(rng, length + 1);

		sge[i] = (struct ibv_sge){(uintptr_t)at, len, lkey};
		at += len;
		length -= len;
	}
	return n;
}

/* Of the peer's slice, or of the window over it. */
static uint32_t key_of(struct flow *f, const struct kit_mixed_card *peer, int q)
{
	uint32_t key = f->mw ? atomic_load(&peer->window) : 0;

	return key && key != f->gone && kit_below(&f->rng, 2) ? key : peer->rkey[q];
}

static void fill_target_op(struct flow *f, struct op *o, struct ibv_send_wr *wr,
			   const struct kit_mixed_card *peer, int q, uint8_t *local)
{
	uint64_t *r = &f->rng;

	wr->wr.rdma.rkey = key_of(f, peer, q);
	if (o->kind == ATOMIC) {
		uint64_t cur, arg = kit_random(r);

		o->length = 8;
		o->at = kit_below(r, SLICE / 8) * 8;
		memcpy(&cur, f->shadow + o->at, 8);
		o->orig = cur;
		wr->wr.atomic.rkey = key_of(f, peer, q);
		wr->wr.atomic.remote_addr = peer->addr[q] + o->at;
		if (o->opcode == IBV_WR_ATOMIC_FETCH_AND_ADD) {
			wr->wr.atomic.compare_add = arg;
			cur += arg;
		} else {
			wr->wr.atomic.compare_add = kit_below(r, 2) ? cur : cur + 1;
			wr->wr.atomic.swap = arg;
			if (wr->wr.atomic.compare_add == cur)
				cur = arg;
		}
		memcpy(f->shadow + o->at, &cur, 8);
		return;
	}
	o->length = kit_below(r, 5) ? kit_below(r, 3000) : kit_below(r, SLICE / 2);
	if (!kit_below(r, 12))
		o->length = 0;
	/* of a queue pair that may lose messages with immediates, those keep to the first half */
	o->at =
	    may_lose(q) ? SLICE / 2 + kit_below(r, SLICE / 2 - o->length) : kit_below(r, SLICE - o->length);
	wr->wr.rdma.remote_addr = peer->addr[q] + o->at;
	if (o->kind == READ) {
		o->expect = malloc(o->length + 1);
		memcpy(o->expect, f->shadow + o->at, o->length);
	} else {
		pattern(local, o->length, kit_random(r));
		memcpy(f->shadow + o->at, local, o->length);
	}
}

/* The same request call by call. */
static int post_by_calls(struct ibv_qp_ex *x, const struct ibv_send_wr *wr, int q)
{
	struct ibv_data_buf bufs[SGES];
	int n = wr->num_sge;

	ibv_wr_start(x);
	x->wr_id = wr->wr_id;
	x->wr_flags = wr->send_flags;
	switch (wr->opcode) {
	case IBV_WR_SEND:
		ibv_wr_send(x);
		break;
	case IBV_WR_SEND_WITH_IMM:
		ibv_wr_send_imm(x, wr->imm_data);
		break;
	case IBV_WR_SEND_WITH_INV:
		ibv_wr_send_inv(x, wr->invalidate_rkey);
		break;
	case IBV_WR_BIND_MW:
		ibv_wr_bind_mw(x, wr->bind_mw.mw, wr->bind_mw.rkey, &wr->bind_mw.bind_info);
		break;
	case IBV_WR_RDMA_WRITE:
		ibv_wr_rdma_write(x, wr->wr.rdma.rkey, wr->wr.rdma.remote_addr);
		break;
	case IBV_WR_RDMA_WRITE_WITH_IMM:
		ibv_wr_rdma_write_imm(x, wr->wr.rdma.rkey, wr->wr.rdma.remote_addr, wr->imm_data);
		break;
	case IBV_WR_RDMA_READ:
		ibv_wr_rdma_read(x, wr->wr.rdma.rkey, wr->wr.rdma.remote_addr);
		break;
	case IBV_WR_ATOMIC_CMP_AND_SWP:
		ibv_wr_atomic_cmp_swp(x, wr->wr.atomic.rkey, wr->wr.atomic.remote_addr,
				      wr->wr.atomic.compare_add, wr->wr.atomic.swap);
		break;
	default:
		ibv_wr_atomic_fetch_add(x, wr->wr.atomic.rkey, wr->wr.atomic.remote_addr,
					wr->wr.atomic.compare_add);
	}
	if (q == CROSS)
		ibv_wr_set_xrc_srqn(x, wr->qp_type.xrc.remote_srqn);
	else if (q == DATAGRAMS)
		ibv_wr_set_ud_addr(x, wr->wr.ud.ah, wr->wr.ud.remote_qpn, wr->wr.ud.remote_qkey);
	for (int i = 0; i < n; i++)
		bufs[i] =
		    (struct ibv_data_buf){(void *)(uintptr_t)wr->sg_list[i].addr, wr->sg_list[i].length};
	if (wr->send_flags & IBV_SEND_INLINE)
		ibv_wr_set_inline_data_list(x, (size_t)n, bufs);
	else if (n == 1)
		ibv_wr_set_sge(x, wr->sg_list->lkey, wr->sg_list->addr, wr->sg_list->length);
	else if (n)
		ibv_wr_set_sge_list(x, (size_t)n, wr->sg_list);
	return ibv_wr_complete(x);
}

static int post_either_way(struct flow *f, struct ibv_send_wr *wr, int q)
{
	struct ibv_send_wr *bad;

	return kit_below(&f->rng, 2) ? post_by_calls(ibv_qp_to_qp_ex(f->qp), wr, q)
				     : ibv_post_send(f->qp, wr, &bad);
}

static enum kind pick_kind(uint64_t *r, int q)
{
	bool read_only = mixed->memory == KIT_READ_ONLY;

	if (may_lose(q))
		return rows[q].ops & WRITES && !read_only && kit_below(r, 2) ? WRITE : SEND;
	return read_only ? (kit_below(r, 2) ? READ : SEND) : (enum kind)kit_below(r, 4);
}

/* The window over the slice again, with a new key, which the peer is told once it is bound. */
static void bind_window(int q)
{
	struct flow *f = &flows[q];
	struct op *o = &f->ops[f->head % DEPTH];
	struct ibv_send_wr wr = {
	    .wr_id = (uint64_t)q << 32 | f->head, .opcode = IBV_WR_BIND_MW, .send_flags = IBV_SEND_SIGNALED};

	f->bind_soon = false;
	f->key = ibv_inc_rkey(f->key);
	wr.bind_mw.mw = f->mw;
	wr.bind_mw.rkey = f->key;
	wr.bind_mw.bind_info = (struct ibv_mw_bind_info){
	    .mr = f->slice, .addr = (uintptr_t)f->slice->addr, .length = SLICE, .mw_access_flags = 0};
	wr.bind_mw.bind_info.mw_access_flags =
	    IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_ATOMIC;
	*o = (struct op){.wr_id = wr.wr_id, .kind = BIND, .opcode = wr.opcode, .signaled = true};
	f->unsignaled = 0;
	CHECK(post_either_way(f, &wr, q) == 0);
	f->head++;
}

/* A SEND that invalidates the peer's window, if that has one, of which the peer knows by its number. */
static void invalidate(struct flow *f, struct op *o, struct ibv_send_wr *wr,
		       const struct kit_mixed_card *peer)
{
	uint32_t key = atomic_load(&peer->window);

	if (!key || key == f->gone)
		return;
	f->gone = key;
	o->opcode = IBV_WR_SEND_WITH_INV;
	wr->invalidate_rkey = key;
	atomic_store(&mixed->cards[me].invalidates, f->seq + 1);
}

/* Where the request goes, of a type whose requests say that. */
static void address(struct ibv_send_wr *wr, const struct kit_mixed_card *peer, int q)
{
	if (q == CROSS) {
		wr->qp_type.xrc.remote_srqn = peer->srqn;
	} else if (q == DATAGRAMS) {
		wr->wr.ud.ah = flows[q].ah;
		wr->wr.ud.remote_qpn = peer->qpn[q];
		wr->wr.ud.remote_qkey = QKEY;
	}
}

static void post(int q)
{
	struct flow *f = &flows[q];
	const struct kit_mixed_card *peer = &mixed->cards[!me];
	uint64_t *r = &f->rng;
	struct op *o = &f->ops[f->head % DEPTH];
	uint8_t *local = (uint8_t *)f->buf->addr + (size_t)(f->head % DEPTH) * MSG;
	struct ibv_sge sge[SGES];
	struct ibv_send_wr wr = {.sg_list = sge};
	uint32_t imm;
	int kind;

	memset(o, 0, sizeof *o);
	o->wr_id = (uint64_t)q << 32 | f->head;
	o->kind = pick_kind(r, q);
	f->wrote = o->kind == WRITE || (f->wrote && o->kind != SEND);
	o->opcode = o->kind == WRITE  ? IBV_WR_RDMA_WRITE
		    : o->kind == READ ? IBV_WR_RDMA_READ
		    : kit_below(r, 2) ? IBV_WR_ATOMIC_CMP_AND_SWP
				      : IBV_WR_ATOMIC_FETCH_AND_ADD;
	if (o->kind == SEND) {
		message(me, q, f->seq, &o->length, &imm, &kind);
		pattern(local, o->length, message_seed(me, q, f->seq));
		o->opcode = kind == 1	? IBV_WR_SEND_WITH_IMM
			    : kind == 2 ? IBV_WR_RDMA_WRITE_WITH_IMM
					: IBV_WR_SEND;
		wr.imm_data = imm;
		if (kind == 3)
			invalidate(f, o, &wr, peer);
		f->seq++;
		if (kind == 2) { /* its place in the slice follows from the sequence number too */
			o->at = imm % (SLICE / (may_lose(q) ? 4 : 2));
			wr.wr.rdma.remote_addr = peer->addr[q] + o->at;
			wr.wr.rdma.rkey = key_of(f, peer, q);
			memcpy(f->shadow + o->at, local, o->length);
		}
	} else {
		fill_target_op(f, o, &wr, peer, q, local);
	}
	address(&wr, peer, q);
	wr.wr_id = o->wr_id;
	wr.opcode = o->opcode;
	if (f->source && o->kind != READ)
		wr.num_sge =
		    (int)split(r, sge, (uint8_t *)f->source->addr + (local - (uint8_t *)f->buf->addr),
			       o->length, f->source->lkey);
	else
		wr.num_sge = (int)split(r, sge, local, o->length, f->buf->lkey);
	o->signaled = f->unsignaled > DEPTH / 3 || kit_below(r, 3);
	f->unsignaled = o->signaled ? 0 : f->unsignaled + 1;
	wr.send_flags = (o->signaled ? IBV_SEND_SIGNALED : 0) | (kit_below(r, 4) ? 0 : IBV_SEND_SOLICITED);
	if (f->fetched && o->kind != READ)
		wr.send_flags |= IBV_SEND_FENCE; /* rule 9: else a WRITE may pass a READ at the target */
	if ((o->kind == WRITE || o->kind == SEND) && o->length <= 128 && kit_below(r, 2))
		wr.send_flags |= IBV_SEND_INLINE;
	f->fetched =
	    o->kind == READ || o->kind == ATOMIC || (f->fetched && !(wr.send_flags & IBV_SEND_FENCE));
	atomic_store(&mixed->cards[me].sends[q], f->seq);
	CHECK(post_either_way(f, &wr, q) == 0, "op %d length %u", o->opcode, o->length);
	if (wr.send_flags & IBV_SEND_INLINE)
		memset(local, 0xee, o->length); /* rule 40: the buffer is ours again */
	f->head++;
}

static void finish(struct flow *f, struct op *o)
{
	uint8_t *local = (uint8_t *)f->buf->addr + (size_t)(f->tail % DEPTH) * MSG;

	if (o->kind == READ) {
		CHECK(!memcmp(local, o->expect, o->length), "READ of %u at %u", o->length, o->at);
		free(o->expect);
	} else if (o->kind == ATOMIC) {
		CHECK(!memcmp(local, &o->orig, 8), "atomic %d at %u", o->opcode, o->at);
	} else if (o->kind == BIND) {
		atomic_store(&mixed->cards[me].window, f->key);
	}
	f->tail++;
}

static void send_done(const struct ibv_wc *wc)
{
	static const enum ibv_wc_opcode opcode[] = {
	    [IBV_WR_RDMA_WRITE] = IBV_WC_RDMA_WRITE,
	    [IBV_WR_RDMA_WRITE_WITH_IMM] = IBV_WC_RDMA_WRITE,
	    [IBV_WR_SEND] = IBV_WC_SEND,
	    [IBV_WR_SEND_WITH_IMM] = IBV_WC_SEND,
	    [IBV_WR_SEND_WITH_INV] = IBV_WC_SEND,
	    [IBV_WR_BIND_MW] = IBV_WC_BIND_MW,
	    [IBV_WR_RDMA_READ] = IBV_WC_RDMA_READ,
	    [IBV_WR_ATOMIC_CMP_AND_SWP] = IBV_WC_COMP_SWAP,
	    [IBV_WR_ATOMIC_FETCH_AND_ADD] = IBV_WC_FETCH_ADD,
	};
	struct flow *f = &flows[wc->wr_id >> 32];
	struct op *o;

	CHECK(wc->status == IBV_WC_SUCCESS, "send status %s", ibv_wc_status_str(wc->status));
	CHECK(wc->qp_num == f->qp->qp_num);
	for (;;) { /* rule 39: unsignalled ones before it are complete too, and gave no CQE */
		CHECK(f->tail != f->head);
		o = &f->ops[f->tail % DEPTH];
		if (o->wr_id == wc->wr_id)
			break;
		CHECK(!o->signaled, "completion skipped");
		finish(f, o);
	}
	CHECK(o->signaled);
	CHECK(wc->opcode == opcode[o->opcode]);
	if (o->kind == READ || o->kind == ATOMIC)
		CHECK(wc->byte_len == o->length);
	finish(f, o);
}

/* Whether what was received is message number seq of that flow. */
static bool is_message(const struct ibv_wc *wc, int q, uint64_t seq)
{
	static _Thread_local uint8_t want[MSG];
	uint32_t length, imm, grh = rows[q].type == IBV_QPT_UD ? GRH : 0;
	int kind;

	message(!me, q, seq, &length, &imm, &kind);
	if (wc->byte_len != length + grh ||
	    wc->opcode != (kind == 2 ? IBV_WC_RECV_RDMA_WITH_IMM : IBV_WC_RECV) ||
	    !!(wc->wc_flags & IBV_WC_WITH_IMM) != (kind == 1 || kind == 2) ||
	    (wc->wc_flags & IBV_WC_WITH_IMM && wc->imm_data != imm) ||
	    !!(wc->wc_flags & IBV_WC_WITH_INV) !=
		(kind == 3 && atomic_load(&mixed->cards[!me].invalidates) == seq + 1))
		return false;
	if (kind == 2)
		return true;
	pattern(want, length, message_seed(!me, q, seq));
	return !memcmp(rbuf + ((wc->wr_id >> 32) * RDEPTH + (uint32_t)wc->wr_id) * MSG + grh, want, length);
}

static void receive_done(const struct ibv_wc *wc)
{
	struct flow *f = NULL;
	int q;

	CHECK(wc->status == IBV_WC_SUCCESS, "receive status %s", ibv_wc_status_str(wc->status));
	for (q = 0; q < qps; q++)
		if ((flows[q].target ? flows[q].target : flows[q].qp)->qp_num == wc->qp_num)
			f = &flows[q];
	CHECK(f);
	q = (int)(f - flows);
	while (!is_message(wc, q, f->expected)) {
		CHECK(may_lose(q) && mixed->loses &&
			  f->expected + 1 < atomic_load(&mixed->cards[!me].sends[q]),
		      "QP %d: %u bytes are not message %" PRIu64, q, wc->byte_len, f->expected);
		f->expected++;
		lost++;
	}
	if (!has_srq(q))
		CHECK(wc->wr_id == ((uint64_t)q << 32 | f->taken % RDEPTH), "receives out of order");
	if (wc->wc_flags & IBV_WC_WITH_INV) {
		CHECK(wc->invalidated_rkey == f->key && !f->bind_soon, "0x%x was invalidated",
		      wc->invalidated_rkey);
		f->bind_soon = true;
		mixed->cards[me].invalidated++;
	}
	f->expected++;
	f->taken++;
	post_receive(q);
	atomic_store(&mixed->cards[me].heard[q], f->expected);
}

/* As ibv_poll_cq, or one by one. */
static int poll_either_way(struct ibv_cq *cq, int most, struct ibv_wc *wc)
{
	struct ibv_cq_ex *x = (struct ibv_cq_ex *)cq;
	struct ibv_poll_cq_attr attr = {0};
	int n = 0, err;

	if (kit_below(&rrng, 2))
		return ibv_poll_cq(cq, most, wc);
	for (err = ibv_start_poll(x, &attr); !err; err = ++n < most ? ibv_next_poll(x) : ENOENT)
		wc[n] = (struct ibv_wc){.wr_id = x->wr_id,
					.status = x->status,
					.opcode = ibv_wc_read_opcode(x),
					.byte_len = ibv_wc_read_byte_len(x),
					.imm_data = ibv_wc_read_imm_data(x),
					.qp_num = ibv_wc_read_qp_num(x),
					.wc_flags = ibv_wc_read_wc_flags(x)};
	if (n)
		ibv_end_poll(x);
	return err == ENOENT ? n : -1;
}

static int poll_both(void)
{
	struct ibv_wc wc[16];
	int n, total = 0;

	n = poll_either_way(scq, 1 + (int)kit_below(&rrng, 16), wc);
	CHECK(n >= 0);
	for (int i = 0; i < n; i++)
		send_done(&wc[i]);
	total += n;
	n = poll_either_way(rcq, 1 + (int)kit_below(&rrng, 16), wc);
	CHECK(n >= 0);
	for (int i = 0; i < n; i++)
		receive_done(&wc[i]);
	return total + n;
}

/* Now and then: arm, look once more, and sleep until the event, which must come if anything does. */
static void sleep_for_event(void)
{
	struct pollfd p = {.fd = chan->fd, .events = POLLIN};
	struct ibv_cq *cq;
	void *arg;

	CHECK(ibv_req_notify_cq(scq, 0) == 0 && ibv_req_notify_cq(rcq, 0) == 0);
	if (poll_both())
		return;
	if (poll(&p, 1, 5) <= 0) /* perhaps the other side is done or waits for us */
		return;
	CHECK(ibv_get_cq_event(chan, &cq, &arg) == 0);
	CHECK(arg == (cq == scq ? (void *)&scq : (void *)&rcq));
	ibv_ack_cq_events(cq, 1);
	events++;
}

/* To RTS; qp is flow q's, or its target. */
static void connect_one(struct ibv_qp *qp, int q, uint32_t dest)
{
	const struct kit_mixed_card *peer = &mixed->cards[!me];
	bool ud = rows[q].type == IBV_QPT_UD;
	struct ibv_qp_attr a = {
	    .qp_state = IBV_QPS_INIT,
	    .port_num = 1,
	    .qkey = QKEY,
	    .qp_access_flags = IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_ATOMIC,
	    .path_mtu = mixed->path_mtu ? mixed->path_mtu : IBV_MTU_1024,
	    .dest_qp_num = dest,
	    .rq_psn = peer->psn[q],
	    .max_dest_rd_atomic = READS,
	    .min_rnr_timer = 1,
	    .ah_attr = {.is_global = 1, .port_num = 1, .grh = {.dgid = peer->gid, .sgid_index = gid_index}},
	    .sq_psn = mixed->cards[me].psn[q],
	    .timeout = 14,
	    .retry_cnt = 7,
	    .rnr_retry = 7,
	    .max_rd_atomic = READS};

	CHECK(!ibv_modify_qp(qp, &a,
			     IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT |
				 (ud ? IBV_QP_QKEY : IBV_QP_ACCESS_FLAGS)));
	if (qp == flows[q].qp && !has_srq(q))
		for (int i = 0; i < RDEPTH; i++)
			post_receive(q);
	a.qp_state = IBV_QPS_RTR;
	CHECK(!ibv_modify_qp(qp, &a, rows[q].rtr));
	a.qp_state = IBV_QPS_RTS;
	CHECK(!ibv_modify_qp(qp, &a, rows[q].rts));
	if (ud)
		flows[q].ah = ibv_create_ah(pd, &a.ah_attr);
	CHECK(!ud || flows[q].ah);
}

static void connect_all(void)
{
	const struct kit_mixed_card *peer = &mixed->cards[!me];

	for (int q = 0; q < qps; q++) {
		connect_one(flows[q].qp, q, q == CROSS ? peer->target : peer->qpn[q]);
		if (flows[q].target)
			connect_one(flows[q].target, q, peer->qpn[q]);
		for (int i = 0; i < RDEPTH && has_srq(q); i++)
			post_receive(q);
	}
}

static void wait_for(_Atomic int *flag)
{
	while (!atomic_load(flag))
		poll_both();
}

/* `size` bytes of shared memory of some kind, zero. */
static uint8_t *map_file(size_t size, int fd, int prot)
{
	void *p = mmap(NULL, size, prot, MAP_SHARED, fd, 0);

	CHECK(p != MAP_FAILED);
	return p;
}

/* A slice: SLICE bytes of the memory that is tried. */
static struct ibv_mr *slice_make(uint8_t *shadow)
{
	int access = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ |
		     IBV_ACCESS_REMOTE_ATOMIC | IBV_ACCESS_MW_BIND;
	char name[64];
	uint8_t *p = NULL;
	int fd = -1;

	switch (mixed->memory) {
	case KIT_MEMFD:
	case KIT_HUGE:
		fd = memfd_create("slice", mixed->memory == KIT_HUGE ? MFD_HUGETLB : 0);
		CHECK(fd >= 0 && !ftruncate(fd, KIT_HUGE_PAGE));
		p = map_file(mixed->memory == KIT_HUGE ? KIT_HUGE_PAGE : SLICE, fd, PROT_READ | PROT_WRITE);
		break; /* the descriptor stays open: who cannot open it again cannot share */
	case KIT_SHM_FILE:
		snprintf(name, sizeof name, "/dev/shm/slice-%d-%u", (int)getpid(), files++);
		fd = open(name, O_RDWR | O_CREAT | O_EXCL, 0600);
		CHECK(fd >= 0 && !ftruncate(fd, SLICE));
		p = map_file(SLICE, fd, PROT_READ | PROT_WRITE);
		close(fd);
		break;
	case KIT_SYSV:
		fd = shmget(IPC_PRIVATE, SLICE, IPC_CREAT | 0600);
		CHECK(fd >= 0);
		p = shmat(fd, NULL, 0);
		CHECK(p != (void *)-1 && !shmctl(fd, IPC_RMID, NULL));
		break;
	case KIT_READ_ONLY:
		p = mmap(NULL, SLICE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
		CHECK(p != MAP_FAILED);
		pattern(p, SLICE, mixed->seed);
		pattern(shadow, SLICE, mixed->seed); /* both ends know */
		CHECK(!mprotect(p, SLICE, PROT_READ));
		access = IBV_ACCESS_REMOTE_READ;
		break;
	default:
		p = calloc(1, SLICE);
	}
	CHECK(p);
	return ibv_reg_mr(pd, p, SLICE, access);
}

static void slice_free(void *p)
{
	char name[64];

	switch (mixed->memory) {
	case KIT_PRIVATE:
		free(p);
		break;
	case KIT_SYSV:
		shmdt(p);
		break;
	default:
		munmap(p, mixed->memory == KIT_HUGE ? (size_t)KIT_HUGE_PAGE : SLICE);
	}
	while (files) {
		snprintf(name, sizeof name, "/dev/shm/slice-%d-%u", (int)getpid(), --files);
		unlink(name);
	}
}

/* Where requests come from; for KIT_READ_ONLY through a second mapping that permits no more than that. */
static void buf_make(struct flow *f)
{
	size_t size = (size_t)DEPTH * MSG;
	int fd;

	f->source = NULL;
	if (mixed->memory != KIT_READ_ONLY) {
		f->buf = ibv_reg_mr(pd, calloc(1, size), size, IBV_ACCESS_LOCAL_WRITE);
		return;
	}
	fd = memfd_create("buf", 0);
	CHECK(fd >= 0 && !ftruncate(fd, (off_t)size));
	f->buf = ibv_reg_mr(pd, map_file(size, fd, PROT_READ | PROT_WRITE), size, IBV_ACCESS_LOCAL_WRITE);
	f->source = ibv_reg_mr(pd, map_file(size, fd, PROT_READ), size, 0);
	CHECK(f->source);
	close(fd);
}

static void buf_free(struct flow *f)
{
	size_t size = (size_t)DEPTH * MSG;
	void *buf = f->buf->addr;

	CHECK(!ibv_dereg_mr(f->buf));
	if (!f->source) {
		free(buf);
		return;
	}
	munmap(buf, size);
	buf = f->source->addr;
	CHECK(!ibv_dereg_mr(f->source));
	munmap(buf, size);
}

static struct ibv_cq *make_cq(uint32_t cqe, void *context)
{
	struct ibv_cq_init_attr_ex a = {
	    .cqe = cqe, .cq_context = context, .channel = chan, .wc_flags = IBV_WC_STANDARD_FLAGS};

	return (struct ibv_cq *)ibv_create_cq_ex(ctx, &a);
}

/* Of XRC, whose names nobody else needs. */
static void make_domain(struct kit_mixed_card *c)
{
	struct ibv_xrcd_init_attr xa = {
	    .comp_mask = IBV_XRCD_INIT_ATTR_FD | IBV_XRCD_INIT_ATTR_OFLAGS, .fd = -1, .oflags = O_CREAT};
	struct ibv_srq_init_attr_ex sa = {.attr = {.max_wr = RDEPTH, .max_sge = SGES},
					  .comp_mask = IBV_SRQ_INIT_ATTR_TYPE | IBV_SRQ_INIT_ATTR_PD |
						       IBV_SRQ_INIT_ATTR_XRCD | IBV_SRQ_INIT_ATTR_CQ,
					  .srq_type = IBV_SRQT_XRC,
					  .pd = pd,
					  .cq = rcq};

	xrcd = ibv_open_xrcd(ctx, &xa);
	CHECK(xrcd);
	sa.xrcd = xrcd;
	xsrq = ibv_create_srq_ex(ctx, &sa);
	CHECK(xsrq && !ibv_get_srq_num(xsrq, &c->srqn));
}

static void make_qps(int q)
{
	struct ibv_qp_init_attr_ex qa = {.send_cq = scq,
					 .recv_cq = q == CROSS ? NULL : rcq,
					 .srq = q == SHARED ? srq : NULL,
					 .qp_type = rows[q].type,
					 .cap = {DEPTH, has_srq(q) ? 0 : RDEPTH, SGES, SGES, 128},
					 .pd = pd,
					 .comp_mask = IBV_QP_INIT_ATTR_PD | IBV_QP_INIT_ATTR_SEND_OPS_FLAGS,
					 .send_ops_flags = rows[q].ops};
	struct ibv_qp_init_attr_ex ta = {
	    .qp_type = IBV_QPT_XRC_RECV, .comp_mask = IBV_QP_INIT_ATTR_XRCD, .xrcd = xrcd};

	flows[q].qp = ibv_create_qp_ex(ctx, &qa);
	CHECK(flows[q].qp);
	flows[q].target = q == CROSS ? ibv_create_qp_ex(ctx, &ta) : NULL;
	CHECK(q != CROSS || flows[q].target);
}

static void set_up(void)
{
	struct ibv_srq_init_attr sa = {.attr = {.max_wr = RDEPTH, .max_sge = SGES}};
	struct kit_mixed_card *c = &mixed->cards[me];

	lost = 0;
	ctx = mixed->open();
	gid_index = mixed->gid_index ? mixed->gid_index(ctx) : 0;
	CHECK(ibv_query_gid(ctx, 1, gid_index, &c->gid) == 0);
	pd = ibv_alloc_pd(ctx);
	chan = ibv_create_comp_channel(ctx);
	CHECK(pd && chan);
	scq = make_cq(QPS * DEPTH, &scq);
	rcq = make_cq(QPS * RDEPTH, &rcq);
	srq = ibv_create_srq(pd, &sa);
	CHECK(scq && rcq && srq);
	if (qps > CROSS)
		make_domain(c);
	rbuf = calloc(QPS * RDEPTH, MSG);
	rmr = ibv_reg_mr(pd, rbuf, (size_t)QPS * RDEPTH * MSG, IBV_ACCESS_LOCAL_WRITE);
	CHECK(rmr);
	for (int q = 0; q < qps; q++) {
		struct flow *f = &flows[q];
		make_qps(q);
		f->rng = mixed->seed * 31 + (uint64_t)me * 17 + (uint64_t)q;
		f->shadow = calloc(1, SLICE);
		f->slice = slice_make(f->shadow);
		buf_make(f);
		CHECK(f->slice && f->buf);
		f->mw =
		    q == WINDOWED && mixed->memory != KIT_READ_ONLY ? ibv_alloc_mw(pd, IBV_MW_TYPE_2) : NULL;
		f->key = f->mw ? f->mw->rkey : 0;
		f->bind_soon = f->mw != NULL;
		c->qpn[q] = f->qp->qp_num;
		c->target = f->target ? f->target->qp_num : c->target;
		c->psn[q] = (uint32_t)kit_random(&f->rng) & 0xffffff;
		c->rkey[q] = f->slice->rkey;
		c->addr[q] = (uintptr_t)f->slice->addr;
	}
	rrng = mixed->seed ^ (uint64_t)me << 40;
}

static void tear_down(void)
{
	for (int q = 0; q < qps; q++) {
		struct flow *f = &flows[q];
		void *slice = f->slice->addr;

		CHECK(!ibv_destroy_qp(f->qp) && (!f->target || !ibv_destroy_qp(f->target)));
		CHECK(!f->mw || !ibv_dealloc_mw(f->mw));
		CHECK(!ibv_dereg_mr(f->slice) && (!f->ah || !ibv_destroy_ah(f->ah)));
		slice_free(slice);
		buf_free(f);
		free(f->shadow);
	}
	CHECK(!ibv_destroy_srq(srq));
	CHECK(qps <= CROSS || (!ibv_destroy_srq(xsrq) && !ibv_close_xrcd(xrcd)));
	CHECK(!ibv_destroy_cq(scq) && !ibv_destroy_cq(rcq));
	CHECK(!ibv_dereg_mr(rmr) && !ibv_destroy_comp_channel(chan) && !ibv_dealloc_pd(pd));
	mixed->close(ctx);
	free(rbuf);
}

/* Whether another message would find a receive, where that is to be sure. */
static bool may_post(int q)
{
	return !may_lose(q) || mixed->loses ||
	       flows[q].seq - atomic_load(&mixed->cards[!me].heard[q]) < RDEPTH;
}

/* One that completes by itself. */
static void post_last(int q)
{
	while (flows[q].head - flows[q].tail >= DEPTH || !may_post(q))
		poll_both();
	flows[q].unsignaled = DEPTH;
	post(q);
	while (flows[q].tail != flows[q].head)
		poll_both();
}

/* What may be lost is repeated until the far end has the last of it, which is a message: then it has all that
 * it will ever have. */
static void finish_flow(int q)
{
	const _Atomic uint64_t *heard = &mixed->cards[!me].heard[q];

	do {
		post_last(q);
		for (int i = 0; i < 1000 && may_lose(q) && atomic_load(heard) != flows[q].seq; i++)
			poll_both();
	} while (may_lose(q) && (flows[q].wrote || atomic_load(heard) != flows[q].seq));
}

/* Of what is certain to have arrived. */
static uint64_t sum_of(int q, const uint8_t *slice)
{
	return may_lose(q) ? sum(slice + SLICE / 2, SLICE / 2) : sum(slice, SLICE);
}

void kit_mixed_side(const struct kit_mixed *m, int side)
{
	struct kit_mixed_card *c = &m->cards[side], *peer = &m->cards[!side];
	uint64_t r = m->seed + (uint64_t)side;

	mixed = m;
	me = side;
	qps = m->reliable_only ? CROSS : QPS;
	set_up();
	atomic_store(&c->ready, 1);
	while (!atomic_load(&peer->ready))
		poll((struct pollfd[1]){{.fd = -1}}, 1, 1);
	connect_all();
	atomic_store(&c->ready, 2);
	while (atomic_load(&peer->ready) != 2)
		poll((struct pollfd[1]){{.fd = -1}}, 1, 1);
	for (uint64_t n = 0; n < m->operations;) {
		int q = (int)kit_below(&r, (uint32_t)qps);

		if (flows[q].head - flows[q].tail < DEPTH && may_post(q) && kit_below(&r, 4)) {
			if (flows[q].bind_soon)
				bind_window(q);
			else
				post(q);
			n++;
		} else if (!poll_both() && !kit_below(&r, 50)) {
			sleep_for_event();
		}
	}
	for (int q = 0; q < qps; q++)
		finish_flow(q);
	atomic_store(&c->done, 1);
	wait_for(&peer->done);
	for (int q = 0; q < qps; q++) {
		while (flows[q].expected < atomic_load(&peer->sends[q]))
			poll_both();
		c->sum[q] = sum_of(q, flows[q].slice->addr);
	}
	atomic_store(&c->received, 1);
	wait_for(&peer->received);
	for (int q = 0; q < qps; q++)
		CHECK(peer->sum[q] == sum_of(q, flows[q].shadow), "slice of QP %d differs", q);
	CHECK(poll_both() == 0, "a completion too many"); /* rule 26 */
	atomic_store(&c->done, 2);
	while (atomic_load(&peer->done) != 2)
		poll((struct pollfd[1]){{.fd = -1}}, 1, 1);
	tear_down();
	printf("mixed[%d]: %" PRIu64 " operations, %" PRIu64 " events, %" PRIu64
	       " messages lost, %u windows invalidated\n",
	       me, m->operations, events, lost, c->invalidated);
}
