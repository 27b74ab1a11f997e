/* Which destinations are this host's, as one device asks: the table of devices (host/devices.h) knows, and
 * the kernel is asked again when a destination is asked for that is not known. */
#ifndef VB_HOST_ADDRESSES_H
#define VB_HOST_ADDRESSES_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include <infiniband/verbs.h>

#include "base/clock.h"

#define VB_ADDRESSES_APART (50 * VB_MSEC) /* the kernel is asked again at most so often */

struct vb_addresses {
	_Atomic uint64_t read; /* when the kernel was last asked for one that was not known, 0: never */
	_Atomic bool wanted;   /* somebody asked for one that is not known */
};

/* Whether an address vector leads to this host, as far as is known: by its GID on Ethernet, by its LID on
 * InfiniBand.  An address that was taken away stays known until the kernel is asked again.  Any thread, with
 * any lock. */
bool vb_addresses_have(struct vb_addresses *t, const struct ibv_ah_attr *av);
/* Asks the kernel for the interfaces' addresses, unless this one is known.  Makes system calls: no lock may
 * be held.  Without memory, or if the kernel does not tell, what is known stays. */
void vb_addresses_learn(struct vb_addresses *t, const struct ibv_ah_attr *av);
/* For the engine: asks the kernel again if an unknown address was asked for since it was asked last, at most
 * every 50 ms.  Returns whether it is to be called again in 50 ms. */
bool vb_addresses_tick(struct vb_addresses *t, uint64_t now);

#endif
