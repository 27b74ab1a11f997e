/* A target that has polled, and now computes: how long a packet lies there, and how long what the target owes
 * is waited for.  Meanwhile the sender polls, waits for an event, or computes too.  With ACK timeouts 0
 * and 14.
 *
 *   send   until the target's memory has the bytes, which it looks at without a call
 *   ack    until the sender's completion of a SEND whose receive completion is the last thing that the target
 *          took before it began to compute
 *   read   until the sender's completion of a READ that only the ring may carry out
 *
 * A sender that computes sees its completion by its channel's descriptor, which it looks at without waiting:
 * a system call, but none of the library. */
#include <poll.h>
#include <stdatomic.h>

#include "vbench.h"

#define SAMPLES 10u
#define POLLED	5e6 /* ns for which the target polls before it computes */
#define APART	5e5 /* the samples begin so much later each */
#define AT_MOST 1e9 /* then the target polls again, so that no sample lasts for ever */

enum what { SEND, ACK, READ, WHATS };
enum sender { POLLS, WAITS, COMPUTES, SENDERS };

struct board {
	_Atomic uint64_t computes, over, seen; /* number of the sample; seen: ns */
};

static void poll_for(struct side *s, double ns)
{
	double until = now() + ns;

	while (now() < until)
		if (side_poll(s->scq, 1))
			die("a completion of nothing");
}

static void target(struct side *s, struct board *b, enum what what, uint64_t k)
{
	const _Atomic uint64_t *mine = (_Atomic uint64_t *)(void *)s->buf;
	double until;
	bool seen = what != SEND;

	if (what != READ)
		side_receive(s, 1, 8);
	side_meet(s);
	if (what == ACK)
		side_wait(s->rcq, 1);
	else
		poll_for(s, POLLED);
	atomic_store(&b->computes, k);
	until = now() + AT_MOST;
	while (atomic_load(&b->over) != k) {
		if (!seen && atomic_load(mine) == k) {
			atomic_store(&b->seen, (uint64_t)now());
			seen = true;
		}
		if (now() > until)
			side_poll(s->scq, 1);
	}
	if (what == SEND)
		side_wait(s->rcq, 1);
}

static void take_event(struct side *s)
{
	struct ibv_cq *cq;
	void *context;

	if (ibv_get_cq_event(s->channel, &cq, &context))
		die("ibv_get_cq_event");
	ibv_ack_cq_events(cq, 1);
}

/* Until the completion is there; takes it. */
static double complete(struct side *s, enum sender how)
{
	struct pollfd p = {.fd = s->channel->fd, .events = POLLIN};
	double t;

	if (how == POLLS) {
		side_wait(s->scq, 1);
		return now();
	}
	if (how == COMPUTES)
		while (poll(&p, 1, 0) != 1)
			;
	else
		take_event(s);
	t = now();
	if (how == COMPUTES)
		take_event(s);
	side_wait(s->scq, 1);
	return t;
}

static double sender(struct side *s, struct board *b, enum what what, enum sender how, uint64_t k)
{
	double began, end;

	side_meet(s);
	if (how != POLLS && ibv_req_notify_cq(s->scq, 0))
		die("ibv_req_notify_cq");
	if (what == ACK)
		poll_for(s, POLLED);
	else
		while (atomic_load(&b->computes) != k)
			poll_for(s, 0);
	poll_for(s, (double)(k % SAMPLES) * APART);
	memcpy(s->buf, &k, sizeof(k));
	began = now();
	side_post(s, what == READ ? IBV_WR_RDMA_READ : IBV_WR_SEND, 8,
		  IBV_SEND_SIGNALED | (what == READ ? 0 : IBV_SEND_INLINE));
	end = complete(s, how);
	while (what == SEND && !atomic_load(&b->seen))
		;
	if (what == SEND)
		end = (double)atomic_load(&b->seen);
	atomic_store(&b->seen, 0);
	atomic_store(&b->over, k);
	return end - began;
}

static void row(struct side *s, enum what what, enum sender how)
{
	static const char *const whats[] = {"send", "ack", "read"}, *const hows[] = {"polls", "waits",
										     "computes"};
	static uint64_t k; /* both sides count alike */
	char name[64];
	double v[SAMPLES];

	for (unsigned i = 0; i < SAMPLES; i++) {
		k++;
		if (s->client)
			v[i] = sender(s, s->board, what, how, k);
		else
			target(s, s->board, what, k);
	}
	if (!s->client)
		return;
	snprintf(name, sizeof(name), "computing_%s_%s_%u", whats[what], hows[how], s->untimed ? 0 : 14);
	figure(name, spread_rank(v, SAMPLES, 1));
	strcat(name, "_median");
	figure(name, spread_rank(v, SAMPLES, 0.5));
}

void computing(struct side *s)
{
	for (unsigned timed = 0; timed < 2; timed++) {
		struct side one = {.sock = s->sock, .untimed = !timed};

		side_join(&one, s);
		side_exchange(&one, LIST);
		for (enum what w = 0; w < WHATS; w++)
			for (enum sender how = 0; how < SENDERS; how++)
				row(&one, w, how);
		side_close(&one);
	}
}
