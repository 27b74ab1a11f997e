/* The table of live objects: which objects of the program exist now, by their addresses.
 *
 * A program may destroy an object twice, or pass NULL or any other pointer.  The memory behind such a pointer
 * may be freed, or another object's.  So each call that ends an object looks here first, and reads nothing of
 * the object itself.  A second destruction goes unnoticed only if a new object of the same kind has been
 * created at the same address meanwhile.
 *
 * Calls that create or end an object come here, and slow ones that would read a destroyed object's memory.  A
 * post comes here only if it is about to be refused, a poll never.  The functions are safe from any thread,
 * and need no lock. */
#ifndef VB_OBJ_LIVE_H
#define VB_OBJ_LIVE_H

#include <stdbool.h>
#include <stdint.h>

#include "base/lock.h"

enum vb_live {
	VB_LIVE_NONE,
	VB_LIVE_CONTEXT, /* closed ones in which objects were left are here, too */
	VB_LIVE_PD,
	VB_LIVE_MR,
	VB_LIVE_MW,
	VB_LIVE_AH,
	VB_LIVE_CQ,
	VB_LIVE_QP,
	VB_LIVE_SRQ,
	VB_LIVE_CHANNEL,
	VB_LIVE_XRCD,
	VB_LIVE_DM,
	VB_LIVE_TD,
	VB_LIVE_DMAH,
	VB_LIVE_BUF,
	VB_LIVE_CNTR,
	VB_LIVE_DEVICES, /* the list of ibv_get_device_list() */
	/* of librdmacm (cm/api.h) */
	VB_LIVE_CM_ID,
	VB_LIVE_CM_CHANNEL,
	VB_LIVE_CM_EVENT,
	VB_LIVE_KINDS
};

/* The program is about to be given the object.  Cannot fail: without memory for one more entry, unknown
 * addresses pass from then on. */
void vb_live_enter(const void *object, enum vb_live kind);
/* The object is about to end: it leaves the table.  0, or EINVAL after saying in the name of `call` that
 * there is no such object.  If the object stays after all, vb_live_enter(). */
int vb_live_leave(const char *call, const void *object, enum vb_live kind);
/* For calls that only use the object: the same, and it stays. */
int vb_live_check(const char *call, const void *object, enum vb_live kind);
bool vb_live_is(const void *object, enum vb_live kind);

/* The table itself, for tools that read the process's memory from outside. */
enum { VB_LIVE_SHARD_BITS = 4, VB_LIVE_SHARDS = 1 << VB_LIVE_SHARD_BITS, VB_LIVE_KIND_SHIFT = 57 };
#define VB_LIVE_ADDRESS \
	((UINT64_C(1) << VB_LIVE_KIND_SHIFT) - 1) /* bits of an address that tell objects apart */
struct vb_live_shard {
	struct vb_lock lock __attribute__((aligned(VB_LINE))); /* guards what follows; a leaf */
	uint32_t used, size;				       /* size: a power of two */
	uint64_t *places;				       /* kind above, address inverted; 0: free */
	bool incomplete; /* an object has no entry, since there was no memory for it */
};
extern struct vb_live_shard vb_live_shards[VB_LIVE_SHARDS];

/* What an entry that is not free stands for. */
static inline uint64_t vb_live_address(uint64_t entry)
{
	return ~entry & VB_LIVE_ADDRESS;
}

static inline enum vb_live vb_live_kind(uint64_t entry)
{
	return (enum vb_live)(entry >> VB_LIVE_KIND_SHIFT);
}

#endif
