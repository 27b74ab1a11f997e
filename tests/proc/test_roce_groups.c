/* Multicast groups at the UDP port of RoCEv2: host/roce_mcast.c.  Each holder is a process that has the port,
 * joins and leaves groups, and tells what comes to its slot.
 *
 * A case sends to a group, and then to one that all holders are members of: what comes before that is all
 * that the group brought. */
#include <arpa/inet.h>
#include <errno.h>
#include <inttypes.h>
#include <net/if.h>
#include <poll.h>
#include <sched.h>
#include <signal.h>

#include "base/text.h"
#include "host/roce.h"
#include "kit.h"
#include "net.h"
#include "node.h"

#define NIC "vb0"

enum { MOST = VB_ROCE_SLOTS - 1, PATIENCE_MS = 20000 };

struct order {
	char what; /* join, leave, or quit */
	uint8_t gid[16];
};

/* What a holder says: a tag that came, or what became of an order. */
struct told {
	uint32_t tag, slot;
	int err;
	char text[300];
};

struct holder {
	pid_t pid;
	int sock;
	uint32_t slot;
};

static struct told obey(struct vb_roce *r, const struct order *o)
{
	struct told t = {.slot = vb_roce_slot(r)};
	struct vb_text text = {t.text, sizeof(t.text)};

	if (o->what == 'l')
		vb_roce_leave_group(r, o->gid);
	if (o->what == 'j')
		t.err = vb_roce_join_group(r, o->gid);
	if (t.err)
		vb_roce_group_why_add(&text, r, o->gid, t.err);
	return t;
}

static _Noreturn void hold(int sock)
{
	struct vb_roce_why why;
	struct vb_roce *r;
	struct order o;
	struct told t;

	CHECK_EQ(vb_roce_open(&r, NIC, &why), 0);
	t = (struct told){.slot = vb_roce_slot(r)};
	CHECK_EQ(write(sock, &t, sizeof(t)), sizeof(t));
	for (;;) {
		struct pollfd p[2] = {{.fd = sock, .events = POLLIN},
				      {.fd = vb_roce_fd(r), .events = POLLIN}};
		uint32_t bth[4];

		CHECK(poll(p, 2, -1) > 0);
		if (p[1].revents && recv(p[1].fd, bth, sizeof(bth), MSG_DONTWAIT) == sizeof(bth)) {
			t = (struct told){.tag = bth[3]};
			CHECK_EQ(write(sock, &t, sizeof(t)), sizeof(t));
		}
		if (!p[0].revents)
			continue;
		if (read(sock, &o, sizeof(o)) != sizeof(o) || o.what == 'q')
			break;
		t = obey(r, &o);
		CHECK_EQ(write(sock, &t, sizeof(t)), sizeof(t));
	}
	vb_roce_close(r);
	_exit(0);
}

static struct told hear(const struct holder *h)
{
	struct pollfd p = {.fd = h->sock, .events = POLLIN};
	struct told t;

	CHECK(poll(&p, 1, PATIENCE_MS) == 1, "nothing happened");
	CHECK_EQ(read(h->sock, &t, sizeof(t)), sizeof(t));
	return t;
}

static struct told tell(const struct holder *h, char what, const char *group)
{
	struct order o = {.what = what};

	CHECK_EQ(inet_pton(AF_INET6, group, o.gid), 1);
	CHECK_EQ(write(h->sock, &o, sizeof(o)), sizeof(o));
	return hear(h);
}

static void join(const struct holder *h, const char *group)
{
	struct told t = tell(h, 'j', group);

	CHECK(!t.err, "%s", t.text);
}

static const char *const all[] = {"::ffff:239.1.1.1", "ff15::1:1"};

static struct holder begin(void)
{
	struct holder h;
	int s[2];

	CHECK(!socketpair(AF_UNIX, SOCK_SEQPACKET, 0, s));
	h.pid = kit_fork();
	if (!h.pid) {
		close(s[0]);
		hold(s[1]);
	}
	close(s[1]);
	h.sock = s[0];
	h.slot = hear(&h).slot;
	join(&h, all[0]);
	join(&h, all[1]);
	return h;
}

static void end(struct holder *h)
{
	struct order o = {.what = 'q'};

	CHECK_EQ(write(h->sock, &o, sizeof(o)), sizeof(o));
	CHECK_EQ(kit_reap(h->pid), 0);
	close(h->sock);
}

static void die(struct holder *h)
{
	CHECK(!kill(h->pid, SIGKILL));
	kit_reap(h->pid);
	close(h->sock);
}

static uint32_t send_to(const char *group)
{
	static uint32_t tag;
	uint32_t bth[4] = {htonl(0x64400000 | 0xffff), htonl(0xffffff), 0, ++tag};
	struct sockaddr_in6 sa = {.sin6_family = AF_INET6, .sin6_port = htons(VB_ROCE_PORT)};
	int sock = socket(AF_INET6, SOCK_DGRAM | SOCK_CLOEXEC, 0);

	CHECK_EQ(inet_pton(AF_INET6, group, &sa.sin6_addr), 1);
	sa.sin6_scope_id = if_nametoindex(NIC);
	CHECK(!setsockopt(sock, SOL_SOCKET, SO_BINDTODEVICE, NIC, sizeof(NIC)));
	CHECK_EQ(sendto(sock, bth, sizeof(bth), 0, (struct sockaddr *)&sa, sizeof(sa)), sizeof(bth));
	close(sock);
	return tag;
}

/* One datagram to the group comes to those holders, by a bit each, once, and to no other. */
static void check(const struct holder *h, unsigned n, const char *group, uint64_t members)
{
	uint32_t tag = send_to(group), last = send_to(all[strchr(group, '.') ? 0 : 1]);

	for (unsigned i = 0; i < n; i++) {
		uint32_t got = hear(&h[i]).tag;

		if (members >> i & 1) {
			CHECK(got == tag, "holder %u did not get what was sent to %s", i, group);
			got = hear(&h[i]).tag;
		}
		CHECK(got == last, "holder %u of members %#" PRIx64 " got what was sent to %s%s", i, members,
		      group, members >> i & 1 ? " twice" : "");
	}
}

/* Bytes that lie in the port's sockets. */
static unsigned long waiting(void)
{
	FILE *f = fopen("/proc/thread-self/net/udp6", "re");
	unsigned long sum = 0, n;
	unsigned port;
	char line[256];

	CHECK(f);
	while (fgets(line, sizeof(line), f))
		if (sscanf(line, " %*u: %*[0-9A-Fa-f]:%x %*s %*s %*[0-9A-Fa-f]:%lx", &port, &n) == 2 &&
		    port == VB_ROCE_PORT)
			sum += n;
	fclose(f);
	return sum;
}

/* How many groups of a family the interface is a member of, by the kernel's table. */
static unsigned joined(bool six)
{
	FILE *f = fopen(six ? "/proc/thread-self/net/igmp6" : "/proc/thread-self/net/igmp", "re");
	unsigned ifindex = 0, n = 0, index = if_nametoindex(NIC);
	char line[256];

	CHECK(f);
	while (fgets(line, sizeof(line), f)) {
		if (six || line[0] != '\t')
			ifindex = (unsigned)strtoul(line, NULL, 10);
		n += ifindex == index && (six || line[0] == '\t');
	}
	fclose(f);
	return n;
}

static const char *const some[] = {"::ffff:239.7.7.7", "ff1e::7:7"};

static void members_get_it_once(void)
{
	struct holder h[3] = {begin(), begin(), begin()};

	for (unsigned k = 0; k < 2; k++) {
		check(h, 3, some[k], 0);
		join(&h[0], some[k]);
		check(h, 3, some[k], 1);
		join(&h[2], some[k]);
		join(&h[2], some[k]); /* once more says nothing new */
		check(h, 3, some[k], 5);
		tell(&h[0], 'l', some[k]);
		check(h, 3, some[k], 4);
		tell(&h[2], 'l', some[k]);
		tell(&h[2], 'l', some[k]);
		check(h, 3, some[k], 0);
	}
	CHECK(!waiting(), "%lu bytes lie at a socket that nobody reads", waiting());
	for (unsigned i = 0; i < 3; i++)
		end(&h[i]);
}

/* A process that ends leaves its groups at once. */
static void the_end_leaves(void)
{
	unsigned before[2] = {joined(false), joined(true)};
	struct holder h[2] = {begin(), begin()};

	for (unsigned k = 0; k < 2; k++) {
		join(&h[0], some[k]);
		CHECK_EQ(joined(k), before[k] + 2);
	}
	end(&h[0]);
	CHECK_EQ(joined(false), before[0] + 1);
	CHECK_EQ(joined(true), before[1] + 1);
	check(&h[1], 1, some[0], 0);
	end(&h[1]);
	CHECK_EQ(joined(false), before[0]);
	CHECK_EQ(joined(true), before[1]);
}

/* Of one that is killed, the next process in its slot leaves the groups. */
static void the_next_one_leaves(void)
{
	unsigned before[2] = {joined(false), joined(true)}, n = 0;
	struct holder h[MOST], dead = begin();
	bool found = false;

	h[n++] = begin();
	join(&dead, some[0]);
	join(&dead, some[1]);
	die(&dead);
	CHECK_EQ(joined(false), before[0] + 2); /* the socket is there still */
	while (n < MOST && !found) {
		h[n] = begin();
		found = h[n++].slot == dead.slot;
	}
	CHECK(found, "nobody has slot %u", dead.slot);
	CHECK_EQ(joined(false), before[0] + 1);
	CHECK_EQ(joined(true), before[1] + 1);
	check(h, n, some[0], 0);
	while (n)
		end(&h[--n]);
}

/* The kernel's limit. */
static void too_many(void)
{
	struct holder h = begin();
	char group[INET6_ADDRSTRLEN], say[64];
	unsigned most = 0, n = 1; /* begin() */
	struct told t = {0};
	FILE *f = fopen("/proc/sys/net/ipv4/igmp_max_memberships", "re");

	CHECK(f && fscanf(f, "%u", &most) == 1);
	fclose(f);
	for (; !t.err && n < 1000; n++) {
		snprintf(group, sizeof(group), "::ffff:239.9.%u.%u", n >> 8, n & 255);
		t = tell(&h, 'j', group);
	}
	printf("# %s\n", t.text);
	CHECK(t.err == ENOBUFS && n == most + 1, "%u of %u: %s", n, most, strerror(t.err));
	snprintf(say, sizeof(say), "%u groups", most);
	CHECK(strstr(t.text, say) && strstr(t.text, "igmp_max_memberships") && strstr(t.text, group + 7) &&
		  strstr(t.text, NIC),
	      "%s", t.text);
	join(&h, some[1]); /* of IPv6 there are more */
	end(&h);
}

int main(void)
{
	cpu_set_t one;

	if (!kit_net_can())
		return KIT_SKIP;
	kit_net_begin();
	kit_net_make(NIC);
	kit_net_address(NIC, "192.0.2.1", true);
	kit_net_address(NIC, "fd00::1", true);
	kit_net_set(NIC, true);
	/* What is sent one after the other comes in this order. */
	CPU_ZERO(&one);
	CPU_SET(sched_getcpu(), &one);
	CHECK(!sched_setaffinity(0, sizeof(one), &one));
	members_get_it_once();
	the_end_leaves();
	the_next_one_leaves();
	too_many();
	return 0;
}
