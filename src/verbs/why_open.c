/* Why the device cannot be opened: the limits that are in the way. */
#include <errno.h>
#include <inttypes.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

#include "base/log.h"
#include "base/text.h"
#include "host/segment.h"
#include "verbs/why.h"

/* A soft limit of this process; false: it has none. */
static bool limit_of(int which, uint64_t *limit)
{
	struct rlimit r;

	if (getrlimit(which, &r) || r.rlim_cur == RLIM_INFINITY)
		return false;
	*limit = r.rlim_cur;
	return true;
}

static bool number_of(const char *root, const char *group, const char *file, uint64_t *n)
{
	char path[1024];
	bool is;
	FILE *f;

	snprintf(path, sizeof(path), "%s%s/%s", root, group, file);
	f = fopen(path, "re");
	if (!f)
		return false;
	is = fscanf(f, "%" SCNu64, n) == 1; /* not "max" */
	fclose(f);
	return is;
}

/* Whether a control group, or one above it, has as many threads as it may.  Changes `group`. */
static bool is_full(const char *root, char *group, uint64_t *max)
{
	uint64_t now;
	char *end;

	for (;;) {
		if (number_of(root, group, "pids.max", max) && number_of(root, group, "pids.current", &now) &&
		    now >= *max)
			return true;
		end = strrchr(group, '/');
		if (!end)
			return false;
		*end = 0;
	}
}

static bool group_is_full(uint64_t *max)
{
	FILE *f = fopen("/proc/self/cgroup", "re");
	bool full = false;
	char line[512];

	while (f && !full && fgets(line, sizeof(line), f)) {
		char *what = strchr(line, ':'), *group = what ? strchr(what + 1, ':') : NULL;

		if (!group)
			continue;
		*group++ = 0;
		group[strcspn(group, "\n")] = 0;
		if (!what[1]) /* version 2 */
			full = is_full("/sys/fs/cgroup", group, max);
		else if (!strcmp(what + 1, "pids"))
			full = is_full("/sys/fs/cgroup/pids", group, max);
	}
	if (f)
		fclose(f);
	return full;
}

/* Whether there was no room for a thread's stack beside the segment, which is unmapped by now;
 * pthread_create(3) reports that as EAGAIN, too. */
static bool stack_has_no_room(uint64_t *limit)
{
	FILE *f = limit_of(RLIMIT_AS, limit) ? fopen("/proc/self/statm", "re") : NULL;
	uint64_t pages = 0;
	pthread_attr_t attr;
	size_t stack = 0;

	if (!f)
		return false;
	if (fscanf(f, "%" SCNu64, &pages) != 1)
		pages = 0;
	fclose(f);
	if (!pthread_attr_init(&attr)) {
		(void)pthread_attr_getstacksize(&attr, &stack);
		pthread_attr_destroy(&attr);
	}
	return pages && pages * (uint64_t)sysconf(_SC_PAGESIZE) + VB_SEG_SIZE + stack > *limit;
}

static int no_thread(int err, const char *call, const char *name)
{
	uint64_t limit;
	char text[200] = "";
	struct vb_text t = {text, sizeof(text)};

	if (stack_has_no_room(&limit))
		vb_text_add(&t,
			    "; its stack needs address space, and the device %u MiB. RLIMIT_AS (ulimit -v) "
			    "limits the process to %" PRIu64 " MiB",
			    (unsigned)(VB_SEG_SIZE >> 20), limit >> 20);
	else if (group_is_full(&limit))
		vb_text_add(&t,
			    "; pids.max of the process's control group is %" PRIu64
			    ", and the group has as many threads",
			    limit);
	else if (limit_of(RLIMIT_NPROC, &limit))
		vb_text_add(&t, "; RLIMIT_NPROC (ulimit -u) is %" PRIu64 ", for all threads of user %u",
			    limit, getuid());
	return vb_refuse(err, call, "%s cannot be opened: its engine thread cannot be started: %s%s", name,
			 strerror(err), text);
}

/* What each step asks of the kernel, for one whom a sandbox denies it. */
static const char *const calls[] = {
    [VB_OPEN_DESCRIPTORS] = "epoll_create1, eventfd2 and epoll_ctl",
    [VB_OPEN_SEGMENT] = "memfd_create, ftruncate, mmap, madvise and fcntl(F_ADD_SEALS)",
    [VB_OPEN_NUMBER] = "socket, bind and listen on abstract names, and epoll_ctl",
    [VB_OPEN_LINK] = "mmap",
    [VB_OPEN_THREAD] = "clone3, or clone on a kernel without clone3",
};

int vb_why_open(int err, const char *call, const char *name, enum vb_open_step step)
{
	uint64_t limit;
	char held[200];

	if (step == VB_OPEN_THREAD && err == EAGAIN)
		return no_thread(err, call, name);
	if (step == VB_OPEN_NUMBER && err == EADDRINUSE)
		return vb_refuse(err, call,
				 "%s cannot be opened: all %d adapter numbers of this network namespace "
				 "(abstract sockets verbena/1/1 to verbena/1/%d) are in use: %s",
				 name, VB_ADAPTERS - 1, VB_ADAPTERS - 1, vb_numbers_say(held, sizeof(held)));
	if (step == VB_OPEN_SEGMENT && err == EAGAIN && limit_of(RLIMIT_MEMLOCK, &limit))
		return vb_refuse(err, call,
				 "%s cannot be opened: %s; this process locks all memory that it maps "
				 "(mlockall), and RLIMIT_MEMLOCK (ulimit -l) is %" PRIu64 " bytes",
				 name, strerror(err), limit);
	if (err == ENOMEM && limit_of(RLIMIT_AS, &limit))
		return vb_refuse(err, call,
				 "%s cannot be opened: %s; the device needs %u MiB of address space, and as "
				 "much for each peer. RLIMIT_AS (ulimit -v) limits the process to %" PRIu64
				 " MiB",
				 name, strerror(err), (unsigned)(VB_SEG_SIZE >> 20), limit >> 20);
	if (err == EMFILE && limit_of(RLIMIT_NOFILE, &limit))
		return vb_refuse(err, call, "%s cannot be opened: %s; RLIMIT_NOFILE (ulimit -n) is %" PRIu64,
				 name, strerror(err), limit);
	if (err == EPERM || err == EACCES || err == ENOSYS)
		return vb_refuse(err, call, "%s cannot be opened: %s; it needs %s (does a sandbox deny one?)",
				 name, strerror(err), calls[step]);
	return vb_refuse(err, call, "%s cannot be opened: %s", name, strerror(err));
}
