#include <stdio.h>
#include <stdlib.h>

#include "seeds.h"
#include "sim.h"

struct seeds seeds = {.first = 1};
static const char *program;

void seeds_choose(int argc, char **argv, uint64_t few)
{
	const char *count = argc > 1 ? argv[1] : getenv("VB_SEEDS");

	program = argv[0];
	seeds.count = count ? strtoull(count, NULL, 0) : getenv("VERBENA_SOAK") ? 1000 : few;
	if (argc > 2)
		seeds.first = strtoull(argv[2], NULL, 0);
}

int seeds_tell(void **state)
{
	(void)state;
	if (seeds.current < seeds.first + seeds.count)
		print_message("seed %lu; repeat with: %s 1 %lu\n", (unsigned long)seeds.current, program,
			      (unsigned long)seeds.current);
	return 0;
}
