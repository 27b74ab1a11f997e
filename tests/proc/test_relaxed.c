/* Relaxed regions between two processes: access to page boundaries, keys that are dead, memory that nobody
 * touches after a flush, a pool that is empty and recovers, and a peer that is held in the middle of a copy:
 * deregistration returns at once, a flush waits. */
#include <linux/userfaultfd.h>
#include <pthread.h>
#include <sched.h>
#include <sys/ioctl.h>
#include <sys/stat.h>
#include <sys/syscall.h>

#include "bytes.h"
#include "pair.h"

enum { SIZE = 64 << 10, DEPTH = 16, PATTERN = 0x5a, POOL = 32 << 10 };

static struct ibv_mr *relaxed(struct kit_pair *p, void *addr, size_t length, int access)
{
	struct ibv_mr *mr;

	while (!(mr = ibv_reg_mr_relaxed(p->pd, addr, length, access))) {
		CHECK_EQ(errno, EAGAIN);
		sched_yield();
	}
	return mr;
}

static uint8_t *pages(size_t n)
{
	uint8_t *at = mmap(NULL, n, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

	CHECK(at != MAP_FAILED);
	return at;
}

static void tell(struct kit_pair *p, const struct ibv_mr *mr, const void *addr)
{
	atomic_store(&p->board->number[0], mr->rkey);
	atomic_store(&p->board->number[1], (int64_t)(uintptr_t)addr);
}

static struct ibv_wc put(struct kit_pair *p, int end, uint64_t addr, uint32_t len)
{
	struct kit_card card = {.rkey = (uint32_t)atomic_load(&p->board->number[0])};

	CHECK(!kit_post(&p->end[end], IBV_WR_RDMA_WRITE, 1, 0, len, &card, addr));
	return kit_wait(&p->end[end], 20);
}

static void expect(struct ibv_wc wc, enum ibv_wc_status status, const char *what)
{
	CHECK(wc.status == status, "%s: %s", what, ibv_wc_status_str(wc.status));
}

static void intact(const uint8_t *at, size_t n)
{
	for (size_t i = 0; i < n; i++)
		CHECK(at[i] == PATTERN, "byte %zu was touched afterwards", i);
}

/* --- access reaches to page boundaries, and no further */

static void boundaries_target(struct kit_pair *p)
{
	uint8_t *at = pages(4 * PAGE);
	struct ibv_mr *mr;

	kit_pair_open(p, DEPTH, PAGE);
	mr = relaxed(p, at + PAGE + 100, 300, KIT_ALL);
	tell(p, mr, at);
	atomic_store(&p->board->step, 1);
	kit_until(&p->board->step, 2);
	for (int i = 0; i < 4 * PAGE; i++)
		CHECK(at[i] == (i >= PAGE && i < 2 * PAGE ? 0x77 : 0), "byte %d is 0x%02x", i, at[i]);
	CHECK(!ibv_dereg_mr_relaxed(mr) && !ibv_flush_relaxed_mr(p->pd));
	kit_pair_close(p);
}

static void boundaries_initiator(struct kit_pair *p)
{
	uint64_t at;

	kit_pair_open(p, DEPTH, 2 * PAGE);
	kit_until(&p->board->step, 1);
	at = (uint64_t)atomic_load(&p->board->number[1]);
	memset(p->end[0].buf, 0x77, 2 * PAGE);
	memset(p->end[1].buf, 0x77, 2 * PAGE);
	expect(put(p, 0, at + PAGE, PAGE), IBV_WC_SUCCESS, "the whole page");
	expect(put(p, 0, at + PAGE, PAGE + 1), IBV_WC_REM_ACCESS_ERR, "a byte behind it");
	expect(put(p, 1, at + PAGE - 1, 2), IBV_WC_REM_ACCESS_ERR, "a byte before it");
	atomic_store(&p->board->step, 2);
	kit_pair_close(p);
}

/* --- a key is dead once its region is deregistered, and others live on */

static void dead_target(struct kit_pair *p)
{
	uint8_t *at = pages(2 * PAGE);
	struct ibv_mr *mr, *mr2;

	kit_pair_open(p, DEPTH, PAGE);
	mr = relaxed(p, at, PAGE, KIT_ALL);
	mr2 = relaxed(p, at + PAGE, PAGE, KIT_ALL);
	tell(p, mr, at);
	atomic_store(&p->board->step, 1);
	kit_until(&p->board->step, 2); /* it has been used */
	CHECK(!ibv_dereg_mr_relaxed(mr));
	memset(at, PATTERN, PAGE);
	atomic_store(&p->board->step, 3);
	kit_until(&p->board->step, 4);
	CHECK(!ibv_flush_relaxed_mr(p->pd));
	tell(p, mr2, at + PAGE);
	atomic_store(&p->board->step, 5);
	kit_until(&p->board->step, 6);
	intact(at, PAGE);
	CHECK(at[PAGE] == 0x77 && at[2 * PAGE - 1] == 0x77);
	CHECK(!ibv_dereg_mr_relaxed(mr2));
	kit_pair_close(p);
}

static void dead_initiator(struct kit_pair *p)
{
	uint64_t at;

	kit_pair_open(p, DEPTH, PAGE);
	kit_until(&p->board->step, 1);
	at = (uint64_t)atomic_load(&p->board->number[1]);
	memset(p->end[1].buf, 0x77, PAGE);
	for (int i = 0; i < 50; i++)
		expect(put(p, i & 1, at, PAGE), IBV_WC_SUCCESS, "a live key");
	atomic_store(&p->board->step, 2);
	kit_until(&p->board->step, 3);
	expect(put(p, 0, at, 8), IBV_WC_REM_ACCESS_ERR, "a key of a region that has ended");
	atomic_store(&p->board->step, 4);
	kit_until(&p->board->step, 5);
	at = (uint64_t)atomic_load(&p->board->number[1]);
	expect(put(p, 1, at, PAGE), IBV_WC_SUCCESS, "another region");
	atomic_store(&p->board->step, 6);
	kit_pair_close(p);
}

/* --- messages without end into regions that come and go: no byte of a region is touched after the flush */

enum { ROUNDS = 25 };

static bool mapped; /* the memory is a file's, which the peer maps after some use */

static void connect_anew(struct kit_pair *p, struct kit_end *e, int round)
{
	kit_end_open(e, p->pd, DEPTH, SIZE);
	p->board->card[p->me][0] = e->card;
	atomic_fetch_add(&p->board->opened, 1);
	kit_until(&p->board->opened, 2 * round);
	kit_connect(e, &p->board->card[!p->me][0]);
	atomic_fetch_add(&p->board->connected, 1);
	kit_until(&p->board->connected, 2 * round);
}

static void flood_target(struct kit_pair *p)
{
	p->ctx = kit_open();
	p->pd = ibv_alloc_pd(p->ctx);
	CHECK(p->pd);
	for (int round = 1; round <= ROUNDS; round++) {
		int fd = -1;
		uint8_t *at = mapped ? kit_mapped(SIZE, &fd) : pages(SIZE);
		struct ibv_mr *mr = relaxed(p, at, SIZE, KIT_ALL);
		double late = kit_now() + 20;
		struct kit_end e;

		tell(p, mr, at);
		connect_anew(p, &e, round);
		while (!__atomic_load_n(&at[SIZE - 1], __ATOMIC_RELAXED)) {
			struct ibv_wc wc;

			CHECK(kit_now() < late, "no WRITE comes");
			CHECK(!ibv_poll_cq(e.cq, 1, &wc));
		}
		if (mapped)
			kit_nap(1 + round % 5); /* mostly it is by then */
		CHECK(!ibv_dereg_mr_relaxed(mr));
		CHECK(!ibv_flush_relaxed_mr(p->pd));
		memset(at, PATTERN, SIZE);
		for (int i = 0; i < 20000; i++)
			__asm__ volatile("" ::: "memory");
		intact(at, SIZE);
		kit_nap(round % 3);
		intact(at, SIZE);
		kit_end_close(&e);
		munmap(at, SIZE);
		if (fd >= 0)
			close(fd);
		atomic_store(&p->board->step, round);
	}
	CHECK(!ibv_dealloc_pd(p->pd) && !ibv_close_device(p->ctx));
}

static void flood_initiator(struct kit_pair *p)
{
	p->ctx = kit_open();
	p->pd = ibv_alloc_pd(p->ctx);
	CHECK(p->pd);
	for (int round = 1; round <= ROUNDS; round++) {
		struct kit_card card = {0};
		struct kit_end e;
		struct ibv_wc wc;
		int posted = 0;
		bool failed = false;

		connect_anew(p, &e, round);
		memset(e.buf, 0xff, SIZE);
		card.rkey = (uint32_t)atomic_load(&p->board->number[0]);
		card.addr = (uint64_t)atomic_load(&p->board->number[1]);
		while (!failed && atomic_load(&p->board->step) < round) {
			for (; posted < DEPTH; posted++)
				CHECK(!kit_post(&e, IBV_WR_RDMA_WRITE, 1, 0, SIZE, &card, 0));
			while (ibv_poll_cq(e.cq, 1, &wc) > 0) {
				posted--;
				failed |= wc.status != IBV_WC_SUCCESS;
			}
		}
		kit_until(&p->board->step, round);
		kit_end_close(&e);
	}
	CHECK(!ibv_dealloc_pd(p->pd) && !ibv_close_device(p->ctx));
}

/* --- a pool is empty: EAGAIN, while what is registered works; one that ends makes room for one */

static void empty_target(struct kit_pair *p)
{
	uint8_t *at = pages(PAGE);
	struct ibv_mr **mr = calloc(POOL, sizeof(struct ibv_mr *)), *more;

	CHECK(mr);
	kit_pair_open(p, DEPTH, PAGE);
	for (int i = 0; i < POOL; i++) {
		mr[i] = ibv_reg_mr_relaxed(p->pd, at, PAGE, KIT_ALL);
		CHECK(mr[i], "region %d: %s", i, strerror(errno));
	}
	errno = 0;
	CHECK(!ibv_reg_mr_relaxed(p->pd, at, PAGE, KIT_ALL));
	CHECK_EQ(errno, EAGAIN);
	tell(p, mr[POOL - 1], at);
	atomic_store(&p->board->step, 1);
	kit_until(&p->board->step, 2);
	CHECK(!ibv_dereg_mr_relaxed(mr[0]));
	more = ibv_reg_mr_relaxed(p->pd, at, PAGE, KIT_ALL);
	CHECK(more && more->rkey != (uint32_t)atomic_load(&p->board->number[0]));
	mr[0] = more;
	CHECK(!ibv_reg_mr_relaxed(p->pd, at, PAGE, KIT_ALL));
	CHECK_EQ(errno, EAGAIN);
	tell(p, more, at);
	atomic_store(&p->board->step, 3);
	kit_until(&p->board->step, 4);
	for (int i = 0; i < POOL; i++)
		CHECK(!ibv_dereg_mr_relaxed(mr[i]));
	CHECK(!ibv_flush_relaxed_mr(p->pd));
	kit_pair_close(p);
	free(mr);
}

static void empty_initiator(struct kit_pair *p)
{
	kit_pair_open(p, DEPTH, PAGE);
	for (int step = 1; step <= 3; step += 2) {
		kit_until(&p->board->step, step);
		expect(put(p, 0, (uint64_t)atomic_load(&p->board->number[1]), PAGE), IBV_WC_SUCCESS,
		       "a region of a full pool");
		atomic_store(&p->board->step, step + 1);
	}
	kit_pair_close(p);
}

/* --- in a protection domain that another process made, which uses the region as its own */

static void shared_target(struct kit_pair *p) /* its domain, and its QP */
{
	struct kit_end *e;
	struct ibv_shpd shpd;

	kit_pair_open(p, DEPTH, PAGE);
	e = &p->end[0];
	CHECK(ibv_alloc_shpd(p->pd, 4711, &shpd), "%s", strerror(errno));
	atomic_store(&p->board->number[2], shpd.handle);
	for (int step = 2; step <= 4; step += 2) {
		struct ibv_sge sge = {.length = 100};
		struct ibv_send_wr wr = {
		    .sg_list = &sge, .num_sge = 1, .opcode = IBV_WR_SEND, .send_flags = IBV_SEND_SIGNALED};
		struct ibv_send_wr *bad;

		atomic_store(&p->board->step, step - 1);
		kit_until(&p->board->step, step);
		sge.addr = (uint64_t)atomic_load(&p->board->number[1]);
		sge.lkey = (uint32_t)atomic_load(&p->board->number[3]);
		CHECK(!ibv_post_send(e->qp, &wr, &bad));
		expect(kit_wait(e, 20), step == 2 ? IBV_WC_SUCCESS : IBV_WC_LOC_PROT_ERR,
		       "from the other process's region");
	}
	kit_pair_close(p);
}

static void shared_initiator(struct kit_pair *p) /* its memory */
{
	uint8_t *at = pages(PAGE);
	struct ibv_shpd shpd;
	struct ibv_pd *pd;
	struct ibv_mr *mr;

	kit_pair_open(p, DEPTH, PAGE);
	kit_until(&p->board->step, 1);
	shpd.handle = (uint32_t)atomic_load(&p->board->number[2]);
	pd = ibv_share_pd(p->ctx, &shpd, 4711);
	CHECK(pd, "%s", strerror(errno));
	mr = ibv_reg_mr_relaxed(pd, at, PAGE, IBV_ACCESS_LOCAL_WRITE);
	CHECK(mr, "%s", strerror(errno));
	memset(at, 0x42, PAGE);
	CHECK(!kit_recv(&p->end[0], 7, 0, 100));
	tell(p, mr, at);
	atomic_store(&p->board->number[3], mr->lkey);
	atomic_store(&p->board->step, 2);
	expect(kit_wait(&p->end[0], 20), IBV_WC_SUCCESS, "the message");
	CHECK(p->end[0].buf[0] == 0x42 && p->end[0].buf[99] == 0x42);
	kit_until(&p->board->step, 3);
	CHECK(!ibv_dereg_mr_relaxed(mr) && !ibv_flush_relaxed_mr(pd) && !ibv_dealloc_pd(pd));
	atomic_store(&p->board->step, 4);
	kit_pair_close(p);
}

/* --- a writer that is held in the middle of a copy, by a page of its own that is missing */

static char log_path[] = "/tmp/verbena-relaxed-XXXXXX";
static bool killed; /* the writer is, else it gets its page */

static bool said(pid_t pid)
{
	char line[1024], who[32];
	FILE *f = fopen(log_path, "r");
	bool found = false;

	CHECK(f);
	snprintf(who, sizeof who, "process %d,", (int)pid);
	while (fgets(line, sizeof line, f))
		found |= strstr(line, "waits for") && strstr(line, who);
	fclose(f);
	return found;
}

struct flushing {
	struct ibv_pd *pd;
	uint8_t *at;
	_Atomic bool done;
};

static void *flush(void *arg)
{
	struct flushing *f = arg;

	CHECK(!ibv_flush_relaxed_mr(f->pd));
	memset(f->at, PATTERN, SIZE);
	atomic_store(&f->done, true);
	return NULL;
}

static void held_owner(struct kit_pair *p)
{
	uint8_t *at = pages(SIZE), *elsewhere = pages(SIZE);
	struct flushing f;
	struct ibv_mr *mr, *later[64];
	double began;
	pthread_t t;

	kit_pair_open(p, DEPTH, SIZE);
	mr = relaxed(p, at, SIZE, KIT_ALL);
	tell(p, mr, at);
	atomic_store(&p->board->step, 1);
	kit_until(&p->board->step, 2); /* it is held */
	began = kit_now();
	CHECK(!ibv_dereg_mr_relaxed(mr));
	CHECK(kit_now() - began < 1, "deregistration took %g s", kit_now() - began);
	for (int i = 0; i < 64; i++) { /* other regions come and go */
		later[i] = relaxed(p, elsewhere, SIZE, KIT_ALL);
		CHECK(later[i] != mr, "the entry is given out while somebody uses it");
	}
	for (int i = 0; i < 64; i++)
		CHECK(!ibv_dereg_mr_relaxed(later[i]));
	f = (struct flushing){.pd = p->pd, .at = at};
	CHECK(!pthread_create(&t, NULL, flush, &f));
	while (!said(p->target)) { /* after a second */
		CHECK(!atomic_load(&f.done), "the flush did not wait");
		CHECK(kit_now() - began < 20, "nothing is said");
		kit_nap(10);
	}
	CHECK(!atomic_load(&f.done), "the flush did not wait");
	if (killed) {
		CHECK(!kill(p->target, SIGKILL));
		kit_reap(p->target);
	} else {
		atomic_store(&p->board->step, 3);
	}
	CHECK(!pthread_join(t, NULL));
	if (!killed)
		kit_until(&p->board->step, 4);
	intact(at, SIZE);
	for (int i = 0; i < SIZE; i++)
		CHECK(!elsewhere[i], "byte %d of a later region was touched", i);
	for (int i = 0; i < KIT_ENDS; i++)
		kit_end_close(&p->end[i]);
	CHECK(!ibv_dealloc_pd(p->pd) && !ibv_destroy_comp_channel(p->chan) && !ibv_close_device(p->ctx));
	if (!killed)
		CHECK_EQ(kit_reap(p->target), 0);
	_exit(0);
}

static void *write_from(void *arg)
{
	struct kit_pair *p = arg;
	struct kit_card card = {.rkey = (uint32_t)atomic_load(&p->board->number[0]),
				.addr = (uint64_t)atomic_load(&p->board->number[1])};

	CHECK(!kit_post(&p->end[0], IBV_WR_RDMA_WRITE, 1, PAGE - 100, 5000, &card, 0));
	return NULL;
}

static void held_writer(struct kit_pair *p)
{
	struct uffdio_zeropage zero = {0};
	struct pollfd fd = {.events = POLLIN};
	struct kit_end *e = &p->end[0];
	pthread_t t;

	kit_pair_open(p, DEPTH, SIZE);
	CHECK(!ibv_dereg_mr(e->mr));
	free(e->buf);
	e->buf = pages(SIZE);
	e->mr = ibv_reg_mr(p->pd, e->buf, SIZE, IBV_ACCESS_LOCAL_WRITE);
	CHECK(e->mr);
	kit_until(&p->board->step, 1);
	fd.fd = kit_missing(e->buf + PAGE, PAGE);
	CHECK(!pthread_create(&t, NULL, write_from, p));
	CHECK(poll(&fd, 1, 20000) == 1, "it was not held");
	atomic_store(&p->board->step, 2);
	kit_until(&p->board->step, 3);
	zero.range = (struct uffdio_range){(uintptr_t)e->buf + PAGE, PAGE};
	CHECK(!ioctl(fd.fd, UFFDIO_ZEROPAGE, &zero));
	CHECK(!pthread_join(t, NULL));
	kit_wait(e, 20); /* it was let finish, or the rest was refused */
	atomic_store(&p->board->step, 4);
	exit(0);
}

static void held(void)
{
	int fd = mkstemp(log_path);

	CHECK(fd >= 0 && !fchmod(fd, 0666));
	close(fd);
	fd = (int)syscall(SYS_userfaultfd, O_CLOEXEC | O_NONBLOCK);
	if (fd < 0) {
		printf("held writers: SKIP, no userfaultfd for faults in system calls (%s)\n",
		       strerror(errno));
		unlink(log_path);
		return;
	}
	close(fd);
	setenv("VERBENA_LOG", log_path, 1);
	kit_pair_run("held, and goes on", (bool[2]){true, true}, held_owner, held_writer);
	killed = true;
	CHECK(!truncate(log_path, 0));
	kit_pair_run("held, and is killed", (bool[2]){true, true}, held_owner, held_writer);
	unlink(log_path);
}

int main(void)
{
	static const struct {
		const char *name;
		void (*initiator)(struct kit_pair *), (*target)(struct kit_pair *);
	} rows[] = {
	    {"boundaries", boundaries_initiator, boundaries_target},
	    {"dead keys", dead_initiator, dead_target},
	    {"flood", flood_initiator, flood_target},
	    {"empty pool", empty_initiator, empty_target},
	    {"shared domain", shared_initiator, shared_target},
	};
	char name[64];

	for (unsigned i = 0; i < sizeof rows / sizeof rows[0]; i++)
		for (int on = 1; on >= 0; on--) {
			snprintf(name, sizeof name, "%s, direct %s", rows[i].name, on ? "on" : "off");
			kit_pair_run(name, (bool[2]){on, on}, rows[i].initiator, rows[i].target);
		}
	mapped = true;
	kit_pair_run("flood of mapped memory", (bool[2]){true, true}, flood_initiator, flood_target);
	held();
	return 0;
}
