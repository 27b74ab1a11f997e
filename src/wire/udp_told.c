/* What the network says of packets that did not get through, for the sentence on an end that does not answer:
 * ICMP messages, which the kernel keeps with the sending socket, and packets whose addresses were translated.
 * Nothing ends because of them. */
#include <errno.h>
#include <string.h>
#include <time.h>

#include <linux/errqueue.h> /* which takes struct timespec from there */
#include <linux/icmp.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "base/clock.h"
#include "wire/udp.h"

enum { MOST = 64 };	/* messages taken in one go */
#define KEPT_FOR VB_SEC /* so long a wrong packet stays before the next one takes its place */

/* Without them the wire works as well; sentences know less then. */
void vb_udp_ask_icmp(int fd)
{
	int on = 1;

	(void)setsockopt(fd, SOL_IP, IP_RECVERR, &on, sizeof(on));
	(void)setsockopt(fd, SOL_IPV6, IPV6_RECVERR, &on, sizeof(on));
}

void vb_udp_refused(const struct vb_net *n, struct vb_net_host *host, uint32_t err, bool icmp)
{
	_Atomic uint64_t *said = &host->said[2 * icmp + err / 64 % 2];
	uint64_t bit = 1ull << err % 64;

	if (!n->cfg.refused || !atomic_load_explicit(&host->untold, memory_order_relaxed) ||
	    atomic_fetch_or(said, bit) & bit)
		return;
	n->cfg.refused(n->cfg.user, host);
}

/* The kernel's errno, but for filters that reject IPv4: it says EHOSTUNREACH of those, too. */
static uint32_t errno_of(const struct sock_extended_err *e)
{
	bool prohibited =
	    e->ee_origin == SO_EE_ORIGIN_ICMP && e->ee_type == ICMP_DEST_UNREACH &&
	    (e->ee_code == ICMP_NET_ANO || e->ee_code == ICMP_HOST_ANO || e->ee_code == ICMP_PKT_FILTERED);

	return prohibited ? EACCES : e->ee_errno;
}

static void take(const struct vb_net *n, const struct sockaddr_in6 *to, const struct sock_extended_err *e)
{
	uint32_t err = errno_of(e);
	struct vb_gid gid;
	struct vb_net_host *host;

	memcpy(&gid, &to->sin6_addr, sizeof(gid));
	host = n->cfg.host(n->cfg.user, gid);
	if (!host)
		return;
	atomic_store_explicit(&host->icmp_errno, err, memory_order_relaxed);
	if (err == EMSGSIZE)
		atomic_store_explicit(&host->icmp_mtu, e->ee_info, memory_order_relaxed);
	atomic_store_explicit(&host->icmp_at, vb_now(), memory_order_relaxed);
	vb_udp_refused(n, host, err, true);
}

/* Whether there was one, from the network or from this host's own side of it. */
static bool take_one(const struct vb_net *n, int fd, bool *icmp)
{
	_Alignas(8) uint8_t control[512];
	struct sockaddr_in6 to = {0};
	struct msghdr h = {.msg_name = &to,
			   .msg_namelen = sizeof(to),
			   .msg_control = control,
			   .msg_controllen = sizeof(control)};
	struct sock_extended_err e;

	if (syscall(SYS_recvmsg, fd, &h, MSG_ERRQUEUE | MSG_DONTWAIT) < 0)
		return false;
	for (struct cmsghdr *c = CMSG_FIRSTHDR(&h); c; c = CMSG_NXTHDR(&h, c)) {
		if (!(c->cmsg_level == SOL_IPV6 && c->cmsg_type == IPV6_RECVERR) &&
		    !(c->cmsg_level == SOL_IP && c->cmsg_type == IP_RECVERR))
			continue;
		memcpy(&e, CMSG_DATA(c), sizeof(e));
		if (e.ee_origin != SO_EE_ORIGIN_ICMP && e.ee_origin != SO_EE_ORIGIN_ICMP6)
			continue; /* the call that sent has returned it */
		*icmp = true;
		if (to.sin6_family == AF_INET6)
			take(n, &to, &e);
	}
	return true;
}

bool vb_udp_take_icmp(const struct vb_net *n, int fd)
{
	int err = errno;
	bool icmp = false;

	for (int i = 0; i < MOST && take_one(n, fd, &icmp); i++)
		;
	errno = err;
	return icmp;
}

/* ---- packets with a wrong ICRC ---- */

void vb_udp_keep_wrong(struct vb_udp_wrong *w, const struct vb_roce_arrival *a)
{
	uint64_t now = vb_now();

	vb_lock_take(&w->lock);
	if (a->len <= sizeof(w->pkt) && (!w->at || now - w->at > KEPT_FOR)) {
		w->at = now;
		w->of = *a;
		memcpy(w->pkt, a->pkt, a->len);
		w->of.pkt = w->pkt;
	}
	vb_lock_give(&w->lock);
}

static bool is_translated(struct vb_udp_wrong *w, const struct vb_roce_ends *sent, struct vb_gid *from)
{
	bool is;

	vb_lock_take(&w->lock);
	is = w->at && vb_roce_is_translated(&w->of, sent);
	*from = w->of.ends.src;
	vb_lock_give(&w->lock);
	return is;
}

bool vb_udp_is_translated(struct vb_net *n, const struct vb_roce_ends *sent, struct vb_gid *from)
{
	return is_translated(&n->in.wrong, sent, from) || is_translated(&n->mads.wrong, sent, from);
}

void vb_udp_hear(struct vb_net *n)
{
	for (uint32_t i = 0; i < atomic_load_explicit(&n->ntx, memory_order_acquire); i++)
		(void)vb_udp_take_icmp(n, n->tx[i].fd);
}
