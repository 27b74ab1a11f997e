/* The invariant CRC of a RoCEv2 packet (InfiniBand volume 1, 7.8.1; annex A17.3.3), and what can be told from
 * it of a packet whose IPv4 identification is not known.
 *
 * The ICRC covers the identification, and a UDP socket does not show it.  But a CRC is linear: the ICRC that
 * came and the one computed with identification 0 differ by the identification, moved on by as many bytes as
 * stand behind it.  Moved back, a difference below 2^16 is the identification; anything else is no packet. */
#ifndef VB_IBA_ICRC_H
#define VB_IBA_ICRC_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* The ICRC as it is stored, its first byte in the lowest bits: of an IPv4 header without options (`ip_len`
 * 20) or an IPv6 header (40), UDP's of 8 bytes, the transport headers, BTH first, and the payload with its
 * padding. */
uint32_t vb_icrc_make(const uint8_t *ip, size_t ip_len, const uint8_t *udp, const uint8_t *hdr,
		      size_t hdr_len, const uint8_t *payload, size_t payload_len);

/* The two steps of that, for who keeps the first one's sum for many packets: the headers before the BTH, and
 * the rest in one piece.  sum: what vb_icrc_head() returned. */
uint32_t vb_icrc_head(const uint8_t *ip, size_t ip_len, const uint8_t *udp);
uint32_t vb_icrc_rest(uint32_t sum, const uint8_t *pkt, size_t len);

/* Whether a packet of IPv4 is right, whatever its identification is, which *id is then.  came: the ICRC that
 * it brought; zero: that of the same packet with identification 0; len: its transport headers, payload and
 * padding.  Of 65,536 packets with random errors one passes.  A sender whose identifications are known to be
 * small is held to that by the caller. */
bool vb_icrc_recover(uint32_t came, uint32_t zero, size_t len, uint16_t *id);

#endif
