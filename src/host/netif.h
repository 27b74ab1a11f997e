/* The host's addresses as GIDs. */
#ifndef VB_HOST_NETIF_H
#define VB_HOST_NETIF_H

#include <stdbool.h>
#include <stdint.h>

#include "iba/limits.h"

struct vb_gids {
	uint8_t gid[VB_GID_TABLE][16];
	uint32_t ifindex[VB_GID_TABLE];
	char ifname[16]; /* of GID 0 */
};

/* Fills in the table: 0 is the first ordinary IPv4 address (127.0.0.1 when there is none), 1 an IPv6 address
 * of global or unique-local scope if there is one.  The others repeat 0, since programs for adapters have 1
 * or 3 written into them, which is where those keep RoCE v2 with IPv4. */
void vb_gids_find(struct vb_gids *t);

bool vb_gid_is_zero(const uint8_t gid[16]);
/* Index of a GID in the table, -1: not there. */
int vb_gids_index(const struct vb_gids *t, const uint8_t gid[16]);
/* Whether the GID is an address of this host, and then the interface's MAC address. */
bool vb_gid_mac(const uint8_t gid[16], uint8_t mac[6]);
struct sockaddr;
/* An address as a GID; false if it is of another family than IPv4 and IPv6. */
bool vb_gid_of_sockaddr(const struct sockaddr *a, uint8_t gid[16]);
/* Writes the GID of an IPv4 address (network order). */
void vb_gid_of_ipv4(uint8_t gid[16], uint32_t addr);

#endif
