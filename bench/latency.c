/* Half round trips of 8 B SENDs, each taken by itself: median, average and tail, inline and from a region. */
#include "vbench.h"

#define MESSAGES 300000u

static void latency(struct side *s, unsigned flags, const char *name)
{
	double *v = malloc(MESSAGES * sizeof(*v)), began;
	unsigned owed = 0, spent = 0;
	uint64_t began_ticks, last;

	if (!v)
		die("malloc");
	memset(v, 1, MESSAGES * sizeof(*v)); /* its pages are present */
	side_receive(s, 2 * LIST, 8);
	side_meet(s);
	began = now();
	began_ticks = last = ticks();
	for (unsigned i = 0; i < MESSAGES; i++) {
		bool signal = i % LIST == LIST - 1;
		uint64_t t;

		if (!s->client)
			side_wait(s->rcq, 1);
		side_post(s, IBV_WR_SEND, 8, flags | (signal ? IBV_SEND_SIGNALED : 0));
		owed += signal;
		if (s->client)
			side_wait(s->rcq, 1);
		if (++spent == LIST) {
			side_receive(s, LIST, 8);
			spent = 0;
			owed -= side_poll(s->scq, owed);
		}
		t = ticks();
		v[i] = (double)(t - last) / 2;
		last = t;
	}
	if (s->client)
		spread_tell(name, v, MESSAGES, spread_unit(began, began_ticks));
	side_wait(s->scq, owed);
	free(v);
}

void lat_inline(struct side *s)
{
	latency(s, IBV_SEND_INLINE, "lat_inline");
}

void lat_region(struct side *s)
{
	latency(s, 0, "lat_region");
}
