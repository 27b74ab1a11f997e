/* What was dropped in silence, in words for counts of it: one that stands for many has no numbers. */
#include "iba/reason.h"

static const char *const words[VB_REASONS] = {
    [VB_R_DROP_SEQUENCE] = "packets were lost, and their messages with them",
    [VB_R_DROP_NO_RECV] = "messages to queue pairs where no receive request was posted",
    [VB_R_DROP_TOO_SMALL] =
	"datagrams that, with the 40 bytes of their GRH, were longer than the receive request",
    [VB_R_DROP_QKEY] = "datagrams with a different Q_Key than the queue pair",
    [VB_R_DROP_NO_QP] =
	"messages to queue pairs that do not exist, or do not receive this type or from this sender",
    [VB_R_DROP_FULL] = "datagrams to processes that received nothing until the queue to them was full",
    [VB_R_DROP_NOBODY] =
	"requests to queue pairs that do not exist, or whose process could not be reached in time",
    [VB_R_KEY_UNKNOWN] = "messages with an R_Key that was never issued",
    [VB_R_KEY_STALE] = "messages with an R_Key that is no longer valid",
    [VB_R_KEY_IS_LOCAL] = "messages with an L_Key where an R_Key is required",
    [VB_R_KEY_PD] = "messages with an R_Key of a different protection domain than the queue pair",
    [VB_R_KEY_QP] = "messages with an R_Key of a memory window that is bound to another queue pair",
    [VB_R_KEY_BOUNDS] = "messages for memory outside the region of their R_Key",
    [VB_R_KEY_ACCESS] = "messages for memory whose region does not permit them",
    [VB_R_KEY_NOT_WINDOW] = "messages that invalidate an R_Key of a region, not of a memory window",
    [VB_R_KEY_OWNER_GONE] = "messages for memory of a process that has ended",
    [VB_R_KEY_NO_CONTACT] = "messages for memory of a process that this one is not connected to",
    [VB_R_MEM_FORBIDDEN] = "messages for memory of a process to which the kernel denies access",
    [VB_R_MEM_VANISHED] = "messages for memory that is no longer mapped, or lacks the required permission",
    [VB_R_QP_ACCESS] = "messages that the queue pairs' qp_access_flags do not permit",
    [VB_R_BAD_SEQUENCE] = "packets that may not follow the packets before them",
    [VB_R_BAD_LENGTH] = "messages with a different length than they announced",
    [VB_R_PATH_MTU] = "messages from queue pairs with a different path_mtu",
    [VB_R_RECV_TOO_SMALL] = "messages that were longer than the receive request",
};

const char *vb_reason_dropped(enum vb_reason r)
{
	return words[r];
}
