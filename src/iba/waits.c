#include "iba/waits.h"

#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <unistd.h>

#include <infiniband/verbs.h>

#include "base/log.h"

const struct vb_wait_row vb_wait_rows[VB_WAIT_CAUSES] = {
#define WAIT(cause, id, place, what) [VB_W_##cause] = {VB_WAIT_##place, id, what},
#include "iba/wait_list.h"
#undef WAIT
};

enum vb_wait_cause vb_wait_of_reach(const struct vb_reach_facts *f)
{
	switch (f->reach) {
	case VB_REACH_NOBODY:
	case VB_REACH_LEFT:
		return VB_W_PEER_GONE;
	case VB_REACH_NO_QP:
		return VB_W_PEER_NO_QP;
	case VB_REACH_STATE:
		return f->state.state == IBV_QPS_ERR ? VB_W_PEER_ERROR : VB_W_PEER_STATE;
	case VB_REACH_OTHER:
		return VB_W_PEER_OTHER;
	case VB_REACH_PSN:
		return VB_W_PEER_PSN;
	case VB_REACH_STOPPED:
		return VB_W_PEER_STOPPED;
	case VB_REACH_ADDRESS:
	case VB_REACH_HOST_FILTER:
	case VB_REACH_HOST_ROUTE:
	case VB_REACH_HOST_DOWN:
	case VB_REACH_HOST_ABSENT:
	case VB_REACH_HOST_FORBIDDEN:
	case VB_REACH_HOST_CLOSED:
	case VB_REACH_HOST_MTU:
	case VB_REACH_HOST_LONG:
	case VB_REACH_HOST_NAT:
	case VB_REACH_HOST_DAMAGED:
		return VB_W_UNREACHABLE;
	default:
		return VB_W_PEER_UNREADABLE;
	}
}

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
