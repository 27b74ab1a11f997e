/* Copies into application memory: every byte right, and the last ones last. */
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <signal.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/ptrace.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

#include "base/lock.h"
#include "mem/copy.h"

static void copies_every_byte_and_no_other(void **state)
{
	uint8_t src[96], dst[128] __attribute__((aligned(64))), want[128];

	(void)state;
	for (size_t i = 0; i < sizeof src; i++)
		src[i] = (uint8_t)(i * 7 + 1);
	for (size_t off = 0; off < 16; off++) {
		for (size_t from = 0; from < 8; from++) {
			for (size_t n = 0; n <= 72; n++) {
				memset(dst, 0xee, sizeof dst);
				memset(want, 0xee, sizeof want);
				memcpy(want + off, src + from, n);
				assert_true(vb_copy_to_app(dst + off, src + from, n));
				assert_memory_equal(dst, want, sizeof dst);
				memset(dst, 0xee, sizeof dst);
				assert_true(vb_copy_from_app(dst + off, src + from, n));
				assert_memory_equal(dst, want, sizeof dst);
			}
		}
	}
}

/* A reader that polls the last byte of a buffer, as ib_write_lat does, then finds all of it. */
enum { SIZE = 4096, ROUNDS = 3000, UNIT = 8 };

struct polled {
	uint8_t *buf;
	size_t len;
	_Atomic uint32_t taken;
	_Atomic uint32_t torn;
};

static void *poll_last_byte(void *arg)
{
	struct polled *p = arg;

	for (uint32_t round = 1; round <= ROUNDS; round++) {
		uint8_t mark = (uint8_t)round;

		while (__atomic_load_n(p->buf + p->len - 1, __ATOMIC_ACQUIRE) != mark)
			sched_yield();
		for (size_t i = 0; i < p->len; i++)
			if (__atomic_load_n(p->buf + i, __ATOMIC_RELAXED) != mark)
				atomic_fetch_add(&p->torn, 1);
		atomic_store(&p->taken, round);
	}
	return NULL;
}

#if defined(__SANITIZE_THREAD__)
#define RACE_DETECTOR 1
#elif defined(__has_feature)
#if __has_feature(thread_sanitizer)
#define RACE_DETECTOR 1
#endif
#endif

static void last_byte_is_last(void **state)
{
#ifdef RACE_DETECTOR
	skip(); /* it does not know that a load of one byte can read from a store of eight */
#endif
	static const size_t offsets[][2] = {{0, SIZE}, {3, SIZE - 9}, {8, 24}, {5, 13}, {0, 8}};

	(void)state;
	for (size_t k = 0; k < sizeof offsets / sizeof *offsets; k++) {
		uint8_t *area = aligned_alloc(64, SIZE + 64), src[SIZE];
		struct polled p = {.buf = area + offsets[k][0], .len = offsets[k][1]};
		pthread_t t;

		memset(area, 0, SIZE + 64);
		assert_int_equal(pthread_create(&t, NULL, poll_last_byte, &p), 0);
		for (uint32_t round = 1; round <= ROUNDS; round++) {
			memset(src, (uint8_t)round, p.len);
			vb_copy_to_app(p.buf, src, p.len);
			while (atomic_load(&p.taken) != round)
				sched_yield();
		}
		pthread_join(t, NULL);
		assert_int_equal(p.torn, 0);
		free(area);
	}
}

/* A tail that fits an aligned word is never seen in parts. */
static _Atomic bool stop;

static void *look_for_halves(void *arg)
{
	uint64_t *word = arg;
	uintptr_t torn = 0;

	while (!atomic_load_explicit(&stop, memory_order_relaxed)) {
		uint64_t v = __atomic_load_n(word, __ATOMIC_RELAXED);

		torn += v != 0 && v != UINT64_MAX;
	}
	return (void *)torn;
}

static void aligned_words_are_one_store(void **state)
{
	uint64_t words[8] __attribute__((aligned(64))) = {0};
	uint8_t ones[16], zeros[16] = {0};
	void *torn;
	pthread_t t;

	(void)state;
	memset(ones, 0xff, sizeof ones);
	assert_int_equal(pthread_create(&t, NULL, look_for_halves, &words[1]), 0);
	for (int i = 0; i < 200000; i++) {
		/* ends behind words[1]: first alone, then as the tail of 13 bytes */
		size_t n = i & 2 ? 13 : 8;

		vb_copy_to_app((uint8_t *)&words[2] - n, i & 1 ? ones : zeros, n);
	}
	atomic_store(&stop, true);
	pthread_join(t, &torn);
	assert_ptr_equal(torn, NULL);
}

/* What every observer may see of a copy at any moment, whatever its timing: a child copies, and its parent
 * looks after each of its instructions. */
enum { STEP_OFFS = 8, STEP_LENS = 40 };

struct stepped {
	_Alignas(64) uint8_t dst[64];
	volatile bool copying;
	uint32_t off, len; /* of the copy in hand */
};

/* All bytes of [from, to) are there, or none; *some: at least one is. */
static bool all_or_none(const struct stepped *s, size_t from, size_t to, bool *some)
{
	size_t there = 0;

	for (size_t i = from; i < to; i++)
		there += s->dst[i] != 0;
	*some = there != 0;
	return !there || there == to - from;
}

static void check_step(const struct stepped *s)
{
	size_t end = s->off + s->len, word = (end - 1) & ~(size_t)7, tail = word > s->off ? word : s->off;
	bool some, last, whole = all_or_none(s, s->off, end - 1, &some), body;

	/* the last byte comes last of all */
	all_or_none(s, end - 1, end, &last);
	assert_true(!last || s->len == 1 || (whole && some));
	/* the last aligned word begins when everything before it is there */
	all_or_none(s, tail, end, &some);
	whole = all_or_none(s, s->off, tail, &body);
	assert_true(!some || tail == s->off || (whole && body));
	/* what is aligned within it is never seen in parts */
	for (size_t size = 2; size <= 8; size *= 2)
		for (size_t at = (tail + size - 1) & ~(size - 1); at + size <= end; at += size)
			assert_true(all_or_none(s, at, at + size, &some));
}

static void copy_traced(struct stepped *s)
{
	uint8_t src[STEP_LENS];

	memset(src, 0xff, sizeof src);
	prctl(PR_SET_PDEATHSIG, SIGKILL);
	if (ptrace(PTRACE_TRACEME, 0, NULL, NULL))
		_exit(77);
	for (s->off = 0; s->off < STEP_OFFS; s->off++)
		for (s->len = 1; s->len <= STEP_LENS; s->len++) {
			memset(s->dst, 0, sizeof s->dst);
			s->copying = true;
			raise(SIGSTOP);
			if (!vb_copy_to_app(s->dst + s->off, src, s->len))
				_exit(1);
			s->copying = false;
		}
	_exit(0);
}

static void after_each_instruction(void **state)
{
	struct stepped *s = mmap(NULL, sizeof *s, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	int status, copies = 0;
	pid_t pid;

	(void)state;
	assert_ptr_not_equal(s, MAP_FAILED);
	pid = fork();
	assert_true(pid >= 0);
	if (!pid)
		copy_traced(s);
	while (waitpid(pid, &status, 0) == pid && WIFSTOPPED(status)) {
		copies += WSTOPSIG(status) == SIGSTOP;
		if (s->copying)
			check_step(s);
		if (ptrace(s->copying ? PTRACE_SINGLESTEP : PTRACE_CONT, pid, NULL, NULL))
			break;
	}
	assert_true(WIFEXITED(status));
	munmap(s, sizeof *s);
	if (WEXITSTATUS(status) == 77) {
		print_message("SKIP: no process may be traced here\n");
		return;
	}
	assert_int_equal(WEXITSTATUS(status), 0);
	assert_int_equal(copies, STEP_OFFS * STEP_LENS);
}

static void atomics_return_the_value_before(void **state)
{
	uint64_t word = 5, orig = 0;

	(void)state;
	assert_true(vb_atomic_cmp_swap(&word, 5, 9, &orig));
	assert_int_equal(orig, 5);
	assert_int_equal(word, 9);
	assert_true(vb_atomic_cmp_swap(&word, 5, 11, &orig));
	assert_int_equal(orig, 9);
	assert_int_equal(word, 9);
	assert_true(vb_atomic_fetch_add(&word, UINT64_MAX, &orig));
	assert_int_equal(orig, 9);
	assert_int_equal(word, 8);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
	    cmocka_unit_test(copies_every_byte_and_no_other),  cmocka_unit_test(last_byte_is_last),
	    cmocka_unit_test(aligned_words_are_one_store),     cmocka_unit_test(after_each_instruction),
	    cmocka_unit_test(atomics_return_the_value_before),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
