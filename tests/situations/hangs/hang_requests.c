/* Requests that stay outstanding. */
#include <stddef.h>
#include <sys/socket.h>
#include <sys/un.h>

#include "hang.h"

/* The far end has no receive: the first mistake of everybody. */
static void no_receive(void)
{
	connected(8);
	if (is_peer)
		stay();
	CHECK(!kit_post(&e, IBV_WR_SEND, 7, 0, 8, &far, 0));
	KNOWS("1 request outstanding, a SEND (wr_id 0x7)");
	KNOWS("PID %d (%s), has no receive posted on QP 0x%06x", (int)peer_pid, "situations-hang", far.qpn);
	KNOWS("RNR NAK");
	KNOWS("It has never posted one");
	knows_better("computes"); /* its engine answers */
	KNOWS("rnr_retry is 7, so the request is retried for ever");
	KNOWS("to do: in PID %d (situations-hang): post receives on QP 0x%06x", (int)peer_pid, far.qpn);
	KNOWS("Also, in PID %d (situations-hang): set rnr_retry to less than 7", (int)getpid());
	poll_for_ever(e.cq);
}

/* The receiver has posted some, and does not post them again. */
static void receives_used_up(void)
{
	connected(8);
	if (is_peer) {
		for (int i = 0; i < 3; i++)
			CHECK(!kit_recv(&e, 1, 0, 64));
		barrier();
		for (int i = 0; i < 3; i++)
			done(e.cq);
		poll_for_ever(e.cq);
	}
	barrier();
	for (uint64_t i = 0; i < 5; i++)
		CHECK(!kit_post(&e, IBV_WR_SEND, i, 0, 8, &far, 0));
	KNOWS("2 requests outstanding, the oldest a SEND (wr_id 0x3)");
	KNOWS("has no receive posted on QP 0x%06x", far.qpn);
	KNOWS("All 3 that it has posted are used up");
	KNOWS("to do: in PID %d (situations-hang): post each receive again", (int)peer_pid);
	poll_for_ever(e.cq);
}

static void receiver_computes(void)
{
	connected(8);
	if (is_peer)
		for (volatile int i = 0;; i++)
			;
	CHECK(!kit_post(&e, IBV_WR_SEND, 7, 0, 8, &far, 0));
	KNOWS("has no receive posted on QP 0x%06x", far.qpn);
	KNOWS("PID %d computes and does not call the library", (int)peer_pid);
	stay();
}

static void no_receive_srq(void)
{
	struct ibv_srq_init_attr sa = {.attr = {.max_wr = 4, .max_sge = 1}};

	two();
	open_end(8);
	if (is_peer)
		another_qp(&e, e.cq, ibv_create_srq(pd, &sa));
	meet();
	kit_connect(&e, &far);
	barrier();
	if (is_peer)
		stay();
	CHECK(!kit_post(&e, IBV_WR_SEND, 7, 0, 8, &far, 0));
	KNOWS("has no receive posted in SRQ 0x");
	KNOWS("from which QP 0x%06x receives", far.qpn);
	KNOWS("to do: in PID %d (situations-hang): post receives to SRQ 0x", (int)peer_pid);
	poll_for_ever(e.cq);
}

static void peer_stopped(void)
{
	connected(8);
	if (is_peer)
		stay();
	kit_stop(peer_pid);
	for (uint64_t i = 0; i < 2; i++)
		CHECK(!kit_post(&e, IBV_WR_SEND, i, 0, 8, &far, 0));
	KNOWS("2 requests outstanding");
	KNOWS("the peer, PID %d (situations-hang), is stopped by a signal", (int)peer_pid);
	KNOWS("kill -CONT %d", (int)peer_pid);
	poll_for_ever(e.cq);
}

/* With a timeout of for ever nothing else tells. */
static void peer_ended(void)
{
	two();
	open_end(8);
	meet();
	if (is_peer)
		_exit(0);
	kit_reap(peer_pid);
	kit_connect_with(&e, &far, 0, 7);
	CHECK(!kit_post(&e, IBV_WR_SEND, 7, 0, 8, &far, 0));
	KNOWS("no process of this host has QP 0x%06x", far.qpn);
	KNOWS("to do: check dest_qp_num 0x%06x in PID %d (situations-hang)", far.qpn, (int)getpid());
	KNOWS("timeout is 0, so the request waits for ever");
	KNOWS("in PID %d (situations-hang): set timeout to 14 and retry_cnt to 7", (int)getpid());
	poll_for_ever(e.cq);
}

/* It has said goodbye, which is no error. */
static void peer_closed(void)
{
	two();
	open_end(8);
	meet();
	kit_connect_with(&e, &far, 0, 7);
	if (is_peer)
		CHECK(!kit_recv(&e, 1, 0, 64));
	barrier();
	if (!is_peer)
		CHECK(!kit_post(&e, IBV_WR_SEND, 6, 0, 8, &far, 0));
	done(e.cq);
	barrier();
	if (is_peer) {
		kit_end_close(&e);
		CHECK(!ibv_dealloc_pd(pd) && !ibv_close_device(ctx));
		barrier();
		stay();
	}
	barrier();
	CHECK(!kit_post(&e, IBV_WR_SEND, 7, 0, 8, &far, 0));
	KNOWS("the peer, PID %d, has closed its device and still runs, and no process has QP 0x%06x",
	      (int)peer_pid, far.qpn);
	KNOWS("to do: keep the device and QP 0x%06x open in PID %d until PID %d (situations-hang) has its",
	      far.qpn, (int)peer_pid, (int)getpid());
	poll_for_ever(e.cq);
}

/* The error has been said, and the program goes on polling. */
static void own_error(void)
{
	two();
	open_end(8);
	meet();
	kit_connect(&e, &far);
	if (is_peer)
		CHECK(!kit_recv(&e, 1, 0, 64));
	barrier();
	if (!is_peer)
		CHECK(!kit_post(&e, IBV_WR_SEND, 6, 0, 8, &far, 0));
	done(e.cq);
	barrier();
	if (is_peer)
		_exit(0);
	KNOWS("QP 0x%06x (RC, ERR)", e.card.qpn);
	KNOWS(
	    "the queue pair is in the error state: the peer process %d ended without closing its queue pair",
	    (int)peer_pid);
	poll_for_ever(e.cq);
}

static void peer_destroyed_its_qp(void)
{
	two();
	open_end(8);
	meet();
	kit_connect_with(&e, &far, 0, 7);
	barrier();
	if (is_peer) {
		CHECK(!ibv_destroy_qp(e.qp));
		barrier();
		stay();
	}
	barrier();
	CHECK(!kit_post(&e, IBV_WR_SEND, 7, 0, 8, &far, 0));
	KNOWS("PID %d (situations-hang), has no QP 0x%06x: it was destroyed. It has no queue pair now",
	      (int)peer_pid, far.qpn);
	KNOWS("to do: in PID %d (situations-hang): keep QP 0x%06x", (int)peer_pid, far.qpn);
	poll_for_ever(e.cq);
}

/* This end has a number that the peer has never had. */
static void wrong_number(void)
{
	two();
	open_end(8);
	meet();
	far.qpn ^= 0x800;
	kit_connect_with(&e, &far, 0, 7);
	barrier();
	if (is_peer)
		stay();
	CHECK(!kit_post(&e, IBV_WR_SEND, 7, 0, 8, &far, 0));
	KNOWS("PID %d (situations-hang), has no QP 0x%06x, and never had it: the number is wrong. It has QP "
	      "0x%06x",
	      (int)peer_pid, far.qpn, far.qpn ^ 0x800);
	KNOWS("to do: in PID %d (situations-hang): set dest_qp_num", (int)getpid());
	poll_for_ever(e.cq);
}

/* Two queue pairs of the peer are connected to each other, and this end to one of them. */
static void peer_has_a_third(void)
{
	struct kit_end third;

	two();
	open_end(8);
	kit_end_open(&third, pd, 8, 8192);
	meet();
	if (is_peer) {
		kit_connect_with(&third, &e.card, 0, 7);
		kit_connect_with(&e, &third.card, 0, 7);
	} else {
		kit_connect_with(&e, &far, 0, 7);
	}
	barrier();
	if (is_peer)
		stay();
	CHECK(!kit_post(&e, IBV_WR_SEND, 7, 0, 8, &far, 0));
	KNOWS("has connected QP 0x%06x to QP 0x", far.qpn);
	KNOWS("to do: in PID %d (situations-hang): set dest_qp_num of QP 0x%06x to another queue pair",
	      (int)getpid(), e.card.qpn);
	poll_for_ever(e.cq);
}

static void peer_in_init(void)
{
	two();
	open_end(8);
	meet();
	if (is_peer)
		stay();
	kit_connect_with(&e, &far, 31, 7);
	CHECK(!kit_post(&e, IBV_WR_SEND, 7, 0, 8, &far, 0));
	KNOWS("has QP 0x%06x in state INIT, which receives nothing", far.qpn);
	KNOWS("timeout is 31, so an error comes after 8 attempts of 8796 s each");
	KNOWS("in PID %d (situations-hang): move QP 0x%06x to RTR and RTS with ibv_modify_qp(), with "
	      "dest_qp_num "
	      "0x%06x",
	      (int)peer_pid, far.qpn, e.card.qpn);
	KNOWS("set timeout to 14");
	poll_for_ever(e.cq);
}

static void peer_in_error(void)
{
	struct ibv_qp_attr a = {.qp_state = IBV_QPS_ERR};

	two();
	open_end(8);
	meet();
	kit_connect_with(&e, &far, 0, 7);
	barrier();
	if (is_peer) {
		CHECK(!ibv_modify_qp(e.qp, &a, IBV_QP_STATE));
		barrier();
		stay();
	}
	barrier();
	CHECK(!kit_post(&e, IBV_WR_SEND, 7, 0, 8, &far, 0));
	KNOWS("has QP 0x%06x in the error state", far.qpn);
	poll_for_ever(e.cq);
}

static void peer_has_another(void)
{
	struct kit_card wrong;

	two();
	open_end(8);
	meet();
	wrong = far;
	if (is_peer)
		wrong.qpn = e.card.qpn; /* its own */
	kit_connect_with(&e, &wrong, 0, 7);
	barrier();
	if (is_peer)
		stay();
	CHECK(!kit_post(&e, IBV_WR_SEND, 7, 0, 8, &far, 0));
	KNOWS("has connected QP 0x%06x to itself, QP 0x%06x, and not to this QP 0x%06x", far.qpn, far.qpn,
	      e.card.qpn);
	KNOWS("to do: in PID %d (situations-hang): set dest_qp_num of QP 0x%06x to 0x%06x", (int)peer_pid,
	      far.qpn, e.card.qpn);
	poll_for_ever(e.cq);
}

static void peer_psn(void)
{
	struct kit_card wrong;

	two();
	open_end(8);
	meet();
	wrong = far;
	wrong.psn += is_peer ? 100 : 0;
	kit_connect_with(&e, &wrong, 0, 7);
	barrier();
	if (is_peer) {
		CHECK(!kit_recv(&e, 1, 0, 64));
		stay();
	}
	CHECK(!kit_post(&e, IBV_WR_SEND, 7, 0, 8, &far, 0));
	KNOWS("expects PSN 0x%06x on QP 0x%06x, and this end has sent PSN 0x%06x. timeout",
	      (e.card.psn + 100) & 0xffffff, far.qpn, e.card.psn);
	KNOWS("to do: in PID %d (situations-hang): set rq_psn of QP 0x%06x", (int)peer_pid, far.qpn);
	poll_for_ever(e.cq);
}

/* There has been contact, so requests go out. */
static void stop_connected(void)
{
	connected(8);
	if (is_peer)
		stay();
	CHECK(!kit_post(&e, IBV_WR_RDMA_WRITE, 1, 0, 8, &far, 0));
	done(e.cq);
	kit_stop(peer_pid);
}

static void fence(void)
{
	struct ibv_sge sge;
	struct ibv_send_wr *bad, wr = {.wr_id = 9, .num_sge = 1, .opcode = IBV_WR_SEND, .sg_list = &sge};

	setenv("VERBENA_DIRECT", "off", 1);
	stop_connected();
	sge = (struct ibv_sge){(uintptr_t)e.buf, 8, e.mr->lkey};
	wr.send_flags = IBV_SEND_SIGNALED | IBV_SEND_FENCE;
	CHECK(!kit_post(&e, IBV_WR_RDMA_READ, 8, 0, 8, &far, 0));
	CHECK(!ibv_post_send(e.qp, &wr, &bad));
	KNOWS("a SEND (wr_id 0x9) of these is posted and not sent");
	KNOWS("it has IBV_SEND_FENCE, and 1 READ or atomic before it is not complete");
	KNOWS("[peer-stopped]");
	KNOWS("its fence is no fault");
	poll_for_ever(e.cq);
}

static void read_depth(void)
{
	setenv("VERBENA_DIRECT", "off", 1);
	stop_connected();
	for (uint64_t i = 0; i < 6; i++)
		CHECK(!kit_post(&e, IBV_WR_RDMA_READ, i, 0, 8, &far, 0));
	KNOWS("a RDMA READ (wr_id 0x4) of these is posted and not sent");
	KNOWS("4 READs and atomics are outstanding, as many as max_rd_atomic permits");
	poll_for_ever(e.cq);
}

static void drained(void)
{
	struct ibv_qp_attr a = {.qp_state = IBV_QPS_SQD};

	connected(8);
	if (is_peer)
		stay();
	CHECK(!ibv_modify_qp(e.qp, &a, IBV_QP_STATE));
	CHECK(!kit_post(&e, IBV_WR_SEND, 7, 0, 8, &far, 0));
	KNOWS("the queue pair is in state SQD");
	poll_for_ever(e.cq);
}

/* Somebody has the number who says nothing else. */
static void peer_unreadable(void)
{
	struct sockaddr_un name = {.sun_family = AF_UNIX};
	int n = 4000, s = socket(AF_UNIX, SOCK_STREAM, 0), len;

	open_end(8);
	do
		len = snprintf(name.sun_path + 1, sizeof name.sun_path - 1, "verbena/1/%d", --n);
	while (bind(s, (void *)&name, (socklen_t)(offsetof(struct sockaddr_un, sun_path) + 1 + (size_t)len)));
	far = e.card;
	far.qpn = (uint32_t)n << 12 | 5;
	kit_connect_with(&e, &far, 0, 7);
	CHECK(!kit_post(&e, IBV_WR_SEND, 7, 0, 8, &far, 0));
	KNOWS("the peer cannot be read, so the cause is unknown. The process that has QP 0x%06x belongs to",
	      far.qpn);
	poll_for_ever(e.cq);
}

/* The receiver posts each time late, and its RNR timer is long. */
static void peer_slow(void)
{
	struct ibv_qp_attr a = {.min_rnr_timer = 0};

	connected(8);
	if (is_peer) {
		CHECK(!ibv_modify_qp(e.qp, &a, IBV_QP_MIN_RNR_TIMER));
		barrier();
		for (;;) {
			kit_nap(100);
			CHECK(!kit_recv(&e, 1, 0, 64));
			done(e.cq);
		}
	}
	barrier();
	KNOWS("1 request outstanding, a SEND (wr_id 0x1)");
	KNOWS("the peer, PID %d (situations-hang), has posted a receive", (int)peer_pid);
	hangs();
	for (;;) {
		CHECK(!kit_post(&e, IBV_WR_SEND, 1, 0, 8, &far, 0));
		done(e.cq);
	}
}

const struct hang requests[] = {
    {"no-receive", "no-receive", no_receive, "has no receive posted on QP"},
    {"receives-used-up", "no-receive", receives_used_up, "has no receive posted on QP"},
    {"receiver-computes", "no-receive", receiver_computes, "has no receive posted on QP"},
    {"no-receive-srq", "no-receive-srq", no_receive_srq, "has no receive posted in SRQ"},
    {"peer-stopped", "peer-stopped", peer_stopped, "is stopped (by a signal"},
    {"peer-ended", "peer-gone", peer_ended, "does not answer: no process"},
    {"peer-closed", "peer-gone", peer_closed, NULL},
    {"own-error", "own-error", own_error, NULL},
    {"peer-destroyed-its-qp", "peer-no-qp", peer_destroyed_its_qp, "its process has no such queue pair"},
    {"wrong-number", "peer-no-qp", wrong_number, NULL},
    {"peer-has-a-third", "peer-other", peer_has_a_third, NULL},
    {"peer-in-init", "peer-state", peer_in_init, "it is in state INIT"},
    {"peer-in-error", "peer-error", peer_in_error, "it is in state ERR"},
    {"peer-has-another", "peer-other", peer_has_another, "receives nothing from this one"},
    {"peer-psn", "peer-psn", peer_psn, "does not answer: it expects"},
    {"peer-unreadable", "peer-unreadable", peer_unreadable, NULL},
    {"peer-slow", "peer-slow", peer_slow, NULL},
    {"fence", "fence", fence, "is stopped (by a signal"},
    {"read-depth", "read-depth", read_depth, "is stopped (by a signal"},
    {"drained", "sq-drained", drained, NULL},
    {0},
};
