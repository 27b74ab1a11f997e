/* libverbena-share.so: memory that a program allocates for its buffers comes from memfds, so that peers can
 * map it.  `verbena run --share-buffers` preloads it.
 *
 * share.c stands in for the C library's functions.  share_arena.c has the memory: arenas of pages, each a
 * memfd and as many addresses.  share_fork.c gives children copies of their own.
 *
 * It must be safe in any process and at any moment: also before constructors have run, and in signal
 * handlers. So it allocates nothing by malloc(), makes system calls only that are no cancellation points, and
 * holds its lock with all signals blocked. */
#ifndef VB_TOOLS_SHARE_H
#define VB_TOOLS_SHARE_H

#include <signal.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

enum { VB_PAGE = 4096, VB_ARENAS = 64 };

/* What a page of an arena is, and marks that go with it: a byte each. */
enum vb_page {
	VB_PAGE_FREE,
	VB_PAGE_HEAP,  /* given out by posix_memalign() and its relatives, and ended by free() */
	VB_PAGE_MAP,   /* given out by mmap(), and ended by munmap() */
	VB_PAGE_OTHER, /* the program has mapped something else there, or nothing */
	VB_PAGE_KINDS = 3,
	VB_PAGE_MAPPED = 4, /* the arena's file is mapped there */
	VB_PAGE_DIRTY = 8,  /* free, and its old contents still stand in the file */
	VB_PAGE_ODD = 16,   /* protected or marked by the program: mapped anew before it is given out again */
	VB_PAGE_NOFORK = 32, /* MADV_DONTFORK */
	VB_PAGE_WIPE = 64,   /* MADV_WIPEONFORK */
	VB_PAGE_HEAD = 128,  /* the first one of a block of the heap */
};

/* Runs of free pages are described at their first and last page, blocks of the heap at their first. */
struct vb_page_run {
	uint32_t length; /* in pages */
	union {
		struct {
			uint32_t next, prev; /* of free runs of about that length: page + 1, 0: none */
		};
		int prot; /* of a page that is odd, and given out */
	};
};

enum { VB_BINS = 32 };

struct vb_arena {
	_Atomic uintptr_t base; /* 0: this place is free */
	size_t pages, top;	/* none from `top` on was ever given out */
	int fd;			/* the program may have closed it: see vb_arena_owns() */
	dev_t dev;
	ino_t ino;
	bool inherited; /* by fork(): ordinary private memory now, of which only the heap's blocks count */
	uint8_t *page;
	struct vb_page_run *run;
	uint32_t bin[VB_BINS];
};

extern struct vb_arena vb_arenas[VB_ARENAS];

/* Whether the option is on, and this is no process that a bare clone() has made. */
bool vb_share_on(void);
void vb_share_say(int level, const char *sentence); /* enum vb_log_level */

/* The lock of all that follows. */
struct vb_share_turn {
	uint64_t signals;
	int err;
};
void vb_share_enter(struct vb_share_turn *t); /* also keeps errno */
void vb_share_leave(const struct vb_share_turn *t);
void vb_share_unlock(void); /* with signals blocked still */
void vb_share_resume(const struct vb_share_turn *t);
void vb_share_forked(void); /* in a child, which holds the lock */

/* Whether any arena may reach into [at, at + size); takes no lock. */
bool vb_arena_near(uintptr_t at, size_t size);
struct vb_arena *vb_arena_of(uintptr_t at);
bool vb_arena_owns(const struct vb_arena *a);

/* `pages` pages of that kind at a multiple of `align` bytes; NULL: there are none to be had. */
void *vb_arena_take(enum vb_page kind, size_t align, size_t pages, int map_flags);
/* `more` pages behind a block of that kind, if they are free. */
bool vb_arena_extend(struct vb_arena *a, size_t page, size_t pages, size_t more, enum vb_page kind);
/* Those pages of the kind, within [page, page + n), become free. */
void vb_arena_give(struct vb_arena *a, size_t page, size_t n, enum vb_page kind);
/* All bytes there read as zero from now on; 0 or errno. */
int vb_arena_punch(const struct vb_arena *a, size_t page, size_t n);
/* Nothing is kept of the freed memory. */
void vb_arena_purge(void);
/* Copies pages that have contents, from a file at an offset; those without are not touched.  0 or errno. */
int vb_arena_copy(const struct vb_arena *a, size_t page, size_t n, uint8_t *to);

/* The pages are odd from now on, and protected so; prot -1: as they are. */
void vb_arena_protect(struct vb_arena *a, size_t page, size_t n, int prot);
int vb_arena_protection(const struct vb_arena *a, size_t page);

/* What a child will know of the arena; NULL: there is no memory. */
void *vb_arena_copy_tables(const struct vb_arena *a);
void vb_arena_free_tables(const struct vb_arena *a, void *tables);

/* The program has mapped something else there, or nothing. */
void vb_arena_lose(struct vb_arena *a, size_t page, size_t n);
/* In a forked child: the arena is inherited, with tables that its parent has copied. */
void vb_arena_inherit(struct vb_arena *a, void *tables);
/* In a forked child: an arena of which nothing is left to know; the next one is a small one again. */
void vb_arena_forget(struct vb_arena *a);
void vb_arena_begin_anew(void);
/* Where the next arena behind `at` begins, `end` at most. */
uintptr_t vb_arena_next(uintptr_t at, uintptr_t end);

/* How many pages from `page` on, `n` at most, are alike in the bits of `mask`. */
size_t vb_arena_alike(const struct vb_arena *a, size_t page, size_t n, uint8_t mask);

#endif
