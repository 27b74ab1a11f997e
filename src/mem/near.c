#include "mem/near.h"

#include "mem/check.h"

struct found {
	uint32_t key;
	uint64_t missed;
	bool pd, permits; /* of the wanted protection domain; the access wanted */
	struct vb_key_spec spec;
};

/* Can the request have meant this? */
static bool comparable(const struct vb_key_spec *s, const struct vb_mem_want *w)
{
	if (s->kind == VB_KEY_WINDOW)
		return w->remote && (!s->qpn || s->qpn == w->qpn);
	/* A null region is everywhere, and so is an implicit on-demand one. */
	return s->kind != VB_KEY_NULL && s->length < 1ull << 63;
}

static bool better(const struct found *f, const struct found *than)
{
	if (f->missed != than->missed)
		return f->missed < than->missed;
	if (f->pd != than->pd)
		return f->pd;
	return f->permits && !than->permits;
}

/* The region of the queue's own domain that is least wide of the range, else one of another domain. */
static bool search(struct vb_keys *t, const struct vb_mem_want *w, struct found *best)
{
	uint32_t looked = 0;
	struct found f;
	bool any = false;

	for (uint32_t i = 0; looked < VB_NEAR_LOOK && (i = vb_key_next(t->marks, i)); looked++) {
		if (!vb_key_at(t, i, w->remote, &f.key, &f.spec) || !comparable(&f.spec, w))
			continue;
		f.pd = f.spec.pd == w->pd;
		f.permits = !(w->access & ~f.spec.access);
		f.missed = vb_range_missed(f.spec.iova, f.spec.length, w->addr, w->len);
		if (any && !better(&f, best))
			continue;
		*best = f;
		any = true;
	}
	return any;
}

static void add_region(struct vb_mem_facts *f, const struct found *n)
{
	f->flags |= VB_KEYF_NEAR;
	if (n->spec.kind == VB_KEY_WINDOW)
		f->flags |= VB_KEYF_NEAR_WINDOW;
	if (!n->pd)
		f->flags |= VB_KEYF_NEAR_PD;
	f->cur_key = n->key;
	f->start = n->spec.iova;
	f->size = n->spec.length;
	f->pd_have = (uint32_t)n->spec.pd;
}

/* What a key leads to in this process, for such a request, wherever its range lies; false: nothing. */
static bool leads(struct vb_keys *t, const struct vb_mem_want *w, uint32_t key, struct vb_key_spec *s)
{
	uint32_t role = w->remote ? VB_KEY_REMOTE : t->local_bit;

	return (key & VB_KEY_REMOTE) == role && !vb_key_is_peers(t, key, w->pd) &&
	       vb_key_look(t, key ^ role, s) && s->pd == w->pd && comparable(s, w);
}

/* The address in the region of which this is the lower half. */
static uint64_t whole_address(const struct vb_key_spec *s, uint32_t low)
{
	uint64_t at = (s->iova & ~(uint64_t)UINT32_MAX) | low;

	return at < s->iova ? at + (1ull << 32) : at;
}

/* Key and address are right if they are read this way. */
static bool fits(struct vb_keys *t, const struct vb_mem_want *w, struct vb_mem_facts *f, enum vb_meant how,
		 uint32_t key, uint64_t addr)
{
	bool half = how == VB_MEANT_EXCHANGED || how == VB_MEANT_WHOLE;
	struct vb_key_spec s;

	if (!leads(t, w, key, &s))
		return false;
	if (half)
		addr = whole_address(&s, (uint32_t)addr);
	if (vb_range_missed(s.iova, s.length, addr, w->len))
		return false;
	f->meant = how;
	f->meant_addr = addr;
	f->cur_key = key;
	f->start = s.iova;
	f->size = s.length;
	if (s.kind == VB_KEY_WINDOW)
		f->flags |= VB_KEYF_NEAR_WINDOW;
	return true;
}

/* Numbers that go through messages and variables come out wrong in a few ways.  That they lead to a region by
 * chance then is unlikely. */
static bool misread(struct vb_keys *t, const struct vb_mem_want *w, struct vb_facts *f)
{
	uint32_t key = __builtin_bswap32(w->key), half = (uint32_t)(w->addr >> 32);
	uint64_t addr = __builtin_bswap64(w->addr);

	if (f->reason == VB_R_KEY_BOUNDS) /* the key is right */
		return fits(t, w, &f->mem, VB_MEANT_ADDR_REVERSED, w->key, addr) ||
		       /* all ones: it went through a signed variable */
		       ((!half || half == UINT32_MAX) &&
			fits(t, w, &f->mem, VB_MEANT_WHOLE, w->key, w->addr));
	return fits(t, w, &f->mem, VB_MEANT_KEY_REVERSED, key, w->addr) ||
	       fits(t, w, &f->mem, VB_MEANT_BOTH_REVERSED, key, addr) ||
	       (!half && fits(t, w, &f->mem, VB_MEANT_EXCHANGED, (uint32_t)w->addr, w->key));
}

/* Whether the key is another process's.  Not where it was one of this table: addresses of different processes
 * may be alike, as their keys may be. */
static void add_peer(struct vb_keys *t, const struct vb_mem_want *w, struct vb_facts *f)
{
	if (!w->remote || !t->ops || !t->ops->whose || f->reason != VB_R_KEY_UNKNOWN)
		return;
	f->mem.process = t->ops->whose(t->owner, w->key, w->addr, 0);
	if (f->mem.process)
		f->mem.flags |= VB_KEYF_PEERS;
}

/* Another process is known to have, or have had, the key: the range is in that one's memory. */
static bool is_anothers(const struct vb_facts *f)
{
	return f->reason == VB_R_KEY_OWNER_GONE || f->reason == VB_R_MEM_FORBIDDEN ||
	       f->reason == VB_R_ATOMIC_PEER || (f->reason == VB_R_KEY_NO_CONTACT && f->mem.process);
}

void vb_key_near(struct vb_keys *t, const struct vb_mem_want *w, struct vb_facts *f)
{
	struct vb_mem_facts *m = &f->mem;
	struct found n = {0};

	if (f->reason != VB_R_KEY_PD && misread(t, w, f))
		return;
	add_peer(t, w, f);
	if (is_anothers(f))
		return;
	if (!search(t, w, &n))
		return;
	switch (f->reason) {
	case VB_R_KEY_PD: /* the region that has the key is there already; its range may be another's too */
	case VB_R_KEY_BOUNDS:
		if (!n.missed && n.pd) {
			m->flags |= VB_KEYF_NEAR | (n.spec.kind == VB_KEY_WINDOW ? VB_KEYF_NEAR_WINDOW : 0);
			m->cur_key = n.key;
		}
		break;
	case VB_R_KEY_STALE:
		if (m->cur_key && m->flags & VB_KEYF_WINDOW) /* its window's key now is what was meant */
			break;
		if (!n.missed || !m->cur_key)
			add_region(m, &n);
		break;
	default:
		add_region(m, &n);
		break;
	}
}

void vb_key_own(struct vb_keys *t, uint64_t pd, struct vb_facts *f)
{
	const struct vb_mem_want w = {.pd = pd, .addr = f->addr, .len = f->len};
	struct vb_mem_facts *m = &f->mem;
	struct found n = {0};

	/* A stale key was right once, and so was its address: after fork() both processes have the same ones.
	 */
	if (f->reason != VB_R_KEY_UNKNOWN && f->reason != VB_R_KEY_BOUNDS)
		return;
	if (m->meant || f->addr - m->start < m->size) /* it begins in the far end's memory */
		return;
	if (f->reason == VB_R_KEY_BOUNDS && m->flags & VB_KEYF_NEAR) /* it lies there */
		return;
	if (search(t, &w, &n) && !n.missed && n.pd)
		m->flags |= VB_KEYF_OWN;
}
