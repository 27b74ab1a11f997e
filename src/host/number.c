/* The name at which the holder of an adapter number listens, and connecting to it. */
#include <errno.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "host/private.h"

void vb_number_address(struct sockaddr_un *sa, socklen_t *len, uint32_t number)
{
	int n;

	memset(sa, 0, sizeof(*sa));
	sa->sun_family = AF_UNIX;
	n = snprintf(sa->sun_path + 1, sizeof(sa->sun_path) - 1, "verbena/1/%u", number);
	*len = (socklen_t)(offsetof(struct sockaddr_un, sun_path) + 1 + (size_t)n);
}

int vb_number_connect(uint32_t number)
{
	int fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
	struct sockaddr_un sa;
	socklen_t len;
	int err;

	if (fd < 0)
		return -1;
	vb_number_address(&sa, &len, number);
	if (!syscall(SYS_connect, fd, &sa, len))
		return fd;
	err = errno;
	(void)syscall(SYS_close, fd); /* refused: nobody waits */
	errno = err;
	return -1;
}

void vb_number_poke(uint32_t number)
{
	int fd = vb_number_connect(number);

	if (fd >= 0)
		(void)syscall(SYS_close, fd);
}

bool vb_number_is_taken(uint32_t number)
{
	int fd = vb_number_connect(number);
	bool is = fd >= 0 || errno != ECONNREFUSED;

	if (fd >= 0)
		(void)syscall(SYS_close, fd);
	return is;
}
