/* Why connections of identifiers do not come about, in a sentence for the log: the events themselves have a
 * number only.  What the program at the far end wanted so (rdma_reject) needs none, nor does what the program
 * here is not told of. */
#include <arpa/inet.h>
#include <errno.h>
#include <string.h>

#include "base/log.h"
#include "cm/id.h"

enum { ADDRESS = 96, WHY = 400 };

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
	return id->passive ? "rdma_accept of" : "rdma_connect to";
}

/* What the end of the far end's process has put an end to. */
static const char *unfinished(const struct vb_cm_id *id)
{
	return id->conn && !id->conn->remote_comm_id ? "the request was not answered"
						     : "the connection was not completed";
}

/* What helps, where a number alone leads nowhere. */
static const char nobody[] =
    "; found is who listens at that very address or at all of them, and on this host only "
    "processes of the same user and network namespace";

void vb_cm_id_why_rejected(const struct vb_cm_id *id, uint16_t reason, const char *gone)
{
	char far[ADDRESS];

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
		      reason, vb_cm_rej_text(reason), reason == VB_CM_REJ_INVALID_SERVICE_ID ? nobody : "");
}

void vb_cm_id_why_sidr(const struct vb_cm_id *id, uint8_t status, const char *gone)
{
	char far[ADDRESS];

	if (gone) {
		vb_log_reason("cm-unreachable", "%s %s: UNREACHABLE, status %u: %s: %s", call_of(id),
			      text_of(&id->dst, far), status, unfinished(id), gone);
		return;
	}
	if (status == VB_CM_SIDR_SUCCESS || status == VB_CM_SIDR_REJECT)
		return;
	vb_log_reason("cm-unreachable", "%s %s: UNREACHABLE, status %u: %s%s", call_of(id),
		      text_of(&id->dst, far), status, vb_cm_sidr_text(status),
		      status == VB_CM_SIDR_UNSUPPORTED ? nobody : "");
}

/* What is known of the far end's process; whether there is contact with it. */
static bool look(const struct vb_cm_conn *c, char why[WHY])
{
	uint32_t number = vb_cm_far_number(c);

	*why = 0;
	return !number || !vb_cm_below()->silent ||
	       vb_cm_below()->silent(vb_cm_user(c->cm), number, why, WHY);
}

void vb_cm_id_why_unanswered(const struct vb_cm_id *id, enum rdma_cm_event_type event, uint16_t kind,
			     uint8_t said)
{
	char far[ADDRESS], name[32], why[WHY];
	bool met;

	if (is_hidden(id))
		return;
	met = look(id->conn, why);
	vb_log_reason("cm-unanswered", "%s %s: %s: no answer to the %s, which was said %u time%s%s%s%s",
		      event == RDMA_CM_EVENT_DISCONNECTED ? "rdma_disconnect from" : call_of(id),
		      text_of(&id->dst, far), vb_cm_event_name(event), vb_cm_kind_name(kind, name), said,
		      said == 1 ? "" : "s", met ? "" : " and never got through", *why ? ": " : "", why);
}

void vb_cm_id_why_no_way(const struct sockaddr *dst, int err)
{
	struct sockaddr_storage s = {0};
	char far[ADDRESS];

	memcpy(&s, dst, vb_cm_sock_size(dst));
	vb_log_reason("cm-address", "rdma_resolve_addr of %s: ADDR_ERROR, %s: %s", text_of(&s, far),
		      strerrorname_np(err),
		      err == EHOSTUNREACH
			  ? "it is no address of this host, and there is no wire to other hosts yet"
			  : strerror(err));
}
