/* verbena bundle: interfaces, addresses and routes, as the process has them. */
#include <errno.h>
#include <fcntl.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <sched.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/text.h"
#include "bundle.h"
#include "host/networks.h"
#include "host/route.h"
#include "iba/grh.h"
#include "inside.h"

/* This process is in that one's network namespace from now on.  false: the kernel does not permit it. */
static bool enter(const struct peek *p)
{
	char path[64], pid[16];
	bool there;
	int fd;

	snprintf(pid, sizeof pid, "%d", (int)p->pid);
	if (vb_network_of(pid) == vb_network_of(VB_NETWORK_SELF))
		return true;
	snprintf(path, sizeof path, "/proc/%s/ns/net", pid);
	fd = open(path, O_RDONLY | O_CLOEXEC);
	there = fd >= 0 && !setns(fd, CLONE_NEWNET);
	if (fd >= 0)
		close(fd);
	return there;
}

static void put_interface(FILE *f, const struct ifaddrs *all, const struct if_nameindex *of, int fd)
{
	const char *between = ", addresses ";
	struct ifreq ask = {0};
	unsigned flags = 0, mtu = 0;

	snprintf(ask.ifr_name, sizeof ask.ifr_name, "%s", of->if_name);
	if (!ioctl(fd, SIOCGIFFLAGS, &ask))
		flags = (unsigned short)ask.ifr_flags;
	if (!ioctl(fd, SIOCGIFMTU, &ask))
		mtu = (unsigned)ask.ifr_mtu;
	fprintf(f, "interface %s, index %u: %s, %s, MTU %u (path_mtu %u)", of->if_name, of->if_index,
		flags & IFF_UP ? "up" : "down", flags & IFF_RUNNING ? "carrier" : "no carrier", mtu,
		128u << vb_netif_path_mtu(mtu));
	for (const struct ifaddrs *i = all; i; i = i->ifa_next) {
		char text[64] = "";
		struct vb_text t = {text, sizeof text};
		uint8_t gid[16];

		if (!i->ifa_addr || strcmp(i->ifa_name, of->if_name) || !vb_gid_of_sockaddr(i->ifa_addr, gid))
			continue;
		vb_gid_add(&t, gid);
		fprintf(f, "%s%s", between, text);
		between = ", ";
	}
	fprintf(f, "\n");
}

static void put_interfaces(FILE *f)
{
	struct if_nameindex *names = if_nameindex();
	int fd = socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0);
	struct ifaddrs *all = NULL;

	if (!names || getifaddrs(&all))
		fprintf(f, "(not available: %s)\n", strerror(errno));
	for (const struct if_nameindex *i = names; i && i->if_index; i++)
		put_interface(f, all, i, fd);
	if (all)
		freeifaddrs(all);
	if (names)
		if_freenameindex(names);
	if (fd >= 0)
		close(fd);
}

static void put_route(FILE *f, const uint8_t gid[16])
{
	char to[64] = "", next[64] = "", from[64] = "";
	struct vb_text t[] = {{to, sizeof to}, {next, sizeof next}, {from, sizeof from}};
	struct vb_route_to r;
	int err = vb_route_find(&r, gid, 0);

	vb_gid_add(&t[0], gid);
	if (err) {
		fprintf(f, "route to %s: %s\n", to, strerror(err));
		return;
	}
	vb_gid_add(&t[1], r.next);
	vb_gid_add(&t[2], r.source);
	fprintf(f, "route to %s: through %s, next hop %s, from %s, MTU %u%s\n", to, r.ifname, next, from,
		r.mtu,
		r.local		     ? ", an address of this host"
		: vb_route_fails(&r) ? ", and no host answers there"
				     : "");
}

/* Each host once. */
static void put_routes(FILE *f, const struct vb_inside *in)
{
	for (size_t i = 0; i < in->nqps; i++) {
		const uint8_t *gid = vb_inside_host(&in->qps[i]->qp);
		bool again = !gid;

		for (size_t k = 0; !again && k < i; k++) {
			const uint8_t *other = vb_inside_host(&in->qps[k]->qp);

			again = other && !memcmp(other, gid, 16);
		}
		if (!again)
			put_route(f, gid);
	}
}

/* In a process of its own, which may enter another network namespace. */
void vb_bundle_network(FILE *f, const struct peek *p)
{
	struct vb_inside in;
	pid_t child;

	fflush(f);
	child = fork();
	if (!child) {
		vb_inside_open(&in, p);
		if (enter(p)) {
			put_interfaces(f);
			put_routes(f, &in);
		} else {
			fprintf(f, "(interfaces and routes are not available: the process is in another "
				   "network namespace, which this user may not enter)\n");
		}
		fflush(f);
		_exit(0);
	}
	if (child < 0)
		fprintf(f, "(not available: %s)\n", strerror(errno));
	else
		waitpid(child, NULL, 0);
}
