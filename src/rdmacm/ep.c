/* Endpoints: rdma_create_ep(3), which does the first steps of both ends at once, and rdma_get_request(3). */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "rdmacm/call.h"
#include "rdmacm/rdmacm.h"

static const char call[] = "rdma_create_ep";

enum { TIMEOUT_MS = 2000 }; /* for address and route each, as rdma-core has it */

void vb_rdma_ep_free(struct vb_rdma_id *p)
{
	free(p->qp_attr);
	free(p->connect);
}

/* Bound; the queue pair's attributes are for the connections that rdma_get_request() returns. */
static int passive(struct vb_rdma_id *p, const struct rdma_addrinfo *res, struct ibv_pd *pd,
		   const struct ibv_qp_init_attr *attr)
{
	int err = vb_rdma_id_bind(p, call, res->ai_src_addr);

	if (err)
		return err;
	if (pd)
		p->id.pd = pd;
	if (!attr)
		return 0;
	p->qp_attr = malloc(sizeof *attr);
	if (!p->qp_attr)
		return ENOMEM;
	*p->qp_attr = *attr;
	p->qp_attr->qp_type = (enum ibv_qp_type)res->ai_qp_type;
	return 0;
}

static int resolve_route(struct vb_rdma_id *p, const struct rdma_addrinfo *res)
{
	bool sync = p->sync;
	int err;

	if (res->ai_route_len) /* which resolves it, too: the event is the same */
		err = vb_cm_id_option(p->cm, RDMA_OPTION_IB, RDMA_OPTION_IB_PATH, res->ai_route,
				      res->ai_route_len);
	else
		err = vb_cm_id_resolve_route(p->cm, TIMEOUT_MS);
	return err ? err : vb_rdma_id_complete(p, sync);
}

/* Ready for rdma_connect(). */
static int active(struct vb_rdma_id *p, const struct rdma_addrinfo *res, struct ibv_pd *pd,
		  struct ibv_qp_init_attr *attr)
{
	int err = vb_rdma_id_resolve_addr(p, call, res->ai_src_addr, res->ai_dst_addr, TIMEOUT_MS);

	if (!err)
		err = resolve_route(p, res);
	if (!err && attr) {
		attr->qp_type = (enum ibv_qp_type)res->ai_qp_type;
		err = vb_rdma_qp_create_plain(p, call, pd, attr);
	}
	if (err || !res->ai_connect_len)
		return err;
	p->connect = malloc(res->ai_connect_len);
	if (!p->connect)
		return ENOMEM;
	memcpy(p->connect, res->ai_connect, res->ai_connect_len);
	p->connect_len = res->ai_connect_len;
	return 0;
}

static void destroy(struct vb_rdma_id *p)
{
	if (p->id.qp)
		vb_rdma_qp_destroy(p);
	if (p->id.srq)
		vb_rdma_srq_destroy(p);
	vb_rdma_id_unmake(p);
}

VB_EXPORT VB_RDMA_CALL(rdma_create_ep, (id, res, pd, qp_init_attr), struct rdma_cm_id **id,
		       struct rdma_addrinfo *res, struct ibv_pd *pd, struct ibv_qp_init_attr *qp_init_attr)
{
	struct vb_rdma_id *p;
	int err = vb_rdma_id_make(&p, NULL, NULL, (enum rdma_port_space)res->ai_port_space,
				  (enum ibv_qp_type)res->ai_qp_type, NULL);

	if (err)
		return err;
	err = res->ai_flags & RAI_PASSIVE ? passive(p, res, pd, qp_init_attr)
					  : active(p, res, pd, qp_init_attr);
	if (err) {
		destroy(p);
	} else {
		vb_cm_object_enter(p, VB_CM_OBJECT_ID);
		*id = &p->id;
	}
	return err;
}

VB_EXPORT VB_RDMA_NOTHING(rdma_destroy_ep, (id), struct rdma_cm_id *id)
{
	if (!vb_cm_object_leave("rdma_destroy_ep", id, VB_CM_OBJECT_ID))
		destroy(vb_rdma_id(id));
}

/* The queue pair of a connection on a listener that was made with attributes for it. */
static int equip(const struct vb_rdma_id *listener, struct vb_rdma_id *p)
{
	struct ibv_qp_init_attr attr;
	struct ibv_pd *pd = listener->id.pd; /* a wildcard listener without one is on no device */

	if (!listener->qp_attr)
		return 0;
	attr = *listener->qp_attr;
	return vb_rdma_qp_create_plain(p, "rdma_get_request", pd, &attr);
}

VB_EXPORT VB_RDMA_CALL(rdma_get_request, (listen, id), struct rdma_cm_id *listen, struct rdma_cm_id **id)
{
	static const char get[] = "rdma_get_request";
	struct vb_rdma_id *listener = vb_rdma_id(listen), *p;
	struct rdma_cm_event *event;
	char name[24];
	int err;

	if (!listener->sync)
		return vb_cm_refuse(EINVAL, get,
				    "the listener has an event channel; call rdma_get_cm_event() instead");
	vb_rdma_id_ack(listener);
	err = vb_rdma_event_get(vb_rdma_channel(listen->channel), &event);
	if (err)
		return err;
	if (event->status || event->event != RDMA_CM_EVENT_CONNECT_REQUEST) {
		listen->event = event; /* for the program to see */
		return vb_cm_refuse(event->status < 0 ? -event->status : EINVAL, get,
				    "the listener got %s, status %d, instead of a connection request",
				    vb_rdma_event_name(event->event, name), event->status);
	}
	p = vb_rdma_id(event->id);
	p->id.event = event; /* until accept, reject or destroy */
	err = equip(listener, p);
	if (err) { /* whoever asked is refused, as by rdma_destroy_id() */
		vb_cm_object_leave(get, p, VB_CM_OBJECT_ID);
		destroy(p);
		return err;
	}
	*id = &p->id;
	return 0;
}
