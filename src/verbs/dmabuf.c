/* Regions of dma-bufs: buffers of other devices, or of memory that was made one (/dev/udmabuf,
 * /dev/dma_heap).
 *
 * An adapter would be given the buffer's pages by whoever exports it.  Here the CPU carries the data, so the
 * buffer has to be one that can be mapped; it is mapped where nobody is told, and requests reach it under the
 * addresses that the program chose (iova). */
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <linux/dma-buf.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/vfs.h>
#include <unistd.h>

#include "base/log.h"
#include "base/pages.h"
#include "mem/guard.h"
#include "verbs/dmabuf.h"
#include "verbs/mr.h"
#include "verbs/verbs.h"

#define DMABUF_MAGIC 0x444d4142 /* "DMAB": the file system that dma-bufs stand in */
#define ALLOWED                                                                      \
	(IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ | \
	 IBV_ACCESS_REMOTE_ATOMIC | IBV_ACCESS_OPTIONAL_RANGE)

/* What a region keeps of its buffer. */
struct mapping {
	int fd;
	struct vb_own own; /* it */
	void *at;
	uint64_t bytes;
	uint64_t sync; /* DMA_BUF_SYNC_READ, perhaps with _WRITE */
};

/* Between the two the exporter keeps what the CPU sees and what its device sees one; most have nothing to do.
 */
static void sync_cpu(const struct mapping *m, uint64_t when)
{
	struct dma_buf_sync s = {.flags = m->sync | when};

	if (!vb_own_is(&m->own, m->fd))
		return; /* the program closed it */
	while (ioctl(m->fd, DMA_BUF_IOCTL_SYNC, &s) && (errno == EINTR || errno == EAGAIN))
		;
}

static void unmap(struct mapping *m)
{
	sync_cpu(m, DMA_BUF_SYNC_END);
	munmap(m->at, m->bytes);
	vb_own_close(&m->own, m->fd);
	free(m);
}

static void release(struct vb_mr *mr)
{
	unmap(mr->of);
}

static int check_access(const char *call, unsigned access)
{
	if (access & ~(unsigned)ALLOWED)
		return vb_mr_refuse_flags(call, access & ~(unsigned)ALLOWED, "dma-bufs");
	if (!vb_mr_may_write(access)) /* rule 42 */
		return vb_mr_refuse_write(call, access);
	return 0;
}

static int check_range(const char *call, uint64_t offset, uint64_t length, uint64_t iova)
{
	if (!length)
		return vb_refuse(EINVAL, call, "length is 0");
	if (vb_page_offset(offset ^ iova))
		return vb_refuse(EINVAL, call,
				 "offset 0x%" PRIx64 " and iova 0x%" PRIx64
				 " differ in their offset within a page: 0x%" PRIx64 " and 0x%" PRIx64,
				 offset, iova, vb_page_offset(offset), vb_page_offset(iova));
	if (offset + length < offset || iova + (length - 1) < iova)
		return vb_refuse(EINVAL, call,
				 "0x%" PRIx64 " bytes at offset 0x%" PRIx64 ", iova 0x%" PRIx64
				 ", exceed 2^64",
				 length, offset, iova);
	return 0;
}

/* Whether it is a dma-buf, and one that has the range. */
static int check_descriptor(const char *call, int fd, uint64_t offset, uint64_t length, uint64_t iova)
{
	struct statfs fs;
	off_t size;

	if (fd == -1 && !iova) /* so UCX and others ask whether the call is there: nothing failed */
		return vb_decline(EBADF, call, "descriptor -1 is not open");
	if (fcntl(fd, F_GETFD) < 0)
		return vb_refuse(EBADF, call, "descriptor %d is not open", fd);
	if (fstatfs(fd, &fs) || fs.f_type != DMABUF_MAGIC)
		return vb_refuse(EINVAL, call, "descriptor %d is not a dma-buf", fd);
	size = lseek(fd, 0, SEEK_END);
	if (size >= 0 && (offset > (uint64_t)size || length > (uint64_t)size - offset))
		return vb_refuse(EINVAL, call,
				 "0x%" PRIx64 " bytes at offset 0x%" PRIx64
				 " are outside the dma-buf, which has 0x%" PRIx64 " bytes",
				 length, offset, (uint64_t)size);
	return 0;
}

static int map(const char *call, struct mapping **out, int fd, uint64_t offset, uint64_t length, bool write)
{
	uint64_t start = vb_page_start(offset);
	struct mapping *m = calloc(1, sizeof(*m));
	int err;

	if (!m)
		return vb_refuse_memory(call);
	m->fd = fcntl(fd, F_DUPFD_CLOEXEC, 3); /* the program may close its own at once */
	if (m->fd < 0) {
		err = vb_refuse(errno, call, "the descriptor of the dma-buf cannot be duplicated: %s",
				strerror(errno));
		goto free_mapping;
	}
	m->own = vb_own_of(m->fd);
	m->sync = write ? DMA_BUF_SYNC_RW : DMA_BUF_SYNC_READ;
	m->bytes = offset - start + length;
	m->at = mmap(NULL, m->bytes, PROT_READ | (write ? PROT_WRITE : 0), MAP_SHARED, m->fd, (off_t)start);
	if (m->at == MAP_FAILED) {
		err = errno;
		/* Of a real adapter too some buffers are out of reach. */
		err = vb_refuse(err == ENOMEM || err == EACCES || err == EPERM ? err : EOPNOTSUPP, call,
				"the dma-buf of descriptor %d cannot be mapped%s: %s", fd,
				write ? " for writing" : "", strerror(err));
		goto close_fd;
	}
	sync_cpu(m, DMA_BUF_SYNC_START);
	*out = m;
	return 0;
close_fd:
	close(m->fd);
free_mapping:
	free(m);
	return err;
}

int vb_dmabuf_register(struct vb_mr **out, const char *call, struct ibv_pd *pd, uint64_t offset,
		       uint64_t length, uint64_t iova, int fd, unsigned access)
{
	struct vb_mr_ask ask = {.call = call,
				.pd = vb_pd(pd),
				.kind = VB_KEY_MEMORY,
				.length = length,
				.iova = iova,
				.access = access,
				.source = VB_MR_DMABUF,
				.release = release};
	struct mapping *m = NULL;
	int err = check_access(call, access);

	if (!err)
		err = check_range(call, offset, length, iova);
	if (!err)
		err = check_descriptor(call, fd, offset, length, iova);
	if (!err)
		err = map(call, &m, fd, offset, length, access & IBV_ACCESS_LOCAL_WRITE);
	if (err)
		return err;
	vb_guard_install();
	ask.of = m;
	ask.addr = (uintptr_t)m->at + vb_page_offset(offset);
	err = vb_mr_register(out, &ask); /* pairs with vb_mr_drop(), which calls release() */
	if (err)
		unmap(m);
	else
		(*out)->ibv.addr =
		    (void *)(uintptr_t)offset; /* as other libraries have it: no address of the CPU */
	return err;
}

VB_EXPORT VB_OBJECT(struct ibv_mr *, ibv_reg_dmabuf_mr, (pd, offset, length, iova, fd, access),
		    struct ibv_pd *pd, uint64_t offset, size_t length, uint64_t iova, int fd, int access)
{
	static const char call[] = "ibv_reg_dmabuf_mr";
	struct vb_mr *mr;
	int err = vb_pd_check(call, pd);

	if (!err)
		err = vb_dmabuf_register(&mr, call, pd, offset, length, iova, fd, (unsigned)access);
	if (err) {
		errno = err;
		return NULL;
	}
	return &mr->ibv;
}
