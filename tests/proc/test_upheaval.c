/* In the middle of the traffic its target takes a region back, unmaps or truncates it, changes what its QP
 * permits, or takes the QP to ERR or RESET.  Then both connect again and go on, over and over.
 *
 * In each epoch the initiator's requests go to places that follow one another, so what the target finds there
 * tells how far they came: the first ones whole, as many at least as were completed, then perhaps one in
 * part, and nothing behind that.  The completions say the same: successes, one failure that fits the cause,
 * flushes.
 *
 *     proc-upheaval [EPOCHS]      for each of the memories and modes; 40, in make soak 1,500 */
#include <sched.h>
#include <sys/ipc.h>
#include <sys/shm.h>

#include "pair.h"

enum { REGION = 4 << 20, DEPTH = 64, LONGEST = 200000, MAX_OPS = 400, RECVS = MAX_OPS };

enum upheaval { NOTHING, DEREG, ACCESS, ERR, RESET, UNMAP, TRUNCATE, PROTECT, UPHEAVALS };
static const char *const names[] = {"nothing", "dereg", "access",   "ERR",
				    "RESET",   "unmap", "truncate", "protect"};
enum memory { PRIVATE, MEMFD, SHM_FILE, SYSV, MEMORIES };
static const char *const memories[] = {"private", "memfd", "/dev/shm", "SysV"};

struct board {
	struct kit_card card[2];
	_Atomic int step[2];
	enum upheaval what;
	/* the initiator's, of the epoch in hand */
	struct {
		uint32_t at, len;
		bool imm;
	} op[MAX_OPS];
	uint32_t posted, succeeded;
	_Atomic uint32_t first; /* requests completed so far, for the target to choose its moment */
	enum ibv_wc_status status;
	uint64_t epochs[UPHEAVALS], broke[UPHEAVALS];
};

static struct board *board;
static int me, at_step, epochs = 40;
static enum memory memory;
static uint64_t rng;

static void meet(void)
{
	double end = kit_now() + 60;

	at_step++;
	atomic_store(&board->step[me], at_step);
	while (atomic_load(&board->step[!me]) < at_step) {
		CHECK(kit_now() < end, "waited for step %d", at_step);
		sched_yield();
	}
}

static uint8_t value_of(uint32_t k)
{
	return (uint8_t)(1 + k % 250);
}

/* The end without a region; the QP in INIT. */
static void to_init(struct kit_end *e)
{
	struct ibv_qp_attr a = {.qp_state = IBV_QPS_RESET};
	struct ibv_wc wc;

	CHECK(!ibv_modify_qp(e->qp, &a, IBV_QP_STATE));
	while (ibv_poll_cq(e->cq, 1, &wc) > 0)
		;
	a = (struct ibv_qp_attr){.qp_state = IBV_QPS_INIT, .port_num = 1, .qp_access_flags = KIT_ALL};
	CHECK(
	    !ibv_modify_qp(e->qp, &a, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS));
	e->card.psn = kit_below(&rng, 1 << 24);
}

static bool fits(enum upheaval what, enum ibv_wc_status s)
{
	switch (what) {
	case DEREG:
		return s == IBV_WC_REM_ACCESS_ERR;
	case ACCESS:
		return s == IBV_WC_REM_INV_REQ_ERR;
	case ERR:
	case RESET:
		return s == IBV_WC_RETRY_EXC_ERR;
	case UNMAP: /* what a program does to the mapping: pages may be old, new, or none */
	case TRUNCATE:
	case PROTECT:
		return s == IBV_WC_REM_ACCESS_ERR || s == IBV_WC_REM_OP_ERR || s == IBV_WC_REM_INV_REQ_ERR;
	default:
		return false;
	}
}

static void post(struct kit_end *e, const struct kit_card *peer, uint32_t k, uint32_t *at)
{
	uint32_t len = kit_below(&rng, 3) ? 1 + kit_below(&rng, 3000) : 1 + kit_below(&rng, LONGEST),
		 first = kit_below(&rng, len + 1);
	uint8_t *from = e->buf + (size_t)(k % DEPTH) * LONGEST;
	struct ibv_sge sge[2] = {{(uintptr_t)from, first, e->mr->lkey},
				 {(uintptr_t)from + first, len - first, e->mr->lkey}};
	struct ibv_send_wr wr = {.wr_id = k,
				 .sg_list = sge,
				 .num_sge = 2,
				 .opcode =
				     kit_below(&rng, 4) ? IBV_WR_RDMA_WRITE : IBV_WR_RDMA_WRITE_WITH_IMM,
				 .send_flags = IBV_SEND_SIGNALED,
				 .imm_data = k},
			   *bad;

	memset(from, value_of(k), len);
	wr.wr.rdma.remote_addr = peer->addr + *at;
	wr.wr.rdma.rkey = peer->rkey;
	board->op[k].at = *at;
	board->op[k].len = len;
	board->op[k].imm = wr.opcode == IBV_WR_RDMA_WRITE_WITH_IMM;
	*at += len + kit_below(&rng, 9);
	CHECK(!ibv_post_send(e->qp, &wr, &bad));
}

static void initiator_epoch(struct kit_end *e)
{
	const struct kit_card *peer = &board->card[1];
	uint32_t at = 0, k = 0, done = 0, good = 0;
	struct ibv_wc wc;
	double end;

	to_init(e);
	board->card[0] = e->card;
	board->status = IBV_WC_SUCCESS;
	atomic_store(&board->first, 0);
	meet();
	/* where retries will run out, soon; elsewhere not because the machine is busy */
	kit_connect_with(e, peer, 12, board->what == ERR || board->what == RESET ? 3 : 7);
	meet();
	end = kit_now() + 60;
	while (done < k || (!board->status && k < MAX_OPS && at + LONGEST + 9 < REGION)) {
		int n;

		while (!board->status && k - done < DEPTH && k < MAX_OPS && at + LONGEST + 9 < REGION &&
		       kit_below(&rng, 8))
			post(e, peer, k++, &at);
		n = ibv_poll_cq(e->cq, 1, &wc);
		CHECK(n >= 0 && kit_now() < end, "no completion");
		if (!n)
			continue;
		CHECK(wc.wr_id == done, "request %" PRIu64 ", not %u", wc.wr_id, done);
		done++;
		if (wc.status == IBV_WC_SUCCESS) {
			CHECK(!board->status, "a success behind a failure");
			good = done;
			atomic_store(&board->first, good);
		} else if (!board->status) {
			board->status = wc.status;
			CHECK(fits(board->what, wc.status), "%s: %s", names[board->what],
			      ibv_wc_status_str(wc.status));
		} else {
			CHECK(wc.status == IBV_WC_WR_FLUSH_ERR, "%s", ibv_wc_status_str(wc.status));
		}
	}
	board->posted = k;
	board->succeeded = good;
	meet();
	meet();
}

/* The target's memory. */
struct mem {
	uint8_t *p;
	int fd;
	char name[64];
};

static void mem_make(struct mem *m)
{
	int id;

	m->fd = -1;
	m->name[0] = 0;
	switch (memory) {
	case MEMFD:
		m->fd = memfd_create("region", 0);
		break;
	case SHM_FILE:
		snprintf(m->name, sizeof m->name, "/dev/shm/upheaval-%d", (int)getpid());
		m->fd = open(m->name, O_RDWR | O_CREAT | O_EXCL, 0600);
		break;
	case SYSV:
		id = shmget(IPC_PRIVATE, REGION, IPC_CREAT | 0600);
		CHECK(id >= 0);
		m->p = shmat(id, NULL, 0);
		CHECK(m->p != (void *)-1 && !shmctl(id, IPC_RMID, NULL));
		return;
	default:
		m->p = mmap(NULL, REGION, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
		CHECK(m->p != MAP_FAILED);
		return;
	}
	CHECK(m->fd >= 0 && !ftruncate(m->fd, REGION));
	m->p = mmap(NULL, REGION, PROT_READ | PROT_WRITE, MAP_SHARED, m->fd, 0);
	CHECK(m->p != MAP_FAILED);
}

static void mem_drop(struct mem *m)
{
	if (memory == SYSV)
		shmdt(m->p);
	else
		munmap(m->p, REGION);
	if (m->name[0])
		unlink(m->name);
	if (m->fd >= 0)
		close(m->fd);
}

static enum upheaval choose(void)
{
	enum upheaval what = (enum upheaval)kit_below(&rng, UPHEAVALS);

	if (what == TRUNCATE && memory != MEMFD && memory != SHM_FILE)
		what = UNMAP;
	return what;
}

static struct ibv_mr *do_it(struct kit_end *e, struct ibv_mr *mr, struct mem *m)
{
	struct ibv_qp_attr a = {.qp_state = IBV_QPS_ERR};

	switch (board->what) {
	case DEREG:
		CHECK(!ibv_dereg_mr(mr));
		return NULL;
	case ACCESS:
		a.qp_access_flags = IBV_ACCESS_REMOTE_READ;
		CHECK(!ibv_modify_qp(e->qp, &a, IBV_QP_ACCESS_FLAGS) || e->qp->state == IBV_QPS_ERR);
		break;
	case RESET:
		a.qp_state = IBV_QPS_RESET; /* fallthrough */
	case ERR:
		CHECK(!ibv_modify_qp(e->qp, &a, IBV_QP_STATE));
		break;
	case UNMAP: /* the second half, so that what came before stays to be looked at */
		CHECK(!munmap(m->p + REGION / 2, REGION / 2));
		break;
	case TRUNCATE:
		CHECK(!ftruncate(m->fd, REGION / 2));
		break;
	case PROTECT:
		CHECK(!mprotect(m->p, REGION, PROT_READ));
		break;
	default:
		break;
	}
	return mr;
}

/* What is where, in the part that is still there: a beginning that is whole, perhaps one in part, then
 * nothing. */
static void look(const uint8_t *p, uint32_t limit)
{
	uint32_t whole = 0;
	bool over = false;

	for (uint32_t k = 0; k < board->posted; k++) {
		uint32_t at = board->op[k].at, len = board->op[k].len, n = 0;

		if (at + len > limit)
			break;
		for (uint32_t i = 0; i < len; i++) {
			CHECK(p[at + i] == 0 || p[at + i] == value_of(k), "%s: byte %u of request %u is %u",
			      names[board->what], i, k, p[at + i]);
			n += p[at + i] != 0;
		}
		if (n == len && !over) {
			whole++;
			continue;
		}
		CHECK(!over || !n, "%s: request %u has come although one before it has not",
		      names[board->what], k);
		CHECK(k >= board->succeeded, "%s: request %u of %u that succeeded is not there",
		      names[board->what], k, board->succeeded);
		over = true;
	}
	(void)whole;
}

static void target_epoch(struct kit_end *e, struct ibv_pd *pd)
{
	uint32_t got = 0, imms = 0, when = kit_below(&rng, 60), limit = REGION;
	struct ibv_mr *mr;
	struct ibv_wc wc;
	struct mem m;

	mem_make(&m);
	mr = ibv_reg_mr(pd, m.p, REGION, KIT_ALL);
	CHECK(mr);
	to_init(e);
	for (int i = 0; i < RECVS; i++)
		CHECK(!kit_recv(e, (uint64_t)i, 0, 0));
	board->what = choose();
	board->card[1] = e->card;
	board->card[1].rkey = mr->rkey;
	board->card[1].addr = (uintptr_t)m.p;
	meet();
	kit_connect(e, &board->card[0]);
	meet();
	while (atomic_load(&board->step[0]) == at_step) { /* its requests are not all complete */
		if (board->what && when != UINT32_MAX && atomic_load(&board->first) >= when) {
			for (uint32_t i = kit_below(&rng, 20000); i; i--)
				__asm__ volatile("" ::: "memory");
			mr = do_it(e, mr, &m);
			when = UINT32_MAX;
		}
		if (ibv_poll_cq(e->cq, 1, &wc) > 0 && wc.status == IBV_WC_SUCCESS) {
			CHECK(wc.wr_id == got, "receive %" PRIu64, wc.wr_id);
			while (!board->op[imms].imm)
				imms++;
			CHECK(wc.imm_data == imms, "immediate %u, not %u", wc.imm_data, imms);
			imms++;
			got++;
		}
	}
	meet();
	if (board->what == UNMAP || board->what == TRUNCATE)
		limit = when == UINT32_MAX ? REGION / 2 : REGION;
	look(m.p, limit);
	for (uint32_t k = 0; k < board->succeeded && board->what != RESET;
	     k++) /* its receives may be flushed */
		CHECK(!board->op[k].imm || k < imms || ibv_poll_cq(e->cq, 1, &wc) > 0,
		      "an immediate is missing");
	board->epochs[board->what]++;
	board->broke[board->what] += board->status != IBV_WC_SUCCESS;
	CHECK(!mr || !ibv_dereg_mr(mr));
	mem_drop(&m);
	meet();
}

static void end_of(bool on)
{
	struct ibv_context *ctx;
	struct ibv_pd *pd;
	struct kit_end e;

	alarm(3600);
	setenv("VERBENA_DIRECT", on ? "on" : "off", 1);
	rng = (uint64_t)getpid() << 20 ^ (uint64_t)clock();
	ctx = kit_open();
	pd = ibv_alloc_pd(ctx);
	CHECK(pd);
	kit_end_open(&e, pd, RECVS, (size_t)DEPTH * LONGEST);
	for (int i = 0; i < epochs; i++) {
		if (me)
			target_epoch(&e, pd);
		else
			initiator_epoch(&e);
	}
	kit_end_close(&e);
	CHECK(!ibv_dealloc_pd(pd) && !ibv_close_device(ctx));
	exit(0);
}

int main(int argc, char **argv)
{
	static const struct {
		enum memory memory;
		bool on[2];
	} rows[] = {
	    {PRIVATE, {true, true}}, {PRIVATE, {false, false}}, {PRIVATE, {true, false}},
	    {MEMFD, {true, true}},   {MEMFD, {false, true}},	{SHM_FILE, {true, true}},
	    {SYSV, {true, true}},
	};
	pid_t pid[2];

	if (argc > 1 || getenv("VERBENA_SOAK"))
		epochs = argc > 1 ? atoi(argv[1]) : 1500;
	board = kit_shared(sizeof *board);
	for (unsigned i = 0; i < sizeof rows / sizeof rows[0]; i++) {
		memory = rows[i].memory;
		memset(board, 0, sizeof *board);
		for (me = 0; me < 2; me++) {
			pid[me] = kit_fork();
			if (!pid[me])
				end_of(rows[i].on[me]);
		}
		for (int k = 0; k < 2; k++)
			CHECK(kit_reap(pid[k]) == 0, "%s memory, direct %d and %d: end %d", memories[memory],
			      rows[i].on[0], rows[i].on[1], k);
		printf("%s memory, direct %s and %s:", memories[memory], rows[i].on[0] ? "on" : "off",
		       rows[i].on[1] ? "on" : "off");
		for (int k = 0; k < UPHEAVALS; k++)
			printf(" %s %d/%d", names[k], (int)board->broke[k], (int)board->epochs[k]);
		printf("\n");
	}
	return 0;
}
