/* XRC among several processes: an initiator here, its target in another process, and the SRQs that messages
 * name in further ones.  What becomes of a message when one of them is slow, stopped, or killed. */
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <sched.h>
#include <sys/resource.h>

#include "bytes.h"
#include "hca/hca.h"
#include "iba/limits.h"
#include "pair.h"
#include "xrc.h"

enum { HOLDERS = 2, GOT = 512, ROOM = XRC_SIZE / 2 };

struct came {
	uint64_t wr_id, sum;
	uint32_t len, qpn, imm;
	int status, opcode;
};

/* A process with an SRQ: what it is told to do, and what it says. */
struct holder {
	_Atomic int opened, asked, given; /* receive requests */
	_Atomic int got, done;
	_Atomic int deputies; /* 1 + how many there are, where it was 0 */
	uint32_t slot;	      /* bytes of each of them */
	uint32_t srqn, basic, other, rkey;
	uint32_t narrow; /* one whose completions soon have no room; four receive requests are there */
	uint32_t apart;	 /* one with another number of the adapter, where `apart` is wanted; two are there */
	uint64_t addr;
	struct came came[GOT];
};

/* All of it; this process has the initiator. */
struct stage {
	struct holder holder[HOLDERS];
	struct holder target; /* which has an SRQ of its own */
	_Atomic int connected, again, event;
	_Atomic bool both;	       /* pairs are connected then */
	_Atomic int held;	       /* the first target holds back what came since */
	uint32_t ini, tgt, ini2, tgt2; /* the second pair goes by the same lanes */
	union ibv_gid gid;
};

static uint64_t sum(const uint8_t *at, uint32_t len)
{
	uint64_t h = 14695981039346656037ull;

	for (uint32_t i = 0; i < len; i++)
		h = (h ^ at[i]) * 1099511628211ull;
	return h;
}

static void give_more(struct holder *h, struct xrc_side *s)
{
	int n = atomic_load(&h->given);

	while (n < atomic_load(&h->asked)) {
		xrc_give(s->srq, s->mr, (uint64_t)n, ROOM + (size_t)n * h->slot % ROOM, h->slot);
		atomic_store(&h->given, ++n);
	}
}

static void look(struct holder *h, struct xrc_side *s)
{
	struct ibv_wc wc;
	int n = atomic_load(&h->got);

	if (ibv_poll_cq(s->rcq, 1, &wc) != 1)
		return;
	h->came[n % GOT] = (struct came){.wr_id = wc.wr_id,
					 .len = wc.byte_len,
					 .qpn = wc.qp_num,
					 .imm = wc.wc_flags & IBV_WC_WITH_IMM ? wc.imm_data : 0,
					 .status = (int)wc.status,
					 .opcode = (int)wc.opcode};
	if (wc.status == IBV_WC_SUCCESS && wc.opcode == IBV_WC_RECV)
		h->came[n % GOT].sum = sum(s->buf + ROOM + wc.wr_id * h->slot % ROOM, wc.byte_len);
	atomic_store(&h->got, n + 1);
}

static void count_deputies(struct holder *h, const struct xrc_side *s)
{
	struct vb_context *inner = &vb_hca(vb_context(s->ctx)->adapter)->inner;
	int n = 1;

	if (atomic_load(&h->deputies))
		return;
	vb_lock_take(&inner->lock);
	vb_list_each (q, &inner->qps)
		n++;
	vb_lock_give(&inner->lock);
	atomic_store(&h->deputies, n);
}

/* Numbers of SRQs are used up until one has another adapter number. */
static bool apart;

static void open_apart(struct holder *h, struct xrc_side *s)
{
	struct ibv_srq_init_attr basic = {.attr = {.max_wr = 1, .max_sge = 1}};
	struct ibv_srq *srq;
	uint32_t n = h->srqn;

	while (n >> VB_QPN_INDEX_BITS == h->srqn >> VB_QPN_INDEX_BITS)
		CHECK(!ibv_get_srq_num(ibv_create_srq(s->pd, &basic), &n));
	srq = xrc_make_srq(s->pd, s->xrcd, s->rcq, &h->apart);
	xrc_give(srq, s->mr, 0, ROOM, h->slot);
	xrc_give(srq, s->mr, 1, ROOM, h->slot);
}

static void open_narrow(struct holder *h, struct xrc_side *s)
{
	struct ibv_cq *cq = ibv_create_cq(s->ctx, 1, NULL, NULL, 0);
	struct ibv_srq *srq;

	CHECK(cq && cq->cqe < 4);
	srq = xrc_make_srq(s->pd, s->xrcd, cq, &h->narrow);
	for (uint64_t i = 0; i < 4; i++)
		xrc_give(srq, s->mr, i, ROOM, 64);
}

static void open_holder(struct holder *h, struct xrc_side *s, int fd)
{
	struct ibv_srq_init_attr basic = {.attr = {.max_wr = 1, .max_sge = 1}};
	struct ibv_xrcd *other;

	xrc_open_side(s, fd);
	other = xrc_open_domain(s->ctx, -1, O_CREAT);
	CHECK(other && !ibv_get_srq_num(ibv_create_srq(s->pd, &basic), &h->basic));
	xrc_make_srq(s->pd, other, s->rcq, &h->other);
	h->srqn = s->srqn;
	h->rkey = s->mr->rkey;
	h->addr = (uintptr_t)s->buf;
	open_narrow(h, s);
	if (apart)
		open_apart(h, s);
	atomic_store(&h->opened, 1);
}

static void hold(struct holder *h, int fd)
{
	struct xrc_side s;

	open_holder(h, &s, fd);
	while (!atomic_load(&h->done)) {
		give_more(h, &s);
		look(h, &s);
		count_deputies(h, &s);
	}
	_exit(0);
}

/* The target is connected anew each time that `again` grows, and its events are counted. */
static void be_target(struct stage *t, int fd)
{
	struct xrc_side s;
	struct ibv_qp *second = NULL;
	int times = 0;

	open_holder(&t->target, &s, fd);
	t->tgt = s.tgt->qp_num;
	while (!second || second->qp_num % VB_LANES != t->tgt % VB_LANES)
		second = xrc_make_target(s.ctx, s.xrcd);
	t->tgt2 = second->qp_num;
	while (!atomic_load(&t->target.done)) {
		struct pollfd p = {.fd = s.ctx->async_fd, .events = POLLIN};
		struct ibv_async_event e;

		give_more(&t->target, &s);
		look(&t->target, &s);
		if (times < atomic_load(&t->again)) {
			xrc_reset(s.tgt);
			xrc_to_rts(s.tgt, &t->gid, t->ini);
			if (atomic_load(&t->both)) {
				xrc_reset(second);
				xrc_to_rts(second, &t->gid, t->ini2);
			}
			atomic_store(&t->held, 0);
			atomic_store(&t->connected, ++times);
		}
		if (vb_qp(s.tgt)->forwards->again)
			atomic_store(&t->held, 1);
		if (poll(&p, 1, 0) == 1 && !ibv_get_async_event(s.ctx, &e)) {
			CHECK(e.element.qp == s.tgt);
			ibv_ack_async_event(&e);
			atomic_store(&t->event, (int)e.event_type + 1);
		}
	}
	_exit(0);
}

struct cast {
	struct stage *t;
	struct xrc_side s, second; /* the same but for its initiator */
	pid_t holder[HOLDERS], target;
};

static void connect_first(struct cast *c)
{
	struct stage *t = c->t;
	int times = atomic_load(&t->again) + 1;

	xrc_reset(c->s.ini);
	atomic_store(&t->event, 0);
	atomic_store(&t->again, times);
	kit_reach(&t->connected, times);
	xrc_to_rts(c->s.ini, &t->gid, t->tgt);
}

static void connect_all(struct cast *c)
{
	struct stage *t = c->t;

	atomic_store(&t->both, true);
	connect_first(c);
	atomic_store(&t->both, false);
	xrc_reset(c->second.ini);
	xrc_to_rts(c->second.ini, &t->gid, t->tgt2);
}

/* slot: bytes of a receive request. */
static void begin(struct cast *c, uint32_t slot, uint8_t rnr_retry)
{
	struct stage *t = kit_shared(sizeof *t);
	int fd = xrc_domain_file();

	c->t = t;
	t->target.slot = slot;
	for (int i = 0; i < HOLDERS; i++) {
		t->holder[i].slot = slot;
		c->holder[i] = kit_fork();
		if (!c->holder[i])
			hold(&t->holder[i], fd);
	}
	c->target = kit_fork();
	if (!c->target)
		be_target(t, fd);
	xrc_rnr_retry = rnr_retry;
	xrc_open_side(&c->s, fd);
	t->gid = c->s.gid;
	t->ini = c->s.ini->qp_num;
	c->second = c->s;
	c->second.ini = xrc_make_initiator(c->s.pd, c->s.cq);
	t->ini2 = c->second.ini->qp_num;
	for (int i = 0; i < HOLDERS; i++)
		kit_until(&t->holder[i].opened, 1);
	kit_until(&t->target.opened, 1);
	connect_all(c);
}

static void finish(struct cast *c)
{
	CHECK(!ibv_destroy_qp(c->second.ini));
	xrc_close_side(&c->s);
	for (int i = 0; i < HOLDERS; i++) {
		atomic_store(&c->t->holder[i].done, 1);
		if (c->holder[i])
			CHECK_EQ(kit_reap(c->holder[i]), 0);
	}
	atomic_store(&c->t->target.done, 1);
	if (c->target)
		CHECK_EQ(kit_reap(c->target), 0);
}

static void kill_one(pid_t *pid)
{
	int status;

	CHECK(!kill(*pid, SIGKILL) && waitpid(*pid, &status, 0) == *pid);
	*pid = 0;
}

static void ask(struct holder *h, int n)
{
	int want = atomic_load(&h->asked) + n;

	atomic_store(&h->asked, want);
	kit_until(&h->given, want);
}

/* The next thing that came to h, and what it is expected to be. */
static const struct came *next_of(struct cast *c, struct holder *h, int n)
{
	const struct came *k = &h->came[n % GOT];

	kit_until(&h->got, n + 1);
	CHECK(k->qpn == c->t->tgt, "0x%06x", k->qpn);
	return k;
}

/* An error, and the target's event; then all is connected anew. */
static void fails(struct cast *c, enum ibv_wc_status status, enum ibv_event_type event)
{
	enum ibv_wc_status is = xrc_ends(&c->s);

	CHECK(is == status, "%s, not %s", ibv_wc_status_str(is), ibv_wc_status_str(status));
	kit_until(&c->t->event, (int)event + 1);
	connect_all(c);
}

/* The first packets of a message are to lie with a process that is stopped, of which nothing tells; were they
 * not there yet, less would be tried. */
static void let_it_come(void)
{
	kit_nap(50);
}

/* Each kind of message, small and of many packets, to three processes by turns. */
static void all_messages(void)
{
	struct cast c;
	struct holder *h[3];
	int n[3] = {0};

	xrc_timeout = 0;
	begin(&c, ROOM, 1);
	h[0] = &c.t->holder[0];
	h[1] = &c.t->holder[1];
	h[2] = &c.t->target;
	for (uint32_t len = 0; len <= 300000; len = len * 37 + 1) {
		kit_fill(c.s.buf, len, (uint8_t)len);
		for (int i = 0; i < 3; i++) {
			const struct came *k;

			ask(h[i], 3);
			xrc_post(&c.s, IBV_WR_SEND, h[i]->srqn, 0, len, 0, 0);
			xrc_post(&c.s, IBV_WR_RDMA_WRITE, h[i]->srqn, 0, len, h[i]->addr, h[i]->rkey);
			xrc_post(&c.s, IBV_WR_SEND_WITH_IMM, h[i]->srqn, 0, len, 0, 0);
			xrc_post(&c.s, IBV_WR_RDMA_WRITE_WITH_IMM, h[i]->srqn, 0, len, h[i]->addr,
				 h[i]->rkey);
			for (int m = 0; m < 4; m++)
				CHECK(xrc_ends(&c.s) == IBV_WC_SUCCESS, "%u bytes, holder %d, %d", len, i, m);
			for (int m = 0; m < 3; m++) {
				k = next_of(&c, h[i], n[i]++);
				CHECK(k->status == IBV_WC_SUCCESS && k->len == len, "%d: %s", m,
				      ibv_wc_status_str((enum ibv_wc_status)k->status));
				CHECK(k->opcode == (m < 2 ? IBV_WC_RECV : IBV_WC_RECV_RDMA_WITH_IMM));
				CHECK(k->imm == (m ? 0x01020304 : 0));
				CHECK(m == 2 || k->sum == sum(c.s.buf, len));
			}
		}
	}
	finish(&c);
}

/* Many messages at once, to whom is by chance; each holder's come in the order of their sending. */
static void by_turns(void)
{
	enum { ALL = 600, LEN = 200 };
	struct cast c;
	struct holder *h[3];
	uint32_t to[ALL], n[3] = {0};
	unsigned seed = 7;
	int posted = 0, ended = 0;

	xrc_timeout = 0;
	begin(&c, ROOM / XRC_DEPTH, 7);
	h[0] = &c.t->holder[0];
	h[1] = &c.t->holder[1];
	h[2] = &c.t->target;
	for (int i = 0; i < 3; i++)
		ask(h[i], XRC_DEPTH);
	while (ended < ALL) {
		while (posted < ALL && posted - ended < XRC_DEPTH) {
			to[posted] = (uint32_t)rand_r(&seed) / 64 % 3;
			kit_fill(c.s.buf, LEN, (uint8_t)posted);
			memcpy(c.s.buf + (posted % XRC_DEPTH + 1) * 1024, c.s.buf, LEN);
			xrc_post(&c.s, IBV_WR_SEND, h[to[posted]]->srqn,
				 (size_t)(posted % XRC_DEPTH + 1) * 1024, LEN, 0, 0);
			posted++;
		}
		CHECK(xrc_ends(&c.s) == IBV_WC_SUCCESS, "%d", ended);
		kit_fill(c.s.buf, LEN, (uint8_t)ended);
		const struct came *k = next_of(&c, h[to[ended]], (int)n[to[ended]]);

		CHECK_EQ(k->status, IBV_WC_SUCCESS);
		CHECK(k->wr_id == n[to[ended]] && k->sum == sum(c.s.buf, LEN));
		n[to[ended]]++;
		atomic_fetch_add(&h[to[ended]]->asked, 1);
		ended++;
	}
	finish(&c);
}

/* What is answered with more than an ACK, of every size and many at once. */
static void reads_and_atomics(void)
{
	enum { AT = 4096 };
	struct cast c;
	struct holder *h[3];
	uint64_t *word, n = 0;

	xrc_timeout = 0;
	begin(&c, ROOM, 1);
	h[0] = &c.t->holder[0];
	h[1] = &c.t->holder[1];
	h[2] = &c.t->target;
	word = (uint64_t *)(void *)(c.s.buf + ROOM);
	for (uint32_t len = 0; len <= 300000; len = len * 37 + 1) {
		for (int i = 0; i < 3; i++) {
			kit_fill(c.s.buf, len, (uint8_t)(len + (uint32_t)i));
			xrc_post(&c.s, IBV_WR_RDMA_WRITE, h[i]->srqn, 0, len, h[i]->addr + AT, h[i]->rkey);
			xrc_post(&c.s, IBV_WR_RDMA_READ, h[i]->srqn, ROOM, len, h[i]->addr + AT, h[i]->rkey);
			CHECK(xrc_ends(&c.s) == IBV_WC_SUCCESS && xrc_ends(&c.s) == IBV_WC_SUCCESS);
			CHECK(sum(c.s.buf, len) == sum(c.s.buf + ROOM, len), "%u bytes of %d", len, i);
		}
	}
	for (int i = 0; i < 40; i++) { /* by turns, so that each waits for the one before */
		struct holder *at = h[i % 3];

		xrc_post(&c.s, IBV_WR_ATOMIC_FETCH_AND_ADD, at->srqn, ROOM, 8, at->addr, at->rkey);
		xrc_post(&c.s, IBV_WR_RDMA_READ, at->srqn, ROOM + 8, 8, at->addr, at->rkey);
		CHECK(xrc_ends(&c.s) == IBV_WC_SUCCESS && xrc_ends(&c.s) == IBV_WC_SUCCESS);
		n = (uint64_t)(i / 3) * 5;
		CHECK(word[0] == n && word[1] == n + 5, "%d: %lu, %lu", i, word[0], word[1]);
	}
	for (int i = 0; i < 8; i++)
		xrc_post(&c.s, IBV_WR_RDMA_READ, h[i % 2]->srqn, ROOM, 50000, h[i % 2]->addr + AT,
			 h[i % 2]->rkey);
	for (int i = 0; i < 8; i++)
		CHECK(xrc_ends(&c.s) == IBV_WC_SUCCESS, "%d", i);
	xrc_post(&c.s, IBV_WR_RDMA_READ, h[0]->srqn, ROOM, 8, h[0]->addr, h[1]->rkey);
	fails(&c, IBV_WC_REM_ACCESS_ERR, IBV_EVENT_QP_ACCESS_ERR);
	xrc_post(&c.s, IBV_WR_ATOMIC_FETCH_AND_ADD, h[1]->srqn, ROOM, 8, h[1]->addr + 4, h[1]->rkey);
	fails(&c, IBV_WC_REM_INV_REQ_ERR, IBV_EVENT_QP_REQ_ERR);
	kit_stop(c.holder[0]);
	xrc_post(&c.s, IBV_WR_RDMA_READ, h[0]->srqn, ROOM, 50000, h[0]->addr, h[0]->rkey);
	let_it_come();
	kill_one(&c.holder[0]);
	fails(&c, IBV_WC_REM_INV_RD_REQ_ERR, IBV_EVENT_QP_ACCESS_ERR);
	finish(&c);
}

/* What its process says of an SRQ that is used up reaches the initiator: for 20 ms that costs no retry. */
static void all_receives_are_used_up(void)
{
	enum ibv_wc_status is;
	struct cast c;
	struct holder *h;
	uint64_t began;

	begin(&c, 4096, 0);
	h = &c.t->holder[0];
	ask(h, 1);
	xrc_post(&c.s, IBV_WR_SEND, h->srqn, 0, 8, 0, 0);
	CHECK(xrc_ends(&c.s) == IBV_WC_SUCCESS);
	CHECK(next_of(&c, h, 0)->len == 8);
	began = vb_now();
	xrc_post(&c.s, IBV_WR_SEND, h->srqn, 0, 8, 0, 0);
	is = xrc_ends(&c.s);
	CHECK(is == IBV_WC_RNR_RETRY_EXC_ERR, "%s", ibv_wc_status_str(is));
	CHECK(vb_now() - began >= 20 * VB_MSEC, "after %u us", (unsigned)((vb_now() - began) / VB_USEC));
	finish(&c);
}

static void no_receive_is_posted(void)
{
	struct cast c;
	struct holder *h;

	begin(&c, 4096, 1);
	h = &c.t->holder[0];
	xrc_post(&c.s, IBV_WR_SEND, h->srqn, 0, 8, 0, 0);
	CHECK(xrc_ends(&c.s) == IBV_WC_RNR_RETRY_EXC_ERR);
	xrc_rnr_retry = 7;
	connect_all(&c);
	xrc_post(&c.s, IBV_WR_SEND, h->srqn, 0, 8, 0, 0);
	xrc_post(&c.s, IBV_WR_SEND, h->srqn, 0, 9, 0, 0);
	xrc_post(&c.s, IBV_WR_RDMA_WRITE_WITH_IMM, h->srqn, 0, 100000, h->addr, h->rkey);
	for (int i = 0; i < 3; i++) {
		struct ibv_wc wc;

		CHECK(!ibv_poll_cq(c.s.cq, 1, &wc));
		ask(h, 1);
		CHECK(xrc_ends(&c.s) == IBV_WC_SUCCESS);
		CHECK(next_of(&c, h, i)->len == (i < 2 ? 8u + (uint32_t)i : 100000u));
	}
	finish(&c);
}

/* What the SRQ's process finds wrong, the initiator's requests end with. */
static void what_is_wrong(void)
{
	struct cast c;
	struct holder *h;
	uint32_t wrong[4];

	begin(&c, 64, 1);
	h = &c.t->holder[0];
	wrong[0] = h->basic;
	wrong[1] = h->other;
	wrong[2] = h->srqn ^ 0x800;
	wrong[3] = h->srqn ^ 0x7ff000; /* nobody's */
	for (int i = 0; i < 4; i++) {
		xrc_post(&c.s, IBV_WR_SEND, wrong[i], 0, 8, 0, 0);
		fails(&c, IBV_WC_REM_INV_RD_REQ_ERR, IBV_EVENT_QP_ACCESS_ERR);
	}
	xrc_post(&c.s, IBV_WR_RDMA_WRITE, h->srqn, 0, 8, h->addr, c.t->holder[1].rkey);
	fails(&c, IBV_WC_REM_ACCESS_ERR, IBV_EVENT_QP_ACCESS_ERR);
	ask(h, 2);
	xrc_post(&c.s, IBV_WR_SEND, h->srqn, 0, 65, 0, 0);
	CHECK(xrc_ends(&c.s) == IBV_WC_REM_INV_REQ_ERR);
	CHECK_EQ(next_of(&c, h, 0)->status, IBV_WC_LOC_LEN_ERR);
	connect_all(&c);
	/* what is behind a message that fails is not received, whoever's it is */
	ask(&c.t->target, 1);
	xrc_post(&c.s, IBV_WR_SEND, h->srqn, 0, 65, 0, 0);
	xrc_post(&c.s, IBV_WR_SEND, c.t->target.srqn, 0, 8, 0, 0);
	CHECK(xrc_ends(&c.s) == IBV_WC_REM_INV_REQ_ERR && xrc_ends(&c.s) == IBV_WC_WR_FLUSH_ERR);
	CHECK_EQ(next_of(&c, h, 1)->status, IBV_WC_LOC_LEN_ERR);
	connect_all(&c);
	xrc_post(&c.s, IBV_WR_SEND, c.t->target.srqn, 0, 9, 0, 0);
	CHECK(xrc_ends(&c.s) == IBV_WC_SUCCESS && next_of(&c, &c.t->target, 0)->len == 9);
	finish(&c);
}

/* A process that is stopped delays; nothing is lost, and no retry is used up. */
static void a_process_is_stopped(void)
{
	struct cast c;
	struct holder *h;
	struct ibv_wc wc;

	begin(&c, ROOM / 2, 1);
	h = &c.t->holder[0];
	ask(h, 3);
	ask(&c.t->target, 1);
	xrc_post(&c.s, IBV_WR_SEND, h->srqn, 0, 8, 0, 0);
	CHECK(xrc_ends(&c.s) == IBV_WC_SUCCESS);
	kit_stop(c.holder[0]);
	kit_fill(c.s.buf, ROOM / 2, 3);
	xrc_post(&c.s, IBV_WR_SEND, h->srqn, 0, ROOM / 2, 0, 0); /* more than its ring has room for */
	xrc_post(&c.s, IBV_WR_SEND, c.t->target.srqn, 0, 8, 0, 0);
	for (double end = kit_now() + 1.5; kit_now() < end;)
		CHECK(!ibv_poll_cq(c.s.cq, 1, &wc));
	CHECK(!atomic_load(&c.t->target.got)); /* in their order */
	kit_cont(c.holder[0]);
	CHECK(xrc_ends(&c.s) == IBV_WC_SUCCESS && xrc_ends(&c.s) == IBV_WC_SUCCESS);
	CHECK(next_of(&c, h, 1)->sum == sum(c.s.buf, ROOM / 2));
	CHECK(next_of(&c, &c.t->target, 0)->len == 8);
	finish(&c);
}

/* Another target has filled the way to a process that is stopped: what is held back for want of room comes
 * when there is some, though the initiator sends nothing again by itself. */
static void another_fills_the_way(void)
{
	struct cast c;
	struct holder *h;

	xrc_timeout = 0;
	begin(&c, ROOM / 2, 1);
	h = &c.t->holder[0];
	ask(h, 4);
	xrc_post(&c.s, IBV_WR_SEND, h->srqn, 0, 8, 0, 0);
	CHECK(xrc_ends(&c.s) == IBV_WC_SUCCESS);
	xrc_post(&c.second, IBV_WR_SEND, h->srqn, 0, 9, 0, 0);
	CHECK(xrc_ends(&c.s) == IBV_WC_SUCCESS);
	kit_stop(c.holder[0]);
	xrc_post(&c.s, IBV_WR_SEND, h->srqn, 0, ROOM / 2, 0, 0);
	let_it_come();
	xrc_post(&c.second, IBV_WR_SEND, h->srqn, 0, ROOM / 2, 0, 0);
	let_it_come();
	kit_cont(c.holder[0]);
	CHECK(xrc_ends(&c.s) == IBV_WC_SUCCESS && xrc_ends(&c.s) == IBV_WC_SUCCESS);
	kit_until(&h->got, 4);
	finish(&c);
}

/* SRQs of one process that have several numbers of its adapter: there is a deputy for each, and none takes
 * another's place. */
static void numbers_of_one_process(void)
{
	struct cast c;
	struct holder *h;
	uint32_t to[4];

	apart = true;
	begin(&c, 64, 1);
	h = &c.t->holder[0];
	ask(h, 2);
	CHECK(h->apart >> VB_QPN_INDEX_BITS != h->srqn >> VB_QPN_INDEX_BITS);
	to[0] = to[2] = h->srqn;
	to[1] = to[3] = h->apart;
	for (int i = 0; i < 4; i++) {
		xrc_post(&c.s, IBV_WR_SEND, to[i], 0, 8 + (uint32_t)i, 0, 0);
		CHECK(xrc_ends(&c.s) == IBV_WC_SUCCESS, "%d", i);
		CHECK(next_of(&c, h, i)->len == 8 + (uint32_t)i);
	}
	finish(&c);
}

/* A deputy that has failed when nothing was on its way says so to what comes next. */
static void a_queue_overruns(void)
{
	enum ibv_wc_status is = IBV_WC_SUCCESS;
	struct cast c;

	begin(&c, 64, 1);
	for (int i = 0; i < 4 && is == IBV_WC_SUCCESS; i++) {
		xrc_post(&c.s, IBV_WR_SEND, c.t->holder[0].narrow, 0, 8, 0, 0);
		is = xrc_ends(&c.s);
		let_it_come();
	}
	CHECK(is == IBV_WC_REM_OP_ERR, "%s", ibv_wc_status_str(is));
	kit_until(&c.t->event, IBV_EVENT_QP_FATAL + 1);
	finish(&c);
}

/* The SRQ's process dies: stopped with half a message, and before a message. */
static void a_holder_dies(void)
{
	struct cast c;
	struct holder *h;
	pid_t dead;

	xrc_timeout = 0;
	begin(&c, ROOM, 1);
	h = &c.t->holder[0];
	ask(h, 2);
	xrc_post(&c.s, IBV_WR_SEND, h->srqn, 0, 8, 0, 0);
	CHECK(xrc_ends(&c.s) == IBV_WC_SUCCESS);
	kit_stop(c.holder[0]);
	xrc_post(&c.s, IBV_WR_SEND, h->srqn, 0, ROOM, 0, 0);
	let_it_come();
	dead = c.holder[0];
	kit_log_skip();
	kill_one(&c.holder[0]);
	fails(&c, IBV_WC_REM_INV_RD_REQ_ERR, IBV_EVENT_QP_ACCESS_ERR);
	KIT_LOG_SAYS(
	    "target queue pair 0x%06x received a message for SRQ 0x%06x, but process %d, which owned that "
	    "SRQ, has ended (reported by the peer)",
	    c.t->tgt, h->srqn, (int)dead);
	xrc_post(&c.s, IBV_WR_SEND, h->srqn, 0, 8, 0, 0);
	fails(&c, IBV_WC_REM_INV_RD_REQ_ERR, IBV_EVENT_QP_ACCESS_ERR);
	ask(&c.t->holder[1], 1);
	xrc_post(&c.s, IBV_WR_SEND, c.t->holder[1].srqn, 0, 8, 0, 0);
	CHECK(xrc_ends(&c.s) == IBV_WC_SUCCESS);
	finish(&c);
}

/* The target is connected anew with half a message on its way: its receive request is flushed, and what comes
 * then is another message. */
static void the_target_is_reset(void)
{
	struct cast c;
	struct holder *h;

	begin(&c, ROOM, 1);
	h = &c.t->holder[0];
	ask(h, 3);
	xrc_post(&c.s, IBV_WR_SEND, h->srqn, 0, 8, 0, 0);
	CHECK(xrc_ends(&c.s) == IBV_WC_SUCCESS);
	kit_stop(c.holder[0]);
	xrc_post(&c.s, IBV_WR_SEND, h->srqn, 0, ROOM, 0, 0);
	let_it_come();
	connect_all(&c);
	kit_cont(c.holder[0]);
	CHECK(next_of(&c, h, 0)->len == 8);
	CHECK_EQ(next_of(&c, h, 1)->status, IBV_WC_WR_FLUSH_ERR);
	xrc_post(&c.s, IBV_WR_SEND, h->srqn, 0, 9, 0, 0);
	CHECK(xrc_ends(&c.s) == IBV_WC_SUCCESS);
	CHECK_EQ(next_of(&c, h, 2)->status, IBV_WC_SUCCESS);
	CHECK(h->came[2].len == 9);
	finish(&c);
}

static int deputies_of(struct holder *h)
{
	atomic_store(&h->deputies, 0);
	while (!atomic_load(&h->deputies))
		sched_yield();
	return atomic_load(&h->deputies) - 1;
}

/* The target is connected anew before the deputy that it has asked for is there: none is left behind. */
static void the_target_is_reset_early(void)
{
	struct cast c;
	struct holder *h;

	begin(&c, 64, 1);
	h = &c.t->holder[0];
	ask(h, 2);
	xrc_post(&c.s, IBV_WR_SEND, h->srqn, 0, 8, 0, 0);
	CHECK(xrc_ends(&c.s) == IBV_WC_SUCCESS);
	connect_all(&c);
	kit_stop(c.holder[0]);
	xrc_post(&c.s, IBV_WR_SEND, h->srqn, 0, 8, 0, 0);
	let_it_come();
	connect_all(&c);
	kit_cont(c.holder[0]);
	/* what the second target says there is said later */
	xrc_post(&c.second, IBV_WR_SEND, h->srqn, 0, 8, 0, 0);
	CHECK(xrc_ends(&c.s) == IBV_WC_SUCCESS);
	CHECK(deputies_of(h) == 1, "%d", deputies_of(h));
	finish(&c);
}

/* The target is connected anew so often while the SRQ's process is stopped that the socket to that one is
 * full. What it is to hear it hears when it goes on: no deputy is left behind, whether the last thing that
 * had room was a question for one or its end. */
static void the_socket_is_full(void)
{
	enum { TIMES = 150 };
	struct cast c;
	struct holder *h;

	for (int odd = 0; odd < 2; odd++) {
		begin(&c, 64, 1);
		h = &c.t->holder[0];
		ask(h, 2);
		xrc_post(&c.s, IBV_WR_SEND, h->srqn, 0, 8, 0, 0);
		CHECK(xrc_ends(&c.s) == IBV_WC_SUCCESS);
		connect_all(&c);
		kit_stop(c.holder[0]);
		if (odd)
			xrc_post(&c.second, IBV_WR_SEND, h->srqn, 0, 8, 0, 0);
		for (int i = 0; i < TIMES; i++) {
			xrc_post(&c.s, IBV_WR_SEND, h->srqn, 0, 8, 0, 0);
			kit_reach(&c.t->held, 1);
			connect_first(&c);
		}
		kit_cont(c.holder[0]);
		if (!odd)
			xrc_post(&c.second, IBV_WR_SEND, h->srqn, 0, 8, 0, 0);
		CHECK(xrc_ends(&c.s) == IBV_WC_SUCCESS);
		for (double end = kit_now() + 5; deputies_of(h) != 1;)
			CHECK(kit_now() < end, "%d deputies", deputies_of(h));
		finish(&c);
	}
}

/* The target's process dies with half a message on its way: its receive request is flushed. */
static void the_target_dies(void)
{
	struct cast c;
	struct holder *h;
	uint32_t tgt;

	begin(&c, ROOM, 1);
	h = &c.t->holder[0];
	tgt = c.t->tgt;
	ask(h, 2);
	xrc_post(&c.s, IBV_WR_SEND, h->srqn, 0, 8, 0, 0);
	CHECK(xrc_ends(&c.s) == IBV_WC_SUCCESS);
	kit_stop(c.holder[0]);
	xrc_post(&c.s, IBV_WR_SEND, h->srqn, 0, ROOM, 0, 0);
	let_it_come();
	kill_one(&c.target);
	CHECK(xrc_ends(&c.s) == IBV_WC_RETRY_EXC_ERR);
	kit_cont(c.holder[0]);
	CHECK_EQ(next_of(&c, h, 0)->status, IBV_WC_SUCCESS);
	CHECK_EQ(next_of(&c, h, 1)->status, IBV_WC_WR_FLUSH_ERR);
	CHECK(h->came[1].qpn == tgt);
	finish(&c);
}

static void limit_descriptors(pid_t pid, bool on)
{
	struct rlimit r;

	CHECK(!prlimit(pid, RLIMIT_NOFILE, NULL, &r));
	r.rlim_cur = on ? 3 : r.rlim_max;
	CHECK(!prlimit(pid, RLIMIT_NOFILE, &r, NULL));
}

/* The target's process cannot make contact with a holder, for the one or the other has no descriptor left for
 * it.  The message waits until there is one. */
static void descriptors_run_out(void)
{
	struct ibv_wc wc;
	struct cast c;

	begin(&c, ROOM, 1);
	ask(&c.t->target, 1); /* so that the initiator's process and the target's are in contact */
	xrc_post(&c.s, IBV_WR_SEND, c.t->target.srqn, 0, 64, 0, 0);
	CHECK(xrc_ends(&c.s) == IBV_WC_SUCCESS);
	for (int i = 0; i < HOLDERS; i++) {
		pid_t lacks = i ? c.holder[i] : c.target;

		ask(&c.t->holder[i], 1);
		limit_descriptors(lacks, true);
		xrc_post(&c.s, IBV_WR_SEND, c.t->holder[i].srqn, 0, 64, 0, 0);
		kit_nap(300); /* the message is there at once, and attempts are 10 ms apart */
		CHECK(!atomic_load(&c.t->holder[i].got));
		limit_descriptors(lacks, false);
		wc = xrc_wait_on(c.s.cq);
		CHECK(wc.status == IBV_WC_SUCCESS, "holder %d: %s, vendor_err 0x%x", i,
		      ibv_wc_status_str(wc.status), wc.vendor_err);
		CHECK_EQ(next_of(&c, &c.t->holder[i], 0)->status, IBV_WC_SUCCESS);
	}
	finish(&c);
}

static const struct kit_case cases[] = {
    {.name = "all messages", .run = all_messages, .clean = true},
    {.name = "reads and atomics", .run = reads_and_atomics, .clean = true},
    {.name = "by turns", .run = by_turns, .clean = true},
    {.name = "no receive is posted", .run = no_receive_is_posted, .clean = true},
    {.name = "all receives are used up", .run = all_receives_are_used_up, .clean = true},
    {.name = "what is wrong", .run = what_is_wrong, .clean = true},
    {.name = "a process is stopped", .run = a_process_is_stopped, .clean = true},
    {.name = "another fills the way", .run = another_fills_the_way, .clean = true},
    {.name = "numbers of one process", .run = numbers_of_one_process, .clean = true},
    {.name = "a queue overruns", .run = a_queue_overruns, .clean = true},
    {.name = "a holder dies", .run = a_holder_dies, .clean = true},
    {.name = "the target is reset", .run = the_target_is_reset, .clean = true},
    {.name = "the target is reset early", .run = the_target_is_reset_early, .clean = true},
    {.name = "descriptors run out", .run = descriptors_run_out, .clean = true},
    {.name = "the socket is full", .run = the_socket_is_full, .clean = true},
    {.name = "the target dies", .run = the_target_dies, .clean = true},
};

int main(int argc, char **argv)
{
	kit_log_begin("warn");
	KIT_CASES(cases, 120);
	printf("ok\n");
	return 0;
}
