/* poll(2) to the nanosecond; and without a sandbox's leave for ppoll(2), which is newer. */
#ifndef VB_BASE_POLL_H
#define VB_BASE_POLL_H

#include <poll.h>
#include <stdint.h>

/* Waits for that many nanoseconds at most, UINT64_MAX: without end.  What poll(2) returns, and errno.  No
 * cancellation point: locks may be held. */
int vb_poll(struct pollfd *fds, unsigned n, uint64_t for_ns);

#endif
