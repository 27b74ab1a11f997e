/* What waits: the list of findings, for people and as JSON, and the objects that are looked at. */
#include "waits.h"

#include <json-c/json.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "base/clock.h"
#include "explain.h"
#include "iba/grh.h"
#include "iba/names.h"
#include "iba/qp_state.h"
#include "iba/shown.h"

void vb_wait_add(struct vb_waits *l, enum vb_wait_cause cause, uint64_t since, const struct vb_text *what,
		 const char *fmt, ...)
{
	struct vb_wait *more, *w;
	va_list ap;

	more = realloc(l->all, (l->n + 1) * sizeof(*more));
	if (!more)
		return;
	l->all = more;
	w = &more[l->n++];
	*w = (struct vb_wait){.cause = cause, .since = since};
	snprintf(w->what, sizeof(w->what), "%.*s", (int)sizeof(w->what) - 1, what->at);
	va_start(ap, fmt);
	vsnprintf(w->why, sizeof(w->why), fmt, ap);
	va_end(ap);
}

void vb_wait_peer(struct vb_waits *l, const struct vb_side *peer)
{
	if (l->n)
		l->all[l->n - 1].peer = peer;
}

void vb_wait_advise(struct vb_waits *l, enum vb_wait_place place, const char *fmt, ...)
{
	struct vb_wait *w = l->n ? &l->all[l->n - 1] : NULL;
	va_list ap;

	if (!w)
		return;
	w->place = place;
	va_start(ap, fmt);
	vsnprintf(w->advice, sizeof(w->advice), fmt, ap);
	va_end(ap);
}

void vb_wait_also(struct vb_waits *l, const char *text)
{
	if (l->n)
		snprintf(l->all[l->n - 1].also, sizeof(l->all[0].also), "%s", text);
}

/* What is normal for an idle program comes last, and before it what has a cause elsewhere. */
static int rank(const struct vb_wait *w)
{
	return vb_wait_rows[w->cause].place == VB_WAIT_NORMAL ? 2 : w->cause == VB_W_OWN_ERROR;
}

static void sort(struct vb_waits *l)
{
	for (size_t i = 1; i < l->n; i++)
		for (size_t k = i; k && rank(&l->all[k]) < rank(&l->all[k - 1]); k--) {
			struct vb_wait w = l->all[k];

			l->all[k] = l->all[k - 1];
			l->all[k - 1] = w;
		}
}

size_t vb_waits_count(const struct vb_waits *l, bool all)
{
	size_t n = 0;

	for (size_t i = 0; i < l->n; i++)
		n += all || rank(&l->all[i]) < 2;
	return n;
}

/* ---- names ---- */

static const char *type_name(const struct vb_qp *qp)
{
	const char *name = vb_name_qp_type(qp->ibv.qp_type);

	return name ? name + strlen("IBV_QPT_") : "?";
}

void vb_name_qp(struct vb_text *t, const struct vb_waits *l, const struct vb_inside_qp *q)
{
	struct vb_far_end f = vb_world_far(&l->world, l->world.self, &q->qp);

	vb_text_add(t, "QP 0x%06x (%s, %s)", q->qp.qpn, type_name(&q->qp), vb_qp_state_name(q->qp.state));
	if (f.how == VB_FAR_UNSET)
		return;
	vb_text_add(t, " -> QP 0x%06x", q->qp.dest_qpn);
	if (f.how == VB_FAR_HOST) {
		vb_text_add(t, " at ");
		vb_gid_add(t, vb_inside_host(&q->qp));
	} else if (f.side && f.side == l->world.self)
		vb_text_add(t, " of this process");
	else if (f.side)
		vb_text_add(t, " of PID %d (%s)", (int)f.side->at.pid, f.side->at.program);
	if (f.side && f.shown && !atomic_load(&f.shown->state))
		vb_text_add(t, ", which does not exist");
}

void vb_name_cq(struct vb_text *t, const struct vb_waits *l, const struct vb_inside_cq *c)
{
	const struct vb_inside_channel *ch = vb_inside_find_channel(&l->world.self->in, c->cq.channel);

	vb_text_add(t, "CQ 0x%llx", (unsigned long long)c->at);
	if (ch)
		vb_text_add(t, " (completion channel with fd %d)", ch->channel.ibv.fd);
	else
		vb_text_add(t, " (no completion channel)");
}

/* ---- the search ---- */

static void look(struct vb_waits *l)
{
	const struct vb_inside *in = &l->world.self->in;

	for (size_t i = 0; i < in->nwaitings; i++)
		vb_wait_call(l, &in->waitings[i]);
	for (size_t i = 0; i < in->nqps; i++)
		vb_wait_requests(l, in->qps[i]);
	vb_wait_awaited(l);
	for (size_t i = 0; i < in->nqps; i++)
		vb_wait_host(l, in->qps[i]);
	for (size_t i = 0; i < in->nqps; i++)
		vb_wait_datagrams(l, in->qps[i]);
	for (size_t i = 0; i < in->ncqs; i++)
		vb_wait_cq(l, in->cqs[i]);
	for (size_t i = 0; i < in->nchannels; i++)
		vb_wait_channel(l, in->channels[i]);
	for (size_t i = 0; i < in->nqps; i++)
		vb_wait_receives(l, in->qps[i]);
	for (size_t i = 0; i < in->nsrqs; i++)
		vb_wait_srq(l, in->srqs[i]);
	vb_wait_ids(l);
	sort(l);
}

void vb_waits_open(struct vb_waits *l, const struct peek *p)
{
	*l = (struct vb_waits){0};
	if (vb_world_open(&l->world, p) && l->world.self->in.state == VB_INSIDE_READ)
		look(l);
}

void vb_waits_close(struct vb_waits *l)
{
	free(l->all);
	vb_world_close(&l->world);
	*l = (struct vb_waits){0};
}

/* ---- for people ---- */

static uint64_t real_time(uint64_t at)
{
	struct timespec t;
	uint64_t now = vb_now();

	clock_gettime(CLOCK_REALTIME, &t);
	return (uint64_t)t.tv_sec * VB_SEC + (uint64_t)t.tv_nsec - (now - at);
}

/* "" : its memory was read. */
static const char *unread_why(const struct vb_waits *l, char *buf, size_t size)
{
	const struct vb_side *s = l->world.self;

	if (!s)
		return "it ended while it was looked at";
	switch (s->in.state) {
	case VB_INSIDE_READ:
		return "";
	case VB_INSIDE_GONE:
		return "it ended while it was looked at";
	case VB_INSIDE_BUILD:
		return "it runs another build of Verbena. Use the command \"verbena\" of that build";
	default:
		snprintf(
		    buf, size,
		    "the kernel does not permit it (%s): see kernel.yama.ptrace_scope and the container's "
		    "rights. Run the command as root",
		    strerror(s->in.err));
		return buf;
	}
}

/* A process that is stopped, or that a debugger holds.  false: neither. */
static bool add_stop(struct vb_text *t, const struct vb_side *s)
{
	char who[80] = "", path[64];
	FILE *f;

	if (s->debugger) {
		snprintf(path, sizeof(path), "/proc/%d/comm", (int)s->debugger);
		f = fopen(path, "re");
		if (!f || fscanf(f, "%63[^\n]", who) != 1)
			snprintf(who, sizeof(who), "?");
		if (f)
			fclose(f);
		vb_peek_clean(who);
	}
	if (s->debugger && s->state == 't')
		vb_text_add(t, "a debugger, PID %d (%s), has stopped the process: continue it there",
			    (int)s->debugger, who);
	else if (vb_side_is_stopped(s))
		vb_text_add(t, "the process is stopped by a signal (SIGSTOP or Ctrl-Z): kill -CONT %d",
			    (int)s->at.pid);
	else if (s->debugger)
		vb_text_add(t, "a debugger, PID %d (%s), is attached to the process, which runs",
			    (int)s->debugger, who);
	return s->debugger || vb_side_is_stopped(s);
}

static void add_place(struct vb_text *t, const struct vb_side *s)
{
	char name[80];

	vb_text_add(t, "in %s: ", vb_side_name(s, name, sizeof(name)));
}

/* What to do, with the process in which it is to be done. */
static const char *remedy(const struct vb_waits *l, const struct vb_wait *w, char *buf, size_t size)
{
	const struct vb_wait_row *row = &vb_wait_rows[w->cause];
	enum vb_wait_place place = *w->advice ? w->place : row->place;
	struct vb_text t = {buf, size};

	*buf = 0;
	if (place == VB_WAIT_NORMAL)
		vb_text_add(&t, "nothing, if the program is idle. Else ");
	else if (place == VB_WAIT_HERE)
		add_place(&t, l->world.self);
	else if (place == VB_WAIT_PEER && w->peer)
		add_place(&t, w->peer);
	else if (place == VB_WAIT_PEER)
		vb_text_add(&t, "at the peer: ");
	vb_text_add(&t, "%s", *w->advice ? w->advice : row->remedy);
	if (!*w->also)
		return buf;
	vb_text_add(&t, ". Also, ");
	add_place(&t, l->world.self);
	vb_text_add(&t, "%s", w->also);
	return buf;
}

static void print_one(const struct vb_waits *l, const struct vb_wait *w)
{
	char when[VB_TIME_TEXT], what[900];

	printf("%s", w->what);
	if (w->since) {
		vb_time_text(when, real_time(w->since), false);
		printf(", since %s (%.1f s)", when, (double)(vb_now() - w->since) / 1e9);
	}
	printf("\n    why:   [%s] %s\n    to do: %s\n", vb_wait_rows[w->cause].name, w->why,
	       remedy(l, w, what, sizeof(what)));
}

/* Objects about which nothing was found have a line each. */
static void print_objects(const struct vb_waits *l)
{
	const struct vb_inside *in = &l->world.self->in;
	char text[512];

	for (size_t i = 0; i < in->nqps; i++) {
		const struct vb_qp *q = &in->qps[i]->qp;
		struct vb_text t = {text, sizeof(text)};

		vb_name_qp(&t, l, in->qps[i]);
		printf("  %s: %u of %u send requests outstanding", text,
		       atomic_load(&q->post.head) - q->req.una, q->req.max_wr);
		if (atomic_load(&q->post.free) != q->req.una)
			printf(", %u more slots not freed by a polled completion",
			       q->req.una - atomic_load(&q->post.free));
		if (!q->no_rq)
			printf(", %u of %u receives posted", atomic_load(&q->resp.rq.head) - q->resp.rq.tail,
			       q->resp.rq.max_wr);
		else if (vb_inside_find_srq(in, q->srq))
			printf(", receives from SRQ 0x%06x", vb_inside_find_srq(in, q->srq)->srq.number);
		printf("\n");
	}
	for (size_t i = 0; i < in->ncqs; i++) {
		static const char *const arms[] = {"not armed", "armed for solicited completions", "armed"};
		const struct vb_cq *c = &in->cqs[i]->cq;
		unsigned armed = atomic_load(&c->armed);
		struct vb_text t = {text, sizeof(text)};

		vb_name_cq(&t, l, in->cqs[i]);
		printf("  %s: %u of %u completions, %s, %u undelivered event%s, %u unacknowledged\n", text,
		       atomic_load(&c->head) - atomic_load(&c->tail), c->cqe, armed < 3 ? arms[armed] : "?",
		       c->undelivered, c->undelivered == 1 ? "" : "s",
		       c->delivered - c->ibv.comp_events_completed);
	}
	for (size_t i = 0; i < in->nsrqs; i++) {
		const struct vb_srq *s = &in->srqs[i]->srq;

		printf("  SRQ 0x%06x: %u of %u receives posted, limit %u\n", s->number,
		       atomic_load(&s->rq.head) - s->rq.tail, s->rq.max_wr, s->limit);
	}
}

void vb_waits_print(const struct vb_waits *l)
{
	char buf[300], stop[300] = "";
	const char *why = unread_why(l, buf, sizeof(buf));
	struct vb_text t = {stop, sizeof(stop)};

	if (*why) {
		printf("its queues cannot be read: %s\n", why);
		return;
	}
	if (add_stop(&t, l->world.self))
		printf("%s\n", stop);
	if (l->n)
		printf("what waits:\n");
	for (size_t i = 0; i < l->n; i++)
		print_one(l, &l->all[i]);
	if (l->world.self->in.nqps + l->world.self->in.ncqs + l->world.self->in.nsrqs)
		printf("queues of PID %d (%s), not of its peers:\n", (int)l->world.self->at.pid,
		       l->world.self->at.program);
	print_objects(l);
	if (l->n)
		printf("docs/waits.md explains the words in brackets\n");
}

/* ---- for machines ---- */

static json_object *wait_json(const struct vb_waits *l, const struct vb_wait *w)
{
	json_object *o = json_object_new_object();
	char when[VB_TIME_TEXT], what[900];

	json_object_object_add(o, "cause", json_object_new_string(vb_wait_rows[w->cause].name));
	json_object_object_add(o, "what", json_object_new_string(w->what));
	if (w->since) {
		vb_time_text(when, real_time(w->since), true);
		json_object_object_add(o, "since", json_object_new_string(when));
	}
	json_object_object_add(o, "why", json_object_new_string(w->why));
	json_object_object_add(o, "remedy", json_object_new_string(remedy(l, w, what, sizeof(what))));
	return o;
}

void vb_waits_json(const struct vb_waits *l, json_object *o)
{
	json_object *list = json_object_new_array();
	char buf[300], stop[300] = "";
	const char *why = unread_why(l, buf, sizeof(buf));
	struct vb_text t = {stop, sizeof(stop)};

	for (size_t i = 0; i < l->n; i++)
		json_object_array_add(list, wait_json(l, &l->all[i]));
	json_object_object_add(o, "waits", list);
	if (!*why && add_stop(&t, l->world.self))
		json_object_object_add(o, "process_state", json_object_new_string(stop));
	if (*why)
		json_object_object_add(o, "queues_unread", json_object_new_string(why));
}
