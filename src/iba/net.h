/* A wire to addresses on networks, as the layers above it see it.  wire/ has the table of functions, and hca/
 * the table of addresses (hca/hosts.c). */
#ifndef VB_IBA_NET_H
#define VB_IBA_NET_H

#include "iba/far.h"
#include "iba/grh.h"
#include "iba/roce.h"
#include "iba/rxq.h"

struct vb_adapter;
struct vb_net; /* such a wire at an interface, of one adapter */
struct vb_roce;

/* An address at which there are far ends, as the wire sees it.  Its memory is not given back while the
 * adapter lives; the address in it changes only while nobody sends there.  Times are vb_now()'s, 0: never. */
struct vb_net_host {
	struct vb_gid gid;
	_Atomic uint64_t heard;	     /* when a right packet came from there */
	_Atomic uint64_t sent;	     /* when a packet was last sent there */
	_Atomic uint64_t bad_icrc;   /* packets from there with a wrong ICRC */
	_Atomic uint64_t lost;	     /* packets to there that this host's kernel did not send */
	_Atomic uint64_t lost_at;    /* when the last one was, */
	_Atomic uint32_t lost_errno; /* and why */
	_Atomic uint64_t icmp_at;    /* when an ICMP message last told of a packet to there, */
	_Atomic uint32_t icmp_errno; /* and what, as the kernel translates it */
	_Atomic uint32_t icmp_mtu;   /* with EMSGSIZE: the MTU on the way, 0: not told */
	_Atomic bool untold;	     /* packets go there that nobody acknowledges */
	_Atomic bool news;	     /* vb_net_cfg.refused was called, and the reason was not said yet */
	_Atomic uint64_t said[4];   /* for which errnos it was, as bits: of this host's kernel, and of ICMP */
	struct vb_roce_habit habit; /* under the rx of the queue of this process's QPNs */
};

/* What a path to an address leads to (obj/path.h), as far as other processes look at it. */
struct vb_net_far {
	struct vb_far far;
	struct vb_net_host net;
};

/* Where the packets of a path go. */
struct vb_net_ends {
	struct vb_net_host *host;
	bool unacked;	/* nobody acknowledges them, or sends them again */
	bool datagrams; /* each packet names the rest but src_qpn and mtu (vb_out_ops.aim) */
	struct vb_gid sgid;
	uint32_t src_qpn, dst_qpn;
	uint32_t mtu;  /* the queue pair's, or the port's */
	uint32_t flow; /* the address's, as are the next two */
	uint8_t tclass, hops;
};

struct vb_net_cfg {
	struct vb_adapter *adapter;
	struct vb_roce *roce; /* its sockets (host/roce.h) */
	void *user;
	/* What is known of an address; NULL: nobody here sends there.  Under the queue's rx, or a lock of a
	 * sending socket. */
	struct vb_net_host *(*host)(void *user, struct vb_gid gid);
	/* The addresses of this end by their indices, VB_GID_TABLE at most; returns how many.  Under the
	 * queue's rx, or a queue pair's lock. */
	uint32_t (*addresses)(void *user, struct vb_gid *to);
	_Atomic uint64_t *wrong_icrcs; /* counts packets with a wrong ICRC, whoever sent them */
	/* Packets to there that nobody acknowledges are lost, for a reason that is new (vb_net_host.said).
	 * Under a lock of a sending socket.  NULL: nobody asks. */
	void (*refused)(void *user, struct vb_net_host *host);
	/* Called with each packet whose ICRC is wrong, under the queue's rx.  NULL: nobody asks. */
	void (*wrong)(void *user, const struct vb_roce_arrival *a);
	/* Queue pairs of this host reach one another by this wire too.  Then packets may come from this
	 * host's own addresses.  (They come by lo, but the kernel names the interface with the address.) */
	bool own;
	/* Called with each packet that is sent, and with each that is received and right but for its ICRC,
	 * whatever locks are held; with one to this process itself once.  NULL: there is no capture. */
	void (*kept)(const struct vb_roce_packet *p);
	/* Packets have come, which whoever makes progress next is to take.  The engine, or a waiter. */
	void (*came)(void *user, struct vb_rxq *r);
	/* Packets to QP1 have come, of which the caller takes what there is: likewise.  Another process of
	 * this host may have taken them by then, and each takes those of all. */
	void (*mads)(void *user, struct vb_rxq *r);
};

struct vb_net_wire {
	const char *name;
	/* 0 or errno.  The adapter does not run yet.  Pairs with close(), before the adapter is closed. */
	int (*open)(struct vb_net **out, const struct vb_net_cfg *cfg);
	/* The adapter has stopped, and no path is left. */
	void (*close)(struct vb_net *n);
	struct vb_rxq *(*rxq)(struct vb_net *n); /* the caller opens it */
	/* From now on what is sent to the multicast group comes to the queue, with the group's GID behind its
	 * headers, until leave().  0, or errno and a sentence without its full stop.  The caller joins a
	 * group once, by one thread at a time. */
	int (*join)(struct vb_net *n, const uint8_t mgid[16], struct vb_text *why);
	void (*leave)(struct vb_net *n, const uint8_t mgid[16]);
	void (*listen)(struct vb_net *n); /* from now on cfg.mads() is called */
	/* A path's own way out, which vb_out_ops.end gives back.  NULL: no memory. */
	struct vb_out *(*way)(struct vb_net *n, const struct vb_net_ends *ends);
	/* Sends a brief packet to an address of which nothing need be known, once: ends->host is not looked
	 * at.  Nothing is allocated.  false: it does not leave now.  NULL: this wire cannot. */
	bool (*toss)(struct vb_net *n, const struct vb_net_ends *ends, struct vb_gid to,
		     const struct vb_brief *b);
	/* For the sentence on an end that does not answer; NULL: this wire knows nothing.  With a queue
	 * pair's lock: takes in what ICMP has said, and tells whether a packet came whose ICRC is right
	 * between these ends (the source port is not looked at), but which had another source address, *from.
	 */
	void (*hear)(struct vb_net *n);
	bool (*translated)(struct vb_net *n, const struct vb_roce_ends *sent, struct vb_gid *from);
};

#endif
