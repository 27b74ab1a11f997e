/* Datagrams (UD) over a wire: what the rules ask of them beside what all transports have in common, and the
 * order of what waits for room. */
#include <string.h>

#include "iba/grh.h"
#include "obj/dests.h"
#include "sim.h"

#define CFG SIM_CFG
#define OK  IBV_WC_SUCCESS

static void counted(const struct sim *s, unsigned reason, uint64_t n)
{
	for (unsigned r = 0; r < VB_REASONS; r++)
		assert_int_equal(s->n[1].drops.count[r], r == reason ? n : 0);
}

static void arrives(struct sim *s, uint64_t receive)
{
	uint64_t a = sim_op(s, 0, IBV_WR_SEND, 0, 8, 0);

	sim_settle(s);
	sim_expect(s, 0, true, a, OK);
	assert_int_equal(sim_expect(s, 1, false, receive, OK).byte_len, VB_GRH_LEN + 8);
}

/* An SRQ's buffers are of the SRQ's domain, whichever the queue pair's is. */
static void rule_21_srq_buffers_belong_to_its_pd(void **state)
{
	struct sim *s = sim_desk(CFG(.srq = true));
	uint64_t r = sim_take(s, 1, 0, 8);

	(void)state;
	s->n[1].qp.pd_id = 99;
	arrives(s, r);
	s->n[1].pd.id = 98;
	r = sim_take(s, 1, 0, 8);
	sim_op(s, 0, IBV_WR_SEND, 0, 8, 0);
	sim_settle(s);
	sim_expect(s, 1, false, r, IBV_WC_LOC_PROT_ERR);
	assert_int_equal(s->n[1].qp.state, IBV_QPS_ERR);
	assert_int_equal(s->n[0].qp.state, IBV_QPS_RTS); /* which hears nothing of it */
	sim_free(s);
}

/* Each in silence, and the queue pair and its receive request are as before. */
static void rule_23_what_cannot_be_taken_is_dropped(void **state)
{
	struct sim *s = sim_desk(CFG(.mtu = 1024));
	uint64_t r;

	(void)state;
	sim_op(s, 0, IBV_WR_SEND, 0, 8, 0);
	sim_settle(s);
	counted(s, VB_R_DROP_NO_RECV, 1);
	r = sim_take(s, 1, 0, 8);
	s->n[1].drops.count[VB_R_DROP_NO_RECV] = 0;
	sim_op(s, 0, IBV_WR_SEND, 0, 9, 0);
	sim_op(s, 0, IBV_WR_SEND, 0, 1000, 0);
	sim_settle(s);
	counted(s, VB_R_DROP_TOO_SMALL, 2);
	s->n[1].drops.count[VB_R_DROP_TOO_SMALL] = 0;
	s->n[0].qkey = 5;
	sim_op(s, 0, IBV_WR_SEND, 0, 8, 0);
	sim_settle(s);
	counted(s, VB_R_DROP_QKEY, 1);
	s->n[0].qkey = 0;
	for (uint64_t i = 1; i <= 5; i++)
		if (i != r)
			sim_expect(s, 0, true, i, OK);
	sim_expect_none(s, 1);
	assert_int_equal(sim_event(s, 1), -1);
	arrives(s, r);
	for (uint32_t i = 0; i < s->seen; i++) /* nobody is told */
		assert_int_equal(s->trace[i].from, 0);
	sim_free(s);
}

/* It names the address of this end that is of the sender's family, and there are 40 bytes whatever the
 * length. */
static void rule_24_the_grh_leads_back(void **state)
{
	static const uint8_t from[] = {192, 0, 2, 1}, to[] = {192, 0, 2, 2};

	(void)state;
	for (uint32_t len = 0; len < 300; len += 149) {
		struct sim *s = sim_desk(CFG(.mtu = 1024));
		uint64_t r = sim_take(s, 1, 0, 300);
		struct ibv_wc wc;

		sim_fill(s, 512);
		memset(s->mem[1], 0xee, 512);
		sim_op(s, 0, IBV_WR_SEND_WITH_IMM, 0, len, 0);
		sim_settle(s);
		wc = sim_expect(s, 1, false, r, OK);
		assert_int_equal(wc.byte_len, VB_GRH_LEN + len);
		assert_int_equal(wc.wc_flags, IBV_WC_GRH | IBV_WC_WITH_IMM);
		assert_int_equal(wc.imm_data, 0x01020304); /* as given (rule 25) */
		assert_int_equal(wc.src_qp, SIM_QPN0);
		assert_int_equal(s->mem[1][20], 0x45);
		assert_memory_equal(s->mem[1] + 32, from, 4);
		assert_memory_equal(s->mem[1] + 36, to, 4);
		assert_memory_equal(s->mem[1] + VB_GRH_LEN, s->mem[0], len);
		assert_int_equal(s->mem[1][VB_GRH_LEN + len], 0xee);
		sim_free(s);
	}
}

/* A CNP is no datagram that is lost, and a datagram that a queue on the way has marked is taken; its sender
 * is told by a CNP, at most one in 50 us. */
static void congestion_is_told(void **state)
{
	struct sim *s = sim_desk(SIM_QUIET);
	struct vb_qp *qp = &s->n[1].qp;
	struct vb_pkt p = {.opcode = VB_FAMILY_CNP | VB_NOTIFY, .source = &s->n[0].source};
	struct vb_traffic t = {0}, *before = qp->traffic;

	(void)state;
	p.op = &vb_opcodes[p.opcode];
	qp->traffic = &t;
	vb_lock_take(&qp->lock);
	qp->transport->input(qp, &p);
	assert_int_equal(t.count[VB_TRAFFIC_CNPS_IN], 1);
	counted(s, VB_R_DROP_NO_QP, 0);
	p.opcode = VB_FAMILY_UD | VB_SEND_ONLY;
	p.op = &vb_opcodes[p.opcode];
	p.marked = true;
	p.qkey = qp->qkey;
	p.src_qpn = s->n[0].qp.qpn;
	for (unsigned i = 0; i < 2; i++)
		qp->transport->input(qp, &p);
	assert_int_equal(t.count[VB_TRAFFIC_MARKED_IN], 2);
	assert_int_equal(t.count[VB_TRAFFIC_CNPS_OUT], 1);
	assert_int_equal(sim_count(s, 1, VB_FAMILY_CNP | VB_NOTIFY), 1);
	counted(s, VB_R_DROP_NO_RECV, 2);
	vb_lock_give(&qp->lock);
	qp->traffic = before;
	sim_free(s);
}

static void rule_26_nothing_is_taken_in_err(void **state)
{
	struct sim *s = sim_desk(CFG(.cqe = 64));
	uint64_t r = sim_take(s, 1, 0, 8);

	(void)state;
	memset(s->mem[1], 0, 64);
	sim_op(s, 0, IBV_WR_SEND, 0, 8, 0);
	sim_run_for(s, 1); /* on its way */
	sim_modify(s, 1, IBV_QPS_ERR);
	sim_settle(s);
	sim_expect(s, 1, false, r, IBV_WC_WR_FLUSH_ERR);
	sim_expect_none(s, 1);
	counted(s, VB_R_DROP_NO_QP, 1);
	for (unsigned i = 0; i < 64; i++)
		assert_int_equal(s->mem[1][i], 0);
	sim_free(s);
}

static void rule_27_receive_requests_are_copied(void **state)
{
	struct sim *s = sim_desk(SIM_QUIET);
	struct ibv_sge e = {(uintptr_t)s->mem[1], VB_GRH_LEN + 8, s->lkey[1]};

	(void)state;
	assert_int_equal(sim_recv(s, 1, 5, &e, 1), 0);
	e = (struct ibv_sge){.length = 1 << 30};
	memcpy(s->mem[0], "message", 8);
	arrives(s, 5);
	assert_string_equal((char *)s->mem[1] + VB_GRH_LEN, "message");
	sim_free(s);
}

static void rule_35_last_wqe_reached(void **state)
{
	struct sim *s = sim_desk(CFG(.srq = true));

	(void)state;
	sim_take(s, 1, 0, 8);
	sim_modify(s, 1, IBV_QPS_ERR);
	assert_int_equal(sim_event(s, 1), IBV_EVENT_QP_LAST_WQE_REACHED);
	sim_modify(s, 1, IBV_QPS_ERR); /* once */
	assert_int_equal(sim_event(s, 1), -1);
	sim_expect_none(s, 1);
	assert_false(vb_rq_empty(&s->n[1].srq.rq));
	sim_free(s);
}

/* The wire has room for so many datagrams more, of a queue pair with .room = 4. */
static void room(struct sim *s, uint32_t n)
{
	s->n[0].wire.held = 3 - n;
}

static void rule_38_sqd_drains_and_resumes(void **state)
{
	struct sim *s = sim_desk(CFG(.room = 4));
	uint64_t r[2] = {sim_take(s, 1, 0, 8), sim_take(s, 1, 0, 8)}, a[2];

	(void)state;
	s->n[0].qp.attr.en_sqd_async_notify = 1;
	room(s, 0);
	a[0] = sim_op(s, 0, IBV_WR_SEND, 0, 8, 0);
	sim_run_for(s, 1);
	sim_modify(s, 0, IBV_QPS_SQD);
	a[1] = sim_op(s, 0, IBV_WR_SEND, 0, 8, 0);
	assert_int_equal(sim_event(s, 0), -1); /* one waits, which had begun */
	room(s, 3);
	sim_settle(s);
	sim_expect(s, 0, true, a[0], OK);
	sim_expect(s, 1, false, r[0], OK);
	assert_int_equal(sim_event(s, 0), IBV_EVENT_SQ_DRAINED);
	sim_expect_none(s, 0);
	sim_modify(s, 0, IBV_QPS_RTS);
	sim_settle(s);
	sim_expect(s, 0, true, a[1], OK);
	sim_expect(s, 1, false, r[1], OK);
	sim_free(s);
}

/* There is room again when a later one is posted. */
static void none_overtakes_what_waits(void **state)
{
	struct sim *s = sim_desk(CFG(.room = 4));
	uint64_t r[2] = {sim_take(s, 1, 0, 8), sim_take(s, 1, 512, 8)};

	(void)state;
	memcpy(s->mem[0], "the first the second", 21);
	room(s, 0);
	sim_op(s, 0, IBV_WR_SEND, 0, 8, 0);
	sim_run_for(s, 1);
	room(s, 3);
	sim_op(s, 0, IBV_WR_SEND, 10, 8, 0);
	sim_settle(s);
	for (unsigned i = 0; i < 2; i++) {
		sim_expect(s, 1, false, r[i], OK);
		assert_memory_equal(s->mem[1] + 512 * i + VB_GRH_LEN, s->mem[0] + 10 * i, 8);
	}
	sim_free(s);
}

static void look_at_far(struct vb_qp *qp)
{
	vb_lock_take(&qp->lock);
	qp->transport->output(&vb_dest_at(qp, SIM_FAR)->path, 0);
	vb_lock_give(&qp->lock);
}

/* The first of those that wait has lost its memory; what waits behind it is flushed, and not sent later. */
static void what_waits_is_flushed(void **state)
{
	struct sim *s = sim_desk(CFG(.room = 4));
	struct ibv_sge e;
	struct vb_qp *qp = &s->n[0].qp;
	struct ibv_send_wr wr;
	uint32_t key = sim_reg(s, 0, s->mem[0], 64, 0);
	uint64_t r = sim_take(s, 1, 0, 8), a[3], last;

	(void)state;
	sim_take(s, 1, 512, 8);
	memcpy(s->mem[0], "0000000 1111111 2222222 the last", 33);
	room(s, 0);
	for (uint32_t i = 0; i < 3; i++) {
		wr = sim_wr(s, 0, IBV_WR_SEND, i * 8, 8, 0, &e);
		if (!i)
			e.lkey = key;
		assert_int_equal(sim_send(s, 0, &wr), 0);
		a[i] = wr.wr_id;
	}
	sim_run_for(s, 1); /* all wait */
	vb_key_retract(&s->n[0].keys, key);
	room(s, 1);
	look_at_far(qp);
	assert_int_equal(qp->state, IBV_QPS_SQE);
	sim_modify(s, 0, IBV_QPS_RTS); /* at once, before anything else has looked */
	room(s, 3);
	sim_settle(s);
	sim_expect(s, 0, true, a[0], IBV_WC_LOC_PROT_ERR);
	sim_expect(s, 0, true, a[1], IBV_WC_WR_FLUSH_ERR);
	sim_expect(s, 0, true, a[2], IBV_WC_WR_FLUSH_ERR);
	last = sim_op(s, 0, IBV_WR_SEND, 24, 8, 0);
	sim_settle(s);
	sim_expect(s, 0, true, last, OK);
	sim_expect_none(s, 0);
	sim_expect(s, 1, false, r, OK);
	assert_memory_equal(s->mem[1] + VB_GRH_LEN, s->mem[0] + 24, 8);
	sim_expect_none(s, 1); /* the second did not go where there was room for one */
	assert_int_equal(s->n[1].drops.count[VB_R_DROP_NO_RECV], 0);
	sim_free(s);
}

/* The first one waits for a process that is never found, and the second loses its memory while it waits for
 * room: what is behind that, to whomever it is, does not leave while the first one is waited for. */
static void nothing_leaves_behind_what_failed(void **state)
{
	struct sim *s = sim_desk(CFG(.room = 4));
	struct vb_qp *qp = &s->n[0].qp;
	const struct vb_ah ah = {
	    .route = vb_route(VB_GRH_WORD(1, 0, 0), 64, 0), .dest = VB_DEST_BY_QPN, .pd_id = qp->pd_id};
	const struct sim_to none = {&ah, s->n[1].qp.qpn, s->n[0].qkey, SIM_FAR + 1},
			    neither = {&ah, s->n[1].qp.qpn, s->n[0].qkey, SIM_FAR + 2};
	uint32_t key = sim_reg(s, 0, s->mem[0], 64, 0);
	struct ibv_sge e;
	struct ibv_send_wr wr = sim_wr(s, 0, IBV_WR_SEND, 0, 8, 0, &e);
	uint64_t r = sim_take(s, 1, 0, 8), a[5];

	(void)state;
	room(s, 0);
	s->n[0].to = &none;
	a[0] = sim_op(s, 0, IBV_WR_SEND, 0, 8, 0);
	s->n[0].to = NULL;
	e.lkey = key;
	assert_int_equal(sim_send(s, 0, &wr), 0);
	a[1] = wr.wr_id;
	a[2] = sim_op(s, 0, IBV_WR_SEND, 0, 8, 0);
	s->n[0].to = &neither;
	a[3] = sim_op(s, 0, IBV_WR_SEND, 0, 8, 0);
	s->n[0].to = NULL;
	sim_run_for(s, 1); /* all wait */
	vb_key_retract(&s->n[0].keys, key);
	room(s, 3);
	look_at_far(qp);
	a[4] = sim_op(s, 0, IBV_WR_SEND, 0, 8, 0);
	look_at_far(qp);
	sim_run_for(s, VB_SEC);
	sim_expect_none(s, 0);
	sim_settle(s);
	sim_expect(s, 0, true, a[0], OK);
	sim_expect(s, 0, true, a[1], IBV_WC_LOC_PROT_ERR);
	for (unsigned i = 2; i < 5; i++)
		sim_expect(s, 0, true, a[i], IBV_WC_WR_FLUSH_ERR);
	sim_expect_none(s, 1);
	assert_int_equal(s->n[0].drops.count[VB_R_DROP_NOBODY], 1);
	sim_modify(s, 0, IBV_QPS_RTS);
	arrives(s, r);
	sim_free(s);
}

/* What is wrong with a request in itself, so that it fails in its turn. */
enum wrong { FOREIGN_AH, FOREIGN_OPCODE, TOO_LONG, WRONGS };

static const struct {
	enum vb_reason why;
	enum ibv_wc_status status;
} wrongs[WRONGS] = {{VB_R_AH_PD, IBV_WC_LOC_QP_OP_ERR},
		    {VB_R_QP_TYPE, IBV_WC_LOC_QP_OP_ERR},
		    {VB_R_DATAGRAM_TOO_LONG, IBV_WC_LOC_LEN_ERR}};

static uint64_t post_wrong(struct sim *s, enum wrong what)
{
	struct vb_qp *qp = &s->n[0].qp;
	const struct vb_ah ah = {
	    .route = vb_route(VB_GRH_WORD(1, 0, 0), 64, 0), .dest = VB_DEST_BY_QPN, .pd_id = qp->pd_id + 1};
	const struct sim_to to = {.ah = &ah, .qpn = SIM_QPN1};
	struct vb_swqe *w = vb_sq_at(&qp->req, atomic_load(&qp->post.head));
	uint64_t id;

	s->n[0].to = what == FOREIGN_AH ? &to : NULL;
	id = sim_op(s, 0, IBV_WR_SEND, 0, what == TOO_LONG ? VB_PORT_MTU + 1 : 8, 0);
	s->n[0].to = NULL;
	if (what == FOREIGN_OPCODE) { /* as posting leaves it, and nobody has looked at it yet */
		w->opcode = IBV_WR_RDMA_READ;
		vb_builder_refused(w, VB_R_QP_TYPE);
	}
	return id;
}

/* The one before it waits for room, and meanwhile the queue is looked at again and again. */
static void what_is_refused_fails_in_its_turn(void **state)
{
	(void)state;
	for (enum wrong what = 0; what < WRONGS; what++) {
		struct sim *s = sim_desk(CFG(.room = 4));
		struct vb_qp *qp = &s->n[0].qp;
		uint64_t r[2] = {sim_take(s, 1, 0, 8), sim_take(s, 1, 512, 8)}, a[3];

		room(s, 0);
		a[0] = sim_op(s, 0, IBV_WR_SEND, 0, 8, 0);
		a[1] = post_wrong(s, what);
		a[2] = sim_op(s, 0, IBV_WR_SEND, 0, 8, 0);
		for (unsigned i = 0; i < 3; i++)
			sim_run_for(s, 1);
		sim_expect_none(s, 0);
		assert_int_equal(qp->state, IBV_QPS_RTS);
		room(s, 3);
		sim_settle(s);
		sim_expect(s, 0, true, a[0], OK);
		sim_expect(s, 0, true, a[1], wrongs[what].status);
		sim_expect(s, 0, true, a[2], IBV_WC_WR_FLUSH_ERR);
		sim_expect_none(s, 0);
		assert_int_equal(qp->state, IBV_QPS_SQE);
		assert_int_equal(qp->why.reason, wrongs[what].why);
		sim_expect(s, 1, false, r[0], OK);
		sim_expect_none(s, 1);
		sim_modify(s, 0, IBV_QPS_RTS);
		arrives(s, r[1]);
		sim_free(s);
	}
}

/* The first one waits for room and loses its memory, and the one behind it is wrong as well, which is found
 * before that or after it: the first says why, and the other is flushed. */
static void the_first_that_fails_says_why(void **state)
{
	(void)state;
	for (unsigned i = 0; i < 2 * WRONGS; i++) {
		struct sim *s = sim_desk(CFG(.room = 4));
		struct vb_qp *qp = &s->n[0].qp;
		uint32_t key = sim_reg(s, 0, s->mem[0], 64, 0);
		uint64_t r = sim_take(s, 1, 0, 8), a[3];
		struct ibv_sge e;
		struct ibv_send_wr wr = sim_wr(s, 0, IBV_WR_SEND, 0, 8, 0, &e);
		bool found = i % 2; /* before */

		room(s, 0);
		e.lkey = key;
		assert_int_equal(sim_send(s, 0, &wr), 0);
		a[0] = wr.wr_id;
		sim_run_for(s, 1);
		a[1] = found ? post_wrong(s, i / 2) : 0;
		if (found)
			sim_run_for(s, 1);
		vb_key_retract(&s->n[0].keys, key);
		if (!found)
			a[1] = post_wrong(s, i / 2);
		a[2] = sim_op(s, 0, IBV_WR_SEND, 0, 8, 0);
		room(s, 3);
		look_at_far(qp); /* what waits comes first */
		sim_settle(s);
		sim_expect(s, 0, true, a[0], IBV_WC_LOC_PROT_ERR);
		sim_expect(s, 0, true, a[1], IBV_WC_WR_FLUSH_ERR);
		sim_expect(s, 0, true, a[2], IBV_WC_WR_FLUSH_ERR);
		sim_expect_none(s, 0);
		assert_int_equal(qp->state, IBV_QPS_SQE);
		assert_int_equal(vb_reasons[qp->why.reason].local_wc, IBV_WC_LOC_PROT_ERR);
		sim_expect_none(s, 1); /* nothing has left */
		sim_modify(s, 0, IBV_QPS_RTS);
		arrives(s, r);
		sim_free(s);
	}
}

/* The far end has taken nothing for so long that what is for it is dropped, and one is dropped whose memory
 * is not there: it fails, and what is behind it has no part in either. */
static void what_is_dropped_may_fail(void **state)
{
	struct sim *s = sim_desk(CFG(.room = 4));
	struct vb_qp *qp = &s->n[0].qp;
	uint64_t r = sim_take(s, 1, 0, 8), a[4];
	struct ibv_sge e;
	struct ibv_send_wr wr = sim_wr(s, 0, IBV_WR_SEND, 0, 1024, 0, &e); /* room is looked for first */

	(void)state;
	room(s, 0);
	a[0] = sim_op(s, 0, IBV_WR_SEND, 0, 8, 0);
	sim_settle(s);
	sim_expect(s, 0, true, a[0], OK);
	assert_int_equal(s->n[0].drops.count[VB_R_DROP_FULL], 1);
	e.lkey = sim_reg(s, 0, s->mem[0], 64, 0);
	vb_key_retract(&s->n[0].keys, e.lkey);
	assert_int_equal(sim_send(s, 0, &wr), 0);
	a[1] = wr.wr_id;
	a[2] = sim_op(s, 0, IBV_WR_SEND, 0, 8, 0);
	a[3] = post_wrong(s, TOO_LONG);
	sim_settle(s);
	sim_expect(s, 0, true, a[1], IBV_WC_LOC_PROT_ERR);
	sim_expect(s, 0, true, a[2], IBV_WC_WR_FLUSH_ERR);
	sim_expect(s, 0, true, a[3], IBV_WC_WR_FLUSH_ERR);
	sim_expect_none(s, 0);
	assert_int_equal(s->n[0].drops.count[VB_R_DROP_FULL], 1);
	assert_int_equal(vb_reasons[qp->why.reason].local_wc, IBV_WC_LOC_PROT_ERR);
	room(s, 3);
	sim_modify(s, 0, IBV_QPS_RTS);
	arrives(s, r);
	sim_free(s);
}

/* A datagram that is too long for the next receive request of an SRQ leaves that for others: it is not held
 * by the queue pair to which the datagram came, and what that has found says nothing of the next. */
static void rule_23_what_is_too_long_takes_nothing_from_an_srq(void **state)
{
	static const enum ibv_qp_state ends[] = {IBV_QPS_ERR, IBV_QPS_RESET};

	(void)state;
	for (unsigned i = 0; i < 2; i++) {
		struct sim *s = sim_desk(CFG(.srq = true));
		struct vb_srq *srq = &s->n[1].srq;
		uint64_t r = sim_take(s, 1, 0, 8);

		srq->limit = 1;
		sim_op(s, 0, IBV_WR_SEND, 0, 9, 0);
		sim_settle(s);
		counted(s, VB_R_DROP_TOO_SMALL, 1);
		assert_false(vb_rq_empty(&srq->rq));
		assert_int_equal(sim_event(s, 1), -1);
		if (i) {
			sim_expect(s, 0, true, r + 1, OK);
			arrives(s, r); /* what fits has it */
			assert_int_equal(sim_event(s, 1), IBV_EVENT_SRQ_LIMIT_REACHED);
			s->n[1].drops.count[VB_R_DROP_TOO_SMALL] = 0;
			sim_op(s, 0, IBV_WR_SEND, 0, 9, 0);
			sim_settle(s);
			counted(s, VB_R_DROP_NO_RECV, 1);
			sim_take(s, 1, 0, 8);
			sim_op(s, 0, IBV_WR_SEND, 0, 9, 0);
			sim_settle(s);
		}
		sim_modify(s, 1, ends[i]);
		sim_expect_none(s, 1);
		assert_false(vb_rq_empty(&srq->rq));
		sim_free(s);
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
	    cmocka_unit_test(rule_21_srq_buffers_belong_to_its_pd),
	    cmocka_unit_test(rule_23_what_cannot_be_taken_is_dropped),
	    cmocka_unit_test(rule_24_the_grh_leads_back),
	    cmocka_unit_test(congestion_is_told),
	    cmocka_unit_test(rule_26_nothing_is_taken_in_err),
	    cmocka_unit_test(rule_27_receive_requests_are_copied),
	    cmocka_unit_test(rule_35_last_wqe_reached),
	    cmocka_unit_test(rule_38_sqd_drains_and_resumes),
	    cmocka_unit_test(none_overtakes_what_waits),
	    cmocka_unit_test(what_waits_is_flushed),
	    cmocka_unit_test(nothing_leaves_behind_what_failed),
	    cmocka_unit_test(what_is_refused_fails_in_its_turn),
	    cmocka_unit_test(the_first_that_fails_says_why),
	    cmocka_unit_test(what_is_dropped_may_fail),
	    cmocka_unit_test(rule_23_what_is_too_long_takes_nothing_from_an_srq),
	};

	return SIM_RUN(tests, 1 << SIM_AS_UD);
}
