/* Which call is permitted in which state of an id: one table; and the names of states, calls and events. */
#include <errno.h>
#include <stdio.h>

#include "cm/id.h"

#define S(x) (1u << VB_ID_##x)

static const uint32_t permitted[VB_ID_CALLS] = {
    [VB_ID_CALL_BIND] = S(IDLE),
    [VB_ID_CALL_RESOLVE_ADDR] = S(IDLE) | S(BOUND),
    [VB_ID_CALL_RESOLVE_ROUTE] = S(ADDR_RESOLVED),
    [VB_ID_CALL_SET_PATH] = S(ADDR_RESOLVED),
    [VB_ID_CALL_LISTEN] = S(IDLE) | S(BOUND),
    [VB_ID_CALL_CONNECT] = S(ROUTE_RESOLVED),
    [VB_ID_CALL_ESTABLISH] = S(ANSWERED),
    [VB_ID_CALL_ACCEPT] = S(REQUESTED),
    [VB_ID_CALL_REJECT] = S(REQUESTED) | S(ANSWERED) | S(ACCEPTED),
    /* Programs call it on their way out.  Where the connection is being made, is over, or has never come
     * about, there is nothing to end, and it does nothing, as in the kernel. */
    [VB_ID_CALL_DISCONNECT] =
	S(CONNECTING) | S(ANSWERED) | S(REQUESTED) | S(ACCEPTED) | S(CONNECTED) | S(DISCONNECTED) | S(FAILED),
    [VB_ID_CALL_NOTIFY] = S(ACCEPTED) | S(CONNECTED),
    [VB_ID_CALL_JOIN] = S(BOUND) | S(ADDR_RESOLVED),
};

int vb_cm_state_permits(enum vb_cm_id_state s, enum vb_cm_id_call call)
{
	if (s == VB_ID_REMOVED)
		return ENODEV;
	return permitted[call] & 1u << s ? 0 : EINVAL;
}

/* What is to be called instead, or first.  The first row that fits counts. */
#define C(x)	  (1u << VB_ID_CALL_##x)
#define CONNECTS  (S(CONNECTING) | S(ANSWERED))
#define CAME	  (S(REQUESTED) | S(ACCEPTED))
#define CONNECTED S(CONNECTED)
#define UNUSED	  (S(IDLE) | S(BOUND) | S(ADDR_RESOLVED) | S(ROUTE_RESOLVED))

static const struct {
	uint32_t calls, states;
	const char *clause;
} instead[] = {
    {C(ACCEPT) | C(REJECT), S(LISTENING),
     "this id is the listener; pass event->id of RDMA_CM_EVENT_CONNECT_REQUEST, the id of the new "
     "connection"},
    {C(ACCEPT), CONNECTS, "the id is connecting by rdma_connect(); wait for RDMA_CM_EVENT_ESTABLISHED"},
    {C(ACCEPT), S(ACCEPTED), "the request is already accepted; wait for RDMA_CM_EVENT_ESTABLISHED"},
    {C(ACCEPT), CONNECTED, "the id is already connected"},
    {C(ACCEPT) | C(REJECT), UNUSED,
     "only the id of RDMA_CM_EVENT_CONNECT_REQUEST can be accepted or rejected; call rdma_listen() and "
     "wait for that event"},
    {C(REJECT), CONNECTED, "the id is connected; call rdma_disconnect() to end the connection"},
    {C(CONNECT), S(IDLE) | S(BOUND),
     "call rdma_resolve_addr(), then rdma_resolve_route(), and wait for the event of each "
     "(RDMA_CM_EVENT_ADDR_RESOLVED, RDMA_CM_EVENT_ROUTE_RESOLVED)"},
    {C(CONNECT), S(ADDR_RESOLVED), "call rdma_resolve_route() and wait for RDMA_CM_EVENT_ROUTE_RESOLVED"},
    {C(CONNECT), CONNECTS, "the id is already connecting; wait for RDMA_CM_EVENT_ESTABLISHED"},
    {C(CONNECT), CAME, "the id is a request from the peer; call rdma_accept() instead"},
    {C(CONNECT), CONNECTED, "the id is already connected"},
    {C(RESOLVE_ROUTE) | C(SET_PATH), S(IDLE) | S(BOUND),
     "call rdma_resolve_addr() and wait for RDMA_CM_EVENT_ADDR_RESOLVED"},
    {C(RESOLVE_ROUTE) | C(SET_PATH), S(ROUTE_RESOLVED), "the route is already resolved; call rdma_connect()"},
    {C(RESOLVE_ADDR), S(ADDR_RESOLVED), "the address is already resolved; call rdma_resolve_route()"},
    {C(RESOLVE_ADDR), S(ROUTE_RESOLVED), "the route is already resolved; call rdma_connect()"},
    {C(RESOLVE_ADDR) | C(RESOLVE_ROUTE) | C(SET_PATH) | C(CONNECT), S(LISTENING),
     "a listener cannot connect; create another id"},
    {C(BIND), UNUSED, "the id is already bound; create another id for another address"},
    {C(LISTEN), S(LISTENING), "the id already listens"},
    {C(LISTEN), S(ADDR_RESOLVED) | S(ROUTE_RESOLVED),
     "the id has a resolved destination; create another id and call rdma_bind_addr()"},
    {C(ESTABLISH), S(CONNECTING), "wait for RDMA_CM_EVENT_CONNECT_RESPONSE"},
    {C(ESTABLISH), CAME,
     "only the end that called rdma_connect() calls rdma_establish(); wait for RDMA_CM_EVENT_ESTABLISHED"},
    {C(ESTABLISH), CONNECTED, "the connection is already established"},
    {C(ESTABLISH), UNUSED, "call rdma_connect() and wait for RDMA_CM_EVENT_CONNECT_RESPONSE"},
    {C(NOTIFY), S(REQUESTED), "call rdma_accept() first"},
    {C(NOTIFY), CONNECTS | UNUSED, "rdma_notify() needs an id on which rdma_accept() was called"},
    {C(DISCONNECT), UNUSED | S(LISTENING), "the id has no connection; call rdma_destroy_id() instead"},
    {C(JOIN), S(IDLE),
     "call rdma_bind_addr(), or rdma_resolve_addr() and wait for RDMA_CM_EVENT_ADDR_RESOLVED"},
    {C(JOIN), S(ROUTE_RESOLVED), "the id has a resolved route to connect; create another id"},
    {C(ESTABLISH) | C(NOTIFY) | C(JOIN) | C(LISTEN) | C(BIND), S(LISTENING),
     "the id listens; create another id"},
    {~0u, S(DISCONNECTED) | S(FAILED), "an id connects only once; destroy it and create another"},
    {~0u, S(REMOVED), "destroy it and create another: the new id opens the device again"},
    {~0u, CONNECTS | CAME | CONNECTED, "the id is used for a connection; create another id"},
};

const char *vb_cm_id_instead(enum vb_cm_id_state s, enum vb_cm_id_call call)
{
	for (size_t i = 0; i < sizeof(instead) / sizeof(*instead); i++)
		if (instead[i].calls >> call & 1 && instead[i].states >> s & 1)
			return instead[i].clause;
	return NULL;
}

static const char *const names[VB_ID_STATES] = {
    [VB_ID_IDLE] = "idle",
    [VB_ID_BOUND] = "bound",
    [VB_ID_ADDR_RESOLVED] = "address resolved",
    [VB_ID_ROUTE_RESOLVED] = "route resolved",
    [VB_ID_LISTENING] = "listening",
    [VB_ID_CONNECTING] = "connecting",
    [VB_ID_ANSWERED] = "accepted by the peer, not established",
    [VB_ID_REQUESTED] = "request received, not accepted",
    [VB_ID_ACCEPTED] = "accepted, not established",
    [VB_ID_CONNECTED] = "connected",
    [VB_ID_DISCONNECTED] = "disconnected",
    [VB_ID_FAILED] = "failed",
    [VB_ID_REMOVED] = "device lost",
};

const char *vb_cm_id_state_name(enum vb_cm_id_state s)
{
	return (unsigned)s < VB_ID_STATES ? names[s] : "?";
}

const char *vb_cm_id_failure(const struct vb_cm_id *id, char buf[VB_CM_FAILURE])
{
	bool is_called_off =
	    id->passive && id->failed_by == RDMA_CM_EVENT_REJECTED && id->failed_status == VB_CM_REJ_TIMEOUT;

	*buf = 0;
	if (id->state == VB_ID_FAILED && id->failed_by)
		snprintf(buf, VB_CM_FAILURE,
			 is_called_off ? ": the peer gave up (%s, status %d)" : ": %s, status %d",
			 vb_cm_event_name(id->failed_by), id->failed_status);
	return buf;
}

static const char *const calls[VB_ID_CALLS] = {
    [VB_ID_CALL_BIND] = "rdma_bind_addr",
    [VB_ID_CALL_RESOLVE_ADDR] = "rdma_resolve_addr",
    [VB_ID_CALL_RESOLVE_ROUTE] = "rdma_resolve_route",
    [VB_ID_CALL_SET_PATH] = "rdma_set_option",
    [VB_ID_CALL_LISTEN] = "rdma_listen",
    [VB_ID_CALL_CONNECT] = "rdma_connect",
    [VB_ID_CALL_ESTABLISH] = "rdma_establish",
    [VB_ID_CALL_ACCEPT] = "rdma_accept",
    [VB_ID_CALL_REJECT] = "rdma_reject",
    [VB_ID_CALL_DISCONNECT] = "rdma_disconnect",
    [VB_ID_CALL_NOTIFY] = "rdma_notify",
    [VB_ID_CALL_JOIN] = "rdma_join_multicast",
};

const char *vb_cm_id_call_name(enum vb_cm_id_call call)
{
	return calls[call];
}

static const char *const events[VB_CM_EVENTS] = {
    [RDMA_CM_EVENT_ADDR_RESOLVED] = "ADDR_RESOLVED",
    [RDMA_CM_EVENT_ADDR_ERROR] = "ADDR_ERROR",
    [RDMA_CM_EVENT_ROUTE_RESOLVED] = "ROUTE_RESOLVED",
    [RDMA_CM_EVENT_ROUTE_ERROR] = "ROUTE_ERROR",
    [RDMA_CM_EVENT_CONNECT_REQUEST] = "CONNECT_REQUEST",
    [RDMA_CM_EVENT_CONNECT_RESPONSE] = "CONNECT_RESPONSE or ESTABLISHED",
    [RDMA_CM_EVENT_CONNECT_ERROR] = "CONNECT_ERROR",
    [RDMA_CM_EVENT_UNREACHABLE] = "UNREACHABLE",
    [RDMA_CM_EVENT_REJECTED] = "REJECTED",
    [RDMA_CM_EVENT_ESTABLISHED] = "ESTABLISHED",
    [RDMA_CM_EVENT_DISCONNECTED] = "DISCONNECTED",
    [RDMA_CM_EVENT_DEVICE_REMOVAL] = "DEVICE_REMOVAL",
    [RDMA_CM_EVENT_MULTICAST_JOIN] = "MULTICAST_JOIN",
    [RDMA_CM_EVENT_MULTICAST_ERROR] = "MULTICAST_ERROR",
    [RDMA_CM_EVENT_ADDR_CHANGE] = "ADDR_CHANGE",
    [RDMA_CM_EVENT_TIMEWAIT_EXIT] = "TIMEWAIT_EXIT",
    [RDMA_CM_EVENT_TIMEWAIT_EXIT + 1] = "ADDRINFO_RESOLVED",
    [RDMA_CM_EVENT_TIMEWAIT_EXIT + 2] = "ADDRINFO_ERROR",
    [RDMA_CM_EVENT_TIMEWAIT_EXIT + 3] = "USER",
    [RDMA_CM_EVENT_TIMEWAIT_EXIT + 4] = "INTERNAL",
};

const char *vb_cm_event_name(unsigned event)
{
	return event < VB_CM_EVENTS ? events[event] : "?";
}
