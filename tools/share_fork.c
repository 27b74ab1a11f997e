/* What fork() does to shared memory: a child gets a copy of its own, as of private memory.
 *
 * The thread that forks makes the copy before the process divides, and the child only moves it to the
 * addresses of the original.  So no process waits for another one, and it does not matter when a child dies.
 * Where there is no memory for the copy, the parent goes on and the child ends with a sentence.
 *
 * What is mapped is read from the kernel: a program may have changed its mappings by system calls of its own.
 * Where that is not permitted, our tables have to do.
 *
 * The lock is free while the process divides: fork() takes locks of the C library then, and another thread
 * may hold one of them while it allocates.  So the child gets copies of the tables, too, of the moment of the
 * copy, and no pages are given out until the process has divided.
 *
 * These handlers are the first to be registered, so they run last before fork() and first after it: no
 * handler of the program can see the parent's memory in the child.  vfork() and posix_spawn() run none, and
 * need none. */
#include <errno.h>
#include <fcntl.h>
#include <linux/futex.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/sysmacros.h>
#include <time.h>
#include <ucontext.h>
#include <unistd.h>

#include "base/log.h"
#include "share_fork.h"

enum { PIECES = 1 << 17, FD_FROM = 512, WAIT_MS = 20, WAITS = 3 };

enum fate { COPY, WIPE, DROP };

/* Pages of an arena that are mapped here, and what becomes of them in the child. */
struct piece {
	uint8_t *at, *copy;
	size_t size;
	int prot;
	enum fate fate;
};

/* The fork() of a thread. */
struct division {
	struct vb_share_turn turn;
	bool counted, copies;
	int failed; /* errno: the child cannot have its memory */
	struct piece *pieces;
	size_t npieces;
	void *tables[VB_ARENAS];
};

static __thread struct division mine;
static _Atomic uint32_t dividing; /* how many go on */
static atomic_bool overdue;	  /* a thread has waited in vain for that */
static int maps = -1;		  /* of this process, opened in time */
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
	struct piece *p = &mine.pieces[mine.npieces];
	int err;

	if ((a->page[page] & VB_PAGE_KINDS) == VB_PAGE_FREE)
		return 0; /* the child needs none of them */
	if (mine.npieces == PIECES)
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
	mine.npieces++;
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

/* All that our tables know of. */
static int each_known(void)
{
	const uint8_t look = VB_PAGE_KINDS | VB_PAGE_ODD | VB_PAGE_NOFORK | VB_PAGE_WIPE;
	int err = 0;

	for (size_t i = 0; i < VB_ARENAS && !err; i++) {
		const struct vb_arena *a = &vb_arenas[i];

		if (!atomic_load(&a->base) || a->inherited)
			continue;
		for (size_t p = 0, n; p < a->top && !err; p += n) {
			int kind = a->page[p] & VB_PAGE_KINDS, prot = vb_arena_protection(a, p);
			size_t most = vb_arena_alike(a, p, a->top - p, look);

			for (n = 1; n < most && vb_arena_protection(a, p + n) == prot;)
				n++;
			if (kind == VB_PAGE_HEAP || kind == VB_PAGE_MAP)
				err = add(a, p, n, prot);
		}
	}
	return err;
}

static bool is_any(void)
{
	for (size_t i = 0; i < VB_ARENAS; i++)
		if (atomic_load(&vb_arenas[i].base) && !vb_arenas[i].inherited)
			return true;
	return false;
}

static void forget_pieces(void)
{
	for (size_t i = 0; i < mine.npieces; i++)
		if (mine.pieces[i].copy)
			syscall(SYS_munmap, mine.pieces[i].copy, mine.pieces[i].size);
	mine.npieces = 0;
}

static int copy_tables(void)
{
	for (size_t i = 0; i < VB_ARENAS; i++) {
		const struct vb_arena *a = &vb_arenas[i];

		if (!atomic_load(&a->base) || a->inherited)
			continue;
		mine.tables[i] = vb_arena_copy_tables(a);
		if (!mine.tables[i])
			return errno;
	}
	return 0;
}

static int copy_all(void)
{
	int err;

	vb_arena_purge();
	mine.pieces = (void *)private_memory(PIECES * sizeof(*mine.pieces));
	if (!mine.pieces)
		return errno;
	err = each_mapping(keep);
	if (err) {
		forget_pieces();
		err = each_known();
	}
	return err ? err : copy_tables();
}

bool vb_fork_goes_on(void)
{
	return atomic_load_explicit(&dividing, memory_order_relaxed);
}

static void wait_for_it(void)
{
	const struct timespec most = {.tv_nsec = WAIT_MS * 1000000};
	uint32_t n = atomic_load(&dividing);

	if (n && !atomic_load(&overdue) &&
	    syscall(SYS_futex, &dividing, FUTEX_WAIT_PRIVATE, n, &most, NULL, 0) && errno == ETIMEDOUT)
		atomic_store(&overdue, true);
}

void vb_fork_enter(struct vb_share_turn *t)
{
	vb_share_enter(t);
	for (int i = 0; i < WAITS && vb_fork_goes_on(); i++) {
		vb_share_leave(t);
		wait_for_it();
		vb_share_enter(t);
	}
}

/* It waits for that of another thread: the child of either would keep the copies that are meant for the
 * other's. */
static void before_fork(void)
{
	struct vb_share_turn t;

	vb_fork_enter(&t);
	mine = (struct division){.turn = t, .counted = vb_share_on()};
	mine.copies = mine.counted && is_any();
	if (mine.counted && !atomic_fetch_add(&dividing, 1))
		atomic_store(&overdue, false);
	if (mine.copies)
		mine.failed = copy_all();
	vb_share_unlock();
}

/* ---- after ---- */

static void after_fork_in_parent(void)
{
	struct vb_share_turn t = mine.turn;

	forget_pieces();
	if (mine.pieces)
		syscall(SYS_munmap, mine.pieces, PIECES * sizeof(*mine.pieces));
	for (size_t i = 0; i < VB_ARENAS; i++)
		if (mine.tables[i])
			vb_arena_free_tables(&vb_arenas[i], mine.tables[i]);
	if (mine.counted) {
		atomic_fetch_sub(&dividing, 1);
		syscall(SYS_futex, &dividing, FUTEX_WAKE_PRIVATE, INT32_MAX, NULL, NULL, 0);
	}
	vb_share_resume(&t);
}

/* Moves the copy over the original; where a sandbox denies that, its bytes. */
static bool replace(const struct piece *p)
{
	if ((uint8_t *)syscall(SYS_mremap, p->copy, p->size, p->size, MREMAP_MAYMOVE | MREMAP_FIXED, p->at) ==
	    p->at)
		return true;
	if ((uint8_t *)syscall(SYS_mmap, p->at, p->size, PROT_READ | PROT_WRITE,
			       MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED, -1, 0) != p->at)
		return false;
	memcpy(p->at, p->copy, p->size);
	syscall(SYS_munmap, p->copy, p->size);
	return true;
}

static int put(const struct piece *p)
{
	if (p->fate == DROP)
		return syscall(SYS_munmap, p->at, p->size) ? errno : 0;
	if (!replace(p))
		return errno;
	if (p->fate == WIPE && syscall(SYS_madvise, p->at, p->size, MADV_WIPEONFORK))
		return errno;
	if (p->prot != (PROT_READ | PROT_WRITE) && syscall(SYS_mprotect, p->at, p->size, p->prot))
		return errno;
	return 0;
}

static void end_child(int err)
{
	const char *name = strerrorname_np(err);
	char sentence[256];

	snprintf(
	    sentence, sizeof(sentence),
	    err == EMFILE || err == ENFILE
		? "fork(): this child process ends, since its copy of the shared buffers needs a file "
		  "descriptor (%s). Raise RLIMIT_NOFILE, or run without --share-buffers"
	    : err == ENOMEM || err == EAGAIN
		? "fork(): this child process ends, since there is no memory for its copy of the shared "
		  "buffers (%s). Free memory or raise the limit, or run without --share-buffers"
		: "fork(): this child process ends, since the kernel refuses its copy of the shared buffers "
		  "(%s). Run without --share-buffers, or permit the system call in the sandbox",
	    name ? name : "?");
	vb_share_say(VB_LOG_ERROR, sentence);
	_exit(125);
}

static void after_fork_in_child(void)
{
	struct vb_share_turn t = mine.turn;
	int err = mine.failed;

	if (mine.copies) {
		for (size_t i = 0; i < mine.npieces && !err; i++)
			err = put(&mine.pieces[i]);
		if (err)
			end_child(err);
		for (size_t i = 0; i < VB_ARENAS; i++)
			if (mine.tables[i])
				vb_arena_inherit(&vb_arenas[i], mine.tables[i]);
		vb_arena_begin_anew();
		syscall(SYS_munmap, mine.pieces, PIECES * sizeof(*mine.pieces));
	}
	if (maps_is_ours()) /* it shows the parent */
		syscall(SYS_close, maps);
	maps = -1;
	atomic_store(&dividing, 0);
	vb_share_forked();
	vb_share_leave(&t);
}

/* ---- on another stack ---- */

enum { STACK = 1 << 20 };

/* At the lowest addresses of that stack. */
struct elsewhere {
	ucontext_t here, there;
	pid_t (*fork)(void);
	pid_t pid;
	int err;
};

static void fork_there(unsigned high, unsigned low)
{
	struct elsewhere *e = (void *)((uintptr_t)high << 32 | low);

	e->pid = e->fork();
	e->err = errno;
}

/* Signals wait: a handler on the alternate stack would start at its top, and overwrite this thread's frames
 * if they are there. */
pid_t vb_fork_elsewhere(pid_t (*fork)(void))
{
	struct elsewhere *e = (void *)private_memory(STACK);
	const uint64_t all = UINT64_MAX;
	uint64_t signals;
	pid_t pid;
	int err;

	if (!e)
		return -1;
	syscall(SYS_rt_sigprocmask, SIG_SETMASK, &all, &signals, sizeof(all));
	e->fork = fork;
	getcontext(&e->there);
	e->there.uc_stack.ss_sp = e + 1;
	e->there.uc_stack.ss_size = STACK - sizeof(*e);
	e->there.uc_link = &e->here;
	makecontext(&e->there, (void (*)(void))fork_there, 2, (unsigned)((uintptr_t)e >> 32),
		    (unsigned)(uintptr_t)e);
	swapcontext(&e->here, &e->there);
	pid = e->pid;
	err = e->err;
	syscall(SYS_munmap, e, STACK);
	syscall(SYS_rt_sigprocmask, SIG_SETMASK, &signals, NULL, sizeof(signals));
	errno = err;
	return pid;
}

void vb_fork_handlers(void (**before)(void), void (**parent)(void), void (**child)(void))
{
	*before = before_fork;
	*parent = after_fork_in_parent;
	*child = after_fork_in_child;
}
