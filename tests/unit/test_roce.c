/* Packets between two ends: their ICRCs against those of other stacks and of iba/icrc.c, and every way in
 * which what a socket receives can be wrong. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <cmocka.h>

#include "base/crc.h"
#include "iba/frame.h"
#include "iba/icrc.h"
#include "iba/roce.h"

#define GID4(a, b, c, d)                      \
	{                                     \
		[10] = 0xff, 0xff, a, b, c, d \
	}

static struct vb_gid gid4(uint8_t a, uint8_t b, uint8_t c, uint8_t d)
{
	const uint8_t g[16] = GID4(a, b, c, d);

	return vb_gid_of(g);
}

static struct vb_gid gid6(uint8_t first, uint8_t last)
{
	const uint8_t g[16] = {first, [15] = last};

	return vb_gid_of(g);
}

/* Packets that others sent, from the BTH to the ICRC: a CNP of a ConnectX-4, and a SEND of soft-RoCE to
 * itself, whose payload is 18 bytes and padding. */
static const uint8_t cnp[32] = {0x81, 0x00, 0xff,	 0xff, 0x40, 0x00,
				0x01, 0x18, [28] = 0x82, 0xfd, 0x00, 0x2a};
static const uint8_t uc_send[36] = {0x24, 0x60, 0xff, 0xff, 0x00, 0x00, 0x00, 0xd3, 0x00, 0xcf, 0x17, 0x10,
				    'F',  '0',	0x81, 0x8b, 0xe2, 0x89, '5',  0xd9, 0x0e, 0x9a, 0x95, 'P',
				    'T',  0x01, 0xbe, 0x88, '^',  'P',	0x00, 0x00, 0x78, 0xf3, 0x53, 0xf3};
enum { CNP_ID = 0x718c, UC_ID = 0x0478 };

static struct vb_roce_ends cnp_ends(void)
{
	return (struct vb_roce_ends){gid4(10, 0, 17, 1), gid4(10, 0, 18, 1), 0};
}

static struct vb_roce_ends uc_ends(void)
{
	return (struct vb_roce_ends){gid4(192, 168, 0, 7), gid4(192, 168, 0, 7), 0xc000};
}

static uint32_t icrc_in(const uint8_t *pkt, size_t len)
{
	uint32_t v;

	memcpy(&v, pkt + len - 4, 4);
	return le32toh(v);
}

static void packets_of_others(void **state)
{
	struct vb_roce_ends e = cnp_ends();
	struct vb_roce_path p;

	(void)state;
	vb_roce_path_init(&p, &e);
	assert_int_equal(vb_roce_icrc(&p, CNP_ID, cnp, 28), icrc_in(cnp, sizeof cnp));
	e = uc_ends();
	vb_roce_path_init(&p, &e);
	assert_int_equal(vb_roce_icrc(&p, UC_ID, uc_send, 32), icrc_in(uc_send, sizeof uc_send));
}

/* Against the frames of iba/frame.c, which computes over real headers: all lengths twice, since they are kept
 * from the first time on. */
static void all_lengths(void **state)
{
	static uint8_t payload[4096], frame[VB_FRAME_MAX];
	const struct vb_frame_ends both[] = {{.sgid = gid4(10, 1, 2, 3), .dgid = gid4(10, 4, 5, 6)},
					     {.sgid = gid6(0xfd, 3), .dgid = gid6(0xfd, 7)},
					     {.sgid = gid4(10, 1, 2, 3), .dgid = gid6(0xfd, 7)}};

	(void)state;
	for (uint32_t i = 0; i < sizeof payload; i++)
		payload[i] = (uint8_t)(i * 2654435761u >> 24);
	for (unsigned i = 0; i < 3 * 2 * 4097; i++) {
		const struct vb_frame_ends *e = &both[i % 3];
		struct vb_pkt p = {.opcode = VB_FAMILY_RC | VB_SEND_ONLY_IMM,
				   .pkey = 0xffff,
				   .qpn = 0x12345,
				   .psn = i,
				   .payload = payload,
				   .payload_len = i / 3 % 4097};
		struct vb_roce_ends ends = {e->sgid, e->dgid, vb_frame_port(0, 0, 0x12345)};
		struct vb_roce_path path;
		size_t len, head = i % 3 ? 14 + 40 + 8 : 14 + 20 + 8;

		vb_frame_cut(frame, e, &p, sizeof frame, &len);
		vb_roce_path_init(&path, &ends);
		assert_int_equal(path.ipv4, i % 3 == 0);
		if (vb_roce_icrc(&path, 0, frame + head, len - head - 4) != icrc_in(frame, len))
			fail_msg("%u bytes of payload, kind %u: another ICRC", p.payload_len, i % 3);
	}
}

static void all_identifications(void **state)
{
	struct vb_roce_ends e = cnp_ends();
	struct vb_roce_path p;
	uint8_t ip[20] = {0x45, [3] = 60, [6] = 0x40, [9] = 17, [12] = 10, 0, 17, 1, 10, 0, 18, 1};
	const uint8_t udp[8] = {[2] = 0x12, 0xb7, 0, 40};

	(void)state;
	vb_roce_path_init(&p, &e);
	for (unsigned twice = 0; twice < 2; twice++)
		for (uint32_t id = 0; id <= UINT16_MAX; id++) {
			ip[4] = (uint8_t)(id >> 8);
			ip[5] = (uint8_t)id;
			assert_int_equal(vb_roce_icrc(&p, (uint16_t)id, cnp, 28),
					 vb_icrc_make(ip, 20, udp, cnp, 28, NULL, 0));
		}
	/* IPv6 has none. */
	e.src = gid6(0xfd, 1);
	vb_roce_path_init(&p, &e);
	assert_int_equal(vb_roce_icrc(&p, 77, cnp, 28), vb_roce_icrc(&p, 0, cnp, 28));
}

static void what_changes_on_the_way(void **state)
{
	struct vb_roce_ends e = cnp_ends();
	struct vb_roce_path p;
	uint8_t marked[28];

	(void)state;
	vb_roce_path_init(&p, &e);
	memcpy(marked, cnp, 28);
	marked[4] = 0x80; /* a switch's mark */
	assert_int_equal(vb_roce_icrc(&p, CNP_ID, marked, 28), icrc_in(cnp, sizeof cnp));
}

/* ---- what comes ---- */

enum { SLOT = 0x2a, QPN = 0x12a345 };

static struct vb_gid own[2], joined;
static struct vb_roce_here here;
static struct vb_roce_last last;

static int begin(void **state)
{
	(void)state;
	own[0] = gid4(10, 0, 0, 1);
	own[1] = gid6(0xfd, 1);
	joined = gid4(224, 9, 9, 9);
	here = (struct vb_roce_here){.qpn_mask = 0x3f000, .qpn = SLOT << 12, .naddrs = 2, .addrs = own};
	memset(&last, 0, sizeof last);
	return 0;
}

struct packet {
	struct vb_pkt p;
	struct vb_roce_ends ends;
	uint16_t id;
	bool by_lo;
	uint8_t at[VB_ROCE_MOST + 64];
	size_t len; /* with the ICRC */
};

static void encode(struct packet *k)
{
	size_t n;

	k->p.pad = -k->p.payload_len & 3;
	n = vb_pkt_encode(k->at, &k->p);
	memset(k->at + n, 0x5a, k->p.payload_len);
	memset(k->at + n + k->p.payload_len, 0, k->p.pad);
	k->len = n + k->p.payload_len + k->p.pad + 4;
}

static void seal(struct packet *k)
{
	struct vb_roce_path path;

	vb_roce_path_init(&path, &k->ends);
	vb_roce_seal(&path, k->id, k->at, k->len - 4);
}

/* A SEND that nothing is wrong with. */
static void fill(struct packet *k)
{
	memset(k, 0, sizeof *k);
	k->p = (struct vb_pkt){
	    .opcode = VB_FAMILY_RC | VB_SEND_ONLY, .pkey = 0xffff, .qpn = QPN, .psn = 5, .payload_len = 5};
	k->ends = (struct vb_roce_ends){gid4(10, 0, 0, 2), gid4(10, 0, 0, 1), 0xc123};
	encode(k);
	seal(k);
}

/* It is the same whichever identification was expected. */
static enum vb_roce_verdict look(const struct packet *k)
{
	const uint16_t likely[] = {0, k->id, 7, UINT16_MAX};
	struct vb_roce_arrival a = {.ends = k->ends, .by_lo = k->by_lo, .pkt = k->at, .len = k->len};
	enum vb_roce_verdict v[4];

	for (unsigned i = 0; i < 4; i++) {
		uint16_t id = 0xeeee;

		a.likely = likely[i];
		v[i] = vb_roce_check(&here, &last, &a, &id);
		if (v[i] == VB_ROCE_RIGHT)
			assert_int_equal(id, k->id);
		assert_int_equal(v[i], v[0]);
	}
	return v[0];
}

static void is(const struct packet *k, enum vb_roce_verdict want, const char *what)
{
	enum vb_roce_verdict v = look(k);

	if (v != want)
		fail_msg("%s: \"%s\" instead of \"%s\"", what, vb_roce_verdicts[v].count,
			 vb_roce_verdicts[want].count);
}

static void right_ones(void **state)
{
	struct packet k;

	(void)state;
	fill(&k);
	is(&k, VB_ROCE_RIGHT, "a SEND");
	for (uint32_t id = 1; id <= UINT16_MAX; id += id < 300 ? 1 : 997) {
		k.id = (uint16_t)id;
		seal(&k);
		is(&k, VB_ROCE_RIGHT, "any identification");
	}
	fill(&k);
	k.ends = (struct vb_roce_ends){gid6(0xfd, 2), gid6(0xfd, 1), 0xffff};
	seal(&k);
	is(&k, VB_ROCE_RIGHT, "IPv6");
	fill(&k);
	k.at[2] = 0x7f; /* a limited member's P_Key */
	seal(&k);
	is(&k, VB_ROCE_RIGHT, "a limited member");
	k.at[1] &= 0xbf; /* soft-RoCE sends MigReq 0 */
	k.at[4] = 0xc0;
	seal(&k);
	is(&k, VB_ROCE_RIGHT, "no MigReq, marked");
	fill(&k);
	k.p.payload_len = 0;
	encode(&k);
	seal(&k);
	is(&k, VB_ROCE_RIGHT, "an empty SEND");
}

static void services(void **state)
{
	static const uint8_t families[] = {VB_FAMILY_RC, VB_FAMILY_UC, VB_FAMILY_UD, VB_FAMILY_XRC};
	struct packet k;

	(void)state;
	for (unsigned i = 0; i < sizeof families; i++) {
		fill(&k);
		k.p.opcode = families[i] | VB_SEND_ONLY;
		encode(&k);
		seal(&k);
		is(&k, VB_ROCE_RIGHT, "a service");
	}
	fill(&k);
	k.p.opcode = VB_FAMILY_CNP | VB_NOTIFY;
	k.p.payload_len = 0;
	encode(&k);
	seal(&k);
	is(&k, VB_ROCE_RIGHT, "a CNP");
}

/* Each opcode, with its headers alone, one word less, and payloads of no and of some length. */
static void all_opcodes(void **state)
{
	struct packet k;

	(void)state;
	for (unsigned op = 0; op < 256; op++) {
		const struct vb_opcode_row *row = &vb_opcodes[op];
		bool payload = row->bits & VB_OP_PAYLOAD, empty = !payload || row->bits & VB_OP_LAST;
		char what[40];

		fill(&k);
		snprintf(what, sizeof what, "opcode 0x%02x", op);
		k.p.opcode = (uint8_t)op;
		k.at[0] = (uint8_t)op;
		if (!row->name) {
			seal(&k);
			is(&k, VB_ROCE_OPCODE, what);
			continue;
		}
		k.p.payload_len = 0;
		encode(&k);
		seal(&k);
		is(&k, empty ? VB_ROCE_RIGHT : VB_ROCE_PAYLOAD, what);
		k.p.payload_len = 7;
		encode(&k);
		seal(&k);
		is(&k, payload ? VB_ROCE_RIGHT : VB_ROCE_PAYLOAD, what);
		k.p.payload_len = 8;
		encode(&k);
		seal(&k);
		is(&k, payload ? VB_ROCE_RIGHT : VB_ROCE_PAYLOAD, what);
		k.p.payload_len = 0;
		encode(&k);
		if (row->hdr_len == VB_BTH_LEN) /* one word less than the least */
			continue;
		k.len -= 4;
		seal(&k);
		is(&k, VB_ROCE_HEADERS, what);
	}
}

/* Of every length the verdict that it has; no byte behind it is read, as the address sanitizer tells. */
static void lengths_of_all_kinds(void **state)
{
	struct packet k;

	(void)state;
	for (size_t n = 0; n < VB_ROCE_MOST + 60; n++) {
		enum vb_roce_verdict want =
		    n < 16 || n > VB_ROCE_MOST || n % 4 ? VB_ROCE_LENGTH : VB_ROCE_RIGHT;
		struct vb_roce_arrival a = {.len = n};
		uint8_t *exact = malloc(n ? n : 1);
		uint16_t id;

		assert_non_null(exact);
		fill(&k);
		k.at[1] &= 0xcf;
		k.len = n < 4 ? 4 : n & ~(size_t)3;
		if (k.len >= 16)
			seal(&k);
		memcpy(exact, k.at, n);
		a.ends = k.ends;
		a.pkt = exact;
		if (vb_roce_check(&here, &last, &a, &id) != want)
			fail_msg("%zu bytes", n);
		free(exact);
	}
}

static void padding(void **state)
{
	struct packet k;

	(void)state;
	fill(&k);
	k.p.payload_len = 0;
	encode(&k);
	for (unsigned pad = 1; pad < 4; pad++) {
		k.at[1] = (uint8_t)((k.at[1] & 0xcfu) | pad << 4);
		seal(&k);
		is(&k, VB_ROCE_PADDING, "padding of nothing");
	}
	/* A MIDDLE that is all padding. */
	fill(&k);
	k.p.opcode = VB_FAMILY_RC | VB_SEND_MIDDLE;
	k.p.payload_len = 4;
	encode(&k);
	k.at[1] |= 0x30;
	seal(&k);
	is(&k, VB_ROCE_RIGHT, "a byte and padding");
	fill(&k);
	k.p.opcode = VB_FAMILY_RC | VB_ACK;
	k.p.syndrome = VB_AETH_NAK_REMOTE_ACCESS;
	k.p.payload_len = 24;
	encode(&k);
	seal(&k);
	is(&k, VB_ROCE_PAYLOAD, "a NAK with a reason");
}

static void fields_of_the_bth(void **state)
{
	struct packet k;

	(void)state;
	for (unsigned v = 1; v < 16; v++) {
		fill(&k);
		k.at[1] |= (uint8_t)v;
		seal(&k);
		is(&k, VB_ROCE_VERSION, "a version");
	}
	for (unsigned bit = 0; bit < 15; bit++) {
		fill(&k);
		k.at[3 - bit / 8] ^= (uint8_t)(1 << bit % 8);
		seal(&k);
		is(&k, VB_ROCE_PKEY, "a P_Key");
	}
	for (unsigned bit = 12; bit < 18; bit++) { /* of the slot */
		fill(&k);
		k.at[7 - bit / 8] ^= (uint8_t)(1 << bit % 8);
		seal(&k);
		is(&k, VB_ROCE_QPN, "another slot");
	}
	for (unsigned bit = 0; bit < 24; bit++) {
		if (bit >= 12 && bit < 18)
			continue;
		fill(&k);
		k.at[7 - bit / 8] ^= (uint8_t)(1 << bit % 8);
		seal(&k);
		is(&k, VB_ROCE_RIGHT, "another queue pair of the slot");
	}
}

static void to(struct packet *k, uint32_t qpn)
{
	fill(k);
	k->p.qpn = qpn;
	encode(k);
	seal(k);
}

static void special_queue_pairs(void **state)
{
	struct packet k;

	(void)state;
	here.qpn = 0; /* even of slot 0 */
	to(&k, 0);
	is(&k, VB_ROCE_QPN, "QP0");
	to(&k, 1);
	is(&k, VB_ROCE_QPN, "QP1, closed");
	here.gsi = true;
	is(&k, VB_ROCE_RIGHT, "QP1");
	to(&k, 0);
	is(&k, VB_ROCE_QPN, "QP0");
	here.qpn = SLOT << 12;
	to(&k, VB_QPN_GROUP);
	k.ends.dst = joined;
	seal(&k);
	is(&k, VB_ROCE_QPN, "a group, none is joined");
	here.groups = true;
	is(&k, VB_ROCE_RIGHT, "a group of IPv4");
	k.ends.src = gid6(0xfd, 2);
	k.ends.dst = gid6(0xff, 9);
	seal(&k);
	is(&k, VB_ROCE_RIGHT, "a group of IPv6");
	k.ends.src = gid4(10, 0, 0, 2);
	k.ends.dst = own[0];
	seal(&k);
	is(&k, VB_ROCE_DESTINATION, "all members, at an address");
	to(&k, QPN);
	k.ends.dst = joined;
	seal(&k);
	is(&k, VB_ROCE_DESTINATION, "a queue pair, at a group");
}

static void destinations(void **state)
{
	const struct vb_gid wrong[] = {gid4(10, 0, 0, 3),   gid4(255, 255, 255, 255),
				       gid4(10, 0, 0, 255), gid4(224, 0, 0, 1),
				       gid6(0xfd, 9),	    gid6(0xff, 1)};
	struct packet k;

	(void)state;
	for (unsigned i = 0; i < sizeof wrong / sizeof *wrong; i++) {
		fill(&k);
		k.ends.dst = wrong[i];
		seal(&k);
		is(&k, VB_ROCE_DESTINATION, "a destination");
	}
}

static void sources(void **state)
{
	const struct vb_gid never[] = {gid4(224, 1, 2, 3), gid4(255, 255, 255, 255), gid4(0, 0, 0, 0),
				       gid4(0, 1, 2, 3),   gid4(240, 0, 0, 1),	     gid6(0xff, 1),
				       gid6(0, 0)};
	const struct vb_gid local[] = {gid4(127, 0, 0, 1), gid4(127, 3, 2, 1), gid6(0, 1), own[0], own[1]};
	const struct vb_gid any[] = {gid4(10, 0, 0, 2), gid4(223, 255, 255, 1), gid4(1, 0, 0, 1), gid6(0, 2),
				     gid6(0xfe, 1)};
	struct packet k;

	(void)state;
	for (unsigned i = 0; i < 2 * sizeof never / sizeof *never; i++) {
		fill(&k);
		k.ends.src = never[i / 2];
		k.by_lo = i % 2;
		seal(&k);
		is(&k, VB_ROCE_SOURCE, "a source that never is");
	}
	for (unsigned i = 0; i < 2 * sizeof local / sizeof *local; i++) {
		fill(&k);
		k.ends.src = local[i / 2];
		k.by_lo = i % 2;
		seal(&k);
		is(&k, k.by_lo ? VB_ROCE_RIGHT : VB_ROCE_SOURCE, "a source of this host");
	}
	for (unsigned i = 0; i < sizeof any / sizeof *any; i++) {
		fill(&k);
		k.ends.src = any[i];
		seal(&k);
		is(&k, VB_ROCE_RIGHT, "a source");
	}
}

/* Each bit of a packet, and each of what the headers before it say. */
static void wrong_icrcs(void **state)
{
	struct packet k;

	(void)state;
	for (unsigned v6 = 0; v6 < 2; v6++) {
		fill(&k);
		k.p.payload_len = 0;
		k.p.opcode = VB_FAMILY_RC | VB_ACK;
		encode(&k);
		if (v6)
			k.ends = (struct vb_roce_ends){gid6(0xfd, 2), gid6(0xfd, 1), 0xc123};
		seal(&k);
		for (unsigned bit = 8 * 8; bit < 8 * k.len;
		     bit++) { /* those before have verdicts of their own */
			struct packet bad = k;

			bad.at[bit / 8] ^= (uint8_t)(1 << bit % 8);
			is(&bad, VB_ROCE_ICRC, "a bit");
		}
		for (unsigned bit = 0; bit < 16; bit++) {
			struct packet bad = k;

			bad.ends.port ^= (uint16_t)(1 << bit);
			is(&bad, VB_ROCE_ICRC, "a port");
			is(&k, VB_ROCE_RIGHT, "the packet itself");
		}
		for (unsigned other = 0; other < 200; other++) {
			struct packet bad = k;

			bad.ends.src = v6 ? gid6(0xfd, (uint8_t)(3 + other)) : gid4(10, 0, 1, (uint8_t)other);
			is(&bad, VB_ROCE_ICRC, "another source");
		}
		own[0] = gid4(10, 0, 0, 9);
		own[1] = gid6(0xfd, 9);
		k.ends.dst = own[v6];
		is(&k, VB_ROCE_ICRC, "another destination");
		begin(state);
	}
	/* IPv6 has no identification that a difference could be. */
	fill(&k);
	k.ends = (struct vb_roce_ends){gid6(0xfd, 2), gid6(0xfd, 1), 0xc123};
	seal(&k);
	for (uint32_t i = 1; i < 1000; i++) {
		static const uint8_t zeros[64];
		struct packet bad = k;
		uint32_t sum = icrc_in(k.at, k.len) ^ ~vb_crc(~i, zeros, 2 + 14 + 8 + k.len - 4);

		sum = htole32(sum);
		memcpy(bad.at + k.len - 4, &sum, 4);
		is(&bad, VB_ROCE_ICRC, "IPv6");
	}
}

static void packets_of_others_come(void **state)
{
	struct vb_roce_arrival a = {.ends = cnp_ends(), .pkt = cnp, .len = sizeof cnp};
	uint16_t id;

	(void)state;
	own[0] = a.ends.dst;
	here.qpn_mask = 0;
	here.qpn = 0;
	assert_int_equal(vb_roce_check(&here, &last, &a, &id), VB_ROCE_RIGHT);
	assert_int_equal(id, CNP_ID);
	a = (struct vb_roce_arrival){.ends = uc_ends(), .pkt = uc_send, .len = sizeof uc_send};
	own[0] = a.ends.dst;
	assert_int_equal(vb_roce_check(&here, &last, &a, &id), VB_ROCE_SOURCE);
	a.by_lo = true;
	assert_int_equal(vb_roce_check(&here, &last, &a, &id), VB_ROCE_RIGHT);
	assert_int_equal(id, UC_ID);
}

/* ---- habits ---- */

static unsigned lost(struct vb_roce_habit *h, uint16_t id, unsigned n)
{
	unsigned l = 0;

	while (n--)
		l += vb_roce_habit_check(h, id) == VB_ROCE_ID;
	return l;
}

static void habits(void **state)
{
	struct vb_roce_habit h = {0};

	(void)state;
	assert_int_equal(lost(&h, 0, 15), 0);
	assert_int_equal(lost(&h, VB_ROCE_IDS - 1, 1), 0);
	for (unsigned i = 0; i < 1000; i++) { /* packets with errors, now and then */
		assert_int_equal(lost(&h, VB_ROCE_IDS, 1), 1);
		assert_int_equal(lost(&h, 0xffff, 1), 1);
		assert_int_equal(lost(&h, 5, 1), 0);
	}
	assert_int_equal(lost(&h, 500, 100), 2); /* another stack has come */
	assert_int_equal(lost(&h, 3, 100), 0);
	assert_int_equal(lost(&h, 500, 1), 0);

	h = (struct vb_roce_habit){0};
	assert_int_equal(lost(&h, 1, 15), 0);
	assert_int_equal(lost(&h, 500, 1), 0); /* it never had the habit */
	assert_int_equal(lost(&h, 1, 100), 0);
	assert_int_equal(lost(&h, 500, 1), 0);

	/* A counter of a kernel that passes 0 */
	h = (struct vb_roce_habit){0};
	for (uint32_t id = 0; id < 1000; id++)
		vb_roce_habit_check(&h, (uint16_t)id);
	assert_int_equal(lost(&h, 1000, 100), 0);
}

/* ---- translated addresses ---- */

static bool translated(const struct packet *k, const struct vb_roce_ends *sent)
{
	struct vb_roce_arrival a = {.ends = k->ends, .pkt = k->at, .len = k->len};

	return vb_roce_is_translated(&a, sent);
}

static void translations(void **state)
{
	struct vb_roce_ends sent = {gid4(192, 168, 0, 5), own[0], 0xd123};
	struct packet k;
	unsigned n = 0;

	(void)state;
	for (unsigned v6 = 0; v6 < 2; v6++) {
		if (v6)
			sent.src = gid6(0xfd, 0x55), sent.dst = own[1];
		fill(&k);
		k.id = 3;
		k.ends = sent;
		seal(&k);
		assert_false(translated(&k, &sent)); /* it is right */
		k.ends.src = v6 ? gid6(0xfd, 0x99) : gid4(10, 0, 0, 254);
		assert_true(translated(&k, &sent));
		k.ends.port = 40000;
		assert_true(translated(&k, &sent));
		k.ends.port = sent.port;
		k.at[14] ^= 1;
		assert_false(translated(&k, &sent));
		k.at[14] ^= 1;
		k.ends.dst = v6 ? own[0] : own[1]; /* a published port: the destination as well */
		assert_true(translated(&k, &sent));
		k.len = 12;
		assert_false(translated(&k, &sent));
		fill(&k); /* no RoCEv2 packet leaves from such a port */
		k.id = 3;
		k.ends = sent;
		k.ends.port = 40000;
		seal(&k);
		k.ends.src = v6 ? gid6(0xfd, 0x99) : gid4(10, 0, 0, 254);
		k.ends.port = 50000;
		assert_false(translated(&k, &sent));
	}
	/* Where the port is kept any identification will do. */
	fill(&k);
	sent = (struct vb_roce_ends){gid4(192, 168, 0, 5), own[0], 0xd123};
	k.id = 0x7abc;
	k.ends = sent;
	seal(&k);
	k.ends.src = gid4(10, 0, 0, 254);
	assert_true(translated(&k, &sent));
	for (unsigned i = 0; i < 100000; i++) { /* errors are no translation */
		uint32_t random = htole32(i * 2654435761u ^ i << 7);

		memcpy(k.at + k.len - 4, &random, 4);
		n += translated(&k, &sent);
	}
	if (n > 250)
		fail_msg("%u of 100000 random packets seem to be translated", n);
}

static void words(void **state)
{
	(void)state;
	for (unsigned i = 0; i < VB_ROCE_VERDICT_COUNT; i++) {
		assert_non_null(vb_roce_verdicts[i].count);
		assert_true(!strncmp(vb_roce_verdicts[i].words, "it", 2) || i == VB_ROCE_QPN);
		for (unsigned j = 0; j < i; j++)
			assert_string_not_equal(vb_roce_verdicts[i].count, vb_roce_verdicts[j].count);
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
	    cmocka_unit_test(packets_of_others),
	    cmocka_unit_test(all_lengths),
	    cmocka_unit_test(all_identifications),
	    cmocka_unit_test(what_changes_on_the_way),
	    cmocka_unit_test_setup(right_ones, begin),
	    cmocka_unit_test_setup(services, begin),
	    cmocka_unit_test_setup(all_opcodes, begin),
	    cmocka_unit_test_setup(lengths_of_all_kinds, begin),
	    cmocka_unit_test_setup(padding, begin),
	    cmocka_unit_test_setup(fields_of_the_bth, begin),
	    cmocka_unit_test_setup(special_queue_pairs, begin),
	    cmocka_unit_test_setup(destinations, begin),
	    cmocka_unit_test_setup(sources, begin),
	    cmocka_unit_test_setup(wrong_icrcs, begin),
	    cmocka_unit_test_setup(packets_of_others_come, begin),
	    cmocka_unit_test(habits),
	    cmocka_unit_test_setup(translations, begin),
	    cmocka_unit_test(words),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
