/* Sending.  Packets are put one behind the other into a batch; those of one path that have one length are a
 * message, which the kernel cuts apart (UDP_SEGMENT) behind most of its work.  vb_out_ops.push sends the
 * batch.
 *
 * The kernel numbers the packets of a message 0, 1, 2, ... in the IPv4 identification, since the socket is
 * not connected and does not let packets be cut into fragments: so their ICRCs are known before they leave.
 */
#include <errno.h>
#include <netinet/udp.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/log.h"
#include "base/pages.h"
#include "host/netdev.h"
#include "iba/frame.h"
#include "wire/udp.h"

enum { AGAIN = 8 }; /* so often a message is tried again */

struct udp_out {
	struct vb_out out;
	struct vb_net *net;
	struct vb_udp_tx *tx; /* of datagrams NULL: there was none */
	struct vb_net_host *host;
	struct vb_roce_path path;
	struct vb_roce_ends ends; /* for a capture, as are the next two */
	uint8_t tclass, hops;
	struct sockaddr_in6 to;
	uint32_t control_len;
	_Alignas(8) uint8_t control[128];
	uint64_t id; /* of these ends: what has another one goes elsewhere */
	/* Of datagrams: to which slot there, and how, all this leads now. */
	struct vb_route route;
	uint32_t slot, src_qpn;
	/* Between reserve() and commit(), under tx->lock. */
	uint8_t *hdr;
	uint32_t len;
};

static struct udp_out *udp(struct vb_out *o)
{
	return vb_containerof(o, struct udp_out, out);
}

/* ---- the batch leaves ---- */

static void note_lost(const struct vb_net *net, struct vb_net_host *host, uint32_t n, int err)
{
	atomic_fetch_add_explicit(&host->lost, n, memory_order_relaxed);
	atomic_store_explicit(&host->lost_at, vb_now(), memory_order_relaxed);
	atomic_store_explicit(&host->lost_errno, (uint32_t)err, memory_order_relaxed);
	vb_udp_refused(net, host, (uint32_t)err, false);
}

static void *put_control(uint8_t *to, uint32_t *len, int level, int type, size_t n)
{
	struct cmsghdr *c = (struct cmsghdr *)(void *)(to + *len);

	memset(c, 0, CMSG_SPACE(n));
	c->cmsg_level = level;
	c->cmsg_type = type;
	c->cmsg_len = CMSG_LEN(n);
	*len += (uint32_t)CMSG_SPACE(n);
	return CMSG_DATA(c);
}

static void set_message(struct msghdr *h, struct vb_udp_message *m)
{
	uint32_t len = m->control_len;
	uint16_t packet = (uint16_t)m->packet;

	if (m->n > 1)
		memcpy(put_control(m->control, &len, SOL_UDP, UDP_SEGMENT, sizeof(packet)), &packet,
		       sizeof(packet));
	*h = (struct msghdr){.msg_name = &m->to,
			     .msg_namelen = sizeof(m->to),
			     .msg_iov = &m->bytes,
			     .msg_iovlen = 1,
			     .msg_control = m->control,
			     .msg_controllen = len};
}

/* Sends messages from tx->sent on, in one call: how many have left, or -1 and *err. */
static int send_some(struct vb_udp_tx *t, int *err)
{
	struct mmsghdr h[VB_UDP_MESSAGES];
	uint32_t n = t->n - t->sent;
	long r;

	for (uint32_t i = 0; i < n; i++)
		set_message(&h[i].msg_hdr, &t->messages[t->sent + i]);
	r = n == 1 ? syscall(SYS_sendmsg, t->fd, &h[0].msg_hdr, MSG_DONTWAIT | MSG_NOSIGNAL)
		   : syscall(SYS_sendmmsg, t->fd, h, n, MSG_DONTWAIT | MSG_NOSIGNAL);
	*err = r < 0 ? errno : 0;
	return r < 0 ? -1 : n == 1 ? 1 : (int)r;
}

/* The next message cannot be sent.  true: it is to be tried once more.  Some kernels and interfaces do not
 * cut messages (EIO: none that computes no checksums, before Linux 6.11).  Then packets leave one by one from
 * now on. Those of this message have the ICRCs of identifications that they would not get, so they are lost.
 */
static bool trouble(struct vb_udp_tx *t, int err)
{
	struct vb_udp_message *m = &t->messages[t->sent];

	if (err == EINTR)
		return true;
	/* The call has returned what ICMP says of earlier packets, maybe to another address, and sent
	 * nothing. */
	if (vb_udp_take_icmp(t->net, t->fd) && m->again++ < AGAIN)
		return true;
	if (m->n > 1 && (err == EIO || err == EINVAL) && !t->singly) {
		t->singly = true;
		vb_log(
		    VB_LOG_INFO,
		    "packets to other hosts are sent one by one, which is slower: the kernel does not split "
		    "them for this interface: %s",
		    strerror(err));
	}
	note_lost(t->net, m->host, m->n, err);
	return false;
}

/* Everything leaves that the socket has room for. */
static void flush(struct vb_udp_tx *t)
{
	int err, n;

	vb_lock_assert_held(&t->lock);
	while (t->sent < t->n) {
		n = send_some(t, &err);
		if (n > 0) {
			t->sent += (uint32_t)n;
			continue;
		}
		if (err == EAGAIN) {
			atomic_store_explicit(&t->full, true, memory_order_relaxed);
			return;
		}
		if (!trouble(t, err))
			t->sent++;
	}
	t->used = t->sent = t->n = 0;
	atomic_store_explicit(&t->full, false, memory_order_relaxed);
}

/* ---- packets go into it ---- */

static bool joins(const struct vb_udp_tx *t, const struct udp_out *u, uint32_t len)
{
	const struct vb_udp_message *m = &t->messages[t->n - 1];

	return t->n > t->sent && m->of == u->id && !m->closed && len <= m->packet && m->n < VB_UDP_SEGMENTS &&
	       m->bytes.iov_len + len <= VB_UDP_TOGETHER && !t->singly;
}

/* Of long packets.  What still fits into the batch behind them would be a short message, which costs the
 * kernel as much as a long one. */
static bool is_full(const struct vb_udp_message *m)
{
	return m->bytes.iov_len + m->packet > VB_UDP_TOGETHER ||
	       (m->n == VB_UDP_SEGMENTS && m->bytes.iov_len > VB_UDP_ROOM / 2);
}

static void begin(struct vb_udp_tx *t, const struct udp_out *u, uint32_t len)
{
	struct vb_udp_message *m = &t->messages[t->n++];

	m->of = u->id;
	m->host = u->host;
	m->to = u->to;
	m->bytes = (struct iovec){.iov_base = t->room + t->used};
	m->packet = len;
	m->n = 0;
	m->closed = false;
	m->again = 0;
	m->control_len = u->control_len;
	memcpy(m->control, u->control, u->control_len);
}

/* Room for a packet of that length.  false: there is none. */
static bool make_room(struct vb_udp_tx *t, const struct udp_out *u, uint32_t len)
{
	vb_lock_assert_held(&t->lock);
	if (t->used + len > VB_UDP_ROOM || t->n == VB_UDP_MESSAGES)
		flush(t);
	if (t->used + len > VB_UDP_ROOM)
		return false;
	if (joins(t, u, len))
		return true;
	if (t->n == VB_UDP_MESSAGES)
		return false;
	begin(t, u, len);
	return true;
}

static __attribute__((cold, noinline)) void keep(const struct udp_out *u, uint16_t id, const uint8_t *pkt,
						 uint32_t len)
{
	const struct vb_roce_packet p = {
	    .ends = u->ends, .id = id, .tclass = u->tclass, .hops = u->hops, .pkt = pkt, .len = len};

	u->net->cfg.kept(&p);
}

/* The packet, of `len` bytes without its ICRC, that stands in the room made for it. */
static void take(struct vb_udp_tx *t, const struct udp_out *u, uint32_t len)
{
	struct vb_udp_message *m = &t->messages[t->n - 1];

	vb_roce_seal(&u->path, (uint16_t)m->n, t->room + t->used, len);
	len += VB_ICRC_LEN;
	if (vb_unlikely(u->net->cfg.kept != NULL))
		keep(u, (uint16_t)m->n, t->room + t->used, len);
	m->n++;
	m->bytes.iov_len += len;
	m->closed = len < m->packet;
	t->used += len;
	if (is_full(m))
		flush(t);
}

static bool reserve(struct vb_out *o, struct vb_outbuf *b, uint32_t hdr_len, uint32_t payload_len,
		    enum vb_out_class cls)
{
	struct udp_out *u = udp(o);
	struct vb_udp_tx *t = u->tx;

	(void)cls;
	vb_lock_take(&t->lock);
	u->len = hdr_len + payload_len;
	if (!make_room(t, u, u->len + VB_ICRC_LEN)) {
		vb_lock_give(&t->lock);
		return false;
	}
	*b = (struct vb_outbuf){.hdr = t->room + t->used, .payload = t->room + t->used + hdr_len};
	return true;
}

static void commit(struct vb_out *o, struct vb_outbuf *b)
{
	struct udp_out *u = udp(o);

	(void)b;
	vb_lock_assert_held(&u->tx->lock);
	take(u->tx, u, u->len);
	vb_lock_give(&u->tx->lock);
}

/* A message that was begun for it has no packet. */
static void cancel(struct vb_out *o, struct vb_outbuf *b)
{
	struct vb_udp_tx *t = udp(o)->tx;

	(void)b;
	vb_lock_assert_held(&t->lock);
	t->n -= !t->messages[t->n - 1].n;
	vb_lock_give(&t->lock);
}

static uint32_t put_list(struct udp_out *u, const struct vb_brief *p, uint32_t n, bool now)
{
	struct vb_udp_tx *t = u->tx;
	uint32_t i;

	vb_lock_take(&t->lock);
	for (i = 0; i < n; i++) {
		uint32_t len = p[i].hdr_len + (uint32_t)p[i].payload_len;

		if (!make_room(t, u, len + VB_ICRC_LEN))
			break;
		memcpy(t->room + t->used, p[i].bytes, len);
		take(t, u, len);
	}
	if (now)
		flush(t);
	vb_lock_give(&t->lock);
	return i;
}

static uint32_t send_list(struct vb_out *o, const struct vb_brief *p, uint32_t n, enum vb_out_class cls)
{
	(void)cls;
	return put_list(udp(o), p, n, false);
}

static uint64_t send_one(struct vb_out *o, const struct vb_brief *p, enum vb_out_class cls)
{
	(void)cls;
	return put_list(udp(o), p, 1, true);
}

static void push(struct vb_out *o)
{
	struct vb_udp_tx *t = udp(o)->tx;

	if (vb_unlikely(!t)) /* of datagrams, of which none was sent */
		return;
	vb_lock_take(&t->lock);
	flush(t);
	vb_lock_give(&t->lock);
}

/* Nobody knows when a far end takes a packet. */
static uint64_t mark(struct vb_out *o)
{
	(void)o;
	return 1;
}

static bool taken(struct vb_out *o, uint64_t m)
{
	(void)o, (void)m;
	return true;
}

static bool room(struct vb_out *o)
{
	struct vb_udp_tx *t = udp(o)->tx;

	if (vb_unlikely(!t))
		return true;
	if (atomic_load_explicit(&t->full, memory_order_relaxed))
		push(o);
	return !atomic_load_explicit(&t->full, memory_order_relaxed);
}

static void end(struct vb_out *o)
{
	push(o);
	free(udp(o));
}

static uint64_t now(struct vb_out *o)
{
	(void)o;
	return vb_now();
}

static const struct vb_out_ops out_ops = {.reserve = reserve,
					  .commit = commit,
					  .cancel = cancel,
					  .send = send_one,
					  .send_list = send_list,
					  .mark = mark,
					  .taken = taken,
					  .room = room,
					  .push = push,
					  .end = end,
					  .now = now};

/* ---- paths ---- */

/* What each message to there says beside its bytes: the source, and what stands in the IP header. */
static void set_control(struct udp_out *u, const struct vb_net_ends *e, bool ipv4)
{
	uint32_t flow = htonl(e->flow);

	/* A queue on the way may mark packets instead of dropping them, where the address asks for a class
	 * of service: networks that drop packets which may be marked are rather those without. */
	int tclass = e->tclass >> 2 && !(e->tclass & 3) ? e->tclass | 2 : e->tclass;
	int hops = e->hops ? e->hops : VB_GRH_HOPS;
	struct in6_pktinfo info = {.ipi6_ifindex = vb_roce_ifindex(u->net->cfg.roce)};

	memcpy(&info.ipi6_addr, &e->sgid, sizeof(info.ipi6_addr));
	memcpy(put_control(u->control, &u->control_len, SOL_IPV6, IPV6_PKTINFO, sizeof(info)), &info,
	       sizeof(info));
	memcpy(put_control(u->control, &u->control_len, ipv4 ? SOL_IP : SOL_IPV6,
			   ipv4 ? IP_TTL : IPV6_HOPLIMIT, sizeof(hops)),
	       &hops, sizeof(hops));
	if (flow && !ipv4)
		memcpy(put_control(u->control, &u->control_len, SOL_IPV6, VB_UDP_FLOWINFO, sizeof(flow)),
		       &flow, sizeof(flow));
	u->tclass = (uint8_t)tclass;
	u->hops = (uint8_t)hops;
	if (tclass)
		memcpy(put_control(u->control, &u->control_len, ipv4 ? SOL_IP : SOL_IPV6,
				   ipv4 ? IP_TOS : IPV6_TCLASS, sizeof(tclass)),
		       &tclass, sizeof(tclass));
}

/* As the user wants it: packets without a UDP checksum, for far ends that demand that. */
static int set_checksum(int fd)
{
	int on = 1;

	if (vb_netdev_checksum())
		return 0;
	return setsockopt(fd, SOL_SOCKET, SO_NO_CHECK, &on, sizeof(on)) ||
		       setsockopt(fd, SOL_UDP, UDP_NO_CHECK6_TX, &on, sizeof(on))
		   ? errno
		   : 0;
}

/* Whether members of groups on this host get a copy of each packet by the kernel.  On a socket of IPv6 its
 * option counts for both. */
static void set_loop(int fd, bool on)
{
	int loop = on;

	(void)!setsockopt(fd, SOL_IPV6, IPV6_MULTICAST_LOOP, &loop, sizeof(loop));
	(void)!setsockopt(fd, SOL_IP, IP_MULTICAST_LOOP, &loop, sizeof(loop));
}

/* One more socket: its index plus 1; 0: there can be none, and *err says why. */
static uint8_t open_tx(struct vb_net *n, int *err)
{
	uint32_t i = atomic_load_explicit(&n->ntx, memory_order_relaxed);
	struct vb_udp_tx *t = &n->tx[i];
	struct vb_roce_tx s;

	*err = EMFILE;
	if (i == VB_ROCE_TX)
		return 0;
	s = vb_roce_tx(n->cfg.roce, i);
	if (s.fd < 0)
		return 0;
	t->net = n;
	t->fd = s.fd;
	t->port = s.port;
	t->singly = !vb_netdev_gso();
	vb_udp_ask_icmp(s.fd);
	/* Without a flow label a packet has none, as the address says it.  Best effort. */
	(void)!setsockopt(s.fd, SOL_IPV6, IPV6_AUTOFLOWLABEL, &(int){0}, sizeof(int));
	set_loop(s.fd, n->cfg.own);
	*err = set_checksum(s.fd);
	if (!t->messages)
		t->messages = calloc(VB_UDP_MESSAGES, sizeof(*t->messages)); /* vb_udp_out_close() */
	if (!t->room)
		t->room = malloc(VB_UDP_ROOM); /* vb_udp_out_close() */
	if (!t->messages || !t->room)
		*err = ENOMEM;
	if (*err)
		return 0;
	atomic_store_explicit(&n->ntx, i + 1, memory_order_release);
	return (uint8_t)(i + 1);
}

static uint32_t slot_of(uint32_t qpn)
{
	return qpn >> VB_QPN_INDEX_BITS & (VB_ROCE_SLOTS - 1);
}

/* The socket for a far end.  The far host gives what GRO merges to the process of the first packet, and
 * merges what has the same ports.  So a socket sends to one slot there. */
static struct vb_udp_tx *tx_for(struct vb_net *n, uint32_t qpn, uint32_t hash)
{
	uint8_t *of = n->of_slot[slot_of(qpn)], i;
	uint32_t way, all;
	int err;

	vb_lock_take(&n->tx_lock);
	all = atomic_load_explicit(&n->ntx, memory_order_relaxed);
	way = all < VB_UDP_FREELY ? hash % VB_UDP_WAYS : 0;
	if (!of[way] && n->spare) {
		of[way] = n->spare;
		n->spare = 0;
	} else if (!of[way]) {
		of[way] = open_tx(n, &err);
	}
	i = of[way] ? of[way] : (uint8_t)(hash % all + 1);
	vb_lock_give(&n->tx_lock);
	return &n->tx[i - 1];
}

/* One for a packet to that slot which leaves alone; none is opened for that. */
static struct vb_udp_tx *some_tx(struct vb_net *n, uint32_t qpn)
{
	uint8_t i;

	vb_lock_take(&n->tx_lock);
	i = n->of_slot[slot_of(qpn)][0];
	vb_lock_give(&n->tx_lock);
	return &n->tx[i ? i - 1 : 0]; /* vb_udp_out_open() */
}

/* Packets go there from now on, by that socket. */
static void lead_by(struct udp_out *u, const struct vb_net_ends *e, struct vb_gid to, struct vb_udp_tx *tx)
{
	u->tx = tx;
	u->id = atomic_fetch_add_explicit(&u->net->ids, 1, memory_order_relaxed) + 1;
	u->ends = (struct vb_roce_ends){.src = e->sgid, .dst = to, .port = u->tx->port};
	vb_roce_path_init(&u->path, &u->ends);
	u->control_len = 0;
	set_control(u, e, vb_roce_ends_are_ipv4(&u->ends));
}

static void lead(struct udp_out *u, const struct vb_net_ends *e)
{
	uint32_t port = vb_frame_port(e->flow, e->src_qpn, e->dst_qpn);

	lead_by(u, e, e->host->gid, tx_for(u->net, e->dst_qpn, port));
}

/* ---- datagrams ---- */

/* Another slot or route than that of the datagram before.  One to a process there takes the same socket as
 * the one before, so that they stay in order. */
static __attribute__((noinline)) void turn(struct udp_out *u, struct vb_route route, uint32_t slot)
{
	const struct vb_net_cfg *cfg = &u->net->cfg;
	uint32_t sgid = VB_GRH_SGID(route.word);
	struct vb_gid own[VB_GID_TABLE] = {0};
	struct vb_net_ends e = {
	    .host = u->host,
	    .src_qpn = u->src_qpn,
	    .dst_qpn = slot << VB_QPN_INDEX_BITS,
	    .flow = VB_GRH_FLOW(route.word),
	    .tclass = VB_GRH_TCLASS(route.word),
	    .hops = route.hops,
	};

	cfg->addresses(cfg->user, own);
	e.sgid = own[sgid];
	push(&u->out);
	u->slot = slot;
	u->route = route;
	lead(u, &e);
}

static void aim(struct vb_out *o, struct vb_route route, uint32_t qpn)
{
	struct udp_out *u = udp(o);

	if (vb_unlikely(!u->tx || slot_of(qpn) != u->slot || route.word != u->route.word ||
			route.hops != u->route.hops))
		turn(u, route, slot_of(qpn));
}

static uint64_t send_datagram(struct vb_out *o, const struct vb_brief *p, enum vb_out_class cls)
{
	(void)cls;
	aim(o, p->route, vb_pkt_get_qpn(p->bytes));
	return put_list(udp(o), p, 1, true);
}

static const struct vb_out_ops datagram_ops = {.reserve = reserve,
					       .commit = commit,
					       .cancel = cancel,
					       .aim = aim,
					       .send = send_datagram,
					       .send_list = vb_out_send_singly,
					       .mark = mark,
					       .taken = taken,
					       .room = room,
					       .push = push,
					       .end = end,
					       .now = now};

static void set_address(struct udp_out *u, struct vb_gid to)
{
	u->to = (struct sockaddr_in6){.sin6_family = AF_INET6, .sin6_port = htons(VB_ROCE_PORT)};
	memcpy(&u->to.sin6_addr, &to, sizeof(u->to.sin6_addr));
	if (IN6_IS_ADDR_LINKLOCAL(&u->to.sin6_addr) || IN6_IS_ADDR_MULTICAST(&u->to.sin6_addr))
		u->to.sin6_scope_id = vb_roce_ifindex(u->net->cfg.roce);
}

bool vb_udp_toss(struct vb_net *n, const struct vb_net_ends *e, struct vb_gid to, const struct vb_brief *b)
{
	struct udp_out u = {.net = n, .host = &n->strangers};

	set_address(&u, to);
	lead_by(&u, e, to, some_tx(n, e->dst_qpn));
	return put_list(&u, b, 1, true) == 1;
}

struct vb_out *vb_udp_way(struct vb_net *n, const struct vb_net_ends *e)
{
	struct udp_out *u = calloc(1, sizeof(*u));

	if (!u)
		return NULL;
	u->out = (struct vb_out){.ops = e->datagrams ? &datagram_ops : &out_ops,
				 .mtu = e->mtu,
				 .brief = VB_OUT_BRIEF,
				 .acks_behind = true,
				 .together = VB_UDP_TOGETHER,
				 .lossy = true};
	u->net = n;
	u->host = e->host;
	u->src_qpn = e->src_qpn;
	if (e->unacked)
		atomic_store_explicit(&e->host->untold, true, memory_order_relaxed);
	set_address(u, e->host->gid);
	if (!e->datagrams)
		lead(u, e);
	return &u->out;
}

int vb_udp_out_open(struct vb_net *n)
{
	int err;

	n->spare = open_tx(n, &err);
	return n->spare ? 0 : err;
}

void vb_udp_out_close(struct vb_net *n)
{
	for (uint32_t i = 0; i < VB_ROCE_TX; i++) {
		free(n->tx[i].messages);
		free(n->tx[i].room);
	}
}
