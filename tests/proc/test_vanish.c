/* Memory that vanishes under a live region, at either end: an error completion at the right end with the
 * right status and a sentence, and everything else goes on.  Within a process and between two, with direct
 * placement and without. */
#include <stdarg.h>
#include <fcntl.h>

#include "kit.h"

enum { AREA = 1 << 20, REGION = 256 << 10, HOLE = 64 << 10, LONG = 100000 };

enum how { UNMAPPED, NO_ACCESS, READ_ONLY, TRUNCATED, HOWS };
static const char *const how_names[] = {"unmapped", "without access", "read only", "truncated"};

struct end {
	struct kit_end e;
	int fd;
};

enum what { OPEN = 1, CONNECT, VANISH, WAIT, CLOSE, PING, STOP };

/* What the asking end tells the other one to do. */
struct order {
	_Atomic int given, done;
	enum what what;
	enum how how;
	bool whole;		      /* else only what lies behind HOLE */
	struct kit_card a, b;	      /* a asks */
	struct kit_card far_a, far_b; /* of the pair that goes on through all of it */
	struct ibv_wc wc;
};

static struct order *o;
static bool two; /* processes */

static void area_open(struct end *x, struct ibv_pd *pd)
{
	kit_end_open(&x->e, pd, 8, 8);
	CHECK(!ibv_dereg_mr(x->e.mr));
	free(x->e.buf);
	x->fd = memfd_create("area", 0);
	CHECK(x->fd >= 0 && !ftruncate(x->fd, AREA));
	x->e.buf = mmap(NULL, AREA, PROT_READ | PROT_WRITE, MAP_SHARED, x->fd, 0);
	CHECK(x->e.buf != MAP_FAILED);
	x->e.mr = ibv_reg_mr(pd, x->e.buf, REGION, KIT_ALL);
	CHECK(x->e.mr);
	x->e.card.rkey = x->e.mr->rkey;
	x->e.card.addr = (uintptr_t)x->e.buf;
}

static void area_vanish(struct end *x, enum how how, bool whole)
{
	size_t from = whole ? 0 : HOLE;

	if (how == UNMAPPED) /* what is mapped next goes to the upper end of the hole */
		CHECK(!munmap(x->e.buf + from, AREA - from));
	else if (how == TRUNCATED)
		CHECK(!ftruncate(x->fd, (off_t)from));
	else
		CHECK(!mprotect(x->e.buf + from, AREA - from, how == READ_ONLY ? PROT_READ : PROT_NONE));
}

static void area_close(struct end *x)
{
	CHECK(!ibv_destroy_qp(x->e.qp));
	CHECK(!ibv_dereg_mr(x->e.mr));
	CHECK(!ibv_destroy_cq(x->e.cq));
	munmap(x->e.buf, AREA);
	close(x->fd);
}

/* The end that is asked. */
static void b_does(struct ibv_pd *pd)
{
	static struct kit_end far;
	static struct end b;
	struct ibv_wc wc;

	switch (o->what) {
	case OPEN:
		if (!far.qp) {
			kit_end_open(&far, pd, 8, 64);
			o->far_b = far.card;
		}
		area_open(&b, pd);
		o->b = b.e.card;
		break;
	case CONNECT:
		if (o->far_a.qpn) {
			kit_connect(&far, &o->far_a);
			o->far_a.qpn = 0;
		}
		kit_connect(&b.e, &o->a);
		CHECK(!kit_recv(&b.e, 99, 0, REGION));
		break;
	case VANISH:
		area_vanish(&b, o->how, o->whole);
		break;
	case WAIT:
		o->wc = kit_wait(&b.e, 10);
		break;
	case CLOSE:
		area_close(&b);
		break;
	case PING:
		while (ibv_poll_cq(far.cq, 1, &wc))
			CHECK(wc.status == IBV_WC_SUCCESS && wc.wr_id == 5);
		CHECK(!kit_recv(&far, 5, 0, 64));
		break;
	case STOP:
		kit_end_close(&far);
	}
}

static void *b_loop(struct ibv_pd *pd)
{
	for (int n = 1;; n++) {
		kit_until(&o->given, n);
		b_does(pd);
		atomic_store(&o->done, n);
		if (o->what == STOP)
			return NULL;
	}
}

static void tell(struct ibv_pd *pd, enum what what)
{
	o->what = what;
	if (!two) {
		b_does(pd);
		return;
	}
	kit_until(&o->done, atomic_fetch_add(&o->given, 1) + 1);
}

static void said(const char *label, const char *sentence)
{
	const char *text = kit_log_take();

	CHECK(strstr(text, sentence), "%s: no '%s' in:\n%s", label, sentence, text);
}

static void ping(struct ibv_pd *pd, struct kit_end *far)
{
	tell(pd, PING);
	CHECK(!kit_post(far, IBV_WR_SEND, 6, 0, 8, NULL, 0));
	CHECK(kit_wait(far, 10).status == IBV_WC_SUCCESS);
}

struct rule {
	enum ibv_wr_opcode op;
	const char *name;
	bool at_a, written; /* which end's memory vanishes; it is written to */
	enum ibv_wc_status a;
	enum ibv_wc_status b; /* of the receive, SUCCESS: none is due */
};

static const struct rule rules[] = {
    {IBV_WR_SEND, "SEND source", true, false, IBV_WC_LOC_PROT_ERR, IBV_WC_SUCCESS},
    {IBV_WR_SEND, "receive buffer", false, true, IBV_WC_REM_OP_ERR, IBV_WC_LOC_PROT_ERR},
    {IBV_WR_RDMA_WRITE, "WRITE source", true, false, IBV_WC_LOC_PROT_ERR, IBV_WC_SUCCESS},
    {IBV_WR_RDMA_WRITE, "WRITE target", false, true, IBV_WC_REM_ACCESS_ERR, IBV_WC_SUCCESS},
    {IBV_WR_RDMA_WRITE_WITH_IMM, "WRITE with immediate, target", false, true, IBV_WC_REM_ACCESS_ERR,
     IBV_WC_SUCCESS},
    {IBV_WR_RDMA_READ, "READ sink", true, true, IBV_WC_LOC_PROT_ERR, IBV_WC_SUCCESS},
    {IBV_WR_RDMA_READ, "READ source", false, false, IBV_WC_REM_ACCESS_ERR, IBV_WC_SUCCESS},
    {IBV_WR_ATOMIC_FETCH_AND_ADD, "fetch-and-add sink", true, true, IBV_WC_LOC_PROT_ERR, IBV_WC_SUCCESS},
    {IBV_WR_ATOMIC_FETCH_AND_ADD, "fetch-and-add target", false, true, IBV_WC_REM_ACCESS_ERR, IBV_WC_SUCCESS},
    {IBV_WR_ATOMIC_CMP_AND_SWP, "compare-and-swap target", false, true, IBV_WC_REM_ACCESS_ERR,
     IBV_WC_SUCCESS},
};

static bool is_atomic(const struct rule *r)
{
	return r->op == IBV_WR_ATOMIC_FETCH_AND_ADD || r->op == IBV_WR_ATOMIC_CMP_AND_SWP;
}

static void try(struct ibv_pd *pd, struct kit_end *far, const struct rule *r, enum how how, uint32_t len)
{
	struct end a;
	struct ibv_wc wc;
	char label[128];

	snprintf(label, sizeof label, "%s %s, %u bytes, %s", r->name, how_names[how], len,
		 two ? "two processes" : "one process");
	area_open(&a, pd);
	o->a = a.e.card;
	tell(pd, OPEN);
	if (!far->qp) {
		kit_end_open(far, pd, 8, 64);
		o->far_a = far->card;
		kit_connect(far, &o->far_b);
	}
	kit_connect(&a.e, &o->b);
	tell(pd, CONNECT);
	ping(pd, far);
	o->how = how;
	o->whole = len < HOLE;
	if (r->at_a)
		area_vanish(&a, how, o->whole);
	else
		tell(pd, VANISH);
	CHECK(!kit_post(&a.e, r->op, 1, 0, len, &o->b, 0));
	wc = kit_wait(&a.e, 10);
	CHECK(wc.status == r->a, "%s: %s", label, ibv_wc_status_str(wc.status));
	if (r->b != IBV_WC_SUCCESS) {
		tell(pd, WAIT);
		CHECK(o->wc.status == r->b && o->wc.wr_id == 99, "%s: the receive: %s", label,
		      ibv_wc_status_str(o->wc.status));
		said(label, "cannot be written: the memory at");
	} else {
		said(label, "is no longer mapped");
	}
	ping(pd, far); /* all others go on */
	area_close(&a);
	tell(pd, CLOSE);
}

/* A QP that is connected to itself: what it finds as the responder takes it to the error state as the
 * requester too, and that may flush the request before the NAK comes. */
static void alone(struct ibv_pd *pd)
{
	static const enum ibv_wr_opcode ops[] = {IBV_WR_RDMA_WRITE, IBV_WR_RDMA_READ,
						 IBV_WR_ATOMIC_FETCH_AND_ADD};

	for (size_t i = 0; i < sizeof ops / sizeof *ops; i++) {
		struct end a;
		struct ibv_wc wc;

		area_open(&a, pd);
		kit_connect(&a.e, &a.e.card);
		area_vanish(&a, UNMAPPED, false);
		CHECK(!kit_post(&a.e, ops[i], 1, 0, 8, &a.e.card, 64));
		wc = kit_wait(&a.e, 10);
		CHECK(wc.status == IBV_WC_SUCCESS, "%s", ibv_wc_status_str(wc.status));
		CHECK(!kit_post(&a.e, ops[i], 2, 0, 8, &a.e.card, HOLE));
		wc = kit_wait(&a.e, 10);
		CHECK(wc.status == IBV_WC_REM_ACCESS_ERR || wc.status == IBV_WC_WR_FLUSH_ERR, "%s",
		      ibv_wc_status_str(wc.status));
		said("to itself", "is no longer mapped");
		area_close(&a);
	}
}

static void asks(struct ibv_pd *pd)
{
	struct kit_end far = {0};

	for (size_t i = 0; i < sizeof rules / sizeof *rules; i++) {
		for (int how = 0; how < HOWS; how++) {
			if (how == READ_ONLY && !rules[i].written)
				continue;
			try(pd, &far, &rules[i], (enum how)how, 8);
			if (!is_atomic(&rules[i]))
				try(pd, &far, &rules[i], (enum how)how, LONG);
		}
	}
	tell(pd, STOP);
	kit_end_close(&far);
	if (!two)
		alone(pd);
}

static void side(bool a)
{
	struct ibv_context *ctx = kit_open();
	struct ibv_pd *pd = ibv_alloc_pd(ctx);

	CHECK(pd);
	if (a)
		asks(pd);
	else
		b_loop(pd);
	CHECK(!ibv_dealloc_pd(pd) && !ibv_close_device(ctx));
}

int main(void)
{

	kit_log_begin("info");
	o = kit_shared(sizeof *o);
	for (int i = 0; i < 4; i++) {
		pid_t pids[2] = {0};

		memset(o, 0, sizeof *o);
		two = i & 1;
		setenv("VERBENA_DIRECT", i & 2 ? "off" : "on", 1);
		kit_log_skip();
		for (int end = 0; end <= two; end++) {
			pids[end] = kit_fork();
			if (!pids[end]) {
				side(!end);
				exit(0);
			}
		}
		for (int end = 0; end <= two; end++) {
			int status = kit_reap(pids[end]);

			if (status && two && !end)
				kill(pids[1], SIGKILL);
			CHECK(!status, "%s, direct %s: the %s end: status 0x%x",
			      two ? "two processes" : "one process", getenv("VERBENA_DIRECT"),
			      end ? "asked" : "asking", status);
		}
	}
	puts("whatever vanished, the processes live, and it was said");
	return 0;
}
