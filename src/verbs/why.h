/* Sentences of refusals that take more than a line to find out. */
#ifndef VB_VERBS_WHY_H
#define VB_VERBS_WHY_H

#include <stdbool.h>
#include <stdint.h>

#include "host/adapter.h"

/* The memory of [addr, addr+length) cannot be registered: says where in it the trouble is, what is mapped
 * there and what to change.  Returns err. */
int vb_why_memory(int err, const char *call, uint64_t addr, uint64_t length, bool write);

/* The pages of [addr, addr+length) cannot be kept from children, as ibv_fork_init() asks: each region may cut
 * a mapping in three. Returns err. */
int vb_why_fork(int err, const char *call, uint64_t addr, uint64_t length);

struct vb_keys;
struct vb_pd;
struct vb_context;

/* Memory windows are bound to a region that is to go: how many, and one of them.  Returns EBUSY. */
int vb_why_tied(struct vb_keys *keys, const char *call, uint32_t lkey);

/* No key is left for one more object in this domain.  Returns ENOMEM. */
int vb_why_no_key(const struct vb_keys *keys, const char *call, const struct vb_pd *pd);

/* A protection domain still has children: which, and one of them.  Returns EBUSY. */
int vb_why_pd_busy(struct vb_pd *pd, const char *call);

/* A context is closed with objects in it: which, and what they hold. */
struct vb_why_count {
	const char *name; /* of one; more than one have an s */
	uint32_t n;
};
void vb_why_left(struct vb_context *c, const struct vb_why_count *left, unsigned kinds);

/* The device cannot be opened: with the limits that may be in the way of what `step` takes. */
int vb_why_open(int err, const char *call, const char *name, enum vb_open_step step);

#endif
