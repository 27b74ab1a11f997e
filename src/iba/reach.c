#include "iba/reach.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

#include <infiniband/verbs.h>

#include "iba/away.h"
#include "iba/grh.h"
#include "iba/names.h"
#include "iba/qp_state.h"

/* A clause takes what its row says, which may be nothing. */
#pragma GCC diagnostic ignored "-Wunused-parameter"

_Static_assert(sizeof(struct vb_reach_facts) == sizeof(uint32_t) + sizeof(struct vb_reach_away),
	       "`away` is the largest member, so that `{0}` clears all");

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
		snprintf(buf, 64, "process %u, which owns that number,", pid);
	else
		snprintf(buf, 64, "a process in another PID namespace owns that number and");
	return buf;
}

static const char *process(char buf[64], uint32_t pid)
{
	if (pid)
		snprintf(buf, 64, "process %u", pid);
	else
		snprintf(buf, 64, "a process in another PID namespace");
	return buf;
}

static void say_nobody(struct vb_text *t, const struct vb_reach_none *of)
{
	vb_text_add(t, "no process in this network namespace owns that number: the peer has ended, executed "
		       "another program, closed its device's descriptors or is in another network namespace, "
		       "or the number is wrong");
}

static void say_elsewhere(struct vb_text *t, const struct vb_reach_elsewhere *of)
{
	vb_text_add(t, "no process in this network namespace owns that number, but ");
	vb_text_add(t,
		    of->itself ? "process %u in another network namespace does"
			       : "one in the network namespace of process %u does",
		    of->pid);
	vb_text_add(t, "; run both in the same network namespace");
}

static void say_deaf(struct vb_text *t, const struct vb_reach_uid *of)
{
	vb_text_add(t,
		    "a process of user %u has bound that number but does not listen: it does not use Verbena",
		    of->uid);
}

static void say_user(struct vb_text *t, const struct vb_reach_user *of)
{
	char who[64];

	vb_text_add(t, "%s of user %u owns that number; only processes of the same user can communicate",
		    process(who, of->pid), of->uid);
}

static void say_unmapped(struct vb_text *t, const struct vb_reach_process *of)
{
	char who[64];

	vb_text_add(t,
		    "%s owns that number, and its user is not mapped in this user namespace; only processes "
		    "of the same user can communicate",
		    process(who, of->pid));
}

static void say_nameless(struct vb_text *t, const struct vb_reach_uid *of)
{
	vb_text_add(
	    t,
	    "this process's user is not mapped in its user namespace, where every such user reads as %u, so "
	    "processes of the same user cannot be recognized; map it with unshare --map-user or "
	    "--map-root-user",
	    of->uid);
}

static void say_not_its_own(struct vb_text *t, const struct vb_reach_process *of)
{
	char who[64];

	vb_text_add(t,
		    "%s refuses the connection: it sees this process as another user's, because its user "
		    "namespace does not map its user, or because it has changed its user",
		    holder(who, of->pid));
}

static const char *remedy(uint32_t err)
{
	if (err == ETOOMANYREFS)
		return "its user has more descriptors in flight between processes than this process may "
		       "open; raise ulimit -n";
	return is_lack(err) ? "each peer needs two descriptors and the address space of its segment"
			    : "does a sandbox deny it?";
}

static void say_trouble(struct vb_text *t, const struct vb_reach_trouble *of)
{
	vb_text_add(t, "this process cannot connect: %s fails: %s (%s)", call_name(of->call),
		    strerror((int)of->err), remedy(of->err));
}

static void say_denied(struct vb_text *t, const struct vb_reach_denied *of)
{
	char who[64];

	vb_text_add(t, "%s cannot connect: %s fails there: %s (does a sandbox deny it?)",
		    holder(who, of->pid), call_name(of->call), strerror((int)of->err));
}

static void say_silent(struct vb_text *t, const struct vb_reach_process *of)
{
	char who[64];

	vb_text_add(t,
		    "%s does not answer, but it is not stopped: it has no descriptor left, or its thread "
		    "\"verbena\" gets no CPU",
		    holder(who, of->pid));
}

static void say_stopped(struct vb_text *t, const struct vb_reach_process *of)
{
	vb_text_add(t, "process %u is stopped (by a signal, or in a debugger)", of->pid);
}

static void say_left(struct vb_text *t, const struct vb_reach_process *of)
{
	vb_text_add(t,
		    "its process %u has disconnected: it closed its device, destroyed its end of the "
		    "connection, or ended",
		    of->pid);
}

static void say_unable(struct vb_text *t, const struct vb_reach_process *of)
{
	char who[64];

	vb_text_add(t,
		    "%s cannot connect: it lacks address space (ulimit -v) or descriptors, or a sandbox "
		    "denies it; its log has the reason",
		    holder(who, of->pid));
}

static void say_version(struct vb_text *t, const struct vb_reach_version *of)
{
	char who[64];

	vb_text_add(t,
		    "%s uses another version of Verbena (segment version %u; this process has %u); all "
		    "processes of a user must use the same version",
		    holder(who, of->pid), of->theirs, of->ours);
}

static void say_stranger(struct vb_text *t, const struct vb_reach_process *of)
{
	char who[64];

	vb_text_add(t, "%s does not follow the protocol of this version of Verbena (is it another program?)",
		    holder(who, of->pid));
}

static void say_closed(struct vb_text *t, const struct vb_reach_process *of)
{
	char who[64];

	vb_text_add(t,
		    "%s closes the connection without an answer: it is ending, is another program, or uses "
		    "an older version of Verbena",
		    holder(who, of->pid));
}

static void say_refused(struct vb_text *t, const struct vb_reach_process *of)
{
	char who[64];

	vb_text_add(t, "%s refuses the connection; its log has the reason", holder(who, of->pid));
}

static void say_address(struct vb_text *t, const struct vb_reach_away *of)
{
	static const uint8_t unknown[16];

	vb_text_add(t, "the GID in the path (dgid");
	if (memcmp(of->gid, unknown, sizeof(unknown))) {
		vb_text_add(t, " ");
		vb_gid_add(t, of->gid);
	}
	vb_text_add(t, ") is ");
	vb_away_add(t, of);
}

/* ---- far ends on a network ---- */

/* A name of an interface, which may come from outside. */
static const char *interface(char to[68], const char name[16])
{
	char whole[17];

	memcpy(whole, name, 16);
	whole[16] = 0;
	vb_text_escape(to, 68, whole);
	return to;
}

static void say_host_filter(struct vb_text *t, const struct vb_reach_host *of)
{
	vb_text_add(t, "the packet filter of this host refuses packets to ");
	vb_gid_add(t, of->gid);
	vb_text_add(t, " (%s); let UDP port 4791 out and in (nft list ruleset shows the filter)",
		    strerror((int)of->err));
}

static void say_host_route(struct vb_text *t, const struct vb_reach_host *of)
{
	char name[68];

	interface(name, of->ifname);
	if (of->other) {
		vb_text_add(t, "the route to ");
		vb_gid_add(t, of->gid);
		vb_text_add(
		    t,
		    " leads through %s, which is not the interface of this queue pair's device; use the "
		    "device of %s (verbena run --netdev=%s)",
		    name, name, name);
		return;
	}
	vb_text_add(t, "this host has no route to ");
	vb_gid_add(t, of->gid);
	vb_text_add(t, "%s%s through %s; add a route, or correct the GID in the path (dgid)",
		    of->err ? ": " : "", of->err ? strerror((int)of->err) : "", name);
}

static void say_host_down(struct vb_text *t, const struct vb_reach_host *of)
{
	char name[68];

	vb_text_add(t, "the interface %s, which leads to ", interface(name, of->ifname));
	vb_gid_add(t, of->gid);
	vb_text_add(t, ", is down, or has no carrier or no address (ip address show %s)", name);
}

static void say_host_absent(struct vb_text *t, const struct vb_reach_host *of)
{
	char name[68];

	vb_text_add(t, "no host answers at ");
	vb_gid_add(t, of->gid);
	vb_text_add(t,
		    " (%s): the host is down, or the address is not in the network of %s; check the address "
		    "(with verbs the dgid of the path) and try ping",
		    strerror((int)of->err), interface(name, of->ifname));
}

static void say_host_forbidden(struct vb_text *t, const struct vb_reach_host *of)
{
	vb_text_add(t, "a packet filter on the way to ");
	vb_gid_add(t, of->gid);
	vb_text_add(t, " rejects the packets (%s, by ICMP); let UDP port 4791 in at both ends",
		    strerror((int)of->err));
}

static void say_host_closed(struct vb_text *t, const struct vb_reach_host *of)
{
	vb_text_add(t, "nobody at ");
	vb_gid_add(t, of->gid);
	if (of->heard_ms)
		vb_text_add(
		    t,
		    " listens on UDP port 4791 any more (ICMP port unreachable), but packets came from "
		    "there until %u.%u s ago: the process there has ended; start the peer again, and "
		    "connect again",
		    of->heard_ms / 1000, of->heard_ms / 100 % 10);
	else
		vb_text_add(
		    t, " listens on UDP port 4791 (ICMP port unreachable): start the peer with verbena run "
		       "--netdev there, or set up soft-RoCE; a packet filter there can also reject the port");
}

/* The largest path MTU whose packets fit: headers as in host/netif.h. */
static unsigned fitting(uint32_t mtu)
{
	unsigned path = 4096;

	while (path > 256 && path + 96 > mtu)
		path /= 2;
	return path;
}

static void say_host_mtu(struct vb_text *t, const struct vb_reach_host *of)
{
	vb_text_add(t, "packets of this queue pair are longer than the way to ");
	vb_gid_add(t, of->gid);
	if (of->mtu)
		vb_text_add(t, " takes, whose MTU is %u bytes; set path_mtu to %u bytes at both ends",
			    of->mtu, fitting(of->mtu));
	else
		vb_text_add(t, " takes (%s); set a smaller path_mtu at both ends", strerror((int)of->err));
}

static void say_host_nat(struct vb_text *t, const struct vb_reach_nat *of)
{
	vb_text_add(t, "something on the way translates addresses (NAT): packets of ");
	vb_gid_add(t, of->gid);
	vb_text_add(t, " arrive from ");
	vb_gid_add(t, of->from);
	vb_text_add(t, ". RoCEv2 does not pass NAT, since its checksum (ICRC) covers the addresses; let both "
		       "ends see each other's own address (containers: --network host, or a routed network)");
}

static void say_host_damaged(struct vb_text *t, const struct vb_reach_host *of)
{
	vb_text_add(t, "%u packet%s from ", of->bad, of->bad == 1 ? "" : "s");
	vb_gid_add(t, of->gid);
	vb_text_add(t, " had a wrong checksum (ICRC): something on the way translates addresses (NAT), which "
		       "RoCEv2 does not pass, or damages packets");
}

/* Long packets were lost without a word where shorter ones passed. */
static void say_host_long(struct vb_text *t, const struct vb_reach_host *of)
{
	unsigned set = of->passed >= 2048 ? 2048 : 1024;

	vb_text_add(t, "packets of up to %u bytes to ", of->passed);
	vb_gid_add(t, of->gid);
	vb_text_add(
	    t,
	    " were acknowledged, but of this longer message, with packets of path_mtu = %u bytes, none is: "
	    "something on the way has a smaller MTU than both ends; set path_mtu to %u bytes at both ends "
	    "(perftest: -m %u). If that changes nothing, run verbena explain on that host: the program "
	    "there may have ended or be stopped",
	    of->path_mtu, set, set);
}

/* Long packets may be lost without a word where short ones pass. */
static void add_long(struct vb_text *t, const struct vb_reach_host *of)
{
	if (of->path_mtu)
		vb_text_add(
		    t,
		    " If short messages pass (perftest: -s 64), packets of path_mtu = %u bytes are too long "
		    "for the way: set path_mtu to 1024 bytes at both ends",
		    of->path_mtu);
}

static void say_host_silent(struct vb_text *t, const struct vb_reach_host *of)
{
	char name[68];

	vb_text_add(t, "no RoCEv2 packet has arrived from ");
	vb_gid_add(t, of->gid);
	vb_text_add(t,
		    " on %s, and no ICMP message: is the host up, is a program with this queue pair running "
		    "there, does each packet filter let UDP port 4791 in at both ends, or does something "
		    "translate the address of this host (NAT; verbena explain there says so)?",
		    interface(name, of->ifname));
	add_long(t, of);
}

static void say_host_quiet(struct vb_text *t, const struct vb_reach_host *of)
{
	vb_gid_add(t, of->gid);
	vb_text_add(
	    t,
	    " was heard last %u.%u s ago: since then the program there has ended, is stopped or gets no CPU, "
	    "its queue pair is gone, a packet filter drops UDP port 4791, or its host or the network between "
	    "has "
	    "failed; run verbena explain on that host%s",
	    of->heard_ms / 1000, of->heard_ms / 100 % 10, of->path_mtu ? "." : "");
	add_long(t, of);
}

static void say_host_others(struct vb_text *t, const struct vb_reach_host *of)
{
	vb_text_add(t, "RoCEv2 packets from ");
	vb_gid_add(t, of->gid);
	vb_text_add(
	    t,
	    " arrive (the last one %u.%u s ago), but no answer to this queue pair: the one there was "
	    "destroyed, is not in RTR or RTS, or is connected to another queue pair or address; compare "
	    "dest_qp_num and the GIDs (dgid) of both ends%s",
	    of->heard_ms / 1000, of->heard_ms / 100 % 10, of->path_mtu ? "." : "");
	add_long(t, of);
}

static void say_cm_silent(struct vb_text *t, const struct vb_reach_host *of)
{
	char name[68];

	vb_text_add(t, "no RoCEv2 packet has arrived from ");
	vb_gid_add(t, of->gid);
	vb_text_add(
	    t,
	    " on %s, and no ICMP message: is the host up, is a program that uses rdma_cm running "
	    "there, and not stopped, does each packet filter let UDP port 4791 in at both ends, or does "
	    "something translate addresses (NAT)?",
	    interface(name, of->ifname));
}

static void say_cm_quiet(struct vb_text *t, const struct vb_reach_host *of)
{
	vb_gid_add(t, of->gid);
	vb_text_add(
	    t,
	    " was heard last %u.%u s ago: since then the program there has ended, is stopped or gets no CPU, "
	    "a packet filter drops UDP port 4791, or its host or the network between has failed; run verbena "
	    "explain on that host",
	    of->heard_ms / 1000, of->heard_ms / 100 % 10);
}

static void say_cm_others(struct vb_text *t, const struct vb_reach_host *of)
{
	vb_text_add(t, "RoCEv2 packets from ");
	vb_gid_add(t, of->gid);
	vb_text_add(
	    t,
	    " arrive (the last one %u.%u s ago), but no answer to this message: the program there has not "
	    "got its event, is stopped or gets no CPU, or a packet filter there does not let UDP port 4791 "
	    "in; run verbena explain on that host",
	    of->heard_ms / 1000, of->heard_ms / 100 % 10);
}

/* ---- numbers ---- */

static void say_group(struct vb_text *t, const struct vb_reach_number *of)
{
	if (of->datagram)
		vb_text_add(t, "the address handle is for a multicast group; set remote_qpn to 0xffffff, the "
			       "queue pair number of groups");
	else
		vb_text_add(t,
			    "the GID in the path (dgid) is a multicast group's; only UD queue pairs send to "
			    "groups");
}

static void say_no_group(struct vb_text *t, const struct vb_reach_none *of)
{
	vb_text_add(t, "0xffffff is the queue pair number of multicast groups, but the address handle is not "
		       "for a group; set remote_qpn to the qp_num of the peer's queue pair, or dgid to the "
		       "GID of the group");
}

static void say_qp1(struct vb_text *t, const struct vb_reach_none *of)
{
	vb_text_add(t, "1 is the number of QP1, which belongs to the connection manager; set remote_qpn to "
		       "the qp_num of the peer's queue pair");
}

/* Where the far end's number comes from. */
static const char *number_of(const struct vb_reach_number *of)
{
	if (of->datagram)
		return "remote_qpn";
	return of->ends & VB_END_HERE ? "rdma_conn_param.qp_num of the peer" : "dest_qp_num";
}

static void say_unset(struct vb_text *t, const struct vb_reach_number *of)
{
	vb_text_add(t, "%s is 0, so it was never set; set it to the qp_num of the peer's queue pair",
		    number_of(of));
}

static void say_reversed(struct vb_text *t, const struct vb_reach_reversed *of)
{
	const struct vb_reach_number number = {.ends = of->ends};

	vb_text_add(t,
		    "no queue pair has that number, but with its bytes reversed it is 0x%06x, a queue pair "
		    "number of process %u; %s is in host byte order: convert it once when you send it "
		    "(htonl) and once when you receive it (ntohl)",
		    of->qpn, of->pid, number_of(&number));
}

static void say_lid(struct vb_text *t, const struct vb_reach_lid *of)
{
	vb_text_add(t, "no port of this network namespace has the LID in the path (dlid 0x%x)%s", of->lid,
		    of->lid ? ", and InfiniBand ports do not reach other network namespaces"
			    : "; 0 is the LID of an Ethernet port: was the peer started without "
			      "--link=infiniband (VERBENA_LINK), or was its LID not copied?");
}

static void say_link(struct vb_text *t, const struct vb_reach_link *of)
{
	bool ib = of->theirs == IBV_LINK_LAYER_INFINIBAND;
	char who[64];

	vb_text_add(
	    t,
	    "%s refuses the connection: its ports are %s, and this process's ports are %s; use the same link "
	    "layer at both ends (verbena run --link, VERBENA_LINK)",
	    holder(who, of->pid), ib ? "InfiniBand" : "Ethernet", ib ? "Ethernet" : "InfiniBand");
}

static void say_no_qp(struct vb_text *t, const struct vb_reach_number *of)
{
	vb_text_add(t, "its process has no such queue pair: it was destroyed, or %s is wrong", number_of(of));
}

static void say_state(struct vb_text *t, const struct vb_reach_state *of)
{
	vb_text_add(t, "it is in state %s, which receives no packets: ", vb_qp_state_name(of->state));
	if (of->state == IBV_QPS_ERR)
		vb_text_add(t, "the log of its process has the first failure");
	else if (of->ends & VB_END_THERE)
		vb_text_add(t,
			    "its program must call rdma_get_cm_event, which returns the connection's event "
			    "and brings it to RTS");
	else
		vb_text_add(t, "its program must bring it to RTR with ibv_modify_qp first");
}

static const char *type_name(uint32_t type)
{
	const char *name = vb_name_qp_type((enum ibv_qp_type)type);

	return name ? name : "another type";
}

static void say_type(struct vb_text *t, const struct vb_reach_types *of)
{
	vb_text_add(t,
		    "it has type %s, but this queue pair has type %s; both ends must have the same type "
		    "(qp_type of ibv_create_qp)",
		    type_name(of->theirs), type_name(of->ours));
}

static void say_other(struct vb_text *t, const struct vb_reach_other *of)
{
	if (!of->qpn)
		vb_text_add(
		    t,
		    "it receives nothing from this queue pair, because its %s is 0, so it was never set; set "
		    "it to this queue pair's number",
		    of->ends & VB_END_THERE ? "rdma_conn_param.qp_num" : "dest_qp_num");
	else
		vb_text_add(
		    t,
		    "it is connected to queue pair 0x%06x and receives nothing from this one; set %s to this "
		    "queue pair's number (or was the address copied from another network namespace?)",
		    of->qpn,
		    of->ends & VB_END_THERE ? "rdma_conn_param.qp_num of this end" : "its dest_qp_num");
}

static void say_psn(struct vb_text *t, const struct vb_reach_psn *of)
{
	vb_text_add(t, "it expects PSN 0x%06x, but this end sends PSN 0x%06x; ", of->expected, of->sent);
	if (of->ends)
		vb_text_add(t, "leave sq_psn and rq_psn as rdma_init_qp_attr sets them at each end");
	else
		vb_text_add(t, "set sq_psn here and rq_psn there to the same value");
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
