/* Directory streams of the view.  A stream of ours is a snapshot of names, and no descriptor stands behind
 * it. */
#undef _FORTIFY_SOURCE
#include "view.h"

#include <dirent.h>
#include <errno.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdlib.h>

#include "view_facts.h"
#include "view_next.h"

_Static_assert(sizeof(struct dirent) == sizeof(struct dirent64),
	       "with and without 64 in its name a function takes the same structure");

/* A stream of the C library begins with its descriptor, which is not negative; so this is none. */
#define OURS 0xfffffff7fffffff9ull

struct stream {
	uint64_t ours;
	size_t count;
	_Atomic size_t next;
	struct dirent entries[];
};

static struct stream *our_stream(DIR *d)
{
	struct stream *s = (struct stream *)d;

	__asm__("" : "+r"(s)); /* may be NULL, whatever the header promises */
	return s && s->ours == OURS ? s : NULL;
}

static void add(struct stream *s, const char *name, uint64_t ino, unsigned char type)
{
	struct dirent *e = &s->entries[s->count++];

	memset(e, 0, sizeof(*e));
	e->d_ino = ino;
	e->d_off = (off_t)s->count;
	e->d_reclen = sizeof(*e);
	e->d_type = type;
	strncpy(e->d_name, name, sizeof(e->d_name) - 1);
}

static const unsigned char types[] = {
    [VB_VIEW_DIR] = DT_DIR,
    [VB_VIEW_FILE] = DT_REG,
    [VB_VIEW_DEVICE] = DT_CHR,
};

/* How many nodes stand in the directory; adds them to s unless it is NULL. */
static size_t children(const struct vb_view_facts *f, const char *dir, struct stream *s)
{
	size_t count = 0, len = strlen(dir);
	struct vb_view_node n;

	for (unsigned i = 0; vb_view_row(f, i, &n); i++) {
		if (strncmp(n.path, dir, len) || n.path[len] != '/' || strchr(n.path + len + 1, '/'))
			continue;
		count++;
		if (s)
			add(s, n.path + len + 1, n.ino, types[n.kind]);
	}
	return count;
}

static struct stream *new_stream(const struct vb_view_node *dir)
{
	struct vb_view_facts f;
	struct stream *s;
	size_t count;

	vb_view_facts_read(&f);
	count = 2 + children(&f, dir->path, NULL);
	s = malloc(sizeof(*s) + count * sizeof(s->entries[0]));

	if (!s)
		return NULL;
	s->ours = OURS;
	s->count = 0;
	atomic_init(&s->next, 0);
	add(s, ".", dir->ino, DT_DIR);
	add(s, "..", dir->ino, DT_DIR);
	children(&f, dir->path, s);
	return s;
}

static __attribute__((noinline, cold)) DIR *opendir_in_view(const char *path)
{
	struct vb_view_node n;
	char moved[PATH_MAX];
	int found = vb_view_find(path, &n, moved);

	if (!found)
		return NEXT(opendir)(moved);
	if (found > 0 || n.kind != VB_VIEW_DIR) {
		errno = found > 0 ? found : ENOTDIR;
		return NULL;
	}
	return (DIR *)new_stream(&n);
}

EXPORT DIR *opendir(const char *path)
{
	return vb_view_takes(AT_FDCWD, &path) ? opendir_in_view(path) : NEXT(opendir)(path);
}

/* NULL: no more. */
static struct dirent *next_entry(struct stream *s)
{
	size_t at = atomic_load(&s->next);

	while (at < s->count && !atomic_compare_exchange_weak(&s->next, &at, at + 1))
		;
	return at < s->count ? &s->entries[at] : NULL;
}

#define READDIR(name, type)                                              \
	EXPORT struct type *name(DIR *d)                                 \
	{                                                                \
		struct stream *s = our_stream(d);                        \
                                                                         \
		return s ? (struct type *)next_entry(s) : NEXT(name)(d); \
	}

READDIR(readdir, dirent)
READDIR(readdir64, dirent64)

/* The caller's entry may end with the name. */
static int copy_entry(struct stream *s, struct dirent *to, struct dirent **result)
{
	const struct dirent *e = next_entry(s);

	if (e)
		memcpy(to, e, offsetof(struct dirent, d_name) + strlen(e->d_name) + 1);
	*result = e ? to : NULL;
	return 0;
}

/* They are deprecated, but the C library's would take a stream of ours for its own, and wait for its lock for
 * ever.
 */
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wdeprecated-declarations"
#define READDIR_R(name, type)                                                           \
	EXPORT int name(DIR *d, struct type *to, struct type **result)                  \
	{                                                                               \
		struct stream *s = our_stream(d);                                       \
                                                                                        \
		return s ? copy_entry(s, (struct dirent *)to, (struct dirent **)result) \
			 : NEXT(name)(d, to, result);                                   \
	}

READDIR_R(readdir_r, dirent)
READDIR_R(readdir64_r, dirent64)
#pragma GCC diagnostic pop

EXPORT int closedir(DIR *d)
{
	struct stream *s = our_stream(d);

	if (!s)
		return NEXT(closedir)(d);
	s->ours = 0;
	free(s);
	return 0;
}

EXPORT void rewinddir(DIR *d)
{
	struct stream *s = our_stream(d);

	if (s)
		s->next = 0;
	else
		NEXT(rewinddir)(d);
}

EXPORT long telldir(DIR *d)
{
	struct stream *s = our_stream(d);

	return s ? (long)s->next : NEXT(telldir)(d);
}

EXPORT void seekdir(DIR *d, long at)
{
	struct stream *s = our_stream(d);

	if (!s)
		NEXT(seekdir)(d, at);
	else if (at >= 0 && (size_t)at <= s->count)
		s->next = (size_t)at;
}

EXPORT int dirfd(DIR *d)
{
	if (!our_stream(d))
		return NEXT(dirfd)(d);
	errno = ENOTSUP; /* what the manual has for a stream without a descriptor */
	return -1;
}

typedef int filter_fn(const struct dirent *);
typedef int order_fn(const struct dirent **, const struct dirent **);

static __attribute__((noinline, cold)) int scan_view(const char *path, struct dirent ***list,
						     filter_fn *filter, order_fn *order)
{
	struct stream *s = (struct stream *)opendir_in_view(path);
	struct dirent **all;
	int count = 0;

	if (!s)
		return -1;
	all = malloc((s->count + 1) * sizeof(*all));
	for (size_t i = 0; all && i < s->count; i++) {
		if (filter && !filter(&s->entries[i]))
			continue;
		all[count] = malloc(sizeof(**all));
		if (!all[count])
			goto free_all;
		*all[count++] = s->entries[i];
	}
	free(s);
	if (!all)
		return -1;
	if (order)
		qsort(all, (size_t)count, sizeof(*all),
		      (int (*)(const void *, const void *))(void (*)(void))order);
	*list = all;
	return count;
free_all:
	while (count)
		free(all[--count]);
	free(all);
	free(s);
	errno = ENOMEM;
	return -1;
}

/* Whether a path names a directory of the view, and does not leave it again. */
static bool stays(const char *path)
{
	struct vb_view_node n;
	char moved[PATH_MAX];

	return vb_view_find(path, &n, moved) != 0;
}

EXPORT int scandir(const char *path, struct dirent ***list, filter_fn *filter, order_fn *order)
{
	return vb_view_takes(AT_FDCWD, &path) && stays(path) ? scan_view(path, list, filter, order)
							     : NEXT(scandir)(path, list, filter, order);
}

EXPORT int scandir64(const char *path, struct dirent64 ***list, int (*filter)(const struct dirent64 *),
		     int (*order)(const struct dirent64 **, const struct dirent64 **))
{
	return vb_view_takes(AT_FDCWD, &path) && stays(path)
		   ? scan_view(path, (struct dirent ***)list, (filter_fn *)filter, (order_fn *)order)
		   : NEXT(scandir64)(path, list, filter, order);
}
