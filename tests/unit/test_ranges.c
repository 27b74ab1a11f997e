/* Ranges of addresses (base/ranges.h): what a tree finds is what a look at each range finds. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>

#include <cmocka.h>

#include "base/ranges.h"

enum { MANY = 300, STEPS = 20000, WIDE = 400, DEEP_MOST = 60 };

static struct vb_range all[MANY];
static bool in[MANY];
static struct vb_range *tree;
static uint32_t seed;

static uint32_t draw(uint32_t below)
{
	seed = seed * 1664525 + 1013904223;
	return (seed >> 8) % below;
}

static bool overlaps(const struct vb_range *r, uintptr_t from, uintptr_t to)
{
	return r->from < to && from < r->to;
}

/* Each range that overlaps is found once, and no other one is. */
static void expect_found(uintptr_t from, uintptr_t to)
{
	bool found[MANY] = {false};

	vb_ranges_each (r, tree, from, to) {
		assert_true(in[r - all] && overlaps(r, from, to) && !found[r - all]);
		found[r - all] = true;
	}
	for (unsigned i = 0; i < MANY; i++)
		assert_int_equal(found[i], in[i] && overlaps(&all[i], from, to));
}

/* All that are equal to [from, to) stand behind the one that is found. */
static void expect_same(uintptr_t from, uintptr_t to)
{
	struct vb_range *r = vb_ranges_same(tree, from, to);
	unsigned n = 0, there = 0;

	for (unsigned i = 0; i < MANY; i++)
		there += in[i] && all[i].from == from && all[i].to == to;
	for (; r && r->from == from && r->to == to; r = vb_ranges_next(tree, from, to, r))
		n++;
	assert_int_equal(n, there);
}

static void toggle(unsigned i)
{
	if (in[i]) {
		vb_ranges_remove(&tree, &all[i]);
	} else {
		all[i].from = draw(WIDE);
		all[i].to = all[i].from + 1 + draw(draw(10) ? 12 : WIDE);
		vb_ranges_add(&tree, &all[i]);
	}
	in[i] = !in[i];
}

static void as_a_look_at_each(void **state)
{
	(void)state;
	for (unsigned step = 0; step < STEPS; step++) {
		unsigned i = draw(MANY);
		uintptr_t from = draw(WIDE + 20);

		toggle(i);
		expect_found(from, from + 1 + draw(30));
		expect_same(all[i].from, all[i].to);
	}
	for (unsigned i = 0; i < MANY; i++)
		if (in[i])
			toggle(i);
	assert_null(tree);
}

static unsigned depth(const struct vb_range *t)
{
	unsigned left, right;

	if (!t)
		return 0;
	left = depth(t->left);
	right = depth(t->right);
	return 1 + (left > right ? left : right);
}

/* Neither ranges that come in order nor equal ones make a list of it. */
static void the_tree_is_flat(void **state)
{
	static struct vb_range many[16384];
	enum { N = sizeof(many) / sizeof(many[0]) };

	(void)state;
	for (unsigned equal = 0; equal < 2; equal++) {
		tree = NULL;
		for (unsigned i = 0; i < N; i++) {
			many[i].from = equal ? 64 : i * 64;
			many[i].to = many[i].from + 64;
			vb_ranges_add(&tree, &many[i]);
		}
		assert_true(depth(tree) < DEEP_MOST);
		for (unsigned i = 0; i < N; i++)
			vb_ranges_remove(&tree, &many[i]);
		assert_null(tree);
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
	    cmocka_unit_test(as_a_look_at_each),
	    cmocka_unit_test(the_tree_is_flat),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
