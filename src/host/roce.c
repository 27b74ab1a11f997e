/* A process's part of the port: its slot, and the sockets that it sends by. */
#include "host/roce.h"

#include <errno.h>
#include <net/if.h>
#include <netinet/in.h>
#include <netinet/udp.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "base/chance.h"
#include "host/roce_priv.h"

enum {
	ROOM = 4 << 20,	  /* of a buffer, in bytes; the kernel gives what net.core.rmem_max allows */
	PORT_TRIES = 256, /* others' ports may be in the way */
};

int vb_roce_failed(struct vb_roce_why *why, const char *call)
{
	why->trouble = VB_ROCE_CALL;
	why->call = call;
	why->err = errno;
	return why->err;
}

socklen_t vb_roce_address(struct sockaddr_un *sa, uint32_t ifindex, uint32_t slot)
{
	int n;

	*sa = (struct sockaddr_un){.sun_family = AF_UNIX};
	n = snprintf(sa->sun_path + 1, sizeof(sa->sun_path) - 1,
		     slot ? "verbena/1/roce/%u/%u" : "verbena/1/roce/%u", ifindex, slot);
	return (socklen_t)(offsetof(struct sockaddr_un, sun_path) + 1 + (size_t)n);
}

void vb_roce_keep(struct vb_roce_file *f, int fd)
{
	f->fd = vb_own_high(fd);
	f->own = vb_own_of(f->fd);
}

void vb_roce_drop(struct vb_roce_file *f)
{
	vb_own_close(&f->own, f->fd);
	f->fd = -1;
}

/* More than net.core.rmem_max or wmem_max, where this process may. */
static void make_room(int fd, int force, int option)
{
	int size = ROOM;

	if (setsockopt(fd, SOL_SOCKET, force, &size, sizeof(size)))
		(void)!setsockopt(fd, SOL_SOCKET, option, &size, sizeof(size));
}

/* The kernel makes it the least that there is. */
static void take_room(int fd)
{
	int none = 0;

	(void)!setsockopt(fd, SOL_SOCKET, SO_RCVBUF, &none, sizeof(none));
}

/* What came for the process that had the slot before, and was killed perhaps. */
static void drain(int fd)
{
	char byte;

	while (recv(fd, &byte, sizeof(byte), MSG_DONTWAIT | MSG_TRUNC) >= 0 || errno == ECONNREFUSED)
		;
}

/* The first that is free, from one by chance on, so that a slot that was left rests. */
static int take_slot(struct vb_roce *r, struct vb_roce_why *why)
{
	uint32_t first = (uint32_t)vb_chance() % (VB_ROCE_SLOTS - 1);
	int fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
	struct sockaddr_un sa;
	socklen_t len;

	if (fd < 0)
		return vb_roce_failed(why, "socket");
	vb_roce_keep(&r->name, fd); /* vb_roce_close() */
	for (uint32_t i = 0; i < VB_ROCE_SLOTS - 1; i++) {
		uint32_t slot = (first + i) % (VB_ROCE_SLOTS - 1) + 1;

		len = vb_roce_address(&sa, r->ifindex, slot);
		if (!bind(r->name.fd, (struct sockaddr *)&sa, len)) {
			r->slot = slot;
			vb_roce_leave_groups(r); /* those that it had joined */
			drain(vb_roce_fd(r));
			make_room(vb_roce_fd(r), SO_RCVBUFFORCE, SO_RCVBUF);
			return 0;
		}
		if (errno != EADDRINUSE)
			return vb_roce_failed(why, "bind");
	}
	why->trouble = VB_ROCE_FULL;
	return ENOSPC;
}

/* Binds a port that nobody has; 0 or errno. */
static int bind_some(int fd, uint16_t *port)
{
	struct sockaddr_in6 sa = {.sin6_family = AF_INET6};

	for (int i = 0; i < PORT_TRIES; i++) {
		*port = (uint16_t)(VB_ROCE_TX_LOW | vb_chance());
		sa.sin6_port = htons(*port);
		if (!bind(fd, (struct sockaddr *)&sa, sizeof(sa)))
			return 0;
		if (errno != EADDRINUSE)
			return errno;
	}
	return EADDRINUSE;
}

static int open_tx(struct vb_roce *r, uint32_t i, struct vb_roce_why *why)
{
	int fd = socket(AF_INET6, SOCK_DGRAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0), off = 0;
	int whole = IP_PMTUDISC_PROBE, whole6 = IPV6_PMTUDISC_PROBE;

	if (fd < 0)
		return vb_roce_failed(why, "socket");
	vb_roce_keep(&r->tx[i], fd); /* vb_roce_close() */
	fd = r->tx[i].fd;
	if (setsockopt(fd, IPPROTO_IPV6, IPV6_V6ONLY, &off, sizeof(off)) ||
	    setsockopt(fd, IPPROTO_IP, IP_MTU_DISCOVER, &whole, sizeof(whole)) ||
	    setsockopt(fd, IPPROTO_IPV6, IPV6_MTU_DISCOVER, &whole6, sizeof(whole6)))
		return vb_roce_failed(why, "setsockopt");
	if (setsockopt(fd, SOL_SOCKET, SO_BINDTODEVICE, r->interface, (socklen_t)strlen(r->interface)))
		return vb_roce_failed(why, "setsockopt(SO_BINDTODEVICE)");
	make_room(fd, SO_SNDBUFFORCE, SO_SNDBUF);
	take_room(fd);
	errno = bind_some(fd, &r->tx_port[i]);
	return errno ? vb_roce_failed(why, "bind") : 0;
}

static struct vb_roce *make(const char *interface, struct vb_roce_why *why)
{
	struct vb_roce *r = calloc(1, sizeof(*r)); /* vb_roce_close() */

	if (!r) {
		(void)vb_roce_failed(why, "calloc");
		return NULL;
	}
	snprintf(r->interface, sizeof(r->interface), "%s", interface);
	for (uint32_t i = 0; i < ROCE_SHARED; i++)
		r->shared[i].fd = -1;
	for (uint32_t i = 0; i < VB_ROCE_TX; i++)
		r->tx[i].fd = -1;
	r->name.fd = -1;
	return r;
}

/* Whether the process may have as many descriptors as it takes. */
static int check_files(struct vb_roce_why *why)
{
	struct rlimit most;

	if (getrlimit(RLIMIT_NOFILE, &most) || most.rlim_cur >= VB_ROCE_FILES)
		return 0;
	why->trouble = VB_ROCE_FEW_FILES;
	why->files = most.rlim_cur;
	return EMFILE;
}

int vb_roce_open(struct vb_roce **out, const char *interface, struct vb_roce_why *why)
{
	struct vb_roce *r;
	int err;

	*why = (struct vb_roce_why){.trouble = VB_ROCE_FINE};
	snprintf(why->interface, sizeof(why->interface), "%s", interface);
	err = check_files(why);
	if (err)
		return err;
	r = make(interface, why);
	if (!r)
		return ENOMEM;
	r->ifindex = if_nametoindex(interface);
	if (!r->ifindex) {
		why->trouble = VB_ROCE_INTERFACE;
		err = ENODEV;
	}
	if (!err)
		err = vb_roce_join(r, why);
	if (!err)
		err = take_slot(r, why);
	if (!err)
		err = open_tx(r, 0, why);
	if (err)
		vb_roce_close(r);
	else
		*out = r;
	return err;
}

void vb_roce_leave(struct vb_roce *r)
{
	struct vb_roce_file *own = &r->shared[r->slot];

	if (!r->slot || !vb_own_is(&own->own, own->fd))
		return;
	if (atomic_load_explicit(&r->joined, memory_order_relaxed))
		vb_roce_leave_groups(r);
	take_room(own->fd);
}

void vb_roce_forked(struct vb_roce *r)
{
	for (uint32_t i = 0; i < VB_ROCE_TX; i++)
		vb_roce_drop(&r->tx[i]);
	for (uint32_t i = 0; i < ROCE_SHARED; i++)
		vb_roce_drop(&r->shared[i]);
	vb_roce_drop(&r->name);
}

void vb_roce_close(struct vb_roce *r)
{
	if (!r)
		return;
	vb_roce_leave(r);
	vb_roce_forked(r);
	free(r);
}

uint32_t vb_roce_slot(const struct vb_roce *r)
{
	return r->slot;
}

uint32_t vb_roce_ifindex(const struct vb_roce *r)
{
	return r->ifindex;
}

const char *vb_roce_interface(const struct vb_roce *r)
{
	return r->interface;
}

int vb_roce_fd(const struct vb_roce *r)
{
	return r->shared[r->slot].fd;
}

int vb_roce_fd_shared(struct vb_roce *r)
{
	make_room(r->shared[0].fd, SO_RCVBUFFORCE, SO_RCVBUF);
	return r->shared[0].fd;
}

bool vb_roce_whole(const struct vb_roce *r)
{
	bool whole = vb_own_is(&r->shared[0].own, r->shared[0].fd) &&
		     vb_own_is(&r->shared[r->slot].own, r->shared[r->slot].fd);

	for (uint32_t i = 0; whole && i < VB_ROCE_TX; i++)
		whole = r->tx[i].fd < 0 || vb_own_is(&r->tx[i].own, r->tx[i].fd);
	return whole;
}

struct vb_roce_tx vb_roce_tx(struct vb_roce *r, uint32_t i)
{
	struct vb_roce_why why;

	if (r->tx[i].fd < 0 && open_tx(r, i, &why))
		vb_roce_drop(&r->tx[i]);
	return (struct vb_roce_tx){.fd = r->tx[i].fd, .port = r->tx_port[i]};
}

int vb_roce_door(const struct vb_roce *r)
{
	return r->shared[ROCE_DOOR].fd;
}
