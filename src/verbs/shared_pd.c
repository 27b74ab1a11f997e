/* Shared protection domains: ibv_alloc_shpd and ibv_share_pd, and how the processes that hold one meet.
 *
 * A shared domain has no keeper.  Each process that holds it shows its number and its share key
 * (obj/pds.h), and all but the one that made it bind a name that says so (host/member.c).  Whoever joins
 * binds its own name first and looks for the others' afterwards: of two that join at once one at least sees
 * the other, and contact is both's.  It makes contact with all of them, here and not when a key is used, so
 * that every pair of holders has a link over which the owner of memory sees who is using it. */
#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/fault.h"
#include "base/log.h"
#include "base/text.h"
#include "iba/reach.h"
#include "hca/direct.h"
#include "hca/hca.h"
#include "hca/peers.h"
#include "verbs/verbs.h"

#define PATIENCE (2 * VB_SEC) /* for all members together */

static int meet(struct vb_adapter *a, uint32_t domain, struct vb_met *met, const char *call)
{
	uint64_t until = vb_now() + PATIENCE;
	uint32_t *numbers, n, home = vb_pd_domain_home(domain);
	char name[VB_MEMBER_NAME];
	int err = vb_member_list(a, vb_pd_member_name(name, domain), &numbers, &n);

	if (err)
		return vb_refuse(
		    err, call,
		    "the members of the shared domain cannot be read from /proc/thread-self/net/unix: %s",
		    strerror(err));
	*met = (struct vb_met){0};
	vb_peers_call(a, numbers, n);
	err = vb_peers_meet(a, &home, 1, until, met);
	if (!err)
		err = vb_peers_meet(a, numbers, n, until, met);
	free(numbers);
	if (err)
		return vb_refuse(err, call, "not all members of the shared domain can be reached: %s",
				 strerror(err));
	return 0;
}

int vb_pd_join(struct vb_pd *pd, uint32_t domain, struct vb_met *met, const char *call)
{
	struct vb_adapter *a = vb_context(pd->ibv.context)->adapter;
	char name[VB_MEMBER_NAME];
	int err = vb_member_join(a, vb_pd_member_name(name, domain));

	if (err)
		return vb_refuse(
		    err, call,
		    "this process cannot bind the socket name of a member of the shared domain: %s",
		    strerror(err));
	VB_FAULT_POINT("member, not in contact with the others");
	err = meet(a, domain, met, call);
	if (err) {
		vb_member_leave(a, name);
		return err;
	}
	pd->member = true;
	vb_direct_admit_members();
	return 0;
}

VB_EXPORT VB_OBJECT(struct ibv_shpd *, ibv_alloc_shpd, (ibpd, share_key, shpd), struct ibv_pd *ibpd,
		    uint64_t share_key, struct ibv_shpd *shpd)
{
	const char *call = "ibv_alloc_shpd";
	struct vb_pd *pd = ibpd ? vb_pd(ibpd) : NULL;
	struct vb_context *c;
	int err = 0;

	if (!pd || !shpd) {
		errno = vb_refuse(EINVAL, call, "%s is NULL", pd ? "shpd" : "pd");
		return NULL;
	}
	c = vb_context(ibpd->context);
	while (pd->parent)
		pd = pd->parent->pd;
	if (vb_context_dead(c))
		err = vb_refuse_forked(call);
	else if (pd->imported)
		err = vb_refuse(
		    EINVAL, call,
		    "the protection domain was imported: only the context that allocated it can share it");
	else if (!vb_pds_share(&vb_hca(c->adapter)->pds, pd->ibv.handle, share_key))
		err = vb_refuse(EINVAL, call, "the protection domain is already shared, with handle 0x%08x",
				vb_pd_domain(pd->id));
	if (err) {
		errno = err;
		return NULL;
	}
	vb_direct_admit_members();
	shpd->handle = vb_pd_domain(pd->id);
	return shpd;
}

/* What is known of a domain that is to be joined. */
struct found {
	uint64_t id;
	bool any;  /* somebody holds it */
	bool fits; /* with this share key: id is it */
};

/* Looks for the domain in the table of one process. */
static void look_at(struct found *f, const struct vb_pd_slot *slots, const struct vb_pd_marks *marks,
		    uint32_t domain, uint64_t share_key)
{
	struct vb_pd_view v;

	for (uint32_t nth = 0; !f->fits && vb_pds_find(slots, marks, domain, nth, &v); nth++) {
		f->any = true;
		f->fits = v.share_key == share_key;
		f->id = v.id;
	}
}

/* Own table and those of all processes in contact, that of the domain's home first.  A process that ended
 * just now may have left its table as it was: its link goes down a moment later. */
static void look(struct vb_adapter *a, uint32_t domain, uint64_t share_key, struct found *f)
{
	uint32_t home = vb_pd_domain_home(domain);
	struct vb_pds *own = &vb_hca(a)->pds;

	*f = (struct found){0};
	look_at(f, own->slots, own->marks, domain, share_key);
	for (uint32_t pass = 0; pass < 2; pass++) {
		struct vb_peer *peer;

		for (uint32_t i = 1; !f->fits && (peer = vb_hca_next_peer(a, &i));) {
			struct vb_peer_tables at;

			if (atomic_load(&peer->state) != VB_PEER_UP ||
			    (peer->number == home) == (pass != 0) || vb_peer_is_over(peer))
				continue;
			vb_peer_tables(peer, &at);
			look_at(f, at.pds, at.pd_marks, domain, share_key);
		}
	}
}

static int share(struct vb_pd *pd, uint32_t domain, uint64_t share_key, const char *call)
{
	struct vb_hca *h = vb_hca(vb_context(pd->ibv.context)->adapter);
	struct found f;
	struct vb_met met;
	char text[400] = "";
	struct vb_text t = {text, sizeof(text)};
	int err = vb_pd_join(pd, domain, &met, call); /* vb_pd_unmake() leaves */

	if (err)
		return err;
	look(h->adapter, domain, share_key, &f);
	pd->id = (uint64_t)vb_pd_domain_home(domain) << 52 | (domain & 0xfffff); /* for leaving */
	if (!f.any && met.silent)
		return vb_refuse(ETIMEDOUT, call, "%u process%s shared domain 0x%08x and %s", met.silent,
				 met.silent == 1 ? " holds" : "es hold", domain,
				 met.silent == 1 ? "does not answer (is it stopped?)"
						 : "do not answer (are they stopped?)");
	if (!f.any && vb_reach_add(&t, &met.why))
		return vb_refuse(ENOENT, call,
				 "no reachable process holds shared domain 0x%08x. Another process may hold "
				 "it, but cannot be reached: %s",
				 domain, text);
	if (!f.any)
		return vb_refuse(ENOENT, call, "no process of this user holds shared domain 0x%08x", domain);
	if (!f.fits)
		return vb_refuse(EINVAL, call, "share_key 0x%" PRIx64 " does not match shared domain 0x%08x",
				 share_key, domain);
	if (met.silent)
		vb_log(VB_LOG_WARN,
		       "%s: %u member%s of shared domain 0x%08x %s not answer: %s memory cannot be accessed "
		       "until %s",
		       call, met.silent, met.silent == 1 ? "" : "s", domain, met.silent == 1 ? "does" : "do",
		       met.silent == 1 ? "its" : "their", met.silent == 1 ? "it does" : "they do");
	if (!vb_pds_take(&h->pds, f.id, &share_key, &pd->ibv.handle, &pd->id))
		return vb_refuse(ENOMEM, call, "all %d protection domains of this process are in use",
				 VB_MAX_PD);
	return 0;
}

VB_EXPORT VB_OBJECT(struct ibv_pd *, ibv_share_pd, (context, shpd, share_key), struct ibv_context *context,
		    struct ibv_shpd *shpd, uint64_t share_key)
{
	const char *call = "ibv_share_pd";
	struct vb_pd *pd = NULL;
	int err;

	if (!context || !shpd)
		err = vb_refuse(EINVAL, call, "%s is NULL", context ? "shpd" : "context");
	else
		err = vb_pd_make(&pd, context, call);
	if (err)
		goto refused;
	err = share(pd, shpd->handle, share_key, call);
	if (!err) {
		vb_live_enter(&pd->ibv, VB_LIVE_PD);
		return &pd->ibv; /* pairs with ibv_dealloc_pd() */
	}
	vb_pd_unmake(pd);
refused:
	errno = err;
	return NULL;
}
