/* Device memory.
 *
 * An adapter's own memory has no address that the application could use: it copies to and from it by calls,
 * and requests reach it through a region whose addresses begin at 0.  Here it is a sealed memfd of its own,
 * mapped where nobody is told: peers can map it as they map any shared memory, and whoever imports it maps
 * the same file. */
#include "verbs/dm.h"

#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/log.h"
#include "base/pages.h"
#include "base/quiet.h"
#include "iba/names.h"
#include "iba/profile.h"
#include "verbs/mr.h"
#include "hca/hca.h"
#include "verbs/verbs.h"

#define MAX_ALIGN 12 /* log2: it begins with a page */
#define UNIT	  4u /* bytes: offset and length of a copy are multiples of it, as with mlx5 */
#define ALLOWED                                                                      \
	(IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ | \
	 IBV_ACCESS_REMOTE_ATOMIC | IBV_ACCESS_ZERO_BASED | IBV_ACCESS_OPTIONAL_RANGE)

static_assert(sizeof(struct ibv_dm) == 32, "ABI");

static struct vb_dm *vb_dm(struct ibv_dm *dm)
{
	return (struct vb_dm *)dm;
}

/* A forked child's own device memory is the only thing of the inherited context that it can use. */
static bool is_inherited(const struct vb_dm *d)
{
	return vb_context_dead(vb_context(d->ibv.context)) && d->pid != getpid();
}

static int refuse_range(int err, const char *call, const struct vb_dm *d, uint64_t offset, size_t length)
{
	return vb_refuse(err, call,
			 "%zu bytes at offset %" PRIu64 " are outside the device memory, which has %" PRIu64
			 " bytes",
			 length, offset, d->length);
}

static int check_copy(const char *call, const struct vb_dm *d, uint64_t offset, size_t length)
{
	if (is_inherited(d))
		return vb_refuse_forked(call);
	if (offset % UNIT || length % UNIT)
		return vb_refuse(EINVAL, call, "length %zu and offset %" PRIu64 " must be multiples of %u",
				 length, offset, UNIT);
	if (offset > d->length || length > d->length - offset)
		return refuse_range(EFAULT, call, d, offset, length);
	return 0;
}

static VB_CODE(copy_to, (dm, offset, host, length), struct ibv_dm *dm, uint64_t offset, const void *host,
	       size_t length)
{
	int err = check_copy("ibv_memcpy_to_dm", vb_dm(dm), offset, length);

	if (!err)
		memcpy(vb_dm(dm)->at + offset, host, length);
	return err;
}

static VB_CODE(copy_from, (host, dm, offset, length), void *host, struct ibv_dm *dm, uint64_t offset,
	       size_t length)
{
	int err = check_copy("ibv_memcpy_from_dm", vb_dm(dm), offset, length);

	if (!err) {
		memcpy(host, vb_dm(dm)->at + offset, length);
		vb_msan_gives(host, length);
	}
	return err;
}

/* A sealed file of that many bytes; -1 and errno. */
static int make_file(uint64_t size)
{
	uint64_t most;
	int fd, err;

	if (!vb_file_may_have(size, &most)) {
		errno = EFBIG;
		return -1;
	}
	fd = memfd_create("verbena-dm", MFD_CLOEXEC | MFD_ALLOW_SEALING);
	if (fd < 0)
		return -1;
	if (!ftruncate(fd, (off_t)size) && !fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL))
		return fd;
	err = errno;
	close(fd);
	errno = err;
	return -1;
}

/* Takes the descriptor over, also when it fails. */
static struct vb_dm *make(struct ibv_context *context, int fd, uint64_t length)
{
	struct vb_dm *d = fd < 0 ? NULL : calloc(1, sizeof(*d));
	int err = errno;

	if (!d)
		goto close_fd;
	d->length = length;
	d->mapped = vb_page_round(length);
	d->fd = fd;
	d->own = vb_own_of(fd);
	d->at = mmap(NULL, d->mapped, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	err = errno;
	if (d->at == MAP_FAILED)
		goto free_dm;
	madvise(d->at, d->mapped, MADV_DONTDUMP);
	d->pid = getpid();
	d->ibv.context = context;
	d->ibv.memcpy_to_dm = copy_to;
	d->ibv.memcpy_from_dm = copy_from;
	vb_list_init(&d->on_hca);
	return d;
free_dm:
	free(d);
close_fd:
	if (fd >= 0)
		close(fd);
	errno = err;
	return NULL;
}

static void unmake(struct vb_dm *d)
{
	munmap(d->at, d->mapped);
	vb_own_close(&d->own, d->fd);
	free(d);
}

static int check_alloc(const struct ibv_alloc_dm_attr *a)
{
	if (!vb_profile()->max_dm)
		return vb_refuse(EOPNOTSUPP, "ibv_alloc_dm", "the device of profile %s has no device memory",
				 vb_profile()->name);
	if (a->comp_mask)
		return vb_refuse_bits(EINVAL, "ibv_alloc_dm", "comp_mask", a->comp_mask, 0);
	if (!a->length)
		return vb_refuse(EINVAL, "ibv_alloc_dm", "length is 0");
	if (a->log_align_req > MAX_ALIGN)
		return vb_refuse(EINVAL, "ibv_alloc_dm", "log_align_req %u exceeds the device's limit of %d",
				 a->log_align_req, MAX_ALIGN);
	if (a->length > vb_profile()->max_dm)
		return vb_refuse(EINVAL, "ibv_alloc_dm",
				 "length %zu exceeds the device's limit of %u bytes (max_dm_size)", a->length,
				 vb_profile()->max_dm);
	return 0;
}

/* What is allocated counts in whole pages, as it is taken. */
static bool count(struct vb_hca *h, uint64_t bytes)
{
	uint64_t used = atomic_load(&h->dm_used);

	do {
		if (bytes > vb_profile()->max_dm - used)
			return false;
	} while (!atomic_compare_exchange_weak(&h->dm_used, &used, used + bytes));
	return true;
}

VB_OBJECT(struct ibv_dm *, vb_alloc_dm, (context, attr), struct ibv_context *context,
	  struct ibv_alloc_dm_attr *attr)
{
	struct vb_context *c = vb_context(context);
	uint64_t pages = vb_page_round(attr->length);
	int err = vb_context_find("ibv_alloc_dm", context); /* a forked child may */
	struct vb_hca *h;
	struct vb_dm *d;

	if (!err)
		err = check_alloc(attr);
	if (err)
		goto refused;
	h = vb_hca(c->adapter);
	if (!count(h, pages)) { /* pairs with vb_free_dm() */
		err = vb_refuse(ENOMEM, "ibv_alloc_dm",
				"%zu bytes are not free: %" PRIu64
				" of the device's %u bytes are in use, in whole pages",
				attr->length, atomic_load(&h->dm_used), vb_profile()->max_dm);
		goto refused;
	}
	d = make(context, make_file(pages), attr->length);
	if (!d) {
		err = vb_refuse(errno, "ibv_alloc_dm", "%zu bytes cannot be allocated: %s", attr->length,
				strerror(errno));
		goto uncount;
	}
	atomic_fetch_add(&c->dms, 1);
	vb_live_enter(&d->ibv, VB_LIVE_DM);
	/* A forked child has no use for an adapter, which this needs none of: its memory is its own. */
	if (!vb_context_dead(c)) {
		vb_lock_take(&h->dm_lock);
		d->ibv.handle = ++h->dm_handle;
		vb_list_append(&h->dms, &d->on_hca);
		vb_lock_give(&h->dm_lock);
	}
	return &d->ibv;
uncount:
	atomic_fetch_sub(&h->dm_used, pages);
refused:
	errno = err;
	return NULL;
}

VB_END(vb_free_dm, "ibv_free_dm", VB_LIVE_DM, dm, struct ibv_dm *dm)
{
	struct vb_context *c = vb_context(dm->context);
	struct vb_hca *h = vb_hca(c->adapter);
	struct vb_dm *d = vb_dm(dm);
	uint32_t refs = atomic_load(&d->refs);

	if (vb_context_dead(c)) {     /* regions are dead too, and the lock may be held for ever */
		if (!is_inherited(d)) /* what the parent had counts on, as it has it on */
			atomic_fetch_sub(&h->dm_used, d->mapped);
		unmake(d);
		return 0;
	}
	if (refs) /* rule 37 */
		return vb_refuse_used("ibv_free_dm", refs, "memory region", "the device memory",
				      "deregister");
	if (!d->imported) { /* else its owner's: only that can take it away */
		vb_lock_take(&h->dm_lock);
		vb_list_unlink(&d->on_hca);
		vb_lock_give(&h->dm_lock);
		atomic_fetch_sub(&h->dm_used, d->mapped);
	}
	atomic_fetch_sub(&c->dms, 1);
	unmake(d);
	return 0;
}

static int check_reg(const struct vb_dm *d, struct ibv_pd *pd, uint64_t offset, size_t length,
		     unsigned access)
{
	static const char call[] = "ibv_reg_dm_mr";
	char names[VB_FLAGS_TEXT];

	if (pd->context != d->ibv.context)
		return vb_refuse(EINVAL, call,
				 "the device memory belongs to another context than the protection domain");
	if (!(access & IBV_ACCESS_ZERO_BASED))
		return vb_refuse(
		    EINVAL, call,
		    "access %s lacks IBV_ACCESS_ZERO_BASED: the addresses of device memory begin at 0",
		    vb_name_flags(names, sizeof(names), VB_FLAGS_ACCESS, access));
	if (access & ~(unsigned)ALLOWED)
		return vb_mr_refuse_flags(call, access & ~(unsigned)ALLOWED, "device memory");
	if (!vb_mr_may_write(access)) /* rule 42 */
		return vb_mr_refuse_write(call, access);
	if (offset > d->length || length > d->length - offset)
		return refuse_range(EINVAL, call, d, offset, length);
	return 0;
}

static void release(struct vb_mr *mr)
{
	struct vb_dm *d = mr->of;

	atomic_fetch_sub(&d->refs, 1);
}

VB_OBJECT(struct ibv_mr *, vb_reg_dm_mr, (pd, dm, offset, length, access), struct ibv_pd *pd,
	  struct ibv_dm *dm, uint64_t offset, size_t length, unsigned access)
{
	struct vb_dm *d = vb_dm(dm);
	struct vb_mr_ask ask = {.call = "ibv_reg_dm_mr",
				.pd = vb_pd(pd),
				.kind = VB_KEY_MEMORY,
				.addr = (uintptr_t)d->at + offset,
				.length = length,
				.access = access,
				.source = VB_MR_DM,
				.release = release,
				.of = d};
	struct vb_mr *mr;
	int err;

	if (vb_context_dead(vb_context(pd->context)))
		err = vb_refuse_forked(ask.call);
	else
		err = check_reg(d, pd, offset, length, access);
	if (!err) {
		atomic_fetch_add(&d->refs, 1); /* pairs with release() */
		err = vb_mr_register(&mr, &ask);
		if (err)
			atomic_fetch_sub(&d->refs, 1);
	}
	if (err) {
		errno = err;
		return NULL;
	}
	mr->ibv.addr = NULL; /* nobody is to know it */
	return &mr->ibv;
}

int vb_dm_find(struct vb_hca *h, uint32_t handle, uint64_t *length)
{
	int fd = -1;

	vb_lock_take(&h->dm_lock);
	vb_list_each (n, &h->dms) {
		struct vb_dm *d = vb_list_entry(n, struct vb_dm, on_hca);

		if (d->ibv.handle == handle) {
			*length = d->length;
			if (vb_own_is(&d->own, d->fd)) /* else another file than ours would go to the peer */
				fd = fcntl(d->fd, F_DUPFD_CLOEXEC, 3);
			break;
		}
	}
	vb_lock_give(&h->dm_lock);
	return fd;
}

struct ibv_dm *vb_dm_import(struct ibv_context *context, int fd, uint64_t length, uint32_t handle,
			    const char *call)
{
	int seals = fcntl(fd, F_GET_SEALS); /* -1: a file that has none */
	struct vb_dm *d;
	struct stat st;

	/* What is shorter, or may become so, would be a SIGBUS some day. */
	if (!length || length > vb_profile()->max_dm || seals < 0 || !(seals & F_SEAL_SHRINK) ||
	    fstat(fd, &st) || (uint64_t)st.st_size < length) {
		errno = vb_refuse(EINVAL, call,
				  "the owner's descriptor is not %" PRIu64 " bytes of device memory", length);
		return NULL;
	}
	d = make(context, fcntl(fd, F_DUPFD_CLOEXEC, 3), length);
	if (!d) {
		errno = vb_refuse(errno, call, "%" PRIu64 " bytes of device memory cannot be mapped: %s",
				  length, strerror(errno));
		return NULL;
	}
	atomic_fetch_add(&vb_context(context)->dms, 1);
	d->imported = true;
	d->ibv.handle = handle;
	vb_live_enter(&d->ibv, VB_LIVE_DM);
	return &d->ibv;
}

bool vb_dm_unimport(struct ibv_dm *dm)
{
	struct vb_dm *d = vb_dm(dm);
	uint32_t refs = atomic_load(&d->refs);

	if (!d->imported) {
		vb_refuse(EINVAL, "ibv_unimport_dm",
			  "the device memory was not imported; free it with ibv_free_dm()");
		return false;
	}
	if (refs) {
		vb_refuse_used("ibv_unimport_dm", refs, "memory region", "the device memory", "deregister");
		return false;
	}
	atomic_fetch_sub(&vb_context(dm->context)->dms, 1);
	unmake(d);
	return true;
}

VB_EXPORT VB_CODE(ibv_dm_export_dmabuf_fd, (dm), struct ibv_dm *dm)
{
	(void)dm;
	errno = vb_refuse(EOPNOTSUPP, "ibv_dm_export_dmabuf_fd",
			  "the device cannot export its memory as a dma-buf");
	return -1;
}
