/* Finds what is behind a lock that stands in the way.  The kernel answers a question about a range with one
 * lock, and a long one hides all others there from F_OFD_GETLK, whoever holds it: anybody may lock the file.
 * So then the kernel's list of all locks is read (/proc/locks), which shows those of a PID namespace and the
 * open file description locks of all. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/sysmacros.h>

#include "host/ports_priv.h"

/* The span of a line that is about a file, which is called MAJOR:MINOR:INODE there; false: it is of another.
 */
static bool span_of(const char *line, const char *file, struct vb_span *s)
{
	unsigned long long first;
	char last[32], *at;

	/* "1: OFDLCK ADVISORY  READ -1 00:04:4026531840 4611686018427387904 4611686018427387904"; "1: ->
	 * OFDLCK" waits for a lock and has none */
	at = strstr(line, file);
	if (!at || strstr(line, "FLOCK") || strstr(line, ": -> ") ||
	    sscanf(at + strlen(file), "%llu %31s", &first, last) != 2)
		return false;
	s->at = first;
	s->len = strcmp(last, "EOF") ? strtoull(last, NULL, 10) - first + 1 : 0;
	return true;
}

int vb_locks_each(const struct vb_registry *r, void (*each)(struct vb_span s, void *arg), void *arg)
{
	FILE *f = fopen("/proc/locks", "re");
	struct vb_span s;
	char file[64], *line = NULL;
	size_t size = 0;

	if (!f)
		return errno;
	snprintf(file, sizeof(file), " %02x:%02x:%llu ", major(r->own.dev), minor(r->own.dev),
		 (unsigned long long)r->own.ino);
	while (getline(&line, &size, f) > 0)
		if (span_of(line, file, &s))
			each(s, arg);
	free(line);
	fclose(f);
	return 0;
}

static void add(struct vb_span s, void *arg)
{
	struct vb_listeners *l = arg;
	uint64_t *more;

	if (s.len != 1 || !vb_port_is_listener(s.at))
		return;
	if (l->n == l->room) {
		more = reallocarray(l->at, l->room ? 2 * (size_t)l->room : 64, sizeof(*more));
		if (!more)
			return; /* it is not found */
		l->at = more;
		l->room = l->room ? 2 * l->room : 64;
	}
	l->at[l->n++] = s.at;
}

static int by_place(const void *a, const void *b)
{
	uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;

	return (x > y) - (x < y);
}

int vb_listeners_read(const struct vb_registry *r, struct vb_listeners *l)
{
	int err;

	*l = (struct vb_listeners){0};
	err = vb_locks_each(r, add, l);
	if (!err && l->n)
		qsort(l->at, l->n, sizeof(*l->at), by_place);
	return err;
}

uint32_t vb_listeners_from(const struct vb_listeners *l, uint64_t at)
{
	uint32_t low = 0, high = l->n;

	while (low < high) {
		uint32_t mid = low + (high - low) / 2;

		if (l->at[mid] < at)
			low = mid + 1;
		else
			high = mid;
	}
	return low;
}

struct longest {
	struct vb_span in, *found;
	bool any;
};

static uint64_t end_of(struct vb_span s)
{
	return s.len ? s.at + s.len : UINT64_MAX;
}

static void compare(struct vb_span s, void *arg)
{
	struct longest *l = arg;

	if (s.at < end_of(l->in) && end_of(s) > l->in.at &&
	    (!l->any || end_of(s) - s.at > end_of(*l->found) - l->found->at)) {
		*l->found = s;
		l->any = true;
	}
}

bool vb_locks_longest(const struct vb_registry *r, struct vb_span in, struct vb_span *found)
{
	struct longest l = {.in = in, .found = found};

	return !vb_locks_each(r, compare, &l) && l.any;
}
