#include "mem/peer_mem.h"

#include <errno.h>
#include <string.h>
#include <time.h>

#include <infiniband/verbs.h>

#include "base/fault.h"
#include "base/log.h"
#include "base/poll.h"
#include "iba/limits.h"
#include "mem/check.h"
#include "mem/grant.h"

enum {
	ASK_AFTER = 8, /* uses of a region after which it is worth asking about */
	ASK_AGAIN = 1024,
};

#define SEEN_FOR 20000000 /* ns for which a peer that was alive is taken to be so */

static bool qp_permits(const struct vb_peer_mem *f, const struct vb_peer_mem_want *w)
{
	return (atomic_load(&w->qp->may) & w->access) &&
	       atomic_load_explicit(&w->qp->dest_qpn, memory_order_relaxed) == w->qpn &&
	       atomic_load_explicit(&w->qp->path_mtu, memory_order_relaxed) == w->path_mtu &&
	       atomic_load_explicit(&w->qp->type, memory_order_relaxed) == w->type &&
	       atomic_load_explicit(&w->qp->reads, memory_order_relaxed) >= w->reads &&
	       atomic_load_explicit(&w->qp->peer, memory_order_relaxed) == f->here;
}

/* Whether a packet sent now would be the one that the peer expects.  After qp_permits(): what a QP expects
 * is shown before it permits anything, and from then on changes only by packets of this end, whose ACKs come
 * later than that is shown.  A QP that is being connected anew meanwhile has taken its permission back. */
static bool in_step(const struct vb_peer_mem_want *w)
{
	return atomic_load_explicit(&w->qp->received, memory_order_acquire) == (VB_SHOWN_RECEIVED | w->psn);
}

/* Flat, so that the wish for memory is not put together only to be read by another function. */
static __attribute__((flatten)) bool key_permits(const struct vb_peer_mem *f,
						 const struct vb_peer_mem_want *w, uint64_t *at)
{
	uint32_t index = vb_peer_mem_index(f, w->rkey);
	enum vb_key_kind kind;

	/* A key of a shared domain may be another process's, which the ring finds out. */
	if (!index || !vb_key_used(f->marks, index) || !(w->rkey & VB_KEY_REMOTE))
		return false;
	kind =
	    vb_key_resolve(&f->keys[index],
			   &(struct vb_mem_want){.key = w->rkey & ~VB_KEY_REMOTE,
						 .remote = true,
						 .access = w->access,
						 .qpn = w->peer_qpn,
						 .pd = atomic_load_explicit(&w->qp->pd, memory_order_relaxed),
						 .addr = w->addr,
						 .len = w->len},
			   at);
	return kind < VB_KEY_KINDS && kind != VB_KEY_NULL;
}

/* Whether the QP that lent this still lends: it has given the same leave all the while, to the QP here. */
static bool lends(const struct vb_peer_mem *f, const struct vb_peer_mem_loan *l)
{
	return l->leave && atomic_load(&l->qp->may) >> VB_SHOWN_LEAVE == l->leave &&
	       atomic_load_explicit(&l->qp->dest_qpn, memory_order_relaxed) == l->qpn &&
	       atomic_load_explicit(&l->qp->path_mtu, memory_order_relaxed) == l->path_mtu &&
	       atomic_load_explicit(&l->qp->peer, memory_order_relaxed) == f->here;
}

bool vb_peer_mem_lent(const struct vb_peer_mem *f, const struct vb_peer_mem_loan *l, uint64_t *at)
{
	uint32_t index = vb_peer_mem_index(f, l->lkey);
	enum vb_key_kind kind;

	if (!index || !vb_key_used(f->marks, index))
		return false;
	kind =
	    vb_key_resolve(&f->keys[index],
			   &(struct vb_mem_want){.key = l->lkey,
						 .pd = atomic_load_explicit(&l->qp->pd, memory_order_relaxed),
						 .addr = l->addr,
						 .len = l->len},
			   at);
	return kind < VB_KEY_KINDS && kind != VB_KEY_NULL;
}

bool vb_peer_mem_stands(const struct vb_peer_mem *f, const struct vb_peer_mem_loan *l)
{
	/* The copy comes before this look: who takes leave back does so before its program hears of it. */
	atomic_thread_fence(memory_order_acquire);
	return lends(f, l);
}

static void deny(struct vb_peer_mem *f, int err)
{
	if (err == ESRCH)
		atomic_store(&f->gone, true);
	if (atomic_exchange(&f->denied, true) || err == ESRCH)
		return;
	vb_log(VB_LOG_INFO,
	       "the kernel denies access to the memory of process %u (%s): packets carry WRITEs and READs "
	       "to it and large SENDs from it",
	       f->pid, strerror(err));
}

/* A TID may be given to a new process once its owner is gone and the numbers have wrapped around: never
 * touched without having seen the owner alive a moment ago. */
bool vb_peer_mem_alive(struct vb_peer_mem *f)
{
	struct timespec t;
	struct pollfd p = {.fd = f->pidfd, .events = POLLIN};
	int64_t now, seen = atomic_load_explicit(&f->seen, memory_order_relaxed);

	clock_gettime(CLOCK_MONOTONIC_COARSE, &t);
	now = t.tv_sec * 1000000000ll + t.tv_nsec;
	if (now - seen < SEEN_FOR)
		return true;
	if (vb_poll(&p, 1, 0) != 0)
		return false;
	atomic_store_explicit(&f->seen, now, memory_order_relaxed);
	return true;
}

/* Whether what is mapped is still the region that its key names. */
static bool current(const struct vb_peer_mem *f, const struct vb_peer_region *s)
{
	const struct vb_key_entry *e = &f->keys[vb_peer_mem_index(f, atomic_load(&s->rkey))];

	return atomic_load_explicit(&e->seq, memory_order_relaxed) ==
	       atomic_load_explicit(&s->seq, memory_order_relaxed);
}

/* Whether a place may be given to another key: its own is gone from the peer's table. */
static bool replaceable(const struct vb_peer_mem *f, struct vb_peer_region *s)
{
	uint32_t rkey = atomic_load(&s->rkey);

	if (atomic_load(&s->at) || atomic_load(&s->state) == VB_REGION_WANTED)
		return false;
	return atomic_load(&f->keys[vb_peer_mem_index(f, rkey)].key) != (rkey & ~VB_KEY_REMOTE);
}

static struct vb_peer_region *share_of(struct vb_peer_mem *f, uint32_t rkey)
{
	return &f->shares[VB_KEY_PLACE(rkey) % VB_PEER_REGIONS];
}

/* Windows come and go too often to be mapped, and what is on demand under a region changes. */
static bool worth_asking(const struct vb_peer_mem *f, uint32_t rkey)
{
	uint32_t index = vb_peer_mem_index(f, rkey);

	return index && vb_key_used(f->marks, index) &&
	       atomic_load_explicit(&f->keys[index].kind, memory_order_relaxed) == VB_KEY_MEMORY;
}

/* It is known that it cannot be mapped here. */
static bool is_private(const struct vb_peer_mem *f, const struct vb_peer_region *s, uint32_t rkey)
{
	return atomic_load_explicit(&s->rkey, memory_order_relaxed) == rkey &&
	       atomic_load_explicit(&s->state, memory_order_relaxed) == VB_REGION_CANNOT && current(f, s);
}

/* The region is used and no mapping of it is known.  Asking costs both ends some system calls: only for a
 * region that is used again and again, or where nothing else will do. */
static __attribute__((noinline)) void count_use(struct vb_peer_mem *f, uint32_t rkey, bool at_once)
{
	struct vb_peer_region *s = share_of(f, rkey);
	uint32_t uses;

	if (vb_likely(is_private(f, s, rkey)) || !worth_asking(f, rkey))
		return;
	if (atomic_load(&s->rkey) != rkey) {
		if (!vb_lock_try(&f->lock))
			return;
		/* What stands there for a key that has gone is in nobody's way unless it is mapped. */
		if (atomic_load(&s->state) == VB_REGION_FREE || replaceable(f, s)) {
			atomic_store(&s->uses, 0);
			atomic_store(&s->state, VB_REGION_COUNTS);
			atomic_store(&s->rkey, rkey);
		}
		vb_lock_give(&f->lock);
		if (atomic_load(&s->rkey) != rkey)
			return;
	}
	uses = atomic_fetch_add_explicit(&s->uses, 1, memory_order_relaxed) + 1;
	switch (atomic_load(&s->state)) {
	case VB_REGION_COUNTS:
		if (at_once ? uses != 1 && uses % ASK_AFTER : uses < ASK_AFTER)
			return;
		break;
	case VB_REGION_ASKED: /* the question or the answer may have found a full socket */
		if (uses % ASK_AGAIN)
			return;
		break;
	case VB_REGION_CANNOT: /* it may have been given other memory (ibv_rereg_mr) */
		break;
	default:
		return;
	}
	atomic_store(&s->state, VB_REGION_WANTED);
	atomic_store(&f->asks, true);
}

uint8_t *vb_peer_mem_mapped_at(struct vb_peer_mem *f, uint32_t rkey, uint64_t at, uint64_t len, bool write)
{
	struct vb_peer_region *s = share_of(f, rkey);
	uint8_t *p;

	/* seq_cst: announced before, so vb_peer_mem_drop() is seen here or sees us. */
	if (vb_likely(atomic_load(&s->rkey) == rkey && (p = atomic_load(&s->at)))) {
		uint64_t off = at - s->addr;

		if (vb_unlikely(!current(f, s)))
			return NULL; /* its going was not heard of, and the key has come back */

		if (at >= s->addr && off <= s->length && len <= s->length - off && (s->write || !write))
			return p + off;
		return NULL;
	}
	count_use(f, rkey, false);
	return NULL;
}

bool vb_peer_mem_mapped(struct vb_peer_mem *f, uint32_t rkey)
{
	struct vb_peer_region *s = share_of(f, rkey);

	if (f->same || (atomic_load(&s->rkey) == rkey && atomic_load(&s->at)))
		return true;
	count_use(f, rkey, true);
	return false;
}

bool vb_peer_mem_takes_call(const struct vb_peer_mem *f, uint32_t rkey)
{
	const struct vb_peer_region *s = &f->shares[VB_KEY_PLACE(rkey) % VB_PEER_REGIONS];

	if (f->same)
		return false;
	if (!worth_asking(f, rkey))
		return true;
	return is_private(f, s, rkey);
}

bool vb_peer_mem_may_map(struct vb_peer_mem *f, uint32_t rkey)
{
	struct vb_peer_region *s = share_of(f, rkey);

	return atomic_load(&s->rkey) == rkey && atomic_load(&s->state) != VB_REGION_CANNOT;
}

uint32_t vb_peer_mem_next_ask(struct vb_peer_mem *f)
{
	atomic_store(&f->asks, false);
	for (unsigned i = 0; i < VB_PEER_REGIONS; i++) {
		uint32_t wanted = VB_REGION_WANTED;

		if (!atomic_compare_exchange_strong(&f->shares[i].state, &wanted, VB_REGION_ASKED))
			continue;
		atomic_store(&f->asks, true); /* there may be more */
		return atomic_load(&f->shares[i].rkey);
	}
	return 0;
}

void vb_peer_mem_ask_failed(struct vb_peer_mem *f, uint32_t rkey)
{
	struct vb_peer_region *s = share_of(f, rkey);
	uint32_t asked = VB_REGION_ASKED;

	if (atomic_load(&s->rkey) != rkey)
		return;
	atomic_store(&s->uses, 1); /* not with every post from now on */
	atomic_compare_exchange_strong(&s->state, &asked, VB_REGION_COUNTS);
}

/* Unmaps a region; its place is free for another key afterwards. */
static void unmap(struct vb_peer_mem *f, struct vb_keys *own, struct vb_peer_region *s)
{
	uint32_t rkey = atomic_load(&s->rkey);

	if (atomic_exchange(&s->at, NULL)) { /* pairs with vb_peer_mem_mapped_at() */
		vb_announced_wait(own->slots.at, own->slots.used, f->number, vb_peer_mem_index(f, rkey), 0,
				  "unmapping shared memory of a peer", (uint32_t)getpid());
		vb_share_unmap(&s->map);
	}
	vb_lock_take(&f->lock); /* given below */
	if (atomic_load(&s->rkey) == rkey) {
		atomic_store(&s->rkey, 0);
		atomic_store(&s->state, VB_REGION_FREE);
	}
	vb_lock_give(&f->lock);
}

int vb_peer_mem_answer(struct vb_peer_mem *f, uint32_t rkey, uint32_t seq, uint64_t addr,
		       const struct vb_share_desc *d, int fd, bool write)
{
	struct vb_peer_region *s = share_of(f, rkey);
	struct vb_share_map map = {0};
	bool taken = false;
	int err;

	if (!rkey || atomic_load(&s->rkey) != rkey || atomic_load(&s->at))
		return 0; /* not what was asked for, or an answer too many */
	err = d->kind == VB_SHARE_NONE ? ENODEV : vb_share_map(&map, d, fd, write);
	vb_lock_take(&f->lock); /* given below; who gives the place away holds it */
	if (atomic_load(&s->rkey) == rkey && err) {
		s->seq = seq;
		/* What passes, a lack of descriptors say, lets it be asked about again some time. */
		if (err == ENODEV || err == EXDEV || err == ENXIO || err == EACCES || err == EPERM)
			atomic_store(&s->state, VB_REGION_CANNOT);
	} else if (atomic_load(&s->rkey) == rkey &&
		   atomic_load(&f->keys[vb_peer_mem_index(f, rkey)].seq) != seq) {
		err = ESTALE; /* it was given another meaning meanwhile, and may be asked about anew */
		atomic_store(&s->uses, 1);
		atomic_store(&s->state, VB_REGION_COUNTS);
	} else if (atomic_load(&s->rkey) == rkey) {
		s->map = map;
		s->addr = addr;
		s->length = d->length;
		s->write = write;
		s->seq = seq;
		atomic_store(&s->state, VB_REGION_MAPPED);
		atomic_store(&s->at,
			     map.at); /* pairs with vb_peer_mem_mapped_at(); vb_peer_mem_drop() unmaps */
		taken = true;
	}
	vb_lock_give(&f->lock);
	if (!taken)
		vb_share_unmap(&map);
	return err;
}

void vb_peer_mem_sweep(struct vb_peer_mem *f, struct vb_keys *own)
{
	for (unsigned i = 0; i < VB_PEER_REGIONS; i++)
		if (atomic_load(&f->shares[i].at) && !current(f, &f->shares[i]))
			unmap(f, own, &f->shares[i]);
}

void vb_peer_mem_drop(struct vb_peer_mem *f, struct vb_keys *own, uint32_t rkey)
{
	if (rkey) {
		if (atomic_load(&share_of(f, rkey)->rkey) == rkey)
			unmap(f, own, share_of(f, rkey));
		return;
	}
	for (unsigned i = 0; i < VB_PEER_REGIONS; i++)
		if (atomic_load(&f->shares[i].rkey))
			unmap(f, own, &f->shares[i]);
}

void vb_peer_mem_settle(struct vb_peer_mem *f, struct vb_keys *own)
{
	vb_announced_wait_via(own->slots.at, own->slots.used, f->number,
			      "forgetting a process that has ended", (uint32_t)getpid());
}

enum vb_means vb_peer_mem_begin(struct vb_peer_mem *f, struct vb_keys *own, struct vb_peer_mem_use *u,
				const struct vb_peer_mem_want *w)
{
	u->slot = vb_slot_own(&own->slots);
	if (vb_unlikely(!u->slot))
		return VB_MEANS_NONE;
	/* Either we see the permission go or its owner sees this; pairs with vb_peer_mem_wait(). */
	vb_announce_placing(u->slot, vb_announce_word(f->number, w->peer_qpn, vb_peer_mem_index(f, w->rkey)));
	if (vb_unlikely(!qp_permits(f, w) || !in_step(w)))
		goto take_back;
	if (vb_unlikely(!w->len)) {
		if (!f->same && !vb_peer_mem_alive(f))
			goto take_back;
		return VB_MEANS_QP;
	}
	if (vb_unlikely(!key_permits(f, w, &u->at)))
		goto take_back;
	VB_FAULT_POINT("peer's memory announced, not yet touched");
	if (f->same) {
		u->ptr = (uint8_t *)(uintptr_t)u->at;
		return VB_MEANS_MAPPED;
	}
	u->ptr = vb_peer_mem_mapped_at(f, w->rkey, u->at, w->len, w->access != IBV_ACCESS_REMOTE_READ);
	if (u->ptr)
		return VB_MEANS_MAPPED;
	if (vb_likely(!atomic_load_explicit(&f->denied, memory_order_relaxed) && vb_peer_mem_alive(f)))
		return VB_MEANS_VM;
take_back:
	vb_peer_mem_end(u);
	return VB_MEANS_NONE;
}

void vb_peer_mem_grant(struct vb_peer_mem *f, const struct vb_peer_mem_want *w, struct vb_peer_mem_grant *g)
{
	uint32_t index = vb_peer_mem_index(f, w->rkey), may = atomic_load(&w->qp->may);
	const struct vb_key_entry *e = &f->keys[index];
	uint32_t seq = atomic_load(&e->seq);
	uint64_t at;

	/* What is on demand may be mapped otherwise, and of a window other things count. */
	if (!(may >> VB_SHOWN_LEAVE) || !qp_permits(f, w) || !key_permits(f, w, &at) ||
	    atomic_load(&e->kind) != VB_KEY_MEMORY)
		return;
	*g = (struct vb_peer_mem_grant){.rkey = w->rkey,
					.last = w->rkey,
					.may = may,
					.seq = seq,
					.entry = e,
					.region = f->same ? NULL : share_of(f, w->rkey),
					.word = vb_announce_word(f->number, w->peer_qpn, index),
					.iova = atomic_load(&e->iova),
					.length = atomic_load(&e->length),
					.at = atomic_load(&e->addr)};
	if (atomic_load(&e->seq) != seq || atomic_load(&w->qp->may) != may)
		vb_grant_drop(g); /* some of it may be of another meaning */
}

enum vb_means vb_peer_mem_borrow(struct vb_peer_mem *f, struct vb_keys *own, struct vb_peer_mem_use *u,
				 const struct vb_peer_mem_loan *l)
{
	u->slot = vb_slot_own(&own->slots);
	if (vb_unlikely(!u->slot))
		return VB_MEANS_NONE;
	/* Either we see the leave or the key go, or its owner sees this; pairs with vb_peer_mem_wait(). */
	vb_announce_placing(u->slot, vb_announce_word(f->number, l->peer_qpn, vb_peer_mem_index(f, l->lkey)));
	if (vb_unlikely(!lends(f, l) || !vb_peer_mem_lent(f, l, &u->at)))
		goto take_back;
	VB_FAULT_POINT("lent memory announced, not yet touched");
	if (f->same) {
		u->ptr = (uint8_t *)(uintptr_t)u->at;
		return VB_MEANS_MAPPED;
	}
	u->ptr = vb_peer_mem_mapped_at(f, l->lkey | VB_KEY_REMOTE, u->at, l->len, false);
	if (u->ptr)
		return VB_MEANS_MAPPED;
	if (vb_likely(!atomic_load_explicit(&f->denied, memory_order_relaxed) && vb_peer_mem_alive(f)))
		return VB_MEANS_VM;
take_back:
	vb_peer_mem_end(u);
	return VB_MEANS_NONE;
}

void vb_peer_mem_end(struct vb_peer_mem_use *u)
{
	vb_announce_placing_end(u->slot);
}

bool vb_peer_mem_also(const struct vb_peer_mem *f, const struct vb_peer_mem_want *w, uint64_t *at)
{
	return key_permits(f, w, at);
}

bool vb_peer_mem_likely(const struct vb_peer_mem *f, const struct vb_peer_mem_want *w)
{
	const struct vb_peer_region *s = &f->shares[VB_KEY_PLACE(w->rkey) % VB_PEER_REGIONS];
	bool means = f->same || !atomic_load_explicit(&f->denied, memory_order_relaxed) ||
		     (atomic_load(&s->rkey) == w->rkey && atomic_load(&s->at));
	uint64_t at;

	return means && qp_permits(f, w) && (!w->len || key_permits(f, w, &at));
}

size_t vb_peer_mem_move(struct vb_peer_mem *f, bool write, const struct iovec *here, unsigned nhere,
			const struct iovec *there, unsigned nthere)
{
	ssize_t n = write ? process_vm_writev(f->tid, here, nhere, there, nthere, 0)
			  : process_vm_readv(f->tid, here, nhere, there, nthere, 0);

	if (vb_likely(n >= 0))
		return (size_t)n;
	if (errno != EFAULT && errno != ENOMEM)
		deny(f, errno);
	return 0;
}

/* Where the peer announces, as of one moment: another peer's tables may take the place of a former one's. */
struct announces {
	const struct vb_key_slot *slots;
	const struct vb_key_marks *marks;
	uint32_t pid;
};

static struct announces announces(struct vb_peer_mem *f)
{
	struct announces a;

	vb_lock_take(&f->lock);
	a = (struct announces){f->slots, f->marks, f->pid};
	vb_lock_give(&f->lock);
	return a;
}

bool vb_peer_mem_in_use(struct vb_peer_mem *f, uint32_t number, uint32_t index)
{
	struct announces a = announces(f);

	return vb_announced(a.slots, &a.marks->slots, number, index);
}

void vb_peer_mem_wait(struct vb_peer_mem *f, uint32_t number, uint32_t index, uint32_t qpn, const char *what)
{
	struct announces a = announces(f);

	vb_announced_wait(a.slots, &a.marks->slots, number, index, qpn, what, a.pid);
}

bool vb_peer_mem_has_key(const struct vb_peer_mem *f, uint32_t rkey, uint64_t addr, uint64_t len)
{
	uint32_t index = vb_peer_mem_index(f, rkey),
		 used = atomic_load_explicit(&f->marks->keys, memory_order_acquire);
	const struct vb_key_entry *e = &f->keys[index];
	uint64_t iova, length;
	uint32_t seq, key;

	if (!index || index >= used || (rkey & VB_KEY_TAGGED) || !(rkey & VB_KEY_REMOTE))
		return false;
	seq = atomic_load_explicit(&e->seq, memory_order_acquire);
	key = atomic_load_explicit(&e->key, memory_order_acquire);
	iova = atomic_load_explicit(&e->iova, memory_order_acquire);
	length = atomic_load_explicit(&e->length, memory_order_acquire);
	if ((seq & 1) || atomic_load_explicit(&e->seq, memory_order_relaxed) != seq)
		return false;
	return key == (rkey & ~VB_KEY_REMOTE) && length &&
	       (!len || (addr >= iova && addr - iova <= length && len <= length - (addr - iova)));
}
