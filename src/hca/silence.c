#include "hca/silence.h"

#include <string.h>

#include "base/clock.h"
#include "hca/far.h"
#include "hca/hca.h"
#include "host/devices.h"
#include "host/netif.h"
#include "obj/dests.h"

/* Why there is no far end. */
static struct vb_reach_facts why_nowhere(struct vb_qp *qp)
{
	const struct ibv_ah_attr *av = &qp->attr.ah_attr;
	struct vb_hca *h = vb_qp_hca(qp);
	struct vb_reach_facts f;
	struct vb_far *held;

	if (av->is_global && vb_gid_is_group(av->grh.dgid.raw))
		return (struct vb_reach_facts){.reach = VB_REACH_GROUP};
	if (vb_far_leads(h, av, &held) != VB_DEST_NOWHERE) {
		vb_far_put(&held);
		return (struct vb_reach_facts){.reach = VB_REACH_NOBODY};
	}
	if (vb_devices_infiniband())
		return (struct vb_reach_facts){VB_REACH_LID, .lid = {av->dlid}};
	f = (struct vb_reach_facts){VB_REACH_ADDRESS, .away.obstacle = h->away};
	f.away.pid = vb_addresses_whose(&h->addresses, av, f.away.ifname);
	memcpy(f.away.gid, av->grh.dgid.raw, sizeof(f.away.gid));
	return f;
}

/* Whether rdma_cm connected this end. */
static uint32_t own_end(const struct vb_qp *qp)
{
	return qp->by_cm ? VB_END_HERE : 0;
}

/* No queue pair has the number: the program may have exchanged it in network byte order, and not converted
 * it. */
static void look_reversed(struct vb_qp *qp)
{
	uint32_t meant = __builtin_bswap32(qp->dest_qpn), pid;

	if (meant > VB_QPN_MASK || meant == qp->dest_qpn)
		return;
	pid = vb_qpn_whose(vb_qp_adapter(qp), meant);
	if (pid)
		qp->silence =
		    (struct vb_reach_facts){VB_REACH_REVERSED, .reversed = {meant, pid, own_end(qp)}};
}

void vb_silence_explain(struct vb_qp *qp)
{
	struct vb_far *far = qp->path.far;

	vb_lock_assert_held(&qp->lock);
	qp->silence_at = vb_now();
	if (qp->path.gone)
		return; /* vb_path_lose() */
	if (!qp->dest_qpn)
		qp->silence = (struct vb_reach_facts){VB_REACH_UNSET, .number = {.ends = own_end(qp)}};
	else if (!far)
		qp->silence = why_nowhere(qp);
	else
		far->kind->explain(qp);
	if (qp->silence.reach == VB_REACH_NOBODY || qp->silence.reach == VB_REACH_NO_QP)
		look_reversed(qp);
}

bool vb_silence_is_only_slow(const struct vb_qp *qp, uint64_t now)
{
	struct vb_far *far = qp->path.far;

	vb_lock_assert_held(&qp->lock);
	return far && far->kind->slow(qp, now);
}
