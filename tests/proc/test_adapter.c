/* Adapters among themselves in one process: links, numbers, sleeping and waking, and what they leave behind.
 */
#include <signal.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/un.h>

#include "host/private.h"
#include "kit.h"
#include "node.h"

/* In one process. */

static void contact_both_ways(void **state)
{
	struct kit_node *x = kit_node_open(), *y = kit_node_open();
	struct vb_peer *xy = kit_connected(x, kit_number_of(y)), *yx;

	(void)state;
	kit_await_count(y, &y->ups, 1);
	yx = vb_peer_get(y->a, kit_number_of(x));
	assert_int_equal(atomic_load(&yx->state), VB_PEER_UP);
	assert_int_equal(kit_peers_up(x), 1);
	assert_int_equal(kit_peers_up(y), 1);
	assert_non_null(vb_peer_shown(xy, kit_number_of(y) << VB_QPN_INDEX_BITS | 2));
	assert_null(vb_peer_shown(xy, kit_number_of(x) << VB_QPN_INDEX_BITS | 2));
	/* Nobody polls: the doorbell wakes the engines. */
	for (int i = 0; i < 200; i++) {
		kit_send_to(xy);
		kit_await(y->arrived);
		kit_send_to(yx);
		kit_await(x->arrived);
	}
	vb_peer_put(xy);
	vb_peer_put(yx);
	kit_node_close(x);
	kit_await_count(y, &y->downs, 1);
	assert_int_equal(y->goodbyes, 1);
	kit_node_close(y);
}

static void link_to_oneself(void **state)
{
	struct kit_node *x = kit_node_open();
	struct vb_peer *peer = vb_peer_get(x->a, kit_number_of(x));

	(void)state;
	assert_int_equal(atomic_load(&peer->state), VB_PEER_UP);
	assert_non_null(vb_peer_shown(peer, kit_number_of(x) << VB_QPN_INDEX_BITS | 2));
	for (int i = 0; i < 100; i++) {
		kit_send_to(peer);
		kit_await(x->arrived);
	}
	vb_peer_put(peer);
	kit_node_close(x);
}

static void nobody_there_stays_idle(void **state)
{
	struct kit_node *x = kit_node_open(), *y = kit_node_open();
	uint32_t gone = kit_number_of(y);
	struct vb_peer *peer;

	(void)state;
	kit_node_close(y);
	peer = vb_peer_get(x->a, gone);
	for (int i = 1; i <= 3; i++) {
		kit_await_count(x, &x->fails, i);
		assert_int_equal(atomic_load(&peer->state), VB_PEER_IDLE);
		vb_peer_contact(peer);
	}
	assert_int_equal(x->ups, 0);
	vb_peer_put(peer);
	kit_node_close(x);
}

static uint32_t idle_peers(const struct kit_node *n)
{
	uint32_t idle = 0;

	for (uint32_t i = 1; i < vb_peer_count(n->a); i++)
		idle += atomic_load(&vb_peer_at(n->a, i)->state) != VB_PEER_DOWN;
	return idle;
}

/* Numbers that nobody has, asked for at once and held no longer, keep a few places only, and without being
 * asked for again. */
static void numbers_without_contact_give_their_places_back(void **state)
{
	enum { ASKED = 100, KEPT = 8 };
	struct kit_node *x = kit_node_open();
	struct vb_peer *peer[ASKED];
	double end = kit_now() + 20;
	uint32_t n = 0;

	(void)state;
	for (uint32_t number = 1; n < ASKED; number++) {
		if (number != kit_number_of(x) && !kit_bound(number << VB_QPN_INDEX_BITS))
			peer[n++] = vb_peer_get(x->a, number);
	}
	kit_await_count(x, &x->fails, ASKED);
	assert_true(vb_peer_count(x->a) > ASKED);
	for (uint32_t i = 0; i < ASKED; i++)
		vb_peer_put(peer[i]);
	vb_adapter_nudge(x->a);
	while (idle_peers(x) > KEPT) {
		if (kit_now() > end)
			fail_msg("%u numbers without contact are kept", idle_peers(x));
		kit_nap(1);
	}
	kit_node_close(x);
}

static void numbers_out_of_range(void **state)
{
	struct kit_node *x = kit_node_open();

	(void)state;
	assert_null(vb_peer_get(x->a, 0));
	assert_null(vb_peer_get(x->a, VB_ADAPTERS));
	assert_null(vb_qpn_find(x->a, 0));
	assert_null(vb_qpn_find(x->a, UINT32_MAX));
	kit_node_close(x);
}

struct racer {
	struct kit_node *n;
	uint32_t number;
	pthread_barrier_t *start;
	struct vb_peer *peer;
};

static void *race(void *arg)
{
	struct racer *r = arg;

	pthread_barrier_wait(r->start);
	r->peer = kit_connected(r->n, r->number);
	return NULL;
}

static void both_contact_at_once(void **state)
{
	(void)state;
	for (int round = 0; round < 100; round++) {
		struct kit_node *x = kit_node_open(), *y = kit_node_open();
		pthread_barrier_t start;
		struct racer r[2] = {{x, kit_number_of(y), &start, NULL},
				     {y, kit_number_of(x), &start, NULL}};
		pthread_t t;

		pthread_barrier_init(&start, NULL, 2);
		pthread_create(&t, NULL, race, &r[0]);
		race(&r[1]);
		pthread_join(t, NULL);
		assert_int_equal(kit_peers_up(x), 1);
		assert_int_equal(kit_peers_up(y), 1);
		kit_send_to(r[0].peer);
		kit_send_to(r[1].peer);
		kit_await(x->arrived);
		kit_await(y->arrived);
		assert_int_equal(x->downs + y->downs, 0);
		assert_int_equal(x->ups, 1);
		assert_int_equal(y->ups, 1);
		pthread_barrier_destroy(&start);
		kit_node_close(x);
		kit_node_close(y);
	}
}

static void sixty_four_adapters(void **state)
{
	enum { N = 64 };
	struct kit_node *n[N];

	(void)state;
	for (int i = 0; i < N; i++)
		n[i] = kit_node_open();
	for (int i = 0; i < N; i++) {
		for (int j = 0; j < N; j += i == 0 ? 1 : 13)
			vb_peer_put(kit_connected(n[i], kit_number_of(n[j])));
		for (int j = 0; j < i; j++)
			assert_int_not_equal(kit_number_of(n[i]), kit_number_of(n[j]));
	}
	assert_true(kit_peers_up(n[0]) >= N - 1); /* other programs of this user may have made contact, too */
	for (int i = 1; i < N; i++) {
		struct vb_peer *peer = vb_peer_get(n[0]->a, kit_number_of(n[i]));

		kit_send_to(peer);
		vb_peer_put(peer);
	}
	for (int i = 1; i < N; i++)
		kit_await(n[i]->arrived);
	for (int i = 0; i < N; i++)
		kit_node_close(n[i]);
}

static void qpns_rest_as_long_as_they_can(void **state)
{
	struct kit_node *x = kit_node_open();
	uint32_t first = vb_qpn_take(x->a, KIT_SOME_QP(x), NULL), qpn;
	int n = 0;

	(void)state;
	assert_int_equal(first >> VB_QPN_INDEX_BITS, kit_number_of(x));
	assert_ptr_equal(vb_qpn_find(x->a, first), KIT_SOME_QP(x));
	vb_qpn_give(x->a, first);
	assert_null(vb_qpn_find(x->a, first));
	while ((qpn = vb_qpn_take(x->a, KIT_SOME_QP(x), NULL)) != first) {
		assert_true(qpn > 1 && qpn != 0xffffff);
		vb_qpn_give(x->a, qpn);
		n++;
	}
	assert_true(n >= VB_QPN_INDICES - 2);
	assert_int_equal(vb_adapter_number_at(x->a, 1), 0);
	kit_node_close(x);
}

/* Takes all QPNs of the first number, and one more. */
static uint32_t outgrow(struct kit_node *n)
{
	uint32_t qpn;

	do
		qpn = vb_qpn_take(n->a, KIT_SOME_QP(n), NULL);
	while (qpn >> VB_QPN_INDEX_BITS == kit_number_of(n));
	assert_int_not_equal(qpn, 0);
	return qpn >> VB_QPN_INDEX_BITS;
}

static void second_number_same_link(void **state)
{
	struct kit_node *x = kit_node_open(), *y = kit_node_open();
	uint32_t second = outgrow(y);
	struct vb_peer *peer = kit_connected(x, kit_number_of(y)), *m = vb_peer_get(x->a, second);

	(void)state;
	assert_ptr_equal(peer, m);
	assert_non_null(vb_peer_shown(peer, second << VB_QPN_INDEX_BITS | 2));
	assert_int_equal(vb_adapter_number_at(y->a, 1), second);
	atomic_store(&vb_qpn_published(y->a, second << VB_QPN_INDEX_BITS | 5)->state, 1);
	assert_true(vb_peer_qp_state(peer, second << VB_QPN_INDEX_BITS | 5));
	assert_false(vb_peer_qp_state(peer, second << VB_QPN_INDEX_BITS | 6));
	assert_ptr_equal(vb_peer_get(y->a, second), vb_peer_at(y->a, 0));
	kit_node_close(x);
	kit_node_close(y);
}

/* Each kind has all indices of an adapter number for itself; a further number is taken for the first kind
 * that outgrows those there are, and then serves the other too. */
static void srqns_are_made_of_the_same_numbers(void **state)
{
	struct kit_node *x = kit_node_open();
	uint32_t first = vb_srqn_take(x->a, NULL), srqn, second;

	(void)state;
	assert_int_equal(first >> VB_QPN_INDEX_BITS, kit_number_of(x));
	assert_int_equal(vb_qpn_take(x->a, KIT_SOME_QP(x), NULL), first); /* of another kind */
	do
		srqn = vb_srqn_take(x->a, NULL);
	while (srqn >> VB_QPN_INDEX_BITS == kit_number_of(x));
	second = vb_adapter_number_at(x->a, 1);
	assert_int_equal(srqn >> VB_QPN_INDEX_BITS, second);
	assert_int_equal(outgrow(x), second);
	assert_int_equal(vb_adapter_number_count(x->a), 2);
	vb_srqn_give(x->a, first);
	assert_int_not_equal(vb_srqn_take(x->a, NULL), first); /* it rests as long as it can */
	kit_node_close(x);
}

/* Contact through two numbers before either is up: one link remains, and the other says which. */
static void two_numbers_at_once(void **state)
{
	(void)state;
	for (int round = 0; round < 30; round++) {
		struct kit_node *x = kit_node_open(), *y = kit_node_open();
		uint32_t second = outgrow(y);
		struct vb_peer *peer = vb_peer_get(x->a, round & 1 ? second : kit_number_of(y));
		struct vb_peer *m = vb_peer_get(x->a, round & 1 ? kit_number_of(y) : second), *back = NULL;

		if (round % 3 == 0)
			back = vb_peer_get(y->a, kit_number_of(x));
		do {
			peer = vb_peer_current(peer);
			m = vb_peer_current(m);
			vb_peer_contact(peer);
			vb_peer_contact(m);
			if (peer != m || atomic_load(&peer->state) != VB_PEER_UP)
				kit_await(x->changed);
		} while (peer != m || atomic_load(&peer->state) != VB_PEER_UP);
		if (back)
			kit_await_peer(y, back);
		kit_await_count(y, &y->ups, 1);
		assert_int_equal(kit_peers_up(x), 1);
		assert_int_equal(kit_peers_up(y), 1);
		assert_int_equal(x->downs + y->downs, 0);
		kit_node_close(x);
		kit_node_close(y);
	}
}

static void link_is_made_anew_for_a_new_peer(void **state)
{
	struct kit_node *x = kit_node_open();

	(void)state;
	for (int i = 1; i <= 20; i++) {
		struct kit_node *y = kit_node_open();
		struct vb_peer *peer = kit_connected(x, kit_number_of(y));

		for (int k = 0; k < 5; k++) {
			kit_send_to(peer);
			kit_await(y->arrived);
		}
		assert_int_equal(y->packets, 5);
		kit_node_close(y);
		kit_await_state(x, peer, VB_PEER_DOWN);
		kit_await_count(x, &x->downs, i);
		vb_peer_put(peer);
	}
	assert_true(vb_peer_count(x->a) <= 3); /* indices are used again */
	kit_node_close(x);
}

static void insane_peer_loses_its_link_only(void **state)
{
	struct kit_node *x = kit_node_open(), *y = kit_node_open(), *z = kit_node_open();
	struct vb_peer *peer = kit_connected(x, kit_number_of(y)), *m = kit_connected(x, kit_number_of(z));
	struct vb_ring *ring = ((struct vb_shm *)peer->lanes[0].out)->to;

	(void)state;
	kit_await_count(y, &y->ups, 1);
	ring->slots[0].hdr_len = 255;
	atomic_store(&ring->slots[0].seq, 1);
	atomic_store(&((struct vb_shm *)peer->lanes[0].out)->head, 1);
	vb_peer_ring(peer);
	kit_await_count(x, &x->downs, 1);
	kit_await_count(y, &y->downs, 1);
	assert_int_equal(y->goodbyes, 0);
	kit_send_to(m);
	kit_await(z->arrived);
	kit_node_close(x);
	kit_node_close(y);
	kit_node_close(z);
}

/* A thread that was in the middle of a send when the link ended may store its packet after that: the next
 * peer at that index does not find it.  Of the places of processes that may live the first is used first. */
static void a_late_packet_is_not_the_next_peers(void **state)
{
	struct kit_node *x = kit_node_open(), *y[2] = {kit_node_open(), kit_node_open()}, *z;
	struct vb_peer *peer[2], *next;
	struct vb_ring *ring;

	(void)state;
	for (int i = 0; i < 2; i++) {
		peer[i] = kit_connected(x, kit_number_of(y[i]));
		kit_await_count(y[i], &y[i]->ups, 1);
	}
	for (int i = 0; i < 2; i++) {
		vb_peer_insane(peer[i]);
		kit_await_count(x, &x->downs, i + 1);
		kit_await_count(y[i], &y[i]->downs, 1);
	}
	ring = ((struct vb_shm *)peer[0]->lanes[0].out)->to;
	atomic_store(&ring->slots[0].seq, 1);
	for (int i = 0; i < 2; i++)
		vb_peer_put(peer[i]);
	z = kit_node_open();
	next = kit_connected(x, kit_number_of(z));
	assert_int_equal(next->index, peer[0]->index);
	assert_int_equal(atomic_load(&ring->slots[0].seq), 0);
	vb_peer_put(next);
	kit_node_close(x);
	kit_node_close(y[0]);
	kit_node_close(y[1]);
	kit_node_close(z);
}

/* Waiting and sleeping. */

static uint32_t engine_tid(struct kit_node *n)
{
	return ((const struct vb_seg_head *)vb_peer_at(n->a, 0)->view)->tid;
}

static long switches(uint32_t tid)
{
	char path[64], line[128];
	long n = -1;
	FILE *f;

	snprintf(path, sizeof(path), "/proc/self/task/%u/status", tid);
	f = fopen(path, "re");
	assert_non_null(f);
	while (fgets(line, sizeof(line), f)) {
		if (!strncmp(line, "voluntary_ctxt_switches:", 24))
			n = atol(line + 24);
	}
	fclose(f);
	assert_true(n >= 0);
	return n;
}

static void idle_engine_sleeps(void **state)
{
	struct kit_node *x = kit_node_open(), *y = kit_node_open();
	struct vb_peer *peer = kit_connected(x, kit_number_of(y));
	_Atomic uint32_t *awake = vb_adapter_presence(y->a)->awake;
	uint32_t tid = engine_tid(y);
	long before;
	int tries;

	(void)state;
	kit_send_to(peer);
	kit_await(y->arrived);
	/* A poller keeps it awake; when it stops (or has no CPU for 10 ms), the engine falls asleep by
	 * itself. */
	for (tries = 0; vb_adapter_wake(y->a), atomic_load(awake) != VB_POLLING; tries++)
		assert_true(tries < 100);
	while (atomic_load(awake) == VB_POLLING)
		poll(NULL, 0, 1);
	tries = 0; /* where it gets no CPU either, its last round may be late */
	do {
		assert_true(tries++ < 10);
		before = switches(tid);
		poll(NULL, 0, 300);
	} while (switches(tid) != before);
	kit_send_to(peer);
	kit_await(y->arrived);
	kit_node_close(x);
	kit_node_close(y);
}

static void packets_to_a_poller_that_stopped_arrive(void **state)
{
	struct kit_node *x = kit_node_open(), *y = kit_node_open();
	struct vb_peer *peer = kit_connected(x, kit_number_of(y));

	(void)state;
	kit_await_count(y, &y->ups, 1);
	for (int i = 0; i < 300; i++) {
		vb_adapter_wake(y->a);
		atomic_fetch_add(&vb_adapter_presence(y->a)->polls, 1);
		if (i % 3)
			poll(NULL, 0, i % 3);
		kit_send_to(peer);
		kit_await(y->arrived);
	}
	kit_node_close(x);
	kit_node_close(y);
}

static void armed_adapter_is_rung(void **state)
{
	struct kit_node *x = kit_node_open(), *y = kit_node_open();
	struct vb_peer *peer = kit_connected(x, kit_number_of(y));

	(void)state;
	kit_await_count(y, &y->ups, 1);
	for (int i = 0; i < 100; i++) {
		vb_adapter_wake(y->a);
		if (i & 1)
			kit_send_to(peer);
		vb_adapter_arm(y->a);
		assert_int_equal(atomic_load(vb_adapter_presence(y->a)->awake), VB_ASLEEP);
		if (!(i & 1))
			kit_send_to(peer);
		kit_await(y->arrived);
		vb_adapter_disarm(y->a);
	}
	kit_node_close(x);
	kit_node_close(y);
}

enum { PINGS = 20000 };

struct ponger {
	struct kit_node *n;
	struct vb_peer *peer;
};

static void ping(struct kit_node *n)
{
	uint64_t count;

	assert_int_equal(vb_adapter_wait(n->a, n->arrived, &(bool){false}, VB_NEVER), 0);
	assert_int_equal(read(n->arrived, &count, sizeof(count)), sizeof(count));
}

static void *pong(void *arg)
{
	struct ponger *p = arg;

	for (int i = 0; i < PINGS; i++) {
		ping(p->n);
		kit_send_to(p->peer);
	}
	return NULL;
}

/* Waiters take the doorbells; the engine is not woken for every message. */
static void waiters_ping_pong(void **state)
{
	struct kit_node *x = kit_node_open(), *y = kit_node_open();
	struct vb_peer *xy = kit_connected(x, kit_number_of(y));
	struct ponger p = {y, kit_connected(y, kit_number_of(x))};
	pthread_t t;
	long woken;

	(void)state;
	kit_send_to(p.peer);
	kit_await(x->arrived);
	woken = switches(engine_tid(x)) + switches(engine_tid(y));
	pthread_create(&t, NULL, pong, &p);
	for (int i = 0; i < PINGS; i++) {
		kit_send_to(xy);
		ping(x);
	}
	pthread_join(t, NULL);
	woken = switches(engine_tid(x)) + switches(engine_tid(y)) - woken;
	if (woken > PINGS / 2)
		fail_msg("engines were woken %ld times for %d messages each way", woken, PINGS);
	/* After the waiters have gone somebody still watches. */
	kit_send_to(xy);
	kit_await(y->arrived);
	kit_node_close(x);
	kit_node_close(y);
}

static void on_signal(int sig)
{
	(void)sig;
}

struct interrupted {
	struct kit_node *n;
	_Atomic int ret;
	_Atomic bool waits;
};

static void *wait_long(void *arg)
{
	struct interrupted *w = arg;

	atomic_store(&w->waits, true);
	atomic_store(&w->ret, vb_adapter_wait(w->n->a, w->n->arrived, &(bool){false}, VB_NEVER));
	return NULL;
}

static void signals_interrupt_unless_restarting(void **state)
{
	struct sigaction sa = {.sa_handler = on_signal};
	struct interrupted w = {.n = kit_node_open(), .ret = -1};
	pthread_t t;

	(void)state;
	sigaction(SIGUSR1, &sa, NULL);
	pthread_create(&t, NULL, wait_long, &w);
	while (atomic_load(&w.ret) == -1) {
		if (atomic_load(&w.waits))
			pthread_kill(t, SIGUSR1);
		poll(NULL, 0, 1);
	}
	pthread_join(t, NULL);
	assert_int_equal(w.ret, EINTR);
	sa.sa_flags = SA_RESTART;
	sigaction(SIGUSR1, &sa, NULL);
	w.ret = -1;
	pthread_create(&t, NULL, wait_long, &w);
	for (int i = 0; i < 20; i++) {
		pthread_kill(t, SIGUSR1);
		poll(NULL, 0, 1);
	}
	assert_int_equal(w.ret, -1);
	kit_bump(w.n->arrived);
	pthread_join(t, NULL);
	assert_int_equal(w.ret, 0);
	signal(SIGUSR1, SIG_DFL);
	kit_node_close(w.n);
}

struct patient {
	struct kit_node *n;
	bool awaits; /* and leaves progress to the engine */
	_Atomic uint32_t tid;
	_Atomic int ret;
};

static void *wait_patiently(void *arg)
{
	struct patient *p = arg;
	sigset_t set;

	sigemptyset(&set);
	sigaddset(&set, SIGUSR2);
	pthread_sigmask(SIG_BLOCK, &set, NULL);
	atomic_store(&p->tid, (uint32_t)gettid());
	atomic_store(&p->ret, p->awaits ? vb_adapter_await(p->n->a, p->n->arrived)
					: vb_adapter_wait(p->n->a, p->n->arrived, &(bool){false}, VB_NEVER));
	return NULL;
}

/* Until it sleeps for good: some waits look around once more after a while. */
static pthread_t begin_patient(struct patient *p)
{
	pthread_t t;
	long before;

	atomic_store(&p->tid, 0);
	atomic_store(&p->ret, -1);
	pthread_create(&t, NULL, wait_patiently, p);
	while (!atomic_load(&p->tid))
		poll(NULL, 0, 1);
	do {
		before = switches(atomic_load(&p->tid));
		poll(NULL, 0, 300);
	} while (switches(atomic_load(&p->tid)) != before);
	return t;
}

/* Whether it woke up and waits again. */
static bool goes_on(struct patient *p, long before)
{
	while (atomic_load(&p->ret) == -1 && switches(atomic_load(&p->tid)) == before)
		poll(NULL, 0, 1);
	return atomic_load(&p->ret) == -1;
}

static void other_interruptions_pass(struct patient *p)
{
	struct sigaction sa = {.sa_handler = on_signal};
	const struct sigaction ignored = {.sa_handler = SIG_IGN, .sa_flags = SA_SIGINFO};
	pthread_t t = begin_patient(p);
	long before = switches(atomic_load(&p->tid));

	/* the C library interrupts all threads, by a signal that no program sees */
	assert_int_equal(setgid(getgid()), 0);
	assert_true(goes_on(p, before));
	/* one that the thread blocks has a handler that would have ended it */
	sigaction(SIGUSR2, &sa, NULL);
	/* valgrind has one like this, which is ignored all the same */
	sigaction(SIGWINCH, &ignored, NULL);
	sa.sa_flags = SA_RESTART;
	sigaction(SIGUSR1, &sa, NULL);
	before = switches(atomic_load(&p->tid));
	pthread_kill(t, SIGUSR1);
	assert_true(goes_on(p, before));
	signal(SIGUSR2, SIG_DFL);
	signal(SIGWINCH, SIG_DFL);
	signal(SIGUSR1, SIG_DFL);
	kit_bump(p->n->arrived);
	pthread_join(t, NULL);
	assert_int_equal(p->ret, 0);
	kit_await(p->n->arrived);
	/* a handler for once has gone when it has run */
	sa.sa_flags = (int)SA_RESETHAND;
	sigaction(SIGUSR1, &sa, NULL);
	t = begin_patient(p);
	pthread_kill(t, SIGUSR1);
	pthread_join(t, NULL);
	assert_int_equal(p->ret, EINTR);
}

static void only_handlers_end_a_wait(void **state)
{
	struct patient p = {.n = kit_node_open()};

	(void)state;
	other_interruptions_pass(&p);
	p.awaits = true;
	other_interruptions_pass(&p);
	kit_node_close(p.n);
}

static void waiter_can_be_cancelled(void **state)
{
	struct kit_node *x = kit_node_open(), *y = kit_node_open();
	struct interrupted w = {.n = x, .ret = -1};
	struct vb_peer *peer = kit_connected(y, kit_number_of(x));
	pthread_t t;

	(void)state;
	pthread_create(&t, NULL, wait_long, &w);
	pthread_cancel(t);
	pthread_join(t, NULL);
	kit_send_to(peer);
	kit_await(x->arrived);
	kit_node_close(x);
	kit_node_close(y);
}

static int connect_raw(uint32_t number)
{
	struct sockaddr_un sa = {.sun_family = AF_UNIX};
	int n = snprintf(sa.sun_path + 1, sizeof(sa.sun_path) - 1, "verbena/1/%u", number);
	int fd = socket(AF_UNIX, SOCK_SEQPACKET, 0);

	assert_int_equal(connect(fd, (struct sockaddr *)&sa,
				 (socklen_t)(offsetof(struct sockaddr_un, sun_path) + 1 + (size_t)n)),
			 0);
	return fd;
}

static void rubbish_ends_one_connection(void **state)
{
	struct kit_node *x = kit_node_open(), *y = kit_node_open();
	char junk[512];
	int fds[200];

	(void)state;
	memset(junk, 0x5a, sizeof(junk));
	for (size_t len = 1; len <= sizeof(junk); len += 17) {
		int fd = connect_raw(kit_number_of(x));

		assert_true(send(fd, junk, len, MSG_NOSIGNAL) == (ssize_t)len);
		assert_true(recv(fd, junk, sizeof(junk), 0) <= 0); /* closed */
		close(fd);
	}
	/* Connections that never speak keep nobody out. */
	for (int i = 0; i < 200; i++)
		fds[i] = connect_raw(kit_number_of(x));
	kit_connected(y, kit_number_of(x));
	for (int i = 0; i < 200; i++)
		close(fds[i]);
	kit_node_close(x);
	kit_node_close(y);
}

static bool name_exists(uint32_t number)
{
	char line[512], want[64];
	bool found = false;
	FILE *f = fopen("/proc/net/unix", "re");

	assert_non_null(f);
	snprintf(want, sizeof(want), "@verbena/1/%u\n", number);
	while (fgets(line, sizeof(line), f))
		found |= strstr(line, want) != NULL;
	fclose(f);
	return found;
}

static void nothing_is_left_behind(void **state)
{
	int before = kit_descriptors();
	uint32_t nx, ny;

	(void)state;
	for (int i = 0; i < 10; i++) {
		struct kit_node *x = kit_node_open(), *y = kit_node_open();

		nx = kit_number_of(x);
		ny = kit_number_of(y);
		kit_connected(x, ny);
		assert_true(name_exists(nx) && name_exists(ny));
		kit_node_close(y);
		kit_node_close(x);
		assert_false(name_exists(nx) || name_exists(ny));
	}
	assert_int_equal(kit_descriptors(), before);
}

static int slow_gate; /* eventfd: slow_up() goes on */

/* Its adapter hears the peer from the end of this on. */
static void slow_up(struct vb_peer *peer)
{
	kit_node_ops.peer_up(peer);
	kit_await(slow_gate);
	atomic_store(&peer->mem, (struct vb_peer_mem *)(void *)peer);
}

static void quick_up(struct vb_peer *peer)
{
	atomic_store(&peer->mem, (struct vb_peer_mem *)(void *)peer);
	kit_node_ops.peer_up(peer);
}

static void forget_mem(struct vb_peer *peer)
{
	atomic_store(&peer->mem, NULL);
}

/* Keys that either hands to the other as soon as they have met lead to memory, so whoever meets waits until
 * both ends are ready for that, its own included. */
static void who_has_met_is_heard_and_hears(void **state)
{
	struct vb_adapter_ops slow = kit_node_ops, quick = kit_node_ops;
	struct kit_node *x, *y;
	struct vb_reach_facts why;
	struct vb_peer *peer;

	(void)state;
	slow.peer_up = slow_up;
	quick.peer_up = quick_up;
	slow.peer_free = quick.peer_free = forget_mem;
	slow_gate = eventfd(0, EFD_CLOEXEC);
	for (int slow_asks = 0; slow_asks < 2; slow_asks++) {
		x = kit_node_open_with(slow_asks ? &slow : &quick);
		y = kit_node_open_with(slow_asks ? &quick : &slow);
		assert_int_equal(vb_peer_reach(x->a, kit_number_of(y), vb_now() + 100 * VB_MSEC, &peer, &why),
				 ETIMEDOUT);
		kit_bump(slow_gate);
		assert_int_equal(vb_peer_reach(x->a, kit_number_of(y), vb_now() + 20 * VB_SEC, &peer, &why),
				 0);
		vb_peer_put(peer);
		kit_node_close(y);
		kit_node_close(x);
	}
	close(slow_gate);
}

/* Whoever is asked whether a peer is only slow has an answer up to the very instant at which it is there. The
 * lock holds up the thread that makes contact, again and again. */
static void contact_has_begun_until_it_is_made(void **state)
{
	struct kit_node *x = kit_node_open();
	double end = kit_now() + 60;

	(void)state;
	for (unsigned i = 0; i < 30; i++) {
		struct kit_node *y = kit_node_open();
		struct vb_peer *peer = vb_peer_get(x->a, kit_number_of(y));

		while (atomic_load(&peer->state) != VB_PEER_UP) {
			vb_lock_take(&x->a->peers_lock);
			kit_nap(1);
			assert_true(atomic_load(&peer->state) != VB_PEER_CONTACTING ||
				    atomic_load(&((struct peer *)peer)->began));
			vb_lock_give(&x->a->peers_lock);
			kit_nap_us(50);
			assert_true(kit_now() < end);
		}
		assert_true(vb_peer_pending(peer, vb_now()));
		vb_peer_put(peer);
		kit_node_close(y);
	}
	kit_node_close(x);
}

/* Many adapters and their connections are in this one process. */
static int allow_descriptors(void **state)
{
	struct rlimit r;

	(void)state;
	assert_int_equal(getrlimit(RLIMIT_NOFILE, &r), 0);
	r.rlim_cur = r.rlim_max;
	assert_int_equal(setrlimit(RLIMIT_NOFILE, &r), 0);
	return 0;
}

int main(void)
{
	const struct CMUnitTest tests[] = {
	    cmocka_unit_test(contact_both_ways),
	    cmocka_unit_test(link_to_oneself),
	    cmocka_unit_test(nobody_there_stays_idle),
	    cmocka_unit_test(numbers_without_contact_give_their_places_back),
	    cmocka_unit_test(numbers_out_of_range),
	    cmocka_unit_test(both_contact_at_once),
	    cmocka_unit_test(who_has_met_is_heard_and_hears),
	    cmocka_unit_test(contact_has_begun_until_it_is_made),
	    cmocka_unit_test(sixty_four_adapters),
	    cmocka_unit_test(qpns_rest_as_long_as_they_can),
	    cmocka_unit_test(second_number_same_link),
	    cmocka_unit_test(srqns_are_made_of_the_same_numbers),
	    cmocka_unit_test(two_numbers_at_once),
	    cmocka_unit_test(link_is_made_anew_for_a_new_peer),
	    cmocka_unit_test(insane_peer_loses_its_link_only),
	    cmocka_unit_test(a_late_packet_is_not_the_next_peers),
	    cmocka_unit_test(idle_engine_sleeps),
	    cmocka_unit_test(packets_to_a_poller_that_stopped_arrive),
	    cmocka_unit_test(armed_adapter_is_rung),
	    cmocka_unit_test(waiters_ping_pong),
	    cmocka_unit_test(signals_interrupt_unless_restarting),
	    cmocka_unit_test(only_handlers_end_a_wait),
	    cmocka_unit_test(waiter_can_be_cancelled),
	    cmocka_unit_test(rubbish_ends_one_connection),
	    cmocka_unit_test(nothing_is_left_behind),
	};

	return cmocka_run_group_tests(tests, allow_descriptors, NULL);
}
