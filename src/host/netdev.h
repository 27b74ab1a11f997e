/* The network interfaces that the user opens for the wire to other hosts, and the wire's settings:
 * VERBENA_NETDEV, VERBENA_UDP_CHECKSUM and VERBENA_UDP_GSO (VERBENA_WIRE: wire/wires.h).
 *
 * Each of these interfaces is a device, in this order.  What the kernel shows of them now is
 * vb_devices_port()'s to tell (host/devices.h): name, index, MTU, addresses, up or down. */
#ifndef VB_HOST_NETDEV_H
#define VB_HOST_NETDEV_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "host/netif.h"
#include "iba/limits.h"

/* One interface, as it is named. */
struct vb_netdev {
	char name[VB_NETIF_NAME];
	uint32_t n; /* addresses that were chosen; 0: none, the interface's own are taken */
	uint8_t gid[VB_GID_TABLE][16]; /* the chosen ones, as GIDs */
};

struct vb_netdevs {
	uint32_t n;
	struct vb_netdev at[VB_MAX_DEVICES];
};

/* NAME[@ADDRESS...] separated by commas, or "all", for which *all is set.  false: `wrong` has a clause that
 * says why; it begins with VERBENA_NETDEV=. */
bool vb_netdevs_parse(const char *s, struct vb_netdevs *d, bool *all, char *wrong, size_t size);

/* Those that this process opens, which its settings name; none without VERBENA_NETDEV, or where that is
 * wrong. What they lead to never changes.  "all" are those that are up when this is first called, which
 * therefore makes system calls. */
const struct vb_netdevs *vb_netdevs(void);
/* What is wrong with VERBENA_NETDEV, VERBENA_UDP_CHECKSUM or VERBENA_UDP_GSO, as a clause; NULL: nothing. */
const char *vb_netdevs_wrong(void);

/* Whether packets to other hosts have a UDP checksum, and whether the kernel cuts them (UDP GSO). */
bool vb_netdev_checksum(void);
bool vb_netdev_gso(void);

#endif
