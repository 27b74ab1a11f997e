/* Where the objects of this process stand, for tools that read its memory from outside (`verbena explain`).
 *
 * The segment has the address of vb_roots.  A tool of the same build knows the structs; by `layout` it finds
 * out whether it is of the same build. */
#ifndef VB_HCA_ROOTS_H
#define VB_HCA_ROOTS_H

#include <stdint.h>

struct vb_roots {
	uint64_t layout;   /* of the structs that a tool reads, and of the version */
	uint64_t live;	   /* struct vb_live_shard[] (obj/live.h) */
	uint64_t waitings; /* struct vb_waiting[] (base/waiting.h) */
	uint32_t nlive, nwaitings;
};

extern const struct vb_roots vb_roots;

#endif
