/* The rate at which packets leave that nobody acknowledges (UC, UD), on paths that may lose packets.
 *
 * Pure: numbers come in, numbers go out, and the time is an argument.  docs/congestion.md says what the rules
 * are and why they were chosen. */
#ifndef VB_TRANSPORT_PACE_H
#define VB_TRANSPORT_PACE_H

#include <stdbool.h>

#include "obj/congestion.h"

/* Bytes per second: to begin with, at most (more than a core can send), and at least. */
#define VB_PACE_FIRST (1ull << 30)
#define VB_PACE_MOST  (8ull << 30)
#define VB_PACE_LEAST (1ull << 20)

void vb_pace_begin(struct vb_pace *p, uint64_t now);
/* When packets may leave again, where none may now. */
uint64_t vb_pace_at(const struct vb_pace *p);
/* Packets of so many bytes in all leave.  now: needed only where p->left is not positive. */
void vb_pace_sent(struct vb_pace *p, uint64_t bytes, uint64_t now);
/* The far end tells of a queue on the way (CNP). */
void vb_pace_marked(struct vb_pace *p, uint64_t now);

#endif
