/* Memory regions: what may be registered, and making its pages present. */
#include <assert.h>
#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "base/log.h"
#include "iba/profile.h"
#include "mem/copy.h"
#include "mem/guard.h"
#include "verbs/direct.h"
#include "verbs/mr.h"
#include "verbs/progress.h"
#include "verbs/verbs.h"
#include "verbs/why.h"

#ifndef MADV_POPULATE_READ
#define MADV_POPULATE_READ  22
#define MADV_POPULATE_WRITE 23
#endif

#define PAGE   4096ull
#define REMOTE (IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_ATOMIC)
#define KNOWN  (0xffu | IBV_ACCESS_OPTIONAL_RANGE)

static_assert(sizeof(struct ibv_mr) == 48, "ABI");

static int check_access(const char *call, unsigned access)
{
	if (access & ~KNOWN) /* rule 42 */
		return vb_refuse(EINVAL, call, "access 0x%x has unknown bits 0x%x", access, access & ~KNOWN);
	if (access & (IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_ATOMIC) &&
	    !(access & IBV_ACCESS_LOCAL_WRITE)) /* rule 42 */
		return vb_refuse(EINVAL, call, "access 0x%x: remote write and atomic need local write",
				 access);
	if (access & IBV_ACCESS_ON_DEMAND)
		return vb_refuse(EOPNOTSUPP, call, "on-demand paging is not supported");
	if (access & IBV_ACCESS_HUGETLB)
		return vb_refuse(EINVAL, call, "IBV_ACCESS_HUGETLB goes with IBV_ACCESS_ON_DEMAND only");
	return 0;
}

static int check_range(const char *call, uint64_t addr, uint64_t length, uint64_t iova)
{
	if (!length)
		return vb_refuse(EINVAL, call, "length 0");
	if (addr + (length - 1) < addr)
		return vb_refuse(EINVAL, call, "0x%" PRIx64 " bytes at 0x%" PRIx64 " leave the address space",
				 length, addr);
	if (iova + (length - 1) < iova)
		return vb_refuse(EINVAL, call, "0x%" PRIx64 " bytes from iova 0x%" PRIx64 " pass 2^64",
				 length, iova);
	/* rule 43: that iova and address stand at the same offset of a page is what kernels' page lists need;
	 * the manual page asks for nothing of the kind, and a key here translates by addition */
	return 0;
}

/* A kernel that does not know MADV_POPULATE_*: each page is touched by our copies, which survive a fault. */
static int touch(uint64_t start, uint64_t end, bool write)
{
	uint64_t orig;
	uint8_t byte;

	for (uint64_t p = start; p < end; p += PAGE) {
		void *at = (void *)(uintptr_t)p;

		if (write ? !vb_atomic_fetch_add(at, 0, &orig) : !vb_copy_from_app(&byte, at, 1))
			return EFAULT;
	}
	return 0;
}

/* The errno that pinning the pages would give.  (m: madvise() checks the advice before the range.) */
static int populate(uint64_t addr, uint64_t length, bool write)
{
	uint64_t start = addr & ~(PAGE - 1), end = addr + (length - 1);
	int advice = write ? MADV_POPULATE_WRITE : MADV_POPULATE_READ;
	void *at = (void *)(uintptr_t)start;

	if ((end | (PAGE - 1)) == UINT64_MAX)
		return EFAULT; /* nobody's memory is there, and the end must be expressible */
	end = (end | (PAGE - 1)) + 1;
	while (madvise(at, end - start, advice)) {
		switch (errno) {
		case EAGAIN:
		case EINTR:
			continue;
		case EINVAL: /* no such advice, or not with this mapping or its permissions */
			return madvise(at, 0, advice) ? touch(start, end, write) : EFAULT;
		case ENOMEM: /* a hole, or no memory for the pages; msync() minds only the former */
			return msync(at, end - start, MS_ASYNC) && errno == ENOMEM ? EFAULT : ENOMEM;
		default: /* EFAULT, EHWPOISON */
			return EFAULT;
		}
	}
	return 0;
}

int vb_mr_register(struct vb_mr **out, const struct vb_mr_ask *ask)
{
	struct vb_pd *pd = ask->pd;
	struct vb_context *c = vb_context(pd->ibv.context);
	struct vb_mr *mr = calloc(1, sizeof(*mr)); /* vb_mr_drop() */

	if (!mr)
		return vb_refuse(ENOMEM, ask->call, "no memory for another region");
	if (ask->access & REMOTE)
		vb_direct_admit();
	mr->pd = pd;
	mr->iova = ask->iova;
	mr->kind = ask->kind;
	mr->source = ask->source;
	mr->release = ask->release;
	mr->of = ask->of;
	mr->access = ask->access & ~(unsigned)(IBV_ACCESS_OPTIONAL_RANGE | IBV_ACCESS_ZERO_BASED |
					       IBV_ACCESS_ON_DEMAND | IBV_ACCESS_HUGETLB);
	mr->ibv.lkey =
	    vb_key_publish(&vb_hca(c->adapter)->keys, &(struct vb_key_spec){.pd = pd->id,
									    .access = mr->access,
									    .kind = ask->kind,
									    .iova = ask->iova,
									    .addr = ask->addr,
									    .length = ask->length});
	if (!mr->ibv.lkey) {
		free(mr);
		return vb_refuse(ENOMEM, ask->call, "all %u memory regions are in use", vb_profile()->max_mr);
	}
	atomic_fetch_add(&pd->refs, 1); /* pairs with vb_mr_drop() */
	mr->ibv.context = pd->ibv.context;
	mr->ibv.pd = &pd->ibv;
	mr->ibv.addr = (void *)(uintptr_t)ask->addr;
	mr->ibv.length = ask->length;
	mr->ibv.handle = VB_KEY_INDEX(mr->ibv.lkey);
	mr->ibv.rkey = mr->ibv.lkey | VB_KEY_REMOTE;
	mr->ibv.lkey = vb_key_local(&vb_hca(c->adapter)->keys, mr->ibv.lkey);
	*out = mr;
	return 0;
}

int vb_mr_drop(struct vb_mr *mr, const char *call)
{
	struct vb_adapter *a = vb_context(mr->ibv.context)->adapter;
	struct vb_keys *keys = &vb_hca(a)->keys;

	if (!vb_key_close(keys, mr->ibv.lkey)) /* rule 49 */
		return vb_refuse(EBUSY, call, "%u memory windows are bound to the region of L_Key 0x%08x",
				 vb_key_tied(keys, mr->ibv.lkey), mr->ibv.lkey);
	vb_key_retract(keys, mr->ibv.lkey);
	if (mr->access & REMOTE)
		vb_direct_key_retracted(a, mr->ibv.lkey);
	vb_key_give(keys, mr->ibv.lkey);
	if (mr->release)
		mr->release(mr);
	for (int i = 0; i < 2; i++)
		if (mr->holds[i])
			atomic_fetch_sub(mr->holds[i], 1);
	atomic_fetch_sub(&mr->pd->refs, 1);
	free(mr);
	return 0;
}

int vb_mr_present(const char *call, uint64_t addr, uint64_t length, bool write)
{
	int err;

	vb_guard_install();
	err = populate(addr, length, write);
	return err ? vb_why_memory(err, call, addr, length, write) : 0;
}

int vb_mr_register_memory(struct vb_mr **out, const char *call, struct ibv_pd *ibpd, void *address,
			  size_t length, uint64_t iova, unsigned access)
{
	struct vb_mr_ask ask = {.call = call,
				.pd = vb_pd(ibpd),
				.addr = (uintptr_t)address,
				.length = length,
				.iova = access & IBV_ACCESS_ZERO_BASED ? 0 : iova, /* rule 43 */
				.access = access};
	int err;

	if (vb_context_dead(vb_context(ibpd->context)))
		return vb_refuse(EIO, call, "the device was opened before fork()");
	err = check_access(call, access);
	if (!err)
		err = check_range(call, ask.addr, length, ask.iova);
	if (!err)
		err = vb_mr_present(call, ask.addr, length, access & IBV_ACCESS_LOCAL_WRITE);
	return err ? err : vb_mr_register(out, &ask);
}

static struct ibv_mr *reg(struct ibv_pd *pd, void *addr, size_t length, uint64_t iova, unsigned access)
{
	struct vb_mr *mr = NULL;
	int err = vb_mr_register_memory(&mr, "ibv_reg_mr", pd, addr, length, iova, access);

	if (err) {
		errno = err;
		return NULL;
	}
	return &mr->ibv;
}

#undef ibv_reg_mr
VB_EXPORT struct ibv_mr *ibv_reg_mr(struct ibv_pd *pd, void *addr, size_t length, int access)
{
	return reg(pd, addr, length, (uintptr_t)addr, (unsigned)access);
}

#undef ibv_reg_mr_iova
VB_EXPORT struct ibv_mr *ibv_reg_mr_iova(struct ibv_pd *pd, void *addr, size_t length, uint64_t iova,
					 int access)
{
	return reg(pd, addr, length, iova, (unsigned)access);
}

VB_EXPORT struct ibv_mr *ibv_reg_mr_iova2(struct ibv_pd *pd, void *addr, size_t length, uint64_t iova,
					  unsigned int access)
{
	return reg(pd, addr, length, iova, access);
}

VB_EXPORT int ibv_dereg_mr(struct ibv_mr *ibmr)
{
	if (vb_context_dead(vb_context(ibmr->context)))
		return 0;
	if (((struct vb_mr *)ibmr)->source == VB_MR_RELAXED)
		return vb_refuse(EINVAL, "ibv_dereg_mr",
				 "L_Key 0x%08x is a relaxed region's, which ibv_dereg_mr_relaxed() ends",
				 ibmr->lkey);
	return vb_mr_drop((struct vb_mr *)ibmr, "ibv_dereg_mr");
}

VB_EXPORT int ibv_rereg_mr(struct ibv_mr *mr, int flags, struct ibv_pd *pd, void *addr, size_t length,
			   int access)
{
	(void)mr;
	(void)flags;
	(void)pd;
	(void)addr;
	(void)length;
	(void)access;
	errno = vb_refuse(EOPNOTSUPP, "ibv_rereg_mr", "a region cannot be changed yet; it stays as it is");
	return IBV_REREG_MR_ERR_INPUT;
}
