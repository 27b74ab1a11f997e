/* Which addresses are this host's: read from the kernel when one is asked for that is not known, and kept. */
#ifndef VB_HOST_ADDRESSES_H
#define VB_HOST_ADDRESSES_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "base/clock.h"
#include "base/lock.h"

#define VB_ADDRESSES_APART (50 * VB_MSEC) /* the kernel is asked again at most so often */

struct vb_addresses {
	struct vb_lock lock; /* guards the next three */
	uint8_t (*gids)[16];
	uint32_t n;
	uint64_t read;	     /* when, 0: not yet */
	_Atomic bool wanted; /* somebody asked for one that is not known */
};

/* Whether a GID is an address of this host, as far as is known: all of 127.0.0.0/8 and ::1 are.  An address
 * that was taken away stays known until the kernel is asked again.  Any thread, with any lock. */
bool vb_addresses_have(struct vb_addresses *t, const uint8_t gid[16]);
/* Asks the kernel for the interfaces' addresses, unless `gid` is known.  Makes system calls: no lock may be
 * held.  Without memory, or if the kernel does not tell, what is known stays. */
void vb_addresses_learn(struct vb_addresses *t, const uint8_t gid[16]);
/* For the engine: asks the kernel again if an unknown address was asked for since it was asked last, at most
 * every 50 ms.  Returns whether it is to be called again in 50 ms. */
bool vb_addresses_tick(struct vb_addresses *t, uint64_t now);
void vb_addresses_free(struct vb_addresses *t);

#endif
