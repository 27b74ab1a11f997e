/* Whether a descriptor is still the one that we made.
 *
 * A program may close descriptors that it never opened: a daemon closes all from 3 up.  Their numbers then go
 * to files of its own, and what we write to such a number, read from it or close is the program's.  So what
 * is to stay open is remembered by device and inode when it is made, and looked at before each use.
 *
 * This is exact for what has an inode of its own: sockets, memfds, dma-bufs.  eventfds, epoll sets and,
 * before Linux 6.9, pidfds all share one inode: struct vb_own_set, and host/own.c, tell those.  Between the
 * look and the use another thread of the program may still close the descriptor: that is left to luck, since
 * nothing can exclude it.
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

/* Descriptors of ours that share their inode, as members of an epoll set, which knows them by file and
 * number; they ask for no events.  A socket, which has an inode, tells whether the set is ours.  Where the
 * program has closed that, nothing can be told any more: then no member is ours, though it may be. */
struct vb_own_set {
	int set, anchor; /* -1: not open */
	struct vb_own own;
};
#define VB_OWN_SET_NONE ((struct vb_own_set){.set = -1, .anchor = -1})

/* 0 or errno (EMFILE, ENOMEM as the kernel says), then it is VB_OWN_SET_NONE.  Pairs with vb_own_set_close(),
 * which leaves the members open. */
int vb_own_set_open(struct vb_own_set *s);
void vb_own_set_close(struct vb_own_set *s);
/* These leave errno as it was.  add(): 0 or errno.  `o` is of vb_own_of(): where a sandbox forbids to ask, it
 * has to do. */
bool vb_own_set_is_ours(const struct vb_own_set *s);
int vb_own_set_add(const struct vb_own_set *s, int fd);
bool vb_own_set_has(const struct vb_own_set *s, const struct vb_own *o, int fd);
/* Closes a member; what is none is left alone. */
void vb_own_set_drop(const struct vb_own_set *s, const struct vb_own *o, int fd);

#endif
