/* Interfaces of a network namespace of the test's own (kit_own_network): made, addressed, set up and down. */
#ifndef VB_TESTS_NET_H
#define VB_TESTS_NET_H

#include <stdbool.h>
#include <stdint.h>

/* Whether there can be such a namespace with interfaces; false: it has been said why not.  To be asked first.
 */
bool kit_net_can(void);
/* A namespace of this process's own whose lo is up. */
void kit_net_begin(void);
/* A new interface, which is down. */
void kit_net_make(const char *name);
void kit_net_set(const char *name, bool up);
/* Gives the interface an address, or takes it away: of IPv4, with 24 bits of network, or of IPv6, with 64,
 * which may be used at once. */
void kit_net_address(const char *name, const char *address, bool there);
/* The same; errno of what the kernel refuses, else 0. */
int kit_net_try_address(const char *name, const char *address, bool there);

/* Two interfaces that are joined by a cable (veth), both down: `name` in this network namespace and
 * `far_name` in another one, of which far_ns is a descriptor.  no_gso: what is sent by either is cut to
 * packets before. */
struct kit_net_pair {
	const char *name, *far_name;
	const uint8_t *mac, *far_mac; /* NULL: any */
	int far_ns;
	unsigned mtu;
	bool no_gso;
};
/* 0 or errno. */
int kit_net_try_pair(const struct kit_net_pair *p);
/* Waits until the interface is up and something is at the other end of its cable: from then on packets pass.
 */
void kit_net_await(const char *name);
/* The address belongs to that MAC address; nobody is asked for it. */
void kit_net_neighbour(const char *name, const char *address, const uint8_t mac[6]);
/* Packets to that address leave by the interface. */
void kit_net_route(const char *name, const char *address);
void kit_net_mtu(const char *name, int mtu);
/* That interface becomes a port of the bridge, which kit_net_make() has made. */
void kit_net_join(const char *name, const char *bridge);

#endif
