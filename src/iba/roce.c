#include "iba/roce.h"

#include <stdatomic.h>

#include "base/crc.h"
#include "base/debug.h"
#include "base/lock.h"

enum {
	IPV4_LEN = 20,
	IPV6_LEN = 40,
	UDP_LEN = 8,
	UDP_NUMBER = 17,
	WORDS = VB_ROCE_MOST / 4, /* of the longest packet, and more */
	HABIT = 16,
	CHANGE = 3,	     /* packets */
	LEAST_PORT = 0xc000, /* of source ports (A17.3.1) */
	BEHIND_PORT = 6,     /* bytes of UDP's header behind it */
};

const struct vb_roce_verdict_row vb_roce_verdicts[VB_ROCE_VERDICT_COUNT] = {
#define ROW(name, count, words) {count, words},
    VB_ROCE_VERDICTS(ROW)
#undef ROW
};

/* The headers in front of a BTH. */
struct head {
	uint8_t ip[IPV6_LEN + UDP_LEN];
	uint8_t *udp;
	size_t ip_len;
};

static void put16(uint8_t *at, uint32_t v)
{
	at[0] = (uint8_t)(v >> 8);
	at[1] = (uint8_t)v;
}

static void begin(struct head *h, bool ipv4)
{
	memset(h->ip, 0, sizeof(h->ip));
	h->ip_len = ipv4 ? IPV4_LEN : IPV6_LEN;
	h->udp = h->ip + h->ip_len;
}

/* Lengths and identification, which the other fields of the headers do not depend on. */
static void put_varying(struct head *h, bool ipv4, size_t len, uint16_t id)
{
	size_t udp_len = UDP_LEN + len + VB_ICRC_LEN;

	if (ipv4) {
		put16(h->ip + 2, (uint32_t)(IPV4_LEN + udp_len));
		put16(h->ip + 4, id);
	} else {
		put16(h->ip + 4, (uint32_t)udp_len);
	}
	put16(h->udp + 4, (uint32_t)udp_len);
}

void vb_roce_path_init(struct vb_roce_path *p, const struct vb_roce_ends *e)
{
	struct head h;

	p->ipv4 = vb_roce_ends_are_ipv4(e);
	begin(&h, p->ipv4);
	if (p->ipv4) {
		uint32_t src = vb_gid_ipv4(e->src), dst = vb_gid_ipv4(e->dst);

		h.ip[0] = 0x45;
		h.ip[6] = 0x40; /* not to be cut into fragments */
		h.ip[9] = UDP_NUMBER;
		memcpy(h.ip + 12, &src, 4);
		memcpy(h.ip + 16, &dst, 4);
	} else {
		h.ip[0] = 0x60;
		h.ip[6] = UDP_NUMBER;
		memcpy(h.ip + 8, &e->src, 16);
		memcpy(h.ip + 24, &e->dst, 16);
	}
	put16(h.udp, e->port);
	put16(h.udp + 2, VB_ROCE_PORT);
	p->head = vb_icrc_head(h.ip, h.ip_len, h.udp);
}

/* What lengths and identification add to the CRC of headers in which they are 0.  A CRC is linear: that is
 * the CRC, which begins with 0, of headers in which all else is 0. */
static uint32_t varying(bool ipv4, size_t len, uint16_t id)
{
	struct head h;

	begin(&h, ipv4);
	put_varying(&h, ipv4, len, id);
	return ~vb_crc(~0u, h.ip, h.ip_len + UDP_LEN);
}

/* The two parts of it, kept from the first use on.  0: not computed yet. */

static uint32_t of_length(bool ipv4, size_t len)
{
	static _Atomic uint32_t known[2][WORDS];
	uint32_t v;

	if (vb_unlikely(len / 4 >= WORDS))
		return varying(ipv4, len, 0);
	v = atomic_load_explicit(&known[ipv4][len / 4], memory_order_relaxed);
	if (vb_unlikely(!v)) {
		v = varying(ipv4, len, 0);
		atomic_store_explicit(&known[ipv4][len / 4], v, memory_order_relaxed);
	}
	return v;
}

static uint32_t of_id(uint16_t id)
{
	static _Atomic uint32_t known[VB_ROCE_IDS];
	uint32_t v = id < VB_ROCE_IDS ? atomic_load_explicit(&known[id], memory_order_relaxed) : 0;

	if (vb_unlikely(!v)) {
		v = varying(true, 0, id) ^ varying(true, 0, 0);
		if (id < VB_ROCE_IDS)
			atomic_store_explicit(&known[id], v, memory_order_relaxed);
	}
	return v;
}

uint32_t vb_roce_icrc(const struct vb_roce_path *p, uint16_t id, const uint8_t *pkt, size_t len)
{
	uint32_t head = p->head ^ of_length(p->ipv4, len);

	vb_assert(len >= VB_BTH_LEN && !(len & 3));
	if (p->ipv4 && id)
		head ^= of_id(id);
	return vb_icrc_rest(head, pkt, len);
}

/* ---- receiving ---- */

bool vb_gid_is_among(const struct vb_gid *all, uint32_t n, struct vb_gid gid)
{
	for (uint32_t i = 0; i < n; i++)
		if (all[i].low == gid.low && all[i].high == gid.high)
			return true;
	return false;
}

/* Of IPv4, its first byte; else 0. */
static uint8_t ipv4_net(struct vb_gid gid)
{
	uint8_t b[16];

	memcpy(b, &gid, sizeof(b));
	return vb_gid_is_ipv4(gid) ? b[12] : 0;
}

static bool is_group(struct vb_gid gid)
{
	uint8_t first;

	memcpy(&first, &gid, 1);
	return first == 0xff || (vb_gid_is_ipv4(gid) && ipv4_net(gid) >> 4 == 0xe);
}

/* An address that a packet of another host has; of this host's own ones only if it came by lo. */
static bool may_send(const struct vb_roce_here *here, const struct vb_roce_arrival *a)
{
	struct vb_gid src = a->ends.src;

	if (is_group(src))
		return false;
	if (vb_gid_is_ipv4(src)) {
		uint8_t net = ipv4_net(src);

		/* "this network", and those that are reserved, with broadcast (RFC 1122, 3.2.1.3) */
		if (!net || net >= 224 || (net == 127 && !a->by_lo))
			return false;
	} else if (!src.high && (!src.low || (src.low == htobe64(1) && !a->by_lo))) {
		return false;
	}
	return a->by_lo || !vb_gid_is_among(here->addrs, here->naddrs, src);
}

static bool is_ours(const struct vb_roce_here *here, uint32_t qpn)
{
	if (qpn == VB_QPN_GROUP)
		return here->groups;
	if (qpn <= 1)
		return qpn && here->gsi;
	return (qpn & here->qpn_mask) == here->qpn;
}

static bool is_here(const struct vb_roce_here *here, struct vb_gid dst, bool group)
{
	return group ? is_group(dst) : vb_gid_is_among(here->addrs, here->naddrs, dst);
}

/* All before the addresses. */
static enum vb_roce_verdict check_form(const struct vb_roce_here *here, const uint8_t *pkt, size_t len)
{
	const struct vb_opcode_row *op;
	size_t payload, pad;

	if (len < VB_ROCE_LEAST || len > VB_ROCE_MOST || len & 3)
		return VB_ROCE_LENGTH;
	op = &vb_opcodes[pkt[0]];
	if (!op->name)
		return VB_ROCE_OPCODE;
	if (len - VB_ICRC_LEN < op->hdr_len)
		return VB_ROCE_HEADERS;
	payload = len - VB_ICRC_LEN - op->hdr_len;
	pad = VB_PKT_PAD(vb_pkt_get_word(pkt, 0));
	if (pad > payload)
		return VB_ROCE_PADDING;
	if (op->bits & VB_OP_PAYLOAD ? payload == pad && !(op->bits & VB_OP_LAST) : payload)
		return VB_ROCE_PAYLOAD;
	if (vb_pkt_get_word(pkt, 0) & VB_PKT_VERSION)
		return VB_ROCE_VERSION;
	if (!is_ours(here, vb_pkt_get_qpn(pkt)))
		return VB_ROCE_QPN;
	if ((vb_pkt_get_word(pkt, 0) & VB_PKEY_BITS) != VB_PKEY_BITS)
		return VB_ROCE_PKEY;
	return VB_ROCE_RIGHT;
}

static uint32_t brought(const struct vb_roce_arrival *a)
{
	uint32_t v;

	memcpy(&v, a->pkt + a->len - VB_ICRC_LEN, sizeof(v));
	return le32toh(v);
}

static bool icrc_is_right(const struct vb_roce_path *p, const struct vb_roce_arrival *a, uint16_t *id)
{
	size_t len = a->len - VB_ICRC_LEN;
	uint32_t came = brought(a), sum = vb_roce_icrc(p, a->likely, a->pkt, len);
	bool right;

	*id = 0;
	right = came == sum || (p->ipv4 && vb_icrc_recover(came, sum, len, id));
	*id ^= p->ipv4 ? a->likely : 0; /* what was recovered is the difference */
	return right;
}

enum vb_roce_verdict vb_roce_check(const struct vb_roce_here *here, struct vb_roce_last *last,
				   const struct vb_roce_arrival *a, uint16_t *id)
{
	enum vb_roce_verdict v = check_form(here, a->pkt, a->len);

	if (vb_unlikely(v != VB_ROCE_RIGHT))
		return v;
	if (!is_here(here, a->ends.dst, vb_pkt_get_qpn(a->pkt) == VB_QPN_GROUP))
		return VB_ROCE_DESTINATION;
	if (!may_send(here, a))
		return VB_ROCE_SOURCE;
	if (!last->known || !vb_roce_ends_equal(&last->ends, &a->ends)) {
		last->ends = a->ends;
		vb_roce_path_init(&last->path, &a->ends);
		last->known = true;
	}
	return icrc_is_right(&last->path, a, id) ? VB_ROCE_RIGHT : VB_ROCE_ICRC;
}

enum vb_roce_verdict vb_roce_habit_check(struct vb_roce_habit *h, uint16_t id)
{
	if (id < VB_ROCE_IDS) {
		if (h->small < HABIT)
			h->small++;
		if (h->large < CHANGE)
			h->large = 0;
		return VB_ROCE_RIGHT;
	}
	if (h->small < HABIT)
		h->large = CHANGE; /* it never had the habit */
	else if (h->large < CHANGE)
		h->large++;
	return h->large < CHANGE ? VB_ROCE_ID : VB_ROCE_RIGHT;
}

bool vb_roce_is_translated(const struct vb_roce_arrival *a, const struct vb_roce_ends *sent)
{
	struct vb_roce_ends e = *sent;
	size_t len = a->len - VB_ICRC_LEN;
	struct vb_roce_path p;
	uint16_t id;

	if (a->len < VB_ROCE_LEAST || a->len > VB_ROCE_MOST || a->len & 3)
		return false;
	e.port = a->ends.port;
	if (vb_roce_ends_equal(&e, &a->ends))
		return false;
	vb_roce_path_init(&p, &e);
	if (icrc_is_right(&p, a, &id))
		return true;
	/* With the port in doubt as well, only a small identification says something. */
	e.port = 0;
	vb_roce_path_init(&p, &e);
	for (id = 0; id < (p.ipv4 ? VB_ROCE_IDS : 1); id++) {
		uint32_t zero = vb_roce_icrc(&p, id, a->pkt, len), moved = brought(a) ^ zero;

		moved = vb_crc_times(moved, vb_crc_back(BEHIND_PORT + len + 2));
		if (moved <= UINT16_MAX && (uint16_t)(moved << 8 | moved >> 8) >= LEAST_PORT)
			return true;
	}
	return false;
}
