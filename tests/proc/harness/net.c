#include "net.h"

#include <arpa/inet.h>
#include <errno.h>
#include <linux/if_addr.h>
#include <linux/neighbour.h>
#include <linux/rtnetlink.h>
#include <linux/veth.h>
#include <net/if.h>
#include <sys/ioctl.h>
#include <sys/socket.h>

#include "kit.h"

struct request {
	struct nlmsghdr h;
	union {
		struct ifinfomsg link;
		struct ifaddrmsg addr;
		struct ndmsg neighbour;
		struct rtmsg route;
	};
	char attributes[256];
};

static struct rtattr *put(struct request *r, unsigned short type, const void *data, size_t len)
{
	struct rtattr *a = (struct rtattr *)((char *)r + NLMSG_ALIGN(r->h.nlmsg_len));

	a->rta_type = type;
	a->rta_len = (unsigned short)RTA_LENGTH(len);
	if (len)
		memcpy(RTA_DATA(a), data, len);
	r->h.nlmsg_len = (uint32_t)(NLMSG_ALIGN(r->h.nlmsg_len) + RTA_ALIGN(a->rta_len));
	return a;
}

static void put_number(struct request *r, unsigned short type, uint32_t n)
{
	put(r, type, &n, sizeof n);
}

/* What was put since then is a's. */
static void end(struct request *r, struct rtattr *a)
{
	a->rta_len = (unsigned short)((char *)r + r->h.nlmsg_len - (char *)a);
}

/* 0 or errno. */
static int ask(struct request *r)
{
	struct {
		struct nlmsghdr h;
		struct nlmsgerr e;
		char room[256];
	} answer;
	int fd = socket(AF_NETLINK, SOCK_RAW | SOCK_CLOEXEC, NETLINK_ROUTE);

	r->h.nlmsg_flags |= NLM_F_REQUEST | NLM_F_ACK;
	CHECK(fd >= 0 && send(fd, r, r->h.nlmsg_len, 0) == (ssize_t)r->h.nlmsg_len, "%s", strerror(errno));
	CHECK(recv(fd, &answer, sizeof(answer), 0) > 0 && answer.h.nlmsg_type == NLMSG_ERROR);
	close(fd);
	return -answer.e.error;
}

void kit_net_begin(void)
{
	CHECK(kit_own_network(), "%s", strerror(errno));
	kit_net_set("lo", true);
}

static int make(const char *name)
{
	struct request r = {.h = {.nlmsg_len = NLMSG_LENGTH(sizeof(r.link)),
				  .nlmsg_type = RTM_NEWLINK,
				  .nlmsg_flags = NLM_F_CREATE | NLM_F_EXCL}};
	struct rtattr *info;

	put(&r, IFLA_IFNAME, name, strlen(name) + 1);
	info = put(&r, IFLA_LINKINFO, NULL, 0);
	put(&r, IFLA_INFO_KIND, "bridge", 7);
	end(&r, info);
	return ask(&r);
}

static void put_link(struct request *r, const char *name, const uint8_t *mac, const struct kit_net_pair *p)
{
	put(r, IFLA_IFNAME, name, strlen(name) + 1);
	if (mac)
		put(r, IFLA_ADDRESS, mac, 6);
	put_number(r, IFLA_MTU, p->mtu);
	if (p->no_gso)
		put_number(r, IFLA_GSO_MAX_SEGS, 1);
}

int kit_net_try_pair(const struct kit_net_pair *p)
{
	struct request r = {.h = {.nlmsg_len = NLMSG_LENGTH(sizeof(r.link)),
				  .nlmsg_type = RTM_NEWLINK,
				  .nlmsg_flags = NLM_F_CREATE | NLM_F_EXCL}};
	struct ifinfomsg none = {0};
	struct rtattr *info, *data, *peer;

	put_link(&r, p->name, p->mac, p);
	info = put(&r, IFLA_LINKINFO, NULL, 0);
	put(&r, IFLA_INFO_KIND, "veth", 5);
	data = put(&r, IFLA_INFO_DATA, NULL, 0);
	peer = put(&r, VETH_INFO_PEER, &none, sizeof(none));
	put_link(&r, p->far_name, p->far_mac, p);
	put_number(&r, IFLA_NET_NS_FD, (uint32_t)p->far_ns);
	end(&r, peer);
	end(&r, data);
	end(&r, info);
	return ask(&r);
}

void kit_net_await(const char *name)
{
	struct request r = {.h = {.nlmsg_len = NLMSG_LENGTH(sizeof(r.link)), .nlmsg_type = RTM_NEWLINK},
			    .link = {.ifi_index = (int)if_nametoindex(name)}};
	struct ifreq i = {0};
	int fd = socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0), err;
	double end = kit_now() + 60;

	snprintf(i.ifr_name, sizeof i.ifr_name, "%s", name);
	do
		CHECK(!ioctl(fd, SIOCGIFFLAGS, &i) && kit_now() < end, "%s is not up", name);
	while (!(i.ifr_flags & IFF_RUNNING) && (kit_nap(1), true));
	close(fd);
	err = ask(&r); /* changes nothing, but waits for whoever is about to change it */
	CHECK(!err, "%s: %s", name, strerror(err));
}

void kit_net_neighbour(const char *name, const char *address, const uint8_t mac[6])
{
	bool six = strchr(address, ':');
	struct request r = {.h = {.nlmsg_len = NLMSG_LENGTH(sizeof(r.neighbour)),
				  .nlmsg_type = RTM_NEWNEIGH,
				  .nlmsg_flags = NLM_F_CREATE | NLM_F_REPLACE},
			    .neighbour = {.ndm_family = six ? AF_INET6 : AF_INET,
					  .ndm_ifindex = (int)if_nametoindex(name),
					  .ndm_state = NUD_PERMANENT}};
	struct in6_addr in;
	int err;

	CHECK(inet_pton(r.neighbour.ndm_family, address, &in) == 1);
	put(&r, NDA_DST, &in, six ? sizeof(in) : sizeof(struct in_addr));
	put(&r, NDA_LLADDR, mac, 6);
	err = ask(&r);
	CHECK(!err, "%s at %s: %s", address, name, strerror(err));
}

void kit_net_route(const char *name, const char *address)
{
	bool six = strchr(address, ':');
	struct request r = {.h = {.nlmsg_len = NLMSG_LENGTH(sizeof(r.route)),
				  .nlmsg_type = RTM_NEWROUTE,
				  .nlmsg_flags = NLM_F_CREATE | NLM_F_EXCL},
			    .route = {.rtm_family = six ? AF_INET6 : AF_INET,
				      .rtm_dst_len = six ? 128 : 32,
				      .rtm_table = RT_TABLE_MAIN,
				      .rtm_protocol = RTPROT_STATIC,
				      .rtm_scope = RT_SCOPE_LINK,
				      .rtm_type = RTN_UNICAST}};
	struct in6_addr in;
	int err;

	CHECK(inet_pton(r.route.rtm_family, address, &in) == 1);
	put(&r, RTA_DST, &in, six ? sizeof(in) : sizeof(struct in_addr));
	put_number(&r, RTA_OIF, if_nametoindex(name));
	err = ask(&r);
	CHECK(!err, "%s by %s: %s", address, name, strerror(err));
}

void kit_net_mtu(const char *name, int mtu)
{
	struct ifreq i = {.ifr_mtu = mtu};
	int fd = socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0);

	snprintf(i.ifr_name, sizeof i.ifr_name, "%s", name);
	CHECK(!ioctl(fd, SIOCSIFMTU, &i), "%s: %s", name, strerror(errno));
	close(fd);
}

void kit_net_join(const char *name, const char *bridge)
{
	struct request r = {.h = {.nlmsg_len = NLMSG_LENGTH(sizeof(r.link)), .nlmsg_type = RTM_NEWLINK},
			    .link = {.ifi_index = (int)if_nametoindex(name)}};
	int err;

	put_number(&r, IFLA_MASTER, if_nametoindex(bridge));
	err = ask(&r);
	CHECK(!err, "%s to %s: %s", name, bridge, strerror(err));
}

void kit_net_make(const char *name)
{
	int err = make(name);

	CHECK(!err, "%s: %s", name, strerror(err));
}

bool kit_net_can(void)
{
	pid_t pid = kit_fork();

	if (!pid) {
		const char *what = "SKIP: there can be no network namespace here";
		int err = kit_own_network() ? 0 : errno;

		if (!err) {
			what = "SKIP: the kernel makes no bridge here";
			err = make("v0");
		}
		if (err)
			printf("%s: %s\n", what, strerror(err));
		fflush(stdout);
		_exit(err ? KIT_SKIP : 0);
	}
	return !kit_reap(pid);
}

void kit_net_set(const char *name, bool up)
{
	struct request r = {.h = {.nlmsg_len = NLMSG_LENGTH(sizeof(r.link)), .nlmsg_type = RTM_NEWLINK},
			    .link = {.ifi_index = (int)if_nametoindex(name),
				     .ifi_flags = up ? IFF_UP : 0,
				     .ifi_change = IFF_UP}};
	int err = ask(&r);

	CHECK(!err, "%s: %s", name, strerror(err));
}

int kit_net_try_address(const char *name, const char *address, bool there)
{
	bool six = strchr(address, ':');
	struct request r = {.h = {.nlmsg_len = NLMSG_LENGTH(sizeof(r.addr)),
				  .nlmsg_type = there ? RTM_NEWADDR : RTM_DELADDR,
				  .nlmsg_flags = there ? NLM_F_CREATE | NLM_F_EXCL : 0},
			    .addr = {.ifa_family = six ? AF_INET6 : AF_INET,
				     .ifa_prefixlen = six ? 64 : 24,
				     .ifa_flags = six ? IFA_F_NODAD : 0,
				     .ifa_index = if_nametoindex(name)}};
	struct in6_addr in;
	size_t size = six ? sizeof(in) : sizeof(struct in_addr);

	CHECK(inet_pton(r.addr.ifa_family, address, &in) == 1);
	put(&r, IFA_LOCAL, &in, size);
	put(&r, IFA_ADDRESS, &in, size);
	return ask(&r);
}

void kit_net_address(const char *name, const char *address, bool there)
{
	int err = kit_net_try_address(name, address, there);

	CHECK(!err, "%s %s: %s", name, address, strerror(err));
}
