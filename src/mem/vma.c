/* Which mapping is at an address. */
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include "base/memcheck.h"
#include "base/pages.h"
#include "mem/vma.h"

/* What the ioctl takes and gives (Linux 6.11; older headers lack it).  Each field is one of the ABI's. */
struct query {
	uint64_t size;	/* of this structure */
	uint64_t flags; /* which mapping: 0: the one that covers addr */
	uint64_t addr;
	uint64_t start, end;
	uint64_t is; /* IS_... */
	uint64_t page_size, offset, ino;
	uint32_t dev_major, dev_minor;
	uint32_t name_size, build_id_size; /* in: room; out: used */
	uint64_t name, build_id;	   /* addresses of the room */
};
_Static_assert(sizeof(struct query) == 104, "as the kernel has it");
#define QUERY	      _IOWR('f', 17, struct query)
#define IS_READABLE   1u
#define IS_WRITABLE   2u
#define IS_EXECUTABLE 4u
#define IS_SHARED     8u

/* Not /proc/self: that is the first thread's, which may have ended. */
static const char maps[] = "/proc/thread-self/maps";

int vb_vmas_begin(struct vb_vmas *s)
{
	*s = (struct vb_vmas){.fd = open(maps, O_RDONLY | O_CLOEXEC)};
	return s->fd < 0 ? errno : 0;
}

int vb_vmas_begin_of(struct vb_vmas *s, pid_t pid)
{
	char path[32];

	snprintf(path, sizeof(path), "/proc/%d/maps", (int)pid);
	*s = (struct vb_vmas){.fd = open(path, O_RDONLY | O_CLOEXEC)};
	return s->fd < 0 ? errno : 0;
}

void vb_vmas_end(struct vb_vmas *s)
{
	if (s->text)
		fclose(s->text); /* and fd with it */
	else
		close(s->fd);
	free(s->line);
}

/* 0, ENOENT: no mapping covers the address; other: what the kernel says. */
static int query(struct vb_vmas *s, uint64_t addr, struct vb_vma *v, bool named)
{
	struct query q = {.size = sizeof(q), .addr = addr};

	if (named) {
		q.name = (uintptr_t)v->name;
		q.name_size = sizeof(v->name);
	}
	if (ioctl(s->fd, QUERY, &q))
		return errno;
	v->start = q.start;
	v->end = q.end;
	v->offset = q.offset;
	v->ino = q.ino;
	v->page = q.page_size;
	v->dev_major = q.dev_major;
	v->dev_minor = q.dev_minor;
	v->readable = q.is & IS_READABLE;
	v->writable = q.is & IS_WRITABLE;
	v->executable = q.is & IS_EXECUTABLE;
	v->shared = q.is & IS_SHARED;
	if (!named || !q.name_size)
		v->name[0] = 0;
	else
		vb_memcheck_open(v->name, q.name_size); /* valgrind does not know this call */
	return 0;
}

/* "start-end rwxs offset major:minor inode   name" */
static bool parse(const char *line, struct vb_vma *v, bool named)
{
	unsigned long long start, end, offset, ino;
	unsigned major, minor;
	char perms[5];
	int at = 0;
	size_t n;

	if (sscanf(line, "%llx-%llx %4s %llx %x:%x %llu %n", &start, &end, perms, &offset, &major, &minor,
		   &ino, &at) != 7)
		return false;
	v->start = start;
	v->end = end;
	v->offset = offset;
	v->page = 0;
	v->ino = ino;
	v->dev_major = major;
	v->dev_minor = minor;
	v->readable = perms[0] == 'r';
	v->writable = perms[1] == 'w';
	v->executable = perms[2] == 'x';
	v->shared = perms[3] == 's';
	v->name[0] = 0;
	if (!named)
		return true;
	n = strcspn(line + at, "\n");
	if (n >= sizeof(v->name))
		return false;
	memcpy(v->name, line + at, n);
	v->name[n] = 0;
	return true;
}

static bool read_on(struct vb_vmas *s, uint64_t addr, struct vb_vma *v, bool named)
{
	/* A mapping may cover several of the addresses asked for: the present line first. */
	while (s->line_size && s->line[0]) {
		if (!parse(s->line, v, named))
			return false;
		if (addr < v->end)
			return addr >= v->start;
		if (getline(&s->line, &s->line_size, s->text) < 0)
			return false;
	}
	return false;
}

bool vb_vmas_at(struct vb_vmas *s, uint64_t addr, struct vb_vma *v, bool named)
{
	if (!s->text) {
		int err = query(s, addr, v, named);

		/* Whatever else it says, a filter of system calls for instance: the text tells. */
		if (!err || err == ENOENT)
			return !err;
		s->text = fdopen(s->fd, "r");
		if (!s->text || getline(&s->line, &s->line_size, s->text) < 0)
			return false;
	}
	return read_on(s, addr, v, named);
}

bool vb_vmas_next(struct vb_vmas *s, struct vb_vma *v)
{
	if (!s->text)
		s->text = fdopen(s->fd, "r");
	/* A line that cannot be read, for a name too long say, is not worth stopping at. */
	while (s->text && getline(&s->line, &s->line_size, s->text) >= 0)
		if (parse(s->line, v, true))
			return true;
	return false;
}

/* Where PROCMAP_QUERY is not to be had: a line "KernelPageSize: N kB" follows the mapping's own in smaps. */
static uint64_t page_of_smaps(uint64_t addr)
{
	FILE *f = fopen("/proc/thread-self/smaps", "re");
	unsigned long long start, end, kb;
	size_t size = 0;
	char *line = NULL;
	uint64_t page = 0;
	bool here = false;

	while (f && !page && getline(&line, &size, f) >= 0) {
		if (sscanf(line, "%llx-%llx ", &start, &end) == 2)
			here = addr >= start && addr < end;
		else if (here && sscanf(line, "KernelPageSize: %llu kB", &kb) == 1)
			page = kb << 10;
	}
	free(line);
	if (f)
		fclose(f);
	return page;
}

uint64_t vb_vma_page(uint64_t addr)
{
	struct vb_vmas s;
	struct vb_vma v;
	uint64_t page = 0;

	if (vb_vmas_begin(&s))
		return 0;
	if (vb_vmas_at(&s, addr, &v, false))
		page = v.page ? v.page : page_of_smaps(addr);
	vb_vmas_end(&s);
	return page;
}

bool vb_vma_huge(uint64_t addr, uint64_t len, uint64_t *at, uint64_t *page)
{
	uint64_t small = vb_page_size(), last = addr + (len - 1);
	struct vb_vmas s;
	struct vb_vma v;
	bool huge = true;

	*at = addr;
	*page = 0;
	if (vb_vmas_begin(&s))
		return false;
	while (huge) {
		*page = 0;
		if (vb_vmas_at(&s, *at, &v, false))
			*page = v.page ? v.page : page_of_smaps(*at);
		huge = *page > small;
		if (!huge || v.end > last)
			break;
		*at = v.end;
	}
	vb_vmas_end(&s);
	return huge;
}
