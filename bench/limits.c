/* What this machine allows at best: one round, a line per figure.  Two processes on two CPUs.
 *
 *   handover      ns, one cache line handed from one process to the other, one way
 *   eventfd       ns, a blocking eventfd ping-pong, one way
 *   relayed       ns, the same where in each process a thread hands on to the one that waits
 *   vm_OP_8       ns, process_vm_writev() or _readv() of 8 aligned bytes of the other process, asleep (one
 *                 piece: the kernel stores them as one)
 *   vm_OP_8_list  ns, the same for each of 16 that are gathered into one call
 *   vm_OP_bw_N    bytes a second of such calls of N bytes
 *   memcpy_bw_N   bytes a second of memcpy() of N bytes between two shared mappings
 *   cold_line     ns, one load from a line that no cache has, each after the one before
 *   held_up       how often a second a thread that reads the clock is held up for more than 2 us,
 *   held_up_share and for how many per cent of its time
 *   page_fault    ns, the first byte that is written to a page of new memory
 */
#include <pthread.h>
#include <stdatomic.h>
#include <sys/eventfd.h>
#include <sys/prctl.h>
#include <signal.h>
#include <sys/uio.h>
#include <sys/wait.h>

#include "common.h"

#define HANDOVERS 300000u
#define EVENTS	  20000u
#define CALLS	  50000u
#define VOLUME	  (512u << 20)
#define LAPS	  10u
#define WATCHED	  1e9 /* ns */
#define HELD_UP	  2e3

struct shared {
	_Atomic uint32_t to __attribute__((aligned(256)));
	_Atomic uint32_t from __attribute__((aligned(256)));
	char *far; /* the other process's buffer */
	int fd[4]; /* to the other process, from it; and the same from a thread that hands on */
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

struct relay {
	int from, to;
};

static void *hand_on(void *arg)
{
	const struct relay *r = arg;

	unpin();
	for (unsigned i = 0; i < EVENTS; i++) {
		wait_fd(r->from);
		signal_fd(r->to);
	}
	return NULL;
}

static pthread_t start_relay(struct relay *r)
{
	pthread_t t;

	errno = pthread_create(&t, NULL, hand_on, r);
	if (errno)
		die("pthread_create");
	return t;
}

static void echo(struct shared *s)
{
	struct relay r = {s->fd[0], s->fd[2]};
	pthread_t t;
	int none;

	prctl(PR_SET_PDEATHSIG, SIGKILL);
	s->far = buffer(false, &none);
	pin(1);
	for (uint32_t i = 1; i <= HANDOVERS; i++) {
		while (atomic_load_explicit(&s->to, memory_order_acquire) != i)
			;
		atomic_store_explicit(&s->from, i, memory_order_release);
	}
	for (unsigned i = 0; i < EVENTS; i++) {
		wait_fd(s->fd[0]);
		signal_fd(s->fd[1]);
	}
	t = start_relay(&r);
	for (unsigned i = 0; i < EVENTS; i++) {
		wait_fd(s->fd[2]);
		signal_fd(s->fd[1]);
	}
	pthread_join(t, NULL);
	wait_fd(s->fd[0]); /* until the calls are done */
	_exit(0);
}

/* Half a ping-pong by eventfds. */
static double signals(int to, int from)
{
	struct laps t = {0};

	for (unsigned i = 0; i < EVENTS; i++) {
		if (i % (EVENTS / LAPS) == 0)
			lap(&t);
		signal_fd(to);
		wait_fd(from);
	}
	lap(&t);
	return t.least / (EVENTS / LAPS) / 2;
}

static void handover(struct shared *s)
{
	struct relay r = {s->fd[1], s->fd[3]};
	struct laps l = {0};
	pthread_t t;

	for (uint32_t i = 1; i <= HANDOVERS; i++) {
		if (i % (HANDOVERS / LAPS) == 1)
			lap(&l);
		atomic_store_explicit(&s->to, i, memory_order_release);
		while (atomic_load_explicit(&s->from, memory_order_acquire) != i)
			;
	}
	lap(&l);
	figure("handover", l.least / (HANDOVERS / LAPS) / 2);
	figure("eventfd", signals(s->fd[0], s->fd[1]));
	t = start_relay(&r);
	figure("relayed", signals(s->fd[0], s->fd[3]));
	pthread_join(t, NULL);
}

/* ns of one call for `pieces` pieces of n bytes, 0 where the kernel does not allow it. */
static double call(pid_t peer, bool write, char *here, char *there, unsigned pieces, size_t n, unsigned count)
{
	struct iovec l[GATHER], r[GATHER];
	struct laps t = {0};

	for (unsigned i = 0; i < pieces; i++) {
		l[i] = (struct iovec){here + i * LINE, n};
		r[i] = (struct iovec){there + i * LINE, n};
	}
	for (unsigned i = 0; i < count / LAPS * LAPS; i++) {
		ssize_t k;

		if (i % (count / LAPS) == 0)
			lap(&t);
		k = write ? process_vm_writev(peer, l, pieces, r, pieces, 0)
			  : process_vm_readv(peer, l, pieces, r, pieces, 0);

		if (k != (ssize_t)(n * pieces))
			return 0;
	}
	lap(&t);
	return t.least / (count / LAPS);
}

static void calls(pid_t peer, bool write, char *there)
{
	const char *op = write ? "write" : "read";
	char name[32];
	int none;
	char *here = buffer(false, &none);
	double one = call(peer, write, here, there, 1, 8, CALLS);

	if (!one) {
		fprintf(stderr, "process_vm_%sv is not allowed here: %s\n", op, strerror(errno));
		goto unmap;
	}
	snprintf(name, sizeof(name), "vm_%s_8", op);
	figure(name, one);
	snprintf(name, sizeof(name), "vm_%s_8_list", op);
	figure(name, call(peer, write, here, there, GATHER, 8, CALLS / GATHER) / GATHER);
	for (size_t n = 65536; n <= BUFFER; n *= n == 65536 ? 16 : 4) {
		snprintf(name, sizeof(name), "vm_%s_bw_%zu", op, n);
		figure(name, (double)n * 1e9 / call(peer, write, here, there, 1, n, (unsigned)(VOLUME / n)));
	}
unmap:
	munmap(here, BUFFER);
}

static void copies(void)
{
	int from, to;
	char *a = buffer(true, &from), *b = buffer(true, &to), name[32];

	for (size_t n = 65536; n <= BUFFER; n *= n == 65536 ? 16 : 4) {
		size_t each = VOLUME / n / LAPS;
		struct laps t = {0};

		for (size_t i = 0; i < each * LAPS; i++) {
			if (i % each == 0)
				lap(&t);
			memcpy(b, a, n);
			__asm__ volatile("" : : "r"(b) : "memory");
		}
		snprintf(name, sizeof(name), "memcpy_bw_%zu", n);
		lap(&t);
		figure(name, (double)(each * n) * 1e9 / t.least);
	}
	munmap(a, BUFFER);
	munmap(b, BUFFER);
	close(from);
	close(to);
}

/* As much as the key table of a million regions is, in a walk that visits each line once at most. */
static void cold(void)
{
	uint64_t n = (64u << 20) / LINE, at = 0, loads = 1u << 16;
	struct laps t = {0};
	int fd = memfd_create("bench", MFD_CLOEXEC);
	volatile uint64_t *a;

	if (fd < 0 || ftruncate(fd, (off_t)(n * LINE)))
		die("memfd");
	a = mmap(NULL, n * LINE, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	if (a == MAP_FAILED)
		die("mmap");
	for (uint64_t i = 0; i < n; i++) /* full period: the multiplier is 1 mod 4, the increment odd */
		a[i * LINE / 8] = (i * 6364136223846793005ull + 1442695040888963407ull) % n;
	for (uint64_t i = 0; i < loads * LAPS; i++) {
		if (i % loads == 0)
			lap(&t);
		at = a[at * LINE / 8];
	}
	lap(&t);
	figure("cold_line", t.least / (double)loads);
	munmap((void *)a, n * LINE);
	close(fd);
}

/* The first byte that is written to a page. */
static void fault(void)
{
	size_t page = (size_t)sysconf(_SC_PAGESIZE), each = BUFFER / page;
	volatile char *a =
	    mmap(NULL, LAPS * BUFFER, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	struct laps t = {0};

	if (a == MAP_FAILED)
		die("mmap");
	madvise((void *)a, LAPS * BUFFER, MADV_NOHUGEPAGE);
	for (size_t i = 0; i < each * LAPS; i++) {
		if (i % each == 0)
			lap(&t);
		a[i * page] = 1;
	}
	lap(&t);
	figure("page_fault", t.least / (double)each);
	munmap((void *)a, LAPS * BUFFER);
}

/* How often a thread that does nothing but read the clock is held up, and for how much of its time: by the
 * kernel's ticks, and by the host of a virtual machine. */
static void interruptions(void)
{
	double began = now(), last = began, t = began, lost = 0;
	unsigned n = 0;

	while (t - began < WATCHED) {
		t = now();
		if (t - last > HELD_UP) {
			n++;
			lost += t - last;
		}
		last = t;
	}
	figure("held_up", n / (t - began) * 1e9);
	figure("held_up_share", 100 * lost / (t - began));
}

int main(void)
{
	struct shared *s = mmap(NULL, sizeof(*s), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	pid_t peer;

	if (s == MAP_FAILED)
		die("mmap");
	for (int i = 0; i < 4; i++) {
		s->fd[i] = eventfd(0, 0);
		if (s->fd[i] < 0)
			die("eventfd");
	}
	peer = fork();
	if (peer < 0)
		die("fork");
	if (!peer)
		echo(s);
	pin(0);
	handover(s);
	calls(peer, true, s->far);
	calls(peer, false, s->far);
	signal_fd(s->fd[0]);
	waitpid(peer, NULL, 0);
	copies();
	cold();
	fault();
	interruptions();
	return 0;
}
