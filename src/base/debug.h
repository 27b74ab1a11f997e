/* Assumptions that debug builds check (CMake's VB_DEBUG, on in those with sanitizers and in the variant of
 * the library with fault points).  Elsewhere the condition is not evaluated, and the code must go on without
 * harm. */
#ifndef VB_BASE_DEBUG_H
#define VB_BASE_DEBUG_H

#ifdef VB_DEBUG
#include <assert.h>
#define vb_assert(c) assert(c)
#else
#define vb_assert(c) ((void)sizeof(!(c)))
#endif

#endif
