#include "obj/srqs.h"

static struct vb_list *list_of(struct vb_srqs *t, uint32_t number)
{
	return &t->lists[number % VB_SRQS_LISTS];
}

void vb_srqs_init(struct vb_srqs *t)
{
	for (unsigned i = 0; i < VB_SRQS_LISTS; i++)
		vb_list_init(&t->lists[i]);
}

void vb_srqs_add(struct vb_srqs *t, struct vb_srq *srq)
{
	vb_lock_take(&t->lock);
	vb_list_append(list_of(t, srq->number), &srq->on_srqs);
	vb_lock_give(&t->lock);
}

void vb_srqs_drop(struct vb_srqs *t, struct vb_srq *srq)
{
	vb_lock_take(&t->lock);
	vb_list_unlink(&srq->on_srqs);
	vb_lock_give(&t->lock);
}

struct vb_srq *vb_srqs_find(struct vb_srqs *t, uint32_t number)
{
	struct vb_srq *found = NULL;

	vb_lock_take(&t->lock);
	vb_list_each (n, list_of(t, number)) {
		struct vb_srq *srq = vb_list_entry(n, struct vb_srq, on_srqs);

		if (srq->number == number)
			found = srq;
	}
	vb_lock_give(&t->lock);
	return found;
}
