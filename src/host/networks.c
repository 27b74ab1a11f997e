#include "host/networks.h"

#include <arpa/inet.h>
#include <ctype.h>
#include <dirent.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum {
	MOST_PROCESSES = 4096, /* looked through */
	MOST_NETWORKS = 16,
	MOST_ADAPTERS = 64, /* of one network */
};

/* The networks that were looked into so far, and the adapters' sockets of those that have the address. */
struct search {
	const uint8_t *address;
	unsigned long network[MOST_NETWORKS];
	bool has[MOST_NETWORKS];
	unsigned n;
	unsigned long inodes[MOST_ADAPTERS];
	unsigned ninodes;
};

/* The file that shows a process's network has one inode for each of them, which anybody may ask for. */
unsigned long vb_network_of(const char *pid)
{
	char path[64];
	struct stat st;

	snprintf(path, sizeof(path), "/proc/%.20s/net/unix", pid);
	return stat(path, &st) ? 0 : st.st_ino;
}

bool vb_network_has_open(const char *pid, unsigned long inode)
{
	char path[300], want[40], link[64];
	bool found = false;
	DIR *dir;

	snprintf(want, sizeof(want), "socket:[%lu]", inode);
	snprintf(path, sizeof(path), "/proc/%.20s/fd", pid);
	dir = opendir(path);
	if (!dir)
		return false;
	for (struct dirent *e; !found && (e = readdir(dir));) {
		ssize_t n;

		snprintf(path, sizeof(path), "/proc/%.20s/fd/%.20s", pid, e->d_name);
		n = readlink(path, link, sizeof(link) - 1);
		link[n > 0 ? n : 0] = 0;
		found = !strcmp(link, want);
	}
	closedir(dir);
	return found;
}

static FILE *open_of(const char *pid, const char *name)
{
	char path[64];

	snprintf(path, sizeof(path), "/proc/%.20s/net/%.20s", pid, name);
	return fopen(path, "re");
}

/* In the table of routes an own address is a line with it, and behind that one with what it is. */
static bool has_v4(const char *pid, const uint8_t address[4])
{
	char text[INET_ADDRSTRLEN], want[INET_ADDRSTRLEN + 8], *line = NULL;
	FILE *f = open_of(pid, "fib_trie");
	bool found = false, before = false;
	size_t size = 0;

	if (!f)
		return false;
	inet_ntop(AF_INET, address, text, sizeof(text));
	snprintf(want, sizeof(want), "|-- %s\n", text);
	while (!found && getline(&line, &size, f) > 0) {
		found = before && strstr(line, "/32 host LOCAL");
		before = strstr(line, want) || (before && strstr(line, " /"));
	}
	free(line);
	fclose(f);
	return found;
}

static bool has_v6(const char *pid, const uint8_t address[16])
{
	char want[40] = "", *line = NULL;
	FILE *f = open_of(pid, "if_inet6");
	bool found = false;
	size_t size = 0;

	if (!f)
		return false;
	for (int i = 0; i < 16; i++)
		snprintf(want + 2 * i, sizeof(want) - 2 * (size_t)i, "%02x", address[i]);
	while (!found && getline(&line, &size, f) > 0)
		found = !strncmp(line, want, 32);
	free(line);
	fclose(f);
	return found;
}

static bool has_address(const char *pid, const uint8_t address[16])
{
	static const uint8_t mapped[12] = {[10] = 0xff, [11] = 0xff};

	return memcmp(address, mapped, sizeof(mapped)) ? has_v6(pid, address) : has_v4(pid, address + 12);
}

static void read_adapters(struct search *s, const char *pid)
{
	FILE *f = open_of(pid, "unix");
	char *line = NULL;
	size_t size = 0;

	while (f && s->ninodes < MOST_ADAPTERS && getline(&line, &size, f) > 0) {
		if (strstr(line, " @verbena/") &&
		    sscanf(line, "%*s %*s %*s %*s %*s %*s %lu", &s->inodes[s->ninodes]) == 1)
			s->ninodes++;
	}
	free(line);
	if (f)
		fclose(f);
}

/* Whether the process is in another network, which has the address. */
static bool is_there(struct search *s, const char *pid)
{
	unsigned long network = vb_network_of(pid);

	for (unsigned i = 0; i < s->n; i++) {
		if (s->network[i] == network)
			return s->has[i];
	}
	if (!network || s->n == MOST_NETWORKS)
		return false;
	s->network[s->n] = network;
	s->has[s->n] = has_address(pid, s->address);
	if (s->has[s->n])
		read_adapters(s, pid);
	return s->has[s->n++];
}

static bool is_ours(const char *pid)
{
	char path[64];
	struct stat st;

	snprintf(path, sizeof(path), "/proc/%.20s", pid);
	return !stat(path, &st) && st.st_uid == geteuid();
}

static bool has_adapter(const struct search *s, const char *pid)
{
	for (unsigned i = 0; i < s->ninodes; i++)
		if (vb_network_has_open(pid, s->inodes[i]))
			return true;
	return false;
}

static uint32_t seek(const uint8_t address[16])
{
	/* This process's own network does not have it. */
	struct search s = {.address = address, .network = {vb_network_of(VB_NETWORK_SELF)}, .n = 1};
	uint32_t found = 0;
	unsigned looked = 0;
	DIR *dir = opendir("/proc");

	if (!dir)
		return 0;
	for (struct dirent *e; looked < MOST_PROCESSES && (e = readdir(dir));) {
		bool adapter;

		if (!isdigit((unsigned char)e->d_name[0]))
			continue;
		looked++;
		if (!is_ours(e->d_name) || !is_there(&s, e->d_name))
			continue;
		adapter = has_adapter(&s, e->d_name);
		if (adapter || !found)
			found = (uint32_t)strtoul(e->d_name, NULL, 10);
		if (adapter)
			break;
	}
	closedir(dir);
	return found;
}

uint32_t vb_network_whose(const uint8_t address[16])
{
	int err = errno;
	uint32_t pid = seek(address);

	errno = err;
	return pid;
}
