/* QP states and attributes as data: which transition a QP may make, and with which attributes (IBTA volume 1,
 * 10.3 and the Modify QP tables of 11.2.5.2, annex A14 for XRC; ibv_modify_qp(3)). */
#ifndef VB_IBA_QP_STATE_H
#define VB_IBA_QP_STATE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <infiniband/verbs.h>

#define VB_QP_STATES (IBV_QPS_ERR + 1)

struct vb_qp_masks {
	uint32_t required, optional; /* enum ibv_qp_attr_mask; IBV_QP_STATE itself is always allowed */
};

struct vb_qp_transition {
	bool valid;
	struct vb_qp_masks rc, uc, ud;
	struct vb_qp_masks xrc_send, xrc_recv; /* of RC's attributes those of a requester, of a responder */
};

extern const struct vb_qp_transition vb_qp_transitions[VB_QP_STATES][VB_QP_STATES]; /* [from][to] */

enum vb_qp_verdict {
	VB_QP_FINE,
	VB_QP_NO_WAY,  /* no such transition for this type */
	VB_QP_MISSING, /* *bits: what the transition needs besides */
	VB_QP_EXCESS,  /* *bits: what the transition does not take */
};

/* Attributes that a QP of the type has no use for, and that Linux drops from a mask before it judges it: an
 * initiator of XRC receives no requests, a target sends none, and programs set up both as they do RC. */
uint32_t vb_qp_ignores(enum ibv_qp_type type);

/* Judges one ibv_modify_qp() by its mask (rule 38).  `to` may be any number. */
enum vb_qp_verdict vb_qp_judge(enum ibv_qp_type type, enum ibv_qp_state from, enum ibv_qp_state to,
			       uint32_t mask, uint32_t *bits);

const char *vb_qp_state_name(enum ibv_qp_state s);
/* The names of the attributes in a mask, cut to `size`; returns buf. */
const char *vb_qp_attr_names(char *buf, size_t size, uint32_t mask);

#endif
