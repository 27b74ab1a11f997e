/* Direct placement: the target's CPU takes no part.  Its process is stopped, engine and all, and WRITEs and
 * READs are completed and are where they belong; what the far end must hear of waits until it goes on. */
#include "pair.h"

enum { SIZE = 9 << 20, HALF = 4 << 20, DEPTH = 128, SGES = 2 };

static const uint32_t lengths[] = {0,	  1,	      7,      8,	  9,	   63,
				   64,	  100,	      4095,   4096,	  65535,   65536,
				   65537, 131072 + 5, 262144, 262144 + 3, 1 << 20, HALF - 13};

static void fill(uint8_t *p, size_t n, uint32_t seed)
{
	for (size_t i = 0; i < n; i++) {
		seed = seed * 1664525 + 1013904223;
		p[i] = (uint8_t)(seed >> 24);
	}
}

/* Nothing completes for a while. */
static void silence(struct kit_end *e, int ms)
{
	double end = kit_now() + ms * 1e-3;
	struct ibv_wc wc;

	while (kit_now() < end)
		CHECK(ibv_poll_cq(e->cq, 1, &wc) == 0, "wr_id %" PRIu64, wc.wr_id);
}

static void done(struct kit_end *e, uint64_t wr_id, enum ibv_wc_opcode opcode)
{
	struct ibv_wc wc = kit_wait(e, 20);

	CHECK(wc.status == IBV_WC_SUCCESS && wc.wr_id == wr_id && wc.opcode == opcode, "%s, wr_id %" PRIu64,
	      ibv_wc_status_str(wc.status), wc.wr_id);
}

static uint32_t psn(struct kit_end *e)
{
	struct ibv_qp_init_attr init;
	struct ibv_qp_attr a;

	CHECK(!ibv_query_qp(e->qp, &a, IBV_QP_SQ_PSN, &init));
	return a.sq_psn;
}

/* The target: is what the initiator says it should be, once that has let it go on. */
static void passive(struct pair *p)
{
	pair_open(p, DEPTH, SIZE);
	atomic_store(&p->board->step, 1);
	pair_close(p);
}

static void write_and_read(struct pair *p, struct kit_end *e, const struct kit_card *peer)
{
	for (unsigned i = 0; i < sizeof lengths / sizeof lengths[0]; i++) {
		uint32_t n = lengths[i], at = i % 17;

		fill(e->buf, n, i);
		memset(e->buf + HALF, 0xee, n + 1);
		CHECK(!kit_post(e, IBV_WR_RDMA_WRITE, 2 * i, 0, n, peer, at));
		done(e, 2 * i, IBV_WC_RDMA_WRITE);
		CHECK(!kit_post(e, IBV_WR_RDMA_READ, 2 * i + 1, HALF, n, peer, at));
		done(e, 2 * i + 1, IBV_WC_RDMA_READ);
		CHECK(!memcmp(e->buf, e->buf + HALF, n), "%u bytes", n);
		CHECK(e->buf[HALF + n] == 0xee, "%u bytes", n);
	}
	(void)p;
}

/* A list of WRITEs in one post: pieces here and there, some inline, every fourth signalled. */
static void a_list(struct kit_end *e, const struct kit_card *peer)
{
	enum { N = 100, LEN = 48, STEP = 64 };
	struct ibv_send_wr wr[N] = {0}, *bad;
	struct ibv_sge sge[N][SGES];

	fill(e->buf, N * STEP, 77);
	for (int i = 0; i < N; i++) {
		sge[i][0] = (struct ibv_sge){(uintptr_t)e->buf + (size_t)i * STEP, 13, e->mr->lkey};
		sge[i][1] =
		    (struct ibv_sge){(uintptr_t)e->buf + (size_t)i * STEP + 13, LEN - 13, e->mr->lkey};
		wr[i] = (struct ibv_send_wr){.wr_id = (uint64_t)i,
					     .next = i + 1 < N ? &wr[i + 1] : NULL,
					     .sg_list = sge[i],
					     .num_sge = SGES,
					     .opcode = IBV_WR_RDMA_WRITE,
					     .send_flags = (i % 4 == 3 ? IBV_SEND_SIGNALED : 0) |
							   (i % 3 == 0 ? IBV_SEND_INLINE : 0)};
		wr[i].wr.rdma.remote_addr = peer->addr + (uint64_t)i * STEP;
		wr[i].wr.rdma.rkey = peer->rkey;
	}
	CHECK(!ibv_post_send(e->qp, wr, &bad));
	for (int i = 3; i < N; i += 4)
		done(e, (uint64_t)i, IBV_WC_RDMA_WRITE);
	memset(e->buf + HALF, 0, N * STEP);
	CHECK(!kit_post(e, IBV_WR_RDMA_READ, 1, HALF, N * STEP, peer, 0));
	done(e, 1, IBV_WC_RDMA_READ);
	for (int i = 0; i < N; i++)
		CHECK(!memcmp(e->buf + (size_t)i * STEP, e->buf + HALF + (size_t)i * STEP, LEN), "WRITE %d",
		      i);
}

/* A list of READs, each of what a WRITE before it in the same list brought. */
static void to_and_fro(struct kit_end *e, const struct kit_card *peer)
{
	enum { N = 20, LEN = 3000 };
	struct ibv_send_wr wr[2 * N] = {0}, *bad;
	struct ibv_sge sge[2 * N];

	fill(e->buf, N * LEN, 78);
	memset(e->buf + HALF, 0, N * LEN);
	for (int i = 0; i < 2 * N; i++) {
		size_t at = (size_t)(i / 2) * LEN;

		sge[i] = (struct ibv_sge){(uintptr_t)e->buf + at + (i % 2 ? HALF : 0), LEN, e->mr->lkey};
		wr[i] = (struct ibv_send_wr){.wr_id = (uint64_t)i,
					     .next = i + 1 < 2 * N ? &wr[i + 1] : NULL,
					     .sg_list = &sge[i],
					     .num_sge = 1,
					     .opcode = i % 2 ? IBV_WR_RDMA_READ : IBV_WR_RDMA_WRITE,
					     .send_flags = IBV_SEND_SIGNALED};
		wr[i].wr.rdma.remote_addr = peer->addr + 500; /* all to the same place */
		wr[i].wr.rdma.rkey = peer->rkey;
	}
	CHECK(!ibv_post_send(e->qp, wr, &bad));
	for (int i = 0; i < 2 * N; i++)
		done(e, (uint64_t)i, i % 2 ? IBV_WC_RDMA_READ : IBV_WC_RDMA_WRITE);
	CHECK(!memcmp(e->buf, e->buf + HALF, N * LEN));
}

/* The data is there, which the other QP may look at, and the rest waits for the target. */
static void with_immediate(struct pair *p)
{
	struct kit_end *e = &p->end[0], *other = &p->end[1];
	const struct kit_card *peer = &p->board->card[1][0];

	for (int i = 0; i < 2; i++) {
		uint32_t n = i ? 300000 : 100;
		struct kit_card at = *peer;

		fill(e->buf, n, 5);
		CHECK(!kit_post(e, IBV_WR_RDMA_WRITE_WITH_IMM, 9, 0, n, &at, (size_t)i * 1000));
		silence(e, 20);
		CHECK(!kit_post(other, IBV_WR_RDMA_READ, 1, HALF, n, &at, (size_t)i * 1000));
		done(other, 1, IBV_WC_RDMA_READ);
		if (!i) /* the second one stands behind the first, which is not complete */
			CHECK(!memcmp(e->buf, other->buf + HALF, n));
		else
			CHECK(memcmp(e->buf, other->buf + HALF, n));
	}
	silence(e, 50);
	pair_cont(p);
	done(e, 9, IBV_WC_RDMA_WRITE);
	done(e, 9, IBV_WC_RDMA_WRITE);
}

static void initiator_alone(struct pair *p)
{
	struct kit_end *e = &p->end[0];
	const struct kit_card *peer = &p->board->card[1][0];
	uint32_t began;

	pair_open(p, DEPTH, SIZE);
	kit_until(&p->board->step, 1);
	pair_stop(p);
	began = psn(e);
	write_and_read(p, e, peer);
	a_list(e, peer);
	to_and_fro(e, peer);
	CHECK(psn(e) == began, "packets went out");
	with_immediate(p);
	pair_close(p);
}

static void takes_immediates(struct pair *p)
{
	struct kit_end *e = &p->end[0];

	pair_open(p, DEPTH, SIZE);
	for (int i = 0; i < 2; i++)
		CHECK(!kit_recv(e, 50 + (uint64_t)i, 0, 0));
	atomic_store(&p->board->step, 1);
	for (uint64_t i = 0; i < 2; i++) {
		struct ibv_wc wc = kit_wait(e, 60);

		CHECK(wc.status == IBV_WC_SUCCESS && wc.opcode == IBV_WC_RECV_RDMA_WITH_IMM);
		CHECK(wc.wr_id == 50 + i && wc.byte_len == (i ? 300000 : 100), "%u", wc.byte_len);
	}
	fill(e->buf + HALF, 300000, 5);
	CHECK(!memcmp(e->buf + 1000, e->buf + HALF, 300000));
	pair_close(p);
}

/* Where one end does not want it, everything waits. */
static void initiator_waits(struct pair *p)
{
	struct kit_end *e = &p->end[0];
	const struct kit_card *peer = &p->board->card[1][0];

	pair_open(p, DEPTH, SIZE);
	kit_until(&p->board->step, 1);
	pair_stop(p);
	fill(e->buf, 1000, 3);
	CHECK(!kit_post(e, IBV_WR_RDMA_WRITE, 1, 0, 1000, peer, 0));
	CHECK(!kit_post(e, IBV_WR_RDMA_WRITE, 2, 0, 0, peer, 0));
	CHECK(!kit_post(e, IBV_WR_RDMA_READ, 3, HALF, 1000, peer, 0));
	silence(e, 100);
	pair_cont(p);
	done(e, 1, IBV_WC_RDMA_WRITE);
	done(e, 2, IBV_WC_RDMA_WRITE);
	done(e, 3, IBV_WC_RDMA_READ);
	CHECK(!memcmp(e->buf, e->buf + HALF, 1000));
	pair_close(p);
}

/* A queue that never runs dry leaves the ring again: after some requests the next WRITE that could be placed
 * waits for those before it.  Few of them do not hold it up. */
static void never_dry(struct pair *p)
{
	struct kit_end *e = &p->end[0];
	const struct kit_card *peer = &p->board->card[1][0];
	const struct {
		int sends, writes;
		uint32_t packets;
	} rows[] = {{20, 8, 20}, {4, 8, 12}};

	pair_open(p, DEPTH, SIZE);
	for (unsigned r = 0; r < 2; r++) {
		uint32_t began;

		kit_until(&p->board->step, 1 + (int)r);
		pair_stop(p);
		began = psn(e);
		for (int i = 0; i < rows[r].sends; i++)
			CHECK(!kit_post(e, IBV_WR_SEND, 1, 0, 0, NULL, 0));
		for (int i = 0; i < rows[r].writes; i++)
			CHECK(!kit_post(e, IBV_WR_RDMA_WRITE, 2, 0, 8, peer, 0));
		silence(e, 20);
		pair_cont(p);
		for (int i = 0; i < rows[r].sends; i++)
			done(e, 1, IBV_WC_SEND);
		for (int i = 0; i < rows[r].writes; i++)
			done(e, 2, IBV_WC_RDMA_WRITE);
		CHECK(psn(e) - began == rows[r].packets, "%u packets", psn(e) - began);
	}
	pair_close(p);
}

static void takes_sends(struct pair *p)
{
	struct kit_end *e = &p->end[0];

	pair_open(p, DEPTH, SIZE);
	for (int r = 0; r < 2; r++) {
		int n = r ? 4 : 20;

		for (int i = 0; i < n; i++)
			CHECK(!kit_recv(e, 3, 0, 0));
		atomic_store(&p->board->step, 1 + r);
		for (int i = 0; i < n; i++)
			done(e, 3, IBV_WC_RECV);
	}
	pair_close(p);
}

/* What is longer than a post's own share is finished by whoever makes progress. */
static void by_whom(struct pair *p)
{
	struct kit_end *e = &p->end[0];
	const struct kit_card *peer = &p->board->card[1][0];
	struct pollfd fd;
	struct ibv_cq *cq;
	void *arg;

	pair_open(p, DEPTH, SIZE);
	kit_until(&p->board->step, 1);
	pair_stop(p);
	for (int i = 0; i < 6; i++) {
		enum ibv_wr_opcode op = i % 2 ? IBV_WR_RDMA_READ : IBV_WR_RDMA_WRITE;

		CHECK(!ibv_req_notify_cq(e->cq, 0));
		CHECK(!kit_post(e, op, 1, 0, HALF, peer, 0));
		if (i < 4) { /* nobody calls: the engine's */
			fd = (struct pollfd){.fd = p->chan->fd, .events = POLLIN};
			CHECK(i < 2 || poll(&fd, 1, 20000) == 1, "the engine does not go on");
		}
		if (i >= 2) { /* a waiter's, who blocks */
			CHECK(!ibv_get_cq_event(p->chan, &cq, &arg));
			ibv_ack_cq_events(cq, 1);
		}
		done(e, 1, i % 2 ? IBV_WC_RDMA_READ : IBV_WC_RDMA_WRITE);
		if (i < 2) { /* a poller's; the event came as well */
			CHECK(!ibv_get_cq_event(p->chan, &cq, &arg));
			ibv_ack_cq_events(cq, 1);
		}
	}
	pair_cont(p);
	pair_close(p);
}

int main(void)
{
	static const bool both[] = {true, true}, none[] = {false, false}, here[] = {true, false},
			  there[] = {false, true};

	pair_run("stopped target", both, initiator_alone, takes_immediates);
	pair_run("off at both ends", none, initiator_waits, passive);
	pair_run("off at the target", here, initiator_waits, passive);
	pair_run("off at the initiator", there, initiator_waits, passive);
	pair_run("a queue that never runs dry", both, never_dry, takes_sends);
	pair_run("finished by", both, by_whom, passive);
	return 0;
}
