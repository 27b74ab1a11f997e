/* What RC costs between two hosts, and what plain sockets do on the same way: two processes on two CPUs, in
 * two network namespaces that a veth pair joins.  The measures take turns, several times, in bursts of a
 * tenth of a second, so that all of them see the same machine; the median of each one's bursts is printed.
 *
 *     vbetween NET NET ADDRESS ADDRESS MTU       NET: a descriptor of a namespace (between.py makes them)
 *
 *   between_MTU_udp         ns, half a round trip of 8 B by sendto() and recv(), both ends polling
 *   between_MTU_lat         ns, the same of 8 B SENDs
 *   between_MTU_gso_bw      bytes a second in one direction, GSO out and GRO in, segments of the path MTU
 *   between_MTU_tcp_bw      the same by TCP, 1 MiB a call
 *   between_MTU_OP_bw       the same of WRITEs, SENDs, READs of 1 MiB, four outstanding
 *   between_MTU_gso_rate    datagrams of 64 B a second, 60 a call, GRO in
 *   between_MTU_send_rate   SENDs of 64 B a second, posted one by one
 */
#include <arpa/inet.h>
#include <netinet/in.h>
#include <netinet/udp.h>
#include <signal.h>
#include <stdatomic.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>

#include "vbench.h"

enum {
	BURSTS = 9,
	SMALL = 64,
	SEGMENTS = 60,
	BATCH = 60 << 10,   /* bytes a GSO send */
	UNREAD = 512 << 10, /* bytes, or datagrams of 64 B times 256, that the receiver may be behind */
	LARGE = 1 << 20,
	OUTSTANDING = 4,
	PORT = 7471,
};

#define BURST 80e6 /* ns */

/* Both processes see it. */
static struct board {
	_Atomic unsigned met;
	_Atomic int over;	    /* the client's burst */
	_Atomic uint64_t sent, got; /* bytes or messages of this burst */
	double value;
} * board;

struct end {
	bool client;
	struct side side;
	int udp, gro, tcp;
	struct sockaddr_in far, far_gro;
	unsigned segment;
};

static char data[LARGE];

/* Both are here; neither keeps a CPU from what the other still has to do. */
static void meet(void)
{
	unsigned n = atomic_fetch_add(&board->met, 1) / 2;

	while (atomic_load(&board->met) / 2 == n)
		sched_yield();
}

/* In a burst nobody else runs on these CPUs, where that may be asked for. */
static void hurry(bool yes)
{
	struct sched_param p = {.sched_priority = yes};

	sched_setscheduler(0, yes ? SCHED_FIFO : SCHED_OTHER, &p);
}

static bool over(double began)
{
	return now() - began > BURST;
}

/* ---- plain sockets ---- */

static void udp_pingpong(struct end *e)
{
	static double times[200000];
	char buf[SMALL];
	unsigned n = 0;
	double began = now();

	while (e->client && !over(began) && n < 200000) {
		double t = now();

		if (sendto(e->udp, buf, 8, 0, (struct sockaddr *)&e->far, sizeof e->far) != 8)
			die("sendto");
		while (recv(e->udp, buf, sizeof buf, MSG_DONTWAIT) < 0 && !over(t))
			;
		times[n++] = (now() - t) / 2;
	}
	atomic_store(&board->over, e->client);
	while (!e->client && !atomic_load(&board->over))
		if (recv(e->udp, buf, sizeof buf, MSG_DONTWAIT) > 0)
			sendto(e->udp, buf, 8, 0, (struct sockaddr *)&e->far, sizeof e->far);
	if (e->client)
		board->value = spread_rank(times, n, 0.5);
}

/* Reads until the client is through, and tells how much. */
static void gso_read(struct end *e, bool packets)
{
	static char buf[65536];
	char control[64];

	while (!atomic_load(&board->over)) {
		struct iovec iov = {buf, sizeof buf};
		struct msghdr m = {.msg_iov = &iov,
				   .msg_iovlen = 1,
				   .msg_control = control,
				   .msg_controllen = sizeof control};
		ssize_t n = recvmsg(e->gro, &m, MSG_DONTWAIT);

		if (n > 0)
			atomic_store(&board->got, board->got + (uint64_t)n / (packets ? SMALL : 1));
	}
}

static void gso(struct end *e, unsigned segment, size_t batch, uint64_t behind, bool packets)
{
	double began = now();
	uint64_t sent = 0;
	int size = (int)segment;

	if (!e->client) {
		gso_read(e, packets);
		return;
	}
	if (setsockopt(e->gro, IPPROTO_UDP, UDP_SEGMENT, &size, sizeof size))
		die("UDP_SEGMENT");
	while (!over(began)) {
		if (sendto(e->gro, data, batch, 0, (struct sockaddr *)&e->far_gro, sizeof e->far_gro) < 0)
			die("sendto with UDP_SEGMENT");
		sent += batch / (packets ? segment : 1);
		for (double t = now(); sent - atomic_load(&board->got) > behind;)
			if (now() - t > 1e7)
				sent = board->got; /* lost */
	}
	board->value = (double)board->got * 1e9 / (now() - began);
	atomic_store(&board->over, 1);
}

static void gso_stream(struct end *e)
{
	gso(e, e->segment, BATCH / e->segment * e->segment, UNREAD, false);
}

static void gso_small(struct end *e)
{
	gso(e, SMALL, SMALL * SEGMENTS, 2048, true);
}

static void tcp(struct end *e)
{
	double began = now();
	ssize_t n;

	while (e->client && !over(began))
		if (send(e->tcp, data, sizeof data, 0) < 0)
			die("send");
	if (e->client) {
		board->value = (double)atomic_load(&board->got) * 1e9 / (now() - began);
		atomic_store(&board->over, 1);
	}
	while (!e->client) {
		n = recv(e->tcp, data, sizeof data, MSG_DONTWAIT);
		if (n > 0)
			atomic_store(&board->got, board->got + (uint64_t)n);
		else if (atomic_load(&board->over))
			break;
	}
}

/* ---- RC ---- */

static void lat(struct end *e)
{
	static double times[200000];
	struct side *s = &e->side;
	unsigned n = 0, owed = 0;
	double began = now();

	while (e->client && !over(began) && n < 200000) {
		double t = now();

		side_post(s, IBV_WR_SEND, 8, IBV_SEND_INLINE | IBV_SEND_SIGNALED);
		side_wait(s->rcq, 1);
		times[n++] = (now() - t) / 2;
		side_receive(s, 1, SMALL);
		side_wait(s->scq, 1);
	}
	if (e->client)
		board->value = spread_rank(times, n, 0.5);
	atomic_store(&board->over, e->client);
	while (!e->client && !atomic_load(&board->over)) {
		if (!side_poll(s->rcq, 1))
			continue;
		side_post(s, IBV_WR_SEND, 8, IBV_SEND_INLINE | IBV_SEND_SIGNALED);
		side_receive(s, 1, SMALL);
		owed += 1 - side_poll(s->scq, owed + 1);
	}
	side_wait(s->scq, owed);
}

/* The client has `most` requests outstanding and asks for a completion of each `every`-th; what completes in
 * the burst counts. */
static void stream(struct end *e, enum ibv_wr_opcode op, uint32_t size, unsigned most, unsigned every)
{
	struct side *s = &e->side;
	unsigned out = 0, posted = 0, flags = size <= SMALL ? IBV_SEND_INLINE : 0;
	uint64_t done = 0;
	double began = now();

	while (!over(began)) {
		unsigned k;

		for (; out < most; out++)
			side_post(s, op, size, flags | (++posted % every ? 0 : IBV_SEND_SIGNALED));
		k = side_poll(s->scq, most) * every;
		out -= k;
		done += k;
	}
	board->value = (double)done * (size > SMALL ? size : 1) * 1e9 / (now() - began);
	for (; posted % every; out++)
		side_post(s, op, size, flags | (++posted % every ? 0 : IBV_SEND_SIGNALED));
	side_wait(s->scq, out / every);
	atomic_store(&board->sent, posted);
	atomic_store(&board->over, 1);
}

/* The receiver of SENDs, or the target, which polls too. */
static void take(struct end *e, uint32_t size, bool sends)
{
	struct side *s = &e->side;
	uint64_t got = 0;
	unsigned spent = 0;

	while (!atomic_load(&board->over) || (sends && got < board->sent)) {
		unsigned k = side_poll(s->rcq, LIST);

		got += k;
		spent += k;
		if (spent >= LIST / 2) {
			side_receive(s, spent, size);
			spent = 0;
		}
	}
	if (spent)
		side_receive(s, spent, size);
}

static void sends(struct end *e, uint32_t size, unsigned most, unsigned every)
{
	if (e->client)
		stream(e, IBV_WR_SEND, size, most, every);
	else
		take(e, size, true);
}

static void send_bw(struct end *e)
{
	sends(e, LARGE, OUTSTANDING, 1);
}

static void send_small(struct end *e)
{
	sends(e, SMALL, 256, LIST);
}

static void write_bw(struct end *e)
{
	if (e->client)
		stream(e, IBV_WR_RDMA_WRITE, LARGE, OUTSTANDING, 1);
	else
		take(e, LARGE, false);
}

static void read_bw(struct end *e)
{
	if (e->client)
		stream(e, IBV_WR_RDMA_READ, LARGE, OUTSTANDING, 1);
	else
		take(e, LARGE, false);
}

static const struct {
	const char *name;
	void (*run)(struct end *);
	bool verbs;
	uint32_t receives; /* of which size the server has some posted, 0: none */
} measures[] = {
    {"udp", udp_pingpong, false, 0},	    {"lat", lat, true, SMALL},
    {"gso_bw", gso_stream, false, 0},	    {"write_bw", write_bw, true, 0},
    {"send_bw", send_bw, true, LARGE},	    {"tcp_bw", tcp, false, 0},
    {"read_bw", read_bw, true, 0},	    {"gso_rate", gso_small, false, 0},
    {"send_rate", send_small, true, SMALL},
};

enum { MEASURES = sizeof measures / sizeof measures[0] };

/* only: a part of its name; NULL: all. */
static bool wanted(unsigned m, const char *only)
{
	return !only || strstr(measures[m].name, only);
}

static struct sockaddr_in address(const char *text, unsigned port)
{
	struct sockaddr_in a = {.sin_family = AF_INET, .sin_port = htons((uint16_t)port)};

	if (inet_pton(AF_INET, text, &a.sin_addr) != 1)
		die(text);
	return a;
}

static int bound(int type, const struct sockaddr_in *a)
{
	int fd = socket(AF_INET, type | SOCK_CLOEXEC, 0), room = 4 << 20, mtu = IP_PMTUDISC_DO;

	if (fd < 0 || bind(fd, (const struct sockaddr *)a, sizeof *a))
		die("socket");
	if (type != SOCK_DGRAM)
		return fd;
	setsockopt(fd, SOL_SOCKET, SO_RCVBUF, &room, sizeof room);
	setsockopt(fd, SOL_SOCKET, SO_SNDBUF, &room, sizeof room);
	setsockopt(fd, IPPROTO_IP, IP_MTU_DISCOVER, &mtu, sizeof mtu);
	return fd;
}

static void open_sockets(struct end *e, const char *own, const char *far)
{
	struct sockaddr_in a = address(own, PORT), b = address(own, PORT + 1), t = address(far, PORT);
	int yes = 1, l;

	e->udp = bound(SOCK_DGRAM, &a);
	e->gro = bound(SOCK_DGRAM, &b);
	e->far = address(far, PORT);
	e->far_gro = address(far, PORT + 1);
	if (!e->client && setsockopt(e->gro, IPPROTO_UDP, UDP_GRO, &yes, sizeof yes))
		die("UDP_GRO");
	if (e->client) {
		meet();
		e->tcp = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
		if (connect(e->tcp, (struct sockaddr *)&t, sizeof t))
			die("connect");
		return;
	}
	l = bound(SOCK_STREAM, &a);
	if (listen(l, 1))
		die("listen");
	meet();
	e->tcp = accept(l, NULL, NULL);
	close(l);
}

static void measure(struct end *e, unsigned m, double *value)
{
	board->over = 0;
	board->sent = board->got = 0;
	meet();
	hurry(true);
	measures[m].run(e);
	hurry(false);
	meet();
	*value = board->value;
	meet();
}

/* Each measure has a queue pair of its own, with the receives that it needs: it gives back what it takes. */
static void open_sides(struct end *e, struct side *sides, const char *only)
{
	struct side *first = NULL;

	for (unsigned m = 0; m < MEASURES; m++) {
		struct side *s = &sides[m];

		if (!wanted(m, only) || !measures[m].verbs)
			continue;
		*s = (struct side){.client = e->client, .sock = e->side.sock, .mtu = e->side.mtu};
		if (first)
			side_join(s, first);
		else
			side_open(s);
		first = first ? first : s;
		side_warm(s);
		if (measures[m].run == lat)
			side_receive(s, LIST, SMALL);
		else if (measures[m].receives && !e->client)
			side_receive(s, DEPTH - LIST, measures[m].receives);
	}
}

static void play(struct end *e, const char *mtu, const char *only)
{
	static double values[MEASURES][BURSTS];
	static struct side sides[MEASURES];
	char name[64];

	open_sides(e, sides, only);
	pin(!e->client);
	for (unsigned b = 0; b < BURSTS; b++)
		for (unsigned m = 0; m < MEASURES; m++) {
			e->side = sides[m];
			if (wanted(m, only))
				measure(e, m, &values[m][b]);
		}
	for (unsigned m = 0; e->client && m < MEASURES; m++) {
		if (!wanted(m, only))
			continue;
		snprintf(name, sizeof name, "between_%s_%s", mtu, measures[m].name);
		figure(name, spread_rank(values[m], BURSTS, 0.5));
	}
}

int main(int argc, char **argv)
{
	struct end e = {0};
	int sock[2], status;
	pid_t peer;

	if (argc < 6) {
		fprintf(stderr, "usage: vbetween NET NET ADDRESS ADDRESS MTU [MEASURE]\n");
		return 2;
	}
	board = mmap(NULL, sizeof *board, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	if (board == MAP_FAILED || socketpair(AF_UNIX, SOCK_STREAM, 0, sock))
		die("board");
	peer = fork();
	if (peer < 0)
		die("fork");
	if (!peer)
		prctl(PR_SET_PDEATHSIG, SIGKILL);
	e.client = peer != 0;
	e.side.sock = sock[e.client];
	close(sock[!e.client]);
	e.segment = atoi(argv[5]) > 4300 ? 4096 : 1024;
	e.side.mtu = e.segment == 4096 ? IBV_MTU_4096 : IBV_MTU_1024;
	if (setns(atoi(argv[e.client ? 1 : 2]), CLONE_NEWNET))
		die("setns");
	setenv("VERBENA_NETDEV", "eth0", 1);
	open_sockets(&e, argv[e.client ? 3 : 4], argv[e.client ? 4 : 3]);
	play(&e, argv[5], argc > 6 ? argv[6] : NULL);
	if (!e.client)
		return 0;
	return waitpid(peer, &status, 0) == peer && status == 0 ? 0 : 1;
}
