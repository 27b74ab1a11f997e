/* One-sided tests: WRITEs, READs and atomics. */
#include <stdatomic.h>

#include "vbench.h"

#define VOLUME (512u << 20) /* bytes moved for one bandwidth */
#define LAPS   8u
#define OPENS  64u /* uses after which shareable memory has been opened by its user */

static void tell(const struct side *s, const char *what, double value)
{
	char name[48];

	snprintf(name, sizeof(name), "%s_%s",
		 s->ring     ? "ring"
		 : s->polled ? "polled"
		 : s->shared ? "shared"
			     : "private",
		 what);
	figure(name, value);
}

static bool polls(const struct side *s)
{
	return s->ring || s->polled;
}

/* The target has no part in direct placement: it is asleep in a read.  Where it is to poll, it does so until
 * an empty SEND comes. */
static void target(struct side *s)
{
	if (polls(s))
		side_receive(s, 1, 8);
	side_meet(s);
	if (polls(s))
		side_wait(s->rcq, 1);
	else
		side_meet(s);
}

static void release_target(struct side *s)
{
	if (!polls(s)) {
		side_meet(s);
		return;
	}
	side_post(s, IBV_WR_SEND, 0, IBV_SEND_SIGNALED);
	side_wait(s->scq, 1);
}

static void begin(struct side *s)
{
	side_meet(s);
	for (unsigned i = 0; i < OPENS; i++) {
		side_post(s, IBV_WR_RDMA_WRITE, 8, IBV_SEND_SIGNALED);
		side_wait(s->scq, 1);
	}
}

static void latency(struct side *s, enum ibv_wr_opcode op, const char *name)
{
	/* small WRITEs are posted inline, as programs do */
	unsigned flags = IBV_SEND_SIGNALED | (op == IBV_WR_RDMA_WRITE ? IBV_SEND_INLINE : 0);
	struct laps l = {0};
	char line[32];

	if (!s->client) {
		target(s);
		return;
	}
	begin(s);
	for (unsigned i = 0; i < LAT_ITERS; i++) {
		if (i % LAP == 0)
			lap(&l);
		side_post(s, op, 8, flags);
		side_wait(s->scq, 1);
	}
	lap(&l);
	snprintf(line, sizeof(line), "%s_8", name);
	tell(s, line, l.least / LAP);
	release_target(s);
}

static void list_latency(struct side *s, enum ibv_wr_opcode op, const char *name)
{
	struct ibv_send_wr wr[GATHER], *bad;
	struct ibv_sge sge[GATHER];
	struct laps l = {0};
	char line[32];

	if (!s->client) {
		target(s);
		return;
	}
	for (unsigned i = 0; i < GATHER; i++) {
		sge[i] = (struct ibv_sge){(uintptr_t)s->buf + i * LINE, 8, s->mr->lkey};
		wr[i] = (struct ibv_send_wr){.next = i + 1 < GATHER ? &wr[i + 1] : NULL,
					     .sg_list = &sge[i],
					     .num_sge = 1,
					     .opcode = op,
					     .send_flags = i + 1 < GATHER ? 0 : IBV_SEND_SIGNALED,
					     .wr.rdma = {s->far_addr + i * LINE, s->far_rkey}};
	}
	begin(s);
	for (unsigned i = 0; i < LAT_ITERS; i += GATHER) {
		if (i % (LAP / GATHER * GATHER) == 0)
			lap(&l);
		errno = ibv_post_send(s->qp, wr, &bad);
		if (errno)
			die("ibv_post_send");
		side_wait(s->scq, 1);
	}
	snprintf(line, sizeof(line), "%s_8_list", name);
	tell(s, line, l.least / (LAP / GATHER * GATHER));
	release_target(s);
}

static void bandwidth(struct side *s, enum ibv_wr_opcode op, const char *name, uint32_t size)
{
	unsigned window = size > 65536 ? 4 : 16, n = VOLUME / size / LAPS, out = 0;
	struct laps l = {0};
	char line[32];

	if (!s->client) {
		target(s);
		return;
	}
	begin(s);
	lap(&l);
	for (unsigned i = 0; i < n * LAPS; i++) {
		side_post(s, op, size, IBV_SEND_SIGNALED);
		out++;
		while (out >= window || (out && i % n == n - 1)) /* none is left over for the next lap */
			out -= side_poll(s->scq, out);
		if (i % n == n - 1)
			lap(&l);
	}
	snprintf(line, sizeof(line), "%s_bw_%u", name, size);
	tell(s, line, (double)size * n * 1e9 / l.least);
	release_target(s);
}

void one_sided(struct side *s)
{
	latency(s, IBV_WR_RDMA_WRITE, "write");
	latency(s, IBV_WR_RDMA_READ, "read");
	list_latency(s, IBV_WR_RDMA_WRITE, "write");
	list_latency(s, IBV_WR_RDMA_READ, "read");
	latency(s, IBV_WR_ATOMIC_FETCH_AND_ADD, "fadd");
	latency(s, IBV_WR_ATOMIC_CMP_AND_SWP, "cas");
	for (uint32_t size = 65536; size <= BUFFER; size *= size == 65536 ? 16 : 4) {
		bandwidth(s, IBV_WR_RDMA_WRITE, "write", size);
		bandwidth(s, IBV_WR_RDMA_READ, "read", size);
	}
}

void writes_polled(struct side *s)
{
	s->polled = true;
	latency(s, IBV_WR_RDMA_WRITE, "write");
	list_latency(s, IBV_WR_RDMA_WRITE, "write");
	write_pingpong(s);
	s->polled = false;
}

/* Waits until the peer's WRITE of i is visible; over the ring this side has to take it in. */
static void look_for(struct side *s, const _Atomic uint64_t *mine, uint64_t i, unsigned *owed)
{
	while (atomic_load_explicit(mine, memory_order_acquire) != i)
		if (polls(s))
			*owed -= side_poll(s->scq, 1);
}

void write_pingpong(struct side *s)
{
	_Atomic uint64_t *mine = (_Atomic uint64_t *)(void *)s->buf;
	uint64_t value;
	struct ibv_sge sge = {(uintptr_t)&value, 8, 0}; /* inline: no key */
	struct ibv_send_wr wr = {.sg_list = &sge,
				 .num_sge = 1,
				 .opcode = IBV_WR_RDMA_WRITE,
				 .wr.rdma = {s->far_addr, s->far_rkey}},
			   *bad;
	unsigned owed = 0;
	struct laps l = {0};

	atomic_store(mine, 0);
	side_meet(s);
	for (uint64_t i = 1; i <= OPENS + LAT_ITERS; i++) {
		bool signal = i % LIST == 0;

		if (i > OPENS && (i - OPENS) % LAP == 1)
			lap(&l);
		if (!s->client)
			look_for(s, mine, i, &owed);
		value = i;
		wr.send_flags = IBV_SEND_INLINE | (signal ? IBV_SEND_SIGNALED : 0);
		errno = ibv_post_send(s->qp, &wr, &bad);
		if (errno)
			die("ibv_post_send");
		owed += signal;
		if (s->client)
			look_for(s, mine, i, &owed);
		if (owed > 1)
			owed -= side_poll(s->scq, owed);
	}
	lap(&l);
	if (s->client)
		tell(s, "pingpong", l.least / LAP / 2);
	side_wait(s->scq, owed);
}
