#include "hca/all.h"

#include "hca/direct.h"
#include "hca/path.h"
#include "hca/send.h"
#include "hca/timed.h"
#include "hca/warm.h"

static void each_of(struct vb_context *c, void (*look)(struct vb_qp *qp, void *with), void *with)
{
	vb_lock_take(&c->lock);
	vb_list_each (q, &c->qps)
		look(vb_list_entry(q, struct vb_qp, on_ctx), with);
	vb_lock_give(&c->lock);
}

void vb_hca_each_qp(struct vb_hca *h, void (*look)(struct vb_qp *qp, void *with), void *with)
{
	vb_lock_take(&h->contexts_lock);
	vb_list_each (n, &h->contexts)
		each_of(vb_list_entry(n, struct vb_context, on_hca), look, with);
	vb_lock_give(&h->contexts_lock);
	each_of(&h->inner, look, with);
}

/* Whatever queue it was on when it owed. */
static void forget_acks(struct vb_rxq *r, const struct vb_path *p)
{
	vb_lock_take(&r->rx);
	if (r->acks == p)
		r->acks = NULL;
	vb_lock_give(&r->rx);
}

void vb_hca_forget(struct vb_qp *qp)
{
	struct vb_hca *h = vb_qp_hca(qp);

	vb_lock_take(&qp->lock);
	qp->forgotten = true; /* which a deputy is not yet */
	vb_path_close(qp);
	vb_direct_show(qp); /* no more */
	vb_hca_give(qp);
	for (uint32_t i = 0; i < vb_hca_rxq_count(h); i++) {
		struct vb_rxq *r = vb_hca_rxq_at(h, i);

		if (r)
			forget_acks(r, &qp->path);
	}
	vb_hca_untime(qp);
}

void vb_hca_quiesce(struct vb_hca *h)
{
	for (uint32_t i = 0; i < vb_hca_rxq_count(h); i++) {
		struct vb_rxq *r = vb_hca_rxq_at(h, i);

		if (!r)
			continue;
		vb_lock_take(&r->rx);
		vb_lock_give(&r->rx);
	}
}
