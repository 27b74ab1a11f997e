#include "transport/congestion.h"

#include "base/clock.h"
#include "iba/pkt.h"

enum {
	BURST = 16,    /* packets that follow a step back at once */
	LEAST = 2,     /* packets of the smallest window */
	ASK_EVERY = 8, /* packets, at most, until one asks for an ACK */
	CUT = 7,       /* tenths of the window that a loss leaves */
	MARKED = 8,    /* tenths that a CNP leaves */
	GAIN = 12,     /* tenths of rate times round trip that the window may be, */
	EXTRA = 4,     /* and packets beyond, since ACKs come for several at once */
	SPARE = 4,     /* times what leaves together, which the window may have beyond that */
	STALE = 3,     /* round trips without a higher rate, until the path counts as full */
};
#define SLACK  (200 * VB_USEC) /* for which a timer may be late */
#define UNSURE (10 * VB_MSEC)  /* until the first probe, where nothing has been measured */
#define RENEW  (10 * VB_SEC)   /* for so long the shortest round trip is believed */

static uint32_t packet(const struct vb_congestion *c)
{
	return c->mtu + VB_CONGESTION_OVERHEAD;
}

static uint32_t clamp(const struct vb_congestion *c, uint64_t window)
{
	if (window < LEAST * packet(c))
		return LEAST * packet(c);
	return window < VB_CONGESTION_MOST ? (uint32_t)window : VB_CONGESTION_MOST;
}

static uint32_t limit(const struct vb_congestion *c)
{
	return c->burst < c->window ? c->burst : c->window;
}

void vb_congestion_begin(struct vb_congestion *c, uint32_t mtu)
{
	*c = (struct vb_congestion){.mtu = mtu,
				    .window = VB_CONGESTION_FIRST,
				    .burst = UINT32_MAX,
				    .spare_most = UINT32_MAX,
				    .starting = true};
}

bool vb_congestion_admits(const struct vb_congestion *c, uint64_t bytes)
{
	return !c->flight || c->flight + bytes <= limit(c);
}

bool vb_congestion_pays(const struct vb_congestion *c, uint64_t rest)
{
	uint64_t some = limit(c) / 4;

	if (!c->together || c->going)
		return true;
	if (some > c->together)
		some = c->together;
	return c->flight + (rest < some ? rest : some) <= limit(c);
}

bool vb_congestion_asks(const struct vb_congestion *c, uint64_t bytes)
{
	uint64_t most = (uint64_t)ASK_EVERY * packet(c), quarter = limit(c) / 4;

	if (most < c->together)
		most = c->together;
	return c->unasked + bytes >= (quarter < most ? quarter : most) ||
	       c->flight + bytes + packet(c) > limit(c);
}

void vb_congestion_sent(struct vb_congestion *c, uint32_t psn, uint64_t bytes, bool fresh, bool asks,
			uint64_t now)
{
	/* After a silence the path may have changed: not all of the window leaves at once. */
	if (!c->flight && c->srtt && now - c->heard_at > 4 * c->srtt && c->burst > VB_CONGESTION_FIRST)
		c->burst = VB_CONGESTION_FIRST;
	c->flight += (uint32_t)bytes;
	c->unasked = asks ? 0 : c->unasked + (uint32_t)bytes;
	if (!c->round_at) {
		c->round_at = now;
		c->round_bytes = 0;
		c->limited = false;
	}
	if (fresh && asks && !c->timing) {
		c->timing = true;
		c->timed_psn = psn;
		c->timed_at = now;
	}
}

void vb_congestion_arrived(struct vb_congestion *c, uint64_t bytes)
{
	c->flight -= bytes < c->flight ? (uint32_t)bytes : c->flight;
	c->acked += (uint32_t)bytes;
}

/* A round trip was measured (RFC 6298's smoothing). */
static void sample(struct vb_congestion *c, uint64_t rtt, uint64_t now)
{
	uint64_t off = rtt > c->srtt ? rtt - c->srtt : c->srtt - rtt;

	if (!c->srtt) {
		c->srtt = rtt;
		c->rttvar = rtt / 2;
	} else {
		c->rttvar = c->rttvar - c->rttvar / 4 + off / 4;
		c->srtt = c->srtt - c->srtt / 8 + rtt / 8;
	}
	if (!c->shortest || c->renews || rtt <= c->shortest) {
		c->shortest = rtt ? rtt : 1;
		c->shortest_at = now;
		c->renews = false;
	} else if (now - c->shortest_at > RENEW) {
		/* The way may have become longer, or this is our own queue: half of the window tells. */
		c->window = clamp(c, c->window / 2);
		c->renews = true;
	}
}

/* A round trip is over, in which so many bytes per second arrived. */
static void round_over(struct vb_congestion *c, uint64_t rate)
{
	if (rate > c->rate)
		c->rate = rate;
	else if (c->limited)
		c->rate -= (c->rate - rate) / 8;
	if (rate > c->full + c->full / 4) {
		c->full = rate;
		c->stale = 0;
	} else if (c->limited && ++c->stale >= STALE) {
		c->starting = false;
	}
}

/* Where packets that leave together cost less, a window of what the path holds would have few of them leave
 * at a time, and the rate, which the window follows, would stay low.  So it has more, as long as no loss
 * tells that a queue has no room for that. */
static void spare_more(struct vb_congestion *c)
{
	uint32_t most = SPARE * c->together, more = c->spare < c->spare_most ? c->spare : 0;

	more = more > packet(c) ? more : packet(c);
	c->spare = most - c->spare > more ? c->spare + more : most;
}

static void spare_less(struct vb_congestion *c)
{
	c->spare /= 2;
	c->spare_most = c->spare;
}

/* What the path holds without a queue. */
static uint64_t held(const struct vb_congestion *c)
{
	return c->rate * (c->shortest / 100) / 10000000;
}

/* The window after so many bytes have arrived. */
static uint64_t grown(const struct vb_congestion *c)
{
	uint64_t fast = (uint64_t)c->window + c->acked, slow = c->window + c->acked / 8, most;

	if (c->starting || !c->shortest)
		return fast;
	most = held(c) * GAIN / 10 + EXTRA * packet(c) + c->spare;
	if (c->window >= most)
		return most;
	if (c->window < held(c))
		return fast;
	return slow < most ? slow : most;
}

void vb_congestion_acked(struct vb_congestion *c, uint32_t psn_una, uint64_t now)
{
	uint64_t round;

	if (c->timing && vb_psn_diff(psn_una, c->timed_psn) >= 0) {
		c->timing = false;
		sample(c, now - c->timed_at, now);
	}
	/* Whatever was sent again, it is not longer than that. */
	if (!c->srtt && c->round_at)
		sample(c, now - c->round_at, now);
	c->round_bytes += c->acked;
	if (c->burst != UINT32_MAX)
		c->burst = c->burst < c->window ? c->burst + 2 * c->acked : UINT32_MAX;
	c->heard_at = now;
	round = now - c->round_at;
	if (c->round_at && c->srtt && round >= c->srtt && round) {
		if (c->limited && c->together)
			spare_more(c);
		round_over(c, c->round_bytes * VB_SEC / round);
		c->round_at = now;
		c->round_bytes = 0;
		c->limited = false;
	}
	c->window = clamp(c, grown(c));
	c->acked = 0;
}

void vb_congestion_back(struct vb_congestion *c)
{
	c->flight = c->unasked = 0;
	c->timing = false;
}

void vb_congestion_lost(struct vb_congestion *c, uint64_t now)
{
	c->back_at = now;
	c->burst = BURST * packet(c);
	if (c->cut_at && now - c->cut_at < c->shortest)
		return;
	c->cut_at = now;
	c->starting = false;
	spare_less(c);
	c->window = clamp(c, (uint64_t)c->window * CUT / 10);
}

void vb_congestion_silent(struct vb_congestion *c, uint64_t now)
{
	c->starting = !c->rate;
	c->window = packet(c);
	c->burst = UINT32_MAX;
	c->renews = true;
	c->back_at = c->cut_at = now;
}

void vb_congestion_marked(struct vb_congestion *c, uint64_t now)
{
	if (c->marked_at && now - c->marked_at < c->srtt)
		return;
	c->marked_at = now;
	c->starting = false;
	spare_less(c);
	c->window = clamp(c, (uint64_t)c->window * MARKED / 10);
}

bool vb_congestion_is_news(const struct vb_congestion *c, bool answers, uint64_t now)
{
	/* what left then and was lost again is heard of after one round trip, which may be a short one */
	if (!c->srtt)
		return now - c->back_at >= UNSURE;
	return now - c->back_at >= (answers ? c->srtt + 2 * c->rttvar : c->shortest / 8 * 7);
}

uint64_t vb_congestion_patience(const struct vb_congestion *c)
{
	uint64_t wait = UNSURE;

	if (c->srtt)
		wait = c->srtt + (4 * c->rttvar > SLACK ? 4 * c->rttvar : SLACK);
	return wait << (c->probes < 8 ? c->probes : 8);
}
