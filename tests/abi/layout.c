/* The sizes and offsets that programs have compiled in.  All is decided when this compiles. */
#include <assert.h>
#include <stddef.h>

#include <infiniband/verbs.h>

#include "obj/context.h"
#include "obj/cq.h"
#include "obj/qp.h"
#include "obj/srq.h"

#define SIZE(type, size)	static_assert(sizeof(struct type) == (size), #type)
#define AT(type, member, where) static_assert(offsetof(struct type, member) == (where), #type "." #member)

SIZE(ibv_device, 664);
SIZE(ibv_context, 328);
SIZE(verbs_context, 648);
SIZE(ibv_device_attr, 232);
SIZE(ibv_device_attr_ex, 400);
SIZE(ibv_port_attr, 52);
SIZE(ibv_qp, 160);
SIZE(ibv_qp_ex, 352);
SIZE(ibv_cq, 128);
SIZE(ibv_cq_ex, 288);
SIZE(ibv_srq, 128);
SIZE(ibv_mr, 48);
SIZE(ibv_pd, 16);
SIZE(ibv_ah, 24);
SIZE(ibv_mw, 32);
SIZE(ibv_wc, 48);
SIZE(ibv_send_wr, 128);
SIZE(ibv_qp_attr, 144);
SIZE(ibv_gid_entry, 32);
SIZE(ibv_dm, 32);
SIZE(ibv_wq, 152);
SIZE(ibv_comp_channel, 16);

AT(ibv_context, ops, 8);
AT(ibv_context, cmd_fd, 264);
AT(ibv_context, abi_compat, 320);
AT(verbs_context, sz, 312);
AT(verbs_context, context, 320);

/* Vendor libraries compare what follows the public device with their own driver's. */
AT(vb_device, ibv, 0);
AT(vb_device, verbs_device_ops, 664);
/* Newer members of verbs_context stand right before Debian 12's: free_buf lowest, alloc_dmah highest. */
AT(vb_context, v, sizeof(struct vb_newer_ops));
static_assert(sizeof(struct vb_newer_ops) == 6 * sizeof(void *), "one pointer each");
/* What a program holds is the beginning of what we hold. */
AT(vb_cq, ibv, 0);
AT(vb_qp, ibv, 0);
AT(vb_qp, ex, 0);
AT(vb_srq, ibv, 0);

int main(void)
{
	return 0;
}
