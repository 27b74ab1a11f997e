/* A path: where the packets of a queue pair, or of an address handle, go.  An RC or UC queue pair has one.
 *
 * hca/path.c makes and ends it; everything here is guarded by the queue pair's lock but for `owes`. */
#ifndef VB_OBJ_PATH_H
#define VB_OBJ_PATH_H

#include "base/list.h"
#include "iba/far.h"
#include "iba/rxq.h"

struct vb_peer_mem;
struct vb_out;
struct vb_qp;
struct vb_shown_qp;

struct vb_path {
	struct vb_out *out; /* the way out; NULL: no contact, or the far end's queue pair is not connected to
			       this one.  Only vb_transport.path() changes it */
	struct vb_rxq *rxq; /* that which brings the answers, and on which this path owes; NULL: no contact */
	struct vb_peer_mem *mem; /* the far end's tables, for direct placement; NULL: not here, or not yet */
	struct vb_qp *qp;	 /* whose it is; set once */
	struct vb_origin source; /* packets count if they come from here; set with `rxq` */
	struct vb_gid dgid; /* and if they came to this GID of this end, where the wire tells; set likewise */
	bool nobody; /* what is sent now is lost: nobody is there.  For types that are not acknowledged; the
			others find out by waiting */
	/* What vb_brief.flags are in the plain SENDs that come by it; set with `out`. */
	uint8_t plain;
	bool lossy;	/* packets may be lost: it has a window (vb_qp.congestion), or a rate if nobody
			   acknowledges them (vb_qp.pace, vb_dest.pace) */
	bool apart : 1; /* it is lossy, or the queue pair has a grant (mem/grant.h): then a post looks at more
			 */
	bool gone : 1;	/* the process has ended, or left, and no other one takes its place: for good */
	uint32_t pid;	/* process at the other end, 0: not known; for sentences */
	struct vb_far *far; /* where it leads, with a reference; NULL: no far end is known by the destination
			       GID and QPN */
	const struct vb_shown_qp *peer_qp; /* the queue pair at the other end, in `mem` */
	struct vb_list owes; /* on rxq->owed, while it has something to send; under rxq->owed_lock */
};

#endif
