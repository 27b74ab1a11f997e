/* The wire to other hosts by itself: which packets leave together, what becomes of them if the kernel does
 * not send, and what is taken out of a message that comes.  The sockets are the test's own. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <errno.h>
#include <netinet/udp.h>
#include <stdlib.h>
#include <string.h>

#include <linux/errqueue.h>

#include "../fuzz/udp_port.h"
#include "iba/opcode.h"
#include "wire/udp.h"

enum { QPN = PORT_SLOT << VB_QPN_INDEX_BITS | 5 };
enum { SENT = 160, ERRORS = 16, COMING = 4, SMALL = 100, LONG = 1068 };

/* A message that left, or one that comes. */
struct message {
	int fd;
	uint32_t len, packet; /* packet: what UDP_SEGMENT or UDP_GRO says; 0: nothing */
	int tclass, hops, flags;
	uint32_t flow; /* IPv6 */
	bool six;
	uint8_t bytes[VB_UDP_ROOM];
};

static struct {
	struct vb_net *net;
	struct vb_net_host host;
	_Atomic uint64_t wrong_icrcs;
	unsigned kept, said;	       /* as the wire has told of packets */
	struct message *sent, *coming; /* SENT, COMING */
	uint32_t nsent, calls, ncoming, taken, again;
	uint32_t most; /* messages that a call sends; 0: all */
	int errors[ERRORS];
	uint32_t nerrors, failed, icmp;
} w;

static const uint8_t gids[3][16] = {
    {[10] = 0xff, 0xff, 10, 9, 0, 1}, {[10] = 0xff, 0xff, 10, 9, 0, 2}, {0xfd, [15] = 1}};
static const uint8_t there6[16] = {0xfd, [15] = 2};

/* ---- sockets ---- */

static void keep_sent(int fd, const struct msghdr *h)
{
	struct message *m = &w.sent[w.nsent++];

	assert_true(w.nsent <= SENT);
	*m = (struct message){.fd = fd, .len = (uint32_t)h->msg_iov->iov_len};
	memcpy(m->bytes, h->msg_iov->iov_base, m->len);
	for (const struct cmsghdr *c = CMSG_FIRSTHDR(h); c;
	     c = CMSG_NXTHDR((struct msghdr *)(uintptr_t)h, (struct cmsghdr *)(uintptr_t)c)) {
		uint16_t n;

		if (c->cmsg_level == SOL_UDP && c->cmsg_type == UDP_SEGMENT) {
			memcpy(&n, CMSG_DATA(c), sizeof(n));
			m->packet = n;
		} else if (c->cmsg_level == SOL_IP && c->cmsg_type == IP_TOS) {
			memcpy(&m->tclass, CMSG_DATA(c), sizeof(m->tclass));
		} else if ((c->cmsg_level == SOL_IP && c->cmsg_type == IP_TTL) ||
			   (c->cmsg_level == SOL_IPV6 && c->cmsg_type == IPV6_HOPLIMIT)) {
			memcpy(&m->hops, CMSG_DATA(c), sizeof(m->hops));
		} else if (c->cmsg_level == SOL_IPV6 && c->cmsg_type == IPV6_PKTINFO) {
			m->six = CMSG_DATA(c)[0];
		} else if (c->cmsg_level == SOL_IPV6 && c->cmsg_type == VB_UDP_FLOWINFO) {
			memcpy(&m->flow, CMSG_DATA(c), sizeof(m->flow));
		}
	}
}

long port_sends(int fd, const struct mmsghdr *h, unsigned n)
{
	w.calls++;
	if (w.failed < w.nerrors && w.errors[w.failed++]) {
		errno = w.errors[w.failed - 1];
		return -1;
	}
	n = w.most && w.most < n ? w.most : n;
	for (uint32_t i = 0; i < n; i++)
		keep_sent(fd, &h[i].msg_hdr);
	return n;
}

long port_receives(struct msghdr *h)
{
	struct sockaddr_in6 from = {.sin6_family = AF_INET6, .sin6_port = htons(PORT_TX_PORT)};
	struct in6_pktinfo info = {.ipi6_ifindex = PORT_IFINDEX};
	const struct message *m;
	uint8_t tos;
	size_t used = 0;
	int packet;

	if (w.taken == w.ncoming)
		return port_nothing_comes();
	m = &w.coming[w.taken];
	if (w.again)
		w.again--;
	else
		w.taken++;
	memcpy(&from.sin6_addr, m->six ? there6 : gids[1], 16);
	memcpy(&info.ipi6_addr, m->six ? gids[2] : gids[0], 16);
	memcpy(h->msg_name, &from, sizeof(from));
	port_put(h, &used, SOL_IPV6, IPV6_PKTINFO, &info, sizeof(info));
	tos = (uint8_t)m->tclass;
	if (m->six)
		port_put(h, &used, SOL_IPV6, IPV6_TCLASS, &m->tclass, sizeof(m->tclass));
	else
		port_put(h, &used, SOL_IP, IP_TOS, &tos, 1);
	port_put(h, &used, m->six ? SOL_IPV6 : SOL_IP, m->six ? IPV6_HOPLIMIT : IP_TTL, &m->hops,
		 sizeof(m->hops));
	if (m->flow)
		port_put(h, &used, SOL_IPV6, VB_UDP_FLOWINFO, &m->flow, sizeof(m->flow));
	packet = (int)m->packet;
	if (packet)
		port_put(h, &used, SOL_UDP, UDP_GRO, &packet, sizeof(packet));
	h->msg_controllen = used;
	h->msg_flags = m->flags;
	memcpy(h->msg_iov->iov_base, m->bytes, m->len);
	return m->len;
}

/* The error queue of a sending socket: closed ports. */
long port_tells(struct msghdr *h)
{
	struct sock_extended_err e = {.ee_errno = ECONNREFUSED, .ee_origin = SO_EE_ORIGIN_ICMP};
	struct sockaddr_in6 to = {.sin6_family = AF_INET6};
	size_t used = 0;

	if (!w.icmp)
		return port_nothing_comes();
	w.icmp--;
	memcpy(&to.sin6_addr, gids[1], 16);
	memcpy(h->msg_name, &to, sizeof(to));
	port_put(h, &used, SOL_IP, IP_RECVERR, &e, sizeof(e));
	h->msg_controllen = used;
	return 0;
}

bool port_ready(void)
{
	return w.taken < w.ncoming;
}

/* ---- the layers above ---- */

static struct vb_net_host *host(void *user, struct vb_gid gid)
{
	(void)user;
	return gid.low == w.host.gid.low && gid.high == w.host.gid.high ? &w.host : NULL;
}

static uint32_t addresses(void *user, struct vb_gid *to)
{
	(void)user;
	to[0] = vb_gid_of(gids[0]);
	to[1] = vb_gid_of(gids[2]);
	return 2;
}

static void came(void *user, struct vb_rxq *r)
{
	(void)user, (void)r;
}

static int begin(void **state)
{
	const struct vb_net_cfg cfg = {
	    .host = host, .addresses = addresses, .came = came, .wrong_icrcs = &w.wrong_icrcs};

	(void)state;
	memset(&w, 0, sizeof(w));
	w.sent = calloc(SENT, sizeof(*w.sent));
	w.coming = calloc(COMING, sizeof(*w.coming));
	w.host.gid = vb_gid_of(gids[1]);
	return !w.sent || !w.coming || vb_udp_wire.open(&w.net, &cfg) || port_inlet.fd != PORT_RX;
}

static int finish(void **state)
{
	(void)state;
	vb_udp_wire.close(w.net);
	free(w.sent);
	free(w.coming);
	return 0;
}

/* All paths of a test have one sending socket. */
static struct vb_out *new_way(uint8_t tclass)
{
	const struct vb_net_ends e = {.host = &w.host,
				      .sgid = vb_gid_of(gids[0]),
				      .src_qpn = QPN,
				      .dst_qpn = 0x22005,
				      .mtu = 4096,
				      .tclass = tclass};
	struct vb_out *o = vb_udp_wire.way(w.net, &e);

	assert_non_null(o);
	return o;
}

static void make(uint8_t *to, uint8_t opcode, uint32_t len)
{
	const uint8_t bth[VB_BTH_LEN] = {opcode, 0x40, 0xff, 0xff, 0, QPN >> 16, QPN >> 8 & 0xff, QPN & 0xff};

	memset(to, 0x5a, len);
	memcpy(to, bth, len < sizeof(bth) ? len : sizeof(bth));
}

/* A packet of so many bytes with its ICRC. */
static bool add(struct vb_out *o, uint32_t len)
{
	struct vb_outbuf b;

	if (!o->ops->reserve(o, &b, VB_BTH_LEN, len - VB_BTH_LEN - VB_ICRC_LEN, VB_OUT_REQUEST))
		return false;
	make(b.hdr, VB_SEND_ONLY, len - VB_ICRC_LEN);
	o->ops->commit(o, &b);
	return true;
}

static void add_some(struct vb_out *o, uint32_t n, uint32_t len)
{
	while (n--)
		assert_true(add(o, len));
}

static void fail_with(uint32_t n, int err)
{
	for (w.nerrors = w.failed = 0; w.nerrors < n; w.nerrors++)
		w.errors[w.nerrors] = err;
}

/* The i-th message that left has n packets, all of `packet` bytes but the last one, and each has the ICRC of
 * its place. */
static void check_sent(uint32_t i, uint32_t n, uint32_t packet, uint32_t last)
{
	const struct message *m = &w.sent[i];
	struct vb_roce_ends e = {vb_gid_of(gids[0]), vb_gid_of(gids[1]),
				 (uint16_t)(PORT_TX_PORT + m->fd - PORT_TX)};
	struct vb_roce_path path;

	if (i >= w.nsent || m->len != (n - 1) * packet + last || m->packet != (n > 1 ? packet : 0))
		fail_msg("message %u of %u: %u bytes, cut by %u; not %u packets of %u and %u", i, w.nsent,
			 m->len, m->packet, n, packet, last);
	vb_roce_path_init(&path, &e);
	for (uint32_t k = 0; k < n; k++) {
		uint32_t len = (k < n - 1 ? packet : last) - VB_ICRC_LEN, sum;

		memcpy(&sum, m->bytes + k * packet + len, sizeof(sum));
		if (le32toh(sum) != vb_roce_icrc(&path, (uint16_t)k, m->bytes + k * packet, len))
			fail_msg("message %u: the ICRC of packet %u is not that of its place", i, k);
	}
}

/* ---- which packets are a message ---- */

static void packets_of_one_length_are_a_message(void **state)
{
	struct vb_out *o = new_way(0);

	(void)state;
	add_some(o, 5, 1000);
	add_some(o, 1, 500); /* the shorter one ends it */
	add_some(o, 2, 500);
	add_some(o, 2, 1000); /* a longer one does not join */
	assert_int_equal(w.calls, 0);
	vb_out_push(o);
	assert_int_equal(w.calls, 1);
	assert_int_equal(w.nsent, 3);
	check_sent(0, 6, 1000, 500);
	check_sent(1, 2, 500, 500);
	check_sent(2, 2, 1000, 1000);
	vb_out_push(o);
	assert_int_equal(w.calls, 1);
	vb_out_end(o);
}

static void a_message_has_an_end(void **state)
{
	struct vb_out *o = new_way(0);

	(void)state;
	add_some(o, 130, SMALL);
	vb_out_push(o);
	assert_int_equal(w.calls, 1);
	check_sent(0, 60, SMALL, SMALL);
	check_sent(1, 60, SMALL, SMALL);
	check_sent(2, 10, SMALL, SMALL);
	add_some(o, 60, LONG);	      /* 64,080 bytes */
	assert_int_equal(w.calls, 2); /* no short message is put behind a long one that is full */
	assert_int_equal(w.nsent, 4);
	vb_out_push(o);
	assert_int_equal(w.calls, 3);
	check_sent(3, 59, LONG, LONG);
	check_sent(4, 1, LONG, LONG);
	vb_out_end(o);
}

static void each_path_has_its_own(void **state)
{
	struct vb_out *a = new_way(0), *b = new_way(0x20);

	(void)state;
	add_some(a, 1, SMALL);
	add_some(b, 2, SMALL);
	add_some(a, 1, SMALL);
	vb_out_push(b);
	assert_int_equal(w.calls, 1);
	check_sent(0, 1, SMALL, SMALL);
	check_sent(1, 2, SMALL, SMALL);
	check_sent(2, 1, SMALL, SMALL);
	assert_int_equal(w.sent[0].tclass, 0);
	assert_int_equal(w.sent[1].tclass, 0x22); /* may be marked, as it asks for a class of service */
	vb_out_end(a);
	vb_out_end(b);
}

static void a_full_batch_leaves(void **state)
{
	struct vb_out *a = new_way(0), *b = new_way(0);

	(void)state;
	for (unsigned i = 0; i < VB_UDP_MESSAGES + 1; i++) {
		assert_int_equal(w.calls, 0);
		add_some(i & 1 ? b : a, 1, SMALL);
		if (i == VB_UDP_MESSAGES)
			assert_int_equal(w.nsent, VB_UDP_MESSAGES);
		else
			assert_int_equal(w.nsent, 0);
	}
	vb_out_push(a);
	assert_int_equal(w.nsent, VB_UDP_MESSAGES + 1);
	add_some(a, 20, 4112);
	vb_out_push(a);
	assert_int_equal(w.calls, 4);
	check_sent(w.nsent - 2, 15, 4112, 4112);
	check_sent(w.nsent - 1, 5, 4112, 4112);
	vb_out_end(a);
	vb_out_end(b);
}

static void brief_packets(void **state)
{
	struct vb_out *o = new_way(0);
	struct vb_brief p[3] = {{{{0}}, {0}}};

	(void)state;
	for (unsigned i = 0; i < 3; i++) {
		p[i].hdr_len = VB_BTH_LEN;
		p[i].payload_len = i < 2 ? 12 : 4;
		make(p[i].bytes, VB_SEND_ONLY, VB_OUT_BRIEF);
	}
	assert_int_equal(o->ops->send_list(o, p, 3, VB_OUT_REQUEST), 3);
	assert_int_equal(w.calls, 0);
	assert_int_equal(o->ops->send(o, p, VB_OUT_REQUEST), 1); /* takes the others along */
	assert_int_equal(w.calls, 1);
	check_sent(0, 3, 28, 20);
	check_sent(1, 1, 28, 28);
	vb_out_end(o);
}

static void what_is_cancelled_leaves_no_trace(void **state)
{
	struct vb_out *o = new_way(0);
	struct vb_outbuf b;

	(void)state;
	assert_true(o->ops->reserve(o, &b, VB_BTH_LEN, 84, VB_OUT_REQUEST));
	o->ops->cancel(o, &b); /* it had begun a message */
	vb_out_push(o);
	assert_int_equal(w.calls, 0);
	add_some(o, 1, SMALL);
	assert_true(o->ops->reserve(o, &b, VB_BTH_LEN, 84, VB_OUT_REQUEST));
	o->ops->cancel(o, &b); /* it would have been the second one */
	add_some(o, 1, SMALL);
	vb_out_push(o);
	assert_int_equal(w.nsent, 1);
	check_sent(0, 2, SMALL, SMALL);
	vb_out_end(o);
}

/* ---- the kernel does not send ---- */

static void a_full_socket_keeps_the_batch(void **state)
{
	struct vb_out *a = new_way(0), *b = new_way(0);
	struct vb_rxq *r = vb_udp_wire.rxq(w.net);

	(void)state;
	assert_true(a->ops->room(a) && r->ops->room(r));
	add_some(a, 2, SMALL);
	add_some(b, 1, SMALL);
	add_some(a, 1, SMALL);
	w.most = 1; /* of three messages one leaves, and then there is no room */
	w.errors[1] = w.errors[2] = EAGAIN;
	w.nerrors = 3;
	vb_out_push(a);
	assert_int_equal(w.nsent, 1);
	assert_false(a->ops->room(a));
	assert_false(r->ops->room(r));
	add_some(a, 1, SMALL); /* joins the one that waits */
	w.most = 0;
	assert_true(a->ops->room(a));
	assert_true(r->ops->room(r));
	assert_int_equal(w.nsent, 3);
	check_sent(0, 2, SMALL, SMALL);
	check_sent(1, 1, SMALL, SMALL);
	check_sent(2, 2, SMALL, SMALL);
	assert_int_equal(w.host.lost, 0);
	vb_out_end(a);
	vb_out_end(b);
}

static void a_full_batch_takes_no_more(void **state)
{
	struct vb_out *o = new_way(0);
	uint32_t n = 0;

	(void)state;
	fail_with(3, EAGAIN);
	while (n < 100 && add(o, 4112))
		n++;
	assert_int_equal(n, VB_UDP_ROOM / 4112);
	assert_int_equal(w.nsent, 0);
	assert_false(o->ops->room(o));
	fail_with(0, 0);
	assert_true(o->ops->room(o));
	check_sent(0, 15, 4112, 4112);
	assert_true(add(o, 4112));
	vb_out_end(o);
	assert_int_equal(w.nsent, 2);
}

/* What does not cut messages sends packets one by one from then on; those that had other ICRCs are lost. */
static void kernels_that_do_not_cut(void **state)
{
	struct vb_out *o = new_way(0);

	(void)state;
	fail_with(1, EIO);
	add_some(o, 1, SMALL);
	vb_out_push(o); /* says nothing about cutting */
	assert_int_equal(w.host.lost, 1);
	fail_with(1, EPERM);
	add_some(o, 2, SMALL);
	vb_out_push(o); /* neither does this */
	assert_int_equal(w.host.lost, 3);
	assert_int_equal(w.host.lost_errno, EPERM);
	add_some(o, 2, SMALL);
	vb_out_push(o);
	check_sent(0, 2, SMALL, SMALL);
	fail_with(1, EINVAL);
	add_some(o, 4, SMALL);
	vb_out_push(o);
	assert_int_equal(w.nsent, 1);
	assert_int_equal(w.host.lost, 7);
	assert_int_equal(w.host.lost_errno, EINVAL);
	assert_true(w.host.lost_at);
	add_some(o, 3, SMALL);
	vb_out_push(o);
	assert_int_equal(w.nsent, 4);
	for (uint32_t i = 1; i < 4; i++)
		check_sent(i, 1, SMALL, SMALL);
	vb_out_end(o);
}

/* A call that returns what ICMP says of earlier packets has sent nothing. */
static void icmp_loses_nothing(void **state)
{
	struct vb_out *o = new_way(0);

	(void)state;
	w.errors[0] = ECONNREFUSED;
	w.errors[1] = EINTR;
	w.nerrors = 2;
	w.icmp = 1;
	add_some(o, 2, SMALL);
	vb_out_push(o);
	assert_int_equal(w.nsent, 1);
	check_sent(0, 2, SMALL, SMALL);
	assert_int_equal(w.host.lost, 0);
	assert_int_equal(w.host.icmp_errno, ECONNREFUSED);
	w.icmp = 1000000;
	fail_with(ERRORS, ECONNREFUSED);
	add_some(o, 2, SMALL);
	vb_out_push(o); /* not for ever */
	assert_int_equal(w.host.lost, 2);
	assert_int_equal(w.failed, 9);
	vb_out_end(o);
}

/* ---- datagrams ---- */

/* One to a queue pair of that slot of the far end. */
static void say(struct vb_out *o, uint32_t slot, struct vb_route route, uint32_t len)
{
	struct vb_pkt p = {.opcode = VB_FAMILY_UD | VB_SEND_ONLY,
			   .pkey = VB_PKEY_DEFAULT,
			   .qpn = slot << VB_QPN_INDEX_BITS | 9};
	uint32_t hdr_len = vb_opcodes[p.opcode].hdr_len, payload = len - VB_ICRC_LEN - hdr_len;
	struct vb_brief b = {0};
	struct vb_outbuf long_one;

	if (len - VB_ICRC_LEN > o->brief) {
		o->ops->aim(o, route, p.qpn);
		assert_true(o->ops->reserve(o, &long_one, hdr_len, payload, VB_OUT_REQUEST));
		vb_pkt_encode(long_one.hdr, &p);
		memset(long_one.payload, 0x5a, payload);
		o->ops->commit(o, &long_one);
		vb_out_push(o);
		return;
	}
	b.route = route;
	b.hdr_len = (uint8_t)hdr_len;
	b.payload_len = (uint8_t)payload;
	vb_pkt_encode(b.bytes, &p);
	assert_true(o->ops->send(o, &b, VB_OUT_REQUEST));
}

/* One way serves all queue pairs of a host, and all addresses that lead there. */
static void each_datagram_has_its_route(void **state)
{
	const struct vb_net_ends e = {.host = &w.host, .datagrams = true, .src_qpn = QPN, .mtu = 4096};
	const struct vb_route plain = vb_route(VB_GRH_WORD(0, 0, 0), 0, 0);
	const struct vb_route other = vb_route(VB_GRH_WORD(1, 0x20, 0xabcde), 7, 0);
	struct vb_out *o = vb_udp_wire.way(w.net, &e);

	(void)state;
	assert_non_null(o);
	say(o, 3, plain, 48);
	say(o, 3, plain, SMALL);
	say(o, 4, plain, 48); /* to another process: by another socket, as what has one port is merged */
	say(o, 3, other, SMALL);
	say(o, 3, plain, 48);
	say(o, 3, vb_route(VB_GRH_WORD(0, 0, 0), 9, 0), 48);
	say(o, 3, vb_route(VB_GRH_WORD(0, 0x40, 0), 9, 0), 48);
	assert_int_equal(w.nsent, 7);
	check_sent(0, 1, 48, 48);
	check_sent(1, 1, SMALL, SMALL);
	check_sent(2, 1, 48, 48);
	check_sent(4, 1, 48, 48);
	assert_int_equal(w.sent[0].fd, w.sent[1].fd);
	assert_int_equal(w.sent[0].fd, w.sent[4].fd);
	assert_int_not_equal(w.sent[0].fd, w.sent[2].fd);
	assert_int_equal(w.sent[0].hops, 64);
	assert_int_equal(w.sent[0].tclass, 0);
	assert_false(w.sent[0].six);
	assert_int_equal(w.sent[3].hops, 7);
	assert_true(w.sent[3].six); /* its source */
	assert_int_equal(ntohl(w.sent[3].flow), 0xabcde);
	assert_int_equal(w.sent[4].hops, 64);
	assert_int_equal(w.sent[5].hops, 9);
	assert_int_equal(w.sent[6].tclass, 0x42);
	vb_out_end(o);
	vb_out_end(vb_udp_wire.way(w.net, &e)); /* without one */
}

static void a_path_ends_with_a_batch(void **state)
{
	struct vb_out *a = new_way(0), *b = new_way(0);

	(void)state;
	add_some(a, 1, SMALL);
	add_some(b, 1, SMALL);
	fail_with(1, EAGAIN);
	vb_out_end(b);
	b = new_way(1); /* may have its address */
	add_some(b, 1, SMALL);
	vb_out_push(a);
	assert_int_equal(w.nsent, 3);
	vb_out_end(b);
	add_some(a, 1, SMALL);
	vb_out_end(a);
	assert_int_equal(w.nsent, 4);
}

/* ---- what comes ---- */

static struct message *come(void)
{
	assert_true(w.ncoming < COMING);
	return &w.coming[w.ncoming++];
}

/* One more packet of a message that comes, of so many bytes with its ICRC. */
static void packet(struct message *m, uint8_t opcode, uint32_t len)
{
	struct vb_roce_ends e = {vb_gid_of(m->six ? there6 : gids[1]), vb_gid_of(m->six ? gids[2] : gids[0]),
				 PORT_TX_PORT};
	uint8_t *at = m->bytes + m->len;
	struct vb_roce_path path;

	make(at, opcode, len - VB_ICRC_LEN);
	at[VB_BTH_LEN - 1] = (uint8_t)(m->len / SMALL); /* the PSN tells where it stood */
	vb_roce_path_init(&path, &e);
	vb_roce_seal(&path, (uint16_t)(m->packet ? m->len / m->packet : 0), at, len - VB_ICRC_LEN);
	m->len += len;
}

static int peek(struct vb_arrival *p)
{
	struct vb_rxq *r = vb_udp_wire.rxq(w.net);
	int n;

	assert_true(vb_lock_try(&r->rx));
	n = r->ops->peek(r, p);
	if (n > 0)
		r->ops->next(r);
	vb_lock_give(&r->rx);
	return n;
}

static void expect(uint8_t opcode, uint8_t psn, uint32_t payload)
{
	struct vb_arrival p;

	assert_int_equal(peek(&p), 1);
	if (p.b.bytes[0] != opcode || p.b.bytes[VB_BTH_LEN - 1] != psn || p.payload_len != payload)
		fail_msg("opcode 0x%x with PSN %u and %u bytes, not 0x%x with %u and %u", p.b.bytes[0],
			 p.b.bytes[VB_BTH_LEN - 1], p.payload_len, opcode, psn, payload);
	for (uint32_t i = 0; i < payload; i++)
		assert_int_equal(p.payload[i], 0x5a);
	assert_int_equal(p.source->origin.low, w.host.gid.low);
}

static void expect_nothing(void)
{
	struct vb_arrival p;

	assert_int_equal(peek(&p), 0);
}

static void messages_are_cut_apart(void **state)
{
	struct vb_rxq *r = vb_udp_wire.rxq(w.net);
	struct message *m = come();

	(void)state;
	m->packet = SMALL;
	packet(m, VB_SEND_ONLY, SMALL);
	packet(m, VB_SEND_ONLY, SMALL);
	packet(m, VB_SEND_ONLY, 60);
	assert_true(r->ops->ready(r));
	expect(VB_SEND_ONLY, 0, 84);
	assert_true(r->ops->ready(r)); /* of the message in hand */
	expect(VB_SEND_ONLY, 1, 84);
	expect(VB_SEND_ONLY, 2, 44);
	assert_false(r->ops->ready(r));
	expect_nothing();
	assert_true(w.host.heard);
}

/* The look that has taken a message asks for no further one, and the next look does. */
static void a_message_ends_a_look(void **state)
{
	struct vb_rxq *r = vb_udp_wire.rxq(w.net);

	(void)state;
	packet(come(), VB_SEND_ONLY, SMALL);
	packet(come(), VB_ACK, 20);
	expect(VB_SEND_ONLY, 0, 84);
	expect_nothing();
	assert_int_equal(w.taken, 1);
	assert_true(r->ops->ready(r));
	expect(VB_ACK, 0, 0);
	assert_int_equal(w.taken, 2);
	expect_nothing();
	expect_nothing();
}

static void answers_come_first(void **state)
{
	static const uint8_t opcodes[] = {VB_SEND_ONLY, VB_READ_RESP_ONLY, VB_SEND_ONLY, VB_READ_RESP_ONLY};
	struct message *m = come();

	(void)state;
	m->packet = SMALL;
	for (unsigned i = 0; i < 4; i++)
		packet(m, opcodes[i], SMALL);
	packet(m, VB_ACK, 20);
	expect(VB_READ_RESP_ONLY, 1, 80);
	expect(VB_READ_RESP_ONLY, 3, 80);
	expect(VB_ACK, 4, 0);
	expect(VB_SEND_ONLY, 0, 84);
	expect(VB_SEND_ONLY, 2, 84);
	expect_nothing();
}

/* What is no message is counted, and the next one is taken. */
static void messages_that_are_none(void **state)
{
	struct message *m = come();

	(void)state;
	m->flags = MSG_TRUNC;
	packet(m, VB_SEND_ONLY, SMALL);
	m = come();
	m->packet = 12;
	packet(m, VB_SEND_ONLY, SMALL);
	m = come();
	m->len = 15;
	m = come();
	packet(m, VB_SEND_ONLY, SMALL);
	expect(VB_SEND_ONLY, 0, 84);
	expect_nothing();
	assert_int_equal(w.net->in.counts[VB_ROCE_LENGTH], 3);
}

/* What the header of IP said, a datagram brings along; another packet says nothing of it. */
static void datagrams_bring_their_route(void **state)
{
	struct message *m = come();
	struct vb_arrival p;

	(void)state;
	m->hops = 7;
	m->tclass = 0x20;
	packet(m, VB_FAMILY_UD | VB_SEND_ONLY, SMALL);
	m = come();
	m->six = true;
	m->hops = 61;
	m->flow = htonl(0x02012345);
	packet(m, VB_FAMILY_UD | VB_SEND_ONLY, 40);
	m = come();
	m->hops = 7;
	packet(m, VB_SEND_ONLY, SMALL);
	assert_int_equal(peek(&p), 1);
	assert_int_equal(p.b.hops, 7);
	assert_int_equal(p.b.ack, VB_GRH_WORD(0, 0x20, 0));
	assert_memory_equal(p.source->gids[0], gids[1], 16);
	assert_int_equal(vb_source_dgid(p.source, &gids[1], vb_gid_of(gids[1])).low, vb_gid_of(gids[0]).low);
	expect_nothing(); /* the look ends */
	assert_int_equal(peek(&p), 1);
	assert_int_equal(p.b.hops, 61);
	assert_int_equal(p.b.ack, VB_GRH_WORD(0, 0, 0x12345));
	assert_memory_equal(p.source->gids[0], there6, 16);
	expect_nothing(); /* the look ends */
	assert_int_equal(peek(&p), 1);
	assert_int_equal(p.b.lengths, 0);
	assert_int_equal(p.b.ack, 0);
}

static void marks(void **state)
{
	static const struct {
		int tclass;
		bool six, marked;
	} rows[] = {{3, false, true}, {2, false, false}, {0x23, true, true}, {1, true, false}};
	struct vb_arrival p;

	(void)state;
	for (unsigned i = 0; i < 4; i++) {
		struct message *m = come();

		m->tclass = rows[i].tclass;
		m->six = rows[i].six;
		packet(m, VB_SEND_ONLY, i & 1 ? SMALL : 32);
	}
	for (unsigned i = 0; i < 4; i++) {
		assert_int_equal(peek(&p), 1);
		assert_int_equal(p.b.flags & VB_BRIEF_MARKED, rows[i].marked ? VB_BRIEF_MARKED : 0);
		assert_int_equal(p.b.flags & VB_BRIEF_APART, i & 1 ? VB_BRIEF_APART : 0);
		expect_nothing();
	}
}

/* A wrong packet takes none of its message along, and a look ends. */
static void keep_one(const struct vb_roce_packet *p)
{
	w.kept++;
	assert_int_equal(p->len, SMALL);
}

static void count_wrong(void *user, const struct vb_roce_arrival *a)
{
	(void)user;
	w.said++;
	assert_int_equal(a->len, SMALL);
}

static void wrong_packets(void **state)
{
	struct message *m = come();

	(void)state;
	w.net->cfg.kept = keep_one;
	w.net->cfg.wrong = count_wrong;
	m->packet = SMALL;
	for (unsigned i = 0; i < 3; i++)
		packet(m, VB_SEND_ONLY, SMALL);
	m->bytes[SMALL + 50] ^= 1;
	expect(VB_SEND_ONLY, 0, 84);
	expect(VB_SEND_ONLY, 2, 84);
	expect_nothing();
	assert_int_equal(w.net->in.counts[VB_ROCE_ICRC], 1);
	assert_int_equal(w.host.bad_icrc, 1);
	assert_int_equal(w.wrong_icrcs, 1);
	assert_int_equal(w.said, 1);
	assert_int_equal(w.kept, 3); /* a capture shows what was discarded */
	m = come();
	packet(m, VB_SEND_ONLY, SMALL);
	m->bytes[2] = 0; /* another P_Key */
	w.again = 1000;
	expect_nothing();
	assert_in_range(w.net->in.counts[VB_ROCE_PKEY], 1, 100);
}

#define TEST(f) cmocka_unit_test_setup_teardown(f, begin, finish)

int main(void)
{
	const struct CMUnitTest tests[] = {
	    TEST(packets_of_one_length_are_a_message),
	    TEST(a_message_has_an_end),
	    TEST(each_path_has_its_own),
	    TEST(a_full_batch_leaves),
	    TEST(brief_packets),
	    TEST(what_is_cancelled_leaves_no_trace),
	    TEST(a_full_socket_keeps_the_batch),
	    TEST(a_full_batch_takes_no_more),
	    TEST(kernels_that_do_not_cut),
	    TEST(icmp_loses_nothing),
	    TEST(each_datagram_has_its_route),
	    TEST(a_path_ends_with_a_batch),
	    TEST(messages_are_cut_apart),
	    TEST(a_message_ends_a_look),
	    TEST(answers_come_first),
	    TEST(messages_that_are_none),
	    TEST(datagrams_bring_their_route),
	    TEST(marks),
	    TEST(wrong_packets),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
