/* Strangers: a host on a network sends whatever it likes to live queue pairs.  What only processes of one
 * host say to each other counts for nothing from there.  A source that is not the path's changes nothing at
 * all: nothing completes, nothing is sent for it, nothing is allocated, and the log has a line for each
 * thousand packets at most.  What the path's own far end causes to be sent again counts as a retry.
 *
 * The first argument or VB_SEEDS: how many seeds (5; 1000 with VERBENA_SOAK); the second argument: the first
 * of them. */
#include <malloc.h>
#include <string.h>

#include "hosts.h"
#include "seeds.h"

#include "base/log.h"
#include "iba/grh.h"

#define OK IBV_WC_SUCCESS

enum { MOST = 4096, PSN = 100, QKEY = 0x11111111, THOUSAND = 1000 };

static unsigned lines; /* sentences that were logged */

static void heard(const char *sentence)
{
	lines++;
	if (getenv("VB_SIM_TRACE"))
		print_message("logged: %s\n", sentence);
}

static void written(void)
{
}

static const uint8_t gids[VB_GID_TABLE][16] __attribute__((aligned(8))) = {
    {[10] = 0xff, [11] = 0xff, 192, 0, 2, 99},
    {0x20, 0x01, 0x0d, 0xb8, [15] = 9},
    {[10] = 0xff, [11] = 0xff, 192, 0, 2, 1}, /* this end's */
};

/* An address from which packets come. */
static struct vb_source address(unsigned i)
{
	struct vb_gid gid = vb_gid_of(gids[i]);

	return (struct vb_source){.origin = {gid.high, gid.low}, .gids = gids};
}

/* ---- two processes ---- */

struct desk {
	struct hosts *h;
	struct vb_adapter *a[2];
	struct sim *s;
	struct sim dice;
	struct vb_source from;
	uint8_t room[MOST];
	struct vb_arrival in __attribute__((aligned(16)));
};

static void begin(struct desk *d, uint64_t seed)
{
	const struct sim_cfg *c = SIM_CFG(.seed = seed, .timeout = 14, .mtu = MOST);

	*d = (struct desk){.dice.rng = seed * 77 + 5, .from = address(seed % 2)};
	d->h = hosts_new(&(struct hosts_cfg){.wire = *c, .notice = VB_MSEC});
	d->a[0] = hosts_start(d->h);
	d->a[1] = hosts_start(d->h);
	d->s = sim_new_on(c, &hosts_ground, d->a[0], d->a[1]);
	sim_desk_init(d->s);
	for (unsigned i = 0; i < 2; i++) {
		d->s->n[i].qkey = QKEY;
		vb_lock_take(&d->s->n[i].qp.lock);
		d->s->n[i].qp.qkey = d->s->n[i].qp.attr.qkey = QKEY;
		vb_lock_give(&d->s->n[i].qp.lock);
	}
	hosts_settle(d->h);
}

static void end(struct desk *d)
{
	hosts_settle(d->h);
	sim_free(d->s);
	hosts_free(d->h);
}

/* The queue pairs are as good as before. */
static void a_message_arrives(struct desk *d)
{
	uint64_t r = sim_take(d->s, 1, 2048, 64), m;

	sim_fill(d->s, 64);
	m = sim_op(d->s, 0, IBV_WR_SEND, 0, 8, 0);
	hosts_settle(d->h);
	sim_expect(d->s, 0, true, m, OK);
	sim_expect(d->s, 1, false, r, OK);
	assert_memory_equal(d->s->mem[1] + 2048 + (sim_as == SIM_AS_UD ? VB_GRH_LEN : 0), d->s->mem[0], 8);
}

static uint32_t below(struct desk *d, uint32_t n)
{
	return sim_below(&d->dice, n);
}

/* A number that the queue pair waits for, or any. */
static uint32_t some_psn(struct desk *d, const struct vb_qp *qp)
{
	switch (below(d, 4)) {
	case 0:
		return qp->resp.epsn;
	case 1:
		return qp->req.psn_una;
	case 2:
		return vb_psn_add(qp->req.psn_max, VB_PSN_MASK);
	default:
		return below(d, VB_PSN_MASK);
	}
}

static const uint8_t syndromes[] = {VB_AETH_ACK,
				    VB_AETH_RNR | 1,
				    VB_AETH_RNR | VB_AETH_USED_UP | 1,
				    VB_AETH_NAK_PSN,
				    VB_AETH_NAK_INVALID_REQUEST,
				    0x62,
				    0x63,
				    0x64,
				    VB_AETH_NAK_AGAIN,
				    VB_AETH_NAK_LOAN};

static void random_bytes(struct desk *d, uint8_t *to, size_t n)
{
	for (size_t i = 0; i < n; i++)
		to[i] = (uint8_t)below(d, 256);
}

/* Any opcode, with any headers: half of the time what the headers say is what the queue pair waits for. */
static void forge(struct desk *d, unsigned to, unsigned opcode)
{
	const struct vb_opcode_row *op = &vb_opcodes[opcode];
	const struct vb_qp *qp = &d->s->n[to].qp;
	bool right = below(d, 8) > 0, group = VB_FAMILY(opcode) == VB_FAMILY_UD && below(d, 8) == 0;
	struct vb_brief *b = &d->in.b;
	struct vb_pkt p = {.opcode = (uint8_t)opcode,
			   .pkey = right ? VB_PKEY_DEFAULT : (uint16_t)below(d, 65536),
			   .qpn = group ? VB_QPN_GROUP : qp->qpn,
			   .psn = some_psn(d, qp),
			   .ack_req = below(d, 2),
			   .solicited = below(d, 2),
			   .pad = right ? 0 : below(d, 4) & 3,
			   .qkey = ~(uint32_t)QKEY,
			   .src_qpn = d->s->n[!to].qp.qpn,
			   .srqn = d->s->n[1].srq.number,
			   .rkey = sim_rkey(d->s->lkey[to]),
			   .va = (uintptr_t)d->s->mem[to] + 8 * below(d, 64),
			   .dma_len = below(d, 64),
			   .syndrome = syndromes[below(d, sizeof syndromes)],
			   .msn = below(d, 4),
			   .orig = 0x77};
	uint32_t len = below(d, 3) ? 4 * below(d, 6) : below(d, MOST);

	memset(b, 0, sizeof *b);
	random_bytes(d, d->room, len);
	if (op->name)
		vb_pkt_encode(b->bytes, &p);
	else
		random_bytes(d, b->bytes, VB_HDR_MAX);
	if (!op->name || !right) {
		b->bytes[0] = (uint8_t)opcode;
		b->bytes[1] = (uint8_t)below(d, 256);
	}
	b->hdr_len = right && op->name ? op->hdr_len : (uint8_t)(VB_BTH_LEN + 4 * below(d, 8));
	if (group && below(d, 2) && b->hdr_len + VB_MGID_LEN <= VB_OUT_BRIEF) {
		memset(b->bytes + b->hdr_len, 0xff, VB_MGID_LEN);
		b->hdr_len = (uint8_t)(b->hdr_len + VB_MGID_LEN);
	}
	if (right && !(op->bits & VB_OP_PAYLOAD))
		len = below(d, 4) ? 0 : sizeof(struct vb_facts);
	b->flags = (uint8_t)below(d, 256) & (uint8_t)~VB_BRIEF_APART;
	b->ack = below(d, 2) ? VB_OUT_ACK | some_psn(d, qp) : below(d, UINT32_MAX);
	d->in.payload_len = len;
	d->in.source = &d->from;
	if (b->hdr_len + len > VB_OUT_BRIEF || below(d, 4) == 0) {
		b->flags |= VB_BRIEF_APART;
		d->in.payload = d->room;
	} else {
		b->payload_len = (uint8_t)len;
		memcpy(b->bytes + b->hdr_len, d->room, len);
	}
}

/* All that a queue pair knows of its connection. */
struct known {
	enum ibv_qp_state state;
	uint32_t psn, una, psn_una, psn_max, epsn, msn, retried;
	uint8_t nak;
	bool ack_owed;
};

static struct known known(const struct vb_qp *qp)
{
	struct known k;

	memset(&k, 0, sizeof k); /* the gaps, too */
	k.state = qp->state;
	k.psn = qp->req.psn;
	k.una = qp->req.una;
	k.psn_una = qp->req.psn_una;
	k.psn_max = qp->req.psn_max;
	k.epsn = qp->resp.epsn;
	k.msn = qp->resp.msn;
	k.retried = qp->req.retried;
	k.nak = qp->resp.nak_owed;
	k.ack_owed = qp->resp.ack_owed;
	return k;
}

static void every_opcode(struct desk *d)
{
	for (unsigned k = 0; k < 16 * 256; k++) {
		forge(d, k & 1, k / 16);
		hosts_hear(d->a[k & 1], &d->in);
	}
}

static void one_seed(uint64_t seed)
{
	struct known before[2], after[2];
	struct desk d;
	size_t bytes;
	uint64_t packets, m;

	begin(&d, seed);
	a_message_arrives(&d);
	m = sim_op(d.s, 0, IBV_WR_SEND, 0, 8, 0); /* under way */
	hosts_run_for(d.h, 100);
	every_opcode(&d); /* what is said once has been said */
	lines = 0;
	for (unsigned i = 0; i < 2; i++)
		before[i] = known(&d.s->n[i].qp);
	packets = hosts_packets(d.h);
	bytes = mallinfo2().uordblks;
	every_opcode(&d);
	assert_int_equal(mallinfo2().uordblks, bytes);
	assert_int_equal(hosts_packets(d.h), packets);
	assert_in_range(lines, 0, 2 * 16 * 256 / THOUSAND);
	for (unsigned i = 0; i < 2; i++) {
		after[i] = known(&d.s->n[i].qp);
		assert_memory_equal(&after[i], &before[i], sizeof *after);
		assert_int_equal(sim_event(d.s, i), -1);
	}
	if (sim_acked())
		sim_expect_none(d.s, 0);
	else
		sim_expect(d.s, 0, true, m, OK); /* it has left */
	if (sim_acked()) {			 /* the receiver was not ready until now */
		uint64_t r = sim_take(d.s, 1, 2048, 64);

		hosts_settle(d.h);
		sim_expect(d.s, 1, false, r, OK);
		sim_expect(d.s, 0, true, m, OK);
	} else {
		hosts_settle(d.h);
	}
	a_message_arrives(&d);
	end(&d);
}

static void a_strangers_packets_change_nothing(void **state)
{
	(void)state;
	for_each_seed() one_seed(seeds.current);
}

/* What is no packet is said of once in a thousand. */
static void malformed_packets(void **state)
{
	struct desk d;

	(void)state;
	begin(&d, 3);
	d.in = (struct vb_arrival){.b = {.hdr_len = VB_BTH_LEN, .bytes = {0x1f}}, .source = &d.from};
	lines = 0;
	for (unsigned i = 0; i < 5 * THOUSAND; i++)
		hosts_hear(d.a[1], &d.in);
	assert_int_equal(lines, 5);
	a_message_arrives(&d);
	end(&d);
}

/* ---- the far end of the path is on another host ---- */

/* Packets come to node 1 from there, as if its path led there. */
static void lead_there(struct desk *d)
{
	struct vb_qp *qp = &d->s->n[1].qp;

	vb_lock_take(&qp->lock);
	qp->path.source = d->from.origin;
	qp->path.dgid = vb_gid_of(gids[2]);
	vb_lock_give(&qp->lock);
}

static void put(struct desk *d, struct vb_pkt *p, const void *payload, uint32_t len)
{
	p->opcode |= d->s->n[1].qp.family;
	p->pkey = VB_PKEY_DEFAULT;
	p->qpn = d->s->n[1].qp.qpn;
	p->srqn = d->s->n[1].srq.number;
	memset(&d->in.b, 0, sizeof d->in.b);
	d->in.b.hdr_len = (uint8_t)vb_pkt_encode(d->in.b.bytes, p);
	d->in.b.payload_len = (uint8_t)len;
	d->in.payload_len = len;
	if (len)
		memcpy(d->in.b.bytes + d->in.b.hdr_len, payload, len);
	d->in.source = &d->from;
}

/* Its packets are taken; their marks are not.  The bytes of a loan are nothing but bytes, a WRITE without
 * payload is too short, and no ACK travels along. */
static void marks_of_a_far_end(void **state)
{
	struct vb_pkt send = {.opcode = VB_SEND_ONLY}, write = {.opcode = VB_WRITE_ONLY_IMM};
	static const uint8_t loan[8] = {1};
	struct desk d;
	uint64_t r, m;

	(void)state;
	for (unsigned mark = 0; mark < 3; mark++) {
		begin(&d, 4 + mark);
		r = sim_take(d.s, 1, 1024, 512);
		m = sim_op(d.s, 1, IBV_WR_SEND, 0, 8, 0);
		hosts_run_for(d.h, 10);
		lead_there(&d);
		send.psn = write.psn = d.s->n[1].qp.resp.epsn;
		write.va = (uintptr_t)d.s->mem[1];
		write.rkey = sim_rkey(d.s->lkey[1]);
		write.dma_len = 8;
		if (mark == 0) {
			put(&d, &write, NULL, 0);
			d.in.b.flags = VB_BRIEF_PLACED;
		} else {
			put(&d, &send, loan, sizeof loan);
			d.in.b.flags = mark == 1 ? VB_BRIEF_LENT : 0;
			d.in.b.ack = mark == 1 ? 0 : VB_OUT_ACK | d.s->n[1].qp.req.psn_una;
		}
		hosts_hear(d.a[1], &d.in);
		if (mark == 0) {
			assert_int_equal(d.s->n[1].qp.state, IBV_QPS_ERR);
			assert_int_equal(d.s->n[1].qp.why.reason, VB_R_BAD_LENGTH);
		} else {
			assert_int_equal(sim_expect(d.s, 1, false, r, OK).byte_len, 8);
			assert_int_equal(d.s->n[1].qp.req.psn_una, vb_sq_at(&d.s->n[1].qp.req, 0)->psn);
		}
		(void)m;
		sim_free(d.s);
		hosts_free(d.h);
	}
}

/* A packet of another partition is malformed, also one that the fast path would take. */
static void another_partition(void **state)
{
	static const uint16_t pkeys[] = {0x8001, 0xfffe, 0x7fff};
	struct vb_pkt p = {.opcode = VB_SEND_ONLY, .qkey = QKEY};
	static const uint8_t data[8] = {5};
	struct desk d;
	uint64_t r;

	(void)state;
	begin(&d, 2);
	lead_there(&d);
	r = sim_take(d.s, 1, 1024, 64);
	p.psn = d.s->n[1].qp.resp.epsn;
	lines = 0;
	for (unsigned i = 0; i < sizeof pkeys / sizeof *pkeys; i++) {
		put(&d, &p, data, sizeof data);
		d.in.b.bytes[2] = (uint8_t)(pkeys[i] >> 8);
		d.in.b.bytes[3] = (uint8_t)pkeys[i];
		sim_expect_none(d.s, 1);
		hosts_hear(d.a[1], &d.in);
	}
	sim_expect(d.s, 1, false, r, OK); /* a limited member of this one */
	assert_int_equal(lines, 1);
	sim_free(d.s);
	hosts_free(d.h);
}

/* From another host a packet of a connection has to come to the path's own GID, where the wire tells. */
static void another_destination(void **state)
{
	struct vb_pkt p = {.opcode = VB_SEND_ONLY};
	static const uint8_t data[8] = {5};
	struct desk d;
	uint64_t r;

	(void)state;
	begin(&d, 2);
	lead_there(&d);
	r = sim_take(d.s, 1, 1024, 64);
	p.psn = d.s->n[1].qp.resp.epsn;
	for (unsigned i = 0; i < 3; i++) {
		put(&d, &p, data, sizeof data);
		d.from.dgid = i < 2 ? &gids[i] : &gids[2];
		sim_expect_none(d.s, 1);
		hosts_hear(d.a[1], &d.in);
	}
	sim_expect(d.s, 1, false, r, OK);
	sim_free(d.s);
	hosts_free(d.h);
}

/* A request of node 0 whose answer does not come. */
static struct sim *unanswered(bool far)
{
	struct sim *s = sim_desk(SIM_CFG(.far = far, .local = !far, .psn = {PSN, 7000}, .retry_cnt = 2));

	sim_drop(s, 0, SIM_ANY, SIM_ALWAYS);
	s->next_wr = 0;
	sim_op(s, 0, IBV_WR_SEND, 0, 8, 0);
	sim_run_for(s, 500);
	assert_int_equal(s->seen, 1);
	return s;
}

/* Codes that only processes of one host know are no NAKs: the first one ends the connection, where a peer's
 * has the request sent again and costs no retry. */
static void codes_of_a_far_end(void **state)
{
	static const uint8_t codes[] = {VB_AETH_NAK_AGAIN, VB_AETH_NAK_LOAN};

	(void)state;
	for (unsigned i = 0; i < 4; i++) {
		bool far = i & 1;
		struct sim *s = unanswered(far);
		struct vb_pkt p = {.opcode = VB_RC_ACK, .syndrome = codes[i / 2], .psn = PSN};

		for (unsigned k = 0; k < 20; k++)
			sim_inject(s, 0, &p, NULL, 0);
		if (far) {
			assert_int_equal(s->seen, 1);
			assert_int_equal(s->n[0].qp.why.reason, VB_R_RESPONSE_BAD);
			sim_expect(s, 0, true, 1,
				   (enum ibv_wc_status)vb_reasons[VB_R_RESPONSE_BAD].remote_wc);
		} else {
			assert_int_equal(s->seen, codes[i / 2] == VB_AETH_NAK_AGAIN ? 21 : 2);
			assert_int_equal(s->n[0].qp.state, IBV_QPS_RTS);
		}
		sim_free(s);
	}
}

/* Brief packets take the fast path between hosts, too, where no packet tells its sender's path MTU. */
static void brief_packets(void **state)
{
	struct sim *s = sim_desk(SIM_CFG(.far = true, .brief = VB_OUT_BRIEF));
	uint64_t r, m;

	(void)state;
	for (unsigned i = 0; i < 4; i++) {
		r = sim_take(s, 1, 64, 8);
		m = sim_op(s, 0, IBV_WR_SEND, 0, 8, 0);
		sim_settle(s);
		sim_expect(s, 1, false, r, OK);
		sim_expect(s, 0, true, m, OK);
	}
	assert_int_equal(s->briefs, getenv("SIM_NO_BRIEF") ? 0 : s->packets);
	sim_free(s);
}

/* Each packet that the far end has sent again is one of retry_cnt or rnr_retry. */
static void retries_of_a_far_end_count(void **state)
{
	static const struct {
		uint8_t syndrome;
		enum ibv_wc_status status;
	} rows[] = {{VB_AETH_NAK_PSN, IBV_WC_RETRY_EXC_ERR},
		    {VB_AETH_RNR | 1, IBV_WC_RNR_RETRY_EXC_ERR},
		    {VB_AETH_RNR | VB_AETH_USED_UP | 1, IBV_WC_RNR_RETRY_EXC_ERR}};

	(void)state;
	for (unsigned i = 0; i < sizeof rows / sizeof *rows; i++) {
		struct sim *s = unanswered(true);
		struct vb_pkt p = {.opcode = VB_RC_ACK, .syndrome = rows[i].syndrome, .psn = PSN};

		s->n[0].qp.attr.rnr_retry = 2;
		for (unsigned k = 0; k < 50 && s->n[0].qp.state == IBV_QPS_RTS; k++) {
			sim_inject(s, 0, &p, NULL, 0);
			sim_run_for(s, 100 * VB_USEC); /* the RNR wait, and less than the ACK timeout */
		}
		sim_settle(s);
		sim_expect(s, 0, true, 1, rows[i].status);
		assert_in_range(s->seen, 1, 3);
		sim_free(s);
	}
}

/* A reason behind a NAK makes a packet of another host malformed. */
static void what_stands_behind_the_headers(void **state)
{
	struct vb_pkt nak = {
	    .opcode = VB_FAMILY_RC | VB_ACK, .pkey = VB_PKEY_DEFAULT, .syndrome = VB_AETH_NAK_REMOTE_ACCESS};
	struct vb_pkt p;
	uint8_t hdr[VB_HDR_MAX];
	size_t n = vb_pkt_encode(hdr, &nak);

	(void)state;
	assert_null(vb_pkt_decode(&p, hdr, n, sizeof(struct vb_facts), true));
	assert_non_null(vb_pkt_decode(&p, hdr, n, sizeof(struct vb_facts), false));
}

int main(int argc, char **argv)
{
	const struct CMUnitTest any[] = {
	    cmocka_unit_test_teardown(a_strangers_packets_change_nothing, seeds_tell),
	    cmocka_unit_test(malformed_packets),
	    cmocka_unit_test(another_partition),
	};
	const struct CMUnitTest acked[] = {
	    cmocka_unit_test(marks_of_a_far_end),	  cmocka_unit_test(another_destination),
	    cmocka_unit_test(codes_of_a_far_end),	  cmocka_unit_test(brief_packets),
	    cmocka_unit_test(retries_of_a_far_end_count), cmocka_unit_test(what_stands_behind_the_headers),
	};

	vb_log_also(heard, written);
	atomic_fetch_or(&vb_log_waits, VB_LOG_OTHER);
	seeds_choose(argc, argv, 5);
	return SIM_RUN(any, SIM_OVER_ALL) + SIM_RUN(acked, 1 << SIM_AS_RC);
}
