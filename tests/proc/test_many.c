/* Many processes, each connected to each (and to itself): small messages in every direction, counted and
 * compared.
 *
 *     proc-many [PROCESSES [MESSAGES]]     default 32 and 40, in make soak 64 and 1,000 */
#include "kit.h"

enum { MAX = 64, DEPTH = 16, BYTES = 64 };

struct board {
	_Atomic int opened, connected, finished;
	struct kit_card cards[MAX][MAX]; /* [from][to] */
};

static struct board *board;

static void fill(uint8_t *p, int from, int to, int k)
{
	snprintf((char *)p, BYTES, "from %d to %d message %d", from, to, k);
}

static void talk(struct kit_end *e, int me, int n, int messages)
{
	int sent[MAX] = {0}, acked[MAX] = {0}, got[MAX] = {0}, open = 2 * n;
	struct ibv_wc wc[8];
	char want[BYTES];
	int k;

	while (open) {
		for (int i = 0; i < n; i++) {
			while (sent[i] < messages && sent[i] - acked[i] < DEPTH) {
				size_t at = (size_t)(DEPTH + sent[i] % DEPTH) * BYTES;

				fill(e[i].buf + at, me, i, sent[i]);
				CHECK(!kit_post(&e[i], IBV_WR_SEND, 1, at, BYTES, NULL, 0));
				sent[i]++;
			}
			k = ibv_poll_cq(e[i].cq, 8, wc);
			CHECK(k >= 0);
			for (int j = 0; j < k; j++) {
				CHECK(wc[j].status == IBV_WC_SUCCESS, "%d to %d: %s", me, i,
				      ibv_wc_status_str(wc[j].status));
				if (wc[j].opcode != IBV_WC_RECV) {
					open -= ++acked[i] == messages;
					continue;
				}
				fill((uint8_t *)want, i, me, got[i]);
				CHECK(!strcmp((char *)e[i].buf + (size_t)(got[i] % DEPTH) * BYTES, want));
				CHECK(!kit_recv(&e[i], 0, (size_t)(got[i] % DEPTH) * BYTES, BYTES));
				open -= ++got[i] == messages;
			}
		}
	}
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
	atomic_fetch_add(&board->finished, 1);
	kit_until(&board->finished, n); /* the engine answers for us meanwhile */
	for (int i = 0; i < n; i++)
		kit_end_close(&e[i]);
	CHECK(!ibv_dealloc_pd(pd));
	CHECK(!ibv_close_device(ctx));
	return 0;
}

int main(int argc, char **argv)
{
	int n = argc > 1		 ? atoi(argv[1])
		: getenv("VERBENA_SOAK") ? MAX
					 : 32,
	    messages = argc > 2			? atoi(argv[2])
		       : getenv("VERBENA_SOAK") ? 1000
						: 40,
	    bad = 0;
	pid_t pids[MAX];

	CHECK(n >= 1 && n <= MAX);
	board = kit_shared(sizeof *board);
	for (int i = 0; i < n; i++) {
		pids[i] = kit_fork();
		if (!pids[i])
			_exit(child(i, n, messages));
	}
	for (int i = 0; i < n; i++)
		bad += kit_reap(pids[i]) != 0;
	CHECK(!bad, "%d of %d processes failed", bad, n);
	printf("%d processes, %d connections, %d messages each way\n", n, n * n, messages);
	return 0;
}
