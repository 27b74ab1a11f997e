#include "hca/send.h"

#include "hca/datagrams.h"
#include "hca/direct.h"
#include "hca/hca.h"
#include "hca/owed.h"
#include "hca/path.h"
#include "hca/timed.h"
#include "mem/peer_mem.h"
#include "transport/transport.h"

enum {
	POST_BYTES = 64 << 10, /* bytes that a post places directly by itself */
	FLUSH_BLOCKED = 64,    /* QPs without room after which a flush ends */
};

/* true: something waits for room in the wire, for another call, or for the far end's queue pair.  place:
 * bytes that may be placed directly. */
static inline __attribute__((always_inline)) bool output(struct vb_path *p, uint32_t place)
{
	struct vb_qp *qp = p->qp;
	bool blocked;

	vb_lock_assert_held(&qp->lock);
	if (vb_unlikely(!p->out))
		vb_path_attach(p);
	blocked = qp->transport->output(p, place);
	if (vb_unlikely(p->mem && atomic_load_explicit(&p->mem->asks, memory_order_relaxed)))
		vb_direct_ask(p);
	if (vb_unlikely(vb_qp_timed(qp) && !qp->req.timing))
		vb_hca_keep_time(qp);
	/* An answer that nobody is there to take waits for no room. */
	return p->out ? blocked : qp->req.next != qp->req.seen;
}

bool vb_hca_watched(struct vb_adapter *a)
{
	return atomic_load_explicit(vb_adapter_presence(a)->awake, memory_order_relaxed) != VB_ASLEEP;
}

/* The peer does not say when there is room, and whoever makes progress now may be a
 * waiter that blocks next: the engine tries again. */
void vb_hca_owe_blocked(struct vb_path *p)
{
	struct vb_adapter *a = vb_qp_adapter(p->qp);

	vb_lock_assert_held(&p->qp->lock);
	vb_owe(p);
	if (p->rxq && p->out)
		atomic_store(&p->rxq->waits, true);
	if (!p->out)
		vb_direct_await(p->qp); /* before the engine's try */
	/* What is to be placed directly is a poller's, while there is one: an engine that loses its CPU to
	 * the poller in the middle of a copy would hold it up.  When nobody polls any more the engine drains:
	 * at its look at the pollers, up to 20 ms later.
	 */
	if (p->qp->req.placing && !p->qp->req.blocked && p->rxq && vb_hca_watched(a)) {
		atomic_store_explicit(&p->rxq->placing, true, memory_order_relaxed);
		return;
	}
	vb_adapter_resume(a);
}

/* By the path that the queue pair has. */
static inline __attribute__((always_inline)) void send_by_path(struct vb_qp *qp)
{
	/* without contact: resumed when the peer comes up */
	if (vb_unlikely(output(&qp->path, POST_BYTES))) {
		vb_hca_owe_blocked(&qp->path);
		if (!qp->path.out)
			vb_path_contact(&qp->path);
	} else if (vb_unlikely(qp->path.nobody)) {
		vb_path_contact(&qp->path); /* what is posted later may find somebody */
	}
}

/* It has none, or no way out yet. */
static __attribute__((noinline)) void send_elsewhere(struct vb_qp *qp)
{
	if (qp->dests)
		vb_datagrams_send(qp);
	else
		send_by_path(qp);
}

/* Every post comes by here, by way of the functions below.  In the error states what was posted is flushed
 * (vb_transport.output). */
static inline __attribute__((always_inline)) void send(struct vb_qp *qp)
{
	const uint8_t *out = (const uint8_t *)qp->path.out;

	if (vb_unlikely(!out)) {
		send_elsewhere(qp);
		return;
	}
	__builtin_prefetch(out + VB_LINE); /* behind what is in iba/out.h: the wire's own */
	send_by_path(qp);
}

void vb_hca_send(struct vb_qp *qp)
{
	send(qp);
}

inline __attribute__((always_inline)) void vb_hca_posted(struct vb_qp *qp)
{
	if (vb_unlikely(!vb_lock_claim(&qp->lock)))
		return; /* vb_hca_give() */
	send(qp);
	vb_lock_give(&qp->lock);
}

void vb_hca_send_on(struct vb_qp *qp)
{
	output(&qp->path, 0);
}

void vb_hca_flush(struct vb_rxq *r)
{
	struct vb_path *p = r->acks;
	const struct vb_path *first = NULL;
	unsigned blocked = 0;
	bool placing = false;

	vb_lock_assert_held(&r->rx);
	r->unflushed = 0;
	r->acks = NULL;
	atomic_store(&r->waits, false); /* whoever waits for room says so anew */
	for (p = p ? p : vb_owed_pop(r); p; p = vb_owed_pop(r)) {
		struct vb_qp *qp = p->qp;

		vb_lock_take(&qp->lock);
		if (!qp->forgotten && p->rxq == r && output(p, VB_MEM_CHUNK)) {
			vb_hca_owe_blocked(p); /* to the end, until the next room */
			placing |= qp->req.placing;
			blocked++;
			first = first ? first : p;
		}
		vb_hca_give(qp);
		/* Requests may be stopped where an ACK finds room: every path has its turn, once.  The next
		 * time another one is first, or this one would take all room there is for as long as it has
		 * anything. */
		if (first && vb_owed_next(r) == first) {
			vb_owed_turn(r);
			break;
		}
		if (blocked > FLUSH_BLOCKED) {
			atomic_store(&r->waits, true); /* somebody behind them may */
			break;
		}
	}
	atomic_store_explicit(&r->placing, placing, memory_order_relaxed);
}
