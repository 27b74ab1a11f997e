#include "base/crc.h"

#include <endian.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <string.h>

#define POLYNOMIAL 0xedb88320u /* without x^32 */
#define ONE	   0x80000000u /* x^0 */

enum { LEAST_WIDE = 256 }; /* bytes, of which less are no quicker that way */

/* [k][b]: the CRC register after byte b and k bytes of zeros. */
static uint32_t table[8][256];
static _Atomic bool made;

/* Several threads may do this at once: they write the same. */
static __attribute__((cold, noinline)) void make(void)
{
	for (uint32_t b = 0; b < 256; b++) {
		uint32_t c = b;

		for (unsigned i = 0; i < 8; i++)
			c = c >> 1 ^ (c & 1 ? POLYNOMIAL : 0);
		__atomic_store_n(&table[0][b], c, __ATOMIC_RELAXED);
	}
	for (unsigned k = 1; k < 8; k++)
		for (uint32_t b = 0; b < 256; b++) {
			uint32_t c = table[k - 1][b];

			__atomic_store_n(&table[k][b], c >> 8 ^ table[0][c & 0xff], __ATOMIC_RELAXED);
		}
	atomic_store_explicit(&made, true, memory_order_release);
}

/* c: the register, which is the complement of the CRC. */
static uint32_t bytes(uint32_t c, const uint8_t *at, size_t n)
{
	if (!atomic_load_explicit(&made, memory_order_acquire))
		make();
	for (; n >= 8; n -= 8, at += 8) {
		uint32_t a, b;

		memcpy(&a, at, 4);
		memcpy(&b, at + 4, 4);
		a = le32toh(a) ^ c;
		b = le32toh(b);
		c = table[7][a & 0xff] ^ table[6][a >> 8 & 0xff] ^ table[5][a >> 16 & 0xff] ^
		    table[4][a >> 24] ^ table[3][b & 0xff] ^ table[2][b >> 8 & 0xff] ^
		    table[1][b >> 16 & 0xff] ^ table[0][b >> 24];
	}
	if (n >= 4) {
		uint32_t a;

		memcpy(&a, at, 4);
		a = le32toh(a) ^ c;
		c = table[3][a & 0xff] ^ table[2][a >> 8 & 0xff] ^ table[1][a >> 16 & 0xff] ^
		    table[0][a >> 24];
		at += 4;
		n -= 4;
	}
	while (n--)
		c = c >> 8 ^ table[0][(c ^ *at++) & 0xff];
	return c;
}

/* As vb_crc_with(). */
static uint32_t bytes_with(uint32_t c, uint64_t ones, const uint8_t *at, size_t n)
{
	uint64_t first;

	if (!ones)
		return bytes(c, at, n);
	memcpy(&first, at, sizeof(first));
	first |= htole64(ones);
	c = bytes(c, (const uint8_t *)&first, sizeof(first));
	return bytes(c, at + sizeof(first), n - sizeof(first));
}

uint32_t vb_crc_by_table(uint32_t before, const uint8_t *at, size_t n)
{
	return ~bytes(~before, at, n);
}

#ifdef __x86_64__
#include <immintrin.h>

#define FOLDS __attribute__((target("pclmul,sse4.1")))

/* A block of 128 bits moves on by as many bits as the two constants say, and falls upon the next one. */
FOLDS static inline __m128i fold(__m128i block, __m128i by, __m128i on)
{
	return _mm_xor_si128(
	    on, _mm_xor_si128(_mm_clmulepi64_si128(block, by, 0x00), _mm_clmulepi64_si128(block, by, 0x11)));
}

FOLDS static inline __m128i load(const uint8_t *at)
{
	return _mm_loadu_si128((const __m128i *)(const void *)at);
}

/* The constants are powers of x modulo the polynomial, reflected, one bit further up, since the product of
 * two reflected numbers of 64 bits has 127: x^(d+32) and x^(d-32), for a distance of d bits.  n: a multiple
 * of 16, 64 at least. */
FOLDS static uint32_t by_multiplying(uint32_t c, uint64_t ones, const uint8_t *at, size_t n)
{
	const __m128i by_512 = _mm_set_epi64x(0x1c6e41596, 0x154442bd4);
	const __m128i by_128 = _mm_set_epi64x(0x0ccaa009e, 0x1751997d0);
	__m128i b[4], one;
	uint8_t last[16];

	for (unsigned i = 0; i < 4; i++)
		b[i] = load(at + 16 * i);
	b[0] = _mm_or_si128(b[0], _mm_cvtsi64_si128((long long)ones));
	b[0] = _mm_xor_si128(b[0], _mm_cvtsi32_si128((int)c));
	for (at += 64, n -= 64; n >= 64; at += 64, n -= 64)
		for (unsigned i = 0; i < 4; i++)
			b[i] = fold(b[i], by_512, load(at + 16 * i));
	one = fold(b[0], by_128, b[1]);
	one = fold(one, by_128, b[2]);
	one = fold(one, by_128, b[3]);
	for (; n >= 16; at += 16, n -= 16)
		one = fold(one, by_128, load(at));
	_mm_storeu_si128((__m128i *)(void *)last, one);
	return bytes(0, last, sizeof(last));
}

/* The same with blocks of 512 bits. */
#define WIDE __attribute__((target("avx512f,vpclmulqdq,pclmul,sse4.1")))

WIDE static inline __m512i fold_wide(__m512i block, __m512i by, __m512i on)
{
	return _mm512_ternarylogic_epi64(on, _mm512_clmulepi64_epi128(block, by, 0x00),
					 _mm512_clmulepi64_epi128(block, by, 0x11), 0x96); /* XOR of three */
}

WIDE static inline __m512i load_wide(const uint8_t *at)
{
	return _mm512_loadu_si512((const void *)at);
}

/* n: a multiple of 16, LEAST_WIDE at least. */
WIDE static uint32_t by_wide(uint32_t c, uint64_t ones, const uint8_t *at, size_t n)
{
	const __m512i by_2048 = _mm512_broadcast_i32x4(_mm_set_epi64x(0x1322d1430, 0x11542778a));
	const __m512i by_512 = _mm512_broadcast_i32x4(_mm_set_epi64x(0x1c6e41596, 0x154442bd4));
	const __m128i by_128 = _mm_set_epi64x(0x0ccaa009e, 0x1751997d0);
	uint8_t last[16];
	__m512i b[4];
	__m128i one;

	for (unsigned i = 0; i < 4; i++)
		b[i] = load_wide(at + 64 * i);
	b[0] = _mm512_or_si512(b[0], _mm512_zextsi128_si512(_mm_cvtsi64_si128((long long)ones)));
	b[0] = _mm512_xor_si512(b[0], _mm512_zextsi128_si512(_mm_cvtsi32_si128((int)c)));
	for (at += 256, n -= 256; n >= 256; at += 256, n -= 256)
		for (unsigned i = 0; i < 4; i++)
			b[i] = fold_wide(b[i], by_2048, load_wide(at + 64 * i));
	for (unsigned i = 1; i < 4; i++)
		b[i] = fold_wide(b[i - 1], by_512, b[i]);
	for (; n >= 64; at += 64, n -= 64)
		b[3] = fold_wide(b[3], by_512, load_wide(at));
	one = fold(_mm512_extracti32x4_epi32(b[3], 0), by_128, _mm512_extracti32x4_epi32(b[3], 1));
	one = fold(one, by_128, _mm512_extracti32x4_epi32(b[3], 2));
	one = fold(one, by_128, _mm512_extracti32x4_epi32(b[3], 3));
	for (; n; at += 16, n -= 16)
		one = fold(one, by_128, load(at));
	_mm_storeu_si128((__m128i *)(void *)last, one);
	return bytes(0, last, sizeof(last));
}

static bool multiplies(void)
{
	return __builtin_cpu_supports("pclmul") && __builtin_cpu_supports("sse4.1");
}

static bool multiplies_wide(void)
{
	return __builtin_cpu_supports("vpclmulqdq") && __builtin_cpu_supports("avx512f");
}
#else
static uint32_t by_multiplying(uint32_t c, uint64_t ones, const uint8_t *at, size_t n)
{
	return bytes_with(c, ones, at, n);
}

static uint32_t by_wide(uint32_t c, uint64_t ones, const uint8_t *at, size_t n)
{
	return bytes_with(c, ones, at, n);
}

static bool multiplies(void)
{
	return false;
}

static bool multiplies_wide(void)
{
	return false;
}
#endif

uint32_t vb_crc_with(uint32_t before, uint64_t ones, const uint8_t *at, size_t n)
{
	uint32_t c = ~before;
	size_t whole = n & ~(size_t)15;

	if (whole < 64 || !multiplies())
		return ~bytes_with(c, ones, at, n);
	c = whole >= LEAST_WIDE && multiplies_wide() ? by_wide(c, ones, at, whole)
						     : by_multiplying(c, ones, at, whole);
	return ~bytes(c, at + whole, n - whole);
}

uint32_t vb_crc(uint32_t before, const uint8_t *at, size_t n)
{
	return vb_crc_with(before, 0, at, n);
}

uint32_t vb_crc_times(uint32_t a, uint32_t b)
{
	uint32_t product = 0;

	for (; b; b <<= 1) {
		product ^= b & ONE ? a : 0;
		a = a >> 1 ^ (a & 1 ? POLYNOMIAL : 0);
	}
	return product;
}

uint32_t vb_crc_back(size_t n)
{
	enum { KNOWN = 4352 };		      /* of the longest packet */
	static _Atomic uint32_t known[KNOWN]; /* 0: not computed yet */
	uint32_t power = ONE, square = ONE;

	if (n < KNOWN && atomic_load_explicit(&known[n], memory_order_relaxed))
		return atomic_load_explicit(&known[n], memory_order_relaxed);
	for (unsigned i = 0; i < 8; i++) /* x^-1: what x makes 1 of */
		square = square << 1 ^ (square & ONE ? POLYNOMIAL << 1 | 1 : 0);
	for (size_t k = n; k; k >>= 1) {
		power = k & 1 ? vb_crc_times(power, square) : power;
		square = vb_crc_times(square, square);
	}
	if (n < KNOWN)
		atomic_store_explicit(&known[n], power, memory_order_relaxed);
	return power;
}
