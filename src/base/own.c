#include "base/own.h"

#include <errno.h>
#include <fcntl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

struct vb_own vb_own_of(int fd)
{
	struct stat st;
	int err = errno;

	if (fstat(fd, &st)) {
		errno = err;
		return (struct vb_own){0};
	}
	return (struct vb_own){.dev = st.st_dev, .ino = st.st_ino};
}

bool vb_own_is(const struct vb_own *o, int fd)
{
	struct stat st;
	int err = errno;
	bool is;

	if (fd < 0)
		return false;
	if (fstat(fd, &st))
		is = errno != EBADF; /* forbidden: as if nobody had looked */
	else
		is = !o->ino || (st.st_dev == o->dev && st.st_ino == o->ino);
	errno = err;
	return is;
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
	close(fd);
	return up;
}

void vb_own_close(const struct vb_own *o, int fd)
{
	if (vb_own_is(o, fd))
		close(fd);
}
