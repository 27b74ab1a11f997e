#include "host/netif.h"

#include <arpa/inet.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <netinet/in.h>
#include <netpacket/packet.h>
#include <stdio.h>
#include <string.h>

static bool is_ordinary(const struct ifaddrs *i)
{
	return i->ifa_addr && (i->ifa_flags & (IFF_UP | IFF_LOOPBACK)) == IFF_UP;
}

void vb_gid_of_ipv4(uint8_t gid[16], uint32_t addr)
{
	memset(gid, 0, 10);
	gid[10] = gid[11] = 0xff;
	memcpy(gid + 12, &addr, 4);
}

bool vb_gid_of_sockaddr(const struct sockaddr *a, uint8_t gid[16])
{
	struct sockaddr_in v4;
	struct sockaddr_in6 v6;

	if (a->sa_family == AF_INET) {
		memcpy(&v4, a, sizeof(v4));
		vb_gid_of_ipv4(gid, v4.sin_addr.s_addr);
		return true;
	}
	if (a->sa_family == AF_INET6) {
		memcpy(&v6, a, sizeof(v6));
		memcpy(gid, v6.sin6_addr.s6_addr, 16);
		return true;
	}
	return false;
}

/* 2000::/3 or fc00::/7 */
static bool is_routable_ipv6(const struct sockaddr *a)
{
	struct sockaddr_in6 v6;

	if (a->sa_family != AF_INET6)
		return false;
	memcpy(&v6, a, sizeof(v6));
	return (v6.sin6_addr.s6_addr[0] & 0xe0) == 0x20 || (v6.sin6_addr.s6_addr[0] & 0xfe) == 0xfc;
}

static void take(struct vb_gids *t, int index, const struct ifaddrs *i)
{
	vb_gid_of_sockaddr(i->ifa_addr, t->gid[index]);
	t->ifindex[index] = if_nametoindex(i->ifa_name);
}

void vb_gids_find(struct vb_gids *t)
{
	struct ifaddrs *all = NULL;
	const struct ifaddrs *v4 = NULL, *v6 = NULL;

	memset(t, 0, sizeof(*t));
	if (getifaddrs(&all))
		all = NULL;
	for (const struct ifaddrs *i = all; i; i = i->ifa_next) {
		if (!is_ordinary(i))
			continue;
		if (!v4 && i->ifa_addr->sa_family == AF_INET)
			v4 = i;
	}
	/* the same interface's IPv6 address if it has one, so that both GIDs are one port's */
	for (const struct ifaddrs *i = all; i; i = i->ifa_next) {
		if (!is_ordinary(i) || !is_routable_ipv6(i->ifa_addr))
			continue;
		if (!v6 || (v4 && strcmp(v6->ifa_name, v4->ifa_name) && !strcmp(i->ifa_name, v4->ifa_name)))
			v6 = i;
	}
	if (v4) {
		take(t, 0, v4);
		snprintf(t->ifname, sizeof(t->ifname), "%s", v4->ifa_name);
	} else {
		vb_gid_of_ipv4(t->gid[0], htonl(INADDR_LOOPBACK));
		t->ifindex[0] = if_nametoindex("lo");
		strcpy(t->ifname, "lo");
	}
	for (int i = 1; i < VB_GID_TABLE; i++) {
		memcpy(t->gid[i], t->gid[0], sizeof(t->gid[i]));
		t->ifindex[i] = t->ifindex[0];
	}
	if (v6)
		take(t, 1, v6);
	freeifaddrs(all);
}

bool vb_gid_is_zero(const uint8_t gid[16])
{
	static const uint8_t zero[16];

	return !memcmp(gid, zero, 16);
}

int vb_gids_index(const struct vb_gids *t, const uint8_t gid[16])
{
	for (int i = 0; i < VB_GID_TABLE; i++)
		if (!memcmp(t->gid[i], gid, 16))
			return i;
	return -1;
}

static bool mac_of(const struct ifaddrs *all, const char *name, uint8_t mac[6])
{
	struct sockaddr_ll ll;

	for (const struct ifaddrs *i = all; i; i = i->ifa_next) {
		if (!i->ifa_addr || i->ifa_addr->sa_family != AF_PACKET || strcmp(i->ifa_name, name))
			continue;
		memcpy(&ll, i->ifa_addr, sizeof(ll));
		memcpy(mac, ll.sll_addr, 6);
		return true;
	}
	return false;
}

bool vb_gid_mac(const uint8_t gid[16], uint8_t mac[6])
{
	struct ifaddrs *all = NULL;
	uint8_t own[16];
	bool found = false;

	if (getifaddrs(&all))
		return false;
	for (const struct ifaddrs *i = all; i && !found; i = i->ifa_next)
		found = i->ifa_addr && vb_gid_of_sockaddr(i->ifa_addr, own) && !memcmp(own, gid, 16) &&
			mac_of(all, i->ifa_name, mac);
	freeifaddrs(all);
	return found;
}
