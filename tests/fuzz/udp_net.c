#include "udp_net.h"

#include <errno.h>
#include <netinet/in.h>
#include <netinet/udp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>

#include <linux/errqueue.h>

#include "base/text.h"
#include "host/adapter.h"
#include "host/roce.h"
#include "iba/icrc.h"
#include "iba/mad.h"
#include "iba/opcode.h"
#include "iba/pkt.h"
#include "wire/udp.h"
#include "wire/wires.h"

struct net_counts net_sent;
static const struct net_message *waiting;
static unsigned refusals;
static int refusal;
static struct {
	struct vb_gid about;
	struct sock_extended_err e;
	bool waits;
} told;

void net_wrong(const char *fmt, ...)
{
	va_list args;

	va_start(args, fmt);
	vfprintf(stderr, fmt, args);
	va_end(args);
	fputc('\n', stderr);
	abort();
}

void net_begin(void)
{
	waiting = NULL;
	refusals = 0;
	told.waits = false;
	net_sent = (struct net_counts){0};
}

void net_receive(const struct net_message *m)
{
	waiting = m;
}

void net_receive_mads(const struct net_message *m)
{
	waiting = m;
	port_steady_inlet.came(port_steady_inlet.user);
	waiting = NULL;
}

void net_refuse(unsigned n, int err)
{
	refusals = n;
	refusal = err;
}

void net_tell(struct vb_gid about, int err, uint32_t mtu, bool local)
{
	told.about = about;
	told.e = (struct sock_extended_err){.ee_errno = (uint32_t)err,
					    .ee_origin = local			 ? SO_EE_ORIGIN_LOCAL
							 : vb_gid_is_ipv4(about) ? SO_EE_ORIGIN_ICMP
										 : SO_EE_ORIGIN_ICMP6,
					    .ee_info = mtu};
	told.waits = true;
	net_refuse(1, err);
}

/* ---- what is sent ---- */

/* The ICRC by real headers, as any receiver computes it. */
static uint32_t icrc_of(const struct vb_roce_ends *e, uint16_t id, const uint8_t *pkt, size_t len)
{
	bool v4 = vb_roce_ends_are_ipv4(e);
	uint16_t udp_len = (uint16_t)(8 + len + 4), ip_len = (uint16_t)(20 + udp_len);
	uint8_t ip[40] = {0x45,
			  [2] = (uint8_t)(ip_len >> 8),
			  (uint8_t)ip_len,
			  (uint8_t)(id >> 8),
			  (uint8_t)id,
			  0x40,
			  [8] = 64,
			  17};
	uint8_t udp[8] = {(uint8_t)(e->port >> 8), (uint8_t)e->port, 0x12, 0xb7,
			  (uint8_t)(udp_len >> 8), (uint8_t)udp_len};

	if (v4) {
		memcpy(ip + 12, (const uint8_t *)&e->src + 12, 4);
		memcpy(ip + 16, (const uint8_t *)&e->dst + 12, 4);
	} else {
		memset(ip, 0, sizeof ip);
		ip[0] = 0x60;
		ip[4] = udp[4];
		ip[5] = udp[5];
		ip[6] = 17;
		memcpy(ip + 8, &e->src, 16);
		memcpy(ip + 24, &e->dst, 16);
	}
	return vb_icrc_make(ip, v4 ? 20 : 40, udp, pkt, len, NULL, 0);
}

/* A far end is told what the specification has, and nothing of this host. */
static void check_syndrome(uint8_t s)
{
	if (s != VB_AETH_ACK && s >> 5 != 1 && (s < VB_AETH_NAK_PSN || s > VB_AETH_NAK_INVALID_RD))
		net_wrong("the syndrome 0x%02x is sent", s);
}

static void check_packet(const struct vb_roce_ends *e, uint16_t id, const uint8_t *pkt, size_t len)
{
	const bool gsi = pkt[5] == 0 && pkt[6] == 0 && pkt[7] == VB_GSI_QPN;
	const struct vb_roce_here there = {.naddrs = 1, .addrs = &e->dst, .qpn = gsi, .gsi = gsi};
	struct vb_roce_arrival a = {.ends = *e, .by_lo = true, .pkt = pkt, .len = len};
	struct vb_roce_last last = {0};
	const struct vb_opcode_row *op = &vb_opcodes[pkt[0]];
	enum vb_roce_verdict v;
	uint16_t got;
	uint32_t sum;

	v = vb_roce_check(&there, &last, &a, &got);
	if (v != VB_ROCE_RIGHT)
		net_wrong("a packet of %zu bytes is sent with opcode 0x%02x: %s", len, pkt[0],
			  vb_roce_verdicts[v].words);
	if (got != (vb_roce_ends_are_ipv4(e) ? id : 0))
		net_wrong("a packet's ICRC is that of identification %u and not of %u", got, id);
	memcpy(&sum, pkt + len - 4, 4);
	if (le32toh(sum) != icrc_of(e, id, pkt, len - 4))
		net_wrong("a packet's ICRC is wrong");
	if (op->bits & VB_OP_AETH)
		check_syndrome(pkt[VB_BTH_LEN]);
	net_sent.packets++;
	net_sent.bytes += len;
}

static void check_message(const struct msghdr *h, uint16_t port)
{
	const struct sockaddr_in6 *to = h->msg_name;
	struct vb_roce_ends e = {.port = port};
	const uint8_t *bytes = h->msg_iov->iov_base;
	size_t len = h->msg_iov->iov_len, packet = len;
	bool from = false;
	uint16_t id = 0;

	if (h->msg_iovlen != 1 || h->msg_namelen != sizeof *to || to->sin6_family != AF_INET6 ||
	    to->sin6_port != htons(VB_ROCE_PORT))
		net_wrong("a message is sent to no address");
	memcpy(&e.dst, &to->sin6_addr, 16);
	for (const struct cmsghdr *c = CMSG_FIRSTHDR(h); c;
	     c = CMSG_NXTHDR((struct msghdr *)(uintptr_t)h, (struct cmsghdr *)(uintptr_t)c)) {
		uint16_t n;

		if (c->cmsg_level == SOL_IPV6 && c->cmsg_type == IPV6_PKTINFO) {
			memcpy(&e.src, CMSG_DATA(c), 16);
			from = true;
		} else if (c->cmsg_level == SOL_UDP && c->cmsg_type == UDP_SEGMENT) {
			memcpy(&n, CMSG_DATA(c), sizeof n);
			packet = n;
		}
	}
	if (!from || !packet || (len + packet - 1) / packet > 64)
		net_wrong("a message of %zu bytes in packets of %zu", len, packet);
	for (size_t at = 0; at < len; at += packet, id++)
		check_packet(&e, id, bytes + at, len - at < packet ? len - at : packet);
}

static long refused(void)
{
	if (!refusals)
		return 0;
	refusals--;
	errno = refusal;
	return -1;
}

long port_sends(int fd, const struct mmsghdr *h, unsigned n)
{
	if (refused())
		return -1;
	for (unsigned i = 0; i < n; i++)
		check_message(&h[i].msg_hdr, (uint16_t)(PORT_TX_PORT + fd - PORT_TX));
	return n;
}

/* ---- what comes ---- */

long port_receives(struct msghdr *h)
{
	const struct net_message *m = waiting;
	struct sockaddr_in6 from = {.sin6_family = AF_INET6};
	struct in6_pktinfo info = {0};
	int tclass, packet;
	size_t used = 0, n;

	if (!m)
		return port_nothing_comes();
	waiting = NULL;
	tclass = m->tclass;
	packet = (int)m->packet;
	info.ipi6_ifindex = m->ifindex;
	memcpy(&info.ipi6_addr, &m->ends.dst, 16);
	memcpy(&from.sin6_addr, &m->ends.src, 16);
	from.sin6_port = htons(m->ends.port);
	memcpy(h->msg_name, &from, sizeof from);
	h->msg_namelen = sizeof from;
	port_put(h, &used, SOL_IPV6, IPV6_PKTINFO, &info, sizeof info);
	if (vb_gid_is_ipv4(m->ends.src))
		port_put(h, &used, SOL_IP, IP_TOS, &m->tclass, 1);
	else
		port_put(h, &used, SOL_IPV6, IPV6_TCLASS, &tclass, sizeof tclass);
	if (m->packet < m->len)
		port_put(h, &used, SOL_UDP, UDP_GRO, &packet, sizeof packet);
	h->msg_controllen = used;
	n = m->len < h->msg_iov->iov_len ? m->len : h->msg_iov->iov_len;
	h->msg_flags = n < m->len ? MSG_TRUNC : 0;
	memcpy(h->msg_iov->iov_base, m->bytes, n);
	return (long)n;
}

/* The error queue of a sending socket. */
long port_tells(struct msghdr *h)
{
	struct sockaddr_in6 to = {.sin6_family = AF_INET6, .sin6_port = htons(VB_ROCE_PORT)};
	bool v4 = vb_gid_is_ipv4(told.about);
	size_t used = 0;

	if (!told.waits)
		return port_nothing_comes();
	told.waits = false;
	memcpy(&to.sin6_addr, &told.about, 16);
	memcpy(h->msg_name, &to, sizeof to);
	port_put(h, &used, v4 ? SOL_IP : SOL_IPV6, v4 ? IP_RECVERR : IPV6_RECVERR, &told.e, sizeof told.e);
	h->msg_controllen = used;
	return 0;
}

bool port_ready(void)
{
	return waiting;
}

/* ---- host/roce.h, and what else stands below the wire ---- */

static struct vb_roce *the_port(void)
{
	static int any;

	return (struct vb_roce *)(void *)&any;
}

struct vb_roce *vb_adapter_roce(const struct vb_adapter *a)
{
	(void)a;
	return the_port();
}

_Atomic uint64_t *vb_adapter_wrong_icrcs(struct vb_adapter *a)
{
	static _Atomic uint64_t n;

	(void)a;
	return &n;
}

int vb_roce_open(struct vb_roce **out, const char *interface, struct vb_roce_why *why)
{
	(void)interface, (void)why;
	*out = the_port();
	return 0;
}

void vb_roce_why_add(struct vb_text *t, const struct vb_roce_why *why)
{
	(void)t, (void)why;
}

int vb_roce_join_group(struct vb_roce *r, const uint8_t gid[16])
{
	(void)r, (void)gid;
	return 0;
}

void vb_roce_leave_group(const struct vb_roce *r, const uint8_t gid[16])
{
	(void)r, (void)gid;
}

void vb_roce_group_why_add(struct vb_text *t, const struct vb_roce *r, const uint8_t gid[16], int err)
{
	(void)t, (void)r, (void)gid, (void)err;
}

const struct vb_net_wire *vb_wire_to_hosts(void)
{
	return &vb_udp_wire;
}

enum vb_wire_way vb_wire_way(void)
{
	return VB_WIRE_AUTO;
}
