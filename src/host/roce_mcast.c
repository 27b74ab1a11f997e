/* Multicast groups of an interface (IGMP, MLD).  A process joins them with its slot's socket, so its packets
 * come by the one queue that it has anyway, one copy for each process.
 *
 * The socket outlives a process that is killed, and so does its membership, until the slot's next process
 * takes it back, or the last process of the port ends. */
#include <errno.h>
#include <netinet/in.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/text.h"
#include "host/roce_priv.h"
#include "iba/grh.h"

enum { LINE = 256 };

static int change(const struct vb_roce *r, const uint8_t gid[16], bool join)
{
	struct ip_mreqn m4 = {.imr_ifindex = (int)r->ifindex};
	struct ipv6_mreq m6 = {.ipv6mr_interface = r->ifindex};
	int err;

	memcpy(&m6.ipv6mr_multiaddr, gid, 16);
	memcpy(&m4.imr_multiaddr, gid + 12, 4);
	if (IN6_IS_ADDR_V4MAPPED(&m6.ipv6mr_multiaddr))
		err = setsockopt(vb_roce_fd(r), IPPROTO_IP, join ? IP_ADD_MEMBERSHIP : IP_DROP_MEMBERSHIP,
				 &m4, sizeof(m4));
	else
		err = setsockopt(vb_roce_fd(r), IPPROTO_IPV6, join ? IPV6_JOIN_GROUP : IPV6_LEAVE_GROUP, &m6,
				 sizeof(m6));
	return err ? errno : 0;
}

int vb_roce_join_group(struct vb_roce *r, const uint8_t gid[16])
{
	int err = change(r, gid, true);

	if (err == EADDRINUSE) /* it is a member already */
		err = 0;
	if (!err)
		atomic_store_explicit(&r->joined, true, memory_order_relaxed);
	return err;
}

void vb_roce_leave_group(const struct vb_roce *r, const uint8_t gid[16])
{
	(void)change(r, gid, false);
}

/* Of all groups that somebody on the interface has joined, which the kernel lists, those of IPv4.  Their
 * lines follow that of their interface, and are indented. */
static void leave_ipv4(const struct vb_roce *r, FILE *f)
{
	uint8_t gid[16] = {[10] = 0xff, 0xff};
	uint32_t ifindex = 0, word;
	char line[LINE];

	while (fgets(line, sizeof(line), f)) {
		if (line[0] != '\t') {
			ifindex = (uint32_t)strtoul(line, NULL, 10);
		} else if (ifindex == r->ifindex) {
			word = (uint32_t)strtoul(line, NULL, 16); /* as it stands in memory */
			memcpy(gid + 12, &word, sizeof(word));
			vb_roce_leave_group(r, gid);
		}
	}
}

static void leave_ipv6(const struct vb_roce *r, FILE *f)
{
	char line[LINE], hex[33];
	uint8_t gid[16];
	uint32_t ifindex;
	unsigned byte;

	while (fgets(line, sizeof(line), f)) {
		if (sscanf(line, "%u %*s %32[0-9a-f]", &ifindex, hex) != 2 || ifindex != r->ifindex ||
		    strlen(hex) != 32)
			continue;
		for (unsigned i = 0; i < 16; i++) {
			if (sscanf(hex + 2 * (size_t)i, "%2x", &byte) != 1)
				break;
			gid[i] = (uint8_t)byte;
		}
		vb_roce_leave_group(r, gid);
	}
}

void vb_roce_leave_groups(const struct vb_roce *r)
{
	FILE *f = fopen("/proc/thread-self/net/igmp", "re");

	if (f) {
		leave_ipv4(r, f);
		fclose(f);
	}
	f = fopen("/proc/thread-self/net/igmp6", "re");
	if (f) {
		leave_ipv6(r, f);
		fclose(f);
	}
}

/* The kernel's limit of a socket's IPv4 groups; 0: it cannot be read. */
static unsigned most_groups(void)
{
	FILE *f = fopen("/proc/sys/net/ipv4/igmp_max_memberships", "re");
	unsigned n = 0;

	if (f) {
		if (fscanf(f, "%u", &n) != 1)
			n = 0;
		fclose(f);
	}
	return n;
}

void vb_roce_group_why_add(struct vb_text *t, const struct vb_roce *r, const uint8_t gid[16], int err)
{
	bool ipv4 = vb_gid_is_ipv4(vb_gid_of(gid));
	unsigned most = ipv4 && err == ENOBUFS ? most_groups() : 0;

	vb_text_add(t, "the interface %s cannot join the multicast group ", r->interface);
	vb_gid_add(t, gid);
	if (most)
		vb_text_add(t,
			    ": this process has joined %u groups of IPv4, the kernel's limit; to raise it: "
			    "sysctl net.ipv4.igmp_max_memberships=%u",
			    most, most * 10);
	else if (err == ENODEV)
		vb_text_add(t, ": the kernel has no such interface any more, or it has no address of IPv%d",
			    ipv4 ? 4 : 6);
	else
		vb_text_add(t, ": %s", strerror(err));
}
