/* The entries of a context's function tables whose feature this device has not got.  Headers turn an entry
 * that is NULL into EOPNOTSUPP and nobody hears why; so each has a function, which gives the same result and
 * says what is missing. */
#include <errno.h>

#include "base/log.h"
#include "verbs/verbs.h"

#define COUNTERS "flow counters are"
#define ESP	 "flow actions (IPsec) are"
#define FLOW	 "flow steering is"
#define WQ	 "work queues without a queue pair are"

/* Each row: the entry, the public call, what is missing, arguments.  ERRNO: the call returns a positive
 * errno and sets it; NONE: NULL and errno, and the row begins with the type. */
#define ENTRIES(ERRNO, NONE)                                                                                 \
	NONE(struct ibv_flow *, ibv_create_flow, "ibv_create_flow", FLOW, struct ibv_qp *qp,                 \
	     struct ibv_flow_attr *attr)                                                                     \
	ERRNO(ibv_destroy_flow, "ibv_destroy_flow", FLOW, struct ibv_flow *flow)                             \
	NONE(struct ibv_flow_action *, create_flow_action_esp, "ibv_create_flow_action_esp", ESP,            \
	     struct ibv_context *c, struct ibv_flow_action_esp_attr *attr)                                   \
	ERRNO(modify_flow_action_esp, "ibv_modify_flow_action_esp", ESP, struct ibv_flow_action *action,     \
	      struct ibv_flow_action_esp_attr *attr)                                                         \
	ERRNO(destroy_flow_action, "ibv_destroy_flow_action", ESP, struct ibv_flow_action *action)           \
	NONE(struct ibv_wq *, create_wq, "ibv_create_wq", WQ, struct ibv_context *c,                         \
	     struct ibv_wq_init_attr *attr)                                                                  \
	ERRNO(modify_wq, "ibv_modify_wq", WQ, struct ibv_wq *wq, struct ibv_wq_attr *attr)                   \
	ERRNO(destroy_wq, "ibv_destroy_wq", WQ, struct ibv_wq *wq)                                           \
	NONE(struct ibv_rwq_ind_table *, create_rwq_ind_table, "ibv_create_rwq_ind_table", WQ,               \
	     struct ibv_context *c, struct ibv_rwq_ind_table_init_attr *attr)                                \
	ERRNO(destroy_rwq_ind_table, "ibv_destroy_rwq_ind_table", WQ, struct ibv_rwq_ind_table *table)       \
	NONE(struct ibv_counters *, create_counters, "ibv_create_counters", COUNTERS, struct ibv_context *c, \
	     struct ibv_counters_init_attr *attr)                                                            \
	ERRNO(destroy_counters, "ibv_destroy_counters", COUNTERS, struct ibv_counters *counters)             \
	ERRNO(read_counters, "ibv_read_counters", COUNTERS, struct ibv_counters *counters, uint64_t *values, \
	      uint32_t n, uint32_t flags)                                                                    \
	ERRNO(attach_counters_point_flow, "ibv_attach_counters_point_flow", COUNTERS,                        \
	      struct ibv_counters *counters, struct ibv_counter_attach_attr *attr, struct ibv_flow *flow)    \
	ERRNO(modify_qp_rate_limit, "ibv_modify_qp_rate_limit", "rate limits of queue pairs are",            \
	      struct ibv_qp *qp, struct ibv_qp_rate_limit_attr *attr)

#define ERRNO(entry, call, what, ...)                                                               \
	static int absent_##entry(__VA_ARGS__)                                                      \
	{                                                                                           \
		return vb_leave_code(errno, vb_refuse(EOPNOTSUPP, call, "%s not supported", what)); \
	}
#define NONE(type, entry, call, what, ...)                                     \
	static type absent_##entry(__VA_ARGS__)                                \
	{                                                                      \
		errno = vb_refuse(EOPNOTSUPP, call, "%s not supported", what); \
		return vb_leave_object(errno, NULL);                           \
	}

#pragma GCC diagnostic ignored "-Wunused-parameter"
ENTRIES(ERRNO, NONE)

static int absent_post_srq_ops(struct ibv_srq *srq, struct ibv_ops_wr *op, struct ibv_ops_wr **bad)
{
	*bad = op;
	return vb_leave_code(errno,
			     vb_refuse(EOPNOTSUPP, "ibv_post_srq_ops", "tag matching is not supported"));
}

void vb_ops_fill_absent(struct verbs_context *v)
{
#define FILL_ERRNO(entry, ...)	    v->entry = absent_##entry;
#define FILL_NONE(type, entry, ...) v->entry = absent_##entry;
	ENTRIES(FILL_ERRNO, FILL_NONE)
	v->post_srq_ops = absent_post_srq_ops;
}
