/* What memory can be shared with another process, and mapping it there: each kind of mapping that counts and
 * each that does not, and descriptions that lie.  All of it twice: as the kernel answers best, and by reading
 * the list of mappings as text, which older kernels need. */
#include <errno.h>
#include <fcntl.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <sched.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/shm.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

#include "bytes.h"
#include "huge.h"

#include "mem/share.h"
#include "mem/vma.h"

enum { SIZE = 8 * PAGE, HUGE = 2 << 20 };

static uint8_t *map(int fd, size_t size, off_t at, int flags)
{
	uint8_t *p = mmap(NULL, size, PROT_READ | PROT_WRITE, flags, fd, at);

	assert_ptr_not_equal(p, MAP_FAILED);
	kit_fill(p, size, 7);
	return p;
}

static int memfd(size_t size)
{
	int fd = memfd_create("x", MFD_CLOEXEC | MFD_ALLOW_SEALING);

	assert_true(fd >= 0);
	assert_int_equal(ftruncate(fd, (off_t)size), 0);
	return fd;
}

/* What another process sees: 0, errno of mapping, or 200 and more: which check failed. */
static int seen_by(const struct vb_share_desc *d, int fd, bool write, const uint8_t *p, size_t len)
{
	struct vb_share_map m;
	int err = vb_share_map(&m, d, fd, write);

	if (err)
		return m.base ? 200 : err;
	if ((uint8_t *)m.base > m.at || m.at + len > (uint8_t *)m.base + m.size)
		return 201;
	if (m.at == p) /* it would see its own copy */
		return 202;
	if (memcmp(m.at, p, len))
		return 203;
	if (write)
		m.at[len - 1] = (uint8_t)~m.at[len - 1];
	else if (!mprotect(m.base, m.size, PROT_READ | PROT_WRITE))
		return 204;
	if (write && m.at[len - 1] != p[len - 1])
		return 205;
	vb_share_unmap(&m);
	return m.base || m.at ? 206 : 0;
}

static int child(const struct vb_share_desc *d, int fd, bool write, const uint8_t *p, size_t len)
{
	pid_t pid = fork();
	int status;

	if (!pid)
		_exit(seen_by(d, fd, write, p, len));
	assert_int_equal(waitpid(pid, &status, 0), pid);
	assert_true(WIFEXITED(status));
	return WEXITSTATUS(status);
}

static void assert_shared_as(uint8_t *p, size_t len, uint32_t kind, bool write)
{
	struct vb_share_desc d;
	uint8_t last = p[len - 1];
	int fd;

	vb_share_find((uintptr_t)p, len, write, &d, &fd);
	assert_int_equal(d.kind, kind);
	assert_int_equal(d.length, len);
	assert_int_equal(fd >= 0, kind == VB_SHARE_FILE);
	if (fd >= 0)
		assert_true(fcntl(fd, F_GETFD) & FD_CLOEXEC);
	assert_int_equal(child(&d, fd, write, p, len), 0);
	/* What the other process wrote is here. */
	assert_int_equal(p[len - 1], write ? (uint8_t)~last : last);
	if (fd >= 0)
		close(fd);
}

static void assert_shared(uint8_t *p, size_t len, uint32_t kind)
{
	assert_shared_as(p, len, kind, false);
	assert_shared_as(p, len, kind, true);
}

static void assert_not_as(const uint8_t *p, size_t len, bool write)
{
	static const struct vb_share_desc none;
	struct vb_share_desc d;
	int fd;

	memset(&d, 0x5a, sizeof(d));
	vb_share_find((uintptr_t)p, len, write, &d, &fd);
	assert_memory_equal(&d, &none, sizeof(d));
	assert_int_equal(fd, -1);
}

static void assert_not_shared(const uint8_t *p, size_t len)
{
	assert_not_as(p, len, false);
	assert_not_as(p, len, true);
}

static void memfd_while_its_descriptor_is_open(void **state)
{
	int fd = memfd(SIZE);
	uint8_t *p = map(fd, SIZE, 0, MAP_SHARED);

	(void)state;
	assert_shared(p, SIZE, VB_SHARE_FILE);
	assert_shared(p + 5000, 3, VB_SHARE_FILE);
	assert_shared(p + SIZE - 1, 1, VB_SHARE_FILE);
	close(fd);
	assert_not_shared(p, SIZE);
	munmap(p, SIZE);
}

static void offsets_of_the_mapping_count(void **state)
{
	int fd = memfd(SIZE);
	uint8_t *all = map(fd, SIZE, 0, MAP_SHARED);
	uint8_t *p = mmap(NULL, 2 * PAGE, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 3 * PAGE);
	struct vb_share_desc d;
	int out;

	(void)state;
	assert_shared(p + 100, PAGE, VB_SHARE_FILE);
	vb_share_find((uintptr_t)p + 100, PAGE, false, &d, &out);
	assert_int_equal(d.offset, 3 * PAGE + 100);
	close(out);
	munmap(p, 2 * PAGE);
	munmap(all, SIZE);
	close(fd);
}

static void files_in_dev_shm(void **state)
{
	/* By its name; with one that the list of mappings writes otherwise; with one that looks removed. */
	static const char *const names[] = {"/dev/shm/vb-share-%d", "/dev/shm/vb\nshare\\012%d",
					    "/dev/shm/vb-share-%d (deleted)"};

	(void)state;
	for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++) {
		char name[128];
		uint8_t *p;
		int fd;

		snprintf(name, sizeof(name), names[i], (int)getpid());
		fd = open(name, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
		assert_true(fd >= 0);
		assert_int_equal(ftruncate(fd, SIZE), 0);
		p = map(fd, SIZE, 0, MAP_SHARED);
		/* In the text, "\n" and "\012" look the same. */
		close(fd);
		if (i != 1)
			assert_shared(p, SIZE, VB_SHARE_FILE);
		unlink(name);
		assert_not_shared(p, SIZE);
		munmap(p, SIZE);
	}
}

static void a_line_feed_in_the_name(void **state)
{
	char name[64];
	uint8_t *p;
	int fd;

	(void)state;
	snprintf(name, sizeof(name), "/dev/shm/vb\nshare\n%d", (int)getpid());
	fd = open(name, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
	assert_int_equal(ftruncate(fd, SIZE), 0);
	p = map(fd, SIZE, 0, MAP_SHARED);
	close(fd);
	assert_shared(p, SIZE, VB_SHARE_FILE);
	unlink(name);
	munmap(p, SIZE);
}

static void removed_file_while_its_descriptor_is_open(void **state)
{
	char name[64];
	uint8_t *p;
	int fd, other;

	(void)state;
	snprintf(name, sizeof(name), "/dev/shm/vb-share-%d", (int)getpid());
	fd = open(name, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
	assert_int_equal(ftruncate(fd, SIZE), 0);
	p = map(fd, SIZE, 0, MAP_SHARED);
	unlink(name);
	assert_shared(p, SIZE, VB_SHARE_FILE);
	/* Another file of that name, or a link with it, is not the one. */
	other = open(name, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
	assert_int_equal(ftruncate(other, SIZE), 0);
	assert_shared(p, SIZE, VB_SHARE_FILE);
	close(fd);
	assert_not_shared(p, SIZE);
	close(other);
	unlink(name);
	munmap(p, SIZE);
}

static void ranges_over_several_mappings(void **state)
{
	int fd = memfd(SIZE), fd2 = memfd(SIZE);
	uint8_t *p = map(fd, SIZE, 0, MAP_SHARED);

	(void)state;
	/* One file, the mapping split by protection: to be read, all of it; to be written, half. */
	assert_int_equal(mprotect(p + 4 * PAGE, PAGE, PROT_READ), 0);
	assert_shared_as(p, SIZE, VB_SHARE_FILE, false);
	assert_not_as(p, SIZE, true);
	assert_shared(p, 4 * PAGE, VB_SHARE_FILE);
	assert_int_equal(mprotect(p + 4 * PAGE, PAGE, PROT_NONE), 0);
	assert_not_as(p, SIZE, false);
	assert_int_equal(mprotect(p + 4 * PAGE, PAGE, PROT_READ | PROT_WRITE), 0);
	assert_shared(p + 100, SIZE - 200, VB_SHARE_FILE);
	/* The same file, but not in a line. */
	assert_ptr_equal(mmap(p + 4 * PAGE, PAGE, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, fd, 0),
			 p + 4 * PAGE);
	assert_not_shared(p, SIZE);
	assert_not_shared(p + 3 * PAGE, 2 * PAGE);
	/* Another file; a private page; a hole. */
	assert_ptr_equal(
	    mmap(p + 4 * PAGE, PAGE, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, fd2, 4 * PAGE),
	    p + 4 * PAGE);
	assert_not_shared(p, SIZE);
	assert_ptr_equal(
	    mmap(p + 4 * PAGE, PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_FIXED, fd, 4 * PAGE),
	    p + 4 * PAGE);
	assert_not_shared(p, SIZE);
	munmap(p + 4 * PAGE, PAGE);
	assert_not_shared(p, SIZE);
	assert_not_shared(p + 4 * PAGE, PAGE);
	assert_not_shared(p + 3 * PAGE, PAGE + 1);
	assert_shared(p, 4 * PAGE, VB_SHARE_FILE);
	munmap(p, SIZE);
	close(fd);
	close(fd2);
}

static void what_is_not_shareable(void **state)
{
	int fd = memfd(SIZE), disk, null = open("/dev/null", O_RDWR | O_CLOEXEC);
	uint8_t *p = map(fd, SIZE, 0, MAP_PRIVATE);

	(void)state;
	assert_not_shared(p, SIZE);
	munmap(p, SIZE);
	p = map(-1, SIZE, 0, MAP_SHARED | MAP_ANONYMOUS); /* an unnamed file that nobody has open */
	assert_not_shared(p, SIZE);
	munmap(p, SIZE);
	p = map(-1, SIZE, 0, MAP_PRIVATE | MAP_ANONYMOUS);
	assert_not_shared(p, SIZE);
	munmap(p, SIZE);
	/* The program itself, from whatever file system; nothing at all; more than there is. */
	assert_not_shared((const uint8_t *)(uintptr_t)what_is_not_shareable, 1);
	assert_not_shared(NULL, 100);
	p = map(fd, SIZE, 0, MAP_SHARED);
	assert_not_shared(p, 0);
	assert_not_shared(p, UINT64_MAX);
	assert_not_shared(p, INT64_MAX);
	munmap(p, SIZE);
	/* A disk, if there is one. */
	disk = open("/var/tmp", O_RDWR | O_TMPFILE | O_CLOEXEC, 0600);
	if (disk >= 0) {
		struct stat s, m;

		assert_int_equal(fstat(disk, &s), 0);
		assert_int_equal(stat("/dev/shm", &m), 0);
		assert_int_equal(ftruncate(disk, SIZE), 0);
		p = map(disk, SIZE, 0, MAP_SHARED);
		if (s.st_dev >> 8 && s.st_dev != m.st_dev)
			assert_not_shared(p, SIZE);
		munmap(p, SIZE);
		close(disk);
	}
	close(null);
	close(fd);
}

static void seals_and_sizes_are_kept_to(void **state)
{
	int fd = memfd(SIZE);
	uint8_t *p = map(fd, SIZE, 0, MAP_SHARED);

	(void)state;
	/* The end of the last page is memory, though no longer file. */
	assert_int_equal(ftruncate(fd, SIZE - 100), 0);
	assert_shared(p, SIZE, VB_SHARE_FILE);
	assert_int_equal(ftruncate(fd, SIZE - PAGE), 0);
	assert_not_shared(p, SIZE);
	assert_shared(p, SIZE - PAGE, VB_SHARE_FILE);
	assert_not_shared(p + SIZE - PAGE, PAGE); /* short enough, but behind the end */
	/* We may write through the mapping that we have, nobody else may. */
	assert_int_equal(fcntl(fd, F_ADD_SEALS, F_SEAL_FUTURE_WRITE), 0);
	assert_shared_as(p, PAGE, VB_SHARE_FILE, false);
	assert_not_as(p, PAGE, true);
	munmap(p, SIZE);
	close(fd);
}

static void sysv_segments(void **state)
{
	int id = shmget(IPC_PRIVATE, SIZE - 100, IPC_CREAT | 0600);
	struct vb_share_desc d, lie;
	uint8_t *p;
	int fd;

	(void)state;
	assert_true(id >= 0);
	p = shmat(id, NULL, 0);
	assert_ptr_not_equal(p, (void *)-1);
	kit_fill(p, SIZE, 7);
	assert_shared(p, SIZE, VB_SHARE_SYSV);
	assert_shared(p + 5000, 17, VB_SHARE_SYSV);
	assert_not_shared(p, SIZE + 1);
	assert_int_equal(shmctl(id, IPC_RMID, NULL), 0);
	assert_shared(p, SIZE, VB_SHARE_SYSV);
	vb_share_find((uintptr_t)p, SIZE, false, &d, &fd);
	lie = d;
	lie.ino++;
	assert_int_equal(child(&lie, -1, false, p, SIZE), EXDEV);
	lie = d;
	lie.length++;
	assert_int_equal(child(&lie, -1, false, p, SIZE), ENXIO);
	lie = d;
	lie.shmid = -1;
	assert_int_equal(child(&lie, -1, false, p, SIZE), EINVAL);
	assert_int_equal(shmdt(p), 0);
	assert_not_shared(p, SIZE);
	assert_int_equal(child(&d, -1, false, p, SIZE), EINVAL); /* it is gone */
	/* With a key, attached for reading. */
	id = shmget((key_t)(0x42000000 | getpid()), SIZE, IPC_CREAT | IPC_EXCL | 0600);
	assert_true(id >= 0);
	p = shmat(id, NULL, SHM_RDONLY);
	assert_shared_as(p, SIZE, VB_SHARE_SYSV, false);
	assert_not_as(p, SIZE, true);
	shmctl(id, IPC_RMID, NULL);
	shmdt(p);
}

/* What `look` of the segment at `p` tells in an IPC namespace of its own: 0 is as it must be. */
static void in_a_namespace(int (*look)(uint8_t *p), uint8_t *p)
{
	pid_t pid = fork();
	int status;

	if (!pid)
		_exit(unshare(CLONE_NEWIPC) ? 77 : look(p));
	assert_int_equal(waitpid(pid, &status, 0), pid);
	if (WIFEXITED(status) && WEXITSTATUS(status) == 77)
		skip(); /* no right to make a namespace */
	assert_int_equal(status, 0);
}

static int is_shareable(uint8_t *p)
{
	struct vb_share_desc d;
	int fd;

	vb_share_find((uintptr_t)p, SIZE, true, &d, &fd);
	return d.kind != VB_SHARE_NONE;
}

/* A segment attached before the IPC namespace changed is no segment of this one. */
static void sysv_of_another_namespace(void **state)
{
	int id = shmget(IPC_PRIVATE, SIZE, IPC_CREAT | 0600);
	uint8_t *p = shmat(id, NULL, 0);

	(void)state;
	assert_ptr_not_equal(p, (void *)-1);
	shmctl(id, IPC_RMID, NULL);
	in_a_namespace(is_shareable, p);
	shmdt(p);
}

static int first_segment(uint8_t *unused)
{
	int id = shmget(IPC_PRIVATE, SIZE, IPC_CREAT | 0600), fd;
	uint8_t *p = shmat(id, NULL, 0);
	struct vb_share_desc d;

	(void)unused;
	if (id || p == (void *)-1)
		return 1;
	shmctl(id, IPC_RMID, NULL);
	kit_fill(p, SIZE, 7);
	vb_share_find((uintptr_t)p, SIZE, true, &d, &fd);
	if (d.kind != VB_SHARE_SYSV || d.shmid)
		return 2;
	return seen_by(&d, fd, true, p, SIZE);
}

/* The first segment of an IPC namespace, of a fresh container say, has the id 0, and so has its mapping for
 * an inode number. */
static void sysv_first_of_a_namespace(void **state)
{
	(void)state;
	in_a_namespace(first_segment, NULL);
}

/* Huge pages: a few of them, if we may have them (huge.h). */

static void test_huge(int fd, const char *what)
{
	uint8_t *p;

	if (fd < 0 || ftruncate(fd, 2 * HUGE)) {
		print_message("%s: %s\n", what, strerror(errno));
		return;
	}
	p = mmap(NULL, 2 * HUGE, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	if (p == MAP_FAILED) {
		print_message("%s cannot be had: %s\n", what, strerror(errno));
		close(fd);
		return;
	}
	kit_fill(p, 2 * HUGE, 7);
	assert_shared(p, 2 * HUGE, VB_SHARE_FILE);
	assert_shared(p + HUGE + 5000, 3 * PAGE, VB_SHARE_FILE);
	munmap(p, HUGE); /* what is left begins in the middle of the file */
	assert_shared(p + HUGE + 1, HUGE - 1, VB_SHARE_FILE);
	munmap(p + HUGE, HUGE);
	close(fd);
}

static void test_huge_sysv(void)
{
	int id = shmget(IPC_PRIVATE, 2 * HUGE - PAGE, IPC_CREAT | SHM_HUGETLB | 0600);
	uint8_t *p;

	if (id < 0) {
		print_message("SysV segment of huge pages cannot be had: %s\n", strerror(errno));
		return;
	}
	p = shmat(id, NULL, 0);
	shmctl(id, IPC_RMID, NULL);
	assert_ptr_not_equal(p, (void *)-1);
	kit_fill(p, 2 * HUGE, 7);
	assert_shared(p, 2 * HUGE, VB_SHARE_SYSV);
	shmdt(p);
}

/* In a mount namespace of our own. */
static void test_hugetlbfs(void)
{
	char dir[] = "/dev/shm/vb-share-XXXXXX", name[64];
	int fd;

	if (unshare(CLONE_NEWNS) || mount("none", "/", NULL, MS_REC | MS_PRIVATE, NULL) || !mkdtemp(dir)) {
		print_message("hugetlbfs cannot be mounted: %s\n", strerror(errno));
		return;
	}
	if (!mount("none", dir, "hugetlbfs", 0, "pagesize=2M")) {
		snprintf(name, sizeof(name), "%s/file", dir);
		fd = open(name, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
		test_huge(fd, "a file of hugetlbfs");
		umount2(dir, MNT_DETACH);
	} else {
		print_message("hugetlbfs cannot be mounted: %s\n", strerror(errno));
	}
	rmdir(dir);
}

static void huge_pages(void **state)
{
	(void)state;
	if (pages_reserved() < 4) {
		print_message("no huge pages are reserved, and we may not reserve any\n");
		skip();
	}
	test_huge(memfd_create("huge", MFD_CLOEXEC | MFD_HUGETLB | 21u << 26), "a memfd of huge pages");
	test_huge_sysv();
	test_hugetlbfs();
}

/* Which pages a range is mapped in, for IBV_ACCESS_HUGETLB. */
static void where_huge_pages_are(void **state)
{
	const int prot = PROT_READ | PROT_WRITE, flags = MAP_PRIVATE | MAP_ANONYMOUS;
	uint8_t *small = mmap(NULL, 2 * PAGE, prot, flags, -1, 0), *p;
	uint64_t at, page;

	(void)state;
	assert_ptr_not_equal(small, MAP_FAILED);
	assert_false(vb_vma_huge((uintptr_t)small + 5, PAGE, &at, &page));
	assert_true(at == (uintptr_t)small + 5 && page == PAGE);
	assert_int_equal(mprotect(small, PAGE, PROT_NONE), 0);
	munmap(small + PAGE, PAGE);
	p = mmap(NULL, 2 * HUGE, prot, flags | MAP_HUGETLB, -1, 0);
	if (p == MAP_FAILED) {
		print_message("no huge pages: %s\n", strerror(errno));
		munmap(small, PAGE);
		skip();
	}
	assert_true(vb_vma_huge((uintptr_t)p, 2 * HUGE, &at, &page));
	assert_true(vb_vma_huge((uintptr_t)p + HUGE - 1, 2, &at, &page));
	assert_int_equal(mprotect(p, HUGE, PROT_READ), 0); /* two mappings now */
	assert_true(vb_vma_huge((uintptr_t)p, 2 * HUGE, &at, &page));
	munmap(p + HUGE, HUGE);
	assert_false(vb_vma_huge((uintptr_t)p, HUGE + 1, &at, &page));
	assert_true(at == (uintptr_t)p + HUGE && page != HUGE);
	munmap(p, HUGE);
	munmap(small, PAGE);
}

static void descriptions_that_lie(void **state)
{
	int fd = memfd(SIZE), other = memfd(SIZE), out, disk;
	uint8_t *p = map(fd, SIZE, 0, MAP_SHARED);
	struct vb_share_desc d, lie;
	int pipes[2];

	(void)state;
	vb_share_find((uintptr_t)p, SIZE, false, &d, &out);
	assert_int_equal(d.kind, VB_SHARE_FILE);
	assert_int_equal(child(&d, fd, false, p, SIZE), 0); /* one that is open is as good as a name */
	assert_int_equal(child(&d, -1, false, p, SIZE), EINVAL);
	assert_int_equal(child(&d, 9999, false, p, SIZE), EBADF);
	assert_int_equal(child(&d, other, false, p, SIZE), ESTALE);
	assert_int_equal(pipe2(pipes, O_CLOEXEC), 0);
	assert_int_equal(child(&d, pipes[0], false, p, SIZE), ENODEV);
	disk = open("/proc/self/exe", O_RDONLY | O_CLOEXEC);
	assert_int_not_equal(child(&d, disk, false, p, SIZE), 0);
	disk = dup2(open("/proc/self/maps", O_RDONLY | O_CLOEXEC), disk);
	assert_int_equal(child(&d, disk, false, p, SIZE), ENODEV);
	close(dup2(open("/dev/shm", O_RDONLY | O_CLOEXEC), disk));
	for (int i = 0; i < 9; i++) {
		static const uint64_t bad[] = {0, UINT64_MAX, INT64_MAX, 1ull << 62, SIZE + 1};

		lie = d;
		*(i < 5 ? &lie.length : &lie.offset) = bad[i < 5 ? i : i - 4];
		assert_int_not_equal(child(&lie, out, false, p, SIZE), 0);
	}
	for (uint32_t kind = VB_SHARE_NONE; kind < 5; kind++) {
		lie = d;
		lie.kind = kind;
		if (kind == VB_SHARE_SYSV)
			assert_int_equal(child(&lie, out, false, p, SIZE), EXDEV);
		else if (kind != VB_SHARE_FILE)
			assert_int_equal(child(&lie, out, false, p, SIZE), EINVAL);
	}
	lie = d;
	lie.page = 3;
	assert_int_equal(child(&lie, out, false, p, SIZE), EINVAL);
	/* It was long enough when it was described. */
	assert_int_equal(ftruncate(fd, SIZE - PAGE), 0);
	assert_int_equal(child(&d, out, false, p, SIZE), ENXIO);
	assert_int_equal(fcntl(fd, F_ADD_SEALS, F_SEAL_WRITE), -1); /* we have it mapped */
	munmap(p, SIZE);
	close(pipes[0]);
	close(pipes[1]);
	close(out);
	close(other);
	close(fd);
}

/* Whether another process may lock it. */
static bool is_locked(int fd)
{
	struct flock l = {.l_type = F_WRLCK, .l_whence = SEEK_SET};
	pid_t pid = fork();
	int status;

	if (!pid)
		_exit(fcntl(fd, F_GETLK, &l) ? 2 : l.l_type != F_UNLCK);
	assert_int_equal(waitpid(pid, &status, 0), pid);
	assert_true(WIFEXITED(status) && WEXITSTATUS(status) < 2);
	return WEXITSTATUS(status);
}

/* POSIX locks go when their process closes any descriptor of the file; none of ours may do that. */
static void locks_of_the_program_stay(void **state)
{
	struct flock l = {.l_type = F_WRLCK, .l_whence = SEEK_SET, .l_len = 10};
	int fd = memfd(SIZE), out;
	uint8_t *p = map(fd, SIZE, 0, MAP_SHARED);
	struct vb_share_desc d;
	struct vb_share_map m;

	(void)state;
	assert_int_equal(fcntl(fd, F_SETLK, &l), 0);
	vb_share_find((uintptr_t)p, SIZE, true, &d, &out);
	assert_int_equal(d.kind, VB_SHARE_FILE);
	assert_true(is_locked(fd));
	assert_int_equal(vb_share_map(&m, &d, out, true), EBUSY);
	assert_true(is_locked(fd));
	assert_int_equal(child(&d, out, true, p, SIZE), 0); /* others may map */
	close(out);
	assert_true(is_locked(fd));
	munmap(p, SIZE);
	close(fd);
}

static void mapping_is_not_inherited_and_not_touched(void **state)
{
	int fd = memfd(SIZE), out, status;
	uint8_t *p = mmap(NULL, SIZE, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	struct vb_share_desc d;
	struct vb_share_map m;
	struct stat s;
	pid_t pid;

	(void)state;
	vb_share_find((uintptr_t)p, SIZE, true, &d, &out);
	assert_int_equal(vb_share_map(&m, &d, out, true), 0);
	assert_int_equal(fstat(fd, &s), 0);
	assert_int_equal(s.st_blocks, 0);
	pid = fork();
	if (!pid)
		_exit(!msync(m.base, m.size, MS_ASYNC)); /* ENOMEM: nothing is mapped there */
	assert_int_equal(waitpid(pid, &status, 0), pid);
	assert_int_equal(status, 0);
	vb_share_unmap(&m);
	vb_share_unmap(&m);
	munmap(p, SIZE);
	close(out);
	close(fd);
}

static void without_descriptors_nothing_is_shared(void **state)
{
	enum { LIMIT = 200 };
	int fd = memfd(SIZE), fds[LIMIT], n = 0, missed = 0, out = -1;
	uint8_t *p = map(fd, SIZE, 0, MAP_SHARED);
	struct rlimit old, few;
	struct vb_share_desc d;

	(void)state;
	assert_int_equal(getrlimit(RLIMIT_NOFILE, &old), 0);
	few = old;
	few.rlim_cur = LIMIT;
	assert_int_equal(setrlimit(RLIMIT_NOFILE, &few), 0);
	while ((fds[n] = dup(fd)) >= 0)
		n++;
	assert_int_equal(errno, EMFILE);
	/* With 0, 1, ... descriptors to spare it is found or it is not, and nothing leaks. */
	for (int spare = 0; spare < 6; spare++) {
		vb_share_find((uintptr_t)p, SIZE, false, &d, &out);
		assert_int_equal(out >= 0, d.kind == VB_SHARE_FILE);
		missed += out < 0;
		if (out >= 0)
			close(out);
		close(fds[--n]);
	}
	assert_in_range(missed, 1, 5);
	while (n)
		close(fds[--n]);
	assert_int_equal(setrlimit(RLIMIT_NOFILE, &old), 0);
	munmap(p, SIZE);
	close(fd);
}

static void undumpable_processes_share_too(void **state)
{
	int fd = memfd(SIZE);
	uint8_t *p = map(fd, SIZE, 0, MAP_SHARED);

	(void)state;
	assert_int_equal(prctl(PR_SET_DUMPABLE, 0), 0);
	assert_shared(p, SIZE, VB_SHARE_FILE);
	assert_int_equal(prctl(PR_SET_DUMPABLE, 1), 0);
	munmap(p, SIZE);
	close(fd);
}

/* An older kernel: one that does not know the question for one mapping. */
static int forget_query(void)
{
	struct sock_filter code[] = {
	    BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
	    BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_ioctl, 0, 3),
	    BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, args[1])),
	    BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, (uint32_t)_IOC(_IOC_READ | _IOC_WRITE, 'f', 17, 104), 0, 1),
	    BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | ENOTTY),
	    BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
	};
	struct sock_fprog prog = {sizeof(code) / sizeof(code[0]), code};

	return prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) || prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &prog);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
	    cmocka_unit_test(memfd_while_its_descriptor_is_open),
	    cmocka_unit_test(offsets_of_the_mapping_count),
	    cmocka_unit_test(files_in_dev_shm),
	    cmocka_unit_test(a_line_feed_in_the_name),
	    cmocka_unit_test(removed_file_while_its_descriptor_is_open),
	    cmocka_unit_test(ranges_over_several_mappings),
	    cmocka_unit_test(what_is_not_shareable),
	    cmocka_unit_test(seals_and_sizes_are_kept_to),
	    cmocka_unit_test(sysv_segments),
	    cmocka_unit_test(sysv_of_another_namespace),
	    cmocka_unit_test(sysv_first_of_a_namespace),
	    cmocka_unit_test_setup_teardown(huge_pages, reserve_pages, give_pages_back),
	    cmocka_unit_test_setup_teardown(where_huge_pages_are, reserve_pages, give_pages_back),
	    cmocka_unit_test(descriptions_that_lie),
	    cmocka_unit_test(locks_of_the_program_stay),
	    cmocka_unit_test(mapping_is_not_inherited_and_not_touched),
	    cmocka_unit_test(without_descriptors_nothing_is_shared),
	    cmocka_unit_test(undumpable_processes_share_too),
	};
	int failed = cmocka_run_group_tests_name("the kernel's best answer", tests, NULL, NULL);

	if (forget_query()) {
		print_message("system calls cannot be filtered here: the text is not tried\n");
		return failed;
	}
	return failed + cmocka_run_group_tests_name("the list as text", tests, NULL, NULL);
}
