/* ibv_rereg_mr() against everything else that uses a region, in one process, where TSan sees all of it: a
 * thread moves the region to and fro and takes the memory that it has left, another changes its access at the
 * same time, peers' WRITEs and READs go on by the R_Key, and SENDs and receives by the L_Key.
 *
 *     proc-inproc_rereg [SECONDS]        for each way */
#include <errno.h>
#include <pthread.h>

#include "bytes.h"
#include "kit.h"

/* Each kind of traffic has its own part of the memory: the program's races are not what is looked for. */
enum { SIZE = 3 * PAGE, PATTERN = 0x5a, LEN = 3000, WRITTEN = 100, READ = 4096, SENT = 8192 };
enum {
	FLAGS =
	    IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ | IBV_ACCESS_ZERO_BASED
};

static struct kit_end near[2], far[2]; /* near[i] talks to far[i] */
static uint8_t *piece[2];
static struct ibv_mr *mr; /* of both far ends' domain */
static _Atomic bool over;
static _Atomic uint64_t moves, busy, changes, writes, messages;

static void *mover(void *arg)
{
	int now = 0;

	(void)arg;
	while (!atomic_load(&over)) {
		if (ibv_rereg_mr(mr, IBV_REREG_MR_CHANGE_TRANSLATION, NULL, piece[!now], SIZE, 0)) {
			CHECK_EQ(errno, EBUSY);
			atomic_fetch_add(&busy, 1);
			continue;
		}
		memset(piece[now], PATTERN, SIZE); /* nobody else's any more */
		for (int i = 0; i < SIZE; i++)
			CHECK(piece[now][i] == PATTERN);
		now = !now;
		atomic_fetch_add(&moves, 1);
	}
	return NULL;
}

static void *changer(void *arg)
{
	struct timespec t = {0, 50000};

	(void)arg;
	while (!atomic_load(&over)) {
		if (!ibv_rereg_mr(mr, IBV_REREG_MR_CHANGE_ACCESS, NULL, NULL, 0, FLAGS))
			atomic_fetch_add(&changes, 1);
		else
			CHECK_EQ(errno, EBUSY);
		nanosleep(&t, NULL);
	}
	return NULL;
}

static void success(struct kit_end *e)
{
	struct ibv_wc wc = kit_wait(e, 60);

	CHECK_EQ(wc.status, IBV_WC_SUCCESS);
}

static void *peer(void *arg)
{
	struct kit_card to = {.rkey = mr->rkey};

	(void)arg;
	while (!atomic_load(&over)) {
		CHECK(!kit_post(&near[0], IBV_WR_RDMA_WRITE, 1, 0, LEN, &to, WRITTEN));
		CHECK(!kit_post(&near[0], IBV_WR_RDMA_READ, 2, READ, LEN, &to, READ));
		success(&near[0]);
		success(&near[0]);
		atomic_fetch_add(&writes, 1);
	}
	return NULL;
}

/* Its memory as a receive's, then as a SEND's. */
static void *owner(void *arg)
{
	struct ibv_sge sge = {SENT, LEN, mr->lkey};
	struct ibv_recv_wr rwr = {.wr_id = 3, .sg_list = &sge, .num_sge = 1}, *rbad;
	struct ibv_send_wr wr = {.wr_id = 4,
				 .sg_list = &sge,
				 .num_sge = 1,
				 .opcode = IBV_WR_SEND,
				 .send_flags = IBV_SEND_SIGNALED},
			   *bad;

	(void)arg;
	while (!atomic_load(&over)) {
		CHECK(!ibv_post_recv(far[1].qp, &rwr, &rbad));
		CHECK(!kit_post(&near[1], IBV_WR_SEND, 5, 0, LEN, NULL, 0));
		success(&near[1]);
		success(&far[1]);
		CHECK(!kit_recv(&near[1], 6, 0, LEN));
		CHECK(!ibv_post_send(far[1].qp, &wr, &bad));
		success(&near[1]);
		success(&far[1]);
		atomic_fetch_add(&messages, 1);
	}
	return NULL;
}

static void run(bool direct, double seconds)
{
	void *(*const threads[])(void *) = {mover, changer, peer, owner};
	enum { THREADS = sizeof threads / sizeof threads[0] };
	struct timespec ms = {0, 1000000};
	double end = kit_now() + seconds;
	struct ibv_context *ctx;
	struct ibv_pd *a, *b;
	pthread_t t[THREADS];

	setenv("VERBENA_DIRECT", direct ? "on" : "off", 1);
	ctx = kit_open();
	a = ibv_alloc_pd(ctx);
	b = ibv_alloc_pd(ctx);
	CHECK(a && b);
	for (int i = 0; i < 2; i++) {
		kit_end_open(&near[i], a, 8, SIZE);
		kit_end_open(&far[i], b, 8, SIZE);
		kit_connect(&near[i], &far[i].card);
		kit_connect(&far[i], &near[i].card);
		piece[i] = aligned_alloc(PAGE, SIZE);
		CHECK(piece[i]);
		memset(piece[i], 0, SIZE);
	}
	mr = ibv_reg_mr(b, piece[0], SIZE, FLAGS);
	CHECK(mr);
	for (int i = 0; i < THREADS; i++)
		CHECK(!pthread_create(&t[i], NULL, threads[i], NULL));
	while (kit_now() < end || atomic_load(&moves) < 20 || atomic_load(&changes) < 5 ||
	       atomic_load(&writes) < 20 || atomic_load(&messages) < 20) {
		CHECK(kit_now() < end + 60);
		nanosleep(&ms, NULL);
	}
	atomic_store(&over, true);
	for (int i = 0; i < THREADS; i++)
		CHECK(!pthread_join(t[i], NULL));
	printf("direct %s: %" PRIu64 " moves, %" PRIu64 " changes of access, %" PRIu64 " and %" PRIu64
	       " requests; busy %" PRIu64 " times\n",
	       direct ? "on" : "off", atomic_load(&moves), atomic_load(&changes), 2 * atomic_load(&writes),
	       2 * atomic_load(&messages), atomic_load(&busy));
	CHECK(!ibv_dereg_mr(mr));
	for (int i = 0; i < 2; i++) {
		kit_end_close(&near[i]);
		kit_end_close(&far[i]);
		free(piece[i]);
	}
	CHECK(!ibv_dealloc_pd(a) && !ibv_dealloc_pd(b) && !ibv_close_device(ctx));
}

int main(int argc, char **argv)
{
	double seconds = argc > 1 ? atof(argv[1]) : getenv("VERBENA_SOAK") ? 60 : 1;

	for (int direct = 0; direct < 2; direct++) {
		pid_t pid = kit_fork(); /* before there are threads */

		if (!pid) {
			run(direct, seconds);
			exit(0);
		}
		CHECK_EQ(kit_reap(pid), 0);
	}
	return 0;
}
