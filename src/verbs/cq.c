/* Completion queues: creation, resizing, destruction, polling and arming. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "base/log.h"
#include "iba/profile.h"
#include "hca/hca.h"
#include "hca/progress.h"
#include "verbs/verbs.h"

static _Atomic uint32_t handles;

static int check_new(const struct vb_context *ctx, int cqe, const struct ibv_comp_channel *channel,
		     int vector)
{
	const struct ibv_context *c = &ctx->v.context;

	if (vb_context_dead(ctx))
		return vb_refuse(EIO, "ibv_create_cq", "the device was opened before fork()");
	if (cqe <= 0 || (uint32_t)cqe > vb_profile()->max_cqe)
		return vb_refuse(EINVAL, "ibv_create_cq", "cqe %d, 1 to %u is possible", cqe,
				 vb_profile()->max_cqe);
	if (vector < 0 || vector >= c->num_comp_vectors)
		return vb_refuse(EINVAL, "ibv_create_cq", "completion vector %d, the device has %d", vector,
				 c->num_comp_vectors);
	if (channel && channel->context != c)
		return vb_refuse(EINVAL, "ibv_create_cq", "the channel belongs to another context");
	return 0;
}

static void use_channel(struct vb_channel *ch, int refs)
{
	if (!ch)
		return;
	vb_lock_take(&ch->evq.lock);
	ch->ibv.refcnt += refs;
	vb_lock_give(&ch->evq.lock);
}

VB_EXPORT VB_OBJECT(struct ibv_cq *, ibv_create_cq, (context, cqe, cq_context, channel, comp_vector),
		    struct ibv_context *context, int cqe, void *cq_context, struct ibv_comp_channel *channel,
		    int comp_vector)
{
	struct vb_context *ctx = vb_context(context);
	struct vb_cq *cq = NULL;
	int err = check_new(ctx, cqe, channel, comp_vector);

	if (err)
		goto refused;
	if (atomic_fetch_add(&ctx->cqs, 1) >= vb_profile()->max_cq) { /* pairs with ibv_destroy_cq */
		err = vb_refuse(ENOMEM, "ibv_create_cq", "all %u CQs of the device are in use",
				vb_profile()->max_cq);
		goto uncount;
	}
	cq = aligned_alloc(VB_LINE, sizeof(*cq));
	if (cq) {
		memset(cq, 0, sizeof(*cq));
		cq->ctx = ctx;
		cq->channel = (struct vb_channel *)channel;
	}
	if (!cq || vb_cq_init(cq, (uint32_t)cqe)) {
		err = vb_refuse(ENOMEM, "ibv_create_cq", "no memory for %d entr%s", cqe,
				cqe == 1 ? "y" : "ies");
		goto uncount;
	}
	use_channel(cq->channel, 1);
	cq->ibv.context = context;
	cq->ibv.channel = channel;
	cq->ibv.cq_context = cq_context;
	cq->ibv.handle = atomic_fetch_add(&handles, 1);
	cq->ibv.cqe = cqe;
	pthread_mutex_init(&cq->ibv.mutex, NULL);
	pthread_cond_init(&cq->ibv.cond, NULL);
	return &cq->ibv;
uncount:
	free(cq);
	atomic_fetch_sub(&ctx->cqs, 1);
refused:
	errno = err;
	return NULL;
}

VB_EXPORT VB_CODE(ibv_resize_cq, (ibcq, cqe), struct ibv_cq *ibcq, int cqe)
{
	struct vb_cq *cq = vb_cq(ibcq);
	uint32_t held = 0;
	int err;

	if (vb_context_dead(cq->ctx))
		return vb_refuse(EIO, "ibv_resize_cq", "the device was opened before fork()");
	if (cqe <= 0 || (uint32_t)cqe > vb_profile()->max_cqe)
		return vb_refuse(EINVAL, "ibv_resize_cq", "cqe %d, 1 to %u is possible", cqe,
				 vb_profile()->max_cqe);
	err = vb_cq_resize(cq, (uint32_t)cqe, &held);
	if (err == EINVAL)
		return vb_refuse(err, "ibv_resize_cq", "the CQ holds %u completions, more than %d", held,
				 cqe);
	if (err)
		return vb_refuse(err, "ibv_resize_cq", "no memory for %d entr%s", cqe,
				 cqe == 1 ? "y" : "ies");
	ibcq->cqe = cqe;
	return 0;
}

VB_EXPORT VB_CODE(ibv_destroy_cq, (ibcq), struct ibv_cq *ibcq)
{
	struct vb_cq *cq = vb_cq(ibcq);
	struct vb_context *ctx = cq->ctx;
	uint32_t refs, delivered = 0;

	if (vb_context_dead(ctx))
		return 0;
	refs = atomic_load(&cq->refs);
	if (refs) /* rule 37 */
		return vb_refuse(EBUSY, "ibv_destroy_cq", "%u queue%s of QPs and SRQs complete%s to it", refs,
				 refs == 1 ? "" : "s", refs == 1 ? "s" : "");
	vb_cq_fini(cq);
	/* rule 36: an application may still be working with the CQ that an event gave it */
	if (cq->channel) {
		vb_lock_take(&cq->channel->evq.lock);
		delivered = cq->delivered;
		vb_lock_give(&cq->channel->evq.lock);
	}
	vb_wait_acked(&ibcq->mutex, &ibcq->cond, &ibcq->comp_events_completed, delivered);
	vb_lock_take(&ctx->async.lock);
	delivered = cq->async_delivered;
	vb_lock_give(&ctx->async.lock);
	vb_wait_acked(&ibcq->mutex, &ibcq->cond, &ibcq->async_events_completed, delivered);
	use_channel(cq->channel, -1);
	pthread_cond_destroy(&ibcq->cond);
	pthread_mutex_destroy(&ibcq->mutex);
	free(cq);
	atomic_fetch_sub(&ctx->cqs, 1);
	return 0;
}

/* Most polls find nothing. */
static inline struct vb_rxq *what_to_poll(struct ibv_cq *ibcq, int n, struct ibv_wc *wc)
{
	const struct vb_cq *cq = vb_cq(ibcq);
	struct vb_adapter *a = cq->ctx->adapter;

	(void)n;
	(void)wc;
	if (!vb_cq_rests(cq) || vb_unlikely(!a)) /* a test of CQs alone has none */
		return VB_POLL_ALL;
	return vb_hca_poll_where(a);
}

VB_VALUE_FOUND(int, vb_poll_cq, what_to_poll, (ibcq, n, wc), (struct ibv_cq * ibcq, int n, struct ibv_wc *wc),
	       struct vb_rxq *)
{
	struct vb_cq *cq = vb_cq(ibcq);

	if (vb_cq_is_empty(cq) && vb_likely(found && cq->ctx->adapter)) {
		struct vb_cq_hand hand = {.cq = cq, .at = wc, .end = n > 0 ? wc + n : wc};

		vb_cq_hand = &hand;
		vb_hca_poll(cq->ctx->adapter, found);
		vb_cq_hand = NULL;
		if (hand.at != wc)
			return (int)(hand.at - wc);
	}
	return vb_cq_poll(cq, n, wc);
}

VB_CODE(vb_req_notify_cq, (ibcq, solicited_only), struct ibv_cq *ibcq, int solicited_only)
{
	struct vb_cq *cq = vb_cq(ibcq);
	struct vb_adapter *a = cq->ctx->adapter;

	if (vb_context_dead(cq->ctx))
		return vb_refuse(EIO, "ibv_req_notify_cq", "the device was opened before fork()");
	if (!cq->channel) /* nobody is to be notified */
		return 0;
	/* The adapter counts armed CQs and is told first, so that the disarming that a completion causes
	 * cannot overtake it; and each time, since a program that armed and went on polling may now be about
	 * to wait.  It makes progress. */
	if (a)
		vb_adapter_arm(a); /* pairs with vb_adapter_disarm() */
	if (vb_cq_arm_for(cq, solicited_only) && a)
		vb_adapter_disarm(a); /* it is counted already */
	return 0;
}

VB_OBJECT(struct ibv_cq_ex *, vb_create_cq_ex, (context, attr), struct ibv_context *context,
	  struct ibv_cq_init_attr_ex *attr)
{
	(void)context;
	(void)attr;
	errno = vb_decline(EOPNOTSUPP, "ibv_create_cq_ex",
			   "extended CQs are not supported, those of ibv_create_cq are");
	return NULL;
}

VB_CODE(vb_modify_cq, (cq, attr), struct ibv_cq *cq, struct ibv_modify_cq_attr *attr)
{
	(void)cq;
	(void)attr;
	return vb_refuse(EOPNOTSUPP, "ibv_modify_cq", "CQ moderation is not supported");
}
