/* What is known of the other end of a queue pair when acknowledgements or contact do not come. */
#ifndef VB_IBA_REACH_H
#define VB_IBA_REACH_H

#include <stdbool.h>
#include <stdint.h>

#include "base/text.h"

enum vb_reach {
	VB_REACH_UNKNOWN, /* nothing: another host, or all looks well from here */
#define REACH(r, say) r,
#include "iba/reach_list.h"
#undef REACH
	VB_REACHES
};

/* Calls that contact takes, for those whom a sandbox denies one. */
enum vb_reach_call {
	VB_CALL_NONE,
	VB_CALL_SOCKET,
	VB_CALL_CONNECT,
	VB_CALL_ACCEPT,
	VB_CALL_PEERCRED,
	VB_CALL_SENDMSG,
	VB_CALL_RECVMSG,
	VB_CALL_EPOLL,
	VB_CALL_GET_SEALS,
	VB_CALL_FSTAT,
	VB_CALL_FSTATFS,
	VB_CALL_PREAD,
	VB_CALL_MMAP,
	VB_CALLS
};

/* Adds a clause that says it, without a full stop; false: nothing is known, nothing was added.  All three
 * numbers may come from outside. */
bool vb_reach_add(struct vb_text *t, uint32_t reach, uint32_t a, uint32_t b);

#endif
