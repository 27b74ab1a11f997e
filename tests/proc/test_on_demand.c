/* On-demand regions, explicit and implicit: each access meets what is mapped at that moment.  Memory need not
 * have been touched, nor be there at all when the region is made; what is not there, or may not be written,
 * is a completion in error and nothing else.  Between two processes, by direct placement and by the ring, for
 * keys of either end. */
#include <sys/uio.h>

#include "bytes.h"
#include "pair.h"

enum { PAGES = 16, SIZE = PAGES * PAGE };
enum {
	LW = IBV_ACCESS_LOCAL_WRITE,
	RR = IBV_ACCESS_REMOTE_READ,
	RW = IBV_ACCESS_REMOTE_WRITE,
	RA = IBV_ACCESS_REMOTE_ATOMIC,
	OD = IBV_ACCESS_ON_DEMAND
};

/* Of pages that are all mapped; else -1. */
static int resident(void *p, unsigned n)
{
	unsigned char v[PAGES];
	int sum = 0;

	if (mincore(p, (size_t)n * PAGE, v))
		return -1;
	for (unsigned i = 0; i < n; i++)
		sum += v[i] & 1;
	return sum;
}

/* --- the target's: a range of addresses, and what is mapped there */

static uint8_t *area;
static struct ibv_mr *mr;

/* in: access.  out: errno, R_Key, address.  Nothing is mapped at the range. */
static void reserve(struct kit_pair *d)
{
	area = mmap(NULL, SIZE, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
	CHECK(area != MAP_FAILED && !munmap(area, SIZE));
	mr = ibv_reg_mr(d->pd, area, SIZE, (int)d->board->in[0] | OD);
	d->board->out[0] = mr ? 0 : errno;
	d->board->out[1] = mr ? mr->rkey : 0;
	d->board->out[2] = (int64_t)(uintptr_t)area;
}

/* in: the first page, how many, prot, fd or -1 */
static void map(struct kit_pair *d)
{
	const int64_t *in = d->board->in;
	uint8_t *at = area + in[0] * PAGE;

	CHECK(mmap(at, (size_t)in[1] * PAGE, (int)in[2],
		   MAP_FIXED | (in[3] < 0 ? MAP_PRIVATE | MAP_ANONYMOUS : MAP_SHARED), (int)in[3], 0) == at);
}

static void unmap(struct kit_pair *d)
{
	CHECK(!munmap(area + d->board->in[0] * PAGE, (size_t)d->board->in[1] * PAGE));
}

static void drop_pages(struct kit_pair *d)
{
	CHECK(!madvise(area + d->board->in[0] * PAGE, (size_t)d->board->in[1] * PAGE, MADV_DONTNEED));
}

/* in: offset; out: the byte, how many pages are present */
static void get_byte(struct kit_pair *d)
{
	d->board->out[1] = resident(area, PAGES);
	d->board->out[0] = area[d->board->in[0]];
}

static void dereg(struct kit_pair *d)
{
	(void)d;
	CHECK(!ibv_dereg_mr(mr));
	munmap(area, SIZE);
}

static void post_recv(struct kit_pair *d)
{
	struct ibv_sge sge = {(uintptr_t)area, (uint32_t)d->board->in[0], mr->lkey};
	struct ibv_recv_wr wr = {.wr_id = 7, .sg_list = &sge, .num_sge = 1}, *bad;

	CHECK(!ibv_post_recv(d->end[0].qp, &wr, &bad));
}

/* --- the initiator's */

static uint64_t base;

static uint32_t region(struct kit_pair *d, int access)
{
	d->board->in[0] = access;
	kit_duo_there(d, reserve);
	CHECK(!d->board->out[0]);
	base = (uint64_t)d->board->out[2];
	return (uint32_t)d->board->out[1];
}

static void call(struct kit_pair *d, void (*fn)(struct kit_pair *), int64_t a, int64_t b, int64_t c,
		 int64_t e)
{
	d->board->in[0] = a;
	d->board->in[1] = b;
	d->board->in[2] = c;
	d->board->in[3] = e;
	kit_duo_there(d, fn);
}

static void map_rw(struct kit_pair *d, int64_t first, int64_t n)
{
	call(d, map, first, n, PROT_READ | PROT_WRITE, -1);
}

static uint8_t byte_there(struct kit_pair *d, int64_t at)
{
	call(d, get_byte, at, 0, 0, 0);
	return (uint8_t)d->board->out[0];
}

static enum ibv_wc_status write_byte(struct kit_pair *d, uint8_t value, uint64_t at, uint32_t rkey)
{
	d->end[0].buf[0] = value;
	return kit_duo_do(d, IBV_WR_RDMA_WRITE, 1, at, rkey);
}

static int read_byte(struct kit_pair *d, uint64_t at, uint32_t rkey)
{
	d->end[0].buf[0] = 0xee;
	return kit_duo_do(d, IBV_WR_RDMA_READ, 1, at, rkey) ? -1 : d->end[0].buf[0];
}

/* WRITEs, READs, atomics and a SEND find memory that nobody has touched yet, or that was given back. */
static void never_touched_pages(struct kit_pair *d)
{
	uint32_t rkey = region(d, LW | RW | RR | RA);

	map_rw(d, 0, PAGES);
	CHECK(read_byte(d, base + 5 * PAGE, rkey) == 0);
	CHECK(write_byte(d, 0x31, base + PAGE + 9, rkey) == IBV_WC_SUCCESS);
	CHECK(kit_duo_do(d, IBV_WR_ATOMIC_FETCH_AND_ADD, 8, base + 2 * PAGE, rkey) == IBV_WC_SUCCESS);
	CHECK(byte_there(d, PAGE + 9) == 0x31 && byte_there(d, 2 * PAGE) == 1);
	CHECK(d->board->out[1] <= 4, "%d pages", (int)d->board->out[1]); /* no more than what was asked for */
	memset(d->end[0].buf, 0x42, 3 * PAGE);
	CHECK(kit_duo_do(d, IBV_WR_RDMA_WRITE, 3 * PAGE, base + 6 * PAGE + 100, rkey) == IBV_WC_SUCCESS);
	CHECK(byte_there(d, 6 * PAGE + 99) == 0 && byte_there(d, 6 * PAGE + 100) == 0x42 &&
	      byte_there(d, 9 * PAGE + 99) == 0x42 && byte_there(d, 9 * PAGE + 100) == 0);
	call(d, drop_pages, 0, PAGES, 0, 0);
	CHECK(read_byte(d, base + PAGE + 9, rkey) == 0);
	CHECK(write_byte(d, 0x77, base + PAGE + 9, rkey) == IBV_WC_SUCCESS &&
	      byte_there(d, PAGE + 9) == 0x77);
	call(d, drop_pages, 0, PAGES, 0, 0);
	call(d, post_recv, PAGE, 0, 0, 0);
	CHECK(kit_duo_do(d, IBV_WR_SEND, PAGE, 0, 0) == IBV_WC_SUCCESS);
	CHECK(byte_there(d, 17) == 0x42);
	kit_duo_there(d, dereg);
}

/* As the program maps and unmaps, so goes the access. */
static void follows_the_mapping(struct kit_pair *d)
{
	uint32_t rkey = region(d, LW | RW | RR | RA);

	for (int round = 0; round < 3; round++) {
		CHECK(write_byte(d, 1, base, rkey) == IBV_WC_REM_ACCESS_ERR); /* nothing is there */
		CHECK(read_byte(d, base, rkey) == -1);
		CHECK(kit_duo_do(d, IBV_WR_ATOMIC_FETCH_AND_ADD, 8, base, rkey) == IBV_WC_REM_ACCESS_ERR);
		map_rw(d, 0, 2);
		CHECK(read_byte(d, base, rkey) == 0);
		CHECK(write_byte(d, 0x21, base, rkey) == IBV_WC_SUCCESS && byte_there(d, 0) == 0x21);
		map_rw(d, 0, 2); /* other memory in its place */
		CHECK(read_byte(d, base, rkey) == 0);
		CHECK(write_byte(d, 0x22, base, rkey) == IBV_WC_SUCCESS && byte_there(d, 0) == 0x22);
		/* half of it is there */
		CHECK(kit_duo_do(d, IBV_WR_RDMA_WRITE, PAGE, base + PAGE + 1, rkey) == IBV_WC_REM_ACCESS_ERR);
		CHECK(kit_duo_do(d, IBV_WR_RDMA_READ, PAGE, base + PAGE + 1, rkey) == IBV_WC_REM_ACCESS_ERR);
		CHECK(kit_duo_do(d, IBV_WR_RDMA_READ, PAGE, base + PAGE, rkey) == IBV_WC_SUCCESS);
		call(d, unmap, 0, 2, 0, 0);
	}
	kit_duo_there(d, dereg);
}

/* LOCAL_WRITE was granted at registration; the mapping decides at access. */
static void read_only_memory(struct kit_pair *d)
{
	uint32_t rkey = region(d, LW | RW | RR | RA);
	uint8_t *own = mmap(NULL, PAGE, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	struct ibv_mr *own_mr;

	call(d, map, 0, 2, PROT_READ, -1);
	CHECK(read_byte(d, base, rkey) == 0);
	CHECK(write_byte(d, 1, base, rkey) == IBV_WC_REM_ACCESS_ERR);
	CHECK(kit_duo_do(d, IBV_WR_ATOMIC_CMP_AND_SWP, 8, base, rkey) == IBV_WC_REM_ACCESS_ERR);
	call(d, post_recv, 64, 0, 0, 0);
	CHECK(kit_duo_do(d, IBV_WR_SEND, 64, 0, 0) == IBV_WC_REM_OP_ERR);
	CHECK(byte_there(d, 0) == 0);
	map_rw(d, 1, 1);
	CHECK(write_byte(d, 1, base + PAGE, rkey) == IBV_WC_SUCCESS);
	CHECK(kit_duo_do(d, IBV_WR_RDMA_WRITE, 2, base + PAGE - 1, rkey) == IBV_WC_REM_ACCESS_ERR);
	/* a sink of one's own */
	CHECK(own != MAP_FAILED);
	own_mr = ibv_reg_mr(d->pd, own, PAGE, LW | OD);
	CHECK(own_mr);
	CHECK(kit_duo_try(d, IBV_WR_RDMA_WRITE, (uintptr_t)own, 8, own_mr->lkey, base + PAGE, rkey) ==
	      IBV_WC_SUCCESS);
	CHECK(kit_duo_try(d, IBV_WR_RDMA_READ, (uintptr_t)own, 8, own_mr->lkey, base + PAGE, rkey) ==
	      IBV_WC_LOC_PROT_ERR);
	CHECK(!mprotect(own, PAGE, PROT_READ | PROT_WRITE));
	CHECK(kit_duo_try(d, IBV_WR_RDMA_READ, (uintptr_t)own, 8, own_mr->lkey, base + PAGE, rkey) ==
	      IBV_WC_SUCCESS);
	CHECK(!ibv_dereg_mr(own_mr) && !munmap(own, PAGE));
	kit_duo_there(d, dereg);
}

/* Local keys: source and sink that are not there, then are. */
static void local_keys(struct kit_pair *d)
{
	uint32_t rkey = region(d, LW | RW | RR);
	uint8_t *own = mmap(NULL, SIZE, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
	struct ibv_mr *own_mr[2];

	map_rw(d, 0, PAGES);
	CHECK(own != MAP_FAILED);
	own_mr[0] = ibv_reg_mr(d->pd, own, SIZE, LW | OD);
	own_mr[1] = ibv_reg_mr(d->pd, NULL, SIZE_MAX, LW | OD);
	for (int i = 0; i < 2; i++) {
		uint32_t lkey = own_mr[i]->lkey;
		uint64_t at = (uintptr_t)own;

		CHECK(!mprotect(own, SIZE, PROT_NONE));
		CHECK(kit_duo_try(d, IBV_WR_RDMA_WRITE, at, PAGE, lkey, base, rkey) == IBV_WC_LOC_PROT_ERR);
		CHECK(kit_duo_try(d, IBV_WR_SEND, at, PAGE, lkey, base, rkey) == IBV_WC_LOC_PROT_ERR);
		CHECK(kit_duo_try(d, IBV_WR_RDMA_READ, at, PAGE, lkey, base, rkey) == IBV_WC_LOC_PROT_ERR);
		CHECK(!mprotect(own, SIZE, PROT_READ | PROT_WRITE) && !madvise(own, SIZE, MADV_DONTNEED));
		CHECK(resident(own, PAGES) == 0);
		CHECK(write_byte(d, 0x5c, base + 3 * PAGE, rkey) == IBV_WC_SUCCESS);
		CHECK(kit_duo_try(d, IBV_WR_RDMA_READ, at + 1, 4 * PAGE, lkey, base, rkey) == IBV_WC_SUCCESS);
		CHECK(own[3 * PAGE + 1] == 0x5c && own[3 * PAGE] == 0);
		CHECK(kit_duo_try(d, IBV_WR_RDMA_WRITE, at + 6 * PAGE, PAGE, lkey, base + 3 * PAGE, rkey) ==
		      IBV_WC_SUCCESS);
		CHECK(byte_there(d, 3 * PAGE) == 0);
	}
	CHECK(!ibv_dereg_mr(own_mr[0]) && !ibv_dereg_mr(own_mr[1]) && !munmap(own, SIZE));
	kit_duo_there(d, dereg);
}

static uint8_t in_the_image[64];
static uint8_t *on_the_heap, *on_the_stack;

/* out: the implicit region's R_Key and addresses of memory of several kinds */
static void whole_address_space(struct kit_pair *d)
{
	mr = ibv_reg_mr(d->pd, NULL, SIZE_MAX, LW | RW | RR | RA | OD);
	CHECK(mr && !mr->addr && mr->length == SIZE_MAX);
	on_the_heap = calloc(1, 300000);
	on_the_stack = __builtin_frame_address(0);
	CHECK(on_the_heap);
	d->board->out[0] = mr->rkey;
	d->board->out[1] = (int64_t)(uintptr_t)in_the_image;
	d->board->out[2] = (int64_t)(uintptr_t)on_the_heap;
	d->board->out[3] = (int64_t)(uintptr_t)on_the_stack; /* to be read only */
}

static void look_at_kinds(struct kit_pair *d)
{
	d->board->out[0] = in_the_image[3];
	d->board->out[1] = on_the_heap[299999];
	memcpy(&d->board->out[2], in_the_image + 8, 8);
}

static void end_of_it(struct kit_pair *d)
{
	(void)d;
	free(on_the_heap);
	CHECK(!ibv_dereg_mr(mr));
}

/* mmap() and munmap() anywhere: out: the address */
static void map_somewhere(struct kit_pair *d)
{
	area = mmap(NULL, SIZE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	CHECK(area != MAP_FAILED);
	d->board->out[0] = (int64_t)(uintptr_t)area;
}

static void implicit_region_reaches_everything(struct kit_pair *d)
{
	uint64_t image, heap, stack, at;
	uint32_t rkey;

	kit_duo_there(d, whole_address_space);
	rkey = (uint32_t)d->board->out[0];
	image = (uint64_t)d->board->out[1];
	heap = (uint64_t)d->board->out[2];
	stack = (uint64_t)d->board->out[3];
	CHECK(write_byte(d, 0x11, image + 3, rkey) == IBV_WC_SUCCESS);
	CHECK(write_byte(d, 0x12, heap + 299999, rkey) == IBV_WC_SUCCESS);
	for (int i = 0; i < 10; i++)
		CHECK(kit_duo_do(d, IBV_WR_ATOMIC_FETCH_AND_ADD, 8, image + 8, rkey) == IBV_WC_SUCCESS);
	kit_duo_there(d, look_at_kinds);
	CHECK(d->board->out[0] == 0x11 && d->board->out[1] == 0x12 && d->board->out[2] == 10);
	CHECK(read_byte(d, stack, rkey) >= 0);
	for (int i = 0; i < 3; i++) { /* it follows what is mapped after it was made */
		kit_duo_there(d, map_somewhere);
		at = (uint64_t)d->board->out[0];
		CHECK(write_byte(d, 0x13, at + SIZE - 1, rkey) == IBV_WC_SUCCESS);
		CHECK(byte_there(d, SIZE - 1) == 0x13);
		CHECK(kit_duo_do(d, IBV_WR_ATOMIC_CMP_AND_SWP, 8, at, rkey) == IBV_WC_SUCCESS);
		call(d, unmap, 0, PAGES, 0, 0);
		CHECK(write_byte(d, 0x13, at + SIZE - 1, rkey) == IBV_WC_REM_ACCESS_ERR);
		CHECK(kit_duo_do(d, IBV_WR_ATOMIC_FETCH_AND_ADD, 8, at, rkey) == IBV_WC_REM_ACCESS_ERR);
	}
	CHECK(read_byte(d, 0, rkey) == -1 && read_byte(d, UINT64_MAX - 1, rkey) == -1);
	CHECK(read_byte(d, 1ull << 63, rkey) == -1 && read_byte(d, 0xffffffff80000000, rkey) == -1);
	CHECK(kit_duo_do(d, IBV_WR_RDMA_READ, 8, UINT64_MAX - 7, rkey) == IBV_WC_REM_ACCESS_ERR);
	kit_duo_there(d, end_of_it);
	CHECK(write_byte(d, 0x11, image + 3, rkey) == IBV_WC_REM_ACCESS_ERR);
}

static int file;

/* The range is shared memory that a peer could open. */
static void map_file(struct kit_pair *d)
{
	file = memfd_create("on-demand", MFD_CLOEXEC);
	CHECK(file >= 0 && !ftruncate(file, SIZE));
	d->board->in[0] = 0;
	d->board->in[1] = PAGES;
	d->board->in[2] = PROT_READ | PROT_WRITE;
	d->board->in[3] = file;
	map(d);
}

/* out: the file's first byte */
static void look_at_file(struct kit_pair *d)
{
	uint8_t byte;

	CHECK(pread(file, &byte, 1, 0) == 1);
	d->board->out[0] = byte;
}

/* A peer never keeps a mapping of an on-demand region's memory: what takes its place is what is reached. */
static void shared_memory_is_not_kept_by_peers(struct kit_pair *d)
{
	uint32_t rkey = region(d, LW | RW | RR | RA);

	kit_duo_there(d, map_file);
	for (int i = 0; i < 200; i++) {
		CHECK(write_byte(d, (uint8_t)i, base, rkey) == IBV_WC_SUCCESS);
		if (i % 20 == 0) { /* atomics ask for a mapping at once */
			CHECK(kit_duo_do(d, IBV_WR_ATOMIC_FETCH_AND_ADD, 8, base + 64, rkey) ==
			      IBV_WC_SUCCESS);
		}
	}
	kit_duo_there(d, look_at_file);
	CHECK(d->board->out[0] == 199);
	CHECK(byte_there(d, 64) == 10);
	map_rw(d, 0, PAGES);
	CHECK(write_byte(d, 0xfe, base, rkey) == IBV_WC_SUCCESS);
	CHECK(kit_duo_do(d, IBV_WR_ATOMIC_FETCH_AND_ADD, 8, base + 64, rkey) == IBV_WC_SUCCESS);
	CHECK(byte_there(d, 0) == 0xfe && byte_there(d, 64) == 1);
	kit_duo_there(d, look_at_file);
	CHECK(d->board->out[0] == 199);
	kit_duo_there(d, dereg);
}

static struct ibv_mw *mw;

/* A window of the region's second page on; out: its R_Key, 0: it cannot be bound */
static void bind_window(struct kit_pair *d)
{
	struct ibv_mw_bind bind = {.wr_id = 9,
				   .send_flags = IBV_SEND_SIGNALED,
				   .bind_info = {.mr = mr,
						 .addr = (uintptr_t)area + PAGE,
						 .length = SIZE - PAGE,
						 .mw_access_flags = RR | RW | RA}};
	struct ibv_wc wc;

	mw = ibv_alloc_mw(d->pd, IBV_MW_TYPE_1);
	CHECK(mw && !ibv_bind_mw(d->end[0].qp, mw, &bind));
	do {
		wc = kit_wait(&d->end[0], 20);
	} while (wc.wr_id != 9);
	CHECK_EQ(wc.status, IBV_WC_SUCCESS);
	d->board->out[0] = mw->rkey;
}

static void free_window(struct kit_pair *d)
{
	CHECK(!ibv_dealloc_mw(mw));
	dereg(d);
}

/* A window of such a region follows the mapping as the region does. */
static void through_a_window(struct kit_pair *d)
{
	uint32_t rkey, all = region(d, LW | IBV_ACCESS_MW_BIND);
	uint64_t at = base + PAGE;

	kit_duo_there(d, bind_window);
	rkey = (uint32_t)d->board->out[0];
	CHECK(rkey != all);
	CHECK(write_byte(d, 1, at, rkey) == IBV_WC_REM_ACCESS_ERR);
	kit_duo_there(d, map_file);
	for (int i = 0; i < 100; i++)
		CHECK(write_byte(d, (uint8_t)i, at, rkey) == IBV_WC_SUCCESS);
	CHECK(byte_there(d, PAGE) == 99);
	CHECK(write_byte(d, 1, at - 1, rkey) == IBV_WC_REM_ACCESS_ERR); /* not of the window */
	CHECK(write_byte(d, 1, at, all) == IBV_WC_REM_ACCESS_ERR);	/* nor by the region's own key */
	map_rw(d, 0, PAGES);
	CHECK(read_byte(d, at, rkey) == 0);
	CHECK(write_byte(d, 0x71, at, rkey) == IBV_WC_SUCCESS && byte_there(d, PAGE) == 0x71);
	CHECK(kit_duo_do(d, IBV_WR_ATOMIC_FETCH_AND_ADD, 8, at + 8, rkey) == IBV_WC_SUCCESS);
	CHECK(byte_there(d, PAGE + 8) == 1);
	kit_duo_there(d, free_window);
}

/* By process_vm_* alone, as direct placement does it: the pages come without the owner's doing.  The target
 * is stopped meanwhile. */
static void without_the_targets_help(struct kit_pair *d)
{
	uint32_t rkey = region(d, LW | RW | RR);
	struct iovec here = {d->end[0].buf, 1}, there;
	char name[64], state[512];
	FILE *f;

	map_rw(d, 0, PAGES);
	there = (struct iovec){(void *)(uintptr_t)base, 1};
	if (process_vm_readv(d->target, &here, 1, &there, 1, 0) != 1) {
		printf("the kernel does not let processes reach into one another here: %s\n",
		       strerror(errno));
		kit_duo_there(d, dereg);
		return;
	}
	call(d, drop_pages, 0, PAGES, 0, 0);
	snprintf(name, sizeof name, "/proc/%d/stat", (int)d->target);
	CHECK(!kill(d->target, SIGSTOP));
	for (bool stopped = false; !stopped;) {
		f = fopen(name, "r");
		CHECK(f && fgets(state, sizeof state, f));
		stopped = strstr(state, ") T ");
		fclose(f);
	}
	memset(d->end[0].buf, 0x24, SIZE);
	CHECK(kit_duo_do(d, IBV_WR_RDMA_WRITE, 5 * PAGE, base + PAGE, rkey) == IBV_WC_SUCCESS);
	CHECK(kit_duo_do(d, IBV_WR_RDMA_READ, PAGE, base + 10 * PAGE, rkey) == IBV_WC_SUCCESS);
	CHECK(d->end[0].buf[0] == 0 && d->end[0].buf[PAGE - 1] == 0 && d->end[0].buf[PAGE] == 0x24);
	CHECK(!kill(d->target, SIGCONT));
	CHECK(byte_there(d, 6 * PAGE - 1) == 0x24 && byte_there(d, 6 * PAGE) == 0);
	kit_duo_there(d, dereg);
}

int main(void)
{
	KIT_DUO_BOTH(never_touched_pages);
	KIT_DUO_BOTH(follows_the_mapping);
	KIT_DUO_BOTH(read_only_memory);
	KIT_DUO_BOTH(local_keys);
	KIT_DUO_BOTH(implicit_region_reaches_everything);
	KIT_DUO_BOTH(shared_memory_is_not_kept_by_peers);
	KIT_DUO_BOTH(through_a_window);
	kit_duo_run("without_the_targets_help", true, without_the_targets_help);
	return 0;
}
