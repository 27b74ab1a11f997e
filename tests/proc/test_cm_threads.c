/* Threads in rdma_cm: connections of many on one channel and on their own, ids that go while their events
 * come, events that move to another channel, acknowledgements that are waited for, and threads that wait:
 * without blocking, by poll() and edge-triggered epoll, interrupted and cancelled. */
#include <fcntl.h>
#include <pthread.h>
#include <sys/epoll.h>

#include "cm.h"

enum { THREADS = 8 };

/* What the system's header lacks. */
enum { USER = 18 };
int rdma_write_cm_event(struct rdma_cm_id *id, enum rdma_cm_event_type event, int status, uint64_t arg);

static struct board {
	_Atomic int listening, done;
	uint16_t port;
} * board;

static int rounds(void)
{
	return getenv("VERBENA_SOAK") ? 500 : 20;
}

/* ---- the other process takes whatever comes ---- */

static void serve(void)
{
	struct rdma_event_channel *ch = kit_cm_channel();
	struct rdma_cm_id *listener = kit_cm_listen(ch, &board->port);
	int left = 0;

	atomic_store(&board->listening, 1);
	while (!atomic_load(&board->done) || left) {
		struct rdma_conn_param p = {.responder_resources = 1, .initiator_depth = 1};
		struct kit_cm_event e;

		if (!kit_cm_comes(ch, 0.01))
			continue;
		e = kit_cm_next(ch);
		switch ((int)e.type) {
		case RDMA_CM_EVENT_CONNECT_REQUEST:
			kit_cm_qp(e.id);
			if (rdma_accept(e.id, &p)) { /* it has given up meanwhile */
				CHECK(errno == EINVAL, "%s", strerror(errno));
				kit_cm_end(e.id);
			} else {
				left++;
			}
			break;
		case RDMA_CM_EVENT_DISCONNECTED:
		case RDMA_CM_EVENT_REJECTED:
			kit_cm_end(e.id);
			left--;
			break;
		case RDMA_CM_EVENT_ESTABLISHED:
			break;
		default:
			CHECK(0, "%s", rdma_event_str(e.type));
		}
	}
	KIT_CM(rdma_destroy_id(listener));
	rdma_destroy_event_channel(ch);
}

static pid_t server;

static void begin(void)
{
	board = kit_shared(sizeof *board);
	server = kit_fork();
	if (!server) {
		serve();
		exit(0);
	}
	kit_until(&board->listening, 1);
}

static void end(void)
{
	atomic_store(&board->done, 1);
	CHECK(!kit_reap(server));
}

static void in_threads(void *(*f)(void *), void *arg)
{
	pthread_t t[THREADS];

	for (int i = 0; i < THREADS; i++)
		CHECK(!pthread_create(&t[i], NULL, f, arg));
	for (int i = 0; i < THREADS; i++)
		CHECK(!pthread_join(t[i], NULL));
}

/* The queue that all share is made by one of them. */
static void make_queue(void)
{
	struct rdma_event_channel *ch = kit_cm_channel();

	kit_cm_end(kit_cm_ready(ch, RDMA_PS_TCP, board->port));
	rdma_destroy_event_channel(ch);
}

/* ---- channels of their own ---- */

static void *on_its_own(void *arg)
{
	struct rdma_event_channel *ch = kit_cm_channel();

	(void)arg;
	for (int i = 0; i < rounds(); i++) {
		struct rdma_cm_id *id = kit_cm_ready(ch, RDMA_PS_TCP, board->port);

		kit_cm_connect(id);
		kit_cm_expect(ch, RDMA_CM_EVENT_ESTABLISHED, 0);
		KIT_CM(rdma_disconnect(id));
		kit_cm_expect(ch, RDMA_CM_EVENT_DISCONNECTED, 0);
		kit_cm_end(id);
	}
	rdma_destroy_event_channel(ch);
	return NULL;
}

static void channels_of_their_own(void)
{
	begin();
	make_queue();
	in_threads(on_its_own, NULL);
	end();
}

/* ---- one channel for all ---- */

struct shared {
	struct rdma_event_channel *ch;
	_Atomic int left, events[16];
};

static void resolve(struct rdma_event_channel *ch)
{
	KIT_CM(rdma_resolve_addr(kit_cm_id(ch, RDMA_PS_TCP), NULL, kit_cm_local(board->port), 2000));
}

/* Whoever gets an event does what comes next; the last one lets the others go. */
static void *on_one(void *arg)
{
	struct shared *s = arg;

	while (atomic_load(&s->left) > 0) {
		struct rdma_cm_event *e;
		struct rdma_cm_id *id;
		int type;

		if (rdma_get_cm_event(s->ch, &e)) {
			CHECK(errno == EAGAIN, "%s", strerror(errno));
			(void)kit_cm_comes(s->ch, 0.01);
			continue;
		}
		id = e->id;
		type = (int)e->event;
		CHECK(!e->status && type < 16, "%s, %d", rdma_event_str(e->event), e->status);
		KIT_CM(rdma_ack_cm_event(e));
		atomic_fetch_add(&s->events[type], 1);
		switch (type) {
		case RDMA_CM_EVENT_ADDR_RESOLVED:
			KIT_CM(rdma_resolve_route(id, 2000));
			break;
		case RDMA_CM_EVENT_ROUTE_RESOLVED:
			kit_cm_qp(id);
			kit_cm_connect(id);
			break;
		case RDMA_CM_EVENT_ESTABLISHED:
			KIT_CM(rdma_disconnect(id));
			break;
		case RDMA_CM_EVENT_DISCONNECTED:
			kit_cm_end(id);
			if (atomic_fetch_sub(&s->left, 1) > THREADS)
				resolve(s->ch);
			break;
		default:
			CHECK(0, "%s", rdma_event_str((enum rdma_cm_event_type)type));
		}
	}
	return NULL;
}

static void one_channel_for_all(void)
{
	static struct shared s;
	int n = THREADS * rounds();

	begin();
	make_queue();
	s.ch = kit_cm_channel();
	CHECK(!fcntl(s.ch->fd, F_SETFL, O_NONBLOCK));
	atomic_store(&s.left, n);
	for (int i = 0; i < THREADS; i++)
		resolve(s.ch);
	in_threads(on_one, &s);
	CHECK(atomic_load(&s.events[RDMA_CM_EVENT_ESTABLISHED]) == n, "%d",
	      s.events[RDMA_CM_EVENT_ESTABLISHED]);
	CHECK(!kit_cm_comes(s.ch, 0));
	rdma_destroy_event_channel(s.ch);
	end();
}

/* ---- ids that go while their events come ---- */

struct going {
	_Atomic int gone;
};

static _Atomic int enough;

static void *take_all(void *channel)
{
	struct rdma_event_channel *ch = channel;

	while (!atomic_load(&enough)) {
		struct rdma_cm_event *e;

		if (!kit_cm_comes(ch, 0.01))
			continue;
		if (rdma_get_cm_event(ch, &e)) {
			CHECK(errno == EAGAIN, "%s", strerror(errno)); /* it was taken back */
			continue;
		}
		CHECK(!atomic_load(&((struct going *)e->id->context)->gone),
		      "an event of an id that is gone");
		KIT_CM(rdma_ack_cm_event(e));
	}
	return NULL;
}

static void *come_and_go(void *channel)
{
	uint64_t rng = (uint64_t)gettid();

	for (int i = 0; i < 4 * rounds(); i++) {
		struct rdma_event_channel *own = kit_cm_channel();
		struct going *g = calloc(1, sizeof(*g)); /* kept: the address is the id's */
		struct rdma_cm_id *id = kit_cm_ready(own, RDMA_PS_TCP, board->port);

		id->context = g;
		KIT_CM(rdma_migrate_id(id, channel));
		rdma_destroy_event_channel(own);
		kit_cm_connect(id);
		kit_nap_us(kit_below(&rng, 3000));
		if (kit_below(&rng, 2))
			(void)rdma_disconnect(id);
		KIT_CM(rdma_destroy_id(id)); /* the queue pair after it, as programs do */
		atomic_store(&g->gone, 1);
	}
	return NULL;
}

static void ids_go_while_events_come(void)
{
	struct rdma_event_channel *ch;
	pthread_t t;

	begin();
	make_queue();
	ch = kit_cm_channel();
	CHECK(!fcntl(ch->fd, F_SETFL, O_NONBLOCK));
	CHECK(!pthread_create(&t, NULL, take_all, ch));
	in_threads(come_and_go, ch);
	atomic_store(&enough, 1);
	CHECK(!pthread_join(t, NULL));
	CHECK(!kit_cm_comes(ch, 0.05)); /* no token is left of what was taken back */
	rdma_destroy_event_channel(ch);
	end();
}

/* ---- requests that are called off while they are accepted ---- */

struct answer {
	_Atomic int given; /* 1: by rdma_accept(); -1: it failed; 0: it has not returned yet */
};

/* Whoever takes the end of a connection destroys it, while the thread that accepts it may still do so. */
static void *accept_all(void *channel)
{
	struct rdma_event_channel *ch = channel;

	while (!atomic_load(&enough)) {
		struct rdma_conn_param p = {.qp_num = 77, .responder_resources = 1, .initiator_depth = 1};
		struct rdma_cm_event *e;
		struct rdma_cm_id *id;
		struct answer *a;
		int type, err;

		if (!kit_cm_comes(ch, 0.01) || rdma_get_cm_event(ch, &e))
			continue;
		id = e->id;
		type = (int)e->event;
		if (type == RDMA_CM_EVENT_CONNECT_REQUEST) {
			id->context = a = calloc(1, sizeof(*a)); /* kept */
			KIT_CM(rdma_ack_cm_event(e));
			err = rdma_accept(id, &p);
			if (err)
				KIT_CM(rdma_destroy_id(id));
			atomic_store(&a->given, err ? -1 : 1);
			continue;
		}
		a = id->context;
		kit_until(&a->given, 1);
		CHECK(atomic_load(&a->given) == 1, "%s of an id that was not accepted",
		      rdma_event_str(e->event));
		KIT_CM(rdma_ack_cm_event(e));
		if (type != RDMA_CM_EVENT_ESTABLISHED && type != RDMA_CM_EVENT_TIMEWAIT_EXIT)
			KIT_CM(rdma_destroy_id(id));
	}
	return NULL;
}

static void call_off(void)
{
	struct rdma_conn_param p = {.qp_num = 78, .responder_resources = 1, .initiator_depth = 1};
	struct rdma_event_channel *ch = kit_cm_channel();
	uint64_t rng = 7;

	kit_until(&board->listening, 1);
	for (int i = 0; i < 100 * rounds(); i++) {
		struct rdma_cm_id *id = kit_cm_bare(ch, RDMA_PS_TCP, board->port);

		KIT_CM(rdma_connect(id, &p));
		kit_nap_us(kit_below(&rng, 400));
		KIT_CM(rdma_destroy_id(id));
	}
	rdma_destroy_event_channel(ch);
}

static void requests_are_called_off(void)
{
	struct rdma_event_channel *ch;
	struct rdma_cm_id *listener;
	pthread_t t[4];
	pid_t client;

	board = kit_shared(sizeof *board);
	client = kit_fork();
	if (!client) {
		call_off();
		exit(0);
	}
	ch = kit_cm_channel();
	listener = kit_cm_listen_at(ch, RDMA_PS_TCP, &board->port, 100);
	CHECK(!fcntl(ch->fd, F_SETFL, O_NONBLOCK));
	atomic_store(&board->listening, 1);
	for (int i = 0; i < 4; i++)
		CHECK(!pthread_create(&t[i], NULL, accept_all, ch));
	CHECK(!kit_reap(client));
	atomic_store(&enough, 1);
	for (int i = 0; i < 4; i++)
		CHECK(!pthread_join(t[i], NULL));
	KIT_CM(rdma_destroy_id(listener));
}

/* ---- migration ---- */

static void undelivered_events_go_along(void)
{
	struct rdma_event_channel *a = kit_cm_channel(), *b = kit_cm_channel();
	struct rdma_cm_id *listener, *id, *fresh;
	struct rdma_cm_event *e;
	uint16_t port = 0;

	listener = kit_cm_listen(a, &port);
	id = kit_cm_ready(b, RDMA_PS_TCP, port);
	kit_cm_connect(id);
	CHECK(kit_cm_comes(a, KIT_CM_PATIENCE));
	KIT_CM(rdma_migrate_id(listener, b));
	CHECK(listener->channel == b && !kit_cm_comes(a, 0));
	CHECK(!fcntl(a->fd, F_SETFL, O_NONBLOCK));
	KIT_CM_FAILS(rdma_get_cm_event(a, &e), EAGAIN);
	fresh = kit_cm_expect(b, RDMA_CM_EVENT_CONNECT_REQUEST, 0).id;
	CHECK(fresh->channel == b);
	kit_cm_qp(fresh);
	kit_cm_accept(fresh);
	CHECK(kit_cm_comes(b, KIT_CM_PATIENCE)); /* the client's */
	KIT_CM(rdma_migrate_id(id, a));
	CHECK(!kit_cm_comes(b, 0.05));
	CHECK(kit_cm_expect(a, RDMA_CM_EVENT_ESTABLISHED, 0).id == id);
	CHECK(kit_cm_expect(b, RDMA_CM_EVENT_ESTABLISHED, 0).id == fresh);
	/* to a synchronous one and back */
	KIT_CM(rdma_migrate_id(id, NULL));
	CHECK(id->channel != a && id->channel != b);
	KIT_CM(rdma_disconnect(fresh));
	kit_cm_expect(id->channel, RDMA_CM_EVENT_DISCONNECTED, 0);
	KIT_CM(rdma_migrate_id(id, a));
	kit_cm_end(id);
	kit_cm_expect(b, RDMA_CM_EVENT_DISCONNECTED, 0);
	kit_cm_end(fresh);
	KIT_CM(rdma_destroy_id(listener));
	rdma_destroy_event_channel(a);
	rdma_destroy_event_channel(b);
}

/* ---- acknowledgements ---- */

static _Atomic int acknowledged;

static void *acknowledge_later(void *event)
{
	kit_nap(200);
	atomic_store(&acknowledged, 1);
	KIT_CM(rdma_ack_cm_event(event));
	return NULL;
}

static void destroying_waits_for_acknowledgements(void)
{
	struct rdma_event_channel *ch = kit_cm_channel();
	struct rdma_cm_id *id = kit_cm_id(ch, RDMA_PS_TCP);
	struct rdma_cm_event *e;
	pthread_t t;

	KIT_CM(rdma_resolve_addr(id, NULL, kit_cm_local(9), 2000));
	KIT_CM(rdma_get_cm_event(ch, &e));
	CHECK(!pthread_create(&t, NULL, acknowledge_later, e));
	KIT_CM(rdma_destroy_id(id));
	CHECK(atomic_load(&acknowledged));
	CHECK(!pthread_join(t, NULL));
	rdma_destroy_event_channel(ch);
}

static void *destroys(void *id)
{
	KIT_CM(rdma_destroy_id(id));
	return NULL;
}

/* Whoever has an event of it leaves nothing with an id that is being destroyed: no event, no option, and it
 * stays on its channel. */
static void what_is_destroyed_takes_nothing(void)
{
	struct rdma_event_channel *ch = kit_cm_channel(), *other = kit_cm_channel();
	struct rdma_cm_id *id = kit_cm_id(ch, RDMA_PS_TCP);
	struct rdma_cm_event *e;
	uint8_t tos = 1;
	pthread_t t;

	KIT_CM(rdma_resolve_addr(id, NULL, kit_cm_local(9), 2000));
	KIT_CM(rdma_get_cm_event(ch, &e));
	CHECK(!pthread_create(&t, NULL, destroys, id));
	kit_until_blocked();
	KIT_CM_FAILS(rdma_write_cm_event(id, (enum rdma_cm_event_type)USER, 0, 0), EINVAL);
	KIT_CM_FAILS(rdma_set_option(id, RDMA_OPTION_ID, RDMA_OPTION_ID_TOS, &tos, sizeof tos), EINVAL);
	KIT_CM_FAILS(rdma_migrate_id(id, other), EINVAL);
	CHECK(id->channel == ch);
	KIT_CM(rdma_ack_cm_event(e));
	CHECK(!pthread_join(t, NULL));
	CHECK(!kit_cm_comes(ch, 0) && !kit_cm_comes(other, 0));
	rdma_destroy_event_channel(ch);
	rdma_destroy_event_channel(other);
}

/* ---- waiting ---- */

static void each_event_is_an_edge(void)
{
	struct rdma_event_channel *ch = kit_cm_channel();
	struct epoll_event ev = {.events = EPOLLIN | EPOLLET};
	struct rdma_cm_id *ids[2];
	struct rdma_cm_event *e;
	int set = epoll_create1(0);

	CHECK(!fcntl(ch->fd, F_SETFL, O_NONBLOCK));
	CHECK(set >= 0 && !epoll_ctl(set, EPOLL_CTL_ADD, ch->fd, &ev));
	KIT_CM_FAILS(rdma_get_cm_event(ch, &e), EAGAIN);
	CHECK(!epoll_wait(set, &ev, 1, 0));
	for (int i = 0; i < 2; i++) { /* nothing is taken in between */
		ids[i] = kit_cm_id(ch, RDMA_PS_TCP);
		KIT_CM(rdma_resolve_addr(ids[i], NULL, kit_cm_local(9), 2000));
		CHECK(epoll_wait(set, &ev, 1, KIT_CM_PATIENCE * 1000) == 1);
		CHECK(!epoll_wait(set, &ev, 1, 0));
	}
	for (int i = 0; i < 2; i++)
		CHECK(kit_cm_expect(ch, RDMA_CM_EVENT_ADDR_RESOLVED, 0).id == ids[i]);
	KIT_CM_FAILS(rdma_get_cm_event(ch, &e), EAGAIN);
	for (int i = 0; i < 2; i++)
		KIT_CM(rdma_destroy_id(ids[i]));
	close(set);
	rdma_destroy_event_channel(ch);
}

static _Atomic int signals;

static void on_signal(int sig)
{
	(void)sig;
	atomic_fetch_add(&signals, 1);
}

static void *is_interrupted(void *channel)
{
	struct rdma_cm_event *e;

	KIT_CM_FAILS(rdma_get_cm_event(channel, &e), EINTR);
	return NULL;
}

static void *is_cancelled(void *channel)
{
	struct rdma_cm_event *e;

	(void)rdma_get_cm_event(channel, &e);
	return NULL;
}

static void *takes_one(void *channel)
{
	kit_cm_expect(channel, RDMA_CM_EVENT_ADDR_RESOLVED, 0);
	return NULL;
}

static void interrupt_and_cancel(struct rdma_event_channel *ch)
{
	struct sigaction act = {.sa_handler = on_signal}; /* without SA_RESTART */
	struct rdma_cm_id *id;
	pthread_t t;
	void *how;

	CHECK(!sigaction(SIGUSR1, &act, NULL));
	CHECK(!pthread_create(&t, NULL, is_interrupted, ch));
	kit_until_blocked();
	CHECK(!pthread_kill(t, SIGUSR1) && !pthread_join(t, NULL));
	CHECK(!pthread_create(&t, NULL, is_cancelled, ch));
	kit_until_blocked();
	CHECK(!pthread_cancel(t) && !pthread_join(t, &how) && how == PTHREAD_CANCELED);
	/* nothing was left held */
	CHECK(!pthread_create(&t, NULL, takes_one, ch));
	kit_until_blocked();
	id = kit_cm_id(ch, RDMA_PS_TCP);
	KIT_CM(rdma_resolve_addr(id, NULL, kit_cm_local(9), 2000));
	CHECK(!pthread_join(t, NULL));
	KIT_CM(rdma_destroy_id(id));
}

static void *goes_on(void *channel)
{
	struct rdma_cm_event *e;

	KIT_CM(rdma_get_cm_event(channel, &e));
	CHECK(e->event == RDMA_CM_EVENT_ADDR_RESOLVED, "%s", rdma_event_str(e->event));
	KIT_CM(rdma_ack_cm_event(e));
	return NULL;
}

static void interrupt_in_passing(struct rdma_event_channel *ch)
{
	struct sigaction act = {.sa_handler = on_signal, .sa_flags = SA_RESTART};
	int before = atomic_load(&signals);
	struct rdma_cm_id *id;
	pthread_t t;

	CHECK(!sigaction(SIGUSR1, &act, NULL));
	CHECK(!pthread_create(&t, NULL, goes_on, ch));
	kit_until_blocked();
	CHECK(!pthread_kill(t, SIGUSR1));
	kit_until(&signals, before + 1);
	kit_until_blocked(); /* it waits again */
	id = kit_cm_id(ch, RDMA_PS_TCP);
	KIT_CM(rdma_resolve_addr(id, NULL, kit_cm_local(9), 2000));
	CHECK(!pthread_join(t, NULL));
	KIT_CM(rdma_destroy_id(id));
}

/* A thread that is to end does so where it waits, and nowhere else: a call leaves nothing half done. */
static void *resolves_and_waits(void *arg)
{
	struct rdma_cm_id *id = arg;
	struct rdma_event_channel *nothing_comes = kit_cm_channel();

	CHECK(!pthread_cancel(pthread_self()));
	KIT_CM(rdma_resolve_addr(id, NULL, kit_cm_local(9), 2000));
	(void)is_cancelled(nothing_comes);
	return NULL;
}

static void *destroys_and_waits(void *id)
{
	CHECK(!pthread_cancel(pthread_self()));
	(void)rdma_destroy_id(id);
	return NULL;
}

static void end_in(void *(*f)(void *), struct rdma_cm_id *id)
{
	pthread_t t;
	void *how;

	CHECK(!pthread_create(&t, NULL, f, id));
	CHECK(!pthread_join(t, &how) && how == PTHREAD_CANCELED);
}

static void cancelled_threads_leave_nothing_held(void)
{
	struct rdma_event_channel *ch = kit_cm_channel();
	struct rdma_cm_id *id = kit_cm_id(ch, RDMA_PS_TCP), *other = kit_cm_id(ch, RDMA_PS_TCP);
	struct rdma_cm_event *e, *unacknowledged;

	end_in(resolves_and_waits, id);
	KIT_CM(rdma_get_cm_event(ch, &unacknowledged));
	end_in(destroys_and_waits, id);
	KIT_CM(rdma_resolve_addr(other, NULL, kit_cm_local(9), 2000));
	KIT_CM(rdma_get_cm_event(ch, &e));
	KIT_CM(rdma_ack_cm_event(e));
	KIT_CM(rdma_destroy_id(other));
	KIT_CM(rdma_ack_cm_event(unacknowledged));
}

/* Before there is a device, and when one is at work. */
static void waiting_threads_are_interrupted_and_cancelled(void)
{
	struct rdma_event_channel *ch = kit_cm_channel();

	interrupt_and_cancel(ch);
	interrupt_and_cancel(ch);
	rdma_destroy_event_channel(ch);
}

/* As read() of the channel would be; in the same two situations. */
static void waiting_is_begun_again(void)
{
	struct rdma_event_channel *ch = kit_cm_channel();

	interrupt_in_passing(ch);
	interrupt_in_passing(ch);
	rdma_destroy_event_channel(ch);
}

int main(int argc, char **argv)
{
	static const struct kit_case cases[] = {
	    {"channels of their own", channels_of_their_own, false, true},
	    {"one channel for all", one_channel_for_all, false, true},
	    {"ids go while events come", ids_go_while_events_come, false, false},
	    {"requests are called off", requests_are_called_off, false, false},
	    {"undelivered events go along", undelivered_events_go_along, false, true},
	    {"destroying waits for acknowledgements", destroying_waits_for_acknowledgements, false, true},
	    {"what is destroyed takes nothing", what_is_destroyed_takes_nothing, false, true},
	    {"each event is an edge", each_event_is_an_edge, false, true},
	    {"cancelled threads leave nothing held", cancelled_threads_leave_nothing_held, false, false},
	    {"waiting threads are interrupted and cancelled", waiting_threads_are_interrupted_and_cancelled,
	     false, false},
	    {"waiting is begun again", waiting_is_begun_again, false, true},
	};

	KIT_CASES(cases, getenv("VERBENA_SOAK") ? 300 : 60);
	return 0;
}
