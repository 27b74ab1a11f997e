/* Completion counters: what completes on a queue pair is counted there too, by kind of operation, whether or
 * not its completion is signalled. */
#ifndef VB_OBJ_COMP_CNTR_H
#define VB_OBJ_COMP_CNTR_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include <infiniband/verbs.h>

struct vb_qp;
struct vb_swqe;

/* Bits of enum ibv_qp_attach_comp_cntr_op, in order. */
enum vb_comp_op {
	VB_COMP_SEND,
	VB_COMP_RECV,
	VB_COMP_READ,
	VB_COMP_REMOTE_READ,
	VB_COMP_WRITE,
	VB_COMP_REMOTE_WRITE,
	VB_COMP_OPS
};

struct vb_comp_cntr {
	struct ibv_comp_cntr ibv; /* first */
	bool bytes;		  /* counts those of what succeeds, not requests; set once */
	_Atomic uint64_t done, failed;
	_Atomic uint32_t refs; /* kinds of operation of queue pairs that it counts */
};

/* The counters of a queue pair; NULL: that operation is not counted.  Guarded by the queue pair's lock. */
struct vb_comp_cntrs {
	struct vb_comp_cntr *of[VB_COMP_OPS];
};

/* The queue pair's operations of the mask are counted by c; it is in no state to complete any.  0; EBUSY: one
 * of them is counted by another already; ENOMEM.  Pairs with vb_comp_detach(). */
int vb_comp_attach(struct vb_qp *qp, struct vb_comp_cntr *c, uint32_t mask);
/* Nothing completes on it any more. */
void vb_comp_detach(struct vb_qp *qp);

/* Where the queue pair has counters: a request of its send queue is complete, or has failed; one of its
 * receives; a request of the far end that no request of this end tells of. */
void vb_comp_sent(const struct vb_qp *qp, const struct vb_swqe *w, bool failed);
void vb_comp_received(const struct vb_qp *qp, uint32_t bytes, bool failed);
void vb_comp_remote(const struct vb_qp *qp, enum vb_comp_op op, uint32_t bytes);
/* Whether it counts what the far end does, which this end has to see for that. */
bool vb_comp_counts_remote(const struct vb_qp *qp);

#endif
