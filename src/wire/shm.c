/* The shm wire: see shm.h.  The two ends share nothing but the ring and the consumed counter, and each trusts
 * only what it keeps in private memory. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "base/fault.h"
#include "wire/shm.h"

enum {
	/* Room that requests leave for responses, so that two full rings cannot wait for one another. */
	SPARE_SLOTS = VB_RING_SLOTS / 8,
	SPARE_DATA = VB_RING_DATA / 8,
	HDR_ROOM = sizeof(((struct vb_slot *)0)->hdr),
	SLOT_SHIFT = 6,
};

_Static_assert(VB_RING_SLOTS <= VB_RXQ_HOLDS, "one look takes in what is there");
_Static_assert(sizeof(struct vb_slot) == VB_LINE, "a packet is a cache line");
_Static_assert(1 << SLOT_SHIFT == sizeof(struct vb_slot) && !offsetof(struct vb_slot, seq), "vb_rxq.words");
_Static_assert(sizeof(struct vb_brief) == VB_LINE - sizeof(uint32_t) &&
		   offsetof(struct vb_brief, bytes) + sizeof(uint32_t) == offsetof(struct vb_slot, bytes) &&
		   offsetof(struct vb_brief, ack) + sizeof(uint32_t) == offsetof(struct vb_slot, ack) &&
		   offsetof(struct vb_brief, hops) + sizeof(uint32_t) == offsetof(struct vb_slot, hops) &&
		   VB_OUT_BRIEF == VB_SLOT_INLINE && (int)VB_BRIEF_APART == VB_SLOT_DATA &&
		   (int)VB_BRIEF_PLACED == VB_SLOT_PLACED && (int)VB_BRIEF_MTU == VB_SLOT_MTU &&
		   (int)VB_BRIEF_LENT == VB_SLOT_LENT,
	       "a brief packet is a slot behind its number");
_Static_assert(VB_RING_MTU <= SPARE_DATA / 2, "responses find room behind requests");

static struct vb_shm *shm(struct vb_out *o)
{
	return (struct vb_shm *)o;
}

/* Reads the peer's counter again, and gives back the data of what it has consumed. */
static __attribute__((noinline, cold)) void refresh(struct vb_shm *s, uint32_t head)
{
	uint32_t now = atomic_load_explicit(atomic_load_explicit(&s->peer_consumed, memory_order_relaxed),
					    memory_order_acquire); /* pairs with next() */

	vb_lock_assert_held(&s->tx);
	/* A counter outside what we sent is not one: the peer then stops itself, by finding no more room. */
	if (now == s->seen || head - now > head - s->seen)
		return;
	s->seen = now;
	s->data_tail = s->data_end[(now - 1) % VB_RING_SLOTS];
}

static uint32_t slots_for(enum vb_out_class cls)
{
	return cls == VB_OUT_REQUEST ? VB_RING_SLOTS - SPARE_SLOTS : VB_RING_SLOTS;
}

static bool slots_left(const struct vb_shm *s, uint32_t head, enum vb_out_class cls)
{
	return head - s->seen < slots_for(cls);
}

/* At most n. */
static uint32_t how_many_left(const struct vb_shm *s, uint32_t head, uint32_t n, enum vb_out_class cls)
{
	uint32_t used = head - s->seen, all = slots_for(cls);

	return used >= all ? 0 : all - used < n ? all - used : n;
}

/* Where `len` contiguous bytes may go: sets data_next, or returns false. */
static bool data_place(struct vb_shm *s, uint32_t len, enum vb_out_class cls, uint32_t *off)
{
	uint32_t at = s->data_head % VB_RING_DATA;
	uint32_t need = (len + VB_LINE - 1) & ~(VB_LINE - 1u);
	uint32_t skip = at + need > VB_RING_DATA ? VB_RING_DATA - at : 0;
	uint32_t used = s->data_head + skip + need - s->data_tail;

	vb_lock_assert_held(&s->tx);
	if (used > (cls == VB_OUT_REQUEST ? VB_RING_DATA - SPARE_DATA : VB_RING_DATA))
		return false;
	*off = (s->data_head + skip) % VB_RING_DATA;
	s->data_next = s->data_head + skip + need;
	return true;
}

/* A packet whose payload goes to the data ring. */
static __attribute__((noinline)) bool reserve_data(struct vb_shm *s, struct vb_outbuf *b, uint32_t head,
						   uint32_t hdr_len, uint32_t payload_len,
						   enum vb_out_class cls)
{
	uint32_t off;

	if (hdr_len > HDR_ROOM || payload_len > VB_RING_MTU)
		return false;
	if (!data_place(s, payload_len, cls, &off)) {
		refresh(s, head);
		if (!data_place(s, payload_len, cls, &off))
			return false;
	}
	s->line.hdr_len = (uint8_t)hdr_len;
	s->line.flags = VB_SLOT_DATA;
	s->line.inline_len = 0;
	s->line.data_off = off;
	s->line.data_len = payload_len;
	b->hdr = s->line.hdr;
	b->payload = s->to->data + off;
	return true;
}

static bool reserve(struct vb_out *o, struct vb_outbuf *b, uint32_t hdr_len, uint32_t payload_len,
		    enum vb_out_class cls)
{
	struct vb_shm *s = shm(o);
	uint32_t head;

	vb_lock_take(&s->tx); /* given by commit() or cancel() */
	head = (uint32_t)atomic_load_explicit(&s->head, memory_order_relaxed);
	if (vb_unlikely(!slots_left(s, head, cls))) {
		refresh(s, head);
		if (!slots_left(s, head, cls))
			goto give_tx;
	}
	b->ack = 0;
	b->placed = false;
	b->lent = false;
	b->path_mtu = 0;
	b->hops = 0;
	if (hdr_len + payload_len > VB_SLOT_INLINE) {
		if (!reserve_data(s, b, head, hdr_len, payload_len, cls))
			goto give_tx;
		return true;
	}
	s->line.hdr_len = (uint8_t)hdr_len;
	s->line.flags = 0;
	s->line.inline_len = (uint8_t)payload_len;
	b->hdr = s->line.bytes;
	b->payload = s->line.bytes + hdr_len;
	return true;
give_tx:
	vb_lock_give(&s->tx);
	return false;
}

/* The whole slot but `seq`. */
static inline void put(struct vb_slot *slot, const struct vb_slot *line)
{
	memcpy((uint8_t *)slot + sizeof(slot->seq), (const uint8_t *)line + sizeof(line->seq),
	       sizeof(*slot) - sizeof(slot->seq));
}

/* Nobody looks at the ring.  Who falls asleep meanwhile sees the hint, or is seen to sleep. */
static __attribute__((noinline, cold)) void leave_hint(struct vb_shm *s)
{
	vb_set_add(atomic_load_explicit(&s->peer_hints, memory_order_relaxed),
		   atomic_load_explicit(&s->hint, memory_order_relaxed));
}

/* Lets the peer see the slot, which is written, and with it the n - 1 behind it, and gives the ring back. */
static inline void show(struct vb_shm *s, struct vb_slot *slot, uint64_t head, uint32_t n)
{
	const _Atomic uint32_t *awake = atomic_load_explicit(&s->peer_awake, memory_order_relaxed);
	const _Atomic uint32_t *cold = atomic_load_explicit(&s->peer_cold, memory_order_relaxed);

	s->data_end[head % VB_RING_SLOTS] = s->data_head;
	VB_FAULT_POINT("packet written, not yet to be seen");
	atomic_store_explicit(&s->head, head + n, memory_order_relaxed); /* before peer->left is read */
	/* Store-packet/load-word, against the sleeper's store-word/look-at-ring: seq_cst on both sides.  The
	 * same holds of the ring's flag and who makes it cold. */
	atomic_exchange_explicit(&slot->seq, (uint32_t)head + 1, memory_order_seq_cst);
	__builtin_prefetch(&s->to->slots[(head + n) % VB_RING_SLOTS], 1);
	__builtin_prefetch(&s->to->slots[(head + n + 1) % VB_RING_SLOTS], 1);
	vb_lock_give(&s->tx);
	VB_FAULT_POINT("packet sent, bell not rung");
	if (vb_unlikely(atomic_load_explicit(cold, memory_order_seq_cst)))
		leave_hint(s);
	if (vb_unlikely(atomic_load_explicit(awake, memory_order_seq_cst) == VB_ASLEEP))
		vb_peer_ring(s->peer);
	else if (vb_unlikely(!atomic_load_explicit(&s->peer->left, memory_order_seq_cst)))
		vb_peer_leave(s->peer);
}

static void commit(struct vb_out *o, struct vb_outbuf *b)
{
	struct vb_shm *s = shm(o);
	uint64_t head = atomic_load_explicit(&s->head, memory_order_relaxed);
	struct vb_slot *slot = &s->to->slots[head % VB_RING_SLOTS];

	s->line.ack = b->ack;
	s->line.hops = b->hops;
	s->line.flags = (uint8_t)(s->line.flags | b->path_mtu * VB_SLOT_MTU | b->placed * VB_SLOT_PLACED |
				  b->lent * VB_SLOT_LENT);
	put(slot, &s->line);
	s->data_head = s->data_next;
	show(s, slot, head, 1);
}

/* The slot at head, with all of a brief packet but `seq`. */
static inline struct vb_slot *fill(struct vb_shm *s, uint64_t head, const struct vb_brief *p)
{
	struct vb_slot *slot = &s->to->slots[head % VB_RING_SLOTS];

	memcpy((uint8_t *)slot + sizeof(slot->seq), p, sizeof(*p));
	return slot;
}

static uint64_t send(struct vb_out *o, const struct vb_brief *p, enum vb_out_class cls)
{
	struct vb_shm *s = shm(o);
	uint64_t head;

	vb_lock_take(&s->tx); /* given by show() */
	head = atomic_load_explicit(&s->head, memory_order_relaxed);
	if (vb_unlikely(!slots_left(s, (uint32_t)head, cls))) {
		refresh(s, (uint32_t)head);
		if (!slots_left(s, (uint32_t)head, cls)) {
			vb_lock_give(&s->tx);
			return 0;
		}
	}
	/* show() reads them when the slot is written: at a peer that was quiet none of the three is near. */
	__builtin_prefetch((const void *)atomic_load_explicit(&s->peer_cold, memory_order_relaxed));
	__builtin_prefetch((const void *)atomic_load_explicit(&s->peer_awake, memory_order_relaxed));
	show(s, fill(s, head, p), head, 1);
	return head + 1;
}

/* The first one is written last: a peer that looks at it does not take the lines of the others away while
 * they are written, and finds all of them at once. */
static uint32_t send_list(struct vb_out *o, const struct vb_brief *p, uint32_t n, enum vb_out_class cls)
{
	struct vb_shm *s = shm(o);
	uint64_t head;
	uint32_t fit;

	vb_lock_take(&s->tx); /* given by show() */
	head = atomic_load_explicit(&s->head, memory_order_relaxed);
	fit = how_many_left(s, (uint32_t)head, n, cls);
	if (fit < n) {
		refresh(s, (uint32_t)head);
		fit = how_many_left(s, (uint32_t)head, n, cls);
	}
	if (!fit) {
		vb_lock_give(&s->tx);
		return 0;
	}
	for (uint32_t i = fit - 1; i; i--) {
		struct vb_slot *slot = fill(s, head + i, &p[i]);

		s->data_end[(head + i) % VB_RING_SLOTS] = s->data_head;
		atomic_store_explicit(&slot->seq, (uint32_t)(head + i) + 1, memory_order_relaxed);
	}
	show(s, fill(s, head, p), head, fit);
	return fit;
}

static void cancel(struct vb_out *o, struct vb_outbuf *b)
{
	struct vb_shm *s = shm(o);

	(void)b;
	s->data_next = s->data_head;
	vb_lock_give(&s->tx);
}

static uint64_t mark(struct vb_out *o)
{
	/* after peer->left was stored: pairs with show() */
	return atomic_load_explicit(&shm(o)->head, memory_order_seq_cst);
}

static bool taken(struct vb_out *o, uint64_t m)
{
	struct vb_shm *s = shm(o);
	uint32_t now = atomic_load_explicit(atomic_load_explicit(&s->peer_consumed, memory_order_relaxed),
					    memory_order_relaxed);
	uint64_t head = atomic_load_explicit(&s->head, memory_order_relaxed);
	/* The counter is the low half of a position that is not ahead of head.  It may be newer than the head
	 * that we see; then everything up to that head is taken. */
	uint32_t behind = (uint32_t)head - now;

	return behind > VB_RING_SLOTS ? head >= m : head - behind >= m;
}

/* Whether a request of the largest size has room now. */
static bool has_room(struct vb_out *o)
{
	struct vb_shm *s = shm(o);
	uint32_t head, off;
	bool ok;

	vb_lock_take(&s->tx);
	head = (uint32_t)atomic_load_explicit(&s->head, memory_order_relaxed);
	refresh(s, head);
	ok = slots_left(s, head, VB_OUT_REQUEST) && data_place(s, VB_RING_MTU, VB_OUT_REQUEST, &off);
	s->data_next = s->data_head;
	vb_lock_give(&s->tx);
	return ok;
}

static const struct vb_out_ops out_ops = {.reserve = reserve,
					  .commit = commit,
					  .cancel = cancel,
					  .send = send,
					  .send_list = send_list,
					  .mark = mark,
					  .taken = taken,
					  .room = has_room};

static struct vb_shm *shm_of(const struct vb_rxq *r)
{
	return vb_containerof(r, struct vb_shm, rxq);
}

/* The payload of a packet, whose slot was copied, in the data ring. */
static __attribute__((noinline)) int peek_data(const struct vb_shm *s, struct vb_arrival *p)
{
	struct vb_slot slot;

	memcpy((uint8_t *)&slot + sizeof(slot.seq), &p->b, sizeof(p->b));
	if (slot.hdr_len > HDR_ROOM || slot.data_len > VB_RING_MTU ||
	    slot.data_off > VB_RING_DATA - slot.data_len)
		return -1;
	p->payload = s->from->data + slot.data_off;
	p->payload_len = slot.data_len;
	return 1;
}

static int peek(struct vb_rxq *r, struct vb_arrival *p)
{
	const struct vb_shm *s = shm_of(r);
	uint32_t at = atomic_load_explicit(&r->at, memory_order_relaxed);
	const struct vb_slot *slot = &s->from->slots[at % VB_RING_SLOTS];

	vb_lock_assert_held(&r->rx);
	if (atomic_load_explicit(&slot->seq, memory_order_acquire) != at + 1) /* pairs with commit() */
		return 0;
	/* A hostile peer may change the slot under us: it is read once, and the copy is what is checked and
	 * used.  Without the second line a compiler might read in the slot again what stands in the copy. */
	memcpy(&p->b, (const uint8_t *)slot + sizeof(slot->seq), sizeof(p->b));
	__asm__ volatile("" ::: "memory");
	p->source = &s->source;
	if (vb_unlikely(p->b.flags & VB_SLOT_DATA))
		return peek_data(s, p);
	if (vb_unlikely(p->b.hdr_len > HDR_ROOM || p->b.payload_len > VB_SLOT_INLINE - p->b.hdr_len))
		return -1;
	p->payload = p->b.bytes + p->b.hdr_len;
	p->payload_len = p->b.payload_len;
	return 1;
}

static void next(struct vb_rxq *r)
{
	uint32_t at = atomic_load_explicit(&r->at, memory_order_relaxed) + 1;

	vb_lock_assert_held(&r->rx);
	atomic_store_explicit(&r->at, at, memory_order_relaxed);
	/* pairs with refresh() */
	atomic_store_explicit(shm_of(r)->consumed, at, memory_order_release);
}

static uint32_t names(const struct vb_rxq *r)
{
	uint32_t at = atomic_load_explicit(&r->at, memory_order_relaxed);

	vb_lock_assert_held(&r->rx);
	return vb_rxq_seems_ready(r) ? vb_pkt_get_qpn(shm_of(r)->from->slots[at % VB_RING_SLOTS].bytes) : 0;
}

static bool queue_has_room(struct vb_rxq *r)
{
	return has_room(&shm_of(r)->out);
}

static void rubbish(struct vb_rxq *r)
{
	vb_peer_insane(shm_of(r)->peer);
}

static const struct vb_rxq_ops rxq_ops = {
    .peek = peek, .next = next, .rubbish = rubbish, .names = names, .room = queue_has_room};

void vb_shm_attach(struct vb_shm *s, const struct vb_wire_parts *p)
{
	vb_lock_take(&s->tx);
	s->to = p->to;
	s->seen = 0;
	atomic_store_explicit(&s->head, 0, memory_order_relaxed);
	s->data_head = s->data_next = s->data_tail = 0;
	memset(&s->line, 0, sizeof(s->line)); /* no packet carries what went to the last peer */
	memset(s->data_end, 0, sizeof(s->data_end));
	atomic_store_explicit(&s->peer_consumed, p->peer_consumed, memory_order_relaxed);
	atomic_store_explicit(&s->peer_awake, p->peer_awake, memory_order_relaxed);
	atomic_store_explicit(&s->peer_cold, p->peer_cold, memory_order_relaxed);
	atomic_store_explicit(&s->peer_hints, p->peer_hints, memory_order_relaxed);
	atomic_store_explicit(&s->hint, p->hint, memory_order_relaxed);
	vb_lock_give(&s->tx);
	s->from = p->from;
	s->consumed = p->consumed;
	s->source = (struct vb_source){{VB_SOURCE_PEER, p->incarnation}, p->gids, p->lid, NULL};
	atomic_store_explicit(&s->rxq.words, (const uint8_t *)p->from->slots, memory_order_relaxed);
	atomic_store_explicit(&s->rxq.at, 0, memory_order_relaxed);
	atomic_store_explicit(&s->rxq.sender, p->peer_awake, memory_order_relaxed);
}

struct vb_shm *vb_shm_new(struct vb_peer *peer, const struct vb_wire_parts *parts)
{
	struct vb_shm *s = aligned_alloc(_Alignof(struct vb_shm), sizeof(*s));

	if (!s)
		return NULL;
	memset(s, 0, sizeof(*s));
	s->out.ops = &out_ops;
	s->out.mtu = VB_RING_MTU;
	s->out.brief = VB_SLOT_INLINE;
	s->out.tells = true;
	s->out.local = true;
	s->out.tells_mtu = true;
	s->out.carries_acks = true;
	s->out.places = true;
	s->peer = peer;
	vb_rxq_init(&s->rxq, &rxq_ops, &s->out, parts->cold);
	s->rxq.mask = VB_RING_SLOTS - 1;
	s->rxq.shift = SLOT_SHIFT;
	vb_shm_attach(s, parts);
	return s;
}

void vb_shm_free(struct vb_shm *s)
{
	free(s);
}

/* The adapter's view of the wire. */

static int wire_up(struct vb_peer *peer, struct vb_lane *lane, const struct vb_wire_parts *parts)
{
	struct vb_shm *s;

	if (lane->out) {
		s = shm(lane->out);
		vb_lock_take(&s->rxq.rx);
		vb_shm_attach(s, parts);
		vb_lock_give(&s->rxq.rx);
		return 0;
	}
	s = vb_shm_new(peer, parts);
	if (!s)
		return ENOMEM;
	lane->out = &s->out;
	lane->rxq = &s->rxq;
	return 0;
}

static void wire_free(struct vb_lane *lane)
{
	vb_shm_free(shm(lane->out));
	lane->out = NULL;
	lane->rxq = NULL;
}

const struct vb_wire vb_shm_wire = {.name = "shm", .lanes = VB_LANES, .up = wire_up, .free = wire_free};
