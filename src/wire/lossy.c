/* The lossy wire: see lossy.h.  What happens to a packet is decided where it arrives, so the way out is the
 * ring's with fewer promises.  In the product this file is empty. */
#ifdef VB_FAULTS
#include "wire/lossy.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/log.h"
#include "wire/shm.h"

enum {
	MTU = 4096,
	HELD = 4,  /* packets that can be held back at a time; a further one just passes */
	BEHIND = 4 /* by how many packets one is overtaken at most */
};

enum fate { PASSED, LOST, TWICE, LATE, FATES };

/* Set before the first peer comes up. */
static struct {
	uint64_t seed;
	uint64_t percent[FATES]; /* PASSED: unused */
} settings = {.seed = 1, .percent = {[LOST] = 1, [TWICE] = 1, [LATE] = 1}};

/* A packet that was taken out of the ring and comes to light later. */
struct held {
	bool used;
	uint32_t behind; /* packets that go before it */
	struct vb_arrival in;
	uint8_t payload[MTU];
};

struct vb_lossy {
	struct vb_out out; /* first: the way out */
	struct vb_shm *ring;
	/* consumer; guarded by rxq.rx */
	struct vb_rxq rxq __attribute__((aligned(VB_LINE)));
	uint64_t rng;
	uint64_t had[FATES]; /* packets of each fate */
	struct held *shown;  /* what peek() showed; NULL: the ring's next one */
	_Atomic bool due;    /* one of `held` is next; readable without locks, as a hint */
	struct held held[HELD];
};

/* ---- settings ---- */

bool vb_lossy_set(const char *options)
{
	static const struct {
		const char *name;
		uint64_t *to;
		uint64_t max;
	} rows[] = {{"seed=", &settings.seed, UINT64_MAX},
		    {"loss=", &settings.percent[LOST], 100},
		    {"dup=", &settings.percent[TWICE], 100},
		    {"late=", &settings.percent[LATE], 100}};
	const char *s = options;
	char *end;

	while (*s) {
		size_t i = 0, n = sizeof(rows) / sizeof(rows[0]);

		while (i < n && strncmp(s, rows[i].name, strlen(rows[i].name)))
			i++;
		if (i == n)
			return false;
		s += strlen(rows[i].name);
		errno = 0;
		*rows[i].to = strtoull(s, &end, 0);
		if (errno || end == s || *s == '-' || *rows[i].to > rows[i].max || (*end && *end != ','))
			return false;
		s = *end ? end + 1 : end;
	}
	return settings.percent[LOST] + settings.percent[TWICE] + settings.percent[LATE] <= 100;
}

/* ---- the way out: the ring's ---- */

static struct vb_lossy *lossy(struct vb_out *o)
{
	return (struct vb_lossy *)o;
}

static struct vb_out *ring_of(struct vb_out *o)
{
	return &lossy(o)->ring->out;
}

static bool reserve(struct vb_out *o, struct vb_outbuf *b, uint32_t hdr_len, uint32_t payload_len,
		    enum vb_out_class cls)
{
	return ring_of(o)->ops->reserve(ring_of(o), b, hdr_len, payload_len, cls);
}

static void commit(struct vb_out *o, struct vb_outbuf *b)
{
	ring_of(o)->ops->commit(ring_of(o), b);
}

static void cancel(struct vb_out *o, struct vb_outbuf *b)
{
	ring_of(o)->ops->cancel(ring_of(o), b);
}

static uint64_t send(struct vb_out *o, const struct vb_brief *p, enum vb_out_class cls)
{
	return ring_of(o)->ops->send(ring_of(o), p, cls);
}

static uint32_t send_list(struct vb_out *o, const struct vb_brief *p, uint32_t n, enum vb_out_class cls)
{
	return ring_of(o)->ops->send_list(ring_of(o), p, n, cls);
}

static uint64_t mark(struct vb_out *o)
{
	return ring_of(o)->ops->mark(ring_of(o));
}

/* What left the ring may be lost: the ACK timer runs from the beginning. */
static bool taken(struct vb_out *o, uint64_t m)
{
	(void)o, (void)m;
	return true;
}

static bool room(struct vb_out *o)
{
	return ring_of(o)->ops->room(ring_of(o));
}

static uint64_t now(struct vb_out *o)
{
	(void)o;
	return vb_now();
}

static const struct vb_out_ops out_ops = {.reserve = reserve,
					  .commit = commit,
					  .cancel = cancel,
					  .send = send,
					  .send_list = send_list,
					  .mark = mark,
					  .taken = taken,
					  .room = room,
					  .now = now};

/* ---- the way in ---- */

static struct vb_lossy *lossy_of(const struct vb_rxq *r)
{
	return vb_containerof(r, struct vb_lossy, rxq);
}

static uint64_t below(struct vb_lossy *l, uint64_t n)
{
	uint64_t z = l->rng += 0x9e3779b97f4a7c15ull; /* splitmix64 */

	z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9ull;
	z = (z ^ z >> 27) * 0x94d049bb133111ebull;
	return (z ^ z >> 31) % n;
}

static enum fate draw(struct vb_lossy *l)
{
	uint64_t dice = below(l, 100);

	for (enum fate f = LOST; f < FATES; f++) {
		if (dice < settings.percent[f])
			return f;
		dice -= settings.percent[f];
	}
	return PASSED;
}

/* Finds a packet that was held back and that nothing goes before any more. */
static struct held *find_due(struct vb_lossy *l)
{
	for (unsigned i = 0; i < HELD; i++)
		if (l->held[i].used && !l->held[i].behind)
			return &l->held[i];
	return NULL;
}

static void tell_due(struct vb_lossy *l)
{
	atomic_store_explicit(&l->due, find_due(l) != NULL, memory_order_relaxed);
}

/* Keeps a copy for later; false: there is no room for it. */
static bool hold(struct vb_lossy *l, const struct vb_arrival *p)
{
	struct held *h = l->held;

	while (h < l->held + HELD && h->used)
		h++;
	if (h == l->held + HELD || p->payload_len > MTU)
		return false;
	h->used = true;
	h->behind = 1 + (uint32_t)below(l, BEHIND);
	h->in = *p;
	h->in.payload = h->payload;
	memcpy(h->payload, p->payload, p->payload_len);
	return true;
}

/* A packet goes before those that are held back. */
static void overtake(struct vb_lossy *l)
{
	for (unsigned i = 0; i < HELD; i++)
		l->held[i].behind -= l->held[i].used && l->held[i].behind;
	tell_due(l);
}

/* One that is held back with nothing behind it is as good as lost until something comes: what is sent again
 * for its sake brings it along. */
static int peek(struct vb_rxq *r, struct vb_arrival *p)
{
	struct vb_lossy *l = lossy_of(r);
	struct vb_rxq *ring = &l->ring->rxq;
	enum fate fate;
	int got;

	vb_lock_assert_held(&r->rx);
	l->shown = find_due(l);
	if (l->shown) {
		*p = l->shown->in;
		return 1;
	}
	vb_lock_take(&ring->rx); /* the ring's own consumer's role, which nobody else takes */
	while ((got = ring->ops->peek(ring, p)) > 0) {
		fate = draw(l);
		if ((fate == TWICE || fate == LATE) && !hold(l, p))
			fate = PASSED;
		l->had[fate]++;
		if (fate == PASSED || fate == TWICE)
			break;
		ring->ops->next(ring);
	}
	vb_lock_give(&ring->rx);
	return got;
}

static void next(struct vb_rxq *r)
{
	struct vb_lossy *l = lossy_of(r);
	struct vb_rxq *ring = &l->ring->rxq;

	vb_lock_assert_held(&r->rx);
	if (l->shown) {
		l->shown->used = false;
	} else {
		vb_lock_take(&ring->rx);
		ring->ops->next(ring);
		vb_lock_give(&ring->rx);
	}
	l->shown = NULL;
	atomic_fetch_add_explicit(&r->at, 1, memory_order_relaxed);
	overtake(l);
}

static bool ready(const struct vb_rxq *r)
{
	const struct vb_lossy *l = lossy_of(r);

	return atomic_load_explicit(&l->due, memory_order_relaxed) || vb_rxq_ready(&l->ring->rxq);
}

static void rubbish(struct vb_rxq *r)
{
	lossy_of(r)->ring->rxq.ops->rubbish(&lossy_of(r)->ring->rxq);
}

static bool queue_has_room(struct vb_rxq *r)
{
	return room(&lossy_of(r)->out);
}

static const struct vb_rxq_ops rxq_ops = {
    .peek = peek, .next = next, .ready = ready, .rubbish = rubbish, .room = queue_has_room};

/* ---- the adapter's view ---- */

static void begin(struct vb_lossy *l)
{
	memset(l->had, 0, sizeof(l->had));
	for (unsigned i = 0; i < HELD; i++)
		l->held[i].used = false;
	l->shown = NULL;
	l->rng = settings.seed;
	tell_due(l);
}

/* Tests look for this line. */
static void say(const struct vb_lossy *l)
{
	if (l->had[PASSED] + l->had[LOST] + l->had[TWICE] + l->had[LATE])
		vb_log(
		    VB_LOG_DEBUG,
		    "the lossy wire from process %u: %llu packets passed, %llu were lost, %llu came twice, "
		    "%llu came late",
		    l->ring->peer->pid, (unsigned long long)l->had[PASSED], (unsigned long long)l->had[LOST],
		    (unsigned long long)l->had[TWICE], (unsigned long long)l->had[LATE]);
}

static int up_again(struct vb_lossy *l, const struct vb_wire_parts *parts)
{
	vb_lock_take(&l->rxq.rx);
	say(l);
	vb_lock_take(&l->ring->rxq.rx);
	vb_shm_attach(l->ring, parts);
	vb_lock_give(&l->ring->rxq.rx);
	begin(l);
	vb_lock_give(&l->rxq.rx);
	return 0;
}

static int wire_up(struct vb_peer *peer, struct vb_lane *lane, const struct vb_wire_parts *parts)
{
	struct vb_lossy *l;

	if (lane->out)
		return up_again(lossy(lane->out), parts);
	l = aligned_alloc(_Alignof(struct vb_lossy), sizeof(*l));
	if (!l)
		return ENOMEM;
	memset(l, 0, sizeof(*l));
	l->ring = vb_shm_new(peer, parts);
	if (!l->ring) {
		free(l);
		return ENOMEM;
	}
	l->out.ops = &out_ops; /* what else a way out can do, this one cannot */
	l->out.mtu = MTU;
	l->out.brief = VB_SLOT_INLINE;
	l->out.tells_mtu = true;
	l->out.lossy = true;
	vb_rxq_init(&l->rxq, &rxq_ops, &l->out, parts->cold);
	begin(l);
	lane->out = &l->out;
	lane->rxq = &l->rxq;
	return 0;
}

static void wire_free(struct vb_lane *lane)
{
	struct vb_lossy *l = lossy(lane->out);

	say(l);
	vb_shm_free(l->ring);
	free(l);
	lane->out = NULL;
	lane->rxq = NULL;
}

const struct vb_wire vb_lossy_wire = {.name = "lossy", .lanes = 1, .up = wire_up, .free = wire_free};
#endif
