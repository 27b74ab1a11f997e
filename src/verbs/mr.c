/* Memory regions: what may be registered, and how a region comes and goes.
 *
 * An ordinary region's pages are made present at registration.  An on-demand region is an entry in the table
 * and nothing else: our copies survive a fault (mem/guard.h), and the kernel's bring the pages in. */
#include <assert.h>
#include <errno.h>
#include <inttypes.h>

#include "base/log.h"
#include "base/pages.h"
#include "base/trace.h"
#include "iba/names.h"
#include "iba/profile.h"
#include "iba/wr.h"
#include "mem/guard.h"
#include "mem/populate.h"
#include "mem/vma.h"
#include "hca/direct.h"
#include "verbs/checked.h"
#include "verbs/mr.h"
#include "verbs/pin.h"
#include "hca/hca.h"
#include "verbs/verbs.h"
#include "verbs/why.h"

#define KNOWN (0x3ffu | IBV_ACCESS_OPTIONAL_RANGE)

static_assert(sizeof(struct ibv_mr) == 48, "ABI");

int vb_mr_refuse_write(const char *call, unsigned access)
{
	char names[VB_FLAGS_TEXT];

	return vb_refuse(EINVAL, call,
			 "access %s lacks IBV_ACCESS_LOCAL_WRITE: remote write and atomic require it",
			 vb_name_flags(names, sizeof(names), VB_FLAGS_ACCESS, access));
}

int vb_mr_refuse_flags(const char *call, unsigned flags, const char *what)
{
	char names[VB_FLAGS_TEXT];

	return vb_refuse(EINVAL, call, "access: %s is not supported for %s",
			 vb_name_flags(names, sizeof(names), VB_FLAGS_ACCESS, flags), what);
}

static int check_access(const struct vb_mr_ask *ask)
{
	unsigned access = ask->access;

	if (access & ~KNOWN) /* rule 42 */
		return vb_refuse_bits(EINVAL, ask->call, "access", access, KNOWN);
	if (access & VB_ACCESS_FLUSH_PERSISTENT)
		return vb_refuse(
		    EOPNOTSUPP, ask->call,
		    "IBV_ACCESS_FLUSH_PERSISTENT is not supported: the device has no persistent memory");
	if (!vb_mr_may_write(access)) /* rule 42 */
		return vb_mr_refuse_write(ask->call, access);
	if (access & IBV_ACCESS_HUGETLB && !(access & IBV_ACCESS_ON_DEMAND))
		return vb_refuse(EINVAL, ask->call, "IBV_ACCESS_HUGETLB requires IBV_ACCESS_ON_DEMAND");
	if (access & IBV_ACCESS_ON_DEMAND && !vb_profile()->on_demand)
		return vb_refuse(EOPNOTSUPP, ask->call,
				 "the device of profile %s has no on-demand paging (IBV_ACCESS_ON_DEMAND)",
				 vb_profile()->name);
	return 0;
}

/* Rule 43: that iova and address stand at the same offset of a page is what kernels' page lists need; the
 * manual page asks for nothing of the kind, and a key here translates by addition.  Some profiles ask for it
 * all the same. */
static int check_page_offset(const struct vb_mr_ask *ask)
{
	if (!vb_profile()->page_offset || !vb_page_offset(ask->addr ^ ask->iova))
		return 0;
	return vb_refuse(EINVAL, ask->call,
			 "address 0x%" PRIx64 " is at offset 0x%" PRIx64 " of its page, iova 0x%" PRIx64
			 " at offset 0x%" PRIx64 ": the device of profile %s requires equal offsets",
			 ask->addr, vb_page_offset(ask->addr), ask->iova, vb_page_offset(ask->iova),
			 vb_profile()->name);
}

static bool is_implicit(const struct vb_mr_ask *ask)
{
	return ask->access & IBV_ACCESS_ON_DEMAND && !ask->addr && ask->length == SIZE_MAX;
}

static int check_range(const struct vb_mr_ask *ask)
{
	uint64_t length = ask->length;

	if (is_implicit(ask)) {
		if (ask->iova)
			return vb_refuse(EINVAL, ask->call,
					 "iova 0x%" PRIx64
					 " must be 0: the addresses of an implicit region begin at 0",
					 ask->iova);
		if (ask->access & IBV_ACCESS_HUGETLB)
			return vb_refuse(EINVAL, ask->call,
					 "IBV_ACCESS_HUGETLB is not supported for implicit regions");
		return 0;
	}
	if (!length)
		return vb_refuse(EINVAL, ask->call, "length is 0");
	if (ask->addr + (length - 1) < ask->addr)
		return vb_refuse(EINVAL, ask->call,
				 "0x%" PRIx64 " bytes at 0x%" PRIx64 " exceed the address space", length,
				 ask->addr);
	if (ask->iova + (length - 1) < ask->iova)
		return vb_refuse(EINVAL, ask->call, "0x%" PRIx64 " bytes at iova 0x%" PRIx64 " exceed 2^64",
				 length, ask->iova);
	/* rule 50; without IBV_ACCESS_ON_DEMAND the memory has to be there, which says it better */
	if (ask->access & IBV_ACCESS_ON_DEMAND && length > vb_profile()->max_mr_size)
		return vb_refuse(EINVAL, ask->call,
				 "length 0x%" PRIx64 " exceeds the device's limit of 0x%" PRIx64
				 " bytes (max_mr_size); an implicit region has address 0 and length SIZE_MAX",
				 length, vb_profile()->max_mr_size);
	return check_page_offset(ask);
}

/* The promise of IBV_ACCESS_HUGETLB. */
static int check_huge(const struct vb_mr_ask *ask)
{
	uint64_t at, page;

	if (!(ask->access & IBV_ACCESS_HUGETLB) || vb_vma_huge(ask->addr, ask->length, &at, &page))
		return 0;
	if (!page)
		return vb_refuse(EINVAL, ask->call,
				 "IBV_ACCESS_HUGETLB requires huge pages: nothing is mapped at 0x%" PRIx64,
				 at);
	return vb_refuse(EINVAL, ask->call,
			 "IBV_ACCESS_HUGETLB requires huge pages: the pages at 0x%" PRIx64 " have %" PRIu64
			 " bytes",
			 at, page);
}

int vb_mr_present(const char *call, uint64_t addr, uint64_t length, bool write)
{
	int err;

	vb_guard_install();
	err = vb_populate(addr, length, write);
	return err ? vb_why_memory(err, call, addr, length, write) : 0;
}

int vb_mr_prepare(struct vb_mr_ask *ask)
{
	int err = check_access(ask);

	ask->kind = ask->access & IBV_ACCESS_ON_DEMAND ? VB_KEY_ON_DEMAND : VB_KEY_MEMORY;
	if (!err)
		err = check_range(ask);
	if (!err)
		err = check_huge(ask);
	if (err)
		return err;
	if (ask->kind == VB_KEY_ON_DEMAND) {
		vb_guard_install();
		return 0;
	}
	if (!ask->pinned)
		err = vb_pin(ask->call, ask->addr, ask->length, &ask->unmarked);
	if (err)
		return err;
	ask->release = vb_pin_release;
	err = vb_mr_present(ask->call, ask->addr, ask->length, ask->access & IBV_ACCESS_LOCAL_WRITE);
	if (err)
		vb_mr_unprepare(ask);
	return err;
}

void vb_mr_unprepare(const struct vb_mr_ask *ask)
{
	if (ask->release == vb_pin_release && !ask->pinned)
		vb_unpin(ask->addr, ask->length);
}

struct vb_key_spec vb_mr_spec(const struct vb_mr_ask *ask)
{
	return (struct vb_key_spec){
	    .pd = ask->pd->id,
	    .access = ask->access & ~(unsigned)(IBV_ACCESS_OPTIONAL_RANGE | IBV_ACCESS_ZERO_BASED |
						IBV_ACCESS_ON_DEMAND | IBV_ACCESS_HUGETLB),
	    .kind = ask->kind,
	    .iova = ask->iova,
	    .addr = ask->addr,
	    .length = ask->length,
	    .qpn = ask->source, /* tools show it */
	};
}

int vb_mr_register(struct vb_mr **out, const struct vb_mr_ask *ask)
{
	struct vb_pd *pd = ask->pd;
	struct vb_context *c = vb_context(pd->ibv.context);
	const struct vb_key_spec spec = vb_mr_spec(ask);
	struct vb_mr *mr = vb_slab_take(&vb_hca(c->adapter)->mr_slab); /* vb_mr_drop() */
	_Atomic uint32_t *live = &vb_hca(c->adapter)->mrs;
	int err;

	if (!mr)
		return vb_refuse_memory(ask->call);
	/* windows have keys of the same table, which holds as many of both as there may be */
	if (atomic_fetch_add(live, 1) >= vb_profile()->max_mr) { /* pairs with vb_mr_drop() */
		err = vb_refuse(ENOMEM, ask->call, "all %u memory regions of the device are in use",
				vb_profile()->max_mr);
		goto uncount;
	}
	if (ask->access & VB_MR_REMOTE)
		vb_direct_admit();
	mr->pd = pd;
	mr->iova = ask->iova;
	mr->kind = ask->kind;
	mr->source = ask->source;
	mr->release = ask->release;
	mr->of = ask->of;
	mr->asked = ask->access;
	mr->access = spec.access;
	mr->ibv.lkey = vb_key_publish(&vb_hca(c->adapter)->keys, &spec);
	if (!mr->ibv.lkey) {
		err = vb_why_no_key(&vb_hca(c->adapter)->keys, ask->call, pd);
		goto uncount;
	}
	vb_pd_count(pd, VB_CHILD_MR, 1); /* pairs with vb_mr_drop() */
	mr->ibv.context = pd->ibv.context;
	mr->ibv.pd = &pd->ibv;
	mr->ibv.addr = (void *)(uintptr_t)ask->addr;
	mr->ibv.length = ask->length;
	mr->ibv.handle = vb_keys_index(&vb_hca(c->adapter)->keys, mr->ibv.lkey);
	mr->ibv.rkey = mr->ibv.lkey | VB_KEY_REMOTE;
	mr->ibv.lkey = vb_key_local(&vb_hca(c->adapter)->keys, mr->ibv.lkey);
	vb_live_enter(&mr->ibv, VB_LIVE_MR);
	VB_TRACE_MR_REG(ask->addr, ask->length, ask->access);
	*out = mr;
	return 0;
uncount:
	atomic_fetch_sub(live, 1);
	vb_slab_give(&vb_hca(c->adapter)->mr_slab, mr);
	return err;
}

int vb_mr_close(struct vb_mr *mr, const char *call)
{
	struct vb_hca *h = vb_hca(vb_context(mr->ibv.context)->adapter);

	if (vb_key_close(&h->keys, mr->ibv.lkey))
		return 0;
	vb_mw_let_go(&h->mws, mr->ibv.lkey);
	if (vb_key_close(&h->keys, mr->ibv.lkey)) /* rule 49 */
		return 0;
	return vb_why_tied(&h->keys, call, mr->ibv.lkey);
}

int vb_mr_drop(struct vb_mr *mr, const char *call)
{
	struct vb_adapter *a = vb_context(mr->ibv.context)->adapter;
	struct vb_keys *keys = &vb_hca(a)->keys;
	int err = vb_mr_close(mr, call);

	if (err)
		return err;
	vb_checked_dereg(mr, call);
	VB_TRACE_MR_DEREG(mr->ibv.addr, mr->ibv.length);
	vb_key_retract(keys, mr->ibv.lkey);
	/* Also without remote access: processes that hold the domain, too, use it as their own. */
	vb_direct_key_retracted(a, mr->ibv.lkey);
	vb_key_give(keys, mr->ibv.lkey);
	if (mr->release)
		mr->release(mr);
	if (mr->dmah)
		atomic_fetch_sub(mr->dmah, 1);
	atomic_fetch_sub(&vb_hca(a)->mrs, 1);
	vb_pd_count(mr->pd, VB_CHILD_MR, -1u);
	vb_slab_give(&vb_hca(a)->mr_slab, mr);
	return 0;
}

int vb_mr_register_memory(struct vb_mr **out, const char *call, struct ibv_pd *ibpd, void *address,
			  size_t length, uint64_t iova, unsigned access)
{
	struct vb_mr_ask ask = {.call = call,
				.pd = ibpd ? vb_pd(ibpd) : NULL,
				.addr = (uintptr_t)address,
				.length = length,
				.iova = access & IBV_ACCESS_ZERO_BASED ? 0 : iova, /* rule 43 */
				.access = access};
	int err = vb_pd_check(call, ibpd);

	if (err)
		return err;
	err = vb_mr_prepare(&ask);
	if (err)
		return err;
	err = vb_mr_register(out, &ask);
	if (err)
		vb_mr_unprepare(&ask);
	return err;
}

static struct ibv_mr *reg(const char *call, struct ibv_pd *pd, void *addr, size_t length, uint64_t iova,
			  unsigned access)
{
	struct vb_mr *mr = NULL;
	int err = vb_mr_register_memory(&mr, call, pd, addr, length, iova, access);

	if (err) {
		errno = err;
		return NULL;
	}
	return &mr->ibv;
}

#undef ibv_reg_mr
VB_EXPORT VB_OBJECT(struct ibv_mr *, ibv_reg_mr, (pd, addr, length, access), struct ibv_pd *pd, void *addr,
		    size_t length, int access)
{
	return reg("ibv_reg_mr", pd, addr, length, (uintptr_t)addr, (unsigned)access);
}

#undef ibv_reg_mr_iova
VB_EXPORT VB_OBJECT(struct ibv_mr *, ibv_reg_mr_iova, (pd, addr, length, iova, access), struct ibv_pd *pd,
		    void *addr, size_t length, uint64_t iova, int access)
{
	return reg("ibv_reg_mr_iova", pd, addr, length, iova, (unsigned)access);
}

/* What the header's ibv_reg_mr() and ibv_reg_mr_iova() call where `access` is no constant. */
VB_EXPORT VB_OBJECT(struct ibv_mr *, ibv_reg_mr_iova2, (pd, addr, length, iova, access), struct ibv_pd *pd,
		    void *addr, size_t length, uint64_t iova, unsigned int access)
{
	return reg(iova == (uintptr_t)addr ? "ibv_reg_mr" : "ibv_reg_mr_iova", pd, addr, length, iova,
		   access);
}

VB_EXPORT VB_END(ibv_dereg_mr, "ibv_dereg_mr", VB_LIVE_MR, ibmr, struct ibv_mr *ibmr)
{
	if (vb_context_dead(vb_context(ibmr->context)))
		return 0;
	if (((struct vb_mr *)ibmr)->source == VB_MR_RELAXED)
		return vb_refuse(
		    EINVAL, "ibv_dereg_mr",
		    "the region of L_Key 0x%08x is relaxed; deregister it with ibv_dereg_mr_relaxed()",
		    ibmr->lkey);
	if (((struct vb_mr *)ibmr)->source == VB_MR_IMPORTED) { /* its owner's: only that can take it away */
		vb_mr_unimport((struct vb_mr *)ibmr);
		return 0;
	}
	return vb_mr_drop((struct vb_mr *)ibmr, "ibv_dereg_mr");
}

/* Local use only: for any address and length, zeros to be read, and a place for what is not wanted. */
VB_OBJECT(struct ibv_mr *, vb_alloc_null_mr, (pd), struct ibv_pd *pd)
{
	struct vb_mr_ask ask = {.call = "ibv_alloc_null_mr",
				.pd = vb_pd(pd),
				.kind = VB_KEY_NULL,
				.source = VB_MR_NULL,
				.length = SIZE_MAX,
				.access = IBV_ACCESS_LOCAL_WRITE};
	struct vb_mr *mr = NULL;
	int err;

	if (vb_context_dead(vb_context(pd->context)))
		err = vb_refuse_forked(ask.call);
	else
		err = vb_mr_register(&mr, &ask);
	if (err) {
		errno = err;
		return NULL;
	}
	mr->ibv.rkey = 0;
	return &mr->ibv;
}
