/* The devices of this process, and the one table of the host's addresses: which of them each belongs to.
 *
 * What a device is called and which link layer its port shows are settings; everything else follows from the
 * device's index and from what the kernel shows, so that all processes of a network namespace agree without a
 * word to one another.  Device K has the K-th ordinary IPv4 address, or 127.0.0.(K+1) where there are not so
 * many.  With --netdev device K is the K-th interface that it names (host/netdev.h), and has that one's
 * addresses.  Every other local address belongs to a device too: to that which has the interface, else to the
 * first.  A path leaves by the device that owns its source. */
#ifndef VB_HOST_DEVICES_H
#define VB_HOST_DEVICES_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "host/netif.h"
#include "iba/limits.h"

#define VB_DEVICE_NAME_MAX 64 /* IBV_SYSFS_NAME_MAX */

/* The port of a device, as it stands now. */
struct vb_port {
	struct vb_gids gids;
	uint8_t address[16]; /* its own, as a GID: GID 0 but on InfiniBand */
	uint32_t ifindex;    /* of the interface that has it, 0: there is none */
	char ifname[16];
	bool
	    up; /* false: that interface was up, and is down now; with a wire: it is down or has no address */
	bool wire;    /* it is open to other hosts: an interface that --netdev names (host/netdev.h) */
	uint32_t mtu; /* that interface's, of a port with a wire; 0: unknown */
	uint64_t
	    owned; /* another number whenever the set of addresses that are the device's is another one */
};

/* What is wrong with the settings VERBENA_DEVICE, VERBENA_DEVICES and VERBENA_LINK, and with those of
 * vb_netdevs_wrong(), as a clause; NULL: nothing.  Where one is wrong it is as if it were not set. */
const char *vb_devices_wrong(void);
uint32_t vb_devices_count(void);
/* The name of device k, or of its file in /dev/infiniband.  Returns buf. */
const char *vb_devices_name(char buf[VB_DEVICE_NAME_MAX], uint32_t k);
const char *vb_devices_file(char buf[VB_DEVICE_NAME_MAX], uint32_t k);

/* Whether the ports show the InfiniBand link layer, else Ethernet; and for sentences what they show. */
bool vb_devices_infiniband(void);
uint32_t vb_devices_link(void); /* IBV_LINK_LAYER_INFINIBAND or _ETHERNET */
const char *vb_devices_link_name(bool infiniband);

/* The GUID of device k and of its port, in network order.  It follows the interface: the same in every
 * process of a network namespace, whatever number its device has, until the host boots again or the interface
 * is made anew; another one on every host, cloned images included, and for every device.  On InfiniBand it
 * follows k.  What is told first stays for the process; then the kernel may be asked, so no lock may be held.
 */
uint64_t vb_devices_guid(uint32_t k);
/* The LID of device k's port, which is InfiniBand's; and whether a LID is that of some device of this network
 * namespace, of this process or another. */
uint16_t vb_devices_lid(uint32_t k);
bool vb_devices_have_lid(uint16_t lid);

/* Asks the kernel for interfaces and addresses; without memory, or if the kernel does not tell, what is known
 * stays.  Makes system calls: no lock may be held. */
void vb_devices_read(void);
/* The port of device k, as it was read last. */
void vb_devices_port(uint32_t k, struct vb_port *p);
/* Which device of this process an address of this host belongs to; -1: it was none when the kernel was asked
 * last.  All of 127.0.0.0/8 and ::1 are addresses of this host, and so are GIDs of InfiniBand ports of this
 * network namespace.  Any thread, with any lock. */
int vb_devices_of(const uint8_t gid[16]);

#endif
