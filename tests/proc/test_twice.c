/* A protection domain that a program gives back twice, with an allocator that leaves freed memory as it was:
 * the second call fails and says so, and the counts, which sentences and limits go by, stay right. */
#include <errno.h>

#include "kit.h"

/* In place of the C library's: nothing is given out again. */
__attribute__((visibility("default"))) void free(void *p)
{
	(void)p;
}

/* Nothing is freed, so leaks are no news: sanitizers ask this. */
int __lsan_is_turned_off(void);
__attribute__((visibility("default"))) int __lsan_is_turned_off(void)
{
	return 1;
}

int main(void)
{
	struct ibv_parent_domain_init_attr attr = {0};
	struct ibv_pd *pd, *parent;
	struct ibv_context *ctx;

	kit_log_begin("info");
	ctx = kit_open();
	pd = ibv_alloc_pd(ctx);
	CHECK(pd);
	attr.pd = pd;
	parent = ibv_alloc_parent_domain(ctx, &attr);
	CHECK(parent);
	CHECK(!ibv_dealloc_pd(parent) && ibv_dealloc_pd(parent) == EINVAL);
	CHECK(!ibv_dealloc_pd(pd) && ibv_dealloc_pd(pd) == EINVAL);
	CHECK(strstr(kit_log_text(),
		     "ibv_dealloc_pd: the protection domain has been given back before (EINVAL)"));
	pd = ibv_alloc_pd(ctx); /* the limit's count is right as well */
	CHECK(pd);
	CHECK(!ibv_close_device(ctx));
	CHECK(strstr(kit_log_text(), "not destroyed before: 1 protection domain;"), "%s", kit_log_text());
	puts("given back once");
	return 0;
}
