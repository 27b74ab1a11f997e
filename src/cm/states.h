/* The states of a connection as data: what each does with each message and each call, and what is said or
 * taken where it ends (IBTA volume 1, 12.9.7, as the kernel's CM has it). */
#ifndef VB_CM_STATES_H
#define VB_CM_STATES_H

#include "cm/cm.h"

enum { VB_CM_KINDS = VB_CM_APR - VB_CM_REQ + 1 };

/* What becomes of a message. */
enum vb_cm_action {
	VB_CM_DROP,   /* nothing: the state expects no such message */
	VB_CM_KNOWN,  /* nothing: it is there already, and an answer follows, or is not owed */
	VB_CM_AGAIN,  /* it is there already; what was said last was lost, and is said again */
	VB_CM_TAKE,   /* it is taken, and leads to the state `to` */
	VB_CM_REFUSE, /* the answer that its kind has for who is too late */
};

/* The calls that a state may permit. */
enum vb_cm_call {
	VB_CM_CALL_LISTEN,
	VB_CM_CALL_REQ,
	VB_CM_CALL_REP,
	VB_CM_CALL_RTU,
	VB_CM_CALL_MRA,
	VB_CM_CALL_REJ,
	VB_CM_CALL_ESTABLISHED,
	VB_CM_CALL_DREQ,
	VB_CM_CALL_DREP,
	VB_CM_CALL_SIDR_REQ,
	VB_CM_CALL_SIDR_REP,
	VB_CM_CALLS
};

struct vb_cm_rule {
	uint8_t action; /* enum vb_cm_action; of a call, 0: it is not permitted */
	uint8_t to;	/* enum vb_cm_state */
};

/* A message that is made up: 0, or its kind, and what a REJ or SIDR_REP says. */
struct vb_cm_word {
	uint16_t kind;
	uint16_t reason; /* enum vb_cm_rej, enum vb_cm_sidr */
};

struct vb_cm_row {
	const char *name;
	struct vb_cm_rule on[VB_CM_KINDS]; /* by kind - VB_CM_REQ */
	struct vb_cm_rule may[VB_CM_CALLS];
	struct vb_cm_word last; /* what vb_cm_end() says, */
	struct vb_cm_word heir; /* and what is taken in place of a far end that has died */
	uint16_t unanswered;	/* the kind that is said again until something is heard; 0: none */
	uint8_t gives_up;	/* the state once that was in vain */
	uint8_t about;		/* what a REJ in this state is about */
	bool nameless;		/* and it has no comm ID of this end, which the far end has not heard yet */
	bool half;		/* the far end's comm ID is not known for certain */
};

extern const struct vb_cm_row vb_cm_rows[VB_CM_STATES];

static inline const struct vb_cm_rule *vb_cm_on(enum vb_cm_state s, uint16_t kind)
{
	return &vb_cm_rows[s].on[kind - VB_CM_REQ];
}

#endif
