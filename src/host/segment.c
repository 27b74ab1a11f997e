/* Segments: making our own, checking and mapping those of peers. */
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "base/log.h"
#include "base/pages.h"
#include "base/quiet.h"
#include "host/private.h"
#include "iba/reach.h"

#ifndef F_SEAL_FUTURE_WRITE
#define F_SEAL_FUTURE_WRITE 0x0010
#endif

_Static_assert(sizeof(struct vb_seg_head) <= VB_SEG_AWAKE, "the head stands before the word");
_Static_assert(sizeof(struct vb_consumed) == VB_LINE, "a counter is alone in its line");
_Static_assert(sizeof(struct vb_cold) == VB_LINE, "a flag is alone in its line");
_Static_assert(sizeof(struct vb_shown_qp) == VB_LINE, "VB_SEG_RINGS counts on it");
_Static_assert(VB_SEG_DROPS + sizeof(struct vb_drops) <= VB_SEG_GROUP_MARK, "the counts have room");
_Static_assert(VB_SEG_GROUP_MARK + VB_LINE <= VB_SEG_ID_MARKS, "the mark has room");
_Static_assert(VB_SEG_ID_MARKS + sizeof(struct vb_shown_marks) <= VB_SEG_PAST, "the marks have room");
_Static_assert(VB_SEG_PAST + sizeof(struct vb_traffic_past) <= VB_SEG_CONSUMED, "the sums have room");
_Static_assert(sizeof(struct vb_history) % VB_PAGE == 0, "the history is whole pages");
_Static_assert(VB_SEG_RINGS % VB_PAGE == 0 && sizeof(struct vb_ring) % VB_PAGE == 0, "rings begin pages");

static struct vb_list segments = {&segments, &segments};
pthread_mutex_t vb_segments_lock = PTHREAD_MUTEX_INITIALIZER;

static int size_allowed(void)
{
	uint64_t most;

	if (vb_file_may_have(VB_SEG_SIZE, &most))
		return 0;
	vb_log(VB_LOG_ERROR,
	       "the file size limit of this process (RLIMIT_FSIZE, %llu bytes) is less than the %llu bytes "
	       "(sparse) of the device's shared segment; raise it (ulimit -f)",
	       (unsigned long long)most, (unsigned long long)VB_SEG_SIZE);
	return EFBIG;
}

int vb_segment_make(struct vb_segment **out, uint64_t incarnation)
{
	struct vb_segment *s = vb_pages_alloc(sizeof(*s));
	int err = size_allowed();

	if (!s || err) {
		free(s);
		return err ? err : ENOMEM;
	}
	s->refs = 1;
	s->incarnation = incarnation;
	s->fd = memfd_create("verbena", MFD_CLOEXEC | MFD_ALLOW_SEALING);
	if (s->fd < 0 || ftruncate(s->fd, VB_SEG_SIZE))
		goto close_fd;
	s->own = vb_own_of(s->fd);
	s->base = vb_file_map(NULL, VB_SEG_SIZE, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_NORESERVE, s->fd);
	if (s->base == MAP_FAILED)
		goto close_fd;
	/* Writable through this mapping and no other, and never shorter. */
	if (fcntl(s->fd, F_ADD_SEALS, F_SEAL_FUTURE_WRITE | F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL) ||
	    madvise(s->base, VB_SEG_SIZE, MADV_DONTFORK) || madvise(s->base, VB_SEG_SIZE, MADV_DONTDUMP))
		goto unmap;
	errno = vb_hints_make(s);
	if (errno)
		goto unmap;
	pthread_mutex_lock(&vb_segments_lock);
	vb_list_append(&segments, &s->node);
	pthread_mutex_unlock(&vb_segments_lock);
	*out = s;
	return 0;
unmap:
	err = errno;
	munmap(s->base, VB_SEG_SIZE);
	errno = err;
close_fd:
	err = errno;
	if (s->fd >= 0)
		close(s->fd);
	free(s);
	return err;
}

void vb_segment_close(struct vb_segment *s)
{
	vb_own_close(&s->own, s->fd);
	vb_own_close(&s->hints_own, s->hints_fd);
	s->fd = s->hints_fd = -1;
}

struct vb_segment *vb_segment_find(uint64_t incarnation)
{
	struct vb_segment *found = NULL;

	pthread_mutex_lock(&vb_segments_lock);
	vb_list_each (n, &segments) {
		struct vb_segment *s = vb_list_entry(n, struct vb_segment, node);

		if (s->incarnation == incarnation) {
			s->refs++; /* vb_segment_put() */
			found = s;
		}
	}
	pthread_mutex_unlock(&vb_segments_lock);
	return found;
}

void vb_segment_put(struct vb_segment *s)
{
	bool last;

	pthread_mutex_lock(&vb_segments_lock);
	last = --s->refs == 0;
	if (last)
		vb_list_unlink(&s->node);
	pthread_mutex_unlock(&vb_segments_lock);
	if (!last)
		return;
	vb_segment_close(s);
	vb_hints_release(s->hints);
	munmap(s->base, VB_SEG_SIZE);
	free(s);
}

int vb_segment_map(uint8_t **window, int fd, uint64_t incarnation, const char **why, struct vb_reach_facts *t)
{
	int err = vb_file_check(fd, VB_SEG_SIZE, why, t);
	struct vb_seg_head head;
	uint8_t *base;

	if (err)
		return err;
	base = vb_file_map(*window, VB_SEG_SIZE, PROT_READ, MAP_SHARED | MAP_NORESERVE, fd);
	if (base == MAP_FAILED) {
		err = vb_file_denied(t, VB_CALL_MMAP, why);
		*why = "it cannot be mapped";
		return err;
	}
	*window = base;
	madvise(base, VB_SEG_SIZE, MADV_DONTFORK);
	madvise(base, VB_SEG_SIZE, MADV_DONTDUMP);
	memcpy(&head, base, offsetof(struct vb_seg_head, gids));
	if (head.magic != VB_SEG_MAGIC || head.version != VB_SEG_VERSION || head.size != VB_SEG_SIZE)
		*why = "it has another version";
	else if (head.incarnation != incarnation || !incarnation)
		*why = "it is not the segment that the peer announced";
	if (!*why)
		return 0;
	vb_segment_unmap(base);
	return EPROTO;
}

void vb_segment_unmap(uint8_t *window)
{
	/* Replaced at once, never absent: a thread may be on its way to look at a ring of the dead peer. */
	void *p =
	    vb_file_map(window, VB_SEG_SIZE, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1);

	if (p == MAP_FAILED)
		vb_log(VB_LOG_WARN, "the shared segment of a disconnected peer stays mapped: %s",
		       strerror(errno));
}

void vb_segment_release(uint8_t *window)
{
	if (window)
		munmap(window, VB_SEG_SIZE);
}

uint32_t vb_segment_numbers(int fd, uint32_t numbers[VB_ADAPTER_NUMBERS], struct vb_reach_facts *t)
{
	struct vb_seg_head h;
	const char *why;
	ssize_t got;
	uint32_t n;

	if (vb_file_check(fd, VB_SEG_SIZE, &why, t))
		return 0;
	got = pread(fd, &h, sizeof(h), 0);
	if (got < 0)
		(void)vb_file_denied(t, VB_CALL_PREAD, &why);
	if (got != sizeof(h))
		return 0;
	n = atomic_load_explicit(&h.nnumbers, memory_order_relaxed);
	if (n > VB_ADAPTER_NUMBERS)
		return 0;
	memcpy(numbers, h.numbers, n * sizeof(*numbers));
	return n;
}

int vb_adapter_owner(int fd, struct vb_owner *o)
{
	struct vb_seg_head h;
	struct vb_reach_facts t;
	const char *why;
	int err = vb_file_check(fd, VB_SEG_SIZE, &why, &t), seals;

	*o = (struct vb_owner){0};
	if (err && err != EPROTO && err != EBADF)
		return err;
	seals = fcntl(fd, F_GET_SEALS);
	/* What is not sealed is none of ours, and may be a file that cannot be read without waiting. */
	if (seals < 0 || !(seals & F_SEAL_SHRINK) || pread(fd, &h, sizeof(h), 0) != sizeof(h) ||
	    h.magic != VB_SEG_MAGIC)
		return EINVAL;
	o->version = h.version;
	if (err || h.version != VB_SEG_VERSION || !h.number || h.number >= VB_ADAPTERS || !h.incarnation)
		return EINVAL;
	o->number = h.number;
	o->device = h.device;
	o->pid = h.pid;
	o->incarnation = h.incarnation;
	return 0;
}

uint32_t vb_segment_key_offset(const uint8_t *base)
{
	return *(const volatile uint32_t *)&((const struct vb_seg_head *)(const void *)base)->key_offset;
}

bool vb_segment_lists(const uint8_t *base, uint32_t number)
{
	const struct vb_seg_head *h = (const void *)base;
	/* pairs with vb_number_bind() */
	uint32_t n = atomic_load_explicit(&h->nnumbers, memory_order_acquire);

	for (uint32_t i = 0; i < n && i < VB_ADAPTER_NUMBERS; i++) {
		if (h->numbers[i] == number)
			return true;
	}
	return false;
}
