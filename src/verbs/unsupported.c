/* Exported calls whose feature this device has not got. */
#include <errno.h>

#include "base/log.h"
#include "verbs/verbs.h"

static int no(const char *call, const char *what)
{
	return vb_refuse(EOPNOTSUPP, call, "%s not supported", what);
}

VB_EXPORT VB_CODE(ibv_attach_mcast, (qp, gid, lid), struct ibv_qp *qp, const union ibv_gid *gid, uint16_t lid)
{
	(void)qp;
	(void)gid;
	(void)lid;
	return no("ibv_attach_mcast", "multicast is");
}

VB_EXPORT VB_CODE(ibv_detach_mcast, (qp, gid, lid), struct ibv_qp *qp, const union ibv_gid *gid, uint16_t lid)
{
	(void)qp;
	(void)gid;
	(void)lid;
	return no("ibv_detach_mcast", "multicast is");
}
