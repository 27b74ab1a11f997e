#include "mem/copy.h"

#include <string.h>

#include "base/lock.h"

/* Stores up to 8 bytes that stand within one aligned word, in ascending order, each piece of a naturally
 * aligned power of two as one store.  The last piece is the last byte's. */
static void store_tail(uint8_t *dst, const uint8_t *src, size_t n)
{
	while (n) {
		size_t align = (uintptr_t)dst & -(uintptr_t)dst & 7;
		size_t piece = n >= 8 ? 8 : n >= 4 ? 4 : n >= 2 ? 2 : 1;
		uint64_t v8;
		uint32_t v4;
		uint16_t v2;

		if (align && align < piece)
			piece = align;
		switch (piece) {
		case 8:
			memcpy(&v8, src, 8);
			__atomic_store_n((uint64_t *)(void *)dst, v8, __ATOMIC_RELEASE);
			break;
		case 4:
			memcpy(&v4, src, 4);
			__atomic_store_n((uint32_t *)(void *)dst, v4, __ATOMIC_RELEASE);
			break;
		case 2:
			memcpy(&v2, src, 2);
			__atomic_store_n((uint16_t *)(void *)dst, v2, __ATOMIC_RELEASE);
			break;
		default:
			__atomic_store_n(dst, *src, __ATOMIC_RELEASE);
			break;
		}
		dst += piece;
		src += piece;
		n -= piece;
	}
}

bool vb_copy_to_app(void *dst, const void *src, size_t n)
{
	uint8_t *d = dst;
	const uint8_t *s = src;
	size_t tail;
	uint64_t v;

	if (vb_unlikely(!n))
		return true;
	/* The tail: what of the range stands in the aligned word of its last byte. */
	tail = (((uintptr_t)d + n - 1) & 7) + 1;
	if (tail < n)
		memcpy(d, s, n - tail);
	else
		tail = n;
	if (vb_likely(tail == 8)) {
		memcpy(&v, s + n - 8, 8);
		__atomic_store_n((uint64_t *)(void *)(d + n - 8), v, __ATOMIC_RELEASE);
	} else {
		store_tail(d + n - tail, s + n - tail, tail);
	}
	return true;
}

bool vb_copy_app(void *dst, const void *src, size_t n)
{
	return vb_copy_to_app(dst, src, n);
}

bool vb_copy_from_app(void *dst, const void *src, size_t n)
{
	memcpy(dst, src, n);
	return true;
}

bool vb_atomic_cmp_swap(void *addr, uint64_t compare, uint64_t swap, uint64_t *orig)
{
	*orig = compare;
	__atomic_compare_exchange_n((uint64_t *)addr, orig, swap, false, __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST);
	return true;
}

bool vb_atomic_fetch_add(void *addr, uint64_t add, uint64_t *orig)
{
	*orig = __atomic_fetch_add((uint64_t *)addr, add, __ATOMIC_SEQ_CST);
	return true;
}
