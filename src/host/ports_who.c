/* Finds the process that holds a port, and says why a call about ports failed.  The kernel says of a lock
 * only that there is one, but shows with each descriptor of this user's processes what it has locked
 * (/proc/PID/fdinfo, Linux 4.1). */
#include <ctype.h>
#include <dirent.h>
#include <errno.h>
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

static const char file_name[] = "this network namespace's file (/proc/self/ns/net)";
static const char remedy[] = "; as root, lslocks shows which process holds it";

static void add_lock(struct vb_text *t, struct vb_span s)
{
	char last[32] = " to the end";

	if (s.len)
		snprintf(last, sizeof(last), " to %llu", (unsigned long long)(s.at + s.len - 1));
	vb_text_add(t, "a lock over byte%s %llu%s of %s", s.len == 1 ? "" : "s", (unsigned long long)s.at,
		    s.len == 1 ? "" : last, file_name);
}

/* "blocked by process 7, with a lock over ..." */
static void add_blocked(struct vb_text *t, uint32_t pid, struct vb_span s)
{
	if (pid)
		vb_text_add(t, "blocked by process %u, with ", pid);
	else
		vb_text_add(t, "blocked by a process of another user (or PID namespace), with ");
	add_lock(t, s);
	if (!pid)
		vb_text_add(t, "%s", remedy);
}

static void why_taken(struct vb_ports *p, const struct vb_port_name *n, struct vb_text *t)
{
	struct vb_span s;
	uint32_t pid;
	bool here;

	pthread_mutex_lock(&p->lock);
	here = vb_ports_clash_here(p, n);
	pthread_mutex_unlock(&p->lock);
	pid = here ? (uint32_t)getpid() : vb_registry_who(&p->registry, n);
	if (pid) {
		vb_text_add(t, "port %u is taken at this address by %s %u", n->port,
			    here ? "this process," : "process", pid);
	} else if (vb_registry_clash(&p->registry, n, &s) == EADDRINUSE) {
		vb_text_add(t, "port %u is ", n->port);
		add_blocked(t, 0, s);
	} else {
		vb_text_add(t, "port %u was taken at this address by a process that has released it since",
			    n->port);
	}
}

static void why_none_free(struct vb_ports *p, const struct vb_port_name *n, struct vb_text *t)
{
	const struct vb_ephemeral *e = &p->ephemeral;
	struct vb_span longest, all = vb_port_claims(vb_port_space(n->space), e->low, e->high - e->low + 1);
	struct vb_port_name first = *n;

	vb_text_add(t, "no ephemeral port is free (net.ipv4.ip_local_port_range: %u to %u)", e->low, e->high);
	if (!vb_locks_longest(&p->registry, all, &longest) ||
	    (longest.len && longest.len <= vb_port_claims(0, 0, VB_BLOCK_MAX).len))
		return;
	first.port = (uint16_t)e->low;
	vb_text_add(t, ": they are ");
	add_blocked(t, vb_registry_who(&p->registry, &first), longest);
}

void vb_ports_why(struct vb_ports *p, const struct vb_port_name *n, int err, struct vb_text *t)
{
	int cancel;

	pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, &cancel);
	if (err == EADDRINUSE && p)
		why_taken(p, n, t);
	else if (err == EADDRNOTAVAIL && p)
		why_none_free(p, n, t);
	else if (err == EIO)
		vb_text_add(t, "this process closed the descriptor that reserves its rdma_cm ports");
	else if (err == ENOMEM || err == EMFILE || err == ENFILE || err == ENOLCK || !vb_registry_failed())
		vb_text_add(t, "%s", strerror(err));
	else
		vb_text_add(
		    t,
		    "%s fails: %s; rdma_cm reserves ports with locks on %s. Does a sandbox deny the call, "
		    "or is /proc not mounted?",
		    vb_registry_failed(), strerror(err), file_name);
	pthread_setcancelstate(cancel, NULL);
}

bool vb_ports_why_hidden(struct vb_ports *p, const struct vb_port_name *n, struct vb_text *t)
{
	struct vb_span s;

	if (vb_port_space(n->space) < 0 || !vb_ports_usable(p) || !vb_registry_hides(&p->registry, n, &s))
		return false;
	if (s.len == 1 && vb_port_is_listener(s.at)) {
		if (!vb_ports_shuns(p, s.at))
			return false;
		vb_text_add(t, "; ");
		add_lock(t, s);
		vb_text_add(t, " names a listener that accepts no requests%s", remedy);
		return true;
	}
	if (!p->unseen)
		return false; /* it hides nobody: what is behind it has been seen */
	vb_text_add(t, "; ");
	add_lock(t, s);
	vb_text_add(t, " hides the listeners there, and /proc/locks cannot be read: %s%s",
		    strerror(p->unseen), remedy);
	return true;
}
