/* What a program makes itself for its ids, and rdma_cm ends: a completion queue and a channel that it puts
 * into the id's fields (rdma_create_qp(3)), and the attachment of a queue pair to a group that the id has
 * joined before (rdma_join_multicast(3)). */
#include "cm.h"

enum { DEPTH = 4 };

static struct rdma_event_channel *ch;

/* An id that is bound to 127.0.0.1, and so to a device. */
static struct rdma_cm_id *bound(enum rdma_port_space ps)
{
	struct rdma_cm_id *id;

	ch = kit_cm_channel();
	id = kit_cm_id(ch, ps);
	KIT_CM(rdma_bind_addr(id, kit_cm_local(0)));
	CHECK(id->verbs && id->pd);
	return id;
}

static void make_qp(struct rdma_cm_id *id, struct ibv_pd *pd, struct ibv_cq *cq)
{
	struct ibv_qp_init_attr attr = {
	    .send_cq = cq,
	    .recv_cq = cq,
	    .qp_type = id->qp_type,
	    .cap = {.max_send_wr = DEPTH, .max_recv_wr = DEPTH, .max_send_sge = 1, .max_recv_sge = 1}};

	KIT_CM(rdma_create_qp(id, pd, &attr));
	CHECK(id->qp->send_cq == cq && id->qp->recv_cq == cq);
}

/* ---- completion queues ---- */

static void no_queue_is_left(const struct rdma_cm_id *id)
{
	CHECK(!id->qp && !id->send_cq && !id->recv_cq && !id->send_cq_channel && !id->recv_cq_channel);
}

static void make_one_queue(struct rdma_cm_id *id)
{
	struct ibv_comp_channel *channel = ibv_create_comp_channel(id->verbs);
	struct ibv_cq *cq = channel ? ibv_create_cq(id->verbs, 2 * DEPTH, id, channel, 0) : NULL;

	CHECK(cq, "%s", strerror(errno));
	id->send_cq_channel = id->recv_cq_channel = channel;
	id->send_cq = id->recv_cq = cq;
	make_qp(id, NULL, cq);
}

static void one_queue_for_both(void)
{
	struct rdma_cm_id *id = bound(RDMA_PS_TCP);
	int before = kit_descriptors();

	for (int i = 0; i < 3; i++) {
		make_one_queue(id);
		CHECK(kit_descriptors() == before + 1); /* the channel */
		rdma_destroy_qp(id);
		no_queue_is_left(id);
		CHECK(kit_descriptors() == before);
	}
	make_one_queue(id);
	rdma_destroy_ep(id);
	CHECK(kit_descriptors() == before);
	rdma_destroy_event_channel(ch);
}

/* The queue itself stands in no field, and stays. */
static void one_channel_for_both(void)
{
	struct rdma_cm_id *id = bound(RDMA_PS_TCP);
	struct ibv_cq *cq = ibv_create_cq(id->verbs, 2 * DEPTH, id, NULL, 0);
	int before = kit_descriptors();

	CHECK(cq);
	for (int i = 0; i < 3; i++) {
		id->send_cq_channel = id->recv_cq_channel = ibv_create_comp_channel(id->verbs);
		CHECK(id->send_cq_channel);
		make_qp(id, NULL, cq);
		rdma_destroy_qp(id);
		no_queue_is_left(id);
		CHECK(kit_descriptors() == before);
	}
	CHECK(!ibv_destroy_cq(cq));
	KIT_CM(rdma_destroy_id(id));
	rdma_destroy_event_channel(ch);
}

/* ---- groups ---- */

static struct sockaddr_in group = {.sin_family = AF_INET};

/* A queue pair that is made when the join's event has been taken: the program attaches it, by what that said.
 * What was made for it comes back in *pd and *cq. */
static struct ibv_ah_attr join_and_attach(struct rdma_cm_id *id, uint32_t flags, struct ibv_pd **pd,
					  struct ibv_cq **cq)
{
	struct rdma_cm_join_mc_attr_ex attr = {.comp_mask = RDMA_CM_JOIN_MC_ATTR_ADDRESS |
							    RDMA_CM_JOIN_MC_ATTR_JOIN_FLAGS,
					       .join_flags = flags,
					       .addr = (struct sockaddr *)&group};
	struct ibv_ah_attr to;

	group.sin_addr.s_addr = inet_addr("239.19.40.1");
	KIT_CM(rdma_join_multicast_ex(id, &attr, NULL));
	to = kit_cm_expect(ch, RDMA_CM_EVENT_MULTICAST_JOIN, 0).ud.ah_attr;
	*pd = ibv_alloc_pd(id->verbs);
	*cq = ibv_create_cq(id->verbs, 2 * DEPTH, NULL, NULL, 0);
	CHECK(*pd && *cq);
	make_qp(id, *pd, *cq);
	CHECK(!ibv_attach_mcast(id->qp, &to.grh.dgid, to.dlid), "%s", strerror(errno));
	CHECK(ibv_destroy_qp(id->qp) == EBUSY);
	return to;
}

static void end(struct rdma_cm_id *id, struct ibv_pd *pd, struct ibv_cq *cq)
{
	rdma_destroy_qp(id);
	CHECK(!ibv_destroy_cq(cq) && !ibv_dealloc_pd(pd), "the queue pair is still there");
	KIT_CM(rdma_destroy_id(id));
	rdma_destroy_event_channel(ch);
}

static void leaving_detaches(void)
{
	struct rdma_cm_id *id = bound(RDMA_PS_UDP);
	struct ibv_ah_attr to;
	struct ibv_pd *pd;
	struct ibv_cq *cq;

	to = join_and_attach(id, RDMA_MC_JOIN_FLAG_FULLMEMBER, &pd, &cq);
	KIT_CM(rdma_leave_multicast(id, (struct sockaddr *)&group));
	CHECK(ibv_detach_mcast(id->qp, &to.grh.dgid, to.dlid) == EINVAL, "it is still attached");
	end(id, pd, cq);
}

/* Who only sends is not attached by rdma_cm: such an attachment is the program's affair. */
static void who_only_sends_detaches_itself(void)
{
	struct rdma_cm_id *id = bound(RDMA_PS_UDP);
	struct ibv_ah_attr to;
	struct ibv_pd *pd;
	struct ibv_cq *cq;

	to = join_and_attach(id, RDMA_MC_JOIN_FLAG_SENDONLY_FULLMEMBER, &pd, &cq);
	KIT_CM(rdma_leave_multicast(id, (struct sockaddr *)&group));
	CHECK(ibv_destroy_qp(id->qp) == EBUSY);
	CHECK(!ibv_detach_mcast(id->qp, &to.grh.dgid, to.dlid));
	end(id, pd, cq);
}

int main(int argc, char **argv)
{
	static const struct kit_case cases[] = {
	    {"one queue for both", one_queue_for_both, false, true},
	    {"one channel for both", one_channel_for_both, false, true},
	    {"leaving detaches", leaving_detaches, false, true},
	    {"who only sends detaches itself", who_only_sends_detaches_itself, false, true},
	};

	KIT_CASES(cases, 60);
	return 0;
}
