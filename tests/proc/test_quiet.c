/* Peers that are connected and quiet.  Their rings become cold, so that a poll does not look at them one by
 * one, and the first message of each is there at the next poll all the same: it leaves a hint.  Hints are in
 * memory that any peer may write: where they are lost, the engine's look or the bell brings the message.
 *
 *     proc-quiet [PEERS]      default 24; 300 in make soak */
#include <errno.h>
#include <semaphore.h>

#include "hca/hca.h"
#include "host/private.h"
#include "kit.h"
#include "verbs/verbs.h"
#include "wire/shm.h"

enum { MAX = 500, BYTES = 64 };

/* What becomes of hints, and what the receiver does meanwhile; or the sender stops, and rings nobody. */
enum way { HINTS, NO_HINTS, NO_HINTS_ASLEEP, NO_HINTS_STOPPED };

struct board {
	_Atomic int opened, met, turn, go, sent, over;
	sem_t next[MAX]; /* that peer goes on: it meets the receiver, has its turn, ends */
	struct kit_card mine[MAX], theirs[MAX];
};
static struct board *board;

static struct vb_set nowhere;

/* What this process leaves for others is lost from now on, as if one of them took all of it away at once. */
static void lose_hints(struct vb_adapter *a)
{
	for (uint32_t i = 1; i < vb_peer_count(a); i++) {
		struct vb_peer *peer = vb_peer_at(a, i);

		for (uint32_t k = 0; k < peer->nlanes && peer->lanes[k].out; k++)
			atomic_store(&((struct vb_shm *)peer->lanes[k].out)->peer_hints, &nowhere);
	}
}

static void send_one(struct kit_end *e)
{
	CHECK(!kit_post(e, IBV_WR_SEND, 1, 0, 8, NULL, 0));
}

static void call(int i)
{
	CHECK(!sem_post(&board->next[i]));
}

static void until_called(int i)
{
	while (sem_wait(&board->next[i]))
		CHECK(errno == EINTR, "%s", strerror(errno));
}

static int peer(int i, enum way way)
{
	struct ibv_context *ctx = kit_open();
	struct ibv_pd *pd = ibv_alloc_pd(ctx);
	struct kit_end e;

	kit_end_open(&e, pd, 4, BYTES);
	board->theirs[i] = e.card;
	atomic_fetch_add(&board->opened, 1);
	/* One by one: hundreds that poll at once would leave none of them the time that contact takes. */
	until_called(i);
	kit_connect(&e, &board->mine[i]);
	send_one(&e);
	CHECK(kit_wait(&e, 30).status == IBV_WC_SUCCESS);
	if (way != HINTS)
		lose_hints(vb_context(ctx)->adapter);
	atomic_fetch_add(&board->met, 1);
	until_called(i);
	atomic_store(&board->turn, i + 1);
	kit_reach(&board->go, i + 1);
	send_one(&e);
	if (way == NO_HINTS_STOPPED)
		CHECK(!raise(SIGSTOP));
	atomic_store(&board->sent, i + 1);
	CHECK(kit_wait(&e, 30).status == IBV_WC_SUCCESS, "peer %d", i);
	atomic_fetch_add(&board->over, 1);
	until_called(i);
	kit_end_close(&e);
	CHECK(!ibv_dealloc_pd(pd) && !ibv_close_device(ctx));
	return 0;
}

static bool all_cold(struct vb_adapter *a)
{
	for (uint32_t i = 0; i < vb_peer_count(a); i++)
		for (uint32_t k = 0; k < vb_peer_at(a, i)->nlanes; k++)
			if (!atomic_load(vb_peer_at(a, i)->lanes[k].rxq->cold))
				return false;
	return vb_set_is_empty(&vb_hca(a)->warm);
}

static void poll_until_cold(struct vb_adapter *a, struct kit_end *e)
{
	double end = kit_now() + 30;
	struct ibv_wc wc;

	while (!all_cold(a)) {
		CHECK(!ibv_poll_cq(e->cq, 1, &wc));
		CHECK(kit_now() < end, "rings stay warm");
	}
}

static uint32_t rounds(struct vb_adapter *a)
{
	return atomic_load(&a->rounds);
}

/* Polls until the message of that peer is there; true: the next poll after it was sent had it, and the
 * engine did nothing meanwhile. */
static bool arrives(struct vb_adapter *a, struct kit_end *e, int i, bool hinted)
{
	uint32_t before = rounds(a);
	double end = kit_now() + 10;
	struct ibv_wc wc;
	bool late = false;

	atomic_store(&board->go, i + 1);
	for (;;) {
		bool sent = atomic_load(&board->sent) == i + 1;
		int n = ibv_poll_cq(e->cq, 1, &wc);

		CHECK(n >= 0);
		if (n == 1)
			break;
		late |= hinted && sent; /* or the engine has it in hand, in a round that began before */
		CHECK(kit_now() < end, "the message of peer %d lies", i);
	}
	CHECK(wc.status == IBV_WC_SUCCESS && wc.opcode == IBV_WC_RECV);
	return !late && rounds(a) == before;
}

/* What is owed goes out meanwhile. */
static void poll_until_over(struct kit_end *e, int n)
{
	double end = kit_now() + 30;
	struct ibv_wc wc;

	while (atomic_load(&board->over) < n) {
		CHECK(!ibv_poll_cq(e->cq, 1, &wc));
		CHECK(kit_now() < end);
	}
}

static void until_asleep(struct vb_adapter *a)
{
	double end = kit_now() + 30;

	while (atomic_load(vb_adapter_presence(a)->awake) != VB_ASLEEP) {
		CHECK(kit_now() < end, "the word says polling though nobody polls");
		kit_nap(1);
	}
}

static void receive_all(struct ibv_context *ctx, struct kit_end *e, int peers, const pid_t *pids,
			enum way way)
{
	struct vb_adapter *a = vb_context(ctx)->adapter;
	int alone = 0;

	for (int i = 0; i < peers; i++) {
		call(i);
		kit_reach(&board->turn, i + 1);
		poll_until_cold(a, &e[i]);
		if (way == NO_HINTS_ASLEEP) {
			until_asleep(a);
			atomic_store(&board->go, i + 1);
			kit_until(&board->over, i + 1); /* the engine takes it, and answers */
		}
		alone += arrives(a, &e[i], i, way == HINTS);
		if (way == NO_HINTS_STOPPED) {
			CHECK(waitpid(pids[i], NULL, WUNTRACED) == pids[i]);
			kit_cont(pids[i]);
		}
		poll_until_over(&e[i], i + 1);
	}
	CHECK(way != HINTS || alone, "the engine was at work all the time");
}

static void run(int peers, enum way way)
{
	static struct kit_end e[MAX];
	pid_t pids[MAX];
	struct ibv_context *ctx;
	struct ibv_pd *pd;

	board = kit_shared(sizeof *board);
	for (int i = 0; i < peers; i++) {
		CHECK(!sem_init(&board->next[i], 1, 0)); /* before the peer is there */
		pids[i] = kit_fork();
		if (!pids[i])
			_exit(peer(i, way));
	}
	ctx = kit_open();
	pd = ibv_alloc_pd(ctx);
	kit_until(&board->opened, peers);
	for (int i = 0; i < peers; i++) {
		kit_end_open(&e[i], pd, 4, BYTES);
		CHECK(!kit_recv(&e[i], 1, 0, BYTES) && !kit_recv(&e[i], 2, 0, BYTES));
		kit_connect(&e[i], &board->theirs[i]);
		board->mine[i] = e[i].card;
	}
	for (int i = 0; i < peers; i++) {
		call(i);
		CHECK(kit_wait(&e[i], 30).status == IBV_WC_SUCCESS, "peer %d", i);
		kit_until(&board->met, i + 1);
	}
	receive_all(ctx, e, peers, pids, way);
	for (int i = 0; i < peers; i++)
		call(i);
	for (int i = 0; i < peers; i++)
		CHECK(!kit_reap(pids[i]));
	for (int i = 0; i < peers; i++)
		kit_end_close(&e[i]);
	CHECK(!ibv_dealloc_pd(pd) && !ibv_close_device(ctx));
	munmap(board, sizeof *board);
}

int main(int argc, char **argv)
{
	int peers = argc > 1 ? atoi(argv[1]) : getenv("VERBENA_SOAK") ? 300 : 24;

	CHECK(peers >= 1 && peers <= MAX);
	alarm(600);
	run(peers, HINTS);
	run(peers < 6 ? peers : 6, NO_HINTS);
	run(peers < 6 ? peers : 6, NO_HINTS_ASLEEP);
	run(peers < 6 ? peers : 6, NO_HINTS_STOPPED);
	printf("%d quiet peers\n", peers);
	return 0;
}
