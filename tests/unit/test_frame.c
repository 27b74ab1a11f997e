/* Frames as they would stand on an Ethernet, byte by byte, how a large packet is split into such, and the
 * file that a capture is.  The first two ICRCs are those of packets that adapters sent; the other bytes were
 * put together by a program that knows nothing of the code here, and finds these two as well. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/pcapng.h"
#include "iba/frame.h"
#include "iba/icrc.h"

static const uint8_t v4_from[16] = {[10] = 0xff, 0xff, 192, 0, 2, 1};
static const uint8_t v4_to[16] = {[10] = 0xff, 0xff, 198, 51, 100, 7};
static const uint8_t v6_from[16] = {0xfe, 0x80, [15] = 1};
static const uint8_t v6_group[16] = {0xff, 0x0e, [15] = 9};

/* A CNP of a ConnectX-4, and a SEND of soft-RoCE, whose payload is 18 bytes and padding. */
static void icrcs_of_others(void **state)
{
	static const uint8_t cnp_ip[20] = {0x45, 0xc2, 0x00, 0x3c, 0x71, 0x8c, 0x40, 0x00, 0x40, 0x11,
					   0x91, 0x61, 0x0a, 0x00, 0x11, 0x01, 0x0a, 0x00, 0x12, 0x01};
	static const uint8_t cnp_udp[8] = {0x00, 0x00, 0x12, 0xb7, 0x00, 0x28, 0x00, 0x00};
	static const uint8_t cnp[28] = {0x81, 0x00, 0xff, 0xff, 0x40, 0x00, 0x01, 0x18};
	static const uint8_t uc_ip[20] = {0x45, 0x01, 0x00, 0x40, 0x04, 0x78, 0x40, 0x00, 0x40, 0x11,
					  0xb4, 0xd5, 0xc0, 0xa8, 0x00, 0x07, 0xc0, 0xa8, 0x00, 0x07};
	static const uint8_t uc_udp[8] = {0xc0, 0x00, 0x12, 0xb7, 0x00, 0x2c, 0xac, 0xa2};
	static const uint8_t uc[12] = {0x24, 0x60, 0xff, 0xff, 0x00, 0x00,
				       0x00, 0xd3, 0x00, 0xcf, 0x17, 0x10};
	static const uint8_t data[20] = {'F',  '0', 0x81, 0x8b, 0xe2, 0x89, '5', 0xd9, 0x0e, 0x9a,
					 0x95, 'P', 'T',  0x01, 0xbe, 0x88, '^', 'P',  0x00, 0x00};

	(void)state;
	assert_int_equal(vb_icrc_make(cnp_ip, 20, cnp_udp, cnp, 12, cnp + 12, 16), 0x2a00fd82);
	assert_int_equal(vb_icrc_make(cnp_ip, 20, cnp_udp, cnp, 28, NULL, 0), 0x2a00fd82);
	assert_int_equal(vb_icrc_make(uc_ip, 20, uc_udp, uc, 12, data, 20), 0xf353f378);
}

/* A whole frame; its length. */
static size_t put(uint8_t to[VB_FRAME_MAX], const struct vb_frame_ends *e, const struct vb_pkt *p)
{
	size_t len, kept = vb_frame_cut(to, e, p, VB_FRAME_MAX, &len);

	assert_int_equal(kept, len);
	return len;
}

static void over_ipv4(void **state)
{
	static const uint8_t want[] = {0x02, 0x00, 0xc6, 0x33, 0x64, 0x07, 0x02, 0x00, 0xc0, 0x00, 0x02,
				       0x01, 0x08, 0x00, 0x45, 0x12, 0x00, 0x34, 0x00, 0x00, 0x40, 0x00,
				       0x40, 0x11, 0x4e, 0x6b, 0xc0, 0x00, 0x02, 0x01, 0xc6, 0x33, 0x64,
				       0x07, 0xc8, 0xad, 0x12, 0xb7, 0x00, 0x20, 0x00, 0x00, 0x04, 0x70,
				       0xff, 0xff, 0x00, 0x01, 0x23, 0x45, 0x80, 0xff, 0xff, 0xfe, 0x68,
				       0x65, 0x6c, 0x6c, 0x6f, 0x00, 0x00, 0x00, 0x04, 0xa7, 0xa1, 0xea};
	const struct vb_frame_ends e = {.sgid = vb_gid_of(v4_from),
					.dgid = vb_gid_of(v4_to),
					.route = vb_route(VB_GRH_WORD(0, 0x12, 0), 64, 0),
					.src_qpn = 0x777};
	struct vb_pkt p = {.opcode = VB_FAMILY_RC | VB_SEND_ONLY,
			   .ack_req = true,
			   .pkey = 0xffff,
			   .qpn = 0x12345,
			   .psn = 0xfffffe,
			   .payload = (const uint8_t *)"hello",
			   .payload_len = 5};
	uint8_t to[VB_FRAME_MAX];

	(void)state;
	memset(to, 0xee, sizeof to);
	assert_int_equal(put(to, &e, &p), sizeof want);
	assert_memory_equal(to, want, sizeof want);
	assert_int_equal(to[sizeof want], 0xee);
}

static void over_ipv6_to_a_group(void **state)
{
	static const uint8_t want[] = {
	    0x33, 0x33, 0x00, 0x00, 0x00, 0x09, 0x02, 0x01, 0xfe, 0x80, 0x00, 0x01, 0x86, 0xdd, 0x61,
	    0x2a, 0xbc, 0xde, 0x00, 0x24, 0x11, 0x40, 0xfe, 0x80, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00,
	    0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x01, 0xff, 0x0e, 0x00, 0x00, 0x00, 0x00, 0x00,
	    0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x09, 0xfc, 0xf4, 0x12, 0xb7, 0x00, 0x24,
	    0xb1, 0x3b, 0x64, 0x60, 0xff, 0xff, 0x00, 0xff, 0xff, 0xff, 0x00, 0x00, 0x00, 0x05, 0x11,
	    0x11, 0x11, 0x11, 0x00, 0x00, 0x07, 0x77, 0x01, 0x02, 0x00, 0x00, 0x21, 0x6d, 0x8f, 0xb8};
	const struct vb_frame_ends e = {.sgid = vb_gid_of(v6_from),
					.dgid = vb_gid_of(v6_group),
					.route = vb_route(VB_GRH_WORD(0, 0x12, 0xabcde), 64, 0),
					.src_qpn = 0x777};
	struct vb_pkt p = {.opcode = VB_FAMILY_UD | VB_SEND_ONLY,
			   .pkey = 0xffff,
			   .qpn = VB_QPN_GROUP,
			   .psn = 5,
			   .qkey = 0x11111111,
			   .src_qpn = 0x777,
			   .mgid = v6_group, /* no header's part here */
			   .payload = (const uint8_t[]){1, 2},
			   .payload_len = 2};
	uint8_t to[VB_FRAME_MAX];

	(void)state;
	assert_int_equal(put(to, &e, &p), sizeof want);
	assert_memory_equal(to, want, sizeof want);
}

/* A packet of a network, all of which is real but for Ethernet: that CNP. */
static void of_a_network(void **state)
{
	static const uint8_t from[16] = {[10] = 0xff, 0xff, 10, 0, 17, 1},
			     at[16] = {[10] = 0xff, 0xff, 10, 0, 18, 1};
	static const uint8_t pkt[32] = {0x81, 0x00, 0xff,	 0xff, 0x40, 0x00,
					0x01, 0x18, [28] = 0x82, 0xfd, 0x00, 0x2a};
	static const uint8_t want[] = {0x02, 0x00, 10,	 0,    18,   1,	   0x02, 0x00, 10,   0,	   17,
				       1,    0x08, 0x00, 0x45, 0xc2, 0x00, 0x3c, 0x71, 0x8c, 0x40, 0x00,
				       0x40, 0x11, 0x91, 0x61, 0x0a, 0x00, 0x11, 0x01, 0x0a, 0x00, 0x12,
				       0x01, 0x00, 0x00, 0x12, 0xb7, 0x00, 0x28, 0x00, 0x00};
	struct vb_roce_packet p = {.ends = {vb_gid_of(from), vb_gid_of(at), 0},
				   .id = 0x718c,
				   .tclass = 0xc2,
				   .pkt = pkt,
				   .len = sizeof pkt};
	uint8_t to[VB_FRAME_MAX];
	size_t len;

	(void)state;
	memset(to, 0xee, sizeof to);
	assert_int_equal(vb_frame_packet(to, &p, sizeof to, &len), sizeof want + sizeof pkt);
	assert_int_equal(len, sizeof want + sizeof pkt);
	assert_memory_equal(to, want, sizeof want);
	assert_memory_equal(to + sizeof want, pkt, sizeof pkt);
	assert_int_equal(to[len], 0xee);
	memset(to, 0xee, sizeof to);
	assert_int_equal(vb_frame_packet(to, &p, 64, &len), 64);
	assert_int_equal(len, sizeof want + sizeof pkt);
	assert_int_equal(to[64], 0xee);
	for (uint32_t id = 0; id <= UINT16_MAX; id++) { /* the header's words add up to all ones */
		uint32_t sum = 0;

		p.id = (uint16_t)id;
		vb_frame_packet(to, &p, 64, &len);
		for (unsigned i = 14; i < 34; i += 2)
			sum += (uint32_t)to[i] << 8 | to[i + 1];
		assert_int_equal((sum & 0xffff) + (sum >> 16), 0xffff);
	}
}

/* Over IPv6 it is the frame that is made up of the same packet, but for the source port. */
static void of_a_network_over_ipv6(void **state)
{
	const struct vb_frame_ends e = {.sgid = vb_gid_of(v6_from),
					.dgid = vb_gid_of(v6_group),
					.route = vb_route(VB_GRH_WORD(0, 0x12, 0), 9, 0),
					.src_qpn = 0x777};
	struct vb_pkt p = {
	    .opcode = VB_FAMILY_UC | VB_SEND_ONLY, .pkey = 0xffff, .qpn = 5, .payload_len = 100};
	uint8_t want[VB_FRAME_MAX], to[VB_FRAME_MAX];
	struct vb_roce_packet k = {
	    .ends = {e.sgid, e.dgid, vb_frame_port(0, 0x777, 5)}, .tclass = 0x12, .hops = 9};
	size_t len = put(want, &e, &p), n;

	(void)state;
	k.pkt = want + 62;
	k.len = len - 62;
	assert_int_equal(vb_frame_packet(to, &k, sizeof to, &n), len);
	assert_memory_equal(to, want, len);
	assert_int_equal(vb_frame_packet(to, &k, 70, &n), 70);
	assert_int_equal(n, len);
	assert_int_equal(to[60] << 8 | to[61], 0xffff);
}

/* UDP's checksum over IPv6 is never 0, which would say that there is none: where it comes out so it is
 * 0xffff. */
static void no_checksum_is_zero(void **state)
{
	const struct vb_frame_ends e = {.sgid = vb_gid_of(v6_from), .dgid = vb_gid_of(v6_group)};
	struct vb_pkt p = {.opcode = VB_FAMILY_UC | VB_SEND_ONLY};
	uint8_t to[VB_FRAME_MAX];
	int ones = 0;

	(void)state;
	for (p.psn = 0; p.psn < 1 << 18; p.psn++) {
		p.qpn = p.psn * 2654435761u >> 8;
		put(to, &e, &p);
		assert_true(to[60] || to[61]);
		ones += to[60] == 0xff && to[61] == 0xff;
	}
	assert_true(ones > 0);
}

/* The largest there is; and what has no payload has none, whatever a packet of this host brings. */
static void sizes(void **state)
{
	const struct vb_frame_ends e = {.sgid = vb_gid_of(v6_from), .dgid = vb_gid_of(v6_group)};
	struct vb_pkt p = {.opcode = VB_FAMILY_XRC | VB_WRITE_ONLY_IMM, .payload_len = 4096};
	uint8_t *to = malloc(VB_FRAME_MAX);

	(void)state;
	assert_non_null(to);
	assert_int_equal(put(to, &e, &p), 14 + 40 + 8 + (12 + 4 + 16 + 4) + 4096 + 4);
	p = (struct vb_pkt){
	    .opcode = VB_FAMILY_RC | VB_ACK, .syndrome = VB_AETH_NAK_REMOTE_ACCESS, .payload_len = 48};
	assert_int_equal(put(to, &e, &p), 14 + 40 + 8 + 16 + 4);
	free(to);
}

static void source_ports(void **state)
{
	(void)state;
	assert_int_equal(vb_frame_port(0, 17, 18), vb_frame_port(0, 18, 17));
	assert_int_equal(vb_frame_port(0, 17, 18), 0xc000 | (17 * 18));
	assert_int_equal(vb_frame_port(0xabcde, 17, 18), 0xc000 | (0x3cde ^ 0x2a));
	assert_int_equal(vb_frame_port(0xabcde, 1, 2), vb_frame_port(0xabcde, 17, 18));
	for (uint32_t q = 0; q < 0xffffff; q += 9973)
		assert_true(vb_frame_port(0, q, q ^ 0x5a5a5a) >= 0xc000);
}

static void macs(void **state)
{
	static const uint8_t group4[16] = {[10] = 0xff, 0xff, 239, 129, 2, 3};
	struct vb_frame_ends e = {.sgid = vb_gid_of(v4_from), .dgid = vb_gid_of(group4)};
	struct vb_pkt p = {.opcode = VB_FAMILY_UD | VB_SEND_ONLY};
	uint8_t to[VB_FRAME_MAX];

	(void)state;
	put(to, &e, &p);
	assert_memory_equal(to, ((const uint8_t[]){0x01, 0x00, 0x5e, 1, 2, 3}),
			    6); /* 23 bits of the address */
	assert_memory_equal(to + 6, ((const uint8_t[]){0x02, 0x00, 192, 0, 2, 1}), 6);
}

static void notes(void **state)
{
	uint8_t to[VB_FRAME_MAX];
	char *text = malloc(10000);

	(void)state;
	assert_int_equal(vb_frame_note(to, "why"), 17);
	assert_memory_equal(
	    to, ((const uint8_t[]){2, 0, 0, 0, 0, 0, 2, 0, 0, 0, 0, 0, 0x88, 0xb5, 'w', 'h', 'y'}), 17);
	assert_non_null(text);
	memset(text, 'x', 9999);
	text[9999] = 0;
	assert_int_equal(vb_frame_note(to, text), 14 + 4096);
	free(text);
}

/* ---- splitting ---- */

static const uint8_t bytes[16384];

/* A packet and what it is split into at 1,024 bytes. */
static const struct split {
	uint8_t op;
	uint32_t len;
	uint8_t first, middle, last; /* of more than one */
} splits[] = {
    {VB_SEND_ONLY, 3000, VB_SEND_FIRST, VB_SEND_MIDDLE, VB_SEND_LAST},
    {VB_SEND_ONLY_IMM, 4096, VB_SEND_FIRST, VB_SEND_MIDDLE, VB_SEND_LAST_IMM},
    {VB_SEND_ONLY_INV, 2049, VB_SEND_FIRST, VB_SEND_MIDDLE, VB_SEND_LAST_INV},
    {VB_SEND_FIRST, 16384, VB_SEND_FIRST, VB_SEND_MIDDLE, VB_SEND_MIDDLE},
    {VB_SEND_MIDDLE, 16384, VB_SEND_MIDDLE, VB_SEND_MIDDLE, VB_SEND_MIDDLE},
    {VB_SEND_LAST, 5000, VB_SEND_MIDDLE, VB_SEND_MIDDLE, VB_SEND_LAST},
    {VB_SEND_LAST_INV, 5000, VB_SEND_MIDDLE, VB_SEND_MIDDLE, VB_SEND_LAST_INV},
    {VB_WRITE_ONLY, 5000, VB_WRITE_FIRST, VB_WRITE_MIDDLE, VB_WRITE_LAST},
    {VB_WRITE_ONLY_IMM, 5000, VB_WRITE_FIRST, VB_WRITE_MIDDLE, VB_WRITE_LAST_IMM},
    {VB_WRITE_FIRST, 16384, VB_WRITE_FIRST, VB_WRITE_MIDDLE, VB_WRITE_MIDDLE},
    {VB_WRITE_LAST_IMM, 1025, VB_WRITE_MIDDLE, 0, VB_WRITE_LAST_IMM},
    {VB_READ_RESP_ONLY, 5000, VB_READ_RESP_FIRST, VB_READ_RESP_MIDDLE, VB_READ_RESP_LAST},
    {VB_READ_RESP_FIRST, 16384, VB_READ_RESP_FIRST, VB_READ_RESP_MIDDLE, VB_READ_RESP_MIDDLE},
    {VB_READ_RESP_LAST, 5000, VB_READ_RESP_MIDDLE, VB_READ_RESP_MIDDLE, VB_READ_RESP_LAST},
};

static void check_split(const struct split *s, uint8_t family)
{
	const struct vb_pkt p = {.opcode = (uint8_t)(family | s->op),
				 .psn = 0xfffffe, /* PSNs go round */
				 .ack_req = true,
				 .solicited = true,
				 .payload = bytes,
				 .payload_len = s->len,
				 .va = 0x1000,
				 .dma_len = 99999};
	uint32_t n = vb_frame_parts(&p, 1024), sum = 0;

	assert_int_equal(n, (s->len + 1023) / 1024);
	assert_int_equal(vb_frame_psns(&p, 1024), n);
	for (uint32_t i = 0; i < n; i++) {
		uint8_t want = !i ? s->first : i == n - 1 ? s->last : s->middle;
		struct vb_pkt part;

		vb_frame_part(&part, &p, 1024, i);
		assert_int_equal(part.opcode, family | want);
		assert_ptr_equal(part.op, &vb_opcodes[part.opcode]);
		assert_int_equal(part.psn, (0xfffffe + i) & 0xffffff);
		assert_ptr_equal(part.payload, bytes + sum);
		assert_int_equal(part.payload_len, i == n - 1 ? s->len - sum : 1024);
		assert_int_equal(part.pad, (4 - part.payload_len % 4) % 4);
		assert_int_equal(part.ack_req, i == n - 1);
		assert_int_equal(part.solicited, i == n - 1);
		assert_int_equal(part.dma_len, 99999);
		sum += part.payload_len;
	}
	assert_int_equal(sum, s->len);
}

static void splitting(void **state)
{
	(void)state;
	for (size_t i = 0; i < sizeof splits / sizeof splits[0]; i++) {
		check_split(&splits[i], VB_FAMILY_RC);
		check_split(&splits[i], VB_FAMILY_XRC);
		if (vb_opcodes[VB_FAMILY_UC | splits[i].op].name)
			check_split(&splits[i], VB_FAMILY_UC);
	}
}

/* What fits stays as it is. */
static void one_is_one(void **state)
{
	static const uint32_t lengths[] = {0, 1, 1023, 1024};
	struct vb_pkt p = {.opcode = VB_SEND_ONLY_IMM, .psn = 7, .payload = bytes, .solicited = true}, part;

	(void)state;
	for (size_t i = 0; i < sizeof lengths / sizeof lengths[0]; i++) {
		p.payload_len = lengths[i];
		assert_int_equal(vb_frame_parts(&p, 1024), 1);
		vb_frame_part(&part, &p, 1024, 0);
		assert_memory_equal(&part, &p, sizeof p);
	}
	p = (struct vb_pkt){.opcode = VB_READ_REQUEST, .dma_len = 2049};
	assert_int_equal(vb_frame_parts(&p, 1024), 1);
	assert_int_equal(vb_frame_psns(&p, 1024), 3); /* as many as its answer has packets */
	p.dma_len = 0;
	assert_int_equal(vb_frame_psns(&p, 1024), 1);
	p = (struct vb_pkt){.opcode = VB_ATOMIC_WRITE, .payload = bytes, .payload_len = 8};
	assert_int_equal(vb_frame_psns(&p, 256), 1);
	p = (struct vb_pkt){.opcode = VB_ACK, .payload_len = 3000}; /* a NAK's facts, on this host */
	assert_int_equal(vb_frame_parts(&p, 1024), 1);
}

/* ---- the file ---- */

static char path[64];

static int temporary(void **state)
{
	int fd;

	(void)state;
	snprintf(path, sizeof path, "/tmp/frame.XXXXXX");
	fd = mkstemp(path);
	return fd < 0 || close(fd);
}

static int remove_it(void **state)
{
	char name[80];

	(void)state;
	for (int i = 0; i < 3; i++) {
		snprintf(name, sizeof name, "%s.%d", path, i);
		unlink(name);
	}
	return unlink(path);
}

static size_t contents(const char *name, uint8_t *to, size_t size)
{
	FILE *f = fopen(name, "re");
	size_t n;

	assert_non_null(f);
	n = fread(to, 1, size, f);
	fclose(f);
	return n;
}

static struct vb_pcapng *writer(struct vb_pcapng_cfg cfg)
{
	struct vb_pcapng *w;

	cfg.path = path;
	cfg.interface = "eth";
	cfg.application = "test 1";
	assert_int_equal(vb_pcapng_open(&w, &cfg), 0);
	return w;
}

static const uint32_t section[] = {0x0a0d0d0a, 44,	   0x1a2b3c4d,	1,
				   0xffffffff, 0xffffffff, 6 << 16 | 4, 0x74736574 /* "test 1" */,
				   0x3120,     0,	   44};
static const uint32_t interface[] = {1, 40, 1, 6, 3 << 16 | 2, 0x687465 /* "eth" */, 1 << 16 | 9, 9, 0, 40};
enum { BEGINNING = sizeof section + sizeof interface };

static void check_beginning(const uint8_t *at, uint32_t snap)
{
	uint32_t want[10];

	_Static_assert(sizeof want == sizeof interface, "all of it");
	memcpy(want, interface, sizeof want);
	want[3] = snap;
	assert_memory_equal(at, section, sizeof section);
	assert_memory_equal(at + sizeof section, want, sizeof want);
}

static void the_file(void **state)
{
	/* 8 bytes cut to the snap length, which is 6; a comment of 5; then one that is whole, without. */
	static const uint32_t packets[] = {6,
					   56,
					   0,
					   0x18700000,
					   0x3b9aca01,
					   6,
					   8,
					   0x04030201,
					   0x0605,
					   5 << 16 | 1,
					   0x6b6e6968 /* "hinkt" */,
					   0x74,
					   0,
					   56,
					   6,
					   36,
					   0,
					   0,
					   7,
					   4,
					   4,
					   0x04030201,
					   36};
	static const uint8_t frame[8] = {1, 2, 3, 4, 5, 6, 7, 8};
	struct vb_pcapng *w = writer((struct vb_pcapng_cfg){.snap = 6, .fresh = true});
	uint8_t got[512];

	(void)state;
	assert_int_equal(contents(path, got, sizeof got),
			 BEGINNING); /* a reader may follow from the start on */
	assert_int_equal(vb_pcapng_packet(w, 0x187000003b9aca01, frame, 8, 8, "hinkt"), 0);
	assert_int_equal(vb_pcapng_packet(w, 7, frame, 4, 4, NULL), 0);
	assert_int_equal(contents(path, got, sizeof got), BEGINNING); /* they are in the buffer */
	assert_int_equal(vb_pcapng_flush(w), 0);
	assert_int_equal(contents(path, got, sizeof got), BEGINNING + sizeof packets);
	check_beginning(got, 6);
	assert_memory_equal(got + BEGINNING, packets, sizeof packets);
	assert_int_equal(vb_pcapng_close(w), 0);
	assert_int_equal(contents(path, got, sizeof got), BEGINNING + sizeof packets);
	/* another one appends a section, and the first is as it was */
	w = writer((struct vb_pcapng_cfg){.snap = 6});
	assert_int_equal(vb_pcapng_packet(w, 7, frame, 4, 4, ""), 0);
	assert_int_equal(vb_pcapng_close(w), 0);
	assert_int_equal(contents(path, got, sizeof got), 2 * BEGINNING + sizeof packets + 36);
	assert_memory_equal(got + BEGINNING, packets, sizeof packets);
	check_beginning(got + BEGINNING + sizeof packets, 6);
}

/* Follows the blocks, each of whose lengths stands twice; returns how many packets there are. */
static int walk(const char *name)
{
	static uint8_t got[1 << 20];
	size_t n = contents(name, got, sizeof got), at = 0;
	uint32_t head[2], tail;
	int packets = 0;

	check_beginning(got, 0);
	while (at < n) {
		assert_true(at + 12 <= n);
		memcpy(head, got + at, sizeof head);
		assert_true(head[1] % 4 == 0 && head[1] >= 12 && at + head[1] <= n);
		memcpy(&tail, got + at + head[1] - 4, sizeof tail);
		assert_int_equal(tail, head[1]);
		packets += head[0] == 6;
		at += head[1];
	}
	return packets;
}

/* More than the buffer holds, with comments that are too long, of two-byte characters. */
static void many(void **state)
{
	struct vb_pcapng *w = writer((struct vb_pcapng_cfg){.fresh = true});
	char comment[4002] = "";

	(void)state;
	for (int i = 0; i < 2000; i++)
		memcpy(comment + 2 * i, "\xc3\xa4", 3);
	for (int i = 0; i < 200; i++)
		assert_int_equal(
		    vb_pcapng_packet(w, 0, bytes, (size_t)i * 7, (size_t)i * 7, comment + (i & 1)), 0);
	assert_int_equal(vb_pcapng_packet(w, 0, bytes, sizeof bytes, sizeof bytes, comment), 0);
	assert_int_equal(vb_pcapng_close(w), 0);
	assert_int_equal(walk(path), 201);
}

/* A comment that is too long ends with a whole character. */
static void long_comments(void **state)
{
	struct vb_pcapng *w = writer((struct vb_pcapng_cfg){.fresh = true});
	char comment[1200] = "x";
	uint8_t got[4096];
	uint16_t len;

	(void)state;
	for (int i = 0; i < 580; i++)
		memcpy(comment + 1 + 2 * i, "\xc3\xa4", 3);
	assert_int_equal(vb_pcapng_packet(w, 0, bytes, 4, 4, comment + 1), 0);
	assert_int_equal(vb_pcapng_packet(w, 0, bytes, 4, 4, comment), 0);
	assert_int_equal(vb_pcapng_close(w), 0);
	assert_int_equal(contents(path, got, sizeof got), BEGINNING + 2 * (28 + 4 + 4 + 1024 + 4 + 4));
	memcpy(&len, got + BEGINNING + 34, 2);
	assert_int_equal(len, 1024);
	memcpy(&len, got + BEGINNING + 28 + 4 + 4 + 1024 + 4 + 4 + 34, 2);
	assert_int_equal(len, 1023);
}

static void a_ring(void **state)
{
	struct vb_pcapng_cfg cfg = {.path = path, .interface = "eth", .application = "test 1", .files = 3};
	struct vb_pcapng *w;
	struct stat st;
	char name[80];
	int sum = 0;

	(void)state;
	cfg.file_size = VB_PCAPNG_SMALLEST - 1;
	assert_int_equal(vb_pcapng_open(&w, &cfg), EINVAL);
	cfg.file_size = VB_PCAPNG_SMALLEST;
	assert_int_equal(vb_pcapng_open(&w, &cfg), 0);
	for (int i = 0; i < 1000; i++) /* 1,056 bytes each: 61 in a file, so 16 files and 24 packets */
		assert_int_equal(vb_pcapng_packet(w, 0, bytes, 1024, 1024, NULL), 0);
	assert_int_equal(vb_pcapng_close(w), 0);
	for (int i = 0; i < 3; i++) {
		snprintf(name, sizeof name, "%s.%d", path, i);
		assert_int_equal(stat(name, &st), 0);
		assert_true(st.st_size <= VB_PCAPNG_SMALLEST);
		sum += walk(name);
	}
	assert_int_equal(sum, 61 + 61 + 24);
}

static void what_is_no_file(void **state)
{
	struct vb_pcapng_cfg cfg = {.path = "/dev/null", .interface = "", .application = ""};
	struct vb_pcapng *w;

	(void)state;
	assert_int_equal(vb_pcapng_open(&w, &cfg), EINVAL);
	cfg.path = "/nowhere/at/all";
	assert_int_equal(vb_pcapng_open(&w, &cfg), ENOENT);
}

/* A file that may not grow: it ends with a whole block, and what did not get there is counted. */
static void no_more_room(void **state)
{
	struct vb_pcapng *w = writer((struct vb_pcapng_cfg){.fresh = true});
	struct rlimit old, small;
	int packets;

	(void)state;
	signal(SIGXFSZ, SIG_DFL); /* which ends a process */
	assert_int_equal(getrlimit(RLIMIT_FSIZE, &old), 0);
	assert_int_equal(vb_pcapng_packet(w, 0, bytes, 100, 100, NULL), 0);
	assert_int_equal(vb_pcapng_flush(w), 0);
	small = (struct rlimit){2000, old.rlim_max};
	assert_int_equal(setrlimit(RLIMIT_FSIZE, &small), 0);
	for (int i = 0; i < 20; i++)
		assert_int_equal(vb_pcapng_packet(w, 0, bytes, 100, 100, NULL), 0);
	assert_int_equal(vb_pcapng_flush(w), EFBIG);
	assert_int_equal(setrlimit(RLIMIT_FSIZE, &old), 0);
	assert_int_equal(vb_pcapng_packet(w, 0, bytes, 100, 100, NULL), EFBIG);
	assert_int_equal(vb_pcapng_close(w), EFBIG);
	packets = walk(path);
	assert_int_equal(packets, 1);
}

/* The child of a fork() writes nothing of what its parent has in the buffer, nor anything else. */
static void forked(void **state)
{
	struct vb_pcapng *w = writer((struct vb_pcapng_cfg){.fresh = true});
	int status;
	pid_t pid;

	(void)state;
	assert_int_equal(vb_pcapng_packet(w, 0, bytes, 100, 100, NULL), 0);
	pid = fork();
	if (!pid) {
		vb_pcapng_forked(w);
		_exit(vb_pcapng_packet(w, 0, bytes, 9, 9, NULL) != EIO || vb_pcapng_close(w) != EIO);
	}
	assert_int_equal(waitpid(pid, &status, 0), pid);
	assert_int_equal(status, 0);
	assert_int_equal(vb_pcapng_close(w), 0);
	assert_int_equal(walk(path), 1);
}

/* The descriptor by which this process writes to the file. */
static int writers(void)
{
	char name[64], to[128];
	ssize_t n;

	for (int fd = 3; fd < 1024; fd++) {
		snprintf(name, sizeof name, "/proc/self/fd/%d", fd);
		n = readlink(name, to, sizeof to - 1);
		if (n > 0 && (size_t)n == strlen(path) && !memcmp(to, path, (size_t)n))
			return fd;
	}
	return -1;
}

/* The program has closed the descriptor, and its number is a file of its own. */
static void closed(void **state)
{
	struct vb_pcapng *w;
	struct stat st;
	int next, fd;

	(void)state;
	w = writer((struct vb_pcapng_cfg){.fresh = true});
	next = writers();
	assert_true(next > 2);
	fd = memfd_create("mine", 0);
	assert_int_equal(dup2(fd, next), next);
	assert_int_equal(vb_pcapng_packet(w, 0, bytes, 100, 100, NULL), 0);
	assert_int_equal(vb_pcapng_flush(w), EIO);
	assert_int_equal(vb_pcapng_close(w), EIO);
	assert_int_equal(fstat(next, &st), 0);
	assert_int_equal(st.st_size, 0);
	close(next);
	close(fd);
}

/* One that is to be alone finds the other; one that is gone is in nobody's way. */
static void alone(void **state)
{
	struct vb_pcapng_cfg cfg = {.path = path, .interface = "eth", .application = "test 1", .alone = true};
	struct vb_pcapng *first, *second;
	int status;
	pid_t pid;

	(void)state;
	pid = fork();
	if (!pid) {
		if (!vb_pcapng_open(&first, &cfg))
			raise(SIGKILL);
		_exit(1);
	}
	assert_int_equal(waitpid(pid, &status, 0), pid);
	assert_true(WIFSIGNALED(status));
	assert_int_equal(vb_pcapng_open(&first, &cfg), 0);
	assert_int_equal(vb_pcapng_open(&second, &cfg), EBUSY);
	assert_int_equal(vb_pcapng_close(first), 0);
	assert_int_equal(vb_pcapng_open(&second, &cfg), 0);
	assert_int_equal(vb_pcapng_close(second), 0);
	assert_int_equal(walk(path), 0);
}

/* A writer that was killed may have left half a block; other files are left alone. */
static void half_a_block(void **state)
{
	struct vb_pcapng_cfg cfg = {.path = path, .interface = "eth", .application = "test 1", .alone = true};
	struct vb_pcapng *w;
	struct stat st;
	uint8_t got[64];
	FILE *f;

	(void)state;
	for (off_t less = 0; less <= 36; less++) {
		w = writer((struct vb_pcapng_cfg){.fresh = true});
		assert_int_equal(vb_pcapng_packet(w, 0, bytes, 4, 4, NULL), 0);
		assert_int_equal(vb_pcapng_packet(w, 0, bytes, 4, 4, NULL), 0);
		assert_int_equal(vb_pcapng_close(w), 0);
		assert_int_equal(stat(path, &st), 0);
		assert_int_equal(truncate(path, st.st_size - less), 0);
		assert_int_equal(vb_pcapng_open(&w, &cfg), 0);
		assert_int_equal(vb_pcapng_packet(w, 0, bytes, 4, 4, NULL), 0);
		assert_int_equal(vb_pcapng_close(w), 0);
		assert_int_equal(walk(path), less ? 2 : 3);
	}
	f = fopen(path, "we");
	assert_non_null(f);
	assert_int_equal(fputs("no capture, but mine", f), 1);
	fclose(f);
	assert_int_equal(vb_pcapng_open(&w, &cfg), EINVAL);
	assert_int_equal(contents(path, got, sizeof got), 20);
}

/* Where a frame is longer than what is kept of it, nothing behind that is read, and its length is told. */
static void cut(void **state)
{
	const struct vb_frame_ends v4 = {.sgid = vb_gid_of(v4_from), .dgid = vb_gid_of(v4_to)};
	const struct vb_frame_ends v6 = {.sgid = vb_gid_of(v6_from), .dgid = vb_gid_of(v6_group)};
	struct vb_pkt p = {
	    .opcode = VB_FAMILY_RC | VB_SEND_ONLY, .payload = bytes, .payload_len = 1023, .pkey = 0xffff};
	uint8_t whole[VB_FRAME_MAX], to[VB_FRAME_MAX];
	size_t len, n;

	(void)state;
	n = put(whole, &v4, &p);
	assert_int_equal(n, 14 + 20 + 8 + 12 + 1024 + 4);
	assert_int_equal(vb_frame_cut(to, &v4, &p, n, &len), n);
	assert_int_equal(len, n);
	assert_memory_equal(to, whole, n);
	for (size_t most = 0; most < n; most += 3) {
		memset(to, 0xee, sizeof to);
		assert_int_equal(vb_frame_cut(to, &v4, &p, most, &len), most < n - 4 ? most : n - 4);
		assert_int_equal(len, n);
		assert_memory_equal(to, whole, most < n - 4 ? most : n - 4);
		assert_int_equal(to[most < 54 ? 54 : most < n - 4 ? most : n - 4], 0xee);
	}
	assert_int_equal(vb_frame_cut(to, &v6, &p, 200, &len), 200);
	assert_int_equal(len, n + 20);
	assert_true(to[60] == 0xff && to[61] == 0xff);
	/* what has no payload is none, whatever comes with it */
	p.opcode = VB_FAMILY_RC | VB_ACK;
	assert_int_equal(vb_frame_cut(to, &v4, &p, 200, &len), 62);
	assert_int_equal(len, 62);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
	    cmocka_unit_test(icrcs_of_others),
	    cmocka_unit_test(over_ipv4),
	    cmocka_unit_test(over_ipv6_to_a_group),
	    cmocka_unit_test(of_a_network),
	    cmocka_unit_test(of_a_network_over_ipv6),
	    cmocka_unit_test(no_checksum_is_zero),
	    cmocka_unit_test(sizes),
	    cmocka_unit_test(source_ports),
	    cmocka_unit_test(macs),
	    cmocka_unit_test(notes),
	    cmocka_unit_test(splitting),
	    cmocka_unit_test(one_is_one),
	    cmocka_unit_test_setup_teardown(the_file, temporary, remove_it),
	    cmocka_unit_test_setup_teardown(many, temporary, remove_it),
	    cmocka_unit_test_setup_teardown(long_comments, temporary, remove_it),
	    cmocka_unit_test_setup_teardown(a_ring, temporary, remove_it),
	    cmocka_unit_test(what_is_no_file),
	    cmocka_unit_test_setup_teardown(no_more_room, temporary, remove_it),
	    cmocka_unit_test_setup_teardown(forked, temporary, remove_it),
	    cmocka_unit_test_setup_teardown(closed, temporary, remove_it),
	    cmocka_unit_test_setup_teardown(alone, temporary, remove_it),
	    cmocka_unit_test_setup_teardown(half_a_block, temporary, remove_it),
	    cmocka_unit_test(cut),
	};

	return cmocka_run_group_tests_name("frame", tests, NULL, NULL);
}
