/* Parent domains and thread domains: a parent domain goes wherever its protection domain goes, its callbacks
 * give and take back the memory of queues, and nothing that is still in use goes away. */
#include <errno.h>

#include "kit.h"

/* What the callbacks saw. */
static struct ledger {
	struct ibv_pd *pd;	 /* the domain that they must be called for */
	int allocs, frees, live; /* calls that gave memory; calls that took it back */
	int refuse_at;		 /* this call of alloc (from 1) answers `answer` */
	void *answer;
	int asked; /* calls of alloc in all */
	void *at[8];
	uint64_t type[8];
	size_t shift; /* what is given is so far from aligned */
} book;

static void *book_alloc(struct ibv_pd *pd, void *context, size_t size, size_t alignment, uint64_t type)
{
	void *p;

	CHECK(context == &book && size && alignment && !(alignment & (alignment - 1)) && !(type >> 32));
	if (book.pd)
		CHECK(pd == book.pd);
	if (++book.asked == book.refuse_at)
		return book.answer;
	p = aligned_alloc(alignment, size + alignment);
	CHECK(p && book.live < 8);
	memset(p, 0, size + alignment);
	p = (char *)p + book.shift;
	book.at[book.live] = p;
	book.type[book.live++] = type;
	book.allocs++;
	return p;
}

static void book_free(struct ibv_pd *pd, void *context, void *ptr, uint64_t type)
{
	CHECK(pd == book.pd && context == &book);
	for (int i = 0; i < book.live; i++)
		if (book.at[i] == ptr) {
			CHECK(book.type[i] == type);
			book.at[i] = book.at[--book.live];
			book.type[i] = book.type[book.live];
			book.frees++;
			free((char *)ptr - book.shift);
			return;
		}
	CHECK(!"memory that alloc did not give");
}

static struct ibv_pd *parent_of(struct ibv_pd *pd, struct ibv_td *td)
{
	struct ibv_parent_domain_init_attr a = {.pd = pd,
						.td = td,
						.comp_mask = IBV_PARENT_DOMAIN_INIT_ATTR_ALLOCATORS |
							     IBV_PARENT_DOMAIN_INIT_ATTR_PD_CONTEXT,
						.alloc = book_alloc,
						.free = book_free,
						.pd_context = &book};
	struct ibv_pd *parent = ibv_alloc_parent_domain(pd->context, &a);

	CHECK(parent && parent->context == pd->context);
	book = (struct ledger){.pd = parent};
	return parent;
}

static struct ibv_qp *new_qp(struct ibv_pd *pd, struct ibv_cq *cq, struct ibv_srq *srq)
{
	struct ibv_qp_init_attr a = {
	    .send_cq = cq, .recv_cq = cq, .srq = srq, .qp_type = IBV_QPT_RC, .cap = {64, 64, 4, 4, 64}};

	return ibv_create_qp(pd, &a);
}

static void arguments(struct ibv_context *ctx, struct ibv_pd *pd)
{
	struct ibv_context *other = kit_open();
	struct ibv_pd *far = ibv_alloc_pd(other), *parent;
	struct ibv_td_init_attr ta = {0};
	struct ibv_td *td = ibv_alloc_td(ctx, &ta), *far_td = ibv_alloc_td(other, &ta);
	struct ibv_parent_domain_init_attr a = {0};

#define REFUSED(e) CHECK(!ibv_alloc_parent_domain(ctx, &a) && errno == (e))
	CHECK(far && td && far_td && td->context == ctx);
	ta.comp_mask = 1;
	CHECK(!ibv_alloc_td(ctx, &ta) && errno == EINVAL);
	REFUSED(EINVAL); /* no domain */
	a.pd = far;
	REFUSED(EINVAL);
	a.pd = pd;
	a.td = far_td;
	REFUSED(EINVAL);
	a.td = td;
	a.comp_mask = 8;
	REFUSED(EINVAL);
	a.comp_mask = IBV_PARENT_DOMAIN_INIT_ATTR_ALLOCATORS;
	REFUSED(EINVAL); /* neither callback */
	a.alloc = book_alloc;
	REFUSED(EINVAL); /* no way back */
#undef REFUSED
	/* without its bit a field is not looked at */
	a.comp_mask = 0;
	a.pd_context = &book;
	parent = ibv_alloc_parent_domain(ctx, &a);
	CHECK(parent && parent != pd);

	/* refusals counted nothing; what is used stays */
	CHECK(ibv_dealloc_td(td) == EBUSY && ibv_dealloc_pd(pd) == EBUSY);
	CHECK(!ibv_dealloc_pd(parent));
	CHECK(!ibv_dealloc_td(td) && !ibv_dealloc_td(far_td));
	CHECK(!ibv_dealloc_pd(far) && !ibv_close_device(other));
}

/* Whatever takes a domain takes the parent; its children are the parent's. */
static void stands_for_its_domain(struct ibv_context *ctx, struct ibv_pd *pd)
{
	struct ibv_pd *parent = parent_of(pd, NULL), *upper;
	struct ibv_parent_domain_init_attr nested = {.pd = parent};
	struct ibv_ah_attr av = {.is_global = 1, .port_num = 1};
	static char buf[256];
	struct ibv_mr *mr = ibv_reg_mr(parent, buf, sizeof buf, KIT_ALL);
	struct ibv_ah *ah;

	CHECK(mr && mr->pd == parent && ibv_dealloc_pd(parent) == EBUSY && !ibv_dereg_mr(mr));
	CHECK(!ibv_query_gid(ctx, 1, 0, &av.grh.dgid));
	ah = ibv_create_ah(parent, &av);
	CHECK(ah && ah->pd == parent && ibv_dealloc_pd(parent) == EBUSY && !ibv_destroy_ah(ah));
	upper = ibv_alloc_parent_domain(ctx, &nested);
	CHECK(upper && ibv_dealloc_pd(parent) == EBUSY && !ibv_dealloc_pd(upper));
	CHECK(!book.asked); /* only queues have memory of their own */
	CHECK(!ibv_dealloc_pd(parent));
}

/* Keys of the domain work on a QP of the parent and the other way round: it is one domain. */
static void one_domain(struct ibv_pd *pd)
{
	struct ibv_pd *parent = parent_of(pd, NULL);
	struct kit_end a, b;

	kit_end_open(&a, parent, 8, 4096);
	kit_end_open(&b, pd, 8, 4096);
	kit_connect(&a, &b.card);
	kit_connect(&b, &a.card);
	a.buf[0] = 42;
	CHECK(!kit_post(&a, IBV_WR_RDMA_WRITE, 1, 0, 8, &b.card, 0));
	CHECK(kit_wait(&a, 20).status == IBV_WC_SUCCESS && b.buf[0] == 42);
	for (int i = 0; i < 2; i++) { /* each with the other's L_Key, at either end */
		struct ibv_mr *mine = a.mr;

		a.mr = b.mr;
		b.mr = mine;
		a.card.rkey = b.mr->rkey;
		uint8_t *buf = a.buf;
		a.buf = b.buf;
		b.buf = buf;
		CHECK(!kit_recv(&b, 2, 0, 64));
		CHECK(!kit_post(&a, IBV_WR_SEND, 3, 0, 64, NULL, 0));
		CHECK(kit_wait(&a, 20).status == IBV_WC_SUCCESS);
		CHECK(kit_wait(&b, 20).status == IBV_WC_SUCCESS);
	}
	CHECK(book.allocs == 2 && book.live == 2); /* a's two queues */
	CHECK(ibv_dealloc_pd(parent) == EBUSY);
	kit_end_close(&a);
	kit_end_close(&b);
	CHECK(!book.live && book.frees == 2);
	CHECK(!ibv_dealloc_pd(parent));
}

static void callbacks(struct ibv_context *ctx, struct ibv_pd *pd)
{
	struct ibv_cq *cq = ibv_create_cq(ctx, 16, NULL, NULL, 0);
	struct ibv_srq_init_attr sa = {.attr = {.max_wr = 32, .max_sge = 2}};
	struct ibv_pd *parent = parent_of(pd, NULL);
	struct ibv_srq *srq;
	struct ibv_qp *qp;

	CHECK(cq);
	srq = ibv_create_srq(parent, &sa);
	CHECK(srq && book.live == 1);
	qp = new_qp(parent, cq, srq);
	CHECK(qp && book.live == 2); /* it has no receive queue of its own */
	CHECK(book.type[0] != book.type[1]);
	CHECK(!ibv_destroy_qp(qp) && book.live == 1);
	CHECK(!ibv_destroy_srq(srq) && !book.live && book.frees == 2);

	/* NULL is no memory: nothing is left of the QP, nor of what was given before */
	for (int at = 1; at <= 2; at++) {
		book = (struct ledger){.pd = parent, .refuse_at = at};
		CHECK(!new_qp(parent, cq, NULL) && errno == ENOMEM);
		CHECK(book.allocs == at - 1 && book.frees == at - 1 && !book.live);
	}
	book = (struct ledger){.pd = parent, .refuse_at = 1};
	CHECK(!ibv_create_srq(parent, &sa) && errno == ENOMEM && !book.frees);

	/* the default is ours, and nobody is asked to free it */
	book = (struct ledger){.pd = parent, .refuse_at = 1, .answer = IBV_ALLOCATOR_USE_DEFAULT};
	qp = new_qp(parent, cq, NULL);
	CHECK(qp && book.asked == 2 && book.live == 1 && !ibv_destroy_qp(qp));
	CHECK(book.frees == 1 && !book.live);

	/* not aligned as it was asked for: refused, and given back */
	book = (struct ledger){.pd = parent, .shift = 8};
	CHECK(!new_qp(parent, cq, NULL) && errno == EINVAL);
	CHECK(book.asked == 1 && book.frees == 1);
	CHECK(!ibv_dealloc_pd(parent) && !ibv_destroy_cq(cq));
}

/* With a thread domain, whose promise nothing here depends on. */
static void thread_domain(struct ibv_context *ctx, struct ibv_pd *pd)
{
	struct ibv_td_init_attr ta = {0};
	struct ibv_td *td = ibv_alloc_td(ctx, &ta);
	struct ibv_pd *one, *two;
	struct kit_end e;

	CHECK(td);
	one = parent_of(pd, td);
	two = parent_of(pd, td);
	CHECK(!ibv_dealloc_pd(one) && ibv_dealloc_td(td) == EBUSY);
	kit_end_open(&e, two, 4, 64);
	kit_connect(&e, &e.card);
	CHECK(!kit_post(&e, IBV_WR_RDMA_WRITE, 1, 8, 8, &e.card, 0));
	CHECK(kit_wait(&e, 20).status == IBV_WC_SUCCESS);
	kit_end_close(&e);
	CHECK(!ibv_dealloc_pd(two) && !ibv_dealloc_td(td));
}

/* Closing before destroying is safe, and so is destroying in a forked child. */
static void after_closing_and_forking(void)
{
	struct ibv_context *ctx = kit_open(), *last = kit_open();
	struct ibv_td_init_attr ta = {0};
	struct ibv_td *td = ibv_alloc_td(ctx, &ta);
	struct ibv_pd *pd = ibv_alloc_pd(ctx), *parent;
	struct ibv_parent_domain_init_attr a = {.pd = pd};
	pid_t pid;

	CHECK(td && pd);
	parent = parent_of(pd, td);
	pid = kit_fork();
	if (!pid) {
		CHECK(!ibv_alloc_td(ctx, &ta) && errno == EIO);
		CHECK(!ibv_alloc_parent_domain(ctx, &a) && errno == EIO);
		CHECK(!ibv_dealloc_pd(pd) && !ibv_dealloc_td(td) && !ibv_dealloc_pd(parent));
		_exit(0);
	}
	CHECK(!kit_reap(pid));
	CHECK(!ibv_close_device(ctx));
	CHECK(ibv_dealloc_td(td) == EBUSY && !ibv_dealloc_pd(parent));
	CHECK(!ibv_dealloc_td(td) && !ibv_dealloc_pd(pd));
	CHECK(!ibv_close_device(last));
}

int main(void)
{
	struct ibv_context *ctx = kit_open();
	struct ibv_pd *pd = ibv_alloc_pd(ctx);

	CHECK(pd);
	alarm(120);
	arguments(ctx, pd);
	stands_for_its_domain(ctx, pd);
	one_domain(pd);
	callbacks(ctx, pd);
	thread_domain(ctx, pd);
	CHECK(!ibv_dealloc_pd(pd) && !ibv_close_device(ctx));
	after_closing_and_forking();
	printf("ok\n");
	return 0;
}
