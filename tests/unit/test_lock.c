/* Locks: debug builds know who holds one. */
#include <errno.h>
#include <pthread.h>
#include <sched.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include <cmocka.h>

#include "base/lock.h"

static struct vb_lock lock;
static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;

static void *takes_both(void *arg)
{
	vb_lock_take(&lock);
	pthread_mutex_lock(&mutex);
	return arg;
}

static void by_another_thread(void)
{
	pthread_t t;

	if (pthread_create(&t, NULL, takes_both, NULL) || pthread_join(t, NULL))
		_exit(1);
}

static void assert_lock(void)
{
	vb_lock_assert_held(&lock);
}

static void assert_mutex(void)
{
	vb_mutex_assert_held(&mutex);
}

/* How a child ends that calls `before`, and then `f`: by SIGABRT where assumptions are checked. */
static void ends(void (*before)(void), void (*f)(void), bool aborts)
{
	const struct rlimit none = {0, 0};
	int status;
	pid_t pid = fork();

	assert_true(pid >= 0);
	if (!pid) {
		setrlimit(RLIMIT_CORE, &none);
		if (signal(SIGABRT, SIG_DFL) == SIG_ERR)
			_exit(1);
		close(STDERR_FILENO);
		if (before)
			before();
		f();
		_exit(0);
	}
	assert_int_equal(waitpid(pid, &status, 0), pid);
#ifdef VB_DEBUG
	assert_int_equal(WIFSIGNALED(status) && WTERMSIG(status) == SIGABRT, aborts);
#else
	(void)aborts; /* nothing is looked at */
	assert_int_equal(status, 0);
#endif
}

static void woken(int sig)
{
	(void)sig;
}

/* Calls that succeed leave errno alone, and may have waited for a lock. */
static void a_nap_leaves_errno_alone(void **state)
{
	const struct sigaction on = {.sa_handler = woken};
	const struct itimerval soon = {{0, 20}, {0, 20}}, never = {{0, 0}, {0, 0}};
	struct sigaction before;

	(void)state;
	assert_int_equal(sigaction(SIGALRM, &on, &before), 0);
	assert_int_equal(setitimer(ITIMER_REAL, &soon, NULL), 0);
	errno = 0;
	for (int i = 0; i < 200; i++)
		vb_cpu_nap(); /* many of these are interrupted */
	assert_int_equal(errno, 0);
	assert_int_equal(setitimer(ITIMER_REAL, &never, NULL), 0);
	assert_int_equal(sigaction(SIGALRM, &before, NULL), 0);
}

static void by_this_thread(void)
{
	takes_both(NULL);
}

static void who_holds_it_is_known(void **state)
{
	(void)state;
	ends(by_this_thread, assert_lock, false);
	ends(by_this_thread, assert_mutex, false);
	ends(NULL, assert_lock, true);
	ends(NULL, assert_mutex, true);
	ends(by_another_thread, assert_lock, true);
	ends(by_another_thread, assert_mutex, true);
}

static void a_try_leaves_the_holder_alone(void **state)
{
	(void)state;
	assert_true(vb_lock_try(&lock));
	assert_false(vb_lock_try(&lock));
	assert_lock();
	vb_lock_give(&lock);
	assert_true(vb_lock_try(&lock));
	vb_lock_give(&lock);
}

static bool waits;

static bool under(int policy)
{
	const struct sched_param param = {.sched_priority = policy == SCHED_FIFO ? 1 : 0};

	return !sched_setscheduler(0, policy, &param);
}

/* Once it runs under a real-time policy the thread that holds the lock gets the CPU only if this one sleeps.
 * What it uses of the CPU is asked for, and not how long it waits: the machine may have others to serve. */
static void *takes_hard(void *arg)
{
	struct timespec used;

	assert_true(under(SCHED_FIFO));
	__atomic_store_n(&waits, true, __ATOMIC_RELEASE);
	vb_lock_take(&lock);
	vb_lock_give(&lock);
	assert_true(under(SCHED_OTHER));
	assert_int_equal(clock_gettime(CLOCK_THREAD_CPUTIME_ID, &used), 0);
	*(double *)arg = (double)used.tv_sec + (double)used.tv_nsec / 1e9;
	return NULL;
}

static void a_holder_without_a_cpu_gets_one(void **state)
{
	cpu_set_t was, one;
	pthread_t t;
	double used = -1;

	(void)state;
	if (!under(SCHED_FIFO) || !under(SCHED_OTHER)) {
		printf("SKIP: this user may not raise priorities: %s\n", strerror(errno));
		skip();
	}
	assert_int_equal(sched_getaffinity(0, sizeof was, &was), 0);
	CPU_ZERO(&one);
	CPU_SET(sched_getcpu(), &one);
	assert_int_equal(sched_setaffinity(0, sizeof one, &one), 0);
	vb_lock_take(&lock);
	assert_int_equal(pthread_create(&t, NULL, takes_hard, &used), 0);
	while (!__atomic_load_n(&waits, __ATOMIC_ACQUIRE))
		sched_yield();
	vb_lock_give(&lock);
	assert_int_equal(pthread_join(t, NULL), 0);
	assert_int_equal(sched_setaffinity(0, sizeof was, &was), 0);
	assert_true(used >= 0 && used < 0.1);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
	    cmocka_unit_test(a_nap_leaves_errno_alone),
	    cmocka_unit_test(who_holds_it_is_known),
	    cmocka_unit_test(a_try_leaves_the_holder_alone),
	    cmocka_unit_test(a_holder_without_a_cpu_gets_one),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
