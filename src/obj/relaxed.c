#include "obj/relaxed.h"

#include <errno.h>
#include <stdlib.h>

enum {
	/* Entries rest for so many others: a key's value returns after 256 times as many registrations, and a
	 * program that registers in a loop does not walk through the whole pool. */
	RESERVE = 1024,
	BATCH = 64,	  /* entries that are looked at in one hold of the lock */
	TRIES = 8,	  /* entries that may turn out to be in use before a new one is taken */
	MANY_TRIES = 256, /* entries that may turn out to be in use before there is none */
};

void vb_relaxed_init(struct vb_relaxed *r, struct vb_keys *keys, const struct vb_relaxed_ops *ops,
		     void *owner)
{
	*r = (struct vb_relaxed){.keys = keys, .ops = ops, .owner = owner};
}

/* The keys go with their table. */
void vb_relaxed_fini(struct vb_relaxed *r)
{
	struct vb_relaxed_pool *next;

	for (struct vb_relaxed_pool *p = atomic_load(&r->pools); p; p = next) {
		next = p->next;
		free(p->mr);
		free(p);
	}
	atomic_store(&r->pools, NULL);
}

static struct vb_relaxed_pool *find_pool(struct vb_relaxed *r, uint32_t access, uint64_t pages)
{
	/* pairs with make_pools() */
	struct vb_relaxed_pool *p = atomic_load_explicit(&r->pools, memory_order_acquire);

	while (p && (p->access != access || p->pages < pages))
		p = p->next;
	return p;
}

static struct vb_relaxed_pool *new_pool(uint32_t access, uint32_t pages, uint32_t size)
{
	struct vb_relaxed_pool *p = calloc(1, sizeof(*p));

	if (!p)
		return NULL;
	p->mr = calloc(size, sizeof(*p->mr)); /* memory comes as entries are used */
	if (!p->mr) {
		free(p);
		return NULL;
	}
	p->access = access;
	p->pages = pages;
	p->size = size;
	vb_list_init(&p->idle);
	vb_list_init(&p->worn);
	return p;
}

/* The pair for these flags; false: no memory. */
static bool make_pools(struct vb_relaxed *r, uint32_t access)
{
	struct vb_relaxed_pool *shorts = new_pool(access, VB_RELAXED_SHORT, VB_RELAXED_SHORTS),
			       *longs = new_pool(access, VB_RELAXED_LONG, VB_RELAXED_LONGS);

	if (!shorts || !longs)
		goto free_pools;
	vb_lock_take(&r->lock);
	if (find_pool(r, access, 1)) { /* another thread was quicker */
		vb_lock_give(&r->lock);
		goto free_pools;
	}
	shorts->next = longs;
	longs->next = atomic_load(&r->pools);
	atomic_store_explicit(&r->pools, shorts, memory_order_release); /* pairs with find_pool() */
	vb_lock_give(&r->lock);
	return true;
free_pools:
	if (shorts)
		free(shorts->mr);
	if (longs)
		free(longs->mr);
	free(shorts);
	free(longs);
	return find_pool(r, access, 1) != NULL;
}

/* What follows is called with the pool's lock held, up to vb_relaxed_take(). */

/* Nobody uses the key: it goes, and another region of whatever kind may have the index. */
static void clean(struct vb_relaxed *r, struct vb_relaxed_pool *p, struct vb_relaxed_mr *m)
{
	vb_lock_assert_held(&p->lock);
	/* also without remote access: processes that hold the domain, too, use it as their own */
	r->ops->gone(r->owner, m->lkey);
	vb_key_give(r->keys, m->lkey);
	m->lkey = 0;
	m->state = VB_RELAXED_CLEAN;
	m->remaps = 0;
	p->used--;
}

static void to_idle(struct vb_relaxed_pool *p, struct vb_relaxed_mr *m)
{
	vb_lock_assert_held(&p->lock);
	vb_list_append(&p->idle, &m->idle);
	p->idles++;
}

/* Whether the entry is CLEAN afterwards. */
static bool settle(struct vb_relaxed *r, struct vb_relaxed_pool *p, struct vb_relaxed_mr *m)
{
	bool worn = m->remaps >= VB_RELAXED_REMAPS;

	vb_lock_assert_held(&p->lock);
	if (m->state != VB_RELAXED_USED)
		return true;
	if (!vb_key_settled(r->keys, m->lkey, m->round))
		return false;
	clean(r, p, m);
	if (worn) {
		vb_list_unlink(&m->idle);
		p->worns--;
		to_idle(p, m);
	}
	return true;
}

/* The oldest of those that have served long enough. */
static void sweep_worn(struct vb_relaxed *r, struct vb_relaxed_pool *p)
{
	vb_lock_assert_held(&p->lock);
	for (uint32_t n = p->worns < VB_RELAXED_WATERMARK ? p->worns : VB_RELAXED_WATERMARK; n; n--) {
		struct vb_relaxed_mr *m = vb_list_entry(p->worn.next, struct vb_relaxed_mr, idle);

		if (settle(r, p, m))
			continue;
		vb_list_unlink(&m->idle); /* so that the next ones have their turn */
		vb_list_append(&p->worn, &m->idle);
	}
}

/* Gives an entry that nobody uses a key that it has not had for long; false: it has none, or somebody does.
 */
static bool renew(struct vb_relaxed *r, struct vb_relaxed_pool *p, struct vb_relaxed_mr *m)
{
	vb_lock_assert_held(&p->lock);
	if (m->state == VB_RELAXED_USED) { /* straight into its next use: the index stays */
		if (!vb_key_settled(r->keys, m->lkey, m->round))
			return false;
		r->ops->gone(r->owner, m->lkey);
		vb_key_clear(r->keys, m->lkey, VB_KEY_MEMORY);
		p->used--;
		m->lkey = (m->lkey & ~0xffu) | VB_KEY_VARIANT(m->lkey + 1);
		return true;
	}
	/* Keys for other homes than ours are all of one kind (mem/keys.h). */
	m->lkey = vb_key_take(
	    r->keys, (uint64_t)(p->access & VB_RELAXED_TAGGED ? ~r->keys->home : r->keys->home) << 32);
	return m->lkey;
}

/* An idle entry that nobody uses, of the `tries` oldest. */
static struct vb_relaxed_mr *take_idle(struct vb_relaxed *r, struct vb_relaxed_pool *p, uint32_t tries)
{
	vb_lock_assert_held(&p->lock);
	if (tries > p->idles)
		tries = p->idles;
	while (tries--) {
		struct vb_relaxed_mr *m = vb_list_entry(vb_list_pop(&p->idle), struct vb_relaxed_mr, idle);

		if (renew(r, p, m)) {
			p->idles--;
			return m;
		}
		vb_list_append(&p->idle, &m->idle);
	}
	return NULL;
}

static struct vb_relaxed_mr *take_fresh(struct vb_relaxed *r, struct vb_relaxed_pool *p)
{
	struct vb_relaxed_mr *m = &p->mr[p->fresh];

	vb_lock_assert_held(&p->lock);
	if (p->fresh == p->size || !renew(r, p, m))
		return NULL;
	m->pool = p;
	vb_list_init(&m->idle);
	p->fresh++;
	return m;
}

static struct vb_relaxed_mr *take(struct vb_relaxed *r, struct vb_relaxed_pool *p)
{
	struct vb_relaxed_mr *m = p->idles >= RESERVE ? take_idle(r, p, TRIES) : NULL;

	if (!m)
		m = take_fresh(r, p);
	if (!m)
		m = take_idle(r, p, MANY_TRIES);
	if (!m && p->worns) {
		sweep_worn(r, p);
		m = take_idle(r, p, MANY_TRIES);
	}
	return m;
}

int vb_relaxed_take(struct vb_relaxed *r, uint32_t access, uint64_t pages, struct vb_relaxed_mr **out)
{
	struct vb_relaxed_pool *p;
	struct vb_relaxed_mr *m;
	bool some;

	if (pages > VB_RELAXED_LONG)
		return EINVAL;
	p = find_pool(r, access, pages);
	if (vb_unlikely(!p)) {
		if (!make_pools(r, access))
			return ENOMEM;
		p = find_pool(r, access, pages);
	}
	vb_lock_take(&p->lock);
	m = take(r, p);
	if (vb_likely(m))
		m->state = VB_RELAXED_LIVE; /* pairs with vb_relaxed_drop() */
	some = p->fresh;		    /* which come back */
	vb_lock_give(&p->lock);
	*out = m;
	return m ? 0 : some ? EAGAIN : ENOMEM;
}

void vb_relaxed_untake(struct vb_relaxed *r, struct vb_relaxed_mr *m)
{
	vb_lock_take(&m->pool->lock);
	vb_key_give(r->keys, m->lkey);
	m->lkey = 0;
	m->remaps = 0;
	m->state = VB_RELAXED_CLEAN;
	to_idle(m->pool, m);
	vb_lock_give(&m->pool->lock);
}

bool vb_relaxed_drop(struct vb_relaxed *r, struct vb_relaxed_mr *m)
{
	struct vb_relaxed_pool *p = m->pool;
	bool live;

	vb_lock_take(&p->lock);
	live = m->state == VB_RELAXED_LIVE;
	if (vb_likely(live)) {
		m->round = vb_key_hide(r->keys, m->lkey);
		m->state = VB_RELAXED_USED;
		p->used++;
		if (++m->remaps < VB_RELAXED_REMAPS) {
			to_idle(p, m);
		} else {
			vb_list_append(&p->worn, &m->idle);
			if (++p->worns >= VB_RELAXED_WATERMARK && p->worns % VB_RELAXED_WATERMARK == 0)
				sweep_worn(r, p);
		}
	}
	vb_lock_give(&p->lock);
	/* seq_cst: `used` is raised before this looks; pairs with vb_relaxed_tick() */
	if (live && vb_unlikely(!atomic_load(&r->due))) {
		uint64_t none = 0;

		if (atomic_compare_exchange_strong(&r->due, &none, vb_now() + VB_RELAXED_IDLE_FLUSH))
			r->ops->nudge(r->owner);
	}
	return live;
}

/* Waits for the users of one that was found USED and does not settle, and clears it. */
static void outwait(struct vb_relaxed *r, struct vb_relaxed_pool *p, struct vb_relaxed_mr *m)
{
	uint32_t lkey = m->lkey;

	vb_lock_give(&p->lock);
	r->ops->wait(r->owner, lkey);
	vb_lock_take(&p->lock);
	/* Else somebody else found it settled meanwhile.  What announces itself later goes by the hidden
	 * entry and turns back. */
	if (m->state != VB_RELAXED_USED || m->lkey != lkey)
		return;
	if (m->remaps >= VB_RELAXED_REMAPS)
		p->worns--;
	else
		p->idles--;
	vb_list_unlink(&m->idle);
	clean(r, p, m);
	to_idle(p, m);
}

void vb_relaxed_flush(struct vb_relaxed *r)
{
	for (struct vb_relaxed_pool *p = atomic_load(&r->pools); p; p = p->next) {
		uint32_t n;

		vb_lock_take(&p->lock);
		n = p->used ? p->fresh : 0; /* what is deregistered later is a later flush's */
		for (uint32_t i = 0; i < n; i++) {
			if (vb_unlikely(!settle(r, p, &p->mr[i])))
				outwait(r, p, &p->mr[i]);
			if (i % BATCH == BATCH - 1) {
				vb_lock_give(&p->lock);
				vb_lock_take(&p->lock);
			}
		}
		vb_lock_give(&p->lock);
	}
}

/* A third of the pool at most. */
static void sweep(struct vb_relaxed *r, struct vb_relaxed_pool *p)
{
	uint32_t left = p->size / 3;

	vb_lock_take(&p->lock);
	if (left > p->fresh)
		left = p->fresh;
	for (; left && p->used; left--) {
		if (p->cursor >= p->fresh)
			p->cursor = 0;
		settle(r, p, &p->mr[p->cursor++]);
		if (left % BATCH == 0) {
			vb_lock_give(&p->lock);
			vb_lock_take(&p->lock);
		}
	}
	vb_lock_give(&p->lock);
}

static bool any_used(struct vb_relaxed *r)
{
	uint32_t used = 0;

	for (struct vb_relaxed_pool *p = atomic_load(&r->pools); p; p = p->next) {
		vb_lock_take(&p->lock);
		used += p->used;
		vb_lock_give(&p->lock);
	}
	return used;
}

uint64_t vb_relaxed_tick(struct vb_relaxed *r, uint64_t now)
{
	uint64_t due = atomic_load(&r->due), next = now + VB_RELAXED_IDLE_FLUSH, none = 0;

	if (vb_likely(!due))
		return VB_NEVER;
	if (now < due)
		return due;
	if (!atomic_compare_exchange_strong(&r->due, &due, next))
		return next; /* another thread is at it */
	for (struct vb_relaxed_pool *p = atomic_load(&r->pools); p; p = p->next)
		sweep(r, p);
	if (any_used(r))
		return next;
	atomic_store(&r->due, 0); /* seq_cst, then a look: pairs with vb_relaxed_drop() */
	if (!any_used(r))
		return VB_NEVER;
	atomic_compare_exchange_strong(&r->due, &none, next);
	return next;
}

uint32_t vb_relaxed_live(struct vb_relaxed *r)
{
	uint32_t n = 0;

	for (struct vb_relaxed_pool *p = atomic_load(&r->pools); p; p = p->next) {
		vb_lock_take(&p->lock);
		n += p->fresh - p->idles - p->worns;
		vb_lock_give(&p->lock);
	}
	return n;
}
