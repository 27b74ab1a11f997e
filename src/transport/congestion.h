/* The window for paths that lose packets: how much may be in flight, and when the oldest packet is probed.
 *
 * Pure: numbers come in, numbers go out, and the time is an argument.  docs/congestion.md says what the rules
 * are and why they were chosen. */
#ifndef VB_TRANSPORT_CONGESTION_H
#define VB_TRANSPORT_CONGESTION_H

#include "obj/congestion.h"

enum {
	VB_CONGESTION_FIRST = 64 << 10, /* the first window: it fits the smallest buffer of a UDP socket */
	VB_CONGESTION_MOST = 8 << 20,
	VB_CONGESTION_OVERHEAD = 64, /* counted for each packet besides its payload */
};

void vb_congestion_begin(struct vb_congestion *c, uint32_t mtu);

/* Whether so many bytes more may be in flight.  One packet may always. */
bool vb_congestion_admits(const struct vb_congestion *c, uint64_t bytes);
/* Whether it pays to begin to send, with so many bytes waiting: less than is worth a call of the wire waits
 * for further ACKs. */
bool vb_congestion_pays(const struct vb_congestion *c, uint64_t rest);
/* Whether a packet of so many bytes, which is sent next, has to ask for an ACK: at least every eighth, four
 * in each window, and the one that fills the window. */
bool vb_congestion_asks(const struct vb_congestion *c, uint64_t bytes);

/* Whether vb_congestion_sent() needs the time: reading the clock takes longer than the rest. */
static inline bool vb_congestion_times(const struct vb_congestion *c, bool fresh, bool asks)
{
	return !c->flight || !c->round_at || (fresh && asks && !c->timing);
}
/* A packet was sent, up to that PSN (exclusive).  fresh: for the first time; asks: it asks for an answer.
 * now: 0 if vb_congestion_times() says that it is not needed. */
void vb_congestion_sent(struct vb_congestion *c, uint32_t psn, uint64_t bytes, bool fresh, bool asks,
			uint64_t now);
/* Bytes that were in flight, or were before a step back, have arrived; vb_congestion_acked() follows. */
void vb_congestion_arrived(struct vb_congestion *c, uint64_t bytes);
/* Everything before psn_una has arrived, now. */
void vb_congestion_acked(struct vb_congestion *c, uint32_t psn_una, uint64_t now);

/* The requester goes back: nothing is in flight.  No round trip is measured over that (Karn's rule). */
void vb_congestion_back(struct vb_congestion *c);
/* It does so for a packet that was lost, which cuts the window once in a round trip. */
void vb_congestion_lost(struct vb_congestion *c, uint64_t now);
/* It does so since the ACK timer ran out: nothing that is known of the path counts any more. */
void vb_congestion_silent(struct vb_congestion *c, uint64_t now);
/* The far end tells of a queue on the way (CNP). */
void vb_congestion_marked(struct vb_congestion *c, uint64_t now);

/* Whether a sign of a loss is news, or one more of that for which the requester has just gone back.
 * answers: the sign is an answer to a READ, which the old packets still cause for a whole round trip. */
bool vb_congestion_is_news(const struct vb_congestion *c, bool answers, uint64_t now);

/* For so long nothing is heard until the oldest packet is probed; each time twice as long. */
uint64_t vb_congestion_patience(const struct vb_congestion *c);

#endif
