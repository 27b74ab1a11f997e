/* What the log says of its own process: the program's name, and the clock that its users read. */
#ifndef VB_BASE_LOG_SELF_H
#define VB_BASE_LOG_SELF_H

#include <stdint.h>

/* valgrind's processes are all called by its tool, "memcheck-amd64-", for the kernel, ps(1) and Verbena's
 * commands. A process is given the name of its program, unless it has chosen one. */
void vb_log_self_rename(void);
/* Finds out both, once.  Both need files and locks of the C library, so this is called early: before a
 * sandbox forbids to open files, and where no lock is held. */
void vb_log_self_prepare(void);
const char *vb_log_self_program(void); /* control bytes are escaped */
long vb_log_self_offset(
    uint64_t when); /* seconds of the local time east of UTC; when: ns of CLOCK_REALTIME */

#endif
