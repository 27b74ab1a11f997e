/* A device whose QP1 nobody has opened (hca/gsi.h). */
#include "base/clock.h"
#include "hca/gsi.h"

#pragma GCC diagnostic ignored "-Wunused-parameter"

void vb_gsi_take(struct vb_hca *h, const struct vb_rxq *r, const struct vb_pkt *p)
{
}

bool vb_gsi_is_open(const struct vb_hca *h)
{
	return false;
}

void vb_gsi_mute(struct vb_hca *h, const struct vb_whom *who)
{
}

uint64_t vb_gsi_run(struct vb_hca *h, uint64_t now)
{
	return VB_NEVER;
}

void vb_gsi_gone(struct vb_hca *h, const struct vb_whom *who, enum vb_peer_end how,
		 const struct vb_reach_facts *silence)
{
}

void vb_gsi_lost(struct vb_hca *h)
{
}

void vb_gsi_came(void *user, struct vb_rxq *r)
{
}

void vb_gsi_listen(void)
{
}

void vb_gsi_hear(struct vb_hca *h)
{
}
