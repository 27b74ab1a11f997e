/* How other threads wake the engine: it blocks on an eventfd, or on a futex once the adapter is lost. */
#include <errno.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "base/clock.h"
#include "host/private.h"

void vb_kick_write(struct vb_adapter *a)
{
	uint64_t one = 1;
	int err = errno;

	if (!vb_adapter_lost(a) && !vb_adapter_owns(a, a->kick))
		vb_adapter_lose(a);
	if (vb_adapter_lost(a)) {
		vb_lost_wake(a);
	} else {
		atomic_store_explicit(&a->wakes, vb_now(), memory_order_relaxed); /* before the write */
		(void)!syscall(SYS_write, a->kick, &one, sizeof(one));		  /* no cancellation point */
	}
	errno = err;
}

void vb_engine_kick(struct vb_adapter *a)
{
	atomic_store_explicit(&a->nudged, true, memory_order_seq_cst);
	vb_kick_write(a);
}

void vb_adapter_nudge(struct vb_adapter *a)
{
	if (vb_adapter_dead(a))
		return;
	/* An exchange, so that the engine, which takes it back by one, sees what there is to look at. */
	atomic_exchange_explicit(&a->nudged, true, memory_order_seq_cst);
	/* Unless it dozes it is about to look anyhow. */
	if (atomic_load_explicit(&a->dozing, memory_order_seq_cst) &&
	    atomic_exchange_explicit(&a->dozing, false, memory_order_seq_cst))
		vb_kick_write(a);
}

/* Unlike a nudge it does not leave an engine alone that looks again within a millisecond. */
void vb_adapter_due(struct vb_adapter *a, uint64_t when)
{
	if (vb_adapter_dead(a))
		return;
	atomic_exchange_explicit(&a->nudged, true, memory_order_seq_cst);
	if (atomic_load_explicit(&a->wakes, memory_order_seq_cst) > when) /* pairs with block() */
		vb_kick_write(a);
}

static __thread bool in_engine;

void vb_engine_enter(void)
{
	in_engine = true;
}

bool vb_engine_here(void)
{
	return in_engine;
}

void vb_adapter_resume(struct vb_adapter *a)
{
	if (!in_engine)
		vb_adapter_nudge(a);
}
