/* The sockets of the port, and the processes that have them open, as /proc shows them.
 *
 * /proc/net/udp shows the user and the inode of each socket, /proc/net/unix the inodes of names, and a
 * process's descriptors show inodes. */
#include <ctype.h>
#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "host/roce_priv.h"

bool vb_roce_has(const struct vb_roce_sockets *s, unsigned long inode)
{
	for (unsigned i = 0; i < s->n; i++)
		if (s->inode[i] == inode)
			return true;
	return false;
}

static void add(struct vb_roce_sockets *s, unsigned long inode, uint32_t uid)
{
	if (!inode || s->n == VB_ROCE_MOST_SOCKETS)
		return;
	s->inode[s->n] = inode;
	s->uid[s->n++] = uid;
}

/* The sockets that are bound to the port, of one table. */
static void read_table(struct vb_roce_sockets *s, const char *path)
{
	FILE *f = fopen(path, "re");
	unsigned long inode;
	char line[256];
	unsigned port;
	uint32_t uid;

	while (f && fgets(line, sizeof(line), f))
		if (sscanf(line, " %*u: %*[0-9A-Fa-f]:%x %*s %*s %*s %*s %*s %u %*s %lu", &port, &uid,
			   &inode) == 3 &&
		    port == VB_ROCE_PORT)
			add(s, inode, uid);
	if (f)
		fclose(f);
}

void vb_roce_read_port(struct vb_roce_sockets *s)
{
	read_table(s, "/proc/thread-self/net/udp");
	read_table(s, "/proc/thread-self/net/udp6");
}

void vb_roce_read_names(struct vb_roce_sockets *s, const char *start, bool whole)
{
	FILE *f = fopen("/proc/thread-self/net/unix", "re");
	char *line = NULL, *at;
	unsigned long inode;
	size_t size = 0;

	while (f && getline(&line, &size, f) > 0) {
		at = strchr(line, '@');
		if (!at || sscanf(line, "%*s %*s %*s %*s %*s %*s %lu", &inode) != 1)
			continue;
		at[strcspn(at, "\n")] = 0;
		if (whole ? !strcmp(at + 1, start) : !strncmp(at + 1, start, strlen(start)))
			add(s, inode, 0);
	}
	free(line);
	if (f)
		fclose(f);
}

void vb_roce_read_door(struct vb_roce_sockets *s, uint32_t ifindex)
{
	struct sockaddr_un sa;

	(void)vb_roce_address(&sa, ifindex, 0); /* ends in zeros */
	vb_roce_read_names(s, sa.sun_path + 1, true);
}

unsigned long vb_roce_inode_of(const char *pid, const char *fd)
{
	char path[300], link[64];
	unsigned long inode;
	ssize_t n;

	snprintf(path, sizeof(path), "/proc/%.20s/fd/%.20s", pid, fd);
	n = readlink(path, link, sizeof(link) - 1);
	link[n > 0 ? n : 0] = 0;
	return sscanf(link, "socket:[%lu]", &inode) == 1 ? inode : 0;
}

/* Whether a process has one of the sockets open, and none of `but`. */
static bool holds(const char *pid, const struct vb_roce_sockets *s, const struct vb_roce_sockets *but)
{
	bool found = false, excused = false;
	char path[64];
	DIR *dir;

	snprintf(path, sizeof(path), "/proc/%.20s/fd", pid);
	dir = opendir(path); /* other users' are not shown */
	if (!dir)
		return false;
	for (struct dirent *e; !excused && (e = readdir(dir));) {
		unsigned long inode = vb_roce_inode_of(pid, e->d_name);

		found |= inode && vb_roce_has(s, inode);
		excused = inode && but && vb_roce_has(but, inode);
	}
	closedir(dir);
	return found && !excused;
}

uint32_t vb_roce_next_holder(DIR *dir, const struct vb_roce_sockets *s, const struct vb_roce_sockets *but)
{
	struct dirent *e;

	while (dir && (e = readdir(dir)))
		if (isdigit((unsigned char)e->d_name[0]) && holds(e->d_name, s, but))
			return (uint32_t)strtoul(e->d_name, NULL, 10);
	return 0;
}
