/* Protection domains. */
#include <assert.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>

#include "base/log.h"
#include "iba/limits.h"
#include "iba/profile.h"
#include "hca/hca.h"
#include "verbs/verbs.h"
#include "verbs/why.h"

static_assert(sizeof(struct ibv_pd) == 16, "ABI");

const char *vb_pd_member_name(char name[VB_MEMBER_NAME], uint32_t domain)
{
	snprintf(name, VB_MEMBER_NAME, "pd/%08x", domain);
	return name;
}

int vb_pd_make(struct vb_pd **out, struct ibv_context *context, const char *call)
{
	struct vb_context *c = vb_context(context);
	struct vb_pd *pd;
	int err = vb_context_check(call, context);

	if (err)
		return err;
	if (atomic_fetch_add(&c->pds, 1) >= vb_profile()->max_pd) { /* pairs with vb_pd_unmake() */
		err = vb_refuse(ENOMEM, call, "all %u protection domains of the device are in use",
				vb_profile()->max_pd);
		goto uncount;
	}
	pd = calloc(1, sizeof(*pd));
	if (!pd) {
		err = vb_refuse_memory(call);
		goto uncount;
	}
	pd->ibv.context = context;
	vb_lock_take(&c->lock);
	vb_list_append(&c->pd_list, &pd->on_ctx); /* pairs with vb_pd_unmake() */
	vb_lock_give(&c->lock);
	*out = pd;
	return 0;
uncount:
	atomic_fetch_sub(&c->pds, 1);
	return err;
}

void vb_pd_unmake(struct vb_pd *pd)
{
	struct vb_context *c = vb_context(pd->ibv.context);
	char name[VB_MEMBER_NAME];

	if (pd->member)
		vb_member_leave(c->adapter, vb_pd_member_name(name, vb_pd_domain(pd->id)));
	vb_lock_take(&c->lock);
	vb_list_unlink(&pd->on_ctx);
	vb_lock_give(&c->lock);
	free(pd);
	atomic_fetch_sub(&c->pds, 1);
}

VB_EXPORT VB_OBJECT(struct ibv_pd *, ibv_alloc_pd, (context), struct ibv_context *context)
{
	struct vb_context *c = vb_context(context);
	struct vb_pd *pd;
	int err = vb_pd_make(&pd, context, "ibv_alloc_pd");

	if (err)
		goto refused;
	if (!vb_pds_take(&vb_hca(c->adapter)->pds, 0, NULL, &pd->ibv.handle, &pd->id)) {
		err = vb_refuse(ENOMEM, "ibv_alloc_pd",
				"all %d protection domains of this process are in use", VB_MAX_PD);
		vb_pd_unmake(pd);
		goto refused;
	}
	vb_live_enter(&pd->ibv, VB_LIVE_PD);
	return &pd->ibv; /* pairs with ibv_dealloc_pd() */
refused:
	errno = err;
	return NULL;
}

VB_EXPORT VB_END(ibv_dealloc_pd, "ibv_dealloc_pd", VB_LIVE_PD, ibpd, struct ibv_pd *ibpd)
{
	struct vb_pd *pd = vb_pd(ibpd);
	struct vb_context *c = vb_context(ibpd->context);

	if (vb_context_dead(c))
		return 0;
	if (atomic_load(&pd->refs)) /* rule 37 */
		return vb_why_pd_busy(pd, "ibv_dealloc_pd");
	if (pd->parent) {
		vb_parent_free(pd);
		return 0;
	}
	if (!pd->imported) /* else its owner's: only that can take it away */
		vb_pds_give(&vb_hca(c->adapter)->pds, ibpd->handle);
	vb_pd_unmake(pd);
	return 0;
}
