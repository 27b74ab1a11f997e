/* Who counts as a poller: the word that a process shows to senders, and how often its engine looks at that.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <time.h>
#include <unistd.h>
#include <cmocka.h>

#include "device.h"
#include "host/private.h"
#include "kit.h"
#include "obj/context.h"

static struct vb_adapter *adapter(void)
{
	return vb_context(ctx)->adapter;
}

static bool polling(void)
{
	return atomic_load(vb_adapter_presence(adapter())->awake) == VB_POLLING;
}

static void poll_once(struct ibv_cq *cq)
{
	struct ibv_wc wc;

	assert_int_equal(ibv_poll_cq(cq, 1, &wc), 0);
}

static void poll_until_believed(struct ibv_cq *cq)
{
	for (double end = kit_now() + 10; !polling();) {
		assert_true(kit_now() < end);
		poll_once(cq);
	}
}

static void who_stops_is_not_one_any_more(void **state)
{
	struct ibv_cq *cq = ibv_create_cq(ctx, 1, NULL, NULL, 0);

	(void)state;
	poll_until_believed(cq);
	for (double end = kit_now() + 10; polling(); kit_nap(1))
		assert_true(kit_now() < end);
	assert_int_equal(ibv_destroy_cq(cq), 0);
}

/* A program that waits for a byte in its memory, say, and looks at its completions beside that: senders are
 * to ring, or what they send would lie until it comes by. */
static void who_polls_now_and_then_is_none(void **state)
{
	struct ibv_cq *cq = ibv_create_cq(ctx, 1, NULL, NULL, 0);

	(void)state;
	/* A few looks of the engine are enough, however long they take.  More than once, for where this
	 * thread is held up between two looks it is seen not to poll at all. */
	for (int i = 0; i < 5; i++) {
		uint32_t begun;

		poll_until_believed(cq);
		begun = atomic_load(&adapter()->rounds);
		for (; polling(); kit_nap(2)) {
			assert_in_range(atomic_load(&adapter()->rounds) - begun, 0, 50);
			poll_once(cq);
		}
	}
	for (int i = 0; i < 100; i++) {
		kit_nap(2);
		poll_once(cq);
		assert_false(polling());
	}
	assert_int_equal(ibv_destroy_cq(cq), 0);
}

/* Seconds without a CPU after which a poller may be believed to have stopped. */
#define LAPSE 0.004

static unsigned long switches_of_engine(void)
{
	char path[64], line[256];
	unsigned long total = 0, n;
	FILE *f;

	snprintf(path, sizeof path, "/proc/self/task/%u/status", adapter()->head->tid);
	f = fopen(path, "r");
	assert_non_null(f);
	while (fgets(line, sizeof line, f))
		if (sscanf(line, "voluntary_ctxt_switches: %lu", &n) == 1)
			total += n;
	fclose(f);
	return total;
}

#define WINDOW 0.01
enum { PATIENCE = 20, LEAST = 10 }; /* times the wanted seconds; of those, in percent */

/* Polls by `some` for that long, in which the engine may have switched so often as it looks, and a few times
 * more, once for each time that it was kept from looking.  A window in which this thread was without a CPU
 * for so long that it was believed to have stopped does not count, nor does the one behind it, in which it is
 * believed again.  To be disbelieved in a window in which it had the CPU is a fault, but for a few times: it
 * may have been without between two windows. */
static void watched(void (*some)(void *arg), void *arg, double seconds)
{
	double counted = 0, until = kit_now() + PATIENCE * seconds;
	bool lapsed = false, was;
	unsigned long seen = 0, late = 0, doubted = 0;

	while (counted < seconds && kit_now() < until) {
		unsigned long before = switches_of_engine();
		double began = kit_now(), last, now = began;
		bool gap = false;

		was = lapsed;
		lapsed = false;
		do {
			last = now;
			some(arg);
			now = kit_now();
			gap |= now > last + LAPSE;
			lapsed |= gap || !polling();
		} while (now < began + WINDOW);
		late += gap;
		doubted += lapsed && !gap && !was;
		if (lapsed || was)
			continue;
		seen += switches_of_engine() - before;
		counted += now - began;
	}
	assert_in_range(doubted, 0, late + 5);
	if (counted < seconds * LEAST / 100) {
		printf(
		    "SKIP: the other programs of this machine leave a poller no CPU for %.0f ms in a row\n",
		    WINDOW * 1000);
		skip();
	}
	assert_in_range(seen, 0, (unsigned long)(counted * 110) + 5 + late);
}

static void polls(void *cq)
{
	for (int i = 0; i < 100; i++)
		poll_once(cq);
}

/* The engine of a program that polls looks a hundred times a second, and is not woken in between. */
static void pollers_are_left_alone(void **state)
{
	struct ibv_cq *cq = ibv_create_cq(ctx, 1, NULL, NULL, 0);

	(void)state;
	poll_until_believed(cq);
	watched(polls, cq, 0.5);
	assert_int_equal(ibv_destroy_cq(cq), 0);
}

static void sends(void *arg)
{
	struct kit_end *e = arg;
	struct ibv_wc wc;

	assert_int_equal(kit_recv(e, 1, 0, 8), 0);
	assert_int_equal(kit_post(e, IBV_WR_SEND, 2, 64, 8, NULL, 0), 0);
	for (int left = 2; left;)
		left -= ibv_poll_cq(e->cq, 1, &wc);
}

/* Nor is it woken for the timers of a queue pair in use, which the poller sees to: for one that another
 * thread had in hand, say, or that may leave the list of timers. */
static void timers_are_the_pollers(void **state)
{
	struct ibv_pd *pd = ibv_alloc_pd(ctx);
	struct kit_end e;

	(void)state;
	kit_end_open(&e, pd, 8, 4096);
	kit_connect(&e, &e.card);
	poll_until_believed(e.cq);
	watched(sends, &e, 1);
	kit_end_close(&e);
	assert_int_equal(ibv_dealloc_pd(pd), 0);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
	    cmocka_unit_test(who_stops_is_not_one_any_more),
	    cmocka_unit_test(who_polls_now_and_then_is_none),
	    cmocka_unit_test(pollers_are_left_alone),
	    cmocka_unit_test(timers_are_the_pollers),
	};

	return cmocka_run_group_tests(tests, kit_device_open, kit_device_close);
}
