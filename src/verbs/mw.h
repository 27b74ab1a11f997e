/* Memory windows: what posting needs of them. */
#ifndef VB_VERBS_MW_H
#define VB_VERBS_MW_H

#include "obj/qp.h"

/* Whether a request of this QP may bind the window, which is to be of this type: 0, or errno after saying why
 * as `call`. */
int vb_mw_check(const struct vb_qp *qp, const struct ibv_mw *mw, const struct ibv_mw_bind_info *info,
		const char *call, enum ibv_mw_type type);

#endif
