/* Multicast: attaching queue pairs to groups. */
#include <errno.h>

#include "base/log.h"
#include "iba/names.h"
#include "host/devices.h"
#include "host/netif.h"
#include "transport/transport.h"
#include "hca/hca.h"
#include "hca/lost.h"
#include "verbs/verbs.h"

/* LIDs of groups, of an InfiniBand port; behind the last stands the one that means all. */
enum { FIRST_LID = 0xc000, LAST_LID = 0xfffe };

/* As the kernel checks (ib_attach_mcast()): RoCE has no LIDs of groups, and what is given is ignored but for
 * telling attachments apart. */
static int check(const char *call, const struct ibv_qp *qp, const union ibv_gid *gid, uint16_t lid)
{
	const struct vb_transport *row = vb_transport_of(qp->qp_type);

	if (!row || !row->multicast) /* rule 29 */
		return vb_refuse(
		    EINVAL, call,
		    "the QP is of type %s: only QPs of type IBV_QPT_UD can join a multicast group",
		    vb_name_qp_type(qp->qp_type));
	if (!vb_gid_is_group(gid->raw))
		return vb_refuse(
		    EINVAL, call,
		    "the GID is not a multicast address: use ff..:.. (IPv6) or ::ffff:224.x.y.z (IPv4)");
	if (vb_devices_infiniband() && (lid < FIRST_LID || lid > LAST_LID))
		return vb_refuse(EINVAL, call, "LID 0x%x is not a multicast LID, which are 0x%x to 0x%x", lid,
				 FIRST_LID, LAST_LID);
	return 0;
}

VB_EXPORT VB_CODE(ibv_attach_mcast, (qp, gid, lid), struct ibv_qp *qp, const union ibv_gid *gid, uint16_t lid)
{
	static const char call[] = "ibv_attach_mcast";
	struct vb_context *c = vb_context(qp->context);
	int err;

	if (vb_context_dead(c))
		return vb_refuse_forked(call);
	if (vb_context_lost(c))
		return vb_refuse(EIO, call, VB_LOST_TEXT);
	err = check(call, qp, gid, lid);
	return err ? err : vb_mcast_attach(vb_hca(c->adapter), vb_qp(qp), gid, lid);
}

VB_EXPORT VB_CODE(ibv_detach_mcast, (qp, gid, lid), struct ibv_qp *qp, const union ibv_gid *gid, uint16_t lid)
{
	static const char call[] = "ibv_detach_mcast";
	struct vb_context *c = vb_context(qp->context);
	int err;

	if (vb_context_dead(c))
		return 0; /* as what is destroyed there */
	err = check(call, qp, gid, lid);
	return err ? err : vb_mcast_detach(vb_hca(c->adapter), vb_qp(qp), gid, lid);
}
