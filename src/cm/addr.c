/* Binding, and resolving addresses and routes: nothing of it takes time here, so what the kernel tells later
 * by an event is known when the call returns, and the event comes at once. */
#include <arpa/inet.h>
#include <errno.h>
#include <string.h>

#include "base/log.h"
#include "cm/id.h"

enum { HOPS = 64, DEFAULT_PKEY = 0xffff, PORT_WHY = 400 };

/* ---- binding ---- */

/* The device and the GID that an address of this host is at; the kernel is asked where it is not known. */
static int find_local(const uint8_t address[16], struct vb_cm_local *l)
{
	int err = vb_cm_below()->local(address, l);

	if (err != EADDRNOTAVAIL)
		return err;
	vb_cm_below()->refresh();
	return vb_cm_below()->local(address, l);
}

/* Binds the id to the device of an address. */
static int to_device(struct vb_cm_id *id, const uint8_t address[16])
{
	struct vb_cm_device *d;
	struct vb_cm_local l;
	int err = find_local(address, &l);

	if (!err)
		err = vb_cm_device_open(l.device, &d);
	if (err)
		return err;
	vb_cm_ids_enter();
	if (d->lost) { /* since it was opened: the id would never hear of it */
		err = ENODEV;
	} else {
		id->device = d;
		id->sgid_index = l.gid_index;
		memcpy(id->path.sgid.raw, l.gid, 16);
		id->path.slid = htons(l.lid);
	}
	vb_cm_ids_leave();
	return err;
}

static int check(const struct vb_cm_id *id, const struct sockaddr *addr)
{
	struct sockaddr_in6 v6;

	if (!vb_cm_sock_size(addr))
		return EAFNOSUPPORT;
	if (addr->sa_family == AF_IB && !vb_cm_below()->infiniband())
		return ENODEV;
	if (vb_cm_sock_linklocal(addr)) { /* of which link? */
		memcpy(&v6, addr, sizeof(v6));
		if (!v6.sin6_scope_id)
			return EINVAL;
	}
	if (!vb_cm_sock_space(addr, id->ps))
		return EPROTONOSUPPORT;
	return 0;
}

int vb_cm_refuse_port(int err, const char *call, const struct vb_port_name *name, const char *more)
{
	char why[PORT_WHY] = "";
	struct vb_text t = {why, sizeof(why)};

	if (vb_cm_below()->why_port)
		vb_cm_below()->why_port(name, err, &t);
	else
		vb_text_add(&t, "port %u is not available: %s", name->port, strerror(err));
	return vb_refuse(err, call, "%s%s", why, more);
}

/* Why an address could not be had. */
static int refuse(int err, const struct sockaddr *addr)
{
	static const char call[] = "rdma_bind_addr";
	char text[500];

	switch (err) {
	case EADDRNOTAVAIL:
		vb_cm_why_address(text, sizeof(text), addr);
		return vb_refuse(err, call, "%s", text);
	case EAFNOSUPPORT:
		return vb_refuse(err, call, VB_CM_BAD_FAMILY, addr->sa_family);
	case ENODEV:
		return vb_refuse(err, call, "%s",
				 addr->sa_family == AF_IB ? VB_CM_NO_INFINIBAND
							  : "the device does not exist or is lost");
	case EPROTONOSUPPORT:
		return vb_refuse(err, call, "the service ID belongs to another port space than the id");
	case EINVAL:
		if (vb_cm_sock_linklocal(addr)) /* check() */
			return vb_refuse(err, call, "a link-local address needs sin6_scope_id");
	}
	return vb_refuse(err, call, "%s", strerror(err));
}

static int take_port(struct vb_cm_id *id, const struct sockaddr *addr)
{
	struct vb_port_name name;
	struct vb_port *p;
	int err;

	vb_cm_sock_name(&name, addr, id->ps);
	name.afonly = id->afonly;
	name.reuse = id->reuse;
	err = vb_cm_below()->bind(&p, &name);
	if (err)
		return vb_cm_refuse_port(err, "rdma_bind_addr", &name, "");
	vb_cm_ids_enter();
	id->port = p; /* vb_cm_id_end() */
	memcpy(&id->src, addr, vb_cm_sock_size(addr));
	vb_cm_sock_set_port(&id->src, vb_cm_below()->bound(p)->port);
	if (id->state == VB_ID_REMOVED)
		err = ENODEV;
	else
		id->state = VB_ID_BOUND;
	vb_cm_ids_leave();
	return err ? refuse(err, addr) : 0;
}

int vb_cm_id_take(struct vb_cm_id *id, const struct sockaddr *addr)
{
	uint8_t gid[16];
	int err = check(id, addr);

	if (err)
		return refuse(err, addr);
	vb_cm_ids_enter();
	if (!id->afonly_set) /* "::" also takes IPv4, as a socket does */
		id->afonly = addr->sa_family == AF_INET;
	vb_cm_ids_leave();
	if (!vb_cm_sock_any(addr)) {
		vb_cm_sock_gid(addr, gid);
		err = to_device(id, gid);
		if (err)
			refuse(err, addr);
	}
	if (!err)
		err = take_port(id, addr);
	if (err) { /* as if nothing had been asked */
		vb_cm_ids_enter();
		id->device = NULL;
		vb_cm_ids_leave();
	}
	return err;
}

int vb_cm_id_bind(struct vb_cm_id *id, const struct sockaddr *addr)
{
	int err = vb_cm_id_work(id, VB_ID_CALL_BIND);

	if (err)
		return err;
	err = vb_cm_id_take(id, addr);
	vb_cm_id_worked(id);
	return err;
}

/* ---- resolving ---- */

/* Says what has become of it; the id is where it was, or further. */
static int tell(struct vb_cm_id *id, enum rdma_cm_event_type event, int status, enum vb_cm_id_state state)
{
	int err;

	vb_cm_ids_enter();
	err = id->state == VB_ID_REMOVED ? ENODEV : vb_cm_items_reserve(id, 1);
	if (!err) {
		id->state = state;
		vb_cm_id_say(id, event, status);
	}
	vb_cm_ids_leave();
	return err;
}

/* Where the path ends, and from where it leaves if the program has not said. */
static int find_path(struct vb_cm_id *id, const struct sockaddr *dst)
{
	uint8_t to[16], from[16], source[16];
	struct vb_cm_local far;
	bool chosen = !vb_cm_sock_any((struct sockaddr *)&id->src);
	int err;

	vb_cm_sock_gid(dst, to);
	vb_cm_sock_gid((struct sockaddr *)&id->src, source);
	err = vb_cm_below()->far(to, chosen ? source : NULL, from, &far);
	if (!err && !chosen)
		err = to_device(id, from);
	if (!err && far.leaves && !id->device->wire)
		err = EHOSTUNREACH;
	if (err)
		return err;
	vb_cm_ids_enter();
	if (!chosen)
		vb_cm_sock_of_gid(&id->src, dst->sa_family, from);
	if (!chosen && vb_cm_sock_linklocal((struct sockaddr *)&id->src)) /* of that link */
		((struct sockaddr_in6 *)&id->src)->sin6_scope_id =
		    ((const struct sockaddr_in6 *)dst)->sin6_scope_id;
	memset(&id->dst, 0, sizeof(id->dst));
	memcpy(&id->dst, dst, vb_cm_sock_size(dst));
	memcpy(id->path.dgid.raw, far.gid, 16);
	id->path.dlid = htons(far.lid);
	id->path.mtu = far.mtu ? far.mtu : id->device->mtu;
	vb_cm_ids_leave();
	return 0;
}

/* A wildcard as the destination means this host. */
static void name_loopback(struct sockaddr_storage *to, const struct sockaddr *dst)
{
	static const uint8_t v4[16] = {[10] = 0xff, [11] = 0xff, [12] = 127, [15] = 1}, v6[16] = {[15] = 1};

	memset(to, 0, sizeof(*to));
	memcpy(to, dst, vb_cm_sock_size(dst));
	if (vb_cm_sock_any(dst) && dst->sa_family != AF_IB)
		vb_cm_sock_of_gid(to, dst->sa_family, dst->sa_family == AF_INET ? v4 : v6);
}

static const char mixed[] = "source and destination have different address families";

static int resolve(struct vb_cm_id *id, const struct sockaddr *src, const struct sockaddr *dst)
{
	struct sockaddr_storage to, any = {.ss_family = dst->sa_family};
	int err;

	if (id->state == VB_ID_IDLE) {
		if (src && vb_cm_sock_size(src) && src->sa_family != dst->sa_family)
			return vb_refuse(EINVAL, "rdma_resolve_addr", "%s", mixed);
		if (dst->sa_family == AF_IB)
			vb_cm_sock_set_service(&any, vb_cm_sock_service(dst, id->ps) & ~0xffffull);
		err = vb_cm_id_take(id, src && vb_cm_sock_size(src) ? src : (struct sockaddr *)&any);
		if (err)
			return err;
	} else if (id->src.ss_family != dst->sa_family) {
		return vb_refuse(EINVAL, "rdma_resolve_addr", "%s", mixed);
	}
	name_loopback(&to, dst);
	err = find_path(id, (struct sockaddr *)&to);
	if (err)
		vb_cm_id_why_no_way((struct sockaddr *)&to, err);
	return err ? tell(id, RDMA_CM_EVENT_ADDR_ERROR, -err, VB_ID_BOUND)
		   : tell(id, RDMA_CM_EVENT_ADDR_RESOLVED, 0, VB_ID_ADDR_RESOLVED);
}

int vb_cm_id_resolve_addr(struct vb_cm_id *id, const struct sockaddr *src, const struct sockaddr *dst,
			  int timeout_ms)
{
	int err;

	(void)timeout_ms; /* nothing is waited for */
	if (!vb_cm_sock_size(dst))
		return vb_refuse(EINVAL, "rdma_resolve_addr", VB_CM_BAD_FAMILY, dst->sa_family);
	if (dst->sa_family == AF_IB && vb_cm_below() && !vb_cm_below()->infiniband())
		return refuse(ENODEV, dst);
	err = vb_cm_id_work(id, VB_ID_CALL_RESOLVE_ADDR);
	if (err)
		return err;
	err = resolve(id, src, dst);
	vb_cm_id_worked(id);
	return err;
}

/* As the kernel makes it for RoCE, where no SA could be asked: packets of two ports take one path of another,
 * told apart by the flow label. */
static void fill_path(struct vb_cm_id *id)
{
	bool infiniband = vb_cm_below()->infiniband();
	struct ibv_sa_path_rec *p = &id->path;
	uint32_t label =
	    vb_cm_sock_port((struct sockaddr *)&id->src) * 31u + vb_cm_sock_port((struct sockaddr *)&id->dst);

	p->flow_label = infiniband ? 0 : htonl(label & 0xfffff);
	p->hop_limit = infiniband ? 0 : HOPS;
	p->traffic_class = id->tos_set ? id->tos : 0;
	p->reversible = 1;
	p->numb_path = 1;
	p->pkey = htons(DEFAULT_PKEY);
	p->mtu_selector = VB_CM_EXACTLY;
	p->rate_selector = VB_CM_EXACTLY;
	p->rate = id->device->rate;
	p->packet_life_time_selector = VB_CM_EXACTLY;
	/* so that the timeout which follows from it is the one that was asked for (12.7.34) */
	p->packet_life_time =
	    id->ack_set && id->ack_timeout ? (uint8_t)(id->ack_timeout - 1) : (uint8_t)VB_CM_LIFE_TIME;
}

int vb_cm_id_resolve_route(struct vb_cm_id *id, int timeout_ms)
{
	int err = vb_cm_id_enter(id, VB_ID_CALL_RESOLVE_ROUTE);

	(void)timeout_ms;
	if (err)
		return err;
	err = vb_cm_items_reserve(id, 1);
	if (!err) {
		fill_path(id);
		id->state = VB_ID_ROUTE_RESOLVED;
		vb_cm_id_say(id, RDMA_CM_EVENT_ROUTE_RESOLVED, 0);
	}
	vb_cm_ids_leave();
	return err;
}

/* ---- what a program is told ---- */

static bool has_path(const struct vb_cm_id *id)
{
	return id->state == VB_ID_ROUTE_RESOLVED ||
	       (id->state >= VB_ID_CONNECTING && id->state <= VB_ID_FAILED && id->path.numb_path);
}

int vb_cm_id_route(const struct vb_cm_id *id, struct rdma_addr *addr, struct ibv_sa_path_rec *path,
		   int *num_paths)
{
	if (id->birth != vb_cm_birth())
		return EIO;
	vb_cm_ids_enter();
	memset(addr, 0, sizeof(*addr));
	memcpy(&addr->src_storage, &id->src, sizeof(id->src));
	memcpy(&addr->dst_storage, &id->dst, sizeof(id->dst));
	if (id->device) {
		addr->addr.ibaddr.sgid = id->path.sgid;
		addr->addr.ibaddr.dgid = id->path.dgid;
		addr->addr.ibaddr.pkey = htons(DEFAULT_PKEY);
	}
	*num_paths = has_path(id);
	if (*num_paths && path)
		*path = id->path;
	vb_cm_ids_leave();
	return 0;
}
