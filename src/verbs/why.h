/* Sentences of refusals that take more than a line to find out. */
#ifndef VB_VERBS_WHY_H
#define VB_VERBS_WHY_H

#include <stdbool.h>
#include <stdint.h>

/* The memory of [addr, addr+length) cannot be registered: says where in it the trouble is, what is mapped
 * there and what to change.  Returns err. */
int vb_why_memory(int err, const char *call, uint64_t addr, uint64_t length, bool write);

#endif
