/* N8: what is still there? */
#include "situation.h"

/* N8.1: ibv_dealloc_pd() says EBUSY.  Which region is left? */
static void region_left(void)
{
	uint8_t *p = alone(2 * PAGE, PROT_READ | PROT_WRITE);

	CHECK(ibv_reg_mr(pd, p + 16, PAGE, IBV_ACCESS_LOCAL_WRITE));
	CHECK(ibv_dealloc_pd(pd) == EBUSY);
	SAID("ibv_dealloc_pd: ");
	SAID("1 memory region");
	SAID("[0x%" PRIxPTR ", +%d)", (uintptr_t)p + 16, PAGE);
	SAID("(EBUSY)");
}

/* N8.2: of several domains, which one is busy, and by what? */
static void queue_pair_left(void)
{
	struct ibv_pd *other = ibv_alloc_pd(ctx);

	CHECK(other);
	kit_end_open(&a, other, 4, PAGE);
	CHECK(!ibv_dereg_mr(a.mr));
	CHECK(ibv_dealloc_pd(other) == EBUSY);
	SAID("protection domain %u still has 1 queue pair; a queue pair is 0x%06x", other->handle,
	     a.qp->qp_num);
	CHECK(!ibv_dealloc_pd(pd));
}

/* N8.7: objects dropped in the wrong order. */
static void wrong_order(void)
{
	pair_open();
	CHECK(ibv_destroy_cq(a.cq) == EBUSY);
	SAID("ibv_destroy_cq: 2 queues of QPs and SRQs complete to it (EBUSY)");
	CHECK(ibv_dealloc_pd(pd) == EBUSY);
	SAID("2 memory regions");
	SAID("2 queue pairs");
}

/* N8: the device is closed while objects live: what leaks? */
static void left_at_close(void)
{
	struct ibv_context *second = kit_open();
	struct ibv_pd *mine = ibv_alloc_pd(second);
	uint8_t *p = alone(PAGE, PROT_READ | PROT_WRITE);

	CHECK(mine && ibv_reg_mr(mine, p, PAGE, IBV_ACCESS_LOCAL_WRITE));
	CHECK(ibv_create_cq(second, 4, NULL, NULL, 0));
	CHECK(!ibv_close_device(second));
	SAID("ibv_close_device: ");
	SAID("1 protection domain");
	SAID("1 CQ");
	SAID("1 memory region");
	SAID("[0x%" PRIxPTR ", +%d)", (uintptr_t)p, PAGE);
}

const struct situation lifetime[] = {
    {"N8.1", region_left, NULL},
    {"N8.2", queue_pair_left, NULL},
    {"N8-close", left_at_close, NULL},
    {"N8.7", wrong_order, NULL},
    {0},
};
