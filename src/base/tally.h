/* What the processes of one program said, counted by kind and level, for `verbena run --fail-on` and
 * `--summary`.
 *
 * `verbena run` makes the table and stays as the program's parent.  VERBENA_TALLY names it: a memfd among the
 * descriptors of that parent, so that it needs no directory and leaves no file behind.  Each process maps it
 * when the library is loaded.  From then on it needs no descriptor, so a program may close all of them, use
 * all of them up, or enter a sandbox.  A forked child has the mapping of its parent; a program that is
 * executed maps the table again.
 *
 * Errors and warnings are counted where they are said, at the level that they have there.  Neither where the
 * log leads, nor its level, nor the rule that refusals of one kind are written once a minute makes a
 * difference. */
#ifndef VB_BASE_TALLY_H
#define VB_BASE_TALLY_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#define VB_TALLY_ENV  "VERBENA_TALLY"
#define VB_TALLY_NAME "verbena-tally"

enum { VB_TALLY_SLOTS = 255, VB_TALLY_KIND = 48, VB_TALLY_LEVELS = 2 }; /* levels: error and warn */

/* One kind.  Any process may write here; a reader takes nothing for granted. */
struct vb_tally_slot {
	_Atomic uint64_t key; /* a hash of the kind, the level as its last bit; 0: free */
	_Atomic uint64_t count;
	char kind[VB_TALLY_KIND]; /* a reason's name, or a refused call's; "": a sentence that has none */
};

struct vb_tally {
	uint64_t magic;
	_Atomic uint64_t other[VB_TALLY_LEVELS]; /* of kinds that found no slot, by level */
	_Atomic uint64_t opened;		 /* times that a process opened a device */
	uint64_t spare[4];
	struct vb_tally_slot slots[VB_TALLY_SLOTS];
};

/* A new table and its descriptor, which is none of the standard streams'; NULL: errno says why.  Pairs with
 * the end of the process. */
struct vb_tally *vb_tally_make(int *fd);
/* Adds n sentences to a table.  Any thread, with any lock, in any process that has it mapped; does not
 * allocate. Levels (enum vb_log_level) from info on are ignored. */
void vb_tally_put(struct vb_tally *t, unsigned level, const char *kind, uint64_t n);
/* The i-th slot, if something is counted there: *kind is terminated. */
bool vb_tally_read(const struct vb_tally *t, unsigned i, unsigned *level, uint64_t *n,
		   char kind[VB_TALLY_KIND]);
/* How many were said at this level. */
uint64_t vb_tally_sum(const struct vb_tally *t, unsigned level);

/* This process's table.  add(): nothing happens where there is none. */
bool vb_tally_kept(void);
void vb_tally_add(unsigned level, const char *kind);
void vb_tally_add_opened(void);
void vb_tally_add_all(const struct vb_tally *from);
/* Maps the table that VERBENA_TALLY names.  0 also if it names none; else errno: EBADF if it is no such
 * table. */
int vb_tally_map(void);

#endif
