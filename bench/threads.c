/* Threads of one process that send 8 B SENDs to as many of another, each over a QP of its own, on two CPUs.
 */
#include <pthread.h>

#include "vbench.h"

#define MOST   32u
#define WINDOW 256u
#define SPAN   4e8 /* ns that each number of threads is given */

struct worker {
	struct side s;
	pthread_t thread;
	double until;
	uint64_t sent;
};

/* Its last message is empty. */
static void *send_on(void *arg)
{
	struct worker *w = arg;
	unsigned out = 0;

	do {
		for (unsigned i = 0; i < LIST; i++)
			side_post(&w->s, IBV_WR_SEND, 8,
				  IBV_SEND_INLINE | (i == LIST - 1 ? IBV_SEND_SIGNALED : 0));
		w->sent += LIST;
		out += LIST;
		while (out >= WINDOW)
			out -= LIST * side_poll(w->s.scq, 2);
	} while (now() < w->until);
	side_wait(w->s.scq, out / LIST);
	side_post(&w->s, IBV_WR_SEND, 0, IBV_SEND_SIGNALED);
	side_wait(w->s.scq, 1);
	return NULL;
}

static void *take_on(void *arg)
{
	struct worker *w = arg;
	struct ibv_wc wc[LIST];
	unsigned spent = 0;

	for (;;) {
		int n = ibv_poll_cq(w->s.rcq, LIST, wc);

		if (n < 0 || (n && wc[n - 1].status))
			die("a receive");
		if (n && !wc[n - 1].byte_len)
			return NULL;
		spent += (unsigned)n;
		if (spent >= LIST) {
			side_receive(&w->s, spent, 8);
			spent = 0;
		}
	}
}

static void side_by_side(struct side *s, unsigned n)
{
	static struct worker w[MOST];
	uint64_t sent = 0;
	char name[32];
	double began;

	for (unsigned i = 0; i < n; i++) {
		w[i] = (struct worker){.s.sock = s->sock};
		side_join(&w[i].s, s);
		side_exchange(&w[i].s, LIST);
		if (!s->client)
			side_receive(&w[i].s, DEPTH - LIST, 8);
	}
	side_meet(s);
	began = now();
	for (unsigned i = 0; i < n; i++) {
		w[i].until = began + SPAN;
		errno = pthread_create(&w[i].thread, NULL, s->client ? send_on : take_on, &w[i]);
		if (errno)
			die("pthread_create");
	}
	for (unsigned i = 0; i < n; i++) {
		pthread_join(w[i].thread, NULL);
		sent += w[i].sent;
	}
	if (s->client) {
		snprintf(name, sizeof(name), "threads_rate_%u", n);
		figure(name, (double)sent * 1e9 / (now() - began));
	}
	for (unsigned i = 0; i < n; i++)
		side_close(&w[i].s);
}

void threads(struct side *s)
{
	static const unsigned counts[] = {1, 2, 8, MOST};

	for (unsigned i = 0; i < sizeof(counts) / sizeof(counts[0]); i++)
		side_by_side(s, counts[i]);
}
