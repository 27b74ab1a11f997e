/* N1, N6: limits of adapters that pin, in the strict profile. */
#include <linux/capability.h>
#include <sys/resource.h>
#include <sys/syscall.h>

#include "situation.h"

#define RW  (PROT_READ | PROT_WRITE)
#define LOC IBV_ACCESS_LOCAL_WRITE

/* As an ordinary user has it: CAP_IPC_LOCK exempts. */
static void limit_pins(size_t kib)
{
	struct __user_cap_header_struct head = {.version = _LINUX_CAPABILITY_VERSION_3};
	struct __user_cap_data_struct data[_LINUX_CAPABILITY_U32S_3];
	struct rlimit r;

	CHECK(!getrlimit(RLIMIT_MEMLOCK, &r));
	r.rlim_cur = kib << 10;
	if (r.rlim_max < r.rlim_cur)
		skip("the hard limit of RLIMIT_MEMLOCK is lower");
	CHECK(!setrlimit(RLIMIT_MEMLOCK, &r));
	CHECK(!syscall(SYS_capget, &head, data));
	data[CAP_TO_INDEX(CAP_IPC_LOCK)].effective &= ~(uint32_t)CAP_TO_MASK(CAP_IPC_LOCK);
	CHECK(!syscall(SYS_capset, &head, data));
}

static void refused(struct ibv_mr *mr, int err)
{
	CHECK(!mr, "registered");
	CHECK(errno == err, "%s", strerror(errno));
}

/* N1.1: it fails above about 100 KB; the answer was "ulimit -l". */
static void above_the_limit(void)
{
	uint8_t *p = alone(100 << 10, RW);

	limit_pins(64);
	CHECK(ibv_reg_mr(pd, p, 32 << 10, LOC));
	refused(ibv_reg_mr(pd, p, 100 << 10, LOC), ENOMEM);
	SAID("bytes at 0x%" PRIxPTR
	     " need 100 KiB of pinned pages: this process has pinned 32 KiB, and RLIMIT_MEMLOCK is 64 KiB",
	     (uintptr_t)p);
	SAID("raise the limit (ulimit -l");
}

/* N1.2: limits.conf was edited, and has no effect under the launcher: what is the limit in the process? */
static void limit_of_the_launcher(void)
{
	uint8_t *p = alone(10 << 20, RW);

	limit_pins(8192);
	CHECK(ibv_reg_mr_iova2(pd, p, 6 << 20, (uintptr_t)p, LOC));
	refused(ibv_reg_mr_iova2(pd, p + (6 << 20), 4 << 20, (uintptr_t)p + (6 << 20), LOC), ENOMEM);
	SAID("need 4096 KiB of pinned pages: this process has pinned 6144 KiB, and RLIMIT_MEMLOCK is 8192 "
	     "KiB");
	SAID("LimitMEMLOCK= of a service, --ulimit memlock= of a container");
}

/* N1.4: ENOMEM is too cryptic; here it is not even that. */
static void limit_of_nothing(void)
{
	uint8_t *p = alone(PAGE, RW);

	limit_pins(0);
	refused(ibv_reg_mr(pd, p, PAGE, LOC), EPERM);
	SAID("RLIMIT_MEMLOCK is 0, so this process cannot pin memory");
}

/* N1.5: how much is enough?  The same pages count with every region that they are in. */
static void how_much_is_enough(void)
{
	uint8_t *p = alone(40 << 10, RW);

	limit_pins(64);
	CHECK(ibv_reg_mr(pd, p, 40 << 10, LOC));
	refused(ibv_reg_mr(pd, p + 100, 39 << 10, LOC), ENOMEM);
	SAID("need 40 KiB of pinned pages: this process has pinned 40 KiB, and RLIMIT_MEMLOCK is 64 KiB");
	limit_pins(80);
	CHECK(ibv_reg_mr(pd, p + 100, 39 << 10, LOC));
}

/* N1.6: ENOMEM from vm.max_map_count, which only the kernel knew: each region cuts a mapping in three. */
static void too_many_mappings(void)
{
	FILE *f = fopen("/proc/sys/vm/max_map_count", "re");
	struct ibv_mr *mr = NULL;
	struct rlimit lock;
	int most, n = 0;
	uint8_t *p;

	CHECK(f && fscanf(f, "%d", &most) == 1 && !fclose(f));
	if (SANITIZED || most > 200000)
		skip("the sanitizer needs mappings of its own, or vm.max_map_count is too high here");
	CHECK(!ibv_fork_init());
	p = mmap(NULL, (size_t)most * 2 * PAGE, RW, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
	CHECK(p != MAP_FAILED);
	for (; n < most; n++) {
		mr = ibv_reg_mr(pd, p + (size_t)n * 2 * PAGE, PAGE, LOC);
		if (!mr)
			break;
	}
	CHECK(!mr && (errno == ENOMEM || errno == EAGAIN), "%s", strerror(errno)); /* what madvise() says */
	CHECK(!getrlimit(RLIMIT_MEMLOCK, &lock));
	if ((rlim_t)n == lock.rlim_cur / PAGE)
		skip("this user's RLIMIT_MEMLOCK is reached first");
	CHECK(!munmap(p + (size_t)most * PAGE, (size_t)most * PAGE)); /* room for the command that explains */
	SAID("cannot be excluded from child processes, as ibv_fork_init() requires");
	SAID("vm.max_map_count is %d", most);
}

/* N6.1: after a fork the child stumbles over what lies beside a region that does not fill its pages. */
static void beside_a_region(void)
{
	uint8_t *p = alone(2 * PAGE, RW);

	CHECK(!ibv_fork_init());
	CHECK(ibv_reg_mr(pd, p + 100, PAGE, LOC));
	SAID("the region of 0x1000 bytes at 0x%" PRIxPTR " does not fill its pages", (uintptr_t)p + 100);
	SAID("lacks the 100 bytes before and the %d bytes after it", PAGE - 100);
}

/* N1.7: EAGAIN, since keys are used up that nobody gave back. */
static void pool_is_empty(void)
{
	uint8_t *p = alone(PAGE, RW);
	int n = 0;

	while (ibv_reg_mr_relaxed(pd, p, PAGE, LOC))
		n++;
	CHECK(errno == EAGAIN, "%s", strerror(errno));
	SAID("ibv_reg_mr_relaxed: the pool for these flags and this length is empty: %d relaxed regions are "
	     "registered",
	     n);
}

/* N1.9: a descriptor that is no dma-buf, which its user sees as a system error. */
static void no_dmabuf(void)
{
	int fd = memfd_create("not a dma-buf", MFD_CLOEXEC);

	CHECK(fd >= 0);
	refused(ibv_reg_dmabuf_mr(pd, 0, PAGE, 0, fd, LOC), EINVAL);
	SAID("ibv_reg_dmabuf_mr: descriptor %d is not a dma-buf (EINVAL)", fd);
}

const struct situation limits[] = {
    {"N1.1", above_the_limit, "strict"},
    {"N1.2", limit_of_the_launcher, "strict"},
    {"N1.4", limit_of_nothing, "strict"},
    {"N1.5", how_much_is_enough, "strict"},
    {"N1.6", too_many_mappings, "strict"},
    {"N1.7", pool_is_empty, NULL},
    {"N1.9", no_dmabuf, NULL},
    {"N6.1", beside_a_region, "strict"},
    {0},
};
