/* Guarded copies of more than 16 bytes. */
#include "mem/guard.h"

#if defined(__x86_64__)
#include <cpuid.h>

#define ERMS (1u << 9) /* of leaf 7, EBX */

/* Measured on a CPU with fast strings, against glibc's memcpy, aligned and not: below about 8 KiB 32-byte
 * loads and stores are ahead, above `rep movsb` is, and from 32 KiB on by a quarter.  Where there is neither,
 * 16 bytes at a time. */
enum { STRING_MIN = 8192, WIDE_MIN = 256 };

static bool strings, wide; /* set before anything is copied */

static __attribute__((constructor)) void look_at_cpu(void)
{
	unsigned a, b, c, d;

	__builtin_cpu_init();
	wide = __builtin_cpu_supports("avx");
	strings = __get_cpuid_count(7, 0, &a, &b, &c, &d) && (b & ERMS);
}

/* 17 to 32 bytes: the first and the last 16. */
static inline bool copy_32(uint8_t *d, const uint8_t *s, size_t last)
{
	__asm__ volatile goto(
	    "1: movups (%[s]), %%xmm0" VB_GUARDED(1) "2: movups (%[s],%[l]), %%xmm1" VB_GUARDED(
		2) "3: movups %%xmm0, (%[d])" VB_GUARDED(3) "4: movups %%xmm1, (%[d],%[l])" VB_GUARDED(4)
	    :
	    : [d] "r"(d), [s] "r"(s), [l] "r"(last)
	    : "memory", "xmm0", "xmm1"
	    : fault);
	return true;
fault:
	return false;
}

/* 33 to 64 bytes: the first and the last 32.  last: offset of the second 32, which is 32 for 64 bytes. */
static inline bool copy_64(uint8_t *d, const uint8_t *s, size_t last)
{
	__asm__ volatile goto(
	    "1: movups (%[s]), %%xmm0" VB_GUARDED(
		1) "2: movups 16(%[s]), "
		   "%%xmm1" VB_GUARDED(
		       2) "3: movups "
			  "(%[s],%[l]), "
			  "%%"
			  "xmm"
			  "2" VB_GUARDED(3) "4: movups 16(%[s],%[l]), %%xmm3" VB_GUARDED(
			      4) "5: movups %%xmm0, (%[d])" VB_GUARDED(5) "6: "
									  "movups "
									  "%%xmm1,"
									  " 16(%["
									  "d]"
									  ")" VB_GUARDED(
									      6) "7: movups "
										 "%%xmm2, "
										 "(%[d],%[l]"
										 ")" VB_GUARDED(
										     7) "8: "
											"movups "
											"%%xmm3, "
											"16(%[d],%"
											"[l]"
											")" VB_GUARDED(8)
	    :
	    : [d] "r"(d), [s] "r"(s), [l] "r"(last)
	    : "memory", "xmm0", "xmm1", "xmm2", "xmm3"
	    : fault);
	return true;
fault:
	return false;
}

/* Whole blocks of 128 bytes. */
static bool copy_wide(uint8_t *d, const uint8_t *s, size_t blocks)
{
	do {
		__asm__ volatile goto(
		    "1: vmovups (%[s]), %%ymm0" VB_GUARDED(1) "2: vmovups 32(%[s]), %%ymm1" VB_GUARDED(
			2) "3: vmovups 64(%[s]), %%ymm2" VB_GUARDED(3) "4: vmovups 96(%[s]), "
								       "%%ymm3" VB_GUARDED(
									   4) "5: vmovups "
									      "%%ymm0, "
									      "(%[d]"
									      ")" VB_GUARDED(
										  5) "6: vmovups "
										     "%%ymm1, "
										     "32(%[d]"
										     ")" VB_GUARDED(
											 6) "7: vmovups "
											    "%%ymm2, "
											    "64(%[d]"
											    ")" VB_GUARDED(
												7) "8: "
												   "vmovu"
												   "ps "
												   "%%"
												   "ymm3,"
												   " 96(%"
												   "[d]"
												   ")" VB_GUARDED(
												       8)
		    :
		    : [d] "r"(d), [s] "r"(s)
		    : "memory", "xmm0", "xmm1", "xmm2", "xmm3"
		    : fault);
		s += 128;
		d += 128;
	} while (--blocks);
	__asm__ volatile("vzeroupper"); /* else SSE code that follows is slow */
	return true;
fault:
	__asm__ volatile("vzeroupper");
	return false;
}

static bool copy_string(uint8_t *d, const uint8_t *s, size_t n)
{
	__asm__ volatile goto("1: rep movsb" VB_GUARDED(1) : "+D"(d), "+S"(s), "+c"(n) : : "memory" : fault);
	return true;
fault:
	return false;
}

/* Some CPUs make 3.5 GB/s of 57 of the string instruction where the destination is a few bytes further than
 * the source, counted within a page. */
static inline bool is_just_behind(const uint8_t *d, const uint8_t *s)
{
	return (((uintptr_t)d - (uintptr_t)s) & 4095) - 1 < 63;
}

bool vb_guard_copy_long(void *dst, const void *src, size_t n)
{
	const uint8_t *s = src;
	uint8_t *d = dst;

	if (n <= 32)
		return copy_32(d, s, n - 16);
	if (n >= STRING_MIN && strings && !is_just_behind(d, s))
		return copy_string(d, s, n);
	if (n >= WIDE_MIN && wide) {
		size_t head = n & ~(size_t)127;

		if (!copy_wide(d, s, n / 128))
			return false;
		if (head == n)
			return true;
		/* The rest, together with what of the last 64 or 128 bytes is there already. */
		if (n - head > 64 && !copy_64(d + head, s + head, 32))
			return false;
		return copy_64(d + n - 64, s + n - 64, 32);
	}
	for (; n > 64; n -= 64, d += 64, s += 64)
		if (!copy_64(d, s, 32))
			return false;
	/* What is left may be less than 17 bytes; before it there may be nothing that is ours. */
	return n > 32 ? copy_64(d, s, n - 32) : n > 16 ? copy_32(d, s, n - 16) : vb_guard_copy(d, s, n);
}

#else /* aarch64 */

static inline bool copy_32(uint8_t *d, const uint8_t *s, size_t last)
{
	__asm__ volatile goto("1: ldr q0, [%[s]]" VB_GUARDED(1) "2: ldr q1, [%[s], %[l]]" VB_GUARDED(
				  2) "3: str q0, [%[d]]" VB_GUARDED(3) "4: str q1, [%[d], %[l]]" VB_GUARDED(4)
			      :
			      : [d] "r"(d), [s] "r"(s), [l] "r"(last)
			      : "memory", "v0", "v1"
			      : fault);
	return true;
fault:
	return false;
}

static inline bool copy_64(uint8_t *d, const uint8_t *s)
{
	__asm__ volatile goto(
	    "1: ldp q0, q1, [%[s]]" VB_GUARDED(1) "2: ldp q2, q3, [%[s], #32]" VB_GUARDED(
		2) "3: stp q0, q1, [%[d]]" VB_GUARDED(3) "4: stp q2, q3, [%[d], #32]" VB_GUARDED(4)
	    :
	    : [d] "r"(d), [s] "r"(s)
	    : "memory", "v0", "v1", "v2", "v3"
	    : fault);
	return true;
fault:
	return false;
}

bool vb_guard_copy_long(void *dst, const void *src, size_t n)
{
	const uint8_t *s = src;
	uint8_t *d = dst;

	for (; n > 64; n -= 64, d += 64, s += 64)
		if (!copy_64(d, s))
			return false;
	if (n > 32) {
		if (!copy_32(d, s, 16))
			return false;
		n -= 32, d += 32, s += 32;
	}
	return n > 16 ? copy_32(d, s, n - 16) : vb_guard_copy(d, s, n);
}
#endif
