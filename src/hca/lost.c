/* What becomes of a device whose descriptors the program has closed (host/own.c): its queue pairs go to the
 * error state with their work flushed, and each context hears IBV_EVENT_DEVICE_FATAL.  The events are in
 * their queues though their descriptors may be somebody else's by now: ibv_get_async_event() and
 * ibv_get_cq_event() hand them out, and fail when there are no more.  What the device is not needed for,
 * polling and destroying say, goes on. */
#include <errno.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "obj/context.h"
#include "transport/transport.h"
#include "hca/lost.h"
#include "hca/path.h"
#include "hca/send.h"

enum { CLOSING_MS = 20 };

struct vb_facts vb_end_facts(enum vb_peer_end how, uint32_t pid)
{
	static const struct {
		enum vb_reason reason;
		enum vb_gone gone;
	} ends[] = {
	    [VB_END_DIED] = {VB_R_PEER_DIED, VB_GONE_ENDED},
	    [VB_END_UNCLEAR] = {VB_R_PEER_DIED, VB_GONE_UNCLEAR},
	    [VB_END_CLOSED] = {VB_R_PEER_CLOSED, VB_GONE_CLOSED},
	    [VB_END_REPLACED] = {VB_R_PEER_CLOSED, VB_GONE_EXEC},
	    [VB_END_BROKEN] = {VB_R_PEER_CLOSED, VB_GONE_BROKEN},
	    [VB_END_RUBBISH] = {VB_R_PEER_CLOSED, VB_GONE_RUBBISH},
	};

	if (how == VB_END_LOST)
		return (struct vb_facts){.reason = VB_R_DEVICE_LOST};
	return (struct vb_facts){.reason = ends[how].reason, .gone = {.pid = pid, .how = ends[how].gone}};
}

/* The program may be in the middle of closing everything, of which this descriptor was one. */
int vb_token_gone(struct vb_evq *q)
{
	static const struct timespec ms = {.tv_nsec = 1000000};

	for (int i = 0; i < CLOSING_MS && q->owner && vb_adapter_whole(q->owner); i++)
		syscall(SYS_clock_nanosleep, CLOCK_MONOTONIC, 0, &ms, NULL); /* no cancellation point */
	return q->owner && vb_adapter_lost(q->owner) ? vb_adapter_await(q->owner, -1) : EBADF;
}

int vb_token_try(struct vb_evq *q)
{
	int err = vb_evq_try(q);

	return err == EBADF ? vb_token_gone(q) : err;
}

static void lose_qp(struct vb_qp *qp)
{
	const struct vb_facts f = {.reason = VB_R_DEVICE_LOST, .qpn = qp->qpn};

	vb_lock_take(&qp->lock);
	if (qp->state != IBV_QPS_RESET && qp->state != IBV_QPS_ERR && !qp->forgotten) {
		qp->transport->error(qp, &f);
		vb_path_close(qp);
	}
	vb_hca_give(qp);
}

void vb_device_lost(struct vb_adapter *a)
{
	struct vb_hca *h = vb_hca(a);

	vb_lock_take(&h->contexts_lock);
	vb_list_each (n, &h->contexts) {
		struct vb_context *c = vb_list_entry(n, struct vb_context, on_hca);

		vb_lock_take(&c->lock);
		vb_list_each (q, &c->qps)
			lose_qp(vb_list_entry(q, struct vb_qp, on_ctx));
		vb_lock_give(&c->lock);
		vb_async_post(c, &c->ev_fatal);
	}
	vb_lock_give(&h->contexts_lock);
}
