/* A working directory in the view.  The kernel has none there: it keeps this process in an empty directory
 * meanwhile, where a relative path of what is not stood in for, or of a program that is started, finds
 * nothing. */
#undef _FORTIFY_SOURCE
#include "view.h"

#include <errno.h>
#include <fcntl.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#include "view_next.h"

#define SLOW __attribute__((noinline, cold))

char *__getcwd_chk(char *buf, size_t size, size_t room);

/* Empty in every procfs, and no program goes there by itself.  Where it is hidden nobody enters the view. */
#define PLACE "/proc/tty/ldisc"

/* Which place the kernel keeps it in, and what it stands for.  A child of vfork() has all this in common with
 * its parent, and a working directory of its own: so what counts is where the kernel has the process. */
static struct {
	dev_t dev;
	ino_t ino;
	char path[sizeof(((struct vb_view_node *)0)->path)];
} cwd[2]; /* by turns, so that none changes under a thread that reads it */

atomic_int vb_view_entered; /* 0: no directory of the view was entered; else 1 + its index */

SLOW const char *vb_view_cwd(void)
{
	int i = atomic_load(&vb_view_entered) - 1, err = errno;
	struct stat st;
	bool there;

	there = i >= 0 && !NEXT(fstatat)(AT_FDCWD, ".", &st, 0) && st.st_dev == cwd[i].dev &&
		st.st_ino == cwd[i].ino;
	errno = err;
	return there ? cwd[i].path : NULL;
}

SLOW const char *vb_view_from_outside(int dir, const char *path)
{
	static __thread char whole[512]; /* more than any path of the view has */
	char link[64] = "/proc/thread-self/cwd";
	size_t len = strlen(path);
	int err = errno;
	ssize_t n;

	if (dir != AT_FDCWD)
		snprintf(link, sizeof(link), "/proc/thread-self/fd/%d", dir);
	n = NEXT(readlink)(link, whole, sizeof(whole));
	errno = err;
	if (n <= 0 || whole[0] != '/' || (size_t)n + len + 2 > sizeof(whole))
		return NULL;
	whole[n] = '/';
	memcpy(whole + n + 1, path, len + 1);
	return vb_view_begins(whole) ? whole : NULL;
}

static int enter(const char *path)
{
	int i = atomic_load(&vb_view_entered) == 1; /* the other one */
	struct stat st;

	if (NEXT(stat)(PLACE, &st) || NEXT(chdir)(PLACE))
		return -1;
	cwd[i].dev = st.st_dev;
	cwd[i].ino = st.st_ino;
	strcpy(cwd[i].path, path);
	atomic_store(&vb_view_entered, 1 + i);
	return 0;
}

static SLOW int chdir_in_view(const char *path)
{
	struct vb_view_node n;
	char moved[PATH_MAX];
	int found = vb_view_find(path, &n, moved);

	if (!found)
		return NEXT(chdir)(moved);
	if (found > 0 || n.kind != VB_VIEW_DIR) {
		errno = found > 0 ? found : ENOTDIR;
		return -1;
	}
	return enter(n.path);
}

EXPORT int chdir(const char *path)
{
	return vb_view_takes(AT_FDCWD, &path) ? chdir_in_view(path) : NEXT(chdir)(path);
}

/* As getcwd(3) has it: NULL is memory from malloc(), of that size or as much as it takes. */
static SLOW char *copy_cwd(const char *path, char *buf, size_t size)
{
	size_t need = strlen(path) + 1;

	if (buf && !size) {
		errno = EINVAL;
		return NULL;
	}
	if (size ? size < need : false) {
		errno = ERANGE;
		return NULL;
	}
	if (!buf)
		buf = malloc(size ? size : need);
	return buf ? strcpy(buf, path) : NULL;
}

static const char *own_cwd(void)
{
	return atomic_load_explicit(&vb_view_entered, memory_order_relaxed) ? vb_view_cwd() : NULL;
}

EXPORT char *getcwd(char *buf, size_t size)
{
	const char *path = own_cwd();

	return path ? copy_cwd(path, buf, size) : NEXT(getcwd)(buf, size);
}

EXPORT char *__getcwd_chk(char *buf, size_t size, size_t room)
{
	const char *path = own_cwd();

	return path && size <= room ? copy_cwd(path, buf, size) : NEXT(__getcwd_chk)(buf, size, room);
}

EXPORT char *get_current_dir_name(void)
{
	const char *path = own_cwd();

	return path ? copy_cwd(path, NULL, 0) : NEXT(get_current_dir_name)();
}
