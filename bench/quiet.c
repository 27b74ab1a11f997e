/* What quiet peers cost: processes that are connected to the client and send nothing, while it polls, and
 * plays ping-pong with one more that polls.  Then some of them speak: for the first time in their lives; once
 * more after they have been quiet for a while; and after as long a while in which a speaker was quiet towards
 * the client only, since just before it talks to itself.  The last tells what is the quiet pair's from what
 * is a process's that has done nothing. */
#include <sys/socket.h>
#include <sys/un.h>
#include <sys/wait.h>

#include "vbench.h"

#define MOST	 500u
#define SPEAKERS 32u
#define WORDS	 16u  /* of each speaker; the first comes from a quiet peer */
#define PAUSE	 2e4  /* ns between them */
#define REST	 2e8  /* ns after which peers count as quiet */
#define TURNS	 200u /* of so many polls, and of so many messages */
#define POLLS	 1000u
#define MESSAGES 50000u

static const unsigned stages[] = {1, 50, MOST};

static void poll_for(struct side *s, double ns)
{
	double until = now() + ns;

	while (now() < until)
		side_poll(s->scq, 1);
}

/* A socket that gives back what is sent. */
static int mirror(void)
{
	struct sockaddr_un name = {.sun_family = AF_UNIX};
	socklen_t len = sizeof(name);
	int sock = socket(AF_UNIX, SOCK_DGRAM, 0);

	if (sock < 0 || bind(sock, (struct sockaddr *)&name, sizeof(name.sun_family)) ||
	    getsockname(sock, (struct sockaddr *)&name, &len) || connect(sock, (struct sockaddr *)&name, len))
		die("a socket to itself");
	return sock;
}

/* A QP whose peer is itself. */
static void talk_for(struct side *self, double ns)
{
	double until = now() + ns;

	while (now() < until) {
		side_receive(self, 1, 8);
		side_post(self, IBV_WR_SEND, 8, IBV_SEND_INLINE | IBV_SEND_SIGNALED);
		side_wait(self->rcq, 1);
		side_wait(self->scq, 1);
	}
}

/* A quiet peer's part.  Each message carries the time of its post.  The peer has polled for a while by then,
 * which nobody else sees, so that waking up is no part of what the first one takes.  self: it has talked to
 * itself instead; else NULL. */
static void speak(struct side *s, struct side *self)
{
	pin(1);
	for (unsigned i = 0; i < WORDS; i++) {
		uint64_t t;

		if (self)
			talk_for(self, PAUSE);
		else
			poll_for(s, PAUSE);
		t = (uint64_t)now();
		memcpy(s->buf, &t, sizeof(t));
		side_post(s, IBV_WR_SEND, sizeof(t), IBV_SEND_INLINE | IBV_SEND_SIGNALED);
		side_wait(s->scq, 1);
	}
	unpin();
}

static void quiet_peer(int sock)
{
	struct side s = {.sock = sock, .small = true}, self = {.sock = -1};
	char word;

	if (recv(sock, &word, 1, 0) != 1)
		return;
	side_open(&s);
	side_exchange(&s, 1);
	while (recv(sock, &word, 1, 0) == 1 && word) {
		if (word == 't' && self.sock < 0) {
			self.sock = mirror();
			side_join(&self, &s);
		}
		speak(&s, word == 't' ? &self : NULL);
	}
	if (self.sock >= 0)
		side_close(&self);
	side_close(&s);
}

static void ping_pong(struct side *s, double *v)
{
	unsigned owed = 0, spent = 0;

	side_receive(s, 2 * LIST, 8);
	side_meet(s);
	for (unsigned i = 0; i < MESSAGES; i++) {
		bool signal = i % LIST == LIST - 1;
		double t = now();

		if (!s->client)
			side_wait(s->rcq, 1);
		side_post(s, IBV_WR_SEND, 8, IBV_SEND_INLINE | (signal ? IBV_SEND_SIGNALED : 0));
		owed += signal;
		if (s->client)
			side_wait(s->rcq, 1);
		v[i] = now() - t;
		if (++spent == LIST) {
			side_receive(s, LIST, 8);
			spent = 0;
			owed -= side_poll(s->scq, owed);
		}
	}
	side_wait(s->scq, owed);
}

static void active_peer(int sock)
{
	struct side s = {.sock = sock};
	double *v = malloc(MESSAGES * sizeof(*v));

	if (!v)
		die("malloc");
	side_open(&s);
	pin(1);
	side_warm(&s);
	for (unsigned i = 0; i < sizeof(stages) / sizeof(stages[0]); i++)
		ping_pong(&s, v);
	side_close(&s);
}

/* ns of one of many polls that find nothing. */
static double empty_poll(struct side *s)
{
	struct ibv_wc wc;
	double v[TURNS];

	for (unsigned i = 0; i < TURNS; i++) {
		double t = now();

		for (unsigned k = 0; k < POLLS; k++)
			if (ibv_poll_cq(s->rcq, 1, &wc))
				die("a message that nobody sent");
		v[i] = (now() - t) / POLLS;
	}
	return spread_rank(v, TURNS, 0.5);
}

/* New quiet peers, up to n: they all begin before the first is waited for. */
static void connect_up_to(struct side *quiet, unsigned have, unsigned n, const struct side *s)
{
	for (unsigned i = have; i < n; i++)
		if (send(quiet[i].sock, "c", 1, 0) != 1)
			die("a quiet peer is gone");
	for (unsigned i = have; i < n; i++) {
		side_join(&quiet[i], s);
		side_exchange(&quiet[i], 1);
	}
}

/* Half a round trip is told as this side's: of the whole one the other side's half is taken off, as it is
 * where both have one quiet peer or none. */
static void stage(struct side *s, unsigned n, double *v)
{
	static double other;
	double round;
	char name[32];

	poll_for(s, REST);
	snprintf(name, sizeof(name), "quiet_poll_%u", n);
	figure(name, empty_poll(s));
	ping_pong(s, v);
	round = spread_rank(v, MESSAGES, 0.5);
	if (other == 0)
		other = round / 2;
	snprintf(name, sizeof(name), "quiet_lat_%u", n);
	figure(name, round - other);
}

/* Some of the peers say a few words each, a while apart: the first one comes from a peer that was quiet, the
 * others from one that is not. */
static void listen_to(struct side *quiet, const char *word, const char *key)
{
	static double first[SPEAKERS], busy[SPEAKERS * (WORDS - 1)];
	unsigned f = 0, b = 0;
	char name[32];

	for (unsigned i = 0; i < SPEAKERS; i++) {
		struct side *q = &quiet[i * (MOST / SPEAKERS)];

		side_receive(q, WORDS, 8);
		if (send(q->sock, word, 1, 0) != 1)
			die("a quiet peer is gone");
		for (unsigned k = 0; k < WORDS; k++) {
			uint64_t said;
			double t;

			side_wait(q->rcq, 1);
			t = now();
			memcpy(&said, q->buf, sizeof(said));
			*(k ? &busy[b++] : &first[f++]) = t - (double)said;
		}
	}
	snprintf(name, sizeof(name), "%s_first", key);
	figure(name, spread_rank(first, f, 0.5));
	snprintf(name, sizeof(name), "%s_busy", key);
	figure(name, spread_rank(busy, b, 0.5));
}

void quiet_peers(void)
{
	static struct side quiet[MOST], s;
	double *v = malloc(MESSAGES * sizeof(*v));
	unsigned have = 0;

	if (!v)
		die("malloc");
	side_allow_descriptors();
	side_fork(quiet, MOST, quiet_peer);
	side_fork(&s, 1, active_peer);
	side_open(&s);
	pin(0);
	side_warm(&s);
	for (unsigned i = 0; i < sizeof(stages) / sizeof(stages[0]); i++) {
		connect_up_to(quiet, have, stages[i], &s);
		have = stages[i];
		stage(&s, have, v);
	}
	listen_to(quiet, "s", "quiet");
	poll_for(&s, REST);
	listen_to(quiet, "s", "quiet_again");
	poll_for(&s, REST);
	listen_to(quiet, "t", "quiet_talking");
	unpin();
	for (unsigned i = 0; i < MOST; i++) {
		if (send(quiet[i].sock, "", 1, 0) != 1)
			die("a quiet peer is gone");
		side_close(&quiet[i]);
	}
	side_close(&s);
	for (unsigned i = 0; i <= MOST; i++)
		wait(NULL);
	free(v);
}
