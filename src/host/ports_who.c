/* Which process holds a port: the kernel says of a lock only that there is one, but shows with each
 * descriptor of the processes of this user what it has locked (/proc/PID/fdinfo, Linux 4.1). */
#include <ctype.h>
#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "host/ports_priv.h"

enum { MOST_PROCESSES = 4096 }; /* looked through */

/* Whether that descriptor of that process holds what clashes. */
static bool holds(const char *pid, const char *fd, const struct vb_port_name *n)
{
	char path[64], line[256], last[32];
	unsigned long long start;
	bool found = false;
	FILE *f;

	snprintf(path, sizeof(path), "/proc/%.20s/fdinfo/%.20s", pid, fd);
	f = fopen(path, "re");
	if (!f)
		return false;
	while (!found && fgets(line, sizeof(line), f)) {
		struct vb_span s;

		/* "lock:", a number, kind, PID, file, first byte, last byte */
		if (sscanf(line, "lock: %*s OFDLCK %*s READ %*s %*s %llu %31s", &start, last) != 2)
			continue;
		s.at = start;
		s.len = strcmp(last, "EOF") ? strtoull(last, NULL, 10) - start + 1 : 0;
		found = vb_port_span_clashes(s, n);
	}
	fclose(f);
	return found;
}

/* Whether any of its descriptors on the file that is called `file` does. */
static bool process_holds(const char *pid, const char *file, const struct vb_port_name *n)
{
	char path[64], link[64];
	bool found = false;
	DIR *dir;

	snprintf(path, sizeof(path), "/proc/%.20s/fd", pid);
	dir = opendir(path); /* others' are not for us to see */
	if (!dir)
		return false;
	for (struct dirent *e; !found && (e = readdir(dir));) {
		ssize_t len;

		snprintf(path, sizeof(path), "/proc/%.20s/fd/%.20s", pid, e->d_name);
		len = readlink(path, link, sizeof(link) - 1);
		link[len > 0 ? len : 0] = 0;
		if (!strcmp(link, file))
			found = holds(pid, e->d_name, n);
	}
	closedir(dir);
	return found;
}

uint32_t vb_registry_who(const struct vb_registry *r, const struct vb_port_name *n)
{
	unsigned looked = 0;
	uint32_t who = 0;
	char file[32];
	DIR *dir = opendir("/proc");

	if (!dir)
		return 0;
	snprintf(file, sizeof(file), "net:[%llu]", (unsigned long long)r->own.ino);
	for (struct dirent *e; !who && looked < MOST_PROCESSES && (e = readdir(dir));) {
		if (!isdigit((unsigned char)e->d_name[0]))
			continue;
		looked++;
		if (process_holds(e->d_name, file, n))
			who = (uint32_t)strtoul(e->d_name, NULL, 10);
	}
	closedir(dir);
	return who;
}
