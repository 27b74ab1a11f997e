/* A process that goes on while the processes that it talks to die, one after another: what it kept of each of
 * them another one uses.  Address space, shared memory and the table of peers do not grow, whether what was
 * connected to the dead is destroyed or kept, and whether something is sent to them after their end. */
#include <sys/resource.h>

#include "cm.h"
#include "host/adapter.h"
#include "obj/context.h"

enum {
	ROUNDS = 24,
	SETTLED = 8,  /* rounds after which nothing grows any more */
	WINDOWS = 4,  /* by which the address space may grow all the same */
	PLACES = 16,  /* of the table of peers: this process, one that lives, and a few numbers of the dead */
	SHARED = 512, /* kB by which shared memory may */
	SIZE = 4096,
	LEN = 1024,
};

static struct board {
	struct kit_card card[2];
	_Atomic int go, ready, connected;
	uint16_t port;
} * board;

static pid_t victims[ROUNDS];
static struct ibv_context *ctx;
static struct ibv_pd *pd;

static long status_of(const char *field)
{
	FILE *f = fopen("/proc/self/status", "r");
	char line[256];
	long kb = -1;

	CHECK(f);
	while (fgets(line, sizeof line, f))
		if (!strncmp(line, field, strlen(field)))
			kb = atol(line + strlen(field));
	fclose(f);
	CHECK(kb >= 0, "%s", field);
	return kb;
}

/* Made before this process opens its device; each waits for its turn, and then stays where f() returns. */
static void make_victims(void (*f)(void), unsigned n)
{
	board = kit_shared(sizeof *board);
	for (unsigned i = 0; i < n; i++) {
		victims[i] = kit_fork();
		if (victims[i])
			continue;
		kit_until(&board->go, (int)i + 1);
		f();
		for (;;)
			pause();
	}
}

static void begin(unsigned i)
{
	atomic_store(&board->ready, 0);
	atomic_store(&board->connected, 0);
	atomic_store(&board->go, (int)i + 1);
	kit_until(&board->ready, 1);
}

static void finish(unsigned i)
{
	CHECK(!kill(victims[i], SIGKILL));
	kit_reap(victims[i]);
}

static void open_device(void)
{
	ctx = kit_open();
	pd = ibv_alloc_pd(ctx);
	CHECK(pd);
}

/* ---- growth ---- */

static struct {
	long vm, shared;
} settled;

static void look(unsigned round)
{
	long vm = status_of("VmSize:"), shared = status_of("RssShmem:");
	uint32_t places = vb_peer_count(vb_context(ctx)->adapter);
	const long most = WINDOWS * (long)(VB_SEG_SIZE >> 10);

	if (round == SETTLED)
		settled.vm = vm, settled.shared = shared;
	if (round < ROUNDS)
		return;
	printf("%u rounds: address space +%ld kB, shared memory +%ld kB, %u places\n", round - SETTLED,
	       vm - settled.vm, shared - settled.shared, places);
	CHECK(vm - settled.vm < most, "the address space grew by %ld kB", vm - settled.vm);
	CHECK(shared - settled.shared < SHARED, "shared memory grew by %ld kB", shared - settled.shared);
	CHECK(places <= PLACES, "the table of peers has %u", places);
}

/* ---- queue pairs ---- */

static void take_message(bool leave)
{
	struct kit_end e;

	open_device();
	kit_end_open(&e, pd, 8, SIZE);
	CHECK(!kit_recv(&e, 1, 0, LEN));
	board->card[1] = e.card;
	atomic_store(&board->ready, 1);
	kit_until(&board->connected, 1);
	kit_connect(&e, &board->card[0]);
	kit_expect(&e, IBV_WC_RECV);
	if (leave) {
		kit_end_close(&e);
		CHECK(!ibv_dealloc_pd(pd) && !ibv_close_device(ctx));
	}
	atomic_store(&board->ready, 2);
}

static void takes_a_message(void)
{
	take_message(false);
}

static void takes_a_message_and_leaves(void)
{
	take_message(true);
}

/* A connection to the i-th victim, which has got a message when this returns. */
static struct kit_end talk(unsigned i)
{
	struct kit_end e;

	kit_end_open(&e, pd, 8, SIZE);
	board->card[0] = e.card;
	begin(i);
	kit_connect(&e, &board->card[1]);
	atomic_store(&board->connected, 1);
	CHECK(!kit_post(&e, IBV_WR_SEND, 2, 0, LEN, NULL, 0));
	kit_expect(&e, IBV_WC_SEND);
	kit_until(&board->ready, 2);
	return e;
}

/* Another queue pair is connected to the dead one's number, and fails. */
static struct kit_end ask_in_vain(void)
{
	struct kit_end e;

	kit_end_open(&e, pd, 8, SIZE);
	kit_connect_with(&e, &board->card[1], 8, 0);
	CHECK(!kit_post(&e, IBV_WR_SEND, 3, 0, LEN, NULL, 0));
	CHECK_EQ(kit_wait(&e, 20).status, IBV_WC_RETRY_EXC_ERR);
	return e;
}

static void tell_in_vain(struct kit_end *ud)
{
	struct ibv_ah *ah = kit_ah(pd, &board->card[1]);

	CHECK(!kit_datagram(ud, ah, board->card[1].qpn, 4, 0, 8));
	kit_expect(ud, IBV_WC_SEND);
	CHECK(!ibv_destroy_ah(ah));
}

static void rounds(bool keep, bool little_space)
{
	struct kit_end ud, e[2];

	kit_log_begin("error"); /* what fails is meant to */
	make_victims(takes_a_message, ROUNDS);
	open_device();
	kit_end_open_as(&ud, pd, 8, SIZE, IBV_QPT_UD);
	if (little_space) {
		uint64_t most = ((uint64_t)status_of("VmSize:") << 10) + 3 * VB_SEG_SIZE + (256 << 20);
		struct rlimit r = {most, most};

		CHECK(!setrlimit(RLIMIT_AS, &r));
	}
	for (unsigned i = 0; i < ROUNDS; i++) {
		e[0] = talk(i);
		finish(i);
		e[1] = ask_in_vain();
		tell_in_vain(&ud);
		if (!keep) {
			kit_end_close(&e[0]);
			kit_end_close(&e[1]);
		}
		look(i + 1);
	}
}

static void queue_pairs_are_destroyed(void)
{
	rounds(false, false);
}

static void queue_pairs_are_kept(void)
{
	rounds(true, false);
}

static void address_space_is_little(void)
{
	rounds(true, true);
}

/* ---- what is said of one whose place another one has ---- */

static void what_is_said_of_the_first_one(void)
{
	struct kit_end first, second;

	kit_log_begin("warn");
	make_victims(takes_a_message_and_leaves, 2);
	open_device();
	first = talk(0);
	finish(0);
	while (vb_peer_at(vb_context(ctx)->adapter, 1)->state != VB_PEER_DOWN)
		kit_nap(1);
	second = talk(1);
	CHECK_EQ(vb_peer_count(vb_context(ctx)->adapter), 2);
	CHECK(!kit_post(&first, IBV_WR_SEND, 5, 0, LEN, NULL, 0));
	CHECK_EQ(kit_wait(&first, 60).status, IBV_WC_RETRY_EXC_ERR);
	KIT_LOG_SAYS("its process %d has disconnected", (int)victims[0]);
	kit_end_close(&first);
	kit_end_close(&second);
	finish(1);
}

/* ---- rdma_cm ---- */

static void serves(void)
{
	struct rdma_event_channel *ch = kit_cm_channel();

	kit_cm_listen_at(ch, RDMA_PS_TCP, &board->port, 0);
	atomic_store(&board->ready, 1);
	kit_cm_take(ch);
	kit_cm_expect(ch, RDMA_CM_EVENT_ESTABLISHED, 0);
	atomic_store(&board->ready, 2);
}

static void servers(void)
{
	struct rdma_event_channel *ch;
	struct rdma_cm_id *id;

	kit_log_begin("error");
	make_victims(serves, ROUNDS);
	ch = kit_cm_channel();
	for (unsigned i = 0; i < ROUNDS; i++) {
		board->port = 0;
		begin(i);
		id = kit_cm_ready(ch, RDMA_PS_TCP, board->port);
		ctx = id->verbs;
		kit_cm_connect(id);
		kit_cm_expect(ch, RDMA_CM_EVENT_ESTABLISHED, 0);
		kit_until(&board->ready, 2);
		finish(i);
		kit_cm_expect(ch, RDMA_CM_EVENT_DISCONNECTED, 0);
		KIT_CM(rdma_disconnect(id)); /* a DREQ, to nobody */
		kit_cm_end(id);
		look(i + 1);
	}
}

int main(int argc, char **argv)
{
	static const struct kit_case cases[] = {
	    {.name = "queue pairs are destroyed", .run = queue_pairs_are_destroyed},
	    {.name = "queue pairs are kept", .run = queue_pairs_are_kept},
	    {.name = "address space is little", .run = address_space_is_little},
	    {.name = "what is said of the first one", .run = what_is_said_of_the_first_one},
	    {.name = "servers", .run = servers},
	};

	KIT_CASES(cases, 120);
	return 0;
}
