/* Direct placement: the target's CPU takes no part.  Its process is stopped, engine and all, and WRITEs and
 * READs are completed and are where they belong; what the far end must hear of waits until it goes on. */
#include <sys/ipc.h>
#include <sys/shm.h>

#include "bytes.h"
#include "pair.h"
#include "obj/qp.h"

enum { SIZE = 9 << 20, HALF = 4 << 20, DEPTH = 128, SGES = 2 };

static const uint32_t lengths[] = {0,	  1,	      7,      8,	  9,	   63,
				   64,	  100,	      4095,   4096,	  65535,   65536,
				   65537, 131072 + 5, 262144, 262144 + 3, 1 << 20, HALF - 13};

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
static void passive(struct kit_pair *p)
{
	kit_pair_open(p, DEPTH, SIZE);
	atomic_store(&p->board->step, 1);
	kit_pair_close(p);
}

static void write_and_read(struct kit_pair *p, struct kit_end *e, const struct kit_card *peer)
{
	for (unsigned i = 0; i < sizeof lengths / sizeof lengths[0]; i++) {
		uint32_t n = lengths[i], at = i % 17;

		kit_fill(e->buf, n, i);
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

	kit_fill(e->buf, N * STEP, 77);
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

	kit_fill(e->buf, N * LEN, 78);
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
static void with_immediate(struct kit_pair *p)
{
	struct kit_end *e = &p->end[0], *other = &p->end[1];
	const struct kit_card *peer = &p->board->card[1][0];

	for (int i = 0; i < 2; i++) {
		uint32_t n = i ? 300000 : 100;
		struct kit_card at = *peer;

		kit_fill(e->buf, n, 5);
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
	kit_cont(p->target);
	done(e, 9, IBV_WC_RDMA_WRITE);
	done(e, 9, IBV_WC_RDMA_WRITE);
}

static void initiator_alone(struct kit_pair *p)
{
	struct kit_end *e = &p->end[0];
	const struct kit_card *peer = &p->board->card[1][0];
	uint32_t began;

	kit_pair_open(p, DEPTH, SIZE);
	kit_until(&p->board->step, 1);
	kit_stop(p->target);
	began = psn(e);
	write_and_read(p, e, peer);
	a_list(e, peer);
	to_and_fro(e, peer);
	CHECK(psn(e) == began, "packets went out");
	with_immediate(p);
	kit_pair_close(p);
}

static void takes_immediates(struct kit_pair *p)
{
	struct kit_end *e = &p->end[0];

	kit_pair_open(p, DEPTH, SIZE);
	for (int i = 0; i < 2; i++)
		CHECK(!kit_recv(e, 50 + (uint64_t)i, 0, 0));
	atomic_store(&p->board->step, 1);
	for (uint64_t i = 0; i < 2; i++) {
		struct ibv_wc wc = kit_wait(e, 60);

		CHECK_EQ(wc.status, IBV_WC_SUCCESS);
		CHECK(wc.opcode == IBV_WC_RECV_RDMA_WITH_IMM);
		CHECK(wc.wr_id == 50 + i && wc.byte_len == (i ? 300000 : 100), "%u", wc.byte_len);
	}
	kit_fill(e->buf + HALF, 300000, 5);
	CHECK(!memcmp(e->buf + 1000, e->buf + HALF, 300000));
	kit_pair_close(p);
}

/* Where one end does not want it, everything waits. */
static void initiator_waits(struct kit_pair *p)
{
	struct kit_end *e = &p->end[0];
	const struct kit_card *peer = &p->board->card[1][0];

	kit_pair_open(p, DEPTH, SIZE);
	kit_until(&p->board->step, 1);
	kit_stop(p->target);
	kit_fill(e->buf, 1000, 3);
	CHECK(!kit_post(e, IBV_WR_RDMA_WRITE, 1, 0, 1000, peer, 0));
	CHECK(!kit_post(e, IBV_WR_RDMA_WRITE, 2, 0, 0, peer, 0));
	CHECK(!kit_post(e, IBV_WR_RDMA_READ, 3, HALF, 1000, peer, 0));
	silence(e, 100);
	kit_cont(p->target);
	done(e, 1, IBV_WC_RDMA_WRITE);
	done(e, 2, IBV_WC_RDMA_WRITE);
	done(e, 3, IBV_WC_RDMA_READ);
	CHECK(!memcmp(e->buf, e->buf + HALF, 1000));
	kit_pair_close(p);
}

/* A queue that never runs dry leaves the ring again: after some requests the next WRITE that could be placed
 * waits for those before it.  Few of them do not hold it up. */
static void never_dry(struct kit_pair *p)
{
	struct kit_end *e = &p->end[0];
	const struct kit_card *peer = &p->board->card[1][0];
	const struct {
		int sends, writes;
		uint32_t packets;
	} rows[] = {{20, 8, 20}, {4, 8, 12}};

	kit_pair_open(p, DEPTH, SIZE);
	for (unsigned r = 0; r < 2; r++) {
		uint32_t began;

		kit_until(&p->board->step, 1 + (int)r);
		kit_stop(p->target);
		began = psn(e);
		for (int i = 0; i < rows[r].sends; i++)
			CHECK(!kit_post(e, IBV_WR_SEND, 1, 0, 0, NULL, 0));
		for (int i = 0; i < rows[r].writes; i++)
			CHECK(!kit_post(e, IBV_WR_RDMA_WRITE, 2, 0, 8, peer, 0));
		silence(e, 20);
		kit_cont(p->target);
		for (int i = 0; i < rows[r].sends; i++)
			done(e, 1, IBV_WC_SEND);
		for (int i = 0; i < rows[r].writes; i++)
			done(e, 2, IBV_WC_RDMA_WRITE);
		CHECK(psn(e) - began == rows[r].packets, "%u packets", psn(e) - began);
	}
	kit_pair_close(p);
}

static void takes_sends(struct kit_pair *p)
{
	struct kit_end *e = &p->end[0];

	kit_pair_open(p, DEPTH, SIZE);
	for (int r = 0; r < 2; r++) {
		int n = r ? 4 : 20;

		for (int i = 0; i < n; i++)
			CHECK(!kit_recv(e, 3, 0, 0));
		atomic_store(&p->board->step, 1 + r);
		for (int i = 0; i < n; i++)
			done(e, 3, IBV_WC_RECV);
	}
	kit_pair_close(p);
}

/* What is longer than a post's own share is finished by whoever makes progress. */
static void by_whom(struct kit_pair *p)
{
	struct kit_end *e = &p->end[0];
	const struct kit_card *peer = &p->board->card[1][0];
	struct pollfd fd;
	struct ibv_cq *cq;
	void *arg;

	kit_pair_open(p, DEPTH, SIZE);
	kit_until(&p->board->step, 1);
	kit_stop(p->target);
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
	kit_cont(p->target);
	kit_pair_close(p);
}

static unsigned portions;

static void count_portion(struct vb_out *o, const struct vb_swqe *w, uint32_t n, uint64_t orig)
{
	(void)o, (void)w, (void)n, (void)orig;
	portions++;
}

/* A post places 64 KiB, and each look after it a quarter of a MiB, by one system call each: a portion that
 * is cut costs one more. */
static void in_whole_portions(struct kit_pair *p)
{
	struct kit_end *e = &p->end[0];
	const struct kit_card *peer = &p->board->card[1][0];

	kit_pair_open(p, DEPTH, SIZE);
	kit_until(&p->board->step, 1);
	kit_stop(p->target);
	CHECK(!kit_post(e, IBV_WR_RDMA_WRITE, 1, 0, 8, peer, 0));
	done(e, 1, IBV_WC_RDMA_WRITE);
	vb_qp(e->qp)->path.out->past = count_portion;
	for (int i = 0; i < 2; i++) {
		portions = 0;
		CHECK(!kit_post(e, i ? IBV_WR_RDMA_READ : IBV_WR_RDMA_WRITE, 2, 0, 1 << 20, peer, 0));
		done(e, 2, i ? IBV_WC_RDMA_READ : IBV_WC_RDMA_WRITE);
		CHECK(portions == 5, "%u", portions);
	}
	vb_qp(e->qp)->path.out->past = NULL;
	kit_cont(p->target);
	kit_pair_close(p);
}

/* What is told of a send queue in SQD. */
static bool is_draining(struct kit_end *e)
{
	struct ibv_qp_init_attr init;
	struct ibv_qp_attr a;

	CHECK(!ibv_query_qp(e->qp, &a, IBV_QP_STATE, &init) && a.qp_state == IBV_QPS_SQD);
	return a.sq_draining;
}

/* In SQD what is begun is finished, and nothing is begun. */
static void drains(struct kit_pair *p)
{
	struct kit_end *e = &p->end[0];
	const struct kit_card *peer = &p->board->card[1][0];
	struct ibv_async_event ev;
	int caught = 0;

	kit_pair_open(p, DEPTH, SIZE);
	kit_until(&p->board->step, 1);
	kit_stop(p->target);
	for (int i = 0; i < 30; i++) {
		struct ibv_qp_attr a = {.qp_state = IBV_QPS_SQD, .en_sqd_async_notify = 1};
		uint64_t n = 0;
		struct ibv_wc wc;
		bool draining, middle;

		/* a last part that leaves room for more in one go */
		CHECK(!kit_post(e, IBV_WR_RDMA_WRITE, 0, 0, HALF - 100000, peer, 0));
		for (uint64_t k = 1; k < 4; k++)
			CHECK(!kit_post(e, IBV_WR_RDMA_WRITE, k, 0, 8, peer, HALF + k * 8));
		CHECK(!ibv_modify_qp(e->qp, &a, IBV_QP_STATE | IBV_QP_EN_SQD_ASYNC_NOTIFY));
		draining = is_draining(e);
		middle = ibv_poll_cq(e->cq, 1, &wc) == 0; /* not even the first one was done in time */
		n = !middle;
		CHECK(draining || !middle, "drained, and what is begun is not complete");
		CHECK(!ibv_get_async_event(p->ctx, &ev) && ev.event_type == IBV_EVENT_SQ_DRAINED);
		ibv_ack_async_event(&ev);
		CHECK(!is_draining(e));
		while (ibv_poll_cq(e->cq, 1, &wc) > 0)
			CHECK(wc.status == IBV_WC_SUCCESS && wc.wr_id == n++);
		CHECK(n == 1 || (n == 4 && !middle), "%" PRIu64 " of 4 requests were done", n);
		caught += middle;
		silence(e, 2);
		a.qp_state = IBV_QPS_RTS;
		CHECK(!ibv_modify_qp(e->qp, &a, IBV_QP_STATE));
		for (; n < 4; n++)
			done(e, n, IBV_WC_RDMA_WRITE);
	}
	kit_cont(p->target);
	CHECK(caught, "it was never in the middle of a request");
	kit_pair_close(p);
}

/* Memory that both can map: after some use the initiator has it, and atomics are its own too. */
enum shared { MEMFD, SHM_FILE, SYSV };
static enum shared shared;

static uint8_t *shared_make(char *name, size_t size)
{
	uint8_t *p;
	int fd;

	*name = 0;
	if (shared == SYSV) {
		fd = shmget(IPC_PRIVATE, SIZE, IPC_CREAT | 0600);
		CHECK(fd >= 0);
		p = shmat(fd, NULL, 0);
		CHECK(p != (void *)-1 && !shmctl(fd, IPC_RMID, NULL));
		return p;
	}
	if (shared == SHM_FILE)
		snprintf(name, size, "/dev/shm/direct-%d", (int)getpid());
	fd = shared == MEMFD ? memfd_create("direct", 0) : open(name, O_RDWR | O_CREAT | O_EXCL, 0600);
	CHECK(fd >= 0 && !ftruncate(fd, SIZE)); /* and it stays open */
	p = mmap(NULL, SIZE, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	CHECK(p != MAP_FAILED);
	return p;
}

static void shares(struct kit_pair *p)
{
	struct kit_board *b = p->board;
	struct ibv_mr *mr, *other;
	char name[64];
	uint8_t *at;

	kit_pair_open(p, DEPTH, SIZE);
	at = shared_make(name, sizeof name);
	mr = ibv_reg_mr(p->pd, at, SIZE, KIT_ALL);
	CHECK(mr);
	/* the same memory for reading only */
	other = ibv_reg_mr(p->pd, at, SIZE, IBV_ACCESS_REMOTE_READ);
	CHECK(other);
	b->number[0] = (int64_t)(uintptr_t)at;
	b->number[1] = mr->rkey;
	b->number[2] = other->rkey;
	atomic_store(&b->step, 1);
	while (atomic_load(&b->step) != 2)
		kit_nap(1);
	CHECK(*(uint64_t *)(void *)(at + SIZE - 8) == (uint64_t)b->number[3]);
	CHECK(!ibv_dereg_mr(other) && !ibv_dereg_mr(mr));
	memset(at, 0x5a, SIZE); /* it is nobody else's now */
	atomic_store(&b->step, 3);
	while (atomic_load(&b->step) != 4)
		kit_nap(1);
	for (size_t i = 0; i < SIZE; i++)
		CHECK(at[i] == 0x5a);
	if (shared == SYSV)
		shmdt(at);
	else
		munmap(at, SIZE);
	if (*name)
		unlink(name);
	kit_pair_close(p);
}

/* Files of the kind that are mapped here. */
static int mapped_here(void)
{
	static const char *const what[] = {"/memfd:direct", "/dev/shm/direct-", "/SYSV"};
	FILE *f = fopen("/proc/self/maps", "r");
	char line[512];
	int n = 0;

	CHECK(f);
	while (fgets(line, sizeof line, f))
		n += strstr(line, what[shared]) != NULL;
	fclose(f);
	return n;
}

static void has_share(struct kit_pair *p)
{
	struct kit_board *b = p->board;
	struct kit_end *e = &p->end[0];
	struct kit_card peer;
	uint64_t added = 0;
	uint32_t began;
	double end;

	kit_pair_open(p, DEPTH, SIZE);
	kit_until(&b->step, 1);
	peer = b->card[1][0];
	peer.addr = (uint64_t)b->number[0];
	peer.rkey = (uint32_t)b->number[1];
	for (end = kit_now() + 20;; kit_nap(1)) { /* until one takes no packet */
		began = psn(e);
		CHECK(!kit_post(e, IBV_WR_ATOMIC_FETCH_AND_ADD, 1, 0, 8, &peer, SIZE - 8));
		done(e, 1, IBV_WC_FETCH_ADD);
		CHECK(*(uint64_t *)(void *)e->buf == added, "%" PRIu64, *(uint64_t *)(void *)e->buf);
		added++;
		if (psn(e) == began)
			break;
		CHECK(kit_now() < end, "atomics stay with the ring");
	}
	CHECK(mapped_here() > 0);
	kit_stop(p->target);
	for (int i = 0; i < 100; i++, added++) {
		CHECK(!kit_post(e, IBV_WR_ATOMIC_FETCH_AND_ADD, 1, 0, 8, &peer, SIZE - 8));
		done(e, 1, IBV_WC_FETCH_ADD);
		CHECK(*(uint64_t *)(void *)e->buf == added);
	}
	*(uint64_t *)(void *)e->buf = 0;
	write_and_read(p, e, &peer);
	a_list(e, &peer);
	to_and_fro(e, &peer);
	peer.rkey = (uint32_t)b->number[2];
	for (int i = 0; i < 200; i++) {
		CHECK(!kit_post(e, IBV_WR_RDMA_READ, 1, 0, 8, &peer, SIZE - 8));
		done(e, 1, IBV_WC_RDMA_READ);
		CHECK(*(uint64_t *)(void *)e->buf == added);
	}
	b->number[3] = (int64_t)added;
	kit_cont(p->target);
	atomic_store(&b->step, 2);
	kit_until(&b->step, 3);
	/* its mapping goes with the region */
	for (end = kit_now() + 20; mapped_here(); kit_nap(1))
		CHECK(kit_now() < end, "the mapping stays");
	peer.rkey = (uint32_t)b->number[1];
	CHECK(!kit_post(e, IBV_WR_RDMA_WRITE, 2, 0, 8, &peer, 0));
	CHECK_EQ(kit_wait(e, 20).status, IBV_WC_REM_ACCESS_ERR);
	atomic_store(&b->step, 4);
	kit_pair_close(p);
}

int main(void)
{
	static const bool both[] = {true, true}, none[] = {false, false}, here[] = {true, false},
			  there[] = {false, true};

	kit_pair_run("stopped target", both, initiator_alone, takes_immediates);
	kit_pair_run("off at both ends", none, initiator_waits, passive);
	kit_pair_run("off at the target", here, initiator_waits, passive);
	kit_pair_run("off at the initiator", there, initiator_waits, passive);
	kit_pair_run("a queue that never runs dry", both, never_dry, takes_sends);
	kit_pair_run("finished by", both, by_whom, passive);
	kit_pair_run("in whole portions", both, in_whole_portions, passive);
	kit_pair_run("the send queue drains", both, drains, passive);
	for (shared = MEMFD; shared <= SYSV; shared++)
		kit_pair_run(shared == MEMFD	  ? "a memfd"
			     : shared == SHM_FILE ? "a file in /dev/shm"
						  : "SysV memory",
			     both, has_share, shares);
	return 0;
}
