/* ibv_advise_mr(): pages of on-demand regions are made present before they are used.
 *
 * The whole of it happens before the call returns, with IBV_ADVISE_MR_FLAG_FLUSH and without: what it costs
 * is the page faults that the transfers would otherwise take, and nobody else's time.  The manual page lets a
 * device put it off, but does not ask for it. */
#include <errno.h>
#include <inttypes.h>
#include <stddef.h>

#include "base/log.h"
#include "mem/populate.h"
#include "hca/hca.h"
#include "verbs/verbs.h"
#include "verbs/why.h"

#define CALL "ibv_advise_mr"

static bool is_write(enum ibv_advise_mr_advice advice)
{
	return advice == IBV_ADVISE_MR_ADVICE_PREFETCH_WRITE;
}

/* The region that the element names, if the advice may be given for it (as mlx5 where the manual page leaves
 * a choice). */
static int find(const struct vb_pd *pd, enum ibv_advise_mr_advice advice, const struct ibv_sge *s,
		struct vb_key_spec *r)
{
	struct vb_keys *keys = &vb_hca(vb_context(pd->ibv.context)->adapter)->keys;

	if (!vb_key_look(keys, s->lkey, r)) {
		if (!vb_key_look(keys, s->lkey ^ VB_KEY_REMOTE, r))
			return vb_refuse(ENOENT, CALL, "0x%08x is not the L_Key of a memory region", s->lkey);
		if (r->kind == VB_KEY_WINDOW)
			return vb_refuse(EINVAL, CALL,
					 "0x%08x is the key of a memory window, not of a memory region",
					 s->lkey);
		return vb_refuse(ENOENT, CALL, "0x%08x is an R_Key; set lkey to the L_Key, 0x%08x", s->lkey,
				 s->lkey ^ VB_KEY_REMOTE);
	}
	if (r->kind != VB_KEY_ON_DEMAND)
		return vb_refuse(ENOENT, CALL,
				 "the region of L_Key 0x%08x was registered without IBV_ACCESS_ON_DEMAND",
				 s->lkey);
	if (r->pd != pd->id)
		return vb_refuse(EPERM, CALL,
				 "the region of L_Key 0x%08x belongs to another protection domain", s->lkey);
	if (is_write(advice) && !(r->access & IBV_ACCESS_LOCAL_WRITE))
		return vb_refuse(EPERM, CALL,
				 "the region of L_Key 0x%08x lacks IBV_ACCESS_LOCAL_WRITE: prefetching for "
				 "writing requires it",
				 s->lkey);
	return 0;
}

static int advise(enum ibv_advise_mr_advice advice, const struct ibv_sge *s, const struct vb_key_spec *r)
{
	uint64_t off = s->addr - r->iova, at = r->addr + off;
	int err;

	if (s->addr < r->iova || off > r->length || s->length > r->length - off)
		return vb_refuse(EFAULT, CALL,
				 "%" PRIu32 " bytes at 0x%" PRIx64
				 " are outside the region of L_Key 0x%08x, which has 0x%" PRIx64
				 " bytes from 0x%" PRIx64,
				 s->length, s->addr, s->lkey, r->length, r->iova);
	if (!s->length)
		return 0;
	/* Without a fault: what is present here is so for the device too.  Only holes are minded. */
	err = advice == IBV_ADVISE_MR_ADVICE_PREFETCH_NO_FAULT ? vb_populate_look(at, s->length)
							       : vb_populate(at, s->length, is_write(advice));
	if (!err)
		return 0;
	if (err == ENOMEM)
		return vb_refuse(err, CALL, "out of memory for the %" PRIu32 " bytes at 0x%" PRIx64,
				 s->length, at);
	return vb_why_memory(err, CALL, at, s->length, is_write(advice)); /* names the first bad address */
}

VB_CODE(vb_advise_mr, (ibpd, advice, flags, list, n), struct ibv_pd *ibpd, enum ibv_advise_mr_advice advice,
	uint32_t flags, struct ibv_sge *list, uint32_t n)
{
	const struct vb_pd *pd = vb_pd(ibpd);
	struct vb_key_spec r;
	int err = 0;

	if (vb_context_dead(vb_context(ibpd->context)))
		return vb_refuse_forked(CALL);
	if (advice != IBV_ADVISE_MR_ADVICE_PREFETCH && !is_write(advice) &&
	    advice != IBV_ADVISE_MR_ADVICE_PREFETCH_NO_FAULT)
		return vb_refuse(ENOTSUP, CALL,
				 "advice %u is unknown; use %d (prefetch for reading), %d (for writing) or "
				 "%d (without page faults)",
				 (unsigned)advice, IBV_ADVISE_MR_ADVICE_PREFETCH,
				 IBV_ADVISE_MR_ADVICE_PREFETCH_WRITE, IBV_ADVISE_MR_ADVICE_PREFETCH_NO_FAULT);
	if (flags & ~(uint32_t)IBV_ADVISE_MR_FLAG_FLUSH)
		return vb_refuse_bits(EINVAL, CALL, "flags", flags, IBV_ADVISE_MR_FLAG_FLUSH);
	if (!list || !n)
		return vb_refuse(EINVAL, CALL, "sg_list is empty");
	for (uint32_t i = 0; i < n && !err; i++) /* all are checked before anything is done */
		err = find(pd, advice, &list[i], &r);
	for (uint32_t i = 0; i < n && !err; i++) {
		err = find(pd, advice, &list[i], &r);
		if (!err)
			err = advise(advice, &list[i], &r);
	}
	return err;
}
