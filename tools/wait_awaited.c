/* What other processes wait for from this one: the end that has to be changed says who waits. */
#include <stdio.h>

#include "iba/qp_state.h"
#include "iba/shown.h"
#include "waits.h"

enum { WHY = 700, MOST_NAKS = 255 };

/* Queue pairs of other processes whose requests to this one do not get on. */
struct waiters {
	const struct vb_side *side; /* of the first one */
	const struct vb_qp *first;
	unsigned n, naks;
	uint64_t since; /* the oldest; 0: not known */
};

static void count(struct waiters *w, const struct vb_side *s, const struct vb_qp *qp)
{
	uint64_t since = vb_wait_since(qp);

	if (!w->n++) {
		w->side = s;
		w->first = qp;
	}
	if (qp->req.rnr_row > w->naks)
		w->naks = qp->req.rnr_row;
	if (since && (!w->since || since < w->since))
		w->since = since;
}

/* Its requests go to this process and stand still. */
static bool waits_here(const struct vb_waits *l, const struct vb_side *s, const struct vb_inside_qp *q)
{
	const struct vb_qp *qp = &q->qp;

	return qp->acked && !qp->of && !qp->far && atomic_load(&qp->post.head) != qp->req.una &&
	       !vb_wait_moves(s, q) && vb_world_far(&l->world, s, qp).side == l->world.self;
}

/* Calls f() with each of them. */
static void each_waiter(struct vb_waits *l,
			void (*f)(struct vb_waits *l, const struct vb_side *s, const struct vb_qp *qp,
				  void *with),
			void *with)
{
	for (size_t i = 0; i < l->world.n; i++) {
		const struct vb_side *s = &l->world.sides[i];

		if (s == l->world.self || !s->read || s->in.state != VB_INSIDE_READ)
			continue;
		for (size_t k = 0; k < s->in.nqps; k++)
			if (waits_here(l, s, s->in.qps[k]))
				f(l, s, &s->in.qps[k]->qp, with);
	}
}

static void add_waiters(struct vb_text *t, const struct waiters *w)
{
	vb_text_add(t, ". QP 0x%06x of PID %d (%s) has ", w->first->qpn, (int)w->side->at.pid,
		    w->side->at.program);
	vb_wait_add_request(t, w->side, w->first);
	if (w->n > 1)
		vb_text_add(t, ", and %u more queue pair%s wait%s too", w->n - 1, w->n == 2 ? "" : "s",
			    w->n == 2 ? "s" : "");
}

static void add_naks(struct vb_text *t, const struct waiters *w)
{
	vb_text_add(t, ": each SEND is answered with an RNR NAK (%u%s so far)", w->naks,
		    w->naks == MOST_NAKS ? " or more" : "");
}

/* ---- a queue pair of this process ---- */

struct own {
	const struct vb_inside_qp *q;
	struct waiters waiters;
};

static void count_for_qp(struct vb_waits *l, const struct vb_side *s, const struct vb_qp *qp, void *with)
{
	struct own *o = with;

	(void)l;
	if (qp->dest_qpn == o->q->qp.qpn)
		count(&o->waiters, s, qp);
}

/* It can receive, and is connected to who waits. */
static void lacks_receive(struct vb_waits *l, const struct own *o, const struct vb_text *what)
{
	const struct vb_qp *qp = &o->q->qp;
	uint32_t all = atomic_load(&qp->resp.rq.head);
	char why[WHY] = "";
	struct vb_text t = {why, sizeof(why)};

	if (qp->no_rq || all != qp->resp.rq.tail || !o->waiters.naks)
		return;
	vb_text_add(&t, "no receive is posted on it");
	add_naks(&t, &o->waiters);
	add_waiters(&t, &o->waiters);
	if (all)
		vb_text_add(&t, ". All %u receives that were posted here are used up", all);
	else
		vb_text_add(&t, ". No receive was ever posted here");
	vb_wait_add(l, VB_W_AWAITED, o->waiters.since, what, "%s", why);
}

static void wrong_end(struct vb_waits *l, const struct own *o, const struct vb_text *what)
{
	const struct vb_qp *qp = &o->q->qp;
	char why[WHY] = "";
	struct vb_text t = {why, sizeof(why)};

	if (qp->state < IBV_QPS_RTR)
		vb_text_add(&t, "it is in state %s, which receives nothing", vb_qp_state_name(qp->state));
	else
		vb_text_add(&t, "it is connected to QP 0x%06x, and receives from no other", qp->dest_qpn);
	add_waiters(&t, &o->waiters);
	vb_wait_add(l, VB_W_AWAITED, o->waiters.since, what, "%s", why);
	vb_wait_advise(
	    l, VB_WAIT_HERE,
	    "move QP 0x%06x to RTR and RTS with ibv_modify_qp(), with dest_qp_num 0x%06x, if PID %d "
	    "(%s) is its peer",
	    qp->qpn, o->waiters.first->qpn, (int)o->waiters.side->at.pid, o->waiters.side->at.program);
}

static void look_at_qp(struct vb_waits *l, const struct vb_inside_qp *q)
{
	struct own o = {.q = q};
	char text[320] = "";
	struct vb_text t = {text, sizeof(text)}, what = {text, sizeof(text)};

	if (q->qp.of || q->qp.far || q->qp.state == IBV_QPS_ERR)
		return;
	each_waiter(l, count_for_qp, &o);
	if (!o.waiters.n)
		return;
	vb_name_qp(&t, l, q);
	vb_text_add(&t, ": PID %d (%s) waits for it", (int)o.waiters.side->at.pid,
		    o.waiters.side->at.program);
	if (q->qp.state < IBV_QPS_RTR || q->qp.dest_qpn != o.waiters.first->qpn)
		wrong_end(l, &o, &what);
	else
		lacks_receive(l, &o, &what);
}

/* ---- an SRQ of this process ---- */

struct own_srq {
	const struct vb_inside_srq *srq;
	struct waiters waiters;
};

static void count_for_srq(struct vb_waits *l, const struct vb_side *s, const struct vb_qp *qp, void *with)
{
	const struct vb_inside_qp *q = vb_inside_find_qp(&l->world.self->in, qp->dest_qpn);
	struct own_srq *o = with;

	if (q && (uint64_t)(uintptr_t)q->qp.srq == o->srq->at && qp->req.rnr_row)
		count(&o->waiters, s, qp);
}

static void look_at_srq(struct vb_waits *l, const struct vb_inside_srq *srq)
{
	struct own_srq o = {.srq = srq};
	uint32_t all = atomic_load(&srq->srq.rq.head);
	char text[320] = "", why[WHY] = "";
	struct vb_text t = {why, sizeof(why)}, w = {text, sizeof(text)}, what = {text, sizeof(text)};

	if (all != srq->srq.rq.tail)
		return;
	each_waiter(l, count_for_srq, &o);
	if (!o.waiters.n)
		return;
	vb_text_add(&w, "SRQ 0x%06x: PID %d (%s) waits for it", srq->srq.number, (int)o.waiters.side->at.pid,
		    o.waiters.side->at.program);
	vb_text_add(&t, "no receive is posted in it");
	add_naks(&t, &o.waiters);
	add_waiters(&t, &o.waiters);
	if (all)
		vb_text_add(&t, ". All that were posted here are used up");
	else
		vb_text_add(&t, ". No receive was ever posted here");
	vb_wait_add(l, VB_W_AWAITED, o.waiters.since, &what, "%s", why);
	vb_wait_advise(
	    l, VB_WAIT_HERE,
	    "post receives to SRQ 0x%06x with ibv_post_srq_recv(), and post each one again after its "
	    "completion",
	    srq->srq.number);
}

/* ---- a queue pair that is not there ---- */

static void look_for_none(struct vb_waits *l, const struct vb_side *s, const struct vb_qp *qp, void *with)
{
	const struct vb_shown_qp *shown = vb_world_shown(&l->world, qp->dest_qpn);
	struct waiters w = {0};
	char text[320] = "", why[WHY] = "";
	struct vb_text t = {why, sizeof(why)}, n = {text, sizeof(text)}, what = {text, sizeof(text)};
	bool was = shown && atomic_load(&shown->type);

	(void)with;
	if (!shown || atomic_load(&shown->state))
		return;
	count(&w, s, qp);
	vb_text_add(&n, "QP 0x%06x, which does not exist: PID %d (%s) waits for it", qp->dest_qpn,
		    (int)s->at.pid, s->at.program);
	vb_text_add(&t, was ? "this process has destroyed it" : "this process has never had this number");
	add_waiters(&t, &w);
	vb_wait_add(l, VB_W_AWAITED, w.since, &what, "%s", why);
	if (was)
		vb_wait_advise(l, VB_WAIT_HERE,
			       "keep the queue pair until PID %d (%s) has its completions, or close the "
			       "connection there first",
			       (int)s->at.pid, s->at.program);
	else
		vb_wait_advise(
		    l, VB_WAIT_ANY,
		    "in PID %d (%s): set dest_qp_num to a qp_num that PID %d (%s) has; check how the "
		    "number is exchanged (byte order, 24 bits)",
		    (int)s->at.pid, s->at.program, (int)l->world.self->at.pid, l->world.self->at.program);
}

void vb_wait_awaited(struct vb_waits *l)
{
	const struct vb_inside *in = &l->world.self->in;

	for (size_t i = 0; i < in->nqps; i++)
		look_at_qp(l, in->qps[i]);
	for (size_t i = 0; i < in->nsrqs; i++)
		look_at_srq(l, in->srqs[i]);
	each_waiter(l, look_for_none, NULL);
}
