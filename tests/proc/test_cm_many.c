/* Connections one after another, and many at once, with few descriptors: nothing is left behind.
 *
 * A connection costs no descriptor.  Its queue pair's number rests in TIMEWAIT, and whoever makes so many
 * within that time that 4,095 numbers are not enough takes further adapter numbers, a descriptor or two each:
 * that, and nothing else, may grow. VERBENA_SOAK=1: 10,000 and 1,000.
 *
 * "hosts": between two hosts, whose port for one another takes descriptors, too. */
#include <malloc.h>
#include <sys/resource.h>

#include "cm.h"
#include "hosts.h"

enum {
	FILES = 256,
	FILES_BETWEEN = 384,
	NUMBERS = 4095,	    /* queue pairs of an adapter number */
	PER_NUMBER = 2,	    /* descriptors */
	WAYS = 8,	    /* between hosts: sockets that are opened when they are first sent by, and */
	PER_WAY = 96 << 10, /* bytes of each */
	ACK_TIMEOUT = 10,   /* a code: 4 ms, so that TIMEWAIT is over soon */
};

struct state {
	int files, locks;
	size_t memory;
};

static struct board {
	_Atomic int listening, done, asked, answered;
	uint16_t port;
	struct state server; /* as it was asked for last */
} * board;

static struct kit_hosts hosts = {.count = 2, .mtu = 1500};
static int files = FILES;

static void be_on(unsigned host)
{
	if (files == FILES)
		return;
	kit_host_enter(&hosts, host);
	setenv("VERBENA_NETDEV", KIT_HOST_NIC, 1);
	kit_cm_host = kit_host_address(0, false);
}

static bool soak(void)
{
	return getenv("VERBENA_SOAK");
}

static int in_a_row(void)
{
	return soak() ? 10000 : 400;
}

static int at_once(void)
{
	return soak() ? 1000 : 200;
}

/* ---- what is there ---- */

static size_t memory(void)
{
#ifdef __SANITIZE_ADDRESS__
	return 0; /* LeakSanitizer looks, when the process ends */
#else
	struct mallinfo2 m = mallinfo2();

	return m.uordblks + m.hblkhd;
#endif
}

static struct state look(void)
{
	return (struct state){kit_descriptors(), kit_cm_port_locks(), memory()};
}

/* Of both ends. */
struct both {
	struct state client, server;
};

static struct both look_at_both(void)
{
	int n = atomic_fetch_add(&board->asked, 1) + 1;

	kit_until(&board->answered, n);
	return (struct both){look(), board->server};
}

static void answer(void)
{
	int n = atomic_load(&board->asked);

	if (n == atomic_load(&board->answered))
		return;
	board->server = look();
	atomic_store(&board->answered, n);
}

/* After n queue pairs more. */
static void compare_one(const char *where, const char *end, struct state before, struct state now, int n)
{
	int numbers = n / NUMBERS + 1, ways = files == FILES ? 0 : WAYS;

	printf("  %s, %s: descriptors %d, then %d; locks %d, then %d; memory %zu, then %zu\n", where, end,
	       before.files, now.files, before.locks, now.locks, before.memory, now.memory);
	CHECK(now.files <= before.files + numbers * PER_NUMBER + ways, "%d descriptors, then %d",
	      before.files, now.files);
	CHECK(now.files < files);
	CHECK(now.locks <= before.locks, "%d locks, then %d", before.locks, now.locks);
	CHECK(now.memory <= before.memory + 64 * 1024u * (unsigned)numbers + PER_WAY * (unsigned)ways,
	      "%zu bytes, then %zu", before.memory, now.memory);
}

static void compare(const char *where, struct both before, int n)
{
	struct both now = look_at_both();

	compare_one(where, "the client", before.client, now.client, n);
	compare_one(where, "the server", before.server, now.server, n);
}

/* ---- ends ---- */

static void listens(void)
{
	struct rdma_event_channel *ch = kit_cm_channel();
	struct rdma_cm_id *listener = kit_cm_listen(ch, &board->port);
	uint8_t timeout = ACK_TIMEOUT;

	KIT_CM(rdma_set_option(listener, RDMA_OPTION_ID, RDMA_OPTION_ID_ACK_TIMEOUT, &timeout, 1));
	atomic_store(&board->listening, 1);
	for (int left = 0; !atomic_load(&board->done) || left;) {
		struct kit_cm_event e;

		answer();
		if (!kit_cm_comes(ch, 0.01))
			continue;
		e = kit_cm_next(ch);
		CHECK(!e.status, "%s, %d", rdma_event_str(e.type), e.status);
		switch ((int)e.type) {
		case RDMA_CM_EVENT_CONNECT_REQUEST:
			left++;
			kit_cm_qp(e.id);
			kit_cm_accept(e.id);
			break;
		case RDMA_CM_EVENT_DISCONNECTED:
			KIT_CM(rdma_disconnect(e.id));
			kit_cm_end(e.id);
			left--;
			break;
		case RDMA_CM_EVENT_ESTABLISHED:
			break;
		default:
			CHECK(0, "%s", rdma_event_str(e.type));
		}
	}
	KIT_CM(rdma_destroy_id(listener));
	rdma_destroy_event_channel(ch);
}

static struct rdma_cm_id *prepare(struct rdma_event_channel *ch)
{
	struct rdma_cm_id *id = kit_cm_ready(ch, RDMA_PS_TCP, board->port);
	uint8_t timeout = ACK_TIMEOUT;

	KIT_CM(rdma_set_option(id, RDMA_OPTION_ID, RDMA_OPTION_ID_ACK_TIMEOUT, &timeout, 1));
	return id;
}

/* A connection that ends; with its TIMEWAIT, or without waiting for that. */
static void once(struct rdma_event_channel *ch, bool rest)
{
	struct rdma_cm_id *id = prepare(ch);

	kit_cm_connect(id);
	kit_cm_expect(ch, RDMA_CM_EVENT_ESTABLISHED, 0);
	KIT_CM(rdma_disconnect(id));
	kit_cm_expect(ch, RDMA_CM_EVENT_DISCONNECTED, 0);
	if (rest)
		kit_cm_expect(ch, RDMA_CM_EVENT_TIMEWAIT_EXIT, 0);
	kit_cm_end(id);
}

/* The numbers of all connections before are at rest no more when this one's is not. */
static void come_to_rest(struct rdma_event_channel *ch)
{
	once(ch, true);
	kit_nap(20);
}

static void one_after_another(struct rdma_event_channel *ch)
{
	struct both before;
	double t;

	for (int i = 0; i < in_a_row() / 10; i++)
		once(ch, false);
	come_to_rest(ch);
	before = look_at_both();
	t = kit_now();
	for (int i = 0; i < in_a_row(); i++)
		once(ch, false);
	printf("  %d in a row, %.0f a second\n", in_a_row(), in_a_row() / (kit_now() - t));
	come_to_rest(ch);
	compare("in a row", before, in_a_row());
}

/* All are asked for before the first answer is looked at, and all stand before the first one ends. */
static void crowd(struct rdma_event_channel *ch)
{
	int n = at_once();
	struct rdma_cm_id **ids = calloc((size_t)n, sizeof(*ids));
	double t = kit_now();

	CHECK(ids);
	for (int i = 0; i < n; i++)
		ids[i] = prepare(ch);
	for (int i = 0; i < n; i++)
		kit_cm_connect(ids[i]);
	for (int i = 0; i < n; i++)
		kit_cm_expect(ch, RDMA_CM_EVENT_ESTABLISHED, 0);
	for (int i = 0; i < n; i++)
		KIT_CM(rdma_disconnect(ids[i]));
	for (int i = 0; i < n;) { /* TIMEWAIT of the first may be over before the last one's answer comes */
		struct kit_cm_event e = kit_cm_next(ch);

		CHECK(e.type == RDMA_CM_EVENT_DISCONNECTED || e.type == RDMA_CM_EVENT_TIMEWAIT_EXIT, "%s",
		      rdma_event_str(e.type));
		i += e.type == RDMA_CM_EVENT_DISCONNECTED;
	}
	for (int i = 0; i < n; i++)
		kit_cm_end(ids[i]);
	printf("  %d at once, %.0f a second\n", n, n / (kit_now() - t));
	free(ids);
}

static void all_at_once(struct rdma_event_channel *ch)
{
	struct both before;

	crowd(ch);
	come_to_rest(ch);
	before = look_at_both();
	crowd(ch);
	come_to_rest(ch);
	compare("at once", before, at_once());
}

/* A port is free as soon as its id is gone. */
static void the_same_port(struct rdma_event_channel *ch)
{
	uint16_t port = 0;
	struct rdma_cm_id *id = kit_cm_listen(ch, &port);
	int locks;

	CHECK(kit_cm_port_locks() > 0);
	KIT_CM(rdma_destroy_id(id));
	locks = kit_cm_port_locks();
	for (int i = 0; i < in_a_row(); i++)
		KIT_CM(rdma_destroy_id(kit_cm_listen(ch, &port)));
	CHECK(kit_cm_port_locks() == locks);
}

int main(int argc, char **argv)
{
	struct rdma_event_channel *ch;
	struct rlimit few;
	pid_t server;

	alarm(600);
	setlinebuf(stdout);
	if (argc > 1 && !strcmp(argv[1], "hosts")) {
		if (!kit_hosts_can())
			return KIT_SKIP;
		kit_hosts_make(&hosts);
		files = FILES_BETWEEN;
	}
	few = (struct rlimit){(rlim_t)files, (rlim_t)files};
	CHECK(!setrlimit(RLIMIT_NOFILE, &few));
	board = kit_shared(sizeof *board);
	server = kit_fork();
	if (!server) {
		be_on(0);
		listens();
		CHECK(kit_descriptors() < files);
		exit(0);
	}
	kit_until(&board->listening, 1);
	be_on(1);
	ch = kit_cm_channel();
	one_after_another(ch);
	all_at_once(ch);
	if (files == FILES)
		the_same_port(ch); /* at an address of this host */
	rdma_destroy_event_channel(ch);
	atomic_store(&board->done, 1);
	CHECK(!kit_reap(server));
	return 0;
}
