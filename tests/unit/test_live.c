/* The table of live objects: it knows each address under its kind, in whatever order objects come and go. */
#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

#include "obj/live.h"

enum { MANY = 50000, THREADS = 4, EACH = 2000 };

/* Nobody looks at what is behind these addresses. */
static const void *at(uint32_t i, uint32_t step)
{
	return (const void *)(uintptr_t)(0x7f0000001000 + (uint64_t)i * step);
}

static void each_is_known_under_its_kind(void **state)
{
	(void)state;
	vb_live_enter(at(0, 1), VB_LIVE_PD);
	assert_true(vb_live_is(at(0, 1), VB_LIVE_PD));
	assert_false(vb_live_is(at(0, 1), VB_LIVE_MR));
	assert_false(vb_live_is(at(16, 1), VB_LIVE_PD));
	assert_false(vb_live_is(NULL, VB_LIVE_PD));
	assert_int_equal(vb_live_leave("ibv_dereg_mr", at(0, 1), VB_LIVE_MR), EINVAL);
	assert_int_equal(vb_live_check("ibv_dealloc_pd", at(0, 1), VB_LIVE_PD), 0);
	assert_int_equal(vb_live_leave("ibv_dealloc_pd", at(0, 1), VB_LIVE_PD), 0);
	assert_int_equal(vb_live_leave("ibv_dealloc_pd", at(0, 1), VB_LIVE_PD), EINVAL);
	assert_int_equal(vb_live_leave("ibv_dealloc_pd", NULL, VB_LIVE_PD), EINVAL);
}

static void many_come_and_go(void **state)
{
	static const uint32_t steps[] = {16, 48, 4096, 65536};

	(void)state;
	for (unsigned s = 0; s < sizeof(steps) / sizeof(steps[0]); s++) {
		for (uint32_t i = 0; i < MANY; i++)
			vb_live_enter(at(i, steps[s]), 1 + i % (VB_LIVE_KINDS - 1));
		for (uint32_t i = 0; i < MANY; i += 3)
			assert_int_equal(vb_live_leave("x", at(i, steps[s]), 1 + i % (VB_LIVE_KINDS - 1)), 0);
		for (uint32_t i = 0; i < MANY; i++)
			assert_int_equal(vb_live_is(at(i, steps[s]), 1 + i % (VB_LIVE_KINDS - 1)),
					 i % 3 != 0);
		for (uint32_t i = 0; i < MANY; i++)
			if (i % 3)
				assert_int_equal(
				    vb_live_leave("x", at(i, steps[s]), 1 + i % (VB_LIVE_KINDS - 1)), 0);
	}
}

static void *churn(void *arg)
{
	uint32_t base = 1000000 * (1 + (uint32_t)(uintptr_t)arg);
	uintptr_t bad = 0;

	for (uint32_t round = 0; round < 20; round++) {
		for (uint32_t i = 0; i < EACH; i++)
			vb_live_enter(at(base + i, 64), VB_LIVE_MR);
		for (uint32_t i = 0; i < EACH; i++)
			bad += vb_live_leave("x", at(base + i, 64), VB_LIVE_MR) != 0;
		bad += vb_live_is(at(base, 64), VB_LIVE_MR);
	}
	return (void *)bad;
}

static void threads_share_it(void **state)
{
	pthread_t t[THREADS];
	void *bad;

	(void)state;
	for (uintptr_t i = 0; i < THREADS; i++)
		assert_int_equal(pthread_create(&t[i], NULL, churn, (void *)i), 0);
	for (int i = 0; i < THREADS; i++) {
		assert_int_equal(pthread_join(t[i], &bad), 0);
		assert_ptr_equal(bad, NULL);
	}
}

/* Whatever other threads are doing, a child finds the table whole: also before any device is open. */
static void a_child_can_use_it(void **state)
{
	pthread_t t;

	(void)state;
	vb_live_enter(at(7, 1), VB_LIVE_QP);
	assert_int_equal(pthread_create(&t, NULL, churn, (void *)9), 0);
	for (int i = 0; i < 50; i++) {
		int status;
		pid_t child = fork();

		assert_true(child >= 0);
		if (!child) {
			alarm(20);
			for (uint32_t n = 0; n < 64; n++)
				vb_live_enter(at(n + 5000, 16), VB_LIVE_CQ);
			/* ends past TSan, which would take the thread that is not there for leaked */
			if (vb_live_is(at(7, 1), VB_LIVE_QP))
				raise(SIGKILL);
			_exit(1);
		}
		assert_int_equal(waitpid(child, &status, 0), child);
		assert_int_equal(status, SIGKILL);
	}
	pthread_join(t, NULL);
	assert_int_equal(vb_live_leave("x", at(7, 1), VB_LIVE_QP), 0);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
	    cmocka_unit_test(each_is_known_under_its_kind),
	    cmocka_unit_test(many_come_and_go),
	    cmocka_unit_test(threads_share_it),
	    cmocka_unit_test(a_child_can_use_it),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
