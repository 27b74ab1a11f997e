/* Describing memory to other processes, and mapping theirs.
 *
 * Whether a file is memory is decided by its device number, which the kernel tells without asking a file
 * system: that of a mount that mountinfo calls tmpfs or hugetlbfs, or of the kernel's own mounts, where memfd
 * and SysV segments are.  statfs(), open() and stat() come after that: on a FUSE file each can hang. */
#include <errno.h>
#include <fcntl.h>
#include <dirent.h>
#include <linux/magic.h>
#include <linux/openat2.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ipc.h>
#include <sys/mman.h>
#include <sys/shm.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/sysmacros.h>
#include <sys/vfs.h>
#include <unistd.h>

#include "base/pages.h"
#include "mem/guard.h"
#include "mem/share.h"
#include "mem/vma.h"

#ifndef RESOLVE_CACHED
#define RESOLVE_CACHED 0x20
#endif
#ifndef F_SEAL_FUTURE_WRITE
#define F_SEAL_FUTURE_WRITE 0x0010
#endif

enum {
	HUGE_SHIFT_MIN = 16, /* sizes of huge pages that any machine has, as powers of two */
	HUGE_SHIFT_MAX = 34,
	HUGE_SHIFT_AT = 26, /* where memfd_create() takes the power */
	OPEN_TRIES = 4,
};

/* What an open or named file is. */
struct file {
	uint64_t dev, ino; /* dev as makedev() */
	uint64_t size, page;
};

static uint64_t round_up(uint64_t n, uint64_t page)
{
	return (n + page - 1) & ~(page - 1);
}

/* Device and inode of a descriptor, as its file system last told: no server is asked. */
static bool number_of(int fd, uint64_t *dev, uint64_t *ino, bool *regular, uint64_t *size)
{
	struct statx s;

	if (statx(fd, "", AT_EMPTY_PATH | AT_STATX_DONT_SYNC, STATX_TYPE | STATX_INO | STATX_SIZE, &s))
		return false;
	*dev = makedev(s.stx_dev_major, s.stx_dev_minor);
	*ino = s.stx_ino;
	*regular = S_ISREG(s.stx_mode);
	*size = s.stx_size;
	return true;
}

static bool memfd_is_on(uint64_t want, unsigned flags)
{
	int fd = memfd_create("verbena-dev", MFD_CLOEXEC | flags);
	uint64_t dev, ino, size;
	bool regular, same;

	if (fd < 0)
		return false;
	same = number_of(fd, &dev, &ino, &regular, &size) && dev == want;
	close(fd);
	return same;
}

/* The kernel's own mounts: one for memfd, SysV and anonymous shared memory, one for each huge page size. What
 * is mapped there is mapped in pages of this size; 0: it is none of them. */
static uint64_t internal_page(uint64_t dev)
{
	if (memfd_is_on(dev, 0))
		return vb_page_size();
	for (unsigned shift = HUGE_SHIFT_MIN; shift <= HUGE_SHIFT_MAX; shift++) {
		if (memfd_is_on(dev, MFD_HUGETLB | shift << HUGE_SHIFT_AT))
			return 1ull << shift;
	}
	return 0;
}

/* A line: "id parent major:minor root mountpoint options [field...] - type source options". */
static bool dev_is_mounted_memory(uint64_t dev)
{
	FILE *f = fopen("/proc/thread-self/mountinfo", "re");
	bool found = false;
	char *line = NULL;
	size_t size = 0;

	if (!f)
		return false;
	while (!found && getline(&line, &size, f) > 0) {
		unsigned major, minor;
		const char *type = strstr(line, " - ");

		if (!type || sscanf(line, "%*d %*d %u:%u", &major, &minor) != 2 ||
		    makedev(major, minor) != dev)
			continue;
		type += 3;
		found = !strncmp(type, "tmpfs ", 6) || !strncmp(type, "hugetlbfs ", 10) ||
			!strncmp(type, "devtmpfs ", 9);
		if (!found)
			break;
	}
	free(line);
	fclose(f);
	return found;
}

bool vb_share_dev_is_memory(uint64_t dev)
{
	/* Disks have numbers of their own. */
	return !major(dev) && (memfd_is_on(dev, 0) || dev_is_mounted_memory(dev) || internal_page(dev));
}

/* 0, or why this file is not memory that can be shared. */
static int identify(int fd, struct file *f)
{
	struct statfs fs;
	bool regular;

	if (!number_of(fd, &f->dev, &f->ino, &regular, &f->size))
		return errno;
	if (!regular || !vb_share_dev_is_memory(f->dev))
		return ENODEV;
	if (fstatfs(fd, &fs))
		return errno;
	if (fs.f_type != TMPFS_MAGIC && fs.f_type != HUGETLBFS_MAGIC)
		return ENODEV;
	f->page = fs.f_type == HUGETLBFS_MAGIC ? (uint64_t)fs.f_bsize : vb_page_size();
	return f->page && !(f->page & (f->page - 1)) ? 0 : ENODEV;
}

/* Looking. */

/* Names the file at a path without opening it.  What is mapped is in the kernel's cache of names, so nothing
 * on the way needs to be asked for it. */
static int name_path(const char *path)
{
	struct open_how how = {.flags = O_PATH | O_NOFOLLOW | O_CLOEXEC,
			       .resolve = RESOLVE_CACHED | RESOLVE_NO_SYMLINKS};
	int fd = -1;

	if (path[0] != '/') /* "(unreachable)/..." is no path, nor are the names of other things */
		return -1;
	for (int i = 0; i < OPEN_TRIES && fd < 0; i++) {
		fd = (int)syscall(SYS_openat2, AT_FDCWD, path, &how, sizeof(how));
		if (fd < 0 && errno != EAGAIN) /* a rename somewhere was in the way */
			break;
	}
	/* A filter that does not know the call. */
	if (fd < 0 && (errno == ENOSYS || errno == EPERM))
		fd = open(path, O_PATH | O_NOFOLLOW | O_CLOEXEC);
	return fd;
}

/* `fd` if it is the mapped file, else closes it and gives -1. */
static int only_if_mapped(int fd, const struct vb_vma *v)
{
	uint64_t dev, ino, size;
	bool regular;

	if (fd < 0)
		return -1;
	if (number_of(fd, &dev, &ino, &regular, &size) && regular &&
	    dev == makedev(v->dev_major, v->dev_minor) && ino == v->ino)
		return fd;
	close(fd);
	return -1;
}

/* /proc/.../maps writes a line feed as \012, and leaves a backslash as it is. */
static bool unescape(char *name)
{
	char *to = name;
	bool any = false;

	for (const char *from = name; *from; to++) {
		if (!strncmp(from, "\\012", 4)) {
			*to = '\n';
			from += 4;
			any = true;
		} else {
			*to = *from++;
		}
	}
	*to = 0;
	return any;
}

static int by_path(struct vb_vma *v)
{
	int fd = only_if_mapped(name_path(v->name), v);

	if (fd < 0 && unescape(v->name))
		fd = only_if_mapped(name_path(v->name), v);
	return fd;
}

/* Whether the file behind an open descriptor refuses to be mapped for writing by others. */
static bool sealed(int fd)
{
	int seals = fcntl(fd, F_GET_SEALS);

	return seals > 0 && seals & (F_SEAL_WRITE | F_SEAL_FUTURE_WRITE);
}

/* A file without a name, a memfd for instance: through a descriptor that the program has open on it. */
static int by_descriptor(const struct vb_vma *v, bool write)
{
	DIR *dir = opendir("/proc/thread-self/fd");
	int fd = -1;

	if (!dir)
		return -1;
	for (struct dirent *e; fd < 0 && (e = readdir(dir));) {
		char path[64];
		uint64_t dev, ino, size;
		bool regular;
		int n;

		if (e->d_name[0] < '0' || e->d_name[0] > '9')
			continue;
		n = atoi(e->d_name);
		if (!number_of(n, &dev, &ino, &regular, &size) || !regular || ino != v->ino ||
		    dev != makedev(v->dev_major, v->dev_minor) || (write && sealed(n)))
			continue;
		snprintf(path, sizeof(path), "/proc/thread-self/fd/%d", n);
		/* The program may have closed it meanwhile, and the number may be another file's. */
		fd = only_if_mapped(open(path, O_PATH | O_CLOEXEC), v);
	}
	closedir(dir);
	return fd;
}

static int find_file(struct vb_vma *v, bool write, struct vb_share_desc *d)
{
	int fd = by_path(v);
	struct file f;

	if (fd < 0)
		fd = by_descriptor(v, write);
	if (fd < 0)
		return -1;
	if (identify(fd, &f) || d->length > round_up(f.size, f.page) ||
	    d->offset > round_up(f.size, f.page) - d->length) {
		close(fd);
		return -1;
	}
	d->kind = VB_SHARE_FILE;
	d->dev = f.dev;
	d->ino = f.ino;
	d->page = f.page;
	return fd;
}

static bool ipc_namespace(uint64_t *dev, uint64_t *ino)
{
	struct stat s;

	if (stat("/proc/thread-self/ns/ipc", &s))
		return false;
	*dev = s.st_dev;
	*ino = s.st_ino;
	return true;
}

/* The mapping of a SysV segment is called after its key and has its id for an inode number. */
static bool sysv_key(const struct vb_vma *v, unsigned *key)
{
	int end = 0;

	return sscanf(v->name, "/SYSV%8x (deleted)%n", key, &end) == 1 && end && !v->name[end] &&
	       v->ino <= INT32_MAX;
}

/* The program may have attached the segment and changed its IPC namespace after that: then the id is somebody
 * else's.  Key, size and attachments of the segment that the id names now tell, as far as anything can. */
static bool find_sysv(const struct vb_vma *v, unsigned key, uint64_t page, struct vb_share_desc *d)
{
	struct shmid_ds ds;
	uint64_t size;

	if (shmctl((int)v->ino, IPC_STAT, &ds) || !ds.shm_nattch)
		return false;
	/* A segment that is marked for removal has lost its key. */
	if (!(ds.shm_perm.mode & SHM_DEST) && (unsigned)ds.shm_perm.__key != key)
		return false;
	size = round_up(ds.shm_segsz, page);
	if (v->offset + (v->end - v->start) > size || d->length > size || d->offset > size - d->length)
		return false;
	if (!ipc_namespace(&d->dev, &d->ino))
		return false;
	d->kind = VB_SHARE_SYSV;
	d->shmid = (int32_t)v->ino;
	d->page = page;
	return true;
}

/* Whether `v` is the continuation of what was described before it. */
static bool continues(const struct vb_vma *v, const struct vb_vma *first, uint64_t addr, uint64_t offset)
{
	return v->shared && v->dev_major == first->dev_major && v->dev_minor == first->dev_minor &&
	       v->ino == first->ino && v->offset + (addr - v->start) == offset;
}

/* The mapping at the beginning of the range, in v[0], if the whole range is shared memory of one file without
 * a gap; v[1] is for those behind it. */
static bool find_mapping(uint64_t addr, uint64_t len, bool write, struct vb_vma v[2], uint64_t *offset)
{
	const struct vb_vma *here = v;
	struct vb_vmas s;
	bool fits;

	if (vb_vmas_begin(&s))
		return false;
	fits = vb_vmas_at(&s, addr, v, true);
	if (fits)
		*offset = v->offset + (addr - v->start);
	for (uint64_t at = addr; fits; here = v + 1) {
		fits = continues(here, v, at, *offset + (at - addr)) && here->readable &&
		       (here->writable || !write);
		if (!fits || here->end - addr >= len)
			break;
		at = here->end;
		fits = vb_vmas_at(&s, at, v + 1, false);
	}
	vb_vmas_end(&s);
	return fits;
}

/* *d stays as it is where there is nothing to describe. */
static void describe(uint64_t addr, uint64_t len, bool write, struct vb_vma v[2], struct vb_share_desc *d,
		     int *fd)
{
	struct vb_share_desc found = {.length = len};
	unsigned key;
	uint64_t dev, page;

	if (!find_mapping(addr, len, write, v, &found.offset))
		return;
	dev = makedev(v->dev_major, v->dev_minor);
	if (!vb_share_dev_is_memory(dev))
		return;
	page = sysv_key(v, &key) ? internal_page(dev) : 0;
	if (page) {
		if (find_sysv(v, key, page, &found))
			*d = found;
		return;
	}
	*fd = find_file(v, write, &found);
	if (*fd >= 0)
		*d = found;
}

void vb_share_find(uint64_t addr, uint64_t len, bool write, struct vb_share_desc *d, int *fd)
{
	struct vb_vma *v;

	*d = (struct vb_share_desc){.kind = VB_SHARE_NONE};
	*fd = -1;
	if (!len || len > INT64_MAX || addr > UINT64_MAX - len)
		return;
	v = malloc(2 * sizeof(*v)); /* not on the stack: each has room for a path */
	if (v)
		describe(addr, len, write, v, d, fd);
	free(v);
}

/* Mapping. */

/* Closing any descriptor of a file takes away the locks that the process holds on it through others. */
static int own_locks(const struct file *file)
{
	FILE *f = fopen("/proc/locks", "re");
	char *line = NULL;
	size_t size = 0;
	int err = 0;

	if (!f)
		return errno == ENOENT ? 0 : errno; /* ENOENT: a kernel without locks */
	while (!err && getline(&line, &size, f) > 0) {
		unsigned major, minor;
		unsigned long long ino;
		char type[16];
		long pid;

		if (sscanf(line, "%*[^:]: %15s %*s %*s %ld %x:%x:%llu", type, &pid, &major, &minor, &ino) ==
			5 &&
		    !strcmp(type, "POSIX") && pid == getpid() && ino == file->ino &&
		    makedev(major, minor) == file->dev)
			err = EBUSY;
	}
	free(line);
	fclose(f);
	return err;
}

static int set_up(struct vb_share_map *m)
{
	if (madvise(m->base, m->size, MADV_DONTFORK) || madvise(m->base, m->size, MADV_DONTDUMP))
		return errno;
	return 0;
}

static int map_open_file(struct vb_share_map *m, const struct vb_share_desc *d, int fd, uint64_t page,
			 bool write)
{
	uint64_t from = d->offset & ~(page - 1), to = round_up(d->offset + d->length, page);
	void *base = mmap(NULL, to - from, write ? PROT_READ | PROT_WRITE : PROT_READ,
			  MAP_SHARED | MAP_NORESERVE, fd, (off_t)from);
	int err;

	if (base == MAP_FAILED)
		return errno;
	*m = (struct vb_share_map){
	    .base = base, .size = to - from, .at = (uint8_t *)base + (d->offset - from)};
	err = set_up(m);
	if (err)
		vb_share_unmap(m);
	return err;
}

static int map_file(struct vb_share_map *m, const struct vb_share_desc *d, int named, bool write)
{
	struct file f;
	char path[64];
	int fd, err = identify(named, &f);

	if (err)
		return err;
	if (f.dev != d->dev || f.ino != d->ino)
		return ESTALE;
	if (f.page != d->page)
		return EINVAL;
	if (d->length > round_up(f.size, f.page) || d->offset > round_up(f.size, f.page) - d->length)
		return ENXIO;
	err = own_locks(&f);
	if (err)
		return err;
	snprintf(path, sizeof(path), "/proc/thread-self/fd/%d", named);
	/* Non-blocking: somebody may have a lease on it. */
	fd = open(path, (write ? O_RDWR : O_RDONLY) | O_CLOEXEC | O_NONBLOCK);
	if (fd < 0)
		return errno;
	err = map_open_file(m, d, fd, f.page, write);
	close(fd);
	return err;
}

/* How much is attached at `base`, 0: that cannot be told. */
static uint64_t attached(const void *base, int shmid)
{
	struct vb_vmas s;
	struct vb_vma v;
	uint64_t size = 0;

	if (vb_vmas_begin(&s))
		return 0;
	if (vb_vmas_at(&s, (uintptr_t)base, &v, false) && v.start == (uintptr_t)base &&
	    v.ino == (uint64_t)shmid && !v.offset)
		size = v.end - v.start;
	vb_vmas_end(&s);
	return size;
}

static int map_sysv(struct vb_share_map *m, const struct vb_share_desc *d, bool write)
{
	uint64_t dev, ino;
	void *base;
	int err;

	if (!ipc_namespace(&dev, &ino))
		return errno;
	if (dev != d->dev || ino != d->ino)
		return EXDEV;
	base = shmat(d->shmid, NULL, write ? 0 : SHM_RDONLY);
	if ((intptr_t)base == -1)
		return errno;
	*m = (struct vb_share_map){.base = base, .sysv = true, .size = attached(base, d->shmid)};
	if (!m->size || d->length > m->size || d->offset > m->size - d->length) {
		err = m->size ? ENXIO : ENODEV;
		goto detach;
	}
	m->at = (uint8_t *)base + d->offset;
	err = set_up(m);
	if (!err)
		return 0;
detach:
	vb_share_unmap(m);
	return err;
}

int vb_share_map(struct vb_share_map *m, const struct vb_share_desc *d, int fd, bool write)
{
	*m = (struct vb_share_map){0};
	/* Far below overflow, and so that rounding up cannot. */
	if (!d->length || d->length > INT64_MAX / 4 || d->offset > INT64_MAX / 4)
		return EINVAL;
	vb_guard_install(); /* the file may be truncated */
	if (d->kind == VB_SHARE_FILE)
		return fd < 0 ? EINVAL : map_file(m, d, fd, write);
	return d->kind == VB_SHARE_SYSV && d->shmid >= 0 ? map_sysv(m, d, write) : EINVAL;
}

void vb_share_unmap(struct vb_share_map *m)
{
	if (m->base && m->sysv)
		shmdt(m->base);
	else if (m->base)
		munmap(m->base, m->size);
	*m = (struct vb_share_map){0};
}
