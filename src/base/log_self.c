#include "base/log_self.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "base/memcheck.h"
#include "base/text.h"

/* The offset from UTC is looked up beforehand, with its changes in the next two years.  localtime_r() itself
 * takes a lock and may read files; a line is composed under locks, in children of fork(), and in sandboxes.
 */
enum { NAME = 16, CHANGES = 6, WEEK = 7 * 24 * 3600, WEEKS = 104 };

static pthread_once_t once = PTHREAD_ONCE_INIT;
static char name[4 * NAME]; /* an escaped byte has 4 */
static struct change {
	time_t from;
	long offset;
} changes[CHANGES]; /* the first is from the beginning of time on */
static unsigned nchanges;

static long offset_at(time_t t)
{
	struct tm tm;

	return localtime_r(&t, &tm) ? tm.tm_gmtoff : 0;
}

/* The first second after `before` that has not its offset; it comes until `after`. */
static time_t change_between(time_t before, time_t after)
{
	long offset = offset_at(before);

	while (after - before > 1) {
		time_t middle = before + (after - before) / 2;

		if (offset_at(middle) == offset)
			before = middle;
		else
			after = middle;
	}
	return after;
}

static void read_zone(void)
{
	time_t t = time(NULL);

	changes[0] = (struct change){.offset = offset_at(t)};
	nchanges = 1;
	for (int i = 0; i < WEEKS && nchanges < CHANGES; i++, t += WEEK) {
		time_t from;

		if (offset_at(t + WEEK) == offset_at(t))
			continue;
		from = change_between(t, t + WEEK);
		changes[nchanges++] = (struct change){.from = from, .offset = offset_at(from)};
	}
}

/* The name that ps(1) shows, of a script its own; false: it cannot be read. */
static bool read_comm(int fd, char comm[NAME + 1])
{
	ssize_t n = fd < 0 ? -1 : read(fd, comm, NAME);

	if (n > 0)
		comm[n - 1] = 0; /* its newline */
	return n > 0;
}

void vb_log_self_rename(void)
{
	int err = errno, fd = vb_memcheck_near() ? open("/proc/self/comm", O_RDWR | O_CLOEXEC) : -1;
	char comm[NAME + 1] = "";

	if (read_comm(fd, comm) && strstr(comm, "-amd6"))
		(void)!write(fd, program_invocation_short_name, strlen(program_invocation_short_name));
	if (fd >= 0)
		close(fd);
	errno = err;
}

/* A program may overwrite its arguments later. */
static void read_name(void)
{
	int fd = open("/proc/self/comm", O_RDONLY | O_CLOEXEC);
	char comm[NAME + 1] = "";

	if (!read_comm(fd, comm))
		snprintf(comm, NAME, "%s", program_invocation_short_name);
	if (fd >= 0)
		close(fd);
	vb_text_escape(name, sizeof name, comm);
}

static void prepare(void)
{
	read_zone();
	read_name();
}

void vb_log_self_prepare(void)
{
	int err = errno;

	pthread_once(&once, prepare);
	errno = err;
}

const char *vb_log_self_program(void)
{
	vb_log_self_prepare();
	return name;
}

long vb_log_self_offset(uint64_t when)
{
	time_t t = (time_t)(when / 1000000000u);
	unsigned i;

	vb_log_self_prepare();
	for (i = nchanges; i > 1 && t < changes[i - 1].from; i--)
		;
	return changes[i - 1].offset;
}
