/* Hints: making our own memfd for them, checking and mapping those of peers.  Unlike a segment, peers map it
 * for writing; so nothing that stands there is believed, and only what a look at all rings would find anyhow
 * is found sooner by it. */
#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "base/log.h"
#include "host/private.h"

#ifndef F_SEAL_FUTURE_WRITE
#define F_SEAL_FUTURE_WRITE 0x0010
#endif

_Static_assert(sizeof(struct vb_set) <= VB_HINTS_STIRS && VB_HINTS_STIRS + VB_LINE <= VB_HINTS_SIZE,
	       "hints fit their memfd");
_Static_assert(VB_SET_SIZE == VB_MAX_RINGS, "a hint is a ring's index");

/* The page is there from the beginning: the first message to a cold ring would have to fetch it. */
static struct vb_set *map(void *at, int fd)
{
	int flags = fd < 0 ? MAP_PRIVATE | MAP_ANONYMOUS : MAP_SHARED | MAP_POPULATE;
	void *p = vb_file_map(at, VB_HINTS_SIZE, PROT_READ | PROT_WRITE, flags, fd);

	if (p == MAP_FAILED)
		return NULL;
	madvise(p, VB_HINTS_SIZE, MADV_DONTFORK);
	madvise(p, VB_HINTS_SIZE, MADV_DONTDUMP);
	return p;
}

int vb_hints_make(struct vb_segment *s)
{
	int err;

	s->hints_fd = memfd_create("vb-hints", MFD_CLOEXEC | MFD_ALLOW_SEALING);
	/* The size is fixed and the file stays writable, so that no peer can remove pages that others use. */
	if (s->hints_fd < 0 || ftruncate(s->hints_fd, VB_HINTS_SIZE) ||
	    fcntl(s->hints_fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL))
		goto close_fd;
	s->hints_own = vb_own_of(s->hints_fd);
	s->hints = map(NULL, s->hints_fd);
	if (s->hints)
		return 0;
close_fd:
	err = errno;
	if (s->hints_fd >= 0)
		close(s->hints_fd);
	return err;
}

int vb_hints_map(struct vb_set **window, int fd, const char **why, struct vb_reach_facts *t)
{
	int err = vb_file_check(fd, VB_HINTS_SIZE, why, t), seals;
	struct vb_set *p;

	if (err)
		return err;
	seals = fcntl(fd, F_GET_SEALS);
	if (seals < 0 || seals & F_SEAL_FUTURE_WRITE) {
		*why = "its doorbell page cannot be written";
		return EPROTO;
	}
	p = map(*window, fd);
	if (!p) {
		err = vb_file_denied(t, VB_CALL_MMAP, why);
		*why = "it cannot be mapped";
		return err;
	}
	*window = p;
	return 0;
}

void vb_hints_unmap(struct vb_set *window)
{
	/* Replaced at once, never absent: a thread may be on its way to leave a hint for the dead peer. */
	if (!map(window, -1))
		vb_log(VB_LOG_WARN, "the doorbell page of a disconnected peer stays mapped: %s",
		       strerror(errno));
}

void vb_hints_release(struct vb_set *hints)
{
	if (hints)
		munmap(hints, VB_HINTS_SIZE);
}
