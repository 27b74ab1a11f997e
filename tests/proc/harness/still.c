/* Whether the machine itself stood still: a virtual one's CPU may not run for half a minute, and a kernel may
 * leave a thread waiting for a CPU as long (Linux 6.18 does where several sessions are busy, each of them a
 * group to the scheduler: kernel.sched_autogroup_enabled).  What a test takes for a fault of ours is then its
 * own patience that ran out. */
#include <ctype.h>
#include <dirent.h>
#include <fcntl.h>
#include <pthread.h>
#include <sched.h>

#include "kit.h"

enum {
	CPUS = 64, /* watched at most */
	TICK_MS = 100,
	THREADS = 256, /* watched at most */
	LOOK_MS = 250, /* from one look at them to the next */
};

#define STILL 2.0 /* seconds: a crowd on a CPU keeps nobody waiting that long who sleeps mostly */

/* One CPU, or all the threads; only one thread writes. */
struct ticks {
	_Atomic double last;		   /* when who watches ran, 0: nobody does */
	_Atomic double pause, pause_ended; /* the latest pause over STILL, and when it was over */
};

static struct ticks *cpus, *waits; /* of waits one stands for all threads */

/* A thread that is ready to run: since when it has been so without running. */
struct ready {
	int tid;
	unsigned long long ran, turns; /* as /proc says: ns, and how often it was given a CPU */
	double since;
};

/* No memory is allocated here: who forks meanwhile would fork its lock (sanitizers do not undo that). */
static bool read_file(const char *path, char *text, size_t size)
{
	int fd = open(path, O_RDONLY | O_CLOEXEC);
	ssize_t n = fd < 0 ? -1 : read(fd, text, size - 1);

	if (fd >= 0)
		close(fd);
	text[n > 0 ? n : 0] = 0;
	return n > 0;
}

/* A process of our session, in whatever state; or a thread that is ready to run. */
static bool is_ours(const char *dir, bool ready)
{
	char path[320], line[512], state, *name_end;
	int session;

	snprintf(path, sizeof path, "%s/stat", dir);
	return read_file(path, line, sizeof line) && (name_end = strrchr(line, ')')) &&
	       sscanf(name_end, ") %c %*d %*d %d", &state, &session) == 2 && session == getsid(0) &&
	       (!ready || state == 'R');
}

/* Calls for each entry whose name is a number. */
static void each_number(const char *path, void (*call)(const char *dir, int number))
{
	int fd = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	_Alignas(struct dirent64) char entries[2048];
	const struct dirent64 *e;
	char dir[300];
	ssize_t n;

	while (fd >= 0 && (n = getdents64(fd, entries, sizeof entries)) > 0) {
		for (ssize_t at = 0; at < n; at += e->d_reclen) {
			e = (const void *)&entries[at];
			if (!isdigit((unsigned char)e->d_name[0]))
				continue;
			snprintf(dir, sizeof dir, "%s/%s", path, e->d_name);
			call(dir, atoi(e->d_name));
		}
	}
	if (fd >= 0)
		close(fd);
}

static struct ready ready[2][THREADS]; /* of the look before, and of this one */
static unsigned nready[2];

static void look_at_thread(const char *dir, int tid)
{
	struct ready r = {.tid = tid, .since = kit_now()};
	char path[320], line[128];

	if (nready[1] == THREADS || !is_ours(dir, true))
		return;
	snprintf(path, sizeof path, "%s/schedstat", dir);
	if (!read_file(path, line, sizeof line) || sscanf(line, "%llu %*u %llu", &r.ran, &r.turns) != 2)
		return;
	for (unsigned i = 0; i < nready[0]; i++)
		if (ready[0][i].tid == tid && ready[0][i].ran == r.ran && ready[0][i].turns == r.turns)
			r.since = ready[0][i].since;
	ready[1][nready[1]++] = r;
}

static void look_at_process(const char *dir, int pid)
{
	char path[320];

	(void)pid;
	if (!is_ours(dir, false))
		return;
	snprintf(path, sizeof path, "%s/task", dir);
	each_number(path, look_at_thread);
}

/* Keeps the longest wait there is, and the last one after it is over. */
static void *watch_threads(void *arg)
{
	for (;; kit_nap(LOOK_MS)) {
		double longest = 0, now;

		nready[1] = 0;
		each_number("/proc", look_at_process);
		now = kit_now();
		atomic_store(&waits->last, now);
		for (unsigned i = 0; i < nready[1]; i++)
			if (now - ready[1][i].since > longest)
				longest = now - ready[1][i].since;
		memcpy(ready[0], ready[1], sizeof *ready);
		nready[0] = nready[1];
		if (longest <= STILL)
			continue;
		if (longest > atomic_load(&waits->pause) || now - atomic_load(&waits->pause_ended) > STILL)
			atomic_store(&waits->pause, longest);
		atomic_store(&waits->pause_ended, now);
	}
	return arg;
}

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

/* Who forks while a thread begins forks what its beginning has locked (sanitizers do not undo that). */
static void await(struct ticks *t)
{
	while (atomic_load(&t->last) <= 0)
		kit_nap_us(100);
}

void kit_watch_cpus(void)
{
	pthread_t watch;
	cpu_set_t may;

	cpus = kit_shared((CPUS + 1) * sizeof *cpus);
	waits = &cpus[CPUS];
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
		await(&cpus[i]);
	}
	CHECK(!pthread_create(&watch, NULL, watch_threads, NULL) && !pthread_detach(watch));
	await(waits);
}

double kit_stood_still(double since)
{
	double now = kit_now(), longest = 0;

	for (int i = 0; i <= CPUS; i++) {
		double last = atomic_load(&cpus[i].last), ended = atomic_load(&cpus[i].pause_ended),
		       pause = atomic_load(&cpus[i].pause);

		if (ended > since && pause > longest)
			longest = pause;
		if (last > 0 && now - last > STILL && now - last > longest)
			longest = now - last;
	}
	return longest;
}
