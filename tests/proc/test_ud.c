/* Datagrams (UD) between processes: what is sent arrives behind a GRH that leads back; what cannot be taken
 * is dropped and counted, and the queue pair goes on; no destination holds up another one. */
#include <arpa/inet.h>
#include <linux/capability.h>
#include <poll.h>
#include <sys/syscall.h>

#include "bytes.h"
#include "hca/hca.h"
#include "iba/grh.h"
#include "iba/loan.h"
#include "iba/out.h"
#include "iba/reason.h"
#include "obj/context.h"
#include "kit.h"

enum { DEPTH = 256, SIZE = 1 << 20, GRH = 40, MTU = 4096, AT = SIZE / 2 };

static struct board {
	struct kit_card card;
	_Atomic int step, go, got;
	_Atomic int astray; /* datagrams that came to a process which has no such queue pair */
} * board;

static struct ibv_context *ctx;
static struct ibv_pd *pd;

static void dropped(enum vb_reason r, uint64_t before, uint64_t n)
{
	double end = kit_now() + 20;

	while (kit_drops(ctx, r) < before + n && kit_now() < end)
		kit_nap_us(200);
	CHECK(kit_drops(ctx, r) == before + n, "%s: %" PRIu64 " of %" PRIu64, vb_reasons[r].name,
	      kit_drops(ctx, r) - before, n);
}

/* The header of IPv4, as RFC 791 has it. */
static void check_grh(const uint8_t *grh, uint32_t payload)
{
	uint16_t w[20];
	uint32_t sum = 0;

	memcpy(w, grh, sizeof w);
	for (int i = 0; i < 10; i++)
		CHECK(!w[i], "the unused bytes are not zero");
	for (int i = 10; i < 20; i++)
		sum += w[i];
	CHECK((sum & 0xffff) + (sum >> 16) == 0xffff, "the checksum is wrong");
	CHECK(grh[20] == 0x45 && grh[29] == 17);
	/* IPv4, UDP, BTH, DETH, padding, ICRC */
	CHECK(ntohs(w[11]) == 20 + 8 + 12 + 8 + ((payload + 3) & ~3u) + 4);
}

static void check(const uint8_t *at, uint32_t len, unsigned with)
{
	CHECK_EQ(kit_filled(at, len, with), len);
}

/* Answers each datagram through the address that it came from, until it is killed. */
static void echo(void)
{
	struct kit_end e;

	ctx = kit_open();
	pd = ibv_alloc_pd(ctx);
	kit_end_open_as(&e, pd, DEPTH, SIZE, IBV_QPT_UD);
	for (int i = 0; i < DEPTH / 2; i++)
		CHECK(!kit_recv(&e, 0, 0, GRH + MTU));
	board->card = e.card;
	atomic_store(&board->step, 1);
	for (;;) {
		struct ibv_wc wc = kit_wait(&e, 60);
		struct ibv_ah *ah;

		CHECK_EQ(wc.status, IBV_WC_SUCCESS);
		if (wc.opcode != IBV_WC_RECV)
			continue;
		if (kit_drops(ctx, VB_R_DROP_NO_QP))
			atomic_store(&board->astray, 1);
		atomic_fetch_add(&board->got, 1);
		CHECK(wc.wc_flags & IBV_WC_GRH && wc.sl == 2 && !wc.slid && !wc.pkey_index);
		check_grh(e.buf, wc.byte_len - GRH);
		ah = ibv_create_ah_from_wc(pd, &wc, (struct ibv_grh *)(void *)e.buf, 1);
		CHECK(ah);
		memcpy(e.buf + AT, e.buf + GRH, wc.byte_len - GRH);
		CHECK(!kit_datagram(&e, ah, wc.src_qp, 1, AT, wc.byte_len - GRH));
		CHECK(!ibv_destroy_ah(ah)); /* it may go right after the post */
		CHECK(!kit_recv(&e, 0, 0, GRH + MTU));
	}
}

static pid_t start_echo(void)
{
	pid_t pid;

	memset(board, 0, sizeof *board);
	pid = kit_fork();
	if (!pid) {
		echo();
		_exit(1);
	}
	kit_until(&board->step, 1);
	return pid;
}

static void end(pid_t pid)
{
	CHECK(!kill(pid, SIGKILL));
	kit_reap(pid);
}

static void lengths(struct kit_end *e, struct ibv_ah *ah)
{
	static const uint32_t lens[] = {0, 1, 8, 31, 32, 33, 56, 57, 100, 1024, 4095, MTU};
	struct ibv_qp_attr a = {.qp_state = IBV_QPS_RTS};
	struct ibv_wc wc;

	for (unsigned i = 0; i < sizeof lens / sizeof *lens; i++) {
		kit_fill(e->buf, lens[i], i);
		memset(e->buf + AT, 0xee, GRH + MTU);
		CHECK(!kit_recv(e, 5, AT, GRH + MTU));
		CHECK(!kit_datagram(e, ah, board->card.qpn, 6, 0, lens[i]));
		wc = kit_expect(e, IBV_WC_SEND);
		CHECK(wc.wr_id == 6);
		wc = kit_expect(e, IBV_WC_RECV);
		CHECK(wc.wr_id == 5 && wc.byte_len == GRH + lens[i] && wc.src_qp == board->card.qpn);
		check_grh(e->buf + AT, lens[i]);
		check(e->buf + AT + GRH, lens[i], i);
		CHECK(e->buf[AT + GRH + lens[i]] == 0xee || lens[i] == MTU);
	}
	/* A longer one fails, and what is behind it is flushed; what comes is taken on. */
	CHECK(!kit_datagram(e, ah, board->card.qpn, 1, 0, MTU + 1));
	CHECK(!kit_datagram(e, ah, board->card.qpn, 2, 0, 8));
	wc = kit_wait(e, 20);
	CHECK(wc.wr_id == 1);
	CHECK_EQ(wc.status, IBV_WC_LOC_LEN_ERR);
	wc = kit_wait(e, 20);
	CHECK(wc.wr_id == 2);
	CHECK_EQ(wc.status, IBV_WC_WR_FLUSH_ERR);
	CHECK(e->qp->state == IBV_QPS_SQE);
	CHECK(!ibv_modify_qp(e->qp, &a, IBV_QP_STATE));
	CHECK(!kit_recv(e, 5, AT, GRH + MTU));
	CHECK(!kit_datagram(e, ah, board->card.qpn, 6, 0, 8));
	kit_expect(e, IBV_WC_SEND);
	kit_expect(e, IBV_WC_RECV);
}

static struct ibv_send_wr request(struct kit_end *e, struct ibv_sge *sge, struct ibv_ah *ah, uint32_t qpn)
{
	*sge = (struct ibv_sge){.addr = (uintptr_t)e->buf, .length = 8, .lkey = e->mr->lkey};
	return (struct ibv_send_wr){.wr_id = 1,
				    .sg_list = sge,
				    .num_sge = 1,
				    .opcode = IBV_WR_SEND_WITH_IMM,
				    .imm_data = htonl(0x12345678),
				    .send_flags = IBV_SEND_SIGNALED,
				    .wr.ud = {.ah = ah, .remote_qpn = qpn, .remote_qkey = KIT_QKEY}};
}

/* Two queue pairs of one process, with an immediate, and with the sender's own Q_Key. */
static void to_oneself(struct kit_end *e)
{
	struct ibv_send_wr wr, *bad;
	struct kit_end other;
	struct ibv_sge sge;
	struct ibv_ah *ah;
	struct ibv_wc wc;

	kit_end_open_as(&other, pd, DEPTH, SIZE, IBV_QPT_UD);
	ah = kit_ah(pd, &other.card);
	CHECK(!kit_recv(&other, 9, AT, GRH + 8));
	wr = request(e, &sge, ah, other.card.qpn);
	wr.wr.ud.remote_qkey = 0x80000000; /* stands for the sender's own */
	kit_fill(e->buf, 8, 3);
	CHECK(!ibv_post_send(e->qp, &wr, &bad));
	kit_expect(e, IBV_WC_SEND);
	wc = kit_expect(&other, IBV_WC_RECV);
	CHECK(wc.wc_flags == (IBV_WC_GRH | IBV_WC_WITH_IMM) && wc.imm_data == htonl(0x12345678));
	CHECK(wc.src_qp == e->card.qpn && wc.qp_num == other.card.qpn && wc.wr_id == 9);
	check(other.buf + AT + GRH, 8, 3);
	wr.wr.ud.ah = NULL;
	CHECK(ibv_post_send(e->qp, &wr, &bad) == EINVAL && bad == &wr);
	wr.wr.ud.ah = ah;
	wr.wr.ud.remote_qpn |= 0xff000000; /* of which a packet brings 24 bits */
	CHECK(!kit_recv(&other, 9, AT, GRH + 8));
	CHECK(!ibv_post_send(e->qp, &wr, &bad));
	kit_expect(e, IBV_WC_SEND);
	kit_expect(&other, IBV_WC_RECV);
	CHECK(!ibv_destroy_ah(ah));
	kit_end_close(&other);
}

static void fails(struct kit_end *e, struct ibv_send_wr *wr)
{
	struct ibv_qp_attr a = {.qp_state = IBV_QPS_RTS};
	struct ibv_send_wr *bad;
	struct ibv_wc wc;

	CHECK(!ibv_post_send(e->qp, wr, &bad));
	wc = kit_wait(e, 20);
	CHECK_EQ(wc.status, IBV_WC_LOC_QP_OP_ERR);
	CHECK(wc.wr_id == wr->wr_id);
	CHECK(e->qp->state == IBV_QPS_SQE && !ibv_modify_qp(e->qp, &a, IBV_QP_STATE));
}

/* What no datagram can do fails in its turn, and so does one through an address handle of another domain
 * (rules 10, 21). */
static void what_a_datagram_cannot(struct kit_end *e)
{
	static const enum ibv_wr_opcode others[] = {IBV_WR_RDMA_WRITE, IBV_WR_RDMA_READ, IBV_WR_SEND_WITH_INV,
						    IBV_WR_ATOMIC_CMP_AND_SWP, IBV_WR_ATOMIC_FETCH_AND_ADD};
	struct ibv_pd *elsewhere = ibv_alloc_pd(ctx);
	struct ibv_ah *ah = kit_ah(pd, &e->card), *theirs = kit_ah(elsewhere, &e->card);
	struct ibv_send_wr wr, *bad;
	struct ibv_sge sge;

	for (unsigned i = 0; i < sizeof others / sizeof *others; i++) {
		wr = request(e, &sge, ah, e->card.qpn);
		wr.opcode = others[i];
		wr.send_flags = 0;
		wr.wr_id = 40 + i;
		fails(e, &wr);
	}
	wr = request(e, &sge, theirs, e->card.qpn);
	fails(e, &wr);
	wr.opcode = IBV_WR_TSO;
	CHECK(ibv_post_send(e->qp, &wr, &bad) == EINVAL);
	theirs->handle ^= 0x5555;
	CHECK(ibv_destroy_ah(theirs) == ENOENT); /* rule 37 */
	theirs->handle ^= 0x5555;
	CHECK(ibv_dealloc_pd(elsewhere) == EBUSY);
	CHECK(!ibv_destroy_ah(ah) && !ibv_destroy_ah(theirs) && !ibv_dealloc_pd(elsewhere));
}

/* A request built call by call names its destination too, or it is not posted. */
static void by_calls(struct kit_end *to)
{
	uint64_t ops = IBV_QP_EX_WITH_SEND | IBV_QP_EX_WITH_SEND_WITH_IMM;
	struct ibv_ah *ah = kit_ah(pd, &to->card);
	struct ibv_qp_ex *ex;
	struct kit_end e;
	struct ibv_wc wc;

	ex = kit_end_open_ex_as(&e, pd, DEPTH, SIZE, IBV_QPT_UD, ops);
	ex->wr_flags = IBV_SEND_SIGNALED;
	ex->wr_id = 77;
	ibv_wr_start(ex);
	ibv_wr_send(ex);
	ibv_wr_set_inline_data(ex, "no address", 10);
	CHECK(ibv_wr_complete(ex) == EINVAL);
	ibv_wr_start(ex);
	ibv_wr_send(ex);
	ibv_wr_set_inline_data(ex, "none either", 11);
	ibv_wr_send_imm(ex, 5);
	ibv_wr_set_ud_addr(ex, ah, to->card.qpn, KIT_QKEY);
	ibv_wr_set_inline_data(ex, "one", 3);
	CHECK(ibv_wr_complete(ex) == EINVAL);
	ibv_wr_start(ex);
	ibv_wr_send(ex);
	ibv_wr_set_ud_addr(ex, NULL, to->card.qpn, KIT_QKEY);
	CHECK(ibv_wr_complete(ex) == EINVAL);
	ibv_wr_start(ex);
	ibv_wr_send(ex);
	ibv_wr_abort(ex);
	CHECK(!kit_recv(to, 9, AT, GRH + 64));
	ibv_wr_start(ex);
	ibv_wr_send_imm(ex, htonl(42));
	ibv_wr_set_ud_addr(ex, ah, to->card.qpn, KIT_QKEY);
	ibv_wr_set_inline_data(ex, "here I am", 10);
	CHECK(!ibv_wr_complete(ex));
	CHECK(kit_expect(&e, IBV_WC_SEND).wr_id == 77);
	wc = kit_expect(to, IBV_WC_RECV);
	CHECK(wc.byte_len == GRH + 10 && wc.imm_data == htonl(42) &&
	      !strcmp((char *)to->buf + AT + GRH, "here I am"));
	CHECK(!ibv_destroy_ah(ah));
	kit_end_close(&e);
}

/* A queue pair that receives from srq, and completes to cq. */
static struct ibv_qp *sharer(struct ibv_srq *srq, struct ibv_cq *cq)
{
	struct ibv_qp_init_attr qa = {
	    .send_cq = cq, .recv_cq = cq, .srq = srq, .qp_type = IBV_QPT_UD, .cap = {.max_send_wr = 1}};
	struct ibv_qp_attr a = {.qp_state = IBV_QPS_INIT, .port_num = 1, .qkey = KIT_QKEY};
	struct ibv_qp *qp = ibv_create_qp(pd, &qa);

	CHECK(qp && !ibv_modify_qp(qp, &a, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_QKEY));
	a.qp_state = IBV_QPS_RTR;
	CHECK(!ibv_modify_qp(qp, &a, IBV_QP_STATE));
	return qp;
}

/* A datagram comes to a queue pair that receives from a shared queue: the buffer is of that one's domain. */
static void from_a_shared_queue(struct kit_end *e)
{
	struct ibv_srq_init_attr sa = {.attr = {.max_wr = 8, .max_sge = 2}};
	struct ibv_srq *srq = ibv_create_srq(pd, &sa);
	struct ibv_sge sge[2] = {{(uintptr_t)e->buf + AT, 20, e->mr->lkey},
				 {(uintptr_t)e->buf + AT + 1000, 100, e->mr->lkey}};
	struct ibv_recv_wr wr = {.wr_id = 55, .sg_list = sge, .num_sge = 2}, *bad;
	struct ibv_cq *cq = ibv_create_cq(ctx, 8, NULL, NULL, 0);
	struct ibv_ah *ah = kit_ah(pd, &e->card);
	struct ibv_wc wc = {0};
	double until = kit_now() + 20;
	struct ibv_qp *qp;

	CHECK(srq && cq);
	qp = sharer(srq, cq);
	CHECK(!ibv_post_srq_recv(srq, &wr, &bad));
	kit_fill(e->buf, 60, 4);
	CHECK(!kit_datagram(e, ah, qp->qp_num, 1, 0, 60));
	kit_expect(e, IBV_WC_SEND);
	while (ibv_poll_cq(cq, 1, &wc) == 0 && kit_now() < until)
		;
	CHECK_EQ(wc.status, IBV_WC_SUCCESS);
	CHECK(wc.wr_id == 55 && wc.byte_len == GRH + 60);
	check(e->buf + AT + 1020, 60, 4); /* behind the GRH, of which 20 bytes are in the first piece */
	CHECK(!ibv_destroy_qp(qp) && !ibv_destroy_srq(srq) && !ibv_destroy_cq(cq) && !ibv_destroy_ah(ah));
}

/* Two queue pairs share a queue.  A datagram to one that is too long for the next request is dropped, and the
 * request is there for the other one, also when the first goes to another state meanwhile. */
static void too_long_for_a_shared_queue(struct kit_end *e, enum ibv_qp_state to)
{
	struct ibv_srq_init_attr sa = {.attr = {.max_wr = 8, .max_sge = 1}};
	struct ibv_srq_attr limit = {.srq_limit = 1};
	struct ibv_srq *srq = ibv_create_srq(pd, &sa);
	struct ibv_sge sge = {(uintptr_t)e->buf + AT, GRH + 8, e->mr->lkey};
	struct ibv_recv_wr wr = {.wr_id = 55, .sg_list = &sge, .num_sge = 1}, *bad;
	struct kit_end other = {.cq = ibv_create_cq(ctx, 8, NULL, NULL, 0)};
	struct ibv_cq *cq = ibv_create_cq(ctx, 8, NULL, NULL, 0);
	struct pollfd told = {.fd = ctx->async_fd, .events = POLLIN};
	uint64_t small = kit_drops(ctx, VB_R_DROP_TOO_SMALL);
	struct ibv_qp_attr a = {.qp_state = to};
	struct ibv_ah *ah = kit_ah(pd, &e->card);
	struct ibv_async_event event;
	struct ibv_qp *first;
	struct ibv_wc wc;

	CHECK(srq && cq && other.cq);
	sa.attr.srq_limit = 1; /* a new one has none, which creation writes back */
	first = sharer(srq, cq);
	other.qp = sharer(srq, other.cq);
	CHECK(!ibv_modify_srq(srq, &limit, IBV_SRQ_LIMIT) && !ibv_post_srq_recv(srq, &wr, &bad));
	CHECK(!kit_datagram(e, ah, first->qp_num, 1, 0, 9));
	kit_expect(e, IBV_WC_SEND);
	dropped(VB_R_DROP_TOO_SMALL, small, 1);
	CHECK(poll(&told, 1, 0) == 0, "the limit is reached, and nothing was taken");
	if (to != IBV_QPS_RTR)
		CHECK(!ibv_modify_qp(first, &a, IBV_QP_STATE));
	if (to == IBV_QPS_ERR) {
		CHECK(!ibv_get_async_event(ctx, &event) &&
		      event.event_type == IBV_EVENT_QP_LAST_WQE_REACHED && event.element.qp == first);
		ibv_ack_async_event(&event);
	}
	CHECK(ibv_poll_cq(cq, 1, &wc) == 0, "it had the request");
	kit_fill(e->buf, 8, 3);
	CHECK(!kit_datagram(e, ah, other.qp->qp_num, 1, 0, 8));
	kit_expect(e, IBV_WC_SEND);
	wc = kit_expect(&other, IBV_WC_RECV);
	CHECK(wc.wr_id == 55 && wc.byte_len == GRH + 8 && wc.qp_num == other.qp->qp_num);
	check(e->buf + AT + GRH, 8, 3);
	CHECK(!ibv_get_async_event(ctx, &event) && event.event_type == IBV_EVENT_SRQ_LIMIT_REACHED);
	ibv_ack_async_event(&event);
	CHECK(!ibv_destroy_qp(first) && !ibv_destroy_qp(other.qp) && !ibv_destroy_srq(srq));
	CHECK(!ibv_destroy_cq(cq) && !ibv_destroy_cq(other.cq) && !ibv_destroy_ah(ah));
}

/* A Q_Key with the high bit is for privileged users to have; whoever has a capability may lay it down. */
static void controlled_qkeys(void)
{
	struct __user_cap_header_struct head = {.version = _LINUX_CAPABILITY_VERSION_3};
	struct __user_cap_data_struct data[_LINUX_CAPABILITY_U32S_3], *raw = &data[CAP_TO_INDEX(CAP_NET_RAW)];
	struct ibv_qp_attr a = {.qp_state = IBV_QPS_RTS, .qkey = 0x80000005};
	struct kit_end e;
	pid_t pid = kit_fork();

	if (pid) {
		CHECK_EQ(kit_reap(pid), 0);
		return;
	}
	ctx = kit_open();
	pd = ibv_alloc_pd(ctx);
	kit_end_open_as(&e, pd, DEPTH, SIZE, IBV_QPT_UD);
	CHECK(!syscall(SYS_capget, &head, data));
	if (raw->effective & CAP_TO_MASK(CAP_NET_RAW))
		CHECK(!ibv_modify_qp(e.qp, &a, IBV_QP_STATE | IBV_QP_QKEY));
	raw->effective &= ~(uint32_t)CAP_TO_MASK(CAP_NET_RAW);
	CHECK(!syscall(SYS_capset, &head, data));
	CHECK(ibv_modify_qp(e.qp, &a, IBV_QP_STATE | IBV_QP_QKEY) == EPERM);
	CHECK_EQ(errno, EPERM);
	a.qkey = 5;
	CHECK(!ibv_modify_qp(e.qp, &a, IBV_QP_STATE | IBV_QP_QKEY));
	_exit(0);
}

static void what_is_dropped_is_counted(struct kit_end *e)
{
	uint64_t key = kit_drops(ctx, VB_R_DROP_QKEY), none = kit_drops(ctx, VB_R_DROP_NO_RECV),
		 small = kit_drops(ctx, VB_R_DROP_TOO_SMALL), qp = kit_drops(ctx, VB_R_DROP_NO_QP);
	struct ibv_send_wr wr, *bad;
	struct kit_end other, rc;
	struct ibv_sge sge;
	struct ibv_ah *ah;
	struct ibv_wc wc;

	kit_end_open_as(&other, pd, DEPTH, SIZE, IBV_QPT_UD);
	kit_end_open(&rc, pd, DEPTH, SIZE);
	ah = kit_ah(pd, &other.card);
	CHECK(!kit_datagram(e, ah, other.card.qpn, 1, 0, 8));
	kit_expect(e, IBV_WC_SEND);
	dropped(VB_R_DROP_NO_RECV, none, 1);
	CHECK(!kit_recv(&other, 9, AT, GRH + 7));
	for (int i = 0; i < 2; i++) {
		CHECK(!kit_datagram(e, ah, other.card.qpn, 1, 0, 8));
		kit_expect(e, IBV_WC_SEND);
	}
	dropped(VB_R_DROP_TOO_SMALL, small, 2);
	wr = request(e, &sge, ah, other.card.qpn);
	wr.wr.ud.remote_qkey = KIT_QKEY + 1;
	CHECK(!ibv_post_send(e->qp, &wr, &bad));
	kit_expect(e, IBV_WC_SEND);
	dropped(VB_R_DROP_QKEY, key, 1);
	CHECK(!kit_datagram(e, ah, other.card.qpn ^ 0x800, 1, 0, 8));
	kit_expect(e, IBV_WC_SEND);
	CHECK(!kit_datagram(e, ah, rc.card.qpn, 1, 0, 100));
	kit_expect(e, IBV_WC_SEND);
	dropped(VB_R_DROP_NO_QP, qp, 2);
	/* What was too small for it is there for a shorter one. */
	CHECK(!kit_datagram(e, ah, other.card.qpn, 1, 0, 7));
	kit_expect(e, IBV_WC_SEND);
	wc = kit_expect(&other, IBV_WC_RECV);
	CHECK(wc.wr_id == 9 && wc.byte_len == GRH + 7);
	CHECK(other.qp->state == IBV_QPS_RTS);
	CHECK(!ibv_destroy_ah(ah));
	kit_end_close(&rc);
	kit_end_close(&other);
}

/* Why a datagram is not taken: what the queue pair is. */
static void why_it_is_not_taken(struct kit_end *e)
{
	uint64_t before = kit_drops(ctx, VB_R_DROP_NO_QP), nobody = kit_drops(ctx, VB_R_DROP_NOBODY);
	struct kit_end rc, init, last, from;
	union ibv_gid group = {.raw = {0xff, 0x0e, [15] = 7}};
	struct ibv_ah_attr to = {.is_global = 1, .port_num = 1, .grh = {.dgid = group, .hop_limit = 1}};
	struct ibv_ah *ah = kit_ah(pd, &e->card), *ah_group = ibv_create_ah(pd, &to);

	CHECK(ah && ah_group);
	kit_end_open(&rc, pd, DEPTH, SIZE);
	kit_end_open_as(&init, pd, DEPTH, SIZE, IBV_QPT_UD);
	kit_end_open_as(&last, pd, DEPTH, SIZE, IBV_QPT_UD);
	CHECK_EQ(ibv_modify_qp(init.qp, &(struct ibv_qp_attr){.qp_state = IBV_QPS_RESET}, IBV_QP_STATE), 0);
	CHECK_EQ(ibv_modify_qp(last.qp, &(struct ibv_qp_attr){.qp_state = IBV_QPS_ERR}, IBV_QP_STATE), 0);
	kit_log_skip();
	for (struct kit_end *end = &rc; end; end = end == &rc ? &init : end == &init ? &last : NULL) {
		CHECK_EQ(kit_datagram(e, ah, end->card.qpn, 1, 0, 8), 0);
		kit_expect(e, IBV_WC_SEND);
	}
	dropped(VB_R_DROP_NO_QP, before, 3);
	KIT_LOG_SAYS(
	    "queue pair 0x%06x has type IBV_QPT_RC, but its sender has type IBV_QPT_UD; both ends must "
	    "have the same type",
	    rc.card.qpn);
	KIT_LOG_SAYS("queue pair 0x%06x is in state RESET: it receives from state RTR on", init.card.qpn);
	KIT_LOG_SAYS("queue pair 0x%06x is in state ERR", last.card.qpn);
	kit_end_open_as(&from, pd, DEPTH, SIZE, IBV_QPT_UD);
	kit_log_skip();
	CHECK_EQ(kit_datagram(&from, ah_group, 0x123, 1, 0, 8), 0);
	kit_expect(&from, IBV_WC_SEND);
	dropped(VB_R_DROP_NOBODY, nobody, 1);
	KIT_LOG_SAYS(
	    "queue pair 0x000123 cannot be reached: the address handle is for a multicast group; set "
	    "remote_qpn to 0xffffff");
	kit_end_close(&from);
	for (uint32_t qpn = 1; qpn <= 0xffffff; qpn += 0xfffffe) {
		kit_end_open_as(&from, pd, DEPTH, SIZE, IBV_QPT_UD);
		kit_log_skip();
		CHECK_EQ(kit_datagram(&from, ah, qpn, 1, 0, 8), 0);
		kit_expect(&from, IBV_WC_SEND);
		if (qpn == 1)
			KIT_LOG_SAYS("queue pair 0x000001 cannot be reached: 1 is the number of QP1, which "
				     "belongs to the connection manager; set remote_qpn to");
		else
			KIT_LOG_SAYS(
			    "queue pair 0xffffff cannot be reached: 0xffffff is the queue pair number of "
			    "multicast groups, but the address handle is not for a group");
		if (qpn == 1)
			kit_end_close(&from);
	}
	CHECK(!ibv_destroy_ah(ah) && !ibv_destroy_ah(ah_group));
	kit_end_close(&rc);
	kit_end_close(&init);
	kit_end_close(&last);
	kit_end_close(&from);
}

/* The number of the far end was never filled in; said once for each queue pair, as all that is dropped. */
static void to_number_0(void)
{
	struct kit_end e;
	struct ibv_ah *ah;

	kit_end_open_as(&e, pd, DEPTH, SIZE, IBV_QPT_UD);
	ah = kit_ah(pd, &e.card);
	kit_log_skip();
	CHECK_EQ(kit_datagram(&e, ah, 0, 1, 0, 8), 0);
	kit_expect(&e, IBV_WC_SEND);
	KIT_LOG_SAYS("queue pair 0x000000 cannot be reached: remote_qpn is 0, so it was never set");
	CHECK(!ibv_destroy_ah(ah));
	kit_end_close(&e);
}

/* A packet that says that its bytes are lent brings none, whether the loan is brief or not; no queue pair
 * sends that to datagrams, but a process may write what it likes to its ring. */
static void what_is_lent(struct kit_end *e, uint32_t pieces)
{
	struct vb_out *out = vb_peer_at(vb_context(ctx)->adapter, 0)->lanes[0].out;
	const struct vb_pkt p = {.opcode = (uint8_t)(VB_FAMILY_UD | VB_SEND_ONLY),
				 .pkey = VB_PKEY_DEFAULT,
				 .qpn = e->card.qpn,
				 .qkey = KIT_QKEY,
				 .src_qpn = e->card.qpn};
	const struct ibv_sge piece = {(uintptr_t)e->buf, 100, e->mr->lkey};
	const struct vb_loan l = {
	    .num = pieces, .length = 100 * pieces, .piece = {piece, piece, piece, piece}};
	uint64_t before = kit_drops(ctx, VB_R_DROP_NO_QP);
	struct ibv_ah *ah = kit_ah(pd, &e->card);
	struct vb_outbuf b;
	struct ibv_wc wc;

	CHECK((vb_opcodes[p.opcode].hdr_len + vb_loan_size(&l) <= out->brief) == (pieces == 1));
	CHECK(!kit_recv(e, 9, AT, GRH + MTU));
	CHECK(out->ops->reserve(out, &b, vb_opcodes[p.opcode].hdr_len, vb_loan_size(&l), VB_OUT_REQUEST));
	vb_pkt_encode(b.hdr, &p);
	vb_loan_encode(b.payload, &l);
	b.lent = true;
	b.ack = VB_GRH_WORD(0, 0, 0);
	b.hops = VB_GRH_HOPS;
	out->ops->commit(out, &b);
	CHECK(!kit_datagram(e, ah, e->card.qpn, 1, 0, 8));
	kit_expect(e, IBV_WC_SEND);
	wc = kit_expect(e, IBV_WC_RECV);
	CHECK(wc.wr_id == 9 && wc.byte_len == GRH + 8, "%u bytes", wc.byte_len);
	dropped(VB_R_DROP_NO_QP, before, 1);
	CHECK(!ibv_destroy_ah(ah));
}

/* Whatever address of this host a datagram went to, its header names a GID of the receiver's table, so that
 * the way back is found. */
static void by_any_address(struct kit_end *e)
{
	struct kit_card as = e->card;
	struct ibv_ah_attr back;
	union ibv_gid gid;
	struct ibv_ah *ah;
	struct ibv_wc wc;

	memcpy(as.gid.raw + 12, (const uint8_t[]){127, 7, 7, 7}, 4);
	ah = kit_ah(pd, &as);
	CHECK(!kit_recv(e, 9, AT, GRH + 8) && !kit_datagram(e, ah, e->card.qpn, 1, 0, 8));
	kit_expect(e, IBV_WC_SEND);
	wc = kit_expect(e, IBV_WC_RECV);
	CHECK(!ibv_query_gid(ctx, 1, 0, &gid) && !memcmp(e->buf + AT + 36, gid.raw + 12, 4));
	CHECK(!ibv_init_ah_from_wc(ctx, 1, &wc, (struct ibv_grh *)(void *)(e->buf + AT), &back));
	CHECK(!back.grh.sgid_index && !memcmp(&back.grh.dgid, &gid, sizeof(gid)));
	CHECK(!ibv_destroy_ah(ah));
}

/* What an address handle says of the header stands in it, beside the packet's other headers and apart, and
 * the address that is made of it has the same: a service level is not among it, as with mlx5. */
static void the_header_of_an_address(struct kit_end *e)
{
	struct ibv_ah_attr back, av = {.is_global = 1, .port_num = 1, .sl = 3, .grh.dgid = e->card.gid};

	for (unsigned i = 0; i < 6; i++) {
		uint32_t len = i & 1 ? 8 : 100;
		struct ibv_wc wc;
		struct ibv_ah *ah;

		av.grh.hop_limit = (uint8_t)(i / 2 * 127 + i / 4); /* 0, 127, 255 */
		av.grh.traffic_class = (uint8_t)(0xa0 + i);
		ah = ibv_create_ah(pd, &av);
		CHECK(ah && !kit_recv(e, 9, AT, GRH + 100));
		CHECK(!kit_datagram(e, ah, e->card.qpn, 1, 0, len));
		kit_expect(e, IBV_WC_SEND);
		wc = kit_expect(e, IBV_WC_RECV);
		check_grh(e->buf + AT, len);
		CHECK_EQ(e->buf[AT + 28], av.grh.hop_limit);
		CHECK_EQ(wc.sl, 2);
		CHECK(!ibv_init_ah_from_wc(ctx, 1, &wc, (struct ibv_grh *)(void *)(e->buf + AT), &back));
		CHECK_EQ(back.grh.hop_limit, av.grh.hop_limit);
		CHECK_EQ(back.grh.traffic_class, av.grh.traffic_class);
		CHECK(!ibv_destroy_ah(ah));
	}
}

/* A bad receive buffer is an error of this end. */
static void a_receive_buffer_of_no_region(struct kit_end *e)
{
	struct kit_end other;
	struct ibv_ah *ah;
	struct ibv_wc wc;

	kit_end_open_as(&other, pd, DEPTH, SIZE, IBV_QPT_UD);
	ah = kit_ah(pd, &other.card);
	CHECK(!kit_recv(&other, 9, SIZE - 48, GRH + 100));
	CHECK(!kit_datagram(e, ah, other.card.qpn, 1, 0, 100));
	kit_expect(e, IBV_WC_SEND);
	wc = kit_wait(&other, 20);
	CHECK(wc.wr_id == 9);
	CHECK_EQ(wc.status, IBV_WC_LOC_PROT_ERR);
	CHECK(!ibv_destroy_ah(ah));
	kit_end_close(&other);
}

/* What was posted arrives, though nobody had met and the queue pair goes at once: it cannot have left before,
 * since the other process stands still until the call that destroys has begun. */
static void destroyed_right_after_the_post(void)
{
	pid_t pid = start_echo(), waker;
	struct ibv_ah *ah = kit_ah(pd, &board->card);
	struct kit_end e;

	kit_end_open_as(&e, pd, DEPTH, SIZE, IBV_QPT_UD);
	kit_stop(pid);
	for (int i = 0; i < 3; i++)
		CHECK(!kit_datagram(&e, ah, board->card.qpn, 1, 0, 200));
	waker = fork();
	if (!waker) {
		kit_until(&board->go, 1);
		kit_nap(20); /* sooner, and the test shows less */
		_exit(kill(pid, SIGCONT) != 0);
	}
	atomic_store(&board->go, 1);
	kit_end_close(&e);
	kit_reap(waker);
	CHECK(!ibv_destroy_ah(ah));
	kit_until(&board->got, 3);
	end(pid);
}

/* There is no room on the way to it: a queue is drained once that is dropped. */
static void drained(struct kit_end *e, struct ibv_ah *ah)
{
	struct ibv_qp_attr a = {.qp_state = IBV_QPS_SQD, .en_sqd_async_notify = 1};
	struct ibv_async_event event;

	CHECK(!kit_datagram(e, ah, board->card.qpn, 7, 0, MTU));
	CHECK(!ibv_modify_qp(e->qp, &a, IBV_QP_STATE | IBV_QP_EN_SQD_ASYNC_NOTIFY));
	CHECK(!ibv_get_async_event(ctx, &event) && event.event_type == IBV_EVENT_SQ_DRAINED);
	ibv_ack_async_event(&event);
	CHECK(kit_expect(e, IBV_WC_SEND).wr_id == 7);
	a.qp_state = IBV_QPS_RTS;
	CHECK(!ibv_modify_qp(e->qp, &a, IBV_QP_STATE));
}

/* Several destinations of one queue pair have no room at once: what waits for the one that goes on first gets
 * there, and completions come in order all the same. */
static void two_stopped_processes(struct kit_end *e)
{
	enum { ROUND = 60, STOPPED = 2 };
	struct ibv_ah *ah[STOPPED];
	struct kit_card to[STOPPED];
	pid_t pid[STOPPED];

	for (int k = 0; k < STOPPED; k++) {
		pid[k] = start_echo();
		to[k] = board->card;
		ah[k] = kit_ah(pd, &to[k]);
		CHECK(!kit_recv(e, 5, AT, GRH + MTU));
		CHECK(!kit_datagram(e, ah[k], to[k].qpn, 6, 0, 8));
		for (int i = 0; i < 2; i++)
			CHECK_EQ(kit_wait(e, 20).status, IBV_WC_SUCCESS);
		kit_stop(pid[k]);
	}
	for (int i = 0; i < STOPPED * ROUND; i++)
		CHECK(!kit_datagram(e, ah[i % STOPPED], to[i % STOPPED].qpn, (uint64_t)i, 0, MTU));
	for (int k = 0; k < STOPPED; k++) /* what waits needs them no more */
		CHECK(!ibv_destroy_ah(ah[k]));
	kit_cont(pid[1]); /* which takes what waits for it, while the other one stands still */
	kit_until(&board->got, 1 + ROUND);
	kit_cont(pid[0]);
	for (int i = 0; i < STOPPED * ROUND; i++)
		CHECK(kit_expect(e, IBV_WC_SEND).wr_id == (uint64_t)i, "not in order");
	kit_until(&board->got, 1 + STOPPED * ROUND);
	CHECK(!board->astray, "one has got what was for the other");
	for (int k = 0; k < STOPPED; k++)
		end(pid[k]);
}

/* What goes to one that is stopped waits for room, then it is dropped; what goes to another one is there
 * meanwhile. */
static void a_stopped_process_holds_nobody_up(struct kit_end *e)
{
	enum { ROUND = 100 };
	uint64_t full = kit_drops(ctx, VB_R_DROP_FULL);
	pid_t pid = start_echo();
	struct ibv_ah *ah = kit_ah(pd, &board->card), *own;
	struct kit_end other;
	int got;

	kit_end_open_as(&other, pd, DEPTH, SIZE, IBV_QPT_UD);
	own = kit_ah(pd, &other.card);
	CHECK(!kit_recv(e, 5, AT, GRH + MTU));
	CHECK(!kit_datagram(e, ah, board->card.qpn, 6, 0, 8));
	kit_expect(e, IBV_WC_SEND);
	kit_expect(e, IBV_WC_RECV); /* they have met */
	got = atomic_load(&board->got);
	kit_stop(pid);
	for (int i = 0; i < ROUND; i++)
		CHECK(!kit_datagram(e, ah, board->card.qpn, 100 + (uint64_t)i, 0, MTU));
	CHECK(!kit_recv(&other, 9, AT, GRH + MTU));
	CHECK(!kit_datagram(e, own, other.card.qpn, 999, 0, 8));
	kit_expect(&other, IBV_WC_RECV);
	CHECK(kit_drops(ctx, VB_R_DROP_FULL) == full, "the other one had to wait");
	for (int i = 0; i < ROUND; i++)
		CHECK(kit_expect(e, IBV_WC_SEND).wr_id == 100 + (uint64_t)i, "not in order");
	CHECK(kit_expect(e, IBV_WC_SEND).wr_id == 999);
	full = kit_drops(ctx, VB_R_DROP_FULL) - full;
	CHECK(full > 0 && full < ROUND);
	drained(e, ah);
	kit_cont(pid);
	kit_until(&board->got, got + ROUND - (int)full);
	CHECK(!ibv_destroy_ah(ah) && !ibv_destroy_ah(own));
	kit_end_close(&other);
	end(pid);
}

static void killed(struct kit_end *e)
{
	uint64_t nobody = kit_drops(ctx, VB_R_DROP_NOBODY);
	pid_t pid = start_echo();
	struct ibv_ah *ah = kit_ah(pd, &board->card);

	CHECK(!kit_recv(e, 5, AT, GRH + MTU));
	CHECK(!kit_datagram(e, ah, board->card.qpn, 6, 0, 8));
	kit_expect(e, IBV_WC_SEND);
	kit_expect(e, IBV_WC_RECV);
	end(pid);
	for (int i = 0; i < 2 * DEPTH; i++) { /* some may go to its ring, before the end is noticed */
		CHECK(!kit_datagram(e, ah, board->card.qpn, 1, 0, MTU));
		kit_expect(e, IBV_WC_SEND);
	}
	CHECK(kit_drops(ctx, VB_R_DROP_NOBODY) > nobody);
	CHECK(e->qp->state == IBV_QPS_RTS);
	CHECK(!ibv_destroy_ah(ah));
}

/* A case that leaves answers on their way to it has a queue pair of its own: the next case's receive requests
 * are not for them. */
static void apart(void (*run)(struct kit_end *e))
{
	struct kit_end e;

	kit_end_open_as(&e, pd, DEPTH, SIZE, IBV_QPT_UD);
	run(&e);
	kit_end_close(&e);
}

static void nobody_is_there(struct kit_end *e)
{
	uint64_t nobody = kit_drops(ctx, VB_R_DROP_NOBODY);
	struct kit_card far = e->card;
	struct ibv_ah *ah = kit_ah(pd, &e->card), *away;

	far.gid.raw[12] = 192, far.gid.raw[13] = 0, far.gid.raw[14] = 2, far.gid.raw[15] = 77;
	away = kit_ah(pd, &far);
	for (int i = 0; i < 3; i++) {
		CHECK(!kit_datagram(e, ah, e->card.qpn ^ 0xabc000, 1, 0, 8));
		kit_expect(e, IBV_WC_SEND);
		CHECK(!kit_datagram(e, away, e->card.qpn, 1, 0, 8));
		kit_expect(e, IBV_WC_SEND);
	}
	CHECK(kit_drops(ctx, VB_R_DROP_NOBODY) == nobody + 6);
	CHECK(!ibv_destroy_ah(ah) && !ibv_destroy_ah(away));
}

/* Nobody is held on to, or tried again and again, who was not there. */
static void nobody_is_kept(void)
{
	struct vb_adapter *a = vb_context(ctx)->adapter;
	double until = kit_now() + 20;

	for (uint32_t i = 1; i < vb_peer_count(a); i++) {
		struct vb_peer *p = vb_peer_at(a, i);

		while (atomic_load(&p->state) != VB_PEER_UP &&
		       (atomic_load(&p->refs) || atomic_load(&p->state) == VB_PEER_CONTACTING)) {
			CHECK(kit_now() < until, "adapter %u is held on to", p->number);
			kit_nap_us(200);
		}
	}
}

/* Who comes at a number where nobody was found is found by what is sent there once there is contact; what is
 * sent before is lost.  Numbers are drawn, so processes come until one draws a number that is below that one:
 * all of these were tried. */
static void where_nobody_was(struct kit_end *e, uint32_t below)
{
	struct ibv_wc wc;
	struct ibv_ah *ah;
	bool got = false;
	double until;
	pid_t pid;

	while (pid = start_echo(), board->card.qpn >> VB_QPN_INDEX_BITS >= below)
		end(pid);
	ah = kit_ah(pd, &board->card);
	CHECK(!kit_recv(e, 5, AT, GRH + MTU));
	for (until = kit_now() + 20; !got; kit_nap_us(200)) {
		CHECK(kit_now() < until, "it is not found");
		CHECK(!kit_datagram(e, ah, board->card.qpn, 6, 0, 8));
		wc = kit_wait(e, 20);
		if (wc.wr_id == 5) { /* the answer to the last but one */
			got = true;
			wc = kit_wait(e, 20);
		}
		CHECK(wc.wr_id == 6);
		CHECK_EQ(wc.status, IBV_WC_SUCCESS);
	}
	CHECK(!ibv_destroy_ah(ah));
	end(pid);
}

/* Numbers that nobody has leave room for who comes.  Who that is has drawn a number before, which may be any,
 * and nothing was sent there in vain, so its first datagram waits for contact. */
static void more_numbers_than_peers(void)
{
	pid_t pid = start_echo();
	uint32_t far = board->card.qpn >> VB_QPN_INDEX_BITS, own, n = 1;
	struct ibv_ah *ah = kit_ah(pd, &board->card);
	struct kit_end e; /* which has sent nothing yet */

	kit_end_open_as(&e, pd, DEPTH, SIZE, IBV_QPT_UD);
	own = e.card.qpn >> VB_QPN_INDEX_BITS;
	nobody_is_kept();
	for (uint32_t sent = 0; sent < VB_MAX_PEERS + 100; n++) {
		/* An ordinary user's tests are in one network namespace: theirs hear nothing of this. */
		if (n == own || n == far || kit_bound(n << VB_QPN_INDEX_BITS))
			continue;
		CHECK(!kit_datagram(&e, ah, n << VB_QPN_INDEX_BITS | 5, 1, 0, 8));
		kit_expect(&e, IBV_WC_SEND);
		sent++;
	}
	nobody_is_kept();
	CHECK(!kit_recv(&e, 5, AT, GRH + MTU));
	CHECK(!kit_datagram(&e, ah, board->card.qpn, 6, 0, 8));
	kit_expect(&e, IBV_WC_SEND);
	kit_expect(&e, IBV_WC_RECV);
	CHECK(!ibv_destroy_ah(ah));
	end(pid);
	where_nobody_was(&e, n);
	kit_end_close(&e);
}

int main(void)
{
	struct kit_end e;
	struct ibv_ah *ah;
	pid_t pid;

	kit_log_begin("warn");
	board = kit_shared(sizeof *board);
	controlled_qkeys();
	pid = start_echo();
	ctx = kit_open();
	pd = ibv_alloc_pd(ctx);
	CHECK(pd);
	kit_end_open_as(&e, pd, DEPTH, SIZE, IBV_QPT_UD);
	ah = kit_ah(pd, &board->card);
	lengths(&e, ah);
	CHECK(!ibv_destroy_ah(ah));
	end(pid);
	to_oneself(&e);
	what_a_datagram_cannot(&e);
	by_calls(&e);
	from_a_shared_queue(&e);
	too_long_for_a_shared_queue(&e, IBV_QPS_RTR);
	too_long_for_a_shared_queue(&e, IBV_QPS_ERR);
	too_long_for_a_shared_queue(&e, IBV_QPS_RESET);
	what_is_dropped_is_counted(&e);
	why_it_is_not_taken(&e);
	to_number_0();
	what_is_lent(&e, 1);
	what_is_lent(&e, 4);
	by_any_address(&e);
	the_header_of_an_address(&e);
	a_receive_buffer_of_no_region(&e);
	destroyed_right_after_the_post();
	apart(a_stopped_process_holds_nobody_up);
	apart(two_stopped_processes);
	apart(killed);
	nobody_is_there(&e);
	more_numbers_than_peers();
	kit_end_close(&e);
	CHECK(!ibv_dealloc_pd(pd) && !ibv_close_device(ctx));
	return 0;
}
