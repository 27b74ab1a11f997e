/* Regions of dma-bufs. */
#ifndef VB_VERBS_DMABUF_H
#define VB_VERBS_DMABUF_H

#include <stdint.h>

#include <infiniband/verbs.h>

struct vb_mr;

/* All of ibv_reg_dmabuf_mr(), refusals in the name of `call`.  0 or errno; pairs with vb_mr_drop(). */
int vb_dmabuf_register(struct vb_mr **out, const char *call, struct ibv_pd *pd, uint64_t offset,
		       uint64_t length, uint64_t iova, int fd, unsigned access);

#endif
