/* A peer that says goodbye while requests are being placed in its memory, and a thread that is cancelled
 * while it uses verbs: nothing that is outstanding or locked stays behind. */
#include <pthread.h>

#include "pair.h"
#include "hca/hca.h"
#include "verbs/verbs.h"

enum { LONG = 32 << 20, POSTS = 16 };

static struct kit_board *board;

/* Waits for events only, so that its engine places what a post leaves.  The target has no receive request for
 * the SEND behind the WRITEs: whatever could be placed before the goodbye, that one is cut off. */
static void initiator(void)
{
	struct kit_pair p = {.board = board};
	struct kit_end *e = &p.end[0];
	struct vb_key_slot *slots;
	int got = 0, placed = 0;
	struct ibv_cq *cq;
	struct ibv_wc wc;
	void *x;

	alarm(120);
	kit_pair_open(&p, 64, LONG);
	CHECK(!ibv_req_notify_cq(e->cq, 0));
	for (int i = 0; i < POSTS; i++)
		CHECK(!kit_post(e, i < POSTS - 1 ? IBV_WR_RDMA_WRITE : IBV_WR_SEND, (uint64_t)i, 0,
				i < POSTS - 1 ? LONG : 8, &board->card[1][0], 0));
	while (got < POSTS) {
		struct pollfd f = {.fd = p.chan->fd, .events = POLLIN};

		CHECK(poll(&f, 1, 30000) == 1, "%d of %d requests never ended", POSTS - got, POSTS);
		CHECK(!ibv_get_cq_event(p.chan, &cq, &x));
		ibv_ack_cq_events(cq, 1);
		CHECK(!ibv_req_notify_cq(e->cq, 0));
		while (ibv_poll_cq(e->cq, 1, &wc) == 1) {
			/* the first that is cut off says why, the others are flushed: in order, each once */
			enum ibv_wc_status cut = placed == got ? IBV_WC_RETRY_EXC_ERR : IBV_WC_WR_FLUSH_ERR;
			bool ok = wc.status == IBV_WC_SUCCESS && placed == got;

			CHECK(wc.wr_id == (uint64_t)got && (ok || wc.status == cut), "%d: %s", got,
			      ibv_wc_status_str(wc.status));
			got++;
			placed += ok;
			atomic_store(&board->step, 1); /* the first is placed, the next is being placed */
		}
	}
	CHECK(placed > 0 && placed < POSTS && e->qp->state == IBV_QPS_ERR, "%d, %d", placed, e->qp->state);
	/* nothing is announced any more, and no lock is held over it: all can be taken down */
	slots = vb_hca(vb_context(p.ctx)->adapter)->keys.slots.at;
	for (int i = 0; i < VB_MEM_SLOTS; i++)
		CHECK(!slots[i].index && !slots[i].placing && !slots[i].via && !slots[i].shared.held, "%d",
		      i);
	for (int i = 0; i < KIT_ENDS; i++)
		kit_end_close(&p.end[i]);
	CHECK(!ibv_destroy_comp_channel(p.chan) && !ibv_dealloc_pd(p.pd) && !ibv_close_device(p.ctx));
	printf("%d of %d requests were cut off\n", POSTS - placed, POSTS);
	exit(0);
}

static void target(void)
{
	struct kit_pair p = {.board = board, .me = 1};

	kit_pair_open(&p, 64, LONG);
	kit_until(&board->step, 2);
	exit(0);
}

/* The initiator is stopped in the middle, so that it finds the goodbye before it goes on. */
static void leaves_in_the_middle(void)
{
	pid_t t, i;
	int status;

	memset(board, 0, sizeof *board);
	t = kit_fork();
	if (!t)
		target();
	i = kit_fork();
	if (!i)
		initiator();
	kit_until(&board->step, 1);
	kill(i, SIGSTOP);
	CHECK(waitpid(i, &status, WUNTRACED) == i);
	atomic_store(&board->step, 2);
	CHECK(!kit_reap(t));
	kill(i, SIGCONT);
	if (WIFSTOPPED(status))
		status = kit_reap(i);
	CHECK(!status, "the initiator ended with status 0x%x", status);
}

static struct kit_pair asker;

static _Atomic bool enough;
static _Atomic int rounds; /* of the worker */

static void *worker(void *arg)
{
	struct ibv_wc wc[8];

	while (!atomic_load(&enough)) {
		kit_post(&asker.end[0], IBV_WR_RDMA_WRITE_WITH_IMM, 1, 0, 8, &board->card[1][0], 0);
		ibv_poll_cq(asker.end[0].cq, 8, wc);
		atomic_fetch_add(&rounds, 1);
	}
	return arg;
}

static void *another(void *done)
{
	struct ibv_wc wc[8];

	for (int i = 0; i < 100; i++)
		ibv_poll_cq(asker.end[0].cq, 8, wc);
	kit_post(&asker.end[0], IBV_WR_SEND, 1, 0, 8, NULL, 0);
	atomic_store((_Atomic int *)done, 1);
	return NULL;
}

/* Posting and polling are no cancellation points: a thread that is cancelled there holds nothing. */
static void cancelled(void)
{
	_Atomic int done = 0;
	pthread_t w, u;
	void *end;
	pid_t t;

	memset(board, 0, sizeof *board);
	t = kit_fork();
	if (!t) {
		struct kit_pair p = {.board = board, .me = 1};

		kit_pair_open(&p, 64, 4096);
		for (;;)
			pause();
	}
	asker.board = board;
	kit_pair_open(&asker, 64, 4096);
	CHECK(!pthread_create(&w, NULL, worker, NULL));
	CHECK(!pthread_cancel(w));
	while (atomic_load(&rounds) < 100000) { /* rings the other end's bell and reads the clock meanwhile */
		CHECK(pthread_tryjoin_np(w, &end) == EBUSY, "a verb was a cancellation point");
		kit_nap(1);
	}
	atomic_store(&enough, true);
	CHECK(!pthread_join(w, &end));
	CHECK(end != PTHREAD_CANCELED, "a verb was a cancellation point");
	CHECK(!pthread_create(&u, NULL, another, &done));
	kit_until(&done, 1);
	CHECK(!pthread_join(u, NULL));
	kill(t, SIGKILL);
	kit_reap(t);
}

int main(void)
{
	board = kit_shared(sizeof *board);
	for (int i = 0; i < 3; i++)
		leaves_in_the_middle();
	cancelled();
	puts("nothing stayed behind");
	return 0;
}
