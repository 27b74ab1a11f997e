/* Programs that poll, and find nothing. */
#include "hang.h"

/* The completions of the sends go to a CQ that nobody looks at. */
static void other_cq(void)
{
	struct ibv_cq *other;

	two();
	open_end(8);
	other = ibv_create_cq(ctx, 8, NULL, NULL, 0);
	CHECK(other);
	another_qp(&e, other, NULL);
	meet();
	kit_connect(&e, &far);
	if (is_peer)
		for (int i = 0; i < 3; i++)
			CHECK(!kit_recv(&e, 1, 0, 64));
	barrier();
	if (is_peer)
		stay();
	for (uint64_t i = 0; i < 3; i++)
		CHECK(!kit_post(&e, IBV_WR_SEND, i, 0, 8, &far, 0));
	KNOWS("CQ %p (no completion channel): 3 completions lie in it, the oldest for at least ",
	      (void *)other);
	KNOWS("the program polls, but not this CQ. It is the CQ of QP 0x%06x (send_cq). The other CQ of the "
	      "program "
	      "is %p",
	      e.card.qpn, (void *)e.cq);
	poll_for_ever(e.cq);
}

/* A thread waits for something else. */
static void nobody_polls(void)
{
	connected(8);
	if (is_peer)
		CHECK(!kit_recv(&e, 1, 0, 64));
	barrier();
	if (is_peer)
		stay();
	CHECK(!kit_post(&e, IBV_WR_SEND, 1, 0, 8, &far, 0));
	until_there(e.cq);
	KNOWS("CQ %p (no completion channel): 1 completion lies in it, for at least ", (void *)e.cq);
	KNOWS("no thread polls it. It is the CQ of QP 0x%06x (send_cq and recv_cq)", e.card.qpn);
	stay();
}

static void post_unsignalled(uint64_t id, enum ibv_wr_opcode op)
{
	struct ibv_sge sge = {(uintptr_t)e.buf, 8, e.mr->lkey};
	struct ibv_send_wr *bad, wr = {.wr_id = id,
				       .num_sge = 1,
				       .opcode = op,
				       .sg_list = &sge,
				       .wr.rdma = {.remote_addr = far.addr, .rkey = far.rkey}};

	CHECK(!ibv_post_send(e.qp, &wr, &bad));
}

/* Nothing frees the slots of requests that were never signalled. */
static void full_unsignalled(void)
{
	connected(4);
	if (is_peer)
		stay();
	for (uint64_t i = 0; i < 4; i++)
		post_unsignalled(i, IBV_WR_RDMA_WRITE);
	KNOWS("no failure logged since it opened the device, but ");
	KNOWS("its send queue is full, so ibv_post_send() returns ENOMEM");
	KNOWS("all 4 requests are done, and none has IBV_SEND_SIGNALED: no completion frees their slots");
	KNOWS("0 of 4 send requests outstanding, 4 more slots not freed by a polled completion");
	poll_for_ever(e.cq);
}

static void full_unpolled(void)
{
	connected(4);
	if (is_peer)
		stay();
	for (uint64_t i = 0; i < 4; i++)
		CHECK(!kit_post(&e, IBV_WR_RDMA_WRITE, i, 0, 8, &far, 0));
	KNOWS("all 4 requests are done, and their completions lie in CQ %p, which nobody polls",
	      (void *)e.cq);
	stay();
}

/* The program polls for the completion of a request that has none. */
static void unsignalled(void)
{
	connected(4);
	if (is_peer)
		stay();
	post_unsignalled(1, IBV_WR_RDMA_WRITE);
	KNOWS("1 request is done, and no completion comes");
	KNOWS(
	    "it was posted without IBV_SEND_SIGNALED, so its success is not reported. It takes 1 of 4 slots");
	poll_for_ever(e.cq);
}

static void both_receive(void)
{
	connected(8);
	for (int i = 0; i < (is_peer ? 2 : 5); i++)
		CHECK(!kit_recv(&e, 1, 0, 64));
	barrier();
	if (is_peer)
		poll_for_ever(e.cq);
	KNOWS("QP 0x%06x (RC, RTS) -> QP 0x%06x of PID %d (situations-hang): 5 receives posted, and no "
	      "message comes",
	      e.card.qpn, far.qpn, (int)peer_pid);
	KNOWS("has 2 receives posted too, and neither end has sent anything");
	KNOWS("PID %d or PID %d, send first", (int)getpid(), (int)peer_pid);
	KNOWS("queues of PID %d (situations-hang), not of its peers", (int)getpid());
	poll_for_ever(e.cq);
}

/* They have talked, and now each waits for the other. */
static void nothing_more(void)
{
	connected(8);
	for (int i = 0; i < 2; i++)
		CHECK(!kit_recv(&e, 1, 0, 64));
	barrier();
	if (!is_peer) {
		CHECK(!kit_post(&e, IBV_WR_SEND, 1, 0, 8, &far, 0));
		done(e.cq);
		KNOWS("2 receives posted, and no message comes");
		KNOWS("has no request outstanding, and has sent nothing yet. It has 1 receive posted, so "
		      "both ends wait");
	} else {
		done(e.cq);
	}
	poll_for_ever(e.cq);
}

static void write_silent(void)
{
	connected(8);
	if (!is_peer) {
		CHECK(!kit_recv(&e, 1, 0, 64));
		barrier();
		KNOWS("1 receive posted, and no message comes");
		KNOWS("has sent an RDMA_WRITE as its last request: a WRITE without immediate data uses no "
		      "receive");
		poll_for_ever(e.cq);
	}
	barrier();
	CHECK(!kit_post(&e, IBV_WR_RDMA_WRITE, 1, 0, 8, &far, 0));
	done(e.cq);
	stay();
}

/* The program posts receives, and forgets to connect. */
static void not_connected(void)
{
	open_end(8);
	CHECK(!kit_recv(&e, 1, 0, 64));
	KNOWS("QP 0x%06x (RC, INIT): 1 receive posted, and no message comes", e.card.qpn);
	KNOWS("the queue pair is in state INIT, which receives nothing");
	poll_for_ever(e.cq);
}

/* The client died before it sent. */
static void sender_stopped(void)
{
	connected(8);
	if (is_peer)
		stay();
	CHECK(!kit_recv(&e, 1, 0, 64));
	kit_stop(peer_pid);
	KNOWS("1 receive posted, and no message comes");
	KNOWS("the peer, PID %d (situations-hang), is stopped by a signal", (int)peer_pid);
	poll_for_ever(e.cq);
}

const struct hang polls[] = {
    {"other-cq", "other-cq", other_cq, NULL},
    {"nobody-polls", "unpolled", nobody_polls, NULL},
    {"full-unsignalled", "sq-full-unsignalled", full_unsignalled, NULL},
    {"full-unpolled", "sq-full-unpolled", full_unpolled, NULL},
    {"unsignalled", "unsignalled", unsignalled, NULL},
    {"both-receive", "both-receive", both_receive, NULL},
    {"nothing-more", "nothing-sent", nothing_more, NULL},
    {"write-silent", "write-silent", write_silent, NULL},
    {"not-connected", "own-state", not_connected, NULL},
    {"sender-stopped", "peer-stopped", sender_stopped, NULL},
    {0},
};
