/* Names for enumerators.  The words are those that users find in logs, manuals and search engines. */
#include <infiniband/verbs.h>

#include "iba/wr.h"
#include "verbs/verbs.h"

#define LENGTH(a) (sizeof(a) / sizeof((a)[0]))

static const char *const wc_status[] = {
    [IBV_WC_SUCCESS] = "success",
    [IBV_WC_LOC_LEN_ERR] = "local length error",
    [IBV_WC_LOC_QP_OP_ERR] = "local QP operation error",
    [IBV_WC_LOC_EEC_OP_ERR] = "local EE context operation error",
    [IBV_WC_LOC_PROT_ERR] = "local protection error",
    [IBV_WC_WR_FLUSH_ERR] = "Work Request Flushed Error",
    [IBV_WC_MW_BIND_ERR] = "memory management operation error",
    [IBV_WC_BAD_RESP_ERR] = "bad response error",
    [IBV_WC_LOC_ACCESS_ERR] = "local access error",
    [IBV_WC_REM_INV_REQ_ERR] = "remote invalid request error",
    [IBV_WC_REM_ACCESS_ERR] = "remote access error",
    [IBV_WC_REM_OP_ERR] = "remote operation error",
    [IBV_WC_RETRY_EXC_ERR] = "transport retry counter exceeded",
    [IBV_WC_RNR_RETRY_EXC_ERR] = "RNR retry counter exceeded",
    [IBV_WC_LOC_RDD_VIOL_ERR] = "local RDD violation error",
    [IBV_WC_REM_INV_RD_REQ_ERR] = "remote invalid RD request",
    [IBV_WC_REM_ABORT_ERR] = "aborted error",
    [IBV_WC_INV_EECN_ERR] = "invalid EE context number",
    [IBV_WC_INV_EEC_STATE_ERR] = "invalid EE context state",
    [IBV_WC_FATAL_ERR] = "fatal error",
    [IBV_WC_RESP_TIMEOUT_ERR] = "response timeout error",
    [IBV_WC_GENERAL_ERR] = "general error",
    [IBV_WC_TM_ERR] = "TM error",
    [IBV_WC_TM_RNDV_INCOMPLETE] = "TM software rendezvous",
};

static const char *const node_type[] = {
    [IBV_NODE_CA] = "InfiniBand channel adapter",
    [IBV_NODE_SWITCH] = "InfiniBand switch",
    [IBV_NODE_ROUTER] = "InfiniBand router",
    [IBV_NODE_RNIC] = "iWARP NIC",
    [IBV_NODE_USNIC] = "usNIC",
    [IBV_NODE_USNIC_UDP] = "usNIC UDP",
    [IBV_NODE_UNSPECIFIED] = "unspecified",
};

static const char *const port_state[] = {
    [IBV_PORT_NOP] = "no state change (NOP)",
    [IBV_PORT_DOWN] = "down",
    [IBV_PORT_INIT] = "init",
    [IBV_PORT_ARMED] = "armed",
    [IBV_PORT_ACTIVE] = "active",
    [IBV_PORT_ACTIVE_DEFER] = "active defer",
};

static const char *const wr_opcode[] = {
    [IBV_WR_RDMA_WRITE] = "rdma-write",
    [IBV_WR_RDMA_WRITE_WITH_IMM] = "rdma-write-with-imm",
    [IBV_WR_SEND] = "send",
    [IBV_WR_SEND_WITH_IMM] = "send-with-imm",
    [IBV_WR_RDMA_READ] = "rdma-read",
    [IBV_WR_ATOMIC_CMP_AND_SWP] = "atomic-cmp-and-swp",
    [IBV_WR_ATOMIC_FETCH_AND_ADD] = "atomic-fetch-and-add",
    [IBV_WR_LOCAL_INV] = "local-inv",
    [IBV_WR_BIND_MW] = "bind-mw",
    [IBV_WR_SEND_WITH_INV] = "send-with-inv",
    [IBV_WR_TSO] = "tso",
    [IBV_WR_DRIVER1] = "driver1",
    [VB_WR_FLUSH] = "flush",
    [IBV_WR_ATOMIC_WRITE] = "atomic-write",
};

/* A negative value is a large index here, hence unknown too. */
static const char *name_of(const char *const *names, size_t count, unsigned int value)
{
	return value < count && names[value] ? names[value] : "unknown";
}

VB_EXPORT const char *ibv_wc_status_str(enum ibv_wc_status status)
{
	return name_of(wc_status, LENGTH(wc_status), (unsigned int)status);
}

VB_EXPORT const char *ibv_node_type_str(enum ibv_node_type type)
{
	return name_of(node_type, LENGTH(node_type), (unsigned int)type);
}

VB_EXPORT const char *ibv_port_state_str(enum ibv_port_state state)
{
	return name_of(port_state, LENGTH(port_state), (unsigned int)state);
}

const char *vb_wr_opcode_str(enum ibv_wr_opcode opcode)
{
	return name_of(wr_opcode, LENGTH(wr_opcode), (unsigned int)opcode);
}
