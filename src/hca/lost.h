/* A device whose descriptors the program has closed. */
#ifndef VB_HCA_LOST_H
#define VB_HCA_LOST_H

#include "obj/context.h"
#include "hca/hca.h"

/* Why a call is refused then. */
#define VB_LOST_TEXT                                                                                \
	"the device is lost, because this process closed descriptors that belong to it; close the " \
	"device and open it again after closing descriptors"

static inline bool vb_context_lost(const struct vb_context *c)
{
	return c->adapter && vb_adapter_lost(c->adapter);
}

/* vb_evq_try(); EIO, and everybody was told before, if the descriptor is not ours any more since the device
 * is lost. */
int vb_token_try(struct vb_evq *q);
/* The descriptor was found not to be ours: the same EIO, or EBADF if nothing else was closed.  Takes up to 20
 * ms to find out. */
int vb_token_gone(struct vb_evq *q);

/* Why QPs fail that were connected to a peer, process `pid`, which has gone so; not for a goodbye. */
struct vb_facts vb_end_facts(enum vb_peer_end how, uint32_t pid);

/* For vb_adapter_ops. */
void vb_device_lost(struct vb_adapter *a);

#endif
