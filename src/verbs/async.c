/* Asynchronous events: fetching, acknowledging, and what destruction waits for (rule 36). */
#include <stdio.h>
#include <errno.h>
#include <fcntl.h>

#include "base/clock.h"
#include "base/waiting.h"
#include "check/check.h"
#include "iba/waits.h"
#include "base/log.h"
#include "hca/lost.h"
#include "verbs/verbs.h"

enum element { NONE, OF_QP, OF_CQ, OF_SRQ, OF_WQ };

/* Of newer headers.  No port here changes its speed, but programs print the names of all events. */
enum { DEVICE_SPEED_CHANGE = IBV_EVENT_WQ_FATAL + 1 };

static const struct {
	const char *text;
	enum element element;
} events[] = {
    [IBV_EVENT_CQ_ERR] = {"CQ error", OF_CQ},
    [IBV_EVENT_QP_FATAL] = {"local work queue catastrophic error", OF_QP},
    [IBV_EVENT_QP_REQ_ERR] = {"invalid request local work queue error", OF_QP},
    [IBV_EVENT_QP_ACCESS_ERR] = {"local access violation work queue error", OF_QP},
    [IBV_EVENT_COMM_EST] = {"communication established", OF_QP},
    [IBV_EVENT_SQ_DRAINED] = {"send queue drained", OF_QP},
    [IBV_EVENT_PATH_MIG] = {"path migrated", OF_QP},
    [IBV_EVENT_PATH_MIG_ERR] = {"path migration request error", OF_QP},
    [IBV_EVENT_DEVICE_FATAL] = {"local catastrophic error", NONE},
    [IBV_EVENT_PORT_ACTIVE] = {"port active", NONE},
    [IBV_EVENT_PORT_ERR] = {"port error", NONE},
    [IBV_EVENT_LID_CHANGE] = {"LID change", NONE},
    [IBV_EVENT_PKEY_CHANGE] = {"P_Key change", NONE},
    [IBV_EVENT_SM_CHANGE] = {"SM change", NONE},
    [IBV_EVENT_SRQ_ERR] = {"SRQ catastrophic error", OF_SRQ},
    [IBV_EVENT_SRQ_LIMIT_REACHED] = {"SRQ limit reached", OF_SRQ},
    [IBV_EVENT_QP_LAST_WQE_REACHED] = {"last WQE reached", OF_QP},
    [IBV_EVENT_CLIENT_REREGISTER] = {"client reregistration", NONE},
    [IBV_EVENT_GID_CHANGE] = {"GID table change", NONE},
    [IBV_EVENT_WQ_FATAL] = {"WQ catastrophic error", OF_WQ},
    [DEVICE_SPEED_CHANGE] = {"device speed change", NONE},
};

static enum element element_of(const struct ibv_async_event *ev)
{
	unsigned type = ev->event_type;

	return type < sizeof(events) / sizeof(events[0]) ? events[type].element : NONE;
}

VB_EXPORT const char *ibv_event_type_str(enum ibv_event_type type)
{
	return (unsigned)type < sizeof(events) / sizeof(events[0]) ? events[type].text : "unknown";
}

static void count_delivered(struct vb_context *ctx, const struct ibv_async_event *ev)
{
	vb_lock_assert_held(&ctx->async.lock);
	switch (element_of(ev)) {
	case OF_QP:
		vb_qp(ev->element.qp)->delivered++;
		break;
	case OF_CQ:
		vb_cq(ev->element.cq)->async_delivered++;
		break;
	case OF_SRQ:
		vb_srq(ev->element.srq)->delivered++;
		break;
	case OF_WQ: /* there are no WQs */
	case NONE:
		break;
	}
}

/* One token of the queue.  Not by a read() that blocks: nobody could end it once the program has closed the
 * descriptor. */
static int take_token(struct vb_context *ctx)
{
	int err = vb_token_try(&ctx->async), flags;

	if (err != EAGAIN)
		return err;
	if (!ctx->adapter)
		return vb_evq_read(&ctx->async);
	flags = fcntl(ctx->async.fd, F_GETFL);
	if (flags < 0)
		return vb_token_gone(&ctx->async);
	if (flags & O_NONBLOCK)
		return vb_context_lost(ctx) ? EIO : EAGAIN;
	for (;;) {
		struct vb_waiting *w = vb_waiting_begin(VB_WAITING_ASYNC_EVENT, ctx, 0);
		int failed;

		pthread_cleanup_push(vb_waiting_end, w);
		failed = vb_adapter_await(ctx->adapter, ctx->async.fd);
		pthread_cleanup_pop(1);

		if (failed && failed != EIO)
			return failed == EBADF ? vb_token_gone(&ctx->async) : failed;
		err = vb_token_try(&ctx->async);
		if (err != EAGAIN) /* else another thread was faster */
			return err;
		if (failed)
			return failed;
	}
}

/* The next event of the queue.  Without a token, since the descriptor is not ours any more or there is none:
 * what there is. */
static bool next_event(struct vb_context *ctx, struct ibv_async_event *event, bool token)
{
	struct vb_list *n = NULL;

	vb_lock_take(&ctx->async.lock);
	if (!token || !vb_evq_spent(&ctx->async))
		n = vb_list_pop(&ctx->async.nodes);
	if (n) {
		*event = vb_list_entry(n, struct vb_async_node, link)->ev;
		vb_check_handed();
		count_delivered(ctx, event);
	}
	vb_lock_give(&ctx->async.lock);
	return n;
}

static int refuse_event(struct vb_context *ctx, int err)
{
	if (vb_context_lost(ctx))
		return vb_refuse(EIO, "ibv_get_async_event", VB_LOST_TEXT);
	return vb_refuse(err, "ibv_get_async_event", "this process closed descriptor %d (async_fd)",
			 ctx->async.fd);
}

VB_EXPORT VB_CODE(ibv_get_async_event, (context, event), struct ibv_context *context,
		  struct ibv_async_event *event)
{
	struct vb_context *ctx = vb_context(context);
	bool had;
	int err;

	errno = vb_context_check("ibv_get_async_event", context);
	if (errno)
		return -1;
	do {
		err = take_token(ctx);
		had = (!err || err == EBADF || err == EIO) && next_event(ctx, event, !err);
		if (err && !had) {
			errno = err == EIO || err == EBADF ? refuse_event(ctx, err)
							   : err; /* EAGAIN and EINTR are no refusals */
			return -1;
		}
	} while (!had);
	return 0;
}

static void acknowledge(pthread_mutex_t *mutex, pthread_cond_t *cond, uint32_t *completed)
{
	pthread_mutex_lock(mutex);
	(*completed)++;
	pthread_cond_signal(cond);
	pthread_mutex_unlock(mutex);
}

/* The element's own context tells a forked child that it must not touch it; an event of the port has none. */
VB_EXPORT VB_NOTHING(ibv_ack_async_event, (event), struct ibv_async_event *event)
{
	struct ibv_qp *qp = event->element.qp;
	struct ibv_cq *cq = event->element.cq;
	struct ibv_srq *srq = event->element.srq;

	switch (element_of(event)) {
	case OF_QP:
		if (!vb_context_dead(vb_context(qp->context)))
			acknowledge(&qp->mutex, &qp->cond, &qp->events_completed);
		break;
	case OF_CQ:
		if (!vb_context_dead(vb_context(cq->context)))
			acknowledge(&cq->mutex, &cq->cond, &cq->async_events_completed);
		break;
	case OF_SRQ:
		if (!vb_context_dead(vb_context(srq->context)))
			acknowledge(&srq->mutex, &srq->cond, &srq->events_completed);
		break;
	case OF_WQ:
	case NONE:
		break;
	}
}

/* The lock of the object's public mutex is given meanwhile. */
static void say_unacked(enum vb_waiting_for what, uint32_t n, uint64_t waited)
{
	static const char *const of[VB_WAITING_KINDS] = {
	    [VB_WAITING_CQ_ACKS] =
		"ibv_destroy_cq() has waited for %.1f s: %u completion event%s of the CQ %s not "
		"acknowledged",
	    [VB_WAITING_CQ_ERR_ACKS] =
		"ibv_destroy_cq() has waited for %.1f s: %u asynchronous event%s of the CQ %s "
		"not acknowledged",
	    [VB_WAITING_QP_ACKS] =
		"ibv_destroy_qp() has waited for %.1f s: %u asynchronous event%s of the queue pair "
		"%s not acknowledged",
	    [VB_WAITING_SRQ_ACKS] =
		"ibv_destroy_srq() has waited for %.1f s: %u asynchronous event%s of the SRQ %s "
		"not acknowledged",
	};
	char text[200];

	snprintf(text, sizeof(text), of[what], (double)waited / 1e9, n, n == 1 ? "" : "s",
		 n == 1 ? "is" : "are");
	vb_wait_say(what == VB_WAITING_CQ_ACKS ? VB_W_CQ_ACKS : VB_W_ASYNC_ACKS, "%s", text);
	vb_log_tell();
}

void vb_wait_acked(pthread_mutex_t *mutex, pthread_cond_t *cond, const uint32_t *completed,
		   uint32_t delivered, enum vb_waiting_for what, const void *object)
{
	uint64_t warn = vb_waiting_warn(VB_NEVER);
	struct vb_waiting *w = NULL;
	struct timespec until;

	vb_log_tell(); /* the program may take its time */
	pthread_mutex_lock(mutex);
	if (*completed != delivered)
		w = vb_waiting_begin(what, object, delivered - *completed);
	if (w && warn != VB_NEVER) {
		clock_gettime(CLOCK_REALTIME, &until);
		until.tv_sec += (time_t)((warn + (uint64_t)until.tv_nsec) / VB_SEC);
		until.tv_nsec = (long)((warn + (uint64_t)until.tv_nsec) % VB_SEC);
		while (*completed != delivered && pthread_cond_timedwait(cond, mutex, &until) != ETIMEDOUT)
			;
		if (*completed != delivered) {
			uint32_t n = delivered - *completed;

			pthread_mutex_unlock(mutex);
			say_unacked(what, n, vb_now() - w->since);
			pthread_mutex_lock(mutex);
		}
	}
	while (*completed != delivered)
		pthread_cond_wait(cond, mutex);
	pthread_mutex_unlock(mutex);
	vb_waiting_end(w);
}

void vb_qp_await_events(struct vb_qp *qp)
{
	struct vb_context *ctx = qp->ctx;
	uint32_t delivered;

	for (unsigned i = 0; i < VB_QP_EVENTS; i++)
		vb_async_cancel(ctx, vb_qp_event_at(qp, i));
	vb_lock_take(&ctx->async.lock);
	delivered = qp->delivered;
	vb_lock_give(&ctx->async.lock);
	vb_wait_acked(&qp->ibv.mutex, &qp->ibv.cond, &qp->ibv.events_completed, delivered, VB_WAITING_QP_ACKS,
		      qp);
}
