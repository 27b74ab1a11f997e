/* The hosts that tests make (harness/hosts.h), and the bad network between two of them (harness/relay.h):
 * plain UDP datagrams arrive as they should. */
#include <arpa/inet.h>
#include <sched.h>
#include <netinet/in.h>
#include <netinet/udp.h>
#include <sys/socket.h>

#include "hosts.h"
#include "kit.h"
#include "relay.h"

enum { PORT = 4791, SEGMENTS = 40, SENDS = 150 };

struct heard {
	_Atomic int ready, stop, right, wrong;
	unsigned order; /* datagrams that came after one that was sent later */
	unsigned gone;	/* datagrams that the sender waits for no more */
};

static int udp(bool six, unsigned host, bool bound)
{
	int fd = socket(six ? AF_INET6 : AF_INET, SOCK_DGRAM, 0), size = 4 << 20, mtu = IP_PMTUDISC_DO;
	struct sockaddr_in a = {.sin_family = AF_INET, .sin_port = htons(PORT)};
	struct sockaddr_in6 b = {.sin6_family = AF_INET6, .sin6_port = htons(PORT)};
	struct sockaddr *to = six ? (struct sockaddr *)&b : (struct sockaddr *)&a;

	inet_pton(a.sin_family, kit_host_address(host, false), &a.sin_addr);
	inet_pton(b.sin6_family, kit_host_address(host, true), &b.sin6_addr);
	CHECK(fd >= 0);
	setsockopt(fd, SOL_SOCKET, SO_RCVBUF, &size, sizeof size);
	setsockopt(fd, six ? IPPROTO_IPV6 : IPPROTO_IP, six ? IPV6_MTU_DISCOVER : IP_MTU_DISCOVER, &mtu,
		   sizeof mtu);
	CHECK(!(bound ? bind : connect)(fd, to, six ? sizeof b : sizeof a), "%s",
	      kit_host_address(host, six));
	return fd;
}

/* What datagram number n has in it. */
static void fill(uint8_t *p, unsigned n, size_t len)
{
	uint64_t x = n;

	memcpy(p, &n, sizeof n);
	for (size_t i = sizeof n; i < len; i++)
		p[i] = (uint8_t)kit_random(&x);
}

static void listen_there(struct heard *h, bool six, unsigned host)
{
	static uint8_t got[65536], want[65536];
	int fd = udp(six, host, true);
	unsigned most = 0;
	struct timeval t = {0, 10000};

	setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &t, sizeof t);
	atomic_store(&h->ready, 1);
	while (!atomic_load(&h->stop)) {
		ssize_t n = recv(fd, got, sizeof got, 0);
		unsigned number;

		if (n < (ssize_t)sizeof number)
			continue;
		memcpy(&number, got, sizeof number);
		fill(want, number, (size_t)n);
		if (memcmp(got, want, (size_t)n)) {
			h->wrong++;
			continue;
		}
		h->order += number < most;
		most = number > most ? number : most;
		h->right++;
	}
	exit(0);
}

/* The largest packet passes and a larger one does not, by every address, from each host to the next one. */
static void passes(const struct kit_hosts *h, unsigned from, unsigned to, bool six)
{
	struct heard *heard = kit_shared(sizeof *heard);
	size_t most = h->mtu - (six ? 48 : 28);
	static uint8_t buf[65536];
	pid_t pid = kit_fork();
	int fd;

	kit_host_enter(h, pid ? from : to);
	if (!pid)
		listen_there(heard, six, to);
	kit_until(&heard->ready, 1);
	fd = udp(six, to, false);
	fill(buf, 1, most + 1);
	CHECK(send(fd, buf, most + 1, 0) < 0 && errno == EMSGSIZE, "a packet of %zu bytes", most + 1);
	for (int i = 0; i < 5000 && !heard->right; i++) { /* a busy CPU may lose one */
		CHECK(send(fd, buf, most, 0) == (ssize_t)most);
		kit_nap(1);
	}
	CHECK(heard->right);
	atomic_store(&heard->stop, 1);
	CHECK(!kit_reap(pid) && !heard->wrong);
	close(fd);
	CHECK(!setns(h->middle, 0));
}

static void hosts(unsigned count, unsigned mtu)
{
	struct kit_hosts h = {.count = count, .mtu = mtu};

	kit_hosts_make(&h);
	for (unsigned i = 0; i < count; i++)
		for (int six = 0; six <= h.ipv6; six++)
			passes(&h, i, (i + 1) % count, six);
	kit_hosts_free(&h);
}

static void two(void)
{
	hosts(2, 1500);
}

static void two_large(void)
{
	hosts(2, 9000);
}

static void nine(void)
{
	hosts(9, 9000);
}

/* Until no more than `left` of the datagrams that were sent are under way.  The kernel loses some where a CPU
 * has more to do than its queue holds, whoever's they are: those that have not come after a second do not
 * come. */
static void await(const struct kit_relay *r, struct heard *heard, unsigned sent, unsigned left)
{
	double since = kit_now();
	unsigned before = 0, now;

	for (;; kit_nap_us(50)) {
		now = (unsigned)heard->right + r->lost + r->corrupted;
		if (now + left + heard->gone >= sent + r->twice)
			break;
		since = now == before ? since : kit_now();
		before = now;
		if (kit_now() - since < 1)
			continue;
		heard->gone = sent + r->twice - now - left; /* nobody waits for these once more */
		break;
	}
	CHECK(now + left > sent / 2, "of %u datagrams %u came", sent, now);
}

/* SENDS times SEGMENTS datagrams by GSO through the relay. */
static void through(struct kit_relay *r, struct heard *heard, bool six)
{
	struct kit_hosts h = {.count = 2, .mtu = 1500, .relayed = true};
	static uint8_t buf[SEGMENTS * 1024];
	int segment = 1024, fd;
	pid_t pid, relay;

	kit_hosts_make(&h);
	relay = kit_relay_start(&h, r);
	pid = kit_fork();
	kit_host_enter(&h, !pid);
	if (!pid)
		listen_there(heard, six && h.ipv6, 1);
	kit_until(&heard->ready, 1);
	fd = udp(six && h.ipv6, 1, false);
	CHECK(!setsockopt(fd, IPPROTO_UDP, UDP_SEGMENT, &segment, sizeof segment));
	for (unsigned i = 0; i < SENDS; i++) {
		for (unsigned k = 0; k < SEGMENTS; k++)
			fill(buf + k * 1024, i * SEGMENTS + k, 1024);
		CHECK(send(fd, buf, sizeof buf, 0) == sizeof buf);
		await(r, heard, (i + 1) * SEGMENTS,
		      400); /* a receive buffer has room for no more than some */
	}
	await(r, heard, SENDS * SEGMENTS, 0);
	atomic_store(&heard->stop, 1);
	CHECK(!kit_reap(pid));
	kit_relay_stop(relay, r);
	printf("heard: %d right, %d wrong, %u out of order\n", heard->right, heard->wrong, heard->order);
	close(fd);
}

static void relay_is_fair(void)
{
	for (int six = 0; six < 2; six++) {
		struct kit_relay *r = kit_shared(sizeof *r);
		struct heard *h = kit_shared(sizeof *h);

		through(r, h, six);
		CHECK(h->right <= SENDS * SEGMENTS && h->right > SENDS * SEGMENTS * 8 / 10 && !h->wrong &&
		      !h->order);
	}
}

static void relay_is_bad(void)
{
	for (int six = 0; six < 2; six++) {
		struct kit_relay *r = kit_shared(sizeof *r);
		struct heard *h = kit_shared(sizeof *h);

		r->seed = 7;
		r->loss = r->dup = r->late = r->corrupt = 100;
		through(r, h, six);
		CHECK(r->lost > 300 && r->twice > 300 && r->delayed > 300 && r->corrupted > 300);
		CHECK(h->order > 100 && (unsigned)h->wrong > r->corrupted / 4,
		      "nothing came with a right checksum and wrong bytes");
		CHECK((unsigned)h->wrong < r->corrupted, "all that was corrupted came through");
	}
}

int main(int argc, char **argv)
{
	static const struct kit_case cases[] = {
	    {"two hosts at MTU 1500", two, .clean = true},
	    {"two hosts at MTU 9000", two_large, .clean = true},
	    {"nine hosts", nine, .clean = true},
	    {"a relay hands on", relay_is_fair, .clean = true},
	    {"a bad relay", relay_is_bad, .clean = true},
	};

	if (!kit_hosts_can())
		return KIT_SKIP;
	KIT_CASES(cases, 60);
	return 0;
}
