/* The global route header (GRH): 40 bytes in front of every datagram that is received, which name the two
 * ends (rule 24), and what a packet between two processes of a host brings along of it. */
#ifndef VB_IBA_GRH_H
#define VB_IBA_GRH_H

#include <endian.h>
#include <stdbool.h>
#include <stdint.h>
#include <string.h>

#include "base/text.h"

enum { VB_GRH_LEN = 40, VB_GRH_HOPS = 64 /* as Linux sets it where nobody says another */ };

/* Of an address: which of the sender's GIDs, traffic class and flow label; without VB_GRH_GLOBAL there is no
 * GRH (on InfiniBand), and the word is 0. */
#define VB_GRH_GLOBAL (1u << 30)
#define VB_GRH_WORD(sgid_index, tclass, flow) \
	(VB_GRH_GLOBAL | ((sgid_index)&3u) << 28 | ((tclass)&0xffu) << 20 | ((flow)&0xfffffu))
#define VB_GRH_SGID(word)   ((word) >> 28 & 3)
#define VB_GRH_TCLASS(word) ((word) >> 20 & 0xff)
#define VB_GRH_FLOW(word)   ((word)&0xfffff)

/* What an address says of the headers of a datagram.  Between processes of a host the datagram brings it
 * along: its bytes are laid out as a brief packet begins (iba/out.h), and are copied there at once. */
struct vb_route {
	uint8_t none; /* 0, as is the other one; in a packet they have another meaning */
	uint8_t sl16; /* the service level times 16; the rest has another meaning in a packet */
	uint8_t none2;
	uint8_t hops;  /* hop limit */
	uint32_t word; /* VB_GRH_* */
};

static inline struct vb_route vb_route(uint32_t word, uint8_t hops, uint8_t sl)
{
	return (struct vb_route){.sl16 = (uint8_t)(sl << 4), .hops = hops, .word = word};
}

static inline uint8_t vb_route_sl(struct vb_route r)
{
	return r.sl16 >> 4;
}

/* A GID's bytes as two words, in the order of memory. */
struct vb_gid {
	uint64_t high, low;
};

struct vb_grh {
	struct vb_gid sgid, dgid;
	struct vb_route route;
	uint32_t length; /* of the packet from the BTH to the payload's padding, without a checksum */
	bool infiniband; /* the link layer: on Ethernet the header is that of IPv4 or IPv6, and UDP's follows
			  */
};

/* The number of the header that follows: UDP's, or InfiniBand's (IBTA 8.3). */
static inline uint8_t vb_grh_next(bool infiniband)
{
	return infiniband ? 0x1b : 17;
}

/* Whether a GID is an IPv4 address: one of ::ffff:0:0/96. */
static inline bool vb_gid_is_ipv4(struct vb_gid gid)
{
	uint32_t next;

	memcpy(&next, &gid.low, 4);
	return !gid.high && next == htobe32(0xffff);
}

/* Whether the header is IPv4's: on Ethernet, between two such addresses. */
static inline bool vb_grh_is_ipv4(const struct vb_grh *g)
{
	return !g->infiniband && vb_gid_is_ipv4(g->sgid) && vb_gid_is_ipv4(g->dgid);
}

static inline uint32_t vb_gid_ipv4(struct vb_gid gid) /* in network order */
{
	uint32_t w[2];

	memcpy(w, &gid.low, sizeof(w));
	return w[1];
}

static inline struct vb_gid vb_gid_of(const uint8_t bytes[16])
{
	struct vb_gid g;

	memcpy(&g, bytes, sizeof(g));
	return g;
}

/* Reads a GID of a table that its owner may be changing; see vb_adapter_show_gids(). */
static inline struct vb_gid vb_gid_read(const uint8_t from[16])
{
	const uint64_t *halves = (const uint64_t *)(const void *)from;

	return (struct vb_gid){__atomic_load_n(halves, __ATOMIC_RELAXED),
			       __atomic_load_n(halves + 1, __ATOMIC_RELAXED)};
}

/* Adds a GID as an address is written, one of ::ffff:0:0/96 as that of IPv4. */
void vb_gid_add(struct vb_text *t, const uint8_t gid[16]);

/* Writes the header: for IPv4 in the last 20 bytes, behind as many zeros. */
void vb_grh_put(uint8_t to[VB_GRH_LEN], const struct vb_grh *g);

#endif
