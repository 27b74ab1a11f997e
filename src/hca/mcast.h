/* Multicast: members and senders of all processes of this host find one another.
 *
 * Each adapter shows the groups of its own queue pairs (host/groups.c).  Who attaches one binds a name that
 * says "a member of some group" (host/member.c), and then makes contact with all adapters of this user.  Who
 * is to send to a group for the first time reads these names, and makes contact with those who bound them.
 * Each binds its own, a member's name or an adapter's number, before it looks for the others': so each pair
 * meets, whoever comes first, and afterwards a sender needs no system call to know all members.
 *
 * Members on other hosts are known to nobody here.  Where the device has an interface (hca/hosts.h), that
 * joins the group for as long as one queue pair is attached, and each datagram leaves once more, to the
 * group's IP address.  The kernel brings none of these back to this host, except where processes of this host
 * reach each other by the network too (--wire=udp): then they get no other copy. */
#ifndef VB_HCA_MCAST_H
#define VB_HCA_MCAST_H

#include <infiniband/verbs.h>

#include "base/lock.h"
#include "obj/dests.h"
#include "obj/mcast.h"

struct vb_hca;
struct vb_qp;

enum { VB_MCAST_ROUTES = 64 };

/* What a sender found when it looked last: it counts as long as nobody was told to look again. */
struct vb_mcast_route {
	struct vb_lock lock; /* a leaf; guards the rest */
	uint32_t came, stirs;
	uint64_t mgid[2];
	struct vb_targets to;
};

struct vb_hca_mcast {
	struct vb_mcasts groups; /* of this adapter's queue pairs */
	_Atomic bool met;	 /* the members that there were have been met */
	_Atomic uint32_t came;	 /* counts peers that come and go; begins at 1 */
	struct vb_mcast_route routes[VB_MCAST_ROUTES];
};

void vb_mcast_open(struct vb_hca *h);
void vb_mcast_close(struct vb_hca *h);

/* Attaches a queue pair to a group.  After that each later send of any process that can be reached comes to
 * it. 0, or errno, which has been said.  Without locks; makes contact with the adapters of this host. */
int vb_mcast_attach(struct vb_hca *h, struct vb_qp *qp, const union ibv_gid *mgid, uint16_t lid);
/* After that nothing comes to the queue pair by that group any more.  0, or EINVAL, which has been said.
 * Without locks. */
int vb_mcast_detach(struct vb_hca *h, struct vb_qp *qp, const union ibv_gid *mgid, uint16_t lid);
/* It is to be destroyed: no attach succeeds any more.  false: it is attached to some group, and goes on.
 * Without locks. */
bool vb_mcast_shut(struct vb_hca *h, struct vb_qp *qp);

/* Somebody is to send to groups: meets their members, unless that was done.  0, or errno, which has been
 * said. Without locks. */
int vb_mcast_meet(struct vb_hca *h, const char *call);

/* Who of the peers is to get what is sent to a group now.  Any thread, with any locks but a route's; no
 * system call.  What is found counts until the sender gives its queue pair's lock, which it holds. */
void vb_mcast_route(struct vb_hca *h, const uint64_t mgid[2], struct vb_targets *to);

/* What sending asks for. */
extern const struct vb_group_ops vb_mcast_ops;

/* A peer has come or is going, and senders are to look again.  From peer_up(), and from peer_down() before
 * that takes the lock of each queue pair. */
static inline void vb_mcast_peers_changed(struct vb_hca_mcast *m)
{
	atomic_fetch_add_explicit(&m->came, 1, memory_order_seq_cst); /* pairs with vb_mcast_route() */
}

#endif
