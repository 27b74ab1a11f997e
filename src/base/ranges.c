/* A treap: a search tree in which each range has a number by chance, the hash of its address, and none below
 * it has a higher one.  So it is as deep as a tree to which ranges were added in a random order. */
#include "base/ranges.h"

#include <stdbool.h>
#include <stddef.h>

static uint64_t chance(const struct vb_range *r)
{
	uint64_t x = (uintptr_t)r;

	x = (x ^ x >> 32) * 0xd6e8feb86659fd93; /* each bit of the address changes about half of all */
	x = (x ^ x >> 32) * 0xd6e8feb86659fd93;
	return x ^ x >> 32;
}

static bool is_before(const struct vb_range *a, const struct vb_range *b)
{
	if (a->from != b->from)
		return a->from < b->from;
	return a->to != b->to ? a->to < b->to : a < b;
}

static struct vb_range *settle(struct vb_range *t)
{
	t->most = t->to;
	if (t->left && t->left->most > t->most)
		t->most = t->left->most;
	if (t->right && t->right->most > t->most)
		t->most = t->right->most;
	return t;
}

static void split(struct vb_range *t, const struct vb_range *at, struct vb_range **left,
		  struct vb_range **right)
{
	if (!t) {
		*left = *right = NULL;
	} else if (is_before(t, at)) {
		split(t->right, at, &t->right, right);
		*left = settle(t);
	} else {
		split(t->left, at, left, &t->left);
		*right = settle(t);
	}
}

static struct vb_range *join(struct vb_range *left, struct vb_range *right)
{
	if (!left || !right)
		return left ? left : right;
	if (chance(left) > chance(right)) {
		left->right = join(left->right, right);
		return settle(left);
	}
	right->left = join(left, right->left);
	return settle(right);
}

void vb_ranges_add(struct vb_range **tree, struct vb_range *r)
{
	struct vb_range *t = *tree;

	if (!t || chance(r) > chance(t)) {
		split(t, r, &r->left, &r->right);
		*tree = settle(r);
		return;
	}
	vb_ranges_add(is_before(r, t) ? &t->left : &t->right, r);
	settle(t);
}

void vb_ranges_remove(struct vb_range **tree, struct vb_range *r)
{
	struct vb_range *t = *tree;

	if (t == r) {
		*tree = join(t->left, t->right);
		return;
	}
	vb_ranges_remove(is_before(r, t) ? &t->left : &t->right, r);
	settle(t);
}

struct vb_range *vb_ranges_next(struct vb_range *t, uintptr_t from, uintptr_t to, const struct vb_range *last)
{
	if (!t || t->most <= from)
		return NULL;
	if (!last || is_before(last, t)) {
		struct vb_range *r = vb_ranges_next(t->left, from, to, last);

		if (r)
			return r;
		if (t->from < to && from < t->to)
			return t;
	}
	return t->from < to ? vb_ranges_next(t->right, from, to, last) : NULL;
}

struct vb_range *vb_ranges_first(struct vb_range *tree, uintptr_t from, uintptr_t to)
{
	return vb_ranges_next(tree, from, to, NULL);
}

struct vb_range *vb_ranges_same(struct vb_range *tree, uintptr_t from, uintptr_t to)
{
	struct vb_range *found = NULL;

	for (struct vb_range *t = tree; t;) {
		bool before = t->from != from ? t->from < from : t->to < to;

		if (!before && t->from == from && t->to == to)
			found = t;
		t = before ? t->right : t->left;
	}
	return found;
}
