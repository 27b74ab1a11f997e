#include "mem/keys.h"

#include <pthread.h>
#include <sched.h>
#include <string.h>
#include <time.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/fault.h"
#include "base/log.h"
#include "base/pages.h"
#include "mem/near.h"
#include "mem/copy.h"
#include "mem/foreign.h"

enum {
	PRIVATE_SLOTS = VB_MEM_SLOTS - 1, /* the last one is shared */
	/* Indices given back wait for so many others: a key's value returns after 256 times as many
	 * registrations, and a program that registers in a loop does not walk through the whole table. */
	RESERVE = 1024,
};

/* A thread's slot number in every table of this process. */
static _Atomic uint64_t slots_taken; /* bit n: a thread has slot n */
static __thread uint8_t my_slot;     /* number + 1; 0: none yet */
static pthread_once_t slots_once = PTHREAD_ONCE_INIT;
static pthread_key_t slots_key;
static bool slots_kept; /* no pthread key was left: slots of threads that end are not used again */

/* Thread exit: pairs with take_slot(). */
static void give_slot(void *arg)
{
	unsigned n = (unsigned)(uintptr_t)arg - 1;

	my_slot = 0;
	if (n < PRIVATE_SLOTS)
		atomic_fetch_and(&slots_taken, ~(1ull << n));
}

/* In a forked child the other threads are gone. */
static void forked(void)
{
	atomic_store(&slots_taken, my_slot && my_slot <= PRIVATE_SLOTS ? 1ull << (my_slot - 1) : 0);
}

static void slots_init(void)
{
	slots_kept = pthread_key_create(&slots_key, give_slot) != 0;
	pthread_atfork(NULL, NULL, forked);
}

static __attribute__((cold, noinline)) uint8_t take_slot(void)
{
	uint64_t taken = atomic_load(&slots_taken);
	unsigned n;

	pthread_once(&slots_once, slots_init);
	do {
		n = ~taken ? (unsigned)__builtin_ctzll(~taken) : PRIVATE_SLOTS;
		if (n >= PRIVATE_SLOTS) {
			n = PRIVATE_SLOTS;
			break;
		}
	} while (!atomic_compare_exchange_weak(&slots_taken, &taken, taken | 1ull << n));
	my_slot = (uint8_t)(n + 1);
	if (!slots_kept)
		pthread_setspecific(slots_key, (void *)(uintptr_t)my_slot);
	return my_slot;
}

void vb_keys_init(struct vb_keys *t, struct vb_key_entry *entries, uint32_t capacity,
		  struct vb_key_slot *slots, struct vb_key_marks *marks)
{
	*t = (struct vb_keys){
	    .entries = entries,
	    .slots = slots,
	    .marks = marks,
	    .capacity = capacity,
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
	return VB_KEY_SHARED |
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

enum { ANY_VARIANT = 256 };

/* A key is given out, before its entry says so. */
static void note_variant(struct vb_key_entry *e, uint32_t lkey)
{
	uint32_t n = atomic_load_explicit(&e->variants, memory_order_relaxed);
	uint32_t last = atomic_load_explicit(&e->key, memory_order_relaxed);

	if (!last)
		last = (uint32_t)atomic_load_explicit(&e->iova, memory_order_relaxed);
	if (n && VB_KEY_VARIANT(lkey) == VB_KEY_VARIANT(last))
		return;
	if (!n || (n < ANY_VARIANT && VB_KEY_VARIANT(lkey) == VB_KEY_VARIANT(last + 1)))
		n++;
	else
		n = ANY_VARIANT;
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

bool vb_patience_nap(struct vb_patience *p)
{
	static const struct timespec nap = {.tv_nsec = 100000};
	uint64_t now;
	bool tell;

	if (p->tries < 64) {
		p->tries++;
		vb_cpu_relax();
		return false;
	}
	if (p->tries < 1024) {
		p->tries++;
		sched_yield();
		return false;
	}
	now = vb_now();
	if (!p->began)
		p->began = now;
	tell = !p->told && now - p->began > VB_SEC;
	p->told |= tell;
	syscall(SYS_clock_nanosleep, CLOCK_MONOTONIC, 0, &nap, NULL); /* no cancellation point */
	return tell;
}

static bool names(uint32_t in_use, uint32_t index)
{
	return in_use == index || in_use == VB_KEY_ANY;
}

/* Waits until the slot does not name the entry: the thread is done, or has not begun and will see the odd
 * sequence number. */
static void wait_for(struct vb_key_slot *s, uint32_t index, uint32_t lkey)
{
	uint32_t turn = atomic_load(&s->turn); /* a later one finds the entry odd */
	struct vb_patience p = {0};

	while (names(atomic_load(&s->index), index) && atomic_load(&s->turn) == turn) {
		if (vb_patience_nap(&p))
			vb_log(VB_LOG_WARN,
			       "taking back L_Key 0x%08x, or what it meant, waits for a thread of process %d "
			       "that is using it",
			       lkey, (int)getpid());
	}
}

void vb_key_wait(struct vb_keys *t, uint32_t lkey)
{
	uint32_t high = atomic_load(&t->marks->slots);

	for (uint32_t i = 0; i < high; i++)
		wait_for(&t->slots[i], vb_keys_index(t, lkey), lkey);
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

/* Whether every announcement of all keys that stood when `round` was read has ended: the next round begins
 * later than that, and is over. */
static bool rounds_over(struct vb_keys *t, uint32_t round, uint32_t high)
{
	struct vb_key_rounds *r = &t->rounds;
	bool over;

	vb_lock_take(&t->lock); /* given below */
	for (uint32_t i = 0; i < high; i++)
		/* a later turn finds the entry odd, as in wait_for() */
		if (atomic_load(&t->slots[i].turn) != r->turns[i] ||
		    atomic_load(&t->slots[i].index) != VB_KEY_ANY)
			r->waits &= ~(1ull << i);
	if (!r->waits) {
		atomic_fetch_add(&r->now, 1); /* before the slots are looked at; pairs with vb_key_hide() */
		for (uint32_t i = 0; i < high; i++) {
			r->turns[i] = atomic_load(&t->slots[i].turn);
			if (atomic_load(&t->slots[i].index) == VB_KEY_ANY)
				r->waits |= 1ull << i;
		}
	}
	over = atomic_load(&r->now) - round >= 2;
	vb_lock_give(&t->lock);
	return over;
}

bool vb_key_settled(struct vb_keys *t, uint32_t lkey, uint32_t round)
{
	uint32_t high = atomic_load(&t->marks->slots), index = vb_keys_index(t, lkey);
	/* Who announces all keys at once uses local ones: no window, which some thread or other that does so
	 * would hold up for ever. */
	bool window = atomic_load_explicit(&t->entries[index].kind, memory_order_relaxed) == VB_KEY_WINDOW;

	bool any = false;

	for (uint32_t i = 0; i < high; i++) {
		uint32_t used = atomic_load(&t->slots[i].index);

		if (used == index)
			return false;
		any |= used == VB_KEY_ANY;
	}
	if (vb_unlikely(any && !window && !rounds_over(t, round, high)))
		return false;
	return !t->ops || !t->ops->in_use(t->owner, index);
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
		atomic_store_explicit(&e->variants, ANY_VARIANT, memory_order_relaxed);
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

/* What an entry said at one moment; odd if it was being changed (then the rest may be mixed). */
struct shot {
	struct vb_key_spec spec;
	uint32_t key, last, variants;
	bool odd;
};

static void take_shot(struct vb_key_entry *e, struct shot *s)
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
	struct shot s = {.odd = true};

	if (index && (index < t->capacity || (index >= VB_KEY_PLAIN && vb_key_used(t->marks, index))))
		take_shot(&t->entries[index], &s);
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
	struct shot s = {.odd = true};

	if (index && vb_key_used(t->marks, index))
		take_shot(&t->entries[index], &s);
	*key = s.key | (remote ? VB_KEY_REMOTE : t->local_bit);
	*spec = s.spec;
	return !s.odd && s.key && s.spec.length;
}

bool vb_key_read(const struct vb_key_entry *e, uint32_t *lkey, struct vb_key_spec *spec)
{
	struct shot s = {.odd = true};

	take_shot((struct vb_key_entry *)(uintptr_t)e, &s); /* which reads only */
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

static inline bool in_bounds(uint64_t iova, uint64_t length, uint64_t addr, uint64_t len)
{
	uint64_t off = addr - iova; /* below the region this wraps to more than any length (rule 19) */

	return addr >= iova && off <= length && len <= length - off;
}

/* No key that this index ever had has this variant. */
static bool never_given(const struct shot *s, uint32_t key)
{
	return !s->odd && VB_KEY_VARIANT(s->last - key) >= s->variants;
}

static enum vb_reason judge(const struct vb_keys *t, const struct shot *s, const struct vb_mem_want *w)
{
	const struct vb_key_spec *k = &s->spec;

	if (!s->last && !s->odd)
		return VB_R_KEY_UNKNOWN;
	if (t->local_bit & ~w->key) /* no key of this profile */
		return VB_R_KEY_UNKNOWN;
	/* (A kind that there is not stands only in a hostile process's table.) */
	if (s->odd || s->key != (w->key & ~VB_KEY_REMOTE) || k->kind >= VB_KEY_KINDS)
		return never_given(s, w->key) ? VB_R_KEY_UNKNOWN : VB_R_KEY_STALE;
	if (w->remote && (!(w->key & VB_KEY_REMOTE) || k->kind == VB_KEY_NULL))
		return VB_R_KEY_IS_LOCAL;
	if (!w->remote && ((w->key & VB_KEY_REMOTE & ~t->local_bit) || k->kind == VB_KEY_WINDOW))
		return VB_R_KEY_IS_REMOTE;
	if (k->pd != w->pd)
		return VB_R_KEY_PD; /* rule 21 */
	if (k->kind == VB_KEY_WINDOW && k->qpn && k->qpn != w->qpn)
		return VB_R_KEY_QP; /* rule 48 */
	if (!in_bounds(k->iova, k->length, w->addr, w->len))
		return VB_R_KEY_BOUNDS;
	if (w->access & ~k->access)
		return VB_R_KEY_ACCESS;
	return VB_OK;
}

/* The entry in this table that the key names, NULL: there is none. */
static struct vb_key_entry *own_entry(struct vb_keys *t, uint32_t key)
{
	uint32_t index = vb_keys_index(t, key);

	if (key & VB_KEY_SHARED)
		return index && vb_key_used(t->marks, index) ? &t->entries[index] : NULL;
	return index && index < t->capacity ? &t->entries[index] : NULL;
}

void vb_key_facts(struct vb_facts *f, enum vb_reason r, const struct vb_mem_want *w)
{
	*f = (struct vb_facts){.reason = r,
			       .key = w->key,
			       .addr = w->addr,
			       .len = w->len,
			       .want = w->access,
			       .pd_want = (uint32_t)w->pd,
			       .a = w->remote ? VB_KEYF_REMOTE : 0};
}

/* What the index holds now. */
static void add_entry(const struct vb_keys *t, const struct shot *s, const struct vb_mem_want *w,
		      struct vb_facts *f)
{
	const struct vb_key_spec *k = &s->spec;

	f->cur_key = s->key | (w->remote ? VB_KEY_REMOTE : t->local_bit);
	f->start = k->iova;
	f->size = k->length;
	f->have = k->access;
	f->pd_have = (uint32_t)k->pd;
	if (VB_PD_HOME(k->pd) != VB_PD_HOME(w->pd))
		f->a |= VB_KEYF_OTHER_HOME;
	if (f->reason == VB_R_KEY_IS_LOCAL && k->kind == VB_KEY_NULL)
		f->cur_key = 0;						 /* it has no R_Key */
	if (f->reason == VB_R_KEY_IS_REMOTE && k->kind == VB_KEY_WINDOW) /* and this no L_Key: its region's */
		f->cur_key = (uint32_t)k->tied | t->local_bit;
}

__attribute__((cold)) enum vb_reason vb_key_classify(struct vb_keys *t, struct vb_key_entry *e,
						     const struct vb_mem_want *w, struct vb_facts *f)
{
	struct shot s = {0};
	enum vb_reason r;

	if (e)
		take_shot(e, &s);
	r = judge(t, &s, w);
	if (r == VB_OK || !f)
		return r;
	vb_key_facts(f, r, w);
	if (s.spec.kind == VB_KEY_WINDOW)
		f->a |= VB_KEYF_WINDOW;
	f->b = r == VB_R_KEY_QP ? s.spec.qpn : 0;
	if (s.last != (w->key & ~VB_KEY_REMOTE) && (s.odd || s.variants == ANY_VARIANT))
		f->a |= VB_KEYF_UNSURE;
	if (!s.odd && s.key && r != VB_R_KEY_UNKNOWN)
		add_entry(t, &s, w, f);
	if (r == VB_R_KEY_UNKNOWN || r == VB_R_KEY_STALE || r == VB_R_KEY_PD || r == VB_R_KEY_BOUNDS)
		vb_key_near(t, w, f);
	return r;
}

/* Makes retractors look at the slot, before its first use in this table. */
static __attribute__((cold, noinline)) void raise_mark(struct vb_keys *t, uint32_t mine)
{
	uint32_t high = atomic_load(&t->marks->slots);

	while (high < mine && !atomic_compare_exchange_weak(&t->marks->slots, &high, mine))
		;
}

/* This thread's slot number + 1, known to this table's retractors. */
static inline uint32_t slot_number(struct vb_keys *t)
{
	uint32_t mine = my_slot;

	if (vb_unlikely(!mine))
		mine = take_slot();
	if (vb_unlikely(mine > atomic_load_explicit(&t->marks->slots, memory_order_relaxed)))
		raise_mark(t, mine);
	return mine;
}

struct vb_key_slot *vb_mem_slot(struct vb_keys *t)
{
	uint32_t mine = slot_number(t);

	return mine > PRIVATE_SLOTS ? NULL : &t->slots[mine - 1];
}

enum vb_key_kind vb_key_resolve(const struct vb_key_entry *e, const struct vb_mem_want *w, uint64_t *at)
{
	uint32_t seq = atomic_load(&e->seq), qpn;
	uint32_t kind = atomic_load_explicit(&e->kind, memory_order_acquire) & ~(uint32_t)VB_KEY_CHANGING;
	uint64_t iova = atomic_load_explicit(&e->iova, memory_order_acquire);

	if ((seq & 1) || atomic_load_explicit(&e->key, memory_order_acquire) != w->key ||
	    atomic_load_explicit(&e->pd, memory_order_acquire) != w->pd ||
	    (w->access & ~atomic_load_explicit(&e->access, memory_order_acquire)) ||
	    !in_bounds(iova, atomic_load_explicit(&e->length, memory_order_acquire), w->addr, w->len))
		return VB_KEY_KINDS;
	*at = atomic_load_explicit(&e->addr, memory_order_acquire) + (w->addr - iova);
	qpn = atomic_load_explicit(&e->qpn, memory_order_acquire);
	/* Its meaning may be exchanged under the announcement (vb_key_change): all of one, and none of it
	 * later than the announcement. */
	if (atomic_load_explicit(&e->seq, memory_order_relaxed) != seq || kind >= VB_KEY_KINDS)
		return VB_KEY_KINDS;
	if (vb_unlikely(kind == VB_KEY_WINDOW ? !w->remote || (qpn && qpn != w->qpn)
					      : kind == VB_KEY_NULL && w->remote))
		return VB_KEY_KINDS;
	return kind;
}

/* Its thread alone writes it. */
static inline void next_turn(_Atomic uint32_t *turn)
{
	atomic_store_explicit(turn, atomic_load_explicit(turn, memory_order_relaxed) + 1,
			      memory_order_release);
}

struct vb_key_slot *vb_mem_claim(struct vb_keys *t)
{
	uint32_t mine = slot_number(t);
	struct vb_key_slot *slot = &t->slots[mine - 1];

	if (vb_unlikely(mine > PRIVATE_SLOTS))
		vb_lock_take(&slot->shared); /* given by vb_mem_end() */
	return slot;
}

/* A key of this table, not tagged or tagged. */
static inline enum vb_reason begin_at(struct vb_keys *t, uint32_t index, struct vb_mem_use *u,
				      const struct vb_mem_want *want, struct vb_facts *f)
{
	struct vb_mem_want w = *want;
	enum vb_key_kind kind;
	enum vb_reason r;
	uint64_t at;

	w.key = vb_key_as_lkey(t, want);
	u->far = NULL;
	for (;;) {
		u->slot = vb_mem_claim(t);
		next_turn(&u->slot->turn);
		atomic_store(&u->slot->index, index); /* see vb_key_hide() */
		kind = vb_key_resolve(&t->entries[index], &w, &at);
		if (vb_likely(kind < VB_KEY_KINDS)) {
			u->how = kind == VB_KEY_NULL ? VB_USE_NULL : VB_USE_HERE;
			u->ptr = (uint8_t *)(uintptr_t)at;
			VB_FAULT_POINT("memory announced, not yet touched");
			return VB_OK;
		}
		vb_mem_end(u);
		r = vb_key_classify(t, own_entry(t, want->key), want, f);
		if (r != VB_OK) /* else the entry has changed just now, to our favour */
			return r;
	}
}

/* A key with a tag, or for a domain of another home. */
static __attribute__((noinline)) enum vb_reason begin_shared(struct vb_keys *t, struct vb_mem_use *u,
							     const struct vb_mem_want *w, struct vb_facts *f)
{
	struct vb_key_entry *e;

	if (vb_key_is_elsewhere(t, w->key, w->pd))
		return vb_foreign_begin(t, u, w, f);
	e = own_entry(t, w->key);
	if (!e)
		return vb_key_classify(t, NULL, w, f);
	return begin_at(t, (uint32_t)(e - t->entries), u, w, f);
}

static inline bool is_plain(const struct vb_keys *t, const struct vb_mem_want *w)
{
	return !(w->key & VB_KEY_SHARED) && (uint32_t)(w->pd >> 32) == t->home;
}

enum vb_reason vb_mem_begin(struct vb_keys *t, struct vb_mem_use *u, const struct vb_mem_want *w,
			    struct vb_facts *f)
{
	uint32_t index = VB_KEY_PLACE(w->key) - t->offset;

	if (vb_unlikely(!is_plain(t, w)))
		return begin_shared(t, u, w, f);
	if (vb_unlikely(index >= t->capacity))
		return vb_key_classify(t, NULL, w, f);
	return begin_at(t, index, u, w, f);
}

bool vb_mem_get(const struct vb_mem_use *u, void *dst, uint32_t n)
{
	if (vb_likely(u->how == VB_USE_HERE))
		return vb_copy_from_app(dst, u->ptr, n);
	if (u->how == VB_USE_FAR)
		return vb_foreign_get(u, dst, n);
	memset(dst, 0, n);
	return true;
}

bool vb_mem_put(const struct vb_mem_use *u, const void *src, uint32_t n)
{
	if (vb_unlikely(u->how == VB_USE_FAR))
		return vb_foreign_put(u, src, n);
	return vb_unlikely(u->how == VB_USE_NULL) || vb_copy_to_app(u->ptr, src, n);
}

/* How many bytes in front can be read: pages, which are few in a piece of a transfer.  All, or none: it is
 * the permission to write that lacks, and the piece's beginning is as much as is known. */
static uint64_t first_gone(const uint8_t *p, uint64_t len)
{
	uint64_t n = 0;
	uint8_t byte;

	while (n < len) {
		if (!vb_copy_from_app(&byte, p + n, 1))
			return n;
		n += VB_PAGE - ((uintptr_t)(p + n) & (VB_PAGE - 1));
	}
	return 0;
}

enum vb_reason vb_mem_why(const struct vb_mem_use *u, uint32_t key, uint64_t addr, uint64_t len,
			  struct vb_facts *f)
{
	enum vb_reason r = u->how == VB_USE_FAR ? vb_foreign_why(u) : VB_R_MEM_VANISHED;

	*f = (struct vb_facts){.reason = r, .key = key, .addr = addr, .len = len};
	f->b = u->far ? vb_foreign_pid(u) : 0;
	if (r == VB_R_MEM_VANISHED)
		f->a = u->how == VB_USE_HERE ? addr + first_gone(u->ptr, len) : addr;
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
	u->slot = vb_mem_slot(t);
	u->ptr = NULL;
	u->far = NULL;
	if (!u->slot)
		return false;
	next_turn(&u->slot->turn);
	atomic_store(&u->slot->index, VB_KEY_ANY); /* pairs with vb_mem_end() */
	return true;
}

uint8_t *vb_mem_find(struct vb_keys *t, const struct vb_mem_want *want)
{
	struct vb_mem_want w = *want;
	struct vb_key_entry *e;
	enum vb_key_kind kind;
	uint64_t at;

	if (vb_unlikely(!is_plain(t, want)) && vb_key_is_elsewhere(t, w.key, w.pd))
		return NULL;
	e = own_entry(t, w.key);
	if (!e)
		return NULL;
	w.key = vb_key_as_lkey(t, want);
	kind = vb_key_resolve(e, &w, &at);
	return kind < VB_KEY_KINDS && kind != VB_KEY_NULL ? (uint8_t *)(uintptr_t)at : NULL;
}

void vb_mem_end(struct vb_mem_use *u)
{
	struct vb_key_slot *s = u->slot;

	if (vb_unlikely(u->far))
		atomic_store_explicit(&s->via, 0, memory_order_release); /* pairs with vb_far_wait() */
	else
		atomic_store_explicit(&s->index, 0, memory_order_release); /* pairs with wait_for() */
	/* Only the shared slot's lock is ever held, and then by us. */
	if (vb_unlikely(atomic_load_explicit(&s->shared.held, memory_order_relaxed)))
		vb_lock_give(&s->shared);
}

enum vb_reason vb_mem_check(struct vb_keys *t, const struct vb_mem_want *w, struct vb_facts *f)
{
	struct vb_key_entry *e;
	struct shot s;

	if (vb_unlikely(!is_plain(t, w)) && vb_key_is_elsewhere(t, w->key, w->pd))
		return vb_foreign_check(t, w, f);
	e = own_entry(t, w->key);
	if (vb_likely(e)) {
		take_shot(e, &s);
		if (vb_likely(judge(t, &s, w) == VB_OK))
			return VB_OK;
	}
	return vb_key_classify(t, e, w, f);
}
