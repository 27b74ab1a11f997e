/* Loads, stores, copies and atomics on memory that may vanish: they return false where the CPU faults.
 *
 * It is done as kernels do it: each instruction that may fault has an entry in a table (section vb_extable):
 * its address and the address where to go on.  A handler of SIGSEGV and SIGBUS looks the faulting address up;
 * what is not in the table is the program's own fault and goes on to the handler that was there before, as if
 * ours were not.  Without a fault all this costs nothing.
 *
 * The limits: the handler is not called in a thread that blocks the signal (the kernel then ends the
 * process); a handler that the program installs later replaces ours, unless the preload of `verbena run`
 * keeps ours in front, or the program calls what it replaced; and the calls of programs without a C library
 * cannot be seen. */
#ifndef VB_MEM_GUARD_H
#define VB_MEM_GUARD_H

#include <signal.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Installs the handlers, once; to be called before memory is touched that may vanish. */
void vb_guard_install(void);
/* Has the program's own segmentation faults told, before they are passed on: in its handler, at the address.
 */
void vb_guard_tell(void (*faulted)(uintptr_t at));

/* How the preload and the library find each other: the library looks up the symbol VB_GUARD_BENEATH when it
 * installs its handlers.  It hands over the function that shall be called in place of sigaction() for these
 * two signals, and gets the next library's sigaction(), NULL if another copy of it came first. */
typedef int vb_sigaction_fn(int sig, const struct sigaction *act, struct sigaction *old);
typedef vb_sigaction_fn *vb_guard_beneath_fn(vb_sigaction_fn *ours);
#define VB_GUARD_BENEATH "verbena_guard_beneath"
vb_guard_beneath_fn verbena_guard_beneath; /* in the preload only */

/* A copy of more than 16 bytes; the ranges must not overlap. */
bool vb_guard_copy_long(void *dst, const void *src, size_t n);

/* The entry for the instruction at the local label n of an asm goto that names a label `fault`. */
#define VB_GUARDED(n)                           \
	"\n\t.pushsection vb_extable,\"a\"\n\t" \
	".balign 4\n\t"                         \
	".long " #n "b - .\n\t"                 \
	".long %l[fault] - .\n\t"               \
	".popsection\n\t"

/* What follows an asm goto with outputs: some versions of gcc otherwise take its outputs for dead. */
#define VB_GUARD_OUT() __asm__ volatile("")

#if defined(__x86_64__)
#define VB_GUARD_LOAD_1	 "movzbl (%[p]), %k[v]"
#define VB_GUARD_LOAD_2	 "movzwl (%[p]), %k[v]"
#define VB_GUARD_LOAD_4	 "movl (%[p]), %k[v]"
#define VB_GUARD_LOAD_8	 "movq (%[p]), %q[v]"
#define VB_GUARD_STORE_1 "movb %b[v], (%[p])"
#define VB_GUARD_STORE_2 "movw %w[v], (%[p])"
#define VB_GUARD_STORE_4 "movl %k[v], (%[p])"
#define VB_GUARD_STORE_8 "movq %q[v], (%[p])"
#elif defined(__aarch64__)
#define VB_GUARD_LOAD_1	 "ldrb %w[v], [%[p]]"
#define VB_GUARD_LOAD_2	 "ldrh %w[v], [%[p]]"
#define VB_GUARD_LOAD_4	 "ldr %w[v], [%[p]]"
#define VB_GUARD_LOAD_8	 "ldr %x[v], [%[p]]"
#define VB_GUARD_STORE_1 "stlrb %w[v], [%[p]]" /* these need an aligned address, as does the last store */
#define VB_GUARD_STORE_2 "stlrh %w[v], [%[p]]"
#define VB_GUARD_STORE_4 "stlr %w[v], [%[p]]"
#define VB_GUARD_STORE_8 "stlr %x[v], [%[p]]"
#else
#error "guarded copies are written for x86-64 and aarch64"
#endif

/* vb_guard_load_N(p, &v) and vb_guard_store_N(p, v).  A store is one store and has release semantics; its
 * address must be aligned to N. */
#define VB_GUARD_SCALAR(n, type)                                             \
	static inline bool vb_guard_load_##n(const void *p, type *to)        \
	{                                                                    \
		uint64_t v;                                                  \
                                                                             \
		__asm__ volatile goto("1: " VB_GUARD_LOAD_##n VB_GUARDED(1)  \
				      : [v] "=r"(v)                          \
				      : [p] "r"(p)                           \
				      : "memory"                             \
				      : fault);                              \
		VB_GUARD_OUT();                                              \
		*to = (type)v;                                               \
		return true;                                                 \
	fault:                                                               \
		return false;                                                \
	}                                                                    \
	static inline bool vb_guard_store_##n(void *p, type v)               \
	{                                                                    \
		__asm__ volatile goto("1: " VB_GUARD_STORE_##n VB_GUARDED(1) \
				      :                                      \
				      : [p] "r"(p), [v] "r"((uint64_t)v)     \
				      : "memory"                             \
				      : fault);                              \
		return true;                                                 \
	fault:                                                               \
		return false;                                                \
	}

VB_GUARD_SCALAR(1, uint8_t)
VB_GUARD_SCALAR(2, uint16_t)
VB_GUARD_SCALAR(4, uint32_t)
VB_GUARD_SCALAR(8, uint64_t)

/* Two words that may overlap and need no alignment: loads before stores. */
#if defined(__x86_64__)
#define VB_GUARD_PAIR(n, op, m)                                                                           \
	static inline bool vb_guard_pair_##n(uint8_t *d, const uint8_t *s, size_t last)                   \
	{                                                                                                 \
		uint64_t a, b;                                                                            \
                                                                                                          \
		__asm__ volatile goto("1: " op " (%[s]), %" m                                             \
				      "[a]" VB_GUARDED(1) "2: " op " (%[s],%[l]), %" m "[b]" VB_GUARDED(  \
					  2) "3: " op " %" m                                              \
					     "[a], (%[d])" VB_GUARDED(3) "4: " op " %" m                  \
									 "[b], (%[d],%[l])" VB_GUARDED(4) \
				      : [a] "=&r"(a), [b] "=&r"(b)                                        \
				      : [d] "r"(d), [s] "r"(s), [l] "r"(last)                             \
				      : "memory"                                                          \
				      : fault);                                                           \
		return true;                                                                              \
	fault:                                                                                            \
		return false;                                                                             \
	}
VB_GUARD_PAIR(2, "movw", "w")
VB_GUARD_PAIR(4, "movl", "k")
VB_GUARD_PAIR(8, "movq", "q")
#else
#define VB_GUARD_PAIR(n, suffix, m)                                                                    \
	static inline bool vb_guard_pair_##n(uint8_t *d, const uint8_t *s, size_t last)                \
	{                                                                                              \
		uint64_t a, b;                                                                         \
                                                                                                       \
		__asm__ volatile goto(                                                                 \
		    "1: ldr" suffix " %" m                                                             \
		    "[a], [%[s]]" VB_GUARDED(1) "2: ldr" suffix " %" m "[b], [%[s], %[l]]" VB_GUARDED( \
			2) "3: str" suffix " %" m                                                      \
			   "[a], [%[d]]" VB_GUARDED(3) "4: str" suffix " %" m                          \
						       "[b], [%[d], %[l]]" VB_GUARDED(4)               \
		    : [a] "=&r"(a), [b] "=&r"(b)                                                       \
		    : [d] "r"(d), [s] "r"(s), [l] "r"(last)                                            \
		    : "memory"                                                                         \
		    : fault);                                                                          \
		return true;                                                                           \
	fault:                                                                                         \
		return false;                                                                          \
	}
VB_GUARD_PAIR(2, "h", "w")
VB_GUARD_PAIR(4, "", "w")
VB_GUARD_PAIR(8, "", "x")
#endif

/* A copy of any length, in no particular order. */
static inline bool vb_guard_copy(void *dst, const void *src, size_t n)
{
	uint8_t byte;

	if (n > 16)
		return vb_guard_copy_long(dst, src, n);
	if (n >= 8)
		return vb_guard_pair_8(dst, src, n - 8);
	if (n >= 4)
		return vb_guard_pair_4(dst, src, n - 4);
	if (n >= 2)
		return vb_guard_pair_2(dst, src, n - 2);
	return !n || (vb_guard_load_1(src, &byte) && vb_guard_store_1(dst, byte));
}

/* On an aligned word, sequentially consistent; *orig is the value before. */
static inline bool vb_guard_cmp_swap(void *p, uint64_t compare, uint64_t swap, uint64_t *orig)
{
#if defined(__x86_64__)
	__asm__ volatile goto("1: lock cmpxchgq %[swap], (%[p])" VB_GUARDED(1)
			      : [was] "+a"(compare)
			      : [p] "r"(p), [swap] "r"(swap)
			      : "memory", "cc"
			      : fault);
	VB_GUARD_OUT();
	*orig = compare;
#else
	uint64_t was, failed;

	__asm__ volatile goto(
	    "1: ldaxr %[was], [%[p]]" VB_GUARDED(1) "cmp %[was], %[compare]\n\t"
						    "b.ne 3f\n"
						    "2: stlxr %w[failed], %[swap], [%[p]]" VB_GUARDED(
							2) "cbnz %w[failed], 1b\n"
							   "3: dmb ish"
	    : [was] "=&r"(was), [failed] "=&r"(failed)
	    : [p] "r"(p), [compare] "r"(compare), [swap] "r"(swap)
	    : "memory", "cc"
	    : fault);
	VB_GUARD_OUT();
	*orig = was;
#endif
	return true;
fault:
	return false;
}

static inline bool vb_guard_fetch_add(void *p, uint64_t add, uint64_t *orig)
{
#if defined(__x86_64__)
	__asm__ volatile goto("1: lock xaddq %[add], (%[p])" VB_GUARDED(1)
			      : [add] "+r"(add)
			      : [p] "r"(p)
			      : "memory", "cc"
			      : fault);
	VB_GUARD_OUT();
	*orig = add;
#else
	uint64_t was, sum, failed;

	__asm__ volatile goto(
	    "1: ldaxr %[was], [%[p]]" VB_GUARDED(1) "add %[sum], %[was], %[add]\n"
						    "2: stlxr %w[failed], %[sum], [%[p]]" VB_GUARDED(
							2) "cbnz %w[failed], 1b\n\t"
							   "dmb ish"
	    : [was] "=&r"(was), [sum] "=&r"(sum), [failed] "=&r"(failed)
	    : [p] "r"(p), [add] "r"(add)
	    : "memory", "cc"
	    : fault);
	VB_GUARD_OUT();
	*orig = was;
#endif
	return true;
fault:
	return false;
}

#endif
