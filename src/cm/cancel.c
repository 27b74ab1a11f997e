/* Cancellation (pthread_cancel(3)).  A thread that ended in the middle of a call would leave locks and
 * counters as they are, and with them hang everybody; system calls that do not block are points at which it
 * would end, too. So a call of librdmacm is none, but where it waits for an event, as rdma_get_cm_event() of
 * rdma-core does. */
#include <pthread.h>

#include "base/log.h"
#include "base/msan.h"
#include "cm/api.h"
#include "cm/id.h"

static __thread struct {
	unsigned depth; /* calls within calls */
	int state;	/* the program's */
	const char *before;
} mine;

void vb_cm_call_begin(const char *name)
{
	vb_msan_enter();
	if (!mine.depth++) {
		pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, &mine.state);
		mine.before = vb_call_begin(name);
	}
}

void vb_cm_call_end(void)
{
	vb_log_tell();
	if (!--mine.depth) {
		vb_call_end(mine.before);
		pthread_setcancelstate(mine.state, NULL);
	}
	vb_msan_leave();
}

void vb_cm_gives(const void *at, size_t n)
{
	vb_msan_gives(at, n);
}

void vb_cm_wait_begin(void)
{
	if (mine.depth)
		pthread_setcancelstate(mine.state, NULL);
}

void vb_cm_wait_end(void)
{
	if (mine.depth)
		pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, NULL);
}
