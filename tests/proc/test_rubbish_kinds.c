/* A peer that writes rubbish (harness/scribble.h) while it talks by datagrams, through a multicast group and
 * by XRC: packets of all types, also to queue pairs that expect nothing of it, what deputies and targets that
 * others have open are asked and told over the control socket, the groups that it shows.  The victim does not
 * crash or hang, what takes datagrams goes on taking them, its requests have ended when the peer is gone at
 * the latest, nothing stays of what it had for that peer.  It then talks to an honest one.
 *
 *     proc-rubbish_kinds [ROUNDS [SEED]]      default 10; 300 in make soak */
#include <poll.h>
#include <pthread.h>

#include "hca/hca.h"
#include "scribble.h"
#include "verbs/target.h"
#include "xrc.h"

enum {
	DEPTH = 16,
	GRH = 40,
	MTU = 4096,
	ROUND_MS = 150,
	AT = 64 << 10,
	SLOT = 4608,
	LONG = 40000,
	ENOUGH = 5
};

/* What the other end must know. */
struct card {
	struct kit_card ud;
	uint32_t ini, tgt, srqn, rkey;
	uint64_t addr;
	union ibv_gid gid;
};

static struct board {
	_Atomic int step;
	struct card a, b;	 /* the victim's, its peer's */
	_Atomic uint32_t ticket; /* of the victim's last question */
} * board;

static union ibv_gid group;
static uint64_t rng;
static int domain;

/* One process's half. */
struct half {
	struct xrc_side x;
	struct kit_end ud;
	struct ibv_ah *there, *to_group;
	struct ibv_qp *far; /* the peer's target, if it let this process open it */
	const struct card *peer;
	int posted, ended; /* by the initiator */
	int sent, left;	   /* datagrams */
	int good, came, groups, received;
	bool broken; /* the initiator */
};

static void open_half(struct half *h, struct card *c)
{
	*h = (struct half){0};
	xrc_open_side(&h->x, domain);
	kit_end_open_as(&h->ud, h->x.pd, 2 * DEPTH, XRC_SIZE, IBV_QPT_UD);
	CHECK(!ibv_attach_mcast(h->ud.qp, &group, 0));
	for (unsigned i = 0; i < DEPTH; i++) {
		CHECK(!kit_recv(&h->ud, i, AT + i * SLOT, GRH + MTU));
		xrc_give(h->x.srq, h->x.mr, i, AT + i * LONG, LONG);
	}
	*c = (struct card){.ud = h->ud.card,
			   .ini = h->x.ini->qp_num,
			   .tgt = h->x.tgt->qp_num,
			   .srqn = h->x.srqn,
			   .rkey = h->x.mr->rkey,
			   .addr = (uintptr_t)h->x.buf,
			   .gid = h->x.gid};
}

static void connect_half(struct half *h, const struct card *peer)
{
	struct ibv_ah_attr a = {.is_global = 1, .port_num = 1, .grh = {.dgid = group, .hop_limit = 1}};

	h->peer = peer;
	xrc_to_rts(h->x.tgt, &peer->gid, peer->ini);
	xrc_to_rts(h->x.ini, &peer->gid, peer->tgt);
	h->there = kit_ah(h->x.pd, &peer->ud);
	h->to_group = ibv_create_ah(h->x.pd, &a);
	CHECK(h->there && h->to_group);
}

static void post_datagram(struct half *h)
{
	bool to_group = kit_below(&rng, 2);

	if (h->sent - h->left >= DEPTH)
		return;
	CHECK(!kit_datagram(&h->ud, to_group ? h->to_group : h->there, to_group ? 0xffffff : h->peer->ud.qpn,
			    DEPTH, 0, kit_below(&rng, 2) ? kit_below(&rng, 64) : kit_below(&rng, MTU + 1)));
	h->sent++;
}

/* To an SRQ of either process. */
static void post_message(struct half *h)
{
	static const enum ibv_wr_opcode ops[] = {
	    IBV_WR_SEND,      IBV_WR_RDMA_WRITE,	   IBV_WR_RDMA_WRITE_WITH_IMM,
	    IBV_WR_RDMA_READ, IBV_WR_ATOMIC_FETCH_AND_ADD, IBV_WR_ATOMIC_CMP_AND_SWP};
	enum ibv_wr_opcode op = ops[kit_below(&rng, 6)];
	bool there = kit_below(&rng, 2);
	uint32_t len = op >= IBV_WR_ATOMIC_CMP_AND_SWP ? 8
		       : kit_below(&rng, 4)	       ? kit_below(&rng, 200)
						       : kit_below(&rng, LONG);

	if (h->broken || h->posted - h->ended >= DEPTH)
		return;
	xrc_post(&h->x, op, there ? h->peer->srqn : h->x.srqn, 0, len,
		 there ? h->peer->addr : (uintptr_t)h->x.buf, there ? h->peer->rkey : h->x.mr->rkey);
	h->posted++;
}

static void poll_half(struct half *h, bool strict)
{
	struct ibv_wc wc;

	while (ibv_poll_cq(h->ud.cq, 1, &wc) == 1) {
		CHECK(!strict || wc.status == IBV_WC_SUCCESS, "%s", ibv_wc_status_str(wc.status));
		if (wc.opcode != IBV_WC_RECV) {
			h->left++;
			continue;
		}
		CHECK(!strict || wc.byte_len >= GRH);
		h->came += wc.src_qp == h->peer->ud.qpn;
		h->groups += wc.src_qp == h->ud.qp->qp_num; /* one's own, by the group */
		kit_recv(&h->ud, wc.wr_id, AT + wc.wr_id * SLOT, GRH + MTU);
	}
	while (ibv_poll_cq(h->x.cq, 1, &wc) == 1) {
		h->ended++;
		h->good += wc.status == IBV_WC_SUCCESS;
		h->broken |= wc.status != IBV_WC_SUCCESS;
	}
	while (ibv_poll_cq(h->x.rcq, 1, &wc) == 1) {
		h->received += wc.status == IBV_WC_SUCCESS;
		CHECK(!strict || wc.wr_id < DEPTH);
		xrc_give(h->x.srq, h->x.mr, wc.wr_id, AT + wc.wr_id * LONG, LONG);
	}
}

static void drain_events(struct ibv_context *ctx)
{
	struct ibv_async_event ev;

	while (poll((struct pollfd[]){{.fd = ctx->async_fd, .events = POLLIN}}, 1, 0) == 1) {
		CHECK(!ibv_get_async_event(ctx, &ev));
		ibv_ack_async_event(&ev);
	}
}

/* Whoever has a target open asks for it, and what comes of that the peer may say as it likes. */
static void use_far(struct half *h)
{
	struct ibv_qp_init_attr init;
	struct ibv_qp_attr a = {.qp_state = IBV_QPS_INIT, .port_num = 1};

	if (!h->far)
		h->far = xrc_open_target(h->x.ctx, h->x.xrcd, h->peer->tgt);
	if (!h->far || kit_below(&rng, 64))
		return;
	(void)ibv_query_qp(h->far, &a, IBV_QP_STATE, &init);
	(void)ibv_modify_qp(h->far, &a, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS);
}

static void close_half(struct half *h)
{
	CHECK(!h->far || !ibv_destroy_qp(h->far));
	drain_events(h->x.ctx);
	CHECK(!ibv_destroy_ah(h->there) && !ibv_destroy_ah(h->to_group));
	CHECK(!ibv_detach_mcast(h->ud.qp, &group, 0));
	kit_end_close(&h->ud);
	xrc_close_side(&h->x);
}

/* ---- the wild one ---- */

static struct half mine;

/* As hca/forward.c has it. */
struct tell {
	uint32_t kind, target, ticket, number, deputy, dest_qpn, psn, path_mtu;
	uint64_t dev, ino;
};

static void say_something(const struct scribble_names *names)
{
	struct vb_adapter *a = vb_context(mine.x.ctx)->adapter;
	uint32_t n = vb_peer_count(a);
	struct vb_peer *peer = vb_peer_at(a, kit_below(&rng, n));
	struct vb_xrcd *x = vb_xrcd(mine.x.xrcd);
	struct tell t = {.kind = kit_below(&rng, 5),
			 .target = names->qpn[kit_below(&rng, names->nqpns)],
			 .ticket = kit_below(&rng, 2) ? 0x10001 * (1 + kit_below(&rng, 4))
						      : (uint32_t)kit_random(&rng),
			 .number = names->qpn[kit_below(&rng, names->nqpns)] >> 12,
			 .deputy = names->qpn[kit_below(&rng, names->nqpns)],
			 .dest_qpn = names->qpn[kit_below(&rng, names->nqpns)],
			 .psn = (uint32_t)kit_random(&rng),
			 .path_mtu = kit_below(&rng, 7),
			 .dev = kit_below(&rng, 4) ? x->id.dev : VB_XRCD_PRIVATE,
			 .ino = x->id.ino};

	for (uint32_t k = kit_below(&rng, 3); k; k--)
		((uint8_t *)&t)[kit_below(&rng, sizeof t)] = (uint8_t)scribble_rubbish(&rng);
	(void)vb_peer_tell(peer, (uint8_t)(kit_below(&rng, 8) ? VB_SUBJECT_XRC : kit_below(&rng, 5)), &t,
			   kit_below(&rng, 16) ? sizeof t : 1 + kit_below(&rng, VB_TELL_MAX - 28), -1);
}

/* What is said of targets that others have open: questions of all kinds, answers, events. */
static void say_of_targets(const struct scribble_names *names)
{
	struct vb_adapter *a = vb_context(mine.x.ctx)->adapter;
	struct vb_peer *peer = vb_peer_at(a, kit_below(&rng, vb_peer_count(a)));
	struct vb_xrcd *x = vb_xrcd(mine.x.xrcd);
	struct vb_target_tell t = {
	    .head = {.kind = kit_below(&rng, 9), .ticket = atomic_load(&board->ticket) + kit_below(&rng, 3)},
	    .handle = kit_below(&rng, 40),
	};

	if (t.head.kind == VB_TARGET_OPEN) {
		t.open.dev = kit_below(&rng, 8) ? x->id.dev : VB_XRCD_PRIVATE;
		t.open.ino = x->id.ino;
		t.open.qpn = kit_below(&rng, 2) ? board->a.tgt : names->qpn[kit_below(&rng, names->nqpns)];
	} else if (t.head.kind == VB_TARGET_MODIFY || t.head.kind == VB_TARGET_ANSWER) {
		struct vb_target_attr *to = t.head.kind == VB_TARGET_MODIFY ? &t.modify.attr : &t.answer.attr;

		for (size_t i = 0; i < sizeof *to; i++)
			((uint8_t *)to)[i] = (uint8_t)scribble_rubbish(&rng);
		to->state = (uint8_t)kit_below(&rng, 8);
		if (t.head.kind == VB_TARGET_ANSWER) {
			t.answer.err = kit_below(&rng, 3) ? (int)kit_below(&rng, 200) - 20 : 0;
		} else {
			t.modify.from = kit_below(&rng, 8);
			t.modify.mask =
			    1 << kit_below(&rng, 26) | 1 << kit_below(&rng, 26) | kit_below(&rng, 2);
		}
	} else {
		t.event = kit_below(&rng, 12);
	}
	if (t.head.kind == VB_TARGET_ANSWER && kit_below(&rng, 2)) { /* to another question than was asked */
		struct {
			struct vb_ask_head head;
			uint32_t handle, reserved;
			uint64_t length;
		} dm = {.head = {2, t.head.ticket}};

		(void)vb_peer_tell(peer, VB_SUBJECT_DM, &dm, sizeof dm, domain);
		return;
	}
	(void)vb_peer_tell(peer, VB_SUBJECT_TARGET, &t,
			   kit_below(&rng, 16) ? sizeof t : 1 + kit_below(&rng, 80), -1);
}

static void *scribble(void *arg)
{
	const struct card *a = &board->a, *b = &board->b;
	struct scribble_names names = {.qpn = {a->ud.qpn, a->tgt, a->ini, b->ud.qpn, b->tgt, b->ini,
					       a->tgt + 1, a->ini + 1}, /* where a deputy is */
				       .nqpns = 8,
				       .srqn = {a->srqn, b->srqn, a->srqn + 1},
				       .nsrqns = 3,
				       .qkey = KIT_QKEY};
	uint8_t *seg = scribble_segment();
	int only = *(int *)arg;

	memcpy(names.mgid, group.raw, sizeof names.mgid);
	for (;;) {
		int what = only ? only : 1 + (int)kit_below(&rng, 4);

		if (what == 1)
			scribble_packet(seg, &rng, &names);
		else if (what == 2)
			say_something(&names);
		else if (what == 4)
			say_of_targets(&names);
		else
			scribble_word(seg, &rng, (int)kit_below(&rng, SCRIBBLE_PARTS), b->tgt & 0xfff);
		if (!kit_below(&rng, 64))
			sched_yield();
	}
	return NULL;
}

/* what: scribble()'s; -1: an honest one. */
static pid_t peer(int what)
{
	pid_t pid = kit_fork();
	pthread_t t;

	if (pid)
		return pid;
	rng ^= (uint64_t)getpid() << 32;
	open_half(&mine, &board->b);
	atomic_store(&board->step, 1);
	kit_until(&board->step, 2);
	connect_half(&mine, &board->a);
	atomic_store(&board->step, 3);
	if (what >= 0)
		CHECK(freopen("/dev/null", "w", stderr) && !pthread_create(&t, NULL, scribble, &what));
	for (;;) {
		poll_half(&mine, what < 0);
		post_datagram(&mine);
		post_message(&mine);
	}
}

/* ---- the victim ---- */

static bool is_talking(const struct half *h)
{
	return h->came >= ENOUGH && h->groups >= ENOUGH && h->good >= ENOUGH && h->received >= ENOUGH;
}

/* How many there are.  A domain of no file is not for others. */
static int deputies(struct ibv_context *ctx)
{
	struct vb_context *inner = &vb_hca(vb_context(ctx)->adapter)->inner;
	int n = 0;

	vb_lock_take(&inner->lock);
	vb_list_each (node, &inner->qps) {
		const struct vb_qp *d = vb_list_entry(node, struct vb_qp, on_ctx);

		CHECK(d->xrcd->id.dev != VB_XRCD_PRIVATE);
		n++;
	}
	vb_lock_give(&inner->lock);
	return n;
}

/* How often peers have targets of this process open. */
static int openings(struct ibv_context *ctx)
{
	struct vb_hca *h = vb_hca(vb_context(ctx)->adapter);
	int n = 0;

	pthread_mutex_lock(&h->openings_lock);
	vb_list_each (node, &h->openings)
		n++;
	pthread_mutex_unlock(&h->openings_lock);
	return n;
}

static void round_with(struct ibv_context *ctx, int what)
{
	int before = kit_descriptors(), status;
	struct half h;
	double end, limit;
	pid_t pid;

	atomic_store(&board->step, 0);
	pid = peer(what);
	open_half(&h, &board->a);
	kit_until(&board->step, 1);
	atomic_store(&board->step, 2);
	connect_half(&h, &board->b);
	kit_until(&board->step, 3);
	end = kit_now() + ROUND_MS / 1000.;
	limit = kit_now() + 20; /* an honest one may be slow */
	while (kit_now() < end || (what < 0 && !is_talking(&h) && kit_now() < limit)) {
		poll_half(&h, true);
		post_datagram(&h);
		post_message(&h);
		(void)deputies(ctx);
		atomic_store(&board->ticket, vb_hca(vb_context(ctx)->adapter)->tickets);
		if (what == 4)
			use_far(&h);
	}
	/* one that spoils its own tables may well crash */
	CHECK(what >= 0 || waitpid(pid, &status, WNOHANG) == 0, "the honest peer ended: 0x%x", status);
	CHECK(what >= 0 || (is_talking(&h) && !h.broken),
	      "an honest peer: %d datagrams, %d by the group, %d of %d messages, %d taken", h.came, h.groups,
	      h.good, h.posted, h.received);
	kill(pid, SIGKILL);
	kit_reap(pid);
	for (end = kit_now() + 20; h.ended < h.posted || h.left < h.sent || deputies(ctx) || openings(ctx);) {
		poll_half(&h, true);
		CHECK(kit_now() < end,
		      "%d of %d messages end, %d of %d datagrams, %d deputies stay, %d openings: %d", h.ended,
		      h.posted, h.left, h.sent, deputies(ctx), openings(ctx), what);
	}
	CHECK(h.ud.qp->state == IBV_QPS_RTS);
	close_half(&h);
	for (end = kit_now() + 20; kit_descriptors() > before;)
		CHECK(kit_now() < end, "%d descriptors, there were %d: %d", kit_descriptors(), before, what);
}

int main(int argc, char **argv)
{
	int rounds = argc > 1 ? atoi(argv[1]) : getenv("VERBENA_SOAK") ? 300 : 10;
	struct ibv_context *ctx;

	rng = argc > 2 ? strtoull(argv[2], NULL, 0) : (uint64_t)getpid() << 20 ^ (uint64_t)time(NULL);
	printf("rubbish_kinds: seed %" PRIu64 "\n", rng);
	fflush(stdout);
	rng |= 1;
	group = (union ibv_gid){.raw = {0xff, 0x0e, [15] = 9}};
	memcpy(group.raw + 4, (int[]){getpid()},
	       sizeof(int)); /* others of the network namespace have other ones */
	board = kit_shared(sizeof *board);
	domain = xrc_domain_file();
	xrc_rnr_retry = 7;
	alarm(rounds * 60 + 60);
	kit_log_begin("warn");
	/* forked peers before this process has a device, and after: both are what programs do */
	ctx = kit_open();
	for (int r = 0; r < rounds; r++) {
		round_with(ctx, r % 5);
		if (r % 5 == 4)
			round_with(ctx, -1);
	}
	drain_events(ctx);
	CHECK(!ibv_close_device(ctx));
	/* what was forged did come to its victim */
	CHECK(rounds < 5 || kit_log_says("bytes is discarded: "), "%s", kit_log_text());
	printf("%d rounds\n", rounds);
	return 0;
}
