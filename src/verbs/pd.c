/* Protection domains. */
#include <assert.h>
#include <errno.h>
#include <stdlib.h>

#include "base/log.h"
#include "iba/profile.h"
#include "verbs/progress.h"
#include "verbs/verbs.h"
#include "verbs/why.h"

static_assert(sizeof(struct ibv_pd) == 16, "ABI");

VB_EXPORT struct ibv_pd *ibv_alloc_pd(struct ibv_context *context)
{
	struct vb_context *c = vb_context(context);
	struct vb_pd *pd;
	uint32_t handle;
	int err;

	if (vb_context_dead(c)) {
		errno = vb_refuse(EIO, "ibv_alloc_pd", "the device was opened before fork()");
		return NULL;
	}
	if (atomic_fetch_add(&c->pds, 1) >= vb_profile()->max_pd) { /* pairs with ibv_dealloc_pd */
		err = vb_refuse(ENOMEM, "ibv_alloc_pd", "all %u protection domains are in use",
				vb_profile()->max_pd);
		goto uncount;
	}
	pd = calloc(1, sizeof(*pd));
	if (!pd) {
		err = vb_refuse(ENOMEM, "ibv_alloc_pd", "no memory");
		goto uncount;
	}
	do {
		handle = atomic_fetch_add(&vb_hca(c->adapter)->pd_ids, 1) + 1;
	} while (!handle); /* 0 is nobody's */
	pd->id = vb_hca(c->adapter)->pd_base | handle;
	pd->ibv.context = context;
	pd->ibv.handle = handle;
	vb_lock_take(&c->lock);
	vb_list_append(&c->pd_list, &pd->on_ctx); /* pairs with ibv_dealloc_pd() */
	vb_lock_give(&c->lock);
	return &pd->ibv;
uncount:
	atomic_fetch_sub(&c->pds, 1);
	errno = err;
	return NULL;
}

VB_EXPORT int ibv_dealloc_pd(struct ibv_pd *ibpd)
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
	vb_lock_take(&c->lock);
	if (pd->on_ctx.next) /* not an imported one */
		vb_list_unlink(&pd->on_ctx);
	vb_lock_give(&c->lock);
	free(pd);
	atomic_fetch_sub(&c->pds, 1);
	return 0;
}
