#include "host/netif.h"

#include <ifaddrs.h>
#include <netinet/in.h>
#include <netpacket/packet.h>
#include <string.h>

#include <infiniband/verbs.h>

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

bool vb_gid_is_zero(const uint8_t gid[16])
{
	static const uint8_t zero[16];

	return !memcmp(gid, zero, 16);
}

static bool is_v4(const uint8_t gid[16])
{
	static const uint8_t mapped[12] = {[10] = 0xff, [11] = 0xff};

	return !memcmp(gid, mapped, sizeof(mapped));
}

bool vb_gid_is_group(const uint8_t gid[16])
{
	return gid[0] == 0xff || (is_v4(gid) && gid[12] >> 4 == 0xe);
}

/* Of IPv6 2000::/3 and fc00::/7. */
bool vb_gid_is_routable(const uint8_t gid[16])
{
	return is_v4(gid) || (gid[0] & 0xe0) == 0x20 || (gid[0] & 0xfe) == 0xfc;
}

bool vb_gid_is_loopback(const uint8_t gid[16])
{
	static const uint8_t v6[16] = {[15] = 1};

	return (is_v4(gid) && gid[12] == 127) || !memcmp(gid, v6, sizeof(v6));
}

uint32_t vb_netif_path_mtu(uint32_t mtu)
{
	uint32_t path = IBV_MTU_4096;

	while (path > IBV_MTU_256 && (128u << path) + VB_NETIF_ROCE_OVERHEAD > mtu)
		path--;
	return path;
}

int vb_gids_index(const struct vb_gids *t, const uint8_t gid[16])
{
	for (uint32_t i = 0; i < t->n; i++)
		if (!memcmp(t->gid[i], gid, 16))
			return (int)i;
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
