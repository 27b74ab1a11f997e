/* A ring that becomes cold, against its sender, against pollers, against whoever comes to owe something, and
 * against who falls asleep: in every order in which what they do to shared memory can come about, nothing is
 * left lying.
 *
 * The code itself runs, by coroutines in place of threads: before each access to what they share one hands
 * over to a scheduler, which tries all orders.  Memory is sequentially consistent here; that it is so where
 * it has to be, the code says by its memory orders. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <ucontext.h>

#include <cmocka.h>

static void point(const volatile void *at);
static void saw(const void *value, size_t size);

#ifdef __clang__
#define LOAD(p, o)	  __c11_atomic_load(p, o)
#define STORE(p, v, o)	  __c11_atomic_store(p, v, o)
#define EXCHANGE(p, v, o) __c11_atomic_exchange(p, v, o)
#define OR(p, v, o)	  __c11_atomic_fetch_or(p, v, o)
#define AND(p, v, o)	  __c11_atomic_fetch_and(p, v, o)
#else
#define LOAD(p, o)	  __atomic_load_n(p, o)
#define STORE(p, v, o)	  __atomic_store_n(p, v, o)
#define EXCHANGE(p, v, o) __atomic_exchange_n(p, v, o)
#define OR(p, v, o)	  __atomic_fetch_or(p, v, o)
#define AND(p, v, o)	  __atomic_fetch_and(p, v, o)
#endif

#define WATCHED(p, access)                 \
	__extension__({                    \
		__auto_type p_ = (p);      \
		point(p_);                 \
		__auto_type v_ = (access); \
		saw(&v_, sizeof v_);       \
		v_;                        \
	})
#undef atomic_load_explicit
#undef atomic_store_explicit
#undef atomic_exchange_explicit
#undef atomic_fetch_or_explicit
#undef atomic_fetch_and_explicit
#define atomic_load_explicit(p, o)	   WATCHED(p, LOAD(p_, o))
#define atomic_exchange_explicit(p, v, o)  WATCHED(p, EXCHANGE(p_, v, o))
#define atomic_fetch_or_explicit(p, v, o)  WATCHED(p, OR(p_, v, o))
#define atomic_fetch_and_explicit(p, v, o) WATCHED(p, AND(p_, v, o))
#define atomic_store_explicit(p, v, o) \
	__extension__({                \
		__auto_type at_ = (p); \
		point(at_);            \
		STORE(at_, v, o);      \
	})

#include "hca/owed.c"
#include "hca/warm.c"
#include "wire/shm.c"

#if defined(__SANITIZE_THREAD__)
#define UNDER_TSAN
#elif defined(__has_feature)
#if __has_feature(thread_sanitizer)
#define UNDER_TSAN
#endif
#endif

enum { THREADS = 4, STACK = 64 << 10, STEPS = 400, SEEN = 1 << 20, QUEUE = 70 };

/* ---- what they share ---- */

struct shared {
	_Atomic uint32_t cold, awake, unused, consumed;
	struct vb_set hints;
};

struct vb_adapter {
	struct vb_hca hca;
	struct vb_presence presence;
};

static struct vb_adapter *a;
static struct shared *shared;
static struct vb_ring *ring;
static struct vb_shm *tx, *rx;
static struct vb_peer peer;
static struct vb_qp qp; /* owes something */
static uint32_t sent, got, bells, resumed;

void *vb_adapter_user(const struct vb_adapter *of)
{
	return (void *)(uintptr_t)&of->hca;
}

struct vb_presence *vb_adapter_presence(struct vb_adapter *of)
{
	return &of->presence;
}

void vb_adapter_resume(struct vb_adapter *of)
{
	(void)of;
	resumed++;
}

struct vb_qp *vb_qpn_find(const struct vb_adapter *of, uint32_t qpn)
{
	(void)of;
	(void)qpn;
	return &qp;
}

void vb_peer_ring(struct vb_peer *to)
{
	(void)to;
	bells++;
}

void vb_peer_leave(struct vb_peer *to)
{
	(void)to; /* what lies is rung for later, by hca/left.c: here nothing may need that */
}

void vb_peer_insane(struct vb_peer *of)
{
	(void)of;
	fail();
}

/* ---- what they do ---- */

static void send_one(void)
{
	struct vb_outbuf b;

	assert_true(out_ops.reserve(&tx->out, &b, 12, 8, VB_OUT_REQUEST));
	out_ops.commit(&tx->out, &b);
	sent++;
}

static void look(struct vb_rxq *r)
{
	struct vb_arrival in;

	if (!vb_lock_try(&r->rx))
		return;
	if (atomic_load_explicit(r->cold, memory_order_relaxed))
		vb_hca_warm(r);
	while (peek(r, &in) > 0) {
		next(r);
		got++;
		r->quiet = 0;
	}
	vb_lock_give(&r->rx);
}

/* As vb_hca_poll() finds its queues. */
static void poll_once(void)
{
	struct vb_hca *h = &a->hca;

	if (!vb_set_is_empty(a->presence.hints))
		vb_hca_take_hints(h);
	for (uint64_t any = vb_set_any(&h->warm); any; any &= any - 1)
		if (vb_set_word(&h->warm, vb_set_lowest(any)) && vb_hca_rxq_is_busy(&rx->rxq))
			look(&rx->rxq);
}

static void grow_cold(void)
{
	vb_hca_cool(&a->hca);
}

static void fall_asleep(void)
{
	atomic_exchange_explicit(&shared->awake, VB_ASLEEP, memory_order_seq_cst);
	while (vb_hca_ready(a)) {
		uint32_t before = got;

		poll_once();
		if (got == before) { /* another one is at it: the engine is to look again */
			resumed++;
			break;
		}
	}
}

/* Who walks over queue pairs, say. */
static void hold(void)
{
	if (vb_lock_try(&rx->rxq.rx))
		vb_lock_give(&rx->rxq.rx);
}

/* A peer that sent nothing. */
static void hint_falsely(void)
{
	vb_set_add(&shared->hints, QUEUE);
}

/* The queue of another peer, warm until that one goes, in the same word of the set. */
static struct vb_rxq neighbour;
static bool has_neighbour;

static void the_neighbour_goes(void)
{
	if (vb_set_drop(&a->hca.warm, QUEUE + 1))
		resumed++; /* as vb_hca_peer_down() has the engine look */
}

static void come_to_owe(void)
{
	vb_lock_take(&qp.lock);
	vb_owe(&qp.path);
	vb_lock_give(&qp.lock);
}

/* ---- all orders ---- */

struct thread {
	ucontext_t context;
	void (*run)(void);
	void *stack;
	bool done;
	uint32_t at;
	uint64_t seen; /* all that it has read, in short */
};

static struct {
	struct thread thread[THREADS];
	int n, now; /* now: -1: none of them */
	ucontext_t home;
	uint8_t chosen[STEPS], left[STEPS]; /* which went on at each step, and which have not been tried */
	unsigned known;			    /* steps that are given */
	uint64_t *states;		    /* those that were seen */
	unsigned orders;
} all;

static uint64_t mix(uint64_t h, const void *of, size_t size)
{
	const uint8_t *p = of;

	for (size_t i = 0; i < size; i++)
		h = (h ^ p[i]) * 0x100000001b3ull;
	return h ^ h >> 29;
}

static bool is_in(const volatile void *at, const volatile void *of, size_t size)
{
	return (uintptr_t)at - (uintptr_t)of < size;
}

static void point(const volatile void *at)
{
	struct thread *t = &all.thread[all.now < 0 ? 0 : all.now];

	if (all.now < 0 ||
	    !(is_in(at, shared, sizeof *shared) || is_in(at, &a->hca.warm, sizeof a->hca.warm) ||
	      is_in(at, ring->slots, 2 * sizeof *ring->slots) || is_in(at, &rx->rxq.rx, sizeof rx->rxq.rx) ||
	      is_in(at, &rx->rxq.owes, sizeof rx->rxq.owes)))
		return;
	t->at++;
	swapcontext(&t->context, &all.home);
}

static void saw(const void *value, size_t size)
{
	if (all.now >= 0)
		all.thread[all.now].seen = mix(all.thread[all.now].seen, value, size);
}

static uint64_t state(void)
{
	const struct vb_rxq *r = &rx->rxq;
	uint32_t counts[] = {sent, got, bells > 0, resumed > 0, r->quiet, LOAD(&r->at, __ATOMIC_RELAXED)};
	uint64_t h = mix(0xcbf29ce484222325ull, shared, sizeof *shared);

	h = mix(h, &a->hca.warm, sizeof a->hca.warm);
	h = mix(h, ring->slots, 2 * sizeof *ring->slots);
	h = mix(h, &r->rx, sizeof r->rx);
	h = mix(h, (const void *)&r->owes, sizeof r->owes);
	h = mix(h, counts, sizeof counts);
	for (int i = 0; i < all.n; i++) {
		h = mix(h, &all.thread[i].at, sizeof all.thread[i].at);
		h = mix(h, &all.thread[i].seen, sizeof all.thread[i].seen);
		h = mix(h, &all.thread[i].done, sizeof all.thread[i].done);
	}
	return h ? h : 1;
}

static bool is_new(uint64_t state)
{
	uint64_t i = state % SEEN;

	while (all.states[i] && all.states[i] != state)
		i = (i + 1) % SEEN;
	if (all.states[i])
		return false;
	all.states[i] = state;
	return true;
}

static void begin(void)
{
	all.thread[all.now].run();
	all.thread[all.now].done = true;
	setcontext(&all.home);
}

static struct vb_wire_parts parts(bool sends)
{
	return (struct vb_wire_parts){.to = ring,
				      .from = ring,
				      .consumed = sends ? &shared->unused : &shared->consumed,
				      .peer_consumed = sends ? &shared->consumed : &shared->unused,
				      .peer_awake = &shared->awake,
				      .cold = &shared->cold,
				      .peer_cold = &shared->cold,
				      .peer_hints = &shared->hints,
				      .hint = QUEUE,
				      .incarnation = 1};
}

/* The queue is open, somebody polls, and the next look of vb_hca_cool() makes it cold, or it is. */
static void reset(bool cold)
{
	struct vb_wire_parts in = parts(false), out = parts(true);
	struct vb_rxq *r = &rx->rxq;

	memset(shared, 0, sizeof *shared);
	memset(&a->hca.warm, 0, sizeof a->hca.warm);
	memset(ring->slots, 0, 4 * sizeof *ring->slots);
	memset(&r->rx, 0, sizeof r->rx); /* an order that was given up has left locks behind */
	memset(&r->owed_lock, 0, sizeof r->owed_lock);
	memset(&tx->tx, 0, sizeof tx->tx);
	memset(&qp, 0, sizeof qp);
	vb_shm_attach(tx, &out);
	vb_shm_attach(rx, &in);
	vb_list_init(&r->owed);
	vb_list_init(&qp.path.owes);
	qp.path.qp = &qp;
	qp.path.rxq = r;
	atomic_store(&r->owes, false);
	atomic_store(&r->open, true);
	atomic_store(&a->hca.rxqs[QUEUE + 1], &neighbour);
	if (has_neighbour)
		vb_set_add(&a->hca.warm, QUEUE + 1);
	r->quiet = QUIET_LOOKS - 1;
	r->adapter = a;
	r->index = QUEUE;
	a->hca.adapter = a;
	a->presence.awake = &shared->awake;
	a->presence.hints = &shared->hints;
	atomic_store(&a->hca.rxqs[QUEUE], r);
	atomic_store(&a->hca.nrxqs, QUEUE + 1);
	sent = got = bells = resumed = 0;
	atomic_store(&shared->awake, VB_POLLING);
	atomic_store(&shared->cold, cold);
	if (!cold)
		vb_set_add(&a->hca.warm, QUEUE);
	for (int i = 0; i < all.n; i++) {
		struct thread *t = &all.thread[i];

		t->done = false;
		t->at = 0;
		t->seen = 0;
		getcontext(&t->context);
		t->context.uc_stack.ss_sp = t->stack;
		t->context.uc_stack.ss_size = STACK;
		makecontext(&t->context, begin, 0);
	}
}

static unsigned runnable(void)
{
	unsigned mask = 0;

	for (int i = 0; i < all.n; i++)
		mask |= (unsigned)!all.thread[i].done << i;
	return mask;
}

/* One order, as far as it is not known; false: it comes to what was seen before. */
static bool go_on(void)
{
	for (unsigned step = 0; runnable(); step++) {
		assert_true(step < STEPS);
		if (step == all.known) {
			unsigned mask = runnable();

			if (!is_new(state()))
				return false;
			all.chosen[step] = (uint8_t)__builtin_ctz(mask);
			all.left[step] = (uint8_t)(mask & (mask - 1));
			all.known++;
		}
		all.now = all.chosen[step];
		swapcontext(&all.home, &all.thread[all.now].context);
		all.now = -1;
	}
	return true;
}

/* The next order; false: all were tried. */
static bool turn_back(void)
{
	while (all.known && !all.left[all.known - 1])
		all.known--;
	if (!all.known)
		return false;
	all.chosen[all.known - 1] = (uint8_t)__builtin_ctz(all.left[all.known - 1]);
	all.left[all.known - 1] &= (uint8_t)(all.left[all.known - 1] - 1);
	return true;
}

/* Whoever still looks finds all. */
static void check_end(void)
{
	struct vb_rxq *r = &rx->rxq;
	bool warm;

	if (atomic_load(&shared->awake) == VB_POLLING || bells || resumed)
		poll_once();
	assert_int_equal(got, sent);
	warm = vb_set_word(&a->hca.warm, QUEUE / VB_SET_WORD);
	assert_true(warm || atomic_load(&shared->cold)); /* else the next packet would lie */
	assert_true(!warm || vb_set_any(&a->hca.warm));
	assert_true(warm || !atomic_load(&r->owes));
}

/* Ends with NULL. */
static void in_all_orders(int cold, ...)
{
	void (*run)(void);
	va_list list;

	va_start(list, cold);
	for (all.n = 0; (run = va_arg(list, void (*)(void))) != NULL; all.n++)
		all.thread[all.n].run = run;
	va_end(list);
	memset(all.states, 0, SEEN * sizeof *all.states);
	all.known = all.orders = 0;
	do {
		reset(cold);
		if (!go_on())
			continue;
		all.orders++;
		check_end();
	} while (turn_back());
	printf("%u different ends\n", all.orders);
	assert_true(all.orders > 1);
}

/* ---- the cases ---- */

static void a_packet_comes_as_it_grows_cold(void **unused)
{
	(void)unused;
	in_all_orders(false, send_one, grow_cold, NULL);
	in_all_orders(false, send_one, grow_cold, poll_once, NULL);
}

static void a_packet_comes_as_one_falls_asleep(void **unused)
{
	(void)unused;
	in_all_orders(true, send_one, fall_asleep, NULL);
	in_all_orders(true, send_one, fall_asleep, poll_once, NULL);
	in_all_orders(true, send_one, fall_asleep, poll_once, hold, NULL);
	in_all_orders(false, send_one, grow_cold, fall_asleep, NULL);
}

static void a_false_hint_comes_as_it_grows_cold(void **unused)
{
	(void)unused;
	in_all_orders(false, hint_falsely, grow_cold, poll_once, NULL);
	in_all_orders(false, hint_falsely, grow_cold, poll_once, send_one, NULL);
}

static void something_is_owed_as_it_grows_cold(void **unused)
{
	(void)unused;
	in_all_orders(false, come_to_owe, grow_cold, NULL);
	in_all_orders(true, come_to_owe, hint_falsely, poll_once, NULL);
}

static int setup(void **unused)
{
	struct vb_wire_parts in, out;

	(void)unused;
	all.now = -1;
	shared = aligned_alloc(_Alignof(struct shared), sizeof *shared);
	ring = aligned_alloc(_Alignof(struct vb_ring), sizeof *ring);
	a = aligned_alloc(_Alignof(struct vb_adapter), sizeof *a);
	all.states = calloc(SEEN, sizeof *all.states);
	assert_true(shared && ring && a && all.states);
	memset(ring, 0, sizeof *ring);
	memset(a, 0, sizeof *a);
	in = parts(false);
	out = parts(true);
	tx = vb_shm_new(&peer, &out);
	rx = vb_shm_new(&peer, &in);
	for (int i = 0; i < THREADS; i++)
		all.thread[i].stack = malloc(STACK);
	return 0;
}

static int teardown(void **unused)
{
	(void)unused;
	for (int i = 0; i < THREADS; i++)
		free(all.thread[i].stack);
	vb_shm_free(tx);
	vb_shm_free(rx);
	free(all.states);
	free(a);
	free(ring);
	free(shared);
	return 0;
}

static void send_and_poll(void)
{
	send_one();
	poll_once();
}

static void a_neighbour_goes(void **unused)
{
	(void)unused;
	has_neighbour = true;
	in_all_orders(true, send_and_poll, the_neighbour_goes, fall_asleep, NULL);
	has_neighbour = false;
}

int main(void)
{
	const struct CMUnitTest tests[] = {
	    cmocka_unit_test(a_neighbour_goes),
	    cmocka_unit_test(a_packet_comes_as_it_grows_cold),
	    cmocka_unit_test(a_packet_comes_as_one_falls_asleep),
	    cmocka_unit_test(a_false_hint_comes_as_it_grows_cold),
	    cmocka_unit_test(something_is_owed_as_it_grows_cold),
	};

#ifdef UNDER_TSAN
	puts("skipped: the thread sanitizer knows nothing of coroutines");
	return 77;
#endif
	return cmocka_run_group_tests(tests, setup, teardown);
}
