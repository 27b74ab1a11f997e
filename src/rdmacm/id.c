/* Identifiers: made, bound, resolved, listening; and destroyed. */
#include <endian.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include <infiniband/ib.h>

#include "rdmacm/call.h"
#include "rdmacm/rdmacm.h"

enum { MAX_BACKLOG = 1024 }; /* the kernel's default of net.rdma_ucm.max_backlog */

/* The channel of a synchronous id. */
static int open_own(struct vb_rdma_channel **own)
{
	int err = vb_rdma_channel_open(own);

	if (!err)
		vb_cm_channel_sync((*own)->cm);
	return err;
}

int vb_rdma_id_make(struct vb_rdma_id **out, struct rdma_event_channel *channel, void *context,
		    enum rdma_port_space ps, enum ibv_qp_type type, struct vb_cm_id *cm)
{
	struct vb_rdma_channel *own = NULL;
	struct vb_rdma_id *p = calloc(1, sizeof *p);
	int err;

	if (!p)
		return ENOMEM;
	if (!channel) {
		err = open_own(&own);
		if (err)
			goto free_it;
		channel = &own->channel;
		p->sync = true;
	}
	p->id.channel = channel;
	p->id.context = context;
	p->id.ps = ps;
	p->id.qp_type = type;
	p->forks = vb_rdma_forks();
	pthread_mutex_init(&p->lock, NULL);
	p->cm = cm;
	if (!cm)
		err = vb_cm_id_new(&p->cm, vb_rdma_channel(channel)->cm, p, ps, type);
	else
		err = own ? vb_cm_id_migrate(cm, own->cm) : 0;
	if (err)
		goto close_channel;
	*out = p;
	return 0;

close_channel:
	pthread_mutex_destroy(&p->lock);
	if (own)
		vb_rdma_channel_close(own);
free_it:
	free(p);
	return err;
}

void vb_rdma_id_unmake(struct vb_rdma_id *p)
{
	vb_rdma_id_ack(p); /* else the next call would wait for it */
	vb_rdma_lookup_end(p);
	vb_cm_id_end(p->cm);
	if (p->sync)
		vb_rdma_channel_close(vb_rdma_channel(p->id.channel));
	vb_rdma_mcast_free_all(p);
	vb_rdma_ep_free(p);
	free(p->id.route.path_rec);
	pthread_mutex_destroy(&p->lock);
	free(p);
}

VB_EXPORT VB_RDMA_CALL(rdma_create_id, (channel, id, context, ps), struct rdma_event_channel *channel,
		       struct rdma_cm_id **id, void *context, enum rdma_port_space ps)
{
	bool datagrams = ps == RDMA_PS_UDP || ps == RDMA_PS_IPOIB;
	struct vb_rdma_id *p;
	int err = vb_rdma_id_make(&p, channel, context, ps, datagrams ? IBV_QPT_UD : IBV_QPT_RC, NULL);

	if (err)
		return err;
	vb_cm_object_enter(p, VB_CM_OBJECT_ID);
	*id = &p->id;
	return 0;
}

VB_EXPORT VB_RDMA_CALL(rdma_destroy_id, (id), struct rdma_cm_id *id)
{
	int err = vb_cm_object_leave("rdma_destroy_id", id, VB_CM_OBJECT_ID);

	/* id->qp may lead nowhere: programs destroy it by ibv_destroy_qp(), too */
	if (!err)
		vb_rdma_id_unmake(vb_rdma_id(id));
	return err;
}

static void set_channel(struct vb_rdma_id *p, struct rdma_event_channel *channel, bool sync)
{
	p->id.channel = channel;
	p->sync = sync;
}

VB_EXPORT VB_RDMA_CALL(rdma_migrate_id, (id, channel), struct rdma_cm_id *id,
		       struct rdma_event_channel *channel)
{
	struct vb_rdma_channel *own = NULL, *old = vb_rdma_channel(id->channel);
	struct vb_rdma_id *p = vb_rdma_id(id);
	bool sync = p->sync;
	int err;

	if (sync && !channel)
		return vb_cm_refuse(EINVAL, "rdma_migrate_id", "the id is already synchronous");
	if (!channel) {
		err = open_own(&own);
		if (err)
			return err;
		channel = &own->channel;
	}
	vb_rdma_id_ack(p);
	set_channel(p, channel, own != NULL); /* with an event there, the id is another thread's */
	err = vb_cm_id_migrate(p->cm, vb_rdma_channel(channel)->cm);
	if (!err) {
		if (sync)
			vb_rdma_channel_close(old);
		return 0;
	}
	set_channel(p, &old->channel, sync);
	if (own)
		vb_rdma_channel_close(own);
	return err;
}

/* Device, port and the default domain, once the id is bound to one.  It stays bound to it. */
static int refresh_device(struct vb_rdma_id *p)
{
	struct vb_rdma_device *d;
	uint8_t port = 0;
	int index = p->device ? -1 : vb_cm_id_device(p->cm, &port);
	int err = index < 0 ? 0 : vb_rdma_device_get(index, &d);

	if (index < 0 || err)
		return err;
	pthread_mutex_lock(&p->lock);
	if (!p->device) { /* else another thread was quicker */
		p->id.verbs = d->verbs;
		p->id.port_num = port;
		if (!p->id.pd)
			p->id.pd = d->pd;
		p->device = d;
	}
	pthread_mutex_unlock(&p->lock);
	return 0;
}

/* path NULL: there is none. */
static int show(struct rdma_route *route, const struct rdma_addr *addr, const struct ibv_sa_path_rec *path)
{
	route->addr = *addr;
	if (path && !route->path_rec) {
		route->path_rec = calloc(1, sizeof *path);
		if (!route->path_rec)
			return ENOMEM;
	}
	if (path)
		*route->path_rec = *path;
	route->num_paths = path ? 1 : 0;
	return 0;
}

int vb_rdma_id_refresh(struct vb_rdma_id *p)
{
	struct rdma_route *route = &p->id.route;
	struct ibv_sa_path_rec path;
	struct rdma_addr addr;
	int n = 0, err;

	memset(&addr, 0, sizeof addr);
	memset(&path, 0, sizeof path);
	err = vb_cm_id_route(p->cm, &addr, &path, &n); /* fails for a parent process's ids */
	if (!err)
		err = refresh_device(p);
	if (err)
		return err;
	/* Several threads may do so at once, and only one is to make the path record. */
	pthread_mutex_lock(&p->lock);
	err = show(route, &addr, n ? &path : NULL);
	pthread_mutex_unlock(&p->lock);
	return err;
}

static int check_address(const char *call, const char *name, const struct sockaddr *addr)
{
	if (!addr)
		return vb_cm_refuse(EINVAL, call, "%s is NULL", name);
	if (!vb_rdma_addrlen(addr))
		return vb_cm_refuse(EINVAL, call, "%s: " VB_CM_BAD_FAMILY, name, addr->sa_family);
	return 0;
}

int vb_rdma_id_bind(struct vb_rdma_id *p, const char *call, struct sockaddr *addr)
{
	int err = check_address(call, "the address", addr);

	if (!err)
		err = vb_cm_id_bind(p->cm, addr);
	return err ? err : vb_rdma_id_refresh(p);
}

VB_EXPORT VB_RDMA_CALL(rdma_bind_addr, (id, addr), struct rdma_cm_id *id, struct sockaddr *addr)
{
	return vb_rdma_id_bind(vb_rdma_id(id), "rdma_bind_addr", addr);
}

int vb_rdma_id_resolve_addr(struct vb_rdma_id *p, const char *call, struct sockaddr *src,
			    struct sockaddr *dst, int timeout_ms)
{
	struct sockaddr_storage *shown = &p->id.route.addr.dst_storage, before = *shown;
	bool sync = p->sync;
	int err = check_address(call, "dst_addr", dst);

	if (!err && src)
		err = check_address(call, "src_addr", src);
	if (err)
		return err;
	/* Before the event, with which another thread may fill in the id. */
	memcpy(shown, dst, vb_rdma_addrlen(dst));
	err = vb_cm_id_resolve_addr(p->cm, src, dst, timeout_ms);
	if (err) {
		*shown = before;
		return err;
	}
	return vb_rdma_id_complete(p, sync);
}

VB_EXPORT VB_RDMA_CALL(rdma_resolve_addr, (id, src_addr, dst_addr, timeout_ms), struct rdma_cm_id *id,
		       struct sockaddr *src_addr, struct sockaddr *dst_addr, int timeout_ms)
{
	return vb_rdma_id_resolve_addr(vb_rdma_id(id), "rdma_resolve_addr", src_addr, dst_addr, timeout_ms);
}

VB_EXPORT VB_RDMA_CALL(rdma_resolve_route, (id, timeout_ms), struct rdma_cm_id *id, int timeout_ms)
{
	struct vb_rdma_id *p = vb_rdma_id(id);
	bool sync = p->sync;
	int err = vb_cm_id_resolve_route(p->cm, timeout_ms);

	return err ? err : vb_rdma_id_complete(p, sync);
}

/* One that has no address gets any, and a port.  An address may be there that the id does not show yet: after
 * ADDR_ERROR. */
static int have_address(struct vb_rdma_id *p)
{
	static struct sockaddr_in any = {.sin_family = AF_INET};
	const struct sockaddr *shown = &p->id.route.addr.src_addr;
	int err = shown->sa_family ? 0 : vb_rdma_id_refresh(p);

	return err || shown->sa_family ? err : vb_rdma_id_bind(p, "rdma_listen", (struct sockaddr *)&any);
}

VB_EXPORT VB_RDMA_CALL(rdma_listen, (id, backlog), struct rdma_cm_id *id, int backlog)
{
	struct vb_rdma_id *p = vb_rdma_id(id);
	int err = have_address(p);

	/* with a request, the id is another thread's */
	return err ? err
		   : vb_cm_id_listen(p->cm, backlog > 0 && backlog < MAX_BACKLOG ? backlog : MAX_BACKLOG);
}

VB_EXPORT VB_RDMA_CALL(rdma_set_option, (id, level, optname, optval, optlen), struct rdma_cm_id *id,
		       int level, int optname, void *optval, size_t optlen)
{
	return vb_cm_id_option(vb_rdma_id(id)->cm, level, optname, optval, optlen);
}

static __be16 port_of(const struct sockaddr *addr)
{
	switch (addr->sa_family) {
	case AF_INET:
		return ((const struct sockaddr_in *)addr)->sin_port;
	case AF_INET6:
		return ((const struct sockaddr_in6 *)addr)->sin6_port;
	case AF_IB: /* the last 16 bits of the service ID */
		return htobe16((uint16_t)be64toh(((const struct sockaddr_ib *)addr)->sib_sid));
	default:
		return 0;
	}
}

VB_EXPORT __be16 rdma_get_src_port(struct rdma_cm_id *id)
{
	return port_of(&id->route.addr.src_addr);
}

VB_EXPORT __be16 rdma_get_dst_port(struct rdma_cm_id *id)
{
	return port_of(&id->route.addr.dst_addr);
}
