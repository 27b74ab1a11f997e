/* What rdma_create_srq(3) and rdma_destroy_srq(3) promise, sentence by sentence (docs/memory.md has the
 * list): on ids of one process, and between two that have connected by rdma_cm. */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>

#include "ep.h"

enum { SIZE = 4096 };

/* The prototypes of the page: another one does not compile. */
static int (*const create)(struct rdma_cm_id *id, struct ibv_pd *pd,
			   struct ibv_srq_init_attr *attr) = rdma_create_srq;
static void (*const destroy)(struct rdma_cm_id *id) = rdma_destroy_srq;

static uint8_t mem[SIZE];

static struct ibv_srq_init_attr asks(uint32_t max_wr, uint32_t max_sge)
{
	return (struct ibv_srq_init_attr){.srq_context = mem, .attr = {.max_wr = max_wr, .max_sge = max_sge}};
}

static void make(struct rdma_cm_id *id, struct ibv_pd *pd)
{
	struct ibv_srq_init_attr attr = asks(16, 1);

	CHECK(create(id, pd, &attr) == 0 && id->srq, "%m");
}

static void refused(struct rdma_cm_id *id, struct ibv_pd *pd, struct ibv_srq_init_attr attr, const char *why)
{
	struct ibv_srq *before = id->srq;

	errno = 0;
	CHECK(create(id, pd, &attr) == -1 && errno == EINVAL, "%s: %m", why);
	KIT_LOG_SAYS("%s", why);
	CHECK(id->srq == before);
}

/* --- on one id */

static void the_id_shows_it(void)
{
	struct rdma_cm_id *id = kit_ep_bound(IBV_QPT_RC);
	struct ibv_srq_init_attr attr = asks(16, 1);

	CHECK(!id->srq);
	errno = ENOTTY;
	CHECK(create(id, NULL, &attr) == 0);
	CHECK_EQ(errno, ENOTTY);
	CHECK(id->srq && id->srq->context == id->verbs && id->srq->srq_context == mem);
	/* an ordinary one needs no completion queue: its QPs have theirs */
	CHECK(!id->recv_cq && !id->send_cq && !id->recv_cq_channel && !id->send_cq_channel);
	rdma_destroy_ep(id); /* which destroys it */
}

static void in_the_domain_that_is_given(void)
{
	struct rdma_cm_id *id = kit_ep_bound(IBV_QPT_RC);
	struct ibv_pd *pd = ibv_alloc_pd(id->verbs);

	CHECK(pd && pd != id->pd);
	make(id, pd);
	CHECK(id->srq->pd == pd);
	CHECK(ibv_dealloc_pd(pd) == EBUSY);
	destroy(id);
	CHECK(!ibv_dealloc_pd(pd));
	rdma_destroy_ep(id);
}

/* At the device's own address. */
static struct rdma_cm_id *bound_at(struct ibv_context *device)
{
	struct sockaddr_in addr = {.sin_family = AF_INET};
	struct rdma_cm_id *id;
	union ibv_gid gid;

	CHECK(!ibv_query_gid(device, 1, 0, &gid));
	memcpy(&addr.sin_addr, gid.raw + 12, 4);
	CHECK(!rdma_create_id(NULL, &id, NULL, RDMA_PS_TCP));
	CHECK(!rdma_bind_addr(id, (struct sockaddr *)&addr), "%m");
	CHECK(id->verbs == device);
	return id;
}

/* "One default protection domain is allocated per RDMA device": every id of it has the same. */
static void in_the_default_domain(void)
{
	struct ibv_context **devices;
	struct rdma_cm_id *id[3];
	int n;

	CHECK(!setenv("VERBENA_DEVICES", "2", 1));
	devices = rdma_get_devices(&n);
	CHECK(devices && n == 2, "%m");
	for (int i = 0; i < 3; i++) {
		id[i] = bound_at(devices[i / 2]);
		make(id[i], NULL);
		CHECK(id[i]->srq->pd == id[i]->pd);
	}
	CHECK(id[0]->pd == id[1]->pd && id[0]->srq != id[1]->srq && id[2]->pd != id[0]->pd);
	for (int i = 0; i < 3; i++) {
		destroy(id[i]);
		CHECK(!rdma_destroy_id(id[i]));
	}
	rdma_free_devices(devices);
}

/* What is written back is what there is: as many requests of as many elements can be posted, and no more. */
static void attributes(void)
{
	struct rdma_cm_id *id = kit_ep_bound(IBV_QPT_RC);
	struct ibv_srq_init_attr attr = asks(7, 3);
	struct ibv_srq_attr real;
	struct ibv_sge sge[4];
	struct ibv_mr *mr = rdma_reg_msgs(id, mem, SIZE);

	attr.attr.srq_limit = 5; /* is for ibv_modify_srq() */
	CHECK(!create(id, NULL, &attr) && !ibv_query_srq(id->srq, &real));
	CHECK(attr.attr.max_wr >= 7 && attr.attr.max_sge >= 3 && attr.srq_context == mem);
	CHECK(real.max_wr == attr.attr.max_wr && real.max_sge == attr.attr.max_sge && real.srq_limit == 0);
	CHECK_EQ(attr.attr.srq_limit, 0); /* what is there is written back */
	CHECK(mr && attr.attr.max_sge == 3);
	for (int i = 0; i < 4; i++)
		sge[i] = (struct ibv_sge){(uintptr_t)mem + 64 * (size_t)i, 64, mr->lkey};
	errno = 0;
	CHECK(rdma_post_recvv(id, NULL, sge, 4) == -1);
	CHECK_EQ(errno, EINVAL);
	for (uint32_t i = 0; i < attr.attr.max_wr; i++)
		CHECK(!rdma_post_recvv(id, NULL, sge, 3), "%u: %m", i);
	errno = 0;
	CHECK(rdma_post_recvv(id, NULL, sge, 3) == -1);
	CHECK_EQ(errno, ENOMEM);
	CHECK(!rdma_dereg_mr(mr));
	rdma_destroy_ep(id);
}

static void written_back_by_a_call_that_fails(void)
{
	struct rdma_cm_id *id = kit_ep_bound(IBV_QPT_RC);
	struct ibv_srq_init_attr attr = asks(UINT32_MAX, 3), before = attr;

	CHECK(create(id, NULL, &attr) == -1);
	CHECK_EQ(errno, EINVAL);
	CHECK(!id->srq);
	CHECK(!memcmp(&attr, &before, sizeof attr));
	attr.attr.max_wr = 8; /* nothing is left of the attempt */
	CHECK(!create(id, NULL, &attr) && attr.attr.max_wr >= 8);
	rdma_destroy_ep(id);
}

static void what_is_refused(void)
{
	struct sockaddr_in any = {.sin_family = AF_INET};
	struct rdma_cm_id *id, *bound = kit_ep_bound(IBV_QPT_RC);
	struct ibv_srq_init_attr_ex ex = {.attr = {.max_wr = 16, .max_sge = 1}};
	struct ibv_context *other = kit_open();
	struct ibv_pd *pd = ibv_alloc_pd(other);

	/* "The id must be bound to a local RDMA device" */
	CHECK(!rdma_create_id(NULL, &id, NULL, RDMA_PS_TCP));
	refused(id, NULL, asks(16, 1), "the id is not bound to a device");
	CHECK(!rdma_bind_addr(id, (struct sockaddr *)&any) && !id->verbs);
	refused(id, NULL, asks(16, 1), "the id is not bound to a device");
	CHECK(!rdma_destroy_id(id));
	/* "it must be for that same device" */
	CHECK(pd && other != bound->verbs);
	refused(bound, pd, asks(16, 1), "the protection domain belongs to another context than id->verbs");
	refused(bound, NULL, asks(UINT32_MAX, 1), "max_wr 4294967295 exceeds");
	refused(bound, NULL, asks(16, 1000), "max_sge 1000 exceeds");
	errno = 0;
	CHECK(rdma_create_srq_ex(bound, &ex) == -1);
	CHECK_EQ(errno, EINVAL);
	KIT_LOG_SAYS("comp_mask lacks IBV_SRQ_INIT_ATTR_TYPE");
	make(bound, NULL); /* and nothing of this has spoilt the id */
	rdma_destroy_ep(bound);
	CHECK(!ibv_dealloc_pd(pd) && !ibv_close_device(other));
}

/* "An rdma_cm_id may only be associated with a single SRQ". */
static void only_one(void)
{
	struct rdma_cm_id *id = kit_ep_bound(IBV_QPT_RC);
	struct ibv_mr *mr = rdma_reg_msgs(id, mem, SIZE);

	make(id, NULL);
	refused(id, NULL, asks(16, 1), "the id already has an SRQ");
	CHECK(!rdma_post_recv(id, NULL, mem, 64, mr));
	destroy(id);
	CHECK(!id->srq);
	make(id, NULL);
	CHECK(!rdma_post_recv(id, NULL, mem, 64, mr));
	CHECK(!rdma_dereg_mr(mr));
	rdma_destroy_ep(id);
}

/* "After being allocated, the SRQ will be ready to handle posting of receives": no QP is there yet. */
static void ready_at_once(void)
{
	struct rdma_cm_id *id = kit_ep_bound(IBV_QPT_RC);
	struct ibv_mr *mr = rdma_reg_msgs(id, mem, SIZE);

	make(id, NULL);
	CHECK(!id->qp);
	for (int i = 0; i < 16; i++)
		CHECK(!rdma_post_recv(id, NULL, mem, SIZE, mr), "%m");
	destroy(id);
	CHECK(!rdma_dereg_mr(mr));
	rdma_destroy_ep(id);
}

static void destroyed_and_made_again(void)
{
	struct rdma_cm_id *id = kit_ep_bound(IBV_QPT_RC);
	struct ibv_pd *pd = ibv_alloc_pd(id->verbs);

	for (int i = 0; i < 3; i++) {
		make(id, pd);
		CHECK(ibv_dealloc_pd(pd) == EBUSY);
		destroy(id);
		CHECK(!id->srq);
	}
	CHECK(!ibv_dealloc_pd(pd)); /* so none of the three is there any more */
	destroy(id);		    /* of an id that has none: nothing */
	rdma_destroy_ep(id);
}

/* "must be destroyed before destroying the rdma_cm_id": who does not has an SRQ that goes on, which is his.
 */
static void the_id_goes_first(void)
{
	struct rdma_cm_id *id = kit_ep_bound(IBV_QPT_RC);
	struct ibv_pd *pd = ibv_alloc_pd(id->verbs);
	struct ibv_srq *srq;
	struct ibv_srq_attr attr;

	make(id, pd);
	srq = id->srq;
	CHECK(!rdma_destroy_id(id));
	CHECK(!ibv_query_srq(srq, &attr) && attr.max_wr >= 16);
	CHECK(ibv_dealloc_pd(pd) == EBUSY);
	CHECK(!ibv_destroy_srq(srq) && !ibv_dealloc_pd(pd));
}

/* A new id whose queue pair receives from the SRQ of `of`. */
static struct rdma_cm_id *user_of(struct rdma_cm_id *of, struct ibv_pd *pd)
{
	struct rdma_cm_id *id = kit_ep_bound(IBV_QPT_RC);
	struct ibv_qp_init_attr attr = {
	    .srq = of->srq, .cap = {1, 1, 1, 1, 0}, .qp_type = IBV_QPT_RC, .sq_sig_all = 1};

	CHECK(!rdma_create_qp(id, pd, &attr), "%m");
	return id;
}

/* It is still there, and is no longer with the last queue pair, however that and the ids end. */
static void another_ids_queue_pair_keeps_it(void)
{
	for (int way = 0; way < 3; way++) {
		struct rdma_cm_id *id = kit_ep_bound(IBV_QPT_RC), *user;
		struct ibv_pd *pd = ibv_alloc_pd(id->verbs);
		struct ibv_srq *srq;

		make(id, pd);
		srq = id->srq;
		user = user_of(id, pd);
		destroy(id);
		CHECK(!id->srq);
		CHECK_EQ(ibv_destroy_srq(srq), EINVAL); /* it is the program's no more */
		KIT_LOG_SAYS("rdma_destroy_srq: 1 QP uses the SRQ");
		kit_log_skip();
		if (way == 0)
			CHECK_EQ(rdma_destroy_id(id), 0);
		CHECK_EQ(ibv_dealloc_pd(pd), EBUSY);
		KIT_LOG_SAYS("1 queue pair, 1 shared receive queue");
		kit_log_skip();
		if (way == 2) {
			CHECK_EQ(ibv_destroy_qp(user->qp), 0);
			user->qp = NULL;
		} else {
			rdma_destroy_qp(user);
		}
		CHECK_EQ(ibv_dealloc_pd(pd), 0);
		CHECK_EQ(rdma_destroy_id(user), 0);
		if (way != 0)
			CHECK_EQ(rdma_destroy_id(id), 0);
	}
}

static void several_that_are_kept(void)
{
	struct rdma_cm_id *id = kit_ep_bound(IBV_QPT_RC), *user[4];
	struct ibv_pd *pd = ibv_alloc_pd(id->verbs);

	for (int i = 0; i < 4; i++) {
		make(id, pd);
		user[i] = user_of(id, pd);
		if (i == 3) { /* this one has two users */
			struct ibv_qp_init_attr attr = {.cap = {1, 1, 1, 1, 0}, .qp_type = IBV_QPT_RC};

			CHECK(!rdma_create_qp(id, pd, &attr) && id->qp->srq == id->srq, "%m");
		}
		destroy(id);
	}
	for (int i = 0; i < 4; i++)
		rdma_destroy_ep(user[i]);
	CHECK_EQ(ibv_dealloc_pd(pd), EBUSY);
	rdma_destroy_ep(id);
	CHECK_EQ(ibv_dealloc_pd(pd), 0);
}

static int descriptors(void)
{
	DIR *dir = opendir("/proc/self/fd");
	int n = 0;

	CHECK(dir, "%m");
	while (readdir(dir))
		n++;
	closedir(dir);
	return n;
}

/* A program that uses what rdma_create_qp() has written back for the next id: its queue pair completes to the
 * completion queues of the first one. */
static void another_ids_queue_pair_keeps_the_queues(void)
{
	int before = 0, after;

	for (int i = 0; i < 20; i++) {
		struct ibv_qp_init_attr attr = {.cap = {1, 1, 1, 1, 0}, .qp_type = IBV_QPT_RC};
		struct rdma_cm_id *id = kit_ep_bound(IBV_QPT_RC), *user = kit_ep_bound(IBV_QPT_RC);
		struct ibv_cq *cq;
		struct ibv_wc wc;

		CHECK(!rdma_create_qp(id, NULL, &attr), "%m");
		cq = id->send_cq;
		CHECK(attr.send_cq == cq && attr.recv_cq == id->recv_cq);
		CHECK(!rdma_create_qp(user, NULL, &attr), "%m");
		rdma_destroy_qp(id);
		KIT_LOG_SAYS("rdma_destroy_qp: 1 work queue of other QPs or SRQs uses a CQ of the id");
		kit_log_skip();
		CHECK(!id->send_cq && !id->send_cq_channel && !id->recv_cq && !id->recv_cq_channel);
		CHECK_EQ(ibv_poll_cq(cq, 1, &wc), 0); /* it still works, */
		CHECK_EQ(ibv_destroy_cq(cq), EINVAL); /* and is no longer the program's */
		kit_log_skip();
		if (i % 2)
			CHECK_EQ(rdma_destroy_id(id), 0);
		rdma_destroy_qp(user);
		CHECK_EQ(rdma_destroy_id(user), 0);
		if (!(i % 2))
			CHECK_EQ(rdma_destroy_id(id), 0);
		after = descriptors();
		if (!i)
			before = after;
	}
	CHECK_EQ(after, before);
}

/* --- XRC: "If a completion queue, CQ, is not specified for the XRC SRQ, then a CQ will be allocated". */

static void xrc_queues_are_made(void)
{
	struct rdma_cm_id *id = kit_ep_bound(IBV_QPT_XRC_RECV);
	struct ibv_srq_init_attr attr = asks(9, 1);
	uint32_t number = 0;

	CHECK(!create(id, NULL, &attr), "%m");
	CHECK(id->srq && attr.attr.max_wr >= 9 && !ibv_get_srq_num(id->srq, &number) && number);
	/* "exposed to the user through the rdma_cm_id structure" */
	CHECK(id->recv_cq && id->recv_cq_channel && !id->send_cq && !id->send_cq_channel);
	CHECK(id->recv_cq->cq_context == id && id->recv_cq->channel == id->recv_cq_channel);
	CHECK(id->recv_cq->cqe >= 9 && id->recv_cq->context == id->verbs);
	CHECK(ibv_destroy_cq(id->recv_cq) == EBUSY); /* it is the SRQ's */
	rdma_destroy_ep(id);
}

static void nothing_stays(void)
{
	struct rdma_cm_id *id = kit_ep_bound(IBV_QPT_XRC_RECV);
	struct ibv_srq_init_attr attr;
	int descriptors;

	make(id, NULL); /* with the first one its domain is made */
	destroy(id);
	descriptors = kit_descriptors();
	for (int i = 0; i < 3; i++) {
		make(id, NULL);
		CHECK(kit_descriptors() == descriptors + 1); /* the channel */
		destroy(id);
		CHECK(!id->srq && !id->recv_cq && !id->recv_cq_channel);
		CHECK(kit_descriptors() == descriptors);
	}
	/* a call that fails, before and after the queue is made */
	attr = asks(INT_MAX, 1);
	CHECK(create(id, NULL, &attr) == -1);
	CHECK_EQ(errno, EINVAL);
	attr = asks(16, 1000);
	CHECK(create(id, NULL, &attr) == -1);
	CHECK_EQ(errno, EINVAL);
	CHECK(!id->srq && !id->recv_cq && !id->recv_cq_channel && kit_descriptors() == descriptors);
	make(id, NULL);
	rdma_destroy_ep(id);
	/* with the id's own channel, which was the last, the set by which channels are told, and its socket
	 */
	CHECK(kit_descriptors() == descriptors - 3);
}

static void xrc_with_a_queue_of_the_programs(void)
{
	struct rdma_cm_id *id = kit_ep_bound(IBV_QPT_XRC_RECV);
	struct ibv_cq *cq = ibv_create_cq(id->verbs, 16, NULL, NULL, 0);
	struct ibv_srq_init_attr_ex ex = {
	    .attr = {.max_wr = 16, .max_sge = 1},
	    .comp_mask = IBV_SRQ_INIT_ATTR_TYPE | IBV_SRQ_INIT_ATTR_CQ,
	    .srq_type = IBV_SRQT_XRC,
	    .cq = cq,
	};

	CHECK(cq && !rdma_create_srq_ex(id, &ex), "%m");
	CHECK(ex.cq == cq && ex.pd == id->pd && ex.xrcd && !id->recv_cq && !id->recv_cq_channel);
	CHECK(ibv_destroy_cq(cq) == EBUSY);
	destroy(id);
	CHECK(!ibv_destroy_cq(cq));
	rdma_destroy_ep(id);
}

/* --- between two processes */

static struct ibv_mr *mr;

/* The target's: an SRQ in a domain of its own, with receives in it, before there is a queue pair. */
static void equip(struct kit_pair *d, struct rdma_cm_id *id)
{
	struct kit_ep *c = kit_ep(d);
	struct ibv_qp_init_attr attr = c->attr;
	uint32_t number;

	c->pd = ibv_alloc_pd(id->verbs);
	CHECK(c->pd);
	make(id, c->pd);
	mr = ibv_reg_mr(c->pd, mem, SIZE, IBV_ACCESS_LOCAL_WRITE);
	CHECK(mr);
	for (int i = 0; i < 4; i++)
		CHECK(!rdma_post_recv(id, mem + 64 * i, mem + 64 * i, 64, mr), "%m");
	CHECK(!rdma_create_qp(id, c->pd, &attr), "%m");
	if (attr.qp_type == IBV_QPT_RC)
		CHECK(id->qp->srq == id->srq && attr.srq == id->srq && id->pd == c->pd);
	else if (!ibv_get_srq_num(id->srq, &number))
		atomic_store(&d->board->number[1], number);
}

/* in: which byte the message has.  The next completion of the id's. */
static void receive_there(struct kit_pair *d)
{
	struct ibv_wc wc = kit_ep_received(kit_ep(d)->id);

	CHECK(wc.byte_len == 8 && *(uint8_t *)(uintptr_t)wc.wr_id == d->board->in[0]);
}

static void message(struct kit_pair *d, uint8_t value)
{
	struct rdma_cm_id *id = kit_ep(d)->id;
	struct ibv_sge sge = {(uintptr_t)mem, 8, 0};
	struct ibv_send_wr wr = {.sg_list = &sge,
				 .num_sge = 1,
				 .opcode = IBV_WR_SEND,
				 .send_flags = IBV_SEND_INLINE,
				 .qp_type.xrc.remote_srqn = (uint32_t)atomic_load(&d->board->number[1])},
			   *bad;

	memset(mem, value, 8);
	CHECK(!ibv_post_send(id->qp, &wr, &bad));
	kit_ep_sent(id);
	d->board->in[0] = value;
	kit_duo_there(d, receive_there);
}

static void destroy_there(struct kit_pair *d)
{
	struct kit_ep *c = kit_ep(d);

	destroy(c->id);
	CHECK(!c->id->srq);
}

/* The queue pair goes, and what it kept. */
static void end_there(struct kit_pair *d)
{
	struct kit_ep *c = kit_ep(d);

	rdma_destroy_qp(c->id);
	if (c->id->srq)
		destroy(c->id);
	CHECK(!c->id->recv_cq && !c->id->recv_cq_channel);
	CHECK(!ibv_dereg_mr(mr) && !ibv_dealloc_pd(c->pd), "the SRQ is still in it");
}

static void equip_there(struct kit_pair *d)
{
	kit_ep(d)->equip = equip;
}

/* Of XRC rdma_get_recv_comp() waits at the queue and the channel that were made for the SRQ. */
static void queue_pairs_receive_from_it(struct kit_pair *d)
{
	kit_duo_there(d, equip_there);
	kit_ep_connect(d);
	for (uint8_t i = 1; i < 5; i++)
		message(d, i);
	kit_duo_there(d, end_there);
	kit_ep_disconnect(d);
}

/* Nothing is returned, so nothing can fail: an SRQ that a queue pair receives from goes with that. */
static void a_queue_pair_keeps_it(struct kit_pair *d)
{
	kit_duo_there(d, equip_there);
	kit_ep_connect(d);
	message(d, 1);
	kit_log_skip();
	kit_duo_there(d, destroy_there);
	KIT_LOG_SAYS("rdma_destroy_srq: 1 QP uses the SRQ");
	message(d, 2);
	kit_duo_there(d, end_there);
	kit_ep_disconnect(d);
}

int main(int argc, char **argv)
{
#define CASE(function)                             \
	{                                          \
		.name = #function, .run = function \
	}
	static const struct kit_case cases[] = {
	    CASE(the_id_shows_it),
	    CASE(in_the_domain_that_is_given),
	    CASE(in_the_default_domain),
	    CASE(attributes),
	    CASE(written_back_by_a_call_that_fails),
	    CASE(what_is_refused),
	    CASE(only_one),
	    CASE(ready_at_once),
	    CASE(destroyed_and_made_again),
	    CASE(the_id_goes_first),
	    CASE(another_ids_queue_pair_keeps_it),
	    CASE(several_that_are_kept),
	    CASE(another_ids_queue_pair_keeps_the_queues),
	    CASE(xrc_queues_are_made),
	    CASE(nothing_stays),
	    CASE(xrc_with_a_queue_of_the_programs),
	};
	static const struct {
		const char *name;
		enum ibv_qp_type type;
		void (*test)(struct kit_pair *);
	} pairs[] = {{"queue_pairs_receive_from_it", IBV_QPT_RC, queue_pairs_receive_from_it},
		     {"a_queue_pair_keeps_it", IBV_QPT_RC, a_queue_pair_keeps_it},
		     {"xrc_messages", IBV_QPT_XRC_SEND, queue_pairs_receive_from_it}};

	kit_log_begin("info");
	KIT_CASES(cases, 60);
	for (size_t i = 0; i < sizeof pairs / sizeof pairs[0]; i++)
		if (kit_asked(pairs[i].name, argc, argv))
			kit_ep_run_apart(pairs[i].name, pairs[i].type, pairs[i].test);
	return 0;
}
