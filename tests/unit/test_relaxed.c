/* Relaxed regions in one process, on a real device: what ibv_reg_mr_relaxed(3) says, and the pools behind it.
 */
#include <errno.h>
#include <pthread.h>
#include <sched.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <time.h>

#include <cmocka.h>

#include "bytes.h"
#include "device.h"
#include "refused.h"
#include "mem/access.h"
#include "mem/guard.h"
#include "obj/relaxed.h"
#include "hca/hca.h"
#include "verbs/verbs.h"

#define MIB (1ul << 20)
#define ALL (IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ)

static struct sigaction ours; /* the library's handler of faults, which cmocka's stands in front of */
static struct vb_hca *hca;
static uint8_t *mem; /* 2 MiB of pages */

static int open_device(void **state)
{
	int err = kit_device_open(state);

	mem = mmap(NULL, 2 * MIB, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	if (err || mem == MAP_FAILED)
		return -1;
	hca = vb_hca(vb_context(ctx)->adapter);
	return 0;
}

static int close_device(void **state)
{
	munmap(mem, 2 * MIB);
	return kit_device_close(state);
}

static struct ibv_mr *reg(void *addr, size_t length, int access)
{
	struct ibv_mr *mr = ibv_reg_mr_relaxed(pd, addr, length, access);

	assert_non_null(mr);
	return mr;
}

/* What a request to those bytes under that key would find. */
static enum vb_reason reach(uint32_t key, bool remote, const void *addr, uint64_t len, uint32_t access)
{
	struct vb_mem_want w = {.key = key,
				.remote = remote,
				.access = access,
				.pd = vb_pd(pd)->id,
				.addr = (uintptr_t)addr,
				.len = len};

	return vb_mem_check(&hca->keys, &w, NULL);
}

static uint32_t used(void)
{
	uint32_t n = 0;

	for (struct vb_relaxed_pool *p = atomic_load(&hca->relaxed.pools); p; p = p->next) {
		vb_lock_take(&p->lock);
		n += p->used;
		vb_lock_give(&p->lock);
	}
	return n;
}

static void a_region_has_what_the_page_says(void **state)
{
	struct ibv_mr *mr = reg(mem + 100, 300, ALL);

	(void)state;
	assert_ptr_equal(mr->context, ctx);
	assert_ptr_equal(mr->pd, pd);
	assert_ptr_equal(mr->addr, mem + 100);
	assert_int_equal(mr->length, 300);
	assert_int_not_equal(mr->lkey, 0);
	assert_int_not_equal(mr->lkey, mr->rkey);
	/* iova is the address */
	assert_int_equal(reach(mr->lkey, false, mem + 100, 300, IBV_ACCESS_LOCAL_WRITE), VB_OK);
	assert_int_equal(reach(mr->rkey, true, mem + 100, 300, IBV_ACCESS_REMOTE_WRITE), VB_OK);
	assert_int_equal(reach(mr->rkey, true, mem + 100, 8, IBV_ACCESS_REMOTE_ATOMIC), VB_R_KEY_ACCESS);
	assert_int_equal(ibv_dereg_mr_relaxed(mr), 0);
}

static void access_reaches_to_page_boundaries(void **state)
{
	struct ibv_mr *mr = reg(mem + PAGE + 100, 300, ALL);

	(void)state;
	assert_int_equal(reach(mr->rkey, true, mem + PAGE, PAGE, IBV_ACCESS_REMOTE_WRITE), VB_OK);
	assert_int_equal(reach(mr->rkey, true, mem + 2 * PAGE - 1, 2, IBV_ACCESS_REMOTE_WRITE),
			 VB_R_KEY_BOUNDS);
	assert_int_equal(reach(mr->rkey, true, mem + PAGE - 1, 2, IBV_ACCESS_REMOTE_WRITE), VB_R_KEY_BOUNDS);
	assert_int_equal(ibv_dereg_mr_relaxed(mr), 0);
	mr = reg(mem + 2 * PAGE - 1, 2, ALL); /* a byte of each of two pages */
	assert_int_equal(reach(mr->lkey, false, mem + PAGE, 2 * PAGE, IBV_ACCESS_LOCAL_WRITE), VB_OK);
	assert_int_equal(reach(mr->lkey, false, mem + PAGE, 2 * PAGE + 1, 0), VB_R_KEY_BOUNDS);
	assert_int_equal(ibv_dereg_mr_relaxed(mr), 0);
}

/* As with ibv_reg_mr(): each combination permits what it names, and local read always. */
static void every_flag_permits_what_it_says(void **state)
{
	(void)state;
	for (int access = 0; access < 32; access++) {
		const int remote = IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_ATOMIC;
		struct ibv_mr *mr;

		if ((access & remote) && !(access & IBV_ACCESS_LOCAL_WRITE)) {
			REFUSED(ibv_reg_mr_relaxed(pd, mem, PAGE, access), EINVAL); /* rule 42 */
			continue;
		}
		mr = reg(mem, PAGE, access | (access & 1 ? IBV_ACCESS_RELAXED_ORDERING : 0));
		assert_int_equal(reach(mr->lkey, false, mem, 8, 0), VB_OK);
		for (int want = 1; want < 16; want <<= 1)
			assert_int_equal(reach(want == IBV_ACCESS_LOCAL_WRITE ? mr->lkey : mr->rkey,
					       want != IBV_ACCESS_LOCAL_WRITE, mem, 8, (uint32_t)want),
					 access & want ? VB_OK : VB_R_KEY_ACCESS);
		assert_int_equal(ibv_dereg_mr_relaxed(mr), 0);
	}
}

static void the_size_limit(void **state)
{
	struct ibv_mr *mr = reg(mem, MIB, ALL);

	(void)state;
	assert_int_equal(ibv_dereg_mr_relaxed(mr), 0);
	mr = reg(mem, MIB + PAGE - 2, ALL);
	assert_int_equal(ibv_dereg_mr_relaxed(mr), 0);
	mr = reg(mem + 2, MIB + PAGE - 2, ALL); /* 257 pages */
	assert_int_equal(ibv_dereg_mr_relaxed(mr), 0);
	REFUSED(ibv_reg_mr_relaxed(pd, mem + 3, MIB + PAGE - 2, ALL), EINVAL); /* 258 */
	REFUSED(ibv_reg_mr_relaxed(pd, mem, MIB + PAGE - 1, ALL), EINVAL);
	REFUSED(ibv_reg_mr_relaxed(pd, mem, SIZE_MAX, ALL), EINVAL);
}

static void what_is_refused(void **state)
{
	uint32_t live = vb_relaxed_live(&hca->relaxed), refs = atomic_load(&vb_pd(pd)->refs);
	void *hole = mmap(NULL, 3 * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	uint8_t *at = hole;
	struct sigaction theirs;

	(void)state;
	assert_ptr_not_equal(hole, MAP_FAILED);
	REFUSED(ibv_reg_mr_relaxed(pd, mem, 0, ALL), EINVAL);
	REFUSED(ibv_reg_mr_relaxed(pd, (void *)(uintptr_t)(UINT64_MAX - 10), 100, ALL), EINVAL);
	REFUSED(ibv_reg_mr_relaxed(pd, (void *)(uintptr_t)(UINT64_MAX - 10), 5, ALL), EINVAL);
	REFUSED(ibv_reg_mr_relaxed(pd, mem, 8, IBV_ACCESS_REMOTE_WRITE), EINVAL);
	REFUSED(ibv_reg_mr_relaxed(pd, mem, 8, IBV_ACCESS_REMOTE_ATOMIC), EINVAL);
	REFUSED(ibv_reg_mr_relaxed(pd, mem, 8, ALL | IBV_ACCESS_ON_DEMAND), EINVAL);
	REFUSED(ibv_reg_mr_relaxed(pd, mem, 8, ALL | IBV_ACCESS_ZERO_BASED), EINVAL);
	REFUSED(ibv_reg_mr_relaxed(pd, mem, 8, ALL | 1 << 30), EINVAL);
	assert_int_equal(sigaction(SIGSEGV, &ours, &theirs), 0);
	/* memory that is not there, in the middle too, and in a long region */
	REFUSED(ibv_reg_mr_relaxed(pd, (void *)8, 8, ALL), EFAULT);
	munmap(at + PAGE, PAGE);
	REFUSED(ibv_reg_mr_relaxed(pd, at, 3 * PAGE, ALL), EFAULT);
	REFUSED(ibv_reg_mr_relaxed(pd, at + PAGE, 1, 0), EFAULT);
	/* memory that may not be written to, only where writing is asked for */
	mprotect(at, PAGE, PROT_READ);
	REFUSED(ibv_reg_mr_relaxed(pd, at, 8, IBV_ACCESS_LOCAL_WRITE), EFAULT);
	munmap(mem + MIB / 2, PAGE);
	REFUSED(ibv_reg_mr_relaxed(pd, mem, MIB, ALL), EFAULT);
	REFUSED(ibv_reg_mr_relaxed(pd, mem, MIB, 0), EFAULT);
	assert_ptr_equal(
	    mmap(mem + MIB / 2, PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0),
	    mem + MIB / 2);
	assert_int_equal(sigaction(SIGSEGV, &theirs, NULL), 0);
	assert_int_equal(vb_relaxed_live(&hca->relaxed), live); /* and nothing is left behind */
	assert_int_equal(atomic_load(&vb_pd(pd)->refs), refs);
	assert_int_equal(ibv_dereg_mr_relaxed(reg(at, 8, IBV_ACCESS_REMOTE_READ)), 0);
	munmap(at, PAGE);
	munmap(at + 2 * PAGE, PAGE);
}

static void the_wrong_call_is_refused(void **state)
{
	struct ibv_mr *relaxed = reg(mem, PAGE, ALL), *plain = ibv_reg_mr(pd, mem, PAGE, ALL);

	(void)state;
	assert_non_null(plain);
	assert_int_equal(ibv_dereg_mr(relaxed), EINVAL);
	assert_int_equal(ibv_dereg_mr_relaxed(plain), EINVAL);
	assert_int_equal(reach(relaxed->lkey, false, mem, PAGE, 0), VB_OK); /* both are as they were */
	assert_int_equal(reach(plain->lkey, false, mem, PAGE, 0), VB_OK);
	assert_int_equal(ibv_dereg_mr(plain), 0);
	assert_int_equal(ibv_dereg_mr_relaxed(relaxed), 0);
	assert_int_equal(ibv_dereg_mr_relaxed(relaxed), EINVAL);
	relaxed = reg(mem, PAGE, IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_MW_BIND); /* no window holds it */
	assert_int_equal(ibv_dereg_mr_relaxed(relaxed), 0);
	assert_int_equal(ibv_dereg_mr_relaxed(relaxed), EINVAL);
	assert_int_equal(ibv_flush_relaxed_mr(NULL), EINVAL);
	assert_int_equal(ibv_dereg_mr_relaxed(relaxed), EINVAL);
}

static void nothing_counts_as_locked(void **state)
{
	struct rlimit was, none;

	(void)state;
	assert_int_equal(getrlimit(RLIMIT_MEMLOCK, &was), 0);
	none = (struct rlimit){0, was.rlim_max};
	assert_int_equal(setrlimit(RLIMIT_MEMLOCK, &none), 0);
	assert_int_equal(ibv_dereg_mr_relaxed(reg(mem, MIB, ALL)), 0);
	assert_int_equal(setrlimit(RLIMIT_MEMLOCK, &was), 0);
}

static void the_domain_is_free_at_once(void **state)
{
	struct ibv_pd *one = ibv_alloc_pd(ctx);
	struct ibv_mr *mr = ibv_reg_mr_relaxed(one, mem, PAGE, ALL);
	uint32_t lkey = mr->lkey;

	(void)state;
	assert_non_null(mr);
	assert_int_equal(ibv_dealloc_pd(one), EBUSY);
	assert_int_equal(ibv_dereg_mr_relaxed(mr), 0);
	assert_int_equal(reach(lkey, false, mem, PAGE, 0), VB_R_KEY_STALE);
	assert_int_equal(ibv_dealloc_pd(one), 0); /* without a flush */
}

/* Pools are per exact flags and length; one that is empty says so, and only for as long. */
static void an_empty_pool_is_eagain(void **state)
{
	enum { FLAGS = IBV_ACCESS_LOCAL_WRITE };
	struct ibv_mr **mr = calloc(VB_RELAXED_SHORTS, sizeof(struct ibv_mr *)), *one;

	(void)state;
	assert_non_null(mr);
	for (uint32_t i = 0; i < VB_RELAXED_SHORTS; i++)
		mr[i] = reg(mem, 1 + i % (2 * PAGE), FLAGS);
	REFUSED(ibv_reg_mr_relaxed(pd, mem, PAGE, FLAGS), EAGAIN);
	assert_int_equal(ibv_dereg_mr_relaxed(reg(mem, 5 * PAGE, FLAGS)), 0); /* the pair's other pool */
	assert_int_equal(ibv_dereg_mr_relaxed(reg(mem, PAGE, 0)), 0);	      /* other flags */
	for (int i = 0; i < 100; i++) {
		assert_int_equal(ibv_dereg_mr_relaxed(mr[7]), 0);
		mr[7] = reg(mem, PAGE, FLAGS);
		REFUSED(ibv_reg_mr_relaxed(pd, mem, PAGE, FLAGS), EAGAIN);
	}
	one = mr[8];
	for (uint32_t i = 0; i < VB_RELAXED_SHORTS; i++)
		assert_int_equal(ibv_dereg_mr_relaxed(mr[i]), 0);
	assert_int_equal(ibv_dereg_mr_relaxed(one), EINVAL);
	assert_int_equal(ibv_dereg_mr_relaxed(reg(mem, PAGE, FLAGS)), 0);
	assert_int_equal(ibv_flush_relaxed_mr(pd), 0);
	free(mr);
}

/* A key's value does not return for a long time, whatever is flushed in between. */
static void keys_are_not_used_again_soon(void **state)
{
	enum { N = 200000 };
	uint8_t *seen = calloc(1, 1 << 29); /* a bit for each L_Key */

	(void)state;
	assert_non_null(seen);
	for (uint32_t i = 0; i < N; i++) {
		struct ibv_mr *mr = reg(mem, PAGE, ALL);

		assert_int_equal(seen[mr->lkey / 8] & 1 << mr->lkey % 8, 0);
		seen[mr->lkey / 8] |= (uint8_t)(1 << mr->lkey % 8);
		assert_int_equal(ibv_dereg_mr_relaxed(mr), 0);
		if (i % 50000 == 0)
			assert_int_equal(ibv_flush_relaxed_mr(pd), 0);
	}
	free(seen);
}

static void a_flush_leaves_nothing(void **state)
{
	struct ibv_mr *mr[100];
	uint32_t keys;

	(void)state;
	assert_int_equal(ibv_flush_relaxed_mr(pd), 0); /* what earlier tests left */
	keys = hca->keys.plain.live;
	for (int i = 0; i < 100; i++)
		mr[i] = reg(mem, i % 2 ? PAGE : 20 * PAGE, i % 3 ? ALL : IBV_ACCESS_LOCAL_WRITE);
	for (int i = 0; i < 100; i++)
		assert_int_equal(ibv_dereg_mr_relaxed(mr[i]), 0);
	assert_int_equal(ibv_flush_relaxed_mr(pd), 0);
	assert_int_equal(used(), 0);
	assert_int_equal(vb_relaxed_live(&hca->relaxed), 0);
	assert_int_equal(hca->keys.plain.live, keys); /* ibv_reg_mr() may have them */
}

/* Nobody calls anything: the engine flushes, and ticks no more. */
static void idle_pools_are_flushed(void **state)
{
	const struct timespec ms = {0, 1000000};

	(void)state;
	for (int i = 0; !used(); i++) { /* what earlier tests left to be flushed may be flushed just now */
		assert_true(i < 100);
		assert_int_equal(ibv_dereg_mr_relaxed(reg(mem, PAGE, ALL)), 0);
	}
	for (int i = 0; used() || atomic_load(&hca->relaxed.due); i++) {
		assert_true(i < 10000);
		nanosleep(&ms, NULL);
	}
}

static void *flush(void *arg)
{
	assert_int_equal(ibv_flush_relaxed_mr(pd), 0);
	atomic_store((_Atomic int *)arg, 1);
	return NULL;
}

/* Somebody is in the middle of a copy: deregistration does not wait, a flush does, and the entry serves no
 * other region meanwhile. */
static void who_is_at_it_is_waited_for_by_a_flush(void **state)
{
	enum { FLAGS = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_READ };
	struct ibv_mr **mr = calloc(VB_RELAXED_SHORTS, sizeof(struct ibv_mr *));
	const struct timespec some = {0, 30000000};
	struct vb_mem_want w = {.remote = true, .access = IBV_ACCESS_REMOTE_READ, .len = 8};
	struct vb_mem_use use;
	_Atomic int flushed = 0;
	pthread_t t;

	(void)state;
	assert_non_null(mr);
	for (uint32_t i = 0; i < VB_RELAXED_SHORTS; i++)
		mr[i] = reg(mem, PAGE, FLAGS);
	w.key = mr[5]->rkey;
	w.pd = vb_pd(pd)->id;
	w.addr = (uintptr_t)mem;
	assert_int_equal(vb_mem_begin(&hca->keys, &use, &w, NULL), VB_OK);
	assert_int_equal(ibv_dereg_mr_relaxed(mr[5]), 0);
	assert_int_equal(reach(w.key, true, mem, 8, 0), VB_R_KEY_STALE); /* nobody else gets there */
	REFUSED(ibv_reg_mr_relaxed(pd, mem, PAGE, FLAGS), EAGAIN);
	assert_int_equal(pthread_create(&t, NULL, flush, &flushed), 0);
	nanosleep(&some, NULL); /* it has every chance to be too early */
	assert_int_equal(atomic_load(&flushed), 0);
	assert_int_equal(ibv_dereg_mr_relaxed(mr[6]), 0); /* which holds up nobody else */
	mr[6] = reg(mem, PAGE, FLAGS);
	vb_mem_end(&use);
	assert_int_equal(pthread_join(t, NULL), 0);
	assert_int_equal(atomic_load(&flushed), 1);
	mr[5] = reg(mem, PAGE, FLAGS);
	assert_int_not_equal(mr[5]->rkey, w.key);
	assert_int_equal(reach(w.key, true, mem, 8, 0), VB_R_KEY_STALE);
	for (uint32_t i = 0; i < VB_RELAXED_SHORTS; i++)
		assert_int_equal(ibv_dereg_mr_relaxed(mr[i]), 0);
	assert_int_equal(ibv_flush_relaxed_mr(pd), 0);
	assert_int_equal(used(), 0);
	free(mr);
}

static void *place_without_a_pause(void *arg)
{
	struct vb_mem_use u;

	while (!atomic_load((_Atomic int *)arg))
		assert_true(vb_mem_begin_any(&hca->keys, &u)); /* the one before has ended by this */
	vb_mem_end(&u);
	return NULL;
}

/* Who places may lose its CPU in the midst of it: no entry comes back before it goes on. */
static struct ibv_mr *reg_once_there_is_one(void)
{
	struct ibv_mr *mr;

	while (!(mr = ibv_reg_mr_relaxed(pd, mem, PAGE, ALL)) && errno == EAGAIN)
		sched_yield();
	assert_non_null(mr);
	return mr;
}

/* Direct placement announces all keys at once.  However much of it there is, entries come back. */
static void traffic_empties_no_pool(void **state)
{
	_Atomic int stop = 0;
	pthread_t t;

	(void)state;
	assert_int_equal(pthread_create(&t, NULL, place_without_a_pause, &stop), 0);
	for (uint32_t i = 0; i < 3 * VB_RELAXED_SHORTS; i++)
		assert_int_equal(ibv_dereg_mr_relaxed(reg_once_there_is_one()), 0);
	assert_int_equal(ibv_flush_relaxed_mr(pd), 0);
	assert_int_equal(used(), 0);
	atomic_store(&stop, 1);
	assert_int_equal(pthread_join(t, NULL), 0);
}

/* --- threads that register, use, deregister and flush at the same time */

static _Atomic int stop;

static void *user(void *arg)
{
	unsigned n = (unsigned)(uintptr_t)arg;
	uint8_t *at = mem + n * 64 * PAGE;

	while (!atomic_load(&stop)) {
		struct ibv_mr *mr = ibv_reg_mr_relaxed(pd, at, (1 + n % 2 * 20) * PAGE, ALL);
		struct vb_mem_want w = {.pd = vb_pd(pd)->id, .addr = (uintptr_t)at, .len = 8};
		struct vb_mem_use u;
		uint64_t v = n;

		if (!mr)
			return "no region";
		w.key = mr->lkey;
		if (vb_mem_begin(&hca->keys, &u, &w, NULL) != VB_OK || !vb_mem_put(&u, &v, 8))
			return "its key does not lead to it";
		vb_mem_end(&u);
		if (ibv_dereg_mr_relaxed(mr))
			return "it does not end";
		if (vb_mem_check(&hca->keys, &w, NULL) == VB_OK)
			return "its key still leads to it";
		if (n == 3 && ibv_flush_relaxed_mr(pd))
			return "no flush";
	}
	return NULL;
}

static void threads(void **state)
{
	const struct timespec some = {0, 500000000};
	pthread_t t[4];

	(void)state;
	for (uintptr_t i = 0; i < 4; i++)
		assert_int_equal(pthread_create(&t[i], NULL, user, (void *)i), 0);
	nanosleep(&some, NULL);
	atomic_store(&stop, 1);
	for (int i = 0; i < 4; i++) {
		void *what;

		assert_int_equal(pthread_join(t[i], &what), 0);
		if (what)
			fail_msg("%s", (char *)what);
	}
	assert_int_equal(ibv_flush_relaxed_mr(pd), 0);
	assert_int_equal(used(), 0);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
	    cmocka_unit_test(a_region_has_what_the_page_says),
	    cmocka_unit_test(access_reaches_to_page_boundaries),
	    cmocka_unit_test(every_flag_permits_what_it_says),
	    cmocka_unit_test(the_size_limit),
	    cmocka_unit_test(what_is_refused),
	    cmocka_unit_test(the_wrong_call_is_refused),
	    cmocka_unit_test(nothing_counts_as_locked),
	    cmocka_unit_test(the_domain_is_free_at_once),
	    cmocka_unit_test(an_empty_pool_is_eagain),
	    cmocka_unit_test(keys_are_not_used_again_soon),
	    cmocka_unit_test(a_flush_leaves_nothing),
	    cmocka_unit_test(idle_pools_are_flushed),
	    cmocka_unit_test(traffic_empties_no_pool),
	    cmocka_unit_test(who_is_at_it_is_waited_for_by_a_flush),
	    cmocka_unit_test(threads),
	};

	vb_guard_install();
	sigaction(SIGSEGV, NULL, &ours);
	return cmocka_run_group_tests(tests, open_device, close_device);
}
