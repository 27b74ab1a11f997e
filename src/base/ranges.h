/* Ranges of addresses, and which of them overlap: a search tree by their beginnings, whose links live in the
 * objects.  Each function but _next() takes time that grows with the logarithm of their number. */
#ifndef VB_BASE_RANGES_H
#define VB_BASE_RANGES_H

#include <stdint.h>

struct vb_range {
	uintptr_t from,
	    to;		/* from < to, which is behind the last byte; they stay as long as it is in a tree */
	uintptr_t most; /* the highest `to` of this one and of those below it in the tree */
	struct vb_range *left, *right;
};

/* *tree: NULL is one without ranges.  Others may be equal to r. */
void vb_ranges_add(struct vb_range **tree, struct vb_range *r);
void vb_ranges_remove(struct vb_range **tree, struct vb_range *r);
/* The first, in their order, that overlaps [from, to); NULL: none.  And the one behind `last`. */
struct vb_range *vb_ranges_first(struct vb_range *tree, uintptr_t from, uintptr_t to);
struct vb_range *vb_ranges_next(struct vb_range *tree, uintptr_t from, uintptr_t to,
				const struct vb_range *last);
/* One that is [from, to); NULL: none.  If there are several, the others follow it in their order. */
struct vb_range *vb_ranges_same(struct vb_range *tree, uintptr_t from, uintptr_t to);

#define vb_ranges_each(r, tree, from, to)                                     \
	for (struct vb_range *r = vb_ranges_first(tree, from, to); r != NULL; \
	     r = vb_ranges_next(tree, from, to, r))

#endif
