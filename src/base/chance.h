/* Numbers by chance: the kernel's, or, where getrandom() is denied or not ready yet, made of what it gave
 * this program at exec() (AT_RANDOM), the clock, the thread and a count.  They tell processes and connections
 * apart; they keep no secret. */
#ifndef VB_BASE_CHANCE_H
#define VB_BASE_CHANCE_H

#include <stdint.h>

/* Never blocks, and leaves errno as it was. */
uint64_t vb_chance(void);

#endif
