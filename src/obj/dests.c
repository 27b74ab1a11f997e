#include "obj/dests.h"

#include <stdlib.h>

#include "obj/ring.h"

#define BYTES (VB_DESTS * sizeof(struct vb_dest))

struct vb_dests *vb_dests_new(void)
{
	struct vb_dests *d = calloc(1, sizeof(*d));

	if (!d)
		return NULL;
	d->at = vb_ring_alloc(BYTES);
	if (!d->at) {
		free(d);
		return NULL;
	}
	vb_list_init(&d->waiting);
	vb_list_init(&d->used);
	return d;
}

void vb_dests_free(struct vb_dests *d)
{
	if (!d)
		return;
	vb_ring_free(d->at, BYTES);
	free(d);
}

__attribute__((cold)) void vb_dest_use(struct vb_qp *qp, uint32_t number)
{
	struct vb_dest *d = &qp->dests->at[number];

	vb_lock_assert_held(&qp->lock);
	if (!d->path.qp) { /* named for the first time */
		d->number = number;
		d->path.qp = qp;
		vb_list_init(&d->path.owes);
		vb_list_init(&d->waiting);
		vb_list_init(&d->used);
	}
	vb_list_append(&qp->dests->used, &d->used);
}

void vb_dest_wait(struct vb_dest *d, uint32_t index)
{
	struct vb_qp *qp = d->path.qp;

	if (d->waits) {
		vb_sq_at(&qp->req, d->last)->next = index;
	} else {
		d->first = index;
		d->waits = true;
		d->until = 0;
		vb_list_append(&qp->dests->waiting, &d->waiting);
	}
	d->last = index;
}

void vb_dest_stop(struct vb_dest *d)
{
	d->waits = false;
	vb_list_unlink(&d->waiting);
}

void vb_dests_stop(struct vb_dests *d)
{
	struct vb_list *n;

	while ((n = vb_list_pop(&d->waiting)))
		vb_list_entry(n, struct vb_dest, waiting)->waits = false;
	d->failed = false;
	d->left.words = 0;
}
