/* Far ends: where the packets of a path go, and where packets come from.
 *
 * A far end is a process of this host, or an address on a network.  Its maker embeds a struct vb_far.  What
 * differs between the kinds is a table of operations (hca/far.h); nothing above it knows which kind it has.
 */
#ifndef VB_IBA_FAR_H
#define VB_IBA_FAR_H

struct vb_far_kind;

struct vb_far {
	const struct vb_far_kind *kind; /* set once */
};

#endif
