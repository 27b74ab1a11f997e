/* The group's descriptors out of a process that holds them and does not answer: a stopped one, say.  Each
 * socket shows its slot itself, as the hop limit of what it sends, which is nothing. */
#include <errno.h>
#include <netinet/in.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "host/hello.h"
#include "host/roce_priv.h"

#ifndef SYS_pidfd_getfd
#define SYS_pidfd_getfd 438
#endif

/* Which of r->shared a socket is; ROCE_SHARED: none. */
static uint32_t place_of(const struct vb_roce *r, int fd)
{
	socklen_t len = sizeof(int), name_len = sizeof(r->interface);
	char name[sizeof(r->interface)] = "";
	int hops = 0, listens = 0;

	if (!getsockopt(fd, SOL_SOCKET, SO_ACCEPTCONN, &listens, &len) && listens)
		return ROCE_DOOR;
	if (getsockopt(fd, SOL_SOCKET, SO_BINDTODEVICE, name, &name_len) || strcmp(name, r->interface) ||
	    getsockopt(fd, IPPROTO_IPV6, IPV6_UNICAST_HOPS, &hops, &len) || hops < 1 || hops > VB_ROCE_SLOTS)
		return ROCE_SHARED;
	return (uint32_t)hops - 1;
}

/* All that the process has of the group. */
static void take_from(struct vb_roce *r, int pidfd, uint32_t pid, const struct vb_roce_sockets *wanted)
{
	char path[64], name[16];
	struct dirent *e;
	DIR *dir;

	snprintf(name, sizeof(name), "%u", pid);
	snprintf(path, sizeof(path), "/proc/%u/fd", pid);
	dir = opendir(path);
	while (dir && (e = readdir(dir))) {
		uint32_t place;
		int fd;

		if (!vb_roce_has(wanted, vb_roce_inode_of(name, e->d_name)))
			continue;
		fd = (int)syscall(SYS_pidfd_getfd, pidfd, atoi(e->d_name), 0);
		if (fd < 0)
			break;
		place = place_of(r, fd);
		if (place < ROCE_SHARED && r->shared[place].fd < 0)
			vb_roce_keep(&r->shared[place], fd); /* vb_roce_close() */
		else
			vb_foreign_close(fd);
	}
	if (dir)
		closedir(dir);
}

static bool is_whole(const struct vb_roce *r)
{
	for (uint32_t i = 0; i < ROCE_SHARED; i++)
		if (r->shared[i].fd < 0)
			return false;
	return true;
}

/* A group that lives has all of its sockets in each holder; one whose holder is gone by now has none. */
static int take(struct vb_roce *r, const struct vb_roce_sockets *door, const struct vb_roce_sockets *wanted,
		DIR *dir)
{
	uint32_t pid;

	while ((pid = vb_roce_next_holder(dir, door, NULL))) {
		int pidfd = (int)syscall(SYS_pidfd_open, (pid_t)pid, 0);

		if (pidfd < 0)
			continue;
		take_from(r, pidfd, pid, wanted);
		close(pidfd);
		if (is_whole(r))
			return 0;
		for (uint32_t i = 0; i < ROCE_SHARED; i++)
			vb_roce_drop(&r->shared[i]);
	}
	return EAGAIN;
}

int vb_roce_take(struct vb_roce *r)
{
	struct vb_roce_sockets *door = calloc(1, sizeof(*door)), *wanted = calloc(1, sizeof(*wanted));
	DIR *dir = opendir("/proc");
	int err = EAGAIN;

	if (door && wanted && dir) {
		vb_roce_read_door(door, r->ifindex);
		vb_roce_read_door(wanted, r->ifindex);
		vb_roce_read_port(wanted);
		err = take(r, door, wanted, dir);
	}
	if (dir)
		closedir(dir);
	free(door);
	free(wanted);
	return err;
}
