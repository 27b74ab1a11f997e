/* What RC over this library costs: one round, a line per figure.  An ordinary verbs program: two processes,
 * forked before either opens the device, on two CPUs.  The client measures.
 *
 *     vbench direct|free|bound|ring|lookup|types|threads|computing [TEST...]
 *     vbench registration|quiet|peers
 *
 * Two-sided (direct):
 *   send_lat         ns, half a round trip of 8 B SENDs, both sides polling
 *   send_rate        8 B SENDs a second in one direction, posted one by one, at most 256 outstanding
 *   send_rate_list   the same, posted in lists of 32
 *   send_bw_N        bytes a second, several outstanding
 *   event_lat        ns, half a round trip, both sides blocking in ibv_get_cq_event
 *   event_rate       8 B SENDs a second to a receiver that blocks in ibv_get_cq_event
 *   poll_lat         ns, the same, blocking in poll(2) on the channel's descriptor
 *
 *   lat_HOW_WHAT     ns, half a round trip of 8 B SENDs, each timed by itself.  HOW: inline or region; WHAT:
 *                    median, avg, p99, p999.  In group free nothing is bound to a CPU; in group bound each
 *                    process is, its engine too; elsewhere the threads of this program are.
 *
 *   types_TYPE       ns, the same of each type of queue pair, the median; and of RC by the extended calls
 *
 *   threads_rate_N   8 B SENDs a second of N threads a side, a QP each, on two CPUs
 *   threads_write_rate_N, threads_write_bw_N, threads_read_bw_N   8 B WRITEs a second, and bytes a second of
 *                    64 KiB, of N threads, a QP each, to memory that peers can map
 *
 * With quiet peers:
 *
 *   quiet_poll_N     ns, a poll that finds nothing, with N of them and one that plays ping-pong
 *   quiet_lat_N      ns, half a round trip with that one
 *   quiet_first      ns, from the post of a peer that was quiet until the message is polled
 *   quiet_busy       ns, the same of its later messages
 *
 * Of datagrams:
 *
 *   peers_send_N     ns, a post of 8 B, and its completion, by a queue pair that talks to N processes, which
 *                    sleep, each in its turn
 *
 * With a target that computes, see computing.c:
 *
 *   computing_WHAT_HOW_TIMEOUT     ns, the longest of some; and their median, as ..._median
 *
 * One-sided; KIND is private or shared (memory; the target asleep in a read), polled (private memory, the
 * target polling all the time), or ring (the same without direct placement):
 *
 *   KIND_OP_8        ns, write, read, fadd, cas: from the post to the completion, one at a time
 *   KIND_OP_8_list   ns for each of 16 that are posted in one list, until the last one's completion
 *   KIND_OP_bw_N     bytes a second, several outstanding
 *   KIND_pingpong    ns, half a round trip of 8 B WRITEs, both sides looking at their memory
 *
 * Memory:
 *
 *   populate_N       ns, MADV_POPULATE_WRITE over N bytes that are present
 *   reg_N reg16_N    ns, registering and deregistering them, with no peer and with 16 connected ones
 *   odp_N            ns, the same on demand
 *   self_write       ns, WRITE of 8 B of a QP to itself, and (_revoking) while a thread registers and
 *                    deregisters
 *   lookup_N         ns, half a round trip of 8 B SENDs that are gathered from any one of N regions
 */
#include <signal.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>

#include "vbench.h"

static const struct test {
	const char *group, *name;
	void (*run)(struct side *);
	bool shared;
} tests[] = {
    {"direct", "send_lat", send_lat, false},
    {"direct", "send_rate", send_rate, false},
    {"direct", "send_rate_list", send_rate_list, false},
    {"direct", "send_64k", send_64k, false},
    {"direct", "send_1m", send_1m, false},
    {"direct", "event_lat", event_lat, false},
    {"direct", "event_rate", event_rate, false},
    {"direct", "poll_lat", poll_lat, false},
    {"direct", "private", one_sided, false},
    {"direct", "private_pingpong", write_pingpong, false},
    {"direct", "polled", writes_polled, false},
    {"direct", "shared", one_sided, true},
    {"direct", "shared_pingpong", write_pingpong, true},
    {"free", "lat_inline", lat_inline, false},
    {"free", "lat_region", lat_region, false},
    {"bound", "lat_inline", lat_inline, false},
    {"bound", "lat_region", lat_region, false},
    {"types", "types", types, false},
    {"threads", "threads", threads, false},
    {"threads", "threads_place", threads_place, true},
    {"computing", "computing", computing, false},
    {"ring", "ring", one_sided, false},
    {"ring", "ring_pingpong", write_pingpong, false},
    {"lookup", "lookup_1", lookup_1, false},
    {"lookup", "lookup_1000", lookup_1k, false},
    {"lookup", "lookup_1000000", lookup_1m, false},
};

/* Which CPUs are used: by the whole process, before it opens the device; then by this thread. */
static void place_process(const struct side *s, const struct test *t)
{
	if (!strcmp(t->group, "bound"))
		pin(s->client ? 0 : 1);
	if (!strcmp(t->group, "threads"))
		confine(0, 2);
}

static void place_thread(const struct side *s, const struct test *t)
{
	if (strcmp(t->group, "free") != 0 && strcmp(t->group, "threads") != 0)
		pin(s->client ? 0 : 1);
}

static void fresh(struct side *s, const struct test *t) /* each test begins with empty queues */
{
	s->shared = t->shared;
	place_process(s, t);
	side_open(s);
	place_thread(s, t);
	side_warm(s);
	t->run(s);
	unpin();
	side_close(s);
}

static bool wanted(const struct test *t, int argc, char **argv)
{
	bool any = argc == 2;

	for (int i = 2; i < argc; i++)
		any |= !strcmp(t->name, argv[i]);
	return any && !strcmp(t->group, argv[1]);
}

int main(int argc, char **argv)
{
	int sock[2], status;
	struct side s = {0};
	pid_t peer;

	if (argc < 2) {
		fprintf(stderr, "usage: vbench GROUP [TEST...]; its head names them\n");
		return 2;
	}
	if (!strcmp(argv[1], "registration")) {
		registrations();
		return 0;
	}
	if (!strcmp(argv[1], "quiet")) {
		quiet_peers();
		return 0;
	}
	if (!strcmp(argv[1], "peers")) {
		peers();
		return 0;
	}
	s.ring = !strcmp(argv[1], "ring") || !strcmp(argv[1], "computing");
	if (s.ring)
		setenv("VERBENA_DIRECT", "off", 1);
	if (socketpair(AF_UNIX, SOCK_STREAM, 0, sock))
		die("socketpair");
	s.board = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	if (s.board == MAP_FAILED)
		die("mmap");
	peer = fork();
	if (peer < 0)
		die("fork");
	if (!peer)
		prctl(PR_SET_PDEATHSIG, SIGKILL);
	s.client = peer != 0;
	s.sock = sock[s.client];
	close(sock[!s.client]);
	for (size_t i = 0; i < sizeof(tests) / sizeof(tests[0]); i++)
		if (wanted(&tests[i], argc, argv))
			fresh(&s, &tests[i]);
	if (!s.client)
		return 0;
	return waitpid(peer, &status, 0) == peer && status == 0 ? 0 : 1;
}
