/* A process that is asked for contact by two of its numbers at once turns out to be one: what QP1 has said to
 * the second number goes to it all the same, and its user is not told that there is no contact. */
#include "gsi.h"
#include "kit.h"
#include "obj/context.h"

static struct board {
	_Atomic int ready, heard;
	uint32_t number, other; /* the child's */
} * board;

static struct vb_hca *hca;

static void heard(void *user, const struct vb_gsi_mad *m)
{
	(void)user, (void)m;
	atomic_fetch_add(&board->heard, 1);
}

static void begin(void)
{
	hca = vb_hca(vb_context(kit_open())->adapter);
	kit_gsi_open(hca, heard, NULL);
}

static void child(void)
{
	begin();
	CHECK(!vb_adapter_number_add(hca->adapter));
	board->number = vb_adapter_number(hca->adapter);
	board->other = vb_adapter_number_at(hca->adapter, 1);
	atomic_store(&board->ready, 1);
	for (;;)
		pause();
}

/* A process has our hello at that number. */
static void until_asked(struct vb_peer *peer)
{
	double end = kit_now() + 20;
	uint32_t asked = 0;

	while (!asked) {
		CHECK(kit_now() < end);
		(void)vb_peer_trouble(peer, &asked);
	}
}

int main(void)
{
	uint8_t mad[VB_MAD_LEN] = {1};
	struct vb_peer *first, *second;
	struct vb_whom whom;
	pid_t pid;

	kit_alone();
	board = kit_shared(sizeof *board);
	pid = kit_fork();
	if (!pid)
		child();
	kit_until(&board->ready, 1);
	whom = vb_whom_at(board->number);
	begin();
	kit_stop(pid);
	first = vb_peer_get(hca->adapter, board->other);
	CHECK(first);
	until_asked(first);
	second = vb_peer_get(hca->adapter, board->number);
	CHECK(second && second != first);
	CHECK(!vb_gsi_send(hca, &whom, vb_route(VB_GRH_WORD(0, 0, 0), 64, 0), mad));
	until_asked(second);
	kit_cont(pid);
	kit_until(&board->heard, 1);
	for (double end = kit_now() + 20; atomic_load(&second->state) == VB_PEER_CONTACTING ||
					  atomic_load(&first->state) == VB_PEER_CONTACTING;)
		CHECK(kit_now() < end);
	CHECK(atomic_load(&first->state) == VB_PEER_UP && atomic_load(&second->state) == VB_PEER_IDLE);
	CHECK(!atomic_load(&kit_gsi_gone), "QP1's user was told of the number that is not used");
	CHECK(atomic_load(&board->heard) == 1);
	vb_peer_put(first);
	vb_peer_put(second);
	kill(pid, SIGKILL);
	kit_reap(pid);
	return 0;
}
