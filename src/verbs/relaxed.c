/* Relaxed regions, as Solaris had them: the pools are obj/relaxed.c's.
 *
 * They differ from the regions of ibv_reg_mr() in what their manual page says: access reaches to page
 * boundaries, and deregistration waits for nobody.  An old key fails at once all the same; what a flush waits
 * for is those who are in the middle of a copy. */
#include <errno.h>
#include <inttypes.h>

#include "base/log.h"
#include "base/pages.h"
#include "base/trace.h"
#include "mem/copy.h"
#include "mem/guard.h"
#include "obj/relaxed.h"
#include "hca/direct.h"
#include "verbs/mr.h"
#include "verbs/pin.h"
#include "hca/hca.h"
#include "verbs/verbs.h"
#include "verbs/why.h"

#define CALL   "ibv_reg_mr_relaxed"
#define MAX    ((1u << 20) + VB_PAGE - 1) /* bytes that are too many wherever they begin */
#define REMOTE (IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_ATOMIC)
#define KNOWN  (IBV_ACCESS_LOCAL_WRITE | REMOTE | IBV_ACCESS_MW_BIND | IBV_ACCESS_OPTIONAL_RANGE)

static void gone(void *owner, uint32_t lkey)
{
	vb_direct_key_settled(((struct vb_hca *)owner)->adapter, lkey);
}

static void wait_for_users(void *owner, uint32_t lkey)
{
	struct vb_hca *h = owner;

	vb_key_wait(&h->keys, lkey);
	vb_direct_key_retracted(h->adapter, lkey);
}

static void nudge(void *owner)
{
	vb_adapter_nudge(((struct vb_hca *)owner)->adapter);
}

static const struct vb_relaxed_ops ops = {.gone = gone, .wait = wait_for_users, .nudge = nudge};

void vb_relaxed_open(struct vb_hca *h)
{
	vb_relaxed_init(&h->relaxed, &h->keys, &ops, h);
}

static int check(uint64_t addr, size_t length, unsigned access)
{
	if (access & ~(unsigned)KNOWN) /* iova is the address; the pages are there at once */
		return vb_mr_refuse_flags(CALL, access & ~(unsigned)KNOWN,
					  "relaxed regions: their iova is their address, and their pages are "
					  "present from the start");
	if (!vb_mr_may_write(access)) /* rule 42 */
		return vb_mr_refuse_write(CALL, access);
	if (!length)
		return vb_refuse(EINVAL, CALL, "length is 0");
	if (length >= MAX || addr % VB_PAGE + length > VB_RELAXED_LONG * VB_PAGE)
		return vb_refuse(EINVAL, CALL,
				 "%zu bytes at 0x%" PRIx64
				 " exceed the limit of a relaxed region: %zu bytes, on %u pages of %zu "
				 "bytes; use ibv_reg_mr(), or several relaxed regions",
				 length, addr, MAX - 1, VB_RELAXED_LONG, VB_PAGE);
	if (addr + (length - 1) < addr || (addr + (length - 1)) / VB_PAGE == UINT64_MAX / VB_PAGE)
		return vb_refuse(EINVAL, CALL, "0x%zx bytes at 0x%" PRIx64 " exceed the address space",
				 length, addr);
	return 0;
}

/* Whether all pages are there, afterwards.  No system call where they were touched before (m: 6 ns a page,
 * where MADV_POPULATE_WRITE takes 150). */
static bool touch(uint64_t start, uint64_t pages, bool write)
{
	uint64_t orig;
	uint8_t byte;

	for (uint64_t p = start; pages--; p += VB_PAGE) {
		void *at = (void *)(uintptr_t)p;

		if (write ? !vb_atomic_fetch_add(at, 0, &orig) : !vb_copy_from_app(&byte, at, 1))
			return false;
	}
	return true;
}

static int refuse_pool(struct vb_hca *h, int err, const struct vb_pd *pd)
{
	const struct vb_key_zone *z = pd->id >> 32 != h->keys.home ? &h->keys.tagged : &h->keys.plain;

	if (err == EAGAIN)
		return vb_refuse(err, CALL,
				 "the pool for these flags and this length is empty: %u relaxed regions are "
				 "registered; deregister some, or try again when peers no longer use them",
				 vb_relaxed_live(&h->relaxed));
	if (z->live >= z->room)
		return vb_why_no_key(&h->keys, CALL, pd);
	return vb_refuse(err, CALL, "out of memory for another pool of relaxed regions");
}

static void publish(struct vb_hca *h, struct vb_pd *pd, struct vb_relaxed_mr *m, uint64_t start,
		    uint64_t pages)
{
	struct vb_mr *mr = &m->mr;

	mr->pd = pd;
	mr->access = m->pool->access & ~(unsigned)(IBV_ACCESS_OPTIONAL_RANGE | VB_RELAXED_TAGGED);
	mr->asked = m->pool->access & ~VB_RELAXED_TAGGED;
	mr->kind = VB_KEY_MEMORY;
	mr->source = VB_MR_RELAXED;
	vb_pd_count(pd, VB_CHILD_MR, 1); /* pairs with ibv_dereg_mr_relaxed() */
	mr->ibv.context = pd->ibv.context;
	mr->ibv.pd = &pd->ibv;
	mr->ibv.handle = vb_keys_index(&h->keys, m->lkey);
	mr->ibv.lkey = vb_key_local(&h->keys, m->lkey);
	mr->ibv.rkey = m->lkey | VB_KEY_REMOTE;
	/* Access reaches to page boundaries: the region is its pages. */
	vb_key_set(&h->keys, m->lkey,
		   &(struct vb_key_spec){.pd = pd->id,
					 .access = mr->access,
					 .kind = VB_KEY_MEMORY,
					 .qpn = VB_MR_RELAXED, /* tools show it */
					 .iova = start,
					 .addr = start,
					 .length = pages * VB_PAGE});
}

VB_EXPORT VB_OBJECT(struct ibv_mr *, ibv_reg_mr_relaxed, (ibpd, address, length, flags), struct ibv_pd *ibpd,
		    void *address, size_t length, int flags)
{
	struct vb_context *c = ibpd ? vb_context(ibpd->context) : NULL;
	uint64_t addr = (uintptr_t)address, start = addr & ~(VB_PAGE - 1), pages;
	unsigned access = (unsigned)flags, tagged;
	struct vb_relaxed_mr *m;
	struct vb_hca *h;
	bool write;
	int err;

	if (!c) {
		err = vb_refuse(EINVAL, CALL, "pd is NULL");
		goto refused;
	}
	if (vb_context_dead(c)) {
		err = vb_refuse_forked(CALL);
		goto refused;
	}
	err = check(addr, length, access);
	if (err)
		goto refused;
	h = vb_hca(c->adapter);
	pages = (addr - start + length + VB_PAGE - 1) / VB_PAGE;
	tagged = vb_pd(ibpd)->id >> 32 != h->keys.home ? VB_RELAXED_TAGGED : 0;
	err =
	    vb_relaxed_take(&h->relaxed, access | tagged, pages, &m); /* pairs with ibv_dereg_mr_relaxed() */
	if (err) {
		err = refuse_pool(h, err, vb_pd(ibpd));
		goto refused;
	}
	/* Nothing counts against RLIMIT_MEMLOCK on this way.  Pairs with ibv_dereg_mr_relaxed(), too. */
	err = vb_fork_mark(CALL, addr, length);
	if (err)
		goto untake;
	write = access & IBV_ACCESS_LOCAL_WRITE;
	vb_guard_install();
	/* What does not go by touching is looked at closely, and said. */
	if (!touch(start, pages, write))
		err = vb_mr_present(CALL, addr, length, write);
	if (err)
		goto unmark;
	if (access & REMOTE)
		vb_direct_admit();
	publish(h, vb_pd(ibpd), m, start, pages);
	m->mr.ibv.addr = address;
	m->mr.ibv.length = length;
	m->mr.iova = addr;
	vb_live_enter(&m->mr.ibv, VB_LIVE_MR);
	VB_TRACE_MR_REG(address, length, access);
	return &m->mr.ibv;
unmark:
	vb_fork_unmark(addr, length);
untake:
	vb_relaxed_untake(&h->relaxed, m);
refused:
	errno = err;
	return NULL;
}

VB_EXPORT VB_END(ibv_dereg_mr_relaxed, "ibv_dereg_mr_relaxed", VB_LIVE_MR, ibmr, struct ibv_mr *ibmr)
{
	static const char call[] = "ibv_dereg_mr_relaxed";
	struct vb_relaxed_mr *m = (struct vb_relaxed_mr *)ibmr;
	struct vb_context *c = vb_context(ibmr->context);
	struct vb_pd *pd = m->mr.pd; /* another thread may be given the entry at once */
	uint64_t addr = (uintptr_t)ibmr->addr, length = ibmr->length;
	struct vb_hca *h;

	if (vb_context_dead(c))
		return 0;
	if (m->mr.source != VB_MR_RELAXED)
		return vb_refuse(
		    EINVAL, call,
		    "the region of L_Key 0x%08x is not relaxed; deregister it with ibv_dereg_mr()",
		    ibmr->lkey);
	h = vb_hca(c->adapter);
	if ((m->mr.access & IBV_ACCESS_MW_BIND) && m->state == VB_RELAXED_LIVE &&
	    vb_mr_close(&m->mr, call)) /* rule 49 */
		return EBUSY;
	if (!vb_relaxed_drop(&h->relaxed, m))
		return vb_refuse(EINVAL, call, "the region of L_Key 0x%08x was deregistered before",
				 ibmr->lkey);
	VB_TRACE_MR_DEREG(addr, length);
	vb_pd_count(pd, VB_CHILD_MR, -1u);
	vb_fork_unmark(addr, length);
	return 0;
}

VB_EXPORT VB_CODE(ibv_flush_relaxed_mr, (pd), struct ibv_pd *pd)
{
	struct vb_context *c;

	if (!pd)
		return vb_refuse(EINVAL, "ibv_flush_relaxed_mr", "pd is NULL");
	c = vb_context(pd->context);
	if (!vb_context_dead(c))
		vb_relaxed_flush(&vb_hca(c->adapter)->relaxed);
	return 0;
}
