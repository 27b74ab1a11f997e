/* Receiving: packets from the receive queues to the queue pairs. */
#ifndef VB_HCA_RECEIVE_H
#define VB_HCA_RECEIVE_H

#include <stdbool.h>

#include "iba/rxq.h"

enum vb_take {
	VB_TAKE_ONE,   /* packets seem to come one at a time: no look for a second */
	VB_TAKE_BATCH, /* some of what is there */
	VB_TAKE_ALL,   /* what is there when the look begins, at least: what comes meanwhile may stay */
};

/* For a busy queue: takes in what is there, and sends what is owed if that is worth it.
 * Returns how many packets came.  Without locks; whoever finds another thread at it goes on. */
unsigned vb_hca_look(struct vb_rxq *r, enum vb_take take);

#endif
