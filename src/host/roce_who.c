/* Who has the port, where this process cannot: as /proc shows it, and as a sentence.
 *
 * /proc/net/udp shows the user and the inode of each socket, and a process's descriptors show inodes.  A
 * socket of the kernel's soft-RoCE has an inode that no process has open. */
#include <ctype.h>
#include <dirent.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/text.h"
#include "host/networks.h"
#include "host/private.h"
#include "host/roce_priv.h"

static void read_name(uint32_t pid, char name[16])
{
	char path[64];
	FILE *f;

	snprintf(path, sizeof(path), "/proc/%u/comm", pid);
	f = fopen(path, "re");
	if (f && fgets(name, 16, f))
		name[strcspn(name, "\n")] = 0;
	if (f)
		fclose(f);
}

static bool soft_roce_is_loaded(void)
{
	return !access("/sys/module/rdma_rxe", F_OK);
}

/* Of the sockets at the port: one that is another user's if there is one, else the first.  Ours at other
 * interfaces are among them. */
static uint32_t owner_of(const struct vb_roce_sockets *s)
{
	for (unsigned i = 0; i < s->n; i++)
		if (s->uid[i] != geteuid())
			return s->uid[i];
	return geteuid();
}

void vb_roce_find_owner(const struct vb_roce *r, struct vb_roce_why *why)
{
	struct vb_roce_sockets *at_port = calloc(1, sizeof(*at_port)), *ours = calloc(1, sizeof(*ours));
	DIR *dir = opendir("/proc");

	(void)r;
	why->trouble = VB_ROCE_UNSEEN;
	if (!at_port || !ours)
		goto out;
	vb_roce_read_port(at_port);
	vb_roce_read_names(ours, "verbena/1/roce/", false);
	why->uid = owner_of(at_port);
	why->pid = vb_roce_next_holder(dir, at_port, ours);
	if (why->pid)
		read_name(why->pid, why->name);
	if (!why->pid && soft_roce_is_loaded())
		why->trouble = VB_ROCE_KERNEL;
	else if (why->uid != geteuid())
		why->trouble = VB_ROCE_USER;
	else if (why->pid)
		why->trouble = VB_ROCE_PROGRAM;
out:
	if (dir)
		closedir(dir);
	free(at_port);
	free(ours);
}

void vb_roce_find_silent(const struct vb_roce *r, struct vb_roce_why *why)
{
	struct vb_roce_sockets *door = calloc(1, sizeof(*door));
	DIR *dir = opendir("/proc");
	uint32_t pid;

	why->trouble = VB_ROCE_SILENT;
	why->pid = 0;
	why->stopped = false;
	if (door)
		vb_roce_read_door(door, r->ifindex);
	while (door && !why->stopped && (pid = vb_roce_next_holder(dir, door, NULL))) {
		if (pid == (uint32_t)getpid())
			continue;
		why->pid = pid;
		why->stopped = vb_thread_stopped(pid);
	}
	if (dir)
		closedir(dir);
	free(door);
}

/* The port and the interface. */
static void add_port(struct vb_text *t, const struct vb_roce_why *w)
{
	vb_text_add(t, "UDP port %d on %s", VB_ROCE_PORT, w->interface);
}

static void add_call(struct vb_text *t, const struct vb_roce_why *w)
{
	vb_text_add(t, "%s fails for ", w->call);
	add_port(t, w);
	vb_text_add(t, ": %s", strerror(w->err));
	if (w->err == EPERM && strstr(w->call, "BINDTODEVICE"))
		vb_text_add(t, ". Before Linux 5.7 the call needs CAP_NET_RAW; a sandbox may forbid it, too");
	else if (w->err == EMFILE)
		vb_text_add(t,
			    ". RoCEv2 takes %d descriptors of an interface. Raise RLIMIT_NOFILE (ulimit -n)",
			    ROCE_SHARED + 2);
	else if (w->err == EPROTO)
		vb_text_add(
		    t,
		    ". Process %u uses another version of Verbena; all processes of a user must use the same "
		    "version",
		    w->pid);
}

static void add_user(struct vb_text *t, const struct vb_roce_why *w)
{
	if (w->uid == (uint32_t)-1)
		vb_text_add(t, "another user");
	else
		vb_text_add(t, "user %u", w->uid);
	if (w->pid)
		vb_text_add(t, " (process %u)", w->pid);
	vb_text_add(t, " holds ");
	add_port(t, w);
	vb_text_add(
	    t, ", and only processes of one user can share it. Run in another network namespace, or end the "
	       "processes of that user");
}

static void add_silent(struct vb_text *t, const struct vb_roce_why *w)
{
	vb_text_add(t, "the processes of this user that hold ");
	add_port(t, w);
	vb_text_add(t, " do not answer");
	if (w->stopped)
		vb_text_add(t, ": process %u is stopped. Let it continue (kill -CONT %u), or end it", w->pid,
			    w->pid);
	else if (w->pid)
		vb_text_add(t, ". One of them is process %u", w->pid);
}

void vb_roce_why_add(struct vb_text *t, const struct vb_roce_why *w)
{
	switch (w->trouble) {
	case VB_ROCE_FINE:
		break;
	case VB_ROCE_CALL:
		add_call(t, w);
		break;
	case VB_ROCE_INTERFACE:
		vb_text_add(t,
			    "this network namespace has no interface %s; `ip link` lists those that it has",
			    w->interface);
		break;
	case VB_ROCE_FEW_FILES:
		vb_text_add(
		    t,
		    "RoCEv2 on %s takes %d descriptors, and this process may open only %llu (RLIMIT_NOFILE). "
		    "Raise the limit to %d or more (ulimit -n %d)",
		    w->interface, ROCE_SHARED + 2, (unsigned long long)w->files, VB_ROCE_FILES,
		    VB_ROCE_FILES);
		break;
	case VB_ROCE_FULL:
		vb_text_add(t, "%d processes of this user share ", VB_ROCE_SLOTS - 1);
		add_port(t, w);
		vb_text_add(
		    t,
		    ", which is the maximum. End one of them, or use another interface or network namespace");
		break;
	case VB_ROCE_SILENT:
		add_silent(t, w);
		break;
	case VB_ROCE_USER:
		add_user(t, w);
		break;
	case VB_ROCE_PROGRAM:
		vb_text_add(t, "process %u (%s) of this user holds ", w->pid, w->name);
		add_port(t, w);
		vb_text_add(t, " and does not share it. End it, or run in another network namespace");
		break;
	case VB_ROCE_KERNEL:
		vb_text_add(t,
			    "the kernel's soft-RoCE (module rdma_rxe) holds UDP port %d in this network "
			    "namespace. Remove "
			    "it (as root: modprobe -r rdma_rxe), or run in another network namespace",
			    VB_ROCE_PORT);
		break;
	case VB_ROCE_UNSEEN:
		add_port(t, w);
		vb_text_add(
		    t,
		    " is held, and /proc does not show by which process. As root, run ss -unap 'sport = :%d'",
		    VB_ROCE_PORT);
		break;
	}
}
