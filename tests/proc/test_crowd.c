/* Many processes, and all that needs no connection at once: datagrams from each to each, a group of which all
 * are members, and initiators of XRC, each of whose messages goes to the SRQ of the next process, so that
 * every SRQ is shared by all target queue pairs.  Bytes are compared.  XRC loses nothing and a datagram is
 * lost only where that is counted.
 *
 *     proc-crowd [CASE]      16 processes; in make soak 64, and more messages */
#include <sched.h>

#include "host/segment.h"
#include "iba/reason.h"
#include "xrc.h"

enum {
	MAX = 64,
	GRH = 40,
	MOST = 1024,		     /* bytes of a message */
	SLOT = GRH + MOST + 24,	     /* of the buffers */
	RECEIVES = 512,		     /* of datagrams */
	WINDOW = 64,		     /* datagrams that may be on their way out */
	XRC_ROOM = XRC_DEPTH * SLOT, /* bytes in front of the SRQ's buffers, which the initiator sends from */
};

/* Rounds of datagrams by which a process may be ahead of the slowest one.  More come in them than receive
 * requests are posted, so some are lost where all are late; without a limit most would be. */
#define AHEAD 12u

enum kind { TO_ONE, TO_GROUP, BY_XRC };

struct head {
	uint32_t kind, from, to, seq, len;
};

static struct board {
	int n;
	unsigned each, group, xrc; /* messages to each process, to the group, to each SRQ */
	_Atomic int opened, connected, finished, over;
	_Atomic unsigned sent[MAX];		 /* rounds of datagrams, by each */
	_Atomic uint64_t got[MAX], dropped[MAX]; /* datagrams, each process's own */
	_Atomic unsigned xrc_got[MAX];		 /* messages of XRC */
	struct kit_card card[MAX];
	union ibv_gid gid[MAX];
	uint32_t srqn[MAX], ini[MAX], tgt[MAX];
} * board;

/* One process. */
static int me;
static struct xrc_side side;
static struct kit_end ud;
static struct ibv_ah *ah[MAX], *group_ah;
static const struct vb_drops *drops;
static uint32_t next_seq[3][MAX]; /* what is due, by kind and sender; of datagrams at least that */
static unsigned sent, acked, xrc_sent, xrc_acked, xrc_got;

static union ibv_gid group(void)
{
	return (union ibv_gid){.raw = {[10] = 0xff, 0xff, 239, 8, 8, 8}};
}

static uint8_t pattern(const struct head *h, uint32_t i)
{
	return (uint8_t)(i * 7 + h->seq * 3 + h->from * 13 + h->to * 5 + h->kind);
}

/* Puts a message together; returns its length. */
static uint32_t write_message(uint8_t *at, enum kind kind, int to, uint32_t seq)
{
	struct head h = {kind, (uint32_t)me, (uint32_t)to, seq, 0};

	h.len = (uint32_t)sizeof h + (seq * 37 + h.from * 11) % (MOST - (uint32_t)sizeof h);
	memcpy(at, &h, sizeof h);
	for (uint32_t i = sizeof h; i < h.len; i++)
		at[i] = pattern(&h, i);
	return h.len;
}

/* The message is whole, of the kind, for this process, and none that came before. */
static void check_message(const uint8_t *at, uint32_t len, bool xrc)
{
	struct head h;

	memcpy(&h, at, sizeof h);
	CHECK(h.kind <= BY_XRC && (h.kind == BY_XRC) == xrc && h.len == len, "kind %u, %u bytes of %u",
	      h.kind, len, h.len);
	CHECK(h.from < (uint32_t)board->n &&
	      h.to == (h.kind == TO_GROUP ? (uint32_t)board->n : (uint32_t)me));
	CHECK(xrc ? h.seq == next_seq[h.kind][h.from] : h.seq >= next_seq[h.kind][h.from],
	      "from %u, kind %u: message %u, and %u was due", h.from, h.kind, h.seq,
	      next_seq[h.kind][h.from]);
	next_seq[h.kind][h.from] = h.seq + 1;
	for (uint32_t i = sizeof h; i < len; i++)
		CHECK(at[i] == pattern(&h, i), "byte %u of %u from %u", i, len, h.from);
}

static uint64_t lost(void)
{
	CHECK(!drops->count[VB_R_DROP_TOO_SMALL] && !drops->count[VB_R_DROP_QKEY] &&
	      !drops->count[VB_R_DROP_NO_QP] && !drops->count[VB_R_DROP_NOBODY]);
	return drops->count[VB_R_DROP_NO_RECV] + drops->count[VB_R_DROP_FULL];
}

static unsigned datagrams(void)
{
	return board->each * (unsigned)board->n + board->group;
}

static unsigned slowest(void)
{
	unsigned least = atomic_load(&board->sent[0]);

	for (int i = 1; i < board->n; i++) {
		unsigned n = atomic_load(&board->sent[i]);

		least = n < least ? n : least;
	}
	return least;
}

/* Sends what there is room for, datagrams to the group in between those to each. */
static bool send_datagrams(void)
{
	unsigned before = sent, end = (slowest() + AHEAD) * ((unsigned)board->n + 1);

	for (; sent < datagrams() && sent < end && sent - acked < WINDOW; sent++) {
		unsigned round = sent / ((unsigned)board->n + 1), to = sent % ((unsigned)board->n + 1);
		size_t at = (size_t)(RECEIVES + sent % WINDOW) * SLOT;
		bool all = to == (unsigned)board->n;
		uint32_t len = write_message(ud.buf + at, all ? TO_GROUP : TO_ONE, (int)to, round);

		CHECK(!kit_datagram(&ud, all ? group_ah : ah[to], all ? 0xffffff : board->card[to].qpn,
				    RECEIVES, at, len));
	}
	atomic_store(&board->sent[me], sent / ((unsigned)board->n + 1));
	return sent != before;
}

static bool take_datagrams(void)
{
	struct ibv_wc wc[16];
	int n = ibv_poll_cq(ud.cq, 16, wc);

	CHECK(n >= 0);
	for (int i = 0; i < n; i++) {
		size_t at = wc[i].wr_id * SLOT;

		CHECK(wc[i].status == IBV_WC_SUCCESS, "%s", ibv_wc_status_str(wc[i].status));
		if (wc[i].opcode == IBV_WC_SEND) {
			acked++;
			continue;
		}
		check_message(ud.buf + at + GRH, wc[i].byte_len - GRH, false);
		atomic_fetch_add(&board->got[me], 1);
		CHECK(!kit_recv(&ud, wc[i].wr_id, at, SLOT));
	}
	return n > 0;
}

static unsigned xrc_messages(void)
{
	return board->xrc * (unsigned)board->n;
}

static bool send_xrc(void)
{
	unsigned before = xrc_sent;

	for (; xrc_sent < xrc_messages() && xrc_sent - xrc_acked < XRC_DEPTH; xrc_sent++) {
		unsigned to = (xrc_sent + (unsigned)me) % (unsigned)board->n;
		size_t at = (size_t)(xrc_sent % XRC_DEPTH) * SLOT;
		uint32_t len = write_message(side.buf + at, BY_XRC, (int)to, xrc_sent / (unsigned)board->n);

		xrc_post(&side, IBV_WR_SEND, board->srqn[to], at, len, 0, 0);
	}
	return xrc_sent != before;
}

static void give(uint64_t slot)
{
	xrc_give(side.srq, side.mr, slot, XRC_ROOM + slot * SLOT, SLOT);
}

static bool take_xrc(void)
{
	struct ibv_wc wc[16];
	int out = ibv_poll_cq(side.cq, 16, wc), in;

	CHECK(out >= 0);
	for (int i = 0; i < out; i++)
		CHECK(wc[i].status == IBV_WC_SUCCESS, "%s", ibv_wc_status_str(wc[i].status));
	xrc_acked += (unsigned)out;
	in = ibv_poll_cq(side.rcq, 16, wc);
	CHECK(in >= 0);
	for (int i = 0; i < in; i++) {
		CHECK(wc[i].status == IBV_WC_SUCCESS, "%s", ibv_wc_status_str(wc[i].status));
		check_message(side.buf + XRC_ROOM + wc[i].wr_id * SLOT, wc[i].byte_len, true);
		give(wc[i].wr_id);
	}
	xrc_got += (unsigned)in;
	atomic_store(&board->xrc_got[me], xrc_got);
	return out + in > 0;
}

static void open_all(int domain)
{
	const uint8_t *seg;

	xrc_rnr_retry = 7; /* for ever: sixteen receive requests are for the messages of all */
	xrc_open_side(&side, domain);
	seg = mmap(NULL, VB_SEG_CONSUMED, PROT_READ, MAP_SHARED, side.ctx->cmd_fd, 0);
	CHECK(seg != MAP_FAILED);
	drops = (const struct vb_drops *)(const void *)(seg + VB_SEG_DROPS);
	for (int i = 0; i < XRC_DEPTH; i++)
		give((uint64_t)i);
	kit_end_open_as(&ud, side.pd, RECEIVES, (size_t)(RECEIVES + WINDOW) * SLOT, IBV_QPT_UD);
	for (int i = 0; i < RECEIVES; i++)
		CHECK(!kit_recv(&ud, (uint64_t)i, (size_t)i * SLOT, SLOT));
	CHECK(!ibv_attach_mcast(ud.qp, (union ibv_gid[]){group()}, 0), "%s", strerror(errno));
	board->card[me] = ud.card;
	board->gid[me] = side.gid;
	board->srqn[me] = side.srqn;
	board->ini[me] = side.ini->qp_num;
	board->tgt[me] = side.tgt->qp_num;
	atomic_fetch_add(&board->opened, 1);
	kit_until(&board->opened, board->n);
	for (int i = 0; i < board->n; i++)
		ah[i] = kit_ah(side.pd, &board->card[i]);
	group_ah = kit_ah(side.pd, &(struct kit_card){.gid = group()});
	/* In pairs: each one's initiator leads to the other one's target. */
	xrc_to_rts(side.tgt, &board->gid[me ^ 1], board->ini[me ^ 1]);
	xrc_to_rts(side.ini, &board->gid[me ^ 1], board->tgt[me ^ 1]);
	/* A target that is not connected yet drops what comes, and half a second of that is an error: less
	 * than one of many processes may wait for its CPU. */
	atomic_fetch_add(&board->connected, 1);
	kit_until(&board->connected, board->n);
}

static void close_all(void)
{
	CHECK(!ibv_detach_mcast(ud.qp, (union ibv_gid[]){group()}, 0));
	for (int i = 0; i < board->n; i++)
		CHECK(!ibv_destroy_ah(ah[i]));
	CHECK(!ibv_destroy_ah(group_ah));
	kit_end_close(&ud);
	CHECK(!munmap((void *)(uintptr_t)((const uint8_t *)drops - VB_SEG_DROPS), VB_SEG_CONSUMED));
	xrc_close_side(&side);
}

static void child(int domain)
{
	bool finished = false;

	open_all(domain);
	while (!atomic_load(&board->over)) {
		bool busy = send_datagrams();

		busy |= send_xrc();
		busy |= take_datagrams();
		busy |= take_xrc();
		atomic_store(&board->dropped[me], lost());
		if (!finished && acked == datagrams() && xrc_acked == xrc_messages() &&
		    xrc_got == xrc_messages()) {
			finished = true;
			atomic_fetch_add(&board->finished, 1);
		}
		if (!busy)
			sched_yield();
	}
	CHECK(!take_datagrams() && !take_xrc(), "more came than was sent");
	for (int i = 0; i < board->n; i++)
		CHECK(next_seq[BY_XRC][i] == board->xrc);
	close_all();
}

/* They finish at about the same time, and on a busy machine minutes after they began: only where nothing
 * moves at all they hang. */
static void until_finished(void)
{
	uint64_t moved, last = 0;
	double since = kit_now();

	while (atomic_load(&board->finished) < board->n) {
		moved = (uint64_t)atomic_load(&board->finished);
		for (int i = 0; i < board->n; i++)
			moved += atomic_load(&board->got[i]) + atomic_load(&board->dropped[i]) +
				 atomic_load(&board->xrc_got[i]);
		if (moved != last) {
			last = moved;
			since = kit_now();
		}
		CHECK(kit_now() < since + 60, "nothing moves, and %d of %d have finished",
		      atomic_load(&board->finished), board->n);
		kit_nap(10);
	}
}

/* All datagrams have arrived, or have been counted where they were lost.  The two are read one after the
 * other while they grow, so a sum that is too small says nothing yet. */
static void accounted_for(uint64_t copies)
{
	uint64_t got, dropped, last = 0;
	double since = kit_now();

	do {
		got = dropped = 0;
		for (int i = 0; i < board->n; i++) {
			got += atomic_load(&board->got[i]);
			dropped += atomic_load(&board->dropped[i]);
		}
		CHECK(got + dropped <= copies, "%" PRIu64 " came, %" PRIu64 " were lost, of %" PRIu64, got,
		      dropped, copies);
		if (got + dropped != last) {
			last = got + dropped;
			since = kit_now();
		}
		CHECK(kit_now() < since + 30,
		      "%" PRIu64 " came, %" PRIu64 " are counted as lost, of %" PRIu64, got, dropped, copies);
		kit_nap_us(500);
	} while (got + dropped < copies);
	printf("%d processes: %" PRIu64 " datagrams came, %" PRIu64
	       " were lost and counted; %u messages of XRC\n",
	       board->n, got, dropped, board->xrc * (unsigned)(board->n * board->n));
	CHECK(got > copies / 2, "more are lost than come");
}

static void crowd(void)
{
	bool soak = getenv("VERBENA_SOAK");
	int domain = xrc_domain_file();
	pid_t pid[MAX];

	board = kit_shared(sizeof *board);
	board->n = soak ? MAX : 16;
	board->each = board->group = soak ? 200 : 20;
	board->xrc = soak ? 50 : 10;
	for (me = 0; me < board->n; me++) {
		pid[me] = kit_fork();
		if (!pid[me]) {
			child(domain);
			exit(0);
		}
	}
	until_finished();
	accounted_for((uint64_t)board->n * board->n * (board->each + board->group));
	atomic_store(&board->over, 1);
	for (int i = 0; i < board->n; i++)
		CHECK(!kit_reap(pid[i]), "process %d", i);
	close(domain);
}

static void as_another_user(bool alone)
{
	pid_t pid = kit_fork_as(KIT_FOREIGN);

	if (pid) {
		CHECK(!kit_reap(pid));
		return;
	}
	prctl(PR_SET_DUMPABLE,
	      1); /* else its files in /proc are root's, and the map of its namespace is one */
	if (alone && !kit_own_network())
		printf("SKIP: no namespaces of its own: %s\n", strerror(errno));
	else
		crowd();
	fflush(stdout);
	_exit(0);
}

static void ordinary_user(void)
{
	as_another_user(false);
}

static void user_in_namespaces_of_its_own(void)
{
	as_another_user(true);
}

static const struct kit_case cases[] = {
    {"crowd", crowd, .clean = true},
    {"ordinary_user", ordinary_user, .foreign = true},
    {"user_in_namespaces_of_its_own", user_in_namespaces_of_its_own, .foreign = true}};

int main(int argc, char **argv)
{
	KIT_CASES(cases, 600);
	return 0;
}
