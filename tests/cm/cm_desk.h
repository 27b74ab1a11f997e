/* Two ends at a desk, on a wire that loses nothing but what a test says: what they do is said by words. */
#ifndef VB_TESTS_CM_DESK_H
#define VB_TESTS_CM_DESK_H

#include "cm_net.h"

/* Codes of times: 67.1 ms to answer; 16.8 ms for packets that are about; 268.4 ms for an MRA. */
enum { ANSWER = 14, ACK = 12, MRA = 16, DELAY = 3, RETRIES = 2, PAUSE = 5 * VB_MSEC };

#define LENGTH(a) (sizeof(a) / sizeof((a)[0]))

/* Two ends at a desk: node 0 is the active one, node 1 the passive one. */
struct desk {
	struct net *n;
	struct net_end *a, *p; /* the latest of each */
	struct vb_cm_req req;
	const char *kind; /* of the next message of which `verdict` is true */
	enum net_verdict verdict;
	bool full;
	bool reuse;			   /* the next REQ is of the same QP as the latest */
	void (*during)(struct net_end *e); /* what the passive end does when it is told of a REQ */
};

struct desk *desk_new(void);
void desk_free(struct desk *d);
/* What the net of a desk calls; a test that takes its place calls it too. */
bool desk_upper(struct net_end *e, const struct vb_cm_event *ev);
enum net_verdict desk_filter(struct net *n, unsigned from, const struct vb_cm_msg *m);
/* Steps, each followed by a pause in which what was said comes and is answered; one that ends with "+" by
 * none. */
void desk_walk(struct desk *d, const char *words);

#endif
