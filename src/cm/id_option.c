/* Options of an id, as data: which level and name, how long the value is, who takes it. */
#include <arpa/inet.h>
#include <errno.h>
#include <string.h>

#include "base/log.h"
#include "cm/id.h"

/* <rdma/rdma_cma.h> of older releases lacks some. */
enum { ID = 0, IB = 1 };
enum { TOS = 0, REUSEADDR = 1, AFONLY = 2, ACK_TIMEOUT = 3, PATH = 1 };

enum { LONGEST_TIMEOUT = 31 };

static int int_of(const void *value)
{
	int v;

	memcpy(&v, value, sizeof(v));
	return v;
}

static int set_tos(struct vb_cm_id *id, const void *value, size_t len)
{
	(void)len;
	id->tos = *(const uint8_t *)value;
	id->tos_set = true;
	return 0;
}

/* The port learns of both options that are about it; one that listens is what it is.  Without the lock, the
 * id being this call's alone, since the port may have to wait for others' turns. */
static int change_port(struct vb_cm_id *id, bool afonly, bool reuse)
{
	int err = id->port ? vb_cm_below()->set(id->port, afonly, reuse) : 0;

	if (err)
		return err;
	vb_cm_ids_enter();
	id->afonly = afonly;
	id->reuse = reuse;
	vb_cm_ids_leave();
	return 0;
}

static int set_reuse(struct vb_cm_id *id, const void *value, size_t len)
{
	(void)len;
	return change_port(id, id->afonly, int_of(value) != 0);
}

static int set_afonly(struct vb_cm_id *id, const void *value, size_t len)
{
	int err;

	(void)len;
	if (id->state != VB_ID_IDLE && id->state != VB_ID_BOUND)
		return EINVAL;
	err = change_port(id, int_of(value) != 0, id->reuse);
	id->afonly_set |= !err;
	return err;
}

static int set_ack_timeout(struct vb_cm_id *id, const void *value, size_t len)
{
	uint8_t v = *(const uint8_t *)value;

	(void)len;
	if (v > LONGEST_TIMEOUT || (id->type != IBV_QPT_RC && id->type != IBV_QPT_XRC_SEND))
		return EINVAL; /* those that wait for acknowledgements */
	id->ack_timeout = v;
	id->ack_set = true;
	return 0;
}

/* A path record as management datagrams have it (15.2.5.16). */
static void take_path(struct vb_cm_id *id, const struct ibv_path_record *r)
{
	struct ibv_sa_path_rec *p = &id->path;
	uint32_t flow_hop = ntohl(r->flowlabel_hoplimit);
	uint8_t exact = 0x3f;

	p->dgid = r->dgid;
	p->sgid = r->sgid;
	p->dlid = r->dlid;
	p->slid = r->slid;
	p->flow_label = htonl(flow_hop >> 8 & 0xfffff);
	p->hop_limit = (uint8_t)flow_hop;
	p->traffic_class = r->tclass;
	p->reversible = 1;
	p->numb_path = 1;
	p->pkey = r->pkey;
	p->sl = ntohs(r->qosclass_sl) & 0xf;
	p->mtu_selector = r->mtu >> 6;
	p->mtu = r->mtu & exact;
	p->rate_selector = r->rate >> 6;
	p->rate = r->rate & exact;
	p->packet_life_time_selector = r->packetlifetime >> 6;
	p->packet_life_time = r->packetlifetime & exact;
	p->preference = r->preference;
}

/* Instead of rdma_resolve_route(3), and with its event. */
static int set_path(struct vb_cm_id *id, const void *value, size_t len)
{
	const uint32_t wanted = IBV_PATH_FLAG_GMP | IBV_PATH_FLAG_PRIMARY | IBV_PATH_FLAG_BIDIRECTIONAL;
	struct ibv_path_data d;
	int err = vb_cm_state_permits(id->state, VB_ID_CALL_SET_PATH);

	if (err)
		return err;
	if (len % sizeof(d) || !len)
		return EINVAL;
	for (size_t at = 0; at < len; at += sizeof(d)) {
		memcpy(&d, (const uint8_t *)value + at, sizeof(d));
		if (d.flags != wanted)
			continue;
		err = vb_cm_items_reserve(id, 1);
		if (err)
			return err;
		take_path(id, &d.path);
		id->state = VB_ID_ROUTE_RESOLVED;
		vb_cm_id_say(id, RDMA_CM_EVENT_ROUTE_RESOLVED, 0);
		return 0;
	}
	return EINVAL;
}

static const struct option {
	int level, name;
	size_t len; /* 0: of a length that its function judges */
	int (*set)(struct vb_cm_id *id, const void *value, size_t len);
	bool waits; /* `set` takes the lock itself */
} options[] = {
    {ID, TOS, sizeof(uint8_t), set_tos, false},
    {ID, REUSEADDR, sizeof(int), set_reuse, true},
    {ID, AFONLY, sizeof(int), set_afonly, true},
    {ID, ACK_TIMEOUT, sizeof(uint8_t), set_ack_timeout, false},
    {IB, PATH, 0, set_path, false},
};

int vb_cm_id_option(struct vb_cm_id *id, int level, int name, const void *value, size_t len)
{
	static const char call[] = "rdma_set_option";
	const struct option *o = NULL;
	const char *instead = NULL;
	enum vb_cm_id_state state;
	int err;

	for (size_t i = 0; i < sizeof(options) / sizeof(*options); i++)
		if (options[i].level == level && options[i].name == name)
			o = &options[i];
	if (!o) /* as the kernel says of names that it does not know */
		return vb_refuse(ENOSYS, call, "level %d has no option %d", level, name);
	if (!value)
		return vb_refuse(EINVAL, call, "optval is NULL");
	if (o->len && len != o->len)
		return vb_refuse(EINVAL, call, "optlen is %zu: option %d of level %d needs %zu bytes", len,
				 name, level, o->len);
	err = vb_cm_id_use(id, call);
	if (err)
		return err;
	state = id->state;
	if (state == VB_ID_REMOVED)
		err = ENODEV;
	else if (!o->waits)
		err = o->set(id, value, len);
	id->working = !err && o->waits;
	vb_cm_ids_leave();
	if (!err && o->waits) {
		err = o->set(id, value, len);
		vb_cm_id_worked(id);
	}
	if (!err)
		return 0;
	if (o->set == set_path && vb_cm_state_permits(state, VB_ID_CALL_SET_PATH))
		instead = vb_cm_id_instead(state, VB_ID_CALL_SET_PATH);
	return vb_refuse(err, call,
			 "option %d of level %d does not accept this value, or the id's state \"%s\" does "
			 "not allow it%s%s",
			 name, level, vb_cm_id_state_name(state), instead ? ": " : "",
			 instead ? instead : "");
}
