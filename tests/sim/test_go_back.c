/* A requester of another make goes back where it likes: to the middle of a message, again before it came to
 * the end, behind what the responder was not ready for.  Packets of it are lost, and all are right.  Nothing
 * of that ends the queue pair, and each message arrives once, with its bytes. */
#include <stdlib.h>
#include <string.h>

#include "seeds.h"
#include "sim.h"

enum {
	MTU = 256,
	MESSAGES = 60,
	LONGEST = 6 * MTU,
	PSN = 0xffffff - 50, /* it wraps */
	RESULTS =
	    128 << 10, /* where the second half of node 1's memory begins: each message has a place there */
	ACKED = 16,    /* packets of which it may not have heard that they arrived */
};

struct packet {
	uint8_t opcode;
	unsigned message;
	uint32_t at, len; /* within the message */
};

struct sender {
	struct sim *s;
	struct {
		bool write, imm;
		uint32_t len;
	} messages[MESSAGES];
	struct packet packets[MESSAGES * (LONGEST / MTU + 1)];
	uint32_t n, next; /* packets; which one goes out next */
	unsigned posted, received;
};

static uint8_t operation(bool write, bool imm, bool first, bool last)
{
	if (!last)
		return write   ? first ? VB_RC_WRITE_FIRST : VB_RC_WRITE_MIDDLE
		       : first ? VB_RC_SEND_FIRST
			       : VB_RC_SEND_MIDDLE;
	if (write)
		return first ? imm ? VB_RC_WRITE_ONLY_IMM : VB_RC_WRITE_ONLY
		       : imm ? VB_RC_WRITE_LAST_IMM
			     : VB_RC_WRITE_LAST;
	return first ? imm ? VB_RC_SEND_ONLY_IMM : VB_RC_SEND_ONLY
	       : imm ? VB_RC_SEND_LAST_IMM
		     : VB_RC_SEND_LAST;
}

static void write_messages(struct sender *d)
{
	for (unsigned m = 0; m < MESSAGES; m++) {
		uint32_t len = 4 * sim_below(d->s, LONGEST / 4 + 1), at = 0;
		bool write = sim_below(d->s, 3) == 0, imm = sim_below(d->s, 2);

		d->messages[m].write = write;
		d->messages[m].imm = imm;
		d->messages[m].len = len;
		do {
			uint32_t k = len - at < MTU ? len - at : MTU;

			d->packets[d->n++] =
			    (struct packet){.opcode = operation(write, imm, !at, at + k == len),
					    .message = m,
					    .at = at,
					    .len = k};
			at += k;
		} while (at < len);
	}
}

static uint32_t place(unsigned m)
{
	return RESULTS + m * LONGEST;
}

static uint8_t *bytes(const struct sender *d, unsigned m)
{
	return d->s->mem[0] + m * LONGEST;
}

static void put(struct sender *d, uint32_t i)
{
	const struct packet *k = &d->packets[i];
	struct vb_pkt p = {.opcode = k->opcode,
			   .psn = vb_psn_add(PSN, i),
			   .ack_req = vb_opcodes[k->opcode].bits & VB_OP_LAST || sim_below(d->s, 8) == 0,
			   .va = (uintptr_t)d->s->mem[1] + place(k->message),
			   .dma_len = d->messages[k->message].len,
			   .rkey = sim_rkey(d->s->lkey[1])};

	sim_inject(d->s, 1, &p, bytes(d, k->message) + k->at, k->len);
}

/* A receive for the next message that takes one. */
static void post(struct sender *d)
{
	while (d->posted < MESSAGES && d->messages[d->posted].write && !d->messages[d->posted].imm)
		d->posted++;
	if (d->posted == MESSAGES)
		return;
	sim_take(d->s, 1, place(d->posted), LONGEST);
	d->posted++;
}

/* Those messages that were received are the next ones, with their lengths and bytes. */
static void look(struct sender *d)
{
	struct ibv_wc wc;

	while (sim_poll(d->s, 1, false, &wc)) {
		assert_int_equal(wc.status, IBV_WC_SUCCESS);
		while (d->messages[d->received].write && !d->messages[d->received].imm)
			d->received++;
		assert_true(d->received < MESSAGES);
		assert_int_equal(wc.byte_len, d->messages[d->received].len);
		assert_int_equal(wc.wc_flags, d->messages[d->received].imm ? IBV_WC_WITH_IMM : 0);
		assert_memory_equal(d->s->mem[1] + place(d->received), bytes(d, d->received), wc.byte_len);
		d->received++;
	}
}

static uint32_t expected(const struct sender *d)
{
	return (d->s->n[1].qp.resp.epsn - PSN) & VB_PSN_MASK;
}

static void turn(struct sender *d)
{
	uint32_t low = expected(d) > ACKED ? expected(d) - ACKED : 0;

	switch (sim_below(d->s, 32)) {
	case 0: /* it takes what was sent for lost */
	case 1:
		d->next = low + sim_below(d->s, d->next - low + 1);
		break;
	case 2: /* they are lost */
		d->next += sim_below(d->s, 4);
		break;
	case 3:
	case 4:
	case 5:
		post(d);
		break;
	default:
		if (d->next < d->n)
			put(d, d->next++);
	}
	if (d->next >= d->n) /* its timer expires */
		d->next = expected(d);
	look(d);
	sim_settle(d->s); /* the ACKs */
}

static void one_seed(bool srq)
{
	struct sender *d = sim_zeroed(sizeof *d);

	d->s =
	    sim_desk(SIM_CFG(.seed = seeds.current, .mtu = MTU, .far = true, .srq = srq, .psn = {PSN, 7000}));
	sim_fill(d->s, RESULTS);
	write_messages(d);
	while (expected(d) < d->n) {
		turn(d);
		assert_int_equal(d->s->n[1].qp.state, IBV_QPS_RTS);
		assert_true(expected(d) <= d->n);
	}
	look(d);
	for (unsigned m = 0; m < MESSAGES; m++)
		assert_memory_equal(d->s->mem[1] + place(m), bytes(d, m), d->messages[m].len);
	assert_int_equal(d->s->n[1].qp.resp.msn, MESSAGES);
	sim_expect_none(d->s, 1);
	assert_int_equal(sim_event(d->s, 1), -1);
	sim_free(d->s);
	free(d);
}

static void a_requester_goes_back(void **state)
{
	(void)state;
	for_each_seed()
	{
		one_seed(false);
		one_seed(true);
	}
}

int main(int argc, char **argv)
{
	const struct CMUnitTest tests[] = {cmocka_unit_test_teardown(a_requester_goes_back, seeds_tell)};

	seeds_choose(argc, argv, 200);
	return SIM_RUN(tests, SIM_OVER_ACKED);
}
