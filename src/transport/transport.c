#include "transport/transport.h"

#include "transport/rc.h"

static const struct vb_transport *const transports[VB_TRANSPORTS] = {
    [IBV_QPT_RC] = &vb_rc_transport,
    [IBV_QPT_XRC_SEND] = &vb_xrc_initiator_transport,
    [IBV_QPT_XRC_RECV] = &vb_xrc_target_transport,
    [IBV_QPT_UC] = &vb_uc_transport,
    [IBV_QPT_UD] = &vb_ud_transport,
};

const struct vb_transport *vb_transport_of(uint32_t type)
{
	return type < VB_TRANSPORTS ? transports[type] : NULL;
}

void vb_transport_choose(struct vb_qp *qp, enum ibv_qp_type type)
{
	qp->transport = vb_transport_of(type);
	qp->family = (uint8_t)vb_opcode_family(type);
	qp->acked = qp->transport->acked;
	qp->post.brief = type == IBV_QPT_RC;
}
