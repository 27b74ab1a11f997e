/* Windows that are taken back in mid-traffic: what the tests with two processes and with two threads share.
 *
 * The owner binds a window, its peer WRITEs through it without end, and the owner takes it back in one of
 * many ways.  As soon as that has returned or completed, the owner fills the memory with a pattern,
 * deregisters the region, and looks whether the pattern stays.  The peer must see its WRITEs refused, and
 * nothing worse. */
#ifndef VB_TESTS_RACE_H
#define VB_TESTS_RACE_H

#include "kit.h"

enum {
	KIT_RACE_AREA = 1 << 19,
	KIT_RACE_DEPTH = 16,
	KIT_RACE_PATTERN = 0x5a,
	KIT_RACE_RW = IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ,
};

enum kit_race_way {
	/* a window of type 2 */
	KIT_RACE_LOCAL_INV,
	KIT_RACE_SEND_INV, /* the peer sends it in the middle of its own WRITEs */
	KIT_RACE_DEREG,	   /* the region is deregistered by whoever is first that may */
	KIT_RACE_DEALLOC,
	KIT_RACE_DESTROY,
	/* a window of type 1 */
	KIT_RACE_UNBIND,
	KIT_RACE_REBIND,
	KIT_RACE_DEALLOC_1,
	KIT_RACE_WAYS
};
extern const char *const kit_race_ways[];

struct kit_race_board {
	struct kit_card card[2];
	/* Rounds; -1 ends the test. */
	_Atomic int ready[2]; /* each end has begun it */
	_Atomic int bound;    /* the owner's window is bound */
	_Atomic int refused;  /* the peer has seen a refusal */
	_Atomic uint32_t key;
	_Atomic int64_t hits, rounds;
};

struct kit_race {
	struct kit_race_board *board;
	struct ibv_pd *pd;
	enum kit_race_way way;
	double seconds;
	uint64_t rng;
};

/* The two sides, each in a process or thread of its own: the one whose memory it is, for r->seconds, and its
 * peer. */
void kit_race_owner(struct kit_race *r);
void kit_race_other(struct kit_race *r);

#endif
