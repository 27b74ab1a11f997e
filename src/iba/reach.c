#include "iba/reach.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

#include <infiniband/verbs.h>

#include "iba/away.h"
#include "iba/names.h"
#include "iba/qp_state.h"

/* A clause takes what its row says, which may be nothing. */
#pragma GCC diagnostic ignored "-Wunused-parameter"

_Static_assert(sizeof(struct vb_reach_facts) == sizeof(uint32_t) + sizeof(struct vb_reach_denied),
	       "`denied` is the largest member, so that `{0}` clears all");

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
    [VB_CALL_PIDFD_OPEN] = "pidfd_open",
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

static void say_nobody(struct vb_text *t, const struct vb_reach_none *of)
{
	vb_text_add(t, "no process in this network namespace holds that number (it has ended, runs another "
		       "program or closed its device's descriptors, the number is wrong, or it is in another "
		       "network namespace)");
}

static void say_elsewhere(struct vb_text *t, const struct vb_reach_elsewhere *of)
{
	vb_text_add(t, "no process in this network namespace holds that number; ");
	vb_text_add(t,
		    of->itself ? "process %u, in another network namespace, does"
			       : "somebody does in that of process %u",
		    of->pid);
	vb_text_add(t, ": only processes in the same one reach one another");
}

static void say_deaf(struct vb_text *t, const struct vb_reach_uid *of)
{
	vb_text_add(
	    t, "that number is bound by a process of user %u that does not listen there: it is no adapter",
	    of->uid);
}

static void say_user(struct vb_text *t, const struct vb_reach_user *of)
{
	char who[64];

	vb_text_add(t,
		    "that number is held by %s of user %u: only processes of the same user reach one another",
		    process(who, of->pid), of->uid);
}

static void say_unmapped(struct vb_text *t, const struct vb_reach_process *of)
{
	char who[64];

	vb_text_add(t,
		    "that number is held by %s of a user that has no number in this user namespace: only "
		    "processes of the same user reach one another",
		    process(who, of->pid));
}

static void say_nameless(struct vb_text *t, const struct vb_reach_uid *of)
{
	vb_text_add(
	    t,
	    "this process's user has no number in its user namespace, where everybody reads as %u, so "
	    "nobody can be told to be the same user (unshare --map-user, or --map-root-user, gives it "
	    "one)",
	    of->uid);
}

static void say_not_its_own(struct vb_text *t, const struct vb_reach_process *of)
{
	char who[64];

	vb_text_add(t,
		    "%s refuses: it takes this process for another user's (it is in a user namespace that "
		    "does not map its user, or has changed its user)",
		    holder(who, of->pid));
}

static const char *remedy(uint32_t err)
{
	if (err == ETOOMANYREFS)
		return "its user has more descriptors on their way between processes than this one may have "
		       "open: ulimit -n";
	return is_lack(err) ? "a peer takes two descriptors and the address space of its segment"
			    : "a sandbox?";
}

static void say_trouble(struct vb_text *t, const struct vb_reach_trouble *of)
{
	vb_text_add(t, "this process cannot make contact: %s fails: %s (%s)", call_name(of->call),
		    strerror((int)of->err), remedy(of->err));
}

static void say_denied(struct vb_text *t, const struct vb_reach_denied *of)
{
	char who[64];

	vb_text_add(t, "%s cannot make contact: %s fails there: %s (a sandbox?)", holder(who, of->pid),
		    call_name(of->call), strerror((int)of->err));
}

static void say_silent(struct vb_text *t, const struct vb_reach_process *of)
{
	char who[64];

	vb_text_add(
	    t,
	    "%s does not answer, though it is not stopped (no descriptor is left there, or its thread "
	    "\"verbena\" does not get to run)",
	    holder(who, of->pid));
}

static void say_stopped(struct vb_text *t, const struct vb_reach_process *of)
{
	vb_text_add(t, "process %u is stopped (by a signal, or in a debugger)", of->pid);
}

static void say_left(struct vb_text *t, const struct vb_reach_process *of)
{
	vb_text_add(t,
		    "its process %u has left: it closed its device, destroyed what was connected, or ended",
		    of->pid);
}

static void say_unable(struct vb_text *t, const struct vb_reach_process *of)
{
	char who[64];

	vb_text_add(t,
		    "%s lacks the memory (address space, ulimit -v) or the descriptors for contact with this "
		    "one, or is denied it by a sandbox; its own log says more",
		    holder(who, of->pid));
}

static void say_version(struct vb_text *t, const struct vb_reach_version *of)
{
	char who[64];

	vb_text_add(t,
		    "%s has another version of Verbena (segment version %u; this process has %u): all "
		    "processes of a user have to use the same",
		    holder(who, of->pid), of->theirs, of->ours);
}

static void say_stranger(struct vb_text *t, const struct vb_reach_process *of)
{
	char who[64];

	vb_text_add(t, "%s does not speak as this version of Verbena does (another program?)",
		    holder(who, of->pid));
}

static void say_closed(struct vb_text *t, const struct vb_reach_process *of)
{
	char who[64];

	vb_text_add(t,
		    "%s closes the connection without an answer (it is ending, or is another program or an "
		    "older version of Verbena)",
		    holder(who, of->pid));
}

static void say_refused(struct vb_text *t, const struct vb_reach_process *of)
{
	char who[64];

	vb_text_add(t, "%s refuses contact; its own log says more", holder(who, of->pid));
}

static void say_address(struct vb_text *t, const struct vb_reach_away *of)
{
	vb_text_add(t, "the GID in the path (dgid) is ");
	vb_away_add(t, of->pid);
}

static void say_group(struct vb_text *t, const struct vb_reach_number *of)
{
	if (of->datagram)
		vb_text_add(t, "the address handle is a multicast group's, whose queue pairs have the number "
			       "0xffffff: set remote_qpn to that");
	else
		vb_text_add(t,
			    "the GID in the path (dgid) is a multicast group's, and only datagrams (UD) go "
			    "to groups");
}

static void say_no_group(struct vb_text *t, const struct vb_reach_none *of)
{
	vb_text_add(t, "0xffffff is the number of a multicast group's queue pairs, and the address handle is "
		       "not a group's: remote_qpn must be the qp_num of the queue pair there, or dgid the "
		       "group's GID");
}

static void say_qp1(struct vb_text *t, const struct vb_reach_none *of)
{
	vb_text_add(t, "1 is the number of QP1, which belongs to the connection manager: remote_qpn must be "
		       "the qp_num of the queue pair there");
}

/* Where the far end's number comes from. */
static const char *number_of(const struct vb_reach_number *of)
{
	if (of->datagram)
		return "remote_qpn";
	return of->ends & VB_END_HERE ? "rdma_conn_param.qp_num of the far end" : "dest_qp_num";
}

static void say_unset(struct vb_text *t, const struct vb_reach_number *of)
{
	vb_text_add(t, "%s is 0, so it was never filled in: it must be the qp_num of the queue pair there",
		    number_of(of));
}

static void say_lid(struct vb_text *t, const struct vb_reach_lid *of)
{
	vb_text_add(t, "the LID in the path (dlid 0x%x) is no port's of this network namespace%s", of->lid,
		    of->lid
			? ", and InfiniBand ports have no wire to others"
			: ": 0 is what an Ethernet port has, so the other end was perhaps started without "
			  "--link=infiniband (VERBENA_LINK), or its LID was not copied");
}

static void say_link(struct vb_text *t, const struct vb_reach_link *of)
{
	bool ib = of->theirs == IBV_LINK_LAYER_INFINIBAND;
	char who[64];

	vb_text_add(
	    t,
	    "%s refuses: its ports are %s, this process's are %s, and the two link layers do not reach one "
	    "another (--link of verbena run, VERBENA_LINK, must be the same at both ends)",
	    holder(who, of->pid), ib ? "InfiniBand" : "Ethernet", ib ? "Ethernet" : "InfiniBand");
}

static void say_no_qp(struct vb_text *t, const struct vb_reach_number *of)
{
	vb_text_add(t, "its process is there, that queue pair is not (destroyed, or a wrong %s)",
		    number_of(of));
}

static void say_state(struct vb_text *t, const struct vb_reach_state *of)
{
	vb_text_add(t, "it is in the state %s, which takes no packets: ", vb_qp_state_name(of->state));
	if (of->state == IBV_QPS_ERR)
		vb_text_add(t, "the log of its process says what failed there first");
	else if (of->ends & VB_END_THERE)
		vb_text_add(t, "its program has not taken the connection's event yet, and rdma_get_cm_event "
			       "there brings it to RTS");
	else
		vb_text_add(t, "ibv_modify_qp there must bring it to RTR first");
}

static const char *type_name(uint32_t type)
{
	const char *name = vb_name_qp_type((enum ibv_qp_type)type);

	return name ? name : "another type";
}

static void say_type(struct vb_text *t, const struct vb_reach_types *of)
{
	vb_text_add(t,
		    "it is of type %s, and this one of type %s: both ends must be of one type (qp_type of "
		    "ibv_create_qp)",
		    type_name(of->theirs), type_name(of->ours));
}

static void say_other(struct vb_text *t, const struct vb_reach_other *of)
{
	if (!of->qpn)
		vb_text_add(
		    t,
		    "it takes nothing from this one, since %s there is 0, so it was never filled in: it "
		    "must be this queue pair's number",
		    of->ends & VB_END_THERE ? "rdma_conn_param.qp_num" : "dest_qp_num");
	else
		vb_text_add(
		    t,
		    "it is connected to queue pair 0x%06x, and takes nothing from this one: %s must be this "
		    "queue pair's number (or the address was copied from another network namespace)",
		    of->qpn,
		    of->ends & VB_END_THERE ? "rdma_conn_param.qp_num of this end" : "dest_qp_num there");
}

static void say_psn(struct vb_text *t, const struct vb_reach_psn *of)
{
	vb_text_add(t, "it expects PSN 0x%06x, this end sends 0x%06x; ", of->expected, of->sent);
	if (of->ends)
		vb_text_add(t, "leave sq_psn and rq_psn as rdma_init_qp_attr gives them at each end");
	else
		vb_text_add(t, "sq_psn here must equal rq_psn there");
}

bool vb_reach_add(struct vb_text *t, const struct vb_reach_facts *f)
{
	switch (f->reach) {
#define REACH(r, kind, say)       \
	case r:                   \
		say(t, &f->kind); \
		return true;
#include "iba/reach_list.h"
#undef REACH
	default: /* nothing more is known */
		return false;
	}
}
