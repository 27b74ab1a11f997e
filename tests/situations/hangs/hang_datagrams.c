/* Messages of unreliable queue pairs that went nowhere, and limits of SRQs. */
#include <arpa/inet.h>

#include "hang.h"

static void open_ud(struct kit_end *end)
{
	kit_end_open_as(end, pd, 8, 8192, IBV_QPT_UD);
}

/* The far end is ready and has no receive for it. */
static void dropped(bool receive, uint32_t qkey, uint32_t len)
{
	struct ibv_sge sge;
	struct ibv_send_wr *bad, wr = {.wr_id = 1, .num_sge = 1, .opcode = IBV_WR_SEND, .sg_list = &sge};
	struct kit_end b;

	open_device();
	open_ud(&e);
	open_ud(&b);
	if (receive)
		CHECK(!kit_recv(&e, 1, 0, 64));
	sge = (struct ibv_sge){(uintptr_t)b.buf, len, b.mr->lkey};
	wr.send_flags = IBV_SEND_SIGNALED;
	wr.wr.ud.ah = kit_ah(pd, &e.card);
	wr.wr.ud.remote_qpn = e.card.qpn;
	wr.wr.ud.remote_qkey = qkey;
	CHECK(!ibv_post_send(b.qp, &wr, &bad));
	done(b.cq);
	KNOWS("QP 0x%06x (UD, RTS): messages were discarded without an error completion", e.card.qpn);
}

static void no_receive(void)
{
	dropped(false, KIT_QKEY, 8);
	KNOWS("(drop-no-receive): 1 in this process");
	poll_for_ever(e.cq);
}

static void wrong_qkey(void)
{
	dropped(true, KIT_QKEY + 1, 8);
	KNOWS("(drop-qkey): 1 in this process");
	poll_for_ever(e.cq);
}

/* The receive has no room for the 40 bytes of the GRH. */
static void too_small(void)
{
	dropped(true, KIT_QKEY, 60);
	KNOWS("(drop-too-small): 1 in this process");
	poll_for_ever(e.cq);
}

static void empty_group(void)
{
	static const union ibv_gid group = {.raw = {0xff, 0x12, [14] = 0x47, [15] = 0x11}};
	struct ibv_ah_attr a = {.is_global = 1, .port_num = 1, .grh = {.dgid = group, .hop_limit = 1}};
	struct ibv_ah *ah;

	open_device();
	open_ud(&e);
	ah = ibv_create_ah(pd, &a);
	CHECK(ah && !kit_datagram(&e, ah, 0xffffff, 1, 0, 8));
	done(e.cq);
	KNOWS("QP 0x%06x (UD, RTS): its last datagram went to a multicast group", e.card.qpn);
	KNOWS("is attached to group ff12::4711 in this network namespace");
	poll_for_ever(e.cq);
}

/* The event of the limit comes once. */
static void srq_limit(void)
{
	struct ibv_async_event ev;
	struct kit_end b;

	open_srq_end(&b, 3);
	for (int i = 0; i < 2; i++) {
		CHECK(!kit_post(&e, IBV_WR_SEND, 1, 0, 8, &b.card, 0));
		done(e.cq);
		done(e.cq);
	}
	CHECK(!ibv_get_async_event(ctx, &ev));
	ibv_ack_async_event(&ev);
	KNOWS("1 of 4 receives posted");
	KNOWS("its limit has fired 1 time and is not set");
	hangs();
	ibv_get_async_event(ctx, &ev);
}

const struct hang datagrams[] = {
    {"datagram-no-receive", "datagrams-dropped", no_receive, NULL},
    {"datagram-qkey", "datagrams-dropped", wrong_qkey, NULL},
    {"datagram-too-small", "datagrams-dropped", too_small, NULL},
    {"empty-group", "group-empty", empty_group, NULL},
    {"srq-limit", "srq-limit", srq_limit, NULL},
    {0},
};
