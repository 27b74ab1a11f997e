/* glob(3), whose own calls of opendir(3) and stat(2) stay within the C library: it is given ours. */
#undef _FORTIFY_SOURCE
#include "view.h"

#include <dirent.h>
#include <glob.h>
#include <sys/stat.h>

#include "view_next.h"

_Static_assert(sizeof(glob_t) == sizeof(glob64_t),
	       "with and without 64 in its name a function takes the same structure");

typedef int on_error(const char *path, int err);

/* Also a pattern whose first letters that match the view are a pattern themselves. */
static bool is_near(const char *pattern)
{
	return pattern[0] != '/' ? strstr(pattern, "infiniband") || vb_view_begins(pattern)
				 : vb_view_begins(pattern) || !strncmp(pattern, "/sys/class/", 11) ||
				       !strncmp(pattern, "/dev/inf", 8);
}

static void *open_dir(const char *path)
{
	return opendir(path);
}

static struct dirent *read_dir(void *d)
{
	return readdir(d);
}

static void close_dir(void *d)
{
	closedir(d);
}

static int look(const char *restrict path, struct stat *restrict st)
{
	return stat(path, st);
}

static int look_at_link(const char *restrict path, struct stat *restrict st)
{
	return lstat(path, st);
}

static __attribute__((noinline, cold)) int glob_in_view(const char *pattern, int flags, on_error *failed,
							glob_t *g)
{
	int result;

	g->gl_opendir = open_dir;
	g->gl_readdir = read_dir;
	g->gl_closedir = close_dir;
	g->gl_stat = look;
	g->gl_lstat = look_at_link;
	result = NEXT(glob)(pattern, flags | GLOB_ALTDIRFUNC, failed, g);
	g->gl_flags &= ~GLOB_ALTDIRFUNC;
	return result;
}

EXPORT int glob(const char *pattern, int flags, on_error *failed, glob_t *g)
{
	return is_near(pattern) && !(flags & GLOB_ALTDIRFUNC) ? glob_in_view(pattern, flags, failed, g)
							      : NEXT(glob)(pattern, flags, failed, g);
}

EXPORT int glob64(const char *pattern, int flags, on_error *failed, glob64_t *g)
{
	return is_near(pattern) && !(flags & GLOB_ALTDIRFUNC)
		   ? glob_in_view(pattern, flags, failed, (glob_t *)g)
		   : NEXT(glob64)(pattern, flags, failed, g);
}
