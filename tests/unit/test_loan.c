/* Loans: what of a list they name, how they travel, and what is none. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "iba/loan.h"

enum { PIECE = sizeof(struct ibv_sge), LEAVE = 4 };

static const struct vb_opcode_row *row(enum vb_operation op)
{
	return &vb_opcodes[VB_FAMILY_RC | op];
}

static void the_pieces_of_a_range(void **state)
{
	const struct ibv_sge list[] = {{1000, 10, 1}, {0, 0, 9}, {2000, 20, 2}, {3000, 30, 3}};
	static const struct {
		uint32_t off, n, pieces;
		struct ibv_sge first, last;
	} cases[] = {
	    {0, 60, 3, {1000, 10, 1}, {3000, 30, 3}}, {0, 1, 1, {1000, 1, 1}, {1000, 1, 1}},
	    {9, 2, 2, {1009, 1, 1}, {2000, 1, 2}},    {10, 20, 1, {2000, 20, 2}, {2000, 20, 2}},
	    {29, 5, 2, {2019, 1, 2}, {3000, 4, 3}},   {59, 1, 1, {3029, 1, 3}, {3029, 1, 3}},
	};
	struct vb_loan l;

	(void)state;
	for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
		vb_loan_cut(&l, list, 4, cases[i].off, cases[i].n);
		assert_int_equal(l.num, cases[i].pieces);
		assert_int_equal(l.length, cases[i].n);
		assert_memory_equal(&l.piece[0], &cases[i].first, PIECE);
		assert_memory_equal(&l.piece[l.num - 1], &cases[i].last, PIECE);
	}
}

static void it_arrives_as_it_left(void **state)
{
	struct vb_loan l = {.leave = 0x123456, .num = VB_MAX_SGE}, got;
	uint8_t payload[sizeof l + 1];
	struct vb_pkt p = {.op = row(VB_SEND_FIRST), .payload = payload + 1};

	(void)state;
	for (uint32_t i = 0; i < l.num; i++)
		l.piece[i] = (struct ibv_sge){0x1122334455667788ull + i, 100 + i, i << 8};
	for (l.num = 1; l.num <= VB_MAX_SGE; l.num++) {
		memset(payload, 0xee, sizeof payload);
		vb_loan_encode(payload + 1, &l); /* wherever the wire has it */
		assert_int_equal(payload[1 + vb_loan_size(&l)], 0xee);
		p.payload = payload + 1;
		p.payload_len = vb_loan_size(&l);
		p.loan = NULL;
		assert_null(vb_loan_decode(&got, &p));
		assert_ptr_equal(p.loan, &got);
		assert_null(p.payload);
		assert_int_equal(got.leave, l.leave);
		assert_int_equal(got.num, l.num);
		assert_memory_equal(got.piece, l.piece, l.num * PIECE);
		assert_int_equal(p.payload_len, l.num * 100 + l.num * (l.num - 1) / 2);
		assert_int_equal(got.length, p.payload_len);
	}
}

static void what_is_none(void **state)
{
	static const struct {
		uint32_t len;		/* of the payload */
		uint32_t first, second; /* lengths of its pieces */
		enum vb_operation op;
		bool good;
	} cases[] = {
	    {LEAVE + 2 * PIECE, VB_LOAN_MOST - 1, 1, VB_SEND_ONLY, true},
	    {LEAVE + 2 * PIECE, VB_LOAN_MOST, 1, VB_SEND_ONLY, false},
	    {LEAVE + 2 * PIECE, UINT32_MAX, 2, VB_SEND_ONLY, false}, /* a sum that wraps */
	    {LEAVE + 2 * PIECE, 1, 0, VB_SEND_ONLY, false},
	    {LEAVE + PIECE, 1, 0, VB_SEND_LAST_INV, true},
	    {LEAVE + PIECE, 1, 0, VB_WRITE_ONLY, false},
	    {LEAVE + PIECE, 1, 0, VB_ACK, false},
	    {LEAVE, 1, 1, VB_SEND_ONLY, false},
	    {LEAVE + PIECE - 1, 1, 1, VB_SEND_ONLY, false},
	    {LEAVE + PIECE + 1, 1, 1, VB_SEND_ONLY, false},
	    {LEAVE - 1, 1, 1, VB_SEND_ONLY, false},
	    {0, 1, 1, VB_SEND_ONLY, false},
	    {LEAVE + (VB_MAX_SGE + 1) * PIECE, 1, 1, VB_SEND_ONLY, false},
	};
	uint8_t payload[LEAVE + (VB_MAX_SGE + 1) * PIECE];
	struct vb_loan l;

	(void)state;
	for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
		struct vb_pkt p = {.op = row(cases[i].op), .payload = payload, .payload_len = cases[i].len};

		for (uint32_t k = 0; k <= VB_MAX_SGE; k++)
			memcpy(payload + LEAVE + k * PIECE,
			       &(struct ibv_sge){1,
						 k == 1 ? cases[i].second
						 : k	? 1
							: cases[i].first,
						 1},
			       PIECE);
		assert_int_equal(!vb_loan_decode(&l, &p), cases[i].good);
		assert_int_equal(p.loan == &l, cases[i].good);
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
	    cmocka_unit_test(the_pieces_of_a_range),
	    cmocka_unit_test(it_arrives_as_it_left),
	    cmocka_unit_test(what_is_none),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
