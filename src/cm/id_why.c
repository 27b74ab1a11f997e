/* Why connections of identifiers do not come about, in a sentence for the log: the events themselves have a
 * number only.  What the program at the far end wanted so (rdma_reject) needs none, nor does what the program
 * here is not told of. */
#include <arpa/inet.h>
#include <errno.h>
#include <string.h>

#include "base/clock.h"
#include "base/log.h"
#include "base/waiting.h"
#include "cm/id.h"
#include "iba/away.h"
#include "iba/waits.h"

enum { ADDRESS = 96, WHY = 500 };

/* "10.0.0.1 port 7471" */
static const char *text_of(const struct sockaddr_storage *s, char buf[ADDRESS])
{
	struct vb_text t = {buf, ADDRESS};

	*buf = 0;
	vb_cm_sock_add(&t, (const struct sockaddr *)s);
	return buf;
}

static bool is_hidden(const struct vb_cm_id *id)
{
	return id->passive && !id->user;
}

/* The call that is answered so, and by whom. */
static const char *call_of(const struct vb_cm_id *id)
{
	return id->passive ? "rdma_accept from" : "rdma_connect to";
}

/* What the end of the far end's process has put an end to. */
static const char *unfinished(const struct vb_cm_id *id)
{
	return id->conn && !id->conn->remote_comm_id ? "the request was not answered"
						     : "the connection was not completed";
}

static bool listens(struct vb_port_name n, uint16_t space, uint16_t port)
{
	n.space = space;
	n.port = port;
	return vb_cm_below()->listens && vb_cm_below()->listens(&n);
}

/* A mistake by which the listener stands elsewhere; false: none is seen. */
static bool add_mistaken(struct vb_text *t, const struct vb_port_name *n)
{
	static const struct {
		uint16_t space;
		const char *name;
	} spaces[] = {{VB_PORTS_TCP, "RDMA_PS_TCP"},
		      {VB_PORTS_UDP, "RDMA_PS_UDP"},
		      {VB_PORTS_IPOIB, "RDMA_PS_IPOIB"},
		      {VB_PORTS_IB, "RDMA_PS_IB"}};
	uint16_t swapped = (uint16_t)(n->port << 8 | n->port >> 8);
	const char *own = "another port space";

	for (unsigned i = 0; i < 4; i++)
		if (spaces[i].space == n->space)
			own = spaces[i].name;
	for (unsigned i = 0; i < 4; i++) {
		if (spaces[i].space == n->space || !listens(*n, spaces[i].space, n->port))
			continue;
		vb_text_add(
		    t,
		    "; port %u has a listener in port space %s, and this id uses %s; pass the same port "
		    "space to rdma_create_id() at both ends",
		    n->port, spaces[i].name, own);
		return true;
	}
	if (swapped == n->port || !listens(*n, n->space, swapped))
		return false;
	vb_text_add(t,
		    "; port %u has a listener, and %u is %u with its two bytes swapped: one end does not "
		    "call htons() "
		    "for its port",
		    swapped, swapped, n->port);
	return true;
}

/* What helps, where a number alone leads nowhere. */
static const char *nobody(const struct vb_cm_id *id, char buf[WHY])
{
	const struct sockaddr *dst = (const struct sockaddr *)&id->dst;
	struct vb_text t = {buf, WHY};
	struct vb_port_name n;

	*buf = 0;
	vb_cm_sock_name(&n, dst, id->ps);
	if (add_mistaken(&t, &n) || (vb_cm_below()->hidden && vb_cm_below()->hidden(&n, &t)))
		return buf;
	vb_text_add(&t,
		    "; start the listener first: only listeners on this address or on the wildcard address "
		    "are found, and on this host only those of the same user and network namespace");
	return buf;
}

void vb_cm_id_why_rejected(const struct vb_cm_id *id, uint16_t reason, const char *gone)
{
	char far[ADDRESS], why[WHY] = "";

	if (is_hidden(id))
		return;
	if (gone) {
		vb_log_reason("cm-rejected", "%s %s: REJECTED, status %u: %s: %s", call_of(id),
			      text_of(&id->dst, far), reason, unfinished(id), gone);
		return;
	}
	if (reason == VB_CM_REJ_CONSUMER || reason == VB_CM_REJ_VENDOR_OPTION)
		return;
	vb_log_reason("cm-rejected", "%s %s: REJECTED, status %u: %s%s", call_of(id), text_of(&id->dst, far),
		      reason, vb_cm_rej_text(reason),
		      reason == VB_CM_REJ_INVALID_SERVICE_ID ? nobody(id, why) : "");
}

void vb_cm_id_why_sidr(const struct vb_cm_id *id, uint8_t status, const char *gone)
{
	char far[ADDRESS], why[WHY];

	if (gone) {
		vb_log_reason("cm-unreachable", "%s %s: UNREACHABLE, status %u: %s: %s", call_of(id),
			      text_of(&id->dst, far), status, unfinished(id), gone);
		return;
	}
	if (status == VB_CM_SIDR_SUCCESS || status == VB_CM_SIDR_REJECT)
		return;
	vb_log_reason("cm-unreachable", "%s %s: UNREACHABLE, status %u: %s%s", call_of(id),
		      text_of(&id->dst, far), status, vb_cm_sidr_text(status),
		      status == VB_CM_SIDR_UNSUPPORTED ? nobody(id, why) : "");
}

void vb_cm_id_why_no_qp(const struct vb_cm_id *id)
{
	char far[ADDRESS];

	vb_log_reason("cm-no-qp",
		      "rdma_connect to %s: the peer accepted without a queue pair, so it receives no "
		      "messages: it must call rdma_create_qp() before rdma_accept(), or set "
		      "rdma_conn_param.qp_num",
		      text_of(&id->dst, far));
}

void vb_cm_id_why_no_qp_here(const struct vb_cm_id *id)
{
	char far[ADDRESS];

	vb_log_reason("cm-no-qp",
		      "%s %s: this process accepted without a queue pair, so messages of the peer are lost: "
		      "call rdma_create_qp() before rdma_accept(), or set rdma_conn_param.qp_num",
		      call_of(id), text_of(&id->dst, far));
}

/* ---- a message without an answer ---- */

/* Why there is none, as far as is known; whether there is contact with the far end.  Packets from a far end
 * that has said that it has the message (MRA) tell nothing. */
static bool look(const struct vb_cm_conn *c, struct vb_cm_awaited *what, struct vb_reach_facts *f)
{
	bool met = true;

	*f = (struct vb_reach_facts){.reach = VB_REACH_UNKNOWN};
	vb_cm_awaits(c, what);
	if (vb_cm_below()->silent)
		met = vb_cm_below()->silent(vb_cm_user(c->cm), c, f);
	if (what->taken && f->reach == VB_REACH_CM_OTHERS)
		f->reach = VB_REACH_UNKNOWN;
	return met;
}

/* What the host or the network says of the message itself. */
static bool is_sure(const struct vb_reach_facts *f)
{
	return f->reach && vb_wait_of_reach(f) != VB_W_PEER_UNREADABLE;
}

/* Keeps what is known while a message waits.  A far end may take its time for a REQ or REP, and says so (MRA)
 * only when it hears that again.  So silence tells something from the second time on; of others it does not.
 */
static void look_again(struct vb_cm_id *id, struct vb_cm_awaited *what)
{
	bool tells;

	(void)look(id->conn, what, &id->silence);
	tells = what->repeats && (what->kind == VB_CM_REQ || what->kind == VB_CM_REP);
	if (!tells && !is_sure(&id->silence))
		id->silence.reach = VB_REACH_UNKNOWN;
	id->silence_of = what->since;
	vb_cm_show(id);
}

/* "has waited for 6.4 s: no answer to the REQ, ..." */
static void say_waits(struct vb_cm_id *id, const struct vb_cm_awaited *a, uint64_t waited)
{
	char far[ADDRESS], name[32], why[WHY] = "";
	struct vb_text t = {why, sizeof(why)};

	if (!vb_reach_add(&t, &id->silence))
		return;
	id->told = a->kind;
	vb_log_reason(vb_wait_rows[vb_wait_of_reach(&id->silence)].name,
		      "%s %s has waited for %.1f s: no answer to the %s, sent %u of at most %u times: %s",
		      a->kind == VB_CM_DREQ ? "rdma_disconnect from" : call_of(id), text_of(&id->dst, far),
		      (double)waited / 1e9, vb_cm_kind_name(a->kind, name), a->said, a->most, why);
}

void vb_cm_ids_repeats(struct vb_cm_conn *c)
{
	struct vb_cm_id *id = c->user;
	uint64_t warn = vb_waiting_warn(VB_NEVER), now = vb_cm_below()->now();
	struct vb_cm_awaited a;

	if (!id || is_hidden(id))
		return;
	look_again(id, &a);
	if (warn != VB_NEVER && now - a.since >= warn && id->told != a.kind)
		say_waits(id, &a, now - a.since);
}

void vb_cm_id_why_unanswered(const struct vb_cm_id *id, enum rdma_cm_event_type event, uint16_t kind,
			     uint8_t said)
{
	char far[ADDRESS], name[32], why[WHY] = "";
	struct vb_text t = {why, sizeof(why)};
	struct vb_cm_awaited a;
	struct vb_reach_facts f;
	const char *more;

	if (is_hidden(id))
		return;
	more = !look(id->conn, &a, &f) ? " but never delivered" : a.taken ? " and received (MRA)" : "";
	(void)vb_reach_add(&t, &f);
	vb_log_reason("cm-unanswered", "%s %s: %s: no answer to the %s, sent %u time%s%s%s%s",
		      event == RDMA_CM_EVENT_DISCONNECTED ? "rdma_disconnect from" : call_of(id),
		      text_of(&id->dst, far), vb_cm_event_name(event), vb_cm_kind_name(kind, name), said,
		      said == 1 ? "" : "s", more, *why ? ": " : "", why);
}

static struct vb_reach_away away(const struct sockaddr *addr)
{
	struct vb_reach_away a = {.obstacle = VB_AWAY_CLOSED};
	uint8_t gid[16];

	vb_cm_sock_gid(addr, gid);
	if (vb_cm_below()->away)
		vb_cm_below()->away(gid, &a);
	return a;
}

void vb_cm_why_address(char *text, size_t size, const struct sockaddr *addr)
{
	struct vb_text t = {text, size};

	*text = 0;
	vb_text_add(&t, "the source address ");
	vb_cm_sock_add(&t, addr);
	vb_text_add(&t, " is ");
	vb_away_add_source(&t, away(addr).pid);
}

void vb_cm_id_why_no_way(const struct sockaddr *dst, int err)
{
	char text[400] = "", far[ADDRESS];
	struct vb_text why = {text, sizeof(text)};
	struct sockaddr_storage s = {0};
	struct vb_reach_away a = away(dst);
	/* a source that does not lead there (127.0.0.1) is ENETUNREACH, too */
	bool known = err == EHOSTUNREACH || (err == ENETUNREACH && !*a.ifname);

	memcpy(&s, dst, vb_cm_sock_size(dst));
	if (known) {
		vb_text_add(&why, "it is ");
		vb_away_add(&why, &a);
	}
	vb_log_reason("cm-address", "rdma_resolve_addr of %s: ADDR_ERROR, %s: %s", text_of(&s, far),
		      strerrorname_np(err), known ? text : strerror(err));
}

const struct vb_cm_answer *vb_cm_answer_to(uint16_t kind)
{
	static const struct vb_cm_answer all[] = {
	    {VB_CM_REQ, "connection request (REQ)", "REP",
	     "the server's program has not called rdma_accept() or rdma_reject()"},
	    {VB_CM_REP, "acceptance (REP)", "RTU",
	     "the client's program has not got its event with rdma_get_cm_event()"},
	    {VB_CM_DREQ, "disconnect request (DREQ)", "DREP",
	     "the peer's program has not got its event and called rdma_disconnect()"},
	    {VB_CM_SIDR_REQ, "lookup (SIDR_REQ)", "SIDR_REP",
	     "the server's program has not called rdma_accept() or rdma_reject()"},
	};

	for (size_t i = 0; i < sizeof(all) / sizeof(*all); i++)
		if (all[i].kind == kind)
			return &all[i];
	return NULL;
}

/* An id of the channel that waits for an answer. */
struct awaiting {
	const struct vb_cm_channel *channel;
	struct vb_cm_awaited what;
	struct vb_reach_facts silence;
	bool far; /* on another host, which has not said that it has the message */
	char who[ADDRESS];
};

static void look_for_awaiting(struct vb_cm_id *id, void *with)
{
	struct awaiting *a = with;

	if (id->channel != a->channel || !id->conn || a->what.kind)
		return;
	vb_cm_awaits(id->conn, &a->what);
	if (!a->what.kind)
		return;
	look_again(id, &a->what);
	a->silence = id->silence;
	if (a->silence.reach)
		id->told = a->what.kind;
	a->far = vb_cm_far(id->conn).kind == VB_WHOM_ADDRESS && !a->what.taken;
	text_of(&id->dst, a->who);
}

void vb_cm_say_awaited(const struct vb_cm_channel *c, uint64_t waited)
{
	struct awaiting a = {.channel = c};
	char text[ADDRESS + 2 * WHY] = "";
	struct vb_text t = {text, sizeof(text)};
	const struct vb_cm_answer *answer;
	const char *call = vb_call_name();

	vb_cm_ids_enter();
	vb_cm_ids_each(look_for_awaiting, &a);
	vb_cm_ids_leave();
	answer = vb_cm_answer_to(a.what.kind);
	if (!answer)
		return;
	vb_text_add(&t,
		    "%s() has waited for %.1f s: its %s to %s was sent %u of at most %u times, and no %s has "
		    "come: ",
		    call ? call : "rdma_cm", (double)waited / 1e9, answer->sent, a.who, a.what.said,
		    a.what.most, answer->answer);
	if (vb_reach_add(&t, &a.silence)) /* which has the remedy, too */
		vb_log_reason(vb_wait_rows[vb_wait_of_reach(&a.silence)].name, "%s", text);
	else
		vb_wait_say(VB_W_CM_ANSWER, "%s%s%s", text, answer->missing,
			    a.far ? ", or no message has arrived, which the next attempts will tell" : "");
	vb_log_tell();
}
