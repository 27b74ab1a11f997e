/* Under `verbena run`: a program installs handlers of SIGSEGV and SIGBUS of its own, before the first region
 * and after it, in every way that the C library has.  They get its faults, it sees no others, and memory that
 * vanishes is an error completion all the while. */
#include <errno.h>
#include <pthread.h>
#include <setjmp.h>

#include "kit.h"

#pragma GCC diagnostic ignored "-Wdeprecated-declarations"

static struct ibv_context *ctx;
static struct ibv_pd *pd;
static sigjmp_buf back;
static volatile int first, second, bus;
static siginfo_t seen;
static volatile uint8_t *volatile wild;

static void on_first(int sig, siginfo_t *info, void *context)
{
	(void)context;
	first += sig == SIGSEGV;
	seen = *info;
	siglongjmp(back, 1);
}

static void on_second(int sig)
{
	second += sig == SIGSEGV;
	siglongjmp(back, 1);
}

static void on_bus(int sig)
{
	bus += sig == SIGBUS;
	siglongjmp(back, 1);
}

static void fault(void)
{
	if (!sigsetjmp(back, 1))
		*wild = 1;
}

static void fault_bus(void)
{
	int fd = memfd_create("short", 0);
	volatile uint8_t *p = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);

	CHECK(p != MAP_FAILED);
	if (!sigsetjmp(back, 1))
		*p = 1;
	close(fd);
}

/* A WRITE into memory that has gone, and one that goes on. */
static void vanish(bool truncate)
{
	struct kit_end a, b;
	int fd = memfd_create("area", 0);
	void *p;

	CHECK(fd >= 0 && !ftruncate(fd, 8192));
	p = mmap(NULL, 8192, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	CHECK(p != MAP_FAILED);
	kit_end_open(&a, pd, 4, 64);
	kit_end_open(&b, pd, 4, 64);
	CHECK(!ibv_dereg_mr(b.mr));
	b.mr = ibv_reg_mr(pd, p, 8192, KIT_ALL);
	CHECK(b.mr);
	b.card.addr = (uintptr_t)p;
	b.card.rkey = b.mr->rkey;
	kit_connect(&a, &b.card);
	kit_connect(&b, &a.card);
	CHECK(!kit_post(&a, IBV_WR_RDMA_WRITE, 1, 0, 8, &b.card, 4096));
	CHECK(kit_wait(&a, 10).status == IBV_WC_SUCCESS);
	CHECK(truncate ? !ftruncate(fd, 4096) : !mprotect((uint8_t *)p + 4096, 4096, PROT_NONE));
	CHECK(!kit_post(&a, IBV_WR_RDMA_WRITE, 2, 0, 8, &b.card, 4096));
	CHECK(kit_wait(&a, 10).status == IBV_WC_REM_ACCESS_ERR);
	kit_end_close(&a);
	kit_end_close(&b);
	munmap(p, 8192);
	close(fd);
}

static void both_vanish(int f, int s)
{
	vanish(false);
	vanish(true);
	CHECK(first == f && second == s && bus == 0, "%d %d %d", first, second, bus);
}

static void *from_a_thread(void *arg)
{
	struct sigaction act = {.sa_handler = on_second}, old;

	(void)arg;
	CHECK(!sigaction(SIGSEGV, &act, &old));
	CHECK(old.sa_handler == SIG_IGN);
	return NULL;
}

static void die_by_default(void)
{
	pid_t pid = kit_fork();
	int status;

	if (!pid) {
		CHECK(signal(SIGSEGV, SIG_DFL) == on_second);
		*wild = 1;
		_exit(0);
	}
	status = kit_reap(pid);
	CHECK(WIFSIGNALED(status) && WTERMSIG(status) == SIGSEGV, "0x%x", status);
}

static void later_handlers(void)
{
	struct sigaction old;
	pthread_t t;
	int n = second;

	CHECK(!sigaction(SIGSEGV, NULL, &old) && old.sa_sigaction == on_first);
	CHECK((old.sa_flags & SA_SIGINFO) && sigismember(&old.sa_mask, SIGUSR1) == 1 &&
	      sigismember(&old.sa_mask, SIGUSR2) == 0);
	CHECK(signal(SIGSEGV, on_second) == (sighandler_t)(uintptr_t)on_first);
	both_vanish(1, n);
	fault();
	CHECK(second == ++n);
	die_by_default();
	CHECK(sysv_signal(SIGSEGV, on_second) == on_second);
	both_vanish(1, n);
	fault();
	CHECK(second == ++n);
	CHECK(sigset(SIGSEGV, on_second) == SIG_DFL); /* it was for once */
	both_vanish(1, n);
	fault();
	CHECK(second == ++n);
	CHECK(!sigignore(SIGSEGV));
	raise(SIGSEGV);
	both_vanish(1, n);
	CHECK(!pthread_create(&t, NULL, from_a_thread, NULL) && !pthread_join(t, NULL));
	both_vanish(1, n);
	fault();
	CHECK(second == ++n);
	CHECK(ssignal(SIGSEGV, on_second) == on_second && signal(SIGBUS, on_bus) == SIG_DFL);
	both_vanish(1, n);
	fault_bus();
	fault();
	CHECK(second == ++n && bus == 1);
	errno = 0;
	CHECK(signal(SIGSEGV, SIG_ERR) == SIG_ERR && errno == EINVAL);
}

int main(void)
{
	struct sigaction act = {.sa_sigaction = on_first, .sa_flags = SA_SIGINFO};

	wild = mmap(NULL, 4096, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	CHECK(wild != MAP_FAILED);
	sigaddset(&act.sa_mask, SIGUSR1);
	CHECK(!sigaction(SIGSEGV, &act, NULL));
	ctx = kit_open();
	pd = ibv_alloc_pd(ctx);
	CHECK(pd);
	both_vanish(0, 0);
	fault();
	CHECK(first == 1 && seen.si_code == SEGV_ACCERR && seen.si_addr == wild);
	later_handlers();
	CHECK(!ibv_dealloc_pd(pd) && !ibv_close_device(ctx));
	puts("its own faults, and no others");
	return 0;
}
