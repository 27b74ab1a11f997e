/* fork() in rdma_cm programs: to a child its parent's ids and channels are dead, it begins anew with its own,
 * and the parent goes on as if nothing had been; also where other threads of the parent are in the middle of
 * calls. */
#include <fcntl.h>
#include <pthread.h>
#include <sys/eventfd.h>
#include <sys/syscall.h>

#include "cm.h"

#ifdef __SANITIZE_ADDRESS__
enum { ALLOCATES = 0 }; /* its locks stay as other threads had them at the fork, unlike malloc()'s */
#else
enum { ALLOCATES = 1 };
#endif

static struct board {
	_Atomic int listening, done;
	uint16_t port;
} * board;

/* Takes what comes until the board says done. */
static void serve(void)
{
	struct rdma_event_channel *ch = kit_cm_channel();
	struct rdma_cm_id *listener = kit_cm_listen(ch, &board->port);

	atomic_store(&board->listening, 1);
	while (!atomic_load(&board->done)) {
		struct kit_cm_event e;

		if (!kit_cm_comes(ch, 0.01))
			continue;
		e = kit_cm_next(ch);
		if (e.type == RDMA_CM_EVENT_CONNECT_REQUEST) {
			kit_cm_qp(e.id);
			kit_cm_accept(e.id);
		} else if (e.type == RDMA_CM_EVENT_DISCONNECTED || e.type == RDMA_CM_EVENT_REJECTED) {
			kit_cm_end(e.id);
		}
	}
	KIT_CM(rdma_destroy_id(listener));
	rdma_destroy_event_channel(ch);
}

static pid_t begin(void)
{
	pid_t pid;

	board = kit_shared(sizeof *board);
	pid = kit_fork();
	if (!pid) {
		serve();
		_exit(0);
	}
	kit_until(&board->listening, 1);
	return pid;
}

static void end(pid_t server)
{
	atomic_store(&board->done, 1);
	CHECK(!kit_reap(server));
}

static void connect_once(uint16_t port)
{
	struct rdma_event_channel *ch = kit_cm_channel();
	struct rdma_cm_id *id = kit_cm_ready(ch, RDMA_PS_TCP, port);

	kit_cm_connect(id);
	kit_cm_expect(ch, RDMA_CM_EVENT_ESTABLISHED, 0);
	KIT_CM(rdma_disconnect(id));
	kit_cm_expect(ch, RDMA_CM_EVENT_DISCONNECTED, 0);
	kit_cm_end(id);
	rdma_destroy_event_channel(ch);
}

/* Both ends in one process that has just begun. */
static void be_a_listener(void)
{
	struct rdma_event_channel *ch = kit_cm_channel(), *other = kit_cm_channel();
	uint16_t port = 0;
	struct rdma_cm_id *listener = kit_cm_listen(ch, &port), *id = kit_cm_ready(other, RDMA_PS_TCP, port),
			  *fresh;

	kit_cm_connect(id);
	fresh = kit_cm_take(ch);
	kit_cm_expect(other, RDMA_CM_EVENT_ESTABLISHED, 0);
	kit_cm_expect(ch, RDMA_CM_EVENT_ESTABLISHED, 0);
	kit_cm_end(id);
	kit_cm_end(fresh);
	KIT_CM(rdma_destroy_id(listener));
	rdma_destroy_event_channel(ch);
	rdma_destroy_event_channel(other);
}

struct parents {
	struct rdma_event_channel *ch;
	struct rdma_cm_id *connected, *listener, *idle;
	struct rdma_cm_event *unacknowledged;
};

static void its_parents_are_dead(const struct parents *p)
{
	struct rdma_conn_param param = {.qp_num = 1};
	struct ibv_qp_attr attr = {.qp_state = IBV_QPS_INIT};
	struct rdma_cm_event *e;
	struct rdma_cm_id *id;
	int mask;

	KIT_CM_FAILS(rdma_get_cm_event(p->ch, &e), EIO);
	KIT_CM_FAILS(rdma_create_id(p->ch, &id, NULL, RDMA_PS_TCP), EIO);
	KIT_CM_FAILS(rdma_bind_addr(p->idle, kit_cm_local(0)), EIO);
	KIT_CM_FAILS(rdma_resolve_addr(p->idle, NULL, kit_cm_local(9), 1000), EIO);
	KIT_CM_FAILS(rdma_listen(p->idle, 0), EIO);
	KIT_CM_FAILS(rdma_connect(p->connected, &param), EIO);
	KIT_CM_FAILS(rdma_accept(p->connected, &param), EIO);
	KIT_CM_FAILS(rdma_reject(p->connected, NULL, 0), EIO);
	KIT_CM_FAILS(rdma_disconnect(p->connected), EIO);
	KIT_CM_FAILS(rdma_notify(p->connected, IBV_EVENT_COMM_EST), EIO);
	KIT_CM_FAILS(rdma_init_qp_attr(p->connected, &attr, &mask), EIO);
	KIT_CM_FAILS(rdma_migrate_id(p->connected, p->ch), EIO);
	KIT_CM_FAILS(rdma_join_multicast(p->idle, kit_cm_local(9), NULL), EIO);
	KIT_CM_FAILS(rdma_leave_multicast(p->idle, kit_cm_local(9)), EIO);
	/* being rid of them is no mistake, and touches nothing of the parent's; nor does it wait for
	 * acknowledgements */
	rdma_destroy_qp(p->connected);
	KIT_CM(rdma_destroy_id(p->connected));
	KIT_CM(rdma_ack_cm_event(p->unacknowledged));
	KIT_CM(rdma_destroy_id(p->idle));
	KIT_CM(rdma_destroy_id(p->listener));
	rdma_destroy_event_channel(p->ch);
}

static void a_child_begins_anew(void)
{
	pid_t server = begin(), child;
	struct parents p = {.ch = kit_cm_channel()};
	struct rdma_cm_id *fresh, *mine;
	uint16_t port = 0;

	p.listener = kit_cm_listen(p.ch, &port);
	p.connected = kit_cm_ready(p.ch, RDMA_PS_TCP, board->port);
	p.idle = kit_cm_id(p.ch, RDMA_PS_TCP);
	kit_cm_connect(p.connected);
	KIT_CM(rdma_get_cm_event(p.ch, &p.unacknowledged));
	CHECK(p.unacknowledged->event == RDMA_CM_EVENT_ESTABLISHED);
	mine = kit_cm_ready(p.ch, RDMA_PS_TCP, port);
	kit_cm_connect(mine);
	CHECK(kit_cm_comes(p.ch, KIT_CM_PATIENCE)); /* a request, which the child may not take away */
	child = kit_fork();
	if (!child) {
		its_parents_are_dead(&p);
		kit_cm_cq = NULL;
		connect_once(board->port);
		be_a_listener();
		_exit(0);
	}
	CHECK(!kit_reap(child));
	fresh = kit_cm_take(p.ch);
	for (int i = 0; i < 2; i++)
		kit_cm_expect(p.ch, RDMA_CM_EVENT_ESTABLISHED, 0);
	KIT_CM(rdma_ack_cm_event(p.unacknowledged));
	KIT_CM(rdma_disconnect(p.connected));
	CHECK(kit_cm_expect(p.ch, RDMA_CM_EVENT_DISCONNECTED, 0).id == p.connected);
	kit_cm_end(p.connected);
	kit_cm_end(mine);
	kit_cm_end(fresh);
	KIT_CM(rdma_destroy_id(p.idle));
	KIT_CM(rdma_destroy_id(p.listener));
	rdma_destroy_event_channel(p.ch);
	end(server);
}

/* It closes all descriptors that it inherits, and has one of its own where its parent has a channel. */
static void a_child_keeps_its_own(void)
{
	struct rdma_event_channel *ch = kit_cm_channel();
	pid_t child = kit_fork();

	if (!child) {
		int fd;

		CHECK(!syscall(SYS_close_range, 3, ~0u, 0));
		do
			fd = eventfd(0, 0);
		while (fd < ch->fd);
		CHECK(fd == ch->fd);
		rdma_destroy_event_channel(ch);
		CHECK(fcntl(fd, F_GETFD) >= 0);
		_exit(0);
	}
	CHECK(!kit_reap(child));
	rdma_destroy_event_channel(ch);
}

static _Atomic int enough;

static void *connects(void *arg)
{
	(void)arg;
	while (!atomic_load(&enough))
		connect_once(board->port);
	return NULL;
}

/* The locks that fork() takes are taken in one order by everybody. */
static void while_others_are_in_calls(void)
{
	enum { THREADS = 4 };
	int children = getenv("VERBENA_SOAK") ? 1000 : 100;
	pthread_t t[THREADS];
	pid_t server = begin();

	connect_once(board->port);
	for (int i = 0; i < THREADS; i++)
		CHECK(!pthread_create(&t[i], NULL, connects, NULL));
	for (int i = 0; i < children; i++) {
		pid_t child = kit_fork();

		if (!child) {
			kit_cm_cq = NULL;
			if (ALLOCATES)
				connect_once(board->port);
			_exit(0);
		}
		CHECK(!kit_reap(child), "child %d", i);
	}
	atomic_store(&enough, 1);
	for (int i = 0; i < THREADS; i++)
		CHECK(!pthread_join(t[i], NULL));
	connect_once(board->port);
	end(server);
}

/* What one leaves in TIMEWAIT at the other end is not the next one's: neither QPNs nor communication IDs,
 * which begin with the adapter's number. */
static void each_child_has_another_number(void)
{
	enum { CHILDREN = 8 };
	uint32_t *number = kit_shared(CHILDREN * sizeof *number);
	pid_t server = begin();
	int different = 0;

	connect_once(board->port); /* the parent has one, too */
	for (int i = 0; i < CHILDREN; i++) {
		pid_t child = kit_fork();

		if (!child) {
			struct rdma_event_channel *ch;
			struct rdma_cm_id *id;

			kit_cm_cq = NULL;
			ch = kit_cm_channel();
			id = kit_cm_ready(ch, RDMA_PS_TCP, board->port);
			number[i] = id->qp->qp_num >> 12;
			_exit(0);
		}
		CHECK(!kit_reap(child));
	}
	for (int i = 0; i < CHILDREN; i++) {
		int j = 0;

		while (j < i && number[j] != number[i])
			j++;
		different += j == i;
	}
	CHECK(different >= CHILDREN - 2, "%d", different); /* of 4,095 by chance */
	end(server);
}

int main(int argc, char **argv)
{
	static const struct kit_case cases[] = {
	    {"a child begins anew", a_child_begins_anew, false, true},
	    {"while others are in calls", while_others_are_in_calls, false, false},
	    {"a child keeps its own", a_child_keeps_its_own, false, true},
	    {"each child has another number", each_child_has_another_number, false, false},
	};

	KIT_CASES(cases, getenv("VERBENA_SOAK") ? 300 : 60);
	return 0;
}
