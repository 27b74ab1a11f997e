#include "iba/waits.h"

#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <unistd.h>

#include "base/log.h"

const struct vb_wait_row vb_wait_rows[VB_WAIT_CAUSES] = {
#define WAIT(cause, id, place, what) [VB_W_##cause] = {VB_WAIT_##place, id, what},
#include "iba/wait_list.h"
#undef WAIT
};

void vb_wait_say(enum vb_wait_cause cause, const char *fmt, ...)
{
	/* of events that are not acknowledged all is said here */
	bool explained = cause != VB_W_CQ_ACKS && cause != VB_W_ASYNC_ACKS;
	char text[600];
	va_list ap;

	if (!vb_log_wanted(VB_LOG_WARN))
		return;
	va_start(ap, fmt);
	vsnprintf(text, sizeof(text), fmt, ap);
	va_end(ap);
	vb_log_reason(vb_wait_rows[cause].name,
		      explained ? "%s; %s%s (verbena explain %d says more)" : "%s; %s%s", text,
		      vb_wait_rows[cause].place == VB_WAIT_PEER ? "at the peer, " : "",
		      vb_wait_rows[cause].remedy, (int)getpid());
}
