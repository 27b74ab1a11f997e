/* A set of numbers below VB_SET_SIZE, without locks: threads, and processes that share its memory, add and
 * take at any time.  Looking whether it is empty is one load of a line that changes only when it begins or
 * ends to be.
 *
 * Everything is seq_cst: who adds a number and then loads a word meets whoever stores that word and then
 * looks here.  Whatever stands in its memory, no call leaves it or does not end. */
#ifndef VB_BASE_SET_H
#define VB_BASE_SET_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

enum { VB_SET_WORD = 64, VB_SET_SIZE = VB_SET_WORD * VB_SET_WORD };

struct vb_set {
	/* Bit w: word w may have something.  Set after the word, and cleared before it is looked at. */
	_Atomic uint64_t any __attribute__((aligned(64)));
	_Atomic uint64_t words[VB_SET_WORD] __attribute__((aligned(64)));
};

static inline bool vb_set_is_empty(const struct vb_set *s)
{
	return !atomic_load_explicit(&s->any, memory_order_seq_cst);
}

static inline void vb_set_add(struct vb_set *s, uint32_t i)
{
	uint32_t w = i / VB_SET_WORD;

	atomic_fetch_or_explicit(&s->words[w], 1ull << i % VB_SET_WORD, memory_order_seq_cst);
	atomic_fetch_or_explicit(&s->any, 1ull << w, memory_order_seq_cst);
}

/* true: other numbers of the set were hidden for a moment from whoever looked meanwhile. */
static inline bool vb_set_drop(struct vb_set *s, uint32_t i)
{
	uint64_t bit = 1ull << i % VB_SET_WORD;
	uint32_t w = i / VB_SET_WORD;

	if (atomic_fetch_and_explicit(&s->words[w], ~bit, memory_order_seq_cst) & ~bit)
		return false;
	atomic_fetch_and_explicit(&s->any, ~(1ull << w), memory_order_seq_cst);
	/* Who added meanwhile may have set the bit that was just cleared. */
	if (!atomic_load_explicit(&s->words[w], memory_order_seq_cst))
		return false;
	atomic_fetch_or_explicit(&s->any, 1ull << w, memory_order_seq_cst);
	return true;
}

/* The words that may have something, to go through from the lowest: for (any = ...; any; any &= any - 1). */
static inline uint64_t vb_set_any(const struct vb_set *s)
{
	return atomic_load_explicit(&s->any, memory_order_seq_cst);
}

static inline uint64_t vb_set_word(const struct vb_set *s, uint32_t w)
{
	return atomic_load_explicit(&s->words[w], memory_order_seq_cst);
}

/* The same for somebody who takes what he finds. */
static inline uint64_t vb_set_take_any(struct vb_set *s)
{
	return atomic_exchange_explicit(&s->any, 0, memory_order_seq_cst);
}

static inline uint64_t vb_set_take_word(struct vb_set *s, uint32_t w)
{
	return atomic_exchange_explicit(&s->words[w], 0, memory_order_seq_cst);
}

static inline uint32_t vb_set_lowest(uint64_t bits)
{
	return (uint32_t)__builtin_ctzll(bits);
}

#endif
