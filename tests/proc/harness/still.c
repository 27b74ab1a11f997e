/* Whether the machine itself stood still: a virtual one's CPU may not run for half a minute, and what a test
 * takes for a fault of ours is then its own patience that ran out. */
#include <pthread.h>
#include <sched.h>

#include "kit.h"

enum {
	CPUS = 64, /* watched at most */
	TICK_MS = 100,
};

#define STILL 2.0 /* seconds: a crowd on a CPU keeps nobody waiting that long who sleeps mostly */

/* One CPU; only its own thread writes. */
struct ticks {
	_Atomic double last;		   /* when it ran, 0: it is not watched */
	_Atomic double pause, pause_ended; /* the latest pause over STILL, and when it was over */
};

static struct ticks *cpus;

static void *tick(void *arg)
{
	struct ticks *t = arg;

	for (;;) {
		double now = kit_now(), last = atomic_exchange(&t->last, now);

		if (last > 0 && now - last > STILL) {
			atomic_store(&t->pause, now - last);
			atomic_store(&t->pause_ended, now);
		}
		kit_nap(TICK_MS);
	}
	return NULL;
}

void kit_watch_cpus(void)
{
	cpu_set_t may;

	cpus = kit_shared(CPUS * sizeof *cpus);
	CHECK(!sched_getaffinity(0, sizeof may, &may));
	for (int i = 0; i < CPUS; i++) {
		pthread_attr_t attr;
		pthread_t thread;
		cpu_set_t one;

		if (!CPU_ISSET(i, &may))
			continue;
		CPU_ZERO(&one);
		CPU_SET(i, &one);
		CHECK(!pthread_attr_init(&attr) && !pthread_attr_setaffinity_np(&attr, sizeof one, &one) &&
		      !pthread_create(&thread, &attr, tick, &cpus[i]) && !pthread_detach(thread));
		pthread_attr_destroy(&attr);
		/* Who forks while a thread begins forks what its beginning has locked (sanitizers do not undo
		 * that). */
		while (atomic_load(&cpus[i].last) <= 0)
			kit_nap_us(100);
	}
}

double kit_stood_still(double since)
{
	double now = kit_now(), longest = 0;

	for (int i = 0; i < CPUS; i++) {
		double last = atomic_load(&cpus[i].last), ended = atomic_load(&cpus[i].pause_ended),
		       pause = atomic_load(&cpus[i].pause);

		if (ended > since && pause > longest)
			longest = pause;
		if (last > 0 && now - last > STILL && now - last > longest)
			longest = now - last;
	}
	return longest;
}
