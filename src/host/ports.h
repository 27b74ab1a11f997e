/* The ports of rdma_cm: which process has which, and which listens where.
 *
 * A port is a port space, a number and a local address, which may be the wildcard of a family.  The kernel
 * keeps who has which, but not by abstract names as it keeps adapters' numbers: a wildcard's name would not
 * clash with those of specific addresses, each name would cost a descriptor, and a name does not tell whose
 * it is without asking its owner.  It keeps them as record locks (fcntl(2), F_OFD_SETLK) on the file that
 * stands for the network namespace (/proc/thread-self/ns/net, whose inode all processes of the namespace
 * share, and nobody can write to). Nothing stands in that file: a byte's offset says what is held, by space,
 * port, address and kind.  So
 * - whether a wildcard clashes with anything, or an address with a wildcard, is one question about a range;
 * - a block of ephemeral ports is one range, and an id, a listener or a connection costs no descriptor: a
 * process has one for all its ports;
 * - who listens at an address is asked of the kernel, some hundred ns, and the adapter's number is part of
 * the offset that it answers with: no table is read, no process is waited for, and nothing has to be cached;
 * - locks end with the descriptor, and that with its process, however it ends.
 *
 * All locks are shared ones (nobody may lock for writing), so who wants a port claims it first and then asks
 * whether anybody else has a claim that clashes: of two that come at once both may fail, but never both
 * succeed. So that not both fail, they take turns by flock(2) on the same file, a few ms at most: who is
 * stopped in his turn is passed over.
 *
 * The rules are those of the kernel's rdma_cm (drivers/infiniband/core/cma.c, cma_check_port()), which also
 * means that ports are the network namespace's and not the user's: what another user has bound is in use.
 * Anybody in the namespace can occupy ports, all of them if he means ill; he cannot be reached by them, since
 * contact with an adapter of another user is refused (host/who.c).  Two differences: an ephemeral port is its
 * process's at all addresses, and so are the unused ones of its block; and all that clashes is EADDRINUSE,
 * where the kernel says EADDRNOTAVAIL of wildcards.  No privilege is asked for below 1024.
 *
 * A struct vb_ports is to others what a process is; a process needs one, tests have several.  Calls are safe
 * from any thread.  They return 0 or a positive errno; EIO: the program has closed the descriptor, or this is
 * a forked child, to which none of its parent's ports belong.  None is a cancellation point. */
#ifndef VB_HOST_PORTS_H
#define VB_HOST_PORTS_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/socket.h>

#include "base/text.h"

struct vb_ports;
struct vb_port;

/* Port spaces by the numbers that programs and service IDs have (<rdma/rdma_cma.h>). */
enum vb_port_space {
	VB_PORTS_IPOIB = 0x0002,
	VB_PORTS_TCP = 0x0106,
	VB_PORTS_UDP = 0x0111,
	VB_PORTS_IB = 0x013f,
};

#define VB_AF_IB 27 /* AF_IB, which the C library has no name for */

struct vb_port_name {
	uint16_t space;	 /* enum vb_port_space */
	uint16_t port;	 /* host order; 0: whichever is free */
	uint16_t family; /* AF_INET, AF_INET6, VB_AF_IB */
	uint8_t
	    addr[16]; /* IPv4: the last four bytes, the others 0 (as struct vb_cm_ip); all 0: the wildcard */
	bool afonly;  /* only this family, as IPv4 always is unless its id says otherwise */
	bool reuse;   /* others that have this set, too, may have the same, and none of them listens */
};

/* Opens the file; one descriptor, of the network namespace that the calling thread is in.  0; ENOMEM, EMFILE,
 * ENFILE; ENOENT: there is no /proc; whatever else open() says.  Pairs with vb_ports_close(), which frees it
 * and all that is held by it. */
int vb_ports_open(struct vb_ports **out);
void vb_ports_close(struct vb_ports *ports);

/* false: calls fail with EIO from now on, and whoever goes on needs others. */
bool vb_ports_usable(struct vb_ports *ports);

/* Has fork() looked after, which vb_ports_open() does by itself.  A caller whose own fork handlers take locks
 * that it holds over calls from here calls this before it registers them. */
void vb_ports_handle_fork(void);

/* Takes a port; port 0 takes one of the ephemeral range (net.ipv4.ip_local_port_range).  The result pairs
 * with vb_port_free().  EADDRINUSE: somebody has it, in this process or another; EADDRNOTAVAIL: no ephemeral
 * one is free; EINVAL, EAFNOSUPPORT: there is no such space or family; ENOMEM, ENOLCK: the kernel has no
 * memory. */
int vb_port_bind(struct vb_ports *ports, struct vb_port **out, const struct vb_port_name *name);
/* Adds a sentence's clause: why a call about that name has just failed with `err` in this thread; ports NULL:
 * vb_ports_open() has.  Who has the name is told by PID, unless that cannot be told (it is another user's, or
 * has given it back).  Looks into /proc, at all processes: no lock may be held, and it is no part of trying
 * again. */
void vb_ports_why(struct vb_ports *ports, const struct vb_port_name *name, int err, struct vb_text *t);
/* The bound name, with its number; valid as long as the port is held. */
const struct vb_port_name *vb_port_name(const struct vb_port *port);
/* Options that change while it is bound.  No check is made now: what has become too much is found at
 * vb_port_listen(), or by the next one who binds.  EINVAL: it listens, or reuse is to end. */
int vb_port_set(struct vb_port *port, bool afonly, bool reuse);
/* From now on whoever asks is told `number`, an adapter's; the port may not be reused any more.  EADDRINUSE:
 * another one has it, too, which `reuse` had let pass; the port stays bound.  EINVAL: it listens. */
int vb_port_listen(struct vb_port *port, uint32_t number);
/* Gives it back: others may have it at once.  NULL: nothing. */
void vb_port_free(struct vb_port *port);

/* Who listens for what comes to that address: the adapter's number in *number.  ENOENT: nobody.  EBUSY: a
 * lock that is no listener's is in the way; vb_ports_look() has it see what is behind, for 50 ms.  Waits for
 * no other process, and for no other thread but for the moment of its call; may be called under a lock.  What
 * is found may be over a moment later: the REQ that goes there is then answered as one that nobody listens
 * for.
 */
int vb_ports_find(struct vb_ports *ports, uint16_t space, uint16_t port, uint16_t family,
		  const uint8_t addr[16], uint32_t *number);

/* Reads /proc/locks: no lock may be held. */
void vb_ports_look(struct vb_ports *ports);
/* That number is none of a process that takes requests, whatever a lock says: for half a second it is passed
 * over. */
void vb_ports_shun(struct vb_ports *ports, uint32_t number);
/* Adds a clause about a listener that vb_ports_find() does not find, if a lock that is no listener's is in
 * its way; false: none is. */
bool vb_ports_why_hidden(struct vb_ports *ports, const struct vb_port_name *name, struct vb_text *t);

#endif
