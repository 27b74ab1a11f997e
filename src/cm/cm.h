/* Communication management (IBTA volume 1, chapter 12): connections, listeners and service ID resolutions of
 * one port, as a protocol.  Like transport/ it owns no socket, thread or clock: MADs come in through
 * vb_cm_input(), the time through vb_cm_timer(), MADs leave through ops->send(), and what happened is said
 * through ops->event().  So all of it runs in virtual time.
 *
 * What a state does with each message and each call is a table (states.c).  One lock, the caller's, is held
 * in all calls (asserted); ops are called with it.  ops->event() may call anything here for any connection,
 * vb_cm_end() of its own included, but vb_cm_input(), vb_cm_timer() and vb_cm_gone().  The other ops call
 * nothing here: a MAD that ops->send() brings back to this process is handed over later.
 *
 * A connection serves one exchange: once it is IDLE again it can only be ended.  What it tells, in this
 * order:
 *
 *   active:   REP (at most once) then, after vb_cm_rtu(), as below; or REJ or UNREACHED at any time before
 *   passive:  REQ; RTU (at most once) if vb_cm_established() did not come before it; or REJ or UNREACHED
 *   both:     REJ; or DREQ (at the passive end perhaps in place of RTU), or DREP (in answer to vb_cm_dreq(),
 *             or to a DREQ that was said here for a stale connection), or DREQ and then DREP where both ends
 *             say one; and TIMEWAIT_OVER in the end if the state had been TIMEWAIT.  Each at most once
 *   SIDR:     SIDR_REQ; or SIDR_REP or UNREACHED */
#ifndef VB_CM_CM_H
#define VB_CM_CM_H

#include <stdbool.h>
#include <stdint.h>

#include "base/list.h"
#include "base/lock.h"
#include "iba/cm_msg.h"
#include "iba/far.h"

/* Where the MADs of a connection go, and whence they came: the addresses of both ports. */
struct vb_cm_av {
	uint8_t local_gid[16], remote_gid[16];
	uint16_t local_lid, remote_lid;
	uint32_t flow_label;
	uint8_t traffic_class, hop_limit, sl, rate;
	uint16_t pkey;
	/* Of a MAD that came: who sent it.  Of a connection: with whom it is, and nobody else who comes to
	 * have that number is meant. */
	struct vb_whom whom;
};

enum vb_cm_state {
	VB_CM_IDLE,
	VB_CM_LISTEN,
	VB_CM_REQ_SENT,
	VB_CM_REQ_RCVD,
	VB_CM_MRA_REQ_SENT,
	VB_CM_MRA_REQ_RCVD,
	VB_CM_REP_SENT,
	VB_CM_REP_RCVD,
	VB_CM_MRA_REP_SENT,
	VB_CM_MRA_REP_RCVD,
	VB_CM_ESTABLISHED,
	VB_CM_DREQ_SENT,
	VB_CM_DREQ_RCVD,
	VB_CM_TIMEWAIT,
	VB_CM_SIDR_REQ_SENT,
	VB_CM_SIDR_REQ_RCVD,
	VB_CM_STATES
};

struct vb_cm;
struct vb_cm_conn;

enum vb_cm_happening {
	VB_CM_EV_REQ,	    /* on the new connection, whose `listener` is set */
	VB_CM_EV_REP,	    /* an answer to the REQ: vb_cm_rtu(), vb_cm_rej() or vb_cm_mra() follows */
	VB_CM_EV_RTU,	    /* established, at the passive end, by an RTU */
	VB_CM_EV_REJ,	    /* by the far end, in whichever state; the connection is IDLE, or in TIMEWAIT */
	VB_CM_EV_UNREACHED, /* no answer to REQ, REP or SIDR_REQ after all retries: `about`; IDLE.  The far
			     * end has been told (REJ 4) */
	VB_CM_EV_DREQ,	    /* the far end ends it: vb_cm_drep() follows */
	VB_CM_EV_DREP,	    /* the end has been confirmed, or will not be (`timed_out`); TIMEWAIT */
	VB_CM_EV_TIMEWAIT_OVER, /* the QP may be used again; IDLE */
	VB_CM_EV_SIDR_REQ,	/* on the new exchange */
	VB_CM_EV_SIDR_REP,	/* the answer, of whichever status; IDLE */
};

struct vb_cm_event {
	enum vb_cm_happening what;
	const struct vb_cm_msg *msg; /* REQ, REP, RTU, REJ, DREQ, DREP (if not timed_out), SIDR_REQ, SIDR_REP;
				      * else NULL.  During the call */
	const struct vb_cm_av *av;   /* REQ, SIDR_REQ: of the packet that brought it */
	uint16_t about;		     /* UNREACHED: enum vb_cm_kind */
	uint8_t said;		     /* UNREACHED, a DREP that timed_out: how often */
	bool timed_out;		     /* DREP */
	const void *gone; /* REJ, DREQ, DREP, SIDR_REP that nobody said: what vb_cm_gone() was given */
};

struct vb_cm_ops {
	/* One MAD to the port at av->remote_gid.  `to`: the far end that its comm ID names
	 * (vb_cm_msg_number()); where it names none, whom the REQ or SIDR_REQ went to that is said again or
	 * called off (vb_cm_went()); nobody: to nobody yet.  What is lost is lost. */
	void (*send)(struct vb_cm *cm, const struct vb_cm_av *av, const struct vb_whom *to,
		     const struct vb_cm_msg *m, const uint8_t mad[VB_MAD_LEN]);
	/* Something happened to c.  REQ and SIDR_REQ: false refuses it (the message is dropped, as by a full
	 * backlog, and c ends without a word); the return value of others means nothing. */
	bool (*event)(struct vb_cm_conn *c, const struct vb_cm_event *e);
	/* Who listens for this REQ or SIDR_REQ: an upper layer may look at the addresses in the private data.
	 * NULL: nobody, which is answered so. */
	struct vb_cm_conn *(*listener)(struct vb_cm *cm, const struct vb_cm_msg *m,
				       const struct vb_cm_av *av);
	/* Nobody listens here, and nobody here knows of it: whether that REQ or SIDR_REQ was handed on to
	 * another process of this host that listens now; else it is answered so.  NULL: it never is. */
	bool (*elsewhere)(struct vb_cm *cm, const struct vb_cm_msg *m, const struct vb_cm_av *av,
			  const uint8_t mad[VB_MAD_LEN]);
	/* A number by chance. */
	uint32_t (*chance)(struct vb_cm *cm);
	/* A message that was not answered is about to be said again.  NULL: nobody wants to know. */
	void (*repeats)(struct vb_cm_conn *c);
	/* Its state, or what vb_cm_awaits() says of it, is another one; perhaps within another call here.
	 * NULL: nobody wants to know. */
	void (*changed)(struct vb_cm_conn *c);
};

/* Comm IDs: the number of the adapter, and below it an index that goes round: VB_CM_INDEX_BITS of them. */
#define VB_CM_INDEX_BITS      20
#define VB_CM_NUMBER(comm_id) ((comm_id) >> VB_CM_INDEX_BITS)

/* For which adapter of its port a message is: the number in the comm ID that it is addressed to.  0: none is
 * known. A REQ or SIDR_REQ is for whoever has its service ID; a REJ (4) of a REQ that was never answered for
 * the one to whom that REQ went. */
uint32_t vb_cm_msg_number(const struct vb_cm_msg *m);
/* The comm ID by which whoever says it names itself, 0: by none.  The number in it is that of its adapter; a
 * REQ or SIDR_REQ, about which this says nothing, may have been handed on by another one. */
uint32_t vb_cm_msg_speaker(const struct vb_cm_msg *m);
/* Whoever sends finds out to which far end a REQ or SIDR_REQ of the engine's goes.  That is who may be gone
 * before it has named itself, and to whom it is said again: that one may have taken it, and have closed its
 * listener since. */
void vb_cm_went(struct vb_cm *cm, const struct vb_cm_msg *m, const struct vb_whom *to);
/* Whether a REQ or SIDR_REQ of the engine's still waits for its answer. */
bool vb_cm_asks(struct vb_cm *cm, const struct vb_cm_msg *m);

/* One end of a connection, one listener, or one end of a SIDR exchange.  The upper layer holds it. */
struct vb_cm_conn {
	struct vb_cm *cm;
	void *user;
	enum vb_cm_state state;
	uint32_t local_comm_id, remote_comm_id; /* remote: 0 until the far end has named it */
	struct vb_whom asked;	     /* whom the REQ or SIDR_REQ went to (vb_cm_went()); nobody yet */
	struct vb_cm_conn *listener; /* whose REQ or SIDR_REQ it is; only during the event of that */
	struct vb_cm_av av;
	/* What REQ and REP agreed upon, for the QP's attributes. */
	uint64_t service_id, remote_ca_guid;
	uint32_t local_qpn, remote_qpn, local_psn, remote_psn, local_qkey, remote_qkey;
	uint8_t responder_resources, initiator_depth;	/* of this end, as it was said or accepted */
	uint8_t retry_count, rnr_retry_count, path_mtu; /* for this end's QP */
	/* local: for this end's QP, once the REP is there (12.7.34: twice the packet life time and the ACK
	 * delay); remote: as the REQ said it. */
	uint8_t local_ack_timeout, remote_ack_timeout, target_ack_delay;
	uint8_t service_type, extended_type;
	bool srq;    /* the far end's */
	bool active; /* this end has said REQ or SIDR_REQ */
	/* Of ECE: the modifier of the REQ, REP or SIDR_REP that is said next.  The upper layer sets it. */
	uint32_t ece_options;
	/* Further fields are the protocol's own (conn.h): */
	struct vb_cm_inner *inner;
};

/* The far end, by what it says of itself: who has not named itself yet is who the request went to. */
static inline struct vb_whom vb_cm_far(const struct vb_cm_conn *c)
{
	if (c->av.whom.kind == VB_WHOM_ADDRESS)
		return c->av.whom;
	return c->remote_comm_id ? vb_whom_at(VB_CM_NUMBER(c->remote_comm_id)) : c->asked;
}

/* 0 or ENOMEM.  number: the adapter's, as comm IDs carry it. */
int vb_cm_open(struct vb_cm **out, const struct vb_cm_ops *ops, void *user, struct vb_lock *lock,
	       uint32_t number, uint64_t ca_guid);
void *vb_cm_user(const struct vb_cm *cm);
/* No connection may be left; numbers in TIMEWAIT are forgotten.  Pairs with vb_cm_open(). */
void vb_cm_close(struct vb_cm *cm);

/* A new one, IDLE; NULL: no memory, or no comm ID is free.  Pairs with vb_cm_end(). */
struct vb_cm_conn *vb_cm_new(struct vb_cm *cm, void *user);
/* Ends it, in whichever state, with the message that the state calls for (a REJ to a REQ or REP, a DREQ once;
 * none from the target of XRC, which outlives its connection); the comm ID, and the QPN where its packets may
 * still be about, stay in TIMEWAIT.  No event comes any more. */
void vb_cm_end(struct vb_cm_conn *c, uint64_t now);

/* Calls return 0; EINVAL: the state does not permit it, or private data is too long for the message.
 * `private` is copied; NULL: none. */
int vb_cm_listen(struct vb_cm_conn *c);
/* req->local_comm_id and ca_guid are filled in; of XRC (service_type 3, extended_type 1) what the initiator
 * does not say is 0.  The response timeouts and retries in it are what both ends go by.  EINVAL: a service
 * type other than RC, UC and XRC, too. */
int vb_cm_req(struct vb_cm_conn *c, const struct vb_cm_av *av, const struct vb_cm_req *req,
	      const struct vb_cm_private *private, uint64_t now);
/* rep->qpn is this end's, of XRC too, where it goes out as the EECN. */
int vb_cm_rep(struct vb_cm_conn *c, const struct vb_cm_rep *rep, const struct vb_cm_private *private,
	      uint64_t now);
int vb_cm_rtu(struct vb_cm_conn *c, const struct vb_cm_private *private, uint64_t now);
/* Gives the far end's sender that much time (code as in vb_cm_time()) before it asks again.  With
 * VB_CM_MRA_LAZY nothing is said until it has asked again once, as the kernel's rdma_cm does it. */
#define VB_CM_MRA_LAZY 0x80
int vb_cm_mra(struct vb_cm_conn *c, uint8_t service_timeout, uint64_t now);
int vb_cm_rej(struct vb_cm_conn *c, uint16_t reason, const uint8_t *info, size_t info_len,
	      const struct vb_cm_private *private, uint64_t now);
/* Data came on the QP before the RTU: that establishes it too, and the RTU is then no news: no event comes.
 * EISCONN: it is established already. */
int vb_cm_established(struct vb_cm_conn *c, uint64_t now);
int vb_cm_dreq(struct vb_cm_conn *c, const struct vb_cm_private *private, uint64_t now);
int vb_cm_drep(struct vb_cm_conn *c, const struct vb_cm_private *private, uint64_t now);
int vb_cm_sidr_req(struct vb_cm_conn *c, const struct vb_cm_av *av, const struct vb_cm_sidr_req *req,
		   uint8_t response_timeout, uint8_t retries, const struct vb_cm_private *private,
		   uint64_t now);
int vb_cm_sidr_rep(struct vb_cm_conn *c, const struct vb_cm_sidr_rep *rep,
		   const struct vb_cm_private *private, uint64_t now);

/* A MAD came from the wire.  It counts for a connection only if the process that it is with has sent it,
 * where from->whom tells. */
void vb_cm_input(struct vb_cm *cm, const struct vb_cm_av *from, const uint8_t mad[VB_MAD_LEN], uint64_t now);
/* Sends again what was not answered, and ends what is over; when it wants to be called next (VB_NEVER). */
uint64_t vb_cm_timer(struct vb_cm *cm, uint64_t now);
/* The same without doing anything: what was begun since may want it earlier than it said. */
uint64_t vb_cm_next(const struct vb_cm *cm);
/* The process at the far end of those connections is dead, and nobody there speaks for it, as a kernel would:
 * what that would have said is taken as heard (a REJ, a DREQ, a DREP, a SIDR_REP).  Its comm IDs and QPNs
 * mean nothing any more: they may be those of the next process with that number.  `is_gone` is asked for each
 * connection; `arg` comes with the events. */
void vb_cm_gone(struct vb_cm *cm, bool (*is_gone)(const struct vb_cm_conn *c, void *arg), void *arg,
		uint64_t now);
/* This process ends.  Far ends on other hosts, of which nobody there hears that, are told what vb_cm_end()
 * would say.  The connections stay as they are. */
void vb_cm_leave(struct vb_cm *cm);
/* A REQ or SIDR_REQ that went to that adapter is nothing that its process takes: it is sent again, for
 * another one perhaps. */
void vb_cm_mute(struct vb_cm *cm, uint32_t number);
/* Whether packets of a connection of that QP of this end may still be about: it is not to be given to
 * another. */
bool vb_cm_qpn_waits(const struct vb_cm *cm, uint32_t qpn);
/* What a connection waits for. */
struct vb_cm_awaited {
	uint16_t kind;	    /* its message that has not been answered yet; 0: none */
	uint8_t said, most; /* how often that was said, and will be at most */
	uint64_t due; /* when it is said again or given up, or TIMEWAIT ends; VB_NEVER: nothing is due */
	/* Of that message, or of the last one that was given up: since when no answer has come, how often it
	 * was said again since then, and whether the far end has said then that it has it (MRA). */
	uint64_t since;
	uint8_t repeats;
	bool taken;
};
void vb_cm_awaits(const struct vb_cm_conn *c, struct vb_cm_awaited *out);

/* What was dropped, and why, for `verbena explain`. */
struct vb_cm_counts {
	uint64_t malformed, unknown_comm_id, unexpected, duplicates, refused, retried;
	uint32_t resting; /* comm IDs that are not given again, since their TIMEWAIT is not over */
};
void vb_cm_counts(const struct vb_cm *cm, struct vb_cm_counts *out);
const char *vb_cm_state_name(enum vb_cm_state s);

#endif
