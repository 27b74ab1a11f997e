/* What is wrong with a request that is posted, by whichever call: the errno and the sentence are the same. */
#ifndef VB_VERBS_POST_H
#define VB_VERBS_POST_H

#include <stdint.h>

#include "obj/builder.h"

#define VB_POST_COLD __attribute__((cold, noinline))

struct vb_post_facts {
	uint32_t opcode;
	uint32_t flags;		   /* as given */
	long long pieces;	   /* of its list */
	unsigned long long length; /* of its data, or of the range that is flushed */
	unsigned flush_type, flush_level;
};

/* Each says it as `call`, and returns the errno. */
VB_POST_COLD int vb_post_refuse(const struct vb_qp *qp, const char *call, enum vb_build_fault fault,
				const struct vb_post_facts *f);
/* Gives a datagram its destination. */
enum vb_build_fault vb_post_to(struct vb_qp *qp, struct vb_swqe *w, struct ibv_ah *ah, uint32_t qpn,
			       uint32_t qkey);
VB_POST_COLD int vb_post_refuse_full(const struct vb_qp *qp, const char *call);
/* A request is posted to a QP in the error state; says so once if no failure brought it there, which would
 * have been said. */
/* EINVAL: this thread has called ibv_wr_start(). */
VB_POST_COLD int vb_post_refuse_open(const struct vb_qp *qp, const char *call);
VB_POST_COLD void vb_post_say_late(struct vb_qp *qp, const char *call);
VB_POST_COLD int vb_post_refuse_state(const struct vb_qp *qp, enum ibv_qp_state state, const char *call);

#endif
