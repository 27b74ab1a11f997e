/* Calls of the program that may block for long: which thread is in which of them, about what, and since when.
 *
 * `verbena explain` reads the table out of the process's memory, also while the process is stopped.  Only
 * calls that are about to block enter it, so nothing else pays for it. */
#ifndef VB_BASE_WAITING_H
#define VB_BASE_WAITING_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

enum { VB_WAITINGS = 256 }; /* threads beyond that are not shown */

enum vb_waiting_for {
	VB_WAITING_NOTHING,
	VB_WAITING_CQ_EVENT,	/* ibv_get_cq_event(): a channel */
	VB_WAITING_ASYNC_EVENT, /* ibv_get_async_event(): a context */
	VB_WAITING_CQ_ACKS,	/* ibv_destroy_cq(): a CQ, whose events are not acknowledged */
	VB_WAITING_CQ_ERR_ACKS, /* the same, of its asynchronous events */
	VB_WAITING_QP_ACKS,	/* ibv_destroy_qp(): the same */
	VB_WAITING_SRQ_ACKS,	/* ibv_destroy_srq() */
	VB_WAITING_MR_USERS,	/* ibv_dereg_mr(): a region, which a peer is using */
	VB_WAITING_TURN,	/* ibv_start_poll(): a CQ that another thread reads */
	VB_WAITING_BUILDER,	/* a post: a queue pair on which another thread builds requests */
	VB_WAITING_CM_EVENT,	/* rdma_get_cm_event(), or a synchronous call: a channel */
	VB_WAITING_CM_ACKS,	/* rdma_destroy_id(): an identifier */
	VB_WAITING_KINDS
};

struct vb_waiting {
	_Atomic uint32_t tid; /* 0: the entry is free */
	uint32_t what;	      /* enum vb_waiting_for */
	uint64_t since;	      /* CLOCK_MONOTONIC, ns */
	uint64_t object;      /* its address */
	uint64_t self;	      /* vb_thread_self() */
	uint64_t
	    noticed; /* of a sleeper: when completions were first seen for which no event comes; 0: none */
	uint32_t amount;       /* how much is waited for, at the beginning */
	_Atomic uint32_t said; /* 1: it was said that it waits */
};

extern struct vb_waiting vb_waitings[VB_WAITINGS];

/* NULL: the table is full.  Either is for the thread that blocks. */
struct vb_waiting *vb_waiting_begin(enum vb_waiting_for what, const void *object, uint32_t amount);
/* After how long in ns it is said without being asked that something waits (VERBENA_WAIT_WARN); VB_NEVER:
 * never. `otherwise`: what it is if the variable is not set. */
uint64_t vb_waiting_warn(uint64_t otherwise);

/* Whether it is time to say that this thread waits, once; waiting may be NULL. */
bool vb_waiting_is_long(struct vb_waiting *w, uint64_t now);

void vb_waiting_end(void *waiting); /* struct vb_waiting, may be NULL; for pthread_cleanup_push() */

#endif
