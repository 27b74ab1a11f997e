/* Why something waits: the names and remedies that the log and `verbena explain` have in common. */
#ifndef VB_IBA_WAITS_H
#define VB_IBA_WAITS_H

#include "iba/reach.h"

enum vb_wait_cause {
#define WAIT(cause, name, place, remedy) VB_W_##cause,
#include "iba/wait_list.h"
#undef WAIT
	VB_WAIT_CAUSES
};

/* Where something is to be changed. */
enum vb_wait_place {
	VB_WAIT_ANY,	/* the remedy says it, or it is no change of a program */
	VB_WAIT_HERE,	/* in the process that waits */
	VB_WAIT_PEER,	/* in the process at the other end */
	VB_WAIT_NORMAL, /* nowhere, unless the program expects something: an idle program looks the same */
};

struct vb_wait_row {
	enum vb_wait_place place;
	const char *name, *remedy;
};
extern const struct vb_wait_row vb_wait_rows[VB_WAIT_CAUSES];

/* Which cause what is known of a far end is. */
enum vb_wait_cause vb_wait_of_reach(const struct vb_reach_facts *f);

/* Says it without being asked: a warning that has the sentence, and then the remedy. */
void vb_wait_say(enum vb_wait_cause cause, const char *fmt, ...) __attribute__((format(printf, 2, 3)));

#endif
