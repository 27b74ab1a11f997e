/* Far ends: where the packets of a path go, and where packets come from.
 *
 * A far end is a process of this host, or an address on a network.  Its maker embeds a struct vb_far.  What
 * differs between the kinds is a table of operations (hca/far.h); nothing above it knows which kind it has.
 */
#ifndef VB_IBA_FAR_H
#define VB_IBA_FAR_H

#include <stdbool.h>
#include <stdint.h>

#include "iba/grh.h"

struct vb_far_kind;

struct vb_far {
	const struct vb_far_kind *kind; /* set once */
};

/* The kinds, as names tell them; each has a row (hca/far.c). */
enum vb_whom_kind {
	VB_WHOM_NOBODY,	 /* it is not known */
	VB_WHOM_PEER,	 /* a process of this host, by the number of its adapter */
	VB_WHOM_ADDRESS, /* an address on a network */
	VB_WHOM_NULL,	 /* the one that answers nothing (hca/far_null.c) */
	VB_WHOM_KINDS
};

/* The name of a far end: a value, which may outlive it. */
struct vb_whom {
	uint8_t kind;	      /* enum vb_whom_kind */
	uint32_t number;      /* of a peer, as is what follows; 0: of none */
	uint32_t index, pid;  /* its index among the peers; its process, 0: of another PID namespace */
	uint64_t incarnation; /* which process, since numbers are used again; 0: whoever has the number */
	struct vb_gid gid;    /* of an address */
};

/* The process that has that number; 0: nobody. */
static inline struct vb_whom vb_whom_at(uint32_t number)
{
	return (struct vb_whom){.kind = number ? VB_WHOM_PEER : VB_WHOM_NOBODY, .number = number};
}

#endif
