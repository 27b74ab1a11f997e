#include "base/waiting.h"

#include <pthread.h>
#include <stddef.h>
#include <stdlib.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/lock.h"
#include "base/log.h"

struct vb_waiting vb_waitings[VB_WAITINGS];

struct vb_waiting *vb_waiting_begin(enum vb_waiting_for what, const void *object, uint32_t amount)
{
	uint32_t tid = (uint32_t)syscall(SYS_gettid);

	for (uint32_t i = 0; i < VB_WAITINGS; i++) {
		struct vb_waiting *w = &vb_waitings[i];
		uint32_t none = 0;

		if (atomic_load_explicit(&w->tid, memory_order_relaxed) ||
		    !atomic_compare_exchange_strong(&w->tid, &none, tid))
			continue;
		w->since = vb_now();
		w->object = (uint64_t)(uintptr_t)object;
		w->self = vb_thread_self();
		w->amount = amount;
		w->noticed = 0;
		atomic_store_explicit(&w->said, 0, memory_order_relaxed);
		__atomic_store_n(&w->what, (uint32_t)what, __ATOMIC_RELEASE); /* last: a reader looks here */
		return w;
	}
	return NULL;
}

void vb_waiting_end(void *waiting)
{
	struct vb_waiting *w = waiting;

	if (!w)
		return;
	__atomic_store_n(&w->what, VB_WAITING_NOTHING, __ATOMIC_RELEASE);
	atomic_store_explicit(&w->tid, 0, memory_order_release);
}

static pthread_once_t once = PTHREAD_ONCE_INIT;
static uint64_t warn;
static bool warn_set;

/* Seconds, with a fraction. */
static void read_setting(void)
{
	const char *text = secure_getenv("VERBENA_WAIT_WARN");
	char *end;
	double s;

	if (!text || !*text)
		return;
	s = strtod(text, &end);
	if (*end || !(s >= 0) || s > 1e9) {
		vb_log_complain(
		    "VERBENA_WAIT_WARN=%.40s is not a number of seconds: use 3 or 0.5, or 0 for never", text);
		return;
	}
	warn_set = true;
	warn = s > 0 ? (uint64_t)(s * 1e9) : VB_NEVER;
}

uint64_t vb_waiting_warn(uint64_t otherwise)
{
	pthread_once(&once, read_setting);
	return warn_set ? warn : otherwise;
}

bool vb_waiting_is_long(struct vb_waiting *w, uint64_t now)
{
	uint64_t after = vb_waiting_warn(VB_NEVER);

	if (!w || after == VB_NEVER || now - w->since < after ||
	    atomic_load_explicit(&w->said, memory_order_relaxed))
		return false;
	atomic_store_explicit(&w->said, 1, memory_order_relaxed);
	return true;
}
