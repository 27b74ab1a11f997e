/* A process whose first thread has ended: what the kernel shows of a process's network is that thread's, and
 * nothing then; but the others go on, and find whom they would find. */
#include <errno.h>
#include <pthread.h>

#include "contact.h"

enum { NUMBER = 17 };

static struct board {
	__be64 guid;
	_Atomic int step;
} * board;

static const union ibv_gid group = {
    .raw = {0xff, 0x0e, [15] = 77},
};

/* The group is made of what all processes of the network show. */
static void send_to_group(void)
{
	struct ibv_ah_attr to = {.grh = {.dgid = group}, .is_global = 1, .port_num = 1};
	struct ibv_pd *pd = ibv_alloc_pd(kit_open());
	struct kit_end e;
	struct ibv_ah *ah;

	kit_end_open_as(&e, pd, 4, 4096, IBV_QPT_UD);
	ah = ibv_create_ah(pd, &to);
	CHECK(ah, "%s", strerror(errno));
	CHECK(!kit_datagram(&e, ah, 0xffffff, 1, 0, 64));
	kit_expect(&e, IBV_WC_SEND);
	kit_until(&board->step, 2);
}

/* One as it is usual, which also has a number without an adapter. */
static void other(void)
{
	struct ibv_context *ctx;
	struct kit_end e;

	CHECK(kit_number_bind(NUMBER, true) >= 0);
	ctx = kit_open();
	board->guid = ibv_get_device_guid(ctx->device);
	kit_end_open_as(&e, ibv_alloc_pd(ctx), 4, 4096, IBV_QPT_UD);
	CHECK(!ibv_attach_mcast(e.qp, &group, 0) && !kit_recv(&e, 1, 0, 256), "%s", strerror(errno));
	atomic_store(&board->step, 1);
	kit_expect(&e, IBV_WC_RECV);
	atomic_store(&board->step, 2);
	for (;;)
		pause();
}

static void *second(void *arg)
{
	char log[64];
	FILE *f;

	alarm(60);
	/* until the kernel shows nothing of the first */
	while ((f = fopen("/proc/self/net/unix", "re"))) {
		fclose(f);
		kit_nap(1);
	}
	kit_log_begin("info");
	snprintf(log, sizeof log, "/proc/thread-self%s", strstr(getenv("VERBENA_LOG"), "/fd/"));
	setenv("VERBENA_LOG", log, 1);
	CHECK(ibv_get_device_guid(*ibv_get_device_list(NULL)) == board->guid, "the network's devices differ");
	send_to_group();
	CHECK(kit_ask(NUMBER, 12, 4) == IBV_WC_RETRY_EXC_ERR);
	KIT_LOG_SAYS("a process of user %u has bound that number but does not listen", geteuid());
	KIT_LOG_SAYS_NOT("another network namespace");
	_exit(0);
	return arg;
}

int main(void)
{
	pthread_t t;
	pid_t pid;

	if (!kit_own_network()) {
		printf("SKIP: no network namespace of its own: %s\n", strerror(errno));
		return KIT_SKIP;
	}
	board = kit_shared(sizeof *board);
	pid = kit_fork();
	if (!pid)
		other();
	kit_until(&board->step, 1);
	pid = kit_fork();
	if (!pid) {
		CHECK(!pthread_create(&t, NULL, second, NULL));
		pthread_exit(NULL);
	}
	CHECK(!kit_reap(pid));
	return 0;
}
