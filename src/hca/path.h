/* Paths lead a queue pair's packets from destination GID and QPN to a far end (hca/far.h). */
#ifndef VB_HCA_PATH_H
#define VB_HCA_PATH_H

#include <stdbool.h>

#include "obj/qp.h"

/* ibv_modify_qp has set the path (RTR, SQD): resolves it, and connects.  Under qp->lock. */
void vb_path_open(struct vb_qp *qp);
/* ibv_modify_qp has cleared it (RESET, ERR, another path in SQD): sends the pending ACK, if there is room.
 * Under qp->lock. */
void vb_path_close(struct vb_qp *qp);

/* If the path leads to a process that is UP, the QP accepts packets from there, and gives that process the
 * access that it permits.  The path gets its way out only when the peer shows a queue pair of that number
 * that is connected to this one.  Until then the call may be repeated at any time.  Resolves the path again
 * if it is not resolved. Under the QP's lock. */
void vb_path_attach(struct vb_path *p);
/* Whether the peer shows a queue pair that is connected to this one.  Its process is or was UP.  Under the
 * QP's lock. */
bool vb_path_is_connected(const struct vb_path *p);
/* The connection to the process is lost: removes the way out.  Under the QP's lock. */
void vb_path_detach(struct vb_path *p);
/* After vb_path_detach(): the peer is gone, and showed no queue pair that is connected to this one.  The path
 * is resolved again, since it may mean a process that has got the peer's number since.  Under the QP's lock.
 */
void vb_path_unresolve(struct vb_path *p);
/* After vb_path_detach(), instead of vb_path_unresolve(): the peer is gone, and was connected.  From then on
 * the path leads nowhere, and the reason why the peer is gone is kept.  Under the QP's lock. */
void vb_path_lose(struct vb_path *p);
/* If the QP is in the error state and the peer is not connected, the path releases the peer: true.  Under the
 * QP's lock. */
bool vb_path_give_up(struct vb_path *p);
/* Requests a connection to the process if there is none.  Under the QP's lock. */
void vb_path_contact(struct vb_path *p);
/* The path moves to another link of the same process (two of its numbers were contacted at once).  Under the
 * QP's lock.
 */
void vb_path_move(struct vb_path *p);

#endif
