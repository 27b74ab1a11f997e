/* The key table: who gets through, who does not and why, and that a retracted key is out of use. */
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>

#include <cmocka.h>
#include <infiniband/verbs.h>

#include "base/clock.h"
#include "mem/access.h"

enum { PD = 7, LW = IBV_ACCESS_LOCAL_WRITE, RW = IBV_ACCESS_REMOTE_WRITE, RR = IBV_ACCESS_REMOTE_READ };

struct table {
	struct vb_keys t;
	struct vb_key_entry *entries;
	struct vb_key_slot *slots;
	struct vb_key_marks marks;
	size_t bytes;
};

static void make(struct table *x, uint32_t capacity)
{
	x->bytes = capacity * sizeof *x->entries;
	x->entries =
	    mmap(NULL, x->bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
	assert_ptr_not_equal(x->entries, MAP_FAILED);
	x->slots = aligned_alloc(64, VB_MEM_SLOTS * sizeof *x->slots);
	memset(x->slots, 0, VB_MEM_SLOTS * sizeof *x->slots);
	memset(&x->marks, 0, sizeof x->marks);
	vb_keys_init(&x->t, x->entries, capacity, x->slots, &x->marks);
}

static void unmake(struct table *x)
{
	munmap(x->entries, x->bytes);
	free(x->slots);
}

static void take_back(struct vb_keys *t, uint32_t lkey)
{
	vb_key_retract(t, lkey);
	vb_key_give(t, lkey);
}

static enum vb_reason try(struct table *x, uint32_t key, bool remote, uint32_t pd, uint64_t addr,
			  uint64_t len, uint32_t want, struct vb_facts *f)
{
	struct vb_mem_use u;
	enum vb_reason r = vb_mem_begin(
	    &x->t, &u,
	    &(struct vb_mem_want){
		.key = key, .remote = remote, .pd = pd, .addr = addr, .len = len, .access = want},
	    f);

	if (r == VB_OK)
		vb_mem_end(&u);
	assert_int_equal(
	    vb_mem_check(
		&x->t,
		&(struct vb_mem_want){
		    .key = key, .remote = remote, .pd = pd, .addr = addr, .len = len, .access = want},
		NULL),
	    r);
	return r;
}

static void a_key_leads_to_its_memory(void **state)
{
	struct vb_mem_use u;
	struct table x;
	uint8_t buf[64];
	uint32_t k;

	(void)state;
	make(&x, 64);
	k = vb_key_publish(
	    &x.t,
	    &(struct vb_key_spec){
		.pd = PD, .access = LW | RW, .iova = 0x5000, .addr = (uintptr_t)buf, .length = sizeof buf});
	assert_int_not_equal(k, 0);
	assert_int_equal(k & (VB_KEY_REMOTE | VB_KEY_TAGGED), 0);
	assert_int_equal(vb_mem_begin(&x.t, &u,
				      &(struct vb_mem_want){.key = k | VB_KEY_REMOTE,
							    .remote = true,
							    .pd = PD,
							    .addr = 0x5010,
							    .len = 8,
							    .access = RW},
				      NULL),
			 VB_OK);
	assert_ptr_equal(u.ptr, buf + 16);
	vb_mem_end(&u);
	assert_int_equal(
	    vb_mem_begin(&x.t, &u,
			 &(struct vb_mem_want){
			     .key = k, .remote = false, .pd = PD, .addr = 0x5000, .len = 64, .access = LW},
			 NULL),
	    VB_OK);
	assert_ptr_equal(u.ptr, buf);
	vb_mem_end(&u);
	take_back(&x.t, k);
	unmake(&x);
}

static void rule_19_bounds_by_subtraction(void **state)
{
	struct vb_facts f = {0};
	struct table x;
	uint32_t k, r, top, all;

	(void)state;
	make(&x, 64);
	k = vb_key_publish(
	    &x.t, &(struct vb_key_spec){
		      .pd = PD, .access = LW | RW, .iova = 0x10000, .addr = 0x10000, .length = 0x1000});
	r = k | VB_KEY_REMOTE;
	assert_int_equal(try(&x, r, true, PD, 0x10000, 0x1000, RW, NULL), VB_OK);
	assert_int_equal(try(&x, r, true, PD, 0x10fff, 1, RW, NULL), VB_OK);
	assert_int_equal(try(&x, r, true, PD, 0x11000, 0, RW, NULL), VB_OK);
	assert_int_equal(try(&x, r, true, PD, 0x10000, 0x1001, RW, &f), VB_R_KEY_BOUNDS);
	assert_int_equal(f.reason, VB_R_KEY_BOUNDS);
	assert_int_equal(f.mem.start, 0x10000);
	assert_int_equal(f.mem.size, 0x1000);
	assert_int_equal(f.len, 0x1001);
	assert_int_equal(try(&x, r, true, PD, 0xffff, 1, RW, NULL), VB_R_KEY_BOUNDS);
	assert_int_equal(try(&x, r, true, PD, 0xffff, 0x800, RW, NULL), VB_R_KEY_BOUNDS);
	assert_int_equal(try(&x, r, true, PD, 0x11001, 0, RW, NULL), VB_R_KEY_BOUNDS);
	/* sums that overflow */
	assert_int_equal(try(&x, r, true, PD, 0x10800, UINT64_MAX, RW, NULL), VB_R_KEY_BOUNDS);
	assert_int_equal(try(&x, r, true, PD, 0x10800, UINT64_MAX - 0x107ff, RW, NULL), VB_R_KEY_BOUNDS);
	assert_int_equal(try(&x, r, true, PD, UINT64_MAX, 2, RW, NULL), VB_R_KEY_BOUNDS);
	/* a region that ends at the top, and one that is everything */
	top = vb_key_publish(&x.t, &(struct vb_key_spec){.pd = PD,
							 .access = RR,
							 .iova = UINT64_MAX - 0xfff,
							 .addr = 0x10000,
							 .length = 0x1000}) |
	      VB_KEY_REMOTE;
	assert_int_equal(try(&x, top, true, PD, UINT64_MAX, 1, RR, NULL), VB_OK);
	assert_int_equal(try(&x, top, true, PD, UINT64_MAX, 2, RR, NULL), VB_R_KEY_BOUNDS);
	assert_int_equal(try(&x, top, true, PD, 0, 1, RR, NULL), VB_R_KEY_BOUNDS);
	all = vb_key_publish(
		  &x.t,
		  &(struct vb_key_spec){.pd = PD, .access = RR, .iova = 0, .addr = 0, .length = UINT64_MAX}) |
	      VB_KEY_REMOTE;
	assert_int_equal(try(&x, all, true, PD, UINT64_MAX - 1, 1, RR, NULL), VB_OK);
	assert_int_equal(try(&x, all, true, PD, UINT64_MAX - 1, 2, RR, NULL), VB_R_KEY_BOUNDS);
	unmake(&x);
}

static void rule_21_another_pd_fails(void **state)
{
	struct vb_facts f = {0};
	struct table x;
	uint32_t k;

	(void)state;
	make(&x, 64);
	k = vb_key_publish(
	    &x.t, &(struct vb_key_spec){
		      .pd = PD, .access = LW | RW, .iova = 0x10000, .addr = 0x10000, .length = 0x1000});
	assert_int_equal(try(&x, k, false, PD + 1, 0x10000, 1, 0, &f), VB_R_KEY_PD);
	assert_int_equal(f.mem.pd_want, PD + 1);
	assert_int_equal(f.mem.pd_have, PD);
	assert_int_equal(try(&x, k | VB_KEY_REMOTE, true, 0, 0x10000, 1, RW, NULL), VB_R_KEY_PD);
	unmake(&x);
}

static void permission_is_a_subset(void **state)
{
	static const uint32_t bits[] = {LW, RW, RR, IBV_ACCESS_REMOTE_ATOMIC};
	struct vb_facts f = {0};
	struct table x;

	(void)state;
	make(&x, 64);
	for (uint32_t have = 0; have < 16; have++) {
		uint32_t h = 0, k;

		for (int i = 0; i < 4; i++)
			h |= have & 1u << i ? bits[i] : 0;
		k = vb_key_publish(
			&x.t,
			&(struct vb_key_spec){
			    .pd = PD, .access = h, .iova = 0x10000, .addr = 0x10000, .length = 0x1000}) |
		    VB_KEY_REMOTE;
		for (uint32_t want = 0; want < 16; want++) {
			uint32_t w = 0;

			for (int i = 0; i < 4; i++)
				w |= want & 1u << i ? bits[i] : 0;
			assert_int_equal(try(&x, k, true, PD, 0x10000, 8, w, &f),
					 (w & ~h) ? VB_R_KEY_ACCESS : VB_OK);
			if (w & ~h) {
				assert_int_equal(f.mem.want, w);
				assert_int_equal(f.mem.have, h);
			}
		}
	}
	unmake(&x);
}

/* In the profile in which a region's keys are one number: that number locally and remotely, and no other. */
static void equal_keys(void **state)
{
	struct vb_facts f = {0};
	struct vb_key_spec s = {
	    .pd = PD, .access = LW | RW, .iova = 0x10000, .addr = 0x10000, .length = 0x1000};
	struct table x;
	uint32_t k, seen;

	(void)state;
	make(&x, 64);
	x.t.local_bit = VB_KEY_REMOTE;
	k = vb_key_publish(&x.t, &s);
	seen = vb_key_local(&x.t, k);
	assert_int_equal(seen, k | VB_KEY_REMOTE);
	assert_int_equal(try(&x, seen, false, PD, 0x10000, 8, LW, &f), VB_OK);
	assert_int_equal(try(&x, seen, true, PD, 0x10000, 8, RW, &f), VB_OK);
	assert_int_equal(try(&x, k, false, PD, 0x10000, 8, LW, &f), VB_R_KEY_UNKNOWN);
	assert_int_equal(try(&x, k, true, PD, 0x10000, 8, RW, &f), VB_R_KEY_UNKNOWN);
	assert_int_equal(try(&x, seen + 1, false, PD, 0x10000, 8, LW, &f), VB_R_KEY_UNKNOWN);
	assert_int_equal(f.mem.cur_key, seen);
	assert_int_equal(try(&x, seen, false, PD, 0x10000, 0x1001, LW, &f), VB_R_KEY_BOUNDS);
	/* what takes a key takes it as programs see it */
	assert_true(vb_key_look(&x.t, seen, &s) && vb_key_tie(&x.t, seen));
	assert_false(vb_key_close(&x.t, seen));
	vb_key_untie(&x.t, seen);
	s.length = 0x2000;
	vb_key_change(&x.t, seen, &s);
	assert_int_equal(try(&x, seen, false, PD, 0x10000, 0x1001, LW, &f), VB_OK);
	take_back(&x.t, seen);
	assert_int_equal(try(&x, seen, true, PD, 0x10000, 8, RW, &f), VB_R_KEY_STALE);
	unmake(&x);
}

static void wrong_keys_are_told_apart(void **state)
{
	struct vb_facts f = {0};
	struct table x;
	uint32_t k, k2;

	(void)state;
	make(&x, 64);
	k = vb_key_publish(
	    &x.t, &(struct vb_key_spec){
		      .pd = PD, .access = LW | RW, .iova = 0x10000, .addr = 0x10000, .length = 0x1000});
	/* rule 13 and DESIGN: L_Key and R_Key never pass for one another */
	assert_int_equal(try(&x, k, true, PD, 0x10000, 8, RW, &f), VB_R_KEY_IS_LOCAL);
	assert_int_equal(f.mem.cur_key, k | VB_KEY_REMOTE);
	assert_int_equal(try(&x, k | VB_KEY_REMOTE, false, PD, 0x10000, 8, LW, &f), VB_R_KEY_IS_REMOTE);
	assert_int_equal(f.mem.cur_key, k);
	/* rule 44: a wrong variant, which nobody was ever given */
	assert_int_equal(try(&x, k + 1, false, PD, 0x10000, 8, LW, &f), VB_R_KEY_UNKNOWN);
	assert_int_equal(f.mem.cur_key, k);
	/* never given, out of the table, and the keys that nobody can have */
	assert_int_equal(try(&x, 9u << 8, false, PD, 0x10000, 8, LW, &f), VB_R_KEY_UNKNOWN);
	assert_int_equal(f.mem.flags, VB_KEYF_NEAR); /* the region that was probably meant */
	assert_int_equal(f.mem.start, 0x10000);
	assert_int_equal(f.mem.cur_key, k);
	assert_int_equal(try(&x, 64u << 8, false, PD, 0x10000, 8, LW, NULL), VB_R_KEY_UNKNOWN);
	assert_int_equal(try(&x, 0x1fffffffu, false, PD, 0x10000, 8, LW, NULL), VB_R_KEY_UNKNOWN);
	assert_int_equal(try(&x, UINT32_MAX, true, PD, 0x10000, 8, LW, NULL), VB_R_KEY_UNKNOWN);
	assert_int_equal(try(&x, k | VB_KEY_TAGGED, false, PD, 0x10000, 8, LW, NULL), VB_R_KEY_UNKNOWN);
	for (uint32_t pd = 0; pd < 2; pd++) {
		assert_int_equal(try(&x, 0, false, pd, 0, 0, 0, NULL), VB_R_KEY_UNKNOWN);
		assert_int_equal(try(&x, VB_KEY_REMOTE, true, pd, 0, 0, 0, NULL), VB_R_KEY_UNKNOWN);
		assert_int_equal(try(&x, 8u << 8, false, pd, 0, 0, 0, NULL), VB_R_KEY_UNKNOWN);
	}
	/* deregistered, then the index in use again */
	take_back(&x.t, k);
	assert_int_equal(try(&x, k, false, PD, 0x10000, 8, LW, &f), VB_R_KEY_STALE);
	assert_int_equal(f.mem.cur_key, 0);
	do
		k2 = vb_key_publish(
		    &x.t,
		    &(struct vb_key_spec){
			.pd = PD, .access = LW | RW, .iova = 0x20000, .addr = 0x20000, .length = 0x1000});
	while (VB_KEY_PLACE(k2) != VB_KEY_PLACE(k));
	assert_int_not_equal(k2, k);
	assert_int_equal(try(&x, k | VB_KEY_REMOTE, true, PD, 0x20000, 8, RW, &f), VB_R_KEY_STALE);
	assert_int_equal(f.mem.cur_key, k2 | VB_KEY_REMOTE);
	assert_int_equal(f.mem.start, 0x20000);
	unmake(&x);
}

static uint32_t find_whose(void *owner, uint32_t rkey, uint64_t addr, uint64_t len)
{
	(void)addr;
	(void)len;
	return rkey == *(uint32_t *)owner ? 4711 : 0;
}

static uint32_t region(struct table *x, uint64_t pd, uint64_t start, uint64_t size)
{
	return vb_key_publish(
	    &x->t,
	    &(struct vb_key_spec){.pd = pd, .access = LW | RW, .iova = start, .addr = start, .length = size});
}

/* What was probably meant: the region that the range lies in, or the nearest one; another process's key. */
static void the_nearest_region_is_named(void **state)
{
	static const struct vb_keys_ops ops = {.whose = find_whose};
	uint32_t k1, k2, k3, foreign = 40u << 8 | VB_KEY_REMOTE;
	struct vb_facts f = {0};
	struct table x;
	char text[512];

	(void)state;
	make(&x, 64);
	x.t.ops = &ops;
	x.t.owner = &foreign;
	k1 = region(&x, PD, 0x10000, 0x1000);
	k2 = region(&x, PD + 1, 0x20000, 0x1000);
	k3 = region(&x, PD, 0x20000, 0x800);
	/* too long for its own region, but it lies in another one of the domain */
	assert_int_equal(try(&x, k1 | VB_KEY_REMOTE, true, PD, 0x20000, 0x800, RW, &f), VB_R_KEY_BOUNDS);
	assert_int_equal(f.mem.flags, VB_KEYF_REMOTE | VB_KEYF_NEAR);
	assert_int_equal(f.mem.cur_key, k3 | VB_KEY_REMOTE);
	assert_int_equal(f.mem.start, 0x10000);
	assert_non_null(
	    strstr(vb_reason_say(text, sizeof text, &f), "that range lies in the region of R_Key"));
	/* in no other one */
	assert_int_equal(try(&x, k1, false, PD, 0x10ff8, 16, LW, &f), VB_R_KEY_BOUNDS);
	assert_int_equal(f.mem.flags, 0);
	/* another domain's: of two regions that hold it the queue's own is named */
	assert_int_equal(try(&x, k2, false, PD, 0x20000, 8, LW, &f), VB_R_KEY_PD);
	assert_int_equal(f.mem.cur_key, k3);
	assert_int_equal(f.mem.size, 0x1000); /* the key's own */
	/* unknown: the nearest, and by how much it is missed */
	assert_int_equal(try(&x, 30u << 8, false, PD, 0x11008, 8, LW, &f), VB_R_KEY_UNKNOWN);
	assert_int_equal(f.mem.flags, VB_KEYF_NEAR);
	assert_int_equal(f.mem.cur_key, k1);
	assert_non_null(strstr(vb_reason_say(text, sizeof text, &f), "missed by 16 bytes"));
	assert_int_equal(vb_range_missed(f.mem.start, f.mem.size, f.addr, f.len), 16);
	/* another process's */
	assert_int_equal(try(&x, foreign, true, PD, 0x20000, 8, RW, &f), VB_R_KEY_UNKNOWN);
	assert_int_equal(f.mem.flags, VB_KEYF_REMOTE | VB_KEYF_NEAR | VB_KEYF_PEERS);
	assert_int_equal(f.mem.process, 4711);
	assert_non_null(
	    strstr(vb_reason_say(text, sizeof text, &f), "process 4711 on this host has such an R_Key"));
	/* stale, and no region is left */
	take_back(&x.t, k1);
	take_back(&x.t, k2);
	take_back(&x.t, k3);
	assert_int_equal(try(&x, k1, false, PD, 0x10000, 8, LW, &f), VB_R_KEY_STALE);
	assert_int_equal(f.mem.size, 0);
	/* that others number their keys alike says nothing of one that was given out here */
	foreign = k1 | VB_KEY_REMOTE;
	assert_int_equal(try(&x, foreign, true, PD, 0x10000, 8, RW, &f), VB_R_KEY_STALE);
	assert_int_equal(f.mem.flags, VB_KEYF_REMOTE);
	assert_null(strstr(vb_reason_say(text, sizeof text, &f), "process"));
	unmake(&x);
}

static void ranges_are_measured(void **state)
{
	(void)state;
	assert_int_equal(vb_range_missed(100, 50, 100, 50), 0);
	assert_int_equal(vb_range_missed(100, 50, 99, 1), 1);
	assert_int_equal(vb_range_missed(100, 50, 140, 20), 10);
	assert_int_equal(vb_range_missed(100, 50, 150, 8), 8);
	assert_int_equal(vb_range_missed(100, 50, 160, 8), 18);
	assert_true(vb_range_missed(0, 1, UINT64_MAX, UINT64_MAX) == UINT64_MAX);
	assert_true(vb_range_missed(UINT64_MAX, 1, 0, 1) == UINT64_MAX);
}

/* rule 44: a key's value returns late even if one region is registered over and over */
static void rule_44_values_return_late(void **state)
{
	enum { KEYS = 200000 };
	uint8_t *seen = calloc(1, 1u << 29 >> 3);
	struct table x;

	(void)state;
	make(&x, VB_MEM_SLOTS * 1024);
	for (int i = 0; i < KEYS; i++) {
		uint32_t k = vb_key_publish(
		    &x.t, &(struct vb_key_spec){
			      .pd = PD, .access = LW, .iova = 0x1000, .addr = 0x1000, .length = 0x1000});

		assert_int_not_equal(k, 0);
		assert_false(seen[k >> 3] & 1 << (k & 7));
		seen[k >> 3] |= (uint8_t)(1 << (k & 7));
		take_back(&x.t, k);
	}
	/* and the table used did not grow with it */
	assert_true(x.t.plain.used < 2048);
	assert_int_equal(x.t.plain.live, 0);
	free(seen);
	unmake(&x);
}

static uint64_t cost(struct table *x, const uint32_t *keys, uint32_t n)
{
	enum { ROUNDS = 200000 };
	uint64_t best = UINT64_MAX;

	for (int i = 0; i < 3; i++) {
		uint64_t began = vb_now();

		for (uint32_t j = 0; j < ROUNDS; j++) {
			struct vb_mem_use u;
			uint32_t k = keys[j * 7919 % n];

			if (vb_mem_begin(&x->t, &u,
					 &(struct vb_mem_want){.key = k | VB_KEY_REMOTE,
							       .remote = true,
							       .pd = PD,
							       .addr = (uint64_t)VB_KEY_PLACE(k) << 12,
							       .len = 8,
							       .access = RW},
					 NULL))
				fail_msg("a published key was refused");
			vb_mem_end(&u);
		}
		began = vb_now() - began;
		best = began < best ? began : best;
	}
	return best * 10 / ROUNDS;
}

static void a_million_regions(void **state)
{
	enum { N = 1 << 20 }; /* all that the device promises */
	uint32_t *keys = malloc(N * sizeof *keys);
	uint64_t few, many;
	struct table x;

	(void)state;
	make(&x, N + 1);
	for (uint32_t i = 0; i < N; i++) {
		keys[i] = vb_key_publish(&x.t, &(struct vb_key_spec){.pd = PD,
								     .access = LW | RW,
								     .iova = (uint64_t)(i + 1) << 12,
								     .addr = 0x1000,
								     .length = 0x1000});
		assert_int_equal(VB_KEY_PLACE(keys[i]), i + 1);
	}
	assert_int_equal(
	    vb_key_publish(&x.t,
			   &(struct vb_key_spec){.pd = PD, .access = LW, .iova = 0, .addr = 0, .length = 1}),
	    0); /* full */
	for (uint32_t i = 0; i < N; i++) {
		assert_int_equal(vb_mem_check(&x.t,
					      &(struct vb_mem_want){.key = keys[i],
								    .remote = false,
								    .pd = PD,
								    .addr = (uint64_t)(i + 1) << 12,
								    .len = 0x1000,
								    .access = LW},
					      NULL),
				 VB_OK);
		assert_int_equal(vb_mem_check(&x.t,
					      &(struct vb_mem_want){.key = keys[i],
								    .remote = false,
								    .pd = PD,
								    .addr = (uint64_t)(i + 2) << 12,
								    .len = 1,
								    .access = LW},
					      NULL),
				 VB_R_KEY_BOUNDS);
	}
	few = cost(&x, keys, 1);
	many = cost(&x, keys, N);
	print_message("begin+end: %lu.%lu ns on one region, %lu.%lu ns over a million\n",
		      (unsigned long)few / 10, (unsigned long)few % 10, (unsigned long)many / 10,
		      (unsigned long)many % 10);
	/* one goes, one comes: the oldest index is next */
	take_back(&x.t, keys[5]);
	take_back(&x.t, keys[3]);
	assert_int_equal(
	    VB_KEY_PLACE(vb_key_publish(
		&x.t, &(struct vb_key_spec){.pd = PD, .access = LW, .iova = 0, .addr = 0, .length = 1})),
	    6);
	assert_int_equal(
	    VB_KEY_PLACE(vb_key_publish(
		&x.t, &(struct vb_key_spec){.pd = PD, .access = LW, .iova = 0, .addr = 0, .length = 1})),
	    4);
	free(keys);
	unmake(&x);
}

/* Retracting waits for whoever has begun, and for nobody else. */
struct user {
	struct table *x;
	uint32_t key;
	_Atomic int stage;
};

static void *use_slowly(void *arg)
{
	struct user *w = arg;
	struct vb_mem_use u;

	assert_int_equal(
	    vb_mem_begin(
		&w->x->t, &u,
		&(struct vb_mem_want){
		    .key = w->key, .remote = false, .pd = PD, .addr = 0x1000, .len = 8, .access = LW},
		NULL),
	    VB_OK);
	atomic_store(&w->stage, 1);
	while (atomic_load(&w->stage) != 2)
		sched_yield();
	vb_mem_end(&u);
	return NULL;
}

static void *retract(void *arg)
{
	struct user *w = arg;

	take_back(&w->x->t, w->key);
	atomic_store(&w->stage, 3);
	return NULL;
}

/* The key is being retracted, which may come at any moment (and so between the two looks of try()): from then
 * on nobody gets in, while the user (its thread is `a`) is still there. */
static void let_go(struct user *w, pthread_t a)
{
	const struct vb_mem_want want = {.key = w->key, .pd = PD, .addr = 0x1000, .len = 8, .access = LW};
	struct vb_mem_use u;

	while (vb_mem_begin(&w->x->t, &u, &want, NULL) == VB_OK) {
		vb_mem_end(&u);
		sched_yield();
	}
	for (int i = 0; i < 100; i++) {
		sched_yield();
		assert_int_equal(atomic_load(&w->stage), 1);
	}
	atomic_store(&w->stage, 2);
	pthread_join(a, NULL);
}

static void retracting_waits_for_users(void **state)
{
	struct table x;
	struct user w = {.x = &x}, other = {.x = &x};
	pthread_t a, b, c;

	(void)state;
	make(&x, 64);
	w.key = vb_key_publish(
	    &x.t,
	    &(struct vb_key_spec){.pd = PD, .access = LW, .iova = 0x1000, .addr = 0x1000, .length = 0x1000});
	other.key = vb_key_publish(
	    &x.t,
	    &(struct vb_key_spec){.pd = PD, .access = LW, .iova = 0x1000, .addr = 0x1000, .length = 0x1000});
	pthread_create(&a, NULL, use_slowly, &w);
	pthread_create(&c, NULL, use_slowly, &other);
	while (atomic_load(&w.stage) != 1 || atomic_load(&other.stage) != 1)
		sched_yield();
	pthread_create(&b, NULL, retract, &w);
	let_go(&w, a);
	pthread_join(b, NULL); /* the other region's user does not hold this one */
	assert_int_equal(atomic_load(&w.stage), 3);
	atomic_store(&other.stage, 2);
	pthread_join(c, NULL);
	unmake(&x);
}

static void *change(void *arg)
{
	struct user *w = arg;

	vb_key_change(
	    &w->x->t, w->key,
	    &(struct vb_key_spec){.pd = PD, .access = LW, .iova = 0x1000, .addr = 0x5000, .length = 0x1000});
	atomic_store(&w->stage, 3);
	return NULL;
}

/* Who begins after a change finds the new meaning; who goes by the old one is waited for. */
static void changing_waits_for_users(void **state)
{
	struct table x;
	struct user w = {.x = &x};
	struct vb_mem_use u = {.ptr = NULL};
	pthread_t a, b;

	(void)state;
	make(&x, 64);
	w.key = vb_key_publish(
	    &x.t,
	    &(struct vb_key_spec){.pd = PD, .access = LW, .iova = 0x1000, .addr = 0x1000, .length = 0x1000});
	pthread_create(&a, NULL, use_slowly, &w);
	while (atomic_load(&w.stage) != 1)
		sched_yield();
	pthread_create(&b, NULL, change, &w);
	while ((uintptr_t)u.ptr != 0x5000) {
		assert_int_equal(
		    vb_mem_begin(
			&x.t, &u,
			&(struct vb_mem_want){.key = w.key, .pd = PD, .addr = 0x1000, .len = 8, .access = LW},
			NULL),
		    VB_OK);
		vb_mem_end(&u);
		sched_yield();
	}
	for (uint64_t end = vb_now() + 20 * VB_MSEC; vb_now() < end;)
		sched_yield();
	assert_int_equal(atomic_load(&w.stage), 1);
	atomic_store(&w.stage, 2);
	pthread_join(a, NULL);
	pthread_join(b, NULL);
	assert_int_equal(atomic_load(&w.stage), 3);
	take_back(&x.t, w.key);
	unmake(&x);
}

/* More threads than slots: the rest take turns. */
enum { CROWD = VB_MEM_SLOTS + 20 };
static pthread_barrier_t gate;

static void *use_once(void *arg)
{
	struct user *w = arg;
	struct vb_mem_use u;

	for (int i = 0; i < 50; i++) {
		assert_int_equal(
		    vb_mem_begin(
			&w->x->t, &u,
			&(struct vb_mem_want){
			    .key = w->key, .remote = false, .pd = PD, .addr = 0x1000, .len = 8, .access = LW},
			NULL),
		    VB_OK);
		if (!i) /* all have a slot of their own, or wait for the shared one */
			sched_yield();
		vb_mem_end(&u);
		if (!i)
			pthread_barrier_wait(&gate);
	}
	return NULL;
}

static void more_threads_than_slots(void **state)
{
	struct table x;
	struct user w = {.x = &x};
	pthread_t t[CROWD];

	(void)state;
	make(&x, 64);
	for (int round = 0; round < 3; round++) { /* slots of threads that ended are used again */
		w.key = vb_key_publish(
		    &x.t, &(struct vb_key_spec){
			      .pd = PD, .access = LW, .iova = 0x1000, .addr = 0x1000, .length = 0x1000});
		pthread_barrier_init(&gate, NULL, CROWD);
		for (int i = 0; i < CROWD; i++)
			assert_int_equal(pthread_create(&t[i], NULL, use_once, &w), 0);
		for (int i = 0; i < CROWD; i++)
			pthread_join(t[i], NULL);
		pthread_barrier_destroy(&gate);
		take_back(&x.t, w.key);
		for (int i = 0; i < VB_MEM_SLOTS; i++) {
			assert_int_equal(x.slots[i].index, 0);
			assert_int_equal(x.slots[i].shared.held, 0);
		}
	}
	unmake(&x);
}

/* Users and an owner who keeps taking the region away: after retracting, the plain bytes are the owner's.  A
 * race detector sees any touch that comes later; so does the check of the bytes. */
enum { USERS = 3, CYCLES = 3000, AREA = 64 };

struct arena {
	struct table x;
	_Atomic uint32_t key;
	_Atomic bool stop;
	_Atomic uint64_t hits, misses;
	uint8_t area[AREA];
};

static void *hammer(void *arg)
{
	struct arena *a = arg;
	uint64_t hits = 0, misses = 0;

	while (!atomic_load_explicit(&a->stop, memory_order_relaxed)) {
		uint32_t k = atomic_load_explicit(&a->key, memory_order_relaxed);
		struct vb_mem_use u;

		switch (vb_mem_begin(
		    &a->x.t, &u,
		    &(struct vb_mem_want){
			.key = k, .remote = true, .pd = PD, .addr = 0x9000, .len = AREA, .access = RW},
		    NULL)) {
		case VB_OK:
			if (u.ptr != a->area)
				fail_msg("a key led elsewhere");
			/* users do not exclude one another: atomic here, plain at the owner */
			for (int i = 0; i < AREA; i++)
				__atomic_store_n(u.ptr + i, 0xaa, __ATOMIC_RELAXED);
			vb_mem_end(&u);
			hits++;
			break;
		case VB_R_KEY_STALE:
			misses++;
			break;
		default:
			fail_msg("a stale key was called something else");
		}
	}
	atomic_fetch_add(&a->hits, hits);
	atomic_fetch_add(&a->misses, misses);
	return NULL;
}

static void no_touch_after_retract(void **state)
{
	static struct arena a;
	pthread_t t[USERS];
	uint32_t k;

	(void)state;
	make(&a.x, 4096);
	k = vb_key_publish(
	    &a.x.t,
	    &(struct vb_key_spec){
		.pd = PD, .access = LW | RW, .iova = 0x9000, .addr = (uintptr_t)a.area, .length = AREA});
	atomic_store(&a.key, k | VB_KEY_REMOTE);
	for (int i = 0; i < USERS; i++)
		assert_int_equal(pthread_create(&t[i], NULL, hammer, &a), 0);
	for (int c = 0; c < CYCLES; c++) {
		take_back(&a.x.t, k);
		memset(a.area, 0x55, AREA);
		for (int i = 0; i < 20; i++)
			vb_cpu_relax();
		for (int i = 0; i < AREA; i++)
			assert_int_equal(a.area[i], 0x55);
		k = vb_key_publish(&a.x.t, &(struct vb_key_spec){.pd = PD,
								 .access = LW | RW,
								 .iova = 0x9000,
								 .addr = (uintptr_t)a.area,
								 .length = AREA});
		atomic_store(&a.key, k | VB_KEY_REMOTE);
		if (c % 16 == 0)
			sched_yield();
	}
	while (__atomic_load_n(&a.area[AREA - 1], __ATOMIC_RELAXED) != 0xaa) /* somebody gets through */
		sched_yield();
	atomic_store(&a.stop, true);
	for (int i = 0; i < USERS; i++)
		pthread_join(t[i], NULL);
	assert_true(a.hits > 0);
	take_back(&a.x.t, k);
	unmake(&a.x);
}

/* Several keys at once: each is checked, and any retraction waits for the announcement of all. */
static void any_key_at_once(void **state)
{
	struct vb_mem_use u;
	struct table x;
	uint32_t k, k2;

	(void)state;
	make(&x, 64);
	assert_int_equal(x.marks.keys, 0); /* nothing that a peer would have to look at */
	k = vb_key_publish(
	    &x.t, &(struct vb_key_spec){
		      .pd = PD, .access = LW | RW, .iova = 0x5000, .addr = 0x10000, .length = 0x1000});
	k2 = vb_key_publish(
	    &x.t,
	    &(struct vb_key_spec){.pd = PD, .access = RR, .iova = 0x5000, .addr = 0x20000, .length = 0x1000});
	assert_int_equal(x.marks.keys, VB_KEY_PLACE(k2) + 1);
	assert_true(vb_mem_begin_any(&x.t, &u));
	assert_true(x.marks.slots >= 1);
	assert_ptr_equal(vb_slot_own(&x.t.slots), u.slot);
	assert_int_equal(u.slot->index, VB_KEY_ANY);
	assert_ptr_equal(
	    vb_mem_find(
		&x.t, &(struct vb_mem_want){.key = k, .pd = PD, .addr = 0x5800, .len = 0x800, .access = LW}),
	    (void *)0x10800);
	assert_ptr_equal(
	    vb_mem_find(
		&x.t, &(struct vb_mem_want){.key = k2, .pd = PD, .addr = 0x5000, .len = 0x1000, .access = 0}),
	    (void *)0x20000);
	assert_null(vb_mem_find(
	    &x.t,
	    &(struct vb_mem_want){.key = k2, .pd = PD, .addr = 0x5000, .len = 1, .access = LW})); /* access */
	assert_null(vb_mem_find(
	    &x.t, &(struct vb_mem_want){.key = k, .pd = PD, .addr = 0x5800, .len = 0x801, .access = LW}));
	assert_null(vb_mem_find(
	    &x.t, &(struct vb_mem_want){.key = k, .pd = PD, .addr = 0x4fff, .len = 1, .access = LW}));
	assert_null(vb_mem_find(
	    &x.t, &(struct vb_mem_want){.key = k, .pd = PD + 1, .addr = 0x5000, .len = 1, .access = LW}));
	assert_null(vb_mem_find(
	    &x.t, &(struct vb_mem_want){.key = k + 1, .pd = PD, .addr = 0x5000, .len = 1, .access = LW}));
	assert_null(vb_mem_find(
	    &x.t, &(struct vb_mem_want){
		      .key = k | VB_KEY_REMOTE, .pd = PD, .addr = 0x5000, .len = 1, .access = LW}));
	assert_null(
	    vb_mem_find(&x.t, &(struct vb_mem_want){.key = 0, .pd = PD, .addr = 0, .len = 0, .access = 0}));
	assert_null(vb_mem_find(
	    &x.t,
	    &(struct vb_mem_want){
		.key = 0x1fffffff, .pd = PD, .addr = 0x5000, .len = 1, .access = 0})); /* beyond the table */
	vb_mem_end(&u);
	assert_int_equal(u.slot->index, 0);
	take_back(&x.t, k);
	assert_null(vb_mem_find(
	    &x.t, &(struct vb_mem_want){.key = k, .pd = PD, .addr = 0x5000, .len = 1, .access = 0}));
	unmake(&x);
}

static void *use_any_slowly(void *arg)
{
	struct user *w = arg;
	struct vb_mem_use u;

	assert_true(vb_mem_begin_any(&w->x->t, &u));
	atomic_store(&w->stage, 1);
	while (atomic_load(&w->stage) != 2)
		sched_yield();
	vb_mem_end(&u);
	return NULL;
}

static void retracting_waits_for_who_uses_any(void **state)
{
	struct table x;
	struct user w = {.x = &x};
	pthread_t a, b;

	(void)state;
	make(&x, 64);
	w.key = vb_key_publish(
	    &x.t,
	    &(struct vb_key_spec){.pd = PD, .access = LW, .iova = 0x1000, .addr = 0x1000, .length = 0x1000});
	pthread_create(&a, NULL, use_any_slowly, &w);
	while (atomic_load(&w.stage) != 1)
		sched_yield();
	pthread_create(&b, NULL, retract, &w);
	let_go(&w, a);
	pthread_join(b, NULL);
	assert_int_equal(atomic_load(&w.stage), 3);
	unmake(&x);
}

/* Who announces all keys at once holds up what may be one of them, and no window. */
static void settling(void **state)
{
	struct table x;
	struct vb_mem_use u;
	uint32_t k, win, round;

	(void)state;
	make(&x, 64);
	k = vb_key_publish(&x.t, &(struct vb_key_spec){.pd = PD, .addr = 0x1000, .length = 0x1000});
	win = vb_key_publish(
	    &x.t, &(struct vb_key_spec){
		      .pd = PD, .access = RW, .kind = VB_KEY_WINDOW, .addr = 0x1000, .length = 0x1000});
	assert_true(vb_mem_begin_any(&x.t, &u));
	assert_null(vb_mem_find(
	    &x.t,
	    &(struct vb_mem_want){.key = win | VB_KEY_REMOTE, .pd = PD, .len = 1})); /* which is for peers */
	round = vb_key_hide(&x.t, k);
	vb_key_hide(&x.t, win);
	for (int i = 0; i < 10; i++)
		assert_false(vb_key_settled(&x.t, k, round));
	assert_true(vb_key_settled(&x.t, win, 0));
	u.slot->index = VB_KEY_PLACE(win);
	assert_true(vb_key_settled(&x.t, k, round));
	assert_false(vb_key_settled(&x.t, win, 0));
	vb_mem_end(&u);
	assert_true(vb_key_settled(&x.t, k, round));
	assert_true(vb_key_settled(&x.t, win, 0));
	unmake(&x);
}

/* Nor do those for ever who announce all keys again and again, each time before somebody looks. */
static void settling_in_rounds(void **state)
{
	struct vb_mem_use u, other;
	struct table x;
	uint32_t k, round, looks = 0;

	(void)state;
	make(&x, 64);
	k = vb_key_publish(&x.t, &(struct vb_key_spec){.pd = PD, .addr = 0x1000, .length = 0x1000});
	for (int late = 0; late < 4; late++) {
		assert_true(vb_mem_begin_any(&x.t, &u));
		other.slot = &x.slots[7]; /* another thread's, which stays where it is */
		x.marks.slots = 8;
		other.slot->index = VB_KEY_ANY;
		round = vb_key_hide(&x.t, k);
		for (int i = 0; i < 10; i++) {
			assert_true(vb_mem_begin_any(&x.t, &u));
			assert_false(vb_key_settled(&x.t, k, round));
		}
		other.slot->turn++; /* it has ended, and begun anew */
		for (looks = 0; !vb_key_settled(&x.t, k, round); looks++) {
			assert_true(looks < 3);
			other.slot->turn++;
			assert_true(vb_mem_begin_any(&x.t, &u));
		}
		vb_key_clear(&x.t, k, VB_KEY_MEMORY);
		vb_key_set(&x.t, k, &(struct vb_key_spec){.pd = PD, .addr = 0x1000, .length = 0x1000});
		other.slot->index = 0;
		vb_mem_end(&u);
	}
	unmake(&x);
}

/* An entry as a peer has it, whatever it says. */
static void resolving(void **state)
{
	struct vb_key_entry e = {
	    .key = 0x500, .pd = PD, .access = RR | LW, .iova = 0x7000, .length = 64, .addr = 0x9000};
	uint64_t at = 0;

	(void)state;
	assert_int_equal(
	    vb_key_resolve(
		&e, &(struct vb_mem_want){.key = 0x500, .pd = PD, .addr = 0x7010, .len = 48, .access = RR},
		&at),
	    VB_KEY_MEMORY);
	assert_int_equal(at, 0x9010);
	assert_int_equal(
	    vb_key_resolve(
		&e, &(struct vb_mem_want){.key = 0x500, .pd = PD, .addr = 0x7010, .len = 49, .access = RR},
		&at),
	    VB_KEY_KINDS);
	assert_int_equal(
	    vb_key_resolve(&e,
			   &(struct vb_mem_want){
			       .key = 0x500, .pd = PD, .addr = 0x7010, .len = UINT64_MAX, .access = RR},
			   &at),
	    VB_KEY_KINDS);
	assert_int_equal(
	    vb_key_resolve(
		&e, &(struct vb_mem_want){.key = 0x501, .pd = PD, .addr = 0x7010, .len = 8, .access = RR},
		&at),
	    VB_KEY_KINDS);
	assert_int_equal(
	    vb_key_resolve(
		&e, &(struct vb_mem_want){.key = 0x500, .pd = PD + 1, .addr = 0x7010, .len = 8, .access = RR},
		&at),
	    VB_KEY_KINDS);
	assert_int_equal(
	    vb_key_resolve(
		&e,
		&(struct vb_mem_want){.key = 0x500, .pd = PD, .addr = 0x7010, .len = 8, .access = RR | RW},
		&at),
	    VB_KEY_KINDS);
	e.seq = 7;
	assert_int_equal(
	    vb_key_resolve(
		&e, &(struct vb_mem_want){.key = 0x500, .pd = PD, .addr = 0x7010, .len = 8, .access = RR},
		&at),
	    VB_KEY_KINDS);
}

/* A table's keys begin somewhere of its own: those of another table lead nowhere in it. */
static void where_keys_begin(void **state)
{
	struct vb_key_spec s = {.pd = PD, .access = LW | RW, .iova = 0x1000, .addr = 0x5000, .length = 64};
	struct table x, y;
	uint32_t k, l = 0;

	(void)state;
	make(&x, 64);
	make(&y, VB_KEY_PLAIN);
	x.t.offset = 0x1234;
	x.t.variant = 0x56;
	y.t.offset = VB_KEY_OFFSET_MAX;
	y.t.variant = 0xff;
	k = vb_key_publish(&x.t, &s);
	assert_int_equal(k, 0x123556);
	assert_int_equal(vb_keys_index(&x.t, k), 1);
	for (uint32_t i = 1; i < VB_KEY_PLAIN; i++) {
		l = vb_key_publish(&y.t, &s);
		assert_int_equal(vb_keys_index(&y.t, l), i);
		assert_int_equal(l & (VB_KEY_REMOTE | VB_KEY_TAGGED), 0);
	}
	assert_int_equal(l, 0x3fffffff); /* the last one: nothing wraps */
	assert_int_equal(try(&x, k, false, PD, 0x1000, 8, LW, NULL), VB_OK);
	assert_int_equal(try(&y, l, false, PD, 0x1000, 8, LW, NULL), VB_OK);
	assert_int_equal(try(&x, l, false, PD, 0x1000, 8, LW, NULL), VB_R_KEY_UNKNOWN);
	assert_int_equal(try(&y, k, false, PD, 0x1000, 8, LW, NULL), VB_R_KEY_UNKNOWN);
	assert_int_equal(try(&x, 1u << 8, false, PD, 0x1000, 8, LW, NULL), VB_R_KEY_UNKNOWN);
	assert_int_equal(try(&x, 0x123456, false, PD, 0x1000, 8, LW, NULL), VB_R_KEY_UNKNOWN); /* index 0 */
	assert_int_equal(try(&x, 0, false, PD, 0x1000, 8, LW, NULL), VB_R_KEY_UNKNOWN);
	/* the index comes back with the next variant */
	take_back(&y.t, l);
	l = vb_key_publish(&y.t, &s);
	assert_int_equal(l, 0x3fffff00);
	unmake(&x);
	unmake(&y);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
	    cmocka_unit_test(a_key_leads_to_its_memory),
	    cmocka_unit_test(rule_19_bounds_by_subtraction),
	    cmocka_unit_test(rule_21_another_pd_fails),
	    cmocka_unit_test(permission_is_a_subset),
	    cmocka_unit_test(equal_keys),
	    cmocka_unit_test(wrong_keys_are_told_apart),
	    cmocka_unit_test(the_nearest_region_is_named),
	    cmocka_unit_test(ranges_are_measured),
	    cmocka_unit_test(rule_44_values_return_late),
	    cmocka_unit_test(a_million_regions),
	    cmocka_unit_test(retracting_waits_for_users),
	    cmocka_unit_test(changing_waits_for_users),
	    cmocka_unit_test(more_threads_than_slots),
	    cmocka_unit_test(no_touch_after_retract),
	    cmocka_unit_test(any_key_at_once),
	    cmocka_unit_test(retracting_waits_for_who_uses_any),
	    cmocka_unit_test(settling),
	    cmocka_unit_test(settling_in_rounds),
	    cmocka_unit_test(resolving),
	    cmocka_unit_test(where_keys_begin),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
