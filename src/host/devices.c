#include "host/devices.h"

#include <arpa/inet.h>
#include <ctype.h>
#include <errno.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <unistd.h>

#include <infiniband/verbs.h>

#include "base/lock.h"
#include "host/identity.h"
#include "host/netdev.h"

/* ---- settings ---- */

static pthread_once_t once = PTHREAD_ONCE_INIT;
/* Set once. */
static struct {
	uint32_t count;
	bool infiniband;
	char name[VB_DEVICE_NAME_MAX]; /* of the first device */
	size_t stem;		       /* so much of it stands before the number that counts on */
	uint32_t number;
	char wrong[400];		  /* "": nothing is */
	const struct vb_netdevs *netdevs; /* each is a device; none: addresses are */
	uint64_t chance;		  /* of host, boot and network namespace */
} set;

/* Such a name can be a file's in /sys, and an option's value where several are separated. */
static bool is_name(const char *s)
{
	size_t n = strlen(s);

	for (const char *c = s; *c; c++)
		if (!isalnum((unsigned char)*c) && *c != '_' && *c != '-' && *c != '.')
			return false;
	return n && n <= 48 && isalnum((unsigned char)*s);
}

static void choose_name(void)
{
	const char *name = secure_getenv("VERBENA_DEVICE");
	size_t digits;

	if (name && *name && !is_name(name)) {
		snprintf(set.wrong, sizeof(set.wrong),
			 "VERBENA_DEVICE=%.60s is not a device name: use up to 48 letters, digits, '_', '-' "
			 "and '.', beginning with a letter or digit",
			 name);
		name = NULL;
	}
	snprintf(set.name, sizeof(set.name), "%s", name && *name ? name : VB_DEVICE_NAME);
	set.stem = strlen(set.name);
	digits = set.stem;
	while (digits && isdigit((unsigned char)set.name[digits - 1]) && set.stem - digits < 9)
		digits--;
	while (digits < set.stem && set.name[digits] == '0' && digits + 1 < set.stem)
		digits++; /* a number has no zeros in front */
	if (digits < set.stem)
		set.number = (uint32_t)strtoul(set.name + digits, NULL, 10);
	set.stem = digits;
}

static void choose_count(void)
{
	const char *s = secure_getenv("VERBENA_DEVICES");
	unsigned long n;
	char *end;

	set.count = set.netdevs->n ? set.netdevs->n : 1;
	if (!s || !*s)
		return;
	if (set.netdevs->n) {
		snprintf(set.wrong, sizeof(set.wrong),
			 "VERBENA_DEVICES=%.20s cannot be combined with --netdev (VERBENA_NETDEV): each "
			 "interface that --netdev names is one device",
			 s);
		return;
	}
	errno = 0;
	n = strtoul(s, &end, 10);
	if (!errno && !*end && isdigit((unsigned char)*s) && n >= 1 && n <= VB_MAX_DEVICES)
		set.count = (uint32_t)n;
	else
		snprintf(set.wrong, sizeof(set.wrong), "VERBENA_DEVICES=%.60s is not a number from 1 to %d",
			 s, VB_MAX_DEVICES);
}

static void choose_link(void)
{
	const char *s = secure_getenv("VERBENA_LINK");

	if (!s || !*s || !strcmp(s, "ethernet"))
		return;
	if (!strcmp(s, "infiniband") && set.netdevs->n)
		snprintf(set.wrong, sizeof(set.wrong),
			 "VERBENA_LINK=infiniband cannot be combined with --netdev (VERBENA_NETDEV): packets "
			 "between hosts are RoCEv2, so the ports are Ethernet");
	else if (!strcmp(s, "infiniband"))
		set.infiniband = true;
	else
		snprintf(set.wrong, sizeof(set.wrong),
			 "VERBENA_LINK=%.60s is not a link layer: use ethernet or infiniband", s);
}

static void forked(void);

static void choose(void)
{
	set.netdevs = vb_netdevs();
	if (vb_netdevs_wrong())
		snprintf(set.wrong, sizeof(set.wrong), "%s", vb_netdevs_wrong());
	choose_name();
	choose_count();
	choose_link();
	set.chance = vb_identity_chance();
	pthread_atfork(NULL, NULL, forked);
}

static void settle(void)
{
	pthread_once(&once, choose);
}

const char *vb_devices_wrong(void)
{
	settle();
	return *set.wrong ? set.wrong : NULL;
}

uint32_t vb_devices_count(void)
{
	settle();
	return set.count;
}

const char *vb_devices_name(char buf[VB_DEVICE_NAME_MAX], uint32_t k)
{
	settle();
	if (!k)
		snprintf(buf, VB_DEVICE_NAME_MAX, "%s", set.name);
	else
		snprintf(buf, VB_DEVICE_NAME_MAX, "%.*s%u", (int)set.stem, set.name, set.number + k);
	return buf;
}

const char *vb_devices_file(char buf[VB_DEVICE_NAME_MAX], uint32_t k)
{
	snprintf(buf, VB_DEVICE_NAME_MAX, VB_UVERBS_STEM "%u", k);
	return buf;
}

bool vb_devices_infiniband(void)
{
	settle();
	return set.infiniband;
}

uint32_t vb_devices_link(void)
{
	return vb_devices_infiniband() ? IBV_LINK_LAYER_INFINIBAND : IBV_LINK_LAYER_ETHERNET;
}

const char *vb_devices_link_name(bool infiniband)
{
	return infiniband ? "InfiniBand" : "Ethernet";
}

/* ---- identity ---- */

/* EUI-64: one station's, locally administered; never 0. */
static uint64_t as_guid(uint8_t guid[8])
{
	uint64_t g;

	guid[0] = (uint8_t)((guid[0] & ~1u) | 2u);
	memcpy(&g, guid, sizeof(g));
	return g;
}

/* The GUID of an InfiniBand port, where those of a network namespace are a row. */
static uint64_t row_guid(uint32_t k)
{
	uint8_t guid[8];

	settle();
	memcpy(guid, &set.chance, sizeof(guid));
	guid[7] = (uint8_t)((guid[7] & ~(VB_MAX_DEVICES - 1u)) | k);
	return as_guid(guid);
}

/* Unicast LIDs are 1 to 0xbfff.  Those of a network namespace are a row of VB_MAX_DEVICES, which is not the
 * first: that has the subnet manager's. */
static uint16_t first_lid(void)
{
	settle();
	return (uint16_t)(VB_MAX_DEVICES * (1 + (set.chance >> 20) % (0xc000 / VB_MAX_DEVICES - 1)));
}

uint16_t vb_devices_lid(uint32_t k)
{
	return (uint16_t)(first_lid() + k);
}

bool vb_devices_have_lid(uint16_t lid)
{
	return lid / VB_MAX_DEVICES * VB_MAX_DEVICES == first_lid();
}

/* IBTA's default subnet prefix and the port's GUID. */
static void port_gid(uint8_t gid[16], uint32_t k)
{
	uint64_t guid = row_guid(k);

	memset(gid, 0, 8);
	gid[0] = 0xfe;
	gid[1] = 0x80;
	memcpy(gid + 8, &guid, sizeof(guid));
}

/* ---- the table ---- */

struct address {
	uint8_t gid[16];
	uint32_t ifindex;
	char ifname[16];
	bool up, loopback; /* the interface is */
	bool routable;	   /* IPv4, or IPv6 of more than one link */
	bool v4;
	uint32_t device; /* whose it is */
};

/* The kernel's answers, combined. */
struct reading {
	struct address *at;
	uint32_t n;
	uint32_t lo; /* loopback interface, 0: there is none */
	bool lo_up;
	struct link {
		uint32_t ifindex; /* 0: there is no interface of that name now */
		uint32_t mtu;
		bool up;	 /* and has a carrier */
	} links[VB_MAX_DEVICES]; /* of set.netdevs */
};

static struct {
	struct vb_lock lock; /* guards all of it; a leaf */
	bool read;
	uint64_t begun, settled; /* readings that have begun, and which of them was settled last */
	struct reading r;
	bool lo_was_up;
	struct vb_port ports[VB_MAX_DEVICES];
} table;

static struct address *volatile parents; /* in a forked child: what its parent had read */

/* Another thread may have been in the middle of it.  What was read is not freed: the page in which it stands
 * may not be there (ibv_fork_init() in the profile `strict`). */
static void forked(void)
{
	parents = table.r.at;
	memset(&table, 0, sizeof(table));
}

static void take(struct reading *r, const struct ifaddrs *i)
{
	struct address *a = &r->at[r->n];
	bool loopback = i->ifa_flags & IFF_LOOPBACK, up = i->ifa_flags & IFF_UP;

	if (loopback && !r->lo) {
		r->lo = if_nametoindex(i->ifa_name);
		r->lo_up = up;
	}
	if (!i->ifa_addr || !vb_gid_of_sockaddr(i->ifa_addr, a->gid))
		return;
	a->ifindex = if_nametoindex(i->ifa_name);
	snprintf(a->ifname, sizeof(a->ifname), "%s", i->ifa_name);
	a->up = up;
	a->loopback = loopback;
	a->v4 = i->ifa_addr->sa_family == AF_INET;
	a->routable = vb_gid_is_routable(a->gid);
	r->n++;
}

/* Also of an interface without an address. */
static void take_link(struct reading *r, const struct ifaddrs *i)
{
	for (uint32_t k = 0; k < set.netdevs->n; k++)
		if (!strcmp(i->ifa_name, set.netdevs->at[k].name)) {
			r->links[k].ifindex = if_nametoindex(i->ifa_name);
			r->links[k].up = i->ifa_flags & IFF_UP && i->ifa_flags & IFF_RUNNING;
		}
}

static void ask_mtus(struct reading *r)
{
	int fd = set.netdevs->n ? socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0) : -1;

	if (fd < 0)
		return;
	for (uint32_t k = 0; k < set.netdevs->n; k++) {
		struct ifreq ask = {0};

		memcpy(ask.ifr_name, set.netdevs->at[k].name, IF_NAMESIZE);
		if (!ioctl(fd, SIOCGIFMTU, &ask))
			r->links[k].mtu = (uint32_t)ask.ifr_mtu;
	}
	close(fd);
}

static bool ask_kernel(struct reading *r)
{
	struct ifaddrs *all;
	uint32_t n = 0;

	*r = (struct reading){0};
	if (getifaddrs(&all))
		return false;
	for (const struct ifaddrs *i = all; i; i = i->ifa_next)
		n++;
	r->at = calloc(n + 1, sizeof(*r->at));
	for (const struct ifaddrs *i = all; r->at && i; i = i->ifa_next) {
		take(r, i);
		take_link(r, i);
	}
	freeifaddrs(all);
	ask_mtus(r);
	return r->at;
}

/* A device whose interface goes down keeps it as long as the address is there. */
static bool is_kept(const struct address *a)
{
	for (uint32_t k = 0; k < set.count; k++)
		if (table.ports[k].ifindex == a->ifindex && !memcmp(table.ports[k].address, a->gid, 16))
			return true;
	return false;
}

static bool is_ordinary(const struct address *a)
{
	return a->routable && !a->loopback && (a->up || is_kept(a));
}

/* The k-th ordinary IPv4 address; NULL: there are not so many. */
static const struct address *ordinary_v4(const struct reading *r, uint32_t k)
{
	for (uint32_t i = 0; i < r->n; i++)
		if (r->at[i].v4 && is_ordinary(&r->at[i]) && !k--)
			return &r->at[i];
	return NULL;
}

/* What a device without an address has: a loopback address of its own. */
static void fall_back(struct vb_port *p, const struct reading *r, uint32_t k)
{
	vb_gid_of_ipv4(p->address, htonl(INADDR_LOOPBACK + k));
	p->ifindex = r->lo;
	strcpy(p->ifname, "lo");
	p->up = r->lo_up || !table.lo_was_up; /* what never was up is not needed either */
}

static void settle_port(struct vb_port *p, const struct reading *r, uint32_t k)
{
	const struct address *a = ordinary_v4(r, k);

	memset(p, 0, sizeof(*p));
	if (!a) {
		fall_back(p, r, k);
		return;
	}
	memcpy(p->address, a->gid, sizeof(p->address));
	p->ifindex = a->ifindex;
	memcpy(p->ifname, a->ifname, sizeof(p->ifname));
	p->up = a->up;
}

/* The first ordinary IPv6 address that no device has yet: on that interface, or (0) on any. */
static const struct address *ordinary_v6(const struct reading *r, const struct vb_port *ports,
					 uint32_t ifindex)
{
	for (uint32_t i = 0; i < r->n; i++) {
		const struct address *a = &r->at[i];
		bool taken = false;

		if (a->v4 || !is_ordinary(a) || (ifindex && a->ifindex != ifindex))
			continue;
		for (uint32_t k = 0; k < set.count && !taken; k++)
			taken = ports[k].gids.n && !memcmp(ports[k].gids.gid[1], a->gid, 16);
		if (!taken)
			return a;
	}
	return NULL;
}

/* The GID table of a RoCE port: its IPv4 address, an IPv6 one if there is one, and the former again, since
 * programs for adapters have 1 or 3 written into them, which is where those keep RoCE v2 with IPv4. */
static void fill_gids(struct vb_port *p)
{
	p->gids.n = VB_GID_TABLE;
	for (uint32_t i = 0; i < VB_GID_TABLE; i++) {
		memcpy(p->gids.gid[i], p->address, 16);
		p->gids.ifindex[i] = p->ifindex;
	}
}

static void add_v6(struct vb_port *p, const struct address *a)
{
	memcpy(p->gids.gid[1], a->gid, 16);
	p->gids.ifindex[1] = a->ifindex;
}

static bool has_v6(const struct vb_port *p)
{
	return memcmp(p->gids.gid[0], p->gids.gid[1], 16);
}

static void fill_roce(struct vb_port *ports, const struct reading *r)
{
	const struct address *a;

	for (uint32_t k = 0; k < set.count; k++)
		fill_gids(&ports[k]);
	/* An address of the same interface comes first, so that both GIDs are one port's. */
	for (uint32_t k = 0; k < set.count; k++) {
		a = ports[k].ifindex ? ordinary_v6(r, ports, ports[k].ifindex) : NULL;
		if (a)
			add_v6(&ports[k], a);
	}
	for (uint32_t k = 0; k < set.count; k++) {
		a = has_v6(&ports[k]) ? NULL : ordinary_v6(r, ports, 0);
		if (a)
			add_v6(&ports[k], a);
	}
}

/* The n-th address of that version on an interface that can be a port's; NULL: there are not so many. */
static const uint8_t *address_on(const struct reading *r, uint32_t ifindex, bool v4, uint32_t n)
{
	for (uint32_t i = 0; i < r->n; i++) {
		const struct address *a = &r->at[i];

		if (a->ifindex == ifindex && a->v4 == v4 && (a->routable || vb_gid_is_loopback(a->gid)) &&
		    !n--)
			return a->gid;
	}
	return NULL;
}

static bool is_on(const struct reading *r, uint32_t ifindex, const uint8_t gid[16])
{
	for (uint32_t i = 0; i < r->n; i++)
		if (r->at[i].ifindex == ifindex && !memcmp(r->at[i].gid, gid, 16))
			return true;
	return false;
}

/* The addresses of a port with a wire, in the places where fill_gids() and add_v6() have them: an IPv4 one,
 * an IPv6 one, and another one.  Those that were chosen stand in their order. */
static void addresses_of(const struct reading *r, uint32_t k, const uint8_t *at[VB_GID_TABLE])
{
	const struct vb_netdev *d = &set.netdevs->at[k];
	uint32_t ifindex = r->links[k].ifindex;

	for (uint32_t i = 0; i < d->n; i++)
		at[i] = is_on(r, ifindex, d->gid[i]) ? d->gid[i] : NULL;
	if (d->n)
		return;
	at[0] = address_on(r, ifindex, true, 0);
	at[1] = address_on(r, ifindex, false, 0);
	at[2] = address_on(r, ifindex, true, 1);
	if (!at[2])
		at[2] = address_on(r, ifindex, false, 1);
}

/* The port of an interface that is a device.  Places without an address repeat the first one. */
static void settle_netdev(struct vb_port *p, const struct reading *r, uint32_t k)
{
	const uint8_t *at[VB_GID_TABLE] = {0}, *first = NULL;

	memset(p, 0, sizeof(*p));
	addresses_of(r, k, at);
	for (uint32_t i = 0; i < VB_GID_TABLE && !first; i++)
		first = at[i];
	if (first)
		memcpy(p->address, first, sizeof(p->address));
	else
		fall_back(p, r, k);
	p->wire = true;
	p->ifindex = r->links[k].ifindex;
	p->mtu = r->links[k].mtu;
	memcpy(p->ifname, set.netdevs->at[k].name, sizeof(p->ifname));
	p->up = first && r->links[k].up;
	fill_gids(p);
	for (uint32_t i = 0; i < VB_GID_TABLE; i++)
		if (at[i])
			memcpy(p->gids.gid[i], at[i], 16);
}

static void fill_infiniband(struct vb_port *p, uint32_t k)
{
	p->gids.n = 1;
	port_gid(p->gids.gid[0], k);
}

static uint32_t owner_of(const struct vb_port *ports, const struct address *a)
{
	for (uint32_t k = 0; k < set.count; k++)
		if (!memcmp(ports[k].address, a->gid, 16) || vb_gids_index(&ports[k].gids, a->gid) >= 0)
			return k;
	for (uint32_t k = 0; k < set.count; k++)
		if (ports[k].ifindex == a->ifindex)
			return k;
	return 0;
}

/* Independent of the order in which the kernel lists them. */
static uint64_t mark_of(const struct address *a)
{
	return vb_identity_mix(vb_identity_mix(0, a->gid, sizeof(a->gid)), &a->ifindex, sizeof(a->ifindex));
}

/* Without VB_MAX_DEVICES * addresses being many, this takes microseconds. */
static void settle_all(struct reading *r)
{
	struct vb_port ports[VB_MAX_DEVICES];

	vb_lock_assert_held(&table.lock);
	table.lo_was_up |= r->lo_up;
	for (uint32_t k = 0; k < set.netdevs->n; k++)
		settle_netdev(&ports[k], r, k);
	for (uint32_t k = set.netdevs->n; k < set.count; k++)
		settle_port(&ports[k], r, k);
	if (set.netdevs->n)
		; /* they have their GIDs */
	else if (set.infiniband)
		for (uint32_t k = 0; k < set.count; k++)
			fill_infiniband(&ports[k], k);
	else
		fill_roce(ports, r);
	for (uint32_t i = 0; i < r->n; i++) {
		struct address *a = &r->at[i];

		a->device = owner_of(ports, a);
		if (a->routable && !vb_gid_is_loopback(a->gid))
			ports[a->device].owned += mark_of(a);
	}
	memcpy(table.ports, ports, set.count * sizeof(ports[0]));
}

void vb_devices_read(void)
{
	struct reading r, old;
	uint64_t mine;
	bool told;

	settle();
	vb_lock_take(&table.lock);
	mine = ++table.begun;
	vb_lock_give(&table.lock);
	told = ask_kernel(&r);
	vb_lock_take(&table.lock);
	/* one that began later knows at least as much */
	if (table.settled < mine && (told || !table.read)) {
		table.settled = mine; /* what is known stays; of nothing the fallbacks are made */
		settle_all(&r);
		old = table.r;
		table.r = r;
		table.read = true;
		r = old;
	}
	vb_lock_give(&table.lock);
	free(r.at);
}

static void have_read(void)
{
	bool read;

	vb_lock_take(&table.lock);
	read = table.read;
	vb_lock_give(&table.lock);
	if (!read)
		vb_devices_read();
}

void vb_devices_port(uint32_t k, struct vb_port *p)
{
	have_read();
	vb_lock_take(&table.lock);
	*p = table.ports[k];
	vb_lock_give(&table.lock);
}

static pthread_once_t identified = PTHREAD_ONCE_INIT;
static uint64_t guids[VB_MAX_DEVICES]; /* set once */

/* An interface has its number in all processes of a network namespace; of several devices with addresses of
 * one interface each has its own. */
static void identify(void)
{
	struct vb_port p, other;

	for (uint32_t k = 0; k < vb_devices_count(); k++) {
		struct {
			uint32_t ifindex, nth;
		} of = {0};
		uint64_t guid;

		vb_devices_port(k, &p);
		of.ifindex = p.ifindex;
		for (uint32_t i = 0; i < k; i++) {
			vb_devices_port(i, &other);
			of.nth += other.ifindex == p.ifindex;
		}
		guid = vb_identity_mix(set.chance, &of, sizeof(of));
		guids[k] = set.infiniband ? row_guid(k) : as_guid((uint8_t *)&guid);
	}
}

uint64_t vb_devices_guid(uint32_t k)
{
	pthread_once(&identified, identify);
	return guids[k];
}

/* Those that are known without the kernel; -1: none of them. */
static int known_always(const uint8_t gid[16])
{
	uint8_t own[16];
	uint32_t k;

	if (vb_gid_is_loopback(gid)) {
		k = gid[12] == 127 ? (uint32_t)(gid[13] << 16 | gid[14] << 8 | gid[15]) - 1 : 0;
		return k < vb_devices_count() ? (int)k : 0;
	}
	port_gid(own, gid[15] & (VB_MAX_DEVICES - 1));
	if (memcmp(own, gid, 16))
		return -1;
	k = gid[15] & (VB_MAX_DEVICES - 1);
	return k < vb_devices_count() ? (int)k : 0; /* another process has more devices */
}

int vb_devices_of(const uint8_t gid[16])
{
	int k = known_always(gid);

	if (k >= 0)
		return k;
	vb_lock_take(&table.lock);
	for (uint32_t i = 0; i < table.r.n && k < 0; i++)
		if (!memcmp(table.r.at[i].gid, gid, 16))
			k = (int)table.r.at[i].device;
	vb_lock_give(&table.lock);
	return k;
}
