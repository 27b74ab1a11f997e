/* Files of counters are memfds, which do not change by themselves.  perftest opens each once, and reads it
 * before and after its run.  So who reads one from its beginning has it written anew.
 */
#include "view_live.h"

#include <errno.h>
#include <pthread.h>
#include <stdatomic.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/types.h>
#include <unistd.h>

#include "base/quiet.h"
#include "view.h"
#include "view_next.h"

enum { MOST = 256 }; /* those beyond are not refreshed */

static struct live {
	int fd;
	dev_t dev;
	ino_t ino; /* the number may be another file's by now */
	char path[128];
} lives[MOST];
static atomic_uint used; /* 0 in all programs that never look at a counter */
static unsigned next;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

bool vb_view_live_enter(int fd, const char *path)
{
	struct stat st;
	struct live *l;

	if (fstat(fd, &st))
		return false;
	pthread_mutex_lock(&lock);
	l = &lives[next++ % MOST];
	*l = (struct live){.fd = fd, .dev = st.st_dev, .ino = st.st_ino};
	strncpy(l->path, path, sizeof(l->path) - 1);
	if (next <= MOST)
		atomic_store_explicit(&used, next, memory_order_release);
	pthread_mutex_unlock(&lock);
	return true;
}

/* The path of that descriptor's file.  false: it is no counter. */
static bool find(int fd, char path[128])
{
	bool found = false;
	struct stat st;

	if (fstat(fd, &st))
		return false;
	pthread_mutex_lock(&lock);
	for (unsigned i = 0; i < atomic_load(&used) && !found; i++) {
		found = lives[i].ino == st.st_ino && lives[i].dev == st.st_dev; /* also of a dup() */
		if (found)
			memcpy(path, lives[i].path, sizeof(lives[i].path));
	}
	pthread_mutex_unlock(&lock);
	return found;
}

static __attribute__((noinline)) void refresh(int fd)
{
	int err = errno;
	char path[128], moved[PATH_MAX];
	struct vb_view_node n;

	if (!find(fd, path) || vb_view_find(path, &n, moved) != -1) {
		errno = err;
		return;
	}
	if (!ftruncate(fd, 0) && lseek(fd, 0, SEEK_SET) == 0 &&
	    vb_write_quietly(fd, n.text, strlen(n.text)) >= 0)
		lseek(fd, 0, SEEK_SET);
	errno = err;
}

static inline bool may_be_live(void)
{
	return __builtin_expect(atomic_load_explicit(&used, memory_order_acquire) != 0, 0);
}

EXPORT ssize_t read(int fd, void *to, size_t size)
{
	int err = errno;

	if (may_be_live()) {
		if (lseek(fd, 0, SEEK_CUR) == 0)
			refresh(fd);
		errno = err;
	}
	return NEXT(read)(fd, to, size);
}

#define PREAD(name, type)                                               \
	EXPORT ssize_t name(int fd, void *to, size_t size, type offset) \
	{                                                               \
		int err = errno;                                        \
		off_t at;                                               \
                                                                        \
		if (may_be_live() && offset == 0) {                     \
			at = lseek(fd, 0, SEEK_CUR);                    \
			refresh(fd);                                    \
			if (at >= 0)                                    \
				lseek(fd, at, SEEK_SET);                \
			errno = err;                                    \
		}                                                       \
		return NEXT(name)(fd, to, size, offset);                \
	}

PREAD(pread, off_t)
PREAD(pread64, off64_t)
