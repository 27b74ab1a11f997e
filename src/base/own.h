/* Whether a descriptor is still the one that we made.
 *
 * A program may close descriptors that it never opened: a daemon closes all from 3 up.  Their numbers then go
 * to files of its own, and what we write to such a number, read from it or close is the program's.  So what
 * is to stay open is remembered by device and inode when it is made, and looked at before each use.
 *
 * This is exact for what has an inode of its own: sockets, memfds, dma-bufs.  eventfds, epoll sets and,
 * before Linux 6.9, pidfds all share one inode; host/own.c tells those.  Between the look and the use another
 * thread of the program may still close the descriptor: that is left to luck, since nothing can exclude it.
 */
#ifndef VB_BASE_OWN_H
#define VB_BASE_OWN_H

#include <stdbool.h>
#include <stdint.h>

struct vb_own {
	uint64_t dev, ino; /* ino 0: the kernel did not say, so that nothing can be told */
};

struct vb_own vb_own_of(int fd);
bool vb_own_is(const struct vb_own *o, int fd); /* no cancellation point; leaves errno as it was */
/* Moves a new descriptor to a number that a program does not reach, where there are as many; returns it. */
int vb_own_high(int fd);
/* Closes it if it is ours; a number that is not, -1 say, is left alone. */
void vb_own_close(const struct vb_own *o, int fd);

#endif
