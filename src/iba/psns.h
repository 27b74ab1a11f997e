/* PSNs of a made-up stream: that of a connection's requests as it would be on a wire whose packets are of the
 * path MTU.  A wire between processes has larger ones, so it counts fewer; and what is placed directly takes
 * none at all.  A capture shows one stream with one way of counting, and this says which PSN of it a packet
 * has: one that goes again has the same, and an answer has that of what it answers.
 *
 * What was counted lately is kept as runs, so the answers to what is outstanding are found: 512 runs, in
 * which packets of one size and message after message are one.  What came before that is reckoned back from
 * the oldest. */
#ifndef VB_IBA_PSNS_H
#define VB_IBA_PSNS_H

#include <stdbool.h>
#include <stdint.h>

enum { VB_PSN_RUNS = 512 };

struct vb_psn_run {
	uint32_t psn, n;      /* on the wire: the first, and how many */
	uint32_t made, nmade; /* in the stream */
	uint32_t each;	      /* made for each but perhaps the last */
	uint32_t msn;	      /* messages before it */
	bool packets;	      /* a packet each; else all of them are one request */
	bool ends;	      /* each packet, or the request, ends a message */
};

struct vb_psns {
	bool begun;
	uint32_t psn, made; /* the next ones */
	uint32_t msn;	    /* messages so far */
	uint32_t head;	    /* runs so far */
	struct vb_psn_run run[VB_PSN_RUNS];
};

/* A request's packet of this PSN takes n PSNs on the wire and `made` in the stream, `each` for one on the
 * wire if n > 1.  Returns its first PSN in the stream.  n 0: it was carried out past the wire, and psn is the
 * next one there. */
uint32_t vb_psns_take(struct vb_psns *s, uint32_t psn, uint32_t n, uint32_t made, uint32_t each, bool ends);

/* What a PSN of the wire is in the stream. */
struct vb_psn_made {
	uint32_t first, last;
	uint32_t before, msn; /* messages complete without it, and with it */
	uint32_t whole;	      /* and with all of its request */
};
struct vb_psn_made vb_psns_find(const struct vb_psns *s, uint32_t psn);

#endif
