/* XRC domains.  What a domain is, its id says: two objects of one id are the same domain, in whatever process
 * of the network namespace they were opened. */
#ifndef VB_OBJ_XRCD_H
#define VB_OBJ_XRCD_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include <infiniband/verbs.h>

/* The file that stands for the domain; one that has none is this process's alone. */
struct vb_xrcd_id {
	uint64_t dev; /* VB_XRCD_PRIVATE: no file */
	uint64_t ino; /* of a private one, a number that no other of this process has */
};
#define VB_XRCD_PRIVATE (~0ull)

struct vb_xrcd {
	struct ibv_xrcd ibv;   /* first */
	_Atomic uint32_t refs; /* target queue pairs and SRQs, and queue pairs that were opened */
	struct vb_xrcd_id id;  /* set once */
};

static inline struct vb_xrcd *vb_xrcd(struct ibv_xrcd *x)
{
	return (struct vb_xrcd *)x;
}

static inline bool vb_xrcd_is(const struct vb_xrcd_id *a, const struct vb_xrcd_id *b)
{
	return a->dev == b->dev && a->ino == b->ino;
}

#endif
