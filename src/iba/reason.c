#include "iba/reason.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include <infiniband/verbs.h>

#include "iba/names.h"
#include "iba/opcode.h"
#include "iba/qp_state.h"
#include "iba/wr.h"
#include "iba/reason_priv.h"
#include "iba/shown.h"
#include "iba/pkt.h"

/* A sentence takes what its row says, and needs little of it. */
#pragma GCC diagnostic ignored "-Wunused-parameter"

#define INVALID	   VB_AETH_NAK_INVALID_REQUEST
#define ACCESS	   VB_AETH_NAK_REMOTE_ACCESS
#define OPERATION  VB_AETH_NAK_REMOTE_OPERATION
#define INVALID_RD VB_AETH_NAK_INVALID_RD
#define NONE	   0xff
/* a status that nobody asks for: the reason never stands at that side */
#define NEVER IBV_WC_GENERAL_ERR

_Static_assert((int)VB_REASONS <= (int)VB_DROPS, "each has its count, and its bit in vb_qp.said");
_Static_assert(sizeof(struct vb_facts) == 32 + sizeof(struct vb_mem_facts),
	       "NAKs carry no padding, and `mem` is the largest member, which an initializer clears");

const struct vb_reason_row vb_reasons[VB_REASONS] = {
#define REASON(r, name, nak, remote_wc, local_wc, event, kind, say) \
	[r] = {name, nak, remote_wc, local_wc, event, VB_FACTS_##kind},
#include "iba/reason_list.h"
#undef REASON
};

static const struct {
	uint32_t bit;
	const char *name;
} access_names[] = {
    {IBV_ACCESS_LOCAL_WRITE, "LOCAL_WRITE"},
    {IBV_ACCESS_REMOTE_WRITE, "REMOTE_WRITE"},
    {IBV_ACCESS_REMOTE_READ, "REMOTE_READ"},
    {IBV_ACCESS_REMOTE_ATOMIC, "REMOTE_ATOMIC"},
    {IBV_ACCESS_MW_BIND, "MW_BIND"},
    {IBV_ACCESS_ZERO_BASED, "ZERO_BASED"},
    {IBV_ACCESS_ON_DEMAND, "ON_DEMAND"},
    {IBV_ACCESS_HUGETLB, "HUGETLB"},
    {VB_ACCESS_FLUSH_GLOBAL, "FLUSH_GLOBAL"},
    {VB_ACCESS_FLUSH_PERSISTENT, "FLUSH_PERSISTENT"},
    {IBV_ACCESS_RELAXED_ORDERING, "RELAXED_ORDERING"},
};

void vb_text_access(struct vb_text *t, uint32_t bits, const char *prefix, const char *between,
		    const char *nothing)
{
	const char *sep = "";

	if (!bits)
		vb_text_add(t, "%s", nothing);
	for (size_t i = 0; i < sizeof access_names / sizeof *access_names; i++) {
		if (!(bits & access_names[i].bit))
			continue;
		vb_text_add(t, "%s%s%s", sep, prefix, access_names[i].name);
		sep = between;
		bits &= ~access_names[i].bit;
	}
	if (bits)
		vb_text_add(t, "%s0x%x", sep, bits);
}

const char *vb_access_say(char *buf, size_t size, uint32_t access)
{
	struct vb_text t = {buf, size};

	if (size)
		*buf = 0;
	vb_text_access(&t, access, "", "|", "local read only");
	return buf;
}

void vb_text_range(struct vb_text *t, uint64_t start, uint64_t size)
{
	vb_text_add(t, "[0x%" PRIx64 ", +%" PRIu64 ")", start, size);
}

void vb_text_bytes(struct vb_text *t, uint64_t n)
{
	vb_text_add(t, "%" PRIu64 " byte%s", n, n == 1 ? "" : "s");
}

uint64_t vb_range_missed(uint64_t start, uint64_t size, uint64_t addr, uint64_t len)
{
	uint64_t off = addr - start;

	if (addr < start)
		return start - addr;
	if (off > size)
		return off - size + len < len ? UINT64_MAX : off - size + len;
	return len > size - off ? len - (size - off) : 0;
}

void vb_say_ok(struct vb_text *t, const struct vb_facts *f, const struct vb_none_facts *of)
{
	vb_text_add(t, "no error");
}

/* What rdma_cm permits follows from the depths alone, and no field of its has the rest. */
#define BY_DEPTHS (IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_ATOMIC)

void vb_say_qp_access(struct vb_text *t, const struct vb_facts *f, const struct vb_access_facts *of)
{
	bool by_cm = f->ends & VB_END_HERE;

	vb_text_add(t, "queue pair 0x%06x does not permit ", f->qpn);
	vb_text_access(t, of->want, "", "|", "this operation");
	vb_text_add(t, ": its qp_access_flags are ");
	vb_text_access(t, of->have, "", "|", "0");
	if (by_cm && of->want && !(of->want & ~(uint32_t)BY_DEPTHS)) {
		vb_text_add(t,
			    "; to permit READs and atomics with rdma_cm, set "
			    "rdma_conn_param.responder_resources of the responder and initiator_depth of the "
			    "requester above 0");
		return;
	}
	vb_text_add(t, "; set ");
	vb_text_access(t, of->want, "IBV_ACCESS_", " | ", "the missing flags");
	vb_text_add(t, " with ibv_modify_qp");
	if (by_cm)
		vb_text_add(t, " (IBV_QP_ACCESS_FLAGS) after RDMA_CM_EVENT_ESTABLISHED: "
			       "rdma_conn_param has no field for them");
}

void vb_say_atomic_align(struct vb_text *t, const struct vb_facts *f, const struct vb_atomic_facts *of)
{
	vb_text_add(t,
		    "address 0x%" PRIx64 " (in memory 0x%" PRIx64
		    ") of an atomic is not a multiple of 8; align it to 8 bytes",
		    f->addr, of->memory);
}

void vb_say_too_many_reads(struct vb_text *t, const struct vb_facts *f, const struct vb_limit_facts *of)
{
	vb_text_add(
	    t,
	    "more READs and atomics are outstanding than the responder's limit of %u: the requester's "
	    "%s must not exceed the responder's %s",
	    of->most, f->ends & VB_END_THERE ? "rdma_conn_param.initiator_depth" : "max_rd_atomic",
	    f->ends & VB_END_HERE ? "rdma_conn_param.responder_resources" : "max_dest_rd_atomic");
}

void vb_say_read_depth_zero(struct vb_text *t, const struct vb_facts *f, const struct vb_none_facts *of)
{
	if (f->ends & VB_END_HERE)
		vb_text_add(
		    t,
		    "the initiator depth (max_rd_atomic) of the queue pair is 0, so it permits no READ or "
		    "atomic; set rdma_conn_param.initiator_depth of this end and responder_resources of the "
		    "peer in rdma_connect and rdma_accept");
	else
		vb_text_add(
		    t, "max_rd_atomic of the queue pair is 0, so it permits no READ or atomic; set it with "
		       "ibv_modify_qp at the transition to RTS");
}

static const char *opcode_name(uint32_t opcode)
{
	return opcode < 256 && vb_opcodes[opcode].name ? vb_opcodes[opcode].name : "unknown";
}

void vb_say_bad_sequence(struct vb_text *t, const struct vb_facts *f, const struct vb_packet_facts *of)
{
	vb_text_add(t, "packet '%s' (0x%02x) may not follow '%s' (0x%02x)", opcode_name(of->opcode),
		    of->opcode, opcode_name(of->before), of->before);
}

void vb_say_response_bad(struct vb_text *t, const struct vb_facts *f, const struct vb_packet_facts *of)
{
	vb_text_add(t, "response '%s' (0x%02x) does not match the request that it answers",
		    opcode_name(of->opcode), of->opcode);
}

void vb_say_bad_length(struct vb_text *t, const struct vb_facts *f, const struct vb_length_facts *of)
{
	vb_text_add(t, "a packet or message has ");
	vb_text_bytes(t, of->bytes);
	vb_text_add(t, ", but ");
	vb_text_bytes(t, of->fit);
	vb_text_add(t, " %s expected", of->fit == 1 ? "was" : "were");
}

void vb_say_recv_too_small(struct vb_text *t, const struct vb_facts *f, const struct vb_length_facts *of)
{
	vb_text_add(t, "a message of at least ");
	vb_text_bytes(t, of->bytes);
	vb_text_add(t, " does not fit the receive buffer of ");
	vb_text_bytes(t, of->fit);
	vb_text_add(t, "; post a larger one");
}

void vb_say_msg_too_long(struct vb_text *t, const struct vb_facts *f, const struct vb_length_facts *of)
{
	vb_text_add(t,
		    "an atomic returns %" PRIu64 " bytes, but its scatter/gather list has %" PRIu64
		    " bytes; give the list %" PRIu64 " bytes",
		    of->fit, of->bytes, of->fit);
}

void vb_say_qp_type(struct vb_text *t, const struct vb_facts *f, const struct vb_request_facts *of)
{
	const char *type = vb_name_qp_type(of->type), *name = vb_wr_row(of->opcode)->name;

	vb_text_add(t, "a queue pair of %s%s does not support %s", type ? "type " : "",
		    type ? type : "this type", name ? name : "this request");
}

void vb_say_ah_pd(struct vb_text *t, const struct vb_facts *f, const struct vb_none_facts *of)
{
	vb_text_add(t, "the address handle belongs to a different protection domain than the queue pair; "
		       "create both in one domain");
}

void vb_say_datagram_too_long(struct vb_text *t, const struct vb_facts *f, const struct vb_length_facts *of)
{
	vb_text_add(t,
		    "the datagram has %" PRIu64 " bytes, but the port sends at most %" PRIu64
		    " bytes in one packet (active_mtu); send less at once",
		    of->bytes, of->fit);
}

static void say_mtus(struct vb_text *t, const struct vb_facts *f, uint32_t requester, uint32_t responder)
{
	vb_text_add(
	    t,
	    " does not fit one packet of the smaller path MTU: path_mtu is %u bytes at the requester and %u "
	    "bytes at the responder; ",
	    requester, responder);
	if (f->ends)
		vb_text_add(t, "leave path_mtu as rdma_init_qp_attr sets it (to that of the route), or "
			       "change the route with rdma_set_option(RDMA_OPTION_IB_PATH)");
	else
		vb_text_add(t, "set the same path_mtu with ibv_modify_qp at both ends");
}

/* Of a SEND only what has come is known. */
void vb_say_path_mtu(struct vb_text *t, const struct vb_facts *f, const struct vb_mtu_facts *of)
{
	vb_text_add(t, "a message of %" PRIu64 " bytes or more", f->len);
	say_mtus(t, f, of->sender, of->receiver);
}

void vb_say_response_mtu(struct vb_text *t, const struct vb_facts *f, const struct vb_mtu_facts *of)
{
	vb_text_add(t, "the response to a READ of %" PRIu64 " bytes", f->len);
	say_mtus(t, f, of->receiver, of->sender);
}

/* The count is what the end that receives has asked for, where rdma_cm tells the sender (rdma_connect(3)). */
void vb_say_rnr(struct vb_text *t, const struct vb_facts *f, const struct vb_retry_facts *of)
{
	const char *count =
	    f->ends & VB_END_HERE ? "rdma_conn_param.rnr_retry_count (of the receiver)" : "rnr_retry";
	static const char there[] = " to that SRQ (ibv_post_srq_recv)";

	vb_text_add(t, "queue pair 0x%06x ", of->peer_qpn & VB_QPN_MASK);
	if (of->retries)
		vb_text_add(t, "was not ready: no receive request was posted there within %s = %u retr%s",
			    count, of->retries, of->retries == 1 ? "y" : "ies");
	else
		vb_text_add(t, "had no receive request for this message, and %s = 0 permits no retry", count);
	if (of->slow_ms)
		vb_text_add(t, " (those posted earlier were used, and none followed for %u ms)", of->slow_ms);
	if (of->srq)
		vb_text_add(t, "; it receives from SRQ 0x%06x: post", of->srq & VB_QPN_MASK);
	else
		vb_text_add(t, "; post");
	if (of->retries || of->slow_ms)
		vb_text_add(t, " more receive requests%s, or post them earlier", of->srq ? there : "");
	else
		vb_text_add(t, " receive requests%s earlier", of->srq ? there : "");
}

void vb_say_retry(struct vb_text *t, const struct vb_facts *f, const struct vb_retry_facts *of)
{
	char text[400] = "";
	struct vb_text what = {text, sizeof(text)};
	const char *count =
	    f->ends & VB_END_HERE ? "rdma_conn_param.retry_count (of rdma_connect)" : "retry_cnt";

	vb_text_add(t, "no acknowledgement from queue pair 0x%06x", of->peer_qpn & VB_QPN_MASK);
	if (of->retries)
		vb_text_add(t, " within %s = %u retr%s", count, of->retries, of->retries == 1 ? "y" : "ies");
	else
		vb_text_add(t, ", and %s = 0 permits no retry", count);
	if (vb_reach_add(&what, &of->silence))
		vb_text_add(t, ": %s", text);
}

/* As the subject of a clause; one of another PID namespace has no number here. */
static const char *peer(char buf[64], uint32_t pid)
{
	if (pid)
		snprintf(buf, 64, "the peer process %u", pid);
	else
		snprintf(buf, 64, "the peer process (in another PID namespace)");
	return buf;
}

void vb_say_peer_died(struct vb_text *t, const struct vb_facts *f, const struct vb_gone_facts *of)
{
	char who[64];

	if (of->how == VB_GONE_UNCLEAR)
		vb_text_add(
		    t,
		    "%s disconnected without closing its queue pair: it ended, closed the descriptors "
		    "of its device, or executed another program (which of these is not visible from "
		    "here)",
		    peer(who, of->pid));
	else
		vb_text_add(t, "%s ended without closing its queue pair", peer(who, of->pid));
}

void vb_say_peer_closed(struct vb_text *t, const struct vb_facts *f, const struct vb_gone_facts *of)
{
	char who[64];

	peer(who, of->pid);
	switch (of->how) {
	case VB_GONE_EXEC:
		vb_text_add(t, "%s is alive but executed another program (exec), which closed its queue pair",
			    who);
		break;
	case VB_GONE_BROKEN:
		vb_text_add(t, "%s is alive but closed the connection: this process sent a malformed message",
			    who);
		break;
	case VB_GONE_RUBBISH:
		vb_text_add(t, "this process closed the connection to %s, which sent a malformed message",
			    who);
		break;
	default: /* VB_GONE_CLOSED */
		vb_text_add(
		    t,
		    "%s is alive but closed the descriptors of its open device (did it close all descriptors "
		    "from 3 up?); it must open the device after closing descriptors",
		    who);
		break;
	}
}

void vb_say_device_lost(struct vb_text *t, const struct vb_facts *f, const struct vb_none_facts *of)
{
	vb_text_add(t, "this process closed descriptors that belong to its open device; open the device "
		       "after closing descriptors, or close only those that the program opened");
}

void vb_say_nak_invalid_request(struct vb_text *t, const struct vb_facts *f, const struct vb_none_facts *of)
{
	vb_text_add(t, "the peer refused the request as invalid; its log has the reason");
}

void vb_say_nak_remote_access(struct vb_text *t, const struct vb_facts *f, const struct vb_none_facts *of)
{
	vb_text_add(t, "the peer refused access to its memory; its log has the reason");
}

void vb_say_nak_remote_operation(struct vb_text *t, const struct vb_facts *f, const struct vb_none_facts *of)
{
	vb_text_add(t, "the peer failed to carry out the request; its log has the reason");
}

void vb_say_nak_invalid_rd(struct vb_text *t, const struct vb_facts *f, const struct vb_none_facts *of)
{
	vb_text_add(t,
		    "the peer has no SRQ with that number in the XRC domain of its queue pair; its log has "
		    "the reason");
}

void vb_say_xrc_srq(struct vb_text *t, const struct vb_facts *f, const struct vb_srq_facts *of)
{
	vb_text_add(t, "target queue pair 0x%06x received a message for SRQ 0x%06x, ", f->qpn & VB_QPN_MASK,
		    of->number & VB_QPN_MASK);
	switch (of->lost) {
	case VB_SRQ_DOMAIN:
		vb_text_add(
		    t, "which exists but belongs to another XRC domain; open the domain of the same file "
		       "(ibv_open_xrcd) for both");
		break;
	case VB_SRQ_GONE:
		if (of->pid)
			vb_text_add(t, "but process %u, which owned that SRQ, has ended", of->pid);
		else
			vb_text_add(t, "but the process that owned that SRQ has ended");
		break;
	case VB_SRQ_NOBODY:
		vb_text_add(t,
			    "but its process cannot be reached: that process has ended or belongs to another "
			    "user, or the number is wrong");
		break;
	default: /* VB_SRQ_UNKNOWN */
		vb_text_add(t, "but its XRC domain has no SRQ with that number; send the number that "
			       "ibv_get_srq_num returns for an SRQ of type IBV_SRQT_XRC");
		break;
	}
}

void vb_say_drop_sequence(struct vb_text *t, const struct vb_facts *f, const struct vb_psn_facts *of)
{
	vb_text_add(t, "packets of the message were lost: PSN 0x%06x arrived, but PSN 0x%06x was expected",
		    of->came, of->expected);
}

void vb_say_drop_no_receive(struct vb_text *t, const struct vb_facts *f, const struct vb_none_facts *of)
{
	vb_text_add(t,
		    "a message arrived at queue pair 0x%06x, but no receive request was posted; post more "
		    "receive requests, or post them earlier",
		    f->qpn);
}

void vb_say_drop_too_small(struct vb_text *t, const struct vb_facts *f, const struct vb_length_facts *of)
{
	vb_text_add(t,
		    "a datagram of %" PRIu64
		    " bytes (40 bytes of GRH included) does not fit the receive request "
		    "of %" PRIu64 " bytes; post receives 40 bytes longer than the longest message",
		    of->bytes, of->fit);
}

void vb_say_drop_qkey(struct vb_text *t, const struct vb_facts *f, const struct vb_qkey_facts *of)
{
	vb_text_add(t,
		    "a datagram has Q_Key 0x%08x, but queue pair 0x%06x has Q_Key 0x%08x; set the same value "
		    "in remote_qkey of the request and in qkey of ibv_modify_qp",
		    of->came, f->qpn, of->have);
}

static const char *type_name(uint32_t type)
{
	const char *name = vb_name_qp_type(type);

	return name ? name : "an unknown type";
}

void vb_say_drop_no_qp(struct vb_text *t, const struct vb_facts *f, const struct vb_no_qp_facts *of)
{
	vb_text_add(t, "queue pair 0x%06x ", f->qpn);
	switch (of->why) {
	case VB_NOT_TYPE:
		vb_text_add(t, "has type %s, but its sender has type %s; both ends must have the same type",
			    type_name(of->type), type_name(of->sent));
		break;
	case VB_NOT_READY:
		vb_text_add(t, "is in state %s: %s", vb_qp_state_name(of->state),
			    of->state == IBV_QPS_ERR ? "the log has its first failure"
			    : f->ends & VB_END_HERE
				? "it receives after rdma_cm has established its connection"
				: "it receives from state RTR on (ibv_modify_qp)");
		break;
	case VB_NOT_FROM_HIM:
		vb_text_add(t,
			    "is connected to queue pair 0x%06x of another process and receives only from it",
			    of->dest & VB_QPN_MASK);
		break;
	default: /* VB_NOT_THERE */
		vb_text_add(t,
			    "does not exist: it was destroyed, or remote_qpn or dest_qp_num is wrong at the "
			    "sender");
		break;
	}
}

void vb_say_drop_full(struct vb_text *t, const struct vb_facts *f, const struct vb_retry_facts *of)
{
	char whose[32] = "of a multicast group member";

	if (of->peer_qpn != VB_QPN_GROUP)
		snprintf(whose, sizeof(whose), "of queue pair 0x%06x", of->peer_qpn & VB_QPN_MASK);
	vb_text_add(t,
		    "the process %s receives nothing, and the queue to it is full: it is stopped or gets no "
		    "CPU",
		    whose);
}

void vb_say_drop_nobody(struct vb_text *t, const struct vb_facts *f, const struct vb_retry_facts *of)
{
	char text[400] = "";
	struct vb_text what = {text, sizeof(text)};

	vb_text_add(t, "queue pair 0x%06x cannot be reached", of->peer_qpn & VB_QPN_MASK);
	if (vb_reach_add(&what, &of->silence))
		vb_text_add(t, ": %s", text);
}

void vb_say_flushed(struct vb_text *t, const struct vb_facts *f, const struct vb_none_facts *of)
{
	vb_text_add(t, "the queue pair is in the error state");
}

void vb_say_cq_overrun(struct vb_text *t, const struct vb_facts *f, const struct vb_limit_facts *of)
{
	vb_text_add(t,
		    "a completion queue of %u entr%s overran: it was not polled in time; poll more often or "
		    "create a larger one",
		    of->most, of->most == 1 ? "y" : "ies");
}

void vb_reason_add(struct vb_text *t, const struct vb_facts *f)
{
	switch (f->reason) {
#define REASON(r, name, nak, remote_wc, local_wc, event, kind, say) \
	case r:                                                     \
		say(t, f, &f->kind);                                \
		break;
#include "iba/reason_list.h"
#undef REASON
	default: /* a far end says so */
		vb_text_add(t, "unknown reason %u", f->reason);
		break;
	}
}

const char *vb_reason_say(char *buf, size_t size, const struct vb_facts *f)
{
	struct vb_text t = {buf, size};

	if (!size)
		return buf;
	*buf = 0;
	vb_reason_add(&t, f);
	return buf;
}
