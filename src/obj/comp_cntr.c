#include "obj/comp_cntr.h"

#include <errno.h>
#include <stdlib.h>

#include "iba/wr.h"
#include "obj/qp.h"

int vb_comp_attach(struct vb_qp *qp, struct vb_comp_cntr *c, uint32_t mask)
{
	vb_lock_assert_held(&qp->lock);
	for (unsigned op = 0; qp->counters && op < VB_COMP_OPS; op++)
		if (mask & 1u << op && qp->counters->of[op])
			return EBUSY;
	if (!qp->counters)
		qp->counters = calloc(1, sizeof(*qp->counters)); /* pairs with vb_comp_detach() */
	if (!qp->counters)
		return ENOMEM;
	for (unsigned op = 0; op < VB_COMP_OPS; op++) {
		if (!(mask & 1u << op))
			continue;
		qp->counters->of[op] = c;
		atomic_fetch_add(&c->refs, 1);
	}
	return 0;
}

void vb_comp_detach(struct vb_qp *qp)
{
	for (unsigned op = 0; qp->counters && op < VB_COMP_OPS; op++)
		if (qp->counters->of[op])
			atomic_fetch_sub(&qp->counters->of[op]->refs, 1);
	free(qp->counters);
	qp->counters = NULL;
}

/* Who reads the count sees the bytes that it counts. */
static void count(const struct vb_qp *qp, enum vb_comp_op op, uint32_t bytes, bool failed)
{
	struct vb_comp_cntr *c = qp->counters->of[op];

	vb_lock_assert_held(&qp->lock);
	if (!c)
		return;
	if (failed)
		atomic_fetch_add_explicit(&c->failed, 1, memory_order_release);
	else
		atomic_fetch_add_explicit(&c->done, c->bytes ? bytes : 1, memory_order_release);
}

void vb_comp_sent(const struct vb_qp *qp, const struct vb_swqe *w, bool failed)
{
	switch (vb_wrs[w->opcode].wc) {
	case IBV_WC_SEND:
		count(qp, VB_COMP_SEND, w->length, failed);
		break;
	case IBV_WC_RDMA_READ:
		count(qp, VB_COMP_READ, w->length, failed);
		break;
	case IBV_WC_RDMA_WRITE:
		count(qp, VB_COMP_WRITE, w->length, failed);
		break;
	default: /* atomics, windows: no operation of a counter */
		break;
	}
}

void vb_comp_received(const struct vb_qp *qp, uint32_t bytes, bool failed)
{
	count(qp, VB_COMP_RECV, bytes, failed);
}

void vb_comp_remote(const struct vb_qp *qp, enum vb_comp_op op, uint32_t bytes)
{
	count(qp, op, bytes, false);
}

bool vb_comp_counts_remote(const struct vb_qp *qp)
{
	const struct vb_comp_cntrs *n = qp->counters;

	return n && (n->of[VB_COMP_REMOTE_READ] || n->of[VB_COMP_REMOTE_WRITE]);
}
