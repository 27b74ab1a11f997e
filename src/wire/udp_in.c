/* Receiving.  The kernel gives packets of one source that came together as one message (UDP_GRO), which is
 * cut apart here.  A packet is looked at in the order of iba/roce.h before anything else may happen because
 * of it.
 *
 * Of one message the answers are taken first: a program that gets the answer to what it sent finds that sent
 * completely, as both have PSNs of their own. */
#include <errno.h>
#include <netinet/udp.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "base/clock.h"
#include "wire/udp.h"

enum {
	TRIES = 64, /* messages without a right packet, in one look */
	LO = 1,	    /* lo's index in every network namespace */
};

static struct vb_udp_in *in_of(const struct vb_rxq *r)
{
	return vb_containerof(r, struct vb_udp_in, rxq);
}

/* ---- a message ---- */

static void take_control(struct vb_udp_in *u, struct msghdr *h)
{
	for (struct cmsghdr *c = CMSG_FIRSTHDR(h); c; c = CMSG_NXTHDR(h, c)) {
		const uint8_t *data = CMSG_DATA(c);
		struct in6_pktinfo info;
		int n = 0;

		if (c->cmsg_level == SOL_IPV6 && c->cmsg_type == IPV6_PKTINFO) {
			memcpy(&info, data, sizeof(info));
			memcpy(&u->ends.dst, &info.ipi6_addr, sizeof(u->ends.dst));
			u->by_lo = info.ipi6_ifindex == LO;
		} else if (c->cmsg_level == SOL_UDP && c->cmsg_type == UDP_GRO) {
			memcpy(&n, data, sizeof(n));
			u->packet = n > 0 ? (uint32_t)n : u->packet;
		} else if (c->cmsg_level == SOL_IPV6 && c->cmsg_type == IPV6_TCLASS) {
			memcpy(&n, data, sizeof(n));
			u->tclass = (uint8_t)n;
		} else if (c->cmsg_level == SOL_IP && c->cmsg_type == IP_TOS) {
			u->tclass = data[0];
		} else if ((c->cmsg_level == SOL_IPV6 && c->cmsg_type == IPV6_HOPLIMIT) ||
			   (c->cmsg_level == SOL_IP && c->cmsg_type == IP_TTL)) {
			memcpy(&n, data, sizeof(n));
			u->hops = (uint8_t)n;
		} else if (c->cmsg_level == SOL_IPV6 && c->cmsg_type == VB_UDP_FLOWINFO) {
			memcpy(&n, data, sizeof(n));
			u->flow = ntohl((uint32_t)n);
		}
	}
}

static bool is_answer(const struct vb_udp_in *u, uint32_t at)
{
	return vb_opcodes[u->room[at]].bits & VB_OP_RESPONSE;
}

/* In which order the packets of the message are taken. */
static void sort(struct vb_udp_in *u)
{
	uint32_t n = 0, all = (u->len + u->packet - 1) / u->packet;

	for (uint32_t i = 0; i < all; i++)
		if (is_answer(u, i * u->packet))
			u->order[n++] = (uint16_t)i;
	for (uint32_t i = 0; n && n < all && i < all; i++)
		if (!is_answer(u, i * u->packet))
			u->order[n++] = (uint16_t)i;
	for (; n < all; n++)
		u->order[n] = (uint16_t)n;
	u->n = all;
	u->next = 0;
}

/* Whose message it is: what all its packets have. */
static void set_source(struct vb_udp_in *u, const struct sockaddr_in6 *from)
{
	memcpy(&u->ends.src, &from->sin6_addr, sizeof(u->ends.src));
	u->ends.port = ntohs(from->sin6_port);
	memcpy(u->dgid, &u->ends.dst, sizeof(u->dgid));
	memcpy(u->sgid, &u->ends.src, sizeof(u->sgid[0]));
	u->source.origin = (struct vb_origin){u->ends.src.high, u->ends.src.low};
	u->known = false;
}

/* The next message.  false: there is none now. */
static bool receive(struct vb_udp_in *u)
{
	const struct vb_net *net = u->net;
	_Alignas(8) uint8_t control[256];
	struct sockaddr_in6 from;
	struct iovec to = {.iov_base = u->room, .iov_len = VB_UDP_ROOM};
	struct msghdr h = {.msg_name = &from,
			   .msg_namelen = sizeof(from),
			   .msg_iov = &to,
			   .msg_iovlen = 1,
			   .msg_control = control,
			   .msg_controllen = sizeof(control)};
	long n = syscall(SYS_recvmsg, u->fd, &h, MSG_DONTWAIT);

	if (n < 0)
		return false;
	u->n = u->next = 0;
	if (n < VB_ROCE_LEAST || h.msg_flags & (MSG_TRUNC | MSG_CTRUNC) || h.msg_namelen != sizeof(from) ||
	    from.sin6_family != AF_INET6) {
		u->counts[VB_ROCE_LENGTH]++;
		return true;
	}
	u->len = u->packet = (uint32_t)n;
	u->tclass = u->hops = 0;
	u->flow = 0;
	u->by_lo = false;
	take_control(u, &h);
	u->marked = (u->tclass & 3) == 3;
	if (u->packet < VB_ROCE_LEAST) {
		u->counts[VB_ROCE_LENGTH]++;
		return true;
	}
	set_source(u, &from);
	sort(u);
	u->here.naddrs = net->cfg.addresses(net->cfg.user, u->addresses);
	u->here.groups = atomic_load_explicit(&u->groups, memory_order_relaxed);
	return true;
}

/* ---- its packets ---- */

static const uint8_t *packet_at(const struct vb_udp_in *u, uint32_t *len)
{
	uint32_t at = u->order[u->next] * u->packet;

	*len = u->len - at < u->packet ? u->len - at : u->packet;
	return u->room + at;
}

static void look_for_host(struct vb_udp_in *u)
{
	const struct vb_net_cfg *cfg = &u->net->cfg;

	u->host = cfg->host(cfg->user, u->ends.src);
	u->known = true;
}

static void heard(struct vb_udp_in *u)
{
	look_for_host(u);
	if (u->host)
		atomic_store_explicit(&u->host->heard, vb_now(), memory_order_relaxed);
}

/* Whether this process has sent it, and has kept it then. */
static bool is_own(const struct vb_udp_in *u)
{
	const struct vb_net *n = u->net;
	bool own = false;

	for (uint32_t i = 0; i < atomic_load_explicit(&n->ntx, memory_order_acquire); i++)
		own |= n->tx[i].port == u->ends.port;
	return own && vb_gid_is_among(u->here.addrs, u->here.naddrs, u->ends.src);
}

static __attribute__((cold, noinline)) void keep(struct vb_udp_in *u, const struct vb_roce_arrival *a,
						 uint16_t id)
{
	const struct vb_roce_packet p = {
	    .ends = a->ends, .id = id, .tclass = u->tclass, .pkt = a->pkt, .len = a->len};

	if (!is_own(u))
		u->net->cfg.kept(&p);
}

/* Whether the next packet of the message is one. */
static bool is_right(struct vb_udp_in *u)
{
	struct vb_roce_arrival a = {.ends = u->ends, .by_lo = u->by_lo || u->net->cfg.own};
	enum vb_roce_verdict v;
	uint32_t len;
	uint16_t id;

	a.pkt = packet_at(u, &len);
	a.len = len;
	a.likely = u->order[u->next];
	v = vb_roce_check(&u->here, &u->last, &a, &id);
	if (vb_likely(v == VB_ROCE_RIGHT) && !u->known)
		heard(u);
	if (vb_likely(v == VB_ROCE_RIGHT) && u->host && u->last.path.ipv4 && u == &u->net->in)
		v = vb_roce_habit_check(&u->host->habit, id);
	if (vb_likely(v == VB_ROCE_RIGHT)) {
		if (vb_unlikely(u->net->cfg.kept != NULL))
			keep(u, &a, id);
		return true;
	}
	u->counts[v]++;
	if (v == VB_ROCE_ICRC || v == VB_ROCE_ID) {
		atomic_fetch_add_explicit(u->net->cfg.wrong_icrcs, 1, memory_order_relaxed);
		if (!u->known)
			look_for_host(u);
		if (u->host)
			atomic_fetch_add_explicit(&u->host->bad_icrc, 1, memory_order_relaxed);
		if (u->net->cfg.kept)
			keep(u, &a, 0);
		vb_udp_keep_wrong(&u->wrong, &a);
		if (u->net->cfg.wrong)
			u->net->cfg.wrong(u->net->cfg.user, &a);
	}
	return false;
}

static void done_with_packet(struct vb_udp_in *u)
{
	u->right = false;
	u->next++;
	atomic_store_explicit(&u->more, u->next < u->n, memory_order_relaxed);
}

/* A right packet is in hand.  false: there is none now.  A message ends the look that has taken its packets:
 * asking the kernel for another one is most often in vain, and the caller of this look would wait for that.
 */
static bool find(struct vb_udp_in *u)
{
	bool over = u->n && u->next == u->n;

	if (over)
		u->n = u->next = 0;
	for (uint32_t tries = 0; !over && !u->right; tries++) {
		while (u->next < u->n) {
			if (is_right(u)) {
				u->right = true;
				atomic_store_explicit(&u->more, true, memory_order_relaxed);
				return true;
			}
			done_with_packet(u);
		}
		if (tries == TRIES || !receive(u))
			return false;
	}
	return u->right;
}

static bool is_to_group(const uint8_t *pkt)
{
	return VB_FAMILY(pkt[0]) == VB_FAMILY_UD && vb_pkt_get_qpn(pkt) == VB_QPN_GROUP;
}

static int peek(struct vb_rxq *r, struct vb_arrival *p)
{
	struct vb_udp_in *u = in_of(r);
	const uint8_t *pkt;
	uint32_t len, hdr_len;

	vb_lock_assert_held(&r->rx);
	if (!find(u))
		return 0;
	pkt = packet_at(u, &len);
	len -= VB_ICRC_LEN;
	hdr_len = vb_opcodes[pkt[0]].hdr_len;
	p->b.hdr_len = (uint8_t)hdr_len;
	p->b.flags = u->marked ? VB_BRIEF_MARKED : 0;
	p->b.lengths = 0;
	p->b.ack = 0;
	if (VB_FAMILY(pkt[0]) == VB_FAMILY_UD) { /* its route */
		p->b.hops = u->hops;
		p->b.ack = VB_GRH_WORD(0, u->tclass, u->flow);
	}
	p->payload_len = len - hdr_len;
	p->source = &u->source;
	if (vb_unlikely(is_to_group(pkt))) {
		p->b.flags |= VB_BRIEF_APART;
		memcpy(p->b.bytes, pkt, hdr_len);
		memcpy(p->b.bytes + hdr_len, u->dgid, VB_MGID_LEN);
		p->b.hdr_len = (uint8_t)(hdr_len + VB_MGID_LEN);
		p->payload = pkt + hdr_len;
		return 1;
	}
	if (len <= VB_OUT_BRIEF) {
		memcpy(p->b.bytes, pkt, len);
		p->b.payload_len = (uint8_t)(len - hdr_len);
		p->payload = p->b.bytes + hdr_len;
		return 1;
	}
	p->b.flags |= VB_BRIEF_APART;
	memcpy(p->b.bytes, pkt, hdr_len);
	p->payload = pkt + hdr_len;
	return 1;
}

static void next(struct vb_rxq *r)
{
	struct vb_udp_in *u = in_of(r);

	vb_lock_assert_held(&r->rx);
	done_with_packet(u);
	atomic_fetch_add_explicit(&r->at, 1, memory_order_relaxed);
}

static bool ready(const struct vb_rxq *r)
{
	const struct vb_udp_in *u = in_of(r);
	struct pollfd p = {.fd = u->fd, .events = POLLIN};
	struct timespec none = {0};

	if (atomic_load_explicit(&u->more, memory_order_relaxed))
		return true;
	return syscall(SYS_ppoll, &p, 1, &none, NULL, 0) > 0 && p.revents & POLLIN;
}

/* Each path on it has a way out of its own, but they share the sockets. */
static bool has_room(struct vb_rxq *r)
{
	const struct vb_net *n = in_of(r)->net;

	for (uint32_t i = 0; i < atomic_load_explicit(&n->ntx, memory_order_acquire); i++)
		if (!atomic_load_explicit(&n->tx[i].full, memory_order_relaxed))
			return true;
	return false;
}

static const struct vb_rxq_ops rxq_ops = {.peek = peek, .next = next, .ready = ready, .room = has_room};

/* Options without which the wire works, if less well, are asked for only. */
static int set_options(int fd)
{
	static const struct {
		int level, name;
		bool must;
	} rows[] = {{SOL_IPV6, IPV6_RECVPKTINFO, true}, {SOL_IPV6, IPV6_RECVTCLASS, false},
		    {SOL_IP, IP_RECVTOS, false},	{SOL_IPV6, IPV6_RECVHOPLIMIT, false},
		    {SOL_IP, IP_RECVTTL, false},	{SOL_IPV6, VB_UDP_FLOWINFO, false},
		    {SOL_UDP, UDP_GRO, false}};
	int on = 1;

	for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++)
		if (setsockopt(fd, rows[i].level, rows[i].name, &on, sizeof(on)) && rows[i].must)
			return errno;
	return 0;
}

/* A receiving socket and what is taken from it, as `here` says but for the addresses. */
static int open_queue(struct vb_net *n, struct vb_udp_in *u, int fd, const struct vb_roce_here *here)
{
	int err;

	u->net = n;
	u->fd = fd;
	err = set_options(fd);
	if (err)
		return err;
	u->room = malloc(VB_UDP_ROOM); /* vb_udp_in_close() */
	if (!u->room)
		return ENOMEM;
	u->here = *here;
	u->here.addrs = u->addresses;
	u->source.gids = u->sgid;
	u->source.dgid = &u->dgid;
	vb_rxq_init(&u->rxq, &rxq_ops, NULL, &u->cold);
	return 0;
}

int vb_udp_join(struct vb_net *n, const uint8_t mgid[16], struct vb_text *why)
{
	int err = vb_roce_join_group(n->cfg.roce, mgid);

	if (err)
		vb_roce_group_why_add(why, n->cfg.roce, mgid, err);
	else
		atomic_fetch_add_explicit(&n->in.groups, 1, memory_order_relaxed);
	return err;
}

void vb_udp_leave(struct vb_net *n, const uint8_t mgid[16])
{
	vb_roce_leave_group(n->cfg.roce, mgid);
	atomic_fetch_sub_explicit(&n->in.groups, 1, memory_order_relaxed);
}

int vb_udp_in_open(struct vb_net *n)
{
	const struct vb_roce_here own = {
	    .qpn_mask = (VB_ROCE_SLOTS - 1) << VB_QPN_INDEX_BITS,
	    .qpn = vb_roce_slot(n->cfg.roce) << VB_QPN_INDEX_BITS,
	};
	/* No QPN has that one, so that it is QP1's packets alone. */
	const struct vb_roce_here mads = {.qpn_mask = 0, .qpn = 1, .gsi = true};
	int err = open_queue(n, &n->in, vb_roce_fd(n->cfg.roce), &own);

	return err ? err : open_queue(n, &n->mads, vb_roce_fd_shared(n->cfg.roce), &mads);
}

void vb_udp_in_close(struct vb_net *n)
{
	free(n->in.room);
	free(n->mads.room);
}
