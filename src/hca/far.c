#include "hca/far.h"

#include "hca/peers.h"
#include "obj/dests.h"

/* An address that leads to a process of this host is no network's. */
static const struct vb_far_kind *const kinds[] = {&vb_far_peer};

enum { KINDS = sizeof(kinds) / sizeof(kinds[0]) };

struct vb_far *vb_far_find(struct vb_hca *h, const struct ibv_ah_attr *av, uint32_t qpn)
{
	struct vb_far *far = NULL;

	for (unsigned i = 0; i < KINDS && !far; i++)
		far = kinds[i]->find(h, av, qpn);
	return far;
}

uint32_t vb_far_leads(struct vb_hca *h, const struct ibv_ah_attr *av)
{
	uint32_t number = VB_DEST_NOWHERE;

	for (unsigned i = 0; i < KINDS && number == VB_DEST_NOWHERE; i++)
		number = kinds[i]->leads(h, av);
	return number;
}

struct vb_far *vb_far_at(struct vb_hca *h, uint32_t number)
{
	struct vb_far *far = NULL;

	for (unsigned i = 0; i < KINDS && !far; i++)
		far = kinds[i]->at(h, number);
	return far;
}

uint32_t vb_far_count(const struct vb_hca *h)
{
	return vb_peer_count(h->adapter);
}

struct vb_far *vb_far_member(const struct vb_hca *h, uint32_t index)
{
	struct vb_peer *peer = vb_hca_peer(h, index);

	return peer ? &peer->far : NULL;
}
