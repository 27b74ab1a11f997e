/* N8: what is still there?  The log's warning is of the first object that is in use; `verbena explain` knows
 * those of the same minute, too. */
#include "situation.h"

/* N8.1: ibv_dealloc_pd() says EBUSY.  Which region is left? */
static void region_left(void)
{
	uint8_t *p = alone(2 * PAGE, PROT_READ | PROT_WRITE);
	struct ibv_mr *mr;

	mr = ibv_reg_mr(pd, p + 16, PAGE, IBV_ACCESS_LOCAL_WRITE);
	CHECK(mr && ibv_dealloc_pd(pd) == EBUSY);
	SAID("ibv_dealloc_pd: ");
	SAID("1 memory region, [0x%" PRIxPTR ", +%d) with L_Key 0x%08x: deregister it first",
	     (uintptr_t)p + 16, PAGE, mr->lkey);
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
	SAID("the protection domain still has 1 queue pair, QP 0x%06x: destroy it first", a.qp->qp_num);
	CHECK(!ibv_dealloc_pd(pd));
}

/* N8.2: a domain and one that stands for it have the same number, and each its own children. */
static void parent_left(void)
{
	struct ibv_parent_domain_init_attr attr = {.pd = pd};
	struct ibv_pd *parent = ibv_alloc_parent_domain(ctx, &attr);
	uint8_t *p = alone(2 * PAGE, PROT_READ | PROT_WRITE);
	struct ibv_mr *mr;

	CHECK(parent && ibv_alloc_mw(parent, IBV_MW_TYPE_1));
	mr = ibv_reg_mr(pd, p, PAGE, IBV_ACCESS_LOCAL_WRITE);
	CHECK(mr && ibv_dealloc_pd(parent) == EBUSY);
	SAID("the protection domain still has 1 memory window: deallocate it first");
	CHECK(ibv_dealloc_pd(pd) == EBUSY);
	kept("still has 1 memory region, 1 parent domain (for example [0x%" PRIxPTR ", +%d)", (uintptr_t)p,
	     PAGE);
	/* a region in either: whose is which is not known, so none is named */
	CHECK(ibv_reg_mr(parent, p + PAGE, PAGE, 0) && ibv_dealloc_pd(parent) == EBUSY);
	kept("still has 1 memory region, 1 memory window: destroy them first");
	CHECK(!ibv_dereg_mr(mr) && ibv_dealloc_pd(pd) == EBUSY);
	kept("still has 1 parent domain: deallocate it first");
	CHECK(ibv_dealloc_pd(parent) == EBUSY);
	kept("1 memory window (for example [0x%" PRIxPTR ", +%d)", (uintptr_t)p + PAGE, PAGE);
}

static void *no_queue(struct ibv_pd *of, void *context, size_t size, size_t alignment, uint64_t type)
{
	(void)of, (void)size, (void)alignment, (void)type;
	return context;
}

static void no_way_back(struct ibv_pd *of, void *context, void *at, uint64_t type)
{
	(void)of, (void)context, (void)at, (void)type;
}

/* The program's own callback fails: which of its calls did that? */
static void callback_fails(void)
{
	struct ibv_parent_domain_init_attr attr = {.pd = pd,
						   .comp_mask = IBV_PARENT_DOMAIN_INIT_ATTR_ALLOCATORS |
								IBV_PARENT_DOMAIN_INIT_ATTR_PD_CONTEXT,
						   .alloc = no_queue,
						   .free = no_way_back};
	struct ibv_qp_init_attr qp = {.qp_type = IBV_QPT_RC, .cap = {16, 16, 1, 1, 0}};
	struct ibv_srq_init_attr srq = {.attr = {.max_wr = 16, .max_sge = 1}};
	struct ibv_pd *parent = ibv_alloc_parent_domain(ctx, &attr);

	qp.send_cq = qp.recv_cq = ibv_create_cq(ctx, 4, NULL, NULL, 0);
	CHECK(parent && qp.send_cq);
	CHECK(!ibv_create_qp(parent, &qp) && errno == ENOMEM);
	SAID("ibv_create_qp: the parent domain's alloc callback returned NULL for 4096 bytes (ENOMEM)");
	CHECK(!ibv_create_srq(parent, &srq) && errno == ENOMEM);
	SAID("ibv_create_srq: the parent domain's alloc callback returned NULL for 4096 bytes (ENOMEM)");
	attr.pd_context = (void *)8;
	parent = ibv_alloc_parent_domain(ctx, &attr);
	CHECK(parent && !ibv_create_qp(parent, &qp) && errno == EINVAL);
	SAID("ibv_create_qp: the parent domain's alloc callback returned 0x8, which is not aligned");
}

/* N8.7: objects dropped in the wrong order. */
static void wrong_order(void)
{
	pair_open();
	CHECK(ibv_destroy_cq(a.cq) == EBUSY);
	SAID("ibv_destroy_cq: 2 work queues of QPs or SRQs use the CQ; destroy those QPs and SRQs first "
	     "(EBUSY)");
	CHECK(ibv_dealloc_pd(pd) == EBUSY);
	kept("2 memory regions, 2 queue pairs");
}

/* N8: the device is closed while objects live: what leaks?  That harms nobody, so the log says it to those
 * who ask for the level info. */
static void left_at_close(void)
{
	struct ibv_context *second = kit_open();
	struct ibv_pd *mine = ibv_alloc_pd(second);
	uint8_t *p = alone(PAGE, PROT_READ | PROT_WRITE);
	struct kit_end e;

	CHECK(mine && ibv_reg_mr(mine, p, PAGE, IBV_ACCESS_LOCAL_WRITE));
	kit_end_open(&e, mine, 4, PAGE);
	CHECK(!ibv_dereg_mr(e.mr));
	CHECK(!ibv_close_device(second));
	kept("ibv_close_device: the program did not destroy 1 queue pair, 1 protection domain, 1 CQ; in its "
	     "protection domains: 1 memory region (for example [0x%" PRIxPTR ", +%d)",
	     (uintptr_t)p, PAGE);
	kept(" and QP 0x%06x). QPs are stopped, the rest remains until the process ends", e.card.qpn);
	SAID_NOT("ibv_close_device");
}

const struct situation lifetime[] = {
    {"N8.1", region_left, NULL},
    {"N8.2", queue_pair_left, NULL},
    {"N8.2-parent", parent_left, NULL},
    {"N8-callback", callback_fails, NULL},
    {"N8-close", left_at_close, NULL},
    {"N8.7", wrong_order, NULL},
    {0},
};
