/* Which interface leads to an address, as the kernel routes it. */
#ifndef VB_HOST_ROUTE_H
#define VB_HOST_ROUTE_H

#include <stdbool.h>
#include <stdint.h>

#include "host/netif.h"

struct vb_route_to {
	uint32_t ifindex; /* of the interface; 0: none leads there */
	char ifname[VB_NETIF_NAME];
	bool local;	    /* it is an address of this network namespace */
	bool direct;	    /* on the interface's own network: no router is on the way */
	uint32_t mtu;	    /* of IP packets, as far as is known: the interface's, or less; 0: unknown */
	uint8_t next[16];   /* the GID of the router, or of the address itself */
	uint8_t source[16]; /* the GID that the kernel would send from; zero: unknown */
};

/* Asks for the route to an address, given as a GID; ifindex: by that interface, 0: by any.  A kernel that is
 * asked for one interface's way and knows none takes the address for one of the interface's own network.  0,
 * or errno: ENETUNREACH and EHOSTUNREACH say that there is no route, EACCES that it is prohibited.  Makes
 * system calls, and waits for nothing. */
int vb_route_find(struct vb_route_to *r, const uint8_t gid[16], uint32_t ifindex);
/* Whether nobody on the interface's network has answered that it has the next address of that way (ARP,
 * neighbour discovery).  false also if it is not known. */
bool vb_route_fails(const struct vb_route_to *r);

#endif
