/* Completions that nobody takes, and threads that sleep on a channel. */
#include <stdio.h>

#include "base/clock.h"
#include "host/segment.h"
#include "waits.h"

static uint32_t entries(const struct vb_cq *cq)
{
	return atomic_load(&cq->head) - atomic_load(&cq->tail);
}

/* A thread that sleeps in ibv_get_cq_event() on that channel, or on any (NULL); NULL: none does. */
static const struct vb_waiting *sleeper(const struct vb_waits *l, const void *channel)
{
	const struct vb_inside *in = &l->world.self->in;

	for (size_t i = 0; i < in->nwaitings; i++)
		if (in->waitings[i].what == VB_WAITING_CQ_EVENT &&
		    (!channel || in->waitings[i].object == (uint64_t)(uintptr_t)channel))
			return &in->waitings[i];
	return NULL;
}

static void add_sleeper(struct vb_text *t, const struct vb_waiting *w)
{
	if (w)
		vb_text_add(t, ", and thread %u sleeps in ibv_get_cq_event()", atomic_load(&w->tid));
}

/* Since when the oldest completion lies there, at the latest; 0: not known. */
static uint64_t lies_since(const struct vb_cq *cq)
{
	return cq->lies_at == atomic_load(&cq->tail) ? cq->lies_since : 0;
}

static void add_entries(struct vb_text *t, const struct vb_cq *cq)
{
	uint32_t n = entries(cq);
	uint64_t since = lies_since(cq), now = vb_now();

	vb_text_add(t, ": %u completion%s in it", n, n == 1 ? " lies" : "s lie");
	if (since && now > since)
		vb_text_add(t, n == 1 ? ", for at least %.1f s" : ", the oldest for at least %.1f s",
			    (double)(now - since) / 1e9);
}

/* Which queue pairs complete there, a few of them. */
static void add_users(struct vb_text *t, const struct vb_waits *l, const struct vb_inside_cq *c)
{
	const struct vb_inside *in = &l->world.self->in;
	unsigned n = 0;

	for (size_t i = 0; i < in->nqps && n < 3; i++) {
		const struct vb_qp *q = &in->qps[i]->qp;
		bool sends = (uint64_t)(uintptr_t)q->scq == c->at,
		     receives = (uint64_t)(uintptr_t)q->rcq == c->at;

		if (!sends && !receives)
			continue;
		vb_text_add(t, "%s QP 0x%06x (%s)", n ? "," : ". It is the CQ of", q->qpn,
			    sends && receives ? "send_cq and recv_cq"
			    : sends	      ? "send_cq"
					      : "recv_cq");
		n++;
	}
}

/* Which CQ is polled is not counted: it is one of the others. */
static void add_others(struct vb_text *t, const struct vb_waits *l, const struct vb_inside_cq *c)
{
	const struct vb_inside *in = &l->world.self->in;

	if (in->ncqs != 2)
		return;
	vb_text_add(t, ". The other CQ of the program is 0x%llx",
		    (unsigned long long)in->cqs[in->cqs[0]->at == c->at]->at);
}

/* The CQ has completions and is not armed for the next one. */
static void unarmed(struct vb_waits *l, const struct vb_inside_cq *c, const struct vb_waiting *w,
		    const struct vb_text *what)
{
	const struct vb_cq *cq = &c->cq;
	uint64_t since = w ? w->since : lies_since(cq);
	uint32_t unacked = cq->delivered - cq->ibv.comp_events_completed;

	if (!cq->arms)
		vb_wait_add(
		    l, VB_W_NEVER_ARMED, since, what,
		    "the CQ was never armed: ibv_req_notify_cq() was not called, so no completion makes an "
		    "event");
	else if (w && cq->taker && w->self != cq->taker)
		vb_wait_add(
		    l, VB_W_EVENT_TAKEN, w->since, what,
		    "another thread has got the event of these completions (%u unacknowledged), and has not "
		    "polled the CQ",
		    unacked);
	else
		vb_wait_add(l, VB_W_NOT_REARMED, since, what,
			    "the CQ is not armed: it was armed %u time%s, each arming is for one event, and "
			    "%u event%s %s delivered",
			    cq->arms, cq->arms == 1 ? "" : "s", cq->delivered, cq->delivered == 1 ? "" : "s",
			    cq->delivered == 1 ? "was" : "were");
}

/* Who sends what completes there; NULL: that is not seen, or there are several. */
static const struct vb_side *sender_of(const struct vb_waits *l, const struct vb_inside_cq *c)
{
	const struct vb_inside *in = &l->world.self->in;
	const struct vb_side *found = NULL;

	for (size_t i = 0; i < in->nqps; i++) {
		const struct vb_qp *q = &in->qps[i]->qp;
		struct vb_far_end f = vb_world_far(&l->world, l->world.self, q);

		if ((uint64_t)(uintptr_t)q->rcq != c->at || !f.side)
			continue;
		if (found && found != f.side)
			return NULL;
		found = f.side;
	}
	return found;
}

static void solicited_only(struct vb_waits *l, const struct vb_inside_cq *c, uint64_t since,
			   const struct vb_text *what)
{
	const struct vb_side *sender = sender_of(l, c);
	char here[80], there[80];

	vb_wait_add(l, VB_W_SOLICITED, since, what,
		    "the CQ is armed for solicited completions only (ibv_req_notify_cq(cq, 1)), and what has "
		    "come was sent without IBV_SEND_SOLICITED");
	vb_wait_advise(l, VB_WAIT_ANY,
		       "in %s: call ibv_req_notify_cq(cq, 0); or set IBV_SEND_SOLICITED on the SENDs of %s",
		       vb_side_name(l->world.self, here, sizeof(here)),
		       sender ? vb_side_name(sender, there, sizeof(there)) : "the peers");
}

/* It has a channel, and completions. */
static void find_event(struct vb_waits *l, const struct vb_inside_cq *c, const struct vb_inside_channel *ch,
		       const struct vb_text *what)
{
	const struct vb_cq *cq = &c->cq;
	const struct vb_waiting *w = sleeper(l, cq->channel), *other = sleeper(l, NULL);
	uint64_t since = w ? w->since : lies_since(cq);

	if (cq->undelivered && other && !w)
		vb_wait_add(l, VB_W_OTHER_CHANNEL, other->since, what,
			    "its event lies unread in the channel with fd %d, and the thread sleeps on "
			    "another channel",
			    ch->channel.ibv.fd);
	else if (cq->undelivered)
		vb_wait_add(l, VB_W_EVENT_UNREAD, lies_since(cq), what,
			    "%u event%s unread in the channel with fd %d", cq->undelivered,
			    cq->undelivered == 1 ? " lies" : "s lie", ch->channel.ibv.fd);
	else if (atomic_load(&cq->armed) == VB_ARM_SOLICITED)
		solicited_only(l, c, since, what);
	else if (atomic_load(&cq->armed) == VB_ARM_NEXT)
		vb_wait_add(
		    l, VB_W_ARMED_LATE, since, what,
		    "the CQ was armed after they had come: ibv_req_notify_cq() is for completions that come "
		    "later");
	else if (atomic_load(&cq->armed) == VB_ARM_NONE)
		unarmed(l, c, w, what);
}

void vb_wait_cq(struct vb_waits *l, const struct vb_inside_cq *c)
{
	const struct vb_inside *in = &l->world.self->in;
	const struct vb_inside_cq *b = vb_inside_find_cq(&l->world.self->before, (void *)(uintptr_t)c->at);
	const struct vb_inside_channel *ch = vb_inside_find_channel(in, c->cq.channel);
	const struct vb_waiting *w = ch ? sleeper(l, c->cq.channel) : NULL;
	uint32_t n = entries(&c->cq);
	char text[320] = "", users[300] = "";
	struct vb_text t = {text, sizeof(text)}, what = {text, sizeof(text)}, u = {users, sizeof(users)};

	if (!n || !b || atomic_load(&b->cq.tail) != atomic_load(&c->cq.tail))
		return;
	vb_name_cq(&t, l, c);
	add_entries(&t, &c->cq);
	add_sleeper(&t, w ? w : sleeper(l, NULL));
	add_users(&u, l, c);
	if (vb_side_polls(l->world.self)) {
		add_others(&u, l, c);
		vb_wait_add(l, VB_W_OTHER_CQ, lies_since(&c->cq), &what,
			    "the program polls, but not this CQ%s", users);
	} else if (ch)
		find_event(l, c, ch, &what);
	else if (sleeper(l, NULL))
		vb_wait_add(l, VB_W_NO_CHANNEL, sleeper(l, NULL)->since, &what,
			    "the CQ was created without a completion channel, so it makes no events%s",
			    users);
	else
		vb_wait_add(l, VB_W_UNPOLLED, lies_since(&c->cq), &what, "no thread polls it%s", users);
}

/* A thread sleeps, and no completion has come. */
void vb_wait_channel(struct vb_waits *l, const struct vb_inside_channel *c)
{
	const struct vb_inside *in = &l->world.self->in;
	const struct vb_waiting *w = sleeper(l, (void *)(uintptr_t)c->at);
	unsigned cqs = 0, armed = 0, full = 0;
	char text[320] = "";
	struct vb_text t = {text, sizeof(text)}, what = {text, sizeof(text)};

	if (!w)
		return;
	for (size_t i = 0; i < in->ncqs; i++) {
		const struct vb_cq *cq = &in->cqs[i]->cq;

		if ((uint64_t)(uintptr_t)cq->channel != c->at)
			continue;
		cqs++;
		full += entries(cq) != 0;
		armed += atomic_load(&cq->armed) != VB_ARM_NONE;
	}
	vb_text_add(&t, "completion channel with fd %d: thread %u sleeps in ibv_get_cq_event()",
		    c->channel.ibv.fd, atomic_load(&w->tid));
	if (!cqs)
		vb_wait_add(l, VB_W_NO_CQ, w->since, &what,
			    "no CQ was created with this channel, so no event comes");
	else if (!full && !armed)
		vb_wait_add(l, VB_W_NEVER_ARMED, w->since, &what,
			    "%s of this channel %s armed: a completion that comes will make no event",
			    cqs == 1 ? "the CQ" : "none of the CQs", cqs == 1 ? "is not" : "is");
	else if (!full)
		vb_wait_add(l, VB_W_ARMED, w->since, &what,
			    "%u of %u CQs of this channel %s armed and empty: no "
			    "completion has come. This is normal for an idle program",
			    armed, cqs, armed == 1 ? "is" : "are");
}

void vb_wait_srq(struct vb_waits *l, const struct vb_inside_srq *s)
{
	const struct vb_srq *q = &s->srq;
	uint32_t n = atomic_load(&q->rq.head) - q->rq.tail;
	char text[320] = "";
	struct vb_text t = {text, sizeof(text)}, what = {text, sizeof(text)};

	vb_text_add(&t, "SRQ 0x%06x: %u of %u receives posted", q->number, n, q->rq.max_wr);
	if (q->limit_fired && !q->limit)
		vb_wait_add(l, VB_W_SRQ_LIMIT, 0, &what,
			    "its limit has fired %u time%s and is not set: the event "
			    "IBV_EVENT_SRQ_LIMIT_REACHED comes "
			    "once for each srq_limit",
			    q->limit_fired, q->limit_fired == 1 ? "" : "s");
}
