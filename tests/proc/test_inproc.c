/* Two adapters in one process, over one mapping, each driven by a thread of its own: mixed operations at
 * random, see mixed.h.  This is what runs under TSan, which sees both ends of every ring here.
 *
 *     proc-inproc [OPERATIONS [SEED]]      default 8,000 operations per direction */
#include <pthread.h>

#include "adapter.h"
#include "mixed.h"

static struct kit_mixed mixed; /* of private memory */

static void *side(void *arg)
{
	kit_mixed_side(&mixed, *(int *)arg);
	return NULL;
}

int main(int argc, char **argv)
{
	int sides[2] = {0, 1};
	pthread_t t[2];

	mixed.operations = argc > 1 ? strtoull(argv[1], NULL, 0) : 8000;
	mixed.seed = argc > 2 ? strtoull(argv[2], NULL, 0) : (uint64_t)getpid() << 20 ^ (uint64_t)clock();
	printf("inproc: seed %" PRIu64 "\n", mixed.seed);
	fflush(stdout);
	mixed.cards = calloc(2, sizeof *mixed.cards);
	mixed.open = kit_adapter_open;
	mixed.close = kit_adapter_close;
	CHECK(mixed.cards);
	for (int i = 0; i < 2; i++)
		CHECK(!pthread_create(&t[i], NULL, side, &sides[i]));
	for (int i = 0; i < 2; i++)
		CHECK(!pthread_join(t[i], NULL));
	free(mixed.cards);
	return 0;
}
