/* Registration as newer releases have it: one call for every kind of region, buffers that the library
 * provides, and DMA handles.  The functions are exported and stand in the tables, where newer headers look.
 */
#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "base/log.h"
#include "base/pages.h"
#include "verbs/dmabuf.h"
#include "host/identity.h"
#include "verbs/mr.h"
#include "verbs/verbs.h"

#define MASKS  ((uint64_t)0x3f) /* of enum ibv_mr_init_attr_mask */
#define HINTS  3		/* of PCI Express: two bits */
#define EX     "ibv_reg_mr_ex"
#define BUF_MR "ibv_reg_buf_mr"

/* Hints of where an adapter is to put what it writes.  Here it is the CPU's business. */
struct vb_dmah {
	struct ibv_dmah ibv;   /* first */
	_Atomic uint32_t refs; /* regions */
};

struct ibv_buf {
	struct vb_pd *pd; /* which counts it as a child */
	uint8_t *at;
	size_t size;   /* as asked for */
	size_t mapped; /* whole pages */
};

static int dead(struct ibv_context *context, const char *call)
{
	return vb_context_dead(vb_context(context)) ? vb_refuse_forked(call) : 0;
}

static void *none(int err)
{
	errno = err;
	return NULL;
}

/* --- DMA handles */

static int check_dmah(const struct ibv_dmah_init_attr *a)
{
	static const char call[] = "ibv_alloc_dmah";
	const uint32_t known = IBV_DMAH_INIT_ATTR_MASK_CPU_ID | IBV_DMAH_INIT_ATTR_MASK_PH |
			       IBV_DMAH_INIT_ATTR_MASK_TPH_MEM_TYPE;
	long cpus = sysconf(_SC_NPROCESSORS_CONF);

	if (a->comp_mask & ~known)
		return vb_refuse_bits(EINVAL, call, "comp_mask", a->comp_mask, known);
	if ((a->comp_mask & IBV_DMAH_INIT_ATTR_MASK_CPU_ID) && cpus > 0 && a->cpu_id >= (unsigned long)cpus)
		return vb_refuse(EINVAL, call, "cpu_id %u is out of range: the machine has %ld CPUs",
				 a->cpu_id, cpus);
	if ((a->comp_mask & IBV_DMAH_INIT_ATTR_MASK_PH) && a->ph > HINTS)
		return vb_refuse(EINVAL, call, "ph %u (processing hint) exceeds the limit of %d", a->ph,
				 HINTS);
	if ((a->comp_mask & IBV_DMAH_INIT_ATTR_MASK_TPH_MEM_TYPE) && a->tph_mem_type > IBV_TPH_MEM_TYPE_PM)
		return vb_refuse(EINVAL, call,
				 "tph_mem_type %u is unknown; use 0 (volatile) or 1 (persistent)",
				 a->tph_mem_type);
	return 0;
}

VB_EXPORT VB_OBJECT(struct ibv_dmah *, ibv_alloc_dmah, (context, attr), struct ibv_context *context,
		    struct ibv_dmah_init_attr *attr)
{
	int err = vb_context_check("ibv_alloc_dmah", context);
	struct vb_dmah *d;

	if (!err)
		err = check_dmah(attr);
	if (err)
		return none(err);
	d = calloc(1, sizeof(*d)); /* pairs with ibv_dealloc_dmah() */
	if (!d)
		return none(vb_refuse_memory("ibv_alloc_dmah"));
	d->ibv.context = context;
	vb_live_enter(&d->ibv, VB_LIVE_DMAH);
	return &d->ibv;
}

VB_EXPORT VB_END(ibv_dealloc_dmah, "ibv_dealloc_dmah", VB_LIVE_DMAH, dmah, struct ibv_dmah *dmah)
{
	struct vb_dmah *d = (struct vb_dmah *)dmah;
	uint32_t refs = atomic_load(&d->refs);

	if (refs && !vb_context_dead(vb_context(dmah->context)))
		return vb_refuse_used("ibv_dealloc_dmah", refs, "memory region", "the DMA handle",
				      "deregister");
	free(d);
	return 0;
}

/* --- buffers */

VB_EXPORT VB_OBJECT(void *, ibv_alloc_buf, (ibpd, size, out), struct ibv_pd *ibpd, size_t size,
		    struct ibv_buf **out)
{
	static const char call[] = "ibv_alloc_buf";
	struct vb_pd *pd = vb_pd(ibpd);
	int err = vb_pd_check(call, ibpd);
	struct ibv_buf *b;

	if (!err && !size)
		err = vb_refuse(EINVAL, call, "size is 0");
	if (!err && size + vb_page_size() - 1 < size)
		err = vb_refuse(ENOMEM, call, "%zu bytes exceed the address space", size);
	if (err)
		return none(err);
	b = calloc(1, sizeof(*b)); /* pairs with ibv_free_buf() */
	if (!b)
		return none(vb_refuse_memory(call));
	b->pd = pd;
	b->size = size;
	b->mapped = vb_page_round(size);
	b->at = mmap(NULL, b->mapped, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	if (b->at == MAP_FAILED) {
		err = vb_refuse(ENOMEM, call, "%zu bytes cannot be allocated: %s", size, strerror(errno));
		free(b);
		return none(err);
	}
	vb_pd_count(pd, VB_CHILD_BUF, 1);
	vb_live_enter(b, VB_LIVE_BUF);
	*out = b;
	return b->at;
}

/* Of a buffer that is still registered nothing is left but the region, as of any memory that a program gives
 * back: what reaches for it then fails. */
VB_EXPORT VB_NOTHING(ibv_free_buf, (b), struct ibv_buf *b)
{
	/* In a forked child something else may stand there: registered pages can be kept from it. */
	if (!b || vb_live_leave("ibv_free_buf", b, VB_LIVE_BUF) ||
	    vb_context_dead(vb_context(b->pd->ibv.context)))
		return;
	munmap(b->at, b->mapped);
	vb_pd_count(b->pd, VB_CHILD_BUF, -1u);
	free(b);
}

/* A dma-buf is memory of a device that others may map; this is ordinary memory. */
VB_EXPORT VB_VALUE(int, ibv_export_buf_dmabuf_fd, (b), struct ibv_buf *b)
{
	int err = dead(b->pd->ibv.context, "ibv_export_buf_dmabuf_fd");

	errno = err ? err
		    : vb_refuse(ENODATA, "ibv_export_buf_dmabuf_fd",
				"the buffer is ordinary memory: it has no dma-buf");
	return -1;
}

static int check_buf(const char *call, const struct ibv_buf *b, struct ibv_pd *pd, const void *addr,
		     size_t length)
{
	uint64_t off = (uintptr_t)addr - (uintptr_t)b->at; /* below it this wraps to more than any size */

	if (b->pd->id != vb_pd(pd)->id) /* a parent domain is the one it stands for */
		return vb_refuse(EINVAL, call, "the buffer belongs to another protection domain than pd");
	if (off > b->size || length > b->size - off)
		return vb_refuse(EINVAL, call,
				 "%zu bytes at %p are outside the buffer, which has %zu bytes at %p", length,
				 addr, b->size, (void *)b->at);
	return 0;
}

/* --- regions */

/* Which fields go together. */
static int check_mask(const struct ibv_mr_init_attr *a)
{
	uint64_t m = a->comp_mask;

	if (m & ~MASKS)
		return vb_refuse_bits(EINVAL, EX, "comp_mask", m, MASKS);
	if (!(m & IBV_REG_MR_MASK_ADDR) == !(m & IBV_REG_MR_MASK_FD))
		return vb_refuse(EINVAL, EX,
				 "comp_mask 0x%" PRIx64 " has %s of ADDR (0x2) and FD (0x4); set one of them",
				 m, m & IBV_REG_MR_MASK_FD ? "both" : "none");
	if ((m & IBV_REG_MR_MASK_FD_OFFSET) && !(m & IBV_REG_MR_MASK_FD))
		return vb_refuse(EINVAL, EX,
				 "comp_mask 0x%" PRIx64 " lacks FD (0x4): FD_OFFSET (0x8) requires it", m);
	if ((m & IBV_REG_MR_MASK_FD) && !(m & IBV_REG_MR_MASK_IOVA))
		return vb_refuse(
		    EINVAL, EX,
		    "comp_mask 0x%" PRIx64
		    " lacks IOVA (0x1): FD (0x4) requires it, since a dma-buf has no address of its own",
		    m);
	if ((m & IBV_REG_MR_MASK_BUF) && (m & IBV_REG_MR_MASK_FD))
		return vb_refuse(
		    EINVAL, EX,
		    "comp_mask 0x%" PRIx64 " has BUF (0x20) and FD (0x4): BUF requires ADDR (0x2)", m);
	if (((m & IBV_REG_MR_MASK_DMAH) && !a->dmah) || ((m & IBV_REG_MR_MASK_BUF) && !a->buf))
		return vb_refuse(EINVAL, EX, "comp_mask 0x%" PRIx64 ", but %s is NULL", m,
				 (m & IBV_REG_MR_MASK_DMAH) && !a->dmah ? "dmah" : "buf");
	return 0;
}

static int check_objects(struct ibv_pd *pd, const struct ibv_mr_init_attr *a)
{
	if ((a->comp_mask & IBV_REG_MR_MASK_DMAH) && a->dmah->context != pd->context)
		return vb_refuse(EINVAL, EX,
				 "the DMA handle belongs to another context than the protection domain");
	if ((a->comp_mask & IBV_REG_MR_MASK_DMAH) && ((unsigned)a->access & IBV_ACCESS_ON_DEMAND))
		return vb_refuse(
		    EOPNOTSUPP, EX,
		    "a DMA handle requires pinned memory; leave out IBV_ACCESS_ON_DEMAND or the DMA handle");
	if (a->comp_mask & IBV_REG_MR_MASK_BUF)
		return check_buf(EX, a->buf, pd, a->addr, a->length);
	return 0;
}

VB_EXPORT VB_OBJECT(struct ibv_mr *, ibv_reg_mr_ex, (pd, a), struct ibv_pd *pd, struct ibv_mr_init_attr *a)
{
	uint64_t m = a->comp_mask;
	int err = vb_pd_check(EX, pd);
	struct vb_mr *mr;

	if (!err)
		err = check_mask(a);
	if (!err)
		err = check_objects(pd, a);
	if (err)
		return none(err);
	if (m & IBV_REG_MR_MASK_FD)
		err = vb_dmabuf_register(&mr, EX, pd, m & IBV_REG_MR_MASK_FD_OFFSET ? a->fd_offset : 0,
					 a->length, a->iova, a->fd, (unsigned)a->access);
	else
		err = vb_mr_register_memory(&mr, EX, pd, a->addr, a->length,
					    m & IBV_REG_MR_MASK_IOVA ? a->iova : (uintptr_t)a->addr,
					    (unsigned)a->access);
	if (err)
		return none(err);
	if (m & IBV_REG_MR_MASK_DMAH) {
		mr->dmah = &((struct vb_dmah *)a->dmah)->refs;
		atomic_fetch_add(mr->dmah, 1); /* pairs with vb_mr_drop() */
	}
	return &mr->ibv;
}

VB_EXPORT VB_OBJECT(struct ibv_mr *, ibv_reg_buf_mr, (pd, buf, addr, length, access), struct ibv_pd *pd,
		    struct ibv_buf *buf, void *addr, size_t length, int access)
{
	int err = vb_pd_check(BUF_MR, pd);
	struct vb_mr *mr;

	if (!err)
		err = check_buf(BUF_MR, buf, pd, addr, length);
	if (!err)
		err = vb_mr_register_memory(&mr, BUF_MR, pd, addr, length, (uintptr_t)addr, (unsigned)access);
	if (err)
		return none(err);
	return &mr->ibv;
}

/* --- the port */

VB_EXPORT VB_CODE(ibv_query_port_speed, (context, port, speed), struct ibv_context *context, uint32_t port,
		  uint64_t *speed)
{
	int err = vb_context_check("ibv_query_port_speed", context);

	if (!err)
		err = vb_check_port("ibv_query_port_speed", port);
	if (!err)
		*speed = VB_LINK_HUNDREDS;
	return err;
}
