/* Shared protection domains between processes: a key that was made through one instance works on queue pairs
 * of another, whichever process owns the memory, in every role, over the ring and beside direct placement.
 *
 * Four processes: a driver, whose QP is in the shared domain; a partner at the other end of that QP, in a
 * domain of its own; an owner of memory, which does nothing and may be stopped; and, in some cases, a third
 * process that made the domain and is gone.  The memory is mapped in all of them, so that the driver sees
 * what became of it. */
#include <errno.h>
#include <fcntl.h>

#include "bytes.h"
#include "kit.h"
#include "pair.h"

enum { AREA = 1 << 20, OFF = 4096, LEN = 100000, KEY = 4711 };
enum kind { PLAIN, OPENABLE, KINDS }; /* memory that the kernel copies, and a memfd that peers map */

/* What a process is asked to do. */
enum what { REST, POST, RECV, WAIT, DEREG, DEALLOC, SHARE, LEAVE };
struct mail {
	_Atomic int asked, done;
	enum what what;
	enum ibv_wr_opcode op;
	size_t at;
	uint32_t len, rkey;
	uint64_t raddr, a, b; /* atomics: compare or add, swap */
	int result;	      /* of the call, or completion status */
	uint64_t value;
};

enum who { DRIVER, PARTNER, OWNER, MAKER, ALL };
struct board {
	_Atomic int shared, ready[ALL];
	struct ibv_shpd shpd;
	struct kit_card card[2]; /* driver, partner */
	struct {
		uint32_t lkey, rkey;
		uint64_t addr;
	} mem[KINDS]; /* the owner's */
	struct mail mail[ALL];
};

struct self {
	enum who me;
	struct ibv_context *ctx;
	struct ibv_pd *pd;
	struct kit_end end;
	struct ibv_mr *mr[KINDS];
};

static struct board *board;
static uint8_t *area[KINDS]; /* the owner's memory, mapped in all processes */
static pid_t pids[ALL];
static enum who maker;
static uint32_t zero_handle;

static void wait_done(enum who w)
{
	kit_until(&board->mail[w].done, atomic_load(&board->mail[w].asked));
}

static struct mail *ask_begin(enum who w, struct mail m)
{
	struct mail *to = &board->mail[w];
	int n = atomic_load(&to->asked);

	CHECK(atomic_load(&to->done) == n);
	m.asked = m.done = n;
	to->what = m.what;
	to->op = m.op;
	to->at = m.at;
	to->len = m.len;
	to->rkey = m.rkey;
	to->raddr = m.raddr;
	to->a = m.a;
	to->b = m.b;
	atomic_store(&to->asked, n + 1);
	return to;
}

static struct mail *ask(enum who w, struct mail m)
{
	struct mail *to = ask_begin(w, m);

	wait_done(w);
	return to;
}

static int post(struct kit_end *e, const struct mail *m, uint32_t lkey, uint64_t addr)
{
	struct ibv_sge sge = {addr, m->len, lkey};
	struct ibv_send_wr *bad, wr = {
				     .sg_list = &sge,
				     .num_sge = 1,
				     .opcode = m->op,
				     .send_flags = IBV_SEND_SIGNALED,
				 };

	if (m->op == IBV_WR_ATOMIC_FETCH_AND_ADD || m->op == IBV_WR_ATOMIC_CMP_AND_SWP) {
		wr.wr.atomic.remote_addr = m->raddr;
		wr.wr.atomic.rkey = m->rkey;
		wr.wr.atomic.compare_add = m->a;
		wr.wr.atomic.swap = m->b;
	} else {
		wr.wr.rdma.remote_addr = m->raddr;
		wr.wr.rdma.rkey = m->rkey;
	}
	return ibv_post_send(e->qp, &wr, &bad);
}

static struct ibv_pd *instance(struct self *s)
{
	struct ibv_pd *pd;

	if (maker == s->me) {
		pd = ibv_alloc_pd(s->ctx);
		CHECK(pd && ibv_alloc_shpd(pd, KEY, &board->shpd) == &board->shpd);
		CHECK(!ibv_alloc_shpd(pd, KEY, &board->shpd) && errno == EINVAL, "twice: %d", errno);
		atomic_store(&board->shared, 1);
		return pd;
	}
	kit_until(&board->shared, 1);
	pd = ibv_share_pd(s->ctx, &board->shpd, KEY);
	CHECK(pd, "ibv_share_pd: %s", strerror(errno));
	return pd;
}

static int serve(struct self *s, struct mail *m)
{
	switch (m->what) {
	case POST:
		if (post(&s->end, m, s->end.mr->lkey, (uintptr_t)s->end.buf + m->at))
			return -1;
		return (int)kit_wait(&s->end, 20).status;
	case RECV:
		return kit_recv(&s->end, 1, m->at, m->len);
	case WAIT:
		return (int)kit_wait(&s->end, 20).status;
	case DEREG:
		return ibv_dereg_mr(s->mr[m->at]);
	case DEALLOC:
		return ibv_dealloc_pd(s->pd);
	case SHARE:
		s->pd = ibv_share_pd(s->ctx, &board->shpd, m->a);
		return s->pd ? 0 : errno;
	default:
		return 0;
	}
}

static void run(struct self *s)
{
	struct mail *m = &board->mail[s->me];

	for (;;) {
		kit_until(&m->asked, atomic_load(&m->done) + 1);
		m->result = serve(s, m);
		atomic_fetch_add(&m->done, 1);
		if (m->what == LEAVE)
			return;
	}
}

static void be_owner(struct self *s)
{
	s->pd = instance(s);
	for (int k = 0; k < KINDS; k++) {
		s->mr[k] = ibv_reg_mr(s->pd, area[k], AREA, KIT_ALL);
		CHECK(s->mr[k], "ibv_reg_mr: %s", strerror(errno));
		board->mem[k].lkey = s->mr[k]->lkey;
		board->mem[k].rkey = s->mr[k]->rkey;
		board->mem[k].addr = (uintptr_t)area[k];
	}
	CHECK(ibv_dealloc_pd(s->pd) == EBUSY, "an instance with children");
	atomic_store(&board->ready[OWNER], 1);
	run(s);
}

/* Nothing is posted before its receive request, so no retry for want of one is needed: rnr_retry 0. */
static void connect_to(struct kit_end *e, const struct kit_card *peer)
{
	struct ibv_qp_attr a = {.qp_state = IBV_QPS_RTS,
				.sq_psn = e->card.psn,
				.timeout = 14,
				.retry_cnt = 7,
				.rnr_retry = 0,
				.max_rd_atomic = 4};

	kit_to_rtr(e, peer);
	CHECK(!ibv_modify_qp(e->qp, &a,
			     IBV_QP_STATE | IBV_QP_SQ_PSN | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT |
				 IBV_QP_RNR_RETRY | IBV_QP_MAX_QP_RD_ATOMIC));
}

static void connect_ends(struct self *s)
{
	int other = s->me == DRIVER ? PARTNER : DRIVER;

	board->card[s->me] = s->end.card;
	atomic_store(&board->ready[s->me], 1);
	kit_until(&board->ready[other], 1);
	connect_to(&s->end, &board->card[other]);
}

static void be_partner(struct self *s)
{
	s->pd = ibv_alloc_pd(s->ctx);
	kit_end_open(&s->end, s->pd, 64, AREA);
	connect_ends(s);
	run(s);
	kit_end_close(&s->end);
}

static void be_maker(struct self *s)
{
	s->pd = instance(s);
	kit_until(&board->ready[DRIVER], 1);
	kit_until(&board->ready[OWNER], 1);
	if (zero_handle) { /* leaves by itself, else dies */
		CHECK(!ibv_dealloc_pd(s->pd) && !ibv_close_device(s->ctx));
		exit(0);
	}
	kill(getpid(), SIGKILL);
}

static void start(enum who w, const bool direct[2])
{
	struct self s = {.me = w};

	pids[w] = kit_fork();
	if (pids[w])
		return;
	alarm(120);
	setenv("VERBENA_DIRECT", direct[w == PARTNER] ? "on" : "off", 1);
	s.ctx = kit_open();
	if (w == PARTNER)
		be_partner(&s);
	else if (w == OWNER)
		be_owner(&s);
	else
		be_maker(&s);
	exit(0);
}

static void is_filled(const uint8_t *p, size_t n, unsigned seed, const char *what)
{
	CHECK(kit_filled(p, n, seed) == n, "%s: byte %zu", what, kit_filled(p, n, seed));
}

static int status_of(const struct mail *m)
{
	return m->result;
}

/* The partner reaches the owner's memory through the driver's QP. */
static void remote_roles(enum kind k, unsigned seed)
{
	uint64_t addr = board->mem[k].addr + OFF, *word = (uint64_t *)(void *)(area[k] + OFF);
	struct mail w = {.what = POST,
			 .op = IBV_WR_RDMA_WRITE,
			 .at = 0,
			 .len = LEN,
			 .rkey = board->mem[k].rkey,
			 .raddr = addr};
	struct mail r = w, a = w;
	int st;

	a.op = IBV_WR_ATOMIC_FETCH_AND_ADD;
	a.len = 8;
	a.a = 2;
	*word = 40;
	if (k != PLAIN) { /* nobody has asked for the memory before */
		st = status_of(ask(PARTNER, a));
		CHECK(st == IBV_WC_SUCCESS, "atomic: %s", ibv_wc_status_str((enum ibv_wc_status)st));
		CHECK(*word == 42, "%" PRIu64, *word);
	}
	/* The partner's bytes come from a SEND of the driver's, see local_roles(); here it reads first. */
	kit_fill(area[k] + OFF, LEN, seed);
	r.op = IBV_WR_RDMA_READ;
	r.at = 200000;
	st = status_of(ask(PARTNER, r));
	CHECK(st == IBV_WC_SUCCESS, "READ: %s", ibv_wc_status_str((enum ibv_wc_status)st));
	memset(area[k] + OFF, 0, LEN);
	w.at = 200000;
	st = status_of(ask(PARTNER, w));
	CHECK(st == IBV_WC_SUCCESS, "WRITE: %s", ibv_wc_status_str((enum ibv_wc_status)st));
	is_filled(area[k] + OFF, LEN, seed, "WRITE");
	w.len = 3;
	for (unsigned i = 0; i < 20; i++) { /* often enough to be mapped, where that is possible */
		w.raddr = addr + 5 + i;
		CHECK(status_of(ask(PARTNER, w)) == IBV_WC_SUCCESS);
		CHECK(!memcmp(area[k] + OFF + 5 + i,
			      &(uint8_t[]){(uint8_t)seed, (uint8_t)(seed + 7), (uint8_t)(seed + 14)}, 3));
	}
	if (k == PLAIN)
		return;
	*word = 42;
	a.op = IBV_WR_ATOMIC_CMP_AND_SWP;
	a.a = 42;
	a.b = 77;
	CHECK(status_of(ask(PARTNER, a)) == IBV_WC_SUCCESS && *word == 77);
}

static int driver_post(struct self *s, struct mail m, enum kind k, size_t at)
{
	CHECK(!post(&s->end, &m, board->mem[k].lkey, board->mem[k].addr + at));
	return (int)kit_wait(&s->end, 20).status;
}

static void ok(int status, const char *what)
{
	CHECK(status == IBV_WC_SUCCESS, "%s: %s", what, ibv_wc_status_str((enum ibv_wc_status)status));
}

/* The driver uses the owner's memory as its own. */
static void local_roles(struct self *s, enum kind k, unsigned seed)
{
	const struct kit_card *p = &board->card[PARTNER];
	struct ibv_sge sge = {board->mem[k].addr + 200001, LEN, board->mem[k].lkey};
	struct ibv_recv_wr wr = {.sg_list = &sge, .num_sge = 1}, *bad;
	uint64_t *word = (uint64_t *)(void *)(area[k] + OFF);
	struct mail m = {.len = LEN, .rkey = p->rkey, .raddr = p->addr + 8};

	/* SEND gathers, RECV scatters: there and back */
	kit_fill(area[k] + OFF + 1, LEN, seed);
	CHECK(!ask(PARTNER, (struct mail){.what = RECV, .at = 300000, .len = LEN})->result);
	m.op = IBV_WR_SEND;
	ok(driver_post(s, m, k, OFF + 1), "SEND");
	ok(status_of(ask(PARTNER, (struct mail){.what = WAIT})), "its arrival");
	CHECK(!ibv_post_recv(s->end.qp, &wr, &bad));
	ok(status_of(ask(PARTNER, (struct mail){.what = POST, .op = IBV_WR_SEND, .at = 300000, .len = LEN})),
	   "SEND back");
	ok((int)kit_wait(&s->end, 20).status, "RECV");
	is_filled(area[k] + 200001, LEN, seed, "RECV");
	/* WRITE source, READ sink */
	m.op = IBV_WR_RDMA_WRITE;
	ok(driver_post(s, m, k, OFF + 1), "WRITE");
	memset(area[k], 0, AREA);
	m.op = IBV_WR_RDMA_READ;
	ok(driver_post(s, m, k, 400003), "READ");
	is_filled(area[k] + 400003, LEN, seed, "READ");
	/* where an atomic's result goes */
	m.len = 8;
	m.op = IBV_WR_ATOMIC_FETCH_AND_ADD;
	m.a = 1;
	ok(driver_post(s, m, k, OFF), "atomic");
	CHECK(((const uint8_t *)word)[0] == (uint8_t)seed &&
	      ((const uint8_t *)word)[7] == (uint8_t)(seed + 49));
}

static void reset_qp(struct self *s)
{
	struct ibv_qp_attr a = {.qp_state = IBV_QPS_RESET};

	CHECK(!ibv_modify_qp(s->end.qp, &a, IBV_QP_STATE));
}

/* Nobody who does not hold the domain, and nobody who guesses. */
static void wrong_calls(struct self *s)
{
	struct ibv_shpd none = {.handle = board->shpd.handle ^ 0x5};
	struct ibv_pd *own = ibv_alloc_pd(s->ctx), *again;
	struct ibv_mr *mr;

	errno = 0;
	CHECK(!ibv_share_pd(s->ctx, &none, KEY) && errno == ENOENT, "unknown handle: %d", errno);
	none.handle = 0; /* what a program has that copied none */
	CHECK(!ibv_share_pd(s->ctx, &none, KEY) && errno == ENOENT, "handle 0: %d", errno);
	none.handle = UINT32_MAX;
	CHECK(!ibv_share_pd(s->ctx, &none, KEY) && errno == ENOENT, "the last handle: %d", errno);
	CHECK(!ibv_share_pd(s->ctx, &board->shpd, KEY + 1) && errno == EINVAL, "wrong key: %d", errno);
	CHECK(!ibv_share_pd(s->ctx, NULL, KEY));
	CHECK_EQ(errno, EINVAL);
	CHECK(!ibv_alloc_shpd(s->pd, 1, &none) && errno == EINVAL, "shared already: %d", errno);
	CHECK(!ibv_alloc_shpd(NULL, 1, &none));
	CHECK_EQ(errno, EINVAL);
	/* several instances in one process, each with children of its own */
	again = ibv_share_pd(s->ctx, &board->shpd, KEY);
	CHECK(again && again->handle != s->pd->handle);
	mr = ibv_reg_mr(again, s->end.buf, 64, KIT_ALL);
	CHECK(mr && ibv_dealloc_pd(again) == EBUSY && !ibv_dereg_mr(mr) && !ibv_dealloc_pd(again));
	CHECK(!ibv_dealloc_pd(own));
}

struct plan {
	const char *name;
	enum who maker;
	bool direct[2]; /* domain's members, partner */
	bool leaves;	/* a maker of its own says goodbye, else it is killed */
	bool stop;	/* the owner is stopped while its memory is used */
};

static void drive(const struct plan *p)
{
	struct self s = {.me = DRIVER};
	int status;

	alarm(120);
	maker = p->maker;
	zero_handle = p->leaves;
	setenv("VERBENA_DIRECT", p->direct[0] ? "on" : "off", 1);
	start(OWNER, p->direct);
	start(PARTNER, p->direct);
	if (maker == MAKER)
		start(MAKER, p->direct);
	s.ctx = kit_open();
	s.pd = instance(&s);
	kit_end_open(&s.end, s.pd, 64, AREA);
	kit_until(&board->ready[OWNER], 1);
	connect_ends(&s);
	if (maker == MAKER) {
		status = kit_reap(pids[MAKER]);
		CHECK(p->leaves ? !status : WIFSIGNALED(status), "0x%x", status);
	}
	wrong_calls(&s);
	if (p->stop)
		CHECK(!kill(pids[OWNER], SIGSTOP) && waitpid(pids[OWNER], &status, WUNTRACED) == pids[OWNER]);
	for (unsigned seed = 1; seed < 4; seed++)
		for (enum kind k = 0; k < (p->stop ? OPENABLE : KINDS); k++) {
			remote_roles(k, seed * 10 + k + 100);
			local_roles(&s, k, seed * 10 + k);
		}
	if (p->stop)
		CHECK(!kill(pids[OWNER], SIGCONT));
	if (p->leaves) { /* only the owner's CPU instructions reach private memory; it ends the QP */
		status = ask(PARTNER, (struct mail){.what = POST,
						    .op = IBV_WR_ATOMIC_FETCH_AND_ADD,
						    .len = 8,
						    .rkey = board->mem[PLAIN].rkey,
						    .raddr = board->mem[PLAIN].addr})
			     ->result;
		CHECK(status == IBV_WC_REM_ACCESS_ERR, "an atomic on private memory: %d", status);
	}
	/* an instance is its own: the owner's goes, the keys with it, the driver's stays */
	for (size_t k = 0; k < KINDS; k++)
		CHECK(!ask(OWNER, (struct mail){.what = DEREG, .at = k})->result);
	CHECK(!ask(OWNER, (struct mail){.what = DEALLOC})->result);
	status = ask(PARTNER, (struct mail){.what = POST,
					    .op = IBV_WR_RDMA_READ,
					    .len = 8,
					    .rkey = board->mem[0].rkey,
					    .raddr = board->mem[0].addr})
		     ->result;
	CHECK(status == (p->leaves ? IBV_WC_WR_FLUSH_ERR : IBV_WC_REM_ACCESS_ERR), "a deregistered key: %d",
	      status);
	/* the handle is good as long as anybody holds the domain, here the driver */
	status = ask(OWNER, (struct mail){.what = SHARE, .a = KEY})->result;
	CHECK(!status, "%s", strerror(status));
	reset_qp(&s);
	ask(OWNER, (struct mail){.what = LEAVE});
	ask(PARTNER, (struct mail){.what = LEAVE});
	CHECK_EQ(kit_reap(pids[OWNER]), 0);
	CHECK_EQ(kit_reap(pids[PARTNER]), 0);
	kit_end_close(&s.end);
	CHECK(!ibv_dealloc_pd(s.pd));
	CHECK(!ibv_share_pd(s.ctx, &board->shpd, KEY) && errno == ENOENT, "nobody holds it: %d", errno);
	CHECK(!ibv_close_device(s.ctx));
	exit(0);
}

static void in_its_own_process(const struct plan *p)
{
	int status;
	pid_t pid;

	memset(board, 0, sizeof *board);
	pid = kit_fork();
	if (!pid)
		drive(p);
	status = kit_reap(pid);
	CHECK(!status, "%s: 0x%x", p->name, status);
	printf("%s: ok\n", p->name);
}

int main(void)
{
	static const struct plan plans[] = {
	    {"the driver's domain, another's memory", DRIVER, {true, true}, false, false},
	    {"the driver's domain, without direct placement", DRIVER, {false, false}, false, false},
	    {"the owner's domain", OWNER, {true, true}, false, false},
	    {"the owner's domain, without direct placement", OWNER, {false, true}, false, false},
	    {"a third one's, which dies", MAKER, {true, true}, false, false},
	    {"a third one's, which leaves", MAKER, {true, false}, true, false},
	    {"the driver's, the owner of the memory is stopped", DRIVER, {true, true}, false, true},
	    {"the owner's, which is stopped", OWNER, {false, false}, false, true},
	};
	int fd;

	board = kit_shared(sizeof *board);
	area[PLAIN] = kit_shared(AREA);
	area[OPENABLE] = kit_mapped(AREA, &fd);
	for (size_t i = 0; i < sizeof plans / sizeof *plans; i++)
		in_its_own_process(&plans[i]);
	return 0;
}
