/* Completion queues and channels.
 *
 * Entries stand in a ring that is reserved at full size and backed as it is used.  The producer is whoever
 * makes progress, the consumer whoever polls; both under the CQ's lock, which also covers arming, so that no
 * notification is lost (rule 31).
 *
 * An extended CQ is the same queue with a place beside it for the one completion that its program reads at a
 * time (struct vb_cq_turn).  What is there has left the queue: nothing of the queue is held while it is read,
 * so pushes, resizing and the destruction of queue pairs go on. */
#ifndef VB_OBJ_CQ_H
#define VB_OBJ_CQ_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include <infiniband/verbs.h>

#include "obj/event.h"
#include "obj/pd.h"

struct vb_cq;
struct vb_qp;
struct vb_srq;

struct vb_channel {
	struct ibv_comp_channel ibv; /* first; ibv.fd is evq.fd; ibv.refcnt counts CQs under evq.lock */
	struct vb_evq evq;
	struct vb_list cqs; /* its CQs, by their on_channel; guarded by evq.lock */
};

enum { VB_STAMP_CLOCK = 1, VB_STAMP_WALL = 2 };
/* In refs: rdma_cm has given the CQ up, and it ends with its last user. */
#define VB_CQ_ABANDONED 0x80000000u
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

/* When a completion came to be: nanoseconds of CLOCK_MONOTONIC and of CLOCK_REALTIME, whichever of them the
 * CQ asks for. */
struct vb_cq_stamp {
	uint64_t clock, wall;
};

/* The consumer's side of an extended CQ. */
struct vb_cq_turn {
	/* Whose turn it is, from ibv_start_poll() to ibv_end_poll(): an address of that thread's own; 0:
	 * nobody's.  A lock that knows its holder, taken before all other locks. */
	_Atomic uintptr_t holder;
	bool alone;	  /* made for one thread, so that nobody waits for `holder`; set once */
	struct ibv_wc wc; /* what the program reads; the holder's, as is the rest */
	struct vb_cq_stamp stamp;
};

/* An armed CQ may wait with its event, so that it tells of several completions: until there are `count` of
 * them, or `period` is over since the first.  Guarded by the CQ's lock. */
struct vb_cq_moderation {
	uint32_t count;	 /* 0: each event comes at once */
	uint32_t held;	 /* completions that the next event is to tell of */
	uint64_t period; /* ns */
	_Atomic uint64_t
	    until; /* when the event is due, VB_NEVER: none is held back; read without the lock */
};

/* What a CQ asks of those above, who know the time and all queue pairs; given at its creation, or NULL. */
struct vb_cq_ops {
	/* An event is held back until then.  Under the locks of the CQ's producer, but not under its own. */
	void (*held)(struct vb_cq *cq, uint64_t until);
	/* The CQ is in error: all queue pairs that complete to it are to go there.  Under the locks of the
	 * producer, a queue pair's among them, so the others' turn comes later. */
	void (*overran)(struct vb_cq *cq);
};

struct vb_cq {
	union {
		struct ibv_cq ibv;
		struct ibv_cq_ex ex;
	}; /* first */
	struct vb_context *ctx;
	struct vb_channel *channel; /* NULL: none */
	struct vb_pd *parent;	    /* whose callbacks give the ring, NULL: nobody's; set once */
	const struct vb_cq_ops *ops;
	uint8_t stamping;	/* VB_STAMP_*: the times that completions are to have; set once */
	bool lossy;		/* where it is full the oldest entry makes room; set once */
	_Atomic bool deaf_said; /* that it was armed without a channel */
	/* Guarded by lock; resizing replaces them. */
	struct vb_cqe *ring; /* mem.at */
	struct vb_queue_mem mem;
	struct vb_cq_stamp *stamps; /* of the entries in the ring; NULL: no times are wanted */
	uint32_t mask;		    /* ring entries - 1, a power of two >= cqe */
	uint32_t cqe;		    /* capacity that was asked for */
	uint32_t quick; /* so many entries are pushed with no more ado: cqe, or 0 where each is to have its
			   times */
	struct vb_cq_moderation moderation;
	struct vb_list on_hca; /* of those that hold events back; guarded above, as are the next three */
	struct vb_list on_device;
	uint64_t
	    lies_since;	  /* when the oldest entry was first seen there, at a look at timers; 0: none was */
	uint32_t lies_at; /* its index: it lies there still where that is `tail` */
	_Atomic uint8_t armed; /* enum vb_cq_arm; written under lock, read without by a handing push */
	_Atomic bool overrun;  /* written under lock; a CQ in error stays so */
	_Atomic uint32_t refs; /* QPs (twice if send and receive), SRQs, and VB_CQ_ABANDONED */
	/* completion events; guarded by channel->evq.lock */
	struct vb_list node; /* in channel->evq.nodes while events are undelivered */
	struct vb_list on_channel;
	uint32_t undelivered;
	uint32_t delivered;	  /* handed out by ibv_get_cq_event; ibv.comp_events_completed acks them */
	uint64_t taker;		  /* vb_thread_self() of the thread that got the last event */
	uint32_t async_delivered; /* guarded by the context's evq lock */
	uint32_t arms;		  /* how often it was armed; for tools.  Guarded by lock */
	struct vb_async_node ev_overrun;
	struct vb_cq_turn turn __attribute__((aligned(VB_LINE)));
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

/* Whether a poll fails that finds the queue empty. */
static inline bool vb_cq_is_in_error(const struct vb_cq *cq)
{
	return atomic_load_explicit(&cq->overrun, memory_order_relaxed);
}

/* The queue itself; what its creation decides (ctx, channel, parent, ops, stamping, lossy, turn.alone) is set
 * before.  0, or errno, which has been said.  Pairs with vb_cq_fini(). */
int vb_cq_init(struct vb_cq *cq, uint32_t cqe);
/* Nobody pushes or polls any more: takes undelivered events back, ends an arming.  delivered and
 * async_delivered have their final values then. */
void vb_cq_fini(struct vb_cq *cq);

/* Gives the queue another capacity and keeps its entries.  0; EINVAL with *held set: so many entries do not
 * fit; or with *held 0 what kept it from getting the memory, which has been said. */
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

/* Takes up to n entries; frees their queue slots.  Returns how many, or -1 with errno EIO if the CQ is in
 * error and empty. */
int vb_cq_poll(struct vb_cq *cq, int n, struct ibv_wc *wc);

/* Takes the oldest entry to cq->turn, as vb_cq_poll() does to an array; in a turn.  0, ENOENT where
 * there is none, or EIO where the CQ is in error and empty. */
int vb_cq_next(struct vb_cq *cq);
/* The same where one is there, the lock is free, and the ring does not begin anew: so it calls nothing.
 * false: vb_cq_next() is to see to it. */
bool vb_cq_next_at_once(struct vb_cq *cq);

/* From now on events may be held back, by these values (count 0: not at all).  What was held back until now
 * is told at once. */
void vb_cq_moderate(struct vb_cq *cq, uint32_t count, uint64_t period);
/* Tells of what is held back, if the time has come for that.  Returns when it will have, VB_NEVER: nothing is
 * held back. */
uint64_t vb_cq_release(struct vb_cq *cq, uint64_t now);

/* A QP is being destroyed: its entries will not be polled any more, their slots are given back. */
void vb_cq_forget(struct vb_cq *cq, struct vb_qp *qp);
/* The same for an SRQ of XRC. */
void vb_cq_forget_srq(struct vb_cq *cq, struct vb_srq *srq);

#endif
