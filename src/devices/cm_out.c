/* What goes from the devices of rdma_cm: where each MAD goes to, and requests for which nobody listens yet.
 */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>

#include "base/clock.h"
#include "base/log.h"
#include "devices/cm_dev.h"
#include "hca/far.h"
#include "hca/gsi.h"
#include "hca/mads.h"
#include "iba/grh.h"

/* A REQ or SIDR_REQ for a port at which nobody listens yet. */
struct late {
	struct vb_list node;
	uint64_t until; /* then it is refused */
	bool came;	/* from another host; else it is this process's own */
	struct vb_cm_av av;
	uint8_t mad[VB_MAD_LEN];
};

/* When something is due next; has the engine wake up by then. */
void vb_cm_plan(struct vb_cm_dev *d)
{
	uint64_t next = d->pub.lost ? VB_NEVER : vb_cm_next(d->pub.cm);

	vb_lock_assert_held(&vb_cm_ids_lock);
	if (!vb_list_empty(&d->late))
		next = 0;
	atomic_store(&d->next, next);
	if (next != VB_NEVER)
		vb_adapter_due(d->hca->adapter, next);
}

_Atomic(struct vb_ports *) vb_cm_ports;
_Atomic bool vb_cm_hides;

uint32_t vb_cm_find(uint16_t space, uint16_t port, uint16_t family, const uint8_t addr[16])
{
	struct vb_ports *p = atomic_load(&vb_cm_ports);
	uint32_t number;
	int err = p ? vb_ports_find(p, space, port, family, addr, &number) : ENOENT;

	if (err == EBUSY)
		atomic_store(&vb_cm_hides, true);
	return err ? 0 : number;
}

/* Whoever listens where a REQ or SIDR_REQ goes, 0: nobody.  IPv4 and IPv6 by the header of the private data,
 * which keeps what was asked for; others (AF_IB) by the GID of the port that it goes to. */
uint32_t vb_cm_listener_of(const uint8_t gid[16], const struct vb_cm_msg *m)
{
	uint64_t service = m->kind == VB_CM_REQ ? m->req.service_id : m->sidr_req.service_id;
	uint16_t space = (uint16_t)(service >> 16), port = (uint16_t)service;
	uint32_t number = 0;
	struct vb_cm_ip ip;

	if (m->private_data.len >= VB_CM_IP_LEN && !vb_cm_ip_get(m->private_data.at, &ip))
		number = vb_cm_find(space, port, ip.version == 4 ? AF_INET : AF_INET6, ip.dst);
	return number ? number : vb_cm_find(space, port, VB_AF_IB, gid);
}

static struct vb_route route_of(const struct vb_cm_dev *d, const struct vb_cm_av *av)
{
	const uint8_t(*gids)[16] = vb_adapter_gids(d->hca->adapter);
	uint32_t index = 0;

	for (uint32_t i = 0; i < VB_GID_TABLE; i++)
		if (!memcmp(gids[i], av->local_gid, 16)) {
			index = i;
			break;
		}
	return vb_route(VB_GRH_WORD(index, av->traffic_class, av->flow_label), av->hop_limit, av->sl);
}

/* What is lost is said again; ENOTCONN: by then another one may be found. */
static int send_request(struct vb_cm_dev *d, const struct vb_cm_av *av, const struct vb_whom *to,
			const struct vb_cm_msg *m, const uint8_t mad[VB_MAD_LEN])
{
	struct vb_ports *p = atomic_load(&vb_cm_ports);
	int err = vb_gsi_send(d->hca, to, route_of(d, av), mad);

	if (err != ENOTCONN)
		vb_cm_went(d->pub.cm, m, to);
	else if (p) /* whatever names it is no lock of its own */
		vb_ports_shun(p, to->number);
	return err;
}

/* To the far end that the connection is with, and to nobody who has its number since. */
static void send_on(struct vb_cm_dev *d, const struct vb_cm_av *av, const struct vb_whom *to,
		    const struct vb_cm_msg *m, const uint8_t mad[VB_MAD_LEN])
{
	char name[32], who[64] = "a process of another PID namespace";

	if (to->kind == VB_WHOM_ADDRESS || vb_far_is_there(d->hca, to)) {
		(void)vb_gsi_send(d->hca, to, route_of(d, av), mad);
		return;
	}
	if (to->pid)
		snprintf(who, sizeof(who), "process %u", to->pid);
	vb_log(VB_LOG_INFO, "rdma_cm: a %s to %s was discarded: that process ended or closed its device",
	       vb_cm_kind_name(m->kind, name), who);
}

/* What the wire and the look for an address would take elsewhere: programs begin to listen and tell their
 * clients so in either order (perftest -R tells first).  So a request that finds nobody looks again for a
 * while, and is then answered by this process itself, which finds nobody either and says so. */
enum {
	GRACE_MS = 100,
	APART_MS = 5,
	CAME = 256, /* of other hosts, at once */
};

bool vb_cm_keep_late(struct vb_cm_dev *d, const struct vb_cm_av *av, const uint8_t mad[VB_MAD_LEN], bool came)
{
	struct late *l = came && d->ncame >= CAME ? NULL : malloc(sizeof(*l)); /* vb_cm_look_again() */

	vb_lock_assert_held(&vb_cm_ids_lock);
	if (!l)
		return false;
	l->until = vb_now() + GRACE_MS * VB_MSEC;
	l->came = came;
	l->av = *av;
	memcpy(l->mad, mad, VB_MAD_LEN);
	vb_list_append(&d->late, &l->node);
	d->ncame += came;
	vb_cm_plan(d);
	return true;
}

static void send_late(struct vb_cm_dev *d, const struct vb_cm_av *av, const uint8_t mad[VB_MAD_LEN])
{
	(void)vb_cm_keep_late(d, av, mad, false); /* else it is said again */
}

/* One of this process.  Whether it has gone somewhere, or is not to go anywhere any more. */
static bool send_again(struct vb_cm_dev *d, const struct late *l, const struct vb_cm_msg *m, bool over)
{
	/* One that was called off has gone nowhere, and will not: its REJ was ahead of it. */
	bool asks = vb_cm_asks(d->pub.cm, m);
	struct vb_whom to = vb_whom_at(asks ? vb_cm_listener_of(l->av.remote_gid, m) : 0);

	if (asks && to.kind && send_request(d, &l->av, &to, m, l->mad) == ENOTCONN)
		to = vb_whom_at(0);
	if (asks && !to.kind) {
		if (!over)
			return false;
		to = vb_whom_at(d->pub.number);
		(void)send_request(d, &l->av, &to, m, l->mad);
	}
	return true;
}

/* One of another host: whoever listens gets it, or it is refused. */
static bool hear_again(struct vb_cm_dev *d, const struct late *l, const struct vb_cm_msg *m, uint64_t now)
{
	if (now < l->until && !vb_cm_listener_of(l->av.local_gid, m))
		return false;
	vb_cm_input(d->pub.cm, &l->av, l->mad, now);
	return true;
}

/* When to look next. */
uint64_t vb_cm_look_again(struct vb_cm_dev *d, uint64_t now)
{
	struct vb_cm_msg m;

	vb_lock_assert_held(&vb_cm_ids_lock);
	vb_list_each_safe (node, tmp, &d->late) {
		struct late *l = vb_list_entry(node, struct late, node);
		bool right = !vb_cm_msg_get(l->mad, &m);

		if (right && !(l->came ? hear_again(d, l, &m, now) : send_again(d, l, &m, now >= l->until)))
			continue;
		d->ncame -= l->came;
		vb_list_unlink(node);
		free(l);
	}
	return vb_list_empty(&d->late) ? VB_NEVER : now + APART_MS * VB_MSEC;
}

/* Whoever listens where a request goes: a process of this host, or the port of another one. */
static struct vb_whom whom_to_ask(struct vb_cm_dev *d, const uint8_t gid[16], const struct vb_cm_msg *m)
{
	if (vb_mads_leave(d->hca, gid))
		return (struct vb_whom){.kind = VB_WHOM_ADDRESS, .gid = vb_gid_of(gid)};
	return vb_whom_at(vb_cm_listener_of(gid, m));
}

void vb_cm_send_mad(struct vb_cm *cm, const struct vb_cm_av *av, const struct vb_whom *to,
		    const struct vb_cm_msg *m, const uint8_t mad[VB_MAD_LEN])
{
	struct vb_cm_dev *d = vb_cm_dev_of(cm);
	struct vb_whom listener = *to;

	vb_lock_assert_held(&vb_cm_ids_lock);
	if (m->kind != VB_CM_REQ && m->kind != VB_CM_SIDR_REQ) {
		if (to->kind) /* else its REQ has gone nowhere yet, and will not */
			send_on(d, av, to, m, mad);
		return;
	}
	if (!to->kind)
		listener = whom_to_ask(d, av->remote_gid, m);
	if (!listener.kind || send_request(d, av, &listener, m, mad) == ENOTCONN)
		send_late(d, av, mad);
}

bool vb_cm_hand_on(struct vb_cm *cm, const struct vb_cm_msg *m, const struct vb_cm_av *from,
		   const uint8_t mad[VB_MAD_LEN])
{
	struct vb_cm_dev *d = vb_cm_dev_of(cm);
	const struct vb_whom to = vb_whom_at(vb_cm_listener_of(from->local_gid, m));
	struct vb_cm_av av = *from;
	struct vb_gsi_mad far;

	vb_lock_assert_held(&vb_cm_ids_lock);
	if (!to.kind || to.number == d->pub.number)
		return false;
	if (from->whom.kind == VB_WHOM_ADDRESS) {
		far = (struct vb_gsi_mad){.sgid = vb_gid_of(from->remote_gid),
					  .dgid = vb_gid_of(from->local_gid),
					  .route = route_of(d, from)};
		memcpy(far.bytes, mad, sizeof(far.bytes));
		return !vb_gsi_hand(d->hca, &to, &far);
	}
	memcpy(av.local_gid, from->remote_gid, sizeof(av.local_gid)); /* the sender's, as it was */
	(void)vb_gsi_send(d->hca, &to, route_of(d, &av), mad);
	return true;
}
