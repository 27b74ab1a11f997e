/* Parent domains and thread domains.
 *
 * A parent domain is a protection domain with the number of another, so it goes wherever one goes; what is
 * made in it are its children.  Its callbacks give the memory of queues (obj/pd.h).  A thread domain promises
 * that one thread uses the objects made in it.  So its queue pairs have no posting lock; the other locks
 * stay, since the engine may work on the objects too. */
#include <assert.h>
#include <errno.h>
#include <stdlib.h>

#include "base/log.h"
#include "verbs/verbs.h"

static_assert(sizeof(struct ibv_td) == 8 && sizeof(struct ibv_parent_domain_init_attr) == 48, "ABI");

/* The last is leave for a confidential guest to keep queues in memory that its host can read; ours are in
 * plain memory of the process whether or not it is given. */
#define KNOWN                                                                              \
	(IBV_PARENT_DOMAIN_INIT_ATTR_ALLOCATORS | IBV_PARENT_DOMAIN_INIT_ATTR_PD_CONTEXT | \
	 IBV_PARENT_DOMAIN_INIT_ATTR_ALLOW_CC_UNPROTECTED_ALLOC)

VB_OBJECT(struct ibv_td *, vb_alloc_td, (context, attr), struct ibv_context *context,
	  struct ibv_td_init_attr *attr)
{
	struct vb_context *c = vb_context(context);
	struct vb_td *td;

	errno = vb_context_check("ibv_alloc_td", context);
	if (errno)
		return NULL;
	if (attr->comp_mask) {
		errno = vb_refuse_bits(EINVAL, "ibv_alloc_td", "comp_mask", attr->comp_mask, 0);
		return NULL;
	}
	td = calloc(1, sizeof(*td));
	if (!td) {
		errno = vb_refuse_memory("ibv_alloc_td");
		return NULL;
	}
	atomic_fetch_add(&c->tds, 1); /* pairs with vb_dealloc_td() */
	td->ibv.context = context;
	vb_live_enter(&td->ibv, VB_LIVE_TD);
	return &td->ibv;
}

VB_END(vb_dealloc_td, "ibv_dealloc_td", VB_LIVE_TD, ibtd, struct ibv_td *ibtd)
{
	struct vb_td *td = (struct vb_td *)ibtd;
	struct vb_context *c = vb_context(ibtd->context);
	uint32_t refs;

	if (vb_context_dead(c))
		return 0;
	refs = atomic_load(&td->refs);
	if (refs) /* rule 37 */
		return vb_refuse_used("ibv_dealloc_td", refs, "parent domain", "the thread domain",
				      "deallocate");
	free(td);
	atomic_fetch_sub(&c->tds, 1);
	return 0;
}

static int check_new(const struct ibv_context *context, const struct ibv_parent_domain_init_attr *a)
{
	static const char call[] = "ibv_alloc_parent_domain";
	int err;

	err = vb_context_check(call, context);
	if (err)
		return err;
	if (a->comp_mask & ~(uint32_t)KNOWN)
		return vb_refuse_bits(EINVAL, call, "comp_mask", a->comp_mask, KNOWN);
	if (!a->pd)
		return vb_refuse(EINVAL, call, "pd is NULL: a parent domain requires a protection domain");
	if (a->pd->context != context)
		return vb_refuse(EINVAL, call, "the protection domain belongs to another context");
	if (a->td && a->td->context != context)
		return vb_refuse(EINVAL, call, "the thread domain belongs to another context");
	if (a->comp_mask & IBV_PARENT_DOMAIN_INIT_ATTR_ALLOCATORS && (!a->alloc || !a->free))
		return vb_refuse(EINVAL, call,
				 "comp_mask has IBV_PARENT_DOMAIN_INIT_ATTR_ALLOCATORS, but %s is NULL",
				 a->alloc ? "free" : "alloc");
	return 0;
}

VB_OBJECT(struct ibv_pd *, vb_alloc_parent_domain, (context, a), struct ibv_context *context,
	  struct ibv_parent_domain_init_attr *a)
{
	struct whole {
		struct vb_pd pd; /* first */
		struct vb_parent parent;
	} * w;

	errno = check_new(context, a);
	if (errno)
		return NULL;
	w = calloc(1, sizeof(*w));
	if (!w) {
		errno = vb_refuse_memory("ibv_alloc_parent_domain");
		return NULL;
	}
	w->parent = (struct vb_parent){.pd = vb_pd(a->pd), .td = (struct vb_td *)a->td};
	if (a->comp_mask & IBV_PARENT_DOMAIN_INIT_ATTR_ALLOCATORS) {
		w->parent.alloc = a->alloc;
		w->parent.free = a->free;
	}
	if (a->comp_mask & IBV_PARENT_DOMAIN_INIT_ATTR_PD_CONTEXT)
		w->parent.pd_context = a->pd_context;
	vb_pd_count(w->parent.pd, VB_CHILD_PARENT, 1); /* vb_parent_free() takes both counts back */
	if (w->parent.td)
		atomic_fetch_add(&w->parent.td->refs, 1);
	w->pd.ibv.context = context;
	w->pd.ibv.handle = a->pd->handle;
	w->pd.id = w->parent.pd->id;
	w->pd.parent = &w->parent;
	vb_live_enter(&w->pd.ibv, VB_LIVE_PD);
	return &w->pd.ibv;
}

void vb_parent_free(struct vb_pd *pd)
{
	struct vb_pd *of = pd->parent->pd;

	vb_pd_count(of, VB_CHILD_PARENT, -1u);
	if (pd->parent->td)
		atomic_fetch_sub(&pd->parent->td->refs, 1);
	free(pd);
}
