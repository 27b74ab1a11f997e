/* Keys of domains that several processes hold: in whose table each is looked up, what stands in the way, and
 * announcements.
 *
 * Two adapters of this process, `here` and `there`; each may be another process as far as the other can tell:
 * the kernel then copies within one and the same process. */
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

#include <cmocka.h>
#include <infiniband/verbs.h>

#include "mem/access.h"
#include "mem/peer_mem.h"
#include "mem/peer_key.h"

enum {
	LW = IBV_ACCESS_LOCAL_WRITE,
	RW = IBV_ACCESS_REMOTE_WRITE,
	RA = IBV_ACCESS_REMOTE_ATOMIC,
	ALL = LW | RW | RA | IBV_ACCESS_REMOTE_READ,
	AREA = 8192,
	NUMBERS = 3, /* that each adapter may have */
};

struct side {
	uint32_t number; /* first of its NUMBERS */
	uint64_t incarnation;
	uint32_t offset; /* of its keys */
	struct vb_keys keys;
	struct vb_key_entry *entries;
	struct vb_key_slot *slots;
	struct vb_key_marks *marks;
	struct vb_peer_mem mem; /* as the other one knows it */
	_Atomic uint32_t heard;
	uint64_t pd; /* made here */
	uint8_t *area;
};

static struct side here = {.number = 0x123, .incarnation = 0x1111222233334444, .offset = VB_KEY_OFFSET_MAX},
		   there = {.number = 0xfe0, .incarnation = 0x5555666677778888, .offset = 0x54321};
static unsigned asked, numbers_taken;

static struct vb_peer_mem *find(void *owner, uint32_t number)
{
	struct side *other = owner == &here ? &there : &here;

	return number >= other->number && number < other->number + NUMBERS ? &other->mem : NULL;
}

static uint32_t number_of(void *owner, uint32_t k)
{
	numbers_taken++;
	return k < NUMBERS ? ((struct side *)owner)->number + k : 0;
}

static void ask(void *owner, struct vb_peer_mem *f)
{
	(void)owner;
	(void)vb_peer_mem_next_ask(f);
	asked++;
}

static const struct vb_keys_ops ops = {.find = find, .number = number_of, .ask = ask};

static void *zeros(size_t n)
{
	void *p = mmap(NULL, n, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);

	assert_ptr_not_equal(p, MAP_FAILED);
	return p;
}

static void side_make(struct side *s)
{
	s->entries = zeros(VB_KEY_ENTRIES * sizeof *s->entries);
	s->slots = zeros(VB_MEM_SLOTS * sizeof *s->slots);
	s->marks = zeros(sizeof *s->marks);
	s->area = zeros(AREA);
	vb_keys_init(&s->keys, s->entries, VB_KEY_PLAIN, s->slots, s->marks);
	s->keys.offset = s->offset;
	s->keys.home = s->number << 20 | (uint32_t)(s->incarnation & 0xfffff);
	s->keys.ops = &ops;
	s->keys.owner = s;
	s->pd = (uint64_t)s->keys.home << 32 | 7;
	memset(&s->mem, 0, sizeof s->mem);
	s->mem.keys = s->entries;
	s->mem.marks = s->marks;
	s->mem.slots = s->slots;
	s->mem.heard = &s->heard;
	s->mem.token = 1;
	s->mem.number = s->number;
	s->mem.offset = s->offset;
	s->mem.pid = (uint32_t)getpid();
	s->mem.same = true;
	s->mem.tid = (int)syscall(SYS_gettid);
	s->mem.pidfd = -1;
	s->mem.there = s->incarnation;
	s->heard = 1;
}

static int set_up(void **state)
{
	(void)state;
	asked = numbers_taken = 0;
	side_make(&here);
	side_make(&there);
	return 0;
}

static void side_free(struct side *s)
{
	munmap(s->entries, VB_KEY_ENTRIES * sizeof *s->entries);
	munmap(s->slots, VB_MEM_SLOTS * sizeof *s->slots);
	munmap(s->marks, sizeof *s->marks);
	munmap(s->area, AREA);
}

static int tear_down(void **state)
{
	(void)state;
	side_free(&here);
	side_free(&there);
	return 0;
}

/* A region at the beginning of s's memory; its L_Key. */
static uint32_t reg(struct side *s, uint64_t pd, uint32_t access)
{
	return vb_key_publish(
	    &s->keys,
	    &(struct vb_key_spec){
		.pd = pd, .access = access, .iova = 0x1000, .addr = (uintptr_t)s->area, .length = AREA});
}

static struct vb_mem_want want(uint32_t key, uint64_t pd, uint32_t access)
{
	return (struct vb_mem_want){.key = key,
				    .remote = key & VB_KEY_REMOTE,
				    .access = access,
				    .pd = pd,
				    .addr = 0x1000 + 16,
				    .len = 8};
}

static enum vb_reason try(struct side *s, uint32_t key, uint64_t pd, uint32_t access)
{
	struct vb_mem_want w = want(key, pd, access);
	struct vb_mem_use u;
	struct vb_facts f = {0};
	enum vb_reason r = vb_mem_begin(&s->keys, &u, &w, &f);

	if (r == VB_OK)
		vb_mem_end(&u);
	else
		assert_int_equal(f.reason, r);
	/* it begins to be announced, or is not: nothing of it stays */
	assert_int_equal(vb_slot_own(&s->keys.slots)->via, 0);
	assert_int_equal(vb_slot_own(&s->keys.slots)->index, 0);
	if (!(access & RA))
		assert_int_equal(vb_mem_check(&s->keys, &w, &f), r);
	return r;
}

/* Where the bytes are that the key leads to, for a user in s. */
static uint8_t *place(struct side *s, uint32_t key, uint64_t pd)
{
	struct vb_mem_want w = want(key, pd, 0);
	struct vb_mem_use u;

	assert_int_equal(vb_mem_begin(&s->keys, &u, &w, NULL), VB_OK);
	vb_mem_end(&u);
	return u.ptr;
}

static void each_key_in_its_table(void **state)
{
	uint32_t own, home, tagged, theirs;

	(void)state;
	/* the same number in two tables, by chance: the domain decides */
	there.keys.offset = there.mem.offset = here.offset;
	own = reg(&here, here.pd, ALL);
	home = reg(&there, there.pd, ALL);
	assert_int_equal(own, home);
	assert_ptr_equal(place(&here, own, here.pd), here.area + 16);
	assert_ptr_equal(place(&here, home, there.pd), there.area + 16);
	assert_ptr_equal(place(&there, home, there.pd), there.area + 16);
	assert_ptr_equal(place(&there, own, here.pd), here.area + 16);
	assert_ptr_equal(place(&here, home | VB_KEY_REMOTE, there.pd), there.area + 16);
	/* made in a domain of another home: tagged, and good in both processes */
	tagged = reg(&here, there.pd, ALL);
	assert_true(tagged & VB_KEY_TAGGED);
	assert_false(tagged & VB_KEY_REMOTE);
	assert_int_equal(VB_KEY_NUMBER(tagged), here.number);
	assert_ptr_equal(place(&here, tagged, there.pd), here.area + 16);
	assert_ptr_equal(place(&there, tagged, there.pd), here.area + 16);
	assert_ptr_equal(place(&there, tagged | VB_KEY_REMOTE, there.pd), here.area + 16);
	theirs = reg(&there, here.pd, ALL);
	assert_ptr_equal(place(&here, theirs, here.pd), there.area + 16);
	/* for another domain each is another domain's, wherever it is looked up */
	assert_int_equal(try(&here, tagged, here.pd, 0), VB_R_KEY_PD);
	assert_int_equal(try(&there, tagged, here.pd, 0), VB_R_KEY_PD);
	assert_int_equal(try(&there, tagged, there.pd + 1, 0), VB_R_KEY_PD);
	assert_int_equal(try(&here, home, there.pd + 1, 0), VB_R_KEY_PD);
}

static void what_is_wrong_is_told(void **state)
{
	uint32_t k = reg(&there, there.pd, LW), t = reg(&there, here.pd, LW);
	struct vb_key_spec none = {.pd = there.pd, .kind = VB_KEY_NULL, .access = LW, .length = UINT64_MAX};
	struct vb_mem_want w = want(vb_key_publish(&there.keys, &none), there.pd, LW);
	struct vb_mem_use u;
	uint64_t word = 5;

	(void)state;
	assert_int_equal(try(&here, k, there.pd, LW), VB_OK);
	assert_int_equal(try(&here, k + 1, there.pd, LW), VB_R_KEY_UNKNOWN);
	assert_int_equal(try(&here, 99u << 8, there.pd, LW), VB_R_KEY_UNKNOWN);
	assert_int_equal(try(&here, k | VB_KEY_REMOTE, there.pd, RW), VB_R_KEY_ACCESS);
	assert_int_equal(try(&here, t + 1, here.pd, LW), VB_R_KEY_UNKNOWN);
	assert_int_equal(try(&here, t + (1u << 8), here.pd, LW), VB_R_KEY_UNKNOWN);
	assert_int_equal(try(&here, t + (1u << 18), here.pd, LW), VB_R_KEY_UNKNOWN); /* no keys under that */
	assert_int_equal(try(&here, t + (100u << 18), here.pd, LW), VB_R_KEY_NO_CONTACT);
	/* a null region is one there, too */
	assert_int_equal(vb_mem_begin(&here.keys, &u, &w, NULL), VB_OK);
	assert_int_equal(u.how, VB_USE_NULL);
	assert_true(vb_mem_put(&u, &word, 8));
	assert_true(vb_mem_get(&u, &word, 8) && !word);
	vb_mem_end(&u);
	/* taken back */
	vb_key_retract(&there.keys, t);
	assert_int_equal(try(&here, t, here.pd, LW), VB_R_KEY_STALE);
	vb_key_give(&there.keys, t);
	assert_int_equal(try(&here, t, here.pd, LW), VB_R_KEY_STALE);
}

static void who_is_not_there(void **state)
{
	uint32_t k = reg(&there, there.pd, ALL), t = reg(&there, here.pd, ALL);

	(void)state;
	there.heard = 0; /* in contact, but it does not look yet */
	assert_int_equal(try(&here, k, there.pd, 0), VB_R_KEY_NO_CONTACT);
	assert_int_equal(try(&here, t, here.pd, 0), VB_R_KEY_NO_CONTACT);
	there.heard = 1;
	there.mem.there = 0; /* gone */
	assert_int_equal(try(&here, k, there.pd, 0), VB_R_KEY_OWNER_GONE);
	assert_int_equal(try(&here, t, here.pd, 0), VB_R_KEY_OWNER_GONE);
	there.mem.there = there.incarnation + 1; /* another process has its number */
	assert_int_equal(try(&here, k, there.pd, 0), VB_R_KEY_OWNER_GONE);
	there.mem.there = there.incarnation;
	assert_int_equal(try(&here, k, there.pd, 0), VB_OK);
	/* our own number, of a process before us that is gone */
	assert_int_equal(try(&there, 1u << 8, there.pd ^ 1ull << 33, 0), VB_R_KEY_NO_CONTACT);
}

/* 1,024 under each number, one number after another; then it is full. */
static void numbers_run_out(void **state)
{
	enum { MANY = NUMBERS * VB_TAGGED_KEYS };
	uint32_t *keys = calloc(MANY, sizeof *keys), again;

	(void)state;
	assert_non_null(keys);
	for (unsigned i = 0; i < MANY; i++) {
		keys[i] = reg(&here, there.pd, ALL);
		assert_int_not_equal(keys[i], 0);
		assert_int_equal(VB_KEY_NUMBER(keys[i]), here.number + i / VB_TAGGED_KEYS);
	}
	assert_int_equal(reg(&here, there.pd, ALL), 0);
	assert_int_not_equal(reg(&here, here.pd, ALL), 0); /* the others have room */
	assert_ptr_equal(place(&there, keys[MANY - 1], there.pd), here.area + 16);
	assert_ptr_equal(place(&here, keys[MANY - 1], there.pd), here.area + 16);
	vb_key_retract(&here.keys, keys[5]);
	vb_key_give(&here.keys, keys[5]);
	again = reg(&here, there.pd, ALL);
	assert_int_equal(again & ~0xffu, keys[5] & ~0xffu); /* with another variant */
	assert_int_not_equal(again, keys[5]);
	assert_int_equal(try(&there, keys[5], there.pd, 0), VB_R_KEY_STALE);
	free(keys);
}

/* The kernel copies piece by piece: the last up to 8 aligned bytes are a piece of their own. */
static size_t last_piece;

ssize_t process_vm_writev(pid_t pid, const struct iovec *local, unsigned long nlocal,
			  const struct iovec *remote, unsigned long nremote, unsigned long flags)
{
	last_piece = local[nlocal - 1].iov_len;
	return syscall(SYS_process_vm_writev, pid, local, nlocal, remote, nremote, flags);
}

/* By the kernel, into what is another process as far as anybody knows. */
static void the_kernel_copies(void **state)
{
	uint32_t k = reg(&there, there.pd, LW), t = reg(&there, here.pd, LW);
	struct vb_mem_want w = {.key = k, .access = LW, .pd = there.pd, .addr = 0x1000, .len = AREA};
	uint8_t bytes[4200], back[4200];
	struct vb_facts f;
	struct vb_mem_use u;
	size_t tail;

	(void)state;
	there.mem.same = false;
	for (size_t i = 0; i < sizeof bytes; i++)
		bytes[i] = (uint8_t)(i * 3 + 1);
	for (size_t n = 1; n <= sizeof bytes; n = n < 40 ? n + 1 : n + 1031)
		for (uint64_t at = 0; at < 9; at++) {
			w.addr = 0x1000 + at;
			w.len = n;
			memset(there.area, 0, AREA);
			assert_int_equal(vb_mem_begin(&here.keys, &u, &w, NULL), VB_OK);
			assert_int_equal(u.how, VB_USE_PEER);
			assert_true(vb_mem_put(&u, bytes, (uint32_t)n));
			assert_true(vb_mem_get(&u, back, (uint32_t)n));
			vb_mem_end(&u);
			tail = (((uintptr_t)u.ptr + n - 1) & 7) + 1;
			assert_int_equal(last_piece, tail < n ? tail : n);
			assert_memory_equal(back, bytes, n);
			assert_memory_equal(there.area + at, bytes, n);
			assert_int_equal(there.area[at + n], 0);
			assert_true(!at || !there.area[at - 1]);
		}
	/* the second page goes */
	assert_int_equal(mprotect(there.area + 4096, 4096, PROT_NONE), 0);
	w.addr = 0x1000 + 4000;
	w.len = 200;
	assert_int_equal(vb_mem_begin(&here.keys, &u, &w, NULL), VB_OK);
	assert_false(vb_mem_get(&u, back, 200));
	assert_false(vb_mem_put(&u, bytes, 200));
	vb_mem_end(&u);
	assert_int_equal(vb_mem_why(&u, k, w.addr, 200, &f), VB_R_MEM_VANISHED);
	assert_int_equal(f.addr, w.addr);
	/* the kernel forbids */
	there.mem.denied = true;
	w = want(k, there.pd, LW);
	assert_int_equal(vb_mem_begin(&here.keys, &u, &w, &f), VB_R_MEM_FORBIDDEN);
	w = want(t, here.pd, LW);
	assert_int_equal(vb_mem_begin(&here.keys, &u, &w, &f), VB_R_MEM_FORBIDDEN);
	assert_int_equal(f.mem.process, getpid());
}

static void *whose_tid(void *arg)
{
	*(int *)arg = (int)syscall(SYS_gettid);
	return NULL;
}

/* The process lives and its thread is gone, as after exec(): the memory that the key spoke of has ended,
 * which is another thing than a kernel that forbids. */
static void its_program_is_another_now(void **state)
{
	struct vb_mem_want w = want(reg(&there, there.pd, LW), there.pd, LW);
	struct vb_mem_use u;
	struct vb_facts f;
	pthread_t t;
	uint64_t v;

	(void)state;
	there.mem.same = false;
	assert_int_equal(pthread_create(&t, NULL, whose_tid, &there.mem.tid), 0);
	assert_int_equal(pthread_join(t, NULL), 0);
	assert_int_equal(vb_mem_begin(&here.keys, &u, &w, NULL), VB_OK);
	assert_int_equal(u.how, VB_USE_PEER);
	assert_false(vb_mem_get(&u, &v, 8));
	vb_mem_end(&u);
	assert_int_equal(vb_mem_why(&u, w.key, w.addr, 8, &f), VB_R_KEY_OWNER_GONE);
	assert_int_equal(vb_mem_begin(&here.keys, &u, &w, NULL), VB_R_KEY_OWNER_GONE);
}

static void placement_leaves_them_alone(void **state)
{
	uint32_t k = reg(&there, there.pd, ALL), own = reg(&here, there.pd, ALL);
	struct vb_mem_want w = want(k, there.pd, 0);
	struct vb_mem_use u;

	(void)state;
	assert_true(vb_mem_begin_any(&here.keys, &u));
	assert_null(vb_mem_find(&here.keys, &w));
	w.key = own; /* tagged, but ours */
	assert_ptr_equal(vb_mem_find(&here.keys, &w), here.area + 16);
	vb_mem_end(&u);
}

static void atomics_need_a_mapping(void **state)
{
	uint32_t k = reg(&there, there.pd, ALL) | VB_KEY_REMOTE;
	struct vb_peer_region *s = &there.mem.shares[VB_KEY_PLACE(k) % VB_PEER_REGIONS];
	struct vb_mem_want w = want(k, there.pd, RA);
	struct vb_mem_use u;
	uint64_t orig;

	(void)state;
	/* the same process needs none */
	assert_int_equal(try(&here, k, there.pd, RA), VB_OK);
	there.mem.same = false;
	assert_int_equal(vb_mem_begin(&here.keys, &u, &w, NULL), (int)VB_MEM_LATER);
	assert_int_equal(asked, 1);
	assert_int_equal(s->rkey, k);
	assert_int_equal(s->state, VB_REGION_ASKED);
	s->state = VB_REGION_CANNOT;
	s->seq = there.entries[vb_peer_mem_index(&there.mem, k)].seq;
	assert_int_equal(try(&here, k, there.pd, RA), VB_R_ATOMIC_PEER);
	/* "mapped" */
	s->addr = (uintptr_t)there.area;
	s->length = AREA;
	s->write = true;
	s->state = VB_REGION_MAPPED;
	s->at = there.area;
	((uint64_t *)(void *)there.area)[2] = 40;
	assert_int_equal(vb_mem_begin(&here.keys, &u, &w, NULL), VB_OK);
	assert_true(vb_mem_fetch_add(&u, 2, &orig));
	vb_mem_end(&u);
	assert_int_equal(orig, 40);
	assert_int_equal(((uint64_t *)(void *)there.area)[2], 42);
}

struct waiter {
	uint32_t lkey;
	_Atomic int done;
};

static void *deregister(void *arg)
{
	struct waiter *w = arg;

	vb_key_retract(&there.keys, w->lkey);
	vb_peer_mem_wait(&here.mem, there.number, vb_peer_mem_index(&there.mem, w->lkey), 0, "test");
	atomic_store(&w->done, 1);
	return NULL;
}

/* Who deregisters waits for a user in another process, and for nothing else of that one. */
static void the_owner_waits(void **state)
{
	uint32_t other = reg(&there, there.pd, ALL),
		 k[2] = {reg(&there, there.pd, ALL), reg(&there, here.pd, ALL)};

	(void)state;
	for (int i = 0; i < 2; i++) {
		struct vb_mem_want w = want(k[i], i ? here.pd : there.pd, 0);
		struct waiter x = {.lkey = k[i]};
		struct vb_mem_use u;
		pthread_t t;

		assert_int_equal(vb_mem_begin(&here.keys, &u, &w, NULL), VB_OK);
		assert_true(vb_peer_mem_in_use(&here.mem, there.number, vb_peer_mem_index(&there.mem, k[i])));
		assert_false(
		    vb_peer_mem_in_use(&here.mem, there.number, vb_peer_mem_index(&there.mem, other)));
		assert_false(
		    vb_peer_mem_in_use(&here.mem, there.number + 1, vb_peer_mem_index(&there.mem, k[i])));
		vb_peer_mem_wait(&here.mem, there.number, vb_peer_mem_index(&there.mem, other), 0, "test");
		vb_peer_mem_wait(&here.mem, there.number, 0, 0x123456, "a QP's permission");
		assert_int_equal(pthread_create(&t, NULL, deregister, &x), 0);
		usleep(20000);
		assert_int_equal(atomic_load(&x.done), 0);
		vb_mem_end(&u);
		assert_int_equal(pthread_join(t, NULL), 0);
		assert_int_equal(atomic_load(&x.done), 1);
		assert_int_equal(vb_mem_begin(&here.keys, &u, &w, NULL), VB_R_KEY_STALE);
	}
}

/* More threads than slots: the last one is shared, under its lock. */
static void *use_much(void *arg)
{
	uint32_t k = *(uint32_t *)arg;

	for (int i = 0; i < 300; i++) {
		struct vb_mem_want w = want(k, there.pd, RW);
		struct vb_mem_use u;

		assert_int_equal(vb_mem_begin(&here.keys, &u, &w, NULL), VB_OK);
		(void)!vb_mem_put(&u, &(uint64_t){7}, 8);
		vb_mem_end(&u);
		w.access = 0;
		w.key = 0x5500; /* nobody's */
		w.remote = false;
		assert_int_equal(vb_mem_begin(&here.keys, &u, &w, NULL), VB_R_KEY_UNKNOWN);
	}
	return NULL;
}

static void many_threads(void **state)
{
	enum { THREADS = VB_MEM_SLOTS + 8 };
	uint32_t k = reg(&there, there.pd, ALL) | VB_KEY_REMOTE;
	pthread_t t[THREADS];

	(void)state;
	for (int i = 0; i < THREADS; i++)
		assert_int_equal(pthread_create(&t[i], NULL, use_much, &k), 0);
	for (int i = 0; i < THREADS; i++)
		assert_int_equal(pthread_join(t[i], NULL), 0);
	for (int i = 0; i < VB_MEM_SLOTS; i++)
		assert_true(!here.slots[i].via && !here.slots[i].shared.held);
}

/* Between looking the owner up and announcing the key its number becomes another's: this happens while the
 * thread waits for the slot that it shares with others, whose lock is given as soon as it waits. */
static _Atomic bool waiting_is_seen;

int sched_yield(void)
{
	if (atomic_exchange(&waiting_is_seen, false)) {
		there.mem.number += 16;
		vb_lock_give(&here.slots[VB_MEM_SLOTS - 1].shared);
	}
	return (int)syscall(SYS_sched_yield);
}

struct crowd {
	pthread_barrier_t have_slots, done;
	uint32_t key[2];
	bool shares;			       /* the one that is overtaken has no slot of its own */
	enum vb_reason overtaken[2], later[2]; /* how its accesses by the two keys began */
	bool seen[2], left[2];		       /* it waited; its slot names something afterwards */
};

static void *has_a_slot(void *arg)
{
	struct crowd *c = arg;

	(void)vb_slot_own(&here.keys.slots);
	pthread_barrier_wait(&c->have_slots);
	pthread_barrier_wait(&c->done);
	return NULL;
}

static void *takes(void *lock)
{
	vb_lock_take(lock);
	return NULL;
}

static void *is_overtaken(void *arg)
{
	struct vb_key_slot *slot = &here.slots[VB_MEM_SLOTS - 1];
	struct crowd *c = arg;
	pthread_t another;

	pthread_barrier_wait(&c->have_slots);
	c->shares = !vb_slot_own(&here.keys.slots);
	for (int i = 0; i < 2; i++) {
		struct vb_mem_want w = want(c->key[i], i ? here.pd : there.pd, 0);
		struct vb_mem_use u;

		if (pthread_create(&another, NULL, takes, &slot->shared) || pthread_join(another, NULL))
			break;
		atomic_store(&waiting_is_seen, true);
		c->overtaken[i] = vb_mem_begin(&here.keys, &u, &w, NULL);
		c->seen[i] = !atomic_load(&waiting_is_seen);
		c->left[i] = slot->via != 0;
		if (c->overtaken[i] == VB_OK)
			vb_mem_end(&u);
		there.mem.number -= 16;
		c->later[i] = vb_mem_begin(&here.keys, &u, &w, NULL);
		if (c->later[i] == VB_OK)
			vb_mem_end(&u);
	}
	pthread_barrier_wait(&c->done);
	return NULL;
}

static void whose_number_is_anothers_now(void **state)
{
	enum { THREADS = VB_MEM_SLOTS }; /* one more than have slots of their own */
	struct crowd c = {.key = {reg(&there, there.pd, ALL), reg(&there, here.pd, ALL)}};
	pthread_t t[THREADS];

	(void)state;
	pthread_barrier_init(&c.have_slots, NULL, THREADS);
	pthread_barrier_init(&c.done, NULL, THREADS);
	for (int i = 0; i < THREADS; i++)
		assert_int_equal(pthread_create(&t[i], NULL, i ? has_a_slot : is_overtaken, &c), 0);
	for (int i = 0; i < THREADS; i++)
		assert_int_equal(pthread_join(t[i], NULL), 0);
	assert_true(c.shares);
	for (int i = 0; i < 2; i++) {
		assert_true(c.seen[i]);
		assert_int_equal(c.overtaken[i], VB_R_KEY_OWNER_GONE);
		assert_false(c.left[i]);
		assert_int_equal(c.later[i], VB_OK);
	}
	pthread_barrier_destroy(&c.have_slots);
	pthread_barrier_destroy(&c.done);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
	    cmocka_unit_test_setup_teardown(each_key_in_its_table, set_up, tear_down),
	    cmocka_unit_test_setup_teardown(what_is_wrong_is_told, set_up, tear_down),
	    cmocka_unit_test_setup_teardown(who_is_not_there, set_up, tear_down),
	    cmocka_unit_test_setup_teardown(numbers_run_out, set_up, tear_down),
	    cmocka_unit_test_setup_teardown(the_kernel_copies, set_up, tear_down),
	    cmocka_unit_test_setup_teardown(its_program_is_another_now, set_up, tear_down),
	    cmocka_unit_test_setup_teardown(placement_leaves_them_alone, set_up, tear_down),
	    cmocka_unit_test_setup_teardown(atomics_need_a_mapping, set_up, tear_down),
	    cmocka_unit_test_setup_teardown(the_owner_waits, set_up, tear_down),
	    cmocka_unit_test_setup_teardown(many_threads, set_up, tear_down),
	    cmocka_unit_test_setup_teardown(whose_number_is_anothers_now, set_up, tear_down),
	};

	return cmocka_run_group_tests_name("peer_key", tests, NULL, NULL);
}
