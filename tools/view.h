/* The files that a kernel shows for an RDMA device, as the preloaded view shows them for Verbena's devices.
 */
#ifndef VB_TOOLS_VIEW_H
#define VB_TOOLS_VIEW_H

#include <fcntl.h>
#include <limits.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <string.h>

enum vb_view_kind { VB_VIEW_DIR, VB_VIEW_FILE, VB_VIEW_DEVICE };

struct vb_view_node {
	enum vb_view_kind kind;
	uint64_t ino;
	unsigned minor; /* of a device */
	char path[128]; /* absolute */
	char text[128]; /* a file's contents */
};

struct vb_view_facts;
/* The i-th node of the view; false: there are not so many. */
bool vb_view_row(const struct vb_view_facts *f, unsigned i, struct vb_view_node *n);

/* A path that begins in the view, or is relative to a directory of it.  Returns -1 with n filled, a positive
 * errno (ENOENT, ENOTDIR), or 0 where
 * ".." leads out of it: then `out` is the same path without that detour. */
int vb_view_find(const char *path, struct vb_view_node *n, char out[PATH_MAX]);

/* The directory of the view that is this process's working directory; NULL: it is elsewhere. */
const char *vb_view_cwd(void);
extern atomic_int vb_view_entered; /* 0: it was never in the view */

/* Whether an absolute path without "//" and "/./" begins in the view. */
static inline bool vb_view_begins_tidily(const char *path)
{
	size_t n;

	if (path[1] == 's' && !strncmp(path, "/sys/class/infiniband", 21)) {
		/* also infiniband_mad and the like, which a kernel with a device has and the view has not */
		n = path[21] == '_' ? 21 + strcspn(path + 21, "/") : 21;
		return path[n] == '/' || path[n] == '\0';
	}
	return path[1] == 'd' && !strncmp(path, "/dev/infiniband", 15) &&
	       (path[15] == '/' || path[15] == '\0');
}

bool vb_view_begins_untidily(const char *path);

/* Whether a path begins in the view.  All that other paths cost. */
static inline bool vb_view_begins(const char *path)
{
	/* the functions that are stood in for promise the compiler never to get NULL, but they may */
	__asm__("" : "+r"(path));
	if (!path)
		return false;
	if (path[0] != '/')
		return __builtin_expect(atomic_load_explicit(&vb_view_entered, memory_order_relaxed), 0) &&
		       *path && vb_view_cwd();
	if (vb_view_begins_tidily(path))
		return true;
	if (path[1] != '/' && path[1] != '.' && strncmp(path, "/sys/", 5) && strncmp(path, "/dev/", 5))
		return false;
	return strstr(path, "infiniband") && vb_view_begins_untidily(path);
}

/* The absolute path where a relative one leads into the view from outside, kept until the thread's next call;
 * else NULL. */
const char *vb_view_from_outside(int dir, const char *path);

/* Whether a path, which may be relative to the descriptor of a directory, is in the view; makes it one that
 * vb_view_find() understands. */
static inline bool vb_view_takes(int dir, const char **path)
{
	const char *at = *path;

	__asm__("" : "+r"(at));
	if (!at)
		return false;
	if (at[0] == '/' || dir == AT_FDCWD)
		if (vb_view_begins(at))
			return true;
	if (at[0] == '/' || !strstr(at, "infiniband"))
		return false;
	at = vb_view_from_outside(dir, at);
	if (at)
		*path = at;
	return at;
}

#endif
