/* Messages that come to a target of XRC for SRQs of other processes of its domain are forwarded there, packet
 * by packet, to a queue pair that stands for the target (its deputy): transport/forward.c has the protocol,
 * hca/forward.c finds the process and makes the deputy.  Everything here is guarded by the target's lock. */
#ifndef VB_OBJ_FORWARD_H
#define VB_OBJ_FORWARD_H

#include <stdbool.h>
#include <stdint.h>

#include "base/list.h"
#include "iba/rxq.h"

struct vb_out;
struct vb_peer;
struct vb_qp;

/* What the protocol asks of those above, under the target's lock; set at creation. */
struct vb_forward_ops {
	/* Whether SRQs of such numbers are this process's own. */
	bool (*own)(const struct vb_qp *target, uint32_t srqn);
	/* Goes on looking for the process `wanted`: vb_forward_add() or vb_forward_fail() comes later,
	 * in another call.  May be called again at any time, and then asks again. */
	void (*seek)(struct vb_qp *target);
	/* The target receives nothing any more: all of it ends. */
	void (*end)(struct vb_qp *target);
};

/* The way to one process, by one number of its adapter.  PSNs are its own: those of the target's messages go
 * to several. */
struct vb_forward {
	struct vb_list node;	 /* among the target's */
	uint32_t number;	 /* that of its SRQs' numbers */
	uint32_t deputy;	 /* QPN there */
	uint32_t ticket;	 /* of the question that it answered: no other of this process has the same */
	struct vb_peer *peer;	 /* with a reference */
	struct vb_out *out;	 /* the way out */
	struct vb_origin source; /* answers count if they come from there */
	uint32_t psn;		 /* next to send */
	uint32_t una;		 /* oldest that is not answered */
	uint32_t msn;		 /* as the deputy counts */
	uint32_t room;		 /* bytes at `piece` */
	uint8_t piece[];	 /* of a READ's answer, as it came last */
};

/* A request that is answered with more than an ACK (VB_OP_HELD), and is with a deputy: alone.  A READ's
 * answer comes packet by packet: each is asked for when there is room to pass it on, as a requester asks
 * again for the rest of a READ, and so may be asked for as often as it is lost. */
struct vb_fetch {
	uint32_t psn, npsn; /* the target's */
	uint32_t far_psn;   /* the first on the way to the deputy */
	uint64_t va;
	uint32_t rkey, length, srqn;
	uint8_t opcode;
	uint32_t at;	/* which packet of the deputy's answer, beginning with 0, was asked for last, */
	uint32_t until; /* and for which packet of the target's */
	bool under_way, come;
	bool first; /* the request itself, which no responder resource stands for yet */
};

/* What a message that has gone on is to count as where it is complete, of a target that has completion
 * counters: then messages go on one by one. */
struct vb_forward_count {
	bool outstanding; /* all of its packets have gone on, and not all are answered */
	bool receives, writes;
	uint32_t bytes;
};

struct vb_forwards {
	const struct vb_forward_ops *ops; /* NULL: there are no other processes (tests) */
	struct vb_list all;
	struct vb_forward *busy;   /* the one whose answers are outstanding; NULL: none are */
	struct vb_forward *within; /* the one that a message in progress goes to; NULL: none does */
	uint32_t next;		   /* busy: the PSN that the target takes next.  resp.epsn is what it has
				      answers up to */
	/* Packets were held back: they are to come again once that is over which they wait for.  That is the
	 * answers of `busy`, the process that is looked for, room in `full`. */
	bool again;
	struct vb_out *full;
	struct vb_forward_count count;
	struct vb_fetch fetch;
	uint32_t wanted;	 /* the adapter number that is looked for, 0: none */
	uint32_t nowhere;	 /* the one last looked for that leads to nobody, 0: none */
	uint32_t gone, gone_pid; /* the one whose process was there and has ended, last; 0: none */
	struct vb_peer *seeking; /* who has `wanted`, with a reference; NULL: not known yet */
	bool contacting;	 /* it will be known whether there is contact */
	bool asked;		 /* it was told to make a deputy, and answers */
	uint32_t ticket;	 /* of the last question */
	uint64_t since;		 /* vb_now() when `wanted` was looked for first, 0: not yet */
};

/* Whether packets for the target count that come from there, since a deputy of its is. */
static inline bool vb_forward_hears(const struct vb_forwards *w, const struct vb_source *source)
{
	return w->busy && vb_source_is(source, &w->busy->source);
}

/* All under the target's lock; what was held back may go on afterwards, and vb_transport.output() sees to
 * that. */

/* There is a deputy where one was looked for; and there is nobody. */
void vb_forward_add(struct vb_qp *target, struct vb_forward *f);
void vb_forward_fail(struct vb_qp *target);
/* The process is gone; f is the caller's.  received: what its deputy showed as received
 * (vb_shown_qp.received), 0: nothing.  What it has not answered is looked for anew when it comes again, and
 * then refused as what it is: a message for an SRQ that is gone. */
void vb_forward_forget(struct vb_qp *target, struct vb_forward *f, uint32_t received);
/* The deputy has everything before psn. */
void vb_forward_arrived(struct vb_qp *target, struct vb_forward *f, uint32_t psn);
/* Shows up to which PSN packets are known here that are not shown as received yet: whoever waits for an ACK
 * of them waits for somebody slow. */
void vb_forward_show(struct vb_qp *target);

#endif
