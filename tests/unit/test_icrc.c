/* CRCs and ICRCs: against a CRC bit by bit, against packets of other stacks, and the IPv4 identification that
 * an ICRC tells. */
#include <endian.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

#include "base/crc.h"
#include "iba/icrc.h"
#include "iba/pkt.h"

enum { LONGEST = 4200, UDP_LEN = 8 };

static uint64_t rng = 1;

static uint64_t chance(void)
{
	uint64_t z = rng += 0x9e3779b97f4a7c15ull; /* splitmix64 */

	z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9ull;
	z = (z ^ z >> 27) * 0x94d049bb133111ebull;
	return z ^ z >> 31;
}

static void some(uint8_t *to, size_t n)
{
	for (size_t i = 0; i < n; i++)
		to[i] = (uint8_t)(chance() >> 32);
}

static uint32_t bit_by_bit(uint32_t before, const uint8_t *at, size_t n)
{
	uint32_t c = ~before;

	for (; n; n--, at++) {
		c ^= *at;
		for (unsigned i = 0; i < 8; i++)
			c = c >> 1 ^ (c & 1 ? 0xedb88320u : 0);
	}
	return ~c;
}

static void crcs_of_all_lengths(void **state)
{
	static uint8_t b[LONGEST + 16];

	(void)state;
	some(b, sizeof b);
	assert_int_equal(vb_crc(0, (const uint8_t *)"123456789", 9), 0xcbf43926); /* of every table of CRCs */
	for (uint32_t n = 0; n <= LONGEST; n += n < 400 ? 1 : 97)
		for (uint32_t off = 0; off < 16; off += n < 150 ? 1 : 5) {
			uint32_t before = (uint32_t)chance(), right = bit_by_bit(before, b + off, n);

			assert_int_equal(vb_crc(before, b + off, n), right);
			assert_int_equal(vb_crc_by_table(before, b + off, n), right);
		}
}

/* As if bits of the first 8 bytes were set. */
static void crcs_with_ones(void **state)
{
	static uint8_t b[LONGEST], set[LONGEST];

	(void)state;
	some(b, sizeof b);
	for (uint32_t n = 8; n <= LONGEST; n += n < 400 ? 1 : 97) {
		uint64_t ones = chance(), little = htole64(ones);
		uint32_t before = (uint32_t)chance();

		memcpy(set, b, n);
		for (unsigned i = 0; i < 8; i++)
			set[i] |= ((uint8_t *)&little)[i];
		assert_int_equal(vb_crc_with(before, ones, b, n), bit_by_bit(before, set, n));
	}
}

/* Back over n bytes, of each length that is kept and some that are not. */
static void back_over_zeros(void **state)
{
	static const uint8_t zero;
	uint32_t v = 0x12345678, moved = v;

	(void)state;
	for (uint32_t n = 0; n < 5000; n++) {
		assert_int_equal(vb_crc_times(moved, vb_crc_back(n)), v);
		moved = ~vb_crc_by_table(~moved, &zero, 1);
	}
}

/* A packet of IPv4 as it stands on a wire, behind Ethernet. */
struct packet {
	uint8_t b[20 + UDP_LEN + LONGEST + 4];
	size_t len; /* of transport headers and payload */
};

static uint32_t icrc_of(const struct packet *p, bool zero)
{
	uint8_t ip[20];

	memcpy(ip, p->b, 20);
	if (zero)
		ip[4] = ip[5] = 0;
	return vb_icrc_make(ip, 20, p->b + 20, p->b + 28, VB_BTH_LEN, p->b + 28 + VB_BTH_LEN,
			    p->len - VB_BTH_LEN);
}

static uint32_t brought(const struct packet *p)
{
	const uint8_t *at = p->b + 28 + p->len;

	return at[0] | (uint32_t)at[1] << 8 | (uint32_t)at[2] << 16 | (uint32_t)at[3] << 24;
}

static void make(struct packet *p, size_t len, uint16_t id)
{
	uint32_t sum;

	some(p->b, 28 + len);
	p->b[0] = 0x45;
	p->b[4] = (uint8_t)(id >> 8);
	p->b[5] = (uint8_t)id;
	p->len = len;
	sum = icrc_of(p, false);
	for (unsigned i = 0; i < 4; i++)
		p->b[28 + len + i] = (uint8_t)(sum >> 8 * i);
}

static bool accepted(const struct packet *p, uint16_t *id)
{
	return vb_icrc_recover(brought(p), icrc_of(p, true), p->len, id);
}

/* All identifications, and all lengths that a packet may have, of a BTH and 4 bytes to more than the largest.
 */
static void every_identification_is_recovered(void **state)
{
	static struct packet p;
	uint16_t got;

	(void)state;
	for (uint32_t id = 0; id <= UINT16_MAX; id++) {
		make(&p, 16 + 4 * (id % 20), (uint16_t)id);
		assert_true(accepted(&p, &got));
		assert_int_equal(got, id);
	}
	for (uint32_t len = 16; len <= LONGEST; len++)
		for (unsigned i = 0; i < 4; i++) {
			uint16_t id = i == 0 ? 0 : i == 1 ? UINT16_MAX : (uint16_t)chance();

			make(&p, len, id);
			assert_true(accepted(&p, &got));
			assert_int_equal(got, id);
		}
}

/* What the ICRC covers, but the identification; and the ICRC itself. */
static bool is_covered(size_t at)
{
	return at != 1 && at != 4 && at != 5 && at != 8 && at != 10 && at != 11 && at != 26 && at != 27 &&
	       at != 32;
}

/* One of 65,536 passes that is wrong: of a million about 15. */
static void corrupted_packets(void **state)
{
	unsigned passed = 0;
	struct packet p;
	uint16_t id;

	(void)state;
	for (unsigned n = 0; n < 1000000; n++) {
		size_t len = 16 + 4 * (chance() % 16);

		if (n % 64 == 0)
			make(&p, len, (uint16_t)chance());
		struct packet bad;

		memcpy(bad.b, p.b, 28 + p.len + 4);
		bad.len = p.len;
		for (unsigned flips = 1 + (unsigned)(chance() % 8); flips;) {
			size_t at = chance() % (28 + p.len + 4);

			if (!is_covered(at))
				continue;
			bad.b[at] ^= (uint8_t)(1 + chance() % 255);
			flips--;
		}
		passed += memcmp(bad.b, p.b, 28 + p.len + 4) && accepted(&bad, &id);
	}
	if (!passed || passed > 35)
		fail_msg("%u of 1000000 corrupted packets passed", passed);
}

/* Frames of Linux' soft-RoCE (rdma_rxe of 6.1), from the IPv4 header on, as its far end saw them on a veth:
 * VECTORS */
static const struct {
	const char *what;
	uint16_t id, len;
	uint8_t b[128];
} theirs[] = {
    {"a SEND of UC",
     0x0478,
     32, /* soft-RoCE's, of Wireshark's sample captures */
     {0x45, 0x01, 0x00, 0x40, 0x04, 0x78, 0x40, 0x00, 0x40, 0x11, 0xb4, 0xd5, 0xc0, 0xa8, 0x00, 0x07,
      0xc0, 0xa8, 0x00, 0x07, 0xc0, 0x00, 0x12, 0xb7, 0x00, 0x2c, 0xac, 0xa2, 0x24, 0x60, 0xff, 0xff,
      0x00, 0x00, 0x00, 0xd3, 0x00, 0xcf, 0x17, 0x10, 'F',  '0',  0x81, 0x8b, 0xe2, 0x89, '5',	0xd9,
      0x0e, 0x9a, 0x95, 'P',  'T',  0x01, 0xbe, 0x88, '^',  'P',  0x00, 0x00, 0x78, 0xf3, 0x53, 0xf3}},
    {"a CNP of a ConnectX-4", 0x718c, 28, {0x45, 0xc2, 0x00, 0x3c, 0x71, 0x8c, 0x40, 0x00, 0x40, 0x11,
					   0x91, 0x61, 0x0a, 0x00, 0x11, 0x01, 0x0a, 0x00, 0x12, 0x01,
					   0x00, 0x00, 0x12, 0xb7, 0x00, 0x28, 0x00, 0x00, 0x81, 0x00,
					   0xff, 0xff, 0x40, 0x00, 0x01, 0x18, 0x00, 0x00, 0x00, 0x00,
					   0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00,
					   0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x82, 0xfd, 0x00, 0x2a}},
};

static void packets_of_others(void **state)
{
	struct packet p;
	uint16_t id;

	(void)state;
	for (unsigned i = 0; i < sizeof theirs / sizeof *theirs; i++) {
		memcpy(p.b, theirs[i].b, sizeof theirs[i].b);
		p.len = theirs[i].len;
		if (!accepted(&p, &id) || id != theirs[i].id)
			fail_msg("%s: identification 0x%04x", theirs[i].what, id);
		p.b[40] ^= 1; /* it is not accepted for any reason */
		assert_false(accepted(&p, &id));
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
	    cmocka_unit_test(crcs_of_all_lengths), cmocka_unit_test(crcs_with_ones),
	    cmocka_unit_test(back_over_zeros),	   cmocka_unit_test(every_identification_is_recovered),
	    cmocka_unit_test(corrupted_packets),   cmocka_unit_test(packets_of_others),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
