/* The port of RoCEv2 from inside: shared by the files host/roce*.c. */
#ifndef VB_HOST_ROCE_PRIV_H
#define VB_HOST_ROCE_PRIV_H

#include <dirent.h>
#include <stdatomic.h>
#include <sys/socket.h>
#include <sys/un.h>

#include "base/own.h"
#include "host/roce.h"

/* A descriptor, and what it is known by; fd -1: none. */
struct vb_roce_file {
	int fd;
	struct vb_own own;
};

/* What every process of the group holds: the sockets by slot, then the door.  It has two more descriptors at
 * least: the slot's name, and a socket to send by. */
enum { ROCE_DOOR = VB_ROCE_SLOTS, ROCE_SHARED };

struct vb_roce {
	char interface[16];
	uint32_t ifindex;
	uint32_t slot; /* 0: none yet */
	struct vb_roce_file shared[ROCE_SHARED];
	struct vb_roce_file name; /* bound to the slot's name, as long as this process lives */
	struct vb_roce_file tx[VB_ROCE_TX];
	uint16_t tx_port[VB_ROCE_TX];
	_Atomic bool joined; /* some multicast group, at some time */
};

/* roce.c */
int vb_roce_failed(struct vb_roce_why *why, const char *call); /* VB_ROCE_CALL with errno, which it returns */
/* The abstract name of the group; of a slot, if `slot` is not 0. */
socklen_t vb_roce_address(struct sockaddr_un *sa, uint32_t ifindex, uint32_t slot);
void vb_roce_keep(struct vb_roce_file *f, int fd); /* moves it to a high number */
void vb_roce_drop(struct vb_roce_file *f);

/* roce_group.c: fills r->shared, by making the group or by asking a process that holds it.  0 or errno; what
 * was filled then is the caller's to drop. */
int vb_roce_join(struct vb_roce *r, struct vb_roce_why *why);

/* roce_take.c: the same where no holder answers, by pidfd_getfd().  EAGAIN: nobody's can be had. */
int vb_roce_take(struct vb_roce *r);

/* roce_mcast.c: the slot's socket leaves all groups. */
void vb_roce_leave_groups(const struct vb_roce *r);

/* roce_proc.c: inodes of sockets, and the users of those at the port */
enum { VB_ROCE_MOST_SOCKETS = 1024 };
struct vb_roce_sockets {
	unsigned long inode[VB_ROCE_MOST_SOCKETS];
	uint32_t uid[VB_ROCE_MOST_SOCKETS];
	unsigned n;
};
bool vb_roce_has(const struct vb_roce_sockets *s, unsigned long inode);
/* Adds those that are bound to the port; those whose names begin so (exactly that name, if `whole`); those
 * that are the interface's door, or were accepted there. */
void vb_roce_read_port(struct vb_roce_sockets *s);
void vb_roce_read_names(struct vb_roce_sockets *s, const char *start, bool whole);
void vb_roce_read_door(struct vb_roce_sockets *s, uint32_t ifindex);
/* The inode of the socket that a process's descriptor is; 0: it is none. */
unsigned long vb_roce_inode_of(const char *pid, const char *fd);
/* The next process of /proc that has one of them open, and none of `but`; 0: there is none. */
uint32_t vb_roce_next_holder(DIR *dir, const struct vb_roce_sockets *s, const struct vb_roce_sockets *but);

/* roce_who.c: bind() said EADDRINUSE: finds out who has the port.  Reads files of many processes. */
void vb_roce_find_owner(const struct vb_roce *r, struct vb_roce_why *why);
/* A process that holds the group's door, in *why. */
void vb_roce_find_silent(const struct vb_roce *r, struct vb_roce_why *why);

#endif
