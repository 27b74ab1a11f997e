/* BTH opcodes as data (IBTA volume 1, 9.2: operation codes and the headers that follow each; annex A14: XRC,
 * A19: FLUSH and ATOMIC WRITE).
 *
 * An opcode is a family (the transport, in the upper three bits) and an operation (in the lower five).  Each
 * of both has one row in opcode.c, and an opcode's row follows from the two at compile time.  The codec, the
 * engines, a capture and the tests read these rows; nothing else knows which header follows which opcode. */
#ifndef VB_IBA_OPCODE_H
#define VB_IBA_OPCODE_H

#include <stdint.h>

#include <infiniband/verbs.h>

/* RD (0x40), which no verb makes, has no rows: its opcodes are unknown.  CNP has one opcode, and no queue
 * pair is of that family: what it tells of is the path of a connected one (annex A17.9). */
enum vb_family {
	VB_FAMILY_RC = 0x00,
	VB_FAMILY_UC = 0x20,
	VB_FAMILY_UD = 0x60,
	VB_FAMILY_CNP = 0x80,
	VB_FAMILY_XRC = 0xa0,
};
#define VB_FAMILY(opcode) ((opcode)&0xe0)

enum vb_operation {
	VB_SEND_FIRST = 0x00,
	VB_SEND_MIDDLE = 0x01,
	VB_NOTIFY = 0x01, /* of CNP */
	VB_SEND_LAST = 0x02,
	VB_SEND_LAST_IMM = 0x03,
	VB_SEND_ONLY = 0x04,
	VB_SEND_ONLY_IMM = 0x05,
	VB_WRITE_FIRST = 0x06,
	VB_WRITE_MIDDLE = 0x07,
	VB_WRITE_LAST = 0x08,
	VB_WRITE_LAST_IMM = 0x09,
	VB_WRITE_ONLY = 0x0a,
	VB_WRITE_ONLY_IMM = 0x0b,
	VB_READ_REQUEST = 0x0c,
	VB_READ_RESP_FIRST = 0x0d,
	VB_READ_RESP_MIDDLE = 0x0e,
	VB_READ_RESP_LAST = 0x0f,
	VB_READ_RESP_ONLY = 0x10,
	VB_ACK = 0x11,
	VB_ATOMIC_ACK = 0x12,
	VB_CMP_SWAP = 0x13,
	VB_FETCH_ADD = 0x14,
	VB_SEND_LAST_INV = 0x16,
	VB_SEND_ONLY_INV = 0x17,
	VB_FLUSH = 0x1c,
	VB_ATOMIC_WRITE = 0x1d,
};
#define VB_OPERATION(opcode) ((opcode)&0x1f)

/* What an opcode is, as bits: the headers behind the BTH in the order in which they stand there, the place in
 * a message, the kind of operation. */
enum vb_opcode_bits {
	VB_OP_DETH = 1 << 0,	  /* 8 bytes: Q_Key, source QP */
	VB_OP_XRCETH = 1 << 1,	  /* 4 bytes: XRC SRQ */
	VB_OP_FETH = 1 << 2,	  /* 4 bytes: placement type, selectivity level */
	VB_OP_RETH = 1 << 3,	  /* 16 bytes: address, R_Key, DMA length */
	VB_OP_AETH = 1 << 4,	  /* 4 bytes: syndrome, MSN */
	VB_OP_ATOMICETH = 1 << 5, /* 28 bytes: address, R_Key, swap/add, compare */
	VB_OP_ATOMICACK = 1 << 6, /* 8 bytes: original value */
	VB_OP_IMM = 1 << 7,	  /* 4 bytes: immediate data */
	VB_OP_IETH = 1 << 8,	  /* 4 bytes: R_Key to invalidate */
	VB_OP_CNPETH = 1 << 9,	  /* 16 bytes, reserved */
	VB_OP_HEADERS = 0xffff,	  /* all of these, and those to come */

	VB_OP_PAYLOAD = 1 << 16,  /* may carry payload */
	VB_OP_FIRST = 1 << 17,	  /* begins a message (FIRST and ONLY) */
	VB_OP_LAST = 1 << 18,	  /* ends a message (LAST and ONLY) */
	VB_OP_RESPONSE = 1 << 19, /* goes from responder to requester */
	VB_OP_SEND = 1 << 20,
	VB_OP_WRITE = 1 << 21,
	VB_OP_READ = 1 << 22,
	VB_OP_ATOMIC = 1 << 23,
	VB_OP_TAKES_WQE = 1 << 24, /* ends by consuming a receive work request */
	VB_OP_WORD = 1 << 25,	   /* ATOMIC WRITE */
	VB_OP_FLUSH = 1 << 26,
	/* Requests that take a responder resource, and have an answer of their own. */
	VB_OP_HELD = VB_OP_READ | VB_OP_ATOMIC | VB_OP_WORD | VB_OP_FLUSH,
};

struct vb_opcode_row {
	const char *name; /* as the specification spells it; NULL: no such opcode */
	uint32_t bits;	  /* enum vb_opcode_bits */
	uint8_t hdr_len;  /* BTH and extension headers, bytes */
};

extern const struct vb_opcode_row vb_opcodes[256];

/* The family of the opcodes that a queue pair of this type sends, and takes. */
enum vb_family vb_opcode_family(enum ibv_qp_type type);
/* A type whose queue pairs send opcodes of the family, which may be any number. */
enum ibv_qp_type vb_opcode_type(uint32_t family);

#endif
