/* Hosts of the test's own: network namespaces that a cable joins, or a switch.  Each has lo and an interface
 * KIT_HOST_NIC with an address of IPv4 and one of IPv6.
 *
 *     struct kit_hosts h = {.count = 2, .mtu = 9000};
 *
 *     if (!kit_hosts_can())
 *             return KIT_SKIP;
 *     kit_hosts_make(&h);
 *     pid = kit_fork();
 *     if (!pid) {
 *             kit_host_enter(&h, 1);
 *             setenv("VERBENA_NETDEV", KIT_HOST_NIC, 1);
 *             ...
 *
 * They need no root where an ordinary user may make user namespaces.  Nothing has a name outside of the test,
 * and all of it goes when the last process goes that is in it or has the descriptors.  hosts.py of
 * tests/strangers makes the same ones for scripts. */
#ifndef VB_TESTS_HOSTS_H
#define VB_TESTS_HOSTS_H

#include <infiniband/verbs.h>
#include <stdbool.h>

#define KIT_HOST_NIC  "eth0"
#define KIT_RELAY_NIC "r%u" /* of the switch's namespace: the end of host %u's cable */

enum { KIT_HOSTS = 32 };

struct kit_hosts {
	unsigned count, mtu;
	bool relayed; /* two hosts whose cables end in a namespace between them, where a program hands frames
			 on (relay.h); what they send is cut to packets of the MTU before */
	bool routed;  /* two hosts whose cables end at a router: that namespace forwards IP packets, and sends
			 ICMP messages */
	bool ipv6;    /* out: there is IPv6 here */
	int middle;   /* out: this process's namespace, in which the switch is */
	int ns[KIT_HOSTS];
};

/* Whether hosts can be made here; false: it has been said why not, as a reason to skip.  To be asked first.
 */
bool kit_hosts_can(void);
/* This process gets a network namespace of its own, the switch's.  Two hosts that are not relayed are joined
 * by one cable, more of them by a bridge. */
void kit_hosts_make(struct kit_hosts *h);
/* Closes the descriptors. */
void kit_hosts_free(struct kit_hosts *h);
/* From now on this thread is on that host, and what it forks. */
void kit_host_enter(const struct kit_hosts *h, unsigned host);
/* The address of a host: of IPv4, or of IPv6. */
const char *kit_host_address(unsigned host, bool six);
/* The index of the GID of that address in the table of the device's port. */
uint8_t kit_host_gid_index(struct ibv_context *ctx, unsigned host, bool six);

#endif
