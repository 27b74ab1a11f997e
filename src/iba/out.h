/* The way out of the protocol: where a finished packet goes.
 *
 * transport/ asks for room, writes header and payload in place, and hands the packet over; what stands behind
 * it (a shared-memory ring, a UDP socket, a test's simulated wire) is not its business.  reserve() takes what
 * locks the wire needs and commit() or cancel() gives them back: nothing may block in between. */
#ifndef VB_IBA_OUT_H
#define VB_IBA_OUT_H

#include <stdbool.h>
#include <stdint.h>

struct vb_out;

#define VB_OUT_ACK 0x80000000u

struct vb_outbuf {
	/* reserve() sets these three to 0; the caller may set them before commit(). */
	uint32_t ack; /* VB_OUT_ACK | PSN: an ACK travels along, as if it were the packet before; only where
			 the wire carries acks */
	bool placed;  /* the message's data is in its place already, and none comes along: only on wires with
			 direct placement */
	uint8_t path_mtu; /* enum ibv_mtu of the sending QP, on wires whose packets are larger than that; 0:
			     the packet's length says it */
	uint8_t *hdr;	  /* room for the transport headers, BTH first */
	uint8_t *payload; /* room for the payload (may be the bytes right after the header) */
};

/* Requests leave room for responses, so that two full wires cannot wait for one another. */
enum vb_out_class { VB_OUT_REQUEST, VB_OUT_RESPONSE };

struct vb_out_ops {
	/* false: no room now; room() tells when it is worth another try. */
	bool (*reserve)(struct vb_out *o, struct vb_outbuf *b, uint32_t hdr_len, uint32_t payload_len,
			enum vb_out_class cls);
	void (*commit)(struct vb_out *o, struct vb_outbuf *b);
	void (*cancel)(struct vb_out *o, struct vb_outbuf *b);
	/* A mark for "everything committed until now", and whether the far end has taken all that out of the
	 * wire.  A wire that cannot know answers true. */
	uint64_t (*mark)(struct vb_out *o);
	bool (*taken)(struct vb_out *o, uint64_t mark);
	/* Whether a request of the largest size has room now, for those whom reserve() refused. */
	bool (*room)(struct vb_out *o);
};

struct vb_out {
	const struct vb_out_ops *ops; /* set once by the wire */
	uint32_t mtu;		      /* largest payload of one packet, a power of two; set once */
	bool local;		      /* same host: a NAK carries the reason as payload; set once */
	bool carries_acks;	      /* a packet to a QP can bring an ACK for that QP along; set once */
	bool places; /* direct placement: requests may be carried out past it, in the far end's memory; set
			once */
};

#endif
