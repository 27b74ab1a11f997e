/* The window of a reliable queue pair whose path may lose packets (vb_out.lossy): what was measured of the
 * path, and what is in flight; and the rate of types that are not acknowledged.  No protocol here:
 * transport/congestion.c computes with it, transport/flight.c joins it to the queue pair.  Guarded by
 * qp->lock; a path that loses nothing uses none of it. */
#ifndef VB_OBJ_CONGESTION_H
#define VB_OBJ_CONGESTION_H

#include <stdbool.h>
#include <stdint.h>

struct vb_congestion {
	uint32_t mtu;	     /* payload of a packet, at most */
	uint32_t window;     /* bytes that may be in flight */
	uint32_t burst;	     /* bytes that may be in flight since the last step back: each ACK doubles them */
	uint32_t flight;     /* bytes in flight: those of the PSNs from psn_una to psn */
	uint32_t unasked;    /* bytes sent since a packet asked for an ACK */
	uint32_t acked;	     /* bytes acknowledged since vb_congestion_acked() */
	uint32_t timed_psn;  /* the packet whose round trip is being measured */
	uint32_t probed_psn; /* the packet that was probed, */
	uint32_t probed_end; /* and the PSN behind all that had been sent then */
	uint32_t together;   /* vb_out.together */
	uint32_t spare; /* bytes of the window beyond what the path holds, so that more leaves together, */
	uint32_t spare_most;   /* up to which it grew without a loss */
	uint32_t pieces;       /* requests of split READs in flight, besides one for each READ */
	uint8_t probes;	       /* since something was heard */
	bool timing;	       /* timed_psn counts */
	bool going;	       /* packets are leaving that will leave together */
	bool starting;	       /* slow start: the path has not been filled yet */
	bool limited;	       /* the window held something back in this round trip */
	bool renews;	       /* the next sample replaces the shortest round trip */
	bool tail;	       /* probed_psn counts */
	uint8_t stale;	       /* round trips of slow start that brought no more */
	uint64_t timed_at;     /* when timed_psn was sent */
	uint64_t srtt, rttvar; /* ns; srtt 0: no sample yet */
	uint64_t shortest;     /* the shortest round trip, ns */
	uint64_t shortest_at;  /* when that was measured */
	uint64_t rate;	       /* bytes per second that arrive, nearly the best of the last round trips */
	uint64_t full;	       /* slow start: the rate that has to be exceeded */
	uint64_t round_at;     /* when this round trip began; 0: none has */
	uint64_t round_bytes;  /* acknowledged in it */
	uint64_t heard_at;     /* when something was acknowledged last */
	uint64_t back_at;      /* when the requester went back last */
	uint64_t counted_at;   /* when a NAK counted as a retry last; 0: none has */
	uint64_t cut_at;       /* when a loss cut the window last; 0: none has */
	uint64_t marked_at;    /* when a CNP cut the window last */
	uint64_t told_at;      /* when this end sent a CNP last */
	uint64_t probe_at;     /* when the oldest packet is probed; 0: not known yet */
	uint32_t astray;       /* responder: the last PSN that came too early */
	uint16_t credits;      /* receive requests that the far end had, behind what it acknowledged last */
	bool credited;	       /* it tells of them */
};

/* How fast packets leave that nobody acknowledges, on a path that may lose them: those of UC, and of UD to
 * one destination.  transport/pace.c computes with it.  Guarded by qp->lock. */
struct vb_pace {
	uint64_t limit;	   /* bytes per second that may leave */
	int64_t left;	   /* bytes that may leave at once; negative: so many have left in advance */
	uint64_t at;	   /* when `left` was computed */
	uint64_t sent;	   /* bytes that have left */
	uint64_t since;	   /* since then */
	uint64_t measured; /* bytes per second that left before; 0: not known */
	uint64_t cut_at;   /* when a CNP cut the limit last */
	uint64_t grown_at; /* up to when the limit has grown */
	bool starting;	   /* no CNP has come yet */
};

#endif
