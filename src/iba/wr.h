/* Work requests of the send queue as data: one row for each says everything about it that is not a
 * computation.  Posting, requester, completer, direct placement and the tests read the same rows. */
#ifndef VB_IBA_WR_H
#define VB_IBA_WR_H

#include <stdbool.h>
#include <stdint.h>

#include <infiniband/verbs.h>

enum vb_wr_bits {
	VB_WR_INLINE = 1 << 0,	/* may bring its data along (IBV_SEND_INLINE) */
	VB_WR_REMOTE = 1 << 1,	/* names an address and an R_Key of the far end */
	VB_WR_FETCH = 1 << 2,	/* has an answer of its own: counts as outstanding READ or atomic (rule 14) */
	VB_WR_ATOMIC = 1 << 3,	/* has operands, and moves 8 bytes */
	VB_WR_COMPARE = 1 << 4, /* an atomic with two operands: compares first */
	VB_WR_IMM = 1 << 5,	/* has an immediate */
	VB_WR_INV = 1 << 6,	/* names an R_Key that the far end invalidates */
	/* Waits for READs and atomics before it, whatever its flags say: a READ may be using the window that
	 * it invalidates, since its answer, or what must be asked for again of it, is on the way. */
	VB_WR_FENCED = 1 << 7,
	VB_WR_LOCAL =
	    1 << 8, /* carried out by this end alone, without a packet: it is about a memory window */
	VB_WR_LENT = 1 << 9,  /* its bytes, where they are many, may be collected by the far end */
	VB_WR_SELF = 1 << 10, /* its call says it all: no list of data belongs to it */
	VB_WR_BARE = 1 << 11, /* its answer brings no data, only that it was carried out */
	VB_WR_WORD = 1 << 12, /* it brings 8 bytes along, which are written at once */
};

/* Its packets, by their place in the message; a request of one packet has only the first. */
struct vb_wr_packets {
	uint8_t only, first, middle, last; /* enum vb_operation */
};

struct vb_wr_row {
	const char *name; /* as sentences call it; NULL: there is no such request */
	uint16_t types;	  /* VB_WR_ON() of the QP types that take it (rule 11) */
	uint16_t bits;	  /* enum vb_wr_bits */
	uint8_t access;	  /* what it wants of the far end's region; 0: it cannot be placed directly */
	struct vb_wr_packets packets;
	uint8_t wc; /* enum ibv_wc_opcode of its completion */
};

/* Of newer headers: enum ibv_wr_opcode, ibv_wc_opcode, ibv_qp_create_send_ops_flags. */
enum { VB_WR_FLUSH = 14, VB_WC_FLUSH = 8, VB_QP_EX_WITH_FLUSH = 1 << 11 };

/* Of newer headers: enum ibv_access_flags.  No memory is persistent here. */
enum { VB_ACCESS_FLUSH_GLOBAL = 1 << 8, VB_ACCESS_FLUSH_PERSISTENT = 1 << 9 };

#define VB_WR_ON(qp_type) (1u << (qp_type))

enum { VB_WR_NONE = 16, VB_WR_ROWS };
extern const struct vb_wr_row
    vb_wrs[VB_WR_ROWS]; /* by enum ibv_wr_opcode; VB_WR_NONE: all that there are not */

/* For opcodes that an application gave. */
static inline const struct vb_wr_row *vb_wr_row(uint32_t opcode)
{
	return &vb_wrs[opcode < VB_WR_NONE ? opcode : VB_WR_NONE];
}

/* The bit of send_ops_flags (ibv_create_qp_ex) that asks for an opcode of some row. */
static inline uint32_t vb_wr_asked(uint32_t opcode)
{
	/* the header gives them in the order of the opcodes, but these two */
	return opcode == VB_WR_FLUSH	       ? VB_QP_EX_WITH_FLUSH
	       : opcode == IBV_WR_ATOMIC_WRITE ? IBV_QP_EX_WITH_ATOMIC_WRITE
					       : 1u << opcode;
}

/* All that a QP of this type can be asked for. */
uint32_t vb_wr_askable(enum ibv_qp_type type);

static inline bool vb_wr_is(uint8_t opcode, enum vb_wr_bits bits)
{
	return (vb_wrs[opcode].bits & bits) != 0;
}

#endif
