#include "relay.h"

#include <arpa/inet.h>
#include <linux/if_packet.h>
#include <linux/virtio_net.h>
#include <net/ethernet.h>
#include <net/if.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/uio.h>

enum {
	PORT = 4791,
	HELD = 64,     /* packets that are late, each way */
	OVERTAKE = 16, /* packets that a late one lets pass, at most */
	PATIENCE = 3   /* ms after which a late packet leaves all the same */
};

struct frame {
	struct virtio_net_hdr_mrg_rxbuf h; /* the first 10 bytes are what the socket hands on */
	size_t len;
	uint8_t data[70000];
};

struct held {
	struct frame *f; /* NULL: no frame */
	unsigned after;	 /* so many others pass before */
	double since;
};

struct way {
	int in, out;
	struct held held[HELD];
};

static struct kit_relay *relay;
static uint64_t chance;

/* Where IP's payload begins if it is a packet of RoCEv2, else 0. */
static size_t roce(const struct frame *f)
{
	const uint8_t *p = f->data;
	size_t at = 0;

	if (f->len >= 42 && p[12] == 8 && !p[13] && p[23] == IPPROTO_UDP)
		at = 14 + (size_t)(p[14] & 15) * 4;
	else if (f->len >= 62 && p[12] == 0x86 && p[13] == 0xdd && p[20] == IPPROTO_UDP)
		at = 54;
	return at && f->len >= at + 8 && (p[at + 2] << 8 | p[at + 3]) == PORT ? at : 0;
}

static uint32_t add(uint32_t sum, const uint8_t *p, size_t n)
{
	for (size_t i = 0; i < n; i++)
		sum += i & 1 ? p[i] : (uint32_t)p[i] << 8;
	return sum;
}

static void put(uint8_t *at, uint32_t sum)
{
	uint16_t v;

	while (sum >> 16)
		sum = (sum & 0xffff) + (sum >> 16);
	v = (uint16_t)~sum;
	at[0] = (uint8_t)(v >> 8);
	at[1] = (uint8_t)v;
}

/* IP's and UDP's, of what the bytes are now. */
static void make_checksums(struct frame *f, size_t at)
{
	bool four = f->data[12] == 8;
	uint8_t *ip = f->data + 14, *udp = f->data + at;
	size_t len = f->len - at;
	uint32_t sum = (uint32_t)len + IPPROTO_UDP;

	if (four) {
		ip[10] = ip[11] = 0;
		put(ip + 10, add(0, ip, at - 14));
	}
	udp[6] = udp[7] = 0;
	sum = four ? add(sum, ip + 12, 8) : add(sum, ip + 8, 32);
	put(udp + 6, add(sum, udp, len));
	if (!udp[6] && !udp[7])
		udp[6] = udp[7] = 0xff; /* 0 is none */
}

/* Some bits of it behind the Ethernet header are others. */
static void corrupt(struct frame *f, size_t at)
{
	unsigned n = 1 + (kit_below(&chance, 3) ? 0 : kit_below(&chance, 32));
	size_t from = kit_below(&chance, 8) ? at + 8 : 14; /* mostly in RoCE's part */

	make_checksums(f, at); /* the sender left that to a device */
	for (unsigned i = 0; i < n; i++)
		f->data[from + kit_below(&chance, (uint32_t)(f->len - from))] ^=
		    (uint8_t)(1 << kit_below(&chance, 8));
	if (kit_below(&chance, 4) && roce(f) == at)
		make_checksums(f, at);
	memset(&f->h, 0, sizeof f->h);
}

static void put_out(struct way *w, struct frame *f)
{
	struct iovec iov[] = {{&f->h, sizeof(struct virtio_net_hdr)}, {f->data, f->len}};

	while (writev(w->out, iov, 2) < 0) {
		/* the far end's queue is full: a network loses it */
		if (errno != EINTR)
			break;
	}
}

/* Late ones whose time has come; `passing`: another frame has passed. */
static unsigned release(struct way *w, bool passing)
{
	unsigned n = 0;

	for (struct held *h = w->held; h < w->held + HELD; h++) {
		if (!h->f)
			continue;
		if (passing && h->after)
			h->after--;
		if (h->after && kit_now() - h->since < PATIENCE / 1e3) {
			n++;
			continue;
		}
		put_out(w, h->f);
		free(h->f);
		h->f = NULL;
	}
	return n;
}

static bool hold(struct way *w, const struct frame *f)
{
	for (struct held *h = w->held; h < w->held + HELD; h++) {
		if (h->f)
			continue;
		h->f = malloc(offsetof(struct frame, data) + f->len);
		CHECK(h->f);
		memcpy(h->f, f, offsetof(struct frame, data) + f->len);
		h->after = 1 + kit_below(&chance, OVERTAKE);
		h->since = kit_now();
		return true;
	}
	return false;
}

static void fate(struct way *w, struct frame *f, size_t at)
{
	unsigned n = kit_below(&chance, 1000), loss = relay->loss, dup = loss + relay->dup,
		 late = dup + relay->late, bad = late + relay->corrupt;

	if (n < loss) {
		relay->lost++;
		return;
	}
	if (n >= dup && n < late && hold(w, f)) {
		relay->delayed++;
		return;
	}
	if (n >= late && n < bad) {
		relay->corrupted++;
		corrupt(f, at);
	} else {
		relay->passed++;
	}
	put_out(w, f);
	if (n >= loss && n < dup) {
		relay->twice++;
		put_out(w, f);
	}
}

/* false: there is none. */
static bool one(struct way *w)
{
	static struct frame f;
	struct iovec iov[] = {{&f.h, sizeof(struct virtio_net_hdr)}, {f.data, sizeof f.data}};
	struct msghdr m = {.msg_iov = iov, .msg_iovlen = 2};
	ssize_t n = recvmsg(w->in, &m, MSG_DONTWAIT);
	size_t at;

	if (n <= (ssize_t)(sizeof(struct virtio_net_hdr) + 14))
		return n >= 0;
	f.len = (size_t)n - sizeof(struct virtio_net_hdr);
	at = roce(&f);
	if (at)
		fate(w, &f, at);
	else
		put_out(w, &f);
	release(w, true);
	return true;
}

static int port(unsigned host)
{
	struct sockaddr_ll a = {.sll_family = AF_PACKET, .sll_protocol = htons(ETH_P_ALL)};
	int fd = socket(AF_PACKET, SOCK_RAW | SOCK_CLOEXEC, 0), yes = 1, room = 16 << 20;
	char name[16];

	snprintf(name, sizeof name, KIT_RELAY_NIC, host);
	a.sll_ifindex = (int)if_nametoindex(name);
	CHECK(fd >= 0 && a.sll_ifindex);
	CHECK(!setsockopt(fd, SOL_PACKET, PACKET_VNET_HDR, &yes, sizeof yes));
	CHECK(!setsockopt(fd, SOL_PACKET, PACKET_IGNORE_OUTGOING, &yes, sizeof yes));
	setsockopt(fd, SOL_SOCKET, SO_RCVBUF, &room, sizeof room);
	CHECK(!bind(fd, (struct sockaddr *)&a, sizeof a));
	return fd;
}

static void run(void)
{
	static struct way ways[2];
	struct pollfd p[2];

	for (unsigned i = 0; i < 2; i++) {
		int fd = port(i);

		ways[i].in = ways[!i].out = fd;
		p[i] = (struct pollfd){.fd = fd, .events = POLLIN};
	}
	chance = relay->seed;
	atomic_store(&relay->ready, 1);
	for (;;) {
		unsigned late = 0;

		for (unsigned i = 0; i < 2; i++) {
			for (int k = 0; k < 64 && one(&ways[i]); k++)
				;
			late += release(&ways[i], false);
		}
		poll(p, 2, late ? 1 : -1);
	}
}

pid_t kit_relay_start(const struct kit_hosts *h, struct kit_relay *r)
{
	pid_t pid;

	CHECK(h->relayed && r->loss + r->dup + r->late + r->corrupt <= 1000);
	atomic_store(&r->ready, 0);
	pid = kit_fork();
	if (!pid) {
		relay = r;
		run();
	}
	kit_until(&r->ready, 1);
	return pid;
}

void kit_relay_stop(pid_t pid, const struct kit_relay *r)
{
	CHECK(!kill(pid, SIGKILL));
	kit_reap(pid);
	printf("relay: %" PRIu64 " packets passed, %" PRIu64 " were lost, %" PRIu64 " came twice, %" PRIu64
	       " came late, %" PRIu64 " were corrupted\n",
	       r->passed, r->lost, r->twice, r->delayed, r->corrupted);
}
