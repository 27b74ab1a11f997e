#include "host/netdev.h"

#include <arpa/inet.h>
#include <errno.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>

#include "base/text.h"
#include "host/netif.h"
#include "iba/grh.h"

#define NETDEV	 "VERBENA_NETDEV"
#define CHECKSUM "VERBENA_UDP_CHECKSUM"
#define GSO	 "VERBENA_UDP_GSO"

static pthread_once_t once = PTHREAD_ONCE_INIT;
/* Set once. */
static struct {
	struct vb_netdevs named;
	bool no_checksum, no_gso;
	char wrong[400]; /* "": nothing is */
} set;

/* ---- what is written ---- */

/* false: it is none. */
static bool address_of(const char *text, uint8_t gid[16])
{
	struct in_addr v4;

	if (inet_pton(AF_INET, text, &v4) == 1) {
		vb_gid_of_ipv4(gid, v4.s_addr);
		return true;
	}
	return inet_pton(AF_INET6, text, gid) == 1;
}

/* The row of that name, which may be named again with a further address; NULL: there are too many. */
static struct vb_netdev *row_of(struct vb_netdevs *d, const char *name)
{
	for (uint32_t i = 0; i < d->n; i++)
		if (!strcmp(d->at[i].name, name))
			return &d->at[i];
	if (d->n == VB_MAX_DEVICES)
		return NULL;
	snprintf(d->at[d->n].name, sizeof(d->at[0].name), "%s", name);
	return &d->at[d->n++];
}

static bool choose_address(struct vb_netdev *d, const char *text, char *wrong, size_t size)
{
	uint8_t gid[16];

	if (!address_of(text, gid)) {
		snprintf(wrong, size,
			 ": \"%.40s\" is not an IP address. The form is INTERFACE@ADDRESS; \"ip link\" also "
			 "prints the other end of a pair behind an \"@\", which is not part of the name",
			 text);
		return false;
	}
	for (uint32_t i = 0; i < d->n; i++)
		if (!memcmp(d->gid[i], gid, 16))
			return true;
	if (d->n == VB_GID_TABLE) {
		snprintf(wrong, size, ": at most %d addresses of an interface can be chosen", VB_GID_TABLE);
		return false;
	}
	memcpy(d->gid[d->n++], gid, 16);
	return true;
}

/* NAME or NAME@ADDRESS@ADDRESS... */
static bool parse_one(struct vb_netdevs *d, char *s, char *wrong, size_t size)
{
	char *next = strchr(s, '@'), *at;
	struct vb_netdev *row;

	if (next)
		*next++ = 0;
	if (!*s || strlen(s) >= VB_NETIF_NAME) {
		snprintf(wrong, size, ": \"%.40s\" is not the name of a network interface", s);
		return false;
	}
	row = row_of(d, s);
	if (!row) {
		snprintf(wrong, size, ": at most %d interfaces can be named", VB_MAX_DEVICES);
		return false;
	}
	while ((at = next)) {
		next = strchr(at, '@');
		if (next)
			*next++ = 0;
		if (!choose_address(row, at, wrong, size))
			return false;
	}
	return true;
}

bool vb_netdevs_parse(const char *s, struct vb_netdevs *d, bool *all, char *wrong, size_t size)
{
	int head = snprintf(wrong, size, NETDEV "=%.80s", s);
	char text[1024], *one, *next = text;

	*all = !strcmp(s, "all");
	*d = (struct vb_netdevs){0};
	wrong += head;
	size -= (size_t)head;
	if (*all)
		return true;
	if (strlen(s) >= sizeof(text)) {
		snprintf(wrong, size, " is too long");
		return false;
	}
	strcpy(text, s);
	while ((one = strsep(&next, ",")))
		if (!parse_one(d, one, wrong, size))
			return false;
	return true;
}

/* ---- what the kernel has ---- */

static bool has_name(const struct ifaddrs *all, const char *name)
{
	while (all && strcmp(all->ifa_name, name))
		all = all->ifa_next;
	return all;
}

/* "eth0, lo", each once. */
static void add_names(struct vb_text *t, const struct ifaddrs *all)
{
	const char *between = "";

	for (const struct ifaddrs *i = all; i; i = i->ifa_next) {
		const struct ifaddrs *j = all;

		while (j != i && strcmp(j->ifa_name, i->ifa_name))
			j = j->ifa_next;
		if (j != i)
			continue;
		vb_text_add(t, "%s%s", between, i->ifa_name);
		between = ", ";
	}
}

static bool has_address(const struct ifaddrs *all, const char *name, const uint8_t gid[16])
{
	uint8_t own[16];

	for (const struct ifaddrs *i = all; i; i = i->ifa_next)
		if (i->ifa_addr && !strcmp(i->ifa_name, name) && vb_gid_of_sockaddr(i->ifa_addr, own) &&
		    !memcmp(own, gid, 16))
			return true;
	return false;
}

/* The first of the chosen addresses that the interface has not; NULL: it has all. */
static const uint8_t *missing(const struct ifaddrs *all, const struct vb_netdev *d)
{
	for (uint32_t i = 0; i < d->n; i++)
		if (!has_address(all, d->name, d->gid[i]))
			return d->gid[i];
	return NULL;
}

static void check(const struct ifaddrs *all, const char *s)
{
	struct vb_text t = {set.wrong, sizeof(set.wrong)};

	for (uint32_t i = 0; i < set.named.n; i++) {
		const struct vb_netdev *d = &set.named.at[i];
		const uint8_t *gid = missing(all, d);

		if (!has_name(all, d->name)) {
			vb_text_add(&t,
				    NETDEV
				    "=%.80s: there is no network interface %s in this network namespace. "
				    "Its interfaces are ",
				    s, d->name);
			add_names(&t, all);
		} else if (gid) {
			vb_text_add(&t, NETDEV "=%.80s: the interface %s does not have the address ", s,
				    d->name);
			vb_gid_add(&t, gid);
		} else {
			continue;
		}
		return;
	}
}

/* Loopback is named by who means it. */
static void take_all(const struct ifaddrs *all)
{
	uint8_t gid[16];

	for (const struct ifaddrs *i = all; i; i = i->ifa_next)
		if (i->ifa_addr && vb_gid_of_sockaddr(i->ifa_addr, gid) && vb_gid_is_routable(gid) &&
		    i->ifa_flags & IFF_UP && !(i->ifa_flags & IFF_LOOPBACK))
			(void)row_of(&set.named, i->ifa_name);
	if (!set.named.n)
		snprintf(set.wrong, sizeof(set.wrong),
			 NETDEV "=all: no network interface is up and has an address, but loopback. "
				"--netdev=lo names that");
}

static void choose_interfaces(void)
{
	const char *s = secure_getenv(NETDEV);
	struct ifaddrs *interfaces;
	char wrong[sizeof(set.wrong)];
	bool all;

	if (!s || !*s)
		return;
	if (!vb_netdevs_parse(s, &set.named, &all, wrong, sizeof(wrong))) {
		strcpy(set.wrong, wrong);
	} else if (getifaddrs(&interfaces)) {
		snprintf(set.wrong, sizeof(set.wrong),
			 NETDEV "=%.80s: the kernel does not list the network interfaces: %s", s,
			 strerror(errno));
	} else {
		if (all)
			take_all(interfaces);
		else
			check(interfaces, s);
		freeifaddrs(interfaces);
	}
	if (*set.wrong)
		set.named.n = 0;
}

static bool is_off(const char *variable)
{
	const char *s = secure_getenv(variable);

	if (!s || !*s || !strcmp(s, "on"))
		return false;
	if (strcmp(s, "off"))
		snprintf(set.wrong, sizeof(set.wrong), "%s=%.60s is not valid: use on or off", variable, s);
	return !strcmp(s, "off");
}

static void choose(void)
{
	choose_interfaces();
	set.no_checksum = is_off(CHECKSUM);
	set.no_gso = is_off(GSO);
}

static void settle(void)
{
	int err = errno;

	pthread_once(&once, choose);
	errno = err;
}

const struct vb_netdevs *vb_netdevs(void)
{
	settle();
	return &set.named;
}

const char *vb_netdevs_wrong(void)
{
	settle();
	return *set.wrong ? set.wrong : NULL;
}

bool vb_netdev_checksum(void)
{
	settle();
	return !set.no_checksum;
}

bool vb_netdev_gso(void)
{
	settle();
	return !set.no_gso && !set.no_checksum; /* the kernel cuts none without checksum */
}
