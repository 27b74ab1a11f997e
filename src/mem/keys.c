#include "mem/keys.h"

#include "base/fault.h"
#include "check/check.h"

enum {
	/* Indices given back wait for so many others: a key's value returns after 256 times as many
	 * registrations, and a program that registers in a loop does not walk through the whole table. */
	RESERVE = 1024,
};

void vb_keys_init(struct vb_keys *t, struct vb_key_entry *entries, uint32_t capacity,
		  struct vb_key_slot *slots, struct vb_key_marks *marks)
{
	*t = (struct vb_keys){
	    .entries = entries,
	    .slots = {.at = slots, .used = &marks->slots},
	    .marks = marks,
	    .capacity = capacity,
	    .quick = vb_check_on ? 0 : capacity,
	    .plain = {.base = 1,
		      .room = capacity ? capacity - 1 : 0,
		      .reserve = RESERVE}, /* key 0 is nobody's */
	    .tagged = {.base = VB_KEY_PLAIN, .reserve = VB_TAGGED_KEYS / 2},
	};
	if (capacity)
		atomic_store(&entries[0].seq, 1); /* for ever being changed: no lookup succeeds */
}

/* In `tied` of a region: it is going, or gone. */
#define CLOSED (1ull << 63)

static struct vb_key_entry *entry_of(struct vb_keys *t, uint32_t lkey)
{
	return &t->entries[vb_keys_index(t, lkey)];
}

static void free_from(struct vb_keys *t, struct vb_key_zone *z)
{
	z->free_head = (uint32_t)atomic_load_explicit(&t->entries[z->free_head].addr, memory_order_relaxed);
	if (!z->free_head)
		z->free_tail = 0;
}

/* Takes an index; 0: full.  Pairs with give_index(). */
static uint32_t take_index(struct vb_keys *t, struct vb_key_zone *z)
{
	uint32_t index = 0;

	vb_lock_take(&t->lock); /* given below */
	if (z->free_head && (z->used >= z->room || z->used - z->live >= z->reserve)) {
		index = z->free_head;
		free_from(t, z);
	} else if (z->used < z->room) {
		index = z->base + z->used++;
		atomic_store_explicit(z == &t->plain ? &t->marks->keys : &t->marks->tagged,
				      z == &t->plain ? z->base + z->used : z->used, memory_order_release);
	}
	if (index)
		z->live++;
	vb_lock_give(&t->lock);
	return index;
}

static void give_index(struct vb_keys *t, uint32_t index)
{
	struct vb_key_zone *z = index < VB_KEY_PLAIN ? &t->plain : &t->tagged;

	vb_lock_take(&t->lock); /* given below */
	atomic_store_explicit(&t->entries[index].addr, 0, memory_order_relaxed);
	if (z->free_tail)
		atomic_store_explicit(&t->entries[z->free_tail].addr, index, memory_order_relaxed);
	else
		z->free_head = index;
	z->free_tail = index;
	z->live--;
	vb_lock_give(&t->lock);
}

/* The entry's fields, while its sequence number is odd.  Each store is a release, so that a reader that sees
 * it sees the odd number too. */
static void write_entry(struct vb_key_entry *e, uint32_t key, const struct vb_key_spec *s)
{
	atomic_store_explicit(&e->key, key, memory_order_release);
	atomic_store_explicit(&e->pd, s->pd, memory_order_release);
	atomic_store_explicit(&e->access, s->access, memory_order_release);
	atomic_store_explicit(&e->qpn, s->qpn, memory_order_release);
	atomic_store_explicit(&e->iova, s->iova, memory_order_release);
	atomic_store_explicit(&e->length, s->length, memory_order_release);
	atomic_store_explicit(&e->addr, s->addr, memory_order_release);
	atomic_store_explicit(&e->kind, s->kind, memory_order_release);
}

/* Room for the tagged keys of one more number; false: there is none. */
static bool add_number(struct vb_keys *t)
{
	uint32_t k, number;

	vb_lock_take(&t->lock);
	k = t->tagged.room / VB_TAGGED_KEYS;
	vb_lock_give(&t->lock);
	if (k == VB_ADAPTER_NUMBERS || !t->ops || !t->ops->number)
		return false;
	number = t->ops->number(t->owner, k);		      /* may take a mutex */
	vb_lock_take(&t->lock);				      /* given below */
	if (number && t->tagged.room == k * VB_TAGGED_KEYS) { /* else another thread was quicker */
		atomic_store_explicit(&t->marks->numbers[k], (uint16_t)number, memory_order_release);
		t->tagged.room += VB_TAGGED_KEYS;
	}
	vb_lock_give(&t->lock);
	return number;
}

static uint32_t take_tagged(struct vb_keys *t)
{
	uint32_t index, at, last;

	while (!(index = take_index(t, &t->tagged)))
		if (!add_number(t))
			return 0;
	at = index - VB_KEY_PLAIN;
	last = (uint32_t)atomic_load_explicit(&t->entries[index].iova, memory_order_relaxed);
	return VB_KEY_TAGGED |
	       (uint32_t)atomic_load_explicit(&t->marks->numbers[at / VB_TAGGED_KEYS], memory_order_relaxed)
		   << 18 |
	       at % VB_TAGGED_KEYS << 8 | VB_KEY_VARIANT(last + 1);
}

uint32_t vb_key_take(struct vb_keys *t, uint64_t pd)
{
	uint32_t index, last;

	if (vb_unlikely((uint32_t)(pd >> 32) != t->home))
		return take_tagged(t);
	index = take_index(t, &t->plain);
	if (!index)
		return 0;
	last = (uint32_t)atomic_load_explicit(&t->entries[index].iova, memory_order_relaxed);
	return (index + t->offset) << 8 | (last ? VB_KEY_VARIANT(last + 1) : t->variant);
}

/* A key is given out, before its entry says so. */
static void note_variant(struct vb_key_entry *e, uint32_t lkey)
{
	uint32_t n = atomic_load_explicit(&e->variants, memory_order_relaxed);
	uint32_t last = atomic_load_explicit(&e->key, memory_order_relaxed);

	if (!last)
		last = (uint32_t)atomic_load_explicit(&e->iova, memory_order_relaxed);
	if (n && VB_KEY_VARIANT(lkey) == VB_KEY_VARIANT(last))
		return;
	if (!n || (n < VB_KEY_ANY_VARIANT && VB_KEY_VARIANT(lkey) == VB_KEY_VARIANT(last + 1)))
		n++;
	else
		n = VB_KEY_ANY_VARIANT;
	atomic_store_explicit(&e->variants, (uint16_t)n, memory_order_relaxed);
}

void vb_key_set(struct vb_keys *t, uint32_t lkey, const struct vb_key_spec *s)
{
	struct vb_key_entry *e = entry_of(t, lkey);
	uint32_t seq = atomic_load_explicit(&e->seq, memory_order_relaxed);

	note_variant(e, lkey);
	atomic_store_explicit(&e->seq, seq + 1, memory_order_relaxed);
	VB_FAULT_POINT("key entry odd: publication");
	write_entry(e, vb_key_bare(t, lkey), s);
	atomic_store_explicit(&e->tied, s->tied, memory_order_release);
	atomic_store_explicit(&e->seq, seq + 2, memory_order_release); /* pairs with vb_mem_begin() */
}

uint32_t vb_key_publish(struct vb_keys *t, const struct vb_key_spec *s)
{
	uint32_t lkey = vb_key_take(t, s->pd);

	if (lkey)
		vb_key_set(t, lkey, s);
	return lkey;
}

void vb_key_wait(struct vb_keys *t, uint32_t lkey)
{
	vb_slots_wait(&t->slots, vb_keys_index(t, lkey), lkey);
}

void vb_key_change(struct vb_keys *t, uint32_t lkey, const struct vb_key_spec *s)
{
	struct vb_key_entry *e = entry_of(t, lkey);
	uint32_t seq = atomic_load_explicit(&e->seq, memory_order_relaxed);
	struct vb_key_spec flagged = *s;

	/* Who meets the odd number sees by the flag that it need only look again: it goes up before the
	 * number is odd, and down once it is even. */
	atomic_fetch_or(&e->kind, VB_KEY_CHANGING);
	atomic_store_explicit(&e->seq, seq + 1, memory_order_release);
	VB_FAULT_POINT("key entry odd: change");
	flagged.kind |= VB_KEY_CHANGING;
	write_entry(e, vb_key_bare(t, lkey), &flagged);
	/* seq_cst with the slots, as in vb_key_hide(): whoever is not seen below sees the new meaning. */
	atomic_exchange(&e->seq, seq + 2);
	atomic_store_explicit(&e->kind, s->kind, memory_order_release);
	vb_key_wait(t, lkey);
}

uint32_t vb_key_hide(struct vb_keys *t, uint32_t lkey)
{
	struct vb_key_entry *e = entry_of(t, lkey);
	uint32_t seq = atomic_load_explicit(&e->seq, memory_order_relaxed);

	/* This store and the loads of the slots, a user's store to its slot and its load of seq: all seq_cst,
	 * so either the user sees the odd number or we see the user. */
	atomic_exchange(&e->seq, seq + 1);
	VB_FAULT_POINT("key entry odd: retraction");
	return atomic_load(&t->rounds.now);
}

bool vb_key_settled(struct vb_keys *t, uint32_t lkey, uint32_t round)
{
	uint32_t index = vb_keys_index(t, lkey);
	/* Who announces all keys at once uses local ones: no window, which some thread or other that does so
	 * would hold up for ever. */
	bool window = atomic_load_explicit(&t->entries[index].kind, memory_order_relaxed) == VB_KEY_WINDOW;

	return vb_slots_settled(&t->slots, &t->rounds, index, round, !window) &&
	       (!t->ops || !t->ops->in_use(t->owner, index));
}

void vb_key_retract(struct vb_keys *t, uint32_t lkey)
{
	vb_key_hide(t, lkey);
	vb_key_wait(t, lkey);
}

void vb_key_clear(struct vb_keys *t, uint32_t lkey, enum vb_key_kind kind)
{
	struct vb_key_entry *e = entry_of(t, lkey);
	uint32_t seq = atomic_load_explicit(&e->seq, memory_order_relaxed);
	/* where the key is remembered for the next variant, and for whoever has it still */
	const struct vb_key_spec nothing = {.kind = kind, .iova = vb_key_bare(t, lkey)};

	/* odd already if it was published; what was never set becomes odd for a moment */
	if (!(seq & 1))
		atomic_store_explicit(&e->seq, ++seq, memory_order_relaxed);
	note_variant(e, lkey);
	if (kind == VB_KEY_WINDOW)
		atomic_store_explicit(&e->variants, VB_KEY_ANY_VARIANT, memory_order_relaxed);
	atomic_store_explicit(&e->tied, CLOSED, memory_order_release);
	write_entry(e, 0, &nothing);
	atomic_store_explicit(&e->seq, seq + 1, memory_order_release);
}

void vb_key_give(struct vb_keys *t, uint32_t lkey)
{
	vb_key_clear(t, lkey, atomic_load_explicit(&entry_of(t, lkey)->kind, memory_order_relaxed));
	give_index(t, vb_keys_index(t, lkey));
}

bool vb_key_tie(struct vb_keys *t, uint32_t lkey)
{
	struct vb_key_entry *e = entry_of(t, lkey);
	uint64_t n = atomic_load(&e->tied);

	do {
		if (n & CLOSED)
			return false;
	} while (!atomic_compare_exchange_weak(&e->tied, &n, n + 1));
	/* The count may be that of an earlier or later region at this index: then it is taken back. */
	if (atomic_load(&e->key) == vb_key_bare(t, lkey) && !(atomic_load(&e->seq) & 1))
		return true;
	atomic_fetch_sub(&e->tied, 1);
	return false;
}

void vb_key_untie(struct vb_keys *t, uint32_t lkey)
{
	atomic_fetch_sub(&entry_of(t, lkey)->tied, 1);
}

bool vb_key_close(struct vb_keys *t, uint32_t lkey)
{
	uint64_t none = 0;

	return atomic_compare_exchange_strong(&entry_of(t, lkey)->tied, &none, CLOSED);
}

void vb_key_open(struct vb_keys *t, uint32_t lkey)
{
	atomic_fetch_and(&entry_of(t, lkey)->tied, ~CLOSED);
}

uint32_t vb_key_tied(struct vb_keys *t, uint32_t lkey)
{
	return (uint32_t)atomic_load(&entry_of(t, lkey)->tied);
}

void vb_key_shoot(const struct vb_key_entry *e, struct vb_key_shot *s)
{
	struct vb_patience p = {0};
	uint32_t seq, kind;

	/* A lookup that races with changes without end settles for "being changed". */
	for (int tries = 0; tries < 16;) {
		seq = atomic_load_explicit(&e->seq, memory_order_acquire);
		s->key = atomic_load_explicit(&e->key, memory_order_acquire);
		s->spec.pd = atomic_load_explicit(&e->pd, memory_order_acquire);
		s->spec.access = atomic_load_explicit(&e->access, memory_order_acquire);
		kind = atomic_load_explicit(&e->kind, memory_order_acquire);
		s->spec.kind = kind & ~(uint32_t)VB_KEY_CHANGING;
		s->spec.qpn = atomic_load_explicit(&e->qpn, memory_order_acquire);
		s->spec.iova = atomic_load_explicit(&e->iova, memory_order_acquire);
		s->spec.length = atomic_load_explicit(&e->length, memory_order_acquire);
		s->spec.addr = atomic_load_explicit(&e->addr, memory_order_acquire);
		s->spec.tied = atomic_load_explicit(&e->tied, memory_order_acquire);
		s->variants = atomic_load_explicit(&e->variants, memory_order_acquire);
		s->last = s->key ? s->key : (uint32_t)s->spec.iova;
		s->odd = true;
		if ((seq & 1) && (kind & VB_KEY_CHANGING)) { /* a few stores away, unless its thread lost the
								CPU */
			if (!vb_patience_nap(&p))
				continue;
			return; /* in another process's table, which may have died over it */
		}
		if (atomic_load_explicit(&e->seq, memory_order_relaxed) == seq) {
			s->odd = seq & 1; /* then it is being retracted, or made */
			return;
		}
		tries++;
	}
}

bool vb_key_look(struct vb_keys *t, uint32_t lkey, struct vb_key_spec *spec)
{
	uint32_t index = vb_keys_index(t, lkey);
	struct vb_key_shot s = {.odd = true};

	if (index && (index < t->capacity || (index >= VB_KEY_PLAIN && vb_key_used(t->marks, index))))
		vb_key_shoot(&t->entries[index], &s);
	*spec = s.spec;
	return !s.odd && s.key == vb_key_bare(t, lkey);
}

uint32_t vb_key_seq(struct vb_keys *t, uint32_t lkey)
{
	uint32_t index = vb_keys_index(t, lkey);

	return index && vb_key_used(t->marks, index) ? atomic_load(&t->entries[index].seq) : 1;
}

bool vb_key_at(const struct vb_keys *t, uint32_t index, bool remote, uint32_t *key, struct vb_key_spec *spec)
{
	struct vb_key_shot s = {.odd = true};

	if (index && vb_key_used(t->marks, index))
		vb_key_shoot(&t->entries[index], &s);
	*key = s.key | (remote ? VB_KEY_REMOTE : t->local_bit);
	*spec = s.spec;
	return !s.odd && s.key && s.spec.length;
}

bool vb_key_read(const struct vb_key_entry *e, uint32_t *lkey, struct vb_key_spec *spec)
{
	struct vb_key_shot s = {.odd = true};

	vb_key_shoot(e, &s);
	*lkey = s.key;
	*spec = s.spec;
	return !s.odd && s.key;
}

void vb_key_tell(struct vb_keys *t, uint32_t lkey)
{
	atomic_store(&entry_of(t, lkey)->told, 1);
}

bool vb_key_told(struct vb_keys *t, uint32_t lkey)
{
	struct vb_key_entry *e = entry_of(t, lkey);

	return vb_unlikely(atomic_load(&e->told)) && atomic_exchange(&e->told, 0);
}
