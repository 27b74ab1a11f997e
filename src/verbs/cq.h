/* What the two files of completion queues share: how a CQ is made, and what a poll is to look at. */
#ifndef VB_VERBS_CQ_H
#define VB_VERBS_CQ_H

#include "hca/progress.h"
#include "verbs/verbs.h"

/* A CQ of either kind, with attributes that were checked as far as ibv_create_cq() has not got them.  NULL
 * and errno, after saying it.  Pairs with ibv_destroy_cq(). */
struct vb_cq *vb_cq_make(struct ibv_context *context, const struct ibv_cq_init_attr_ex *attr,
			 const char *call);

/* After vb_hca_poll() has taken packets in. */
static inline void vb_cq_polled(const struct vb_cq *cq)
{
	if (vb_cq_is_empty(cq))
		vb_hca_polled_for_others(cq->ctx->adapter);
	else
		vb_hca_polled_well();
}

/* Of a CQ that was seen to be empty: NULL, there is nothing to do, as most polls find it; else what is to be
 * polled. */
static inline __attribute__((always_inline)) struct vb_rxq *vb_cq_to_poll(const struct vb_cq *cq)
{
	struct vb_adapter *a = cq->ctx->adapter;

	if (vb_unlikely(vb_cq_is_in_error(cq) || !a)) /* a test of CQs alone has none */
		return VB_POLL_ALL;
	return vb_hca_poll_where(a);
}

#endif
