#include "iba/wr.h"

#include "iba/opcode.h"

enum {
	RC = VB_WR_ON(IBV_QPT_RC) | VB_WR_ON(IBV_QPT_XRC_SEND), /* the reliable ones */
	CONNECTED = RC | VB_WR_ON(IBV_QPT_UC),
	ALL = CONNECTED | VB_WR_ON(IBV_QPT_UD),
	WRITE = IBV_ACCESS_REMOTE_WRITE,
	READ = IBV_ACCESS_REMOTE_READ,
	ATOMIC = IBV_ACCESS_REMOTE_ATOMIC,
};

const struct vb_wr_row vb_wrs[VB_WR_ROWS] = {
    [IBV_WR_RDMA_WRITE] = {"RDMA WRITE",
			   CONNECTED,
			   VB_WR_INLINE | VB_WR_REMOTE,
			   WRITE,
			   {VB_WRITE_ONLY, VB_WRITE_FIRST, VB_WRITE_MIDDLE, VB_WRITE_LAST},
			   IBV_WC_RDMA_WRITE},
    [IBV_WR_RDMA_WRITE_WITH_IMM] = {"RDMA WRITE with immediate",
				    CONNECTED,
				    VB_WR_INLINE | VB_WR_REMOTE | VB_WR_IMM,
				    WRITE,
				    {VB_WRITE_ONLY_IMM, VB_WRITE_FIRST, VB_WRITE_MIDDLE, VB_WRITE_LAST_IMM},
				    IBV_WC_RDMA_WRITE},
    [IBV_WR_SEND] = {"SEND",
		     ALL,
		     VB_WR_INLINE | VB_WR_LENT,
		     0,
		     {VB_SEND_ONLY, VB_SEND_FIRST, VB_SEND_MIDDLE, VB_SEND_LAST},
		     IBV_WC_SEND},
    [IBV_WR_SEND_WITH_IMM] = {"SEND with immediate",
			      ALL,
			      VB_WR_INLINE | VB_WR_IMM | VB_WR_LENT,
			      0,
			      {VB_SEND_ONLY_IMM, VB_SEND_FIRST, VB_SEND_MIDDLE, VB_SEND_LAST_IMM},
			      IBV_WC_SEND},
    [IBV_WR_RDMA_READ] =
	{"RDMA READ", RC, VB_WR_REMOTE | VB_WR_FETCH, READ, {VB_READ_REQUEST, 0, 0, 0}, IBV_WC_RDMA_READ},
    [IBV_WR_ATOMIC_CMP_AND_SWP] = {"compare-and-swap",
				   RC,
				   VB_WR_REMOTE | VB_WR_FETCH | VB_WR_ATOMIC | VB_WR_COMPARE,
				   ATOMIC,
				   {VB_CMP_SWAP, 0, 0, 0},
				   IBV_WC_COMP_SWAP},
    [IBV_WR_ATOMIC_FETCH_AND_ADD] = {"fetch-and-add",
				     RC,
				     VB_WR_REMOTE | VB_WR_FETCH | VB_WR_ATOMIC,
				     ATOMIC,
				     {VB_FETCH_ADD, 0, 0, 0},
				     IBV_WC_FETCH_ADD},
    [IBV_WR_LOCAL_INV] = {"local invalidate", CONNECTED, VB_WR_LOCAL, 0, {0, 0, 0, 0}, IBV_WC_LOCAL_INV},
    [IBV_WR_BIND_MW] = {"memory window bind", CONNECTED, VB_WR_LOCAL, 0, {0, 0, 0, 0}, IBV_WC_BIND_MW},
    [IBV_WR_SEND_WITH_INV] = {"SEND with invalidate",
			      RC,
			      VB_WR_INLINE | VB_WR_INV | VB_WR_FENCED | VB_WR_LENT,
			      0,
			      {VB_SEND_ONLY_INV, VB_SEND_FIRST, VB_SEND_MIDDLE, VB_SEND_LAST_INV},
			      IBV_WC_SEND},
    [VB_WR_FLUSH] = {"FLUSH",
		     RC,
		     VB_WR_REMOTE | VB_WR_FETCH | VB_WR_SELF | VB_WR_BARE,
		     0,
		     {VB_FLUSH, 0, 0, 0},
		     VB_WC_FLUSH},
    [IBV_WR_ATOMIC_WRITE] = {"ATOMIC WRITE",
			     RC,
			     VB_WR_REMOTE | VB_WR_FETCH | VB_WR_SELF | VB_WR_BARE | VB_WR_WORD,
			     0,
			     {VB_ATOMIC_WRITE, 0, 0, 0},
			     IBV_WC_ATOMIC_WRITE},
};

uint32_t vb_wr_askable(enum ibv_qp_type type)
{
	uint32_t all = 0;

	for (uint32_t op = 0; op < VB_WR_NONE; op++)
		if (vb_wrs[op].types & VB_WR_ON(type))
			all |= vb_wr_asked(op);
	return all;
}
