/* Calls of releases after Debian 12's (nodes IBVERBS_1.15 to 1.18) that the device has not got: they exist,
 * so that programs built on newer systems load, and fail as their manual pages say an unsupported call fails.
 * What it has got of these nodes is in newer_mr.c. */
#include <errno.h>
#include <stdint.h>

#include <infiniband/verbs.h>

#include "base/log.h"
#include "verbs/verbs.h"

struct ibv_comp_cntr;
struct ibv_comp_cntr_init_attr;
struct ibv_comp_cntr_caps;
struct ibv_qp_attach_comp_cntr_attr;

#define COUNTERS "completion counters are not supported"
#define DMABUF	 "device memory of this device is no dma-buf, and cannot become one"

/* Each row: kind of result, type, name, what is missing, arguments.  ERRNO: a positive errno; PROBE: a
 * positive errno of a question that programs ask before they use anything of the kind; MINUS: -1 and errno;
 * NONE: NULL and errno.
 */
#define CALLS(ERRNO, PROBE, MINUS, NONE)                                                             \
	/* 1.16 */                                                                                   \
	MINUS(int, ibv_dm_export_dmabuf_fd, DMABUF, struct ibv_dm *dm)                               \
	/* 1.18 */                                                                                   \
	NONE(struct ibv_comp_cntr *, ibv_create_comp_cntr, COUNTERS, struct ibv_context *c,          \
	     struct ibv_comp_cntr_init_attr *attr)                                                   \
	ERRNO(int, ibv_destroy_comp_cntr, COUNTERS, struct ibv_comp_cntr *cntr)                      \
	ERRNO(int, ibv_set_comp_cntr, COUNTERS, struct ibv_comp_cntr *cntr, uint64_t value)          \
	ERRNO(int, ibv_set_err_comp_cntr, COUNTERS, struct ibv_comp_cntr *cntr, uint64_t value)      \
	ERRNO(int, ibv_inc_comp_cntr, COUNTERS, struct ibv_comp_cntr *cntr, uint64_t amount)         \
	ERRNO(int, ibv_inc_err_comp_cntr, COUNTERS, struct ibv_comp_cntr *cntr, uint64_t amount)     \
	ERRNO(int, ibv_read_comp_cntr, COUNTERS, struct ibv_comp_cntr *cntr, uint64_t *value)        \
	ERRNO(int, ibv_read_err_comp_cntr, COUNTERS, struct ibv_comp_cntr *cntr, uint64_t *value)    \
	ERRNO(int, ibv_qp_attach_comp_cntr, COUNTERS, struct ibv_qp *qp, struct ibv_comp_cntr *cntr, \
	      struct ibv_qp_attach_comp_cntr_attr *attr)                                             \
	PROBE(int, _ibv_query_comp_cntr_caps, COUNTERS, struct ibv_context *c,                       \
	      struct ibv_comp_cntr_caps *caps, size_t size)

#define DECLARE(type, name, what, ...) VB_EXPORT type name(__VA_ARGS__);
#define ERRNO(type, name, what, ...)                                             \
	type name(__VA_ARGS__)                                                   \
	{                                                                        \
		return vb_leave_code(errno, vb_refuse(EOPNOTSUPP, #name, what)); \
	}
#define PROBE(type, name, what, ...)                                              \
	type name(__VA_ARGS__)                                                    \
	{                                                                         \
		return vb_leave_code(errno, vb_decline(EOPNOTSUPP, #name, what)); \
	}
#define MINUS(type, name, what, ...)                        \
	type name(__VA_ARGS__)                              \
	{                                                   \
		errno = vb_refuse(EOPNOTSUPP, #name, what); \
		return vb_leave_code(errno, -1);            \
	}
#define NONE(type, name, what, ...)                         \
	type name(__VA_ARGS__)                              \
	{                                                   \
		errno = vb_refuse(EOPNOTSUPP, #name, what); \
		return vb_leave_object(errno, NULL);        \
	}

CALLS(DECLARE, DECLARE, DECLARE, DECLARE)

#pragma GCC diagnostic ignored "-Wunused-parameter"
CALLS(ERRNO, PROBE, MINUS, NONE)
