/* The functions of the C library that --share-buffers stands in for; see share.h.
 *
 * Aligned allocations of at least a page, and plain private mappings of at least 64 KiB, come from an arena.
 * Everything else goes on to the next library, and so does what an arena cannot serve. */
#undef _FORTIFY_SOURCE
#include "share.h"

#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <link.h>
#include <malloc.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "base/log_line.h"
#include "share_fork.h"

#define EXPORT	  __attribute__((visibility("default")))
#define MAP_LEAST (64ul << 10)
#define ADDRESSES (1ul << 47) /* of a process */

int __register_atfork(void (*before)(void), void (*parent)(void), void (*child)(void), void *library);

/* The next library's function. */
#define NEXT(name)                                                               \
	({                                                                       \
		static void *_Atomic next_;                                      \
		void *p_ = atomic_load_explicit(&next_, memory_order_relaxed);   \
                                                                                 \
		if (__builtin_expect(!p_, 0)) {                                  \
			p_ = dlsym(RTLD_NEXT, #name);                            \
			atomic_store_explicit(&next_, p_, memory_order_relaxed); \
		}                                                                \
		(__typeof__(&name))p_;                                           \
	})

/* ---- whether it is on ---- */

enum { UNKNOWN, DECIDING, ON, OFF };
static _Atomic int state;
static const _Atomic uint32_t
    *present; /* 0 in a process that a bare clone() has made: its memory is ours, too */

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

void vb_share_enter(struct vb_share_turn *t)
{
	const uint64_t all = UINT64_MAX;

	t->err = errno;
	syscall(SYS_rt_sigprocmask, SIG_SETMASK, &all, &t->signals, sizeof(all));
	pthread_mutex_lock(&lock);
}

void vb_share_unlock(void)
{
	pthread_mutex_unlock(&lock);
}

void vb_share_resume(const struct vb_share_turn *t)
{
	uint64_t before = t->signals;

	syscall(SYS_rt_sigprocmask, SIG_SETMASK, &before, NULL, sizeof(before));
	errno = t->err;
}

void vb_share_leave(const struct vb_share_turn *t)
{
	vb_share_unlock();
	vb_share_resume(t);
}

/* A page that the kernel wipes in every child. */
static bool make_present(void)
{
	_Atomic uint32_t *p = (void *)present;

	if (!p) {
		p = (void *)syscall(SYS_mmap, NULL, VB_PAGE, PROT_READ | PROT_WRITE,
				    MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
		if (p == MAP_FAILED || syscall(SYS_madvise, p, VB_PAGE, MADV_WIPEONFORK))
			return false;
		present = p;
	}
	atomic_store(p, 1);
	return true;
}

void vb_share_forked(void)
{
	lock = (pthread_mutex_t)PTHREAD_MUTEX_INITIALIZER;
	pthread_mutex_lock(&lock);
	make_present();
}

void vb_share_say(int level, const char *sentence)
{
	const char *to = secure_getenv("VERBENA_LOG"), *least = secure_getenv("VERBENA_LOG_LEVEL"),
		   *format = secure_getenv("VERBENA_LOG_FORMAT");
	struct vb_log_look look = {.json = format && !strcmp(format, "json")};
	struct vb_log_said said;
	char line[VB_LOG_LINE];
	size_t n;
	int fd = STDERR_FILENO;

	if (!to || !*to || !strcmp(to, "off") || (level == VB_LOG_WARN && least && !strcmp(least, "error")))
		return;
	vb_log_said_begin(&said, (enum vb_log_level)level, "", 0);
	snprintf(said.text, sizeof(said.text), "%s", sentence);
	n = vb_log_line_write(line, &look, &said);
	if (strcmp(to, "stderr"))
		fd = (int)syscall(SYS_openat, AT_FDCWD, to, O_WRONLY | O_APPEND | O_CLOEXEC | O_NONBLOCK);
	if (fd < 0)
		return;
	(void)!syscall(SYS_write, fd, line, n);
	if (fd != STDERR_FILENO)
		syscall(SYS_close, fd);
}

/* The file that a function is in, NULL: it is the stub that a program has for a function of elsewhere. */
static const char *file_of(const void *function, const void **base)
{
	const ElfW(Sym) *symbol = NULL;
	Dl_info i;

	if (!function || !dladdr1(function, &i, (void **)&symbol, RTLD_DL_SYMENT) ||
	    (symbol && symbol->st_shndx == SHN_UNDEF))
		return NULL;
	*base = i.dli_fbase;
	return i.dli_fname && *i.dli_fname ? i.dli_fname : "the program";
}

static int find_valgrind(struct dl_phdr_info *i, size_t size, void *found)
{
	(void)size;
	*(bool *)found |= strstr(i->dlpi_name, "vgpreload_") != NULL;
	return 0;
}

/* The file of another allocator than the C library's; NULL: there is none. */
static const char *other_allocator(void)
{
	static const char *const names[] = {"malloc", "free", "realloc", "calloc", "posix_memalign"};
	void *const scopes[] = {RTLD_DEFAULT, RTLD_NEXT};
	const void *libc = NULL, *here = NULL, *base = NULL;
	bool valgrind = false;

	dl_iterate_phdr(find_valgrind, &valgrind);
	if (valgrind)
		return "valgrind";
	file_of((const void *)&vb_share_on, &here);
	file_of(dlsym(RTLD_NEXT, "gnu_get_libc_version"), &libc);
	for (size_t i = 0; i < 2 * sizeof(names) / sizeof(names[0]); i++) {
		const char *file = file_of(dlsym(scopes[i % 2], names[i / 2]), &base);

		if (file && base != libc && base != here)
			return file;
	}
	return NULL;
}

/* Where all memory is promised, memory of a file that cannot be had raises SIGBUS. */
static bool is_strict_about_memory(void)
{
	int fd = (int)syscall(SYS_openat, AT_FDCWD, "/proc/sys/vm/overcommit_memory", O_RDONLY | O_CLOEXEC);
	char mode = '0';

	if (fd < 0)
		return false;
	(void)!syscall(SYS_read, fd, &mode, 1);
	syscall(SYS_close, fd);
	return mode == '2';
}

static char
    why_not[512]; /* a sentence, for begin() to say: an allocator may hold its locks when it calls mmap() */

static bool decide(void)
{
	const char *s = secure_getenv("VERBENA_SHARE_BUFFERS"), *other;
	void (*before)(void), (*parent)(void), (*child)(void);

	if (!s || strcmp(s, "on"))
		return false;
	other = other_allocator();
	if (other) {
		snprintf(why_not, sizeof(why_not),
			 "--share-buffers has no effect in this process: %.300s replaces malloc(), and peers "
			 "cannot map its memory. Run the program without it",
			 other);
		return false;
	}
	if (is_strict_about_memory()) {
		snprintf(
		    why_not, sizeof(why_not), "%s",
		    "--share-buffers has no effect in this process: with vm.overcommit_memory=2 a lack of "
		    "memory would end the program by SIGBUS. Set vm.overcommit_memory to 0 or 1");
		return false;
	}
	vb_fork_handlers(&before, &parent, &child);
	return make_present() && !NEXT(__register_atfork)(before, parent, child, NULL);
}

static __attribute__((noinline)) int find_state(void)
{
	int unknown = UNKNOWN, err = errno;

	if (atomic_compare_exchange_strong(&state, &unknown, DECIDING))
		atomic_store(&state, decide() ? ON : OFF);
	errno = err;
	return atomic_load(&state);
}

bool vb_share_on(void)
{
	int s = atomic_load_explicit(&state, memory_order_acquire);

	if (__builtin_expect(s == UNKNOWN, 0))
		s = find_state();
	return s == ON && atomic_load_explicit(present, memory_order_relaxed);
}

static __attribute__((constructor)) void begin(void)
{
	vb_share_on();
	if (*why_not)
		vb_share_say(VB_LOG_WARN, why_not);
}

/* The program's handlers come behind ours, whenever they are registered. */
EXPORT int __register_atfork(void (*before)(void), void (*parent)(void), void (*child)(void), void *library)
{
	vb_share_on();
	return NEXT(__register_atfork)(before, parent, child, library);
}

/* ---- the heap ---- */

static size_t pages_of(size_t size)
{
	return size / VB_PAGE + (size % VB_PAGE != 0);
}

static void *take(enum vb_page kind, size_t align, size_t size, int flags)
{
	struct vb_share_turn t;
	void *p;

	vb_fork_enter(&t);
	p = vb_arena_take(kind, align, pages_of(size), flags);
	vb_share_leave(&t);
	return p;
}

/* NULL: it is the next library's to serve, or to refuse. */
static void *take_aligned(size_t align, size_t size)
{
	if (align < VB_PAGE || align & (align - 1) || size < VB_PAGE || !vb_share_on())
		return NULL;
	return take(VB_PAGE_HEAP, align, size, 0);
}

EXPORT int posix_memalign(void **to, size_t align, size_t size)
{
	void *p = take_aligned(align, size);

	if (!p)
		return NEXT(posix_memalign)(to, align, size);
	*to = p;
	return 0;
}

EXPORT void *memalign(size_t align, size_t size)
{
	void *p = take_aligned(align, size);

	return p ? p : NEXT(memalign)(align, size);
}

EXPORT void *aligned_alloc(size_t align, size_t size)
{
	void *p = take_aligned(align, size);

	return p ? p : NEXT(aligned_alloc)(align, size);
}

EXPORT void *valloc(size_t size)
{
	void *p = take_aligned(VB_PAGE, size);

	return p ? p : NEXT(valloc)(size);
}

EXPORT void *pvalloc(size_t size)
{
	void *p = take_aligned(VB_PAGE, size && size < VB_PAGE ? VB_PAGE : size);

	return p ? p : NEXT(pvalloc)(size);
}

/* Whether p may be a block of an arena. */
static inline bool is_near(const void *p)
{
	return !((uintptr_t)p & (VB_PAGE - 1)) && vb_arena_near((uintptr_t)p, 1);
}

/* The block at p, and the lock held; NULL, and not: it is none. */
static struct vb_arena *enter_block(struct vb_share_turn *t, const void *p, size_t *page, size_t *pages)
{
	const uint8_t want = VB_PAGE_HEAP | VB_PAGE_HEAD;
	struct vb_arena *a;

	vb_share_enter(t);
	a = vb_arena_of((uintptr_t)p);
	if (a) {
		*page = ((uintptr_t)p - atomic_load(&a->base)) / VB_PAGE;
		*pages = a->run[*page].length;
		if ((a->page[*page] & (VB_PAGE_KINDS | VB_PAGE_HEAD)) == want)
			return a;
	}
	vb_share_leave(t);
	return NULL;
}

/* Frees pages of a block. */
static void give(struct vb_arena *a, size_t page, size_t n)
{
	uint8_t *at = (uint8_t *)atomic_load(&a->base) + page * VB_PAGE;

	if (!vb_share_on()) /* its parent's memory: it stays */
		return;
	if (a->inherited) {
		syscall(SYS_munmap, at, n * VB_PAGE);
		vb_arena_lose(a, page, n);
	} else {
		vb_arena_give(a, page, n, VB_PAGE_HEAP);
	}
}

static __attribute__((noinline)) bool free_block(void *p)
{
	struct vb_share_turn t;
	size_t page, pages;
	struct vb_arena *a = enter_block(&t, p, &page, &pages);

	if (!a)
		return false;
	give(a, page, pages);
	vb_share_leave(&t);
	return true;
}

/* dlsym() itself frees the text of an error before it: once, that is lost. */
static void pass_free(void *p)
{
	static void (*_Atomic next)(void *);
	static atomic_bool looking;
	void (*fn)(void *) = atomic_load_explicit(&next, memory_order_relaxed);

	if (__builtin_expect(!fn, 0)) {
		if (atomic_exchange(&looking, true))
			return;
		fn = (void (*)(void *))dlsym(RTLD_NEXT, "free");
		atomic_store(&next, fn);
		atomic_store(&looking, false);
	}
	fn(p);
}

EXPORT void free(void *p)
{
	if (__builtin_expect(is_near(p), 0) && free_block(p))
		return;
	pass_free(p);
}

EXPORT size_t malloc_usable_size(void *p)
{
	struct vb_share_turn t;
	size_t page, pages;

	if (!is_near(p) || !enter_block(&t, p, &page, &pages))
		return NEXT(malloc_usable_size)(p);
	vb_share_leave(&t);
	return pages * VB_PAGE;
}

/* Whether the block could be changed in its place. */
static bool resize(struct vb_arena *a, size_t page, size_t pages, size_t want)
{
	if (want == pages)
		return true;
	if (want > pages)
		return vb_share_on() && vb_arena_extend(a, page, pages, want - pages, VB_PAGE_HEAP);
	a->run[page].length = (uint32_t)want;
	give(a, page + want, pages - want);
	return true;
}

static void *move_block(void *p, size_t old, size_t size)
{
	void *to = take_aligned(VB_PAGE, size);

	if (!to)
		to = NEXT(malloc)(size);
	if (!to)
		return NULL;
	memcpy(to, p, old < size ? old : size);
	free_block(p);
	return to;
}

EXPORT void *realloc(void *p, size_t size)
{
	struct vb_share_turn t;
	size_t page, pages;
	struct vb_arena *a = is_near(p) ? enter_block(&t, p, &page, &pages) : NULL;
	bool done;

	if (!a)
		return NEXT(realloc)(p, size);
	done = size >= VB_PAGE && resize(a, page, pages, pages_of(size));
	vb_share_leave(&t);
	if (done)
		return p;
	if (!size) {
		free_block(p);
		return NULL;
	}
	return move_block(p, pages * VB_PAGE, size);
}

EXPORT void *reallocarray(void *p, size_t n, size_t size)
{
	size_t bytes;

	if (!__builtin_mul_overflow(n, size, &bytes))
		return realloc(p, bytes);
	errno = ENOMEM;
	return NULL;
}

/* ---- mappings ---- */

static uintptr_t round_up(uintptr_t n)
{
	return (n + VB_PAGE - 1) & ~(uintptr_t)(VB_PAGE - 1);
}

static bool is_plain(const void *at, size_t size, int prot, int flags, off_t offset)
{
	return !at && size >= MAP_LEAST && !(offset % VB_PAGE) && prot == (PROT_READ | PROT_WRITE) &&
	       (flags & ~(MAP_NORESERVE | MAP_POPULATE)) == (MAP_PRIVATE | MAP_ANONYMOUS);
}

/* A part of a range: of one arena, or of none. */
struct part {
	struct vb_arena *arena; /* NULL: none, or one that is inherited */
	uintptr_t at;
	size_t size, page, pages;
};

/* The first part of [at, end), of pages of one kind. */
static void first_part(struct part *p, uintptr_t at, uintptr_t end)
{
	struct vb_arena *a = vb_arena_of(at);
	uintptr_t base = a ? atomic_load(&a->base) : 0, last = a ? base + a->pages * VB_PAGE : end;

	*p = (struct part){.at = at};
	end = vb_arena_next(at, end);
	if (!a) {
		p->size = end - at;
		return;
	}
	if (last < end)
		end = last;
	p->arena = a;
	p->page = (at - base) / VB_PAGE;
	p->pages = vb_arena_alike(a, p->page, (end - at) / VB_PAGE, VB_PAGE_KINDS);
	p->size = p->pages * VB_PAGE;
}

/* The program has mapped something of its own there. */
static void lose(uintptr_t at, uintptr_t end)
{
	struct vb_share_turn t;
	struct part p;

	vb_share_enter(&t);
	for (; at < end; at += p.size) {
		first_part(&p, at, end);
		if (p.arena)
			vb_arena_lose(p.arena, p.page, p.pages);
	}
	vb_share_leave(&t);
}

EXPORT void *mmap(void *at, size_t size, int prot, int flags, int fd, off_t offset)
{
	void *p = NULL;

	if (is_plain(at, size, prot, flags, offset) && vb_share_on())
		p = take(VB_PAGE_MAP, VB_PAGE, size, flags & MAP_POPULATE);
	if (p)
		return p;
	p = NEXT(mmap)(at, size, prot, flags, fd, offset);
	if (p != MAP_FAILED && flags & MAP_FIXED && vb_arena_near((uintptr_t)p, size) && vb_share_on())
		lose((uintptr_t)p, (uintptr_t)p + round_up(size));
	return p;
}

EXPORT void *mmap64(void *at, size_t size, int prot, int flags, int fd, off64_t offset)
{
	return mmap(at, size, prot, flags, fd, offset);
}

/* Whether a call for [at, at + size) concerns an arena, and is not refused by the kernel for its numbers. */
static bool concerns(const void *at, size_t size)
{
	return vb_arena_near((uintptr_t)at, size) && !((uintptr_t)at & (VB_PAGE - 1)) && size &&
	       size <= ADDRESSES && (uintptr_t)at <= ADDRESSES - size && vb_share_on();
}

static int unmap_part(const struct part *p)
{
	uint8_t kind = p->arena ? p->arena->page[p->page] & VB_PAGE_KINDS : VB_PAGE_OTHER;

	if (p->arena && !p->arena->inherited && kind == VB_PAGE_FREE)
		return 0;
	if (p->arena && !p->arena->inherited && kind != VB_PAGE_HEAP) {
		vb_arena_give(p->arena, p->page, p->pages, kind);
		return 0;
	}
	if (syscall(SYS_munmap, p->at, p->size))
		return errno;
	if (p->arena)
		vb_arena_lose(p->arena, p->page, p->pages);
	return 0;
}

EXPORT int munmap(void *from, size_t size)
{
	struct vb_share_turn t;
	uintptr_t at = (uintptr_t)from, end = at + round_up(size);
	struct part p;
	int err = 0;

	if (!concerns(from, size))
		return NEXT(munmap)(from, size);
	vb_share_enter(&t);
	for (; at < end && !err; at += p.size) {
		first_part(&p, at, end);
		err = unmap_part(&p);
	}
	t.err = err ? err : t.err;
	vb_share_leave(&t);
	return err ? -1 : 0;
}

static int set_marks(const struct part *p, uint8_t set, uint8_t clear)
{
	for (size_t i = p->page; i < p->page + p->pages; i++)
		p->arena->page[i] = (p->arena->page[i] | set) & (uint8_t)~clear;
	return 0;
}

/* As the kernel, it stops where nothing is mapped.  key -1: none. */
static int protect(uintptr_t at, uintptr_t end, int prot, int key)
{
	struct vb_share_turn t;
	struct part p;
	int err = 0;

	vb_share_enter(&t);
	for (; at < end && !err; at += p.size) {
		first_part(&p, at, end);
		if (p.arena && !p.arena->inherited &&
		    (p.arena->page[p.page] & VB_PAGE_KINDS) == VB_PAGE_FREE) {
			err = ENOMEM;
			break;
		}
		err =
		    syscall(key < 0 ? SYS_mprotect : SYS_pkey_mprotect, p.at, p.size, prot, key) ? errno : 0;
		if (p.arena && !p.arena->inherited) /* also a part of it may be protected */
			vb_arena_protect(p.arena, p.page, p.pages, err ? -1 : prot & 7);
	}
	t.err = err ? err : t.err;
	vb_share_leave(&t);
	return err ? -1 : 0;
}

EXPORT int mprotect(void *at, size_t size, int prot)
{
	if (!concerns(at, size))
		return NEXT(mprotect)(at, size, prot);
	return protect((uintptr_t)at, (uintptr_t)at + round_up(size), prot, -1);
}

EXPORT int pkey_mprotect(void *at, size_t size, int prot, int key)
{
	if (!concerns(at, size))
		return NEXT(pkey_mprotect)(at, size, prot, key);
	return protect((uintptr_t)at, (uintptr_t)at + round_up(size), prot, key);
}

static int raw_advice(uintptr_t at, size_t size, int advice)
{
	return syscall(SYS_madvise, at, size, advice) ? errno : 0;
}

/* Both: the arena's file may no longer be what is mapped there. */
static int drop_part(const struct part *p, int advice)
{
	int err = raw_advice(p->at, p->size, advice == MADV_FREE ? MADV_DONTNEED : advice);

	return err ? err : vb_arena_punch(p->arena, p->page, p->pages);
}

static int advise_part(const struct part *p, int advice)
{
	uint8_t kind = p->arena ? p->arena->page[p->page] & VB_PAGE_KINDS : VB_PAGE_OTHER;
	int err;

	if (!p->arena || p->arena->inherited || kind == VB_PAGE_OTHER)
		return raw_advice(p->at, p->size, advice);
	if (kind == VB_PAGE_FREE)
		return ENOMEM;
	switch (advice) {
	case MADV_WIPEONFORK:
		return set_marks(p, VB_PAGE_WIPE, 0);
	case MADV_KEEPONFORK:
		return set_marks(p, 0, VB_PAGE_WIPE);
	case MADV_DONTFORK:
		err = raw_advice(p->at, p->size, advice);
		vb_arena_protect(p->arena, p->page, p->pages, -1);
		return err ? err : set_marks(p, VB_PAGE_NOFORK, 0);
	case MADV_DOFORK:
		err = raw_advice(p->at, p->size, advice);
		return err ? err : set_marks(p, 0, VB_PAGE_NOFORK);
	default:
		return drop_part(p, advice);
	}
}

static bool is_special(int advice)
{
	return advice == MADV_DONTNEED || advice == MADV_FREE || advice == MADV_DONTFORK ||
	       advice == MADV_DOFORK || advice == MADV_WIPEONFORK || advice == MADV_KEEPONFORK ||
	       advice == 24 /* MADV_DONTNEED_LOCKED */;
}

EXPORT int madvise(void *from, size_t size, int advice)
{
	struct vb_share_turn t;
	uintptr_t at = (uintptr_t)from, end = at + round_up(size);
	int err = 0, one;
	struct part p;

	if (!is_special(advice) || !concerns(from, size))
		return NEXT(madvise)(from, size, advice);
	vb_share_enter(&t);
	for (; at < end; at += p.size) {
		first_part(&p, at, end);
		one = advise_part(&p, advice);
		err = err ? err : one;
		if (one && one != ENOMEM) /* what is not mapped is passed over, as by the kernel */
			break;
	}
	t.err = err ? err : t.err;
	vb_share_leave(&t);
	return err ? -1 : 0;
}

/* ---- mremap ---- */

struct move {
	uintptr_t from, to; /* `to` with MREMAP_FIXED only */
	size_t old, size;   /* rounded up */
	int flags;
};

static void *raw_map(uintptr_t at, size_t size)
{
	return (void *)syscall(SYS_mmap, at, size, PROT_READ | PROT_WRITE,
			       MAP_PRIVATE | MAP_ANONYMOUS | (at ? MAP_FIXED : 0), -1, 0);
}

/* The memory at `m->from` to another place; 0 or errno. */
static int move_pages(const struct part *p, const struct move *m, uintptr_t *to)
{
	size_t n = (m->old < m->size ? m->old : m->size) / VB_PAGE;
	void *place = NULL;
	int err;

	if (!(m->flags & MREMAP_FIXED))
		place = vb_arena_take(VB_PAGE_MAP, VB_PAGE, m->size / VB_PAGE, 0);
	if (!place)
		place = raw_map(m->flags & MREMAP_FIXED ? m->to : 0, m->size);
	if (place == MAP_FAILED)
		return errno;
	err = vb_arena_copy(p->arena, p->page, n, place);
	if (err)
		return err;
	if (m->flags & MREMAP_DONTUNMAP)
		err = drop_part(p, MADV_DONTNEED);
	else
		vb_arena_give(p->arena, p->page, p->pages, VB_PAGE_MAP);
	*to = (uintptr_t)place;
	return err;
}

/* What lies wholly in mappings of an arena. */
static int remap_ours(const struct part *p, const struct move *m, uintptr_t *to)
{
	const int known = MREMAP_MAYMOVE | MREMAP_FIXED | MREMAP_DONTUNMAP;

	if (m->flags & ~known || !m->size || (m->flags & ~MREMAP_MAYMOVE && !(m->flags & MREMAP_MAYMOVE)) ||
	    (m->flags & MREMAP_DONTUNMAP && m->old != m->size) ||
	    (m->flags & MREMAP_FIXED &&
	     (m->to % VB_PAGE || (m->to < m->from + m->old && m->from < m->to + m->size))))
		return EINVAL;
	*to = m->from;
	if (m->flags & ~MREMAP_MAYMOVE)
		return move_pages(p, m, to);
	if (m->size < m->old)
		vb_arena_give(p->arena, p->page + m->size / VB_PAGE, (m->old - m->size) / VB_PAGE,
			      VB_PAGE_MAP);
	if (m->size <= m->old ||
	    vb_arena_extend(p->arena, p->page, p->pages, (m->size - m->old) / VB_PAGE, VB_PAGE_MAP))
		return 0;
	return m->flags & MREMAP_MAYMOVE ? move_pages(p, m, to) : ENOMEM;
}

static bool is_ours(struct part *p, const struct move *m)
{
	first_part(p, m->from, m->from + (m->old ? m->old : VB_PAGE));
	return p->arena && !p->arena->inherited && (p->size == m->old || !m->old) &&
	       (p->arena->page[p->page] & VB_PAGE_KINDS) == VB_PAGE_MAP;
}

static int remap(const struct move *m, size_t old, size_t size, uintptr_t *to)
{
	struct part p;

	if (is_ours(&p, m))
		return m->old ? remap_ours(&p, m, to) : EINVAL;
	*to = (uintptr_t)syscall(SYS_mremap, m->from, old, size, m->flags, m->to);
	return *to == (uintptr_t)MAP_FAILED ? errno : 0;
}

EXPORT void *mremap(void *from, size_t old, size_t size, int flags, ...)
{
	struct move m = {(uintptr_t)from, 0, round_up(old), round_up(size), flags};
	struct vb_share_turn t;
	uintptr_t to = 0;
	va_list ap;
	int err;

	va_start(ap, flags);
	if (flags & (MREMAP_FIXED | MREMAP_DONTUNMAP))
		m.to = (uintptr_t)va_arg(ap, void *);
	va_end(ap);
	if (!concerns(from, old ? old : VB_PAGE) && !(flags & MREMAP_FIXED && concerns((void *)m.to, size)))
		return NEXT(mremap)(from, old, size, flags, (void *)m.to);
	vb_share_enter(&t);
	err = remap(&m, old, size, &to);
	t.err = err ? err : t.err;
	vb_share_leave(&t);
	if (err)
		return MAP_FAILED;
	if (flags & MREMAP_FIXED && vb_arena_near(to, m.size))
		lose(to, to + m.size);
	return (void *)to;
}

/* ---- stacks ---- */

/* Memory of an arena becomes private memory, with its contents. */
static void make_private(const struct part *p)
{
	uint8_t kind = p->arena ? p->arena->page[p->page] & VB_PAGE_KINDS : VB_PAGE_OTHER;
	void *copy;

	if (!p->arena || p->arena->inherited || (kind != VB_PAGE_HEAP && kind != VB_PAGE_MAP))
		return;
	copy = raw_map(0, p->size);
	if (copy == MAP_FAILED)
		return;
	if (vb_arena_copy(p->arena, p->page, p->pages, copy) ||
	    syscall(SYS_mremap, copy, p->size, p->size, MREMAP_MAYMOVE | MREMAP_FIXED, p->at) !=
		(long)p->at) {
		syscall(SYS_munmap, copy, p->size);
		return;
	}
	if (kind == VB_PAGE_MAP) {
		vb_arena_lose(p->arena, p->page, p->pages);
		return;
	}
	vb_arena_protect(p->arena, p->page, p->pages, PROT_READ | PROT_WRITE);
	vb_arena_punch(p->arena, p->page, p->pages);
}

/* The C library keeps what it knows of a thread on such a stack, and the kernel writes there in a child
 * before any handler of fork() runs. */
EXPORT int pthread_attr_setstack(pthread_attr_t *attr, void *stack, size_t size)
{
	int r = NEXT(pthread_attr_setstack)(attr, stack, size);
	uintptr_t at = (uintptr_t)stack & ~(uintptr_t)(VB_PAGE - 1), end;
	struct vb_share_turn t;
	struct part p;

	if (r || !concerns((void *)at, size))
		return r;
	end = round_up((uintptr_t)stack + size);
	vb_share_enter(&t);
	for (; at < end; at += p.size) {
		first_part(&p, at, end);
		make_private(&p);
	}
	vb_share_leave(&t);
	return r;
}

static bool is_in_use(uintptr_t at)
{
	struct vb_share_turn t;
	struct vb_arena *a;
	bool in;

	if (!vb_arena_near(at, 1) || !vb_share_on())
		return false;
	vb_share_enter(&t);
	a = vb_arena_of(at);
	in = a && !a->inherited;
	vb_share_leave(&t);
	return in;
}

/* A fork() on a stack in an arena: parent and child would both run on it until the child has its copy. */
EXPORT pid_t fork(void)
{
	if (is_in_use((uintptr_t)__builtin_frame_address(0)))
		return vb_fork_elsewhere(NEXT(fork));
	return NEXT(fork)();
}
