/* Multicast between processes: each queue pair that is attached gets what is sent to its group, once, and
 * what one cannot take no other one misses.
 *
 *     proc-mcast [CASE]
 *
 * With VERBENA_WIRE=udp and VERBENA_NETDEV=lo the packets are multicast datagrams on lo.  Two cases are of
 * shared memory alone: nobody waits for a stopped receiver of datagrams, and each send is a system call. */
#include <arpa/inet.h>
#include <errno.h>

#include "bytes.h"
#include "adapter.h"
#include "host/adapter.h"
#include "iba/reason.h"
#include "kit.h"
#include "net.h"
#include "obj/context.h"

enum { DEPTH = 2048, SIZE = 1 << 20, GRH = 40, MTU = 4096, AT = SIZE / 2, MEMBERS = 3, GROUP_QPN = 0xffffff };

/* What members have told, and how far each case is. */
static struct board {
	_Atomic int attached, go, got, done;
	uint32_t qpn;
} * board;

static struct ibv_context *ctx;
static struct ibv_pd *pd;

static pid_t run; /* of the process that began: others of the network namespace have other groups */

static union ibv_gid group4(uint8_t n)
{
	return (union ibv_gid){.raw = {[10] = 0xff, 0xff, 239, (uint8_t)(run >> 8), (uint8_t)run, n}};
}

static union ibv_gid group6(uint8_t n)
{
	union ibv_gid g = {.raw = {0xff, 0x0e, [15] = n}};

	memcpy(g.raw + 4, &run, sizeof(run));
	return g;
}

static struct ibv_ah *address(union ibv_gid group)
{
	struct ibv_ah_attr a = {.is_global = 1, .port_num = 1, .grh = {.dgid = group, .hop_limit = 1}};
	struct ibv_ah *ah = ibv_create_ah(pd, &a);

	CHECK(ah, "%s", strerror(errno));
	return ah;
}

static void device(void)
{
	ctx = kit_open();
	pd = ibv_alloc_pd(ctx);
	CHECK(pd);
}

static void dropped(enum vb_reason r, uint64_t n)
{
	double end = kit_now() + 20;

	while (kit_drops(ctx, r) < n && kit_now() < end)
		kit_nap_us(200);
	CHECK(kit_drops(ctx, r) == n, "%s: %" PRIu64 " of %" PRIu64, vb_reasons[r].name, kit_drops(ctx, r),
	      n);
}

static void check(const uint8_t *at, uint32_t len, unsigned with)
{
	CHECK_EQ(kit_filled(at, len, with), len);
}

/* The header names the group as the one who is meant. */
static void check_grh(const uint8_t *grh, const union ibv_gid *group, uint32_t sl)
{
	if (sl == 2) {
		CHECK(grh[20] == 0x45 && !memcmp(grh + 36, group->raw + 12, 4));
		return;
	}
	CHECK(sl == 1 && grh[0] >> 4 == 6 && !memcmp(grh + 24, group, 16));
}

static void send_one(struct kit_end *e, struct ibv_ah *ah, uint32_t len, uint32_t imm, unsigned with)
{
	struct ibv_sge sge = {.addr = (uintptr_t)e->buf, .length = len, .lkey = e->mr->lkey};
	struct ibv_send_wr *bad, wr = {.wr_id = 3,
				       .sg_list = &sge,
				       .num_sge = 1,
				       .opcode = imm ? IBV_WR_SEND_WITH_IMM : IBV_WR_SEND,
				       .imm_data = htonl(imm),
				       .send_flags = IBV_SEND_SIGNALED,
				       .wr.ud = {.ah = ah, .remote_qpn = GROUP_QPN, .remote_qkey = KIT_QKEY}};

	kit_fill(e->buf, len, with);
	CHECK(!ibv_post_send(e->qp, &wr, &bad));
}

static const struct {
	uint32_t len, imm;
} messages[] = {{0, 0},	 {8, 0},  {16, 0},   {17, 0},	{12, 77}, {13, 0},    {40, 5},
		{57, 0}, {64, 0}, {1000, 1}, {4095, 0}, {MTU, 0}, {MTU, 123}, {1, 0}};
enum { MESSAGES = sizeof(messages) / sizeof(messages[0]) };

static void take_all(struct kit_end *e, const union ibv_gid *group)
{
	for (unsigned i = 0; i < MESSAGES; i++) {
		struct ibv_wc wc = kit_expect(e, IBV_WC_RECV);
		const uint8_t *at = e->buf + AT + i * (GRH + MTU);

		CHECK(wc.wr_id == i && wc.byte_len == GRH + messages[i].len, "%u bytes of %u", wc.byte_len,
		      messages[i].len);
		CHECK(wc.src_qp == board->qpn && wc.qp_num == e->card.qpn && !wc.slid && !wc.pkey_index);
		CHECK(wc.wc_flags == (unsigned)(IBV_WC_GRH | (messages[i].imm ? IBV_WC_WITH_IMM : 0)));
		CHECK(!messages[i].imm || wc.imm_data == htonl(messages[i].imm));
		check_grh(at, group, wc.sl);
		check(at + GRH, messages[i].len, i);
	}
}

static void post_all(struct kit_end *e)
{
	for (unsigned i = 0; i < MESSAGES; i++)
		CHECK(!kit_recv(e, i, AT + i * (GRH + MTU), GRH + MTU));
}

/* A process with two queue pairs in the group. */
static void be_member(union ibv_gid group)
{
	struct kit_end e[2];

	device();
	for (int i = 0; i < 2; i++) {
		kit_end_open_as(&e[i], pd, DEPTH, SIZE, IBV_QPT_UD);
		post_all(&e[i]);
		CHECK(!ibv_attach_mcast(e[i].qp, &group, 0));
	}
	CHECK(!ibv_attach_mcast(e[0].qp, &group, 0)); /* once more: it gets one copy all the same */
	atomic_fetch_add(&board->attached, 1);
	for (int i = 0; i < 2; i++)
		take_all(&e[i], &group);
	atomic_fetch_add(&board->got, 1);
	kit_until(&board->go, 1);
	for (int i = 0; i < 2; i++) {
		struct ibv_wc wc;

		CHECK(!ibv_poll_cq(e[i].cq, 1, &wc), "a copy more");
		CHECK(ibv_destroy_qp(e[i].qp) == EBUSY);
		CHECK(!ibv_detach_mcast(e[i].qp, &group, 0));
		CHECK(ibv_detach_mcast(e[i].qp, &group, 0) == EINVAL);
		kit_end_close(&e[i]);
	}
	CHECK(!ibv_dealloc_pd(pd) && !ibv_close_device(ctx));
}

/* The sender has sent before there were members, and none has ever heard of it. */
static void reaches_all(union ibv_gid group)
{
	pid_t pids[MEMBERS];
	struct kit_end e, own;
	struct ibv_ah *ah;

	board = kit_shared(sizeof(*board));
	device();
	kit_end_open_as(&e, pd, DEPTH, SIZE, IBV_QPT_UD);
	ah = address(group);
	send_one(&e, ah, 8, 0, 0); /* to nobody: complete at once */
	CHECK(kit_expect(&e, IBV_WC_SEND).wr_id == 3);
	board->qpn = e.card.qpn;
	for (int i = 0; i < MEMBERS; i++) {
		pids[i] = kit_fork();
		if (!pids[i]) {
			be_member(group);
			_exit(0); /* the address handle is the parent's */
		}
	}
	kit_end_open_as(&own, pd, DEPTH, SIZE, IBV_QPT_UD);
	post_all(&own);
	post_all(&e);
	CHECK(!ibv_attach_mcast(own.qp, &group, 0) && !ibv_attach_mcast(e.qp, &group, 0));
	kit_until(&board->attached, MEMBERS);
	for (unsigned i = 0; i < MESSAGES; i++) {
		send_one(&e, ah, messages[i].len, messages[i].imm, i);
		for (int sent = 0, came = 0; !sent || !came;) { /* it hears itself, too */
			struct ibv_wc wc = kit_wait(&e, 20);

			CHECK_EQ(wc.status, IBV_WC_SUCCESS);
			sent += wc.opcode == IBV_WC_SEND;
			came += wc.opcode == IBV_WC_RECV;
			CHECK(sent <= 1 && came <= 1 && (wc.opcode == IBV_WC_SEND || wc.wr_id == i));
		}
	}
	CHECK(!ibv_destroy_ah(ah));
	take_all(&own, &group);
	kit_until(&board->got, MEMBERS);
	atomic_store(&board->go, 1);
	for (int i = 0; i < MEMBERS; i++)
		CHECK_EQ(kit_reap(pids[i]), 0);
	CHECK(!ibv_detach_mcast(own.qp, &group, 0) && !ibv_detach_mcast(e.qp, &group, 0));
	kit_end_close(&own);
	kit_end_close(&e);
	CHECK(!ibv_dealloc_pd(pd) && !ibv_close_device(ctx));
}

static void rule_29_of_ipv4(void)
{
	reaches_all(group4(1));
}

static void rule_29_of_ipv6(void)
{
	reaches_all(group6(1));
}

/* Each queue pair judges for itself; what one drops, others get. */
static void what_one_cannot_take(void)
{
	union ibv_gid group = group4(2);
	struct ibv_qp_attr a = {.qkey = KIT_QKEY + 1};
	uint64_t key, none, small;
	struct kit_end e[5];
	struct ibv_ah *ah;

	device();
	for (int i = 0; i < 5; i++) {
		kit_end_open_as(&e[i], pd, DEPTH, SIZE, IBV_QPT_UD);
		CHECK(!ibv_attach_mcast(e[i].qp, &group, 0));
	}
	key = kit_drops(ctx, VB_R_DROP_QKEY);
	none = kit_drops(ctx, VB_R_DROP_NO_RECV);
	small = kit_drops(ctx, VB_R_DROP_TOO_SMALL);
	CHECK(!kit_recv(&e[0], 1, AT, GRH + 100)); /* and none at number 1 */
	CHECK(!kit_recv(&e[2], 1, AT, GRH + 99));
	CHECK(!kit_recv(&e[3], 1, AT, GRH + 100));
	CHECK(!kit_recv(&e[4], 1, AT, GRH + 100));
	CHECK(!ibv_modify_qp(e[3].qp, &a, IBV_QP_QKEY));
	ah = address(group);
	send_one(&e[4], ah, 100, 0, 9);
	CHECK(kit_expect(&e[0], IBV_WC_RECV).byte_len == GRH + 100);
	check(e[0].buf + AT + GRH, 100, 9);
	dropped(VB_R_DROP_QKEY, key + 1);
	dropped(VB_R_DROP_NO_RECV, none + 1);
	dropped(VB_R_DROP_TOO_SMALL, small + 1);
	/* They are in order, and take the next one. */
	CHECK(!kit_recv(&e[1], 2, AT, GRH + 4));
	a.qkey = KIT_QKEY;
	CHECK(!ibv_modify_qp(e[3].qp, &a, IBV_QP_QKEY));
	CHECK(!kit_recv(&e[0], 2, AT, GRH + 4));
	send_one(&e[4], ah, 4, 0, 4);
	for (int i = 0; i < 4; i++)
		CHECK(kit_expect(&e[i], IBV_WC_RECV).byte_len == GRH + 4);
	CHECK(!ibv_destroy_ah(ah));
	for (int i = 0; i < 5; i++) {
		CHECK(!ibv_detach_mcast(e[i].qp, &group, 0));
		kit_end_close(&e[i]);
	}
	CHECK(!ibv_dealloc_pd(pd) && !ibv_close_device(ctx));
}

static void an_echo_is_not_for_who_wants_none(void)
{
	union ibv_gid group = group4(3);
	struct ibv_qp_attr to[] = {{.qp_state = IBV_QPS_INIT, .port_num = 1, .qkey = KIT_QKEY},
				   {.qp_state = IBV_QPS_RTR},
				   {.qp_state = IBV_QPS_RTS}};
	static const int masks[] = {IBV_QP_STATE | IBV_QP_PORT | IBV_QP_QKEY | IBV_QP_PKEY_INDEX,
				    IBV_QP_STATE, IBV_QP_STATE | IBV_QP_SQ_PSN};
	struct ibv_qp_init_attr_ex x = {
	    .qp_type = IBV_QPT_UD,
	    .comp_mask = IBV_QP_INIT_ATTR_PD | IBV_QP_INIT_ATTR_CREATE_FLAGS,
	    .create_flags = IBV_QP_CREATE_BLOCK_SELF_MCAST_LB,
	    .cap = {.max_send_wr = 8, .max_recv_wr = 8, .max_send_sge = 1, .max_recv_sge = 1}};
	struct kit_end e, deaf;
	struct ibv_qp *plain;
	struct ibv_ah *ah;

	device();
	kit_end_open_as(&e, pd, DEPTH, SIZE, IBV_QPT_UD);
	kit_end_open_as(&deaf, pd, DEPTH, SIZE, IBV_QPT_UD);
	plain = deaf.qp;
	x.pd = pd;
	x.send_cq = x.recv_cq = deaf.cq;
	deaf.qp = ibv_create_qp_ex(ctx, &x);
	CHECK(deaf.qp, "%s", strerror(errno));
	for (int i = 0; i < 3; i++)
		CHECK(!ibv_modify_qp(deaf.qp, &to[i], masks[i]));
	CHECK(!ibv_attach_mcast(e.qp, &group, 0) && !ibv_attach_mcast(deaf.qp, &group, 0));
	for (int i = 0; i < 2; i++)
		CHECK(!kit_recv(&e, 1, AT, GRH + 8) && !kit_recv(&deaf, 1, AT, GRH + 8));
	ah = address(group);
	send_one(&deaf, ah, 8, 0, 1);
	kit_expect(&deaf, IBV_WC_SEND);
	kit_expect(&e, IBV_WC_RECV);
	send_one(&e, ah, 7, 0, 2); /* of which it hears, and not of its own before */
	CHECK(kit_expect(&deaf, IBV_WC_RECV).byte_len == GRH + 7);
	for (int i = 0; i < 2; i++)
		(void)kit_wait(&e, 20);
	CHECK(!ibv_detach_mcast(e.qp, &group, 0) && !ibv_detach_mcast(deaf.qp, &group, 0));
	CHECK(!ibv_destroy_ah(ah) && !ibv_destroy_qp(plain));
	kit_end_close(&deaf);
	kit_end_close(&e);
	CHECK(!ibv_dealloc_pd(pd) && !ibv_close_device(ctx));
}

/* Counts what comes of a group.  Its receive requests are more than a ring holds packets, so none is dropped
 * for want of one. */
static void be_counter(void)
{
	union ibv_gid group = group4(4);
	struct kit_end e;

	device();
	kit_end_open_as(&e, pd, DEPTH, SIZE, IBV_QPT_UD);
	for (int i = 0; i < DEPTH; i++)
		CHECK(!kit_recv(&e, (uint64_t)i, AT, GRH + 64));
	CHECK(!ibv_attach_mcast(e.qp, &group, 0));
	atomic_fetch_add(&board->attached, 1);
	for (;;) {
		kit_expect(&e, IBV_WC_RECV);
		CHECK(!kit_recv(&e, 0, AT, GRH + 64));
		atomic_fetch_add(&board->got, 1);
	}
}

static pid_t start_counter(void)
{
	int before = atomic_load(&board->attached);
	pid_t pid = kit_fork();

	if (!pid) {
		be_counter();
		_exit(1);
	}
	kit_until(&board->attached, before + 1);
	return pid;
}

static void send_some(struct kit_end *e, struct ibv_ah *ah, int n)
{
	for (int i = 0; i < n; i++) {
		send_one(e, ah, 64, 0, 1);
		kit_expect(e, IBV_WC_SEND);
	}
}

static void end(pid_t pid)
{
	CHECK(!kill(pid, SIGKILL));
	kit_reap(pid);
}

static void who_is_killed_holds_up_nobody(void)
{
	pid_t first, second;
	struct kit_end e;
	struct ibv_ah *ah;

	board = kit_shared(sizeof(*board));
	device();
	kit_end_open_as(&e, pd, DEPTH, SIZE, IBV_QPT_UD);
	ah = address(group4(4));
	first = start_counter();
	second = start_counter();
	send_some(&e, ah, 100);
	kit_until(&board->got, 200);
	end(first);
	for (int i = 0; i < 40; i++) { /* more than a ring holds; the other one keeps up */
		send_some(&e, ah, 100);
		kit_until(&board->got, 200 + 100 * (i + 1));
	}
	CHECK(atomic_load(&board->got) == 4200);
	first = start_counter(); /* one that comes later is reached at once */
	send_some(&e, ah, 1);
	kit_until(&board->got, 4202);
	end(first);
	end(second);
	CHECK(!ibv_destroy_ah(ah));
	kit_end_close(&e);
	CHECK(!ibv_dealloc_pd(pd) && !ibv_close_device(ctx));
}

/* One who takes nothing is waited for a second, once; then he misses what he has no room for. */
static void who_is_stopped_misses_it(void)
{
	pid_t stopped, other;
	struct kit_end e;
	struct ibv_ah *ah;
	uint64_t before;
	double begun;
	int got;

	board = kit_shared(sizeof(*board));
	stopped = start_counter();
	other = start_counter();
	device(); /* it comes later than they */
	kit_end_open_as(&e, pd, DEPTH, SIZE, IBV_QPT_UD);
	ah = address(group4(4));
	send_some(&e, ah, 1);
	kit_until(&board->got, 2);
	kit_stop(stopped);
	before = kit_drops(ctx, VB_R_DROP_FULL);
	begun = kit_now();
	for (int i = 0; i < 30; i++) {
		send_some(&e, ah, 100);
		kit_until(&board->got, 2 + 100 * (i + 1));
	}
	CHECK(kit_now() - begun > 0.9, "nobody was waited for");
	CHECK(atomic_load(&board->got) == 3002, "%d copies for one", atomic_load(&board->got) - 2);
	CHECK(kit_drops(ctx, VB_R_DROP_FULL) > before + 1000 &&
	      kit_drops(ctx, VB_R_DROP_FULL) < before + 3000);
	kit_cont(stopped);
	kit_until(&board->got, 3002 + 3000 - (int)(kit_drops(ctx, VB_R_DROP_FULL) - before));
	got = atomic_load(&board->got);
	send_some(&e, ah, 1);
	kit_until(&board->got, got + 2);
	kit_stop(stopped); /* who has taken something since is waited for again */
	begun = kit_now();
	for (int i = 0; i < 11; i++) {
		send_some(&e, ah, 100);
		kit_until(&board->got, got + 2 + 100 * (i + 1));
	}
	CHECK(kit_now() - begun > 0.9, "nobody was waited for again");
	end(stopped);
	end(other);
	CHECK(!ibv_destroy_ah(ah));
	kit_end_close(&e);
	CHECK(!ibv_dealloc_pd(pd) && !ibv_close_device(ctx));
}

/* A group without members costs a send nothing but a look at memory: after one that had none, and after the
 * only one has died. */
static void nobody_costs_no_system_call(void)
{
	struct kit_end e;
	struct ibv_ah *ah;
	pid_t pid = kit_fork(), member;
	struct ibv_wc wc;

	if (pid) {
		CHECK_EQ(kit_reap(pid), 0);
		return;
	}
	board = kit_shared(sizeof(*board));
	device();
	kit_end_open_as(&e, pd, DEPTH, SIZE, IBV_QPT_UD);
	ah = address(group4(4));
	member = start_counter();
	send_some(&e, ah, 1);
	kit_until(&board->got, 1);
	end(member);
	for (double until = kit_now() + 20;
	     atomic_load(&vb_peer_at(vb_context(ctx)->adapter, 1)->state) == VB_PEER_UP;)
		CHECK(kit_now() < until);
	kit_until_blocked(); /* The engine has seen to all that hangs on the peer. */
	send_some(&e, ah, 1);
	if (!kit_deny_every_call()) {
		printf("SKIP: there are no filters of system calls here\n");
		_exit(0);
	}
	for (int i = 0; i < 1000; i++) {
		send_one(&e, ah, i % 100, 0, 1);
		CHECK(ibv_poll_cq(e.cq, 1, &wc) == 1);
		CHECK_EQ(wc.status, IBV_WC_SUCCESS);
	}
	_exit(0);
}

/* To another number than the group's a packet goes to nobody; and the group's needs a group's address. */
static void wrong_numbers(void)
{
	union ibv_gid group = group4(5);
	struct kit_card card;
	struct kit_end e;
	struct ibv_ah *ah, *one;

	device();
	kit_end_open_as(&e, pd, DEPTH, SIZE, IBV_QPT_UD);
	CHECK(!ibv_attach_mcast(e.qp, &group, 0));
	CHECK(!kit_recv(&e, 1, AT, GRH + 64));
	ah = address(group);
	card = e.card;
	one = kit_ah(pd, &card);
	CHECK(!kit_datagram(&e, ah, e.card.qpn, 5, 0, 8));
	CHECK(kit_expect(&e, IBV_WC_SEND).wr_id == 5);
	CHECK(!kit_datagram(&e, one, GROUP_QPN, 6, 0, 8));
	CHECK(kit_expect(&e, IBV_WC_SEND).wr_id == 6);
	send_one(&e, ah, 9, 0, 1);
	for (int i = 0; i < 2; i++) {
		struct ibv_wc wc = kit_wait(&e, 20);

		CHECK_EQ(wc.status, IBV_WC_SUCCESS);
		CHECK(wc.opcode == IBV_WC_SEND || wc.byte_len == GRH + 9, "%u bytes", wc.byte_len);
	}
	CHECK(!ibv_detach_mcast(e.qp, &group, 0) && !ibv_destroy_ah(ah) && !ibv_destroy_ah(one));
	kit_end_close(&e);
	CHECK(!ibv_dealloc_pd(pd) && !ibv_close_device(ctx));
}

/* What is wrong with the memory of a message is an error, also where nobody would get it. */
static void wrong_memory(void)
{
	struct kit_end e;
	struct ibv_ah *ah;
	struct ibv_wc wc;

	device();
	kit_end_open_as(&e, pd, DEPTH, SIZE, IBV_QPT_UD);
	ah = address(group4(6));
	e.mr->lkey++;
	send_one(&e, ah, 100, 0, 1);
	e.mr->lkey--;
	wc = kit_wait(&e, 20);
	CHECK_EQ(wc.status, IBV_WC_LOC_PROT_ERR);
	CHECK(!ibv_destroy_ah(ah));
	kit_end_close(&e);
	CHECK(!ibv_dealloc_pd(pd) && !ibv_close_device(ctx));
}

/* Two devices of a process: what leaves by one comes to members on both. */
static void of_several_devices(void)
{
	union ibv_gid group = group6(7);
	struct ibv_context *second = kit_adapter_open();
	struct kit_end a, b;
	struct ibv_pd *pd2;
	struct ibv_ah *ah;

	device();
	pd2 = ibv_alloc_pd(second);
	CHECK(pd2);
	kit_end_open_as(&a, pd, DEPTH, SIZE, IBV_QPT_UD);
	kit_end_open_as(&b, pd2, DEPTH, SIZE, IBV_QPT_UD);
	CHECK(!ibv_attach_mcast(a.qp, &group, 0) && !ibv_attach_mcast(b.qp, &group, 0));
	CHECK(!kit_recv(&a, 1, AT, GRH + 64) && !kit_recv(&b, 1, AT, GRH + 64));
	ah = address(group);
	send_one(&a, ah, 33, 0, 5);
	CHECK(kit_expect(&b, IBV_WC_RECV).byte_len == GRH + 33);
	check(b.buf + AT + GRH, 33, 5);
	for (int i = 0; i < 2; i++)
		CHECK_EQ(kit_wait(&a, 20).status, IBV_WC_SUCCESS);
	check(a.buf + AT + GRH, 33, 5);
	CHECK(!ibv_detach_mcast(a.qp, &group, 0) && !ibv_detach_mcast(b.qp, &group, 0) &&
	      !ibv_destroy_ah(ah));
	kit_end_close(&a);
	kit_end_close(&b);
	CHECK(!ibv_dealloc_pd(pd) && !ibv_dealloc_pd(pd2));
	kit_adapter_close(second);
	CHECK(!ibv_close_device(ctx));
}

int main(int argc, char **argv)
{
	static const struct kit_case cases[] = {
	    {"rule 29 of IPv4", rule_29_of_ipv4, .clean = true},
	    {"rule 29 of IPv6", rule_29_of_ipv6, .clean = true},
	    {"what one cannot take", what_one_cannot_take, .clean = true},
	    {"an echo is not for who wants none", an_echo_is_not_for_who_wants_none, .clean = true},
	    {"who is killed holds up nobody", who_is_killed_holds_up_nobody, .clean = true},
	    {"wrong numbers", wrong_numbers, .clean = true},
	    {"wrong memory", wrong_memory, .clean = true},
	    {"of several devices", of_several_devices, .clean = true},
	    /* With datagrams nobody waits for a stopped receiver, and each send is a system call. */
	    {"who is stopped misses it", who_is_stopped_misses_it, .clean = true},
	    {.name = "nobody costs no system call", .run = nobody_costs_no_system_call},
	};
	enum { SHM_ONLY = 2 };
	size_t n = sizeof(cases) / sizeof(cases[0]);

	run = getpid();
	if (!getenv("VERBENA_WIRE")) {
		kit_alone();
	} else {
		if (!kit_net_can())
			return KIT_SKIP;
		kit_net_begin();
		n -= SHM_ONLY;
	}
	kit_cases(cases, n, 100, argc, argv);
	return 0;
}
