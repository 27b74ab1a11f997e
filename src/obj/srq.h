/* Shared receive queues, and the receive ring that they and QPs have. */
#ifndef VB_OBJ_SRQ_H
#define VB_OBJ_SRQ_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include <infiniband/verbs.h>

#include "base/list.h"
#include "obj/event.h"
#include "obj/pd.h"

struct vb_check_queue;
struct vb_cq;
struct vb_xrcd;

/* A receive WQE as posted. */
struct vb_rwqe {
	uint64_t wr_id;
	uint32_t num_sge;
	uint32_t reserved;
	struct ibv_sge sge[]; /* max_sge of the queue */
};

/* Field by field: a length that is not known is a call of memcpy(), longer than a list of one piece. */
static inline void vb_rwqe_copy(struct vb_rwqe *to, const struct vb_rwqe *w)
{
	to->wr_id = w->wr_id;
	to->num_sge = w->num_sge;
	for (uint32_t i = 0; i < w->num_sge; i++)
		to->sge[i] = w->sge[i];
}

/* For how many bytes it is; more than messages have counts as UINT32_MAX. */
static inline uint32_t vb_rwqe_room(const struct vb_rwqe *w)
{
	uint64_t room = 0;

	for (uint32_t i = 0; i < w->num_sge; i++)
		room += w->sge[i].length;
	return room < UINT32_MAX ? (uint32_t)room : UINT32_MAX;
}

struct vb_rq {
	uint8_t *ring; /* WQEs of `stride` bytes, mask+1 of them; backed as used */
	uint32_t stride;
	uint32_t mask;
	_Atomic uint32_t head;	 /* next to post; guarded by the owner's lock for posting */
	uint32_t tail;		 /* next to consume; guarded by the owner's lock for consuming */
	_Atomic uint32_t polled; /* posted requests whose completions were polled (or lost); runs freely
				    like head.  A QP's: its receive CQ's poller writes, under that CQ's
				    lock.  An SRQ's: pollers of several CQs add */
	uint32_t max_wr;	 /* as granted */
	uint32_t max_sge;
	struct vb_queue_mem mem;
};

/* pd: as for vb_queue_alloc().  0 or errno. */
int vb_rq_init(struct vb_rq *rq, struct vb_pd *pd, enum vb_queue_kind kind, uint32_t max_wr,
	       uint32_t max_sge);
void vb_rq_fini(struct vb_rq *rq);

static inline struct vb_rwqe *vb_rq_at(const struct vb_rq *rq, uint32_t index)
{
	return (struct vb_rwqe *)(rq->ring + (size_t)(index & rq->mask) * rq->stride);
}

/* Requests that take room: posted and not yet polled. */
static inline uint32_t vb_rq_held(const struct vb_rq *rq)
{
	/* the acquire pairs with the poll that gave the slots back */
	return atomic_load_explicit(&rq->head, memory_order_relaxed) -
	       atomic_load_explicit(&rq->polled, memory_order_acquire);
}

/* The completion of one more request was polled: its slot is free.  For a queue of a QP, under its receive
 * CQ's lock, or under the QP's while that CQ is empty. */
static inline void vb_rq_give(struct vb_rq *rq)
{
	atomic_store_explicit(&rq->polled, atomic_load_explicit(&rq->polled, memory_order_relaxed) + 1,
			      memory_order_release); /* pairs with vb_rq_held() */
}

static inline bool vb_rq_empty(const struct vb_rq *rq)
{
	return atomic_load_explicit(&rq->head, memory_order_acquire) ==
	       rq->tail; /* pairs with vb_rq_post() */
}

/* Messages whose completions were not polled.  Under the owner's lock for consuming. */
static inline uint32_t vb_rq_arrived(const struct vb_rq *rq)
{
	return rq->tail - atomic_load_explicit(&rq->polled, memory_order_relaxed);
}

/* Says why vb_rq_post() did not post wr, and returns its errno.  arrived: vb_rq_arrived() */
__attribute__((cold)) int vb_rq_refuse(struct vb_rq *rq, const struct ibv_recv_wr *wr, uint32_t arrived,
				       const char *call);

/* Fills a list in behind the head, and returns the new head.  *all is false: not all of it, and *bad is the
 * first request that was not posted (rule 11).  Under the owner's lock for posting. */
static inline __attribute__((always_inline)) uint32_t vb_rq_fill(struct vb_rq *rq, struct ibv_recv_wr *wr,
								 struct ibv_recv_wr **bad, bool *all)
{
	uint32_t head = atomic_load_explicit(&rq->head, memory_order_relaxed);
	uint32_t end = head + rq->max_wr - vb_rq_held(rq); /* behind the last free slot */

	for (; wr; wr = wr->next, head++) {
		struct vb_rwqe *w = vb_rq_at(rq, head);
		uint32_t n = (uint32_t)wr->num_sge; /* a negative one is a large one here */

		if (vb_unlikely(n > rq->max_sge || head == end)) {
			*bad = wr; /* rule 11 */
			break;
		}
		w->wr_id = wr->wr_id;
		w->num_sge = n;
		for (uint32_t i = 0; i < n; i++)
			w->sge[i] = wr->sg_list[i];
	}
	*all = !wr;
	return head;
}

static inline void vb_rq_publish(struct vb_rq *rq, uint32_t head)
{
	atomic_store_explicit(&rq->head, head, memory_order_release); /* pairs with vb_rq_empty() */
}

/* Both: whether all of the list is posted. */
static inline bool vb_rq_post(struct vb_rq *rq, struct ibv_recv_wr *wr, struct ibv_recv_wr **bad)
{
	bool all;

	vb_rq_publish(rq, vb_rq_fill(rq, wr, bad, &all));
	return all;
}

/* In refs: the program has given the SRQ up, and it ends with the last QP. */
#define VB_SRQ_ABANDONED 0x80000000u

struct vb_srq {
	struct ibv_srq ibv; /* first */
	struct vb_context *ctx;
	struct vb_pd *pd;
	uint32_t number;	/* SRQ number: adapter number << 12 | index */
	struct vb_xrcd *xrcd;	/* of type XRC; NULL: basic.  Set once, as what follows */
	struct vb_cq *cq;	/* of type XRC: where its completions go */
	struct vb_list on_srqs; /* of type XRC: among the adapter's; obj/srqs.h */
	_Atomic uint32_t refs;	/* QPs, and VB_SRQ_ABANDONED */
	uint32_t delivered;	/* async events handed out; guarded by the context's evq lock */
	struct vb_async_node ev_limit;
	struct vb_async_node ev_err;
	struct vb_lock lock __attribute__((aligned(VB_LINE)));
	uint32_t limit;	      /* 0: not armed; guarded by lock, as what follows */
	bool limit_said;      /* that a limit was above what is posted */
	uint32_t limit_fired; /* how often it did; for tools */
	/* Guarded by lock; but many threads give back to it, none of which is to slow who waits for that. */
	struct vb_rq rq __attribute__((aligned(VB_LINE)));
	struct vb_check_queue *custody; /* of a checked process (obj/custody.h); guarded by lock */
};

static inline struct vb_srq *vb_srq(struct ibv_srq *s)
{
	return (struct vb_srq *)s;
}

/* As vb_rq_give(), of an SRQ's; any number of threads at once. */
static inline void vb_srq_give(struct vb_srq *srq)
{
	atomic_fetch_add_explicit(&srq->rq.polled, 1, memory_order_relaxed);
}

/* Copies the oldest WQE to `to` (room for max_sge of the SRQ) and removes it, firing the limit event when the
 * rest falls below the limit (rule 34).  false: empty, or it has room for less than `need` bytes: *room says
 * for how many. */
bool vb_srq_take(struct vb_srq *srq, struct vb_rwqe *to, uint32_t need, uint32_t *room);

#endif
