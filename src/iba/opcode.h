/* BTH opcodes as data (IBTA volume 1, 9.2: operation codes and the headers that follow each).
 *
 * The codec, the engines, a capture and the tests read these rows; nothing else knows which header follows
 * which opcode. */
#ifndef VB_IBA_OPCODE_H
#define VB_IBA_OPCODE_H

#include <stdint.h>

enum vb_opcode {
	VB_RC_SEND_FIRST = 0x00,
	VB_RC_SEND_MIDDLE = 0x01,
	VB_RC_SEND_LAST = 0x02,
	VB_RC_SEND_LAST_IMM = 0x03,
	VB_RC_SEND_ONLY = 0x04,
	VB_RC_SEND_ONLY_IMM = 0x05,
	VB_RC_WRITE_FIRST = 0x06,
	VB_RC_WRITE_MIDDLE = 0x07,
	VB_RC_WRITE_LAST = 0x08,
	VB_RC_WRITE_LAST_IMM = 0x09,
	VB_RC_WRITE_ONLY = 0x0a,
	VB_RC_WRITE_ONLY_IMM = 0x0b,
	VB_RC_READ_REQUEST = 0x0c,
	VB_RC_READ_RESP_FIRST = 0x0d,
	VB_RC_READ_RESP_MIDDLE = 0x0e,
	VB_RC_READ_RESP_LAST = 0x0f,
	VB_RC_READ_RESP_ONLY = 0x10,
	VB_RC_ACK = 0x11,
	VB_RC_ATOMIC_ACK = 0x12,
	VB_RC_CMP_SWAP = 0x13,
	VB_RC_FETCH_ADD = 0x14,
	VB_RC_SEND_LAST_INV = 0x16,
	VB_RC_SEND_ONLY_INV = 0x17,
};

/* What an opcode is, as bits: the headers behind the BTH, the place in a message, the kind of operation. */
enum vb_opcode_bits {
	VB_OP_RETH = 1 << 0,	  /* 16 bytes: address, R_Key, DMA length */
	VB_OP_AETH = 1 << 1,	  /* 4 bytes: syndrome, MSN */
	VB_OP_ATOMICETH = 1 << 2, /* 28 bytes: address, R_Key, swap/add, compare */
	VB_OP_ATOMICACK = 1 << 3, /* 8 bytes: original value */
	VB_OP_IMM = 1 << 4,	  /* 4 bytes: immediate data */
	VB_OP_IETH = 1 << 5,	  /* 4 bytes: R_Key to invalidate */
	VB_OP_PAYLOAD = 1 << 6,	  /* may carry payload */
	VB_OP_FIRST = 1 << 7,	  /* begins a message (FIRST and ONLY) */
	VB_OP_LAST = 1 << 8,	  /* ends a message (LAST and ONLY) */
	VB_OP_RESPONSE = 1 << 9,  /* goes from responder to requester */
	VB_OP_SEND = 1 << 10,
	VB_OP_WRITE = 1 << 11,
	VB_OP_READ = 1 << 12,
	VB_OP_ATOMIC = 1 << 13,
	VB_OP_TAKES_WQE = 1 << 14, /* ends by consuming a receive work request */
};

struct vb_opcode_row {
	const char *name; /* as the specification spells it; NULL: no such opcode */
	uint16_t bits;	  /* enum vb_opcode_bits */
	uint8_t hdr_len;  /* BTH and extension headers, bytes */
};

extern const struct vb_opcode_row vb_opcodes[256];

#endif
