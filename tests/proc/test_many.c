/* Many processes, each connected to each (and to itself): small messages in every direction, counted and
 * compared.  Then the same while some of them are killed: errors come to those who talk to the dead, on the
 * queue pairs that lead there, and to nobody else.
 *
 *     proc-many [PROCESSES [MESSAGES [KILLS [SEED]]]]     default 32 and 40, without and with 4 kills; in
 * make soak 64 and 1,000, and 10 runs with 9 kills */
#include "kit.h"

enum { MAX = 64, DEPTH = 16, BYTES = 64 };

struct board {
	_Atomic int opened, connected;
	_Atomic bool finished[MAX], dead[MAX]; /* dead: stored before it is killed */
	struct kit_card cards[MAX][MAX];       /* [from][to] */
};

static struct board *board;

static void write_text(uint8_t *p, int from, int to, int k)
{
	snprintf((char *)p, BYTES, "from %d to %d message %d", from, to, k);
}

/* One process's end of the talk with another. */
struct talk {
	int sent, acked, got;
	bool lost; /* the other one is dead, and this end has heard of it */
};

static bool over(const struct talk *t, int messages)
{
	return t->lost || (t->acked == messages && t->got == messages);
}

/* Takes in what is there; false: the other end is dead. */
static bool take(struct kit_end *e, struct talk *t, int me, int peer)
{
	struct ibv_wc wc[8];
	char want[BYTES];
	int n = ibv_poll_cq(e->cq, 8, wc);

	CHECK(n >= 0);
	for (int j = 0; j < n; j++) {
		if (wc[j].status != IBV_WC_SUCCESS) {
			CHECK(atomic_load(&board->dead[peer]), "%d to %d, which lives: %s", me, peer,
			      ibv_wc_status_str(wc[j].status));
			return false;
		}
		if (wc[j].opcode != IBV_WC_RECV) {
			t->acked++;
			continue;
		}
		write_text((uint8_t *)want, peer, me, t->got);
		CHECK(!strcmp((char *)e->buf + (size_t)(t->got % DEPTH) * BYTES, want));
		CHECK(!kit_recv(e, 0, (size_t)(t->got % DEPTH) * BYTES, BYTES));
		t->got++;
	}
	return true;
}

static void talk(struct kit_end *e, int me, int n, int messages)
{
	struct talk t[MAX] = {0};
	int open = n;

	while (open) {
		for (int i = 0; i < n; i++) {
			if (over(&t[i], messages))
				continue;
			while (t[i].sent < messages && t[i].sent - t[i].acked < DEPTH) {
				size_t at = (size_t)(DEPTH + t[i].sent % DEPTH) * BYTES;

				write_text(e[i].buf + at, me, i, t[i].sent);
				CHECK(!kit_post(&e[i], IBV_WR_SEND, 1, at, BYTES, NULL, 0));
				t[i].sent++;
			}
			t[i].lost = !take(&e[i], &t[i], me, i);
			open -= over(&t[i], messages);
		}
	}
}

/* Every process has had all it was to have, or is dead.  The engine answers for this one meanwhile. */
static void wait_for_all(int n)
{
	struct timespec ms = {0, 1000000};

	for (int i = 0; i < n; i++)
		for (int k = 0; !atomic_load(&board->finished[i]) && !atomic_load(&board->dead[i]); k++) {
			CHECK(k < 120000, "waited for process %d", i);
			nanosleep(&ms, NULL);
		}
}

static void still_well(struct kit_end *e, int me, int peer)
{
	struct ibv_qp_init_attr init;
	struct ibv_qp_attr a;

	CHECK(!ibv_query_qp(e->qp, &a, IBV_QP_STATE, &init));
	CHECK(a.qp_state == IBV_QPS_RTS || atomic_load(&board->dead[peer]), "%d to %d, which lives: state %d",
	      me, peer, a.qp_state);
}

static int child(int me, int n, int messages)
{
	static struct kit_end e[MAX];
	struct ibv_context *ctx = kit_open();
	struct ibv_pd *pd = ibv_alloc_pd(ctx);

	CHECK(pd);
	for (int i = 0; i < n; i++) {
		kit_end_open(&e[i], pd, DEPTH + 2, (size_t)2 * DEPTH * BYTES);
		for (int j = 0; j < DEPTH; j++)
			CHECK(!kit_recv(&e[i], 0, (size_t)j * BYTES, BYTES));
		board->cards[me][i] = e[i].card;
	}
	atomic_fetch_add(&board->opened, 1);
	kit_until(&board->opened, n);
	for (int i = 0; i < n; i++)
		kit_connect(&e[i], &board->cards[i][me]);
	atomic_fetch_add(&board->connected, 1);
	kit_until(&board->connected, n);
	talk(e, me, n, messages);
	for (int i = 0; i < n; i++) /* before anybody may close */
		still_well(&e[i], me, i);
	atomic_store(&board->finished[me], true);
	wait_for_all(n);
	for (int i = 0; i < n; i++)
		kit_end_close(&e[i]);
	CHECK(!ibv_dealloc_pd(pd));
	CHECK(!ibv_close_device(ctx));
	return 0;
}

static void run(int n, int messages, int kills)
{
	pid_t pids[MAX];
	int bad = 0, killed = 0;
	double began;

	board = kit_shared(sizeof *board);
	for (int i = 0; i < n; i++) {
		pids[i] = kit_fork();
		if (!pids[i])
			_exit(child(i, n, messages));
	}
	kit_until(&board->connected, n);
	began = kit_now();
	while (killed < kills) { /* at random instants of the talk, which takes some ms a process */
		double when = kit_now() + (rand() % 1000) * 2e-6 * n;
		int i = rand() % n;

		while (kit_now() < when)
			sched_yield();
		if (atomic_exchange(&board->dead[i], true))
			continue;
		kill(pids[i], SIGKILL);
		killed++;
	}
	for (int i = 0; i < n; i++)
		bad += kit_reap(pids[i]) != 0 && !board->dead[i];
	CHECK(!bad, "%d of %d processes failed", bad, n);
	munmap(board, sizeof *board);
	printf("%d processes, %d connections, %d messages each way, %d killed: %.1f s\n", n, n * n, messages,
	       killed, kit_now() - began);
	fflush(stdout);
}

int main(int argc, char **argv)
{
	bool soak = getenv("VERBENA_SOAK");
	int n = argc > 1 ? atoi(argv[1]) : soak ? MAX : 32;
	int messages = argc > 2 ? atoi(argv[2]) : soak ? 1000 : 40;
	unsigned seed = argc > 4 ? (unsigned)atoi(argv[4]) : (unsigned)getpid();

	CHECK(n >= 1 && n <= MAX);
	printf("seed %u\n", seed);
	srand(seed);
	if (argc > 3) {
		run(n, messages, atoi(argv[3]));
		return 0;
	}
	run(n, messages, 0);
	for (int k = 0; k < (soak ? 10 : 1); k++)
		run(n, messages, n / 7);
	return 0;
}
