/* Connecting, accepting and ending: from the program's calls to the protocol's. */
#include <arpa/inet.h>
#include <errno.h>
#include <string.h>

#include "base/log.h"
#include "cm/id.h"
#include "iba/qp_state.h"

static const struct vb_cm_private nothing;

enum { MOST_RETRIES = 7, FLOW_CONTROL_LATER = 1 };

static uint8_t at_most_7(uint8_t n)
{
	return n > MOST_RETRIES ? MOST_RETRIES : n;
}

/* Linux counts it the same way. */
static void note_retries(const char *call, const char *field, uint8_t n)
{
	if (n > MOST_RETRIES)
		vb_log(VB_LOG_INFO,
		       "%s: rdma_conn_param.%s is %u: %d is used, the maximum of its 3-bit field", call,
		       field, n, MOST_RETRIES);
}

/* The engine has another deadline. */
static int done(struct vb_cm_id *id, int err)
{
	if (id->conn)
		vb_cm_below()->due(vb_cm_user(id->conn->cm));
	vb_cm_ids_leave();
	return err;
}

/* vb_cm_wrap(), and why not. */
static int wrap(const char *call, uint16_t kind, const struct vb_cm_ip *ip, const void *data, size_t len,
		uint8_t buf[VB_CM_PRIVATE_MAX], struct vb_cm_private *out)
{
	char name[32];

	if (!vb_cm_wrap(kind, ip, data, len, buf, out))
		return 0;
	return vb_refuse(EINVAL, call,
			 "%zu bytes of private data exceed the limit of a %s message, %zu bytes", len,
			 vb_cm_kind_name(kind, name), vb_cm_private_room(kind) - (ip ? VB_CM_IP_LEN : 0));
}

static int refuse_depths(const char *call, const struct vb_cm_param *p, const struct vb_cm_device *d)
{
	return vb_refuse(EINVAL, call,
			 "responder_resources %u or initiator_depth %u exceeds the device's limit of %u",
			 p->responder_resources, p->initiator_depth, d->max_rd_atomic);
}

static uint64_t now(void)
{
	return vb_cm_below()->now();
}

/* The header in front of the program's bytes; AF_IB has none, since its addresses are those of the paths. */
static const struct vb_cm_ip *header(const struct vb_cm_id *id, struct vb_cm_ip *ip)
{
	if (id->dst.ss_family == AF_IB)
		return NULL;
	vb_cm_sock_ip(ip, (const struct sockaddr *)&id->src, (const struct sockaddr *)&id->dst);
	return ip;
}

/* ---- the active end ---- */

static void make_req(struct vb_cm_id *id, const struct vb_cm_param *p, struct vb_cm_req *req)
{
	*req = (struct vb_cm_req){
	    .vendor_id = p->ece.vendor_id,
	    .service_id = vb_cm_sock_service((const struct sockaddr *)&id->dst, id->ps),
	    .qpn = p->qp_num,
	    .initiator_depth = id->asked.initiator_depth,
	    .responder_resources = id->asked.responder_resources,
	    .retry_count = at_most_7(p->retry_count),
	    .rnr_retry_count = at_most_7(p->rnr_retry_count),
	    .srq = p->srq != 0,
	    .remote_response_timeout = VB_CM_RESPONSE_CODE,
	    .local_response_timeout = VB_CM_RESPONSE_CODE,
	    .max_cm_retries = VB_CM_RETRIES,
	    .flow_control = p->flow_control & FLOW_CONTROL_LATER,
	    .psn = id->deal.local_psn,
	    .pkey = ntohs(id->path.pkey),
	    .path_mtu = id->path.mtu,
	};
	vb_cm_req_set_type(req, id->type);
	vb_cm_req_path(&req->primary, &id->path,
		       id->ack_set ? id->ack_timeout
				   : vb_cm_ack_timeout(id->device->ack_delay, id->path.packet_life_time));
}

static int send_req(struct vb_cm_id *id, const struct vb_cm_param *p)
{
	uint8_t buf[VB_CM_PRIVATE_MAX];
	struct vb_cm_private data;
	struct vb_cm_req req;
	struct vb_cm_av av;
	struct vb_cm_ip ip;
	int err;

	err = wrap("rdma_connect", VB_CM_REQ, header(id, &ip), p->private_data, p->private_len, buf, &data);
	if (err)
		return err;
	if (vb_cm_depths_ask(p, id->device->max_rd_atomic, &id->asked))
		return refuse_depths("rdma_connect", p, id->device);
	note_retries("rdma_connect", "retry_count", p->retry_count);
	note_retries("rdma_connect", "rnr_retry_count", p->rnr_retry_count);
	make_req(id, p, &req);
	id->deal.retry_count = at_most_7(p->retry_count);
	id->deal.responder_resources = req.responder_resources;
	id->conn->ece_options = p->ece.options;
	vb_cm_av_of_path(&av, &id->path);
	return vb_cm_req(id->conn, &av, &req, &data, now());
}

static int send_sidr_req(struct vb_cm_id *id, const struct vb_cm_param *p)
{
	struct vb_cm_sidr_req req = {.pkey = ntohs(id->path.pkey),
				     .service_id =
					 vb_cm_sock_service((const struct sockaddr *)&id->dst, id->ps)};
	uint8_t buf[VB_CM_PRIVATE_MAX];
	struct vb_cm_private data;
	struct vb_cm_av av;
	struct vb_cm_ip ip;
	int err;

	err = wrap("rdma_connect", VB_CM_SIDR_REQ, header(id, &ip), p->private_data, p->private_len, buf,
		   &data);
	if (err)
		return err;
	vb_cm_av_of_path(&av, &id->path);
	return vb_cm_sidr_req(id->conn, &av, &req, VB_CM_RESPONSE_CODE, VB_CM_RETRIES, &data, now());
}

/* The program's own queue pair: an id's is known already. */
static void connects(struct vb_cm_device *d, uint32_t qpn)
{
	if (d && qpn && vb_cm_below()->connects)
		vb_cm_below()->connects(d, qpn, false, false);
}

void vb_cm_id_has_qp(struct vb_cm_id *id, uint32_t qpn)
{
	struct vb_cm_device *d;
	bool late;

	if (vb_cm_id_hold(id, "rdma_create_qp"))
		return;
	d = id->device; /* which stays */
	late = id->state == VB_ID_CONNECTING || id->state == VB_ID_ANSWERED || id->state == VB_ID_ACCEPTED ||
	       id->state == VB_ID_CONNECTED;
	vb_cm_ids_leave();
	if (d && vb_cm_below()->connects)
		vb_cm_below()->connects(d, qpn, true, late);
}

int vb_cm_id_connect(struct vb_cm_id *id, const struct vb_cm_param *p)
{
	int err = vb_cm_id_enter(id, VB_ID_CALL_CONNECT);
	struct vb_cm_device *d;

	if (err)
		return err;
	d = id->device; /* which stays, unlike the id: another thread may have its events */
	err = ENOMEM;
	if (id->type == IBV_QPT_XRC_RECV)
		err = vb_refuse(EINVAL, "rdma_connect",
				"an id of type IBV_QPT_XRC_RECV cannot connect: it only accepts connections");
	else if (!vb_cm_items_reserve(id, VB_CM_SPARE))
		id->conn = vb_cm_new(id->device->cm, id);
	if (!id->conn) {
		vb_cm_ids_leave();
		return err == ENOMEM ? vb_refuse(err, "rdma_connect", "out of memory, or no comm ID is free")
				     : err;
	}
	id->qpn = p->qp_num;
	id->srq = p->srq != 0;
	vb_cm_channel_expect(id->channel, id->device);
	err = id->type == IBV_QPT_UD ? send_sidr_req(id, p) : send_req(id, p);
	if (!err) {
		id->state = VB_ID_CONNECTING;
		done(id, 0);
		connects(d, p->qp_num);
		return 0;
	}
	vb_cm_end(id->conn, now());
	id->conn = NULL;
	return done(id, err);
}

int vb_cm_id_establish(struct vb_cm_id *id)
{
	int err = vb_cm_id_enter(id, VB_ID_CALL_ESTABLISH);

	if (err)
		return err;
	err = vb_cm_rtu(id->conn, &nothing, now());
	if (!err)
		id->state = VB_ID_CONNECTED;
	return done(id, err);
}

/* ---- the passive end ---- */

static void make_rep(struct vb_cm_id *id, const struct vb_cm_param *p, struct vb_cm_rep *rep)
{
	*rep = (struct vb_cm_rep){
	    .vendor_id = p->ece.vendor_id,
	    .qpn = p->qp_num,
	    .psn = id->deal.local_psn,
	    .srq = p->srq != 0,
	    .responder_resources = id->deal.responder_resources,
	    .initiator_depth = id->deal.initiator_depth,
	    .target_ack_delay = id->device->ack_delay,
	    .failover_accepted = VB_CM_FAILOVER_UNSUPPORTED,
	    .flow_control = p->flow_control & FLOW_CONTROL_LATER,
	    /* of XRC's targets too, unlike the kernel, whose initiators give up at the first RNR NAK */
	    .rnr_retry_count = at_most_7(p->rnr_retry_count),
	};
}

/* What the program gives for the REP. */
static int check_rep(const struct vb_cm_id *id, const struct vb_cm_param *p, uint8_t buf[VB_CM_PRIVATE_MAX],
		     struct vb_cm_private *data, struct vb_cm_depths *granted)
{
	int err = wrap("rdma_accept", VB_CM_REP, NULL, p->private_data, p->private_len, buf, data);

	if (!err && vb_cm_depths_grant(p, id->device->max_rd_atomic, &id->asked, granted))
		err = refuse_depths("rdma_accept", p, id->device);
	return err;
}

static int send_rep(struct vb_cm_id *id, const struct vb_cm_param *p)
{
	uint8_t buf[VB_CM_PRIVATE_MAX];
	struct vb_cm_depths granted;
	struct vb_cm_private data;
	struct vb_cm_rep rep;
	int err = check_rep(id, p, buf, &data, &granted);

	if (err)
		return err;
	id->deal.responder_resources = granted.responder_resources;
	id->deal.initiator_depth = granted.initiator_depth;
	note_retries("rdma_accept", "rnr_retry_count", p->rnr_retry_count);
	make_rep(id, p, &rep);
	id->conn->ece_options = p->ece.options;
	return vb_cm_rep(id->conn, &rep, &data, now());
}

static int send_sidr_rep(struct vb_cm_id *id, uint8_t status, const struct vb_cm_param *p)
{
	struct vb_cm_sidr_rep rep = {.status = status};
	uint8_t buf[VB_CM_PRIVATE_MAX];
	struct vb_cm_private data;
	int err;

	err = wrap(status ? "rdma_reject" : "rdma_accept", VB_CM_SIDR_REP, NULL, p->private_data,
		   p->private_len, buf, &data);
	if (err)
		return err;
	rep.service_id = vb_cm_sock_service((const struct sockaddr *)&id->src, id->ps);
	if (status == VB_CM_SIDR_SUCCESS) {
		if (p->qkey)
			id->qkey = p->qkey;
		rep.qpn = p->qp_num;
		rep.qkey = id->qkey;
		rep.vendor_id = p->ece.vendor_id;
		id->conn->ece_options = p->ece.options;
	}
	return vb_cm_sidr_rep(id->conn, &rep, &data, now());
}

int vb_cm_id_may_accept(struct vb_cm_id *id, const struct vb_cm_param *p)
{
	uint8_t buf[VB_CM_PRIVATE_MAX];
	struct vb_cm_depths granted;
	struct vb_cm_private data;
	int err = vb_cm_id_enter(id, VB_ID_CALL_ACCEPT);

	if (err)
		return err;
	err = check_rep(id, p, buf, &data, &granted);
	vb_cm_ids_leave();
	return err;
}

int vb_cm_id_accept(struct vb_cm_id *id, const struct vb_cm_param *p, void *user)
{
	int err = vb_cm_id_enter(id, VB_ID_CALL_ACCEPT);
	struct vb_cm_device *d;

	if (err)
		return err;
	d = id->device;
	if (id->type == IBV_QPT_UD) {
		err = send_sidr_rep(id, VB_CM_SIDR_SUCCESS, p);
		if (!err) /* an exchange, and no connection: nothing more comes (rdma_get_cm_event(3)) */
			id->state = VB_ID_CONNECTED;
	} else {
		vb_cm_channel_expect(id->channel, id->device);
		err = send_rep(id, p);
		if (!err)
			id->state = VB_ID_ACCEPTED;
		if (!err && !p->qp_num && id->deal.remote_qpn)
			vb_cm_id_why_no_qp_here(id);
	}
	if (!err) {
		id->user = user;
		id->qpn = p->qp_num;
		id->srq = p->srq != 0;
	}
	done(id, err);
	if (!err)
		connects(d, p->qp_num);
	return err;
}

/* ---- ends ---- */

static int send_rej(struct vb_cm_id *id, const void *data, uint8_t len, uint8_t reason)
{
	uint8_t buf[VB_CM_PRIVATE_MAX];
	struct vb_cm_private private;
	int err = wrap("rdma_reject", VB_CM_REJ, NULL, data, len, buf, &private);

	return err ? err : vb_cm_rej(id->conn, reason, NULL, 0, &private, now());
}

int vb_cm_id_reject(struct vb_cm_id *id, const void *private_data, uint8_t len, uint8_t reason)
{
	struct vb_cm_param p = {.private_data = private_data, .private_len = len};
	int err;

	if (!reason)
		reason = VB_CM_REJ_CONSUMER;
	if (reason != VB_CM_REJ_CONSUMER && reason != VB_CM_REJ_VENDOR_OPTION)
		return vb_refuse(EINVAL, "rdma_reject", "reason %u is not allowed: a program gives %d or %d",
				 reason, VB_CM_REJ_CONSUMER, VB_CM_REJ_VENDOR_OPTION);
	err = vb_cm_id_enter(id, VB_ID_CALL_REJECT);
	if (err)
		return err;
	err = id->type == IBV_QPT_UD ? send_sidr_rep(id, VB_CM_SIDR_REJECT, &p)
				     : send_rej(id, private_data, len, reason);
	if (!err)
		id->state = VB_ID_FAILED;
	return done(id, err);
}

static void ask_for_end(struct vb_cm_id *id)
{
	vb_cm_channel_expect(id->channel, id->device);
	(void)vb_cm_dreq(id->conn, &nothing, now());
}

/* Asks for the end, or agrees to it where the far end has asked; else there is nothing to end. */
int vb_cm_id_disconnect(struct vb_cm_id *id)
{
	int err = vb_cm_id_enter(id, VB_ID_CALL_DISCONNECT);

	if (err)
		return err;
	if (id->conn && id->type != IBV_QPT_UD) {
		if (id->conn->state == VB_CM_DREQ_RCVD)
			(void)vb_cm_drep(id->conn, &nothing, now());
		else if (id->state == VB_ID_CONNECTED)
			ask_for_end(id);
	}
	return done(id, 0);
}

bool vb_cm_id_has_news(struct vb_cm_id *id)
{
	bool is_over, has;

	if (vb_cm_id_hold(id, "rdma_disconnect"))
		return false;
	is_over = !id->conn || id->conn->state == VB_CM_IDLE || id->state == VB_ID_REQUESTED ||
		  id->state == VB_ID_FAILED || id->type == IBV_QPT_UD;
	has = !is_over || !vb_list_empty(&id->undelivered);
	vb_cm_ids_leave();
	return has;
}

/* ---- data before the RTU ---- */

/* The id may have heard of it within the call; the event comes once. */
static void establish(struct vb_cm_id *id)
{
	if (vb_cm_established(id->conn, now()) || id->state != VB_ID_ACCEPTED)
		return;
	id->state = VB_ID_CONNECTED;
	vb_cm_id_say(id, RDMA_CM_EVENT_ESTABLISHED, 0);
}

int vb_cm_id_notify(struct vb_cm_id *id, enum ibv_event_type event)
{
	int err;

	if (event != IBV_EVENT_COMM_EST) /* the others that the manual page names are of paths that migrate */
		return vb_refuse(EINVAL, "rdma_notify",
				 "event %d is not supported: only IBV_EVENT_COMM_EST is", event);
	err = vb_cm_id_enter(id, VB_ID_CALL_NOTIFY);
	if (err)
		return err;
	if (id->type == IBV_QPT_UD)
		err = vb_refuse(EINVAL, "rdma_notify", "an id for datagrams has no connection to establish");
	else if (id->state == VB_ID_CONNECTED)
		err = EISCONN;
	else
		establish(id);
	return done(id, err);
}

struct whose {
	struct vb_cm_device *device;
	uint32_t qpn;
};

static void data_came(struct vb_cm_id *id, void *with)
{
	const struct whose *w = with;

	if (id->device == w->device && id->qpn == w->qpn && id->state == VB_ID_ACCEPTED && id->conn)
		establish(id);
}

void vb_cm_ids_data(struct vb_cm_device *d, uint32_t qpn)
{
	struct whose w = {d, qpn};

	vb_cm_ids_enter();
	vb_cm_ids_each(data_came, &w);
	vb_cm_ids_leave();
}

/* ---- attributes ---- */

/* From when on there are attributes for that state. */
static const char *known_when(enum ibv_qp_state state)
{
	switch (state) {
	case IBV_QPS_INIT:
		return "first call rdma_resolve_addr(), or rdma_bind_addr() with the address of an interface";
	case IBV_QPS_RTR:
	case IBV_QPS_RTS:
		return "wait for RDMA_CM_EVENT_CONNECT_RESPONSE after rdma_connect(), or for "
		       "RDMA_CM_EVENT_CONNECT_REQUEST, which bring the peer's attributes";
	default:
		return "only IBV_QPS_INIT, IBV_QPS_RTR and IBV_QPS_RTS are supported";
	}
}

int vb_cm_id_qp_attr(struct vb_cm_id *id, struct ibv_qp_attr *attr, int *mask)
{
	static const char call[] = "rdma_init_qp_attr";
	struct vb_cm_deal deal;
	bool connected;
	int err = vb_cm_id_hold(id, call);

	if (err)
		return err;
	err = EINVAL;
	deal = id->deal;
	if (id->ack_set)
		deal.timeout = id->ack_timeout;
	connected = id->state >= VB_ID_CONNECTING && id->state <= VB_ID_DISCONNECTED;
	if (id->state == VB_ID_REMOVED)
		err = ENODEV;
	else if (id->device)
		err = vb_cm_attr(id->type, &deal, connected, id->qkey, attr, mask);
	if (err)
		vb_refuse(err, call, "no attributes for the queue pair state %s in the id's state \"%s\": %s",
			  vb_qp_state_name(attr->qp_state), vb_cm_id_state_name(id->state),
			  known_when(attr->qp_state));
	vb_cm_ids_leave();
	return err;
}
