/* What --share-buffers does to a program's memory, call by call, and where something is missing: memory,
 * descriptors, a limit.  What it cannot serve is ordinary memory, and no call fails for it.
 *
 *   proc-share_buffers [CASE] */
#include <fcntl.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <malloc.h>
#include <pthread.h>
#include <sched.h>
#include <spawn.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <ucontext.h>

#include "buffers.h"
#include "bytes.h"
#include "kit.h"

enum { MIB = 1 << 20 };

extern char **environ;

static void *map(size_t size)
{
	void *p = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

	CHECK(p != MAP_FAILED);
	return p;
}

static bool is_zero(const void *p, size_t size)
{
	const uint8_t *at = p;

	return !at[0] && !memcmp(at, at + 1, size - 1);
}

/* Whether the kernel can write there. */
static bool is_there(void *p)
{
	int pipes[2];
	bool there;

	CHECK(!pipe(pipes) && write(pipes[1], "", 1) == 1);
	there = read(pipes[0], p, 1) == 1;
	close(pipes[0]);
	close(pipes[1]);
	return there;
}

static size_t shared_resident(void)
{
	unsigned long size, resident, shared;
	FILE *f = fopen("/proc/self/statm", "re");

	CHECK(f && fscanf(f, "%lu %lu %lu", &size, &resident, &shared) == 3);
	fclose(f);
	return shared * PAGE;
}

/* ---- calls ---- */

static void aligned(void)
{
	void *p = NULL, *q;

	errno = 7;
	CHECK(!posix_memalign(&p, PAGE, PAGE) && kit_in_buffers(p, PAGE) == 1);
	CHECK(!posix_memalign(&q, 1 << 20, 100000) && kit_in_buffers(q, 100000) == 1);
	CHECK_EQ((uintptr_t)q % (1 << 20), 0);
	free(p);
	free(q);
	CHECK_EQ(errno, 7);
	for (int i = 0; i < 4; i++) {
		p = i == 0   ? memalign(8192, 3 * PAGE)
		    : i == 1 ? aligned_alloc(PAGE, 3 * PAGE)
		    : i == 2 ? valloc(3 * PAGE)
			     : pvalloc(2 * PAGE + 1);
		CHECK(kit_in_buffers(p, 3 * PAGE) == 1, "call %d", i);
		CHECK_EQ(malloc_usable_size(p), 3 * PAGE);
		free(p);
	}
	/* Less than a page, and less aligned, is the C library's. */
	CHECK(!posix_memalign(&p, PAGE, PAGE - 1) && kit_in_buffers(p, PAGE - 1) == 0);
	free(p);
	CHECK(!posix_memalign(&p, 2048, 100000) && kit_in_buffers(p, 100000) == 0);
	free(p);
	p = malloc(100000);
	CHECK(kit_in_buffers(p, 100000) == 0);
	free(p);
}

static void wrong_numbers(void)
{
	volatile size_t much = SIZE_MAX - PAGE;
	void *p = &p;

	CHECK_EQ(posix_memalign(&p, 3 * PAGE, PAGE), EINVAL);
	CHECK_EQ(posix_memalign(&p, 0, PAGE), EINVAL);
	CHECK_EQ(posix_memalign(&p, PAGE, much), ENOMEM);
	CHECK_EQ(posix_memalign(&p, PAGE, much / 2), ENOMEM);
	CHECK(p == &p);
	errno = 0;
	CHECK(mmap(NULL, much / 2, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0) == MAP_FAILED);
	CHECK_EQ(errno, ENOMEM);
	p = map(MIB);
	CHECK(munmap((uint8_t *)p + 1, PAGE) == -1 && errno == EINVAL);
	CHECK(munmap(p, 0) == -1 && errno == EINVAL);
	CHECK(madvise((uint8_t *)p + 1, PAGE, MADV_DONTNEED) == -1 && errno == EINVAL);
	CHECK(mremap(p, MIB, 0, MREMAP_MAYMOVE) == MAP_FAILED && errno == EINVAL);
	CHECK(mremap(p, 0, MIB, MREMAP_MAYMOVE) == MAP_FAILED && errno == EINVAL);
	CHECK(mmap(NULL, MIB, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 1) == MAP_FAILED);
	CHECK(mremap(p, MIB, 2 * MIB, MREMAP_FIXED, (uint8_t *)p + MIB) == MAP_FAILED && errno == EINVAL);
	CHECK(mremap(p, 1000 * (size_t)MIB, 2000 * (size_t)MIB, 0) == MAP_FAILED);
	CHECK(!munmap(p, MIB));
}

static void reallocated(void)
{
	volatile size_t much = SIZE_MAX / 2; /* the compiler would refuse it */
	uint8_t *p = memalign(PAGE, 5 * PAGE), *q;

	kit_fill(p, 5 * PAGE, 1);
	p = realloc(p, 40 * PAGE);
	CHECK_EQ(kit_filled(p, 5 * PAGE, 1), 5 * PAGE);
	CHECK(kit_in_buffers(p, 40 * PAGE) == 1);
	q = memalign(PAGE, PAGE); /* in the way */
	p = realloc(p, 80 * PAGE);
	CHECK_EQ(kit_filled(p, 5 * PAGE, 1), 5 * PAGE);
	CHECK(kit_in_buffers(p, 80 * PAGE) == 1);
	p = realloc(p, 2 * PAGE);
	CHECK_EQ(malloc_usable_size(p), 2 * PAGE);
	p = realloc(p, 100);
	CHECK_EQ(kit_filled(p, 100, 1), 100);
	CHECK(kit_in_buffers(p, 100) == 0);
	errno = 0;
	CHECK(!reallocarray(q, much, 4) && errno == ENOMEM);
	q = reallocarray(q, 3, PAGE);
	CHECK_EQ(malloc_usable_size(q), 3 * PAGE);
	CHECK(!realloc(q, 0));
	free(p);
}

static void mapped(void)
{
	uint8_t *p = map(MIB), *q;
	void *at;

	CHECK(kit_in_buffers(p, MIB) == 1 && is_zero(p, MIB));
	memset(p, 1, MIB);
	CHECK(!munmap(p + PAGE, MIB - 2 * PAGE));
	CHECK(is_there(p) && !is_there(p + PAGE) && is_there(p + MIB - PAGE));
	CHECK(mprotect(p, MIB, PROT_READ) == -1 && errno == ENOMEM);
	CHECK(!is_there(p) && !is_there(p + PAGE) && is_there(p + MIB - PAGE));
	q = map(MIB - 2 * PAGE);
	CHECK(is_zero(q, MIB - 2 * PAGE));
	CHECK(!munmap(p, MIB) && !is_there(p));
	/* Other flags, or an address, or less: the kernel's. */
	at = mmap(NULL, MIB, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	CHECK(kit_in_buffers(at, MIB) == 0 && !munmap(at, MIB));
	at = mmap(NULL, MIB, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	CHECK(kit_in_buffers(at, MIB) == 0 && !munmap(at, MIB));
	at = map(60 << 10);
	CHECK(kit_in_buffers(at, 60 << 10) == 0 && !munmap(at, 60 << 10));
	at = mmap(NULL, MIB, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_POPULATE, -1, 0);
	CHECK(kit_in_buffers(at, MIB) == 1 && !munmap(at, MIB));
	/* The program's own mapping in the middle of ours is left alone. */
	p = map(MIB);
	at = mmap(p + PAGE, PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0);
	CHECK(at == p + PAGE && kit_in_buffers(at, PAGE) == 0);
	memset(at, 5, PAGE);
	CHECK(!munmap(p, PAGE) && !munmap(p + 2 * PAGE, MIB - 2 * PAGE));
	for (int i = 0; i < 20; i++)
		memset(map(MIB), 6, MIB);
	CHECK_EQ(*(uint8_t *)at, 5);
	CHECK(!madvise(at, PAGE, MADV_DONTNEED) && is_zero(at, PAGE) && !munmap(at, PAGE));
	CHECK(!is_there(at));
	/* As is one where ours was. */
	p = map(MIB);
	CHECK(!munmap(p, MIB));
	at = mmap(p, PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0);
	CHECK(at == p);
	memset(at, 5, PAGE);
	for (int i = 0; i < 20; i++)
		memset(map(MIB), 6, MIB);
	CHECK(*p == 5 && !munmap(at, PAGE) && !is_there(at));
}

static void advised(void)
{
	uint8_t *p = map(MIB), *h = memalign(PAGE, MIB);

	memset(p, 1, MIB);
	memset(h, 1, MIB);
	CHECK(!madvise(p + PAGE, 10 * PAGE, MADV_DONTNEED));
	CHECK(is_zero(p + PAGE, 10 * PAGE) && p[0] == 1 && p[11 * PAGE] == 1);
	CHECK(!madvise(h + PAGE, 10 * PAGE - 7, MADV_DONTNEED));
	CHECK(is_zero(h + PAGE, 10 * PAGE) && h[0] == 1 && h[11 * PAGE] == 1);
	CHECK(!madvise(p, PAGE, MADV_FREE));
	p[1] = 3;
	CHECK_EQ(p[1], 3);
	CHECK(!mprotect(p, MIB, PROT_NONE) && !is_there(p));
	CHECK(!madvise(p, MIB, MADV_DONTNEED));
	CHECK(!mprotect(p, MIB, PROT_READ | PROT_WRITE) && is_zero(p, MIB));
	CHECK(!mprotect(h, MIB, PROT_NONE));
	free(h); /* protected: the next one is not */
	h = memalign(PAGE, MIB);
	memset(h, 1, MIB);
	CHECK(!munmap(h + MIB / 2, MIB / 2)); /* a hole, up to which the call has its effect */
	CHECK(mprotect(h, MIB, PROT_NONE) == -1 && errno == ENOMEM);
	free(h);
	h = memalign(PAGE, MIB / 2);
	memset(h, 1, MIB / 2);
	free(h);
	CHECK(!mlock(p, PAGE) && !madvise(p, PAGE, 24 /* MADV_DONTNEED_LOCKED */) && !munlock(p, PAGE));
	CHECK(munmap(p, 1ul << 47) == -1 && errno == EINVAL && is_there(p));
	CHECK(!munmap(p, MIB));
}

static void moved(void)
{
	uint8_t *p = map(MIB), *q, *there = map(4 * MIB);

	kit_fill(p, MIB, 3);
	q = mremap(p, MIB, 3 * MIB, MREMAP_MAYMOVE);
	CHECK(kit_filled(q, MIB, 3) == MIB && is_zero(q + MIB, 2 * MIB) && kit_in_buffers(q, 3 * MIB) == 1);
	CHECK(mremap(q, 3 * MIB, MIB / 2, 0) == q && !is_there(q + MIB / 2));
	/* To a place of the program's own choice. */
	p = mremap(q, MIB / 2, MIB / 2, MREMAP_MAYMOVE | MREMAP_FIXED, there + MIB);
	CHECK(p == there + MIB && kit_filled(p, MIB / 2, 3) == MIB / 2 && !is_there(q));
	CHECK(!munmap(there, 4 * MIB) && !is_there(p));
}

static void memory_goes_back(void)
{
	size_t before = shared_resident();
	void *h = memalign(PAGE, 64 * MIB), *p = map(64 * MIB);

	memset(h, 1, 64 * MIB);
	memset(p, 1, 64 * MIB);
	CHECK(shared_resident() > before + 120 * (size_t)MIB);
	free(h);
	CHECK(!munmap(p, 64 * MIB));
	CHECK(shared_resident() < before + 20 * (size_t)MIB, "%zu KiB more",
	      (shared_resident() - before) / 1024);
	for (int i = 0; i < 1000; i++) {
		h = memalign(PAGE, MIB);
		memset(h, 1, MIB);
		free(h);
	}
	CHECK(shared_resident() < before + 20 * (size_t)MIB);
}

static void *churn(void *arg)
{
	unsigned seed = (unsigned)(uintptr_t)arg;
	uint8_t *held[16] = {NULL};

	for (int i = 0; i < 20000; i++) {
		int k = (int)(rand_r(&seed) % 16);
		size_t size = PAGE * (1 + (size_t)rand_r(&seed) % 8);

		if (held[k]) {
			CHECK_EQ(held[k][PAGE - 1], (uint8_t)(k + 1));
			free(held[k]);
		}
		held[k] = memalign(PAGE, size);
		held[k][PAGE - 1] = (uint8_t)(k + 1);
	}
	for (int k = 0; k < 16; k++)
		free(held[k]);
	return NULL;
}

static void threads(void)
{
	pthread_t t[4];

	for (uintptr_t i = 0; i < 4; i++)
		CHECK(!pthread_create(&t[i], NULL, churn, (void *)(i + 1)));
	for (int i = 0; i < 20; i++) {
		pid_t pid = kit_fork();

		if (!pid) {
			free(memalign(PAGE, MIB));
			_exit(0);
		}
		CHECK_EQ(kit_reap(pid), 0);
	}
	for (int i = 0; i < 4; i++)
		pthread_join(t[i], NULL);
}

static atomic_int rung;

static void on_signal(int sig)
{
	void *p = map(MIB);

	(void)sig;
	*(char *)p = 1;
	munmap(p, MIB);
	atomic_fetch_add(&rung, 1);
}

/* A handler that interrupts an allocation allocates, too. */
static void signals(void)
{
	struct itimerval often = {{0, 100}, {0, 100}}, never = {{0, 0}, {0, 0}};
	struct sigaction act = {.sa_handler = on_signal, .sa_flags = SA_RESTART};

	CHECK(!sigaction(SIGALRM, &act, NULL) && !setitimer(ITIMER_REAL, &often, NULL));
	while (atomic_load(&rung) < 1000) {
		free(memalign(PAGE, 10 * PAGE));
		munmap(map(MIB), MIB);
	}
	CHECK(!setitimer(ITIMER_REAL, &never, NULL));
}

/* ---- fork ---- */

static uint8_t *fork_map, *fork_heap;

static void in_handler(void)
{
	fork_map[0] = 77;
}

static void forked(void)
{
	uint8_t *kept = map(MIB), *wiped = map(MIB), *dead = map(MIB);
	pid_t pid;

	fork_map = map(MIB);
	fork_heap = memalign(PAGE, MIB);
	kit_fill(fork_map, MIB, 1);
	kit_fill(fork_heap, MIB, 2);
	memset(wiped, 1, MIB);
	memset(kept, 9, MIB);
	CHECK(!madvise(wiped, MIB, MADV_WIPEONFORK) && !madvise(dead, MIB, MADV_DONTFORK));
	CHECK(!mprotect(kept, MIB, PROT_READ));
	CHECK(!pthread_atfork(NULL, NULL, in_handler));
	pid = kit_fork();
	if (!pid) {
		CHECK_EQ(fork_map[0], 77);
		fork_map[0] = kit_byte(0, 1);
		CHECK(kit_filled(fork_map, MIB, 1) == MIB && kit_filled(fork_heap, MIB, 2) == MIB);
		CHECK(is_zero(wiped, MIB) && !is_there(dead) && kept[5] == 9 && !is_there(kept));
		CHECK(kit_in_buffers(fork_map, MIB) == 0 && kit_in_buffers(fork_heap, MIB) == 0);
		memset(fork_map, 4, MIB);
		memset(fork_heap, 4, MIB);
		CHECK_EQ(malloc_usable_size(fork_heap), MIB);
		fork_heap = realloc(fork_heap, 2 * MIB);
		CHECK_EQ(fork_heap[MIB - 1], 4);
		CHECK(!madvise(fork_map, PAGE, MADV_DONTNEED) && is_zero(fork_map, PAGE));
		CHECK(!munmap(fork_map, MIB) && !is_there(fork_map));
		CHECK(kit_in_buffers(map(MIB), MIB) == 1);
		free(fork_heap);
		_exit(0);
	}
	CHECK_EQ(kit_reap(pid), 0);
	CHECK(kit_filled(fork_map, MIB, 1) == MIB && kit_filled(fork_heap, MIB, 2) == MIB);
}

/* The kernel places the child's memory where its parent's was. */
static void where_it_was(void)
{
	uint8_t *first = memalign(PAGE, MIB), *big = realloc(memalign(PAGE, 400 * MIB), PAGE), *p;
	pid_t pid;

	memset(first, 1, MIB);
	CHECK(kit_in_buffers(big, PAGE) == 1);
	pid = kit_fork();
	if (!pid) {
		p = memalign(PAGE, MIB);
		CHECK(p > big && p < big + 400 * MIB, "%p, not from %p on", (void *)p, (void *)big);
		CHECK(kit_in_buffers(p, MIB) == 1);
		free(p);
		CHECK(kit_in_buffers(memalign(PAGE, MIB), MIB) == 1);
		free(big);
		_exit(0);
	}
	CHECK_EQ(kit_reap(pid), 0);
}

static void wiped_again(void)
{
	uint8_t *p = map(MIB);
	pid_t pid;

	CHECK(!madvise(p, MIB, MADV_WIPEONFORK));
	memset(p, 1, MIB);
	pid = kit_fork();
	if (!pid) {
		memset(p, 7, MIB);
		pid = kit_fork();
		if (!pid)
			_exit(!is_zero(p, MIB));
		_exit(kit_reap(pid) != 0);
	}
	CHECK_EQ(kit_reap(pid), 0);
}

/* A child that dies at once, and one that stops, hold up nobody. */
static void children_that_die(void)
{
	uint8_t *p = map(16 * MIB);
	pid_t pid;

	memset(p, 1, 16 * MIB);
	for (int i = 0; i < 50; i++) {
		pid = fork();
		if (!pid)
			pause();
		CHECK(pid > 0 && !kill(pid, SIGKILL));
		kit_reap(pid);
		p[i]++;
	}
	CHECK(p[0] == 2 && p[60] == 1);
}

/* Parent and child both go on where fork() was called, and each has a stack of its own. */
static void fork_here(void)
{
	volatile uint8_t mine[2 * PAGE];
	pid_t pid;

	memset((void *)mine, 1, sizeof(mine));
	pid = fork();
	memset((void *)mine, pid ? 2 : 3, sizeof(mine));
	if (!pid)
		_exit(!(mine[0] == 3 && mine[sizeof(mine) - 1] == 3));
	CHECK(pid > 0);
	CHECK_EQ(kit_reap(pid), 0);
	CHECK(mine[0] == 2 && mine[sizeof(mine) - 1] == 2);
}

static void *fork_in_a_thread(void *arg)
{
	pthread_t me = pthread_self();

	(void)arg;
	fork_here();
	CHECK(!pthread_kill(me, 0)); /* what the C library knows of it is the parent's still */
	return NULL;
}

static void fork_in_a_handler(int sig)
{
	(void)sig;
	fork_here();
}

static void fork_on_such_a_stack(void)
{
	struct sigaction act = {.sa_handler = fork_in_a_handler, .sa_flags = SA_ONSTACK};
	static ucontext_t back, there;
	static stack_t stack = {.ss_size = MIB};

	stack.ss_sp = map(MIB);
	CHECK(!getcontext(&there));
	there.uc_stack = stack;
	there.uc_link = &back;
	makecontext(&there, fork_here, 0);
	CHECK(!swapcontext(&back, &there));
	CHECK(!sigaltstack(&stack, NULL) && !sigaction(SIGUSR1, &act, NULL) && !raise(SIGUSR1));
	CHECK(kit_in_buffers(stack.ss_sp, MIB) == 1);
}

/* Memory that is to be a thread's stack becomes private. */
static void fork_in_such_a_thread(void)
{
	pthread_attr_t attr;
	uint8_t *stack;
	pthread_t t;

	for (int i = 0; i < 2; i++) {
		stack = i ? map(MIB) : memalign(PAGE, MIB);
		kit_fill(stack, MIB, 1);
		CHECK(!pthread_attr_init(&attr) && !pthread_attr_setstack(&attr, stack, MIB));
		CHECK(kit_in_buffers(stack, MIB) == 0 && kit_filled(stack, MIB, 1) == MIB);
		CHECK(!pthread_create(&t, &attr, fork_in_a_thread, NULL) && !pthread_join(t, NULL));
		if (i)
			CHECK(!munmap(stack, MIB));
		else
			free(stack);
		CHECK(kit_in_buffers(stack = i ? map(MIB) : memalign(PAGE, MIB), MIB) == 1);
		memset(stack, 1, MIB);
	}
}

static atomic_bool is_writing;

/* The C library holds its lock of all streams meanwhile, for which fork() waits.  The allocation that comes
 * then is ordinary memory. */
static ssize_t write_and_allocate(void *cookie, const char *text, size_t size)
{
	bool shared;
	void *p;

	(void)cookie, (void)text;
	atomic_store(&is_writing, true);
	do {
		p = memalign(PAGE, PAGE);
		shared = kit_in_buffers(p, PAGE) == 1;
		free(p);
	} while (shared);
	return (ssize_t)size;
}

static void *flush_all(void *arg)
{
	(void)arg;
	fflush(NULL);
	return NULL;
}

static void fork_while_streams_are_written(void)
{
	cookie_io_functions_t io = {.write = write_and_allocate};
	FILE *f = fopencookie(NULL, "w", io);
	uint8_t *p = map(MIB);
	pthread_t t;
	pid_t pid;

	memset(p, 1, MIB);
	CHECK(f && fputc('x', f) == 'x' && !pthread_create(&t, NULL, flush_all, NULL));
	while (!atomic_load(&is_writing))
		sched_yield();
	alarm(20);
	pid = kit_fork();
	if (!pid)
		_exit(p[MIB - 1] != 1);
	CHECK(!kit_reap(pid) && !pthread_join(t, NULL));
	CHECK(kit_in_buffers(map(MIB), MIB) == 1);
}

/* The child has no memory for its copy: it ends with a sentence, and its parent goes on. */
static void no_memory_for_a_child(void)
{
	struct rlimit none = {0, RLIM_INFINITY}, all;
	int pipes[2], status, err = dup(STDERR_FILENO);
	char text[1024] = "";
	uint8_t *p = map(64 * MIB);
	pid_t pid;

	memset(p, 1, 64 * MIB);
	CHECK(!getrlimit(RLIMIT_AS, &all) && !setenv("VERBENA_LOG", "stderr", 1));
	none.rlim_cur = 64 * MIB + shared_resident();
	CHECK(!pipe(pipes) && dup2(pipes[1], STDERR_FILENO) == STDERR_FILENO && !setrlimit(RLIMIT_AS, &none));
	pid = fork();
	if (!pid)
		_exit(0);
	CHECK(!setrlimit(RLIMIT_AS, &all) && dup2(err, STDERR_FILENO) == STDERR_FILENO);
	status = kit_reap(pid);
	CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 125, "0x%x", status);
	CHECK(read(pipes[0], text, sizeof(text) - 1) > 0);
	CHECK(strstr(text, "fork(): this child process ends") && strstr(text, "no memory") &&
		  strstr(text, "without --share-buffers"),
	      "%s", text);
	CHECK(p[64 * MIB - 1] == 1);
	CHECK(kit_in_buffers(map(MIB), MIB) == 1);
}

static void spawned(void)
{
	uint8_t *p = map(MIB);
	char *argv[] = {"true", NULL};
	pid_t pid;

	memset(p, 1, MIB);
	CHECK(!posix_spawn(&pid, "/bin/true", NULL, NULL, argv, environ) && !kit_reap(pid));
	CHECK(!system("true"));
	/* A bare clone() shares it: it may read and write, and takes no memory of its own from there. */
	pid = (pid_t)syscall(SYS_clone, SIGCHLD, NULL, NULL, NULL, 0);
	if (!pid) {
		p[1] = 2;
		_exit(kit_in_buffers(map(MIB), MIB) != 0);
	}
	CHECK(!kit_reap(pid) && p[1] == 2);
}

/* ---- what is missing ---- */

static void no_descriptors(void)
{
	struct rlimit r = {0, 0}, was;
	uint8_t *p = map(MIB), *q;
	pid_t pid;

	memset(p, 1, MIB);
	CHECK(!getrlimit(RLIMIT_NOFILE, &was));
	r.rlim_max = was.rlim_max;
	CHECK(!setrlimit(RLIMIT_NOFILE, &r));
	q = map(128 * MIB); /* a new arena would be needed */
	memset(q, 1, MIB);
	CHECK(!munmap(q, 128 * MIB));
	pid = kit_fork();
	if (!pid) {
		q = map(MIB);
		memset(q, 1, MIB);
		_exit(p[MIB - 1] != 1);
	}
	CHECK_EQ(kit_reap(pid), 0);
	CHECK(!setrlimit(RLIMIT_NOFILE, &was));
	CHECK(kit_in_buffers(q = map(128 * MIB), 128 * MIB) == 1 && !munmap(q, 128 * MIB));
}

/* None is left for the arena above those of the program: 0 to 2 stay the program's. */
static void few_descriptors(void)
{
	struct rlimit r = {256, 256};
	uint8_t *p;

	CHECK(!setrlimit(RLIMIT_NOFILE, &r));
	close(0);
	p = map(MIB);
	CHECK(kit_in_buffers(p, MIB) == 0);
	CHECK_EQ(open("/dev/null", O_RDONLY), 0);
}

static void little_data(void)
{
	struct rlimit r = {100 * MIB, 100 * MIB};

	CHECK(!setrlimit(RLIMIT_DATA, &r));
	CHECK(mmap(NULL, 200 * MIB, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0) ==
	      MAP_FAILED);
	CHECK_EQ(errno, ENOMEM);
}

static void no_long_files(void)
{
	struct rlimit r = {MIB, RLIM_INFINITY};
	uint8_t *p;

	CHECK(!setrlimit(RLIMIT_FSIZE, &r));
	p = map(MIB);
	memset(p, 1, MIB);
	CHECK(kit_in_buffers(p, MIB) == 0 && !munmap(p, MIB));
	p = memalign(PAGE, MIB);
	memset(p, 1, MIB);
	CHECK(kit_in_buffers(p, MIB) == 0);
	free(p);
}

/* As daemons do. Their numbers are those of another file then. */
static void closed_descriptors(void)
{
	uint8_t *p = map(MIB), *q = memalign(PAGE, MIB), *theirs;
	int other;
	pid_t pid;

	kit_fill(p, MIB, 1);
	kit_fill(q, MIB, 2);
	for (int fd = 3; fd < 1024; fd++)
		close(fd);
	other = memfd_create("other", 0);
	CHECK(other >= 0 && !ftruncate(other, 64 * MIB));
	theirs = mmap(NULL, 4 * MIB, PROT_READ | PROT_WRITE, MAP_SHARED, other, 0);
	CHECK(theirs != MAP_FAILED);
	kit_fill(theirs, 4 * MIB, 3);
	for (int fd = 512; fd < 900; fd++)
		CHECK(dup2(other, fd) == fd);
	pid = kit_fork();
	if (!pid)
		_exit(kit_filled(p, MIB, 1) != MIB || kit_filled(q, MIB, 2) != MIB);
	CHECK_EQ(kit_reap(pid), 0);
	CHECK(!madvise(p, PAGE, MADV_DONTNEED) && is_zero(p, PAGE));
	free(q);
	CHECK(!munmap(p, MIB));
	CHECK(kit_in_buffers(p = map(MIB), MIB) == 1 && is_zero(p, MIB));
	CHECK_EQ(kit_filled(theirs, 4 * MIB, 3), 4 * MIB);
}

/* A process can have so many mappings (vm.max_map_count).  What then cannot be reserved is protected still,
 * and is mapped anew before it is given out. */
static void no_mappings(void)
{
	enum { MOST = 70000 };
	uint8_t *p = memalign(PAGE, MIB), *q;
	static void *filler[MOST];
	int n = 0;

	memset(p, 1, MIB);
	CHECK(!mprotect(p + 2 * PAGE, PAGE, PROT_NONE));
	do
		filler[n] =
		    mmap(NULL, PAGE, n % 2 ? PROT_READ : PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	while (filler[n] != MAP_FAILED && ++n < MOST);
	if (n == MOST)
		printf("no_mappings: not tried, since a process may have more than %d\n", MOST);
	free(p);
	while (n--)
		CHECK(!munmap(filler[n], PAGE));
	q = memalign(PAGE, MIB);
	CHECK(p == q && kit_in_buffers(q, MIB) == 1);
	memset(q, 2, MIB);
}

/* Without its descriptors, and any for others: what is mapped, and how, is known from the calls. */
static void closed_for_good(void)
{
	struct rlimit none = {0, 0};
	uint8_t *p = map(4 * MIB), *h = memalign(PAGE, MIB);
	pid_t pid;

	kit_fill(p, 4 * MIB, 1);
	kit_fill(h, MIB, 2);
	CHECK(!mprotect(p + MIB, PAGE, PROT_NONE) && !mprotect(p + MIB + PAGE, PAGE, PROT_READ));
	CHECK(!madvise(p + 2 * MIB, PAGE, MADV_WIPEONFORK) && !madvise(p + 3 * MIB, PAGE, MADV_DONTFORK));
	CHECK(!munmap(p + 3 * MIB + PAGE, PAGE));
	for (int fd = 3; fd < 1024; fd++)
		close(fd);
	CHECK(!setrlimit(RLIMIT_NOFILE, &none));
	pid = fork();
	if (!pid) {
		const uint8_t *q = p + 3 * MIB + 2 * PAGE;
		bool good = kit_filled(p, MIB, 1) == MIB && kit_filled(h, MIB, 2) == MIB &&
			    is_zero(p + 2 * MIB, PAGE) && p[2 * MIB + PAGE] == kit_byte(2 * MIB + PAGE, 1) &&
			    p[MIB + PAGE] == kit_byte(MIB + PAGE, 1) && *q == kit_byte(3 * MIB + 2 * PAGE, 1);

		good =
		    good && mremap(p + MIB, PAGE, PAGE, 0) == p + MIB && !mprotect(p + MIB, PAGE, PROT_READ);
		_exit(!(good && p[MIB] == kit_byte(MIB, 1)));
	}
	CHECK(pid > 0);
	CHECK_EQ(kit_reap(pid), 0);
	pid = fork();
	if (!pid)
		*(volatile uint8_t *)(p + MIB + PAGE) = 1;
	CHECK_EQ(WTERMSIG(kit_reap(pid)), SIGSEGV);
}

static void deny(int call)
{
	struct sock_filter text[] = {
	    BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
	    BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, (unsigned)call, 0, 1),
	    BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | EPERM),
	    BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
	};
	struct sock_fprog filter = {sizeof(text) / sizeof(text[0]), text};

	CHECK(!prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) &&
	      !prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &filter));
}

/* In a sandbox that denies one call that we make, memory is as it should be. */
static void denied(void)
{
	static const int calls[] = {SYS_pread64, SYS_lseek,	SYS_newfstatat, SYS_openat,	  SYS_fcntl,
				    SYS_mremap,	 SYS_fallocate, SYS_ftruncate,	SYS_memfd_create, SYS_munmap};

	for (size_t i = 0; i < sizeof(calls) / sizeof(calls[0]); i++) {
		pid_t pid = kit_fork();

		if (!pid) {
			uint8_t *p = map(MIB), *h;

			kit_fill(p, MIB, 1);
			deny(calls[i]);
			h = memalign(PAGE, MIB);
			kit_fill(h, MIB, 2);
			pid = fork();
			if (!pid)
				_exit(kit_filled(p, MIB, 1) != MIB || kit_filled(h, MIB, 2) != MIB);
			CHECK(!kit_reap(pid), "system call %d", calls[i]);
			free(h);
			munmap(p, MIB);
			CHECK(is_zero(map(MIB), MIB), "system call %d", calls[i]);
			_exit(0);
		}
		CHECK_EQ(kit_reap(pid), 0);
	}
}

static const struct {
	const char *name;
	void (*fn)(void);
} cases[] = {
    {"aligned", aligned},
    {"wrong_numbers", wrong_numbers},
    {"reallocated", reallocated},
    {"mapped", mapped},
    {"advised", advised},
    {"moved", moved},
    {"memory_goes_back", memory_goes_back},
    {"threads", threads},
    {"signals", signals},
    {"forked", forked},
    {"where_it_was", where_it_was},
    {"wiped_again", wiped_again},
    {"children_that_die", children_that_die},
    {"fork_on_such_a_stack", fork_on_such_a_stack},
    {"fork_in_such_a_thread", fork_in_such_a_thread},
    {"fork_while_streams_are_written", fork_while_streams_are_written},
    {"no_memory_for_a_child", no_memory_for_a_child},
    {"spawned", spawned},
    {"no_descriptors", no_descriptors},
    {"few_descriptors", few_descriptors},
    {"little_data", little_data},
    {"no_long_files", no_long_files},
    {"closed_descriptors", closed_descriptors},
    {"no_mappings", no_mappings},
    {"closed_for_good", closed_for_good},
    {"denied", denied},
};

int main(int argc, char **argv)
{
	int bad = 0;

	kit_buffers_begin(argv);
	for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
		pid_t pid;
		int status;

		if (argc > 1 && strcmp(argv[1], cases[i].name))
			continue;
		pid = kit_fork();
		if (!pid) {
			cases[i].fn();
			_exit(0);
		}
		status = kit_reap(pid);
		printf("%s: %s\n", cases[i].name, status ? "FAILED" : "ok");
		bad += status != 0;
	}
	return bad != 0;
}
