/* ibv_reg_dmabuf_mr(): what is refused, everywhere; a real dma-buf where the machine makes one. */
#include <errno.h>
#include <fcntl.h>
#include <linux/udmabuf.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cmocka.h>

#include "bytes.h"
#include "device.h"
#include "refused.h"
#include "mem/access.h"
#include "hca/hca.h"
#include "verbs/verbs.h"

#define ALL \
	(IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_ATOMIC)

/* UCX and others ask with descriptor -1 whether the call is there: EBADF says that it is. */
static void descriptors_that_are_no_dma_bufs(void **state)
{
	int fd = memfd_create("plain", MFD_CLOEXEC), pipes[2];

	(void)state;
	assert_true(fd >= 0);
	assert_int_equal(ftruncate(fd, (off_t)PAGE), 0);
	REFUSED(ibv_reg_dmabuf_mr(pd, 0, PAGE, PAGE, -1, ALL), EBADF);
	REFUSED(ibv_reg_dmabuf_mr(pd, 0, PAGE, 0, 1 << 20, ALL), EBADF);
	REFUSED(ibv_reg_dmabuf_mr(pd, 0, PAGE, 0, fd, ALL), EINVAL);
	assert_int_equal(pipe(pipes), 0);
	REFUSED(ibv_reg_dmabuf_mr(pd, 0, PAGE, 0, pipes[0], ALL), EINVAL);
	close(pipes[0]);
	close(pipes[1]);
	close(fd);
	REFUSED(ibv_reg_dmabuf_mr(pd, 0, PAGE, 0, fd, ALL), EBADF);
}

static void arguments(void **state)
{
	(void)state;
	REFUSED(ibv_reg_dmabuf_mr(pd, 0, 0, 0, -1, ALL), EINVAL);
	REFUSED(ibv_reg_dmabuf_mr(pd, 8, PAGE, 0, -1, ALL), EINVAL); /* other offsets of a page */
	REFUSED(ibv_reg_dmabuf_mr(pd, 0, UINT64_MAX, PAGE, -1, ALL), EINVAL);
	REFUSED(ibv_reg_dmabuf_mr(pd, 0, PAGE, 0, -1, IBV_ACCESS_REMOTE_WRITE), EINVAL);
	REFUSED(ibv_reg_dmabuf_mr(pd, 0, PAGE, 0, -1, ALL | IBV_ACCESS_ON_DEMAND), EINVAL);
	REFUSED(ibv_reg_dmabuf_mr(pd, 0, PAGE, 0, -1, ALL | IBV_ACCESS_ZERO_BASED), EINVAL);
	REFUSED(ibv_reg_dmabuf_mr(pd, 0, PAGE, 0, -1, ALL | IBV_ACCESS_MW_BIND), EINVAL);
	REFUSED(ibv_reg_dmabuf_mr(pd, 0, PAGE, 0, -1, ALL | IBV_ACCESS_RELAXED_ORDERING), EBADF);
}

/* Four pages of a memfd, as a dma-buf; -1: not on this machine. */
static int make_dmabuf(int memfd)
{
	struct udmabuf_create c = {
	    .memfd = (uint32_t)memfd, .flags = UDMABUF_FLAGS_CLOEXEC, .size = 4 * PAGE};
	int dev = open("/dev/udmabuf", O_RDWR | O_CLOEXEC), fd;

	if (dev < 0)
		return -1;
	fd = ioctl(dev, UDMABUF_CREATE, &c);
	close(dev);
	return fd;
}

static void a_real_one(void **state)
{
	int memfd = memfd_create("pages", MFD_CLOEXEC | MFD_ALLOW_SEALING), fd;
	struct vb_keys *keys = &vb_hca(vb_context(ctx)->adapter)->keys;
	struct vb_mem_want w = {
	    .remote = true, .access = IBV_ACCESS_REMOTE_WRITE, .pd = vb_pd(pd)->id, .len = 8};
	uint64_t value = 0x1122334455667788;
	struct vb_mem_use u;
	struct ibv_mr *mr;
	uint8_t *seen;

	(void)state;
	assert_true(memfd >= 0);
	assert_int_equal(ftruncate(memfd, (off_t)(4 * PAGE)), 0);
	assert_int_equal(fcntl(memfd, F_ADD_SEALS, F_SEAL_SHRINK), 0);
	fd = make_dmabuf(memfd);
	if (fd < 0) {
		printf("SKIP: no dma-buf from /dev/udmabuf (%s)\n", strerror(errno));
		close(memfd);
		skip();
	}
	seen = mmap(NULL, 4 * PAGE, PROT_READ, MAP_SHARED, memfd, 0);
	assert_ptr_not_equal(seen, MAP_FAILED);
	REFUSED(ibv_reg_dmabuf_mr(pd, PAGE, 4 * PAGE, PAGE, fd, ALL), EINVAL); /* longer than it is */
	mr = ibv_reg_dmabuf_mr(pd, PAGE + 100, 2 * PAGE, 0x100000 + 100, fd, ALL);
	assert_non_null(mr);
	close(fd); /* the region keeps it */
	assert_int_equal(mr->length, 2 * PAGE);
	w.key = mr->rkey;
	w.addr = 0x100000 + 100;
	assert_int_equal(vb_mem_begin(keys, &u, &w, NULL), VB_OK);
	assert_true(vb_mem_put(&u, &value, 8));
	vb_mem_end(&u);
	assert_memory_equal(seen + PAGE + 100, &value, 8);
	w.addr = 0x100000 + 99;
	assert_int_equal(vb_mem_check(keys, &w, NULL), VB_R_KEY_BOUNDS);
	w.addr = 0x100000 + 100 + 2 * PAGE - 7;
	assert_int_equal(vb_mem_check(keys, &w, NULL), VB_R_KEY_BOUNDS);
	assert_int_equal(ibv_dereg_mr(mr), 0);
	munmap(seen, 4 * PAGE);
	close(memfd);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
	    cmocka_unit_test(descriptors_that_are_no_dma_bufs),
	    cmocka_unit_test(arguments),
	    cmocka_unit_test(a_real_one),
	};

	return cmocka_run_group_tests(tests, kit_device_open, kit_device_close);
}
