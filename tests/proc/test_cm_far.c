/* rdma_cm between two hosts with many processes each.  Whichever process reads a message from the other host
 * hands it to the one that it is for.  One that is stopped holds up nobody else's connections.  One that is
 * killed in any state of the handshake: the other end has its event within the protocol's timers.  While
 * other processes are on the host of the dead one, they answer as its kernel would, so that one
 * retransmission is enough.  One that calls exit() tells the other end itself.  Requests wait for their
 * listener, up to a number.  VERBENA_SOAK=1: also kills where the dead one was alone, so that all
 * retransmissions are in vain. */
#include "cm.h"
#include "cm/id.h"
#include "devices/cm_dev.h"
#include "hosts.h"

enum { SERVER, CLIENT }; /* hosts */

static struct kit_hosts hosts = {.count = 2, .mtu = 1500};
static bool lonely;

static struct board {
	_Atomic int listening, there, ready, go;
	uint16_t port;
} * board;

static struct rdma_event_channel *ch;
static struct rdma_cm_id *mine, *listener;

static void be_on(unsigned host)
{
	kit_host_enter(&hosts, host);
	setenv("VERBENA_NETDEV", KIT_HOST_NIC, 1);
	kit_cm_host = kit_host_address(SERVER, false);
}

static void stay(void)
{
	atomic_store(&board->there, 1);
	for (;;)
		pause();
}

static void leave(void)
{
	atomic_store(&board->there, 1);
	kit_until(&board->go, 1);
	exit(0);
}

/* ---- how far each end gets ---- */

static void listen_on(enum rdma_port_space ps)
{
	ch = kit_cm_channel();
	listener = kit_cm_listen_at(ch, ps, &board->port, 0);
	atomic_store(&board->listening, 1);
}

static void listens(void)
{
	listen_on(RDMA_PS_TCP);
}

static void listens_for_datagrams(void)
{
	listen_on(RDMA_PS_UDP);
}

static void is_asked(void)
{
	if (!ch)
		listens();
	mine = kit_cm_expect(ch, RDMA_CM_EVENT_CONNECT_REQUEST, 0).id;
	kit_cm_qp(mine);
}

static void is_looked_up(void)
{
	listens_for_datagrams();
	is_asked();
}

static void accepts(void)
{
	is_asked();
	kit_cm_accept(mine);
}

static void has_accepted(void)
{
	accepts();
	kit_cm_expect(ch, RDMA_CM_EVENT_ESTABLISHED, 0);
}

/* The RTU may die with the process that read it.  The DREQ then establishes the connection and ends it. */
static void has_heard_of_the_end(void)
{
	struct kit_cm_event e;

	accepts();
	e = kit_cm_next(ch);
	if (e.type == RDMA_CM_EVENT_ESTABLISHED)
		e = kit_cm_next(ch);
	CHECK(e.type == RDMA_CM_EVENT_DISCONNECTED && !e.status, "%s, %d", rdma_event_str(e.type), e.status);
}

static void connect_by(enum rdma_port_space ps)
{
	kit_until(&board->listening, 1);
	ch = kit_cm_channel();
	mine = kit_cm_ready(ch, ps, board->port);
	kit_cm_connect(mine);
}

static void connects(void)
{
	connect_by(RDMA_PS_TCP);
}

static void looks_up(void)
{
	connect_by(RDMA_PS_UDP);
}

static void is_connected(void)
{
	connects();
	kit_cm_expect(ch, RDMA_CM_EVENT_ESTABLISHED, 0);
}

/* Without a queue pair of the id's, its user says when it is ready. */
static void is_answered(void)
{
	kit_until(&board->listening, 1);
	ch = kit_cm_channel();
	mine = kit_cm_bare(ch, RDMA_PS_TCP, board->port);
	KIT_CM(rdma_connect(mine, &(struct rdma_conn_param){.qp_num = 0x123, .retry_count = 7}));
	kit_cm_expect(ch, RDMA_CM_EVENT_CONNECT_RESPONSE, 0);
}

static void ends(void)
{
	KIT_CM(rdma_disconnect(mine));
}

static void has_ended(void)
{
	is_connected();
	ends();
}

/* Nobody answers an RTU but to refuse it. */
static void is_ready(void)
{
	KIT_CM(rdma_establish(mine));
	if (lonely)
		ends();
}

static void accepts_late(void)
{
	kit_cm_accept(mine);
}

/* ---- deaths ---- */

static const struct death {
	const char *name;
	void (*victim)(void), (*survivor)(void);
	unsigned host;	     /* of the victim */
	bool stopped;	     /* it is stopped before the survivor begins */
	void (*after)(void); /* what the survivor does when it is dead */
	int event, status;   /* what it hears, and if nobody else is there: */
	int alone, alone_status;
} deaths[] = {
/* clang-format off */
#define NOBODY -ETIMEDOUT
    {"before the REQ comes", listens, connects, SERVER, true, NULL, RDMA_CM_EVENT_REJECTED, 8,
     RDMA_CM_EVENT_UNREACHABLE, NOBODY},
    {"before it takes the REQ", listens, connects, SERVER, false, NULL, RDMA_CM_EVENT_REJECTED, 8,
     RDMA_CM_EVENT_UNREACHABLE, NOBODY},
    {"at the REQ", is_asked, connects, SERVER, false, NULL, RDMA_CM_EVENT_REJECTED, 8,
     RDMA_CM_EVENT_UNREACHABLE, NOBODY},
    {"after its REP", accepts, is_answered, SERVER, false, is_ready, RDMA_CM_EVENT_DISCONNECTED, 0,
     RDMA_CM_EVENT_DISCONNECTED, NOBODY},
    {"established", has_accepted, is_connected, SERVER, false, ends, RDMA_CM_EVENT_DISCONNECTED, 0,
     RDMA_CM_EVENT_DISCONNECTED, NOBODY},
    {"at the DREQ", has_heard_of_the_end, has_ended, SERVER, false, NULL, RDMA_CM_EVENT_DISCONNECTED, 0,
     RDMA_CM_EVENT_DISCONNECTED, NOBODY},
    {"before the SIDR_REQ comes", listens_for_datagrams, looks_up, SERVER, true, NULL, RDMA_CM_EVENT_UNREACHABLE, 1,
     RDMA_CM_EVENT_UNREACHABLE, NOBODY},
    {"at the SIDR_REQ", is_looked_up, looks_up, SERVER, false, NULL, RDMA_CM_EVENT_UNREACHABLE, 1,
     RDMA_CM_EVENT_UNREACHABLE, NOBODY},
    {"its REQ not answered", connects, is_asked, CLIENT, false, accepts_late, RDMA_CM_EVENT_REJECTED, 6,
     RDMA_CM_EVENT_UNREACHABLE, NOBODY},
    {"before its RTU", connects, accepts, CLIENT, false, NULL, RDMA_CM_EVENT_REJECTED, 6,
     RDMA_CM_EVENT_UNREACHABLE, NOBODY},
    {"connected", is_connected, has_accepted, CLIENT, false, ends, RDMA_CM_EVENT_DISCONNECTED, 0,
     RDMA_CM_EVENT_DISCONNECTED, NOBODY},
    /* clang-format on */
};

enum { DEATHS = sizeof(deaths) / sizeof(deaths[0]) };

static bool by_exit;

static void end(pid_t victim)
{
	if (by_exit) {
		atomic_store(&board->go, 1);
		CHECK(!kit_reap(victim));
	} else {
		CHECK(!kill(victim, SIGKILL));
		CHECK(WIFSIGNALED(kit_reap(victim)));
	}
}

static void survive(const struct death *d, pid_t victim)
{
	bool in_vain = lonely && !by_exit;
	int event = in_vain ? d->alone : d->event, status = in_vain ? d->alone_status : d->status;
	double t, most = in_vain ? 150 : by_exit ? 5 : 30;
	struct kit_cm_event e;

	if (d->stopped) {
		kit_until(&board->there, 1);
		kit_stop(victim);
	}
	be_on(!d->host);
	d->survivor();
	kit_until(&board->there, 1);
	t = kit_now();
	end(victim);
	if (d->after)
		d->after();
	CHECK(kit_cm_comes(ch, most), "%s: no event in %.0f s", d->name, most);
	e = kit_cm_next(ch);
	CHECK(e.type == (enum rdma_cm_event_type)event && e.status == status, "%s: %s, %d instead of %s, %d",
	      d->name, rdma_event_str(e.type), e.status, rdma_event_str((enum rdma_cm_event_type)event),
	      status);
	printf("  %s: %s, %d after %.2f s\n", d->name, rdma_event_str(e.type), e.status, kit_now() - t);
	kit_cm_end(mine);
	if (listener)
		KIT_CM(rdma_destroy_id(listener));
	rdma_destroy_event_channel(ch);
}

static pid_t die(const struct death *d)
{
	pid_t survivor, victim;

	survivor = kit_fork();
	if (survivor)
		return survivor;
	alarm(200);
	if (lonely)
		kit_hosts_make(&hosts);
	board = kit_shared(sizeof *board);
	victim = kit_fork();
	if (!victim) {
		be_on(d->host);
		d->victim();
		if (by_exit)
			leave();
		stay();
	}
	survive(d, victim);
	exit(0);
}

/* ---- exit() ---- */

/* Nobody else is on the hosts, and a process that ends by exit() tells the other end itself, as its kernel
 * would. */
static const struct death exits[] = {
    {"exit at the REQ", is_asked, connects, SERVER, false, NULL, RDMA_CM_EVENT_REJECTED, 28, 0, 0},
    {"exit after its REP", accepts, is_answered, SERVER, false, NULL, RDMA_CM_EVENT_REJECTED, 28, 0, 0},
    {"exit, established", has_accepted, is_connected, SERVER, false, NULL, RDMA_CM_EVENT_DISCONNECTED, 0, 0,
     0},
    {"exit at the DREQ", has_heard_of_the_end, has_ended, SERVER, false, NULL, RDMA_CM_EVENT_DISCONNECTED, 0,
     0, 0},
    {"exit, its RTU owed", is_answered, accepts, CLIENT, false, NULL, RDMA_CM_EVENT_REJECTED, 28, 0, 0},
    {"exit, connected", is_connected, has_accepted, CLIENT, false, NULL, RDMA_CM_EVENT_DISCONNECTED, 0, 0, 0},
};

/* Somebody else on each host, who has nothing to do with it. */
static pid_t stand_by(unsigned host)
{
	pid_t pid = kit_fork();

	if (pid)
		return pid;
	be_on(host);
	kit_cm_host = kit_host_address(host, false);
	listens();
	atomic_fetch_add(&board->ready, 1);
	stay();
	exit(1);
}

static void all_die(const struct death *all, int n)
{
	pid_t pids[DEATHS];
	int bad = 0;

	for (int i = 0; i < n; i++)
		pids[i] = die(&all[i]);
	for (int i = 0; i < n; i++)
		if (kit_reap(pids[i])) {
			printf("failed: %s%s\n", all[i].name, lonely ? ", alone" : "");
			bad++;
		}
	CHECK(!bad, "%d of %d", bad, n);
}

/* ---- handing on ---- */

enum { SERVERS = 6, TURNS = 20 };

static void serve(struct board *b)
{
	board = b;
	be_on(SERVER);
	listens();
	for (;;) {
		struct kit_cm_event e = kit_cm_next(ch);

		if (e.type == RDMA_CM_EVENT_CONNECT_REQUEST) {
			kit_cm_qp(e.id);
			kit_cm_accept(e.id);
		} else if (e.type == RDMA_CM_EVENT_DISCONNECTED) {
			KIT_CM(rdma_disconnect(e.id));
			kit_cm_end(e.id);
		}
	}
}

/* Each of the servers is reached by its port while one of them is stopped. */
static void visit(struct board *boards, const pid_t *servers)
{
	be_on(CLIENT);
	for (int turn = 0; turn < TURNS; turn++) {
		int stopped = turn % SERVERS;

		kit_stop(servers[stopped]);
		for (int i = 0; i < SERVERS; i++) {
			if (i == stopped)
				continue;
			board = &boards[i];
			is_connected();
			ends();
			kit_cm_expect(ch, RDMA_CM_EVENT_DISCONNECTED, 0);
			kit_cm_end(mine);
			rdma_destroy_event_channel(ch);
		}
		kit_cont(servers[stopped]);
	}
}

static void hand_on(void)
{
	struct board *boards = kit_shared(SERVERS * sizeof(*boards));
	pid_t visitor = kit_fork(), servers[SERVERS];

	if (visitor) {
		CHECK(!kit_reap(visitor));
		return;
	}
	alarm(120);
	for (int i = 0; i < SERVERS; i++) {
		servers[i] = kit_fork();
		if (!servers[i])
			serve(&boards[i]);
	}
	for (int i = 0; i < SERVERS; i++)
		kit_until(&boards[i].listening, 1); /* who is stopped before holds up those who join */
	visit(boards, servers);
	for (int i = 0; i < SERVERS; i++)
		CHECK(!kill(servers[i], SIGKILL) && WIFSIGNALED(kit_reap(servers[i])));
	exit(0);
}

/* ---- requests that wait for their listener ---- */

enum { WAITING = 256, NOT_YET = 7471 };

/* This process's device, at work. */
static struct vb_cm_dev *device(void)
{
	struct vb_cm_device *d;

	CHECK(!vb_cm_device_open(0, &d));
	return d->user;
}

static bool any_waits(struct vb_cm_dev *d)
{
	bool any;

	vb_cm_ids_enter();
	any = !vb_list_empty(&d->late);
	vb_cm_ids_leave();
	return any;
}

/* A request of the other host for a port at which nobody listens. */
static bool keep_one(struct vb_cm_dev *d, uint32_t comm_id)
{
	struct vb_cm_msg m = {.kind = VB_CM_REQ, .tid = comm_id};
	struct vb_cm_av av = {.whom.kind = VB_WHOM_ADDRESS};
	uint8_t mad[VB_MAD_LEN];

	vb_cm_sock_gid(kit_cm_local(0), av.local_gid);
	kit_cm_host = kit_host_address(CLIENT, false);
	vb_cm_sock_gid(kit_cm_local(0), av.remote_gid);
	kit_cm_host = kit_host_address(SERVER, false);
	memcpy(&av.whom.gid, av.remote_gid, sizeof(av.whom.gid));
	m.req.local_comm_id = m.req.qpn = comm_id;
	m.req.service_id = (uint64_t)RDMA_PS_TCP << 16 | NOT_YET;
	vb_cm_msg_put(mad, &m);
	return vb_cm_keep_late(d, &av, mad, true);
}

/* As many as may wait do, the next one does not and is refused at once.  When their time is over all are
 * refused, so that as many may wait again. */
static void as_many_as_may_wait(void)
{
	struct vb_cm_dev *d;

	alarm(60);
	kit_hosts_make(&hosts); /* so that it reads no other requests */
	be_on(SERVER);
	d = device();
	for (int turn = 0; turn < 2; turn++) {
		struct vb_cm_counts before, after;

		vb_cm_ids_enter();
		vb_cm_counts(d->pub.cm, &before);
		for (uint32_t i = 1; i <= WAITING; i++)
			CHECK(keep_one(d, i), "%u of %u", i, WAITING);
		CHECK(!keep_one(d, WAITING + 1), "one too many");
		vb_cm_ids_leave();
		while (any_waits(d))
			kit_nap(5); /* no event tells of that */
		vb_cm_ids_enter();
		vb_cm_counts(d->pub.cm, &after);
		CHECK_EQ(d->ncame, 0);
		vb_cm_ids_leave();
		CHECK_EQ(after.refused - before.refused, WAITING);
	}
	exit(0);
}

/* Dies as soon as a request waits that it has read. */
static void reads_and_dies(void)
{
	struct vb_cm_dev *d;

	be_on(SERVER);
	d = device();
	atomic_store(&board->ready, 1);
	while (!any_waits(d))
		kit_nap(1); /* no event tells of that */
	raise(SIGKILL);
}

static void listens_after_that(void)
{
	kit_until(&board->go, 1);
	be_on(SERVER);
	board->port = NOT_YET;
	accepts();
	stay();
}

/* The request is lost with the process that read it, and its retransmission finds the listener. */
static void a_reader_dies(void)
{
	pid_t reader, server;

	alarm(60);
	kit_hosts_make(&hosts);
	board = kit_shared(sizeof *board);
	reader = kit_fork();
	if (!reader)
		reads_and_dies();
	server = kit_fork();
	if (!server)
		listens_after_that();
	kit_until(&board->ready, 1);
	be_on(CLIENT);
	board->port = NOT_YET;
	atomic_store(&board->listening, 1);
	connects();
	CHECK(WIFSIGNALED(kit_reap(reader)));
	atomic_store(&board->go, 1);
	kit_cm_expect(ch, RDMA_CM_EVENT_ESTABLISHED, 0);
	kill(server, SIGKILL);
	CHECK(WIFSIGNALED(kit_reap(server)));
	exit(0);
}

static pid_t begin(void (*run)(void))
{
	pid_t pid = kit_fork();

	if (!pid)
		run();
	return pid;
}

int main(void)
{
	pid_t others[2], limit, reader;

	setlinebuf(stdout);
	if (!kit_hosts_can())
		return KIT_SKIP;
	kit_hosts_make(&hosts);
	hand_on();
	board = kit_shared(sizeof *board);
	for (unsigned i = 0; i < 2; i++)
		others[i] = stand_by(i);
	kit_until(&board->ready, 2);
	limit = begin(as_many_as_may_wait);
	reader = begin(a_reader_dies);
	all_die(deaths, DEATHS);
	CHECK(!kit_reap(limit), "requests that wait");
	CHECK(!kit_reap(reader), "a reader that dies");
	for (int i = 0; i < 2; i++)
		CHECK(!kill(others[i], SIGKILL) && WIFSIGNALED(kit_reap(others[i])));
	lonely = true;
	by_exit = true;
	all_die(exits, sizeof(exits) / sizeof(exits[0]));
	by_exit = false;
	if (getenv("VERBENA_SOAK"))
		all_die(deaths, DEATHS);
	return 0;
}
