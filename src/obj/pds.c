#include "obj/pds.h"

#include "base/fault.h"
#include "iba/limits.h"

enum {
	INDEX_BITS = 16,
	/* Slots given back wait for so many others, so that a handle that somebody still has in hand is not
	 * soon another domain's. */
	RESERVE = 1024,
};
_Static_assert(VB_MAX_PD == 1 << INDEX_BITS, "a handle holds an index and a generation");
_Static_assert(sizeof(struct vb_pd_slot) == 32, "VB_SEG_PD_SIZE");

void vb_pds_init(struct vb_pds *t, struct vb_pd_slot *slots, struct vb_pd_marks *marks, uint64_t base)
{
	*t = (struct vb_pds){.slots = slots, .marks = marks, .base = base};
}

/* An index, with `first` if nothing ever stood there; VB_MAX_PD: none. */
static uint32_t take_index(struct vb_pds *t, bool *first)
{
	uint32_t used = atomic_load_explicit(&t->marks->used, memory_order_relaxed), i;

	vb_lock_assert_held(&t->lock);
	*first = !(t->free_head && (t->waiting >= RESERVE || used == VB_MAX_PD));
	if (*first) {
		if (used < VB_MAX_PD)
			atomic_store_explicit(&t->marks->used, used + 1, memory_order_release);
		return used;
	}
	i = t->free_head - 1;
	t->free_head = (uint32_t)atomic_load_explicit(&t->slots[i].share_key, memory_order_relaxed);
	if (!t->free_head)
		t->free_tail = 0;
	t->waiting--;
	return i;
}

static void begin(struct vb_pd_slot *s)
{
	atomic_fetch_add(&s->seq, 1); /* what is stored next is not seen before it */
	VB_FAULT_POINT("protection domain's entry odd");
}

static void end(struct vb_pd_slot *s)
{
	atomic_fetch_add(&s->seq, 1); /* pairs with read_slot() */
}

bool vb_pds_take(struct vb_pds *t, uint64_t id, const uint64_t *key, uint32_t *handle, uint64_t *new_id)
{
	/* A process that has an earlier one's adapter number does not begin with its handles. */
	uint32_t generation = (uint32_t)(t->base >> 32) & 0xffff;
	struct vb_pd_slot *s;
	uint32_t i;
	bool first;

	vb_lock_take(&t->lock); /* given below */
	i = take_index(t, &first);
	vb_lock_give(&t->lock);
	if (i == VB_MAX_PD)
		return false;
	s = &t->slots[i];
	*handle = first ? generation << INDEX_BITS | i
			: atomic_load_explicit(&s->handle, memory_order_relaxed) + VB_MAX_PD;
	*new_id = id ? id : t->base | *handle;
	begin(s);
	atomic_store_explicit(&s->handle, *handle, memory_order_release);
	atomic_store_explicit(&s->id, *new_id, memory_order_release);
	atomic_store_explicit(&s->share_key, key ? *key : 0, memory_order_release);
	atomic_store_explicit(&s->shared, key != NULL, memory_order_release);
	end(s);
	return true;
}

void vb_pds_give(struct vb_pds *t, uint32_t handle)
{
	uint32_t i = handle % VB_MAX_PD;
	struct vb_pd_slot *s = &t->slots[i];

	vb_lock_take(&t->lock); /* given below */
	begin(s);
	atomic_store_explicit(&s->id, 0, memory_order_release);
	atomic_store_explicit(&s->shared, 0, memory_order_release);
	atomic_store_explicit(&s->share_key, 0, memory_order_release);
	end(s);
	if (t->free_tail)
		atomic_store_explicit(&t->slots[t->free_tail - 1].share_key, i + 1, memory_order_relaxed);
	else
		t->free_head = i + 1;
	t->free_tail = i + 1;
	t->waiting++;
	vb_lock_give(&t->lock);
}

bool vb_pds_share(struct vb_pds *t, uint32_t handle, uint64_t key)
{
	struct vb_pd_slot *s = &t->slots[handle % VB_MAX_PD];
	bool first;

	vb_lock_take(&t->lock); /* given below */
	first = !atomic_load_explicit(&s->shared, memory_order_relaxed);
	if (first) {
		begin(s);
		atomic_store_explicit(&s->share_key, key, memory_order_release);
		atomic_store_explicit(&s->shared, 1, memory_order_release);
		end(s);
	}
	vb_lock_give(&t->lock);
	return first;
}

/* False: free, or changing without end.  *handle: whose it is. */
static bool read_slot(const struct vb_pd_slot *s, uint32_t *handle, struct vb_pd_view *v)
{
	for (int tries = 0; tries < 1000; tries++) {
		uint32_t seq = atomic_load_explicit(&s->seq, memory_order_acquire);

		if (seq & 1) {
			vb_cpu_relax();
			continue;
		}
		*handle = atomic_load_explicit(&s->handle, memory_order_acquire);
		v->id = atomic_load_explicit(&s->id, memory_order_acquire);
		v->share_key = atomic_load_explicit(&s->share_key, memory_order_acquire);
		v->shared = atomic_load_explicit(&s->shared, memory_order_acquire);
		if (atomic_load_explicit(&s->seq, memory_order_relaxed) == seq)
			return v->id;
	}
	return false;
}

bool vb_pds_look(const struct vb_pd_slot *slots, const struct vb_pd_marks *marks, uint32_t handle,
		 struct vb_pd_view *v)
{
	uint32_t i = handle % VB_MAX_PD, found;

	return i < atomic_load_explicit(&marks->used, memory_order_acquire) &&
	       read_slot(&slots[i], &found, v) && found == handle;
}

bool vb_pds_find(const struct vb_pd_slot *slots, const struct vb_pd_marks *marks, uint32_t domain,
		 uint32_t nth, struct vb_pd_view *v)
{
	uint32_t used = atomic_load_explicit(&marks->used, memory_order_acquire), handle;

	for (uint32_t i = 0; i < used && i < VB_MAX_PD; i++)
		if (read_slot(&slots[i], &handle, v) && v->shared && vb_pd_domain(v->id) == domain && !nth--)
			return true;
	return false;
}
