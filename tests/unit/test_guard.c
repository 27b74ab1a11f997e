/* Guarded copies: whatever vanishes, and wherever in the range, they return false; every other fault is the
 * program's, exactly as if nobody stood in front of its handler. */
#include <errno.h>
#include <pthread.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

#include "bytes.h"
#include "mem/copy.h"
#include "mem/guard.h"

/* A sanitizer's runtime has views of its own on dying by a signal. */
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
enum { SANITIZED = 1 };
#else
enum { SANITIZED = 0 };
#endif

enum how { UNMAPPED, NO_ACCESS, READ_ONLY, TRUNCATED, HOWS };

/* Twelve pages of which those from `bad` on, but the last four, are as `how` says. */
enum { PAGES = 12, BAD = 4, GOOD_AGAIN = 8 };

static uint8_t *area_make(enum how how)
{
	size_t size = PAGES * PAGE;
	int fd = memfd_create("area", 0);
	uint8_t *p;

	assert_true(fd >= 0 && !ftruncate(fd, (off_t)size));
	p = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	assert_ptr_not_equal(p, MAP_FAILED);
	memset(p, 0x11, size);
	if (how == UNMAPPED)
		assert_int_equal(munmap(p + BAD * PAGE, (GOOD_AGAIN - BAD) * PAGE), 0);
	else if (how == TRUNCATED) /* SIGBUS; then all behind it is bad */
		assert_int_equal(ftruncate(fd, BAD * PAGE), 0);
	else
		assert_int_equal(mprotect(p + BAD * PAGE, (GOOD_AGAIN - BAD) * PAGE,
					  how == READ_ONLY ? PROT_READ : PROT_NONE),
				 0);
	close(fd);
	return p;
}

static void area_free(uint8_t *p)
{
	munmap(p, PAGES * PAGE);
}

/* cmocka sets handlers of its own around each test, and they replace ours as any later ones do. */
static void install(void)
{
	static struct sigaction ours[2];
	static bool done;

	vb_guard_install();
	sigaction(SIGSEGV, done ? &ours[0] : NULL, done ? NULL : &ours[0]);
	sigaction(SIGBUS, done ? &ours[1] : NULL, done ? NULL : &ours[1]);
	done = true;
}

static const size_t sizes[] = {1,   2,	 3,   4,   5,	7,    8,    9,	  13,	16,   17,   24,	  31,
			       32,  33,	 40,  63,  64,	65,   100,  128,  200,	255,  256,  257,  300,
			       384, 385, 449, 511, 600, 1024, 4096, 4097, 8191, 8192, 8200, 12345};

/* A range of n bytes that has bad bytes: the first only, the last only, in its middle, all. */
static uint8_t *place(uint8_t *area, size_t n, int where, size_t shift)
{
	uint8_t *bad = area + BAD * PAGE, *end = area + GOOD_AGAIN * PAGE;

	switch (where) {
	case 0: /* the last byte */
		return bad + 1 - n;
	case 1: /* the middle, or that byte */
		return bad - n / 2;
	case 2: /* the first byte */
		return end - 1;
	default:
		return bad + shift;
	}
}

static void copies_end_in_false(void **state)
{
	static uint8_t ours[16384 + 8];

	(void)state;
	install();
	for (int how = 0; how < HOWS; how++) {
		uint8_t *area = area_make((enum how)how);

		for (size_t k = 0; k < sizeof sizes / sizeof *sizes; k++) {
			for (int where = 0; where < 4; where++) {
				size_t n = sizes[k];
				uint8_t *p = place(area, n, where, k % 8);

				assert_false(vb_copy_to_app(p, ours + k % 3, n));
				assert_false(vb_copy_app(p, ours, n));
				assert_true(vb_copy_from_app(ours + k % 3, p, n) == (how == READ_ONLY));
				assert_true(vb_copy_app(ours, p, n) == (how == READ_ONLY));
			}
		}
		/* Ranges that end just before it are whole. */
		for (size_t k = 0; k < sizeof sizes / sizeof *sizes; k++) {
			uint8_t *p = area + BAD * PAGE - sizes[k];

			memset(ours, (int)k + 1, sizeof ours);
			assert_true(vb_copy_to_app(p, ours, sizes[k]));
			assert_memory_equal(p, ours, sizes[k]);
			memset(ours, 0, sizeof ours);
			assert_true(vb_copy_from_app(ours, p, sizes[k]));
			assert_memory_equal(p, ours, sizes[k]);
		}
		area_free(area);
	}
}

/* Nothing outside the range changes, whichever loop carries it. */
static void copies_are_exact(void **state)
{
	static uint8_t src[20000], dst[20000], want[20000];

	(void)state;
	for (size_t i = 0; i < sizeof src; i++)
		src[i] = (uint8_t)(i * 31 + (i >> 8));
	for (size_t k = 0; k < sizeof sizes / sizeof *sizes; k++) {
		for (size_t off = 0; off < 9; off++) {
			size_t n = sizes[k] + off * 17 % 23;

			memset(dst, 0xee, sizeof dst);
			memcpy(want, dst, sizeof want);
			memcpy(want + 64 + off, src + off * 3, n);
			assert_true(vb_copy_to_app(dst + 64 + off, src + off * 3, n));
			assert_memory_equal(dst, want, sizeof dst);
			memset(dst, 0xee, sizeof dst);
			assert_true(vb_copy_from_app(dst + 64 + off, src + off * 3, n));
			assert_memory_equal(dst, want, sizeof dst);
		}
	}
}

static void atomics_end_in_false(void **state)
{
	(void)state;
	install();
	for (int how = 0; how < HOWS; how++) {
		uint8_t *area = area_make((enum how)how), *word = area + BAD * PAGE;
		uint64_t orig = 77, v = 0;
		uint8_t b = 0;

		assert_false(vb_atomic_cmp_swap(word, 0x1111111111111111, 2, &orig));
		assert_false(vb_atomic_cmp_swap(word, 0, 2, &orig));
		assert_false(vb_atomic_fetch_add(word, 0, &orig));
		assert_int_equal(orig, 77);
		assert_false(vb_guard_store_8(word, 1));
		assert_true(vb_guard_load_8(word, &v) == (how == READ_ONLY));
		assert_true(vb_guard_load_1(word, &b) == (how == READ_ONLY));
		assert_true(vb_atomic_fetch_add(word - 8, 1, &orig));
		assert_true(vb_atomic_cmp_swap(word - 8, orig + 1, 9, &orig));
		assert_true(vb_guard_load_8(word - 8, &v) && v == 9);
		area_free(area);
	}
}

/* ---- the program's own faults; each in a child, with a handler that was there first ---- */

static volatile uint8_t *volatile wild;
static sigjmp_buf back;
static siginfo_t seen;
static sigset_t mask_seen;
static volatile int calls;

static void on_signal(int sig, siginfo_t *info, void *context)
{
	(void)sig;
	(void)context;
	calls++;
	seen = *info;
	pthread_sigmask(SIG_BLOCK, NULL, &mask_seen);
	siglongjmp(back, 1);
}

static void on_plain(int sig)
{
	calls += sig == SIGSEGV;
	mprotect((void *)(uintptr_t)wild, PAGE, PROT_READ | PROT_WRITE);
}

static void in_child(void (*body)(void), int want_signal)
{
	pid_t pid = fork();
	int status;

	assert_true(pid >= 0);
	if (!pid) {
		wild = mmap(NULL, PAGE, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
		body();
		_exit(0);
	}
	assert_int_equal(waitpid(pid, &status, 0), pid);
	if (want_signal) {
		assert_true(WIFSIGNALED(status));
		assert_int_equal(WTERMSIG(status), want_signal);
	} else {
		assert_true(WIFEXITED(status));
		assert_int_equal(WEXITSTATUS(status), 0);
	}
}

#define MUST(c)                                \
	do {                                   \
		if (!(c))                      \
			_exit(__LINE__ & 127); \
	} while (0)

static void vanishes(void)
{
	uint8_t *p = mmap(NULL, PAGE, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

	MUST(!vb_copy_to_app(p, "12345678", 8));
}

static void handler_as_from_the_kernel(void)
{
	struct sigaction act = {.sa_sigaction = on_signal, .sa_flags = SA_SIGINFO};

	sigaddset(&act.sa_mask, SIGUSR2);
	MUST(!sigaction(SIGSEGV, &act, NULL));
	vb_guard_install();
	vanishes();
	MUST(!calls);
	for (int i = 0; i < 3; i++) {
		if (!sigsetjmp(back, 1))
			wild[5] = 1;
		MUST(calls == i + 1);
		MUST(seen.si_signo == SIGSEGV && seen.si_code == SEGV_ACCERR && seen.si_addr == wild + 5);
		MUST(SANITIZED || (sigismember(&mask_seen, SIGUSR2) && sigismember(&mask_seen, SIGSEGV) &&
				   !sigismember(&mask_seen, SIGUSR1)));
	}
	/* one that somebody sent is not taken for a fault, wherever it comes */
	if (!sigsetjmp(back, 1))
		raise(SIGSEGV);
	MUST(calls == 4 && seen.si_code <= 0 && seen.si_pid == getpid());
	vanishes();
}

static void nodefer_and_plain(void)
{
	struct sigaction act = {.sa_handler = on_plain, .sa_flags = SA_NODEFER};

	MUST(!sigaction(SIGSEGV, &act, NULL));
	vb_guard_install();
	wild[0] = 7; /* the handler makes it accessible and returns */
	MUST(calls == 1 && wild[0] == 7);
	vanishes();
}

static void once(void)
{
	struct sigaction act = {.sa_handler = on_plain, .sa_flags = (int)(SA_RESETHAND)};

	MUST(!sigaction(SIGSEGV, &act, NULL));
	vb_guard_install();
	wild[0] = 7;
	MUST(calls == 1);
	vanishes();
	mprotect((void *)(uintptr_t)wild, PAGE, PROT_NONE);
	wild[0] = 8; /* now it is the default */
}

static void default_segv(void)
{
	signal(SIGSEGV, SIG_DFL);
	vb_guard_install();
	vanishes();
	wild[0] = 1;
}

static void default_bus(void)
{
	int fd = memfd_create("short", 0);
	volatile uint8_t *p;

	MUST(!ftruncate(fd, PAGE));
	p = mmap(NULL, PAGE, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	signal(SIGBUS, SIG_DFL);
	vb_guard_install();
	MUST(!ftruncate(fd, 0));
	MUST(!vb_copy_to_app((void *)(uintptr_t)p, "1", 1));
	p[0] = 1;
}

static void default_sent(void)
{
	signal(SIGSEGV, SIG_DFL);
	vb_guard_install();
	raise(SIGSEGV);
	pause();
}

static void ignored(void)
{
	signal(SIGSEGV, SIG_IGN);
	vb_guard_install();
	raise(SIGSEGV); /* that can be ignored */
	vanishes();
	wild[0] = 1; /* that cannot */
}

static void after_a_fork(void)
{
	pid_t pid;
	int status;

	vb_guard_install();
	pid = fork();
	vanishes();
	if (!pid)
		_exit(0);
	MUST(waitpid(pid, &status, 0) == pid && WIFEXITED(status) && !WEXITSTATUS(status));
}

static void programs_faults_are_its_own(void **state)
{
	(void)state;
	in_child(handler_as_from_the_kernel, 0);
	in_child(nodefer_and_plain, 0);
	in_child(after_a_fork, 0);
	if (SANITIZED)
		return;
	in_child(once, SIGSEGV);
	in_child(default_segv, SIGSEGV);
	in_child(default_bus, SIGBUS);
	in_child(default_sent, SIGSEGV);
	in_child(ignored, SIGSEGV);
}

/* ---- several threads at once ---- */

static void *fault_often(void *arg)
{
	uint8_t *area = arg, buf[600] = {0};
	uintptr_t bad = 0;
	uint64_t orig;

	for (int i = 0; i < 2000; i++) {
		bad += vb_copy_to_app(area + BAD * PAGE - 1 - i % 500, buf, 502);
		bad += vb_copy_from_app(buf, area + BAD * PAGE - 1 - i % 500, 502);
		bad += vb_atomic_fetch_add(area + BAD * PAGE, 1, &orig);
		bad += !vb_copy_to_app(area + (i & 1) * PAGE, buf, 600);
	}
	return (void *)bad;
}

static void threads_fault_at_once(void **state)
{
	uint8_t *areas[4];
	pthread_t t[4];
	void *bad;

	(void)state;
	install();
	for (int i = 0; i < 4; i++) {
		areas[i] = area_make(i & 1 ? TRUNCATED : UNMAPPED);
		assert_int_equal(pthread_create(&t[i], NULL, fault_often, areas[i]), 0);
	}
	for (int i = 0; i < 4; i++) {
		assert_int_equal(pthread_join(t[i], &bad), 0);
		assert_ptr_equal(bad, NULL);
		area_free(areas[i]);
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
	    cmocka_unit_test(programs_faults_are_its_own), /* before anything is installed here */
	    cmocka_unit_test(copies_end_in_false),	   cmocka_unit_test(copies_are_exact),
	    cmocka_unit_test(atomics_end_in_false),	   cmocka_unit_test(threads_fault_at_once),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
