/* Why something waits: the names and remedies that the log and `verbena explain` have in common. */
#ifndef VB_IBA_WAITS_H
#define VB_IBA_WAITS_H

enum vb_wait_cause {
#define WAIT(cause, name, remedy) VB_W_##cause,
#include "iba/wait_list.h"
#undef WAIT
	VB_WAIT_CAUSES
};

struct vb_wait_row {
	const char *name, *remedy;
};
extern const struct vb_wait_row vb_wait_rows[VB_WAIT_CAUSES];

/* Says it without being asked: a warning that has the sentence, and then the remedy. */
void vb_wait_say(enum vb_wait_cause cause, const char *fmt, ...) __attribute__((format(printf, 2, 3)));

#endif
