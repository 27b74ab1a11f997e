#include "base/lock.h"

enum { SPINS = 64 };

void vb_lock_wait(struct vb_lock *l)
{
	for (;;) {
		for (int i = 0; i < SPINS; i++) {
			if (vb_lock_try(l))
				return;
			vb_cpu_relax();
		}
		sched_yield();
	}
}
