#include "net.h"

#include <arpa/inet.h>
#include <errno.h>
#include <linux/rtnetlink.h>
#include <net/if.h>
#include <sys/socket.h>

#include "kit.h"

struct request {
	struct nlmsghdr h;
	union {
		struct ifinfomsg link;
		struct ifaddrmsg addr;
	};
	char attributes[128];
};

static struct rtattr *put(struct request *r, unsigned short type, const void *data, size_t len)
{
	struct rtattr *a = (struct rtattr *)((char *)r + NLMSG_ALIGN(r->h.nlmsg_len));

	a->rta_type = type;
	a->rta_len = (unsigned short)RTA_LENGTH(len);
	if (len)
		memcpy(RTA_DATA(a), data, len);
	r->h.nlmsg_len = (uint32_t)(NLMSG_ALIGN(r->h.nlmsg_len) + RTA_ALIGN(a->rta_len));
	return a;
}

/* 0 or errno. */
static int ask(struct request *r)
{
	struct {
		struct nlmsghdr h;
		struct nlmsgerr e;
		char room[256];
	} answer;
	int fd = socket(AF_NETLINK, SOCK_RAW | SOCK_CLOEXEC, NETLINK_ROUTE);

	r->h.nlmsg_flags |= NLM_F_REQUEST | NLM_F_ACK;
	CHECK(fd >= 0 && send(fd, r, r->h.nlmsg_len, 0) == (ssize_t)r->h.nlmsg_len, "%s", strerror(errno));
	CHECK(recv(fd, &answer, sizeof(answer), 0) > 0 && answer.h.nlmsg_type == NLMSG_ERROR);
	close(fd);
	return -answer.e.error;
}

void kit_net_begin(void)
{
	CHECK(kit_own_network(), "%s", strerror(errno));
	kit_net_set("lo", true);
}

static int make(const char *name)
{
	struct request r = {.h = {.nlmsg_len = NLMSG_LENGTH(sizeof(r.link)),
				  .nlmsg_type = RTM_NEWLINK,
				  .nlmsg_flags = NLM_F_CREATE | NLM_F_EXCL}};
	struct rtattr *info;

	put(&r, IFLA_IFNAME, name, strlen(name) + 1);
	info = put(&r, IFLA_LINKINFO, NULL, 0);
	put(&r, IFLA_INFO_KIND, "bridge", 7);
	info->rta_len = (unsigned short)((char *)&r + r.h.nlmsg_len - (char *)info);
	return ask(&r);
}

void kit_net_make(const char *name)
{
	int err = make(name);

	CHECK(!err, "%s: %s", name, strerror(err));
}

bool kit_net_can(void)
{
	pid_t pid = kit_fork();

	if (!pid) {
		const char *what = "SKIP: there can be no network namespace here";
		int err = kit_own_network() ? 0 : errno;

		if (!err) {
			what = "SKIP: the kernel makes no bridge here";
			err = make("v0");
		}
		if (err)
			printf("%s: %s\n", what, strerror(err));
		fflush(stdout);
		_exit(err ? KIT_SKIP : 0);
	}
	return !kit_reap(pid);
}

void kit_net_set(const char *name, bool up)
{
	struct request r = {.h = {.nlmsg_len = NLMSG_LENGTH(sizeof(r.link)), .nlmsg_type = RTM_NEWLINK},
			    .link = {.ifi_index = (int)if_nametoindex(name),
				     .ifi_flags = up ? IFF_UP : 0,
				     .ifi_change = IFF_UP}};
	int err = ask(&r);

	CHECK(!err, "%s: %s", name, strerror(err));
}

void kit_net_address(const char *name, const char *address, bool there)
{
	struct request r = {
	    .h = {.nlmsg_len = NLMSG_LENGTH(sizeof(r.addr)),
		  .nlmsg_type = there ? RTM_NEWADDR : RTM_DELADDR,
		  .nlmsg_flags = there ? NLM_F_CREATE | NLM_F_EXCL : 0},
	    .addr = {.ifa_family = AF_INET, .ifa_prefixlen = 24, .ifa_index = if_nametoindex(name)}};
	struct in_addr in;
	int err;

	CHECK(inet_pton(AF_INET, address, &in) == 1);
	put(&r, IFA_LOCAL, &in, sizeof(in));
	put(&r, IFA_ADDRESS, &in, sizeof(in));
	err = ask(&r);
	CHECK(!err, "%s %s: %s", name, address, strerror(err));
}
