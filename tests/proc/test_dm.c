/* Device memory: allocated, copied to and from, registered, and reached by a peer in every way. */
#include <sys/resource.h>

#include "bytes.h"
#include "pair.h"
#include "verbs/dm.h"

enum { SIZE = 64 << 10, AREA = 4096, ADDEND = 5 };
#define DM_ALL (KIT_ALL | IBV_ACCESS_ZERO_BASED)

enum step { READY = 1, DONE };

static uint64_t word(struct ibv_dm *dm, uint64_t at)
{
	uint64_t v;

	CHECK(!ibv_memcpy_from_dm(&v, dm, at, 8));
	return v;
}

/* Whose device memory it is: says its key, and looks at what came of it. */
static void target(struct kit_pair *p)
{
	struct ibv_alloc_dm_attr a = {.length = SIZE, .log_align_req = 6};
	uint8_t *buf = malloc(SIZE), *want = malloc(SIZE);
	struct ibv_dm *dm;
	struct ibv_mr *mr;

	CHECK(buf && want);
	kit_pair_open(p, 16, AREA);
	dm = ibv_alloc_dm(p->ctx, &a);
	CHECK(dm);
	mr = ibv_reg_dm_mr(p->pd, dm, 4096, SIZE - 4096, DM_ALL);
	CHECK(mr);
	memset(buf, 0, SIZE);
	CHECK(!ibv_memcpy_to_dm(dm, 0, buf, SIZE));
	kit_fill(buf, 100, 9);
	CHECK(!ibv_memcpy_to_dm(dm, 4096 + 200, buf, 100)); /* what the initiator READs */
	atomic_store(&p->board->number[0], mr->rkey);
	atomic_store(&p->board->step, READY);
	kit_until(&p->board->step, DONE);
	kit_fill(want, AREA, 1);
	CHECK(!ibv_memcpy_from_dm(buf, dm, 4096 + 8192, AREA));
	CHECK(!memcmp(buf, want, AREA), "the WRITE");
	CHECK(word(dm, 4096) == ADDEND, "the fetch-and-add: %" PRIu64, word(dm, 4096));
	CHECK(word(dm, 4096 + SIZE - 4096 - 8) == 0xabcd, "the last word");
	CHECK(word(dm, 0) == 0 && word(dm, 4088) == 0, "what is not registered");
	CHECK(ibv_free_dm(dm) == EBUSY);
	CHECK(!ibv_dereg_mr(mr));
	CHECK(!ibv_free_dm(dm));
	kit_pair_close(p);
	free(buf);
	free(want);
}

static struct ibv_wc go(struct kit_end *e, enum ibv_wr_opcode op, struct ibv_mr *mr, uint64_t local,
			uint32_t len, uint32_t rkey, uint64_t remote)
{
	struct ibv_sge sge = {local, len, mr->lkey};
	struct ibv_send_wr wr = {
	    .sg_list = &sge, .num_sge = 1, .opcode = op, .send_flags = IBV_SEND_SIGNALED};
	struct ibv_send_wr *bad;

	if (op == IBV_WR_ATOMIC_FETCH_AND_ADD || op == IBV_WR_ATOMIC_CMP_AND_SWP) {
		wr.wr.atomic.remote_addr = remote;
		wr.wr.atomic.rkey = rkey;
		wr.wr.atomic.compare_add = ADDEND;
	} else {
		wr.wr.rdma.remote_addr = remote;
		wr.wr.rdma.rkey = rkey;
	}
	CHECK(!ibv_post_send(e->qp, &wr, &bad));
	return kit_wait(e, 20);
}

static void expect(struct ibv_wc wc, enum ibv_wc_status status, const char *what)
{
	CHECK(wc.status == status, "%s: %s", what, ibv_wc_status_str(wc.status));
}

/* Reaches it often enough that it may be mapped over here, from device memory of its own. */
static void initiator(struct kit_pair *p)
{
	struct ibv_alloc_dm_attr a = {.length = AREA};
	struct kit_end *e = &p->end[0];
	uint64_t value = 0xabcd;
	struct ibv_dm *dm;
	struct ibv_mr *mr;
	uint8_t want[100];
	uint32_t rkey;

	kit_pair_open(p, 16, AREA);
	kit_until(&p->board->step, READY);
	rkey = (uint32_t)atomic_load(&p->board->number[0]);
	dm = ibv_alloc_dm(p->ctx, &a);
	CHECK(dm);
	mr = ibv_reg_dm_mr(p->pd, dm, 0, AREA, IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_ZERO_BASED);
	CHECK(mr);
	kit_fill(e->buf, AREA, 1);
	CHECK(!ibv_memcpy_to_dm(dm, 0, e->buf, AREA));
	for (int i = 0; i < 50; i++) {
		expect(go(e, IBV_WR_RDMA_WRITE, mr, 0, AREA, rkey, 8192), IBV_WC_SUCCESS, "WRITE");
		if (i % 10 == 9)
			kit_nap(2);
	}
	expect(go(e, IBV_WR_RDMA_READ, mr, 100, 100, rkey, 200), IBV_WC_SUCCESS, "READ");
	CHECK(!ibv_memcpy_from_dm(e->buf, dm, 100, 100));
	kit_fill(want, 100, 9);
	CHECK(!memcmp(e->buf, want, 100), "what the READ brought");
	expect(go(e, IBV_WR_ATOMIC_FETCH_AND_ADD, mr, 8, 8, rkey, 0), IBV_WC_SUCCESS, "fetch-and-add");
	CHECK(word(dm, 8) == 0, "what stood there");
	CHECK(!ibv_memcpy_to_dm(dm, 0, &value, 8));
	expect(go(e, IBV_WR_RDMA_WRITE, mr, 0, 8, rkey, SIZE - 4096 - 8), IBV_WC_SUCCESS, "to the end");
	expect(go(e, IBV_WR_RDMA_WRITE, mr, 0, 8, rkey, SIZE - 4096 - 7), IBV_WC_REM_ACCESS_ERR, "beyond it");
	expect(go(&p->end[1], IBV_WR_RDMA_WRITE, mr, AREA - 4, 8, rkey, 0), IBV_WC_LOC_PROT_ERR,
	       "beyond one's own");
	atomic_store(&p->board->step, DONE);
	CHECK(!ibv_dereg_mr(mr) && !ibv_free_dm(dm));
	kit_pair_close(p);
}

/* --- what is refused, in one process */

#define NONE(call, err)                                                             \
	do {                                                                        \
		errno = 0;                                                          \
		CHECK(!(call) && errno == (err), "%s: %s", #call, strerror(errno)); \
	} while (0)

static struct ibv_dm *alloc(struct ibv_context *ctx, size_t length, uint32_t align, uint32_t mask)
{
	struct ibv_alloc_dm_attr a = {.length = length, .log_align_req = align, .comp_mask = mask};

	return ibv_alloc_dm(ctx, &a);
}

static void refusals(void)
{
	struct ibv_context *ctx = kit_open(), *other = kit_open();
	struct ibv_pd *pd = ibv_alloc_pd(ctx), *foreign = ibv_alloc_pd(other);
	struct ibv_device_attr_ex attr;
	struct ibv_dm *dm, *most, *small;
	struct rlimit few = {.rlim_cur = 100}, had;
	uint8_t buf[128] = {0};
	struct ibv_mr *mr;

	CHECK(pd && foreign && !ibv_query_device_ex(ctx, NULL, &attr) && attr.max_dm_size > SIZE);
	NONE(alloc(ctx, 0, 0, 0), EINVAL);
	NONE(alloc(ctx, 64, 0, 1), EINVAL);
	NONE(alloc(ctx, 64, 40, 0), EINVAL);
	NONE(alloc(ctx, attr.max_dm_size + 1, 0, 0), EINVAL);
	most = alloc(ctx, attr.max_dm_size, 12, 0); /* advertised maxima are usable */
	CHECK(most);
	NONE(alloc(other, 1, 0, 0), ENOMEM); /* of the device, not of a context */
	CHECK(!ibv_free_dm(most));
	CHECK(!getrlimit(RLIMIT_FSIZE, &had));
	few.rlim_max = had.rlim_max;
	CHECK(!setrlimit(RLIMIT_FSIZE, &few)); /* no SIGXFSZ, which would end the program */
	NONE(alloc(ctx, 4096, 0, 0), EFBIG);
	CHECK(!setrlimit(RLIMIT_FSIZE, &had));
	dm = alloc(ctx, 100, 3, 0);
	small = alloc(ctx, 4, 0, 0);
	CHECK(dm && small && dm->context == ctx && dm->handle != small->handle);
	CHECK(!ibv_memcpy_to_dm(dm, 96, buf, 4) && !ibv_memcpy_to_dm(dm, 100, buf, 0));
	CHECK(ibv_memcpy_to_dm(dm, 3, buf, 4) == EINVAL && ibv_memcpy_to_dm(dm, 4, buf, 3) == EINVAL);
	CHECK(ibv_memcpy_to_dm(dm, 104, buf, 4) == EFAULT && ibv_memcpy_to_dm(dm, 0, buf, 104) == EFAULT);
	CHECK(ibv_memcpy_from_dm(buf, dm, 3, 4) == EINVAL && ibv_memcpy_from_dm(buf, dm, 100, 4) == EFAULT);
	CHECK(ibv_memcpy_from_dm(buf, dm, UINT64_MAX - 3, 8) == EFAULT);
	NONE(ibv_reg_dm_mr(pd, dm, 0, 100, IBV_ACCESS_LOCAL_WRITE), EINVAL); /* zero-based it is */
	NONE(ibv_reg_dm_mr(pd, dm, 0, 100, DM_ALL | IBV_ACCESS_ON_DEMAND), EINVAL);
	NONE(ibv_reg_dm_mr(pd, dm, 0, 100, DM_ALL | IBV_ACCESS_MW_BIND), EINVAL);
	NONE(ibv_reg_dm_mr(pd, dm, 0, 100, IBV_ACCESS_ZERO_BASED | IBV_ACCESS_REMOTE_WRITE), EINVAL);
	NONE(ibv_reg_dm_mr(pd, dm, 0, 101, DM_ALL), EINVAL);
	NONE(ibv_reg_dm_mr(pd, dm, 101, 0, DM_ALL), EINVAL);
	NONE(ibv_reg_dm_mr(pd, dm, 4, UINT64_MAX, DM_ALL), EINVAL);
	NONE(ibv_reg_dm_mr(foreign, dm, 0, 100, DM_ALL), EINVAL);
	CHECK(!ibv_free_dm(small));
	mr = ibv_reg_dm_mr(pd, dm, 0, 100, DM_ALL | IBV_ACCESS_RELAXED_ORDERING);
	CHECK(mr && mr->length == 100 && !mr->addr);
	CHECK(ibv_free_dm(dm) == EBUSY && ibv_dealloc_pd(pd) == EBUSY);
	CHECK(!ibv_dereg_mr(mr) && !ibv_free_dm(dm));
	CHECK(!ibv_dealloc_pd(pd) && !ibv_dealloc_pd(foreign));
	CHECK(!ibv_close_device(ctx) && !ibv_close_device(other));
	printf("refusals: ok\n");
}

/* Nothing of it needs the adapter, so a forked child may have some of its own. */
/* What is imported as device memory can neither be shorter than it says nor become so. */
static void imports(void)
{
	struct ibv_context *ctx = kit_open();
	int fd = memfd_create("test", MFD_CLOEXEC | MFD_ALLOW_SEALING);
	struct ibv_dm *dm;

	CHECK(fd >= 0 && !ftruncate(fd, 4096));
	errno = 0;
	CHECK(!vb_dm_import(ctx, fd, 4096, 1, "test"));
	CHECK_EQ(errno, EINVAL);
	CHECK(!fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK));
	errno = 0;
	CHECK(!vb_dm_import(ctx, fd, 8192, 1, "test"));
	CHECK_EQ(errno, EINVAL);
	dm = vb_dm_import(ctx, fd, 4096, 1, "test");
	CHECK(dm);
	vb_dm_unimport(dm);
	close(fd);
	fd = open("/proc/self/exe", O_RDONLY | O_CLOEXEC); /* a file that has no seals at all */
	errno = 0;
	CHECK(fd >= 0 && !vb_dm_import(ctx, fd, 4096, 1, "test"));
	CHECK_EQ(errno, EINVAL);
	close(fd);
	CHECK(!ibv_close_device(ctx));
}

/* Taking back as imported what was not leaves it as it is. */
static void not_imported(void)
{
	struct ibv_context *ctx = kit_open();
	struct ibv_dm *dm = ibv_alloc_dm(ctx, &(struct ibv_alloc_dm_attr){.length = 4096}), *other;
	uint64_t word = 0;

	CHECK(dm);
	ibv_unimport_dm(dm);
	other = ibv_alloc_dm(ctx, &(struct ibv_alloc_dm_attr){.length = 4096});
	CHECK(other && !ibv_memcpy_to_dm(dm, 0, &word, sizeof word));
	CHECK(!ibv_free_dm(other) && !ibv_free_dm(dm) && !ibv_close_device(ctx));
}

static void after_fork(void)
{
	struct ibv_context *ctx = kit_open();
	struct ibv_dm *mine = alloc(ctx, 64, 0, 0);
	pid_t pid = kit_fork();

	if (!pid) {
		struct ibv_dm *dm = alloc(ctx, 64, 0, 0);
		struct ibv_device_attr_ex attr;
		uint64_t v = 7, w = 0;

		CHECK(dm && !ibv_memcpy_to_dm(dm, 0, &v, 8) && !ibv_memcpy_from_dm(&w, dm, 0, 8) && w == 7);
		CHECK(!ibv_free_dm(dm));
		/* the parent's is not touched, and what goes makes room */
		CHECK(ibv_memcpy_to_dm(mine, 0, &v, 8) == EIO && ibv_memcpy_from_dm(&w, mine, 0, 8) == EIO);
		CHECK(!ibv_free_dm(mine));
		CHECK(!ibv_query_device_ex(ctx, NULL, &attr));
		for (int i = 0; i < 5; i++) {
			dm = alloc(ctx, attr.max_dm_size / 2, 0, 0);
			CHECK(dm && !ibv_free_dm(dm), "%d: %s", i, strerror(errno));
		}
		_exit(0);
	}
	CHECK_EQ(kit_reap(pid), 0);
	CHECK(word(mine, 0) == 0 && !ibv_free_dm(mine) && !ibv_close_device(ctx));
	printf("after fork: ok\n");
}

int main(void)
{
	pid_t pid = kit_fork();

	if (!pid) {
		refusals();
		imports();
		not_imported();
		after_fork();
		exit(0);
	}
	CHECK_EQ(kit_reap(pid), 0);
	kit_pair_run("direct", (bool[2]){true, true}, initiator, target);
	kit_pair_run("ring", (bool[2]){false, false}, initiator, target);
	return 0;
}
