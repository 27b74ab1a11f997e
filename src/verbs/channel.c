/* Completion channels: a descriptor on which the events of several CQs arrive. */
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>

#include "base/log.h"
#include "hca/lost.h"
#include "hca/hca.h"
#include "hca/progress.h"
#include "hca/stuck.h"
#include "verbs/verbs.h"

VB_EXPORT VB_OBJECT(struct ibv_comp_channel *, ibv_create_comp_channel, (context),
		    struct ibv_context *context)
{
	struct vb_context *ctx = vb_context(context);
	struct vb_channel *ch;
	int err = vb_context_check("ibv_create_comp_channel", context);

	if (err) {
		errno = err;
		return NULL;
	}
	ch = calloc(1, sizeof(*ch));
	err = ch ? vb_evq_init(&ch->evq) : ENOMEM;
	if (!err)
		vb_list_init(&ch->cqs);
	if (!err && ctx->adapter) {
		err = vb_evq_guard(&ch->evq, ctx->adapter, "fd of a completion channel");
		if (err)
			vb_evq_fini(&ch->evq);
	}
	if (err) {
		free(ch);
		errno = vb_context_lost(ctx) ? vb_refuse(err, "ibv_create_comp_channel", VB_LOST_TEXT)
			: ch ? vb_refuse(err, "ibv_create_comp_channel", "no descriptor can be created: %s",
					 strerror(err))
			     : vb_refuse_memory("ibv_create_comp_channel");
		return NULL;
	}
	ch->ibv.context = context;
	ch->ibv.fd = ch->evq.fd;
	atomic_fetch_add(&ctx->channels, 1); /* pairs with ibv_destroy_comp_channel */
	vb_live_enter(&ch->ibv, VB_LIVE_CHANNEL);
	return &ch->ibv;
}

VB_EXPORT VB_END(ibv_destroy_comp_channel, "ibv_destroy_comp_channel", VB_LIVE_CHANNEL, channel,
		 struct ibv_comp_channel *channel)
{
	struct vb_channel *ch = (struct vb_channel *)channel;
	struct vb_context *ctx = vb_context(channel->context);
	int cqs;

	if (vb_context_dead(ctx))
		return 0;
	vb_lock_take(&ch->evq.lock);
	cqs = channel->refcnt;
	vb_lock_give(&ch->evq.lock);
	if (cqs) /* rule 37 */
		return vb_refuse_used("ibv_destroy_comp_channel", (uint32_t)cqs, "CQ",
				      "the completion channel", "destroy");
	vb_evq_fini(&ch->evq);
	free(ch);
	atomic_fetch_sub(&ctx->channels, 1);
	return 0;
}

static void expect_none(void *waiting)
{
	vb_sleeper_end(waiting);
	vb_evq_expected();
}

/* Waits until there may be a token; *come: there is, in this thread's hand.  A cancelled thread may go on in
 * handlers, whose events are others'. */
static int wait_for_token(struct vb_channel *ch, struct vb_adapter *a, bool *come)
{
	struct vb_waiting *w = vb_sleeper_begin(ch);
	int failed;

	pthread_cleanup_push(expect_none, w);
	vb_sleepers_notice(a);
	failed = vb_adapter_wait(a, ch->evq.fd, vb_evq_expect(&ch->evq), VB_NEVER);
	pthread_cleanup_pop(0);
	vb_sleeper_end(w);
	*come = vb_evq_expected();
	return failed;
}

/* One token of the channel.  A thread that has to wait makes progress meanwhile, in the engine's place, so it
 * waits in the adapter and not in read(2). */
static int take_token(struct vb_channel *ch)
{
	struct vb_adapter *a = vb_context(ch->ibv.context)->adapter;
	int err = a && vb_evq_idle(&ch->evq) ? EAGAIN : vb_token_try(&ch->evq), flags;

	if (err != EAGAIN)
		return err;
	if (!a)
		return vb_evq_read(&ch->evq);
	flags = fcntl(ch->evq.fd, F_GETFL);
	if (flags < 0)
		return vb_token_gone(&ch->evq);
	if (flags & O_NONBLOCK) {
		vb_hca_poll(a, VB_POLL_ALL);
		err = vb_token_try(&ch->evq);
		return err == EAGAIN && vb_adapter_lost(a) ? EIO : err;
	}
	for (;;) {
		bool come;
		int failed = wait_for_token(ch, a, &come);

		if (come)
			return 0;
		if (failed && failed != EIO)
			return failed == EBADF ? vb_token_gone(&ch->evq) : failed;
		err = vb_token_try(&ch->evq);
		if (err != EAGAIN) /* else another thread was faster */
			return err;
		if (failed)
			return failed;
	}
}

/* The CQ whose event a token stands for; NULL: that event was taken back.  Without a token: the next event
 * that there is. */
static struct vb_cq *next_event(struct vb_channel *ch, bool token)
{
	struct vb_list *n = NULL;
	struct vb_cq *cq = NULL;

	vb_lock_take(&ch->evq.lock);
	if (!token || !vb_evq_spent(&ch->evq))
		n = vb_list_pop(&ch->evq.nodes);
	if (n) {
		cq = vb_list_entry(n, struct vb_cq, node);
		cq->delivered++;
		cq->taker = vb_thread_self();
		if (--cq->undelivered)
			vb_list_append(&ch->evq.nodes, n);
	}
	vb_lock_give(&ch->evq.lock);
	return cq;
}

/* Nothing comes any more: the program has closed the channel's descriptor, or those of the device. */
static int refuse_event(struct vb_channel *ch, int err)
{
	if (vb_context_lost(vb_context(ch->ibv.context)))
		return vb_refuse(EIO, "ibv_get_cq_event", VB_LOST_TEXT);
	return vb_refuse(err, "ibv_get_cq_event",
			 "this process closed descriptor %d of the completion channel", ch->evq.fd);
}

VB_EXPORT VB_CODE(ibv_get_cq_event, (channel, cq, cq_context), struct ibv_comp_channel *channel,
		  struct ibv_cq **cq, void **cq_context)
{
	struct vb_channel *ch = (struct vb_channel *)channel;
	struct vb_cq *c;
	int err;

	if (vb_context_dead(vb_context(channel->context))) {
		errno = vb_refuse_forked("ibv_get_cq_event");
		return -1;
	}
	do {
		err = take_token(ch);
		c = !err || err == EBADF || err == EIO ? next_event(ch, !err) : NULL;
		if (err && !c) {
			errno = err == EIO || err == EBADF ? refuse_event(ch, err)
							   : err; /* EAGAIN and EINTR are no refusals */
			return -1;
		}
	} while (!c);
	*cq = &c->ibv;
	*cq_context = c->ibv.cq_context;
	return 0;
}

VB_EXPORT VB_NOTHING(ibv_ack_cq_events, (cq, nevents), struct ibv_cq *cq, unsigned int nevents)
{
	if (vb_context_dead(vb_context(cq->context)))
		return;
	pthread_mutex_lock(&cq->mutex);
	cq->comp_events_completed += nevents;
	pthread_cond_signal(&cq->cond);
	pthread_mutex_unlock(&cq->mutex);
}
