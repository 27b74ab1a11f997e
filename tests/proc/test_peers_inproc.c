/* A peer goes and another one comes, again and again, while a thread takes regions back, for which it looks
 * at all peers: adapters of one process, so that TSan sees both sides.
 *
 *     proc-peers_inproc [ROUNDS]      default 200 */
#include <pthread.h>

#include "adapter.h"
#include "kit.h"

static struct ibv_context *ctx;
static _Atomic bool over;

static void *regions(void *arg)
{
	struct ibv_pd *pd = ibv_alloc_pd(ctx);
	static uint8_t area[4096];
	struct ibv_mr *mr;
	long *rounds = arg;

	CHECK(pd);
	while (!atomic_load(&over)) {
		mr = ibv_reg_mr(pd, area, sizeof(area), KIT_ALL);
		CHECK(mr && !ibv_dereg_mr(mr));
		++*rounds;
	}
	CHECK(!ibv_dealloc_pd(pd));
	return NULL;
}

/* An adapter comes, sends one message and goes. */
static void visit(struct ibv_pd *pd)
{
	struct ibv_context *c = kit_adapter_open();
	struct ibv_pd *his = ibv_alloc_pd(c);
	struct kit_end here, there;

	kit_end_open(&here, pd, 4, 64);
	kit_end_open(&there, his, 4, 64);
	kit_connect(&here, &there.card);
	kit_connect(&there, &here.card);
	CHECK(!kit_recv(&here, 1, 0, 64) && !kit_post(&there, IBV_WR_SEND, 2, 0, 8, NULL, 0));
	kit_expect(&here, IBV_WC_RECV);
	kit_expect(&there, IBV_WC_SEND);
	kit_end_close(&here);
	kit_end_close(&there);
	CHECK(!ibv_dealloc_pd(his));
	kit_adapter_close(c);
}

int main(int argc, char **argv)
{
	int rounds = argc > 1 ? atoi(argv[1]) : 200;
	struct ibv_pd *pd;
	long made = 0;
	pthread_t t;

	ctx = kit_open();
	pd = ibv_alloc_pd(ctx);
	CHECK(!pthread_create(&t, NULL, regions, &made));
	for (int i = 0; i < rounds; i++)
		visit(pd);
	atomic_store(&over, true);
	CHECK(!pthread_join(t, NULL));
	printf("%d adapters came and went, %ld regions\n", rounds, made);
	CHECK(!ibv_dealloc_pd(pd) && !ibv_close_device(ctx));
	return 0;
}
