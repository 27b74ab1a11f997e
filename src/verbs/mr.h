/* Memory regions: the one way in and the one way back, for every kind of them. */
#ifndef VB_VERBS_MR_H
#define VB_VERBS_MR_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "mem/keys.h"
#include "obj/pd.h"

/* A region that has been checked and whose memory is as present as its kind asks. */
struct vb_mr_ask {
	const char *call; /* for sentences */
	struct vb_pd *pd;
	enum vb_key_kind kind;
	uint64_t addr, length, iova;
	unsigned access; /* enum ibv_access_flags, as the caller gave them */
	/* as in struct vb_mr */
	enum vb_mr_source source;
	void (*release)(struct vb_mr *mr);
	void *of;
	bool pinned;   /* its pages count already (verbs/pin.h) */
	bool unmarked; /* told by vb_mr_prepare(): it failed since they cannot be kept from children */
};

#define VB_MR_REMOTE (IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_ATOMIC)

/* Checks everything that ibv_reg_mr() and ibv_rereg_mr() check of a range of the program's memory, sets
 * `kind` and `release`, and makes the memory present, unless it is to be so on demand.  0 or errno, which has
 * been said.  Where no region comes of it, vb_mr_unprepare(). */
int vb_mr_prepare(struct vb_mr_ask *ask);
void vb_mr_unprepare(const struct vb_mr_ask *ask);
/* What the region's keys are to mean. */
struct vb_key_spec vb_mr_spec(const struct vb_mr_ask *ask);

/* From now on no window can be bound to the region; vb_key_open() ends that.  0, or EBUSY after saying why:
 * windows are bound to it, or another thread is changing it. */
int vb_mr_close(struct vb_mr *mr, const char *call);

/* 0 or errno, which has been said.  Pairs with vb_mr_drop(). */
int vb_mr_register(struct vb_mr **out, const struct vb_mr_ask *ask);

/* Takes the region back: after it no byte of it is touched.  0, or EBUSY after saying why (windows are bound
 * to it); then it stays. */
int vb_mr_drop(struct vb_mr *mr, const char *call);

/* The end of a region that was imported: its owner keeps it. */
void vb_mr_unimport(struct vb_mr *mr);

/* All of ibv_reg_mr_iova2(), refusals in the name of `call`.  0 or errno; pairs with vb_mr_drop(). */
int vb_mr_register_memory(struct vb_mr **out, const char *call, struct ibv_pd *pd, void *addr, size_t length,
			  uint64_t iova, unsigned access);

/* Makes the program's memory present.  0, or the errno that pinning it would give, which has been said. */
int vb_mr_present(const char *call, uint64_t addr, uint64_t length, bool write);

/* Rule 42: who may write from afar may write here. */
static inline bool vb_mr_may_write(unsigned access)
{
	return !(access & (IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_ATOMIC)) ||
	       access & IBV_ACCESS_LOCAL_WRITE;
}
/* Refuses with EINVAL: access that breaks that rule; flags that are not for something. */
int vb_mr_refuse_write(const char *call, unsigned access);
int vb_mr_refuse_flags(const char *call, unsigned flags, const char *what);

#endif
