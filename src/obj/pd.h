/* Protection domains and memory regions: names and references; what keys mean is mem/'s. */
#ifndef VB_OBJ_PD_H
#define VB_OBJ_PD_H

#include <stdatomic.h>
#include <stdint.h>

#include <infiniband/verbs.h>

struct vb_context;

struct vb_pd {
	struct ibv_pd ibv;     /* first: what the application holds */
	_Atomic uint32_t refs; /* children: regions, QPs, SRQs, address handles; each child adds itself */
	uint32_t id;	       /* never 0; what key entries and QPs compare; set once */
};

struct vb_mr {
	struct ibv_mr ibv; /* first */
	struct vb_pd *pd;
	uint64_t iova; /* first address as keys address it */
	uint32_t access;
};

struct vb_ah {
	struct ibv_ah ibv;	 /* first */
	struct ibv_ah_attr attr; /* set once */
};

static inline struct vb_pd *vb_pd(struct ibv_pd *p)
{
	return (struct vb_pd *)p;
}

#endif
