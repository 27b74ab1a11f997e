#include "gsi.h"

#include "host/adapter.h"
#include "kit.h"

_Atomic int kit_gsi_gone;

static uint64_t timers(void *user, uint64_t now)
{
	(void)user, (void)now;
	return VB_NEVER;
}

static void gone(void *user, const struct vb_whom *who, enum vb_peer_end how,
		 const struct vb_reach_facts *silence)
{
	(void)user, (void)how, (void)silence;
	if (who->index)
		atomic_fetch_add(&kit_gsi_gone, 1);
}

static void mute(void *user, const struct vb_whom *who)
{
	(void)user, (void)who;
}

static void established(void *user, uint32_t qpn)
{
	(void)user, (void)qpn;
}

static void lost(void *user)
{
	(void)user;
}

void kit_gsi_open(struct vb_hca *hca, void (*heard)(void *user, const struct vb_gsi_mad *m), void *user)
{
	static struct vb_gsi_ops ops;

	ops = (struct vb_gsi_ops){heard, timers, gone, mute, established, lost};
	CHECK(!vb_gsi_open(hca, &ops, user) && vb_gsi_open(hca, &ops, user) == EBUSY);
}
