/* Threads of one process, each with a QP of its own, on two CPUs: they send 8 B SENDs to as many of another,
 * or they WRITE and READ its memory, which peers can map, while it sleeps.
 */
#include <pthread.h>

#include "vbench.h"

#define MOST   32u
#define WINDOW 256u
#define SPAN   4e8	    /* ns that each number of threads is given */
#define PLACE  (256u << 10) /* from one thread's part of the buffer to the next one's */
#define DEEP   16u	    /* requests under way of those that place */

struct worker {
	struct side s;
	pthread_t thread;
	double until;
	uint64_t sent;
	enum ibv_wr_opcode op; /* of what is placed */
	uint32_t size;
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

static void *place_on(void *arg)
{
	struct worker *w = arg;
	unsigned out = 0;

	do {
		for (unsigned i = 0; i < DEEP; i++) {
			side_post(&w->s, w->op, w->size, IBV_SEND_SIGNALED);
			for (out++; out >= DEEP;)
				out -= side_poll(w->s.scq, DEEP);
		}
		w->sent += DEEP;
	} while (now() < w->until);
	side_wait(w->s.scq, out);
	return NULL;
}

/* What n threads place in all, in requests a second. */
static double placed(struct worker *w, unsigned n, enum ibv_wr_opcode op, uint32_t size)
{
	double began = now();
	uint64_t sent = 0;

	for (unsigned i = 0; i < n; i++) {
		w[i].op = op;
		w[i].size = size;
		w[i].sent = 0;
		w[i].until = began + SPAN / 4;
		errno = pthread_create(&w[i].thread, NULL, place_on, &w[i]);
		if (errno)
			die("pthread_create");
	}
	for (unsigned i = 0; i < n; i++) {
		pthread_join(w[i].thread, NULL);
		sent += w[i].sent;
	}
	return (double)sent * 1e9 / (now() - began);
}

static void place_side_by_side(struct side *s, unsigned n)
{
	static struct worker w[MOST];
	char name[32];

	for (unsigned i = 0; i < n; i++) {
		w[i] = (struct worker){.s.sock = s->sock};
		side_join(&w[i].s, s);
		side_exchange(&w[i].s, LIST);
		w[i].s.buf += i * PLACE;
		w[i].s.far_addr += i * PLACE;
	}
	side_meet(s);
	if (s->client) {
		placed(w, n, IBV_WR_RDMA_WRITE, 8); /* the memory is mapped by then */
		snprintf(name, sizeof(name), "threads_write_rate_%u", n);
		figure(name, placed(w, n, IBV_WR_RDMA_WRITE, 8));
		snprintf(name, sizeof(name), "threads_write_bw_%u", n);
		figure(name, placed(w, n, IBV_WR_RDMA_WRITE, 65536) * 65536);
		snprintf(name, sizeof(name), "threads_read_bw_%u", n);
		figure(name, placed(w, n, IBV_WR_RDMA_READ, 65536) * 65536);
	}
	side_meet(s);
	for (unsigned i = 0; i < n; i++)
		side_close(&w[i].s);
}

void threads_place(struct side *s)
{
	place_side_by_side(s, 1);
	place_side_by_side(s, 4);
}
