/* One IBTA transport packet, from BTH to payload: its fields, and the two pure functions between fields and
 * bytes.  Multi-byte fields are in host order, except the immediate, which verbs pass through in network
 * order (rule 25). */
#ifndef VB_IBA_PKT_H
#define VB_IBA_PKT_H

#include <endian.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include "iba/grh.h"
#include "iba/opcode.h"

#define VB_BTH_LEN	12
#define VB_HDR_MAX	44 /* BTH + XRCETH + AtomicETH, the longest */
#define VB_PSN_MASK	0xffffffu
#define VB_QPN_MASK	0xffffffu
#define VB_PKEY_DEFAULT 0xffffu
#define VB_QPN_GROUP	0xffffffu /* all queue pairs of a multicast group (IBTA 10.5.1) */
#define VB_MGID_LEN	16u	  /* in front of a wire the group's GID follows the other headers */

struct vb_loan;
struct vb_source;

struct vb_pkt {
	const struct vb_opcode_row *op; /* decode: never NULL afterwards */
	uint8_t opcode;			/* enum vb_family | enum vb_operation */
	bool solicited;
	bool ack_req;
	uint8_t pad; /* bytes of padding behind the payload, 0-3 */
	uint16_t pkey;
	bool peer;	  /* a process of this host sent it: what only such processes say counts */
	bool placed;	  /* WRITE with immediate whose data was placed directly: there is no payload */
	uint8_t path_mtu; /* enum ibv_mtu of the sending QP, on wires whose packets are larger; 0: not told */
	uint32_t qpn;	  /* destination QP */
	uint32_t psn;
	uint32_t qkey;	      /* DETH */
	uint32_t src_qpn;     /* DETH */
	uint32_t srqn;	      /* XRCETH */
	uint32_t rkey;	      /* RETH, AtomicETH */
	uint64_t va;	      /* RETH, AtomicETH */
	uint32_t dma_len;     /* RETH */
	uint32_t msn;	      /* AETH */
	uint8_t syndrome;     /* AETH */
	uint32_t imm;	      /* ImmDt, network order */
	uint64_t swap_add;    /* AtomicETH */
	uint64_t compare;     /* AtomicETH */
	uint64_t orig;	      /* AtomicAckETH */
	uint32_t inv_rkey;    /* IETH */
	uint8_t flush_type;   /* FETH: enum vb_flush_types */
	uint8_t flush_level;  /* FETH: enum vb_flush_level */
	bool marked;	      /* a queue on the way was long (ECN); on paths that may lose packets */
	uint32_t payload_len; /* without padding; of a loan, what it lends */
	const uint8_t *payload;
	const struct vb_source *source; /* where it came from, and */
	struct vb_route route;		/* what its address said: of datagrams */
	const uint8_t
	    *mgid; /* of a datagram to VB_QPN_GROUP: the group's GID; NULL: it is to one queue pair */
	const struct vb_loan
	    *loan; /* a SEND's bytes are to be collected (iba/loan.h); NULL: payload has them */
};

/* FETH (annex A19): what a FLUSH is to bring about, as bits, and for which bytes.  The verbs have the same
 * numbers. */
enum vb_flush_types {
	VB_FLUSH_GLOBAL = 1 << 0,     /* what was written before can be seen by all */
	VB_FLUSH_PERSISTENT = 1 << 1, /* it outlives a loss of power */
};
enum vb_flush_level {
	VB_FLUSH_RANGE, /* those that the RETH names */
	VB_FLUSH_MR,	/* all of the region */
	VB_FLUSH_LEVELS,
};
#define VB_FETH_TYPE(word)  ((word)&0xf)
#define VB_FETH_LEVEL(word) ((word) >> 4 & 3)

/* AETH syndromes (IBTA 9.7.5.1.2; the credit count of an ACK that is sent is always "invalid", that is 31: no
 * limit). */
enum vb_syndrome {
	VB_AETH_ACK = 0x1f,
	VB_AETH_RNR = 0x20, /* low five bits: timer code */
	VB_AETH_NAK_PSN = 0x60,
	VB_AETH_NAK_INVALID_REQUEST = 0x61,
	VB_AETH_NAK_REMOTE_ACCESS = 0x62,
	VB_AETH_NAK_REMOTE_OPERATION = 0x63,
	VB_AETH_NAK_INVALID_RD = 0x64, /* of XRC: what its header names is not there, or of another domain */
	/* Ours, from the reserved codes, only between processes of one host: what is sent from this PSN on
	 * was not taken, and may be now; and what is lent cannot be collected from there, and is to be sent.
	 */
	VB_AETH_NAK_AGAIN = 0x7e,
	VB_AETH_NAK_LOAN = 0x7f,
	/* Ours as well, a reserved bit beside VB_AETH_RNR: receive requests were posted, and all are used up.
	 * The thread that is to fetch their completions and to post again may be waiting for a CPU. */
	VB_AETH_USED_UP = 0x80,
};
#define VB_AETH_KIND(s) ((s)&0x60) /* 0x00 ACK, 0x20 RNR NAK, 0x60 NAK */

/* Writes the BTH alone, of p's opcode, solicited, pad, pkey, qpn, ack_req and psn. */
static inline void vb_pkt_put_bth(uint8_t *buf, const struct vb_pkt *p)
{
	enum { MIGREQ = 0x40 }; /* rule 28: adapters drop what comes without it */
	uint32_t w[3] = {
	    htobe32((uint32_t)p->opcode << 24 | (uint32_t)p->solicited << 23 | MIGREQ << 16 |
		    (uint32_t)(p->pad & 3) << 20 | p->pkey),
	    htobe32(p->qpn & VB_QPN_MASK),
	    htobe32((uint32_t)p->ack_req << 31 | (p->psn & VB_PSN_MASK)),
	};

	memcpy(buf, w, VB_BTH_LEN);
}

/* BTH and DETH, all that a datagram without immediate has. */
static inline void vb_pkt_put_datagram(uint8_t *buf, const struct vb_pkt *p)
{
	uint32_t w[2] = {htobe32(p->qkey), htobe32(p->src_qpn & VB_QPN_MASK)};

	vb_pkt_put_bth(buf, p);
	memcpy(buf + VB_BTH_LEN, w, sizeof(w));
}

/* Fields of a BTH by themselves, for who sees to packets of one kind. */
static inline uint32_t vb_pkt_get_word(const uint8_t *hdr, unsigned i)
{
	uint32_t w;

	memcpy(&w, hdr + 4 * i, sizeof(w));
	return be32toh(w);
}

/* Of word 0: the opcode, the version, which is 0, and the P_Key, but for the bit of full members. */
#define VB_PKEY_BITS	  0x7fffu
#define VB_PKT_VERSION	  0x000f0000u
#define VB_PKT_KIND	  (0xff000000u | VB_PKT_VERSION | VB_PKEY_BITS)
#define VB_PKT_OF(opcode) ((uint32_t)(opcode) << 24 | VB_PKEY_BITS) /* what that is in a right packet */
#define VB_PKT_PAD(word0) ((word0) >> 20 & 3)

static inline uint32_t vb_pkt_get_qpn(const uint8_t *hdr)
{
	return vb_pkt_get_word(hdr, 1) & VB_QPN_MASK;
}

/* It ends a message of a type that is not acknowledged: if nobody takes it, nobody will tell its sender. */
static inline bool vb_pkt_ends_untold(const struct vb_pkt *p)
{
	return (VB_FAMILY(p->opcode) == VB_FAMILY_UC || VB_FAMILY(p->opcode) == VB_FAMILY_UD) &&
	       p->op->bits & VB_OP_LAST;
}

/* Writes BTH and extension headers of p (p->opcode names them) to buf, which has room for
 * vb_opcodes[p->opcode].hdr_len bytes; returns that length. */
size_t vb_pkt_encode(uint8_t *buf, const struct vb_pkt *p);

/* Takes the header bytes hdr[0..hdr_len) of a packet whose payload (padding included) is `payload_len` bytes.
 * The caller sets p->payload; p->mgid points into the header.  peer: a process of this host sent the packet.
 * Only such a packet may have a reason behind a NAK.  A datagram to a group has the group's GID behind its
 * headers; of another host's datagram the wire puts it there.  Lengths, the P_Key and reserved values are
 * checked here and nowhere else.  NULL, or what is wrong, as a short English phrase. */
const char *vb_pkt_decode(struct vb_pkt *p, const uint8_t *hdr, size_t hdr_len, size_t payload_len,
			  bool peer);

/* PSNs compare modulo 2^24, signed (rule 12): negative where a is before b. */
static inline int32_t vb_psn_diff(uint32_t a, uint32_t b)
{
	return (int32_t)((a - b) << 8) >> 8;
}

static inline uint32_t vb_psn_add(uint32_t a, uint32_t n)
{
	return (a + n) & VB_PSN_MASK;
}

#endif
