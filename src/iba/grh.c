#include "iba/grh.h"

#include <arpa/inet.h>

enum {
	ICRC = 4,  /* bytes behind the payload on a wire */
	IPV4 = 20, /* bytes of its header */
	UDP = 8,   /* and of UDP's */
};

/* RFC 791 and 1071: the sum of all words of 16 bits, whose carries are added again, inverted.  Words of 32
 * bits, in the order of memory, have the same sum. */
static inline uint16_t checksum(const uint32_t words[5])
{
	uint64_t sum = (uint64_t)words[0] + words[1] + words[2] + words[3] + words[4];

	sum = (uint32_t)sum + (sum >> 32);
	sum = (sum & 0xffff) + (sum >> 16);
	return (uint16_t) ~(sum + (sum >> 16));
}

static inline void put_ipv4(uint8_t *to, const struct vb_grh *g)
{
	uint32_t h[5] = {
	    htobe32(0x45000000 | VB_GRH_TCLASS(g->route.word) << 16 | (IPV4 + UDP + g->length + ICRC)),
	    htobe32(0x4000), /* not to be cut into fragments */
	    htobe32((uint32_t)g->route.hops << 24 | (uint32_t)vb_grh_next(false) << 16),
	    vb_gid_ipv4(g->sgid),
	    vb_gid_ipv4(g->dgid),
	};
	uint16_t sum = checksum(h);

	memset(to, 0, VB_GRH_LEN - IPV4);
	memcpy(to + VB_GRH_LEN - IPV4, h, IPV4);
	memcpy(to + VB_GRH_LEN - IPV4 + 10, &sum, sizeof(sum));
}

static void put_ipv6(uint8_t *to, const struct vb_grh *g)
{
	uint32_t first = htobe32(6u << 28 | (g->route.word & 0xfffffff));
	uint16_t length = htobe16((uint16_t)((g->infiniband ? 0 : UDP) + g->length + ICRC));

	memcpy(to, &first, 4);
	memcpy(to + 4, &length, 2);
	to[6] = vb_grh_next(g->infiniband);
	to[7] = g->route.hops;
	memcpy(to + 8, &g->sgid, 16);
	memcpy(to + 24, &g->dgid, 16);
}

/* Inlined where datagrams are received, however many others call it. */
inline __attribute__((always_inline)) void vb_grh_put(uint8_t to[VB_GRH_LEN], const struct vb_grh *g)
{
	if (vb_grh_is_ipv4(g))
		put_ipv4(to, g);
	else
		put_ipv6(to, g);
}

void vb_gid_add(struct vb_text *t, const uint8_t gid[16])
{
	bool v4 = vb_gid_is_ipv4(vb_gid_of(gid));
	char text[INET6_ADDRSTRLEN] = "?";

	inet_ntop(v4 ? AF_INET : AF_INET6, v4 ? gid + 12 : gid, text, sizeof(text));
	vb_text_add(t, "%s", text);
}
