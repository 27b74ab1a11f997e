/* Exported calls whose feature this device has not got. */
#include <errno.h>

#include "base/log.h"
#include "verbs/verbs.h"

static int no(const char *call, const char *what)
{
	return vb_refuse(EOPNOTSUPP, call, "%s not supported", what);
}

VB_EXPORT struct ibv_dm *ibv_import_dm(struct ibv_context *context, uint32_t handle)
{
	(void)context;
	(void)handle;
	errno = no("ibv_import_dm", "importing device memory is");
	return NULL;
}

/* Nothing can have been imported. */
VB_EXPORT void ibv_unimport_dm(struct ibv_dm *dm)
{
	(void)dm;
	no("ibv_unimport_dm", "importing device memory is");
}

VB_EXPORT int ibv_attach_mcast(struct ibv_qp *qp, const union ibv_gid *gid, uint16_t lid)
{
	(void)qp;
	(void)gid;
	(void)lid;
	return no("ibv_attach_mcast", "multicast is");
}

VB_EXPORT int ibv_detach_mcast(struct ibv_qp *qp, const union ibv_gid *gid, uint16_t lid)
{
	(void)qp;
	(void)gid;
	(void)lid;
	return no("ibv_detach_mcast", "multicast is");
}
