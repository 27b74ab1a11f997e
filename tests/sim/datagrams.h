/* Datagrams against a simple model: queue pairs (UD) that send one another, and to groups, what each may take
 * or not.  What arrives is right, whole, from whom it says, in the order in which it was sent, and once for
 * each copy that the wire made; what does not arrive was lost by the wire, or is in a count of drops. */
#ifndef VB_TESTS_DATAGRAMS_H
#define VB_TESTS_DATAGRAMS_H

#include "sim.h"

enum { DG_ENDS = 24, DG_GROUPS = 3 };

/* A queue pair, and what its program knows. */
struct dg_end {
	struct sim *s; /* it is node i of that */
	unsigned i;
	bool gone;	  /* its program makes no call any more */
	unsigned stopped; /* nor does it just now, while this is not 0 */
	bool fuzzy;	  /* whether some message was to come to it cannot be said */
	uint32_t qkey;
	uint8_t *source, *sink, *sink_want;
	uint32_t source_key, sink_key, sink_used;
	struct dg_recv *recvs;
	unsigned nrecvs, recvs_used, received;
	/* as sender */
	uint32_t *sent; /* its messages, by wr_id */
	unsigned posted, done, ops;
	bool broken;		   /* a request has failed: what was posted behind it is flushed */
	uint32_t last[DG_ENDS][2]; /* message that came last from there, of its own and to groups */
	enum dg_member { DG_NOT, DG_PERHAPS, DG_IS } member[DG_GROUPS];
	bool no_echo;
};

struct datagrams {
	struct sim *dice;
	struct dg_end end[DG_ENDS];
	unsigned ends;
	struct dg_message *all;
	unsigned n, room, came_to_groups;
	union ibv_gid group[DG_GROUPS];
	unsigned groups; /* one message of so many goes to a group; 0: none does */
	bool in_order;	 /* the wire doubles nothing, and lets nothing overtake */
	bool quiet;	 /* and it loses nothing */
};

void datagrams_init(struct datagrams *d, struct sim *dice, const struct sim_cfg *wire);
void datagrams_fini(struct datagrams *d);
/* One more, which posts so many requests.  Its number. */
unsigned datagrams_add(struct datagrams *d, struct sim *s, unsigned i, uint32_t ops);
/* A program posts some requests, and receives.  true: it did something. */
bool datagrams_act(struct datagrams *d);
/* All programs poll until there is nothing. */
void datagrams_poll(struct datagrams *d);
/* All have posted everything, and what they asked for is complete. */
bool datagrams_finished(const struct datagrams *d);
/* After the last packet. */
void datagrams_check_end(struct datagrams *d);
/* For the message of a test that got stuck. */
void datagrams_say(const struct datagrams *d, char *buf, size_t size);

/* Its process has died, or the queue pair was destroyed in an orderly way, so that all that was posted has
 * left or was counted; what had left before still arrives. */
void datagrams_gone(struct datagrams *d, unsigned k);
void datagrams_left(struct datagrams *d, unsigned k);
/* Whether it is attached to the group: perhaps, while it is being attached or detached. */
void datagrams_member(struct datagrams *d, unsigned k, unsigned group, enum dg_member is);

#endif
