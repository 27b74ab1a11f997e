#include "mem/far.h"

#include <errno.h>
#include <poll.h>
#include <string.h>
#include <time.h>

#include "base/fault.h"
#include "base/log.h"
#include "iba/limits.h"

#define SEEN_FOR 20000000 /* ns for which a peer that was alive is taken to be so */

/* An announcement: adapter number, QPN and key index in one word, so that one store makes it. */
#define FAR_USED	   (1ull << 63)
#define FAR_WORD(n, q, i)  (FAR_USED | (uint64_t)(n) << 45 | (uint64_t)(q) << 21 | (i))
#define FAR_NUMBER(w)	   ((uint32_t)((w) >> 45) & (VB_ADAPTERS - 1))
#define FAR_QPN(w)	   ((uint32_t)((w) >> 21) & 0xffffffu)
#define FAR_INDEX(w)	   ((uint32_t)(w)&0x1fffffu)
#define FAR_INDEX_ALL_BITS 0x1fffffu

_Static_assert(VB_MAX_MR < FAR_INDEX_ALL_BITS, "an index fits the word");

static bool qp_permits(const struct vb_far *f, const struct vb_far_want *w)
{
	return (atomic_load(&w->qp->may) & w->access) &&
	       atomic_load_explicit(&w->qp->dest_qpn, memory_order_relaxed) == w->qpn &&
	       atomic_load_explicit(&w->qp->peer, memory_order_relaxed) == f->here;
}

static bool key_permits(const struct vb_far *f, const struct vb_far_want *w, uint64_t *at)
{
	uint32_t index = VB_KEY_INDEX(w->rkey);
	uint32_t used = atomic_load_explicit(&f->marks->keys, memory_order_acquire);

	/* Beyond the mark a look alone would make the far end's sparse file grow. */
	if (index >= used || index > VB_MAX_MR || !(w->rkey & VB_KEY_REMOTE))
		return false;
	return vb_key_resolve(&f->keys[index], w->rkey & ~VB_KEY_REMOTE,
			      atomic_load_explicit(&w->qp->pd, memory_order_relaxed), w->addr, w->len,
			      w->access, at);
}

static void deny(struct vb_far *f, int err)
{
	if (atomic_exchange(&f->denied, true) || err == ESRCH)
		return;
	vb_log(
	    VB_LOG_INFO,
	    "the kernel does not let this process reach into the memory of process %u (%s): the ring carries "
	    "its WRITEs and READs",
	    f->pid, strerror(err));
}

/* A TID may be given to a new process once its owner is gone and the numbers have wrapped around: never
 * touched without having seen the owner alive a moment ago. */
static bool alive(struct vb_far *f)
{
	struct timespec t;
	struct pollfd p = {.fd = f->pidfd, .events = POLLIN};
	int64_t now, seen = atomic_load_explicit(&f->seen, memory_order_relaxed);

	clock_gettime(CLOCK_MONOTONIC_COARSE, &t);
	now = t.tv_sec * 1000000000ll + t.tv_nsec;
	if (now - seen < SEEN_FOR)
		return true;
	if (poll(&p, 1, 0) != 0)
		return false;
	atomic_store_explicit(&f->seen, now, memory_order_relaxed);
	return true;
}

enum vb_far_means vb_far_begin(struct vb_far *f, struct vb_keys *own, struct vb_far_use *u,
			       const struct vb_far_want *w)
{
	u->slot = vb_mem_slot(own);
	u->means = VB_FAR_NONE;
	if (vb_unlikely(!u->slot))
		return VB_FAR_NONE;
	/* Either we see the permission go or its owner sees this; pairs with vb_far_wait(). */
	atomic_store(&u->slot->far, FAR_WORD(f->number, w->far_qpn, VB_KEY_INDEX(w->rkey)));
	if (vb_unlikely(!qp_permits(f, w)))
		goto take_back;
	if (vb_unlikely(!w->len)) {
		if (!f->same && !alive(f))
			goto take_back;
		return u->means = VB_FAR_QP;
	}
	if (vb_unlikely(!key_permits(f, w, &u->at)))
		goto take_back;
	VB_FAULT_POINT("far memory announced, not yet touched");
	if (f->same) {
		u->ptr = (uint8_t *)(uintptr_t)u->at;
		return u->means = VB_FAR_MAPPED;
	}
	if (vb_likely(!atomic_load_explicit(&f->denied, memory_order_relaxed) && alive(f)))
		return u->means = VB_FAR_VM;
take_back:
	vb_far_end(u);
	return VB_FAR_NONE;
}

void vb_far_end(struct vb_far_use *u)
{
	atomic_store_explicit(&u->slot->far, 0, memory_order_release); /* pairs with vb_far_wait() */
}

bool vb_far_also(const struct vb_far *f, const struct vb_far_want *w, uint64_t *at)
{
	return key_permits(f, w, at);
}

bool vb_far_mapped(const struct vb_far *f, uint32_t rkey)
{
	(void)rkey;
	return f->same;
}

bool vb_far_likely(const struct vb_far *f, const struct vb_far_want *w)
{
	uint64_t at;

	return (f->same || !atomic_load_explicit(&f->denied, memory_order_relaxed)) && qp_permits(f, w) &&
	       (!w->len || key_permits(f, w, &at));
}

size_t vb_far_move(struct vb_far *f, bool write, const struct iovec *here, unsigned nhere,
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

static bool names(uint64_t word, uint32_t number, uint32_t index, uint32_t qpn)
{
	return (word & FAR_USED) && FAR_NUMBER(word) == number && (!index || FAR_INDEX(word) == index) &&
	       (!qpn || FAR_QPN(word) == qpn);
}

void vb_far_wait(const struct vb_far *f, uint32_t number, uint32_t index, uint32_t qpn, const char *what)
{
	uint32_t high = atomic_load(&f->marks->slots);

	if (high > VB_MEM_SLOTS)
		high = VB_MEM_SLOTS;
	for (uint32_t i = 0; i < high; i++) {
		struct vb_patience p = {0};

		while (vb_unlikely(names(atomic_load(&f->slots[i].far), number, index, qpn))) {
			if (vb_patience_nap(&p))
				vb_log(VB_LOG_WARN,
				       "%s waits for process %u, which is using it and does not go on", what,
				       f->pid);
		}
	}
}
