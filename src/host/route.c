#include "host/route.h"

#include <errno.h>
#include <linux/neighbour.h>
#include <linux/rtnetlink.h>
#include <net/if.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <unistd.h>

#include "host/netif.h"
#include "iba/grh.h"

struct question {
	struct nlmsghdr head;
	union {
		struct rtmsg rt;
		struct ndmsg neighbour;
	};
	uint8_t attributes[64];
};

static void add(struct question *q, uint16_t type, const void *data, size_t len)
{
	struct rtattr a = {.rta_type = type, .rta_len = (uint16_t)RTA_LENGTH(len)};
	uint8_t *at = (uint8_t *)q + NLMSG_ALIGN(q->head.nlmsg_len);

	memcpy(at, &a, sizeof(a));
	memcpy(at + RTA_LENGTH(0), data, len);
	q->head.nlmsg_len = (uint32_t)(NLMSG_ALIGN(q->head.nlmsg_len) + RTA_ALIGN(a.rta_len));
}

static void ask(struct question *q, const uint8_t gid[16], uint32_t ifindex)
{
	bool v4 = vb_gid_is_ipv4(vb_gid_of(gid));

	*q = (struct question){.head = {.nlmsg_len = NLMSG_LENGTH(sizeof(q->rt)),
					.nlmsg_type = RTM_GETROUTE,
					.nlmsg_flags = NLM_F_REQUEST},
			       .rt = {.rtm_family = v4 ? AF_INET : AF_INET6, .rtm_dst_len = v4 ? 32 : 128}};
	add(q, RTA_DST, v4 ? gid + 12 : gid, v4 ? 4 : 16);
	if (ifindex)
		add(q, RTA_OIF, &ifindex, sizeof(ifindex));
}

static void take_metrics(struct vb_route_to *r, struct rtattr *in)
{
	struct rtattr *a = RTA_DATA(in);

	for (int len = (int)RTA_PAYLOAD(in); RTA_OK(a, len); a = RTA_NEXT(a, len))
		if (a->rta_type == RTAX_MTU)
			memcpy(&r->mtu, RTA_DATA(a), sizeof(r->mtu));
}

static void take_gid(uint8_t gid[16], const struct rtattr *a)
{
	uint32_t v4;

	if (RTA_PAYLOAD(a) == 16) {
		memcpy(gid, RTA_DATA(a), 16);
	} else if (RTA_PAYLOAD(a) == sizeof(v4)) {
		memcpy(&v4, RTA_DATA(a), sizeof(v4));
		vb_gid_of_ipv4(gid, v4);
	}
}

static void take_router(struct vb_route_to *r, const struct rtattr *a)
{
	r->direct = false;
	take_gid(r->next, a);
}

static int errno_of(uint8_t type)
{
	switch (type) {
	case RTN_UNICAST:
	case RTN_LOCAL:
	case RTN_MULTICAST:
	case RTN_ANYCAST:
		return 0;
	case RTN_PROHIBIT:
		return EACCES;
	case RTN_BLACKHOLE:
	case RTN_UNREACHABLE:
		return EHOSTUNREACH;
	default:
		return ENETUNREACH;
	}
}

static int take(struct vb_route_to *r, struct nlmsghdr *h)
{
	const struct rtmsg *rt = NLMSG_DATA(h);
	const struct nlmsgerr *e = NLMSG_DATA(h);
	struct rtattr *a = RTM_RTA(rt);
	int err;

	if (h->nlmsg_type == NLMSG_ERROR)
		return e->error ? -e->error : EPROTO;
	if (h->nlmsg_type != RTM_NEWROUTE)
		return EPROTO;
	err = errno_of(rt->rtm_type);
	if (err)
		return err;
	r->local = rt->rtm_type == RTN_LOCAL;
	r->direct = true;
	for (int len = (int)RTM_PAYLOAD(h); RTA_OK(a, len); a = RTA_NEXT(a, len)) {
		if (a->rta_type == RTA_OIF)
			memcpy(&r->ifindex, RTA_DATA(a), sizeof(r->ifindex));
		else if (a->rta_type == RTA_PREFSRC)
			take_gid(r->source, a);
		else if (a->rta_type == RTA_METRICS)
			take_metrics(r, a);
		else if (a->rta_type == RTA_GATEWAY)
			take_router(r, a);
	}
	return r->ifindex ? 0 : ENETUNREACH;
}

/* Of the interface. */
static void name(struct vb_route_to *r, int fd)
{
	struct ifreq ask = {0};

	ask.ifr_ifindex = (int)r->ifindex;
	if (ioctl(fd, SIOCGIFNAME, &ask))
		return;
	memcpy(r->ifname, ask.ifr_name, sizeof(r->ifname));
	if (!ioctl(fd, SIOCGIFMTU, &ask) && (!r->mtu || (uint32_t)ask.ifr_mtu < r->mtu))
		r->mtu = (uint32_t)ask.ifr_mtu;
}

/* Asks the kernel and gets what it answers: 0 or errno. */
static int exchange(int fd, const struct question *q, struct nlmsghdr *answer, size_t room)
{
	ssize_t n = -1;

	/* the answer is there when the call returns */
	if (send(fd, q, q->head.nlmsg_len, 0) >= 0)
		n = recv(fd, answer, room, MSG_DONTWAIT);
	if (n < 0)
		return errno;
	return NLMSG_OK(answer, (size_t)n) ? 0 : EPROTO;
}

int vb_route_find(struct vb_route_to *r, const uint8_t gid[16], uint32_t ifindex)
{
	_Alignas(struct nlmsghdr) uint8_t answer[1024];
	struct nlmsghdr *h = (struct nlmsghdr *)(void *)answer;
	struct question q;
	int fd = socket(AF_NETLINK, SOCK_RAW | SOCK_CLOEXEC, NETLINK_ROUTE), err;

	*r = (struct vb_route_to){0};
	if (fd < 0)
		return errno;
	memcpy(r->next, gid, sizeof(r->next));
	ask(&q, gid, ifindex);
	err = exchange(fd, &q, h, sizeof(answer));
	if (!err)
		err = take(r, h);
	if (!err)
		name(r, fd);
	else
		*r = (struct vb_route_to){0};
	close(fd);
	return err;
}

bool vb_route_fails(const struct vb_route_to *r)
{
	_Alignas(struct nlmsghdr) uint8_t answer[1024];
	struct nlmsghdr *h = (struct nlmsghdr *)(void *)answer;
	const struct ndmsg *of = NLMSG_DATA(h);
	bool v4 = vb_gid_is_ipv4(vb_gid_of(r->next)), fails;
	struct question q = {
	    .head = {.nlmsg_len = NLMSG_LENGTH(sizeof(q.neighbour)),
		     .nlmsg_type = RTM_GETNEIGH,
		     .nlmsg_flags = NLM_F_REQUEST},
	    .neighbour = {.ndm_family = v4 ? AF_INET : AF_INET6, .ndm_ifindex = (int)r->ifindex}};
	int fd = socket(AF_NETLINK, SOCK_RAW | SOCK_CLOEXEC, NETLINK_ROUTE);

	if (fd < 0)
		return false;
	add(&q, NDA_DST, v4 ? r->next + 12 : r->next, v4 ? 4 : 16);
	fails = !exchange(fd, &q, h, sizeof(answer)) && h->nlmsg_type == RTM_NEWNEIGH &&
		of->ndm_state & (NUD_INCOMPLETE | NUD_FAILED);
	close(fd);
	return fails;
}
