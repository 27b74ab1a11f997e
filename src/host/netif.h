/* Addresses as GIDs, and tables of them. */
#ifndef VB_HOST_NETIF_H
#define VB_HOST_NETIF_H

#include <stdbool.h>
#include <stdint.h>

#include "iba/limits.h"

#define VB_NETIF_NAME 16 /* IF_NAMESIZE: bytes of an interface's name, its end included */

/* A port's GID table (host/devices.c fills it in). */
struct vb_gids {
	uint32_t n; /* entries */
	uint8_t gid[VB_GID_TABLE][16];
	uint32_t ifindex[VB_GID_TABLE]; /* of the interface with that address; 0 on InfiniBand */
};

bool vb_gid_is_zero(const uint8_t gid[16]);
/* Whether it is a multicast group's: an address of ff00::/8 (IPv6), or one of 224.0.0.0/4 (IPv4), mapped. */
bool vb_gid_is_group(const uint8_t gid[16]);
/* Whether it is an address of IPv4, or one of IPv6 that leads further than one link. */
bool vb_gid_is_routable(const uint8_t gid[16]);
/* Whether it is one of 127.0.0.0/8, mapped, or ::1. */
bool vb_gid_is_loopback(const uint8_t gid[16]);
/* Bytes of a packet on an interface beside the payload at most, as Linux counts them for adapters
 * (iboe_get_mtu()): headers of IPv6, UDP, BTH, XRC and an atomic, and the ICRC. */
#define VB_NETIF_ROCE_OVERHEAD (40 + 8 + 12 + 4 + 28 + 4)
/* The largest path MTU (enum ibv_mtu) whose RoCEv2 packets fit an interface's MTU; the least for a smaller
 * one. */
uint32_t vb_netif_path_mtu(uint32_t mtu);
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
