/* The way between two hosts takes shorter packets than the interfaces do, or a message of ICMP says so: what
 * is true ends a connection by the protocol's timers, with a sentence that names the MTU, and what is forged
 * ends nothing.  Or it marks packets, of which the sender hears by CNPs.
 *
 *     proc-way_hosts [CASE]     default: all */
#include <arpa/inet.h>
#include <errno.h>
#include <netinet/ip_icmp.h>
#include <sys/socket.h>
#include <unistd.h>

#include "bytes.h"
#include "host/adapter.h"
#include "host/route.h"
#include "hosts.h"
#include "iba/roce.h"
#include "kit.h"
#include "net.h"

enum {
	DEPTH = 8,
	SHORT = 400, /* bytes of a message that each way here takes */
	LONG = 4000, /* of one in packets of path_mtu */
	TURNS = 50,
	FORGED = 552, /* the least MTU that Linux believes in */
};

/* What both ends share. */
struct board {
	struct kit_card card[2];
	_Atomic int known, connected, taken, done;
	struct vb_traffic counts; /* of the second host, at its end */
};

static struct kit_hosts hosts;
static struct board *b;
static struct kit_end e;
static enum ibv_mtu path_mtu = IBV_MTU_1024;
static enum ibv_qp_type type = IBV_QPT_RC;
static uint8_t marked; /* traffic class of what is sent to the second host */

/* Where the n-th message goes. */
static size_t place(unsigned n)
{
	return (size_t)(1 + n % DEPTH) * LONG;
}

static void post(unsigned n)
{
	CHECK(!kit_recv(&e, 1, place(n), LONG));
}

static void open_end(unsigned host)
{
	struct ibv_context *ctx;

	kit_host_enter(&hosts, host);
	CHECK(!setenv("VERBENA_NETDEV", KIT_HOST_NIC, 1));
	ctx = kit_open();
	kit_end_open_as(&e, ibv_alloc_pd(ctx), 2 * DEPTH, (size_t)(1 + DEPTH) * LONG, type);
	CHECK(!ibv_query_gid(ctx, 1, kit_host_gid_index(ctx, host, false), &e.card.gid));
	e.card.tclass = host ? marked : 0;
	b->card[host] = e.card;
	atomic_fetch_add(&b->known, 1);
	kit_until(&b->known, 2);
	for (unsigned i = 0; i < DEPTH; i++)
		post(i);
	if (type != IBV_QPT_UD) {
		kit_to_rtr_with(&e, &b->card[!host], path_mtu);
		kit_to_rts(&e, 14, 3);
	}
	atomic_fetch_add(&b->connected, 1);
	kit_until(&b->connected, 2);
}

/* The other end takes messages in until the first one is done. */
static void receive(void)
{
	struct ibv_wc wc;
	unsigned n = 0;

	while (!b->done) {
		if (!ibv_poll_cq(e.cq, 1, &wc)) {
			kit_nap_us(200);
			continue;
		}
		CHECK(!wc.status, "%s", ibv_wc_status_str(wc.status));
		CHECK_EQ(kit_filled(e.buf + place(n), wc.byte_len, n), wc.byte_len);
		post(n++ + DEPTH);
	}
	_exit(0);
}

/* This process is on the first host, connected to a child on the second one. */
static pid_t begin(void)
{
	pid_t pid;

	b = kit_shared(sizeof *b);
	pid = kit_fork();
	if (!pid) {
		open_end(1);
		receive();
	}
	kit_log_begin("info");
	open_end(0);
	return pid;
}

static void finish(pid_t pid)
{
	atomic_store(&b->done, 1);
	CHECK_EQ(kit_reap(pid), 0);
}

/* The n-th message. */
static enum ibv_wc_status sends(unsigned n, uint32_t len)
{
	kit_fill(e.buf, len, n);
	CHECK(!kit_post(&e, IBV_WR_SEND, 2, 0, len, NULL, 0));
	return kit_wait(&e, 30).status;
}

/* ---- forged messages ---- */

static uint16_t sum(const void *bytes, size_t n)
{
	const uint8_t *p = bytes;
	uint32_t s = 0;

	for (size_t i = 0; i < n; i += 2)
		s += (uint32_t)p[i] << 8 | p[i + 1];
	while (s >> 16)
		s = (s & 0xffff) + (s >> 16);
	return htons((uint16_t)~s);
}

/* To the first host, about a packet that it may have sent to the second one from that port. */
static void forge(int sock, uint16_t port, uint8_t code)
{
	struct {
		struct icmphdr icmp;
		struct iphdr ip;
		uint16_t udp[4];
		uint8_t bth[20];
	} m = {.icmp = {.type = ICMP_DEST_UNREACH, .code = code},
	       .ip = {.version = 4,
		      .ihl = 5,
		      .tot_len = htons(1068),
		      .frag_off = htons(IP_DF),
		      .ttl = 64,
		      .protocol = IPPROTO_UDP},
	       .udp = {htons(port), htons(VB_ROCE_PORT), htons(1048)}};
	struct sockaddr_in to = {.sin_family = AF_INET};

	if (code == ICMP_FRAG_NEEDED)
		m.icmp.un.frag.mtu = htons(FORGED);
	CHECK(inet_pton(AF_INET, kit_host_address(0, false), &m.ip.saddr) == 1);
	CHECK(inet_pton(AF_INET, kit_host_address(1, false), &m.ip.daddr) == 1);
	to.sin_addr.s_addr = m.ip.saddr;
	m.ip.check = sum(&m.ip, sizeof m.ip);
	m.icmp.checksum = sum(&m, sizeof m);
	CHECK(sendto(sock, &m, sizeof m, 0, (struct sockaddr *)&to, sizeof to) == sizeof m, "%s",
	      strerror(errno));
}

/* The ports that the first host's process sends from: all that are bound there, from 0xc000 on. */
static unsigned own_ports(uint16_t *ports, unsigned most)
{
	FILE *f = fopen("/proc/thread-self/net/udp6", "re");
	unsigned n = 0, port;
	char line[300];

	CHECK(f);
	while (fgets(line, sizeof line, f))
		if (sscanf(line, " %*d: %*[0-9A-F]:%x", &port) == 1 && port >= 0xc000 && n < most)
			ports[n++] = (uint16_t)port;
	fclose(f);
	return n;
}

/* What the kernel of the first host takes for the MTU of the way. */
static uint32_t known_mtu(void)
{
	struct vb_route_to r;

	CHECK(!vb_route_find(&r, b->card[1].gid.raw, 0));
	return r.mtu;
}

static void forged_messages_end_nothing(void)
{
	static const uint8_t codes[] = {ICMP_FRAG_NEEDED, ICMP_PORT_UNREACH, ICMP_HOST_UNREACH};
	uint16_t ports[256];
	unsigned n;
	pid_t pid;
	int sock;

	hosts = (struct kit_hosts){.count = 2, .mtu = 1500};
	kit_hosts_make(&hosts);
	pid = begin();
	n = own_ports(ports, 256);
	CHECK(n, "the sending sockets are not in /proc/net/udp6");
	kit_host_enter(&hosts, 1);
	sock = socket(AF_INET, SOCK_RAW, IPPROTO_ICMP);
	kit_host_enter(&hosts, 0);
	CHECK(sock >= 0, "%s", strerror(errno));
	for (unsigned i = 0; i < TURNS; i++) {
		for (unsigned k = 0; k < n; k++)
			forge(sock, ports[k], codes[i % 3]);
		while (known_mtu() != FORGED) /* no event tells that the kernel has taken it */
			kit_nap(1);
		CHECK_EQ(sends(i, LONG), IBV_WC_SUCCESS);
	}
	KIT_LOG_SAYS_NOT("path_mtu");
	close(sock);
	finish(pid);
}

/* ---- ways with a small MTU ---- */

/* The router sends ICMP messages, which say why. */
static void a_router_with_a_small_mtu(void)
{
	pid_t pid;

	hosts = (struct kit_hosts){.count = 2, .mtu = 1500, .routed = true};
	kit_hosts_make(&hosts);
	kit_net_mtu("r1", 1000);
	pid = begin();
	CHECK_EQ(sends(0, SHORT), IBV_WC_SUCCESS);
	CHECK_EQ(sends(1, LONG), IBV_WC_RETRY_EXC_ERR);
	KIT_LOG_SAYS("packets of this queue pair are longer than the way to %s takes, whose MTU is 1000 "
		     "bytes; set path_mtu to 512 bytes at both ends",
		     kit_host_address(1, false));
	finish(pid);
}

/* What is too long is lost, and nobody says so: the interface at the other end takes no such frame. */
static void a_black_hole(void)
{
	pid_t pid;

	path_mtu = IBV_MTU_4096;
	hosts = (struct kit_hosts){.count = 2, .mtu = 9000};
	kit_hosts_make(&hosts);
	CHECK(!setenv("VERBENA_UDP_GSO", "off", 1)); /* what is cut later passes */
	pid = begin();
	kit_host_enter(&hosts, 1);
	kit_net_mtu(KIT_HOST_NIC, 1500);
	kit_host_enter(&hosts, 0);
	CHECK_EQ(sends(0, SHORT), IBV_WC_SUCCESS);
	CHECK_EQ(sends(1, LONG), IBV_WC_RETRY_EXC_ERR);
	KIT_LOG_SAYS(
	    "packets of up to %d bytes to %s were acknowledged, but of this longer message, with packets "
	    "of path_mtu = 4096 bytes, none is: something on the way has a smaller MTU than both ends; "
	    "set path_mtu to 1024 bytes at both ends",
	    SHORT, kit_host_address(1, false));
	finish(pid);
}

/* ---- marks ---- */

/* The second host takes them, and shows what it has counted. */
static void receive_marked(void)
{
	struct ibv_wc wc;

	open_end(1);
	while (!b->done) {
		if (!ibv_poll_cq(e.cq, 1, &wc)) {
			kit_nap_us(200);
			continue;
		}
		CHECK(!wc.status, "%s", ibv_wc_status_str(wc.status));
		post((unsigned)b->taken + DEPTH);
		vb_view_traffic(0, &b->counts);
		atomic_fetch_add(&b->taken, 1);
	}
	_exit(0);
}

static void sends_marked(struct ibv_ah *ah, int n)
{
	if (ah)
		CHECK(!kit_datagram(&e, ah, b->card[1].qpn, 2, 0, SHORT));
	else
		CHECK(!kit_post(&e, IBV_WR_SEND, 2, 0, SHORT, NULL, 0));
	CHECK_EQ(kit_wait(&e, 30).status, IBV_WC_SUCCESS);
	kit_until(&b->taken, n + 1);
}

/* Each packet arrives as one that a switch has marked (CE).  The receiver sends CNPs, and the sender counts
 * them. */
static void marked_packets(enum ibv_qp_type of)
{
	struct vb_traffic t = {0};
	struct ibv_wc wc;
	pid_t pid;

	type = of;
	marked = 0x23;
	hosts = (struct kit_hosts){.count = 2, .mtu = 1500};
	kit_hosts_make(&hosts);
	b = kit_shared(sizeof *b);
	pid = kit_fork();
	if (!pid)
		receive_marked();
	open_end(0);
	for (int i = 0; i < TURNS; i++)
		sends_marked(type == IBV_QPT_UD ? kit_ah(e.qp->pd, &b->card[1]) : NULL, i);
	for (unsigned i = 0; i < 10000 && t.count[VB_TRAFFIC_CNPS_IN] < b->counts.count[VB_TRAFFIC_CNPS_OUT];
	     i++) {
		CHECK_EQ(ibv_poll_cq(e.cq, 1, &wc), 0); /* takes a CNP, which causes no event */
		kit_nap_us(200);
		vb_view_traffic(0, &t);
	}
	printf("%d marked, %d CNPs sent, %d taken\n", (int)b->counts.count[VB_TRAFFIC_MARKED_IN],
	       (int)b->counts.count[VB_TRAFFIC_CNPS_OUT], (int)t.count[VB_TRAFFIC_CNPS_IN]);
	CHECK(b->counts.count[VB_TRAFFIC_MARKED_IN] >= TURNS);
	CHECK(b->counts.count[VB_TRAFFIC_CNPS_OUT] > 0);
	CHECK_EQ(t.count[VB_TRAFFIC_CNPS_IN], b->counts.count[VB_TRAFFIC_CNPS_OUT]);
	finish(pid);
}

static void marks_of_rc(void)
{
	marked_packets(IBV_QPT_RC);
}

static void marks_of_uc(void)
{
	marked_packets(IBV_QPT_UC);
}

static void marks_of_ud(void)
{
	marked_packets(IBV_QPT_UD);
}

int main(int argc, char **argv)
{
	static const struct kit_case cases[] = {
	    {.name = "forged", .run = forged_messages_end_nothing},
	    {.name = "router", .run = a_router_with_a_small_mtu},
	    {.name = "hole", .run = a_black_hole},
	    {.name = "marks-rc", .run = marks_of_rc},
	    {.name = "marks-uc", .run = marks_of_uc},
	    {.name = "marks-ud", .run = marks_of_ud},
	};

	if (!kit_hosts_can())
		return KIT_SKIP;
	KIT_CASES(cases, 60);
	return 0;
}
