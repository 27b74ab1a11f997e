/* What RC over this library costs: one round, a line per figure.  An ordinary verbs program: two processes,
 * forked before either opens the device, on two CPUs.  The client measures.
 *
 * send_lat         ns, half a round trip of 8 B SENDs, both sides polling
 * send_rate        8 B SENDs a second in one direction, posted one by one, at most 256 outstanding
 * send_rate_list   the same, posted in lists of 32
 * OP_bw_N          bytes a second of SENDs, WRITEs, READs of N bytes, several outstanding
 * fadd_lat cas_lat write_lat   ns, from the post to the completion, one at a time, target polling
 * event_lat        ns, half a round trip, both sides blocking in ibv_get_cq_event
 * reg_N            ns, registering and deregistering N bytes that are present
 * lookup_N         ns, half a round trip of 8 B SENDs that are gathered from any one of N regions (--lookup)
 */
#include <signal.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>

#include "vbench.h"

#define LAT_ITERS   50000u
#define EVENT_ITERS 5000u
#define WARM_ITERS  2000u
#define RATE_ITERS  2000000u
#define WINDOW	    256u

static void send_lat(struct side *s)
{
	unsigned owed = 0, spent = 0;
	double t;

	side_receive(s, 2 * LIST, 8);
	side_meet(s);
	t = now();
	for (unsigned i = 0; i < LAT_ITERS; i++) {
		bool signal = i % LIST == LIST - 1;

		if (!s->client)
			side_wait(s->rcq, 1);
		side_post(s, IBV_WR_SEND, 8, IBV_SEND_INLINE | (signal ? IBV_SEND_SIGNALED : 0));
		owed += signal;
		if (s->client)
			side_wait(s->rcq, 1);
		if (++spent == LIST) {
			side_receive(s, LIST, 8);
			spent = 0;
			owed -= side_poll(s->scq, owed);
		}
	}
	if (s->client)
		figure("send_lat", (now() - t) / LAT_ITERS / 2);
	side_wait(s->scq, owed);
}

/* The receiving half of rate and bandwidth: takes n messages in and gives the receives back in lists. */
static void take(struct side *s, unsigned n, uint32_t size)
{
	unsigned spent = 0;

	while (n) {
		unsigned k = side_poll(s->rcq, n);

		n -= k;
		spent += k;
		if (spent >= LIST) {
			side_receive(s, spent, size);
			spent = 0;
		}
	}
}

static void send_rate(struct side *s)
{
	unsigned out = 0;
	double t;

	if (!s->client)
		side_receive(s, DEPTH - LIST, 8);
	side_meet(s);
	if (!s->client) {
		take(s, RATE_ITERS, 8);
		return;
	}
	t = now();
	for (unsigned i = 0; i < RATE_ITERS; i++) {
		bool signal = i % LIST == LIST - 1;

		side_post(s, IBV_WR_SEND, 8, IBV_SEND_INLINE | (signal ? IBV_SEND_SIGNALED : 0));
		out++;
		while (out >= WINDOW)
			out -= LIST * side_poll(s->scq, 2);
	}
	side_wait(s->scq, out / LIST);
	figure("send_rate", RATE_ITERS * 1e9 / (now() - t));
}

static void send_rate_list(struct side *s)
{
	struct ibv_sge sge = {(uintptr_t)s->buf, 8, s->mr->lkey};
	struct ibv_send_wr wr[LIST], *bad;
	unsigned out = 0;
	double t;

	if (!s->client)
		side_receive(s, DEPTH - LIST, 8);
	for (unsigned i = 0; i < LIST; i++)
		wr[i] = (struct ibv_send_wr){.next = i + 1 < LIST ? &wr[i + 1] : NULL,
					     .sg_list = &sge,
					     .num_sge = 1,
					     .opcode = IBV_WR_SEND,
					     .send_flags =
						 IBV_SEND_INLINE | (i + 1 < LIST ? 0 : IBV_SEND_SIGNALED)};
	side_meet(s);
	if (!s->client) {
		take(s, RATE_ITERS, 8);
		return;
	}
	t = now();
	for (unsigned i = 0; i < RATE_ITERS / LIST; i++) {
		errno = ibv_post_send(s->qp, wr, &bad);
		if (errno)
			die("ibv_post_send");
		out++;
		while (out >= WINDOW / LIST)
			out -= side_poll(s->scq, 2);
	}
	side_wait(s->scq, out);
	figure("send_rate_list", RATE_ITERS * 1e9 / (now() - t));
}

/* After a one-sided test the target may stop polling: an empty SEND tells it. */
static void target(struct side *s)
{
	side_receive(s, 1, 8);
	side_meet(s);
	side_wait(s->rcq, 1);
}

static void release_target(struct side *s)
{
	side_post(s, IBV_WR_SEND, 0, IBV_SEND_SIGNALED);
	side_wait(s->scq, 1);
}

static void bandwidth(struct side *s, enum ibv_wr_opcode op, const char *name, uint32_t size)
{
	unsigned window = size > 65536 ? 4 : 16, n = (1u << 30) / size / 2, out = 0;
	char line[32];
	double t;

	if (!s->client) {
		if (op != IBV_WR_SEND) {
			target(s);
			return;
		}
		side_receive(s, DEPTH - LIST, size);
		side_meet(s);
		take(s, n, size);
		return;
	}
	side_meet(s);
	t = now();
	for (unsigned i = 0; i < n; i++) {
		side_post(s, op, size, IBV_SEND_SIGNALED);
		out++;
		while (out >= window)
			out -= side_poll(s->scq, out);
	}
	side_wait(s->scq, out);
	snprintf(line, sizeof(line), "%s_bw_%u", name, size);
	figure(line, (double)size * n * 1e9 / (now() - t));
	if (op != IBV_WR_SEND)
		release_target(s);
}

static void one_sided_lat(struct side *s, enum ibv_wr_opcode op, const char *name)
{
	double t;

	if (!s->client) {
		target(s);
		return;
	}
	side_meet(s);
	t = now();
	for (unsigned i = 0; i < LAT_ITERS; i++) {
		side_post(s, op, 8, IBV_SEND_SIGNALED);
		side_wait(s->scq, 1);
	}
	figure(name, (now() - t) / LAT_ITERS);
	release_target(s);
}

/* Blocks until the receive CQ has a completion, and takes it. */
static void sleep_for_one(struct side *s)
{
	struct ibv_cq *cq;
	void *context;

	if (ibv_get_cq_event(s->channel, &cq, &context))
		die("ibv_get_cq_event");
	ibv_ack_cq_events(cq, 1);
	if (ibv_req_notify_cq(cq, 0))
		die("ibv_req_notify_cq");
	side_wait(cq, 1);
}

static void event_lat(struct side *s)
{
	unsigned owed = 0;
	double t;

	side_receive(s, 2 * LIST, 8);
	if (ibv_req_notify_cq(s->rcq, 0))
		die("ibv_req_notify_cq");
	side_meet(s);
	t = now();
	for (unsigned i = 0; i < EVENT_ITERS; i++) {
		bool signal = i % LIST == LIST - 1;

		if (!s->client)
			sleep_for_one(s);
		side_post(s, IBV_WR_SEND, 8, IBV_SEND_INLINE | (signal ? IBV_SEND_SIGNALED : 0));
		owed += signal;
		if (s->client)
			sleep_for_one(s);
		side_receive(s, 1, 8);
		owed -= side_poll(s->scq, owed);
	}
	if (s->client)
		figure("event_lat", (now() - t) / EVENT_ITERS / 2);
	side_wait(s->scq, owed);
}

static void registration(struct side *s, size_t n)
{
	char *a = mmap(NULL, n, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	unsigned count = 0;
	char name[32];
	double t;

	if (a == MAP_FAILED)
		die("mmap");
	memset(a, 1, n);
	t = now();
	while (count < 3 || (now() - t < 10e6 && count < 20000)) {
		struct ibv_mr *mr = ibv_reg_mr(s->pd, a, n, IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE);

		if (!mr || ibv_dereg_mr(mr))
			die("ibv_reg_mr");
		count++;
	}
	snprintf(name, sizeof(name), "reg_%zu", n);
	figure(name, (now() - t) / count);
	munmap(a, n);
}

/* SENDs gathered from one of n regions, chosen by a fixed walk.  The program's own part is a sequence of keys
 * laid out in order, so that what is measured is the library's way from a key to its region. */
static void lookup(struct side *s, unsigned n)
{
	struct ibv_mr **mr = calloc(n, sizeof(struct ibv_mr *)), *mine = s->mr, any = *mine;
	uint32_t *walk = calloc(LAT_ITERS, sizeof(uint32_t));
	unsigned owed = 0, spent = 0;
	char name[32];
	double t;

	if (!mr || !walk)
		die("calloc");
	for (unsigned i = 0; i < n; i++) {
		mr[i] = ibv_reg_mr(s->pd, s->buf, 4096, IBV_ACCESS_LOCAL_WRITE);
		if (!mr[i])
			die("ibv_reg_mr");
	}
	for (uint64_t i = 0; i < LAT_ITERS; i++)
		walk[i] = mr[i * 381713u % n]->lkey;
	side_receive(s, 2 * LIST, 8);
	side_meet(s);
	t = now();
	for (unsigned i = 0; i < LAT_ITERS; i++) {
		bool signal = i % LIST == LIST - 1;

		if (!s->client)
			side_wait(s->rcq, 1);
		any.lkey = walk[i];
		s->mr = &any;
		side_post(s, IBV_WR_SEND, 8, signal ? IBV_SEND_SIGNALED : 0);
		s->mr = mine;
		owed += signal;
		if (s->client)
			side_wait(s->rcq, 1);
		if (++spent == LIST) {
			side_receive(s, LIST, 8);
			spent = 0;
			owed -= side_poll(s->scq, owed);
		}
	}
	if (s->client) {
		snprintf(name, sizeof(name), "lookup_%u", n);
		figure(name, (now() - t) / LAT_ITERS / 2);
	}
	side_wait(s->scq, owed);
	for (unsigned i = 0; i < n; i++)
		if (ibv_dereg_mr(mr[i]))
			die("ibv_dereg_mr");
	free(walk);
	free(mr);
}

/* The first packet makes contact, and memory is backed when it is first used: neither is what a test
 * measures. */
static void warm(struct side *s)
{
	if (!s->client)
		side_receive(s, 1, 8);
	side_meet(s);
	for (unsigned i = 0; i < WARM_ITERS; i++) {
		if (s->client)
			side_receive(s, 1, 8);
		else
			side_wait(s->rcq, 1);
		if (!s->client && i + 1 < WARM_ITERS)
			side_receive(s, 1, 8);
		side_post(s, IBV_WR_SEND, 8, IBV_SEND_SIGNALED);
		if (s->client)
			side_wait(s->rcq, 1);
		side_wait(s->scq, 1);
	}
}

static void fresh(struct side *s, void (*test)(struct side *)) /* each test begins with empty queues */
{
	side_open(s);
	pin(s->client ? 0 : 1);
	warm(s);
	test(s);
	unpin();
	side_close(s);
}

static void one_sided(struct side *s)
{
	one_sided_lat(s, IBV_WR_RDMA_WRITE, "write_lat");
	one_sided_lat(s, IBV_WR_ATOMIC_FETCH_AND_ADD, "fadd_lat");
	one_sided_lat(s, IBV_WR_ATOMIC_CMP_AND_SWP, "cas_lat");
	for (uint32_t size = 65536; size <= BUFFER; size *= 16) {
		bandwidth(s, IBV_WR_RDMA_WRITE, "write", size);
		bandwidth(s, IBV_WR_RDMA_READ, "read", size);
	}
}

static void send_64k(struct side *s)
{
	bandwidth(s, IBV_WR_SEND, "send", 65536);
}

static void send_1m(struct side *s)
{
	bandwidth(s, IBV_WR_SEND, "send", BUFFER);
}

static void registrations(struct side *s)
{
	for (size_t n = 4096; s->client && n <= 256u << 20; n *= 16)
		registration(s, n);
}

static void lookup_1(struct side *s)
{
	lookup(s, 1);
}

static void lookup_1m(struct side *s)
{
	lookup(s, 1000000);
}

static const struct {
	const char *name;
	void (*run)(struct side *);
} tests[] = {
    {"send_lat", send_lat},	   {"send_rate", send_rate},	    {"send_rate_list", send_rate_list},
    {"one_sided", one_sided},	   {"send_64k", send_64k},	    {"send_1m", send_1m},
    {"event_lat", event_lat},	   {"registration", registrations}, {"lookup_1", lookup_1},
    {"lookup_1000000", lookup_1m},
};

/* vbench TEST...: runs these; without one, all but the lookups. */
int main(int argc, char **argv)
{
	int sock[2], status;
	struct side s = {0};
	pid_t peer;

	if (socketpair(AF_UNIX, SOCK_STREAM, 0, sock))
		die("socketpair");
	peer = fork();
	if (peer < 0)
		die("fork");
	if (!peer)
		prctl(PR_SET_PDEATHSIG, SIGKILL);
	s.client = peer != 0;
	s.sock = sock[s.client];
	close(sock[!s.client]);
	for (size_t i = 0; i < sizeof(tests) / sizeof(tests[0]); i++) {
		bool wanted = argc < 2 && strncmp(tests[i].name, "lookup", 6);

		for (int k = 1; k < argc; k++)
			wanted |= !strcmp(argv[k], tests[i].name);
		if (wanted)
			fresh(&s, tests[i].run);
	}
	if (!s.client)
		return 0;
	return waitpid(peer, &status, 0) == peer && status == 0 ? 0 : 1;
}
