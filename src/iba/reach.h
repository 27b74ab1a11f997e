/* What is known of the other end of a queue pair when acknowledgements or contact do not come. */
#ifndef VB_IBA_REACH_H
#define VB_IBA_REACH_H

#include <stdbool.h>
#include <stdint.h>

#include "base/text.h"
#include "iba/away.h"

enum vb_reach {
	VB_REACH_UNKNOWN, /* nothing: another host, or all looks well from here */
#define REACH(r, ...) r,
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
	VB_CALL_PIDFD_OPEN,
	VB_CALLS
};

/* Which end of a connection rdma_cm made: its attributes are then those of struct rdma_conn_param, and a
 * remedy names these.  Seen from the end that found what the sentence is about. */
enum {
	VB_END_HERE = 1,  /* this one's queue pair */
	VB_END_THERE = 2, /* the far end's */
};

/* Facts, by kind.  A PID of 0 is one of another PID namespace. */
struct vb_reach_none {
	uint32_t nothing; /* the clause says it all */
};

struct vb_reach_process {
	uint32_t pid;
};

struct vb_reach_elsewhere {
	uint32_t pid;	 /* a process in the network namespace where the number is bound */
	uint32_t itself; /* 1: it is the one that has bound it */
};

struct vb_reach_uid {
	uint32_t uid;
};

struct vb_reach_user {
	uint32_t uid, pid;
};

/* A call that fails in this process. */
struct vb_reach_trouble {
	uint32_t err;  /* errno */
	uint32_t call; /* enum vb_reach_call */
};

/* A call that fails in another process. */
struct vb_reach_denied {
	uint32_t pid;
	uint32_t err;  /* errno */
	uint32_t call; /* enum vb_reach_call */
};

struct vb_reach_version {
	uint32_t pid;
	uint32_t theirs, ours; /* VB_SEG_VERSION */
};

struct vb_reach_lid {
	uint32_t lid;
};

struct vb_reach_link {
	uint32_t pid;
	uint32_t theirs; /* enum: IBV_LINK_LAYER_INFINIBAND or _ETHERNET; this process has the other one */
};

/* A far end on a network. */
struct vb_reach_host {
	uint8_t gid[16]; /* its address */
	char ifname[16]; /* of an interface of this host; not terminated if it is full */
	union {
		uint32_t err;	   /* errno, as the kernel told it */
		uint32_t path_mtu; /* LONG, SILENT, QUIET, OTHERS: in bytes; 0: the request's packets are so
				      short that each way takes them */
	};
	union {
		uint32_t
		    other;    /* ROUTE: 1: the interface is another one than the device's, and leads there */
		uint32_t mtu; /* MTU: of the way there; 0: unknown */
		uint32_t passed;   /* LONG: bytes of payload of the longest packet that was acknowledged */
		uint32_t bad;	   /* DAMAGED: packets with a wrong ICRC */
		uint32_t heard_ms; /* QUIET, OTHERS, CLOSED: since its last packet; 0: there was none */
	};
};

struct vb_reach_nat {
	uint8_t gid[16];  /* the far end's address */
	uint8_t from[16]; /* and what its packets have instead */
};

/* Where a queue pair number leads that is none of an address's. */
struct vb_reach_number {
	uint32_t ends;	   /* VB_END_* */
	uint32_t datagram; /* 1: it is a datagram's (remote_qpn), 0: dest_qp_num */
};

struct vb_reach_reversed {
	uint32_t qpn;  /* the number with its bytes reversed */
	uint32_t pid;  /* of the process that owns it */
	uint32_t ends; /* VB_END_* */
};

struct vb_reach_state {
	uint32_t state; /* enum ibv_qp_state */
	uint32_t ends;	/* VB_END_* */
};

struct vb_reach_types {
	uint32_t theirs, ours; /* enum ibv_qp_type */
};

struct vb_reach_other {
	uint32_t qpn;  /* that the far end is connected to */
	uint32_t ends; /* VB_END_* */
};

struct vb_reach_psn {
	uint32_t expected; /* by the far end */
	uint32_t sent;	   /* by this one */
	uint32_t ends;	   /* VB_END_* */
};

/* What is known, and its facts: `reach` is the tag of the union, and its row (iba/reach_list.h) names the
 * member. */
struct vb_reach_facts {
	uint32_t reach; /* enum vb_reach */
	union {
		struct vb_reach_away away; /* the largest: `{0}` clears all */
		struct vb_reach_host host;
		struct vb_reach_nat nat;
		struct vb_reach_denied denied;
		struct vb_reach_version version;
		struct vb_reach_none none;
		struct vb_reach_process process;
		struct vb_reach_elsewhere elsewhere;
		struct vb_reach_uid uid;
		struct vb_reach_user user;
		struct vb_reach_trouble trouble;
		struct vb_reach_lid lid;
		struct vb_reach_link link;
		struct vb_reach_number number;
		struct vb_reach_reversed reversed;
		struct vb_reach_state state;
		struct vb_reach_types types;
		struct vb_reach_other other;
		struct vb_reach_psn psn;
	};
};

/* This process cannot make contact, since a call fails. */
static inline struct vb_reach_facts vb_reach_trouble(int err, enum vb_reach_call call)
{
	return (struct vb_reach_facts){.reach = VB_REACH_TROUBLE, .trouble = {(uint32_t)err, call}};
}

/* Adds a clause that says it, without a full stop; false: nothing is known, nothing was added.  The facts,
 * `reach` included, may come from outside. */
bool vb_reach_add(struct vb_text *t, const struct vb_reach_facts *f);

#endif
