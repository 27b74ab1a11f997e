/* A lock that is held for tens of nanoseconds, or for one chunk of a copy.
 *
 * Taking it is one exchange, giving it back one store.  A waiter spins for about a microsecond and then
 * gives the CPU away (vb_cpu_offer()), so that the holder gets to run, which may have no other.  It is not
 * recursive and must not be held over a call that can block.
 *
 * Debug builds (base/debug.h) know who holds it: a function that wants a lock held asserts that, and taking
 * one that this thread holds already does not hang. */
#ifndef VB_BASE_LOCK_H
#define VB_BASE_LOCK_H

#include <sched.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <unistd.h>

#include "base/debug.h"

#define VB_LINE				64 /* bytes of a cache line */
#define vb_likely(x)			__builtin_expect(!!(x), 1)
#define vb_unlikely(x)			__builtin_expect(!!(x), 0)
#define vb_containerof(p, type, member) ((type *)((char *)(p)-offsetof(type, member)))

/* Has the line come, to be written soon; p may be any address. */
static inline void vb_expect_write(uintptr_t p)
{
#if defined(__x86_64__) /* the compiler makes it a read where it may be compiled for the oldest CPUs */
	__asm__ volatile("prefetchw (%0)" : : "r"(p));
#else
	__builtin_prefetch((const void *)p, 1);
#endif
}

/* Sleeps for 50 us; no cancellation point, and leaves errno as it was. */
void vb_cpu_nap(void);
/* For a thread that looks again and again whether another one is done: gives that one the CPU, by
 * sched_yield(), and once a millisecond of that has not helped by a nap.  For sched_yield() is for equals: a
 * thread with a real-time policy that waits for one without would keep the CPU for ever.  *began: 0 before
 * the first call.  No cancellation point. */
void vb_cpu_offer(uint64_t *began);

struct vb_lock {
	_Atomic uint32_t held; /* whoever holds the lock stores vb_lock_me(), 0: nobody does */
};

/* Tells this thread from others: an address of its own. */
extern __thread char vb_thread_mark;
static inline uintptr_t vb_thread_self(void)
{
#if __has_builtin(__builtin_thread_pointer)
	return (uintptr_t)__builtin_thread_pointer(); /* one instruction */
#else
	return (uintptr_t)&vb_thread_mark;
#endif
}

static inline void vb_cpu_relax(void)
{
#if defined(__x86_64__)
	__builtin_ia32_pause();
#elif defined(__aarch64__)
	__asm__ volatile("yield");
#endif
}

#ifdef VB_DEBUG
uint32_t vb_lock_me(void); /* this thread's number; never 0 */

static inline bool vb_lock_seize(struct vb_lock *l)
{
	uint32_t nobody = 0;

	return atomic_compare_exchange_strong_explicit(&l->held, &nobody, vb_lock_me(), memory_order_acquire,
						       memory_order_relaxed);
}
#else
static inline uint32_t vb_lock_me(void)
{
	return 1;
}

static inline bool vb_lock_seize(struct vb_lock *l)
{
	return !atomic_exchange_explicit(&l->held, vb_lock_me(),
					 memory_order_acquire); /* pairs with vb_lock_give */
}
#endif

static inline bool vb_lock_is_mine(const struct vb_lock *l)
{
	return atomic_load_explicit(&l->held, memory_order_relaxed) == vb_lock_me();
}

/* For functions that are to be called with the lock held. */
#define vb_lock_assert_held(l) vb_assert(vb_lock_is_mine(l))
/* For a pthread_mutex_t, whose owner glibc notes. */
#define vb_mutex_assert_held(m) vb_assert((m)->__data.__owner == gettid())

static inline bool vb_lock_try(struct vb_lock *l)
{
	return !atomic_load_explicit(&l->held, memory_order_relaxed) && vb_lock_seize(l);
}

void vb_lock_wait(struct vb_lock *l);

static inline void vb_lock_take(struct vb_lock *l)
{
	if (vb_unlikely(!vb_lock_seize(l)))
		vb_lock_wait(l);
}

static inline void vb_lock_give(struct vb_lock *l)
{
	atomic_store_explicit(&l->held, 0, memory_order_release); /* pairs with the next taker's exchange */
}

/* For a lock whose holder looks after what others leave for it.  Who leaves something tries the lock by
 * vb_lock_claim(): either it gets the lock, or the holder sees what was written before, once it has given the
 * lock by vb_lock_pass().  Both exchange one word, so one of the two always sees the other. */
static inline bool vb_lock_claim(struct vb_lock *l)
{
#ifdef VB_DEBUG
	do { /* a compare-and-exchange that fails writes nothing */
		if (vb_lock_seize(l))
			return true;
	} while (!atomic_fetch_or_explicit(&l->held, 0, memory_order_acq_rel));
	return false;
#else
	return !atomic_exchange_explicit(&l->held, vb_lock_me(),
					 memory_order_acq_rel); /* pairs with vb_lock_pass */
#endif
}

static inline void vb_lock_pass(struct vb_lock *l)
{
	atomic_exchange_explicit(&l->held, 0, memory_order_seq_cst); /* pairs with vb_lock_claim */
}

#endif
