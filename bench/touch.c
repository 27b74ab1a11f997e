/* For LD_PRELOAD: large blocks are present in memory before their allocator returns.  perftest notes a time
 * for each message in such a block, and would meet a page fault with every 512th, in the middle of what it
 * times, at both ends in the same message.  What a fault takes is the machine's (bench/limits.c prints it),
 * and no part of a message. */
#include <stddef.h>
#include <string.h>

#define LARGE (1u << 20)

void *__libc_malloc(size_t n);
void *__libc_calloc(size_t n, size_t each);
void *malloc(size_t n);
void *calloc(size_t n, size_t each);

static void *touched(void *p, size_t n)
{
	if (p && n >= LARGE)
		memset(p, 0, n);
	__asm__ volatile("" : : "r"(p) : "memory"); /* or malloc() and memset() become calloc() */
	return p;
}

__attribute__((visibility("default"))) void *malloc(size_t n)
{
	return touched(__libc_malloc(n), n);
}

__attribute__((visibility("default"))) void *calloc(size_t n, size_t each)
{
	void *p = __libc_calloc(n, each);

	return touched(p, p ? n * each : 0); /* it has looked whether that overflows */
}
