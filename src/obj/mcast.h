/* Multicast groups of a device and the queue pairs that are attached to them.
 *
 * Attaching and detaching take a mutex.  Who delivers a packet takes nothing: groups and members are lists
 * that are read as they are, under the lock of a receive queue.  What is taken off stays as it was until
 * everybody who held such a lock has given it (vb_hca_quiesce()); then it is freed. */
#ifndef VB_OBJ_MCAST_H
#define VB_OBJ_MCAST_H

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include <infiniband/verbs.h>

#include "base/list.h"

struct vb_qp;

enum { VB_MCAST_LISTS = 256 };

/* A queue pair that is attached to a group, once for all its attachments. */
struct vb_mcast_member {
	_Atomic(struct vb_mcast_member *) next; /* under the mutex */
	struct vb_qp *qp;			/* set once */
	uint32_t times;				/* attachments, under the mutex */
};

struct vb_mcast_group {
	_Atomic(struct vb_mcast_group *) next;	 /* under the mutex */
	_Atomic(struct vb_mcast_member *) first; /* under the mutex */
	union ibv_gid mgid;			 /* set once */
	uint32_t members;			 /* under the mutex */
	uint32_t shown;				 /* where peers see it: hca/mcast.c's, under the mutex */
};

struct vb_mcasts {
	pthread_mutex_t lock;
	_Atomic(struct vb_mcast_group *) lists[VB_MCAST_LISTS];
	uint32_t groups, members; /* of all groups; under the mutex */
};

void vb_mcasts_init(struct vb_mcasts *t);
void vb_mcasts_fini(struct vb_mcasts *t);

/* One attachment: a queue pair has one for each group and LID that it was attached with (as the kernel
 * counts). */
struct vb_mcast_attachment {
	struct vb_list on_qp; /* the queue pair's list; under the mutex */
	struct vb_mcast_group *group;
	struct vb_mcast_member *member;
	uint16_t lid;
	bool kept; /* an attach has succeeded: one that fails at the same time leaves it; under the mutex */
	bool met;  /* and it has met everybody: there is nothing left to do for others; under the mutex */
};

/* What a change of the lists has brought about; of an end, who made the change frees it later. */
struct vb_mcast_change {
	struct vb_mcast_group *group;	/* that has begun, or ended; NULL: none */
	struct vb_mcast_member *member; /* the same */
	bool met;			/* all was as it is before, and everybody has been met */
};

/* Attaches the queue pair; once more with the same LID changes nothing.  0, or ENOMEM, said: a limit of the
 * profile is reached, or there is no memory.  Under the mutex. */
int vb_mcasts_attach(struct vb_mcasts *t, struct vb_qp *qp, const union ibv_gid *mgid, uint16_t lid,
		     struct vb_mcast_change *begun);
/* An attach succeeds.  met: it has met everybody who may send.  false: there is no such attachment any more,
 * since another thread's failed at the same time.  Under the mutex. */
bool vb_mcasts_keep(struct vb_mcasts *t, struct vb_qp *qp, const union ibv_gid *mgid, uint16_t lid, bool met);
/* Whether there is such an attachment, and no attach of it has succeeded yet.  Under the mutex. */
bool vb_mcasts_is_loose(struct vb_mcasts *t, struct vb_qp *qp, const union ibv_gid *mgid, uint16_t lid);
/* 0, or EINVAL, said: it is not attached so.  Under the mutex. */
int vb_mcasts_detach(struct vb_mcasts *t, struct vb_qp *qp, const union ibv_gid *mgid, uint16_t lid,
		     struct vb_mcast_change *ended);
/* Frees what has ended, once nobody can be reading it. */
void vb_mcasts_free(const struct vb_mcast_change *ended);

/* The first member of a group, NULL: it has none; and the one behind.  Under the lock of a receive queue,
 * which keeps what was found, or under the mutex. */
const struct vb_mcast_member *vb_mcasts_first(const struct vb_mcasts *t, const uint8_t mgid[16]);
static inline const struct vb_mcast_member *vb_mcasts_next(const struct vb_mcast_member *m)
{
	return atomic_load_explicit(&m->next, memory_order_acquire); /* pairs with vb_mcasts_attach() */
}

#endif
