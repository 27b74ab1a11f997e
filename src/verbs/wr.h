/* Queue pairs whose requests are built call by call: ibv_wr_*. */
#ifndef VB_VERBS_WR_H
#define VB_VERBS_WR_H

#include "obj/builder.h"

/* A queue pair that was created with IBV_QP_INIT_ATTR_SEND_OPS_FLAGS. */
struct vb_wr_qp {
	struct vb_qp qp; /* first */
	uint32_t asked;	 /* send_ops_flags: the operations that may be built; set once */
	/* Between ibv_wr_start() and ibv_wr_complete() or _abort(), under the posting lock. */
	uint32_t may;	  /* `asked`, and a bit of its own; 0 after a fault, and while no builder is open */
	int err;	  /* of the first fault; 0: none */
	bool unaddressed; /* the datagram at hand has no destination yet */
	struct vb_builder b; /* `bits` have VB_WR_SELF while no request is being built */
};

/* Makes a queue pair of that size an extended one.  asked: operations that its type has (vb_wr_askable()). */
void vb_wr_open(struct vb_wr_qp *x, uint32_t asked);

#endif
