#include "base/log_line.h"

#include <stdio.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "base/log_self.h"
#include "base/text.h"

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
	unsigned s = (unsigned)(((time_t)(said->when / 1000000000u) + vb_log_self_offset(said->when)) % day);
	int n = snprintf(head, sizeof head, "verbena %s[%d]:", vb_log_self_program(), said->pid);

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
