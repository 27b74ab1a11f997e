/* Two processes with RC ends between them: an initiator, and a target that is its child and can be stopped.
 *
 * A test writes down both roles (kit_pair_run), or the initiator's only, from above to below, and what the
 * target has to do are functions that it is told to call (kit_duo_run). */
#ifndef VB_TESTS_PAIR_H
#define VB_TESTS_PAIR_H

#include <errno.h>
#include <fcntl.h>
#include <poll.h>

#include "kit.h"

enum { KIT_ENDS = 2, KIT_DUO_SIZE = 1 << 16, KIT_DUO_DEPTH = 32 };

struct kit_pair;

/* Shared by both. */
struct kit_board {
	struct kit_card card[2][KIT_ENDS]; /* [0]: initiator, [1]: target */
	_Atomic int opened, connected, over;
	_Atomic int step;	   /* the test's own */
	_Atomic int64_t number[8]; /* whatever one end tells the other */
	/* What the initiator of a duo has its target call, what that is given, and what it answers. */
	void (*fn)(struct kit_pair *d);
	_Atomic int asked, done;
	int64_t in[8], out[8];
};

struct kit_pair {
	struct kit_board *board;
	int me; /* 0: initiator, 1: target */
	pid_t target;
	struct ibv_context *ctx;
	struct ibv_pd *pd;
	struct ibv_comp_channel *chan;
	struct kit_end end[KIT_ENDS];	  /* of a duo the first one only */
	void (*test)(struct kit_pair *d); /* of a duo */
	void *own;			  /* the test's */
};

/* Runs initiator and target, each in a process of its own; `on` says who has direct placement.  false: this
 * machine cannot, one of them has exited with KIT_SKIP and said why. */
bool kit_pair_run(const char *name, const bool on[2], void (*initiator)(struct kit_pair *),
		  void (*target)(struct kit_pair *));
/* What the initiator's process does before it makes the target's; NULL: nothing. */
extern void (*kit_pair_before)(void);

/* Opens a device of its own and KIT_ENDS ends with `size` bytes each, connects them, and greets: from then on
 * both know that the other is there, and permit what they permit.  Both roles call it, and kit_pair_close().
 */
void kit_pair_open(struct kit_pair *p, int depth, size_t size);
void kit_pair_close(struct kit_pair *p);
/* A SEND each way on every end. */
void kit_pair_greet(struct kit_pair *p);

/* ---- a duo: end[0] has KIT_DUO_SIZE registered bytes, and is made anew whenever it failed ---- */

/* Runs a test between two new processes that have greeted; with and without direct placement. */
void kit_duo_run(const char *name, bool direct, void (*test)(struct kit_pair *));
#define KIT_DUO_BOTH(test)                       \
	do {                                     \
		kit_duo_run(#test, true, test);  \
		kit_duo_run(#test, false, test); \
	} while (0)

/* Has the target call fn, and waits for it; in two steps, where both are to do something at once. */
void kit_duo_there(struct kit_pair *d, void (*fn)(struct kit_pair *));
void kit_duo_begin(struct kit_pair *d, void (*fn)(struct kit_pair *));
void kit_duo_await(struct kit_pair *d);
/* Both ends anew, connected, and permitting what they permit. */
void kit_duo_fresh(struct kit_pair *d);
/* One request with these elements; how it ends.  In error, the ends are made anew. */
enum ibv_wc_status kit_duo_list(struct kit_pair *d, enum ibv_wr_opcode op, struct ibv_sge *sge, int n,
				uint64_t raddr, uint32_t rkey);
enum ibv_wc_status kit_duo_try(struct kit_pair *d, enum ibv_wr_opcode op, uint64_t addr, uint32_t len,
			       uint32_t lkey, uint64_t raddr, uint32_t rkey);
/* kit_duo_try() with the initiator's own buffer, from its first byte on. */
enum ibv_wc_status kit_duo_do(struct kit_pair *d, enum ibv_wr_opcode op, uint32_t len, uint64_t raddr,
			      uint32_t rkey);

#endif
