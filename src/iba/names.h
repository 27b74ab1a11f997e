/* The names of the header's enumerators, for sentences: who reads "type 4" has to look it up. */
#ifndef VB_IBA_NAMES_H
#define VB_IBA_NAMES_H

#include <stddef.h>
#include <stdint.h>

/* One value of an enumeration; NULL: it has none of that number. */
const char *vb_name_wc_status(uint32_t status); /* "IBV_WC_SUCCESS", as are the others */
const char *vb_name_wr_opcode(uint32_t opcode);
const char *vb_name_qp_type(uint32_t type);
const char *vb_name_mig_state(uint32_t state);

/* Bits of a mask. */
enum vb_flags {
	VB_FLAGS_ACCESS,  /* enum ibv_access_flags */
	VB_FLAGS_SEND,	  /* enum ibv_send_flags */
	VB_FLAGS_QP_INIT, /* enum ibv_qp_init_attr_mask */
	VB_FLAGS_QP_CREATE,
	VB_FLAGS_SEND_OPS, /* enum ibv_qp_create_send_ops_flags */
	VB_FLAGS_SRQ_INIT,
	VB_FLAGS_REREG,
	VB_FLAGS_WC, /* enum ibv_create_cq_wc_flags */
	VB_FLAGS_KINDS,
};

enum { VB_FLAGS_TEXT = 400 }; /* has room for all of a mask */

/* Their names joined by " | ", what has none as a number, "0" if there is none; cut to `size`.  Returns buf.
 */
const char *vb_name_flags(char *buf, size_t size, enum vb_flags kind, uint64_t bits);

#endif
