#include "host/addresses.h"

#include "host/devices.h"

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

void vb_addresses_learn(struct vb_addresses *t, const struct ibv_ah_attr *av)
{
	if (!vb_addresses_have(t, av) && !vb_devices_infiniband())
		ask(t, vb_now());
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
