/* Listening, and which of this process's listeners a request is for. */
#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <string.h>

#include "base/log.h"
#include "cm/id.h"

/* An id that is bound to an address listens at its device, one that is not at all of them. */
static int open_devices(const struct vb_cm_id *id, struct vb_cm_device *at[VB_MAX_DEVICES], uint32_t *n)
{
	uint32_t count = vb_cm_below()->devices();
	int err = 0;

	*n = 0;
	if (id->device) {
		at[(*n)++] = id->device;
		return 0;
	}
	while (!err && *n < count) {
		err = vb_cm_device_open(*n, &at[*n]);
		*n += !err;
	}
	return *n ? 0 : err ? err : ENODEV;
}

static int begin(struct vb_cm_id *id, struct vb_cm_device *const at[], uint32_t n)
{
	uint64_t now = vb_cm_below()->now();
	int err = 0;

	vb_lock_assert_held(&vb_cm_ids_lock);
	for (uint32_t i = 0; i < n && !err; i++) {
		struct vb_cm_conn *c = at[i]->lost ? NULL : vb_cm_new(at[i]->cm, id);

		err = c ? vb_cm_listen(c) : at[i]->lost ? ENODEV : ENOMEM;
		if (c && err)
			vb_cm_end(c, now);
		else
			id->listens[at[i]->index] = c;
	}
	if (!err)
		return 0;
	for (uint32_t i = 0; i < VB_MAX_DEVICES; i++) {
		if (id->listens[i])
			vb_cm_end(id->listens[i], now);
		id->listens[i] = NULL;
	}
	return err;
}

/* *number: by which requests find it. */
static int listen_at(struct vb_cm_id *id, int backlog, uint32_t *number)
{
	static const struct sockaddr_in any = {.sin_family = AF_INET};
	struct vb_cm_device *at[VB_MAX_DEVICES];
	uint32_t n;
	int err = 0;

	if (id->state == VB_ID_IDLE)
		err = vb_cm_id_take(id, (const struct sockaddr *)&any);
	if (!err)
		err = open_devices(id, at, &n);
	if (err)
		return err;
	*number = at[0]->number;
	vb_cm_ids_enter();
	err = begin(id, at, n);
	if (!err) {
		id->backlog = backlog > 0 && backlog < VB_CM_BACKLOG ? (uint32_t)backlog : VB_CM_BACKLOG;
		id->state = VB_ID_LISTENING;
		vb_cm_listeners_add(id);
	}
	vb_cm_ids_leave();
	return err;
}

static void undo(struct vb_cm_id *id)
{
	uint64_t now = vb_cm_below()->now();

	vb_cm_ids_enter();
	for (uint32_t i = 0; i < VB_MAX_DEVICES; i++) {
		if (id->listens[i])
			vb_cm_end(id->listens[i], now);
		id->listens[i] = NULL;
	}
	if (id->state != VB_ID_REMOVED)
		id->state = VB_ID_BOUND;
	vb_cm_ids_leave();
}

int vb_cm_id_listen(struct vb_cm_id *id, int backlog)
{
	uint32_t number;
	int err = vb_cm_id_work(id, VB_ID_CALL_LISTEN);

	if (err)
		return err;
	err = listen_at(id, backlog, &number);
	if (!err) {
		/* Requests find it once the port says so, and only then. */
		err = vb_cm_below()->listen(id->port, number);
		if (err)
			undo(id);
		if (err)
			vb_cm_refuse_port(
			    err, "rdma_listen", vb_cm_below()->bound(id->port),
			    err == EADDRINUSE
				? "; RDMA_OPTION_ID_REUSEADDR lets several ids bind, but only one may listen"
				: "");
	}
	vb_cm_id_worked(id);
	return err;
}

/* ---- whom a request is for ---- */

struct search {
	struct vb_cm_device *engine;
	uint64_t service_id;
	bool wrapped; /* it has a header of addresses, which is `ip` */
	struct vb_cm_ip ip;
	uint8_t gid[16]; /* by which it came */
	struct vb_cm_id *found;
	bool exact;
};

static bool takes(const struct vb_cm_id *id, const struct search *s)
{
	const struct sockaddr *own = (const struct sockaddr *)&id->src;
	uint8_t mine[16];

	if (id->state != VB_ID_LISTENING || !id->listens[s->engine->index] ||
	    vb_cm_sock_service(own, id->ps) != s->service_id)
		return false;
	if (own->sa_family != AF_IB)
		return s->wrapped && vb_cm_sock_takes(own, id->afonly, &s->ip);
	vb_cm_sock_gid(own, mine);
	return vb_cm_sock_any(own) || !memcmp(mine, s->gid, sizeof(mine));
}

/* One that is bound to the address comes before one that takes any. */
static void consider(struct vb_cm_id *id, void *with)
{
	struct search *s = with;

	if (s->exact || !takes(id, s))
		return;
	s->found = id;
	s->exact = !vb_cm_sock_any((const struct sockaddr *)&id->src);
}

struct vb_cm_conn *vb_cm_ids_listener(struct vb_cm *cm, const struct vb_cm_msg *m, const struct vb_cm_av *av)
{
	struct search s = {.engine = vb_cm_user(cm),
			   .service_id =
			       m->kind == VB_CM_SIDR_REQ ? m->sidr_req.service_id : m->req.service_id};

	if (m->private_data.len >= VB_CM_IP_LEN)
		s.wrapped = !vb_cm_ip_get(m->private_data.at, &s.ip);
	memcpy(s.gid, av->local_gid, 16);
	vb_cm_listeners_each(consider, &s);
	return s.found ? s.found->listens[s.engine->index] : NULL;
}
