/* The way out of the protocol: where a finished packet goes.
 *
 * transport/ asks for room, writes header and payload in place, and hands the packet over; what stands behind
 * it (a shared-memory ring, a UDP socket, a test's simulated wire) is not its business.  reserve() takes what
 * locks the wire needs and commit() or cancel() gives them back: nothing may block in between. */
#ifndef VB_IBA_OUT_H
#define VB_IBA_OUT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include "base/lock.h"
#include "iba/grh.h"

struct vb_out;
struct vb_swqe;

#define VB_OUT_ACK 0x80000000u

struct vb_outbuf {
	/* reserve() sets these five to 0; the caller may set them before commit(). */
	uint32_t ack; /* VB_OUT_ACK | PSN: an ACK travels along, as if it were the packet before; only where
			 the wire carries acks.  With a datagram: vb_route.word */
	bool placed;  /* the message's data is in its place already, and none comes along: only on wires with
			 direct placement */
	bool lent;    /* the payload is a loan (iba/loan.h): only on wires with direct placement */
	union {
		uint8_t path_mtu; /* enum ibv_mtu of the sending QP, on wires whose packets are larger than
				     that; 0: the packet's length says it */
		uint8_t sl;	  /* of a datagram: its service level */
	};
	uint8_t hops;	  /* of a datagram: its hop limit */
	uint8_t *hdr;	  /* room for the transport headers, BTH first */
	uint8_t *payload; /* room for the payload (may be the bytes right after the header) */
};

/* Requests leave room for responses, so that two full wires cannot wait for one another. */
enum vb_out_class { VB_OUT_REQUEST, VB_OUT_RESPONSE };

/* A packet that its sender puts together by itself before it asks the wire: one call, and nothing of the wire
 * is held meanwhile.  All of it is read, so it begins zeroed. */
enum { VB_OUT_BRIEF = 52 }; /* bytes of header and payload together, at most */
enum {
	VB_BRIEF_APART = 1,  /* only where packets arrive (iba/rxq.h): the payload stands elsewhere */
	VB_BRIEF_PLACED = 2, /* vb_outbuf.placed */
	VB_BRIEF_LENT = 4,   /* vb_outbuf.lent; only where packets arrive */
	VB_BRIEF_MARKED = 8, /* a queue on the way was long (ECN); only where packets arrive */
	VB_BRIEF_KINDS = 15, /* these are the packet's; the others say a number: */
	VB_BRIEF_MTU = 16,   /* the first bit of four: vb_outbuf.path_mtu, or vb_outbuf.sl of a datagram */
	VB_BRIEF_MTUS = 7,   /* vb_outbuf.path_mtu at most */
};
struct vb_brief {
	union {
		struct {
			uint8_t hdr_len;
			uint8_t flags; /* VB_BRIEF_* */
			union {
				struct {
					uint8_t payload_len;
					uint8_t hops; /* vb_outbuf.hops */
				};
				uint16_t lengths; /* of what is no datagram: payload_len alone */
			};
			uint32_t ack; /* vb_outbuf.ack */
		};
		struct vb_route route; /* of a datagram: the last two, and its service level */
	};
	uint8_t bytes[VB_OUT_BRIEF];
};
_Static_assert(offsetof(struct vb_brief, flags) == offsetof(struct vb_route, sl16) &&
		   offsetof(struct vb_brief, hops) == offsetof(struct vb_route, hops) &&
		   offsetof(struct vb_brief, ack) == offsetof(struct vb_route, word) && VB_BRIEF_MTU == 16,
	       "a brief datagram begins with its route");

/* A path has a way out of its own where the wire keeps something for each (vb_out_ops.end); paths to one
 * peer share one. */
struct vb_out_ops {
	/* false: no room now; room() tells when it is worth another try. */
	bool (*reserve)(struct vb_out *o, struct vb_outbuf *b, uint32_t hdr_len, uint32_t payload_len,
			enum vb_out_class cls);
	void (*commit)(struct vb_out *o, struct vb_outbuf *b);
	void (*cancel)(struct vb_out *o, struct vb_outbuf *b);
	/* Sends a brief packet, whose header and payload are o->brief bytes at most.  Returns what mark()
	 * says right behind it; 0: no room now. */
	uint64_t (*send)(struct vb_out *o, const struct vb_brief *p, enum vb_out_class cls);
	/* The next packet is a datagram to that queue pair, with that route.  Before reserve(), for a way
	 * whose packets have several destinations; send() sees it in the packet.  NULL: all have one. */
	void (*aim)(struct vb_out *o, struct vb_route route, uint32_t qpn);
	/* The same for n of them, one behind the other, at least one, which leave with push() at the latest.
	 * Returns how many there was room for. */
	uint32_t (*send_list)(struct vb_out *o, const struct vb_brief *p, uint32_t n, enum vb_out_class cls);
	/* A mark for "everything committed until now", and whether the far end has taken all that out of the
	 * wire.  A wire that cannot know (vb_out.tells) answers true. */
	uint64_t (*mark)(struct vb_out *o);
	bool (*taken)(struct vb_out *o, uint64_t mark);
	/* Whether a request of the largest size has room now, for those whom reserve() refused. */
	bool (*room)(struct vb_out *o);
	/* What was committed or listed leaves now; send() sees to that by itself.  NULL: commit() does. */
	void (*push)(struct vb_out *o);
	/* The path that had it has it no more.  NULL: several paths may have it. */
	void (*end)(struct vb_out *o);
	/* The time, as vb_now() has it; only where packets may be lost (vb_out.lossy), else NULL. */
	uint64_t (*now)(struct vb_out *o);
};

struct vb_out {
	const struct vb_out_ops *ops; /* set once by the wire */
	uint32_t mtu;		      /* largest payload of one packet, a power of two; set once */
	uint32_t brief;		      /* longest brief packet, up to VB_OUT_BRIEF; set once */
	bool tells;		      /* taken() knows; set once */
	bool local;		      /* same host: a NAK carries the reason as payload; set once */
	bool tells_mtu; /* vb_outbuf.path_mtu arrives, since packets may be larger than the path's; set once
			 */
	bool carries_acks; /* a packet to a QP can bring an ACK for that QP along; set once */
	bool acks_behind;  /* an ACK costs least, and comes with it, right behind a packet that is no shorter;
			      set once */
	uint32_t together; /* bytes that leave together at little more cost than one packet, 0: each has its
			      own; set once */
	bool lossy;	   /* packets may be lost: what is in flight has a limit, and round trips are
			      measured (transport/congestion.h); set once */
	bool places; /* direct placement: requests may be carried out past it, in the far end's memory; set
			once */
	/* Is told of that: the next n bytes of a request are in place, or its atomic is carried out, with
	 * that original value, and it is not complete yet.  NULL: nobody wants to know; set once */
	void (*past)(struct vb_out *o, const struct vb_swqe *w, uint32_t n, uint64_t orig);
};

/* After one commit() or several. */
static inline void vb_out_push(struct vb_out *o)
{
	if (vb_unlikely(o->ops->push != NULL))
		o->ops->push(o);
}

static inline void vb_out_end(struct vb_out *o)
{
	if (o && o->ops->end)
		o->ops->end(o);
}

/* vb_out_ops.send by the others, for a wire that has nothing faster. */
static inline uint64_t vb_out_send_in_parts(struct vb_out *o, const struct vb_brief *p, enum vb_out_class cls)
{
	struct vb_outbuf b;

	if (!o->ops->reserve(o, &b, p->hdr_len, p->payload_len, cls))
		return 0;
	memcpy(b.hdr, p->bytes, p->hdr_len);
	memcpy(b.payload, p->bytes + p->hdr_len, p->payload_len);
	b.ack = p->ack;
	b.placed = p->flags & VB_BRIEF_PLACED;
	b.path_mtu = p->flags / VB_BRIEF_MTU; /* or sl, of a datagram */
	b.hops = p->hops;
	o->ops->commit(o, &b);
	vb_out_push(o);
	return o->ops->mark(o);
}

/* This is vb_out_ops.send_list for a wire that sends no list faster than its packets one by one. */
static inline uint32_t vb_out_send_singly(struct vb_out *o, const struct vb_brief *p, uint32_t n,
					  enum vb_out_class cls)
{
	for (uint32_t i = 0; i < n; i++)
		if (!o->ops->send(o, &p[i], cls))
			return i;
	return n;
}

#endif
