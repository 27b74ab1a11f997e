/* Tests of --share-buffers run with its library preloaded. */
#ifndef VB_TESTS_BUFFERS_H
#define VB_TESTS_BUFFERS_H

#include <stdbool.h>
#include <stddef.h>

/* Runs the program again, with the library; ends with KIT_SKIP where a sanitizer has the memory. */
void kit_buffers_begin(char **argv);
/* Whether all of it lies in a memfd of that library, or none of it: 1, 0; -1: some of it. */
int kit_in_buffers(const void *p, size_t size);

#endif
