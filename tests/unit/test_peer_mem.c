/* Another adapter's tables: who gets through, who does not, rubbish, announcements and the wait for them.
 *
 * Two adapters in this process: `here` reaches, `there` owns the memory.  There is no way to reach it but by
 * address, as within one process. */
#include <pthread.h>
#include <sched.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>
#include <infiniband/verbs.h>

#include "base/clock.h"
#include "iba/limits.h"
#include "mem/access.h"
#include "mem/grant.h"
#include "mem/peer_mem.h"

enum {
	LW = IBV_ACCESS_LOCAL_WRITE,
	RW = IBV_ACCESS_REMOTE_WRITE,
	RR = IBV_ACCESS_REMOTE_READ,
	RA = IBV_ACCESS_REMOTE_ATOMIC,
	PD = 7,
	PSN = 0xfffffe,
	NUMBER_HERE = 0x123,
	NUMBER_THERE = 0xfed,
	QPN_HERE = NUMBER_HERE << 12 | 5,
	QPN_THERE = NUMBER_THERE << 12 | 9,
	AREA = 4096,
	OFFSET = 0x2f0f0, /* of the keys there */
};
static const uint64_t INCARNATION = 0x1122334455667788ull;

struct side {
	struct vb_keys keys;
	struct vb_key_entry *entries;
	struct vb_key_slot *slots;
	struct vb_key_marks marks;
};

struct world {
	struct side here, there;
	struct vb_peer_mem mem;	 /* what `here` knows of `there` */
	struct vb_peer_mem back; /* and the other way round */
	struct vb_shown_qp qp;
	uint8_t area[AREA];
	uint32_t rkey;
	struct vb_peer_mem_want want;
};

#define TABLE ((VB_MAX_MR + 1) * sizeof(struct vb_key_entry))

static void side_make(struct side *s)
{
	s->entries =
	    mmap(NULL, TABLE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
	assert_ptr_not_equal(s->entries, MAP_FAILED);
	s->slots = aligned_alloc(VB_LINE, VB_MEM_SLOTS * sizeof *s->slots);
	memset(s->slots, 0, VB_MEM_SLOTS * sizeof *s->slots);
	memset(&s->marks, 0, sizeof s->marks);
	vb_keys_init(&s->keys, s->entries, VB_MAX_MR + 1, s->slots, &s->marks);
}

static int set_up(void **state)
{
	struct world *w = aligned_alloc(VB_LINE, (sizeof *w + VB_LINE - 1) & ~(size_t)(VB_LINE - 1));

	memset(w, 0, sizeof *w);
	side_make(&w->here);
	side_make(&w->there);
	w->mem = (struct vb_peer_mem){.keys = w->there.entries,
				      .marks = &w->there.marks,
				      .slots = w->there.slots,
				      .here = INCARNATION,
				      .number = NUMBER_THERE,
				      .pid = (uint32_t)getpid(),
				      .same = true};
	w->back = w->mem;
	w->back.keys = w->here.entries;
	w->back.marks = &w->here.marks;
	w->back.slots = w->here.slots;
	w->back.number = NUMBER_HERE;
	w->there.keys.offset = w->mem.offset = OFFSET;
	w->qp.dest_qpn = QPN_HERE;
	w->qp.pd = PD;
	w->qp.peer = INCARNATION;
	w->qp.path_mtu = IBV_MTU_2048;
	w->qp.type = IBV_QPT_RC;
	w->qp.reads = 4;
	w->qp.received = VB_SHOWN_RECEIVED | PSN;
	w->qp.may = RW | RR | RA;
	w->rkey = vb_key_publish(&w->there.keys, &(struct vb_key_spec){.pd = PD,
								       .access = LW | RW | RR | RA,
								       .iova = 0x50000,
								       .addr = (uintptr_t)w->area,
								       .length = AREA}) |
		  VB_KEY_REMOTE;
	w->want = (struct vb_peer_mem_want){.qp = &w->qp,
					    .peer_qpn = QPN_THERE,
					    .qpn = QPN_HERE,
					    .path_mtu = IBV_MTU_2048,
					    .type = IBV_QPT_RC,
					    .psn = PSN,
					    .rkey = w->rkey,
					    .access = RW,
					    .addr = 0x50000,
					    .len = 8};
	*state = w;
	return 0;
}

static int tear_down(void **state)
{
	struct world *w = *state;

	munmap(w->here.entries, TABLE);
	munmap(w->there.entries, TABLE);
	free(w->here.slots);
	free(w->there.slots);
	free(w);
	return 0;
}

static bool announced(const struct world *w)
{
	for (int i = 0; i < VB_MEM_SLOTS; i++)
		if (w->here.slots[i].placing)
			return true;
	return false;
}

/* By vb_peer_mem_begin(), which leaves an announcement exactly where it succeeds. */
static enum vb_means try(struct world *w, const struct vb_peer_mem_want *x)
{
	struct vb_peer_mem_use u;
	enum vb_means m = vb_peer_mem_begin(&w->mem, &w->here.keys, &u, x);

	assert_int_equal(announced(w), m != VB_MEANS_NONE);
	if (m != VB_MEANS_NONE)
		vb_peer_mem_end(&u);
	assert_false(announced(w));
	assert_int_equal(vb_peer_mem_likely(&w->mem, x), m != VB_MEANS_NONE);
	return m;
}

static void permitted(void **state)
{
	struct world *w = *state;
	struct vb_peer_mem_want x = w->want;
	struct vb_peer_mem_use u;

	x.addr += 100;
	assert_int_equal(vb_peer_mem_begin(&w->mem, &w->here.keys, &u, &x), VB_MEANS_MAPPED);
	assert_ptr_equal(u.ptr, w->area + 100);
	vb_peer_mem_end(&u);
	x.addr = 0x50000;
	x.len = AREA;
	assert_int_equal(try(w, &x), VB_MEANS_MAPPED);
	x.access = RR;
	assert_int_equal(try(w, &x), VB_MEANS_MAPPED);
	x.access = RA;
	assert_int_equal(try(w, &x), VB_MEANS_MAPPED);
}

static void not_permitted(void **state)
{
	struct world *w = *state;
	struct vb_peer_mem_want x;
	uint32_t weak;

	for (int i = 0; i < 10; i++) {
		x = w->want;
		switch (i) {
		case 0: /* one byte out, at either end */
			x.addr += AREA - 7;
			break;
		case 1:
			x.addr--;
			break;
		case 2:
			x.len = UINT64_MAX - 4;
			break;
		case 3: /* an L_Key */
			x.rkey &= ~VB_KEY_REMOTE;
			break;
		case 4: /* stale */
			x.rkey ^= 1;
			break;
		case 5: /* of a shared PD, or with a bit that no key has */
			x.rkey |= VB_KEY_TAGGED;
			break;
		case 6:
			x.rkey |= 1u << 29;
			break;
		case 7: /* index 0, never given */
			x.rkey = VB_KEY_REMOTE;
			break;
		case 8: /* beyond what is in use */
			x.rkey += 1u << 8;
			break;
		case 9: /* beyond the table */
			x.rkey = VB_KEY_REMOTE | 0x3fffffu << 8;
		}
		assert_int_equal(try(w, &x), VB_MEANS_NONE);
	}
	x = w->want; /* the region does not permit it */
	weak = vb_key_publish(&w->there.keys, &(struct vb_key_spec){.pd = PD,
								    .access = LW | RR,
								    .iova = 0x50000,
								    .addr = (uintptr_t)w->area,
								    .length = AREA}) |
	       VB_KEY_REMOTE;
	x.rkey = weak;
	assert_int_equal(try(w, &x), VB_MEANS_NONE);
	x.access = RR;
	assert_int_equal(try(w, &x), VB_MEANS_MAPPED);
	x = w->want; /* nor the QP */
	w->qp.may = RR;
	assert_int_equal(try(w, &x), VB_MEANS_NONE);
	w->qp.may = 0;
	x.access = RR;
	assert_int_equal(try(w, &x), VB_MEANS_NONE);
	w->qp.may = RW;
	w->qp.pd = PD + 1; /* a QP of another PD than the region */
	assert_int_equal(try(w, &w->want), VB_MEANS_NONE);
}

static void another_type(void **state)
{
	struct world *w = *state;
	struct vb_peer_mem_want x = w->want;

	x.type = IBV_QPT_UC;
	assert_int_equal(try(w, &x), VB_MEANS_NONE);
	w->qp.type = IBV_QPT_UC;
	assert_int_equal(try(w, &x), VB_MEANS_MAPPED);
}

static void more_reads(void **state)
{
	struct world *w = *state;
	struct vb_peer_mem_want x = w->want;

	x.access = RR;
	x.reads = 4;
	assert_int_equal(try(w, &x), VB_MEANS_MAPPED);
	x.reads = 5;
	assert_int_equal(try(w, &x), VB_MEANS_NONE);
}

/* rule 18: of nothing no key is looked at, but the QP's permission */
static void nothing(void **state)
{
	struct world *w = *state;
	struct vb_peer_mem_want x = w->want;

	x.len = 0;
	x.rkey = 0;
	assert_int_equal(try(w, &x), VB_MEANS_QP);
	w->qp.may = RR;
	assert_int_equal(try(w, &x), VB_MEANS_NONE);
}

static void not_our_queue_pair(void **state)
{
	struct world *w = *state;

	w->qp.dest_qpn = QPN_HERE + 1;
	assert_int_equal(try(w, &w->want), VB_MEANS_NONE);
	w->qp.dest_qpn = QPN_HERE;
	w->qp.peer = INCARNATION + 1; /* of an adapter that had our number before us */
	assert_int_equal(try(w, &w->want), VB_MEANS_NONE);
	w->qp.peer = INCARNATION;
	assert_int_equal(try(w, &w->want), VB_MEANS_MAPPED);
}

/* Where the ends do not agree, the wire finds out what becomes of it: also of nothing. */
static void not_as_agreed(void **state)
{
	/* None yet; more or less than this end's next.  What stands behind requests that are still on their
	 * way has a later one than is expected now, so whether it will be permitted is not seen by that. */
	static const uint32_t others[] = {0, VB_SHOWN_RECEIVED | (PSN + 1), VB_SHOWN_RECEIVED | (PSN - 1),
					  PSN};
	struct world *w = *state;
	struct vb_peer_mem_want x = w->want;
	struct vb_peer_mem_use u;

	for (int i = 0; i < 2; i++, x.len = 0) {
		w->qp.path_mtu = IBV_MTU_1024;
		assert_int_equal(try(w, &x), VB_MEANS_NONE);
		w->qp.path_mtu = IBV_MTU_2048;
		for (size_t k = 0; k < sizeof others / sizeof others[0]; k++) {
			w->qp.received = others[k];
			assert_int_equal(vb_peer_mem_begin(&w->mem, &w->here.keys, &u, &x), VB_MEANS_NONE);
			assert_false(announced(w));
			assert_true(vb_peer_mem_likely(&w->mem, &x));
		}
		w->qp.received = VB_SHOWN_RECEIVED | PSN;
		assert_int_equal(try(w, &x), i ? VB_MEANS_QP : VB_MEANS_MAPPED);
	}
}

/* What a mad peer may have in its tables leads nowhere outside of them. */
static void hostile_tables(void **state)
{
	struct world *w = *state;
	struct vb_peer_mem_want x = w->want;
	struct vb_key_entry *e = &w->there.entries[vb_peer_mem_index(&w->mem, w->rkey)];

	w->there.marks.keys = UINT32_MAX;
	x.rkey = VB_KEY_REMOTE | 0x3fffffu << 8; /* no such entry in any table */
	assert_int_equal(try(w, &x), VB_MEANS_NONE);
	x.rkey = VB_KEY_REMOTE | (OFFSET + VB_MAX_MR + 1u) << 8;
	assert_int_equal(try(w, &x), VB_MEANS_NONE);
	x.rkey = VB_KEY_REMOTE | (OFFSET + VB_MAX_MR) << 8; /* the last one, all zero */
	assert_int_equal(try(w, &x), VB_MEANS_NONE);
	assert_int_equal(try(w, &w->want), VB_MEANS_MAPPED);
	w->there.marks.keys = 0; /* nothing in use: entries are not looked at */
	assert_int_equal(try(w, &w->want), VB_MEANS_NONE);
	w->there.marks.keys = vb_peer_mem_index(&w->mem, w->rkey) + 1;
	e->seq++; /* being changed */
	assert_int_equal(try(w, &w->want), VB_MEANS_NONE);
	e->seq++;
	assert_int_equal(try(w, &w->want), VB_MEANS_MAPPED);
	e->length = UINT64_MAX; /* a region round the end of the address space */
	x = w->want;
	x.addr = 0;
	assert_int_equal(try(w, &x), VB_MEANS_NONE);
	e->key |= VB_KEY_TAGGED;
	assert_int_equal(try(w, &w->want), VB_MEANS_NONE);
	/* keys that begin where none can lead to no entry outside the table */
	for (uint32_t bit = 0; bit < 32; bit++)
		for (uint32_t place = 0; place < 1u << VB_KEY_BITS; place += 4097) {
			uint32_t key = VB_KEY_REMOTE | place << 8;

			assert_in_range(vb_key_index(&w->there.marks, 1u << bit, key), 0, VB_KEY_PLAIN - 1);
			assert_in_range(vb_key_index(&w->there.marks, ~(1u << bit), key), 0,
					VB_KEY_PLAIN - 1);
		}
}

static struct vb_peer_mem *find_it(void *owner, uint32_t number)
{
	struct world *w = owner;

	return number == NUMBER_THERE ? &w->mem : NULL;
}

/* A hostile table of the process whose shared domain a key is of: who looks comes to an end. */
static void hostile_tables_of_a_shared_domain(void **state)
{
	static const struct vb_keys_ops ops = {.find = find_it};
	const uint64_t pd = (uint64_t)NUMBER_THERE << 52 | PD;
	struct world *w = *state;
	struct vb_key_entry *e = &w->there.entries[vb_peer_mem_index(&w->mem, w->rkey)];
	struct vb_mem_want want = {
	    .key = w->rkey, .remote = true, .access = RW, .pd = pd, .addr = 0x50000, .len = 8};
	_Atomic uint32_t heard = 1;
	struct vb_mem_use u;
	struct vb_facts f;

	w->here.keys.ops = &ops;
	w->here.keys.owner = w;
	w->here.keys.home = NUMBER_HERE << 20;
	w->mem.there = 1ull << 32;
	w->mem.heard = &heard;
	w->mem.token = 1;
	e->pd = pd;
	assert_int_equal(vb_mem_begin(&w->here.keys, &u, &want, &f), VB_OK);
	assert_ptr_equal(u.ptr, w->area);
	vb_mem_end(&u);
	e->kind = VB_KEY_KINDS; /* there is no such kind */
	assert_int_equal(vb_mem_begin(&w->here.keys, &u, &want, &f), VB_R_KEY_STALE);
	e->kind = 0x7fffffff;
	assert_int_equal(vb_mem_begin(&w->here.keys, &u, &want, &f), VB_R_KEY_STALE);
	e->kind = VB_KEY_MEMORY;
	e->seq++;
	assert_int_equal(vb_mem_begin(&w->here.keys, &u, &want, &f), VB_R_KEY_STALE);
	e->seq++;
	assert_int_equal(vb_mem_begin(&w->here.keys, &u, &want, &f), VB_OK);
	vb_mem_end(&u);
}

/* An answer about no key takes no place. */
static void an_answer_to_no_question(void **state)
{
	struct world *w = *state;
	const struct vb_share_desc none = {.kind = VB_SHARE_NONE, .length = AREA};

	assert_int_equal(vb_peer_mem_answer(&w->mem, 0, 0, 0x50000, &none, -1, true), 0);
	assert_int_equal(w->mem.shares[0].state, VB_REGION_FREE);
	assert_int_equal(vb_peer_mem_answer(&w->mem, w->rkey, 0, 0x50000, &none, -1, true), 0);
	assert_int_equal(w->mem.shares[VB_KEY_PLACE(w->rkey) % VB_PEER_REGIONS].state, VB_REGION_FREE);
}

/* No thread of its own there, or one that the kernel keeps us from. */
static void without_means(void **state)
{
	struct world *w = *state;

	w->mem.same = false;
	w->mem.denied = true;
	assert_int_equal(try(w, &w->want), VB_MEANS_NONE);
	w->mem.denied = false;
	w->mem.tid = (int)syscall(SYS_gettid);
	w->mem.pidfd = (int)syscall(SYS_pidfd_open, getpid(), 0);
	assert_true(w->mem.pidfd >= 0);
	assert_int_equal(try(w, &w->want), VB_MEANS_VM);
	close(w->mem.pidfd);
}

struct waiting {
	struct world *w;
	uint32_t number, index, qpn;
	_Atomic bool began, done;
};

static void *drop_it(void *arg)
{
	struct waiting *x = arg;

	atomic_store(&x->began, true);
	vb_peer_mem_drop(&x->w->mem, &x->w->here.keys, 0);
	atomic_store(&x->done, true);
	return NULL;
}

/* A mapping serves what its owner said of it and no more: an owner may say less than its key does, and what
 * it said is void once the entry has changed. */
static void a_mapping_is_what_was_said(void **state)
{
	struct world *w = *state;
	int fd, file = memfd_create("test", MFD_CLOEXEC);
	struct vb_peer_mem_want x = w->want;
	struct vb_key_entry *e;
	struct waiting drop = {.w = w};
	struct vb_share_desc d;
	struct vb_peer_mem_use u;
	pthread_t t;
	uint8_t *p;

	assert_true(file >= 0 && !ftruncate(file, AREA));
	p = mmap(NULL, AREA, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
	assert_ptr_not_equal(p, MAP_FAILED);
	x.rkey = vb_key_publish(&w->there.keys, &(struct vb_key_spec){.pd = PD,
								      .access = LW | RW | RR | RA,
								      .iova = 0x50000,
								      .addr = (uintptr_t)p,
								      .length = AREA}) |
		 VB_KEY_REMOTE;
	e = &w->there.entries[vb_peer_mem_index(&w->mem, x.rkey)];
	w->mem.same = false;
	w->mem.tid = (int)syscall(SYS_gettid);
	w->mem.pidfd = (int)syscall(SYS_pidfd_open, getpid(), 0);
	x.access = RR;
	for (int i = 0; i < 16 && !atomic_load(&w->mem.asks); i++)
		assert_int_equal(try(w, &x), VB_MEANS_VM);
	assert_int_equal(vb_peer_mem_next_ask(&w->mem), x.rkey);
	/* the second quarter and the third one, for reading */
	vb_share_find((uintptr_t)p + AREA / 4, AREA / 2, true, &d, &fd);
	assert_int_equal(d.kind, VB_SHARE_FILE);
	assert_int_equal(vb_peer_mem_answer(&w->mem, x.rkey, e->seq, (uintptr_t)p + AREA / 4, &d, fd, false),
			 0);
	x.addr += AREA / 4;
	assert_int_equal(try(w, &x), VB_MEANS_MAPPED);
	x.len = AREA / 2;
	assert_int_equal(try(w, &x), VB_MEANS_MAPPED);
	x.len++;
	assert_int_equal(try(w, &x), VB_MEANS_VM);
	x.len = 8;
	x.addr--;
	assert_int_equal(try(w, &x), VB_MEANS_VM);
	x.addr += AREA / 2 - 6;
	assert_int_equal(try(w, &x), VB_MEANS_VM);
	x.addr -= 16;
	assert_int_equal(try(w, &x), VB_MEANS_MAPPED);
	x.access = RW;
	assert_int_equal(try(w, &x), VB_MEANS_VM);
	x.access = RA;
	assert_int_equal(try(w, &x), VB_MEANS_VM);
	x.access = RR;
	e->seq += 2;
	assert_int_equal(try(w, &x), VB_MEANS_VM);
	e->seq -= 2;
	/* it stays mapped for who is in the middle of a copy */
	assert_int_equal(vb_peer_mem_begin(&w->mem, &w->here.keys, &u, &x), VB_MEANS_MAPPED);
	assert_int_equal(pthread_create(&t, NULL, drop_it, &drop), 0);
	for (uint64_t end = vb_now() + 20 * VB_MSEC; !atomic_load(&drop.began) || vb_now() < end;)
		sched_yield();
	assert_false(atomic_load(&drop.done));
	assert_int_equal(*(volatile uint8_t *)u.ptr, 0);
	vb_peer_mem_end(&u);
	pthread_join(t, NULL);
	assert_int_equal(try(w, &x), VB_MEANS_VM);
	close(w->mem.pidfd);
	close(fd);
	close(file);
	munmap(p, AREA);
}

/* By a grant: where `len` bytes at addr are, NULL: it does not lead there.  An announcement is left exactly
 * where it does. */
static uint8_t *by_grant(struct world *w, const struct vb_peer_mem_grant *g, uint32_t psn, uint64_t addr,
			 uint32_t len)
{
	struct vb_key_slot *slot = vb_slot_own(&w->here.keys.slots);
	uint8_t *p;

	if (!vb_grant_is_of(g, w->rkey, addr, len))
		return NULL;
	p = vb_grant_begin(g, &w->qp, slot, psn, addr, len);
	assert_int_equal(announced(w), p != NULL);
	if (p) {
		assert_int_equal(slot->placing, vb_announce_word(NUMBER_THERE, QPN_THERE,
								 vb_peer_mem_index(&w->mem, w->rkey)));
		vb_grant_end(slot);
	}
	assert_false(announced(w));
	return p;
}

enum { LEAVE = 3 << VB_SHOWN_LEAVE };

/* What was permitted is not asked for again as long as it stands. */
static void a_grant(void **state)
{
	struct world *w = *state;
	struct vb_key_entry *e = &w->there.entries[vb_peer_mem_index(&w->mem, w->rkey)];
	struct vb_peer_mem_grant g = {0};

	vb_peer_mem_grant(&w->mem, &w->want, &g);
	assert_int_equal(g.rkey, 0); /* without a leave its number cannot tell that it was taken back */
	w->qp.may |= LEAVE;
	vb_peer_mem_grant(&w->mem, &w->want, &g);
	assert_ptr_equal(by_grant(w, &g, PSN, 0x50000, 1), w->area);
	assert_ptr_equal(by_grant(w, &g, PSN, 0x50000, AREA), w->area);
	assert_ptr_equal(by_grant(w, &g, PSN, 0x50000 + AREA - 8, 8), w->area + AREA - 8);
	assert_null(by_grant(w, &g, PSN, 0x50000 + AREA - 7, 8));
	assert_null(by_grant(w, &g, PSN, 0x50000, AREA + 1));
	assert_null(by_grant(w, &g, PSN, 0x4ffff, 8));
	assert_null(by_grant(w, &g, PSN, 0x50000 + AREA + 1, 1));
	assert_false(vb_grant_is_of(&g, w->rkey ^ 1, 0x50000, 8));
	assert_null(by_grant(w, &g, PSN - 1, 0x50000, 8)); /* something is under way */
	w->qp.may = RW | 4 << VB_SHOWN_LEAVE;		   /* taken back, and given anew */
	assert_null(by_grant(w, &g, PSN, 0x50000, 8));
	w->qp.may = 0;
	assert_null(by_grant(w, &g, PSN, 0x50000, 8));
	w->qp.may = RW | RR | RA | LEAVE;
	e->seq += 2; /* another region, perhaps, under the same key */
	assert_null(by_grant(w, &g, PSN, 0x50000, 8));
	e->seq -= 2;
	assert_ptr_equal(by_grant(w, &g, PSN, 0x50000, 8), w->area);
	assert_true(vb_grant_stands(&g, &w->qp, w->rkey));
	vb_grant_drop(&g);
	assert_false(vb_grant_is_of(&g, w->rkey, 0x50000, 8));
	assert_false(vb_grant_is_of(&g, 0, 0x50000, 8)); /* a program may post that */
}

static void no_grant(void **state)
{
	static const enum vb_key_kind kinds[] = {VB_KEY_ON_DEMAND, VB_KEY_NULL, VB_KEY_WINDOW};
	struct world *w = *state;
	struct vb_key_entry *e = &w->there.entries[vb_peer_mem_index(&w->mem, w->rkey)];
	struct vb_peer_mem_grant g = {0};

	w->qp.may |= LEAVE;
	for (size_t i = 0; i < sizeof kinds / sizeof kinds[0]; i++) {
		e->kind = kinds[i];
		vb_peer_mem_grant(&w->mem, &w->want, &g);
		assert_int_equal(g.rkey, 0);
	}
	e->kind = VB_KEY_MEMORY;
	e->access = LW | RR; /* the region does not permit it */
	vb_peer_mem_grant(&w->mem, &w->want, &g);
	assert_int_equal(g.rkey, 0);
	e->access = LW | RW;
	w->qp.peer++; /* nor the queue pair */
	vb_peer_mem_grant(&w->mem, &w->want, &g);
	assert_int_equal(g.rkey, 0);
	w->qp.peer--;
	vb_peer_mem_grant(&w->mem, &w->want, &g);
	assert_int_equal(g.rkey, w->rkey);
}

/* The region is another process's, and the second quarter of it is mapped. */
static struct vb_peer_region *mapped_part(struct world *w)
{
	const struct vb_key_entry *e = &w->there.entries[vb_peer_mem_index(&w->mem, w->rkey)];
	struct vb_peer_region *s = &w->mem.shares[VB_KEY_PLACE(w->rkey) % VB_PEER_REGIONS];

	w->qp.may |= LEAVE;
	w->mem.same = false;
	*s = (struct vb_peer_region){.rkey = w->rkey,
				     .state = VB_REGION_MAPPED,
				     .write = true,
				     .at = w->area + 512,
				     .addr = e->addr + AREA / 4,
				     .length = AREA / 4,
				     .seq = e->seq};
	return s;
}

/* Of another process's region a grant leads to what is mapped of it, and no further. */
static void a_grant_of_a_mapping(void **state)
{
	struct world *w = *state;
	struct vb_peer_region *s = mapped_part(w);
	struct vb_peer_mem_grant g = {0};

	vb_peer_mem_grant(&w->mem, &w->want, &g);
	assert_int_equal(g.rkey, w->rkey);
	assert_ptr_equal(by_grant(w, &g, PSN, 0x50000 + AREA / 4, AREA / 4), w->area + 512);
	assert_null(by_grant(w, &g, PSN, 0x50000 + AREA / 4 - 1, 8));
	assert_null(by_grant(w, &g, PSN, 0x50000 + AREA / 2 - 7, 8));
	assert_null(by_grant(w, &g, PSN, 0x50000 + AREA / 2 + 1, 1));
	s->write = false;
	assert_null(by_grant(w, &g, PSN, 0x50000 + AREA / 4, 8));
	s->write = true;
	s->seq += 2;
	assert_null(by_grant(w, &g, PSN, 0x50000 + AREA / 4, 8));
	s->seq -= 2;
	s->rkey ^= 1; /* its place has another key's region now */
	assert_null(by_grant(w, &g, PSN, 0x50000 + AREA / 4, 8));
	s->rkey ^= 1;
	assert_ptr_equal(by_grant(w, &g, PSN, 0x50000 + AREA / 4, 8), w->area + 512);
	s->at = NULL; /* unmapped */
	assert_null(by_grant(w, &g, PSN, 0x50000 + AREA / 4, 8));
}

/* A region is mapped anew while another thread tries its grant: that one has not looked at what is written
 * then.  For TSan, so the order of the two is not known to it. */
struct user {
	struct world *w;
	struct vb_peer_mem_grant g;
	_Atomic bool tried;
};

static void *try_grant(void *arg)
{
	struct user *u = arg;

	assert_null(by_grant(u->w, &u->g, PSN, 0x50000 + AREA / 4, 8));
	atomic_store_explicit(&u->tried, true, memory_order_relaxed);
	return NULL;
}

static void a_region_is_mapped_anew(void **state)
{
	struct world *w = *state;
	struct vb_peer_region *s = mapped_part(w);
	struct user u = {.w = w};
	pthread_t t;

	vb_peer_mem_grant(&w->mem, &w->want, &u.g);
	s->at = NULL;
	assert_int_equal(pthread_create(&t, NULL, try_grant, &u), 0);
	while (!atomic_load_explicit(&u.tried, memory_order_relaxed))
		sched_yield();
	s->addr = 0x50000; /* as vb_peer_mem_answer() does */
	s->length = AREA;
	s->write = true;
	s->at = w->area;
	assert_int_equal(pthread_join(t, NULL), 0);
}

/* A process that is gone: its number is not believed, however young the process that has it now. */
static void a_dead_process(void **state)
{
	struct world *w = *state;
	struct iovec here, there;
	uint64_t v = 1;
	pid_t pid = fork();

	if (!pid)
		_exit(0);
	w->mem.same = false;
	w->mem.tid = pid;
	w->mem.pidfd = (int)syscall(SYS_pidfd_open, pid, 0);
	assert_true(w->mem.pidfd >= 0);
	assert_int_equal(waitid(P_PID, (id_t)pid, &(siginfo_t){0}, WEXITED), 0);
	{
		struct vb_peer_mem_use u;

		assert_int_equal(vb_peer_mem_begin(&w->mem, &w->here.keys, &u, &w->want), VB_MEANS_NONE);
	}
	here = there = (struct iovec){&v, sizeof v};
	assert_int_equal(vb_peer_mem_move(&w->mem, true, &here, 1, &there, 1), 0);
	assert_true(w->mem.denied); /* and nobody tries again */
	close(w->mem.pidfd);
}

static void moving(void **state)
{
	struct world *w = *state;
	uint8_t from[32], to[64] = {0};
	struct iovec here[2] = {{from, 10}, {from + 10, 22}}, there[2] = {{to, 12}, {to + 20, 20}};
	void *hole = mmap(NULL, 8192, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

	w->mem.tid = (int)syscall(SYS_gettid);
	for (int i = 0; i < 32; i++)
		from[i] = (uint8_t)(i + 1);
	assert_int_equal(vb_peer_mem_move(&w->mem, true, here, 2, there, 2), 32);
	assert_memory_equal(to, from, 12);
	assert_memory_equal(to + 20, from + 12, 20);
	memset(from, 0, sizeof from);
	assert_int_equal(vb_peer_mem_move(&w->mem, false, here, 2, there, 2), 32);
	assert_int_equal(from[31], 32);
	/* what is not there is no refusal: a part, or nothing */
	assert_int_equal(munmap((uint8_t *)hole + 4096, 4096), 0);
	there[0] = (struct iovec){(uint8_t *)hole + 4096 - 12, 12};
	there[1] = (struct iovec){(uint8_t *)hole + 4096, 20};
	assert_int_equal(vb_peer_mem_move(&w->mem, true, here, 2, there, 2), 12);
	assert_int_equal(vb_peer_mem_move(&w->mem, true, here + 1, 1, there + 1, 1), 0);
	assert_false(w->mem.denied);
	munmap(hole, 4096);
}

static void *wait_it(void *arg)
{
	struct waiting *x = arg;

	atomic_store(&x->began, true);
	vb_peer_mem_wait(&x->w->back, x->number, x->index, x->qpn, "a test");
	atomic_store(&x->done, true);
	return NULL;
}

/* Whether somebody who takes back (number, index, qpn) waits for the use in hand, for longer than `ns`. */
static bool waits_for(uint64_t ns, struct world *w, struct vb_peer_mem_use *u, uint32_t number,
		      uint32_t index, uint32_t qpn)
{
	struct waiting x = {.w = w, .number = number, .index = index, .qpn = qpn};
	uint64_t end;
	bool waited;
	pthread_t t;

	assert_int_equal(vb_peer_mem_begin(&w->mem, &w->here.keys, u, &w->want), VB_MEANS_MAPPED);
	pthread_create(&t, NULL, wait_it, &x);
	while (!atomic_load(&x.began))
		sched_yield();
	for (end = vb_now() + ns; !atomic_load(&x.done) && vb_now() < end;)
		sched_yield();
	waited = !atomic_load(&x.done);
	vb_peer_mem_end(u);
	pthread_join(t, NULL);
	return waited;
}

/* Who does not wait may be without a CPU for a while; who does has no end before that of the use. */
static void stays(struct world *w, struct vb_peer_mem_use *u, uint32_t number, uint32_t index, uint32_t qpn)
{
	assert_true(waits_for(20 * VB_MSEC, w, u, number, index, qpn));
}

static void passes(struct world *w, struct vb_peer_mem_use *u, uint32_t number, uint32_t index, uint32_t qpn)
{
	assert_false(waits_for(10 * VB_SEC, w, u, number, index, qpn));
}

static void who_is_waited_for(void **state)
{
	struct world *w = *state;
	uint32_t index = vb_peer_mem_index(&w->mem, w->rkey);
	struct vb_peer_mem_use u;

	stays(w, &u, NUMBER_THERE, index, 0);		   /* a key */
	stays(w, &u, NUMBER_THERE, 0, QPN_THERE);	   /* a QP */
	stays(w, &u, NUMBER_THERE, 0, 0);		   /* everything */
	stays(w, &u, NUMBER_THERE, index, QPN_THERE);	   /* both */
	passes(w, &u, NUMBER_THERE - 1, index, QPN_THERE); /* of another adapter */
	passes(w, &u, NUMBER_THERE, index + 1, 0);
	passes(w, &u, NUMBER_THERE, 0, QPN_THERE ^ 1);
	passes(w, &u, NUMBER_THERE, index, QPN_THERE ^ 1);
	/* a mark beyond the slots does not lead beyond them */
	w->here.marks.slots = UINT32_MAX;
	vb_peer_mem_wait(&w->back, NUMBER_THERE, index, 0, "a test");
}

/* The numbers at their largest go into one word and come out of it. */
static void largest_numbers(void **state)
{
	struct world *w = *state;
	struct vb_peer_mem_use u;

	w->want.peer_qpn = 0xffffff;
	w->mem.number = VB_ADAPTERS - 1;
	stays(w, &u, VB_ADAPTERS - 1, vb_peer_mem_index(&w->mem, w->rkey), 0xffffff);
	passes(w, &u, VB_ADAPTERS - 2, vb_peer_mem_index(&w->mem, w->rkey), 0xffffff);
	passes(w, &u, VB_ADAPTERS - 1, vb_peer_mem_index(&w->mem, w->rkey), 0xfffffe);
}

/* Of the gathered ones each is checked. */
static void another_in_the_same_region(void **state)
{
	struct world *w = *state;
	struct vb_peer_mem_want x = w->want;
	struct vb_peer_mem_use u;
	uint64_t at;

	assert_int_equal(vb_peer_mem_begin(&w->mem, &w->here.keys, &u, &w->want), VB_MEANS_MAPPED);
	x.addr += 50;
	assert_true(vb_peer_mem_also(&w->mem, &x, &at));
	assert_int_equal(at, (uintptr_t)w->area + 50);
	x.addr = 0x50000 + AREA - 7;
	assert_false(vb_peer_mem_also(&w->mem, &x, &at));
	vb_peer_mem_end(&u);
}

/* An owner who keeps taking the key back, by the book, and users who keep reaching for it: after the wait the
 * plain bytes are the owner's. */
enum { USERS = 2, CYCLES = 2000 };
static _Atomic bool stop;
static _Atomic uint32_t current;
static _Atomic uint64_t hits;

static void *reach(void *arg)
{
	struct world *w = arg;
	struct vb_peer_mem_want x = w->want;
	struct vb_peer_mem_use u;

	x.len = 64;
	while (!atomic_load_explicit(&stop, memory_order_relaxed)) {
		x.rkey = atomic_load_explicit(&current, memory_order_relaxed);
		if (vb_peer_mem_begin(&w->mem, &w->here.keys, &u, &x) != VB_MEANS_MAPPED)
			continue;
		for (int i = 0; i < 64; i++)
			__atomic_store_n(u.ptr + i, 0xaa, __ATOMIC_RELAXED);
		vb_peer_mem_end(&u);
		atomic_fetch_add_explicit(&hits, 1, memory_order_relaxed);
	}
	return NULL;
}

static void no_touch_after_the_wait(void **state)
{
	struct world *w = *state;
	pthread_t t[USERS];

	atomic_store(&current, w->rkey);
	for (int i = 0; i < USERS; i++)
		assert_int_equal(pthread_create(&t[i], NULL, reach, w), 0);
	for (int c = 0; c < CYCLES || !atomic_load(&hits); c++) {
		uint32_t lkey = atomic_load(&current) & ~VB_KEY_REMOTE;

		vb_key_retract(&w->there.keys, lkey);
		vb_peer_mem_wait(&w->back, NUMBER_THERE, vb_keys_index(&w->there.keys, lkey), 0, "a test");
		memset(w->area, 0x55, 64);
		for (int i = 0; i < 20; i++)
			vb_cpu_relax();
		for (int i = 0; i < 64; i++)
			assert_int_equal(w->area[i], 0x55);
		vb_key_give(&w->there.keys, lkey);
		lkey = vb_key_publish(&w->there.keys, &(struct vb_key_spec){.pd = PD,
									    .access = LW | RW,
									    .iova = 0x50000,
									    .addr = (uintptr_t)w->area,
									    .length = AREA});
		atomic_store(&current, lkey | VB_KEY_REMOTE);
		if (c % 16 == 0)
			sched_yield();
	}
	atomic_store(&stop, true);
	for (int i = 0; i < USERS; i++)
		pthread_join(t[i], NULL);
}

/* What the QP there has lent of the region, which permits nothing to peers. */
static struct vb_peer_mem_loan loan(struct world *w)
{
	atomic_store(&w->qp.may, 5u << VB_SHOWN_LEAVE);
	return (struct vb_peer_mem_loan){
	    .qp = &w->qp,
	    .peer_qpn = QPN_THERE,
	    .qpn = QPN_HERE,
	    .path_mtu = IBV_MTU_2048,
	    .leave = 5,
	    .lkey = vb_key_publish(
		&w->there.keys,
		&(struct vb_key_spec){.pd = PD, .iova = 0x50000, .addr = (uintptr_t)w->area, .length = AREA}),
	    .addr = 0x50000,
	    .len = AREA};
}

static enum vb_means borrow(struct world *w, const struct vb_peer_mem_loan *l)
{
	struct vb_peer_mem_use u;
	enum vb_means m = vb_peer_mem_borrow(&w->mem, &w->here.keys, &u, l);

	assert_int_equal(announced(w), m != VB_MEANS_NONE);
	if (m != VB_MEANS_NONE) {
		assert_true(vb_announced(w->here.slots, &w->here.marks.slots, NUMBER_THERE,
					 vb_peer_mem_index(&w->mem, l->lkey)));
		vb_peer_mem_end(&u);
	}
	return m;
}

static void what_is_lent(void **state)
{
	struct world *w = *state;
	struct vb_peer_mem_loan l = loan(w), x = l;
	struct vb_peer_mem_use u;

	x.addr += 100;
	x.len -= 100;
	assert_int_equal(vb_peer_mem_borrow(&w->mem, &w->here.keys, &u, &x), VB_MEANS_MAPPED);
	assert_ptr_equal(u.ptr, w->area + 100);
	assert_true(vb_peer_mem_stands(&w->mem, &x));
	atomic_store(&w->qp.may, 0); /* under the copy */
	assert_false(vb_peer_mem_stands(&w->mem, &x));
	vb_peer_mem_end(&u);
	assert_int_equal(borrow(w, &l), VB_MEANS_NONE);
	atomic_store(&w->qp.may, 6u << VB_SHOWN_LEAVE | RR); /* given anew */
	assert_int_equal(borrow(w, &l), VB_MEANS_NONE);
	l.leave = 6;
	assert_int_equal(borrow(w, &l), VB_MEANS_MAPPED);
	atomic_store(&w->qp.may, RW | RR | RA); /* what lends nothing names no leave */
	l.leave = 0;
	assert_int_equal(borrow(w, &l), VB_MEANS_NONE);
}

static void what_is_not_lent(void **state)
{
	struct world *w = *state;
	const struct vb_peer_mem_loan l = loan(w);

	assert_int_equal(borrow(w, &l), VB_MEANS_MAPPED);
	for (int i = 0; i < 9; i++) {
		struct vb_peer_mem_loan x = l;

		switch (i) {
		case 0:
			x.addr++;
			break;
		case 1:
			x.addr--;
			break;
		case 2:
			x.len = UINT64_MAX;
			break;
		case 3: /* an R_Key */
			x.lkey |= VB_KEY_REMOTE;
			break;
		case 4: /* of a domain of several processes */
			x.lkey |= VB_KEY_TAGGED;
			break;
		case 5: /* stale */
			x.lkey ^= 1;
			break;
		case 6: /* beyond what is in use */
			x.lkey += 1u << 8;
			break;
		case 7: /* the QP there belongs to another one */
			x.qpn++;
			break;
		case 8: /* the ends do not agree */
			x.path_mtu = IBV_MTU_4096;
		}
		assert_int_equal(borrow(w, &x), VB_MEANS_NONE);
	}
	w->qp.pd++;
	assert_int_equal(borrow(w, &l), VB_MEANS_NONE);
	w->qp.pd--;
	w->qp.peer++;
	assert_int_equal(borrow(w, &l), VB_MEANS_NONE);
	w->qp.peer--;
	assert_int_equal(borrow(w, &l), VB_MEANS_MAPPED);
	vb_key_retract(&w->there.keys, l.lkey);
	assert_int_equal(borrow(w, &l), VB_MEANS_NONE);
}

/* A region of which its owner has said that it is private memory is asked about again when it has been given
 * other memory, and not before. */
static void private_memory(void **state)
{
	const struct vb_share_desc none = {.kind = VB_SHARE_NONE, .length = AREA};
	struct world *w = *state;
	struct vb_key_entry *e = &w->there.entries[vb_peer_mem_index(&w->mem, w->rkey)];

	w->mem.same = false;
	w->mem.tid = (int)syscall(SYS_gettid);
	w->mem.pidfd = (int)syscall(SYS_pidfd_open, getpid(), 0);
	assert_false(vb_peer_mem_takes_call(&w->mem, w->rkey)); /* nobody knows yet */
	for (int round = 0; round < 2; round++) {
		for (int i = 0; i < 16; i++)
			assert_int_equal(try(w, &w->want), VB_MEANS_VM);
		assert_int_equal(vb_peer_mem_next_ask(&w->mem), w->rkey);
		assert_int_equal(vb_peer_mem_next_ask(&w->mem), 0);
		assert_int_equal(vb_peer_mem_answer(&w->mem, w->rkey, e->seq, 0, &none, -1, true), ENODEV);
		assert_true(vb_peer_mem_takes_call(&w->mem, w->rkey));
		for (int i = 0; i < 5000; i++) {
			assert_int_equal(try(w, &w->want), VB_MEANS_VM);
			assert_false(atomic_load(&w->mem.asks));
		}
		e->seq += 2; /* ibv_rereg_mr() */
		assert_false(vb_peer_mem_takes_call(&w->mem, w->rkey));
	}
	close(w->mem.pidfd);
}

/* What is lent is asked about, too, and mapped for that alone: its key permits nothing, as before. */
static void what_is_lent_by_another_process(void **state)
{
	struct world *w = *state;
	struct vb_peer_mem_loan l = loan(w);
	struct vb_peer_mem_want forged = w->want;
	int memfd = memfd_create("lent", 0), fd;
	const int access[] = {RW, RR, RA};
	struct vb_share_desc d;
	uint8_t *p;

	w->mem.same = false;
	w->mem.tid = (int)syscall(SYS_gettid);
	w->mem.pidfd = (int)syscall(SYS_pidfd_open, getpid(), 0);
	for (int i = 0; i < 16; i++)
		assert_int_equal(borrow(w, &l), VB_MEANS_VM);
	assert_true(atomic_load(&w->mem.asks));
	assert_int_equal(vb_peer_mem_next_ask(&w->mem), l.lkey | VB_KEY_REMOTE);
	assert_int_equal(ftruncate(memfd, AREA), 0);
	p = mmap(NULL, AREA, PROT_READ | PROT_WRITE, MAP_SHARED, memfd, 0);
	assert_ptr_not_equal(p, MAP_FAILED);
	vb_share_find((uintptr_t)p, AREA, false, &d, &fd);
	assert_int_equal(vb_peer_mem_answer(&w->mem, l.lkey | VB_KEY_REMOTE,
					    vb_key_seq(&w->there.keys, l.lkey), (uintptr_t)w->area, &d, fd,
					    false),
			 0);
	assert_int_equal(borrow(w, &l), VB_MEANS_MAPPED);
	w->mem.denied = true;
	assert_int_equal(borrow(w, &l), VB_MEANS_MAPPED);
	atomic_fetch_or(&w->qp.may, RW | RR | RA);
	for (int i = 0; i < 6; i++) {
		forged.access = (uint32_t)access[i % 3];
		forged.rkey = i < 3 ? l.lkey | VB_KEY_REMOTE : l.lkey;
		assert_int_equal(try(w, &forged), VB_MEANS_NONE);
		assert_false(vb_peer_mem_likely(&w->mem, &forged));
	}
	vb_key_retract(&w->there.keys, l.lkey);
	assert_int_equal(borrow(w, &l), VB_MEANS_NONE);
	vb_peer_mem_sweep(&w->mem, &w->here.keys);
	assert_null(w->mem.shares[VB_KEY_PLACE(l.lkey) % VB_PEER_REGIONS].at);
	munmap(p, AREA);
	close(fd);
	close(memfd);
	close(w->mem.pidfd);
}

#define TEST(f) cmocka_unit_test_setup_teardown(f, set_up, tear_down)

int main(void)
{
	const struct CMUnitTest tests[] = {
	    TEST(permitted),
	    TEST(not_permitted),
	    TEST(another_type),
	    TEST(more_reads),
	    TEST(nothing),
	    TEST(not_our_queue_pair),
	    TEST(not_as_agreed),
	    TEST(hostile_tables),
	    TEST(hostile_tables_of_a_shared_domain),
	    TEST(an_answer_to_no_question),
	    TEST(without_means),
	    TEST(a_mapping_is_what_was_said),
	    TEST(a_grant),
	    TEST(no_grant),
	    TEST(a_grant_of_a_mapping),
	    TEST(a_region_is_mapped_anew),
	    TEST(a_dead_process),
	    TEST(moving),
	    TEST(who_is_waited_for),
	    TEST(largest_numbers),
	    TEST(another_in_the_same_region),
	    TEST(no_touch_after_the_wait),
	    TEST(what_is_lent),
	    TEST(what_is_not_lent),
	    TEST(private_memory),
	    TEST(what_is_lent_by_another_process),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
