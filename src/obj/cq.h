/* Completion queues and channels.
 *
 * Entries stand in a ring that is reserved at full size and backed as it is used.  The producer is whoever
 * makes progress, the consumer whoever polls; both under the CQ's lock, which also covers arming, so that no
 * notification is lost (rule 31). */
#ifndef VB_OBJ_CQ_H
#define VB_OBJ_CQ_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include <infiniband/verbs.h>

#include "obj/event.h"

struct vb_qp;
struct vb_srq;

struct vb_channel {
	struct ibv_comp_channel ibv; /* first; ibv.fd is evq.fd; ibv.refcnt counts CQs under evq.lock */
	struct vb_evq evq;
};

enum vb_cq_arm { VB_ARM_NONE, VB_ARM_SOLICITED, VB_ARM_NEXT };

/* What a completion gives back when it is polled (rule 39 and mlx5: slots are free when their CQE is polled).
 */
struct vb_cqe {
	struct ibv_wc wc;
	struct vb_qp *qp;   /* whose WQE this was; never dangling, see vb_cq_forget() */
	struct vb_srq *srq; /* receive WQE came from this SRQ, else NULL */
	uint32_t sq_free;   /* send: the SQ index up to which slots become free */
	bool is_send;
};

struct vb_cq {
	union {
		struct ibv_cq ibv;
		struct ibv_cq_ex ex;
	}; /* first */
	struct vb_context *ctx;
	struct vb_channel *channel; /* NULL: none */
	struct vb_cqe *ring;	    /* guarded by lock (resize replaces it) */
	uint32_t mask;		    /* ring entries - 1, a power of two >= cqe */
	uint32_t cqe;		    /* capacity that was asked for */
	size_t ring_bytes;
	_Atomic uint8_t armed; /* enum vb_cq_arm; written under lock, read without by a handing push */
	_Atomic bool overrun;  /* written under lock; a CQ in error stays so */
	_Atomic uint32_t refs; /* QPs (twice if send and receive) and SRQs */
	/* completion events; guarded by channel->evq.lock */
	struct vb_list node; /* in channel->evq.nodes while events are undelivered */
	uint32_t undelivered;
	uint32_t delivered;	  /* handed out by ibv_get_cq_event; ibv.comp_events_completed acks them */
	uint32_t async_delivered; /* guarded by the context's evq lock */
	struct vb_async_node ev_overrun;
	struct vb_lock lock __attribute__((aligned(VB_LINE)));
	/* Written under lock, read without it by poll's fast test. */
	_Atomic uint32_t head; /* next to write */
	_Atomic uint32_t tail; /* next to read */
};

static inline struct vb_cq *vb_cq(struct ibv_cq *c)
{
	return (struct vb_cq *)c;
}

static inline bool vb_cq_is_empty(const struct vb_cq *cq)
{
	return atomic_load_explicit(&cq->head, memory_order_relaxed) ==
	       atomic_load_explicit(&cq->tail, memory_order_relaxed);
}

/* Whether a poll of the queue itself finds neither a completion nor a reason to fail. */
static inline bool vb_cq_rests(const struct vb_cq *cq)
{
	return vb_cq_is_empty(cq) && !atomic_load_explicit(&cq->overrun, memory_order_relaxed);
}

/* The queue itself; ctx and channel are set before.  0 or errno.  Pairs with vb_cq_fini(). */
int vb_cq_init(struct vb_cq *cq, uint32_t cqe);
/* Nobody pushes or polls any more: takes undelivered events back, ends an arming.  delivered and
 * async_delivered have their final values then. */
void vb_cq_fini(struct vb_cq *cq);

/* Gives the queue another capacity and keeps its entries.  0, ENOMEM, or EINVAL with *held set: that many
 * entries do not fit. */
int vb_cq_resize(struct vb_cq *cq, uint32_t cqe, uint32_t *held);

/* Arms for the next (solicited) completion; entries that are there already do not count.  Returns whether it
 * was armed.  It has a channel. */
bool vb_cq_arm_for(struct vb_cq *cq, bool solicited_only);

/* A poller that found its CQ empty and makes progress: completions of that CQ go straight into its array, as
 * long as the ring is empty, so that none passes another (one QP's completions are made under its lock). */
struct vb_cq_hand {
	struct vb_cq *cq;
	struct ibv_wc *at, *end; /* the next entry to fill, and behind the last */
};
/* This thread's, around its progress; else NULL. */
extern __thread struct vb_cq_hand *vb_cq_hand;

/* Where a completion of cq goes straight to the program: who fills it in gives its request's slot back
 * (vb_sq_give(), vb_rq_give(), vb_srq_give()).  NULL: it goes to vb_cq_push(). */
static inline struct ibv_wc *vb_cq_handed(const struct vb_cq *cq)
{
	struct vb_cq_hand *h = vb_cq_hand;

	/* The acquire pairs with the poll that emptied the ring: it has given the slots before ours. */
	if (!h || h->cq != cq || h->at == h->end ||
	    atomic_load_explicit(&cq->armed, memory_order_relaxed) != VB_ARM_NONE ||
	    atomic_load_explicit(&cq->overrun, memory_order_relaxed) ||
	    atomic_load_explicit(&cq->tail, memory_order_acquire) !=
		atomic_load_explicit(&cq->head, memory_order_relaxed))
		return NULL;
	return h->at++;
}

/* Adds one completion and fires the event if armed for it.  `solicited`: this entry satisfies a
 * solicited-only arming (errors always do, rule 32).  Returns false when the CQ is full: the entry is lost,
 * the CQ is in error and its event is posted; the caller moves the QP to the error state. */
bool vb_cq_push(struct vb_cq *cq, const struct vb_cqe *e, bool solicited);

/* Takes up to n entries; frees their queue slots. Returns how many, or -1 if the CQ is in error and empty. */
int vb_cq_poll(struct vb_cq *cq, int n, struct ibv_wc *wc);

/* A QP is being destroyed: its entries will not be polled any more, their slots are given back. */
void vb_cq_forget(struct vb_cq *cq, struct vb_qp *qp);
/* The same for an SRQ of XRC. */
void vb_cq_forget_srq(struct vb_cq *cq, struct vb_srq *srq);

#endif
