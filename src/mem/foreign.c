#include "mem/foreign.h"

#include <infiniband/verbs.h>

#include "base/fault.h"
#include "mem/check.h"
#include "mem/far.h"
#include "mem/near.h"

enum { REMOTE = IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_ATOMIC };

/* The adapter in whose table the key stands; NULL: not in contact. */
static struct vb_far *find(struct vb_keys *t, const struct vb_mem_want *w)
{
	if (!t->ops || !t->ops->find)
		return NULL;
	return t->ops->find(t->owner, w->key & VB_KEY_SHARED ? VB_KEY_NUMBER(w->key) : VB_PD_HOME(w->pd));
}

/* Whether its tables are this process's own. */
static bool is_own(const struct vb_keys *t, const struct vb_far *f)
{
	return f && f->marks == t->marks;
}

static enum vb_reason refuse(struct vb_keys *t, enum vb_reason r, const struct vb_mem_want *w, uint32_t pid,
			     struct vb_facts *f)
{
	if (!f)
		return r;
	vb_key_facts(f, r, w);
	f->mem.process = pid;
	vb_key_near(t, w, f);
	return r;
}

/* Any number with bit 31 looks like such a key.  In a domain that nobody else holds it is none, and under a
 * number of this process itself this one would have it. */
static enum vb_reason no_contact(struct vb_keys *t, const struct vb_mem_want *w, const struct vb_far *far,
				 struct vb_facts *f)
{
	bool none = !t->ops || !t->ops->find || is_own(t, far) ||
		    (t->ops->held_elsewhere && !t->ops->held_elsewhere(t->owner, w->pd));

	if (none)
		return refuse(t, VB_R_KEY_UNKNOWN, w, 0, f);
	return refuse(t, VB_R_KEY_NO_CONTACT, w, far ? far->pid : 0, f);
}

/* Whether f's tables are those of the adapter that the key speaks of, and that adapter will wait for what we
 * announce.  VB_OK: they are. */
static enum vb_reason is_there(struct vb_far *f, uint32_t number, const struct vb_mem_want *w)
{
	uint64_t there = atomic_load(&f->there); /* pairs with vb_direct_peer_up() */

	/* A domain's number has 20 bits of its home's incarnation: the number may be another process's now.
	 */
	if (!there || f->number != number || (!(w->key & VB_KEY_SHARED) && ((w->pd >> 32 ^ there) & 0xfffff)))
		return VB_R_KEY_OWNER_GONE;
	/* What is announced to one who does not look yet would be waited for by nobody. */
	return atomic_load(f->heard) == f->token ? VB_OK : VB_R_KEY_NO_CONTACT;
}

static const struct vb_key_entry *entry_at(const struct vb_far *f, uint32_t index)
{
	return index && vb_key_used(f->marks, index) ? &f->keys[index] : NULL;
}

/* How the bytes at u->ptr of the far process can be touched; VB_OK: u says so. */
static enum vb_reason reach(struct vb_keys *t, struct vb_mem_use *u, const struct vb_mem_want *w,
			    uint32_t have)
{
	uint64_t at = (uintptr_t)u->ptr;
	bool write =
	    w->access & (IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_ATOMIC);
	bool atomic = w->access & IBV_ACCESS_REMOTE_ATOMIC;
	uint32_t rkey = w->key | VB_KEY_REMOTE;
	struct vb_far *f = u->far;
	enum vb_reason r = VB_OK;
	uint8_t *p = NULL;

	u->how = VB_USE_HERE;
	if (f->same)
		return VB_OK;
	/* Of other regions the owner does not tell what memory they are.  An atomic has it asked at once. */
	if ((have & REMOTE) && (!atomic || vb_far_mapped(f, rkey)))
		p = vb_far_shared_at(f, rkey, at, w->len, write);
	if (p) {
		u->ptr = p;
		return VB_OK;
	}
	u->how = VB_USE_FAR;
	if (atomic) /* the kernel copies, but does not add */
		r = vb_far_may_map(f, rkey) ? VB_MEM_LATER : VB_R_ATOMIC_FOREIGN;
	else
		r = vb_foreign_why(u);
	if (atomic_load_explicit(&f->asks, memory_order_relaxed) && t->ops->ask)
		t->ops->ask(t->owner, f);
	return r == VB_R_MEM_VANISHED ? VB_OK : r;
}

enum vb_reason vb_foreign_begin(struct vb_keys *t, struct vb_mem_use *u, const struct vb_mem_want *want,
				struct vb_facts *facts)
{
	struct vb_far *f = find(t, want);
	struct vb_mem_want w = *want;
	enum vb_reason r;

	if (!f || is_own(t, f))
		return no_contact(t, want, f, facts);
	u->far = f;
	w.key = vb_key_as_lkey(t, want);
	for (;;) {
		uint32_t number = f->number, index = vb_far_index(f, w.key);
		const struct vb_key_entry *e = entry_at(f, index);
		enum vb_key_kind kind = VB_KEY_KINDS;
		uint64_t at;

		u->slot = vb_slot_claim(&t->slots);
		vb_announce_via(u->slot, vb_announce_word(number, 0, index));
		r = is_there(f, number, want);
		if (r == VB_OK && e)
			kind = vb_key_resolve(e, &w, &at);
		if (kind < VB_KEY_KINDS) {
			VB_FAULT_POINT("foreign memory announced, not yet touched");
			u->ptr = (uint8_t *)(uintptr_t)at;
			u->how = VB_USE_NULL;
			if (kind != VB_KEY_NULL)
				r = reach(t, u, want, atomic_load(&e->access));
			if (r == VB_OK)
				return VB_OK;
		}
		vb_announce_via_end(u->slot);
		vb_slot_release(u->slot);
		if (r == VB_R_KEY_NO_CONTACT)
			return no_contact(t, want, f, facts);
		if (r != VB_OK)
			return refuse(t, r, want, f->pid, facts);
		r = vb_key_classify(t, e, want, facts);
		if (r != VB_OK)
			return r;
	}
}

enum vb_reason vb_foreign_check(struct vb_keys *t, const struct vb_mem_want *w, struct vb_facts *facts)
{
	struct vb_far *f = find(t, w);
	enum vb_reason r;

	if (!f || is_own(t, f))
		return no_contact(t, w, f, facts);
	r = is_there(f, f->number, w);
	if (r == VB_R_KEY_NO_CONTACT)
		return no_contact(t, w, f, facts);
	if (r != VB_OK)
		return refuse(t, r, w, f->pid, facts);
	return vb_key_classify(t, entry_at(f, vb_far_index(f, w->key)), w, facts);
}

static bool move(const struct vb_mem_use *u, bool write, void *here, uint32_t n, uint64_t at)
{
	return vb_far_move(u->far, write, &(struct iovec){here, n}, 1,
			   &(struct iovec){(void *)(uintptr_t)at, n}, 1) == n;
}

bool vb_foreign_get(const struct vb_mem_use *u, void *dst, uint32_t n)
{
	return move(u, false, dst, n, (uintptr_t)u->ptr);
}

bool vb_foreign_put(const struct vb_mem_use *u, const void *src, uint32_t n)
{
	uint64_t at = (uintptr_t)u->ptr;
	uint8_t *from = (uint8_t *)(uintptr_t)src;
	uint32_t tail =
	    (uint32_t)((at + n - 1) & 7) + 1; /* the last up to 8 aligned bytes are to come last */
	struct iovec here[2], there = {(void *)(uintptr_t)at, n};

	if (tail >= n)
		return move(u, true, from, n, at);
#if defined(__x86_64__) /* the kernel copies piece by piece, and stores become visible in their order */
	here[0] = (struct iovec){from, n - tail};
	here[1] = (struct iovec){from + n - tail, tail};
	return vb_far_move(u->far, true, here, 2, &there, 1) == n;
#else
	(void)here;
	(void)there;
	if (!move(u, true, from, n - tail, at))
		return false;
	atomic_thread_fence(memory_order_seq_cst);
	return move(u, true, from + n - tail, tail, at + n - tail);
#endif
}

enum vb_reason vb_foreign_why(const struct vb_mem_use *u)
{
	if (!atomic_load(&u->far->there) || atomic_load(&u->far->gone) || !vb_far_alive(u->far))
		return VB_R_KEY_OWNER_GONE;
	return atomic_load_explicit(&u->far->denied, memory_order_relaxed) ? VB_R_MEM_FORBIDDEN
									   : VB_R_MEM_VANISHED;
}

uint32_t vb_foreign_pid(const struct vb_mem_use *u)
{
	return u->far->pid;
}
