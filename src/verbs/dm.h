/* Device memory: memory that the application reaches through the device only. */
#ifndef VB_VERBS_DM_H
#define VB_VERBS_DM_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

#include <infiniband/verbs.h>

#include "base/list.h"
#include "base/own.h"

struct vb_hca;

struct vb_dm {
	struct ibv_dm ibv;     /* first: what the application holds */
	int fd;		       /* the memfd, for peers and importers; set once, as all but refs */
	struct vb_own own;     /* it */
	uint8_t *at;	       /* never given away */
	uint64_t length;       /* as asked for */
	uint64_t mapped;       /* whole pages */
	pid_t pid;	       /* of the process that made the object */
	bool imported;	       /* its memory is counted where it was allocated */
	_Atomic uint32_t refs; /* regions */
	struct vb_list on_hca; /* guarded by hca->dm_lock */
};

/* verbs_context */
struct ibv_dm *vb_alloc_dm(struct ibv_context *context, struct ibv_alloc_dm_attr *attr);
int vb_free_dm(struct ibv_dm *dm);
struct ibv_mr *vb_reg_dm_mr(struct ibv_pd *pd, struct ibv_dm *dm, uint64_t offset, size_t length,
			    unsigned access);

/* For imports.  A descriptor (the caller's to close) of the device memory with this handle and how long it
 * is; -1: there is none. */
int vb_dm_find(struct vb_hca *h, uint32_t handle, uint64_t *length);
/* An object of this context for memory that another one allocated; fd stays the caller's.  NULL and errno,
 * which has been said in the name of `call`.  Pairs with vb_dm_unimport(). */
struct ibv_dm *vb_dm_import(struct ibv_context *context, int fd, uint64_t length, uint32_t handle,
			    const char *call);
bool vb_dm_unimport(struct ibv_dm *dm); /* false: it stays, which has been said */

#endif
