/* Taking a window back waits for a user that does not go on, in its queue and nowhere else.  A writer is held
 * in the middle of its WRITE through a window, by a page of its own that is missing (userfaultfd): a local
 * invalidate and a bind do not complete, the region stays, everything else goes on; when the writer goes on
 * or is killed they complete, and no byte is touched afterwards. */
#include <linux/userfaultfd.h>
#include <pthread.h>
#include <sys/ioctl.h>
#include <sys/syscall.h>

#include "bytes.h"
#include "pair.h"

enum { SIZE = 64 << 10, DEPTH = 16, LEN = 5000, PATTERN = 0x5a, RW = IBV_ACCESS_REMOTE_WRITE };

enum way { LOCAL_INV, REBIND, UNBIND, DEALLOC };

static enum way way;
static bool killed; /* the writer is, else it gets its page */

static uint32_t bind(struct kit_end *e, struct ibv_mw *mw, struct ibv_mr *mr, void *at, uint32_t len)
{
	struct ibv_mw_bind_info info = {
	    .mr = mr, .addr = (uintptr_t)at, .length = len, .mw_access_flags = RW};
	struct ibv_mw_bind b = {.wr_id = 7, .send_flags = IBV_SEND_SIGNALED, .bind_info = info};
	struct ibv_send_wr wr = {.wr_id = 7,
				 .opcode = IBV_WR_BIND_MW,
				 .send_flags = IBV_SEND_SIGNALED,
				 .bind_mw = {.mw = mw, .rkey = ibv_inc_rkey(mw->rkey), .bind_info = info}},
			   *bad;

	if (mw->type == IBV_MW_TYPE_1) {
		CHECK(!ibv_bind_mw(e->qp, mw, &b));
		return mw->rkey;
	}
	CHECK(!ibv_post_send(e->qp, &wr, &bad));
	return wr.bind_mw.rkey;
}

static void done(struct kit_end *e)
{
	struct ibv_wc wc = kit_wait(e, 20);

	CHECK_EQ(wc.status, IBV_WC_SUCCESS);
	CHECK(wc.wr_id == 7);
}

/* A message each way on the other queue pair, which takes three steps. */
static void still_works(struct kit_pair *p, int step)
{
	struct kit_end *e = &p->end[1];

	CHECK(!kit_recv(e, 1, 0, 0));
	kit_until(&p->board->step, step);
	atomic_store(&p->board->step, step + 1);
	kit_until(&p->board->step, step + 2);
	CHECK(!kit_post(e, IBV_WR_SEND, 2, 0, 0, NULL, 0));
	for (int i = 0; i < 2; i++)
		CHECK_EQ(kit_wait(e, 20).status, IBV_WC_SUCCESS);
}

struct dealloc {
	struct ibv_mw *mw;
	_Atomic bool done;
};

static void *dealloc(void *arg)
{
	struct dealloc *d = arg;

	CHECK(!ibv_dealloc_mw(d->mw));
	atomic_store(&d->done, true);
	return NULL;
}

static void owner(struct kit_pair *p)
{
	struct ibv_send_wr inv = {.wr_id = 7, .opcode = IBV_WR_LOCAL_INV, .send_flags = IBV_SEND_SIGNALED};
	struct ibv_send_wr *bad;
	bool type_1 = way == REBIND || way == UNBIND;
	struct kit_end *e = &p->end[0];
	struct dealloc d = {0};
	uint8_t *area = calloc(1, SIZE);
	struct ibv_mr *mr, *other;
	struct ibv_mw *mw;
	struct ibv_wc wc;
	pthread_t thread;

	kit_pair_open(p, DEPTH, SIZE);
	mr = ibv_reg_mr(p->pd, area, SIZE, IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_MW_BIND);
	other = ibv_reg_mr(p->pd, e->buf, SIZE, IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_MW_BIND);
	d.mw = mw = ibv_alloc_mw(p->pd, type_1 ? IBV_MW_TYPE_1 : IBV_MW_TYPE_2);
	CHECK(mr && other && mw);
	inv.invalidate_rkey = bind(e, mw, mr, area, SIZE);
	done(e);
	atomic_store(&p->board->number[0], inv.invalidate_rkey);
	atomic_store(&p->board->number[1], (int64_t)(uintptr_t)area);
	kit_until(&p->board->step, 1); /* the writer is held */
	if (way == DEALLOC)
		CHECK(!pthread_create(&thread, NULL, dealloc, &d));
	else if (type_1)
		bind(e, mw, other, e->buf, way == REBIND ? 64 : 0);
	else
		CHECK(!ibv_post_send(e->qp, &inv, &bad));
	kit_nap(50);
	atomic_store(&p->board->step, 2);
	still_works(p, 2);
	CHECK(ibv_dereg_mr(mr) == EBUSY); /* rule 49 */
	kit_nap(20);
	still_works(p, 4);
	CHECK(!ibv_poll_cq(e->cq, 1, &wc) && !atomic_load(&d.done), "it did not wait");
	CHECK(ibv_dereg_mr(mr) == EBUSY);
	if (killed)
		CHECK(!kill(p->target, SIGKILL));
	else
		atomic_store(&p->board->step, 7);
	if (way == DEALLOC)
		CHECK(!pthread_join(thread, NULL));
	else
		done(e); /* also if the QP has failed, with its peer */
	memset(area, PATTERN, SIZE);
	CHECK(!ibv_dereg_mr(mr));
	if (killed)
		kit_reap(p->target);
	else
		kit_until(&p->board->step, 8);
	for (int i = 0; i < SIZE; i++)
		CHECK(area[i] == PATTERN, "byte %d was touched afterwards", i);
	if (way != DEALLOC)
		CHECK(!ibv_dealloc_mw(mw));
	CHECK(!ibv_dereg_mr(other));
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
	struct kit_card to = {.rkey = (uint32_t)atomic_load(&p->board->number[0]),
			      .addr = (uint64_t)atomic_load(&p->board->number[1])};

	CHECK(!kit_post(&p->end[0], IBV_WR_RDMA_WRITE, 1, PAGE - 100, LEN, &to, 0));
	return NULL;
}

static void writer(struct kit_pair *p)
{
	struct uffdio_zeropage zero = {0};
	struct pollfd fd = {.events = POLLIN};
	struct kit_end *e = &p->end[0];
	pthread_t thread;

	kit_pair_open(p, DEPTH, SIZE);
	/* a page of ours in the middle of the message: the first bytes are copied, then it stops */
	CHECK(!ibv_dereg_mr(e->mr));
	free(e->buf);
	e->buf = mmap(NULL, SIZE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	CHECK(e->buf != MAP_FAILED);
	e->mr = ibv_reg_mr(p->pd, e->buf, SIZE, IBV_ACCESS_LOCAL_WRITE);
	CHECK(e->mr);
	while (!atomic_load(&p->board->number[1]))
		kit_nap(1);
	fd.fd = kit_missing(e->buf + PAGE, PAGE);
	CHECK(!pthread_create(&thread, NULL, write_from, p));
	CHECK(poll(&fd, 1, 20000) == 1, "it was not held");
	atomic_store(&p->board->step, 1);
	for (int i = 0; i < 2; i++) {
		kit_until(&p->board->step, 3 + 2 * i);
		CHECK(!kit_recv(&p->end[1], 1, 0, 0));
		CHECK(!kit_post(&p->end[1], IBV_WR_SEND, 2, 0, 0, NULL, 0));
		atomic_store(&p->board->step, 4 + 2 * i);
		for (int k = 0; k < 2; k++)
			CHECK_EQ(kit_wait(&p->end[1], 20).status, IBV_WC_SUCCESS);
	}
	kit_until(&p->board->step, 7);
	zero.range = (struct uffdio_range){(uintptr_t)e->buf + PAGE, PAGE};
	CHECK(!ioctl(fd.fd, UFFDIO_ZEROPAGE, &zero));
	CHECK(!pthread_join(thread, NULL));
	CHECK(kit_wait(e, 20).wr_id == 1); /* it was let finish, or the rest was refused */
	atomic_store(&p->board->step, 8);
	close(fd.fd);
	exit(0);
}

int main(void)
{
	static const bool both[] = {true, true};
	static const struct {
		const char *name;
		enum way way;
		bool killed;
	} rows[] = {
	    {"local invalidate, the writer goes on", LOCAL_INV, false},
	    {"local invalidate, the writer is killed", LOCAL_INV, true},
	    {"bound elsewhere, the writer goes on", REBIND, false},
	    {"bound elsewhere, the writer is killed", REBIND, true},
	    {"unbound, the writer goes on", UNBIND, false},
	    {"ibv_dealloc_mw, the writer goes on", DEALLOC, false},
	    {"ibv_dealloc_mw, the writer is killed", DEALLOC, true},
	};
	int fd = (int)syscall(SYS_userfaultfd, O_CLOEXEC | O_NONBLOCK);

	if (fd < 0) {
		printf("SKIP: no userfaultfd for faults in system calls (%s)\n", strerror(errno));
		return KIT_SKIP;
	}
	close(fd);
	for (unsigned i = 0; i < sizeof rows / sizeof rows[0]; i++) {
		way = rows[i].way;
		killed = rows[i].killed;
		CHECK(kit_pair_run(rows[i].name, both, owner, writer));
	}
	return 0;
}
