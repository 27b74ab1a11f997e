/* A network of the fuzz target's own: the sockets of the wire to other hosts (host/roce.h, and the system
 * calls of wire/udp*) are queues here.  What is sent is looked at, and is then lost. */
#ifndef VB_TESTS_FUZZ_UDP_NET_H
#define VB_TESTS_FUZZ_UDP_NET_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "iba/roce.h"
#include "udp_port.h"

enum { NET_BYTES = 1 << 16 };

/* The message that is received next, and once: packets of `packet` bytes, of which the last one may be
 * shorter.
 */
struct net_message {
	struct vb_roce_ends ends;
	uint32_t ifindex;
	uint8_t tclass;
	size_t len, packet;
	uint8_t bytes[NET_BYTES];
};

struct net_counts {
	uint64_t packets, bytes; /* that were sent */
};

void net_begin(void);
void net_receive(const struct net_message *m);
/* The same by the socket for QP1, at once. */
void net_receive_mads(const struct net_message *m);
/* The next n sends fail: there is no room (EAGAIN), or as that errno says. */
void net_refuse(unsigned n, int err);
/* The next send fails with that errno, which ICMP says of what was sent to an address before, with an MTU; or
 * this host itself, if it is `local`. */
void net_tell(struct vb_gid about, int err, uint32_t mtu, bool local);
extern struct net_counts net_sent;

/* Prints and aborts: what the fuzzer looks for. */
_Noreturn void net_wrong(const char *fmt, ...) __attribute__((format(printf, 1, 2)));

#endif
