/* Writing to files that the user named, in a process that is not ours. */
#ifndef VB_BASE_QUIET_H
#define VB_BASE_QUIET_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

/* write(2), without the signals that it may raise in the thread: SIGXFSZ (the file would be longer than
 * RLIMIT_FSIZE: EFBIG alone) and SIGPIPE (EPIPE alone).  Any thread. */
ssize_t vb_write_quietly(int fd, const void *bytes, size_t n);

/* Whether a file may be made so long, which ftruncate() answers with SIGXFSZ.  If not, *most is how long. */
bool vb_file_may_have(uint64_t bytes, uint64_t *most);

#endif
