/* Fingerprints of memory that the adapter owns: whether the program has changed it meanwhile.
 *
 * A range of up to VB_PRINT_COPY bytes is copied, a longer one is hashed by blocks.  Requests may share a
 * range, which is printed once.  What the adapter itself writes is no change: it says before and after where
 * it writes.  All is the process's, under one lock of the caller's; memory that is not there is survived. */
#ifndef VB_MEM_PRINTS_H
#define VB_MEM_PRINTS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum {
	VB_PRINT_COPY = 64 << 10,  /* bytes that are copied at most */
	VB_PRINT_BLOCK = 64 << 10, /* that have one hash */
	VB_PRINT_MOST = 1 << 30	   /* of a range: what is behind is not looked at */
};
#define VB_PRINTS_MOST (256ull << 20) /* bytes of all copies together: what is more is not looked at */

struct vb_print;

enum vb_print_found {
	VB_PRINT_SAME,
	VB_PRINT_CHANGED,
	VB_PRINT_GONE, /* the memory is not there any more, or cannot be read */
};

struct vb_print_change {
	enum vb_print_found found;
	uint64_t from, to; /* offsets in the range: the first byte that changed, and behind the last, or the
			      block that they are in */
	bool block;	   /* it is known to be somewhere in between */
	uint8_t was, is;   /* the first byte, where it is known */
};

/* Compares.  What has changed is told once: from then on the range is as it is now. */
struct vb_print_change vb_print_look(struct vb_print *p);
void vb_print_drop(struct vb_print *p, const void *owner);

/* The program has changed a range while that owner has it. */
typedef void vb_print_changed_fn(const void *owner, const struct vb_print *p,
				 const struct vb_print_change *c);
/* NULL: there is no room, the range is empty, or cannot be read.  owner: for changed(), of the first who
 * takes a range.  Another one who takes it begins with the range as it is: what has changed until then is
 * told of the owner.  Pairs with vb_print_drop(), where one who was the owner is no more. */
struct vb_print *vb_print_take(uintptr_t at, size_t len, const void *owner, vb_print_changed_fn *changed);
/* The adapter writes to [at, at + len) between the two; on any thread, by any number of them.  changed() is
 * told of what the program has changed there before. */
void vb_prints_write(uintptr_t at, size_t len, vb_print_changed_fn *changed);
void vb_prints_written(uintptr_t at, size_t len);

/* In a child of fork(): nothing of it is the child's. */
void vb_prints_forget(void);

#endif
