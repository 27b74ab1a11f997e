/* The header in front of every datagram, byte by byte: RFC 791, RFC 8200, IBTA 8.3 (rule 24). */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>

#include "iba/grh.h"

static const uint8_t v4_from[16] = {[10] = 0xff, 0xff, 192, 0, 2, 1};
static const uint8_t v4_to[16] = {[10] = 0xff, 0xff, 198, 51, 100, 7};
static const uint8_t v6_from[16] = {0xfe, 0x80, [15] = 1};
static const uint8_t v6_to[16] = {0x20, 0x01, 0x0d, 0xb8, [15] = 9};

static void rule_24_ipv4(void **state)
{
	/* 20 bytes of this header, 8 of UDP's, 24 of transport headers and payload, 4 of checksum: 56.  The
	 * sum of the words is 0x4512 + 0x0038 + 0x4000 + 0x4011 + 0xc000 + 0x0201 + 0xc633 + 0x6407 =
	 * 0x2ad96, with its carry 0xb198, inverted 0x4e67. */
	static const uint8_t want[20] = {0x45, 0x12, 0,	  56, 0, 0, 0x40, 0,  64,  17,
					 0x4e, 0x67, 192, 0,  2, 1, 198,  51, 100, 7};
	const struct vb_grh g = {.sgid = vb_gid_of(v4_from),
				 .dgid = vb_gid_of(v4_to),
				 .route = vb_route(VB_GRH_WORD(1, 0x12, 0xabcde), 64, 7),
				 .length = 24};
	uint8_t to[VB_GRH_LEN];

	(void)state;
	memset(to, 0xee, sizeof to);
	vb_grh_put(to, &g);
	for (int i = 0; i < 20; i++)
		assert_int_equal(to[i], 0);
	assert_memory_equal(to + 20, want, 20);
}

/* What an address says of the hop limit stands there, and counts in the checksum. */
static void rule_24_ipv4_hops(void **state)
{
	for (unsigned hops = 0; hops < 256; hops++) {
		const struct vb_grh g = {.sgid = vb_gid_of(v4_from),
					 .dgid = vb_gid_of(v4_to),
					 .route = vb_route(VB_GRH_WORD(1, 0x12, 0), (uint8_t)hops, 15),
					 .length = 24};
		uint8_t to[VB_GRH_LEN];
		uint32_t sum = 0;

		(void)state;
		vb_grh_put(to, &g);
		assert_int_equal(to[20 + 8], hops);
		for (unsigned i = 20; i < 40; i += 2)
			sum += (uint32_t)to[i] << 8 | to[i + 1];
		assert_int_equal((sum & 0xffff) + (sum >> 16), 0xffff);
	}
}

static void rule_24_ipv6(void **state)
{
	struct vb_grh g = {.sgid = vb_gid_of(v6_from),
			   .dgid = vb_gid_of(v6_to),
			   .route = vb_route(VB_GRH_WORD(3, 0x12, 0xabcde), 64, 0),
			   .length = 24};
	uint8_t to[VB_GRH_LEN];

	(void)state;
	vb_grh_put(to, &g);
	assert_memory_equal(to, ((const uint8_t[]){0x61, 0x2a, 0xbc, 0xde, 0, 36, 17, 64}), 8);
	assert_memory_equal(to + 8, v6_from, 16);
	assert_memory_equal(to + 24, v6_to, 16);
	/* no UDP on InfiniBand, whatever the GIDs look like */
	g.infiniband = true;
	vb_grh_put(to, &g);
	assert_memory_equal(to, ((const uint8_t[]){0x61, 0x2a, 0xbc, 0xde, 0, 28, 0x1b, 64}), 8);
	g.route.hops = 255;
	vb_grh_put(to, &g);
	assert_memory_equal(to, ((const uint8_t[]){0x61, 0x2a, 0xbc, 0xde, 0, 28, 0x1b, 255}), 8);
	g.sgid = vb_gid_of(v4_from);
	vb_grh_put(to, &g);
	assert_int_equal(to[0] >> 4, 6);
}

static void words(void **state)
{
	uint32_t w = VB_GRH_WORD(2, 0xff, 0xfffff);

	(void)state;
	assert_int_equal(VB_GRH_SGID(w), 2);
	assert_true(w & VB_GRH_GLOBAL);
	assert_int_equal(w >> 31, 0); /* there an ACK would say so */
	assert_int_equal(VB_GRH_WORD(0, 0x1ff, 0x1fffff), VB_GRH_WORD(0, 0xff, 0xfffff));
}

static void which_gids_are_ipv4(void **state)
{
	uint8_t gid[16];

	(void)state;
	assert_true(vb_gid_is_ipv4(vb_gid_of(v4_from)));
	assert_false(vb_gid_is_ipv4(vb_gid_of(v6_from)));
	for (unsigned i = 0; i < 12; i++) {
		memcpy(gid, v4_from, 16);
		gid[i] ^= 1;
		assert_false(vb_gid_is_ipv4(vb_gid_of(gid)));
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
	    cmocka_unit_test(rule_24_ipv4),	   cmocka_unit_test(rule_24_ipv4_hops),
	    cmocka_unit_test(rule_24_ipv6),	   cmocka_unit_test(words),
	    cmocka_unit_test(which_gids_are_ipv4),
	};

	return cmocka_run_group_tests_name("grh", tests, NULL, NULL);
}
