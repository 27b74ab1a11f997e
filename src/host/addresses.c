#include "host/addresses.h"

#include <string.h>

#include "host/devices.h"
#include "host/networks.h"
#include "host/route.h"

bool vb_addresses_have(struct vb_addresses *t, const struct ibv_ah_attr *av)
{
	if (vb_devices_infiniband())
		return vb_devices_have_lid(av->dlid); /* LIDs do not come and go */
	if (vb_devices_of(av->grh.dgid.raw) >= 0)
		return true;
	atomic_store_explicit(&t->wanted, true, memory_order_relaxed);
	return false;
}

static void ask(struct vb_addresses *t, uint64_t now)
{
	atomic_store_explicit(&t->read, now,
			      memory_order_relaxed); /* also if that fails: not again at once */
	vb_devices_read();
}

/* The same address is looked for at most so often. */
#define SEEK_APART (100 * VB_MSEC)

static struct vb_address_away *find_away(struct vb_addresses *t, const uint8_t address[16])
{
	for (uint32_t i = 0; i < VB_ADDRESSES_AWAY; i++)
		if (t->away[i].sought && !memcmp(t->away[i].address, address, 16))
			return &t->away[i];
	return NULL;
}

static void seek(struct vb_addresses *t, const uint8_t address[16], uint64_t now)
{
	struct vb_address_away *a;
	struct vb_route_to route;
	uint32_t pid;
	bool known;

	if (vb_gid_is_zero(address) || vb_gid_is_group(address))
		return;
	vb_lock_take(&t->lock);
	a = find_away(t, address);
	known = a && now - a->sought < SEEK_APART;
	vb_lock_give(&t->lock);
	if (known)
		return;
	pid = vb_network_whose(address);
	(void)vb_route_find(&route, address, 0); /* else it has no name */
	vb_lock_take(&t->lock);
	a = find_away(t, address);
	if (!a)
		a = &t->away[t->next++ % VB_ADDRESSES_AWAY];
	memcpy(a->address, address, 16);
	memcpy(a->ifname, route.ifname, sizeof(a->ifname));
	a->pid = pid;
	a->sought = now;
	vb_lock_give(&t->lock);
}

uint32_t vb_addresses_whose(struct vb_addresses *t, const struct ibv_ah_attr *av, char ifname[VB_NETIF_NAME])
{
	const struct vb_address_away *a;
	uint32_t pid;

	vb_lock_take(&t->lock);
	a = find_away(t, av->grh.dgid.raw);
	pid = a ? a->pid : 0;
	if (ifname && a)
		memcpy(ifname, a->ifname, VB_NETIF_NAME);
	else if (ifname)
		*ifname = 0;
	vb_lock_give(&t->lock);
	return pid;
}

void vb_addresses_learn(struct vb_addresses *t, const struct ibv_ah_attr *av)
{
	uint64_t now;

	if (vb_addresses_have(t, av) || vb_devices_infiniband())
		return;
	now = vb_now();
	ask(t, now);
	if (!vb_addresses_have(t, av))
		seek(t, av->grh.dgid.raw, now);
}

bool vb_addresses_tick(struct vb_addresses *t, uint64_t now)
{
	if (!atomic_load_explicit(&t->wanted, memory_order_relaxed))
		return false;
	if (now - atomic_load_explicit(&t->read, memory_order_relaxed) < VB_ADDRESSES_APART)
		return true;
	atomic_store_explicit(&t->wanted, false, memory_order_relaxed);
	ask(t, now);
	return true;
}
