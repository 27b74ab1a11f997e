#include "iba/names.h"

#include <inttypes.h>

#include <infiniband/verbs.h>

#include "base/text.h"

#define LENGTH(a) (sizeof(a) / sizeof((a)[0]))
#define ROW(e)	  [e] = #e

static const char *name_in(const char *const *names, size_t n, uint32_t value)
{
	return value < n ? names[value] : NULL;
}

const char *vb_name_wc_status(uint32_t status)
{
	static const char *const names[] = {
	    ROW(IBV_WC_SUCCESS),	   ROW(IBV_WC_LOC_LEN_ERR),
	    ROW(IBV_WC_LOC_QP_OP_ERR),	   ROW(IBV_WC_LOC_EEC_OP_ERR),
	    ROW(IBV_WC_LOC_PROT_ERR),	   ROW(IBV_WC_WR_FLUSH_ERR),
	    ROW(IBV_WC_MW_BIND_ERR),	   ROW(IBV_WC_BAD_RESP_ERR),
	    ROW(IBV_WC_LOC_ACCESS_ERR),	   ROW(IBV_WC_REM_INV_REQ_ERR),
	    ROW(IBV_WC_REM_ACCESS_ERR),	   ROW(IBV_WC_REM_OP_ERR),
	    ROW(IBV_WC_RETRY_EXC_ERR),	   ROW(IBV_WC_RNR_RETRY_EXC_ERR),
	    ROW(IBV_WC_LOC_RDD_VIOL_ERR),  ROW(IBV_WC_REM_INV_RD_REQ_ERR),
	    ROW(IBV_WC_REM_ABORT_ERR),	   ROW(IBV_WC_INV_EECN_ERR),
	    ROW(IBV_WC_INV_EEC_STATE_ERR), ROW(IBV_WC_FATAL_ERR),
	    ROW(IBV_WC_RESP_TIMEOUT_ERR),  ROW(IBV_WC_GENERAL_ERR),
	};

	return name_in(names, LENGTH(names), status);
}

const char *vb_name_wr_opcode(uint32_t opcode)
{
	static const char *const names[] = {
	    ROW(IBV_WR_RDMA_WRITE),
	    ROW(IBV_WR_RDMA_WRITE_WITH_IMM),
	    ROW(IBV_WR_SEND),
	    ROW(IBV_WR_SEND_WITH_IMM),
	    ROW(IBV_WR_RDMA_READ),
	    ROW(IBV_WR_ATOMIC_CMP_AND_SWP),
	    ROW(IBV_WR_ATOMIC_FETCH_AND_ADD),
	    ROW(IBV_WR_LOCAL_INV),
	    ROW(IBV_WR_BIND_MW),
	    ROW(IBV_WR_SEND_WITH_INV),
	    ROW(IBV_WR_TSO),
	    ROW(IBV_WR_DRIVER1),
	    [14] = "IBV_WR_FLUSH", /* of newer headers */
	    ROW(IBV_WR_ATOMIC_WRITE),
	};

	return name_in(names, LENGTH(names), opcode);
}

const char *vb_name_qp_type(uint32_t type)
{
	static const char *const names[] = {
	    ROW(IBV_QPT_RC),	   ROW(IBV_QPT_UC),	  ROW(IBV_QPT_UD),     ROW(IBV_QPT_RAW_PACKET),
	    ROW(IBV_QPT_XRC_SEND), ROW(IBV_QPT_XRC_RECV), ROW(IBV_QPT_DRIVER),
	};

	return name_in(names, LENGTH(names), type);
}

const char *vb_name_mig_state(uint32_t state)
{
	static const char *const names[] = {ROW(IBV_MIG_MIGRATED), ROW(IBV_MIG_REARM), ROW(IBV_MIG_ARMED)};

	return name_in(names, LENGTH(names), state);
}

struct flag {
	uint64_t bit;
	const char *name;
};

#define FLAG(e)       \
	{             \
		e, #e \
	}

static const struct flag access_flags[] = {
    FLAG(IBV_ACCESS_LOCAL_WRITE),
    FLAG(IBV_ACCESS_REMOTE_WRITE),
    FLAG(IBV_ACCESS_REMOTE_READ),
    FLAG(IBV_ACCESS_REMOTE_ATOMIC),
    FLAG(IBV_ACCESS_MW_BIND),
    FLAG(IBV_ACCESS_ZERO_BASED),
    FLAG(IBV_ACCESS_ON_DEMAND),
    FLAG(IBV_ACCESS_HUGETLB),
    {1 << 8, "IBV_ACCESS_FLUSH_GLOBAL"}, /* of newer headers, as the next one */
    {1 << 9, "IBV_ACCESS_FLUSH_PERSISTENT"},
    FLAG(IBV_ACCESS_RELAXED_ORDERING),
    {0, NULL},
};

static const struct flag send_flags[] = {
    FLAG(IBV_SEND_FENCE),  FLAG(IBV_SEND_SIGNALED), FLAG(IBV_SEND_SOLICITED),
    FLAG(IBV_SEND_INLINE), FLAG(IBV_SEND_IP_CSUM),  {0, NULL},
};

static const struct flag qp_init_flags[] = {
    FLAG(IBV_QP_INIT_ATTR_PD),
    FLAG(IBV_QP_INIT_ATTR_XRCD),
    FLAG(IBV_QP_INIT_ATTR_CREATE_FLAGS),
    FLAG(IBV_QP_INIT_ATTR_MAX_TSO_HEADER),
    FLAG(IBV_QP_INIT_ATTR_IND_TABLE),
    FLAG(IBV_QP_INIT_ATTR_RX_HASH),
    FLAG(IBV_QP_INIT_ATTR_SEND_OPS_FLAGS),
    {0, NULL},
};

static const struct flag qp_create_flags[] = {
    FLAG(IBV_QP_CREATE_BLOCK_SELF_MCAST_LB),   FLAG(IBV_QP_CREATE_SCATTER_FCS),
    FLAG(IBV_QP_CREATE_CVLAN_STRIPPING),       FLAG(IBV_QP_CREATE_SOURCE_QPN),
    FLAG(IBV_QP_CREATE_PCI_WRITE_END_PADDING), {0, NULL},
};

static const struct flag send_ops_flags[] = {
    FLAG(IBV_QP_EX_WITH_RDMA_WRITE),
    FLAG(IBV_QP_EX_WITH_RDMA_WRITE_WITH_IMM),
    FLAG(IBV_QP_EX_WITH_SEND),
    FLAG(IBV_QP_EX_WITH_SEND_WITH_IMM),
    FLAG(IBV_QP_EX_WITH_RDMA_READ),
    FLAG(IBV_QP_EX_WITH_ATOMIC_CMP_AND_SWP),
    FLAG(IBV_QP_EX_WITH_ATOMIC_FETCH_AND_ADD),
    FLAG(IBV_QP_EX_WITH_LOCAL_INV),
    FLAG(IBV_QP_EX_WITH_BIND_MW),
    FLAG(IBV_QP_EX_WITH_SEND_WITH_INV),
    FLAG(IBV_QP_EX_WITH_TSO),
    {1 << 11, "IBV_QP_EX_WITH_FLUSH"}, /* of newer headers */
    FLAG(IBV_QP_EX_WITH_ATOMIC_WRITE),
    {0, NULL},
};

static const struct flag srq_init_flags[] = {
    FLAG(IBV_SRQ_INIT_ATTR_TYPE), FLAG(IBV_SRQ_INIT_ATTR_PD), FLAG(IBV_SRQ_INIT_ATTR_XRCD),
    FLAG(IBV_SRQ_INIT_ATTR_CQ),	  FLAG(IBV_SRQ_INIT_ATTR_TM), {0, NULL},
};

static const struct flag rereg_flags[] = {
    FLAG(IBV_REREG_MR_CHANGE_TRANSLATION),
    FLAG(IBV_REREG_MR_CHANGE_PD),
    FLAG(IBV_REREG_MR_CHANGE_ACCESS),
    {0, NULL},
};

static const struct flag wc_flags[] = {
    FLAG(IBV_WC_EX_WITH_BYTE_LEN),
    FLAG(IBV_WC_EX_WITH_IMM),
    FLAG(IBV_WC_EX_WITH_QP_NUM),
    FLAG(IBV_WC_EX_WITH_SRC_QP),
    FLAG(IBV_WC_EX_WITH_SLID),
    FLAG(IBV_WC_EX_WITH_SL),
    FLAG(IBV_WC_EX_WITH_DLID_PATH_BITS),
    FLAG(IBV_WC_EX_WITH_COMPLETION_TIMESTAMP),
    FLAG(IBV_WC_EX_WITH_CVLAN),
    FLAG(IBV_WC_EX_WITH_FLOW_TAG),
    FLAG(IBV_WC_EX_WITH_TM_INFO),
    FLAG(IBV_WC_EX_WITH_COMPLETION_TIMESTAMP_WALLCLOCK),
    {0, NULL},
};

const char *vb_name_flags(char *buf, size_t size, enum vb_flags kind, uint64_t bits)
{
	static const struct flag *const tables[] = {
	    [VB_FLAGS_ACCESS] = access_flags,	  [VB_FLAGS_SEND] = send_flags,
	    [VB_FLAGS_QP_INIT] = qp_init_flags,	  [VB_FLAGS_QP_CREATE] = qp_create_flags,
	    [VB_FLAGS_SEND_OPS] = send_ops_flags, [VB_FLAGS_SRQ_INIT] = srq_init_flags,
	    [VB_FLAGS_REREG] = rereg_flags,	  [VB_FLAGS_WC] = wc_flags,
	};
	struct vb_text t = {buf, size};
	const char *sep = "";

	if (!size)
		return buf;
	*buf = 0;
	if (!bits)
		vb_text_add(&t, "0");
	for (const struct flag *f = tables[kind]; f->name; f++) {
		if (!(bits & f->bit))
			continue;
		vb_text_add(&t, "%s%s", sep, f->name);
		sep = " | ";
		bits &= ~f->bit;
	}
	if (bits)
		vb_text_add(&t, "%s0x%" PRIx64, sep, bits);
	return buf;
}
