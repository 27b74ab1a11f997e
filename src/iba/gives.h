/* What calls write for the program, by the types of their arguments and results (base/msan.h).
 *
 * VB_GIVES(give, size, ...) calls give(argument, bytes) for each argument whose size(argument) is not 0.
 * VB_GIVES_VERBS is the list of the types of verbs, for a size() made of _Generic().  Structs of which the
 * program says the size, and arrays, are given by the calls that have them. */
#ifndef VB_IBA_GIVES_H
#define VB_IBA_GIVES_H

#include <stdint.h>

#include <infiniband/verbs.h>

#define VB_GIVES_TYPE(type) \
	type:               \
	sizeof(*(type)0)

#define VB_GIVES_VERBS                                                                                      \
	VB_GIVES_TYPE(int *), VB_GIVES_TYPE(uint16_t *), VB_GIVES_TYPE(uint32_t *),                         \
	    VB_GIVES_TYPE(uint64_t *), VB_GIVES_TYPE(void **), VB_GIVES_TYPE(struct ibv_cq **),             \
	    VB_GIVES_TYPE(struct ibv_send_wr **), VB_GIVES_TYPE(struct ibv_recv_wr **),                     \
	    VB_GIVES_TYPE(union ibv_gid *), VB_GIVES_TYPE(struct ibv_device_attr *),                        \
	    VB_GIVES_TYPE(struct ibv_values_ex *), VB_GIVES_TYPE(struct ibv_async_event *),                 \
	    VB_GIVES_TYPE(struct ibv_ah_attr *), VB_GIVES_TYPE(struct ibv_qp_attr *),                       \
	    VB_GIVES_TYPE(struct ibv_qp_init_attr *), VB_GIVES_TYPE(struct ibv_qp_init_attr_ex *),          \
	    VB_GIVES_TYPE(struct ibv_srq_attr *), VB_GIVES_TYPE(struct ibv_srq_init_attr *),                \
	    VB_GIVES_TYPE(struct ibv_srq_init_attr_ex *), VB_GIVES_TYPE(struct ibv_ece *),                  \
	    VB_GIVES_TYPE(struct ibv_mw_bind *), VB_GIVES_TYPE(struct ibv_pd *),                            \
	    VB_GIVES_TYPE(struct ibv_td *), VB_GIVES_TYPE(struct ibv_mr *), VB_GIVES_TYPE(struct ibv_mw *), \
	    VB_GIVES_TYPE(struct ibv_cq *), VB_GIVES_TYPE(struct ibv_cq_ex *),                              \
	    VB_GIVES_TYPE(struct ibv_comp_channel *), VB_GIVES_TYPE(struct ibv_qp *),                       \
	    VB_GIVES_TYPE(struct ibv_qp_ex *), VB_GIVES_TYPE(struct ibv_srq *),                             \
	    VB_GIVES_TYPE(struct ibv_ah *), VB_GIVES_TYPE(struct ibv_dm *), VB_GIVES_TYPE(struct ibv_xrcd *)

#define VB_GIVES_ONE(give, size, x)                                  \
	do {                                                         \
		if (size(x))                                         \
			give((const void *)(uintptr_t)(x), size(x)); \
	} while (0)
#define VB_GIVES_0(g, s, unused) (void)0
#define VB_GIVES_1(g, s, a)	 VB_GIVES_ONE(g, s, a)
#define VB_GIVES_2(g, s, a, ...) \
	VB_GIVES_ONE(g, s, a);   \
	VB_GIVES_1(g, s, __VA_ARGS__)
#define VB_GIVES_3(g, s, a, ...) \
	VB_GIVES_ONE(g, s, a);   \
	VB_GIVES_2(g, s, __VA_ARGS__)
#define VB_GIVES_4(g, s, a, ...) \
	VB_GIVES_ONE(g, s, a);   \
	VB_GIVES_3(g, s, __VA_ARGS__)
#define VB_GIVES_5(g, s, a, ...) \
	VB_GIVES_ONE(g, s, a);   \
	VB_GIVES_4(g, s, __VA_ARGS__)
#define VB_GIVES_6(g, s, a, ...) \
	VB_GIVES_ONE(g, s, a);   \
	VB_GIVES_5(g, s, __VA_ARGS__)
#define VB_GIVES_PICK(z, a, b, c, d, e, f, name, ...) name
#define VB_GIVES(g, s, ...)                                                                         \
	VB_GIVES_PICK(0, ##__VA_ARGS__, VB_GIVES_6, VB_GIVES_5, VB_GIVES_4, VB_GIVES_3, VB_GIVES_2, \
		      VB_GIVES_1, VB_GIVES_0)                                                       \
	(g, s, __VA_ARGS__)

#endif
