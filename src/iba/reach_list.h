/* What may be known of a far end that does not answer, once: the enum (iba/reach.h) and the choice among the
 * clauses (iba/reach.c) are made from these rows, so one without a clause does not build.
 *
 * With each its two numbers, a and b; b is 0 where none is named.  "Its process" is the one that holds the
 * adapter number in the QP number; a PID of 0 is one of another PID namespace. */

/* nobody in this network namespace has bound the adapter number */
REACH(VB_REACH_NOBODY, say_nobody)
/* nor has anybody here; in the network namespace of process a somebody has, b: that very process */
REACH(VB_REACH_ELSEWHERE, say_elsewhere)
/* a process of user a has bound it and does not listen */
REACH(VB_REACH_DEAF, say_deaf)
/* this process cannot make contact: errno a, in the call b (enum vb_reach_call) */
REACH(VB_REACH_TROUBLE, say_trouble)
/* its process (a, its PID) does not answer our hello */
REACH(VB_REACH_SILENT, say_silent)
/* its process (a, its PID) closed the connection */
REACH(VB_REACH_LEFT, say_left)
/* the GID in the path is no address of this host, and no wire leads to others */
REACH(VB_REACH_ADDRESS, say_address)
/* the process is there, the QP is not */
REACH(VB_REACH_NO_QP, say_no_qp)
/* the QP takes no packets in its state (a, enum ibv_qp_state) */
REACH(VB_REACH_STATE, say_state)
/* it is connected to QP a, and not to this one */
REACH(VB_REACH_OTHER, say_other)
/* it expects PSN a, and this end sends b */
REACH(VB_REACH_PSN, say_psn)
/* its process (a, its PID) lacks what contact takes */
REACH(VB_REACH_UNABLE, say_unable)
/* its process b is of user a, and so not of this one */
REACH(VB_REACH_USER, say_user)
/* its process a is of a user that has no number in this user namespace */
REACH(VB_REACH_UNMAPPED, say_unmapped)
/* this process's own user has none (it reads as a): nobody can be told to be it */
REACH(VB_REACH_NAMELESS, say_nameless)
/* its process a has another version of ours: b, theirs << 16 | this one's */
REACH(VB_REACH_VERSION, say_version)
/* its process a does not speak as this version of ours does */
REACH(VB_REACH_STRANGER, say_stranger)
/* its process a closed the connection without an answer */
REACH(VB_REACH_CLOSED, say_closed)
/* its process a has refused, for a reason that has no line here */
REACH(VB_REACH_REFUSED, say_refused)
/* its process a has refused: it takes this one for another user's */
REACH(VB_REACH_NOT_ITS_OWN, say_not_its_own)
/* its process a may not make a call that contact takes: b, call << 16 | errno */
REACH(VB_REACH_DENIED, say_denied)
