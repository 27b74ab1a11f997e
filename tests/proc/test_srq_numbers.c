/* SRQ numbers: unique in the process and among processes, as many as there are SRQs, since each carries a
 * number of this process's adapter; and a number that was given back rests. */
#include <stdint.h>

#include "host/adapter.h"
#include "kit.h"
#include "obj/context.h"

enum { MANY = 2 * VB_QPN_INDICES + 100, AGAIN = 200 };

static struct ibv_srq *make(struct ibv_pd *pd)
{
	struct ibv_srq_init_attr a = {.attr = {.max_wr = 1, .max_sge = 1}};
	struct ibv_srq *srq = ibv_create_srq(pd, &a);

	CHECK(srq);
	return srq;
}

static uint32_t number(struct ibv_srq *srq)
{
	uint32_t n = 0;

	CHECK(!ibv_get_srq_num(srq, &n));
	CHECK(n && n == srq->handle);
	return n;
}

static int compare(const void *a, const void *b)
{
	uint32_t x = *(const uint32_t *)a, y = *(const uint32_t *)b;

	return x < y ? -1 : x > y;
}

static bool of_this_adapter(const struct vb_adapter *a, uint32_t srqn)
{
	for (uint32_t k = 0; k < vb_adapter_number_count(a); k++)
		if (vb_adapter_number_at(a, k) == srqn >> VB_QPN_INDEX_BITS)
			return true;
	return false;
}

int main(void)
{
	static struct ibv_srq *srq[MANY];
	static uint32_t n[MANY];
	struct ibv_context *ctx = kit_open();
	const struct vb_adapter *a = vb_context(ctx)->adapter;
	struct ibv_pd *pd = ibv_alloc_pd(ctx);

	CHECK(pd);
	for (int i = 0; i < MANY; i++) {
		srq[i] = make(pd);
		n[i] = number(srq[i]);
		CHECK(of_this_adapter(a, n[i]), "0x%06x", n[i]);
	}
	CHECK(vb_adapter_number_count(a) == 3);
	/* What goes comes back, but none of it at once. */
	for (int i = 0; i < AGAIN; i++)
		CHECK(!ibv_destroy_srq(srq[i]));
	for (int i = 0; i < AGAIN; i++) {
		uint32_t fresh;

		srq[i] = make(pd);
		fresh = number(srq[i]);
		for (int k = 0; k < AGAIN; k++)
			CHECK(fresh != n[k], "0x%06x is given again at once", fresh);
	}
	for (int i = 0; i < AGAIN; i++)
		n[i] = number(srq[i]);
	qsort(n, MANY, sizeof(n[0]), compare);
	for (int i = 1; i < MANY; i++)
		CHECK(n[i] != n[i - 1], "0x%06x twice", n[i]);
	for (int i = 0; i < MANY; i++)
		CHECK(!ibv_destroy_srq(srq[i]));
	/* All are free again: more than there are takes no further adapter number. */
	for (int i = 0; i < 4 * VB_QPN_INDICES; i++)
		CHECK(!ibv_destroy_srq(make(pd)));
	CHECK(vb_adapter_number_count(a) == 3);
	CHECK(!ibv_dealloc_pd(pd));
	CHECK(!ibv_close_device(ctx));
	printf("ok\n");
	return 0;
}
