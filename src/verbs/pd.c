/* Protection domains. */
#include <assert.h>
#include <errno.h>
#include <stdlib.h>

#include "base/log.h"
#include "iba/profile.h"
#include "verbs/progress.h"
#include "verbs/verbs.h"

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
	uint32_t refs;

	if (vb_context_dead(c))
		return 0;
	refs = atomic_load(&pd->refs);
	if (refs) /* rule 37 */
		return vb_refuse(EBUSY, "ibv_dealloc_pd",
				 "%u memory regions, QPs, SRQs, address handles and parent domains of the "
				 "domain still exist",
				 refs);
	if (pd->parent) {
		vb_parent_free(pd);
		return 0;
	}
	free(pd);
	atomic_fetch_sub(&c->pds, 1);
	return 0;
}
