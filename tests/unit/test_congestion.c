/* The window for paths that lose packets, by itself: numbers in, numbers out. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include "base/clock.h"
#include "transport/congestion.h"

enum { MTU = 4096, PACKET = MTU + VB_CONGESTION_OVERHEAD, RTT = 100000 };

/* A sender that always has more: a window at a time, all of which arrives a round trip later. */
struct path {
	struct vb_congestion c;
	uint32_t psn, una;
	uint64_t now;
};

static void begin(struct path *p)
{
	*p = (struct path){.now = VB_SEC};
	vb_congestion_begin(&p->c, MTU);
}

static uint32_t fill(struct path *p)
{
	uint32_t sent = 0;

	for (; vb_congestion_admits(&p->c, PACKET); sent++) {
		bool asks = vb_congestion_asks(&p->c, PACKET);

		p->psn++;
		vb_congestion_sent(&p->c, p->psn, PACKET, true, asks, p->now);
	}
	p->c.limited = true;
	return sent;
}

/* Returns how many packets there were. */
static uint32_t round_trip(struct path *p, uint64_t rtt)
{
	uint32_t sent = fill(p);

	p->now += rtt;
	for (; p->una != p->psn; p->una++) {
		vb_congestion_arrived(&p->c, PACKET);
		vb_congestion_acked(&p->c, p->una + 1, p->now);
	}
	return sent;
}

static void slow_start_doubles(void **state)
{
	uint32_t n, before = 0;
	struct path p;

	(void)state;
	begin(&p);
	for (unsigned i = 0; i < 5; i++) {
		n = round_trip(&p, RTT);
		assert_true(i ? n >= 2 * before - 1 : n == VB_CONGESTION_FIRST / PACKET);
		before = n;
	}
	for (unsigned i = 0; i < 20; i++)
		round_trip(&p, RTT);
	assert_true(p.c.window <= VB_CONGESTION_MOST);
}

/* A path of 10 packets each round trip, and a long queue: the window ends a little above that. */
static void the_window_follows_the_path(void **state)
{
	struct path p;

	(void)state;
	begin(&p);
	for (unsigned i = 0; i < 100; i++) {
		uint32_t sent = fill(&p);

		p.now += RTT - 10 * (RTT / 10);
		for (uint32_t k = 0; k < sent; k++, p.una++) {
			p.now += RTT / 10;
			vb_congestion_arrived(&p.c, PACKET);
			vb_congestion_acked(&p.c, p.una + 1, p.now);
		}
	}
	assert_false(p.c.starting);
	if (p.c.window < 3 * PACKET || p.c.window > 24 * PACKET)
		fail_msg("window %u", p.c.window);
}

static void a_loss_cuts_once_in_a_round_trip(void **state)
{
	struct path p;
	uint32_t before;

	(void)state;
	begin(&p);
	round_trip(&p, RTT);
	before = p.c.window;
	fill(&p);
	vb_congestion_lost(&p.c, p.now);
	vb_congestion_back(&p.c);
	assert_int_equal(p.c.window, (uint64_t)before * 7 / 10);
	assert_int_equal(p.c.flight, 0);
	assert_int_equal(fill(&p), 16 < before * 7 / 10 / PACKET
				       ? 16
				       : before * 7 / 10 / PACKET); /* not all of the window at once */
	vb_congestion_lost(&p.c, p.now + RTT / 2);
	assert_int_equal(p.c.window, (uint64_t)before * 7 / 10);
	vb_congestion_lost(&p.c, p.now + RTT);
	assert_int_equal(p.c.window, (uint64_t)before * 7 / 10 * 7 / 10);
	for (unsigned i = 2; i < 100; i++)
		vb_congestion_lost(&p.c, p.now + i * RTT);
	assert_int_equal(p.c.window, 2 * PACKET);
}

static void a_cnp_cuts_once_in_a_round_trip(void **state)
{
	struct path p;
	uint32_t before;

	(void)state;
	begin(&p);
	round_trip(&p, RTT);
	before = p.c.window;
	vb_congestion_marked(&p.c, p.now);
	vb_congestion_marked(&p.c, p.now + RTT / 2);
	assert_int_equal(p.c.window, (uint64_t)before * 8 / 10);
	vb_congestion_marked(&p.c, p.now + 2 * RTT);
	assert_int_equal(p.c.window, (uint64_t)before * 8 / 10 * 8 / 10);
}

/* Of a packet that was sent again nobody knows which of the two the ACK is for (Karn's rule). */
static void round_trips_are_of_what_was_sent_once(void **state)
{
	struct path p;

	(void)state;
	begin(&p);
	round_trip(&p, RTT);
	assert_int_equal(p.c.srtt, RTT);
	fill(&p);
	vb_congestion_lost(&p.c, p.now);
	vb_congestion_back(&p.c);
	vb_congestion_sent(&p.c, p.una + 1, PACKET, false, true, p.now);
	p.now += 10 * RTT;
	vb_congestion_arrived(&p.c, PACKET);
	vb_congestion_acked(&p.c, p.psn, p.now);
	assert_int_equal(p.c.srtt, RTT);
	assert_int_equal(p.c.shortest, RTT);
}

/* At least every eighth packet asks for an ACK, four in each window, and the last that it admits. */
static void acks_are_asked_for(void **state)
{
	struct path p;

	(void)state;
	begin(&p);
	for (p.c.window = 2 * PACKET; p.c.window < 100 * MTU; p.c.window += MTU / 2) {
		uint32_t unasked = 0;
		bool asks = false;

		p.c.flight = p.c.unasked = 0;
		while (vb_congestion_admits(&p.c, PACKET)) {
			asks = vb_congestion_asks(&p.c, PACKET);
			unasked = asks ? 0 : unasked + 1;
			assert_true(unasked < 8 && unasked * PACKET < p.c.window / 4);
			vb_congestion_sent(&p.c, ++p.psn, PACKET, true, asks, p.now);
		}
		assert_true(asks);
	}
}

static void patience_follows_the_round_trip(void **state)
{
	uint64_t first;
	struct path p;

	(void)state;
	begin(&p);
	assert_int_equal(vb_congestion_patience(&p.c), 10 * VB_MSEC);
	for (unsigned i = 0; i < 50; i++)
		round_trip(&p, 40 * VB_MSEC);
	first = vb_congestion_patience(&p.c);
	assert_true(first > 40 * VB_MSEC && first < 42 * VB_MSEC);
	p.c.probes = 1;
	assert_int_equal(vb_congestion_patience(&p.c), 2 * first);
	p.c.probes = 200;
	assert_true(vb_congestion_patience(&p.c) <= 256 * first);
}

/* The ACK timer has run out: one packet goes, and then it grows as fast as at first. */
static void silence_leaves_one_packet(void **state)
{
	struct path p;

	(void)state;
	begin(&p);
	for (unsigned i = 0; i < 5; i++)
		round_trip(&p, RTT);
	fill(&p);
	vb_congestion_silent(&p.c, p.now);
	vb_congestion_back(&p.c);
	p.una = p.psn;
	assert_int_equal(fill(&p), 1);
	p.now += RTT;
	vb_congestion_arrived(&p.c, PACKET);
	vb_congestion_acked(&p.c, ++p.una, p.now);
	p.una = p.psn;
	assert_int_equal(round_trip(&p, RTT), 2);
	assert_true(round_trip(&p, RTT) >= 3);
}

/* An answer of the old packets is no news for a round trip, a NAK of the new ones comes after one. */
static void signs_of_the_same_loss(void **state)
{
	struct path p;

	(void)state;
	begin(&p);
	vb_congestion_lost(&p.c, p.now); /* nothing is known of the path yet */
	assert_false(vb_congestion_is_news(&p.c, false, p.now + VB_MSEC));
	assert_true(vb_congestion_is_news(&p.c, false, p.now + 10 * VB_MSEC));
	for (unsigned i = 0; i < 50; i++)
		round_trip(&p, RTT);
	vb_congestion_lost(&p.c, p.now);
	assert_false(vb_congestion_is_news(&p.c, false, p.now + RTT / 2));
	assert_true(vb_congestion_is_news(&p.c, false, p.now + RTT));
	assert_false(vb_congestion_is_news(&p.c, true, p.now + RTT - 100));
	assert_true(vb_congestion_is_news(&p.c, true, p.now + 2 * RTT));
}

/* Where packets leave together the window has more than the path holds, as long as nothing is lost. */
static void the_spare_grows_until_a_loss(void **state)
{
	uint32_t before, most = 4 * 64000;
	struct path p;

	(void)state;
	begin(&p);
	p.c.together = 64000;
	for (unsigned i = 0; i < 40 && p.c.spare < most; i++) {
		before = p.c.spare;
		round_trip(&p, RTT);
		if (before && p.c.spare != (2 * before < most ? 2 * before : most))
			fail_msg("from %u to %u", before, p.c.spare);
	}
	assert_int_equal(p.c.spare, most);
	vb_congestion_lost(&p.c, p.now);
	assert_int_equal(p.c.spare, most / 2);
	round_trip(&p, RTT);
	before = p.c.spare;
	assert_true(before > most / 2 && before <= most / 2 + 2 * PACKET); /* slowly from now on */
	vb_congestion_marked(&p.c, p.now);
	assert_int_equal(p.c.spare, before / 2);
	begin(&p);
	for (unsigned i = 0; i < 40; i++)
		round_trip(&p, RTT);
	assert_int_equal(p.c.spare, 0); /* each packet leaves by itself */
}

/* What begins to leave is a quarter of the window, or what one call takes, or all there is. */
static void a_few_packets_wait_for_others(void **state)
{
	struct path p;

	(void)state;
	begin(&p);
	p.c.window = 400000;
	p.c.flight = p.c.window - 63999;
	assert_true(vb_congestion_pays(&p.c, 1000000)); /* each leaves by itself */
	p.c.together = 64000;
	assert_false(vb_congestion_pays(&p.c, 1000000));
	assert_false(vb_congestion_pays(&p.c, 64000));
	assert_true(vb_congestion_pays(&p.c, 63999));
	p.c.going = true;
	assert_true(vb_congestion_pays(&p.c, 1000000));
	p.c.going = false;
	p.c.flight--;
	assert_true(vb_congestion_pays(&p.c, 1000000));
	p.c.window = 100000;
	p.c.flight = 75001;
	assert_false(vb_congestion_pays(&p.c, 1000000));
	p.c.flight = 75000;
	assert_true(vb_congestion_pays(&p.c, 1000000));
	p.c.window = 2 * PACKET;
	p.c.flight = 0;
	assert_true(vb_congestion_pays(&p.c, 1000000)); /* a quarter of the window fits into it */
}

int main(void)
{
	const struct CMUnitTest tests[] = {
	    cmocka_unit_test(slow_start_doubles),
	    cmocka_unit_test(the_window_follows_the_path),
	    cmocka_unit_test(a_loss_cuts_once_in_a_round_trip),
	    cmocka_unit_test(a_cnp_cuts_once_in_a_round_trip),
	    cmocka_unit_test(round_trips_are_of_what_was_sent_once),
	    cmocka_unit_test(acks_are_asked_for),
	    cmocka_unit_test(patience_follows_the_round_trip),
	    cmocka_unit_test(silence_leaves_one_packet),
	    cmocka_unit_test(signs_of_the_same_loss),
	    cmocka_unit_test(the_spare_grows_until_a_loss),
	    cmocka_unit_test(a_few_packets_wait_for_others),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
