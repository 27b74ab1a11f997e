/* The port of a device at work: the GIDs that it shows, whether it is up, and the events of both. */
#ifndef VB_HCA_PORT_H
#define VB_HCA_PORT_H

#include <stdbool.h>
#include <stdint.h>

#include "host/netif.h"

struct vb_adapter;
struct vb_hca;
struct ibv_ah_attr;

/* Reads the port of the device's index for the first time: 0 or ENOMEM.  Pairs with vb_port_close(). */
int vb_port_open(struct vb_hca *h, uint32_t device);
void vb_port_close(struct vb_hca *h);

/* The GID table as it stands now.  What it leads to never changes, and stays for the adapter's life. */
const struct vb_gids *vb_port_gids(const struct vb_hca *h);
bool vb_port_is_up(const struct vb_hca *h);
/* Whether it is one that is open to other hosts (host/netdev.h), and the path MTU that fits it (enum
 * ibv_mtu). */
bool vb_port_has_wire(const struct vb_hca *h);
uint32_t vb_port_mtu(const struct vb_hca *h);
/* Whether an address vector leads to a process of this host: the port has shown that GID at some time, even
 * if the interface has lost the address since, or it is an address of this host as far as is known. */
bool vb_port_leads_here(struct vb_hca *h, const struct ibv_ah_attr *av);

/* For vb_adapter_ops. */
void vb_port_link(struct vb_adapter *a, uint32_t ifindex, bool up);
void vb_port_network(struct vb_adapter *a);

#endif
