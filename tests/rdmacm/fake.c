#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "fake.h"
#include "rdmacm/rdmacm.h"

struct fake fake;

static struct ibv_device device = {.transport_type = IBV_TRANSPORT_IB};
static struct ibv_device *devices[] = {&device, NULL};
static struct ibv_context other_context;
static struct ibv_pd other_pd = {.context = &other_context};

void fake_reset(void)
{
	/* contexts and domains stay, as they do in the library */
	int contexts = fake.contexts, pds = fake.pds, xrcds = fake.xrcds;

	fake = (struct fake){.contexts = contexts, .pds = pds, .xrcds = xrcds};
}

/* Whether this one fails. */
static int did(const char *name)
{
	size_t len = strlen(fake.did);

	snprintf(fake.did + len, sizeof fake.did - len, "%s ", name);
	if (!fake.fail || strcmp(fake.fail, name) || fake.skip-- > 0)
		return 0;
	errno = fake.err;
	return fake.err;
}

int vb_cm_refuse(int err, const char *call, const char *fmt, ...)
{
	char sentence[200];
	va_list ap;

	va_start(ap, fmt);
	vsnprintf(sentence, sizeof sentence, fmt, ap);
	va_end(ap);
	snprintf(fake.said, sizeof fake.said, "%s: %s", call, sentence);
	return err;
}

void vb_cm_object_enter(const void *object, enum vb_cm_object kind)
{
	(void)object;
	(void)kind;
}

int vb_cm_object_leave(const char *call, const void *object, enum vb_cm_object kind)
{
	return vb_cm_object_check(call, object, kind);
}

int vb_cm_object_check(const char *call, const void *object, enum vb_cm_object kind)
{
	(void)kind;
	return object ? 0 : vb_cm_refuse(EINVAL, call, "it is NULL");
}

bool vb_cm_qp_lives(const struct ibv_qp *qp)
{
	return qp;
}

int vb_cm_cq_abandon(struct ibv_cq *cq, const void *owner)
{
	(void)owner;
	return ibv_destroy_cq(cq);
}

void vb_cm_srq_abandon(struct ibv_srq *srq)
{
	ibv_destroy_srq(srq);
}

void vb_cm_call_begin(const char *name)
{
	(void)name;
}

void vb_cm_call_end(void)
{
}

void vb_cm_gives(const void *at, size_t n)
{
	(void)at;
	(void)n;
}

static void meanwhile(void)
{
	void (*f)(void) = fake.meanwhile;

	fake.meanwhile = NULL;
	if (f)
		f();
}

void vb_cm_log_tell(void)
{
	errno = EXDEV; /* what a log might leave there */
}

/* ---- channels, events ---- */

int vb_cm_channel_open(struct vb_cm_channel **out, int *fd)
{
	if (did("channel"))
		return fake.err;
	*out = calloc(1, sizeof **out);
	*fd = 77;
	fake.channels++;
	return 0;
}

void vb_cm_channel_sync(struct vb_cm_channel *c)
{
	(void)c;
}

void vb_cm_channel_close(struct vb_cm_channel *c)
{
	fake.channels--;
	free(c);
}

struct vb_cm_news *fake_news(struct vb_cm_id *id, enum rdma_cm_event_type event, int status)
{
	struct vb_cm_channel *c = id->channel;
	struct vb_cm_news *n = &c->news[(c->first + c->count++) % 16];

	*n = (struct vb_cm_news){.event = event, .status = status, .id = id, .ud = id->type == IBV_QPT_UD};
	return n;
}

static struct vb_cm_id *new_id(struct vb_cm_channel *c, void *user, enum rdma_port_space ps,
			       enum ibv_qp_type type)
{
	struct vb_cm_id *id = calloc(1, sizeof *id);

	*id = (struct vb_cm_id){.channel = c, .user = user, .ps = ps, .type = type, .device = -1};
	fake.ids++;
	return id;
}

struct vb_cm_news *fake_request(struct vb_cm_id *listener, const char *data)
{
	struct vb_cm_news *n = fake_news(listener, RDMA_CM_EVENT_CONNECT_REQUEST, 0);

	n->fresh = new_id(listener->channel, NULL, listener->ps, listener->type);
	n->fresh->device = 0;
	n->fresh->routed = true;
	memcpy(n->data, data, strlen(data));
	n->conn = (struct rdma_conn_param){.private_data = n->data,
					   .private_data_len = 56,
					   .responder_resources = 3,
					   .initiator_depth = 200,
					   .qp_num = 0x1234};
	n->ud_param.private_data = n->data;
	n->ud_param.private_data_len = 180;
	return n;
}

int vb_cm_channel_get(struct vb_cm_channel *c, struct vb_cm_news *out)
{
	struct vb_cm_news *n = &c->news[c->first];

	if (!c->count)
		return EAGAIN;
	c->first = (c->first + 1) % 16;
	c->count--;
	*out = *n;
	out->user = n->id->user;
	if (out->conn.private_data)
		out->conn.private_data = out->data;
	if (out->ud_param.private_data)
		out->ud_param.private_data = out->data;
	n->id->delivered++;
	fake.events++;
	return 0;
}

void vb_cm_news_ack(struct vb_cm_id *id, enum rdma_cm_event_type event)
{
	(void)event;
	id->acked++;
	fake.events--;
}

/* ---- ids ---- */

int vb_cm_id_new(struct vb_cm_id **out, struct vb_cm_channel *c, void *user, enum rdma_port_space ps,
		 enum ibv_qp_type type)
{
	if (did("new"))
		return fake.err;
	*out = new_id(c, user, ps, type);
	return 0;
}

void vb_cm_id_end(struct vb_cm_id *id)
{
	did("end");
	if (id->delivered != id->acked)
		abort(); /* it would wait for ever */
	fake.ids--;
	free(id);
}

int vb_cm_id_migrate(struct vb_cm_id *id, struct vb_cm_channel *to)
{
	if (did("migrate"))
		return fake.err;
	if (id->user && id->delivered != id->acked)
		abort();
	id->channel = to;
	meanwhile();
	return 0;
}

int vb_cm_id_device(const struct vb_cm_id *id, uint8_t *port)
{
	*port = 1;
	return id->device;
}

int vb_cm_id_bind(struct vb_cm_id *id, const struct sockaddr *addr)
{
	const struct sockaddr_in *in = (const struct sockaddr_in *)addr;

	if (did("bind"))
		return fake.err;
	id->device = in->sin_addr.s_addr ? 0 : -1;
	id->port = in->sin_port ? in->sin_port : htons(40000);
	return 0;
}

int vb_cm_id_listen(struct vb_cm_id *id, int backlog)
{
	(void)id;
	fake.backlog = backlog;
	if (did("listen"))
		return fake.err;
	meanwhile();
	return 0;
}

int vb_cm_id_resolve_addr(struct vb_cm_id *id, const struct sockaddr *src, const struct sockaddr *dst,
			  int timeout_ms)
{
	(void)src;
	(void)dst;
	(void)timeout_ms;
	if (did("resolve_addr"))
		return fake.err;
	id->device = 0;
	id->port = htons(40000);
	fake_news(id, RDMA_CM_EVENT_ADDR_RESOLVED, 0);
	return 0;
}

int vb_cm_id_resolve_route(struct vb_cm_id *id, int timeout_ms)
{
	(void)timeout_ms;
	if (did("resolve_route"))
		return fake.err;
	id->routed = true;
	fake_news(id, RDMA_CM_EVENT_ROUTE_RESOLVED, 0);
	return 0;
}

int vb_cm_id_route(const struct vb_cm_id *id, struct rdma_addr *addr, struct ibv_sa_path_rec *path, int *n)
{
	if (id->port)
		addr->src_sin = (struct sockaddr_in){.sin_family = AF_INET, .sin_port = id->port};
	if (id->device >= 0)
		addr->dst_sin = (struct sockaddr_in){.sin_family = AF_INET, .sin_port = htons(7471)};
	path->mtu = IBV_MTU_4096;
	*n = id->routed;
	return did("route");
}

static int say(const char *name, const struct vb_cm_param *p)
{
	fake.param = *p;
	if (p->private_len)
		memcpy(fake.data, p->private_data, p->private_len);
	return did(name);
}

int vb_cm_id_connect(struct vb_cm_id *id, const struct vb_cm_param *p)
{
	(void)id;
	return say("connect", p);
}

int vb_cm_id_accept(struct vb_cm_id *id, const struct vb_cm_param *p, void *user)
{
	int err = say("accept", p);

	if (err)
		return err;
	id->user = user;
	meanwhile();
	return 0;
}

int vb_cm_id_may_accept(struct vb_cm_id *id, const struct vb_cm_param *p)
{
	(void)id;
	return say("may_accept", p);
}

int vb_cm_id_establish(struct vb_cm_id *id)
{
	(void)id;
	return did("establish");
}

int vb_cm_id_reject(struct vb_cm_id *id, const void *private_data, uint8_t len, uint8_t reason)
{
	(void)id;
	fake.reason = reason;
	if (len)
		memcpy(fake.data, private_data, len);
	return did("reject");
}

int vb_cm_id_disconnect(struct vb_cm_id *id)
{
	int err = did("disconnect");

	if (!err && !fake.over)
		fake_news(id, RDMA_CM_EVENT_DISCONNECTED, 0);
	return err;
}

void vb_cm_id_has_qp(struct vb_cm_id *id, uint32_t qpn)
{
	(void)id, (void)qpn;
}

bool vb_cm_id_has_news(struct vb_cm_id *id)
{
	return id->type != IBV_QPT_UD && !fake.over;
}

int vb_cm_id_notify(struct vb_cm_id *id, enum ibv_event_type event)
{
	(void)id;
	(void)event;
	return did("notify");
}

int vb_cm_id_qp_attr(struct vb_cm_id *id, struct ibv_qp_attr *attr, int *mask)
{
	*mask = IBV_QP_STATE;
	attr->max_dest_rd_atomic = 11;
	attr->max_rd_atomic = 12;
	attr->qkey = id->type == IBV_QPT_UD ? RDMA_UDP_QKEY : 0;
	return did("attr");
}

int vb_cm_id_option(struct vb_cm_id *id, int level, int name, const void *value, size_t len)
{
	(void)value;
	(void)len;
	if (did("option"))
		return fake.err;
	if (level == RDMA_OPTION_IB && name == RDMA_OPTION_IB_PATH) {
		id->routed = true;
		fake_news(id, RDMA_CM_EVENT_ROUTE_RESOLVED, 0);
	}
	return 0;
}

int vb_cm_id_join(struct vb_cm_id *id, const struct sockaddr *addr, uint64_t comp_mask, uint32_t flags,
		  void *join)
{
	struct vb_cm_news *n;

	(void)addr;
	(void)comp_mask;
	if (did("join"))
		return fake.err;
	fake.flags = flags;
	id->join = join;
	n = fake_news(id, RDMA_CM_EVENT_MULTICAST_JOIN, 0);
	n->join = join;
	n->ud = true;
	n->ud_param.qp_num = 0xffffff;
	n->ud_param.ah_attr.dlid = 0xc001;
	return 0;
}

int vb_cm_id_leave(struct vb_cm_id *id, const struct sockaddr *addr, uint32_t *delivered)
{
	(void)id;
	(void)addr;
	*delivered = 1;
	return did("leave");
}

int vb_cm_id_write(struct vb_cm_id *id, enum rdma_cm_event_type event, int status, uint64_t arg)
{
	if (did("write"))
		return fake.err;
	fake_news(id, event, status)->arg = arg;
	return 0;
}

int vb_cm_device_index(const struct ibv_device *d)
{
	(void)d;
	return 0;
}

bool vb_cm_device_lost(const struct ibv_context *verbs)
{
	(void)verbs;
	return false;
}

struct vb_cm_id *fake_cm(struct rdma_cm_id *id)
{
	return vb_rdma_id(id)->cm;
}

/* ---- verbs ---- */

struct ibv_pd *fake_other_pd(void)
{
	return &other_pd;
}

struct ibv_device **ibv_get_device_list(int *n)
{
	if (n)
		*n = 1;
	return devices;
}

void ibv_free_device_list(struct ibv_device **list)
{
	(void)list;
}

static struct ibv_xrcd *open_xrcd(struct ibv_context *c, struct ibv_xrcd_init_attr *attr)
{
	struct ibv_xrcd *x = calloc(1, sizeof *x);

	(void)attr;
	x->context = c;
	fake.xrcds++;
	did("xrcd");
	return x;
}

static struct ibv_qp *make_qp(struct ibv_qp_init_attr_ex *attr)
{
	struct ibv_qp *qp;

	if (did("create_qp"))
		return NULL;
	qp = calloc(1, sizeof *qp);
	*qp = (struct ibv_qp){.context = attr->pd->context,
			      .pd = attr->pd,
			      .qp_num = 0x777,
			      .srq = attr->srq,
			      .send_cq = attr->send_cq,
			      .recv_cq = attr->recv_cq,
			      .qp_type = attr->qp_type};
	fake.qp_attr = *attr;
	attr->cap.max_inline_data = 512;
	fake.qps++;
	return qp;
}

static struct ibv_qp *create_qp_ex(struct ibv_context *c, struct ibv_qp_init_attr_ex *attr)
{
	struct ibv_qp *qp;

	(void)c;
	/* as the device has it: a target is in an XRC domain, and in no protection domain */
	if (attr->qp_type == IBV_QPT_XRC_RECV &&
	    (!(attr->comp_mask & IBV_QP_INIT_ATTR_XRCD) || !attr->xrcd)) {
		errno = EINVAL;
		return NULL;
	}
	qp = make_qp(attr);
	if (qp && attr->qp_type == IBV_QPT_XRC_RECV)
		qp->pd = NULL;
	return qp;
}

struct ibv_qp *ibv_create_qp(struct ibv_pd *pd, struct ibv_qp_init_attr *attr)
{
	struct ibv_qp_init_attr_ex *ex =
	    (struct ibv_qp_init_attr_ex *)attr; /* as the header's inline call gives it */

	if (pd != ex->pd)
		abort();
	return make_qp(ex);
}

static struct ibv_srq *make_srq(struct ibv_srq_init_attr_ex *attr)
{
	struct ibv_srq *srq;

	attr->attr.max_wr += 100;
	if (did("create_srq"))
		return NULL;
	srq = calloc(1, sizeof *srq);
	srq->pd = attr->pd;
	fake.srq_attr = *attr;
	fake.srqs++;
	return srq;
}

static struct ibv_srq *create_srq_ex(struct ibv_context *c, struct ibv_srq_init_attr_ex *attr)
{
	(void)c;
	return make_srq(attr);
}

struct ibv_srq *ibv_create_srq(struct ibv_pd *pd, struct ibv_srq_init_attr *attr)
{
	(void)pd;
	return make_srq((struct ibv_srq_init_attr_ex *)attr);
}

int ibv_destroy_srq(struct ibv_srq *srq)
{
	if (did("destroy_srq"))
		return fake.err;
	fake.srqs--;
	free(srq);
	return 0;
}

struct ibv_context *ibv_open_device(struct ibv_device *d)
{
	struct verbs_context *v;

	if (did("open"))
		return NULL;
	v = calloc(1, sizeof *v);
	v->sz = sizeof *v;
	v->open_xrcd = open_xrcd;
	v->create_srq_ex = create_srq_ex;
	v->create_qp_ex = create_qp_ex;
	v->context.device = d;
	v->context.abi_compat = __VERBS_ABI_IS_EXTENDED;
	fake.contexts++;
	fake.last_opened = &v->context;
	return &v->context;
}

int ibv_close_device(struct ibv_context *c)
{
	fake.contexts--;
	free(verbs_get_ctx(c));
	return 0;
}

int ibv_query_device(struct ibv_context *c, struct ibv_device_attr *attr)
{
	(void)c;
	*attr = (struct ibv_device_attr){.max_qp_rd_atom = 128, .max_qp_init_rd_atom = 128};
	return 0;
}

struct ibv_pd *ibv_alloc_pd(struct ibv_context *c)
{
	struct ibv_pd *pd = calloc(1, sizeof *pd);

	pd->context = c;
	fake.pds++;
	return pd;
}

struct ibv_comp_channel *ibv_create_comp_channel(struct ibv_context *c)
{
	struct ibv_comp_channel *ch = calloc(1, sizeof *ch);

	ch->context = c;
	fake.comp_channels++;
	return ch;
}

int ibv_destroy_comp_channel(struct ibv_comp_channel *ch)
{
	fake.comp_channels--;
	free(ch);
	return 0;
}

struct ibv_cq *ibv_create_cq(struct ibv_context *c, int cqe, void *context, struct ibv_comp_channel *ch,
			     int vector)
{
	struct ibv_cq *cq;

	if (vector)
		abort();
	if (did("create_cq"))
		return NULL;
	cq = calloc(1, sizeof *cq);
	cq->context = c;
	cq->cq_context = context;
	cq->channel = ch;
	fake.cq_size[fake.cqs++] = cqe;
	return cq;
}

int ibv_destroy_cq(struct ibv_cq *cq)
{
	fake.cqs--;
	free(cq);
	return 0;
}

int ibv_destroy_qp(struct ibv_qp *qp)
{
	did("destroy_qp");
	fake.qps--;
	free(qp);
	return 0;
}

int ibv_modify_qp(struct ibv_qp *qp, struct ibv_qp_attr *attr, int mask)
{
	static const char *const names[] = {"RESET", "INIT", "RTR", "RTS", "SQD", "SQE", "ERR"};

	if (!(mask & IBV_QP_STATE))
		abort();
	if (did(names[attr->qp_state]))
		return fake.err;
	if (fake.modifying && attr->qp_state == fake.modified) {
		void (*f)(void) = fake.modifying;

		fake.modifying = NULL;
		f();
	}
	fake.attr[attr->qp_state] = *attr;
	qp->state = attr->qp_state;
	return 0;
}

int ibv_query_ece(struct ibv_qp *qp, struct ibv_ece *ece)
{
	(void)qp;
	*ece = fake.ece;
	return 0;
}

int ibv_set_ece(struct ibv_qp *qp, struct ibv_ece *ece)
{
	(void)qp;
	if (did("set_ece"))
		return fake.err;
	ece->options &= 0xf;
	return 0;
}

int ibv_attach_mcast(struct ibv_qp *qp, const union ibv_gid *gid, uint16_t lid)
{
	(void)qp;
	(void)gid;
	if (lid != 0xc001)
		abort();
	return did("attach");
}

int ibv_detach_mcast(struct ibv_qp *qp, const union ibv_gid *gid, uint16_t lid)
{
	(void)qp;
	(void)gid;
	if (lid != 0xc001)
		abort();
	return did("detach");
}
