/* Where a queue pair's packets go: from destination GID and QPN to a process of this host. */
#ifndef VB_HCA_PATH_H
#define VB_HCA_PATH_H

#include <stdbool.h>

#include "obj/qp.h"

struct vb_adapter;
struct vb_peer;

/* Who has that number, with a reference; NULL: out of memory or of links, or nobody for now. */
struct vb_peer *vb_path_peer(struct vb_adapter *a, uint32_t number);
/* modify set the path (RTR, SQD): looks where it leads, and makes contact.  Under qp->lock. */
void vb_path_open(struct vb_qp *qp);
/* modify cleared it (RESET, ERR, another path in SQD): the ACK that is owed goes out, if it can.  Under
 * qp->lock. */
void vb_path_close(struct vb_qp *qp);

/* If the path leads to a process that is UP, packets from there count from now on, and that process gets
 * leave for what the QP permits.  The way out comes only once it shows a queue pair of that number which is
 * connected to this one; until then it may be tried again at any time.  Looks again where the path leads, if
 * that is not known.  Under the QP's lock. */
void vb_path_attach(struct vb_path *p);
/* Whether the far end shows a queue pair that is connected to this one; its process is or was UP.  Under the
 * QP's lock. */
bool vb_path_is_connected(const struct vb_path *p);
/* Contact is lost: the way out goes.  Under the QP's lock. */
void vb_path_detach(struct vb_path *p);
/* Behind vb_path_detach(): the peer is gone, and showed no queue pair that is connected to this one.  Perhaps
 * a process that has got the peer's number since was meant: it is looked for anew.  Under the QP's lock. */
void vb_path_unresolve(struct vb_path *p);
/* Behind vb_path_detach(), in place of that: the peer is gone, and was connected.  The path leads to nobody
 * from then on, and what is said of the peer is kept.  Under the QP's lock. */
void vb_path_lose(struct vb_path *p);
/* If the QP is in error and there is no contact with the peer, the path lets go of it: true.  Under the QP's
 * lock. */
bool vb_path_give_up(struct vb_path *p);
/* Asks for contact if there is none.  Under the QP's lock. */
void vb_path_contact(struct vb_path *p);
/* The peer turned out to be another one (two of its numbers were asked for at once).  Under the QP's lock. */
void vb_path_move(struct vb_path *p);

#endif
