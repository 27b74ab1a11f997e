/* What may be known of a far end that does not answer, once: the enum (iba/reach.h) and the choice among the
 * clauses (iba/reach.c) are made from these rows, so one without a clause does not build.
 *
 * The columns: what is known; kind of its facts, which is a member of struct vb_reach_facts (iba/reach.h);
 * clause, which takes facts of that kind.  "Its process" is the one that holds the adapter number in the QP
 * number. */

/* nobody in this network namespace has bound the adapter number */
REACH(VB_REACH_NOBODY, none, say_nobody)
/* nor has anybody here; in another network namespace somebody has */
REACH(VB_REACH_ELSEWHERE, elsewhere, say_elsewhere)
/* a process of that user has bound it and does not listen */
REACH(VB_REACH_DEAF, uid, say_deaf)
/* this process cannot make contact: a call fails */
REACH(VB_REACH_TROUBLE, trouble, say_trouble)
/* its process does not answer our hello */
REACH(VB_REACH_SILENT, process, say_silent)
/* its process closed the connection */
REACH(VB_REACH_LEFT, process, say_left)
/* the GID in the path is no address of this network namespace, and no wire leads to others */
REACH(VB_REACH_ADDRESS, away, say_address)
/* this host's packet filter refuses packets to the far end's address */
REACH(VB_REACH_HOST_FILTER, host, say_host_filter)
/* no route leads there from the device's interface */
REACH(VB_REACH_HOST_ROUTE, host, say_host_route)
/* the device's interface is down */
REACH(VB_REACH_HOST_DOWN, host, say_host_down)
/* a router, or this host, knows that nobody has the address */
REACH(VB_REACH_HOST_ABSENT, host, say_host_absent)
/* a packet filter on the way says that it refuses the packets */
REACH(VB_REACH_HOST_FORBIDDEN, host, say_host_forbidden)
/* its host has nobody at the UDP port */
REACH(VB_REACH_HOST_CLOSED, host, say_host_closed)
/* packets are longer than the way takes */
REACH(VB_REACH_HOST_MTU, host, say_host_mtu)
/* short packets were acknowledged, and none of the long ones since */
REACH(VB_REACH_HOST_LONG, host, say_host_long)
/* an ICRC is right for other addresses than those of the packet */
REACH(VB_REACH_HOST_NAT, nat, say_host_nat)
/* its packets have wrong ICRCs */
REACH(VB_REACH_HOST_DAMAGED, host, say_host_damaged)
/* nothing has ever come from there, and nobody says why */
REACH(VB_REACH_HOST_SILENT, host, say_host_silent)
/* something has, before the queue pair began to wait */
REACH(VB_REACH_HOST_QUIET, host, say_host_quiet)
/* something comes, but no answer */
REACH(VB_REACH_HOST_OTHERS, host, say_host_others)
/* the last three again, of a message of rdma_cm's: it has no queue pair at either end */
REACH(VB_REACH_CM_SILENT, host, say_cm_silent)
REACH(VB_REACH_CM_QUIET, host, say_cm_quiet)
REACH(VB_REACH_CM_OTHERS, host, say_cm_others)
/* the GID is a multicast group's, and the number is not the one that groups have */
REACH(VB_REACH_GROUP, number, say_group)
/* the number of the far end's queue pair is 0 */
REACH(VB_REACH_UNSET, number, say_unset)
/* the LID in the path is no port's of this network namespace */
REACH(VB_REACH_LID, lid, say_lid)
/* its process presents ports of another link layer, and refuses */
REACH(VB_REACH_LINK, link, say_link)
/* the process is there, the QP is not */
REACH(VB_REACH_NO_QP, number, say_no_qp)
/* the QP takes no packets in its state */
REACH(VB_REACH_STATE, state, say_state)
/* it is connected to another QP than this one */
REACH(VB_REACH_OTHER, other, say_other)
/* it expects another PSN than this end sends */
REACH(VB_REACH_PSN, psn, say_psn)
/* its process lacks what contact takes */
REACH(VB_REACH_UNABLE, process, say_unable)
/* its process is another user's */
REACH(VB_REACH_USER, user, say_user)
/* its process is of a user that has no number in this user namespace */
REACH(VB_REACH_UNMAPPED, process, say_unmapped)
/* this process's own user has none (it reads as the uid): nobody can be told to be it */
REACH(VB_REACH_NAMELESS, uid, say_nameless)
/* its process has another version of ours */
REACH(VB_REACH_VERSION, version, say_version)
/* its process does not speak as this version of ours does */
REACH(VB_REACH_STRANGER, process, say_stranger)
/* its process closed the connection without an answer */
REACH(VB_REACH_CLOSED, process, say_closed)
/* its process has refused, for a reason that has no line here */
REACH(VB_REACH_REFUSED, process, say_refused)
/* its process has refused: it takes this one for another user's */
REACH(VB_REACH_NOT_ITS_OWN, process, say_not_its_own)
/* its process may not make a call that contact takes */
REACH(VB_REACH_DENIED, denied, say_denied)
/* its process is stopped, by a signal or a debugger */
REACH(VB_REACH_STOPPED, process, say_stopped)
/* it is of another type than this one */
REACH(VB_REACH_TYPE, types, say_type)
/* a datagram to the number of groups' queue pairs, by an address that is not a group's */
REACH(VB_REACH_NO_GROUP, none, say_no_group)
/* a datagram to QP1 */
REACH(VB_REACH_QP1, none, say_qp1)
/* no queue pair has the number, but one has it with its bytes reversed */
REACH(VB_REACH_REVERSED, reversed, say_reversed)
