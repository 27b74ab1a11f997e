/* Management datagrams (QP1) between this host and others, for hca/gsi.c. */
#ifndef VB_HCA_MADS_H
#define VB_HCA_MADS_H

#include <stdbool.h>
#include <stdint.h>

#include "hca/hca.h"
#include "iba/grh.h"
#include "iba/mad.h"

/* From now on those that other hosts send are taken in (vb_gsi_came()); each process of the host takes what
 * is for all of them. */
void vb_mads_listen(struct vb_hca *h);
/* Whether a MAD to that address leaves this host: it is none of its own, and a wire leads to others. */
bool vb_mads_leave(struct vb_hca *h, const uint8_t gid[16]);
/* Sends one to the port at that address, at once.  0; ENETUNREACH: no wire leads to other hosts; EAGAIN,
 * ENOMEM: it is lost. */
int vb_mads_send(struct vb_hca *h, struct vb_gid to, struct vb_route route, const uint8_t mad[VB_MAD_LEN]);
/* One came from that address, perhaps by way of another process of this host. */
void vb_mads_heard(struct vb_hca *h, struct vb_gid from);
/* Why none comes from that address in answer to one that was first sent from `here` at `since`. */
struct vb_reach_facts vb_mads_silence(struct vb_hca *h, struct vb_gid from, struct vb_gid here,
				      uint64_t since);

#endif
