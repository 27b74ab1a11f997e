#include "iba/icrc.h"

#include <string.h>

#include "base/crc.h"
#include "base/debug.h"
#include "iba/pkt.h"

enum {
	IPV4_LEN = 20,
	IPV6_LEN = 40,
	UDP_LEN = 8,
	LRH_LEN = 8, /* of InfiniBand's link header, which RoCE has none of: as ones in the ICRC */
	BEHIND_ID = IPV4_LEN - 6 + UDP_LEN,
};

/* The fifth byte of a BTH: congestion marks, reserved. */
#define MARKS ((uint64_t)0xff << 32)

uint32_t vb_icrc_head(const uint8_t *ip, size_t ip_len, const uint8_t *udp)
{
	uint8_t head[LRH_LEN + IPV6_LEN + UDP_LEN], *at = head + LRH_LEN;

	vb_assert(ip_len == IPV4_LEN || ip_len == IPV6_LEN);
	memset(head, 0xff, LRH_LEN);
	memcpy(at, ip, ip_len);
	/* What changes on the way is all ones. */
	if (ip_len == IPV4_LEN) {
		at[1] = at[8] = at[10] = at[11] = 0xff; /* type of service, time to live, checksum */
	} else {
		at[0] |= 0x0f; /* traffic class and flow label */
		at[1] = at[2] = at[3] = 0xff;
		at[7] = 0xff; /* hop limit */
	}
	at += ip_len;
	memcpy(at, udp, UDP_LEN);
	at[6] = at[7] = 0xff; /* checksum */
	return vb_crc(0, head, (size_t)(at + UDP_LEN - head));
}

uint32_t vb_icrc_rest(uint32_t sum, const uint8_t *pkt, size_t len)
{
	return vb_crc_with(sum, MARKS, pkt, len);
}

uint32_t vb_icrc_make(const uint8_t *ip, size_t ip_len, const uint8_t *udp, const uint8_t *hdr,
		      size_t hdr_len, const uint8_t *payload, size_t payload_len)
{
	return vb_crc(vb_icrc_rest(vb_icrc_head(ip, ip_len, udp), hdr, hdr_len), payload, payload_len);
}

bool vb_icrc_recover(uint32_t came, uint32_t zero, size_t len, uint16_t *id)
{
	uint32_t moved = came ^ zero;

	if (moved) /* the two bytes of the field move by themselves as well */
		moved = vb_crc_times(moved, vb_crc_back(BEHIND_ID + len + 2));
	*id = (uint16_t)(moved << 8 | moved >> 8); /* its first byte is the lower one of the register */
	return moved <= UINT16_MAX;
}
