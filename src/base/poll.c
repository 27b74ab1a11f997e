#include "base/poll.h"

#include <errno.h>
#include <limits.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

enum { NS_PER_MS = 1000000 };
static const uint64_t ns_per_s = 1000000000;

#ifdef SYS_poll
static int to_the_millisecond(struct pollfd *fds, unsigned n, uint64_t for_ns)
{
	uint64_t ms = for_ns / NS_PER_MS + (for_ns % NS_PER_MS != 0);

	return (int)syscall(SYS_poll, fds, (long)n,
			    for_ns == UINT64_MAX ? -1l
			    : ms < INT_MAX	 ? (long)ms
						 : INT_MAX);
}
#endif

int vb_poll(struct pollfd *fds, unsigned n, uint64_t for_ns)
{
	struct timespec ts = {(time_t)(for_ns / ns_per_s), (long)(for_ns % ns_per_s)};
	int ret = (int)syscall(SYS_ppoll, fds, (long)n, for_ns == UINT64_MAX ? NULL : &ts, NULL, 0l);

#ifdef SYS_poll
	if (ret < 0 && errno != EINTR) /* a sandbox that denies it, with whichever errno */
		ret = to_the_millisecond(fds, n, for_ns);
#endif
	return ret;
}
