/* Objects of one size: distinct, zeroed, and gone from this process's memory when they have been given back.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <pthread.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cmocka.h>

#include <infiniband/verbs.h>

#include "base/slab.h"

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define SANITIZED 1
#elif defined(__has_feature)
#define SANITIZED (__has_feature(address_sanitizer) || __has_feature(thread_sanitizer))
#else
#define SANITIZED 0
#endif

enum { SIZE = 104, MANY = 20000 };

static void objects_are_distinct_and_zero(void **state)
{
	static uint8_t *at[MANY];
	struct vb_slab s;

	(void)state;
	vb_slab_init(&s, SIZE);
	for (int round = 0; round < 3; round++) {
		for (int i = 0; i < MANY; i++) {
			at[i] = vb_slab_take(&s);
			assert_non_null(at[i]);
			assert_int_equal((uintptr_t)at[i] % 16, 0);
			for (int b = 0; b < SIZE; b++)
				assert_int_equal(at[i][b], 0);
			memset(at[i], i % 255 + 1, SIZE);
		}
		for (int i = 0; i < MANY; i += round + 1) /* out of order, and some twice as often */
			vb_slab_give(&s, at[i]), at[i] = NULL;
		for (int i = 0; i < MANY; i++) {
			for (int b = 0; at[i] && b < SIZE; b++)
				assert_int_equal(at[i][b], i % 255 + 1);
			if (at[i])
				vb_slab_give(&s, at[i]);
		}
	}
	vb_slab_fini(&s);
}

static struct vb_slab shared;

static void *churn(void *arg)
{
	uint8_t *held[700] = {0}; /* more than a piece has */
	unsigned seed = (unsigned)(uintptr_t)arg;
	uint8_t mine = (uint8_t)seed;

	for (int i = 0; i < 200000; i++) {
		uint8_t **h = &held[rand_r(&seed) % 700];

		if (*h) {
			for (int b = 0; b < SIZE; b++)
				if ((*h)[b] != mine)
					return "somebody wrote to it";
			vb_slab_give(&shared, *h);
			*h = NULL;
		} else {
			*h = vb_slab_take(&shared);
			memset(*h, mine, SIZE);
		}
	}
	for (int i = 0; i < 700; i++)
		if (held[i])
			vb_slab_give(&shared, held[i]);
	return NULL;
}

static void threads_share_it(void **state)
{
	pthread_t t[4];
	void *wrong;

	(void)state;
	vb_slab_init(&shared, SIZE);
	for (uintptr_t i = 0; i < 4; i++)
		assert_int_equal(pthread_create(&t[i], NULL, churn, (void *)(i + 1)), 0);
	for (int i = 0; i < 4; i++) {
		assert_int_equal(pthread_join(t[i], &wrong), 0);
		assert_null(wrong);
	}
	assert_true(shared.spare || vb_list_empty(&shared.room));
	vb_slab_fini(&shared);
}

/* kB of memory of this kind that the process has: a line of /proc/self/status. */
static long resident(const char *kind)
{
	FILE *f = fopen("/proc/self/status", "r");
	char line[256];
	long kb = -1;

	assert_non_null(f);
	while (kb < 0 && fgets(line, sizeof(line), f))
		if (!strncmp(line, kind, strlen(kind)))
			kb = atol(line + strlen(kind) + 1);
	fclose(f);
	return kb;
}

/* The table of keys is not given back: no hole can be made in a file that is sealed against being written by
 * peers, and its entries keep old keys from meaning anything.  It is 64 bytes for each region that there was
 * at once. */
static void regions_give_their_memory_back(void **state)
{
	enum { N = 1 << 20, KEYS = N / 1024 * 64 };
	struct ibv_mr **mr = mmap(NULL, N * sizeof(struct ibv_mr *), PROT_READ | PROT_WRITE,
				  MAP_PRIVATE | MAP_ANONYMOUS | MAP_POPULATE, -1, 0);
	struct ibv_device **list;
	struct ibv_context *ctx;
	struct ibv_pd *pd;
	long anon, shmem, most;
	static char page[4096];

	(void)state;
	if (SANITIZED) /* which keep memory of their own for each byte, and what is freed */
		skip();
	list = ibv_get_device_list(NULL);
	assert_true(list && list[0]);
	ctx = ibv_open_device(list[0]);
	assert_non_null(ctx);
	pd = ibv_alloc_pd(ctx);
	assert_non_null(pd);
	assert_ptr_not_equal(mr, MAP_FAILED);
	ibv_free_device_list(list);
	anon = resident("RssAnon:");
	shmem = resident("RssShmem:");
	for (int i = 0; i < N; i++) {
		mr[i] = ibv_reg_mr(pd, page, sizeof(page), IBV_ACCESS_LOCAL_WRITE);
		assert_non_null(mr[i]);
	}
	most = resident("RssAnon:");
	for (int i = 0; i < N; i++)
		assert_int_equal(ibv_dereg_mr(mr[i]), 0);
	print_message(
	    "anonymous memory: %ld kB before, %ld kB with %d regions, %ld kB after; shared: %ld kB more\n",
	    anon, most, N, resident("RssAnon:"), resident("RssShmem:") - shmem);
	assert_true(most > anon + 64 * 1024);
	assert_true(resident("RssAnon:") < anon + 1024);
	assert_true(resident("RssShmem:") <= shmem + KEYS + 1024);
	assert_int_equal(ibv_dealloc_pd(pd), 0);
	assert_int_equal(ibv_close_device(ctx), 0);
	munmap(mr, N * sizeof(struct ibv_mr *));
}

int main(void)
{
	const struct CMUnitTest tests[] = {
	    cmocka_unit_test(objects_are_distinct_and_zero),
	    cmocka_unit_test(threads_share_it),
	    cmocka_unit_test(regions_give_their_memory_back),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
