/* Mixed operations at random, every byte, completion and event against a model: one side of it.
 *
 * Each side is initiator on its own QPs and target on the other's.  A QP owns a slice of the target's memory,
 * so the initiator can keep a shadow of it: what RC promises about order within one QP says exactly what the
 * slice must hold at any fence.  SEND contents follow from (seed, QP, sequence number), which both ends know.
 *
 * The QPs are of all types.  What the unreliable ones send may be lost, where the far end has no receive for
 * it and only there; the rest arrives as all else does, in order.
 *
 * One flow uses a memory window, too, which SENDs invalidate and its owner binds again.
 *
 * The slices may be any kind of memory.  test_mixed.c runs the sides as processes, test_inproc.c as threads
 * with an adapter each, tests/wire/test_mixed.c as processes of two hosts. */
#ifndef VB_TESTS_MIXED_H
#define VB_TESTS_MIXED_H

#include "kit.h"

enum { KIT_MIXED_QPS = 6, KIT_HUGE_PAGE = 2 << 20 };

/* What the target's slices are; READ_ONLY is private memory without leave to write. */
enum kit_memory {
	KIT_PRIVATE,
	KIT_MEMFD,
	KIT_SHM_FILE,
	KIT_HUGE,
	KIT_SYSV,
	KIT_READ_ONLY,
};

/* What a side shows the other one. */
struct kit_mixed_card {
	_Atomic int ready;
	union ibv_gid gid;
	uint32_t qpn[KIT_MIXED_QPS], psn[KIT_MIXED_QPS], rkey[KIT_MIXED_QPS];
	uint64_t addr[KIT_MIXED_QPS];
	uint32_t target, srqn;		       /* of XRC, whose qpn is the initiator's */
	_Atomic uint64_t sends[KIT_MIXED_QPS]; /* SENDs and WRITEs with immediate that the initiator has
						  posted, or is posting; final when done */
	_Atomic uint64_t heard[KIT_MIXED_QPS]; /* of those of the other side this one has the receives up to
						  here, and posted new ones */
	_Atomic int done;		       /* initiator side finished */
	_Atomic int received;		       /* target side saw everything */
	uint64_t sum[KIT_MIXED_QPS];	       /* of the slices, by their owner, once received */
	_Atomic uint32_t window;	       /* the key of the window; the initiator knows which are gone */
	_Atomic uint64_t invalidates;	       /* the number of the SEND that invalidated last, from 1 */
	unsigned invalidated;		       /* how often */
};

struct kit_mixed {
	struct kit_mixed_card *cards; /* [2], shared by both sides, zero */
	enum kit_memory memory;
	uint64_t seed, operations;
	bool loses;	    /* who sends unreliably does not care whether the far end has a receive */
	bool reliable_only; /* RC alone */
	uint8_t (*gid_index)(struct ibv_context *ctx); /* NULL: 0 */
	enum ibv_mtu path_mtu;			       /* 0: 1024 */
	/* How a side gets its device, and gives it back. */
	struct ibv_context *(*open)(void);
	void (*close)(struct ibv_context *ctx);
};

/* Plays side 0 or 1, with *m alike for both, and returns when both are through. */
void kit_mixed_side(const struct kit_mixed *m, int side);

#endif
