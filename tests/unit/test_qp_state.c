/* The QP state and attribute matrix, walked whole: every pair of states, and for RC and XRC every single
 * missing and every single excess attribute.  What is expected stands here in the words of ibv_modify_qp(3)
 * and of the standard's table of optional attributes, not in the matrix's own. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "iba/qp_state.h"

#define ALL_BITS 27 /* attributes and a few bits that are none */

struct row {
	enum ibv_qp_state from, to;
	uint32_t required, optional;
};

/* What a QP in RTS, or on its way there, may be given. */
#define RTS_OPTIONS                                                                         \
	(IBV_QP_CUR_STATE | IBV_QP_ACCESS_FLAGS | IBV_QP_ALT_PATH | IBV_QP_PATH_MIG_STATE | \
	 IBV_QP_MIN_RNR_TIMER)

static const struct row rc[] = {
    {IBV_QPS_RESET, IBV_QPS_INIT, IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS, 0},
    {IBV_QPS_INIT, IBV_QPS_INIT, 0, IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS},
    {IBV_QPS_INIT, IBV_QPS_RTR,
     IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN | IBV_QP_MAX_DEST_RD_ATOMIC |
	 IBV_QP_MIN_RNR_TIMER,
     IBV_QP_ALT_PATH | IBV_QP_ACCESS_FLAGS | IBV_QP_PKEY_INDEX},
    {IBV_QPS_RTR, IBV_QPS_RTS,
     IBV_QP_SQ_PSN | IBV_QP_MAX_QP_RD_ATOMIC | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY | IBV_QP_TIMEOUT,
     RTS_OPTIONS},
    {IBV_QPS_RTS, IBV_QPS_RTS, 0, RTS_OPTIONS},
    {IBV_QPS_RTS, IBV_QPS_SQD, 0, IBV_QP_EN_SQD_ASYNC_NOTIFY},
    {IBV_QPS_SQD, IBV_QPS_RTS, 0, RTS_OPTIONS},
    {IBV_QPS_SQD, IBV_QPS_SQD, 0,
     IBV_QP_PORT | IBV_QP_AV | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY |
	 IBV_QP_MAX_QP_RD_ATOMIC | IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_ALT_PATH | IBV_QP_ACCESS_FLAGS |
	 IBV_QP_PKEY_INDEX | IBV_QP_MIN_RNR_TIMER | IBV_QP_PATH_MIG_STATE},
};

/* XRC's sending end has no receives: no responder resources, no RNR timer; its PSN for what comes back it
 * needs. */
static const struct row xrc_send[] = {
    {IBV_QPS_RESET, IBV_QPS_INIT, IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS, 0},
    {IBV_QPS_INIT, IBV_QPS_INIT, 0, IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS},
    {IBV_QPS_INIT, IBV_QPS_RTR, IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN,
     IBV_QP_ALT_PATH | IBV_QP_ACCESS_FLAGS | IBV_QP_PKEY_INDEX},
    {IBV_QPS_RTR, IBV_QPS_RTS,
     IBV_QP_SQ_PSN | IBV_QP_MAX_QP_RD_ATOMIC | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY | IBV_QP_TIMEOUT,
     RTS_OPTIONS & ~IBV_QP_MIN_RNR_TIMER},
    {IBV_QPS_RTS, IBV_QPS_RTS, 0, RTS_OPTIONS & ~IBV_QP_MIN_RNR_TIMER},
    {IBV_QPS_RTS, IBV_QPS_SQD, 0, IBV_QP_EN_SQD_ASYNC_NOTIFY},
    {IBV_QPS_SQD, IBV_QPS_RTS, 0, RTS_OPTIONS & ~IBV_QP_MIN_RNR_TIMER},
    {IBV_QPS_SQD, IBV_QPS_SQD, 0,
     IBV_QP_PORT | IBV_QP_AV | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY |
	 IBV_QP_MAX_QP_RD_ATOMIC | IBV_QP_ALT_PATH | IBV_QP_ACCESS_FLAGS | IBV_QP_PKEY_INDEX |
	 IBV_QP_PATH_MIG_STATE},
};

/* XRC's receiving end sends no requests: no retries, no initiator depth. */
static const struct row xrc_recv[] = {
    {IBV_QPS_RESET, IBV_QPS_INIT, IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS, 0},
    {IBV_QPS_INIT, IBV_QPS_INIT, 0, IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS},
    {IBV_QPS_INIT, IBV_QPS_RTR,
     IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN | IBV_QP_MAX_DEST_RD_ATOMIC |
	 IBV_QP_MIN_RNR_TIMER,
     IBV_QP_ALT_PATH | IBV_QP_ACCESS_FLAGS | IBV_QP_PKEY_INDEX},
    {IBV_QPS_RTR, IBV_QPS_RTS, IBV_QP_SQ_PSN | IBV_QP_TIMEOUT, RTS_OPTIONS},
    {IBV_QPS_RTS, IBV_QPS_RTS, 0, RTS_OPTIONS},
    {IBV_QPS_RTS, IBV_QPS_SQD, 0, IBV_QP_EN_SQD_ASYNC_NOTIFY},
    {IBV_QPS_SQD, IBV_QPS_RTS, 0, RTS_OPTIONS},
    {IBV_QPS_SQD, IBV_QPS_SQD, 0,
     IBV_QP_PORT | IBV_QP_AV | IBV_QP_TIMEOUT | IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_ALT_PATH |
	 IBV_QP_ACCESS_FLAGS | IBV_QP_PKEY_INDEX | IBV_QP_MIN_RNR_TIMER | IBV_QP_PATH_MIG_STATE},
};
enum { ROWS = sizeof(rc) / sizeof(rc[0]) }; /* of each of the three */

/* NULL: no such transition. */
static const struct row *expected(const struct row *rows, enum ibv_qp_state from, enum ibv_qp_state to)
{
	static const struct row nothing;

	if (from == IBV_QPS_SQE) /* a QP of a reliable type never is there */
		return NULL;
	if (to == IBV_QPS_RESET || to == IBV_QPS_ERR)
		return &nothing;
	for (unsigned i = 0; i < ROWS; i++)
		if (rows[i].from == from && rows[i].to == to)
			return &rows[i];
	return NULL;
}

static void walk(enum ibv_qp_type type, enum ibv_qp_state from, enum ibv_qp_state to, const struct row *r)
{
	uint32_t bits;

	assert_int_equal(vb_qp_judge(type, from, to, IBV_QP_STATE | r->required, &bits), VB_QP_FINE);
	assert_int_equal(vb_qp_judge(type, from, to, IBV_QP_STATE | r->required | r->optional, &bits),
			 VB_QP_FINE);
	for (int b = 1; b < ALL_BITS; b++) {
		uint32_t bit = 1u << b;

		if (r->required & bit) {
			assert_int_equal(vb_qp_judge(type, from, to,
						     (IBV_QP_STATE | r->required | r->optional) & ~bit,
						     &bits),
					 VB_QP_MISSING);
			assert_int_equal(bits, bit);
		} else if (r->optional & bit) {
			assert_int_equal(vb_qp_judge(type, from, to, IBV_QP_STATE | r->required | bit, &bits),
					 VB_QP_FINE);
		} else {
			assert_int_equal(vb_qp_judge(type, from, to, IBV_QP_STATE | r->required | bit, &bits),
					 VB_QP_EXCESS);
			assert_int_equal(bits, bit);
		}
	}
}

static void walk_all(enum ibv_qp_type type, const struct row *rows)
{
	int ways = 0;
	uint32_t bits;

	for (int from = IBV_QPS_RESET; from <= IBV_QPS_ERR; from++)
		for (int to = IBV_QPS_RESET; to <= IBV_QPS_ERR; to++) {
			const struct row *r = expected(rows, from, to);

			if (r) {
				walk(type, from, to, r);
				ways++;
			} else {
				assert_int_equal(vb_qp_judge(type, from, to, IBV_QP_STATE, &bits),
						 VB_QP_NO_WAY);
			}
		}
	assert_int_equal(ways, 6 * 2 + 8);
}

static void rule_38_rc_matrix(void **state)
{
	(void)state;
	walk_all(IBV_QPT_RC, rc);
}

static void rule_38_xrc_matrix(void **state)
{
	_Static_assert(sizeof(rc) == sizeof(xrc_send) && sizeof(rc) == sizeof(xrc_recv), "ROWS");
	(void)state;
	walk_all(IBV_QPT_XRC_SEND, xrc_send);
	walk_all(IBV_QPT_XRC_RECV, xrc_recv);
}

static void states_outside_lead_nowhere(void **state)
{
	uint32_t bits;

	(void)state;
	assert_int_equal(vb_qp_judge(IBV_QPT_RC, IBV_QPS_RTS, IBV_QPS_UNKNOWN, IBV_QP_STATE, &bits),
			 VB_QP_NO_WAY);
	assert_int_equal(vb_qp_judge(IBV_QPT_RC, IBV_QPS_RTS, (enum ibv_qp_state)99, IBV_QP_STATE, &bits),
			 VB_QP_NO_WAY);
	assert_int_equal(vb_qp_judge(IBV_QPT_RC, IBV_QPS_RTS, (enum ibv_qp_state) - 1, IBV_QP_STATE, &bits),
			 VB_QP_NO_WAY);
}

/* The manual's tables of what UC and UD need, and that SQE is theirs. */
static void rule_38_uc_and_ud_rows(void **state)
{
	const struct {
		enum ibv_qp_type type;
		enum ibv_qp_state from, to;
		uint32_t required;
	} rows[] = {
	    {IBV_QPT_UC, IBV_QPS_RESET, IBV_QPS_INIT, IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS},
	    {IBV_QPT_UC, IBV_QPS_INIT, IBV_QPS_RTR,
	     IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN},
	    {IBV_QPT_UC, IBV_QPS_RTR, IBV_QPS_RTS, IBV_QP_SQ_PSN},
	    {IBV_QPT_UC, IBV_QPS_SQE, IBV_QPS_RTS, 0},
	    {IBV_QPT_UD, IBV_QPS_RESET, IBV_QPS_INIT, IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_QKEY},
	    {IBV_QPT_UD, IBV_QPS_INIT, IBV_QPS_RTR, 0},
	    {IBV_QPT_UD, IBV_QPS_RTR, IBV_QPS_RTS, IBV_QP_SQ_PSN},
	    {IBV_QPT_UD, IBV_QPS_SQE, IBV_QPS_RTS, 0},
	};
	uint32_t bits;

	(void)state;
	for (unsigned i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
		assert_int_equal(vb_qp_judge(rows[i].type, rows[i].from, rows[i].to,
					     IBV_QP_STATE | rows[i].required, &bits),
				 VB_QP_FINE);
		for (int b = 1; b < ALL_BITS; b++)
			if (rows[i].required >> b & 1) {
				assert_int_equal(vb_qp_judge(rows[i].type, rows[i].from, rows[i].to,
							     rows[i].required & ~(1u << b), &bits),
						 VB_QP_MISSING);
				assert_int_equal(bits, 1u << b);
			}
		/* an attribute of RC alone */
		assert_int_equal(vb_qp_judge(rows[i].type, rows[i].from, rows[i].to,
					     rows[i].required | IBV_QP_TIMEOUT, &bits),
				 VB_QP_EXCESS);
	}
}

/* As Linux has it; programs set both ends of XRC up as they do RC. */
static void what_xrc_has_no_use_for_is_ignored(void **state)
{
	(void)state;
	assert_int_equal(vb_qp_ignores(IBV_QPT_XRC_SEND), IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER);
	assert_int_equal(vb_qp_ignores(IBV_QPT_XRC_RECV),
			 IBV_QP_MAX_QP_RD_ATOMIC | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY);
	assert_int_equal(vb_qp_ignores(IBV_QPT_RC), 0);
}

static void names_of_attributes(void **state)
{
	char buf[256], small[12];

	(void)state;
	assert_string_equal(vb_qp_attr_names(buf, sizeof(buf), IBV_QP_AV | IBV_QP_DEST_QPN),
			    "IBV_QP_AV, IBV_QP_DEST_QPN");
	assert_string_equal(vb_qp_attr_names(buf, sizeof(buf), IBV_QP_RATE_LIMIT), "0x2000000");
	assert_string_equal(vb_qp_attr_names(buf, sizeof(buf), 0), "");
	assert_int_equal(strlen(vb_qp_attr_names(small, sizeof(small), UINT32_MAX)), sizeof(small) - 1);
	assert_string_equal(vb_qp_state_name(IBV_QPS_SQD), "SQD");
	assert_string_equal(vb_qp_state_name((enum ibv_qp_state)77), "an unknown state");
}

int main(void)
{
	const struct CMUnitTest tests[] = {
	    cmocka_unit_test(rule_38_rc_matrix),
	    cmocka_unit_test(rule_38_xrc_matrix),
	    cmocka_unit_test(states_outside_lead_nowhere),
	    cmocka_unit_test(rule_38_uc_and_ud_rows),
	    cmocka_unit_test(what_xrc_has_no_use_for_is_ignored),
	    cmocka_unit_test(names_of_attributes),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
