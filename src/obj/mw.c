#include "obj/mw.h"

#include <errno.h>
#include <stdlib.h>

#include "base/log.h"
#include "mem/check_buffers.h"

#define WRITES (IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_ATOMIC)
#define REMOTE (WRITES | IBV_ACCESS_REMOTE_READ)

int vb_mws_init(struct vb_mws *t, struct vb_keys *keys, uint32_t max)
{
	*t = (struct vb_mws){
	    .keys = keys, .max = max, .buckets = calloc(VB_MW_BUCKETS, sizeof(struct vb_mw *))};
	return t->buckets ? 0 : ENOMEM;
}

void vb_mws_fini(struct vb_mws *t)
{
	free(t->buckets);
	t->buckets = NULL;
}

static struct vb_mw **bucket(struct vb_mws *t, uint32_t index)
{
	return &t->buckets[index % VB_MW_BUCKETS];
}

static struct vb_mw *find(struct vb_mws *t, uint32_t index)
{
	struct vb_mw *mw = *bucket(t, index);

	vb_lock_assert_held(&t->lock);
	while (mw && mw->index != index)
		mw = mw->next;
	return mw;
}

bool vb_mw_enter(struct vb_mws *t, struct vb_mw *mw)
{
	uint32_t lkey = vb_key_take(t->keys, mw->pd->id); /* pairs with vb_mw_leave(); may take a mutex */
	struct vb_mw **at;
	bool room;

	if (!lkey)
		return false;
	/* Its key is in the program's hands before the first bind: the table says that it is a window's. */
	vb_key_clear(t->keys, lkey, VB_KEY_WINDOW);
	mw->index = vb_keys_index(t->keys, lkey);
	mw->key = lkey & ~VB_KEY_REMOTE;
	mw->base = mw->key & ~0xffu;
	mw->ibv.rkey = lkey | VB_KEY_REMOTE;
	vb_lock_take(&t->lock); /* given below */
	room = t->count < t->max;
	if (room) {
		mw->id = ++t->last_id;
		at = bucket(t, mw->index);
		mw->next = *at;
		*at = mw;
		t->count++;
	}
	vb_lock_give(&t->lock);
	if (!room)
		vb_key_give(t->keys, lkey);
	return room;
}

static void hide(struct vb_mws *t, struct vb_mw *mw)
{
	vb_lock_assert_held(&t->lock);
	vb_key_hide(t->keys, mw->key);
	mw->state = VB_MW_GOING;
}

/* Nobody uses it any more. */
static void unbind(struct vb_mws *t, struct vb_mw *mw)
{
	vb_lock_assert_held(&t->lock);
	vb_key_clear(t->keys, mw->key, VB_KEY_WINDOW);
	vb_key_untie(t->keys, mw->region); /* after that its memory may go */
	mw->state = VB_MW_FREE;
}

static bool settle(struct vb_mws *t, struct vb_mw *mw)
{
	vb_lock_assert_held(&t->lock);
	if (mw->state == VB_MW_GOING) {
		if (!vb_key_settled(t->keys, mw->key, 0))
			return false;
		unbind(t, mw);
	}
	return true;
}

/* Waits, without the lock.  A stopped peer in the middle of a copy holds it. */
static void nap(struct vb_patience *p, const char *what, uint32_t key)
{
	if (vb_patience_nap(p))
		vb_log(VB_LOG_WARN,
		       "%s waits for a process that uses the memory window of R_Key 0x%08x and makes no "
		       "progress (is it stopped?)",
		       what, key | VB_KEY_REMOTE);
}

void vb_mw_leave(struct vb_mws *t, struct vb_mw *mw)
{
	struct vb_mw **at = bucket(t, mw->index);
	struct vb_patience p = {0};
	bool done;

	vb_lock_take(&t->lock); /* given below */
	while (*at != mw)
		at = &(*at)->next;
	*at = mw->next;
	t->count--;
	if (mw->state == VB_MW_BOUND) {
		vb_check_key_ended(mw->key, VB_CHECK_DEALLOCATED);
		hide(t, mw);
	}
	for (done = settle(t, mw); !done; done = settle(t, mw)) {
		vb_lock_give(&t->lock);
		nap(&p, "ibv_dealloc_mw", mw->key);
		vb_lock_take(&t->lock);
	}
	vb_lock_give(&t->lock);
	vb_key_give(t->keys, mw->key);
}

/* The next one from bucket *b on that was bound on this QP. */
static struct vb_mw *next_of(struct vb_mws *t, uint32_t *b, uint32_t qpn)
{
	vb_lock_assert_held(&t->lock);
	for (; *b < VB_MW_BUCKETS; ++*b)
		for (struct vb_mw *mw = t->buckets[*b]; mw; mw = mw->next)
			if (mw->state != VB_MW_FREE && mw->qpn == qpn)
				return mw;
	return NULL;
}

void vb_mw_qp_gone(struct vb_mws *t, uint32_t qpn)
{
	struct vb_patience p = {0};
	struct vb_mw *mw;
	uint32_t b = 0, key;

	vb_lock_take(&t->lock); /* given below */
	while ((mw = next_of(t, &b, qpn))) {
		if (mw->state == VB_MW_BOUND) {
			vb_check_key_ended(mw->key, VB_CHECK_QUEUE_PAIR_GONE);
			hide(t, mw);
		}
		if (settle(t, mw))
			continue;
		key = mw->key;
		vb_lock_give(&t->lock);
		nap(&p, "ibv_destroy_qp", key);
		vb_lock_take(&t->lock);
	}
	vb_lock_give(&t->lock);
}

void vb_mw_let_go(struct vb_mws *t, uint32_t region)
{
	vb_lock_take(&t->lock);
	for (uint32_t b = 0; b < VB_MW_BUCKETS; b++)
		for (struct vb_mw *mw = t->buckets[b]; mw; mw = mw->next)
			if (mw->state == VB_MW_GOING && mw->region == region)
				settle(t, mw);
	vb_lock_give(&t->lock);
}

static bool refuse(struct vb_facts *f, enum vb_reason r)
{
	f->reason = r;
	return false;
}

/* What the window and the request say, before the region is looked at. */
static bool may_bind(const struct vb_mw *mw, const struct vb_mw_ask *a, struct vb_facts *f)
{
	f->key = a->rkey;
	if (!mw || mw->id != a->id)
		return refuse(f, VB_R_BIND_GONE);
	if (mw->pd->id != a->pd) /* rule 47 */
		return refuse(f, VB_R_BIND_PD);
	if (mw->ibv.type == IBV_MW_TYPE_1)
		return true;
	if (!a->length) /* rule 48 */
		return refuse(f, VB_R_BIND_ZERO);
	f->window.bound_key = mw->key | VB_KEY_REMOTE;
	if (mw->state == VB_MW_BOUND) /* rule 48 */
		return refuse(f, VB_R_BIND_BOUND);
	return true;
}

/* Rule 47, what it asks of the region; s: what its L_Key says. */
static bool region_permits(struct vb_mws *t, const struct vb_mw_ask *a, struct vb_key_spec *s,
			   struct vb_facts *f)
{
	f->addr = a->addr;
	f->len = a->length;
	f->window.region = a->region;
	if (!vb_key_look(t->keys, a->region, s) || (s->kind != VB_KEY_MEMORY && s->kind != VB_KEY_ON_DEMAND))
		return refuse(f, VB_R_BIND_REGION);
	f->window.start = s->iova;
	f->window.size = s->length;
	f->window.have = s->access;
	if (s->pd != a->pd)
		return refuse(f, VB_R_BIND_PD);
	/* by subtraction (rule 19): below the region it wraps to more than any length */
	if (a->addr < s->iova || a->addr - s->iova > s->length || a->length > s->length - (a->addr - s->iova))
		return refuse(f, VB_R_BIND_RANGE);
	/* The flags of the request.  Reading needs nothing of the region but that windows may be bound. */
	f->window.want = IBV_ACCESS_MW_BIND | (a->access & WRITES ? IBV_ACCESS_LOCAL_WRITE : 0);
	if (f->window.want & ~s->access)
		return refuse(f, VB_R_BIND_ACCESS);
	return true;
}

/* The window is FREE.  What the region says when it is tied stays true until it is untied. */
static bool set(struct vb_mws *t, struct vb_mw *mw, const struct vb_mw_ask *a, struct vb_facts *f)
{
	struct vb_key_spec s;

	if (!region_permits(t, a, &s, f))
		return false;
	if (!vb_key_tie(t->keys, a->region)) /* it is going, or changing; pairs with unbind() */
		return refuse(f, VB_R_BIND_REGION);
	if (!region_permits(t, a, &s, f)) {
		vb_key_untie(t->keys, a->region);
		return false;
	}
	mw->key = vb_mw_key(mw, a->rkey); /* rule 47: any variant that is asked for */
	mw->region = a->region;
	mw->qpn = mw->ibv.type == IBV_MW_TYPE_1 ? 0 : a->qpn;
	s.addr += a->addr - s.iova;
	s.iova = a->access & IBV_ACCESS_ZERO_BASED ? 0 : a->addr;
	s.length = a->length;
	s.access = a->access & REMOTE;
	s.kind = VB_KEY_WINDOW;
	s.qpn = mw->qpn;
	s.tied = a->region;
	vb_key_set(t->keys, mw->key, &s);
	mw->state = VB_MW_BOUND;
	return true;
}

static enum vb_mw_step bind(struct vb_mws *t, struct vb_mw *mw, const struct vb_mw_ask *a, struct vb_facts *f)
{
	struct vb_key_spec s;

	vb_lock_assert_held(&t->lock);
	if (!may_bind(mw, a, f))
		return VB_MW_REFUSED;
	if (mw->state == VB_MW_BOUND) { /* type 1: it changes over, unless that cannot be */
		if (a->length && !region_permits(t, a, &s, f))
			return VB_MW_REFUSED;
		hide(t, mw);
	}
	if (!settle(t, mw))
		return VB_MW_WAITS;
	if (!a->length) /* rule 48 */
		return VB_MW_DONE;
	return set(t, mw, a, f) ? VB_MW_DONE : VB_MW_REFUSED;
}

enum vb_mw_step vb_mw_bind(struct vb_mws *t, const struct vb_mw_ask *a, struct vb_facts *f)
{
	enum vb_mw_step step;

	vb_lock_take(&t->lock);
	step = bind(t, find(t, vb_keys_index(t->keys, a->rkey)), a, f);
	vb_lock_give(&t->lock);
	return step;
}

/* Rule 46. */
static bool may_invalidate(const struct vb_mw *mw, uint32_t rkey, uint32_t qpn, struct vb_facts *f)
{
	f->key = rkey;
	if (!mw || !(rkey & VB_KEY_REMOTE))
		return refuse(f, VB_R_KEY_NOT_WINDOW);
	f->window.bound_key = mw->state == VB_MW_BOUND ? mw->key | VB_KEY_REMOTE : 0;
	if (mw->ibv.type == IBV_MW_TYPE_1)
		return refuse(f, VB_R_INV_TYPE);
	if (rkey != f->window.bound_key)
		return refuse(f, VB_R_INV_KEY);
	f->window.bound_qpn = mw->qpn;
	if (mw->qpn != qpn) /* which also stands for the protection domain */
		return refuse(f, VB_R_INV_QP);
	return true;
}

enum vb_mw_step vb_mw_invalidate(struct vb_mws *t, uint32_t rkey, uint32_t qpn, uint64_t *id,
				 struct vb_facts *f)
{
	enum vb_mw_step step = VB_MW_DONE;
	struct vb_mw *mw;

	vb_lock_take(&t->lock); /* given below */
	mw = find(t, vb_keys_index(t->keys, rkey));
	if (*id) { /* it was hidden before; another may have gone on with it since */
		if (mw && mw->id == *id && !settle(t, mw))
			step = VB_MW_WAITS;
	} else if (!may_invalidate(mw, rkey, qpn, f)) {
		step = VB_MW_REFUSED;
	} else {
		*id = mw->id;
		hide(t, mw);
		if (!settle(t, mw))
			step = VB_MW_WAITS;
	}
	vb_lock_give(&t->lock);
	return step;
}

bool vb_mw_invalidate_at_once(struct vb_mws *t, uint32_t rkey, uint32_t qpn, struct vb_facts *f)
{
	struct vb_mw *mw;
	bool done;

	vb_lock_take(&t->lock); /* given below */
	mw = find(t, vb_keys_index(t->keys, rkey));
	done = may_invalidate(mw, rkey, qpn, f);
	if (done) {
		hide(t, mw);
		unbind(t, mw);
	}
	vb_lock_give(&t->lock);
	return done;
}
