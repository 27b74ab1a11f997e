#include "hca/datagrams.h"

#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/log.h"
#include "hca/capture.h"
#include "hca/far.h"
#include "hca/hca.h"
#include "hca/hosts.h"
#include "hca/owed.h"
#include "hca/path.h"
#include "hca/send.h"
#include "hca/timed.h"
#include "host/devices.h"
#include "iba/facts.h"
#include "iba/mad.h"
#include "transport/transport.h"

#define AGAIN (100 * VB_MSEC) /* until it is looked again whether there is contact */

/* Whether what is sent now is lost.  While contact is being made that is not known yet, but another attempt
 * after one that failed holds nothing up. */
static void find_nobody(struct vb_dest *d)
{
	struct vb_path *p = &d->path;
	struct vb_reach_facts f;

	if (d->number == VB_DEST_NOWHERE) {
		d->silence = (struct vb_reach_facts){.reach = VB_REACH_ADDRESS};
		if (vb_devices_infiniband())
			d->silence = (struct vb_reach_facts){.reach = VB_REACH_LID};
	} else if (!p->far) {
		d->silence = (struct vb_reach_facts){.reach = VB_REACH_NOBODY};
	} else if (p->nobody || p->far->kind->state(p->far) != VB_FAR_SEEKING) {
		f = p->far->kind->silence(p->far, p->pid, false);
		/* look_closer() knows more, and is too slow for each datagram. */
		if (f.reach != VB_REACH_SILENT || d->silence.reach != VB_REACH_STOPPED)
			d->silence = f;
	} else {
		return;
	}
	p->nobody = true;
}

/* Contact is not waited for any longer: what waits is dropped, for this reason. */
static void look_closer(struct vb_dest *d)
{
	const struct vb_path *p = &d->path;

	if (!p->out && p->far)
		d->silence = p->far->kind->silence(p->far, p->pid, true);
}

/* Looks where the destination is, if there is no way out. */
static void attach(struct vb_dest *d)
{
	struct vb_path *p = &d->path;
	struct vb_out *out;

	if (p->out)
		return;
	if (!p->far && d->number != VB_DEST_NOWHERE)
		p->far = vb_far_at(vb_qp_hca(p->qp), d->number);
	if (!p->far || !p->far->kind->attach(p)) {
		find_nobody(d);
		return;
	}
	out = p->far->kind->way(p->far, p->qp, &p->rxq);
	p->nobody = false;
	p->qp->transport->path(p, out ? vb_capture_way(p->qp, p->far, out, false) : NULL);
}

struct vb_dest *vb_datagrams_lead(struct vb_qp *qp, uint32_t number)
{
	struct vb_dest *d = vb_dest_at(qp, number);

	attach(d);
	return d;
}

/* Sends the datagrams that wait for d if it can, or leaves them where progress finds them. */
static void settle(struct vb_dest *d)
{
	struct vb_path *p = &d->path;

	vb_lock_assert_held(&p->qp->lock);
	attach(d);
	if (d->waits && (p->out || p->nobody))
		p->qp->transport->output(p, 0);
	if (d->waits && p->out)
		vb_hca_owe_blocked(p);
	else if (!p->out)
		vb_path_contact(p); /* what is posted later may find somebody */
}

static void settle_all(struct vb_qp *qp)
{
	struct vb_list *waiting = &qp->dests->waiting;

	/* One that has settled may be off the list, or have come to its end again, and so may others. */
	for (struct vb_list *n = waiting->next; n != waiting && !vb_list_empty(waiting);) {
		struct vb_list *before = n->prev, *after = n->next;

		settle(vb_list_entry(n, struct vb_dest, waiting));
		if (after != waiting)
			n = after;
		else
			n = before->next == n ? n->next : before->next;
	}
}

void vb_datagrams_send(struct vb_qp *qp)
{
	vb_lock_assert_held(&qp->lock);
	if (vb_likely(!qp->transport->output(&qp->path, 0)))
		return;
	settle_all(qp);
	if (vb_qp_timed(qp) && !qp->req.timing)
		vb_hca_keep_time(qp);
}

uint64_t vb_datagrams_look(struct vb_qp *qp, uint64_t now)
{
	uint64_t t;

	vb_lock_assert_held(&qp->lock);
	settle_all(qp);
	vb_list_each (n, &qp->dests->waiting) {
		struct vb_dest *d = vb_list_entry(n, struct vb_dest, waiting);

		if (d->until && now >= d->until)
			look_closer(d);
	}
	t = qp->transport->timer(qp, now);
	return t > now + AGAIN && vb_qp_timed(qp) ? now + AGAIN : t;
}

/* Those that lead there. */
#define EACH_TO(d, qp, to)                                                                                  \
	vb_list_each (n_, &(qp)->dests->used)                                                               \
		for (struct vb_dest *d = vb_list_entry(n_, struct vb_dest, used); d && d->path.far == (to); \
		     d = NULL)

/* Contact has failed.  The far end is not held on to, which may never be one, and is not tried again before
 * something else is sent there; until there is contact that holds nothing up. */
static void give_up(struct vb_dest *d)
{
	struct vb_path *p = &d->path;

	find_nobody(d);
	if (d->waits)
		p->qp->transport->output(p, 0);
	vb_far_put(&p->far);
}

void vb_datagrams_far(struct vb_qp *qp, struct vb_far *far)
{
	vb_lock_assert_held(&qp->lock);
	EACH_TO(d, qp, far)
	{
		if (far->kind->state(far) != VB_FAR_UP)
			d->path.far = far->kind->current(far);
		if (d->path.far->kind->state(d->path.far) == VB_FAR_IDLE)
			give_up(d);
		else
			settle(d);
	}
}

static void detach(struct vb_dest *d)
{
	struct vb_path *p = &d->path;
	struct vb_out *out = p->out;

	vb_owe_no_more(p);
	p->rxq = NULL;
	p->qp->transport->path(p, NULL);
	if (d->number != VB_DEST_GROUP) /* whose way is another destination's */
		vb_out_end(out);
}

static void let_go(struct vb_dest *d)
{
	d->path.nobody = false;
	vb_far_put(&d->path.far);
}

void vb_datagrams_lose(struct vb_qp *qp, struct vb_far *far, const struct vb_reach_facts *why)
{
	vb_lock_assert_held(&qp->lock);
	EACH_TO(d, qp, far)
	{
		detach(d);
		d->silence = *why;
		d->path.nobody = true;
		if (d->waits)
			qp->transport->output(&d->path, 0);
		let_go(d);
	}
}

void vb_datagrams_close(struct vb_qp *qp)
{
	struct vb_list *n;

	vb_lock_assert_held(&qp->lock);
	vb_dests_stop(qp->dests);
	while ((n = vb_list_pop(&qp->dests->used))) {
		struct vb_dest *d = vb_list_entry(n, struct vb_dest, used);

		detach(d);
		let_go(d);
	}
	vb_out_end(qp->dests->kept);
	qp->dests->kept = NULL;
}

static bool waits(struct vb_qp *qp)
{
	bool some;

	vb_lock_take(&qp->lock);
	some = qp->state >= IBV_QPS_RTS && qp->state <= IBV_QPS_SQD && !vb_list_empty(&qp->dests->waiting);
	vb_hca_give(qp);
	return some;
}

void vb_datagrams_drain(struct vb_qp *qp)
{
	struct timespec nap = {.tv_nsec = 20 * VB_USEC};

	while (waits(qp)) {
		vb_adapter_nudge(vb_qp_adapter(qp));
		syscall(SYS_clock_nanosleep, CLOCK_MONOTONIC, 0, &nap, NULL); /* no cancellation point */
		if (nap.tv_nsec < (long)VB_MSEC)
			nap.tv_nsec *= 2;
	}
}

static uint64_t time_of(struct vb_qp *qp)
{
	(void)qp;
	return vb_now();
}

static bool send_back(struct vb_qp *qp, const struct vb_pkt *p, const struct vb_brief *b)
{
	const struct vb_hosts *t = vb_qp_hca(qp)->hosts;
	struct vb_net_ends ends = {
	    .src_qpn = qp->qpn, .dst_qpn = p->src_qpn, .tclass = VB_GRH_TCLASS(p->route.word)};

	vb_lock_assert_held(&qp->lock);
	if (!t || !t->wire->toss || vb_source_is_peer(p->source) || !p->source->dgid)
		return false;
	ends.tclass &= 0xfc; /* without the mark that it came with */
	ends.sgid = vb_gid_of(*p->source->dgid);
	return t->wire->toss(
	    t->net, &ends, (struct vb_gid){.high = p->source->origin.high, .low = p->source->origin.low}, b);
}

const struct vb_back_ops vb_back_ops = {.now = time_of, .send = send_back};

void vb_datagrams_no_qp(struct vb_adapter *a, const struct vb_pkt *p)
{
	const struct vb_facts f = {.reason = VB_R_DROP_NO_QP, .qpn = p->qpn};
	struct vb_qp *qp = vb_qpn_find(a, p->qpn);
	bool is_there = false;
	char buf[512], facts[VB_LOG_FACTS];

	if (qp) {
		vb_lock_take(&qp->lock);
		is_there = !qp->forgotten;
		if (is_there)
			vb_not_heard(qp, p, true);
		vb_hca_give(qp);
	}
	if (is_there)
		return;
	atomic_fetch_add_explicit(&vb_adapter_drops(a)->count[VB_R_DROP_NO_QP], 1, memory_order_relaxed);
	if (!atomic_exchange(&vb_hca(a)->said_no_qp, true) && vb_log_wanted(VB_LOG_WARN))
		vb_log_reason_facts(vb_reasons[f.reason].name, vb_facts_logged(facts, &f),
				    "messages are discarded: %s", vb_reason_say(buf, sizeof(buf), &f));
}
