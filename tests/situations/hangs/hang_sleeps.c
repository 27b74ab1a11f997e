/* Programs that sleep on a completion channel. */
#include <pthread.h>

#include "hang.h"

static struct ibv_comp_channel *channel, *other;

static void *get_event(void *ch)
{
	struct ibv_cq *cq;
	void *context;

	hangs();
	CHECK(!ibv_get_cq_event(ch, &cq, &context));
	CHECK(0, "there was an event");
	return NULL;
}

static void sleep_on(struct ibv_comp_channel *ch)
{
	get_event(ch);
}

/* Two connected processes; the one that is explained has a channel and receives, and has got a message. */
static void received(void (*before)(void), unsigned flags)
{
	struct ibv_sge sge;
	struct ibv_send_wr *bad, wr = {.wr_id = 1, .num_sge = 1, .opcode = IBV_WR_SEND, .sg_list = &sge};

	two();
	open_device();
	channel = ibv_create_comp_channel(ctx);
	other = ibv_create_comp_channel(ctx);
	CHECK(channel && other);
	kit_end_open_on(&e, pd, channel, 8, 8192);
	for (int i = 0; i < 8; i++)
		CHECK(!kit_recv(&e, 1, 0, 64));
	meet();
	kit_connect(&e, &far);
	if (!is_peer && before)
		before();
	barrier();
	if (is_peer) {
		sge = (struct ibv_sge){(uintptr_t)e.buf, 8, e.mr->lkey};
		wr.send_flags = IBV_SEND_SIGNALED | flags;
		CHECK(!ibv_post_send(e.qp, &wr, &bad));
		done(e.cq);
		barrier();
		stay();
	}
	barrier();
	until_there(e.cq);
}

static void never_armed(void)
{
	received(NULL, 0);
	KNOWS("CQ %p (completion channel with fd %d): 1 completion lies in it", (void *)e.cq, channel->fd);
	KNOWS("and thread %d sleeps in ibv_get_cq_event()", gettid());
	KNOWS("the CQ was never armed: ibv_req_notify_cq() was not called");
	sleep_on(channel);
}

static void armed_late(void)
{
	received(NULL, 0);
	CHECK(!ibv_req_notify_cq(e.cq, 0));
	KNOWS("1 completion lies in it");
	KNOWS("the CQ was armed after they had come");
	sleep_on(channel);
}

static void arm(void)
{
	CHECK(!ibv_req_notify_cq(e.cq, 0));
}

static void take_event(void)
{
	struct ibv_cq *cq;
	void *context;

	CHECK(!ibv_get_cq_event(channel, &cq, &context));
	ibv_ack_cq_events(cq, 1);
}

static void not_rearmed(void)
{
	received(arm, 0);
	take_event();
	KNOWS("1 completion lies in it");
	KNOWS("the CQ is not armed: it was armed 1 time, each arming is for one event, and 1 event was "
	      "delivered");
	sleep_on(channel);
}

static void arm_solicited(void)
{
	CHECK(!ibv_req_notify_cq(e.cq, 1));
}

static void solicited(void)
{
	received(arm_solicited, 0);
	KNOWS("the CQ is armed for solicited completions only");
	KNOWS("to do: in PID %d (situations-hang): call ibv_req_notify_cq(cq, 0); or set IBV_SEND_SOLICITED "
	      "on the "
	      "SENDs of PID %d (situations-hang)",
	      (int)getpid(), (int)peer_pid);
	sleep_on(channel);
}

static void other_channel(void)
{
	received(arm, 0);
	KNOWS("its event lies unread in the channel with fd %d, and the thread sleeps on another channel",
	      channel->fd);
	sleep_on(other);
}

static void event_unread(void)
{
	received(arm, 0);
	KNOWS("1 event lies unread in the channel with fd %d", channel->fd);
	stay();
}

static atomic_bool taken;

static void *taker(void *unused)
{
	(void)unused;
	take_event();
	atomic_store(&taken, true);
	for (;;)
		pause();
	return NULL;
}

/* One thread takes the event and forgets the CQ, the other waits for it. */
static void event_taken(void)
{
	pthread_t t;

	received(arm, 0);
	CHECK(!pthread_create(&t, NULL, taker, NULL));
	KNOWS("another thread has got the event of these completions");
	while (!atomic_load(&taken))
		kit_nap(1);
	sleep_on(channel);
}

static void no_channel(void)
{
	two();
	open_end(8);
	channel = ibv_create_comp_channel(ctx);
	CHECK(channel && !kit_recv(&e, 1, 0, 64));
	meet();
	kit_connect(&e, &far);
	barrier();
	if (is_peer) {
		CHECK(!kit_post(&e, IBV_WR_SEND, 7, 0, 8, &far, 0));
		stay();
	}
	until_there(e.cq);
	KNOWS("the CQ was created without a completion channel, so it makes no events. It is the CQ of QP "
	      "0x%06x",
	      e.card.qpn);
	sleep_on(channel);
}

static void channel_without_cq(void)
{
	open_end(8);
	channel = ibv_create_comp_channel(ctx);
	KNOWS("completion channel with fd %d: thread %d sleeps in ibv_get_cq_event()", channel->fd, gettid());
	KNOWS("no CQ was created with this channel");
	sleep_on(channel);
}

/* Not armed, and nothing has come yet: no event will come. */
static void unarmed_empty(void)
{
	open_device();
	channel = ibv_create_comp_channel(ctx);
	kit_end_open_on(&e, pd, channel, 8, 8192);
	KNOWS("the CQ of this channel is not armed: a completion that comes will make no event");
	sleep_on(channel);
}

/* It does everything right, and nobody sends. */
static void armed(void)
{
	open_end(8);
	channel = ibv_create_comp_channel(ctx);
	kit_end_open_on(&e, pd, channel, 8, 8192);
	arm();
	KNOWS("1 of 1 CQs of this channel is armed and empty: no completion has come");
	sleep_on(channel);
}

const struct hang sleeps[] = {
    {"never-armed", "never-armed", never_armed, "in its CQ: the CQ was never armed"},
    {"unarmed-empty", "never-armed", unarmed_empty, NULL},
    {"armed", "armed", armed, NULL},
    {"armed-late", "armed-late", armed_late, "in its CQ: the CQ was armed after they had come"},
    {"not-rearmed", "not-rearmed", not_rearmed, "in its CQ: the CQ was not armed again"},
    {"solicited-only", "solicited-only", solicited, "in its CQ: the CQ is armed for solicited"},
    {"other-channel", "other-channel", other_channel, NULL},
    {"event-unread", "event-unread", event_unread, NULL},
    {"event-taken", "event-taken", event_taken, "in its CQ: the CQ was not armed again"},
    {"no-channel", "no-channel", no_channel, NULL},
    {"channel-without-cq", "channel-without-cq", channel_without_cq, NULL},
    {0},
};
