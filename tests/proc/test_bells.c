/* One bell for all packets that a sleeping adapter has not looked at, and no packet without one. */
#include <sys/ioctl.h>
#include <linux/sockios.h>

#include "host/private.h"
#include "kit.h"
#include "node.h"

enum { MANY = 100, BURSTS = 30000 };

struct two {
	struct kit_node *x, *y;
	struct vb_peer *xy;
	int never; /* an eventfd that nobody writes to */
};

static struct two two_open(void)
{
	struct two t = {.x = kit_node_open(), .y = kit_node_open(), .never = eventfd(0, EFD_CLOEXEC)};

	t.xy = kit_connected(t.x, kit_number_of(t.y));
	kit_await_count(t.y, &t.y->ups, 1);
	return t;
}

static void two_close(struct two *t)
{
	vb_peer_put(t->xy);
	kit_node_close(t->x);
	kit_node_close(t->y);
	close(t->never);
}

/* What stands in the socket unread, as the kernel accounts for it. */
static int unread(const struct two *t)
{
	int bytes = -1;

	assert_int_equal(ioctl(t->xy->sock, SIOCOUTQ, &bytes), 0);
	return bytes;
}

/* Nobody reads bells while `control` is held. */
static void one_bell_for_many(void **state)
{
	struct two t = two_open();
	int one;

	(void)state;
	for (int round = 0; round < 10; round++) {
		pthread_mutex_lock(&t.y->a->control);
		kit_send_to(t.xy);
		one = unread(&t);
		for (int i = 1; i < MANY; i++)
			kit_send_to(t.xy);
		if (unread(&t) != one)
			fail_msg("%d bytes of bells after one packet, %d after %d", one, unread(&t), MANY);
		pthread_mutex_unlock(&t.y->a->control);
		for (int i = 0; i < MANY; i++)
			kit_await(t.y->arrived);
	}
	two_close(&t);
}

/* Some nanoseconds to a few microseconds: about what it takes to read a bell and to look. */
static void while_away(uint64_t *random)
{
	for (uint64_t n = kit_random(random) % 2000; n; n--)
		__asm__ volatile("" ::: "memory");
}

static void bursts(struct two *t)
{
	uint64_t random = 1;

	for (int i = 0; i < BURSTS; i++) {
		uint32_t n = 1 + (uint32_t)(kit_random(&random) % 3);

		for (uint32_t k = 0; k < n; k++) {
			kit_send_to(t->xy);
			while_away(&random);
		}
		for (uint32_t k = 0; k < n; k++) /* gives up where a packet lies without a bell */
			kit_await(t->y->arrived);
	}
}

/* Packets come while the engine reads a bell, before it, and just after. */
static void no_packet_lies(void **state)
{
	struct two t = two_open();

	(void)state;
	bursts(&t);
	two_close(&t);
}

static void *wait_for_ever(void *arg)
{
	struct two *t = arg;

	vb_adapter_wait(t->y->a, t->never, &(bool){false}, VB_NEVER);
	return NULL;
}

/* The same where a thread of the program waits, and the engine leaves bells to it. */
static void no_packet_lies_before_a_waiter(void **state)
{
	struct two t = two_open();
	pthread_t waiter;

	(void)state;
	assert_int_equal(pthread_create(&waiter, NULL, wait_for_ever, &t), 0);
	bursts(&t);
	assert_int_equal(pthread_cancel(waiter), 0);
	assert_int_equal(pthread_join(waiter, NULL), 0);
	two_close(&t);
}

static uint32_t word(const struct kit_node *n)
{
	return atomic_load(vb_adapter_presence(n->a)->awake);
}

struct expects {
	struct kit_node *n;
	_Atomic bool come;
};

static void *look_out(void *arg)
{
	struct expects *e = arg;

	vb_adapter_look_out(e->n->a, &(bool){false}, &e->come, vb_now() + 20 * VB_SEC);
	return NULL;
}

/* A thread that expects an answer takes packets that nobody rings for.  With the answer it counts as one that
 * polls; the engine finds that it does not, and then the bell is needed again. */
static void who_expects_is_not_rung(void **state)
{
	struct two t = two_open();
	struct expects e = {.n = t.y};
	int none = unread(&t), rung;
	pthread_t thread;

	(void)state;
	assert_true(vb_adapter_expect(t.y->a));
	assert_int_equal(word(t.y), VB_EXPECTING);
	pthread_mutex_lock(&t.y->a->control); /* the engine reads no bell */
	assert_int_equal(pthread_create(&thread, NULL, look_out, &e), 0);
	for (int i = 0; i < MANY; i++)
		kit_send_to(t.xy);
	rung = unread(&t);
	if (word(t.y) == VB_EXPECTING) /* else this machine was so slow that the engine has looked */
		assert_int_equal(rung, none);
	pthread_mutex_unlock(&t.y->a->control);
	for (int i = 0; i < MANY; i++)
		kit_await(t.y->arrived);
	atomic_store(&e.come, true);
	assert_int_equal(pthread_join(thread, NULL), 0);
	assert_int_not_equal(word(t.y), VB_EXPECTING);
	for (double end = kit_now() + 10; word(t.y) != VB_ASLEEP; sched_yield()) /* nothing tells of it */
		assert_true(kit_now() < end);
	kit_send_to(t.xy);
	kit_await(t.y->arrived);
	two_close(&t);
}

/* Nobody would wake the others up: a thread that waits, and one that waits for a completion's event. */
static void nobody_expects_beside_a_sleeper(void **state)
{
	struct two t = two_open();
	pthread_t waiter;

	(void)state;
	vb_adapter_arm(t.y->a);
	assert_false(vb_adapter_expect(t.y->a));
	vb_adapter_disarm(t.y->a);
	assert_int_equal(pthread_create(&waiter, NULL, wait_for_ever, &t), 0);
	while (!atomic_load(&t.y->a->waiters)) /* nothing tells of it */
		sched_yield();
	assert_false(vb_adapter_expect(t.y->a));
	assert_int_equal(word(t.y), VB_ASLEEP);
	assert_int_equal(pthread_cancel(waiter), 0);
	assert_int_equal(pthread_join(waiter, NULL), 0);
	two_close(&t);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
	    cmocka_unit_test(one_bell_for_many),
	    cmocka_unit_test(no_packet_lies),
	    cmocka_unit_test(no_packet_lies_before_a_waiter),
	    cmocka_unit_test(who_expects_is_not_rung),
	    cmocka_unit_test(nobody_expects_beside_a_sleeper),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
