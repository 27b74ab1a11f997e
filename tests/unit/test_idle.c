/* How soon a thread that polls in vain offers its CPU. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "hca/idle.h"

enum { MANY = 20, ALONE = 500, SOON = 50000, SLICE = 3000000 };

static unsigned after(struct vb_idle *i, unsigned offers, uint64_t took, uint32_t others)
{
	while (offers--)
		vb_idle_offered(i, took, others);
	assert_in_range(i->look_at, 1, VB_IDLE_LOOK);
	assert_in_range(i->look_at, 1, i->yield_at);
	return i->yield_at;
}

static void alone_it_is_offered_seldom(void **state)
{
	struct vb_idle i = VB_IDLE_BEGIN;

	(void)state;
	assert_int_equal(after(&i, MANY, ALONE, 0), VB_IDLE_MOST);
}

static void the_sooner_the_more_others_want_it(void **state)
{
	struct vb_idle i = VB_IDLE_BEGIN;

	(void)state;
	assert_int_equal(after(&i, 1, SOON, 0), VB_IDLE_MOST / 2);
	assert_int_equal(after(&i, MANY, SOON, 0), VB_IDLE_LEAST);
	assert_int_equal(after(&i, MANY, ALONE, 0), VB_IDLE_MOST);
}

/* A message that is waited for must not cost a time slice each. */
static void who_computes_does_not_get_it_each_time(void **state)
{
	struct vb_idle i = VB_IDLE_BEGIN;

	(void)state;
	assert_int_equal(after(&i, MANY, SOON, 0), VB_IDLE_LEAST);
	assert_int_equal(after(&i, MANY, SLICE, 1), VB_IDLE_MOST);
}

static void many_threads_take_long_by_waiting_alone(void **state)
{
	struct vb_idle i = VB_IDLE_BEGIN;

	(void)state;
	assert_int_equal(after(&i, MANY, SLICE, 30), VB_IDLE_LEAST);
}

/* The clock is looked at every so many polls that it is seen in time, however long they take. */
static void the_clock_is_looked_at_in_time(void **state)
{
	enum { WANT = 1000 };
	struct vb_idle i = VB_IDLE_BEGIN;

	(void)state;
	vb_idle_pace(&i, WANT, WANT);
	vb_idle_pace(&i, WANT / 4, WANT);
	assert_int_equal(i.look_at, VB_IDLE_LOOK); /* soon enough, and as seldom as it may be */
	vb_idle_pace(&i, WANT + 1, WANT);
	assert_int_equal(i.look_at, VB_IDLE_LOOK / 2);
	for (unsigned n = 0; n < MANY; n++)
		vb_idle_pace(&i, WANT + 1, WANT);
	assert_int_equal(i.look_at, 1);
	vb_idle_pace(&i, WANT / 4 - 1, WANT);
	assert_int_equal(i.look_at, 2);
	vb_idle_pace(&i, WANT / 4, WANT);
	assert_int_equal(i.look_at, 2);
	for (unsigned n = 0; n < MANY; n++)
		vb_idle_pace(&i, 0, WANT);
	assert_int_equal(i.look_at, VB_IDLE_LOOK);
	i.look_at = i.yield_at = VB_IDLE_LEAST;
	vb_idle_pace(&i, 0, WANT);
	assert_int_equal(i.look_at, VB_IDLE_LEAST); /* not later than the CPU is offered */
}

int main(void)
{
	const struct CMUnitTest tests[] = {
	    cmocka_unit_test(alone_it_is_offered_seldom),
	    cmocka_unit_test(the_sooner_the_more_others_want_it),
	    cmocka_unit_test(who_computes_does_not_get_it_each_time),
	    cmocka_unit_test(many_threads_take_long_by_waiting_alone),
	    cmocka_unit_test(the_clock_is_looked_at_in_time),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
