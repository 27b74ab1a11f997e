/* The port of the wire to other hosts (host/roce.h) without a kernel: descriptors that nobody opened, and the
 * system calls on them, which whoever links this answers. */
#ifndef VB_TESTS_FUZZ_UDP_PORT_H
#define VB_TESTS_FUZZ_UDP_PORT_H

#include <stdbool.h>
#include <stddef.h>
#include <sys/socket.h>

enum { PORT_RX = 1 << 20, PORT_SHARED, PORT_TX }; /* descriptors; of sending sockets the first */
enum { PORT_SLOT = 0x11, PORT_IFINDEX = 7, PORT_TX_PORT = 0xc100 /* that of the first */ };

/* Who takes what comes: the blocking thread for the slot's socket; QP1's, by the shared one. */
extern struct port_inlet {
	int fd;
	void (*came)(void *user);
	void *user;
} port_inlet, port_steady_inlet;

/* Adds a control message to one that is received. */
void port_put(struct msghdr *h, size_t *used, int level, int type, const void *data, size_t n);
/* Sets errno; -1. */
long port_nothing_comes(void);

/* The system calls: sendmsg() and sendmmsg(), recvmsg() from a receiving socket, from a sending socket's
 * error queue; whether something can be received. */
long port_sends(int fd, const struct mmsghdr *h, unsigned n);
long port_receives(struct msghdr *h);
long port_tells(struct msghdr *h);
bool port_ready(void);

#endif
