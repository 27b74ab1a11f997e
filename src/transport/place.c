/* Direct placement.
 *
 * A WRITE or READ (and an atomic where the memory is mapped here too) that stands at the head of its send
 * queue, everything before it completed, is carried out by the initiator, when the far end's tables permit.
 * It takes no PSN: the far end never hears of it.  Only the data of a WRITE with immediate is placed so; a
 * packet then brings the immediate and the length.  Whatever goes wrong here is not an error yet: the request
 * is sent through the ring from its beginning, and what comes back from there is what it completes with.
 *
 * A stream of requests must not stay with the ring for ever just because it never runs dry: after a few of
 * them the next one that could be placed waits for those before it.
 *
 * What is small goes over the ring where that is quicker than a system call: a WRITE with immediate always,
 * since it needs a packet anyway; a WRITE while the peer is prompt (mem/prompt.h), from a queue whose
 * requests have been such for a while, so that nothing else has to wait for it, or follow it through the
 * ring. */
#include "base/fault.h"
#include "mem/peer_mem.h"
#include "transport/place.h"

enum {
	BATCH = 32,  /* requests gathered into one system call */
	PIECES = 64, /* local pieces of it */
	RINGED = 16, /* requests sent since the queue was last empty after which one waits */
	SMALL = 256, /* bytes of a WRITE that is small, at most: no wire has packets shorter than that */
	ROW = 16,    /* small WRITEs in a row, of which the peer's promptness hears at a time */
};

#if defined(__x86_64__)
enum { IN_ORDER = 1 }; /* stores become visible in program order, also those of the kernel's copies */
#else
enum { IN_ORDER = 0 };
#endif

static bool is_atomic(const struct vb_swqe *w)
{
	return vb_wr_is(w->opcode, VB_WR_ATOMIC);
}

/* The rest of the request, as far as it can be placed. */
static bool wanted(const struct vb_qp *qp, const struct vb_swqe *w, struct vb_peer_mem_want *x)
{
	uint32_t access = vb_wrs[w->opcode].access;
	bool fetch = vb_wr_is(w->opcode, VB_WR_FETCH);

	if (!access || w->place != VB_PLACE_MAYBE)
		return false;
	if (!w->length && vb_wr_is(w->opcode, VB_WR_IMM)) /* nothing but the packet */
		return false;
	if (fetch && !qp->max_rd_atomic) /* rule 14 */
		return false;
	if (is_atomic(w) &&
	    (w->length != 8 || (w->remote.addr & 7) || !vb_peer_mem_mapped(qp->path.mem, w->remote.rkey)))
		return false;
	*x = (struct vb_peer_mem_want){.qp = qp->path.peer_qp,
				       .peer_qpn = qp->dest_qpn,
				       .qpn = qp->qpn,
				       .path_mtu = qp->path_mtu,
				       .type = qp->ibv.qp_type,
				       .reads = fetch ? qp->max_rd_atomic : 0,
				       .psn = qp->req.psn,
				       .rkey = w->remote.rkey,
				       .access = access,
				       .addr = w->remote.addr + w->placed,
				       .len = w->length - w->placed};
	return true;
}

/* A WRITE that a peer which takes packets as they come has sooner from the ring. */
static bool is_small(const struct vb_swqe *w)
{
	return vb_wrs[w->opcode].access == IBV_ACCESS_REMOTE_WRITE && w->length && w->length <= SMALL;
}

static void count_small(struct vb_qp *qp)
{
	if (++qp->req.small % ROW == 0)
		vb_prompt_wrote(&qp->path.mem->prompt, ROW);
}

/* The whole request is carried out.  One with an immediate is counted when that is sent. */
static void count_placed(const struct vb_qp *qp, const struct vb_swqe *w)
{
	bool read = vb_wr_is(w->opcode, VB_WR_FETCH) && !vb_wr_is(w->opcode, VB_WR_ATOMIC);
	uint32_t more = further_packets(qp, w->length);
	struct vb_traffic *t = qp->traffic;

	t->sent++;
	if (read)
		t->received_bytes += w->length;
	else
		t->sent_bytes += w->length;
	count(qp, read ? VB_TRAFFIC_PACKETS_IN : VB_TRAFFIC_PACKETS_OUT, more);
	count(qp, read ? VB_TRAFFIC_PLACED_IN : VB_TRAFFIC_PLACED_OUT, 1);
	count(qp, read ? VB_TRAFFIC_PLACED_IN_BYTES : VB_TRAFFIC_PLACED_OUT_BYTES, w->length);
}

/* The request w and everything before it is complete. */
static void complete(struct vb_qp *qp, struct vb_swqe *w)
{
	qp->req.una++;
	qp->req.next++;
	count_placed(qp, w);
	vb_rc_complete_send(qp, w, IBV_WC_SUCCESS);
}

/* For who keeps what crosses the wire (hca/capture.c). */
static inline void show(const struct vb_qp *qp, const struct vb_swqe *w, uint32_t n, uint64_t orig)
{
	struct vb_out *o = qp->path.out;

	if (vb_unlikely(o && o->past))
		o->past(o, w, n, orig);
}

/* n more bytes of w are in place. */
static enum vb_placed advance(struct vb_qp *qp, struct vb_swqe *w, uint32_t n, uint32_t *budget)
{
	struct vb_req *q = &qp->req;

	show(qp, w, n, 0);
	w->placed += n;
	*budget -= n < *budget ? n : *budget;
	if (w->placed < w->length) {
		if (*budget <= VB_LINE) /* not worth a call */
			*budget = 0;
		q->placing = !*budget;
		return q->placing ? VB_PLACED_LATER : VB_PLACED;
	}
	if (vb_wr_is(w->opcode, VB_WR_IMM)) {
		w->place = VB_PLACE_DONE;
		return VB_PLACED_DATA;
	}
	complete(qp, w);
	return VB_PLACED;
}

static enum vb_placed give_up(struct vb_swqe *w)
{
	w->place = VB_PLACE_RING;
	w->placed = 0;
	return VB_PLACED_NOT;
}

/* How much of w may be copied now, to or from peer_at.  Where that is not all, it ends with a cache line
 * there: who looks at an aligned word meanwhile sees it whole.  So it may be less than a line more than the
 * budget. */
static uint32_t portion(const struct vb_swqe *w, uint64_t peer_at, uint32_t budget)
{
	uint32_t rest = w->length - w->placed, most = VB_MEM_CHUNK - VB_LINE,
		 n = budget < most ? budget : most;

	n += -(uint32_t)(peer_at + n) % VB_LINE;
	return n < rest ? n : rest;
}

/* Of the next n bytes, which go to peer_at: how many at the end have to be put together first, since they
 * stand in one aligned word there and in several pieces here.  The word is to arrive as one. */
static uint32_t joined(const struct vb_swqe *w, uint64_t peer_at, uint32_t n)
{
	uint32_t tail = (uint32_t)((peer_at + n - 1) & 7) + 1, i = w->num_sge;

	if (w->num_sge < 2 || (w->flags & IBV_SEND_INLINE) || vb_wr_is(w->opcode, VB_WR_FETCH) ||
	    w->placed + n != w->length)
		return 0;
	tail = tail < n ? tail : n;
	while (!w->sge[i - 1].length)
		i--;
	return w->sge[i - 1].length < tail ? tail : 0;
}

/* The last bytes of a WRITE, from several pieces. */
static enum vb_reason copy_joined(struct vb_qp *qp, const struct vb_swqe *w, uint8_t *to, uint32_t n,
				  struct vb_facts *f)
{
	uint8_t word[8];
	enum vb_reason r =
	    vb_sg_copy(qp, qp->pd_id, w->sge, w->num_sge, w->length - n, word, n, VB_SG_GATHER, f);

	if (r != VB_OK)
		return r;
	return vb_copy_to_app(to, word, n) ? VB_OK : VB_R_MEM_VANISHED;
}

/* All local pieces are permitted. */
static bool list_is_there(struct vb_qp *qp, const struct vb_swqe *w, uint32_t want)
{
	for (uint32_t i = 0; !(w->flags & IBV_SEND_INLINE) && i < w->num_sge; i++) {
		const struct ibv_sge *s = &w->sge[i];

		if (s->length && vb_sg_check(qp, s, want, NULL) != VB_OK)
			return false;
	}
	return true;
}

static enum vb_placed copy(struct vb_qp *qp, struct vb_swqe *w, struct vb_peer_mem_use *u, uint32_t *budget)
{
	bool fetch = vb_wr_is(w->opcode, VB_WR_FETCH);
	uint32_t n = portion(w, (uintptr_t)u->ptr, *budget), tail = joined(w, (uintptr_t)u->ptr, n);
	struct vb_facts f;
	enum vb_reason r;

	if (!w->placed && w->num_sge > 1 && !list_is_there(qp, w, fetch ? IBV_ACCESS_LOCAL_WRITE : 0))
		r = VB_R_KEY_ACCESS; /* before the first byte moves; the ring will say which */
	else if (w->flags & IBV_SEND_INLINE)
		r = vb_copy_to_app(u->ptr, w->inline_data + w->placed, n) ? VB_OK : VB_R_MEM_VANISHED;
	else
		r = vb_sg_copy(qp, qp->pd_id, w->sge, w->num_sge, w->placed, u->ptr, n - tail,
			       fetch ? VB_SG_FETCH : VB_SG_PLACE, &f);
	if (r == VB_OK && tail)
		r = copy_joined(qp, w, u->ptr + n - tail, tail, &f);
	vb_peer_mem_end(u);
	return r == VB_OK ? advance(qp, w, n, budget) : give_up(w);
}

static enum vb_placed atomic(struct vb_qp *qp, struct vb_swqe *w, struct vb_peer_mem_use *u)
{
	struct vb_facts f = {0};
	uint64_t orig;
	/* The sink is checked before the operation, which cannot be repeated. */
	bool ok = !((uintptr_t)u->ptr & 7) && list_is_there(qp, w, IBV_ACCESS_LOCAL_WRITE);

	if (ok)
		ok = vb_wr_is(w->opcode, VB_WR_COMPARE)
			 ? vb_atomic_cmp_swap(u->ptr, w->remote.compare_add, w->remote.swap, &orig)
			 : vb_atomic_fetch_add(u->ptr, w->remote.compare_add, &orig);
	vb_peer_mem_end(u);
	if (!ok)
		return give_up(w);
	if (vb_sg_copy(qp, qp->pd_id, w->sge, w->num_sge, 0, (uint8_t *)&orig, 8, VB_SG_SCATTER, &f) !=
	    VB_OK) {
		vb_rc_fail_send(qp, &f, vb_reasons[f.reason].local_wc);
		return VB_PLACED;
	}
	show(qp, w, 8, orig);
	complete(qp, w);
	return VB_PLACED;
}

/* Requests gathered for one system call. */
struct batch {
	struct iovec here[PIECES], there[BATCH];
	unsigned nhere, nthere;
	uint32_t bytes;		/* of all */
	uint8_t end[BATCH][8];	/* joined last bytes */
	struct vb_mem_use keys; /* announces those of this process; .slot NULL: none is in use */
};

/* Adds one local piece.  The kernel copies piece by piece: what holds the last up to 8 aligned bytes of the
 * destination is one of its own, and so becomes visible last.  dst: address of the piece's first byte at the
 * destination; ends: the destination's range ends with this piece. */
static bool add_piece(struct batch *b, uint8_t *at, uint32_t n, uint64_t dst, bool ends)
{
	uint32_t tail = ends ? (uint32_t)((dst + n - 1) & 7) + 1 : 0;

	if (b->nhere + 2 > PIECES)
		return false;
	if (tail < n)
		b->here[b->nhere++] = (struct iovec){at, n - tail};
	else
		tail = n;
	if (tail)
		b->here[b->nhere++] = (struct iovec){at + n - tail, tail};
	return true;
}

/* The local end of n bytes of w. */
static bool add_local(struct vb_qp *qp, struct batch *b, struct vb_swqe *w, uint64_t peer_at, uint32_t n)
{
	bool fetch = vb_wr_is(w->opcode, VB_WR_FETCH), last = w->placed + n == w->length;
	uint32_t tail = joined(w, peer_at, n), body = n - tail;
	uint8_t *end = b->end[b->nthere];
	uint64_t off = w->placed;

	if (w->flags & IBV_SEND_INLINE)
		return add_piece(b, w->inline_data + off, n, peer_at, last);
	if (!b->keys.slot && !vb_mem_begin_any(qp->keys, &b->keys)) /* ended by call() */
		return false;
	for (uint32_t i = 0; i < w->num_sge && n; i++) {
		const struct ibv_sge *s = &w->sge[i];
		uint8_t *at;
		uint32_t k, m;

		if (off >= s->length) {
			off -= s->length;
			continue;
		}
		k = s->length - (uint32_t)off < n ? s->length - (uint32_t)off : n;
		m = k < body ? k : body;
		at = vb_mem_find(qp->keys, &(struct vb_mem_want){.key = s->lkey,
								 .access = fetch ? IBV_ACCESS_LOCAL_WRITE : 0,
								 .pd = qp->pd_id,
								 .addr = s->addr + off,
								 .len = k});
		if (!at || (m && !add_piece(b, at, m, fetch ? (uintptr_t)at : peer_at,
					    !tail && last && (fetch || k == n))))
			return false;
		if (m < k) {
			if (!vb_copy_from_app(end, at + m, k - m))
				return false;
			end += k - m;
		}
		off = 0;
		body -= m;
		peer_at += k;
		n -= k;
	}
	return !tail || add_piece(b, b->end[b->nthere], tail, 0, false);
}

/* A request, or the next part of it.  false: not this one. */
static bool add(struct vb_qp *qp, struct batch *b, struct vb_swqe *w, uint64_t peer_at, uint32_t n)
{
	unsigned nhere = b->nhere;

	if (!add_local(qp, b, w, peer_at, n)) {
		b->nhere = nhere;
		return false;
	}
	b->there[b->nthere++] = (struct iovec){(void *)(uintptr_t)peer_at, n};
	b->bytes += n;
	return true;
}

/* Adds the requests behind w that are of its kind, whole, and lie in the same region. */
static void add_more(struct vb_qp *qp, struct batch *b, const struct vb_swqe *w, uint32_t budget)
{
	const struct vb_req *q = &qp->req;
	struct vb_peer_mem_want x;
	uint64_t at;

	for (uint32_t i = q->next + 1; IN_ORDER && i != q->seen && b->nthere < BATCH; i++) {
		struct vb_swqe *m = vb_sq_at(q, i);

		if (m->opcode != w->opcode || m->remote.rkey != w->remote.rkey || !m->length ||
		    !wanted(qp, m, &x) || m->length > budget || b->bytes + m->length > budget ||
		    b->bytes + m->length > VB_MEM_CHUNK || !vb_peer_mem_also(qp->path.mem, &x, &at) ||
		    !add(qp, b, m, at, m->length))
			return;
	}
}

static size_t move(struct vb_qp *qp, struct batch *b, bool write)
{
	size_t done = 0;
	unsigned k = b->nhere - 1;

	if (IN_ORDER || b->nhere == 1)
		return vb_peer_mem_move(qp->path.mem, write, b->here, b->nhere, b->there, b->nthere);
	/* one request; its last piece in a call of its own, behind a barrier */
	done = vb_peer_mem_move(qp->path.mem, write, b->here, k, b->there, 1);
	if (done != b->bytes - b->here[k].iov_len)
		return done;
	atomic_thread_fence(memory_order_seq_cst);
	b->there[0] = (struct iovec){(uint8_t *)b->there[0].iov_base + done, b->here[k].iov_len};
	return done + vb_peer_mem_move(qp->path.mem, write, &b->here[k], 1, b->there, 1);
}

static enum vb_placed call(struct vb_qp *qp, struct vb_swqe *w, struct vb_peer_mem_use *u, uint32_t *budget)
{
	struct vb_req *q = &qp->req;
	uint32_t n = portion(w, u->at, *budget);
	enum vb_placed ret = VB_PLACED;
	struct batch b;
	size_t done = 0;

	b.nhere = b.nthere = b.bytes = 0;
	b.keys.slot = NULL;
	if (add(qp, &b, w, u->at, n)) {
		if (w->placed + n == w->length && !vb_wr_is(w->opcode, VB_WR_IMM) &&
		    qp->state == IBV_QPS_RTS) /* in SQD nothing is begun */
			add_more(qp, &b, w, *budget);
		done = move(qp, &b, !vb_wr_is(w->opcode, VB_WR_FETCH));
	}
	if (b.keys.slot)
		vb_mem_end(&b.keys);
	VB_FAULT_POINT("placed, still announced");
	vb_peer_mem_end(u);
	for (unsigned i = 0; i < b.nthere && ret == VB_PLACED && qp->state != IBV_QPS_ERR; i++) {
		w = vb_sq_at(q, q->next);
		n = (uint32_t)b.there[i].iov_len;
		if (done < n) {
			give_up(w);
			return i ? VB_PLACED : VB_PLACED_NOT; /* those before it are complete */
		}
		done -= n;
		if (is_small(w))
			count_small(qp);
		else
			qp->req.small = 0;
		ret = advance(qp, w, n, budget);
	}
	return b.nthere ? ret : give_up(w);
}

static bool is_for_ring(const struct vb_qp *qp, const struct vb_swqe *w)
{
	const struct vb_peer_mem *f = qp->path.mem;

	if (!vb_prompt_is(&f->prompt) || w->placed || !is_small(w))
		return false;
	return vb_wr_is(w->opcode, VB_WR_IMM) || /* whose packet goes there anyway */
	       (qp->req.small >= ROW && vb_peer_mem_takes_call(f, w->remote.rkey));
}

bool vb_place_rings(struct vb_qp *qp, const struct vb_swqe *w)
{
	if (!qp->path.mem)
		return !w->placed;
	if (!is_for_ring(qp, w))
		return false;
	if (!vb_wr_is(w->opcode, VB_WR_IMM))
		count_small(qp);
	return true;
}

/* What is used twice in a row is worth it. */
static void note_grant(struct vb_qp *qp, const struct vb_peer_mem_want *x, const struct vb_peer_mem_use *u)
{
	struct vb_peer_mem_grant *g = &qp->grant;

	/* It may stand already, where the request is not one for vb_place_at_once(). */
	if (g->last == x->rkey && !(qp->path.apart && vb_grant_stands(g, x->qp, x->rkey))) {
		vb_peer_mem_grant(qp->path.mem, x, g);
		qp->path.apart = true;
		atomic_store_explicit(&qp->post.near, (uintptr_t)u->ptr - x->addr, memory_order_relaxed);
		atomic_store_explicit(&qp->post.near_rkey, x->rkey, memory_order_relaxed);
	}
	g->last = x->rkey;
}

bool vb_place_holds(const struct vb_qp *qp, const struct vb_swqe *w)
{
	struct vb_peer_mem_want x;

	return qp->req.una != qp->req.next && qp->req.ringed >= RINGED && wanted(qp, w, &x) &&
	       vb_peer_mem_likely(qp->path.mem, &x);
}

enum vb_placed vb_place(struct vb_qp *qp, struct vb_swqe *w, uint32_t *budget)
{
	struct vb_req *q = &qp->req;
	struct vb_peer_mem_want x;
	struct vb_peer_mem_use u;

	vb_lock_assert_held(&qp->lock);
	if (!is_small(w))
		q->small = 0;
	else if (vb_place_rings(qp, w))
		return VB_PLACED_NOT;
	if (q->una != q->next)
		return vb_place_holds(qp, w) ? VB_PLACED_LATER : VB_PLACED_NOT;
	if (!wanted(qp, w, &x))
		return w->place == VB_PLACE_DONE ? VB_PLACED_DATA : VB_PLACED_NOT;
	if (!*budget) {
		q->placing = true;
		return VB_PLACED_LATER;
	}
	switch (vb_peer_mem_begin(qp->path.mem, qp->keys, &u, &x)) {
	case VB_MEANS_QP:
		vb_peer_mem_end(&u);
		return advance(qp, w, 0, budget);
	case VB_MEANS_MAPPED:
		if (x.access == IBV_ACCESS_REMOTE_WRITE)
			note_grant(qp, &x, &u);
		return is_atomic(w) ? atomic(qp, w, &u) : copy(qp, w, &u, budget);
	case VB_MEANS_VM:
		if (!is_atomic(w))
			return call(qp, w, &u, budget);
		vb_peer_mem_end(&u);
		break;
	case VB_MEANS_NONE:
		break;
	}
	return give_up(w);
}

/* One piece of this process's own memory, or what was brought along, to a peer's memory, with the last bytes
 * last. */
static inline bool put(struct vb_qp *qp, const struct vb_swqe *w, uint8_t *to)
{
	const struct vb_mem_want from = {
	    .key = w->sge[0].lkey, .pd = qp->pd_id, .addr = w->sge[0].addr, .len = w->length};
	uint32_t n = w->length;
	struct vb_mem_use u;
	bool ok;

	if (w->flags & IBV_SEND_INLINE)
		return vb_copy_to_app(to, w->inline_data, n);
	if (vb_unlikely(!w->num_sge || !vb_mem_begin_plain(qp->keys, &u, &from)))
		return false;
	/* Memory onto itself goes over the ring; see vb_sg_copy(). */
	ok = u.how == VB_USE_HERE && (uintptr_t)u.ptr - (uintptr_t)to + n - 1 >= 2 * (uint64_t)n - 1 &&
	     vb_copy_app(to, u.ptr, n);
	vb_mem_end(&u);
	return ok;
}

bool vb_place_at_once(struct vb_qp *qp, uint32_t place)
{
	struct vb_req *q = &qp->req;
	struct vb_swqe *w = vb_sq_at(q, q->next);
	const struct vb_path *p = &qp->path;
	const struct vb_resp *s = &qp->resp;
	struct vb_key_slot *slot;
	uint8_t *to;
	bool ok;

	vb_lock_assert_held(&qp->lock);
	if (q->seen - q->next != 1 || q->una != q->next || w->opcode != IBV_WR_RDMA_WRITE ||
	    w->state != VB_WQE_POSTED || w->place != VB_PLACE_MAYBE || w->placed || w->num_sge > 1 ||
	    !w->length || w->length > place ||
	    !vb_grant_is_of(&qp->grant, w->remote.rkey, w->remote.addr, w->length))
		return false;
	if (qp->state != IBV_QPS_RTS || !p->out || p->out->past || s->ack_owed ||
	    s->res_next != s->res_head || s->replaying || s->nak_owed)
		return false;
	slot = vb_slot_own(&qp->keys->slots);
	if (vb_unlikely(!slot))
		return false;
	to = vb_grant_begin(&qp->grant, p->peer_qp, slot, q->psn, w->remote.addr, w->length);
	if (vb_unlikely(!to))
		return false;
	VB_FAULT_POINT("peer's memory announced, not yet touched");
	ok = put(qp, w, to);
	vb_grant_end(slot);
	if (vb_unlikely(!ok))
		return false;
	if (w->length > SMALL)
		q->small = 0;
	q->blocked = q->placing = false;
	complete(qp, w);
	return true;
}
