/* Which destinations are this host's, as one device asks: the table of devices (host/devices.h) knows, and
 * the kernel is asked again when a destination is asked for that is not known. */
#ifndef VB_HOST_ADDRESSES_H
#define VB_HOST_ADDRESSES_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include <infiniband/verbs.h>

#include "base/clock.h"
#include "base/lock.h"
#include "host/netif.h"

enum { VB_ADDRESSES_AWAY = 4 };
#define VB_ADDRESSES_APART (50 * VB_MSEC) /* the kernel is asked again at most so often */

struct vb_addresses {
	_Atomic uint64_t read; /* when the kernel was last asked for one that was not known, 0: never */
	_Atomic bool wanted;   /* somebody asked for one that is not known */
	/* Addresses that are not this network namespace's, and who has them in another one. */
	struct vb_lock lock; /* guards what follows */
	struct vb_address_away {
		uint8_t address[16];
		uint32_t pid;
		char ifname[VB_NETIF_NAME]; /* of the interface that leads there; "": none does */
		uint64_t sought;	    /* when it was last looked for; 0: the entry is free */
	} away[VB_ADDRESSES_AWAY];
	uint32_t next; /* to be written */
};

/* Whether an address vector leads to this host, as far as is known: by its GID on Ethernet, by its LID on
 * InfiniBand.  An address that was taken away stays known until the kernel is asked again.  Any thread, with
 * any lock. */
bool vb_addresses_have(struct vb_addresses *t, const struct ibv_ah_attr *av);
/* Asks the kernel for the interfaces' addresses, unless this one is known.  One that is none of theirs is
 * looked for in other network namespaces, and so is the interface that leads there, for the sentence on what
 * is sent there.  Makes system calls: no lock may be held.  Without memory, or if the kernel does not tell,
 * what is known stays. */
void vb_addresses_learn(struct vb_addresses *t, const struct ibv_ah_attr *av);
/* The PID of a process of this user in another network namespace that has the address, as
 * vb_addresses_learn() found it; 0: none is known.  Also the name of the interface that leads there ("": none
 * is known) unless ifname is NULL.  Any thread, with any lock. */
uint32_t vb_addresses_whose(struct vb_addresses *t, const struct ibv_ah_attr *av, char ifname[VB_NETIF_NAME]);
/* For the engine: asks the kernel again if an unknown address was asked for since it was asked last, at most
 * every 50 ms.  Returns whether it is to be called again in 50 ms. */
bool vb_addresses_tick(struct vb_addresses *t, uint64_t now);

#endif
