/* PSNs of a made-up stream of packets of the path MTU, against a list of every packet that there would be. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>

#include <stdlib.h>
#include <string.h>

#include "iba/pkt.h"
#include "iba/psns.h"

enum { WIRE = 16, MOST = 200000 }; /* packets of the stream for one full one of the wire */

/* For each PSN of the wire, from the first: what it is in the stream. */
static struct vb_psn_made want[MOST];
static uint32_t count, begins, made, messages;
static struct vb_psns s;

static void begin(uint32_t psn)
{
	memset(&s, 0, sizeof s);
	begins = made = psn;
	count = messages = 0;
}

static uint32_t psn_of(uint32_t i)
{
	return vb_psn_add(begins, i);
}

static void packet(uint32_t packets, bool ends)
{
	assert_int_equal(vb_psns_take(&s, psn_of(count), 1, packets, WIRE, ends), made);
	want[count++] = (struct vb_psn_made){made, vb_psn_add(made, packets - 1), messages, messages + ends,
					     messages + ends};
	made = vb_psn_add(made, packets);
	messages += ends;
}

/* A READ, or a SEND that is lent: n packets of the wire, at once. */
static void request(uint32_t packets, bool ends)
{
	uint32_t n = (packets + WIRE - 1) / WIRE;

	assert_int_equal(vb_psns_take(&s, psn_of(count), n, packets, WIRE, ends), made);
	for (uint32_t k = 0; k < n; k++) {
		uint32_t here = k + 1 < n ? WIRE : packets - k * WIRE;

		want[count++] =
		    (struct vb_psn_made){vb_psn_add(made, k * WIRE), vb_psn_add(made, k * WIRE + here - 1),
					 messages, messages + (k + 1 == n && ends), messages + ends};
	}
	made = vb_psn_add(made, packets);
	messages += ends;
}

static void directly(uint32_t packets)
{
	assert_int_equal(vb_psns_take(&s, psn_of(count), 0, packets, 0, true), made);
	made = vb_psn_add(made, packets);
	messages++;
}

static void check(uint32_t from)
{
	for (uint32_t i = from; i < count; i++) {
		struct vb_psn_made m = vb_psns_find(&s, psn_of(i));

		assert_int_equal(m.first, want[i].first);
		assert_int_equal(m.last, want[i].last);
		assert_int_equal(m.before, want[i].before);
		assert_int_equal(m.msn, want[i].msn);
		assert_int_equal(m.whole, want[i].whole);
		/* what goes again has what it had */
		assert_int_equal(vb_psns_take(&s, psn_of(i), 1, 1, WIRE, true), want[i].first);
	}
}

static void of_each_kind(void **state)
{
	(void)state;
	begin(0xfffff0); /* they go round */
	packet(1, true);
	packet(WIRE, false);
	packet(WIRE, false);
	packet(3, true);
	directly(100);
	packet(1, true);
	request(3 * WIRE + 1, true);
	request(1, true);
	request(2 * WIRE, false);
	request(5, true);
	packet(WIRE, true);
	packet(WIRE, true);
	directly(1);
	check(0);
	assert_true(messages > 8);
}

/* What is of one size is one run, however many; of others as many are known as there are runs. */
static void long_ones(void **state)
{
	(void)state;
	begin(7);
	for (int i = 0; i < 100000; i++)
		packet(1, true);
	check(0);
	for (int i = 0; i < 1000; i++)
		packet(i % 2 ? 2 : 5, true);
	check(count - VB_PSN_RUNS);
	/* those before are reckoned back */
	assert_int_equal(vb_psns_find(&s, psn_of(count - VB_PSN_RUNS - 1)).first,
			 want[count - VB_PSN_RUNS].first - 1);
}

/* A packet that was not seen counts as one, so that what follows is known again. */
static void lost(void **state)
{
	(void)state;
	begin(10);
	assert_int_equal(vb_psns_find(&s, 99).first, 99); /* nothing is known yet */
	assert_int_equal(vb_psns_take(&s, 10, 1, 4, WIRE, true), 10);
	assert_int_equal(vb_psns_take(&s, 12, 1, 4, WIRE, true), 15);
	assert_int_equal(vb_psns_take(&s, 13, 1, 4, WIRE, true), 19);
	assert_int_equal(vb_psns_find(&s, 12).last, 18);
	assert_int_equal(vb_psns_find(&s, 14).first, 23);
	assert_int_equal(vb_psns_take(&s, 10, 1, 4, WIRE, true), 10);
}

/* By seed: all kinds in any order. */
static void any(void **state)
{
	(void)state;
	for (unsigned seed = 1; seed < 50; seed++) {
		unsigned r = seed;

		begin(seed * 99991 & VB_PSN_MASK);
		for (int i = 0; i < 300; i++) {
			switch (rand_r(&r) % 5) {
			case 0:
				packet(WIRE, rand_r(&r) % 2);
				break;
			case 1:
				packet(1 + (uint32_t)rand_r(&r) % WIRE, true);
				break;
			case 2:
				request(1 + (uint32_t)rand_r(&r) % 100, rand_r(&r) % 2);
				break;
			case 3:
				directly(1 + (uint32_t)rand_r(&r) % 100);
				break;
			default:
				packet(1, true);
			}
		}
		check(0);
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
	    cmocka_unit_test(of_each_kind),
	    cmocka_unit_test(long_ones),
	    cmocka_unit_test(lost),
	    cmocka_unit_test(any),
	};

	return cmocka_run_group_tests_name("psns", tests, NULL, NULL);
}
