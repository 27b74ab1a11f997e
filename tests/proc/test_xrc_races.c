/* Targets that come and go while others open, change and leave them: threads of the process that makes them,
 * of others, and one that dies now and then.  Nobody crashes or hangs, and what must succeed does; what is
 * used after its end the sanitizers tell.
 *
 *     proc-xrc_races [ROUNDS]      of each maker; default 12; 300 in make soak */
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>

#include "xrc.h"

enum { MAKERS = 3, OPENERS = 2, OTHERS = 3, EACH = 4, HANDLES = 8, CHANGES = 20 };

static struct board {
	_Atomic uint32_t target[MAKERS * EACH];
	_Atomic int opened, heard, over[MAKERS];
} * board;

static int domain, rounds;
static struct ibv_context *ctx;
static struct ibv_xrcd *xrcd;
static union ibv_gid gid;
static __thread uint64_t rng;

static void begin(int i)
{
	rng = ((uint64_t)gettid() << 20 ^ (uint64_t)i) | 1;
}

static void *hear(void *arg)
{
	struct ibv_async_event e;

	(void)arg;
	while (!ibv_get_async_event(ctx, &e)) {
		CHECK(e.element.qp->qp_num && e.element.qp->context == ctx);
		atomic_fetch_add(&board->heard, 1);
		ibv_ack_async_event(&e);
	}
	return NULL;
}

/* What comes of it depends on who else is at it. */
static void change(struct ibv_qp *qp)
{
	static const int masks[] = {IBV_QP_STATE, IBV_QP_STATE,
				    IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS,
				    IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN |
					IBV_QP_RQ_PSN | IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER};
	static const enum ibv_qp_state states[] = {IBV_QPS_ERR, IBV_QPS_RESET, IBV_QPS_INIT, IBV_QPS_RTR};
	uint32_t i = kit_below(&rng, 5);
	struct ibv_qp_attr a = {.port_num = 1,
				.qp_access_flags = KIT_ALL,
				.path_mtu = IBV_MTU_1024,
				.dest_qp_num = 77,
				.ah_attr = {.port_num = 1, .is_global = 1, .grh = {.dgid = gid}},
				.max_dest_rd_atomic = 8};
	struct ibv_qp_init_attr init;

	if (i == 4) {
		(void)ibv_query_qp(qp, &a, IBV_QP_STATE, &init);
		return;
	}
	a.qp_state = states[i];
	(void)ibv_modify_qp(qp, &a, masks[i]);
}

static void *open_and_leave(void *arg)
{
	struct ibv_qp *h[HANDLES] = {0};

	begin((int)(intptr_t)arg);
	for (;;) {
		uint32_t i = kit_below(&rng, HANDLES), of = kit_below(&rng, MAKERS * EACH);

		if (!h[i]) {
			h[i] = xrc_open_target(ctx, xrcd, atomic_load(&board->target[of]));
			atomic_fetch_add(&board->opened, h[i] != NULL);
		} else if (kit_below(&rng, 3)) {
			change(h[i]);
		} else {
			CHECK(!ibv_destroy_qp(h[i]));
			h[i] = NULL;
		}
	}
	return NULL;
}

/* Either destroys all that it made before it closes its context, or leaves it there. */
static void *make(void *arg)
{
	int me = (int)(intptr_t)arg;

	begin(me);
	for (int r = 0; r < rounds; r++) {
		struct ibv_context *c = kit_open();
		struct ibv_xrcd *x = xrc_open_domain(c, domain, O_CREAT);
		bool leaves = !kit_below(&rng, 8);
		struct ibv_qp *qp[EACH];

		CHECK(x);
		for (int i = 0; i < EACH; i++) {
			qp[i] = xrc_make_target(c, x);
			atomic_store(&board->target[me * EACH + i], qp[i]->qp_num);
		}
		for (int i = 0; i < CHANGES; i++) {
			change(qp[kit_below(&rng, EACH)]);
			kit_nap(1); /* the others are to come in between */
		}
		for (int i = 0; i < EACH && !leaves; i++)
			CHECK(!ibv_destroy_qp(qp[i]));
		CHECK(leaves || !ibv_close_xrcd(x));
		CHECK(!ibv_close_device(c));
	}
	atomic_store(&board->over[me], 1);
	return NULL;
}

static pid_t start(int makers)
{
	pid_t pid = kit_fork();
	pthread_t t;

	if (pid)
		return pid;
	ctx = kit_open();
	xrcd = xrc_open_domain(ctx, domain, O_CREAT);
	CHECK(xrcd && !ibv_query_gid(ctx, 1, 0, &gid));
	CHECK(!pthread_create(&t, NULL, hear, NULL));
	for (intptr_t i = 0; i < makers; i++)
		CHECK(!pthread_create(&t, NULL, make, (void *)i));
	for (intptr_t i = 0; i < OPENERS; i++)
		CHECK(!pthread_create(&t, NULL, open_and_leave, (void *)(MAKERS + i)));
	for (;;)
		pause();
}

static void end(pid_t pid)
{
	int status;

	CHECK(!waitpid(pid, &status, WNOHANG), "%d has ended: 0x%x", pid, status);
	CHECK(!kill(pid, SIGKILL) && waitpid(pid, &status, 0) == pid && WTERMSIG(status) == SIGKILL,
	      "%d: 0x%x", pid, status);
}

int main(int argc, char **argv)
{
	pid_t owner, other[OTHERS];

	rounds = argc > 1 ? atoi(argv[1]) : getenv("VERBENA_SOAK") ? 300 : 12;
	setenv("VERBENA_LOG", "/dev/null", 1);
	board = kit_shared(sizeof *board);
	domain = xrc_domain_file();
	owner = start(MAKERS);
	for (int i = 0; i < OTHERS; i++)
		other[i] = start(0);
	for (int i = 0; i < MAKERS; i++) {
		kit_until(&board->over[i], 1);
		end(other[i % OTHERS]);
		other[i % OTHERS] = start(0);
	}
	for (int i = 0; i < OTHERS; i++)
		end(other[i]);
	end(owner);
	CHECK(board->opened && board->heard);
	printf("%d opened, %d events\n", board->opened, board->heard);
	return 0;
}
