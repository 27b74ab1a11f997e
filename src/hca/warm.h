/* Which receive queues a poll looks at: the warm ones.
 *
 * A queue is warm from the beginning, and becomes cold when nothing has come through it for a while.  Its
 * senders see that (vb_rxq.cold), and leave a hint with each packet: the queue's index, in a set that a poll
 * looks at by one load.  So a poll costs what is busy, not what is connected.
 *
 * Nothing is lost between the two: a sender stores its packet, then loads the flag, leaves its hint if that
 * says cold, and then loads the word awake.  Who makes the queue cold stores the flag, then looks at the
 * queue once more; who falls asleep stores the word, then looks at warm queues and hints.  All of that is
 * seq_cst.  What is hinted at becomes warm before it is looked at, and who took the hint, or undid what made
 * a queue cold, then looks whether somebody fell asleep meanwhile.
 *
 * A hint helps and decides nothing: any peer may set or clear any of them.  What lies in a cold queue without
 * a hint is found by the engine's next look (vb_hca_notice), or by a bell of its sender (vb_hca_rang).
 *
 * A queue on which something is owed stays warm, so that only warm ones have to be looked at for that. */
#ifndef VB_HCA_WARM_H
#define VB_HCA_WARM_H

#include "hca/hca.h"

static inline uint32_t vb_hca_rxq_count(const struct vb_hca *h)
{
	return atomic_load_explicit(&h->nrxqs, memory_order_acquire); /* pairs with vb_hca_open_rxq() */
}

/* NULL: there never was one at that index. */
static inline struct vb_rxq *vb_hca_rxq_at(const struct vb_hca *h, uint32_t i)
{
	return atomic_load_explicit(&h->rxqs[i], memory_order_acquire); /* pairs with vb_hca_open_rxq() */
}

static inline bool vb_hca_rxq_is_open(const struct vb_rxq *r)
{
	return atomic_load_explicit(&r->open, memory_order_acquire); /* pairs with vb_hca_open_rxq() */
}

/* Whether there is something to take in or to send out.  A hint. */
static inline bool vb_hca_rxq_is_busy(const struct vb_rxq *r)
{
	return vb_rxq_ready(r) || atomic_load_explicit(&r->owes, memory_order_relaxed);
}

/* The same at less cost; true of one that has to be asked. */
static inline bool vb_hca_rxq_seems_busy(const struct vb_rxq *r)
{
	return vb_rxq_seems_ready(r) || atomic_load_explicit(&r->owes, memory_order_relaxed);
}

/* Has the queue, which was opened once, looked at again.  Any thread, with any lock. */
void vb_hca_warm(struct vb_rxq *r);
/* The queues that hints name become warm.  Without locks. */
void vb_hca_take_hints(struct vb_hca *h);
/* Warm queues through which nothing came since the call before the last become cold.  Without locks. */
void vb_hca_cool(struct vb_hca *h);

/* For vb_adapter_ops. */
bool vb_hca_ready(struct vb_adapter *a);
void vb_hca_notice(struct vb_adapter *a);
void vb_hca_rang(struct vb_peer *peer);

#endif
