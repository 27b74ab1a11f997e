#include "base/eventfd.h"

#include <errno.h>
#include <stdint.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

#include "base/poll.h"

int vb_eventfd_try(int fd)
{
	uint64_t token;
	struct iovec v = {.iov_base = &token, .iov_len = sizeof(token)};
	struct pollfd p = {.fd = fd, .events = POLLIN};

	if (syscall(SYS_preadv2, fd, &v, 1l, -1l, 0l, RWF_NOWAIT) >= 0)
		return 0;
	if (errno == EAGAIN || errno == EINTR || errno == EBADF)
		return errno;
	/* A kernel that does not know this for an eventfd, or a sandbox that denies it with whichever errno:
	 * two threads may then race for one token, and the loser waits for the next. */
	if (vb_poll(&p, 1, 0) != 1)
		return EAGAIN;
	return syscall(SYS_read, fd, &token, sizeof(token)) < 0 ? errno : 0;
}
