/* The way in: what a wire gives that can be polled for packets.
 *
 * A receive queue is a ring from one process of this host, or a socket through which many far ends come.  A
 * wire embeds one and fills in its first part; hca/ polls it, hands its packets to the queue pairs, and keeps
 * in the second part what those owe.  Packets come out with no trace of their wire: who may send to a queue
 * pair is decided by that queue pair, from the packet's source. */
#ifndef VB_IBA_RXQ_H
#define VB_IBA_RXQ_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "base/list.h"
#include "base/lock.h"
#include "iba/limits.h"
#include "iba/out.h"
#include "iba/pkt.h"

struct vb_adapter;
struct vb_far;
struct vb_out;
struct vb_path;
struct vb_rxq;

/* Who sent a packet: a process of this host, by its incarnation, or an address. */
struct vb_origin {
	uint64_t high; /* VB_SOURCE_PEER, or the upper half of a GID */
	uint64_t low;
};
#define VB_SOURCE_PEER (~0ull) /* no GID that packets come from begins like this: it would be multicast */

/* Where a packet comes from. */
struct vb_source {
	struct vb_origin origin;
	/* Of the port there, for the GRH of datagrams: VB_GID_TABLE GIDs, which may change, and its LID. */
	const uint8_t (*gids)[16];
	uint16_t lid;
	const uint8_t (*dgid)[16]; /* the GID of this end that the packet came to; NULL: that is not told */
};

/* Whether it says what only processes of one host say to each other. */
static inline bool vb_source_is_peer(const struct vb_source *s)
{
	return s->origin.high == VB_SOURCE_PEER;
}

static inline bool vb_source_is(const struct vb_source *s, const struct vb_origin *o)
{
	return s->origin.low == o->low && s->origin.high == o->high;
}

/* Of a table, the first GID of the family that the sender's has. */
static inline struct vb_gid vb_gid_like(const uint8_t (*gids)[16], struct vb_gid sgid)
{
	bool ipv4 = vb_gid_is_ipv4(sgid);

	for (unsigned i = 0; i < VB_GID_TABLE; i++) {
		struct vb_gid g = vb_gid_read(gids[i]);

		if (vb_gid_is_ipv4(g) == ipv4 && (g.high | g.low))
			return g;
	}
	return vb_gid_read(gids[0]);
}

/* The GID of this end, whose table is `gids`, that a packet from there came to. */
static inline struct vb_gid vb_source_dgid(const struct vb_source *s, const uint8_t (*gids)[16],
					   struct vb_gid sgid)
{
	return s->dgid ? vb_gid_of(*s->dgid) : vb_gid_like(gids, sgid);
}

/* One packet.  What is brief is copied out whole, else its headers are; a payload that is apart stays in
 * place until next(), and so does what says the source. */
struct vb_arrival {
	struct vb_brief b; /* as it was sent; flags: VB_BRIEF_* */
	uint32_t payload_len;
	const uint8_t *payload; /* behind the header in `b`, unless it is apart */
	const struct vb_source *source;
};
_Static_assert(VB_OUT_BRIEF >= VB_HDR_MAX, "all headers have room");

struct vb_rxq_ops {
	/* 1 and the next packet, 0 if there is none, -1 if what is there cannot be a packet: the queue is
	 * not looked at again, and rubbish() is called.  Under rxq->rx, like next(). */
	int (*peek)(struct vb_rxq *r, struct vb_arrival *p);
	/* Done with the packet of peek(): its room is the sender's again. */
	void (*next)(struct vb_rxq *r);
	/* Whether a packet is there, for a wire that has no sequence words (rxq->words); without locks. */
	bool (*ready)(const struct vb_rxq *r);
	/* Ends the connection; does not call back itself. */
	void (*rubbish)(struct vb_rxq *r);
	/* The number of the queue pair that the next packet names, 0: none is there; as a hint, since nobody
	 * has looked whether it is a packet.  Under rxq->rx.  NULL: the wire does not tell. */
	uint32_t (*names)(const struct vb_rxq *r);
	/* Whether paths that owe here may find room now (vb_out_ops.room). */
	bool (*room)(struct vb_rxq *r);
};

#define VB_RXQ_HOLDS 1024u /* packets, at most */

struct vb_rxq {
	/* The wire's part; ops, out, cold, shift and mask are set once, the others under rx. */
	const struct vb_rxq_ops *ops;
	struct vb_out *out; /* the one way of all paths that owe something here; NULL: each has its own */
	/* Where packet n has come as soon as a 32-bit word reads n + 1: the words stand 1 << shift apart.
	 * NULL: ops->ready() tells. */
	_Atomic(const uint8_t *) words;
	uint32_t shift, mask;
	/* 1: nobody looks here, and who sends here leaves a hint; hca/ writes, senders read.  See
	 * hca/warm.h. */
	_Atomic uint32_t *cold;
	_Atomic uint32_t at; /* the next packet's number; of a wire without words: how many were taken */
	struct vb_lock rx;   /* the consumer's role: trylock, whoever fails goes on */
	/* The one sender's word, VB_ASLEEP or not: what it waits for in its sleep is sent at once.  NULL: not
	 * known. */
	_Atomic(const _Atomic uint32_t *) sender;

	/* hca/'s part. */
	_Atomic bool open;    /* to be polled; the thread that brings a peer up or down writes */
	_Atomic bool owes;    /* `owed` is not empty, or `acks` set; a hint, readable without locks */
	_Atomic bool waits;   /* somebody on `owed` waits for room, or to place more; see vb_hca_flush() */
	_Atomic bool placing; /* some QP has more to place directly; written under rx */
	uint32_t index;	      /* in hca/'s table and among the warm ones; set before `open` */
	uint32_t quiet;	      /* looks of vb_hca_cool() since the last packet; under rx */
	uint32_t unflushed;   /* packets taken in since owed ACKs were last sent; under rx */
	uint32_t budget;      /* packets that the next look may take, see hca/receive.c; under rx */
	uint32_t malformed;   /* packets that were none, since it was opened; under rx */
	struct vb_far *far;   /* whose queue it is; NULL: many send through it.  Set before `open` */
	uint32_t kept;	      /* enum vb_kept: whether what comes is kept for a capture; set before `open` */
	struct vb_path *acks; /* one that owes no more than an ACK; under rx */
	struct vb_adapter *adapter; /* set before `open` */
	struct vb_lock owed_lock;   /* guards `owed` */
	struct vb_list owed;	    /* paths (path->owes) that have something to send */
};

/* For a wire that has made one, all zeros, before anybody knows it. */
static inline void vb_rxq_init(struct vb_rxq *r, const struct vb_rxq_ops *ops, struct vb_out *out,
			       _Atomic uint32_t *cold)
{
	r->ops = ops;
	r->out = out;
	r->cold = cold;
	vb_list_init(&r->owed);
}

/* Whether a packet is there, or may be there, which only vb_rxq_ready() tells of a wire without words. */
static inline bool vb_rxq_seems_ready(const struct vb_rxq *r)
{
	const uint8_t *words = atomic_load_explicit(&r->words, memory_order_relaxed);
	uint32_t at = atomic_load_explicit(&r->at, memory_order_relaxed);

	if (vb_unlikely(!words))
		return true;
	return atomic_load_explicit(
		   (const _Atomic uint32_t *)(const void *)(words + ((size_t)(at & r->mask) << r->shift)),
		   memory_order_acquire) == at + 1; /* pairs with the sender's exchange */
}

/* Whether a packet is there.  Under rx, or as a hint without it. */
static inline bool vb_rxq_ready(const struct vb_rxq *r)
{
	return vb_rxq_seems_ready(r) &&
	       (vb_likely(atomic_load_explicit(&r->words, memory_order_relaxed) != NULL) || r->ops->ready(r));
}

#endif
