/* Devices that are network interfaces, which --netdev names: their addresses, GUID and MTU, what follows the
 * interface, and what is refused.  Between hosts of the test's own.
 *
 *     proc-netdev [CASE]     default: all */
#include <arpa/inet.h>
#include <errno.h>
#include <net/if.h>
#include <sys/ioctl.h>
#include <sys/socket.h>

#include "hca/hca.h"
#include "host/devices.h"
#include "host/route.h"
#include "hosts.h"
#include "kit.h"
#include "net.h"

static struct ibv_context *ctx;
static struct kit_hosts hosts;
static uint64_t *told; /* of a child */

static void begin(unsigned mtu)
{
	hosts = (struct kit_hosts){.count = 2, .mtu = mtu};
	kit_hosts_make(&hosts);
	kit_host_enter(&hosts, 0);
}

static void named(const char *netdev)
{
	CHECK(!setenv("VERBENA_NETDEV", netdev, 1));
}

static void gid_of(uint8_t gid[16], const char *address)
{
	char mapped[64];

	snprintf(mapped, sizeof(mapped), "%s%s", strchr(address, ':') ? "" : "::ffff:", address);
	CHECK(inet_pton(AF_INET6, mapped, gid) == 1, "%s", address);
}

static void shows(uint32_t index, const char *address)
{
	union ibv_gid gid;
	uint8_t want[16];
	char text[INET6_ADDRSTRLEN];

	gid_of(want, address);
	CHECK(!ibv_query_gid(ctx, 1, (int)index, &gid));
	CHECK(!memcmp(gid.raw, want, 16), "index %u: %s instead of %s", index,
	      inet_ntop(AF_INET6, gid.raw, text, sizeof(text)), address);
}

static void is_up(bool up)
{
	struct ibv_port_attr a;

	CHECK(!ibv_query_port(ctx, 1, &a));
	CHECK(a.state == (up ? IBV_PORT_ACTIVE : IBV_PORT_DOWN), "state %d", a.state);
}

static void expect(enum ibv_event_type type)
{
	struct ibv_async_event ev;

	CHECK(!ibv_get_async_event(ctx, &ev));
	CHECK(ev.event_type == type, "%s instead of %s", ibv_event_type_str(ev.event_type),
	      ibv_event_type_str(type));
	ibv_ack_async_event(&ev);
}

/* An interface that goes down loses its addresses of IPv6, which is told, too. */
static void expect_state(enum ibv_event_type type)
{
	struct ibv_async_event ev;

	do {
		CHECK(!ibv_get_async_event(ctx, &ev));
		ibv_ack_async_event(&ev);
	} while (ev.event_type == IBV_EVENT_GID_CHANGE);
	CHECK(ev.event_type == type, "%s instead of %s", ibv_event_type_str(ev.event_type),
	      ibv_event_type_str(type));
}

static uint32_t active_mtu(void)
{
	struct ibv_port_attr a;

	CHECK(!ibv_query_port(ctx, 1, &a));
	return a.active_mtu;
}

static void set_mtu(const char *name, int mtu)
{
	struct ifreq ask = {.ifr_mtu = mtu};
	int fd = socket(AF_INET, SOCK_DGRAM, 0);

	strcpy(ask.ifr_name, name);
	CHECK(!ioctl(fd, SIOCSIFMTU, &ask), "%s", strerror(errno));
	close(fd);
}

static void addresses(void)
{
	begin(1500);
	named(KIT_HOST_NIC);
	ctx = kit_open();
	shows(0, kit_host_address(0, false));
	shows(1, hosts.ipv6 ? kit_host_address(0, true) : kit_host_address(0, false));
	shows(2, kit_host_address(0, false));
	shows(3, kit_host_address(0, false));
	kit_net_address(KIT_HOST_NIC, "10.88.0.9", true);
	expect(IBV_EVENT_GID_CHANGE);
	shows(0, kit_host_address(0, false));
	shows(2, "10.88.0.9");
	shows(3, kit_host_address(0, false));
	kit_net_address(KIT_HOST_NIC, kit_host_address(0, false), false);
	expect(IBV_EVENT_GID_CHANGE);
	shows(0, "10.88.0.9");
	is_up(true);
}

static void chosen_addresses(void)
{
	char netdev[200];

	begin(1500);
	kit_net_address(KIT_HOST_NIC, "10.88.0.8", true);
	kit_net_address(KIT_HOST_NIC, "10.88.1.9", true);
	snprintf(netdev, sizeof(netdev), KIT_HOST_NIC "@10.88.1.9@%s", kit_host_address(0, false));
	named(netdev);
	ctx = kit_open();
	shows(0, "10.88.1.9");
	shows(1, kit_host_address(0, false));
	shows(2, "10.88.1.9");
	kit_net_address(KIT_HOST_NIC, "10.88.1.9", false);
	expect(IBV_EVENT_GID_CHANGE);
	shows(0, kit_host_address(0, false));
	is_up(true);
	kit_net_address(KIT_HOST_NIC, kit_host_address(0, false), false);
	expect(IBV_EVENT_GID_CHANGE);
	expect(IBV_EVENT_PORT_ERR);
	is_up(false);
	kit_net_address(KIT_HOST_NIC, "10.88.1.9", true);
	expect(IBV_EVENT_GID_CHANGE);
	expect(IBV_EVENT_PORT_ACTIVE);
	shows(0, "10.88.1.9");
}

/* Also what happens at the cable's other end. */
static void the_interface_follows_its_carrier(void)
{
	begin(1500);
	named(KIT_HOST_NIC);
	ctx = kit_open();
	is_up(true);
	kit_net_set(KIT_HOST_NIC, false);
	expect_state(IBV_EVENT_PORT_ERR);
	is_up(false);
	kit_net_set(KIT_HOST_NIC, true);
	expect_state(IBV_EVENT_PORT_ACTIVE);
	kit_host_enter(&hosts, 1);
	kit_net_set(KIT_HOST_NIC, false);
	expect_state(IBV_EVENT_PORT_ERR);
	is_up(false);
	kit_net_set(KIT_HOST_NIC, true);
	expect_state(IBV_EVENT_PORT_ACTIVE);
	is_up(true);
}

/* The GUID of device k in a process with these settings, in this network namespace. */
static uint64_t guid_in(const char *netdev, const char *devices, uint32_t k)
{
	pid_t pid = kit_fork();

	if (!pid) {
		if (netdev)
			named(netdev);
		if (devices)
			CHECK(!setenv("VERBENA_DEVICES", devices, 1));
		*told = vb_devices_guid(k);
		_exit(0);
	}
	CHECK_EQ(kit_reap(pid), 0);
	return *told;
}

static void a_guid_follows_its_interface(void)
{
	begin(1500);
	told = kit_shared(sizeof(*told));
	CHECK(guid_in(NULL, NULL, 0) == guid_in(KIT_HOST_NIC, NULL, 0));
	CHECK(guid_in("lo," KIT_HOST_NIC, NULL, 1) == guid_in(KIT_HOST_NIC, NULL, 0));
	CHECK(guid_in("lo," KIT_HOST_NIC, NULL, 0) == guid_in("lo", NULL, 0));
	CHECK(guid_in("all", NULL, 0) == guid_in(KIT_HOST_NIC, NULL, 0));
	CHECK(guid_in(NULL, "2", 1) == guid_in("lo", NULL, 0)); /* which has 127.0.0.2 */
	CHECK(guid_in("lo", NULL, 0) != guid_in(KIT_HOST_NIC, NULL, 0));
	CHECK(guid_in("lo", NULL, 0));
}

/* Opening fails, and the sentence has what is wrong. */
static void refuses(const char *variable, const char *value, const char *words)
{
	struct ibv_device **list;
	pid_t pid = kit_fork();

	if (pid) {
		CHECK(!kit_reap(pid), "%s=%s", variable, value);
		return;
	}
	kit_log_begin("info");
	CHECK(!setenv(variable, value, 1));
	list = ibv_get_device_list(NULL);
	CHECK(list && list[0]);
	errno = 0;
	CHECK(!ibv_open_device(list[0]));
	CHECK_EQ(errno, EINVAL);
	KIT_LOG_SAYS("%s=%s%s", variable, value, words);
	_exit(0);
}

static void wrong_settings(void)
{
	begin(1500);
	refuses("VERBENA_NETDEV", "eth7",
		": there is no network interface eth7 in this network namespace. Its interfaces are "
		"lo, " KIT_HOST_NIC);
	refuses("VERBENA_NETDEV", KIT_HOST_NIC "@10.1.2.3",
		": the interface " KIT_HOST_NIC " does not have the address 10.1.2.3");
	refuses("VERBENA_NETDEV", KIT_HOST_NIC "@if2", ": \"if2\" is not an IP address");
	refuses("VERBENA_UDP_GSO", "no", " is not valid: use on or off");
	named(KIT_HOST_NIC);
	refuses("VERBENA_DEVICES", "2", " cannot be combined with --netdev (VERBENA_NETDEV)");
	refuses("VERBENA_LINK", "infiniband", " cannot be combined with --netdev (VERBENA_NETDEV)");
	refuses("VERBENA_UDP_CHECKSUM", "1", " is not valid: use on or off");
	kit_net_set(KIT_HOST_NIC, false);
	refuses("VERBENA_NETDEV", "all", ": no network interface is up and has an address, but loopback");
}

/* A queue pair in INIT; to RTR to that address and with that path MTU: 0 or errno. */
static int to_rtr(struct ibv_qp *qp, const char *address, enum ibv_mtu mtu)
{
	struct ibv_qp_attr a = {.qp_state = IBV_QPS_RTR,
				.path_mtu = mtu,
				.dest_qp_num = 77,
				.ah_attr = {.is_global = 1, .port_num = 1}};

	gid_of(a.ah_attr.grh.dgid.raw, address);
	return ibv_modify_qp(qp, &a,
			     IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN |
				 IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER);
}

static struct ibv_ah *handle(struct ibv_pd *pd, const char *address, unsigned sgid_index)
{
	struct ibv_ah_attr av = {.is_global = 1, .port_num = 1, .grh = {.sgid_index = (uint8_t)sgid_index}};

	gid_of(av.grh.dgid.raw, address);
	return ibv_create_ah(pd, &av);
}

/* A datagram is no longer than the port's MTU, and an address handle has addresses of one version. */
static void a_datagram_fits(struct ibv_pd *pd)
{
	struct ibv_ah *ah = handle(pd, kit_host_address(1, false), 0);
	struct kit_end ud;

	CHECK(ah, "errno %d", errno);
	kit_end_open_as(&ud, pd, 8, 4096, IBV_QPT_UD);
	CHECK_EQ(kit_datagram(&ud, ah, 0x123456, 1, 0, 1024), 0);
	CHECK_EQ(kit_wait(&ud, 20).status, IBV_WC_SUCCESS);
	CHECK_EQ(kit_datagram(&ud, ah, 0x123456, 1, 0, 1028), 0);
	CHECK_EQ(kit_wait(&ud, 20).status, IBV_WC_LOC_LEN_ERR);
	KIT_LOG_SAYS("at most 1024 bytes in one packet");
	kit_end_close(&ud);
	CHECK_EQ(ibv_destroy_ah(ah), 0);
	if (!hosts.ipv6)
		return;
	CHECK(!handle(pd, kit_host_address(1, true), 0) && errno == EINVAL);
	KIT_LOG_SAYS("ibv_create_ah: sgid_index 0 is %s, but dgid is %s; both must be IPv6",
		     kit_host_address(0, false), kit_host_address(1, true));
}

static void the_path_mtu_fits(void)
{
	struct kit_end e;
	struct ibv_pd *pd;
	char words[200];

	begin(1500);
	named(KIT_HOST_NIC);
	kit_log_begin("info");
	ctx = kit_open();
	pd = ibv_alloc_pd(ctx);
	CHECK_EQ(active_mtu(), IBV_MTU_1024);
	kit_end_open(&e, pd, 4, 4096);
	CHECK_EQ(to_rtr(e.qp, kit_host_address(1, false), IBV_MTU_2048), EINVAL);
	snprintf(words, sizeof(words),
		 "path_mtu 4 (2048 bytes) does not fit the MTU of 1500 on the way to %s through " KIT_HOST_NIC
		 "; set path_mtu to 3 (1024 bytes) at both ends, or raise the MTU (ip link set " KIT_HOST_NIC
		 " mtu 2144)",
		 kit_host_address(1, false));
	KIT_LOG_SAYS("%s", words);
	if (hosts.ipv6) { /* from an address of IPv4 */
		CHECK_EQ(to_rtr(e.qp, kit_host_address(1, true), IBV_MTU_1024), EINVAL);
		KIT_LOG_SAYS(
		    "sgid_index 0 is %s, but dgid is %s; both must be IPv6: set sgid_index to 1, which is "
		    "%s",
		    kit_host_address(0, false), kit_host_address(1, true), kit_host_address(0, true));
	}
	CHECK_EQ(to_rtr(e.qp, kit_host_address(0, false), IBV_MTU_4096), 0); /* this host's */
	a_datagram_fits(pd);
	kit_end_close(&e);
	set_mtu(KIT_HOST_NIC, 9000);
	for (double start = kit_now(); active_mtu() != IBV_MTU_4096;) /* no event tells */
		CHECK(kit_now() - start < 20);
	kit_end_open(&e, pd, 4, 4096);
	CHECK_EQ(to_rtr(e.qp, kit_host_address(1, false), IBV_MTU_4096), 0);
	kit_end_close(&e);
}

static void an_interface_that_is_down_is_said(void)
{
	begin(1500);
	kit_net_set(KIT_HOST_NIC, false);
	named(KIT_HOST_NIC);
	kit_log_begin("info");
	ctx = kit_open();
	KIT_LOG_SAYS("the port of the device is down until the interface %s is up", KIT_HOST_NIC);
	is_up(false);
	kit_net_set(KIT_HOST_NIC, true);
	expect_state(IBV_EVENT_PORT_ACTIVE);
	is_up(true);
}

static void a_route_has_its_interface(void)
{
	struct vb_route_to r;
	uint8_t gid[16], own[16];

	begin(1400);
	gid_of(own, kit_host_address(0, false));
	gid_of(gid, kit_host_address(1, false));
	CHECK_EQ(vb_route_find(&r, gid, 0), 0);
	CHECK(!strcmp(r.ifname, KIT_HOST_NIC) && r.ifindex == if_nametoindex(KIT_HOST_NIC), "%s", r.ifname);
	CHECK(r.direct && !r.local && r.mtu == 1400 && !memcmp(r.source, own, 16), "mtu %u", r.mtu);
	CHECK_EQ(vb_route_find(&r, own, 0), 0);
	CHECK(r.local);
	gid_of(gid, "203.0.113.7");
	CHECK_EQ(vb_route_find(&r, gid, 0), ENETUNREACH);
	CHECK(!r.ifindex && !*r.ifname);
	if (!hosts.ipv6)
		return;
	gid_of(gid, kit_host_address(1, true));
	gid_of(own, kit_host_address(0, true));
	CHECK_EQ(vb_route_find(&r, gid, 0), 0);
	CHECK(!strcmp(r.ifname, KIT_HOST_NIC) && r.mtu == 1400 && !memcmp(r.source, own, 16));
	gid_of(gid, "fd99::7");
	CHECK_EQ(vb_route_find(&r, gid, 0), ENETUNREACH);
}

/* Loopback leads to nobody whom shared memory does not reach. */
static void loopback_is_of_little_use(void)
{
	kit_net_begin();
	CHECK(!setenv("VERBENA_NETDEV", "lo", 1));
	kit_log_begin("warn");
	CHECK(!ibv_close_device(kit_open()));
	KIT_LOG_SAYS("names lo, which leads to %s only", "this host");
}

/* A program that has not been told of --netdev. */
static void the_option_is_named(void)
{
	struct kit_card card = {.qpn = 0x123456};
	struct kit_end e;

	begin(1500);
	kit_log_begin("info");
	gid_of(card.gid.raw, kit_host_address(1, false));
	kit_end_open(&e, ibv_alloc_pd(kit_open()), 4, 4096);
	kit_connect_with(&e, &card, 10, 1);
	CHECK_EQ(kit_post(&e, IBV_WR_SEND, 2, 0, 8, NULL, 0), 0);
	CHECK_EQ(kit_wait(&e, 20).status, IBV_WC_RETRY_EXC_ERR);
	KIT_LOG_SAYS("(dgid %s) is not an address of this network namespace", kit_host_address(1, false));
	KIT_LOG_SAYS("here %s", "verbena run --netdev=" KIT_HOST_NIC " (VERBENA_NETDEV)");
	kit_end_close(&e);
}

int main(int argc, char **argv)
{
	static const struct kit_case cases[] = {
	    {.name = "addresses", .run = addresses},
	    {.name = "chosen", .run = chosen_addresses},
	    {.name = "carrier", .run = the_interface_follows_its_carrier},
	    {.name = "guid", .run = a_guid_follows_its_interface},
	    {.name = "wrong", .run = wrong_settings},
	    {.name = "mtu", .run = the_path_mtu_fits},
	    {.name = "down", .run = an_interface_that_is_down_is_said},
	    {.name = "route", .run = a_route_has_its_interface},
	    {.name = "lo", .run = loopback_is_of_little_use},
	    {.name = "option", .run = the_option_is_named},
	};

	if (!kit_hosts_can())
		return KIT_SKIP;
	KIT_CASES(cases, 60);
	return 0;
}
