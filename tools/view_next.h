/* The functions that the preload stands in for, and the next library's of each. */
#ifndef VB_TOOLS_VIEW_NEXT_H
#define VB_TOOLS_VIEW_NEXT_H

#include <stdatomic.h>
#include <stddef.h>

#define EXPORT __attribute__((visibility("default")))

/* clang-format off */
#define VB_VIEW_FUNCTIONS(X) \
	X(open) X(open64) X(__open_2) X(__open64_2) X(openat) X(openat64) X(__openat_2) \
	X(__openat64_2) X(fopen) X(fopen64) \
	X(stat) X(stat64) X(lstat) X(lstat64) X(fstatat) X(fstatat64) X(statx) X(access) \
	X(faccessat) X(eaccess) X(euidaccess) \
	X(realpath) X(__realpath_chk) X(canonicalize_file_name) X(readlink) X(readlinkat) \
	X(__readlink_chk) X(__readlinkat_chk) \
	X(getxattr) X(lgetxattr) X(listxattr) X(llistxattr) \
	X(opendir) X(readdir) X(readdir64) X(readdir_r) X(readdir64_r) X(closedir) X(rewinddir) X(telldir) X(seekdir) \
	X(read) X(pread) X(pread64) \
	X(dirfd) X(scandir) X(scandir64) X(glob) X(glob64) \
	X(chdir) X(getcwd) X(__getcwd_chk) X(get_current_dir_name) \
	X(sigaction) X(__sigaction) X(signal) X(bsd_signal) X(ssignal) X(sysv_signal) \
	X(__sysv_signal) X(sigset) X(sigignore)
/* clang-format on */

#define VB_VIEW_NUMBER(name) F_##name,
enum function { VB_VIEW_FUNCTIONS(VB_VIEW_NUMBER) F_COUNT };

extern void *_Atomic vb_view_functions[F_COUNT];
void *vb_view_find_next(enum function f);

static inline void *function(enum function f)
{
	void *p = atomic_load_explicit(&vb_view_functions[f], memory_order_relaxed);

	return __builtin_expect(p != NULL, 1) ? p : vb_view_find_next(f);
}

#define NEXT(name) ((__typeof__(&name))function(F_##name))

#endif
