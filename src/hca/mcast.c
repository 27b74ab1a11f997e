#include "hca/mcast.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/fault.h"
#include "base/log.h"
#include "base/text.h"
#include "hca/capture.h"
#include "hca/datagrams.h"
#include "hca/far.h"
#include "hca/hca.h"
#include "hca/all.h"
#include "hca/hosts.h"
#include "hca/owed.h"

#define PATIENCE (5 * VB_SEC) /* for all others together */

static const char a_member[] = "mcast"; /* what their names say (host/member.c) */
static const char attach[] = "ibv_attach_mcast";

void vb_mcast_open(struct vb_hca *h)
{
	vb_mcasts_init(&h->mcast.groups);
	atomic_store_explicit(&h->mcast.came, 1, memory_order_relaxed); /* a route that is all zero is none */
}

void vb_mcast_close(struct vb_hca *h)
{
	vb_mcasts_fini(&h->mcast.groups);
}

static void words_of(const union ibv_gid *mgid, uint64_t words[2])
{
	memcpy(words, mgid->raw, sizeof(mgid->raw));
}

/* Others cannot be reached: what that means here. */
static void say_apart(const char *call, const struct vb_met *met, const char *what)
{
	char text[400] = "";
	struct vb_text t = {text, sizeof(text)};

	if (met->silent)
		vb_log(VB_LOG_WARN, "%s: %u process%s not answer (stopped?); until then, %s", call,
		       met->silent, met->silent == 1 ? " does" : "es do", what);
	if (met->refused && vb_reach_add(&t, &met->why))
		vb_log(VB_LOG_WARN, "%s: connecting to %u process%s fails: %s; %s", call, met->refused,
		       met->refused == 1 ? "" : "es", text, what);
}

/* Contact with everybody who may send.  *all: or with all but those whom it may be had with only later. */
static int meet_all(struct vb_hca *h, bool *all)
{
	struct vb_met met = {0};
	uint32_t *numbers, n;
	int err = vb_numbers_list(&numbers, &n);

	if (err)
		return vb_refuse(err, attach,
				 "the other processes that have the device open cannot be listed: %s",
				 strerror(err));
	err = vb_peers_meet(h->adapter, numbers, n, vb_now() + PATIENCE, &met);
	free(numbers);
	if (err)
		return vb_refuse(
		    err, attach,
		    "this process cannot connect to all processes that may send to the group: %s",
		    strerror(err));
	say_apart(attach, &met, "messages from there to groups do not arrive here");
	*all = !met.unable;
	return 0;
}

/* A group has its first queue pair: the interface joins it, it is shown, and this adapter's name counts one
 * more. */
static int begin(struct vb_hca *h, struct vb_mcast_group *g)
{
	uint64_t words[2];
	int err = vb_hosts_join(h, g->mgid.raw, attach); /* pairs with end() */

	if (err)
		return err;
	words_of(&g->mgid, words);
	/* before the name, for those who read that */
	g->shown = vb_group_show(h->adapter, words); /* pairs with end() */
	vb_assert(g->shown < VB_MAX_MCAST_GRP);	     /* the profile's limit is no higher */
	VB_FAULT_POINT("group shown, no name yet");
	err = vb_member_join(h->adapter, a_member); /* pairs with end() */
	if (!err)
		return 0;
	vb_group_hide(h->adapter, g->shown);
	vb_hosts_leave(h, g->mgid.raw);
	return vb_refuse(err, attach, "this process cannot bind its name as a member of multicast groups: %s",
			 strerror(err));
}

static void end(struct vb_hca *h, const struct vb_mcast_group *g)
{
	vb_group_hide(h->adapter, g->shown);
	vb_member_leave(h->adapter, a_member);
	vb_hosts_leave(h, g->mgid.raw);
}

/* Nobody finds it any more; who has found it may still be at it. */
static void dispose(struct vb_hca *h, const struct vb_mcast_change *ended)
{
	if (ended->group)
		vb_groups_stir(h->adapter);
	if (ended->member)
		vb_hca_quiesce(h);
	vb_mcasts_free(ended);
}

/* if_loose: only if no attach of it has succeeded. */
static int detach(struct vb_hca *h, struct vb_qp *qp, const union ibv_gid *mgid, uint16_t lid, bool if_loose)
{
	struct vb_mcasts *t = &h->mcast.groups;
	struct vb_mcast_change ended = {0};
	int err = 0;

	pthread_mutex_lock(&t->lock);
	if (!if_loose || vb_mcasts_is_loose(t, qp, mgid, lid))
		err = vb_mcasts_detach(t, qp, mgid, lid, &ended);
	if (!err && ended.group)
		end(h, ended.group);
	pthread_mutex_unlock(&t->lock);
	if (!err)
		dispose(h, &ended);
	return err;
}

int vb_mcast_detach(struct vb_hca *h, struct vb_qp *qp, const union ibv_gid *mgid, uint16_t lid)
{
	return detach(h, qp, mgid, lid, false);
}

/* The queue pair is a member, and shown to be one.  *met: everybody who may send knows that. */
static int join(struct vb_hca *h, struct vb_qp *qp, const union ibv_gid *mgid, uint16_t lid, bool *met)
{
	struct vb_mcasts *t = &h->mcast.groups;
	struct vb_mcast_change begun, ended = {0};
	int err;

	pthread_mutex_lock(&t->lock);
	err = vb_mcasts_attach(t, qp, mgid, lid, &begun);
	if (!err && begun.group) {
		err = begin(h, begun.group);
		if (err)
			(void)vb_mcasts_detach(t, qp, mgid, lid, &ended);
	}
	pthread_mutex_unlock(&t->lock);
	dispose(h, &ended);
	*met = begun.met;
	return err;
}

static bool keep(struct vb_hca *h, struct vb_qp *qp, const union ibv_gid *mgid, uint16_t lid, bool met)
{
	bool there;

	pthread_mutex_lock(&h->mcast.groups.lock);
	there = vb_mcasts_keep(&h->mcast.groups, qp, mgid, lid, met);
	pthread_mutex_unlock(&h->mcast.groups.lock);
	return there;
}

int vb_mcast_attach(struct vb_hca *h, struct vb_qp *qp, const union ibv_gid *mgid, uint16_t lid)
{
	bool met;
	int err;

	/* Several threads may attach the same at once.  Each meets everybody before it returns; one that
	 * cannot takes it off, if it is the first to know, and the others begin anew. */
	do {
		err = join(h, qp, mgid, lid, &met);
		if (err || met)
			return err;
		VB_FAULT_POINT("member of a group, not in contact with all");
		err = meet_all(h, &met);
		if (err) {
			(void)detach(h, qp, mgid, lid, true);
			return err;
		}
		/* Others look again before keep(), after which other threads return at once. */
		vb_groups_stir(h->adapter);
	} while (!keep(h, qp, mgid, lid, met));
	return 0;
}

bool vb_mcast_shut(struct vb_hca *h, struct vb_qp *qp)
{
	bool shut;

	pthread_mutex_lock(&h->mcast.groups.lock);
	shut = vb_list_empty(&qp->mcasts);
	qp->mcasts_shut |= shut;
	pthread_mutex_unlock(&h->mcast.groups.lock);
	return shut;
}

int vb_mcast_meet(struct vb_hca *h, const char *call)
{
	struct vb_met met = {0};
	uint32_t *numbers, n;
	int err;

	/* Members that come later look for this adapter themselves, whose number is bound. */
	if (atomic_load_explicit(&h->mcast.met, memory_order_acquire))
		return 0;
	err = vb_member_list(h->adapter, a_member, &numbers, &n);
	if (err)
		return vb_refuse(
		    err, call,
		    "the members of multicast groups cannot be read from /proc/thread-self/net/unix: %s",
		    strerror(err));
	err = vb_peers_meet(h->adapter, numbers, n, vb_now() + PATIENCE, &met);
	free(numbers);
	if (err)
		return vb_refuse(err, call,
				 "this process cannot connect to all members of multicast groups: %s",
				 strerror(err));
	say_apart(call, &met, "messages to groups do not arrive there");
	/* A process that lacked descriptors, for instance, is asked again the next time. */
	atomic_store_explicit(&h->mcast.met, !met.unable, memory_order_release);
	return 0;
}

/* Looks through what all far ends show.  Who is a member on another host nobody knows. */
static void look(struct vb_hca *h, struct vb_mcast_route *r)
{
	bool leaves = vb_hosts_carry(h, (const uint8_t *)r->mgid);
	uint32_t n = leaves && vb_hosts_only(h) ? 0 : vb_far_count(h);

	memset(r->to.peers, 0, sizeof(r->to.peers));
	r->to.words = 0;
	if (leaves) {
		r->to.peers[VB_TARGET_NET / 64] |= 1ull << VB_TARGET_NET % 64;
		r->to.words = VB_TARGET_WORDS;
	}
	for (uint32_t i = 0; i < n; i++) {
		const struct vb_far *far = vb_far_member(h, i);

		if (!far || !far->kind->in_group(far, r->mgid))
			continue;
		r->to.peers[i / 64] |= 1ull << i % 64;
		if (r->to.words <= i / 64)
			r->to.words = i / 64 + 1;
	}
}

void vb_mcast_route(struct vb_hca *h, const uint64_t mgid[2], struct vb_targets *to)
{
	struct vb_mcast_route *r =
	    &h->mcast.routes[(mgid[1] * 0x9e3779b97f4a7c15ull >> 32) % VB_MCAST_ROUTES];
	uint32_t came, stirs;

	vb_lock_take(&r->lock);
	/* before the peers are looked at: what they change later is looked at the next time */
	came = atomic_load_explicit(&h->mcast.came, memory_order_acquire); /* vb_mcast_peers_changed() */
	stirs = vb_groups_stirs(h->adapter);
	if (vb_unlikely(r->came != came || r->stirs != stirs || r->mgid[0] != mgid[0] ||
			r->mgid[1] != mgid[1])) {
		memcpy(r->mgid, mgid, sizeof(r->mgid));
		look(h, r);
		r->came = came;
		r->stirs = stirs;
	}
	to->words = r->to.words;
	for (uint32_t i = 0; i < r->to.words; i++)
		to->peers[i] = r->to.peers[i];
	vb_lock_give(&r->lock);
}

static void members_of(struct vb_qp *qp, const uint64_t mgid[2], struct vb_targets *to)
{
	vb_lock_assert_held(&qp->lock);
	vb_mcast_route(vb_qp_hca(qp), mgid, to);
}

static struct vb_dest *net(struct vb_qp *qp, const uint64_t mgid[2])
{
	struct vb_far *held;
	uint32_t number = vb_hosts_group(vb_qp_hca(qp), (const uint8_t *)mgid, &held);
	struct vb_dest *d = held ? vb_datagrams_lead(qp, number) : NULL;

	vb_far_put(&held);
	return d;
}

/* The way that the queue pair's other datagrams to that far end take. */
static struct vb_out *way(struct vb_qp *qp, const uint64_t mgid[2], uint32_t target)
{
	struct vb_rxq *rxq;
	struct vb_dest *d;
	struct vb_far *far;

	if (target == VB_TARGET_NET) {
		d = net(qp, mgid);
		return d ? d->path.out : NULL;
	}
	far = vb_far_member(vb_qp_hca(qp), target);
	return vb_capture_group(qp, far, far->kind->way(far, qp, &rxq));
}

static void blocked(struct vb_dest *d, const uint64_t mgid[2], uint32_t target)
{
	struct vb_path *p = &d->path;
	struct vb_dest *of = target == VB_TARGET_NET ? net(p->qp, mgid) : NULL;
	struct vb_far *far;

	vb_owe_no_more(p);
	if (of) {
		p->out = of->path.out;
		p->rxq = of->path.rxq;
		return;
	}
	far = vb_far_member(vb_qp_hca(p->qp), target);
	p->out = far->kind->way(far, p->qp, &p->rxq);
}

const struct vb_group_ops vb_mcast_ops = {.members = members_of, .way = way, .blocked = blocked};
