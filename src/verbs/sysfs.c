/* Reading attributes of devices from files, for programs that do so through the library.  The files are the
 * kernel's, or under `verbena run` those of the preloaded view. */
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <infiniband/verbs.h>

#include "verbs/verbs.h"

const char *ibv_get_sysfs_path(void);

static char sysfs_path[PATH_MAX];
static pthread_once_t sysfs_path_once = PTHREAD_ONCE_INIT;

static void find_sysfs_path(void)
{
	const char *set = secure_getenv("SYSFS_PATH");
	size_t len;

	if (!set || strlen(set) >= sizeof(sysfs_path))
		set = "/sys";
	strcpy(sysfs_path, set);
	for (len = strlen(sysfs_path); len > 1 && sysfs_path[len - 1] == '/'; len--)
		sysfs_path[len - 1] = '\0';
}

VB_EXPORT const char *ibv_get_sysfs_path(void)
{
	pthread_once(&sysfs_path_once, find_sysfs_path);
	return sysfs_path;
}

/* The file's bytes without a newline at their end; the number of them, or -1 and errno: a value that does not
 * fit is no other, shorter one. */
VB_EXPORT VB_VALUE(int, ibv_read_sysfs_file, (dir, file, buf, size), const char *dir, const char *file,
		   char *buf, size_t size)
{
	char path[PATH_MAX];
	ssize_t n;
	int fd, err;

	if (!size || snprintf(path, sizeof(path), "%s/%s", dir, file) >= (int)sizeof(path)) {
		errno = size ? ENAMETOOLONG : EINVAL;
		return -1;
	}
	fd = open(path, O_RDONLY | O_CLOEXEC);
	if (fd < 0)
		return -1;
	do {
		n = read(fd, buf, size);
	} while (n < 0 && errno == EINTR);
	err = errno;
	close(fd);
	errno = err;
	if (n < 0)
		return -1;
	if (n > 0 && buf[n - 1] == '\n')
		n--;
	if ((size_t)n == size) {
		errno = EOVERFLOW;
		return -1;
	}
	buf[n] = '\0';
	vb_msan_gives(buf, (size_t)n + 1);
	return (int)n;
}
