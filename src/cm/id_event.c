/* What the protocol tells: from its happenings to states of ids, and to events for the program. */
#include <arpa/inet.h>
#include <errno.h>
#include <string.h>

#include "cm/id.h"

/* ---- requests ---- */

/* What came, whichever of the two it is. */
struct request {
	const struct vb_cm_event *e;
	struct vb_cm_id *listener;
	uint64_t service_id;
	bool wrapped;
	struct vb_cm_ip ip;
	enum ibv_qp_type type;
};

/* The addresses that the active end asked for, not those of the table that the packets have. */
static void address(struct vb_cm_id *id, const struct request *r)
{
	uint16_t port = (uint16_t)r->service_id;

	if (r->wrapped) {
		vb_cm_sock_of_ip(&r->ip, port, &id->src, &id->dst);
		return;
	}
	id->src.ss_family = id->dst.ss_family = AF_UNSPEC;
	vb_cm_sock_of_gid(&id->src, AF_IB, r->e->av->local_gid);
	vb_cm_sock_of_gid(&id->dst, AF_IB, r->e->av->remote_gid);
	vb_cm_sock_set_service(&id->src, r->service_id);
}

/* The device that the active end chose, by the GID of a REQ's path or else by the address that it asked for;
 * the engine's own where that one is not at work here.  A listener at all addresses hears for all devices by
 * one engine, so where a datagram came says nothing. */
static void locate(struct vb_cm_id *id, struct vb_cm_device *engine, const uint8_t *gid)
{
	struct vb_cm_device *d;
	struct vb_cm_local l;
	uint8_t address[16];

	id->device = engine;
	vb_cm_sock_gid((struct sockaddr *)&id->src, address);
	if ((!gid || vb_cm_below()->local(gid, &l)) && vb_cm_below()->local(address, &l))
		return;
	d = vb_cm_device_at(l.device);
	if (d)
		id->device = d;
	if (id->device->index != l.device)
		return;
	id->sgid_index = l.gid_index;
	memcpy(id->path.sgid.raw, l.gid, 16);
	id->path.slid = htons(l.lid);
}

/* The far end's path, turned round. */
static void path_of_req(struct vb_cm_id *id, const struct vb_cm_req *req)
{
	const struct vb_cm_path *p = &req->primary;
	bool infiniband = vb_cm_below()->infiniband();
	uint8_t t = p->local_ack_timeout;

	id->path = (struct ibv_sa_path_rec){
	    .dlid = infiniband ? htons(p->local_lid) : 0,
	    .slid = infiniband ? htons(p->remote_lid) : 0,
	    .flow_label = htonl(p->flow_label),
	    .hop_limit = p->hop_limit,
	    .traffic_class = p->traffic_class,
	    .reversible = 1,
	    .numb_path = 1,
	    .pkey = htons(req->pkey),
	    .sl = p->sl,
	    .mtu_selector = VB_CM_EXACTLY,
	    .mtu = req->path_mtu,
	    .rate_selector = VB_CM_EXACTLY,
	    .rate = p->rate,
	    .packet_life_time_selector = VB_CM_EXACTLY,
	    .packet_life_time = t ? (uint8_t)(t - 1) : 0,
	};
	memcpy(id->path.dgid.raw, p->local_gid, 16);
	memcpy(id->path.sgid.raw, p->remote_gid, 16);
}

/* A SIDR_REQ brings no path; the way back is the one that it came. */
static void path_of_av(struct vb_cm_id *id, const struct vb_cm_av *av, const struct vb_cm_device *d)
{
	bool infiniband = vb_cm_below()->infiniband();

	id->path = (struct ibv_sa_path_rec){
	    .dlid = infiniband ? htons(av->remote_lid) : 0,
	    .slid = infiniband ? htons(av->local_lid) : 0,
	    .flow_label = htonl(av->flow_label),
	    .hop_limit = av->hop_limit,
	    .traffic_class = av->traffic_class,
	    .reversible = 1,
	    .numb_path = 1,
	    .pkey = htons(av->pkey),
	    .sl = av->sl,
	    .mtu_selector = VB_CM_EXACTLY,
	    .mtu = d->mtu,
	    .rate_selector = VB_CM_EXACTLY,
	    .rate = d->rate,
	    .packet_life_time_selector = VB_CM_EXACTLY,
	    .packet_life_time = VB_CM_LIFE_TIME,
	};
	memcpy(id->path.dgid.raw, av->remote_gid, 16);
	memcpy(id->path.sgid.raw, av->local_gid, 16);
}

static void deal_of_req(struct vb_cm_id *id, const struct vb_cm_req *req)
{
	struct vb_cm_deal *d = &id->deal;

	id->asked = (struct vb_cm_depths){.responder_resources = req->responder_resources,
					  .initiator_depth = req->initiator_depth};
	d->known = true;
	d->remote_psn = req->psn;
	d->remote_qpn = req->qpn;
	/* until the program says what it grants */
	d->responder_resources = req->initiator_depth;
	d->initiator_depth = req->responder_resources;
	d->retry_count = req->retry_count;
	d->rnr_retry_count = req->rnr_retry_count;
	d->path_mtu = req->path_mtu;
	d->timeout = vb_cm_ack_timeout(id->device->ack_delay, id->path.packet_life_time);
	vb_cm_ah_of_req(&d->ah, &req->primary, id->sgid_index, vb_cm_below()->infiniband());
}

/* The new connection's id; NULL: no memory. */
static struct vb_cm_id *make(struct vb_cm_conn *c, const struct request *r)
{
	const struct vb_cm_msg *m = r->e->msg;
	struct vb_cm_id *l = r->listener, *id;

	id = vb_cm_id_make(l->channel, NULL, l->ps, r->type);
	if (!id)
		return NULL;
	id->passive = true;
	if (vb_cm_items_reserve(id, VB_CM_SPARE)) {
		vb_cm_id_undo(id);
		vb_cm_unshow(id);
		vb_cm_id_free(id);
		return NULL;
	}
	id->state = VB_ID_REQUESTED;
	id->conn = c;
	id->afonly = l->afonly;
	address(id, r);
	if (m->kind == VB_CM_REQ) {
		path_of_req(id, &m->req);
		locate(id, vb_cm_user(c->cm), m->req.primary.remote_gid);
		deal_of_req(id, &m->req);
	} else {
		path_of_av(id, r->e->av, vb_cm_user(c->cm));
		locate(id, vb_cm_user(c->cm), NULL);
	}
	if (l->ack_set) {
		id->ack_set = true;
		id->ack_timeout = l->ack_timeout;
	}
	return id;
}

static void announce(struct vb_cm_id *id, const struct request *r, struct vb_cm_item *it)
{
	const struct vb_cm_msg *m = r->e->msg;

	it->news.fresh = id;
	it->news.ud = m->kind == VB_CM_SIDR_REQ;
	if (m->kind == VB_CM_REQ) {
		vb_cm_news_of_req(&it->news.conn, &m->req);
		it->news.ece = (struct ibv_ece){.vendor_id = m->req.vendor_id, .options = m->modifier};
	}
	vb_cm_news_data(&it->news, vb_cm_unwrap(m, r->wrapped));
	r->listener->waiting++;
	vb_cm_item_post(it);
}

/* false: the request is dropped as if it had been lost, and asked again; or it has been answered with a REJ.
 */
static bool request(struct vb_cm_conn *c, const struct vb_cm_event *e)
{
	const struct vb_cm_msg *m = e->msg;
	bool sidr = m->kind == VB_CM_SIDR_REQ;
	struct request r = {.e = e,
			    .listener = c->listener->user,
			    .service_id = sidr ? m->sidr_req.service_id : m->req.service_id};
	uint64_t now = vb_cm_below()->now();
	int type = sidr ? (int)IBV_QPT_UD : vb_cm_type_of_req(&m->req);
	struct vb_cm_item *it;
	struct vb_cm_id *id;

	if (type != (int)r.listener->type) {
		if (!sidr)
			(void)vb_cm_rej(c, VB_CM_REJ_INVALID_SERVICE_TYPE, NULL, 0,
					&(struct vb_cm_private){0}, now);
		return false;
	}
	r.type = (enum ibv_qp_type)type;
	r.wrapped = r.listener->src.ss_family != AF_IB;
	if (r.wrapped && vb_cm_ip_get(m->private_data.at, &r.ip))
		return false;
	if (r.listener->waiting >= r.listener->backlog)
		return false;
	it = vb_cm_item_new(r.listener, RDMA_CM_EVENT_CONNECT_REQUEST, 0);
	id = it ? make(c, &r) : NULL;
	if (!id) {
		if (it)
			vb_list_append(&r.listener->spare, &it->on_id);
		return false;
	}
	c->user = id;
	announce(id, &r, it);
	if (!sidr) /* the program may take its time */
		(void)vb_cm_mra(c, VB_CM_MRA_CODE | VB_CM_MRA_LAZY, now);
	return true;
}

/* ---- answers ---- */

static void answered(struct vb_cm_id *id, const struct vb_cm_msg *m)
{
	struct vb_cm_deal *d = &id->deal;
	struct vb_cm_depths left;
	struct vb_cm_item *it;

	if (id->state != VB_ID_CONNECTING)
		return;
	vb_cm_depths_settle(&id->asked, &m->rep, &left);
	d->known = true;
	d->remote_psn = m->rep.psn;
	d->remote_qpn = id->type == IBV_QPT_XRC_SEND ? m->rep.eecn : m->rep.qpn;
	d->responder_resources = left.responder_resources;
	d->initiator_depth = left.initiator_depth;
	d->rnr_retry_count = m->rep.rnr_retry_count;
	d->path_mtu = id->path.mtu;
	d->timeout = vb_cm_ack_timeout(m->rep.target_ack_delay, id->path.packet_life_time);
	vb_cm_ah_of_path(&d->ah, &id->path, id->sgid_index, vb_cm_below()->infiniband());
	if (id->qpn && !d->remote_qpn)
		vb_cm_id_why_no_qp(id);
	it = vb_cm_item_new(id, RDMA_CM_EVENT_CONNECT_RESPONSE, 0);
	if (!it) /* not so while there are spare ones; the REP comes again */
		return;
	id->state = VB_ID_ANSWERED;
	vb_cm_news_of_rep(&it->news.conn, &m->rep, id->type);
	it->news.ece = (struct ibv_ece){.vendor_id = m->rep.vendor_id, .options = m->modifier};
	vb_cm_news_data(&it->news, m->private_data);
	vb_cm_item_post(it);
	/* said if the REP comes again, for a program that takes its time */
	(void)vb_cm_mra(id->conn, VB_CM_MRA_CODE | VB_CM_MRA_LAZY, vb_cm_below()->now());
}

/* Who is gone, and what is said of it. */
struct gone {
	const struct vb_whom *who; /* incarnation 0: any */
	const char *why;
};

static const char *why_gone(const struct vb_cm_event *e)
{
	return e->gone ? ((const struct gone *)e->gone)->why : NULL;
}

static void fail(struct vb_cm_id *id, enum rdma_cm_event_type event, int status)
{
	id->state = VB_ID_FAILED;
	id->failed_by = event;
	id->failed_status = status;
}

static void sidr_answered(struct vb_cm_id *id, const struct vb_cm_event *e)
{
	const struct vb_cm_msg *m = e->msg;
	bool good = m->sidr_rep.status == VB_CM_SIDR_SUCCESS;
	struct vb_cm_item *it;

	if (id->state != VB_ID_CONNECTING)
		return;
	if (good)
		id->state = VB_ID_CONNECTED;
	else
		fail(id, RDMA_CM_EVENT_UNREACHABLE, m->sidr_rep.status);
	vb_cm_id_why_sidr(id, m->sidr_rep.status, why_gone(e));
	it = vb_cm_item_new(id, good ? RDMA_CM_EVENT_ESTABLISHED : RDMA_CM_EVENT_UNREACHABLE,
			    m->sidr_rep.status);
	if (!it)
		return;
	if (good && id->qpn && !m->sidr_rep.qpn)
		vb_cm_id_why_no_qp(id);
	if (good) {
		it->news.ud_param.qp_num = m->sidr_rep.qpn;
		it->news.ud_param.qkey = m->sidr_rep.qkey;
		vb_cm_ah_of_path(&it->news.ud_param.ah_attr, &id->path, id->sgid_index,
				 vb_cm_below()->infiniband());
		it->news.ece = (struct ibv_ece){.vendor_id = m->sidr_rep.vendor_id, .options = m->modifier};
	}
	vb_cm_news_data(&it->news, m->private_data);
	vb_cm_item_post(it);
}

/* ---- ends ---- */

static bool is_connected(const struct vb_cm_id *id)
{
	return id->state == VB_ID_CONNECTED || id->state == VB_ID_ACCEPTED;
}

static void disconnected(struct vb_cm_id *id, int status)
{
	if (!is_connected(id))
		return;
	id->state = VB_ID_DISCONNECTED;
	vb_cm_id_say(id, RDMA_CM_EVENT_DISCONNECTED, status);
}

static bool is_being_made(const struct vb_cm_id *id)
{
	return id->state >= VB_ID_CONNECTING && id->state <= VB_ID_ACCEPTED;
}

/* What was a connection is over all the same, for whichever reason. */
static void rejected(struct vb_cm_id *id, const struct vb_cm_event *e)
{
	uint16_t reason = e->msg->rej.reason;
	struct vb_cm_item *it;

	if (is_being_made(id) || is_connected(id))
		vb_cm_id_why_rejected(id, reason, why_gone(e));
	if (!is_being_made(id)) {
		disconnected(id, 0);
		return;
	}
	fail(id, RDMA_CM_EVENT_REJECTED, reason);
	it = vb_cm_item_new(id, RDMA_CM_EVENT_REJECTED, reason);
	if (!it)
		return;
	vb_cm_news_data(&it->news, e->msg->private_data);
	vb_cm_item_post(it);
}

static void unreached(struct vb_cm_id *id, const struct vb_cm_event *e)
{
	if (!is_being_made(id))
		return;
	fail(id, RDMA_CM_EVENT_UNREACHABLE, -ETIMEDOUT);
	vb_cm_id_why_unanswered(id, RDMA_CM_EVENT_UNREACHABLE, e->about, e->said);
	vb_cm_id_say(id, RDMA_CM_EVENT_UNREACHABLE, -ETIMEDOUT);
}

static void established(struct vb_cm_id *id)
{
	if (id->state != VB_ID_ACCEPTED)
		return;
	id->state = VB_ID_CONNECTED;
	vb_cm_id_say(id, RDMA_CM_EVENT_ESTABLISHED, 0);
}

bool vb_cm_ids_event(struct vb_cm_conn *c, const struct vb_cm_event *e)
{
	struct vb_cm_id *id = c->user;

	vb_lock_assert_held(&vb_cm_ids_lock);
	switch (e->what) {
	case VB_CM_EV_REQ:
	case VB_CM_EV_SIDR_REQ:
		return request(c, e);
	case VB_CM_EV_REP:
		answered(id, e->msg);
		break;
	case VB_CM_EV_SIDR_REP:
		sidr_answered(id, e);
		break;
	case VB_CM_EV_RTU:
		established(id);
		break;
	case VB_CM_EV_REJ:
		rejected(id, e);
		break;
	case VB_CM_EV_UNREACHED:
		unreached(id, e);
		break;
	case VB_CM_EV_DREQ:
		disconnected(id, 0);
		break;
	case VB_CM_EV_DREP:
		if (e->timed_out && is_connected(id))
			vb_cm_id_why_unanswered(id, RDMA_CM_EVENT_DISCONNECTED, VB_CM_DREQ, e->said);
		disconnected(id, e->timed_out ? -ETIMEDOUT : 0);
		break;
	case VB_CM_EV_TIMEWAIT_OVER:
		if (id->state == VB_ID_DISCONNECTED)
			vb_cm_id_say(id, RDMA_CM_EVENT_TIMEWAIT_EXIT, 0);
		break;
	}
	return true;
}

void vb_cm_ids_changed(struct vb_cm_conn *c)
{
	if (c->user)
		vb_cm_show(c->user);
}

/* ---- a process that is gone ---- */

static bool is_gone(const struct vb_cm_conn *c, void *arg)
{
	const struct vb_whom *gone = ((const struct gone *)arg)->who, *with = &c->av.whom;
	bool known = with->number == gone->number && with->incarnation && gone->incarnation;

	return vb_cm_far(c).number == gone->number && (!known || with->incarnation == gone->incarnation);
}

void vb_cm_ids_gone(struct vb_cm_device *d, const struct vb_whom *who, const char *why)
{
	struct gone gone = {who, why};

	vb_cm_ids_enter();
	if (!d->lost)
		vb_cm_gone(d->cm, is_gone, &gone, vb_cm_below()->now());
	vb_cm_ids_leave();
}
