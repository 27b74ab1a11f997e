/* Registration, call by call: which arguments are refused with which errno, what a refusal leaves behind
 * (nothing), and what the region says of itself.  On-demand and null regions, advice and re-registration
 * are calls of that kind too; what traffic does with them is tests/proc's. */
#include <errno.h>
#include <fcntl.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

#include "bytes.h"
#include "device.h"
#include "huge.h"
#include "kit.h"
#include "refused.h"
#include "hca/hca.h"
#include "verbs/verbs.h"

#define HUGE	      (2ul << 20)
#define NEGATIVE_PAGE (0 - (uint64_t)PAGE)

enum {
	LW = IBV_ACCESS_LOCAL_WRITE,
	RW = IBV_ACCESS_REMOTE_WRITE,
	RR = IBV_ACCESS_REMOTE_READ,
	RA = IBV_ACCESS_REMOTE_ATOMIC,
	OD = IBV_ACCESS_ON_DEMAND,
	HT = IBV_ACCESS_HUGETLB,
};

static struct ibv_context *other;

static int open_device(void **state)
{
	other = kit_open();
	return kit_device_open(state);
}

static int close_device(void **state)
{
	return ibv_close_device(other) | kit_device_close(state);
}

/* After each test: whatever was refused has left nothing behind. */
static int nothing_is_left(void **state)
{
	struct vb_keys *keys = &vb_hca(vb_context(ctx)->adapter)->keys;

	(void)state;
	return keys->plain.live || atomic_load(&vb_pd(pd)->refs) ? -1 : 0;
}

static void *pages(int prot, unsigned n)
{
	void *p = mmap(NULL, n * PAGE, prot, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

	assert_ptr_not_equal(p, MAP_FAILED);
	return p;
}

static unsigned resident(void *p, unsigned n)
{
	unsigned char *v = calloc(n, 1);
	unsigned sum = 0;

	assert_non_null(v);
	assert_int_equal(mincore(p, (size_t)n * PAGE, v), 0);
	for (unsigned i = 0; i < n; i++)
		sum += v[i] & 1;
	free(v);
	return sum;
}

static void fine(void *addr, size_t length, unsigned access)
{
	struct ibv_mr *mr = ibv_reg_mr_iova2(pd, addr, length, (uintptr_t)addr, access);

	if (!mr)
		fail_msg("access 0x%x: errno %d", access, errno);
	assert_ptr_equal(mr->context, ctx);
	assert_ptr_equal(mr->pd, pd);
	assert_ptr_equal(mr->addr, addr);
	assert_int_equal(mr->length, length);
	assert_int_not_equal(mr->lkey, mr->rkey);
	assert_true(mr->lkey && mr->rkey);
	assert_int_equal(ibv_dealloc_pd(pd), EBUSY); /* rule 37 */
	assert_int_equal(ibv_dereg_mr(mr), 0);
}

/* Whether a set of flags is one that may be given for a range of small pages. */
static int verdict(unsigned access)
{
	if (access & ~0x3ffu & ~IBV_ACCESS_OPTIONAL_RANGE)
		return EINVAL;
	if (access & IBV_ACCESS_FLUSH_PERSISTENT) /* of which there is no memory */
		return EOPNOTSUPP;
	if (access & (RW | RA) && !(access & LW))
		return EINVAL;
	return access & HT ? EINVAL : 0;
}

static void rule_42_every_combination_of_flags(void **state)
{
	char *p = pages(PROT_READ | PROT_WRITE, 1);

	(void)state;
	for (unsigned access = 0; access < 0x800; access++) {
		for (unsigned optional = 0; optional < 2; optional++) {
			unsigned a = access | (optional ? IBV_ACCESS_RELAXED_ORDERING : 0);

			if (verdict(a))
				REFUSED(ibv_reg_mr_iova2(pd, p, 100, (uintptr_t)p, a), verdict(a));
			else
				fine(p, 100, a);
		}
	}
	for (unsigned bit = 10; bit < 32; bit++) {
		unsigned a = 1u << bit;

		if (a & IBV_ACCESS_OPTIONAL_RANGE)
			fine(p, 100, a | LW);
		else
			REFUSED(ibv_reg_mr_iova2(pd, p, 100, (uintptr_t)p, a | LW), EINVAL);
	}
	fine(p, 100, IBV_ACCESS_OPTIONAL_RANGE);
	munmap(p, PAGE);
}

static void rule_42_memory_must_be_there(void **state)
{
	char *rw = pages(PROT_READ | PROT_WRITE, 3), *none = pages(PROT_NONE, 1);

	(void)state;
	REFUSED(ibv_reg_mr(pd, none, 1, 0), EFAULT);
	/* a hole in the middle */
	munmap(rw + PAGE, PAGE);
	REFUSED(ibv_reg_mr(pd, rw, 3 * PAGE, 0), EFAULT);
	REFUSED(ibv_reg_mr(pd, rw, 3 * PAGE, LW), EFAULT);
	REFUSED(ibv_reg_mr(pd, rw + 10, PAGE, LW), EFAULT);
	REFUSED(ibv_reg_mr(pd, rw + 2 * PAGE - 1, 2, LW), EFAULT); /* begins in the hole */
	fine(rw + 10, PAGE - 10, LW);
	fine(rw + 2 * PAGE, PAGE, LW | RW | RR | RA);
	munmap(rw, PAGE);
	munmap(rw + 2 * PAGE, PAGE);
	munmap(none, PAGE);
}

static void rule_42_read_only_memory(void **state)
{
	char *ro = pages(PROT_READ, 2), *rw = pages(PROT_READ | PROT_WRITE, 2);

	(void)state;
	fine(ro, PAGE, 0);
	fine(ro, PAGE, RR);
	REFUSED(ibv_reg_mr(pd, ro, PAGE, LW), EFAULT);
	REFUSED(ibv_reg_mr(pd, ro, PAGE, LW | RW | RR), EFAULT);
	/* only the second page is */
	assert_int_equal(mprotect(rw + PAGE, PAGE, PROT_READ), 0);
	REFUSED(ibv_reg_mr(pd, rw, 2 * PAGE, LW), EFAULT);
	fine(rw, PAGE, LW);
	fine(rw, 2 * PAGE, RR);
	munmap(ro, 2 * PAGE);
	munmap(rw, 2 * PAGE);
}

/* A file's page behind its end is mapped but has no memory. */
static void rule_42_page_behind_a_files_end(void **state)
{
	int fd = memfd_create("short", MFD_CLOEXEC);
	char *p;

	(void)state;
	assert_true(fd >= 0);
	assert_int_equal(ftruncate(fd, PAGE), 0);
	p = mmap(NULL, 2 * PAGE, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	assert_ptr_not_equal(p, MAP_FAILED);
	REFUSED(ibv_reg_mr(pd, p, 2 * PAGE, LW), EFAULT);
	REFUSED(ibv_reg_mr(pd, p + PAGE, 1, 0), EFAULT);
	fine(p, PAGE, LW);
	munmap(p, 2 * PAGE);
	close(fd);
}

static void rule_42_lengths_and_boundaries(void **state)
{
	char *p = pages(PROT_READ | PROT_WRITE, 3);
	volatile size_t whole = SIZE_MAX;

	(void)state;
	/* one page alone; what is unmapped might be mapped by somebody else at once */
	assert_int_equal(mprotect(p, PAGE, PROT_NONE) | mprotect(p + 2 * PAGE, PAGE, PROT_NONE), 0);
	p += PAGE;
	for (unsigned od = 0; od <= OD; od += OD) {
		REFUSED(ibv_reg_mr(pd, p, 0, LW | (int)od), EINVAL);
		REFUSED(ibv_reg_mr(pd, NULL, 0, (int)od), EINVAL);
		REFUSED(ibv_reg_mr(pd, p, whole, LW | (int)od), EINVAL); /* wraps around */
		REFUSED(ibv_reg_mr(pd, p, whole - (uintptr_t)p + 2, (int)od), EINVAL);
		fine(p, 1, LW | od);
		fine(p + PAGE - 1, 1, LW | od);
		fine(p, PAGE, LW | od);
	}
	REFUSED(ibv_reg_mr(pd, p - 1, 1, 0), EFAULT);
	REFUSED(ibv_reg_mr(pd, p + PAGE, 1, 0), EFAULT);
	REFUSED(ibv_reg_mr(pd, p - 1, PAGE + 1, 0), EFAULT);
	REFUSED(ibv_reg_mr(pd, p, PAGE + 1, 0), EFAULT);
	REFUSED(ibv_reg_mr(pd, NULL, PAGE, 0), EFAULT);
	REFUSED(ibv_reg_mr(pd, NULL, whole, 0), EFAULT); /* implicit only if on demand */
	REFUSED(ibv_reg_mr(pd, (void *)(uintptr_t)NEGATIVE_PAGE, 8, 0), EFAULT);
	REFUSED(ibv_reg_mr(pd, (void *)(uintptr_t)NEGATIVE_PAGE, PAGE, 0), EFAULT); /* its very end */
	REFUSED(ibv_reg_mr(pd, (void *)(uintptr_t)NEGATIVE_PAGE, PAGE + 1, 0), EINVAL);
	REFUSED(ibv_reg_mr(pd, (void *)(1ull << 47), PAGE, 0), EFAULT);
	REFUSED(ibv_reg_mr(NULL, p, PAGE, 0), EINVAL);
	REFUSED(ibv_reg_mr_relaxed(NULL, p, PAGE, 0), EINVAL);
	fine((void *)PAGE, 1ull << 47, OD); /* rule 50: max_mr_size */
	REFUSED(ibv_reg_mr(pd, (void *)PAGE, (1ull << 47) + 1, OD), EINVAL);
	REFUSED(ibv_reg_mr(pd, (void *)1, whole, OD), EINVAL);
	munmap(p - PAGE, 3 * PAGE);
}

static uint64_t iova_of(struct ibv_mr *mr)
{
	struct vb_key_spec s;

	assert_true(vb_key_look(&vb_hca(vb_context(ctx)->adapter)->keys, mr->lkey, &s));
	return s.iova;
}

static void rule_43_iova(void **state)
{
	char *p = pages(PROT_READ | PROT_WRITE, 2);
	struct ibv_mr *mr;

	(void)state;
	mr = ibv_reg_mr_iova(pd, p + 64, 100, 0x7000040, LW);
	assert_non_null(mr);
	assert_ptr_equal(mr->addr, p + 64);
	assert_true(iova_of(mr) == 0x7000040);
	assert_int_equal(ibv_dereg_mr(mr), 0);
	mr = ibv_reg_mr_iova(pd, p + 64, 100, 0x7000041, LW); /* no page lists here */
	assert_non_null(mr);
	assert_true(iova_of(mr) == 0x7000041);
	assert_int_equal(ibv_dereg_mr(mr), 0);
	REFUSED(ibv_reg_mr_iova2(pd, p, PAGE, NEGATIVE_PAGE + 64, 0), EINVAL);
	REFUSED(ibv_reg_mr_iova2(pd, p, 2 * PAGE, NEGATIVE_PAGE, 0), EINVAL); /* passes 2^64 */
	mr = ibv_reg_mr_iova2(pd, p, PAGE, NEGATIVE_PAGE, 0);		      /* just ends there */
	assert_non_null(mr);
	assert_int_equal(ibv_dereg_mr(mr), 0);
	munmap(p, 2 * PAGE);
}

static void rule_43_hca_va_0_is_zero_based(void **state)
{
	char *p = pages(PROT_READ | PROT_WRITE, 1);
	struct ibv_mr *a = ibv_reg_mr(pd, p + 64, 100, LW | IBV_ACCESS_ZERO_BASED);
	struct ibv_mr *b = ibv_reg_mr_iova(pd, p + 64, 100, 0, LW);
	struct ibv_mr *c = ibv_reg_mr_iova(pd, p + 64, 100, 0x4040, LW | IBV_ACCESS_ZERO_BASED);

	(void)state;
	assert_true(a && b && c);
	assert_true(iova_of(a) == 0 && iova_of(b) == 0 && iova_of(c) == 0);
	assert_ptr_equal(a->addr, p + 64); /* the struct tells where the memory is */
	assert_int_equal(ibv_dereg_mr(a) | ibv_dereg_mr(b) | ibv_dereg_mr(c), 0);
	munmap(p, PAGE);
}

/* Registered without on-demand paging, all pages are there; with it, none of them because of it. */
static void on_demand_makes_nothing_present(void **state)
{
	enum { N = 64 };
	char *p = pages(PROT_READ | PROT_WRITE, N);

	(void)state;
	fine(p, N * PAGE, LW | OD | RW | RR);
	assert_int_equal(resident(p, N), 0);
	fine(p + PAGE, 2 * PAGE, LW);
	assert_int_equal(resident(p, N), 2);
	fine(p, N * PAGE, LW);
	assert_int_equal(resident(p, N), N);
	munmap(p, N * PAGE);
}

/* Nothing needs to be there, and everything may be read-only. */
static void on_demand_registers_anything(void **state)
{
	char *p = pages(PROT_READ, 3);

	(void)state;
	fine(p, PAGE, LW | OD);
	assert_int_equal(mprotect(p, PAGE, PROT_NONE), 0);
	fine(p, PAGE, LW | RW | OD);
	munmap(p + PAGE, PAGE);
	fine(p, 3 * PAGE, LW | RW | RR | RA | OD);
	munmap(p, 3 * PAGE);
	fine(p, 3 * PAGE, OD);
	fine(p, 1ul << 40, OD);
	/* 2^64 is in it, whatever its keys begin with */
	REFUSED(ibv_reg_mr(pd, (void *)(UINTPTR_MAX - PAGE + 1), 2 * PAGE, OD), EINVAL);
	REFUSED(ibv_reg_mr_iova(pd, (void *)(UINTPTR_MAX - PAGE + 1), 2 * PAGE, PAGE, OD), EINVAL);
	REFUSED(ibv_reg_mr(pd, p, PAGE, RW | OD), EINVAL);
}

static void implicit_region(void **state)
{
	struct ibv_mr *mr = ibv_reg_mr(pd, NULL, SIZE_MAX, OD | LW | RW | RR | RA);

	(void)state;
	assert_non_null(mr);
	assert_null(mr->addr);
	assert_true(mr->length == SIZE_MAX);
	assert_int_equal(ibv_dereg_mr(mr), 0);
	fine(NULL, SIZE_MAX, OD);
	mr = ibv_reg_mr(pd, NULL, SIZE_MAX, OD | IBV_ACCESS_ZERO_BASED); /* which it is */
	assert_non_null(mr);
	assert_int_equal(ibv_dereg_mr(mr), 0);
	REFUSED(ibv_reg_mr(pd, NULL, SIZE_MAX, OD | RW), EINVAL);
	REFUSED(ibv_reg_mr(pd, NULL, SIZE_MAX, OD | HT | LW), EINVAL);
	REFUSED(ibv_reg_mr_iova(pd, NULL, SIZE_MAX, 1, OD), EINVAL);
	REFUSED(ibv_reg_mr_iova(pd, NULL, SIZE_MAX, PAGE, OD), EINVAL);
	REFUSED(ibv_reg_mr(pd, (void *)2, SIZE_MAX, OD), EINVAL);
}

/* A promise that the mapping does not keep. */
static void hugetlb_is_checked(void **state)
{
	char *p = pages(PROT_READ | PROT_WRITE, 4);

	(void)state;
	REFUSED(ibv_reg_mr(pd, p, PAGE, HT), EINVAL); /* only with on-demand paging */
	REFUSED(ibv_reg_mr(pd, p, PAGE, HT | LW), EINVAL);
	REFUSED(ibv_reg_mr(pd, p, PAGE, HT | OD), EINVAL);
	REFUSED(ibv_reg_mr(pd, p, PAGE, HT | OD | LW), EINVAL);
	munmap(p, 4 * PAGE);
	REFUSED(ibv_reg_mr(pd, p, PAGE, HT | OD), EINVAL); /* nothing is there */
}

static void hugetlb_pages(void **state)
{
	char *p =
	    mmap(NULL, 2 * HUGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_HUGETLB, -1, 0);
	char *small;

	(void)state;
	if (p == MAP_FAILED) {
		print_message("SKIP: this machine gives no huge pages\n");
		skip();
	}
	fine(p, 2 * HUGE, HT | OD | LW | RW);
	fine(p + 100, 5, HT | OD);
	fine(p + HUGE - 1, 2, HT | OD);
	REFUSED(ibv_reg_mr(pd, p, HUGE, HT | LW), EINVAL);
	fine(p, HUGE, OD | LW);
	/* the promise holds for the first half only */
	munmap(p + HUGE, HUGE);
	REFUSED(ibv_reg_mr(pd, p, 2 * HUGE, HT | OD), EINVAL);
	small = mmap(p + HUGE, PAGE, PROT_READ | PROT_WRITE,
		     MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED_NOREPLACE, -1, 0);
	if (small == p + HUGE) {
		REFUSED(ibv_reg_mr(pd, p, HUGE + 1, HT | OD), EINVAL);
		fine(p, HUGE, HT | OD);
	}
	munmap(p, HUGE);
	munmap(small, PAGE);
}

static void what_the_device_says_of_on_demand(void **state)
{
	const uint32_t rc = IBV_ODP_SUPPORT_SEND | IBV_ODP_SUPPORT_RECV | IBV_ODP_SUPPORT_WRITE |
			    IBV_ODP_SUPPORT_READ | IBV_ODP_SUPPORT_ATOMIC | IBV_ODP_SUPPORT_SRQ_RECV |
			    IBV_ODP_SUPPORT_FLUSH | 1 << 7 /* ATOMIC WRITE, of newer headers */;
	struct ibv_device_attr_ex a;

	(void)state;
	assert_int_equal(ibv_query_device_ex(ctx, NULL, &a), 0);
	/* FLUSH_GLOBAL, ATOMIC_WRITE; no memory is persistent */
	assert_int_equal(a.device_cap_flags_ex >> 38 & 7, 1 | 4);
	assert_int_equal(a.odp_caps.general_caps, IBV_ODP_SUPPORT | IBV_ODP_SUPPORT_IMPLICIT);
	assert_int_equal(a.odp_caps.per_transport_caps.rc_odp_caps, rc);
	assert_int_equal(a.xrc_odp_caps, rc);
	assert_int_equal(a.odp_caps.per_transport_caps.uc_odp_caps,
			 IBV_ODP_SUPPORT_SEND | IBV_ODP_SUPPORT_RECV | IBV_ODP_SUPPORT_WRITE);
	assert_int_equal(a.odp_caps.per_transport_caps.ud_odp_caps,
			 IBV_ODP_SUPPORT_SEND | IBV_ODP_SUPPORT_RECV | IBV_ODP_SUPPORT_SRQ_RECV);
}

/* --- ibv_advise_mr() */

enum {
	PREFETCH = IBV_ADVISE_MR_ADVICE_PREFETCH,
	WRITE = IBV_ADVISE_MR_ADVICE_PREFETCH_WRITE,
	NO_FAULT = IBV_ADVISE_MR_ADVICE_PREFETCH_NO_FAULT,
	FLUSH = IBV_ADVISE_MR_FLAG_FLUSH
};

static int advise(struct ibv_pd *p, int advice, uint32_t flags, void *addr, uint32_t len, uint32_t lkey)
{
	struct ibv_sge s = {(uintptr_t)addr, len, lkey};

	return ibv_advise_mr(p, (enum ibv_advise_mr_advice)advice, flags, &s, 1);
}

static void advice_makes_pages_present(void **state)
{
	enum { N = 16 };
	char *p = pages(PROT_READ | PROT_WRITE, N);
	struct ibv_mr *mr = ibv_reg_mr(pd, p, N * PAGE, OD | LW);
	struct ibv_mr *zero = ibv_reg_mr_iova(pd, p, N * PAGE, 0, OD | LW);
	struct ibv_mr *all = ibv_reg_mr(pd, NULL, SIZE_MAX, OD);
	struct ibv_sge list[2];

	(void)state;
	assert_true(mr && zero && all);
	for (uint32_t flags = 0; flags <= FLUSH; flags += FLUSH) {
		assert_int_equal(madvise(p, N * PAGE, MADV_DONTNEED), 0);
		assert_int_equal(advise(pd, NO_FAULT, flags, p, N * PAGE, mr->lkey), 0);
		assert_int_equal(resident(p, N), 0);
		assert_int_equal(advise(pd, WRITE, flags, p + PAGE - 1, 2, mr->lkey), 0);
		assert_int_equal(resident(p, N), 2);
		assert_int_equal(advise(pd, PREFETCH, flags, p, 3 * PAGE, mr->lkey), 0);
		assert_int_equal(resident(p, N), 3);
		assert_int_equal(advise(pd, WRITE, flags, (void *)(uintptr_t)(4 * PAGE), 1, zero->lkey), 0);
		assert_int_equal(resident(p, N), 4);
		assert_int_equal(advise(pd, PREFETCH, flags, p + 5 * PAGE, PAGE, all->lkey), 0);
		assert_int_equal(resident(p, N), 5);
		list[0] = (struct ibv_sge){(uintptr_t)p + 8 * PAGE, PAGE, mr->lkey};
		list[1] = (struct ibv_sge){9 * PAGE, 2 * PAGE, zero->lkey};
		assert_int_equal(ibv_advise_mr(pd, IBV_ADVISE_MR_ADVICE_PREFETCH_WRITE, flags, list, 2), 0);
		assert_int_equal(resident(p, N), 8);
		assert_int_equal(advise(pd, PREFETCH, flags, p, 0, mr->lkey), 0);
	}
	assert_int_equal(ibv_dereg_mr(mr) | ibv_dereg_mr(zero) | ibv_dereg_mr(all), 0);
	munmap(p, N * PAGE);
}

static void advice_with_wrong_arguments(void **state)
{
	char *p = pages(PROT_READ | PROT_WRITE, 2);
	struct ibv_mr *mr = ibv_reg_mr(pd, p, 2 * PAGE, OD | LW), *ro = ibv_reg_mr(pd, p, PAGE, OD);
	struct ibv_mr *pinned = ibv_reg_mr(pd, p, PAGE, LW), *gone = ibv_reg_mr(pd, p, PAGE, OD);
	struct ibv_pd *pd2 = ibv_alloc_pd(ctx);
	struct ibv_sge list[2] = {{(uintptr_t)p, PAGE, mr->lkey}, {(uintptr_t)p, PAGE, 0}};
	uint32_t dead = gone->lkey;
	volatile int unknown = 77;

	(void)state;
	assert_int_equal(ibv_dereg_mr(gone), 0);
	assert_int_equal(madvise(p, 2 * PAGE, MADV_DONTNEED), 0);
	assert_int_equal(advise(pd, unknown, FLUSH, p, 1, mr->lkey), ENOTSUP);
	assert_int_equal(advise(pd, PREFETCH, FLUSH | 2, p, 1, mr->lkey), EINVAL);
	assert_int_equal(ibv_advise_mr(pd, IBV_ADVISE_MR_ADVICE_PREFETCH, FLUSH, list, 0), EINVAL);
	assert_int_equal(ibv_advise_mr(pd, IBV_ADVISE_MR_ADVICE_PREFETCH, FLUSH, NULL, 1), EINVAL);
	assert_int_equal(advise(pd, PREFETCH, FLUSH, p, 1, 0), ENOENT);
	assert_int_equal(advise(pd, PREFETCH, FLUSH, p, 1, dead), ENOENT);
	assert_int_equal(advise(pd, PREFETCH, FLUSH, p, 1, mr->lkey ^ 0x55), ENOENT);
	assert_int_equal(advise(pd, PREFETCH, FLUSH, p, 1, mr->rkey), ENOENT);
	assert_int_equal(advise(pd, PREFETCH, FLUSH, p, 1, pinned->lkey), ENOENT); /* not an ODP region */
	assert_int_equal(advise(pd2, PREFETCH, FLUSH, p, 1, mr->lkey), EPERM);
	assert_int_equal(advise(pd, WRITE, FLUSH, p, 1, ro->lkey), EPERM);
	assert_int_equal(advise(pd, PREFETCH, FLUSH, p - 1, 1, mr->lkey), EFAULT);
	assert_int_equal(advise(pd, PREFETCH, FLUSH, p + 2 * PAGE, 1, mr->lkey), EFAULT);
	assert_int_equal(advise(pd, PREFETCH, FLUSH, p, 2 * PAGE + 1, mr->lkey), EFAULT);
	assert_int_equal(advise(pd, NO_FAULT, 0, p, 2 * PAGE + 1, mr->lkey), EFAULT);
	assert_int_equal(ibv_advise_mr(pd, IBV_ADVISE_MR_ADVICE_PREFETCH, FLUSH, list, 2), ENOENT);
	assert_int_equal(resident(p, 2), 0); /* and none of this has touched anything */
	munmap(p + PAGE, PAGE);
	assert_int_equal(advise(pd, PREFETCH, FLUSH, p, PAGE + 1, mr->lkey), EFAULT); /* a hole */
	assert_int_equal(advise(pd, NO_FAULT, FLUSH, p, PAGE + 1, mr->lkey), EFAULT);
	assert_int_equal(mprotect(p, PAGE, PROT_READ), 0);
	assert_int_equal(advise(pd, WRITE, FLUSH, p, 1, mr->lkey), EFAULT);
	assert_int_equal(advise(pd, PREFETCH, FLUSH, p, 1, mr->lkey), 0);
	assert_int_equal(ibv_dereg_mr(mr) | ibv_dereg_mr(ro) | ibv_dereg_mr(pinned) | ibv_dealloc_pd(pd2), 0);
	munmap(p, PAGE);
}

/* --- ibv_alloc_null_mr() */

static void null_region(void **state)
{
	struct ibv_mr *mr = ibv_alloc_null_mr(pd), *second = ibv_alloc_null_mr(pd);
	char *p = pages(PROT_READ | PROT_WRITE, 1);

	(void)state;
	assert_non_null(mr);
	assert_non_null(second);
	assert_true(mr->length == SIZE_MAX); /* the maximum */
	assert_null(mr->addr);
	assert_ptr_equal(mr->pd, pd);
	assert_ptr_equal(mr->context, ctx);
	assert_int_not_equal(mr->lkey, 0);
	assert_int_equal(mr->rkey, 0); /* not exposed */
	assert_int_equal(ibv_dealloc_pd(pd), EBUSY);
	errno = 0;
	assert_int_equal(ibv_rereg_mr(mr, IBV_REREG_MR_CHANGE_TRANSLATION, NULL, p, PAGE, 0),
			 IBV_REREG_MR_ERR_INPUT);
	assert_int_equal(errno, EINVAL);
	assert_int_equal(ibv_dereg_mr(mr) | ibv_dereg_mr(second), 0);
	munmap(p, PAGE);
}

/* --- ibv_rereg_mr() */

static struct vb_key_spec meaning(const struct ibv_mr *mr)
{
	struct vb_key_spec s;

	assert_true(vb_key_look(&vb_hca(vb_context(ctx)->adapter)->keys, mr->lkey, &s));
	return s;
}

static void rule_45_refused_and_unchanged(struct ibv_mr *mr, int flags, struct ibv_pd *to, void *addr,
					  size_t length, int access, int err)
{
	struct vb_key_spec before = meaning(mr), after;
	struct ibv_mr copy = *mr;

	errno = 0;
	assert_int_equal(ibv_rereg_mr(mr, flags, to, addr, length, access), IBV_REREG_MR_ERR_INPUT);
	assert_int_equal(errno, err);
	after = meaning(mr);
	assert_memory_equal(&copy, mr, sizeof(copy));
	assert_true(before.pd == after.pd && before.access == after.access && before.iova == after.iova &&
		    before.addr == after.addr && before.length == after.length && before.kind == after.kind);
}

enum {
	TRANSLATION = IBV_REREG_MR_CHANGE_TRANSLATION,
	PD = IBV_REREG_MR_CHANGE_PD,
	ACCESS = IBV_REREG_MR_CHANGE_ACCESS
};

static void rule_45_rereg_refuses_and_keeps(void **state)
{
	char *p = pages(PROT_READ | PROT_WRITE, 2), *ro = pages(PROT_READ, 1), *none = pages(PROT_NONE, 1);
	struct ibv_mr *mr = ibv_reg_mr(pd, p, PAGE, LW | RR), *weak = ibv_reg_mr(pd, ro, PAGE, 0);
	struct ibv_pd *foreign = ibv_alloc_pd(other);

	(void)state;
	assert_true(mr && weak && foreign);
	rule_45_refused_and_unchanged(mr, 0, pd, p, PAGE, LW, EINVAL);
	rule_45_refused_and_unchanged(mr, 8, pd, p, PAGE, LW, EINVAL);
	rule_45_refused_and_unchanged(mr, 8 | ACCESS, pd, p, PAGE, LW, EINVAL);
	rule_45_refused_and_unchanged(mr, TRANSLATION, NULL, NULL, PAGE, 0, EINVAL);
	rule_45_refused_and_unchanged(mr, TRANSLATION, NULL, p, 0, 0, EINVAL);
	rule_45_refused_and_unchanged(mr, TRANSLATION, NULL, p, SIZE_MAX, 0, EINVAL);
	rule_45_refused_and_unchanged(mr, TRANSLATION, NULL, p, PAGE, LW,
				      EINVAL); /* access, but not its flag */
	rule_45_refused_and_unchanged(mr, PD, NULL, NULL, 0, 0, EINVAL);
	rule_45_refused_and_unchanged(mr, PD, foreign, NULL, 0, 0, EINVAL);
	rule_45_refused_and_unchanged(mr, ACCESS, NULL, NULL, 0, RW, EINVAL);
	rule_45_refused_and_unchanged(mr, ACCESS, NULL, NULL, 0, RA, EINVAL);
	rule_45_refused_and_unchanged(mr, ACCESS, NULL, NULL, 0, 1 << 10, EINVAL);
	rule_45_refused_and_unchanged(mr, ACCESS, NULL, NULL, 0, HT, EINVAL);
	/* the new range, by the access in force */
	rule_45_refused_and_unchanged(mr, TRANSLATION, NULL, none, PAGE, 0, EFAULT);
	rule_45_refused_and_unchanged(mr, TRANSLATION, NULL, ro, PAGE, 0, EFAULT);
	rule_45_refused_and_unchanged(mr, TRANSLATION | PD | ACCESS, pd, none, PAGE, 0, EFAULT);
	/* the old range, by the new access */
	rule_45_refused_and_unchanged(weak, ACCESS, NULL, NULL, 0, LW, EFAULT);
	assert_int_equal(ibv_dereg_mr(mr) | ibv_dereg_mr(weak) | ibv_dealloc_pd(foreign), 0);
	munmap(p, 2 * PAGE);
	munmap(ro, PAGE);
	munmap(none, PAGE);
}

static void rule_45_every_combination_of_changes(void **state)
{
	char *p = pages(PROT_READ | PROT_WRITE, 2), *q = pages(PROT_READ | PROT_WRITE, 3);
	struct ibv_pd *pd2 = ibv_alloc_pd(ctx);

	(void)state;
	for (int flags = 1; flags < 8; flags++) {
		struct ibv_mr *mr = ibv_reg_mr(pd, p, 2 * PAGE, LW | RR);
		uint32_t lkey = mr->lkey, rkey = mr->rkey;
		bool t = flags & TRANSLATION, d = flags & PD, a = flags & ACCESS;
		struct vb_key_spec s;

		assert_int_equal(madvise(q, 3 * PAGE, MADV_DONTNEED), 0);
		assert_int_equal(ibv_rereg_mr(mr, flags, d ? pd2 : NULL, t ? q + 8 : NULL, t ? 2 * PAGE : 0,
					      a ? LW | RW : 0),
				 0);
		assert_int_equal(resident(q, 3), t ? 3 : 0); /* present before it is used */
		assert_true(mr->lkey == lkey && mr->rkey == rkey);
		assert_ptr_equal(mr->pd, d ? pd2 : pd);
		assert_ptr_equal(mr->addr, t ? q + 8 : p);
		assert_int_equal(mr->length, 2 * PAGE);
		s = meaning(mr);
		assert_int_equal(s.access, a ? LW | RW : LW | RR);
		assert_true(s.pd == (d ? vb_pd(pd2) : vb_pd(pd))->id);
		assert_true(s.iova == (uintptr_t)mr->addr && s.addr == s.iova && s.length == 2 * PAGE);
		/* which domain it holds */
		assert_int_equal(atomic_load(&vb_pd(pd)->refs), !d);
		assert_int_equal(atomic_load(&vb_pd(pd2)->refs), d);
		assert_int_equal(ibv_dealloc_pd(d ? pd2 : pd), EBUSY);
		assert_int_equal(ibv_dereg_mr(mr), 0);
	}
	assert_int_equal(ibv_dealloc_pd(pd2), 0);
	munmap(p, 2 * PAGE);
	munmap(q, 3 * PAGE);
}

/* How keys address the region afterwards. */
static void rule_45_where_keys_begin(void **state)
{
	char *p = pages(PROT_READ | PROT_WRITE, 2);
	struct ibv_mr *based = ibv_reg_mr_iova(pd, p, PAGE, 0x5000, LW),
		      *zero = ibv_reg_mr_iova(pd, p, PAGE, 0, LW);

	(void)state;
	assert_int_equal(ibv_rereg_mr(based, ACCESS, NULL, NULL, 0, LW | RR), 0);
	assert_true(iova_of(based) == 0x5000);
	assert_int_equal(ibv_rereg_mr(based, TRANSLATION, NULL, p + 8, PAGE, 0), 0);
	assert_true(iova_of(based) == (uintptr_t)p + 8);
	assert_int_equal(ibv_rereg_mr(zero, TRANSLATION, NULL, p + 8, PAGE, 0), 0);
	assert_true(iova_of(zero) == 0); /* it is still zero-based */
	assert_int_equal(ibv_rereg_mr(zero, TRANSLATION | ACCESS, NULL, p + 8, PAGE, LW), 0);
	assert_true(iova_of(zero) == (uintptr_t)p + 8);
	assert_int_equal(ibv_rereg_mr(zero, ACCESS, NULL, NULL, 0, LW | IBV_ACCESS_ZERO_BASED), 0);
	assert_true(iova_of(zero) == 0);
	assert_int_equal(ibv_dereg_mr(based) | ibv_dereg_mr(zero), 0);
	munmap(p, 2 * PAGE);
}

/* To on-demand paging and back. */
static void rule_45_on_demand(void **state)
{
	char *p = pages(PROT_READ | PROT_WRITE, 4);
	struct ibv_mr *mr = ibv_reg_mr(pd, NULL, SIZE_MAX, OD | LW);

	(void)state;
	rule_45_refused_and_unchanged(mr, ACCESS, NULL, NULL, 0, LW, EFAULT); /* the whole address space */
	rule_45_refused_and_unchanged(mr, ACCESS, NULL, NULL, 0, OD | HT, EINVAL);
	assert_int_equal(ibv_rereg_mr(mr, TRANSLATION, NULL, p, 4 * PAGE, 0), 0); /* explicit from now on */
	assert_int_equal(meaning(mr).kind, VB_KEY_ON_DEMAND);
	assert_int_equal(resident(p, 4), 0);
	rule_45_refused_and_unchanged(mr, ACCESS, NULL, NULL, 0, OD | HT, EINVAL);
	assert_int_equal(ibv_rereg_mr(mr, ACCESS, NULL, NULL, 0, LW), 0);
	assert_int_equal(meaning(mr).kind, VB_KEY_MEMORY);
	assert_int_equal(resident(p, 4), 4);
	assert_int_equal(ibv_rereg_mr(mr, ACCESS, NULL, NULL, 0, OD | LW), 0);
	assert_int_equal(meaning(mr).kind, VB_KEY_ON_DEMAND);
	assert_int_equal(ibv_dereg_mr(mr), 0);
	munmap(p, 4 * PAGE);
}

static void in_a_forked_child(void **state)
{
	char *p = pages(PROT_READ | PROT_WRITE, 1);
	struct ibv_mr *mr = ibv_reg_mr(pd, p, PAGE, LW | OD);
	pid_t pid = fork();
	int status;

	(void)state;
	assert_true(pid >= 0);
	if (!pid)
		_exit(!(ibv_rereg_mr(mr, ACCESS, NULL, NULL, 0, LW) == IBV_REREG_MR_ERR_CMD && errno == EIO &&
			advise(pd, PREFETCH, 0, p, 1, mr->lkey) == EIO && !ibv_alloc_null_mr(pd) &&
			errno == EIO && !ibv_reg_mr(pd, NULL, SIZE_MAX, OD) && errno == EIO &&
			!ibv_dereg_mr(mr)));
	assert_int_equal(waitpid(pid, &status, 0), pid);
	assert_int_equal(status, 0);
	assert_int_equal(ibv_dereg_mr(mr), 0);
	munmap(p, PAGE);
}

#define CASE(f) cmocka_unit_test_teardown(f, nothing_is_left)

int main(void)
{
	const struct CMUnitTest tests[] = {
	    CASE(rule_42_every_combination_of_flags),
	    CASE(rule_42_memory_must_be_there),
	    CASE(rule_42_read_only_memory),
	    CASE(rule_42_page_behind_a_files_end),
	    CASE(rule_42_lengths_and_boundaries),
	    CASE(rule_43_iova),
	    CASE(rule_43_hca_va_0_is_zero_based),
	    CASE(on_demand_makes_nothing_present),
	    CASE(on_demand_registers_anything),
	    CASE(implicit_region),
	    CASE(hugetlb_is_checked),
	    cmocka_unit_test_setup_teardown(hugetlb_pages, reserve_pages, give_pages_back),
	    CASE(what_the_device_says_of_on_demand),
	    CASE(advice_makes_pages_present),
	    CASE(advice_with_wrong_arguments),
	    CASE(null_region),
	    CASE(rule_45_rereg_refuses_and_keeps),
	    CASE(rule_45_every_combination_of_changes),
	    CASE(rule_45_where_keys_begin),
	    CASE(rule_45_on_demand),
	    CASE(in_a_forked_child),
	};

	return cmocka_run_group_tests(tests, open_device, close_device);
}
