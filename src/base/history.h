/* The last sentences of a process, where another one can read them.
 *
 * Whatever is said of failures (base/log.h) also goes here, whether or not anybody asked for a log.  The
 * place is shared memory that the owner alone writes; a reader takes an entry between two equal even sequence
 * numbers and needs nothing of the owner, which may be stopped. */
#ifndef VB_BASE_HISTORY_H
#define VB_BASE_HISTORY_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "base/lock.h"
#include "base/pages.h"

enum { VB_HISTORY = 128, VB_HISTORY_NAME = 32, VB_HISTORY_TEXT = 512 };

struct vb_history_line {
	uint32_t count;		    /* how often it was said */
	int32_t err;		    /* a refused call: its errno, else 0 */
	uint64_t first, last;	    /* when: ns of CLOCK_REALTIME */
	char name[VB_HISTORY_NAME]; /* the refused call, or the reason's name, or nothing */
	char text[VB_HISTORY_TEXT]; /* as logged */
};

struct vb_history_entry {     /* its owner writes, under the writers' lock */
	_Atomic uint32_t seq; /* even: stable, 0: never used; odd: being changed */
	uint32_t spare;
	struct vb_history_line line;
} __attribute__((aligned(VB_LINE)));

struct vb_history {
	_Atomic uint64_t said; /* sentences, repeated ones included */
	_Atomic uint32_t used; /* entries; what is above holds nothing, and nobody reads there */
	struct vb_history_entry entries[VB_HISTORY];
} __attribute__((aligned(VB_PAGE)));

/* From now on this process's sentences are kept in `h`, which is zeroed, unless another place is in use
 * already: then as soon as that is given up, with all that stands there.  vb_history_stop(): not any more;
 * then nobody touches it.  In a forked child nothing is kept until
 * it has a place of its own. */
void vb_history_keep(struct vb_history *h);
void vb_history_handle_fork(void); /* as vb_log_handle_fork() */
void vb_history_stop(struct vb_history *h);
bool vb_history_kept(void);

/* Keeps a sentence: the same one again only counts; a new one takes the place of the one that was said
 * longest ago. */
void vb_history_note(const char *name, int err, const char *text);

/* For readers, of memory that another process may change meanwhile: the i-th entry; false: none, or no quiet
 * moment was found.  Texts are terminated. */
bool vb_history_read(const struct vb_history *h, uint32_t i, struct vb_history_line *out);

#endif
