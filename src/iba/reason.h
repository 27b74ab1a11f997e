/* Why something failed: one table of reasons (iba/reason_list.h) from which the NAK code, both completion
 * statuses, the asynchronous event and the sentence follow.  The check that fails decides the reason, once;
 * the facts travel with it. */
#ifndef VB_IBA_REASON_H
#define VB_IBA_REASON_H

#include <stddef.h>
#include <stdint.h>

#include "iba/reach.h"

enum vb_reason {
#define REASON(r, ...) r,
#include "iba/reason_list.h"
#undef REASON
	VB_REASONS
};

/* What a reason's facts are about: its row says so, and with it which member of the union in struct vb_facts
 * holds them; both have the same name. */
enum vb_facts_kind {
	VB_FACTS_none,
	VB_FACTS_mem,
	VB_FACTS_window,
	VB_FACTS_access,
	VB_FACTS_atomic,
	VB_FACTS_limit,
	VB_FACTS_packet,
	VB_FACTS_length,
	VB_FACTS_mtu,
	VB_FACTS_retry,
	VB_FACTS_gone,
	VB_FACTS_srq,
	VB_FACTS_no_qp,
	VB_FACTS_psn,
	VB_FACTS_qkey,
	VB_FACTS_request,
};

struct vb_none_facts {
	uint32_t nothing; /* the reason says it all */
};

/* A key, and the memory that it leads to or should lead to. */
struct vb_mem_facts {
	uint32_t flags;	  /* VB_KEYF_* */
	uint32_t cur_key; /* the key that the index has now, 0: none; as flags and `meant` say, another one
			     that was probably meant */
	uint64_t start, size;	   /* region found or nearest, size 0: none */
	uint32_t want, have;	   /* access bits (enum ibv_access_flags) wanted and had */
	uint32_t pd_want, pd_have; /* protection domains: of the request, of the region */
	uint32_t meant;		   /* enum vb_meant */
	uint32_t process;	   /* the other process that has the key, 0: none is known */
	uint64_t meant_addr;	   /* the address, read as `meant` says */
	uint64_t reached; /* MEM_VANISHED: the first address that could not be reached, or that of the piece
			     in which it lies */
};

/* A memory window, its binding, and the region that it is bound to. */
struct vb_window_facts {
	uint32_t bound_key;   /* R_Key that it is bound under, 0: it is not bound */
	uint32_t bound_qpn;   /* QP that it is bound on */
	uint32_t region;      /* BIND_*: L_Key of the region, 0: it was not looked at */
	uint32_t want, have;  /* access bits that the region needs and has */
	uint64_t start, size; /* that region */
};

/* What the QP permits. */
struct vb_access_facts {
	uint32_t want, have; /* access bits */
};

struct vb_atomic_facts {
	uint64_t memory; /* where f->addr lies in its owner's address space */
};

struct vb_limit_facts {
	uint32_t most; /* what there is: responder resources, entries of the CQ */
};

struct vb_packet_facts {
	uint32_t opcode; /* that came */
	uint32_t before; /* BAD_SEQUENCE: the one before it */
};

struct vb_length_facts {
	uint64_t bytes; /* that came, or that there are */
	uint64_t fit;	/* that were due, or that there is room for */
};

/* f->len: of the message, or of what came of it. */
struct vb_mtu_facts {
	uint32_t sender, receiver; /* path MTU in bytes, of the packet's ends */
};

struct vb_retry_facts {
	uint32_t retries;	       /* rnr_retry or retry_cnt */
	uint32_t peer_qpn;	       /* of the QP that did not answer */
	uint32_t slow_ms;	       /* RNR: for so long it counted as slow before; 0: it did not */
	uint32_t srq;		       /* RNR: number of the SRQ that it receives from, 0: none is known */
	struct vb_reach_facts silence; /* RETRY: why it did not */
};

struct vb_gone_facts {
	uint32_t pid; /* the peer's */
	uint32_t how; /* enum vb_gone */
};

/* What is known of an SRQ number that leads nowhere. */
enum vb_srq_lost {
	VB_SRQ_UNKNOWN, /* its process has no SRQ of XRC of that number */
	VB_SRQ_DOMAIN,	/* there is one, in another XRC domain */
	VB_SRQ_GONE,	/* the process that had it has ended */
	VB_SRQ_NOBODY,	/* no process that can be reached has such numbers */
};

/* What a message of XRC names. */
struct vb_srq_facts {
	uint32_t number;
	uint32_t lost; /* enum vb_srq_lost */
	uint32_t pid;  /* of VB_SRQ_GONE; 0: of another PID namespace */
};

/* Why a queue pair does not take a message of an unreliable type. */
enum vb_not_taken {
	VB_NOT_THERE,	 /* no queue pair has the number */
	VB_NOT_TYPE,	 /* it is of another type */
	VB_NOT_READY,	 /* its state takes none */
	VB_NOT_FROM_HIM, /* it is connected to another sender */
};

struct vb_no_qp_facts {
	uint32_t why;	/* enum vb_not_taken */
	uint32_t type;	/* enum ibv_qp_type of the queue pair */
	uint32_t sent;	/* enum ibv_qp_type of such a message */
	uint32_t state; /* enum ibv_qp_state */
	uint32_t dest;	/* QPN that it is connected to */
};

struct vb_psn_facts {
	uint32_t expected, came;
};

struct vb_qkey_facts {
	uint32_t have, came;
};

struct vb_request_facts {
	uint32_t opcode; /* enum ibv_wr_opcode */
	uint32_t type;	 /* enum ibv_qp_type */
};

/* The live facts of one failure.  Plain numbers only: they may cross to a peer on the same host inside a NAK
 * (fixed layout, no pointers), and are data from outside there.  The reason is the tag of the union. */
struct vb_facts {
	uint32_t reason; /* enum vb_reason */
	uint16_t check; /* RECV_LOCAL: the reason of the check that failed (enum vb_reason), whose facts these
			   are */
	uint16_t ends;	/* VB_END_*, as seen from the end that found it: filled in where it is said */
	uint32_t qpn;	/* of the QP where the check failed */
	uint32_t key;	/* as given, 0: no key has a part in it */
	uint64_t addr, len; /* range wanted */
	union {
		struct vb_mem_facts mem; /* the largest: an initializer clears all */
		struct vb_none_facts none;
		struct vb_window_facts window;
		struct vb_access_facts access;
		struct vb_atomic_facts atomic;
		struct vb_limit_facts limit;
		struct vb_packet_facts packet;
		struct vb_length_facts length;
		struct vb_mtu_facts mtu;
		struct vb_retry_facts retry;
		struct vb_gone_facts gone;
		struct vb_srq_facts srq;
		struct vb_no_qp_facts no_qp;
		struct vb_psn_facts psn;
		struct vb_qkey_facts qkey;
		struct vb_request_facts request;
	};
};

/* What else is known of a wrong key. */
enum {
	VB_KEYF_REMOTE = 1,  /* it was used as an R_Key */
	VB_KEYF_NEAR = 2,    /* cur_key (with start, size and pd_have, unless those are the key's own) is the
				key of the region that holds the range, or of the nearest one */
	VB_KEYF_PEERS = 4,   /* it is a live R_Key of `process` */
	VB_KEYF_WINDOW = 8,  /* it is a memory window's, or its number is */
	VB_KEYF_ASKER = 16,  /* `process` is the one that used it here */
	VB_KEYF_UNSURE = 32, /* a stale one: whether it was ever given out cannot be told */
	VB_KEYF_NEAR_WINDOW = 64, /* what cur_key leads to is a memory window */
	VB_KEYF_NEAR_PD = 128,	  /* and of another protection domain */
	VB_KEYF_OTHER_HOME = 256, /* another process made the protection domain that it belongs to */
	VB_KEYF_OWN = 512,	  /* the range lies in a region of the requester's own process */
	VB_KEYF_SELF = 1024,	  /* the queue pair is connected to itself */
};

/* How address and key of a request must be read for both to be right: then they lead to the region of
 * cur_key, [start, +size). */
enum vb_meant {
	VB_MEANT_AS_IS, /* none is known */
	VB_MEANT_ADDR_REVERSED,
	VB_MEANT_KEY_REVERSED,
	VB_MEANT_BOTH_REVERSED,
	VB_MEANT_WHOLE,	    /* half of the address is lost */
	VB_MEANT_EXCHANGED, /* the key stands where the address belongs, half of that where the key does */
};

/* How a peer without a goodbye went. */
enum vb_gone {
	VB_GONE_ENDED,	 /* its process ended */
	VB_GONE_UNCLEAR, /* it did, or it closed its descriptors, or exec()ed: that cannot be seen from here
			  */
	VB_GONE_CLOSED,	 /* its process closed the descriptors of its device */
	VB_GONE_EXEC,	 /* its process runs another program */
	VB_GONE_BROKEN,	 /* it ended the connection, since it got rubbish */
	VB_GONE_RUBBISH, /* this end did */
};

struct vb_reason_row {
	const char *name;  /* stable, for docs and machines: "key-bounds" */
	uint8_t nak;	   /* syndrome the responder answers with, 0: none */
	uint8_t remote_wc; /* enum ibv_wc_status of the requester whose request met it at the far end */
	uint8_t local_wc;  /* enum ibv_wc_status of the WQE at the side that found it */
	uint8_t event;	   /* enum ibv_event_type at the responder when no receive WQE takes the error,
			      0xff: none */
	uint8_t facts;	   /* enum vb_facts_kind */
};

extern const struct vb_reason_row vb_reasons[VB_REASONS];

/* The sentence with its numbers, cut to `size`; returns buf.  Facts from a peer are bounds-checked here. */
const char *vb_reason_say(char *buf, size_t size, const struct vb_facts *f);

/* What is dropped in silence for that reason, for counts of it; NULL: nothing is. */
const char *vb_reason_dropped(enum vb_reason r);

/* By how many bytes a range misses a region; 0: it lies in it. */
uint64_t vb_range_missed(uint64_t start, uint64_t size, uint64_t addr, uint64_t len);
/* Access bits by name: "LOCAL_WRITE|REMOTE_READ"; none: "local read only".  Returns buf. */
const char *vb_access_say(char *buf, size_t size, uint32_t access);

#endif
