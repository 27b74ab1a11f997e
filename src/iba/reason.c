#include "iba/reason.h"

#include <inttypes.h>
#include <string.h>

#include <infiniband/verbs.h>

#include "iba/opcode.h"
#include "iba/qp_state.h"
#include "iba/reason_priv.h"
#include "iba/pkt.h"
#include "iba/reach.h"

#define INVALID	  VB_AETH_NAK_INVALID_REQUEST
#define ACCESS	  VB_AETH_NAK_REMOTE_ACCESS
#define OPERATION VB_AETH_NAK_REMOTE_OPERATION
#define NONE	  0xff
#define NEVER                                                                                         \
	IBV_WC_GENERAL_ERR /* a status that cannot be asked for: the reason never stands at that side \
			    */

/* name, NAK, requester's status when found at the far end, status at the side that found it, event there */
const struct vb_reason_row vb_reasons[VB_REASONS] = {
    [VB_OK] = {"ok", 0, IBV_WC_SUCCESS, IBV_WC_SUCCESS, NONE},
    /* rules 13, 20, 21 */
    [VB_R_KEY_UNKNOWN] = {"key-unknown", ACCESS, IBV_WC_REM_ACCESS_ERR, IBV_WC_LOC_PROT_ERR,
			  IBV_EVENT_QP_ACCESS_ERR},
    [VB_R_KEY_STALE] = {"key-stale", ACCESS, IBV_WC_REM_ACCESS_ERR, IBV_WC_LOC_PROT_ERR,
			IBV_EVENT_QP_ACCESS_ERR},
    [VB_R_KEY_IS_LOCAL] = {"key-is-local", ACCESS, IBV_WC_REM_ACCESS_ERR, IBV_WC_LOC_PROT_ERR,
			   IBV_EVENT_QP_ACCESS_ERR},
    [VB_R_KEY_IS_REMOTE] = {"key-is-remote", 0, NEVER, IBV_WC_LOC_PROT_ERR, NONE},
    [VB_R_KEY_PD] = {"key-pd", ACCESS, IBV_WC_REM_ACCESS_ERR, IBV_WC_LOC_PROT_ERR, IBV_EVENT_QP_ACCESS_ERR},
    [VB_R_KEY_QP] = {"key-qp", ACCESS, IBV_WC_REM_ACCESS_ERR, IBV_WC_LOC_PROT_ERR, IBV_EVENT_QP_ACCESS_ERR},
    [VB_R_KEY_BOUNDS] = {"key-bounds", ACCESS, IBV_WC_REM_ACCESS_ERR, IBV_WC_LOC_PROT_ERR,
			 IBV_EVENT_QP_ACCESS_ERR},
    [VB_R_KEY_ACCESS] = {"key-access", ACCESS, IBV_WC_REM_ACCESS_ERR, IBV_WC_LOC_PROT_ERR,
			 IBV_EVENT_QP_ACCESS_ERR},
    [VB_R_KEY_NOT_WINDOW] = {"key-not-window", ACCESS, IBV_WC_REM_ACCESS_ERR, IBV_WC_MW_BIND_ERR,
			     IBV_EVENT_QP_ACCESS_ERR}, /* rule 46 */
    [VB_R_KEY_OWNER_GONE] = {"key-owner-gone", ACCESS, IBV_WC_REM_ACCESS_ERR, IBV_WC_LOC_PROT_ERR,
			     IBV_EVENT_QP_ACCESS_ERR},
    [VB_R_KEY_NO_CONTACT] = {"key-no-contact", ACCESS, IBV_WC_REM_ACCESS_ERR, IBV_WC_LOC_PROT_ERR,
			     IBV_EVENT_QP_ACCESS_ERR},
    [VB_R_MEM_FORBIDDEN] = {"mem-forbidden", ACCESS, IBV_WC_REM_ACCESS_ERR, IBV_WC_LOC_PROT_ERR,
			    IBV_EVENT_QP_ACCESS_ERR},
    [VB_R_ATOMIC_FOREIGN] = {"atomic-foreign", ACCESS, IBV_WC_REM_ACCESS_ERR, NEVER, IBV_EVENT_QP_ACCESS_ERR},
    [VB_R_MEM_VANISHED] = {"mem-vanished", ACCESS, IBV_WC_REM_ACCESS_ERR, IBV_WC_LOC_PROT_ERR,
			   IBV_EVENT_QP_ACCESS_ERR},
    /* rules 46 to 48; the status is IBTA's "memory management operation error" */
    [VB_R_INV_TYPE] = {"invalidate-type", ACCESS, IBV_WC_REM_ACCESS_ERR, IBV_WC_MW_BIND_ERR,
		       IBV_EVENT_QP_ACCESS_ERR},
    [VB_R_INV_KEY] = {"invalidate-key", ACCESS, IBV_WC_REM_ACCESS_ERR, IBV_WC_MW_BIND_ERR,
		      IBV_EVENT_QP_ACCESS_ERR},
    [VB_R_INV_QP] = {"invalidate-qp", ACCESS, IBV_WC_REM_ACCESS_ERR, IBV_WC_MW_BIND_ERR,
		     IBV_EVENT_QP_ACCESS_ERR},
    [VB_R_BIND_GONE] = {"bind-gone", 0, NEVER, IBV_WC_MW_BIND_ERR, NONE},
    [VB_R_BIND_ZERO] = {"bind-zero", 0, NEVER, IBV_WC_MW_BIND_ERR, NONE},
    [VB_R_BIND_BOUND] = {"bind-bound", 0, NEVER, IBV_WC_MW_BIND_ERR, NONE},
    [VB_R_BIND_REGION] = {"bind-region", 0, NEVER, IBV_WC_MW_BIND_ERR, NONE},
    [VB_R_BIND_PD] = {"bind-pd", 0, NEVER, IBV_WC_MW_BIND_ERR, NONE},
    [VB_R_BIND_RANGE] = {"bind-range", 0, NEVER, IBV_WC_MW_BIND_ERR, NONE},
    [VB_R_BIND_ACCESS] = {"bind-access", 0, NEVER, IBV_WC_MW_BIND_ERR, NONE},
    /* rule 22: a queue pair that is not set up for the operation does not take its opcode */
    [VB_R_QP_ACCESS] = {"qp-access", INVALID, IBV_WC_REM_INV_REQ_ERR, IBV_WC_LOC_QP_OP_ERR,
			IBV_EVENT_QP_REQ_ERR},
    [VB_R_ATOMIC_ALIGN] = {"atomic-align", INVALID, IBV_WC_REM_INV_REQ_ERR, IBV_WC_LOC_QP_OP_ERR,
			   IBV_EVENT_QP_REQ_ERR}, /* rule 18 */
    [VB_R_TOO_MANY_READS] = {"too-many-reads", INVALID, IBV_WC_REM_INV_REQ_ERR, IBV_WC_LOC_QP_OP_ERR,
			     IBV_EVENT_QP_REQ_ERR},
    [VB_R_READ_DEPTH_ZERO] = {"read-depth-zero", 0, NEVER, IBV_WC_LOC_QP_OP_ERR, NONE}, /* rule 14 */
    [VB_R_BAD_SEQUENCE] = {"bad-sequence", INVALID, IBV_WC_REM_INV_REQ_ERR, IBV_WC_LOC_QP_OP_ERR,
			   IBV_EVENT_QP_REQ_ERR},
    [VB_R_BAD_LENGTH] = {"bad-length", INVALID, IBV_WC_REM_INV_REQ_ERR, IBV_WC_LOC_LEN_ERR,
			 IBV_EVENT_QP_REQ_ERR},
    [VB_R_PATH_MTU] = {"path-mtu", INVALID, IBV_WC_REM_INV_REQ_ERR, IBV_WC_LOC_LEN_ERR,
		       IBV_EVENT_QP_REQ_ERR}, /* rule 28 */
    /* rule 23: the receive WQE always takes these two */
    [VB_R_RECV_TOO_SMALL] = {"recv-too-small", INVALID, IBV_WC_REM_INV_REQ_ERR, IBV_WC_LOC_LEN_ERR, NONE},
    [VB_R_RECV_LOCAL] = {"recv-local", OPERATION, IBV_WC_REM_OP_ERR, IBV_WC_LOC_PROT_ERR, NONE},
    [VB_R_MSG_TOO_LONG] = {"msg-too-long", 0, NEVER, IBV_WC_LOC_LEN_ERR, NONE},
    [VB_R_RESPONSE_MTU] = {"response-mtu", 0, NEVER, IBV_WC_BAD_RESP_ERR, NONE},
    [VB_R_RESPONSE_BAD] = {"response-bad", 0, NEVER, IBV_WC_BAD_RESP_ERR, NONE},
    [VB_R_RNR] = {"rnr", 0, IBV_WC_RNR_RETRY_EXC_ERR, IBV_WC_RNR_RETRY_EXC_ERR, NONE}, /* rule 1 */
    [VB_R_RETRY] = {"retry", 0, IBV_WC_RETRY_EXC_ERR, IBV_WC_RETRY_EXC_ERR, NONE},     /* rule 38 */
    [VB_R_PEER_DIED] = {"peer-died", 0, IBV_WC_RETRY_EXC_ERR, IBV_WC_RETRY_EXC_ERR, IBV_EVENT_QP_FATAL},
    [VB_R_PEER_CLOSED] = {"peer-closed", 0, IBV_WC_RETRY_EXC_ERR, IBV_WC_RETRY_EXC_ERR, IBV_EVENT_QP_FATAL},
    [VB_R_DEVICE_LOST] = {"device-lost", 0, NEVER, IBV_WC_WR_FLUSH_ERR, IBV_EVENT_QP_FATAL},
    /* found at the far end, seen from here */
    [VB_R_NAK_INVALID_REQUEST] = {"nak-invalid-request", INVALID, IBV_WC_REM_INV_REQ_ERR,
				  IBV_WC_REM_INV_REQ_ERR, NONE},
    [VB_R_NAK_REMOTE_ACCESS] = {"nak-remote-access", ACCESS, IBV_WC_REM_ACCESS_ERR, IBV_WC_REM_ACCESS_ERR,
				NONE},
    [VB_R_NAK_REMOTE_OPERATION] = {"nak-remote-operation", OPERATION, IBV_WC_REM_OP_ERR, IBV_WC_REM_OP_ERR,
				   NONE},
    [VB_R_FLUSHED] = {"flushed", 0, IBV_WC_WR_FLUSH_ERR, IBV_WC_WR_FLUSH_ERR, NONE},
    [VB_R_CQ_OVERRUN] = {"cq-overrun", OPERATION, IBV_WC_REM_OP_ERR, IBV_WC_GENERAL_ERR,
			 IBV_EVENT_QP_FATAL}, /* rule 31 */
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

static const char *opcode_name(uint64_t opcode)
{
	return opcode < 256 && vb_opcodes[opcode].name ? vb_opcodes[opcode].name : "unknown";
}

/* Of a SEND only what has come is known. */
static void say_mtu(struct vb_text *t, const struct vb_facts *f)
{
	vb_text_add(t,
		    f->reason == VB_R_RESPONSE_MTU ? "the answer to a READ of %" PRIu64 " bytes"
						   : "a message of %" PRIu64 " bytes or more",
		    f->len);
	vb_text_add(t,
		    " does not fit one packet of the smaller path MTU, and the two ends have different ones: "
		    "path_mtu is %" PRIu64 " at the end that sent it, %" PRIu64
		    " at the one that got it; set the same with ibv_modify_qp at both",
		    f->a, f->b);
}

static void say_request(struct vb_text *t, const struct vb_facts *f)
{
	switch (f->reason) {
	case VB_R_QP_ACCESS:
		vb_text_add(t, "queue pair 0x%06x does not permit ", f->qpn);
		vb_text_access(t, f->want, "", "|", "this operation");
		vb_text_add(t, ": its qp_access_flags are ");
		vb_text_access(t, f->have, "", "|", "0");
		vb_text_add(t, "; set ");
		vb_text_access(t, f->want, "IBV_ACCESS_", " | ", "what is missing");
		vb_text_add(t, " with ibv_modify_qp");
		break;
	case VB_R_ATOMIC_ALIGN:
		vb_text_add(t,
			    "atomic at address 0x%" PRIx64 " (in memory 0x%" PRIx64
			    "), which is not a multiple of 8: align it",
			    f->addr, f->a);
		break;
	case VB_R_TOO_MANY_READS:
		vb_text_add(t,
			    "more READs and atomics at once than the %" PRIu64
			    " that the responder holds: the requester's max_rd_atomic must not exceed the "
			    "responder's max_dest_rd_atomic",
			    f->a);
		break;
	case VB_R_READ_DEPTH_ZERO:
		vb_text_add(
		    t,
		    "READ or atomic on a queue pair whose max_rd_atomic is 0: set it with ibv_modify_qp on "
		    "the way to RTS");
		break;
	case VB_R_BAD_SEQUENCE:
		vb_text_add(t, "packet '%s' (0x%02x) may not follow '%s' (0x%02x)", opcode_name(f->a),
			    (unsigned)f->a, opcode_name(f->b), (unsigned)f->b);
		break;
	case VB_R_BAD_LENGTH:
		vb_text_add(t, "a packet or message of ");
		vb_text_bytes(t, f->a);
		vb_text_add(t, " where %" PRIu64 " %s due", f->b, f->b == 1 ? "was" : "were");
		break;
	case VB_R_PATH_MTU:
	case VB_R_RESPONSE_MTU:
		say_mtu(t, f);
		break;
	case VB_R_RECV_TOO_SMALL:
		vb_text_add(t, "a message of at least ");
		vb_text_bytes(t, f->a);
		vb_text_add(t, " does not fit the receive buffer of ");
		vb_text_bytes(t, f->b);
		break;
	case VB_R_MSG_TOO_LONG:
		vb_text_add(t,
			    "an atomic brings %" PRIu64
			    " bytes back, and its scatter/gather list has %" PRIu64 ": give it %" PRIu64,
			    f->b, f->a, f->b);
		break;
	default: /* VB_R_RESPONSE_BAD */
		vb_text_add(t, "response '%s' (0x%02x) does not fit the request that it answers",
			    opcode_name(f->a), (unsigned)f->a);
		break;
	}
}

static void say_what_is_there(struct vb_text *t, const struct vb_facts *f)
{
	char text[400] = "";
	struct vb_text what = {text, sizeof(text)};

	if (vb_reach_add(&what, f->have, f->pd_want, f->pd_have))
		vb_text_add(t, ": %s", text);
}

static void say_how_it_went(struct vb_text *t, const struct vb_facts *f)
{
	switch (f->have) {
	case VB_GONE_UNCLEAR:
		vb_text_add(
		    t,
		    "the peer's process %" PRIu64
		    " hung up without closing its queue pair: it ended, closed the descriptors of its "
		    "device, or runs another program now, which cannot be seen from here",
		    f->a);
		break;
	case VB_GONE_CLOSED:
		vb_text_add(t,
			    "the peer's process %" PRIu64
			    " is alive, and has closed the descriptors of its open device (as a program does "
			    "that closes all from 3 up): it is to open the device after that",
			    f->a);
		break;
	case VB_GONE_EXEC:
		vb_text_add(t,
			    "the peer's process %" PRIu64
			    " is alive, and runs another program now (exec), which has no queue pair",
			    f->a);
		break;
	case VB_GONE_BROKEN:
		vb_text_add(t,
			    "the peer's process %" PRIu64
			    " is alive, and ended the connection: what came from this process is nothing "
			    "that a peer says",
			    f->a);
		break;
	case VB_GONE_RUBBISH:
		vb_text_add(t,
			    "the connection to the peer's process %" PRIu64
			    " was ended: what came from there is nothing that a peer says",
			    f->a);
		break;
	default:
		vb_text_add(t, "the peer's process %" PRIu64 " ended without closing its queue pair", f->a);
		break;
	}
}

static void say_reach(struct vb_text *t, const struct vb_facts *f)
{
	switch (f->reason) {
	case VB_R_RNR:
		vb_text_add(
		    t,
		    "queue pair 0x%06x was not ready: no receive request was posted there within rnr_retry = "
		    "%" PRIu64 " retr%s",
		    (unsigned)f->b & VB_QPN_MASK, f->a, f->a == 1 ? "y" : "ies");
		break;
	case VB_R_RETRY:
		vb_text_add(t,
			    "no acknowledgement from queue pair 0x%06x within retry_cnt = %" PRIu64 " retr%s",
			    (unsigned)f->b & VB_QPN_MASK, f->a, f->a == 1 ? "y" : "ies");
		say_what_is_there(t, f);
		break;
	case VB_R_PEER_DIED:
	case VB_R_PEER_CLOSED:
		say_how_it_went(t, f);
		break;
	case VB_R_DEVICE_LOST:
		vb_text_add(t,
			    "this process closed descriptors that belong to its open device: open it after "
			    "closing, or leave descriptors alone that the program has not opened itself");
		break;
	case VB_R_NAK_INVALID_REQUEST:
		vb_text_add(t, "the far end refused the request as invalid");
		break;
	case VB_R_NAK_REMOTE_ACCESS:
		vb_text_add(t, "the far end refused access to its memory");
		break;
	case VB_R_NAK_REMOTE_OPERATION:
		vb_text_add(t, "the far end failed to carry out the request");
		break;
	case VB_R_FLUSHED:
		vb_text_add(t, "the queue pair is in the error state");
		if (f->a || f->b)
			vb_text_add(t, ": %" PRIu64 " send and %" PRIu64 " receive requests flushed", f->a,
				    f->b);
		break;
	default: /* VB_R_CQ_OVERRUN */
		vb_text_add(t, "a completion queue of %" PRIu64 " entr%s overran: it was not polled in time",
			    f->a, f->a == 1 ? "y" : "ies");
		break;
	}
}

const char *vb_reason_say(char *buf, size_t size, const struct vb_facts *f)
{
	struct vb_text t = {buf, size};

	if (!size)
		return buf;
	*buf = 0;
	if (f->reason == VB_OK)
		vb_text_add(&t, "no error");
	else if (f->reason <= VB_R_MEM_VANISHED)
		vb_reason_say_key(&t, f);
	else if (f->reason <= VB_R_INV_QP)
		vb_reason_say_invalidate(&t, f);
	else if (f->reason <= VB_R_BIND_ACCESS)
		vb_reason_say_bind(&t, f);
	else if (f->reason == VB_R_RECV_LOCAL)
		vb_reason_say_receive_buffer(&t, f);
	else if (f->reason <= VB_R_RESPONSE_BAD)
		say_request(&t, f);
	else if (f->reason < VB_REASONS)
		say_reach(&t, f);
	else
		vb_text_add(&t, "unknown reason %u", f->reason);
	return buf;
}
