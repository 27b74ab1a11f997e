#include "hca/owed.h"

#include "hca/warm.h"
#include "obj/qp.h"

void vb_owe(struct vb_path *p)
{
	struct vb_rxq *r = p->rxq;

	vb_lock_assert_held(&p->qp->lock);
	if (!r || p->qp->forgotten)
		return;
	vb_lock_take(&r->owed_lock);
	if (!vb_list_linked(&p->owes))
		vb_list_append(&r->owed, &p->owes);
	/* Store-owes/look-whether-cold, against store-cold/look-at-owes of vb_hca_cool(). */
	if (!atomic_load_explicit(&r->owes, memory_order_relaxed))
		atomic_exchange_explicit(&r->owes, true, memory_order_seq_cst);
	vb_lock_give(&r->owed_lock);
	if (vb_unlikely(atomic_load_explicit(r->cold, memory_order_seq_cst)))
		vb_hca_warm(r);
}

void vb_owe_no_more(struct vb_path *p)
{
	struct vb_rxq *r = p->rxq;

	vb_lock_assert_held(&p->qp->lock);
	if (!r)
		return;
	vb_lock_take(&r->owed_lock);
	vb_list_unlink(&p->owes); /* the hint stays: the next flush knows better */
	vb_lock_give(&r->owed_lock);
}

struct vb_path *vb_owed_pop(struct vb_rxq *r)
{
	struct vb_list *n;

	vb_lock_take(&r->owed_lock);
	n = vb_list_pop(&r->owed);
	atomic_store_explicit(&r->owes, !vb_list_empty(&r->owed), memory_order_relaxed);
	vb_lock_give(&r->owed_lock);
	return n ? vb_list_entry(n, struct vb_path, owes) : NULL;
}

const struct vb_path *vb_owed_next(struct vb_rxq *r)
{
	const struct vb_path *p = NULL;

	vb_lock_take(&r->owed_lock);
	if (!vb_list_empty(&r->owed))
		p = vb_list_entry(r->owed.next, struct vb_path, owes);
	vb_lock_give(&r->owed_lock);
	return p;
}

void vb_owed_turn(struct vb_rxq *r)
{
	struct vb_list *n;

	vb_lock_take(&r->owed_lock);
	n = vb_list_pop(&r->owed);
	if (n)
		vb_list_append(&r->owed, n);
	vb_lock_give(&r->owed_lock);
}
