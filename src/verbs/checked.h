/* What `verbena run --check` finds in the use of objects.  All of it does nothing in other processes. */
#ifndef VB_VERBS_CHECKED_H
#define VB_VERBS_CHECKED_H

#include <stdint.h>

#include <infiniband/verbs.h>

#include "check/check.h"

struct vb_mr;
struct vb_qp;

/* Deregistering takes a region from requests that are outstanding: says so.  Before the region ends. */
void vb_checked_dereg(const struct vb_mr *mr, const char *call);
/* The same of a region that gets another range or protection domain. */
void vb_checked_rereg(const struct vb_mr *mr, const char *call);
/* An address handle was destroyed: its memory is kept for a while, so that its use can be told.  false: it is
 * to be freed. */
bool vb_checked_bury(struct ibv_ah *ah);
/* A request names this address handle: says where it is a destroyed one. */
void vb_checked_ah(const struct vb_qp *qp, const struct ibv_ah *ah, uint64_t wr_id, const void *where);

#endif
