/* What fork() does to shared memory: a child gets a copy of its own, as of private memory.
 *
 * The thread that forks makes the copy before the process divides, and the child only moves it to the
 * addresses of the original.  So no process waits for another one, and it does not matter when a child dies.
 * Where there is no memory for the copy, the parent goes on and the child ends with a sentence.
 *
 * What is mapped is read from the kernel: a program may have changed its mappings by system calls of its own.
 *
 * These handlers are the first to be registered, so they run last before fork() and first after it: no
 * handler of the program can see the parent's memory in the child.  vfork() and posix_spawn() run none, and
 * need none. */
#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/sysmacros.h>
#include <unistd.h>

#include "base/log.h"
#include "share_fork.h"

enum { PIECES = 1 << 17, FD_FROM = 512 };

enum fate { COPY, WIPE, DROP };

/* Pages of an arena that are mapped here, and what becomes of them in the child. */
struct piece {
	uint8_t *at, *copy;
	size_t size;
	int prot;
	enum fate fate;
};

static struct piece *pieces; /* of the fork() that goes on */
static size_t npieces;
static int failed;    /* errno: the child cannot have its memory */
static int maps = -1; /* of this process, opened in time */
static dev_t maps_dev;
static ino_t maps_ino;

static bool maps_is_ours(void)
{
	struct stat st;

	return maps >= 0 && !fstat(maps, &st) && st.st_dev == maps_dev && st.st_ino == maps_ino;
}

bool vb_fork_ready(void)
{
	struct stat st;
	int fd, up;

	if (maps_is_ours())
		return true;
	fd = (int)syscall(SYS_openat, AT_FDCWD, "/proc/self/maps", O_RDONLY | O_CLOEXEC);
	up = fd < 0 ? -1 : (int)syscall(SYS_fcntl, fd, F_DUPFD_CLOEXEC, FD_FROM);
	if (fd >= 0)
		syscall(SYS_close, fd);
	fd = up;
	if (fd < 0 || fstat(fd, &st))
		return false;
	maps = fd;
	maps_dev = st.st_dev;
	maps_ino = st.st_ino;
	return true;
}

/* ---- before ---- */

static uint8_t *private_memory(size_t size)
{
	void *p = (void *)syscall(SYS_mmap, NULL, size, PROT_READ | PROT_WRITE,
				  MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);

	return p == MAP_FAILED ? NULL : p;
}

static enum fate fate_of(uint8_t page)
{
	if ((page & VB_PAGE_KINDS) == VB_PAGE_FREE || (page & VB_PAGE_NOFORK))
		return DROP;
	return page & VB_PAGE_WIPE ? WIPE : COPY;
}

static int add(const struct vb_arena *a, size_t page, size_t n, int prot)
{
	struct piece *p = &pieces[npieces];
	int err;

	if ((a->page[page] & VB_PAGE_KINDS) == VB_PAGE_FREE)
		return 0; /* the child needs none of them */
	if (npieces == PIECES)
		return ENOMEM;
	*p = (struct piece){.at = (uint8_t *)atomic_load(&a->base) + page * VB_PAGE,
			    .size = n * VB_PAGE,
			    .prot = prot,
			    .fate = fate_of(a->page[page])};
	if (p->fate != DROP) {
		p->copy = private_memory(p->size);
		if (!p->copy)
			return errno;
	}
	npieces++;
	err = p->fate == COPY ? vb_arena_copy(a, page, n, p->copy) : 0;
	return err;
}

/* A mapping of the process. */
struct mapping {
	uint64_t start, end, offset, major, minor, ino;
	int prot;
	bool shared;
};

static int keep(const struct mapping *m)
{
	const struct vb_arena *a = vb_arena_of(m->start);
	size_t page, end, n;
	int err = 0;

	if (!a || a->inherited || !m->shared || m->ino != a->ino || makedev(m->major, m->minor) != a->dev)
		return 0;
	page = (m->start - atomic_load(&a->base)) / VB_PAGE;
	end = page + (m->end - m->start) / VB_PAGE;
	if (m->offset != page * VB_PAGE || end > a->pages)
		return 0;
	for (; page < end && !err; page += n) {
		enum fate fate = fate_of(a->page[page]);

		for (n = 1; page + n < end && fate_of(a->page[page + n]) == fate;)
			n++;
		err = add(a, page, n, m->prot);
	}
	return err;
}

static const char *number(const char *at, unsigned base, uint64_t *n)
{
	for (*n = 0;; at++) {
		unsigned digit = *at >= '0' && *at <= '9'   ? (unsigned)(*at - '0')
				 : *at >= 'a' && *at <= 'f' ? (unsigned)(*at - 'a' + 10)
							    : 16;

		if (digit >= base)
			return at;
		*n = *n * base + digit;
	}
}

/* "start-end rwxs offset major:minor inode   name" */
static void parse(const char *at, struct mapping *m)
{
	at = number(at, 16, &m->start);
	at = number(at + 1, 16, &m->end) + 1;
	m->prot =
	    (at[0] == 'r' ? PROT_READ : 0) | (at[1] == 'w' ? PROT_WRITE : 0) | (at[2] == 'x' ? PROT_EXEC : 0);
	m->shared = at[3] == 's';
	at = number(at + 5, 16, &m->offset);
	at = number(at + 1, 16, &m->major);
	at = number(at + 1, 16, &m->minor);
	number(at + 1, 10, &m->ino);
}

/* All lines of /proc/self/maps; a name may be cut. */
static int each_mapping(int (*fn)(const struct mapping *))
{
	static char text[16384];
	size_t have = 0;
	int err = 0;

	if (!vb_fork_ready() || syscall(SYS_lseek, maps, 0, SEEK_SET))
		return errno;
	for (;;) {
		ssize_t n = syscall(SYS_read, maps, text + have, sizeof(text) - 1 - have);
		char *at = text, *end;

		if (n <= 0)
			return n < 0 ? errno : 0;
		have += (size_t)n;
		text[have] = '\0';
		while ((end = strchr(at, '\n'))) {
			struct mapping m;

			parse(at, &m);
			err = fn(&m);
			if (err)
				return err;
			at = end + 1;
		}
		have = (size_t)(text + have - at);
		memmove(text, at, have);
	}
}

static bool is_any(void)
{
	for (size_t i = 0; i < VB_ARENAS; i++)
		if (atomic_load(&vb_arenas[i].base) && !vb_arenas[i].inherited)
			return true;
	return false;
}

static struct vb_share_turn turn;
static bool copies; /* the fork() that goes on */

static void before_fork(void)
{
	struct vb_share_turn t;

	vb_share_enter(&t);
	turn = t;
	npieces = 0;
	failed = 0;
	copies = vb_share_on() && is_any();
	if (!copies)
		return;
	vb_arena_purge();
	pieces = (void *)private_memory(PIECES * sizeof(*pieces));
	failed = pieces ? each_mapping(keep) : errno;
}

/* ---- after ---- */

static void forget_pieces(void)
{
	if (pieces)
		syscall(SYS_munmap, pieces, PIECES * sizeof(*pieces));
	pieces = NULL;
	npieces = 0;
}

static void after_fork_in_parent(void)
{
	struct vb_share_turn t = turn;

	for (size_t i = 0; i < npieces; i++)
		if (pieces[i].copy)
			syscall(SYS_munmap, pieces[i].copy, pieces[i].size);
	forget_pieces();
	vb_share_leave(&t);
}

static int put(const struct piece *p)
{
	if (p->fate == DROP)
		return syscall(SYS_munmap, p->at, p->size) ? errno : 0;
	if ((uint8_t *)syscall(SYS_mremap, p->copy, p->size, p->size, MREMAP_MAYMOVE | MREMAP_FIXED, p->at) !=
	    p->at)
		return errno;
	if (p->fate == WIPE && syscall(SYS_madvise, p->at, p->size, MADV_WIPEONFORK))
		return errno;
	if (p->prot != (PROT_READ | PROT_WRITE) && syscall(SYS_mprotect, p->at, p->size, p->prot))
		return errno;
	return 0;
}

/* Its blocks of the heap are freed page by page; all else is the kernel's. */
static void inherit(struct vb_arena *a)
{
	uint8_t *base = (uint8_t *)atomic_load(&a->base);
	bool any = false;

	if (vb_arena_owns(a))
		syscall(SYS_close, a->fd);
	a->fd = -1;
	a->inherited = true;
	for (size_t p = 0, n; p < a->pages; p += n) {
		n = vb_arena_alike(a, p, a->pages - p, VB_PAGE_KINDS);
		if ((a->page[p] & VB_PAGE_KINDS) == VB_PAGE_FREE)
			syscall(SYS_munmap, base + p * VB_PAGE, n * VB_PAGE);
		any |= (a->page[p] & VB_PAGE_KINDS) == VB_PAGE_HEAP;
	}
	if (!any)
		vb_arena_forget(a);
}

static void after_fork_in_child(void)
{
	struct vb_share_turn t = turn;
	int err = failed;

	if (copies) {
		for (size_t i = 0; i < npieces && !err; i++)
			err = put(&pieces[i]);
		if (err) {
			vb_share_say(VB_LOG_ERROR,
				     err == EMFILE || err == ENFILE
					 ? "fork(): this child process ends, since its copy of the shared "
					   "buffers needs a file descriptor. Raise RLIMIT_NOFILE, or run "
					   "without --share-buffers"
					 : "fork(): this child process ends, since there is no memory for "
					   "its copy of the shared buffers. Free memory, or run without "
					   "--share-buffers");
			_exit(125);
		}
		for (size_t i = 0; i < VB_ARENAS; i++)
			if (atomic_load(&vb_arenas[i].base) && !vb_arenas[i].inherited)
				inherit(&vb_arenas[i]);
		vb_arena_begin_anew();
	}
	forget_pieces();
	if (maps_is_ours()) /* it shows the parent */
		syscall(SYS_close, maps);
	maps = -1;
	vb_share_forked();
	vb_share_leave(&t);
}

void vb_fork_handlers(void (**before)(void), void (**parent)(void), void (**child)(void))
{
	*before = before_fork;
	*parent = after_fork_in_parent;
	*child = after_fork_in_child;
}
