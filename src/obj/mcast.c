#include "obj/mcast.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/log.h"
#include "iba/profile.h"
#include "obj/qp.h"
#include "obj/refuse.h"

static const char attach[] = "ibv_attach_mcast", detach[] = "ibv_detach_mcast";

void vb_mcasts_init(struct vb_mcasts *t)
{
	pthread_mutex_init(&t->lock, NULL);
}

void vb_mcasts_fini(struct vb_mcasts *t)
{
	pthread_mutex_destroy(&t->lock);
}

/* Groups are told apart by their last bytes, whether IPv4's or IPv6's. */
static uint32_t list_of(const uint8_t mgid[16])
{
	uint64_t low;

	memcpy(&low, mgid + 8, sizeof(low));
	return (uint32_t)(low * 0x9e3779b97f4a7c15ull >> 56) % VB_MCAST_LISTS;
}

static struct vb_mcast_group *find(const struct vb_mcasts *t, const uint8_t mgid[16])
{
	struct vb_mcast_group *g = atomic_load_explicit(&t->lists[list_of(mgid)],
							memory_order_acquire); /* pairs with begin_group() */

	while (g && memcmp(g->mgid.raw, mgid, 16) != 0)
		g = atomic_load_explicit(&g->next, memory_order_acquire);
	return g;
}

const struct vb_mcast_member *vb_mcasts_first(const struct vb_mcasts *t, const uint8_t mgid[16])
{
	const struct vb_mcast_group *g = find(t, mgid);

	/* pairs with begin_member() */
	return g ? atomic_load_explicit(&g->first, memory_order_acquire) : NULL;
}

static struct vb_mcast_member *member_of(const struct vb_mcast_group *g, const struct vb_qp *qp)
{
	struct vb_mcast_member *m = atomic_load_explicit(&g->first, memory_order_relaxed);

	while (m && m->qp != qp)
		m = atomic_load_explicit(&m->next, memory_order_relaxed);
	return m;
}

static struct vb_mcast_attachment *attachment(struct vb_qp *qp, const union ibv_gid *mgid, uint16_t lid)
{
	vb_list_each (n, &qp->mcasts) {
		struct vb_mcast_attachment *a = vb_list_entry(n, struct vb_mcast_attachment, on_qp);

		if (a->lid == lid && !memcmp(&a->group->mgid, mgid, sizeof(*mgid)))
			return a;
	}
	return NULL;
}

/* All that a device has is used up. */
static int check_limits(const struct vb_mcasts *t, const struct vb_mcast_group *g)
{
	const struct vb_profile *p = vb_profile();

	if (!g && t->groups >= p->max_mcast_grp)
		return vb_refuse(ENOMEM, attach, "all %u multicast groups of the device are in use",
				 p->max_mcast_grp);
	if (g && g->members >= p->max_mcast_qp_attach)
		return vb_refuse(
		    ENOMEM, attach,
		    "%u queue pairs are attached to the group, the device's limit (max_mcast_qp_attach)",
		    g->members);
	if (t->members >= p->max_mcast_attach)
		return vb_refuse(
		    ENOMEM, attach,
		    "the device has %u attachments to groups, its limit (max_total_mcast_qp_attach)",
		    t->members);
	return 0;
}

static void begin_group(struct vb_mcasts *t, struct vb_mcast_group *g)
{
	_Atomic(struct vb_mcast_group *) *head = &t->lists[list_of(g->mgid.raw)];

	atomic_store_explicit(&g->next, atomic_load_explicit(head, memory_order_relaxed),
			      memory_order_relaxed);
	atomic_store_explicit(head, g, memory_order_release); /* pairs with find() */
	t->groups++;
}

static void begin_member(struct vb_mcasts *t, struct vb_mcast_group *g, struct vb_mcast_member *m)
{
	atomic_store_explicit(&m->next, atomic_load_explicit(&g->first, memory_order_relaxed),
			      memory_order_relaxed);
	atomic_store_explicit(&g->first, m, memory_order_release); /* pairs with vb_mcasts_first() */
	g->members++;
	t->members++;
}

int vb_mcasts_attach(struct vb_mcasts *t, struct vb_qp *qp, const union ibv_gid *mgid, uint16_t lid,
		     struct vb_mcast_change *begun)
{
	struct vb_mcast_group *g = find(t, mgid->raw);
	struct vb_mcast_member *m = g ? member_of(g, qp) : NULL;
	struct vb_mcast_attachment *a = attachment(qp, mgid, lid);
	int err = m ? 0 : check_limits(t, g);

	vb_mutex_assert_held(&t->lock);
	*begun = (struct vb_mcast_change){.met = a && a->met};
	if (qp->mcasts_shut)
		return vb_refuse(EINVAL, attach, "QP 0x%06x is being destroyed", qp->qpn);
	if (err || a)
		return err;
	a = malloc(sizeof(*a)); /* vb_mcasts_detach() */
	if (!g)
		g = begun->group = calloc(1, sizeof(*g)); /* vb_mcasts_free(), as the next */
	if (!m)
		m = begun->member = calloc(1, sizeof(*m));
	if (!a || !g || !m)
		goto no_memory;
	if (begun->group) {
		g->mgid = *mgid;
		begin_group(t, g);
	}
	if (begun->member) {
		m->qp = qp;
		begin_member(t, g, m);
	}
	m->times++;
	*a = (struct vb_mcast_attachment){.group = g, .member = m, .lid = lid};
	vb_list_append(&qp->mcasts, &a->on_qp);
	return 0;
no_memory:
	vb_mcasts_free(begun);
	*begun = (struct vb_mcast_change){0};
	free(a);
	return vb_refuse_memory(attach);
}

bool vb_mcasts_keep(struct vb_mcasts *t, struct vb_qp *qp, const union ibv_gid *mgid, uint16_t lid, bool met)
{
	struct vb_mcast_attachment *a = attachment(qp, mgid, lid);

	vb_mutex_assert_held(&t->lock);
	if (!a)
		return false;
	a->kept = true;
	a->met |= met;
	return true;
}

bool vb_mcasts_is_loose(struct vb_mcasts *t, struct vb_qp *qp, const union ibv_gid *mgid, uint16_t lid)
{
	const struct vb_mcast_attachment *a = attachment(qp, mgid, lid);

	vb_mutex_assert_held(&t->lock);
	return a && !a->kept;
}

static void end_group(struct vb_mcasts *t, struct vb_mcast_group *g)
{
	_Atomic(struct vb_mcast_group *) *at = &t->lists[list_of(g->mgid.raw)];

	while (atomic_load_explicit(at, memory_order_relaxed) != g)
		at = &atomic_load_explicit(at, memory_order_relaxed)->next;
	atomic_store_explicit(at, atomic_load_explicit(&g->next, memory_order_relaxed), memory_order_release);
	t->groups--;
}

static void end_member(struct vb_mcasts *t, struct vb_mcast_group *g, struct vb_mcast_member *m)
{
	_Atomic(struct vb_mcast_member *) *at = &g->first;

	while (atomic_load_explicit(at, memory_order_relaxed) != m)
		at = &atomic_load_explicit(at, memory_order_relaxed)->next;
	atomic_store_explicit(at, atomic_load_explicit(&m->next, memory_order_relaxed), memory_order_release);
	g->members--;
	t->members--;
}

int vb_mcasts_detach(struct vb_mcasts *t, struct vb_qp *qp, const union ibv_gid *mgid, uint16_t lid,
		     struct vb_mcast_change *ended)
{
	struct vb_mcast_attachment *a = attachment(qp, mgid, lid);

	vb_mutex_assert_held(&t->lock);
	*ended = (struct vb_mcast_change){0};
	if (!a)
		return vb_refuse(EINVAL, detach, "the QP is not attached to this group with LID 0x%x", lid);
	if (!--a->member->times) {
		ended->member = a->member;
		end_member(t, a->group, a->member);
		if (!a->group->members) {
			ended->group = a->group;
			end_group(t, a->group);
		}
	}
	vb_list_unlink(&a->on_qp);
	free(a);
	return 0;
}

void vb_mcasts_free(const struct vb_mcast_change *ended)
{
	free(ended->member);
	free(ended->group);
}
