/* Memory regions: the one way in and the one way back, for every kind of them. */
#ifndef VB_VERBS_MR_H
#define VB_VERBS_MR_H

#include <stdint.h>

#include "mem/keys.h"
#include "obj/pd.h"

/* A region that has been checked and whose memory is as present as its kind asks. */
struct vb_mr_ask {
	const char *call; /* for sentences */
	struct vb_pd *pd;
	enum vb_key_kind kind;
	uint64_t addr, length, iova;
	unsigned access; /* enum ibv_access_flags */
};

/* 0 or errno, which has been said.  Pairs with vb_mr_drop(). */
int vb_mr_register(struct vb_mr **out, const struct vb_mr_ask *ask);

/* Takes the region back: after it no byte of it is touched.  0, or EBUSY after saying why (windows are bound
 * to it); then it stays. */
int vb_mr_drop(struct vb_mr *mr, const char *call);

#endif
