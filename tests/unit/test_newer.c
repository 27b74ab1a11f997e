/* The calls of newer releases: as exported functions, and through the tables as a newer header finds them. */
#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cmocka.h>

#include "bytes.h"
#include "device.h"
#include "kit.h"
#include "refused.h"
#include "mem/access.h"
#include "hca/hca.h"
#include "verbs/verbs.h"

#define RW (IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE)

static struct ibv_context *other;
static struct ibv_pd *pd2;
static uint8_t *mem;

static int open_device(void **state)
{
	int err = kit_device_open(state);

	other = kit_open();
	pd2 = ibv_alloc_pd(ctx);
	mem = mmap(NULL, 4 * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	return !err && pd2 && mem != MAP_FAILED ? 0 : -1;
}

static int close_device(void **state)
{
	munmap(mem, 4 * PAGE);
	return ibv_dealloc_pd(pd2) | ibv_close_device(other) | kit_device_close(state);
}

static enum vb_reason reach(uint32_t key, uint64_t addr, uint64_t len)
{
	struct vb_mem_want w = {.key = key, .pd = vb_pd(pd)->id, .addr = addr, .len = len};

	return vb_mem_check(&vb_hca(vb_context(ctx)->adapter)->keys, &w, NULL);
}

static struct ibv_mr *reg_ex(uint64_t mask, struct ibv_mr_init_attr a)
{
	a.comp_mask = mask;
	return ibv_reg_mr_ex(pd, &a);
}

static void regions_of_an_address(void **state)
{
	struct ibv_mr_init_attr a = {.length = PAGE, .access = RW, .addr = mem, .iova = 0x7000, .fd = -1};
	struct ibv_mr *mr = reg_ex(IBV_REG_MR_MASK_ADDR, a);

	(void)state;
	assert_non_null(mr);
	assert_ptr_equal(mr->addr, mem);
	assert_int_equal(mr->length, PAGE);
	assert_int_equal(reach(mr->lkey, (uintptr_t)mem, PAGE), VB_OK); /* iova does not count */
	assert_int_equal(ibv_dereg_mr(mr), 0);
	mr = reg_ex(IBV_REG_MR_MASK_ADDR | IBV_REG_MR_MASK_IOVA, a);
	assert_non_null(mr);
	assert_int_equal(reach(mr->lkey, 0x7000, PAGE), VB_OK);
	assert_int_equal(reach(mr->lkey, (uintptr_t)mem, PAGE), VB_R_KEY_BOUNDS);
	assert_int_equal(ibv_dereg_mr(mr), 0);
	a.length = 0;
	REFUSED(reg_ex(IBV_REG_MR_MASK_ADDR, a), EINVAL);
	a.length = PAGE;
	a.access = IBV_ACCESS_REMOTE_WRITE;
	REFUSED(reg_ex(IBV_REG_MR_MASK_ADDR, a), EINVAL);
}

static void masks_that_make_no_sense(void **state)
{
	struct ibv_mr_init_attr a = {.length = PAGE, .access = RW, .addr = mem, .fd = -1};
	const uint64_t bad[] = {
	    0,
	    IBV_REG_MR_MASK_IOVA,
	    IBV_REG_MR_MASK_ADDR | IBV_REG_MR_MASK_FD | IBV_REG_MR_MASK_IOVA,
	    IBV_REG_MR_MASK_ADDR | IBV_REG_MR_MASK_FD_OFFSET,
	    IBV_REG_MR_MASK_FD,
	    IBV_REG_MR_MASK_FD | IBV_REG_MR_MASK_IOVA | IBV_REG_MR_MASK_BUF,
	    IBV_REG_MR_MASK_BUF,
	    IBV_REG_MR_MASK_ADDR | IBV_REG_MR_MASK_BUF,	 /* NULL */
	    IBV_REG_MR_MASK_ADDR | IBV_REG_MR_MASK_DMAH, /* NULL */
	    IBV_REG_MR_MASK_ADDR | 1ull << 6,
	    IBV_REG_MR_MASK_ADDR | 1ull << 63,
	};

	(void)state;
	for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++)
		REFUSED(reg_ex(bad[i], a), EINVAL);
	/* a dma-buf's descriptor that is none */
	REFUSED(reg_ex(IBV_REG_MR_MASK_FD | IBV_REG_MR_MASK_IOVA | IBV_REG_MR_MASK_FD_OFFSET, a), EBADF);
	a.fd = 0;
	REFUSED(reg_ex(IBV_REG_MR_MASK_FD | IBV_REG_MR_MASK_IOVA, a), EINVAL);
}

static void dma_handles(void **state)
{
	struct ibv_dmah_init_attr d = {.cpu_id = 1u << 20, .ph = 200, .tph_mem_type = 7}; /* none counts */
	struct ibv_mr_init_attr a = {.length = PAGE, .access = RW, .addr = mem};
	struct ibv_dmah *dmah = ibv_alloc_dmah(ctx, &d), *foreign;
	struct ibv_mr *mr;

	(void)state;
	assert_non_null(dmah);
	assert_ptr_equal(dmah->context, ctx);
	for (uint32_t bit = 1; bit <= 8; bit <<= 1) { /* now each does; the last is unknown */
		d.comp_mask = bit;
		REFUSED(ibv_alloc_dmah(ctx, &d), EINVAL);
	}
	d = (struct ibv_dmah_init_attr){.comp_mask = 7, .cpu_id = 0, .ph = 3, .tph_mem_type = 1};
	foreign = ibv_alloc_dmah(other, &d);
	assert_non_null(foreign);
	a.dmah = foreign;
	REFUSED(reg_ex(IBV_REG_MR_MASK_ADDR | IBV_REG_MR_MASK_DMAH, a), EINVAL);
	assert_int_equal(ibv_dealloc_dmah(foreign), 0);
	a.dmah = dmah;
	mr = reg_ex(IBV_REG_MR_MASK_ADDR | IBV_REG_MR_MASK_DMAH, a);
	assert_non_null(mr);
	assert_int_equal(ibv_dealloc_dmah(dmah), EBUSY);
	assert_int_equal(ibv_dereg_mr(mr), 0);
	a.access |= IBV_ACCESS_ON_DEMAND; /* each for itself is fine */
	REFUSED(reg_ex(IBV_REG_MR_MASK_ADDR | IBV_REG_MR_MASK_DMAH, a), EOPNOTSUPP);
	mr = reg_ex(IBV_REG_MR_MASK_ADDR, a);
	assert_non_null(mr);
	assert_int_equal(ibv_dereg_mr(mr), 0);
	assert_int_equal(ibv_dealloc_dmah(dmah), 0);
}

static void buffers(void **state)
{
	struct ibv_buf *buf = NULL;
	uint8_t *at = ibv_alloc_buf(pd, 3 * PAGE + 10, &buf);
	struct ibv_mr_init_attr a = {.length = PAGE, .access = RW};
	struct ibv_parent_domain_init_attr in = {.pd = pd};
	struct ibv_pd *parent;
	struct ibv_mr *mr;

	(void)state;
	assert_non_null(at);
	assert_non_null(buf);
	memset(at, 1, 3 * PAGE + 10);
	mr = ibv_reg_buf_mr(pd, buf, at + 10, 3 * PAGE, RW);
	assert_non_null(mr);
	assert_int_equal(reach(mr->lkey, (uintptr_t)at + 10, 3 * PAGE), VB_OK);
	assert_int_equal(ibv_dereg_mr(mr), 0);
	REFUSED(ibv_reg_buf_mr(pd, buf, at + 11, 3 * PAGE, RW), EINVAL);
	REFUSED(ibv_reg_buf_mr(pd, buf, at - 1, 2, RW), EINVAL);
	REFUSED(ibv_reg_buf_mr(pd, buf, mem, PAGE, RW), EINVAL);
	REFUSED(ibv_reg_buf_mr(pd2, buf, at, PAGE, RW), EINVAL);
	in.comp_mask = 1u << 3; /* the next bit: none has it yet */
	REFUSED(ibv_alloc_parent_domain(pd->context, &in), EINVAL);
	in.comp_mask = IBV_PARENT_DOMAIN_INIT_ATTR_ALLOW_CC_UNPROTECTED_ALLOC;
	assert_int_equal(in.comp_mask, 1 << 2);
	parent = ibv_alloc_parent_domain(pd->context, &in);
	assert_non_null(parent);
	mr = ibv_reg_buf_mr(parent, buf, at, PAGE, RW);
	assert_non_null(mr);
	assert_int_equal(ibv_dereg_mr(mr), 0);
	assert_int_equal(ibv_dealloc_pd(parent), 0);
	a.buf = buf;
	a.addr = at + PAGE;
	mr = reg_ex(IBV_REG_MR_MASK_ADDR | IBV_REG_MR_MASK_BUF, a);
	assert_non_null(mr);
	assert_int_equal(ibv_dereg_mr(mr), 0);
	a.length = 3 * PAGE;
	REFUSED(reg_ex(IBV_REG_MR_MASK_ADDR | IBV_REG_MR_MASK_BUF, a), EINVAL);
	errno = 0;
	assert_int_equal(ibv_export_buf_dmabuf_fd(buf), -1);
	assert_int_equal(errno, ENODATA);
	assert_int_equal(ibv_dealloc_pd(pd), EBUSY);
	ibv_free_buf(buf);
	ibv_free_buf(NULL);
	REFUSED(ibv_alloc_buf(pd, 0, &buf), EINVAL);
	REFUSED(ibv_alloc_buf(pd, SIZE_MAX, &buf), ENOMEM);
}

static void the_ports_speed(void **state)
{
	uint64_t speed = 0;

	(void)state;
	assert_int_equal(ibv_query_port_speed(ctx, 1, &speed), 0);
	assert_int_equal(speed, 1000); /* 4 lanes of 25 Gb/s */
	assert_int_equal(ibv_query_port_speed(ctx, 2, &speed), EINVAL);
}

/* A newer header finds `struct verbs_context` from its end, which is the ibv_context: these stand below what
 * Debian 12 knows, and `sz` tells that they are there. */
struct newer_verbs_context {
	void (*free_buf)(struct ibv_buf *buf);
	void *(*alloc_buf)(struct ibv_pd *pd, size_t size, struct ibv_buf **buf);
	int (*dm_export_dmabuf_fd)(struct ibv_dm *dm);
	struct ibv_mr *(*reg_mr_ex)(struct ibv_pd *pd, struct ibv_mr_init_attr *attr);
	int (*dealloc_dmah)(struct ibv_dmah *dmah);
	struct ibv_dmah *(*alloc_dmah)(struct ibv_context *context, struct ibv_dmah_init_attr *attr);
	struct verbs_context older;
};

static void through_the_tables(void **state)
{
	struct newer_verbs_context *v =
	    (struct newer_verbs_context *)((char *)(ctx + 1) - sizeof(struct newer_verbs_context));
	struct ibv_dmah_init_attr d = {0};
	struct ibv_mr_init_attr a = {.length = PAGE,
				     .access = RW,
				     .comp_mask =
					 IBV_REG_MR_MASK_ADDR | IBV_REG_MR_MASK_DMAH | IBV_REG_MR_MASK_BUF};
	struct ibv_mr *mr;

	(void)state;
	assert_true(v->older.sz >= sizeof(*v));
	assert_ptr_equal(&v->older.context, ctx);
	a.dmah = v->alloc_dmah(ctx, &d);
	assert_non_null(a.dmah);
	a.addr = v->alloc_buf(pd, PAGE, &a.buf);
	assert_non_null(a.addr);
	mr = v->reg_mr_ex(pd, &a);
	assert_non_null(mr);
	assert_int_equal(ibv_dereg_mr(mr), 0);
	v->free_buf(a.buf);
	assert_int_equal(v->dealloc_dmah(a.dmah), 0);
	errno = 0;
	assert_int_equal(v->dm_export_dmabuf_fd(NULL), -1);
	assert_int_equal(errno, EOPNOTSUPP);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
	    cmocka_unit_test(regions_of_an_address), cmocka_unit_test(masks_that_make_no_sense),
	    cmocka_unit_test(dma_handles),	     cmocka_unit_test(buffers),
	    cmocka_unit_test(the_ports_speed),	     cmocka_unit_test(through_the_tables),
	};

	return cmocka_run_group_tests(tests, open_device, close_device);
}
