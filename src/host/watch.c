/* Notices that interfaces and addresses of the network namespace change: a netlink socket among the adapter's
 * descriptors, on which the kernel says so, and nothing otherwise.  What has become of them is for the upper
 * layer to read; here only the ups and downs of interfaces are taken one by one, since a short one leaves no
 * trace in what is read afterwards.
 *
 * An adapter works without this: where the socket cannot be had (a sandbox, no descriptors), ports do not
 * change by themselves. */
#include <errno.h>
#include <linux/netlink.h>
#include <linux/rtnetlink.h>
#include <net/if.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/log.h"
#include "host/private.h"

enum { BATCH = 64 }; /* messages taken in one go */

void vb_watch_open(struct vb_adapter *a)
{
	struct sockaddr_nl sa = {.nl_family = AF_NETLINK,
				 .nl_groups = RTMGRP_LINK | RTMGRP_IPV4_IFADDR | RTMGRP_IPV6_IFADDR};
	int fd = socket(AF_NETLINK, SOCK_RAW | SOCK_NONBLOCK | SOCK_CLOEXEC, NETLINK_ROUTE), err;

	if (fd < 0) {
		err = errno;
		goto without;
	}
	err =
	    bind(fd, (struct sockaddr *)&sa, sizeof(sa)) ? errno : vb_ctl_add(a, fd, EPOLLIN, &a->on_network);
	if (err)
		goto close_fd;
	a->network = fd; /* vb_watch_close() */
	a->network_own = vb_own_of(fd);
	return;
close_fd:
	close(fd);
without:
	vb_log(VB_LOG_INFO,
	       "the device's port does not follow the network interfaces: the kernel's notifications are not "
	       "available: %s",
	       strerror(err));
}

void vb_watch_close(struct vb_adapter *a)
{
	vb_own_close(&a->network_own, a->network);
}

static void take(struct vb_adapter *a, const void *text, ssize_t len)
{
	for (const struct nlmsghdr *h = text; NLMSG_OK(h, len); h = NLMSG_NEXT(h, len)) {
		const struct ifinfomsg *i = NLMSG_DATA(h);

		/* of other changes, an MTU's say, the flags say nothing new */
		if (h->nlmsg_type == RTM_NEWLINK && h->nlmsg_len >= NLMSG_LENGTH(sizeof(*i)) &&
		    i->ifi_change & IFF_UP)
			a->ops->link(a, (uint32_t)i->ifi_index, i->ifi_flags & IFF_UP);
	}
}

void vb_watch_run(struct vb_adapter *a)
{
	bool any = false;

	vb_mutex_assert_held(&a->control);
	if (!vb_own_is(&a->network_own, a->network)) {
		vb_adapter_lose(a);
		return;
	}
	for (int i = 0; i < BATCH; i++) {
		struct sockaddr_nl from = {0};
		socklen_t size = sizeof(from);
		ssize_t n = recvfrom(a->network, a->inbox, sizeof(a->inbox), MSG_DONTWAIT,
				     (struct sockaddr *)&from, &size);

		if (n < 0 && (errno == EAGAIN || errno == EINTR))
			break;
		if (n < 0 &&
		    errno != ENOBUFS) { /* that says that some are lost; anything else would not end */
			vb_watch_close(a);
			a->network = -1;
			return;
		}
		any = true;
		if (n > 0 && !from.nl_pid) /* the kernel's */
			take(a, a->inbox, (size_t)n);
	}
	if (any)
		a->ops->network(a);
}
