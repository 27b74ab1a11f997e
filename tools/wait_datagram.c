/* Messages of unreliable queue pairs that went nowhere. */
#include <arpa/inet.h>
#include <stdio.h>
#include <string.h>

#include "host/segment.h"
#include "iba/reach.h"
#include "iba/reason.h"
#include "obj/dests.h"
#include "waits.h"

static uint64_t count_drops(const struct vb_side *s, unsigned reason)
{
	uint64_t sum = 0;

	for (unsigned i = 0; i < s->at.n; i++) {
		const struct vb_drops *d = (const void *)(s->at.all[i] + VB_SEG_DROPS);

		sum += atomic_load_explicit(&d->count[reason], memory_order_relaxed);
	}
	return sum;
}

/* The counts are the process's; which reasons there were the queue pair knows.  false: there were none. */
static bool add_drops(struct vb_text *t, const struct vb_side *s, const struct vb_qp *qp, const char *where)
{
	bool any = false;

	for (unsigned r = 1; r < VB_REASONS; r++) {
		const char *words = vb_reason_dropped((enum vb_reason)r);

		if (!(qp->said >> r & 1) || !words)
			continue;
		vb_text_add(t, "%s%s (%s): %llu in %s", any ? "; " : "", words, vb_reasons[r].name,
			    (unsigned long long)count_drops(s, r), where);
		any = true;
	}
	return any;
}

static void find_dropped(struct vb_waits *l, const struct vb_inside_qp *q)
{
	char text[320] = "", why[700] = "";
	struct vb_text t = {text, sizeof(text)}, what = {text, sizeof(text)}, w = {why, sizeof(why)};

	if (!add_drops(&w, l->world.self, &q->qp, "this process"))
		return;
	vb_name_qp(&t, l, q);
	vb_text_add(&t, ": messages were discarded without an error completion");
	vb_wait_add(l, VB_W_DROPPED, 0, &what, "%s", why);
}

/* Another host, or the way there, refuses its packets, as the log has said. */
static void find_refused(struct vb_waits *l, const struct vb_inside_qp *q)
{
	char text[320] = "", why[700] = "";
	struct vb_text t = {text, sizeof(text)}, what = {text, sizeof(text)}, w = {why, sizeof(why)};
	const struct vb_reach_facts *f = &q->qp.silence;

	if (!q->qp.silence_at || f->reach < VB_REACH_HOST_FILTER || f->reach > VB_REACH_HOST_MTU ||
	    !vb_reach_add(&w, f))
		return;
	vb_name_qp(&t, l, q);
	vb_text_add(&t, ": packets were lost, though their requests completed");
	vb_wait_add(l, VB_W_DROPPED, q->qp.silence_at, &what, "%s", why);
}

/* Whether any queue pair of this host, as far as it can be read, is attached to the group. */
static bool has_members(const struct vb_waits *l, const uint64_t mgid[2])
{
	for (size_t i = 0; i < l->world.n; i++)
		for (unsigned d = 0; d < l->world.sides[i].at.n; d++) {
			const uint8_t *base = l->world.sides[i].at.all[d];
			const struct vb_shown_group *g = (const void *)(base + VB_SEG_GROUPS);
			uint32_t n = atomic_load_explicit(
			    (const _Atomic uint32_t *)(const void *)(base + VB_SEG_GROUP_MARK),
			    memory_order_acquire);

			for (uint32_t k = 0; k < n && k < VB_MAX_MCAST_GRP; k++)
				if (atomic_load(&g[k].half[0]) == mgid[0] &&
				    atomic_load(&g[k].half[1]) == mgid[1])
					return true;
		}
	return false;
}

static void find_group(struct vb_waits *l, const struct vb_inside_qp *q)
{
	char text[320] = "", gid[INET6_ADDRSTRLEN];
	struct vb_text t = {text, sizeof(text)}, what = {text, sizeof(text)};
	uint32_t head = atomic_load(&q->qp.post.head);
	struct vb_swqe w;

	if (!head || !vb_wait_request_at(&l->world.self->in, &q->qp, head - 1, &w) ||
	    w.to.number != VB_DEST_GROUP || has_members(l, w.to.mgid))
		return;
	vb_name_qp(&t, l, q);
	vb_text_add(&t, ": its last datagram went to a multicast group");
	vb_wait_add(l, VB_W_GROUP_EMPTY, 0, &what,
		    "no queue pair of this user is attached to group %s in this network namespace, so nobody "
		    "receives it",
		    inet_ntop(AF_INET6, w.to.mgid, gid, sizeof(gid)));
}

/* The last datagram went to a queue pair of another process, which has discarded some. */
static void find_dropped_there(struct vb_waits *l, const struct vb_inside_qp *q)
{
	const struct vb_side *s = vb_world_receiver(&l->world, &l->world.self->in, &q->qp);
	uint32_t head = atomic_load(&q->qp.post.head);
	char text[320] = "", why[700] = "", name[80];
	struct vb_text t = {text, sizeof(text)}, what = {text, sizeof(text)}, y = {why, sizeof(why)};
	const struct vb_inside_qp *there;
	struct vb_swqe w;

	if (!s || s == l->world.self || !s->read || s->in.state != VB_INSIDE_READ ||
	    !vb_wait_request_at(&l->world.self->in, &q->qp, head - 1, &w))
		return;
	there = vb_inside_find_qp(&s->in, w.to.qpn);
	vb_side_name(s, name, sizeof(name));
	if (there && !add_drops(&y, s, &there->qp, name))
		return;
	if (!there)
		vb_text_add(&y, "%s has no QP 0x%06x", name, w.to.qpn);
	vb_name_qp(&t, l, q);
	vb_text_add(&t, ": its last datagram went to QP 0x%06x of %s, which has discarded datagrams",
		    w.to.qpn, name);
	vb_wait_add(l, VB_W_DROPPED, 0, &what, "%s", why);
	vb_wait_advise(
	    l, VB_WAIT_ANY,
	    "run verbena explain %d, which says more of the receiver. What is discarded is not sent "
	    "again: the program has to notice that",
	    (int)s->at.pid);
}

void vb_wait_datagrams(struct vb_waits *l, const struct vb_inside_qp *q)
{
	if (q->qp.of || q->qp.far || q->qp.acked)
		return;
	find_dropped(l, q);
	find_refused(l, q);
	if (!q->qp.dests)
		return;
	find_group(l, q);
	find_dropped_there(l, q);
}
