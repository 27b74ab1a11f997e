/* The kinds of far ends, as rows of operations.  Paths, datagrams, groups, QP1, capture, timers and the
 * search for why nobody answers call them.  What they do for processes of this host stands in hca/peers.c.
 *
 * A row is found by an address (vb_far_find(), vb_far_leads()), or the far end has it.  No brief packet comes
 * by here, neither one that is sent nor one that arrives: a path's way out and its source are all that those
 * need. */
#ifndef VB_HCA_FAR_H
#define VB_HCA_FAR_H

#include <stdbool.h>
#include <stdint.h>

#include "iba/far.h"
#include "iba/reach.h"
#include "obj/path.h"
#include "obj/qp.h"

struct ibv_ah_attr;
struct vb_hca;

enum vb_far_state {
	VB_FAR_IDLE,	/* no contact, or the last attempt failed */
	VB_FAR_SEEKING, /* contact is being made */
	VB_FAR_UP,
	VB_FAR_GONE, /* for good */
};

struct vb_far_kind {
	const char *name;
	bool keeps; /* its wire keeps packets for a capture, as they are */

	/* ---- finding ---- */

	/* The far end to which the connection of a queue pair leads, by its address vector and QPN, with a
	 * reference; contact begins.  NULL: none of this kind, or none now.  Under the queue pair's lock. */
	struct vb_far *(*find)(struct vb_hca *h, const struct vb_qp *qp);
	/* By which number the datagrams to that address name their destination (obj/dests.h):
	 * VB_DEST_BY_QPN, or one of this kind's; VB_DEST_NOWHERE: the address is none of this kind.  *held,
	 * which is NULL before: a reference that keeps the number for that address, if that takes one. */
	uint32_t (*leads)(struct vb_hca *h, const struct ibv_ah_attr *av, struct vb_far **held);
	/* The far end that has such a number, as find() has it; NULL: the number is none of this kind's, or
	 * nobody has it now. */
	struct vb_far *(*at)(struct vb_hca *h, uint32_t number);
	/* The far end of that name, with a reference, where datagrams find it by *number; NULL: nobody is
	 * there now, and *number is set all the same. */
	struct vb_far *(*named)(struct vb_hca *h, const struct vb_whom *whom, uint32_t *number);
	/* Whether there is contact still with the very far end that the name means. */
	bool (*there)(struct vb_hca *h, const struct vb_whom *whom);
	/* Takes a reference back. */
	void (*put)(struct vb_far *far);

	/* ---- a far end ---- */

	enum vb_far_state (*state)(const struct vb_far *far);
	/* Begins to make contact if there is none. */
	void (*contact)(struct vb_far *far);
	/* After contact has failed: the far end to use instead, mostly itself.  Takes the caller's reference
	 * over, and returns one. */
	struct vb_far *(*current)(struct vb_far *far);
	/* This end's queue pair is connected now: if the other one has waited for that, its process looks
	 * again.  NULL: there is nobody who could. */
	void (*stir)(const struct vb_path *p);
	/* Why there is no contact.  pid: of the process that was there last, 0: none.  looks: contact, or an
	 * answer, has taken too long, and files of the kernel may be read. */
	struct vb_reach_facts (*silence)(struct vb_far *far, uint32_t pid, bool looks);
	/* The GIDs of its port, VB_GID_TABLE of them; it is or was UP. */
	const uint8_t (*(*gids)(const struct vb_far *far))[16];
	/* Whether it is this very process. */
	bool (*own)(const struct vb_far *far);
	struct vb_whom (*whom)(const struct vb_far *far);
	/* Whether its QP1 takes management datagrams; true if that is not known. */
	bool (*hears)(const struct vb_far *far);
	/* A management datagram is on its way there, for a thread that may sleep. */
	void (*rouse)(struct vb_far *far);
	/* Whether it is a member of the group. */
	bool (*in_group)(const struct vb_far *far, const uint64_t mgid[2]);

	/* ---- a path to it, under the queue pair's lock ---- */

	/* Contact: sets the path's receive queue; of a connection its source, and where keys lead
	 * (vb_path.mem), too.  false: there is none, or the far end takes nothing of that queue pair. */
	bool (*attach)(struct vb_path *p);
	/* The way out of a path, or of a datagram queue pair to a group's member.  *rxq: the receive queue on
	 * which that owes. */
	struct vb_out *(*way)(struct vb_far *far, const struct vb_qp *qp, struct vb_rxq **rxq);
	/* Whether the queue pair there is connected to this one, so that packets may be sent.  The far end is
	 * or was UP. */
	bool (*connected)(const struct vb_path *p);
	/* What the queue pair there shows as received (VB_SHOWN_RECEIVED | PSN); 0: it shows nothing. */
	uint32_t (*received)(const struct vb_path *p);
	/* Why nobody answers: in qp->silence. */
	void (*explain)(struct vb_qp *qp);
	/* Whether silence is no loss: the far end is on its way to an answer. */
	bool (*slow)(const struct vb_qp *qp, uint64_t now);
};

/* By the rows in turn: as vb_far_kind's operations of these names. */
struct vb_far *vb_far_find(struct vb_hca *h, const struct vb_qp *qp);
uint32_t vb_far_leads(struct vb_hca *h, const struct ibv_ah_attr *av, struct vb_far **held);
struct vb_far *vb_far_at(struct vb_hca *h, uint32_t number);
/* By the name's kind; of nobody *number is VB_DEST_NOWHERE. */
struct vb_far *vb_far_named(struct vb_hca *h, const struct vb_whom *whom, uint32_t *number);
bool vb_far_is_there(struct vb_hca *h, const struct vb_whom *whom);

/* Those that may be members of groups: indices in use are below vb_far_count(); NULL: there is none at that
 * index. */
uint32_t vb_far_count(const struct vb_hca *h);
struct vb_far *vb_far_member(const struct vb_hca *h, uint32_t index);

/* Takes the reference back that is in *far, if it is not NULL, which it is afterwards. */
static inline void vb_far_put(struct vb_far **far)
{
	struct vb_far *f = *far;

	*far = NULL;
	if (f)
		f->kind->put(f);
}

#endif
