/* The system's <infiniband/verbs.h>, and what Verbena offers beyond it: relaxed regions, shared protection
 * domains, and the calls of newer releases.
 *
 * A newer system's header declares some of this itself, and nothing in it tells which.  So its declarations
 * of these names, if there are any, are given other names while it is read, and those below are what the
 * program uses: the binary interface is the same. */
#ifndef VERBENA_VERBS_H
#define VERBENA_VERBS_H

#pragma GCC system_header /* #include_next is an extension, which the user's warnings should not hear of */

/* Every name that is declared below and that a newer header may declare. */
#define ibv_mr_init_attr			     ibv_mr_init_attr_system
#define ibv_mr_init_attr_mask			     ibv_mr_init_attr_mask_system
#define IBV_REG_MR_MASK_IOVA			     IBV_REG_MR_MASK_IOVA_SYSTEM
#define IBV_REG_MR_MASK_ADDR			     IBV_REG_MR_MASK_ADDR_SYSTEM
#define IBV_REG_MR_MASK_FD			     IBV_REG_MR_MASK_FD_SYSTEM
#define IBV_REG_MR_MASK_FD_OFFSET		     IBV_REG_MR_MASK_FD_OFFSET_SYSTEM
#define IBV_REG_MR_MASK_DMAH			     IBV_REG_MR_MASK_DMAH_SYSTEM
#define IBV_REG_MR_MASK_BUF			     IBV_REG_MR_MASK_BUF_SYSTEM
#define ibv_reg_mr_ex				     ibv_reg_mr_ex_system
#define ibv_dmah				     ibv_dmah_system
#define ibv_dmah_init_attr			     ibv_dmah_init_attr_system
#define ibv_dmah_init_attr_mask			     ibv_dmah_init_attr_mask_system
#define IBV_DMAH_INIT_ATTR_MASK_CPU_ID		     IBV_DMAH_INIT_ATTR_MASK_CPU_ID_SYSTEM
#define IBV_DMAH_INIT_ATTR_MASK_PH		     IBV_DMAH_INIT_ATTR_MASK_PH_SYSTEM
#define IBV_DMAH_INIT_ATTR_MASK_TPH_MEM_TYPE	     IBV_DMAH_INIT_ATTR_MASK_TPH_MEM_TYPE_SYSTEM
#define ibv_tph_mem_type			     ibv_tph_mem_type_system
#define IBV_TPH_MEM_TYPE_VM			     IBV_TPH_MEM_TYPE_VM_SYSTEM
#define IBV_TPH_MEM_TYPE_PM			     IBV_TPH_MEM_TYPE_PM_SYSTEM
#define ibv_alloc_dmah				     ibv_alloc_dmah_system
#define ibv_dealloc_dmah			     ibv_dealloc_dmah_system
#define ibv_buf					     ibv_buf_system
#define ibv_alloc_buf				     ibv_alloc_buf_system
#define ibv_free_buf				     ibv_free_buf_system
#define ibv_reg_buf_mr				     ibv_reg_buf_mr_system
#define ibv_export_buf_dmabuf_fd		     ibv_export_buf_dmabuf_fd_system
#define ibv_dm_export_dmabuf_fd			     ibv_dm_export_dmabuf_fd_system
#define ibv_query_port_speed			     ibv_query_port_speed_system
#define ibv_comp_cntr				     ibv_comp_cntr_system
#define ibv_comp_cntr_type			     ibv_comp_cntr_type_system
#define IBV_COMP_CNTR_TYPE_WRS			     IBV_COMP_CNTR_TYPE_WRS_SYSTEM
#define IBV_COMP_CNTR_TYPE_BYTES		     IBV_COMP_CNTR_TYPE_BYTES_SYSTEM
#define ibv_comp_cntr_init_attr			     ibv_comp_cntr_init_attr_system
#define ibv_comp_cntr_caps			     ibv_comp_cntr_caps_system
#define ibv_qp_attach_comp_cntr_op		     ibv_qp_attach_comp_cntr_op_system
#define IBV_QP_ATTACH_COMP_CNTR_OP_SEND		     IBV_QP_ATTACH_COMP_CNTR_OP_SEND_SYSTEM
#define IBV_QP_ATTACH_COMP_CNTR_OP_RECV		     IBV_QP_ATTACH_COMP_CNTR_OP_RECV_SYSTEM
#define IBV_QP_ATTACH_COMP_CNTR_OP_RDMA_READ	     IBV_QP_ATTACH_COMP_CNTR_OP_RDMA_READ_SYSTEM
#define IBV_QP_ATTACH_COMP_CNTR_OP_REMOTE_RDMA_READ  IBV_QP_ATTACH_COMP_CNTR_OP_REMOTE_RDMA_READ_SYSTEM
#define IBV_QP_ATTACH_COMP_CNTR_OP_RDMA_WRITE	     IBV_QP_ATTACH_COMP_CNTR_OP_RDMA_WRITE_SYSTEM
#define IBV_QP_ATTACH_COMP_CNTR_OP_REMOTE_RDMA_WRITE IBV_QP_ATTACH_COMP_CNTR_OP_REMOTE_RDMA_WRITE_SYSTEM
#define ibv_qp_attach_comp_cntr_attr		     ibv_qp_attach_comp_cntr_attr_system
#define ibv_create_comp_cntr			     ibv_create_comp_cntr_system
#define ibv_destroy_comp_cntr			     ibv_destroy_comp_cntr_system
#define ibv_set_comp_cntr			     ibv_set_comp_cntr_system
#define ibv_set_err_comp_cntr			     ibv_set_err_comp_cntr_system
#define ibv_inc_comp_cntr			     ibv_inc_comp_cntr_system
#define ibv_inc_err_comp_cntr			     ibv_inc_err_comp_cntr_system
#define ibv_read_comp_cntr			     ibv_read_comp_cntr_system
#define ibv_read_err_comp_cntr			     ibv_read_err_comp_cntr_system
#define ibv_qp_attach_comp_cntr			     ibv_qp_attach_comp_cntr_system
#define ibv_query_comp_cntr_caps		     ibv_query_comp_cntr_caps_system
#define _ibv_query_comp_cntr_caps		     _ibv_query_comp_cntr_caps_system
#define ibv_wr_flush				     ibv_wr_flush_system
#define ibv_shpd				     ibv_shpd_system
#define ibv_alloc_shpd				     ibv_alloc_shpd_system
#define ibv_share_pd				     ibv_share_pd_system
#define ibv_reg_mr_relaxed			     ibv_reg_mr_relaxed_system
#define ibv_dereg_mr_relaxed			     ibv_dereg_mr_relaxed_system
#define ibv_flush_relaxed_mr			     ibv_flush_relaxed_mr_system

#include_next <infiniband/verbs.h>

#undef ibv_mr_init_attr
#undef ibv_mr_init_attr_mask
#undef IBV_REG_MR_MASK_IOVA
#undef IBV_REG_MR_MASK_ADDR
#undef IBV_REG_MR_MASK_FD
#undef IBV_REG_MR_MASK_FD_OFFSET
#undef IBV_REG_MR_MASK_DMAH
#undef IBV_REG_MR_MASK_BUF
#undef ibv_reg_mr_ex
#undef ibv_dmah
#undef ibv_dmah_init_attr
#undef ibv_dmah_init_attr_mask
#undef IBV_DMAH_INIT_ATTR_MASK_CPU_ID
#undef IBV_DMAH_INIT_ATTR_MASK_PH
#undef IBV_DMAH_INIT_ATTR_MASK_TPH_MEM_TYPE
#undef ibv_tph_mem_type
#undef IBV_TPH_MEM_TYPE_VM
#undef IBV_TPH_MEM_TYPE_PM
#undef ibv_alloc_dmah
#undef ibv_dealloc_dmah
#undef ibv_buf
#undef ibv_alloc_buf
#undef ibv_free_buf
#undef ibv_reg_buf_mr
#undef ibv_export_buf_dmabuf_fd
#undef ibv_dm_export_dmabuf_fd
#undef ibv_query_port_speed
#undef ibv_comp_cntr
#undef ibv_comp_cntr_type
#undef IBV_COMP_CNTR_TYPE_WRS
#undef IBV_COMP_CNTR_TYPE_BYTES
#undef ibv_comp_cntr_init_attr
#undef ibv_comp_cntr_caps
#undef ibv_qp_attach_comp_cntr_op
#undef IBV_QP_ATTACH_COMP_CNTR_OP_SEND
#undef IBV_QP_ATTACH_COMP_CNTR_OP_RECV
#undef IBV_QP_ATTACH_COMP_CNTR_OP_RDMA_READ
#undef IBV_QP_ATTACH_COMP_CNTR_OP_REMOTE_RDMA_READ
#undef IBV_QP_ATTACH_COMP_CNTR_OP_RDMA_WRITE
#undef IBV_QP_ATTACH_COMP_CNTR_OP_REMOTE_RDMA_WRITE
#undef ibv_qp_attach_comp_cntr_attr
#undef ibv_create_comp_cntr
#undef ibv_destroy_comp_cntr
#undef ibv_set_comp_cntr
#undef ibv_set_err_comp_cntr
#undef ibv_inc_comp_cntr
#undef ibv_inc_err_comp_cntr
#undef ibv_read_comp_cntr
#undef ibv_read_err_comp_cntr
#undef ibv_qp_attach_comp_cntr
#undef ibv_query_comp_cntr_caps
#undef _ibv_query_comp_cntr_caps
#undef ibv_wr_flush
#undef ibv_shpd
#undef ibv_alloc_shpd
#undef ibv_share_pd
#undef ibv_reg_mr_relaxed
#undef ibv_dereg_mr_relaxed
#undef ibv_flush_relaxed_mr

#ifdef __cplusplus
extern "C" {
#endif

/* --- relaxed regions: ibv_reg_mr_relaxed(3) */

struct ibv_mr *ibv_reg_mr_relaxed(struct ibv_pd *pd, void *addr, size_t length, int access);
int ibv_dereg_mr_relaxed(struct ibv_mr *mr);
int ibv_flush_relaxed_mr(struct ibv_pd *pd);

/* --- shared protection domains: ibv_alloc_shpd(3) */

struct ibv_shpd {
	uint32_t handle; /* a plain value: processes copy the struct to one another */
};

struct ibv_shpd *ibv_alloc_shpd(struct ibv_pd *pd, uint64_t share_key, struct ibv_shpd *shpd);
struct ibv_pd *ibv_share_pd(struct ibv_context *context, struct ibv_shpd *shpd, uint64_t share_key);

/* --- DMA handles: ibv_reg_mr_ex(3) */

enum ibv_tph_mem_type {
	IBV_TPH_MEM_TYPE_VM, /* volatile */
	IBV_TPH_MEM_TYPE_PM, /* persistent */
};

enum ibv_dmah_init_attr_mask {
	IBV_DMAH_INIT_ATTR_MASK_CPU_ID = 1 << 0,
	IBV_DMAH_INIT_ATTR_MASK_PH = 1 << 1,
	IBV_DMAH_INIT_ATTR_MASK_TPH_MEM_TYPE = 1 << 2,
};

struct ibv_dmah_init_attr {
	uint32_t comp_mask; /* enum ibv_dmah_init_attr_mask: which of the rest count */
	uint32_t cpu_id;
	uint8_t ph;	      /* processing hint, 0 to 3 */
	uint8_t tph_mem_type; /* enum ibv_tph_mem_type */
};

struct ibv_dmah {
	struct ibv_context *context;
};

struct ibv_dmah *ibv_alloc_dmah(struct ibv_context *context, struct ibv_dmah_init_attr *attr);
int ibv_dealloc_dmah(struct ibv_dmah *dmah);

/* --- one call for every kind of region: ibv_reg_mr_ex(3) */

struct ibv_buf; /* of ibv_alloc_buf() */

enum ibv_mr_init_attr_mask {
	IBV_REG_MR_MASK_IOVA = 1 << 0,
	IBV_REG_MR_MASK_ADDR = 1 << 1,
	IBV_REG_MR_MASK_FD = 1 << 2,
	IBV_REG_MR_MASK_FD_OFFSET = 1 << 3,
	IBV_REG_MR_MASK_DMAH = 1 << 4,
	IBV_REG_MR_MASK_BUF = 1 << 5,
};

struct ibv_mr_init_attr {
	size_t length;
	int access;
	uint64_t comp_mask; /* enum ibv_mr_init_attr_mask: which of the following count */
	uint64_t iova;
	void *addr;
	int fd;
	uint64_t fd_offset;
	struct ibv_dmah *dmah;
	struct ibv_buf *buf;
};

struct ibv_mr *ibv_reg_mr_ex(struct ibv_pd *pd, struct ibv_mr_init_attr *attr);

/* --- memory that the library provides: ibv_alloc_buf(3) */

void *ibv_alloc_buf(struct ibv_pd *pd, size_t size, struct ibv_buf **buf);
void ibv_free_buf(struct ibv_buf *buf);
struct ibv_mr *ibv_reg_buf_mr(struct ibv_pd *pd, struct ibv_buf *buf, void *addr, size_t length, int access);
int ibv_export_buf_dmabuf_fd(struct ibv_buf *buf);

/* --- completion counters: ibv_create_comp_cntr(3) */

struct ibv_comp_cntr {
	struct ibv_context *context;
	uint32_t handle;
};

enum ibv_comp_cntr_type {
	IBV_COMP_CNTR_TYPE_WRS,	  /* counts work requests */
	IBV_COMP_CNTR_TYPE_BYTES, /* counts bytes */
};

struct ibv_comp_cntr_init_attr {
	uint32_t comp_mask; /* 0 */
	enum ibv_comp_cntr_type type;
	uint32_t flags; /* 0 */
};

struct ibv_comp_cntr_caps {
	uint64_t max_value;
	uint32_t max_counters;
	uint32_t supported_qp_attach_ops; /* enum ibv_qp_attach_comp_cntr_op */
};

enum ibv_qp_attach_comp_cntr_op {
	IBV_QP_ATTACH_COMP_CNTR_OP_SEND = 1 << 0,
	IBV_QP_ATTACH_COMP_CNTR_OP_RECV = 1 << 1,
	IBV_QP_ATTACH_COMP_CNTR_OP_RDMA_READ = 1 << 2,
	IBV_QP_ATTACH_COMP_CNTR_OP_REMOTE_RDMA_READ = 1 << 3,
	IBV_QP_ATTACH_COMP_CNTR_OP_RDMA_WRITE = 1 << 4,
	IBV_QP_ATTACH_COMP_CNTR_OP_REMOTE_RDMA_WRITE = 1 << 5,
};

struct ibv_qp_attach_comp_cntr_attr {
	uint32_t comp_mask; /* 0 */
	uint32_t op_mask;   /* enum ibv_qp_attach_comp_cntr_op */
};

struct ibv_comp_cntr *ibv_create_comp_cntr(struct ibv_context *context, struct ibv_comp_cntr_init_attr *attr);
int ibv_destroy_comp_cntr(struct ibv_comp_cntr *cntr);
int ibv_set_comp_cntr(struct ibv_comp_cntr *cntr, uint64_t value);
int ibv_set_err_comp_cntr(struct ibv_comp_cntr *cntr, uint64_t value);
int ibv_inc_comp_cntr(struct ibv_comp_cntr *cntr, uint64_t amount);
int ibv_inc_err_comp_cntr(struct ibv_comp_cntr *cntr, uint64_t amount);
int ibv_read_comp_cntr(struct ibv_comp_cntr *cntr, uint64_t *value);
int ibv_read_err_comp_cntr(struct ibv_comp_cntr *cntr, uint64_t *value);
int ibv_qp_attach_comp_cntr(struct ibv_qp *qp, struct ibv_comp_cntr *cntr,
			    struct ibv_qp_attach_comp_cntr_attr *attr);
int _ibv_query_comp_cntr_caps(struct ibv_context *context, struct ibv_comp_cntr_caps *caps, size_t size);

static inline int ibv_query_comp_cntr_caps(struct ibv_context *context, struct ibv_comp_cntr_caps *caps)
{
	return _ibv_query_comp_cntr_caps(context, caps, sizeof(*caps));
}

/* --- more of newer releases */

int ibv_dm_export_dmabuf_fd(struct ibv_dm *dm);
int ibv_query_port_speed(struct ibv_context *context, uint32_t port, uint64_t *speed); /* in 100 Mb/s */

/* In enumerations that the system's header closes. */
#define IBV_ACCESS_FLUSH_GLOBAL	    ((enum ibv_access_flags)(1 << 8))
#define IBV_ACCESS_FLUSH_PERSISTENT ((enum ibv_access_flags)(1 << 9))
#define IBV_PARENT_DOMAIN_INIT_ATTR_ALLOW_CC_UNPROTECTED_ALLOC \
	((enum ibv_parent_domain_init_attr_mask)(1 << 2))
#define IBV_WR_FLUSH	      ((enum ibv_wr_opcode)14)
#define IBV_WR_ATOMIC_WRITE   ((enum ibv_wr_opcode)15)
#define IBV_WC_FLUSH	      ((enum ibv_wc_opcode)8)
#define IBV_WC_ATOMIC_WRITE   ((enum ibv_wc_opcode)9)
#define IBV_QP_EX_WITH_FLUSH  ((enum ibv_qp_create_send_ops_flags)(1 << 11))
#define IBV_ODP_SUPPORT_FLUSH ((enum ibv_odp_transport_cap_bits)(1 << 6))

/* What a FLUSH brings about, as bits, and for which bytes. */
#define IBV_FLUSH_GLOBAL     (1u << 0)
#define IBV_FLUSH_PERSISTENT (1u << 1)
#define IBV_FLUSH_RANGE	     0
#define IBV_FLUSH_MR	     1

/* The member that the system's struct ibv_qp_ex may lack stands behind the others. */
static inline void ibv_wr_flush(struct ibv_qp_ex *qp, uint32_t rkey, uint64_t remote_addr, size_t len,
				uint8_t type, uint8_t level)
{
	typedef void flush_call(struct ibv_qp_ex *, uint32_t, uint64_t, size_t, uint8_t, uint8_t);
	struct with_flush {
		char older[352];
		flush_call *wr_flush;
	};

	((struct with_flush *)(void *)qp)->wr_flush(qp, rkey, remote_addr, len, type, level);
}

#ifdef __cplusplus
}
#endif

#endif
