#include "base/own.h"

#include <errno.h>
#include <fcntl.h>
#include <sys/epoll.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/sysmacros.h>
#include <unistd.h>

/* 0, or errno.  By statx(), which the ThreadSanitizer of a program does not know: it would report that one
 * thread of the library looks at what another one opened, since it does not see the library's locks. */
static int look(int fd, struct vb_own *found)
{
	struct statx x;
	struct stat st;

	if (!statx(fd, "", AT_EMPTY_PATH, STATX_INO, &x)) {
		*found = (struct vb_own){.dev = makedev(x.stx_dev_major, x.stx_dev_minor), .ino = x.stx_ino};
		return 0;
	}
	if (errno == EBADF || fstat(fd, &st)) /* a sandbox may permit the older call only */
		return errno;
	*found = (struct vb_own){.dev = st.st_dev, .ino = st.st_ino};
	return 0;
}

struct vb_own vb_own_of(int fd)
{
	struct vb_own o = {0};
	int err = errno;

	(void)look(fd, &o);
	errno = err;
	return o;
}

bool vb_own_is(const struct vb_own *o, int fd)
{
	struct vb_own found;
	int err = errno, failed;

	if (fd < 0)
		return false;
	failed = look(fd, &found);
	errno = err;
	if (failed) /* forbidden: as if nobody had looked */
		return failed != EBADF;
	return !o->ino || (found.dev == o->dev && found.ino == o->ino);
}

int vb_own_high(int fd)
{
	enum { HIGH = 1024 };
	struct rlimit r;
	int up;

	if (fd < 0 || getrlimit(RLIMIT_NOFILE, &r))
		return fd;
	up = fcntl(fd, F_DUPFD_CLOEXEC, (int)(r.rlim_cur < HIGH ? r.rlim_cur : HIGH) / 2);
	if (up < 0)
		return fd;
	syscall(SYS_close, fd); /* no cancellation point: callers hold locks */
	return up;
}

void vb_own_close(const struct vb_own *o, int fd)
{
	if (vb_own_is(o, fd))
		close(fd);
}

static int ask(int set, int op, int fd)
{
	struct epoll_event none = {0};

	return epoll_ctl(set, op, fd, &none) ? errno : 0;
}

bool vb_own_set_is_ours(const struct vb_own_set *s)
{
	int err = errno, answer;

	if (!vb_own_is(&s->own, s->anchor))
		return false;
	answer = ask(s->set, EPOLL_CTL_MOD, s->anchor);
	errno = err;
	return !answer || answer == EPERM;
}

int vb_own_set_open(struct vb_own_set *s)
{
	int err;

	*s = VB_OWN_SET_NONE;
	s->set = vb_own_high(epoll_create1(EPOLL_CLOEXEC));
	if (s->set < 0)
		return errno;
	s->anchor = vb_own_high(socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0));
	if (s->anchor < 0) {
		err = errno;
	} else {
		s->own = vb_own_of(s->anchor);
		err = vb_own_set_add(s, s->anchor);
	}
	if (!err)
		return 0;
	if (s->anchor >= 0)
		close(s->anchor);
	close(s->set);
	*s = VB_OWN_SET_NONE;
	return err;
}

void vb_own_set_close(struct vb_own_set *s)
{
	if (vb_own_set_is_ours(s)) {
		close(s->set);
		close(s->anchor);
	}
	*s = VB_OWN_SET_NONE;
}

int vb_own_set_add(const struct vb_own_set *s, int fd)
{
	int err = errno, answer = ask(s->set, EPOLL_CTL_ADD, fd);

	errno = err;
	return answer == EPERM ? 0 : answer; /* forbidden by a sandbox: then nobody can look either */
}

bool vb_own_set_has(const struct vb_own_set *s, const struct vb_own *o, int fd)
{
	int err = errno, answer;

	if (fd < 0 || !vb_own_is(&s->own, s->anchor))
		return false;
	answer = ask(s->set, EPOLL_CTL_MOD, fd);
	errno = err;
	return !answer || (answer == EPERM && vb_own_is(o, fd));
}

void vb_own_set_drop(const struct vb_own_set *s, const struct vb_own *o, int fd)
{
	int err = errno;

	/* A forked child may hold the description, so that closing alone would leave it in the set. */
	if (vb_own_set_has(s, o, fd)) {
		ask(s->set, EPOLL_CTL_DEL, fd);
		close(fd);
	}
	errno = err;
}
