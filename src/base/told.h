/* What one process tells others in memory that they share: whole words between two equal even sequence
 * numbers. The owner alone writes, one thread at a time; a reader takes what it finds in a quiet moment and
 * needs nothing of the owner, which may be stopped, or may have died in the middle of it. */
#ifndef VB_BASE_TOLD_H
#define VB_BASE_TOLD_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include "base/lock.h"

/* Each store of a word is a release, so that a reader that sees it sees the odd sequence number too.  `seq`
 * is even: stable, 0: nothing was ever told; odd: it is being changed. */
static inline void vb_told_put(_Atomic uint32_t *seq, void *to, const void *from, size_t words)
{
	uint32_t was = atomic_load_explicit(seq, memory_order_relaxed);
	uint64_t *at = to, word;

	atomic_store_explicit(seq, was + 1, memory_order_relaxed);
	for (size_t i = 0; i < words; i++) {
		memcpy(&word, (const uint8_t *)from + i * sizeof(word), sizeof(word));
		__atomic_store_n(&at[i], word, __ATOMIC_RELEASE); /* pairs with vb_told_get() */
	}
	atomic_store_explicit(seq, was + 2 ? was + 2 : 2,
			      memory_order_release); /* pairs with vb_told_get() */
}

enum { VB_TOLD_TRIES = 1000 };

/* false: nothing was told, or no quiet moment was found. */
static inline bool vb_told_get(const _Atomic uint32_t *seq, const void *from, void *to, size_t words)
{
	const uint64_t *at = from;
	uint64_t word;

	for (int tries = 0; tries < VB_TOLD_TRIES; tries++) {
		uint32_t was = atomic_load_explicit(seq, memory_order_acquire);

		if (!was)
			return false;
		for (size_t i = 0; i < words && !(was & 1); i++) {
			word = __atomic_load_n(&at[i], __ATOMIC_ACQUIRE);
			memcpy((uint8_t *)to + i * sizeof(word), &word, sizeof(word));
		}
		if (!(was & 1) && atomic_load_explicit(seq, memory_order_relaxed) == was)
			return true;
		vb_cpu_relax();
	}
	return false;
}

#endif
