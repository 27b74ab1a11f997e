#include "mem/copy.h"

#include "base/lock.h"
#include "mem/guard.h"

/* The sanitizers cannot see what assembly does: they are told. */
#if defined(__has_feature)
#if __has_feature(thread_sanitizer)
#define VB_TSAN 1
#endif
#endif
#if defined(__SANITIZE_THREAD__) || defined(VB_TSAN)
void __tsan_read_range(void *p, long n);
void __tsan_write_range(void *p, long n);
void __tsan_release(void *p);
#define READS(p, n)  __tsan_read_range((void *)(uintptr_t)(p), (long)(n))
#define WRITES(p, n) __tsan_write_range(p, (long)(n))
#define RELEASES(p)  __tsan_release(p)
#else
#define READS(p, n)  ((void)0)
#define WRITES(p, n) ((void)0)
#define RELEASES(p)  ((void)0)
#endif

/* Stores up to 8 bytes that stand within one aligned word, in ascending order, each piece of a naturally
 * aligned power of two as one store.  The last piece is the last byte's. */
static bool store_tail(uint8_t *dst, const uint8_t *src, size_t n)
{
	while (n) {
		size_t align = (uintptr_t)dst & -(uintptr_t)dst & 7;
		size_t piece = n >= 8 ? 8 : n >= 4 ? 4 : n >= 2 ? 2 : 1;
		uint64_t v8;
		uint32_t v4;
		uint16_t v2;
		uint8_t v1;
		bool ok;

		if (align && align < piece)
			piece = align;
		RELEASES(dst);
		switch (piece) {
		case 8:
			ok = vb_guard_load_8(src, &v8) && vb_guard_store_8(dst, v8);
			break;
		case 4:
			ok = vb_guard_load_4(src, &v4) && vb_guard_store_4(dst, v4);
			break;
		case 2:
			ok = vb_guard_load_2(src, &v2) && vb_guard_store_2(dst, v2);
			break;
		default:
			ok = vb_guard_load_1(src, &v1) && vb_guard_store_1(dst, v1);
			break;
		}
		if (vb_unlikely(!ok))
			return false;
		dst += piece;
		src += piece;
		n -= piece;
	}
	return true;
}

bool vb_copy_app(void *dst, const void *src, size_t n)
{
	uint8_t *d = dst;
	const uint8_t *s = src;
	size_t tail;
	uint64_t v;

	if (vb_unlikely(!n))
		return true;
	READS(s, n);
	/* The tail: what of the range stands in the aligned word of its last byte. */
	tail = (((uintptr_t)d + n - 1) & 7) + 1;
	if (tail < n) {
		WRITES(d, n - tail);
		if (vb_unlikely(!vb_guard_copy(d, s, n - tail)))
			return false;
	} else {
		tail = n;
	}
	if (vb_likely(tail == 8)) {
		RELEASES(d + n - 8);
		return vb_guard_load_8(s + n - 8, &v) && vb_guard_store_8(d + n - 8, v);
	}
	return store_tail(d + n - tail, s + n - tail, tail);
}

bool vb_copy_to_app(void *dst, const void *src, size_t n)
{
	return vb_copy_app(dst, src, n);
}

bool vb_copy_from_app(void *dst, const void *src, size_t n)
{
	READS(src, n);
	WRITES(dst, n);
	return vb_guard_copy(dst, src, n);
}

bool vb_atomic_cmp_swap(void *addr, uint64_t compare, uint64_t swap, uint64_t *orig)
{
	RELEASES(addr);
	return vb_guard_cmp_swap(addr, compare, swap, orig);
}

bool vb_atomic_fetch_add(void *addr, uint64_t add, uint64_t *orig)
{
	RELEASES(addr);
	return vb_guard_fetch_add(addr, add, orig);
}
