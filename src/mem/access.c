#include "mem/access.h"

#include <string.h>

#include <infiniband/verbs.h>

#include "base/fault.h"
#include "base/memcheck.h"
#include "base/pages.h"
#include "check/check.h"
#include "mem/copy.h"
#include "mem/peer_key.h"

/* The entry in this table that the key names, NULL: there is none.  limit: of the table's entries. */
static inline struct vb_key_entry *entry_below(struct vb_keys *t, uint32_t key, uint32_t limit)
{
	uint32_t index = vb_keys_index(t, key);

	if (key & VB_KEY_TAGGED)
		return index && limit && vb_key_used(t->marks, index) ? &t->entries[index] : NULL;
	return index && index < limit ? &t->entries[index] : NULL;
}

static struct vb_key_entry *own_entry(struct vb_keys *t, uint32_t key)
{
	return entry_below(t, key, t->capacity);
}

static struct vb_check_touch touch_of(const struct vb_mem_use *u, enum vb_check_what what, uint64_t n)
{
	return (struct vb_check_touch){
	    .what = what, .at = u->ptr, .length = n, .remote = u->remote, .qpn = u->qpn, .key = u->key};
}

static bool is_writable_word(uint8_t *at)
{
	uint64_t word;

	return !((uintptr_t)at & 7) && vb_atomic_fetch_add(at, 0, &word);
}

/* A checked process has permitted an access.  An atomic, which is carried out without asking here again, is
 * told now. */
static __attribute__((cold, noinline)) void told(struct vb_mem_use *u, const struct vb_mem_want *w)
{
	u->how = VB_USE_TOLD;
	u->key = w->key;
	u->qpn = w->remote ? w->qpn : 0;
	u->remote = w->remote;
	if (w->access & IBV_ACCESS_REMOTE_ATOMIC) {
		struct vb_check_touch t = touch_of(u, VB_CHECK_ATOMIC, w->len);

		t.failed = vb_check_repeats_atomics && !is_writable_word(u->ptr);
		vb_check_touches(&t);
	}
}

/* A key of this table, not tagged or tagged. */
static enum vb_reason begin_at(struct vb_keys *t, uint32_t index, struct vb_mem_use *u,
			       const struct vb_mem_want *w, struct vb_facts *f)
{
	while (!vb_mem_try(t, index, u, w)) {
		enum vb_reason r = vb_key_classify(t, own_entry(t, w->key), w, f);

		if (r != VB_OK) /* else the entry has changed just now, to our favour */
			return r;
	}
	if (vb_unlikely(!t->quick) && u->how == VB_USE_HERE)
		told(u, w);
	return VB_OK;
}

enum vb_reason vb_mem_begin_any_key(struct vb_keys *t, struct vb_mem_use *u, const struct vb_mem_want *w,
				    struct vb_facts *f)
{
	struct vb_key_entry *e;

	if (!vb_key_is_plain(t, w) && vb_key_is_peers(t, w->key, w->pd))
		return vb_peer_key_begin(t, u, w, f);
	e = own_entry(t, w->key);
	if (!e)
		return vb_key_classify(t, NULL, w, f);
	return begin_at(t, (uint32_t)(e - t->entries), u, w, f);
}

static __attribute__((cold, noinline)) bool get_told(const struct vb_mem_use *u, void *dst, uint32_t n)
{
	struct vb_check_touch t = touch_of(u, VB_CHECK_READ, n);

	vb_check_touches(&t);
	t.failed = !vb_copy_from_app(dst, u->ptr, n);
	vb_check_touched(&t);
	return !t.failed;
}

static __attribute__((cold, noinline)) bool put_told(const struct vb_mem_use *u, const void *src, uint32_t n)
{
	struct vb_check_touch t = touch_of(u, VB_CHECK_WRITE, n);

	vb_check_touches(&t);
	t.failed = !vb_copy_to_app(u->ptr, src, n);
	vb_check_touched(&t);
	return !t.failed;
}

bool vb_mem_get(const struct vb_mem_use *u, void *dst, uint32_t n)
{
	if (vb_likely(u->how == VB_USE_HERE))
		return vb_copy_from_app(dst, u->ptr, n);
	if (u->how == VB_USE_PEER)
		return vb_peer_key_get(u, dst, n);
	if (u->how == VB_USE_TOLD)
		return get_told(u, dst, n);
	memset(dst, 0, n);
	return true;
}

bool vb_mem_put(const struct vb_mem_use *u, const void *src, uint32_t n)
{
	if (vb_likely(u->how == VB_USE_HERE))
		return vb_copy_to_app(u->ptr, src, n);
	if (u->how == VB_USE_PEER)
		return vb_peer_key_put(u, src, n);
	return u->how == VB_USE_NULL || put_told(u, src, n);
}

/* How many bytes in front can be read: pages, which are few in a piece of a transfer.  All, or none: it is
 * the permission to write that lacks, and the piece's beginning is as much as is known. */
static uint64_t first_gone(const uint8_t *p, uint64_t len)
{
	bool there = true;
	uint64_t n = 0;
	uint8_t byte;

	vb_memcheck_hush(true); /* it has reported the access that failed */
	while (n < len && (there = vb_copy_from_app(&byte, p + n, 1)))
		n += vb_page_size() - vb_page_offset((uintptr_t)(p + n));
	vb_memcheck_hush(false);
	return there ? 0 : n;
}

enum vb_reason vb_mem_why(const struct vb_mem_use *u, uint32_t key, uint64_t addr, uint64_t len,
			  struct vb_facts *f)
{
	enum vb_reason r = u->how == VB_USE_PEER ? vb_peer_key_why(u) : VB_R_MEM_VANISHED;

	*f = (struct vb_facts){.reason = r, .key = key, .addr = addr, .len = len};
	f->mem.process = u->peer ? vb_peer_key_pid(u) : 0;
	if (r == VB_R_MEM_VANISHED)
		f->mem.reached =
		    u->how == VB_USE_HERE || u->how == VB_USE_TOLD ? addr + first_gone(u->ptr, len) : addr;
	return r;
}

/* Windows and regions for peers are memory: a null region has no R_Key. */
bool vb_mem_cmp_swap(const struct vb_mem_use *u, uint64_t compare, uint64_t swap, uint64_t *orig)
{
	return vb_atomic_cmp_swap(u->ptr, compare, swap, orig);
}

bool vb_mem_fetch_add(const struct vb_mem_use *u, uint64_t add, uint64_t *orig)
{
	return vb_atomic_fetch_add(u->ptr, add, orig);
}

bool vb_mem_begin_any(struct vb_keys *t, struct vb_mem_use *u)
{
	u->slot = vb_slot_own(&t->slots);
	u->ptr = NULL;
	u->peer = NULL;
	if (!u->slot)
		return false;
	vb_announce_key(u->slot, VB_KEY_ANY);
	return true;
}

uint8_t *vb_mem_find(struct vb_keys *t, const struct vb_mem_want *want)
{
	struct vb_mem_want w = *want;
	struct vb_key_entry *e;
	enum vb_key_kind kind;
	uint64_t at;

	if (vb_unlikely(!vb_key_is_plain(t, want)) && vb_key_is_peers(t, w.key, w.pd))
		return NULL;
	e = entry_below(t, w.key, t->quick); /* a checked process has what asks here go another way */
	if (!e)
		return NULL;
	w.key = vb_key_as_lkey(t, want);
	kind = vb_key_resolve(e, &w, &at);
	return kind < VB_KEY_KINDS && kind != VB_KEY_NULL ? (uint8_t *)(uintptr_t)at : NULL;
}

enum vb_reason vb_mem_check(struct vb_keys *t, const struct vb_mem_want *w, struct vb_facts *f)
{
	struct vb_key_entry *e;

	if (vb_unlikely(!vb_key_is_plain(t, w)) && vb_key_is_peers(t, w->key, w->pd))
		return vb_peer_key_check(t, w, f);
	e = own_entry(t, w->key);
	if (vb_likely(e && vb_key_judge(t, e, w) == VB_OK))
		return VB_OK;
	return vb_key_classify(t, e, w, f);
}
