/* The profile `strict`: what a device that pins would refuse is refused, with the numbers; fork() with and
 * without ibv_fork_init(); a peer that dies is silent.  A process has one profile and one ibv_fork_init(), so
 * each situation has a process of its own, with the sentences in a file. */
#include <errno.h>
#include <fcntl.h>
#include <linux/capability.h>
#include <sys/file.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>

#include "bytes.h"
#include "kit.h"

int ibv_dontfork_range(void *base, size_t size); /* in drivers' headers only */
int ibv_dofork_range(void *base, size_t size);

enum { HUGE = 2 << 20 };

static struct ibv_context *ctx;
static struct ibv_pd *pd;
static char log_path[] = "/tmp/verbena-strict-XXXXXX", capture_path[] = "/tmp/verbena-strict-pcap-XXXXXX";

static void open_as(const char *profile)
{
	setenv("VERBENA_PROFILE", profile, 1);
	setenv("VERBENA_LOG", log_path, 1);
	ctx = kit_open();
	pd = ibv_alloc_pd(ctx);
	CHECK(pd);
}

/* How often the words stand in the log. */
static int said(const char *words)
{
	static char text[1 << 16];
	FILE *f = fopen(log_path, "r");
	int n = 0;

	CHECK(f);
	text[fread(text, 1, sizeof text - 1, f)] = '\0';
	fclose(f);
	for (const char *p = text; (p = strstr(p, words)); p++)
		n++;
	return n;
}

/* The same of what another thread may be about to write. */
static int soon_said(const char *words)
{
	for (double until = kit_now() + 20; !said(words) && kit_now() < until;)
		sched_yield();
	return said(words);
}

static char *pages(size_t n)
{
	char *p = mmap(NULL, n * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

	CHECK(p != MAP_FAILED);
	memset(p, 1, n * PAGE);
	return p;
}

static struct ibv_mr *reg(void *p, size_t n)
{
	return ibv_reg_mr(pd, p, n, KIT_ALL);
}

static void limit_memory(rlim_t bytes)
{
	CHECK(!setrlimit(RLIMIT_MEMLOCK, &(struct rlimit){bytes, bytes}));
}

/* As an ordinary user, or as root without the one capability that counts here. */
static void drop_right(bool by_uid)
{
	struct __user_cap_header_struct head = {.version = _LINUX_CAPABILITY_VERSION_3};
	struct __user_cap_data_struct data[_LINUX_CAPABILITY_U32S_3];

	if (by_uid && !geteuid()) {
		CHECK(!chmod(log_path, 0666));
		if (!setresgid(65534, 65534, 65534) && !setresuid(65534, 65534, 65534))
			return;
		printf("  this user namespace has no other user\n");
	}
	CHECK(!syscall(SYS_capget, &head, data));
	data[CAP_TO_INDEX(CAP_IPC_LOCK)].effective &= ~CAP_TO_MASK(CAP_IPC_LOCK);
	CHECK(!syscall(SYS_capset, &head, data));
}

static void pages_are_counted(bool by_uid)
{
	char *p = pages(32), *gone = pages(8);
	struct ibv_mr *a, *b, *c;

	limit_memory(16 * PAGE);
	drop_right(by_uid);
	open_as("strict");
	a = reg(p, 8 * PAGE);
	b = reg(p, 8 * PAGE); /* the same pages count again */
	CHECK(a && b);
	CHECK(!reg(p + 100, 1));
	CHECK_EQ(errno, ENOMEM);
	CHECK(said("the 0x1 bytes at 0x") == 1);
	CHECK(said("need 4 KiB of pinned pages: this process has pinned 64 KiB, and "
		   "RLIMIT_MEMLOCK is 64 KiB; raise the limit (ulimit -l") == 1);
	CHECK(!ibv_dereg_mr(b));
	c = reg(p + PAGE - 1, 2); /* two pages */
	CHECK(c && !reg(p, 6 * PAGE + 1));
	CHECK_EQ(errno, ENOMEM);
	b = reg(p, 6 * PAGE);
	CHECK(b && !ibv_dereg_mr(b) && !ibv_dereg_mr(c));

	/* what fails for another reason leaves nothing behind, and the limit comes first */
	CHECK(!munmap(gone, 8 * PAGE));
	CHECK(!reg(gone, 8 * PAGE));
	CHECK_EQ(errno, EFAULT);
	CHECK(!reg(gone, 9 * PAGE));
	CHECK_EQ(errno, ENOMEM);
	b = reg(p, 8 * PAGE);
	CHECK(b && !ibv_dereg_mr(b));

	/* a changed region's new pages count before the old ones are given back */
	CHECK(ibv_rereg_mr(a, IBV_REREG_MR_CHANGE_TRANSLATION, NULL, p, 9 * PAGE, 0) ==
	      IBV_REREG_MR_ERR_INPUT);
	CHECK_EQ(errno, ENOMEM);
	CHECK(a->length == 8 * PAGE);
	CHECK(!ibv_rereg_mr(a, IBV_REREG_MR_CHANGE_TRANSLATION, NULL, p, 4 * PAGE, 0));
	CHECK(!ibv_rereg_mr(a, IBV_REREG_MR_CHANGE_ACCESS, NULL, NULL, 0, IBV_ACCESS_LOCAL_WRITE));
	b = reg(p, 12 * PAGE);
	CHECK(b && !reg(p, 1));
	CHECK(!ibv_rereg_mr(a, IBV_REREG_MR_CHANGE_ACCESS, NULL, NULL, 0, KIT_ALL)); /* nothing new */
	CHECK(!ibv_dereg_mr(b) && !ibv_dereg_mr(a));
	a = reg(p, 16 * PAGE);
	CHECK(a && !ibv_dereg_mr(a));
}

static void as_a_user(void)
{
	pages_are_counted(true);
}

static void without_the_capability(void)
{
	pages_are_counted(false);
}

static void a_limit_of_nothing(void)
{
	limit_memory(0);
	drop_right(false);
	open_as("strict");
	CHECK(!reg(pages(1), 8));
	CHECK_EQ(errno, EPERM);
	CHECK(said("RLIMIT_MEMLOCK is 0, so this process cannot pin memory") == 1);
}

/* A process with the capability is exempt; so is every process in the other profiles. */
static void exempt(void)
{
	char ns[64] = "";
	struct ibv_mr *mr;

	limit_memory(PAGE);
	if (geteuid() || readlink("/proc/self/ns/user", ns, sizeof ns - 1) < 0 ||
	    strcmp(ns, "user:[4026531837]")) {
		printf("  no CAP_IPC_LOCK that counts can be had here\n");
		return;
	}
	open_as("strict");
	mr = reg(pages(64), 64 * PAGE);
	CHECK(mr && !ibv_dereg_mr(mr));
}

static void nothing_is_pinned_by_default(void)
{
	char *p = pages(64);
	struct ibv_mr *mr;
	unsigned char in[64];
	pid_t pid;

	limit_memory(0);
	drop_right(false);
	open_as("default");
	CHECK(!ibv_fork_init() && ibv_is_fork_initialized() == IBV_FORK_UNNEEDED);
	mr = reg(p + 1, 63 * PAGE);
	CHECK(mr && !ibv_fork_init());
	pid = kit_fork();
	if (!pid)
		_exit(mincore(p, 64 * PAGE, in) != 0);
	CHECK_EQ(kit_reap(pid), 0);
	CHECK(!ibv_dereg_mr(mr) && !said("fork"));
}

static void what_it_has_not_got(void)
{
	struct ibv_device_attr_ex ex;
	char *p = pages(2);

	open_as("strict");
	CHECK(!ibv_reg_mr(pd, p, PAGE, IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_ON_DEMAND));
	CHECK_EQ(errno, EOPNOTSUPP);
	CHECK(!ibv_reg_mr(pd, NULL, SIZE_MAX, IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_ON_DEMAND));
	CHECK_EQ(errno, EOPNOTSUPP);
	CHECK(!ibv_query_device_ex(ctx, NULL, &ex));
	CHECK(!ex.odp_caps.general_caps && !ex.odp_caps.per_transport_caps.rc_odp_caps);
	/* rule 43 */
	CHECK(!ibv_reg_mr_iova(pd, p + 8, 16, 0x1000, IBV_ACCESS_LOCAL_WRITE));
	CHECK_EQ(errno, EINVAL);
	CHECK(ibv_reg_mr_iova(pd, p + 8, 16, 0x7008, IBV_ACCESS_LOCAL_WRITE) != NULL);
}

/* Which of the pages a child has. */
static uint64_t child_has(const char *p, size_t n)
{
	static uint64_t *seen; /* made once: not in a hole that a test has made */
	unsigned char in;
	pid_t pid;

	if (!seen)
		seen = kit_shared(PAGE);
	*seen = 0;
	pid = kit_fork();
	if (!pid) {
		for (size_t i = 0; i < n; i++)
			if (!mincore((void *)(uintptr_t)(p + i * PAGE), PAGE, &in))
				*seen |= 1ull << i;
		_exit(0);
	}
	CHECK_EQ(kit_reap(pid), 0);
	return *seen;
}

static void fork_without_init(void)
{
	char *p = pages(4);
	struct ibv_mr *mr;

	open_as("strict");
	CHECK(ibv_is_fork_initialized() == IBV_FORK_DISABLED);
	CHECK(child_has(p, 4) == 0xf && !said("fork()")); /* no region yet */
	mr = reg(p, PAGE);
	CHECK(mr);
	CHECK(child_has(p, 4) == 0xf && child_has(p, 4) == 0xf);
	CHECK(said("fork() without ibv_fork_init() while 1 memory region is registered") == 1);
	CHECK(ibv_fork_init() == EINVAL && ibv_is_fork_initialized() == IBV_FORK_DISABLED);
	CHECK(said("ibv_fork_init: this process has registered memory before") == 1);
	CHECK(!ibv_dontfork_range(p, PAGE) && child_has(p, 4) == 0xf);
	CHECK(!ibv_dereg_mr(mr));
}

static void check_marks(void)
{
	char *p = pages(8), *q = pages(3);
	struct ibv_mr *a, *b, *c;

	CHECK(ibv_is_fork_initialized() == IBV_FORK_ENABLED);
	a = reg(p + PAGE, 4 * PAGE);	 /* pages 1 to 4 */
	b = reg(p + 3 * PAGE, 3 * PAGE); /* 3 to 5 */
	CHECK(a && b && !said("does not fill its pages"));
	CHECK(child_has(p, 8) == 0xc1);
	CHECK(!ibv_dereg_mr(a));
	CHECK(child_has(p, 8) == 0xc7);
	a = reg(p + 2 * PAGE, 6 * PAGE); /* 2 to 7 */
	CHECK(a && !ibv_dereg_mr(b));
	CHECK(child_has(p, 8) == 0x3);
	CHECK(!ibv_rereg_mr(a, IBV_REREG_MR_CHANGE_TRANSLATION, NULL, p, PAGE, 0));
	CHECK(child_has(p, 8) == 0xfe);
	CHECK(!ibv_dereg_mr(a) && child_has(p, 8) == 0xff);

	/* pages go whole, with what else is on them (rdma-core PR 1222) */
	a = reg(p + PAGE - 1, 2);
	CHECK(a && child_has(p, 8) == 0xfc);
	CHECK(said("the region of 0x2 bytes at 0x") == 1 &&
	      said("lacks the 4095 bytes before and the 4095 bytes after it") == 1);
	b = reg(p + 5, 6); /* said once */
	CHECK(b && said("does not fill its pages") == 1);
	CHECK(!ibv_dereg_mr(a) && child_has(p, 8) == 0xfe);
	CHECK(!ibv_dereg_mr(b) && child_has(p, 8) == 0xff);

	/* relaxed regions are kept from children too, though their memory counts against no limit */
	a = ibv_reg_mr_relaxed(pd, p + PAGE, 2 * PAGE, IBV_ACCESS_LOCAL_WRITE);
	CHECK(a && child_has(p, 8) == 0xf9);
	CHECK(!ibv_dereg_mr_relaxed(a) && child_has(p, 8) == 0xff);

	/* ranges by hand, which count too */
	CHECK(!ibv_dontfork_range(p, 2 * PAGE) && !ibv_dontfork_range(p + PAGE, PAGE));
	CHECK(!ibv_dofork_range(p, 2 * PAGE) && child_has(p, 8) == 0xfd);
	CHECK(!ibv_dofork_range(p + PAGE, PAGE) && child_has(p, 8) == 0xff);
	CHECK(!ibv_dontfork_range(NULL, PAGE) && !ibv_dontfork_range(p, 0));

	/* memory that is unmapped under a region: what is left of it is given back (rdma-core PR 824) */
	c = reg(q, 3 * PAGE);
	CHECK(c && !munmap(q + PAGE, PAGE));
	CHECK(child_has(q, 3) == 0);
	CHECK(!ibv_dereg_mr(c) && child_has(q, 3) == 5);
	/* a hole is ENOMEM here, as madvise(2) has it, and nothing stays marked */
	CHECK(!reg(q, 3 * PAGE));
	CHECK_EQ(errno, ENOMEM);
	CHECK(child_has(q, 3) == 5);
	CHECK(said("cannot be excluded from child processes, as ibv_fork_init() requires: nothing is mapped "
		   "at 0x") == 1);
	CHECK(said("(4096 bytes before it and 4096 after it are accessible)") == 1);
	CHECK(!said("vm.max_map_count"));
	a = reg(p, PAGE);
	CHECK(a && ibv_rereg_mr(a, IBV_REREG_MR_CHANGE_TRANSLATION, NULL, q, 3 * PAGE, 0) ==
		       IBV_REREG_MR_ERR_DONT_FORK_NEW);
	CHECK_EQ(errno, ENOMEM);
	CHECK(a->addr == p && child_has(p, 8) == 0xfe && child_has(q, 3) == 5);
	CHECK(!ibv_dereg_mr(a) && child_has(p, 8) == 0xff);
	CHECK(!said("fork() with"));
}

static void fork_with_init(void)
{
	open_as("strict");
	CHECK(!ibv_fork_init() && !ibv_fork_init());
	check_marks();
}

static void fork_by_environment(void)
{
	setenv("RDMAV_FORK_SAFE", "1", 1);
	open_as("strict");
	check_marks();
}

static void fork_by_environment_off(void)
{
	setenv("IBV_FORK_SAFE", "0", 1);
	open_as("strict");
	CHECK(ibv_is_fork_initialized() == IBV_FORK_DISABLED);
}

/* A capture hears what fork() has to say, so its lock is taken after that of who says it, whoever came first.
 */
static void fork_with_a_capture(void)
{
	char *p = pages(1);
	pid_t pid;

	setenv("VERBENA_PCAP", capture_path, 1);
	setenv("VERBENA_PROFILE", "strict", 1);
	setenv("VERBENA_LOG", log_path, 1);
	CHECK(ibv_is_fork_initialized() == IBV_FORK_DISABLED);
	open_as("strict");
	CHECK(reg(p, PAGE));
	pid = kit_fork();
	if (!pid)
		_exit(0);
	CHECK_EQ(kit_reap(pid), 0);
	CHECK(said("while 1 memory region is registered") == 1);
}

/* Buffers all over the heap, where the library's own objects are too: a child runs, and its parent's traffic
 * goes on. */
static void heap_with_marks(void)
{
	enum { N = 400 };
	static char *buf[N];
	static struct ibv_mr *mr[N];
	struct kit_end e, f;
	pid_t pid;

	for (int i = 0; i < N / 2; i++)
		buf[i] = malloc(200);
	open_as("strict");
	CHECK(!ibv_fork_init());
	kit_end_open(&e, pd, 8, 64);
	kit_end_open(&f, pd, 8, 64);
	for (int i = N / 2; i < N; i++)
		buf[i] = malloc(200);
	kit_connect(&e, &f.card);
	kit_connect(&f, &e.card);
	for (int i = 0; i < N; i++) {
		mr[i] = reg(buf[i], 200);
		CHECK(mr[i]);
	}
	for (int i = 0; i < 3; i++) {
		pid = kit_fork();
		if (!pid) {
			/* not `environ`, which setenv() has moved to the heap */
			execle("/bin/true", "true", (char *)NULL, (char *[]){NULL});
			_exit(1);
		}
		CHECK_EQ(kit_reap(pid), 0);
		CHECK(!kit_post(&e, IBV_WR_RDMA_WRITE, 1, 8, 8, &f.card, 0));
		CHECK_EQ(kit_wait(&e, 20).status, IBV_WC_SUCCESS);
	}
	for (int i = 0; i < N; i++) {
		CHECK(!ibv_dereg_mr(mr[i]));
		free(buf[i]);
	}
	kit_end_close(&e);
	kit_end_close(&f);
	CHECK(!ibv_dealloc_pd(pd) && !ibv_close_device(ctx));
}

/* One huge page more, as long as the process lives; 0: cannot be had. */
static char *huge_page(void)
{
	const int flags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_HUGETLB;
	char *p = mmap(NULL, HUGE, PROT_READ | PROT_WRITE, flags, -1, 0);
	char text[32];
	int fd, n;

	if (p != MAP_FAILED)
		return p;
	fd = open("/proc/sys/vm/nr_hugepages", O_RDWR | O_CLOEXEC);
	if (fd < 0 || flock(fd, LOCK_EX) || (n = (int)read(fd, text, sizeof text - 1)) <= 0)
		return NULL;
	text[n] = '\0';
	n = atoi(text);
	dprintf(fd, "%d", n + 1);
	p = mmap(NULL, HUGE, PROT_READ | PROT_WRITE, flags, -1, 0);
	if (p != MAP_FAILED) /* it stays this process's, as a surplus page */
		*(volatile char *)p = 1;
	dprintf(fd, "%d", n);
	close(fd);
	return p == MAP_FAILED ? NULL : p;
}

static void huge_pages(bool safe)
{
	char *p = huge_page();
	struct ibv_mr *a, *b;

	if (!p) {
		printf("  no huge page can be had here\n");
		return;
	}
	if (safe)
		setenv("RDMAV_HUGEPAGES_SAFE", "1", 1);
	open_as("strict");
	CHECK(!ibv_fork_init());
	a = reg(p, HUGE);
	CHECK(a && child_has(p, 1) == 0 && !ibv_dereg_mr(a));
	a = reg(p + PAGE, PAGE);
	if (!safe) { /* (Mooncake PR 3845) */
		CHECK(!a);
		CHECK_EQ(errno, EINVAL);
		CHECK(said("set RDMAV_HUGEPAGES_SAFE") == 1);
		CHECK(child_has(p, 1) == 1);
		return;
	}
	b = reg(p + 5 * PAGE, PAGE);
	CHECK(a && b && child_has(p, 1) == 0); /* all of it */
	CHECK(!ibv_dereg_mr(a) && child_has(p, 1) == 0);
	CHECK(!ibv_dereg_mr(b) && child_has(p, 1) == 1);
}

static void huge_pages_in_part(void)
{
	huge_pages(false);
}

static void huge_pages_whole(void)
{
	huge_pages(true);
}

/* A child begins anew: nothing of the parent's counts or is marked there. */
static void a_child_has_its_own(void)
{
	char *p = pages(16);
	pid_t pid;

	limit_memory(16 * PAGE);
	drop_right(false);
	open_as("strict");
	CHECK(!ibv_fork_init());
	CHECK(reg(p, 10 * PAGE));
	pid = kit_fork();
	if (!pid) {
		char *q = mmap(p, 16 * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED,
			       -1, 0);
		struct ibv_mr *mr;

		CHECK(q == p);
		open_as("strict");
		CHECK(ibv_is_fork_initialized() == IBV_FORK_ENABLED);
		mr = reg(q, 16 * PAGE);
		CHECK(mr && child_has(q, 16) == 0 && !reg(q, 1));
		CHECK(!ibv_dereg_mr(mr) && child_has(q, 16) == 0xffff);
		_exit(0);
	}
	CHECK_EQ(kit_reap(pid), 0);
}

/* On hardware nobody says that a process is gone: requests time out, and there is no event before. */
static void a_dead_peer_is_silent(void)
{
	struct board {
		struct kit_card a, b;
		_Atomic int step;
	} *board = kit_shared(sizeof *board);
	struct ibv_async_event ev;
	struct kit_end e;
	pid_t pid = kit_fork();

	open_as("strict");
	kit_end_open(&e, pd, 8, 64);
	if (!pid) {
		board->b = e.card;
		atomic_fetch_add(&board->step, 1);
		kit_until(&board->step, 2);
		kit_connect(&e, &board->a);
		CHECK(!kit_recv(&e, 1, 0, 64));
		atomic_fetch_add(&board->step, 1);
		CHECK_EQ(kit_wait(&e, 20).status, IBV_WC_SUCCESS);
		kit_until(&board->step, 4);
		raise(SIGKILL);
	}
	board->a = e.card;
	kit_until(&board->step, 1);
	atomic_fetch_add(&board->step, 1);
	kit_connect_with(&e, &board->b, 12, 1);
	kit_until(&board->step, 3);
	CHECK(!kit_post(&e, IBV_WR_SEND, 1, 0, 8, NULL, 0));
	CHECK_EQ(kit_wait(&e, 20).status, IBV_WC_SUCCESS);
	CHECK(!fcntl(ctx->async_fd, F_SETFL, O_NONBLOCK));
	atomic_fetch_add(&board->step, 1);
	CHECK(WIFSIGNALED(kit_reap(pid)));
	CHECK(!kit_post(&e, IBV_WR_SEND, 2, 0, 8, NULL, 0));
	CHECK_EQ(kit_wait(&e, 20).status, IBV_WC_RETRY_EXC_ERR);
	while (!ibv_get_async_event(ctx, &ev)) { /* COMM_EST and the like have their own reasons */
		CHECK(ev.event_type != IBV_EVENT_QP_FATAL, "an event");
		ibv_ack_async_event(&ev);
	}
	CHECK(!said("died"));
}

/* An access notices, and says what would have been on a device that pins. */
static void memory_goes_under_a_region(void)
{
	char *p = pages(2);
	struct kit_end a, b;
	struct ibv_mr *mr;
	enum ibv_wc_status got;

	open_as("strict");
	kit_end_open(&a, pd, 8, 64);
	kit_end_open(&b, pd, 8, 64);
	kit_connect(&a, &b.card);
	kit_connect(&b, &a.card);
	mr = reg(p, 2 * PAGE);
	CHECK(mr && !munmap(p, PAGE));
	b.card.addr = (uintptr_t)p;
	b.card.rkey = mr->rkey;
	CHECK(!kit_post(&a, IBV_WR_RDMA_WRITE, 1, 8, 8, &b.card, 0));
	got = kit_wait(&a, 20).status;
	CHECK(got == IBV_WC_REM_ACCESS_ERR, "%s", ibv_wc_status_str(got));
	CHECK(soon_said(
		  "an adapter that pins memory keeps using the pages that were mapped at registration") >= 1);
	CHECK(!said("deregister a region before you free its memory") && !ibv_dereg_mr(mr));
	CHECK(soon_said("the region of 0x2000 bytes at 0x") == 1 &&
	      said("deregister a region before you free its memory") == 1);
}

/* What a request of `op` completes with whose L_Key is wrong, and the R_Key too if `both`; *there: what it
 * has left at the far end, which had 0. */
static enum ibv_wc_status wrong_keys(enum ibv_wr_opcode op, bool both, uint64_t *there)
{
	struct kit_end a, b;
	enum ibv_wc_status got;

	kit_end_open(&a, pd, 8, 64);
	kit_end_open(&b, pd, 8, 64);
	kit_connect(&a, &b.card);
	kit_connect(&b, &a.card);
	a.mr->lkey ^= 1;
	b.card.rkey ^= both;
	CHECK(!kit_post(&a, op, 1, 8, 8, &b.card, 0));
	got = kit_wait(&a, 20).status;
	memcpy(there, b.buf, sizeof *there);
	a.mr->lkey ^= 1;
	kit_end_close(&a);
	kit_end_close(&b);
	return got;
}

/* Where both keys are wrong a device tells of the far one, and an atomic has happened before it looks at its
 * own. */
static void sinks_are_looked_at_late(void)
{
	const enum ibv_wr_opcode add = IBV_WR_ATOMIC_FETCH_AND_ADD;
	uint64_t v;

	open_as("strict");
	CHECK(wrong_keys(IBV_WR_RDMA_READ, true, &v) == IBV_WC_REM_ACCESS_ERR);
	CHECK(wrong_keys(IBV_WR_RDMA_READ, false, &v) == IBV_WC_LOC_PROT_ERR);
	CHECK(wrong_keys(add, true, &v) == IBV_WC_REM_ACCESS_ERR && !v);
	CHECK(wrong_keys(add, false, &v) == IBV_WC_LOC_PROT_ERR && v == 1);
	/* what is sent has to be read before */
	CHECK(wrong_keys(IBV_WR_RDMA_WRITE, true, &v) == IBV_WC_LOC_PROT_ERR && !v);
}

static void sinks_are_looked_at_first(void)
{
	uint64_t v;

	open_as("default");
	CHECK(wrong_keys(IBV_WR_RDMA_READ, true, &v) == IBV_WC_LOC_PROT_ERR);
	CHECK(wrong_keys(IBV_WR_ATOMIC_FETCH_AND_ADD, true, &v) == IBV_WC_LOC_PROT_ERR);
	CHECK(wrong_keys(IBV_WR_ATOMIC_FETCH_AND_ADD, false, &v) == IBV_WC_LOC_PROT_ERR && !v);
}

static const struct {
	const char *name;
	void (*run)(void);
} situations[] = {
    {"pages are counted, as a user", as_a_user},
    {"pages are counted, without CAP_IPC_LOCK", without_the_capability},
    {"a limit of nothing", a_limit_of_nothing},
    {"exempt", exempt},
    {"nothing is pinned by default", nothing_is_pinned_by_default},
    {"what it has not got", what_it_has_not_got},
    {"fork without ibv_fork_init", fork_without_init},
    {"fork with ibv_fork_init", fork_with_init},
    {"fork with RDMAV_FORK_SAFE", fork_by_environment},
    {"fork with IBV_FORK_SAFE=0", fork_by_environment_off},
    {"fork with a capture", fork_with_a_capture},
    {"regions on the heap", heap_with_marks},
    {"huge pages in part", huge_pages_in_part},
    {"huge pages whole", huge_pages_whole},
    {"a child has its own", a_child_has_its_own},
    {"a dead peer is silent", a_dead_peer_is_silent},
    {"memory goes under a region", memory_goes_under_a_region},
    {"local keys of READs and atomics, late", sinks_are_looked_at_late},
    {"local keys of READs and atomics, by default", sinks_are_looked_at_first},
};

int main(void)
{
	int fd = mkstemp(log_path), capture = mkstemp(capture_path), status;

	CHECK(fd >= 0 && capture >= 0);
	unsetenv("RDMAV_FORK_SAFE");
	unsetenv("IBV_FORK_SAFE");
	unsetenv("RDMAV_HUGEPAGES_SAFE");
	for (size_t i = 0; i < sizeof situations / sizeof situations[0]; i++) {
		pid_t pid;

		CHECK(!ftruncate(fd, 0));
		printf("%s\n", situations[i].name);
		pid = kit_fork();
		if (!pid) {
			alarm(60);
			situations[i].run();
			_exit(0);
		}
		status = kit_reap(pid);
		if (status) {
			unlink(log_path);
			unlink(capture_path);
		}
		CHECK(!status, "%s: 0x%x", situations[i].name, status);
	}
	unlink(log_path);
	unlink(capture_path);
	printf("ok\n");
	return 0;
}
