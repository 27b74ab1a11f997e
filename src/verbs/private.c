/* The private nodes, IBVERBS_PRIVATE_34 to 65: what drivers call in the library that loads them.  Each
 * release of rdma-core has one such node, with its number in the name, and its drivers bind symbols of that
 * node only. Here all of them stand side by side.
 *
 * Vendor libraries (libmlx5 and the like) bind these symbols when they are loaded, and many programs load
 * them; so they must exist.  No driver ever gets a device from us: each first compares the device's driver
 * with its own, finds another, and goes away.  Hence none of these is called, except
 * verbs_register_driver_NN, which their constructors call; each still fails in the way its caller
 * understands, and says so.
 *
 * Their argument lists do not matter for failing, and the calling conventions of all supported machines let a
 * function ignore arguments that it was passed: all are declared without.
 *
 * libibverbs.map lists each symbol in the first node that has it.  The directives below add it to the later
 * ones, as further versions of the same symbol.  gcc's link-time optimisation loses such directives: this
 * file is compiled without (CMakeLists.txt). */
#include <errno.h>
#include <stdbool.h>
#include <stddef.h>

#include "base/log.h"
#include "host/devices.h"
#include "host/netif.h"
#include "verbs/verbs.h"

/* The assembler's name of a symbol, whose versions have the name that drivers know. */
#define PLAIN(name)	  __asm__("vb_private_" #name)
#define VERSION(name, at) __asm__(".symver vb_private_" #name ", " #name at);
/* In which nodes a symbol is: in the first, which libibverbs.map names too, and in all later ones. */
#define ONLY_34(name)  VERSION(name, "@@IBVERBS_PRIVATE_34")
#define ONLY_57(name)  VERSION(name, "@@IBVERBS_PRIVATE_57")
#define ONLY_59(name)  VERSION(name, "@@IBVERBS_PRIVATE_59")
#define ONLY_64(name)  VERSION(name, "@@IBVERBS_PRIVATE_64")
#define SINCE_65(name) VERSION(name, "@@IBVERBS_PRIVATE_65")
#define IN_64(name)    VERSION(name, "@IBVERBS_PRIVATE_64") VERSION(name, "@IBVERBS_PRIVATE_65")
#define IN_57(name)    VERSION(name, "@IBVERBS_PRIVATE_57") VERSION(name, "@IBVERBS_PRIVATE_59")
#define SINCE_64(name) ONLY_64(name) VERSION(name, "@IBVERBS_PRIVATE_65")
#define SINCE_59(name) ONLY_59(name) IN_64(name)
#define SINCE_34(name) ONLY_34(name) IN_57(name) IN_64(name)

#define REFUSED(name) \
	vb_refuse(EOPNOTSUPP, name, "the call is part of the driver interface, which Verbena does not have")

/* Calls that return a positive errno.  Each row: the call, and in which nodes it is. */
#define COMMANDS(X)                                 \
	X(execute_ioctl, SINCE_34)                  \
	X(ibv_cmd_advise_mr, SINCE_34)              \
	X(ibv_cmd_alloc_dm, SINCE_34)               \
	X(ibv_cmd_alloc_mw, SINCE_34)               \
	X(ibv_cmd_alloc_pd, SINCE_34)               \
	X(ibv_cmd_attach_mcast, SINCE_34)           \
	X(ibv_cmd_close_xrcd, SINCE_34)             \
	X(ibv_cmd_create_ah, SINCE_34)              \
	X(ibv_cmd_create_counters, SINCE_34)        \
	X(ibv_cmd_create_cq, SINCE_34)              \
	X(ibv_cmd_create_cq_ex, SINCE_34)           \
	X(ibv_cmd_create_cq_ex2, SINCE_34)          \
	X(ibv_cmd_create_flow, SINCE_34)            \
	X(ibv_cmd_create_flow_action_esp, SINCE_34) \
	X(ibv_cmd_create_qp, SINCE_34)              \
	X(ibv_cmd_create_qp_ex, SINCE_34)           \
	X(ibv_cmd_create_qp_ex2, SINCE_34)          \
	X(ibv_cmd_create_rwq_ind_table, SINCE_34)   \
	X(ibv_cmd_create_srq, SINCE_34)             \
	X(ibv_cmd_create_srq_ex, SINCE_34)          \
	X(ibv_cmd_create_wq, SINCE_34)              \
	X(ibv_cmd_dealloc_mw, SINCE_34)             \
	X(ibv_cmd_dealloc_pd, SINCE_34)             \
	X(ibv_cmd_dereg_mr, SINCE_34)               \
	X(ibv_cmd_destroy_ah, SINCE_34)             \
	X(ibv_cmd_destroy_counters, SINCE_34)       \
	X(ibv_cmd_destroy_cq, SINCE_34)             \
	X(ibv_cmd_destroy_flow, SINCE_34)           \
	X(ibv_cmd_destroy_flow_action, SINCE_34)    \
	X(ibv_cmd_destroy_qp, SINCE_34)             \
	X(ibv_cmd_destroy_rwq_ind_table, SINCE_34)  \
	X(ibv_cmd_destroy_srq, SINCE_34)            \
	X(ibv_cmd_destroy_wq, SINCE_34)             \
	X(ibv_cmd_detach_mcast, SINCE_34)           \
	X(ibv_cmd_free_dm, SINCE_34)                \
	X(ibv_cmd_get_context, SINCE_34)            \
	X(ibv_cmd_modify_cq, SINCE_34)              \
	X(ibv_cmd_modify_flow_action_esp, SINCE_34) \
	X(ibv_cmd_modify_qp, SINCE_34)              \
	X(ibv_cmd_modify_qp_ex, SINCE_34)           \
	X(ibv_cmd_modify_srq, SINCE_34)             \
	X(ibv_cmd_modify_wq, SINCE_34)              \
	X(ibv_cmd_open_qp, SINCE_34)                \
	X(ibv_cmd_open_xrcd, SINCE_34)              \
	X(ibv_cmd_poll_cq, SINCE_34)                \
	X(ibv_cmd_post_recv, SINCE_34)              \
	X(ibv_cmd_post_send, SINCE_34)              \
	X(ibv_cmd_post_srq_recv, SINCE_34)          \
	X(ibv_cmd_query_context, SINCE_34)          \
	X(ibv_cmd_query_device, ONLY_34)            \
	X(ibv_cmd_query_device_any, SINCE_34)       \
	X(ibv_cmd_query_mr, SINCE_34)               \
	X(ibv_cmd_query_port, SINCE_34)             \
	X(ibv_cmd_query_qp, SINCE_34)               \
	X(ibv_cmd_query_srq, SINCE_34)              \
	X(ibv_cmd_read_counters, SINCE_34)          \
	X(ibv_cmd_reg_dm_mr, SINCE_34)              \
	X(ibv_cmd_reg_dmabuf_mr, SINCE_34)          \
	X(ibv_cmd_reg_mr, SINCE_34)                 \
	X(ibv_cmd_req_notify_cq, SINCE_34)          \
	X(ibv_cmd_rereg_mr, SINCE_34)               \
	X(ibv_cmd_resize_cq, SINCE_34)              \
	X(ibv_cmd_alloc_dmah, SINCE_59)             \
	X(ibv_cmd_free_dmah, SINCE_59)              \
	X(ibv_cmd_query_port_speed, SINCE_59)       \
	X(ibv_cmd_reg_mr_ex, SINCE_59)              \
	X(ibv_cmd_create_comp_cntr, SINCE_65)       \
	X(ibv_cmd_destroy_comp_cntr, SINCE_65)      \
	X(ibv_cmd_inc_comp_cntr, SINCE_65)          \
	X(ibv_cmd_inc_err_comp_cntr, SINCE_65)      \
	X(ibv_cmd_qp_attach_comp_cntr, SINCE_65)    \
	X(ibv_cmd_query_comp_cntr_caps, SINCE_65)   \
	X(ibv_cmd_read_comp_cntr, SINCE_65)         \
	X(ibv_cmd_read_err_comp_cntr, SINCE_65)     \
	X(ibv_cmd_set_comp_cntr, SINCE_65)          \
	X(ibv_cmd_set_err_comp_cntr, SINCE_65)

#define COMMAND(name, nodes)                                 \
	VB_EXPORT int name(void) PLAIN(name);                \
	int name(void)                                       \
	{                                                    \
		return vb_leave_code(errno, REFUSED(#name)); \
	}                                                    \
	nodes(name)

/* Calls that return a descriptor. */
#define DESCRIPTOR(name, nodes)                        \
	VB_EXPORT int name(void) PLAIN(name);          \
	int name(void)                                 \
	{                                              \
		errno = REFUSED(#name);                \
		return (int)vb_leave_value(errno, -1); \
	}                                              \
	nodes(name)

/* Calls that return a pointer. */
#define POINTERS(X)                                \
	X(_verbs_init_and_alloc_context, SINCE_34) \
	X(verbs_open_device, SINCE_34)             \
	X(ibv_dmabuf_heap_alloc, SINCE_64)         \
	X(ibv_dmabuf_heap_cc_shared_init, SINCE_64)

#define POINTER(name, nodes)                         \
	VB_EXPORT void *name(void) PLAIN(name);      \
	void *name(void)                             \
	{                                            \
		errno = REFUSED(#name);              \
		return vb_leave_object(errno, NULL); \
	}                                            \
	nodes(name)

/* Calls without a result. */
#define PROCEDURES(X)                        \
	X(verbs_init_cq, SINCE_34)           \
	X(verbs_set_ops, SINCE_34)           \
	X(verbs_uninit_context, SINCE_34)    \
	X(ibv_dmabuf_heap_destroy, SINCE_64) \
	X(ibv_dmabuf_heap_free, SINCE_64)

#define PROCEDURE(name, nodes)                 \
	VB_EXPORT void name(void) PLAIN(name); \
	void name(void)                        \
	{                                      \
		REFUSED(#name);                \
		vb_log_tell();                 \
	}                                      \
	nodes(name)

COMMANDS(COMMAND)
POINTERS(POINTER)
PROCEDURES(PROCEDURE)
DESCRIPTOR(ibv_cmd_export_dmabuf_fd, SINCE_59)

/* Drivers read it: whether a device may vanish under a program.  Ours does not. */
extern VB_EXPORT bool verbs_allow_disassociate_destroy PLAIN(verbs_allow_disassociate_destroy);
bool verbs_allow_disassociate_destroy = false;
SINCE_34(verbs_allow_disassociate_destroy)

/* Run in the constructors of vendor libraries: whatever they register, we load no driver, so there is
 * nothing to remember and nothing to say.  The node is in the name, and each is in its own only. */
#define REGISTER(name, nodes)                             \
	VB_EXPORT void name(const void *ops) PLAIN(name); \
	void name(const void *ops)                        \
	{                                                 \
		(void)ops;                                \
	}                                                 \
	nodes(name)

REGISTER(verbs_register_driver_34, ONLY_34)
REGISTER(verbs_register_driver_57, ONLY_57)
REGISTER(verbs_register_driver_59, ONLY_59)
REGISTER(verbs_register_driver_64, ONLY_64)
REGISTER(verbs_register_driver_65, SINCE_65)

/* A driver's own remarks; it only has some when it has a device. */
VB_EXPORT void __verbs_log(void) PLAIN(__verbs_log);
void __verbs_log(void)
{
}
SINCE_34(__verbs_log)

/* How many attributes a command holds: of a command that nobody can have begun, none. */
VB_EXPORT unsigned int __ioctl_final_num_attrs(void) PLAIN(__ioctl_final_num_attrs);
unsigned int __ioctl_final_num_attrs(void)
{
	return 0;
}
SINCE_34(__ioctl_final_num_attrs)

/* Attributes of devices that drivers bind to; -1 is its "no such file". */
VB_EXPORT int ibv_read_ibdev_sysfs_file(void) PLAIN(ibv_read_ibdev_sysfs_file);
int ibv_read_ibdev_sysfs_file(void)
{
	errno = ENOENT;
	return -1;
}
SINCE_34(ibv_read_ibdev_sysfs_file)

/* Programs bind these two as well, and they work.  The values are what the files gid_attrs/types/N
 * distinguish. */
enum gid_type_file { TYPE_IB_ROCE_V1, TYPE_ROCE_V2 };

int ibv_query_gid_type(struct ibv_context *context, uint8_t port, unsigned int index, unsigned int *type)
    PLAIN(ibv_query_gid_type);
VB_EXPORT VB_CODE(ibv_query_gid_type, (context, port, index, type), struct ibv_context *context, uint8_t port,
		  unsigned int index, unsigned int *type)
{
	union ibv_gid gid;

	if (ibv_query_gid(context, port, index > INT32_MAX ? -1 : (int)index, &gid))
		return -1;
	/* that of an empty entry is the type that has no name */
	*type = vb_devices_infiniband() || vb_gid_is_zero(gid.raw) ? TYPE_IB_ROCE_V1 : TYPE_ROCE_V2;
	return 0;
}
SINCE_34(ibv_query_gid_type)

/* Of release 49, whose header declares it. */
VB_EXPORT const char *ibv_wr_opcode_str(enum ibv_wr_opcode opcode) PLAIN(ibv_wr_opcode_str);
const char *ibv_wr_opcode_str(enum ibv_wr_opcode opcode)
{
	return vb_wr_opcode_str(opcode);
}
SINCE_34(ibv_wr_opcode_str)
