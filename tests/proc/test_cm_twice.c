/* Ids, channels and events that a program ends twice, NULL, and queue pairs of ids that it has destroyed past
 * rdma_cm: each call says so, and reads nothing of what has gone (the sanitizers would see it). */
#include "cm.h"

enum { DEPTH = 4 };

/* Refused with EINVAL, in the name of `name`, with a sentence that contains `what`. */
#define REFUSED(name, expr, what)                                                            \
	do {                                                                                 \
		errno = 0;                                                                   \
		CHECK_EQ(expr, -1);                                                          \
		CHECK_EQ(errno, EINVAL);                                                     \
		CHECK(kit_log_says(name ": ") && kit_log_says(what), "no '%s' in: %s", what, \
		      kit_log_text());                                                       \
		kit_log_skip();                                                              \
	} while (0)
/* The same of a call that returns nothing. */
#define SAYS(name, what)                                                                     \
	do {                                                                                 \
		CHECK(kit_log_says(name ": ") && kit_log_says(what), "no '%s' in: %s", what, \
		      kit_log_text());                                                       \
		kit_log_skip();                                                              \
	} while (0)

static struct rdma_cm_id *bound(struct rdma_event_channel *ch)
{
	struct rdma_cm_id *id = kit_cm_id(ch, RDMA_PS_TCP);

	KIT_CM(rdma_bind_addr(id, kit_cm_local(0)));
	return id;
}

static int create_qp(struct rdma_cm_id *id, uint32_t send, uint32_t recv)
{
	struct ibv_qp_init_attr attr = {
	    .qp_type = IBV_QPT_RC,
	    .cap = {.max_send_wr = send, .max_recv_wr = recv, .max_send_sge = 1, .max_recv_sge = 1}};

	return rdma_create_qp(id, NULL, &attr);
}

static void ids(void)
{
	struct rdma_event_channel *ch = kit_cm_channel();
	struct rdma_cm_id *id = bound(ch), *ep;

	REFUSED("rdma_destroy_id", rdma_destroy_id(NULL), "the rdma_cm_id is NULL");
	KIT_CM(rdma_destroy_id(id));
	REFUSED("rdma_destroy_id", rdma_destroy_id(id), "there is no rdma_cm_id at ");
	rdma_destroy_qp(id);
	SAYS("rdma_destroy_qp", "there is no rdma_cm_id at ");
	rdma_destroy_qp(NULL);
	SAYS("rdma_destroy_qp", "the rdma_cm_id is NULL");
	rdma_destroy_srq(id);
	SAYS("rdma_destroy_srq", "there is no rdma_cm_id at ");
	KIT_CM(rdma_create_id(NULL, &ep, NULL, RDMA_PS_TCP));
	rdma_destroy_ep(ep);
	CHECK(!*kit_log_text(), "%s", kit_log_text());
	rdma_destroy_ep(ep);
	SAYS("rdma_destroy_ep", "there is no rdma_cm_id at ");
	rdma_destroy_event_channel(ch);
	rdma_destroy_event_channel(ch);
	SAYS("rdma_destroy_event_channel", "there is no event channel at ");
	rdma_destroy_event_channel(NULL);
	SAYS("rdma_destroy_event_channel", "the event channel is NULL");
	ch = kit_cm_channel(); /* the list of those that were closed is whole */
	CHECK(ch != kit_cm_channel());
}

static void events(void)
{
	struct rdma_event_channel *ch = kit_cm_channel();
	struct rdma_cm_id *id = kit_cm_id(ch, RDMA_PS_TCP);
	struct rdma_cm_event *e;

	KIT_CM(rdma_resolve_addr(id, NULL, kit_cm_local(1), 1000));
	KIT_CM(rdma_get_cm_event(ch, &e));
	KIT_CM(rdma_ack_cm_event(e));
	REFUSED("rdma_ack_cm_event", rdma_ack_cm_event(e), "there is no event at ");
	REFUSED("rdma_ack_cm_event", rdma_ack_cm_event(NULL), "the event is NULL");
	KIT_CM(rdma_destroy_id(id)); /* which counts one acknowledgement */
	rdma_destroy_event_channel(ch);
}

static void queue_pairs(void)
{
	struct rdma_event_channel *ch = kit_cm_channel();
	struct rdma_cm_id *id = bound(ch);
	struct ibv_srq_init_attr srq = {.attr = {.max_wr = DEPTH, .max_sge = 1}};

	KIT_CM(create_qp(id, DEPTH, DEPTH));
	CHECK_EQ(ibv_destroy_qp(id->qp), 0);
	REFUSED("rdma_create_qp", create_qp(id, DEPTH, DEPTH), "id->qp was destroyed by ibv_destroy_qp");
	rdma_destroy_qp(id); /* takes the queues along that rdma_cm made */
	CHECK(!id->qp && !id->send_cq && !id->recv_cq && !*kit_log_text(), "%s", kit_log_text());
	REFUSED("rdma_create_qp", create_qp(id, 0, DEPTH), "cap.max_send_wr is 0");
	REFUSED("rdma_create_qp", create_qp(id, DEPTH, 0), "cap.max_recv_wr is 0");
	KIT_CM(rdma_create_srq(id, NULL, &srq));
	REFUSED("rdma_create_qp", create_qp(id, DEPTH, 0),
		"a queue pair with an SRQ also needs a receive CQ");
	KIT_CM(create_qp(id, DEPTH, 1));
	rdma_destroy_qp(id);
	CHECK_EQ(ibv_destroy_srq(id->srq), 0);
	rdma_destroy_srq(id);
	SAYS("rdma_destroy_srq", "there is no shared receive queue at ");
	KIT_CM(rdma_destroy_id(id));
	rdma_destroy_event_channel(ch);
}

int main(int argc, char **argv)
{
	static const struct kit_case cases[] = {
	    {"ids", ids, false, false},
	    {"events", events, false, true},
	    {"queue pairs", queue_pairs, false, true},
	};

	kit_log_begin("warn");
	KIT_CASES(cases, 60);
	return 0;
}
