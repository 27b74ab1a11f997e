/* What a request says that got no answer from another host: each obstacle on the way has a sentence of its
 * own.
 *
 *     proc-why_hosts [CASE]     default: all */
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <net/if.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <unistd.h>

#include "command.h"
#include "hosts.h"
#include "iba/roce.h"
#include "kit.h"
#include "net.h"

static struct kit_hosts hosts;
static struct kit_end e;
static struct kit_card card;
static const char *level = "info";

static struct vb_gid gid_of(const char *address)
{
	char mapped[64];
	struct vb_gid gid;

	snprintf(mapped, sizeof(mapped), "%s%s", strchr(address, ':') ? "" : "::ffff:", address);
	CHECK(inet_pton(AF_INET6, mapped, &gid) == 1, "%s", address);
	return gid;
}

/* On the first of two hosts, a queue pair in INIT for one at that address. */
static void open_for(const char *address)
{
	struct vb_gid gid = gid_of(address);
	char netdev[100];

	snprintf(netdev, sizeof(netdev), KIT_HOST_NIC "@%s", kit_host_address(0, strchr(address, ':')));
	CHECK(!setenv("VERBENA_NETDEV", netdev, 1));
	kit_log_begin(level);
	card = (struct kit_card){.qpn = 0x123456};
	memcpy(&card.gid, &gid, sizeof(gid));
	kit_end_open(&e, ibv_alloc_pd(kit_open()), 4, 4096);
}

/* The same, connected. */
static void begin_to(const char *address, int timeout, int retries)
{
	open_for(address);
	kit_connect_with(&e, &card, timeout, retries);
}

static void begin_with(unsigned mtu)
{
	hosts = (struct kit_hosts){.count = 2, .mtu = mtu};
	kit_hosts_make(&hosts);
	kit_host_enter(&hosts, 0);
}

static void begin(void)
{
	begin_with(1500);
}

static void fails(uint32_t len)
{
	CHECK_EQ(kit_post(&e, IBV_WR_SEND, 2, 0, len, NULL, 0), 0);
	CHECK_EQ(kit_wait(&e, 30).status, IBV_WC_RETRY_EXC_ERR);
}

/* A socket on the other host, at that address and port; it reads nothing. */
static int socket_there(const char *address, uint16_t port)
{
	struct sockaddr_in a = {.sin_family = AF_INET, .sin_port = htons(port)};
	int fd;

	CHECK(inet_pton(AF_INET, address, &a.sin_addr) == 1);
	kit_host_enter(&hosts, 1);
	fd = socket(AF_INET, SOCK_DGRAM, 0);
	CHECK(fd >= 0 && !bind(fd, (struct sockaddr *)&a, sizeof(a)), "%s", strerror(errno));
	kit_host_enter(&hosts, 0);
	return fd;
}

static void nobody_listens(void)
{
	begin();
	begin_to(kit_host_address(1, false), 10, 2);
	fails(8);
	KIT_LOG_SAYS("nobody at %s listens on UDP port 4791", kit_host_address(1, false));
}

static void nobody_listens_by_ipv6(void)
{
	begin();
	if (!hosts.ipv6)
		return;
	begin_to(kit_host_address(1, true), 10, 2);
	fails(8);
	KIT_LOG_SAYS("nobody at %s listens on UDP port 4791", kit_host_address(1, true));
}

/* The kernel gives up on a neighbour after a second or three, unless it is told to be quick. */
static void nobody_is_there(void)
{
	int fd;

	begin();
	fd = open("/proc/sys/net/ipv4/neigh/" KIT_HOST_NIC "/retrans_time_ms", O_WRONLY);
	if (fd >= 0)
		CHECK(write(fd, "20", 2) == 2 && !close(fd));
	begin_to("198.51.100.77", fd < 0 ? 18 : 14, 6);
	fails(8);
	KIT_LOG_SAYS("no host answers at %s (No route to host)", "198.51.100.77");
}

static void no_route_leads_there(void)
{
	begin();
	begin_to("203.0.113.7", 10, 2);
	fails(8);
	KIT_LOG_SAYS("this host has no route to %s: Network is unreachable through " KIT_HOST_NIC,
		     "203.0.113.7");
}

static void another_interface_leads_there(void)
{
	begin();
	kit_net_make("other0");
	kit_net_address("other0", "203.0.113.1", true);
	kit_net_set("other0", true);
	begin_to("203.0.113.7", 10, 2);
	fails(8);
	KIT_LOG_SAYS(
	    "the route to %s leads through other0, which is not the interface of this queue pair's device",
	    "203.0.113.7");
}

static void the_interface_is_down(void)
{
	begin();
	begin_to(kit_host_address(1, false), 10, 2);
	kit_net_set(KIT_HOST_NIC, false);
	fails(8);
	KIT_LOG_SAYS("the interface %s, which leads to", KIT_HOST_NIC);
}

static void packets_are_too_long(void)
{
	struct ifreq ask = {.ifr_name = KIT_HOST_NIC, .ifr_mtu = 1000};
	int fd;

	begin();
	fd = socket_there(kit_host_address(1, false), VB_ROCE_PORT);
	begin_to(kit_host_address(1, false), 10, 2);
	CHECK(!ioctl(socket(AF_INET, SOCK_DGRAM, 0), SIOCSIFMTU, &ask));
	fails(1024);
	KIT_LOG_SAYS(
	    "packets of this queue pair are longer than the way to %s takes, whose MTU is 1000 bytes; set "
	    "path_mtu to 512 bytes",
	    kit_host_address(1, false));
	close(fd);
}

static void nothing_comes_back(void)
{
	int fd;

	begin();
	fd = socket_there(kit_host_address(1, false), VB_ROCE_PORT);
	begin_to(kit_host_address(1, false), 10, 2);
	fails(8);
	KIT_LOG_SAYS("no RoCEv2 packet has arrived from %s on " KIT_HOST_NIC, kit_host_address(1, false));
	close(fd);
}

static uint32_t acked; /* the PSN that send_from() acknowledges */

/* Sends a packet to the queue pair, from an address and a port of the other host, whose ICRC is that of a
 * packet between `from` and it. */
static void send_from(int fd, uint16_t port, const char *from, bool spoil)
{
	struct vb_roce_ends ends = {
	    .src = gid_of(from), .dst = gid_of(kit_host_address(0, false)), .port = port};
	struct sockaddr_in to = {.sin_family = AF_INET, .sin_port = htons(VB_ROCE_PORT)};
	uint8_t pkt[VB_BTH_LEN + 4 + VB_ICRC_LEN] = {0x11 /* RC ACKNOWLEDGE */, 0x40, 0xff, 0xff};
	struct vb_roce_path path;

	CHECK(inet_pton(AF_INET, kit_host_address(0, false), &to.sin_addr) == 1);
	pkt[5] = (uint8_t)(e.qp->qp_num >> 16);
	pkt[6] = (uint8_t)(e.qp->qp_num >> 8);
	pkt[7] = (uint8_t)e.qp->qp_num;
	pkt[9] = (uint8_t)(acked >> 16);
	pkt[10] = (uint8_t)(acked >> 8);
	pkt[11] = (uint8_t)acked;
	vb_roce_path_init(&path, &ends);
	vb_roce_seal(&path, 0, pkt, sizeof(pkt) - VB_ICRC_LEN);
	pkt[sizeof(pkt) - 5] ^= spoil;
	CHECK(sendto(fd, pkt, sizeof(pkt), 0, (struct sockaddr *)&to, sizeof(to)) == sizeof(pkt), "%s",
	      strerror(errno));
}

static int plain_socket(const char *address, uint16_t port)
{
	int fd = socket_there(address, port), whole = IP_PMTUDISC_DO;

	CHECK(!setsockopt(fd, IPPROTO_IP, IP_MTU_DISCOVER, &whole, sizeof(whole))); /* identification 0 */
	return fd;
}

static void addresses_are_translated(void)
{
	int quiet, fd;

	begin();
	kit_host_enter(&hosts, 1);
	kit_net_address(KIT_HOST_NIC, "198.51.100.99", true);
	quiet = socket_there(kit_host_address(1, false), VB_ROCE_PORT);
	fd = plain_socket("198.51.100.99", 50000);
	begin_to(kit_host_address(1, false), 14, 2);
	send_from(fd, 50000, kit_host_address(1, false), false);
	fails(8);
	KIT_LOG_SAYS("(NAT): packets of %s arrive from 198.51.100.99", kit_host_address(1, false));
	close(quiet);
	close(fd);
}

/* An end that only receives, and whose peer's packets have another source address. */
static void a_receiver_sees_translated_addresses(void)
{
	char there[64];
	int fd;

	snprintf(there, sizeof(there), "%s", kit_host_address(1, false));
	begin();
	kit_host_enter(&hosts, 1);
	kit_net_address(KIT_HOST_NIC, "198.51.100.99", true);
	fd = plain_socket("198.51.100.99", 50000);
	level = "warn";
	open_for(there);
	kit_connect_with(&e, &card, 14, 2);
	for (int i = 0; i < 3; i++)
		send_from(fd, 50000, there, false);
	KIT_LOG_SAYS("QP 0x%06x expects packets from %s, but they arrive from 198.51.100.99", e.qp->qp_num,
		     there);
	send_from(fd, 50000, there, false);
	if (kit_may_be_read()) {
		kit_command_awaits("qp",
				   "discarded: 4 packets with a wrong checksum (ICRC), the last one from "
				   "198.51.100.99: something translates addresses (NAT)");
		kit_command_says("qp --json", "\"wrong_icrcs_received\":%s", "4");
		kit_command_says("qp --json", "\"last_from\":\"%s\"", "198.51.100.99");
		kit_command_says("qp --json", "\"translated\":%s", "true");
		kit_command_says(
		    "explain",
		    "[wrong-icrc] 4 packets for it had a wrong checksum (ICRC) and were discarded; the last "
		    "one "
		    "came from 198.51.100.99, but its peer has the address %s. Something on the way "
		    "translates",
		    there);
	}
	CHECK_EQ(kit_log_count("(ICRC)"), 1);
	close(fd);
}

/* Nothing comes to an end that only receives: that is no fault, and is shown. */
static void a_receiver_hears_nothing(void)
{
	begin();
	begin_to(kit_host_address(1, false), 14, 2);
	if (!kit_may_be_read()) {
		printf("SKIP: kernel.yama.ptrace_scope forbids to read the memory of a process\n");
		return;
	}
	kit_command_says("explain",
			 "[never-heard] no right RoCEv2 packet has ever arrived from its peer's address, %s",
			 kit_host_address(1, false));
	kit_command_says("explain", "what waits is normal for an idle program%s", "");
}

/* An end without --netdev, which only receives. */
static void the_option_is_missing(void)
{
	struct vb_gid gid;

	begin();
	gid = gid_of(kit_host_address(1, false));
	kit_log_begin("warn");
	card = (struct kit_card){.qpn = 0x123456};
	memcpy(&card.gid, &gid, sizeof(gid));
	kit_end_open(&e, ibv_alloc_pd(kit_open()), 4, 4096);
	kit_connect(&e, &card);
	KIT_LOG_SAYS("QP 0x%06x is connected to an address that is not reached: the GID in the "
		     "path (dgid %s) is not an address of this network namespace",
		     e.qp->qp_num, kit_host_address(1, false));
	KIT_LOG_SAYS("verbena run --netdev=%s", KIT_HOST_NIC);
	if (kit_may_be_read())
		kit_command_says("explain", "[unreachable] the GID in the path (dgid %s) is not an address",
				 kit_host_address(1, false));
}

/* Retries look for the reason, and explain shows it. */
static void explain_knows_the_reason(void)
{
	char want[200];

	begin();
	if (!kit_may_be_read()) {
		printf("SKIP: kernel.yama.ptrace_scope forbids to read the memory of a process\n");
		return;
	}
	begin_to(kit_host_address(1, false), 16, 7); /* 268 ms, eight times */
	CHECK_EQ(kit_post(&e, IBV_WR_SEND, 2, 0, 8, NULL, 0), 0);
	snprintf(want, sizeof(want), "nobody at %s listens on UDP port 4791 (ICMP port unreachable)",
		 kit_host_address(1, false));
	kit_command_awaits("explain", want);
	kit_command_says("explain", "[unreachable] the peer is at %s, on another host",
			 kit_host_address(1, false));
}

/* A short message is acknowledged first, or none; and a long one is not. */
static void long_message(bool first, const char *says)
{
	const char *there;
	int quiet, fd;

	begin_with(9000);
	there = kit_host_address(1, false);
	quiet = socket_there(there, VB_ROCE_PORT);
	fd = plain_socket(there, 50000);
	open_for(there);
	kit_to_rtr_with(&e, &card, IBV_MTU_4096);
	kit_to_rts(&e, 14, 2);
	if (first)
		CHECK_EQ(kit_post(&e, IBV_WR_SEND, 2, 0, 64, NULL, 0), 0);
	acked = first ? e.card.psn : e.card.psn - 1; /* which is no answer */
	send_from(fd, 50000, there, false);
	if (first)
		CHECK_EQ(kit_wait(&e, 30).status, IBV_WC_SUCCESS);
	fails(3000);
	KIT_LOG_SAYS(says, there);
	close(quiet);
	close(fd);
}

static void long_packets_are_lost(void)
{
	long_message(true,
		     "packets of up to 64 bytes to %s were acknowledged, but of this longer message, with "
		     "packets of path_mtu = 4096 bytes, none is");
}

static void long_packets_may_be_lost(void)
{
	long_message(
	    false, "If short messages pass (perftest: -s 64), packets of path_mtu = 4096 bytes are too long");
}

static void packets_are_damaged(void)
{
	int quiet, fd;

	begin();
	quiet = socket_there(kit_host_address(1, false), VB_ROCE_PORT);
	fd = plain_socket(kit_host_address(1, false), 50000);
	begin_to(kit_host_address(1, false), 14, 2);
	send_from(fd, 50000, kit_host_address(1, false), true);
	fails(8);
	KIT_LOG_SAYS("a RoCEv2 packet from %s to %s has a wrong checksum (ICRC) and is discarded",
		     kit_host_address(1, false), kit_host_address(0, false));
	KIT_LOG_SAYS("1 packet from %s had a wrong checksum (ICRC)", kit_host_address(1, false));
	close(quiet);
	close(fd);
}

/* Right packets that are none for this queue pair's requests, while these are repeated: the host is well. */
static void others_there_answer(void)
{
	struct ibv_wc wc = {0};
	int quiet, fd;

	begin();
	quiet = socket_there(kit_host_address(1, false), VB_ROCE_PORT);
	fd = plain_socket(kit_host_address(1, false), 50000);
	begin_to(kit_host_address(1, false), 14, 2);
	CHECK_EQ(kit_post(&e, IBV_WR_SEND, 2, 0, 8, NULL, 0), 0);
	do {
		send_from(fd, 50000, kit_host_address(1, false), false);
		kit_nap(1);
	} while (!ibv_poll_cq(e.cq, 1, &wc));
	CHECK_EQ(wc.status, IBV_WC_RETRY_EXC_ERR);
	KIT_LOG_SAYS("RoCEv2 packets from %s arrive", kit_host_address(1, false));
	close(quiet);
	close(fd);
}

static void nothing_comes_any_more(void)
{
	int quiet, fd;

	begin();
	quiet = socket_there(kit_host_address(1, false), VB_ROCE_PORT);
	fd = plain_socket(kit_host_address(1, false), 50000);
	begin_to(kit_host_address(1, false), 8, 0);
	send_from(fd, 50000, kit_host_address(1, false), false);
	kit_nap(200); /* the time that the sentence tells */
	fails(8);
	KIT_LOG_SAYS("%s was heard last 0.", kit_host_address(1, false));
	KIT_LOG_SAYS_NOT("path_mtu");
	close(quiet);
	close(fd);
}

/* What came last came just before the request: it tells nothing of the time in which that was repeated. */
static void nothing_came_while_it_was_repeated(void)
{
	int quiet, fd;

	begin();
	quiet = socket_there(kit_host_address(1, false), VB_ROCE_PORT);
	fd = plain_socket(kit_host_address(1, false), 50000);
	begin_to(kit_host_address(1, false), 14, 2);
	send_from(fd, 50000, kit_host_address(1, false), false);
	fails(8);
	KIT_LOG_SAYS("%s was heard last 0.", kit_host_address(1, false));
	close(quiet);
	close(fd);
}

/* The process there has ended: its port was open until then. */
static void nobody_listens_any_more(void)
{
	int fd;

	begin();
	fd = plain_socket(kit_host_address(1, false), 50000);
	begin_to(kit_host_address(1, false), 10, 2);
	send_from(fd, 50000, kit_host_address(1, false), false);
	fails(8);
	KIT_LOG_SAYS("nobody at %s listens on UDP port 4791 any more", kit_host_address(1, false));
	KIT_LOG_SAYS("the process there has %s", "ended");
	close(fd);
}

/* The file about this process has the way there. */
static void the_bundle_has_the_route(const char *there)
{
	char dir[] = "/tmp/verbena-why-XXXXXX", words[100], want[200], text[1 << 16];
	size_t n;
	FILE *f;

	CHECK(mkdtemp(dir));
	snprintf(words, sizeof(words), "bundle -o %s/report", dir);
	kit_command(words);
	f = fopen(strchr(words, '/'), "re");
	CHECK(f, "%s", strerror(errno));
	n = fread(text, 1, sizeof(text) - 1, f);
	text[n] = 0;
	fclose(f);
	CHECK(!unlink(strchr(words, '/')) && !rmdir(dir));
	snprintf(want, sizeof(want),
		 "route to %s: through " KIT_HOST_NIC ", next hop %s, from %s, MTU 1500\n", there, there,
		 kit_host_address(0, false));
	CHECK(strstr(text, want), "'%s' is not in: %s", want, text);
}

/* A request that waits for another host: explained from outside, and said unasked. */
static void a_request_waits(void)
{
	char there[64];
	int fd;

	snprintf(there, sizeof(there), "%s", kit_host_address(1, false));
	CHECK(!setenv("VERBENA_WAIT_WARN", "0.2", 1));
	begin();
	fd = socket_there(there, VB_ROCE_PORT);
	begin_to(there, 16, 7); /* 268 ms */
	CHECK_EQ(kit_post(&e, IBV_WR_SEND, 2, 0, 8, NULL, 0), 0);
	KIT_LOG_SAYS("has been outstanding for %s", "0.");
	KIT_LOG_SAYS("no RoCEv2 packet has arrived from %s on " KIT_HOST_NIC, there);
	if (!kit_may_be_read()) {
		printf("SKIP: kernel.yama.ptrace_scope forbids to read the memory of a process\n");
		return;
	}
	kit_command_says("explain", "-> QP 0x123456 at %s: 1 request outstanding", there);
	kit_command_says("explain", "[peer-unreadable] the peer is at %s, on another host", there);
	kit_command_says("explain", ". This queue pair has sent %s", "");
	kit_command_says("explain", " again, after %s", "");
	kit_command_says("explain", ". No round trip was %s yet", "measured");
	kit_command_says("explain --json", "\"cause\":\"%s\"", "peer-unreadable");
	kit_command_says("qp", "peer QP 0x123456 at %s, over the network", there);
	the_bundle_has_the_route(there);
	close(fd);
}

/* A child on the other host: a queue pair without receives, connected to the parent's. */
static void receive_nothing(int sock)
{
	struct kit_card there;
	char netdev[100], c;

	kit_host_enter(&hosts, 1);
	snprintf(netdev, sizeof(netdev), KIT_HOST_NIC "@%s", kit_host_address(1, false));
	CHECK(!setenv("VERBENA_NETDEV", netdev, 1));
	kit_end_open(&e, ibv_alloc_pd(kit_open()), 4, 4096);
	CHECK(read(sock, &there, sizeof(there)) == sizeof(there));
	kit_connect_with(&e, &there, 14, 7);
	CHECK(write(sock, &e.card, sizeof(e.card)) == sizeof(e.card));
	CHECK(read(sock, &c, 1) == 1);
	_exit(0);
}

/* The receiver on the other host has no receive: explained, and said unasked. */
static void no_receive_is_posted_there(void)
{
	char netdev[100], there[64], want[200];
	struct kit_card far;
	int s[2];
	pid_t pid;

	CHECK(!setenv("VERBENA_WAIT_WARN", "0.2", 1));
	begin();
	snprintf(there, sizeof(there), "%s", kit_host_address(1, false));
	CHECK(!socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, s));
	pid = kit_fork();
	if (!pid)
		receive_nothing(s[1]);
	snprintf(netdev, sizeof(netdev), KIT_HOST_NIC "@%s", kit_host_address(0, false));
	CHECK(!setenv("VERBENA_NETDEV", netdev, 1));
	kit_log_begin("info");
	kit_end_open(&e, ibv_alloc_pd(kit_open()), 4, 4096);
	CHECK(write(s[0], &e.card, sizeof(e.card)) == sizeof(e.card));
	CHECK(read(s[0], &far, sizeof(far)) == sizeof(far));
	kit_connect_with(&e, &far, 14, 7);
	CHECK_EQ(kit_post(&e, IBV_WR_SEND, 2, 0, 8, &far, 0), 0);
	snprintf(want, sizeof(want), "because the peer, %s, has no receive posted on QP 0x%06x", there,
		 far.qpn);
	KIT_LOG_SAYS("%s", want);
	snprintf(want, sizeof(want), "[no-receive] the peer at %s has no receive posted on QP 0x%06x", there,
		 far.qpn);
	kit_command_says("explain", "%s", want);
	kit_command_says("explain", "RNR NAK%s", "");
	kit_command_says("explain", "to do: on the host at that address: post receives on QP 0x%s", "");
	CHECK(write(s[0], "", 1) == 1);
	kit_reap(pid);
}

static bool can_filter(void)
{
	return !system("nft list ruleset >/dev/null 2>&1");
}

static void filter(unsigned host, const char *hook, const char *verdict)
{
	char rule[300];

	kit_host_enter(&hosts, host);
	snprintf(rule, sizeof(rule),
		 "nft 'add table inet t; add chain inet t c { type filter hook %s priority 0; }; "
		 "add rule inet t c udp dport 4791 %s'",
		 hook, verdict);
	CHECK(!system(rule));
	kit_host_enter(&hosts, 0);
}

static void a_filter_of_this_host(void)
{
	begin();
	if (!can_filter()) {
		printf("SKIP: nft does not work here\n");
		return;
	}
	filter(0, "output", "drop");
	begin_to(kit_host_address(1, false), 10, 2);
	fails(8);
	KIT_LOG_SAYS("the packet filter of this host refuses packets to %s (Operation not permitted)",
		     kit_host_address(1, false));
}

/* ---- datagrams and UC: requests complete, and the log says that nothing arrives ---- */

static struct ibv_ah *to;

/* On the first of two hosts, a queue pair whose requests go to that address. */
static void begin_untold(enum ibv_qp_type type, const char *address)
{
	struct vb_gid gid = gid_of(address);
	char netdev[100];

	snprintf(netdev, sizeof(netdev), KIT_HOST_NIC "@%s", kit_host_address(0, strchr(address, ':')));
	CHECK(!setenv("VERBENA_NETDEV", netdev, 1));
	kit_log_begin(level);
	card = (struct kit_card){.qpn = 0x123456};
	memcpy(&card.gid, &gid, sizeof(gid));
	kit_end_open_as(&e, ibv_alloc_pd(kit_open()), 4, 4096, type);
	to = type == IBV_QPT_UD ? kit_ah(e.qp->pd, &card) : NULL;
	if (!to)
		kit_connect(&e, &card);
}

static void send_untold(void)
{
	CHECK(!(to ? kit_datagram(&e, to, card.qpn, 2, 0, 8) : kit_post(&e, IBV_WR_SEND, 2, 0, 8, NULL, 0)));
	CHECK_EQ(kit_wait(&e, 30).status, IBV_WC_SUCCESS);
}

/* Sends until the log has it, which the engine writes; then more, of which it says nothing. */
static void lost_as(const char *why)
{
	static const char lost[] = "are lost, though their requests complete";
	const char *said;

	for (int left = 2000; left && !kit_log_says(lost); left--) {
		send_untold();
		kit_nap(1); /* no event tells of a line of the log */
	}
	KIT_LOG_SAYS("packets of UC or UD to ");
	KIT_LOG_SAYS("%s", why);
	for (int i = 0; i < 20; i++)
		send_untold();
	kit_nap(20);
	said = strstr(kit_log_text(), lost);
	CHECK(!strstr(said + 1, lost), "twice in: %s", kit_log_text());
	if (kit_may_be_read())
		kit_command_says("explain", "[datagrams-dropped] %s", why);
}

/* Of IPv4 the kernel takes an address without a route for one of the interface's network, and asks who has
 * it. */
static void no_route_for(enum ibv_qp_type type)
{
	begin();
	if (!hosts.ipv6) {
		printf("SKIP: there is no IPv6 here\n");
		return;
	}
	begin_untold(type, "2001:db8:ffff::7");
	lost_as("this host has no route to 2001:db8:ffff::7: Network is unreachable through " KIT_HOST_NIC);
}

static void no_route_for_datagrams(void)
{
	no_route_for(IBV_QPT_UD);
}

static void no_route_for_uc(void)
{
	no_route_for(IBV_QPT_UC);
}

static void nobody_listens_to_datagrams(void)
{
	char why[200];

	begin();
	begin_untold(IBV_QPT_UD, kit_host_address(1, false));
	snprintf(why, sizeof(why), "nobody at %s listens on UDP port 4791 (ICMP port unreachable)",
		 kit_host_address(1, false));
	lost_as(why);
}

static void a_filter_of_datagrams(void)
{
	char why[200];

	begin();
	if (!can_filter()) {
		printf("SKIP: nft does not work here\n");
		return;
	}
	filter(0, "output", "drop");
	begin_untold(IBV_QPT_UD, kit_host_address(1, false));
	snprintf(why, sizeof(why), "the packet filter of this host refuses packets to %s",
		 kit_host_address(1, false));
	lost_as(why);
}

static void rejected(bool six)
{
	begin();
	if ((six && !hosts.ipv6) || !can_filter()) {
		printf("SKIP: nft or IPv6 does not work here\n");
		return;
	}
	filter(1, "input", "reject with icmpx type admin-prohibited");
	begin_to(kit_host_address(1, six), 10, 2);
	fails(8);
	KIT_LOG_SAYS("a packet filter on the way to %s rejects the packets", kit_host_address(1, six));
}

static void a_filter_there_that_rejects(void)
{
	rejected(false);
}

static void a_filter_that_rejects_ipv6(void)
{
	rejected(true);
}

int main(int argc, char **argv)
{
	static const struct kit_case cases[] = {
	    {.name = "port", .run = nobody_listens},
	    {.name = "port, IPv6", .run = nobody_listens_by_ipv6},
	    {.name = "absent", .run = nobody_is_there},
	    {.name = "route", .run = no_route_leads_there},
	    {.name = "other", .run = another_interface_leads_there},
	    {.name = "down", .run = the_interface_is_down},
	    {.name = "mtu", .run = packets_are_too_long},
	    {.name = "silent", .run = nothing_comes_back},
	    {.name = "nat", .run = addresses_are_translated},
	    {.name = "nat, receiver", .run = a_receiver_sees_translated_addresses},
	    {.name = "never", .run = a_receiver_hears_nothing},
	    {.name = "option", .run = the_option_is_missing},
	    {.name = "explain", .run = explain_knows_the_reason},
	    {.name = "long", .run = long_packets_are_lost},
	    {.name = "first", .run = long_packets_may_be_lost},
	    {.name = "damaged", .run = packets_are_damaged},
	    {.name = "others", .run = others_there_answer},
	    {.name = "quiet", .run = nothing_comes_any_more},
	    {.name = "before", .run = nothing_came_while_it_was_repeated},
	    {.name = "ended", .run = nobody_listens_any_more},
	    {.name = "waits", .run = a_request_waits},
	    {.name = "receive", .run = no_receive_is_posted_there},
	    {.name = "filter", .run = a_filter_of_this_host},
	    {.name = "reject", .run = a_filter_there_that_rejects},
	    {.name = "reject, IPv6", .run = a_filter_that_rejects_ipv6},
	    {.name = "route, UD", .run = no_route_for_datagrams},
	    {.name = "route, UC", .run = no_route_for_uc},
	    {.name = "port, UD", .run = nobody_listens_to_datagrams},
	    {.name = "filter, UD", .run = a_filter_of_datagrams},
	};

	if (!kit_hosts_can())
		return KIT_SKIP;
	KIT_CASES(cases, 60);
	return 0;
}
