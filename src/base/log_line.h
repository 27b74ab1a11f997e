/* What a sentence of the log is, and what its line looks like:
 *
 *   12:03:07 verbena ib_send_bw[6835]: sentence
 *
 * or, as JSON, one object a line (log_json.c). */
#ifndef VB_BASE_LOG_LINE_H
#define VB_BASE_LOG_LINE_H

#include <limits.h>
#include <stddef.h>
#include <stdint.h>

#include "base/log.h"

enum {
	VB_LOG_TEXT = 1024,	/* bytes of the longest sentence, its terminator included */
	VB_LOG_KIND = 64,	/* of the longest name of a call or a reason */
	VB_LOG_FACTS = 768,	/* of the longest facts */
	VB_LOG_LINE = PIPE_BUF, /* of the longest line: a pipe takes it as a whole, or not at all */
};

/* A sentence as it was said. */
struct vb_log_said {
	uint64_t when; /* ns of CLOCK_REALTIME */
	enum vb_log_level level;
	int pid;
	int err;		  /* a refused call's errno, else 0 */
	char kind[VB_LOG_KIND];	  /* the refused call, or the reason's name, or nothing */
	char facts[VB_LOG_FACTS]; /* an object of JSON, or nothing */
	char text[VB_LOG_TEXT];
};

/* Begins a sentence that is said now; its text and facts are empty. */
void vb_log_said_begin(struct vb_log_said *s, enum vb_log_level level, const char *kind, int err);

/* Where a line goes decides what it looks like. */
struct vb_log_look {
	bool json, colours;
	unsigned width; /* columns of a terminal, 0: a line is not wrapped */
};

/* Writes a line, its end included, into `to`, which has VB_LOG_LINE bytes; what does not fit of the sentence
 * is cut.  Returns the line's bytes; no terminator follows them.  Takes no lock. */
size_t vb_log_line_write(char *to, const struct vb_log_look *look, const struct vb_log_said *s);

/* The same as one object of JSON; log_json.c. */
size_t vb_log_json_write(char *to, const struct vb_log_said *s);

#endif
