/* Hangs of whole programs, which have more than one queue pair, thread or process at work. */
#include <pthread.h>
#include <sys/epoll.h>

#include "cm.h"
#include "hang.h"

static struct ibv_comp_channel *channel;
static uint16_t port;

static void open_with_channel(void)
{
	open_device();
	channel = ibv_create_comp_channel(ctx);
	CHECK(channel);
	kit_end_open_on(&e, pd, channel, 16, 8192);
}

/* An event loop: the descriptors of all channels in one epoll. */
static void sleep_in_epoll(void)
{
	struct epoll_event ev = {.events = EPOLLIN};
	int fd = epoll_create1(EPOLL_CLOEXEC);

	CHECK(fd >= 0 && !epoll_ctl(fd, EPOLL_CTL_ADD, channel->fd, &ev));
	hangs();
	CHECK(epoll_wait(fd, &ev, 1, -1) != 1, "there was an event");
}

/* The other process sends that many messages at once. */
static void serve(int messages)
{
	for (uint64_t i = 0; i < (uint64_t)messages; i++)
		CHECK(!kit_post(&e, IBV_WR_SEND, i, 0, 8, &far, 0));
	for (int i = 0; i < messages; i++)
		done(e.cq);
	barrier();
	stay();
}

static void event_loop(bool arms)
{
	two();
	open_with_channel();
	for (int i = 0; i < 8; i++)
		CHECK(!kit_recv(&e, 1, 0, 64));
	if (arms)
		CHECK(!ibv_req_notify_cq(e.cq, 0));
	meet();
	kit_connect(&e, &far);
	barrier();
	if (is_peer)
		serve(3);
	barrier();
	until_there(e.cq);
}

static void epoll_never_armed(void)
{
	event_loop(false);
	KNOWS("completion channel with fd %d): 3 completions lie in it, the oldest for at least ",
	      channel->fd);
	KNOWS("the CQ was never armed");
	sleep_in_epoll();
}

/* It takes one completion for each event, and arms no more. */
static void epoll_takes_one(void)
{
	struct ibv_cq *cq;
	void *context;

	event_loop(true);
	CHECK(!ibv_get_cq_event(channel, &cq, &context));
	ibv_ack_cq_events(cq, 1);
	done(cq);
	KNOWS("2 completions lie in it");
	KNOWS("it was armed 1 time, each arming is for one event, and 1 event was delivered");
	sleep_in_epoll();
}

/* It arms right after the event and before it polls, but takes one completion only. */
static void epoll_arms_and_takes_one(void)
{
	struct ibv_cq *cq;
	void *context;

	event_loop(true);
	CHECK(!ibv_get_cq_event(channel, &cq, &context));
	ibv_ack_cq_events(cq, 1);
	CHECK(!ibv_req_notify_cq(cq, 0));
	done(cq);
	KNOWS("2 completions lie in it");
	KNOWS("poll until the CQ is empty after each ibv_req_notify_cq()");
	sleep_in_epoll();
}

/* Each sends first and posts its receives when that is done. */
static void both_send_first(void)
{
	connected(8);
	CHECK(!kit_post(&e, IBV_WR_SEND, 5, 0, 64, &far, 0));
	if (is_peer)
		poll_for_ever(e.cq);
	KNOWS("1 request outstanding, a SEND (wr_id 0x5)");
	KNOWS("PID %d (situations-hang), has no receive posted on QP 0x%06x", (int)peer_pid, far.qpn);
	KNOWS("[awaited] no receive is posted on it");
	poll_for_ever(e.cq);
}

static void write_with_immediate(void)
{
	connected(8);
	if (is_peer)
		stay();
	CHECK(!kit_post(&e, IBV_WR_RDMA_WRITE_WITH_IMM, 3, 0, 8, &far, 0));
	KNOWS("1 request outstanding, a RDMA WRITE with immediate (wr_id 0x3)");
	KNOWS("has no receive posted on QP 0x%06x", far.qpn);
	poll_for_ever(e.cq);
}

/* Two clients of one SRQ: the first one's messages have used all receives. */
static void starved(void)
{
	struct ibv_srq_init_attr sa = {.attr = {.max_wr = 4, .max_sge = 1}};
	struct ibv_sge sge;
	struct ibv_recv_wr *bad, wr = {.num_sge = 1, .sg_list = &sge};
	struct kit_end second;
	struct kit_card far2;
	struct ibv_srq *srq = NULL;

	two();
	open_end(8);
	kit_end_open(&second, pd, 8, 64);
	if (is_peer) {
		srq = ibv_create_srq(pd, &sa);
		another_qp(&e, e.cq, srq);
		another_qp(&second, e.cq, srq);
		sge = (struct ibv_sge){(uintptr_t)e.buf, 64, e.mr->lkey};
		for (int i = 0; i < 4; i++)
			CHECK(!ibv_post_srq_recv(srq, &wr, &bad));
	}
	meet();
	exchange(&second.card, &far2, sizeof far2);
	kit_connect(&e, &far);
	kit_connect(&second, &far2);
	barrier();
	if (is_peer)
		stay();
	for (uint64_t i = 0; i < 4; i++) {
		CHECK(!kit_post(&e, IBV_WR_SEND, i, 0, 8, &far, 0));
		done(e.cq);
	}
	CHECK(!kit_post(&second, IBV_WR_SEND, 9, 0, 8, &far2, 0));
	KNOWS("a SEND (wr_id 0x9)");
	KNOWS("from which QP 0x%06x receives", far2.qpn);
	KNOWS("All that it has posted are used up");
	poll_for_ever(second.cq);
}

/* The first of three in a row: the last one is stopped, and the one between them answers nobody meanwhile. */
static void three_in_a_row(void)
{
	struct kit_end next;
	struct kit_card last;
	int s[2];
	pid_t pid;

	connected(8);
	if (!is_peer) {
		barrier();
		CHECK(!kit_post(&e, IBV_WR_SEND, 1, 0, 8, &far, 0));
		poll_for_ever(e.cq);
	}
	explain_peer();
	CHECK(!socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, s));
	pid = kit_fork();
	if (!pid) {
		open_end(8);
		CHECK(write(s[1], &e.card, sizeof e.card) == sizeof e.card);
		CHECK(read(s[1], &last, sizeof last) == sizeof last);
		kit_connect(&e, &last);
		CHECK(write(s[1], "", 1) == 1);
		for (;;)
			pause();
	}
	kit_end_open(&next, pd, 8, 64);
	CHECK(read(s[0], &last, sizeof last) == sizeof last);
	CHECK(write(s[0], &next.card, sizeof next.card) == sizeof next.card);
	CHECK(read(s[0], s, 1) == 1);
	kit_connect(&next, &last);
	kit_stop(pid);
	CHECK(!kit_post(&next, IBV_WR_SEND, 2, 0, 8, &last, 0));
	barrier();
	KNOWS("the peer, PID %d (situations-hang), is stopped by a signal", (int)pid);
	KNOWS("[awaited] no receive is posted on it");
	KNOWS("of PID %d (situations-hang) has 1 request outstanding, a SEND (wr_id 0x1)", (int)getppid());
	poll_for_ever(next.cq);
}

static atomic_bool begun;

static void *build(void *qp)
{
	ibv_wr_start(qp);
	atomic_store(&begun, true);
	for (;;)
		pause();
	return NULL;
}

/* A thread builds requests, and the main one wants to end the connection. */
static void modify_waits(void)
{
	struct ibv_qp_attr a = {.qp_state = IBV_QPS_RESET};
	struct ibv_qp_ex *qp;

	two();
	open_device();
	qp = kit_end_open_ex(&e, pd, 8, 8192, IBV_QP_EX_WITH_SEND);
	meet();
	kit_connect(&e, &far);
	if (is_peer)
		stay();
	start(build, qp);
	while (!atomic_load(&begun))
		kit_nap(1);
	KNOWS("a post or ibv_modify_qp(): thread %d waits in it", gettid());
	KNOWS("another thread has called ibv_wr_start() on QP 0x%06x", e.card.qpn);
	hangs();
	ibv_modify_qp(e.qp, &a, IBV_QP_STATE);
}

/* A synchronous server that listens, and does something else. */
static void get_request_missing(void)
{
	struct rdma_conn_param p = {.responder_resources = 1, .initiator_depth = 1};
	struct rdma_cm_id *id;
	uint16_t unused;

	two();
	KIT_CM(rdma_create_id(NULL, &id, NULL, RDMA_PS_TCP));
	if (is_peer) {
		KIT_CM(rdma_bind_addr(id, kit_cm_local(0)));
		KIT_CM(rdma_listen(id, 4));
		port = ntohs(rdma_get_src_port(id));
	}
	exchange(&port, is_peer ? &unused : &port, sizeof port);
	if (is_peer)
		stay();
	KIT_CM(rdma_resolve_addr(id, NULL, kit_cm_local(port), 2000));
	KIT_CM(rdma_resolve_route(id, 2000));
	kit_cm_qp(id);
	KNOWS("and no REP has come: PID %d (situations-hang) has not called rdma_get_request()",
	      (int)peer_pid);
	KNOWS("to do: in PID %d (situations-hang): call rdma_get_request()", (int)peer_pid);
	hangs();
	rdma_connect(id, &p);
}

/* A lookup of a datagram service that nobody answers. */
static void lookup(void)
{
	struct rdma_event_channel *here;
	struct rdma_cm_event *ev;

	two();
	if (is_peer)
		kit_cm_listen_at(kit_cm_channel(), RDMA_PS_UDP, &port, 4);
	exchange(&port, is_peer ? &(uint16_t){0} : &port, sizeof port);
	if (is_peer)
		stay();
	here = kit_cm_channel();
	kit_cm_connect(kit_cm_ready(here, RDMA_PS_UDP, port));
	KNOWS("its lookup (SIDR_REQ) was sent ");
	KNOWS("to do: in PID %d (situations-hang): get the event with rdma_get_cm_event()", (int)peer_pid);
	hangs();
	rdma_get_cm_event(here, &ev);
}

/* A sender of datagrams, whose receiver has no receive for them: it is the sender that waits for an answer.
 */
static void datagrams_there(void)
{
	two();
	open_device();
	kit_end_open_as(&e, pd, 8, 8192, IBV_QPT_UD);
	meet();
	if (is_peer)
		stay();
	for (uint64_t i = 0; i < 2; i++) {
		CHECK(!kit_datagram(&e, kit_ah(pd, &far), far.qpn, i, 0, 8));
		done(e.cq);
	}
	KNOWS("its last datagram went to QP 0x%06x of PID %d (situations-hang), which has discarded", far.qpn,
	      (int)peer_pid);
	KNOWS("(drop-no-receive): 2 in PID %d (situations-hang)", (int)peer_pid);
	KNOWS("run verbena explain %d", (int)peer_pid);
	poll_for_ever(e.cq);
}

/* Every sixteenth is signalled, and the queue has room for eight. */
static void signals_too_few(void)
{
	struct ibv_sge sge;
	struct ibv_send_wr *bad, wr = {.num_sge = 1, .opcode = IBV_WR_RDMA_WRITE, .sg_list = &sge};

	connected(8);
	if (is_peer)
		stay();
	sge = (struct ibv_sge){(uintptr_t)e.buf, 8, e.mr->lkey};
	wr.wr.rdma.remote_addr = far.addr;
	wr.wr.rdma.rkey = far.rkey;
	KNOWS("all 8 requests are done, and none has IBV_SEND_SIGNALED");
	hangs();
	for (uint64_t i = 1;; i += !ibv_post_send(e.qp, &wr, &bad))
		wr.send_flags = i % 16 ? 0 : IBV_SEND_SIGNALED;
}

/* A server that rdma_cm has connected posts no receives. */
static void cm_no_receive(void)
{
	struct rdma_event_channel *c;
	struct rdma_conn_param p = {
	    .responder_resources = 1, .initiator_depth = 1, .retry_count = 7, .rnr_retry_count = 7};
	struct rdma_cm_id *id;
	struct ibv_mr *mr;
	static char buf[64];

	two();
	c = kit_cm_channel();
	if (is_peer)
		kit_cm_listen(c, &port);
	exchange(&port, is_peer ? &(uint16_t){0} : &port, sizeof port);
	if (is_peer) {
		kit_cm_take(c);
		kit_cm_expect(c, RDMA_CM_EVENT_ESTABLISHED, 0);
		stay();
	}
	id = kit_cm_ready(c, RDMA_PS_TCP, port);
	KIT_CM(rdma_connect(id, &p));
	kit_cm_expect(c, RDMA_CM_EVENT_ESTABLISHED, 0);
	mr = rdma_reg_msgs(id, buf, sizeof buf);
	CHECK(mr);
	KIT_CM(rdma_post_send(id, (void *)4, buf, 8, mr, IBV_SEND_SIGNALED));
	KNOWS("1 request outstanding, a SEND (wr_id 0x4)");
	KNOWS("the peer, PID %d (situations-hang), has no receive posted", (int)peer_pid);
	KNOWS("pass an rnr_retry_count of less than 7 to rdma_connect() or rdma_accept()");
	poll_for_ever(kit_cm_cq);
}

const struct hang more[] = {
    {"epoll-never-armed", "never-armed", epoll_never_armed, NULL},
    {"epoll-takes-one", "not-rearmed", epoll_takes_one, NULL},
    {"epoll-arms-and-takes-one", "armed-late", epoll_arms_and_takes_one, NULL},
    {"both-send-first", "no-receive", both_send_first, NULL},
    {"write-with-immediate", "no-receive", write_with_immediate, "has no receive posted on QP"},
    {"starved", "no-receive-srq", starved, "has no receive posted in SRQ"},
    {"three-in-a-row", "peer-stopped", three_in_a_row, "is stopped (by a signal"},
    {"modify-waits", "post-in-progress", modify_waits, "a post or ibv_modify_qp() has waited for"},
    {"get-request-missing", "cm-answer", get_request_missing, "rdma_connect() has waited for "},
    {"lookup", "cm-answer", lookup, NULL},
    {"datagrams-there", "datagrams-dropped", datagrams_there, NULL},
    {"signals-too-few", "sq-full-unsignalled", signals_too_few, NULL},
    {"cm-no-receive", "no-receive", cm_no_receive, "has no receive posted on QP"},
    {0},
};
