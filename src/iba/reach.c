#include "iba/reach.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "iba/qp_state.h"

static const char *const calls[VB_CALLS] = {
    [VB_CALL_NONE] = "a call",
    [VB_CALL_SOCKET] = "socket",
    [VB_CALL_CONNECT] = "connect",
    [VB_CALL_ACCEPT] = "accept4",
    [VB_CALL_PEERCRED] = "getsockopt(SO_PEERCRED)",
    [VB_CALL_SENDMSG] = "sendmsg",
    [VB_CALL_RECVMSG] = "recvmsg",
    [VB_CALL_EPOLL] = "epoll_ctl",
    [VB_CALL_GET_SEALS] = "fcntl(F_GET_SEALS)",
    [VB_CALL_FSTAT] = "fstat",
    [VB_CALL_FSTATFS] = "fstatfs",
    [VB_CALL_PREAD] = "pread",
    [VB_CALL_MMAP] = "mmap",
};

static const char *call_name(uint32_t call)
{
	return calls[call < VB_CALLS ? call : VB_CALL_NONE];
}

/* What passes when something is closed or freed; anything else somebody denies. */
static bool is_lack(uint32_t err)
{
	return err == EMFILE || err == ENFILE || err == ENOMEM || err == ENOBUFS || err == ENOSPC;
}

/* Who holds the number, as the subject of a clause. */
static const char *holder(char buf[64], uint32_t pid)
{
	if (pid)
		snprintf(buf, 64, "process %u, which holds that number,", pid);
	else
		snprintf(buf, 64, "a process of another PID namespace holds that number and");
	return buf;
}

static const char *process(char buf[64], uint32_t pid)
{
	if (pid)
		snprintf(buf, 64, "process %u", pid);
	else
		snprintf(buf, 64, "a process of another PID namespace");
	return buf;
}

/* Where the number leads to nobody who can be talked to. */
static bool add_nobody(struct vb_text *t, uint32_t reach, uint32_t a, uint32_t b)
{
	switch (reach) {
	case VB_REACH_NOBODY:
		vb_text_add(t, "no process in this network namespace holds that number (it has ended, "
			       "runs another program or closed its device's descriptors, the number is "
			       "wrong, or it is in another network namespace)");
		return true;
	case VB_REACH_ELSEWHERE:
		vb_text_add(t, "no process in this network namespace holds that number; ");
		vb_text_add(t,
			    b ? "process %u, in another network namespace, does"
			      : "somebody does in that of process %u",
			    a);
		vb_text_add(t, ": only processes in the same one reach one another");
		return true;
	case VB_REACH_DEAF:
		vb_text_add(t,
			    "that number is bound by a process of user %u that does not listen there: it is "
			    "no adapter",
			    a);
		return true;
	default:
		return false;
	}
}

/* Where one of the two may not. */
static bool add_denied(struct vb_text *t, uint32_t reach, uint32_t a, uint32_t b)
{
	char who[64];

	switch (reach) {
	case VB_REACH_USER:
		vb_text_add(t,
			    "that number is held by %s of user %u: only processes of the same user reach one "
			    "another",
			    process(who, b), a);
		return true;
	case VB_REACH_UNMAPPED:
		vb_text_add(t,
			    "that number is held by %s of a user that has no number in this user namespace: "
			    "only processes of the same user reach one another",
			    process(who, a));
		return true;
	case VB_REACH_NAMELESS:
		vb_text_add(t,
			    "this process's user has no number in its user namespace, where everybody reads "
			    "as %u, so nobody can be told to be the same user (unshare --map-user, or "
			    "--map-root-user, gives it one)",
			    a);
		return true;
	case VB_REACH_NOT_ITS_OWN:
		vb_text_add(t,
			    "%s refuses: it takes this process for another user's (it is in a user namespace "
			    "that does not map its user, or has changed its user)",
			    holder(who, a));
		return true;
	case VB_REACH_TROUBLE:
		vb_text_add(t, "this process cannot make contact: %s fails: %s (%s)", call_name(b),
			    strerror((int)a),
			    is_lack(a) ? "a peer takes two descriptors and the address space of its segment"
				       : "a sandbox?");
		return true;
	case VB_REACH_DENIED:
		vb_text_add(t, "%s cannot make contact: %s fails there: %s (a sandbox?)", holder(who, a),
			    call_name(b >> 16), strerror((int)(b & 0xffff)));
		return true;
	default:
		return false;
	}
}

/* What a process that holds the number did. */
static bool add_process(struct vb_text *t, uint32_t reach, uint32_t a, uint32_t b)
{
	char who[64];

	switch (reach) {
	case VB_REACH_SILENT:
		vb_text_add(
		    t,
		    "%s does not answer, though it is not stopped (no descriptor is left there, or its "
		    "thread \"verbena\" does not get to run)",
		    holder(who, a));
		return true;
	case VB_REACH_LEFT:
		vb_text_add(
		    t,
		    "its process %u has left: it closed its device, destroyed what was connected, or ended",
		    a);
		return true;
	case VB_REACH_UNABLE:
		vb_text_add(t,
			    "%s lacks the memory (address space, ulimit -v) or the descriptors for contact "
			    "with this one, or is denied it by a sandbox; its own log says more",
			    holder(who, a));
		return true;
	case VB_REACH_VERSION:
		vb_text_add(t,
			    "%s has another version of Verbena (segment version %u; this process has %u): "
			    "all processes of a user have to use the same",
			    holder(who, a), b >> 16, b & 0xffff);
		return true;
	case VB_REACH_STRANGER:
		vb_text_add(t, "%s does not speak as this version of Verbena does (another program?)",
			    holder(who, a));
		return true;
	case VB_REACH_CLOSED:
		vb_text_add(t,
			    "%s closes the connection without an answer (it is ending, or is another program "
			    "or an older version of Verbena)",
			    holder(who, a));
		return true;
	case VB_REACH_REFUSED:
		vb_text_add(t, "%s refuses contact; its own log says more", holder(who, a));
		return true;
	default:
		return false;
	}
}

bool vb_reach_add(struct vb_text *t, uint32_t reach, uint32_t a, uint32_t b)
{
	if (add_nobody(t, reach, a, b) || add_denied(t, reach, a, b) || add_process(t, reach, a, b))
		return true;
	switch (reach) {
	case VB_REACH_ADDRESS:
		vb_text_add(t, "the process that holds that number is not at the GID in the path (dgid)");
		return true;
	case VB_REACH_NO_QP:
		vb_text_add(
		    t, "its process is there, that queue pair is not (destroyed, or a wrong dest_qp_num)");
		return true;
	case VB_REACH_STATE:
		vb_text_add(t, "it is in the state %s, which takes no packets", vb_qp_state_name(a));
		return true;
	case VB_REACH_PSN:
		vb_text_add(
		    t, "it expects PSN 0x%06x, this end sends 0x%06x; sq_psn here must equal rq_psn there", a,
		    b);
		return true;
	default: /* nothing more is known */
		return false;
	}
}
