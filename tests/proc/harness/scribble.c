#include "scribble.h"

#include "host/segment.h"
#include "iba/limits.h"
#include "iba/opcode.h"
#include "iba/pkt.h"
#include "kit.h"
#include "mem/keys.h"

enum {
	RINGS = 3 * VB_LANES, /* those to the first peers; the process's own are before them */
};

uint8_t *scribble_segment(void)
{
	FILE *f = fopen("/proc/self/maps", "r");
	unsigned long from, to;
	char perms[8], line[512];

	CHECK(f);
	while (fgets(line, sizeof line, f)) {
		if (strstr(line, "/memfd:verbena") && sscanf(line, "%lx-%lx %7s", &from, &to, perms) == 3 &&
		    perms[1] == 'w' && to - from == VB_SEG_SIZE) {
			fclose(f);
			return (uint8_t *)from;
		}
	}
	CHECK(0, "no segment of our own");
	return NULL;
}

/* Somewhere in a table of which the first entries matter. */
static uint64_t in_table(uint64_t *rng, uint64_t at, uint32_t entries, uint32_t size)
{
	return at + (uint64_t)kit_below(rng, entries) * size + kit_below(rng, size);
}

static uint64_t some_ring(uint64_t *rng)
{
	return VB_SEG_RINGS + (uint64_t)(VB_LANES + kit_below(rng, RINGS)) * sizeof(struct vb_ring);
}

/* Where to strike: an offset. */
static uint64_t aim(uint64_t *rng, int part, uint32_t index)
{
	switch (part) {
	case 0:
		return in_table(rng, some_ring(rng), VB_RING_SLOTS, sizeof(struct vb_slot));
	case 1: /* lengths, flags and sequence numbers */
		return some_ring(rng) + kit_below(rng, VB_RING_SLOTS) * sizeof(struct vb_slot) +
		       kit_below(rng, 12);
	case 2:
		return some_ring(rng) + offsetof(struct vb_ring, data) + kit_below(rng, VB_RING_DATA);
	case 3:
		return in_table(rng, VB_SEG_CONSUMED + (uint64_t)VB_LANES * VB_LINE, RINGS, VB_LINE);
	case 4:
		return in_table(rng, VB_SEG_KEYS, 8, VB_LINE);
	case 5:
		return in_table(rng, VB_SEG_KEY_SLOTS, VB_MEM_SLOTS, VB_LINE);
	case 6:
		return VB_SEG_QPS + (uint64_t)index * VB_LINE + kit_below(rng, VB_LINE);
	case 7:
		return kit_below(rng, sizeof(struct vb_seg_head));
	case 8:
		return VB_SEG_KEY_MARKS + kit_below(rng, VB_LINE);
	case 9: /* groups, and how many there are */
		return kit_below(rng, 4)
			   ? in_table(rng, VB_SEG_GROUPS, VB_MAX_MCAST_GRP, sizeof(struct vb_shown_group))
			   : VB_SEG_GROUP_MARK + kit_below(rng, 4);
	default:
		return VB_SEG_AWAKE + kit_below(rng, 4);
	}
}

uint64_t scribble_rubbish(uint64_t *rng)
{
	static const uint64_t likely[] = {0,	      1,	  0xff,	  0xffffffff,  0x7fffffff,
					  UINT64_MAX, 1ull << 63, 0x1000, VB_RING_DATA};

	return kit_below(rng, 2) ? kit_random(rng) : likely[kit_below(rng, sizeof likely / sizeof *likely)];
}

void scribble_word(uint8_t *seg, uint64_t *rng, int part, uint32_t index)
{
	uint64_t at = aim(rng, part, index), v = scribble_rubbish(rng);
	size_t n = (size_t[]){1, 2, 4, 8}[kit_below(rng, 4)];

	memcpy(seg + (at & ~(n - 1)), &v, n);
}

static void put(uint8_t *at, uint32_t v, int bytes)
{
	while (bytes--)
		*at++ = (uint8_t)(v >> 8 * bytes);
}

/* Another type or operation, with headers that fit, to somebody who is there. */
static void make_other(struct vb_slot *s, uint64_t *rng, const struct scribble_names *n)
{
	static const uint8_t families[] = {VB_FAMILY_RC, VB_FAMILY_UC, VB_FAMILY_UD, VB_FAMILY_XRC};
	uint8_t *hdr = s->bytes, opcode = hdr[0];

	if (kit_below(rng, 2)) {
		uint8_t family = kit_below(rng, 2) ? VB_FAMILY(opcode) : families[kit_below(rng, 4)];

		opcode = (uint8_t)(family | (family == VB_FAMILY_UD ? VB_SEND_ONLY + kit_below(rng, 2)
								    : kit_below(rng, 0x1e)));
		hdr[0] = opcode;
		s->hdr_len = vb_opcodes[opcode].hdr_len;
	}
	if (kit_below(rng, 2))
		put(hdr + 5, n->qpn[kit_below(rng, n->nqpns)], 3);
	if (VB_FAMILY(opcode) == VB_FAMILY_XRC && kit_below(rng, 2))
		put(hdr + VB_BTH_LEN, n->srqn[kit_below(rng, n->nsrqns)], 4);
	if (VB_FAMILY(opcode) != VB_FAMILY_UD)
		return;
	put(hdr + VB_BTH_LEN, n->qkey, 4);
	if (kit_below(rng, 2)) {
		put(hdr + 5, VB_QPN_GROUP, 3);
		s->hdr_len = (uint8_t)(vb_opcodes[opcode].hdr_len + sizeof n->mgid);
		memcpy(hdr + vb_opcodes[opcode].hdr_len, n->mgid, sizeof n->mgid);
	}
}

/* The position behind the last packet of a ring; 0: there was none. */
static uint32_t end_of(struct vb_ring *r)
{
	uint32_t last = 0;

	for (uint32_t i = 0; i < VB_RING_SLOTS; i++) {
		uint32_t seq = atomic_load(&r->slots[i].seq);

		if (seq > last && seq < 1u << 24)
			last = seq;
	}
	return last;
}

/* Where the payload stands, and how much: seldom, since that may end the link at once. */
static void misplace(struct vb_slot *s, uint64_t *rng)
{
	switch (kit_below(rng, 64)) {
	case 0:
		s->flags ^= VB_SLOT_DATA;
		break;
	case 1:
		s->data_off = (uint32_t)scribble_rubbish(rng);
		break;
	case 2:
		s->data_len = (uint32_t)scribble_rubbish(rng);
		break;
	case 3:
	case 4:
		s->data_len = kit_below(rng, VB_RING_MTU + 1);
		break;
	case 5:
	case 6:
		s->inline_len = (uint8_t)kit_below(rng, VB_SLOT_INLINE + 4);
		break;
	}
}

void scribble_packet(uint8_t *seg, uint64_t *rng, const struct scribble_names *names)
{
	struct vb_ring *r = NULL;
	uint32_t last = 0;
	struct vb_slot *s;

	for (int tries = 0; !last && tries < RINGS; tries++) {
		r = (struct vb_ring *)(seg + some_ring(rng));
		last = end_of(r);
	}
	if (!last)
		return;
	s = &r->slots[last % VB_RING_SLOTS];
	memcpy((uint8_t *)s + 4, (uint8_t *)&r->slots[(last - 1) % VB_RING_SLOTS] + 4, sizeof *s - 4);
	if (names)
		make_other(s, rng, names);
	else if (kit_below(rng, 2))
		s->hdr[0] = VB_FAMILY_RC | VB_SEND_ONLY; /* of any length */
	if (kit_below(rng, 4)) { /* the next PSN, so that it is not just a duplicate */
		uint8_t *psn = s->hdr + 9;
		uint32_t v = ((uint32_t)psn[0] << 16 | (uint32_t)psn[1] << 8 | psn[2]) + 1;

		put(psn, v, 3);
	}
	misplace(s, rng);
	for (uint32_t n = kit_below(rng, 3); n; n--) /* of the headers */
		s->bytes[kit_below(rng, 32)] = (uint8_t)scribble_rubbish(rng);
	if (!kit_below(rng, 16))
		((uint8_t *)s)[4 + kit_below(rng, sizeof *s - 4)] = (uint8_t)scribble_rubbish(rng);
	atomic_store(&s->seq, last + 1);
}
