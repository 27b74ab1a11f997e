#include "base/tally.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/text.h"

#define MAGIC 0x31594c4c4154ull /* "TALLY1" */

_Static_assert(sizeof(struct vb_tally) == 64 * (VB_TALLY_SLOTS + 1), "a line each");

static _Atomic(struct vb_tally *) mine;

/* A process that was started without standard streams gets their numbers first. */
static int above_standard(int fd)
{
	int high, err;

	if (fd < 0 || fd > STDERR_FILENO)
		return fd;
	high = fcntl(fd, F_DUPFD_CLOEXEC, STDERR_FILENO + 1);
	err = errno;
	close(fd);
	errno = err;
	return high;
}

struct vb_tally *vb_tally_make(int *fd)
{
	struct vb_tally *t = MAP_FAILED;
	int err;

	*fd = above_standard(memfd_create(VB_TALLY_NAME, MFD_CLOEXEC | MFD_ALLOW_SEALING));
	if (*fd < 0)
		return NULL;
	if (!ftruncate(*fd, sizeof *t) && !fcntl(*fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL))
		t = mmap(NULL, sizeof *t, PROT_READ | PROT_WRITE, MAP_SHARED, *fd, 0);
	if (t == MAP_FAILED) {
		err = errno;
		close(*fd);
		errno = err;
		return NULL;
	}
	t->magic = MAGIC;
	return t;
}

/* The slot of that key, taken if it was free; NULL: all are others'. */
static struct vb_tally_slot *slot_of(struct vb_tally *t, uint64_t key, const char *kind)
{
	for (unsigned i = 0; i < VB_TALLY_SLOTS; i++) {
		struct vb_tally_slot *s = &t->slots[(key + i) % VB_TALLY_SLOTS];
		uint64_t has = 0;

		if (atomic_compare_exchange_strong(&s->key, &has, key)) {
			memcpy(s->kind, kind, strnlen(kind, VB_TALLY_KIND - 1));
			return s;
		}
		if (has == key)
			return s;
	}
	return NULL;
}

void vb_tally_put(struct vb_tally *t, unsigned level, const char *kind, uint64_t n)
{
	struct vb_tally_slot *s;

	if (level >= VB_TALLY_LEVELS)
		return;
	s = slot_of(t, ((vb_text_hash("", kind) | 2) & ~(uint64_t)1) | level, kind);
	atomic_fetch_add_explicit(s ? &s->count : &t->other[level], n, memory_order_relaxed);
}

bool vb_tally_read(const struct vb_tally *t, unsigned i, unsigned *level, uint64_t *n,
		   char kind[VB_TALLY_KIND])
{
	const struct vb_tally_slot *s = &t->slots[i];

	*n = atomic_load_explicit(&s->count, memory_order_relaxed);
	*level = atomic_load_explicit(&s->key, memory_order_relaxed) & 1;
	memcpy(kind, s->kind, VB_TALLY_KIND);
	kind[VB_TALLY_KIND - 1] = 0;
	return *n;
}

uint64_t vb_tally_sum(const struct vb_tally *t, unsigned level)
{
	uint64_t sum = atomic_load_explicit(&t->other[level], memory_order_relaxed), n;
	char kind[VB_TALLY_KIND];
	unsigned l;

	for (unsigned i = 0; i < VB_TALLY_SLOTS; i++)
		if (vb_tally_read(t, i, &l, &n, kind) && l == level)
			sum += n;
	return sum;
}

/* 0 or errno: EBADF if what is named is no table, as where its owner's number is another process's. */
static int map(const char *path)
{
	static const char meant[] = "/memfd:" VB_TALLY_NAME " (deleted)";
	char name[sizeof meant + 1];
	ssize_t n = readlink(path, name, sizeof name);
	int fd, err = EBADF, seals;
	struct vb_tally *t;
	struct stat st;

	if (n < 0)
		return errno;
	if (n != sizeof meant - 1 || memcmp(name, meant, sizeof meant - 1))
		return EBADF;
	fd = open(path, O_RDWR | O_CLOEXEC | O_NOCTTY | O_NONBLOCK);
	if (fd < 0)
		return errno;
	seals = fcntl(fd, F_GET_SEALS);
	if (seals < 0 || !(seals & F_SEAL_SHRINK) || fstat(fd, &st) || st.st_size != sizeof *t)
		goto out;
	t = mmap(NULL, sizeof *t, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	err = t == MAP_FAILED ? errno : t->magic == MAGIC ? 0 : EBADF;
	if (!err)
		atomic_store(&mine, t);
	else if (t != MAP_FAILED)
		munmap(t, sizeof *t);
out:
	close(fd);
	return err;
}

int vb_tally_map(void)
{
	const char *path = secure_getenv(VB_TALLY_ENV);
	int saved = errno, err = path && *path && !vb_tally_kept() ? map(path) : 0;

	errno = saved;
	return err;
}

/* Later there may be no descriptor left, or a sandbox. */
static __attribute__((constructor)) void early(void)
{
	(void)vb_tally_map();
}

bool vb_tally_kept(void)
{
	return atomic_load_explicit(&mine, memory_order_relaxed) != NULL;
}

void vb_tally_add(unsigned level, const char *kind)
{
	struct vb_tally *t = atomic_load_explicit(&mine, memory_order_acquire);

	if (t)
		vb_tally_put(t, level, kind, 1);
}

void vb_tally_add_opened(void)
{
	struct vb_tally *t = atomic_load_explicit(&mine, memory_order_acquire);

	if (t)
		atomic_fetch_add_explicit(&t->opened, 1, memory_order_relaxed);
}

void vb_tally_add_all(const struct vb_tally *from)
{
	struct vb_tally *t = atomic_load_explicit(&mine, memory_order_acquire);
	char kind[VB_TALLY_KIND];
	unsigned level;
	uint64_t n;

	for (unsigned i = 0; t && i < VB_TALLY_SLOTS; i++)
		if (vb_tally_read(from, i, &level, &n, kind))
			vb_tally_put(t, level, kind, n);
	for (unsigned l = 0; t && l < VB_TALLY_LEVELS; l++)
		atomic_fetch_add(&t->other[l], atomic_load(&from->other[l]));
	if (t)
		atomic_fetch_add(&t->opened, atomic_load(&from->opened));
}
