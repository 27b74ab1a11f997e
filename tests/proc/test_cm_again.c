/* A request is said again after 4.3 s, and its listener may be closed by then, and another process listen
 * there. It goes to whoever had it first: if that one took it, it is known there; if not, it is handed on. */
#include "cm.h"

enum { TAKEN, LOOKED_UP, DROPPED, PORTS };

static const enum rdma_port_space spaces[PORTS] = {RDMA_PS_TCP, RDMA_PS_UDP, RDMA_PS_TCP};

static struct board {
	_Atomic int listening, asked, closed, others, over;
	uint16_t ports[PORTS];
} * board;

static void listen_at_all(struct rdma_event_channel *c[PORTS], struct rdma_cm_id *id[PORTS])
{
	for (int i = 0; i < PORTS; i++) {
		c[i] = kit_cm_channel();
		id[i] = kit_cm_listen_at(c[i], spaces[i], &board->ports[i], i == DROPPED ? 1 : 8);
	}
}

/* Takes one request and one lookup, and closes its listeners before it answers. */
static void answers_late(void)
{
	struct rdma_event_channel *c[PORTS];
	struct rdma_cm_id *listener[PORTS], *id[PORTS] = {0};

	listen_at_all(c, listener);
	atomic_store(&board->listening, 1);
	kit_until(&board->asked, 1);
	for (int i = TAKEN; i <= LOOKED_UP; i++)
		id[i] = kit_cm_expect(c[i], RDMA_CM_EVENT_CONNECT_REQUEST, 0).id;
	for (int i = 0; i < PORTS; i++)
		KIT_CM(rdma_destroy_id(listener[i]));
	atomic_store(&board->closed, 1);
	kit_until(&board->over, 1);
	for (int i = TAKEN; i <= LOOKED_UP; i++) {
		kit_cm_qp(id[i]);
		kit_cm_accept(id[i]);
	}
	kit_cm_expect(c[TAKEN], RDMA_CM_EVENT_ESTABLISHED, 0);
	kit_until(&board->over, 2);
}

/* Listens there after that one. */
static void comes_after(void)
{
	struct rdma_event_channel *c[PORTS];
	struct rdma_cm_id *listener[PORTS];

	kit_until(&board->closed, 1);
	listen_at_all(c, listener);
	atomic_store(&board->others, 1);
	kit_cm_take(c[DROPPED]);
	kit_cm_expect(c[DROPPED], RDMA_CM_EVENT_ESTABLISHED, 0);
	kit_until(&board->over, 2);
	CHECK(!kit_cm_comes(c[TAKEN], 0), "it got a request that another process had taken");
	CHECK(!kit_cm_comes(c[LOOKED_UP], 0), "it got a lookup that another process had taken");
}

static pid_t begin(void (*run)(void))
{
	pid_t pid = kit_fork();

	if (pid)
		return pid;
	run();
	_exit(0);
}

static void connect_at(struct rdma_event_channel **c, int port)
{
	*c = kit_cm_channel();
	kit_cm_connect(kit_cm_ready(*c, spaces[port], board->ports[port]));
}

static void said_again(void)
{
	struct rdma_event_channel *c[PORTS], *first;
	pid_t one, other;

	board = kit_shared(sizeof *board);
	one = begin(answers_late);
	other = begin(comes_after);
	kit_until(&board->listening, 1);
	connect_at(&first, DROPPED); /* fills the backlog */
	connect_at(&c[DROPPED], DROPPED);
	connect_at(&c[TAKEN], TAKEN); /* which is heard after that */
	connect_at(&c[LOOKED_UP], LOOKED_UP);
	atomic_store(&board->asked, 1);
	kit_cm_expect(first, RDMA_CM_EVENT_REJECTED, 28);
	kit_until(&board->others, 1);
	kit_cm_expect(c[DROPPED], RDMA_CM_EVENT_ESTABLISHED, 0);
	CHECK(!kit_cm_comes(c[TAKEN], 0.3), "the repeat was answered"); /* it is due with that one's */
	CHECK(!kit_cm_comes(c[LOOKED_UP], 0), "the repeat was answered");
	atomic_store(&board->over, 1);
	kit_cm_expect(c[TAKEN], RDMA_CM_EVENT_ESTABLISHED, 0);
	kit_cm_expect(c[LOOKED_UP], RDMA_CM_EVENT_ESTABLISHED, 0);
	atomic_store(&board->over, 2);
	CHECK(!kit_reap(one) && !kit_reap(other));
}

int main(int argc, char **argv)
{
	static const struct kit_case cases[] = {{"said again", said_again, false, false}};

	KIT_CASES(cases, 60);
	return 0;
}
