/* The numbers of a communication manager: comm IDs that are in use or in TIMEWAIT, what belongs to each of
 * them (the far end's comm ID, both QPNs, the far end's CA GUID), and when something is due for it.
 *
 * A number outlives its connection: one in TIMEWAIT is a line of this table and nothing else.  Each lookup is
 * one hash chain, whose seed is drawn by chance, since half of what is looked up was chosen by the far end.
 * What is due next stands at the top of a heap.
 *
 * A slot is the index of a line.  vb_cm_num_take() and vb_cm_num_drop() may move all of them; connections are
 * told (vb_cm_inner.slot), other slots that somebody remembers are no longer good. */
#ifndef VB_CM_NUMBERS_H
#define VB_CM_NUMBERS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define VB_CM_NONE UINT32_MAX

struct vb_cm_conn;

/* By what a number is found. */
enum vb_cm_key {
	VB_CM_BY_ID,	     /* local_id */
	VB_CM_BY_REMOTE,     /* guid, remote_id */
	VB_CM_BY_REMOTE_QPN, /* guid, remote_qpn */
	VB_CM_BY_QPN,	     /* local_qpn: QPs in TIMEWAIT */
	VB_CM_BY_SIDR,	     /* guid: of the far end's GID; remote_id: the request ID */
	VB_CM_KEYS
};

struct vb_cm_num {
	uint64_t guid;
	uint64_t due;		 /* VB_NEVER: nothing is */
	struct vb_cm_conn *conn; /* NULL: TIMEWAIT alone */
	uint32_t local_id, remote_id, local_qpn, remote_qpn;
	uint32_t next[VB_CM_KEYS]; /* in the chain of that key */
	uint32_t heap_at;	   /* VB_CM_NONE: not in the heap */
	uint8_t used;
	uint8_t keyed; /* bit k: it is in a chain of key k, and the fields of that key do not change */
};

struct vb_cm_numbers {
	struct vb_cm_num *of; /* room of them */
	uint32_t *heads;      /* room of them for each key */
	uint32_t *heap;
	uint32_t room; /* a power of two, or 0 */
	uint32_t used, in_heap;
	uint32_t free; /* the first free slot; each leads to the next by next[0] */
	uint64_t seed;
};

void vb_cm_numbers_init(struct vb_cm_numbers *n, uint64_t seed);
void vb_cm_numbers_fini(struct vb_cm_numbers *n);

/* A new line with that comm ID, which nobody has; its slot, VB_CM_NONE: no memory. */
uint32_t vb_cm_num_take(struct vb_cm_numbers *n, struct vb_cm_conn *conn, uint32_t local_id);
/* The line is forgotten, wherever it stands. */
void vb_cm_num_drop(struct vb_cm_numbers *n, uint32_t slot);

static inline struct vb_cm_num *vb_cm_num(struct vb_cm_numbers *n, uint32_t slot)
{
	return &n->of[slot];
}

/* Makes the line known by that key, or unknown; both may be repeated. */
void vb_cm_num_key(struct vb_cm_numbers *n, uint32_t slot, enum vb_cm_key key);
void vb_cm_num_unkey(struct vb_cm_numbers *n, uint32_t slot, enum vb_cm_key key);
/* The first line of that key and the next of the same, VB_CM_NONE: there is none (any more).  guid means
 * nothing where the key has none. */
uint32_t vb_cm_num_find(const struct vb_cm_numbers *n, enum vb_cm_key key, uint64_t guid, uint32_t number);
uint32_t vb_cm_num_more(const struct vb_cm_numbers *n, enum vb_cm_key key, uint32_t slot);

void vb_cm_num_due(struct vb_cm_numbers *n, uint32_t slot, uint64_t due);
/* What is due first; VB_CM_NONE: nothing. */
static inline uint32_t vb_cm_num_first(const struct vb_cm_numbers *n)
{
	return n->in_heap ? n->heap[0] : VB_CM_NONE;
}

#endif
