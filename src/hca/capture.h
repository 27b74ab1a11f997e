/* Capture: what crosses the wires of this process, as packets of RoCEv2 in a pcapng file (VERBENA_PCAP).
 *
 * Where packets leave.  A path's way out is the one place by which every transport sends, so a capture stands
 * in front of it: vb_capture_way() gives a path a way out of its own, which keeps what goes by and hands it
 * on.  With no capture the path has the wire's, and nothing is different.  That way also hears what is placed
 * directly past it (vb_out.past).  Where they arrive: hca/receive.c tells, before the queue pair has the
 * packet.
 *
 * What a wire between processes has none of is made up: Ethernet, IP and UDP headers (iba/frame.h), and the
 * PSNs of packets of the path MTU (iba/psns.h).
 *
 * A wire to other hosts has all that, so it hands its packets over itself (vb_net_cfg.kept), and nothing is
 * made up but Ethernet.
 *
 * A process keeps what it sends and what comes to it.  Between two queue pairs of one process each stream is
 * kept once: requests when they leave, answers when they arrive. */
#ifndef VB_HCA_CAPTURE_H
#define VB_HCA_CAPTURE_H

#include <stdbool.h>
#include <stdint.h>

#include "iba/pkt.h"
#include "obj/path.h"

struct vb_adapter;
struct vb_qp;
struct vb_roce_packet;

/* ---- where packets go by ---- */

/* Which packets of a receive queue are captured (vb_rxq.kept). */
enum vb_kept { VB_KEPT_NOT, VB_KEPT, VB_KEPT_OWN /* this process sends it, and has kept it */ };
enum vb_kept
vb_capture_from(const struct vb_far *far); /* NULL: hosts send through it, whose wire keeps them */

/* The way out for a path that gets one: `out`, or one that keeps what goes that way.  connected: the far end
 * is one queue pair.  Under the queue pair's lock, like all that follows. */
struct vb_out *vb_capture_way(struct vb_qp *qp, const struct vb_far *far, struct vb_out *out, bool connected);
/* The way to one of the members of a group: a datagram to it is kept once. */
struct vb_out *vb_capture_group(struct vb_qp *qp, const struct vb_far *far, struct vb_out *out);

/* A packet of a connected type has come to qp, with an ACK (VB_OUT_ACK | PSN) or not (0). */
void vb_capture_in(struct vb_qp *qp, const struct vb_pkt *p, uint32_t ack);
/* A datagram has come. */
void vb_capture_datagram(struct vb_adapter *a, const struct vb_pkt *p);
/* A packet that a wire to other hosts has sent or received, whatever locks are held.  It is kept as it is. */
void vb_capture_packet(const struct vb_roce_packet *p);
/* The far end shows that it has received all before this PSN, which no packet says. */
void vb_capture_shown(struct vb_qp *qp, uint32_t psn);

#endif
