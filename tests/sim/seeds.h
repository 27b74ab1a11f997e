/* The seeds of a randomised test: how many, the first, and the one under way. */
#ifndef VB_TEST_SEEDS_H
#define VB_TEST_SEEDS_H

#include <stdint.h>

extern struct seeds {
	uint64_t count, first, current;
} seeds;

#define for_each_seed() \
	for (seeds.current = seeds.first; seeds.current < seeds.first + seeds.count; seeds.current++)

/* From the arguments of main(): the first, else VB_SEEDS, else 1000 with VERBENA_SOAK, else few, is how many;
 * the second the first of them. */
void seeds_choose(int argc, char **argv, uint64_t few);
/* A teardown of cmocka: names the seed that a failed test was at. */
int seeds_tell(void **state);

#endif
