/* UDP port 4791 of an interface, shared by the processes of a user: host/roce.h.  Each holder is a process
 * that has an adapter, and tells what comes to its slot. */
#include <arpa/inet.h>
#include <net/if.h>
#include <poll.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/un.h>
#include <sys/wait.h>

#include "base/text.h"
#include "host/roce.h"
#include "kit.h"
#include "net.h"
#include "node.h"

enum { MOST = VB_ROCE_SLOTS - 1, FOREIGN = 12345, PATIENCE_MS = 20000 };

/* What a holder says of itself first. */
struct told {
	int err;
	struct vb_roce_why why;
	uint32_t slot, number;
	char text[512];
};

struct holder {
	pid_t pid;
	int sock; /* its standing orders, and its reports: a tag for each datagram */
	struct told t;
};

static void open_port(const char *interface, struct told *t, struct kit_node **n)
{
	struct vb_text text = {t->text, sizeof(t->text)};
	struct vb_roce *r = NULL;

	t->err = vb_roce_open(&r, interface, &t->why);
	vb_roce_why_add(&text, &t->why);
	if (t->err)
		return;
	*n = kit_node_open_on(r);
	t->slot = vb_roce_slot(r);
	t->number = kit_number_of(*n);
}

static void hold(int sock, struct kit_node *n)
{
	struct vb_roce *r = vb_adapter_roce(n->a);
	struct pollfd p[2] = {{.fd = sock, .events = POLLIN}, {.fd = vb_roce_fd(r), .events = POLLIN}};
	char order;

	while (poll(p, 2, -1) > 0) {
		uint32_t bth[4];

		if (p[1].revents && recv(p[1].fd, bth, sizeof(bth), MSG_DONTWAIT) == sizeof(bth))
			CHECK_EQ(write(sock, &bth[3], sizeof(bth[3])), sizeof(bth[3]));
		if (!p[0].revents)
			continue;
		if (read(sock, &order, 1) != 1)
			break;
		if (order == 'f') { /* a child, which outlives its parent */
			pid_t child = fork();

			if (!child) {
				close(sock);
				for (;;)
					pause();
			}
			CHECK_EQ(write(sock, &child, sizeof(child)), sizeof(child));
			continue;
		}
		if (order == 'x') { /* as a daemon closes what it does not know */
			for (int fd = 3; fd < 1024; fd++)
				if (fd != sock)
					close(fd);
			CHECK_EQ(write(sock, "x", 1), 1);
			continue;
		}
		kit_node_close(n);
		break;
	}
	_exit(0);
}

/* A process that opens the port; when the pipe `go` ends, if it is not NULL. */
static struct holder start(const char *interface, uid_t uid, const int go[2])
{
	struct holder h;
	int s[2];
	char c;

	CHECK(!socketpair(AF_UNIX, SOCK_SEQPACKET, 0, s));
	h.pid = kit_fork_as(uid);
	if (!h.pid) {
		struct kit_node *n = NULL;
		struct told t = {0};

		close(s[0]);
		if (go) {
			close(go[1]);
			CHECK_EQ(read(go[0], &c, 1), 0);
		}
		open_port(interface, &t, &n);
		CHECK_EQ(write(s[1], &t, sizeof(t)), sizeof(t));
		if (n)
			hold(s[1], n);
		_exit(0);
	}
	close(s[1]);
	h.sock = s[0];
	return h;
}

static void await(int fd)
{
	struct pollfd p = {.fd = fd, .events = POLLIN};

	CHECK(poll(&p, 1, PATIENCE_MS) == 1, "nothing happened");
}

static void hear(struct holder *h)
{
	await(h->sock);
	CHECK_EQ(read(h->sock, &h->t, sizeof(h->t)), sizeof(h->t));
}

static struct holder join(const char *interface)
{
	struct holder h = start(interface, geteuid(), NULL);

	hear(&h);
	CHECK(!h.t.err, "%s", h.t.text);
	CHECK_EQ(h.t.number % VB_ROCE_SLOTS, h.t.slot);
	return h;
}

/* One that is to be refused. */
static struct told refused(const char *interface, uid_t uid)
{
	struct holder h = start(interface, uid, NULL);

	hear(&h);
	CHECK_EQ(kit_reap(h.pid), 0);
	close(h.sock);
	CHECK(h.t.err, "it is let in");
	printf("# %s\n", h.t.text);
	return h.t;
}

static void send_to(const char *address, uint32_t qpn, uint32_t tag)
{
	static int sock = -1;
	uint32_t bth[4] = {htonl(0x64400000 | 0xffff), htonl(qpn), 0, tag};
	struct sockaddr_in6 sa = {.sin6_family = AF_INET6, .sin6_port = htons(VB_ROCE_PORT)};

	if (sock < 0)
		sock = socket(AF_INET6, SOCK_DGRAM | SOCK_CLOEXEC, 0);
	CHECK_EQ(inet_pton(AF_INET6, address, &sa.sin6_addr), 1);
	CHECK_EQ(sendto(sock, bth, sizeof(bth), 0, (struct sockaddr *)&sa, sizeof(sa)), sizeof(bth));
}

/* What is sent to a QPN of the holder comes to it, and what comes first is that. */
static void check_reached_at(const struct holder *h, const char *address)
{
	static uint32_t tag;
	uint32_t got;

	send_to(address, h->t.number << 12 | 5, ++tag);
	await(h->sock);
	CHECK_EQ(read(h->sock, &got, sizeof(got)), sizeof(got));
	CHECK_EQ(got, tag);
}

static void check_reached(const struct holder *h)
{
	check_reached_at(h, "::ffff:127.0.0.1");
	check_reached_at(h, "::1");
}

static void check_all(const struct holder *h, int n, int but)
{
	for (int i = 0; i < n; i++)
		if (i != but)
			check_reached(&h[i]);
}

static void leave(struct holder *h)
{
	CHECK_EQ(write(h->sock, "q", 1), 1);
	CHECK_EQ(kit_reap(h->pid), 0);
	close(h->sock);
}

static void die(struct holder *h)
{
	CHECK(!kill(h->pid, SIGKILL));
	kit_reap(h->pid);
	close(h->sock);
}

/* Whether no socket is bound to the port. */
static bool port_is_free(void)
{
	struct sockaddr_in6 sa = {.sin6_family = AF_INET6, .sin6_port = htons(VB_ROCE_PORT)};
	int sock = socket(AF_INET6, SOCK_DGRAM | SOCK_CLOEXEC, 0);
	bool is = !bind(sock, (struct sockaddr *)&sa, sizeof(sa));

	close(sock);
	return is;
}

/* 63 processes have a slot each; the 64th is told so, and has the slot of one that is killed. */
static void all_slots_are_taken(void)
{
	struct holder h[MOST];
	uint64_t slots = 0;
	struct told t;

	for (int i = 0; i < MOST; i++) {
		h[i] = join("lo");
		slots |= 1ull << h[i].t.slot;
	}
	CHECK(slots == ~1ull, "slots %#llx", (unsigned long long)slots);
	check_all(h, MOST, -1);
	t = refused("lo", geteuid());
	CHECK_EQ(t.why.trouble, VB_ROCE_FULL);
	CHECK(strstr(t.text, "63 processes"), "%s", t.text);
	for (int i = 0; i < MOST; i += 31) {
		uint32_t slot = h[i].t.slot, qpn = h[i].t.number << 12 | 5;

		die(&h[i]);
		for (int k = 0; k < 2000; k++) /* its buffer is full, and nobody else's */
			send_to("::1", qpn, 0);
		h[i] = join("lo");
		CHECK_EQ(h[i].t.slot, slot);
		check_all(h, MOST, -1);
	}
	for (int i = 0; i < MOST; i++)
		leave(&h[i]);
	CHECK(port_is_free());
}

/* Whoever is stopped or killed, the one that made the group or another: the others receive, and others join.
 */
static void nobody_is_needed(void)
{
	for (int victim = 0; victim < 3; victim++) {
		struct holder h[4];

		for (int i = 0; i < 3; i++)
			h[i] = join("lo");
		kit_stop(h[victim].pid);
		check_all(h, 3, victim);
		h[3] = join("lo");
		check_all(h, 4, victim);
		leave(&h[3]);
		kit_cont(h[victim].pid);
		check_reached(&h[victim]);
		die(&h[victim]);
		h[victim] = join("lo");
		check_all(h, 3, -1);
		for (int i = 0; i < 3; i++)
			leave(&h[i]);
	}
	CHECK(port_is_free());
}

/* All holders are stopped: who joins takes what it needs, and they go on with it. */
static void stopped_holders(void)
{
	struct holder h[3] = {join("lo"), join("lo")};

	kit_stop(h[0].pid);
	kit_stop(h[1].pid);
	h[2] = join("lo");
	check_reached(&h[2]);
	kit_cont(h[0].pid);
	kit_cont(h[1].pid);
	check_all(h, 3, -1);
	die(&h[0]);
	die(&h[1]);
	h[0] = join("lo");
	check_reached(&h[0]);
	check_reached(&h[2]);
	leave(&h[0]);
	leave(&h[2]);
	CHECK(port_is_free());
}

/* The group ends with the last holder, and the next one makes a new one. */
static void a_group_ends(void)
{
	for (int round = 0; round < 3; round++) {
		struct holder h[3];

		for (int i = 0; i < 3; i++)
			h[i] = join("lo");
		for (int i = 0; i < 3; i++) {
			if (round == 1)
				die(&h[i]);
			else
				leave(&h[i]);
		}
		CHECK(port_is_free());
	}
}

/* Processes that open the port at the same time make one group. */
static void makers_race(void)
{
	enum { RACERS = 8 };

	for (int round = 0; round < 10; round++) {
		struct holder h[RACERS];
		int go[2];

		CHECK(!pipe(go));
		for (int i = 0; i < RACERS; i++)
			h[i] = start("lo", geteuid(), go);
		close(go[0]);
		close(go[1]);
		for (int i = 0; i < RACERS; i++) {
			hear(&h[i]);
			CHECK(!h[i].t.err, "%s", h[i].t.text);
		}
		check_all(h, RACERS, -1);
		for (int i = 0; i < RACERS; i++)
			round % 2 ? die(&h[i]) : leave(&h[i]);
	}
	CHECK(port_is_free());
}

/* Another program's socket at the port of lo. */
static pid_t other_program(uid_t uid)
{
	int ready[2];
	pid_t pid;
	char c;

	CHECK(!pipe(ready));
	pid = kit_fork_as(uid);
	if (!pid) {
		struct sockaddr_in6 sa = {.sin6_family = AF_INET6, .sin6_port = htons(VB_ROCE_PORT)};
		int sock = socket(AF_INET6, SOCK_DGRAM, 0);

		CHECK(!setsockopt(sock, SOL_SOCKET, SO_BINDTODEVICE, "lo", 2));
		CHECK(!bind(sock, (struct sockaddr *)&sa, sizeof(sa)));
		CHECK_EQ(write(ready[1], "r", 1), 1);
		for (;;)
			pause();
	}
	CHECK_EQ(read(ready[0], &c, 1), 1);
	close(ready[0]);
	close(ready[1]);
	return pid;
}

/* What is said of a port that is another user's, or another program's; our own group of another interface is
 * not taken for that. */
static void others_hold_the_port(void)
{
	struct holder h = join("vb0");
	char say[64];
	struct told t;
	pid_t pid = other_program(geteuid());

	t = refused("lo", geteuid());
	CHECK_EQ(t.err, EADDRINUSE);
	CHECK_EQ(t.why.trouble, VB_ROCE_PROGRAM);
	CHECK_EQ(t.why.pid, pid);
	snprintf(say, sizeof(say), "process %d (", (int)pid);
	CHECK(strstr(t.text, say) && strstr(t.text, "4791"), "%s", t.text);
	kill(pid, SIGKILL);
	kit_reap(pid);
	if (kit_can_be(FOREIGN)) {
		pid = other_program(FOREIGN);
		t = refused("lo", geteuid());
		CHECK_EQ(t.err, EADDRINUSE);
		CHECK_EQ(t.why.trouble, VB_ROCE_USER);
		CHECK_EQ(t.why.uid, FOREIGN);
		CHECK_EQ(t.why.pid, pid);
		kill(pid, SIGKILL);
		kit_reap(pid);
	}
	leave(&h);
	CHECK(port_is_free());
}

/* Another user's process at the door: it is hung up on, without a word. */
static void knock(void)
{
	struct sockaddr_un sa = {.sun_family = AF_UNIX};
	int n = snprintf(sa.sun_path + 1, sizeof(sa.sun_path) - 1, "verbena/1/roce/%u", if_nametoindex("lo"));
	int sock = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
	char c;

	CHECK(!connect(sock, (struct sockaddr *)&sa,
		       (socklen_t)(offsetof(struct sockaddr_un, sun_path) + 1) + (socklen_t)n));
	await(sock);
	CHECK_EQ(recv(sock, &c, 1, 0), 0);
	_exit(0);
}

/* A group of another user's is not joined. */
static void users_do_not_share(void)
{
	struct holder h;
	struct told t;
	pid_t pid;

	if (!kit_can_be(FOREIGN)) {
		printf("# this user can be no other\n");
		return;
	}
	h = join("lo");
	t = refused("lo", FOREIGN);
	CHECK_EQ(t.err, EADDRINUSE);
	CHECK_EQ(t.why.trouble, VB_ROCE_USER);
	CHECK_EQ(t.why.uid, geteuid());
	CHECK_EQ(t.why.pid, h.pid);
	pid = kit_fork_as(FOREIGN);
	if (!pid)
		knock();
	CHECK_EQ(kit_reap(pid), 0);
	check_reached(&h);
	leave(&h);
}

/* Bytes that lie in the port's sockets. */
static unsigned long waiting(void)
{
	FILE *f = fopen("/proc/thread-self/net/udp6", "re");
	unsigned long all = 0, n;
	unsigned port;
	char line[256];

	CHECK(f);
	while (fgets(line, sizeof(line), f))
		if (sscanf(line, " %*u: %*[0-9A-Fa-f]:%x %*s %*s %*[0-9A-Fa-f]:%lx", &port, &n) == 2 &&
		    port == VB_ROCE_PORT)
			all += n;
	fclose(f);
	return all;
}

/* What comes for a process that has left takes no memory; for one that was killed, no more than its buffer.
 */
static void buffers_are_bounded(void)
{
	struct holder h[3] = {join("lo"), join("lo"), join("lo")};
	unsigned long left, killed;
	uint32_t qpn[2] = {h[0].t.number << 12 | 5, h[1].t.number << 12 | 5};

	leave(&h[0]);
	for (int i = 0; i < 30000; i++)
		send_to("::1", qpn[0], 0);
	left = waiting();
	die(&h[1]);
	for (int i = 0; i < 30000; i++)
		send_to("::1", qpn[1], 0);
	killed = waiting() - left;
	printf("# %lu bytes wait for the process that left, %lu for the one that was killed\n", left, killed);
	CHECK(left < 16384);
	CHECK(killed < 16 << 20);
	check_reached(&h[2]);
	leave(&h[2]);
}

static void too_few_descriptors(void)
{
	struct rlimit was, few;
	struct told t;

	CHECK(!getrlimit(RLIMIT_NOFILE, &was));
	few = was;
	few.rlim_cur = 255;
	CHECK(!setrlimit(RLIMIT_NOFILE, &few));
	t = refused("lo", geteuid());
	CHECK(!setrlimit(RLIMIT_NOFILE, &was));
	CHECK_EQ(t.err, EMFILE);
	CHECK_EQ(t.why.trouble, VB_ROCE_FEW_FILES);
	CHECK(strstr(t.text, "255") && strstr(t.text, "256"), "%s", t.text);
	t = refused("nonesuch", geteuid());
	CHECK_EQ(t.err, ENODEV);
	CHECK(strstr(t.text, "nonesuch"), "%s", t.text);
	CHECK(port_is_free());
}

/* A forked child holds nothing of its parent's, and a program that closes all descriptors disturbs nobody
 * else. */
static void forks_and_closes(void)
{
	struct holder h[3] = {join("lo"), join("lo")};
	pid_t child;
	char c;

	CHECK_EQ(write(h[0].sock, "f", 1), 1);
	await(h[0].sock);
	CHECK_EQ(read(h[0].sock, &child, sizeof(child)), sizeof(child));
	check_all(h, 2, -1);
	CHECK_EQ(write(h[1].sock, "x", 1), 1);
	await(h[1].sock);
	CHECK_EQ(read(h[1].sock, &c, 1), 1);
	check_reached(&h[0]);
	h[2] = join("lo");
	check_reached(&h[2]);
	leave(&h[2]);
	die(&h[1]);
	leave(&h[0]);
	CHECK(port_is_free(), "the child has it");
	kill(child, SIGKILL);
}

static void interfaces_are_apart(void)
{
	struct holder h[2] = {join("lo")};

	h[1] = join("vb0");
	check_reached(&h[0]);
	leave(&h[1]);
	check_reached(&h[0]);
	leave(&h[0]);
}

int main(void)
{
	static const struct {
		const char *name;
		void (*run)(void);
	} cases[] = {
	    {"all slots are taken", all_slots_are_taken},
	    {"nobody is needed", nobody_is_needed},
	    {"stopped holders", stopped_holders},
	    {"a group ends", a_group_ends},
	    {"makers race", makers_race},
	    {"others hold the port", others_hold_the_port},
	    {"users do not share", users_do_not_share},
	    {"buffers are bounded", buffers_are_bounded},
	    {"too few descriptors", too_few_descriptors},
	    {"forks and closes", forks_and_closes},
	    {"interfaces are apart", interfaces_are_apart},
	};

	setvbuf(stdout, NULL, _IOLBF, 0);
	if (!kit_net_can())
		return KIT_SKIP;
	kit_net_begin();
	kit_net_make("vb0");
	kit_net_address("vb0", "192.0.2.1", true);
	kit_net_set("vb0", true);
	for (unsigned i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
		double began = kit_now();

		printf("# %s\n", cases[i].name);
		cases[i].run();
		printf("# %s: %.2f s\n", cases[i].name, kit_now() - began);
	}
	return 0;
}
