/* What was dropped in silence, in words for counts of it: one that stands for many has no numbers. */
#include "iba/reason.h"

static const char *const words[VB_REASONS] = {
    [VB_R_DROP_SEQUENCE] = "packets were lost on the way, and the messages that they belong to with them",
    [VB_R_DROP_NO_RECV] = "messages came to queue pairs where no receive request was posted",
    [VB_R_DROP_TOO_SMALL] =
	"datagrams came that, with the 40 bytes of their GRH, were longer than the receive request",
    [VB_R_DROP_QKEY] = "datagrams came with another Q_Key than the queue pair's",
    [VB_R_DROP_NO_QP] =
	"messages came for queue pairs that are not there, or take none of this type or from this sender",
    [VB_R_DROP_FULL] = "datagrams to processes that take nothing, and there was no more room on the way",
    [VB_R_DROP_NOBODY] =
	"requests to queue pairs at which nobody is, or with whose process there was no contact in time",
    [VB_R_KEY_UNKNOWN] = "messages came with an R_Key that was never given out",
    [VB_R_KEY_STALE] = "messages came with an R_Key that is no longer valid",
    [VB_R_KEY_IS_LOCAL] = "messages came with an L_Key where an R_Key belongs",
    [VB_R_KEY_PD] = "messages came with an R_Key of another protection domain than the queue pair's",
    [VB_R_KEY_QP] = "messages came with an R_Key of a memory window that is bound on another queue pair",
    [VB_R_KEY_BOUNDS] = "messages came for memory that leaves the region of their R_Key",
    [VB_R_KEY_ACCESS] = "messages came for memory whose region does not permit them",
    [VB_R_KEY_NOT_WINDOW] = "messages came that invalidate an R_Key which is no memory window's",
    [VB_R_KEY_OWNER_GONE] = "messages came for memory of a process that has ended",
    [VB_R_KEY_NO_CONTACT] = "messages came for memory of a process that this one is not connected to",
    [VB_R_MEM_FORBIDDEN] =
	"messages came for memory of a process that the kernel does not let this one reach",
    [VB_R_MEM_VANISHED] = "messages came for memory that is not mapped any more, or not with that permission",
    [VB_R_QP_ACCESS] = "messages came that the queue pairs' qp_access_flags do not permit",
    [VB_R_BAD_SEQUENCE] = "packets came that may not follow those before them",
    [VB_R_BAD_LENGTH] = "messages came of another length than they announced",
    [VB_R_PATH_MTU] = "messages came from queue pairs whose path_mtu is another one",
    [VB_R_RECV_TOO_SMALL] = "messages came that were longer than the receive request",
};

const char *vb_reason_dropped(enum vb_reason r)
{
	return words[r];
}
