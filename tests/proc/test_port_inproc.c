/* The port follows the interface while queue pairs are connected and the port is asked: threads of one
 * process, so that TSan sees both sides.
 *
 *     proc-port_inproc [ROUNDS]      default 200 */
#include <pthread.h>

#include "kit.h"
#include "net.h"

static struct ibv_context *ctx;
static _Atomic bool over;

static void *user(void *arg)
{
	struct ibv_pd *pd = ibv_alloc_pd(ctx);
	struct ibv_port_attr port;
	union ibv_gid gid;
	struct kit_end e;
	long *rounds = arg;

	CHECK(pd);
	while (!atomic_load(&over)) {
		kit_end_open(&e, pd, 4, 64);
		kit_connect(&e, &e.card); /* with itself */
		CHECK(!ibv_query_port(ctx, 1, &port) && !ibv_query_gid(ctx, 1, 0, &gid));
		kit_end_close(&e);
		++*rounds;
	}
	CHECK(!ibv_dealloc_pd(pd));
	return NULL;
}

int main(int argc, char **argv)
{
	int rounds = argc > 1 ? atoi(argv[1]) : 200;
	struct ibv_async_event ev;
	long connected = 0;
	pthread_t t;

	if (!kit_net_can())
		return KIT_SKIP;
	kit_net_begin();
	kit_net_make("v0");
	kit_net_set("v0", true);
	ctx = kit_open();
	CHECK(!pthread_create(&t, NULL, user, &connected));
	for (int i = 0; i < rounds; i++) {
		kit_net_address("v0", "10.77.0.1", !(i % 2));
		CHECK(!ibv_get_async_event(ctx, &ev)); /* the port has followed */
		CHECK(ev.event_type == IBV_EVENT_GID_CHANGE, "%s", ibv_event_type_str(ev.event_type));
		ibv_ack_async_event(&ev);
	}
	atomic_store(&over, true);
	CHECK(!pthread_join(t, NULL));
	printf("%d changes of the address, %ld connections\n", rounds, connected);
	CHECK(!ibv_close_device(ctx));
	return 0;
}
