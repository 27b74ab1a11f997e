/* A thread with the smallest stack that there is, in ibv_get_cq_event(), which does what the engine does
 * meanwhile: processes make contact, ask for memory, which is then mapped, and die, and interfaces change. */
#include <limits.h>
#include <pthread.h>

#include "bytes.h"
#include "kit.h"
#include "net.h"

enum { PEERS = 4, ROUNDS = 8, SIZE = 1 << 20 };

/* The sanitizers make frames larger. */
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define LARGER 16
#elif defined(__has_feature)
#if __has_feature(address_sanitizer) || __has_feature(thread_sanitizer)
#define LARGER 16
#endif
#endif
#ifndef LARGER
#define LARGER 1
#endif

static struct board {
	struct kit_card here[PEERS], there[PEERS];
	_Atomic int opened[PEERS], connected[PEERS], written[PEERS], may_go[PEERS];
} * board;

static struct ibv_comp_channel *channel;

static void *wait_for_it(void *arg)
{
	struct ibv_cq *cq;
	void *user;

	CHECK(!ibv_get_cq_event(channel, &cq, &user));
	ibv_ack_cq_events(cq, 1);
	return arg;
}

/* Writes to memory that may be mapped, and shows memory that may be. */
static void peer(int i)
{
	struct ibv_pd *pd = ibv_alloc_pd(kit_open());
	struct ibv_mr *mr = ibv_reg_mr(pd, kit_shared(SIZE), SIZE, KIT_ALL);
	struct kit_end e;

	kit_end_open(&e, pd, 4, 4096);
	board->there[i] = e.card;
	board->there[i].addr = (uintptr_t)mr->addr;
	board->there[i].rkey = mr->rkey;
	atomic_store(&board->opened[i], 1);
	kit_until(&board->connected[i], 1);
	kit_connect(&e, &board->here[i]);
	for (int k = 0; k < ROUNDS; k++) {
		CHECK(!kit_post(&e, IBV_WR_RDMA_WRITE, 1, 0, 4096, &board->here[i], (size_t)k * 4096));
		kit_expect(&e, IBV_WC_RDMA_WRITE);
		kit_nap(5);
	}
	atomic_store(&board->written[i], 1);
	kit_until(&board->may_go[i], 1);
	_exit(0);
}

static void meet(struct ibv_pd *pd, int i, pid_t pid)
{
	struct ibv_mr *mr = ibv_reg_mr(pd, kit_shared(SIZE), SIZE, KIT_ALL);
	struct kit_end e;

	kit_end_open(&e, pd, 4, 4096);
	board->here[i] = e.card;
	board->here[i].addr = (uintptr_t)mr->addr;
	board->here[i].rkey = mr->rkey;
	kit_until(&board->opened[i], 1);
	kit_connect(&e, &board->there[i]);
	atomic_store(&board->connected[i], 1);
	kit_until(&board->written[i], 1);
	for (int k = 0; k < ROUNDS; k++) {
		CHECK(!kit_post(&e, IBV_WR_RDMA_WRITE, 1, 0, 4096, &board->there[i], (size_t)k * 4096));
		kit_expect(&e, IBV_WC_RDMA_WRITE);
		kit_net_address("v0", "10.77.1.1", true);
		kit_nap(5);
		kit_net_set("v0", k % 2);
		kit_net_address("v0", "10.77.1.1", false);
		kit_nap(5);
	}
	CHECK(!kit_recv(&e, 3, 0, 64));
	atomic_store(&board->may_go[i], 1);
	CHECK_EQ(kit_wait(&e, 20).status, IBV_WC_WR_FLUSH_ERR);
	kit_reap(pid);
	kit_end_close(&e);
	CHECK(!ibv_dereg_mr(mr));
}

/* How much of it a thread has used, from its top on. */
static size_t used(const uint8_t *stack, size_t size)
{
	size_t n = 0;

	while (n < size && stack[n] == 0xa5)
		n++;
	return size - n;
}

int main(void)
{
	size_t size = (size_t)PTHREAD_STACK_MIN * LARGER;
	struct ibv_context *ctx;
	struct ibv_pd *pd;
	struct kit_end e;
	pthread_attr_t attr;
	pid_t pids[PEERS];
	uint8_t *stack;
	pthread_t t;

	if (!kit_net_can())
		return KIT_SKIP;
	kit_net_begin();
	kit_net_make("v0");
	kit_net_set("v0", true);
	kit_net_address("v0", "10.77.0.1", true);
	board = kit_shared(sizeof *board);
	for (int i = 0; i < PEERS; i++) {
		pids[i] = kit_fork();
		if (!pids[i])
			peer(i);
	}
	alarm(120);
	ctx = kit_open();
	pd = ibv_alloc_pd(ctx);
	channel = ibv_create_comp_channel(ctx);
	kit_end_open_on(&e, pd, channel, 4, 4096);
	kit_connect(&e, &e.card);
	CHECK(!ibv_req_notify_cq(e.cq, 0));
	stack = mmap(NULL, PAGE + size, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	CHECK(stack != MAP_FAILED && !mprotect(stack + PAGE, size, PROT_READ | PROT_WRITE));
	memset(stack + PAGE, 0xa5, size);
	CHECK(!pthread_attr_init(&attr) && !pthread_attr_setstack(&attr, stack + PAGE, size));
	CHECK(!pthread_create(&t, &attr, wait_for_it, NULL));
	for (int i = 0; i < PEERS; i++)
		meet(pd, i, pids[i]);
	CHECK(!kit_post(&e, IBV_WR_RDMA_WRITE, 1, 0, 64, &e.card, 64));
	CHECK(!pthread_join(t, NULL));
	kit_expect(&e, IBV_WC_RDMA_WRITE);
	printf("%zu of %zu bytes used\n", used(stack + PAGE, size), size);
	kit_end_close(&e);
	CHECK(!ibv_destroy_comp_channel(channel) && !ibv_dealloc_pd(pd) && !ibv_close_device(ctx));
	return 0;
}
