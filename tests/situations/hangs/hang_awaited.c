/* The other end of requests that stay outstanding: the process that is to be changed, which is the one that
 * is explained.  It is the second one, and says who waits for it. */
#include "hang.h"

/* Two processes; the second one is explained. */
static void begin(void)
{
	two();
	explain_peer();
	open_end(8);
}

static void client_sends(int n)
{
	for (uint64_t i = 0; i < (uint64_t)n; i++)
		CHECK(!kit_post(&e, IBV_WR_SEND, 7 + i, 0, 8, &far, 0));
	poll_for_ever(e.cq);
}

/* What the process knows of who waits: it is the first one, and has one queue pair. */
static void knows_client(int n)
{
	KNOWS("(situations-hang) waits for it");
	KNOWS("QP 0x%06x of PID %d (situations-hang) has %d request%s outstanding", far.qpn, (int)getppid(),
	      n, n == 1 ? "" : "s");
}

static void no_receive(void)
{
	begin();
	meet();
	kit_connect(&e, &far);
	barrier();
	if (!is_peer)
		client_sends(2);
	knows_client(2);
	KNOWS("no receive is posted on it: each SEND is answered with an RNR NAK (");
	KNOWS("No receive was ever posted here");
	KNOWS("to do: in PID %d (situations-hang): post receives with ibv_post_recv()", (int)getpid());
	stay();
}

static void used_up(void)
{
	begin();
	meet();
	kit_connect(&e, &far);
	if (is_peer)
		for (int i = 0; i < 3; i++)
			CHECK(!kit_recv(&e, 1, 0, 64));
	barrier();
	if (!is_peer)
		client_sends(4);
	for (int i = 0; i < 3; i++)
		done(e.cq);
	knows_client(1);
	KNOWS("All 3 receives that were posted here are used up");
	stay();
}

static void srq(void)
{
	struct ibv_srq_init_attr sa = {.attr = {.max_wr = 4, .max_sge = 1}};
	struct ibv_srq *srq = NULL;

	begin();
	if (is_peer) {
		srq = ibv_create_srq(pd, &sa);
		CHECK(srq);
		another_qp(&e, e.cq, srq);
	}
	meet();
	kit_connect(&e, &far);
	barrier();
	if (!is_peer)
		client_sends(1);
	knows_client(1);
	KNOWS("SRQ 0x");
	KNOWS("no receive is posted in it: each SEND is answered with an RNR NAK (");
	KNOWS("post receives to SRQ 0x");
	stay();
}

static void in_init(void)
{
	begin();
	meet();
	if (!is_peer) {
		kit_connect_with(&e, &far, 0, 7);
		client_sends(1);
	}
	knows_client(1);
	KNOWS("it is in state INIT, which receives nothing");
	KNOWS("move QP 0x%06x to RTR and RTS with ibv_modify_qp(), with dest_qp_num 0x%06x", e.card.qpn,
	      far.qpn);
	stay();
}

static void connected_to_itself(void)
{
	begin();
	meet();
	if (!is_peer) {
		kit_connect_with(&e, &far, 0, 7);
		client_sends(1);
	}
	kit_connect_with(&e, &e.card, 0, 7);
	knows_client(1);
	KNOWS("it is connected to QP 0x%06x, and receives from no other", e.card.qpn);
	stay();
}

static void destroyed(void)
{
	begin();
	meet();
	kit_connect_with(&e, &far, 0, 7);
	barrier();
	if (is_peer)
		CHECK(!ibv_destroy_qp(e.qp));
	barrier();
	if (!is_peer)
		client_sends(1);
	knows_client(1);
	KNOWS("QP 0x%06x, which does not exist", e.card.qpn);
	KNOWS("this process has destroyed it");
	KNOWS("keep the queue pair until PID %d (situations-hang) has its completions", (int)getppid());
	stay();
}

static void wrong_number(void)
{
	begin();
	meet();
	if (!is_peer) {
		far.qpn ^= 0x800;
		kit_connect_with(&e, &far, 0, 7);
		client_sends(1);
	}
	knows_client(1);
	KNOWS("QP 0x%06x, which does not exist", e.card.qpn ^ 0x800);
	KNOWS("this process has never had this number");
	KNOWS("in PID %d (situations-hang): set dest_qp_num to a qp_num that PID %d", (int)getppid(),
	      (int)getpid());
	stay();
}

const struct hang awaited[] = {
    {"awaited-no-receive", "awaited", no_receive, "has no receive posted on QP"},
    {"awaited-used-up", "awaited", used_up, "has no receive posted on QP"},
    {"awaited-srq", "awaited", srq, "has no receive posted in SRQ"},
    {"awaited-in-init", "awaited", in_init, NULL},
    {"awaited-connected-to-itself", "awaited", connected_to_itself, NULL},
    {"awaited-destroyed", "awaited", destroyed, NULL},
    {"awaited-wrong-number", "awaited", wrong_number, NULL},
    {0},
};
