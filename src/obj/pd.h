/* Protection domains, parent and thread domains, memory regions: names and references; what keys mean is
 * mem/'s.
 */
#ifndef VB_OBJ_PD_H
#define VB_OBJ_PD_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <infiniband/verbs.h>

#include "base/list.h"
#include "iba/away.h"
#include "iba/grh.h"

struct vb_context;

/* What can be made in a protection domain. */
enum vb_pd_child {
	VB_CHILD_MR,
	VB_CHILD_MW,
	VB_CHILD_QP,
	VB_CHILD_SRQ,
	VB_CHILD_AH,
	VB_CHILD_PARENT, /* parent domains */
	VB_CHILD_BUF,	 /* of ibv_alloc_buf() */
	VB_CHILD_CQ,	 /* made in a parent domain */
	VB_CHILDREN
};

struct vb_pd {
	struct ibv_pd ibv;     /* first: what the application holds */
	_Atomic uint32_t refs; /* children of all kinds; each adds itself, by vb_pd_count() */
	_Atomic uint32_t children[VB_CHILDREN]; /* by kind, to be told */
	struct vb_list on_ctx;			/* vb_context.pd_list, guarded by its lock */
	uint64_t id;		  /* never 0; what key entries and QPs compare (mem/keys.h); set once */
	bool imported;		  /* of another context, by its handle there: it is not in our table */
	bool member;		  /* its process is a member of a shared domain (vb_member_leave) */
	struct vb_parent *parent; /* of a parent domain; NULL: it is none.  Set once */
};

/* What a parent domain has beyond the domain that it stands for, whose `id` it has too: so it goes wherever a
 * domain goes, and what is made in it counts as its child. */
struct vb_parent {
	struct vb_pd *pd; /* given at its making; counts this one as a child.  All set once */
	struct vb_td *td; /* NULL: none */
	void *(*alloc)(struct ibv_pd *pd, void *pd_context, size_t size, size_t alignment, uint64_t type);
	void (*free)(struct ibv_pd *pd, void *pd_context, void *ptr, uint64_t type);
	void *pd_context;
};

struct vb_td {
	struct ibv_td ibv;     /* first */
	_Atomic uint32_t refs; /* parent domains */
};

/* Memory of queues, which a parent domain's callbacks may give.  `at` is aligned to a cache line. */
enum vb_queue_kind { VB_QUEUE_SEND = 1, VB_QUEUE_RECV, VB_QUEUE_SRQ, VB_QUEUE_CQ }; /* resource_type */

struct vb_queue_mem {
	void *at;
	size_t bytes;	    /* as asked for */
	struct vb_pd *from; /* whose callback gave it; NULL: nobody's did */
	enum vb_queue_kind kind;
};

/* 0, or after saying it ENOMEM, or EINVAL: what the callback gave is not aligned as it was asked to be.  pd:
 * NULL or the domain in which the queue's object is made; n: the entries that were asked for, and call: what
 * the program called, for the sentence. Memory of callbacks is zeroed by them. */
int vb_queue_alloc(struct vb_queue_mem *m, struct vb_pd *pd, enum vb_queue_kind kind, size_t bytes,
		   uint32_t n, const char *call);
void vb_queue_free(struct vb_queue_mem *m);

enum vb_mr_source {
	VB_MR_MEMORY,	/* the program's */
	VB_MR_RELAXED,	/* the program's, of ibv_reg_mr_relaxed(): lives and ends in its pool (obj/relaxed.h)
			 */
	VB_MR_DM,	/* device memory */
	VB_MR_IMPORTED, /* another context's, which alone can take it back */
	VB_MR_DMABUF,
	VB_MR_NULL, /* nothing */
};

struct vb_mr {
	struct ibv_mr ibv; /* first */
	struct vb_pd *pd;
	uint64_t iova;	 /* first address as keys address it */
	uint32_t access; /* of the key */
	uint32_t asked;	 /* as the program gave it */
	uint32_t kind;	 /* enum vb_key_kind */
	uint32_t source; /* enum vb_mr_source; set once, as what follows */
	/* What the region was made of, and how to give it back once nobody touches it any more. */
	void (*release)(struct vb_mr *mr); /* NULL: nothing to give back */
	void *of;
	_Atomic uint32_t *dmah; /* count of the DMA handle that it was made with, NULL: none; one less when
				   it goes */
};

struct vb_far;

struct vb_ah {
	struct ibv_ah ibv;	 /* first */
	struct ibv_ah_attr attr; /* set once */
	struct vb_route route;	 /* of attr; set once, as are the next three */
	uint32_t number;	 /* that of ibv.handle */
	uint64_t pd_id;
	struct vb_reach_away away; /* of an address that leads nowhere, set once */
	bool group;		   /* it is a multicast group's */
	/* By which number its datagrams name their destination (obj/dests.h): VB_DEST_BY_QPN for the
	 * processes of this host.  VB_DEST_NOWHERE: it leads nowhere, which may turn out otherwise later. */
	_Atomic uint32_t dest;
	_Atomic(struct vb_far *) far; /* keeps the number; NULL: it needs none */
};

static inline struct vb_pd *vb_pd(struct ibv_pd *p)
{
	return (struct vb_pd *)p;
}

/* n children more; (uint32_t)-n: less. */
static inline void vb_pd_count(struct vb_pd *pd, enum vb_pd_child kind, uint32_t n)
{
	atomic_fetch_add(&pd->children[kind], n);
	atomic_fetch_add(&pd->refs, n);
}

#endif
