/* The lossy wire, a proof and a test: a wire to peers that behaves like a network.
 *
 * It stands on the shm wire's rings, and between a ring and whoever polls it loses packets, hands some over
 * twice, and lets some be overtaken.  It cannot tell what was taken out, carries no ACK along, permits no
 * direct placement, and nothing but the headers and the payload crosses it as far as facts are concerned: so
 * timers, retransmission and duplicates run in ordinary processes.  Only the variant of the library that has
 * fault points has it (VB_FAULTS); the product knows no such name. */
#ifndef VB_WIRE_LOSSY_H
#define VB_WIRE_LOSSY_H

#include <stdbool.h>

#include "host/adapter.h"

extern const struct vb_wire vb_lossy_wire;

/* Takes what stands behind "lossy:" in VERBENA_WIRE: NAME=NUMBER, separated by commas, of `seed`, and `loss`,
 * `dup` and `late` in per cent (1 each, where they are not named).  false: that is no such list.  Called
 * before the first peer comes up. */
bool vb_lossy_set(const char *options);

#endif
