/* ibv_rereg_mr(): a region gets another range, protection domain or access, under the keys that it has.
 *
 * What can fail comes first; the change itself is one step for everybody who looks (vb_key_change).  So a
 * call that is refused leaves the region as it was, and the only error codes are INPUT and DONT_FORK_NEW (the
 * old region is valid) and, in a forked child, CMD. */
#include <errno.h>
#include <inttypes.h>
#include <stddef.h>

#include "base/log.h"
#include "base/trace.h"
#include "iba/names.h"
#include "hca/direct.h"
#include "verbs/checked.h"
#include "verbs/mr.h"
#include "hca/hca.h"
#include "verbs/verbs.h"

#define CALL "ibv_rereg_mr"

enum {
	TRANSLATION = IBV_REREG_MR_CHANGE_TRANSLATION,
	PD = IBV_REREG_MR_CHANGE_PD,
	ACCESS = IBV_REREG_MR_CHANGE_ACCESS,
	ALL = TRANSLATION | PD | ACCESS
};

static int check(const struct vb_mr *mr, int flags, struct ibv_pd *pd, const void *addr, size_t length,
		 int access)
{
	uint32_t home = vb_hca(vb_context(mr->ibv.context)->adapter)->keys.home;
	char names[VB_FLAGS_TEXT], all[VB_FLAGS_TEXT];

	if (mr->source != VB_MR_MEMORY)
		return vb_refuse(
		    EINVAL, CALL,
		    "the region of L_Key 0x%08x cannot be changed: only regions of ibv_reg_mr() can",
		    mr->ibv.lkey);
	if (!flags || flags & ~ALL)
		return vb_refuse(EINVAL, CALL, "flags %s is not valid; use one or more of %s",
				 vb_name_flags(names, sizeof(names), VB_FLAGS_REREG, (unsigned)flags),
				 vb_name_flags(all, sizeof(all), VB_FLAGS_REREG, ALL));
	if (access && !(flags & ACCESS))
		return vb_refuse(EINVAL, CALL, "access is %s, but flags lacks IBV_REREG_MR_CHANGE_ACCESS",
				 vb_name_flags(names, sizeof(names), VB_FLAGS_ACCESS, (unsigned)access));
	if (flags & TRANSLATION && (!addr || !length))
		return vb_refuse(
		    EINVAL, CALL,
		    "IBV_REREG_MR_CHANGE_TRANSLATION requires addr and length: addr is %p, length is %zu",
		    addr, length);
	if (flags & PD && !pd)
		return vb_refuse(EINVAL, CALL, "pd is NULL");
	if (flags & PD && pd->context != mr->ibv.context)
		return vb_refuse(EINVAL, CALL, "the protection domain belongs to another context");
	if (flags & PD && (vb_pd(pd)->id >> 32 == home) != (mr->pd->id >> 32 == home))
		return vb_refuse(EINVAL, CALL,
				 "only one of the two protection domains was created by this process, and a "
				 "key cannot move between the two kinds; register the memory anew");
	return 0;
}

/* What the region is to be. */
static struct vb_mr_ask result(const struct vb_mr *mr, int flags, struct ibv_pd *pd, void *addr,
			       size_t length, int access)
{
	/* With hca_va 0 it was registered as a zero-based one, and stays it (rule 43).  (An implicit region
	 * begins at 0.) */
	unsigned zero = !mr->iova && mr->ibv.addr ? IBV_ACCESS_ZERO_BASED : 0;
	struct vb_mr_ask a = {
	    .call = CALL,
	    .pd = flags & PD ? vb_pd(pd) : mr->pd,
	    .addr = flags & TRANSLATION ? (uintptr_t)addr : (uintptr_t)mr->ibv.addr,
	    .length = flags & TRANSLATION ? length : mr->ibv.length,
	    .access = flags & ACCESS ? (unsigned)access : mr->asked | zero,
	    .kind = mr->kind,
	    .release = mr->release,
	};

	/* What was pinned stays so, unless there is another range, or it goes on demand from now on. */
	a.pinned = mr->release && !(flags & TRANSLATION) && !(a.access & IBV_ACCESS_ON_DEMAND);
	if (!a.pinned)
		a.release = NULL;
	a.iova = a.access & IBV_ACCESS_ZERO_BASED ? 0 : flags & TRANSLATION ? a.addr : mr->iova;
	return a;
}

/* Everything is there; nothing fails from here on. */
static void change(struct vb_mr *mr, const struct vb_mr_ask *a)
{
	struct vb_adapter *adapter = vb_context(mr->ibv.context)->adapter;
	const struct vb_key_spec spec = vb_mr_spec(a);
	struct vb_pd *old = mr->pd;

	VB_TRACE_MR_DEREG(mr->ibv.addr, mr->ibv.length);
	VB_TRACE_MR_REG(a->addr, a->length, a->access);
	vb_pd_count(a->pd, VB_CHILD_MR, 1); /* pairs with vb_mr_drop(), or a later change */
	vb_key_change(&vb_hca(adapter)->keys, mr->ibv.lkey, &spec);
	/* Also without remote access: processes that hold the domain, too, use it as their own. */
	vb_direct_key_retracted(adapter, mr->ibv.lkey);
	vb_pd_count(old, VB_CHILD_MR, -1u);
	if (mr->release && !a->pinned)
		mr->release(mr); /* the old range */
	mr->release = a->release;
	mr->pd = a->pd;
	mr->iova = a->iova;
	mr->kind = a->kind;
	mr->asked = a->access;
	mr->access = spec.access;
	mr->ibv.pd = &a->pd->ibv;
	mr->ibv.addr = (void *)(uintptr_t)a->addr;
	mr->ibv.length = a->length;
}

static int rereg(struct vb_mr *mr, int flags, struct ibv_pd *pd, void *addr, size_t length, int access,
		 bool *unmarked)
{
	struct vb_keys *keys = &vb_hca(vb_context(mr->ibv.context)->adapter)->keys;
	struct vb_mr_ask ask;
	int err = check(mr, flags, pd, addr, length, access);

	if (!err && flags & (TRANSLATION | PD))
		vb_checked_rereg(mr, CALL);
	/* One thread at a time from here on, and no window is bound meanwhile.  (Rule 49, as for
	 * deregistration.) */
	if (!err)
		err = vb_mr_close(mr, CALL);
	if (err)
		return err;
	ask = result(mr, flags, pd, addr, length, access);
	if (flags & (TRANSLATION | ACCESS))
		err = vb_mr_prepare(&ask);
	if (!err)
		change(mr, &ask);
	vb_key_open(keys, mr->ibv.lkey);
	*unmarked = ask.unmarked;
	return err;
}

VB_EXPORT VB_CODE(ibv_rereg_mr, (ibmr, flags, pd, addr, length, access), struct ibv_mr *ibmr, int flags,
		  struct ibv_pd *pd, void *addr, size_t length, int access)
{
	bool unmarked = false;
	int err = vb_live_check(CALL, ibmr, VB_LIVE_MR);

	if (err) {
		errno = err;
		return IBV_REREG_MR_ERR_INPUT;
	}
	if (vb_context_dead(vb_context(ibmr->context))) {
		errno = vb_refuse_forked(CALL);
		return IBV_REREG_MR_ERR_CMD;
	}
	err = rereg((struct vb_mr *)ibmr, flags, pd, addr, length, access, &unmarked);
	if (!err)
		return 0;
	errno = err;
	return unmarked ? IBV_REREG_MR_ERR_DONT_FORK_NEW : IBV_REREG_MR_ERR_INPUT;
}
