#include "mem/announce.h"

#include <pthread.h>
#include <sched.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/log.h"
#include "base/waiting.h"
#include "iba/limits.h"

enum { PRIVATE_SLOTS = VB_MEM_SLOTS - 1 }; /* the last one is shared */

/* A thread's slot number in every table of this process. */
static _Atomic uint64_t slots_taken; /* bit n: a thread has slot n */
__thread uint8_t vb_slot_mine;
static pthread_once_t slots_once = PTHREAD_ONCE_INIT;
static pthread_key_t slots_key;
static bool slots_kept; /* no pthread key was left: slots of threads that end are not used again */

/* Thread exit: pairs with vb_slot_number(). */
static void give_slot(void *arg)
{
	unsigned n = (unsigned)(uintptr_t)arg - 1;

	vb_slot_mine = 0;
	if (n < PRIVATE_SLOTS)
		atomic_fetch_and(&slots_taken, ~(1ull << n));
}

/* In a forked child the other threads are gone. */
static void forked(void)
{
	uint8_t mine = vb_slot_mine;

	atomic_store(&slots_taken, mine && mine <= PRIVATE_SLOTS ? 1ull << (mine - 1) : 0);
}

static void slots_init(void)
{
	slots_kept = pthread_key_create(&slots_key, give_slot) != 0;
	pthread_atfork(NULL, NULL, forked);
}

void vb_slots_handle_fork(void)
{
	pthread_once(&slots_once, slots_init);
}

__attribute__((cold, noinline)) uint8_t vb_slot_number(void)
{
	uint64_t taken = atomic_load(&slots_taken);
	unsigned n;

	vb_slots_handle_fork();
	do {
		n = ~taken ? (unsigned)__builtin_ctzll(~taken) : PRIVATE_SLOTS;
		if (n >= PRIVATE_SLOTS) {
			n = PRIVATE_SLOTS;
			break;
		}
	} while (!atomic_compare_exchange_weak(&slots_taken, &taken, taken | 1ull << n));
	vb_slot_mine = (uint8_t)(n + 1);
	if (!slots_kept)
		pthread_setspecific(slots_key, (void *)(uintptr_t)vb_slot_mine);
	return vb_slot_mine;
}

__attribute__((cold, noinline)) void vb_slot_show(const struct vb_slots *s, uint32_t mine)
{
	uint32_t high = atomic_load(s->used);

	while (high < mine && !atomic_compare_exchange_weak(s->used, &high, mine))
		;
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
	tell = !p->told && now - p->began > vb_waiting_warn(VB_SEC);
	p->told |= tell;
	vb_log_tell(); /* what the caller said when it was told to: this may take for ever */
	syscall(SYS_clock_nanosleep, CLOCK_MONOTONIC, 0, &nap, NULL); /* no cancellation point */
	return tell;
}

/* Whether what a slot says is in use may be the entry of that index. */
static bool may_mean(uint32_t in_use, uint32_t index)
{
	return in_use == index || in_use == VB_KEY_ANY;
}

/* Waits until the slot does not name the entry: the thread is done, or has not begun and will see the odd
 * sequence number. */
static void wait_for(struct vb_key_slot *s, uint32_t index, uint32_t lkey)
{
	uint32_t turn = atomic_load(&s->turn); /* a later one finds the entry odd */
	struct vb_waiting *w = NULL;
	struct vb_patience p = {0};

	while (may_mean(atomic_load(&s->index), index) && atomic_load(&s->turn) == turn) {
		if (p.began && !w)
			w = vb_waiting_begin(VB_WAITING_MR_USERS, NULL, (uint32_t)getpid());
		if (vb_patience_nap(&p))
			vb_log(VB_LOG_WARN,
			       "deregistering or changing the region of L_Key 0x%08x waits for a thread of "
			       "process %d that is using it",
			       lkey, (int)getpid());
	}
	vb_waiting_end(w);
}

void vb_slots_wait(const struct vb_slots *s, uint32_t index, uint32_t lkey)
{
	uint32_t high = atomic_load(s->used);

	for (uint32_t i = 0; i < high; i++)
		wait_for(&s->at[i], index, lkey);
}

/* Whether every announcement of all keys that stood when `round` was read has ended: the next round begins
 * later than that, and is over. */
static bool rounds_over(const struct vb_slots *s, struct vb_key_rounds *r, uint32_t round, uint32_t high)
{
	bool over;

	vb_lock_take(&r->lock); /* given below */
	for (uint32_t i = 0; i < high; i++)
		/* a later turn finds the entry odd, as in wait_for() */
		if (atomic_load(&s->at[i].turn) != r->turns[i] || atomic_load(&s->at[i].index) != VB_KEY_ANY)
			r->waits &= ~(1ull << i);
	if (!r->waits) {
		atomic_fetch_add(&r->now, 1); /* before the slots are looked at; pairs with vb_key_hide() */
		for (uint32_t i = 0; i < high; i++) {
			r->turns[i] = atomic_load(&s->at[i].turn);
			if (atomic_load(&s->at[i].index) == VB_KEY_ANY)
				r->waits |= 1ull << i;
		}
	}
	over = atomic_load(&r->now) - round >= 2;
	vb_lock_give(&r->lock);
	return over;
}

bool vb_slots_settled(const struct vb_slots *s, struct vb_key_rounds *r, uint32_t index, uint32_t round,
		      bool ever_any)
{
	uint32_t high = atomic_load(s->used);
	bool any = false;

	for (uint32_t i = 0; i < high; i++) {
		uint32_t used = atomic_load(&s->at[i].index);

		if (used == index)
			return false;
		any |= used == VB_KEY_ANY;
	}
	return vb_likely(!any || !ever_any) || rounds_over(s, r, round, high);
}

/* The parts of a word that vb_announce_word() makes. */
#define WORD_NUMBER(w)	    ((uint32_t)((w) >> 45) & (VB_ADAPTERS - 1))
#define WORD_QPN(w)	    ((uint32_t)((w) >> 21) & 0xffffffu)
#define WORD_INDEX(w)	    ((uint32_t)(w)&WORD_INDEX_ALL_BITS)
#define WORD_INDEX_ALL_BITS 0x1fffffu

_Static_assert(VB_KEY_ENTRIES <= WORD_INDEX_ALL_BITS, "an index fits the word");

static bool names(uint64_t word, uint32_t number, uint32_t index, uint32_t qpn)
{
	return (word & VB_WORD_USED) && WORD_NUMBER(word) == number &&
	       (!index || WORD_INDEX(word) == index) && (!qpn || WORD_QPN(word) == qpn);
}

uint32_t vb_announce_word_index(uint64_t word, uint32_t number)
{
	return names(word, number, 0, 0) ? WORD_INDEX(word) : 0;
}

/* What a slot says of other adapters, in either of its two words. */
struct said {
	const _Atomic uint64_t *word;
	const _Atomic uint32_t *turn;
};

static void wait_for_word(struct said s, uint32_t number, uint32_t index, uint32_t qpn, const char *what,
			  uint32_t pid)
{
	uint32_t turn = atomic_load(s.turn);
	struct vb_waiting *w = NULL;
	struct vb_patience p = {0};

	while (vb_unlikely(names(atomic_load(s.word), number, index, qpn)) && atomic_load(s.turn) == turn) {
		if (p.began && !w)
			w = vb_waiting_begin(VB_WAITING_MR_USERS, NULL, pid);
		if (vb_patience_nap(&p))
			vb_log(VB_LOG_WARN,
			       "%s waits for process %u, which is using it and makes no progress (is it "
			       "stopped?)",
			       what, pid);
	}
	vb_waiting_end(w);
}

/* A peer may claim anything. */
static uint32_t mark(const _Atomic uint32_t *used)
{
	uint32_t high = atomic_load(used);

	return high < VB_MEM_SLOTS ? high : VB_MEM_SLOTS;
}

void vb_announced_wait(const struct vb_key_slot *slots, const _Atomic uint32_t *used, uint32_t number,
		       uint32_t index, uint32_t qpn, const char *what, uint32_t pid)
{
	uint32_t high = mark(used);

	for (uint32_t i = 0; i < high; i++) {
		wait_for_word((struct said){&slots[i].placing, &slots[i].placing_turn}, number, index, qpn,
			      what, pid);
		if (!qpn) /* a key's use names no QP */
			wait_for_word((struct said){&slots[i].via, &slots[i].via_turn}, number, index, 0,
				      what, pid);
	}
}

void vb_announced_wait_via(const struct vb_key_slot *slots, const _Atomic uint32_t *used, uint32_t number,
			   const char *what, uint32_t pid)
{
	uint32_t high = mark(used);

	for (uint32_t i = 0; i < high; i++)
		wait_for_word((struct said){&slots[i].via, &slots[i].via_turn}, number, 0, 0, what, pid);
}

bool vb_announced(const struct vb_key_slot *slots, const _Atomic uint32_t *used, uint32_t number,
		  uint32_t index)
{
	uint32_t high = mark(used);

	for (uint32_t i = 0; i < high; i++)
		if (names(atomic_load(&slots[i].placing), number, index, 0) ||
		    names(atomic_load(&slots[i].via), number, index, 0))
			return true;
	return false;
}
