/* Identifiers of rdma_cm: what each waits for.  ids.c shows all of them. */
#include <stdio.h>
#include <string.h>

#include "cm/id.h"
#include "counts.h"
#include "explain.h"
#include "iba/shown_id.h"
#include "waits.h"

struct far_id;
struct search {
	struct vb_waits *l;
	const struct vb_waiting *waits; /* a thread in rdma_get_cm_event(); NULL: none */
	const struct vb_shown_id *listener;
	const struct vb_side *side; /* whose ids are looked at */
	struct far_id *far;	    /* what find_far() looks for */
};

static void name_id(struct vb_text *t, const struct vb_shown_id *id)
{
	if (id->id)
		vb_text_add(t, "rdma_cm_id 0x%llx (%s)", (unsigned long long)id->id,
			    vb_cm_id_state_name(id->state));
	else
		vb_text_add(t, "a request (%s)", vb_cm_id_state_name(id->state));
	if (id->family) {
		vb_text_add(t, " ");
		vb_ids_add_address(t, id, id->src, id->src_port);
	}
	if (id->far) {
		vb_text_add(t, id->flags & VB_SHOWN_PASSIVE ? " <- " : " -> ");
		vb_ids_add_address(t, id, id->dst, id->dst_port);
	}
}

/* The id at the other end of a connection, as its process shows it. */
struct far_id {
	const struct vb_shown_id *of;
	const struct vb_side *side, *listens; /* NULL: it is not seen; who listens at that port */
	struct vb_shown_id id;
	bool sync;	  /* who listens does so by rdma_get_request() */
	uint32_t pending; /* events of requests that it has not got */
};

static void look_for_far(const struct vb_shown_id *id, void *with)
{
	struct search *s = with;
	struct far_id *f = s->far;
	const struct vb_shown_id *of = f->of;
	bool same = id->far && id->src_port == of->dst_port && id->dst_port == of->src_port &&
		    !memcmp(id->src, of->dst, sizeof(id->src)) && !memcmp(id->dst, of->src, sizeof(id->dst));

	/* an end does not know the other's number before it has heard from there */
	if (same && (id->far_comm_id || of->far_comm_id) &&
	    (!id->far_comm_id || id->far_comm_id == of->comm_id) &&
	    (!of->far_comm_id || of->far_comm_id == id->comm_id)) {
		f->side = s->side;
		f->id = *id;
	} else if (id->state == VB_ID_LISTENING && id->src_port == of->dst_port && id->space == of->space) {
		f->listens = s->side;
		f->pending = id->requests;
		f->sync = id->flags & VB_SHOWN_SYNC;
	}
}

static void find_far(struct search *s, struct far_id *f)
{
	const struct vb_world *w = &s->l->world;

	s->far = f;
	for (size_t i = 0; i < w->n && !f->side; i++) {
		s->side = &w->sides[i];
		vb_ids_each(&w->sides[i].at, look_for_far, s);
	}
}

/* What the program at the other end has not done yet; NULL: that is not known more exactly. */
static const char *missing_there(const struct far_id *f)
{
	char state;

	if (!f->side)
		return NULL;
	state = vb_process_state((unsigned)f->side->at.pid);
	if (state == 'T' || state == 't')
		return "is stopped, by a signal or a debugger";
	if (f->id.state == VB_ID_REQUESTED && f->pending && f->sync)
		return "has not called rdma_get_request()";
	if (f->id.queued || (f->id.state == VB_ID_REQUESTED && f->pending))
		return "has not got its event with rdma_get_cm_event()";
	if (f->id.state == VB_ID_REQUESTED)
		return "has got the event, and has not called rdma_accept() or rdma_reject()";
	if (f->id.cm_state == VB_CM_DREQ_RCVD)
		return "has not called rdma_disconnect()";
	return NULL;
}

static void advise_answer(struct vb_waits *l, const struct far_id *f)
{
	const struct vb_side *to = f->side ? f->side : f->listens;
	char state;

	if (!to)
		return;
	state = vb_process_state((unsigned)to->at.pid);
	if (state == 'T' || state == 't')
		vb_wait_advise(l, VB_WAIT_ANY,
			       "let PID %d (%s) run again: kill -CONT %d, or continue it in its debugger",
			       (int)to->at.pid, to->at.program, (int)to->at.pid);
	else if (f->sync && f->pending)
		vb_wait_advise(
		    l, VB_WAIT_ANY,
		    "in PID %d (%s): call rdma_get_request(), and rdma_accept() or rdma_reject() for "
		    "what it returns",
		    (int)to->at.pid, to->at.program);
	else
		vb_wait_peer(l, to);
}

/* The far end is on another host: all that is known is what this end has seen. */
static void find_answer_of_host(struct search *s, const struct vb_shown_id *id, const struct vb_cm_answer *a,
				const struct vb_text *what)
{
	char why[700] = "", at[80] = "";
	struct vb_text t = {why, sizeof(why)}, t2 = {at, sizeof(at)};

	bool known = vb_reach_add(&t, &id->silence);

	vb_ids_add_address(&t2, id, id->dst, id->dst_port);
	if (!known && id->flags & VB_SHOWN_TAKEN)
		vb_text_add(&t, "%s has received it (MRA), and %s", at, a->missing);
	else if (!known)
		vb_text_add(
		    &t,
		    "the cause is not known yet. %s is on another host: %s, or no message arrives. If "
		    "the next attempts get no answer either, the reason is shown here",
		    at, a->missing);
	vb_wait_add(s->l, known ? vb_wait_of_reach(&id->silence) : VB_W_CM_ANSWER, 0, what,
		    "its %s was sent %u of at most %u times, and no %s has come: %s", a->sent, id->said,
		    id->most, a->answer, why);
}

static void find_answer(struct search *s, const struct vb_shown_id *id, const struct vb_text *what)
{
	const struct vb_cm_answer *a = vb_cm_answer_to(id->awaited);
	struct far_id f = {.of = id};
	const char *missing;
	char who[200];

	if (!a)
		return;
	if (id->flags & VB_SHOWN_FAR) {
		find_answer_of_host(s, id, a, what);
		return;
	}
	find_far(s, &f);
	missing = missing_there(&f);
	if (missing)
		snprintf(who, sizeof(who), "PID %d (%s) %s", (int)f.side->at.pid, f.side->at.program,
			 missing);
	vb_wait_add(s->l, VB_W_CM_ANSWER, 0, what,
		    "its %s was sent %u of at most %u times, and no %s has come: %s", a->sent, id->said,
		    id->most, a->answer, missing ? who : a->missing);
	advise_answer(s->l, &f);
}

/* The call that the program owes; NULL: none. */
static const char *step(const struct vb_shown_id *id)
{
	if (id->cm_state == VB_CM_DREQ_RCVD)
		return "the peer has disconnected, and waits for rdma_disconnect()";
	switch (id->state) {
	case VB_ID_REQUESTED:
		return "a client waits for rdma_accept() or rdma_reject()";
	case VB_ID_ANSWERED:
		return "the server has accepted: the program has to call rdma_get_cm_event(), and "
		       "rdma_establish() if the "
		       "id has no queue pair";
	case VB_ID_ADDR_RESOLVED:
		return "its address is resolved: the program has to call rdma_resolve_route()";
	case VB_ID_ROUTE_RESOLVED:
		return "its route is resolved: the program has to call rdma_connect()";
	default:
		return NULL;
	}
}

static void look_for_other_space(const struct vb_shown_id *id, void *with)
{
	const struct search *s = with;
	const struct vb_shown_id *to = s->listener;
	char text[320] = "", name[80];
	struct vb_text t = {text, sizeof(text)}, what = {text, sizeof(text)};

	if (!id->far || id->dst_port != to->src_port || id->space == to->space ||
	    (id->state != VB_ID_FAILED && id->state != VB_ID_CONNECTING))
		return;
	name_id(&t, to);
	vb_text_add(&t, " waits for requests");
	vb_wait_add(s->l, VB_W_CM_SPACE, 0, &what,
		    "an id of %s asks for port %u in port space %s, and this listener is in port space %s",
		    s->side == s->l->world.self ? "this process" : vb_side_name(s->side, name, sizeof(name)),
		    to->src_port, id->space == RDMA_PS_UDP ? "RDMA_PS_UDP" : "RDMA_PS_TCP",
		    to->space == RDMA_PS_UDP ? "RDMA_PS_UDP" : "RDMA_PS_TCP");
}

static void look_for_passive(const struct vb_shown_id *id, void *any)
{
	if (id->flags & VB_SHOWN_PASSIVE)
		*(bool *)any = true;
}

/* Nothing has come, but for packets with a wrong checksum, which a request of another host may have been. */
static bool find_wrong(struct search *s, const struct vb_text *what)
{
	const struct peek *p = &s->l->world.self->at;
	unsigned long long wrong = 0;
	struct vb_counts c;
	bool any = false;

	vb_ids_each(p, look_for_passive, &any);
	for (unsigned d = 0; d < p->n && !any; d++)
		if (vb_counts_device(p, d, &c))
			wrong += c.traffic.count[VB_TRAFFIC_WRONG_ICRC];
	if (wrong)
		vb_wait_add(s->l, VB_W_WRONG_ICRC, 0, what,
			    "no request has come, but %llu packet%s with a wrong checksum (ICRC), discarded. "
			    "Something on the way translates addresses (NAT) or damages packets",
			    wrong, wrong == 1 ? "" : "s");
	return wrong;
}

static void find_listener(struct search *s, const struct vb_shown_id *id, const struct vb_text *what)
{
	const struct vb_world *w = &s->l->world;
	size_t before = s->l->n;

	s->listener = id;
	for (size_t i = 0; i < w->n; i++) {
		s->side = &w->sides[i];
		vb_ids_each(&w->sides[i].at, look_for_other_space, s);
	}
	if (s->l->n == before && !id->queued && !find_wrong(s, what))
		vb_wait_add(
		    s->l, VB_W_CM_LISTENS, s->waits ? s->waits->since : 0, what,
		    "no request has come: %u of at most %u pending. This is normal for an idle server",
		    id->requests, id->backlog);
}

static void look(const struct vb_shown_id *id, void *with)
{
	struct search *s = with;
	char text[320] = "", events[200] = "";
	struct vb_text t = {text, sizeof(text)}, what = {text, sizeof(text)}, e = {events, sizeof(events)};

	name_id(&t, id);
	if (id->flags & VB_SHOWN_ENDS) {
		vb_text_add(&t, ": rdma_destroy_id() waits");
		vb_ids_add_events(&e, id->unacked);
		vb_wait_add(s->l, VB_W_CM_ACKS, 0, &what, "these events of the id are not acknowledged: %s",
			    events);
	} else if (id->queued) {
		vb_ids_add_events(&e, id->queued);
		vb_wait_add(
		    s->l, VB_W_CM_UNREAD, 0, &what,
		    "%u event%s of the id %s in its event channel, and the program has not got %s: %s",
		    id->nqueued, id->nqueued == 1 ? "" : "s", id->nqueued == 1 ? "lies" : "lie",
		    id->nqueued == 1 ? "it" : "them", events);
		if (id->flags & VB_SHOWN_SYNC && id->state == VB_ID_LISTENING)
			vb_wait_advise(s->l, VB_WAIT_HERE, "call rdma_get_request() for each request");
	} else if (id->awaited) {
		find_answer(s, id, &what);
	} else if (step(id)) {
		vb_wait_add(s->l, VB_W_CM_STEP, 0, &what, "%s", step(id));
	} else if (id->state == VB_ID_LISTENING) {
		find_listener(s, id, &what);
	} else if (id->state == VB_ID_CONNECTED && id->type != IBV_QPT_UD && !id->qpn) {
		vb_wait_add(s->l, VB_W_CM_NO_QP, 0, &what,
			    "it is connected, and has no queue pair: what the peer sends arrives nowhere");
	} else if (id->state == VB_ID_CONNECTED && id->type != IBV_QPT_UD && s->waits) {
		vb_wait_add(s->l, VB_W_CM_IDLE, s->waits->since, &what,
			    "it is connected, and no event comes as long as neither end calls "
			    "rdma_disconnect(). This is "
			    "normal for an idle connection");
	}
}

void vb_wait_ids(struct vb_waits *l)
{
	const struct vb_inside *in = &l->world.self->in;
	struct search s = {.l = l};

	for (size_t i = 0; i < in->nwaitings; i++)
		if (in->waitings[i].what == VB_WAITING_CM_EVENT)
			s.waits = &in->waitings[i];
	vb_ids_each(&l->world.self->at, look, &s);
}
