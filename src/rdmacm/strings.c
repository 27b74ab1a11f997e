/* Names of events, as programs print them and users search for them: those of the enumerators. */
#include <stdio.h>

#include "rdmacm/call.h"
#include "rdmacm/rdmacm.h"

static const char *const names[] = {
    [RDMA_CM_EVENT_ADDR_RESOLVED] = "RDMA_CM_EVENT_ADDR_RESOLVED",
    [RDMA_CM_EVENT_ADDR_ERROR] = "RDMA_CM_EVENT_ADDR_ERROR",
    [RDMA_CM_EVENT_ROUTE_RESOLVED] = "RDMA_CM_EVENT_ROUTE_RESOLVED",
    [RDMA_CM_EVENT_ROUTE_ERROR] = "RDMA_CM_EVENT_ROUTE_ERROR",
    [RDMA_CM_EVENT_CONNECT_REQUEST] = "RDMA_CM_EVENT_CONNECT_REQUEST",
    [RDMA_CM_EVENT_CONNECT_RESPONSE] = "RDMA_CM_EVENT_CONNECT_RESPONSE",
    [RDMA_CM_EVENT_CONNECT_ERROR] = "RDMA_CM_EVENT_CONNECT_ERROR",
    [RDMA_CM_EVENT_UNREACHABLE] = "RDMA_CM_EVENT_UNREACHABLE",
    [RDMA_CM_EVENT_REJECTED] = "RDMA_CM_EVENT_REJECTED",
    [RDMA_CM_EVENT_ESTABLISHED] = "RDMA_CM_EVENT_ESTABLISHED",
    [RDMA_CM_EVENT_DISCONNECTED] = "RDMA_CM_EVENT_DISCONNECTED",
    [RDMA_CM_EVENT_DEVICE_REMOVAL] = "RDMA_CM_EVENT_DEVICE_REMOVAL",
    [RDMA_CM_EVENT_MULTICAST_JOIN] = "RDMA_CM_EVENT_MULTICAST_JOIN",
    [RDMA_CM_EVENT_MULTICAST_ERROR] = "RDMA_CM_EVENT_MULTICAST_ERROR",
    [RDMA_CM_EVENT_ADDR_CHANGE] = "RDMA_CM_EVENT_ADDR_CHANGE",
    [RDMA_CM_EVENT_TIMEWAIT_EXIT] = "RDMA_CM_EVENT_TIMEWAIT_EXIT",
    [VB_RDMA_EVENT_ADDRINFO_RESOLVED] = "RDMA_CM_EVENT_ADDRINFO_RESOLVED",
    [VB_RDMA_EVENT_ADDRINFO_ERROR] = "RDMA_CM_EVENT_ADDRINFO_ERROR",
    [VB_RDMA_EVENT_USER] = "RDMA_CM_EVENT_USER",
    [VB_RDMA_EVENT_INTERNAL] = "RDMA_CM_EVENT_INTERNAL",
};

enum { NAMES = sizeof(names) / sizeof(names[0]) };

/* A negative value is a large index here, hence unknown too. */
VB_EXPORT const char *rdma_event_str(enum rdma_cm_event_type event)
{
	return (unsigned)event < NAMES ? names[event] : "UNKNOWN EVENT";
}

const char *vb_rdma_event_name(unsigned event, char buf[24])
{
	if (event < NAMES)
		return names[event];
	snprintf(buf, 24, "event %u", event);
	return buf;
}
