#include "iba/grh.h"

enum {
	ICRC = 4,	/* bytes behind the payload on a wire */
	UDP = 8,	/* bytes of its header */
	NEXT_UDP = 17,	/* number of the header that follows: UDP's */
	NEXT_IBA = 0x1b /* and that of InfiniBand (IBTA 8.3) */
};

/* RFC 791 and 1071: the words' sum, whose carries are added again, inverted. */
static uint16_t checksum(const uint16_t *words, unsigned n)
{
	uint32_t sum = 0;

	for (unsigned i = 0; i < n; i++)
		sum += words[i];
	sum = (sum & 0xffff) + (sum >> 16);
	return (uint16_t) ~((sum & 0xffff) + (sum >> 16));
}

static void put_ipv4(uint8_t *to, const struct vb_grh *g)
{
	uint16_t h[10] = {
	    [0] = htobe16((uint16_t)(0x4500 | (g->word >> 20 & 0xff))),
	    [1] = htobe16((uint16_t)(sizeof(h) + UDP + g->length + ICRC)),
	    [3] = htobe16(0x4000), /* not to be cut into fragments */
	    [4] = htobe16(VB_GRH_HOPS << 8 | NEXT_UDP),
	};

	memcpy(&h[6], g->sgid + 12, 4);
	memcpy(&h[8], g->dgid + 12, 4);
	h[5] = checksum(h, 10);
	memset(to, 0, VB_GRH_LEN - sizeof(h));
	memcpy(to + VB_GRH_LEN - sizeof(h), h, sizeof(h));
}

static void put_ipv6(uint8_t *to, const struct vb_grh *g)
{
	uint32_t first = htobe32(6u << 28 | (g->word & 0xfffffff));
	uint16_t length = htobe16((uint16_t)((g->infiniband ? 0 : UDP) + g->length + ICRC));

	memcpy(to, &first, 4);
	memcpy(to + 4, &length, 2);
	to[6] = g->infiniband ? NEXT_IBA : NEXT_UDP;
	to[7] = VB_GRH_HOPS;
	memcpy(to + 8, g->sgid, 16);
	memcpy(to + 24, g->dgid, 16);
}

void vb_grh_put(uint8_t to[VB_GRH_LEN], const struct vb_grh *g)
{
	if (vb_grh_is_ipv4(g))
		put_ipv4(to, g);
	else
		put_ipv6(to, g);
}
