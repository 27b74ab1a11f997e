/* What a line of the log looks like: `12:03:07 verbena ib_send_bw[6835]: sentence`. */
#ifndef VB_BASE_LOG_LINE_H
#define VB_BASE_LOG_LINE_H

#include <stddef.h>
#include <stdint.h>

/* Finds out once how the process is called and which clock its users read.  Both need files and locks of the
 * C library, so this comes early: before a sandbox forbids to open files, and where no lock is held. */
void vb_log_line_prepare(void);

/* Nanoseconds of CLOCK_REALTIME. */
uint64_t vb_log_line_now(void);

/* Writes a line, its end included, into `to`; what does not fit of the sentence is cut.  `when` is of
 * vb_log_line_now().  Returns the line's bytes; no terminator follows them. */
size_t vb_log_line_text(char *to, size_t size, uint64_t when, const char *sentence);

#endif
