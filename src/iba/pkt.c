#include "iba/pkt.h"

#include <endian.h>
#include <string.h>

#include "base/lock.h"
#include "iba/reason.h"

enum { BECN = 0x40 };

static inline uint8_t *put32(uint8_t *at, uint32_t v)
{
	v = htobe32(v);
	memcpy(at, &v, 4);
	return at + 4;
}

static inline uint8_t *put64(uint8_t *at, uint64_t v)
{
	v = htobe64(v);
	memcpy(at, &v, 8);
	return at + 8;
}

static inline uint32_t get32(const uint8_t *at)
{
	uint32_t v;

	memcpy(&v, at, 4);
	return be32toh(v);
}

static inline uint64_t get64(const uint8_t *at)
{
	uint64_t v;

	memcpy(&v, at, 8);
	return be64toh(v);
}

static void encode_extensions(uint8_t *at, const struct vb_pkt *p, uint32_t bits)
{
	if (bits & VB_OP_DETH) {
		at = put32(at, p->qkey);
		at = put32(at, p->src_qpn & VB_QPN_MASK);
	}
	if (bits & VB_OP_XRCETH)
		at = put32(at, p->srqn & VB_QPN_MASK);
	if (bits & VB_OP_FETH)
		at = put32(at, (uint32_t)p->flush_level << 4 | p->flush_type);
	if (bits & VB_OP_RETH) {
		at = put64(at, p->va);
		at = put32(at, p->rkey);
		at = put32(at, p->dma_len);
	}
	if (bits & VB_OP_AETH)
		at = put32(at, (uint32_t)p->syndrome << 24 | (p->msn & VB_PSN_MASK));
	if (bits & VB_OP_ATOMICETH) {
		at = put64(at, p->va);
		at = put32(at, p->rkey);
		at = put64(at, p->swap_add);
		at = put64(at, p->compare);
	}
	if (bits & VB_OP_ATOMICACK)
		at = put64(at, p->orig);
	if (bits & VB_OP_IMM) {
		memcpy(at, &p->imm, 4); /* network order already (rule 25) */
		at += 4;
	}
	if (bits & VB_OP_IETH)
		put32(at, p->inv_rkey);
	if (bits & VB_OP_CNPETH) {
		memset(at, 0, 16);
		at[4 - VB_BTH_LEN] |= BECN; /* of the BTH, which is right before it */
	}
}

size_t vb_pkt_encode(uint8_t *buf, const struct vb_pkt *p)
{
	const struct vb_opcode_row *op = &vb_opcodes[p->opcode];

	vb_pkt_put_bth(buf, p);
	if (op->bits & VB_OP_HEADERS)
		encode_extensions(buf + VB_BTH_LEN, p, op->bits);
	return op->hdr_len;
}

static void decode_extensions(struct vb_pkt *p, const uint8_t *at, uint32_t bits)
{
	if (bits & VB_OP_DETH) {
		p->qkey = get32(at);
		p->src_qpn = get32(at + 4) & VB_QPN_MASK;
		at += 8;
	}
	if (bits & VB_OP_XRCETH) {
		p->srqn = get32(at) & VB_QPN_MASK;
		at += 4;
	}
	if (bits & VB_OP_FETH) {
		p->flush_type = VB_FETH_TYPE(get32(at));
		p->flush_level = VB_FETH_LEVEL(get32(at));
		at += 4;
	}
	if (bits & VB_OP_RETH) {
		p->va = get64(at);
		p->rkey = get32(at + 8);
		p->dma_len = get32(at + 12);
		at += 16;
	}
	if (bits & VB_OP_AETH) {
		p->syndrome = at[0];
		p->msn = get32(at) & VB_PSN_MASK;
		at += 4;
	}
	if (bits & VB_OP_ATOMICETH) {
		p->va = get64(at);
		p->rkey = get32(at + 8);
		p->swap_add = get64(at + 12);
		p->compare = get64(at + 20);
		at += 28;
	}
	if (bits & VB_OP_ATOMICACK) {
		p->orig = get64(at);
		at += 8;
	}
	if (bits & VB_OP_IMM) {
		memcpy(&p->imm, at, 4);
		at += 4;
	}
	if (bits & VB_OP_IETH)
		p->inv_rkey = get32(at);
}

/* What is wrong with a packet that the fast test did not let pass; NULL if it is right after all. */
static __attribute__((cold, noinline)) const char *objection(const uint8_t *hdr, size_t hdr_len,
							     size_t payload_len, bool peer)
{
	const struct vb_opcode_row *op = &vb_opcodes[hdr[0]];
	uint8_t pad = hdr[1] >> 4 & 3;

	if (!op->name)
		return "unknown opcode";
	if (hdr_len != op->hdr_len &&
	    (VB_FAMILY(hdr[0]) != VB_FAMILY_UD || vb_pkt_get_qpn(hdr) != VB_QPN_GROUP ||
	     hdr_len != op->hdr_len + VB_MGID_LEN))
		return "its header length does not match its opcode";
	if (vb_pkt_get_word(hdr, 0) & VB_PKT_VERSION)
		return "unknown transport header version";
	if ((vb_pkt_get_word(hdr, 0) & VB_PKEY_BITS) != VB_PKEY_BITS)
		return "its P_Key is not this port's";
	if (payload_len > UINT32_MAX)
		return "its payload is too long";
	if (pad > payload_len)
		return "it has more padding than payload";
	if (op->bits & VB_OP_PAYLOAD) {
		if (!(op->bits & VB_OP_LAST) && payload_len == pad)
			return "it has no payload but is not the last packet of its message";
		return NULL;
	}
	/* On the same host a NAK carries its reason. */
	if (peer && op->bits & VB_OP_AETH && VB_AETH_KIND(hdr[VB_BTH_LEN]) &&
	    payload_len == sizeof(struct vb_facts) && !pad)
		return NULL;
	return payload_len ? "payload behind an opcode that takes none" : NULL;
}

const char *vb_pkt_decode(struct vb_pkt *p, const uint8_t *hdr, size_t hdr_len, size_t payload_len, bool peer)
{
	const struct vb_opcode_row *op;
	uint32_t w0, w2, bits, pad;
	const char *why;

	if (vb_unlikely(hdr_len < VB_BTH_LEN))
		return "it is shorter than a BTH";
	w0 = get32(hdr);
	w2 = get32(hdr + 8);
	op = &vb_opcodes[w0 >> 24];
	bits = op->bits;
	pad = w0 >> 20 & 3;
	/* One test lets the good ones pass: payload only where it may be and something in it (an empty
	 * payload of a last or only packet takes the slow look). */
	if (vb_unlikely(hdr_len != op->hdr_len || (w0 & (VB_PKT_VERSION | VB_PKEY_BITS)) != VB_PKEY_BITS ||
			!(bits & VB_OP_PAYLOAD) != !payload_len ||
			(payload_len && (payload_len <= pad || payload_len > UINT32_MAX)))) {
		why = objection(hdr, hdr_len, payload_len, peer);
		if (why)
			return why;
	}
	/* In two steps, which compilers turn into wide stores: all at once is a string instruction, slow to
	 * begin, and an initializer clears field by field. */
	memset(p, 0, VB_LINE);
	memset((uint8_t *)p + VB_LINE, 0, sizeof *p - VB_LINE);
	if (bits & VB_OP_HEADERS)
		decode_extensions(p, hdr + VB_BTH_LEN, bits);
	p->op = op;
	p->peer = peer;
	if (vb_unlikely(hdr_len != op->hdr_len))
		p->mgid = hdr + op->hdr_len;
	p->opcode = (uint8_t)(w0 >> 24);
	p->solicited = w0 >> 23 & 1;
	p->ack_req = w2 >> 31;
	p->pad = (uint8_t)pad;
	p->pkey = (uint16_t)w0;
	p->qpn = get32(hdr + 4) & VB_QPN_MASK;
	p->psn = w2 & VB_PSN_MASK;
	p->payload_len = (uint32_t)payload_len - pad;
	return NULL;
}
