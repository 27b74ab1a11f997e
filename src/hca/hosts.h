/* Far ends that are addresses on a network (VB_WHOM_ADDRESS): a table of them for each device, and the wire
 * that leads there (iba/net.h). */
#ifndef VB_HCA_HOSTS_H
#define VB_HCA_HOSTS_H

#include "base/clock.h"
#include "hca/hca.h"
#include "iba/net.h"
#include "obj/dests.h"

enum { VB_HOSTS_BUCKETS = 256 };
#define VB_HOSTS_LOOK (20 * VB_USEC) /* from one look of a thread that polls at a cold queue to the next */

struct host;

/* The table of a device. */
struct vb_hosts {
	struct vb_hca *hca;
	const struct vb_net_wire *wire;
	bool only;  /* packets take it to processes of this host, too */
	bool by_lo; /* the interface is lo */
	struct vb_net *net;
	struct vb_rxq *rxq;
	_Atomic uint64_t looked;
	_Atomic uint32_t mads; /* management datagrams that were sent */
	struct vb_lock lock;   /* guards the rest, and all refs and next; a leaf */
	uint32_t n, evict;     /* addresses; the bucket in which an unused one was found last */
	struct host *buckets[VB_HOSTS_BUCKETS];
	_Atomic bool refused;			  /* vb_hosts_refused() was called */
	_Atomic bool said_group;		  /* vb_hosts_say_group() */
	_Atomic bool said_wrong, said_translated; /* vb_hosts_wrong() */
	struct host *at[VB_FARS];		  /* by number, from VB_DEST_FAR on */
};

/* The table, empty, and what the wire is to call; NULL: no memory. */
struct vb_hosts *vb_hosts_new(struct vb_hca *h, struct vb_net_cfg *cfg);
void vb_hosts_free(struct vb_hosts *t);

extern const struct vb_far_kind vb_far_host;
/* The one of that address, with a reference, which the caller gives back (vb_far_put()).  NULL: no memory, or
 * the table is full of those that are used. */
struct vb_far *vb_hosts_get(struct vb_hosts *t, struct vb_gid gid);

/* Opens the port of the device's interface, if it is one that the user opens to other hosts: before the
 * adapter is made, which takes it over by *cfg.  Without it the device is open to processes of this host
 * only, and the log says why. */
void vb_hosts_port(struct vb_hca *h, struct vb_adapter_cfg *cfg);
/* The adapter is made and does not run yet.  Pairs with vb_hosts_close(), which may be called without. */
void vb_hosts_open(struct vb_hca *h);
/* The engine has ended. */
void vb_hosts_close(struct vb_hca *h);

/* Whether packets take the wire of networks even to processes of this host. */
bool vb_hosts_only(const struct vb_hca *h);
/* Why the queue pair gets no answers from there, under its lock.  Makes system calls, which wait for nothing.
 */
struct vb_reach_facts vb_hosts_why(struct vb_hosts *t, const struct vb_net_host *host, struct vb_qp *qp);
/* The same of a management datagram, which was first sent from the address `here` at `since`. */
struct vb_reach_facts vb_hosts_why_mad(struct vb_hosts *t, const struct vb_net_host *host, struct vb_gid here,
				       uint64_t since);
/* The same for packets that nobody acknowledges: what this host, or ICMP, says of them.  By the engine. */
struct vb_reach_facts vb_hosts_refusal(struct vb_hosts *t, const struct vb_net_host *host);
/* As in struct vb_net_cfg: the engine is to say why, */
void vb_hosts_refused(void *user, struct vb_net_host *host);
/* which it does. */
void vb_hosts_say_refused(struct vb_hca *h);
/* As in struct vb_net_cfg: says the first packet with a wrong ICRC, and counts it at its queue pair. */
void vb_hosts_wrong(void *user, const struct vb_roce_arrival *a);
/* ---- multicast (hca/mcast.h) ---- */

/* The interface joins a group, or leaves it: for each group once.  0, also without an interface, or errno,
 * which has been said. */
int vb_hosts_join(struct vb_hca *h, const uint8_t mgid[16], const char *call);
void vb_hosts_leave(struct vb_hca *h, const uint8_t mgid[16]);
/* Whether datagrams to the group leave by the interface. */
bool vb_hosts_carry(const struct vb_hca *h, const uint8_t mgid[16]);
/* The group's address as a far end: by which number datagrams find it, VB_DEST_NOWHERE: by none; *held: a
 * reference, or NULL. */
uint32_t vb_hosts_group(struct vb_hca *h, const uint8_t mgid[16], struct vb_far **held);
/* Says what keeps datagrams to that group on this host, the first time. */
void vb_hosts_say_group(struct vb_hca *h, const struct ibv_ah_attr *av);

/* Whether a poll asks the kernel for packets of other hosts. */
static inline bool vb_hosts_called(const struct vb_hca *h)
{
	return vb_unlikely(h->hosts != NULL) &&
	       !atomic_load_explicit(h->hosts->rxq->cold, memory_order_relaxed);
}

/* For a thread that polls, now and then: sees whether packets have come to a queue that no poll looks at.
 * now: 0, or the time if the caller has it. */
void vb_hosts_look(struct vb_hca *h, uint64_t now);

#endif
