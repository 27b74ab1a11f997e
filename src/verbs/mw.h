/* Memory windows: what posting needs of them. */
#ifndef VB_VERBS_MW_H
#define VB_VERBS_MW_H

#include "obj/qp.h"

/* A request to bind a window of this type: checks what can be checked now, and fills the WQE's own fields.  0
 * or errno, after saying why as `call`.  Type 1 gets its new R_Key here. */
int vb_mw_fill(struct vb_qp *qp, struct vb_swqe *w, const struct ibv_send_wr *wr, const char *call,
	       enum ibv_mw_type type);

#endif
