/* Memory windows: what posting needs of them. */
#ifndef VB_VERBS_MW_H
#define VB_VERBS_MW_H

#include "obj/qp.h"

/* Whether this request may bind its window, which is to be of this type: 0, or errno after saying why as
 * `call`. */
int vb_mw_check(const struct vb_qp *qp, const struct ibv_send_wr *wr, const char *call,
		enum ibv_mw_type type);

#endif
