/* The window of paths that lose packets, on a simulated network: a rate, a delay and a queue that drops what
 * it has no room for.  Everything that was posted arrives, once and with the right bytes; and how fast that
 * is.
 *
 * Fixed seeds and virtual time: the same figures each time.  docs/congestion.md has them. */
#include <stdlib.h>
#include <string.h>

#include "obj/dests.h"
#include "sim.h"
#include "transport/congestion.h"
#include "transport/pace.h"

enum {
	LONGEST = 64 << 10,
	POOL = 256 << 10, /* what is sent, and read */
	DEPTH = 64,	  /* messages under way */
};

/* One direction of traffic: node 0 posts, and of READs node 1 sends the bytes. */
struct flow {
	struct sim *s;
	/* Memory of both nodes.  A sink has a slot for each message under way, the inbox one for each
	 * receive. */
	uint8_t *pool[2], *sink[2], *inbox;
	uint32_t pool_key[2], sink_key[2], inbox_key;
	uint64_t posted, done, received, taken, total, bytes;
	uint32_t length; /* of each message; 0: any, mostly short */
	bool mixed;	 /* READs and WRITEs as well as SENDs */
	struct message {
		enum ibv_wr_opcode opcode;
		uint32_t at, len;
	} messages[DEPTH];
	uint64_t next_received; /* the message that the next receive completion is of */
};

static void flow_init(struct flow *f, const struct sim_cfg *cfg)
{
	*f = (struct flow){.s = sim_new(cfg)};
	for (unsigned i = 0; i < 2; i++) {
		f->pool[i] = sim_zeroed(POOL);
		f->sink[i] = sim_zeroed((size_t)DEPTH * LONGEST);
		for (uint32_t k = 0; k < POOL; k += 8) {
			uint64_t v = sim_random(f->s);

			memcpy(f->pool[i] + k, &v, 8);
		}
		f->pool_key[i] = sim_reg(f->s, i, f->pool[i], POOL, 0xf);
		f->sink_key[i] = sim_reg(f->s, i, f->sink[i], (uint64_t)DEPTH * LONGEST, 0xf);
	}
	f->inbox = sim_zeroed((size_t)DEPTH * LONGEST);
	f->inbox_key = sim_reg(f->s, 1, f->inbox, (uint64_t)DEPTH * LONGEST, IBV_ACCESS_LOCAL_WRITE);
}

static void flow_fini(struct flow *f)
{
	for (unsigned i = 0; i < 2; i++) {
		free(f->pool[i]);
		free(f->sink[i]);
	}
	free(f->inbox);
	sim_free(f->s);
}

static uint8_t *slot_of(const struct flow *f, unsigned node, uint64_t message)
{
	return f->sink[node] + message % DEPTH * LONGEST;
}

static bool is_received(enum ibv_wr_opcode op)
{
	return op == IBV_WR_SEND || op == IBV_WR_RDMA_WRITE_WITH_IMM;
}

/* Any length up to the longest, of every size class as many. */
static uint32_t any_length(struct sim *s)
{
	uint32_t most = 1u << sim_below(s, 17);

	return 1 + sim_below(s, most);
}

static void post(struct flow *f)
{
	static const enum ibv_wr_opcode ops[] = {IBV_WR_SEND, IBV_WR_RDMA_WRITE, IBV_WR_RDMA_WRITE_WITH_IMM,
						 IBV_WR_RDMA_READ};
	struct message *m = &f->messages[f->posted % DEPTH];
	bool read;

	m->len = f->length ? f->length : any_length(f->s);
	m->at = sim_below(f->s, POOL - m->len + 1);
	m->opcode = f->mixed ? ops[sim_below(f->s, 4)] : IBV_WR_SEND;
	read = m->opcode == IBV_WR_RDMA_READ;
	struct ibv_sge e = {.addr = (uintptr_t)(read ? slot_of(f, 0, f->posted) : f->pool[0] + m->at),
			    .length = m->len,
			    .lkey = read ? f->sink_key[0] : f->pool_key[0]};
	struct ibv_send_wr wr = {.wr_id = f->posted,
				 .sg_list = &e,
				 .num_sge = 1,
				 .opcode = m->opcode,
				 .send_flags = IBV_SEND_SIGNALED,
				 .imm_data = (uint32_t)f->posted};

	wr.wr.rdma.remote_addr = (uintptr_t)(read ? f->pool[1] + m->at : slot_of(f, 1, f->posted));
	wr.wr.rdma.rkey = sim_rkey(read ? f->pool_key[1] : f->sink_key[1]);
	assert_int_equal(sim_send(f->s, 0, &wr), 0);
	f->posted++;
}

static void take(struct flow *f)
{
	struct ibv_sge e = {(uintptr_t)f->inbox + f->taken % DEPTH * LONGEST, LONGEST, f->inbox_key};

	assert_int_equal(sim_recv(f->s, 1, f->taken, &e, 1), 0);
	f->taken++;
}

static void check(const struct flow *f, uint64_t message, const uint8_t *at)
{
	const struct message *m = &f->messages[message % DEPTH];
	bool read = m->opcode == IBV_WR_RDMA_READ;

	if (memcmp(at, f->pool[read] + m->at, m->len))
		fail_msg("message %lu, %u bytes, opcode %d: wrong bytes", (unsigned long)message, m->len,
			 (int)m->opcode);
}

static void poll_receiver(struct flow *f)
{
	struct ibv_wc wc;

	while (sim_poll(f->s, 1, false, &wc)) {
		const struct message *m;

		assert_int_equal(wc.status, IBV_WC_SUCCESS);
		while (!is_received(f->messages[f->next_received % DEPTH].opcode))
			f->next_received++;
		assert_true(f->next_received < f->posted);
		m = &f->messages[f->next_received % DEPTH];
		assert_int_equal(wc.wr_id, f->received);
		assert_int_equal(wc.byte_len, m->len);
		assert_int_equal(wc.opcode,
				 m->opcode == IBV_WR_SEND ? IBV_WC_RECV : IBV_WC_RECV_RDMA_WITH_IMM);
		check(f, f->next_received,
		      m->opcode == IBV_WR_SEND ? f->inbox + f->received % DEPTH * LONGEST
					       : slot_of(f, 1, f->next_received));
		f->next_received++;
		f->received++;
		take(f);
	}
}

static void poll_sender(struct flow *f)
{
	struct ibv_wc wc;

	while (sim_poll(f->s, 0, true, &wc)) {
		const struct message *m = &f->messages[f->done % DEPTH];

		if (wc.status != IBV_WC_SUCCESS)
			fail_msg("message %lu of %lu ended with status %d", (unsigned long)f->done,
				 (unsigned long)f->total, wc.status);
		assert_int_equal(wc.wr_id, f->done);
		if (!is_received(m->opcode))
			check(f, f->done, slot_of(f, m->opcode != IBV_WR_RDMA_READ, f->done));
		f->bytes += m->len;
		f->done++;
	}
}

/* What counts as in flight are the bytes between psn_una and psn, whatever was lost and sent again. */
static void check_flight(const struct flow *f)
{
	const struct vb_req *q = &f->s->n[0].qp.req;
	uint32_t mtu = f->s->cfg.mtu;
	uint64_t bytes = 0;

	for (uint32_t i = q->una; i != q->seen; i++) {
		const struct vb_swqe *w = vb_sq_at(q, i);

		for (uint32_t k = 0; w->state == VB_WQE_STARTED && k < w->npsn; k++) {
			uint32_t psn = vb_psn_add(w->psn, k), left = w->length - k * mtu;

			if (vb_psn_diff(psn, q->psn_una) >= 0 && vb_psn_diff(psn, q->psn) < 0)
				bytes += VB_CONGESTION_OVERHEAD + (left < mtu ? left : mtu);
		}
	}
	assert_int_equal(f->s->n[0].qp.congestion.flight, bytes);
	assert_true(q->reads + f->s->n[0].qp.congestion.pieces <= f->s->cfg.rd_atomic);
}

/* Bytes per second of all messages together. */
static uint64_t run(struct flow *f, uint64_t total)
{
	uint64_t began = f->s->now;

	f->total = total;
	while (f->taken < DEPTH)
		take(f);
	while (f->done < total) {
		/* the receiver looks first, since a slot is used again */
		poll_receiver(f);
		poll_sender(f);
		while (f->posted < total && f->posted - f->done < DEPTH &&
		       f->posted - f->next_received < DEPTH)
			post(f);
		if (f->done < total && !sim_step(f->s))
			fail_msg("nothing happens any more: %lu of %lu messages", (unsigned long)f->done,
				 (unsigned long)total);
		if (f->done < total && !(f->s->order & 31))
			check_flight(f);
	}
	poll_receiver(f);
	return f->bytes * VB_SEC / (f->s->now - began);
}

#define NET(...)                                                                                             \
	SIM_CFG(.mtu = 4096, .rate = 1000000000, .delay = 10000, .queue = 25, .retry_cnt = 7, .timeout = 14, \
		.send_wr = DEPTH, .recv_wr = DEPTH, .cqe = 2 * DEPTH, .rd_atomic = 16, .dest_rd_atomic = 16, \
		__VA_ARGS__)

static uint64_t goodput(const struct sim_cfg *cfg, uint64_t messages, uint32_t length)
{
	struct flow f;
	uint64_t rate;

	flow_init(&f, cfg);
	f.length = length;
	f.mixed = !length;
	rate = run(&f, messages);
	print_message("MTU %4u, round trip %5lu us, queue %4u, loss %4.1f %%, %s: %5.1f MB/s\n", cfg->mtu,
		      (unsigned long)(cfg->delay / 500), cfg->queue, cfg->loss / 10.0,
		      length ? "SENDs of 64 KiB" : "all operations, duplicates, reordering",
		      (double)rate / 1e6);
	flow_fini(&f);
	return rate;
}

static const uint32_t queues[] = {25, 1000};

/* Of what arrives without losses, at least that many percent. */
static void short_round_trips(void **state)
{
	static const uint64_t delays[] = {10000, 20000};
	static const struct {
		uint32_t per_1000, percent;
	} losses[] = {{0, 100}, {1, 75}, {10, 60}, {100, 0}};

	(void)state;
	for (unsigned d = 0; d < 2; d++)
		for (unsigned q = 0; q < 2; q++) {
			uint64_t without = 0, with;

			for (unsigned l = 0; l < 4; l++) {
				with = goodput(
				    NET(.delay = delays[d], .queue = queues[q], .loss = losses[l].per_1000),
				    1000, LONGEST);
				without = l ? without : with;
				assert_true(with * 100 >= without * losses[l].percent);
			}
			assert_true(without > 900000000); /* of the wire's 1 GB/s */
		}
}

static void long_round_trips(void **state)
{
	static const uint64_t delays[] = {500000, 20000000};
	static const uint32_t losses[] = {0, 1, 10, 100};

	(void)state;
	for (unsigned d = 0; d < 2; d++)
		for (unsigned q = 0; q < 2; q++)
			for (unsigned l = 0; l < 4; l++)
				goodput(NET(.delay = delays[d], .queue = queues[q], .loss = losses[l]), 500,
					LONGEST);
}

/* All operations, of any length, on wires that lose packets, double them and let them overtake one another.
 * With 7 retries no request fails. */
static void everything_arrives(void **state)
{
	static const uint64_t delays[] = {10000, 500000, 20000000};
	static const uint32_t losses[] = {0, 10, 100}, mtus[] = {1024, 4096};
	uint64_t messages = getenv("VERBENA_SOAK") ? 28000 : 2800; /* 36 times */

	(void)state;
	for (unsigned m = 0; m < 2; m++)
		for (unsigned d = 0; d < 3; d++)
			for (unsigned q = 0; q < 2; q++)
				for (unsigned l = 0; l < 3; l++)
					goodput(NET(.mtu = mtus[m], .delay = delays[d], .queue = queues[q],
						    .loss = losses[l], .dup = 10, .late = 10,
						    .seed = 1 + m + 2 * d),
						messages, 0);
}

/* A pair on a network, with few retries; the ACK timer runs for 67 ms. */
static struct sim *net_desk(uint8_t retries)
{
	return sim_desk(NET(.retry_cnt = retries, .psn = {100, 7000}));
}

/* The last packet of a message was lost, and nothing follows that would tell: it is sent again long before
 * the ACK timer runs out, and that is no retry. */
static void a_lost_tail_is_probed(void **state)
{
	struct sim *s = net_desk(0);
	uint64_t began, id;

	(void)state;
	sim_take(s, 1, 0, 64);
	id = sim_op(s, 0, IBV_WR_SEND, 0, 64, 0); /* measures the round trip */
	sim_settle(s);
	sim_expect(s, 0, true, id, IBV_WC_SUCCESS);
	sim_drop(s, 0, VB_RC_SEND_LAST, 0);
	sim_take(s, 1, 0, 8192);
	began = s->now;
	id = sim_op(s, 0, IBV_WR_SEND, 0, 8192, 0);
	sim_settle(s);
	sim_expect(s, 0, true, id, IBV_WC_SUCCESS);
	assert_true(s->now - began < VB_MSEC);
	/* the first, for whose ACK nothing has asked, then the last */
	assert_int_equal(sim_count(s, 0, VB_RC_SEND_FIRST), 2);
	assert_int_equal(sim_count(s, 0, VB_RC_SEND_LAST), 2);
	sim_free(s);
}

/* The same of an ACK, though the ACK timer never runs out. */
static void a_lost_ack_is_asked_for(void **state)
{
	struct sim *s = sim_desk(NET(.retry_cnt = 0, .timeout = 0));
	uint64_t id;

	(void)state;
	sim_drop(s, 1, VB_RC_ACK, 0);
	sim_take(s, 1, 0, 64);
	id = sim_op(s, 0, IBV_WR_SEND, 0, 64, 0);
	sim_settle(s);
	sim_expect(s, 0, true, id, IBV_WC_SUCCESS);
	assert_int_equal(sim_count(s, 0, VB_RC_SEND_ONLY), 2);
	sim_free(s);
}

/* A far end that is gone is given up after its retries all the same, of which the first comes after the
 * timeout, the second after twice that, and all others after four times that.  The probes between them come
 * ever more seldom. */
static void ends_after(uint8_t retries, unsigned timeouts, unsigned most)
{
	struct sim *s = net_desk(retries);
	uint64_t began = s->now, id, one = 4096ull << 14;
	unsigned sent;

	sim_drop(s, 0, SIM_ANY, SIM_ALWAYS);
	id = sim_op(s, 0, IBV_WR_SEND, 0, 64, 0);
	sim_settle(s);
	sim_expect(s, 0, true, id, IBV_WC_RETRY_EXC_ERR);
	if (s->now - began < timeouts * one || s->now - began > timeouts * one + one / 2)
		fail_msg("%u retries take %lu ns", retries, (unsigned long)(s->now - began));
	sent = sim_count(s, 0, VB_RC_SEND_ONLY);
	if (sent < 4 || sent > most)
		fail_msg("sent %u times", sent);
	sim_free(s);
}

static void probes_end(void **state)
{
	(void)state;
	ends_after(1, 1 + 2, 12);
	ends_after(7, 1 + 2 + 6 * 4, 48);
}

/* The probe arrives, and tells that what was sent before it has not. */
static void what_was_lost_with_the_probed(void **state)
{
	struct sim *s = net_desk(1);
	uint64_t began, id;

	(void)state;
	sim_take(s, 1, 0, 64);
	id = sim_op(s, 0, IBV_WR_SEND, 0, 64, 0);
	sim_settle(s);
	sim_expect(s, 0, true, id, IBV_WC_SUCCESS);
	sim_drop(s, 0, VB_RC_SEND_FIRST, 0);
	for (unsigned i = 0; i < 6; i++)
		sim_drop(s, 0, VB_RC_SEND_MIDDLE, i);
	sim_drop(s, 0, VB_RC_SEND_LAST, 0);
	sim_take(s, 1, 0, 32 << 10);
	began = s->now;
	id = sim_op(s, 0, IBV_WR_SEND, 0, 32 << 10, 0); /* FIRST, 6 MIDDLEs, LAST */
	sim_settle(s);
	sim_expect(s, 0, true, id, IBV_WC_SUCCESS);
	assert_true(s->now - began < VB_MSEC);
	assert_int_equal(sim_count(s, 0, VB_RC_SEND_FIRST), 2); /* the probe asks for an ACK */
	sim_free(s);
}

/* What was NAKed is lost once more: the responder says so again, since the requester has gone back. */
static void a_loss_of_what_was_sent_again(void **state)
{
	struct sim *s = net_desk(7);
	uint64_t began, id;

	(void)state;
	sim_take(s, 1, 0, 64);
	id = sim_op(s, 0, IBV_WR_SEND, 0, 64, 0);
	sim_settle(s);
	sim_expect(s, 0, true, id, IBV_WC_SUCCESS);
	sim_drop(s, 0, VB_RC_SEND_FIRST, 0);
	sim_drop(s, 0, VB_RC_SEND_FIRST, 1);
	sim_drop(s, 0, VB_RC_SEND_FIRST, 2);
	sim_take(s, 1, 0, 16 << 10);
	began = s->now;
	id = sim_op(s, 0, IBV_WR_SEND, 0, 16 << 10, 0);
	sim_settle(s);
	sim_expect(s, 0, true, id, IBV_WC_SUCCESS);
	assert_true(s->now - began < 200 * VB_USEC); /* before any probe */
	sim_free(s);
}

/* The same packet is lost ever again, as where a queue is full, and each time a NAK says so at once: that is
 * one retry, since retry_cnt counts timeouts. */
static void losses_of_a_moment_are_one_retry(void **state)
{
	struct sim *s = net_desk(1);
	uint64_t id;

	(void)state;
	sim_take(s, 1, 0, 64);
	id = sim_op(s, 0, IBV_WR_SEND, 0, 64, 0);
	sim_settle(s);
	sim_expect(s, 0, true, id, IBV_WC_SUCCESS);
	for (unsigned i = 0; i < 5; i++)
		sim_drop(s, 0, VB_RC_SEND_FIRST, i);
	sim_take(s, 1, 0, 16 << 10);
	id = sim_op(s, 0, IBV_WR_SEND, 0, 16 << 10, 0);
	sim_settle(s);
	sim_expect(s, 0, true, id, IBV_WC_SUCCESS);
	assert_int_equal(sim_count(s, 0, VB_RC_SEND_FIRST), 6);
	sim_free(s);
}

/* A READ is cut, so that the window bounds what the responder sends; a lost part is asked for within its own
 * request, and never more requests are outstanding than were agreed. */
static void a_read_is_cut(void **state)
{
	struct sim *s = sim_desk(NET(.rd_atomic = 2, .dest_rd_atomic = 2, .psn = {100, 7000}));
	uint32_t requests, length = 200 << 10;
	uint64_t id;

	(void)state;
	sim_fill(s, length);
	sim_drop(s, 1, VB_RC_READ_RESP_MIDDLE, 9);
	id = sim_op(s, 0, IBV_WR_RDMA_READ, 0, length, 0);
	while (sim_step(s))
		assert_true(s->n[0].qp.req.reads + s->n[0].qp.congestion.pieces <= 2);
	sim_expect(s, 0, true, id, IBV_WC_SUCCESS);
	assert_memory_equal(s->mem[0], s->mem[1], length);
	requests = sim_count(s, 0, VB_RC_READ_REQUEST);
	/* half of the first window each; and again the rest of the one with the lost part, and the next one
	 */
	assert_int_equal(requests, 1 + 200 / 32 + 2);
	for (uint32_t i = 0; i < requests; i++)
		assert_true(sim_find(s, 0, VB_RC_READ_REQUEST, i)->p.dma_len <= VB_CONGESTION_FIRST / 2);
	sim_free(s);
}

/* With one request at a time the next part is asked for when the one before has come whole. */
static void a_read_is_cut_at_depth_one(void **state)
{
	struct sim *s = sim_desk(NET(.rd_atomic = 1, .dest_rd_atomic = 1, .psn = {100, 7000}));
	uint32_t length = 200 << 10, steps = 0;
	uint64_t id;

	(void)state;
	sim_fill(s, length);
	sim_drop(s, 1, VB_RC_READ_RESP_MIDDLE, 20);
	id = sim_op(s, 0, IBV_WR_RDMA_READ, 0, length, 0);
	while (sim_step(s)) {
		assert_true(s->n[0].qp.req.reads + s->n[0].qp.congestion.pieces <= 1);
		assert_true(++steps < 10000); /* its timers go on for ever if it asks no more */
	}
	sim_expect(s, 0, true, id, IBV_WC_SUCCESS);
	assert_memory_equal(s->mem[0], s->mem[1], length);
	sim_free(s);
}

/* The first window leaves at once, and no more; a packet asks for an ACK at least where it ends. */
static void the_first_window(void **state)
{
	struct sim *s = net_desk(7);
	uint64_t id;
	uint32_t n = 0;

	(void)state;
	sim_take(s, 1, 0, SIM_MEM);
	id = sim_op(s, 0, IBV_WR_SEND, 0, SIM_MEM, 0);
	sim_run_for(s, 1000);
	while (n < s->seen && s->trace[n].from == 0)
		n++;
	assert_int_equal(n, VB_CONGESTION_FIRST / (4096 + VB_CONGESTION_OVERHEAD));
	assert_true(s->trace[n - 1].p.ack_req);
	sim_settle(s);
	sim_expect(s, 0, true, id, IBV_WC_SUCCESS);
	sim_free(s);
}

/* A switch that marks packets before its queue is full keeps it short, and nothing is lost. */
static void marks_keep_the_queue_short(void **state)
{
	uint64_t without, with, told, unmarked, marked;
	struct flow f;

	(void)state;
	flow_init(&f, NET(.queue = 1000));
	f.length = LONGEST;
	without = run(&f, 1000);
	unmarked = f.s->n[0].qp.congestion.srtt;
	flow_fini(&f);
	flow_init(&f, NET(.queue = 1000, .marks = 4));
	f.length = LONGEST;
	with = run(&f, 1000);
	assert_true(with * 10 > without * 8);
	told = sim_count(f.s, 1, VB_FAMILY_CNP | VB_NOTIFY);
	assert_int_equal(sim_count(f.s, 0, VB_FAMILY_CNP | VB_NOTIFY), 0);
	if (!told || told > f.s->trace[f.s->seen - 1].when / (50 * VB_USEC))
		fail_msg("%lu CNPs", (unsigned long)told);
	marked = f.s->n[0].qp.congestion.srtt;
	if (marked > unmarked / 10 * 8)
		fail_msg("the round trip is %lu ns without marks, %lu ns with", (unsigned long)unmarked,
			 (unsigned long)marked);
	for (uint32_t i = 1, last = 0; i < f.s->seen; i++) {
		if (f.s->trace[i].p.opcode != (VB_FAMILY_CNP | VB_NOTIFY))
			continue;
		assert_true(!last || f.s->trace[i].when - f.s->trace[last].when >= 50 * VB_USEC);
		last = i;
	}
	flow_fini(&f);
}

/* ---- UC and UD, which nobody acknowledges: a rate in place of the window ---- */

enum { CNP = VB_FAMILY_CNP | VB_NOTIFY };

static struct vb_pace *pace_of(struct sim *s)
{
	return s->n[0].qp.dests ? &s->n[0].qp.dests->at[SIM_FAR].pace : &s->n[0].qp.pace;
}

/* Sends as fast as it may for so long, and receives; how many bytes have come. */
static uint64_t stream(struct sim *s, uint32_t length, uint64_t ns)
{
	uint64_t end = s->now + ns, bytes = 0;
	uint32_t room = length + (sim_as == SIM_AS_UD ? VB_GRH_LEN : 0);
	struct ibv_wc wc;

	while (s->now < end) {
		while (sim_poll(s, 1, false, &wc)) {
			assert_int_equal(wc.status, IBV_WC_SUCCESS);
			assert_int_equal(wc.byte_len, room);
			bytes += length;
			sim_take(s, 1, 0, length);
		}
		while (sim_poll(s, 0, true, &wc)) {
			assert_int_equal(wc.status, IBV_WC_SUCCESS);
			sim_op(s, 0, IBV_WR_SEND, 0, length, 0);
		}
		if (!sim_step(s))
			fail_msg("nothing happens any more after %lu bytes", (unsigned long)bytes);
	}
	return bytes;
}

static struct sim *stream_begin(uint32_t length, uint32_t marks)
{
	struct sim *s = sim_desk(NET(.queue = 1000, .marks = marks));

	s->filter = NULL;
	for (unsigned i = 0; i < DEPTH; i++)
		sim_take(s, 1, 0, length);
	for (unsigned i = 0; i < DEPTH / 2; i++)
		sim_op(s, 0, IBV_WR_SEND, 0, length, 0);
	return s;
}

/* Where nothing is marked, the sender is never held up: the wire gets more than it can carry. */
static void without_marks_the_rate_is_no_bound(struct sim *s, uint32_t length)
{
	stream(s, length, 2 * VB_MSEC);
	assert_int_equal(pace_of(s)->limit, VB_PACE_MOST);
	assert_true(s->n[0].wire.full > 0);
	assert_int_equal(sim_count(s, 1, CNP), 0);
	sim_free(s);
}

/* A switch marks what finds 20 packets in its queue: the receiver sends CNPs, at most one in 50 us, and the
 * sender sends less, so that nothing is lost and the wire is used.  When nothing is marked any more the rate
 * returns. */
static void marks_slow_what_nobody_acknowledges(uint32_t length)
{
	struct sim *s = stream_begin(length, 20);
	uint64_t bytes, began, returned, last = 0;

	stream(s, length, 5 * VB_MSEC); /* until it has found the rate */
	bytes = stream(s, length, 40 * VB_MSEC);
	print_message("%5u bytes: %.1f MB/s, %u CNPs, limit %.1f MB/s, %lu dropped\n", length,
		      (double)bytes / 40e3, sim_count(s, 1, CNP), (double)pace_of(s)->limit / 1e6,
		      (unsigned long)s->n[0].wire.full);
	assert_int_equal(s->n[0].wire.full, 0);
	assert_true(bytes > 40 * 1000000 / 10 * 7); /* of the wire's 1 GB/s */
	assert_true(pace_of(s)->limit < VB_PACE_MOST / 4);
	assert_true(sim_count(s, 1, CNP) > 0);
	assert_int_equal(sim_count(s, 0, CNP), 0);
	for (uint32_t i = 0; i < s->seen; i++) {
		if (s->trace[i].p.opcode != CNP)
			continue;
		assert_true(!last || s->trace[i].when - last >= 50 * VB_USEC);
		last = s->trace[i].when;
	}
	s->cfg.marks = 0;
	s->cfg.rate *= 100;
	began = s->now;
	while (pace_of(s)->limit < VB_PACE_MOST && s->now - began < VB_SEC)
		stream(s, length, VB_MSEC);
	returned = s->now - began;
	if (returned < VB_MSEC || returned > 50 * VB_MSEC)
		fail_msg("the rate returns after %lu ns", (unsigned long)returned);
	sim_free(s);
}

static int as_rc(void **state)
{
	(void)state;
	sim_as = SIM_AS_RC;
	return 0;
}

static void of_uc(void **state)
{
	(void)state;
	sim_as = SIM_AS_UC;
	without_marks_the_rate_is_no_bound(stream_begin(LONGEST, 0), LONGEST);
	marks_slow_what_nobody_acknowledges(LONGEST);
}

static void of_ud(void **state)
{
	(void)state;
	sim_as = SIM_AS_UD;
	without_marks_the_rate_is_no_bound(stream_begin(4096, 0), 4096);
	marks_slow_what_nobody_acknowledges(4096);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
	    cmocka_unit_test(the_first_window),
	    cmocka_unit_test(a_lost_tail_is_probed),
	    cmocka_unit_test(a_lost_ack_is_asked_for),
	    cmocka_unit_test(probes_end),
	    cmocka_unit_test(what_was_lost_with_the_probed),
	    cmocka_unit_test(a_loss_of_what_was_sent_again),
	    cmocka_unit_test(losses_of_a_moment_are_one_retry),
	    cmocka_unit_test(a_read_is_cut),
	    cmocka_unit_test(a_read_is_cut_at_depth_one),
	    cmocka_unit_test(marks_keep_the_queue_short),
	    cmocka_unit_test_teardown(of_uc, as_rc),
	    cmocka_unit_test_teardown(of_ud, as_rc),
	    cmocka_unit_test(short_round_trips),
	    cmocka_unit_test(long_round_trips),
	    cmocka_unit_test(everything_arrives),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
