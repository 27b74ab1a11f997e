/* libverbena-view.so: stands in for the C library's functions that take paths, and shows a program the files
 * of Verbena's devices in /sys/class/infiniband, /sys/class/infiniband_verbs and /dev/infiniband.
 *
 * It must be safe in any process.  A path elsewhere costs one comparison and goes on to the next library that
 * has the function: nothing is allocated or locked.  The constructor only looks up those functions, so that
 * later calls may come from signal handlers. */
#undef _FORTIFY_SOURCE
#include "view.h"

#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <sys/xattr.h>
#include <unistd.h>

#include "base/quiet.h"
#include "view_live.h"
#include "view_next.h"

#define SLOW __attribute__((noinline, cold)) /* keeps large frames out of calls that pass on */

_Static_assert(sizeof(struct stat) == sizeof(struct stat64),
	       "with and without 64 in its name a function takes the same structure");

/* What the fortified headers call. */
int __open_2(const char *path, int flags);
int __open64_2(const char *path, int flags);
int __openat_2(int dir, const char *path, int flags);
int __openat64_2(int dir, const char *path, int flags);
char *__realpath_chk(const char *path, char *out, size_t size);
ssize_t __readlink_chk(const char *path, char *buf, size_t len, size_t size);
ssize_t __readlinkat_chk(int dir, const char *path, char *buf, size_t len, size_t size);
/* What programs built before glibc 2.33 call. */
int __xstat(int version, const char *path, struct stat *st);
int __xstat64(int version, const char *path, struct stat64 *st);
int __lxstat(int version, const char *path, struct stat *st);
int __lxstat64(int version, const char *path, struct stat64 *st);
int __fxstatat(int version, int dir, const char *path, struct stat *st, int flags);
int __fxstatat64(int version, int dir, const char *path, struct stat64 *st, int flags);

#define NAME(name) #name,
static const char *const names[] = {VB_VIEW_FUNCTIONS(NAME)};
void *_Atomic vb_view_functions[F_COUNT];

void *vb_view_find_next(enum function f)
{
	void *p = dlsym(RTLD_NEXT, names[f]);

	atomic_store_explicit(&vb_view_functions[f], p, memory_order_relaxed);
	return p;
}

static __attribute__((constructor)) void find_all(void)
{
	for (int f = 0; f < F_COUNT; f++)
		vb_view_find_next((enum function)f);
}

/* The node of a path in the view.  false: `moved` holds the path that is meant, outside of it; else *err is 0
 * or the errno. */
static bool find(const char *path, struct vb_view_node *n, char moved[PATH_MAX], int *err)
{
	int found = vb_view_find(path, n, moved);

	*err = found > 0 ? found : 0;
	return found;
}

static int fail(int err)
{
	errno = err;
	return -1;
}

/* ---- opening ---- */

#define SEALS (F_SEAL_WRITE | F_SEAL_GROW | F_SEAL_SHRINK | F_SEAL_SEAL)

static int open_file(const struct vb_view_node *n, int flags)
{
	size_t len = strlen(n->text);
	int fd = memfd_create("verbena-view", MFD_ALLOW_SEALING | (flags & O_CLOEXEC ? MFD_CLOEXEC : 0));

	if (fd < 0)
		return -1;
	if (vb_write_quietly(fd, n->text, len) != (ssize_t)len || lseek(fd, 0, SEEK_SET) ||
	    (strstr(n->path, "counters/") ? !vb_view_live_enter(fd, n->path)
					  : fcntl(fd, F_ADD_SEALS, SEALS))) {
		close(fd);
		return fail(EIO);
	}
	return fd;
}

static SLOW int open_in_view(const char *path, int flags, mode_t mode)
{
	struct vb_view_node n;
	char moved[PATH_MAX];
	int err;

	if (!find(path, &n, moved, &err))
		return NEXT(open)(moved, flags, mode);
	if (err)
		return fail(err);
	if ((flags & O_CREAT) && (flags & O_EXCL))
		return fail(EEXIST);
	if (n.kind == VB_VIEW_DIR) /* no descriptor can stand for a directory that does not exist */
		return fail((flags & O_ACCMODE) == O_RDONLY ? EOPNOTSUPP : EISDIR);
	if (flags & O_DIRECTORY)
		return fail(ENOTDIR);
	if (n.kind == VB_VIEW_DEVICE)
		return NEXT(open)("/dev/null", flags & ~(O_CREAT | O_TRUNC | O_NOFOLLOW), 0);
	return (flags & O_ACCMODE) == O_RDONLY ? open_file(&n, flags) : fail(EACCES);
}

#define HAS_MODE(flags) (((flags)&O_CREAT) || ((flags)&O_TMPFILE) == O_TMPFILE)

#define OPEN(name)                                                                      \
	EXPORT int name(const char *path, int flags, ...)                               \
	{                                                                               \
		mode_t mode = 0;                                                        \
		va_list ap;                                                             \
                                                                                        \
		if (HAS_MODE(flags)) {                                                  \
			va_start(ap, flags);                                            \
			mode = va_arg(ap, mode_t);                                      \
			va_end(ap);                                                     \
		}                                                                       \
		return vb_view_takes(AT_FDCWD, &path) ? open_in_view(path, flags, mode) \
						      : NEXT(name)(path, flags, mode);  \
	}

#define OPENAT(name)                                                                   \
	EXPORT int name(int dir, const char *path, int flags, ...)                     \
	{                                                                              \
		mode_t mode = 0;                                                       \
		va_list ap;                                                            \
                                                                                       \
		if (HAS_MODE(flags)) {                                                 \
			va_start(ap, flags);                                           \
			mode = va_arg(ap, mode_t);                                     \
			va_end(ap);                                                    \
		}                                                                      \
		return vb_view_takes(dir, &path) ? open_in_view(path, flags, mode)     \
						 : NEXT(name)(dir, path, flags, mode); \
	}

#define OPEN_2(name)                                                                 \
	EXPORT int name(const char *path, int flags)                                 \
	{                                                                            \
		return vb_view_takes(AT_FDCWD, &path) ? open_in_view(path, flags, 0) \
						      : NEXT(name)(path, flags);     \
	}

#define OPENAT_2(name)                                                           \
	EXPORT int name(int dir, const char *path, int flags)                    \
	{                                                                        \
		return vb_view_takes(dir, &path) ? open_in_view(path, flags, 0)  \
						 : NEXT(name)(dir, path, flags); \
	}

OPEN(open)
OPEN(open64)
OPENAT(openat)
OPENAT(openat64)
OPEN_2(__open_2)
OPEN_2(__open64_2)
OPENAT_2(__openat_2)
OPENAT_2(__openat64_2)

static SLOW FILE *fopen_in_view(const char *path, const char *mode)
{
	bool both = strchr(mode, '+');
	int flags = both ? O_RDWR : *mode == 'r' ? O_RDONLY : O_WRONLY;
	int err, fd = open_in_view(
		     path, flags | (*mode == 'r' ? 0 : O_CREAT) | (strchr(mode, 'e') ? O_CLOEXEC : 0), 0666);
	FILE *f;

	if (fd < 0)
		return NULL;
	f = fdopen(fd, mode);
	if (!f) {
		err = errno;
		close(fd);
		errno = err;
	}
	return f;
}

#define FOPEN(name)                                                                                         \
	EXPORT FILE *name(const char *path, const char *mode)                                               \
	{                                                                                                   \
		return vb_view_takes(AT_FDCWD, &path) ? fopen_in_view(path, mode) : NEXT(name)(path, mode); \
	}

FOPEN(fopen)
FOPEN(fopen64)

/* ---- looking at ---- */

#define DEVICE_MAJOR 231 /* as the kernel numbers uverbs devices */

static mode_t mode_of(const struct vb_view_node *n)
{
	return n->kind == VB_VIEW_DIR	 ? S_IFDIR | 0755
	       : n->kind == VB_VIEW_FILE ? S_IFREG | 0444
					 : S_IFCHR | 0666;
}

static SLOW int stat_in_view(const char *path, struct stat *st, int flags)
{
	struct vb_view_node n;
	char moved[PATH_MAX];
	int err;

	if (!find(path, &n, moved, &err))
		return NEXT(fstatat)(AT_FDCWD, moved, st, flags);
	if (err)
		return fail(err);
	memset(st, 0, sizeof(*st));
	st->st_ino = n.ino;
	st->st_mode = mode_of(&n);
	st->st_nlink = n.kind == VB_VIEW_DIR ? 2 : 1;
	st->st_size = (off_t)strlen(n.text);
	st->st_blksize = 4096;
	if (n.kind == VB_VIEW_DEVICE)
		st->st_rdev = makedev(DEVICE_MAJOR, n.minor);
	return 0;
}

static SLOW int statx_in_view(const char *path, int flags, unsigned mask, struct statx *stx)
{
	struct vb_view_node n;
	char moved[PATH_MAX];
	int err;

	if (!find(path, &n, moved, &err))
		return NEXT(statx)(AT_FDCWD, moved, flags, mask, stx);
	if (err)
		return fail(err);
	memset(stx, 0, sizeof(*stx));
	stx->stx_mask = STATX_BASIC_STATS;
	stx->stx_ino = n.ino;
	stx->stx_mode = (uint16_t)mode_of(&n);
	stx->stx_nlink = n.kind == VB_VIEW_DIR ? 2 : 1;
	stx->stx_size = strlen(n.text);
	stx->stx_blksize = 4096;
	if (n.kind == VB_VIEW_DEVICE) {
		stx->stx_rdev_major = DEVICE_MAJOR;
		stx->stx_rdev_minor = n.minor;
	}
	return 0;
}

#define STAT(name, type, flags)                                                                      \
	EXPORT int name(const char *path, struct type *st)                                           \
	{                                                                                            \
		return vb_view_takes(AT_FDCWD, &path) ? stat_in_view(path, (struct stat *)st, flags) \
						      : NEXT(name)(path, st);                        \
	}

#define STATAT(name, type)                                                                      \
	EXPORT int name(int dir, const char *path, struct type *st, int flags)                  \
	{                                                                                       \
		return vb_view_takes(dir, &path) ? stat_in_view(path, (struct stat *)st, flags) \
						 : NEXT(name)(dir, path, st, flags);            \
	}

/* On 64-bit machines the structure never had another version. */
#define XSTAT(name, type, as)                                           \
	EXPORT int name(int version, const char *path, struct type *st) \
	{                                                               \
		(void)version;                                          \
		return as(path, st);                                    \
	}

#define XSTATAT(name, type, as)                                                             \
	EXPORT int name(int version, int dir, const char *path, struct type *st, int flags) \
	{                                                                                   \
		(void)version;                                                              \
		return as(dir, path, st, flags);                                            \
	}

STAT(stat, stat, 0)
STAT(stat64, stat64, 0)
STAT(lstat, stat, AT_SYMLINK_NOFOLLOW)
STAT(lstat64, stat64, AT_SYMLINK_NOFOLLOW)
STATAT(fstatat, stat)
STATAT(fstatat64, stat64)
XSTAT(__xstat, stat, stat)
XSTAT(__xstat64, stat64, stat64)
XSTAT(__lxstat, stat, lstat)
XSTAT(__lxstat64, stat64, lstat64)
XSTATAT(__fxstatat, stat, fstatat)
XSTATAT(__fxstatat64, stat64, fstatat64)

EXPORT int statx(int dir, const char *path, int flags, unsigned mask, struct statx *stx)
{
	return vb_view_takes(dir, &path) ? statx_in_view(path, flags, mask, stx)
					 : NEXT(statx)(dir, path, flags, mask, stx);
}

static SLOW int access_in_view(const char *path, int mode)
{
	struct vb_view_node n;
	char moved[PATH_MAX];
	int err;

	if (!find(path, &n, moved, &err))
		return NEXT(access)(moved, mode);
	if (err)
		return fail(err);
	if ((mode & W_OK) && n.kind != VB_VIEW_DEVICE)
		return fail(EACCES);
	if ((mode & X_OK) && n.kind != VB_VIEW_DIR)
		return fail(EACCES);
	return 0;
}

#define ACCESS(name)                                                                                         \
	EXPORT int name(const char *path, int mode)                                                          \
	{                                                                                                    \
		return vb_view_takes(AT_FDCWD, &path) ? access_in_view(path, mode) : NEXT(name)(path, mode); \
	}

ACCESS(access)
ACCESS(eaccess)
ACCESS(euidaccess)

EXPORT int faccessat(int dir, const char *path, int mode, int flags)
{
	return vb_view_takes(dir, &path) ? access_in_view(path, mode)
					 : NEXT(faccessat)(dir, path, mode, flags);
}

static SLOW char *realpath_in_view(const char *path, char *out)
{
	struct vb_view_node n;
	char moved[PATH_MAX];
	int err;

	if (!find(path, &n, moved, &err))
		return NEXT(realpath)(moved, out);
	if (err) {
		errno = err;
		return NULL;
	}
	return out ? strcpy(out, n.path) : strdup(n.path);
}

EXPORT char *realpath(const char *path, char *out)
{
	return vb_view_takes(AT_FDCWD, &path) ? realpath_in_view(path, out) : NEXT(realpath)(path, out);
}

EXPORT char *__realpath_chk(const char *path, char *out, size_t size)
{
	/* a buffer that is too small is the next library's to complain of */
	return vb_view_takes(AT_FDCWD, &path) && size >= PATH_MAX ? realpath_in_view(path, out)
								  : NEXT(__realpath_chk)(path, out, size);
}

EXPORT char *canonicalize_file_name(const char *path)
{
	return vb_view_takes(AT_FDCWD, &path) ? realpath_in_view(path, NULL)
					      : NEXT(canonicalize_file_name)(path);
}

/* There are no symbolic links. */
static SLOW ssize_t readlink_in_view(const char *path, char *buf, size_t len)
{
	struct vb_view_node n;
	char moved[PATH_MAX];
	int err;

	if (!find(path, &n, moved, &err))
		return NEXT(readlink)(moved, buf, len);
	return fail(err ? err : EINVAL);
}

EXPORT ssize_t readlink(const char *path, char *buf, size_t len)
{
	return vb_view_takes(AT_FDCWD, &path) ? readlink_in_view(path, buf, len)
					      : NEXT(readlink)(path, buf, len);
}

EXPORT ssize_t readlinkat(int dir, const char *path, char *buf, size_t len)
{
	return vb_view_takes(dir, &path) ? readlink_in_view(path, buf, len)
					 : NEXT(readlinkat)(dir, path, buf, len);
}

EXPORT ssize_t __readlink_chk(const char *path, char *buf, size_t len, size_t size)
{
	return vb_view_takes(AT_FDCWD, &path) && len <= size ? readlink_in_view(path, buf, len)
							     : NEXT(__readlink_chk)(path, buf, len, size);
}

EXPORT ssize_t __readlinkat_chk(int dir, const char *path, char *buf, size_t len, size_t size)
{
	return vb_view_takes(dir, &path) && len <= size ? readlink_in_view(path, buf, len)
							: NEXT(__readlinkat_chk)(dir, path, buf, len, size);
}

/* There are no extended attributes; `ls -l` asks for access lists. */
static SLOW ssize_t no_xattr(const char *path)
{
	struct vb_view_node n;
	char moved[PATH_MAX];
	int err;

	find(path, &n, moved, &err);
	return fail(err ? err : ENOTSUP);
}

EXPORT ssize_t getxattr(const char *path, const char *name, void *value, size_t size)
{
	return vb_view_takes(AT_FDCWD, &path) ? no_xattr(path) : NEXT(getxattr)(path, name, value, size);
}

EXPORT ssize_t lgetxattr(const char *path, const char *name, void *value, size_t size)
{
	return vb_view_takes(AT_FDCWD, &path) ? no_xattr(path) : NEXT(lgetxattr)(path, name, value, size);
}

EXPORT ssize_t listxattr(const char *path, char *list, size_t size)
{
	return vb_view_takes(AT_FDCWD, &path) ? no_xattr(path) : NEXT(listxattr)(path, list, size);
}

EXPORT ssize_t llistxattr(const char *path, char *list, size_t size)
{
	return vb_view_takes(AT_FDCWD, &path) ? no_xattr(path) : NEXT(llistxattr)(path, list, size);
}
