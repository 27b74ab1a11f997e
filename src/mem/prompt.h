/* Whether a peer is prompt: whether it takes packets as they come.  A small WRITE is there sooner over the
 * ring then than by a system call of the initiator.  At a peer that does not look it lies until somebody
 * rings.
 *
 * That the peer's word says polling is no proof: a program may poll for its completions, and then spin on a
 * byte in its memory without a call.  So proof is asked for while WRITEs are still placed directly.  The peer
 * shows how often its threads have polled; it has to have gone on polling from WRITE to WRITE, at several
 * looks in a row.  If a packet then lies all the same (hca/left.c), the proof is void, and the next one takes
 * four times as many WRITEs.
 *
 * One for each peer.  Nobody locks it, and no clock is read: all of it are hints, and a count that is lost
 * between two threads costs a few WRITEs more. */
#ifndef VB_MEM_PROMPT_H
#define VB_MEM_PROMPT_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "base/lock.h"

struct vb_prompt {
	/* Set by vb_prompt_begin(); the peer's stand in its segment. */
	_Atomic(const _Atomic uint32_t *) own;	 /* this process's word */
	_Atomic(const _Atomic uint32_t *) awake; /* its word; 0: asleep */
	_Atomic(const _Atomic uint32_t *) polls; /* how often it has polled, told now and then */
	/* Pollers and posters of this process write these. */
	_Atomic uint32_t is;
	_Atomic uint32_t writes; /* small WRITEs since the last look at the polls; while `is`, since it is */
	_Atomic uint32_t before; /* the polls at that look */
	_Atomic uint32_t looks;	 /* in a row that found enough; the first only begins the row */
	_Atomic uint32_t apart;	 /* WRITEs from one look to the next */
};

/* A peer comes; nothing is known of it yet. */
void vb_prompt_begin(struct vb_prompt *p, const _Atomic uint32_t *own, const _Atomic uint32_t *awake,
		     const _Atomic uint32_t *polls);
/* n small WRITEs went there, directly or over the ring. */
void vb_prompt_wrote(struct vb_prompt *p, uint32_t n);
/* A packet has lain there for longer than one lies that a poller takes. */
void vb_prompt_late(struct vb_prompt *p);

static inline bool vb_prompt_awake(const _Atomic(const _Atomic uint32_t *) *word)
{
	return atomic_load_explicit(atomic_load_explicit(word, memory_order_relaxed), memory_order_relaxed);
}

/* Whoever does not poll himself would have his engine woken to look after each packet, and be rung for its
 * ACK. */
static inline bool vb_prompt_is(const struct vb_prompt *p)
{
	return atomic_load_explicit(&p->is, memory_order_relaxed) && vb_prompt_awake(&p->awake) &&
	       vb_prompt_awake(&p->own);
}

#endif
