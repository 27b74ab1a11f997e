/* Formats as bytes: every opcode against byte strings written by hand after the specification's figures. */
#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>
#include <infiniband/verbs.h>

#include "iba/opcode.h"
#include "iba/pkt.h"
#include "iba/reach.h"
#include "iba/reason.h"

/* One packet of every opcode of every family: BTH with S, A, P_Key 0xffff, QPN 0x123456, PSN 0xabcdef;
 * extension fields from the constants below. */
#define VA	0x1122334455667788ull
#define RKEY	0x40001207u
#define DMALEN	0x00010203u
#define SYN	0x1f
#define MSN	0x0a0b0c
#define SWAP	0xa1a2a3a4a5a6a7a8ull
#define COMPARE 0xb1b2b3b4b5b6b7b8ull
#define ORIG	0xc1c2c3c4c5c6c7c8ull
#define INV	0x40003301u
#define QKEY	0x81020304u
#define SRC_QPN 0x00d1d2d3u
#define SRQN	0x00e1e2e3u

#define H_BTH  "\xc0\xff\xff\x00\x12\x34\x56\x80\xab\xcd\xef"
#define H_RETH "\x11\x22\x33\x44\x55\x66\x77\x88\x40\x00\x12\x07\x00\x01\x02\x03"
#define H_AETH "\x1f\x0a\x0b\x0c"
#define H_ATOMICETH                                                                                        \
	"\x11\x22\x33\x44\x55\x66\x77\x88\x40\x00\x12\x07\xa1\xa2\xa3\xa4\xa5\xa6\xa7\xa8\xb1\xb2\xb3\xb4" \
	"\xb5"                                                                                             \
	"\xb6\xb7\xb8"
#define H_ATOMICACK "\xc1\xc2\xc3\xc4\xc5\xc6\xc7\xc8"
#define H_IMM	    "\xde\xad\xbe\xef"
#define H_IETH	    "\x40\x00\x33\x01"
#define H_DETH	    "\x81\x02\x03\x04\x00\xd1\xd2\xd3"
#define H_XRCETH    "\x00\xe1\xe2\xe3"
#define H_FETH	    "\x00\x00\x00\x13" /* level 1, both types */

static const struct {
	uint8_t opcode;
	const char *bytes;
	size_t len;
	bool payload, more; /* may carry payload; must, because packets follow */
} samples[] = {
#define S(op, text, payload, more)                        \
	{                                                 \
		op, text, sizeof(text) - 1, payload, more \
	}
    S(0x00, "\x00" H_BTH, true, true),
    S(0x01, "\x01" H_BTH, true, true),
    S(0x02, "\x02" H_BTH, true, false),
    S(0x03, "\x03" H_BTH H_IMM, true, false),
    S(0x04, "\x04" H_BTH, true, false),
    S(0x05, "\x05" H_BTH H_IMM, true, false),
    S(0x06, "\x06" H_BTH H_RETH, true, true),
    S(0x07, "\x07" H_BTH, true, true),
    S(0x08, "\x08" H_BTH, true, false),
    S(0x09, "\x09" H_BTH H_IMM, true, false),
    S(0x0a, "\x0a" H_BTH H_RETH, true, false),
    S(0x0b, "\x0b" H_BTH H_RETH H_IMM, true, false),
    S(0x0c, "\x0c" H_BTH H_RETH, false, false),
    S(0x0d, "\x0d" H_BTH H_AETH, true, true),
    S(0x0e, "\x0e" H_BTH, true, true),
    S(0x0f, "\x0f" H_BTH H_AETH, true, false),
    S(0x10, "\x10" H_BTH H_AETH, true, false),
    S(0x11, "\x11" H_BTH H_AETH, false, false),
    S(0x12, "\x12" H_BTH H_AETH H_ATOMICACK, false, false),
    S(0x13, "\x13" H_BTH H_ATOMICETH, false, false),
    S(0x14, "\x14" H_BTH H_ATOMICETH, false, false),
    S(0x16, "\x16" H_BTH H_IETH, true, false),
    S(0x17, "\x17" H_BTH H_IETH, true, false),
    S(0x1c, "\x1c" H_BTH H_FETH H_RETH, false, false),
    S(0x1d, "\x1d" H_BTH H_RETH, true, false),
    S(0x20, "\x20" H_BTH, true, true),
    S(0x21, "\x21" H_BTH, true, true),
    S(0x22, "\x22" H_BTH, true, false),
    S(0x23, "\x23" H_BTH H_IMM, true, false),
    S(0x24, "\x24" H_BTH, true, false),
    S(0x25, "\x25" H_BTH H_IMM, true, false),
    S(0x26, "\x26" H_BTH H_RETH, true, true),
    S(0x27, "\x27" H_BTH, true, true),
    S(0x28, "\x28" H_BTH, true, false),
    S(0x29, "\x29" H_BTH H_IMM, true, false),
    S(0x2a, "\x2a" H_BTH H_RETH, true, false),
    S(0x2b, "\x2b" H_BTH H_RETH H_IMM, true, false),
    S(0x64, "\x64" H_BTH H_DETH, true, false),
    S(0x65, "\x65" H_BTH H_DETH H_IMM, true, false),
    S(0xa0, "\xa0" H_BTH H_XRCETH, true, true),
    S(0xa1, "\xa1" H_BTH H_XRCETH, true, true),
    S(0xa2, "\xa2" H_BTH H_XRCETH, true, false),
    S(0xa3, "\xa3" H_BTH H_XRCETH H_IMM, true, false),
    S(0xa4, "\xa4" H_BTH H_XRCETH, true, false),
    S(0xa5, "\xa5" H_BTH H_XRCETH H_IMM, true, false),
    S(0xa6, "\xa6" H_BTH H_XRCETH H_RETH, true, true),
    S(0xa7, "\xa7" H_BTH H_XRCETH, true, true),
    S(0xa8, "\xa8" H_BTH H_XRCETH, true, false),
    S(0xa9, "\xa9" H_BTH H_XRCETH H_IMM, true, false),
    S(0xaa, "\xaa" H_BTH H_XRCETH H_RETH, true, false),
    S(0xab, "\xab" H_BTH H_XRCETH H_RETH H_IMM, true, false),
    S(0xac, "\xac" H_BTH H_XRCETH H_RETH, false, false),
    S(0xad, "\xad" H_BTH H_AETH, true, true),
    S(0xae, "\xae" H_BTH, true, true),
    S(0xaf, "\xaf" H_BTH H_AETH, true, false),
    S(0xb0, "\xb0" H_BTH H_AETH, true, false),
    S(0xb1, "\xb1" H_BTH H_AETH, false, false),
    S(0xb2, "\xb2" H_BTH H_AETH H_ATOMICACK, false, false),
    S(0xb3, "\xb3" H_BTH H_XRCETH H_ATOMICETH, false, false),
    S(0xb4, "\xb4" H_BTH H_XRCETH H_ATOMICETH, false, false),
    S(0xb6, "\xb6" H_BTH H_XRCETH H_IETH, true, false),
    S(0xb7, "\xb7" H_BTH H_XRCETH H_IETH, true, false),
    S(0xbc, "\xbc" H_BTH H_XRCETH H_FETH H_RETH, false, false),
    S(0xbd, "\xbd" H_BTH H_XRCETH H_RETH, true, false),
    /* BECN is set, and 16 bytes are reserved */
    S(0x81,
      "\x81\xc0\xff\xff\x40\x12\x34\x56\x80\xab\xcd\xef\x00\x00\x00\x00\x00\x00\x00\x00"
      "\x00\x00\x00\x00\x00\x00\x00\x00",
      false, false),
};
enum { SAMPLES = sizeof samples / sizeof *samples };

static struct vb_pkt full(uint8_t opcode)
{
	struct vb_pkt p = {
	    .opcode = opcode,
	    .solicited = true,
	    .ack_req = true,
	    .pkey = 0xffff,
	    .qpn = 0x123456,
	    .psn = 0xabcdef,
	    .rkey = RKEY,
	    .va = VA,
	    .dma_len = DMALEN,
	    .syndrome = SYN,
	    .msn = MSN,
	    .swap_add = SWAP,
	    .compare = COMPARE,
	    .orig = ORIG,
	    .inv_rkey = INV,
	    .qkey = QKEY,
	    .src_qpn = SRC_QPN,
	    .srqn = SRQN,
	    .flush_type = VB_FLUSH_GLOBAL | VB_FLUSH_PERSISTENT,
	    .flush_level = VB_FLUSH_MR,
	};
	memcpy(&p.imm, H_IMM, 4);
	return p;
}

static void every_opcode_encodes_to_its_bytes(void **state)
{
	(void)state;
	for (size_t i = 0; i < SAMPLES; i++) {
		struct vb_pkt p = full(samples[i].opcode);
		uint8_t buf[VB_HDR_MAX + 8];
		size_t n;

		memset(buf, 0x5a, sizeof buf);
		n = vb_pkt_encode(buf, &p);
		assert_int_equal(n, samples[i].len);
		assert_true(n <= VB_HDR_MAX);
		assert_memory_equal(buf, samples[i].bytes, n);
		assert_int_equal(buf[n], 0x5a);
		assert_int_equal(vb_opcodes[samples[i].opcode].hdr_len, n);
	}
}

static void every_opcode_decodes_to_its_fields(void **state)
{
	(void)state;
	for (size_t i = 0; i < SAMPLES; i++) {
		struct vb_pkt want = full(samples[i].opcode), p;
		uint32_t bits = vb_opcodes[samples[i].opcode].bits;
		size_t payload = samples[i].payload ? 32 : 0;

		memset(&p, 0x77, sizeof p);
		assert_null(
		    vb_pkt_decode(&p, (const uint8_t *)samples[i].bytes, samples[i].len, payload, true));
		assert_ptr_equal(p.op, &vb_opcodes[samples[i].opcode]);
		assert_int_equal(p.opcode, samples[i].opcode);
		assert_true(p.solicited && p.ack_req);
		assert_int_equal(p.pad, 0);
		assert_int_equal(p.pkey, 0xffff);
		assert_int_equal(p.qpn, 0x123456);
		assert_int_equal(p.psn, 0xabcdef);
		assert_int_equal(p.payload_len, payload);
		/* what has no header is zero, not left over */
		assert_true(p.va == (bits & (VB_OP_RETH | VB_OP_ATOMICETH) ? VA : 0));
		assert_int_equal(p.rkey, bits & (VB_OP_RETH | VB_OP_ATOMICETH) ? RKEY : 0);
		assert_int_equal(p.dma_len, bits & VB_OP_RETH ? DMALEN : 0);
		assert_int_equal(p.syndrome, bits & VB_OP_AETH ? SYN : 0);
		assert_int_equal(p.msn, bits & VB_OP_AETH ? MSN : 0);
		assert_true(p.swap_add == (bits & VB_OP_ATOMICETH ? SWAP : 0));
		assert_true(p.compare == (bits & VB_OP_ATOMICETH ? COMPARE : 0));
		assert_true(p.orig == (bits & VB_OP_ATOMICACK ? ORIG : 0));
		assert_int_equal(p.imm, bits & VB_OP_IMM ? want.imm : 0);
		assert_int_equal(p.inv_rkey, bits & VB_OP_IETH ? INV : 0);
		assert_int_equal(p.qkey, bits & VB_OP_DETH ? QKEY : 0);
		assert_int_equal(p.src_qpn, bits & VB_OP_DETH ? SRC_QPN : 0);
		assert_int_equal(p.srqn, bits & VB_OP_XRCETH ? SRQN : 0);
		assert_int_equal(p.flush_type, bits & VB_OP_FETH ? want.flush_type : 0);
		assert_int_equal(p.flush_level, bits & VB_OP_FETH ? want.flush_level : 0);
	}
}

static void rule_28_bth_bits(void **state)
{
	struct vb_pkt p = {.opcode = VB_FAMILY_RC | VB_SEND_ONLY,
			   .pad = 3,
			   .pkey = 0x8001,
			   .qpn = 0xff000001u,
			   .psn = 0xff000002u};
	uint8_t buf[VB_HDR_MAX];

	(void)state;
	vb_pkt_encode(buf, &p);
	/* MigReq set; pad per packet; the reserved bytes stay zero whatever stands above QPN and PSN */
	assert_memory_equal(buf, "\x04\x70\x80\x01\x00\x00\x00\x01\x00\x00\x00\x02", 12);
	/* reserved bits on the wire are not looked at, MigReq neither; nor is the bit of full members */
	assert_null(vb_pkt_decode(&p, (const uint8_t *)"\x04\x30\x7f\xff\xff\x00\x00\x01\x7f\x00\x00\x02", 12,
				  8, true));
	assert_int_equal(p.qpn, 1);
	assert_int_equal(p.psn, 2);
	assert_false(p.ack_req || p.solicited);
	assert_int_equal(p.payload_len, 5);
}

/* The reserved bytes of DETH and XRCETH are written as zero, whatever stands above the numbers, and are not
 * looked at. */
static void reserved_bytes_of_deth_and_xrceth(void **state)
{
	struct vb_pkt p = {.opcode = VB_FAMILY_UD | VB_SEND_ONLY,
			   .pkey = VB_PKEY_DEFAULT,
			   .qkey = 0xffffffff,
			   .src_qpn = 0xff000002u};
	uint8_t buf[VB_HDR_MAX];

	(void)state;
	assert_int_equal(vb_pkt_encode(buf, &p), 20);
	assert_memory_equal(buf + 12, "\xff\xff\xff\xff\x00\x00\x00\x02", 8);
	buf[16] = 0xff;
	assert_null(vb_pkt_decode(&p, buf, 20, 4, true));
	assert_int_equal(p.qkey, 0xffffffff);
	assert_int_equal(p.src_qpn, 2);
	p = (struct vb_pkt){
	    .opcode = VB_FAMILY_XRC | VB_SEND_ONLY, .pkey = VB_PKEY_DEFAULT, .srqn = 0xff000003u};
	assert_int_equal(vb_pkt_encode(buf, &p), 16);
	assert_memory_equal(buf + 12, "\x00\x00\x00\x03", 4);
	buf[12] = 0xff;
	assert_null(vb_pkt_decode(&p, buf, 16, 4, true));
	assert_int_equal(p.srqn, 3);
}

/* An opcode's name is its family's and its operation's. */
static void names_of_opcodes(void **state)
{
	static const struct {
		uint8_t opcode;
		const char *name;
	} rows[] = {
	    {0x00, "RC SEND First"},
	    {0x12, "RC ATOMIC Acknowledge"},
	    {0x2b, "UC RDMA WRITE Only with Immediate"},
	    {0x64, "UD SEND Only"},
	    {0xb7, "XRC SEND Only with Invalidate"},
	    {0xac, "XRC RDMA READ Request"},
	};
	static const struct {
		enum ibv_qp_type type;
		enum vb_family family;
	} types[] = {
	    {IBV_QPT_RC, 0x00},	      {IBV_QPT_UC, 0x20},	{IBV_QPT_UD, 0x60},
	    {IBV_QPT_XRC_SEND, 0xa0}, {IBV_QPT_XRC_RECV, 0xa0},
	};

	(void)state;
	for (size_t i = 0; i < sizeof rows / sizeof *rows; i++)
		assert_string_equal(vb_opcodes[rows[i].opcode].name, rows[i].name);
	for (size_t i = 0; i < sizeof types / sizeof *types; i++)
		assert_int_equal(vb_opcode_family(types[i].type), types[i].family);
}

/* rule 28: runts and oversizes are told by the header's length, whatever the opcode claims */
static void rule_28_wrong_lengths_are_refused(void **state)
{
	struct vb_pkt p;
	uint8_t buf[VB_HDR_MAX + 16];

	(void)state;
	for (size_t i = 0; i < SAMPLES; i++) {
		const uint8_t *b = (const uint8_t *)samples[i].bytes;
		size_t n = samples[i].len;

		memset(buf, 0, sizeof buf);
		memcpy(buf, b, n);
		for (size_t len = 0; len < sizeof buf; len++)
			if (len != n)
				assert_non_null(
				    vb_pkt_decode(&p, buf, len, samples[i].payload ? 8 : 0, true));
		if (!samples[i].payload)
			assert_non_null(vb_pkt_decode(&p, buf, n, 1, true));
		if (samples[i].more)
			assert_non_null(vb_pkt_decode(&p, buf, n, 0, true));
		else
			assert_null(vb_pkt_decode(&p, buf, n, 0, true));
		/* padding: more than there is, and all there is */
		buf[1] |= 0x30;
		assert_non_null(vb_pkt_decode(&p, buf, n, 2, true));
		if (samples[i].payload && !samples[i].more) {
			assert_null(vb_pkt_decode(&p, buf, n, 3, true));
			assert_int_equal(p.payload_len, 0);
		} else {
			assert_non_null(vb_pkt_decode(&p, buf, n, 3, true));
		}
		buf[1] &= 0xcf;
		buf[1] |= 1; /* transport header version */
		assert_non_null(vb_pkt_decode(&p, buf, n, samples[i].payload ? 8 : 0, true));
	}
}

/* Of a datagram to a group, and of no other packet, the headers are followed by the group's GID. */
static void rule_28_a_groups_gid_follows(void **state)
{
	uint8_t buf[VB_HDR_MAX + VB_MGID_LEN] = {0};
	struct vb_pkt p, made = {.opcode = VB_FAMILY_UD | VB_SEND_ONLY_IMM,
				 .pkey = VB_PKEY_DEFAULT,
				 .qpn = VB_QPN_GROUP,
				 .qkey = 7};
	size_t n = vb_pkt_encode(buf, &made);

	(void)state;
	for (unsigned i = 0; i < VB_MGID_LEN; i++)
		buf[n + i] = (uint8_t)(0xf0 + i);
	for (size_t len = 0; len < sizeof buf; len++) {
		bool right = len == n || len == n + VB_MGID_LEN;

		assert_int_equal(!vb_pkt_decode(&p, buf, len, 8, true), right);
	}
	assert_null(vb_pkt_decode(&p, buf, n, 8, true));
	assert_null(p.mgid);
	assert_null(vb_pkt_decode(&p, buf, n + VB_MGID_LEN, 0, true));
	assert_ptr_equal(p.mgid, buf + n);
	assert_true(p.qkey == 7 && p.qpn == VB_QPN_GROUP && p.peer);
	assert_null(vb_pkt_decode(&p, buf, n + VB_MGID_LEN, 0, false));
	assert_ptr_equal(p.mgid, buf + n);
	assert_null(vb_pkt_decode(&p, buf, n, 8, false));
	assert_false(p.peer);
	buf[1] |= 0x30; /* the other checks are made all the same */
	assert_non_null(vb_pkt_decode(&p, buf, n + VB_MGID_LEN, 2, true));
	buf[1] &= 0xcf;
	buf[7] = 0xfe; /* to one queue pair */
	assert_non_null(vb_pkt_decode(&p, buf, n + VB_MGID_LEN, 8, true));
	made.opcode = VB_FAMILY_RC | VB_SEND_ONLY;
	n = vb_pkt_encode(buf, &made);
	assert_non_null(vb_pkt_decode(&p, buf, n + VB_MGID_LEN, 8, true));
}

/* The port has one P_Key, as a full member: what full and limited members of the same send is taken. */
static void rule_28_the_p_key_is_the_ports(void **state)
{
	static const struct {
		uint16_t pkey;
		bool right;
	} rows[] = {{0xffff, true}, {0x7fff, true}, {0x8001, false}, {0xfffe, false}, {0, false}};
	struct vb_pkt p;

	(void)state;
	for (size_t i = 0; i < SAMPLES; i++)
		for (size_t k = 0; k < sizeof rows / sizeof *rows; k++) {
			uint8_t buf[VB_HDR_MAX];

			memcpy(buf, samples[i].bytes, samples[i].len);
			buf[2] = (uint8_t)(rows[k].pkey >> 8);
			buf[3] = (uint8_t)rows[k].pkey;
			assert_int_equal(
			    !vb_pkt_decode(&p, buf, samples[i].len, samples[i].payload ? 8 : 0, true),
			    rows[k].right);
		}
}

static void unknown_opcodes_are_refused(void **state)
{
	struct vb_pkt p;
	uint8_t buf[64] = {0};
	unsigned known = 0;

	(void)state;
	for (unsigned op = 0; op < 256; op++) {
		if (vb_opcodes[op].name) {
			known++;
			continue;
		}
		buf[0] = (uint8_t)op;
		for (size_t len = 0; len < sizeof buf; len++) {
			assert_non_null(vb_pkt_decode(&p, buf, len, 0, true));
			assert_non_null(vb_pkt_decode(&p, buf, len, 16, true));
		}
	}
	assert_int_equal(known, SAMPLES);
}

static void nak_carries_facts(void **state)
{
	uint8_t nak[16] = "\x11\x40\xff\xff\x00\x00\x00\x07\x00\x00\x00\x09\x62\x00\x00\x00";
	uint8_t atomic[24] = "\x12\x40\xff\xff\x00\x00\x00\x07\x00\x00\x00\x09\x61\x00\x00\x00";
	struct vb_pkt p;

	(void)state;
	assert_null(vb_pkt_decode(&p, nak, 16, sizeof(struct vb_facts), true));
	assert_int_equal(p.payload_len, sizeof(struct vb_facts));
	assert_null(vb_pkt_decode(&p, atomic, 24, sizeof(struct vb_facts), true));
	assert_non_null(vb_pkt_decode(&p, nak, 16, sizeof(struct vb_facts) - 1, true));
	assert_non_null(vb_pkt_decode(&p, nak, 16, sizeof(struct vb_facts), false));
	nak[12] = VB_AETH_ACK;
	assert_non_null(vb_pkt_decode(&p, nak, 16, sizeof(struct vb_facts), true));
}

static void rule_12_psn_wraps(void **state)
{
	(void)state;
	assert_int_equal(vb_psn_add(0xffffff, 1), 0);
	assert_int_equal(vb_psn_diff(0, 0xffffff), 1);
	assert_int_equal(vb_psn_diff(0xffffff, 0), -1);
	assert_int_equal(vb_psn_diff(0x7fffff, 0), 0x7fffff);
	assert_int_equal(vb_psn_diff(0x800000, 0), -0x800000);
}

static void every_reason_has_a_row(void **state)
{
	(void)state;
	for (uint32_t r = 0; r < VB_REASONS; r++) {
		assert_non_null(vb_reasons[r].name);
		for (uint32_t other = 0; other < r; other++)
			assert_string_not_equal(vb_reasons[r].name, vb_reasons[other].name);
	}
}

/* All sentences about the same facts, which may be anything where they come from a peer: each is whole, is
 * told by no other reason, and is cut where the buffer ends. */
static void tell_all(struct vb_facts *f)
{
	static char text[VB_REASONS][2048];

	for (uint32_t r = 0; r < VB_REASONS; r++) {
		f->reason = r;
		memset(text[r], 'x', sizeof text[r]);
		vb_reason_say(text[r], sizeof text[r], f);
		assert_non_null(memchr(text[r], 0, sizeof text[r] - 1)); /* longer ones would not be whole */
		assert_true(strlen(text[r]) > 5);
		assert_null(strstr(text[r], "unknown reason"));
		for (uint32_t other = 0; other < r; other++)
			if (!strcmp(text[r], text[other]))
				fail_msg("%s and %s say the same: %s", vb_reasons[r].name,
					 vb_reasons[other].name, text[r]);
	}
	for (uint32_t r = 0; r < VB_REASONS; r++) {
		size_t whole = strlen(text[r]);

		f->reason = r;
		for (size_t n = 1; n <= whole; n += 1 + n / 8) {
			char cut[2048];

			memset(cut, 'x', sizeof cut);
			vb_reason_say(cut, n, f);
			assert_non_null(memchr(cut, 0, n));
			assert_memory_equal(cut, text[r], strlen(cut));
			assert_int_equal(cut[n], 'x');
		}
	}
}

static void every_reason_has_a_sentence_of_its_own(void **state)
{
	struct vb_facts f = {0};
	uint64_t x = 88172645463325252ull;
	uint32_t word;
	char buf[80];

	(void)state;
	tell_all(&f);
	memset(&f, 0xff, sizeof f);
	tell_all(&f);
	for (int round = 0; round < 500; round++) {
		for (size_t at = 0; at + sizeof word <= sizeof f; at += sizeof word) {
			x ^= x << 13, x ^= x >> 7, x ^= x << 17;
			/* small numbers too: enumerations and flags are such */
			word = (uint32_t)(x >> 16) >> (x & 3) * 8 >> (x >> 2 & 7);
			memcpy((char *)&f + at, &word, sizeof word);
		}
		tell_all(&f);
	}
	f.reason = VB_REASONS;
	assert_non_null(strstr(vb_reason_say(buf, sizeof buf, &f), "unknown reason"));
	f.reason = UINT32_MAX;
	assert_non_null(strstr(vb_reason_say(buf, sizeof buf, &f), "unknown reason"));
}

/* Which check it was may come from a far end, too. */
static void a_receive_buffer_tells_of_checks_only(void **state)
{
	static const char bare[] = "the receive buffer [0x1000, +64) cannot be written";
	struct vb_facts f = {.reason = VB_R_RECV_LOCAL, .key = 0x1200, .addr = 0x1000, .len = 64};
	char buf[400];

	(void)state;
	for (uint32_t check = 0; check < VB_REASONS + 2; check++) {
		bool tells =
		    check < VB_REASONS && vb_reasons[check].facts == VB_FACTS_mem && check != VB_R_RECV_LOCAL;

		f.check = check;
		vb_reason_say(buf, sizeof buf, &f);
		assert_memory_equal(buf, bare, sizeof bare - 1);
		assert_int_equal(strlen(buf) > sizeof bare, tells);
	}
	f.check = UINT16_MAX;
	assert_string_equal(vb_reason_say(buf, sizeof buf, &f), bare);
	f.check = VB_R_KEY_STALE;
	assert_string_equal(
	    vb_reason_say(buf, sizeof buf, &f),
	    "the receive buffer [0x1000, +64) cannot be written: L_Key 0x00001200 is stale: its "
	    "region was deregistered");
}

enum { WORDS = sizeof(struct vb_reach_facts) / sizeof(uint32_t) };

static bool says_reach(struct vb_text *t, const uint32_t of[WORDS])
{
	struct vb_reach_facts f;

	memcpy(&f, of, sizeof f);
	return vb_reach_add(t, &f);
}

/* Why a far end does not answer: the numbers may be anything there, too. */
static void every_reach_has_a_clause_of_its_own(void **state)
{
	static const uint32_t numbers[] = {0, 1, 4711, 12 << 16 | 24, UINT32_MAX};
	static char text[VB_REACHES][600];
	char cut[20] = "";
	struct vb_text t = {cut, 10};

	(void)state;
	for (size_t n = 0; n < 125; n++) {
		/* the facts of any kind, word by word after the tag */
		uint32_t of[WORDS] = {0, numbers[n % 5], numbers[n / 5 % 5], numbers[n / 25], n};

		for (size_t i = 5; i < WORDS; i++)
			of[i] = numbers[(n + i) % 5];
		for (uint32_t r = VB_REACH_UNKNOWN + 1; r < VB_REACHES; r++) {
			t = (struct vb_text){text[r], sizeof text[r]};
			*text[r] = 0;
			of[0] = r;
			assert_true(says_reach(&t, of));
			assert_true(strlen(text[r]) > 5 && strlen(text[r]) + 1 < sizeof text[r]);
			for (uint32_t other = VB_REACH_UNKNOWN + 1; other < r; other++)
				assert_string_not_equal(text[r], text[other]);
		}
	}
	memset(cut, 'x', sizeof cut);
	t = (struct vb_text){cut, 10};
	assert_true(says_reach(&t, (uint32_t[WORDS]){VB_REACH_NOBODY}));
	assert_int_equal(cut[9], 0);
	assert_int_equal(cut[10], 'x');
	t = (struct vb_text){text[0], sizeof text[0]};
	assert_false(says_reach(&t, (uint32_t[WORDS]){VB_REACH_UNKNOWN, 1, 2, 3}));
	assert_false(says_reach(&t, (uint32_t[WORDS]){VB_REACHES, 1, 2, 3}));
	assert_false(says_reach(&t, (uint32_t[WORDS]){UINT32_MAX, 1, 2, 3}));
	assert_int_equal(*text[0], 0);
}

/* Each number stands where its name says. */
static void a_clause_has_the_numbers_of_its_kind(void **state)
{
	static const struct {
		struct vb_reach_facts of;
		const char *says;
	} rows[] = {
	    {{VB_REACH_ELSEWHERE, .elsewhere = {.pid = 31, .itself = 1}},
	     "process 31 in another network namespace does;"},
	    {{VB_REACH_ELSEWHERE, .elsewhere = {.pid = 31}},
	     "one in the network namespace of process 31 does;"},
	    {{VB_REACH_DEAF, .uid = {41}}, "a process of user 41 has bound"},
	    {{VB_REACH_NAMELESS, .uid = {41}}, "reads as 41,"},
	    {{VB_REACH_USER, .user = {.uid = 41, .pid = 31}}, "process 31 of user 41 owns"},
	    {{VB_REACH_UNMAPPED, .process = {31}}, "process 31 owns that number, and its user is not mapped"},
	    {{VB_REACH_SILENT, .process = {31}}, "process 31, which owns that number, does not answer"},
	    {{VB_REACH_SILENT, .process = {0}}, "a process in another PID namespace owns that number and"},
	    {{VB_REACH_STOPPED, .process = {31}}, "process 31 is stopped (by a signal"},
	    {{VB_REACH_LEFT, .process = {31}}, "its process 31 has disconnected:"},
	    {{VB_REACH_TROUBLE, .trouble = {.err = EPERM, .call = VB_CALL_CONNECT}},
	     "connect fails: Operation not permitted (does a sandbox deny it?)"},
	    {{VB_REACH_TROUBLE, .trouble = {.err = EMFILE, .call = VB_CALL_SOCKET}},
	     "socket fails: Too many open files (each peer needs two descriptors"},
	    {{VB_REACH_TROUBLE, .trouble = {.err = ETOOMANYREFS, .call = VB_CALL_SENDMSG}},
	     "sendmsg fails: Too many references: cannot splice (its user has more descriptors in "
	     "flight between processes than this process may open; raise ulimit -n)"},
	    {{VB_REACH_DENIED, .denied = {.pid = 31, .err = EPERM, .call = VB_CALL_FSTAT}},
	     "process 31, which owns that number, cannot connect: fstat fails there: Operation not"},
	    {{VB_REACH_VERSION, .version = {.pid = 31, .theirs = 12, .ours = 24}},
	     "process 31, which owns that number, uses another version of Verbena (segment version 12; this "
	     "process has 24)"},
	    {{VB_REACH_STATE, .state = {IBV_QPS_INIT, 0}},
	     "in state INIT, which receives no packets: its program must bring it to RTR with ibv_modify_qp"},
	    {{VB_REACH_STATE, .state = {IBV_QPS_INIT, VB_END_THERE}},
	     "its program must call rdma_get_cm_event"},
	    {{VB_REACH_STATE, .state = {IBV_QPS_ERR, VB_END_THERE}}, "the log of its process has"},
	    {{VB_REACH_TYPE, .types = {.theirs = IBV_QPT_UD, .ours = IBV_QPT_RC}},
	     "it has type IBV_QPT_UD, but this queue pair has type IBV_QPT_RC; both ends must have the same"},
	    {{VB_REACH_OTHER, .other = {0x1234, 0}},
	     "connected to queue pair 0x001234 and receives nothing from this one; set its dest_qp_num to"},
	    {{VB_REACH_OTHER, .other = {0x1234, VB_END_THERE}}, "set rdma_conn_param.qp_num of this end to"},
	    {{VB_REACH_OTHER, .other = {0, 0}}, "because its dest_qp_num is 0, so it was never set"},
	    {{VB_REACH_PSN, .psn = {.expected = 7, .sent = 9}},
	     "it expects PSN 0x000007, but this end sends PSN 0x000009; set sq_psn here and rq_psn there"},
	    {{VB_REACH_PSN, .psn = {7, 9, VB_END_HERE}}, "as rdma_init_qp_attr sets them at each end"},
	    {{VB_REACH_NO_QP, .number = {0, 0}}, "it was destroyed, or dest_qp_num is wrong"},
	    {{VB_REACH_NO_QP, .number = {VB_END_HERE, 0}}, "rdma_conn_param.qp_num of the peer is wrong"},
	    {{VB_REACH_REVERSED, .reversed = {.qpn = 0x123000, .pid = 31}},
	     "it is 0x123000, a queue pair number of process 31; dest_qp_num is in host byte order"},
	    {{VB_REACH_REVERSED, .reversed = {.ends = VB_END_HERE}},
	     "rdma_conn_param.qp_num of the peer is in"},
	    {{VB_REACH_UNSET, .number = {0, 0}}, "dest_qp_num is 0, so it was never set"},
	    {{VB_REACH_UNSET, .number = {0, 1}}, "remote_qpn is 0, so it was never set"},
	    {{VB_REACH_UNSET, .number = {VB_END_HERE, 0}}, "rdma_conn_param.qp_num of the peer is 0"},
	    {{VB_REACH_GROUP, .number = {0, 1}}, "set remote_qpn to 0xffffff"},
	    {{VB_REACH_GROUP, .number = {0, 0}}, "only UD queue pairs send to groups"},
	    {{VB_REACH_ADDRESS, .away = {.pid = 31}},
	     "not an address of this network namespace: process 31 of this user has it in another"},
	    {{VB_REACH_ADDRESS, .away = {.pid = 31, .gid = {[10] = 255, 255, 203, 0, 113, 7}}},
	     "the GID in the path (dgid 203.0.113.7) is not an address"},
	    {{VB_REACH_ADDRESS, .away = {.pid = 31, .ifname = "eth0"}},
	     "--network container:NAME), or start both programs with --netdev and the interface that leads "
	     "to "
	     "the other: here verbena run --netdev=eth0 (VERBENA_NETDEV)"},
	    {{VB_REACH_ADDRESS, .away = {0}},
	     "not an address of this network namespace, and this host has no route to it; a container has"},
	    {{VB_REACH_ADDRESS, .away = {.ifname = "eth0"}},
	     "namespace; to reach other hosts, start both programs with --netdev and the interface that "
	     "leads to "
	     "the other: here verbena run --netdev=eth0 (VERBENA_NETDEV)"},
	    {{VB_REACH_ADDRESS, .away = {.ifname = "0123456789abcde\x1b"}},
	     "--netdev=0123456789abcde\\x1b (V"},
	    {{VB_REACH_ADDRESS, .away = {.obstacle = VB_AWAY_SHM}}, "--wire=shm (VERBENA_WIRE) keeps"},
#define FAR .gid = {[10] = 255, 255, 10, 0, 0, 5}, .ifname = "eth0"
	    {{VB_REACH_HOST_FILTER, .host = {FAR, .err = EPERM}},
	     "refuses packets to 10.0.0.5 (Operation not"},
	    {{VB_REACH_HOST_ROUTE, .host = {FAR, .err = ENETUNREACH}},
	     "no route to 10.0.0.5: Network is unreachable through eth0;"},
	    {{VB_REACH_HOST_ROUTE, .host = {FAR, .other = 1}},
	     "leads through eth0, which is not the interface of this queue pair's device; use the device of "
	     "eth0 "
	     "(verbena run --netdev=eth0)"},
	    {{VB_REACH_HOST_DOWN, .host = {FAR}}, "the interface eth0, which leads to 10.0.0.5, is down"},
	    {{VB_REACH_HOST_ABSENT, .host = {FAR, .err = EHOSTUNREACH}},
	     "no host answers at 10.0.0.5 (No route to host): the host is down, or the address is not in the "
	     "network of eth0"},
	    {{VB_REACH_HOST_FORBIDDEN, .host = {FAR, .err = EACCES}},
	     "on the way to 10.0.0.5 rejects the packets (Permission denied"},
	    {{VB_REACH_HOST_CLOSED, .host = {FAR}}, "nobody at 10.0.0.5 listens on UDP port 4791"},
	    {{VB_REACH_HOST_CLOSED, .host = {FAR, .heard_ms = 2500}},
	     "packets came from there until 2.5 s ago: the process there has ended"},
	    {{VB_REACH_HOST_MTU, .host = {FAR, .mtu = 1400}},
	     "MTU is 1400 bytes; set path_mtu to 1024 bytes"},
	    {{VB_REACH_HOST_MTU, .host = {FAR, .mtu = 1119}}, "MTU is 1119 bytes; set path_mtu to 512 bytes"},
	    {{VB_REACH_HOST_MTU, .host = {FAR, .err = EMSGSIZE}}, "takes (Message too long); set a smaller"},
	    {{VB_REACH_HOST_NAT, .nat = {{[10] = 255, 255, 10, 0, 0, 5}, {[10] = 255, 255, 10, 0, 0, 1}}},
	     "packets of 10.0.0.5 arrive from 10.0.0.1. RoCEv2"},
	    {{VB_REACH_HOST_DAMAGED, .host = {FAR, .bad = 3}}, "3 packets from 10.0.0.5 had a wrong"},
	    {{VB_REACH_HOST_SILENT, .host = {FAR}}, "no RoCEv2 packet has arrived from 10.0.0.5 on eth0,"},
	    {{VB_REACH_HOST_SILENT, .host = {.ifname = "0123456789abcdef"}}, "on 0123456789abcdef, and"},
	    {{VB_REACH_HOST_QUIET, .host = {FAR, .heard_ms = 3280}},
	     "10.0.0.5 was heard last 3.2 s ago: since"},
	    {{VB_REACH_HOST_OTHERS, .host = {FAR, .heard_ms = 280}},
	     "from 10.0.0.5 arrive (the last one 0.2 s ago)"},
	    {{VB_REACH_CM_SILENT, .host = {FAR}},
	     "no RoCEv2 packet has arrived from 10.0.0.5 on eth0, and no ICMP message: is the host up, is a "
	     "program that uses rdma_cm running there"},
	    {{VB_REACH_CM_QUIET, .host = {FAR, .heard_ms = 3280}},
	     "10.0.0.5 was heard last 3.2 s ago: since"},
	    {{VB_REACH_CM_OTHERS, .host = {FAR, .heard_ms = 280}},
	     "from 10.0.0.5 arrive (the last one 0.2 s ago), but no answer to this message"},
	    {{VB_REACH_HOST_SILENT, .host = {FAR, .path_mtu = 2048}},
	     "(NAT; verbena explain there says so)? If short messages pass (perftest: -s 64), packets of "
	     "path_mtu = 2048 bytes are too long for the way: set path_mtu to 1024 bytes at both ends"},
	    {{VB_REACH_HOST_QUIET, .host = {FAR, .path_mtu = 4096, .heard_ms = 1}},
	     "on that host. If short messages pass (perftest: -s 64), packets of path_mtu = 4096 bytes"},
	    {{VB_REACH_HOST_OTHERS, .host = {FAR, .path_mtu = 4096, .heard_ms = 1}},
	     "of both ends. If short messages pass (perftest: -s 64), packets of path_mtu = 4096 bytes"},
	    {{VB_REACH_HOST_LONG, .host = {FAR, .path_mtu = 4096, .passed = 64}},
	     "packets of up to 64 bytes to 10.0.0.5 were acknowledged, but of this longer message, with "
	     "packets of path_mtu = 4096 bytes, none is: something on the way has a smaller MTU than both "
	     "ends; set path_mtu to 1024 bytes at both ends (perftest: -m 1024)"},
	    {{VB_REACH_HOST_LONG, .host = {FAR, .path_mtu = 4096, .passed = 2048}},
	     "set path_mtu to 2048 bytes at both ends (perftest: -m 2048)"},
#undef FAR
	    {{VB_REACH_ADDRESS, .away = {.obstacle = VB_AWAY_FAILED}}, "could not be opened: the first line"},
	};
	char text[800];

	(void)state;
	for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
		struct vb_text t = {text, sizeof text};

		*text = 0;
		assert_true(vb_reach_add(&t, &rows[i].of));
		if (!strstr(text, rows[i].says))
			fail_msg("'%s' is not in '%s'", rows[i].says, text);
	}
}

/* An attribute is named as the program that sets it knows it: by ibv_modify_qp, or by rdma_cm. */
static void remedies_name_the_right_call(void **state)
{
	enum { HERE = VB_END_HERE, THERE = VB_END_THERE };
	static const struct vb_facts reads = {.access = {.want = IBV_ACCESS_REMOTE_READ}},
				     flushes = {.access = {.want = IBV_ACCESS_FLUSH_GLOBAL}},
				     most = {.limit = {.most = 3}}, mtu = {.mtu = {1024, 256}},
				     retry = {.retry = {.retries = 3}}, none = {0},
				     shared = {.retry = {.srq = 0x123}},
				     shared_more = {.retry = {.retries = 3, .srq = 0x123}},
				     other = {.no_qp = {.why = VB_NOT_FROM_HIM, .dest = 0x123}},
				     type = {.no_qp = {.why = VB_NOT_TYPE,
						       .type = IBV_QPT_UC,
						       .sent = IBV_QPT_UD}},
				     ready = {.no_qp = {.why = VB_NOT_READY, .state = IBV_QPS_INIT}};
	static const struct {
		enum vb_reason reason;
		uint16_t ends;
		const struct vb_facts *of;
		const char *says, *says_not;
	} rows[] = {
	    {VB_R_QP_ACCESS, 0, &reads, "set IBV_ACCESS_REMOTE_READ with ibv_modify_qp", "rdma_c"},
	    {VB_R_QP_ACCESS, THERE, &reads, "set IBV_ACCESS_REMOTE_READ with ibv_modify_qp", "rdma_c"},
	    {VB_R_QP_ACCESS, HERE, &reads,
	     "rdma_conn_param.responder_resources of the responder and initiator_depth of the requester",
	     "ibv_modify_qp"},
	    {VB_R_QP_ACCESS, HERE, &flushes,
	     "set IBV_ACCESS_FLUSH_GLOBAL with ibv_modify_qp (IBV_QP_ACCESS_FLAGS) after "
	     "RDMA_CM_EVENT_ESTABLISHED",
	     "responder_resources"},
	    {VB_R_TOO_MANY_READS, 0, &most,
	     "the responder's limit of 3: the requester's max_rd_atomic must not exceed the responder's "
	     "max_dest_rd_atomic",
	     "rdma_c"},
	    {VB_R_TOO_MANY_READS, THERE, &most,
	     "requester's rdma_conn_param.initiator_depth must not exceed the responder's max_dest_rd_atomic",
	     "responder_resources"},
	    {VB_R_TOO_MANY_READS, HERE | THERE, &most,
	     "requester's rdma_conn_param.initiator_depth must not exceed the responder's "
	     "rdma_conn_param.responder_resources",
	     "atomic must"},
	    {VB_R_READ_DEPTH_ZERO, 0, &none, "set it with ibv_modify_qp at the transition to RTS", "rdma_c"},
	    {VB_R_READ_DEPTH_ZERO, HERE, &none,
	     "set rdma_conn_param.initiator_depth of this end and responder_resources of the peer",
	     "ibv_modify_qp"},
	    {VB_R_PATH_MTU, 0, &mtu, "set the same path_mtu with ibv_modify_qp at both", "rdma_"},
	    {VB_R_PATH_MTU, THERE, &mtu, "leave path_mtu as rdma_init_qp_attr sets it", "ibv_modify_qp"},
	    {VB_R_RNR, 0, &retry, "within rnr_retry = 3 retries", "rdma_c"},
	    {VB_R_RNR, HERE, &retry, "within rdma_conn_param.rnr_retry_count (of the receiver) = 3 retries",
	     "rnr_retry ="},
	    {VB_R_RNR, 0, &none, "and rnr_retry = 0 permits no retry; post receive requests earlier",
	     "within"},
	    {VB_R_RNR, 0, &shared,
	     "and rnr_retry = 0 permits no retry; it receives from SRQ 0x000123: post receive requests to "
	     "that "
	     "SRQ (ibv_post_srq_recv) earlier",
	     "within"},
	    {VB_R_RNR, 0, &shared_more,
	     "; it receives from SRQ 0x000123: post more receive requests to that SRQ (ibv_post_srq_recv), "
	     "or",
	     "0 permits"},
	    {VB_R_RNR, HERE, &none,
	     "and rdma_conn_param.rnr_retry_count (of the receiver) = 0 permits no retry", "rnr_retry ="},
	    {VB_R_RETRY, 0, &retry, "within retry_cnt = 3 retries", "rdma_c"},
	    {VB_R_RETRY, 0, &none, "from queue pair 0x000000, and retry_cnt = 0 permits no retry", "within"},
	    {VB_R_DROP_NO_QP, 0, &none, "queue pair 0x000000 does not exist", "ibv_modify_qp"},
	    {VB_R_DROP_NO_QP, 0, &other,
	     "is connected to queue pair 0x000123 of another process and receives only from it", "exist"},
	    {VB_R_DROP_NO_QP, 0, &type,
	     "has type IBV_QPT_UC, but its sender has type IBV_QPT_UD; both ends must have", "exist"},
	    {VB_R_DROP_NO_QP, 0, &ready, "is in state INIT: it receives from state RTR on (ibv_modify_qp)",
	     "rdma_cm"},
	    {VB_R_DROP_NO_QP, HERE, &ready,
	     "is in state INIT: it receives after rdma_cm has established its connection", "ibv_modify_qp"},
	    {VB_R_RETRY, HERE, &retry, "within rdma_conn_param.retry_count (of rdma_connect) = 3 retries",
	     "retry_cnt"},
	};
	char text[600];

	(void)state;
	for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
		struct vb_facts f = *rows[i].of;

		f.reason = rows[i].reason;
		f.ends = rows[i].ends;
		vb_reason_say(text, sizeof text, &f);
		if (!strstr(text, rows[i].says) || strstr(text, rows[i].says_not))
			fail_msg("'%s' without '%s' is not '%s'", rows[i].says, rows[i].says_not, text);
	}
}

static void statuses_follow_the_rules(void **state)
{
	static const struct {
		enum vb_reason reason;
		uint8_t nak, remote, local, event;
	} rows[] = {
	    {VB_R_KEY_BOUNDS, 0x62, IBV_WC_REM_ACCESS_ERR, IBV_WC_LOC_PROT_ERR, IBV_EVENT_QP_ACCESS_ERR},
	    {VB_R_KEY_PD, 0x62, IBV_WC_REM_ACCESS_ERR, IBV_WC_LOC_PROT_ERR, IBV_EVENT_QP_ACCESS_ERR},
	    {VB_R_QP_ACCESS, 0x61, IBV_WC_REM_INV_REQ_ERR, IBV_WC_LOC_QP_OP_ERR, IBV_EVENT_QP_REQ_ERR},
	    {VB_R_ATOMIC_ALIGN, 0x61, IBV_WC_REM_INV_REQ_ERR, IBV_WC_LOC_QP_OP_ERR, IBV_EVENT_QP_REQ_ERR},
	    {VB_R_RECV_TOO_SMALL, 0x61, IBV_WC_REM_INV_REQ_ERR, IBV_WC_LOC_LEN_ERR, 0xff},
	    {VB_R_RECV_LOCAL, 0x63, IBV_WC_REM_OP_ERR, IBV_WC_LOC_PROT_ERR, 0xff},
	};

	(void)state;
	for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
		const struct vb_reason_row *r = &vb_reasons[rows[i].reason];

		assert_int_equal(r->nak, rows[i].nak);
		assert_int_equal(r->remote_wc, rows[i].remote);
		assert_int_equal(r->local_wc, rows[i].local);
		assert_int_equal(r->event, rows[i].event);
	}
	assert_int_equal(vb_reasons[VB_R_RNR].local_wc, IBV_WC_RNR_RETRY_EXC_ERR);
	assert_int_equal(vb_reasons[VB_R_RETRY].local_wc, IBV_WC_RETRY_EXC_ERR);
	assert_int_equal(vb_reasons[VB_R_READ_DEPTH_ZERO].local_wc, IBV_WC_LOC_QP_OP_ERR);
	assert_int_equal(vb_reasons[VB_R_FLUSHED].local_wc, IBV_WC_WR_FLUSH_ERR);
}

static void sentences_tell_the_numbers(void **state)
{
	char buf[400];
	struct vb_facts f = {
	    .reason = VB_R_KEY_ACCESS,
	    .key = 0x4000ab12,
	    .mem = {.start = 0x7f0000001000,
		    .size = 4096,
		    .want = IBV_ACCESS_REMOTE_WRITE,
		    .have = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_READ},
	};

	(void)state;
	assert_string_equal(
	    vb_reason_say(buf, sizeof buf, &f),
	    "R_Key 0x4000ab12 does not permit REMOTE_WRITE: the region [0x7f0000001000, +4096) has "
	    "LOCAL_WRITE|REMOTE_READ; register it with IBV_ACCESS_REMOTE_WRITE");
	f.reason = VB_R_KEY_BOUNDS;
	f.addr = 0x7f0000001ff0;
	f.len = 32;
	vb_reason_say(buf, sizeof buf, &f);
	assert_non_null(strstr(buf, "exceeds region [0x7f0000001000, +4096)"));
	assert_non_null(strstr(buf, "by 16 bytes at the end"));
	f.addr = 0x7f0000000ff8;
	assert_non_null(strstr(vb_reason_say(buf, sizeof buf, &f), "by 8 bytes at the start"));
	f = (struct vb_facts){.reason = VB_R_KEY_IS_LOCAL, .key = 0x1200, .mem = {.cur_key = 0x40001200}};
	assert_string_equal(
	    vb_reason_say(buf, sizeof buf, &f),
	    "L_Key 0x00001200 was used where an R_Key is required (this region's R_Key is 0x40001200); "
	    "the process that owns the region must send mr->rkey to its peer, and not mr->lkey; a program "
	    "that relies on equal keys, as some adapters have them, needs --profile=rxe");
	f = (struct vb_facts){.reason = VB_R_CQ_OVERRUN, .limit = {.most = 1}};
	assert_non_null(strstr(vb_reason_say(buf, sizeof buf, &f), "a completion queue of 1 entry overran"));
	f = (struct vb_facts){.reason = VB_R_PEER_DIED, .gone = {.how = VB_GONE_UNCLEAR}};
	assert_non_null(strstr(vb_reason_say(buf, sizeof buf, &f),
			       "the peer process (in another PID namespace) disconnected without closing"));
	f.gone.pid = 4711;
	assert_non_null(
	    strstr(vb_reason_say(buf, sizeof buf, &f),
		   "the peer process 4711 disconnected without closing its queue pair: it ended,"));
	f = (struct vb_facts){.reason = VB_R_MEM_FORBIDDEN, .key = 0xc0140001};
	assert_non_null(
	    strstr(vb_reason_say(buf, sizeof buf, &f),
		   "R_Key 0xc0140001 refers to memory of a process in another PID namespace, but"));
	f = (struct vb_facts){.reason = VB_R_KEY_UNKNOWN};
	assert_non_null(strstr(vb_reason_say(buf, sizeof buf, &f),
			       "; lkey of the sg_list is 0, so it was never set; set it to mr->lkey"));
	f.mem.flags = VB_KEYF_REMOTE;
	assert_non_null(
	    strstr(vb_reason_say(buf, sizeof buf, &f),
		   "; rkey of the request is 0, so it was never set; set it to the mr->rkey that"));
	f.key = 0x100;
	assert_null(strstr(vb_reason_say(buf, sizeof buf, &f), "never set"));
	f = (struct vb_facts){.reason = VB_R_RECV_TOO_SMALL, .length = {.bytes = 2, .fit = 1}};
	assert_non_null(
	    strstr(vb_reason_say(buf, sizeof buf, &f), "2 bytes does not fit the receive buffer of 1 byte"));
}

/* A range that does not touch the region: which way it lies, and what may be wrong with a far one. */
static void a_range_outside_has_its_distance(void **state)
{
#define START 0x7f0000001000ull
	enum { SIZE = 4096, GIB = 1 << 30, R = VB_KEYF_REMOTE };
	static const struct {
		uint64_t addr, len;
		uint32_t flags;
		const char *end;
	} rows[] = {
	    {START - 8, 8, R,
	     "exceeds region [0x7f0000001000, +4096) of R_Key 0x40000100 by 8 bytes at the start"},
	    {START + SIZE, 8, R,
	     "exceeds region [0x7f0000001000, +4096) of R_Key 0x40000100 by 8 bytes at the end"},
	    {START - 9, 8, R,
	     "lies outside region [0x7f0000001000, +4096) of R_Key 0x40000100: 1 byte below it"},
	    {START + SIZE + 2, 8, R,
	     "lies outside region [0x7f0000001000, +4096) of R_Key 0x40000100: 2 bytes above it"},
	    {START + SIZE + GIB, 8, R, "0x40000100: 1073741824 bytes above it"},
	    {START + SIZE + GIB + 1, 8, R,
	     "0x40000100; is it the address of another buffer, or of another process's memory?"},
	    {0x1000, 8, R,
	     "0x40000100; is it the address of another buffer, or of another process's memory?"},
	    {0x1000, 8, 0, "0x40000100; is it the address of another buffer?"},
	    {0, 8, R,
	     "0x40000100; remote_addr is 0, so it was never set; set it to the address that the peer sends"},
	    {0, 8, 0, "0x40000100; addr of the sg_list is 0, so it was never set"},
	    {0x1000, 8, R | VB_KEYF_OWN,
	     "0x40000100; the range lies in a region of the requester's own process: the remote address must "
	     "be an address of the peer"},
	};
	char buf[400];

	(void)state;
	for (unsigned i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
		struct vb_facts f = {.reason = VB_R_KEY_BOUNDS,
				     .key = 0x40000100,
				     .addr = rows[i].addr,
				     .len = rows[i].len,
				     .mem = {.start = START, .size = SIZE, .flags = rows[i].flags}};
		const char *said = vb_reason_say(buf, sizeof buf, &f), *end = strstr(said, rows[i].end);

		if (!end || strlen(end) != strlen(rows[i].end))
			fail_msg("row %u: not at the end of it: \"%s\"\n%s", i, rows[i].end, said);
	}
#undef START
}

int main(void)
{
	const struct CMUnitTest tests[] = {
	    cmocka_unit_test(every_opcode_encodes_to_its_bytes),
	    cmocka_unit_test(every_opcode_decodes_to_its_fields),
	    cmocka_unit_test(rule_28_bth_bits),
	    cmocka_unit_test(reserved_bytes_of_deth_and_xrceth),
	    cmocka_unit_test(names_of_opcodes),
	    cmocka_unit_test(rule_28_wrong_lengths_are_refused),
	    cmocka_unit_test(rule_28_a_groups_gid_follows),
	    cmocka_unit_test(rule_28_the_p_key_is_the_ports),
	    cmocka_unit_test(unknown_opcodes_are_refused),
	    cmocka_unit_test(nak_carries_facts),
	    cmocka_unit_test(rule_12_psn_wraps),
	    cmocka_unit_test(every_reason_has_a_row),
	    cmocka_unit_test(every_reason_has_a_sentence_of_its_own),
	    cmocka_unit_test(a_receive_buffer_tells_of_checks_only),
	    cmocka_unit_test(every_reach_has_a_clause_of_its_own),
	    cmocka_unit_test(a_clause_has_the_numbers_of_its_kind),
	    cmocka_unit_test(remedies_name_the_right_call),
	    cmocka_unit_test(statuses_follow_the_rules),
	    cmocka_unit_test(sentences_tell_the_numbers),
	    cmocka_unit_test(a_range_outside_has_its_distance),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
