/* A lock that is held for tens of nanoseconds, or for one chunk of a copy.
 *
 * Taking it is one exchange, giving it back one store.  A waiter spins for about a microsecond and then
 * yields, so that on a machine with fewer cores than threads the holder gets to run.  It is not recursive and
 * must not be held over a call that can block. */
#ifndef VB_BASE_LOCK_H
#define VB_BASE_LOCK_H

#include <sched.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#define VB_LINE				64 /* bytes of a cache line */
#define vb_likely(x)			__builtin_expect(!!(x), 1)
#define vb_unlikely(x)			__builtin_expect(!!(x), 0)
#define vb_containerof(p, type, member) ((type *)((char *)(p)-offsetof(type, member)))

struct vb_lock {
	_Atomic uint32_t held; /* whoever holds the lock: 1 */
};

static inline void vb_cpu_relax(void)
{
#if defined(__x86_64__)
	__builtin_ia32_pause();
#elif defined(__aarch64__)
	__asm__ volatile("yield");
#endif
}

static inline bool vb_lock_try(struct vb_lock *l)
{
	return !atomic_load_explicit(&l->held, memory_order_relaxed) &&
	       !atomic_exchange_explicit(&l->held, 1, memory_order_acquire); /* pairs with vb_lock_give */
}

void vb_lock_wait(struct vb_lock *l);

static inline void vb_lock_take(struct vb_lock *l)
{
	if (vb_unlikely(atomic_exchange_explicit(&l->held, 1, memory_order_acquire)))
		vb_lock_wait(l);
}

static inline void vb_lock_give(struct vb_lock *l)
{
	atomic_store_explicit(&l->held, 0, memory_order_release); /* pairs with the next taker's exchange */
}

#endif
