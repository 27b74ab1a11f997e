/* What memcheck, a tool of valgrind, cannot know by itself about this library's own memory and calls. Without
 * valgrind each of these is a handful of instructions, so they are for places that are seldom reached. */
#ifndef VB_BASE_MEMCHECK_H
#define VB_BASE_MEMCHECK_H

#include <stdbool.h>
#include <stddef.h>

#if __has_include(<valgrind/memcheck.h>)

#include <valgrind/memcheck.h>

/* The memory can be read: a mapping of which memcheck believes otherwise. */
static inline void vb_memcheck_open(void *at, size_t size)
{
	(void)VALGRIND_MAKE_MEM_DEFINED(at, size);
}

/* Whether the process runs under valgrind, by whichever of its tools. */
static inline bool vb_memcheck_near(void)
{
	return RUNNING_ON_VALGRIND;
}

/* Nothing is reported of what this thread does meanwhile. */
static inline void vb_memcheck_hush(bool on)
{
	if (on)
		VALGRIND_DISABLE_ERROR_REPORTING;
	else
		VALGRIND_ENABLE_ERROR_REPORTING;
}

#else

static inline void vb_memcheck_open(void *at, size_t size)
{
	(void)at, (void)size;
}

static inline bool vb_memcheck_near(void)
{
	return false;
}

static inline void vb_memcheck_hush(bool on)
{
	(void)on;
}

#endif

#endif
