/* verbena explain, of rdma_cm: the ids of a process, their state and addresses, what each waits for, and what
 * the connection managers of its devices have counted. */
#include <arpa/inet.h>
#include <json-c/json.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "base/clock.h"
#include "base/text.h"
#include "base/told.h"
#include "cm/id.h"
#include "explain.h"
#include "host/segment.h"
#include "iba/names.h"

enum { TEXT = 512 };

/* ---- reading ---- */

static const struct vb_shown_marks *marks(const struct peek *p, unsigned device)
{
	return (const void *)(p->all[device] + VB_SEG_ID_MARKS);
}

/* A copy of the i-th entry; false: it is no id's, or changes all the time. */
static bool read_id(const struct peek *p, unsigned device, uint32_t i, struct vb_shown_id *out)
{
	const struct vb_shown_id_entry *e =
	    &((const struct vb_shown_id_entry *)(const void *)(p->all[device] + VB_SEG_IDS))[i];

	return vb_told_get(&e->seq, &e->id, out, VB_SHOWN_ID_WORDS) && out->flags & VB_SHOWN_LIVE;
}

static uint32_t used(const struct vb_shown_marks *m)
{
	uint32_t n = atomic_load_explicit(&m->used, memory_order_acquire);

	return n < VB_SHOWN_IDS ? n : VB_SHOWN_IDS;
}

/* Calls look() with each id. */
uint32_t vb_ids_each(const struct peek *p, void (*look)(const struct vb_shown_id *id, void *with), void *with)
{
	struct vb_shown_id id;
	uint32_t n = 0;

	for (unsigned d = 0; d < p->n; d++) {
		uint32_t end = used(marks(p, d));

		for (uint32_t i = 0; i < end; i++) {
			if (!read_id(p, d, i, &id))
				continue;
			n++;
			if (look)
				look(&id, with);
		}
	}
	return n;
}

/* Those that the process has no entries for. */
static uint32_t further(const struct peek *p)
{
	uint32_t all = 0, seen = vb_ids_each(p, NULL, NULL);

	for (unsigned d = 0; d < p->n; d++)
		all += atomic_load_explicit(&marks(p, d)->all, memory_order_relaxed);
	return all > seen ? all - seen : 0;
}

static uint64_t resting(const struct peek *p)
{
	uint64_t sum = 0;

	for (unsigned d = 0; d < p->n; d++)
		sum += atomic_load_explicit(&marks(p, d)->resting, memory_order_relaxed);
	return sum;
}

static uint64_t counted(const struct peek *p, enum vb_shown_count c)
{
	uint64_t sum = 0;

	for (unsigned d = 0; d < p->n; d++)
		sum += atomic_load_explicit(&marks(p, d)->counts[c], memory_order_relaxed);
	return sum;
}

/* ---- words ---- */

static const struct {
	const char *name, *text;
} counts[VB_SHOWN_COUNTS] = {
    [VB_SHOWN_MALFORMED] = {"malformed", "received, and not a communication management message or malformed"},
    [VB_SHOWN_UNKNOWN] = {"unknown-comm-id", "received for a comm ID that does not exist, or no longer"},
    [VB_SHOWN_UNEXPECTED] = {"unexpected", "received in a state that does not expect them"},
    [VB_SHOWN_DUPLICATES] = {"duplicate", "received a second time"},
    [VB_SHOWN_REFUSED] =
	{"refused",
	 "requests refused: no listener, a full backlog, or a stale connection of the peer's queue pair"},
    [VB_SHOWN_RETRIED] = {"retried", "retransmitted by this process, because no answer came"},
};

static const struct {
	uint32_t space;
	const char *name;
} spaces[] = {{RDMA_PS_TCP, "TCP"}, {RDMA_PS_UDP, "UDP"}, {RDMA_PS_IPOIB, "IPOIB"}, {RDMA_PS_IB, "IB"}};

static const char *space_name(uint32_t space)
{
	for (size_t i = 0; i < sizeof(spaces) / sizeof(*spaces); i++)
		if (spaces[i].space == space)
			return spaces[i].name;
	return "?";
}

/* What the program is to do next, by the id's state; NULL: nothing is waited for, or the connection says. */
static const char *const steps[VB_ID_STATES] = {
    [VB_ID_IDLE] = "rdma_bind_addr or rdma_resolve_addr",
    [VB_ID_BOUND] = "rdma_listen or rdma_resolve_addr",
    [VB_ID_ADDR_RESOLVED] = "rdma_resolve_route",
    [VB_ID_ROUTE_RESOLVED] = "rdma_connect",
    [VB_ID_ANSWERED] = "rdma_get_cm_event, and rdma_establish if the id has no queue pair",
    [VB_ID_REQUESTED] = "rdma_accept or rdma_reject",
    [VB_ID_DISCONNECTED] = "rdma_destroy_id",
    [VB_ID_FAILED] = "rdma_destroy_id",
    [VB_ID_REMOVED] = "rdma_destroy_id",
};

/* The same of a connection, where that comes first. */
static const char *const conn_steps[VB_CM_STATES] = {
    [VB_CM_DREQ_RCVD] = "rdma_disconnect, which confirms the peer's disconnect",
};

/* What answers which message, and what the peer has not done yet. */
static const struct answer {
	uint16_t kind;
	const char *sent, *answer, *missing;
} answers[] = {
    {VB_CM_REQ, "REQ", "REP", "the server has not accepted yet"},
    {VB_CM_REP, "REP", "RTU", "the client has not confirmed yet"},
    {VB_CM_DREQ, "DREQ", "DREP", "the peer has not confirmed yet"},
    {VB_CM_SIDR_REQ, "SIDR_REQ", "SIDR_REP", "the server has not answered yet"},
};

static const struct answer *answer_to(uint16_t kind)
{
	static const struct answer other = {0, "message", "answer", "the peer has not answered yet"};

	for (size_t i = 0; i < sizeof(answers) / sizeof(*answers); i++)
		if (answers[i].kind == kind)
			return &answers[i];
	return &other;
}

/* From the clock of deadlines to that of people. */
static uint64_t real_time(uint64_t due)
{
	struct timespec t;
	uint64_t now = vb_now(), real;

	clock_gettime(CLOCK_REALTIME, &t);
	real = (uint64_t)t.tv_sec * VB_SEC + (uint64_t)t.tv_nsec;
	return due >= now ? real + (due - now) : real - (now - due);
}

void vb_ids_add_events(struct vb_text *t, uint32_t events)
{
	bool first = true;

	for (unsigned e = 0; e < VB_CM_EVENTS; e++) {
		if (!(events >> e & 1))
			continue;
		vb_text_add(t, "%s%s", first ? "" : ", ", vb_cm_event_name(e));
		first = false;
	}
}

static void add_time(struct vb_text *t, const char *what, uint64_t due, bool utc)
{
	char when[VB_TIME_TEXT];

	if (due == VB_NEVER)
		return;
	vb_time_text(when, real_time(due), utc);
	vb_text_add(t, "%s%s", what, when);
}

static void add_answer(struct vb_text *t, const struct vb_shown_id *id, bool utc)
{
	const struct answer *a = answer_to(id->awaited);

	vb_text_add(t, "waiting for the %s: the %s was sent %u of %u times", a->answer, a->sent, id->said,
		    id->most);
	add_time(t, id->said < id->most ? ", next at " : ", timeout at ", id->due, utc);
	vb_text_add(t, "; %s", id->silence.reach ? "no answer has arrived from there" : a->missing);
}

/* What the connection or the program waits for; nothing: the id is connected, say. */
static void add_wait(struct vb_text *t, const struct vb_shown_id *id, bool utc)
{
	const char *step = id->state < VB_ID_STATES ? steps[id->state] : NULL;

	if (id->cm_state < VB_CM_STATES && conn_steps[id->cm_state])
		step = conn_steps[id->cm_state];
	if (id->flags & VB_SHOWN_ENDS) {
		vb_text_add(t, "rdma_destroy_id is running");
	} else if (id->awaited) {
		add_answer(t, id, utc);
	} else if (id->cm_state == VB_CM_TIMEWAIT) {
		add_time(t, "TIMEWAIT until ", id->due, utc);
	} else if (id->state == VB_ID_LISTENING) {
		vb_text_add(t, "waiting for requests, %u of at most %u pending", id->requests, id->backlog);
	} else if (step) {
		vb_text_add(t, "waiting for the program to call %s", step);
	}
}

/* What the program has and has not given back.  Of a synchronous id that is what id->event shows; nobody
 * waits for it but a listener for that of the request's id. */
static void add_unacked(struct vb_text *t, const struct vb_shown_id *id)
{
	if (!(id->flags & VB_SHOWN_SYNC)) {
		vb_text_add(t, "unacknowledged events: ");
		vb_ids_add_events(t, id->unacked);
		vb_text_add(t, " (rdma_destroy_id waits for rdma_ack_cm_event)");
	} else if (id->unacked & 1u << RDMA_CM_EVENT_CONNECT_REQUEST) {
		vb_text_add(
		    t,
		    "rdma_destroy_id waits until the program accepts or destroys the id of rdma_get_request");
	} else {
		vb_ids_add_events(t, id->unacked);
		vb_text_add(t, " is in id->event");
	}
}

/* All of it, as one clause after another. */
static void add_waits(struct vb_text *t, const struct vb_shown_id *id, bool utc)
{
	const char *begin = t->at;

	add_wait(t, id, utc);
	if (id->queued) {
		vb_text_add(t, "%s", t->at == begin ? "" : "; ");
		vb_text_add(t, "undelivered events: ");
		vb_ids_add_events(t, id->queued);
		vb_text_add(t, " (rdma_get_cm_event returns %s)", id->nqueued == 1 ? "it" : "them");
	}
	if (id->unacked) {
		vb_text_add(t, "%s", t->at == begin ? "" : "; ");
		add_unacked(t, id);
	}
}

void vb_ids_add_address(struct vb_text *t, const struct vb_shown_id *id, const uint8_t gid[16], uint16_t port)
{
	static const uint8_t v4[12] = {[10] = 0xff, [11] = 0xff};
	bool is_v4 = id->family == AF_INET, any = is_v4 && memcmp(gid, v4, sizeof(v4));
	char text[INET6_ADDRSTRLEN];

	inet_ntop(is_v4 ? AF_INET : AF_INET6, is_v4 ? gid + 12 : gid, text, sizeof(text));
	vb_text_add(t, is_v4 ? "%s:%u" : "[%s]:%u", any ? "0.0.0.0" : text, port);
}

static const char *state_words(const struct vb_shown_id *id)
{
	return vb_cm_id_state_name(id->state);
}

/* "RC" of "IBV_QPT_RC" */
static const char *type_words(const struct vb_shown_id *id)
{
	static const char prefix[] = "IBV_QPT_";
	const char *name = vb_name_qp_type(id->type);

	return !name ? "?" : !strncmp(name, prefix, sizeof(prefix) - 1) ? name + sizeof(prefix) - 1 : name;
}

/* ---- for people ---- */

static void print_id(const struct vb_shown_id *id, void *with)
{
	char text[TEXT] = "";
	struct vb_text t = {text, sizeof(text)};

	(void)with;
	if (id->id)
		vb_text_add(&t, "id 0x%llx", (unsigned long long)id->id);
	else
		vb_text_add(&t, "a request");
	vb_text_add(&t, "  %s %s", space_name(id->space), type_words(id));
	if (id->family) {
		vb_text_add(&t, "  ");
		vb_ids_add_address(&t, id, id->src, id->src_port);
	}
	if (id->far) {
		vb_text_add(&t, " %s ", id->flags & VB_SHOWN_PASSIVE ? "<-" : "->");
		vb_ids_add_address(&t, id, id->dst, id->dst_port);
	}
	if (id->qpn)
		vb_text_add(&t, "  QP 0x%06x", id->qpn);
	vb_text_add(&t, "  %s", state_words(id));
	if (id->failed_by)
		vb_text_add(&t, " with %s, status %d", vb_cm_event_name(id->failed_by), id->failed_status);
	if (id->cm_state)
		vb_text_add(&t, " (%s)", vb_cm_state_name(id->cm_state));
	printf("%s", text);
	t = (struct vb_text){text, sizeof(text)};
	*text = 0;
	add_waits(&t, id, false);
	printf("%s%s\n", *text ? ": " : "", text);
}

void vb_ids_print(const struct peek *p)
{
	uint32_t seen = vb_ids_each(p, NULL, NULL), more = further(p);
	uint64_t rest = resting(p);
	bool any = false;

	if (seen || more || rest)
		printf("rdma_cm: %u id%s, %llu comm ID%s in TIMEWAIT\n", seen + more,
		       seen + more == 1 ? "" : "s", (unsigned long long)rest, rest == 1 ? "" : "s");
	vb_ids_each(p, print_id, NULL);
	if (more)
		printf("and %u more ids: the table is full\n", more);
	for (int c = 0; c < VB_SHOWN_COUNTS; c++) {
		uint64_t n = counted(p, c);

		if (n && !any)
			printf("rdma_cm messages (MADs):\n");
		if (n)
			printf("%12llu  %s: %s\n", (unsigned long long)n, counts[c].name, counts[c].text);
		any = any || n;
	}
}

/* ---- for machines ---- */

static void add_string(json_object *o, const char *name, const char *text)
{
	json_object_object_add(o, name, json_object_new_string(text));
}

static void add_number(json_object *o, const char *name, uint32_t n, int digits)
{
	char text[16];

	if (!n)
		return;
	snprintf(text, sizeof(text), "0x%0*x", digits, n);
	add_string(o, name, text);
}

static json_object *events_json(uint32_t events)
{
	json_object *list = json_object_new_array();

	for (unsigned e = 0; e < VB_CM_EVENTS; e++)
		if (events >> e & 1)
			json_object_array_add(list, json_object_new_string(vb_cm_event_name(e)));
	return list;
}

static void add_endpoint(json_object *o, const char *name, const struct vb_shown_id *id,
			 const uint8_t gid[16], uint16_t port)
{
	char text[TEXT] = "";
	struct vb_text t = {text, sizeof(text)};

	vb_ids_add_address(&t, id, gid, port);
	add_string(o, name, text);
}

static void wait_json(json_object *o, const struct vb_shown_id *id)
{
	char text[TEXT] = "", name[32];
	struct vb_text t = {text, sizeof(text)};

	add_waits(&t, id, true);
	add_string(o, "waits", text);
	if (id->awaited) {
		add_string(o, "unanswered", vb_cm_kind_name(id->awaited, name));
		json_object_object_add(o, "sent", json_object_new_int(id->said));
		json_object_object_add(o, "sent_at_most", json_object_new_int(id->most));
	}
	if (id->due != VB_NEVER) {
		vb_time_text(text, real_time(id->due), true);
		add_string(o, "due", text);
	}
	json_object_object_add(o, "undelivered", events_json(id->queued));
	json_object_object_add(o, "unacknowledged", events_json(id->unacked));
}

static void id_json(const struct vb_shown_id *id, void *list)
{
	json_object *o = json_object_new_object();
	char text[24];

	if (id->id) {
		snprintf(text, sizeof(text), "0x%llx", (unsigned long long)id->id);
		add_string(o, "id", text);
	}
	add_string(o, "port_space", space_name(id->space));
	add_string(o, "qp_type", type_words(id));
	add_string(o, "state", state_words(id));
	if (id->cm_state)
		add_string(o, "connection", vb_cm_state_name(id->cm_state));
	if (id->failed_by) {
		add_string(o, "failed_by", vb_cm_event_name(id->failed_by));
		json_object_object_add(o, "failed_status", json_object_new_int(id->failed_status));
	}
	json_object_object_add(o, "passive", json_object_new_boolean(id->flags & VB_SHOWN_PASSIVE));
	json_object_object_add(o, "destroying", json_object_new_boolean(id->flags & VB_SHOWN_ENDS));
	if (id->device != VB_SHOWN_NOWHERE)
		json_object_object_add(o, "device", json_object_new_int(id->device));
	if (id->family)
		add_endpoint(o, "source", id, id->src, id->src_port);
	if (id->far)
		add_endpoint(o, "destination", id, id->dst, id->dst_port);
	add_number(o, "qp", id->qpn, 6);
	add_number(o, "remote_qp", id->far_qpn, 6);
	add_number(o, "comm_id", id->comm_id, 8);
	add_number(o, "remote_comm_id", id->far_comm_id, 8);
	if (id->state == VB_ID_LISTENING) {
		json_object_object_add(o, "requests", json_object_new_int64(id->requests));
		json_object_object_add(o, "backlog", json_object_new_int64(id->backlog));
	}
	wait_json(o, id);
	json_object_array_add(list, o);
}

void vb_ids_json(const struct peek *p, json_object *o)
{
	json_object *list = json_object_new_array(), *mads = json_object_new_object();

	vb_ids_each(p, id_json, list);
	json_object_object_add(o, "ids", list);
	json_object_object_add(o, "further_ids", json_object_new_int64(further(p)));
	json_object_object_add(o, "timewait", json_object_new_uint64(resting(p)));
	for (int c = 0; c < VB_SHOWN_COUNTS; c++)
		json_object_object_add(mads, counts[c].name, json_object_new_uint64(counted(p, c)));
	json_object_object_add(o, "mads", mads);
}
