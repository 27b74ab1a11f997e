/* What is known of the other end of a queue pair when acknowledgements or contact do not come. */
#ifndef VB_IBA_REACH_H
#define VB_IBA_REACH_H

#include <stdbool.h>
#include <stdint.h>

#include "base/text.h"

/* With each its two numbers, a and b; b is 0 where none is named.  "Its process" is the one that holds the
 * adapter number in the QP number; a PID of 0 is one of another PID namespace. */
enum vb_reach {
	VB_REACH_UNKNOWN,   /* nothing: another host, or all looks well from here */
	VB_REACH_NOBODY,    /* nobody in this network namespace has bound the adapter number */
	VB_REACH_ELSEWHERE, /* likewise; in the network namespace of process a somebody has, b: that very
			       process */
	VB_REACH_DEAF,	    /* a process of user a has bound it and does not listen */
	VB_REACH_TROUBLE,  /* this process cannot make contact: errno a, in the call b (enum vb_reach_call) */
	VB_REACH_SILENT,   /* its process (a, its PID) does not answer our hello */
	VB_REACH_LEFT,	   /* its process (a, its PID) closed the connection */
	VB_REACH_ADDRESS,  /* one does, but not at the GID in the path */
	VB_REACH_NO_QP,	   /* the process is there, the QP is not */
	VB_REACH_STATE,	   /* the QP takes no packets in its state (a, enum ibv_qp_state) */
	VB_REACH_PSN,	   /* it expects PSN a, and this end sends b */
	VB_REACH_UNABLE,   /* its process (a, its PID) lacks what contact takes */
	VB_REACH_USER,	   /* its process b is of user a, and so not of this one */
	VB_REACH_UNMAPPED, /* its process a is of a user that has no number in this user namespace */
	VB_REACH_NAMELESS, /* this process's own user has none (it reads as a): nobody can be told to be it */
	VB_REACH_VERSION,  /* its process a has another version of ours: b, theirs << 16 | this one's */
	VB_REACH_STRANGER, /* its process a does not speak as this version of ours does */
	VB_REACH_CLOSED,   /* its process a closed the connection without an answer */
	VB_REACH_REFUSED,  /* its process a has refused, for a reason that has no line here */
	VB_REACH_NOT_ITS_OWN, /* its process a has refused: it takes this one for another user's */
	VB_REACH_DENIED, /* its process a may not make a call that contact takes: b, call << 16 | errno */
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

/* Adds a clause that says it, without a full stop; false: nothing is known, nothing was added.  The numbers
 * may come from outside. */
bool vb_reach_add(struct vb_text *t, uint32_t reach, uint32_t a, uint32_t b);

#endif
