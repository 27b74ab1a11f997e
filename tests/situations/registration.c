/* N1, N5, N6: why did the registration fail? */
#include <sys/resource.h>

#include "situation.h"

#define RW  (PROT_READ | PROT_WRITE)
#define LOC IBV_ACCESS_LOCAL_WRITE

static void refused(struct ibv_mr *mr, int err)
{
	CHECK(!mr, "registered");
	CHECK(errno == err, "%s", strerror(errno));
}

/* N1.11: ENOMEM and nothing else, when the device has no region left; or no key for a domain of another
 * process, which there are fewer of. */
static void all_regions_in_use(void)
{
	struct ibv_device_attr attr;
	uint8_t *p = alone(PAGE, RW);
	struct ibv_shpd shpd;
	struct ibv_mr *mr;
	int n = 0;
	pid_t pid;

	CHECK(!ibv_query_device(ctx, &attr));
	while ((mr = ibv_reg_mr(pd, p, 64, LOC)))
		n++;
	refused(mr, ENOMEM);
	CHECK(n == attr.max_mr, "%d of %d", n, attr.max_mr);
	SAID("all %d memory regions of the device are in use", n);
	CHECK(ibv_alloc_shpd(pd, 1, &shpd));
	pid = kit_fork();
	if (!pid) {
		ctx = kit_open();
		pd = ibv_share_pd(ctx, &shpd, 1);
		CHECK(pd, "%s", strerror(errno));
		for (n = 0; (mr = ibv_reg_mr(pd, p, 64, LOC)); n++)
			;
		refused(mr, ENOMEM);
		CHECK(n == 32768, "%d", n);
		refused(ibv_reg_mr_relaxed(pd, p, 64, LOC), ENOMEM);
		CHECK(!ibv_alloc_mw(pd, IBV_MW_TYPE_2) && errno == ENOMEM);
		_exit(0);
	}
	CHECK(!kit_reap(pid));
	LOGGED("ibv_reg_mr: all 32768 keys for memory registered in protection domains that other "
	       "processes own are in use");
	LOGGED("ibv_reg_mr_relaxed: all 32768 keys");
	LOGGED("ibv_alloc_mw: all 32768 keys");
}

/* N1.3: the first thing that fails is the CQ. */
static void no_memory_for_a_cq(void)
{
	struct rlimit old, r = {64 << 20, RLIM_INFINITY};

	if (SANITIZED)
		skip("the sanitizer takes more address space than a limit would leave");
	CHECK(!getrlimit(RLIMIT_AS, &old));
	r.rlim_max = old.rlim_max;
	CHECK(!setrlimit(RLIMIT_AS, &r));
	CHECK(!ibv_create_cq(ctx, 4000000, NULL, NULL, 0) && errno == ENOMEM);
	CHECK(!setrlimit(RLIMIT_AS, &old));
	SAID("ibv_create_cq: out of memory for %d entries", 4000000);
	SAID("(ENOMEM)");
}

/* N1.12: the caller sees EINVAL, and only the kernel's log would say why: soft-RoCE's demands. */
static void demands_of_soft_roce(void)
{
	uint8_t *p = alone(2 * PAGE, RW);

	refused(ibv_reg_mr_iova(pd, p + 64, PAGE, 0x100000, LOC), EINVAL);
	SAID("address 0x%" PRIxPTR " is at offset 0x40 of its page, iova 0x100000 at offset 0x0",
	     (uintptr_t)p + 64);
	SAID("the device of profile rxe requires equal offsets");
}

/* N1.13: memory mapped for reading, asked for with access 0xf. */
static void read_only_with_0xf(void)
{
	uint8_t *p = alone(2 * PAGE, PROT_READ);

	refused(ibv_reg_mr(pd, p, 2 * PAGE, 0xf), EFAULT);
	SAID("the %d bytes at 0x%" PRIxPTR " cannot be written", 2 * PAGE, (uintptr_t)p);
	SAID("[0x%" PRIxPTR ", 0x%" PRIxPTR ") r--p of anonymous memory", (uintptr_t)p,
	     (uintptr_t)p + 2 * PAGE);
	SAID("is read-only; register it without IBV_ACCESS_LOCAL_WRITE");
}

/* N1.14: a layer below adds LOCAL_WRITE to what the user asked for. */
static void local_write_forced(void)
{
	uint8_t *p = alone(PAGE, PROT_READ);

	CHECK(ibv_reg_mr(pd, p, PAGE, IBV_ACCESS_REMOTE_READ)); /* what the user asked for is fine */
	refused(ibv_reg_mr(pd, p, PAGE, IBV_ACCESS_REMOTE_READ | LOC), EFAULT);
	SAID("register it without IBV_ACCESS_LOCAL_WRITE");
	SAID("(EFAULT)");
}

/* N1.15: a reader of shared frames maps their file read-only. */
static void read_only_file(void)
{
	char path[] = "/tmp/frames-XXXXXX";
	int fd = mkstemp(path);
	uint8_t *p;

	CHECK(fd >= 0 && !ftruncate(fd, 4 * PAGE));
	p = mmap(NULL, 3 * PAGE, PROT_READ, MAP_SHARED, fd, PAGE);
	CHECK(p != MAP_FAILED && !unlink(path));
	refused(ibv_reg_mr(pd, p, 3 * PAGE, LOC), EFAULT);
	SAID("[0x%" PRIxPTR ", 0x%" PRIxPTR ") r--s of the file %s (deleted) from offset 0x1000",
	     (uintptr_t)p, (uintptr_t)p + 3 * PAGE, path);
	SAID("is read-only");
}

/* N1.16: the range is longer than the mapping. */
static void longer_than_the_mapping(void)
{
	uint8_t *p = alone(3 * PAGE, RW);

	refused(ibv_reg_mr(pd, p, 5 * PAGE, LOC), EFAULT);
	SAID("the %d bytes at 0x%" PRIxPTR, 5 * PAGE, (uintptr_t)p);
	SAID("nothing is mapped at 0x%" PRIxPTR " (%d bytes before it ", (uintptr_t)p + 3 * PAGE, 3 * PAGE);
}

/* N1.17: memory that the kernel inserted without pages behind it cannot be pinned: here its own clock page.
 */
static void no_pages_behind(void)
{
	char line[256];
	unsigned long long start = 0, end;
	FILE *f = fopen("/proc/self/maps", "re");

	CHECK(f);
	while (fgets(line, sizeof line, f))
		if (strstr(line, "[vvar]") && sscanf(line, "%llx-%llx", &start, &end) == 2)
			break;
	fclose(f);
	if (!start)
		skip("this kernel maps no [vvar]");
	refused(ibv_reg_mr(pd, (void *)(uintptr_t)start, PAGE, IBV_ACCESS_REMOTE_READ), EFAULT);
	SAID("the %d bytes at 0x%llx cannot be read", PAGE, start);
	SAID("of [vvar]");
	SAID("which cannot be pinned: it belongs to the kernel or a device");
}

/* N1.18: a bit that this device does not know, not marked optional. */
static void unknown_bits(void)
{
	uint8_t *p = alone(PAGE, RW);

	refused(ibv_reg_mr_iova2(pd, p, PAGE, 0, LOC | 1u << 11), EINVAL);
	SAID("unknown bits 0x800");
	CHECK(ibv_reg_mr_iova2(pd, p, PAGE, 0, LOC | IBV_ACCESS_OPTIONAL_FIRST)); /* optional ones may be */
}

/* N1.20: the peer is given the address, where the region was registered with another iova. */
static void address_instead_of_iova(void)
{
	struct ibv_mr *mr;

	pair_open();
	mr = ibv_reg_mr_iova(pd, b.buf, PAGE, 0x100000, KIT_ALL);
	CHECK(mr);
	ask(IBV_WR_RDMA_WRITE, mr->rkey, (uintptr_t)b.buf, 8);
	expect(IBV_WC_REM_ACCESS_ERR);
	SAID("[0x%" PRIxPTR ", +8) lies outside region [0x100000, +%d) of R_Key 0x%08x; that range lies in "
	     "the region of R_Key 0x%08x",
	     (uintptr_t)b.buf, PAGE, mr->rkey, b.mr->rkey);
}

/* N1.21: a null address, and the program does not look at what came back. */
static void null_address(void)
{
	refused(ibv_reg_mr(pd, NULL, 64, LOC), EFAULT);
	SAID("the 64 bytes at 0x0 cannot be written: nothing is mapped at 0x0");
}

/* N1.22: NULL, and an errno that nobody recognizes: which argument was it? */
static void bare_null(void)
{
	uint8_t *p = alone(PAGE, RW);

	refused(ibv_reg_mr(pd, p, 0, LOC), EINVAL);
	SAID("ibv_reg_mr: length is 0 (EINVAL)");
	refused(ibv_reg_mr(pd, p, PAGE, IBV_ACCESS_REMOTE_WRITE), EINVAL);
	SAID("lacks IBV_ACCESS_LOCAL_WRITE: remote write and atomic require it (EINVAL)");
	refused(ibv_reg_mr(pd, p, (size_t)-8192, LOC), EINVAL);
	SAID("exceed the address space (EINVAL)");
}

/* N5.1: an address that only the GPU knows. */
static void address_of_a_device(void)
{
	void *p = mmap(NULL, 64 * PAGE, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);

	CHECK(p != MAP_FAILED); /* what a driver reserves for such addresses */
	refused(ibv_reg_mr(pd, p, 16 * PAGE, LOC), EFAULT);
	SAID("the %d bytes at %p cannot be written", 16 * PAGE, p);
	SAID("---p of anonymous memory");
	SAID("permits no access");
}

/* N5.6: a device's memory, mapped into the process. */
static void mapped_device(void)
{
	int fd = open("/dev/mem", O_RDONLY | O_CLOEXEC);
	void *p = fd < 0 ? MAP_FAILED : mmap(NULL, PAGE, PROT_READ, MAP_SHARED, fd, 0);

	if (p == MAP_FAILED)
		skip("no device's memory can be mapped here");
	refused(ibv_reg_mr(pd, p, PAGE, IBV_ACCESS_REMOTE_READ), EFAULT);
	SAID("the device /dev/mem");
	SAID("ibv_reg_dmabuf_mr");
}

/* N5.7: "Couldn't allocate MR", what does it mean?  A buffer whose file is too short, say. */
static void file_too_short(void)
{
	int fd = memfd_create("frames", MFD_CLOEXEC);
	void *p;

	CHECK(fd >= 0 && !ftruncate(fd, PAGE));
	p = mmap(NULL, 4 * PAGE, RW, MAP_SHARED, fd, 0);
	CHECK(p != MAP_FAILED);
	refused(ibv_reg_mr(pd, p, 4 * PAGE, LOC), EFAULT);
	SAID("0x%" PRIxPTR " (%d bytes before it are accessible) is in", (uintptr_t)p + PAGE, PAGE);
	SAID("the file /memfd:frames (deleted)");
	SAID("extend the file");
}

/* N6.5: huge pages are promised, and the mapping has none. */
static void no_huge_pages(void)
{
	uint8_t *p = alone(4 * PAGE, RW);

	refused(ibv_reg_mr(pd, p, 4 * PAGE, LOC | IBV_ACCESS_ON_DEMAND | IBV_ACCESS_HUGETLB), EINVAL);
	SAID("IBV_ACCESS_HUGETLB requires huge pages: the pages at 0x%" PRIxPTR " have 4096 bytes",
	     (uintptr_t)p);
}

/* N7.3: on-demand paging, where the device has none. */
static void no_on_demand(void)
{
	uint8_t *p = alone(PAGE, RW);

	refused(ibv_reg_mr(pd, p, PAGE, LOC | IBV_ACCESS_ON_DEMAND), EOPNOTSUPP);
	SAID("the device of profile strict has no on-demand paging (IBV_ACCESS_ON_DEMAND) (EOPNOTSUPP)");
	CHECK(ibv_reg_mr(pd, p, PAGE, LOC)); /* what the program does then */
}

/* N7.4: the region of the whole address space, where the device has none. */
static void no_implicit_region(void)
{
	refused(ibv_reg_mr(pd, NULL, SIZE_MAX, LOC | IBV_ACCESS_ON_DEMAND), EOPNOTSUPP);
	SAID("the device of profile rxe has no on-demand paging (IBV_ACCESS_ON_DEMAND) (EOPNOTSUPP)");
}

/* N6: a child uses what its parent opened. */
static void in_the_child(void)
{
	uint8_t *p = alone(PAGE, RW);
	pid_t pid = kit_fork();

	if (!pid) {
		errno = 0;
		CHECK(!ibv_reg_mr(pd, p, PAGE, LOC) && errno == EIO);
		/* it opens the device itself, and then all is well */
		ctx = kit_open();
		pd = ibv_alloc_pd(ctx);
		CHECK(pd && ibv_reg_mr(pd, p, PAGE, LOC));
		_exit(0);
	}
	CHECK(!kit_reap(pid));
	LOGGED("ibv_reg_mr: the device was opened before fork(); open it again in the child process (EIO)");
}

/* How long may a relaxed region be? */
static void too_long_for_relaxed(void)
{
	size_t most = 257 * PAGE - 2;
	uint8_t *p = alone(260 * PAGE, RW);

	CHECK(ibv_reg_mr_relaxed(pd, p, most, LOC));
	CHECK(!ibv_reg_mr_relaxed(pd, p, most + 1, LOC) && errno == EINVAL);
	SAID("ibv_reg_mr_relaxed: %zu bytes at 0x%" PRIxPTR
	     " exceed the limit of a relaxed region: %zu bytes, on 257 pages of 4096 bytes",
	     most + 1, (uintptr_t)p, most);
}

const struct situation registration[] = {
    {"N1.11", all_regions_in_use, NULL},
    {"N1.3", no_memory_for_a_cq, NULL},
    {"N1.12", demands_of_soft_roce, "rxe"},
    {"N1.13", read_only_with_0xf, NULL},
    {"N1.14", local_write_forced, NULL},
    {"N1.15", read_only_file, NULL},
    {"N1.16", longer_than_the_mapping, NULL},
    {"N1.17", no_pages_behind, NULL},
    {"N1.18", unknown_bits, NULL},
    {"N1.20", address_instead_of_iova, NULL},
    {"N1.21", null_address, NULL},
    {"N1.22", bare_null, NULL},
    {"N1-relaxed", too_long_for_relaxed, NULL},
    {"N5.1", address_of_a_device, NULL},
    {"N5.6", mapped_device, NULL},
    {"N5.7", file_too_short, NULL},
    {"N6-child", in_the_child, NULL},
    {"N6.5", no_huge_pages, NULL},
    {"N7.3", no_on_demand, "strict"},
    {"N7.4", no_implicit_region, "rxe"},
    {0},
};
