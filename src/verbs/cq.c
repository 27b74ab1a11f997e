/* Completion queues: creation, resizing, destruction, polling and arming. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/log.h"
#include "cm/api.h"
#include "iba/profile.h"
#include "hca/cqs.h"
#include "obj/custody.h"
#include "verbs/cq.h"

#define CQE_RANGE "cqe %d is out of range: the device accepts 1 to %u"

static _Atomic uint32_t handles;

static int check_new(const struct ibv_context *c, const struct ibv_cq_init_attr_ex *attr, const char *call)
{
	int err = vb_context_check(call, c);

	if (err)
		return err;
	if (attr->cqe < 1 || attr->cqe > vb_profile()->max_cqe)
		return vb_refuse(EINVAL, call, CQE_RANGE, (int)attr->cqe, vb_profile()->max_cqe);
	if (attr->comp_vector >= (uint32_t)c->num_comp_vectors)
		return vb_refuse(EINVAL, call,
				 "comp_vector %d is out of range: the device has %d completion vectors",
				 (int)attr->comp_vector, c->num_comp_vectors);
	if (attr->channel && attr->channel->context != c)
		return vb_refuse(EINVAL, call, "the completion channel belongs to another context");
	return 0;
}

static void enter_channel(struct vb_cq *cq)
{
	struct vb_channel *ch = cq->channel;

	if (!ch)
		return;
	vb_lock_take(&ch->evq.lock);
	ch->ibv.refcnt++;
	vb_list_append(&ch->cqs, &cq->on_channel);
	vb_lock_give(&ch->evq.lock);
}

static void leave_channel(struct vb_cq *cq)
{
	struct vb_channel *ch = cq->channel;

	if (!ch)
		return;
	vb_lock_take(&ch->evq.lock);
	ch->ibv.refcnt--;
	vb_list_unlink(&cq->on_channel);
	vb_lock_give(&ch->evq.lock);
}

/* What the attributes decide about the queue, before it is made. */
static void decide(struct vb_cq *cq, struct vb_context *ctx, const struct ibv_cq_init_attr_ex *attr)
{
	const uint32_t flags = attr->comp_mask & IBV_CQ_INIT_ATTR_MASK_FLAGS ? attr->flags : 0;

	cq->ctx = ctx;
	cq->channel = (struct vb_channel *)attr->channel;
	cq->ops = ctx->adapter ? &vb_cqs_ops : NULL;
	cq->parent = attr->comp_mask & IBV_CQ_INIT_ATTR_MASK_PD ? vb_pd(attr->parent_domain) : NULL;
	cq->lossy = flags & IBV_CREATE_CQ_ATTR_IGNORE_OVERRUN;
	cq->turn.alone =
	    (flags & IBV_CREATE_CQ_ATTR_SINGLE_THREADED) || (cq->parent && cq->parent->parent->td);
	cq->stamping = (attr->wc_flags & IBV_WC_EX_WITH_COMPLETION_TIMESTAMP ? VB_STAMP_CLOCK : 0) |
		       (attr->wc_flags & IBV_WC_EX_WITH_COMPLETION_TIMESTAMP_WALLCLOCK ? VB_STAMP_WALL : 0);
}

/* Those of an extended CQ are the same members, at the same places. */
static void describe(struct vb_cq *cq, struct ibv_context *context, const struct ibv_cq_init_attr_ex *attr)
{
	cq->ibv.context = context;
	cq->ibv.channel = attr->channel;
	cq->ibv.cq_context = attr->cq_context;
	cq->ibv.handle = atomic_fetch_add(&handles, 1);
	cq->ibv.cqe = (int)attr->cqe;
	pthread_mutex_init(&cq->ibv.mutex, NULL);
	pthread_cond_init(&cq->ibv.cond, NULL);
}

struct vb_cq *vb_cq_make(struct ibv_context *context, const struct ibv_cq_init_attr_ex *attr,
			 const char *call)
{
	struct vb_context *ctx = vb_context(context);
	struct vb_cq *cq = NULL;
	int err = check_new(context, attr, call);

	if (err)
		goto refused;
	if (atomic_fetch_add(&ctx->cqs, 1) >= vb_profile()->max_cq) { /* pairs with ibv_destroy_cq */
		err = vb_refuse(ENOMEM, call, "all %u CQs of the device are in use", vb_profile()->max_cq);
		goto uncount;
	}
	cq = aligned_alloc(VB_LINE, sizeof(*cq));
	if (!cq) {
		err = vb_refuse_memory(call);
		goto uncount;
	}
	memset(cq, 0, sizeof(*cq));
	decide(cq, ctx, attr);
	err = vb_cq_init(cq, attr->cqe); /* pairs with ibv_destroy_cq */
	if (err)			 /* said */
		goto uncount;
	enter_channel(cq);
	if (ctx->adapter)
		vb_cqs_enter(vb_hca(ctx->adapter), cq); /* pairs with end() */
	if (cq->parent)
		vb_pd_count(cq->parent, VB_CHILD_CQ, 1); /* pairs with ibv_destroy_cq */
	describe(cq, context, attr);
	vb_live_enter(&cq->ibv, VB_LIVE_CQ);
	return cq;
uncount:
	free(cq);
	atomic_fetch_sub(&ctx->cqs, 1);
refused:
	errno = err;
	return NULL;
}

VB_EXPORT VB_OBJECT(struct ibv_cq *, ibv_create_cq, (context, cqe, cq_context, channel, comp_vector),
		    struct ibv_context *context, int cqe, void *cq_context, struct ibv_comp_channel *channel,
		    int comp_vector)
{
	const struct ibv_cq_init_attr_ex attr = {.cqe = (uint32_t)cqe,
						 .cq_context = cq_context,
						 .channel = channel,
						 .comp_vector = (uint32_t)comp_vector};
	struct vb_cq *cq = vb_cq_make(context, &attr, "ibv_create_cq");

	return cq ? &cq->ibv : NULL;
}

VB_EXPORT VB_CODE(ibv_resize_cq, (ibcq, cqe), struct ibv_cq *ibcq, int cqe)
{
	struct vb_cq *cq = vb_cq(ibcq);
	uint32_t held = 0;
	int err;

	if (vb_context_dead(cq->ctx))
		return vb_refuse_forked("ibv_resize_cq");
	if (cqe <= 0 || (uint32_t)cqe > vb_profile()->max_cqe)
		return vb_refuse(EINVAL, "ibv_resize_cq", CQE_RANGE, cqe, vb_profile()->max_cqe);
	err = vb_cq_resize(cq, (uint32_t)cqe, &held);
	if (held)
		return vb_refuse(err, "ibv_resize_cq", "cqe %d is too small: the CQ holds %u completions",
				 cqe, held);
	if (!err)
		ibcq->cqe = cqe;
	return err;
}

/* Nobody finds it any more, and nothing is left of it but its memory.  May be called again. */
static void end(struct vb_cq *cq)
{
	if (cq->ctx->adapter)
		vb_cqs_forget(vb_hca(cq->ctx->adapter), cq);
	vb_cq_fini(cq);
}

/* How many events were delivered: of completions, and asynchronous ones. */
static void count_events(struct vb_cq *cq, uint32_t *comp, uint32_t *async)
{
	*comp = 0;
	if (cq->channel) {
		vb_lock_take(&cq->channel->evq.lock);
		*comp = cq->delivered;
		vb_lock_give(&cq->channel->evq.lock);
	}
	vb_lock_take(&cq->ctx->async.lock);
	*async = cq->async_delivered;
	vb_lock_give(&cq->ctx->async.lock);
}

/* Nobody uses it, and all of its events are acknowledged. */
static void free_cq(struct vb_cq *cq)
{
	struct vb_context *ctx = cq->ctx;

	end(cq); /* once more: a program may have armed, moderated or resized it */
	leave_channel(cq);
	if (cq->parent)
		vb_pd_count(cq->parent, VB_CHILD_CQ, (uint32_t)-1);
	pthread_cond_destroy(&cq->ibv.cond);
	pthread_mutex_destroy(&cq->ibv.mutex);
	free(cq);
	atomic_fetch_sub(&ctx->cqs, 1);
}

static void destroy(struct vb_cq *cq)
{
	struct ibv_cq *ibcq = &cq->ibv;
	uint32_t comp, async;

	end(cq);
	/* rule 36: an application may still be working with the CQ that an event gave it */
	count_events(cq, &comp, &async);
	vb_wait_acked(&ibcq->mutex, &ibcq->cond, &ibcq->comp_events_completed, comp, VB_WAITING_CQ_ACKS, cq);
	vb_wait_acked(&ibcq->mutex, &ibcq->cond, &ibcq->async_events_completed, async, VB_WAITING_CQ_ERR_ACKS,
		      cq);
	free_cq(cq);
}

VB_EXPORT VB_END(ibv_destroy_cq, "ibv_destroy_cq", VB_LIVE_CQ, ibcq, struct ibv_cq *ibcq)
{
	struct vb_cq *cq = vb_cq(ibcq);
	uint32_t refs;

	if (vb_context_dead(cq->ctx))
		return 0;
	if (atomic_load_explicit(&cq->turn.holder, memory_order_relaxed))
		return vb_refuse_busy(
		    "ibv_destroy_cq",
		    "a thread has called ibv_start_poll() on the CQ; call ibv_end_poll() first");
	refs = atomic_load(&cq->refs);
	if (refs) /* rule 37 */
		return vb_refuse_busy(
		    "ibv_destroy_cq",
		    "%u work queue%s of QPs or SRQs use%s the CQ; destroy those QPs and SRQs first", refs,
		    refs == 1 ? "" : "s", refs == 1 ? "s" : "");
	destroy(cq);
	return 0;
}

int vb_cm_cq_abandon(struct ibv_cq *ibcq, const void *owner)
{
	struct vb_cq *cq = vb_cq(ibcq);
	uint32_t refs;
	int err = vb_live_check("rdma_destroy_qp", ibcq, VB_LIVE_CQ);

	if (err)
		return err;
	if (ibcq->cq_context != owner || !atomic_load(&cq->refs) || vb_context_dead(cq->ctx))
		return ibv_destroy_cq(ibcq);
	err = vb_live_leave("rdma_destroy_qp", ibcq, VB_LIVE_CQ);
	if (err)
		return err;
	refs = atomic_fetch_or(&cq->refs, VB_CQ_ABANDONED);
	if (!refs) { /* they have gone meanwhile */
		destroy(cq);
		return 0;
	}
	vb_log(VB_LOG_INFO,
	       "rdma_destroy_qp: %u work queue%s of other QPs or SRQs use%s a CQ of the id, which is "
	       "destroyed with the last of them; destroy them first",
	       refs, refs == 1 ? "" : "s", refs == 1 ? "s" : "");
	return EINPROGRESS;
}

/* Only who destroys a CQ waits for its events (rule 36).  With one that is not acknowledged an abandoned CQ
 * stays: the program may still look at it. */
void vb_cq_let_go(struct vb_cq *cq)
{
	struct vb_channel *channel = cq->channel;
	uint32_t comp, async;
	bool acked;

	if (atomic_fetch_sub(&cq->refs, 1) != (VB_CQ_ABANDONED | 1))
		return;
	end(cq);
	count_events(cq, &comp, &async);
	pthread_mutex_lock(&cq->ibv.mutex);
	acked = cq->ibv.comp_events_completed == comp && cq->ibv.async_events_completed == async;
	pthread_mutex_unlock(&cq->ibv.mutex);
	if (!acked)
		return;
	free_cq(cq);
	if (channel)
		ibv_destroy_comp_channel(&channel->ibv);
}

/* The arguments are the poll's own.  Completions that are there are taken, and nothing else is looked at. */
static inline __attribute__((always_inline)) bool is_there(const struct ibv_cq *ibcq, int n,
							   const struct ibv_wc *wc)
{
	(void)n;
	(void)wc;
	return !vb_cq_is_empty((const struct vb_cq *)ibcq);
}

static inline __attribute__((always_inline)) int take(struct ibv_cq *ibcq, int n, struct ibv_wc *wc)
{
	return vb_cq_poll(vb_cq(ibcq), n, wc);
}

static inline __attribute__((always_inline)) struct vb_rxq *what_to_poll(const struct ibv_cq *ibcq, int n,
									 const struct ibv_wc *wc)
{
	(void)n;
	(void)wc;
	return vb_cq_to_poll((const struct vb_cq *)ibcq);
}

VB_VALUE_FOUND(int, vb_poll_cq, is_there, take, what_to_poll, VB_POLL_ALL, (ibcq, n, wc),
	       (struct ibv_cq * ibcq, int n, struct ibv_wc *wc), struct vb_rxq *)
{
	struct vb_cq *cq = vb_cq(ibcq);

	if (vb_cq_is_empty(cq) && vb_likely(found && cq->ctx->adapter)) {
		struct vb_cq_hand hand = {.cq = cq, .at = wc, .end = n > 0 ? wc + n : wc};
		bool some;

		vb_cq_hand = &hand;
		some = vb_hca_poll(cq->ctx->adapter, found);
		vb_cq_hand = NULL;
		if (hand.at != wc) {
			vb_hca_polled_well();
			return (int)(hand.at - wc);
		}
		if (some)
			vb_cq_polled(cq);
	}
	return vb_cq_poll(cq, n, wc);
}

VB_VALUE(int, vb_poll_cq_checked, (ibcq, n, wc), struct ibv_cq *ibcq, int n, struct ibv_wc *wc)
{
	int got = vb_poll_cq(ibcq, n, wc);

	vb_custody_polled(vb_cq(ibcq), wc, got);
	vb_msan_gives(wc, got > 0 ? (size_t)got * sizeof(*wc) : 0);
	return got;
}

VB_CODE(vb_req_notify_cq, (ibcq, solicited_only), struct ibv_cq *ibcq, int solicited_only)
{
	struct vb_cq *cq = vb_cq(ibcq);
	struct vb_adapter *a = cq->ctx->adapter;

	if (vb_context_dead(cq->ctx))
		return vb_refuse_forked("ibv_req_notify_cq");
	if (!cq->channel) { /* nobody is to be notified */
		if (!atomic_exchange_explicit(&cq->deaf_said, true, memory_order_relaxed))
			vb_log(VB_LOG_INFO, "ibv_req_notify_cq: the CQ has no completion channel, so it "
					    "raises no event; pass a channel to ibv_create_cq, or poll");
		return 0;
	}
	/* The adapter counts armed CQs and is told first, so that the disarming that a completion causes
	 * cannot overtake it; and each time, since a program that armed and went on polling may now be about
	 * to wait.  It makes progress. */
	if (a)
		vb_adapter_arm(a); /* pairs with vb_adapter_disarm() */
	if (vb_cq_arm_for(cq, solicited_only) && a)
		vb_adapter_disarm(a); /* it is counted already */
	return 0;
}

/* What a device that coalesces events can be asked: both values, of which 0 means none (mlx5). */
VB_CODE(vb_modify_cq, (ibcq, attr), struct ibv_cq *ibcq, struct ibv_modify_cq_attr *attr)
{
	static const char call[] = "ibv_modify_cq";
	const struct ibv_moderate_cq *m = &attr->moderate;
	struct vb_cq *cq = vb_cq(ibcq);
	uint32_t count = m->cq_period ? m->cq_count : 0;

	if (vb_context_dead(cq->ctx))
		return vb_refuse_forked(call);
	if (!attr->attr_mask)
		return vb_refuse(EINVAL, call, "attr_mask is 0: the call would modify nothing");
	if (attr->attr_mask & ~(uint32_t)IBV_CQ_ATTR_MODERATE)
		return vb_refuse_bits(EOPNOTSUPP, call, "attr_mask", attr->attr_mask, IBV_CQ_ATTR_MODERATE);
	if (m->cq_period > VB_MAX_CQ_PERIOD)
		return vb_refuse(EINVAL, call, "cq_period %u us exceeds the device's limit of %d us",
				 m->cq_period, VB_MAX_CQ_PERIOD);
	if (cq->ctx->adapter)
		vb_cqs_moderate(vb_hca(cq->ctx->adapter), cq, count, m->cq_period * VB_USEC);
	else
		vb_cq_moderate(cq, count, m->cq_period * VB_USEC); /* in a test of CQs alone */
	return 0;
}
