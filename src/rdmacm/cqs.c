/* Completion queues that rdma_cm makes where a program gives none (rdma_create_qp(3), rdma_create_srq(3)):
 * each has a channel of its own, for rdma_get_send_comp() and rdma_get_recv_comp(), and is shown in the id.
 * These inline calls of <rdma/rdma_verbs.h> assert that a queue's context is the id. */
#include <errno.h>

#include "rdmacm/rdmacm.h"

static int make(struct vb_rdma_id *p, uint32_t size, struct ibv_comp_channel **channel, struct ibv_cq **cq)
{
	int err;

	*channel = ibv_create_comp_channel(p->id.verbs);
	if (!*channel)
		return errno;
	*cq = ibv_create_cq(p->id.verbs, (int)size, &p->id, *channel, 0);
	if (*cq)
		return 0;
	err = errno;
	ibv_destroy_comp_channel(*channel);
	*channel = NULL;
	return err;
}

/* One that queue pairs of other ids still use ends with the last of them, and its channel with it. */
static void destroy(struct vb_rdma_id *p, struct ibv_comp_channel **channel, struct ibv_cq **cq)
{
	int err = *cq ? vb_cm_cq_abandon(*cq, &p->id) : 0;

	if (err && err != EINPROGRESS)
		return; /* the program's, and in use */
	*cq = NULL;
	if (*channel && !err)
		ibv_destroy_comp_channel(*channel);
	*channel = NULL;
}

int vb_rdma_cqs_make(struct vb_rdma_id *p, uint32_t send_size, uint32_t recv_size, struct vb_rdma_cqs *made)
{
	int err = 0;

	*made = (struct vb_rdma_cqs){0};
	if (recv_size) {
		err = make(p, recv_size, &p->id.recv_cq_channel, &p->id.recv_cq);
		made->recv = !err;
	}
	if (!err && send_size) {
		err = make(p, send_size, &p->id.send_cq_channel, &p->id.send_cq);
		made->send = !err;
	}
	if (err)
		vb_rdma_cqs_undo(p, *made);
	return err;
}

void vb_rdma_cqs_undo(struct vb_rdma_id *p, struct vb_rdma_cqs made)
{
	if (made.send)
		destroy(p, &p->id.send_cq_channel, &p->id.send_cq);
	if (made.recv)
		destroy(p, &p->id.recv_cq_channel, &p->id.recv_cq);
}

void vb_rdma_cqs_release(struct vb_rdma_id *p)
{
	if (p->id.qp)
		return;
	/* An XRC SRQ completes to the receive queue, so the last of both takes it along. */
	if (p->id.srq && p->id.qp_type == IBV_QPT_XRC_RECV)
		return;
	/* A program may have put one queue, or one channel, into both fields. */
	if (p->id.send_cq == p->id.recv_cq)
		p->id.send_cq = NULL;
	if (p->id.send_cq_channel == p->id.recv_cq_channel)
		p->id.send_cq_channel = NULL;
	destroy(p, &p->id.send_cq_channel, &p->id.send_cq);
	destroy(p, &p->id.recv_cq_channel, &p->id.recv_cq);
	destroy(p, &p->spare_channel, &p->spare_cq);
}
