/* A communication manager and a connection from the inside: for the files of the protocol (cm.c, call.c,
 * input.c, say.c, numbers.c) alone. */
#ifndef VB_CM_CONN_H
#define VB_CM_CONN_H

#include "base/slab.h"
#include "cm/cm.h"
#include "cm/numbers.h"
#include "cm/states.h"

/* The ACK timeout of a path about which REQ says nothing: what the kernel supposes of RoCE, where nobody can
 * be asked for a packet life time (2^18 * 4.096 us), plus one. */
#define VB_CM_ACK_TIMEOUT 19

struct vb_cm {
	const struct vb_cm_ops *ops;
	void *user;
	struct vb_lock *lock; /* the caller's; guards all that follows, and all connections */
	uint64_t ca_guid;
	uint32_t number;
	uint32_t index; /* of the last comm ID that was given */
	uint32_t conns;
	uint32_t resting; /* those in TIMEWAIT, and numbers that have outlived their connection */
	struct vb_cm_numbers numbers;
	struct vb_cm_counts counts;
	struct vb_slab slab; /* of connections */
};

struct vb_cm_inner {
	uint32_t slot;	     /* in cm->numbers */
	struct vb_list gone; /* in the list of vb_cm_gone() */
	uint64_t tid;	     /* of the exchange that is under way: of the REQ, the DREQ */
	uint64_t timeout;    /* of one attempt, ns */
	uint64_t prolonged;  /* the same of the message that an MRA was about; 0: none was */
	uint64_t wait;	     /* how long TIMEWAIT is, ns */
	uint64_t late;	 /* how long a far end may go on saying REP if it is not told that nobody waits, ns */
	uint64_t life;	 /* twice the packet life time, ns; 0: not known */
	uint8_t retries; /* how often each message may be said again, */
	uint8_t left;	 /* and this one still */
	uint8_t repeats; /* as struct vb_cm_awaited has them, as are the next two */
	bool taken;
	uint64_t since;
	bool begun;    /* it has had its exchange */
	bool shown;    /* its comm ID has been on the wire */
	bool about;    /* packets of its QPs may be about */
	bool busy;     /* in ops->event(), */
	bool ended;    /* where it was ended: its memory goes after that */
	uint16_t said; /* enum vb_cm_kind of what stands here; 0: nothing */
	uint8_t mad[VB_MAD_LEN];
};

/* A new connection of whichever end.  NULL: no memory, or no comm ID is free.  Pairs with vb_cm_end(), or
 * vb_cm_discard(), which says nothing and keeps no number. */
struct vb_cm_conn *vb_cm_conn_new(struct vb_cm *cm, void *user);
void vb_cm_discard(struct vb_cm_conn *c);
/* Enters a state: what it is known by, and what is due then. */
void vb_cm_enter(struct vb_cm_conn *c, enum vb_cm_state to, uint64_t now);
/* Tells the upper layer; false: it refused.  Afterwards c may be no more, so nobody looks at it again. */
bool vb_cm_tell(struct vb_cm_conn *c, const struct vb_cm_event *e);

static inline struct vb_cm_num *vb_cm_conn_num(const struct vb_cm_conn *c)
{
	return vb_cm_num(&c->cm->numbers, c->inner->slot);
}

/* say.c.  A message of this connection: its IDs and its transaction are filled in. */
struct vb_cm_msg vb_cm_compose(const struct vb_cm_conn *c, enum vb_cm_kind kind,
			       const struct vb_cm_private *private);
/* Says it, and keeps it to be said again. */
void vb_cm_say(struct vb_cm_conn *c, const struct vb_cm_msg *m);
/* Only the latter. */
void vb_cm_keep(struct vb_cm_conn *c, const struct vb_cm_msg *m);
void vb_cm_say_again(struct vb_cm_conn *c);
void vb_cm_say_rej(struct vb_cm_conn *c, uint16_t reason, const uint8_t *info, size_t info_len,
		   const struct vb_cm_private *private);
/* REJ (4): nobody answers; with this end's CA GUID, by which the far end knows what it is about. */
void vb_cm_say_timeout(struct vb_cm_conn *c);
/* A new transaction: its ID has the comm ID in it, and chance, so that an answer to an earlier holder of the
 * comm ID is seen to be none to this. */
void vb_cm_new_tid(struct vb_cm_conn *c);
void vb_cm_say_dreq(struct vb_cm_conn *c, const struct vb_cm_private *private);
/* Answers a message that leads to no connection, or to none that would take it. */
void vb_cm_answer_rej(struct vb_cm *cm, const struct vb_cm_av *av, const struct vb_cm_msg *to,
		      uint16_t reason);
void vb_cm_answer_drep(struct vb_cm *cm, const struct vb_cm_av *av, const struct vb_cm_msg *to);
void vb_cm_answer_apr(struct vb_cm *cm, const struct vb_cm_av *av, const struct vb_cm_msg *to,
		      uint8_t status);
void vb_cm_answer_sidr(struct vb_cm *cm, const struct vb_cm_av *av, const struct vb_cm_msg *to,
		       uint8_t status);

/* call.c.  What a REQ says to the passive end. */
void vb_cm_agree_passive(struct vb_cm_conn *c, const struct vb_cm_msg *m, const struct vb_cm_av *from);

/* input.c.  RC, UC or XRC. */
bool vb_cm_service_is_known(const struct vb_cm_req *req);
/* Takes what c's far end would have said, had it lived; `gone` comes with the event. */
void vb_cm_inherit(struct vb_cm_conn *c, const void *gone, uint64_t now);

#endif
