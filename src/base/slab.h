/* Objects of one size, in pieces of memory that go back to the kernel when the last object of a piece does.
 *
 * For objects that a program may have a million of: on the heap each is a small chunk, and those malloc keeps
 * for later, page for page, when they are freed. */
#ifndef VB_BASE_SLAB_H
#define VB_BASE_SLAB_H

#include <stdbool.h>
#include <stddef.h>

#include "base/list.h"
#include "base/lock.h"

struct vb_slab {
	size_t size;	     /* of an object, set once */
	struct vb_lock lock; /* guards what follows */
	struct vb_list room; /* pieces that have room */
	bool spare;	     /* one of them has no object */
};

/* size: at most 1 KiB. */
void vb_slab_init(struct vb_slab *s, size_t size);
/* All objects have been given.  Pairs with vb_slab_init(). */
void vb_slab_fini(struct vb_slab *s);

/* An object, zeroed; NULL: no memory.  Pairs with vb_slab_give(). */
void *vb_slab_take(struct vb_slab *s);
void vb_slab_give(struct vb_slab *s, void *object);

#endif
