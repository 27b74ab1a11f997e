#include "transport/pace.h"

#include "base/clock.h"
#include "transport/congestion.h"

enum {
	SOME = VB_CONGESTION_FIRST / 4, /* bytes for which it pays to begin again */
	MARKED = 8,			/* tenths of the rate that a CNP leaves */
	HALF = 2,			/* the limit is never cut by more */
	GROWTH = 8,			/* the limit grows by this part of it */
};
/* Nobody tells of a round trip. */
#define ROUND (100 * VB_USEC) /* a CNP cuts the limit once in that time, and the rate is measured over it */
#define GROWS (500 * VB_USEC) /* the limit grows once in that time */

void vb_pace_begin(struct vb_pace *p, uint64_t now)
{
	*p = (struct vb_pace){.limit = VB_PACE_FIRST,
			      .starting = true,
			      .left = VB_CONGESTION_FIRST,
			      .at = now,
			      .since = now,
			      .grown_at = now};
}

uint64_t vb_pace_at(const struct vb_pace *p)
{
	return p->at + (uint64_t)(SOME - p->left) * VB_SEC / p->limit + 1;
}

static void measure(struct vb_pace *p, uint64_t now)
{
	if (now - p->since < ROUND)
		return;
	p->measured = p->sent * VB_SEC / (now - p->since);
	p->sent = 0;
	p->since = now;
}

static void grow(struct vb_pace *p, uint64_t now)
{
	while (!p->starting && p->limit < VB_PACE_MOST && now - p->grown_at >= GROWS) {
		p->limit += p->limit / GROWTH;
		p->grown_at += GROWS;
	}
	if (p->limit > VB_PACE_MOST)
		p->limit = VB_PACE_MOST;
	if (p->limit == VB_PACE_MOST)
		p->grown_at = now;
}

/* All that the limit permitted has left: the path is looked for by doubling. */
static void start(struct vb_pace *p, uint64_t now)
{
	if (!p->starting || now - p->grown_at < ROUND)
		return;
	p->limit *= 2;
	p->starting = p->limit < VB_PACE_MOST;
	p->grown_at = now;
}

/* What may leave by now.  What is not used for long does not add up. */
static void refill(struct vb_pace *p, uint64_t now)
{
	uint64_t most = (uint64_t)(VB_CONGESTION_FIRST - p->left);
	uint64_t more = now - p->at < VB_SEC ? (now - p->at) * p->limit / VB_SEC : most;

	p->left += (int64_t)(more < most ? more : most);
	p->at = now;
	grow(p, now);
}

void vb_pace_sent(struct vb_pace *p, uint64_t bytes, uint64_t now)
{
	if (p->left <= 0) {
		measure(p, now);
		refill(p, now);
		start(p, now);
	}
	p->left -= (int64_t)bytes;
	p->sent += bytes;
}

void vb_pace_marked(struct vb_pace *p, uint64_t now)
{
	uint64_t limit;

	if (p->cut_at && now - p->cut_at < ROUND)
		return;
	measure(p, now);
	refill(p, now);
	limit = (p->measured && p->measured < p->limit ? p->measured : p->limit) * MARKED / 10;
	if (limit < p->limit / HALF)
		limit = p->limit / HALF;
	p->limit = limit > VB_PACE_LEAST ? limit : VB_PACE_LEAST;
	p->cut_at = p->grown_at = now;
	p->starting = false;
}
