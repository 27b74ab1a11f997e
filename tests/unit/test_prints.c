/* Fingerprints of buffers (mem/prints.h): the program's changes are told once, the adapter's never. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include <cmocka.h>

#include "mem/guard.h"
#include "mem/prints.h"

enum { PAGE = 4096, LARGE = 3 * VB_PRINT_BLOCK + 100 };

static uint8_t *fresh(size_t size)
{
	uint8_t *p = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

	assert_ptr_not_equal(p, MAP_FAILED);
	return p;
}

static unsigned told;
static const void *told_owner;
static struct vb_print_change told_change;

static void changed(const void *owner, const struct vb_print *p, const struct vb_print_change *c)
{
	(void)p;
	told++;
	told_owner = owner;
	told_change = *c;
}

static struct vb_print *take(const uint8_t *p, size_t len, const void *owner)
{
	struct vb_print *print = vb_print_take((uintptr_t)p, len, owner, changed);

	assert_non_null(print);
	return print;
}

static void expect_same(struct vb_print *p)
{
	assert_int_equal(vb_print_look(p).found, VB_PRINT_SAME);
}

static void another_one_begins_anew(void **state)
{
	uint8_t *p = fresh(PAGE);
	struct vb_print *a = take(p, 100, p), *b;

	(void)state;
	told = 0;
	p[17] = 1;
	b = take(p, 100, p + 1);
	assert_ptr_equal(a, b);
	assert_int_equal(told, 1);
	assert_ptr_equal(told_owner, p);
	assert_int_equal(told_change.from, 17);
	expect_same(b);
	vb_print_drop(a, p);
	p[18] = 1;
	b = take(p, 100, p + 2); /* who has it has no name */
	assert_int_equal(told, 1);
	vb_print_drop(b, p + 2);
	vb_print_drop(b, p + 1);
	told = 0;
	munmap(p, PAGE);
}

static void a_change_is_told_once(void **state)
{
	uint8_t *p = fresh(PAGE);
	struct vb_print *a = take(p, 100, p);
	struct vb_print_change c;

	(void)state;
	expect_same(a);
	p[17] = 1;
	p[20] = 2;
	p[100] = 3; /* it is behind */
	c = vb_print_look(a);
	assert_int_equal(c.found, VB_PRINT_CHANGED);
	assert_int_equal(c.from, 17);
	assert_int_equal(c.to, 21);
	assert_int_equal(c.was, 0);
	assert_int_equal(c.is, 1);
	assert_false(c.block);
	expect_same(a);
	vb_print_drop(a, p);
}

static void a_block_is_named(void **state)
{
	uint8_t *p = fresh(LARGE);
	struct vb_print *a = take(p, LARGE, p);
	struct vb_print_change c;

	(void)state;
	expect_same(a);
	p[LARGE - 1] = 1;
	c = vb_print_look(a);
	assert_int_equal(c.found, VB_PRINT_CHANGED);
	assert_int_equal(c.from, 3 * VB_PRINT_BLOCK);
	assert_int_equal(c.to, LARGE);
	assert_true(c.block);
	expect_same(a);
	vb_print_drop(a, p);
}

/* Before, between and after: of a copy, and of blocks. */
static void the_adapter_writes(void **state)
{
	static const size_t lengths[] = {PAGE, LARGE};

	(void)state;
	for (unsigned i = 0; i < 2; i++) {
		uint8_t *p = fresh(LARGE);
		struct vb_print *a = take(p, lengths[i], p);

		vb_prints_write((uintptr_t)p + 10, 50, changed);
		memset(p + 10, 9, 50);
		expect_same(a);
		vb_prints_written((uintptr_t)p + 10, 50);
		expect_same(a);
		p[60] = 1; /* beside it */
		assert_int_equal(vb_print_look(a).found, i ? VB_PRINT_SAME : VB_PRINT_CHANGED);
		vb_print_drop(a, p);
	}
	assert_int_equal(told, 0);
}

/* A print that is taken in the middle of a write, and two writes at once. */
static void writes_overlap(void **state)
{
	uint8_t *p = fresh(PAGE);
	struct vb_print *a;

	(void)state;
	vb_prints_write((uintptr_t)p, 100, changed);
	a = take(p, 200, p);
	vb_prints_write((uintptr_t)p + 50, 100, changed);
	memset(p, 7, 150);
	expect_same(a);
	vb_prints_written((uintptr_t)p, 100);
	p[120] = 8;
	expect_same(a);
	vb_prints_written((uintptr_t)p + 50, 100);
	expect_same(a);
	p[10] = 9;
	assert_int_equal(vb_print_look(a).from, 10);
	vb_print_drop(a, p);
	assert_int_equal(told, 0);
}

/* What the adapter overwrites, the program had changed before. */
static void a_change_is_told_before_a_write(void **state)
{
	uint8_t *p = fresh(PAGE);
	struct vb_print *a = take(p, 100, &told);

	(void)state;
	p[30] = 5;
	vb_prints_write((uintptr_t)p + 31, 10, changed);
	vb_prints_written((uintptr_t)p + 31, 10);
	assert_int_equal(told, 0);
	vb_prints_write((uintptr_t)p, 50, changed);
	vb_prints_written((uintptr_t)p, 50);
	assert_int_equal(told, 1);
	assert_ptr_equal(told_owner, &told);
	assert_int_equal(told_change.from, 30);
	told = 0;
	vb_print_drop(a, &told);
}

/* One print for all who take a range: its first owner answers for it, as long as there is one. */
static void a_range_is_shared(void **state)
{
	uint8_t *p = fresh(PAGE);
	struct vb_print *a = take(p, 100, &told), *b = take(p, 100, &told_owner), *other = take(p, 101, p);

	(void)state;
	assert_ptr_equal(a, b);
	assert_ptr_not_equal(a, other);
	vb_print_drop(other, p);
	vb_print_drop(a, &told);
	p[1] = 1;
	vb_prints_write((uintptr_t)p, 50, changed);
	vb_prints_written((uintptr_t)p, 50);
	assert_int_equal(told, 0);
	p[2] = 1;
	assert_int_equal(vb_print_look(b).from, 2);
	vb_print_drop(b, &told_owner);
}

static void memory_goes(void **state)
{
	uint8_t *p = fresh(2 * PAGE);
	struct vb_print *a = take(p, 2 * PAGE, p);

	(void)state;
	vb_guard_install(); /* over cmocka's handlers, which each test has */
	assert_int_equal(munmap(p + PAGE, PAGE), 0);
	assert_int_equal(vb_print_look(a).found, VB_PRINT_GONE);
	vb_print_drop(a, p);
	assert_null(vb_print_take((uintptr_t)p, 2 * PAGE, p, changed));
	assert_null(vb_print_take((uintptr_t)p, 0, p, changed));
}

/* Copies of 256 MiB, and no more until one is dropped. */
static void there_is_a_limit(void **state)
{
	enum { MOST = VB_PRINTS_MOST / VB_PRINT_COPY };
	static struct vb_print *a[MOST];
	uint8_t *p = fresh(VB_PRINT_COPY + MOST);
	unsigned n = 0;

	(void)state;
	while (n < MOST && (a[n] = vb_print_take((uintptr_t)p + n, VB_PRINT_COPY, p, changed)))
		n++;
	assert_in_range(n, MOST - 16, MOST - 1); /* each has some bytes besides */
	vb_print_drop(a[0], p);
	a[0] = take(p + MOST, VB_PRINT_COPY, p);
	while (n--)
		vb_print_drop(a[n], p);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
	    cmocka_unit_test(a_change_is_told_once), cmocka_unit_test(another_one_begins_anew),
	    cmocka_unit_test(a_block_is_named),	     cmocka_unit_test(the_adapter_writes),
	    cmocka_unit_test(writes_overlap),	     cmocka_unit_test(a_change_is_told_before_a_write),
	    cmocka_unit_test(a_range_is_shared),     cmocka_unit_test(memory_goes),
	    cmocka_unit_test(there_is_a_limit),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
