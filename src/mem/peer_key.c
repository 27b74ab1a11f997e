#include "mem/peer_key.h"

#include <infiniband/verbs.h>

#include "base/fault.h"
#include "mem/check.h"
#include "mem/peer_mem.h"
#include "mem/near.h"

enum { REMOTE = IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_ATOMIC };

/* The adapter in whose table the key stands; NULL: not in contact. */
static struct vb_peer_mem *find(struct vb_keys *t, const struct vb_mem_want *w)
{
	if (!t->ops || !t->ops->find)
		return NULL;
	return t->ops->find(t->owner, w->key & VB_KEY_TAGGED ? VB_KEY_NUMBER(w->key) : VB_PD_HOME(w->pd));
}

/* Whether its tables are this process's own. */
static bool is_own(const struct vb_keys *t, const struct vb_peer_mem *f)
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
static enum vb_reason no_contact(struct vb_keys *t, const struct vb_mem_want *w,
				 const struct vb_peer_mem *peer, struct vb_facts *f)
{
	bool none = !t->ops || !t->ops->find || is_own(t, peer) ||
		    (t->ops->peers_hold && !t->ops->peers_hold(t->owner, w->pd));

	if (none)
		return refuse(t, VB_R_KEY_UNKNOWN, w, 0, f);
	return refuse(t, VB_R_KEY_NO_CONTACT, w, peer ? peer->pid : 0, f);
}

/* Whether f's tables are those of the adapter that the key speaks of, and that adapter will wait for what we
 * announce.  VB_OK: they are. */
static enum vb_reason is_there(struct vb_peer_mem *f, uint32_t number, const struct vb_mem_want *w)
{
	uint64_t there = atomic_load(&f->there); /* pairs with vb_direct_peer_up() */

	/* A domain's number has 20 bits of its home's incarnation: the number may be another process's now.
	 */
	if (!there || f->number != number || (!(w->key & VB_KEY_TAGGED) && ((w->pd >> 32 ^ there) & 0xfffff)))
		return VB_R_KEY_OWNER_GONE;
	/* What is announced to one who does not look yet would be waited for by nobody. */
	return atomic_load(f->heard) == f->token ? VB_OK : VB_R_KEY_NO_CONTACT;
}

static const struct vb_key_entry *entry_at(const struct vb_peer_mem *f, uint32_t index)
{
	return index && vb_key_used(f->marks, index) ? &f->keys[index] : NULL;
}

/* How the bytes at u->ptr of the peer's process can be touched; VB_OK: u says so. */
static enum vb_reason reach(struct vb_keys *t, struct vb_mem_use *u, const struct vb_mem_want *w,
			    uint32_t have)
{
	uint64_t at = (uintptr_t)u->ptr;
	bool write =
	    w->access & (IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_ATOMIC);
	bool atomic = w->word || w->access & IBV_ACCESS_REMOTE_ATOMIC;
	uint32_t rkey = w->key | VB_KEY_REMOTE;
	struct vb_peer_mem *f = u->peer;
	enum vb_reason r = VB_OK;
	uint8_t *p = NULL;

	u->how = VB_USE_HERE;
	if (f->same)
		return VB_OK;
	/* Other regions are mapped for lent SENDs only.  An atomic has it asked at once. */
	if ((have & REMOTE) && (!atomic || vb_peer_mem_mapped(f, rkey)))
		p = vb_peer_mem_mapped_at(f, rkey, at, w->len, write);
	if (p) {
		u->ptr = p;
		return VB_OK;
	}
	u->how = VB_USE_PEER;
	if (atomic) /* the kernel copies, but neither adds nor stores a word in one go */
		r = vb_peer_mem_may_map(f, rkey) ? VB_MEM_LATER : VB_R_ATOMIC_PEER;
	else
		r = vb_peer_key_why(u);
	if (atomic_load_explicit(&f->asks, memory_order_relaxed) && t->ops->ask)
		t->ops->ask(t->owner, f);
	return r == VB_R_MEM_VANISHED ? VB_OK : r;
}

enum vb_reason vb_peer_key_begin(struct vb_keys *t, struct vb_mem_use *u, const struct vb_mem_want *want,
				 struct vb_facts *facts)
{
	struct vb_peer_mem *f = find(t, want);
	struct vb_mem_want w = *want;
	enum vb_reason r;

	if (!f || is_own(t, f))
		return no_contact(t, want, f, facts);
	u->peer = f;
	w.key = vb_key_as_lkey(t, want);
	for (;;) {
		uint32_t number = f->number, index = vb_peer_mem_index(f, w.key);
		const struct vb_key_entry *e = NULL;
		enum vb_key_kind kind = VB_KEY_KINDS;
		uint64_t at;

		u->slot = vb_slot_claim(&t->slots);
		vb_announce_via(u->slot, vb_announce_word(number, 0, index));
		r = is_there(f, number, want);
		if (r == VB_OK) /* else its tables may be unmapped */
			e = entry_at(f, index);
		if (e)
			kind = vb_key_resolve(e, &w, &at);
		if (kind < VB_KEY_KINDS) {
			VB_FAULT_POINT("memory behind a peer's key announced, not yet touched");
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

enum vb_reason vb_peer_key_check(struct vb_keys *t, const struct vb_mem_want *w, struct vb_facts *facts)
{
	struct vb_peer_mem *f = find(t, w);
	enum vb_reason r;

	if (!f || is_own(t, f))
		return no_contact(t, w, f, facts);
	r = is_there(f, f->number, w);
	if (r == VB_R_KEY_NO_CONTACT)
		return no_contact(t, w, f, facts);
	if (r != VB_OK)
		return refuse(t, r, w, f->pid, facts);
	return vb_key_classify(t, entry_at(f, vb_peer_mem_index(f, w->key)), w, facts);
}

static bool move(const struct vb_mem_use *u, bool write, void *here, uint32_t n, uint64_t at)
{
	return vb_peer_mem_move(u->peer, write, &(struct iovec){here, n}, 1,
				&(struct iovec){(void *)(uintptr_t)at, n}, 1) == n;
}

bool vb_peer_key_get(const struct vb_mem_use *u, void *dst, uint32_t n)
{
	return move(u, false, dst, n, (uintptr_t)u->ptr);
}

bool vb_peer_key_put(const struct vb_mem_use *u, const void *src, uint32_t n)
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
	return vb_peer_mem_move(u->peer, true, here, 2, &there, 1) == n;
#else
	(void)here;
	(void)there;
	if (!move(u, true, from, n - tail, at))
		return false;
	atomic_thread_fence(memory_order_seq_cst);
	return move(u, true, from + n - tail, tail, at + n - tail);
#endif
}

enum vb_reason vb_peer_key_why(const struct vb_mem_use *u)
{
	if (!atomic_load(&u->peer->there) || atomic_load(&u->peer->gone) || !vb_peer_mem_alive(u->peer))
		return VB_R_KEY_OWNER_GONE;
	return atomic_load_explicit(&u->peer->denied, memory_order_relaxed) ? VB_R_MEM_FORBIDDEN
									    : VB_R_MEM_VANISHED;
}

uint32_t vb_peer_key_pid(const struct vb_mem_use *u)
{
	return u->peer->pid;
}
