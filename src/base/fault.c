/* The variant's fault points; in the product this file is empty.  The linker sends the library's own calls
 * (and no others) of the functions below to __wrap_...: cmake/faults.cmake has the list. */
#ifdef VB_FAULTS
#include "base/fault.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <ifaddrs.h>
#include <pthread.h>
#include <signal.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

enum mode { OFF, COUNT, FAIL, FAIL_ON, KILL };

/* Read once from the environment; constant afterwards. */
static pthread_once_t once = PTHREAD_ONCE_INIT;
static enum mode mode;
static uint64_t at;

static _Atomic uint64_t points, calls; /* passed so far; every call is a point too */

static void say(const char *fmt, ...) __attribute__((format(printf, 1, 2)));
static void say(const char *fmt, ...)
{
	char line[256];
	va_list ap;
	int n;

	va_start(ap, fmt);
	n = vsnprintf(line, sizeof line, fmt, ap);
	va_end(ap);
	(void)!write(STDERR_FILENO, line, (size_t)n);
}

static void report(void)
{
	say("verbena: %llu fault points, %llu of them calls\n", (unsigned long long)atomic_load(&points),
	    (unsigned long long)atomic_load(&calls));
}

static void read_setting(void)
{
	const char *s = getenv("VERBENA_FAULT");

	if (!s || !*s)
		return;
	if (!strcmp(s, "count")) {
		mode = COUNT;
		atexit(report);
	} else if (!strncmp(s, "fail:", 5)) {
		mode = s[strlen(s) - 1] == '+' ? FAIL_ON : FAIL;
		at = strtoull(s + 5, NULL, 0);
	} else if (!strncmp(s, "kill:", 5)) {
		mode = KILL;
		at = strtoull(s + 5, NULL, 0);
	}
}

void vb_fault_point(const char *name)
{
	uint64_t n;

	(void)name;
	pthread_once(&once, read_setting);
	if (mode == OFF)
		return;
	n = atomic_fetch_add(&points, 1) + 1;
	if (mode == KILL && n == at)
		kill(getpid(), SIGKILL);
}

/* Whether this call is to fail; sets errno then. */
static bool fails(const char *name, int err)
{
	uint64_t n;

	vb_fault_point(name);
	if (mode == OFF)
		return false;
	n = atomic_fetch_add(&calls, 1) + 1;
	if (!((mode == FAIL && n == at) || (mode == FAIL_ON && n >= at)))
		return false;
	if (n == at)
		say("verbena: call %llu, %s, fails\n", (unsigned long long)n, name);
	errno = err;
	return true;
}

/* TYPE NAME(ARGUMENTS), called as NAME(PASSED), fails with ERR and returns BAD. */
#define WRAP(type, name, arguments, passed, err, bad)                  \
	type __real_##name arguments;                                  \
	type __wrap_##name arguments;                                  \
	type __wrap_##name arguments                                   \
	{                                                              \
		return fails(#name, err) ? bad : __real_##name passed; \
	}

WRAP(void *, malloc, (size_t n), (n), ENOMEM, NULL)
WRAP(void *, calloc, (size_t n, size_t size), (n, size), ENOMEM, NULL)
WRAP(void *, realloc, (void *p, size_t n), (p, n), ENOMEM, NULL)
WRAP(void *, aligned_alloc, (size_t align, size_t n), (align, n), ENOMEM, NULL)
WRAP(int, posix_memalign, (void **p, size_t align, size_t n), (p, align, n), ENOMEM, ENOMEM)
WRAP(char *, strdup, (const char *s), (s), ENOMEM, NULL)
WRAP(void *, mmap, (void *a, size_t n, int prot, int flags, int fd, off_t off), (a, n, prot, flags, fd, off),
     ENOMEM, MAP_FAILED)
WRAP(int, madvise, (void *a, size_t n, int advice), (a, n, advice), ENOMEM, -1)
WRAP(int, memfd_create, (const char *name, unsigned flags), (name, flags), EMFILE, -1)
WRAP(int, ftruncate, (int fd, off_t n), (fd, n), ENOMEM, -1)
WRAP(int, socket, (int domain, int type, int protocol), (domain, type, protocol), EMFILE, -1)
WRAP(int, accept4, (int fd, struct sockaddr *sa, socklen_t *len, int flags), (fd, sa, len, flags), EMFILE, -1)
WRAP(int, bind, (int fd, const struct sockaddr *sa, socklen_t len), (fd, sa, len), ENOMEM, -1)
WRAP(int, listen, (int fd, int backlog), (fd, backlog), ENOMEM, -1)
WRAP(int, connect, (int fd, const struct sockaddr *sa, socklen_t len), (fd, sa, len), ENOMEM, -1)
WRAP(int, epoll_create1, (int flags), (flags), EMFILE, -1)
WRAP(int, eventfd, (unsigned count, int flags), (count, flags), EMFILE, -1)
WRAP(int, dup, (int fd), (fd), EMFILE, -1)
WRAP(FILE *, fopen, (const char *path, const char *how), (path, how), EMFILE, NULL)
WRAP(FILE *, fdopen, (int fd, const char *how), (fd, how), ENOMEM, NULL)
WRAP(DIR *, opendir, (const char *path), (path), EMFILE, NULL)
WRAP(int, getifaddrs, (struct ifaddrs * *list), (list), ENOMEM, -1)
WRAP(ssize_t, sendmsg, (int fd, const struct msghdr *m, int flags), (fd, m, flags), ENOBUFS, -1)
WRAP(int, pthread_create, (pthread_t * t, const pthread_attr_t *attr, void *(*f)(void *), void *arg),
     (t, attr, f, arg), EAGAIN, EAGAIN)
WRAP(int, pthread_key_create, (pthread_key_t * key, void (*f)(void *)), (key, f), EAGAIN, EAGAIN)
WRAP(ssize_t, process_vm_readv,
     (pid_t pid, const struct iovec *l, unsigned long nl, const struct iovec *r, unsigned long nr,
      unsigned long flags),
     (pid, l, nl, r, nr, flags), ENOMEM, -1)
WRAP(ssize_t, process_vm_writev,
     (pid_t pid, const struct iovec *l, unsigned long nl, const struct iovec *r, unsigned long nr,
      unsigned long flags),
     (pid, l, nl, r, nr, flags), ENOMEM, -1)
WRAP(void *, shmat, (int id, const void *a, int flags), (id, a, flags), ENOMEM, (void *)-1)

/* Only adding takes memory. */
int __real_epoll_ctl(int ep, int op, int fd, struct epoll_event *ev);
int __wrap_epoll_ctl(int ep, int op, int fd, struct epoll_event *ev);
int __wrap_epoll_ctl(int ep, int op, int fd, struct epoll_event *ev)
{
	if (op == EPOLL_CTL_ADD && fails("epoll_ctl", ENOSPC))
		return -1;
	return __real_epoll_ctl(ep, op, fd, ev);
}

/* Only duplicating makes a descriptor. */
int __real_fcntl(int fd, int cmd, ...);
int __wrap_fcntl(int fd, int cmd, ...);
int __wrap_fcntl(int fd, int cmd, ...)
{
	va_list ap;
	void *arg;

	va_start(ap, cmd);
	arg = va_arg(ap, void *);
	va_end(ap);
	if ((cmd == F_DUPFD_CLOEXEC || cmd == F_DUPFD) && fails("fcntl", EMFILE))
		return -1;
	return __real_fcntl(fd, cmd, arg);
}

int __real_open(const char *path, int flags, ...);
int __wrap_open(const char *path, int flags, ...);
int __wrap_open(const char *path, int flags, ...)
{
	va_list ap;
	mode_t m;

	va_start(ap, flags);
	m = va_arg(ap, mode_t);
	va_end(ap);
	return fails("open", EMFILE) ? -1 : __real_open(path, flags, m);
}

/* Of those that the library makes this way, two make descriptors. */
long __real_syscall(long number, ...);
long __wrap_syscall(long number, ...);
/* Six arguments are passed on, however many there are: AddressSanitizer would mind the rest. */
__attribute__((no_sanitize("address"))) long __wrap_syscall(long number, ...)
{
	long arg[6];
	va_list ap;

	va_start(ap, number);
	for (int i = 0; i < 6; i++)
		arg[i] = va_arg(ap, long);
	va_end(ap);
	if ((number == SYS_pidfd_open || number == SYS_openat2) && fails("a descriptor by syscall()", EMFILE))
		return -1;
	return __real_syscall(number, arg[0], arg[1], arg[2], arg[3], arg[4], arg[5]);
}

/* A full table of descriptors does not fail the call: the last descriptor is missing. */
static void lose_descriptor(const char *name, struct msghdr *m)
{
	struct cmsghdr *c = CMSG_FIRSTHDR(m);
	int got;

	if (!c || c->cmsg_type != SCM_RIGHTS || !fails(name, EMFILE))
		return;
	c->cmsg_len -= sizeof got;
	memcpy(&got, (char *)c + c->cmsg_len, sizeof got);
	close(got);
	m->msg_controllen = c->cmsg_len > CMSG_LEN(0) ? c->cmsg_len : 0;
	m->msg_flags |= MSG_CTRUNC;
}

ssize_t __real_recvmsg(int fd, struct msghdr *m, int flags);
ssize_t __wrap_recvmsg(int fd, struct msghdr *m, int flags);
ssize_t __wrap_recvmsg(int fd, struct msghdr *m, int flags)
{
	ssize_t n = __real_recvmsg(fd, m, flags);

	if (n >= 0)
		lose_descriptor("recvmsg", m);
	return n;
}

int __real_recvmmsg(int fd, struct mmsghdr *m, unsigned count, int flags, struct timespec *limit);
int __wrap_recvmmsg(int fd, struct mmsghdr *m, unsigned count, int flags, struct timespec *limit);
int __wrap_recvmmsg(int fd, struct mmsghdr *m, unsigned count, int flags, struct timespec *limit)
{
	int n = __real_recvmmsg(fd, m, count, flags, limit);

	for (int i = 0; i < n; i++)
		lose_descriptor("recvmmsg", &m[i].msg_hdr);
	return n;
}
#endif
