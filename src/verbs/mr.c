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
#include "verbs/progress.h"
#include "verbs/verbs.h"

#ifndef MADV_POPULATE_READ
#define MADV_POPULATE_READ  22
#define MADV_POPULATE_WRITE 23
#endif

#define CALL   "ibv_reg_mr"
#define PAGE   4096ull
#define REMOTE (IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_ATOMIC)
#define KNOWN  (0xffu | IBV_ACCESS_OPTIONAL_RANGE)

static_assert(sizeof(struct ibv_mr) == 48, "ABI");

static int check_access(unsigned access)
{
	if (access & ~KNOWN) /* rule 42 */
		return vb_refuse(EINVAL, CALL, "access 0x%x has unknown bits 0x%x", access, access & ~KNOWN);
	if (access & (IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_ATOMIC) &&
	    !(access & IBV_ACCESS_LOCAL_WRITE)) /* rule 42 */
		return vb_refuse(EINVAL, CALL, "access 0x%x: remote write and atomic need local write",
				 access);
	if (access & IBV_ACCESS_ON_DEMAND)
		return vb_refuse(EOPNOTSUPP, CALL, "on-demand paging is not supported");
	if (access & IBV_ACCESS_HUGETLB)
		return vb_refuse(EINVAL, CALL, "IBV_ACCESS_HUGETLB goes with IBV_ACCESS_ON_DEMAND only");
	return 0;
}

static int check_range(uint64_t addr, uint64_t length, uint64_t iova)
{
	if (!length)
		return vb_refuse(EINVAL, CALL, "length 0");
	if (addr + (length - 1) < addr)
		return vb_refuse(EINVAL, CALL, "0x%" PRIx64 " bytes at 0x%" PRIx64 " leave the address space",
				 length, addr);
	if (iova + (length - 1) < iova)
		return vb_refuse(EINVAL, CALL, "0x%" PRIx64 " bytes from iova 0x%" PRIx64 " pass 2^64",
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

static int refuse_memory(int err, uint64_t addr, uint64_t length, bool write)
{
	if (err == ENOMEM)
		return vb_refuse(err, CALL, "no memory for the 0x%" PRIx64 " bytes at 0x%" PRIx64, length,
				 addr);
	return vb_refuse(err, CALL, "the 0x%" PRIx64 " bytes at 0x%" PRIx64 " are not all mapped %s", length,
			 addr, write ? "for writing, which local write needs" : "for reading");
}

static struct ibv_mr *reg(struct ibv_pd *ibpd, void *address, size_t length, uint64_t iova, unsigned access)
{
	struct vb_pd *pd = vb_pd(ibpd);
	struct vb_context *c = vb_context(ibpd->context);
	uint64_t addr = (uintptr_t)address;
	bool write = access & IBV_ACCESS_LOCAL_WRITE;
	struct vb_mr *mr = NULL;
	int err;

	if (vb_context_dead(c)) {
		err = vb_refuse(EIO, CALL, "the device was opened before fork()");
		goto refused;
	}
	if (access & IBV_ACCESS_ZERO_BASED) /* rule 43 */
		iova = 0;
	err = check_access(access);
	if (!err)
		err = check_range(addr, length, iova);
	if (err)
		goto refused;
	mr = calloc(1, sizeof(*mr));
	if (!mr) {
		err = vb_refuse(ENOMEM, CALL, "no memory for another region");
		goto refused;
	}
	vb_guard_install();
	err = populate(addr, length, write);
	if (err) {
		err = refuse_memory(err, addr, length, write);
		goto refused;
	}
	if (access & REMOTE)
		vb_direct_admit();
	mr->pd = pd;
	mr->iova = iova;
	mr->access = access & ~(unsigned)(IBV_ACCESS_OPTIONAL_RANGE | IBV_ACCESS_ZERO_BASED);
	mr->ibv.lkey = vb_key_publish(&vb_hca(c->adapter)->keys, pd->id, mr->access, iova, addr,
				      length); /* pairs with ibv_dereg_mr() */
	if (!mr->ibv.lkey) {
		err = vb_refuse(ENOMEM, CALL, "all %u memory regions are in use", vb_profile()->max_mr);
		goto refused;
	}
	atomic_fetch_add(&pd->refs, 1); /* pairs with ibv_dereg_mr() */
	mr->ibv.context = ibpd->context;
	mr->ibv.pd = ibpd;
	mr->ibv.addr = address;
	mr->ibv.length = length;
	mr->ibv.handle = VB_KEY_INDEX(mr->ibv.lkey);
	mr->ibv.rkey = mr->ibv.lkey | VB_KEY_REMOTE;
	return &mr->ibv;
refused:
	free(mr);
	errno = err;
	return NULL;
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
	struct vb_mr *mr = (struct vb_mr *)ibmr;
	struct vb_context *c = vb_context(ibmr->context);

	if (vb_context_dead(c))
		return 0;
	vb_key_retract(&vb_hca(c->adapter)->keys, ibmr->lkey);
	if (mr->access & REMOTE)
		vb_direct_key_retracted(c->adapter, ibmr->lkey);
	vb_key_give(&vb_hca(c->adapter)->keys, ibmr->lkey);
	atomic_fetch_sub(&mr->pd->refs, 1);
	free(mr);
	return 0;
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
