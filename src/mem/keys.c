#include "mem/keys.h"

#include <pthread.h>
#include <sched.h>
#include <time.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/fault.h"
#include "base/log.h"

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
	    .used = 1, /* index 0 is not used: key 0 is nobody's */
	};
	if (capacity)
		atomic_store(&entries[0].seq, 1); /* for ever being changed: no lookup succeeds */
}

/* Takes an index; 0: full.  Pairs with give_index(). */
static uint32_t take_index(struct vb_keys *t)
{
	uint32_t index = 0;

	vb_lock_take(&t->lock); /* given below */
	if (t->free_head && (t->used >= t->capacity || t->used - 1 - t->live >= RESERVE)) {
		index = t->free_head;
		t->free_head = (uint32_t)atomic_load_explicit(&t->entries[index].addr, memory_order_relaxed);
		if (!t->free_head)
			t->free_tail = 0;
	} else if (t->used < t->capacity) {
		index = t->used++;
		atomic_store_explicit(&t->marks->keys, t->used, memory_order_release);
	}
	if (index)
		t->live++;
	vb_lock_give(&t->lock);
	return index;
}

static void give_index(struct vb_keys *t, uint32_t index)
{
	vb_lock_take(&t->lock); /* given below */
	atomic_store_explicit(&t->entries[index].addr, 0, memory_order_relaxed);
	if (t->free_tail)
		atomic_store_explicit(&t->entries[t->free_tail].addr, index, memory_order_relaxed);
	else
		t->free_head = index;
	t->free_tail = index;
	t->live--;
	vb_lock_give(&t->lock);
}

uint32_t vb_key_publish(struct vb_keys *t, uint32_t pd, uint32_t access, uint64_t iova, uint64_t addr,
			uint64_t length)
{
	uint32_t index = take_index(t);
	struct vb_key_entry *e = &t->entries[index];
	uint32_t last, key, seq;

	if (!index)
		return 0;
	seq = atomic_load_explicit(&e->seq, memory_order_relaxed);
	last = (uint32_t)atomic_load_explicit(&e->iova, memory_order_relaxed);
	key = index << 8 | (last ? VB_KEY_VARIANT(last + 1) : 0);
	/* Each store is a release, so that a reader that sees it sees the odd sequence number too. */
	atomic_store_explicit(&e->seq, seq + 1, memory_order_relaxed);
	VB_FAULT_POINT("key entry odd: publication");
	atomic_store_explicit(&e->key, key, memory_order_release);
	atomic_store_explicit(&e->pd, pd, memory_order_release);
	atomic_store_explicit(&e->access, access, memory_order_release);
	atomic_store_explicit(&e->iova, iova, memory_order_release);
	atomic_store_explicit(&e->length, length, memory_order_release);
	atomic_store_explicit(&e->addr, addr, memory_order_release);
	atomic_store_explicit(&e->seq, seq + 2, memory_order_release); /* pairs with vb_mem_begin() */
	return key;
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
			       "deregistering L_Key 0x%08x waits for a thread of process %d that is using it",
			       lkey, (int)getpid());
	}
}

void vb_key_retract(struct vb_keys *t, uint32_t lkey)
{
	uint32_t index = VB_KEY_INDEX(lkey), seq, high;
	struct vb_key_entry *e = &t->entries[index];

	seq = atomic_load_explicit(&e->seq, memory_order_relaxed);
	/* This store and the loads of the slots, a user's store to its slot and its load of seq: all seq_cst,
	 * so either the user sees the odd number or we see the user. */
	atomic_exchange(&e->seq, seq + 1);
	VB_FAULT_POINT("key entry odd: retraction");
	high = atomic_load(&t->marks->slots);
	for (uint32_t i = 0; i < high; i++)
		wait_for(&t->slots[i], index, lkey);
}

void vb_key_give(struct vb_keys *t, uint32_t lkey)
{
	uint32_t index = VB_KEY_INDEX(lkey);
	struct vb_key_entry *e = &t->entries[index];
	uint32_t seq = atomic_load_explicit(&e->seq, memory_order_relaxed);

	atomic_store_explicit(&e->key, 0, memory_order_release);
	atomic_store_explicit(&e->pd, 0, memory_order_release);
	atomic_store_explicit(&e->iova, lkey, memory_order_release); /* remembered for the next variant */
	atomic_store_explicit(&e->length, 0, memory_order_release);
	atomic_store_explicit(&e->seq, seq + 1, memory_order_release);
	give_index(t, index);
}

/* What an entry said at one moment; odd if it was being changed (then the rest may be mixed). */
struct shot {
	uint32_t key, pd, access, last;
	uint64_t iova, length, addr;
	bool odd;
};

static void take_shot(struct vb_key_entry *e, struct shot *s)
{
	uint32_t seq;

	/* A lookup that races with changes without end settles for "being changed". */
	for (int tries = 0; tries < 16; tries++) {
		seq = atomic_load_explicit(&e->seq, memory_order_acquire);
		s->key = atomic_load_explicit(&e->key, memory_order_acquire);
		s->pd = atomic_load_explicit(&e->pd, memory_order_acquire);
		s->access = atomic_load_explicit(&e->access, memory_order_acquire);
		s->iova = atomic_load_explicit(&e->iova, memory_order_acquire);
		s->length = atomic_load_explicit(&e->length, memory_order_acquire);
		s->addr = atomic_load_explicit(&e->addr, memory_order_acquire);
		s->last = s->key ? s->key : (uint32_t)s->iova;
		s->odd = true;
		if (seq & 1)
			return;
		if (atomic_load_explicit(&e->seq, memory_order_relaxed) == seq) {
			s->odd = false;
			return;
		}
	}
}

bool vb_key_look(struct vb_keys *t, uint32_t lkey, struct vb_key_view *v)
{
	uint32_t index = VB_KEY_INDEX(lkey);
	struct shot s = {.odd = true};

	if (index && index < t->capacity)
		take_shot(&t->entries[index], &s);
	*v = (struct vb_key_view){.access = s.access, .addr = s.addr, .length = s.length};
	return !s.odd && s.key == lkey;
}

void vb_key_tell(struct vb_keys *t, uint32_t lkey)
{
	atomic_store(&t->entries[VB_KEY_INDEX(lkey)].told, 1);
}

bool vb_key_told(struct vb_keys *t, uint32_t lkey)
{
	struct vb_key_entry *e = &t->entries[VB_KEY_INDEX(lkey)];

	return vb_unlikely(atomic_load(&e->told)) && atomic_exchange(&e->told, 0);
}

static inline bool in_bounds(uint64_t iova, uint64_t length, uint64_t addr, uint64_t len)
{
	uint64_t off = addr - iova; /* below the region this wraps to more than any length (rule 19) */

	return addr >= iova && off <= length && len <= length - off;
}

static enum vb_reason judge(const struct shot *s, uint32_t key, bool remote, uint32_t pd, uint64_t addr,
			    uint64_t len, uint32_t want)
{
	if (!s->last || (key & (VB_KEY_SHARED | 1u << 29)))
		return VB_R_KEY_UNKNOWN;
	if (s->odd || s->key != (key & ~VB_KEY_REMOTE))
		return VB_R_KEY_STALE;
	if (remote && !(key & VB_KEY_REMOTE))
		return VB_R_KEY_IS_LOCAL;
	if (!remote && (key & VB_KEY_REMOTE))
		return VB_R_KEY_IS_REMOTE;
	if (s->pd != pd)
		return VB_R_KEY_PD; /* rule 21 */
	if (!in_bounds(s->iova, s->length, addr, len))
		return VB_R_KEY_BOUNDS;
	if (want & ~s->access)
		return VB_R_KEY_ACCESS;
	return VB_OK;
}

static __attribute__((cold, noinline)) enum vb_reason classify(struct vb_keys *t, uint32_t key, bool remote,
							       uint32_t pd, uint64_t addr, uint64_t len,
							       uint32_t want, struct vb_facts *f)
{
	uint32_t index = VB_KEY_INDEX(key);
	struct shot s = {0};
	enum vb_reason r;

	if (index && index < t->capacity)
		take_shot(&t->entries[index], &s);
	r = judge(&s, key, remote, pd, addr, len, want);
	if (r == VB_OK || !f)
		return r;
	f->reason = r;
	f->key = key;
	f->addr = addr;
	f->len = len;
	f->want = want;
	f->pd_want = pd;
	f->a = remote; /* for a key that says nothing of itself */
	f->cur_key = f->have = f->pd_have = 0;
	f->start = f->size = 0;
	if (!s.odd && s.key && r != VB_R_KEY_UNKNOWN) {
		f->cur_key = s.key | (remote ? VB_KEY_REMOTE : 0);
		f->start = s.iova;
		f->size = s.length;
		f->have = s.access;
		f->pd_have = s.pd;
	}
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

bool vb_key_resolve(const struct vb_key_entry *e, uint32_t lkey, uint32_t pd, uint64_t addr, uint64_t len,
		    uint32_t want, uint64_t *at)
{
	uint32_t seq = atomic_load(&e->seq);
	/* Even: what the entry says stays until the announcement ends. */
	uint64_t iova = atomic_load_explicit(&e->iova, memory_order_relaxed);

	if ((seq & 1) || atomic_load_explicit(&e->key, memory_order_relaxed) != lkey ||
	    atomic_load_explicit(&e->pd, memory_order_relaxed) != pd ||
	    (want & ~atomic_load_explicit(&e->access, memory_order_relaxed)) ||
	    !in_bounds(iova, atomic_load_explicit(&e->length, memory_order_relaxed), addr, len))
		return false;
	*at = atomic_load_explicit(&e->addr, memory_order_relaxed) + (addr - iova);
	return true;
}

/* Its thread alone writes it. */
static inline void next_turn(_Atomic uint32_t *turn)
{
	atomic_store_explicit(turn, atomic_load_explicit(turn, memory_order_relaxed) + 1,
			      memory_order_release);
}

enum vb_reason vb_mem_begin(struct vb_keys *t, struct vb_mem_use *u, uint32_t key, bool remote, uint32_t pd,
			    uint64_t addr, uint64_t len, uint32_t want, struct vb_facts *f)
{
	uint32_t index = VB_KEY_INDEX(key), mine = slot_number(t);
	struct vb_key_slot *slot = &t->slots[mine - 1];
	enum vb_reason r;
	uint64_t at;

	if (vb_unlikely(index >= t->capacity))
		return classify(t, key, remote, pd, addr, len, want, f);
	for (;;) {
		if (vb_unlikely(mine > PRIVATE_SLOTS))
			vb_lock_take(&slot->shared); /* given by vb_mem_end() or below */
		next_turn(&slot->turn);
		atomic_store(&slot->index, index); /* see vb_key_retract() */
		u->slot = slot;
		if (vb_likely(vb_key_resolve(&t->entries[index], key ^ (remote ? VB_KEY_REMOTE : 0), pd, addr,
					     len, want, &at))) {
			u->ptr = (uint8_t *)(uintptr_t)at;
			VB_FAULT_POINT("memory announced, not yet touched");
			return VB_OK;
		}
		vb_mem_end(u);
		r = classify(t, key, remote, pd, addr, len, want, f);
		if (r != VB_OK) /* else the entry has changed just now, to our favour */
			return r;
	}
}

bool vb_mem_begin_any(struct vb_keys *t, struct vb_mem_use *u)
{
	u->slot = vb_mem_slot(t);
	u->ptr = NULL;
	if (!u->slot)
		return false;
	next_turn(&u->slot->turn);
	atomic_store(&u->slot->index, VB_KEY_ANY); /* pairs with vb_mem_end() */
	return true;
}

uint8_t *vb_mem_find(struct vb_keys *t, uint32_t lkey, uint32_t pd, uint64_t addr, uint64_t len,
		     uint32_t want)
{
	uint32_t index = VB_KEY_INDEX(lkey);
	uint64_t at;

	if (index >= t->capacity || !vb_key_resolve(&t->entries[index], lkey, pd, addr, len, want, &at))
		return NULL;
	return (uint8_t *)(uintptr_t)at;
}

void vb_mem_end(struct vb_mem_use *u)
{
	struct vb_key_slot *s = u->slot;

	atomic_store_explicit(&s->index, 0, memory_order_release); /* pairs with wait_for() */
	/* Only the shared slot's lock is ever held, and then by us. */
	if (vb_unlikely(atomic_load_explicit(&s->shared.held, memory_order_relaxed)))
		vb_lock_give(&s->shared);
}

enum vb_reason vb_mem_check(struct vb_keys *t, uint32_t key, bool remote, uint32_t pd, uint64_t addr,
			    uint64_t len, uint32_t want, struct vb_facts *f)
{
	uint32_t index = VB_KEY_INDEX(key);
	struct shot s;

	if (vb_likely(index && index < t->capacity)) {
		take_shot(&t->entries[index], &s);
		if (vb_likely(judge(&s, key, remote, pd, addr, len, want) == VB_OK))
			return VB_OK;
	}
	return classify(t, key, remote, pd, addr, len, want, f);
}
