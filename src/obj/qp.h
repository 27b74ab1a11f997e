/* Queue pairs: the state that the protocol works on.  No protocol here: transport/ reads and writes the
 * requester and responder parts under the QP's lock, verbs/ posts under locks of their own. */
#ifndef VB_OBJ_QP_H
#define VB_OBJ_QP_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <infiniband/verbs.h>

#include "base/clock.h"
#include "base/list.h"
#include "base/lock.h"
#include "base/trace.h"
#include "iba/reason.h"
#include "iba/traffic.h"
#include "mem/grant.h"
#include "obj/congestion.h"
#include "obj/cq.h"
#include "obj/event.h"
#include "obj/forward.h"
#include "obj/path.h"
#include "obj/pd.h"
#include "obj/srq.h"
#include "obj/xrcd.h"

struct vb_check_queue;
struct vb_comp_cntrs;
struct vb_dests;
struct vb_drops;
struct vb_keys;
struct vb_mws;
struct vb_shown_qp;
struct vb_srqs;
struct vb_transport;

/* Whether rdma_cm connects the queue pair: its attributes are then named as rdma_cm's. */
enum vb_by_cm {
	VB_BY_HAND,
	VB_BY_CM_ATTR, /* the program does by rdma_init_qp_attr() and ibv_modify_qp() */
	VB_BY_CM,      /* it is an id's */
	VB_BY_CM_LATE, /* and was made after the id was connected, without it */
};

#define VB_TO_GROUP UINT32_MAX

enum vb_wqe_state {
	VB_WQE_POSTED, /* no packet sent yet */
	VB_WQE_GOING, /* about a window: its old binding is dead, and whoever may be using it is waited for */
	VB_WQE_STARTED, /* has PSNs; some or all packets sent */
	VB_WQE_REFUSED, /* posting found that it is to fail in its turn, for its `reason` */
	VB_WQE_FAILED,	/* checked and refused before its first packet; completes with `reason` in its turn */
};

enum vb_place_state {
	VB_PLACE_MAYBE, /* direct placement is to be tried */
	VB_PLACE_RING,	/* it was, and did not work */
	VB_PLACE_DONE,	/* WRITE with immediate: the data is there */
	VB_PLACE_LENT,	/* SEND: its packets say where its bytes are */
};

/* A send WQE: the request as posted, and where its execution stands.  Which member of a union it has, the row
 * of its opcode says (iba/wr.h). */
struct vb_swqe {
	uint64_t wr_id;
	union {
		struct { /* VB_WR_REMOTE, but for srqn */
			uint64_t addr;
			union {
				uint64_t compare_add; /* VB_WR_ATOMIC */
				struct {	      /* a FLUSH's */
					uint32_t range;
					uint8_t type, level; /* enum vb_flush_types, vb_flush_level */
				} flush;
			};
			uint64_t swap; /* VB_WR_COMPARE */
			uint32_t rkey;
			uint32_t srqn; /* XRC, of every request that is not local: the SRQ there */
		} remote;
		struct {		 /* a datagram's address */
			uint32_t number; /* of its destination (obj/dests.h) */
			uint32_t qkey;
			struct vb_route route;
			union {
				struct {
					uint32_t qpn;
					uint32_t
					    away; /* VB_DEST_NOWHERE: on InfiniBand a LID, or VB_TO_GROUP */
				};
				uint64_t
				    mgid[2]; /* of VB_DEST_GROUP: the group's GID, as it stands in memory */
			};
		} to;
		struct {		       /* VB_WR_LOCAL */
			uint64_t id;	       /* of the window; an invalidation's is 0 until it was found */
			uint64_t addr, length; /* of a bind, as is what follows but the key */
			uint32_t rkey;
			uint32_t access;
		} window;
	};
	union {
		uint32_t imm;	   /* VB_WR_IMM; network order */
		uint32_t inv_rkey; /* VB_WR_INV */
	};
	uint32_t length; /* bytes of all SGEs, up to VB_MAX_MSG */
	uint32_t psn;	 /* first PSN, once started */
	union {
		uint32_t npsn; /* how many PSNs the request takes (a READ's are its responses'), once started
				*/
		uint32_t next; /* of a datagram: SQ index of the next one that waits for its destination */
	};
	union {
		uint32_t placed; /* bytes placed directly, before it is started */
		uint32_t piece;	 /* of a READ on a lossy path, once started: PSNs that each of its requests
				    takes, but for the last */
	};
	uint8_t opcode;	 /* enum ibv_wr_opcode */
	uint8_t flags;	 /* enum ibv_send_flags, IBV_SEND_SIGNALED also for sq_sig_all */
	uint8_t state;	 /* enum vb_wqe_state */
	uint8_t place;	 /* enum vb_place_state */
	uint32_t got;	 /* VB_WR_FETCH: response bytes that have come, once started */
	uint8_t num_sge; /* up to VB_MAX_SGE */
	uint8_t reason;	 /* enum vb_reason of VB_WQE_REFUSED and VB_WQE_FAILED */
	union {
		struct ibv_sge sge[1];	/* num_sge */
		uint8_t inline_data[1]; /* length, if flags has IBV_SEND_INLINE; VB_WR_WORD: 8 */
		uint32_t region;	/* of a bind: L_Key */
	};
};
_Static_assert(offsetof(struct vb_swqe, sge) <= 72, "what most requests have fits two cache lines");

/* A READ or atomic (or what counts as one, VB_OP_HELD) that the responder has accepted (IBTA 9.7.5: responder
 * resources). */
struct vb_resource {
	uint32_t psn; /* first PSN */
	uint32_t npsn;
	uint32_t sent;	/* response packets sent since it was last asked for; == npsn: answered */
	uint32_t start; /* response packet to begin with (a duplicate READ may ask for a part) */
	uint32_t msn;
	uint8_t opcode; /* of the request, as in the BTH */
	bool replay;	/* asked for again: goes out without moving anything else */
	uint64_t va;	/* READ: address of the byte that packet 0 begins with */
	uint32_t rkey;
	uint32_t length;
	uint64_t pd; /* READ: domain that the key must belong to */
	/* READ: the ticket of the way to the process that has the region (obj/forward.h), 0: it is this one;
	 * its first PSN on that way; and the SRQ named */
	uint32_t forward, forward_psn, srqn;
	uint64_t orig; /* atomic: saved result (rule 17) */
};

/* The posters' end of both queues, apart from the protocol's state, so that requests can be filled while the
 * protocol is at work. */
struct vb_posting {
	struct vb_lock sends;  /* held while send requests are filled; before the QP's lock */
	bool alone;	       /* of a thread domain, so that `sends` is not needed; set once */
	bool brief;	       /* vb_requester_post() is for its type and its lists; set once */
	_Atomic uint32_t head; /* next send request to post; guarded by `sends`, read without */
	_Atomic uint32_t free; /* oldest slot not given back: polled CQEs advance it (poller writes) */
	/* Held while receive requests are posted; after the QP's lock.  It guards resp.rq's posting end.  Who
	 * changes the state takes it afterwards, so that a poster has either seen the new state, or posted
	 * before: a thread domain keeps it. */
	struct vb_lock receives;
	/* Where the peer's region of that R_Key, which was written last, would begin here if its key counted
	 * from 0: a line that is to be written can then come while the request is made.  Only a hint, which
	 * may be of another time. */
	_Atomic uint32_t near_rkey;
	_Atomic uintptr_t near;
	_Atomic uintptr_t builder; /* the thread that is between ibv_wr_start() and ibv_wr_complete(); 0:
				      none. Written under `sends` */
};

/* What a plain request takes stands first. */
struct vb_req {
	/* SQ indices run freely; the slot is index & mask */
	uint8_t *ring; /* WQEs of `stride` bytes */
	uint32_t stride, mask;
	uint32_t max_wr, max_sge, max_inline; /* as granted */
	uint32_t max_msg;		      /* the profile's */
	uint32_t next;			      /* next to send, or being sent */
	uint32_t una;			      /* oldest not completed */
	uint32_t seen;	   /* what was posted before this is known to the protocol: vb_sq_notice() */
	uint32_t psn;	   /* next PSN to send */
	uint32_t psn_una;  /* oldest PSN not acknowledged */
	uint32_t psn_max;  /* highest PSN ever sent, plus one */
	uint64_t deadline; /* of the ACK timer or the RNR wait; 0: runs from the next look at the clock;
			      VB_NEVER: not running */
	uint64_t mark;	   /* wire mark of the last packet sent (see vb_out_ops.mark) */
	uint32_t ringed;   /* requests started since the queue was last empty */
	bool waiting_rnr;  /* no sending before `deadline` (rule 2) */
	bool blocked;	   /* the wire had no room */
	bool placing;	/* the request at `next` is being placed directly, and its bytes for one call are used
			   up */
	bool timing;	/* on the adapter's timer list */
	uint32_t sent;	/* packets of `next` sent so far */
	uint32_t reads; /* READs and atomics outstanding */
	uint8_t retried, rnr_retried; /* since something was acknowledged; attr has how often it may be */
	uint8_t rnr_row;    /* RNR NAKs since something was acknowledged, 255 at most: while there is one the
			       oldest request alone is sent */
	uint8_t rnr_code;   /* of the RNR NAK being waited out */
	uint32_t timed_psn; /* psn at the last look at a timer that did not run */
	uint32_t small;	 /* small WRITEs in a row: of what could be placed directly there was nothing else */
	bool late_sinks; /* the profile's */
	bool drained_posted; /* IBV_EVENT_SQ_DRAINED posted for this SQD */
	bool sends_all;	     /* nothing is lent: the far end could not collect something of this connection */
	bool retry_pending;  /* went back on an implied NAK or sequence error; ignores further ones until
				progress (rule 3) */
};

/* What a plain SEND takes stands first. */
struct vb_resp {
	uint32_t epsn;
	uint32_t msn;
	/* responder resources: a ring of max_dest_rd_atomic, newest last */
	uint32_t res_head; /* next entry to fill, runs freely */
	uint32_t res_next; /* oldest entry that is not fully answered; == res_head: none */
	bool replaying;	   /* some entry has .replay set */
	bool nak_sent;	   /* a sequence-error NAK is out: silence until the ePSN arrives */
	bool ack_owed;	   /* everything before epsn wants an ACK */
	uint8_t nak_owed;  /* syndrome, 0: none */
	/* message being received */
	uint8_t last_op; /* opcode of the last accepted request packet */
	bool in_message; /* between FIRST and LAST */
	bool have_wqe;	 /* `cur` is taken from RQ or SRQ */
	struct vb_rq rq; /* unused when the QP has an SRQ */
	/* The receive WQE in use.  One of the RQ stays in its slot, which nobody has before its completion is
	 * polled; that of an SRQ, whose slots are counted for all its QPs, is copied. */
	const struct vb_rwqe *cur;
	struct vb_rwqe *copy; /* room for max_sge */
	uint32_t got;	      /* bytes of this message so far */
	uint32_t rkey;
	uint64_t va;   /* WRITE: where the next packet's bytes go */
	uint32_t left; /* WRITE: bytes that the RETH promised and have not come */
	uint32_t room; /* SEND: bytes that the receive WQE in use holds */
	struct vb_resource *res;
	uint32_t res_size; /* entries allocated: the power of two >= max_dest_rd_atomic, or 0 */
	bool skipping;	   /* not acknowledged: the message that epsn is in, or was, is dropped and counted */
	uint32_t nak_psn;
	struct vb_facts nak_facts; /* goes along on the same host */
};

/* As newer headers have it. */
struct vb_newer_qp_ex {
	struct ibv_qp_ex ex;
	void (*wr_flush)(struct ibv_qp_ex *qp, uint32_t rkey, uint64_t addr, size_t length, uint8_t type,
			 uint8_t level);
};

/* Packets with a queue pair's number whose checksum (ICRC) was wrong (hca/hosts_wrong.c). */
struct vb_astray {
	_Atomic uint64_t n;
	/* The rest is guarded by the queue pair's lock. */
	struct vb_gid from; /* where the last one came from, */
	uint8_t tried;	    /* how many were compared with the addresses of the connection, */
	bool translated;    /* and whether one of them was right between these */
};

struct vb_qp {
	union {
		struct ibv_qp ibv;
		struct ibv_qp_ex ex; /* of an extended one; else zero but for `ibv` */
		struct vb_newer_qp_ex newer;
	}; /* first */
	/* What plain requests and packets read is one cache line: `ctx` to `deputy`.  Set once, but of a
	 * target of XRC.  That has no send CQ; its SRQ, and with it receive CQ and pd_id, are those of the
	 * message that it is receiving, as packets name them; NULL: none has come yet, or it is gone
	 * (transport/xrc.c). An initiator of XRC has neither receive CQ nor SRQ. */
	struct vb_context *ctx __attribute__((aligned(VB_LINE)));
	struct vb_cq *scq, *rcq;
	struct vb_keys *keys;	   /* the adapter's key table */
	struct vb_shown_qp *shown; /* the adapter's entry that peers read; NULL: none (tests) */
	/* By its type (vb_transport_choose()): its row, the enum vb_family of its opcodes, and whether what
	 * it sends is acknowledged. */
	const struct vb_transport *transport;
	uint64_t pd_id;
	uint32_t qpn;
	uint8_t family;
	bool acked;
	bool sq_sig_all;
	/* It stands for a target of XRC of another process (obj/forward.h): `qpn` is that one's number, which
	 * completions have, and dest_qpn the number of the QP there that sends. */
	bool deputy;

	struct vb_pd *pd; /* NULL: a target's, which has none */
	struct vb_srq *srq;
	struct vb_xrcd *xrcd;	      /* of a target; NULL: it is none.  Its id stays; verbs/open_qp.c */
	struct vb_srqs *srqs;	      /* of a target: the adapter's XRC SRQs; set once */
	struct vb_forwards *forwards; /* of a target: what is for SRQs of others; NULL: nothing.  Set once */
	bool no_rq;		      /* has no receive queue of its own: an SRQ, or it is XRC's.  Set once */
	struct vb_mws *mws;	      /* the adapter's memory windows; set once */
	struct vb_drops *drops;	      /* the adapter's counts; NULL: none (tests).  Set once */
	struct vb_queue_mem sq_mem;   /* of req.ring; set once */
	uint32_t delivered;	      /* async events handed out; guarded by the context's evq lock */
	struct vb_async_node ev_fatal, ev_access, ev_req, ev_comm_est, ev_drained, ev_last_wqe;
	struct vb_list on_ctx; /* context's list of QPs */
	struct vb_list mcasts; /* attachments to multicast groups (obj/mcast.h); guarded by their mutex */
	bool mcasts_shut;      /* no more of them: the QP is being destroyed; guarded likewise */
	/* A target may be opened again and again (verbs/open_qp.c): what that gives is a struct vb_qp with
	 * little in it but its events, which stands for the target.  Guarded by the target's lock, but for
	 * `of`. */
	struct vb_qp *of;	  /* the target that it stands for; NULL: it is a QP itself.  Set once */
	struct vb_list opened;	  /* of a target: those that stand for it, by their on_target */
	struct vb_list on_target; /* of what stands for one */
	bool closed;		  /* of a target: its maker has destroyed it, and others have it open */
	bool far; /* stands for a target of another process (verbs/peer_target.c), and `of` is NULL.  Set once
		   */

	struct vb_posting post __attribute__((aligned(VB_LINE)));
	struct vb_dests *dests; /* of a datagram QP (UD), whose `path` leads nowhere; else NULL.  Set once */
	struct vb_traffic *traffic; /* what it has sent and received, for tools; never NULL.  Set once */
	uint32_t qkey;		    /* attr.qkey: what datagrams have to bring; guarded by `lock` */

	struct vb_lock lock __attribute__((aligned(VB_LINE))); /* guards everything below */
	/* Posters read it without the lock: vb_qp_state_now().  Only ibv_modify_qp changes it otherwise than
	 * to ERR, and holds posters off. */
	enum ibv_qp_state state;
	uint32_t dest_qpn;
	uint16_t access;  /* qp_access_flags */
	uint8_t path_mtu; /* enum ibv_mtu, as it was agreed upon: a wire's own packets may be larger */
	bool forgotten;	  /* being destroyed: goes on no list any more */
	struct vb_comp_cntrs *counters; /* completion counters (obj/comp_cntr.h); NULL: none */
	struct vb_path path;
	struct vb_req req;
	struct vb_resp resp;
	uint8_t max_rd_atomic;	 /* initiator depth */
	struct ibv_qp_attr attr; /* as set by modify; state and the moving PSNs stand elsewhere */
	bool unsettled; /* `shown->may` was taken back, and users have not been waited for: it stays so */
	struct vb_list on_timer;	     /* on the adapter's timer list; guarded by its lock */
	bool windows;			     /* some window was bound on it */
	_Atomic uint8_t by_cm;		     /* enum vb_by_cm; only who holds the lock writes it */
	bool comm_est;			     /* a packet came while in RTR; the event was posted */
	bool last_wqe_done;		     /* IBV_EVENT_QP_LAST_WQE_REACHED was posted */
	uint64_t said;			     /* reasons (enum vb_reason) of which a drop was said, as bits */
	uint32_t flushed_send, flushed_recv; /* summed for one line of log */
	struct vb_reach_facts silence; /* why the far end is silent, as the last ACK timeout found it, */
	uint64_t silence_at;	       /* and when */
	struct vb_astray astray;
	struct vb_facts why; /* first error of this QP, for the sentence on the flush */
	/* The deadline that stands because an answer may lie unread, and rxq->at when that was first so. */
	uint64_t unread_until;
	uint32_t unread_at;
	/* The RNR NAK that is waited out tells of a receiver that is only slow: the wait is short, and no
	 * retry.  And until when it counts as slow: 0: not known yet, VB_NEVER: that is over. */
	bool used_up;
	uint64_t used_up_until;
	struct vb_congestion congestion; /* where path.lossy */
	struct vb_pace pace;		 /* the same, of UC */
	/* req.una at the last look at the timers, since when it is that (0: nothing was outstanding), and
	 * when that is to be said without being asked (hca/stuck.c; VB_NEVER: it was, or never is). */
	uint32_t stuck_una;
	uint64_t stuck_since, stuck_warn;
	/* Of a checked process: its queues as checkers see them (obj/custody.h), each guarded by the lock for
	 * posting there. */
	struct vb_check_queue *custody[2];
	/* What it may write to at the other end of `path`, as far as that is known; see transport/place.c. */
	struct vb_peer_mem_grant grant;
};
_Static_assert(offsetof(struct vb_qp, deputy) < offsetof(struct vb_qp, ctx) + VB_LINE &&
		   offsetof(struct vb_qp, resp.have_wqe) < offsetof(struct vb_qp, lock) + 4 * VB_LINE &&
		   offsetof(struct vb_qp, resp.rq.max_sge) < offsetof(struct vb_qp, lock) + 5 * VB_LINE,
	       "the lines that are asked for below are those that are taken");

/* Has the lines come that a plain request takes, besides that of `post`, which the posting lock is in; for a
 * queue pair that was quiet they are in no cache.  Nothing of it is read. */
static inline void vb_qp_expect_post(const struct vb_qp *qp)
{
	const uint8_t *lock = (const uint8_t *)&qp->lock;

	/* Else the compiler keeps these addresses for later, in registers that it lacks. */
	__asm__("" : "+r"(lock));
	__builtin_prefetch(lock - (offsetof(struct vb_qp, lock) - offsetof(struct vb_qp, ctx)));
	__builtin_prefetch(lock);
	__builtin_prefetch(lock + VB_LINE);
	__builtin_prefetch(lock + 2 * VB_LINE);
	__builtin_prefetch(lock + 3 * VB_LINE);
}

/* The same of a plain SEND that comes. */
static inline void vb_qp_expect_packet(const struct vb_qp *qp)
{
	vb_qp_expect_post(qp);
	__builtin_prefetch(&qp->post);
	__builtin_prefetch((const uint8_t *)&qp->lock + 4 * VB_LINE);
}

static inline struct vb_qp *vb_qp(struct ibv_qp *q)
{
	return (struct vb_qp *)q;
}

/* The queue pair itself, of what may only stand for one. */
static inline struct vb_qp *vb_qp_itself(struct vb_qp *qp)
{
	return vb_unlikely(qp->of != NULL) ? qp->of : qp;
}

static inline struct vb_swqe *vb_sq_at(const struct vb_req *r, uint32_t index)
{
	return (struct vb_swqe *)(r->ring + (size_t)(index & r->mask) * r->stride);
}

static inline enum ibv_qp_state vb_qp_state_now(const struct vb_qp *qp)
{
	return __atomic_load_n(&qp->state, __ATOMIC_RELAXED);
}

/* Under qp->lock; to another state than ERR with the posting lock too. */
static inline void vb_qp_set_state(struct vb_qp *qp, enum ibv_qp_state state)
{
	if (qp->state != state)
		VB_TRACE_QP_STATE(qp->qpn, qp->state, state);
	__atomic_store_n(&qp->state, state, __ATOMIC_RELAXED);
}

/* Whether it waits for a time: its timer is to be looked at.  Under qp->lock. */
static inline bool vb_qp_timed(const struct vb_qp *qp)
{
	vb_lock_assert_held(&qp->lock);
	return qp->req.deadline != VB_NEVER;
}

bool vb_posting_wait(struct vb_qp *qp);

/* This thread holds the posting lock since ibv_wr_start(). */
static inline bool vb_posting_is_mine(const struct vb_qp *qp)
{
	return atomic_load_explicit(&qp->post.builder, memory_order_relaxed) == vb_thread_self();
}

/* The posting lock of the send queue.  false: it is not taken, since vb_posting_is_mine(). */
static inline bool vb_posting_take(struct vb_qp *qp)
{
	if (vb_likely(!qp->post.alone) && vb_unlikely(!vb_lock_seize(&qp->post.sends)))
		return vb_posting_wait(qp);
	return true;
}

/* The same where nothing is to be waited for, nor found out: false also where another thread has it. */
static inline bool vb_posting_try(struct vb_qp *qp)
{
	return vb_unlikely(qp->post.alone) || vb_likely(vb_lock_seize(&qp->post.sends));
}

static inline void vb_posting_give(struct vb_qp *qp)
{
	if (vb_likely(!qp->post.alone))
		vb_lock_give(&qp->post.sends);
}

/* The completion of a send request was polled: the slots up to `free` are free.  Under the send CQ's lock, or
 * under qp->lock while that CQ is empty. */
static inline void vb_sq_give(struct vb_qp *qp, uint32_t free)
{
	/* pairs with vb_builder_room() */
	atomic_store_explicit(&qp->post.free, free, memory_order_release);
}

/* Whether requests were posted of which the protocol does not know. */
static inline bool vb_sq_unseen(const struct vb_qp *qp)
{
	return atomic_load_explicit(&qp->post.head, memory_order_relaxed) != qp->req.seen;
}

/* Lets the protocol know of what was posted.  Under qp->lock. */
static inline void vb_sq_notice(struct vb_qp *qp)
{
	/* pairs with vb_builder_publish() */
	qp->req.seen = atomic_load_explicit(&qp->post.head, memory_order_acquire);
}

/* Whose the completion of a receive request is.  That of an SRQ of XRC stays when the QP goes, which does not
 * know the CQ: nobody's. */
static inline struct vb_qp *vb_qp_of_receive(struct vb_qp *qp)
{
	return vb_likely(!qp->xrcd) ? qp : NULL;
}

/* Queues and event nodes of a QP whose type, ctx, pd, CQs, SRQ, XRC domain, keys and qpn are set; state
 * RESET.  cap: as asked, already checked against the limits; receives what was granted (>= asked).  0 or
 * errno. */
int vb_qp_init(struct vb_qp *qp, struct ibv_qp_cap *cap);
/* What every struct vb_qp has, also one that stands for another: its lists and its events. */
void vb_qp_init_events(struct vb_qp *qp);
enum { VB_QP_EVENTS = 6 };
struct vb_async_node *vb_qp_event_at(struct vb_qp *qp, unsigned i); /* i < VB_QP_EVENTS */
/* The first packet came to it in RTR: the program has an event, and whoever asked is told.  Under its lock.
 */
void vb_qp_established(struct vb_qp *qp);
void vb_qp_fini(struct vb_qp *qp);
/* Forgets all queue contents and PSNs (state RESET), as modify to RESET and creation do.  Under the posting
 * lock and qp->lock. */
void vb_qp_reset(struct vb_qp *qp);
/* An SRQ that nobody finds any more is being destroyed: a target in the middle of a message for it has none.
 * Under qp->lock. */
void vb_qp_forget_srq(struct vb_qp *qp, const struct vb_srq *srq);
/* Responder resources for `n` outstanding READs and atomics; existing contents stay if n allows.  Under
 * qp->lock. */
int vb_qp_resources(struct vb_qp *qp, uint32_t n);

#endif
