/* Why something failed: one table of reasons (iba/reason_list.h) from which the NAK code, both completion
 * statuses, the asynchronous event and the sentence follow.  The check that fails decides the reason, once;
 * the facts travel with it. */
#ifndef VB_IBA_REASON_H
#define VB_IBA_REASON_H

#include <stddef.h>
#include <stdint.h>

enum vb_reason {
#define REASON(r, ...) r,
#include "iba/reason_list.h"
#undef REASON
	VB_REASONS
};

/* The live facts of one failure.  Plain numbers only: they may cross to a peer on the same host inside a NAK
 * (fixed layout, no pointers), and are data from outside there. */
struct vb_facts {
	uint32_t reason;      /* enum vb_reason */
	uint32_t qpn;	      /* of the QP where the check failed */
	uint32_t key;	      /* as given */
	uint32_t cur_key;     /* the key that the index has now, 0: none */
	uint64_t addr, len;   /* range wanted */
	uint64_t start, size; /* region found or nearest, size 0: none */
	uint32_t want, have;  /* access bits (enum ibv_access_flags) wanted and had */
	uint32_t pd_want, pd_have;
	uint32_t check;	     /* RECV_LOCAL: enum vb_reason of the check that failed */
	uint32_t meant;	     /* KEY_*: enum vb_meant */
	uint64_t meant_addr; /* likewise: the address, read that way */
	uint64_t a, b;	     /* reason's own numbers, 0 where unknown:
				KEY_*           a: VB_KEYF_*, b: process of VB_KEYF_STRANGER
				KEY_OWNER_GONE, KEY_NO_CONTACT, MEM_FORBIDDEN, ATOMIC_FOREIGN
						b: the process whose memory it is, 0: not known
				KEY_QP, INV_QP  b: the QP that the window is bound on
				MEM_VANISHED    a: the first address that could not be reached, or that of the
						piece in which it lies
				BIND_*          a: L_Key of the region
				RECV_TOO_SMALL  a: bytes of the message that came, b: bytes of the buffer
				TOO_MANY_READS  a: responder resources, b: those that would be needed
				BAD_SEQUENCE    a: opcode that came, b: opcode before it
				BAD_LENGTH      a: bytes that came, b: bytes that were due
				PATH_MTU, RESPONSE_MTU
						a: path MTU of the sender, b: of the end that found it, len:
						of the message, or of what came of it
				ATOMIC_ALIGN    a: CPU address
				RECV_LOCAL      as that of the check that failed
				MSG_TOO_LONG    a: bytes asked for, b: limit
				RESPONSE_BAD    a: opcode that came
				RNR             a: rnr_retry, b: the far end's QPN
				RETRY           a: retry_cnt, b: the far end's QPN, have: enum vb_reach
						(iba/reach.h), pd_want and pd_have: its a and b
				PEER_DIED, PEER_CLOSED
						a: the peer's PID, have: VB_GONE_*
				FLUSHED         a: send requests flushed, b: receive requests flushed
				CQ_OVERRUN      a: entries of the CQ */
};

/* What else is known of a wrong key. */
enum {
	VB_KEYF_REMOTE = 1,   /* it was used as an R_Key */
	VB_KEYF_NEAR = 2,     /* cur_key (with start, size and pd_have, unless those are the key's own) is the
				 key of the region that holds the range, or of the nearest one */
	VB_KEYF_STRANGER = 4, /* it is a live R_Key of process b */
	VB_KEYF_WINDOW = 8,   /* it is a memory window's, or its number is */
	VB_KEYF_ASKER = 16,   /* process b is the one that used it here */
	VB_KEYF_UNSURE = 32,  /* a stale one: whether it was ever given out cannot be told */
	VB_KEYF_NEAR_WINDOW = 64, /* what cur_key leads to is a memory window */
	VB_KEYF_NEAR_PD = 128,	  /* and of another protection domain */
	VB_KEYF_OTHER_HOME = 256, /* another process made the protection domain that it belongs to */
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
};

extern const struct vb_reason_row vb_reasons[VB_REASONS];

/* The sentence with its numbers, cut to `size`; returns buf.  Facts from a peer are bounds-checked here. */
const char *vb_reason_say(char *buf, size_t size, const struct vb_facts *f);

/* By how many bytes a range misses a region; 0: it lies in it. */
uint64_t vb_range_missed(uint64_t start, uint64_t size, uint64_t addr, uint64_t len);
/* Access bits by name: "LOCAL_WRITE|REMOTE_READ"; none: "local read only".  Returns buf. */
const char *vb_access_say(char *buf, size_t size, uint32_t access);

#endif
