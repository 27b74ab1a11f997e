/* Destinations of a datagram queue pair (UD): each request names one, and one for each process that was ever
 * named is kept here, by the upper bits of the QPN over there.  What waits for room, or for contact, waits at
 * its destination, so that none holds up the others.
 *
 * Guarded by the queue pair's lock, as obj/path.h says. */
#ifndef VB_OBJ_DESTS_H
#define VB_OBJ_DESTS_H

#include <stdbool.h>
#include <stdint.h>

#include "base/list.h"
#include "iba/limits.h"
#include "iba/reach.h"
#include "obj/path.h"
#include "obj/qp.h"

/* In place of a number: the address is none of this host. */
#define VB_DEST_NOWHERE VB_ADAPTERS
/* The members of a multicast group, of whichever: what cannot be sent to one of them now waits here.  Its
 * path has a way out only while something waits, to one of those who have no room. */
#define VB_DEST_GROUP (VB_ADAPTERS + 1)
/* The one that answers nothing (hca/far_null.c). */
#define VB_DEST_NULL (VB_ADAPTERS + 2)
/* The first of those that are addresses on networks, and how many there can be (hca/hosts.c). */
#define VB_DEST_FAR (VB_ADAPTERS + 3)
#define VB_FARS	    4096
#define VB_DESTS    (VB_DEST_FAR + VB_FARS)
/* Of an address, in place of a number: the upper bits of the QPN name the destination. */
#define VB_DEST_BY_QPN UINT32_MAX

struct vb_dest;
struct vb_out;

/* Some of the far ends that may be members of groups: processes by their indices (vb_far_member()), and all
 * those of other hosts, which one packet to the group's address reaches. */
enum { VB_TARGET_NET = VB_MAX_PEERS, VB_TARGETS, VB_TARGET_WORDS = (VB_TARGETS + 63) / 64 };
struct vb_targets {
	uint32_t words; /* in use; 0: nobody */
	uint64_t peers[VB_TARGET_WORDS];
};

/* What a multicast asks of who knows the peers (hca/mcast.c).  Under the queue pair's lock, until that is
 * given what they say counts. */
struct vb_group_ops {
	/* Who is to get what is sent to the group now. */
	void (*members)(struct vb_qp *qp, const uint64_t mgid[2], struct vb_targets *to);
	/* The way to one of them; NULL: there is none, for want of memory. */
	struct vb_out *(*way)(struct vb_qp *qp, const uint64_t mgid[2], uint32_t target);
	/* That one has no room: d's path leads there until there is. */
	void (*blocked)(struct vb_dest *d, const uint64_t mgid[2], uint32_t target);
};

/* What the receiver of a datagram asks of who knows the way back (hca/datagrams.c).  Under the queue pair's
 * lock. */
struct vb_back_ops {
	uint64_t (*now)(struct vb_qp *qp); /* as vb_now() has it */
	/* Sends a brief packet to the address that p came from, about which nothing else is known.  false: it
	 * does not leave. */
	bool (*send)(struct vb_qp *qp, const struct vb_pkt *p, const struct vb_brief *b);
};

/* A queue pair may talk to many, so what each datagram looks at is in one line. */
struct vb_dest {
	bool waits __attribute__((aligned(VB_LINE))); /* it is on vb_dests.waiting */
	bool stuck;	 /* nothing has had room for so long that what finds none is dropped */
	uint32_t number; /* set when it is first named, like path.qp */
	struct vb_path path;
	uint32_t first, last; /* SQ indices of the requests that wait, if `waits`; vb_swqe.next chains them */
	uint64_t until;	      /* when that, or nobody, is assumed; 0: from the next look at the clock */
	struct vb_list waiting;	       /* on vb_dests.waiting */
	struct vb_list used;	       /* on vb_dests.used */
	struct vb_reach_facts silence; /* why nobody is there */
	struct vb_pace pace;	       /* where path.lossy */
};

struct vb_dests {
	struct vb_dest
	    *at; /* VB_DESTS of them, by number; pages of those that were never named are not there */
	struct vb_list waiting; /* those for whom requests wait */
	struct vb_list used;	/* those that were named since the queue pair was RESET */
	/* A request that had waited has failed, while others before it still wait: its SQ index.  Nothing
	 * behind it leaves any more. */
	bool failed;
	uint32_t failed_at;
	/* The GIDs of the port at this end: VB_GID_TABLE of them, in the adapter's segment, which change. */
	const uint8_t (*gids)[16];
	bool infiniband;		/* the port's link layer */
	const struct vb_back_ops *back; /* NULL: nothing is sent back; set once */
	struct vb_reach_away away;	/* of the address handle that was posted last and led nowhere */
	/* Multicast. */
	bool no_echo; /* what this QP sends to its own group does not come to it; set once */
	const struct vb_group_ops *group; /* set once */
	struct vb_out *kept;	 /* hca/capture.c's, in front of what group->way() finds; NULL: none */
	struct vb_targets left;	 /* who has not got the request yet that waits first at VB_DEST_GROUP */
	struct vb_targets stuck; /* of VB_DEST_GROUP, as vb_dest.stuck */
};

/* NULL: no memory. */
struct vb_dests *vb_dests_new(void);
void vb_dests_free(struct vb_dests *d);

/* The destination of that number is named for the first time, or after RESET. */
void vb_dest_use(struct vb_qp *qp, uint32_t number);
/* The one of that number, below VB_DESTS, of qp. */
static inline struct vb_dest *vb_dest_at(struct vb_qp *qp, uint32_t number)
{
	struct vb_dest *d = &qp->dests->at[number];

	vb_lock_assert_held(&qp->lock);
	if (vb_unlikely(!d->path.qp || !vb_list_linked(&d->used)))
		vb_dest_use(qp, number);
	return d;
}

static inline struct vb_dest *vb_dest_of(struct vb_path *p)
{
	return vb_containerof(p, struct vb_dest, path);
}

/* A request that stands in slot `index` waits, behind those that do. */
void vb_dest_wait(struct vb_dest *d, uint32_t index);
/* None waits any more; the requests are left as they are. */
void vb_dest_stop(struct vb_dest *d);
void vb_dests_stop(struct vb_dests *d);

#endif
