#include "cm/states.h"

#define ON(kind)  .on[VB_CM_##kind - VB_CM_REQ]
#define MAY(call) .may[VB_CM_CALL_##call]
/* clang-format off */
#define TAKE(state) {VB_CM_TAKE, VB_CM_##state}
#define REJ(reason) {VB_CM_REJ, VB_CM_REJ_##reason}
#define KNOWN	    {.action = VB_CM_KNOWN}
#define AGAIN	    {.action = VB_CM_AGAIN}
#define REFUSE	    {.action = VB_CM_REFUSE}
/* clang-format on */

/* Where a REJ is taken in a state from which no packet of the QPs can be about, it leads to IDLE; from others
 * to TIMEWAIT.  One whose reason is a stale connection leads to TIMEWAIT from all of them (take() in
 * input.c). */
const struct vb_cm_row vb_cm_rows[VB_CM_STATES] =
    {
	[VB_CM_IDLE] =
	    {
		.name = "IDLE",
		MAY(LISTEN) = TAKE(LISTEN),
		MAY(REQ) = TAKE(REQ_SENT),
		MAY(SIDR_REQ) = TAKE(SIDR_REQ_SENT),
		ON(REP) = REFUSE,
		ON(RTU) = REFUSE,
		ON(DREQ) = REFUSE,
		ON(DREP) = KNOWN,
		ON(LAP) = REFUSE,
	    },
	[VB_CM_LISTEN] = {.name = "LISTEN"},
	[VB_CM_REQ_SENT] =
	    {
		.name = "REQ_SENT",
		MAY(REJ) = TAKE(IDLE),
		ON(MRA) = TAKE(MRA_REQ_RCVD),
		ON(REJ) = TAKE(IDLE),
		ON(REP) = TAKE(REP_RCVD),
		.last = REJ(TIMEOUT),
		.heir = REJ(CONSUMER),
		.unanswered = VB_CM_REQ,
		.gives_up = VB_CM_IDLE,
		.about = VB_CM_ABOUT_OTHER,
		.half = true,
	    },
	[VB_CM_REQ_RCVD] =
	    {
		.name = "REQ_RCVD",
		MAY(REP) = TAKE(REP_SENT),
		MAY(MRA) = TAKE(MRA_REQ_SENT),
		MAY(REJ) = TAKE(IDLE),
		ON(REQ) = KNOWN,
		ON(REJ) = TAKE(IDLE),
		.last = REJ(CONSUMER),
		.heir = REJ(TIMEOUT),
		.about = VB_CM_ABOUT_REQ,
		.nameless = true,
	    },
	[VB_CM_MRA_REQ_SENT] =
	    {
		.name = "MRA_REQ_SENT",
		MAY(REP) = TAKE(REP_SENT),
		MAY(REJ) = TAKE(IDLE),
		ON(REQ) = AGAIN,
		ON(REJ) = TAKE(IDLE),
		.last = REJ(CONSUMER),
		.heir = REJ(TIMEOUT),
		.about = VB_CM_ABOUT_REQ,
	    },
	[VB_CM_MRA_REQ_RCVD] =
	    {
		.name = "MRA_REQ_RCVD",
		MAY(REJ) = TAKE(IDLE),
		ON(MRA) = KNOWN,
		ON(REJ) = TAKE(IDLE),
		ON(REP) = TAKE(REP_RCVD),
		.last = REJ(TIMEOUT),
		.heir = REJ(CONSUMER),
		.unanswered = VB_CM_REQ,
		.gives_up = VB_CM_IDLE,
		.about = VB_CM_ABOUT_OTHER,
		.half = true,
	    },
	[VB_CM_REP_SENT] =
	    {
		.name = "REP_SENT",
		MAY(REJ) = TAKE(TIMEWAIT),
		MAY(ESTABLISHED) = TAKE(ESTABLISHED),
		ON(REQ) = AGAIN,
		ON(MRA) = TAKE(MRA_REP_RCVD),
		ON(REJ) = TAKE(IDLE),
		ON(RTU) = TAKE(ESTABLISHED),
		ON(DREQ) = TAKE(DREQ_RCVD),
		.last = REJ(CONSUMER),
		.heir = REJ(CONSUMER),
		.unanswered = VB_CM_REP,
		.gives_up = VB_CM_IDLE,
		.about = VB_CM_ABOUT_OTHER,
	    },
	[VB_CM_REP_RCVD] =
	    {
		.name = "REP_RCVD",
		MAY(RTU) = TAKE(ESTABLISHED),
		MAY(MRA) = TAKE(MRA_REP_SENT),
		MAY(REJ) = TAKE(IDLE),
		ON(MRA) = KNOWN,
		ON(REJ) = TAKE(TIMEWAIT),
		ON(REP) = KNOWN,
		.last = REJ(CONSUMER),
		.heir = REJ(CONSUMER),
		.about = VB_CM_ABOUT_REP,
	    },
	[VB_CM_MRA_REP_SENT] =
	    {
		.name = "MRA_REP_SENT",
		MAY(RTU) = TAKE(ESTABLISHED),
		MAY(REJ) = TAKE(IDLE),
		ON(MRA) = KNOWN,
		ON(REJ) = TAKE(TIMEWAIT),
		ON(REP) = AGAIN,
		.last = REJ(CONSUMER),
		.heir = REJ(CONSUMER),
		.about = VB_CM_ABOUT_REP,
	    },
	[VB_CM_MRA_REP_RCVD] =
	    {
		.name = "MRA_REP_RCVD",
		MAY(REJ) = TAKE(TIMEWAIT),
		MAY(ESTABLISHED) = TAKE(ESTABLISHED),
		ON(REQ) = KNOWN,
		ON(MRA) = KNOWN,
		ON(REJ) = TAKE(IDLE),
		ON(RTU) = TAKE(ESTABLISHED),
		ON(DREQ) = TAKE(DREQ_RCVD),
		.last = REJ(CONSUMER),
		.heir = REJ(CONSUMER),
		.unanswered = VB_CM_REP,
		.gives_up = VB_CM_IDLE,
		.about = VB_CM_ABOUT_OTHER,
	    },
	[VB_CM_ESTABLISHED] =
	    {
		.name = "ESTABLISHED",
		MAY(DREQ) = TAKE(DREQ_SENT),
		ON(REQ) = KNOWN,
		ON(MRA) = KNOWN,
		ON(REJ) = TAKE(TIMEWAIT),
		ON(REP) = AGAIN,
		ON(RTU) = KNOWN,
		ON(DREQ) = TAKE(DREQ_RCVD),
		ON(LAP) = REFUSE,
		.last = {.kind = VB_CM_DREQ},
		.heir = {.kind = VB_CM_DREQ},
		.about = VB_CM_ABOUT_OTHER,
	    },
	[VB_CM_DREQ_SENT] =
	    {
		.name = "DREQ_SENT",
		ON(REQ) = KNOWN,
		ON(REJ) = TAKE(TIMEWAIT),
		ON(REP) = KNOWN,
		ON(RTU) = KNOWN,
		ON(DREQ) = TAKE(DREQ_RCVD),
		ON(DREP) = TAKE(TIMEWAIT),
		ON(LAP) = REFUSE,
		.heir = {.kind = VB_CM_DREP},
		.unanswered = VB_CM_DREQ,
		.gives_up = VB_CM_TIMEWAIT,
		.about = VB_CM_ABOUT_OTHER,
	    },
	[VB_CM_DREQ_RCVD] =
	    {
		.name = "DREQ_RCVD",
		MAY(DREP) = TAKE(TIMEWAIT),
		ON(REQ) = KNOWN,
		ON(REP) = KNOWN,
		ON(RTU) = KNOWN,
		ON(DREQ) = KNOWN,
		ON(DREP) = TAKE(TIMEWAIT),
		ON(LAP) = REFUSE,
		.last = {.kind = VB_CM_DREP},
		.about = VB_CM_ABOUT_OTHER,
	    },
	[VB_CM_TIMEWAIT] =
	    {
		.name = "TIMEWAIT",
		ON(REQ) = REFUSE,
		ON(REP) = REFUSE,
		ON(RTU) = REFUSE,
		ON(REJ) = KNOWN,
		ON(DREQ) = REFUSE,
		ON(DREP) = KNOWN,
		ON(LAP) = REFUSE,
	    },
	[VB_CM_SIDR_REQ_SENT] =
	    {
		.name = "SIDR_REQ_SENT",
		ON(SIDR_REP) = TAKE(IDLE),
		.heir = {VB_CM_SIDR_REP, VB_CM_SIDR_REJECT},
		.unanswered = VB_CM_SIDR_REQ,
		.gives_up = VB_CM_IDLE,
	    },
	[VB_CM_SIDR_REQ_RCVD] =
	    {
		.name = "SIDR_REQ_RCVD",
		MAY(SIDR_REP) = TAKE(IDLE),
		ON(SIDR_REQ) = KNOWN,
		.last = {VB_CM_SIDR_REP, VB_CM_SIDR_REJECT},
	    },
};

const char *vb_cm_state_name(enum vb_cm_state s)
{
	return s < VB_CM_STATES ? vb_cm_rows[s].name : "no state";
}
