/* The private node, IBVERBS_PRIVATE_34: what drivers call in the library that loads them.  The releases from
 * 34 to 56 have this node, and some added to it: here is what any of them has.
 *
 * Vendor libraries (libmlx5 and the like) bind these symbols when they are loaded, and many programs load
 * them; so they must exist.  No driver ever gets a device from us: each first compares the device's driver
 * with its own, finds another, and goes away.  Hence none of these is called, except
 * verbs_register_driver_34, which their constructors call; each still fails in the way its caller
 * understands, and says so.
 *
 * Their argument lists do not matter for failing, and the calling conventions of all supported machines let a
 * function ignore arguments that it was passed: all are declared without. */
#include <errno.h>
#include <stdbool.h>
#include <stddef.h>

#include "base/log.h"
#include "verbs/verbs.h"

#define REFUSED(name) \
	vb_refuse(EOPNOTSUPP, name, "the call is part of the driver interface, which Verbena does not have")

/* Calls that return a positive errno. */
#define COMMANDS(X)                       \
	X(execute_ioctl)                  \
	X(ibv_cmd_advise_mr)              \
	X(ibv_cmd_alloc_dm)               \
	X(ibv_cmd_alloc_mw)               \
	X(ibv_cmd_alloc_pd)               \
	X(ibv_cmd_attach_mcast)           \
	X(ibv_cmd_close_xrcd)             \
	X(ibv_cmd_create_ah)              \
	X(ibv_cmd_create_counters)        \
	X(ibv_cmd_create_cq)              \
	X(ibv_cmd_create_cq_ex)           \
	X(ibv_cmd_create_cq_ex2)          \
	X(ibv_cmd_create_flow)            \
	X(ibv_cmd_create_flow_action_esp) \
	X(ibv_cmd_create_qp)              \
	X(ibv_cmd_create_qp_ex)           \
	X(ibv_cmd_create_qp_ex2)          \
	X(ibv_cmd_create_rwq_ind_table)   \
	X(ibv_cmd_create_srq)             \
	X(ibv_cmd_create_srq_ex)          \
	X(ibv_cmd_create_wq)              \
	X(ibv_cmd_dealloc_mw)             \
	X(ibv_cmd_dealloc_pd)             \
	X(ibv_cmd_dereg_mr)               \
	X(ibv_cmd_destroy_ah)             \
	X(ibv_cmd_destroy_counters)       \
	X(ibv_cmd_destroy_cq)             \
	X(ibv_cmd_destroy_flow)           \
	X(ibv_cmd_destroy_flow_action)    \
	X(ibv_cmd_destroy_qp)             \
	X(ibv_cmd_destroy_rwq_ind_table)  \
	X(ibv_cmd_destroy_srq)            \
	X(ibv_cmd_destroy_wq)             \
	X(ibv_cmd_detach_mcast)           \
	X(ibv_cmd_free_dm)                \
	X(ibv_cmd_get_context)            \
	X(ibv_cmd_modify_cq)              \
	X(ibv_cmd_modify_flow_action_esp) \
	X(ibv_cmd_modify_qp)              \
	X(ibv_cmd_modify_qp_ex)           \
	X(ibv_cmd_modify_srq)             \
	X(ibv_cmd_modify_wq)              \
	X(ibv_cmd_open_qp)                \
	X(ibv_cmd_open_xrcd)              \
	X(ibv_cmd_poll_cq)                \
	X(ibv_cmd_post_recv)              \
	X(ibv_cmd_post_send)              \
	X(ibv_cmd_post_srq_recv)          \
	X(ibv_cmd_query_context)          \
	X(ibv_cmd_query_device)           \
	X(ibv_cmd_query_device_any)       \
	X(ibv_cmd_query_mr)               \
	X(ibv_cmd_query_port)             \
	X(ibv_cmd_query_qp)               \
	X(ibv_cmd_query_srq)              \
	X(ibv_cmd_read_counters)          \
	X(ibv_cmd_reg_dm_mr)              \
	X(ibv_cmd_reg_dmabuf_mr)          \
	X(ibv_cmd_reg_mr)                 \
	X(ibv_cmd_req_notify_cq)          \
	X(ibv_cmd_rereg_mr)               \
	X(ibv_cmd_resize_cq)

#define COMMAND(name)                                        \
	VB_EXPORT int name(void);                            \
	int name(void)                                       \
	{                                                    \
		return vb_leave_code(errno, REFUSED(#name)); \
	}

/* Calls that return a pointer. */
#define POINTERS(X)                      \
	X(_verbs_init_and_alloc_context) \
	X(verbs_open_device)

#define POINTER(name)                                \
	VB_EXPORT void *name(void);                  \
	void *name(void)                             \
	{                                            \
		errno = REFUSED(#name);              \
		return vb_leave_object(errno, NULL); \
	}

/* Calls without a result. */
#define PROCEDURES(X)    \
	X(verbs_init_cq) \
	X(verbs_set_ops) \
	X(verbs_uninit_context)

#define PROCEDURE(name)            \
	VB_EXPORT void name(void); \
	void name(void)            \
	{                          \
		REFUSED(#name);    \
		vb_log_tell();     \
	}

COMMANDS(COMMAND)
POINTERS(POINTER)
PROCEDURES(PROCEDURE)

/* Drivers read it: whether a device may vanish under a program.  Ours does not. */
extern VB_EXPORT bool verbs_allow_disassociate_destroy;
bool verbs_allow_disassociate_destroy = false;

/* Runs in the constructors of vendor libraries: whatever they register, we load no driver, so there is
 * nothing to remember and nothing to say. */
VB_EXPORT void verbs_register_driver_34(const void *ops);
void verbs_register_driver_34(const void *ops)
{
	(void)ops;
}

/* A driver's own remarks; it only has some when it has a device. */
VB_EXPORT void __verbs_log(void);
void __verbs_log(void)
{
}

/* How many attributes a command holds: of a command that nobody can have begun, none. */
VB_EXPORT unsigned int __ioctl_final_num_attrs(void);
unsigned int __ioctl_final_num_attrs(void)
{
	return 0;
}

/* Attributes of devices that drivers bind to; -1 is its "no such file". */
VB_EXPORT int ibv_read_ibdev_sysfs_file(void);
int ibv_read_ibdev_sysfs_file(void)
{
	errno = ENOENT;
	return -1;
}
