#include "mem/ground.h"

#include <inttypes.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <unistd.h>

#include "base/pages.h"
#include "base/text.h"
#include "mem/vma.h"

enum {
	BATCH = 256,	     /* pages looked at with one system call */
	MAX_PAGES = 1 << 20, /* and in all */
};

static void take(struct vb_ground_spot *s, const struct vb_vma *v)
{
	*s = (struct vb_ground_spot){.start = v->start,
				     .end = v->end,
				     .offset = v->offset,
				     .ino = v->ino,
				     .readable = v->readable,
				     .writable = v->writable,
				     .executable = v->executable,
				     .shared = v->shared};
	memccpy(s->name, v->name, 0, sizeof(s->name) - 1);
}

static void set_bad(struct vb_ground *g, enum vb_ground_trouble trouble, uint64_t from, uint64_t to)
{
	g->trouble = trouble;
	g->bad = from;
	g->bad_end = to;
}

/* The stretch [from, to) is one mapping's (v), or nobody's. */
static void weigh(struct vb_ground *g, uint64_t from, uint64_t to, const struct vb_vma *v, bool write)
{
	enum vb_ground_trouble t = !v ? VB_GROUND_HOLE
				   : write && !v->writable
				       ? v->readable ? VB_GROUND_NO_WRITE : VB_GROUND_NO_READ
				   : !v->readable && !v->writable ? VB_GROUND_NO_READ
								  : VB_GROUND_FINE;

	if (from >= to)
		return;
	if (t == VB_GROUND_FINE) {
		if (g->trouble == VB_GROUND_FINE)
			g->before += to - from;
		else if (g->bad_end == from - g->behind) /* one stretch, that which follows */
			g->behind += to - from;
	} else if (g->trouble == VB_GROUND_FINE) {
		set_bad(g, t, from, to);
		if (v)
			take(&g->at, v);
	} else if (g->bad_end == from && t == g->trouble) {
		g->bad_end = to;
	}
}

/* One mapping after another, from low to high addresses, and the holes between them. */
static bool walk(struct vb_ground *g, uint64_t addr, uint64_t end, bool write)
{
	struct vb_vmas s;
	struct vb_vma v;
	uint64_t at = addr;

	if (vb_vmas_begin(&s))
		return false;
	while (vb_vmas_next(&s, &v)) {
		if (v.end <= addr) {
			take(&g->below, &v);
			continue;
		}
		if (v.start > at) {
			bool first = g->trouble == VB_GROUND_FINE;

			weigh(g, at, v.start < end ? v.start : end, NULL, write);
			if (first && g->trouble == VB_GROUND_HOLE)
				take(&g->next, &v);
			at = v.start;
		}
		if (v.start >= end || at >= end)
			break;
		weigh(g, at, v.end < end ? v.end : end, &v, write);
		at = v.end;
		if (g->trouble == VB_GROUND_FINE)
			take(&g->below, &v);
	}
	if (at < end)
		weigh(g, at, end, NULL, write);
	vb_vmas_end(&s);
	return true;
}

/* By reading a byte of each page: the kernel stops where it cannot.  Not by touching: this thread may have
 * SIGBUS blocked. */
static bool find_unreadable(uint64_t addr, uint64_t end, uint64_t *bad)
{
	struct iovec there[BATCH];
	uint8_t bytes[BATCH];
	struct iovec here = {bytes, sizeof bytes};
	uint64_t p = addr;

	for (unsigned pages = 0; p < end && pages < MAX_PAGES; pages += BATCH) {
		uint64_t first = p;
		unsigned long n = 0;
		ssize_t got;

		for (; n < BATCH && p < end; n++, p = vb_page_start(p) + vb_page_size())
			there[n] = (struct iovec){(void *)(uintptr_t)p, 1};
		got = process_vm_readv(getpid(), &here, 1, there, n, 0);
		if (got == (ssize_t)n)
			continue;
		*bad = got <= 0 ? first : (uint64_t)(uintptr_t)there[got].iov_base;
		return true;
	}
	return false;
}

static bool is_device(const char *name)
{
	struct stat st;

	if (!strncmp(name, "/dev/zero", 9) || !strncmp(name, "/dev/shm/", 9))
		return false;
	return !strncmp(name, "/dev/", 5) && (stat(name, &st) || S_ISCHR(st.st_mode) || S_ISBLK(st.st_mode));
}

/* Permissions are in order: what else is in the way? */
static void look_deeper(struct vb_ground *g, uint64_t addr, uint64_t end)
{
	struct vb_vmas s;
	struct vb_vma v;
	uint64_t bad;

	if (!find_unreadable(addr, end, &bad))
		return;
	set_bad(g, VB_GROUND_OTHER, bad, end);
	g->before = bad - addr;
	if (vb_vmas_begin(&s))
		return;
	if (vb_vmas_at(&s, bad, &v, true)) {
		take(&g->at, &v);
		g->at.page = v.page;
		if (v.end < end)
			g->bad_end = v.end;
		if (v.page > vb_page_size())
			g->trouble = VB_GROUND_NO_HUGE;
		else if (is_device(v.name))
			g->trouble = VB_GROUND_DEVICE;
		else if (v.ino)
			g->trouble = VB_GROUND_FILE_END;
	}
	vb_vmas_end(&s);
}

void vb_ground_look(struct vb_ground *g, uint64_t addr, uint64_t length, bool write)
{
	uint64_t end = addr + length;

	*g = (struct vb_ground){.trouble = VB_GROUND_FINE};
	if (!end || !walk(g, addr, end, write)) {
		g->trouble = VB_GROUND_UNKNOWN;
		return;
	}
	if (g->trouble == VB_GROUND_FINE)
		look_deeper(g, addr, end);
	else if (g->at.end && !g->at.page)
		g->at.page = vb_vma_page(g->at.start);
}

static void add_kind(struct vb_text *t, const struct vb_ground_spot *s)
{
	if (!s->name[0])
		vb_text_add(t, "anonymous memory");
	else if (!strcmp(s->name, "[stack]"))
		vb_text_add(t, "the stack");
	else if (!strcmp(s->name, "[heap]"))
		vb_text_add(t, "the heap");
	else if (s->name[0] == '[')
		vb_text_add(t, "%s", s->name);
	else if (!strncmp(s->name, "/anon_hugepage", 14))
		vb_text_add(t, "anonymous huge pages");
	else if (!strncmp(s->name, "/dev/zero", 9))
		vb_text_add(t, "anonymous shared memory");
	else if (is_device(s->name))
		vb_text_add(t, "the device %s", s->name);
	else
		vb_text_add(t, "the file %s from offset 0x%" PRIx64, s->name, s->offset);
}

static void add_spot(struct vb_text *t, const struct vb_ground_spot *s)
{
	vb_text_add(t, "[0x%" PRIx64 ", 0x%" PRIx64 ") %c%c%c%c of ", s->start, s->end,
		    s->readable ? 'r' : '-', s->writable ? 'w' : '-', s->executable ? 'x' : '-',
		    s->shared ? 's' : 'p');
	add_kind(t, s);
	if (s->page >= 1 << 20)
		vb_text_add(t, " in pages of %" PRIu64 " MiB", s->page >> 20);
	else if (s->page)
		vb_text_add(t, " in pages of %" PRIu64 " KiB", s->page >> 10);
}

static void add_neighbours(struct vb_text *t, const struct vb_ground *g)
{
	if (g->below.end) {
		vb_text_add(t, ". The mapping below, ");
		add_spot(t, &g->below);
		if (g->below.end == g->bad)
			vb_text_add(t, ", ends there");
		else
			vb_text_add(t, ", ends %" PRIu64 " bytes before 0x%" PRIx64, g->bad - g->below.end,
				    g->bad);
	}
	if (g->next.end) {
		vb_text_add(t, ". The mapping above, ");
		add_spot(t, &g->next);
		vb_text_add(t, ", begins %" PRIu64 " bytes after 0x%" PRIx64, g->next.start - g->bad, g->bad);
	}
}

/* Memory that nobody may write, whoever asks: the kernel's ([vdso], [vvar]), and what the library shares. */
static bool never_writable(const struct vb_ground_spot *s)
{
	return !strncmp(s->name, "[v", 2) || !strncmp(s->name, "/memfd:verbena", 14);
}

#define NOT_YOURS ", which does not belong to the program; register memory of its own, and copy through that"

static const char *advice(const struct vb_ground *g)
{
	switch (g->trouble) {
	case VB_GROUND_HOLE:
		return g->before ? "; register only what is mapped, or map the rest first"
				 : "; map the range before you register it, and unmap it after";
	case VB_GROUND_NO_READ:
		if (never_writable(&g->at))
			return NOT_YOURS;
		return ", which permits no access; call mprotect() first";
	case VB_GROUND_NO_WRITE:
		if (never_writable(&g->at))
			return NOT_YOURS;
		return ", which is read-only; register it without IBV_ACCESS_LOCAL_WRITE (and without remote "
		       "write and atomic, which require it), or map it with PROT_WRITE";
	case VB_GROUND_FILE_END:
		return ", whose file ends before this address; extend the file first (ftruncate), or "
		       "register less";
	case VB_GROUND_NO_HUGE:
		return ", but no huge page is free; raise vm.nr_hugepages, or use ordinary pages";
	case VB_GROUND_DEVICE:
		return ", which is memory of a device; export it as a dma-buf and register that "
		       "(ibv_reg_dmabuf_mr), or copy through ordinary memory";
	default:
		return ", which cannot be pinned: it belongs to the kernel or a device, or a page has a "
		       "memory error; copy through ordinary memory";
	}
}

const char *vb_ground_say(char *buf, size_t size, const struct vb_ground *g)
{
	struct vb_text t = {buf, size};

	if (!size)
		return buf;
	*buf = 0;
	if (g->trouble == VB_GROUND_FINE) {
		vb_text_add(&t, "all of it is accessible now, so another thread is changing the mappings");
		return buf;
	}
	if (g->trouble == VB_GROUND_UNKNOWN) {
		vb_text_add(&t, "the mappings there cannot be read from /proc");
		return buf;
	}
	if (g->trouble == VB_GROUND_HOLE)
		vb_text_add(&t, "nothing is mapped at 0x%" PRIx64, g->bad);
	else
		vb_text_add(&t, "0x%" PRIx64, g->bad);
	if (g->before && g->behind)
		vb_text_add(&t, " (%" PRIu64 " bytes before it and %" PRIu64 " after it are accessible)",
			    g->before, g->behind);
	else if (g->before || g->behind)
		vb_text_add(&t, " (%" PRIu64 " bytes %s it are accessible)", g->before + g->behind,
			    g->before ? "before" : "after");
	if (g->trouble != VB_GROUND_HOLE) {
		vb_text_add(&t, " is in ");
		add_spot(&t, &g->at);
	}
	vb_text_add(&t, "%s", advice(g));
	if (g->trouble == VB_GROUND_HOLE)
		add_neighbours(&t, g);
	return buf;
}
