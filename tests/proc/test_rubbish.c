/* A peer that writes rubbish into its own segment: rings, counters, keys, what it shows of its QPs,
 * announcements, the head.  The victim ends that link or goes on: it does not crash, hang or read where it
 * must not (the sanitizers look), and its requests have ended when the peer is gone at the latest.  It then
 * talks to an honest one.
 *
 *     proc-rubbish [ROUNDS [SEED]]      default 12; 300 in make soak */
#include <errno.h>
#include <poll.h>
#include <pthread.h>

#include "host/segment.h"
#include "kit.h"
#include "mem/keys.h"

enum { SIZE = 128 << 10, DEPTH = 16, ROUND_MS = 120, PARTS = 10, FORGE = PARTS };

struct board {
	_Atomic int step;
	struct kit_card a, b;
};

static struct board *board;
static uint64_t rng;

static uint8_t *own_segment(void)
{
	FILE *f = fopen("/proc/self/maps", "r");
	unsigned long from, to;
	char perms[8], line[512];

	CHECK(f);
	while (fgets(line, sizeof line, f)) {
		if (strstr(line, "/memfd:verbena") && sscanf(line, "%lx-%lx %7s", &from, &to, perms) == 3 &&
		    perms[1] == 'w') {
			CHECK(to - from == VB_SEG_SIZE);
			fclose(f);
			return (uint8_t *)from;
		}
	}
	CHECK(0, "no segment of our own");
	return NULL;
}

/* Somewhere in a table of which the first entries matter. */
static uint64_t in_table(uint64_t at, uint64_t entries, uint64_t size)
{
	return at + kit_below(&rng, entries) * size + kit_below(&rng, size);
}

/* Where to strike: an offset. */
static uint64_t aim(int part, uint32_t index)
{
	uint64_t ring = VB_SEG_RINGS + kit_below(&rng, 3) * sizeof(struct vb_ring);

	switch (part) {
	case 0:
		return in_table(ring, VB_RING_SLOTS, sizeof(struct vb_slot));
	case 1: /* lengths, flags and sequence numbers */
		return ring + kit_below(&rng, VB_RING_SLOTS) * sizeof(struct vb_slot) + kit_below(&rng, 12);
	case 2:
		return ring + offsetof(struct vb_ring, data) + kit_below(&rng, VB_RING_DATA);
	case 3:
		return in_table(VB_SEG_CONSUMED, 4, VB_LINE);
	case 4:
		return in_table(VB_SEG_KEYS, 8, VB_LINE);
	case 5:
		return in_table(VB_SEG_KEY_SLOTS, VB_MEM_SLOTS, VB_LINE);
	case 6:
		return VB_SEG_QPS + index * VB_LINE + kit_below(&rng, VB_LINE);
	case 7:
		return kit_below(&rng, sizeof(struct vb_seg_head));
	case 8:
		return VB_SEG_KEY_MARKS + kit_below(&rng, VB_LINE);
	default:
		return VB_SEG_AWAKE + kit_below(&rng, 4);
	}
}

static uint64_t rubbish(void)
{
	static const uint64_t likely[] = {0,	      1,	  0xff,	  0xffffffff,  0x7fffffff,
					  UINT64_MAX, 1ull << 63, 0x1000, VB_RING_DATA};

	return kit_below(&rng, 2) ? kit_random(&rng)
				  : likely[kit_below(&rng, sizeof likely / sizeof *likely)];
}

/* A packet of our own making, behind the last one: a real one with a few bytes changed. */
static void forge(uint8_t *seg)
{
	struct vb_ring *r = (struct vb_ring *)(seg + VB_SEG_RINGS) + 1;
	uint32_t last = 0;
	struct vb_slot *s;

	for (uint32_t i = 0; i < VB_RING_SLOTS; i++) {
		uint32_t seq = atomic_load(&r->slots[i].seq);

		if (seq > last && seq < 1u << 24)
			last = seq;
	}
	if (!last)
		return;
	s = &r->slots[last % VB_RING_SLOTS];
	memcpy((uint8_t *)s + 4, (uint8_t *)&r->slots[(last - 1) % VB_RING_SLOTS] + 4, sizeof *s - 4);
	if (kit_below(&rng, 4)) { /* the next PSN, so that it is not just a duplicate */
		uint8_t *psn = s->hdr + 9;
		uint32_t v = ((uint32_t)psn[0] << 16 | (uint32_t)psn[1] << 8 | psn[2]) + 1;

		psn[0] = (uint8_t)(v >> 16);
		psn[1] = (uint8_t)(v >> 8);
		psn[2] = (uint8_t)v;
	}
	if (kit_below(&rng, 2))
		s->hdr[0] = 4; /* SEND Only, of any length */
	if (kit_below(&rng, 2))
		s->flags ^= VB_SLOT_DATA;
	if (kit_below(&rng, 2))
		s->data_off = (uint32_t)rubbish();
	if (kit_below(&rng, 2))
		s->data_len = (uint32_t)(kit_below(&rng, 2) ? rubbish() : kit_below(&rng, VB_RING_MTU + 100));
	for (uint64_t n = kit_below(&rng, 3); n; n--)
		((uint8_t *)s)[4 + kit_below(&rng, sizeof *s - 4)] = (uint8_t)rubbish();
	atomic_store(&s->seq, last + 1);
}

static void *scribble(void *arg)
{
	uint8_t *seg = own_segment();
	int only = *(int *)arg;

	for (;;) {
		uint64_t at = aim(only >= 0 ? only : (int)kit_below(&rng, PARTS), board->b.qpn & 0xfff),
			 v = rubbish();
		size_t n = (size_t[]){1, 2, 4, 8}[kit_below(&rng, 4)];

		if (only == FORGE || (only < 0 && kit_below(&rng, 2))) {
			forge(seg);
			continue;
		}
		memcpy(seg + (at & ~(n - 1)), &v, n);
		if (!kit_below(&rng, 64))
			sched_yield();
	}
	return NULL;
}

static const enum ibv_wr_opcode ops[] = {IBV_WR_SEND,
					 IBV_WR_RDMA_WRITE,
					 IBV_WR_RDMA_READ,
					 IBV_WR_ATOMIC_FETCH_AND_ADD,
					 IBV_WR_ATOMIC_CMP_AND_SWP,
					 IBV_WR_RDMA_WRITE_WITH_IMM};

static int post(struct kit_end *e, const struct kit_card *peer)
{
	enum ibv_wr_opcode op = ops[kit_below(&rng, 6)];
	bool atomic = op == IBV_WR_ATOMIC_FETCH_AND_ADD || op == IBV_WR_ATOMIC_CMP_AND_SWP;
	uint32_t len =
	    atomic ? 8
		   : (uint32_t)(kit_below(&rng, 2) ? 1 + kit_below(&rng, 64) : 1 + kit_below(&rng, SIZE / 2));

	return kit_post(e, op, 1, SIZE / 2, len, peer, 0);
}

/* Talks without minding what comes of it. */
static void babble(struct kit_end *e, const struct kit_card *peer, bool wild, int part)
{
	struct ibv_wc wc;
	pthread_t t;

	for (int i = 0; i < DEPTH; i++)
		CHECK(!kit_recv(e, 2, 0, SIZE / 2));
	if (wild)
		CHECK(freopen("/dev/null", "w", stderr) && !pthread_create(&t, NULL, scribble, &part));
	for (;;) {
		while (ibv_poll_cq(e->cq, 1, &wc) == 1)
			if (wc.opcode & IBV_WC_RECV && wc.status == IBV_WC_SUCCESS)
				kit_recv(e, 2, 0, SIZE / 2);
		post(e, peer);
	}
}

static pid_t peer(bool wild, int part)
{
	pid_t pid = kit_fork();
	struct kit_end e;

	if (pid)
		return pid;
	rng ^= (uint64_t)getpid() << 32;
	kit_end_open(&e, ibv_alloc_pd(kit_open()), 2 * DEPTH, SIZE);
	board->b = e.card;
	atomic_store(&board->step, 1);
	kit_until(&board->step, 2);
	kit_connect(&e, &board->a);
	atomic_store(&board->step, 3);
	babble(&e, &board->a, wild, part);
	return 0;
}

struct victim {
	struct kit_end e;
	int sent, ended;
	bool broken;
};

static void turn(struct victim *v, const struct kit_card *to)
{
	struct ibv_wc wc[4];
	int n = ibv_poll_cq(v->e.cq, 4, wc);

	CHECK(n >= 0);
	for (int i = 0; i < n; i++) {
		if (wc[i].wr_id == 1)
			v->ended++;
		if (wc[i].status != IBV_WC_SUCCESS)
			v->broken = true;
		else if (wc[i].wr_id == 2)
			kit_recv(&v->e, 2, 0, SIZE / 2);
	}
	if (to && !v->broken && v->sent - v->ended < DEPTH)
		v->sent += !post(&v->e, to);
}

/* part < 0: all of them in turn. */
static void round_with(struct ibv_context *ctx, struct ibv_pd *pd, bool wild, int part)
{
	struct victim v = {0};
	struct ibv_async_event ev;
	double end, limit;
	int status;
	pid_t pid;

	atomic_store(&board->step, 0);
	pid = peer(wild, part);
	kit_end_open(&v.e, pd, 2 * DEPTH, SIZE);
	for (int i = 0; i < DEPTH; i++)
		CHECK(!kit_recv(&v.e, 2, 0, SIZE / 2));
	kit_until(&board->step, 1);
	board->a = v.e.card;
	atomic_store(&board->step, 2);
	kit_until(&board->step, 3);
	kit_to_rtr(&v.e, &board->b);
	/* one that spoils its own tables may have crashed by now: the queue pair is in the error state then
	 */
	v.broken = kit_try_rts(&v.e, 14, 7) != 0;
	CHECK(!v.broken || (wild && v.e.qp->state == IBV_QPS_ERR));
	end = kit_now() + ROUND_MS / 1000.;
	limit = kit_now() + 10; /* an honest one may be slow */
	while (kit_now() < end || (!wild && !v.broken && v.ended <= 5 && kit_now() < limit))
		turn(&v, &board->b);
	/* one that spoils its own tables may well crash */
	CHECK(wild || waitpid(pid, &status, WNOHANG) == 0, "the honest peer ended: 0x%x", status);
	CHECK(wild || (!v.broken && v.ended > 5), "an honest peer: %d of %d requests", v.ended, v.sent);
	kill(pid, SIGKILL);
	kit_reap(pid);
	for (end = kit_now() + 15; v.ended < v.sent;) {
		turn(&v, NULL);
		CHECK(kit_now() < end, "%d of %d requests end, part %d", v.ended, v.sent, part);
	}
	while (poll((struct pollfd[]){{.fd = ctx->async_fd, .events = POLLIN}}, 1, 0) == 1) {
		CHECK(!ibv_get_async_event(ctx, &ev));
		ibv_ack_async_event(&ev);
	}
	kit_end_close(&v.e);
}

int main(int argc, char **argv)
{
	int rounds = argc > 1 ? atoi(argv[1]) : getenv("VERBENA_SOAK") ? 300 : 12;
	struct ibv_context *ctx;
	struct ibv_pd *pd;

	rng = argc > 2 ? strtoull(argv[2], NULL, 0) : (uint64_t)getpid() << 20 ^ (uint64_t)time(NULL);
	printf("rubbish: seed %" PRIu64 "\n", rng);
	fflush(stdout);
	rng |= 1;
	board = kit_shared(sizeof *board);
	alarm(rounds * 20 + 60);
	/* forked peers before this process has a device, and after: both are what programs do */
	ctx = kit_open();
	pd = ibv_alloc_pd(ctx);
	CHECK(pd);
	for (int r = 0; r < rounds; r++) {
		round_with(ctx, pd, true, r % (FORGE + 2) - 1);
		if (r % 4 == 3)
			round_with(ctx, pd, false, -1);
	}
	CHECK(!ibv_dealloc_pd(pd) && !ibv_close_device(ctx));
	printf("%d rounds\n", rounds);
	return 0;
}
