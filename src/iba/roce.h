/* Packets of RoCEv2 as a UDP socket shows them: what their ICRC has to be between two ends, and whether what
 * has come is a packet for this process.  Pure functions: no socket, no lock, no allocation.
 *
 * A socket does not show the IPv4 identification, which the ICRC covers.  A sender decides its
 * identifications (0, 1, 2, ... within one send), and a receiver takes them out of the ICRC (iba/icrc.h). */
#ifndef VB_IBA_ROCE_H
#define VB_IBA_ROCE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "iba/grh.h"
#include "iba/icrc.h"
#include "iba/pkt.h"

#define VB_ROCE_PORT 4791 /* UDP's destination port (A17.3.1) */

enum {
	VB_ICRC_LEN = 4,
	VB_ROCE_LEAST = VB_BTH_LEN + VB_ICRC_LEN,	/* bytes of UDP's payload, at least, */
	VB_ROCE_MOST = VB_HDR_MAX + 4096 + VB_ICRC_LEN, /* and at most: the largest path MTU */
	VB_ROCE_IDS = 128, /* Verbena sends no identification that is not below */
};

/* What IP and UDP headers say of a packet.  Both GIDs of IPv4 (::ffff:0:0/96): its header is IPv4's. */
struct vb_roce_ends {
	struct vb_gid src, dst;
	uint16_t port; /* UDP's source port; the destination port is VB_ROCE_PORT */
};

static inline bool vb_roce_ends_are_ipv4(const struct vb_roce_ends *e)
{
	return vb_gid_is_ipv4(e->src) && vb_gid_is_ipv4(e->dst);
}

static inline bool vb_roce_ends_equal(const struct vb_roce_ends *a, const struct vb_roce_ends *b)
{
	return a->src.low == b->src.low && a->dst.low == b->dst.low && a->src.high == b->src.high &&
	       a->dst.high == b->dst.high && a->port == b->port;
}

/* A packet as it crosses a network, for who keeps it. */
struct vb_roce_packet {
	struct vb_roce_ends ends;
	uint16_t id;	    /* IPv4's identification */
	uint8_t tclass;	    /* IPv4's type of service, IPv6's traffic class */
	uint8_t hops;	    /* 0: not known */
	const uint8_t *pkt; /* UDP's payload: from the BTH to the ICRC */
	size_t len;
};

/* ---- sending ---- */

/* What the ICRCs of all packets between two ends begin with.  A sender keeps one for each path. */
struct vb_roce_path {
	uint32_t head; /* the CRC of the headers before the BTH, with lengths and identification of 0 */
	bool ipv4;
};

void vb_roce_path_init(struct vb_roce_path *p, const struct vb_roce_ends *e);

/* The ICRC as it is stored, its first byte in the lowest bits, of a packet with that IPv4 identification (of
 * IPv6: not looked at).  pkt: `len` bytes from the BTH to the payload's padding, a multiple of 4. */
uint32_t vb_roce_icrc(const struct vb_roce_path *p, uint16_t id, const uint8_t *pkt, size_t len);

/* Writes the ICRC behind the packet. */
static inline void vb_roce_seal(const struct vb_roce_path *p, uint16_t id, uint8_t *pkt, size_t len)
{
	uint32_t sum = htole32(vb_roce_icrc(p, id, pkt, len));

	memcpy(pkt + len, &sum, sizeof(sum));
}

/* ---- receiving ---- */

/* What is wrong with a packet, in the order in which it is looked for: name of the count, and what a sentence
 * says of the packet. */
#define VB_ROCE_VERDICTS(ROW)                                                                           \
	ROW(RIGHT, "right", "it is right")                                                              \
	ROW(LENGTH, "length", "its length is none that a packet has")                                   \
	ROW(OPCODE, "opcode", "its opcode is unknown")                                                  \
	ROW(HEADERS, "headers", "it is shorter than the headers of its opcode")                         \
	ROW(PADDING, "padding", "it has more padding than payload")                                     \
	ROW(PAYLOAD, "payload", "it has a payload where its opcode has none, or none where it has one") \
	ROW(VERSION, "version", "its transport header version is not 0")                                \
	ROW(QPN, "qpn", "no queue pair of this process can have its number")                            \
	ROW(PKEY, "pkey", "its P_Key is not this port's")                                               \
	ROW(DESTINATION, "destination", "it is to an address that this interface does not have")        \
	ROW(SOURCE, "source", "it is from an address that no other host can have")                      \
	ROW(ICRC, "icrc", "its ICRC is wrong")                                                          \
	ROW(ID, "id", "its ICRC is right only for an IPv4 identification that its sender does not use")

enum vb_roce_verdict {
#define ROW(name, count, words) VB_ROCE_##name,
	VB_ROCE_VERDICTS(ROW)
#undef ROW
	    VB_ROCE_VERDICT_COUNT
};

struct vb_roce_verdict_row {
	const char *count, *words;
};
extern const struct vb_roce_verdict_row vb_roce_verdicts[VB_ROCE_VERDICT_COUNT];

/* What a receive queue's interface and socket are.  The caller keeps all of it still meanwhile. */
struct vb_roce_here {
	uint32_t qpn_mask, qpn; /* queue pairs of this process: (QPN & qpn_mask) == qpn */
	bool gsi;		/* packets to QP1 come here */
	bool groups; /* some multicast group was joined: packets to VB_QPN_GROUP come here, from any group's
			address; which ones were joined is asked later */
	uint32_t naddrs;
	const struct vb_gid *addrs; /* the interface's */
};

/* One datagram, or one segment of a batch that the kernel merged. */
struct vb_roce_arrival {
	struct vb_roce_ends ends;
	bool by_lo;	    /* it did not leave this host */
	uint16_t likely;    /* the IPv4 identification that most senders give it: found sooner than others */
	const uint8_t *pkt; /* UDP's payload: from the BTH to the ICRC */
	size_t len;
};

/* The path of the last packet, whose ends the next one mostly has.  Begins zeroed. */
struct vb_roce_last {
	struct vb_roce_ends ends;
	struct vb_roce_path path;
	bool known;
};

bool vb_gid_is_among(const struct vb_gid *all, uint32_t n, struct vb_gid gid);

/* Whether a packet is right, and for this process.  *id: its IPv4 identification (0 of IPv6), if it is right.
 * Nothing of a queue pair or a far end is looked up. */
enum vb_roce_verdict vb_roce_check(const struct vb_roce_here *here, struct vb_roce_last *last,
				   const struct vb_roce_arrival *a, uint16_t *id);

/* Which identifications a far end sends.  One of 65,536 packets with random errors is right with some
 * identification.  A far end that is known to send small ones only is held to that, which makes it one of
 * 2^25.  Begins zeroed. */
struct vb_roce_habit {
	uint8_t small; /* small ones in a row, up to those that make a habit */
	uint8_t large; /* others since the last small one, up to those that end it for good */
};

/* VB_ROCE_RIGHT, or VB_ROCE_ID: the packet is not to be taken.  A far end that changes its habit (it was
 * restarted with another stack, say) loses two packets. */
enum vb_roce_verdict vb_roce_habit_check(struct vb_roce_habit *h, uint16_t id);

/* Whether something on the way translates addresses: the packet, whose ICRC is wrong, is right between these
 * ends, of which a connection knows that they are the two ends'.  A source port that was translated as well
 * is recovered; then one of 1,000 random packets passes. */
bool vb_roce_is_translated(const struct vb_roce_arrival *a, const struct vb_roce_ends *sent);

#endif
