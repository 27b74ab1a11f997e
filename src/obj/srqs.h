/* The XRC SRQs of an adapter by their numbers, which packets name. */
#ifndef VB_OBJ_SRQS_H
#define VB_OBJ_SRQS_H

#include <stdint.h>

#include "base/list.h"
#include "base/lock.h"
#include "obj/srq.h"

enum { VB_SRQS_LISTS = 256 };

struct vb_srqs {
	struct vb_lock lock; /* a leaf; guards the lists */
	struct vb_list lists[VB_SRQS_LISTS];
};

void vb_srqs_init(struct vb_srqs *t);
/* Under srq->number, which is set. */
void vb_srqs_add(struct vb_srqs *t, struct vb_srq *srq);
/* Nobody finds it from now on; who has found it may still be using it (vb_hca_quiesce()). */
void vb_srqs_drop(struct vb_srqs *t, struct vb_srq *srq);
/* NULL: there is none.  Under the lock of a receive queue, which keeps what was found. */
struct vb_srq *vb_srqs_find(struct vb_srqs *t, uint32_t number);

#endif
