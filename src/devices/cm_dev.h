/* What the files of cm_devices.h share: devices at work for rdma_cm, and what goes from them (cm_out.c). */
#ifndef VB_DEVICES_CM_DEV_H
#define VB_DEVICES_CM_DEV_H

#include <stdbool.h>
#include <stdint.h>

#include "base/list.h"
#include "cm/below.h"
#include "hca/hca.h"

struct vb_cm_dev {
	struct vb_cm_device pub; /* first */
	struct vb_hca *hca;
	_Atomic uint64_t next; /* when the engine calls timers() below in earnest; 0: something was begun */
	struct vb_list late;   /* in the order of `until`; guarded by vb_cm_ids_lock, as is */
	uint32_t ncame;	       /* those of them that came */
	bool left;	       /* likewise: the process ends, and far ends have been told */
};

static inline struct vb_cm_dev *vb_cm_dev_of(const struct vb_cm *cm)
{
	return vb_cm_user(cm);
}

/* The process's ports; NULL: none is open yet. */
extern _Atomic(struct vb_ports *) vb_cm_ports;
/* A lock that is no listener's is in the way of some: vb_ports_look() is needed. */
extern _Atomic bool vb_cm_hides;
/* The adapter's number of who listens at that name, 0: nobody; and where a REQ or SIDR_REQ goes. */
uint32_t vb_cm_find(uint16_t space, uint16_t port, uint16_t family, const uint8_t addr[16]);
uint32_t vb_cm_listener_of(const uint8_t gid[16], const struct vb_cm_msg *m);

/* The rest with vb_cm_ids_lock.  When something is due next; has the engine wake up by then. */
void vb_cm_plan(struct vb_cm_dev *d);
/* A request for which nobody listens yet is kept, and looked at again; vb_cm_look_again() returns when next.
 * false: no memory, or too many have come. */
bool vb_cm_keep_late(struct vb_cm_dev *d, const struct vb_cm_av *av, const uint8_t mad[VB_MAD_LEN],
		     bool came);
uint64_t vb_cm_look_again(struct vb_cm_dev *d, uint64_t now);
/* As vb_cm_ops.send and elsewhere. */
void vb_cm_send_mad(struct vb_cm *cm, const struct vb_cm_av *av, const struct vb_whom *to,
		    const struct vb_cm_msg *m, const uint8_t mad[VB_MAD_LEN]);
bool vb_cm_hand_on(struct vb_cm *cm, const struct vb_cm_msg *m, const struct vb_cm_av *from,
		   const uint8_t mad[VB_MAD_LEN]);

#endif
