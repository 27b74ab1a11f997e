/* Which paths have something to send, on each receive queue: whoever makes progress there lets them. */
#ifndef VB_HCA_OWED_H
#define VB_HCA_OWED_H

#include "iba/rxq.h"
#include "obj/path.h"

/* Puts the path on its queue's list, unless its QP is being destroyed; without contact there is none, and
 * contact sees to it.  Under the QP's lock. */
void vb_owe(struct vb_path *p);
/* Takes it off again; under the QP's lock. */
void vb_owe_no_more(struct vb_path *p);
/* The path whose turn it is, taken off the list; NULL: none. */
struct vb_path *vb_owed_pop(struct vb_rxq *r);
/* The path whose turn it is, left on the list: only to compare with. */
const struct vb_path *vb_owed_next(struct vb_rxq *r);
/* The next one becomes the last. */
void vb_owed_turn(struct vb_rxq *r);

#endif
