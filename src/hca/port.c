#include "hca/port.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "hca/hca.h"
#include "host/devices.h"

/* A table that the port has shown.  They stay until the adapter is closed, each once: others may hold a
 * pointer, and far ends an address. */
struct vb_shown_gids {
	struct vb_gids gids;
	struct vb_shown_gids *before; /* set once */
};

static bool equal(const struct vb_gids *a, const struct vb_gids *b)
{
	return a->n == b->n && !memcmp(a->gid, b->gid, sizeof(a->gid)) &&
	       !memcmp(a->ifindex, b->ifindex, sizeof(a->ifindex));
}

/* Without memory for another table the port goes on showing the one that it has.  Only the opener and
 * whoever handles control sockets call this. */
static int show(struct vb_hca *h, const struct vb_gids *g)
{
	struct vb_shown_gids *last = atomic_load_explicit(&h->shown, memory_order_relaxed), *s = last;

	while (s && !equal(&s->gids, g))
		s = s->before;
	if (!s) {
		s = malloc(sizeof(*s));
		if (!s)
			return ENOMEM;
		s->gids = *g;
		s->before = last;
		atomic_store_explicit(&h->shown, s, memory_order_release); /* pairs with has_shown() */
	}
	atomic_store_explicit(&h->gids, &s->gids, memory_order_release); /* pairs with vb_port_gids() */
	if (h->adapter) /* else it is being opened, and shows them itself */
		vb_adapter_show_gids(h->adapter, s->gids.gid);
	return 0;
}

/* Another MTU is no event of a port: programs ask again when they connect. */
static void take(struct vb_hca *h, const struct vb_port *p)
{
	h->port_ifindex = p->ifindex;
	h->port_owned = p->owned;
	atomic_store_explicit(&h->port_mtu, h->port_wire ? vb_netif_path_mtu(p->mtu) : IBV_MTU_4096,
			      memory_order_relaxed);
}

int vb_port_open(struct vb_hca *h, uint32_t device)
{
	struct vb_port p;

	h->device = device;
	vb_devices_read();
	vb_devices_port(device, &p);
	h->port_wire = p.wire;
	take(h, &p);
	atomic_store_explicit(&h->port_down, !p.up, memory_order_relaxed);
	return show(h, &p.gids);
}

void vb_port_close(struct vb_hca *h)
{
	struct vb_shown_gids *s = atomic_load_explicit(&h->shown, memory_order_relaxed), *before;

	for (; s; s = before) {
		before = s->before;
		free(s);
	}
}

const struct vb_gids *vb_port_gids(const struct vb_hca *h)
{
	return atomic_load_explicit(&h->gids, memory_order_acquire); /* pairs with show() */
}

bool vb_port_is_up(const struct vb_hca *h)
{
	return !atomic_load_explicit(&h->port_down, memory_order_relaxed);
}

bool vb_port_has_wire(const struct vb_hca *h)
{
	return h->port_wire;
}

uint32_t vb_port_mtu(const struct vb_hca *h)
{
	return atomic_load_explicit(&h->port_mtu, memory_order_relaxed);
}

static bool has_shown(const struct vb_hca *h, const uint8_t gid[16])
{
	const struct vb_shown_gids *s = atomic_load_explicit(&h->shown, memory_order_acquire);

	for (; s; s = s->before)
		if (vb_gids_index(&s->gids, gid) >= 0)
			return true;
	return false;
}

bool vb_port_leads_here(struct vb_hca *h, const struct ibv_ah_attr *av)
{
	if ((!vb_devices_infiniband() && has_shown(h, av->grh.dgid.raw)) ||
	    vb_addresses_have(&h->addresses, av))
		return true;
	/* It may come.  What does not wait for it has no timer by which the engine would be there to see. */
	vb_adapter_due(h->adapter, vb_now() + VB_ADDRESSES_APART);
	return false;
}

static void tell(struct vb_hca *h, enum vb_port_event event)
{
	static const enum vb_port_event against[] = {[VB_PORT_ERR] = VB_PORT_ACTIVE,
						     [VB_PORT_ACTIVE] = VB_PORT_ERR,
						     [VB_PORT_GID_CHANGE] = VB_PORT_GID_CHANGE,
						     [VB_PORT_REREGISTER] = VB_PORT_REREGISTER};

	vb_lock_take(&h->contexts_lock);
	vb_list_each (n, &h->contexts) {
		struct vb_context *c = vb_list_entry(n, struct vb_context, on_hca);

		vb_async_turn(c, &c->ev_port[event], &c->ev_port[against[event]]);
	}
	vb_lock_give(&h->contexts_lock);
}

static void turn(struct vb_hca *h, bool up)
{
	if (up == vb_port_is_up(h))
		return;
	atomic_store_explicit(&h->port_down, !up, memory_order_relaxed);
	tell(h, up ? VB_PORT_ACTIVE : VB_PORT_ERR);
	/* A port that comes back has a subnet manager again, which may have forgotten who joined which group.
	 */
	if (up && vb_devices_infiniband())
		tell(h, VB_PORT_REREGISTER);
}

/* An interface that was up already when the port came to it is not said to be: then nothing turns.  A port
 * with a wire also needs a carrier and an address to be up, which vb_port_network() looks at. */
void vb_port_link(struct vb_adapter *a, uint32_t ifindex, bool up)
{
	struct vb_hca *h = vb_hca(a);

	if (ifindex == h->port_ifindex && !(up && h->port_wire))
		turn(h, up);
}

/* Addresses of the device that the table has no entry for lead to it, too: programs hear of these as well. */
void vb_port_network(struct vb_adapter *a)
{
	struct vb_hca *h = vb_hca(a);
	const struct vb_gids *before = vb_port_gids(h);
	struct vb_port p;
	bool changed;

	vb_devices_read();
	vb_devices_port(h->device, &p);
	if (show(h, &p.gids))
		return; /* the next notice tries again */
	changed = before != vb_port_gids(h) || (!vb_devices_infiniband() && h->port_owned != p.owned);
	take(h, &p);
	if (changed)
		tell(h, VB_PORT_GID_CHANGE);
	turn(h, p.up);
}
