/* The rows of work requests: what they say of themselves agrees with what their packets are, and a request of
 * a QP is built as its row says. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <string.h>
#include <cmocka.h>

#include "iba/opcode.h"
#include "iba/wr.h"
#include "obj/builder.h"

#define EACH_ROW(i)                              \
	for (uint8_t i = 0; i < VB_WR_ROWS; i++) \
		if (vb_wrs[i].name)

static void opcodes_that_there_are_not_have_no_row(void **state)
{
	(void)state;
	assert_null(vb_wr_row(IBV_WR_TSO)->name);
	assert_null(vb_wr_row(VB_WR_NONE)->name);
	assert_null(vb_wr_row(VB_WR_ROWS)->name);
	assert_null(vb_wr_row(UINT32_MAX)->name);
	assert_int_equal(vb_wr_row(UINT32_MAX)->types, 0);
	assert_non_null(vb_wr_row(IBV_WR_SEND)->name);
}

static void a_request_without_packets_is_local(void **state)
{
	(void)state;
	EACH_ROW(i)
	{
		const struct vb_wr_row *r = &vb_wrs[i];
		const struct vb_wr_packets *p = &r->packets;
		bool none = !p->only && !p->first && !p->middle && !p->last;

		/* RC SEND First has the number 0 */
		assert_int_equal(none, (r->bits & VB_WR_LOCAL) != 0);
		if (none)
			assert_int_equal(r->bits, VB_WR_LOCAL);
		assert_int_equal(p->middle == 0, (r->bits & (VB_WR_LOCAL | VB_WR_FETCH)) != 0);
		assert_int_not_equal(r->types, 0);
	}
}

/* What the headers of a request's packets carry is what its row says that it has. */
static void packets_carry_what_the_row_has(void **state)
{
	const uint32_t place = VB_OP_FIRST | VB_OP_LAST;

	(void)state;
	EACH_ROW(i)
	{
		const struct vb_wr_row *r = &vb_wrs[i];
		const struct vb_wr_packets *p = &r->packets;
		uint32_t only = vb_opcodes[p->only].bits;

		if (r->bits & VB_WR_LOCAL)
			continue;
		assert_int_equal(only & place, place);
		assert_int_equal(only & (VB_OP_RETH | VB_OP_ATOMICETH) ? VB_WR_REMOTE : 0,
				 r->bits & VB_WR_REMOTE);
		assert_int_equal(only & VB_OP_HELD ? VB_WR_FETCH : 0, r->bits & VB_WR_FETCH);
		assert_int_equal(only & (VB_OP_WORD | VB_OP_FLUSH) ? VB_WR_BARE | VB_WR_SELF : 0,
				 r->bits & (VB_WR_BARE | VB_WR_SELF));
		assert_int_equal(only & VB_OP_ATOMIC ? VB_WR_ATOMIC : 0, r->bits & VB_WR_ATOMIC);
		assert_int_equal(only & VB_OP_IMM ? VB_WR_IMM : 0, r->bits & VB_WR_IMM);
		assert_int_equal(only & VB_OP_IETH ? VB_WR_INV : 0, r->bits & VB_WR_INV);
		assert_int_equal(only & VB_OP_WORD ? VB_WR_WORD : 0, r->bits & VB_WR_WORD);
		assert_int_equal(only & VB_OP_PAYLOAD && !(only & VB_OP_WORD) ? VB_WR_INLINE : 0,
				 r->bits & VB_WR_INLINE);
		if (r->bits & VB_WR_FETCH)
			continue;
		assert_int_equal(vb_opcodes[p->first].bits & place, VB_OP_FIRST);
		assert_int_equal(vb_opcodes[p->middle].bits & place, 0);
		assert_int_equal(vb_opcodes[p->last].bits & place, VB_OP_LAST);
		assert_int_equal(vb_opcodes[p->last].bits & (VB_OP_IMM | VB_OP_IETH),
				 only & (VB_OP_IMM | VB_OP_IETH));
	}
}

/* Direct placement asks the far end's region for what the packets would have asked for. */
static void access_is_that_of_the_packets(void **state)
{
	(void)state;
	EACH_ROW(i)
	{
		const struct vb_wr_row *r = &vb_wrs[i];
		uint32_t only = r->bits & VB_WR_LOCAL ? 0 : vb_opcodes[r->packets.only].bits, access = 0;

		if (only & VB_OP_WRITE)
			access = IBV_ACCESS_REMOTE_WRITE;
		if (only & VB_OP_READ)
			access = IBV_ACCESS_REMOTE_READ;
		if (only & VB_OP_ATOMIC)
			access = IBV_ACCESS_REMOTE_ATOMIC;
		assert_int_equal(r->access, access);
	}
}

struct desk {
	struct vb_qp *qp;
	_Alignas(VB_LINE) uint8_t ring[4 * 192];
	struct vb_builder b;
};

/* A queue of two requests of two pieces each. */
static void open_desk(struct desk *d, struct vb_qp *qp)
{
	memset(d, 0, sizeof *d);
	memset(qp, 0, sizeof *qp);
	d->qp = qp;
	qp->ibv.qp_type = IBV_QPT_RC;
	qp->req.ring = d->ring;
	qp->req.stride = 192;
	qp->req.mask = 3;
	qp->req.max_wr = 2;
	qp->req.max_sge = 2;
	qp->req.max_inline = 32;
	qp->req.max_msg = 1000;
}

static enum vb_build_fault build(struct desk *d, const struct ibv_send_wr *wr)
{
	enum vb_build_fault f = vb_builder_start(&d->b, wr->opcode, wr->send_flags, wr->wr_id);

	return f ? f : vb_builder_fill(&d->b, wr);
}

static void a_request_is_judged_by_its_row(void **state)
{
	struct ibv_sge sge[3] = {{0, 400, 1}, {0, 600, 2}, {0, 1, 3}};
	static struct vb_qp qp;
	struct desk d;

	(void)state;
	open_desk(&d, &qp);
	vb_builder_begin(&d.b, &qp);
	assert_true(vb_builder_room(&d.b));
	for (uint32_t op = 0; op < 40; op++) {
		const struct vb_wr_row *r = vb_wr_row(op);
		struct ibv_send_wr wr = {.opcode = (enum ibv_wr_opcode)op, .sg_list = sge, .num_sge = 2};

		if (op == IBV_WR_BIND_MW)
			continue;
		if (r->bits & VB_WR_SELF) { /* a work request has no place for what it says */
			assert_int_equal(build(&d, &wr), VB_BUILD_CALL);
			continue;
		}
		assert_int_equal(build(&d, &wr), r->name ? VB_BUILD_FINE : VB_BUILD_OPCODE);
		if (!r->name)
			continue;
		assert_int_equal(d.b.w->length, r->bits & VB_WR_LOCAL ? 0 : 1000);
		assert_int_equal(!(d.b.w->flags & IBV_SEND_FENCE), !(r->bits & VB_WR_FENCED));
		wr.send_flags = 1u << 30;
		assert_int_equal(build(&d, &wr), VB_BUILD_FLAGS);
		wr.send_flags = IBV_SEND_INLINE;
		assert_int_equal(build(&d, &wr),
				 r->bits & VB_WR_INLINE ? VB_BUILD_INLINE_LENGTH : VB_BUILD_NOT_INLINE);
		if (r->bits & VB_WR_LOCAL)
			continue;
		wr.send_flags = 0;
		wr.num_sge = 3;
		assert_int_equal(build(&d, &wr), VB_BUILD_SGES);
		wr.num_sge = -1;
		assert_int_equal(build(&d, &wr), VB_BUILD_SGES);
		wr.num_sge = 2;
		sge[1].length++;
		assert_int_equal(build(&d, &wr), VB_BUILD_LENGTH);
		sge[1].length--;
	}
	qp.ibv.qp_type = IBV_QPT_RAW_PACKET; /* which no row has */
	assert_int_equal(build(&d, &(struct ibv_send_wr){.opcode = IBV_WR_SEND}), VB_BUILD_OPCODE);
}

static void what_is_not_published_never_was(void **state)
{
	struct ibv_send_wr wr = {.opcode = IBV_WR_SEND};
	static struct vb_qp qp;
	struct desk d;

	(void)state;
	open_desk(&d, &qp);
	vb_builder_begin(&d.b, &qp);
	for (int i = 0; i < 2; i++) {
		assert_true(vb_builder_room(&d.b));
		assert_int_equal(build(&d, &wr), VB_BUILD_FINE);
		vb_builder_next(&d.b);
	}
	assert_false(vb_builder_room(&d.b));
	assert_int_equal(qp.post.head, 0);
	vb_builder_end(&d.b);
	vb_builder_begin(&d.b, &qp); /* anew */
	assert_true(vb_builder_room(&d.b));
	assert_int_equal(build(&d, &wr), VB_BUILD_FINE);
	vb_builder_next(&d.b);
	vb_builder_publish(&d.b);
	assert_int_equal(qp.post.head, 1);
	vb_builder_end(&d.b);
	vb_builder_begin(&d.b, &qp);
	assert_true(vb_builder_room(&d.b));
	vb_builder_next(&d.b);
	assert_false(vb_builder_room(&d.b));
}

/* A list of one piece is filled apart: it is judged no less, and its bytes are copied exactly. */
static void one_piece_is_judged_too(void **state)
{
	uint8_t data[33];
	struct ibv_sge sge = {(uintptr_t)data, 0, 7};
	struct ibv_send_wr wr = {.opcode = IBV_WR_SEND, .sg_list = &sge, .num_sge = 1};
	static struct vb_qp qp;
	struct desk d;

	(void)state;
	for (uint32_t i = 0; i < sizeof data; i++)
		data[i] = (uint8_t)(i + 1);
	open_desk(&d, &qp);
	vb_builder_begin(&d.b, &qp);
	assert_true(vb_builder_room(&d.b));
	for (sge.length = 0; sge.length <= 32; sge.length++) {
		wr.send_flags = IBV_SEND_INLINE;
		memset(d.b.w->inline_data, 0xee, 40);
		assert_int_equal(build(&d, &wr), VB_BUILD_FINE);
		assert_int_equal(d.b.w->length, sge.length);
		assert_memory_equal(d.b.w->inline_data, data, sge.length);
		assert_int_equal(d.b.w->inline_data[sge.length], 0xee);
		wr.send_flags = 0;
		assert_int_equal(build(&d, &wr), VB_BUILD_FINE);
		assert_int_equal(d.b.w->length, sge.length);
		assert_int_equal(d.b.w->num_sge, 1);
		assert_memory_equal(d.b.w->sge, &sge, sizeof sge);
	}
	wr.send_flags = IBV_SEND_INLINE; /* 33 bytes, of 32 */
	assert_int_equal(build(&d, &wr), VB_BUILD_INLINE_LENGTH);
	wr.send_flags = 0;
	sge.length = 1000;
	assert_int_equal(build(&d, &wr), VB_BUILD_FINE);
	sge.length = 1001;
	assert_int_equal(build(&d, &wr), VB_BUILD_LENGTH);
	sge.length = 8;
	qp.req.max_sge = 0;
	assert_int_equal(build(&d, &wr), VB_BUILD_SGES);
	wr.send_flags = IBV_SEND_INLINE; /* a list counts, whether or not its bytes are copied */
	assert_int_equal(build(&d, &wr), VB_BUILD_SGES);
}

/* The bits of send_ops_flags are the header's, one for each row. */
static void each_row_is_asked_for_by_a_bit_of_its_own(void **state)
{
	uint32_t all = 0;

	(void)state;
	EACH_ROW(i)
	{
		assert_int_equal(all & vb_wr_asked(i), 0);
		all |= vb_wr_asked(i);
	}
	assert_int_equal(vb_wr_askable(IBV_QPT_RC), all);
	assert_int_equal(vb_wr_askable(IBV_QPT_XRC_RECV), 0);
	assert_int_equal(all, 0x1bff); /* all but TSO */
	assert_int_equal(vb_wr_asked(IBV_WR_SEND_WITH_INV), IBV_QP_EX_WITH_SEND_WITH_INV);
	assert_int_equal(vb_wr_asked(IBV_WR_TSO), IBV_QP_EX_WITH_TSO);
	assert_int_equal(vb_wr_asked(IBV_WR_ATOMIC_WRITE), IBV_QP_EX_WITH_ATOMIC_WRITE);
	assert_int_equal(vb_wr_asked(VB_WR_FLUSH), 1 << 11);
	assert_int_equal(vb_wr_askable(IBV_QPT_RAW_PACKET), 0);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
	    cmocka_unit_test(opcodes_that_there_are_not_have_no_row),
	    cmocka_unit_test(a_request_without_packets_is_local),
	    cmocka_unit_test(packets_carry_what_the_row_has),
	    cmocka_unit_test(each_row_is_asked_for_by_a_bit_of_its_own),
	    cmocka_unit_test(access_is_that_of_the_packets),
	    cmocka_unit_test(a_request_is_judged_by_its_row),
	    cmocka_unit_test(one_piece_is_judged_too),
	    cmocka_unit_test(what_is_not_published_never_was),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
