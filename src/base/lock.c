#include "base/lock.h"

enum { SPINS = 64 };

#ifdef VB_DEBUG
uint32_t vb_lock_me(void)
{
	static _Atomic uint32_t threads;
	static __thread uint32_t number;

	if (!number)
		number = atomic_fetch_add(&threads, 1) + 1;
	return number;
}
#endif

void vb_lock_wait(struct vb_lock *l)
{
	vb_assert(!vb_lock_is_mine(l)); /* it is not recursive */
	for (;;) {
		for (int i = 0; i < SPINS; i++) {
			if (vb_lock_try(l))
				return;
			vb_cpu_relax();
		}
		sched_yield();
	}
}
