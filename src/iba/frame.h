/* A packet as it would stand on an Ethernet (RoCEv2, IBTA annex A17): Ethernet, IPv4 or IPv6, UDP, transport
 * headers, payload, padding, ICRC.  Pure functions.  A capture shows so what crosses a wire that has none of
 * that; a wire to other hosts has the same source ports and the same ICRC.
 *
 * What there is none of is made up, always in the same way: MAC addresses follow from the GIDs, the source
 * port from the flow label or the two QPNs. */
#ifndef VB_IBA_FRAME_H
#define VB_IBA_FRAME_H

#include <stddef.h>
#include <stdint.h>

#include "iba/grh.h"
#include "iba/pkt.h"
#include "iba/roce.h"

enum {
	VB_ETHER_LEN = 14,
	VB_UDP_LEN = 8,
	VB_FRAME_PAYLOAD = 4096, /* the largest path MTU */
	VB_FRAME_MAX = VB_ETHER_LEN + VB_GRH_LEN + VB_UDP_LEN + VB_HDR_MAX + VB_FRAME_PAYLOAD + VB_ICRC_LEN,
	VB_ETHERTYPE_NOTE = 0x88b5, /* IEEE 802: "local experimental 1", for vb_frame_note() */
};

/* From where to where.  Both GIDs of IPv4: an IPv4 header; else an IPv6 one, on InfiniBand's link layer, too.
 */
struct vb_frame_ends {
	struct vb_gid sgid, dgid; /* to a group: the group's */
	struct vb_route route;
	uint32_t src_qpn; /* of the sending queue pair */
};

/* Writes a frame for a capture that keeps `most` bytes.  p: what vb_pkt_encode() reads; its padding follows
 * from payload_len, at most VB_FRAME_PAYLOAD, and counts only where the opcode has a payload; payload NULL:
 * that many zeros.  What p says of processes of one host (placed, mgid, loan) is no part of it.  Where the
 * frame is longer than `most`, which *len says all the same, only what is kept of the payload is read, so
 * nobody knows its ICRC; UDP's checksum, which IPv6 wants, is then one that says nothing, 0xffff.  Returns
 * what is kept; all headers are written. */
size_t vb_frame_cut(uint8_t to[VB_FRAME_MAX], const struct vb_frame_ends *e, const struct vb_pkt *p,
		    size_t most, size_t *len);

/* The frame of a packet that crosses a network, as a capture shows it that keeps `most` bytes, 62 or more.
 * Made up are MAC addresses, IPv6's flow label (0), and UDP's checksum, which is 0 over IPv4.  Returns what
 * is kept; *len: the frame's whole length.  p->len: VB_ROCE_MOST at most. */
size_t vb_frame_packet(uint8_t to[VB_FRAME_MAX], const struct vb_roce_packet *p, size_t most, size_t *len);

/* UDP's source port: of a flow label that is not 0, else of the two QPNs, the same in both directions. */
uint16_t vb_frame_port(uint32_t flow_label, uint32_t src_qpn, uint32_t dst_qpn);

/* A frame that is no packet but says something in its place: of a type that no protocol has, with the text
 * for payload, cut to what has room.  Returns its length. */
size_t vb_frame_note(uint8_t to[VB_FRAME_MAX], const char *text);

/* Splitting: a wire whose packets are larger than the queue pair's path MTU sends as one packet what would be
 * several. vb_frame_parts(): how many of `mtu` bytes (a power of two) stand for p, 1 for what has no payload;
 * vb_frame_part(): the i-th of them, which has the PSN p->psn + i: its opcode, payload, and those of p's
 * headers that this opcode has.  vb_frame_psns(): how many PSNs p takes, which is its answer's packets for a
 * READ request. */
uint32_t vb_frame_parts(const struct vb_pkt *p, uint32_t mtu);
uint32_t vb_frame_psns(const struct vb_pkt *p, uint32_t mtu);
void vb_frame_part(struct vb_pkt *part, const struct vb_pkt *p, uint32_t mtu, uint32_t i);

#endif
