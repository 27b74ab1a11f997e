/* rsockets (rsocket(7)) and repoll: not there yet.  The calls exist, so that programs which never make one
 * can be loaded, and fail with EOPNOTSUPP. */
#include <errno.h>

#include <sys/epoll.h>
#include <rdma/rsocket.h>

#include "rdmacm/call.h"

int repoll_create(int flags);
int repoll_ctl(int repfd, int op, int fd, struct epoll_event *event);
int repoll_wait(int repfd, struct epoll_event *events, int maxevents, int timeout);

static void absent(const char *call)
{
	int err = vb_cm_refuse(EOPNOTSUPP, call, "rsockets are not supported");

	vb_cm_log_tell();
	errno = err;
}

/* The parameters are named, and have no other use. */
#define ABSENT(type, name, ...)                                                                 \
	_Pragma("GCC diagnostic push") _Pragma("GCC diagnostic ignored \"-Wunused-parameter\"") \
	    VB_EXPORT type                                                                      \
	    name(__VA_ARGS__)                                                                   \
	{                                                                                       \
		absent(#name);                                                                  \
		return (type)-1;                                                                \
	}                                                                                       \
	_Pragma("GCC diagnostic pop")

ABSENT(int, rsocket, int domain, int type, int protocol)
ABSENT(int, rbind, int socket, const struct sockaddr *addr, socklen_t addrlen)
ABSENT(int, rlisten, int socket, int backlog)
ABSENT(int, raccept, int socket, struct sockaddr *addr, socklen_t *addrlen)
ABSENT(int, rconnect, int socket, const struct sockaddr *addr, socklen_t addrlen)
ABSENT(int, rshutdown, int socket, int how)
ABSENT(int, rclose, int socket)
ABSENT(ssize_t, rrecv, int socket, void *buf, size_t len, int flags)
ABSENT(ssize_t, rrecvfrom, int socket, void *buf, size_t len, int flags, struct sockaddr *src_addr,
       socklen_t *addrlen)
ABSENT(ssize_t, rrecvmsg, int socket, struct msghdr *msg, int flags)
ABSENT(ssize_t, rsend, int socket, const void *buf, size_t len, int flags)
ABSENT(ssize_t, rsendto, int socket, const void *buf, size_t len, int flags, const struct sockaddr *dest_addr,
       socklen_t addrlen)
ABSENT(ssize_t, rsendmsg, int socket, const struct msghdr *msg, int flags)
ABSENT(ssize_t, rread, int socket, void *buf, size_t count)
ABSENT(ssize_t, rreadv, int socket, const struct iovec *iov, int iovcnt)
ABSENT(ssize_t, rwrite, int socket, const void *buf, size_t count)
ABSENT(ssize_t, rwritev, int socket, const struct iovec *iov, int iovcnt)
ABSENT(int, rpoll, struct pollfd *fds, nfds_t nfds, int timeout)
ABSENT(int, rselect, int nfds, fd_set *readfds, fd_set *writefds, fd_set *exceptfds, struct timeval *timeout)
ABSENT(int, rgetpeername, int socket, struct sockaddr *addr, socklen_t *addrlen)
ABSENT(int, rgetsockname, int socket, struct sockaddr *addr, socklen_t *addrlen)
ABSENT(int, rsetsockopt, int socket, int level, int optname, const void *optval, socklen_t optlen)
ABSENT(int, rgetsockopt, int socket, int level, int optname, void *optval, socklen_t *optlen)
ABSENT(int, rfcntl, int socket, int cmd, ...)
ABSENT(off_t, riomap, int socket, void *buf, size_t len, int prot, int flags, off_t offset)
ABSENT(int, riounmap, int socket, void *buf, size_t len)
ABSENT(size_t, riowrite, int socket, const void *buf, size_t count, off_t offset, int flags)
ABSENT(int, repoll_create, int flags)
ABSENT(int, repoll_ctl, int repfd, int op, int fd, struct epoll_event *event)
ABSENT(int, repoll_wait, int repfd, struct epoll_event *events, int maxevents, int timeout)
