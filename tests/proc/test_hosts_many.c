/* Many processes on two hosts, which share a port at each, of which one is killed or stopped; and many queue
 * pairs of one process to several hosts.  With VERBENA_SOAK=1 there are 16 processes a side and 20 rounds,
 * 256 queue pairs and 8 hosts.
 *
 *     build/tests/proc-hosts_many [PROCESSES ROUNDS [HOSTS EACH]]     EACH: queue pairs to each host; 0: not
 * tried */
#include <linux/if_ether.h>
#include <linux/if_packet.h>
#include <netinet/in.h>
#include <sched.h>
#include <signal.h>
#include <sys/socket.h>
#include <sys/wait.h>

#include "bytes.h"
#include "hosts.h"
#include "kit.h"

enum {
	SIDES = 2,
	MOST = 16,    /* processes a side */
	WAYS = 2,     /* queue pairs of each: to two processes of the other side */
	TURNS = 40,   /* messages each way on each queue pair */
	SIZE = 16384, /* of the longest message */
	MANY = 256,   /* queue pairs of one process */
	TIMEOUT = 18, /* Local ACK Timeout of a second: so many processes wait for two CPUs */
};

/* What the processes of a round share. */
struct board {
	struct kit_card card[SIDES][MOST][WAYS];
	_Atomic int known, connected, turns; /* processes with cards, connected ones, messages received */
	_Atomic int victim;		     /* side * MOST + index, -1: none yet */
	struct kit_card many[2][MANY];
};

/* A queue pair at work. */
struct way {
	struct kit_end e;
	int far;	    /* side * MOST + index of its far end */
	unsigned to, from;  /* seeds of what is sent, and of what is received */
	unsigned sent, got; /* messages whose completions have come */
	bool failed;
};

static uint32_t length(unsigned seed, unsigned turn)
{
	return (seed * 977 + turn * 3571) % SIZE + 1;
}

static void open_way(struct way *w, struct ibv_pd *pd, struct kit_card *card)
{
	kit_end_open(&w->e, pd, 8, (size_t)2 * SIZE); /* ends with the process */
	*card = w->e.card;
}

static void post(struct way *w)
{
	CHECK(!kit_recv(&w->e, 1, SIZE, SIZE));
}

static void send_next(struct way *w)
{
	uint32_t len = length(w->to, w->sent);

	kit_fill(w->e.buf, len, w->to + w->sent);
	CHECK(!kit_post(&w->e, IBV_WR_SEND, 2, 0, len, NULL, 0));
}

static void received(struct way *w, const struct ibv_wc *wc, _Atomic int *turns)
{
	uint32_t len = length(w->from, w->got);

	CHECK_EQ(wc->byte_len, len);
	CHECK_EQ(kit_filled(w->e.buf + SIZE, len, w->from + w->got), len);
	w->got++;
	atomic_fetch_add(turns, 1);
	if (w->got < TURNS)
		post(w);
}

/* Takes what has come; whether something has.  `may_fail`: the far end is killed or stopped. */
static bool look(struct way *w, bool may_fail, _Atomic int *turns)
{
	struct ibv_wc wc;
	int n = ibv_poll_cq(w->e.cq, 1, &wc);

	CHECK(n >= 0);
	if (!n)
		return false;
	if (wc.status) {
		CHECK(may_fail, "%s, message %u of %u received, %u sent", ibv_wc_status_str(wc.status),
		      w->got, TURNS, w->sent);
		w->failed = true;
	} else if (wc.opcode == IBV_WC_RECV) {
		received(w, &wc, turns);
	} else if (++w->sent < TURNS) {
		send_next(w);
	}
	return true;
}

static bool is_done(const struct way *w, int victim)
{
	return w->far == victim || (w->sent == TURNS && w->got == TURNS);
}

/* All queue pairs, until each but those to the victim is done. */
static void work(struct way *w, int n, struct board *b)
{
	double seen = kit_now();

	for (int i = 0; i < n; i++)
		send_next(&w[i]);
	for (;;) {
		int victim = atomic_load(&b->victim), left = 0;
		bool came = false;

		for (int i = 0; i < n; i++) {
			came |= !w[i].failed && look(&w[i], w[i].far == victim, &b->turns);
			left += !is_done(&w[i], victim);
		}
		if (!left)
			return;
		if (came)
			seen = kit_now();
		else
			kit_nap_us(500); /* the engine makes progress, too */
		for (int i = 0; i < n && !came && kit_now() > seen + 60; i++)
			CHECK(is_done(&w[i], victim), "way %d to %d: %u sent, %u received", i, w[i].far,
			      w[i].sent, w[i].got);
	}
}

static unsigned seed_of(int side, int index, int way)
{
	return (unsigned)(side * 131 + index * 17 + way * 7 + 1);
}

/* Which process of the other side, and which of its queue pairs. */
static int far_index(int side, int index, int way, int n)
{
	return side ? (index + n - way) % n : (index + way) % n;
}

static void process(const struct kit_hosts *h, struct board *b, int side, int index, int n)
{
	static struct way w[WAYS];
	struct ibv_pd *pd;

	kit_host_enter(h, (unsigned)side);
	pd = ibv_alloc_pd(kit_open());
	CHECK(pd);
	for (int k = 0; k < WAYS; k++)
		open_way(&w[k], pd, &b->card[side][index][k]);
	atomic_fetch_add(&b->known, 1);
	kit_until(&b->known, SIDES * n);
	for (int k = 0; k < WAYS; k++) {
		int far = far_index(side, index, k, n);

		w[k].far = !side * MOST + far;
		w[k].to = seed_of(side, index, k);
		w[k].from = seed_of(!side, far, k);
		post(&w[k]);
		kit_connect_with(&w[k].e, &b->card[!side][far][k], TIMEOUT, 7);
	}
	atomic_fetch_add(&b->connected, 1);
	kit_until(&b->connected, SIDES * n);
	work(w, WAYS, b);
	/* The far end may not have the last ACK yet. */
	while (atomic_load(&b->victim) != 2 * MOST)
		kit_nap(1);
	_exit(0);
}

/* One of all processes is killed or stopped while they talk. */
static void round_of(const struct kit_hosts *h, struct board *b, int n, int round)
{
	int victim = round * 7 % (SIDES * n), done = 0;
	pid_t pid[SIDES * MOST];

	memset(b, 0, sizeof *b);
	b->victim = -1;
	for (int i = 0; i < SIDES * n; i++) {
		pid[i] = kit_fork();
		if (!pid[i])
			process(h, b, i / n, i % n, n);
	}
	/* Between the first messages and the last ones. */
	kit_until(&b->turns, SIDES * n * WAYS * TURNS / 4);
	atomic_store(&b->victim, victim / n * MOST + victim % n);
	CHECK(!kill(pid[victim], round % 2 ? SIGSTOP : SIGKILL));
	/* WAYS queue pairs of the victim's have two ends. */
	while (done < 2) {
		int before = b->turns;

		kit_nap(100);
		done = b->turns == before && b->turns >= (SIDES * n * WAYS - 2 * WAYS) * TURNS ? done + 1 : 0;
		for (int i = 0; i < SIDES * n; i++) {
			int status = 0;

			CHECK(i == victim || waitpid(pid[i], &status, WNOHANG) == 0, "process %d ended: 0x%x",
			      i, status);
		}
	}
	atomic_store(&b->victim, 2 * MOST);
	for (int i = 0; i < SIDES * n; i++) {
		if (i == victim)
			kill(pid[i], SIGKILL);
		CHECK_EQ(kit_reap(pid[i]), i == victim ? SIGKILL : 0);
	}
}

/* A socket that hears what leaves host 0. */
static int listen_in(const struct kit_hosts *h)
{
	int sock, size = 4 << 20;

	kit_host_enter(h, 0);
	sock = socket(AF_PACKET, SOCK_DGRAM | SOCK_CLOEXEC, htons(ETH_P_ALL));
	CHECK(sock >= 0);
	(void)!setsockopt(sock, SOL_SOCKET, SO_RCVBUF, &size, sizeof size);
	CHECK(!setns(h->middle, 0));
	return sock;
}

/* What leaves by one port is for one process: the far host may merge it, and gives it to the process of the
 * first packet then. */
static void check_ports(int sock)
{
	static uint8_t slot_of[65536]; /* plus 1 */
	struct sockaddr_ll from;
	socklen_t len = sizeof from;
	unsigned heard = 0, ports = 0;
	uint8_t b[64];
	ssize_t n;

	memset(slot_of, 0, sizeof slot_of);
	while ((n = recvfrom(sock, b, sizeof b, MSG_DONTWAIT | MSG_TRUNC, (struct sockaddr *)&from, &len)) >=
	       0) {
		unsigned port, slot;

		len = sizeof from;
		if (from.sll_pkttype != PACKET_OUTGOING || n < 48 || b[0] != 0x45 || b[9] != IPPROTO_UDP)
			continue;
		port = (unsigned)b[20] << 8 | b[21];
		slot = ((unsigned)b[33] << 16 | (unsigned)b[34] << 8) >> 12 & 63;
		CHECK(!slot_of[port] || slot_of[port] == slot + 1, "port %u: slots %u and %u", port,
		      slot_of[port] - 1, slot);
		ports += !slot_of[port];
		slot_of[port] = (uint8_t)(slot + 1);
		heard++;
	}
	printf("# %u packets or batches from %u ports\n", heard, ports);
	CHECK(heard);
}

static void many_processes(int n, int rounds)
{
	struct kit_hosts h = {.count = SIDES, .mtu = 1500};
	struct board *b = kit_shared(sizeof *b);

	kit_hosts_make(&h);
	for (int i = 0; i < rounds; i++) {
		double began = kit_now();
		int sock = listen_in(&h);

		round_of(&h, b, n, i);
		check_ports(sock);
		close(sock);
		printf("# %d processes a side, one is %s: %.1f s\n", n, i % 2 ? "stopped" : "killed",
		       kit_now() - began);
	}
	kit_hosts_free(&h);
}

/* A process on a host, with `n` queue pairs from `first` on of the board's; end 0 has all of them. */
static void end_of_many(struct board *b, int end, int first, int n, int all)
{
	static struct way w[MANY];
	struct ibv_pd *pd = ibv_alloc_pd(kit_open());

	CHECK(pd);
	for (int i = 0; i < n; i++)
		open_way(&w[i], pd, &b->many[end][first + i]);
	atomic_fetch_add(&b->known, 1);
	kit_until(&b->known, all);
	for (int i = 0; i < n; i++) {
		w[i].to = seed_of(end, first + i, 0);
		w[i].from = seed_of(!end, first + i, 0);
		post(&w[i]);
		kit_connect_with(&w[i].e, &b->many[!end][first + i], TIMEOUT, 7);
	}
	atomic_fetch_add(&b->connected, 1);
	kit_until(&b->connected, all);
	work(w, n, b);
	atomic_fetch_add(&b->known, 1);
	kit_until(&b->known, 2 * all);
	_exit(0);
}

/* One process has queue pairs to a process on each of several other hosts. */
static void many_queue_pairs(int hosts, int each)
{
	struct kit_hosts h = {.count = (unsigned)hosts + 1, .mtu = 1500};
	struct board *b = kit_shared(sizeof *b);
	double began = kit_now();
	pid_t pid[KIT_HOSTS];

	b->victim = -1;
	kit_hosts_make(&h);
	for (int i = 0; i <= hosts; i++) {
		pid[i] = kit_fork();
		if (pid[i])
			continue;
		kit_host_enter(&h, (unsigned)i);
		end_of_many(b, i > 0, i ? (i - 1) * each : 0, i ? each : hosts * each, hosts + 1);
	}
	for (int i = 0; i <= hosts; i++)
		CHECK_EQ(kit_reap(pid[i]), 0);
	kit_hosts_free(&h);
	printf("# %d queue pairs to %d hosts: %.1f s\n", hosts * each, hosts, kit_now() - began);
}

int main(int argc, char **argv)
{
	bool soak = getenv("VERBENA_SOAK");
	int n = argc > 1 ? atoi(argv[1]) : soak ? MOST : 4;
	int rounds = argc > 2 ? atoi(argv[2]) : soak ? 20 : 4;
	int hosts = argc > 3 ? atoi(argv[3]) : soak ? 8 : 4, each = argc > 4 ? atoi(argv[4]) : soak ? 32 : 8;

	setvbuf(stdout, NULL, _IOLBF, 0);
	if (!kit_hosts_can())
		return KIT_SKIP;
	CHECK(n > WAYS && n <= MOST);
	setenv("VERBENA_NETDEV", KIT_HOST_NIC, 1);
	if (each)
		many_queue_pairs(hosts, each);
	many_processes(n, rounds);
	return 0;
}
