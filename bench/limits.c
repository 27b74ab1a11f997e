/* What this machine allows at best: one round, a line per figure.  Two processes on two CPUs.
 *
 * handover         ns, one cache line handed from one process to the other, one way
 * eventfd          ns, a blocking eventfd ping-pong, one way
 * memcpy_N         ns, one copy of N bytes from shared into private memory
 * populate_N       ns, MADV_POPULATE_WRITE over N bytes that are present */
#include <stdatomic.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <signal.h>
#include <sys/wait.h>

#include "common.h"

#ifndef MADV_POPULATE_WRITE
#define MADV_POPULATE_WRITE 23
#endif

#define HANDOVERS 300000
#define EVENTS	  20000

struct shared {
	_Atomic uint32_t to __attribute__((aligned(256)));
	_Atomic uint32_t from __attribute__((aligned(256)));
};

static void signal_fd(int fd)
{
	uint64_t one = 1;

	if (write(fd, &one, sizeof(one)) != sizeof(one))
		die("eventfd write");
}

static void wait_fd(int fd)
{
	uint64_t n;

	if (read(fd, &n, sizeof(n)) != sizeof(n))
		die("eventfd read");
}

static void echo(struct shared *s, const int fd[2])
{
	prctl(PR_SET_PDEATHSIG, SIGKILL);
	pin(1);
	for (uint32_t i = 1; i <= HANDOVERS; i++) {
		while (atomic_load_explicit(&s->to, memory_order_acquire) != i)
			;
		atomic_store_explicit(&s->from, i, memory_order_release);
	}
	for (int i = 0; i < EVENTS; i++) {
		wait_fd(fd[0]);
		signal_fd(fd[1]);
	}
	_exit(0);
}

static void copies(size_t n)
{
	char *a = mmap(NULL, n, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	char *b = mmap(NULL, n, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	size_t count = (256u << 20) / n;
	char name[32];
	double t;

	if (a == MAP_FAILED || b == MAP_FAILED)
		die("mmap");
	memset(a, 1, n);
	memset(b, 2, n);
	t = now();
	for (size_t i = 0; i < count; i++) {
		memcpy(b, a, n);
		__asm__ volatile("" : : "r"(b) : "memory");
	}
	snprintf(name, sizeof(name), "memcpy_%zu", n);
	figure(name, (now() - t) / (double)count);
	munmap(a, n);
	munmap(b, n);
}

static void populate(size_t n)
{
	char *a = mmap(NULL, n, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	unsigned count = 0;
	char name[32];
	double t;

	if (a == MAP_FAILED)
		die("mmap");
	memset(a, 1, n);
	t = now();
	while (count < 3 || (now() - t < 10e6 && count < 20000)) {
		if (madvise(a, n, MADV_POPULATE_WRITE))
			break; /* a kernel before 5.14: no such limit */
		count++;
	}
	if (count) {
		snprintf(name, sizeof(name), "populate_%zu", n);
		figure(name, (now() - t) / count);
	}
	munmap(a, n);
}

int main(void)
{
	struct shared *s = mmap(NULL, sizeof(*s), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	int fd[2] = {eventfd(0, 0), eventfd(0, 0)};
	double t;
	pid_t peer;

	if (s == MAP_FAILED || fd[0] < 0 || fd[1] < 0)
		die("setup");
	peer = fork();
	if (peer < 0)
		die("fork");
	if (!peer)
		echo(s, fd);
	pin(0);
	t = now();
	for (uint32_t i = 1; i <= HANDOVERS; i++) {
		atomic_store_explicit(&s->to, i, memory_order_release);
		while (atomic_load_explicit(&s->from, memory_order_acquire) != i)
			;
	}
	figure("handover", (now() - t) / HANDOVERS / 2);
	t = now();
	for (int i = 0; i < EVENTS; i++) {
		signal_fd(fd[0]);
		wait_fd(fd[1]);
	}
	figure("eventfd", (now() - t) / EVENTS / 2);
	waitpid(peer, NULL, 0);
	copies(65536);
	copies(1 << 20);
	for (size_t n = 4096; n <= 256u << 20; n *= 16)
		populate(n);
	return 0;
}
