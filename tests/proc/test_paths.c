/* Where paths lead: every address of this host leads to its processes, whatever GID the far end shows; what
 * is sent goes to nobody but a queue pair that is connected to this one; and who may send to a queue pair is
 * decided by that queue pair. */
#include <arpa/inet.h>
#include <poll.h>
#include <sys/syscall.h>

#include "iba/out.h"
#include "iba/pkt.h"
#include "kit.h"
#include "node.h"
#include "obj/context.h"
#include "obj/cq.h"

enum { SIZE = 4096, LEN = 64, READY = 1, GO };

static struct board {
	struct kit_card card[2];
	_Atomic int step[2];
	pid_t pid; /* of who has the device, where a further process has none */
} * board;

static bool run(const char *command)
{
	return system(command) == 0;
}

/* A network of its own with two ordinary interfaces; the device publishes the first one's address. */
static void two_interfaces(void)
{
	if (!kit_own_network() ||
	    !run("{ ip link set lo up && ip link add d0 type veth peer name d1 && for i in 0 1; do ip addr "
		 "add "
		 "10.7$i.0.1/24 dev d$i && ip link set d$i up || exit 1; done; } 2>/dev/null")) {
		printf("SKIP: no network namespace with interfaces of its own here\n");
		fflush(stdout);
		_exit(0);
	}
}

static union ibv_gid gid_of(const char *address)
{
	union ibv_gid g = {.raw = {[10] = 0xff, [11] = 0xff}};

	CHECK(inet_pton(AF_INET, address, g.raw + 12) == 1 || inet_pton(AF_INET6, address, g.raw) == 1);
	return g;
}

static void open_end(struct kit_end *e)
{
	struct ibv_pd *pd = ibv_alloc_pd(kit_open());

	CHECK(pd);
	kit_end_open(e, pd, 8, SIZE);
}

/* The far end: connected by what the board says, and each of its receives is answered. */
static void echo(const char *address, bool added_later)
{
	struct kit_end e;

	open_end(&e);
	board->card[1] = e.card;
	CHECK(!kit_recv(&e, 1, 0, LEN));
	kit_until(&board->step[0], READY);
	board->card[0].gid = gid_of(added_later ? "127.0.0.1" : address);
	kit_connect(&e, &board->card[0]);
	atomic_store(&board->step[1], READY);
	CHECK_EQ(kit_wait(&e, 30).status, IBV_WC_SUCCESS);
	CHECK(!kit_post(&e, IBV_WR_SEND, 2, 0, LEN, NULL, 0));
	CHECK_EQ(kit_wait(&e, 30).status, IBV_WC_SUCCESS);
	kit_end_close(&e);
	exit(0);
}

static void exchange(const char *address, bool added_later)
{
	struct kit_card card;
	struct kit_end e;
	struct ibv_wc wc;
	pid_t pid;

	memset(board, 0, sizeof *board);
	pid = kit_fork();
	if (!pid)
		echo(address, added_later);
	open_end(&e);
	board->card[0] = e.card;
	atomic_store(&board->step[0], READY);
	kit_until(&board->step[1], READY);
	CHECK(memcmp(&e.card.gid, &(union ibv_gid){.raw = {[10] = 0xff, [11] = 0xff, 127, 0, 0, 1}}, 16),
	      "127.0.0.1 is what the device shows");
	card = board->card[1];
	card.gid = gid_of(address);
	kit_connect_with(&e, &card, 18, 7); /* 1 s, seven times */
	CHECK(!kit_recv(&e, 1, 0, LEN) && !kit_post(&e, IBV_WR_SEND, 2, 0, LEN, NULL, 0));
	if (added_later) {
		CHECK(!ibv_poll_cq(e.cq, 1, &wc));
		CHECK(run("ip addr add 10.79.0.1/24 dev d1"));
	}
	for (int i = 0; i < 2; i++) {
		wc = kit_wait(&e, 30);
		CHECK(wc.status == IBV_WC_SUCCESS, "%s: %s", address, ibv_wc_status_str(wc.status));
	}
	kit_end_close(&e);
	CHECK_EQ(kit_reap(pid), 0);
}

static void every_address_leads_here(void)
{
	static const char *const addresses[] = {"10.70.0.1", "10.71.0.1", "127.0.0.1", "127.9.8.7", "::1"};

	two_interfaces();
	for (size_t i = 0; i < sizeof addresses / sizeof *addresses; i++)
		exchange(addresses[i], false);
}

static void an_address_that_comes_later(void)
{
	two_interfaces();
	exchange("10.79.0.1", true);
}

/* Of a UC queue pair, whose requests do not wait: says so when the first of them has come. */
static void listen_unreliably(const char *address)
{
	struct ibv_pd *pd = ibv_alloc_pd(kit_open());
	struct kit_end e;

	kit_end_open_as(&e, pd, 8, SIZE, IBV_QPT_UC);
	board->card[1] = e.card;
	CHECK(!kit_recv(&e, 1, 0, LEN));
	kit_until(&board->step[0], READY);
	board->card[0].gid = gid_of(address);
	kit_connect(&e, &board->card[0]);
	atomic_store(&board->step[1], READY);
	CHECK_EQ(kit_wait(&e, 60).status, IBV_WC_SUCCESS);
	atomic_store(&board->step[1], GO);
	kit_until(&board->step[0], GO);
	kit_end_close(&e);
	exit(0);
}

/* Each end's address for the other; one of them the host gets only after a request was lost. */
static void send_unreliably(const char *to, const char *from)
{
	double start = kit_now();
	struct kit_card card;
	struct ibv_pd *pd;
	struct kit_end e;
	pid_t pid;

	memset(board, 0, sizeof *board);
	pid = kit_fork();
	if (!pid)
		listen_unreliably(from);
	pd = ibv_alloc_pd(kit_open());
	kit_end_open_as(&e, pd, 8, SIZE, IBV_QPT_UC);
	board->card[0] = e.card;
	atomic_store(&board->step[0], READY);
	kit_until(&board->step[1], READY);
	card = board->card[1];
	card.gid = gid_of(to);
	kit_connect(&e, &card);
	CHECK(!kit_post(&e, IBV_WR_SEND, 1, 0, LEN, NULL, 0));
	CHECK_EQ(kit_wait(&e, 30).status, IBV_WC_SUCCESS);
	CHECK(atomic_load(&board->step[1]) == READY && run("ip addr add 10.79.0.1/24 dev d1"));
	while (atomic_load(&board->step[1]) != GO) { /* what is sent while nobody is known is lost */
		CHECK(!kit_post(&e, IBV_WR_SEND, 1, 0, LEN, NULL, 0));
		CHECK_EQ(kit_wait(&e, 30).status, IBV_WC_SUCCESS);
		CHECK(kit_now() - start < 30);
	}
	CHECK(run("ip addr del 10.79.0.1/24 dev d1"));
	atomic_store(&board->step[0], GO);
	kit_end_close(&e);
	CHECK_EQ(kit_reap(pid), 0);
}

static void an_address_of_uc_that_comes_later(void)
{
	two_interfaces();
	send_unreliably("10.79.0.1", "127.0.0.1");
	send_unreliably("127.0.0.1", "10.79.0.1");
}

/* As with a GID 127.0.0.1 that was copied from another network namespace, where the QPN is somebody else's
 * here: that one is connected to another queue pair. */
static void a_queue_pair_of_others(void)
{
	struct kit_card card;
	struct kit_end e[3];
	struct ibv_wc wc;

	kit_log_begin("warn");
	for (int i = 0; i < 3; i++)
		open_end(&e[i]);
	for (int i = 0; i < 2; i++) {
		kit_connect(&e[i], &e[!i].card);
		CHECK(!kit_recv(&e[i], 1, 0, LEN));
	}
	card = e[0].card;
	card.gid = gid_of("127.0.0.1");
	e[2].card.psn = e[1].card.psn; /* what e[0] expects */
	kit_connect_with(&e[2], &card, 10, 1);
	CHECK(!kit_post(&e[2], IBV_WR_SEND, 2, 0, LEN, NULL, 0));
	CHECK_EQ(kit_wait(&e[2], 20).status, IBV_WC_RETRY_EXC_ERR);
	KIT_LOG_SAYS("it is connected to queue pair 0x%06x and receives nothing from this one",
		     e[1].card.qpn);
	CHECK(!ibv_poll_cq(e[0].cq, 1, &wc));
	CHECK(!kit_post(&e[1], IBV_WR_SEND, 3, 0, LEN, NULL, 0));
	CHECK(kit_wait(&e[0], 20).wr_id == 1);
	for (int i = 0; i < 3; i++)
		kit_end_close(&e[i]);
}

/* A process of this user, as in a container: in a network namespace of its own, where it has the address. */
static void be_elsewhere(const char *address)
{
	char command[200];
	struct kit_end e;

	snprintf(command, sizeof command, "ip link set lo up && ip addr add %s dev lo 2>/dev/null", address);
	if (!kit_own_network() || !run(command)) {
		atomic_store(&board->step[1], GO);
		_exit(0);
	}
	/* The first process there has no device, and is not the one to name. */
	if (!kit_fork()) {
		open_end(&e);
		board->pid = getpid();
		atomic_store(&board->step[1], READY);
		pause();
	}
	pause();
}

/* What is sent to that address: by a queue pair, and by a datagram. */
static void sends_elsewhere(const char *address, pid_t pid)
{
	struct kit_card card = {.gid = gid_of(address), .qpn = 0x123456};
	struct ibv_pd *pd = ibv_alloc_pd(kit_open());
	struct kit_end rc, ud;
	struct ibv_ah *ah;

	kit_end_open(&rc, pd, 8, SIZE);
	kit_end_open_as(&ud, pd, 8, SIZE, IBV_QPT_UD);
	kit_log_skip();
	kit_connect_with(&rc, &card, 10, 1);
	CHECK_EQ(kit_post(&rc, IBV_WR_SEND, 2, 0, LEN, NULL, 0), 0);
	CHECK_EQ(kit_wait(&rc, 20).status, IBV_WC_RETRY_EXC_ERR);
	if (pid)
		KIT_LOG_SAYS("the GID in the path (dgid %s) is not an address of this network namespace: "
			     "process %d of "
			     "this user has it in another network namespace",
			     address, (int)pid);
	else
		KIT_LOG_SAYS(
		    "the GID in the path (dgid %s) is not an address of this network namespace, and this "
		    "host has no route to it; a container has its own network namespace",
		    address);
	kit_nap(100); /* it is not looked for more often */
	kit_log_skip();
	ah = kit_ah(pd, &card);
	CHECK_EQ(kit_datagram(&ud, ah, card.qpn, 1, 0, LEN), 0);
	CHECK_EQ(kit_wait(&ud, 20).status, IBV_WC_SUCCESS);
	if (pid)
		KIT_LOG_SAYS(
		    "queue pair 0x123456 cannot be reached: the GID in the path (dgid %s) is not an address "
		    "of this network namespace: process %d of this user has it",
		    address, (int)pid);
	else
		KIT_LOG_SAYS(
		    "queue pair 0x123456 cannot be reached: the GID in the path (dgid %s) is not an address "
		    "of this network namespace, and this host has no route to it; a container has its own",
		    address);
	CHECK_EQ(ibv_destroy_ah(ah), 0);
	kit_end_close(&rc);
	kit_end_close(&ud);
}

static void an_address_of_another_network(void)
{
	static const char *const addresses[] = {"10.79.9.1", "fd00:79::9"};
	struct pollfd end;
	pid_t pid;

	kit_log_begin("warn");
	for (int i = 0; i < 2; i++) {
		memset(board, 0, sizeof *board);
		pid = kit_fork();
		if (!pid)
			be_elsewhere(addresses[i]);
		while (!atomic_load(&board->step[1]))
			kit_nap_us(200);
		if (atomic_load(&board->step[1]) == GO) {
			printf("SKIP: no network namespace of its own here, or no address %s\n",
			       addresses[i]);
			kit_reap(pid);
			continue;
		}
		sends_elsewhere(addresses[i], board->pid);
		end = (struct pollfd){.fd = (int)syscall(SYS_pidfd_open, board->pid, 0), .events = POLLIN};
		CHECK(end.fd >= 0);
		CHECK(!kill(pid, SIGKILL)); /* with which its child ends */
		kit_reap(pid);
		CHECK_EQ(poll(&end, 1, -1), 1);
		close(end.fd);
		kit_nap(100);
		sends_elsewhere(addresses[i], 0);
	}
}

/* Puts a SEND to a queue pair into a ring that leads to its process, as if it were that one's far end. */
static void inject(struct vb_out *o, uint32_t qpn, uint32_t psn)
{
	struct vb_pkt p = {.op = &vb_opcodes[VB_SEND_ONLY],
			   .opcode = VB_SEND_ONLY,
			   .pkey = VB_PKEY_DEFAULT,
			   .ack_req = true,
			   .qpn = qpn,
			   .psn = psn};
	struct vb_outbuf b;

	CHECK(o->ops->reserve(o, &b, p.op->hdr_len, LEN, VB_OUT_REQUEST));
	vb_pkt_encode(b.hdr, &p);
	memset(b.payload, 0x66, LEN);
	o->ops->commit(o, &b);
}

static void victim(void)
{
	struct kit_end e[2];

	for (int i = 0; i < 2; i++)
		open_end(&e[i]);
	kit_connect(&e[0], &e[1].card);
	kit_connect(&e[1], &e[0].card);
	CHECK(!kit_recv(&e[0], 7, 0, LEN));
	board->card[0] = e[0].card;
	board->card[1] = e[1].card;
	atomic_store(&board->step[0], READY);
	kit_until(&board->step[1], GO);
	/* What was injected lies in the ring before this look, which takes in everything. */
	for (int i = 0; i < 1000; i++) {
		struct ibv_wc wc;

		CHECK(!ibv_poll_cq(e[0].cq, 1, &wc), "a stranger's SEND was taken");
	}
	memset(e[1].buf, 0x11, LEN);
	CHECK(!kit_post(&e[1], IBV_WR_SEND, 8, 0, LEN, NULL, 0));
	CHECK(kit_wait(&e[0], 20).wr_id == 7 && e[0].buf[0] == 0x11);
	CHECK_EQ(kit_wait(&e[1], 20).status, IBV_WC_SUCCESS);
	exit(0);
}

static void a_third_process_injects(void)
{
	struct kit_node *n;
	struct vb_peer *peer;
	struct vb_out *out;
	pid_t pid;

	memset(board, 0, sizeof *board);
	pid = kit_fork();
	if (!pid)
		victim();
	kit_until(&board->step[0], READY);
	n = kit_node_open();
	peer = kit_connected(n, board->card[0].qpn >> VB_QPN_INDEX_BITS);
	out = peer->lanes[0].out;
	for (int i = 0; i < 3; i++)
		inject(out, board->card[0].qpn, board->card[1].psn);
	for (int64_t end = 20000; !out->ops->taken(out, out->ops->mark(out)); end--) {
		CHECK(end, "they were not taken out");
		kit_nap(1);
	}
	atomic_store(&board->step[1], GO);
	CHECK_EQ(kit_reap(pid), 0);
	vb_peer_put(peer);
	kit_node_close(n);
}

/* The far end: its queue pair is connected `late`, when it is told to be, and then it waits to be killed. */
static void late(void)
{
	struct kit_end e;

	open_end(&e);
	board->card[1] = e.card;
	CHECK(!kit_recv(&e, 1, 0, LEN));
	atomic_store(&board->step[1], READY);
	kit_until(&board->step[0], GO);
	kit_connect(&e, &board->card[0]);
	atomic_store(&board->step[1], GO);
	for (;;)
		pause();
}

/* Connects this end, with contact made, to a process whose queue pair is not connected yet. */
static pid_t begin_late(struct kit_end *e)
{
	pid_t pid;

	memset(board, 0, sizeof *board);
	pid = kit_fork();
	if (!pid)
		late();
	open_end(e);
	board->card[0] = e->card;
	kit_until(&board->step[1], READY);
	kit_connect_with(e, &board->card[1], 0, 7); /* no timeout: nothing but the far end's coming ends it */
	return pid;
}

static void contact_is_made(struct kit_end *e)
{
	struct vb_adapter *a = vb_context(e->qp->context)->adapter;
	struct vb_peer *peer = vb_peer_get(a, board->card[1].qpn >> VB_QPN_INDEX_BITS);

	for (int i = 0; atomic_load(&peer->state) != VB_PEER_UP; i++) {
		CHECK(i < 20000, "no contact");
		kit_nap(1);
	}
	vb_peer_put(peer);
}

/* Who neither sent nor received hears of the death of its peer all the same. */
static void death_without_a_word(void)
{
	struct kit_end e;
	struct ibv_wc wc;
	pid_t pid = begin_late(&e);

	CHECK(!kit_recv(&e, 5, 0, LEN));
	contact_is_made(&e);
	atomic_store(&board->step[0], GO);
	kit_until(&board->step[1], GO);
	kill(pid, SIGKILL);
	wc = kit_wait(&e, 20);
	CHECK(wc.wr_id == 5);
	CHECK_EQ(wc.status, IBV_WC_WR_FLUSH_ERR);
}

/* How often the other threads of this process have gone to sleep, and so been woken. */
static unsigned long sleeps(void)
{
	return kit_switches(getpid(), gettid()).slept;
}

/* A request waits for a queue pair that is not connected: nobody spins meanwhile, and when it is, the request
 * goes out though this program does not call. */
static void a_far_end_that_comes_late(void)
{
	struct kit_end e;
	pid_t pid = begin_late(&e);
	double begun;
	unsigned long before;

	contact_is_made(&e);
	CHECK(!kit_post(&e, IBV_WR_SEND, 6, 0, LEN, NULL, 0));
	before = sleeps();
	begun = kit_now();
	kit_nobody_spins(); /* takes 0.2 s */
	/* ten looks a second, and what was under way */
	CHECK(sleeps() - before < 50 + (unsigned long)(50 * (kit_now() - begun)), "%lu wake-ups",
	      sleeps() - before);
	atomic_store(&board->step[0], GO);
	kit_until(&board->step[1], GO);
	while (vb_cq_is_empty(vb_cq(e.cq))) /* no progress is made by looking */
		kit_nap(1);
	CHECK(kit_wait(&e, 1).wr_id == 6);
	kill(pid, SIGKILL);
}

/* Requests are posted while contact comes to be, and more of them all the time. */
static void posts_while_contact_comes(void)
{
	for (int round = 0; round < 20; round++) {
		struct kit_end e;
		pid_t pid = begin_late(&e);

		for (int i = 0; i < 8; i++) {
			CHECK(!kit_post(&e, IBV_WR_SEND, 1, 0, LEN, NULL, 0));
			kit_nap_us(10u * (unsigned)round);
		}
		CHECK(!kit_recv(&e, 2, 0, LEN));
		atomic_store(&board->step[0], GO);
		kit_until(&board->step[1], GO);
		CHECK_EQ(kit_wait(&e, 20).status, IBV_WC_SUCCESS); /* the first: there is one receive */
		kill(pid, SIGKILL);
		kit_reap(pid);
		kit_end_close(&e);
	}
}

int main(int argc, char **argv)
{
	static const struct kit_case cases[] = {
	    {.name = "every address leads here", .run = every_address_leads_here},
	    {.name = "an address that comes later", .run = an_address_that_comes_later},
	    {.name = "an address of UC that comes later", .run = an_address_of_uc_that_comes_later},
	    {.name = "a queue pair of others", .run = a_queue_pair_of_others},
	    {.name = "an address of another network", .run = an_address_of_another_network},
	    {.name = "a third process injects", .run = a_third_process_injects},
	    {.name = "death without a word", .run = death_without_a_word},
	    {.name = "a far end that comes late", .run = a_far_end_that_comes_late},
	    {.name = "posts while contact comes", .run = posts_while_contact_comes},
	};

	board = kit_shared(sizeof *board);
	return KIT_CASES(cases, 120), 0;
}
