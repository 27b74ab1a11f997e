/* Two adapters in one process, over one mapping, each driven by a thread of its own: mixed operations at
 * random, see mixed.h.  This is what runs under TSan, which sees both ends of every ring here.
 *
 *     proc-inproc [OPERATIONS [SEED]]      default 8,000 operations per direction */
#include <pthread.h>

#include "mixed.h"

#include "hca/hca.h"
#include "verbs/verbs.h"

static struct vb_device *device;
static struct kit_mixed mixed; /* of private memory */

static struct ibv_context *side_open(void)
{
	struct vb_context *c;
	struct vb_hca *h;

	CHECK(!vb_hca_open(&h, NULL, &vb_verbs_upper)); /* not the process's shared adapter, but one more */
	CHECK(!vb_context_open(&c, device, h));
	return &c->v.context;
}

static void side_close(struct ibv_context *c)
{
	struct vb_hca *h = vb_hca(vb_context(c)->adapter);

	CHECK(!vb_context_close(vb_context(c)));
	vb_hca_close(h);
}

static void *side(void *arg)
{
	kit_mixed_side(&mixed, *(int *)arg);
	return NULL;
}

int main(int argc, char **argv)
{
	struct ibv_device **list = ibv_get_device_list(NULL);
	int sides[2] = {0, 1};
	pthread_t t[2];

	mixed.operations = argc > 1 ? strtoull(argv[1], NULL, 0) : 8000;
	mixed.seed = argc > 2 ? strtoull(argv[2], NULL, 0) : (uint64_t)getpid() << 20 ^ (uint64_t)clock();
	printf("inproc: seed %" PRIu64 "\n", mixed.seed);
	fflush(stdout);
	CHECK(list && list[0]);
	device = (struct vb_device *)list[0];
	mixed.cards = calloc(2, sizeof *mixed.cards);
	mixed.open = side_open;
	mixed.close = side_close;
	CHECK(mixed.cards);
	for (int i = 0; i < 2; i++)
		CHECK(!pthread_create(&t[i], NULL, side, &sides[i]));
	for (int i = 0; i < 2; i++)
		CHECK(!pthread_join(t[i], NULL));
	free(mixed.cards);
	ibv_free_device_list(list);
	return 0;
}
