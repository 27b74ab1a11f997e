/* Four processes talk, each with each: WRITE, READ, atomics, SEND, WRITE with immediate, regions registered
 * and deregistered meanwhile.  One of them is killed, at a random instant or at a random fault point
 * (base/fault.h), and another process takes its place.  The three others end every request in time, go on
 * among themselves, and talk to the newcomer.  Slot 0 is never killed: its descriptors and its memory stay as
 * they were.  Nothing is left behind.
 *
 *     faults-kill [ROUNDS [SEED]]      default 50; 1,000 in make soak */
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <poll.h>

#include "kit.h"

enum {
	SLOTS = 4,
	DEPTH = 16,
	CHUNK = 40000,			/* the longest request: three packets */
	SIZE = (2 * DEPTH + 1) * CHUNK, /* receives, requests, and what the peer writes to */
	TARGET = 2 * DEPTH * CHUNK,
	PATIENCE = 20, /* seconds */
	BEFORE = 90,   /* seconds: how long before a failure its cause may lie */
	ENOUGH = 30,   /* requests that a pair completes after a death */
};

#if defined(__SANITIZE_ADDRESS__)
#define SANITIZED 1 /* it keeps freed memory for a while */
#else
#define SANITIZED 0
#endif

/* A card is for one process in the peer's slot: the tag says for which, and of which. */
struct place {
	_Atomic uint64_t tag;
	struct kit_card card;
	_Atomic uint64_t ready; /* the same tag: the QP of the card takes packets */
	_Atomic uint32_t done;	/* requests that ended well, of the present pair of processes */
};

struct board {
	_Atomic uint32_t gen[SLOTS];	/* of the process in the slot; the parent writes */
	_Atomic uint32_t number[SLOTS]; /* a QPN of it */
	_Atomic bool dead[SLOTS];	/* and nobody has taken its place yet */
	_Atomic int stop;
	_Atomic int looks;
	_Atomic int fds, peak_kib;	   /* slot 0 */
	_Atomic(const char *) doing;	   /* what the parent is at, for who fails */
	_Atomic double since;		   /* and since when */
	_Atomic pid_t pid[SLOTS];	   /* the process in the slot, or the last one there */
	struct place places[SLOTS][SLOTS]; /* [of][for] */
};

static struct board *board;
static int me;
static uint64_t rng;

/* What a process has with the one in another slot. */
struct talk {
	struct kit_end e;
	uint32_t gen;		/* of the peer's process, 0: none yet */
	bool connected, failed; /* connected: this end is */
	struct kit_card peer;
	struct ibv_mr *extra[DEPTH]; /* a request's own region, deregistered when it ends */
	bool busy[DEPTH];
	int outstanding, fd; /* fd: of the region's file, if it has one */
	double ended;	     /* when the first error came */
	struct ibv_wc first; /* and which it was */
};

/* The parent says what it is at. */
static void doing(const char *what)
{
	atomic_store(&board->since, kit_now());
	atomic_store(&board->doing, what);
}

/* The letter that /proc shows for a process's state; '-': it shows none. */
static char state_of(pid_t pid)
{
	char path[64], line[512] = "", state = '-', *name_end;
	FILE *f;

	snprintf(path, sizeof path, "/proc/%d/stat", (int)pid);
	f = fopen(path, "re");
	if (!f)
		return state;
	if (fgets(line, sizeof line, f)) {
		name_end = strrchr(line, ')');
		if (name_end)
			sscanf(name_end, ") %c", &state);
	}
	fclose(f);
	return state;
}

/* What the parent is at and which state the kernel gives each process: with them a failure tells whether a
 * process was taken for dead that lived, or whether the machine held somebody up. */
static const char *scene(void)
{
	static char text[512];
	int n = snprintf(text, sizeof text, "the parent: %s, for %.3f s;", atomic_load(&board->doing),
			 kit_now() - atomic_load(&board->since));

	for (int i = 0; i < SLOTS; i++)
		n += snprintf(text + n, sizeof text - (size_t)n, " slot %d: process %d is %c%s,", i,
			      (int)board->pid[i], state_of(board->pid[i]),
			      atomic_load(&board->dead[i]) ? " (reaped)" : "");
	return text;
}

/* A process has to be in time here, if the machine is: where a CPU stood still, or a thread got none, nothing
 * can be told. */
#define IN_TIME(c, ...)                                              \
	do {                                                         \
		if (!(c)) {                                          \
			excuse(kit_stood_still(kit_now() - BEFORE)); \
			CHECK(c, __VA_ARGS__);                       \
		}                                                    \
	} while (0)

static void excuse(double still)
{
	if (still <= 0)
		return;
	printf("SKIP: a CPU of this machine did not run for %.1f s, or a thread got none, and what is late "
	       "is not "
	       "judged\n",
	       still);
	fflush(stdout);
	_exit(KIT_SKIP);
}

static uint64_t tag_of(uint32_t of, uint32_t to)
{
	return (uint64_t)of << 32 | to;
}

/* Peers can open what lies under this end's region. */
static void make_shareable(struct kit_end *e, struct ibv_pd *pd, int *fd)
{
	CHECK(!ibv_dereg_mr(e->mr));
	free(e->buf);
	e->buf = kit_mapped(SIZE, fd);
	e->mr = ibv_reg_mr(pd, e->buf, SIZE, KIT_ALL);
	CHECK(e->mr);
	e->card.addr = (uintptr_t)e->buf;
	e->card.rkey = e->mr->rkey;
}

static void begin(struct talk *t, struct ibv_pd *pd, struct ibv_comp_channel *ch, int peer, uint32_t gen)
{
	struct place *p = &board->places[me][peer];

	memset(t, 0, sizeof *t);
	t->gen = gen;
	kit_end_open_on(&t->e, pd, ch, 2 * DEPTH, SIZE);
	if (me & 2)
		make_shareable(&t->e, pd, &t->fd);
	for (int i = 0; i < DEPTH; i++)
		CHECK(!kit_recv(&t->e, 1000, (size_t)i * CHUNK, CHUNK));
	atomic_store(&p->tag, 0);
	atomic_store(&p->done, 0);
	p->card = t->e.card;
	atomic_store(&p->tag, tag_of(board->gen[me], gen));
	atomic_store(&board->number[me], t->e.card.qpn);
}

static void try_connect(struct talk *t, int peer)
{
	struct place *p = &board->places[peer][me];

	if (atomic_load(&p->tag) != tag_of(t->gen, board->gen[me]))
		return;
	t->peer = p->card;
	if (atomic_load(&p->tag) != tag_of(t->gen, board->gen[me]))
		return; /* its process was replaced while we looked */
	kit_connect(&t->e, &t->peer);
	t->connected = true;
	atomic_store(&board->places[me][peer].ready, tag_of(board->gen[me], t->gen));
}

static void take(struct talk *t, int peer, const struct ibv_wc *wc)
{
	bool receive = wc->wr_id == 1000;

	if (!receive) {
		CHECK(wc->wr_id < DEPTH && t->busy[wc->wr_id], "completion of nothing");
		t->busy[wc->wr_id] = false;
		t->outstanding--;
		if (t->extra[wc->wr_id])
			CHECK(!ibv_dereg_mr(t->extra[wc->wr_id]));
		t->extra[wc->wr_id] = NULL;
	}
	if (wc->status == IBV_WC_SUCCESS) {
		if (receive)
			CHECK(!kit_recv(&t->e, 1000, kit_below(&rng, DEPTH) * (size_t)CHUNK, CHUNK) ||
			      t->failed);
		else
			atomic_fetch_add(&board->places[me][peer].done, 1);
		return;
	}
	CHECK(wc->status == IBV_WC_RETRY_EXC_ERR || wc->status == IBV_WC_WR_FLUSH_ERR, "slot %d to %d: %s",
	      me, peer, ibv_wc_status_str(wc->status));
	if (!t->failed) {
		t->ended = kit_now();
		t->first = *wc;
	}
	t->failed = true;
}

static void post_one(struct talk *t, struct ibv_pd *pd)
{
	static const enum ibv_wr_opcode ops[] = {
	    IBV_WR_RDMA_WRITE,	       IBV_WR_RDMA_READ, IBV_WR_ATOMIC_FETCH_AND_ADD,
	    IBV_WR_ATOMIC_CMP_AND_SWP, IBV_WR_SEND,	 IBV_WR_RDMA_WRITE_WITH_IMM};
	enum ibv_wr_opcode op = ops[kit_below(&rng, sizeof ops / sizeof *ops)];
	bool atomic = op == IBV_WR_ATOMIC_FETCH_AND_ADD || op == IBV_WR_ATOMIC_CMP_AND_SWP;
	uint32_t len = atomic		    ? 8
		       : kit_below(&rng, 3) ? 1 + kit_below(&rng, 64)
					    : 1 + kit_below(&rng, CHUNK),
		 i = 0;
	struct ibv_mr *whole = t->e.mr;
	int err;

	while (t->busy[i])
		i++;
	if (!kit_below(&rng, 8)) {
		t->extra[i] = ibv_reg_mr(pd, t->e.buf + (size_t)(DEPTH + i) * CHUNK, CHUNK, KIT_ALL);
		CHECK(t->extra[i]);
		t->e.mr = t->extra[i];
	}
	err = kit_post(&t->e, op, i, (size_t)(DEPTH + i) * CHUNK, len, &t->peer, TARGET);
	t->e.mr = whole;
	CHECK(!err, "%s", strerror(err));
	t->busy[i] = true;
	t->outstanding++;
}

/* Everything that was posted has ended. */
static void end(struct talk *t, int peer)
{
	double until = kit_now() + PATIENCE;
	struct ibv_wc wc;

	while (t->outstanding) {
		if (ibv_poll_cq(t->e.cq, 1, &wc) == 1)
			take(t, peer, &wc);
		IN_TIME(kit_now() < until,
			"slot %d: %d requests to the dead process in slot %d do not end; %s", me,
			t->outstanding, peer, scene());
	}
	if (me & 2) {
		void *buf = t->e.buf;

		t->e.buf = NULL;
		kit_end_close(&t->e);
		munmap(buf, SIZE);
		close(t->fd);
	} else {
		kit_end_close(&t->e);
	}
}

/* One look at one peer; whether something happened. */
static bool turn(struct talk *t, struct ibv_pd *pd, struct ibv_comp_channel *ch, int peer)
{
	uint32_t gen = atomic_load(&board->gen[peer]);
	struct ibv_wc wc[8];
	int n;

	if (gen != t->gen) {
		if (t->gen)
			end(t, peer);
		begin(t, pd, ch, peer, gen);
		return true;
	}
	if (!t->connected)
		try_connect(t, peer);
	if (!t->connected)
		return false;
	n = ibv_poll_cq(t->e.cq, 8, wc);
	CHECK(n >= 0);
	for (int i = 0; i < n; i++)
		take(t, peer, &wc[i]);
	if (t->failed) /* it must be dead, then */
		IN_TIME(kit_now() < t->ended + PATIENCE || atomic_load(&board->dead[peer]),
			"slot %d: errors from slot %d, which lives: first %s of request %" PRIu64
			" (vendor_err 0x%x), %.3f s ago; %s",
			me, peer, ibv_wc_status_str(t->first.status), t->first.wr_id, t->first.vendor_err,
			kit_now() - t->ended, scene());
	else if (t->outstanding < DEPTH && kit_below(&rng, 2) &&
		 atomic_load(&board->places[peer][me].ready) == tag_of(t->gen, board->gen[me]))
		post_one(t, pd);
	return n;
}

/* Private memory: segments of others are not ours to count. */
static int rss_kib(void)
{
	FILE *f = fopen("/proc/self/status", "r");
	char line[256];
	int kib = 0;

	CHECK(f);
	while (fgets(line, sizeof line, f))
		sscanf(line, "RssAnon: %d", &kib);
	fclose(f);
	return kib;
}

static void drain_events(struct ibv_context *ctx)
{
	struct ibv_async_event ev;

	while (poll((struct pollfd[]){{.fd = ctx->async_fd, .events = POLLIN}}, 1, 0) == 1) {
		CHECK(!ibv_get_async_event(ctx, &ev));
		CHECK(ev.event_type == IBV_EVENT_QP_FATAL, "%s", ibv_event_type_str(ev.event_type));
		ibv_ack_async_event(&ev);
	}
}

/* Some sleep for events, some spin. */
static void doze(struct ibv_comp_channel *ch, struct talk *t)
{
	struct ibv_cq *cq;
	void *arg;

	for (int i = 0; i < SLOTS; i++)
		if (t[i].gen)
			CHECK(!ibv_req_notify_cq(t[i].e.cq, 0));
	if (poll((struct pollfd[]){{.fd = ch->fd, .events = POLLIN}}, 1, 1) == 1) {
		CHECK(!ibv_get_cq_event(ch, &cq, &arg));
		ibv_ack_cq_events(cq, 1);
	}
}

static void worker(const char *fault)
{
	static struct talk t[SLOTS];
	struct ibv_context *ctx;
	struct ibv_pd *pd;
	struct ibv_comp_channel *ch;
	double next_look = 0;

	if (fault)
		setenv("VERBENA_FAULT", fault, 1);
	ctx = kit_open();
	pd = ibv_alloc_pd(ctx);
	ch = ibv_create_comp_channel(ctx);
	CHECK(pd && ch);
	while (!atomic_load(&board->stop)) {
		bool any = false;

		for (int i = 0; i < SLOTS; i++)
			if (i != me)
				any |= turn(&t[i], pd, ch, i);
		drain_events(ctx);
		if (!any && me % 2)
			doze(ch, t);
		if (!me && kit_now() > next_look) {
			next_look = kit_now() + 0.02;
			atomic_store(&board->fds, kit_descriptors());
			atomic_store(&board->peak_kib, rss_kib());
			atomic_fetch_add(&board->looks, 1);
		}
	}
	exit(0);
}

static pid_t pids[SLOTS];

static void start(int slot, const char *fault)
{
	doing("starts a process");
	atomic_store(&board->number[slot], 0);
	atomic_fetch_add(&board->gen[slot], 1);
	atomic_store(&board->dead[slot], false);
	pids[slot] = kit_fork();
	if (pids[slot]) {
		atomic_store(&board->pid[slot], pids[slot]);
		return;
	}
	me = slot;
	rng += (uint64_t)getpid() * 0x9e3779b97f4a7c15ull;
	alarm(1800);
	worker(fault);
}

/* A worker that ends by itself has found something wrong, if not with the machine. */
static void judge(int status)
{
	if (WIFEXITED(status) && WEXITSTATUS(status) == KIT_SKIP)
		exit(KIT_SKIP);
}

static void all_well(int but)
{
	int status = 0;

	for (int i = 0; i < SLOTS; i++) {
		bool lives = i == but || waitpid(pids[i], &status, WNOHANG) == 0;

		judge(status);
		CHECK(lives, "slot %d ended: 0x%x", i, status);
	}
}

/* Every pair, but those of `but`, gets through that many requests more. */
static void all_talk(int but)
{
	double until = kit_now() + 3 * PATIENCE;
	uint32_t from[SLOTS][SLOTS];

	doing("waits for all to talk");
	for (int i = 0; i < SLOTS; i++)
		for (int j = 0; j < SLOTS; j++)
			from[i][j] = atomic_load(&board->places[i][j].done);
	for (int i = 0; i < SLOTS; i++) {
		for (int j = 0; j < SLOTS; j++) {
			struct place *p = &board->places[i][j];

			if (i == j || i == but || j == but)
				continue;
			while (atomic_load(&p->tag) != tag_of(board->gen[i], board->gen[j]) ||
			       atomic_load(&p->done) - from[i][j] < ENOUGH) {
				/* a pair that begins anew counts from 0 */
				if (atomic_load(&p->done) < from[i][j])
					from[i][j] = 0;
				all_well(but);
				IN_TIME(kit_now() < until, "%d to %d: no progress (processes %d and %d)", i,
					j, pids[i], pids[j]);
				kit_nap_us(200);
			}
		}
	}
}

/* The process in a slot dies, in one way or another. */
static void death(int slot, bool by_itself)
{
	double until = kit_now() + 1.5;
	uint32_t qpn;
	int status;

	doing("waits for a death");
	if (!by_itself)
		kit_nap_us(kit_below(&rng, kit_below(&rng, 2) ? 2000 : 30000));
	while (by_itself && !waitpid(pids[slot], &status, WNOHANG | WNOWAIT) && kit_now() < until)
		kit_nap_us(500);
	doing("kills");
	kill(pids[slot], SIGKILL);
	doing("reaps");
	status = kit_reap(pids[slot]);
	atomic_store(&board->dead[slot], true);
	judge(status);
	CHECK(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL, "slot %d: 0x%x", slot, status);
	qpn = atomic_load(&board->number[slot]);
	CHECK(!qpn || !kit_bound(qpn), "the dead one's name is still bound");
}

/* It has looked at itself since now. */
static void look_at_slot_0(void)
{
	int looks = atomic_load(&board->looks);

	kit_until(&board->looks, looks + 2);
}

int main(int argc, char **argv)
{
	int rounds = argc > 1 ? atoi(argv[1]) : getenv("VERBENA_SOAK") ? 1000 : 50;
	int fds = 0, kib = 0, at_points = 0, shm = kit_files("/dev/shm"), tmp = kit_files("/tmp");
	bool armed[SLOTS] = {false};

	rng = argc > 2 ? strtoull(argv[2], NULL, 0) : (uint64_t)getpid() << 20 ^ (uint64_t)time(NULL);
	printf("kill: seed %" PRIu64 "\n", rng);
	fflush(stdout);
	rng |= 1;
	board = kit_shared(sizeof *board);
	kit_watch_cpus();
	for (int i = 0; i < SLOTS; i++)
		start(i, NULL);
	all_talk(-1);
	look_at_slot_0();
	fds = atomic_load(&board->fds);
	kib = atomic_load(&board->peak_kib);
	for (int r = 0; r < rounds; r++) {
		int slot = 1 + (int)kit_below(&rng, SLOTS - 1);
		char fault[32];

		for (int i = 1; i < SLOTS; i++)
			if (armed[i])
				slot = i; /* it may be dead already */
		death(slot, armed[slot]);
		at_points += armed[slot];
		if (!armed[slot] && kit_below(&rng, 4) == 0)
			all_talk(slot); /* before anybody takes its place */
		armed[slot] = kit_below(&rng, 2);
		snprintf(fault, sizeof fault, "kill:%u",
			 1 + kit_below(&rng, 1u << (3 + kit_below(&rng, 13))));
		start(slot, armed[slot] ? fault : NULL);
		if (!armed[slot] && kit_below(&rng, 4))
			all_talk(-1);
		else if (!armed[slot])
			all_well(slot);
	}
	for (int i = 1; i < SLOTS; i++) {
		if (armed[i]) {
			death(i, true);
			start(i, NULL);
		}
	}
	all_talk(-1);
	look_at_slot_0();
	CHECK(atomic_load(&board->fds) <= fds + 4, "slot 0: %d descriptors, later %d", fds,
	      atomic_load(&board->fds));
	CHECK(SANITIZED || atomic_load(&board->peak_kib) <= kib + 16384, "slot 0: %d KiB, later %d", kib,
	      atomic_load(&board->peak_kib));
	atomic_store(&board->stop, 1);
	for (int i = 0; i < SLOTS; i++) {
		int status = kit_reap(pids[i]);

		judge(status);
		CHECK(status == 0, "slot %d: 0x%x", i, status);
		CHECK(!kit_bound(board->number[i]), "a name is still bound");
	}
	/* other tests may have some for a while */
	for (double until = kit_now() + PATIENCE; kit_files("/dev/shm") > shm || kit_files("/tmp") > tmp;
	     kit_nap_us(100000))
		CHECK(kit_now() < until, "files were left behind");
	printf("%d deaths, %d of them at fault points; slot 0: %d then %d descriptors, %d then %d KiB\n",
	       rounds, at_points, fds, board->fds, kib, board->peak_kib);
	return 0;
}
