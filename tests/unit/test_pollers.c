/* Who counts as a poller: the word that a process shows to senders, and how often its engine looks at that.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <errno.h>
#include <pthread.h>
#include <stddef.h>
#include <stdio.h>
#include <time.h>
#include <unistd.h>
#include <cmocka.h>

#include "device.h"
#include "hca/hca.h"
#include "hca/idle.h"
#include "host/private.h"
#include "kit.h"
#include "obj/context.h"

static struct vb_adapter *adapter(void)
{
	return vb_context(ctx)->adapter;
}

static bool polling(void)
{
	return atomic_load(vb_adapter_presence(adapter())->awake) == VB_POLLING;
}

static void poll_once(struct ibv_cq *cq)
{
	struct ibv_wc wc;

	assert_int_equal(ibv_poll_cq(cq, 1, &wc), 0);
}

static void poll_until_believed(struct ibv_cq *cq)
{
	for (double end = kit_now() + 10; !polling();) {
		assert_true(kit_now() < end);
		poll_once(cq);
	}
}

static void who_stops_is_not_one_any_more(void **state)
{
	struct ibv_cq *cq = ibv_create_cq(ctx, 1, NULL, NULL, 0);

	(void)state;
	poll_until_believed(cq);
	for (double end = kit_now() + 10; polling(); kit_nap(1))
		assert_true(kit_now() < end);
	assert_int_equal(ibv_destroy_cq(cq), 0);
}

/* A program that waits for a byte in its memory, say, and looks at its completions beside that: senders are
 * to ring, or what they send would lie until it comes by. */
static void who_polls_now_and_then_is_none(void **state)
{
	struct ibv_cq *cq = ibv_create_cq(ctx, 1, NULL, NULL, 0);

	(void)state;
	/* A few looks of the engine are enough, however long they take.  More than once, for where this
	 * thread is held up between two looks it is seen not to poll at all. */
	for (int i = 0; i < 5; i++) {
		uint32_t begun;

		poll_until_believed(cq);
		begun = atomic_load(&adapter()->rounds);
		for (; polling(); kit_nap(2)) {
			assert_in_range(atomic_load(&adapter()->rounds) - begun, 0, 50);
			poll_once(cq);
		}
	}
	for (int i = 0; i < 100; i++) {
		kit_nap(2);
		poll_once(cq);
		assert_false(polling());
	}
	assert_int_equal(ibv_destroy_cq(cq), 0);
}

/* Seconds without a CPU after which a poller may be believed to have stopped. */
#define LAPSE 0.004

static unsigned long switches_of_engine(void)
{
	char path[64], line[256];
	unsigned long total = 0, n;
	FILE *f;

	snprintf(path, sizeof path, "/proc/self/task/%u/status", adapter()->head->tid);
	f = fopen(path, "r");
	assert_non_null(f);
	while (fgets(line, sizeof line, f))
		if (sscanf(line, "voluntary_ctxt_switches: %lu", &n) == 1)
			total += n;
	fclose(f);
	return total;
}

#define WINDOW 0.01
enum { PATIENCE = 20, LEAST = 10 }; /* times the wanted seconds; of those, in percent */

/* Polls by `some` for that long, in which the engine may have switched so often as it looks, and a few times
 * more, once for each time that it was kept from looking.  A window in which this thread was without a CPU
 * for so long that it was believed to have stopped does not count, nor does the one behind it, in which it is
 * believed again.  To be disbelieved in a window in which it had the CPU is a fault, but for a few times: it
 * may have been without between two windows. */
static void watched(void (*some)(void *arg), void *arg, double seconds)
{
	double counted = 0, until = kit_now() + PATIENCE * seconds;
	bool lapsed = false, was;
	unsigned long seen = 0, late = 0, doubted = 0;

	while (counted < seconds && kit_now() < until) {
		unsigned long before = switches_of_engine();
		double began = kit_now(), last, now = began;
		bool gap = false;

		was = lapsed;
		lapsed = false;
		do {
			last = now;
			some(arg);
			now = kit_now();
			gap |= now > last + LAPSE;
			lapsed |= gap || !polling();
		} while (now < began + WINDOW);
		late += gap;
		doubted += lapsed && !gap && !was;
		if (lapsed || was)
			continue;
		seen += switches_of_engine() - before;
		counted += now - began;
	}
	assert_in_range(doubted, 0, late + 5);
	if (counted < seconds * LEAST / 100) {
		printf(
		    "SKIP: the other programs of this machine leave a poller no CPU for %.0f ms in a row\n",
		    WINDOW * 1000);
		skip();
	}
	assert_in_range(seen, 0, (unsigned long)(counted * 110) + 5 + late);
}

static void polls(void *cq)
{
	for (int i = 0; i < 100; i++)
		poll_once(cq);
}

/* The engine of a program that polls looks a hundred times a second, and is not woken in between. */
static void pollers_are_left_alone(void **state)
{
	struct ibv_cq *cq = ibv_create_cq(ctx, 1, NULL, NULL, 0);

	(void)state;
	poll_until_believed(cq);
	watched(polls, cq, 0.5);
	assert_int_equal(ibv_destroy_cq(cq), 0);
}

static void sends(void *arg)
{
	struct kit_end *e = arg;
	struct ibv_wc wc;

	assert_int_equal(kit_recv(e, 1, 0, 8), 0);
	assert_int_equal(kit_post(e, IBV_WR_SEND, 2, 64, 8, NULL, 0), 0);
	for (int left = 2; left;)
		left -= ibv_poll_cq(e->cq, 1, &wc);
}

/* Nor is it woken for the timers of a queue pair in use, which the poller sees to: for one that another
 * thread had in hand, say, or that may leave the list of timers. */
static void timers_are_the_pollers(void **state)
{
	struct ibv_pd *pd = ibv_alloc_pd(ctx);
	struct kit_end e;

	(void)state;
	kit_end_open(&e, pd, 8, 4096);
	kit_connect(&e, &e.card);
	poll_until_believed(e.cq);
	watched(sends, &e, 1);
	kit_end_close(&e);
	assert_int_equal(ibv_dealloc_pd(pd), 0);
}

/* How often a poll has offered its CPU; who waits for a lock does so, too, and is not counted. */
static _Atomic unsigned offers;
static _Atomic(struct vb_hca *) counted; /* NULL: none is */

/* The library takes this one. */
int sched_yield(void)
{
	const struct vb_hca *h = counted;

	if (h && atomic_load(&h->yielding))
		offers++;
	return 0;
}

/* Whether there was a completion. */
static bool plainly(struct ibv_cq *cq)
{
	struct ibv_wc wc;

	return ibv_poll_cq(cq, 1, &wc) == 1;
}

static bool by_calls(struct ibv_cq *cq)
{
	struct ibv_poll_cq_attr attr = {0};

	if (ibv_start_poll((struct ibv_cq_ex *)cq, &attr))
		return false;
	ibv_end_poll((struct ibv_cq_ex *)cq);
	return true;
}

/* Messages; of them so many that a thread that polls VAIN times before each one and then finds it to be for
 * others has polled in vain often enough to offer its CPU; and polls. */
enum { MANY = 7 * VB_IDLE_MOST, VAIN = 2, ENOUGH = VB_IDLE_MOST / (VAIN + 1) + 64, ROUNDS = 3 };

/* A message from e to itself, without a completion of its SEND. */
static void send_one(struct kit_end *e)
{
	struct ibv_sge sge = {(uintptr_t)e->buf, 8, e->mr->lkey};
	struct ibv_send_wr wr = {.sg_list = &sge, .num_sge = 1, .opcode = IBV_WR_SEND}, *bad;

	assert_int_equal(kit_recv(e, 1, 64, 8), 0);
	assert_int_equal(ibv_post_send(e->qp, &wr, &bad), 0);
}

static struct ibv_cq *new_cq(int cqe)
{
	struct ibv_cq_init_attr_ex attr = {.cqe = (uint32_t)cqe, .wc_flags = IBV_WC_EX_WITH_BYTE_LEN};
	struct ibv_cq *cq = ibv_cq_ex_to_cq(ibv_create_cq_ex(ctx, &attr));

	assert_non_null(cq);
	return cq;
}

struct others {
	struct kit_end e;
	struct ibv_cq *other; /* to which nothing completes */
	bool (*poll)(struct ibv_cq *cq);
	unsigned offered; /* by another thread */
};

/* ENOUGH messages of which the caller takes in each one for others; how often it has offered its CPU. */
static unsigned take_for_others(struct others *o)
{
	offers = 0;
	for (int i = 0; i < ENOUGH; i++) {
		for (int k = 0; k < VAIN; k++)
			assert_false(o->poll(o->other));
		send_one(&o->e);
		assert_false(o->poll(o->other));
	}
	return offers;
}

static void *another_thread(void *arg)
{
	struct others *o = arg;

	o->offered += take_for_others(o);
	return NULL;
}

static void in_another_thread(struct others *o)
{
	pthread_t t;

	assert_int_equal(pthread_create(&t, NULL, another_thread, o), 0);
	assert_int_equal(pthread_join(t, NULL), 0);
}

/* As many messages, each of which the caller polls for, and one more for others; how often it has offered its
 * CPU. */
static unsigned take_own(struct others *o, struct ibv_cq *cq)
{
	while (o->poll(cq))
		;
	offers = 0;
	for (int i = 0; i < ENOUGH; i++) {
		for (int k = 0; k < VAIN; k++)
			assert_false(o->poll(cq));
		send_one(&o->e);
		while (!o->poll(cq)) /* the engine may be at it */
			;
	}
	send_one(&o->e);
	assert_false(o->poll(o->other));
	return offers;
}

/* A thread that finds nothing of its own offers its CPU, though it takes in what is for others: they may have
 * no other one.  Where it is alone with that it does not, nor if it finds what it polls for, however long it
 * took. */
static void poll_for_others(bool (*poll)(struct ibv_cq *cq))
{
	struct others o = {.other = new_cq(1), .poll = poll};
	struct ibv_pd *pd = ibv_alloc_pd(ctx);
	struct ibv_cq *cq = new_cq(2 * MANY);
	unsigned offered = 0, alone = 0;

	kit_end_open_with(&o.e, pd, cq, MANY, 4096);
	kit_connect(&o.e, &o.e.card);
	poll_until_believed(o.other);
	for (int i = 0; i < VB_IDLE_MOST; i++) /* the next offer is as far away as it may be */
		poll_once(o.other);
	take_for_others(&o); /* there may have been another thread before */
	for (int i = 0; i < 2 * ROUNDS; i++)
		alone += take_for_others(&o) == 0; /* nor is the engine at it all the time */
	assert_in_range(alone, 1, 2 * ROUNDS);
	for (int i = 0; i < ROUNDS; i++) {
		in_another_thread(&o);
		offered += take_for_others(&o);
	}
	/* Not each time: who has kept the engine from running sleeps instead. */
	assert_in_range(offered, 1, ROUNDS * ENOUGH);
	assert_in_range(o.offered, 1, ROUNDS * ENOUGH);
	offered = 1;
	for (int i = 0; i < ROUNDS && offered;
	     i++) { /* in one of them the engine is not at it all the time */
		in_another_thread(&o);
		offered = take_own(&o, cq);
	}
	assert_int_equal(offered, 0);
	kit_end_close(&o.e);
	assert_int_equal(ibv_destroy_cq(o.other), 0);
	assert_int_equal(ibv_dealloc_pd(pd), 0);
}

static void who_polls_for_others_offers_its_cpu(void **state)
{
	(void)state;
	counted = vb_hca(adapter());
	poll_for_others(plainly);
	poll_for_others(by_calls);
	counted = NULL;
}

int main(void)
{
	const struct CMUnitTest tests[] = {
	    cmocka_unit_test(who_stops_is_not_one_any_more),
	    cmocka_unit_test(who_polls_now_and_then_is_none),
	    cmocka_unit_test(pollers_are_left_alone),
	    cmocka_unit_test(timers_are_the_pollers),
	    cmocka_unit_test(who_polls_for_others_offers_its_cpu),
	};

	return cmocka_run_group_tests(tests, kit_device_open, kit_device_close);
}
