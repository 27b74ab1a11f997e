/* Arenas: each is a sparse memfd, and a range of addresses that is reserved whole.
 *
 * Page n of the file is only ever mapped at page n of the range, so neighbours become one mapping.  Pages
 * that are not in use are reserved (PROT_NONE), or mapped where the heap has freed them.  There are few
 * arenas, as each is at least as large as all before it together.
 *
 * The descriptor stays open: peers find the file by it (mem/share.c).  A program that closes it loses nothing
 * but that: its memory stays as it is, and the arena gives out no more. */
#include <errno.h>
#include <fcntl.h>
#include <linux/falloc.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/sysinfo.h>
#include <time.h>
#include <unistd.h>

#include "share.h"
#include "share_fork.h"

#define LEAST	   (64ul << 20) /* bytes of an arena */
#define HUGE	   (2ul << 20)
#define KEEP_DIRTY (8ul << 20) /* bytes that the heap has freed and that are not given back at once */
#define STEP	   256	       /* pages that the heap maps at a time */
#define LOOKS	   128	       /* at runs that may be too short, before those that are not */
#define FD_FROM	   512	       /* descriptors below are the program's: it may name them */

struct vb_arena vb_arenas[VB_ARENAS];
static _Atomic uintptr_t lowest = UINTPTR_MAX, highest; /* of all addresses of arenas */
static size_t reserved;					/* bytes of all arenas */
static size_t dirty;					/* pages */
static int huge = -1; /* whether huge pages are to be asked for; -1: not looked */

static void *raw_map(void *at, size_t size, int prot, int flags, int fd, size_t offset)
{
	return (void *)syscall(SYS_mmap, at, size, prot, flags, fd, offset);
}

static void *reserve(void *at, size_t size)
{
	return raw_map(at, size, PROT_NONE,
		       MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | (at ? MAP_FIXED : 0), -1, 0);
}

static uint8_t *address(const struct vb_arena *a, size_t page)
{
	return (uint8_t *)atomic_load_explicit(&a->base, memory_order_relaxed) + page * VB_PAGE;
}

bool vb_arena_near(uintptr_t at, size_t size)
{
	return at < atomic_load_explicit(&highest, memory_order_acquire) && size > 0 &&
	       at + (size - 1) >= atomic_load_explicit(&lowest, memory_order_acquire);
}

/* Inherited ones have holes, in which the kernel may have placed another one. */
struct vb_arena *vb_arena_of(uintptr_t at)
{
	struct vb_arena *inherited = NULL;

	for (size_t i = 0; i < VB_ARENAS; i++) {
		struct vb_arena *a = &vb_arenas[i];
		uintptr_t base = atomic_load_explicit(&a->base, memory_order_relaxed);

		if (!base || at < base || at - base >= a->pages * VB_PAGE)
			continue;
		if (!a->inherited)
			return a;
		if (!inherited || a->page[(at - base) / VB_PAGE] & VB_PAGE_KINDS)
			inherited = a;
	}
	return inherited;
}

bool vb_arena_owns(const struct vb_arena *a)
{
	struct stat st;

	return !a->inherited && a->fd >= 0 && !fstat(a->fd, &st) && st.st_dev == a->dev &&
	       st.st_ino == a->ino;
}

size_t vb_arena_alike(const struct vb_arena *a, size_t page, size_t n, uint8_t mask)
{
	size_t i = 1;

	while (i < n && !((a->page[page + i] ^ a->page[page]) & mask))
		i++;
	return i;
}

/* ---- free runs ---- */

static unsigned bin_of(size_t pages)
{
	return (unsigned)(63 - __builtin_clzl(pages));
}

static void enter(struct vb_arena *a, size_t page, size_t n)
{
	uint32_t *head = &a->bin[bin_of(n)];

	a->run[page + n - 1].length = (uint32_t)n;
	a->run[page] = (struct vb_page_run){.length = (uint32_t)n, .next = *head};
	if (*head)
		a->run[*head - 1].prev = (uint32_t)page + 1;
	*head = (uint32_t)page + 1;
}

static void leave(struct vb_arena *a, size_t page)
{
	struct vb_page_run *r = &a->run[page];

	if (r->prev)
		a->run[r->prev - 1].next = r->next;
	else
		a->bin[bin_of(r->length)] = r->next;
	if (r->next)
		a->run[r->next - 1].prev = r->prev;
}

static bool is_free(const struct vb_arena *a, size_t page)
{
	return (a->page[page] & VB_PAGE_KINDS) == VB_PAGE_FREE;
}

/* Enters free pages, joined with the free runs around them. */
static void enter_joined(struct vb_arena *a, size_t page, size_t n)
{
	if (page && is_free(a, page - 1)) {
		size_t before = a->run[page - 1].length;

		leave(a, page - before);
		page -= before;
		n += before;
	}
	if (page + n < a->pages && is_free(a, page + n)) {
		size_t behind = a->run[page + n].length;

		leave(a, page + n);
		n += behind;
	}
	enter(a, page, n);
}

/* Where in the run [page, page + length) n aligned pages can stand; SIZE_MAX: nowhere. */
static size_t fits(const struct vb_arena *a, size_t page, size_t length, size_t align, size_t n)
{
	uintptr_t at = (uintptr_t)address(a, page), up = (at + align - 1) & ~(align - 1);
	size_t skip = (up - at) / VB_PAGE;

	return skip <= length && n <= length - skip ? page + skip : SIZE_MAX;
}

/* The first of n free aligned pages; *run is the one that they stand in. */
static size_t find(const struct vb_arena *a, size_t align, size_t n, size_t *run)
{
	for (unsigned b = bin_of(n); b < VB_BINS; b++) {
		unsigned looks = 0;

		for (uint32_t p = a->bin[b]; p && looks++ < LOOKS; p = a->run[p - 1].next) {
			size_t at = fits(a, p - 1, a->run[p - 1].length, align, n);

			if (at != SIZE_MAX) {
				*run = p - 1;
				return at;
			}
		}
	}
	return SIZE_MAX;
}

/* ---- files ---- */

static void wants_huge(void)
{
	char text[128];
	int fd = (int)syscall(SYS_openat, AT_FDCWD, "/sys/kernel/mm/transparent_hugepage/shmem_enabled",
			      O_RDONLY | O_CLOEXEC);
	ssize_t n = fd < 0 ? 0 : syscall(SYS_read, fd, text, sizeof(text) - 1);

	text[n > 0 ? n : 0] = '\0';
	huge = strstr(text, "[never]") || strstr(text, "[deny]") || n <= 0 ? 0 : 1;
	if (fd >= 0)
		syscall(SYS_close, fd);
}

static bool may_be_so_long(size_t size)
{
	struct rlimit file, space, data;

	return !getrlimit(RLIMIT_FSIZE, &file) && file.rlim_cur >= size && !getrlimit(RLIMIT_DATA, &data) &&
	       data.rlim_cur == RLIM_INFINITY && !getrlimit(RLIMIT_AS, &space) &&
	       space.rlim_cur == RLIM_INFINITY;
}

/* Another thread may have lowered the limit just now. */
static bool set_length(int fd, size_t size)
{
	const struct timespec now = {0};
	const uint64_t one = 1ull << (SIGXFSZ - 1);

	if (!syscall(SYS_ftruncate, fd, size))
		return true;
	if (errno == EFBIG)
		syscall(SYS_rt_sigtimedwait, &one, NULL, &now, sizeof(one));
	return false;
}

/* Peers can neither shorten nor lengthen it, and no other user can open it. */
static int make_file(size_t size)
{
	int fd = memfd_create("shared-buffers", MFD_CLOEXEC | MFD_ALLOW_SEALING), up;

	if (fd < 0)
		return -1;
	up = (int)syscall(SYS_fcntl, fd, F_DUPFD_CLOEXEC, FD_FROM);
	syscall(SYS_close, fd);
	if (up < 0)
		return -1;
	fd = up;
	if (set_length(fd, size) && !fchmod(fd, 0600) &&
	    !syscall(SYS_fcntl, fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL))
		return fd;
	syscall(SYS_close, fd);
	return -1;
}

static struct vb_arena *free_place(void)
{
	for (size_t i = 0; i < VB_ARENAS; i++)
		if (!atomic_load_explicit(&vb_arenas[i].base, memory_order_relaxed))
			return &vb_arenas[i];
	return NULL;
}

static size_t page_table(const struct vb_arena *a)
{
	return (a->pages + VB_PAGE - 1) & ~(size_t)(VB_PAGE - 1);
}

static size_t tables_of(const struct vb_arena *a)
{
	return page_table(a) + a->pages * sizeof(*a->run);
}

static void set_tables(struct vb_arena *a, uint8_t *at)
{
	a->page = at;
	a->run = (void *)(at + page_table(a));
}

static bool make_tables(struct vb_arena *a)
{
	uint8_t *at = raw_map(NULL, tables_of(a), PROT_READ | PROT_WRITE,
			      MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);

	if (at == MAP_FAILED)
		return false;
	set_tables(a, at);
	return true;
}

void *vb_arena_copy_tables(const struct vb_arena *a)
{
	struct vb_arena copy = {.pages = a->pages};

	if (!make_tables(&copy))
		return NULL;
	memcpy(copy.page, a->page, a->top);
	memcpy(copy.run, a->run, a->top * sizeof(*a->run));
	return copy.page;
}

void vb_arena_free_tables(const struct vb_arena *a, void *tables)
{
	syscall(SYS_munmap, tables, tables_of(a));
}

/* The addresses begin at a multiple of a huge page. */
static uint8_t *reserve_aligned(size_t size)
{
	uint8_t *all = reserve(NULL, size + HUGE), *base;
	size_t before;

	if (all == MAP_FAILED)
		return NULL;
	base = (uint8_t *)(((uintptr_t)all + HUGE - 1) & ~(HUGE - 1));
	before = (size_t)(base - all);
	if (before)
		syscall(SYS_munmap, all, before);
	if (HUGE - before)
		syscall(SYS_munmap, base + size, HUGE - before);
	return base;
}

static struct vb_arena *make_arena(size_t least)
{
	struct vb_arena *a = free_place(), made = {.fd = -1};
	size_t size = reserved > LEAST ? reserved : LEAST;
	uint8_t *base;
	struct stat st;

	if (size < least)
		size = (least + HUGE - 1) & ~(HUGE - 1);
	made.pages = size / VB_PAGE;
	if (!a || made.pages >= UINT32_MAX || !may_be_so_long(size) || !vb_fork_ready())
		return NULL;
	base = reserve_aligned(size);
	if (!base)
		return NULL;
	made.fd = make_file(size);
	if (made.fd < 0 || fstat(made.fd, &st) || !make_tables(&made)) {
		if (made.fd >= 0)
			syscall(SYS_close, made.fd);
		syscall(SYS_munmap, base, size);
		return NULL;
	}
	made.dev = st.st_dev;
	made.ino = st.st_ino;
	reserved += size;
	*a = made;
	atomic_store(&a->base, (uintptr_t)base);
	enter(a, 0, a->pages);
	if ((uintptr_t)base < atomic_load(&lowest))
		atomic_store(&lowest, (uintptr_t)base);
	if ((uintptr_t)base + size > atomic_load(&highest))
		atomic_store(&highest, (uintptr_t)base + size);
	if (huge < 0)
		wants_huge();
	return a;
}

/* ---- taking ---- */

/* Maps the arena's file at [page, page + n). */
static bool map_pages(struct vb_arena *a, size_t page, size_t n, int flags)
{
	if (!vb_arena_owns(a))
		return false;
	if (raw_map(address(a, page), n * VB_PAGE, PROT_READ | PROT_WRITE,
		    MAP_SHARED | MAP_FIXED | MAP_NORESERVE | flags, a->fd, page * VB_PAGE) == MAP_FAILED)
		return false;
	if (huge > 0 && n >= HUGE / VB_PAGE)
		syscall(SYS_madvise, address(a, page), n * VB_PAGE, MADV_HUGEPAGE);
	for (size_t i = page; i < page + n; i++)
		a->page[i] = (a->page[i] | VB_PAGE_MAPPED) & (uint8_t)~VB_PAGE_ODD;
	return true;
}

static bool are_mapped(const struct vb_arena *a, size_t page, size_t n)
{
	const uint8_t look = VB_PAGE_MAPPED | VB_PAGE_ODD;

	return (a->page[page] & look) == VB_PAGE_MAPPED && vb_arena_alike(a, page, n, look) == n;
}

/* Makes free pages ready to be given out; `end` is that of their run. */
static bool prepare(struct vb_arena *a, enum vb_page kind, size_t page, size_t n, size_t end, int flags)
{
	size_t step;

	if (kind == VB_PAGE_MAP)
		/* A peer may have written here while it was free, to a region that was not deregistered. */
		return !vb_arena_punch(a, page, n) && map_pages(a, page, n, flags);
	if (are_mapped(a, page, n))
		return true;
	step = (n + STEP - 1) / STEP * STEP;
	return map_pages(a, page, step < end - page ? step : end - page, 0);
}

static void mark(struct vb_arena *a, size_t page, size_t n, uint8_t kind)
{
	if (a->top < page + n)
		a->top = page + n;
	for (size_t i = page; i < page + n; i++) {
		if (a->page[i] & VB_PAGE_DIRTY)
			dirty--;
		a->page[i] = kind;
	}
}

static void *take_from(struct vb_arena *a, enum vb_page kind, size_t align, size_t n, int flags)
{
	size_t run = 0, at = find(a, align, n, &run), end;

	if (at == SIZE_MAX)
		return NULL;
	end = run + a->run[run].length;
	if (!prepare(a, kind, at, n, end, flags))
		return NULL;
	leave(a, run);
	if (at > run)
		enter(a, run, at - run);
	if (at + n < end)
		enter(a, at + n, end - (at + n));
	mark(a, at, n, (uint8_t)(kind | VB_PAGE_MAPPED));
	if (kind == VB_PAGE_HEAP) {
		a->run[at].length = (uint32_t)n;
		a->page[at] |= VB_PAGE_HEAD;
	}
	return address(a, at);
}

/* More than the machine has is refused by malloc(), too. */
static bool is_reasonable(size_t size)
{
	static size_t most;
	struct sysinfo s;

	if (!most)
		most = sysinfo(&s) ? LEAST : (size_t)s.totalram * s.mem_unit;
	return size < most;
}

void *vb_arena_take(enum vb_page kind, size_t align, size_t pages, int map_flags)
{
	size_t size = pages * VB_PAGE;
	struct vb_arena *a;
	void *p = NULL;

	if (huge > 0 && size >= HUGE && align < HUGE)
		align = HUGE;
	if (vb_fork_goes_on() || !pages || pages > SIZE_MAX / 2 / VB_PAGE || align > SIZE_MAX / 4 ||
	    !is_reasonable(size + align))
		return NULL;
	for (size_t i = 0; i < VB_ARENAS && !p; i++) {
		a = &vb_arenas[i];
		if (atomic_load_explicit(&a->base, memory_order_relaxed) && !a->inherited)
			p = take_from(a, kind, align, pages, map_flags);
	}
	if (p)
		return p;
	a = make_arena(size + align);
	return a ? take_from(a, kind, align, pages, map_flags) : NULL;
}

bool vb_arena_extend(struct vb_arena *a, size_t page, size_t pages, size_t more, enum vb_page kind)
{
	size_t at = page + pages, length;

	if (vb_fork_goes_on() || a->inherited || at >= a->pages || !is_free(a, at))
		return false;
	length = a->run[at].length;
	if (length < more || !prepare(a, kind, at, more, at + length, 0))
		return false;
	leave(a, at);
	if (length > more)
		enter(a, at + more, length - more);
	mark(a, at, more, (uint8_t)(kind | VB_PAGE_MAPPED));
	if (kind == VB_PAGE_HEAP)
		a->run[page].length = (uint32_t)(pages + more);
	return true;
}

/* ---- giving back ---- */

int vb_arena_punch(const struct vb_arena *a, size_t page, size_t n)
{
	if (vb_arena_owns(a))
		return syscall(SYS_fallocate, a->fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE,
			       page * VB_PAGE, n * VB_PAGE)
			   ? errno
			   : 0;
	return syscall(SYS_madvise, address(a, page), n * VB_PAGE, MADV_REMOVE) ? errno : 0;
}

void vb_arena_purge(void)
{
	for (size_t i = 0; i < VB_ARENAS && dirty; i++) {
		struct vb_arena *a = &vb_arenas[i];

		if (!atomic_load_explicit(&a->base, memory_order_relaxed) || a->inherited)
			continue;
		for (size_t p = 0, n; p < a->top; p += n) {
			bool old = a->page[p] & VB_PAGE_DIRTY;

			n = vb_arena_alike(a, p, a->top - p, VB_PAGE_DIRTY);
			if (!old)
				continue;
			vb_arena_punch(a, p, n);
			for (size_t k = p; k < p + n; k++)
				a->page[k] &= (uint8_t)~VB_PAGE_DIRTY;
			dirty -= n;
		}
	}
}

/* The heap's memory stays mapped, and what was in it stands there until there is more of such. */
static void give_heap(struct vb_arena *a, size_t page, size_t n)
{
	for (size_t i = page; i < page + n; i++)
		a->page[i] = VB_PAGE_FREE | VB_PAGE_MAPPED | VB_PAGE_DIRTY;
	dirty += n;
	enter_joined(a, page, n);
}

static void give_mapped(struct vb_arena *a, size_t page, size_t n)
{
	vb_arena_punch(a, page, n);
	/* Without memory for one more mapping it stays mapped, as munmap() would leave it. */
	memset(a->page + page,
	       reserve(address(a, page), n * VB_PAGE) == MAP_FAILED
		   ? VB_PAGE_FREE | VB_PAGE_MAPPED | VB_PAGE_ODD
		   : VB_PAGE_FREE,
	       n);
	enter_joined(a, page, n);
}

void vb_arena_give(struct vb_arena *a, size_t page, size_t n, enum vb_page kind)
{
	const uint8_t look = VB_PAGE_KINDS | VB_PAGE_ODD;
	size_t alike;

	for (; n; page += alike, n -= alike) {
		alike = vb_arena_alike(a, page, n, look);
		if ((a->page[page] & VB_PAGE_KINDS) != kind)
			continue;
		if (kind == VB_PAGE_HEAP && !(a->page[page] & VB_PAGE_ODD))
			give_heap(a, page, alike);
		else
			give_mapped(a, page, alike);
	}
	if (dirty > KEEP_DIRTY / VB_PAGE)
		vb_arena_purge();
}

void vb_arena_lose(struct vb_arena *a, size_t page, size_t n)
{
	size_t alike, from, end;

	for (; n; page += alike, n -= alike) {
		alike = vb_arena_alike(a, page, n, VB_PAGE_KINDS);
		if (is_free(a, page)) {
			for (from = page; from && is_free(a, from - 1);)
				from--;
			end = from + a->run[from].length;
			leave(a, from);
			if (page > from)
				enter(a, from, page - from);
			if (end > page + alike)
				enter(a, page + alike, end - (page + alike));
		}
		mark(a, page, alike, VB_PAGE_OTHER);
		if (vb_arena_owns(a))
			vb_arena_punch(a, page, alike);
	}
}

void vb_arena_protect(struct vb_arena *a, size_t page, size_t n, int prot)
{
	for (size_t i = page; i < page + n; i++) {
		int kind = a->page[i] & VB_PAGE_KINDS;

		if (kind == VB_PAGE_HEAP || kind == VB_PAGE_MAP)
			a->run[i].prot = prot < 0 ? vb_arena_protection(a, i) : prot;
		a->page[i] |= VB_PAGE_ODD;
	}
}

int vb_arena_protection(const struct vb_arena *a, size_t page)
{
	return a->page[page] & VB_PAGE_ODD ? a->run[page].prot : PROT_READ | PROT_WRITE;
}

/* Its blocks of the heap are freed page by page; all else is the kernel's. */
void vb_arena_inherit(struct vb_arena *a, void *tables)
{
	bool any = false;

	if (vb_arena_owns(a))
		syscall(SYS_close, a->fd);
	a->fd = -1;
	a->inherited = true;
	vb_arena_free_tables(a, a->page);
	set_tables(a, tables);
	for (size_t p = 0, n; p < a->pages; p += n) {
		n = vb_arena_alike(a, p, a->pages - p, VB_PAGE_KINDS);
		if (is_free(a, p))
			syscall(SYS_munmap, address(a, p), n * VB_PAGE);
		any |= (a->page[p] & VB_PAGE_KINDS) == VB_PAGE_HEAP;
	}
	if (!any)
		vb_arena_forget(a);
}

void vb_arena_forget(struct vb_arena *a)
{
	vb_arena_free_tables(a, a->page);
	atomic_store(&a->base, 0);
}

void vb_arena_begin_anew(void)
{
	reserved = 0;
	dirty = 0;
}

uintptr_t vb_arena_next(uintptr_t at, uintptr_t end)
{
	for (size_t i = 0; i < VB_ARENAS; i++) {
		uintptr_t base = atomic_load_explicit(&vb_arenas[i].base, memory_order_relaxed);

		if (base > at && base < end)
			end = base;
	}
	return end;
}

/* ---- copying ---- */

static int copy_bytes(int fd, size_t from, size_t size, uint8_t *to)
{
	while (size) {
		ssize_t n = syscall(SYS_pread64, fd, to, size, from);

		if (n <= 0)
			return n < 0 ? errno : EIO;
		from += (size_t)n;
		to += n;
		size -= (size_t)n;
	}
	return 0;
}

static int copy_file(const struct vb_arena *a, size_t page, size_t n, uint8_t *to)
{
	const off_t from = (off_t)page * VB_PAGE, end = from + (off_t)n * VB_PAGE;
	off_t at = from;
	int err = 0;

	while (!err && at < end) {
		off_t data = syscall(SYS_lseek, a->fd, at, SEEK_DATA), hole;

		if (data < 0 && errno == ENXIO) /* nothing but a hole from here on */
			break;
		if (data < 0)
			return errno;
		if (data >= end)
			break;
		hole = syscall(SYS_lseek, a->fd, data, SEEK_HOLE);
		if (hole < 0)
			return errno;
		at = hole < end ? hole : end;
		err = copy_bytes(a->fd, (size_t)data, (size_t)(at - data), to + (data - from));
	}
	return err;
}

static bool is_zero(const uint8_t *page)
{
	return !page[0] && !memcmp(page, page + 1, VB_PAGE - 1);
}

/* Maps the memory once more, to read it whatever its protection is.  That needs no descriptor, and tells no
 * holes. */
static int copy_by_mapping(const struct vb_arena *a, size_t page, size_t n, uint8_t *to)
{
	size_t size = n * VB_PAGE;
	uint8_t *again = (void *)syscall(SYS_mremap, address(a, page), 0, size, MREMAP_MAYMOVE);
	int err = 0;

	if (again == MAP_FAILED)
		return errno;
	if (syscall(SYS_mprotect, again, size, PROT_READ))
		err = errno;
	for (size_t i = 0; i < size && !err; i += VB_PAGE)
		if (!is_zero(again + i))
			memcpy(to + i, again + i, VB_PAGE);
	syscall(SYS_munmap, again, size);
	return err;
}

int vb_arena_copy(const struct vb_arena *a, size_t page, size_t n, uint8_t *to)
{
	if (vb_arena_owns(a) && !copy_file(a, page, n, to))
		return 0;
	return copy_by_mapping(a, page, n, to);
}
