#include "base/log_line.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

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

/* The name that ps(1) shows, of a script its own.  A program may overwrite its arguments later. */
static void read_name(void)
{
	int fd = open("/proc/self/comm", O_RDONLY | O_CLOEXEC);
	char comm[NAME + 1] = "";
	ssize_t n = 0;

	if (fd >= 0) {
		n = read(fd, comm, NAME);
		close(fd);
	}
	if (n > 0)
		comm[n - 1] = 0; /* its newline */
	else
		snprintf(comm, NAME, "%s", program_invocation_short_name);
	vb_text_escape(name, sizeof name, comm);
}

static void prepare(void)
{
	read_zone();
	read_name();
}

void vb_log_line_prepare(void)
{
	int err = errno;

	pthread_once(&once, prepare);
	errno = err;
}

const char *vb_log_line_program(void)
{
	vb_log_line_prepare();
	return name;
}

long vb_log_line_offset(uint64_t when)
{
	time_t t = (time_t)(when / 1000000000u);
	unsigned i;

	vb_log_line_prepare();
	for (i = nchanges; i > 1 && t < changes[i - 1].from; i--)
		;
	return changes[i - 1].offset;
}

void vb_log_said_begin(struct vb_log_said *s, enum vb_log_level level, const char *kind, int err)
{
	struct timespec t;

	clock_gettime(CLOCK_REALTIME, &t);
	s->when = (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
	s->level = level;
	s->pid = (int)getpid();
	s->err = err;
	snprintf(s->kind, sizeof s->kind, "%s", kind);
	s->facts[0] = s->text[0] = 0;
}

/* Of who says it, on a terminal: red, yellow, as it is, dim. */
static const char *const colours[] = {[VB_LOG_ERROR] = "\x1b[1;31m",
				      [VB_LOG_WARN] = "\x1b[33m",
				      [VB_LOG_INFO] = "\x1b[1m",
				      [VB_LOG_DEBUG] = "\x1b[2m"};

enum { INDENT = 4, NARROW = 40 }; /* columns; where there are fewer the terminal wraps lines itself */

static size_t columns(const char *text, size_t n)
{
	size_t columns = 0;

	for (size_t i = 0; i < n; i++)
		columns += ((uint8_t)text[i] & 0xc0) != 0x80; /* not a further byte of a character */
	return columns;
}

/* Words that would pass the last column begin a new line. */
static void add_wrapped(struct vb_text *t, const char *text, size_t column, size_t width)
{
	while (*text) {
		size_t blanks = strspn(text, " "), n = blanks + strcspn(text + blanks, " "),
		       wide = columns(text, n);

		if (column + wide > width && column > INDENT) {
			vb_text_add(t, "\n%*s", INDENT, "");
			text += blanks;
			n -= blanks;
			wide -= blanks;
			column = INDENT;
		}
		vb_text_add(t, "%.*s", (int)n, text);
		column += wide;
		text += n;
	}
}

static size_t write_text(char *to, const struct vb_log_look *look, const struct vb_log_said *said)
{
	static const unsigned day = 24 * 3600;
	struct vb_text t = {to, VB_LOG_LINE};
	char escaped[VB_LOG_LINE - 200], head[150]; /* they fit, with colours */
	unsigned s = (unsigned)(((time_t)(said->when / 1000000000u) + vb_log_line_offset(said->when)) % day);
	int n = snprintf(head, sizeof head, "verbena %s[%d]:", name, said->pid);

	escaped[0] = ' ';
	vb_text_escape(escaped + 1, sizeof escaped - 1, said->text);
	vb_text_add(&t, "%02u:%02u:%02u %s%s%s", s / 3600, s / 60 % 60, s % 60,
		    look->colours ? colours[said->level] : "", head, look->colours ? "\x1b[0m" : "");
	if (look->width >= NARROW)
		add_wrapped(&t, escaped, strlen("HH:MM:SS ") + columns(head, (size_t)n), look->width);
	else
		vb_text_add(&t, "%s", escaped);
	*t.at++ = '\n';
	return (size_t)(t.at - to);
}

size_t vb_log_line_write(char *to, const struct vb_log_look *look, const struct vb_log_said *s)
{
	return look->json ? vb_log_json_write(to, s) : write_text(to, look, s);
}
