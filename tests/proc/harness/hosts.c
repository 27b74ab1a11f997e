#include "hosts.h"

#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <sched.h>
#include <stdio.h>

#include "kit.h"
#include "net.h"

#define SWITCH "switch"

const char *kit_host_address(unsigned host, bool six)
{
	static _Thread_local char text[4][32]; /* four may be told in one line */
	static _Thread_local unsigned next;
	char *t = text[next++ % 4];

	snprintf(t, sizeof text[0], six ? "2001:db8::%x" : "198.51.100.%u", host + 1);
	return t;
}

uint8_t kit_host_gid_index(struct ibv_context *ctx, unsigned host, bool six)
{
	union ibv_gid want = {.raw = {[10] = 0xff, [11] = 0xff}}, gid;

	CHECK(inet_pton(six ? AF_INET6 : AF_INET, kit_host_address(host, six), want.raw + (six ? 0 : 12)) ==
	      1);
	for (int i = 0; i < 255; i++)
		if (!ibv_query_gid(ctx, 1, i, &gid) && !memcmp(&gid, &want, sizeof gid))
			return (uint8_t)i;
	CHECK(false, "the device has no GID of %s", kit_host_address(host, six));
	return 0;
}

static const uint8_t *mac_of(unsigned host, uint8_t mac[6])
{
	memcpy(mac, (uint8_t[]){2, 0, 0, 0, 0, (uint8_t)(host + 1)}, 6);
	return mac;
}

/* Of the router's end of a host's cable. */
static const uint8_t *router_mac(unsigned host, uint8_t mac[6])
{
	memcpy(mac, (uint8_t[]){2, 0, 0, 0, 1, (uint8_t)(host + 1)}, 6);
	return mac;
}

static int own_ns(void)
{
	int fd = open("/proc/thread-self/ns/net", O_RDONLY | O_CLOEXEC);

	CHECK(fd >= 0);
	return fd;
}

static void enter(int ns)
{
	CHECK(!setns(ns, CLONE_NEWNET));
}

void kit_host_enter(const struct kit_hosts *h, unsigned host)
{
	CHECK(host < h->count);
	enter(h->ns[host]);
}

/* In the host: its interface is there. */
static void dress(struct kit_hosts *h, unsigned host)
{
	int err;

	kit_host_enter(h, host);
	kit_net_address(KIT_HOST_NIC, kit_host_address(host, false), true);
	err = kit_net_try_address(KIT_HOST_NIC, kit_host_address(host, true), true);
	CHECK(!err || err == EOPNOTSUPP || err == EACCES || err == EPERM, "%s", strerror(err));
	h->ipv6 = h->ipv6 && !err;
	kit_net_set("lo", true);
	kit_net_set(KIT_HOST_NIC, true);
	enter(h->middle);
}

/* In the host: packets to the others pass at once. */
static void meet(const struct kit_hosts *h, unsigned host)
{
	uint8_t mac[6];

	kit_host_enter(h, host);
	kit_net_await(KIT_HOST_NIC);
	for (unsigned i = 0; i < h->count; i++) {
		const uint8_t *next = h->routed ? router_mac(host, mac) : mac_of(i, mac);

		if (i == host)
			continue;
		kit_net_neighbour(KIT_HOST_NIC, kit_host_address(i, false), next);
		if (h->ipv6)
			kit_net_neighbour(KIT_HOST_NIC, kit_host_address(i, true), next);
	}
	enter(h->middle);
}

/* From the switch, or from the other host, to that one. */
static void plug(const struct kit_hosts *h, unsigned host, const char *name)
{
	uint8_t first[6], far[6];
	struct kit_net_pair p = {.name = name,
				 .mac = mac_of(0, first),
				 .far_name = KIT_HOST_NIC,
				 .far_mac = mac_of(host, far),
				 .far_ns = h->ns[host],
				 .mtu = h->mtu,
				 .no_gso = h->relayed};
	int err;

	if (h->routed)
		p.mac = router_mac(host, first);
	else if (h->count > 2 || h->relayed)
		p.mac = NULL;
	err = kit_net_try_pair(&p);
	CHECK(!err, "veth: %s", strerror(err));
}

static void plug_into_switch(const struct kit_hosts *h)
{
	bool bridged = !h->relayed && !h->routed;
	char name[16];

	if (bridged) {
		kit_net_make(SWITCH);
		kit_net_set(SWITCH, true);
	}
	for (unsigned i = 0; i < h->count; i++) {
		snprintf(name, sizeof name, KIT_RELAY_NIC, i);
		plug(h, i, name);
		if (bridged)
			kit_net_join(name, SWITCH);
		kit_net_set(name, true);
	}
}

static void forward(const char *file)
{
	int fd = open(file, O_WRONLY | O_CLOEXEC);

	CHECK(fd >= 0 && write(fd, "1", 1) == 1 && !close(fd), "%s: %s", file, strerror(errno));
}

/* The namespace between the hosts is a router, which has addresses for its ICMP messages. */
static void route(const struct kit_hosts *h)
{
	char name[16];
	uint8_t mac[6];

	forward("/proc/sys/net/ipv4/ip_forward");
	if (h->ipv6)
		forward("/proc/sys/net/ipv6/conf/all/forwarding");
	for (unsigned i = 0; i < h->count; i++) {
		snprintf(name, sizeof name, KIT_RELAY_NIC, i);
		kit_net_await(name);
		if (!i)
			kit_net_address(name, "203.0.113.1", true);
		if (!i && h->ipv6)
			kit_net_address(name, "2001:db8:0:1::1", true);
		for (unsigned six = 0; six <= h->ipv6; six++) {
			kit_net_route(name, kit_host_address(i, six));
			kit_net_neighbour(name, kit_host_address(i, six), mac_of(i, mac));
		}
	}
}

void kit_hosts_make(struct kit_hosts *h)
{
	CHECK(h->count >= 2 && h->count <= KIT_HOSTS && h->mtu);
	CHECK(h->count == 2 || (!h->relayed && !h->routed));
	kit_net_begin();
	h->middle = own_ns();
	h->ipv6 = true;
	for (unsigned i = 0; i < h->count; i++) {
		CHECK(!unshare(CLONE_NEWNET));
		h->ns[i] = own_ns();
	}
	enter(h->middle);
	if (h->count == 2 && !h->relayed && !h->routed) {
		kit_host_enter(h, 0);
		plug(h, 1, KIT_HOST_NIC);
		enter(h->middle);
	} else {
		plug_into_switch(h);
	}
	for (unsigned i = 0; i < h->count; i++)
		dress(h, i);
	for (unsigned i = 0; i < h->count; i++)
		meet(h, i);
	if (h->routed)
		route(h);
}

void kit_hosts_free(struct kit_hosts *h)
{
	for (unsigned i = 0; i < h->count; i++)
		close(h->ns[i]);
	close(h->middle);
}

bool kit_hosts_can(void)
{
	pid_t pid = kit_fork();

	if (!pid) {
		const char *what = "SKIP: there can be no network namespace here";
		int err = kit_own_network() ? 0 : errno, ns;

		if (!err) {
			what = "SKIP: the kernel makes no veth here";
			ns = own_ns();
			err = unshare(CLONE_NEWNET) ? errno : 0;
			if (!err)
				err = kit_net_try_pair(&(struct kit_net_pair){
				    .name = "v0", .far_name = "v1", .far_ns = ns, .mtu = 1500});
		}
		if (err)
			printf("%s: %s\n", what, strerror(err));
		fflush(stdout);
		_exit(err ? KIT_SKIP : 0);
	}
	return !kit_reap(pid);
}
