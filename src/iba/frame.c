#include "iba/frame.h"

#include <string.h>

#include "base/debug.h"
#include "iba/icrc.h"

enum {
	IPV4_LEN = 20,
	IPV6_LEN = 40,
	TYPE_IPV4 = 0x0800,
	TYPE_IPV6 = 0x86dd,
};

static uint8_t *put16(uint8_t *at, uint16_t v)
{
	at[0] = (uint8_t)(v >> 8);
	at[1] = (uint8_t)v;
	return at + 2;
}

uint16_t vb_frame_port(uint32_t flow_label, uint32_t src_qpn, uint32_t dst_qpn)
{
	uint32_t label = flow_label & 0xfffff;

	/* As Linux does, so that a flow looks the same with other stacks (include/rdma/ib_verbs.h): 20 bits
	 * of the product, folded, and then 14 bits above 0xc000, the range for such ports (A17.3.1). */
	if (!label) {
		uint64_t product = (uint64_t)src_qpn * dst_qpn;

		product ^= product >> 20;
		product ^= product >> 40;
		label = product & 0xfffff;
	}
	return (uint16_t)(0xc000 | ((label & 0x3fff) ^ label >> 14));
}

/* RFC 1112, 6.4; RFC 2464, 7: groups.  Others: locally administered, with an address's bytes to be read. */
static uint8_t *put_mac(uint8_t *at, struct vb_gid gid, bool ipv4)
{
	uint8_t b[16];

	memcpy(b, &gid, sizeof(b));
	if (ipv4 && b[12] >> 4 == 0xe) {
		memcpy(at, (const uint8_t[]){0x01, 0x00, 0x5e, b[13] & 0x7f, b[14], b[15]}, 6);
	} else if (!ipv4 && b[0] == 0xff) {
		memcpy(at, (const uint8_t[]){0x33, 0x33, b[12], b[13], b[14], b[15]}, 6);
	} else if (ipv4) {
		memcpy(at, (const uint8_t[]){0x02, 0x00, b[12], b[13], b[14], b[15]}, 6);
	} else {
		uint32_t w[4];

		memcpy(w, b, sizeof(w)); /* all of it, since any part may be what tells two apart */
		w[3] ^= w[0] ^ w[1] ^ w[2];
		memcpy(at, (const uint8_t[]){0x02, 0x01}, 2);
		memcpy(at + 2, &w[3], 4);
	}
	return at + 6;
}

/* UDP's checksum over IPv6, which has to have one (RFC 8200, 8.1): of addresses, length, 17, and `len` bytes.
 */
static uint16_t udp6_checksum(const uint8_t *ip, const uint8_t *udp, size_t len)
{
	uint64_t sum = 17 + len;

	for (size_t i = 8; i < IPV6_LEN; i += 2)
		sum += (uint32_t)ip[i] << 8 | ip[i + 1];
	for (size_t i = 0; i + 1 < len; i += 2)
		sum += (uint32_t)udp[i] << 8 | udp[i + 1];
	while (sum >> 16)
		sum = (sum & 0xffff) + (sum >> 16);
	sum = ~sum & 0xffff;
	return sum ? (uint16_t)sum : 0xffff;
}

/* Where the parts of a frame stand. */
struct parts {
	uint8_t *ip, *udp, *hdr, *payload;
	size_t ip_len, hdr_len, len; /* len: of the payload, with its padding */
};

/* All before the payload, without checksums. */
static void put_headers(struct parts *f, uint8_t *to, const struct vb_frame_ends *e, struct vb_pkt *p)
{
	struct vb_grh g = {.sgid = e->sgid, .dgid = e->dgid, .route = e->route};
	bool ipv4 = vb_grh_is_ipv4(&g);
	uint8_t grh[VB_GRH_LEN];

	if (!(vb_opcodes[p->opcode].bits & VB_OP_PAYLOAD))
		p->payload_len = 0;
	vb_assert(p->payload_len <= VB_FRAME_PAYLOAD);
	p->pad = -p->payload_len & 3;
	f->ip_len = ipv4 ? IPV4_LEN : IPV6_LEN;
	f->ip = to + VB_ETHER_LEN;
	f->udp = f->ip + f->ip_len;
	f->hdr = f->udp + VB_UDP_LEN;
	f->hdr_len = vb_pkt_encode(f->hdr, p);
	f->payload = f->hdr + f->hdr_len;
	f->len = p->payload_len + p->pad;
	put16(put_mac(put_mac(to, e->dgid, ipv4), e->sgid, ipv4), ipv4 ? TYPE_IPV4 : TYPE_IPV6);
	g.length = (uint32_t)(f->hdr_len + f->len);
	vb_grh_put(grh, &g);
	memcpy(f->ip, grh + VB_GRH_LEN - f->ip_len, f->ip_len);
	put16(f->udp, vb_frame_port(e->route.word, e->src_qpn, p->qpn));
	put16(f->udp + 2, VB_ROCE_PORT);
	put16(f->udp + 4, (uint16_t)(VB_UDP_LEN + f->hdr_len + f->len + VB_ICRC_LEN));
	put16(f->udp + 6, 0); /* over IPv4 there need not be one (RFC 768), and adapters send none */
}

size_t vb_frame_cut(uint8_t to[VB_FRAME_MAX], const struct vb_frame_ends *e, const struct vb_pkt *p,
		    size_t most, size_t *len)
{
	struct vb_pkt q = *p;
	size_t kept, whole;
	struct parts f;
	uint32_t sum;

	put_headers(&f, to, e, &q);
	whole = (size_t)(f.payload - to) + f.len + VB_ICRC_LEN;
	*len = whole;
	kept = whole <= most ? f.len : most <= (size_t)(f.payload - to) ? 0 : most - (size_t)(f.payload - to);
	if (kept > f.len)
		kept = f.len;
	memset(f.payload, 0, kept);
	if (q.payload)
		memcpy(f.payload, q.payload, kept < q.payload_len ? kept : q.payload_len);
	if (whole > most) {
		if (f.ip_len == IPV6_LEN)
			put16(f.udp + 6, 0xffff);
		kept += (size_t)(f.payload - to);
		return kept < most ? kept : most;
	}
	sum = htole32(vb_icrc_make(f.ip, f.ip_len, f.udp, f.hdr, f.hdr_len, f.payload, f.len));
	memcpy(f.payload + f.len, &sum, sizeof(sum));
	if (f.ip_len == IPV6_LEN)
		put16(f.udp + 6,
		      udp6_checksum(f.ip, f.udp, (size_t)(f.payload - f.udp) + f.len + VB_ICRC_LEN));
	return whole;
}

/* Sets the identification in a header of IPv4 that had 0.  The checksum is the complement of a sum. */
static void put_id(uint8_t *ip, uint16_t id)
{
	uint32_t sum = (uint16_t) ~(ip[10] << 8 | ip[11]) + (uint32_t)id;

	put16(ip + 4, id);
	put16(ip + 10, (uint16_t) ~((sum & 0xffff) + (sum >> 16)));
}

size_t vb_frame_packet(uint8_t to[VB_FRAME_MAX], const struct vb_roce_packet *p, size_t most, size_t *len)
{
	struct vb_grh g = {.sgid = p->ends.src,
			   .dgid = p->ends.dst,
			   .route =
			       vb_route(VB_GRH_WORD(0, p->tclass, 0), p->hops ? p->hops : VB_GRH_HOPS, 0),
			   .length = (uint32_t)p->len - VB_ICRC_LEN};
	bool ipv4 = vb_grh_is_ipv4(&g);
	size_t ip_len = ipv4 ? IPV4_LEN : IPV6_LEN, kept = p->len;
	uint8_t grh[VB_GRH_LEN], *ip, *udp;

	vb_assert(p->len >= VB_ROCE_LEAST && p->len <= VB_ROCE_MOST);
	ip = put16(put_mac(put_mac(to, g.dgid, ipv4), g.sgid, ipv4), ipv4 ? TYPE_IPV4 : TYPE_IPV6);
	vb_grh_put(grh, &g);
	memcpy(ip, grh + VB_GRH_LEN - ip_len, ip_len);
	if (ipv4)
		put_id(ip, p->id);
	udp = ip + ip_len;
	put16(put16(put16(udp, p->ends.port), VB_ROCE_PORT), (uint16_t)(VB_UDP_LEN + p->len));
	put16(udp + 6, 0);
	*len = (size_t)(udp + VB_UDP_LEN - to) + p->len;
	if (*len > most)
		kept -= *len - most;
	memcpy(udp + VB_UDP_LEN, p->pkt, kept);
	if (!ipv4)
		put16(udp + 6, kept < p->len ? 0xffff : udp6_checksum(ip, udp, VB_UDP_LEN + p->len));
	return (size_t)(udp + VB_UDP_LEN - to) + kept;
}

size_t vb_frame_note(uint8_t to[VB_FRAME_MAX], const char *text)
{
	size_t n = strlen(text);

	if (n > VB_FRAME_PAYLOAD)
		n = VB_FRAME_PAYLOAD;
	memset(to, 0, VB_ETHER_LEN);
	to[0] = to[6] = 0x02; /* locally administered, nobody's */
	put16(to + 12, VB_ETHERTYPE_NOTE);
	memcpy(to + VB_ETHER_LEN, text, n);
	return VB_ETHER_LEN + n;
}

static uint32_t packets(uint32_t bytes, uint32_t mtu)
{
	return bytes ? (bytes - 1) / mtu + 1 : 1;
}

uint32_t vb_frame_parts(const struct vb_pkt *p, uint32_t mtu)
{
	return vb_opcodes[p->opcode].bits & VB_OP_PAYLOAD ? packets(p->payload_len, mtu) : 1;
}

uint32_t vb_frame_psns(const struct vb_pkt *p, uint32_t mtu)
{
	uint32_t bits = vb_opcodes[p->opcode].bits;

	return bits & VB_OP_READ && !(bits & VB_OP_RESPONSE) ? packets(p->dma_len, mtu)
							     : vb_frame_parts(p, mtu);
}

/* The opcode of p's family and kind that stands at that place in a message. */
static uint8_t opcode_at(const struct vb_pkt *p, uint32_t place)
{
	const uint32_t kind = VB_OP_SEND | VB_OP_WRITE | VB_OP_READ | VB_OP_RESPONSE | VB_OP_PAYLOAD |
			      VB_OP_FIRST | VB_OP_LAST | VB_OP_IMM | VB_OP_IETH;
	uint32_t want = (vb_opcodes[p->opcode].bits & kind & ~(uint32_t)(VB_OP_FIRST | VB_OP_LAST)) | place;
	uint8_t family = VB_FAMILY(p->opcode);

	if (!(place & VB_OP_LAST)) /* what ends a message, its last packet carries */
		want &= ~(uint32_t)(VB_OP_IMM | VB_OP_IETH);
	for (uint8_t i = 0; i < 32; i++)
		if (vb_opcodes[family | i].name && (vb_opcodes[family | i].bits & kind) == want)
			return family | i;
	vb_assert(false); /* the table has all places of what may be longer than one packet */
	return p->opcode;
}

void vb_frame_part(struct vb_pkt *part, const struct vb_pkt *p, uint32_t mtu, uint32_t i)
{
	uint32_t n = vb_frame_parts(p, mtu), bits = vb_opcodes[p->opcode].bits, place = 0;
	bool last = i == n - 1;

	vb_assert(i < n);
	*part = *p;
	part->psn = vb_psn_add(p->psn, i);
	if (n == 1)
		return;
	if (!i)
		place |= bits & VB_OP_FIRST;
	if (last)
		place |= bits & VB_OP_LAST;
	part->opcode = opcode_at(p, place);
	part->op = &vb_opcodes[part->opcode];
	part->payload_len = last ? p->payload_len - i * mtu : mtu;
	part->payload = p->payload ? p->payload + (size_t)i * mtu : NULL;
	part->pad = -part->payload_len & 3;
	part->ack_req = last && p->ack_req;
	part->solicited = last && p->solicited;
}
