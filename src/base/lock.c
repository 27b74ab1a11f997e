#include "base/lock.h"

#include <errno.h>
#include <sys/syscall.h>

#include "base/clock.h"

__thread char vb_thread_mark;

enum { SPINS = 64 };
#define YIELDS VB_MSEC /* of waiting; from then on it sleeps */

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

void vb_cpu_nap(void)
{
	static const struct timespec t = {.tv_nsec = 50000};
	int err = errno;

	syscall(SYS_clock_nanosleep, CLOCK_MONOTONIC, 0, &t, NULL);
	errno = err;
}

void vb_cpu_offer(uint64_t *began)
{
	uint64_t now = vb_now();

	if (!*began)
		*began = now;
	if (now - *began < YIELDS)
		sched_yield();
	else
		vb_cpu_nap();
}

void vb_lock_wait(struct vb_lock *l)
{
	uint64_t began = 0;

	vb_assert(!vb_lock_is_mine(l)); /* it is not recursive */
	for (;;) {
		for (int i = 0; i < SPINS; i++) {
			if (vb_lock_try(l))
				return;
			vb_cpu_relax();
		}
		vb_cpu_offer(&began);
	}
}
