/* How a peer ended whose control socket hung up without a goodbye.
 *
 * The kernel closes the descriptors of a process that ends, of one that closes them itself, and of one that
 * calls exec().  In the first case all its threads are marked as exiting before the first descriptor goes; so
 * what /proc shows of the peer's engine thread at that moment tells the three apart, though the process may
 * be gone an instant later. */
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdio.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "host/private.h"

#define EXITING 0x4u /* PF_EXITING, among the flags of /proc/PID/stat */

enum { EXIT_MS = 100 }; /* for a process to end, where /proc does not say whether it does */

enum thread { THREAD_LIVES, THREAD_EXITS, THREAD_GONE, THREAD_HIDDEN };

static enum thread look_at(const char *path)
{
	char text[1024], state, *at;
	int fd = open(path, O_RDONLY | O_CLOEXEC);
	unsigned flags;
	ssize_t n;

	if (fd < 0)
		return errno == ENOENT ? THREAD_GONE : THREAD_HIDDEN;
	n = read(fd, text, sizeof(text) - 1);
	close(fd);
	if (n <= 0)
		return n < 0 && errno == ESRCH ? THREAD_GONE : THREAD_HIDDEN;
	text[n] = 0;
	at = strrchr(text, ')'); /* behind the name, which may hold anything */
	if (!at || sscanf(at, ") %c %*d %*d %*d %*d %*d %u", &state, &flags) != 2)
		return THREAD_HIDDEN;
	return state == 'Z' || state == 'X' || flags & EXITING ? THREAD_EXITS : THREAD_LIVES;
}

static enum thread look_at_process(uint32_t pid)
{
	char path[64];

	snprintf(path, sizeof(path), "/proc/%u/stat", pid);
	return look_at(path);
}

/* THREAD_HIDDEN: its number means nothing here. */
static enum thread look_at_engine(const struct vb_adapter *a, const struct conn *c)
{
	const struct vb_seg_head *h = c->peer ? (const void *)c->peer->pub.view : NULL;
	char path[64];

	if (!h || !h->pid_ns || h->pid_ns != a->head->pid_ns || h->pid != c->pid || !h->tid)
		return THREAD_HIDDEN;
	snprintf(path, sizeof(path), "/proc/%u/task/%u/stat", c->pid, h->tid);
	return look_at(path);
}

static bool has_ended(const struct conn *c, int wait_ms)
{
	struct pollfd p = {.fd = c->pidfd, .events = POLLIN};

	return c->pidfd >= 0 && poll(&p, 1, wait_ms) > 0;
}

enum vb_peer_end vb_conn_end(struct vb_adapter *a, const struct conn *c)
{
	enum thread engine, process;

	vb_mutex_assert_held(&a->control);
	if (c->pid == a->pid) /* another adapter of this process, which would have said goodbye */
		return VB_END_CLOSED;
	if (!c->pid)
		return VB_END_UNCLEAR;
	if (has_ended(c, 0))
		return VB_END_DIED;
	engine = look_at_engine(a, c);
	if (engine == THREAD_LIVES)
		return VB_END_CLOSED;
	process = look_at_process(c->pid);
	if (engine == THREAD_EXITS || process == THREAD_EXITS)
		return VB_END_DIED;
	/* Where there is a pidfd that knows better, or /proc shows nobody. */
	if (process == THREAD_GONE && c->pidfd < 0 && look_at("/proc/self/stat") != THREAD_GONE)
		return VB_END_DIED;
	if (process == THREAD_LIVES)
		return engine == THREAD_GONE && !has_ended(c, 0) ? VB_END_REPLACED : VB_END_UNCLEAR;
	return has_ended(c, EXIT_MS) ? VB_END_DIED : VB_END_UNCLEAR;
}
