#include "iba/opcode.h"

#include <stddef.h>

/* The rows of the families: what the specification calls one, and the headers that its requests have besides
 * those of the operation. */
#define RC_TEXT	 "RC"
#define UC_TEXT	 "UC"
#define UD_TEXT	 "UD"
#define XRC_TEXT "XRC"
enum {
	RC_HEADERS = 0,
	UC_HEADERS = 0,
	UD_HEADERS = VB_OP_DETH,
	XRC_HEADERS = VB_OP_XRCETH,
};

/* Which families have an operation. */
#define BIT(family) (1u << (VB_FAMILY_##family >> 5))
enum {
	RELIABLE = BIT(RC) | BIT(XRC),
	CONNECTED = RELIABLE | BIT(UC),
	ALL = CONNECTED | BIT(UD),
};

enum {
	SEND = VB_OP_SEND | VB_OP_PAYLOAD,
	WRITE = VB_OP_WRITE | VB_OP_PAYLOAD,
	ANSWER = VB_OP_READ | VB_OP_RESPONSE | VB_OP_PAYLOAD,
	FIRST = VB_OP_FIRST,
	LAST = VB_OP_LAST,
	ONLY = VB_OP_FIRST | VB_OP_LAST,
	TAKES = VB_OP_TAKES_WQE,
};

/* The rows of the operations: name, what the specification calls it, which families have it, bits. */
#define OPERATIONS(F)                                                                                  \
	ROW(F, SEND_FIRST, "SEND First", CONNECTED, SEND | FIRST)                                      \
	ROW(F, SEND_MIDDLE, "SEND Middle", CONNECTED, SEND)                                            \
	ROW(F, SEND_LAST, "SEND Last", CONNECTED, SEND | LAST | TAKES)                                 \
	ROW(F, SEND_LAST_IMM, "SEND Last with Immediate", CONNECTED, SEND | LAST | TAKES | VB_OP_IMM)  \
	ROW(F, SEND_ONLY, "SEND Only", ALL, SEND | ONLY | TAKES)                                       \
	ROW(F, SEND_ONLY_IMM, "SEND Only with Immediate", ALL, SEND | ONLY | TAKES | VB_OP_IMM)        \
	ROW(F, WRITE_FIRST, "RDMA WRITE First", CONNECTED, WRITE | FIRST | VB_OP_RETH)                 \
	ROW(F, WRITE_MIDDLE, "RDMA WRITE Middle", CONNECTED, WRITE)                                    \
	ROW(F, WRITE_LAST, "RDMA WRITE Last", CONNECTED, WRITE | LAST)                                 \
	ROW(F, WRITE_LAST_IMM, "RDMA WRITE Last with Immediate", CONNECTED,                            \
	    WRITE | LAST | TAKES | VB_OP_IMM)                                                          \
	ROW(F, WRITE_ONLY, "RDMA WRITE Only", CONNECTED, WRITE | ONLY | VB_OP_RETH)                    \
	ROW(F, WRITE_ONLY_IMM, "RDMA WRITE Only with Immediate", CONNECTED,                            \
	    WRITE | ONLY | TAKES | VB_OP_RETH | VB_OP_IMM)                                             \
	ROW(F, READ_REQUEST, "RDMA READ Request", RELIABLE, VB_OP_READ | ONLY | VB_OP_RETH)            \
	ROW(F, READ_RESP_FIRST, "RDMA READ Response First", RELIABLE, ANSWER | FIRST | VB_OP_AETH)     \
	ROW(F, READ_RESP_MIDDLE, "RDMA READ Response Middle", RELIABLE, ANSWER)                        \
	ROW(F, READ_RESP_LAST, "RDMA READ Response Last", RELIABLE, ANSWER | LAST | VB_OP_AETH)        \
	ROW(F, READ_RESP_ONLY, "RDMA READ Response Only", RELIABLE, ANSWER | ONLY | VB_OP_AETH)        \
	ROW(F, ACK, "Acknowledge", RELIABLE, VB_OP_RESPONSE | ONLY | VB_OP_AETH)                       \
	ROW(F, ATOMIC_ACK, "ATOMIC Acknowledge", RELIABLE,                                             \
	    VB_OP_ATOMIC | VB_OP_RESPONSE | ONLY | VB_OP_AETH | VB_OP_ATOMICACK)                       \
	ROW(F, CMP_SWAP, "CmpSwap", RELIABLE, VB_OP_ATOMIC | ONLY | VB_OP_ATOMICETH)                   \
	ROW(F, FETCH_ADD, "FetchAdd", RELIABLE, VB_OP_ATOMIC | ONLY | VB_OP_ATOMICETH)                 \
	ROW(F, SEND_LAST_INV, "SEND Last with Invalidate", RELIABLE, SEND | LAST | TAKES | VB_OP_IETH) \
	ROW(F, SEND_ONLY_INV, "SEND Only with Invalidate", RELIABLE, SEND | ONLY | TAKES | VB_OP_IETH) \
	ROW(F, FLUSH, "FLUSH", RELIABLE, VB_OP_FLUSH | ONLY | VB_OP_FETH | VB_OP_RETH)                 \
	ROW(F, ATOMIC_WRITE, "ATOMIC WRITE", RELIABLE, VB_OP_WORD | ONLY | VB_OP_RETH | VB_OP_PAYLOAD)

/* An opcode's row, from those of its family F and its operation. */
#define ROW(F, operation, text, families, flags)                                         \
	[VB_FAMILY_##F | VB_##operation] = {HAS(F, families) ? F##_TEXT " " text : NULL, \
					    HAS(F, families) ? BITS(F, flags) : 0,       \
					    HAS(F, families) ? LENGTH(BITS(F, flags)) : 0},
#define HAS(F, families) ((families)&BIT(F))
#define BITS(F, flags)	 ((flags) | ((flags)&VB_OP_RESPONSE ? 0 : F##_HEADERS))
#define LENGTH(bits)                                                                               \
	(12 + IF(bits, DETH, 8) + IF(bits, XRCETH, 4) + IF(bits, FETH, 4) + IF(bits, RETH, 16) +   \
	 IF(bits, AETH, 4) + IF(bits, ATOMICETH, 28) + IF(bits, ATOMICACK, 8) + IF(bits, IMM, 4) + \
	 IF(bits, IETH, 4) + IF(bits, CNPETH, 16))
#define IF(bits, header, length) ((bits)&VB_OP_##header ? (length) : 0)

const struct vb_opcode_row vb_opcodes[256] = {
    OPERATIONS(RC) OPERATIONS(UC) OPERATIONS(UD)
	OPERATIONS(XRC)[VB_FAMILY_CNP | VB_NOTIFY] = {"CNP", ONLY | VB_OP_CNPETH, LENGTH(VB_OP_CNPETH)}};

enum vb_family vb_opcode_family(enum ibv_qp_type type)
{
	switch (type) {
	case IBV_QPT_UC:
		return VB_FAMILY_UC;
	case IBV_QPT_UD:
		return VB_FAMILY_UD;
	case IBV_QPT_XRC_SEND:
	case IBV_QPT_XRC_RECV:
		return VB_FAMILY_XRC;
	case IBV_QPT_RC:
	case IBV_QPT_RAW_PACKET: /* these two have no opcodes */
	case IBV_QPT_DRIVER:
		break;
	}
	return VB_FAMILY_RC;
}

enum ibv_qp_type vb_opcode_type(uint32_t family)
{
	switch (family) {
	case VB_FAMILY_UC:
		return IBV_QPT_UC;
	case VB_FAMILY_UD:
		return IBV_QPT_UD;
	case VB_FAMILY_XRC:
		return IBV_QPT_XRC_SEND;
	default:
		return IBV_QPT_RC;
	}
}
