/* Two-sided tests: SENDs, to polling and to sleeping receivers. */
#include <poll.h>

#include "vbench.h"

#define EVENT_ITERS 5000u
#define EVENT_LAP   500u
#define RATE_ITERS  2000000u
#define WINDOW	    256u

#define EVENT_RATE_ITERS 200000u

void send_lat(struct side *s)
{
	unsigned owed = 0, spent = 0;
	struct laps l = {0};

	side_receive(s, 2 * LIST, 8);
	side_meet(s);
	for (unsigned i = 0; i < LAT_ITERS; i++) {
		bool signal = i % LIST == LIST - 1;

		if (i % LAP == 0)
			lap(&l);
		if (!s->client)
			side_wait(s->rcq, 1);
		side_post(s, IBV_WR_SEND, 8, IBV_SEND_INLINE | (signal ? IBV_SEND_SIGNALED : 0));
		owed += signal;
		if (s->client)
			side_wait(s->rcq, 1);
		if (++spent == LIST) {
			side_receive(s, LIST, 8);
			spent = 0;
			owed -= side_poll(s->scq, owed);
		}
	}
	lap(&l);
	if (s->client)
		figure("send_lat", l.least / LAP / 2);
	side_wait(s->scq, owed);
}

/* The receiving half of rate and bandwidth: takes n messages in and gives the receives back in lists. */
static void take(struct side *s, unsigned n, uint32_t size)
{
	unsigned spent = 0;

	while (n) {
		unsigned k = side_poll(s->rcq, n);

		n -= k;
		spent += k;
		if (spent >= LIST) {
			side_receive(s, spent, size);
			spent = 0;
		}
	}
}

/* The sending half; n: a multiple of LIST. */
static void stream(struct side *s, const char *key, unsigned n)
{
	unsigned out = 0;
	double t = now();

	for (unsigned i = 0; i < n; i++) {
		bool signal = i % LIST == LIST - 1;

		side_post(s, IBV_WR_SEND, 8, IBV_SEND_INLINE | (signal ? IBV_SEND_SIGNALED : 0));
		out++;
		while (out >= WINDOW)
			out -= LIST * side_poll(s->scq, 2);
	}
	side_wait(s->scq, out / LIST);
	figure(key, n * 1e9 / (now() - t));
}

void send_rate(struct side *s)
{
	if (!s->client)
		side_receive(s, DEPTH - LIST, 8);
	side_meet(s);
	if (s->client)
		stream(s, "send_rate", RATE_ITERS);
	else
		take(s, RATE_ITERS, 8);
}

void send_rate_list(struct side *s)
{
	struct ibv_sge sge = {(uintptr_t)s->buf, 8, s->mr->lkey};
	struct ibv_send_wr wr[LIST], *bad;
	unsigned out = 0;
	double t;

	if (!s->client)
		side_receive(s, DEPTH - LIST, 8);
	for (unsigned i = 0; i < LIST; i++)
		wr[i] = (struct ibv_send_wr){.next = i + 1 < LIST ? &wr[i + 1] : NULL,
					     .sg_list = &sge,
					     .num_sge = 1,
					     .opcode = IBV_WR_SEND,
					     .send_flags =
						 IBV_SEND_INLINE | (i + 1 < LIST ? 0 : IBV_SEND_SIGNALED)};
	side_meet(s);
	if (!s->client) {
		take(s, RATE_ITERS, 8);
		return;
	}
	t = now();
	for (unsigned i = 0; i < RATE_ITERS / LIST; i++) {
		errno = ibv_post_send(s->qp, wr, &bad);
		if (errno)
			die("ibv_post_send");
		out++;
		while (out >= WINDOW / LIST)
			out -= side_poll(s->scq, 2);
	}
	side_wait(s->scq, out);
	figure("send_rate_list", RATE_ITERS * 1e9 / (now() - t));
}

/* SENDs of `size` bytes in one direction. */
static void bandwidth(struct side *s, uint32_t size)
{
	unsigned window = size > 65536 ? 4 : 16, n = (512u << 20) / size, out = 0;
	char line[32];
	double t;

	if (!s->client)
		side_receive(s, DEPTH - LIST, size);
	side_meet(s);
	if (!s->client) {
		take(s, n, size);
		return;
	}
	t = now();
	for (unsigned i = 0; i < n; i++) {
		side_post(s, IBV_WR_SEND, size, IBV_SEND_SIGNALED);
		out++;
		while (out >= window)
			out -= side_poll(s->scq, out);
	}
	side_wait(s->scq, out);
	snprintf(line, sizeof(line), "send_bw_%u", size);
	figure(line, (double)size * n * 1e9 / (now() - t));
}

void send_64k(struct side *s)
{
	bandwidth(s, 65536);
}

void send_1m(struct side *s)
{
	bandwidth(s, 1u << 20);
}

/* Blocks until the receive CQ has an event, and arms it.  polling: in poll(2), as an event loop does. */
static void sleep_for_event(struct side *s, bool polling)
{
	struct pollfd p = {.fd = s->channel->fd, .events = POLLIN};
	struct ibv_cq *cq;
	void *context;

	if (polling && poll(&p, 1, -1) != 1)
		die("poll");
	if (ibv_get_cq_event(s->channel, &cq, &context))
		die("ibv_get_cq_event");
	ibv_ack_cq_events(cq, 1);
	if (ibv_req_notify_cq(cq, 0))
		die("ibv_req_notify_cq");
}

static void sleep_for_one(struct side *s, bool polling)
{
	sleep_for_event(s, polling);
	side_wait(s->rcq, 1);
}

/* A stream to a receiver that sleeps whenever its CQ is empty. */
void event_rate(struct side *s)
{
	if (!s->client) {
		side_receive(s, DEPTH - LIST, 8);
		if (ibv_req_notify_cq(s->rcq, 0))
			die("ibv_req_notify_cq");
	}
	side_meet(s);
	if (s->client) {
		stream(s, "event_rate", EVENT_RATE_ITERS);
		return;
	}
	for (unsigned n = EVENT_RATE_ITERS; n;) {
		unsigned k;

		sleep_for_event(s, false);
		while ((k = side_poll(s->rcq, n)) != 0) {
			n -= k;
			side_receive(s, k, 8);
		}
	}
}

static void sleeping(struct side *s, bool polling)
{
	unsigned owed = 0;
	struct laps l = {0};

	side_receive(s, 2 * LIST, 8);
	if (ibv_req_notify_cq(s->rcq, 0))
		die("ibv_req_notify_cq");
	side_meet(s);
	for (unsigned i = 0; i < EVENT_ITERS; i++) {
		bool signal = i % LIST == LIST - 1;

		if (i % EVENT_LAP == 0)
			lap(&l);
		if (!s->client)
			sleep_for_one(s, polling);
		side_post(s, IBV_WR_SEND, 8, IBV_SEND_INLINE | (signal ? IBV_SEND_SIGNALED : 0));
		owed += signal;
		if (s->client)
			sleep_for_one(s, polling);
		side_receive(s, 1, 8);
		owed -= side_poll(s->scq, owed);
	}
	lap(&l);
	if (s->client)
		figure(polling ? "poll_lat" : "event_lat", l.least / EVENT_LAP / 2);
	side_wait(s->scq, owed);
}

void event_lat(struct side *s)
{
	sleeping(s, false);
}

void poll_lat(struct side *s)
{
	sleeping(s, true);
}
