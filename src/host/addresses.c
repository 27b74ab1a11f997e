#include "host/addresses.h"

#include <ifaddrs.h>
#include <stdlib.h>
#include <string.h>

#include "host/netif.h"

static bool is_loopback(const uint8_t gid[16])
{
	static const uint8_t v4[12] = {[10] = 0xff, [11] = 0xff}, v6[16] = {[15] = 1};

	return (!memcmp(gid, v4, sizeof(v4)) && gid[12] == 127) || !memcmp(gid, v6, sizeof(v6));
}

static bool is_known(const struct vb_addresses *t, const uint8_t gid[16])
{
	vb_lock_assert_held(&t->lock);
	for (uint32_t i = 0; i < t->n; i++)
		if (!memcmp(t->gids[i], gid, 16))
			return true;
	return false;
}

bool vb_addresses_have(struct vb_addresses *t, const uint8_t gid[16])
{
	bool known;

	if (is_loopback(gid))
		return true;
	vb_lock_take(&t->lock);
	known = is_known(t, gid);
	vb_lock_give(&t->lock);
	if (!known)
		atomic_store_explicit(&t->wanted, true, memory_order_relaxed);
	return known;
}

static uint32_t count(const struct ifaddrs *all)
{
	uint32_t n = 0;

	for (; all; all = all->ifa_next)
		n++;
	return n;
}

static void read_all(struct vb_addresses *t, uint64_t now)
{
	struct ifaddrs *all = NULL;
	uint8_t(*gids)[16], (*old)[16];
	uint32_t n = 0;

	vb_lock_take(&t->lock);
	t->read = now; /* also if that fails: not again at once */
	vb_lock_give(&t->lock);
	if (getifaddrs(&all))
		return;
	gids = calloc(count(all) + 1, sizeof(*gids));
	for (const struct ifaddrs *i = all; gids && i; i = i->ifa_next)
		n += i->ifa_addr && vb_gid_of_sockaddr(i->ifa_addr, gids[n]);
	freeifaddrs(all);
	if (!gids)
		return;
	vb_lock_take(&t->lock);
	old = t->gids;
	t->gids = gids;
	t->n = n;
	vb_lock_give(&t->lock);
	free(old);
}

void vb_addresses_learn(struct vb_addresses *t, const uint8_t gid[16])
{
	if (!vb_addresses_have(t, gid))
		read_all(t, vb_now());
}

bool vb_addresses_tick(struct vb_addresses *t, uint64_t now)
{
	uint64_t read;

	if (!atomic_load_explicit(&t->wanted, memory_order_relaxed))
		return false;
	vb_lock_take(&t->lock);
	read = t->read;
	vb_lock_give(&t->lock);
	if (now - read < VB_ADDRESSES_APART)
		return true;
	atomic_store_explicit(&t->wanted, false, memory_order_relaxed);
	read_all(t, now);
	return true;
}

void vb_addresses_free(struct vb_addresses *t)
{
	free(t->gids);
}
