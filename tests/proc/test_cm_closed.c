/* A program that closes descriptors which it never opened, with connections open: rdma_get_cm_event() gives
 * its ids' DEVICE_REMOVAL and then fails, calls fail and say why, nobody hangs, its own files at those
 * numbers stay as they were, the far end hears of the end, and it begins anew. */
#include <pthread.h>
#include <sys/syscall.h>

#include "obj/context.h"
#include "cm.h"
#include "mine.h"

static struct board {
	_Atomic int listening, done;
	uint16_t port;
} * board;

/* The far end: two connections, one after the other. */
static void serve(void)
{
	struct rdma_event_channel *ch = kit_cm_channel();
	struct rdma_cm_id *listener = kit_cm_listen(ch, &board->port);

	atomic_store(&board->listening, 1);
	for (int i = 0; i < 2; i++) {
		struct rdma_cm_id *id = kit_cm_take(ch);

		kit_cm_expect(ch, RDMA_CM_EVENT_ESTABLISHED, 0);
		kit_cm_expect(ch, RDMA_CM_EVENT_DISCONNECTED, 0);
		kit_cm_end(id);
	}
	KIT_CM(rdma_destroy_id(listener));
	rdma_destroy_event_channel(ch);
}

static struct rdma_event_channel *ch;
static struct rdma_cm_id *connected, *listener;
static pid_t server;
static uint16_t port;

static void begin(void)
{
	board = kit_shared(sizeof *board);
	server = kit_fork();
	if (!server) {
		serve();
		_exit(0);
	}
	kit_until(&board->listening, 1);
	ch = kit_cm_channel();
	listener = kit_cm_listen(ch, &port);
	connected = kit_cm_ready(ch, RDMA_PS_TCP, board->port);
	kit_cm_connect(connected);
	kit_cm_expect(ch, RDMA_CM_EVENT_ESTABLISHED, 0);
}

static void end(void)
{
	kit_cm_end(connected);
	KIT_CM(rdma_destroy_id(listener));
	rdma_destroy_event_channel(ch);
	kit_mine_check("at the end");
	/* anew, at the same port, which is free */
	kit_cm_cq = NULL;
	ch = kit_cm_channel();
	listener = kit_cm_listen(ch, &port);
	connected = kit_cm_ready(ch, RDMA_PS_TCP, board->port);
	kit_cm_connect(connected);
	kit_cm_expect(ch, RDMA_CM_EVENT_ESTABLISHED, 0);
	kit_cm_end(connected);
	KIT_CM(rdma_destroy_id(listener));
	rdma_destroy_event_channel(ch);
	kit_mine_check("after a new connection");
	CHECK(!kit_reap(server));
}

static void close_but(int fd)
{
	if (fd > 3)
		CHECK(!syscall(SYS_close_range, 3, fd - 1, 0));
	CHECK(!syscall(SYS_close_range, fd + 1, ~0u, 0));
	for (int i = 0; i < 4 * KIT_MINE_KINDS; i++)
		kit_mine_put(i % KIT_MINE_KINDS);
}

/* The engine may still be about to tell the ids. */
static void hear_of_the_removal(void)
{
	bool heard[2] = {false, false};

	while (!heard[0] || !heard[1]) {
		struct rdma_cm_event *e;

		if (rdma_get_cm_event(ch, &e)) {
			CHECK(errno == EBADF || errno == EIO, "%s", strerror(errno));
			sched_yield();
			continue;
		}
		if (e->event == RDMA_CM_EVENT_DEVICE_REMOVAL) {
			CHECK(!heard[e->id == listener]);
			heard[e->id == listener] = true;
		} else {
			CHECK(e->event == RDMA_CM_EVENT_DISCONNECTED, "%s", rdma_event_str(e->event));
		}
		KIT_CM(rdma_ack_cm_event(e));
	}
}

static int all_but_the_channel(void)
{
	struct rdma_cm_event *e;

	begin();
	close_but(ch->fd);
	/* the loss is noticed by a call, at the latest */
	(void)rdma_disconnect(connected);
	hear_of_the_removal();
	KIT_CM_FAILS(rdma_get_cm_event(ch, &e), EBADF);
	KIT_CM_FAILS(rdma_disconnect(connected), ENODEV);
	end();
	return 0;
}

static void *waits(void *arg)
{
	hear_of_the_removal();
	return arg;
}

static int all(void)
{
	struct rdma_cm_event *e;
	pthread_t t;

	begin();
	CHECK(!pthread_create(&t, NULL, waits, NULL));
	kit_until_blocked();
	close_but(2);
	(void)rdma_disconnect(connected);
	CHECK(!pthread_join(t, NULL));
	KIT_CM_FAILS(rdma_get_cm_event(ch, &e), EBADF);
	kit_mine_check("closed");
	end();
	return 0;
}

/* The old channel's number is a new one's: what the ids of the old one hear is none of its business. */
static int all_and_a_new_channel(void)
{
	struct rdma_event_channel *old, *fresh;
	int fd;

	begin();
	old = ch;
	fd = old->fd;
	CHECK(!syscall(SYS_close_range, 3, ~0u, 0));
	do
		fresh = kit_cm_channel();
	while (fresh->fd < fd);
	CHECK(fresh->fd == fd);
	(void)rdma_disconnect(connected);
	hear_of_the_removal();
	CHECK(!kit_cm_comes(fresh, 0));
	end();
	CHECK(!kit_cm_comes(fresh, 0)); /* nor did the old one's end close it */
	return 0;
}

/* With no file of the program's between them, all is opened anew at the numbers that it had before. */
static void the_old_one_has_no_part_in_the_new(void)
{
	uint16_t of_both = 0;
	struct rdma_event_channel *before, *after;
	struct rdma_cm_id *old, *fresh;
	int locks;

	CHECK(!syscall(SYS_close_range, 3, ~0u, 0)); /* what is inherited */
	before = kit_cm_channel();
	old = kit_cm_listen(before, &of_both);
	CHECK(!syscall(SYS_close_range, 3, ~0u, 0));
	after = kit_cm_channel();
	fresh = kit_cm_listen(after, &of_both);
	locks = kit_cm_port_locks();
	KIT_CM(rdma_destroy_id(old));
	rdma_destroy_event_channel(before);
	CHECK(kit_cm_port_locks() == locks);
	KIT_CM(rdma_destroy_id(fresh));
	CHECK(kit_cm_port_locks() < locks);
	rdma_destroy_event_channel(after);
}

static void hear_it(struct rdma_event_channel *c, const struct rdma_cm_id *id)
{
	struct rdma_cm_event *e;

	while (rdma_get_cm_event(c, &e))
		sched_yield();
	CHECK(e->event == RDMA_CM_EVENT_DEVICE_REMOVAL && e->id == id, "%s", rdma_event_str(e->event));
	KIT_CM(rdma_ack_cm_event(e));
}

static void ask_when_told(void)
{
	struct rdma_event_channel *c;
	struct rdma_cm_id *id;

	kit_until(&board->listening, 1);
	c = kit_cm_channel();
	id = kit_cm_ready(c, RDMA_PS_TCP, board->port);
	kit_cm_connect(id);
	kit_cm_expect(c, RDMA_CM_EVENT_REJECTED, 28);
	kit_cm_end(id);
	rdma_destroy_event_channel(c);
}

/* The old device's engine is held up on its way to tell the loss, until the program listens at a new one:
 * that listener is none of its business. */
static int all_and_the_engine_is_late(void)
{
	struct rdma_event_channel *old;
	struct vb_context *held;
	struct kit_cm_event e;
	pid_t client;

	board = kit_shared(sizeof *board);
	client = kit_fork();
	if (!client) {
		ask_when_told();
		_exit(0);
	}
	old = kit_cm_channel();
	connected = kit_cm_ready(old, RDMA_PS_TCP, 1);
	held = vb_context(connected->verbs);
	vb_lock_take(&held->lock); /* vb_device_lost() */
	CHECK(!syscall(SYS_close_range, 3, ~0u, 0));
	kit_cm_cq = NULL;
	ch = kit_cm_channel();
	listener = kit_cm_listen(ch, &board->port);
	vb_lock_give(&held->lock);
	hear_it(old, connected);
	atomic_store(&board->listening, 1);
	e = kit_cm_expect(ch, RDMA_CM_EVENT_CONNECT_REQUEST, 0);
	KIT_CM(rdma_reject(e.id, NULL, 0));
	KIT_CM(rdma_destroy_id(e.id));
	CHECK(!kit_reap(client));
	kit_cm_end(connected);
	KIT_CM(rdma_destroy_id(listener));
	rdma_destroy_event_channel(old);
	rdma_destroy_event_channel(ch);
	return 0;
}

/* Nothing of the device's is closed. */
static void the_channel_alone(void)
{
	struct rdma_event_channel *old, *fresh;
	struct rdma_cm_event *e;

	begin();
	old = ch;
	CHECK(!close(old->fd));
	fresh = kit_cm_channel();
	CHECK(fresh->fd == old->fd);
	KIT_CM(rdma_disconnect(connected));
	while (rdma_get_cm_event(old, &e)) {
		CHECK(errno == EBADF, "%s", strerror(errno));
		sched_yield();
	}
	CHECK(e->event == RDMA_CM_EVENT_DISCONNECTED && e->id == connected);
	KIT_CM(rdma_ack_cm_event(e));
	CHECK(!kit_cm_comes(fresh, 0));
	end();
	CHECK(!kit_cm_comes(fresh, 0));
	rdma_destroy_event_channel(fresh);
}

static void said(int (*f)(void))
{
	static char text[1 << 14];
	int status;

	alarm(60);
	status = kit_said("stderr", "info", f, text, sizeof text);
	CHECK(!status, "0x%x:\n%s", status, text);
	CHECK(strstr(text, "closed"), "%s", text);
}

static void the_channel_stays(void)
{
	said(all_but_the_channel);
}

static void the_engine_is_late(void)
{
	said(all_and_the_engine_is_late);
}

static void nothing_stays(void)
{
	said(all);
}

static void the_number_is_a_new_ones(void)
{
	said(all_and_a_new_channel);
}

int main(int argc, char **argv)
{
	static const struct kit_case cases[] = {
	    {"all but the channel", the_channel_stays, false, false},
	    {"the channel alone, and a new one has its number", the_channel_alone, false, false},
	    {"all, and a new channel has the number", the_number_is_a_new_ones, false, false},
	    {"the old one has no part in the new", the_old_one_has_no_part_in_the_new, false, false},
	    {"all, and the old engine is late", the_engine_is_late, false, false},
	    {"all", nothing_stays, false, false},
	};

	KIT_CASES(cases, 60);
	return 0;
}
