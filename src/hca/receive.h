/* Receiving: packets from the receive queues to the queue pairs. */
#ifndef VB_HCA_RECEIVE_H
#define VB_HCA_RECEIVE_H

#include <stdbool.h>

#include "iba/rxq.h"

/* For a busy queue: takes in what is there, all of it or a batch, and sends what is owed if that is worth it.
 * Returns how many packets came.  Without locks; whoever finds another thread at it goes on. */
unsigned vb_hca_look(struct vb_rxq *r, bool all);

#endif
