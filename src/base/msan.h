/* Programs that are built with MemorySanitizer (-fsanitize=memory of clang).
 *
 * The sanitizer follows only code that it compiled.  It does not see what this library writes, and it checks
 * the arguments of C library functions in the library's calls, too.  So each call of the program's begins and
 * ends here.  Meanwhile arguments are not checked in this thread; at the end, what the call has written for
 * the program becomes initialized.  The library's own memory comes from calloc(), or is cleared, and its part
 * of the stack counts as initialized: else a memcpy() would carry old marks to the program.
 *
 * Without the sanitizer each of these functions is one test. */
#ifndef VB_BASE_MSAN_H
#define VB_BASE_MSAN_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/lock.h"

/* Whether the program is built with it.  Set before main(). */
extern bool vb_msan_on;

/* Around a call of the program's, or around work in a thread of the program's; calls may be within calls.  A
 * thread of the library's own begins, and does not end. */
void vb_msan_begin(void);
void vb_msan_end(void);
/* These bytes are initialized. */
void vb_msan_unpoison(const void *at, size_t n);
/* A function of the program's is called next, with so many arguments. */
void vb_msan_calls_back(size_t arguments);

static inline void vb_msan_enter(void)
{
	if (vb_unlikely(vb_msan_on))
		vb_msan_begin();
}

static inline void vb_msan_leave(void)
{
	if (vb_unlikely(vb_msan_on))
		vb_msan_end();
}

/* The library has written n bytes there, which the program may read. */
static inline void vb_msan_gives(const void *at, size_t n)
{
	if (vb_unlikely(vb_msan_on) && at)
		vb_msan_unpoison(at, n);
}

#endif
