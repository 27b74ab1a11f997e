/* Where identifiers of rdma_cm get the devices of this process from: verbs/, which has them for contexts too.
 */
#ifndef VB_DEVICES_CM_DEVICES_H
#define VB_DEVICES_CM_DEVICES_H

#include <stdint.h>

struct vb_hca;

struct vb_cm_shares {
	/* Has fork() looked after, before handlers are registered whose locks are held over share(). */
	void (*handle_fork)(void);
	/* What the process has at work for the device of that index, which is opened by the first one that
	 * asks.  0 or errno, which has been said.  Pairs with unshare(). */
	int (*share)(uint32_t index, struct vb_hca **out, const char *call);
	void (*unshare)(uint32_t index, struct vb_hca *h);
};

void vb_cm_devices_share(const struct vb_cm_shares *upper); /* once, before main() */

#endif
