/* verbena doctor: loopback, and the interfaces that lead to other hosts. */
#include <errno.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/text.h"
#include "doctor.h"
#include "host/netdev.h"
#include "host/roce.h"

enum {
	DOWN = 1,
	UP = 2,
	INTERFACES = 8, /* so many are looked at */
	FEW_KIB = 1024, /* a smaller receive buffer loses bursts */
};

/* An interface, as a child process found it. */
struct interface {
	char name[VB_NETIF_NAME];
	int up; /* and it has a carrier */
	unsigned mtu;
	char address[64];
};

static int find_loopback(void *arg, int out)
{
	struct ifaddrs *all;

	(void)arg;
	(void)out;
	if (getifaddrs(&all))
		return 0;
	for (const struct ifaddrs *i = all; i; i = i->ifa_next)
		if ((i->ifa_flags & IFF_LOOPBACK) && (i->ifa_flags & IFF_UP))
			return UP;
	return DOWN;
}

static void look_at_loopback(struct vb_doctor *d)
{
	int lo = vb_child(find_loopback, NULL, NULL, 0); /* neither: vb_doctor_calls() says so */

	if (lo == UP)
		vb_found(d, VB_OK, "network", NULL, NULL, "the loopback interface is up");
	else if (lo == DOWN)
		vb_found(d, VB_LIMIT, "network",
			 "programs that exchange addresses by TCP (perftest, ibv_rc_pingpong) cannot connect "
			 "to 127.0.0.1",
			 "ip link set lo up", "the loopback interface is down");
}

/* ---- interfaces ---- */

static bool is_named(const char *name)
{
	const struct vb_netdevs *d = vb_netdevs();

	for (uint32_t i = 0; i < d->n; i++)
		if (!strcmp(d->at[i].name, name))
			return true;
	return false;
}

static unsigned mtu_of(const char *name)
{
	int fd = socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0);
	struct ifreq ask = {0};

	snprintf(ask.ifr_name, sizeof(ask.ifr_name), "%s", name);
	if (fd < 0 || ioctl(fd, SIOCGIFMTU, &ask))
		ask.ifr_mtu = 0;
	if (fd >= 0)
		close(fd);
	return (unsigned)ask.ifr_mtu;
}

/* The same interface stands in the list once for each address. */
static bool came_before(const struct ifaddrs *all, const struct ifaddrs *i)
{
	while (all != i && strcmp(all->ifa_name, i->ifa_name))
		all = all->ifa_next;
	return all != i;
}

/* The first of the interface's addresses that leads further than its link; "": there is none. */
static void find_address(const struct ifaddrs *all, const char *name, char address[64])
{
	struct vb_text t = {address, 64};
	uint8_t gid[16];

	*address = 0;
	for (const struct ifaddrs *i = all; i && !*address; i = i->ifa_next)
		if (i->ifa_addr && !strcmp(i->ifa_name, name) && vb_gid_of_sockaddr(i->ifa_addr, gid) &&
		    vb_gid_is_routable(gid))
			vb_gid_add(&t, gid);
}

/* A line for each interface that VERBENA_NETDEV names, or without that for each that is up and has an
 * address. */
static int list_interfaces(void *arg, int out)
{
	struct ifaddrs *all;
	char address[64];

	(void)arg;
	if (getifaddrs(&all))
		return errno;
	for (const struct ifaddrs *i = all; i; i = i->ifa_next) {
		bool up = i->ifa_flags & IFF_UP && i->ifa_flags & IFF_RUNNING;

		if (came_before(all, i))
			continue;
		find_address(all, i->ifa_name, address);
		up = up && *address;
		if (vb_netdevs()->n ? is_named(i->ifa_name) : up && !(i->ifa_flags & IFF_LOOPBACK))
			dprintf(out, "%s %d %u %s\n", i->ifa_name, up, mtu_of(i->ifa_name),
				*address ? address : "-");
	}
	return 0;
}

/* Opens the port as a program does, and closes it: what is wrong with it, or how large the receive buffer is,
 * in KiB. */
static int try_port(void *interface, int out)
{
	char text[700] = "";
	struct vb_text t = {text, sizeof(text)};
	struct vb_roce_why why;
	struct vb_roce *r;
	socklen_t len = sizeof(int);
	int size = 0;

	if (vb_roce_open(&r, interface, &why)) {
		vb_roce_why_add(&t, &why);
		dprintf(out, "%s", text);
		return EADDRINUSE;
	}
	(void)getsockopt(vb_roce_fd(r), SOL_SOCKET, SO_RCVBUF, &size, &len);
	vb_roce_close(r);
	dprintf(out, "%d", size / 2 >> 10); /* the kernel counts its own part, too */
	return 0;
}

static void look_at_port(struct vb_doctor *d, char *name)
{
	bool named = vb_netdevs()->n;
	char said[700], why[100];
	int err = vb_child(try_port, name, said, sizeof(said)), kib = atoi(said);

	if (err)
		vb_found(d, named ? VB_LIMIT : VB_NOTE, "port",
			 named ? "no other host is reached through the interface" : NULL, NULL, "%s",
			 *said ? said : vb_child_why(why, sizeof(why), err));
	else if (kib < FEW_KIB && named)
		vb_found(d, VB_LIMIT, "port",
			 "bursts of other hosts overflow it, and what is lost is sent again, which is slower",
			 "sudo sysctl net.core.rmem_max=4194304",
			 "UDP port 4791 can be opened on %s, but its receive buffer has %d KiB only "
			 "(net.core.rmem_max)",
			 name, kib);
	else
		vb_found(d, VB_OK, "port", NULL, NULL,
			 "UDP port 4791 can be opened on %s, with a receive buffer of %d KiB. Packet filters "
			 "are not "
			 "checked: they have to let it in (docs/network.md, section 3)",
			 name, kib);
}

static void look_at_interface(struct vb_doctor *d, struct interface *i)
{
	char remedy[60];

	snprintf(remedy, sizeof(remedy), "ip link set %s up", i->name);
	if (!strcmp(i->name, "lo"))
		vb_found(d, VB_NOTE, "network", NULL, "name an interface that leads to other hosts",
			 "VERBENA_NETDEV names lo, which leads to this host only. That is useful with "
			 "VERBENA_WIRE=udp, which sends RoCEv2 packets between processes of one host");
	else if (!i->up)
		vb_found(d, VB_LIMIT, "network", "no other host is reached through it", remedy,
			 "the interface %s is down, or has no carrier or no address", i->name);
	else
		vb_found(d, VB_OK, "network", NULL, NULL,
			 "%s has the address %s, and an MTU of %u bytes: path_mtu to other hosts is at most "
			 "%u bytes",
			 i->name, i->address, i->mtu, 128u << vb_netif_path_mtu(i->mtu));
	look_at_port(d, i->name);
}

void vb_doctor_network(struct vb_doctor *d)
{
	char said[4096], *next = said, *line;
	struct interface i;
	unsigned n = 0;

	look_at_loopback(d);
	if (vb_child(list_interfaces, NULL, said, sizeof(said)))
		return; /* vb_doctor_calls() says so */
	while ((line = strsep(&next, "\n")) && n < INTERFACES)
		if (sscanf(line, "%15s %d %u %63s", i.name, &i.up, &i.mtu, i.address) == 4) {
			look_at_interface(d, &i);
			n++;
		}
	if (!n && !vb_netdevs()->n)
		vb_found(d, VB_OK, "network", NULL, NULL,
			 "no interface but loopback is up and has an address, so no other host is reached");
}
