/* The UDP port of RoCEv2 (4791) on one interface.
 *
 * The processes of a user in a network namespace share it: one group of VB_ROCE_SLOTS sockets, made once and
 * held by every process.  The kernel gives a datagram to the socket whose index is in bits 12 to 17 of the
 * destination QPN, which are the low bits of an adapter number.  That index is a slot, and each process has
 * one to itself, so an adapter that has a port takes numbers of its slot only.  Slot 0 is everybody's: QPN 1.
 * What is sent to a multicast group comes to the socket of each slot whose process has joined the group.
 *
 * The group lives as long as one process holds it.  A process that is killed or stopped leaves its slot's
 * buffer to fill, and nobody else notices.
 *
 * A struct vb_roce does not change once it is open: any thread may use it, with any locks, unless a function
 * says otherwise.  Its sockets are non-blocking and IPv6 with IPV6_V6ONLY off: IPv4 addresses are mapped
 * ones. */
#ifndef VB_HOST_ROCE_H
#define VB_HOST_ROCE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "iba/roce.h" /* VB_ROCE_PORT */

enum {
	VB_ROCE_SLOTS = 64,
	VB_ROCE_TX = 96,	 /* sending sockets, at most */
	VB_ROCE_TX_LOW = 0xc000, /* their ports are this or more */
	VB_ROCE_FILES = 256,	 /* RLIMIT_NOFILE that it takes at least */
};

/* Why the port could not be opened. */
enum vb_roce_trouble {
	VB_ROCE_FINE,
	VB_ROCE_CALL,	   /* `call` failed with `err` */
	VB_ROCE_INTERFACE, /* there is no such interface */
	VB_ROCE_FEW_FILES, /* RLIMIT_NOFILE is `files`, less than VB_ROCE_FILES */
	VB_ROCE_FULL,	   /* all slots are taken by processes of this user */
	VB_ROCE_SILENT,	   /* processes of this user hold the port, and none of them answers.  `pid`: one of
			      them,    0: unknown; `stopped`: it is stopped */
	VB_ROCE_USER,	   /* user `uid` holds the port; `pid`: a process of theirs, 0: unknown */
	VB_ROCE_PROGRAM,   /* another program of this user holds the port: process `pid`, called `name` */
	VB_ROCE_KERNEL,	   /* the kernel's soft-RoCE holds the port */
	VB_ROCE_UNSEEN,	   /* the port is held, and /proc does not show by whom */
};

struct vb_roce_why {
	enum vb_roce_trouble trouble;
	char interface[16];
	const char *call; /* static */
	int err;
	uint64_t files;
	uint32_t uid, pid;
	bool stopped;
	char name[16];
};

struct vb_roce;
struct vb_text;

/* Opens the port on an interface, by its name, and takes a slot.  0, or errno (EADDRINUSE, EMFILE, ENODEV,
 * ENOSPC: no slot is left; or as the kernel says) with the reason in *why.  Blocks, as a rule for less than a
 * millisecond; while no holder of the port answers, for seconds.  No lock may be held but that of opening
 * devices.
 *
 * The caller owns the result until vb_adapter_open() has taken it over (cfg.roce), which it does if it
 * succeeds.  From then on the adapter closes it: in vb_adapter_close(), and in a forked child. */
int vb_roce_open(struct vb_roce **out, const char *interface, struct vb_roce_why *why);
/* Leaves the slot and closes the sockets that are still this process's.  NULL: nothing. */
void vb_roce_close(struct vb_roce *r);
/* In a forked child, in place of vb_roce_close(): only closes.  The memory stays. */
void vb_roce_forked(struct vb_roce *r);
/* At exit(), in place of vb_roce_close(): what still comes to the slot takes no memory from now on. */
void vb_roce_leave(struct vb_roce *r);

/* Adds to a text why the port could not be opened, and what to do: a whole sentence without its full stop. */
void vb_roce_why_add(struct vb_text *t, const struct vb_roce_why *why);

/* 1 to 63: the low 6 bits of the adapter's numbers, bits 12 to 17 of its QPNs. */
uint32_t vb_roce_slot(const struct vb_roce *r);
uint32_t vb_roce_ifindex(const struct vb_roce *r);
const char *vb_roce_interface(const struct vb_roce *r);

/* The socket that receives what is for this process's QPNs.  It is this process's as long as that has the
 * slot, though others hold it too: its options and its queue are the caller's.  Set are SO_RCVBUF and, in all
 * sockets of the group, UDP_GRO: the kernel decides whether to merge before it knows the QPN.  For the same
 * reason one GSO send holds packets to one slot only: all its packets go to the slot of the first.  The
 * descriptor is closed with the port, not by the caller, who takes it out of an epoll set of its own before
 * that. The number may be a file of the program's by now, if that closes what it never opened: ask
 * vb_roce_whole() before reading after a pause. */
int vb_roce_fd(const struct vb_roce *r);
/* Slot 0's, which all processes that ask for it share, level-triggered: whoever reads a datagram hands it to
 * the process that it is for.  Makes room in it (SO_RCVBUF). */
int vb_roce_fd_shared(struct vb_roce *r);
/* Whether the descriptors that vb_roce_fd(), vb_roce_fd_shared() and vb_roce_tx() name are still these
 * sockets: a system call for each. */
bool vb_roce_whole(const struct vb_roce *r);

/* The slot's socket joins a multicast group on the interface (IGMP, MLD), or leaves it: an address of IPv4
 * (::ffff:0:0/96) or IPv6, a group once.  0 or errno: ENOBUFS beyond what the kernel permits a socket.  Any
 * thread; a system call. */
int vb_roce_join_group(struct vb_roce *r, const uint8_t gid[16]);
void vb_roce_leave_group(const struct vb_roce *r, const uint8_t gid[16]);
/* Adds to a text why it could not join, and what to do: a whole sentence without its full stop. */
void vb_roce_group_why_add(struct vb_text *t, const struct vb_roce *r, const uint8_t gid[16], int err);

/* A sending socket: bound to the interface and to `port`, unconnected, so that the IPv4 ID is 0, 1, ... in
 * each send.  IP_MTU_DISCOVER and IPV6_MTU_DISCOVER are PROBE: nothing is fragmented (EMSGSIZE beyond the
 * interface's MTU), and an ICMP message, which anybody can forge, does not make the path smaller.  Nothing is
 * to be received but what MSG_ERRQUEUE has, if the caller sets IP_RECVERR.  Options are the caller's. */
struct vb_roce_tx {
	int fd;
	uint16_t port; /* VB_ROCE_TX_LOW to 65535 */
};
/* i < VB_ROCE_TX.  The first one is open; each other is opened when it is asked for, by one thread at a time.
 * fd -1: it cannot be. */
struct vb_roce_tx vb_roce_tx(struct vb_roce *r, uint32_t i);

/* For the adapter.  The socket at which others ask for the group's descriptors, for its epoll set (edges);
 * answers those that have asked.  Under the adapter's `control`.  false: its descriptors are gone, which the
 * program closed. */
struct vb_adapter;
int vb_roce_door(const struct vb_roce *r);
bool vb_roce_serve(struct vb_roce *r, struct vb_adapter *a);
/* After setuid(): the door shows this process's present user. */
void vb_roce_listen(struct vb_roce *r);

#endif
